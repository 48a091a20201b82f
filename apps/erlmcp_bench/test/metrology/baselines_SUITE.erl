-module(baselines_SUITE).
-moduledoc "Tests for baselines, and for the comparison of results with them.".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([a_baseline_keeps_its_runs/1, a_baseline_has_the_day_of_its_last_run/1,
         three_runs_at_least/1, a_figure_may_be_zero_in_a_run/1, one_long_run_is_enough/1,
         what_does_not_belong_together/1,
         sources_are_committed_unless_stable/1, failed_runs_are_refused_or_marked/1,
         a_new_baseline_keeps_other_workloads/1, no_baselines/1,
         bounds_of_what_is_worse/1, within_the_spread_nothing_changed/1,
         several_results_are_their_median/1, only_what_is_newest_counts/1,
         nested_figures_are_judged/1,
         what_cannot_be_compared/1, medians/1]).

-import(erlmcp_test_results, [folder/1, valid/0, valid/1, environment/0]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_baseline_keeps_its_runs, a_baseline_has_the_day_of_its_last_run,
     three_runs_at_least, a_figure_may_be_zero_in_a_run, one_long_run_is_enough,
     what_does_not_belong_together,
     sources_are_committed_unless_stable, failed_runs_are_refused_or_marked,
     a_new_baseline_keeps_other_workloads, no_baselines,
     bounds_of_what_is_worse, within_the_spread_nothing_changed,
     several_results_are_their_median, only_what_is_newest_counts,
     nested_figures_are_judged,
     what_cannot_be_compared, medians].

a_baseline_keeps_its_runs(Config) ->
    Folder = folder(Config),
    {ok, Baseline} = erlmcp_bench_baseline:make([written(Folder, [valid(p99(Us))
                                                                  || Us <- [3100, 3000, 3050]])]),
    {ok, File} = erlmcp_bench_baseline:write(Baseline, filename:join(Folder, "baselines")),
    ?assertEqual("2-core-x86_64.json", filename:basename(File)),
    {ok, Read} = erlmcp_bench_baseline:read(File),
    ?assertEqual(Baseline, Read),
    #{~"kind" := ~"2-core-x86_64",
      ~"workloads" := [#{~"workload_id" := ~"tcp_burst_100_1kib", ~"transport" := ~"tcp",
                         ~"runs_count" := 3, ~"environment" := #{~"otp" := ~"29"},
                         ~"figures" := Figures}]} = Read,
    #{~"latency_p99_us" := #{~"median" := 3050, ~"min" := 3000, ~"max" := 3100,
                             ~"values" := [3100, 3000, 3050]},
      ~"sample_count" := #{~"median" := 120_000}} = Figures,
    false = is_map_key(~"lost_count", Figures).

