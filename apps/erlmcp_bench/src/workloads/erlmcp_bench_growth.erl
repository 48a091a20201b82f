-module(erlmcp_bench_growth).
-moduledoc """
Measures whether a request costs more on a server with ten times the tools, sessions or connections.
Two servers run, each in a node of its own, of which one has ten times as many of these. They get
requests in turn, three times. The medians of the cost of a request are compared: processor time
from the operating system, and reductions.
""".

-behaviour(erlmcp_bench_run).

-export([measured/2]).
-export([echo/2]).

-define(TIMES, 10).
-define(ROUNDS, 3).
-define(CONNECTIONS, 64).
-define(PAYLOAD_BYTES, 64).
%% Requests a second to connections, however many there are.
-define(PER_SECOND, 2_000).
%% Requests on each connection before measuring: the schedulers poll a socket after ten reads, which
%% is cheaper. And the longest warm-up, as a multiple of the measured time.
-define(WARM, 20).
-define(WARM_TIMES, 4).
%% Connections come from many addresses, as those of clients do.
-define(ADDRESSES, [{127, 0, 1, N} || N <- lists:seq(1, 64)]).

-doc """
Measures a workload. In each of three rounds, each server is measured for `duration_s` seconds.
""".
-spec measured(erlmcp_bench_workloads:workload(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:measured().
measured(#{id := Id, grows := What, base := Base} = Workload, Options) ->
    {Seconds, Shortened} = erlmcp_bench_run:seconds(Workload, Options),
    Milliseconds = max(1, ceil(Seconds * 1_000)),
    Counts = [Base, ?TIMES * Base],
    Outcome = maybe
        {ok, Rounds} ?= with_servers([server(What, Count) || Count <- Counts], fun(Servers) ->
            rounds(?ROUNDS, lists:zip(Servers, [warmed(load(What, Count), Milliseconds)
                                                || Count <- Counts]),
                   Milliseconds, erlmcp_bench_run:on_part(Options), [])
        end),
        {ok, fields(Rounds, Workload, Shortened), []}
    end,
    erlmcp_bench_run:measured(Outcome, {Id, Options}).

%% Both servers have room for the larger load, and refuse nothing on a busy machine.
server(What, Count) ->
    Most = 10_000,
    #{handler => erlmcp_bench_fixture, listen => [{http, #{port => 0}}],
      limits => #{connections => Most, in_flight => Most, queue => Most,
                  queue_per_principal => Most, queue_ms => 60_000},
      tools => [tool(Number) || What =:= tools, Number <- lists:seq(1, Count)]}.

tool(Number) ->
    #{name => <<"tool_", (integer_to_binary(Number))/binary>>, description => ~"Says it again",
      input_schema => #{text => string}, handler => fun ?MODULE:echo/2}.

-doc false.
-spec echo(map(), map()) -> binary().
echo(#{~"text" := Text}, _) -> Text.

load(What, Count) ->
    maps:merge(#{transport => http1, connections => ?CONNECTIONS, payload_bytes => ?PAYLOAD_BYTES,
                 sources => ?ADDRESSES}, grown(What, Count)).

grown(tools, _) -> #{};
%% The rate is fixed: with more requests at once, the connections would not cause the cost.
grown(connections, Count) -> #{connections => Count, loop => {open, ?PER_SECOND, even}};
grown(sessions, Count) ->
    #{era => {session, erlmcp_revision:name(erlmcp_revision:latest(session))},
      sessions_per_connection => Count div ?CONNECTIONS}.

warmed(#{loop := {open, PerSecond, _}, connections := Count} = Load, Milliseconds) ->
    Load#{warm_ms => min(?WARM * Count * 1_000 div PerSecond, ?WARM_TIMES * Milliseconds)};
warmed(Load, _) ->
    Load.

with_servers(Options, Measure) ->
    with_servers(Options, Measure, []).

with_servers([], Measure, Servers) ->
    Measure(lists:reverse(Servers));
with_servers([Server | Options], Measure, Servers) ->
    maybe
        {ok, Target} ?= erlmcp_bench_target:start(#{server => Server}),
        try
            with_servers(Options, Measure, [Target | Servers])
        after
            erlmcp_bench_target:stop(Target)
        end
    end.

rounds(0, _, _, _, Rounds) ->
    {ok, Rounds};
rounds(More, [{Small, OfSmall}, {Large, OfLarge}] = Servers, Milliseconds, OnPart, Rounds) ->
    maybe
        {ok, Before} ?= erlmcp_bench_stage_load:taken(Small, OfSmall, Milliseconds),
        {ok, After} ?= erlmcp_bench_stage_load:taken(Large, OfLarge, Milliseconds),
        _ = OnPart(1 - (More - 1) / ?ROUNDS),
        rounds(More - 1, Servers, Milliseconds, OnPart, [{Before, After} | Rounds])
    end.

fields(Rounds, #{id := Id, grows := What, base := Base}, Shortened) ->
    {Small, Large} = lists:unzip(Rounds),
    Median = fun(Of, Taken) -> erlmcp_bench_compare:median([map_get(Of, One) || One <- Taken]) end,
    [CpuBefore, Cpu] = [Median(cpu_us, Taken) || Taken <- [Small, Large]],
    [ReductionsBefore, Reductions] = [Median(reductions, Taken) || Taken <- [Small, Large]],
    Answered = lists:sum([Count || #{answered := Count} <- Large]),
    Seconds = lists:sum([Us || #{at_us := Us} <- Large]) / 1_000_000,
    #{connections := Connections} = load(What, ?TIMES * Base),
    #{workload_id => Id, benchmark => ~"growth", transport => http1, era => era(What),
      scope => ~"per_request", payload_bytes => ?PAYLOAD_BYTES, connections => Connections,
      base_count => Base, grown_count => ?TIMES * Base, shortened => Shortened,
      sample_count => Answered, duration_s => Seconds, throughput_msg_per_s => Answered / Seconds,
      base_cpu_us_per_msg => CpuBefore, cpu_us_per_msg => Cpu,
      growth_cpu_ratio => Cpu / CpuBefore, base_reductions_per_msg => ReductionsBefore,
      reductions_per_msg => Reductions, growth_reductions_ratio => Reductions / ReductionsBefore}.

era(sessions) -> ~"session";
era(_) -> ~"stateless".
