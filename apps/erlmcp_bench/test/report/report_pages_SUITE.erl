-module(report_pages_SUITE).
-moduledoc """
Reports of folders: what is in the files is in the page, as text and nothing else, and the page
loads nothing. The pages of the documentation are what the baselines make.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([the_page_loads_nothing/1, hostile_strings_stay_text/1, an_invalid_file_is_told/1,
         figures_have_files_behind_them/1, distributions_are_those_of_the_files/1,
         what_is_offered_stands_beside_what_is_answered/1, errors_stand_by_kind_and_window/1,
         backlogs_stand_over_time/1, every_plot_has_a_table/1, lists_are_counted/1,
         nothing_is_a_page_too/1, there_is_no_such_folder/1, models_are_marked/1,
         numbers_are_readable/1, the_performance_page_is_the_baselines/1,
         the_capacity_page_has_the_model/1, marks_are_judged/1, shortened_runs_have_no_mark/1,
         faults_have_their_times_and_bounds/1, figures_have_a_length_a_source_and_an_age/1,
         ages_are_checked/1, hostile_baselines_stay_text/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [the_page_loads_nothing, hostile_strings_stay_text, an_invalid_file_is_told,
     figures_have_files_behind_them, distributions_are_those_of_the_files,
     what_is_offered_stands_beside_what_is_answered, errors_stand_by_kind_and_window,
     backlogs_stand_over_time, every_plot_has_a_table, lists_are_counted,
     nothing_is_a_page_too, there_is_no_such_folder, models_are_marked, numbers_are_readable,
     the_performance_page_is_the_baselines, the_capacity_page_has_the_model, marks_are_judged,
     shortened_runs_have_no_mark, faults_have_their_times_and_bounds,
     figures_have_a_length_a_source_and_an_age, ages_are_checked, hostile_baselines_stay_text].

init_per_suite(Config) ->
    %% Fetched once, where this machine has not had it.
    {ok, _} = erlmcp_bench_uplot:read(),
    Config.

end_per_suite(_) -> ok.

init_per_testcase(Case, Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), atom_to_list(Case)),
    ok = filelib:ensure_path(Folder),
    [{folder, Folder} | Config].

end_per_testcase(_, _) -> ok.

%% The page.

the_page_loads_nothing(Config) ->
    Page = page(results(), Config),
    %% All that an element could load from, and the style sheet.
    [] = found(Page, "<(img|iframe|object|embed|audio|video|source|form|base|link)\\b"
                     "(?! rel=\"icon\" href=\"data:,\">)"),
    [] = found(Page, "\\b(src|srcset|action|poster|data|ping|background)\\s*=\\s*[\"']"),
    [] = [Href || Href <- found(Page, "href=\"[^\"]*\""),
                  match =:= re:run(Href, "^href=\"(?!#|data:,)", [{capture, none}])],
    [Style] = found(Page, "<style>.*?</style>"),
    [] = found(Style, "@import|url\\("),
    %% And no script can: the browser is told so.
    [Policy] = found(Page, "Content-Security-Policy\" content=\"[^\"]*\""),
    {match, _} = re:run(Policy, "default-src 'none'"),
    [] = found(Policy, "unsafe|https?:|\\*|connect-src|font-src|frame-src"),
    %% It names the scripts that are there by what is in them, and the style.
    Scripts = [Script || Script <- elements(~"<script>", ~"</script>", Page)],
    [_, _] = Scripts,
    [StyleText] = elements(~"<style>", ~"</style>", Page),
    [{match, _} = re:run(Policy, "'sha256-\\Q" ++ base64:encode_to_string(crypto:hash(sha256, Text))
                                 ++ "\\E'")
     || Text <- [StyleText | Scripts]].

hostile_strings_stay_text(Config) ->
    Evil = ~"</script><script>alert(1)</script><img src=x onerror='alert(2)'>\"&\x{202e}\e[31m",
    Result = result(~"evil_workload", #{~"era" => Evil,
                                        ~"seconds" => [#{~"at_s" => 1, Evil => Evil}],
                                        ~"facts" => #{Evil => #{Evil => Evil}}}),
    #{~"environment" := Environment} = Result,
    Hostile = Result#{~"environment" := Environment#{~"command_line" := Evil, ~"cpu" => Evil,
                                                     ~"kernel" := Evil, ~"erlmcp_commit" := Evil}},
    Name = "x\"><script>alert(3)<\\script>.json",
    %% Two of one name are told apart by their files, in the figure too.
    Twice = Hostile#{~"latency_histogram_us" => [[100, 10]]},
    Page = page([{Name, Twice}, {~"other.json", Twice}], Config),
    [] = found(Page, "<script>alert|<img|onerror='|\\x{202e}|\\x{1b}"),
    %% Two scripts run, and one is data; no more than these.
    3 = length(found(Page, "<script")),
    3 = length(found(Page, "</script>")),
    [Json] = elements(~"id=\"figures\">", ~"</script>", Page),
    [#{~"series" := [#{~"label" := ~"other.json"}, #{~"label" := Label}]}] = json:decode(Json),
    Label = list_to_binary(Name),
    nomatch = binary:match(Json, [~"<", ~">", ~"&"]),
    true = [] =/= found(Page, "&lt;/script&gt;&lt;script&gt;alert\\(1\\)").

an_invalid_file_is_told(Config) ->
    Folder = proplists:get_value(folder, Config),
    Invalid = [{"no_json.json", ~"<script>alert(1)</script>"},
               {"no_result.json", ~"{\"throughput\": 1}"},
               {"empty.json", ~""},
               {"deep.json", binary:copy(~"[", 100_000)}],
    [ok = file:write_file(filename:join(Folder, Name), Bytes) || {Name, Bytes} <- Invalid],
    put_results([{"good.json", result(~"good_one", #{})}], Folder),
    Out = filename:join(Folder, "page.html"),
    {ok, #{results := 1, refused := Refused}} = erlmcp_bench_report:write(Folder, Out),
    Names = lists:sort([list_to_binary(Name) || {Name, _} <- Invalid]),
    Names = lists:sort([Name || {Name, [_ | _]} <- Refused]),
    {ok, Page} = file:read_file(Out),
    [_] = found(Page, "Not in this report"),
    [true = [] =/= found(Page, Name) || {Name, _} <- Invalid],
    [] = found(Page, "<script>alert").

figures_have_files_behind_them(_) ->
    Figures = erlmcp_bench_figures:figures(results()),
    [true = Sources =/= [] || #{sources := Sources} <- Figures],
    [~"latency-load-1", ~"memory-load-1", ~"overload", ~"scaling_connections_latency_p99_us",
     ~"scaling_connections_throughput_msg_per_s", ~"scaling_machines", ~"scaling_nodes",
     ~"throughput-load-1"] = lists:sort([Id || #{id := Id} <- Figures]),
    %% Without its files there is no figure.
    [] = erlmcp_bench_figures:figures([]),
    [] = erlmcp_bench_figures:figures([{~"a.json", result(~"plain", #{})}]),
    %% A single point gives no figure.
    [] = [Id || #{id := <<"scaling_", _/binary>> = Id}
                    <- erlmcp_bench_figures:figures(lists:sublist(nodes_with_others(), 1))].

distributions_are_those_of_the_files(_) ->
    Buckets = [[100, 900], [200, 90], [1_000, 9], [5_000, 1]],
    Figures = erlmcp_bench_figures:figures([{~"a.json", result(~"one", #{
        ~"latency_histogram_us" => Buckets})}]),
    [#{id := ~"latency-load-1", xs := Xs, columns := [Column], table := {Head, [Row]}}] = Figures,
    %% Of a thousand requests: the times that one of 1, 10, 100 and 1,000 exceeds. The figure ends
    %% there.
    [100, 100, 200, 1_000] = [Y || {X, Y} <- lists:zip(Xs, Column),
                                   OneOf <- [1, 10, 100, 1_000], abs(X - OneOf) < 0.001],
    [~"one", 1000, 100, 100, 200, 200, 1_000, null, 5_000] = Row,
    true = length(Head) =:= length(Row).

what_is_offered_stands_beside_what_is_answered(_) ->
    [#{xs := Xs, columns := [Answered, Refused, Failed, Ideal]}] =
        [Figure || #{id := ~"overload"} = Figure <- erlmcp_bench_figures:figures(overload())],
    [500, 1_000, 2_000, 4_000] = Xs,
    Xs = Ideal,
    [500.0, 900.0, 950.0, 900.0] = Answered,
    [0, 50, 1_000, 3_000] = Refused,
    [0, 50, 50, 100] = Failed.

%% Each result with errors has a figure, with a line for each kind, the most frequent one first.
errors_stand_by_kind_and_window(Config) ->
    Windows = [#{~"at_s" => 10, ~"errors_count" => #{~"unsent" => 2, ~"refused 1056" => 30}},
               #{~"at_s" => 20, ~"errors_count" => #{}},
               #{~"at_s" => 25, ~"errors_count" => #{~"unsent" => 7}}],
    Results = [{~"a.json", result(~"bombed", #{~"windows" => Windows})},
               {~"b.json", result(~"calm", #{~"windows" => [#{~"at_s" => 10,
                                                              ~"errors_count" => #{}}]})},
               {~"c.json", result(~"short", #{~"windows" => [hd(Windows)]})}],
    [#{title := ~"Errors over time, bombed: load", xs := [10, 20, 25],
       series := [#{label := ~"refused 1056"}, #{label := ~"unsent"}],
       columns := [[30, 0, 0], [2, 0, 7]], sources := [{~"a.json", _}]},
     #{xs := [10], columns := [[30], [2]]}] = erlmcp_bench_figures:figures(Results),
    [_, _] = found(page(Results, Config), "<figure id=\"errors-[13]-load-1\"").

backlogs_stand_over_time(_) ->
    Backlog = [#{~"at_s" => At, ~"backlog_requests" => 100 * At} || At <- [1, 2, 3]],
    [#{title := ~"Backlog over time: load", columns := [[100, 200, 300]]}] =
        erlmcp_bench_figures:figures([{~"a.json", result(~"bombed", #{~"seconds" => Backlog})}]).

every_plot_has_a_table(Config) ->
    Page = page(results(), Config),
    Figures = found(Page, "<figure .*?</figure>"),
    [_, _, _ | _] = Figures,
    [begin
         [_] = found(Figure, "<div class=\"plot\""),
         [_ | _] = found(Figure, "<table>.*<td>.*</table>"),
         [_] = found(Figure, "<figcaption><h3[^>]*>[^<]+</h3>\\s*<p>[^<]{20,}</p></figcaption>"),
         %% The machine, the commit, the file and the command.
         [_ | _] = found(Figure, "2 cores.*commit 0123abc"),
         [_ | _] = found(Figure, "<code>[^<]*\\.json</code><br><code>erlmcp bench it</code>")
     end || Figure <- Figures].

%% In the contents of a file, a list of objects or of buckets is shown as its length.
lists_are_counted(Config) ->
    Page = page([{~"a.json", result(~"one", #{~"seconds" => [#{~"at_s" => 1}, #{~"at_s" => 2}],
                                              ~"latency_histogram_us" => [[1, 2], [3, 4], [5, 6]],
                                              ~"facts" => #{~"lines" => [~"a", ~"b"]}})}], Config),
    [_] = found(Page, "<code>latency_histogram_us</code></td><td class=\"text\">3 entries</td>"),
    [_] = found(Page, "<code>seconds</code></td><td class=\"text\">2 entries</td>"),
    [_] = found(Page, "<code>facts.lines</code></td>"
                      "<td class=\"text\">\\[&quot;a&quot;,&quot;b&quot;\\]</td>").

nothing_is_a_page_too(Config) ->
    Page = page([], Config),
    [_] = found(Page, "No result file was found"),
    [] = found(Page, "<figure ").

there_is_no_such_folder(Config) ->
    Folder = filename:join(proplists:get_value(folder, Config), "none"),
    {error, {no_folder, Folder}} = erlmcp_bench_report:write(Folder, "out.html"),
    Here = proplists:get_value(folder, Config),
    Out = filename:join(Folder, "out.html"),
    {error, {file, Out, enoent} = Reason} = erlmcp_bench_report:write(Here, Out),
    true = is_binary(unicode:characters_to_binary(erlmcp_bench_report:format_error(Reason))).

models_are_marked(Config) ->
    Page = page(nodes_with_others(), Config),
    [Figure] = found(Page, "<figure id=\"scaling_nodes\">.*?</figure>"),
    [_] = found(Figure, "<h3 class=\"model\">"),
    [_ | _] = found(Figure, "It is off by [0-9.]+ % in the mean"),
    [_] = found(Figure, "Beyond 8 there are no points"),
    %% Two points are no model.
    [#{model := false, caption := Caption}] =
        [Of || #{id := ~"scaling_nodes"} = Of
                   <- erlmcp_bench_figures:figures(lists:sublist(nodes_with_others(), 2))],
    {match, _} = re:run(Caption, "No model"),
    %% Numbers of nodes come from files, which may be hostile.
    [{_, Two} | _] = nodes_with_others(),
    [true, true] = [length(Xs) < 1_000
                    || #{id := <<"scaling_", _/binary>>, xs := Xs} <- erlmcp_bench_figures:figures(
                           [{~"many.json", Two#{~"nodes" := 1_000_000_000}},
                            {~"too_many.json", Two#{~"nodes" := 1 bsl 2_000}},
                            {~"most.json", Two#{~"nodes" := 1_000_000}} | nodes_with_others()])].

numbers_are_readable(_) ->
    [~"0", ~"0", ~"7", ~"1,234,567", ~"12,346", ~"100", ~"99.9", ~"1.5", ~"2", ~"0.00123",
     ~"-3.25"] =
        [erlmcp_bench_text:number(Number)
         || Number <- [0, 0.0, 7, 1_234_567, 12345.678, 99.96, 99.94, 1.5, 2.0, 0.0012345, -3.25]].

%% The documentation.

the_performance_page_is_the_baselines(Config) ->
    Out = filename:join(proplists:get_value(folder, Config), "performance.md"),
    ok = erlmcp_bench_report:performance(filename:join(root(), "bench/baselines"), Out),
    {ok, Made} = file:read_file(Out),
    {ok, Page} = file:read_file(filename:join(root(), "docs/performance.md")),
    Made =:= Page orelse ct:fail("docs/performance.md is not what bench/baselines makes of it: "
                                 "see the command in it").

the_capacity_page_has_the_model(Config) ->
    Out = filename:join(proplists:get_value(folder, Config), "capacity.md"),
    {ok, Page} = file:read_file(filename:join(root(), "docs/capacity.md")),
    ok = file:write_file(Out, Page),
    ok = erlmcp_bench_report:capacity(filename:join(root(), "bench/baselines"), Out),
    {ok, Made} = file:read_file(Out),
    Made =:= Page orelse ct:fail("the model in docs/capacity.md is not what bench/baselines makes "
                                 "of it: see the command in it"),
    ok = file:write_file(Out, ~"no place for it"),
    {error, {no_model_block, Out}} =
        erlmcp_bench_report:capacity(filename:join(root(), "bench/baselines"), Out).

marks_are_judged(_) ->
    Registry = #{~"component" => ~"registry", ~"transport" => ~"in_process"},
    Page = performance([workload(~"core_ops_100k_registry", ~"core_ops",
                                 #{~"throughput_msg_per_s" => [600_000, 610_000, 620_000],
                                   ~"latency_p99_us" => [9.0, 10.0, 11.0]}, Registry),
                        workload(~"core_ops_1k_registry", ~"core_ops",
                                 #{~"latency_p99_us" => [3.0, 4.0, 4.5]}, Registry),
                        workload(~"tcp_sustained_10k_1kib", ~"network_real",
                                 #{~"throughput_msg_per_s" => [42_000, 43_500, 44_000]}, #{})]),
    [_] = found(Page, "^\\| registry \\| `throughput_msg_per_s` \\| 553,000 \\| 610,000 "
                      "\\(600,000 - 620,000\\), `core_ops_100k_registry` \\| 3 \\| 1 \\| beaten "
                      "\\| never real: random"),
    %% The least is the best of a time, and one of two beats the mark.
    [_] = found(Page, "^\\| registry \\| `latency_p99_us` \\| 4.8 \\| 4 \\(3 - 4.5\\), "
                      "`core_ops_1k_registry` \\| 3 \\| 1 \\| beaten by 1 of 2 "),
    [_] = found(Page, "43,500 \\(42,000 - 44,000\\), `tcp_sustained_10k_1kib` \\| 3 \\| 1 "
                      "\\| level \\| something else"),
    %% A run of stress with a failure is no run of its workload.
    [_] = found(performance([workload(~"stress_30s_100k_ops_fail_gate", ~"stress",
                                      #{~"throughput_msg_per_s" => [1.0, 2.0, 3.0]}, #{})]),
                "^\\| stress \\| `throughput_msg_per_s` \\| 372,000 \\|  \\|  \\|  "
                "\\| not measured"),
    %% Marks without a figure here are shown, too.
    [_] = found(Page, "^\\| mcp_tool_sequence \\| `latency_p50_us` \\| 3,850 \\|  \\|  \\|  "
                      "\\| not measured"),
    [_] = found(Page, "^\\| stress \\| `throughput_msg_per_s` \\| 372,000 \\|  \\|  \\|  "
                      "\\| not measured"),
    [] = erlmcp_bench_marks:all() -- lists:uniq(erlmcp_bench_marks:all()),
    more = erlmcp_bench_marks:better(~"held_connections"),
    less = erlmcp_bench_marks:better(~"memory_heap_mib_per_conn"),
    less = erlmcp_bench_marks:better(~"throughput_deviation_percent").

shortened_runs_have_no_mark(_) ->
    Figures = #{~"throughput_msg_per_s" => [600_000, 610_000, 620_000]},
    Page = performance([workload(~"core_ops_100k_registry", ~"core_ops", Figures,
                                 #{~"component" => ~"registry", ~"transport" => ~"in_process",
                                   ~"shortened" => true})]),
    [_] = found(Page, "^\\| registry \\| `throughput_msg_per_s` \\| 553,000 \\|  \\|  \\|  "
                      "\\| not measured"),
    [_] = found(Page, "^\\| core operations: registry \\| `throughput_msg_per_s` .*not measured"),
    %% It stands among all workloads, and says what it is.
    [_] = found(Page, "^\\| `core_ops_100k_registry` \\| 610,000 .*"
                      "\\| \\*\\*shortened\\*\\*, 3 \\| 1 \\|$"),
    %% Beside one in full length, which has more connections, it is not shown.
    Load = fun(Shortened, Connections, PerSecond) ->
        workload(~"http1_sustained_2k_512b", ~"network_real",
                 #{~"throughput_msg_per_s" => [PerSecond, PerSecond, PerSecond]},
                 #{~"transport" => ~"http1", ~"shortened" => Shortened,
                   ~"connections" => Connections})
    end,
    Both = performance([Load(true, 200, 9_137.0), Load(false, 2_000, 8_219.0)]),
    [] = found(Both, "9,137"),
    [_ | _] = found(Both, "8,219").

%% A table of their own, with the bounds of each fault, and no row among all workloads.
faults_have_their_times_and_bounds(_) ->
    Length = [17.5, 18.0, 18.5],
    Page = performance([workload(~"chaos_disk_full", ~"chaos",
                                 #{~"detection_ms" => [11.5, 12.5, 14.5], ~"duration_s" => Length,
                                   ~"recovery_ms" => [101.0, 102.0, 103.0]}, #{}),
                        workload(~"drill_latency", ~"chaos",
                                 #{~"recovery_ms" => [201.0, 202.0, 203.0],
                                   ~"duration_s" => Length}, #{~"shortened" => true})]),
    #{detect_ms := Detect, recover_ms := Recover} = erlmcp_chaos_disk_full:bounds(),
    [_] = found(Page, ["^\\| `chaos_disk_full` \\| 12.5 \\(11.5 - 14.5\\) \\| ",
                       erlmcp_bench_text:number(Detect), " \\| 102 \\(101 - 103\\) \\| ",
                       erlmcp_bench_text:number(Recover), " \\| 18 s × 3 \\| 1 \\|$"]),
    [_] = found(Page, "^\\| `drill_latency` \\|  \\| .*\\| 202 \\(201 - 203\\) .*"
                      "\\| \\*\\*shortened\\*\\*, 18 s × 3 \\| 1 \\|$"),
    [_] = found(Page, "chaos_disk_full"),
    [] = found(performance([]), "^### Faults").

figures_have_a_length_a_source_and_an_age(_) ->
    Old = workload(~"growth_old", ~"network_real",
                   #{~"throughput_msg_per_s" => [1.0, 2.0, 3.0], ~"duration_s" => [8.0, 8.1, 8.2]},
                   #{~"measured_on" => ~"2026-11-20"}),
    #{~"environment" := Environment} = Old,
    New = Old#{~"workload_id" := ~"growth_new", ~"measured_on" := ~"2026-11-22",
               ~"environment" := Environment#{~"erlmcp_commit" := ~"f00d"}},
    Page = performance([Old, New], #{~"commit" => ~"0123456789abcdef", ~"day" => ~"2026-12-02",
                                     ~"commits_since" => #{~"0123abc" => 17}}),
    [_] = found(Page, "^Ages are those on 2026-12-02, at commit `0123456789ab`\\.$"),
    %% The newest first.
    [_] = found(Page, "^\\| 1 \\| `f00d` \\| 2026-11-22 \\| unknown \\| 10 \\| A processor, "),
    [_] = found(Page, "^\\| 2 \\| `0123abc` \\| 2026-11-20 \\| 17 \\| 12 \\| A processor, "),
    [_] = found(Page, "^\\| `growth_old` \\| 2 \\(1 - 3\\) \\| 8.1 s × 3 \\| 2 \\|$"),
    [_] = found(Page, "^\\| `growth_new` \\| 2 \\(1 - 3\\) \\| 8.1 s × 3 \\| 1 \\|$"),
    Changed = Environment#{~"erlmcp_commit" := ~"0123456789abcdef0123-changed"},
    [_] = found(performance([Old#{~"environment" := Changed}]),
                "^\\| 1 \\| `0123456789ab-changed` \\| 2026-11-20 "),
    %% Without ages the rest stands.
    [_] = found(performance([Old]), "^\\| 1 \\| `0123abc` \\| 2026-11-20 \\| unknown \\| unknown ").

ages_are_checked(Config) ->
    Folder = proplists:get_value(folder, Config),
    Out = filename:join(Folder, "page.md"),
    ok = erlmcp_bench_report:performance(Folder, Out),
    AsOf = filename:join(Folder, "as_of.json"),
    ok = file:write_file(AsOf, ~"{\"commit\": 1}"),
    {error, {no_ages, AsOf} = Reason} = erlmcp_bench_report:performance(Folder, Out),
    Text = iolist_to_binary(erlmcp_bench_report:format_error(Reason)),
    {_, _} = binary:match(Text, ~"bench/as_of.sh").

hostile_baselines_stay_text(_) ->
    Evil = ~"a|b`<script>\n# x",
    Page = performance([workload(~"core_ops_1k_pool", ~"core_ops",
                                 #{~"throughput_msg_per_s" => [1.0, 2.0, 3.0]},
                                 #{~"component" => ~"pool", ~"era" => Evil,
                                   ~"transport" => ~"in_process"})]),
    [] = found(Page, "<script>|^# x"),
    [_ | _] = found(Page, "core_ops_1k_pool a\\\\\\|b'&lt;script> # x").

performance(Workloads) ->
    performance(Workloads, #{}).

performance(Workloads, AsOf) ->
    Baseline = #{~"kind" => ~"kind", ~"workloads" => Workloads},
    iolist_to_binary(erlmcp_bench_performance:page([{~"kind.json", Baseline}], AsOf)).

workload(Id, Benchmark, Figures, More) ->
    maps:merge(#{~"workload_id" => Id, ~"benchmark" => Benchmark, ~"runs_count" => 3,
                 ~"environment" => environment(),
                 ~"figures" => #{Name => #{~"median" => lists:nth(2, Values), ~"values" => Values,
                                           ~"min" => hd(Values), ~"max" => lists:last(Values)}
                                 || Name := Values <- Figures}}, More).

%% Results.

results() ->
    Series = [#{~"at_s" => At, ~"throughput_msg_per_s" => 900 + At,
                ~"memory_rss_mib_per_node" => 60 + At / 10} || At <- lists:seq(1, 30)],
    nodes_with_others() ++ overload()
        ++ [{<<"connections_", (integer_to_binary(N))/binary, ".json">>,
             result(<<"scaling_connections_", (integer_to_binary(N))/binary>>,
                    #{~"sweep" => ~"scaling_connections", ~"connections" => N,
                      ~"latency_p99_us" => 100 * N})} || N <- [1, 10, 100]]
        ++ [{~"load.json",
             result(~"load", #{~"seconds" => Series,
                               ~"latency_histogram_us" => [[100, 900], [200, 100]]})}].

nodes_with_others() ->
    [{<<"nodes_", (integer_to_binary(N))/binary, ".json">>,
      result(<<"scaling_nodes_", (integer_to_binary(N))/binary>>,
             #{~"sweep" => ~"scaling_nodes", ~"nodes" => N,
               ~"sample_count" => X * 10, ~"throughput_msg_per_s" => X,
               ~"cpu_us_per_msg" => 100 + N})}
     || {N, X} <- [{1, 1000}, {2, 1700}, {4, 2500}, {8, 2600}]].

overload() ->
    [{<<"overload_", (integer_to_binary(Offered))/binary, ".json">>,
      result(<<"overload_", (integer_to_binary(Offered div 10))/binary, "_percent">>,
             #{~"sweep" => ~"overload", ~"offered_msg_per_s" => Offered,
               ~"sample_count" => Answered * 10, ~"throughput_msg_per_s" => Answered * 1.0,
               ~"refused_msg_per_s" => Refused, ~"failed_msg_per_s" => Failed})}
     || {Offered, Answered, Refused, Failed}
            <- [{500, 500, 0, 0}, {1_000, 900, 50, 50}, {2_000, 950, 1_000, 50},
                {4_000, 900, 3_000, 100}]].

result(Id, More) ->
    maps:merge(#{~"workload_id" => Id, ~"benchmark" => ~"load", ~"transport" => ~"http1",
                 ~"duration_s" => 10, ~"scope" => ~"per_node", ~"precision" => ~"microsecond",
                 ~"sample_count" => 10_000, ~"timestamp" => 1_795_000_000,
                 ~"throughput_msg_per_s" => 1_000, ~"environment" => environment()}, More).

environment() ->
    #{~"cores" => 2, ~"memory_total_mib" => 8_000, ~"kernel" => ~"Linux 6.1", ~"otp" => ~"29",
      ~"jit" => true, ~"erlmcp_version" => ~"0.1.0", ~"erlmcp_commit" => ~"0123abc",
      ~"command_line" => ~"erlmcp bench it", ~"load_generator" => ~"out_of_node",
      ~"cpu" => ~"A processor"}.

page(Results, Config) ->
    Folder = proplists:get_value(folder, Config),
    put_results(Results, Folder),
    Out = filename:join(Folder, "page.html"),
    {ok, #{results := Count, refused := []}} = erlmcp_bench_report:write(Folder, Out),
    Count = length(Results),
    {ok, Page} = file:read_file(Out),
    Page.

put_results(Results, Folder) ->
    [ok = file:write_file(filename:join(Folder, Name), json:encode(Result))
     || {Name, Result} <- Results].

found(Text, Regex) ->
    case re:run(Text, Regex, [global, unicode, dotall, multiline, {capture, first, binary}]) of
        {match, Found} -> [Match || [Match] <- Found];
        nomatch -> []
    end.

elements(Open, Close, Text) ->
    [hd(binary:split(After, Close)) || After <- tl(binary:split(Text, Open, [global]))].

root() ->
    root(filename:dirname(proplists:get_value(source, module_info(compile)))).

root(Folder) ->
    case filelib:is_regular(filename:join([Folder, "bin", "erlmcp"])) of
        true -> Folder;
        false -> root(filename:dirname(Folder))
    end.
