-module(erlmcp_bench_scenario_result).
-moduledoc """
Writes the files of a scenario: its result, with the figures of its peak and of its other steps, its
series, and its metrics.
""".

-export([write/2]).

-define(MIB, 1_048_576).

%% The result of an outcome with at least one answer.
-spec new(erlmcp_bench_scenario_outcome:outcome()) -> erlmcp_bench_result:result().
new(#{scenario := Name, status := Status, zone := Zone, transport := Transport, nodes := Nodes,
      full_s := FullS, run_s := RunS, scale := Scale, shortened := Shortened, clients := Clients,
      peak := Peak, steps := Steps, marks := Marks, faults := Faults,
      lateness := Lateness, usage := Usage, refused := Refused, failed := Failed,
      windows := Windows, seconds := Seconds, phases := Phases} = Outcome) ->
    #{duration_s := DurationS, sums := #{answered := Answered} = Sums} = Peak,
    Fields = #{
        workload_id => atom_to_binary(Name), benchmark => ~"scenario",
        transport => transport(Transport, Outcome), scope => scope(Nodes),
        duration_s => DurationS, sample_count => Answered, status => Status, zone => Zone,
        shortened => Shortened, full_s => FullS, run_s => RunS, scale_ratio => Scale,
        all_refused_count => erlmcp_bench_result:reasons(Refused),
        all_failed_count => erlmcp_bench_result:reasons(Failed),
        windows => erlmcp_bench_result:windows(Windows), seconds => Seconds, phases => Phases,
        clients => Clients, load_generator => out_of_node,
        steps => [step(Step) || Step <- Steps], marks => [mark(Mark) || Mark <- Marks],
        faults => [fault(Fault) || Fault <- Faults]},
    lists:foldl(fun maps:merge/2, Fields,
                [maps:with([throughput_msg_per_s, error_percent, received_mib_per_s, sent_mib_per_s,
                            overhead_percent], Peak), counts(Sums), maps:with([bombing], Outcome),
                 erlmcp_bench_result:latency(erlmcp_bench_scenario_sums:histogram(Sums)),
                 used(Usage, Answered, Nodes), late(Lateness),
                 #{nodes => Nodes || Nodes > 0},
                 #{against => iolist_to_binary(lists:join(" ", Urls)) || urls := Urls <- Outcome},
                 #{payload_bytes => Bytes || bytes := Bytes <- Outcome},
                 maps:with([profile, era, mix], Outcome)]).

-doc """
Writes the files of a scenario into a folder, and returns their names. The first one is that of the
result. The others are the same name with another end: `.jsonl` for the series, and `_PHASE.prom`
for the metrics of a phase.

The error is `nothing_answered` if no request of the peak was answered, or one of
`erlmcp_bench_result:write/2`. If the result or the series breaks a rule for results, no file is
written. If a file cannot be written, those that were written before it stay.
""".
-spec write(erlmcp_bench_scenario_outcome:outcome(), file:filename()) ->
    {ok, [file:filename(), ...]} | {error, term()}.
write(#{peak := #{sums := #{answered := 0}}}, _) ->
    {error, nothing_answered};
write(#{series := Series, scrapes := Scrapes} = Outcome, Folder) ->
    maybe
        ok ?= erlmcp_metrology_validator:validate_lines(Series),
        {ok, File} ?= erlmcp_bench_result:write(erlmcp_bench_result:new(new(Outcome)), Folder),
        Name = filename:rootname(File),
        Others = [{Name ++ ".jsonl", [[json:encode(Line), $\n] || Line <- Series]}
                  | [{Name ++ [$_ | atom_to_list(Phase)] ++ ".prom",
                      erlmcp_bench_prometheus:text(Families)}
                     || #{phase := Phase, families := Families} <- Scrapes]],
        ok ?= written(Others),
        {ok, [File | [Other || {Other, _} <- Others]]}
    end.

written([]) ->
    ok;
written([{File, Text} | Files]) ->
    case file:write_file(File, Text) of
        ok -> written(Files);
        {error, Posix} -> {error, {Posix, File}}
    end.

transport(Http, #{urls := [<<"https:", _/binary>> | _]}) when Http =:= http1 -> http1_tls;
transport(Http, #{urls := [<<"https:", _/binary>> | _]}) when Http =:= http2 -> http2_tls;
transport(Transport, _) -> Transport.

scope(Nodes) when Nodes > 1 -> per_cluster;
scope(_) -> per_node.

counts(#{sent := Sent, answered := Answered, refused := Refused, failed := Failed, wrong := Wrong,
         unsent := Unsent}) ->
    #{sent_count => Sent, answered_count => Answered, refused_count => Refused,
      failed_count => Failed, wrong_count => Wrong, unsent_count => Unsent}.

used(Usage, Answered, Nodes) ->
    maps:from_list([{cpu_us_per_msg, Us / Answered} || #{server_cpu_us := Us} <- [Usage], Us > 0]
                   ++ [{generator_cpu_us_per_msg, Us / Answered}
                       || #{generator_cpu_us := Us} <- [Usage], Us > 0]
                   ++ [{memory_rss_mib_per_node, Bytes / ?MIB / Nodes}
                       || #{server_rss_bytes := Bytes} <- [Usage]]).

late(Lateness) ->
    #{lateness_p99_us => Us || Us <- [erlmcp_bench_histogram:percentile(Lateness, 99)], Us > 0}.

step(#{phase := Phase, clients := Clients, figures := #{sums := Sums, rate := Rate} = Figures}) ->
    maps:merge(maps:with([duration_s, throughput_msg_per_s, error_percent, zone, latency_p50_us,
                          latency_p95_us, latency_p99_us, latency_p999_us, latency_max_us,
                          latency_deviation_us, received_mib_per_s, sent_mib_per_s,
                          overhead_percent], Figures),
               (counts(Sums))#{phase => Phase, clients => Clients, due_msg_per_s => Rate}).

mark(#{clients := Clients, figure := Figure, value := Value} = Mark) ->
    maps:merge(#{clients => Clients, published => #{Figure => Value}},
               case Mark of
                   #{measured := Measured, beaten := Beaten} ->
                       #{measured => #{Figure => Measured}, beaten => Beaten};
                   #{} ->
                       #{}
               end).

fault(#{not_run := Reason} = Fault) ->
    Fault#{not_run := unicode:characters_to_binary(io_lib:format("~0tp", [Reason]))};
fault(#{errors := Errors, slow := Slow} = Fault) ->
    (maps:without([errors, slow], Fault))#{errors_count => Errors, slow_count => Slow}.
