-module(chaos_faults_SUITE).
-moduledoc """
Tests for all faults and drills, in their short forms, each really injected. Every promise is
judged, and so are the times. So the faults run one after the other, and `scripts/test.sh` runs this
suite in a node of its own, after all others. Where the machine has other things to do, a fault
waits until it has less of them, for some time. A fault is injected again, twice at most, if only
its times were missed and the machine may be why: it has paused, its host has kept its processors
from it, or a time was missed by less than such a pause.

A fault that the machine cannot have is named in a file `not_run`, which `scripts/test.sh` prints.
""".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([process_crash/1, network_partition/1, memory_exhaustion/1, message_flood/1,
         invalid_payload/1, connection_leak/1, slow_consumer/1, supervisor_cascade/1, disk_full/1,
         cpu_saturation/1, large_payload/1, unfinished_bodies/1, drill_crashes/1,
         drill_processes/1, drill_connections/1, drill_node/1, drill_latency/1, every_fault_runs/1,
         lack_of_the_machine_is_named/1, fault_without_a_reason_fails/1,
         only_late_ones_of_a_paused_machine_are_repeated/1]).

%% Of the processors' time, this part must be free for so many milliseconds before a fault. The last
%% number is the longest wait in milliseconds, after which the fault begins anyway.
-define(FREE, 0.6).
-define(LOOK_MS, 250).
-define(QUIET_MS, 60_000).
%% Microseconds of a pause after which a fault is injected again, and how often it is injected. The
%% server may pause for so long while this node does not, so this node sees no pause.
-define(PAUSE_US, 50_000).
-define(TRIES, 3).

suite() ->
    [{timetrap, {minutes, 6}}].

init_per_testcase(_, Config) ->
    ok = await_quiet(erlang:monotonic_time(millisecond) + ?QUIET_MS),
    Config.

end_per_testcase(_, _) -> ok.

await_quiet(Deadline) ->
    {Free, _, All} = processor_time(),
    receive after ?LOOK_MS -> ok end,
    {FreeNow, _, AllNow} = processor_time(),
    case FreeNow - Free >= ?FREE * (AllNow - All)
        orelse erlang:monotonic_time(millisecond) >= Deadline of
        true -> ok;
        false -> await_quiet(Deadline)
    end.

%% Of all processors since the machine has started, in hundredths of a second: what was free, what
%% the host of the machine has given to others meanwhile, and all. The fourth and fifth number are
%% idle, and the eighth is stolen.
processor_time() ->
    case file:read_file("/proc/stat") of
        {ok, Stat} ->
            [Line | _] = binary:split(Stat, ~"\n"),
            [~"cpu" | Words] = binary:split(Line, ~" ", [global, trim_all]),
            [_, _, _, Idle, Waiting, _, _, Stolen | _] = Times =
                [binary_to_integer(Word) || Word <- Words],
            {Idle + Waiting, Stolen, lists:sum(lists:sublist(Times, 8))};
        {error, enoent} ->
            {0, 0, 0}
    end.

all() ->
    [process_crash, network_partition, memory_exhaustion, message_flood, invalid_payload,
     connection_leak, slow_consumer, supervisor_cascade, disk_full, cpu_saturation, large_payload,
     unfinished_bodies, drill_crashes, drill_processes, drill_connections, drill_node,
     drill_latency, every_fault_runs, lack_of_the_machine_is_named, fault_without_a_reason_fails,
     only_late_ones_of_a_paused_machine_are_repeated].

