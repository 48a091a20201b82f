-module(slow_task_store_SUITE).
-moduledoc """
Servers whose store of tasks takes its time. A request waits for the store, until the deadline of
calls. The store is this module: it waits for the test before it writes, and may not be there, or
have no room.
""".

-behaviour(erlmcp_task_store).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_request_waits_for_the_store/1, a_task_that_is_stored_too_late_does_not_run/1,
         a_tool_has_its_own_deadline/1, an_ended_task_is_not_cancelled/1,
         a_waiting_request_pauses/1, a_late_report_changes_no_ended_task/1,
         requests_without_room_fail_their_task/1, a_full_store_ends_the_process/1]).
%% The store.
-export([open/2, put/2, get/2, update/2, list/4, delete/2, sweep/2]).

-import(erlmcp_test_client, [request/4, next/1, over/1]).
-import(erlmcp_test_tasks, [id/1, refused/2, running/0, finish/2, until/3, keeper/2]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [a_request_waits_for_the_store, a_task_that_is_stored_too_late_does_not_run,
     a_tool_has_its_own_deadline, an_ended_task_is_not_cancelled, a_waiting_request_pauses,
     a_late_report_changes_no_ended_task, requests_without_room_fail_their_task,
     a_full_store_ends_the_process].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

start(Limits) ->
    start(Limits, #{}).

%% `Of` is part of each tool.
start(Limits, Of) ->
    start(Limits, Of, self()).

%% `Writer` says what becomes of each change.
start(Limits, Of, Writer) ->
    #{tools := Tools} = Definitions = erlmcp_test_tasks:definitions(self()),
    erlmcp_test_http:start(Definitions#{tools := [maps:merge(Tool, Of) || Tool <- Tools],
                                        limits => Limits,
                                        task_store => {?MODULE, #{test => Writer}}}).

client(Server) ->
    erlmcp_test_tasks:open(Server, http, ~"2026-07-28", #{}).

create(Client, Tool) ->
    request(Client, 1, ~"tools/call", #{name => Tool, arguments => #{}}).

%% The process of a task that is about to write.
writing(What) ->
    receive {What, Process} -> Process end.

%% For longer than one process of OTP usually waits for another one.
a_request_waits_for_the_store(_) ->
    #{pid := Pid} = Server = start(#{}),
    %% The store does not count.
    #{bounds := Bounds} = erlmcp:metrics(Pid),
    false = is_map_key(tasks, Bounds),
    Client = client(Server),
    First = create(Client, ~"wait"),
    writing(put) ! go,
    Id = id(next(First)),
    ok = over(First),
    _ = running(),
    Other = create(Client, ~"wait"),
    Put = writing(put),
    Cancel = request(Client, 2, ~"tasks/cancel", #{taskId => Id}),
    Update = writing(update),
    receive after 5_200 -> ok end,
    [Process ! go || Process <- [Put, Update]],
    _ = id(next(Other)),
    #{~"result" := #{}} = next(Cancel),
    [ok = over(Exchange) || Exchange <- [Other, Cancel]],
    _ = running(),
    erlmcp_test_http:stop(Server).

a_task_that_is_stored_too_late_does_not_run(_) ->
    is_stored_too_late(start(#{call_timeout_ms => 50})).

a_tool_has_its_own_deadline(_) ->
    is_stored_too_late(start(#{}, #{timeout_ms => 50})).

is_stored_too_late(Server) ->
    Call = create(client(Server), ~"wait"),
    Put = writing(put),
    #{~"limit" := 50} = refused(1069, next(Call)),
    ok = over(Call),
    Monitor = monitor(process, Put),
    Put ! go,
    receive {'DOWN', Monitor, process, Put, Reason} -> normal = Reason end,
    Put = writing(delete),
    receive {running, _, _, _} -> error(runs) after 0 -> ok end,
    erlmcp_test_http:stop(Server).

%% The end of the task is not stored yet.
an_ended_task_is_not_cancelled(_) ->
    {Writer, Server, Client, Id, _, _} = ended_and_not_stored(),
    Writer ! available,
    Cancel = request(Client, 2, ~"tasks/cancel", #{taskId => Id}),
    _ = next(Cancel),
    ok = over(Cancel),
    #{~"result" := #{~"content" := [#{~"text" := ~"done"}]}} = until(Client, Id, ~"completed"),
    erlmcp_test_http:stop(Server).

%% The process of the task was killed, and nobody can store that.
a_waiting_request_pauses(_) ->
    Writer = unavailable_for_updates(),
    Server = start(#{}, #{}, Writer),
    Client = erlmcp_test_tasks:open(Server, http, ~"2025-11-25", #{}),
    Create = request(Client, 1, ~"tools/call", #{name => ~"wait", arguments => #{}, task => #{}}),
    Id = id(next(Create)),
    ok = over(Create),
    _ = running(),
    true = exit(keeper(Server, Id), kill),
    Result = request(Client, 2, ~"tasks/result", #{taskId => Id}),
    [First | _] = Times = [receive {refused, _} -> erlang:monotonic_time(millisecond) end
                           || _ <- lists:seq(1, 20)],
    true = lists:last(Times) - First > 500,
    Writer ! available,
    _ = refused(-32603, next(Result)),
    ok = over(Result),
    erlmcp_test_http:stop(Server).

%% The store takes changes again when the report comes.
a_late_report_changes_no_ended_task(_) ->
    {Writer, Server, Client, Id, Keeper, Context} = ended_and_not_stored(),
    ok = sys:suspend(Keeper),
    Writer ! available,
    ok = erlmcp:progress(Context, 1, #{message => ~"late"}),
    Monitor = monitor(process, Keeper),
    ok = sys:resume(Keeper),
    receive {'DOWN', Monitor, process, _, _} -> ok end,
    #{~"status" := ~"completed"} = Task = until(Client, Id, ~"completed"),
    false = is_map_key(~"statusMessage", Task),
    erlmcp_test_http:stop(Server).

%% The call waits for its answers, and ends with the task.
requests_without_room_fail_their_task(_) ->
    {Server, Client, Id, Monitor} = asks_without_room(),
    writing(update) ! go,
    receive {'DOWN', Monitor, process, _, Reason} -> normal = Reason end,
    #{~"error" := #{~"code" := 1089, ~"message" := Message, ~"data" := #{~"limit" := 10}}} = Task =
        until(Client, Id, ~"failed"),
    ~"there is no room for the record of the task, with its requests" = Message,
    false = is_map_key(~"inputRequests", Task),
    Cancel = request(Client, 2, ~"tasks/cancel", #{taskId => Id}),
    #{~"result" := #{}} = next(Cancel),
    ok = over(Cancel),
    #{~"status" := ~"failed"} = erlmcp_test_tasks:get(Client, Id),
    #{pid := Pid} = Server,
    #{~"_TASK" := #{cancelled := 1}} = maps:get(methods, erlmcp:metrics(Pid)),
    erlmcp_test_http:stop(Server).

%% Whatever it is asked to write, and also if its bound is another one by then. The record stays as
%% it was.
a_full_store_ends_the_process(_) ->
    [begin
         {Server, _, _, Monitor} = asks_without_room(),
         writing(update) ! {full, Limit},
         receive
             {'DOWN', Monitor, process, _, Reason} -> normal = Reason;
             {update, _} -> error({writes_again, Limit})
         end,
         erlmcp_test_http:stop(Server)
     end || Limit <- [10, 11]].

%% Returns with a task whose call asks its client, and whose process is told that the store has no
%% room for that.
asks_without_room() ->
    Server = start(#{}),
    Client = erlmcp_test_tasks:open(Server, http, ~"2026-07-28", #{elicitation => #{}}),
    Create = create(Client, ~"ask"),
    writing(put) ! go,
    Id = id(next(Create)),
    ok = over(Create),
    Keeper = writing(update),
    Monitor = monitor(process, Keeper),
    Keeper ! {full, 10},
    {Server, Client, Id, Monitor}.

%% Returns with a task whose handler has returned, and whose process could not store that.
ended_and_not_stored() ->
    Writer = unavailable_for_updates(),
    Server = start(#{}, #{}, Writer),
    Client = client(Server),
    Create = create(Client, ~"wait"),
    Id = id(next(Create)),
    ok = over(Create),
    {Handler, Context} = running(),
    Keeper = keeper(Server, Id),
    ok = finish(Handler, ~"done"),
    receive {refused, Keeper} -> ok end,
    {Writer, Server, Client, Id, Keeper, Context}.

%% Stores tasks at once, but refuses their changes until it is sent `available`.
unavailable_for_updates() ->
    Test = self(),
    spawn_link(fun() -> refuse(Test) end).

refuse(Test) ->
    receive
        {update, Process} ->
            Process ! unavailable,
            Test ! {refused, Process},
            refuse(Test);
        {put, Process} ->
            Process ! go,
            refuse(Test);
        available ->
            allow()
    end.

allow() ->
    receive {update, Process} -> Process ! go, allow() end.

%% The store.

open(#{test := Test}, Limits) ->
    {Test, erlmcp_task_store_ets:open(#{}, Limits)}.

put(Task, {Test, Store}) ->
    written(put, Test, fun() -> erlmcp_task_store_ets:put(Task, Store) end).

update(Task, {Test, Store}) ->
    written(update, Test, fun() -> erlmcp_task_store_ets:update(Task, Store) end).

written(What, Test, Write) ->
    Test ! {What, self()},
    receive
        go -> Write();
        {full, Limit} -> {error, {full, Limit}};
        unavailable -> {error, unavailable}
    end.

delete(Id, {Test, Store}) ->
    Test ! {delete, self()},
    erlmcp_task_store_ets:delete(Id, Store).

get(Id, {_, Store}) ->
    erlmcp_task_store_ets:get(Id, Store).

list(Owner, After, Count, {_, Store}) ->
    erlmcp_task_store_ets:list(Owner, After, Count, Store).

sweep(Now, {_, Store}) ->
    erlmcp_task_store_ets:sweep(Now, Store).
