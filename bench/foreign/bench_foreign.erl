-module(bench_foreign).
-moduledoc "One measurement of bench/foreign.sh: the load generator against a URL.".

-export([main/1]).

-define(WARMUP_MS, 1_000).

-doc """
`[Protocol, Connections, Window, Seconds, Payload, ServerPid, Url]`: prints the requests that were
answered, the seconds, the microseconds of the server's processor time and of the generator's, and
the median and 99th percentile of the latencies. It fails if a request was not answered as it
should.
""".
main([Protocol, Connections, Window, Seconds, Payload, OsPid, Url]) ->
    {ok, _} = application:ensure_all_started([erlmcp, ssl]),
    {ok, Report} = erlmcp_load:run(#{
        target => {http, Url}, protocol => protocol(Protocol),
        connections => list_to_integer(Connections), loop => {closed, list_to_integer(Window)},
        payload_bytes => list_to_integer(Payload), duration_ms => list_to_integer(Seconds) * 1000,
        warmup_ms => ?WARMUP_MS, server_os_pid => list_to_integer(OsPid),
        %% What nginx answers has the request's id in it by this.
        headers => [{~"x-id", ~"{id}"}]}),
    #{sent := Answered, answered := Answered, duration_s := Duration, latency := Latency,
      server_cpu_us := Server, generator_cpu_us := Generator} = Report,
    [P50, P99] = [erlmcp_bench_histogram:percentile(Latency, Percent) || Percent <- [50.0, 99.0]],
    io:format("~b ~.3f ~b ~b ~b ~b~n", [Answered, Duration, Server, Generator, P50, P99]).

protocol("http1") -> http1;
protocol("http2") -> http2.
