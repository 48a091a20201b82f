-module(erlmcp_load_socket).
-moduledoc """
The transport of a connection of the load generator: a socket, in the clear or in TLS, or the
standard streams of a program. Incoming data are messages to the process that owns the transport. A
socket can be given to another process (`give/2`, `take/1`), and the streams of a program cannot.
""".

-export([connect/2, send/2, activate/1, widened/2, close/1, message/2, next/2, os_pid/1]).
-export([give/2, take/1]).
-export([key/1, source/1]).

-export_type([endpoint/0, socket/0, key/0, event/0]).

-doc """
An address to connect to and the address to connect from, or a program to start, with its arguments
and its environment. For `any`, the system chooses the address to connect from. The TLS options
define the trusted roots and offer one protocol, which the server must choose. A server that chooses
no protocol speaks HTTP/1.1.
""".
-type endpoint() ::
    {tcp, inet:ip_address(), inet:port_number(), From :: inet:ip_address() | any}
    | {tls, inet:ip_address(), inet:port_number(), From :: inet:ip_address() | any,
       [ssl:tls_client_option()]}
    | {stdio, [binary() | string(), ...], erlmcp_load_program:environment()}.

-type socket() :: {tcp, gen_tcp:socket()} | {tls, ssl:sslsocket()}
    | {stdio, erlmcp_load_program:program()}.

-doc "The term that identifies a socket in its messages. `none` stands for no socket.".
-type key() :: port() | ssl:sslsocket() | none.

-type event() :: {bytes, binary()} | passive | {closed, Reason :: atom()} | other.

%% Packets that come in before the process must ask for more.
-define(ACTIVE, 1000).
%% The buffer of a socket for incoming data. The small one is enough for most replies, on thousands
%% of idle connections. The wide one is for large replies.
-define(BUFFER, 4096).
-define(WIDE_BUFFER, 131_072).
%% The most unsent bytes of one socket before its process waits, which may have other sockets; and
%% the number of unsent bytes at which it continues.
-define(UNSENT, 1_048_576).
-define(FEW_UNSENT, 524_288).

-doc """
Connects within `Milliseconds`, or starts a program without waiting until the program is ready. The
handshake of TLS may take `Milliseconds` again. The calling process owns the socket. After a
thousand packets the process gets a message that `message/2` reads as `passive`. Then the process
must call `activate/1`.

The error is that of the socket, the alert of TLS or else `tls`, `no_application_protocol`, or that
of `erlmcp_load_program:start/2`.
""".
-spec connect(endpoint(), Milliseconds :: pos_integer()) -> {ok, socket()} | {error, atom()}.
connect({tcp, Ip, Port, From}, Milliseconds) ->
    Options = [{mode, binary} | options(Milliseconds)] ++ late_port(From),
    case erlmcp_load_tcp:connect(Ip, Port, From, Options, Milliseconds) of
        {ok, Socket} -> {ok, {tcp, Socket}};
        {error, Reason} -> {error, Reason}
    end;
connect({tls, Ip, Port, From, Tls}, Milliseconds) ->
    Options = [binary | options(Milliseconds)] ++ late_port(From)
        ++ [{ip, From} || From =/= any] ++ [inet6 || tuple_size(Ip) =:= 8] ++ Tls,
    case ssl:connect(Ip, Port, Options, Milliseconds) of
        {ok, Socket} -> agreed(proplists:get_value(alpn_advertised_protocols, Tls), Socket);
        {error, Reason} -> {error, reason(Reason)}
    end;
connect({stdio, Words, Environment}, _) ->
    maybe
        {ok, Program} ?= erlmcp_load_program:start(Words, Environment),
        {ok, {stdio, Program}}
    end.

options(Milliseconds) ->
    [{active, ?ACTIVE}, {nodelay, true}, {buffer, ?BUFFER}, {show_econnreset, true},
     {high_watermark, ?UNSENT}, {low_watermark, ?FEW_UNSENT},
     {send_timeout, Milliseconds}, {send_timeout_close, true}].

%% With IP_BIND_ADDRESS_NO_PORT, Linux chooses the local port when it knows the peer's address.
%% Without it, Linux searches all recent connections for a free port, whatever their peers.
late_port(From) when tuple_size(From) =:= 4 ->
    case os:type() of
        {unix, linux} -> [{raw, 0, 24, <<1:32/native>>}];
        _ -> []
    end;
