-module(erlmcp_chaos_supervisor_cascade).
-moduledoc """
The server's supervisor is killed, again and again, and with it all that it supervises: listeners,
connections, calls, the catalog. The supervisor above starts it anew, on the same ports; the clients
see their connections end and come back, and nothing of the old server is left.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, setup/1, run/1]).

-define(KILLS, 5).
-define(SHORT_KILLS, 2).
%% Processes that the node may have more than before: of connections that are there already again.
-define(SLACK, 20).

-doc false.
id() -> ~"chaos_supervisor_cascade".

-doc false.
title() -> ~"kill the server's supervisor, repeatedly".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => none, detect_ms => 100, recover_ms => 5_000, load => failed}.

%% The ports have to be the same ones afterwards, and so they are chosen before.
-doc false.
setup(_) ->
    [Http, Tcp] = free_ports(2),
    Ip = {127, 0, 0, 1},
    {ok, #{server => #{listen => [{http, #{port => Http, ip => Ip}},
                                  {tcp, #{port => Tcp, ip => Ip}}]},
           restarts => server}}.

free_ports(Count) ->
    Sockets = [listening() || _ <- lists:seq(1, Count)],
    [begin
         {ok, Port} = inet:port(Socket),
         ok = gen_tcp:close(Socket),
         Port
     end || Socket <- Sockets].

listening() ->
    {ok, Socket} = gen_tcp:listen(0, [{ip, {127, 0, 0, 1}}, {reuseaddr, true}]),
    Socket.

-doc false.
run(Context) ->
    Kills = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_KILLS;
        false -> ?KILLS
    end,
    #{processes := Before} = inside(state, [], Context),
    [ok = killed(Context) || _ <- lists:seq(1, Kills)],
    ok = erlmcp_chaos_context:fact(Context, kills_count, Kills),
    Left = fun() -> maps:get(processes, inside(state, [], Context)) - Before end,
    case erlmcp_chaos_context:until(fun() -> Left() =< ?SLACK end) of
        ok -> ok;
        timeout -> {error, {processes_left, Left()}}
    end.

killed(Context) ->
    _ = erlmcp_chaos_context:inject(Context),
    1 = inside(kill, [supervisor], Context),
    _ = erlmcp_chaos_context:heal(Context),
    ok = erlmcp_chaos_context:await_detected(Context),
    ok = erlmcp_chaos_context:await_recovered(Context),
    ok.

inside(Function, Arguments, Context) ->
    erlmcp_chaos_context:call(Context, erlmcp_chaos_inside, Function, Arguments).
