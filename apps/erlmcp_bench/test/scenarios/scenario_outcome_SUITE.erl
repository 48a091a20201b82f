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
         recovery_has_its_bounds/1, sums_add_up/1, reasons_of_all_loads_add_up/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [figures_are_those_of_their_steps, the_warm_up_is_not_judged, marks_are_beaten_at_their_value,
     marks_belong_to_their_step, each_broken_promise_is_a_complaint, faults_end_with_the_next_one,
     recovery_has_its_bounds, sums_add_up, reasons_of_all_loads_add_up].

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
    #{shortened := false} = outcome(baseline, #{peak => Peak}, #{duration_s => 330}).

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
    %% A run without such a step has no measured figure.
    #{marks := Fewer} = outcome(connection_flood, Of, #{duration_s => 10}),
    [250, 250] = [Clients || #{clients := Clients} = Mark <- Fewer,
                             not is_map_key(measured, Mark)].

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
    ?assertEqual(9, erlmcp_bench_scenario_sums:ended(One)),
    ?assertEqual(10 + 60 + 150, erlmcp_bench_scenario_sums:total_us(One)),
    ?assert(abs(erlmcp_bench_scenario_sums:error_percent(One) - 100 * 5 / 11) < 1.0e-9).

reasons_of_all_loads_add_up(_) ->
    Report = report(sums(#{})),
    #{refused := #{1056 := 5, tool_error := 1}, failed := #{timeout := 2}} =
        outcome(message_bombing, #{peak => good(1)}, #{reports => [
            Report#{refused := #{1056 => 2}, failed := #{timeout => 2}},
            Report#{refused := #{1056 => 3, tool_error => 1}}]}).

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
    Steps = [{Step, sums(Of(Step))} || Step <- erlmcp_bench_scenario_plan:steps(Scenario, Options)],
    Total = lists:foldl(fun({_, Sums}, All) -> erlmcp_bench_scenario_sums:add(Sums, All) end,
                        sums(#{}), Steps),
    Facts = #{steps => Steps, nodes => 1, usage => #{}, unopened => 0, faults => [], outages => [],
              ended_us => 0, reports => [report(sums(maps:get(report, More, Total)))]},
    erlmcp_bench_scenario_outcome:new(Scenario, Options,
                                      maps:merge(Facts, maps:without([report, scale, duration_s],
                                                                     More))).

report(#{refused := Refused, failed := Failed} = Sums) ->
    Sums#{latency := erlmcp_bench_scenario_sums:histogram(Sums),
          refused := #{1056 => Refused || Refused > 0},
          failed := #{timeout => Failed || Failed > 0},
          lateness => erlmcp_bench_histogram:new()}.