late_port(_) ->
    [].

%% A server that chooses no protocol speaks HTTP/1.1.
agreed(Offered, Socket) ->
    case {Offered, ssl:negotiated_protocol(Socket)} of
        {[Protocol], {ok, Protocol}} ->
            {ok, {tls, Socket}};
        {[~"http/1.1"], {error, _}} ->
            {ok, {tls, Socket}};
        {_, _} ->
            _ = ssl:close(Socket),
            {error, no_application_protocol}
    end.

reason({tls_alert, {Alert, _}}) -> Alert;
reason(Reason) when is_atom(Reason) -> Reason;
reason(_) -> tls.

-doc """
Writes bytes. Waits while the peer leaves a mebibyte of earlier bytes unread, but no longer than the
`Milliseconds` of `connect/2`. After that time, closes the socket and returns the error
`send_timeout`. Other errors are as in `connect/2`. Bytes for a program are queued, without an
error.
""".
-spec send(socket(), iodata()) -> ok | {error, atom()}.
send({tcp, Socket}, Bytes) ->
    sent(erlmcp_tcp_send:send(Socket, Bytes));
send({tls, Socket}, Bytes) ->
    sent(ssl:send(Socket, Bytes));
send({stdio, Program}, Bytes) ->
    erlmcp_load_program:send(Program, Bytes).

sent(ok) -> ok;
sent({error, {timeout, _}}) -> {error, send_timeout};
sent({error, timeout}) -> {error, send_timeout};
sent({error, Reason}) -> {error, reason(Reason)}.

-doc """
Lets a thousand more packets come in. The error means that the socket is closed. Does nothing for a
program.
""".
-spec activate(socket()) -> ok | {error, atom()}.
activate({tcp, Socket}) -> inet:setopts(Socket, [{active, ?ACTIVE}]);
activate({tls, Socket}) -> sent(ssl:setopts(Socket, [{active, ?ACTIVE}]));
activate({stdio, _}) -> ok.

-doc """
Gives a socket to the process `To`, which must then call `take/1`. Returns the messages of the
socket that the calling process had already received. If the socket is closed, one of them says that
it is closed. Does nothing for a program.
""".
-spec give(To :: pid(), socket()) -> [Message :: term()].
give(_, {stdio, _}) ->
    [];
give(To, {tcp, Socket}) ->
    %% If the socket is closed, one of the messages says so.
    _ = inet:setopts(Socket, [{active, false}]),
    Pending = pending(Socket),
    given(gen_tcp:controlling_process(Socket, To), Pending, {tcp_closed, Socket});
give(To, {tls, Socket}) ->
    _ = ssl:setopts(Socket, [{active, false}]),
    Pending = pending(Socket),
    given(ssl:controlling_process(Socket, To), Pending, {ssl_closed, Socket}).

given(ok, Pending, _) -> Pending;
given({error, _}, Pending, Closed) -> Pending ++ [Closed].

pending(Socket) ->
    receive
        {Of, Socket, _} = Message when Of =:= tcp; Of =:= ssl; Of =:= tcp_error; Of =:= ssl_error ->
            [Message | pending(Socket)];
        {Of, Socket} = Message when Of =:= tcp_closed; Of =:= ssl_closed ->
            [Message | pending(Socket)];
        {Of, Socket} when Of =:= tcp_passive; Of =:= ssl_passive ->
            pending(Socket)
    after 0 ->
        []
    end.

-doc """
Takes a socket that `give/2` gave to the calling process. From now on, the data of the socket come
to this process. If the socket is already closed, returns a message that says that it is closed, and
otherwise an empty list.
""".
-spec take(socket()) -> [Message :: term()].
take(Socket) ->
    case activate(Socket) of
        ok -> [];
        {error, _} -> [closed(Socket)]
    end.

closed({tcp, Socket}) -> {tcp_closed, Socket};
closed({tls, Socket}) -> {ssl_closed, Socket}.

-doc """
Makes the buffer of a socket larger if `Bytes` filled the buffer, and returns `true` then.
Otherwise, and for TLS and programs, does nothing and returns `false`.
""".
-spec widened(Bytes :: binary(), socket()) -> boolean().
widened(Bytes, {tcp, Socket}) when byte_size(Bytes) >= ?BUFFER ->
    %% If the socket is already closed, its next message says so.
    _ = inet:setopts(Socket, [{buffer, ?WIDE_BUFFER}]),
    true;
