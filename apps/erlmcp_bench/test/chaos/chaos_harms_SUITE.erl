-module(chaos_harms_SUITE).
-moduledoc """
Tests that no fault passes without its harm. Each fault runs with its harms taken out, and
everything else as it is: it must fail, since they were not seen. Where harms are done at the same
time, each is also taken out alone. What is late on a busy machine is not judged here, so some
faults run beside each other.
""".

-export([suite/0, all/0, groups/0]).
-export([process_crash/1, network_partition/1, memory_exhaustion/1, message_flood/1,
         invalid_payload/1, connection_leak/1, slow_consumer/1, supervisor_cascade/1, disk_full/1,
         cpu_saturation/1, large_payload/1, unfinished_bodies/1, drill_crashes/1,
         drill_processes/1, drill_connections/1, drill_node/1, drill_latency/1,
         processors_without_the_outside/1, processors_without_the_inside/1,
         memory_without_the_tool/1, memory_without_the_flood/1, every_fault_has_a_case/1,
         a_node_that_cannot_be_killed_is_stopped/1]).

%% Milliseconds to wait for what no harm brings about.
-define(PATIENCE_MS, 1_000).
%% Milliseconds of a pause of the machine after which a fault is run again.
-define(PAUSE_MS, 200).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, Name} || {Name, _, _} <- groups()]
        ++ [every_fault_has_a_case, a_node_that_cannot_be_killed_is_stopped].

groups() ->
    [{drills, [parallel], [drill_crashes, drill_processes, drill_node, drill_latency,
                           drill_connections]},
     {killing, [parallel], [process_crash, supervisor_cascade, network_partition, disk_full,
                            cpu_saturation]},
     {sending, [parallel], [message_flood, invalid_payload, connection_leak, slow_consumer,
                            large_payload]},
     {holding, [parallel], [memory_exhaustion, memory_without_the_tool, memory_without_the_flood,
                            unfinished_bodies]},
     {computing, [], [processors_without_the_outside, processors_without_the_inside]}].

cases() ->
    lists:append([Cases || {_, _, Cases} <- groups()]).

process_crash(_) -> fails(erlmcp_chaos_process_crash).

network_partition(_) -> fails(erlmcp_chaos_network_partition).

memory_exhaustion(_) -> fails(erlmcp_chaos_memory_exhaustion).

message_flood(_) -> fails(erlmcp_chaos_message_flood).

invalid_payload(_) -> fails(erlmcp_chaos_invalid_payload).

connection_leak(_) -> fails(erlmcp_chaos_connection_leak).

slow_consumer(_) -> fails(erlmcp_chaos_slow_consumer).

supervisor_cascade(_) -> fails(erlmcp_chaos_supervisor_cascade).

disk_full(_) -> fails(erlmcp_chaos_disk_full).

cpu_saturation(_) -> fails(erlmcp_chaos_cpu_saturation).

large_payload(_) -> fails(erlmcp_chaos_large_payload).

unfinished_bodies(_) -> fails(erlmcp_chaos_unfinished_bodies).

drill_crashes(_) -> fails(erlmcp_chaos_drill_crashes).

drill_processes(_) -> fails(erlmcp_chaos_drill_processes).

drill_connections(_) -> fails(erlmcp_chaos_drill_connections).

drill_node(_) -> fails(erlmcp_chaos_drill_node).

drill_latency(_) -> fails(erlmcp_chaos_drill_latency).

processors_without_the_outside(_) -> fails(erlmcp_chaos_cpu_saturation, [outside]).

processors_without_the_inside(_) -> fails(erlmcp_chaos_cpu_saturation, [inside]).

memory_without_the_tool(_) -> fails(erlmcp_chaos_memory_exhaustion, [held]).

memory_without_the_flood(_) -> fails(erlmcp_chaos_memory_exhaustion, [flood]).

every_fault_has_a_case(_) ->
    [] = [Id || #{id := Id} <- erlmcp_bench_chaos:scenarios(),
                not lists:member(case_of(Id), [atom_to_binary(Case) || Case <- cases()])].

a_node_that_cannot_be_killed_is_stopped(_) ->
    Before = peers(),
    Lack = {no_program, "kill"},
    #{status := failed, violations := Violations} = erlmcp_chaos_run:run(
        erlmcp_chaos_drill_node,
        #{short => true, preload => false, undisturbed => false, patience_ms => ?PATIENCE_MS,
          harm => fun(node, _, _) -> {error, Lack} end}),
    true = lists:member({scenario, Lack}, Violations),
    [] = peers() -- Before.

peers() ->
    [Pid || Pid <- processes(), proc_lib:translate_initial_call(Pid) =:= {peer, init, 1}].

case_of(<<"chaos_", Fault/binary>>) -> Fault;
case_of(Drill) -> Drill.

fails(Module) ->
    fails(Module, Module:harms()).

%% A machine that stands still for a while looks like the harm of a late answer.
fails(Module, Harms) ->
    erlmcp_test_pauses:undisturbed(?PAUSE_MS, fun() ->
        _ = taken_out(),
        fails_without(Module, Harms)
    end).

%% On a busy machine, a harm that was done may be too small.
fails_without(Module, Harms) ->
    Test = self(),
    Way = fun(Harm, Unharmed, Do) ->
        case lists:member(Harm, Harms) of
            true ->
                Test ! {taken_out, Harm},
                Unharmed;
            false ->
                Do()
        end
    end,
    Options = #{short => true, preload => false, undisturbed => false, patience_ms => ?PATIENCE_MS,
                harm => Way},
    case erlmcp_chaos_run:run(Module, Options) of
        #{status := failed, violations := Violations} = Outcome ->
            ct:log("~p", [Outcome]),
            Unseen = [element(2, Violation) || Violation <- Violations,
                                               element(1, Violation) =:= unseen],
            {Sorted, Sorted} = {lists:sort(Harms), lists:usort(taken_out())},
            {Harms, []} = {Harms, Harms -- Unseen},
            ok;
        #{status := not_run, lacks := [_ | _] = Lacks} ->
            {comment, iolist_to_binary(lists:join(", ", Lacks))}
    end.

taken_out() ->
    receive {taken_out, Harm} -> [Harm | taken_out()] after 0 -> [] end.
