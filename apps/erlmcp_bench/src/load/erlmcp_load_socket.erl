-module(erlmcp_load_socket).
-moduledoc """
What a connection of the load generator writes to and reads from, whatever it is. It belongs to the
process that connects it, and what comes in is a message to that process.
""".

-export([connect/2, send/2, activate/1, close/1, message/2, next/2]).

-export_type([endpoint/0, socket/0, event/0]).

-doc "Where to, and from which address: `any` is the system's choice.".
-type endpoint() ::
    {tcp, inet:ip_address() | string(), inet:port_number(), From :: inet:ip_address() | any}.

-type socket() :: {tcp, gen_tcp:socket()}.

-type event() :: {bytes, binary()} | passive | {closed, Reason :: atom()} | other.

%% Packets that come before the process says that it wants more.
-define(ACTIVE, 1000).
-define(BUFFER, 16_384).

-doc "Connects, within so many milliseconds. Nothing comes in before `activate/1`.".
-spec connect(endpoint(), Milliseconds :: pos_integer()) -> {ok, socket()} | {error, atom()}.
connect({tcp, Host, Port, From}, Milliseconds) ->
    Family = [inet6 || is_tuple(Host), tuple_size(Host) =:= 8],
    Source = [{ip, From} || From =/= any],
    Options = [binary, {active, false}, {nodelay, true}, {buffer, ?BUFFER}, {show_econnreset, true},
               {send_timeout, Milliseconds}, {send_timeout_close, true}] ++ Source ++ Family,
    case gen_tcp:connect(Host, Port, Options, Milliseconds) of
        {ok, Socket} -> {ok, {tcp, Socket}};
        {error, Reason} -> {error, Reason}
    end.

-doc "Writes; waits no longer than it was given for connecting.".
-spec send(socket(), iodata()) -> ok | {error, atom()}.
send({tcp, Socket}, Bytes) ->
    case gen_tcp:send(Socket, Bytes) of
        ok -> ok;
        {error, {timeout, _}} -> {error, send_timeout};
        {error, timeout} -> {error, send_timeout};
        {error, Reason} -> {error, Reason}
    end.

-doc "Lets a number of packets come in, and then the message that is `passive`.".
-spec activate(socket()) -> ok | {error, atom()}.
activate({tcp, Socket}) ->
    inet:setopts(Socket, [{active, ?ACTIVE}]).

-doc "Closes it.".
-spec close(socket()) -> ok.
close({tcp, Socket}) ->
    gen_tcp:close(Socket).

-doc "What a message to the process says of its socket.".
-spec message(term(), socket()) -> event().
message({tcp, Socket, Bytes}, {tcp, Socket}) -> {bytes, Bytes};
message({tcp_passive, Socket}, {tcp, Socket}) -> passive;
message({tcp_closed, Socket}, {tcp, Socket}) -> {closed, closed};
message({tcp_error, Socket, Reason}, {tcp, Socket}) -> {closed, Reason};
message(_, _) -> other.

-doc "The next message of the socket, within so many milliseconds; others are left where they are.".
-spec next(socket(), Milliseconds :: non_neg_integer()) -> event() | timeout.
next({tcp, Socket} = Of, Milliseconds) ->
    receive
        {tcp, Socket, _} = Message -> message(Message, Of);
        {tcp_passive, Socket} = Message -> message(Message, Of);
        {tcp_closed, Socket} = Message -> message(Message, Of);
        {tcp_error, Socket, _} = Message -> message(Message, Of)
    after Milliseconds ->
        timeout
    end.
