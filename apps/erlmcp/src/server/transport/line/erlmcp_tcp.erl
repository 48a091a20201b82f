-module(erlmcp_tcp).
-moduledoc """
The transport TCP: JSON-RPC messages as lines, as on stdio, which the specification advises for
custom transports. Ranch accepts connections, and each has a process. Requests may be pipelined. A
client that has nothing more to send may close its half and still read its answers.

Source: specification 2026-07-28, "Transports / Custom Transports".

Internal.
""".

-behaviour(ranch_protocol).
-behaviour(erlmcp_connection_process).

-export([child_spec/3, address/1]).
-export([start_link/3, init/4]).
-export([received/2, write/2, pause/1, read_on/1, linger/1, close/1]).

%% Bytes from which an answer is large. The connection watches whether the client reads it.
-define(LARGE, 65_536).
%% Packets that a socket delivers before its process has to ask for more. Packets in the mailbox are
%% not counted as unfinished messages.
-define(ACTIVE, 16).
%% Bytes that are read from a socket at once. They can be many small messages of a client that does
%% not wait for each answer. A packet takes only its own size, and an idle socket has no buffer.
-define(BUFFER, 16_384).
%% Milliseconds that a refused client has to read the refusal.
-define(LINGER, 1000).
%% Milliseconds that a proxy has to send the header that names the client.
-define(HEADER, 5000).

-doc "Returns the child specification of a TCP listener.".
-spec child_spec(ranch:ref(), map(), erlmcp_instance:instance()) -> supervisor:child_spec().
child_spec(Ref, Options, #{key := Key, limits := Limits}) ->
    #{connections := Connections, send_timeout_ms := SendTimeout} = Limits,
    SocketOptions = [{exit_on_close, false}, {buffer, ?BUFFER},
                     %% A connection may be quiet for any time. Without this, one whose client has
                     %% vanished would keep its permit forever.
                     {keepalive, true},
                     %% So that a reset is not taken for the end of the input.
                     {show_econnreset, true}
                     | erlmcp_listener:socket_options(Options, SendTimeout)],
    Spec = ranch:child_spec(Ref, erlmcp_tcp_accept,
                            #{max_connections => erlmcp_listener:hard_stop(Connections),
                              num_acceptors => erlmcp_listener:acceptors(),
                              num_conns_sups => 1, socket_opts => SocketOptions},
                            ?MODULE, {maps:get(principal, Options, anonymous), Key,
                                      erlmcp_trusted_proxies:new(Options, Key)}),
    erlmcp_listener:child_spec(Spec, SocketOptions).

-doc "Returns the address and the URL of a listener at `Ip` and `Port`.".
-spec address({inet:ip_address(), inet:port_number()}) ->
    #{ip := inet:ip_address(), port := inet:port_number(), url := binary()}.
address({Ip, Port}) ->
    #{ip => Ip, port => Port, url => <<"tcp://", (erlmcp_host:authority(Ip, Port))/binary>>}.

-doc false.
start_link(Ref, _, {Principal, Key, Proxies}) ->
    erlmcp_listener:start_connection({?MODULE, init, [Ref, Principal, Key, Proxies]}).

-doc false.
-spec init(ranch:ref(), erlmcp_auth:principal(), Server :: reference(),
           erlmcp_trusted_proxies:proxies()) -> ok.
