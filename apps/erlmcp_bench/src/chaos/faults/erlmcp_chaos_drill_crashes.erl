-module(erlmcp_chaos_drill_crashes).
-moduledoc """
A drill: fifty processes of the server are killed, ten a second. They are calls, connections and
children of its supervisor, at random. The supervisor does not survive as many deaths of its
children, so the server restarts meanwhile.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, setup/1, run/1]).

-define(CRASHES, 50).
-define(SHORT_CRASHES, 10).
-define(PAUSE_MS, 100).
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
setup(_) ->
    {ok, erlmcp_chaos_victims:setup()}.

-doc false.
run(Context) ->
    Crashes = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_CRASHES;
        false -> ?CRASHES
    end,
    erlmcp_chaos_victims:drill(?CALLERS, fun() -> ok end, fun() -> crash(Crashes, Context) end,
                               Context).

crash(0, _) ->
    0;
crash(More, Context) ->
    Killed = erlmcp_chaos_context:call(Context, erlmcp_chaos_victims, kill, [1]),
    receive after ?PAUSE_MS -> ok end,
    %% The server itself may have been restarting.
    case Killed of
        0 -> crash(More, Context);
        1 -> 1 + crash(More - 1, Context)
    end.
