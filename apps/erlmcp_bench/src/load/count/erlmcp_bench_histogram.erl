-module(erlmcp_bench_histogram).
-moduledoc """
Counts times from 1 microsecond to an hour, in buckets that are one microsecond or less than 1 %
wide. `count/1`, `deviation/1`, `max/1` and `percentile/2` also read the list of a histogram's
counts.

A histogram takes 26 KiB for each scheduler, however many times it counts. Any number of processes
can record into it without waiting for each other.

The buckets are those of HdrHistogram (Gil Tene), with 128 steps for each power of two. Times below
256 microseconds are exact.
""".

-export([new/0, record/2, count/1, mean/1, deviation/1, max/1, percentile/2]).
-export([merge/1, to_list/1, from_list/1, since/2]).

-export_type([histogram/0, entries/0]).

-record(histogram, {
    %% One count for each bucket, then the sum of all times.
    counts :: counters:counters_ref(),
    longest :: atomics:atomics_ref()
}).

-opaque histogram() :: #histogram{}.

-doc """
The counts of a histogram, in the order of their times. An entry counts the times that are at most
`UpToUs` and above the `UpToUs` of the entry before it. Entries with a count of 0 are left out.
""".
-type entries() :: [{UpToUs :: pos_integer(), Count :: pos_integer()}].

-define(LONGEST, 3_600_000_000).
%% The steps of each power of two. Twice as many buckets, of one microsecond each, come before them.
-define(STEPS, 128).
%% The bucket of the longest time is 3286.
-define(BUCKETS, 3300).
-define(SUM, ?BUCKETS).

-doc "Returns an empty histogram.".
-spec new() -> histogram().
new() ->
    #histogram{counts = counters:new(?BUCKETS, [write_concurrency]), longest = atomics:new(1, [])}.

-doc """
Counts the time `Us`, in microseconds. A time below one microsecond counts as one microsecond, and a
time above an hour as one hour.
""".
-spec record(histogram(), Us :: integer()) -> ok.
record(Histogram, Us) ->
    add(Histogram, clipped(Us), 1).

clipped(Us) when Us < 1 -> 1;
clipped(Us) when Us > ?LONGEST -> ?LONGEST;
clipped(Us) -> Us.

