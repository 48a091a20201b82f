-module(erlmcp_chaos_supervisor_cascade).
-moduledoc """
A fault: the server's supervisor is killed repeatedly, and with it all its listeners, connections
and calls, and the catalog. The supervisor above restarts it on the same ports. The clients see
their connections end and reconnect. Nothing of the old server remains.

The evidence: a monitor reports that the supervisor was killed, and the socket of a client ends.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(KILLS, 5).
-define(SHORT_KILLS, 2).
%% Processes that the node may have in addition to before: connections that are already open again.
-define(SLACK, 20).
%% Milliseconds until the supervisor and a connection have ended.
-define(ENDED_MS, 2_000).

-doc false.
id() -> ~"chaos_supervisor_cascade".

-doc false.
title() -> ~"kill the server's supervisor, repeatedly".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => none, detect_ms => 100, recover_ms => 5_000, load => failed}.

-doc false.
harms() -> [supervisor].

%% The ports must be the same after the restart, so they are chosen first.
-doc false.
setup(_) ->
    [Http, Tcp] = free_ports(2),
    Ip = {127, 0, 0, 1},
    {ok, #{server => #{listen => [{http, #{port => Http, ip => Ip}},
                                  {tcp, #{port => Tcp, ip => Ip}}]},
           restarts => server}}.

free_ports(Count) ->
    Sockets = [listen() || _ <- lists:seq(1, Count)],
    [begin
         {ok, Port} = inet:port(Socket),
         ok = gen_tcp:close(Socket),
         Port
     end || Socket <- Sockets].

listen() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {reuseaddr, true}]),
    Socket.

-doc false.
run(Context) ->
    Kills = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_KILLS;
        false -> ?KILLS
    end,
    #{processes := Before} = inside(state, [], Context),
    maybe
        ok ?= kill_supervisor(Kills, Context),
        ok = erlmcp_chaos_context:fact(Context, kills_count, Kills),
        Extra = fun() -> maps:get(processes, inside(state, [], Context)) - Before end,
        case erlmcp_chaos_context:until(fun() -> Extra() =< ?SLACK end) of
            ok -> ok;
            timeout -> {error, {processes_left, Extra()}}
        end
    end.

kill_supervisor(0, _) ->
    ok;
kill_supervisor(Kills, #{target := Target} = Context) ->
    Watcher = inside(watch, [inside(pids, [supervisor], Context)], Context),
    {ok, Connection} = erlmcp_chaos_client:connect(tcp, Target),
    _ = erlmcp_chaos_context:inject(Context),
    ok = erlmcp_chaos_context:harm(Context, supervisor, ok, fun() ->
        1 = inside(kill, [supervisor], Context),
        ok
    end),
    _ = erlmcp_chaos_context:heal(Context),
    Seen = fun(Figure, Count) ->
        erlmcp_chaos_context:seen(Context, supervisor, Figure, Count, {at_least, 1})
    end,
    maybe
        ok ?= Seen(killed_supervisors_count, inside(killed, [Watcher, ?ENDED_MS], Context)),
        ok ?= Seen(ended_sockets_count, erlmcp_chaos_client:ended(Connection, ?ENDED_MS)),
        ok = erlmcp_chaos_context:await_detected(Context),
        ok = erlmcp_chaos_context:await_recovered(Context),
        kill_supervisor(Kills - 1, Context)
    end.

inside(Function, Arguments, Context) ->
    erlmcp_chaos_context:call(Context, erlmcp_chaos_inside, Function, Arguments).
