-module(erlmcp_tcp_channel).
-moduledoc """
The transport of a line channel over TCP: lines as on stdio, on a socket.

Source: specification 2026-07-28, "Transports / Custom Transports".

Internal.
""".

-behaviour(erlmcp_line_channel).

-export([target/1, option/2, about/1]).
-export([connect/3, activate/2, arrived/2, deliver/2, drop/1, finish/1]).

%% The packets that the socket delivers before it must be asked for more, and the bytes of one.
-define(ACTIVE, 16).
-define(BUFFER, 65_536).
%% Milliseconds in which the server has to read one piece.
-define(SEND_TIMEOUT, 30_000).

-doc false.
target({tcp, Host, Port}) ->
    maybe
        {ok, Checked} ?= host(Host),
        true ?= is_integer(Port) andalso Port > 0 andalso Port =< 65535,
        {ok, {tcp, Checked, Port}}
    else
        error -> {error, {bad_option, host, ~"a name or an IP address"}};
        false -> {error, {bad_option, port, ~"an integer of 1 to 65535"}}
    end.

host(Host) when is_binary(Host), Host =/= ~"" ->
    {ok, binary_to_list(Host)};
host(Host) ->
    case inet:is_ip_address(Host) orelse Host =/= [] andalso io_lib:char_list(Host) of
        true -> {ok, Host};
        false -> error
    end.

-doc false.
option(_, _) -> ~"no such option of a client on TCP".

-doc false.
about({tcp, Host, Port}) ->
    #{transport => tcp, host => Host, port => Port}.

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
    %% Without this option, closing would wait for bytes that the server has not read.
    _ = inet:setopts(Socket, [{linger, {true, 0}}]),
    gen_tcp:close(Socket).

%% The server may still answer lines that it has read, but no exchange waits for the answers.
-doc false.
finish(Socket) ->
    case inet:getstat(Socket, [send_pend]) of
        {ok, [{send_pend, 0}]} -> gen_tcp:close(Socket);
        _ -> drop(Socket)
    end.
