-module(erlmcp_client_mailbox).
-moduledoc """
Messages to processes that may not read them, such as those of a client's user. It bounds how many
may wait in a mailbox, and their bytes.

Internal.
""".

-export([offer/2, own/1]).

%% Messages that may wait, and their bytes if all were as large as the one that is offered.
-define(UNREAD, 1000).
-define(BYTES, 8_388_608).

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
Copies a term whose strings are parts of a received message (`m:erlmcp_json`), which they would keep
alive. Terms that outlive their call are copied so.
""".
-spec own(Term) -> Term.
own(Term) ->
    own(Term, erlang:external_size(Term)).

%% Strings up to 64 bytes are never parts of a larger binary.
own(Term, Size) when Size =< 64 -> Term;
own(Term, _) -> binary_to_term(term_to_binary(Term)).
