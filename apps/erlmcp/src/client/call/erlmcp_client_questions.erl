-module(erlmcp_client_questions).
-moduledoc """
The questions of a session's server: the requests that it sends to its client. Each has a process,
which starts a second one for the answer, and ends when the server has taken it. No answer is sent
if the server withdraws the request, or if the process that read it ends.

The questions that came outside of calls are state of the process that reads them. A few at a time
are put to the user's funs, others wait, and further ones are refused at once. Requests without such
a fun (`ping`, an unknown method, a refusal) are answered when they come. A server that leaves a
hundred of these answers unread gets no more.

Source: specification 2025-11-25, "Cancellation".

Internal.
""".

-export([table/0, start/2, withdraw/2]).
-export([new/0, ask/3, ended/2]).

-export_type([questions/0]).

%% Requests that funs answer at the same time, and those that wait meanwhile, with their bytes. A
%% waiting request has its process already, which hears when the server withdraws it.
-define(AT_ONCE, 16).
-define(WAITING, 100).
-define(WAITING_BYTES, 1_000_000).
%% Answers without a fun that are being sent at the same time.
-define(ANSWERS, 100).

-type server() :: {erlmcp_client_connection:client(), erlmcp_client_connection:live()}.

-record(questions, {
    open = [] :: [reference()],
    waiting = [] :: [{reference(), pid(), Bytes :: pos_integer()}],
    bytes = 0 :: non_neg_integer(),
    answers = [] :: [reference()]
}).

-opaque questions() :: #questions{}.

-doc "Creates the table of a client's open questions, by the session's epoch and their ids.".
-spec table() -> ets:table().
table() ->
    ets:new(questions, [public]).

-doc "Answers a request in a process of its own, and returns a monitor of that process.".
-spec start(erlmcp_message:message(), server()) -> reference().
start(Request, Server) ->
    {Pid, Monitor} = wait(Request, Server),
    ok = go(Pid),
    Monitor.

%% The process of a request does not begin before `go/1`.
wait({request, Id, _, _} = Request, {#{questions := Table}, #{epoch := Epoch}} = Server) ->
    Reader = self(),
    Key = {Epoch, Id},
    {Pid, Monitor} = spawn_monitor(fun() ->
        Gone = monitor(process, Reader),
        try
            receive
                go -> serve(Request, Server, Gone);
                withdrawn -> true;
                {'DOWN', Gone, process, _, _} -> true
            end
        after
            in_table(fun() -> ets:delete_object(Table, {Key, self()}) end)
        end
    end),
    true = in_table(fun() -> ets:insert(Table, {Key, Pid}) end),
    {Pid, Monitor}.

%% The table ends with its client.
in_table(Change) ->
    try Change()
    catch
        error:badarg -> true
    end.

go(Pid) ->
    Pid ! go,
    ok.

-doc "Ends the process of the request with the key `Key`, if it has not answered yet.".
-spec withdraw({Epoch :: non_neg_integer(), Id :: term()}, erlmcp_client_connection:client()) -> ok.
withdraw(Key, #{questions := Table}) ->
    lists:foreach(fun({_, Pid}) -> Pid ! withdrawn end, ets:lookup(Table, Key)).

serve({request, Id, Method, Params}, {#{settings := #{inputs := Inputs}} = Client, Live}, Gone) ->
    Request = #{~"method" => Method, ~"params" => Params},
    {Pid, Monitor} = erlmcp_one_shot:start(fun() ->
        erlmcp_client_inputs:respond(Request, Inputs)
    end, []),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Answer}} ->
            answer(Id, Answer, Client, Live);
        {'DOWN', Monitor, process, Pid, _} ->
            answer(Id, {error, -32603, ~"the client failed to answer"}, Client, Live);
        {'DOWN', Gone, process, _, _} ->
            exit(Pid, kill);
        withdrawn ->
            exit(Pid, kill)
    after erlmcp_client_inputs:timeout(Client) ->
        exit(Pid, kill),
        answer(Id, {error, -32603, ~"the client had no answer in time"}, Client, Live)
    end.

answer(Id, Answer, Client, Live) ->
    _ = erlmcp_client_one_way:answer(Id, Answer, Client, Live),
    true.

-doc "Returns an empty set of questions.".
-spec new() -> questions().
new() ->
    #questions{}.

-doc """
Adds a request of the server. Its process is monitored: the caller passes the end to `ended/2`.
""".
-spec ask(erlmcp_message:message(), server(), questions()) -> questions().
ask({request, _, Method, _} = Request, {Client, _} = Server, Questions) ->
    #questions{open = Open, waiting = Waiting, bytes = Bytes} = Questions,
    Size = erlang:external_size(Request),
    case erlmcp_client_inputs:is_for_user(Method, Client) of
        true when length(Open) < ?AT_ONCE ->
            opened(Request, Server, Questions);
        true when length(Waiting) < ?WAITING, Bytes + Size =< ?WAITING_BYTES ->
            {Pid, Monitor} = wait(Request, Server),
            Questions#questions{waiting = Waiting ++ [{Monitor, Pid, Size}],
                                bytes = Bytes + Size};
        true ->
            answer_at_once(fun refuse/2, Request, Server, Questions);
        false ->
            answer_at_once(fun start/2, Request, Server, Questions)
    end.

-doc """
Removes the process with the monitor `Monitor`, if it answers a question, and begins the next
question.
""".
-spec ended(reference(), questions()) -> {ok, questions()} | other.
ended(Monitor, #questions{open = Open, waiting = Waiting, answers = Answers} = Questions) ->
    case {lists:member(Monitor, Open), lists:keytake(Monitor, 1, Waiting),
          lists:member(Monitor, Answers)} of
        {true, _, _} ->
            {ok, next(Questions#questions{open = lists:delete(Monitor, Open)})};
        {_, {value, {_, _, Size}, Rest}, _} ->
            #questions{bytes = Bytes} = Questions,
            {ok, Questions#questions{waiting = Rest, bytes = Bytes - Size}};
        {_, _, true} ->
            {ok, Questions#questions{answers = lists:delete(Monitor, Answers)}};
        _ ->
            other
    end.

next(#questions{waiting = []} = Questions) ->
    Questions;
next(#questions{waiting = [{Monitor, Pid, Size} | Waiting]} = Questions) ->
    #questions{open = Open, bytes = Bytes} = Questions,
    ok = go(Pid),
    Questions#questions{open = [Monitor | Open], waiting = Waiting, bytes = Bytes - Size}.

opened(Request, Server, #questions{open = Open} = Questions) ->
    Questions#questions{open = [start(Request, Server) | Open]}.

answer_at_once(Answer, Request, Server, #questions{answers = Answers} = Questions) when
    length(Answers) < ?ANSWERS
->
    Questions#questions{answers = [Answer(Request, Server) | Answers]};
answer_at_once(_, _, _, Questions) ->
    Questions.

refuse({request, Id, _, _}, {Client, Live}) ->
    Refusal = {error, -32603, ~"the client has as many of the server's requests as it can answer"},
    {_, Monitor} = spawn_monitor(fun() ->
        erlmcp_client_one_way:answer(Id, Refusal, Client, Live)
    end),
    Monitor.
