-module(erlmcp_bench_core_ops).
-moduledoc """
Measures the core operations of a running server's components in this node
(`m:erlmcp_bench_components`). A result has the operations of a component in a second, the time of
each, and the bytes that it allocates.

`encode`, `encode_reply`, `decode` and `nothing` are measured on one core and on all. A workload
with `contended` measures how much its processes hinder each other at one component
(`m:erlmcp_bench_contention`).
""".

-behaviour(erlmcp_bench_run).

-export([run/1, run/2, run_all/0]).
-export([measured/2]).

-doc """
Runs a workload. Returns a result for each component that the workload measures, and two for a
component that is measured on one core and on all.
""".
-spec run(Id :: binary() | atom()) -> erlmcp_bench_run:outcome().
run(Id) -> run(Id, #{}).

-doc """
Runs a workload with options. `components` selects components of the workload. `duration_s` is the
number of seconds after which the operations of a component end early.
""".
-spec run(Id :: binary() | atom() | erlmcp_bench_workloads:workload(),
          erlmcp_bench_run:options()) -> erlmcp_bench_run:outcome().
run(Id, Options) ->
    erlmcp_bench_run:workload(core_ops, Id, Options).

-doc "Runs every workload of the core operations.".
-spec run_all() -> erlmcp_bench_run:outcome().
run_all() -> erlmcp_bench_run:all(core_ops, #{}).

-doc false.
-spec measured(erlmcp_bench_workloads:workload(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:measured().
measured(#{contended := Component, id := Id, workers := Workers} = Workload, Options) ->
    part({Component, Id, Workers}, fun erlmcp_bench_contention:run/1, Workload, Options);
measured(#{id := Id, workers := Workers} = Workload, Options) ->
    Parts = lists:append([parts(Component, Workers)
                          || {Component, _} <- erlmcp_bench_workloads:components(),
                             lists:member(Component, wanted(Options))]),
    erlmcp_bench_run:each(Parts, fun({Component, Name, Of}, With) ->
        part({Component, iolist_to_binary([Id, $_, Name]), Of}, fun erlmcp_bench_operations:run/1,
             Workload, With)
    end, Options).

wanted(#{components := Wanted}) -> Wanted;
wanted(_) -> [Component || {Component, _} <- erlmcp_bench_workloads:components()].

parts(Component, _) when Component =:= encode; Component =:= encode_reply; Component =:= decode;
                         Component =:= nothing ->
    [{Component, [atom_to_binary(Component), ~"_1_core"], 1},
     {Component, [atom_to_binary(Component), ~"_all_cores"],
      erlang:system_info(schedulers_online)}];
%% A single process has its worker to itself, and never waits.
parts(pool_waiting, 1) ->
    [];
parts(Component, Workers) ->
    [{Component, atom_to_binary(Component), Workers}].

part({Component, Id, Workers}, Run, #{operations := Operations} = Workload, Options) ->
    Plan = #{workers => Workers, operations => Operations, most_ms => most_ms(Options),
             on_part => erlmcp_bench_run:on_part(Options)},
    Outcome = erlmcp_bench_components:with(Component, Workers, fun(Work) ->
        maybe
            {ok, Measured} ?= Run(maps:merge(Plan, Work)),
            {ok, Measured#{allocated => erlmcp_bench_allocated:bytes_per_operation(Work)}}
        end
    end),
    erlmcp_bench_run:measured(fields(Outcome, Id, called(Component, Workload), Plan),
                              {Id, Options}).

%% The marks of a component are not for its contention.
called(Component, #{contended := Component}) ->
    <<(atom_to_binary(Component))/binary, "_contended">>;
called(Component, _) -> Component.

most_ms(#{duration_s := Seconds}) -> ceil(Seconds * 1_000);
most_ms(_) -> infinity.

fields({ok, Measured}, Id, Component, #{workers := Workers, operations := Wanted}) ->
    #{operations := Operations, duration_ns := Nanoseconds, timer_ns := Timer,
      histogram := Histogram, allocated := Allocated} = Measured,
    Seconds = Nanoseconds / 1_000_000_000,
    Fields = #{workload_id => Id, benchmark => ~"core_ops", component => Component,
               transport => in_process, scope => per_node, precision => nanosecond,
               workers => Workers, sample_count => Operations, duration_s => Seconds,
               throughput_msg_per_s => Operations / Seconds,
               memory_allocated_bytes_per_operation => Allocated,
               %% The cost of reading the clock, which was subtracted from the latencies.
               timer_ns => max(1, Timer), shortened => Operations < Wanted},
    Contention = #{Name => Figure || {Key, Name} <- [{alone_per_s, alone_msg_per_s},
                                                     {lost_percent, contention_percent}],
                                     #{Key := Figure} <- [Measured]},
    {ok, maps:merge(maps:merge(Fields, Contention), erlmcp_bench_run:latency_of_ns(Histogram)),
     []};
fields({error, _} = Error, _, _, _) ->
    Error.
