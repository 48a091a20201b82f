-module(erlmcp_chaos_drill_latency).
-moduledoc """
A drill: a fault proxy adds 100 ms to the answers on half of the connections. The drill measures how
much later the connections are answered, and how many fewer answers they get.

The evidence: the median latency of the delayed half grows by at least 90 ms, and that of the other
half by at most 45 ms.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).

-define(LATENCY_MS, 100).
%% The least milliseconds by which the delayed half is later, and the most for the other half.
-define(SEEN_MS, 90).
-define(OTHER_MS, 45).
%% Connections of each half, and requests a second on all of them: 50 on each connection, none of
%% which waits for the one before.
-define(CONNECTIONS, 12).
-define(RATE, 1_200).
-define(PHASE_MS, 10_000).
-define(SHORT_PHASE_MS, 1_500).

-doc false.
id() -> ~"drill_latency".

-doc false.
title() -> ~"100 ms added on half the connections by a fault proxy".

-doc false.
needs() ->
    case erlmcp_chaos_toxiproxy:program() of
        {ok, _} -> [];
        {error, {no_program, Name}} -> [{program, Name}]
    end.

-doc false.
bounds() -> #{code => none, detect_ms => none, recover_ms => 5_000, load => failed}.

-doc false.
harms() -> [delay].

-doc false.
setup(_) ->
    {ok, #{load => none}}.

-doc false.
run(#{target := Target} = Context) ->
    maybe
        {ok, Toxiproxy} ?= erlmcp_chaos_toxiproxy:start(),
        Address = erlmcp_bench_target:address(tcp, Target),
        {ok, Slow, SlowAt} ?= erlmcp_chaos_toxiproxy:proxy(Toxiproxy, Address),
        {ok, _, FastAt} ?= erlmcp_chaos_toxiproxy:proxy(Toxiproxy, Address),
        Halves = [SlowAt, FastAt],
        {ok, Before} ?= phase(Halves, Context),
        _ = erlmcp_chaos_context:inject(Context),
        ok ?= erlmcp_chaos_context:harm(Context, delay, ok, fun() ->
            erlmcp_chaos_toxiproxy:add(Toxiproxy, Slow, {latency, ?LATENCY_MS})
        end),
        {ok, Within} ?= phase(Halves, Context),
        ok ?= erlmcp_chaos_context:harm(Context, delay, ok, fun() ->
            erlmcp_chaos_toxiproxy:remove(Toxiproxy, Slow)
        end),
        _ = erlmcp_chaos_context:heal(Context),
        {ok, _} ?= phase(Halves, Context),
        ok = record_facts(Before, Within, Context),
        ok ?= erlmcp_chaos_toxiproxy:stop(Toxiproxy),
        [Delayed, Other] = lists:zipwith(fun added_ms/2, Before, Within),
        ok ?= erlmcp_chaos_context:seen(Context, delay, delayed_half_added_ms, Delayed,
                                        {at_least, ?SEEN_MS}),
        erlmcp_chaos_context:seen(Context, delay, other_half_added_ms, Other,
                                  {at_most, ?OTHER_MS})
    end.

%% By how many milliseconds the median is later.
added_ms(#{latency := Before}, #{latency := Within}) ->
    Us = erlmcp_bench_histogram:percentile(Within, 50)
             - erlmcp_bench_histogram:percentile(Before, 50),
    max(1, Us) / 1_000.

%% Runs both halves at the same time.
phase(Addresses, Context) ->
    DurationMs = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_PHASE_MS;
        false -> ?PHASE_MS
    end,
    Started = [erlmcp_load:start(
                   #{target => {tcp, Ip, Port}, connections => ?CONNECTIONS, payload_bytes => 512,
                     loop => {open, ?RATE div length(Addresses), even}, warmup_ms => 0,
                     duration_ms => DurationMs, timeout_ms => 10_000,
                     observer => erlmcp_chaos_context:observer(Context, load)})
               || {Ip, Port} <- Addresses],
    case [Reason || {error, Reason} <- Started] of
        [] -> {ok, [erlmcp_load:await(Load) || {ok, Load} <- Started]};
        [Reason | _] -> {error, Reason}
    end.

%% To compare with the marks: a p95 of 450 ms, 25 % less throughput, and 1.2 % failed.
record_facts(Before, [_, Fast] = Within, Context) ->
    Fact = fun(Name, Value) -> ok = erlmcp_chaos_context:fact(Context, Name, Value) end,
    Fact(latency_p95_us, p95_us(Within)),
    Fact(undelayed_latency_p95_us, p95_us([Fast])),
    Fact(earlier_latency_p95_us, p95_us(Before)),
    Fact(throughput_loss_percent, 100 * (1 - per_second(Within) / max(1, per_second(Before)))),
    Fact(failed_percent, 100 * (1 - sum(answered, Within) / max(1, sum(sent, Within)))),
    Fact(unsent_percent, 100 * sum(unsent, Within)
                             / max(1, sum(sent, Within) + sum(unsent, Within))).

p95_us(Reports) ->
    All = erlmcp_bench_histogram:merge([Latency || #{latency := Latency} <- Reports]),
    erlmcp_bench_histogram:percentile(All, 95).

per_second(Reports) ->
    lists:sum([Answered / Seconds || #{answered := Answered, duration_s := Seconds} <- Reports]).

sum(Key, Reports) ->
    lists:sum([map_get(Key, Report) || Report <- Reports]).
