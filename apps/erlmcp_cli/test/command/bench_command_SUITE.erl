-module(bench_command_SUITE).
-moduledoc "`erlmcp bench`, run in this node.".

-import(erlmcp_test_program, [main/1]).

-export([suite/0, all/0]).
-export([workloads_are_listed/1, results_are_files/1, figures_stand_beside_their_marks/1,
         a_failure_is_shown/1, wrong_use_exits_2/1, what_fails_exits_1/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [workloads_are_listed, results_are_files, figures_stand_beside_their_marks, a_failure_is_shown,
     wrong_use_exits_2, what_fails_exits_1].

workloads_are_listed(_) ->
    {0, Out, ""} = main(["bench"]),
    [{match, _} = re:run(Out, ["^", Id, " +", atom_to_list(Benchmark), ": "], [multiline])
     || #{id := Id, benchmark := Benchmark} <- erlmcp_bench_workloads:all()].

results_are_files(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "bench_results"),
    {0, Out, Stderr} = main(["bench", "core_ops_1k", "--json", Folder]),
    {match, _} = re:run(Stderr, "1/1 core_ops_1k"),
    {ok, Results} = erlmcp_bench_result:read_all([Folder]),
    13 = length(Results),
    [{match, _} = re:run(Out, ["^", Id, " "], [multiline])
     || #{~"workload_id" := Id} <- Results].

figures_stand_beside_their_marks(_) ->
    {0, Out, _} = main(["bench", "core_ops_1k"]),
    {match, _} = re:run(Out, "^core_ops_1k_registry .* [0-9,]+ \\(553,000\\) .* \\(4\\.80\\) ",
                        [multiline]),
    {match, _} = re:run(Out, "^\\(\\.\\.\\.\\)  published .* without being measured$", [multiline]).

%% A failure that comes after the end was not seen.
a_failure_is_shown(Config) ->
    {Out, Folder} = recovered(Config, ["2", "5", "6", "7"]),
    {match, _} = re:run(Out, "^stress_24hr_10k_ops_fail_server +[0-9,]+", [multiline]),
    {match, _} = re:run(Out, "^ +failure of server at 0\\.8 s: killed processes 1, restarted ms "
                             "[0-9.]+, errors count [0-9,]+, first good ms [0-9.]+, recovery ms "
                             "[0-9,]+, earlier p99 us [0-9,]+$", [multiline]),
    {ok, [#{~"shortened" := true, ~"failure" := #{~"recovery_ms" := _}}]} =
        erlmcp_bench_result:read_all([Folder]),
    {1, _, Why} = main(["bench", "stress_24hr_10k_ops", "--duration", "0.5", "--fail",
                        "server@30"]),
    {match, _} = re:run(Why, "^stress_24hr_10k_ops: the failure was not seen: server was not "
                             "killed$", [multiline]).

%% A machine that is slower after the failure than before it does not let the load be as quick as
%% before. One that stands still in the middle leaves no time for the failure. Each run has more
%% seconds for that.
recovered(Config, [Seconds | Others]) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "failure_" ++ Seconds),
    case main(["bench", "stress_24hr_10k_ops", "--duration", Seconds, "--fail", "server@0.8",
               "--json", Folder]) of
        {0, Out, _} ->
            {Out, Folder};
        {1, _, Why} when Others =/= [] ->
            {match, _} = re:run(Why, "^stress_24hr_10k_ops: (the load did not recover from the "
                                     "failure of server|server did not run again|the failure was "
                                     "not seen: server was not killed)$", [multiline]),
            recovered(Config, Others)
    end.

wrong_use_exits_2(_) ->
    [begin
         {2, "", Why} = main(["bench" | Words]),
         {match, _} = re:run(Why, Pattern, [multiline])
     end || {Pattern, Words} <-
                [{"--fail none@1 is not a service and a second, such as server@10; services: "
                  "server, gate, queue, ", ["stress_24hr_10k_ops", "--fail", "none@1"]},
                 {"--fail server is not", ["stress_24hr_10k_ops", "--fail", "server"]},
                 {"--fail server@0 is not", ["stress_24hr_10k_ops", "--fail", "server@0"]},
                 {"^--fail is for the workloads of stress with a rate",
                  ["stress", "--fail", "server@1"]}]],
    [{2, "", [_ | _]} = main(["bench" | Words])
     || Words <- [["no_such_workload"], ["core_ops_1k", "--duration", "0"],
                  ["core_ops_1k", "--duration", "x"], ["core_ops_1k", "--connections", "0"],
                  ["core_ops_1k", "--against", "http://127.0.0.1:1/mcp"]]].

what_fails_exits_1(Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "file"),
    ok = file:write_file(File, ~""),
    {1, [_ | _], Unwritten} = main(["bench", "core_ops_1k", "--json", File]),
    {match, _} = re:run(Unwritten, ": (file already exists|not a directory)", [multiline]),
    {1, "", Stderr} = main(["bench", "http1_sustained_2k_512b", "--duration", "0.2",
                          "--connections", "2", "--against", "http://127.0.0.1:1/mcp"]),
    {match, _} = re:run(Stderr, "^http1_sustained_2k_512b: \\{open,", [multiline]).
