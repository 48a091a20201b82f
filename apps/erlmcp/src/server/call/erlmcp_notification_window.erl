-module(erlmcp_notification_window).
-moduledoc """
The bound for notifications that a call has sent and its connection has not written yet. A handler
in a loop is faster than any connection. It asks for room before it reports something (`room/1`),
and the connection gives the room back when it has written the report (`written/2`).

Without room the handler waits, as long as its client reads, so that nothing is lost. It stops
waiting when its client has read nothing for `?PATIENCE` milliseconds, or when it has waited for
`?WAITS` milliseconds in all. Then its notifications are left out until there is room, and the next
one tells their number.

The specification wants the sender of log messages and progress to limit their rate. The purpose of
a call is its result, which is not kept waiting, or ended, for a client that does not read the rest.

Internal.
""".

-export([new/1, room/1, sent/2, written/2, forget/1]).

-export_type([window/0]).

-opaque window() :: {atomics:atomics_ref(), Messages :: pos_integer(), Bytes :: pos_integer()}.

-define(MESSAGES, 1).
-define(BYTES, 2).
-define(LEFT_OUT, 3).
-define(WAITED, 4).
-define(STALLED, 5).

%% Milliseconds for which a call waits for a client that reads nothing, and in all.
-define(PATIENCE, 100).
-define(WAITS, 5000).
%% Calls of one connection whose messages have, together, the bytes that may wait for it.
-define(CALLS, 16).

-doc "Returns an empty window with the bounds of the limits `unread_messages` and `unread_bytes`.".
-spec new(#{unread_messages := pos_integer(), unread_bytes := pos_integer(), _ => _}) -> window().
new(#{unread_messages := Messages, unread_bytes := Bytes}) ->
    {atomics:new(5, []), Messages, max(1, Bytes div ?CALLS)}.

-doc """
Takes the place of a message, if there is one. With it comes how many messages had none before; the
message says so.
""".
-spec room(window()) -> {ok, LeftOut :: non_neg_integer()} | none.
room(Window) ->
    case take(Window) of
        ok -> {ok, left_out(Window)};
        none -> wait(Window)
    end.

take({Words, Messages, Bytes}) ->
    case atomics:add_get(Words, ?MESSAGES, 1) of
        Count when Count =< Messages ->
            %% A single notification may have more bytes.
            case Count =:= 1 orelse atomics:get(Words, ?BYTES) < Bytes of
                true -> ok;
                false -> give_back(Words)
            end;
        _ ->
            give_back(Words)
    end.

give_back(Words) ->
    ok = atomics:sub(Words, ?MESSAGES, 1),
    none.

left_out({Words, _, _}) ->
    ok = atomics:put(Words, ?STALLED, 0),
    case atomics:get(Words, ?LEFT_OUT) of
        0 -> 0;
        _ -> atomics:exchange(Words, ?LEFT_OUT, 0)
    end.

wait({Words, _, _} = Window) ->
    case atomics:get(Words, ?STALLED) =:= 1 orelse atomics:get(Words, ?WAITED) >= ?WAITS of
        true -> leave_out(Window);
        false -> wait(atomics:get(Words, ?MESSAGES), ?PATIENCE, Window)
    end.

wait(_, 0, Window) ->
    leave_out(Window);
wait(Before, Left, {Words, _, _} = Window) ->
    receive after 1 -> ok end,
    Waited = atomics:add_get(Words, ?WAITED, 1),
    case {take(Window), atomics:get(Words, ?MESSAGES)} of
        {ok, _} -> {ok, left_out(Window)};
        {none, _} when Waited >= ?WAITS -> leave_out(Window);
        {none, Now} when Now < Before -> wait(Now, ?PATIENCE, Window);
        {none, _} -> wait(Before, Left - 1, Window)
    end.

leave_out({Words, _, _}) ->
    ok = atomics:put(Words, ?STALLED, 1),
    ok = atomics:add(Words, ?LEFT_OUT, 1),
    none.

-doc "Adds the bytes of a message that has a place.".
-spec sent(Bytes :: non_neg_integer(), window()) -> ok.
sent(Bytes, {Words, _, _}) ->
    atomics:add(Words, ?BYTES, Bytes).

-doc "Gives back the place of a message of `Bytes` bytes, which is written or will not be.".
-spec written(Bytes :: non_neg_integer(), window()) -> ok.
written(Bytes, {Words, _, _}) ->
    ok = atomics:sub(Words, ?BYTES, Bytes),
    atomics:sub(Words, ?MESSAGES, 1).

-doc "Gives back all places: the process that was to write the messages is gone.".
-spec forget(window()) -> ok.
forget({Words, _, _}) ->
    ok = atomics:put(Words, ?BYTES, 0),
    atomics:put(Words, ?MESSAGES, 0).
