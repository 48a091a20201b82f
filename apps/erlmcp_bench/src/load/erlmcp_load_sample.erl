-module(erlmcp_load_sample).
-moduledoc "What a load counts, read at one moment, and what happened between two of them.".

-export([mark/1, between/3]).

-export_type([mark/0, sample/0]).

-doc "Everything that was counted up to a time; what is not known of a process is `undefined`.".
-type mark() :: #{
    at := integer(),
    counts := #{erlmcp_load_counts:name() => integer()},
    latency := erlmcp_bench_histogram:entries(),
    generator_cpu_us := non_neg_integer() | undefined,
    server_cpu_us := non_neg_integer() | undefined,
    server_rss_bytes := non_neg_integer() | undefined
}.

-doc """
A second, or the rest of one: what was counted in it, and how it was at its end. `at_s` is when it
ended. The latencies are of the replies that came in it, and are not there if there were none.
""".
-type sample() :: #{
    at_s := float(), duration_s := float(),
    sent := integer(), answered := integer(), refused := integer(), failed := integer(),
    wrong := integer(), unsent := integer(), bytes_in := integer(), bytes_out := integer(),
    connections := integer(), in_flight := integer(),
    latency_p50_us => pos_integer(), latency_p99_us => pos_integer(), latency_max_us => pos_integer(),
    generator_cpu_us => non_neg_integer(), server_cpu_us => non_neg_integer(),
    server_rss_bytes => non_neg_integer()
}.

-doc "Reads everything now.".
-spec mark(erlmcp_load_plan:settings()) -> mark().
mark(#{counts := Counts, latency := Latency, server_os_pid := Server}) ->
    #{at => erlang:monotonic_time(microsecond),
      counts => erlmcp_load_counts:all(Counts),
      latency => erlmcp_bench_histogram:to_list(Latency),
      generator_cpu_us => erlmcp_bench_process:cpu_us(erlmcp_bench_process:self()),
      server_cpu_us => of_server(fun erlmcp_bench_process:cpu_us/1, Server),
      server_rss_bytes => of_server(fun erlmcp_bench_process:rss_bytes/1, Server)}.

of_server(_, none) -> undefined;
of_server(Fun, Server) -> Fun(Server).

-doc "What happened between two marks of a load that began to measure then.".
-spec between(mark(), mark(), Begun :: integer()) -> sample().
between(#{at := Earlier, counts := Before, latency := Known} = From,
        #{at := Later, counts := After, latency := Latency} = To, Begun) ->
    Counted = #{Name => maps:get(Name, After) - maps:get(Name, Before)
                || Name <- [sent, answered, refused, failed, wrong, unsent, bytes_in, bytes_out]},
    #{sent := Sent, answered := Answered, refused := Refused, failed := Failed, wrong := Wrong,
      connections := Connections} = After,
    Replies = erlmcp_bench_histogram:from_list(erlmcp_bench_histogram:since(Latency, Known)),
    maps:merge(
        Counted#{at_s => (Later - Begun) / 1_000_000, duration_s => (Later - Earlier) / 1_000_000,
                 connections => Connections,
                 in_flight => Sent - Answered - Refused - Failed - Wrong},
        #{Name => Value || {Name, Value} <- latencies(Replies) ++ used(From, To),
                           Value =/= undefined}).

latencies(Replies) ->
    case erlmcp_bench_histogram:count(Replies) of
        0 -> [];
        _ -> [{latency_p50_us, erlmcp_bench_histogram:percentile(Replies, 50)},
              {latency_p99_us, erlmcp_bench_histogram:percentile(Replies, 99)},
              {latency_max_us, erlmcp_bench_histogram:max(Replies)}]
    end.

used(From, #{server_rss_bytes := Rss} = To) ->
    [{server_rss_bytes, Rss}
     | [{Name, difference(maps:get(Name, To), maps:get(Name, From))}
        || Name <- [generator_cpu_us, server_cpu_us]]].

difference(Later, Earlier) when is_integer(Later), is_integer(Earlier) -> Later - Earlier;
difference(_, _) -> undefined.
