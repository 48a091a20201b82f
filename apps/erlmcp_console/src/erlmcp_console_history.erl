-module(erlmcp_console_history).
-moduledoc """
The last fifteen minutes of a server as points. It is bounded by time and by number. Pure.
""".

-export([new/0, add/2, columns/1]).

-export_type([history/0, point/0]).

-doc "A time in milliseconds, and values in an order that the caller knows.".
-type point() :: [number(), ...].
%% The newest first.
-opaque history() :: [point()].

-define(QUARTER_MS, 900_000).
%% One point a second.
-define(POINTS, 900).

-doc "Returns a history without points.".
-spec new() -> history().
new() ->
    [].

-doc "Adds a point. Points that are too old, or too many, go.".
-spec add(point(), history()) -> history().
add([At | _] = Point, Points) ->
    [Point | [Old || [Then | _] = Old <- lists:sublist(Points, ?POINTS - 1),
                     At - Then < ?QUARTER_MS]].

-doc "Returns the points as columns, the oldest first: first that of the times.".
-spec columns(history()) -> [[number()]].
columns([]) -> [];
columns([Point | _] = Points) ->
    lists:foldl(fun(Each, Columns) ->
        lists:zipwith(fun(Value, Column) -> [Value | Column] end, Each, Columns)
    end, [[] || _ <- Point], Points).
