-module(chaos_results_SUITE).
-moduledoc """
Tests for the results of faults: what is written is what was judged, in the units that the names
say. A page is made of these files and of nothing else.
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([a_judged_fault_is_written/1, what_was_not_measured_is_not_written/1,
         what_did_not_run_has_no_result/1, every_harm_has_a_name_that_a_result_may_have/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [a_judged_fault_is_written, what_was_not_measured_is_not_written,
     what_did_not_run_has_no_result, every_harm_has_a_name_that_a_result_may_have].

outcome() ->
    Counts = #{answered => 5, refused => #{1056 => 2, tool_error => 1},
               failed => #{timeout => 3, {shutdown, 1} => 1}, wrong => #{id => 1}},
    Probes = #{answered => 7, refused => #{}, failed => #{}, wrong => #{}},
    #{scenario => ~"chaos_planted", title => ~"A planted fault", status => failed,
      bounds => #{code => 1056, detect_ms => 100, recover_ms => 2_000, load => refused},
      figures => #{rounds => 2, detection_us => 1_500, recovery_us => 250_000,
                   resolution_us => 25_000, pause_us => 2_000, recovery_moved_us => 12_000,
                   signal => {refused, 1056}},
      violations => [{never, recovered}, {unaccounted, 3}],
      accounting => #{load => Counts, probe => Probes},
      earlier => #{count => 10, p50 => 100, p99 => 200, max => 300, quick => 10_000},
      events => #{}, facts => #{closed_count => 4},
      seen => #{sockets => #{ended_count => {9, {at_least, 9}}}},
      duration_ms => 1_250, short => true}.

written(Outcomes, Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), ?MODULE),
    {ok, Files} = erlmcp_chaos_result:write(Outcomes, Folder),
    Results = [begin
                   {ok, Bytes} = file:read_file(File),
                   json:decode(Bytes)
               end || File <- Files],
    ok = file:del_dir_r(Folder),
    Results.

a_judged_fault_is_written(Config) ->
    [Result] = written([outcome()], Config),
    Expected = #{
        ~"workload_id" => ~"chaos_planted", ~"benchmark" => ~"chaos",
        ~"title" => ~"A planted fault", ~"status" => ~"failed", ~"duration_s" => 1.25,
        ~"sample_count" => 5 + 3 + 4 + 1 + 7, ~"shortened" => true,
        ~"bounds" => #{~"code" => 1056, ~"load" => ~"refused", ~"detection_bound_ms" => 100,
                       ~"recovery_bound_ms" => 2_000},
        ~"violations" => [~"{never,recovered}", ~"{unaccounted,3}"],
        ~"accounting" => #{
            ~"load" => #{~"answered_count" => 5, ~"lost_count" => 3,
                         ~"refused_count" => #{~"1056" => 2, ~"tool_error" => 1},
                         ~"failed_count" => #{~"timeout" => 3, ~"{shutdown,1}" => 1},
                         ~"wrong_count" => #{~"id" => 1}},
            ~"probe" => #{~"answered_count" => 7, ~"lost_count" => 0, ~"refused_count" => #{},
                          ~"failed_count" => #{}, ~"wrong_count" => #{}}},
        ~"facts" => #{~"closed_count" => 4}, ~"seen" => #{~"sockets" => #{~"ended_count" => 9}},
        ~"detection_ms" => 1.5, ~"recovery_ms" => 250.0, ~"resolution_ms" => 25.0,
        ~"longest_pause_ms" => 2.0, ~"recovery_bound_moved_ms" => 12.0, ~"rounds_count" => 2,
        ~"settled_below_us" => 10_000,
        ~"earlier" => #{~"earlier_p50_us" => 100, ~"earlier_p99_us" => 200,
                        ~"earlier_max_us" => 300}},
    ?assertEqual(Expected, maps:with(maps:keys(Expected), Result)),
    %% No pause has moved the other bound.
    false = is_map_key(~"detection_bound_moved_ms", Result),
    #{~"environment" := #{~"command_line" := ~"erlmcp chaos chaos_planted --short"}} = Result.

%% What took less than the clock's unit has one, since no page has times of nothing.
what_was_not_measured_is_not_written(Config) ->
    Outcome = (outcome())#{
        status := passed, short := false, violations := [],
        bounds := #{code => none, detect_ms => none, recover_ms => 0, load => undisturbed},
        figures := #{rounds => 1, resolution_us => 25_000, detection_us => 0, pause_us => 1},
        earlier := #{count => 0, quick => 10_000}},
    [Result] = written([Outcome], Config),
    ?assertEqual(#{~"load" => ~"undisturbed"}, maps:get(~"bounds", Result)),
    ?assertEqual([~"detection_ms", ~"resolution_ms"],
                 [Key || Key <- [~"detection_ms", ~"recovery_ms", ~"resolution_ms", ~"earlier",
                                 ~"settled_below_us"], is_map_key(Key, Result)]),
    #{~"detection_ms" := 0.001, ~"shortened" := false,
      ~"environment" := #{~"command_line" := ~"erlmcp chaos chaos_planted"}} = Result.

what_did_not_run_has_no_result(Config) ->
    NotRun = #{scenario => ~"chaos_other", title => ~"Another", status => not_run,
               bounds => maps:get(bounds, outcome()), reason => ~"no root"},
    Early = maps:without([accounting, figures], NotRun#{status := failed}),
    [#{~"workload_id" := ~"chaos_planted"}] = written([NotRun, outcome(), Early], Config),
    {ok, []} = erlmcp_chaos_result:write([NotRun], filename:join(proplists:get_value(
        priv_dir, Config), "none")).

%% Also of faults that this machine cannot have.
every_harm_has_a_name_that_a_result_may_have(Config) ->
    [[#{~"workload_id" := Id}] =
         written([(outcome())#{scenario := Id,
                               seen := #{Harm => #{ended_count => {9, {at_least, 9}}}}}], Config)
     || #{id := Id, module := Module} <- erlmcp_bench_chaos:scenarios(), Harm <- Module:harms()].
