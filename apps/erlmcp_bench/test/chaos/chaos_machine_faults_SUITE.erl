-module(chaos_machine_faults_SUITE).
-moduledoc """
The faults that the machine has, and the drills, really injected, and shorter than they are
described. Everything is judged but how long something took: that is what `erlmcp chaos` is for, on
a machine with nothing else to do.
""".

-export([suite/0, all/0, groups/0]).
-export([network_partition/1, memory_exhaustion/1, unfinished_bodies/1, disk_full/1,
         cpu_saturation/1, drill_crashes/1, drill_processes/1, drill_connections/1, drill_node/1,
         drill_latency/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, beside_each_other}].

groups() ->
    [{beside_each_other, [parallel],
      [network_partition, memory_exhaustion, unfinished_bodies, disk_full, cpu_saturation,
       drill_crashes, drill_processes, drill_connections, drill_node, drill_latency]}].

network_partition(_) ->
    met(~"chaos_network_partition", fun(#{accounting := #{load := #{failed := Failed}}}) ->
        true = is_map_key(timeout, Failed)
    end).

memory_exhaustion(_) ->
    met(~"chaos_memory_exhaustion", fun(#{accounting := #{fault := #{refused := Refused}},
                                          events := #{memory_full := _, memory_ok := _}}) ->
        [1089] = maps:keys(Refused)
    end).

unfinished_bodies(_) ->
    met(~"chaos_unfinished_bodies", fun(#{accounting := #{fault := #{refused := Refused}},
                                          facts := #{unfinished_mib_per_node := _}}) ->
        [1089] = maps:keys(Refused)
    end).

disk_full(_) ->
    met(~"chaos_disk_full", fun(#{accounting := #{load := #{answered := _, refused := Of},
                                                  probe := #{refused := Refused}}}) ->
        0 = map_size(maps:without([1003, 1005], Of)),
        [1079] = maps:keys(Refused)
    end).

cpu_saturation(_) ->
    met(~"chaos_cpu_saturation", fun(#{events := #{processors_busy := _, processors_ok := _}}) ->
        ok
    end).

drill_crashes(_) ->
    met(~"drill_crashes", fun(#{facts := #{killed_count := 10}}) -> ok end).

drill_processes(_) ->
    met(~"drill_processes", fun(#{facts := #{killed_count := _}}) -> ok end).

drill_connections(_) ->
    met(~"drill_connections", fun(#{facts := #{closed_count := _}}) -> ok end).

drill_latency(_) ->
    met(~"drill_latency", fun(#{facts := #{}}) -> ok end).

drill_node(_) ->
    met(~"drill_node", fun(#{facts := #{full_service_after_ms := _}}) -> ok end).

%% A fault that cannot run on this machine reports why.
met(Id, Also) ->
    case erlmcp_bench_chaos:run_scenario(Id, #{short => true}) of
        {ok, #{status := not_run, reason := Reason}} ->
            {comment, Reason};
        {ok, #{violations := Violations} = Outcome} ->
            [] = [Violation || Violation <- Violations, not is_of_machine(Violation)],
            _ = Also(Outcome),
            ok
    end.

%% A machine that is busy with other things is late, and has no places, before a fault and after it.
is_of_machine({before, _}) -> true;
is_of_machine({not_good, load, {refused, Codes}}) -> maps:without([1003, 1005], Codes) =:= #{};
is_of_machine(Violation) -> erlmcp_chaos_verdict:is_of_time(Violation).
