-module(erlmcp_chaos_drill_processes).
-moduledoc """
A drill: a hundred random processes of the server are killed at once: calls, connections and
children of its supervisor.

The evidence: monitors of the processes report that at least ninety were killed. The others may have
ended by themselves.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(PROCESSES, 100).
-define(LEAST, 90).
%% Each caller is a connection, and most of the time also a call.
-define(CALLERS, 80).
-define(LOAD_CONNECTIONS, 20).
-define(PAUSE_MS, 200).

-doc false.
id() -> ~"drill_processes".

-doc false.
title() -> ~"100 processes at once".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => none, detect_ms => 1_000, recover_ms => 5_000, load => failed}.

-doc false.
harms() -> [processes].

-doc false.
setup(_) ->
    {ok, (erlmcp_chaos_victims:setup())#{load => #{connections => ?LOAD_CONNECTIONS}}}.

-doc false.
run(Context) ->
    Kill = fun() -> erlmcp_chaos_victims:strike(?PROCESSES, Context) end,
    erlmcp_chaos_victims:drill(?CALLERS, fun() -> enough(Context, 100) end, Kill, ?LEAST, Context).

%% Waits until enough connections and calls exist.
enough(_, 0) ->
    {error, too_few_processes};
enough(Context, Looks) ->
    Pids = [erlmcp_chaos_context:call(Context, erlmcp_chaos_inside, pids, [Kind])
            || Kind <- [connections, calls]],
    case length(lists:append(Pids)) of
        Enough when Enough >= ?PROCESSES -> ok;
        _ -> receive after ?PAUSE_MS -> enough(Context, Looks - 1) end
    end.
