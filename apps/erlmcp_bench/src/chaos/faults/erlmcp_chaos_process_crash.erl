-module(erlmcp_chaos_process_crash).
-moduledoc """
A fault: processes are killed under load, one kind after the other. First all running calls are
killed, then all connections, then the process that publishes the catalog.

- Each caller of a killed call gets 1089, as after a call that passed its memory bound.
- Each client of a killed connection sees it end.
- No call survives its connection, and the server itself does not restart.

The evidence: monitors of the processes report how many were killed, and the client of a killed
connection sees its socket end.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(CALLS, 50).
-define(CYCLES, 5).
%% Milliseconds that a killed call would run, and milliseconds to wait for a reply.
-define(LONG_MS, 60_000).
-define(WAIT_MS, 20_000).
%% Milliseconds until killed processes have ended.
-define(ENDED_MS, 1_000).
%% Connections of the load, which are killed with the one of the calls.
-define(OTHERS, 4).

-doc false.
id() -> ~"chaos_process_crash".

-doc false.
title() -> ~"kill call, connection and catalog processes under load".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => none, detect_ms => 100, recover_ms => 1_000, load => failed}.

-doc false.
harms() -> [calls, connections, catalog].

-doc false.
setup(_) ->
    {ok, #{restarts => children, load => #{connections => ?OTHERS}}}.

-doc false.
run(Context) ->
    Cycles = case erlmcp_chaos_context:is_short(Context) of
        true -> 1;
        false -> ?CYCLES
    end,
    Seen = [Kill(Context) || _ <- lists:seq(1, Cycles),
                             Kill <- [fun calls/1, fun connections/1, fun catalog/1]],
    case lists:member(unseen, Seen) of
        true -> unseen;
        false -> ok
    end.

calls(Context) ->
    {Connection, SentUs} = calling(Context),
    Seen = strike(calls, killed_calls_count, ?CALLS, Context),
    ok = case Seen of
        ok ->
            Outcomes = [outcome(Connection, SentUs, Context) || _ <- lists:seq(1, ?CALLS)],
            ?CALLS = length([1089 || {refused, _, #{~"refusal" := 1089}} <- Outcomes]),
            ok;
        unseen ->
            ok
    end,
    ok = erlmcp_chaos_client:close(Connection),
    recovered(Seen, Context).

%% Kills all processes of a kind. Those of the load's calls may end by themselves meanwhile.
strike(Kind, Figure, Least, Context) ->
    Watcher = inside(watch, [inside(pids, [Kind], Context)], Context),
    _ = erlmcp_chaos_context:inject(Context),
    ok = erlmcp_chaos_context:harm(Context, Kind, ok, fun() ->
        _ = inside(kill, [Kind], Context),
        ok
    end),
    _ = erlmcp_chaos_context:heal(Context),
    Killed = inside(killed, [Watcher, ?ENDED_MS], Context),
    erlmcp_chaos_context:seen(Context, Kind, Figure, Killed, {at_least, Least}).

outcome(Connection, SentUs, Context) ->
    Outcome = case erlmcp_chaos_client:reply(Connection, ?WAIT_MS) of
        {ok, Reply} -> erlmcp_chaos_client:outcome(Reply);
        {error, Reason} -> {failed, Reason}
    end,
    ok = erlmcp_chaos_context:outcome(Context, fault, Outcome, SentUs),
    Outcome.

connections(Context) ->
    {Connection, SentUs} = calling(Context),
    Killed = strike(connections, killed_connections, 1 + ?OTHERS, Context),
    Ended = erlmcp_chaos_client:ended(Connection, ?ENDED_MS),
    Seen = erlmcp_chaos_context:seen(Context, connections, ended_sockets_count, Ended,
                                     {at_least, 1}),
    [ok = erlmcp_chaos_context:outcome(Context, fault, {failed, closed}, SentUs)
     || 1 <- [Ended], _ <- lists:seq(1, ?CALLS)],
    ok = erlmcp_chaos_client:close(Connection),
    maybe
        ok ?= both(Killed, Seen),
        %% Calls of the load end by themselves.
        ok = erlmcp_chaos_context:until(fun() -> inside(pids, [calls], Context) =:= [] end),
        recovered(ok, Context)
    end.

both(ok, ok) -> ok;
both(_, _) -> unseen.

catalog(Context) ->
    [Before] = inside(pids, [catalog], Context),
    Seen = strike(catalog, killed_catalogs_count, 1, Context),
    ok = erlmcp_chaos_context:until(fun() ->
        case inside(pids, [catalog], Context) of
            [Another] -> Another =/= Before orelse Seen =:= unseen;
            [] -> false
        end
    end),
    recovered(Seen, Context).

recovered(unseen, _) ->
    unseen;
recovered(ok, Context) ->
    ok = erlmcp_chaos_context:await_detected(Context),
    ok = erlmcp_chaos_context:await_recovered(Context),
    ok.

%% Opens a connection whose calls all run.
calling(Context) ->
    #{target := Target} = Context,
    {ok, Connection} = erlmcp_chaos_client:connect(tcp, Target),
    SentUs = erlmcp_chaos_context:now_us(),
    Calls = [erlmcp_chaos_client:bytes(tcp, erlmcp_chaos_client:call(Id, ~"sleep",
                                                                     #{ms => ?LONG_MS}))
             || Id <- lists:seq(1, ?CALLS)],
    ok = erlmcp_chaos_client:send(Connection, Calls),
    ok = erlmcp_chaos_context:until(fun() -> length(inside(pids, [calls], Context)) >= ?CALLS end),
    {Connection, SentUs}.

inside(Function, Arguments, Context) ->
    erlmcp_chaos_context:call(Context, erlmcp_chaos_inside, Function, Arguments).
