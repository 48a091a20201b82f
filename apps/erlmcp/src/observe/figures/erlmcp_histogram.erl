-module(erlmcp_histogram).
-moduledoc """
The buckets of latencies, and the figures that they give. Pure. A fine histogram has 13 buckets in
each decade from a microsecond to 300 seconds. A quantile in this range is wrong by less than 12 %.
A coarse histogram has the buckets of OpenTelemetry, whose bounds are bounds of the fine one, too.

Internal.
""".

-export([fine_bounds/0, middle_bounds/0, coarse_bounds/0, fine/2, coarse/2, sum/2]).

%% Nanoseconds.
-define(STEPS, [12, 14, 17, 20, 24, 30, 35, 42, 50, 60, 70, 85, 100]).
-define(LONGEST, 300_000_000_000).
-define(COARSE, [10_000_000, 20_000_000, 50_000_000, 100_000_000, 200_000_000, 500_000_000,
                 1_000_000_000, 2_000_000_000, 5_000_000_000, 10_000_000_000, 30_000_000_000,
                 60_000_000_000, 120_000_000_000, 300_000_000_000]).

-doc "Returns the ends of the fine buckets in nanoseconds. The last bucket has no end.".
-spec fine_bounds() -> [pos_integer(), ...].
fine_bounds() ->
    [1_000 | [Bound || Exponent <- lists:seq(2, 10), Step <- ?STEPS,
                       Bound <- [Step * power(Exponent)], Bound =< ?LONGEST]].

power(0) -> 1;
power(Exponent) -> 10 * power(Exponent - 1).

-doc """
Returns the ends, in nanoseconds, of the middle buckets: seven in each decade, from 10 microseconds
to 300 seconds. Middle buckets are shown where the fine ones would be too many.
""".
-spec middle_bounds() -> [pos_integer(), ...].
middle_bounds() ->
    [Bound || Exponent <- lists:seq(3, 10), Step <- [10, 14, 20, 30, 42, 60, 85],
              Bound <- [Step * power(Exponent)], Bound =< ?LONGEST].

-doc "Returns the ends of OpenTelemetry's buckets in nanoseconds. The last bucket has no end.".
-spec coarse_bounds() -> [pos_integer(), ...].
coarse_bounds() -> ?COARSE.

-doc """
Returns the figures of latencies, of which `Sum` is the sum in nanoseconds, and `Counts` has the
counts by fine buckets.
""".
-spec fine(Sum :: non_neg_integer(), Counts :: [non_neg_integer()]) -> erlmcp:latency().
fine(Sum, Counts) ->
    latency(Sum, Counts, fine_bounds()).

-doc """
Returns the figures of latencies, of which `Sum` is the sum in nanoseconds, and `Counts` has the
counts by coarse buckets.
""".
-spec coarse(Sum :: non_neg_integer(), Counts :: [non_neg_integer()]) -> erlmcp:latency().
coarse(Sum, Counts) ->
    latency(Sum, Counts, coarse_bounds()).

latency(Sum, Counts, [First | _] = Bounds) ->
    Filled = [Bucket || {_, _, Count} = Bucket <- lists:zip3([First div 2 | Bounds],
                                                             Bounds ++ [infinity], Counts),
                        Count > 0],
    Total = lists:sum([Count || {_, _, Count} <- Filled]),
    Quantile = fun(Share) -> quantile(Share * Total, Filled) end,
    #{count => Total, sum_us => Sum div 1000,
      max_us => case Filled of
                    [] -> 0;
                    _ -> microseconds(min(element(2, lists:last(Filled)), ?LONGEST))
                end,
      p50_us => Quantile(0.5), p95_us => Quantile(0.95), p99_us => Quantile(0.99),
      p999_us => Quantile(0.999),
      histogram => [{microseconds(End), Count} || {_, End, Count} <- Filled]}.

%% The quantile is the geometric mean of the two ends of its bucket.
quantile(_, []) -> 0;
quantile(Rank, [{_, _, Count} | [_ | _] = Filled]) when Rank > Count ->
    quantile(Rank - Count, Filled);
quantile(_, [{_, infinity, _} | _]) -> microseconds(?LONGEST);
quantile(_, [{Start, End, _} | _]) -> round(math:sqrt(Start * End) / 100) / 10.

microseconds(infinity) -> infinity;
microseconds(Nanoseconds) when Nanoseconds rem 1000 =:= 0 -> Nanoseconds div 1000;
microseconds(Nanoseconds) -> Nanoseconds / 1000.

-doc "Adds two lists of counts by the same buckets, bucket by bucket.".
-spec sum([non_neg_integer()], [non_neg_integer()]) -> [non_neg_integer()].
sum(One, Other) ->
    lists:zipwith(fun(A, B) -> A + B end, One, Other).
