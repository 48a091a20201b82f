-module(erlmcp_client_mailbox).
-moduledoc """
Messages for processes that may not read them, such as those of a client's user: how many may wait,
and how large they may be together.

Internal.
""".

-export([offer/2, own/1]).

%% Messages that may wait, and bytes that they may have if all were as large as the one offered.
-define(UNREAD, 1000).
-define(BYTES, 8_388_608).

-doc """
Sends a message unless too much waits in the receiver's mailbox. What it keeps alive is its own, and
no larger part of what came from a server.
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
A term without the messages that its strings are parts of (`m:erlmcp_json`), which it would keep
alive: for what is kept longer than a call lasts.
""".
-spec own(Term) -> Term.
own(Term) ->
    own(Term, erlang:external_size(Term)).

%% Short strings are nobody's part.
own(Term, Size) when Size =< 64 -> Term;
own(Term, _) -> binary_to_term(term_to_binary(Term)).
