-module(erlmcp_forecast).
-moduledoc """
Forecasts when a bound will be met, if the trend of the last hour goes on. The trend is a straight
line through the observed values. Pure.

A trend that may be noise gives no forecast: its slope must be more than four times its standard
error. The error takes into account that successive values are alike.

Internal.
""".

-export([forecast/2]).

-export_type([point/0]).

-doc "A time in milliseconds, and the value that was observed then.".
-type point() :: {AtMs :: integer(), Value :: number()}.

%% The points of a trend, and the milliseconds from the first to the last, at least.
-define(POINTS, 10).
-define(SPAN_MS, 300_000).
%% How many standard errors the slope must be above zero, and how many the forecast allows for.
-define(SIGNIFICANT, 4).
-define(ALLOWED, 2).
%% An hour says nothing about a time that is later than this.
-define(HORIZON_S, 86_400).
%% The highest correlation of successive values that is taken into account.
-define(ALIKE, 0.98).

-doc """
Returns when `Bound` will be met if the trend of the points goes on. The points are in the order of
their times. Returns `none` for fewer than 10 points, for points that span less than five minutes,
and for `infinity`. Returns `none`, too, if the trend may be noise, does not grow, or has met the
bound already. A time more than a day after the last point is not returned, either.

## Examples

```erlang
1> Minutes = [{60_000 * Minute, 100 + Minute} || Minute <- lists:seq(1, 60)].
2> #{at := 6_000_000, per_hour := 60.0} = erlmcp_forecast:forecast(Minutes, 200), ok.
ok
3> erlmcp_forecast:forecast([{60_000 * Minute, 100} || Minute <- lists:seq(1, 60)], 200).
none
```
""".
-spec forecast([point()], Bound :: number() | infinity) -> erlmcp:forecast() | none.
forecast(_, infinity) ->
    none;
forecast(Points, Bound) when length(Points) >= ?POINTS ->
    {First, _} = hd(Points),
    {Last, _} = lists:last(Points),
    case Last - First >= ?SPAN_MS of
        %% The numbers stay small if times begin at the last point.
        true -> trend([{(At - Last) / 1000, Value} || {At, Value} <- Points], Last, Bound);
        false -> none
    end;
forecast(_, _) ->
    none.

trend(Points, Last, Bound) ->
    Count = length(Points),
    MeanX = lists:sum([X || {X, _} <- Points]) / Count,
    MeanY = lists:sum([Y || {_, Y} <- Points]) / Count,
    Square = lists:sum([(X - MeanX) * (X - MeanX) || {X, _} <- Points]),
    Slope = lists:sum([(X - MeanX) * (Y - MeanY) || {X, Y} <- Points]) / Square,
    Rests = [Y - MeanY - Slope * (X - MeanX) || {X, Y} <- Points],
    Error = error_of_slope(Rests, Count, Square),
    case Slope > 0 andalso Slope > ?SIGNIFICANT * Error andalso MeanY - Slope * MeanX < Bound of
        true ->
            %% The error of the line at the place where it meets the bound.
            After = (Bound - MeanY) / Slope + MeanX,
            Away = After - MeanX,
            Off = Error * math:sqrt(Square / Count + Away * Away) / Slope,
            met(After, ?ALLOWED * Off, Slope, Last);
        false ->
            none
    end.

error_of_slope(Rests, Count, Square) ->
    Sum = lists:sum([Rest * Rest || Rest <- Rests]),
    Seen = alike(Rests, Sum),
    %% A few values around a line of their own show less correlation than they have.
    Alike = min(?ALIKE, max(0.0, Seen + (2 + 4 * Seen) / Count)),
    math:sqrt(Sum / (Count - 2) / Square * (1 + Alike) / (1 - Alike)).

%% The correlation of each rest with the next.
alike(Rests, Sum) when Sum > 0 ->
    lists:sum([A * B || {A, B} <- lists:zip(lists:droplast(Rests), tl(Rests))]) / Sum;
alike(_, _) ->
    0.0.

met(After, Off, Slope, Last) when After =< ?HORIZON_S ->
    At = fun(Seconds) -> Last + round(1000 * Seconds) end,
    #{at => At(After), earliest => At(max(0, After - Off)), latest => At(After + Off),
      per_hour => 3600 * Slope};
met(_, _, _, _) ->
    none.
