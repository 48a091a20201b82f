-module(erlmcp_cli_scenario_text).
-moduledoc "Shows the events and the outcome of a load scenario as text for a person. Pure.".

-export([event/1, outcome/1, failure/1]).

-doc """
Returns an event as one line, and the event `started` with a second line if there are metrics.
""".
-spec event(erlmcp_bench_scenario_run:event()) -> unicode:chardata().
event(#{event := started, metrics := Metrics, nodes := Nodes, duration_s := Seconds}) ->
    [number(Seconds), " s", [[", ", of_nodes(Nodes)] || Nodes > 0],
     [["\nmetrics: ", lists:join(" ", Metrics)] || Metrics =/= []]];
event(#{event := phase, phase := Phase, clients := Clients, seconds := Seconds}) ->
    io_lib:format("~ts: ~b clients, ~ts s", [words(Phase), Clients, number(Seconds)]);
event(#{event := second, phase := Phase, clients := Clients, rate := Rate, sums := Sums,
        elapsed_s := Elapsed, span_ms := Milliseconds}) ->
    #{answered := Answered} = Sums,
    io_lib:format("~b s ~ts: ~b clients, ~ts of ~ts msg/s, p95 ~ts, p99.9 ~ts, errors ~ts % ~ts",
                  [Elapsed, words(Phase), Clients, number(round(Answered * 1_000 / Milliseconds)),
                   number(Rate),
                   time(percentile(95, Sums)), time(percentile(99.9, Sums)),
                   number(erlmcp_bench_scenario_sums:error_percent(Sums)),
                   erlmcp_bench_scenario_sums:zone(Sums)]);
event(#{event := fault, fault := Fault, not_run := Reason}) ->
    io_lib:format("~ts: not run: ~0tp", [words(Fault), Reason]);
event(#{event := fault, fault := Fault, state := ends}) ->
    io_lib:format("~ts: ended", [words(Fault)]);
event(#{event := fault, fault := Fault, extent := Extent}) ->
    [words(Fault), $:, extent(Extent)].

extent(Extent) ->
    lists:join(",", [[$\s, words(Name), $\s, number(Value)] || Name := Value <- Extent]).

percentile(_, #{answered := 0}) ->
    none;
percentile(Percent, Sums) ->
    erlmcp_bench_histogram:percentile(erlmcp_bench_scenario_sums:histogram(Sums), Percent).

-doc "Says why a scenario has no outcome.".
-spec failure(term()) -> unicode:chardata().
failure({needs_own_nodes, Name}) ->
    io_lib:format("~ts: it harms servers, and runs against its own alone", [Name]);
failure({bad_option, Key, Expected}) ->
    io_lib:format("~ts: ~ts was expected", [Key, Expected]);
failure(Reason) ->
    io_lib:format("the scenario did not end: ~0tp", [Reason]).

-doc """
Returns the outcome of a scenario as tables, followed by its complaints, its status and the faults
that were not run.
""".
-spec outcome(erlmcp_bench_scenario_outcome:outcome()) -> unicode:chardata().
outcome(#{scenario := Name, title := Title, zone := Zone, status := Status, steps := Steps,
          marks := Marks, faults := Faults, complaints := Complaints, lateness := Lateness,
          refused := Refused, failed := Failed, windows := Windows, phases := Phases} = Outcome) ->
    [io_lib:format("~ts: ~ts~n", [Name, Title]), extent_of(Outcome), $\n,
     table([["phase", "clients", "s", "msg/s due", "answered", "p50", "p95", "p99",
             "p99.9", "max", "deviation", "MiB/s in", "MiB/s out", "overhead %", "errors %",
             "zone"] | [step(Step) || Step <- Steps]]),
     [[$\n, table([["clients", "figure", "measured", "published", ""]
                   | [mark(Mark) || Mark <- Marks]])] || Marks =/= []],
     [[$\n, table([["fault", "extent", "errors", "slow", "detected", "recovered", "p95", "p99.9",
                    "deviation", ""]
                   | [fault(Fault) || Fault <- Faults]])] || Faults =/= []],
     [[$\n, table([["phase", "s", "node", "CPU %", "memory MiB", "at most", "received bytes",
                    "sent bytes"]
                   | [used(Phase, Node) || #{nodes := Nodes} = Phase <- Phases, Node <- Nodes]])]
      || Phases =/= []],
     [[$\n, table([["phase", "collections", "sampled %", "minor p95", "major p95", "longest",
                    "of p95 %"] | [collections(Phase) || Phase <- Collected]])]
      || [_ | _] = Collected <- [[Phase || #{gc_count := _} = Phase <- Phases]]],
     [[$\n, table([["backlog at most", "at the end", "drained after", "cooled down after"],
                   backlog(Bombing)])] || #{bombing := Bombing} <- [Outcome]],
     [[$\n, Errors] || [_ | _] = Errors <- [erlmcp_cli_errors:windows(Windows)]],
     [[$\n, reasons("refused", Refused), reasons("failed", Failed)]
      || map_size(Refused) + map_size(Failed) > 0],
     io_lib:format("~nThe generator sent ~ts late (p99). Errors: ~ts.~n",
                   [time(late(Lateness)), Zone]),
     [["- ", complaint(Complaint), $\n] || Complaint <- Complaints],
     atom_to_list(Status), not_run([Fault || #{not_run := _, fault := Fault} <- Faults]), $\n].

%% A fault that was not run has not passed.
not_run([]) -> [];
not_run(Faults) -> ["; not run: ", lists:join(", ", [words(Fault) || Fault <- Faults])].

reasons(What, Counts) ->
    [[What, ": ", erlmcp_cli_errors:reasons(Counts), $\n] || map_size(Counts) > 0].

used(#{phase := Phase, duration_s := Seconds}, #{node := Node} = Figures) ->
    [words(Phase), number(Seconds), Node
     | [case Figures of
            #{Name := Value} -> erlmcp_bench_text:number(Value);
            #{} -> "-"
        end || Name <- [cpu_percent, memory_rss_mib_per_node, memory_rss_max_mib_per_node,
                        received_bytes, sent_bytes]]].

collections(#{phase := Phase, gc_count := Count, gc_sampled_percent := Sampled,
              gc_latency_p95_percent := Part} = Figures) ->
    [words(Phase), erlmcp_bench_text:number(Count), number(Sampled)]
        ++ [time(maps:get(Name, Figures, none))
            || Name <- [gc_minor_p95_us, gc_major_p95_us, gc_longest_us]]
        ++ [number(Part)].

backlog(#{most_backlog_requests := Most, end_backlog_requests := AtEnd} = Bombing) ->
    [erlmcp_bench_text:number(Most), erlmcp_bench_text:number(AtEnd)
     | [case Bombing of
            #{Name := Ms} -> milliseconds(Ms);
            #{} -> "not seen"
        end || Name <- [drain_ms, cool_down_ms]]].

extent_of(#{clients := Clients, transport := Transport, run_s := RunS, full_s := FullS,
            scale := Scale} = Outcome) ->
    Where = case Outcome of
        #{urls := Urls} -> lists:join(" ", Urls);
        #{nodes := Nodes} -> of_nodes(Nodes)
    end,
    [io_lib:format("~b clients, ~ts, ~ts, ~ts s", [Clients, Transport, Where, number(RunS)]),
     [io_lib:format(" (shortened: in full it takes ~b s)", [FullS]) || RunS < FullS],
     [io_lib:format("; scale ~ts", [number(Scale)]) || Scale /= 1], $\n].

of_nodes(1) -> "1 node";
of_nodes(Number) -> [integer_to_list(Number), " nodes"].

step(#{phase := Phase, clients := Clients, figures := Figures}) ->
    #{duration_s := Seconds, rate := Rate, throughput_msg_per_s := Throughput,
      error_percent := Errors, zone := Zone} = Figures,
    [words(Phase), integer_to_list(Clients), number(Seconds), number(Rate), number(Throughput)]
        ++ [time(maps:get(Name, Figures, none))
            || Name <- [latency_p50_us, latency_p95_us, latency_p99_us, latency_p999_us,
                        latency_max_us, latency_deviation_us]]
        ++ [case Figures of
                #{Name := Value} -> number(Value);
                #{} -> "-"
            end || Name <- [received_mib_per_s, sent_mib_per_s, overhead_percent]]
        ++ [number(Errors), atom_to_list(Zone)].

mark(#{clients := Clients, figure := Figure, value := Value} = Mark) ->
    [integer_to_list(Clients), title(Figure)
     | case Mark of
           #{measured := Measured, beaten := true} ->
               [figure(Figure, Measured), figure(Figure, Value), "beaten"];
           #{measured := Measured} ->
               [figure(Figure, Measured), figure(Figure, Value), "not beaten"];
           #{} ->
               ["-", figure(Figure, Value), "no such step"]
       end].

title(throughput_msg_per_s) -> "answered msg/s";
title(latency_p50_us) -> "p50";
title(latency_p95_us) -> "p95";
title(latency_p99_us) -> "p99";
title(error_percent) -> "errors %".

figure(Figure, Value) when Figure =:= throughput_msg_per_s; Figure =:= error_percent ->
    number(Value);
figure(_, Value) ->
    time(Value).

fault(#{fault := Fault, not_run := Reason}) ->
    [words(Fault), "not run", "-", "-", "-", "-", "-", "-", "-", io_lib:format("~0tp", [Reason])];
fault(#{fault := Fault, extent := Extent, errors := Errors, slow := Slow, recovered := Recovered} =
          Figures) ->
    [words(Fault), string:trim(extent(Extent)), number(Errors), number(Slow),
     milliseconds(maps:get(detection_ms, Figures, none)),
     milliseconds(maps:get(recovery_ms, Figures, none)),
     time(maps:get(latency_p95_us, Figures, none)),
     time(maps:get(latency_p999_us, Figures, none)),
     time(maps:get(latency_deviation_us, Figures, none)),
     [[io_lib:format("published: ~b s", [Mark]) || #{mark_s := Mark} <- [Figures]],
      ["; not recovered at the end" || not Recovered]]].

complaint(nothing_answered) -> "No request was answered.";
complaint({unopened, Count}) ->
    io_lib:format("~b clients could not connect when they were started.", [Count]);
complaint({wrong_replies, Count}) -> io_lib:format("~b replies were wrong.", [Count]);
complaint({zone, Zone}) -> io_lib:format("The share of errors is in the zone ~ts.", [Zone]);
complaint({unaccounted, Count}) -> io_lib:format("~b requests have no outcome.", [Count]);
complaint(uncounted) -> "The steps do not add up to the counts of the loads.";
complaint({unseen, Fault}) ->
    io_lib:format("~ts: nothing was seen of it.", [words(Fault)]);
complaint({not_recovered, Fault}) ->
    io_lib:format("~ts: the service did not recover in time.", [words(Fault)]).

late(Lateness) -> max(1, erlmcp_bench_histogram:percentile(Lateness, 99)).

words(Atom) -> string:replace(atom_to_list(Atom), "_", " ", all).

milliseconds(none) -> "-";
milliseconds(Ms) -> time(Ms * 1_000).

time(none) -> "-";
time(Us) when Us < 1_000 -> [number(Us), " us"];
time(Us) when Us < 1_000_000 -> [number(Us / 1_000), " ms"];
time(Us) -> [number(Us / 1_000_000), " s"].

%% Formats a number with only its significant digits.
number(Number) when is_integer(Number) -> integer_to_list(Number);
number(Number) when abs(Number) >= 100 -> integer_to_list(round(Number));
number(Number) when abs(Number) >= 1 -> float_to_list(Number, [{decimals, 1}]);
number(Number) -> float_to_list(float(Number), [{decimals, 3}, compact]).

table(Rows) ->
    [[Line, $\n] || Line <- erlmcp_cli_table:lines(Rows)].
