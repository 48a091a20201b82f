-module(erlmcp_httpc_socket).
-moduledoc """
A connection of HTTP/1.1 in the clear: a socket without a process of its own, which is the pool's
until somebody who has the lease takes it, and is again when it is given back. Whose it is, is sent
what comes on it. It is linked to the pool alone, and ends with that.

Internal.
""".

-export([open/4, read_on/1, take/1, give/3, close/2, close/1]).

%% Packets until the socket is asked for again: so many may wait unread.
-define(AHEAD, 16).

-doc """
Begins to open a connection, by a process that is linked to the calling one and ends with
`{shutdown, Why}` if it fails; else the caller is sent `{socket_up, Pid, Socket}`, and the socket is
its own.
""".
-spec open({inet:ip_address() | inet:hostname(), inet:port_number()}, [gen_tcp:connect_option()],
           timeout(), erlmcp_httpc_opening:reached()) -> {ok, pid()}.
open(At, Options, Timeout, Reached) ->
    Owner = self(),
    {ok, spawn_link(fun() -> opened(Owner, At, Options, Timeout, Reached) end)}.

opened(Owner, {Address, Port}, Options, Timeout, Reached) ->
    %% A socket that can change hands is a port, whatever the node's own choice is.
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

-doc "Lets some more packets come, after which `tcp_passive` is said.".
-spec read_on(inet:socket()) -> ok | {error, inet:posix()}.
read_on(Socket) ->
    inet:setopts(Socket, [{active, ?AHEAD}]).

-doc "Takes a connection from the pool; the monitor tells when it ends without a word.".
-spec take(inet:socket()) -> {ok, Monitor :: reference()} | ended.
take(Socket) ->
    try erlang:port_connect(Socket, self()) of
        true ->
            %% If it is ended from elsewhere, that is no reason to die.
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

%% Whether the server has closed it is told soon, but a request that is sent before is lost. Linux
%% says it at once: the first byte of TCP_INFO is the state, and 1 of a connection that is whole.
is_open(Socket) ->
    case os:type() of
        {unix, linux} -> inet:getopts(Socket, [{raw, 6, 11, 1}]) =:= {ok, [{raw, 6, 11, <<1>>}]};
        _ -> true
    end.

-doc "Gives a connection back to the pool, unless something came that nobody asked for.".
-spec give(inet:socket(), reference(), pid()) -> ok | ended.
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

%% What was sent to this process came before the connection changed hands.
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

-doc "Ends a connection that the calling process has, with what is unread and unsent.".
-spec close(inet:socket(), reference()) -> ok.
close(Socket, Monitor) ->
    true = demonitor(Monitor, [flush]),
    ok = close(Socket),
    %% After its end nothing more comes.
    End = monitor(port, Socket),
    receive {'DOWN', End, port, _, _} -> forgotten(Socket) end.

forgotten(Socket) ->
    receive
        {Tag, Socket} when Tag =:= tcp_closed; Tag =:= tcp_passive -> forgotten(Socket);
        {Tag, Socket, _} when Tag =:= tcp; Tag =:= tcp_error -> forgotten(Socket)
    after 0 ->
        ok
    end.

-doc "Ends a connection at once, whoever has it.".
-spec close(inet:socket()) -> ok.
close(Socket) ->
    %% Any other reason would wait until all that was sent is taken.
    true = exit(Socket, kill),
    ok.
