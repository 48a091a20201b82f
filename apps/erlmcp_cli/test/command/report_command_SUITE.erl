-module(report_command_SUITE).
-moduledoc "`erlmcp report`: the page, what it says on the way, and how it ends.".

-import(erlmcp_test_program, [main/1, one_line/1]).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_folder_becomes_a_page/1, an_invalid_file_exits_3/1, no_folder_exits_1/1,
         wrong_use_exits_2/1, pages_are_made_of_baselines/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_folder_becomes_a_page, an_invalid_file_exits_3, no_folder_exits_1, wrong_use_exits_2,
     pages_are_made_of_baselines].

init_per_suite(Config) ->
    {ok, _} = erlmcp_bench_uplot:read(),
    Config.

end_per_suite(_) -> ok.

a_folder_becomes_a_page(Config) ->
    Folder = folder("report_results", Config),
    {ok, _} = erlmcp_bench_result:write(result(), Folder),
    {0, Out, ""} = main(["report", Folder]),
    File = filename:join(Folder, "report.html"),
    Line = File ++ ": 1 figures of 1 results\n",
    Line = Out,
    {ok, <<"<!doctype html>", _/binary>>} = file:read_file(File),
    Other = filename:join(Folder, "other.html"),
    {0, _, ""} = main(["report", "--output", Other, Folder]),
    {ok, Same} = file:read_file(File),
    {ok, Same} = file:read_file(Other).

an_invalid_file_exits_3(Config) ->
    Folder = folder("invalid", Config),
    ok = file:write_file(filename:join(Folder, "bad\e[31m.json"), ~"{\"latency\": 1}"),
    {ok, _} = erlmcp_bench_result:write(result(), Folder),
    {3, _, Why} = main(["report", Folder]),
    one_line(Why),
    %% The name of a file does not control the terminal.
    nomatch = string:find(Why, "\e").

no_folder_exits_1(Config) ->
    {1, "", Why} = main(["report", filename:join(proplists:get_value(priv_dir, Config), "none")]),
    one_line(Why).

wrong_use_exits_2(Config) ->
    Folder = folder("empty", Config),
    [{2, "", [_ | _]} = main(["report" | Arguments])
     || Arguments <- [[], ["--page", "other", Folder], ["--page", "performance", Folder],
                      [Folder, "more"]]].

pages_are_made_of_baselines(Config) ->
    Folder = folder("baselines", Config),
    Out = filename:join(Folder, "page.md"),
    {0, _, ""} = main(["report", Folder, "--page", "performance", "--output", Out]),
    {ok, <<"# Performance\n", _/binary>>} = file:read_file(Out),
    {1, "", Why} = main(["report", Folder, "--page", "capacity", "--output", Out]),
    one_line(Why),
    ok = file:write_file(filename:join(Folder, "bad.json"), ~"{}"),
    {1, "", _} = main(["report", Folder, "--page", "performance", "--output", Out]).

result() ->
    erlmcp_bench_result:new(#{workload_id => ~"some_load", benchmark => ~"load",
                              transport => http1, scope => per_node, duration_s => 10,
                              sample_count => 100, command_line => ~"erlmcp load",
                              latency_histogram_us => [[100, 90], [200, 10]]}).

folder(Name, Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), Name),
    ok = filelib:ensure_path(Folder),
    Folder.
