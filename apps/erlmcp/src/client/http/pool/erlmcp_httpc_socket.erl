-module(erlmcp_httpc_socket).
-moduledoc """
A connection of HTTP/1.1 in the clear: a socket without a process of its own. The pool's process
owns it, except while it is lent. The owner gets the received bytes as messages. The socket is
linked to the pool's process alone, and closes with it.

Internal.
""".

-export([open/4, read_on/1, take/1, give/3, close/2, close/1]).

%% The packets that may wait unread, before the socket must be asked for more.
-define(AHEAD, 16).

-doc """
Begins to open a connection, in a new process linked to the calling one. On success the new process
calls the fun with the server's address. Then the caller owns the socket, and gets
`{socket_up, Pid, Socket}`. On failure, also after the timeout in milliseconds, the new process
exits with `{shutdown, Why}`.
""".
-spec open({inet:ip_address() | inet:hostname(), inet:port_number()}, [gen_tcp:connect_option()],
           timeout(), erlmcp_httpc_pool_connections:reached()) -> {ok, pid()}.
open(At, Options, Timeout, Reached) ->
    Owner = self(),
    {ok, spawn_link(fun() -> opened(Owner, At, Options, Timeout, Reached) end)}.

opened(Owner, {Address, Port}, Options, Timeout, Reached) ->
    %% The owner can be changed in this way only if the socket is a port, so the node's default does
    %% not apply.
    Own = [{inet_backend, inet} | Options] ++ [binary, {packet, raw}, {active, false}],
    maybe
        {ok, Socket} ?= gen_tcp:connect(Address, Port, Own, Timeout),
        {ok, {Ip, _}} ?= inet:peername(Socket),
        ok = Reached(Ip),
        ok ?= gen_tcp:controlling_process(Socket, Owner),
        Owner ! {socket_up, self(), Socket}
    else
        {error, Why} -> exit({shutdown, Why})
    end.

-doc """
Lets the socket deliver 16 more packets, and then the message `tcp_passive`. Returns the error of
the socket if it has ended.
""".
-spec read_on(inet:socket()) -> ok | {error, inet:posix()}.
read_on(Socket) ->
    inet:setopts(Socket, [{active, ?AHEAD}]).

-doc """
Makes the calling process the owner of a lent connection. Returns `ended` if the connection has
ended; on Linux, also if the server has closed it and `tcp_closed` has not come yet. `Monitor`
reports an end of the socket without `tcp_closed`.
""".
-spec take(inet:socket()) -> {ok, Monitor :: reference()} | ended.
take(Socket) ->
    try erlang:port_connect(Socket, self()) of
        true ->
            %% `port_connect/2` links the new owner, which the end of the socket must not kill.
            true = unlink(Socket),
            Monitor = monitor(port, Socket),
            case is_open(Socket) of
                true ->
                    {ok, Monitor};
                false ->
                    ok = close(Socket, Monitor),
                    ended
            end
    catch
        error:badarg -> ended
    end.

%% Returns `false` if the server has closed the connection, of which the message may not have come
%% yet. A request sent then would be lost. On Linux the first byte of TCP_INFO is the state, and 1
%% means established.
is_open(Socket) ->
    case os:type() of
        {unix, linux} -> inet:getopts(Socket, [{raw, 6, 11, 1}]) =:= {ok, [{raw, 6, 11, <<1>>}]};
        _ -> true
    end.

-doc """
Gives a connection back to the process `Pool`. `Monitor` is the one of `take/1`. Returns `ended` if
the connection has ended, or was closed here because unexpected bytes came on it.
""".
-spec give(inet:socket(), Monitor :: reference(), Pool :: pid()) -> ok | ended.
give(Socket, Monitor, Pool) ->
    try erlang:port_connect(Socket, Pool) of
        true ->
            true = demonitor(Monitor, [flush]),
            at_rest(Socket)
    catch
        error:badarg ->
            ok = close(Socket, Monitor),
            ended
    end.

%% Handles the messages that the socket sent to this process before it changed its owner.
at_rest(Socket) ->
    receive
        {tcp_passive, Socket} ->
            _ = read_on(Socket),
            at_rest(Socket);
        {tcp_closed, Socket} ->
            ended;
        {Tag, Socket, _} when Tag =:= tcp; Tag =:= tcp_error ->
            ok = close(Socket),
            ended
    after 0 ->
        ok
    end.

-doc "Closes a connection that the calling process owns, and drops unread and unsent bytes.".
-spec close(inet:socket(), Monitor :: reference()) -> ok.
close(Socket, Monitor) ->
    true = demonitor(Monitor, [flush]),
    ok = close(Socket),
    %% No messages of the port come after its end.
    End = monitor(port, Socket),
    receive {'DOWN', End, port, _, _} -> forgotten(Socket) end.

forgotten(Socket) ->
    receive
        {Tag, Socket} when Tag =:= tcp_closed; Tag =:= tcp_passive -> forgotten(Socket);
        {Tag, Socket, _} when Tag =:= tcp; Tag =:= tcp_error -> forgotten(Socket)
    after 0 ->
        ok
    end.

-doc "Closes a connection at once, from any process.".
-spec close(inet:socket()) -> ok.
close(Socket) ->
    %% With any other reason the port would wait until the server has read all sent bytes.
    true = exit(Socket, kill),
    ok.
