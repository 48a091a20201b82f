-module(erlmcp_bench_slope).
-moduledoc """
Fits a straight line through measured points, and tells how certain its slope is. Pure.
""".

-export([fit/1, verdict/3, deviation_percent/1]).

-export_type([line/0]).

-doc "The slope, its standard error, and the mean of the second coordinates.".
-type line() :: #{slope := float(), error := float(), mean := float()}.

%% The error of a slope exceeds this number of standard errors in at most one of a hundred cases,
%% for six points (Student's t of four degrees of freedom). More points would need a lower number,
%% but have the same.
-define(ERRORS, 4.6).

-doc """
Returns the line of least squares. There must be at least three points, with at least two different
first coordinates.

## Examples

```erlang
1> #{slope := 2.0, error := +0.0} = erlmcp_bench_slope:fit([{0, 1}, {1, 3}, {2, 5}]), ok.
ok
```
""".
-spec fit([{number(), number()}, ...]) -> line().
fit([_, _, _ | _] = Points) ->
    Count = length(Points),
    MeanX = lists:sum([X || {X, _} <- Points]) / Count,
    MeanY = lists:sum([Y || {_, Y} <- Points]) / Count,
    Spread = lists:sum([(X - MeanX) * (X - MeanX) || {X, _} <- Points]),
    Slope = lists:sum([(X - MeanX) * (Y - MeanY) || {X, Y} <- Points]) / Spread,
    Rest = lists:sum([square(Y - MeanY - Slope * (X - MeanX)) || {X, Y} <- Points]),
    #{slope => Slope, error => math:sqrt(Rest / (Count - 2) / Spread), mean => MeanY}.

square(Number) -> Number * Number.

-doc """
Judges whether the slope of a line is above `Bound`, or below it, as the first argument says.
Returns `within` if it is not. Returns `beyond` if it is, and is away from `Bound` by more than 4.6
standard errors of the slope. Otherwise the verdict is `unclear`.

## Examples

```erlang
1> erlmcp_bench_slope:verdict(above, 1, #{slope => 3.0, error => 0.1, mean => 0.0}).
beyond
2> erlmcp_bench_slope:verdict(above, 1, #{slope => 3.0, error => 1.0, mean => 0.0}).
unclear
3> erlmcp_bench_slope:verdict(below, -5, #{slope => 3.0, error => 1.0, mean => 0.0}).
within
```
""".
-spec verdict(above | below, Bound :: number(), line()) -> beyond | unclear | within.
verdict(above, Bound, #{slope := Slope, error := Error}) ->
    if
        Slope =< Bound -> within;
        Slope - ?ERRORS * Error > Bound -> beyond;
        true -> unclear
    end;
verdict(below, Bound, #{slope := Slope} = Line) ->
    verdict(above, -Bound, Line#{slope := -Slope}).

-doc """
Returns the standard deviation of numbers, in percent of their mean. It is 0.0 for a single number,
or a mean of 0.
""".
-spec deviation_percent([number(), ...]) -> float().
deviation_percent([_]) ->
    0.0;
deviation_percent(Numbers) ->
    Count = length(Numbers),
    case lists:sum(Numbers) / Count of
        Mean when Mean == 0 -> 0.0;
        Mean -> 100 * math:sqrt(lists:sum([square(Number - Mean) || Number <- Numbers])
                                / (Count - 1)) / Mean
    end.
