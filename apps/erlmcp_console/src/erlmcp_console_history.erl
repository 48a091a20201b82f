-module(erlmcp_console_history).
-moduledoc """
The last fifteen minutes of a server as points, bounded by time and by number. Pure.
""".

-export([new/0, add/2, columns/1]).

-export_type([history/0, point/0]).

-doc """
A system time in milliseconds, followed by values. All points of a history have the same number of
values, in the same order. A value that is not known is `null`.
""".
-type point() :: [number() | null, ...].
%% The newest first.
-opaque history() :: [point()].

-define(QUARTER_MS, 900_000).
%% One point a second.
-define(POINTS, 900).

-doc "Returns a history without points.".
-spec new() -> history().
new() ->
    [].

-doc """
Adds a point that is later than all others. Removes the points that are at least 15 minutes older
than this one. Also removes the oldest point if there are more than 900 points.
""".
-spec add(point(), history()) -> history().
add([At | _] = Point, Points) ->
    [Point | [Old || [Then | _] = Old <- lists:sublist(Points, ?POINTS - 1),
                     At - Then < ?QUARTER_MS]].

-doc """
Returns the points as columns: the times, and then each value. A column begins with the oldest
point. Without points there are no columns.
""".
-spec columns(history()) -> [[number() | null]].
columns([]) -> [];
columns([Point | _] = Points) ->
    lists:foldl(fun(Each, Columns) ->
        lists:zipwith(fun(Value, Column) -> [Value | Column] end, Each, Columns)
    end, [[] || _ <- Point], Points).
