-module(erlmcp_drop_counter).
-moduledoc """
Counts the messages that wait for a receiver that may be slow, and those that were dropped over a
bound. The sender never waits itself.

Internal.
""".

-export([new/0, enter/1, leave/1, with_dropped/2]).

-export_type([backlog/0]).

-type backlog() :: atomics:atomics_ref().

-define(MAX_WAITING, 1000).

-define(WAITING, 1).
-define(DROPPED, 2).

-doc "Makes a counter of which nothing waits.".
-spec new() -> backlog().
new() ->
    atomics:new(2, []).

-doc "Returns `true` if one more may wait: 1,000 at most. One that may not is counted as dropped.".
-spec enter(backlog()) -> boolean().
enter(Backlog) ->
    case atomics:add_get(Backlog, ?WAITING, 1) of
        Waiting when Waiting > ?MAX_WAITING ->
            ok = leave(Backlog),
            ok = atomics:add(Backlog, ?DROPPED, 1),
            false;
        _ ->
            true
    end.

-doc "Takes away one that waits no longer.".
-spec leave(backlog()) -> ok.
leave(Backlog) ->
    atomics:sub(Backlog, ?WAITING, 1).

-doc "Returns what is told next, with how many were dropped before it, as `dropped`, if any were.".
-spec with_dropped(#{atom() => term()}, backlog()) -> #{atom() => term()}.
with_dropped(Told, Backlog) ->
    case atomics:exchange(Backlog, ?DROPPED, 0) of
        0 -> Told;
        Dropped -> Told#{dropped => Dropped}
    end.
