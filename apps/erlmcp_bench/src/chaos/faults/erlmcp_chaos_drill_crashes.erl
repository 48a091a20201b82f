-module(erlmcp_chaos_drill_crashes).
-moduledoc """
A drill: fifty random processes of the server are killed, about ten a second: calls, connections and
children of its supervisor. The supervisor does not survive so many deaths of its children, so the
server restarts meanwhile.

The evidence: monitors of the processes report how many were killed.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(CRASHES, 50).
-define(SHORT_CRASHES, 10).
-define(PAUSE_MS, 100).
%% Attempts for each crash, of all crashes together.
-define(TRIES, 2).
-define(CALLERS, 4).

-doc false.
id() -> ~"drill_crashes".

-doc false.
title() -> ~"50 crashes at 10 a second".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => none, detect_ms => 1_000, recover_ms => 5_000, load => failed}.

-doc false.
harms() -> [processes].

-doc false.
setup(_) ->
    {ok, erlmcp_chaos_victims:setup()}.

-doc false.
run(Context) ->
    Crashes = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_CRASHES;
        false -> ?CRASHES
    end,
    Kill = fun() -> crash(Crashes, ?TRIES * Crashes, Context) end,
    erlmcp_chaos_victims:drill(?CALLERS, fun() -> ok end, Kill, Crashes, Context).

%% The server may be restarting, or the process may have ended by itself.
crash(More, Tries, _) when More =:= 0; Tries =:= 0 ->
    0;
crash(More, Tries, Context) ->
    Killed = erlmcp_chaos_victims:strike(1, Context),
    receive after ?PAUSE_MS -> Killed + crash(More - Killed, Tries - 1, Context) end.
