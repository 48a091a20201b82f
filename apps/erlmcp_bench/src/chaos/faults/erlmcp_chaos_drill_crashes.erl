-module(erlmcp_chaos_drill_crashes).
-moduledoc """
A drill: fifty processes of the server are killed, ten in a second: calls, connections, children of
its supervisor, whichever comes. So many children's deaths are more than their supervisor bears, and
the server begins anew on the way.
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
    erlmcp_chaos_victims:drill(?CALLERS, fun() -> ok end, fun() -> crashed(Crashes, Context) end,
                               Context).

crashed(0, _) ->
    0;
crashed(Left, Context) ->
    Killed = erlmcp_chaos_context:call(Context, erlmcp_chaos_victims, kill, [1]),
    receive after ?PAUSE_MS -> ok end,
    %% The server itself may have been on its way back.
    case Killed of
        0 -> crashed(Left, Context);
        1 -> 1 + crashed(Left - 1, Context)
    end.
