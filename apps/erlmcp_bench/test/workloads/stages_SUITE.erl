-module(stages_SUITE).
-moduledoc """
Tests for the cost of the stages of a request, and for its growth with the number of items.
""".

-export([suite/0, all/0]).
-export([every_stage_is_measured/1, a_quick_call_has_no_process/1, stages_are_a_page/1,
         ten_times_as_much_is_compared/1, a_function_that_is_not_there_is_named/1,
         without_processor_times_it_fails/1]).

suite() ->
    [{timetrap, {minutes, 5}}].

all() ->
    [every_stage_is_measured, a_quick_call_has_no_process, stages_are_a_page,
     ten_times_as_much_is_compared, a_function_that_is_not_there_is_named,
     without_processor_times_it_fails].

every_stage_is_measured(_) ->
    {ok, [#{~"reductions_per_msg" := All, ~"sample_count" := Count} = Result]} =
        erlmcp_bench_run:workload(stages, stages_http1_echo,
                                  #{duration_s => 0.2, connections => 4}),
    ok = erlmcp_metrology_validator:validate(Result),
    true = Count > 0,
    #{~"connections" := 4, ~"shortened" := true, ~"scope" := ~"per_request"} = Result,
    Rows = erlmcp_bench_stages:rows(Result),
    [] = [Stage || {Stage, _, Us, Reductions} <- Rows,
                   {Of, _, [_ | _]} <- erlmcp_bench_stages:stages(), Of =:= Stage,
                   Us =< 0 orelse Reductions =< 0],
    %% Reductions of no other row are in `frame`.
    true = lists:sum([Reductions || {_, _, _, Reductions} <- Rows]) > All - 1.

a_quick_call_has_no_process(_) ->
    Functions = [{erlmcp_inline_call, run, 2}, {erlmcp_call, run_linked, 3}],
    [begin
        {ok, Workload} = erlmcp_bench_workloads:find(Id),
        Plan = erlmcp_bench_stages:plan(Workload, #{duration_s => 0.1, connections => 4}),
        {ok, Taken} = erlmcp_bench_stage_load:metered(reductions, Functions, Plan),
        true = [map_get(Function, Taken) > 40 || Function <- Functions] =:= Ran
    end || {Id, Ran} <- [{stages_http1_echo, [false, true]}, {stages_http1_quick, [true, false]},
                         {stages_tcp_quick, [true, false]}]].

stages_are_a_page(_) ->
    Figures = #{~"cpu_us_per_msg" => 50, ~"reductions_per_msg" => 1_200, ~"checks_percent" => 6.5,
                ~"stage_decode_us_per_msg" => 5, ~"stage_decode_reductions_per_msg" => 370},
    Page = page([workload(~"stages_http1_echo", ~"stages", Figures)]),
    [_] = found(Page, "^\\| `decode` \\| JSON to terms \\| 5 \\| 10 \\| 370 \\|$"),
    [_] = found(Page, "^\\| `all` \\|  \\| 50 \\| 100 \\| 1,200 \\|$"),
    [_] = found(Page, "take 6.5 % of it. The goal is at most 25 %: reached\\.$"),
    [_] = found(Page, "^A call of the tool `echo` on `http1`, stateless, 64 connections "
                      "\\(3, source 1\\):$"),
    Quick = page([workload(~"stages_http1_quick", ~"stages", Figures)]),
    [_] = found(Quick, "^A call of the quick tool `echo` on `http1`, stateless, 64 connections "
                      "\\(3, source 1\\):$"),
    [] = found(Page, "Ten times the items"),
    %% The sentence and the table of the goals have one bound.
    [[_, _] = found(page([workload(~"stages_http1_echo", ~"stages",
                                   Figures#{~"checks_percent" := Percent})]),
                    "(take 25[.0-9]* % of it.*|`checks_percent` .*)" ++ Reached)
     || {Percent, Reached} <- [{25, " reached( \\||\\.)$"},
                               {25.1, " \\*\\*not reached\\*\\*( \\||\\.)$"}]],
    Grown = #{~"base_count" => 20, ~"grown_count" => 200, ~"base_cpu_us_per_msg" => 50,
              ~"cpu_us_per_msg" => 54, ~"growth_cpu_ratio" => 1.08,
              ~"base_reductions_per_msg" => 1_200, ~"reductions_per_msg" => 1_212,
              ~"growth_reductions_ratio" => 1.01},
    [_] = found(page([workload(~"growth_tools", ~"growth", Grown)]),
                "^\\| `growth_tools` \\| 20 \\| 200 \\| 50 \\| 54 \\| 1.08 \\| 1,200 \\| 1,212 "
                "\\| 1.01 \\| 3 \\| 1 \\| reached \\|$"),
    [_] = found(page([workload(~"growth_tools", ~"growth", Grown#{~"growth_cpu_ratio" := 1.11})]),
                "^\\| `growth_tools` .*not reached").

page(Workloads) ->
    Baseline = #{~"kind" => ~"kind", ~"workloads" => Workloads},
    iolist_to_binary(erlmcp_bench_performance:page([{~"kind.json", Baseline}], #{})).

workload(Id, Benchmark, Figures) ->
    #{~"workload_id" => Id, ~"benchmark" => Benchmark, ~"transport" => ~"http1",
      ~"connections" => 64, ~"runs_count" => 3, ~"environment" => #{},
      ~"figures" => #{Name => #{~"median" => Value, ~"min" => Value, ~"max" => Value}
                      || Name := Value <- Figures}}.

found(Text, Regex) ->
    case re:run(Text, Regex, [global, multiline]) of
        {match, Found} -> Found;
        nomatch -> []
    end.

ten_times_as_much_is_compared(_) ->
    {ok, [Result]} = erlmcp_bench_run:workload(growth, growth_tools, #{duration_s => 0.1}),
    ok = erlmcp_metrology_validator:validate(Result),
    #{~"base_count" := 20, ~"grown_count" := 200, ~"growth_cpu_ratio" := Ratio,
      ~"base_cpu_us_per_msg" := Before, ~"cpu_us_per_msg" := After} = Result,
    true = abs(Ratio - After / Before) < 0.001.

a_function_that_is_not_there_is_named(_) ->
    Missing = {erlmcp_json, decode, 17},
    Plan = #{transport => http1, connections => 1, payload_bytes => 1, measure_ms => 1,
             handler => erlmcp_bench_fixture},
    {error, {no_function, Missing}} = erlmcp_bench_stage_load:metered(reductions, [Missing], Plan).

%% No process has this id, so `/proc` says nothing of it.
without_processor_times_it_fails(_) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    {ok, Target} = erlmcp_bench_target:start(#{}),
    {error, no_processor_time} = erlmcp_bench_stage_load:taken(
        Target#{os_pid := 1 bsl 30}, #{transport => tcp, connections => 1}, 10),
    ok = erlmcp_bench_target:stop(Target).
