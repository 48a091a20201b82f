-module(stress_SUITE).
-moduledoc "Stress: whole requests of this node, when they are due, and what a run tells of it.".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([a_short_run_gives_a_valid_result/1, what_is_due_and_not_sent_is_counted/1,
         each_of_many_workers_is_woken/1, a_load_ends_with_who_started_it/1,
         without_a_target_each_waits_for_its_answer/1, wrong_answers_fail_it/1,
         a_late_answer_is_not_that_of_the_next/1, a_server_that_cannot_start_fails_it/1,
         collections_of_its_requests_are_seen/1,
         each_service_fails_and_recovers/1, a_failure_has_to_be_seen/1,
         a_load_has_to_recover/1, figures_of_a_failure/1,
         a_leak_is_told_from_noise/1, a_degradation_is_told/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_short_run_gives_a_valid_result, what_is_due_and_not_sent_is_counted,
     each_of_many_workers_is_woken, a_load_ends_with_who_started_it,
     without_a_target_each_waits_for_its_answer, wrong_answers_fail_it,
     a_late_answer_is_not_that_of_the_next, a_server_that_cannot_start_fails_it,
     collections_of_its_requests_are_seen,
     each_service_fails_and_recovers, a_failure_has_to_be_seen, a_load_has_to_recover,
     figures_of_a_failure,
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
    ok = lists:foreach(fun(PerSecond) ->
        Plan = #{server => Server, text_bytes => 8, per_second => PerSecond, workers => 3,
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
            #{duration_s => 1, server => #{handler => erlmcp_test_broken_fixture}}),
    Sent = Right + Wrong.

%% The first call runs until the client does not wait for it any more.
a_late_answer_is_not_that_of_the_next(_) ->
    Test = self(),
    Calls = counters:new(1, []),
    Echo = fun(#{~"text" := Text}, _) ->
        ok = counters:add(Calls, 1, 1),
        _ = counters:get(Calls, 1) =:= 1 andalso begin
            Test ! {runs, self()},
            receive go_on -> ok end
        end,
        Text
    end,
    {ok, Server} = erlmcp:start_server(#{
        name => ~"late", version => ~"1", limits => #{call_timeout_ms => 2_000},
        tools => [#{name => ~"echo", input_schema => #{text => string}, timeout_ms => 60_000,
                    handler => Echo}]}),
    {Client, Monitor} = spawn_monitor(fun() ->
        {timeout, Late} = erlmcp_bench_requests:call(1, erlmcp_bench_requests:new(Server, 8)),
        Test ! timed_out,
        receive go_on -> ok end,
        {answered, Next} = erlmcp_bench_requests:call(2, Late),
        {answered, Last} = erlmcp_bench_requests:call(3, Next),
        ok = erlmcp_bench_requests:close(Last)
    end),
    Call = receive {runs, Pid} -> Pid end,
    receive timed_out -> ok end,
    Ended = monitor(process, Call),
    Call ! go_on,
    receive {'DOWN', Ended, process, Call, _} -> ok end,
    Client ! go_on,
    receive {'DOWN', Monitor, process, Client, Reason} -> normal = Reason end,
    ok = erlmcp:stop_server(Server).

%% The reason is found before its processes start, and by one of them.
a_server_that_cannot_start_fails_it(_) ->
    {ok, Taken} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}]),
    {ok, Port} = inet:port(Taken),
    {links, Links} = process_info(self(), links),
    [?assertMatch({error, #{failures := [{~"stress_30s_100k_ops", {no_server, Reason}}],
                            results := []}},
                  erlmcp_bench_stress:run_workload(~"stress_30s_100k_ops", #{server => Server}))
     || {Server, Reason} <- [
        {#{listen => [{tcp, #{port => Port, ip => {127, 0, 0, 1}}}]}, {listen, tcp, eaddrinuse}},
        {#{limits => #{depth => 0}},
         {bad_option, {limits, depth}, ~"a positive integer"}}]],
    {links, Links} = process_info(self(), links),
    ok = gen_tcp:close(Taken).

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
    %% How much is sampled depends on how busy the machine is.
    true = Major > 100 andalso Sampled > 0 orelse error({Major, Sampled}),
    true = Longest > 0 andalso Part > 0 andalso Part =< 100.

%% Requests fail only without the whole server: no other service is asked by a request.
each_service_fails_and_recovers(_) ->
    ok = lists:foreach(fun(Service) ->
        #{~"workload_id" := Id, ~"failed_count" := Failed, ~"failure" := Failure} = Result =
            recovered(Service, [1, 4, 4, 4]),
        ok = erlmcp_metrology_validator:validate(Result),
        Id = <<"stress_30s_100k_ops_fail_", (atom_to_binary(Service))/binary>>,
        #{~"at_s" := 1, ~"killed_processes" := 1, ~"restarted_ms" := Restarted,
          ~"errors_count" := Errors, ~"first_good_ms" := Good, ~"recovery_ms" := Recovered,
          ~"earlier_p99_us" := _} = Failure,
        true = Restarted > 0 andalso Good > 0 andalso Recovered >= 1 orelse error(Failure),
        true = Failed =< Errors andalso (Failed > 0) =:= (Service =:= server)
            orelse error({Service, Failed, Failure})
    end, erlmcp_bench_failure:services()).

%% A machine that is slower after the failure than before it does not let the load be as quick as
%% before. One that stands still in the middle leaves no time for the failure. Each run has another
%% number of seconds for that.
recovered(Service, [Seconds | Others]) ->
    case failing(#{fail => {Service, 1}, duration_s => 1 + Seconds}) of
        {ok, [Result]} ->
            Result;
        {error, #{failures := [{_, {Late, Service}}]}} when Others =/= [] ->
            true = lists:member(Late, [unseen, not_restarted, not_recovered]),
            recovered(Service, Others)
    end.

failing(Options) ->
    erlmcp_bench_stress:run_workload(
        #{id => ~"stress_30s_100k_ops", target_ops_per_s => 1_000, workers => 5},
        maps:merge(#{duration_s => 2}, Options)).

%% Nothing is killed, or too late.
a_failure_has_to_be_seen(_) ->
    [begin
         {error, #{failures := [{~"stress_30s_100k_ops", {unseen, server}}],
                   results := [#{~"failure" := #{~"killed_processes" := 0} = Failure}]}} =
             failing(Options#{duration_s => 0.6}),
         false = is_map_key(~"first_good_ms", Failure)
     end || Options <- [#{fail => {server, 0.2}, kill => fun(_) -> ok end},
                        #{fail => {server, 5}}]],
    {error, #{failures := [{~"stress_uncapped", fail_needs_a_target}], results := []}} =
        erlmcp_bench_stress:run_workload(~"stress_uncapped", #{fail => {server, 1}}).

%% The server runs again, and the hundred answers do not come before the end: fewer are due.
a_load_has_to_recover(_) ->
    {error, #{failures := [{~"stress_30s_100k_ops", {not_recovered, server}}],
              results := [#{~"failure" := #{~"killed_processes" := 1, ~"restarted_ms" := _}}]}} =
        erlmcp_bench_stress:run_workload(
            #{id => ~"stress_30s_100k_ops", target_ops_per_s => 25, workers => 5},
            #{duration_s => 3.5, fail => {server, 0.5}}).

%% Requests after a failure before which 99 of 100 took 1,000 us: 1,200 us are as quick.
figures_of_a_failure(_) ->
    Figures = fun(SeenAfterMs, Requests) ->
        Recovery = erlmcp_bench_recovery:new(),
        Early = erlang:monotonic_time(nanosecond),
        ok = erlmcp_bench_recovery:ended(no_server, 10, Early, Early, Recovery),
        Failed = erlmcp_bench_recovery:failed(1_000, Recovery),
        ok = erlmcp_bench_recovery:seen(Recovery),
        _ = [erlmcp_bench_recovery:ended(Outcome, Us, Failed + (Ms - SeenAfterMs) * 1_000_000,
                                         Failed + Ms * 1_000_000, Recovery)
             || {Ms, Outcome, Us, Count} <- Requests, _ <- lists:seq(1, Count)],
        erlmcp_bench_recovery:figures(Recovery)
    end,
    #{errors := 3, unanswered := 2, recovery_ms := 701, first_good_ms := 500.0} =
        Figures(0, [{100, no_server, 10, 1}, {200, timeout, 10, 1}, {300, {refused, 1056}, 10, 1},
                    {500, answered, 5_000, 2}, {700, answered, 1_200, 99},
                    {800, answered, 1_201, 1}]),
    %% With two slow ones of a hundred it has not recovered, nor with 99 requests.
    [not_yet = maps:get(recovery_ms, Figures(0, Requests), not_yet)
     || Requests <- [[{7, answered, 1_200, 98}, {8, answered, 1_201, 2}],
                     [{7, answered, 1_200, 99}]]],
    %% An error begins the count again.
    #{recovery_ms := 31} = Figures(0, [{7, answered, 100, 200}, {29, no_server, 10, 1},
                                       {30, answered, 100, 200}]),
    %% A request that was sent before the failure was seen may be answered by the old server.
    false = is_map_key(first_good_ms, Figures(10, [{5, answered, 100, 200}])),
    %% After a minute nothing counts.
    #{errors := 1} = Figures(0, [{59_990, no_server, 10, 1}, {60_001, no_server, 10, 1}]).

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
