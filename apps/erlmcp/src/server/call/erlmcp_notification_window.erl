-module(erlmcp_notification_window).
-moduledoc """
What a call has said before its answer and its connection has not written yet, bounded: a handler
in a loop is quicker than any connection. Whoever says something asks for room first (`room/1`), and
who writes it gives that back (`written/2`).

Where there is none, the one who says it waits, as long as his client reads: he was too quick, and
nothing is lost. One whose client reads nothing for `?PATIENCE` milliseconds, or who has waited for
`?WAITS` of them, waits no more: what he says is left out until there is room, and the next message
says how many there were. The specification wants log messages and progress to be rate limited by
who sends them; what a call is for is its result, and that is not kept waiting, or ended, for the
sake of a client that does not read the rest.
""".

-export([new/1, room/1, sent/2, written/2, forget/1]).

-export_type([unread/0]).

-opaque unread() :: {atomics:atomics_ref(), Messages :: pos_integer(), Bytes :: pos_integer()}.

-define(MESSAGES, 1).
-define(BYTES, 2).
-define(LEFT_OUT, 3).
-define(WAITED, 4).
-define(STALLED, 5).

%% Milliseconds for which a client that reads nothing is waited for, and for which one call waits.
-define(PATIENCE, 100).
-define(WAITS, 5000).
%% Calls of one connection whose messages have, together, the bytes that may wait for it.
-define(CALLS, 16).

-doc "Nothing yet.".
-spec new(#{unread_messages := pos_integer(), unread_bytes := pos_integer(), _ => _}) -> unread().
new(#{unread_messages := Messages, unread_bytes := Bytes}) ->
    {atomics:new(5, []), Messages, max(1, Bytes div ?CALLS)}.

-doc """
Takes the place of a message, or says that there is none. With it come how many had none before; the
message says so.
""".
-spec room(unread()) -> {ok, LeftOut :: non_neg_integer()} | none.
room(Unread) ->
    case take(Unread) of
        ok -> {ok, left_out(Unread)};
        none -> wait(Unread)
    end.

take({Words, Messages, Bytes}) ->
    case atomics:add_get(Words, ?MESSAGES, 1) of
        Count when Count =< Messages ->
            %% One may have more.
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

wait({Words, _, _} = Unread) ->
    case atomics:get(Words, ?STALLED) =:= 1 orelse atomics:get(Words, ?WAITED) >= ?WAITS of
        true -> leave_out(Unread);
        false -> wait(atomics:get(Words, ?MESSAGES), ?PATIENCE, Unread)
    end.

wait(_, 0, Unread) ->
    leave_out(Unread);
wait(Before, Left, {Words, _, _} = Unread) ->
    receive after 1 -> ok end,
    Waited = atomics:add_get(Words, ?WAITED, 1),
    case {take(Unread), atomics:get(Words, ?MESSAGES)} of
        {ok, _} -> {ok, left_out(Unread)};
        {none, _} when Waited >= ?WAITS -> leave_out(Unread);
        {none, Now} when Now < Before -> wait(Now, ?PATIENCE, Unread);
        {none, _} -> wait(Before, Left - 1, Unread)
    end.

leave_out({Words, _, _}) ->
    ok = atomics:put(Words, ?STALLED, 1),
    ok = atomics:add(Words, ?LEFT_OUT, 1),
    none.

-doc "The message that has a place has so many bytes.".
-spec sent(Bytes :: non_neg_integer(), unread()) -> ok.
sent(Bytes, {Words, _, _}) ->
    atomics:add(Words, ?BYTES, Bytes).

-doc "A message of so many bytes is written, or will not be.".
-spec written(Bytes :: non_neg_integer(), unread()) -> ok.
written(Bytes, {Words, _, _}) ->
    ok = atomics:sub(Words, ?BYTES, Bytes),
    atomics:sub(Words, ?MESSAGES, 1).

-doc "Who was to write them is no more.".
-spec forget(unread()) -> ok.
forget({Words, _, _}) ->
    ok = atomics:put(Words, ?BYTES, 0),
    atomics:put(Words, ?MESSAGES, 0).
