-module(peers_and_goals_SUITE).
-moduledoc """
Tests for the goals and the servers of other SDKs in the performance page. The goals are judged by
the figures, the servers have the locked versions, and the workloads are those of `bench/peers.sh`.
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([goals_are_judged/1, shortened_runs_reach_no_goal/1, failed_runs_reach_no_goal/1,
         peers_with_far_rounds_have_a_range/1, goals_have_their_bounds/1,
         the_best_of_ours_counts/1, marks_have_their_bounds/1, what_was_not_measured_is_said/1,
         servers_are_of_the_locked_versions/1, workloads_are_those_of_the_bench/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [goals_are_judged, shortened_runs_reach_no_goal, failed_runs_reach_no_goal,
     peers_with_far_rounds_have_a_range,
     goals_have_their_bounds, the_best_of_ours_counts, marks_have_their_bounds,
     what_was_not_measured_is_said, servers_are_of_the_locked_versions,
     workloads_are_those_of_the_bench].

goals_are_judged(_) ->
    Page = section([workload(~"peers_echo_64", #{}, 1_300, 19),
                    workload(~"peers_echo_64", #{~"against" => ~"rmcp"}, 1_000, 25),
                    workload(~"peers_echo_64", #{~"against" => ~"rmcp_mimalloc"}, 1_301, 18),
                    workload(~"peers_tls_64", #{}, 780, 30),
                    #{~"workload_id" => ~"memory_session",
                      ~"runs_count" => 3, ~"environment" => #{},
                      ~"figures" => #{~"memory_state_bytes_per_item" => figure([3_073])}}]),
    [_] = found(Page, "at least 1.3 × rmcp \\| 1,300 \\| 1,000"
                      " \\| 1.3 \\| 3 \\| 1 \\| reached"),
    [_] = found(Page, "at most 0.75 × rmcp \\| 19 \\| 25"
                      " \\| 0.76 \\| 3 \\| 1 \\| \\*\\*not reached"),
    [_] = found(Page,
                "at least 1 × rmcp_mimalloc \\| 1,300 \\| 1,301 \\| [0-9.]+ \\| 3 \\| 1 "
                "\\| \\*\\*not"),
    [_] = found(Page, "at least 0.6 × `peers_echo_64` \\| 780 \\| 1,300"
                      " \\| 0.6 \\| 3 \\| 1 \\| reached"),
    [_] = found(Page, "at most 3,072 \\| 3,073 \\|  \\|  \\| 3 \\| 1 \\| \\*\\*not"),
    Refusing = workload(~"peers_tls_64", #{}, 780, 30),
    #{~"figures" := Figures} = Refusing,
    Refused = Refusing#{~"figures" := Figures#{~"refused_percent" => figure([1.5])}},
    [_] = found(section([workload(~"peers_echo_64", #{}, 1_300, 19), Refused]),
                "at least 0.6 × `peers_echo_64` \\| 780 \\| 1,300 \\| 0.6 \\| 3 \\| 1 "
                "\\| \\*\\*not reached"),
    %% And all that was measured stands there, ours first.
    [_] = found(Page, "\\| \\*\\*erlmcp\\*\\* \\| 1,300 \\| 19 \\| .*\n.*\\| rmcp \\|"),
    [_] = found(Page, "goals 2 are reached, 3 are not").

shortened_runs_reach_no_goal(_) ->
    Short = #{~"shortened" => true},
    Rmcp = #{~"against" => ~"rmcp"},
    Ours = workload(~"peers_echo_64", #{}, 1_300, 19),
    Theirs = workload(~"peers_echo_64", Rmcp, 1_000, 26),
    Reached = "at least 1.3 × rmcp .*\\| reached \\|$",
    [_] = found(section([Ours, Theirs]), Reached),
    [] = found(section([maps:merge(Ours, Short), Theirs]), Reached),
    [] = found(section([Ours, maps:merge(Theirs, Short)]), Reached),
    %% The figures are there, and marked.
    [_] = found(section([maps:merge(Ours, Short), Theirs]),
                "\\| \\*\\*erlmcp\\*\\* \\| 1,300 \\| .*\\| \\*\\*shortened\\*\\*, 3 \\|").

failed_runs_reach_no_goal(_) ->
    Scenario = workload(~"hundredfold", #{~"benchmark" => ~"scenario"}, 70_000, 19),
    Goal = "`hundredfold`, scaled \\| `throughput_msg_per_s` \\| at least 62,500 \\| 70,000 .*",
    [_] = found(section([Scenario]), Goal ++ "\\| 3 \\| 1 \\| reached \\|$"),
    %% The figure is there, and says what became of its runs.
    [_] = found(section([Scenario#{~"status" => ~"failed"}]),
                Goal ++ "\\| \\*\\*failed\\*\\*, 3 \\| 1 \\| \\*\\*not reached\\*\\* \\|$").

peers_with_far_rounds_have_a_range(_) ->
    Ours = workload(~"peers_echo_64", #{}, 1_300, 19),
    #{~"figures" := Figures} = Theirs =
        workload(~"peers_echo_64", #{~"against" => ~"rmcp"}, 1_000, 26),
    With = fun(Values) ->
        section([Ours, Theirs#{~"figures" := Figures#{~"throughput_msg_per_s" := figure(Values)}}])
    end,
    Near = With([500, 900, 1_000]),
    [_] = found(Near, "\\| rmcp \\| 900 \\(500 - 1,000\\) \\|"),
    [_] = found(Near, "at least 1.3 × rmcp \\| 1,300 \\| 900 \\| 1.44 .*\\| reached \\|$"),
    %% Their best round counts.
    Far = With([499, 900, 1_001]),
    [_] = found(Far, "\\| rmcp \\| \\(499 - 1,001\\) \\|"),
    [_] = found(Far, "at least 1.3 × rmcp \\| 1,300 \\| 1,001 \\| 1.3 .*not reached").

%% Each bound where it is reached, and a little beyond it.
goals_have_their_bounds(_) ->
    Reached = fun(Is, Beside, Ours, Theirs, More) ->
        Found = erlmcp_bench_goals:judged(
            goal(~"throughput_msg_per_s", Is, Beside),
            [judged(~"ours", #{}, More#{~"throughput_msg_per_s" => Ours}),
             judged(~"ours", #{~"against" => ~"rmcp"}, #{~"throughput_msg_per_s" => Theirs}),
             judged(~"other", #{}, #{~"throughput_msg_per_s" => Theirs})]),
        #{ours := Ours, reached := Verdict} = Found,
        ?assertEqual(Ours / case Beside of none -> 1; _ -> Theirs end, map_get(ratio, Found)),
        Verdict
    end,
    [begin
         true = Reached({at_least, 1.5}, Beside, 1_500, 1_000, #{}),
         false = Reached({at_least, 1.5}, Beside, 1_499, 1_000, #{}),
         true = Reached({at_most, 1.5}, Beside, 1_500, 1_000, #{}),
         false = Reached({at_most, 1.5}, Beside, 1_501, 1_000, #{}),
         true = Reached({at_least, 1.5}, Beside, 1_500, 1_000, #{~"refused_percent" => 1}),
         false = Reached({at_least, 1.5}, Beside, 1_500, 1_000, #{~"refused_percent" => 1.001})
     end || Beside <- [{server, ~"rmcp"}, {ours, #{~"workload_id" => ~"other"}}]],
    true = Reached({at_least, 1_500}, none, 1_500, 1, #{}),
    false = Reached({at_least, 1_500}, none, 1_499, 1, #{}),
    true = Reached({at_most, 1_500}, none, 1_500, 1, #{}),
    false = Reached({at_most, 1_500}, none, 1_501, 1, #{}),
    %% Nothing is a multiple of none.
    Theirs = #{~"workload_id" => ~"ours", ~"against" => ~"rmcp",
               ~"figures" => #{~"latency_p99_us" => figure([0, 5, 9])}},
    #{theirs := 0, ratio := none, reached := none} = erlmcp_bench_goals:judged(
        goal(~"latency_p99_us", {at_most, 1}, {server, ~"rmcp"}),
        [judged(~"ours", #{}, #{~"latency_p99_us" => 1}), Theirs]).

%% And the best of theirs.
the_best_of_ours_counts(_) ->
    Workloads = [judged(~"ours", #{~"era" => Era, ~"against" => Server},
                        #{~"throughput_msg_per_s" => Rate})
                 || {Era, Server, Rate} <- [{~"a", ~"rmcp", 10}, {~"b", ~"rmcp", 30}]]
        ++ [judged(~"ours", #{~"era" => Era}, #{~"throughput_msg_per_s" => Rate})
            || {Era, Rate} <- [{~"a", 20}, {~"b", 40}, {~"c", 25}]],
    Judged = fun(Is, Beside) ->
        erlmcp_bench_goals:judged(goal(~"throughput_msg_per_s", Is, Beside), Workloads)
    end,
    #{ours := 40, theirs := 30, reached := true} = Judged({at_least, 1}, {server, ~"rmcp"}),
    #{ours := 20, theirs := 10, ratio := 2.0} = Judged({at_most, 1}, {server, ~"rmcp"}),
    #{theirs := none, ratio := none, reached := none} =
        Judged({at_least, 1}, {server, ~"nobody"}),
    #{ours := 40, theirs := none, ratio := 40.0, reached := true} = Judged({at_least, 1}, none).

goal(Field, Is, Beside) ->
    #{what => ~"it", match => #{~"workload_id" => ~"ours"}, field => Field, is => Is,
      beside => Beside}.

judged(Id, More, Figures) ->
    More#{~"workload_id" => Id,
          ~"figures" => #{Name => figure([Value]) || Name := Value <- Figures}}.

%% A mark in the range of the runs is level.
marks_have_their_bounds(_) ->
    Runs = {10, 12, 15},
    [?assertEqual({Mark, Rate, Time}, {Mark, erlmcp_bench_marks:compared(~"throughput_msg_per_s",
                                                                         Mark, Runs),
                                       erlmcp_bench_marks:compared(~"latency_p99_us", Mark, Runs)})
     || {Mark, Rate, Time} <- [{9.9, beaten, not_beaten}, {10, level, level}, {15, level, level},
                               {15.1, not_beaten, beaten}]],
    [more, more, less, less, more] =
        [erlmcp_bench_marks:better(Field)
         || Field <- [~"throughput_msg_per_s", ~"opened_connections_per_s", ~"latency_p50_us",
                      ~"overhead_bytes_per_request", ~"connection_reuse_percent"]].

what_was_not_measured_is_said(_) ->
    Page = section([]),
    Goals = length(erlmcp_bench_goals:all()),
    Goals = length(found(Page, "\\| not measured \\|$")),
    [_] = found(Page, "No server of another SDK was measured"),
    %% A server alone cannot reach a goal that compares it with another one.
    Alone = section([workload(~"peers_echo_64", #{}, 1_000, 25)]),
    [_, _, _, _] = found(Alone, "^\\| echo, 64 connections \\|.*\\| not measured \\|$").

servers_are_of_the_locked_versions(_) ->
    lists:foreach(
        fun({Name, File, Regex}) ->
            {match, [Version]} = re:run(peers(File), Regex, [{capture, all_but_first, binary}]),
            {Name, Is} = lists:keyfind(Name, 1, erlmcp_bench_peers:servers()),
            {_, _} = binary:match(Is, <<"SDK ", Version/binary>>)
        end,
        [{~"rmcp", "rust/Cargo.lock", "name = \"rmcp\"\nversion = \"([0-9.]+)\""},
         {~"go", "go/go.mod", "modelcontextprotocol/go-sdk v([0-9.]+)"},
         {~"typescript", "typescript/package-lock.json",
          "@modelcontextprotocol/server\": {\\s+\"version\": \"([0-9.]+)\""},
         {~"python", "python/requirements.txt", "\nmcp==([0-9.]+)"}]).

workloads_are_those_of_the_bench(_) ->
    Measured = lists:usort(found(peers("bench_peers.erl"), "(?<=id => )peers_[a-z0-9_]+")),
    [_ | _] = Measured,
    Shown = [workload(Id, #{}, 1, 1) || Id <- Measured],
    Rows = found(section(Shown), "\\*\\*erlmcp\\*\\*"),
    {Count, Count} = {length(Measured), length(Rows)},
    [] = [Id || #{match := #{~"workload_id" := <<"peers_", _/binary>> = Id}}
                    <- erlmcp_bench_goals:all(), not lists:member(Id, Measured)].

section(Workloads) ->
    Sources = erlmcp_bench_sources:new(Workloads, #{}),
    unicode:characters_to_binary(erlmcp_bench_peers:section(Workloads, Sources)).

workload(Id, More, Rate, Cpu) ->
    More#{~"workload_id" => Id, ~"benchmark" => ~"peers", ~"runs_count" => 3,
          ~"environment" => #{},
          ~"figures" => #{~"throughput_msg_per_s" => figure([Rate]),
                          ~"cpu_us_per_msg" => figure([Cpu])}}.

figure(Values) ->
    #{~"median" => lists:nth((length(Values) + 1) div 2, lists:sort(Values)),
      ~"min" => lists:min(Values), ~"max" => lists:max(Values)}.

found(Text, Regex) ->
    case re:run(Text, Regex, [global, unicode, multiline, {capture, first, binary}]) of
        {match, Found} -> [Match || [Match] <- Found];
        nomatch -> []
    end.

peers(Name) ->
    {ok, Text} = file:read_file(filename:join([root(), "bench/peers", Name])),
    Text.

root() ->
    root(filename:dirname(proplists:get_value(source, module_info(compile)))).

root(Folder) ->
    case filelib:is_regular(filename:join([Folder, "bin", "erlmcp"])) of
        true -> Folder;
        false -> root(filename:dirname(Folder))
    end.
