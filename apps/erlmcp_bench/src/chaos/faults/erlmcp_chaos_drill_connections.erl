-module(erlmcp_chaos_drill_connections).
-moduledoc """
A drill: the server closes two hundred connections within half a second. The drill is over when two
hundred connections are open again, and are served.

A client that waits for no answer opens a new connection without an error, so there may be nothing
to detect.

The evidence: the clients count their sockets that end, and measure the time until the last one has.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).
-export([close/2, connections/0]).

-define(CONNECTIONS, 200).
-define(WITHIN_MS, 500).
-define(RATE, 400).
-define(LOOK_MS, 10).
%% Milliseconds within which the clients see the last connection end. A busy machine needs more.
-define(SEEN_WITHIN_MS, 1_500).
%% The most polls until the connections were closed and are open again.
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
harms() -> [connections].

-doc false.
setup(_) ->
    {ok, #{load => #{connections => ?CONNECTIONS, loop => {open, ?RATE, even}}}}.

-doc false.
run(Context) ->
    maybe
        ok ?= await_connections(Context, ?LOOKS),
        Before = erlmcp_chaos_context:lost_connections(Context),
        Begun = erlmcp_chaos_context:inject(Context),
        ok = erlmcp_chaos_context:harm(Context, connections, ok, fun() ->
            erlmcp_chaos_context:call(Context, ?MODULE, close, [?CONNECTIONS, ?WITHIN_MS])
        end),
        Healed = erlmcp_chaos_context:heal(Context),
        Ended = ended(Before, Begun + ?SEEN_WITHIN_MS * 1_000, Context),
        WithinMs = (erlmcp_chaos_context:now_us() - Begun) / 1_000,
        ok ?= erlmcp_chaos_context:seen(Context, connections, ended_sockets_count, Ended,
                                        {at_least, ?CONNECTIONS}),
        ok ?= erlmcp_chaos_context:seen(Context, connections, ended_within_ms, WithinMs,
                                        {at_most, ?SEEN_WITHIN_MS}),
        ok ?= await_connections(Context, ?LOOKS),
        %% All connections are open: this is full service.
        ok = erlmcp_chaos_context:outcome(Context, probe, answered, Healed),
        _ = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.

ended(Before, UntilUs, Context) ->
    Ended = erlmcp_chaos_context:lost_connections(Context) - Before,
    case Ended >= ?CONNECTIONS orelse erlmcp_chaos_context:now_us() >= UntilUs of
        true -> Ended;
        false -> receive after ?LOOK_MS -> ended(Before, UntilUs, Context) end
    end.

await_connections(_, 0) ->
    {error, connections_missing};
await_connections(Context, Looks) ->
    case erlmcp_chaos_context:call(Context, ?MODULE, connections, []) of
        Enough when Enough >= ?CONNECTIONS -> ok;
        _ -> receive after ?LOOK_MS -> await_connections(Context, Looks - 1) end
    end.

-doc "Runs in the server's node: returns how many connections the server has.".
-spec connections() -> non_neg_integer().
connections() ->
    length(erlmcp_chaos_inside:pids(connections)).

-doc """
Runs in the server's node: closes `Count` connections of the server, or all of them if there are
fewer. Closes them in at most ten parts, with pauses, within `Milliseconds`.
""".
-spec close(Count :: pos_integer(), Milliseconds :: pos_integer()) -> ok.
close(Count, Milliseconds) ->
    Pids = lists:sublist(erlmcp_chaos_inside:pids(connections), Count),
    %% Ten pauses, and time to spare for the last part.
    close(Pids, max(1, ceil(length(Pids) / 10)), Milliseconds div 12).

close([], _, _) ->
    ok;
close(Pids, Together, PauseMs) ->
    {Now, Later} = lists:split(min(Together, length(Pids)), Pids),
    ok = lists:foreach(fun(Pid) -> exit(Pid, kill) end, Now),
    receive after PauseMs -> close(Later, Together, PauseMs) end.
