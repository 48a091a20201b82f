-module(scenario_command_SUITE).
-moduledoc "`erlmcp scenario`: what is shown while it runs and at its end, and its exit codes.".

-import(erlmcp_test_program, [main/1]).

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_run_is_shown/1, a_fault_that_was_not_run_is_named/1, what_fails_exits_1/1,
         wrong_use_exits_2/1, scenarios_are_listed/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_run_is_shown, a_fault_that_was_not_run_is_named, what_fails_exits_1, wrong_use_exits_2,
     scenarios_are_listed].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Config.

end_per_suite(_) ->
    ok = application:stop(erlmcp_cli).

%% Errors are no failure of this one, so that a busy machine makes none. There a phase is shorter or
%% longer than planned.
a_run_is_shown(Config) ->
    Folder = proplists:get_value(priv_dir, Config),
    {0, Out, Err} = main(["scenario", "message_bombing", "--duration", "2.5", "--profile",
                          "low_load", "--scale", "0.2", "--metrics", "0", "--json", Folder]),
    [{match, _} = re:run(Out, Pattern, [multiline])
     || Pattern <- ["^message_bombing: ", "^2 clients, tcp, 1 node, 2\\.5 s "
                    "\\(shortened: in full it takes 360 s\\); scale 0\\.2$",
                    "^phase +clients +s +msg/s due +answered +p50 +p95 +p99 "
                    "+p99\\.9 +max +deviation +MiB/s in +MiB/s out +overhead % +errors % +zone$",
                    "^peak +2 +[0-9.]+ +20\\.0 +[0-9.]+ .* (green|yellow|orange|red)$",
                    "^phase +s +node +CPU % +memory MiB +at most +received bytes +sent bytes$",
                    "^peak +[0-9.]+ +generator +[0-9.]+ +[0-9.]+ +[0-9.]+ +- +-$",
                    "^peak +[0-9.]+ +node_1 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9,]+ +[0-9,]+$",
                    "^phase +collections +sampled % +minor p95 +major p95 +longest +of p95 %$",
                    "^peak +[0-9,]+ +[0-9.]+ ( +([0-9.]+ (us|ms)|-)){3} +[0-9.]+$",
                    "^backlog at most +at the end +drained after +cooled down after$",
                    "^The generator sent .* late \\(p99\\)\\. Errors: ", "^passed$"]],
    [{match, _} = re:run(Err, Pattern, [multiline])
     || Pattern <- ["^metrics: http://127\\.0\\.0\\.1:[0-9]+/metrics http://127",
                    "^warm up: 2 clients, 0\\.2", "^peak: 2 clients, 2\\.1 s$",
                    "^written: .*\\.json$",
                    "^written: .*\\.jsonl$", "^written: .*_cool_down\\.prom$"]],
    [File] = filelib:wildcard(filename:join(Folder, "scenario_message_bombing_*.json")),
    ok = erlmcp_metrology_validator:validate_file(File),
    {ok, Json} = file:read_file(File),
    #{~"steps" := [#{~"phase" := ~"peak", ~"duration_s" := Peak},
                   #{~"phase" := ~"cool_down", ~"duration_s" := CoolDown}]} = json:decode(Json),
    [?assert(abs(Seconds - shown_seconds(Phase, Out)) < 0.06)
     || {Phase, Seconds} <- [{"peak", Peak}, {"cool down", CoolDown}]],
    %% A file is no folder, and no rule of metrology is broken.
    {1, _, Unwritten} = main(["scenario", "message_bombing", "--duration", "2", "--profile",
                              "low_load", "--scale", "0.2", "--metrics", "0", "--json", File]),
    {match, _} = re:run(Unwritten, ": (file already exists|not a directory)", [multiline]).

shown_seconds(Phase, Out) ->
    {match, [Seconds]} = re:run(Out, ["^", Phase, " +2 +([0-9.]+) "],
                                [multiline, {capture, all_but_first, list}]),
    list_to_float(Seconds).

a_fault_that_was_not_run_is_named(_) ->
    {ok, Outcome} = erlmcp_bench_scenario:run(baseline, #{duration_s => 1, scale => 0.05}),
    [begin
         Shown = unicode:characters_to_list(erlmcp_cli_scenario_text:outcome(
             Outcome#{status := Status, faults := Faults})),
         ?assertEqual(Last, lists:last(string:lexemes(Shown, "\n")))
     end || {Status, Faults, Last} <- [
         {passed, [], "passed"},
         {passed, [#{fault => add_latency, not_run => enoent}], "passed; not run: add latency"},
         {failed, [#{fault => Fault, not_run => enoent} || Fault <- [add_latency, kill_node]],
          "failed; not run: add latency, kill node"}]].

%% A server that is not there, and one that has no such tool.
what_fails_exits_1(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "nothing"),
    {1, "", Why} = main(["scenario", "baseline", "--duration", "2", "--url",
                         "http://127.0.0.1:1/mcp"]),
    {match, _} = re:run(Why, "^the scenario did not end: .*econnrefused.*$",
                        [multiline]),
    {ok, Server} = erlmcp:start_server(#{name => ~"other", version => ~"1",
                                         listen => [{http, #{}}]}),
    [#{url := Url}] = erlmcp:listeners(Server),
    {1, Out, _} = main(["scenario", "baseline", "--duration", "1", "--scale", "0.05", "--url",
                        binary_to_list(Url), "--method", "no/such", "--params", "{}",
                        "--json", Folder]),
    [] = filelib:wildcard(filename:join(Folder, "*")),
    [{match, _} = re:run(Out, Pattern, [multiline])
     || Pattern <- ["^- No request was answered\\.$",
                    "^- The share of errors is in the zone red\\.$", "^refused: .*: [0-9,]+$",
                    "^until +backlog +errors$", "^1(\\.[0-9]+)? s +[0-9]+ +refused .*: [0-9]+$",
                    "^failed$"]],
    ok = erlmcp:stop_server(Server).

wrong_use_exits_2(_) ->
    [begin
         {2, "", Why} = main(["scenario" | Arguments]),
         ?assertNotEqual("", Why)
     end || Arguments <- [[], ["other"], ["baseline", "--duration", "0"],
                          ["baseline", "--duration", "long"], ["baseline", "--scale", "-1"],
                          ["baseline", "--nodes", "0"], ["baseline", "--profile", "other"],
                          ["baseline", "--nodes", "1", "--url", "http://127.0.0.1:1/mcp"],
                          ["baseline", "--params", "{}"],
                          ["baseline", "--era", "2026-07-28"],
                          ["baseline", "--method", "ping", "--params", "1"],
                          ["chaos", "--url", "http://127.0.0.1:1/mcp"]]].

scenarios_are_listed(_) ->
    {0, Out, ""} = main(["help", "scenario"]),
    [{match, _} = re:run(Out, atom_to_list(Name))
     || Name <- [Name || #{name := Name} <- erlmcp_bench_scenarios:all()]
            ++ [Name || {Name, _} <- erlmcp_bench_profile:all()]].
