-module(erlmcp_load_report).
-moduledoc "Adds up the figures of a load.".

-export([new/1]).

-export_type([report/0]).

-doc """
The outcome of a load.

- `sent` is the sum of `answered`, `refused`, `failed` and `wrong`. It counts the requests that were
  due in the measured time (`duration_s`). `unsent` requests were due, but no connection was free in
  their time.
- `refused`, `failed` and `wrong_by` have the counts by code or reason.
- `latency` belongs to answered requests, `refusal_latency` to refused ones. A latency begins when
  the request was due in an open loop, and when it was sent in a closed one. `lateness` is the time
  from when a request of an open loop was due until it was sent.
- `late` replies came after their requests had failed. `strays` answer no request. `messages` are no
  replies, such as notifications.
- `opened` connections were opened before the load began. `open_failed` counts all failed attempts
  to open one, and `lost` connections ended unexpectedly.
- `server_rss_bytes` is the memory at the end of the measured time, `server_rss_max_bytes` the most
  in `seconds`.
- Processor time covers the measured time. Figures that the system does not provide are left out.
  The times with `opening` in their name end when all connections are open, which may still keep a
  server busy.
- `carried_per_s` and `offered_per_s` belong to a load that offers a part of the measured capacity.
""".
-type report() :: #{
    sent := non_neg_integer(), answered := non_neg_integer(),
    refused := #{integer() | tool_error => pos_integer()},
    failed := #{atom() => pos_integer()},
    wrong := non_neg_integer(), wrong_by := #{atom() => pos_integer()},
    unsent := non_neg_integer(), late := non_neg_integer(), strays := non_neg_integer(),
    duration_s := float(), answered_per_s := float(),
    latency := erlmcp_bench_histogram:histogram(),
    refusal_latency := erlmcp_bench_histogram:histogram(),
    lateness := erlmcp_bench_histogram:histogram(),
    seconds := [erlmcp_load_sample:sample()],
    connections := pos_integer(), opened := non_neg_integer(), opened_per_s := float(),
    open_failed := non_neg_integer(), lost := non_neg_integer(), messages := non_neg_integer(),
    bytes_in := non_neg_integer(), bytes_out := non_neg_integer(),
    carried_per_s => float(), offered_per_s => number(),
    generator_cpu_us => non_neg_integer(), server_cpu_us => non_neg_integer(),
    opening_generator_cpu_us => non_neg_integer(), opening_server_cpu_us => non_neg_integer(),
    server_rss_bytes => non_neg_integer(), server_rss_max_bytes => non_neg_integer()
}.

-doc "Returns the report of a load from the counts and samples of its run.".
-spec new(#{atom() => term()}) -> report().
new(#{settings := Settings, before := Before, until := Until, after_all := After,
      samples := Samples, totals := Totals, duration_us := Duration, opened := Opened,
      started := #{at := Started} = Start, ready := #{at := Open} = Ready, carried := Carried}) ->
    #{latency := Latency, refusal_latency := RefusalLatency, lateness := Lateness,
      connections := Connections} = Settings,
    #{counts := #{sent := Sent, answered := Answered, wrong := Wrong, unsent := Unsent,
                  open_failed := OpenFailed}} = After,
    Seconds = max(1, Duration) / 1_000_000,
    Report = #{
        sent => Sent, answered => Answered, wrong => Wrong, unsent => Unsent,
        refused => reasons(refused, Totals), failed => reasons(failed, Totals),
        wrong_by => reasons(wrong, Totals),
        duration_s => Seconds, answered_per_s => Answered / Seconds,
        latency => Latency, refusal_latency => RefusalLatency, lateness => Lateness,
        seconds => Samples, connections => Connections, opened => Opened,
        opened_per_s => Opened * 1_000_000 / max(1, Open - Started), open_failed => OpenFailed},
    Counted = #{Name => since(Name, Before, After)
                || Name <- [late, strays, lost, messages, bytes_in, bytes_out]},
    lists:foldl(fun maps:merge/2, Report,
                [Counted, processor(Before, Until, {generator_cpu_us, server_cpu_us}),
                 processor(Start, Ready, {opening_generator_cpu_us, opening_server_cpu_us}),
                 resident(Until, Samples), offered(Carried, Settings)]).

offered(none, _) -> #{};
offered(Carried, #{percent := Percent}) ->
    #{carried_per_s => Carried, offered_per_s => max(1, Carried * Percent / 100)}.

since(Name, #{counts := Before}, #{counts := After}) ->
    maps:get(Name, After) - maps:get(Name, Before).

reasons(Kind, Totals) ->
    lists:foldl(fun(#{Kind := Reasons}, Sum) ->
                    maps:merge_with(fun(_, A, B) -> A + B end, Reasons, Sum)
                end, #{}, Totals).

processor(Before, Until, {OfGenerator, OfServer}) ->
    #{Name => Later - Earlier
      || {Key, Name} <- [{generator_cpu_us, OfGenerator}, {server_cpu_us, OfServer}],
         Later <- [maps:get(Key, Until)], Earlier <- [maps:get(Key, Before)],
         is_integer(Later), is_integer(Earlier)}.

resident(Until, Samples) ->
    Rss = [{server_rss_bytes, Bytes} || #{server_rss_bytes := Bytes} <- [Until], is_integer(Bytes)],
    Most = [round(Mib * 1_048_576) || #{memory_rss_mib_per_node := Mib} <- Samples],
    maps:from_list(Rss ++ [{server_rss_max_bytes, lists:max(Most)} || Most =/= []]).
