-module(erlmcp_load_report).
-moduledoc "Adds up the figures of a load.".

-export([new/1]).

-export_type([report/0]).

-doc """
The outcome of a load.

- `sent` is the sum of `answered`, `wrong`, and the counts in `refused` and `failed`. It counts the
  requests that were due in the measured time (`duration_s`). `unsent` requests were due, but no
  connection was free before their timeout or the end of the load.
- `refused`, `failed` and `wrong_by` have the counts by code or reason. `wrong` is the sum of
  `wrong_by`.
- `latency` has the times of answered requests, `refusal_latency` those of refused ones. A latency
  begins when the request was due in an open loop, and when it was sent in a closed one. `lateness`
  has the times from when a request of an open loop was due until it was sent.
- `late` replies came after their requests had timed out. `strays` are replies to no request.
  `messages` are no replies, such as notifications.
- `opened` connections were opened before the load began. `open_failed` counts all failed attempts
  to open one, and `lost` connections ended unexpectedly.
- `seconds` has a sample of each second. `server_rss_bytes` is the server's memory at the end of the
  measured time, and `server_rss_max_bytes` the most of all samples.
- Processor times cover the measured time or, with `opening` in their name, the opening of all
  connections. Figures that the system does not provide are left out.
- `from_us` is when measuring began, in monotonic microseconds.
- `windows` have the errors of each ten seconds, from when measuring began or from `since` of the
  plan. The windows are made from the `course`.
- `all_bytes_in` and `all_bytes_out` count from when the connections were open. `bytes_in`,
  `bytes_out`, `late`, `strays`, `messages` and `lost` count from when measuring began.
- `carried_per_s` is the capacity in answers a second, and `offered_per_s` the part of it that the
  load offers. Only a load that has measured the capacity has them.
""".
-type report() :: #{
    sent := non_neg_integer(), answered := non_neg_integer(),
    refused := #{integer() | tool_error => pos_integer()},
    failed := #{atom() => pos_integer()},
    wrong := non_neg_integer(), wrong_by := #{atom() => pos_integer()},
    unsent := non_neg_integer(), late := non_neg_integer(), strays := non_neg_integer(),
    from_us := integer(), duration_s := float(), answered_per_s := float(),
    latency := erlmcp_bench_histogram:histogram(),
    refusal_latency := erlmcp_bench_histogram:histogram(),
    lateness := erlmcp_bench_histogram:histogram(),
    seconds := [erlmcp_load_sample:sample()],
    connections := pos_integer(), opened := non_neg_integer(), opened_per_s := float(),
    open_failed := non_neg_integer(), lost := non_neg_integer(), messages := non_neg_integer(),
    bytes_in := non_neg_integer(), bytes_out := non_neg_integer(),
    all_bytes_in := non_neg_integer(), all_bytes_out := non_neg_integer(),
    windows := [erlmcp_load_course:window()], course := erlmcp_load_course:course(),
    carried_per_s => float(), offered_per_s => number(),
    generator_cpu_us => non_neg_integer(), server_cpu_us => non_neg_integer(),
    opening_generator_cpu_us => non_neg_integer(), opening_server_cpu_us => non_neg_integer(),
    server_rss_bytes => non_neg_integer(), server_rss_max_bytes => non_neg_integer()
}.

-doc "Returns the report of a load from the counts and samples of its run.".
-spec new(#{atom() => term()}) -> report().
new(#{settings := Settings, before := Before, until := Until, after_all := After,
      samples := Samples, course := Course, from_us := From, until_us := UntilUs, opened := Opened,
      started := #{at := Started} = Start, ready := #{at := Open} = Ready, carried := Carried}) ->
    #{latency := Latency, refusal_latency := RefusalLatency, lateness := Lateness,
      connections := Connections} = Settings,
    #{counts := #{sent := Sent, answered := Answered, wrong := Wrong, unsent := Unsent,
                  open_failed := OpenFailed, bytes_in := In, bytes_out := Out}} = After,
    Seconds = max(1, UntilUs - From) / 1_000_000,
    Report = #{
        sent => Sent, answered => Answered, wrong => Wrong, unsent => Unsent,
        refused => erlmcp_load_course:reasons(refused, Course),
        failed => erlmcp_load_course:reasons(failed, Course),
        wrong_by => erlmcp_load_course:reasons(wrong, Course),
        windows => erlmcp_load_course:windows(UntilUs, Course), course => Course,
        all_bytes_in => In, all_bytes_out => Out,
        from_us => From, duration_s => Seconds, answered_per_s => Answered / Seconds,
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

processor(Before, Until, {OfGenerator, OfServer}) ->
    #{Name => Later - Earlier
      || {Key, Name} <- [{generator_cpu_us, OfGenerator}, {server_cpu_us, OfServer}],
         Later <- [maps:get(Key, Until)], Earlier <- [maps:get(Key, Before)],
         is_integer(Later), is_integer(Earlier)}.

resident(Until, Samples) ->
    Rss = [{server_rss_bytes, Bytes} || #{server_rss_bytes := Bytes} <- [Until], is_integer(Bytes)],
    Most = [round(Mib * 1_048_576) || #{memory_rss_mib_per_node := Mib} <- Samples],
    maps:from_list(Rss ++ [{server_rss_max_bytes, lists:max(Most)} || Most =/= []]).
