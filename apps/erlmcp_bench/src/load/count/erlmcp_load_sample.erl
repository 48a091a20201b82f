-module(erlmcp_load_sample).
-moduledoc "Reads the counters of a load at one moment, and compares two such readings.".

-export([read/1, mark/1, between/3]).

-export_type([meters/0, counters/0, mark/0, sample/0]).

-doc "The counters and the histogram in which a load counts. They are read with `read/1`.".
-type meters() :: #{
    counts := erlmcp_load_counts:counts(), latency := erlmcp_bench_histogram:histogram(), _ => _
}.
-doc "The counters of a load, and the latencies of its answered requests.".
-type counters() :: #{
    counts := #{erlmcp_load_counts:name() => integer()},
    latency := erlmcp_bench_histogram:entries()
}.
-doc """
The counters at the time `at`, in monotonic microseconds, and what generator and server have used.
`undefined` stands for a figure that cannot be read.
""".
-type mark() :: #{
    at := integer(),
    counts := #{erlmcp_load_counts:name() => integer()},
    latency := erlmcp_bench_histogram:entries(),
    generator_cpu_us := non_neg_integer() | undefined,
    server_cpu_us := non_neg_integer() | undefined,
    server_rss_bytes := non_neg_integer() | undefined
}.

-doc """
The counts of one second of a load. The last sample of a load may cover less than a second.

The sample ended `at_s` seconds after measuring began. `connections` and `in_flight_requests` are
those at the end of the sample. Latencies are those of the requests that were answered during the
sample. An optional figure without a value, or of 0, is left out.
""".
-type sample() :: #{
    at_s := float(), duration_s := float(),
    sent_count := integer(), answered_count := integer(), refused_count := integer(),
    failed_count := integer(), wrong_count := integer(), unsent_count := integer(),
    throughput_msg_per_s := float(), refused_msg_per_s := float(), failed_msg_per_s := float(),
    received_bytes := integer(), sent_bytes := integer(),
    connections := integer(), in_flight_requests := integer(),
    latency_p50_us => pos_integer(), latency_p95_us => pos_integer(),
    latency_p99_us => pos_integer(), latency_p999_us => pos_integer(),
    latency_max_us => pos_integer(), latency_deviation_us => float(),
    cpu_us_per_msg => float(), generator_cpu_us_per_msg => float(),
    memory_rss_mib_per_node => float()
}.

-define(MIB, 1_048_576).

-doc "Reads the counters of a load at this moment.".
-spec read(meters()) -> counters().
read(#{counts := Counts, latency := Latency}) ->
    #{counts => erlmcp_load_counts:all(Counts),
      latency => erlmcp_bench_histogram:to_list(Latency)}.

-doc """
Reads the counters of a load at this moment, and what the generator and the server have used. The
operating system is asked for that, which takes longer than all else.
""".
-spec mark(erlmcp_load_plan:settings()) -> mark().
mark(#{server_os_pid := Server} = Settings) ->
    At = erlang:monotonic_time(microsecond),
    (read(Settings))#{
        at => At,
        generator_cpu_us => erlmcp_bench_process:cpu_us(erlmcp_bench_process:self()),
        server_cpu_us => of_server(fun erlmcp_bench_process:cpu_us/1, Server),
        server_rss_bytes => of_server(fun erlmcp_bench_process:rss_bytes/1, Server)}.

of_server(_, none) -> undefined;
of_server(Fun, Server) -> Fun(Server).

-doc """
Returns the sample of the time between two marks of the same load. `Begun` is the time at which the
load began to measure, in monotonic microseconds.
""".
-spec between(Earlier :: mark(), Later :: mark(), Begun :: integer()) -> sample().
between(#{at := Earlier, counts := Before, latency := EarlierLatency} = From,
        #{at := Later, counts := After, latency := Latency} = To, Begun) ->
    Count = fun(Name) -> maps:get(Name, After) - maps:get(Name, Before) end,
    Seconds = max(1, Later - Earlier) / 1_000_000,
    #{sent := Sent, answered := Answered, refused := Refused, failed := Failed, wrong := Wrong,
      connections := Connections} = After,
    Replies = erlmcp_bench_histogram:since(Latency, EarlierLatency),
    Sample = #{
        at_s => (Later - Begun) / 1_000_000, duration_s => Seconds,
        sent_count => Count(sent), answered_count => Count(answered),
        refused_count => Count(refused), failed_count => Count(failed),
        wrong_count => Count(wrong), unsent_count => Count(unsent),
        throughput_msg_per_s => Count(answered) / Seconds,
        refused_msg_per_s => Count(refused) / Seconds,
        failed_msg_per_s => Count(failed) / Seconds,
        received_bytes => Count(bytes_in), sent_bytes => Count(bytes_out),
        connections => Connections,
        in_flight_requests => Sent - Answered - Refused - Failed - Wrong},
    maps:merge(Sample, maps:from_list(latencies(Replies) ++ memory(To)
                                      ++ processor(From, To, Count(answered)))).

latencies([]) ->
    [];
latencies(Replies) ->
    [{latency_p50_us, erlmcp_bench_histogram:percentile(Replies, 50)},
     {latency_p95_us, erlmcp_bench_histogram:percentile(Replies, 95)},
     {latency_p99_us, erlmcp_bench_histogram:percentile(Replies, 99)},
     {latency_p999_us, erlmcp_bench_histogram:percentile(Replies, 99.9)},
     {latency_max_us, erlmcp_bench_histogram:max(Replies)}
     | [{latency_deviation_us, Us} || Us <- [erlmcp_bench_histogram:deviation(Replies)], Us > 0]].

memory(#{server_rss_bytes := undefined}) -> [];
memory(#{server_rss_bytes := Bytes}) -> [{memory_rss_mib_per_node, Bytes / ?MIB}].

processor(_, _, 0) ->
    [];
processor(From, To, Answered) ->
    [{Name, (Later - Earlier) / Answered}
     || {Of, Name} <- [{server_cpu_us, cpu_us_per_msg},
                       {generator_cpu_us, generator_cpu_us_per_msg}],
        Later <- [maps:get(Of, To)], Earlier <- [maps:get(Of, From)],
        is_integer(Later), is_integer(Earlier), Later > Earlier].
