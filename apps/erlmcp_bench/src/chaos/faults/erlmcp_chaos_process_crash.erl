-module(erlmcp_chaos_process_crash).
-moduledoc """
A fault: processes are killed under load. They are all running calls, all connections, and the
process that publishes the catalog.

- Each caller of a killed call gets 1089, as after a call that passed its memory bound, which is
  killed in the same way.
- Each client of a killed connection sees it end.
- No call survives its connection, and the server itself does not restart.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, setup/1, run/1]).

-define(CALLS, 50).
-define(CYCLES, 5).
%% Milliseconds that a killed call would run, and milliseconds to wait for a reply.
-define(LONG_MS, 60_000).
-define(WAIT_MS, 20_000).

-doc false.
id() -> ~"chaos_process_crash".

-doc false.
title() -> ~"kill call, connection and catalog processes under load".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => none, detect_ms => 100, recover_ms => 1_000, load => failed}.

-doc false.
setup(_) ->
    {ok, #{restarts => children}}.

-doc false.
run(Context) ->
    Cycles = case erlmcp_chaos_context:is_short(Context) of
        true -> 1;
        false -> ?CYCLES
    end,
    kill_cycles(Cycles, Context).

kill_cycles(0, _) ->
    ok;
kill_cycles(Cycles, Context) ->
    ok = calls(Context),
    ok = connections(Context),
    ok = catalog(Context),
    kill_cycles(Cycles - 1, Context).

calls(Context) ->
    {Connection, SentUs} = calling(Context),
    _ = erlmcp_chaos_context:inject(Context),
    Killed = inside(kill, [calls], Context),
    _ = erlmcp_chaos_context:heal(Context),
    ok = erlmcp_chaos_context:fact(Context, killed_calls_count, Killed),
    Outcomes = [outcome(Connection, SentUs, Context) || _ <- lists:seq(1, ?CALLS)],
    ?CALLS = length([1089 || {refused, _, #{~"refusal" := 1089}} <- Outcomes]),
    ok = erlmcp_chaos_client:close(Connection),
    recovered(Context).

outcome(Connection, SentUs, Context) ->
    Outcome = case erlmcp_chaos_client:reply(Connection, ?WAIT_MS) of
        {ok, Reply} -> erlmcp_chaos_client:outcome(Reply);
        {error, Reason} -> {failed, Reason}
    end,
    ok = erlmcp_chaos_context:outcome(Context, fault, Outcome, SentUs),
    Outcome.

connections(Context) ->
    {Connection, SentUs} = calling(Context),
    _ = erlmcp_chaos_context:inject(Context),
    Killed = inside(kill, [connections], Context),
    _ = erlmcp_chaos_context:heal(Context),
    ok = erlmcp_chaos_context:fact(Context, killed_connections, Killed),
    {failed, _} = outcome(Connection, SentUs, Context),
    [ok = erlmcp_chaos_context:outcome(Context, fault, {failed, closed}, SentUs)
     || _ <- lists:seq(2, ?CALLS)],
    %% Calls of the load end by themselves.
    ok = erlmcp_chaos_context:until(fun() -> inside(pids, [calls], Context) =:= [] end),
    recovered(Context).

catalog(Context) ->
    [Before] = inside(pids, [catalog], Context),
    _ = erlmcp_chaos_context:inject(Context),
    1 = inside(kill, [catalog], Context),
    _ = erlmcp_chaos_context:heal(Context),
    ok = erlmcp_chaos_context:until(fun() ->
        case inside(pids, [catalog], Context) of
            [Another] -> Another =/= Before;
            [] -> false
        end
    end),
    recovered(Context).

recovered(Context) ->
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
