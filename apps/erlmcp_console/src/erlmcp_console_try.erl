-module(erlmcp_console_try).
-moduledoc """
Calls tools for the page, by a client of the same server without a socket. A call is a stream of
JSON lines. The first line has the call's id. Reports of progress and of the log follow, and
questions of the tool. The last line has the result or the error. The answer to a question comes
with another request. A page that is closed ends its call.
""".

-export([open/0, tools/1, call/3, answer/1]).

%% Calls of the page that run at once.
-define(MOST, 20).
%% Milliseconds of a call, and those that a person has to answer a question.
-define(LONGEST, 600_000).

-doc """
Creates the table of running calls, owned by the calling process. Once the process has ended,
`call/3` and `answer/1` raise `badarg`.
""".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public]),
    ok.

-doc """
Returns the tools of a server as `tools/list` has them. The error is a sentence that says why they
cannot be listed.
""".
-spec tools(erlmcp:server()) -> {ok, [map()]} | {error, binary()}.
tools(Server) ->
    maybe
        {ok, Client} ?= client(Server, #{}),
        {ok, Tools} ?= erlmcp_client:list_tools(Client),
        ok = erlmcp_client:stop(Client),
        {ok, Tools}
    else
        {error, Reason} -> {error, sentence(Reason)}
    end.

sentence(Reason) -> unicode:characters_to_binary(erlmcp_client:format_error(Reason)).

-doc """
Takes one of 20 places for calls of pages, and returns the fun of a stream (`m:erlmcp_page`). This
fun calls `Tool` of `Server` with `Arguments`, and sends lines until the call has ended. The calling
process must call the fun, since `answer/1` sends the user's answers to that process. The place is
free when the fun has returned or the process has ended. Returns `full` if no place is free.
""".
-spec call(Tool :: binary(), Arguments :: map(), erlmcp:server()) ->
    {ok, fun((fun((iodata()) -> ok)) -> ok)} | full.
call(Tool, Arguments, Server) ->
    _ = [ets:delete(?MODULE, Id) || {Id, Pid} <- ets:tab2list(?MODULE), not is_process_alive(Pid)],
    case ets:info(?MODULE, size) < ?MOST of
        true ->
            Id = base64:encode(crypto:strong_rand_bytes(18), #{mode => urlsafe}),
            true = ets:insert(?MODULE, {Id, self()}),
            {ok, fun(Send) -> run(Id, Tool, Arguments, Server, Send) end};
        false ->
            full
    end.

run(Id, Tool, Arguments, Server, Send) ->
    Page = self(),
    ok = line(Send, #{kind => started, call => Id}),
    Inputs = #{elicit => fun(Params) -> ask(Page, form, Params) end,
               elicit_url => fun(Params) -> to_url(ask(Page, url, Params)) end},
    maybe
        {ok, Client} ?= client(Server, Inputs),
        {ok, Call} ?= erlmcp_client:async(Client, {call_tool, Tool, Arguments},
                                          #{log_level => debug}),
        Last = until_end(Call, Send, #{}),
        ok = erlmcp_client:stop(Client),
        line(Send, Last)
    else
        {error, Reason} -> line(Send, failed(Reason))
    end,
    true = ets:delete(?MODULE, Id),
    ok.

client(Server, Inputs) ->
    erlmcp_client:start_link({server, Server, #{name => ~"erlmcp console", inputs => Inputs,
                                                timeout => ?LONGEST,
                                                input_timeout => ?LONGEST}}).

until_end(Call, Send, Questions) ->
    receive
        {erlmcp, Call, {Kind, Params}} when Kind =:= progress; Kind =:= log ->
            ok = line(Send, #{kind => Kind, params => Params}),
            until_end(Call, Send, Questions);
        {?MODULE, ask, Asker, Question, Kind, Params} ->
            ok = line(Send, #{kind => question, question => Question, form => Kind,
                              params => Params}),
            until_end(Call, Send, Questions#{Question => Asker});
        {?MODULE, answer, Question, Answer} ->
            _ = [Asker ! {?MODULE, Question, Answer}
                 || {ok, Asker} <- [maps:find(Question, Questions)]],
            until_end(Call, Send, maps:remove(Question, Questions));
        {erlmcp, Call, {ok, Result}} ->
            #{kind => result, result => Result};
        {erlmcp, Call, {error, Reason}} ->
            failed(Reason)
    end.

failed(Reason) -> #{kind => failed, words => sentence(Reason)}.

line(Send, Term) -> Send([json:encode(Term), $\n]).

%% In a process of the client.
ask(Page, Kind, Params) ->
    Question = integer_to_binary(erlang:unique_integer([positive])),
    Monitor = monitor(process, Page),
    Page ! {?MODULE, ask, self(), Question, Kind, Params},
    receive
        {?MODULE, Question, Answer} -> Answer;
        {'DOWN', Monitor, process, Page, _} -> cancel
    end.

to_url({accept, _}) -> accept;
to_url(Other) -> Other.

-doc """
Passes on the answer to a question of a call. `Body` is the decoded body of the request that brings
the answer. Returns `error` if `Body` is not an answer, or if the call that it names does not run.
An answer to a question that does not wait is dropped, and `ok` is returned.
""".
-spec answer(Body :: term()) -> ok | error.
answer(#{~"call" := Id, ~"question" := Question, ~"action" := Action} = Answer) when
    is_binary(Id), is_binary(Question)
->
    maybe
        {ok, Outcome} ?= outcome(Action, maps:get(~"content", Answer, #{})),
        [{_, Page}] ?= ets:lookup(?MODULE, Id),
        Page ! {?MODULE, answer, Question, Outcome},
        ok
    else
        _ -> error
    end;
answer(_) ->
    error.

outcome(~"accept", #{} = Content) -> {ok, {accept, Content}};
outcome(~"decline", _) -> {ok, decline};
outcome(~"cancel", _) -> {ok, cancel};
outcome(_, _) -> error.