init(Ref, Principal, Key, Proxies) ->
    maybe
        {ok, #{limits := #{receive_timeout_ms := Timeout}} = Instance} ?= erlmcp_instance:find(Key),
        {ok, {Ip, _} = Peer} ?= erlmcp_trusted_proxies:accepted(Ref, Proxies,
                                                                min(?HEADER, Timeout)),
        ok = erlmcp_label:set([erlmcp_connection, tcp, Peer], Key),
        serve(Ref, {Ip, erlmcp_trusted_proxies:counted(Peer, Proxies)}, Principal, Instance)
    else
        _ -> exit({shutdown, closed})
    end.

serve(Ref, Address, Principal, #{key := Key, limits := Limits} = Instance) ->
    #{receive_timeout_ms := Timeout, send_timeout_ms := SendTimeout} = Limits,
    ok = erlmcp_heap:bound_connection(Limits),
    {ok, Socket} = ranch:handshake(Ref),
    case connect(Address, Principal, Instance) of
        {ok, Connection} ->
            [Parent | _] = get('$ancestors'),
            ok = set_options(Socket, [{mode, binary}, {active, ?ACTIVE}]),
            erlmcp_connection_process:run(?MODULE, {Socket, SendTimeout, Key}, Parent, Connection,
                                          Timeout);
        {refuse, Refusal} ->
            ok = erlmcp_meter:connection_refused(tcp, Refusal, Instance),
            _ = gen_tcp:send(Socket, [erlmcp_message:error(undefined, Refusal), $\n]),
            ok = lingered(Socket),
            gen_tcp:close(Socket)
    end.

connect({Ip, Counted}, Principal, Instance) ->
    maybe
        {ok, Permits} ?= erlmcp_admission:connect(Counted, Principal, Instance),
        Connection = erlmcp_connection:new(Instance, Principal, Ip),
        {ok, erlmcp_connection:admitted(Permits, erlmcp_connection:of_strangers(Connection))}
    end.

%% Reads and drops input before the socket is closed. A socket that is closed with unread input
%% sends a reset, and the client might lose the last answer.
lingered(Socket) ->
    _ = gen_tcp:shutdown(Socket, write),
    lingered(Socket, erlmcp_clock:now_ms() + ?LINGER).

lingered(Socket, End) ->
    case gen_tcp:recv(Socket, 0, max(0, End - erlmcp_clock:now_ms())) of
        {ok, _} -> lingered(Socket, End);
        {error, _} -> ok
    end.

set_options(Socket, Options) ->
    case inet:setopts(Socket, Options) of
        ok -> ok;
        {error, _} -> self() ! {tcp_error, Socket, closed}, ok
    end.

-doc false.
received({tcp, Socket, Data}, {Socket, _, _}) -> {data, Data};
received({tcp_passive, Socket}, {Socket, _, _}) -> passive;
received({tcp_closed, Socket}, {Socket, _, _}) -> end_of_input_or_lost(Socket);
received({tcp_error, Socket, _}, {Socket, _, _}) -> lost;
received({tcp_unread, Socket, End, Due}, {Socket, _, _} = Transport) -> unread(Transport, End, Due);
received(_, _) -> other.

%% OTP also reports an end of the input if the system has given the connection up while bytes were
%% left to write. It has closed the socket then.
end_of_input_or_lost(Socket) ->
    case inet:peername(Socket) of
        {ok, _} -> end_of_input;
        {error, _} -> lost
    end.

-doc false.
write({Socket, _, _} = Transport, Bytes) ->
    case erlmcp_tcp_send:send(Socket, Bytes) of
        ok ->
            watch(Transport, iolist_size(Bytes));
        {error, timeout} = Error ->
            lost = slow_consumer(Transport),
            Error;
        {error, _} = Error ->
            Error
    end.

%% Watches whether the client reads a large answer. The driver accepts the whole answer at once, so
%% its time-out only applies to the next one. A client has to read LARGE bytes in that time.
watch(_, Size) when Size < ?LARGE ->
    ok;
watch(Transport, _) ->
    _ = case sent(Transport) of
        {Out, All} -> look_again(Transport, All, Out);
        none -> ok
    end,
    ok.

%% `End` is the count of bytes at which the answer is out, and `Due` the one that is expected now.
unread(Transport, End, Due) ->
    case sent(Transport) of
        {Out, _} when Out >= End ->
            ignore;
        {Out, _} when Out >= Due ->
            ok = look_again(Transport, End, Out),
            ignore;
        {_, _} ->
            slow_consumer(Transport);
        none ->
            lost
    end.

look_again({Socket, Timeout, _}, End, Out) ->
    _ = erlang:send_after(Timeout, self(), {tcp_unread, Socket, End, Out + ?LARGE}),
    ok.

%% The bytes that have left the driver, and all that it has accepted.
sent({Socket, _, _}) ->
    case inet:getstat(Socket, [send_oct, send_pend]) of
        {ok, [{send_oct, All}, {send_pend, Left}]} -> {All - Left, All};
        {error, _} -> none
    end.

%% Closes the socket at once. An ordinary close would wait until the client has read the rest.
slow_consumer({Socket, Timeout, Key}) ->
    ok = erlmcp_slow_consumer:cut(Key, Timeout),
    _ = inet:setopts(Socket, [{linger, {true, 0}}]),
    lost.

-doc false.
pause({Socket, _, _}) ->
    set_options(Socket, [{active, false}]).

-doc false.
read_on({Socket, _, _}) ->
    set_options(Socket, [{active, ?ACTIVE}]).

-doc false.
linger({Socket, _, _} = Transport) ->
    ok = pause(Transport),
    lingered(Socket).

-doc false.
close({Socket, _, _}) ->
    gen_tcp:close(Socket).
