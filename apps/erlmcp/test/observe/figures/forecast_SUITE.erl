-module(forecast_SUITE).
-moduledoc """
Forecasts of bounds: a trend is found with its error whatever its steepness, and noise, whether each
value is drawn anew or follows the one before, has none.
""".

-include_lib("proper/include/proper.hrl").

-define(MINUTE, 60_000).
-define(DAY, 86_400_000).

-export([suite/0, all/0]).
-export([examples/1, a_line_meets_its_bound/1, a_noisy_line_meets_it_within_its_error/1,
         noise_has_no_forecast/1, a_walk_has_rarely_one/1, bounds_of_the_points/1]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [examples, a_line_meets_its_bound, a_noisy_line_meets_it_within_its_error,
     noise_has_no_forecast, a_walk_has_rarely_one, bounds_of_the_points].

examples(_) ->
    erlmcp_test_doctests:run([erlmcp_forecast]).

%% A line without noise is met on the line, if that is within a day.
a_line_meets_its_bound(_) ->
    holds(?FORALL({Start, PerMinute, Missing, Count},
                  {range(0, 1_000_000), range(1, 10_000), range(1, 100_000_000), range(10, 60)},
        begin
            Points = [{?MINUTE * N, Start + PerMinute * N} || N <- lists:seq(0, Count - 1)],
            {Last, Value} = lists:last(Points),
            After = Missing * ?MINUTE / PerMinute,
            case erlmcp_forecast:forecast(Points, Value + Missing) of
                none -> After > ?DAY * 0.999;
                #{at := At, earliest := Earliest, latest := Latest} ->
                    abs(At - Last - After) =< 2 + After * 1.0e-6
                        andalso Earliest =< At andalso At =< Latest
            end
        end)).

%% The time of the true line is nearly always between the earliest and the latest.
a_noisy_line_meets_it_within_its_error(_) ->
    Within = [begin
                  Points = [{?MINUTE * N, 10 * N + 30 * rand:normal()} || N <- lists:seq(0, 59)],
                  #{earliest := Earliest, latest := Latest} =
                      erlmcp_forecast:forecast(Points, 1_000),
                  Earliest =< 100 * ?MINUTE andalso 100 * ?MINUTE =< Latest
              end || _ <- seeded(500)],
    true = length([true || true <- Within]) > 440.

noise_has_no_forecast(_) ->
    Found = [Forecast || _ <- seeded(2_000),
                         #{} = Forecast <- [erlmcp_forecast:forecast(
                             [{?MINUTE * N, 100 + 20 * rand:normal()} || N <- lists:seq(0, 59)],
                             200)]],
    true = length(Found) =< 4.

%% Each value is the one before and a random step, as a count of open connections is.
a_walk_has_rarely_one(_) ->
    Found = [Forecast || _ <- seeded(1_000),
                         #{} = Forecast <- [erlmcp_forecast:forecast(walk(60, 100), 200)]],
    ct:pal("~b of 1,000 walks have a forecast", [length(Found)]),
    true = length(Found) < 100.

walk(Count, Start) ->
    {Points, _} = lists:mapfoldl(fun(N, Value) ->
        Next = Value + rand:normal(),
        {{?MINUTE * N, Next}, Next}
    end, Start, lists:seq(0, Count - 1)),
    Points.

bounds_of_the_points(_) ->
    Line = fun(Step, Count) -> [{Step * N, N} || N <- lists:seq(0, Count - 1)] end,
    Forecast = fun erlmcp_forecast:forecast/2,
    none = Forecast([], 10),
    none = Forecast(Line(?MINUTE, 9), 100),
    #{} = Forecast(Line(?MINUTE, 10), 100),
    %% Ten points of five minutes, and of a little less.
    #{} = Forecast(Line(33_334, 10), 100),
    none = Forecast(Line(33_333, 10), 100),
    none = Forecast(Line(?MINUTE, 60), infinity),
    %% A bound that is met, and one that is left behind.
    none = Forecast(Line(?MINUTE, 60), 59),
    none = Forecast([{At, -Value} || {At, Value} <- Line(?MINUTE, 60)], 100),
    %% A day later, and a minute after that.
    #{} = Forecast(Line(?MINUTE, 60), 59 + 1440),
    none = Forecast(Line(?MINUTE, 60), 59 + 1441).

%% The same numbers in each run.
seeded(Count) ->
    _ = rand:seed(exsss, {1, 2, 3}),
    lists:seq(1, Count).

holds(Property) ->
    erlmcp_test_property:holds(Property, 200).
