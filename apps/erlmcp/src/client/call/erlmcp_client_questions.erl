-module(erlmcp_client_questions).
-moduledoc """
Answers the requests that the server of a session sends to its client (here: questions). Each
question has a process. No answer is sent if the server withdraws the question, or if the process
that read the question ends.

Questions that come outside of calls are kept by the process that reads them, as a value of this
module. At most 16 at a time are put to the client's funs. A hundred more wait, of 1 MB together,
and further ones are refused. Refusals, and answers that need no fun, as to `ping`, are sent at
once; beyond a hundred at a time they are dropped.

Source: specification 2025-11-25, "Cancellation".

Internal.
""".

-export([table/0, start/2, withdraw/2, withdraw_all/1, user_time/1]).
-export([new/0, keep/2, ask/3, ended/2]).

-export_type([questions/0, question/0]).

%% The most questions that funs answer at the same time, the most that wait meanwhile, and their
%% bytes. A waiting question has its process already, so that the server can withdraw it.
-define(AT_ONCE, 16).
-define(WAITING, 100).
-define(WAITING_BYTES, 1_000_000).
%% The most answers without a fun that are being sent at the same time.
-define(ANSWERS, 100).
%% The places of the numbers for `user_time/1` among the client's atomics: how many questions were
%% asked, how many are open, since when there has been one, or 0, and the milliseconds before that.
-define(ASKED, 4).
-define(OPEN, 5).
-define(SINCE, 6).
-define(BEFORE, 7).

-type server() :: {erlmcp_client_connection:client(), erlmcp_client_connection:live()}.

-record(questions, {
    open = [] :: [reference()],
    waiting = [] :: [{reference(), pid(), Bytes :: pos_integer()}],
    bytes = 0 :: non_neg_integer(),
    answers = [] :: [reference()]
}).

-opaque questions() :: #questions{}.
-doc "A request of the server, or the id of one that has to be refused.".
-type question() :: erlmcp_message:message() | {refused, erlmcp_message:id()}.

-doc """
Creates the table of a client's open questions, by the epoch of the session and the id of the
question. The table also has the processes of the questions that count as open in `user_time/1`. The
calling process owns the table.
""".
-spec table() -> ets:table().
table() ->
    ets:new(questions, [public]).

-doc """
Starts a process that answers a request of the server at once, and returns a monitor of that
process. The process ends without an answer if the calling process ends, or the server withdraws the
request. Such requests do not count in `user_time/1`.
""".
-spec start(erlmcp_message:message(), server()) -> reference().
start(Request, Server) ->
    started(Request, Server, untimed).

started(Request, Server, Timed) ->
    {Pid, Monitor} = wait(Request, Server, Timed),
    ok = go(Pid),
    Monitor.

