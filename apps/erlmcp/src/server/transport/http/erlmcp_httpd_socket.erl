-module(erlmcp_httpd_socket).
-moduledoc """
The sockets of HTTP connections, in the clear and over TLS, as what they say in active mode has both
kinds: who came on one, what is sent on it, and its end.
""".

-export([shown/2, send/3, own/1, linger/3]).

-export_type([socket/0]).

-type socket() :: inet:socket() | ssl:sslsocket().
%% Packets until a socket is asked for again.
-define(ACTIVE, 100).

-define(IS_PASSIVE(Tag), Tag =:= tcp_passive; Tag =:= ssl_passive).
-define(IS_CLOSED(Tag), Tag =:= tcp_closed; Tag =:= ssl_closed).
-define(IS_ERROR(Tag), Tag =:= tcp_error; Tag =:= ssl_error).

-doc "The scheme of its URLs, and the certificate that the client has shown.".
-spec shown(module(), socket()) ->
    {ok, binary(), undefined | public_key:der_encoded()} | {error, term()}.
shown(ranch_tcp, _) ->
    {ok, ~"http", undefined};
shown(ranch_ssl, Socket) ->
    case ssl:peercert(Socket) of
        {ok, Certificate} -> {ok, ~"https", Certificate};
        {error, no_peercert} -> {ok, ~"https", undefined};
        {error, _} = Error -> Error
    end.

-doc "Sends on it; the calling process is the one that it belongs to.".
-spec send(module(), socket(), iodata()) -> ok | {error, term()}.
send(ranch_tcp, Socket, Bytes) -> erlmcp_tcp_send:send(Socket, Bytes);
send(Transport, Socket, Bytes) -> Transport:send(Socket, Bytes).

-doc "Returns what is left of what was read, without what was read beside it if that is as much.".
-spec own(binary()) -> binary().
own(Bytes) ->
    case binary:referenced_byte_size(Bytes) > 2 * byte_size(Bytes) of
        true -> binary:copy(Bytes);
        false -> Bytes
    end.

-doc """
Reads, for so many milliseconds, what the other side still sends on a connection that is over, or a
reset would take from it what it was told.
""".
-spec linger(module(), socket(), Milliseconds :: non_neg_integer()) -> ok.
linger(Transport, Socket, Milliseconds) ->
    read_on(Transport, Socket, now_ms() + Milliseconds).

read_on(Transport, Socket, End) ->
    _ = Transport:setopts(Socket, [{active, ?ACTIVE}]),
    lingering(Transport, Socket, End).

lingering(Transport, Socket, End) ->
    receive
        {Tag, Socket} when ?IS_CLOSED(Tag) -> ok;
        {Tag, Socket, _} when ?IS_ERROR(Tag) -> ok;
        {Tag, Socket} when ?IS_PASSIVE(Tag) -> read_on(Transport, Socket, End);
        _ -> lingering(Transport, Socket, End)
    after max(0, End - now_ms()) ->
        ok
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).
