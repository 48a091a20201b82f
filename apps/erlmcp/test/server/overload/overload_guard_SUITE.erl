-module(overload_guard_SUITE).
-moduledoc """
The guards of the node's memory and of its processor time: what happens at their bounds. A scheduler
that is kept busy would be all of this node's, so that the cases let the others wait and not each
other.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, end_per_testcase/2]).
-export([new_work_is_refused/1, the_node_is_over_and_is_not/1, wrong_bounds_do_not_start/1,
         without_a_guard_nothing_is_refused/1]).
-export([between_the_marks_nothing_changes/1, a_wrong_bound_of_memory_is_none/1,
         a_wrong_bound_of_time_is_none/1, figures_go_with_their_bound/1]).

-define(MIB, 1_048_576).
%% Milliseconds: as good as nothing to make a process wait, and long for one that waits for nothing.
-define(BOUND, 20).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, memory}, {group, processor}].

groups() ->
    Both = [new_work_is_refused, the_node_is_over_and_is_not, wrong_bounds_do_not_start,
            without_a_guard_nothing_is_refused],
    [{memory, Both ++ [between_the_marks_nothing_changes, a_wrong_bound_of_memory_is_none]},
     {processor, Both ++ [a_wrong_bound_of_time_is_none, figures_go_with_their_bound]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(memory, Config) ->
    [{guard, #{module => erlmcp_memory_guard, child => memory_guard, over => full,
               bound => memory_bytes, code => 1089, name => ~"resource_exhausted",
               events => {memory_full, memory_ok},
               wrong => [{memory_percent, 0}, {memory_percent, 101}, {memory_percent, 1.5},
                         {memory_bytes, 0}, {memory_bytes, none}]}} | Config];
init_per_group(processor, Config) ->
    [{guard, #{module => erlmcp_processor_guard, child => processor_guard, over => busy,
               bound => scheduler_wait_ms, code => 1078, name => ~"service_unavailable",
               events => {processors_busy, processors_ok},
               wrong => [{scheduler_wait_ms, Wrong} || Wrong <- [0, none, 1.5]]}} | Config].

end_per_group(_, _) ->
    ok.

end_per_testcase(_, Config) ->
    [ok = application:unset_env(erlmcp, Name)
     || Name <- [memory_bytes, memory_percent, scheduler_wait_ms]],
    ok = await(ok, guard(Config)).

guard(Config) -> proplists:get_value(guard, Config).

%% On both transports and in both eras; what runs comes to its end.
new_work_is_refused(Config) ->
    #{bound := Name, code := Code, name := Refused} = Guard = guard(Config),
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
    Bound = held_over(Guard),
    #{~"error" := #{~"code" := Code}} =
        erlmcp_test_line:ask_stateless(Line, 1, ~"tools/list", #{}),
    [#{status := 503, headers := #{~"retry-after" := ~"1"},
       messages := [#{~"error" := #{~"code" := Code, ~"data" := Data}}]},
     #{status := 200, messages := [#{~"error" := #{~"code" := Code}}]}] =
        [ask(Socket, Options) || {Socket, Options} <- Http],
    #{~"name" := Refused, ~"retryAfterMs" := 1000, ~"limit" := Bound,
      ~"observed" := Observed} = Data,
    true = Observed >= Bound,
    ok = erlmcp_test_http:finish(Running, ~"done"),
    #{~"id" := ~"runs", ~"result" := #{}} = erlmcp_test_line:recv(Line),
    ok = application:unset_env(erlmcp, Name),
    ok = let_go(Guard),
    ok = await(ok, Guard),
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

the_node_is_over_and_is_not(Config) ->
    #{module := Module, events := {Over, Under}} = Guard = guard(Config),
    Test = self(),
    Server = erlmcp_test_http:start(#{id => ?MODULE, on_event => fun(Event) -> Test ! Event end}),
    ok = Module:state(),
    Bound = over(fun() -> ok end, Guard),
    receive
        #{event := Over, server := ?MODULE, limit := Bound} = Full -> true = used(Full) >= Bound
    end,
    Refusal = Module:refusal(2500),
    503 = erlmcp_refusal:status(Refusal),
    3 = erlmcp_refusal:retry_after(Refusal),
    #{~"data" := #{~"limit" := Bound, ~"observed" := _, ~"retryAfterMs" := 2500}} = said(Refusal),
    %% The schedulers are not kept busy any more.
    ok = application:unset_env(erlmcp, memory_bytes),
    receive
        #{event := Under, server := ?MODULE, limit := Limit} = Free -> true = used(Free) < Limit
    end,
    erlmcp_test_http:stop(Server).

used(#{used := Used, source := _}) -> Used;
used(#{waited := Waited}) -> Waited.

said(Refusal) ->
    json:decode(iolist_to_binary(erlmcp_refusal:encode(Refusal))).

wrong_bounds_do_not_start(Config) ->
    #{module := Module, wrong := Wrong} = guard(Config),
    [begin
         ok = application:set_env(erlmcp, Name, Value),
         {error, {bad_option, Name, <<_/binary>>}} = guarded_start(Module),
         ok = application:unset_env(erlmcp, Name)
     end || {Name, Value} <- Wrong],
    ok.

%% As the application's supervisor does, in addition to the guard that runs.
guarded_start(Module) ->
    {Pid, Monitor} = spawn_monitor(fun() ->
        exit({result, gen_server:start(erlmcp_overload_guard, Module, [])})
    end),
    receive {'DOWN', Monitor, process, Pid, {result, Result}} -> Result end.

without_a_guard_nothing_is_refused(Config) ->
    #{module := Module, child := Child, bound := Name} = Guard = guard(Config),
    _ = held_over(Guard),
    ok = supervisor:terminate_child(erlmcp_sup, Child),
    ok = Module:state(),
    ok = application:unset_env(erlmcp, Name),
    {ok, _} = supervisor:restart_child(erlmcp_sup, Child),
    ok = Module:state().

%% Full at the bound; not yet full a little under it; but no longer full only well under it.
between_the_marks_nothing_changes(Config) ->
    Guard = guard(Config),
    Large = binary:copy(<<0>>, 400 * ?MIB),
    %% Garbage of other suites must not go away during the measurement.
    _ = [garbage_collect(Pid) || Pid <- processes()],
    ok = erlmcp_test_memory:freed(),
    Total = settled(erlang:memory(total)),
    ok = application:set_env(erlmcp, memory_bytes, Total div 2),
    ok = await(full, Guard),
    %% 3 % over what is used, as exactly as a running node lets us say.
    Between = Total * 103 div 100,
    ok = application:set_env(erlmcp, memory_bytes, Between),
    seen(Between),
    full = erlmcp_memory_guard:state(),
    ok = application:set_env(erlmcp, memory_bytes, Total * 2),
    ok = await(ok, Guard),
    ok = application:set_env(erlmcp, memory_bytes, Between),
    seen(Between),
    ok = erlmcp_memory_guard:state(),
    400 * ?MIB = byte_size(Large),
    ok.

%% What a scheduler frees for another counts as used until the other has run.
settled(Before) ->
    receive after 100 -> ok end,
    case erlang:memory(total) of
        Total when abs(Total - Before) * 200 < Total -> Total;
        Total -> settled(Total)
    end.

a_wrong_bound_of_memory_is_none(Config) ->
    #{wrong := Wrong} = Guard = guard(Config),
    _ = over(fun() -> ok end, Guard),
    [begin
         ok = application:set_env(erlmcp, Name, Value),
         looked(),
         full = erlmcp_memory_guard:state()
     end || {Name, Value} <- [hd(Wrong), lists:last(Wrong)]],
    ok = application:unset_env(erlmcp, memory_bytes),
    await(ok, Guard).

a_wrong_bound_of_time_is_none(Config) ->
    Guard = guard(Config),
    _ = over(fun() -> ok = application:set_env(erlmcp, scheduler_wait_ms, 0) end, Guard),
    ok = await(ok, Guard),
    %% The one before it counts still.
    kept_busy(fun() -> ok end).

%% Health shows no bound that is not there any more.
figures_go_with_their_bound(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(#{}),
    Processors = fun() -> maps:get(processors, maps:get(checks, erlmcp:health(Pid))) end,
    ok = application:set_env(erlmcp, scheduler_wait_ms, 10_000),
    ok = until(fun() -> #{limit => 10_000} =:= maps:with([limit], Processors()) end),
    ok = application:set_env(erlmcp, scheduler_wait_ms, infinity),
    ok = until(fun() -> #{passes => true} =:= Processors() end),
    erlmcp_test_http:stop(Server).

until(Is) ->
    until(Is, erlang:monotonic_time(millisecond) + 10_000).

until(Is, Deadline) ->
    case Is() of
        true ->
            ok;
        false ->
            true = erlang:monotonic_time(millisecond) < Deadline,
            receive after 20 -> until(Is, Deadline) end
    end.

%% Over a bound, and what is done in that moment; gives the bound.
over(Then, #{over := full} = Guard) ->
    Bound = erlang:memory(total) div 2,
    ok = application:set_env(erlmcp, memory_bytes, Bound),
    ok = await(full, Guard),
    ok = Then(),
    Bound;
over(Then, #{over := busy}) ->
    ok = application:set_env(erlmcp, scheduler_wait_ms, ?BOUND),
    ok = kept_busy(Then),
    ?BOUND.

%% And it stays so until it is let go.
held_over(#{over := full} = Guard) ->
    over(fun() -> ok end, Guard);
held_over(#{over := busy} = Guard) ->
    %% The guard is suspended, and so its finding stays.
    Bound = over(fun() -> sys:suspend(erlmcp_processor_guard) end, Guard),
    case erlmcp_processor_guard:state() of
        busy ->
            Bound;
        ok ->
            %% The machine had kept a process waiting; the guard has seen that the next one did not
            %% wait before it was told to stop.
            ok = sys:resume(erlmcp_processor_guard),
            held_over(Guard)
    end.

let_go(#{over := full}) -> ok;
let_go(#{over := busy}) -> sys:resume(erlmcp_processor_guard).

await(State, #{module := Module} = Guard) ->
    case Module:state() of
        State -> ok;
        _ -> receive after 20 -> await(State, Guard) end
    end.

%% A process of high priority has the only scheduler until the node says that it is busy. It lets
%% the others go on now and then, since the guard may wait for one of them.
kept_busy(Then) ->
    {Pid, Monitor} = spawn_opt(fun() ->
        ok = spun(erlang:monotonic_time(millisecond) + 120_000),
        Then()
    end, [monitor, {priority, high}]),
    receive {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason, ok end.

spun(Deadline) ->
    ok = blocked(),
    Now = erlang:monotonic_time(millisecond),
    case spun_until(Now + 2_000) of
        busy ->
            ok;
        ok ->
            true = Now < Deadline,
            _ = erlang:system_flag(multi_scheduling, unblock_normal),
            receive after 10 -> spun(Deadline) end
    end.

%% The last block ends with the process.
blocked() ->
    case erlang:system_flag(multi_scheduling, block_normal) of
        blocked_normal -> ok;
        disabled -> ok
    end.

spun_until(End) ->
    case erlmcp_processor_guard:state() of
        busy ->
            busy;
        ok ->
            case erlang:monotonic_time(millisecond) < End of
                true -> spun_until(End);
                false -> ok
            end
    end.

%% The guard has looked with this bound.
seen(Bound) ->
    #{~"data" := Data} = said(erlmcp_memory_guard:refusal(0)),
    case Data of
        #{~"limit" := Bound} -> ok;
        #{} -> receive after 20 -> seen(Bound) end
    end.

%% It has looked since now: once when it is woken for the second time.
looked() ->
    Guard = whereis(erlmcp_memory_guard),
    1 = erlang:trace(Guard, true, ['receive']),
    [receive {trace, Guard, 'receive', look} -> ok end || _ <- [1, 2]],
    1 = erlang:trace(Guard, false, ['receive']),
    ok.
