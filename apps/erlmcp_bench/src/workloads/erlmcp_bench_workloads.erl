-module(erlmcp_bench_workloads).
-moduledoc """
The workloads as data: their names, their members, and their marks, which are figures that an
earlier erlmcp published. Many marks were never measured, or are of something else
(`m:erlmcp_bench_marks`). They are shown next to a figure for comparison, and are not goals. Pure.
""".

-export([all/0, quick/0, short/1, benchmarks/0, of_benchmark/1, find/1]).
-export([components/0, workflows/0, marks/1]).

-export_type([workload/0, benchmark/0, component/0, step/0, mark/0]).

-type benchmark() :: core_ops | stress | integration | network_real | memory | scaling | stages
                   | growth.
-doc "A published figure: its field in a result, and its value.".
-type mark() :: {Field :: binary(), number()}.

-doc """
A workload has `id`, `benchmark` and `marks`, and the fields of its benchmark:

- core operations: their `operations`, of all `workers` together. A workload that measures
  contention has only the component for which its processes contend (`contended`);
- stress: `duration_s`, `target_ops_per_s` (which may be `uncapped`) and `workers`, and `sample_ms`
  if it is sampled more often than others;
- integration: its `steps`, see `workflows/0`, which `workers` clients do for `duration_s` seconds;
- network: `transport`, `connections`, `duration_s`, `payload_bytes` and `shape`:
    - `burst`: each connection sends its next request when it is answered;
    - `sustained`: the capacity of the connections is measured, and then `load_percent` of it is
      sent;
    - `held`: as many connections as possible, each of which sends from time to time;
    - `opened`: connections are opened as fast as possible, and each sends once on average;
- memory: the kind of item that it `holds`, their number (`connections`), and its `goals`. Items are
  idle, except running calls;
- scaling: the quantity that `varies`, and its `points`, each measured for `duration_s`;
- stages: `transport`, `connections` and `payload_bytes` of the requests of a tool, which may be
  `quick`, and `duration_s` of each measurement;
- growth: the kind of item that there is more of (`grows`), the smaller number (`base`), and
  `duration_s` of each measurement.
""".
-type workload() :: #{
    id := binary(), benchmark := benchmark(), marks := [mark()],
    operations => pos_integer(), workers => pos_integer(), contended => component(),
    duration_s => number(), target_ops_per_s => pos_integer() | uncapped,
    sample_ms => pos_integer(),
    steps => [step()],
    transport => tcp | http1 | http2 | stdio, connections => pos_integer(),
    payload_bytes => non_neg_integer(), shape => burst | sustained | held | opened,
    holds => erlmcp_bench_holder:kind(),
    %% fields of a result, and their goals
    goals => [{binary(), pos_integer()}],
    load_percent => 1..100,
    varies => schedulers | nodes | connections | payload_bytes | offered_percent,
    points => [pos_integer(), ...],
    quick => true,
    %% the items that the larger server has ten times as many of
    grows => tools | sessions | connections, base => pos_integer(),
    %% requests a second that the server carries, once measured
    carried => number()
}.
-type component() :: registry | queue | queue_waiting | pool | pool_waiting | session
                   | encode | encode_reply | decode | nothing.
-type step() ::
    connect | close | list_tools | list_prompts | list_resources
    | {call_tool, Name :: binary(), Arguments :: map()}
    | {get_prompt, Name :: binary()} | {read_resource, Uri :: binary()}.

-doc "Returns every workload.".
-spec all() -> [workload(), ...].
all() ->
    lists:append([of_benchmark(Benchmark) || Benchmark <- benchmarks()]).