a_baseline_has_the_day_of_its_last_run(Config) ->
    Runs = [valid(#{~"timestamp" => At})
            || At <- [~"2026-11-18T23:59:59Z", ~"2026-11-20T00:00:00Z", ~"2026-11-19T12:00:00Z"]],
    {ok, #{~"workloads" := [#{~"measured_on" := ~"2026-11-20"}]}} = made(Config, Runs).

three_runs_at_least(Config) ->
    Folder = folder(Config),
    Two = written(Folder, [valid(), valid()]),
    {error, {too_few_runs, [{~"tcp_burst_100_1kib tcp", 2}]} = Reason} =
        erlmcp_bench_baseline:make([Two]),
    ~"tcp_burst_100_1kib tcp: 2 of at least 3 runs" =
        unicode:characters_to_binary(erlmcp_bench_baseline:format_error(Reason)),
    %% Of each workload: those of another number of connections are others.
    _ = written(Folder, [valid(#{~"connections" => 10})]),
    {error, {too_few_runs, [_, _]}} = erlmcp_bench_baseline:make([Two]),
    _ = written(Folder, [valid()]),
    {error, {too_few_runs, [{~"tcp_burst_100_1kib tcp connections=10", 1}]}} =
        erlmcp_bench_baseline:make([Two]).

%% Refusals of two runs are not forgotten because of the third.
a_figure_may_be_zero_in_a_run(Config) ->
    Made = fun(Percents) ->
        {ok, #{~"workloads" := [#{~"figures" := Figures}]}} =
            made(Config, [valid(#{~"refused_percent" => Percent}) || Percent <- Percents]),
        maps:get(~"refused_percent", Figures, none)
    end,
    #{~"median" := 5, ~"min" := 0, ~"max" := 7} = Made([5, 0, 7]),
    none = Made([0, 7, 0]),
    {ok, #{~"workloads" := [#{~"figures" := Lacking}]}} =
        made(Config, [valid(#{~"refused_percent" => 5}), valid(#{~"refused_percent" => 5}),
                      valid()]),
    false = is_map_key(~"refused_percent", Lacking).

%% A long run has seen more than three short ones.
one_long_run_is_enough(Config) ->
    {error, {too_few_runs, [{_, 1}]}} = made(Config, [lasting(1_799.9)]),
    {ok, #{~"workloads" := [#{~"runs_count" := 1}]}} = made(Config, [lasting(1_800.0)]),
    {error, {too_few_runs, [{_, 2}]}} = made(Config, [lasting(1_800.0), lasting(60.0)]).

lasting(Seconds) ->
    valid(#{~"duration_s" => Seconds, ~"throughput_msg_per_s" => 120_000 / Seconds}).

what_does_not_belong_together(Config) ->
    Other = fun(Name, Value) -> valid(#{~"environment" => (environment())#{Name := Value}}) end,
    {error, {several_kinds, [~"2-core-x86_64", ~"4-core-x86_64"]}} =
        made(Config, [valid(), valid(), Other(~"cores", 4)]),
    {error, {several_commits, [{_, [~"0123abc", ~"fed"]}]}} =
        made(Config, [valid(), valid(), Other(~"erlmcp_commit", ~"fed")]),
    %% A kind becomes the name of a file.
    [?assertMatch({ok, #{~"kind" := ~"2-core-unknown"}},
                  made(Config, lists:duplicate(3, Other(~"architecture", Architecture))),
                  Architecture)
     || Architecture <- [true, ~"", ~"../x86_64", ~"x86/64", ~"x86_64\n"]],
    Folder = folder(Config),
    {error, {no_results, [Folder]}} = erlmcp_bench_baseline:make([Folder]),
    Broken = filename:join(Folder, "broken.json"),
    ok = file:write_file(Broken, ~"{"),
    {error, {invalid, [{Broken, [#{place := ~""}]}]}} = erlmcp_bench_baseline:make([Folder]).

%% Runs with the same changed or unknown commit may be of different sources.
sources_are_committed_unless_stable(Config) ->
    [begin
         Folder = written(folder(Config), lists:duplicate(3, valid(#{
             ~"environment" => (environment())#{~"erlmcp_commit" := Commit},
             ~"reductions_per_msg" => 700}))),
         {error, {not_committed, [{~"tcp_burst_100_1kib tcp", Commit}]} = Reason} =
             erlmcp_bench_baseline:make([Folder]),
         Text = unicode:characters_to_list(erlmcp_bench_baseline:format_error(Reason)),
         ?assertEqual("tcp_burst_100_1kib tcp: its sources had changes that were not committed, "
                      "or their commit is not known: " ++ binary_to_list(Commit), Text),
         {ok, #{~"workloads" := [#{~"figures" := Figures}]}} =
             erlmcp_bench_baseline:stable([Folder]),
         ?assertEqual([~"reductions_per_msg"], maps:keys(Figures))
     end || Commit <- [~"0123abc-changed", ~"unknown"]].

%% A fault has to pass each time. The figures of a scenario are wanted in any case.
failed_runs_are_refused_or_marked(Config) ->
    Runs = fun(Benchmark, Statuses) ->
        made(Config, [valid(#{~"benchmark" => Benchmark, ~"status" => Status})
                      || Status <- Statuses])
    end,
    Passed = [~"passed", ~"passed", ~"passed"],
    Failed = [~"passed", ~"failed", ~"passed"],
    {error, {failed_faults, [{~"tcp_burst_100_1kib tcp", 1, 3}]} = Reason} =
        Runs(~"chaos", Failed),
    ~"tcp_burst_100_1kib tcp: 1 of 3 runs have failed" =
        unicode:characters_to_binary(erlmcp_bench_baseline:format_error(Reason)),
    {ok, #{~"workloads" := [#{~"status" := ~"failed", ~"runs_count" := 3}]}} =
        Runs(~"scenario", Failed),
    [begin
         {ok, #{~"workloads" := [Workload]}} = Runs(Benchmark, Passed),
         false = is_map_key(~"status", Workload)
     end || Benchmark <- [~"chaos", ~"scenario"]].

a_new_baseline_keeps_other_workloads(Config) ->
    Folder = folder(Config),
    Write = fun(Result) ->
        {ok, Baseline} = made(Config, lists:duplicate(3, Result)),
        {ok, File} = erlmcp_bench_baseline:write(Baseline, Folder),
        {ok, #{~"workloads" := Workloads}} = erlmcp_bench_baseline:read(File),
        [{Id, Median} || #{~"workload_id" := Id,
                           ~"figures" := #{~"latency_p99_us" := #{~"median" := Median}}}
                             <- Workloads]
    end,
    First = valid((p99(3000))#{~"workload_id" => ~"first"}),
    [{~"first", 3000}] = Write(First),
    [{~"first", 3000}, {~"second", 4000}] = Write(valid((p99(4000))#{~"workload_id" => ~"second"})),
    [{~"first", 5000}, {~"second", 4000}] = Write(maps:merge(First, p99(5000))).

no_baselines(Config) ->
    File = filename:join(folder(Config), "b.json"),
    {error, {enoent, File}} = erlmcp_bench_baseline:read(File),
    [begin
         ok = file:write_file(File, Bytes),
         ?assertEqual({error, {no_baseline, File}}, erlmcp_bench_baseline:read(File), Bytes)
     end || Bytes <- [~"", ~"[]", ~"{\"kind\": \"x\"}",
                      ~B({"kind": "x", "workloads": [{}]}),
                      ~B({"kind": 2, "workloads": []}),
                      json:encode(valid())]],
    %% No machine has the memory for a file of 1 TiB, which has holes here.
    {ok, Device} = file:open(File, [write, raw]),
    {ok, _} = file:position(Device, 1 bsl 40),
    ok = file:truncate(Device),
    ok = file:close(Device),
    ?assertEqual({error, {no_baseline, File}}, erlmcp_bench_baseline:read(File)),
    ok = file:delete(File),
    %% A file that is no baseline is not overwritten.
    Kind = filename:join(filename:dirname(File), "2-core-x86_64.json"),
    ok = file:write_file(Kind, ~"[]"),
    {ok, Baseline} = made(Config, lists:duplicate(3, valid())),
    {error, {no_baseline, Kind}} = erlmcp_bench_baseline:write(Baseline, filename:dirname(Kind)).

%% Each bound where it begins, and a little before.
bounds_of_what_is_worse(Config) ->
    Steady = #{~"throughput_msg_per_s" => 2000.0, ~"latency_p99_us" => 1000,
               ~"latency_p999_us" => 9000, ~"latency_p50_us" => 100, ~"latency_p95_us" => 200,
               ~"memory_rss_mib_per_node" => 100, ~"detection_ms" => 100, ~"recovery_ms" => 100},
    {ok, Baseline} = made(Config, lists:duplicate(3, valid(Steady))),
    [begin
         Samples = case Name of
             ~"throughput_msg_per_s" -> #{~"sample_count" => round(Value * 60)};
             _ -> #{}
         end,
         Result = valid(maps:merge(Steady#{Name := Value}, Samples)),
         {ok, #{findings := Findings, unknown := []}} =
             erlmcp_bench_compare:compare([Result], Baseline),
         ?assertEqual(5, length(Findings)),
         ?assertEqual([{Name, Verdict}], [{Figure, Found} || #{figure := Figure, verdict := Found}
                                                                <- Findings, Figure =:= Name],
                      {Name, Value}),
         Others = [Found || #{figure := Figure, verdict := Found} <- Findings, Figure =/= Name],
         ?assertEqual(lists:duplicate(4, no_change), Others)
     end || {Name, Verdict, Value} <- [
        {~"throughput_msg_per_s", regression, 1800}, {~"throughput_msg_per_s", regression, 900},
        {~"throughput_msg_per_s", warning, 1801}, {~"throughput_msg_per_s", warning, 1900},
        {~"throughput_msg_per_s", worse, 1901}, {~"throughput_msg_per_s", no_change, 2000},
        {~"throughput_msg_per_s", better, 2001},
        {~"latency_p99_us", regression, 1200}, {~"latency_p99_us", warning, 1199},
        {~"latency_p99_us", warning, 1100}, {~"latency_p99_us", worse, 1099},
        {~"latency_p99_us", no_change, 1000}, {~"latency_p99_us", better, 500},
        {~"memory_rss_mib_per_node", regression, 150}, {~"memory_rss_mib_per_node", warning, 125},
        {~"memory_rss_mib_per_node", worse, 124}, {~"memory_rss_mib_per_node", better, 20},
        {~"detection_ms", regression, 200}, {~"detection_ms", warning, 150},
        {~"detection_ms", worse, 149}, {~"detection_ms", better, 1},
        {~"recovery_ms", regression, 200}, {~"recovery_ms", warning, 150},
        {~"recovery_ms", worse, 149}, {~"recovery_ms", better, 1}]].

within_the_spread_nothing_changed(Config) ->
    %% The runs are 700 apart, more than the fifth that is a regression.
    {ok, Baseline} = made(Config, [valid(p99(Us)) || Us <- [2700, 3000, 3400]]),
    Verdict = fun(Us) ->
        {ok, #{findings := Findings}} = erlmcp_bench_compare:compare([valid(p99(Us))], Baseline),
        [Finding] = [Finding || #{figure := ~"latency_p99_us"} = Finding <- Findings],
        #{baseline := 3000, spread := 700, came := Us} = Finding,
        map_get(verdict, Finding)
    end,
    no_change = Verdict(3700),
    no_change = Verdict(2300),
    regression = Verdict(3701),
    better = Verdict(2299).

several_results_are_their_median(Config) ->
    {ok, Baseline} = made(Config, lists:duplicate(3, valid(p99(3000)))),
    {ok, #{findings := Findings}} =
        erlmcp_bench_compare:compare([valid(p99(Us)) || Us <- [9000, 3000, 3100]], Baseline),
    [{3100, worse}] = [{Came, Verdict} || #{figure := ~"latency_p99_us", came := Came,
                                            verdict := Verdict} <- Findings],
    worse = erlmcp_bench_compare:worst(Findings).

only_what_is_newest_counts(Config) ->
    {ok, Baseline} = made(Config, lists:duplicate(3, valid(p99(3000)))),
    Came = fun(Results) ->
        {ok, #{findings := Findings}} = erlmcp_bench_compare:compare(Results, Baseline),
        [Us] = [Us || #{figure := ~"latency_p99_us", came := Us} <- Findings],
        Us
    end,
    Run = fun(Us, Day, Commit) ->
        valid((p99(Us))#{~"timestamp" => <<"2026-11-", Day/binary, "T12:00:00Z">>,
                         ~"environment" => (environment())#{~"erlmcp_commit" := Commit}})
    end,
    Older = [Run(1000, ~"20", ~"0a"), Run(1001, ~"20", ~"0a"), Run(1002, ~"20", ~"0a")],
    9000 = Came([Run(9000, ~"21", ~"0b") | Older]),
    8500.0 = Came([Run(9000, ~"21", ~"0b") | Older] ++ [Run(8000, ~"22", ~"0b")]),
    1001 = Came([Run(9000, ~"19", ~"0b") | Older]),
    8000 = Came([Run(8000, ~"22", ~"0a-changed"), Run(1000, ~"21", ~"0a-changed") | Older]).

nested_figures_are_judged(Config) ->
    Of = fun(Us) -> valid(#{~"phases" => #{~"peak" => p99(Us)},
                            ~"series" => [p99(Us)], ~"steps" => #{}}) end,
    {ok, Baseline} = made(Config, lists:duplicate(3, Of(3000))),
    {ok, #{findings := Findings}} = erlmcp_bench_compare:compare([Of(6000)], Baseline),
    [~"phases/peak/latency_p99_us"] =
        [Figure || #{figure := Figure, verdict := regression, change_percent := 100.0} <- Findings],
    %% A missing figure is reported, and also one that only some of the runs have.
    [begin
         {ok, #{findings := Missing}} = erlmcp_bench_compare:compare(Results, Baseline),
         ?assertEqual([~"phases/peak/latency_p99_us"],
                      [Figure || #{figure := Figure, verdict := not_measured} <- Missing]),
         not_measured = erlmcp_bench_compare:worst(Missing)
     end || Results <- [[valid()], [Of(3000), valid()]]].

what_cannot_be_compared(Config) ->
    {ok, Baseline} = made(Config, lists:duplicate(3, valid())),
    Other = valid(#{~"against" => ~"http://127.0.0.1:1/mcp"}),
    {error, nothing_to_compare} = erlmcp_bench_compare:compare([Other], Baseline),
    {ok, #{unknown := [#{~"against" := ~"http://127.0.0.1:1/mcp"}]}} =
        erlmcp_bench_compare:compare([Other, valid()], Baseline),
    %% A run that was made shorter is not what the whole one is.
    Shorter = valid(#{~"shortened" => true}),
    [?assertEqual({error, nothing_to_compare}, erlmcp_bench_compare:compare([Another], Baseline),
                  Another)
     || Another <- [Shorter | [valid(#{Name => 3}) || Name <- [~"connections", ~"workers",
                                                               ~"clients", ~"nodes"]]]],
    ~"tcp_burst_100_1kib tcp shortened" =
        unicode:characters_to_binary(erlmcp_bench_result:label(Shorter)),
    Larger = valid(#{~"environment" => (environment())#{~"cores" := 4}}),
    {error, {other_machine, ~"2-core-x86_64", [~"4-core-x86_64"]}} =
        erlmcp_bench_compare:compare([Larger], Baseline),
    {error, {other_machine, _, [_, _]}} = erlmcp_bench_compare:compare([Larger, valid()], Baseline),
    Folder = folder(Config),
    {error, {no_results, [Folder]}} = erlmcp_bench_compare:compare(Folder, Baseline).

medians(_) ->
    [?assertEqual(Median, erlmcp_bench_compare:median(Values), Values)
     || {Median, Values} <- [{1, [1]}, {1.5, [2, 1]}, {2, [3, 1, 2]}, {2.5, [4, 1, 3, 2]}]].

p99(Us) -> #{~"latency_p99_us" => Us, ~"latency_p999_us" => 9000, ~"latency_p95_us" => 900}.

made(Config, Results) -> erlmcp_bench_baseline:make([written(folder(Config), Results)]).

written(Folder, Results) ->
    [{ok, _} = erlmcp_bench_result:write(Result, Folder) || Result <- Results],
    Folder.
