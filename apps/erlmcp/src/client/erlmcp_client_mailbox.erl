-module(erlmcp_client_mailbox).
-moduledoc """
Messages to processes that may not read them in time: those of a client's user, and the client's own
process. The module bounds how many may wait in a mailbox, and their bytes.

Internal.
""".

-export([offer/2, notify/3, has_read/2, dropped/1, own/1]).

%% Messages that may wait, and their bytes if all were as large as the one that is offered.
-define(UNREAD, 1000).
-define(BYTES, 8_388_608).
%% A notification of more bytes counts for several.
-define(SMALL, 8192).

-doc """
Sends `Message` unless too much waits in the receiver's mailbox. The message is copied first, so
that it keeps no larger binary of the server's alive.
""".
-spec offer(pid(), Message :: term()) -> ok | full.
offer(Pid, Message) when node(Pid) =:= node() ->
    case process_info(Pid, message_queue_len) of
        {_, Unread} when Unread > ?UNREAD ->
            full;
        {_, Unread} ->
            Size = erlang:external_size(Message),
            case Unread * Size > ?BYTES of
                true ->
                    full;
                false ->
                    Pid ! own(Message, Size),
                    ok
            end;
        undefined ->
            ok
    end;
offer(Pid, Message) ->
    Pid ! Message,
    ok.

-doc """
Gives a client's process a notification of the server that belongs to no call, with its weight. If
too many wait, the notification is dropped and counted.
""".
-spec notify(erlmcp_client_connection:client(), Method :: binary(), Params :: map()) -> ok.
notify(#{peer := Peer, ids := Counters}, Method, Params) ->
    Own = own({Method, Params}),
    Weight = 1 + erlang:external_size(Own) div ?SMALL,
    case atomics:add_get(Counters, 2, Weight) of
        Unread when Unread > ?UNREAD, Unread > Weight ->
            atomics:sub(Counters, 2, Weight),
            atomics:add(Counters, 3, 1);
        _ ->
            Peer ! {notification, Own, Weight},
            ok
    end.

-doc "Counts a notification as read by the client's process.".
-spec has_read(Weight :: pos_integer(), erlmcp_client_connection:client()) -> ok.
has_read(Weight, #{ids := Counters}) ->
    atomics:sub(Counters, 2, Weight).

-doc "Returns the number of notifications that were dropped.".
-spec dropped(erlmcp_client_connection:client()) -> non_neg_integer().
dropped(#{ids := Counters}) ->
    atomics:get(Counters, 3).

-doc """
Copies a term whose strings are parts of a received message (`m:erlmcp_json`), which they would keep
alive. Terms that outlive their call are copied so.
""".
-spec own(Term) -> Term.
own(Term) ->
    own(Term, erlang:external_size(Term)).

%% Strings up to 64 bytes are never parts of a larger binary.
own(Term, Size) when Size =< 64 -> Term;
own(Term, _) -> binary_to_term(term_to_binary(Term)).
