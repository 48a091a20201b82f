-module(erlmcp_chaos_memory_exhaustion).
-moduledoc """
A fault: a tool that holds memory and a flood of big messages drive the node over its memory bound.
The node refuses requests with 1089 while it is over the bound, which is far below the memory of the
machine.

The evidence: the memory of the node reaches the bound, and the node receives the bytes of several
big messages.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(MIB, 1_048_576).
%% The bound on the node's memory, in bytes.
-define(BOUND, 160 * ?MIB).
%% Each caller has one call at a time. Half of the calls fill the node, and all of them together
%% need less than twice its bound.
-define(CALLERS, 28).
-define(HELD, 8 * ?MIB).
-define(HOLD_MS, 3_000).
-define(BIG, ?MIB).
-define(BIG_CALLERS, 4).

-define(FULL_MS, 5_000).
-define(SHORT_FULL_MS, 600).
%% The fewest MiB that the node receives. The load alone sends a small part of that.
-define(RECEIVED_MIB, 4).
%% Longer than anything here takes.
-define(LONGEST_MS, 60_000).

-doc false.
id() -> ~"chaos_memory_exhaustion".

-doc false.
title() -> ~"a tool that holds memory and a flood of big messages drive the node to its bound".

-doc false.
needs() -> [].

-doc false.
bounds() -> #{code => 1089, detect_ms => 1_000, recover_ms => 1_000, load => refused}.

-doc false.
harms() -> [held, flood].

-doc false.
setup(_) ->
    {ok, #{target => #{flags => ["-erlmcp", "memory_bytes", integer_to_list(?BOUND)]}}}.

-doc false.
run(#{target := Target} = Context) ->
    FullMs = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_FULL_MS;
        false -> ?FULL_MS
    end,
    Plan = #{target => {http, erlmcp_bench_target:url(Target)}, duration_ms => ?LONGEST_MS,
             warmup_ms => 0, timeout_ms => ?LONGEST_MS,
             %% The fault has its own address, so that the load's addresses are not refused for it.
             sources => [{127, 0, 0, 9}],
             observer => erlmcp_chaos_context:observer(Context, fault)},
    Hold = {~"tools/call", #{~"name" => ~"hold",
                             ~"arguments" => #{bytes => ?HELD, ms => ?HOLD_MS}}},
    Flood = Plan#{payload_bytes => ?BIG, connections => ?BIG_CALLERS,
                  loop => {open, 2 * ?BIG_CALLERS, even}},
    Holders = Plan#{requests => [{1, Hold}], connections => ?CALLERS,
                    loop => {open, 5 * ?CALLERS, even}},
    ok = erlmcp_chaos_context:call(Context, erlmcp_chaos_peaks, follow,
                                   [#{memory => {erlang, memory, [total]}}]),
    Received = received(Context),
    _ = erlmcp_chaos_context:inject(Context),
    maybe
        {ok, Holding} ?= started(held, Holders, Context),
        {ok, Flooding} ?= started(flood, Flood, Context),
        _ = erlmcp_chaos_context:await_detected(Context),
        receive after FullMs -> ok end,
        #{memory := Peak} = erlmcp_chaos_context:call(Context, erlmcp_chaos_peaks, highest, []),
        Held = erlmcp_chaos_context:seen(Context, held, memory_allocated_peak_mib_per_node,
                                         Peak / ?MIB, {at_least, ?BOUND div ?MIB}),
        Flooded = erlmcp_chaos_context:seen(Context, flood, received_mib_per_node,
                                            (received(Context) - Received) / ?MIB,
                                            {at_least, ?RECEIVED_MIB}),
        ok = stopped(Flooding),
        ok = stopped(Holding),
        _ = erlmcp_chaos_context:heal(Context),
        ok ?= Held,
        ok ?= Flooded,
        _ = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.

started(Harm, Plan, Context) ->
    erlmcp_chaos_context:harm(Context, Harm, {ok, none}, fun() -> erlmcp_load:start(Plan) end).

stopped(none) ->
    ok;
stopped(Load) ->
    _ = erlmcp_load:stop(Load),
    ok.

%% Bytes that the node has received until now.
received(Context) ->
    {{input, Bytes}, _} = erlmcp_chaos_context:call(Context, erlang, statistics, [io]),
    Bytes.
