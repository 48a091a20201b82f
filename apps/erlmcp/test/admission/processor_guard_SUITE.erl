-module(processor_guard_SUITE).
-moduledoc """
The guard of the node's processor time. A scheduler that is kept busy would be all of this node's,
so that the cases let the others wait and not each other.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, end_per_testcase/2]).
-export([new_work_is_refused/1, the_node_is_busy_and_is_not/1, a_wrong_bound_is_no_bound/1,
         wrong_bounds_do_not_start/1, without_a_guard_there_is_time/1]).

%% Milliseconds: as good as nothing to make a process wait, and long for one that waits for nothing.
-define(BOUND, 20).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [new_work_is_refused, the_node_is_busy_and_is_not, a_wrong_bound_is_no_bound,
     wrong_bounds_do_not_start, without_a_guard_there_is_time].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

end_per_testcase(_, _) ->
    ok = application:unset_env(erlmcp, scheduler_wait_ms),
    await(ok).

%% On both transports and in both eras; the guard is held in the moment in which it says so.
new_work_is_refused(_) ->
    Server = erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
        listen => [{http, #{}}, {tcp, #{}}]}),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    [#{port := Port}] = [Listener || #{transport := tcp} = Listener
                                         <- erlmcp:listeners(map_get(pid, Server))],
    Line = erlmcp_test_line:connect(Port),
    ok = erlmcp_test_line:send(Line, erlmcp_test_line:stateless(~"runs", ~"tools/call",
                                                                #{name => ~"wait"})),
    {Running, _} = erlmcp_test_http:running(),
    Http = [{erlmcp_test_http:connect(Server), Options}
            || Options <- [#{}, #{session => Session}]],
    [#{messages := [#{~"result" := _}]} = ask(Socket, Options) || {Socket, Options} <- Http],
    ok = application:set_env(erlmcp, scheduler_wait_ms, ?BOUND),
    ok = held_busy(),
    #{~"error" := #{~"code" := 1078}} =
        erlmcp_test_line:ask_stateless(Line, 1, ~"tools/list", #{}),
    [#{status := 503, headers := #{~"retry-after" := ~"1"},
       messages := [#{~"error" := #{~"code" := 1078, ~"data" := Data}}]},
     #{status := 200, messages := [#{~"error" := #{~"code" := 1078}}]}] =
        [ask(Socket, Options) || {Socket, Options} <- Http],
    #{~"name" := ~"service_unavailable", ~"retryAfterMs" := 1000, ~"limit" := ?BOUND,
      ~"observed" := Observed} = Data,
    true = Observed >= ?BOUND,
    ok = erlmcp_test_http:finish(Running, ~"done"),
    #{~"id" := ~"runs", ~"result" := #{}} = erlmcp_test_line:recv(Line),
    ok = application:unset_env(erlmcp, scheduler_wait_ms),
    ok = sys:resume(erlmcp_processor_guard),
    await(ok),
    #{~"result" := _} = erlmcp_test_line:ask_stateless(Line, 2, ~"tools/list", #{}),
    [#{messages := [#{~"result" := _}]} = erlmcp_test_http:call(Server, ~"tools/list", #{}, Options)
     || {_, Options} <- Http],
    [ok = erlmcp_test_http:close(Socket) || {Socket, _} <- Http],
    ok = erlmcp_test_line:close(Line),
    erlmcp_test_http:stop(Server).

%% On a connection that stays open.
ask(Socket, Options) ->
    {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, Options),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    erlmcp_test_http:response(Socket).

the_node_is_busy_and_is_not(_) ->
    Test = self(),
    Server = erlmcp_test_http:start(#{id => ?MODULE, on_event => fun(Event) -> Test ! Event end}),
    ok = application:set_env(erlmcp, scheduler_wait_ms, ?BOUND),
    ok = kept_busy(fun() -> ok end),
    receive
        #{event := processors_busy, server := ?MODULE, waited := Waited, limit := ?BOUND} ->
            true = Waited >= ?BOUND
    end,
    %% Nobody keeps it so.
    receive
        #{event := processors_ok, server := ?MODULE, waited := Less} -> true = Less < ?BOUND
    end,
    erlmcp_test_http:stop(Server).

a_wrong_bound_is_no_bound(_) ->
    ok = application:set_env(erlmcp, scheduler_wait_ms, ?BOUND),
    ok = kept_busy(fun() -> ok = application:set_env(erlmcp, scheduler_wait_ms, 0) end),
    await(ok),
    %% The one before it counts still.
    ok = kept_busy(fun() -> ok end).

wrong_bounds_do_not_start(_) ->
    [begin
         ok = application:set_env(erlmcp, scheduler_wait_ms, Wrong),
         {error, {bad_option, scheduler_wait_ms, <<_/binary>>}} = guarded_start()
     end || Wrong <- [0, none, 1.5]],
    ok.

%% As the application's supervisor does, beside the one that runs.
guarded_start() ->
    {Pid, Monitor} = spawn_monitor(fun() ->
        exit({result, gen_server:start(erlmcp_processor_guard, [], [])})
    end),
    receive {'DOWN', Monitor, process, Pid, {result, Result}} -> Result end.

without_a_guard_there_is_time(_) ->
    ok = application:set_env(erlmcp, scheduler_wait_ms, ?BOUND),
    ok = held_busy(),
    ok = supervisor:terminate_child(erlmcp_sup, processor_guard),
    ok = erlmcp_processor_guard:state(),
    ok = application:unset_env(erlmcp, scheduler_wait_ms),
    {ok, _} = supervisor:restart_child(erlmcp_sup, processor_guard),
    ok = erlmcp_processor_guard:state().

%% Busy, and the guard does not look again.
held_busy() ->
    kept_busy(fun() ->
        %% What the guard does itself is not among what is kept waiting.
        ok = sys:suspend(erlmcp_processor_guard)
    end),
    busy = erlmcp_processor_guard:state(),
    ok.

%% One scheduler is left, and a process of high priority has it until the node says that it is busy.
kept_busy(Then) ->
    {Pid, Monitor} = spawn_opt(fun() ->
        block_normal = blocked(),
        busy = spun(erlang:monotonic_time(millisecond) + 30_000),
        Then()
    end, [monitor, {priority, high}]),
    receive {'DOWN', Monitor, process, Pid, normal} -> ok end.

%% The block ends with the process.
blocked() ->
    case erlang:system_flag(multi_scheduling, block_normal) of
        blocked_normal -> block_normal;
        disabled -> block_normal
    end.

spun(Deadline) ->
    case erlmcp_processor_guard:state() of
        busy -> busy;
        ok -> true = erlang:monotonic_time(millisecond) < Deadline, spun(Deadline)
    end.

await(State) ->
    case erlmcp_processor_guard:state() of
        State -> ok;
        _ -> receive after 20 -> await(State) end
    end.
