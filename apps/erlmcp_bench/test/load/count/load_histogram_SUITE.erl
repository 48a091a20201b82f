-module(load_histogram_SUITE).
-moduledoc """
Histograms against the times that were put into them: no percentile is off by 1 %, and none is too
low.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([examples/1, percentiles_are_nearly_exact/1, maximum_and_mean_are_exact/1,
         deviations_are_nearly_exact/1,
         lists_keep_everything/1,
         merging_is_counting_together/1, seconds_are_told_apart/1, bounds/1, nothing_is_zero/1,
         processes_lose_nothing/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [examples, percentiles_are_nearly_exact, maximum_and_mean_are_exact,
     deviations_are_nearly_exact, lists_keep_everything,
     merging_is_counting_together, seconds_are_told_apart, bounds, nothing_is_zero,
     processes_lose_nothing].

examples(_) ->
    erlmcp_test_doctests:run([erlmcp_bench_histogram]).

percentiles_are_nearly_exact(_) ->
    holds(?FORALL({Times, Percent}, {times(), percent()},
                  begin
                      Found = erlmcp_bench_histogram:percentile(histogram(Times), Percent),
                      Exact = exact(Times, Percent),
                      Found >= Exact andalso Found - Exact < Exact / 100
                  end)).

maximum_and_mean_are_exact(_) ->
    holds(?FORALL(Times, times(),
                  begin
                      Histogram = histogram(Times),
                      Mean = lists:sum(Times) / length(Times),
                      erlmcp_bench_histogram:max(Histogram) =:= lists:max(Times)
                          andalso erlmcp_bench_histogram:count(Histogram) =:= length(Times)
                          andalso abs(erlmcp_bench_histogram:mean(Histogram) - Mean) < 1
                  end)).

%% A time is off by half a bucket, and so is the root of the mean of their squares.
deviations_are_nearly_exact(_) ->
    holds(?FORALL(Times, times(),
                  begin
                      Mean = lists:sum(Times) / length(Times),
                      Exact = math:sqrt(lists:sum([(Us - Mean) * (Us - Mean) || Us <- Times])
                                        / length(Times)),
                      abs(erlmcp_bench_histogram:deviation(histogram(Times)) - Exact)
                          =< 0.005 * lists:max(Times)
                  end)).

lists_keep_everything(_) ->
    holds(?FORALL({Some, Percent}, {times(), percent()},
                  begin
                      Histogram = histogram(Some),
                      Entries = erlmcp_bench_histogram:to_list(Histogram),
                      Again = erlmcp_bench_histogram:from_list(Entries),
                      Of = [Histogram, Again, Entries],
                      Entries =:= lists:ukeysort(1, Entries)
                          andalso erlmcp_bench_histogram:to_list(Again) =:= Entries
                          andalso are_same(fun erlmcp_bench_histogram:count/1, Of)
                          andalso are_same(fun erlmcp_bench_histogram:max/1, Of)
                          andalso are_same(fun erlmcp_bench_histogram:deviation/1, Of)
                          andalso are_same(fun(Times) ->
                                               erlmcp_bench_histogram:percentile(Times, Percent)
                                           end, Of)
                  end)).

are_same(Figure, Of) ->
    1 =:= length(lists:usort([Figure(Times) || Times <- Of])).

merging_is_counting_together(_) ->
    holds(?FORALL({Some, Others}, {times(), times()},
                  begin
                      Merged = erlmcp_bench_histogram:merge([histogram(Some), histogram(Others)]),
                      Together = histogram(Some ++ Others),
                      figures(Merged) =:= figures(Together)
                  end)).

seconds_are_told_apart(_) ->
    holds(?FORALL({Before, After}, {times(), times()},
                  begin
                      Histogram = histogram(Before),
                      Earlier = erlmcp_bench_histogram:to_list(Histogram),
                      [ok = erlmcp_bench_histogram:record(Histogram, Us) || Us <- After],
                      Later = erlmcp_bench_histogram:to_list(Histogram),
                      Entries = erlmcp_bench_histogram:to_list(histogram(After)),
                      Counts = [Count || {_, Count} <- Entries],
                      [Count || {_, Count} <- erlmcp_bench_histogram:since(Later, Earlier)]
                          =:= Counts
                  end)).

bounds(_) ->
    Histogram = histogram([-5, 0, 3_600_000_001, 1 bsl 60]),
    [{1, 2}, {3_600_000_000, 2}] = erlmcp_bench_histogram:to_list(Histogram),
    %% To the microsecond where that is the step.
    [{255, 1}, {256, 1}] = erlmcp_bench_histogram:to_list(histogram([255, 256])),
    [{257, 2}, {258, 1}] = erlmcp_bench_histogram:to_list(histogram([256, 257, 258])).

nothing_is_zero(_) ->
    Nothing = erlmcp_bench_histogram:new(),
    [] = erlmcp_bench_histogram:to_list(Nothing),
    {0, 0, 0, +0.0} = figures(Nothing),
    0 = erlmcp_bench_histogram:percentile(Nothing, 0).

processes_lose_nothing(_) ->
    Histogram = erlmcp_bench_histogram:new(),
    Writers = [spawn_monitor(fun() ->
                   [ok = erlmcp_bench_histogram:record(Histogram, Writer * Us)
                    || Us <- lists:seq(1, 2000)]
               end) || Writer <- lists:seq(1, 8)],
    [receive {'DOWN', Monitor, process, Pid, normal} -> ok end || {Pid, Monitor} <- Writers],
    16_000 = erlmcp_bench_histogram:count(Histogram),
    16_000 = erlmcp_bench_histogram:max(Histogram).

figures(Histogram) ->
    {erlmcp_bench_histogram:count(Histogram), erlmcp_bench_histogram:max(Histogram),
     erlmcp_bench_histogram:percentile(Histogram, 99), erlmcp_bench_histogram:mean(Histogram)}.

histogram(Times) ->
    Histogram = erlmcp_bench_histogram:new(),
    [ok = erlmcp_bench_histogram:record(Histogram, Us) || Us <- Times],
    Histogram.

%% The nearest rank.
exact(Times, Percent) ->
    lists:nth(max(1, ceil(Percent * length(Times) / 100)), lists:sort(Times)).

times() -> non_empty(list(a_time())).

%% As many of each power of two.
a_time() ->
    ?LET(Bits, range(0, 31), ?LET(Us, range(1 bsl Bits, (2 bsl Bits) - 1), min(Us, 3_600_000_000))).

percent() -> oneof([range(0, 100), float(0.0, 100.0), 99.9, 99.99]).

holds(Property) -> erlmcp_test_property:holds(Property, 100).
