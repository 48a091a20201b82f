-module(erlmcp_test_cluster_clients).
-moduledoc """
Clients that open sessions, use them, and end them, and that start tasks, look at them and cancel
them. Several use a session or a task at the same time, and go on to ask for it when it has ended.
Each operation is recorded with its times and its outcome.

Some sessions and tasks are kept: no client ends them, so none of them may be lost. Of the kept
tasks some are repeated if their node is lost, so they must go on.
""".

-compile(nowarn_missing_spec_documented).

-export([start/1, stop/1, sweep/1, operations/1]).
-export([open_at/2, probe/3, delete/2, tasks/3, look_at/2]).

-export_type([clients/0, operation/0]).

-type clients() :: #{url := binary(), table := ets:table(), pool := ets:table(),
                     workers := [pid()]}.
-doc """
An operation, as `t:erlmcp_test_history:operation/0`, with its model. Times are in microseconds.

- `key`: the session or the task. It is `none` if the client has not heard of its opening.
- `seen`: when the client had an answer, or gave up.
- `why`: why the result is unknown. `server`: the node that answered.
- `line`, `node`: what the tool `count` was to write, and where it was called.
- `message`: what the server says about the status of a task.
""".
-type operation() :: #{
    model := session | polled_task, key := binary() | none, do := term(), result := term(),
    began := integer(), ended := integer() | infinity, seen := integer(),
    server := binary() | none, why => term(), line => binary(), node => binary(),
    message => binary()
}.

-define(WORKERS, 6).
-define(PACE_MS, 30).
-define(PROBE_MS, 50).
-define(TRIES, 100).
%% The most sessions, or tasks, that are in use.
-define(USED, 40).
%% The most that have ended and are still asked for. A DELETE that a lost node has forgotten shows
%% only in a session that ended before the loss, and some 20 end in each second after it.
-define(ENDED_SESSIONS, 400).
-define(ENDED_TASKS, 80).
-define(KEPT, [kept, repeated]).
-define(KEPT_SESSIONS, 100).
%% In each era, of each kind. They do not end meanwhile.
-define(KEPT_TASKS, 5).
-define(LONG_MS, 1_700_000).
-define(LEVELS, [debug, info, notice, warning, error, critical, alert, emergency]).

%% Returns when the kept sessions and tasks are there. The caller owns what is recorded.
start(Url) ->
    Clients = #{url => Url, table => ets:new(operations, [ordered_set, public]),
                pool => ets:new(pool, [set, public]), workers => []},
    Client = erlmcp_test_cluster_client:new(Url),
    Opened = repeat(?KEPT_SESSIONS, open, kept, Clients, Client),
    Started = lists:foldl(
        fun({Era, {Tool, Use}}, Next) ->
            repeat(?KEPT_TASKS, {create, Tool, ?LONG_MS, Era}, Use, Clients, Next)
        end, Opened, [{Era, Tool} || Era <- [stateless, session_of(Clients)],
                                     Tool <- [{~"work", kept}, {~"work_again", repeated}]]),
    _ = erlmcp_test_cluster_client:close(Started),
    Clients#{workers := [spawn_link(fun() -> work(Kind, Clients) end)
                         || Kind <- [session, task], _ <- lists:seq(1, ?WORKERS)]}.

%% Until so many are there. A busy machine may refuse some.
repeat(0, _, _, _, Client) ->
    Client;
