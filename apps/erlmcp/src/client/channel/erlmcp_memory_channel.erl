-module(erlmcp_memory_channel).
-moduledoc """
The transport of a line channel to a server of this node, without a socket (`m:erlmcp_memory`). The
option `principal` is the client's principal in the server, `anonymous` by default. While the server
does not run, attempts to connect fail with `no_server`.

Internal.
""".

-behaviour(erlmcp_line_channel).

-export([target/1, option/2, about/1]).
-export([connect/3, activate/2, arrived/2, deliver/2, drop/1, finish/1]).

-doc false.
target(Target) ->
    {ok, Target}.

-doc false.
option(principal, _) -> true;
option(_, _) -> ~"no such option of a client of a server of this node".

-doc false.
about({server, Server}) ->
    #{transport => memory, server => Server}.

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
arrived({erlmcp_memory, Pid, Bytes}, {Pid, _} = Connection) ->
    Pid ! {erlmcp_memory, self(), taken},
    {data, Bytes, Connection};
arrived({'DOWN', Monitor, process, _, _}, {_, Monitor} = Connection) ->
    {ended, closed, Connection};
arrived(_, _) ->
    other.

%% The process of the server's connection acknowledges each piece to the writer.
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
finish(Connection) ->
    drop(Connection).