add(#histogram{counts = Counts, longest = Longest}, Us, Count) ->
    ok = counters:add(Counts, bucket(Us), Count),
    ok = counters:add(Counts, ?SUM, Us * Count),
    raise(Longest, Us, atomics:get(Longest, 1)).

raise(_, Us, Current) when Current >= Us ->
    ok;
raise(Longest, Us, Current) ->
    case atomics:compare_exchange(Longest, 1, Current, Us) of
        ok -> ok;
        Other -> raise(Longest, Us, Other)
    end.

%% The bucket of a time, from 1 on: below 256 the time itself, and then 128 for each power of two.
bucket(Us) when Us < 2 * ?STEPS -> Us;
bucket(Us) -> bucket(Us bsr 1, 1).

bucket(Us, Shift) when Us < 2 * ?STEPS -> Shift * ?STEPS + Us;
bucket(Us, Shift) when Us >= 16 * ?STEPS -> bucket(Us bsr 4, Shift + 4);
bucket(Us, Shift) -> bucket(Us bsr 1, Shift + 1).

%% The longest time of a bucket.
longest(Bucket) when Bucket < 2 * ?STEPS -> Bucket;
longest(Bucket) ->
    Shift = Bucket div ?STEPS - 1,
    ((Bucket - Shift * ?STEPS + 1) bsl Shift) - 1.

-doc "Returns the number of counted times.".
-spec count(histogram() | entries()) -> non_neg_integer().
count(Times) ->
    sum(buckets(Times), 0).

sum([], Sum) -> Sum;
sum([{_, Count} | Buckets], Sum) when is_integer(Count) -> sum(Buckets, Sum + Count).

-doc "Returns the mean time in microseconds, or 0.0 if the histogram is empty.".
-spec mean(histogram()) -> float().
mean(#histogram{counts = Counts} = Histogram) ->
    case count(Histogram) of
        0 -> 0.0;
        Count -> counters:get(Counts, ?SUM) / Count
    end.

-doc """
Returns the standard deviation in microseconds, or 0.0 if the histogram is empty. Each time counts
as the middle of its bucket, which is off by less than 0.5 %.

## Examples

```erlang
1> erlmcp_bench_histogram:deviation([{10, 2}, {20, 2}]).
5.0
```
""".
-spec deviation(histogram() | entries()) -> float().
deviation(Times) ->
    Middles = [{(longest(Bucket - 1) + 1 + longest(Bucket)) / 2, Count}
               || {Bucket, Count} <- buckets(Times)],
    Count = erlang:max(1, lists:sum([Number || {_, Number} <- Middles])),
    Mean = lists:sum([Us * Number || {Us, Number} <- Middles]) / Count,
    math:sqrt(lists:sum([(Us - Mean) * (Us - Mean) * Number || {Us, Number} <- Middles]) / Count).

-doc "Returns the longest time in microseconds, exactly, or 0 if there is none.".
-spec max(histogram() | entries()) -> non_neg_integer().
max(#histogram{longest = Longest}) ->
    atomics:get(Longest, 1);
max([]) ->
    0;
max(Entries) ->
    {Us, _} = lists:last(Entries),
    Us.

-doc """
Returns the time in microseconds that `Percent` per cent of all times do not exceed. The result is
too long by less than 1 %. The result is exact for 100 per cent, and 0 if there is no time.

## Examples

```erlang
1> Entries = [{200, 98}, {5_000, 1}, {90_000, 1}].
2> [erlmcp_bench_histogram:percentile(Entries, P) || P <- [50, 98, 100.0]].
[200, 200, 90000]
```
""".
-spec percentile(histogram() | entries(), Percent :: number()) -> non_neg_integer().
percentile(Times, Percent) when Percent >= 0, Percent =< 100 ->
    Buckets = buckets(Times),
    Count = lists:sum([Number || {_, Number} <- Buckets]),
    %% The least number of times that is `Percent` per cent of all.
    Rank = erlang:max(1, ceil(Percent * Count / 100)),
    erlang:min(ranked(Buckets, Rank), max(Times)).

ranked([], _) -> 0;
ranked([{Bucket, Count} | _], Rank) when Count >= Rank -> longest(Bucket);
ranked([{_, Count} | Buckets], Rank) -> ranked(Buckets, Rank - Count).

buckets(#histogram{counts = Counts} = Histogram) ->
    [{Bucket, Count} || Bucket <- lists:seq(1, bucket(max(Histogram))),
                        Count <- [counters:get(Counts, Bucket)], Count > 0];
buckets(Entries) ->
    [{bucket(Us), Count} || {Us, Count} <- Entries].

-doc "Returns a new histogram with the times of all given ones.".
-spec merge([histogram()]) -> histogram().
merge(Histograms) ->
    New = #histogram{counts = Counts, longest = Longest} = new(),
    lists:foreach(
        fun(#histogram{counts = From} = Histogram) ->
            [ok = counters:add(Counts, Bucket, Count) || {Bucket, Count} <- buckets(Histogram)],
            ok = counters:add(Counts, ?SUM, counters:get(From, ?SUM)),
            ok = raise(Longest, max(Histogram), atomics:get(Longest, 1))
        end, Histograms),
    New.

-doc "Returns the counts as a list, from the shortest time to the longest, to store and compare.".
-spec to_list(histogram()) -> entries().
to_list(Histogram) ->
    Longest = max(Histogram),
    Last = bucket(Longest),
    %% A longer time may be counted while the list is made, but each entry still covers one bucket.
    [{case Bucket of Last -> Longest; _ -> longest(Bucket) end, Count}
     || {Bucket, Count} <- buckets(Histogram)].

-doc """
Returns a new histogram with the counts of a list from `to_list/1`. A list has rounded times, so the
mean of the new histogram is too long by less than 1 %.
""".
-spec from_list(entries()) -> histogram().
from_list(Entries) ->
    New = new(),
    lists:foreach(fun({Us, Count}) -> ok = add(New, clipped(Us), Count) end, Entries),
    New.

-doc """
Returns the times that a histogram has counted between two calls of `to_list/1`: those of `Later`
without those of `Earlier`.

## Examples

```erlang
1> erlmcp_bench_histogram:since([{3, 2}, {7, 5}, {250, 1}], [{3, 2}, {7, 1}]).
[{7, 4}, {250, 1}]
```
""".
-spec since(Later :: entries(), Earlier :: entries()) -> entries().
since([{Us, Count} | Later], [{Before, Old} | Earlier]) ->
    %% Entries are compared by bucket: the last entry of the earlier list ends at the longest time
    %% of then.
    case {bucket(Us), bucket(Before)} of
        {Bucket, Bucket} when Count > Old -> [{Us, Count - Old} | since(Later, Earlier)];
        {Bucket, Bucket} -> since(Later, Earlier);
        {_, _} -> [{Us, Count} | since(Later, [{Before, Old} | Earlier])]
    end;
since(Later, _) ->
    Later.
