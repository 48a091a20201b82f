-module(scenario_outcome_SUITE).
-moduledoc """
Tests for the judgement of a scenario. Planted sums and outages have exactly these figures, marks
and complaints, at each bound and just beyond it.
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([figures_are_those_of_their_steps/1, the_warm_up_is_not_judged/1,
         marks_are_beaten_at_their_value/1, marks_belong_to_their_step/1,
         each_broken_promise_is_a_complaint/1, faults_end_with_the_next_one/1,
         recovery_has_its_bounds/1, sums_add_up/1, reasons_of_all_loads_add_up/1,
         bytes_are_bandwidth_and_overhead/1, bombings_have_their_times/1,
         nodes_have_their_resources/1, phases_have_their_collections/1,
         lines_are_seconds_of_nodes_and_loads/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [figures_are_those_of_their_steps, the_warm_up_is_not_judged, marks_are_beaten_at_their_value,
     marks_belong_to_their_step, each_broken_promise_is_a_complaint, faults_end_with_the_next_one,
     recovery_has_its_bounds, sums_add_up, reasons_of_all_loads_add_up,
     bytes_are_bandwidth_and_overhead, bombings_have_their_times, nodes_have_their_resources,
     phases_have_their_collections, lines_are_seconds_of_nodes_and_loads].

%% 30 s of warm-up and 300 s of a peak of 25 clients, each of which sends 100 a second.
figures_are_those_of_their_steps(_) ->
    Peak = #{sent => 1_000, answered => 990, refused => 4, failed => 3, wrong => 3, unsent => 10,
             latency => [{10, 500}, {20, 450}, {30, 30}, {40, 10}]},
    #{peak := Figures, steps := [#{phase := peak, clients := 25, figures := Figures}]} =
        outcome(baseline, #{peak => Peak}, #{}),
    #{duration_s := 300.0, rate := 2_500.0, throughput_msg_per_s := 3.3, zone := red,
      latency_p50_us := 10, latency_p95_us := 20, latency_p99_us := 40, latency_p999_us := 40,
      latency_deviation_us := Deviation, sums := #{sent := 1_000, unsent := 10}} = Figures,
    #{error_percent := Percent} = Figures,
    Mean = (5_000 + 9_000 + 900 + 400) / 990,
    Squares = 500 * 100 + 450 * 400 + 30 * 900 + 10 * 1_600,
    ?assert(abs(Deviation - math:sqrt(Squares / 990 - Mean * Mean)) < 1.0e-6),
    ?assert(abs(Percent - 100 * 20 / 1_010) < 1.0e-9),
    #{peak := None} = outcome(baseline, #{}, #{}),
    #{throughput_msg_per_s := Nothing, error_percent := Nothing} = None,
    ?assertEqual(0.0, Nothing),
    ?assertEqual([], [Name || Name := _ <- None, Name =:= latency_p50_us]),
    %% The peak of a run of 33 s.
    #{peak := #{duration_s := 30.0, throughput_msg_per_s := 33.0}, shortened := true} =
        outcome(baseline, #{peak => Peak}, #{duration_s => 33}),
    #{shortened := false} = outcome(baseline, #{peak => Peak}, #{duration_s => 330}),
    %% As is a run of fewer clients.
    #{clients := 20, shortened := true} = outcome(baseline, #{peak => Peak}, #{scale => 0.8}),
    #{clients := 50, shortened := false} = outcome(baseline, #{peak => Peak}, #{scale => 2}).

the_warm_up_is_not_judged(_) ->
    Bad = #{sent => 1_000, answered => 500, failed => 500, latency => [{90_000_000, 500}]},
    #{status := passed, zone := green, peak := #{latency_p99_us := 10}, total := Total,
      steps := [#{phase := peak}]} =
        outcome(baseline, #{warm_up => Bad, peak => good(10_000)}, #{}),
    #{sent := 11_000, failed := 500} = Total,
    %% The peak has no answer.
    #{complaints := [nothing_answered]} = outcome(baseline, #{warm_up => good(10)}, #{}).

marks_are_beaten_at_their_value(_) ->
    Beaten = fun(Peak) ->
        #{marks := Marks} = outcome(baseline, #{peak => Peak}, #{}),
        #{Figure => Is || #{figure := Figure, beaten := Is, clients := 25} <- Marks}
    end,
    #{throughput_msg_per_s := true, error_percent := true} = Beaten(good(2_500 * 300)),
    #{throughput_msg_per_s := false} = Beaten(good(2_500 * 300 - 1)),
    #{error_percent := true} = Beaten((good(9_999))#{sent := 10_000, refused => 1}),
    #{error_percent := false} = Beaten((good(9_998))#{sent := 10_000, unsent => 2}),
    [begin
         Fast = #{sent => 100, answered => 100, latency => [{Us, 100}]},
         #{Figure := true} = Beaten(Fast),
         #{Figure := false} = Beaten(Fast#{latency := [{Us * 102 div 100, 100}]})
     end || {Figure, Us} <- [{latency_p50_us, 15_000}, {latency_p95_us, 85_000},
                             {latency_p99_us, 180_000}]],
    %% A tenth of the clients must answer a tenth.
    #{marks := Marks} = outcome(baseline, #{peak => good(250 * 300)}, #{scale => 0.1}),
    [#{value := 250.0, measured := 250.0, beaten := true}] =
        [Mark || #{figure := throughput_msg_per_s} = Mark <- Marks].

%% A mark of 250 clients belongs to the step of the ramp with as many.
marks_belong_to_their_step(_) ->
    Of = fun(#{phase := ramp, clients := 250}) -> #{sent => 100, answered => 100,
                                                    latency => [{100_000, 100}]};
            (#{phase := peak}) -> #{sent => 100, answered => 98, refused => 2,
                                    latency => [{300_000, 98}]};
            (_) -> #{}
         end,
    #{marks := Marks} = outcome(connection_flood, Of, #{}),
    [{250, error_percent, true}, {250, latency_p95_us, true}, {500, error_percent, false},
     {500, latency_p95_us, false}] =
        lists:sort([{Clients, Figure, Beaten} || #{clients := Clients, figure := Figure,
                                                   beaten := Beaten} <- Marks]),
    %% A run in which no step with as many clients has an answer has no measured latency.
    #{marks := Fewer} = outcome(connection_flood, Of, #{duration_s => 6}),
    [{250, latency_p95_us}] = [{Clients, Figure}
                               || #{clients := Clients, figure := Figure} = Mark <- Fewer,
                                  not is_map_key(measured, Mark)],
    %% A fortieth of 500 clients is 13 clients, and half of these are 7.
    #{marks := Few} = outcome(connection_flood, fun(_) -> good(10) end, #{scale => 0.025}),
    [{7, true}, {7, true}, {13, true}, {13, true}] =
        lists:sort([{Clients, is_map_key(measured, Mark)} || #{clients := Clients} = Mark <- Few]).

each_broken_promise_is_a_complaint(_) ->
    Complaints = fun(Sums, More) ->
        #{status := Status, complaints := Found} = outcome(message_bombing, #{peak => Sums}, More),
        ?assertEqual(case Found of [] -> passed; _ -> failed end, Status),
        Found
    end,
    Good = good(10_000),
    [] = Complaints(Good, #{}),
    [{unopened, 3}] = Complaints(Good, #{unopened => 3}),
    [{wrong_replies, 2}] = Complaints(Good#{sent := 10_002, wrong => 2}, #{}),
    [{unaccounted, 1}] = Complaints(Good#{sent := 10_001}, #{}),
    [{unaccounted, -1}] = Complaints(Good#{sent := 9_999}, #{}),
    [uncounted] = Complaints(Good, #{report => good(9_999)}),
    [uncounted] = Complaints(Good, #{report => Good#{answered := 9_999, failed => 1}}),
    %% Red begins with one in a hundred.
    Red = fun(Bad) -> #{complaints := Found} =
                          outcome(baseline, #{peak => (good(10_000 - Bad))#{sent := 10_000,
                                                                            failed => Bad}}, #{}),
                      Found end,
    {[], [{zone, red}]} = {Red(99), Red(100)}.

%% The first fault, of 1 s, has its errors until the second one begins.
faults_end_with_the_next_one(_) ->
    Outage = fun(Fault, At, Last) ->
        #{fault => Fault, at_us => At, errors => 1, slow => 2, first_us => At + 5_000,
          last_us => Last, latency => erlmcp_bench_histogram:from_list([{100, 95}, {200, 5}])}
    end,
    Judged = fun(Last, Ended) ->
        #{faults := Faults, complaints := Complaints} = outcome(chaos, #{peak => good(100)}, #{
            faults => [begun(kill_node), begun(drop_clients),
                       (begun(add_latency))#{not_run => none},
                       #{event => fault, fault => add_latency, state => ends}],
            outages => [Outage(kill_node, 1_000_000, Last),
                        Outage(drop_clients, 10_000_000, 11_000_000)], ended_us => Ended}),
        ?assertEqual([{not_recovered, Fault} || #{fault := Fault, recovered := false} <- Faults],
                     Complaints),
        Faults
    end,
    Calm = erlmcp_bench_scenario_outages:calm_us(),
    [#{fault := kill_node, recovered := true, detection_ms := 5.0, errors := 1, slow := 2,
       latency_p95_us := 100, extent := #{nodes := 1}},
     #{fault := drop_clients, recovered := true, recovery_ms := 1_000.0},
     #{fault := add_latency, not_run := none}] = Judged(10_000_000 - Calm, 11_000_000 + Calm),
    [#{recovered := false}, #{recovered := false} | _] =
        Judged(10_000_000 - Calm + 1, 11_000_000 + Calm - 1).

%% The marks of a killed node and of dropped clients.
recovery_has_its_bounds(_) ->
    [begin
         Complaints = fun(LastUs) ->
             #{complaints := Found} = outcome(chaos, #{peak => good(100)}, #{
                 faults => [begun(Fault)],
                 outages => [#{fault => Fault, at_us => 0, errors => 1, slow => 0, first_us => 1,
                               last_us => LastUs, latency => erlmcp_bench_histogram:new()}],
                 ended_us => 1_000_000_000}),
             Found
         end,
         [] = Complaints(MarkS * 1_000_000),
         [{not_recovered, Fault}] = Complaints(MarkS * 1_000_000 + 1)
     end || {Fault, MarkS} <- [{kill_node, 42}, {drop_clients, 85}]].

begun(Fault) ->
    #{event => fault, fault => Fault, state => begins, extent => #{nodes => 1},
      least => #{nodes => 1}}.

sums_add_up(_) ->
    One = sums(#{sent => 9, answered => 6, refused => 1, failed => 1, wrong => 1, unsent => 2,
                 latency => [{10, 1}, {30, 2}, {50, 3}]}),
    Other = sums(#{sent => 5, answered => 5, unsent => 1, latency => [{10, 1}, {20, 1}, {50, 3}]}),
    Both = erlmcp_bench_scenario_sums:add(One, Other),
    ?assertEqual(sums(#{sent => 14, answered => 11, refused => 1, failed => 1, wrong => 1,
                        unsent => 3, latency => [{10, 2}, {20, 1}, {30, 2}, {50, 6}]}), Both),
    ?assertEqual(Both, erlmcp_bench_scenario_sums:add(Other, One)),
    ?assertEqual(One, erlmcp_bench_scenario_sums:since(Both, Other)),
    ?assertEqual(One, erlmcp_bench_scenario_sums:add(erlmcp_bench_scenario_sums:none(), One)),
    None = erlmcp_bench_scenario_sums:none(),
    ?assertEqual([None, One, Both, Both, erlmcp_bench_scenario_sums:add(Both, Both)],
                 [erlmcp_bench_scenario_sums:sum(All)
                  || All <- [[], [One], [One, Other], [Other, None, One],
                             [One, Other, Other, One]]]),
    ?assertEqual(9, erlmcp_bench_scenario_sums:ended(One)),
    ?assertEqual(10 + 60 + 150, erlmcp_bench_scenario_sums:total_us(One)),
    ?assert(abs(erlmcp_bench_scenario_sums:error_percent(One) - 100 * 5 / 11) < 1.0e-9).

reasons_of_all_loads_add_up(_) ->
    Report = report(sums(#{})),
    #{refused := #{1056 := 5, tool_error := 1}, failed := #{timeout := 2}} =
        outcome(message_bombing, #{peak => good(1)}, #{reports => [
            Report#{refused := #{1056 => 2}, failed := #{timeout => 2}},
            Report#{refused := #{1056 => 3, tool_error => 1}}]}).

%% 512 bytes there and back in each of 1,000 requests, of which nine in ten are answered.
bytes_are_bandwidth_and_overhead(_) ->
    Peak = (good(900))#{sent := 1_000, failed => 100, bytes_out => 1_048_576,
                        bytes_in => 2_097_152},
    #{peak := #{received_mib_per_s := In, sent_mib_per_s := Out, overhead_percent := Percent}} =
        outcome(baseline, #{peak => Peak}, #{}),
    ?assertEqual([2 / 300, 1 / 300], [In, Out]),
    ?assert(abs(Percent - 100 * (1 - 1_900 * 512 / (3 * 1_048_576))) < 1.0e-9),
    #{peak := None} = outcome(baseline, #{}, #{}),
    false = is_map_key(overhead_percent, None).

%% 1 s of a peak from 2 s on. Of four requests that are due in it, one waits until 3.5 s, and one
%% is refused at 3.4 s.
bombings_have_their_times(_) ->
    Readings = [reading(At, Phase, #{}) || {At, Phase} <- [{0, start}, {1_000_000, warm_up},
                                                           {2_000_000, warm_up}, {2_500_000, peak},
                                                           {3_000_000, peak},
                                                           {9_000_000, cool_down}]],
    Bombing = fun(Requests, EndedUs) ->
        Course = lists:foldl(fun({Outcome, Due, End}, Sum) ->
                                 erlmcp_load_course:ended(Outcome, Due, End, Sum)
                             end, erlmcp_load_course:new(0), Requests),
        Report = (report(sums(good(10))))#{course := Course},
        #{bombing := Found} = outcome(message_bombing, #{peak => good(10)},
                                      #{reports => [Report], readings => Readings,
                                        ended_us => EndedUs}),
        Found
    end,
    Bombed = [{answered, 1_500_000, 1_600_000}, {answered, 2_000_000, 2_000_500},
              {answered, 2_050_000, 3_200_000}, {answered, 2_060_000, 3_500_000},
              {{refused, 1056}, 2_990_000, 3_400_000}],
    Calm = erlmcp_bench_scenario_outages:calm_us(),
    ?assertEqual(#{most_backlog_requests => 3, end_backlog_requests => 3, drain_ms => 500.0,
                   cool_down_ms => 500.0}, Bombing(Bombed, 3_500_000 + Calm)),
    %% No calm was seen; and not the end of the last request.
    ?assertEqual(#{most_backlog_requests => 3, end_backlog_requests => 3, drain_ms => 500.0},
                 Bombing(Bombed, 3_500_000 + Calm - 1)),
    ?assertEqual(#{most_backlog_requests => 3, end_backlog_requests => 3},
                 Bombing(Bombed, 3_500_000)),
    %% Later requests still find the server slow, and one fails.
    Later = [{answered, 3_600_000, 3_900_000}, {answered, 4_000_000, 4_250_000}],
    #{drain_ms := 500.0, cool_down_ms := 900.0} = Bombing(Bombed ++ Later, 9_000_000),
    #{drain_ms := 500.0, cool_down_ms := 2_000.0} =
        Bombing([{unsent, 4_100_000, 5_000_000} | Bombed], 9_000_000),
    %% 300 ms are not slow if 150 ms were usual before.
    #{cool_down_ms := 500.0} =
        Bombing([{answered, 1_000_000, 1_150_000} | Bombed ++ Later], 9_000_000),
    false = is_map_key(bombing, outcome(baseline, #{peak => good(10)}, #{readings => Readings})).

reading(AtUs, Phase, Nodes) -> #{at_us => AtUs, phase => Phase, nodes => Nodes}.

%% The second node is killed twice in the peak, and runs again at its end.
nodes_have_their_resources(_) ->
    Mib = 1_048_576,
    Of = fun(OsPid, CpuUs, RssMib, Received, Sent) ->
        #{os_pid => OsPid, cpu_us => CpuUs, rss_bytes => RssMib * Mib, bytes => {Received, Sent}}
    end,
    Readings = [
        reading(0, start, #{~"node_1" => Of(1, 100_000, 50, 0, 0),
                            ~"node_2" => Of(2, 0, 40, 0, 0)}),
        reading(1_000_000, warm_up, #{~"node_1" => Of(1, 600_000, 60, 100, 1_000),
                                      ~"node_2" => Of(2, 10_000, 40, 10, 20)}),
        reading(2_000_000, peak, #{~"node_1" => Of(1, 1_600_000, 90, 600, 2_000),
                                   ~"node_2" => Of(2, 510_000, 45, 20, 30)}),
        reading(2_900_000, peak, #{~"node_1" => Of(1, 3_600_000, 70, 700, 2_100),
                                   ~"node_2" => #{bytes => {20, 30}}}),
        reading(3_000_000, peak, #{~"node_1" => Of(1, 3_600_000, 70, 700, 2_100),
                                   ~"node_2" => Of(3, 700_000, 30, 20, 30)}),
        reading(4_000_000, peak, #{~"node_1" => Of(1, 3_600_000, 80, 900, 2_500),
                                   ~"node_2" => Of(4, 900_000, 30, 50, 70)})],
    #{phases := [WarmUp, Peak], usage := Usage, series := Series} =
        outcome(baseline, #{peak => good(10)}, #{readings => Readings, nodes => 2}),
    ?assertEqual(
        #{phase => warm_up, at_s => 1.0, duration_s => 1.0, nodes => [
            #{node => ~"node_1", cpu_percent => 50.0, memory_rss_mib_per_node => 60.0,
              memory_rss_max_mib_per_node => 60.0, received_bytes => 100, sent_bytes => 1_000},
            #{node => ~"node_2", cpu_percent => 1.0, memory_rss_mib_per_node => 40.0,
              memory_rss_max_mib_per_node => 40.0, received_bytes => 10, sent_bytes => 20}]},
        WarmUp),
    ?assertEqual(
        #{phase => peak, at_s => 4.0, duration_s => 3.0, nodes => [
            #{node => ~"node_1", cpu_percent => 100.0, memory_rss_mib_per_node => 80.0,
              memory_rss_max_mib_per_node => 90.0, received_bytes => 800, sent_bytes => 1_500},
            %% As far as the first of the three processes was seen.
            #{node => ~"node_2", cpu_percent => 50.0, memory_rss_mib_per_node => 30.0,
              memory_rss_max_mib_per_node => 45.0, received_bytes => 40, sent_bytes => 50}]}, Peak),
    %% The processor time of all nodes is not known if one was killed.
    ?assertEqual(#{}, Usage),
    ?assertEqual([50, 100, 222, 0, 0],
                 [round(Percent) || #{node := ~"node_1", cpu_percent := Percent} <- Series]),
    ?assertEqual([1.0, 50.0],
                 [Percent || #{node := ~"node_2", cpu_percent := Percent} <- Series]),
    Whole = [Reading#{nodes := maps:map(fun(_, Node) -> Node end,
                                        #{~"generator" => Of(9, At, 9, 0, 0),
                                          ~"node_1" => map_get(~"node_1", Nodes)})}
             || #{nodes := Nodes, at_us := At} = Reading <- Readings],
    #{usage := Used} = outcome(baseline, #{peak => good(10)}, #{readings => Whole, nodes => 1}),
    ?assertEqual(#{generator_cpu_us => 3_000_000, server_cpu_us => 3_000_000,
                   server_rss_bytes => 80 * Mib}, Used).

%% 10 requests of the warm-up and 100 of the peak were answered in 10 us each; the peak has one
%% collection for each of them.
phases_have_their_collections(_) ->
    Readings = [reading(At, Phase, #{~"node_1" => #{bytes => {0, 0}}})
                || {At, Phase} <- [{0, start}, {30_000_000, warm_up}, {330_000_000, peak}]],
    Pauses = fun(All, Longest) ->
        #{minor => [{1_000, 99}], major => [{Longest, 1}], all => All,
          duration_ns => 300_000_000_000}
    end,
    #{phases := [WarmUp, Peak]} =
        outcome(baseline, #{warm_up => good(10), peak => good(100)}, #{
            readings => Readings,
            pauses => #{warm_up => Pauses(5, 3_000), peak => Pauses(100, 2_000)}}),
    #{phase := warm_up, nodes := [_], gc_count := 5, gc_longest_us := 3.0,
      gc_sampled_percent := 100.0} = WarmUp,
    #{phase := peak, gc_count := 100, gc_minor_count := 99, gc_major_count := 1,
      gc_minor_p95_us := 1.0, gc_major_p95_us := 2.0, gc_longest_us := 2.0,
      gc_count_per_msg := Each, gc_latency_p95_percent := Part} = Peak,
    ?assert(abs(Each - 1) < 0.001 andalso abs(Part - 10) < 0.1),
    %% A phase without an answer, or without nodes of our own, has none.
    #{phases := Others} = outcome(baseline, #{peak => good(100)}, #{
        readings => Readings, pauses => #{warm_up => Pauses(5, 3_000)}}),
    [] = [Phase || #{phase := Phase, gc_count := _} <- Others].

%% A load began half a second after the scenario.
lines_are_seconds_of_nodes_and_loads(_) ->
    Readings = [reading(At, Phase, #{~"node_1" => #{bytes => {At, 2 * At}}})
                || {At, Phase} <- [{1_000, start}, {1_001_000, warm_up}, {2_001_000, peak}]],
    Report = (report(sums(good(10))))#{
        from_us := 501_000, seconds := [#{at_s => At, duration_s => 1.0, sent_count => round(At),
                                          generator_cpu_us_per_msg => 7.0}
                                        || At <- [0.5, 1.0, 1.6]]},
    #{series := Series} = outcome(baseline, #{peak => good(10)}, #{
        readings => Readings, reports => [Report], began_us => 1_000}),
    Own = #{node => ~"node_1", duration_s => 1.0},
    Node = Own#{received_bytes => 1_000_000, sent_bytes => 2_000_000},
    Load = Own#{load => ~"load_1", clients => 1},
    ?assertEqual([Node#{phase => warm_up, at_s => 1.0},
                  Load#{phase => warm_up, at_s => 1.0, sent_count => 1},
                  Load#{phase => peak, at_s => 1.5, sent_count => 1},
                  Node#{phase => peak, at_s => 2.0},
                  Load#{phase => peak, at_s => 2.1, sent_count => 2}], Series),
    ok = erlmcp_metrology_validator:validate_lines(Series),
    {error, [#{place := ~"/2/latency_ms", rule := rejected_name}]} =
        erlmcp_metrology_validator:validate_lines([Node, Load#{latency_ms => 1}]),
    {error, [#{place := ~"/1/number", rule := unit}]} =
        erlmcp_metrology_validator:validate_lines([Node#{number => 1}]),
    {error, [#{place := ~"/2", rule := json, came := ~"[]"},
             #{place := ~"/3", rule := json, came := ~"7"}]} =
        erlmcp_metrology_validator:validate_lines([Node, [], 7, Load]).

%% Outcomes.

good(Answered) ->
    #{sent => Answered, answered => Answered, latency => [{10, Answered}]}.

sums(Given) -> maps:merge(erlmcp_bench_scenario_sums:none(), Given).

%% The outcome of a scenario whose steps have the given sums. One load has all of them, unless it is
%% given.
outcome(Name, Given, More) ->
    {ok, Scenario} = erlmcp_bench_scenarios:find(Name),
    Options = maps:merge(#{scale => 1, duration_s => erlmcp_bench_scenario_plan:seconds(Scenario),
                           transport => tcp}, maps:with([scale, duration_s], More)),
    Of = case Given of
        #{} -> fun(#{phase := Phase}) -> maps:get(Phase, Given, #{}) end;
        _ -> Given
    end,
    Steps = [{Step, sums(Of(Step)), Until - From}
             || #{from_ms := From, until_ms := Until} = Step
                    <- erlmcp_bench_scenario_plan:steps(Scenario, Options)],
    Total = lists:foldl(fun({_, Sums, _}, All) -> erlmcp_bench_scenario_sums:add(Sums, All) end,
                        sums(#{}), Steps),
    Reports = maps:get(reports, More, [report(sums(maps:get(report, More, Total)))]),
    Facts = #{steps => Steps, nodes => 1, unopened => 0, faults => [], outages => [],
              readings => [], scrapes => [], pauses => #{}, began_us => 0, ended_us => 0,
              loads => [{#{load => <<"load_", (integer_to_binary(Number))/binary>>,
                           node => ~"node_1", clients => 1}, Report}
                        || {Number, Report} <- lists:enumerate(Reports)]},
    erlmcp_bench_scenario_outcome:new(Scenario, Options,
                                      maps:merge(Facts, maps:without([report, reports, scale,
                                                                      duration_s], More))).

report(#{refused := Refused, failed := Failed, bytes_in := In, bytes_out := Out} = Sums) ->
    Sums#{all_bytes_in => In, all_bytes_out => Out, course => erlmcp_load_course:new(0),
          from_us => 0, seconds => [],
          latency := erlmcp_bench_scenario_sums:histogram(Sums),
          refused := #{1056 => Refused || Refused > 0},
          failed := #{timeout => Failed || Failed > 0},
          lateness => erlmcp_bench_histogram:new()}.
