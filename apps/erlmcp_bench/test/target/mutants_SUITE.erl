-module(mutants_SUITE).
-moduledoc """
The instruments, on servers that are broken on purpose: each finds what is wrong, and finds nothing
in the same server when it is whole. An instrument that cannot fail is none.
""".

-export([suite/0, all/0, groups/0]).
-export([lost_replies_are_found/1, other_ids_are_found/1, added_milliseconds_are_found/1,
         a_leak_is_found/1, no_leak_is_found_without_one/1]).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [{group, beside_each_other}, added_milliseconds_are_found].

groups() ->
    [{beside_each_other, [parallel],
      [lost_replies_are_found, other_ids_are_found, a_leak_is_found,
       no_leak_is_found_without_one]}].

%% By the load generator: each request is accounted for.
lost_replies_are_found(_) ->
    Plan = #{connections => 4, loop => {closed, 1}, duration_ms => 500},
    {0, 0} = counted(none, Plan),
    %% A machine that stands still for a second is no server that loses replies.
    {Lost, 0} = counted(drops_replies, Plan#{timeout_ms => 1_000}),
    true = Lost > 0.

%% By the load generator: each reply is read.
other_ids_are_found(_) ->
    Plan = #{connections => 4, loop => {closed, 1}, duration_ms => 500},
    {0, 0} = counted(none, Plan),
    {_, Wrong} = counted(answers_wrong_ids, Plan),
    true = Wrong > 0.

%% The failed and the wrong answers of several hundred requests, however long they take.
counted(Mutant, Plan) ->
    {ok, Target} = erlmcp_bench_target:start(#{mutant => Mutant}),
    Counted = counted(Target, Plan, 300, {0, 0}),
    ok = erlmcp_bench_target:stop(Target),
    Counted.

counted(_, _, Left, Counted) when Left =< 0 ->
    Counted;
counted(Target, Plan, Left, {Failed, Wrong}) ->
    #{sent := Sent, failed := Reasons, wrong := More} = run(Target, Plan),
    counted(Target, Plan, Left - Sent,
            {Failed + lists:sum(maps:values(Reasons)), Wrong + More}).

%% By the comparison with a baseline. On one connection one request is served after the other, so
%% that what is added shows far beyond what a busy machine does, except one that stands still.
added_milliseconds_are_found(Config) ->
    erlmcp_test_pauses:undisturbed(150, fun() -> slower_is_found(Config) end).

slower_is_found(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "added_milliseconds"),
    Plan = #{connections => 1, loop => {closed, 64}, duration_ms => 500, warmup_ms => 100},
    {ok, Whole} = erlmcp_bench_target:start(#{}),
    {ok, Slower} = erlmcp_bench_target:start(#{mutant => adds_5_ms}),
    %% In turn, since the speed of the machine may change.
    {Before, Slow, Again} = lists:unzip3([{run(Whole, Plan), run(Slower, Plan), run(Whole, Plan)}
                                          || _ <- [1, 2, 3]]),
    {ok, Baseline} = erlmcp_bench_baseline:make([written(Report, Folder) || Report <- Before]),
    [_, Median, _] = lists:sort(fun(#{answered := One}, #{answered := Other}) -> One =< Other end,
                                Slow),
    regression = verdict([written(Median, Folder)], Baseline),
    %% Whole, it is one when the machine was slower for a moment, but not each time.
    true = lists:any(fun(Report) ->
        verdict([written(Report, Folder)], Baseline) =/= regression
    end, Again),
    ok = erlmcp_bench_target:stop(Slower),
    ok = erlmcp_bench_target:stop(Whole).

written(Report, Folder) ->
    #{~"environment" := Environment} = Result = erlmcp_bench_result:from_load(
        #{workload_id => ~"echo", benchmark => ~"load", transport => http1, scope => per_node,
          command_line => ~"mutants_SUITE"}, Report),
    %% Of a commit, whatever the sources are like.
    Committed = Result#{~"environment" := Environment#{~"erlmcp_commit" := ~"0123abc"}},
    Own = integer_to_list(erlang:unique_integer([positive])),
    {ok, File} = erlmcp_bench_result:write(Committed, filename:join(Folder, Own)),
    File.

verdict(Files, Baseline) ->
    {ok, #{findings := Findings}} = erlmcp_bench_compare:compare(Files, Baseline),
    erlmcp_bench_compare:worst(Findings).

%% By the stress benchmark: a line through what the node still has when garbage was collected. Of a
%% machine that is too slow, nothing is said.
a_leak_is_found(_) ->
    [_] = until_clear(leaks_1_kib, 5).

%% Of noise alone, a line is judged as a leak in one of two hundred cases (`erlmcp_bench_slope`).
no_leak_is_found_without_one(_) ->
    true = lists:any(fun(_) -> leaks(stressed(none)) =:= [] end, [1, 2, 3]).

until_clear(Mutant, Tries) ->
    case stressed(Mutant) of
        {ok, [#{~"leak" := ~"unclear"}]} when Tries > 1 -> until_clear(Mutant, Tries - 1);
        Outcome -> leaks(Outcome)
    end.

stressed(Mutant) ->
    {ok, Target} = erlmcp_bench_target:start(#{mutant => Mutant}),
    Outcome = erlmcp_bench_target:call(
        Target, erlmcp_bench_stress, run_workload,
        [#{id => ~"stress_30s_100k_ops", duration_s => 3, target_ops_per_s => 2_000,
           workers => 4, sample_ms => 500}]),
    ok = erlmcp_bench_target:stop(Target),
    Outcome.

leaks({ok, _}) -> [];
leaks({error, #{failures := Failures}}) -> [Leak || {_, {leak, _} = Leak} <- Failures].

run(Target, Plan) ->
    {ok, Report} = erlmcp_load:run(Plan#{target => {http, erlmcp_bench_target:url(Target)}}),
    Report.
