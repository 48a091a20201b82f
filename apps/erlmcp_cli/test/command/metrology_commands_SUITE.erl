-module(metrology_commands_SUITE).
-moduledoc """
`erlmcp metrology`, `compare` and `baseline`: what they print, and their exit codes; the scripts of
`scripts/bench`, and the page about all of that.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-import(erlmcp_test_program, [main/1, erlmcp/2, run/3, one_line/1]).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([valid_results_exit_0/1, a_violation_exits_3/1, violations_are_json/1,
         a_baseline_is_made_and_compared/1, a_regression_exits_4/1, a_missing_figure_exits_1/1,
         results_that_are_not_valid/1,
         nothing_to_compare_exits_1/1, wrong_use_exits_2/1, scripts_pass_exit_codes_on/1,
         the_page_shows_what_is_printed/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [valid_results_exit_0, a_violation_exits_3, violations_are_json,
     a_baseline_is_made_and_compared, a_regression_exits_4, a_missing_figure_exits_1,
     results_that_are_not_valid,
     nothing_to_compare_exits_1, wrong_use_exits_2, scripts_pass_exit_codes_on,
     the_page_shows_what_is_printed].

init_per_suite(Config) -> erlmcp_test_program:init(Config).

end_per_suite(_) -> ok.

valid_results_exit_0(Config) ->
    Folder = folder(Config),
    [File] = written(Folder, [#{}]),
    Expected = File ++ ": valid\n",
    {0, Expected, ""} = main(["metrology", File]),
    {0, Expected, ""} = main(["metrology", Folder]).

a_violation_exits_3(Config) ->
    Folder = folder(Config),
    _ = written(Folder, [#{}]),
    Broken = filename:join(Folder, "broken.json"),
    ok = file:write_file(Broken, json:encode((result(#{}))#{~"latency_ms" => 5, ~"depth" => 1})),
    %% The program itself, for its status is what a script asks for.
    {3, Out, Why} = erlmcp(["metrology", Folder], Config),
    {match, _} = re:run(Out, "broken.json: /latency_ms: expected .*; latency_p50_us", []),
    {match, _} = re:run(Out, "json: /depth: expected a unit in the name of a number, not 1;"),
    {match, _} = re:run(Out, ": valid\n"),
    "1 of 2 results are not valid\n" = Why,
    {3, _, _} = main(["metrology", filename:join(Folder, "none.json")]),
    {3, "", None} = main(["metrology", folder(Config)]),
    one_line(None).

violations_are_json(Config) ->
    Folder = folder(Config),
    File = filename:join(Folder, "broken.json"),
    ok = file:write_file(File, json:encode((result(#{}))#{~"mem" => 5})),
    {3, Out, _} = main(["metrology", "--json", File]),
    Named = list_to_binary(File),
    #{~"files" := [#{~"file" := Named,
                     ~"violations" := [#{~"place" := ~"/mem", ~"rule" := ~"rejected_name",
                                         ~"expected" := _, ~"suggestion" := _}]}]} =
        json:decode(unicode:characters_to_binary(Out)).

a_baseline_is_made_and_compared(Config) ->
    Folder = folder(Config),
    _ = written(Folder, [p99(Us) || Us <- [3000, 3010, 3020]]),
    Baselines = filename:join(Folder, "baselines"),
    File = filename:join(Baselines, kind() ++ ".json"),
    Made = "tcp_burst_100_1kib tcp: 3 runs\n" ++ File ++ "\n",
    {0, Made, ""} = main(["baseline", Folder, "--output", Baselines]),
    {0, Out, ""} = main(["compare", Folder, File]),
    {match, _} = re:run(Out, "^tcp_burst_100_1kib tcp\n", [multiline]),
    {match, _} = re:run(Out, "^  latency_p99_us +3010 \\+- 20 +3010 +0.0 % +no change$",
                        [multiline]),
    %% Of a folder of baselines, the one of this kind of machine.
    {0, Out, ""} = main(["compare", Folder, Baselines]),
    %% Two runs are too few.
    Two = folder(Config),
    _ = written(Two, [#{}, #{}]),
    {1, "", Why} = main(["baseline", Two, "--output", Baselines]),
    one_line(Why),
    {match, _} = re:run(Why, "2 of at least 3 runs"),
    %% Sources that were changed make only what `bench/stable.sh record` makes.
    Changed = folder(Config),
    #{~"environment" := Environment} = result(#{}),
    _ = written(Changed, lists:duplicate(3, #{
        ~"environment" => Environment#{~"erlmcp_commit" := ~"0123abc-changed"},
        ~"reductions_per_msg" => 700})),
    {1, "", Uncommitted} = main(["baseline", Changed, "--output", Changed ++ "/b"]),
    one_line(Uncommitted),
    {match, _} = re:run(Uncommitted, "not committed.*: 0123abc-changed$"),
    {0, _, ""} = main(["baseline", Changed, "--stable", "--output", Changed ++ "/b"]).

a_regression_exits_4(Config) ->
    Folder = folder(Config),
    _ = written(Folder, [p99(Us) || Us <- [3000, 3010, 3020]]),
    {0, _, ""} = main(["baseline", Folder, "--output", Folder ++ "/b"]),
    Worse = folder(Config),
    _ = written(Worse, [p99(4000)]),
    {4, Out, Why} = erlmcp(["compare", Worse, Folder ++ "/b"], Config),
    {match, _} = re:run(Out, "latency_p99_us +3010 \\+- 20 +4000 +\\+32.9 % +regression\n"),
    ?assertEqual("tcp_burst_100_1kib tcp, latency_p99_us: +32.9 %, a regression\n", Why),
    %% Half of it warns.
    Warned = folder(Config),
    _ = written(Warned, [p99(3400)]),
    {0, Warning, ""} = main(["compare", Warned, Folder ++ "/b"]),
    {match, _} = re:run(Warning, "\\+13.0 % +warning\n"),
    {4, Json, _} = main(["compare", Worse, Folder ++ "/b", "--json"]),
    #{~"findings" := Findings, ~"unknown" := []} =
        json:decode(unicode:characters_to_binary(Json)),
    [~"latency_p99_us"] = [Figure || #{~"verdict" := ~"regression",
                                       ~"figure" := Figure} <- Findings].

%% A fault that did not recover has no time of its recovery.
a_missing_figure_exits_1(Config) ->
    Folder = folder(Config),
    _ = written(Folder, lists:duplicate(3, #{~"recovery_ms" => 40})),
    {0, _, ""} = main(["baseline", Folder, "--output", Folder ++ "/b"]),
    Without = folder(Config),
    _ = written(Without, [#{}]),
    {1, Out, Why} = main(["compare", Without, Folder ++ "/b"]),
    "tcp_burst_100_1kib tcp, recovery_ms: it was not measured in each run\n" = Why,
    {match, _} = re:run(Out, "^  recovery_ms +40 \\+- 0 +- +- +not measured$", [multiline]),
    {1, Json, Why} = main(["compare", Without, Folder ++ "/b", "--json"]),
    #{~"findings" := [_, _ | _]} = json:decode(unicode:characters_to_binary(Json)),
    %% A regression is what the exit code tells first.
    _ = written(Without, [p99(8000)]),
    {4, _, Both} = main(["compare", Without, Folder ++ "/b"]),
    [_, _] = string:lexemes(Both, "\n").

results_that_are_not_valid(Config) ->
    Folder = folder(Config),
    _ = written(Folder, [#{}, #{}, #{}]),
    {0, _, ""} = main(["baseline", Folder, "--output", Folder ++ "/b"]),
    Broken = folder(Config),
    ok = file:write_file(Broken ++ "/broken.json", ~"{}"),
    {3, "", _} = main(["compare", Broken, Folder ++ "/b"]),
    %% The value of a variable that is not set.
    {3, "", Nothing} = main(["compare", "", Folder ++ "/b"]),
    one_line(Nothing),
    {3, "", _} = main(["baseline", Broken, "--output", Broken]).

nothing_to_compare_exits_1(Config) ->
    Folder = folder(Config),
    [File | _] = written(Folder, [#{}, #{}, #{}]),
    {1, "", None} = main(["compare", Folder, Folder ++ "/none"]),
    one_line(None),
    {1, "", NoBaseline} = main(["compare", Folder, File]),
    one_line(NoBaseline),
    {0, _, ""} = main(["baseline", Folder, "--output", Folder ++ "/b"]),
    Other = folder(Config),
    _ = written(Other, [#{~"workload_id" => ~"other"}]),
    {1, "", Unknown} = main(["compare", Other, Folder ++ "/b"]),
    one_line(Unknown),
    _ = written(Other, [#{}]),
    {0, Out, ""} = main(["compare", Other, Folder ++ "/b"]),
    {match, _} = re:run(Out, "^other tcp: not in the baseline$", [multiline]).

wrong_use_exits_2(_) ->
    [?assertMatch({2, "", [_ | _]}, main(Arguments), Arguments)
     || Arguments <- [["metrology"], ["metrology", "--no", "x"], ["compare"], ["compare", "a"],
                      ["compare", "a", "b", "c"], ["baseline"]]].

scripts_pass_exit_codes_on(Config) ->
    Folder = folder(Config),
    _ = written(Folder, [p99(Us) || Us <- [3000, 3010, 3020]]),
    {0, _, ""} = main(["baseline", Folder, "--output", Folder ++ "/b"]),
    Script = fun(Name, Arguments) ->
        run(filename:join([proplists:get_value(root, Config), "scripts", "bench", Name]), Arguments,
            Config)
    end,
    {0, _, ""} = Script("compare_to_baseline.sh", [Folder, Folder ++ "/b"]),
    Worse = folder(Config),
    _ = written(Worse, [p99(4000)]),
    {4, _, _} = Script("compare_to_baseline.sh", [Worse, Folder ++ "/b"]),
    [begin
         {2, "", Why} = Script(Name, Arguments),
         {match, _} = re:run(Why, "^usage: .*/\\Q" ++ Name ++ "\\E ")
     end || {Name, Arguments} <- [
        {"run_all_benchmarks.sh", []}, {"run_all_benchmarks.sh", ["slow"]},
        {"run_all_benchmarks.sh", ["quick", "a", "b"]}, {"run_quick_benchmarks.sh", []},
        {"run_validation_benchmarks.sh", []}, {"run_validation_benchmarks.sh", ["all"]}]].

the_page_shows_what_is_printed(Config) ->
    {ok, Page} = file:read_file(filename:join([proplists:get_value(root, Config), "docs",
                                               "benchmarks.md"])),
    [_, Shown] = binary:split(Page, ~"$ erlmcp metrology result.json\n"),
    [Lines, _] = binary:split(Shown, ~"```"),
    File = filename:join(folder(Config), "result.json"),
    ok = file:write_file(File, json:encode(result(#{~"latency_ms" => 5,
                                                    ~"throughput_msg_per_s" => 2100}))),
    {3, Out, _} = main(["metrology", File]),
    ?assertEqual(unicode:characters_to_list(Lines),
                 lists:flatten(string:replace(Out, File, "result.json", all))).

%% Results of this kind of machine, of a commit whatever the sources are like.
result(Others) ->
    #{~"environment" := Environment} = Result = erlmcp_bench_result:new(#{
        workload_id => ~"tcp_burst_100_1kib", benchmark => network_real, transport => tcp,
        scope => per_node, duration_s => 60, sample_count => 120_000,
        throughput_msg_per_s => 2000, latency_p50_us => 900, latency_p99_us => 3000,
        latency_max_us => 9000}),
    maps:merge(Result#{~"environment" := Environment#{~"erlmcp_commit" := ~"0123abc"}}, Others).

p99(Us) -> #{~"latency_p99_us" => Us}.

kind() -> binary_to_list(erlmcp_bench_environment:kind()).

written(Folder, All) ->
    [begin
         {ok, File} = erlmcp_bench_result:write(result(Others), Folder),
         File
     end || Others <- All].

folder(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config),
                           integer_to_list(erlang:unique_integer([positive]))),
    ok = filelib:ensure_path(Folder),
    Folder.