process_crash(Config) ->
    passed(~"chaos_process_crash", Config, fun(#{accounting := #{fault := Fault}}) ->
        %% Each caller of a killed call is told, each of a killed connection sees it.
        #{refused := #{1089 := 50}, failed := #{closed := 50}, wrong := Wrong} = Fault,
        0 = map_size(Wrong)
    end).

network_partition(Config) ->
    passed(~"chaos_network_partition", Config, fun(#{accounting := #{load := Load}}) ->
        #{failed := #{timeout := _}} = Load
    end).

memory_exhaustion(Config) ->
    passed(~"chaos_memory_exhaustion", Config,
           fun(#{accounting := #{fault := #{refused := Refused}},
                 events := #{memory_full := _, memory_ok := _}}) ->
        [1089] = maps:keys(Refused)
    end).

message_flood(Config) ->
    passed(~"chaos_message_flood", Config, fun(#{accounting := #{fault := Fault}}) ->
        #{answered := Answered, refused := #{1056 := Refused} = Codes} = Fault,
        [1056] = maps:keys(Codes),
        10_000 = Answered + Refused,
        %% Calls within the rate are served.
        true = Answered >= 500
    end).

invalid_payload(Config) ->
    passed(~"chaos_invalid_payload", Config, fun(#{accounting := #{fault := Fault}}) ->
        #{refused := #{1066 := 1_000}, answered := Good, failed := Failed} = Fault,
        0 = map_size(Failed),
        %% One after each twenty on TCP, one after each ten on HTTP, and the two before.
        62 = Good
    end).

connection_leak(Config) ->
    passed(~"chaos_connection_leak", Config, fun(#{accounting := #{fault := Fault}}) ->
        #{answered := 56, refused := #{1060 := 34}} = Fault
    end).

slow_consumer(Config) ->
    passed(~"chaos_slow_consumer", Config,
           fun(#{accounting := #{fault := #{failed := Failed}},
                 events := #{slow_consumer := 3}}) ->
        3 = lists:sum(maps:values(Failed))
    end).

supervisor_cascade(Config) ->
    passed(~"chaos_supervisor_cascade", Config, fun(#{figures := #{rounds := 2}}) -> ok end).

disk_full(Config) ->
    passed(~"chaos_disk_full", Config, fun(#{accounting := #{probe := #{refused := Refused}}}) ->
        [1079] = maps:keys(Refused)
    end).

cpu_saturation(Config) ->
    passed(~"chaos_cpu_saturation", Config,
           fun(#{events := #{processors_busy := _, processors_ok := _}}) -> ok end).

large_payload(Config) ->
    passed(~"chaos_large_payload", Config, fun(#{accounting := #{fault := Fault}}) ->
        #{refused := #{1068 := 6}} = Fault
    end).

unfinished_bodies(Config) ->
    passed(~"chaos_unfinished_bodies", Config,
           fun(#{accounting := #{fault := #{refused := Refused}}}) ->
        [1089] = maps:keys(Refused)
    end).

drill_crashes(Config) ->
    passed(~"drill_crashes", Config, fun(#{seen := #{processes := _}}) -> ok end).

drill_processes(Config) ->
    passed(~"drill_processes", Config, fun(#{seen := #{processes := _}}) -> ok end).

drill_connections(Config) ->
    passed(~"drill_connections", Config, fun(#{seen := #{connections := _}}) -> ok end).

drill_node(Config) ->
    passed(~"drill_node", Config, fun(#{facts := #{full_service_after_ms := _}}) -> ok end).

drill_latency(Config) ->
    passed(~"drill_latency", Config,
           fun(#{facts := #{latency_p95_us := Within, undelayed_latency_p95_us := Other}}) ->
        true = Within > Other
    end).

%% Each fault has a case here that is called like it.
every_fault_runs(_) ->
    Cases = [atom_to_binary(Case) || Case <- all()],
    [] = [Id || #{id := Id} <- erlmcp_bench_chaos:scenarios(),
                not lists:member(case_of(Id), Cases)].

case_of(<<"chaos_", Fault/binary>>) -> Fault;
case_of(Drill) -> Drill.

%% As without root or a program.
lack_of_the_machine_is_named(Config) ->
    true = os:putenv("ERLMCP_TOXIPROXY", "/no/such/program"),
    try erlmcp_bench_chaos:run_scenario(~"drill_latency", #{short => true}) of
        {ok, Outcome} ->
            Name = proplists:get_value(priv_dir, Config) ++ "named",
            {comment, _} = judged(Outcome, fun(_) -> ok end, Name),
            {ok, ~"drill_latency: it needs the program /no/such/program\n"} =
                file:read_file(Name)
    after
        true = os:unsetenv("ERLMCP_TOXIPROXY")
    end.

only_late_ones_of_a_paused_machine_are_repeated(_) ->
    Failed = fun(Violations, Us) ->
        Figures = #{pause_us => Us, resolution_us => 25_000, recovery_moved_us => 10_000},
        Outcome = #{status => failed, violations => Violations, figures => Figures},
        %% A pause of the server may show only as time that its host has not given.
        Disturbed = is_disturbed(Outcome, 0),
        Disturbed = is_disturbed(Outcome#{figures := Figures#{pause_us := 0}}, Us)
    end,
    Late = {late, recovery, 2_000_000, 100},
    true = Failed([Late, {before, [{refused, 1078}]}], ?PAUSE_US),
    false = Failed([Late], ?PAUSE_US - 1),
    [{true, false} = {Failed([{late, What, Us, 100}], 0), Failed([{late, What, Us + 1, 100}], 0)}
     || {What, Us} <- [{detection, 100_000 + ?PAUSE_US}, {recovery, 135_000 + ?PAUSE_US}]],
    false = Failed([Late, {lost, load, 1}], ?PAUSE_US),
    false = Failed([{fell_over, server_restarted}], ?PAUSE_US),
    %% A scenario that was broken off has no figures.
    false = is_disturbed(#{status => failed, violations => [{scenario, killed}]}, ?PAUSE_US),
    Figures = #{pause_us => ?PAUSE_US},
    Unseen = #{status => failed, violations => [{code, 1078, never_seen}], figures => Figures},
    {true, false} = {is_disturbed(Unseen, 0),
                     is_disturbed(Unseen#{figures := #{pause_us => 0}}, ?PAUSE_US)},
    false = is_disturbed(#{status => passed, violations => [], figures => Figures}, 0).

fault_without_a_reason_fails(Config) ->
    Outcome = erlmcp_chaos_run:run(erlmcp_test_fault, #{setup => {not_run, ~"no tmpfs here"}}),
    Name = proplists:get_value(priv_dir, Config) ++ "named",
    {not_run, ~"chaos_of_a_suite", ~"no tmpfs here"} =
        try judged(Outcome, fun(_) -> ok end, Name) catch error:Reason -> Reason end.

passed(Id, Config, Also) ->
    passed(Id, Config, Also, ?TRIES).

passed(Id, Config, Also, Tries) ->
    {_, Before, _} = processor_time(),
    {ok, Outcome} = erlmcp_bench_chaos:run_scenario(Id, #{short => true}),
    {_, After, _} = processor_time(),
    StolenUs = 10_000 * (After - Before) div erlang:system_info(schedulers_online),
    ct:log("~b us of each processor were stolen~n~p", [StolenUs, Outcome]),
    case Tries > 1 andalso is_disturbed(Outcome, StolenUs) of
        true ->
            ok = await_quiet(erlang:monotonic_time(millisecond) + ?QUIET_MS),
            passed(Id, Config, Also, Tries - 1);
        false ->
            judged(Outcome, Also, proplists:get_value(priv_dir, Config) ++ "not_run")
    end.

%% Only what takes time is judged again. A pause loses no request.
is_disturbed(#{status := failed, violations := Violations, figures := Figures}, StolenUs) ->
    #{pause_us := Longest} = Figures,
    Paused = max(Longest, StolenUs) >= ?PAUSE_US,
    lists:all(fun
        ({late, What, Us, BoundMs}) ->
            Paused orelse Us - 1_000 * BoundMs - more_us(What, Figures) =< ?PAUSE_US;
        ({code, _, _}) ->
            Longest >= ?PAUSE_US;
        (Violation) ->
            Paused andalso lists:member(element(1, Violation), [never, before, unseen])
    end, Violations);
is_disturbed(#{}, _) ->
    false.

%% By how much the bound was longer, as far as the figures say.
more_us(detection, Figures) ->
    maps:get(detection_moved_us, Figures, 0);
more_us(recovery, #{resolution_us := Us} = Figures) ->
    Us + maps:get(recovery_moved_us, Figures, 0).

judged(#{status := not_run, scenario := Id, lacks := [_ | _] = Lacks}, _, File) ->
    Line = iolist_to_binary([Id, ": ", lists:join(", ", Lacks), $\n]),
    ok = file:write_file(File, Line, [append]),
    {comment, Line};
judged(#{status := not_run, scenario := Id, reason := Reason}, _, _) ->
    error({not_run, Id, Reason});
judged(#{status := passed, violations := []} = Outcome, Also, File) ->
    _ = Also(Outcome),
    {ok, [_]} = erlmcp_chaos_result:write([Outcome], File ++ "_results"),
    ok;
judged(#{status := failed, scenario := Id, violations := Violations} = Outcome, _, _) ->
    error({Id, Violations, maps:with([figures, earlier, seen, accounting, events, facts],
                                     Outcome)}).