-doc """
Returns a selection of ten workloads, each with the options of its short run (`short/1`). Together
they take about a minute.
""".
-spec quick() -> [{workload(), erlmcp_bench_run:options()}, ...].
quick() ->
    [{Workload, short(Workload)}
     || Id <- [~"core_ops_10k", ~"stress_30s_100k_ops", ~"stress_uncapped",
               ~"mcp_complete_workflow", ~"tcp_burst_100_1kib", ~"http_burst_100_1kib",
               ~"http1_sustained_2k_512b", ~"stdio_sequential_1k", ~"connections_tcp",
               ~"memory_connection_http"],
        {ok, Workload} <- [find(Id)]].

-doc "Returns the options for a short run of a workload.".
-spec short(workload()) -> erlmcp_bench_run:options().
short(#{benchmark := core_ops}) -> #{duration_s => 0.2};
short(#{benchmark := stress}) -> #{duration_s => 4};
short(#{benchmark := integration}) -> #{duration_s => 0.5};
short(#{benchmark := memory}) -> #{connections => 500};
%% The capacity is measured first, which takes this long.
short(#{varies := offered_percent}) -> #{duration_s => 2};
short(#{benchmark := network_real, transport := stdio}) -> #{duration_s => 2};
short(#{benchmark := network_real, shape := burst}) -> #{duration_s => 3};
short(#{benchmark := network_real, shape := sustained}) -> #{duration_s => 3, connections => 200};
short(#{benchmark := network_real}) -> #{duration_s => 2, connections => 1_000};
short(#{}) -> #{duration_s => 0.5}.

-doc "Returns the benchmarks, in the order in which all of them run.".
-spec benchmarks() -> [benchmark(), ...].
benchmarks() ->
    [core_ops, stress, integration, network_real, memory, scaling, stages, growth].

-doc "Returns the workloads of a benchmark.".
-spec of_benchmark(benchmark()) -> [workload(), ...].
of_benchmark(core_ops) ->
    [core_ops(~"core_ops_1k", 1_000, 1), core_ops(~"core_ops_10k", 10_000, 10),
     core_ops(~"core_ops_100k", 100_000, 100), core_ops(~"core_ops_1m", 1_000_000, 100),
     (core_ops(~"registry_250_connections", 1_000_000, 250))#{contended => registry},
     (core_ops(~"registry_500_connections", 1_000_000, 500))#{contended => registry}];
of_benchmark(stress) ->
    [stress(~"stress_30s_100k_ops", 30, 100_000, 100),
     stress(~"stress_5min_100k_ops", 300, 100_000, 100),
     stress(~"stress_1hr_50k_ops", 3_600, 50_000, 50),
     stress(~"stress_24hr_10k_ops", 86_400, 10_000, 10),
     stress(~"stress_uncapped", 30, uncapped, 100)];
of_benchmark(integration) ->
    workflows();
of_benchmark(scaling) ->
    [scaling(~"scaling_schedulers", schedulers, [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]),
     scaling(~"scaling_nodes", nodes, [1, 2, 3, 4, 6, 8]),
     scaling(~"scaling_connections", connections, [1, 4, 16, 64, 256, 512]),
     scaling(~"scaling_payload", payload_bytes, [16, 256, 4_096, 65_536, 1_048_576]),
     scaling(~"overload", offered_percent, [25, 50, 75, 100, 150, 200, 400])];
of_benchmark(stages) ->
    [stages(~"stages_http1_echo", http1), quick_stages(~"stages_http1_quick", http1),
     stages(~"stages_tcp_echo", tcp), quick_stages(~"stages_tcp_quick", tcp)];
of_benchmark(growth) ->
    [growth(~"growth_tools", tools, 20), growth(~"growth_sessions", sessions, 128),
     growth(~"growth_connections", connections, 64)];
of_benchmark(memory) ->
    [memory(~"memory_connection_http", connection, http1, 19_000, {6_144, 12_288}),
     memory(~"memory_connection_tcp", connection, tcp, 19_000, {6_144, 12_288}),
     memory(~"memory_session", session, http1, 20_000, {3_072, none}),
     memory(~"memory_stream", stream, http1, 19_000, {10_240, none}),
     memory(~"memory_session_stream", session_stream, http1, 2_000, {none, 12_288}),
     memory(~"memory_call", call, http1, 10_000, {none, none})];
of_benchmark(network_real) ->
    [network(~"tcp_burst_100_1kib", tcp, burst, {100, 60, 1_024}, [throughput(50_000)]),
     network(~"tcp_sustained_10k_1kib", tcp, sustained, {10_000, 300, 1_024},
             [throughput(43_000), {~"setup_ms", 125}, {~"memory_rss_mib_per_node", 512},
              {~"memory_heap_mib_per_conn", 0.051} | milliseconds(3.45, 8.2, 15.8)]),
     network(~"tcp_sustained_10k_100kib", tcp, sustained, {10_000, 300, 102_400},
             [throughput(8_500) | milliseconds(15.2, 28.4, 45.6)]),
     network(~"tcp_max_100k_1kib", tcp, held, {100_000, 1_800, 1_024},
             [{~"held_connections", 45_000}]),
     network(~"http_burst_100_1kib", http2, burst, {100, 60, 1_024}, [throughput(5_000)]),
     network(~"http_sustained_5k_1kib", http2, sustained, {5_000, 300, 1_024},
             [throughput(12_500), {~"overhead_bytes_per_request", 234},
              {~"connection_reuse_percent", 98.5} | milliseconds(8.5, 18.2, 32.4)]),
     network(~"http1_sustained_2k_512b", http1, sustained, {2_000, 300, 512},
             [throughput(20_000)]),
     network(~"stdio_sequential_1k", stdio, burst, {1, 30, 256},
             [throughput(200) | milliseconds(2, 8, 15)]),
     network(~"connections_tcp", tcp, opened, {100_000, 10, 0}, connections()),
     network(~"connections_http", http1, opened, {100_000, 10, 0}, connections())].

core_ops(Id, Operations, Workers) ->
    #{id => Id, benchmark => core_ops, operations => Operations, workers => Workers, marks => []}.

stress(Id, Seconds, Target, Workers) ->
    #{id => Id, benchmark => stress, duration_s => Seconds, target_ops_per_s => Target,
      workers => Workers,
      marks => [throughput(372_000), {~"throughput_deviation_percent", 2.5},
                {~"latency_p99_us", 150}]}.

scaling(Id, Varies, Points) ->
    #{id => Id, benchmark => scaling, varies => Varies, points => Points, duration_s => 5,
      marks => []}.

stages(Id, Transport) ->
    #{id => Id, benchmark => stages, transport => Transport, connections => 64, payload_bytes => 64,
      duration_s => 2, marks => []}.

quick_stages(Id, Transport) ->
    (stages(Id, Transport))#{quick => true}.

growth(Id, What, Base) ->
    #{id => Id, benchmark => growth, grows => What, base => Base, duration_s => 2, marks => []}.

memory(Id, Holds, Transport, Count, {State, Rss}) ->
    #{id => Id, benchmark => memory, holds => Holds, transport => Transport, connections => Count,
      goals => [Goal || {_, Most} = Goal <- [{~"memory_state_bytes_per_item", State},
                                             {~"memory_rss_bytes_per_item", Rss}], Most =/= none],
      marks => []}.

network(Id, Transport, Shape, {Connections, Seconds, Bytes}, Marks) ->
    Workload = #{id => Id, benchmark => network_real, transport => Transport, shape => Shape,
                 connections => Connections, duration_s => Seconds, payload_bytes => Bytes,
                 marks => Marks},
    case Shape of
        sustained -> Workload#{load_percent => 70};
        _ -> Workload
    end.

throughput(PerSecond) -> {~"throughput_msg_per_s", PerSecond}.

milliseconds(P50, P95, P99) ->
    [{~"latency_p50_us", P50 * 1_000}, {~"latency_p95_us", P95 * 1_000},
     {~"latency_p99_us", P99 * 1_000}].

connections() ->
    [{~"held_connections", 40_000}, {~"opened_connections_per_s", 15_000},
     {~"memory_rss_mib_per_conn", 0.0183}].

-doc """
Returns the components of the core operations, each with its marks. They are parts of a server, the
encoding and decoding of a `tools/call` request and its result, and an empty operation.
""".
-spec components() -> [{component(), [mark()]}, ...].
components() ->
    [{registry, [throughput(553_000), {~"latency_p99_us", 4.8}]},
     {queue, [throughput(971_000), {~"latency_p99_us", 3.2}]},
     {queue_waiting, [throughput(971_000), {~"latency_p99_us", 3.2}]},
     {pool, [throughput(149_000), {~"latency_p99_us", 12.1}]},
     {pool_waiting, [throughput(149_000), {~"latency_p99_us", 12.1}]},
     {session, [throughput(242_000), {~"latency_p99_us", 8.9}]},
     {encode, [throughput(370_370)]},
     {encode_reply, []},
     {decode, []},
     {nothing, []}].

-doc "Returns the workflows of integration: what a client does from its connection to its end.".
-spec workflows() -> [workload(), ...].
workflows() ->
    [workflow(~"mcp_basic_initialize", [list_tools], {8_500, 0.95, 1.8}),
     workflow(~"mcp_tool_sequence", [list_tools | tools()], {2_200, 3.85, 7.2}),
     workflow(~"mcp_prompts_workflow", [list_prompts, prompt()], {6_800, 1.35, 2.6}),
     workflow(~"mcp_resources_workflow", [list_resources, resource()], {5_900, 1.55, 3.1}),
     workflow(~"mcp_complete_workflow",
              [list_tools | tools()] ++ [list_prompts, prompt(), list_resources, resource()],
              {850, 9.25, 16.8})].

workflow(Id, Steps, {PerSecond, P50, P99}) ->
    #{id => Id, benchmark => integration, steps => [connect | Steps] ++ [close],
      duration_s => 5, workers => 10,
      marks => [{~"throughput_workflows_per_s", PerSecond},
                {~"latency_p50_us", P50 * 1_000}, {~"latency_p99_us", P99 * 1_000}]}.

tools() ->
    [{call_tool, ~"echo", #{~"text" => ~"hello"}}, {call_tool, ~"add", #{~"a" => 1, ~"b" => 2}},
     {call_tool, ~"echo", #{~"text" => ~"goodbye"}}].

prompt() -> {get_prompt, ~"test_prompt"}.

resource() -> {read_resource, ~"file://test.txt"}.

-doc "Returns the workload with an id, or `error` if there is none.".
-spec find(Id :: binary() | atom()) -> {ok, workload()} | error.
find(Id) when is_atom(Id) ->
    find(atom_to_binary(Id));
find(Id) ->
    case [Workload || #{id := Of} = Workload <- all(), Of =:= Id] of
        [Workload] -> {ok, Workload};
        [] -> error
    end.

-doc """
Returns the marks of a result that has the form of a result file. They are those of the result's
workload or, for `core_ops`, of its component. The component `encode` has a mark only on one core.
Any other result has no marks.
""".
-spec marks(Result :: #{binary() => term()}) -> [mark()].
marks(#{~"benchmark" := ~"core_ops", ~"component" := ~"encode", ~"workers" := Workers})
  when Workers > 1 ->
    %% The mark is for one core.
    [];
marks(#{~"benchmark" := ~"core_ops", ~"component" := Component}) ->
    hd([Marks || {Of, Marks} <- components(), atom_to_binary(Of) =:= Component] ++ [[]]);
marks(#{~"workload_id" := Id}) ->
    case find(Id) of
        {ok, #{marks := Marks}} -> Marks;
        %% One point of a sweep, or a run with a failure.
        error -> []
    end.
