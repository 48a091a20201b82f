-module(erlmcp_bench_chaos).
-moduledoc """
Injects faults into a server that runs in an operating system process of its own. A load runs
meanwhile, and each of its requests is accounted for.

```erlang
{ok, #{status := passed}} = erlmcp_bench_chaos:run_scenario(~"chaos_message_flood").
```
""".

-export([run_scenario/1, run_scenario/2, run_all_scenarios/0, run_all_scenarios/1]).
-export([scenarios/0]).

-doc "Returns every fault, in the order in which they run.".
-spec scenarios() -> [#{id := binary(), title := binary(), module := module(),
                        needs := [erlmcp_chaos_scenario:need()],
                        bounds := erlmcp_chaos_scenario:bounds()}].
scenarios() ->
    [#{id => Module:id(), title => Module:title(), module => Module, needs => Module:needs(),
       bounds => Module:bounds()} || Module <- modules()].

modules() ->
    [erlmcp_chaos_process_crash, erlmcp_chaos_network_partition, erlmcp_chaos_memory_exhaustion,
     erlmcp_chaos_message_flood, erlmcp_chaos_invalid_payload, erlmcp_chaos_connection_leak,
     erlmcp_chaos_slow_consumer, erlmcp_chaos_supervisor_cascade, erlmcp_chaos_disk_full,
     erlmcp_chaos_cpu_saturation, erlmcp_chaos_large_payload, erlmcp_chaos_unfinished_bodies,
     erlmcp_chaos_drill_crashes, erlmcp_chaos_drill_processes, erlmcp_chaos_drill_connections,
     erlmcp_chaos_drill_node, erlmcp_chaos_drill_latency].

-doc """
Runs the fault `Id` for its full time, and returns its outcome, even if it could not run. The error
says that there is no such fault.
""".
-spec run_scenario(Id :: binary()) ->
    {ok, erlmcp_chaos_run:outcome()} | {error, {unknown_scenario, term()}}.
run_scenario(Id) ->
    run_scenario(Id, #{}).

-doc """
Runs the fault `Id` as `run_scenario/1` does, but with `Options`. One of them is `short`, for a
shorter run.
""".
-spec run_scenario(Id :: binary(), erlmcp_chaos_run:options()) ->
    {ok, erlmcp_chaos_run:outcome()} | {error, {unknown_scenario, term()}}.
run_scenario(Id, Options) ->
    case [Module || #{id := Of, module := Module} <- scenarios(), Of =:= Id] of
        [Module] -> {ok, erlmcp_chaos_run:run(Module, Options)};
        [] -> {error, {unknown_scenario, Id}}
    end.

-doc """
Runs all faults, one after the other, each for its full time. Returns their outcomes in this order.
""".
-spec run_all_scenarios() -> {ok, [erlmcp_chaos_run:outcome()]}.
run_all_scenarios() ->
    run_all_scenarios(#{}).

-doc """
Runs all faults as `run_all_scenarios/0` does, but each with `Options`, as `run_scenario/2` does.
""".
-spec run_all_scenarios(erlmcp_chaos_run:options()) -> {ok, [erlmcp_chaos_run:outcome()]}.
run_all_scenarios(Options) ->
    {ok, [erlmcp_chaos_run:run(Module, Options) || #{module := Module} <- scenarios()]}.
