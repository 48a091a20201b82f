-module(erlmcp_chaos_drill_connections).
-moduledoc """
A drill: two hundred connections are closed within half a second, at the server's end. It is over
when there are two hundred again, and they are served. Whoever is not waiting for an answer just
then opens another and has nothing to report; so there may be nothing to detect.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, setup/1, run/1]).
-export([close/2, connections/0]).

-define(CONNECTIONS, 200).
-define(WITHIN_MS, 500).
-define(RATE, 400).
-define(LOOK_MS, 10).
%% Until they were closed, and are back.
-define(LOOKS, 12_000).

-doc false.
id() -> ~"drill_connections".

-doc false.
title() -> ~"200 connections closed within 0.5 s".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => none, detect_ms => none, recover_ms => 85_000, load => failed}.

-doc false.
setup(_) ->
    {ok, #{load => #{connections => ?CONNECTIONS, loop => {open, ?RATE, even}}}}.

-doc false.
run(Context) ->
    maybe
        ok ?= reached(Context, ?LOOKS),
        Begun = erlmcp_chaos_context:inject(Context),
        Closed = erlmcp_chaos_context:call(Context, ?MODULE, close, [?CONNECTIONS, ?WITHIN_MS]),
        Healed = erlmcp_chaos_context:heal(Context),
        ok = erlmcp_chaos_context:fact(Context, closed_count, Closed),
        ok = erlmcp_chaos_context:fact(Context, closed_within_ms, (Healed - Begun) / 1_000),
        ok ?= reached(Context, ?LOOKS),
        %% All are there: what comes now is full service.
        ok = erlmcp_chaos_context:outcome(Context, probe, answered, Healed),
        _ = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.

reached(_, 0) ->
    {error, connections_missing};
reached(Context, Looks) ->
    case erlmcp_chaos_context:call(Context, ?MODULE, connections, []) of
        Enough when Enough >= ?CONNECTIONS -> ok;
        _ -> receive after ?LOOK_MS -> reached(Context, Looks - 1) end
    end.

-doc "In the server's node: how many connections it has.".
-spec connections() -> non_neg_integer().
connections() ->
    length(erlmcp_chaos_inside:pids(connections)).

-doc "In the server's node: closes so many connections, evenly over so many milliseconds.".
-spec close(Count :: pos_integer(), Milliseconds :: pos_integer()) -> Closed :: non_neg_integer().
close(Count, Milliseconds) ->
    Pids = lists:sublist(erlmcp_chaos_inside:pids(connections), Count),
    %% In ten goes, the last of them in time.
    close(Pids, max(1, ceil(length(Pids) / 10)), Milliseconds div 12),
    length(Pids).

close([], _, _) ->
    ok;
close(Pids, Together, PauseMs) ->
    {Now, Later} = lists:split(min(Together, length(Pids)), Pids),
    ok = lists:foreach(fun(Pid) -> exit(Pid, kill) end, Now),
    receive after PauseMs -> close(Later, Together, PauseMs) end.
