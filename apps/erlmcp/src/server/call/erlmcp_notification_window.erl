-module(erlmcp_notification_window).
-moduledoc """
Bounds the notifications that a call has sent and its connection has not written yet. The handler
takes room for each notification before it is sent (`room/1`), and the connection or session frees
the room when it has written or kept the notification (`written/2`).

Without room the handler waits. It stops waiting when its client has read nothing for 500
milliseconds, or when the call has waited for 5,000 milliseconds in all. Then its notifications are
left out until there is room, and the next one has their number.

Internal.
""".

-export([new/1, without_waiting/1, room/1, sent/2, unsent/2, written/2, forget/1]).

-export_type([window/0]).

-opaque window() :: {atomics:atomics_ref(), Messages :: pos_integer(), Bytes :: pos_integer()}.

-define(MESSAGES, 1).
-define(BYTES, 2).
-define(LEFT_OUT, 3).
-define(WAITED, 4).
-define(STALLED, 5).

%% Milliseconds that a call waits at most for a client that reads nothing, and in all. On a busy
%% machine, a connection that has no turn looks like a client that reads nothing. So the first of
%% these times is longer than such delays, and pauses of the whole node hardly count.
-define(PATIENCE, 500).
-define(WAITS, 5000).
%% Milliseconds that count at most from one look to the next.
-define(LOOK, 10).
%% The window of a call has this part of the bytes that may wait for its connection.
-define(CALLS, 16).

-doc """
Returns an empty window, with room for `unread_messages` messages, and for a sixteenth of
`unread_bytes` bytes. If a byte of room is left, a message may be larger than the rest of the room.
""".
-spec new(#{unread_messages := pos_integer(), unread_bytes := pos_integer(), _ => _}) -> window().
new(#{unread_messages := Messages, unread_bytes := Bytes}) ->
    {atomics:new(5, []), Messages, max(1, Bytes div ?CALLS)}.

-doc """
Returns an empty window as `new/1` does, for an inline call. The handler of such a call never waits
for room.
""".
-spec without_waiting(#{unread_messages := pos_integer(), unread_bytes := pos_integer(),
                        _ => _}) -> window().
%% The process of the connection runs the handler, and frees no room meanwhile.
without_waiting(Limits) ->
    {Words, _, _} = Window = new(Limits),
    ok = atomics:put(Words, ?WAITED, ?WAITS),
    Window.

-doc """
Takes room for a message. If there is none, waits for room as the module describes. Returns
`{ok, LeftOut}` with the number of messages left out since the last one that had room. Returns
`none` if there is still no room: then this message must be left out, too.
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

wait(_, Left, Window) when Left =< 0 ->
    leave_out(Window);
wait(Before, Left, {Words, _, _} = Window) ->
    Began = erlang:monotonic_time(millisecond),
    receive after 1 -> ok end,
    Milliseconds = min(?LOOK, erlang:monotonic_time(millisecond) - Began),
    Waited = atomics:add_get(Words, ?WAITED, Milliseconds),
    case {take(Window), atomics:get(Words, ?MESSAGES)} of
        {ok, _} -> {ok, left_out(Window)};
        {none, _} when Waited >= ?WAITS -> leave_out(Window);
        {none, Now} when Now < Before -> wait(Now, ?PATIENCE, Window);
        {none, _} -> wait(Before, Left - Milliseconds, Window)
    end.

leave_out({Words, _, _}) ->
    ok = atomics:put(Words, ?STALLED, 1),
    ok = atomics:add(Words, ?LEFT_OUT, 1),
    none.

-doc """
Counts the `Bytes` of a message as unread. The caller has taken room for the message with `room/1`.
""".
-spec sent(Bytes :: non_neg_integer(), window()) -> ok.
sent(Bytes, {Words, _, _}) ->
    atomics:add(Words, ?BYTES, Bytes).

-doc """
Frees the room of a message that was not sent after all. The next message has the number `LeftOut`,
which `room/1` has returned for this one.
""".
-spec unsent(LeftOut :: non_neg_integer(), window()) -> ok.
unsent(LeftOut, {Words, _, _} = Window) ->
    ok = atomics:add(Words, ?LEFT_OUT, LeftOut),
    written(0, Window).

-doc "Frees the room of a message of `Bytes` bytes, which was written or will not be.".
-spec written(Bytes :: non_neg_integer(), window()) -> ok.
written(Bytes, {Words, _, _}) ->
    ok = atomics:sub(Words, ?BYTES, Bytes),
    atomics:sub(Words, ?MESSAGES, 1).

-doc "Frees all room, since the process that had to write the messages has ended.".
-spec forget(window()) -> ok.
forget({Words, _, _}) ->
    ok = atomics:put(Words, ?BYTES, 0),
    atomics:put(Words, ?MESSAGES, 0).