widened(_, _) ->
    false.

-doc """
Closes a socket. Unsent bytes on TCP are dropped. Waits until the program of a connection on stdio
has ended, at most ten seconds.
""".
-spec close(socket()) -> ok.
close({tcp, Socket}) ->
    %% A peer that does not read must not delay the close.
    _ = case erlang:port_info(Socket, queue_size) of
        {queue_size, Size} when Size > 0 -> inet:setopts(Socket, [{linger, {true, 0}}]);
        _ -> ok
    end,
    gen_tcp:close(Socket);
close({tls, Socket}) ->
    _ = ssl:close(Socket),
    ok;
close({stdio, Program}) ->
    erlmcp_load_program:stop(Program).

-doc "Returns the key by which `source/1` tells the messages of several sockets apart.".
-spec key(socket()) -> key().
key({tcp, Socket}) -> Socket;
key({tls, Socket}) -> Socket;
key({stdio, Program}) -> erlmcp_load_program:key(Program).

-doc "Returns the key of the socket that sent `Message`, or `none`.".
-spec source(Message :: term()) -> key().
source({tcp, Socket, _}) -> Socket;
source({ssl, Socket, _}) -> Socket;
source({Of, Socket}) when Of =:= tcp_passive; Of =:= tcp_closed -> Socket;
source({Of, Socket}) when Of =:= ssl_passive; Of =:= ssl_closed -> Socket;
source({Of, Socket, _}) when Of =:= tcp_error; Of =:= ssl_error -> Socket;
source({'DOWN', _, port, Port, _}) -> Port;
source({Port, _}) when is_port(Port) -> Port;
source(_) -> none.

-doc """
Interprets a message of the mailbox: incoming bytes, the end of the socket (`closed`), or `passive`,
after which `activate/1` must be called. `other` is a message that the socket did not send.
""".
-spec message(term(), socket()) -> event().
message({tcp, Socket, Bytes}, {tcp, Socket}) -> {bytes, Bytes};
message({tcp_passive, Socket}, {tcp, Socket}) -> passive;
message({tcp_closed, Socket}, {tcp, Socket}) -> {closed, closed};
message({tcp_error, Socket, Reason}, {tcp, Socket}) -> {closed, Reason};
message({ssl, Socket, Bytes}, {tls, Socket}) -> {bytes, Bytes};
message({ssl_passive, Socket}, {tls, Socket}) -> passive;
message({ssl_closed, Socket}, {tls, Socket}) -> {closed, closed};
message({ssl_error, Socket, Reason}, {tls, Socket}) -> {closed, reason(Reason)};
message(Message, {stdio, Program}) -> erlmcp_load_program:message(Message, Program);
message(_, _) -> other.

-doc """
Waits for the next message of a socket, or returns `timeout` after `Milliseconds`. Other messages
stay in the mailbox.
""".
-spec next(socket(), Milliseconds :: non_neg_integer()) -> event() | timeout.
next({tcp, Socket} = Of, Milliseconds) ->
    receive
        {tcp, Socket, _} = Message -> message(Message, Of);
        {tcp_passive, Socket} = Message -> message(Message, Of);
        {tcp_closed, Socket} = Message -> message(Message, Of);
        {tcp_error, Socket, _} = Message -> message(Message, Of)
    after Milliseconds ->
        timeout
    end;
next({tls, Socket} = Of, Milliseconds) ->
    receive
        {ssl, Socket, _} = Message -> message(Message, Of);
        {ssl_passive, Socket} = Message -> message(Message, Of);
        {ssl_closed, Socket} = Message -> message(Message, Of);
        {ssl_error, Socket, _} = Message -> message(Message, Of)
    after Milliseconds ->
        timeout
    end;
next({stdio, Program}, Milliseconds) ->
    erlmcp_load_program:next(Program, Milliseconds).

-doc "Returns the operating system's id of the started program, or `none` for a socket.".
-spec os_pid(socket()) -> pos_integer() | none.
os_pid({stdio, Program}) -> erlmcp_load_program:os_pid(Program);
os_pid(_) -> none.
