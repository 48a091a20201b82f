-module(erlmcp_tcp_channel).
-moduledoc """
A channel to a server over TCP: the framing of stdio on a socket. `Target` is `{tcp, Host, Port}`.

Source: specification 2026-07-28, "Transports / Custom Transports".

Internal.
""".

-behaviour(erlmcp_channel).
-behaviour(erlmcp_line_channel).

-export([open/2, send/2, received/2, abort/1, leave/4, close/1]).
-export([connect/3, activate/2, arrived/2, deliver/2, drop/1, finish/1, option/2, about/1]).

%% Packets that the socket delivers before it must be asked for more, and bytes of one.
-define(ACTIVE, 16).
-define(BUFFER, 65_536).
%% Milliseconds in which the server has to read one piece.
-define(SEND_TIMEOUT, 30_000).

-doc "Starts the channel, which connects to the server in the background, and again when needed.".
-spec open({tcp, inet:hostname() | inet:ip_address() | binary(), inet:port_number()},
           erlmcp_channel:settings()) ->
    {ok, pid(), erlmcp_line_channel:handle()} | {error, term()}.
open({tcp, Host, Port}, Settings) when is_binary(Host) ->
    open({tcp, binary_to_list(Host), Port}, Settings);
open({tcp, _, _} = Target, Settings) ->
    erlmcp_line_channel:open(?MODULE, Target, Settings).

-doc "Sends as `erlmcp_line_channel:send/2` does.".
-spec send(erlmcp_channel:outgoing(), erlmcp_line_channel:handle()) ->
    {ok, erlmcp_line_channel:exchange()} | {error, erlmcp_channel:reason()}.
send(Outgoing, Handle) ->
    erlmcp_line_channel:send(Outgoing, Handle).

-doc "Returns events as `erlmcp_line_channel:received/2` does.".
-spec received(term(), erlmcp_line_channel:exchange()) ->
    {[erlmcp_channel:event()], erlmcp_line_channel:exchange()} | other.
received(Message, Exchange) ->
    erlmcp_line_channel:received(Message, Exchange).

-doc "Aborts as `erlmcp_line_channel:abort/1` does.".
-spec abort(erlmcp_line_channel:exchange()) -> false.
abort(Exchange) ->
    erlmcp_line_channel:abort(Exchange).

-doc "Leaves as `erlmcp_line_channel:leave/4` does.".
-spec leave(binary() | none, [{binary(), iodata()}], integer(), erlmcp_line_channel:handle()) -> ok.
leave(Session, Headers, Deadline, Handle) ->
    erlmcp_line_channel:leave(Session, Headers, Deadline, Handle).

-doc "Closes the connection.".
-spec close(pid()) -> ok.
close(Pid) ->
    erlmcp_line_channel:close(Pid).

-doc false.
connect({tcp, Host, Port}, Channel, #{connect_timeout := Timeout}) ->
    Options = [binary, {active, false}, {packet, raw}, {nodelay, true}, {keepalive, true},
               {buffer, ?BUFFER}, {exit_on_close, false}, {show_econnreset, true},
               {send_timeout, ?SEND_TIMEOUT}, {send_timeout_close, true}],
    maybe
        {ok, Socket} ?= gen_tcp:connect(Host, Port, Options, Timeout),
        ok ?= gen_tcp:controlling_process(Socket, Channel),
        {ok, Socket}
    end.

-doc false.
activate(Socket, _) ->
    case inet:setopts(Socket, [{active, ?ACTIVE}]) of
        ok -> {ok, Socket};
        {error, _} = Error -> Error
    end.

-doc false.
arrived({tcp, Socket, Bytes}, Socket) ->
    {data, Bytes, Socket};
arrived({tcp_passive, Socket}, Socket) ->
    case inet:setopts(Socket, [{active, ?ACTIVE}]) of
        ok -> {ignore, Socket};
        {error, Why} -> {ended, Why, Socket}
    end;
arrived({tcp_closed, Socket}, Socket) ->
    {ended, closed, Socket};
arrived({tcp_error, Socket, Why}, Socket) ->
    {ended, Why, Socket};
arrived(_, _) ->
    other.

-doc false.
deliver(Bytes, Socket) ->
    gen_tcp:send(Socket, Bytes).

-doc false.
drop(Socket) ->
    %% An ordinary close waits for bytes that the server has not read.
    _ = inet:setopts(Socket, [{linger, {true, 0}}]),
    gen_tcp:close(Socket).

%% The server answers the lines that it has read, but no exchange waits for them any more.
-doc false.
finish(Socket) ->
    case inet:getstat(Socket, [send_pend]) of
        {ok, [{send_pend, 0}]} -> gen_tcp:close(Socket);
        _ -> drop(Socket)
    end.

-doc false.
option(_, _) -> ~"no such option of a client on TCP".

-doc false.
about({tcp, Host, Port}) ->
    #{transport => tcp, host => Host, port => Port}.
