-module(erlmcp_httpd_socket).
-moduledoc """
The sockets of HTTP connections, in the clear and over TLS, which active mode names differently:
what was agreed on in the handshake, sending, and the end.

Internal.
""".

-export([is_http2/1, shown/2, send/3, own/1, finish/3]).

-export_type([socket/0]).

-type socket() :: inet:socket() | ssl:sslsocket().
%% Packets until a socket is asked for again.
-define(ACTIVE, 100).

-define(IS_PASSIVE(Tag), Tag =:= tcp_passive; Tag =:= ssl_passive).
-define(IS_CLOSED(Tag), Tag =:= tcp_closed; Tag =:= ssl_closed).
-define(IS_ERROR(Tag), Tag =:= tcp_error; Tag =:= ssl_error).

-doc "Returns `true` if HTTP/2 was agreed on in the handshake.".
-spec is_http2(socket()) -> boolean().
is_http2(Socket) when is_port(Socket) -> false;
is_http2(Socket) -> ssl:negotiated_protocol(Socket) =:= {ok, ~"h2"}.

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
Ends a connection, over TLS with a closure alert. Until the other side ends it too, and for at most
so many milliseconds, what it still sends is read: a reset would take from it what it was told.
""".
-spec finish(module(), socket(), Milliseconds :: pos_integer()) -> ok.
finish(ranch_ssl, Socket, Milliseconds) ->
    case ssl:close(Socket, {self(), Milliseconds}) of
        {error, _} -> ok;
        Downgraded -> gen_tcp:close(element(2, Downgraded))
    end;
finish(ranch_tcp, Socket, Milliseconds) ->
    case gen_tcp:shutdown(Socket, write) of
        ok -> read_on(ranch_tcp, Socket, erlmcp_clock:now_ms() + Milliseconds);
        {error, _} -> ok
    end.

read_on(Transport, Socket, End) ->
    _ = Transport:setopts(Socket, [{active, ?ACTIVE}]),
    lingering(Transport, Socket, End).

lingering(Transport, Socket, End) ->
    receive
        {Tag, Socket} when ?IS_CLOSED(Tag) -> ok;
        {Tag, Socket, _} when ?IS_ERROR(Tag) -> ok;
        {Tag, Socket} when ?IS_PASSIVE(Tag) -> read_on(Transport, Socket, End);
        _ -> lingering(Transport, Socket, End)
    after max(0, End - erlmcp_clock:now_ms()) ->
        ok
    end.
