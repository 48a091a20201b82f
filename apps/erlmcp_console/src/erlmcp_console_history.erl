-module(erlmcp_console_history).
-moduledoc """
The last fifteen minutes of a server as points, and the last hour of its bounds, a value a minute.
It is bounded by time and by number. Pure.
""".

-export([new/0, add/3, columns/1, hour/2]).

-export_type([history/0, point/0]).

-doc "A time in milliseconds, and values in an order that the caller knows.".
-type point() :: [number(), ...].
-opaque history() :: #{
    %% the newest first
    points := [point()],
    hour := [{AtMs :: integer(), #{Name :: binary() => number()}}]
}.

-define(QUARTER_MS, 900_000).
%% One point a second.
-define(POINTS, 900).
-define(MINUTE_MS, 60_000).
-define(MINUTES, 60).

-doc "Returns a history without points.".
-spec new() -> history().
new() ->
    #{points => [], hour => []}.

-doc """
Adds a point, and the values of the bounds at its time. Points that are too old, or too many, go.
""".
-spec add(point(), Bounds :: #{Name :: binary() => number()}, history()) -> history().
add([At | _] = Point, Bounds, #{points := Points, hour := Hour}) ->
    Recent = [Old || [Then | _] = Old <- lists:sublist(Points, ?POINTS - 1),
                     At - Then < ?QUARTER_MS],
    #{points => [Point | Recent],
      hour => case Hour of
                  [{Then, _} | _] when At - Then < ?MINUTE_MS -> Hour;
                  _ -> [{At, Bounds} | lists:sublist(Hour, ?MINUTES - 1)]
              end}.

-doc "Returns the points as columns, the oldest first: first that of the times.".
-spec columns(history()) -> [[number()]].
columns(#{points := []}) -> [];
columns(#{points := [Point | _] = Points}) ->
    lists:foldl(fun(Each, Columns) ->
        lists:zipwith(fun(Value, Column) -> [Value | Column] end, Each, Columns)
    end, [[] || _ <- Point], Points).

-doc "Returns the values of a bound in the last hour, the oldest first.".
-spec hour(Name :: binary(), history()) -> [erlmcp_forecast:point()].
hour(Name, #{hour := Hour}) ->
    lists:reverse([{At, maps:get(Name, Values)} || {At, Values} <- Hour,
                                                   is_map_key(Name, Values)]).