%% The process of a question waits until `go/1` lets it begin.
wait(Given, {Client, #{epoch := Epoch}} = Server, Timed) ->
    #{questions := Table} = Client,
    {request, Id, _, _} = Request = erlmcp_client_mailbox:own(Given),
    Reader = self(),
    Key = {Epoch, Id},
    {Pid, Monitor} = spawn_monitor(fun() ->
        Gone = monitor(process, Reader),
        try
            receive
                go ->
                    ok = begun(Timed, Client),
                    serve(Request, Server, Gone);
                withdrawn -> true;
                {'DOWN', Gone, process, _, _} -> true
            end
        after
            ok = over(Client),
            in_table(fun() -> ets:delete_object(Table, {Key, self()}) end)
        end
    end),
    true = in_table(fun() -> ets:insert(Table, {Key, Pid}) end),
    {Pid, Monitor}.

%% The table is gone if the client has ended.
in_table(Change) ->
    try Change()
    catch
        error:badarg -> true
    end.

go(Pid) ->
    Pid ! go,
    ok.

begun(untimed, _) ->
    ok;
begun(timed, #{questions := Table, ids := Numbers}) ->
    true = in_table(fun() -> ets:insert(Table, {{open, self()}}) end),
    ok = atomics:add(Numbers, ?ASKED, 1),
    case atomics:add_get(Numbers, ?OPEN, 1) of
        1 ->
            Now = erlmcp_clock:now_ms(),
            %% The last one has ended, and its process has not counted its time yet.
            Since = atomics:exchange(Numbers, ?SINCE, Now),
            passed(Since, Now, Numbers);
        _ ->
            ok
    end.

over(#{questions := Table, ids := Numbers}) ->
    case in_table(fun() -> ets:take(Table, {open, self()}) =/= [] end) of
        true ->
            Since = atomics:get(Numbers, ?SINCE),
            case atomics:sub_get(Numbers, ?OPEN, 1) =:= 0
                andalso atomics:compare_exchange(Numbers, ?SINCE, Since, 0) of
                ok -> passed(Since, erlmcp_clock:now_ms(), Numbers);
                _ -> ok
            end;
        false ->
            ok
    end.

passed(0, _, _) -> ok;
passed(Since, Now, Numbers) -> atomics:add(Numbers, ?BEFORE, Now - Since).

-doc """
Returns how many questions outside of calls the client's funs were asked until now. `Milliseconds`
is how long at least one of these had no answer.
""".
-spec user_time(erlmcp_client_connection:client()) ->
    {Questions :: non_neg_integer(), Milliseconds :: non_neg_integer()}.
user_time(#{ids := Numbers}) ->
    Now = case atomics:get(Numbers, ?SINCE) of
        0 -> 0;
        Since -> max(0, erlmcp_clock:now_ms() - Since)
    end,
    {atomics:get(Numbers, ?ASKED), Now + atomics:get(Numbers, ?BEFORE)}.

-doc """
Ends the process of a question that the server has withdrawn, if the process has not answered yet.
The key has the epoch of the session and the id of the question.
""".
-spec withdraw({Epoch :: non_neg_integer(), Id :: term()}, erlmcp_client_connection:client()) -> ok.
withdraw(Key, #{questions := Table}) ->
    lists:foreach(fun({_, Pid}) -> Pid ! withdrawn end, ets:lookup(Table, Key)).

-doc "Ends the processes of all questions of a client whose connection has ended.".
-spec withdraw_all(erlmcp_client_connection:client()) -> ok.
withdraw_all(#{questions := Table}) ->
    lists:foreach(fun(Pid) -> Pid ! withdrawn end,
                  ets:select(Table, [{{'_', '$1'}, [], ['$1']}])).

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
    %% The server may take its time to read the answer.
    ok = over(Client),
    _ = erlmcp_client_one_way:answer(Id, Answer, Client, Live),
    true.

-doc "Returns an empty set of questions.".
-spec new() -> questions().
new() ->
    #questions{}.

-doc """
Adds a request to `Early`, the kept questions, the latest first. The request has come before the
session is known. When the session is known, the caller passes the kept questions to `ask/3`. If
there are too many, only the id of the request is kept, for the refusal, or nothing.
""".
-spec keep(erlmcp_message:message(), Early :: [question()]) -> [question()].
keep(Request, Early) when length(Early) < ?AT_ONCE ->
    [erlmcp_client_mailbox:own(Request) | Early];
keep({request, Id, _, _} = Request, Early) when
    length(Early) < ?AT_ONCE + ?WAITING + ?ANSWERS
->
    Bytes = erlang:external_size(lists:sublist(Early, length(Early) - ?AT_ONCE)),
    case {Bytes + erlang:external_size(Request), Bytes + erlang:external_size(Id)} of
        {Whole, _} when Whole =< ?WAITING_BYTES ->
            [erlmcp_client_mailbox:own(Request) | Early];
        {_, Refusal} when Refusal =< 2 * ?WAITING_BYTES ->
            [erlmcp_client_mailbox:own({refused, Id}) | Early];
        _ ->
            Early
    end;
keep(_, Early) ->
    Early.

-doc """
Adds a request of the server. A process of its own answers it, at once or when others have ended. A
request over the bounds of this module is refused, or dropped. The calling process gets the `'DOWN'`
message of the process that answers, and passes its monitor to `ended/2`.
""".
-spec ask(question(), server(), questions()) -> questions().
ask({refused, _} = Question, Server, Questions) ->
    answer_at_once(fun refuse/2, Question, Server, Questions);
ask({request, Id, Method, _} = Request, {Client, _} = Server, Questions) ->
    #questions{open = Open, waiting = Waiting, bytes = Bytes} = Questions,
    Size = erlang:external_size(Request),
    case erlmcp_client_inputs:is_for_user(Method, Client) of
        true when length(Open) < ?AT_ONCE ->
            opened(Request, Server, Questions);
        true when length(Waiting) < ?WAITING, Bytes + Size =< ?WAITING_BYTES ->
            {Pid, Monitor} = wait(Request, Server, timed),
            Questions#questions{waiting = Waiting ++ [{Monitor, Pid, Size}],
                                bytes = Bytes + Size};
        true ->
            ask({refused, Id}, Server, Questions);
        false ->
            answer_at_once(fun start/2, Request, Server, Questions)
    end.

-doc """
Removes the question whose process had this monitor. If the question was one of the 16 that funs
answer, begins the next one that waits. Returns `other` if the monitor is not of a question.
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
    Questions#questions{open = [started(Request, Server, timed) | Open]}.

answer_at_once(Answer, Request, Server, #questions{answers = Answers} = Questions) when
    length(Answers) < ?ANSWERS
->
    Questions#questions{answers = [Answer(Request, Server) | Answers]};
answer_at_once(_, _, _, Questions) ->
    Questions.

refuse({refused, Given}, {Client, Live}) ->
    Id = erlmcp_message:own_id(Given),
    Refusal = {error, -32603, ~"the client has as many of the server's requests as it can answer"},
    {_, Monitor} = spawn_monitor(fun() ->
        erlmcp_client_one_way:answer(Id, Refusal, Client, Live)
    end),
    Monitor.
