-module(erlmcp_client_mailbox).
-moduledoc """
Sends messages to processes that may not read them, such as those of a client's user. The number and
the bytes of waiting messages are bounded.

Internal.
""".

-export([offer/2, own/1]).

%% The most messages that may wait, and the most bytes if all were as large as the one to send.
-define(UNREAD, 1000).
-define(BYTES, 8_388_608).

-doc """
Sends a message, or returns `full` if too many messages or bytes wait in the receiver's mailbox. The
message is copied first, so that it does not keep a larger binary in memory.
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
Copies a decoded term. Its strings may be sub-binaries of a received message (`m:erlmcp_json`), and
would keep that in memory. So terms that outlive their call are copied.
""".
-spec own(Term) -> Term.
own(Term) ->
    own(Term, erlang:external_size(Term)).

%% Decoded strings of up to 64 bytes are never sub-binaries.
own(Term, Size) when Size =< 64 -> Term;
own(Term, _) -> binary_to_term(term_to_binary(Term)).
