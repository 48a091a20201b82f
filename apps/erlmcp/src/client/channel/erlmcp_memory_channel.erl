-module(erlmcp_memory_channel).
-moduledoc """
A channel to a server of this node, without a socket (`m:erlmcp_memory`). `Target` is `{server,
Server}`. The option `principal` is the principal that the server takes the client for. While no
such server runs, `Why` of `{connect, Why}` is `no_server`.

Internal.
""".

-behaviour(erlmcp_channel).
-behaviour(erlmcp_line_channel).

-export([open/2, send/2, received/2, abort/1, leave/4, close/1]).
-export([connect/3, activate/2, arrived/2, deliver/2, drop/1, finish/1, option/2, about/1]).

-doc "Starts the channel, which looks for the server in the background.".
-spec open({server, erlmcp:server()}, erlmcp_channel:settings()) ->
    {ok, pid(), erlmcp_line_channel:handle()} | {error, term()}.
open({server, _} = Target, Settings) ->
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

-doc "Ends the connection, and with it all work of the server for it.".
-spec close(pid()) -> ok.
close(Pid) ->
    erlmcp_line_channel:close(Pid).

-doc false.
connect({server, Server}, _, _) ->
    case erlmcp_registry:whereis(Server) of
        {ok, Pid, Instance} -> {ok, {Pid, Instance}};
        error -> {error, no_server}
    end.

-doc false.
activate({Server, Instance}, #{options := Options}) ->
    Principal = maps:get(principal, Options, anonymous),
    Pid = erlmcp_memory:start(Server, Instance, Principal),
    {ok, {Pid, monitor(process, Pid)}}.

-doc false.
arrived({erlmcp_memory, Pid, Bytes}, {Pid, _} = Way) ->
    Pid ! {erlmcp_memory, self(), taken},
    {data, Bytes, Way};
arrived({'DOWN', Monitor, process, _, _}, {_, Monitor} = Way) ->
    {ended, closed, Way};
arrived(_, _) ->
    other.

%% The connection's process acknowledges to the writer.
-doc false.
deliver(Bytes, {Pid, _}) ->
    Monitor = monitor(process, Pid),
    Pid ! {erlmcp_memory, self(), iolist_to_binary(Bytes)},
    receive
        {erlmcp_memory, Pid, taken} ->
            true = demonitor(Monitor, [flush]),
            ok;
        {'DOWN', Monitor, process, _, _} ->
            {error, closed}
    end.

-doc false.
drop({Pid, Monitor}) ->
    true = demonitor(Monitor, [flush]),
    Pid ! {erlmcp_memory, self(), lost},
    ok.

-doc false.
finish(Way) ->
    drop(Way).

-doc false.
option(principal, _) -> true;
option(_, _) -> ~"no such option of a client of a server of this node".

-doc false.
about({server, Server}) ->
    #{transport => memory, server => Server}.
