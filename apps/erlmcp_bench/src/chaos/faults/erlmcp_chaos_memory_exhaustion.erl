-module(erlmcp_chaos_memory_exhaustion).
-moduledoc """
A fault: a tool that holds memory and a flood of big messages drive the node over its memory bound.
The bound and everything that the callers can ask for are small, so the machine is not hurt.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, setup/1, run/1]).

-define(MIB, 1_048_576).
%% The bound on the node's memory, in bytes.
-define(BOUND, 160 * ?MIB).
%% Each caller has one call at a time. Half of the calls fill the node, and all of them together
%% need less than twice its memory.
-define(CALLERS, 28).
-define(HELD, 8 * ?MIB).
-define(HOLD_MS, 3_000).
-define(BIG, ?MIB).
-define(BIG_CALLERS, 4).

-define(FULL_MS, 5_000).
-define(SHORT_FULL_MS, 600).
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
    _ = erlmcp_chaos_context:inject(Context),
    maybe
        {ok, Holding} ?= erlmcp_load:start(Plan#{requests => [{1, Hold}], connections => ?CALLERS,
                                                 loop => {open, 5 * ?CALLERS, even}}),
        {ok, Flooding} ?= erlmcp_load:start(Plan#{payload_bytes => ?BIG,
                                                  connections => ?BIG_CALLERS,
                                                  loop => {open, 2 * ?BIG_CALLERS, even}}),
        _ = erlmcp_chaos_context:await_detected(Context),
        ok = erlmcp_chaos_context:fact(Context, memory_allocated_mib_per_node,
                                       allocated_mib(Context)),
        receive after FullMs -> ok end,
        _ = erlmcp_load:stop(Flooding),
        _ = erlmcp_load:stop(Holding),
        _ = erlmcp_chaos_context:heal(Context),
        _ = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.

allocated_mib(Context) ->
    erlmcp_chaos_context:call(Context, erlang, memory, [total]) / ?MIB.