repeat(More, Do, Use, Clients, Client) ->
    case used(Do, Use, Clients, Client) of
        {#{result := ok}, Next} -> repeat(More - 1, Do, Use, Clients, Next);
        {#{result := unknown}, Next} -> repeat(More, Do, Use, Clients, Next)
    end.

stop(#{workers := Workers}) ->
    _ = [Worker ! {stop, self()} || Worker <- Workers],
    _ = [receive {stopped, Worker} -> ok end || Worker <- Workers],
    ok.

%% Uses each kept session and task once. Returns how many of them are lost, or have no answer, and
%% what is said of tasks that are lost. A kept task may have failed with its node, unless it is
%% repeated. Also asks for each session and task that has ended: the judge sees whether one is back.
sweep(#{url := Url} = Clients) ->
    Uses = [ended | ?KEPT],
    Asked = [{Use, case Kind of
                       session -> {call, Id};
                       task -> {get, Id, Era}
                   end} || {Id, Kind, Era, Use} <- pool(Clients), lists:member(Use, Uses)],
    {All, Client} = lists:mapfoldl(
        fun({Use, Do}, Each) ->
            {#{result := Result} = Operation, Next} = used(Do, Use, Clients, Each),
            {{Use, element(1, Do), Result, maps:get(message, Operation, ~"")}, Next}
        end, erlmcp_test_cluster_client:new(Url), Asked),
    _ = erlmcp_test_cluster_client:close(Client),
    Results = [Result || {Use, _, _, _} = Result <- All, Use =/= ended],
    Number = fun(Do, Result) ->
        length([One || {_, Of, One, _} <- Results, Of =:= Do, One =:= Result])
    end,
    Failed = [Message || {repeated, get, failed, Message} <- Results],
    #{sessions => Number(call, ok), sessions_lost => Number(call, not_found),
      tasks => Number(get, running), tasks_failed => Number(get, failed),
      tasks_lost => Number(get, not_found) + length(Failed), said => Failed,
      unanswered => Number(call, unknown) + Number(get, unknown)}.

%% Opens sessions until one has its home at `Node`, and returns it. No other client uses it.
open_at(Node, Clients) ->
    open_at(Node, ?TRIES, Clients).

open_at(Node, Tries, Clients) when Tries > 0 ->
    maybe
        #{result := ok, key := Id} ?= ask(open, Clients),
        #{result := ok, node := Node} ?= ask({call, Id}, Clients),
        Id
    else
        %% It is elsewhere, or a busy machine has refused a request.
        #{result := ok} -> open_at(Node, Tries - 1, Clients);
        #{result := unknown} -> receive after ?PROBE_MS -> open_at(Node, Tries - 1, Clients) end
    end.

%% Uses a session at one node again and again, until this process is told to stop. A request may
%% wait as long as the node stands still, so others follow it meanwhile.
probe(Url, Id, Clients) ->
    spawn_link(fun() -> probing({call, Id}, Clients#{url := Url}) end).

probing(Do, Clients) ->
    receive
        {stop, From} -> From ! {stopped, self()}
    after ?PROBE_MS ->
        _ = spawn(fun() -> ask(Do, Clients) end),
        probing(Do, Clients)
    end.

%% A client repeats its DELETE until it has an answer: the first one may land at a node that
%% refuses.
delete(Id, Clients) ->
    delete(Id, ?TRIES, Clients).

delete(Id, Tries, Clients) when Tries > 0 ->
    case ask({delete, Id}, Clients) of
        #{result := unknown} ->
            receive after ?PROBE_MS -> delete(Id, Tries - 1, Clients) end;
        #{result := Result} ->
            Result
    end.

%% Tasks of so many milliseconds, which no other client uses.
tasks(Number, Milliseconds, Clients) ->
    Do = {create, ~"work", Milliseconds, stateless},
    [Id || #{result := ok, key := Id} <- [ask(Do, Clients) || _ <- lists:seq(1, Number)]].

look_at(Tasks, Clients) ->
    lists:foreach(fun(Id) -> ask({get, Id, stateless}, Clients) end, Tasks).

%% One operation of a client of its own.
ask(Do, #{url := Url} = Clients) ->
    {Operation, Client} = done(Do, Clients, erlmcp_test_cluster_client:new(Url)),
    _ = erlmcp_test_cluster_client:close(Client),
    Operation.

operations(#{table := Table}) ->
    [Operation || {_, Operation} <- ets:tab2list(Table)].

%% The work of one client.

work(Kind, #{url := Url} = Clients) ->
    _ = rand:seed(exsss),
    work(Kind, Clients, erlmcp_test_cluster_client:new(Url)).

work(Kind, Clients, Client) ->
    receive
        {stop, From} ->
            _ = erlmcp_test_cluster_client:close(Client),
            From ! {stopped, self()}
    after ?PACE_MS ->
        Pool = [Each || {_, Of, _, _} = Each <- pool(Clients), Of =:= Kind],
        {_, Next} = used(chosen(Kind, rand:uniform(100), Pool, Clients), used, Clients, Client),
        work(Kind, Clients, Next)
    end.

chosen(Kind, Chance, Pool, Clients) ->
    Used = [{Id, Era} || {Id, _, Era, used} <- Pool],
    Kept = [{Id, Era} || {Id, _, Era, Use} <- Pool, lists:member(Use, ?KEPT)],
    Ended = [{Id, Era} || {Id, _, Era, ended} <- Pool],
    case Kind of
        _ when Used =:= []; Chance =< 10, length(Used) < ?USED -> new(Kind, Clients);
        session when Chance =< 30 -> {set, id(Used), one(?LEVELS)};
        session when Chance =< 45 -> {level, id(Used)};
        session when Chance =< 55 -> {delete, id(Used)};
        session when Chance =< 70, Ended =/= [] -> {call, id(Ended)};
        session -> {call, id(Used ++ Kept)};
        task when Chance =< 20 -> with_era(cancel, Used);
        task when Chance =< 40, Ended =/= [] -> with_era(get, Ended);
        task -> with_era(get, Used ++ Kept)
    end.

new(session, _) ->
    open;
new(task, Clients) ->
    {create, one([~"work", ~"work_again"]), 50 + rand:uniform(3_000),
     one([stateless, session_of(Clients)])}.

session_of(Clients) ->
    {session, one([Id || {Id, session, _, kept} <- pool(Clients)])}.

id(Some) ->
    element(1, one(Some)).

with_era(Do, Some) ->
    {Id, Era} = one(Some),
    {Do, Id, Era}.

one(Some) ->
    lists:nth(rand:uniform(length(Some)), Some).

%% Sessions and tasks that all clients know.

pool(#{pool := Pool}) ->
    ets:tab2list(Pool).

enter(Id, Kind, Era, Use, #{pool := Pool}) ->
    true = ets:insert(Pool, {Id, Kind, Era, Use}).

%% Some of those that have ended are forgotten.
ended(Id, Kind, #{pool := Pool} = Clients) ->
    _ = ets:update_element(Pool, Id, {4, ended}),
    Ended = [Other || {Other, Of, _, ended} <- pool(Clients), Of =:= Kind],
    length(Ended) > most(Kind) andalso ets:delete(Pool, one(Ended)).

most(session) -> ?ENDED_SESSIONS;
most(task) -> ?ENDED_TASKS.

%% One operation, from its beginning to its entry in the table.

used(Do, Use, Clients, Client) ->
    %% The others notice that it ends while it ends.
    _ = ending(Do, Clients),
    {Operation, Next} = done(Do, Clients, Client),
    _ = followed(Do, Use, Operation, Clients),
    {Operation, Next}.

done(Do, #{table := Table}, Client) ->
    Line = integer_to_binary(erlang:unique_integer([positive])),
    Began = erlang:monotonic_time(microsecond),
    {Outcome, Next} = performed(Do, Line, Client),
    Seen = erlang:monotonic_time(microsecond),
    Operation = with_times(operation(Do, Outcome, Line), Began, Seen),
    true = ets:insert(Table, {erlang:unique_integer([monotonic]), Operation}),
    {Operation, Next}.

ending({delete, Id}, Clients) -> ended(Id, session, Clients);
ending({cancel, Id, _}, Clients) -> ended(Id, task, Clients);
ending(_, _) -> true.

followed(open, Use, #{result := ok, key := Id}, Clients) ->
    enter(Id, session, session, Use, Clients);
followed({create, _, _, Era}, Use, #{result := ok, key := Id}, Clients) ->
    enter(Id, task, Era, Use, Clients);
followed({get, Id, _}, used, #{result := Result}, #{pool := Pool} = Clients)
  when Result =:= completed; Result =:= failed; Result =:= cancelled ->
    case ets:lookup(Pool, Id) of
        [{_, _, _, used}] -> ended(Id, task, Clients);
        _ -> true
    end;
followed(_, _, _, _) ->
    true.

performed(open, _, Client) ->
    erlmcp_test_cluster_client:open(Client);
performed({call, Id}, Line, Client) ->
    erlmcp_test_cluster_client:call(~"count", #{~"line" => Line}, {session, Id}, Client);
performed({set, Id, Level}, _, Client) ->
    erlmcp_test_cluster_client:set_level(Level, {session, Id}, Client);
performed({level, Id}, _, Client) ->
    erlmcp_test_cluster_client:level({session, Id}, Client);
performed({delete, Id}, _, Client) ->
    erlmcp_test_cluster_client:delete(Id, Client);
performed({create, Tool, Milliseconds, Era}, _, Client) ->
    erlmcp_test_cluster_client:create_task(Tool, Milliseconds, Era, Client);
performed({get, Id, Era}, _, Client) ->
    erlmcp_test_cluster_client:get_task(Id, Era, Client);
performed({cancel, Id, Era}, _, Client) ->
    erlmcp_test_cluster_client:cancel_task(Id, Era, Client).

operation(Do, {unknown, Why, Server}, Line) ->
    (known(Do, #{}, Line))#{result => unknown, why => Why, server => Server};
operation({cancel, _, _} = Do, {not_found, Server}, Line) ->
    %% 2025-11-25 has one code for a task that is unknown and for one that has ended.
    (known(Do, #{}, Line))#{result => too_late, server => Server};
operation(Do, {not_found, Server}, Line) ->
    (known(Do, #{}, Line))#{result => not_found, server => Server};
operation(Do, {ok, Result, Server}, Line) ->
    (known(Do, Result, Line))#{result => result(Do, Result), server => Server}.

known(open, Result, _) ->
    #{model => session, key => maps:get(id, Result, none), do => open};
known({create, _, _, _}, Result, _) ->
    #{model => polled_task, key => maps:get(id, Result, none), do => create};
known({call, Id}, #{~"content" := [#{~"text" := Node}]}, Line) ->
    #{model => session, key => Id, do => call, line => Line, node => Node};
known({call, Id}, _, Line) ->
    #{model => session, key => Id, do => call, line => Line};
known({set, Id, Level}, _, _) ->
    #{model => session, key => Id, do => {set, Level}};
known({Do, Id}, _, _) ->
    #{model => session, key => Id, do => Do};
known({get, Id, _}, #{~"statusMessage" := Message}, _) ->
    #{model => polled_task, key => Id, do => get, message => Message};
known({Do, Id, _}, _, _) ->
    #{model => polled_task, key => Id, do => Do}.

result({level, _}, #{level := Level}) -> binary_to_existing_atom(Level);
result({get, _, _}, #{~"status" := ~"working"}) -> running;
result({get, _, _}, #{~"status" := ~"input_required"}) -> running;
result({get, _, _}, #{~"status" := Status}) -> binary_to_existing_atom(Status);
result(_, _) -> ok.

with_times(#{result := unknown} = Operation, Began, Seen) ->
    Operation#{began => Began, ended => infinity, seen => Seen};
with_times(Operation, Began, Seen) ->
    Operation#{began => Began, ended => Seen, seen => Seen}.
