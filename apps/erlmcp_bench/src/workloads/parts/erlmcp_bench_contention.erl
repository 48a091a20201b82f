-module(erlmcp_bench_contention).
-moduledoc """
Measures how much the processes of a plan hinder each other. All of them repeat an operation at
once. One process repeats it alone just before and just after. Without contention, N processes on N
cores do N times as many operations as one process does.
""".

-export([run/1]).

-export_type([measured/0]).

-doc """
The figures of all processes together, and two more. `alone_per_s` is the number of operations that
one process alone does in a second. `lost_percent` is the percentage that contention takes of what
the cores could do.
""".
-type measured() :: #{
    operations := pos_integer(), duration_ns := pos_integer(), timer_ns := non_neg_integer(),
    histogram := erlmcp_bench_histogram:histogram(),
    alone_per_s := float(), lost_percent := float()
}.

%% The operations of one process alone, each time, as a part of all.
-define(PART, 8).

-doc """
Runs the operations of a plan with all of its workers. Before and after that, runs some of them with
one worker alone. The error is the reason of an operation that failed.
""".
-spec run(erlmcp_bench_operations:plan()) ->
    {ok, measured()} | {error, {operation_failed, Reason :: term()}}.
run(#{operations := Operations, workers := Workers} = Plan) ->
    Alone = maps:remove(on_part, Plan#{workers := 1, operations := max(1, Operations div ?PART)}),
    maybe
        {ok, Before} ?= erlmcp_bench_operations:run(Alone),
        {ok, Together} ?= erlmcp_bench_operations:run(Plan),
        {ok, After} ?= erlmcp_bench_operations:run(Alone),
        One = (per_second(Before) + per_second(After)) / 2,
        Parts = min(Workers, erlang:system_info(schedulers_online)),
        {ok, Together#{alone_per_s => One,
                       lost_percent => max(0.0, 100 * (1 - per_second(Together) / One / Parts))}}
    end.

per_second(#{operations := Operations, duration_ns := Nanoseconds}) ->
    Operations * 1_000_000_000 / Nanoseconds.
