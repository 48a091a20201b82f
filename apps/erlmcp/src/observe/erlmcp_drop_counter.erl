-module(erlmcp_drop_counter).
-moduledoc """
Counts the messages that wait for a slow receiver, and those that were dropped because 1,000 waited
already. Senders never wait.

Internal.
""".

-export([new/0, enter/1, leave/1, with_dropped/2]).

-export_type([backlog/0]).

-type backlog() :: atomics:atomics_ref().

-define(MAX_WAITING, 1000).

-define(WAITING, 1).
-define(DROPPED, 2).

-doc "Creates a counter at zero.".
-spec new() -> backlog().
new() ->
    atomics:new(2, []).

-doc """
Counts a message as waiting, until `leave/1`, and returns `true`. If 1,000 messages wait already,
counts the message as dropped and returns `false`.
""".
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

-doc "Counts a message, for which `enter/1` has returned `true`, as no longer waiting.".
-spec leave(backlog()) -> ok.
leave(Backlog) ->
    atomics:sub(Backlog, ?WAITING, 1).

-doc """
Adds `dropped` to `Report`: the number of messages that were dropped since the last call of this
function. Returns `Report` unchanged if none were dropped.
""".
-spec with_dropped(Report :: #{atom() => term()}, backlog()) -> #{atom() => term()}.
with_dropped(Report, Backlog) ->
    case atomics:exchange(Backlog, ?DROPPED, 0) of
        0 -> Report;
        Dropped -> Report#{dropped => Dropped}
    end.
