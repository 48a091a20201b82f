-module(stress_SUITE).
-moduledoc "Stress: whole requests of this node, when they are due, and what a run tells of it.".

-export([suite/0, all/0]).
-export([a_short_run_gives_a_valid_result/1, what_is_due_and_not_sent_is_counted/1,
         each_of_many_workers_is_woken/1, a_load_ends_with_who_started_it/1,
         without_a_target_each_waits_for_its_answer/1, wrong_answers_fail_it/1,
         collections_of_its_requests_are_seen/1,
         a_leak_is_told_from_noise/1, a_degradation_is_told/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_short_run_gives_a_valid_result, what_is_due_and_not_sent_is_counted,
     each_of_many_workers_is_woken, a_load_ends_with_who_started_it,
     without_a_target_each_waits_for_its_answer, wrong_answers_fail_it,
     collections_of_its_requests_are_seen,
     a_leak_is_told_from_noise, a_degradation_is_told].

a_short_run_gives_a_valid_result(_) ->
    {ok, [Result]} = erlmcp_bench_stress:run_workload(
        #{id => ~"stress_30s_100k_ops", duration_s => 0.6, target_ops_per_s => 500, workers => 5}),
    ok = erlmcp_metrology_validator:validate(Result),
    #{~"sample_count" := Answered, ~"sent_count" := Sent, ~"unsent_count" := Unsent,
      ~"wrong_count" := 0, ~"failed_count" := 0, ~"refused_count" := Refused,
      ~"target_msg_per_s" := 500, ~"workers" := 5, ~"leak" := ~"not_judged",
      ~"shortened" := true, ~"seconds" := [_, _, _ | _]} = Result,
    300 = Sent + Unsent,
    Sent = Answered + lists:sum(maps:values(Refused)).

%% A single worker cannot send requests that are due together.
what_is_due_and_not_sent_is_counted(_) ->
    {ok, [#{~"sent_count" := Sent, ~"unsent_count" := Unsent} = Result]} =
        erlmcp_bench_stress:run_workload(
            #{id => ~"too_much", duration_s => 0.3, target_ops_per_s => 10_000_000, workers => 1}),
    ok = erlmcp_metrology_validator:validate(Result),
    3_000_000 = Sent + Unsent,
    true = Unsent > 1_000_000,
    %% And those that were sent waited for those before them.
    #{~"latency_p50_us" := Latency, ~"service_p50_us" := Service} = Result,
    true = Latency > 10 * Service.

%% A worker that is never woken would never end. Some workers have no requests at all.
each_of_many_workers_is_woken(_) ->
    _ = [begin
        {ok, [#{~"sent_count" := Sent, ~"unsent_count" := Unsent}]} =
            erlmcp_bench_stress:run_workload(
                #{id => ~"woken", duration_s => 0.2, target_ops_per_s => Target, workers => 7}),
        Due = Sent + Unsent
    end || {Target, Due} <- [{5, 1}, {90, 18}, {5_000, 1_000}]],
    ok.

%% With requests that are always due, and with requests that are a second apart.
a_load_ends_with_who_started_it(_) ->
    {ok, Server} = erlmcp:start_server(#{handler => erlmcp_bench_quick_fixture}),
    {ok, _, Instance} = erlmcp_registry:whereis(Server),
    ok = lists:foreach(fun(PerSecond) ->
        Plan = #{instance => Instance, text_bytes => 8, per_second => PerSecond, workers => 3,
                 duration_ms => 3_600_000, warm_ms => 0},
        Self = self(),
        {Starter, Down} = spawn_monitor(fun() ->
            _ = erlmcp_bench_open_load:start(Plan),
            {monitors, Started} = process_info(self(), monitors),
            Self ! {started, [Pid || {process, Pid} <- Started]},
            receive ended -> ok end
        end),
        Processes = receive {started, Pids} -> Pids end,
        Watched = [monitor(process, Pid) || Pid <- Processes],
        true = length(Watched) > 3,
        Starter ! ended,
        receive {'DOWN', Down, process, Starter, normal} -> ok end,
        [receive {'DOWN', One, process, _, _} -> ok end || One <- Watched]
    end, [20_000, 1]),
    ok = erlmcp:stop_server(Server).

without_a_target_each_waits_for_its_answer(_) ->
    {ok, [#{~"sent_count" := Sent, ~"sample_count" := Answered} = Result]} =
        erlmcp_bench_stress:run_workload(
            #{id => ~"stress_uncapped", duration_s => 0.3, workers => 2}),
    ok = erlmcp_metrology_validator:validate(Result),
    #{~"unsent_count" := 0, ~"refused_count" := #{}, ~"wrong_count" := 0} = Result,
    true = Sent =:= Answered andalso Answered > 0,
    false = is_map_key(~"target_msg_per_s", Result).

wrong_answers_fail_it(_) ->
    {error, #{failures := [{~"stress_30s_100k_ops", {wrong_answers, Wrong}}],
              results := [#{~"sample_count" := Right, ~"sent_count" := Sent}]}} =
        erlmcp_bench_stress:run_workload(
            #{id => ~"stress_30s_100k_ops", target_ops_per_s => 1_000, workers => 2},
            #{duration_s => 0.3, server => #{handler => erlmcp_test_broken_fixture}}),
    Sent = Right + Wrong.

%% Each request has three major collections, and the other processes of the node have few.
collections_of_its_requests_are_seen(_) ->
    {ok, [#{~"gc_count_per_msg" := Each, ~"gc_sampled_percent" := Sampled,
            ~"gc_major_count" := Major, ~"gc_longest_us" := Longest,
            ~"gc_latency_p95_percent" := Part} = Result]} =
        erlmcp_bench_stress:run_workload(
            #{id => ~"stress_30s_100k_ops", target_ops_per_s => 300, workers => 3},
            #{duration_s => 1, server => #{handler => erlmcp_test_collecting_fixture}}),
    ok = erlmcp_metrology_validator:validate(Result),
    true = Each >= 3 orelse error({each, Each}),
    true = Major > 100 andalso Sampled > 1 orelse error({Major, Sampled}),
    true = Longest > 0 andalso Part > 0 andalso Part =< 100.

a_leak_is_told_from_noise(_) ->
    Judged = fun(Points) ->
        erlmcp_bench_slope:verdict(above, 1, erlmcp_bench_slope:fit(Points))
    end,
    Minutes = [Second / 60 || Second <- lists:seq(5, 60, 5)],
    Noise = [math:sin(1_000 * Minute) / 5 || Minute <- Minutes],
    beyond = Judged([{Minute, 40 + 5 * Minute + Some}
                     || {Minute, Some} <- lists:zip(Minutes, Noise)]),
    within = Judged([{Minute, 40 + 0.2 * Minute + Some}
                     || {Minute, Some} <- lists:zip(Minutes, Noise)]),
    unclear = Judged([{Minute, 40 + 2 * Minute + 20 * Some}
                      || {Minute, Some} <- lists:zip(Minutes, Noise)]).

a_degradation_is_told(_) ->
    Judged = fun(Points) ->
        erlmcp_bench_slope:verdict(below, -5, erlmcp_bench_slope:fit(Points))
    end,
    beyond = Judged([{Minute, 100 - 6 * Minute} || Minute <- lists:seq(1, 6)]),
    within = Judged([{Minute, 100 - 4 * Minute} || Minute <- lists:seq(1, 6)]),
    within = Judged([{Minute, 100 + 6 * Minute} || Minute <- lists:seq(1, 6)]).
