-module(erlmcp_client_mailbox).
-moduledoc """
Sends messages to processes that might not read them in time: those of a client's user, and the
client's own process. The number and the bytes of waiting messages are bounded.

Internal.
""".

-export([offer/2, notify/3, has_read/2, dropped/1, own/1]).

%% The most messages that may wait, and the most bytes if all were as large as the one to send.
-define(UNREAD, 1000).
-define(BYTES, 8_388_608).
%% A notification of more bytes counts as several.
-define(SMALL, 8192).

-doc """
Sends a copy of a message, which does not keep a larger binary in memory. Returns `full`, and sends
nothing, if more than 1000 messages wait in the receiver's mailbox. The same holds if their number
times the size of `Message` is more than 8 MiB. Returns `ok` for a process that has ended. The
mailbox of a process on another node is not checked.
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
Passes a server's notification that belongs to no call to the client's process, with its weight: 1,
and 1 more for each 8 KiB. The notification is dropped and counted if it and those that wait would
weigh more than 1000 together. If no other one waits, it is always passed on.
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

-doc "Counts a notification of the weight `Weight` as read by the client's process.".
-spec has_read(Weight :: pos_integer(), erlmcp_client_connection:client()) -> ok.
has_read(Weight, #{ids := Counters}) ->
    atomics:sub(Counters, 2, Weight).

-doc "Returns the number of notifications that `notify/3` has dropped.".
-spec dropped(erlmcp_client_connection:client()) -> non_neg_integer().
dropped(#{ids := Counters}) ->
    atomics:get(Counters, 3).

-doc """
Returns a decoded term without references to the message that it came in. A term that is stored, or
sent to another process, would otherwise keep the whole message in memory (`m:erlmcp_json`).
""".
-spec own(Term) -> Term.
own(Term) ->
    own(Term, erlang:external_size(Term)).

%% Decoded strings of up to 64 bytes are never sub-binaries.
own(Term, Size) when Size =< 64 -> Term;
own(Term, _) -> binary_to_term(term_to_binary(Term)).
