-module(erlmcp_bench_scenario_outcome).
-moduledoc """
Judges a scenario: the figures of its peak and of each step, compared with the published marks, and
the effects of its faults. Pure.
""".

-export([new/3]).

-export_type([outcome/0, figures/0, step/0, mark/0, fault/0, bombing/0, complaint/0]).

-type outcome() :: #{
    scenario := erlmcp_bench_scenarios:name(), title := binary(), status := passed | failed,
    complaints := [complaint()], zone := erlmcp_error_budget_window:zone(),
    transport := tcp | http1 | http2, nodes := non_neg_integer(), urls => [binary()],
    profile => erlmcp_bench_profile:name(),
    %% its requests, if they are not the scenario's own
    mix => binary(),
    %% the revision of its sessions, if it has some
    era => binary(),
    %% its full and its actual duration; the part of its clients, and their number; shortened if it
    %% was shorter or had fewer clients
    full_s := pos_integer(), run_s := number(), scale := number(), shortened := boolean(),
    clients := pos_integer(),
    %% the payload of a request, if it is known
    bytes => non_neg_integer(),
    peak := figures(), steps := [step()], marks := [mark()], faults := [fault()],
    %% counts of all requests, including the warm-up, and the reasons of their failures
    total := erlmcp_bench_scenario_sums:sums(),
    refused := #{term() => pos_integer()}, failed := #{term() => pos_integer()},
    lateness := erlmcp_bench_histogram:histogram(),
    %% what the processes used at the peak
    usage := #{server_cpu_us => non_neg_integer(), generator_cpu_us => non_neg_integer(),
               server_rss_bytes => non_neg_integer()},
    %% the errors by kind, and the backlog at each second
    windows := [erlmcp_load_course:window()],
    seconds := [#{at_s := number(), backlog_requests := non_neg_integer()}],
    bombing => bombing(),
    phases := [phase()],
    series := [erlmcp_bench_scenario_series:line()], scrapes := [erlmcp_bench_scenario_run:scrape()]
}.
-doc """
The figures of one step, or of all steps of the peak together. These steps took `duration_s`
seconds. `rate` is the mean number of requests that were due in a second. Latencies are there if a
request was answered, and `latency_deviation_us` if the latencies differ. `received_mib_per_s` and
`sent_mib_per_s` are from the bytes that the clients received and sent. `overhead_percent` is the
part of these bytes that is not payload. It is missing if the payload is not known, or if there were
no bytes.
""".
-type figures() :: #{
    duration_s := float(), rate := float(), sums := erlmcp_bench_scenario_sums:sums(),
    throughput_msg_per_s := float(), error_percent := float(),
    zone := erlmcp_error_budget_window:zone(),
    latency_p50_us => pos_integer(), latency_p95_us => pos_integer(),
    latency_p99_us => pos_integer(), latency_p999_us => pos_integer(),
    latency_max_us => pos_integer(), latency_deviation_us => float(),
    received_mib_per_s := float(), sent_mib_per_s := float(), overhead_percent => float()
}.
-doc """
The resources of a phase, and the fields of the garbage collections in all our own nodes together
(`erlmcp_bench_pauses:fields/3`). The fields of the collections are missing if the pauses are not
known, or if no request of the phase was answered.
""".
-type phase() :: #{phase := atom(), at_s := float(), duration_s := float(),
                   nodes := [erlmcp_bench_scenario_resources:node_figures()],
                   atom() => number()}.
-type step() :: #{phase := atom(), clients := pos_integer(), figures := figures()}.
-doc """
A published mark. Its `clients`, and the `value` of a throughput, are multiplied by the `scale` of
the run. `measured` is the same figure of this run. `beaten` is `true` if `measured` is at least as
good as `value`. Both are missing if the run had no step with `clients` clients, or this step does
not have the figure.
""".
-type mark() :: #{
    clients := pos_integer(), figure := atom(), value := number(), measured => number(),
    beaten => boolean()
}.
-doc """
The effects of a fault. Errors and calms are those of `t:erlmcp_bench_scenario_outages:outage/0`.

- `detection_ms` is the time from the fault until the first error. `recovery_ms` is the time from
  the fault until the last error before the first calm. Without an error both are missing.
- `seen` is `true` if at least nine tenths of the fault's connections, or its node, have ended. For
  added latency, at least one answer in twenty must have taken the added time or more.
- `recovered` is `true` if no error came, or a calm followed before the next fault or the end.
- `mark_s` is the number of seconds in which the service must recover.
- `not_run` is the reason why a fault was not injected.
""".
-type fault() ::
    #{fault := atom(), not_run := term()}
    | #{fault := atom(), extent := #{atom() => number()}, errors := non_neg_integer(),
        slow := non_neg_integer(), seen := boolean(), recovered := boolean(),
        detection_ms => number(), recovery_ms => number(),
        latency_p50_us => pos_integer(), latency_p95_us => pos_integer(),
        latency_p99_us => pos_integer(), latency_p999_us => pos_integer(),
        latency_max_us => pos_integer(), latency_deviation_us => float(),
        mark_s => pos_integer()}.
-doc """
The backlog of a peak that is followed by a `cool_down`. `most_backlog_requests` is the largest at
any time, and `end_backlog_requests` the backlog at the end of the peak. `drain_ms` is the time from
the end of the peak until all requests that were due by then have ended. It is missing if the
scenario ended first. `cool_down_ms` is the time from the end of the peak until the last error or
slow answer. It is missing if no calm followed. Calms and slow answers are those of
`m:erlmcp_bench_scenario_outages`, with the peak as the fault.
""".
-type bombing() :: #{
    most_backlog_requests := non_neg_integer(), end_backlog_requests := non_neg_integer(),
    drain_ms => float(), cool_down_ms => float()
}.
-doc """
The reason why a scenario has failed.

- `nothing_answered`: no request of the peak was answered.
- `unopened`: the number of clients that could not connect when they were started.
- `wrong_replies`: the number of wrong replies.
- `zone`: the share of errors is in the red zone, which the scenario does not tolerate.
- `unaccounted`: the number of sent requests without an outcome.
- `uncounted`: the steps do not add up to the counts of the loads.
- `unseen`: a fault that had no effect.
- `not_recovered`: a fault from which the service did not recover, or not within `mark_s`.
""".
-type complaint() ::
    nothing_answered | {unopened, pos_integer()} | {wrong_replies, pos_integer()} | {zone, red}
    | {unaccounted, integer()} | uncounted | {unseen | not_recovered, Fault :: atom()}.

-define(MIB, 1_048_576).

-doc """
Returns the outcome of a scenario. `Options` are those of its run, with all defaults. The facts are
those at the end of the run.
""".
-spec new(erlmcp_bench_scenarios:scenario(), Options :: map(),
          erlmcp_bench_scenario_run:facts()) -> outcome().
new(Scenario, Options, #{steps := Steps, loads := Loads, unopened := Unopened, nodes := Nodes,
                         readings := Readings, scrapes := Scrapes, pauses := Pauses,
                         began_us := BeganUs, ended_us := EndedUs} = Facts) ->
    #{scale := Scale, duration_s := RunS, transport := Transport} = Options,
    #{name := Name, title := Title} = Scenario,
    Measured = [Step || {#{phase := Phase}, _, _} = Step <- Steps, Phase =/= warm_up],
    Reports = [Report || {_, Report} <- Loads],
    Course = erlmcp_load_course:merge([Own || #{course := Own} <- Reports]),
    Total = total(Reports),
    Payload = payload(Scenario, Options),
    Peak = figures(Payload, [Step || {#{phase := peak}, _, _} = Step <- Steps]),
    Zone = erlmcp_bench_scenario_sums:zone(sums(Measured)),
    Faults = faults(Scenario, Facts),
    FullS = erlmcp_bench_scenario_plan:seconds(Scenario),
    Complaints = complaints(#{scenario => Scenario, steps => Steps, total => Total, peak => Peak,
                              zone => Zone, faults => Faults, unopened => Unopened}),
    lists:foldl(fun maps:merge/2, maps:with([urls, profile], Options),
              [bombing(Scenario, Facts, Course),
               #{era => Revision || #{era := {session, Revision}} <- [Options]},
               #{mix => erlmcp_load_request:mix(Requests) || #{requests := Requests} <- [Options]},
               #{bytes => Payload || is_integer(Payload)},
               #{scenario => Name, title => Title, status => status(Complaints),
                 complaints => Complaints, zone => Zone, transport => Transport, nodes => Nodes,
                 full_s => FullS, run_s => RunS, scale => Scale,
                 shortened => RunS < FullS orelse Scale < 1,
                 clients => erlmcp_bench_scenario_plan:clients(Scenario, Scale),
                 peak => Peak, faults => Faults, total => Total, usage => usage(Nodes, Readings),
                 windows => erlmcp_load_course:windows(EndedUs, Course),
                 seconds => seconds(BeganUs, EndedUs, Course), scrapes => Scrapes,
                 phases => [maps:merge(Phase, collections(Phase, Pauses, Steps))
                            || Phase <- erlmcp_bench_scenario_resources:phases(BeganUs, Readings)],
                 series => erlmcp_bench_scenario_series:lines(BeganUs, Readings, Loads),
                 refused => reasons(refused, Reports), failed => reasons(failed, Reports),
                 steps => [#{phase => Phase, clients => Clients,
                             figures => figures(Payload, [Step])}
                           || {#{phase := Phase, clients := Clients}, _, _} = Step <- Measured],
                 marks => marks(Scenario, Scale, Payload, Measured),
                 lateness => erlmcp_bench_histogram:merge([Lateness || #{lateness := Lateness}
                                                                           <- Reports])}]).

status([]) -> passed;
status(_) -> failed.

total(Reports) ->
    erlmcp_bench_scenario_sums:sum([erlmcp_bench_scenario_sums:of_report(Report)
                                    || Report <- Reports]).

reasons(Kind, Reports) ->
    lists:foldl(fun(#{Kind := Reasons}, Sum) ->
                    maps:merge_with(fun(_, One, Other) -> One + Other end, Reasons, Sum)
                end, #{}, Reports).

sums(Steps) ->
    erlmcp_bench_scenario_sums:sum([Sums || {_, Sums, _} <- Steps]).

%% The bytes of text that a request has, and that come back. Other requests have no known payload.
payload(_, #{requests := _}) -> unknown;
payload(#{clients := #{bytes := Bytes}}, _) -> Bytes.

figures(Payload, Steps) ->
    #{answered := Answered, bytes_in := In, bytes_out := Out} = Sums = sums(Steps),
    Milliseconds = lists:sum([TookMs || {_, _, TookMs} <- Steps]),
    Due = lists:sum([Clients * Rate * TookMs
                     || {#{clients := Clients, rate := Rate}, _, TookMs} <- Steps]),
    maps:merge(maps:merge(latency(Answered, erlmcp_bench_scenario_sums:histogram(Sums)),
                          overhead(Payload, Sums)),
               #{received_mib_per_s => In * 1_000 / ?MIB / max(1, Milliseconds),
                 sent_mib_per_s => Out * 1_000 / ?MIB / max(1, Milliseconds),
                 duration_s => Milliseconds / 1_000, rate => Due / max(1, Milliseconds),
                 sums => Sums,
                 throughput_msg_per_s => Answered * 1_000 / max(1, Milliseconds),
                 error_percent => erlmcp_bench_scenario_sums:error_percent(Sums),
                 zone => erlmcp_bench_scenario_sums:zone(Sums)}).

overhead(Payload, #{sent := Sent, answered := Answered, bytes_in := In, bytes_out := Out})
  when is_integer(Payload), In + Out > 0 ->
    %% The last requests of a step may be counted, and their bytes not yet.
    #{overhead_percent => max(0.0, 100 * (1 - Payload * (Sent + Answered) / (In + Out)))};
overhead(_, _) ->
    #{}.

latency(0, _) ->
    #{};
latency(_, Histogram) ->
    maps:from_list(
        [{Name, erlmcp_bench_histogram:percentile(Histogram, Percent)}
         || {Name, Percent} <- [{latency_p50_us, 50}, {latency_p95_us, 95}, {latency_p99_us, 99},
                                {latency_p999_us, 99.9}, {latency_max_us, 100}]]
        ++ [{latency_deviation_us, Us} || Us <- [erlmcp_bench_histogram:deviation(Histogram)],
                                          Us > 0]).

%% The requests of a phase are those that all nodes together have answered.
collections(#{phase := Phase}, Pauses, Steps) ->
    Figures = figures(unknown, [Step || {#{phase := Of}, _, _} = Step <- Steps, Of =:= Phase]),
    case {Pauses, Figures} of
        {#{Phase := OfNodes}, #{throughput_msg_per_s := PerSecond, latency_p95_us := Us}} ->
            erlmcp_bench_pauses:fields(OfNodes, PerSecond, Us);
        _ ->
            #{}
    end.

%% The resources at the peak, of all nodes if none of them was killed.
usage(Nodes, Readings) ->
    {OfGenerator, OfNodes} = case maps:take(~"generator",
                                            erlmcp_bench_scenario_resources:used(Readings)) of
        {#{cpu_us := Us}, Others} -> {#{generator_cpu_us => Us}, maps:values(Others)};
        error -> {#{}, []}
    end,
    case OfNodes of
        [_ | _] when length(OfNodes) =:= Nodes ->
            OfGenerator#{server_cpu_us => lists:sum([Us || #{cpu_us := Us} <- OfNodes]),
                         server_rss_bytes => lists:sum([Rss || #{rss_bytes := Rss} <- OfNodes])};
        _ ->
            OfGenerator
    end.

seconds(BeganUs, EndedUs, Course) ->
    [#{at_s => (At - BeganUs) div 1_000_000, backlog_requests => Requests}
     || {At, Requests} <- erlmcp_load_course:backlog(EndedUs, Course),
        (At - BeganUs) rem 1_000_000 =:= 0].

bombing(#{phases := Phases}, #{readings := Readings, ended_us := EndedUs}, Course) ->
    Ends = [At || #{at_us := At, phase := peak} <- Readings],
    Begins = [At || #{at_us := At, phase := Phase} <- Readings, Phase =/= peak],
    case lists:any(fun(#{name := Name}) -> Name =:= cool_down end, Phases) of
        true when Ends =/= [], Begins =/= [] ->
            %% The reading at the end of the phase before is that at the beginning of the peak.
            BeginUs = lists:max([At || At <- Begins, At < hd(Ends)]),
            #{bombing => bombed(BeginUs, lists:last(Ends), EndedUs, Course)};
        _ ->
            #{}
    end.

bombed(BeginUs, EndUs, EndedUs, Course) ->
    Backlog = erlmcp_load_course:backlog(EndedUs, Course),
    SlowUs = erlmcp_bench_scenario_outages:slow_us(
        erlmcp_load_course:slowest_us(BeginUs, Course)),
    Drained = erlmcp_load_course:latest_us(EndUs, Course),
    Cool = erlmcp_load_course:latest_trouble_us(EndUs, SlowUs, Course),
    Calm = erlmcp_bench_scenario_outages:calm_us(),
    maps:from_list(
        [{most_backlog_requests, lists:max([0 | [Requests || {_, Requests} <- Backlog]])},
         {end_backlog_requests, lists:last([0 | [Requests || {At, Requests} <- Backlog,
                                                             At =< EndUs]])}]
        ++ [{drain_ms, max(1, Drained - EndUs) / 1_000} || Drained < EndedUs]
        ++ [{cool_down_ms, max(1, Cool - EndUs) / 1_000} || Cool + Calm =< EndedUs]).

marks(#{marks := Marks, clients := #{clients := Full}} = Scenario, Scale, Payload, Steps) ->
    All = erlmcp_bench_scenario_plan:clients(Scenario, Scale),
    [begin
         %% As the steps are planned: they are parts of all clients that run.
         Clients = erlmcp_bench_scenario_plan:part(All, clients(Of, Full) / Full),
         Expected = expected(Figure, Value, Scale),
         compared(#{clients => Clients, figure => Figure, value => Expected},
                  figures(Payload, steps_of(Of, Clients, Steps)))
     end || #{of_clients := Of, figure := Figure, value := Value} <- Marks].

clients(peak, Full) -> Full;
clients(Clients, _) -> Clients.

steps_of(peak, _, Steps) -> [Step || {#{phase := peak}, _, _} = Step <- Steps];
steps_of(_, Clients, Steps) ->
    [Step || {#{clients := There}, _, _} = Step <- Steps, There =:= Clients].

expected(throughput_msg_per_s, Value, Scale) -> Value * Scale;
expected(_, Value, _) -> Value.

compared(#{figure := Figure, value := Value} = Mark, #{duration_s := DurationS} = Figures) ->
    case Figures of
        #{Figure := Measured} when DurationS > 0 ->
            Mark#{measured => Measured, beaten => is_beaten(Figure, Measured, Value)};
        #{} ->
            Mark
    end.

is_beaten(throughput_msg_per_s, Measured, Value) -> Measured >= Value;
is_beaten(_, Measured, Value) -> Measured =< Value.

faults(Scenario, #{faults := Events, outages := Outages, ended_us := EndedUs}) ->
    #{faults := Planned} = Scenario,
    Ends = maps:from_list(ends(Outages, EndedUs)),
    [fault(Fault, Planned, Outages, Ends) || #{state := begins} = Fault <- Events].

%% An outage lasts until the next fault. The last one lasts until the end.
ends([], _) -> [];
ends([#{fault := Fault}], EndedUs) -> [{Fault, EndedUs}];
ends([#{fault := Fault} | [#{at_us := Next} | _] = Rest], EndedUs) ->
    [{Fault, Next} | ends(Rest, EndedUs)].

fault(#{fault := Fault, not_run := Reason}, _, _, _) ->
    #{fault => Fault, not_run => Reason};
fault(#{fault := Fault, extent := Extent, least := Least}, Planned, Outages, Ends) ->
    [#{at_us := AtUs, errors := Errors, slow := Slow, latency := Latency} = Outage] =
        [Found || #{fault := Of} = Found <- Outages, Of =:= Fault],
    #{Fault := EndUs} = Ends,
    Details = details(lists:keyfind(Fault, 1, Planned)),
    Latencies = latency(erlmcp_bench_histogram:count(Latency), Latency),
    Effects = #{fault => Fault, extent => Extent, errors => Errors, slow => Slow,
                seen => is_seen(Extent, Least, Latencies), recovered => is_whole(Outage, EndUs)},
    lists:foldl(fun maps:merge/2, Effects,
                [maps:with([mark_s], Details), times(Outage, AtUs), Latencies]).

%% With added latency for half of the clients, the slower half of the answers is later.
is_seen(#{added_ms := Milliseconds}, _, #{latency_p95_us := P95}) -> P95 >= Milliseconds * 1_000;
is_seen(#{added_ms := _}, _, #{}) -> false;
is_seen(Extent, Least, _) ->
    maps:fold(fun(Figure, Value, Seen) -> Seen andalso maps:get(Figure, Extent) >= Value end,
              true, Least).

details({_, _, _, Details}) -> Details;
details({_, _, Details}) -> Details.

times(#{first_us := First, last_us := Last}, AtUs) ->
    #{detection_ms => max(1, First - AtUs) / 1_000, recovery_ms => max(1, Last - AtUs) / 1_000};
times(_, _) ->
    #{}.

is_whole(#{last_us := Last}, EndUs) -> EndUs - Last >= erlmcp_bench_scenario_outages:calm_us();
is_whole(_, _) -> true.

complaints(#{scenario := #{tolerates_errors := Tolerates}, steps := Steps, total := Total,
             peak := #{sums := #{answered := Answered}}, zone := Zone, faults := Faults,
             unopened := Unopened}) ->
    #{sent := Sent, wrong := Wrong} = Total,
    OfSteps = sums(Steps),
    Counted = fun(Sums) -> {map_get(sent, Sums), map_get(answered, Sums),
                            erlmcp_bench_scenario_sums:ended(Sums)} end,
    [nothing_answered || Answered =:= 0]
        ++ [{unopened, Unopened} || Unopened > 0]
        ++ [{wrong_replies, Wrong} || Wrong > 0]
        ++ [{unaccounted, Sent - Ended} || Ended <- [erlmcp_bench_scenario_sums:ended(Total)],
                                           Ended =/= Sent]
        ++ [uncounted || Counted(OfSteps) =/= Counted(Total)]
        ++ [{zone, red} || Zone =:= red, not Tolerates]
        ++ [{unseen, Fault} || #{fault := Fault, seen := false} <- Faults]
        ++ [{not_recovered, Fault} || #{fault := Fault} = Effects <- Faults, is_late(Effects)].

is_late(#{recovered := false}) -> true;
is_late(#{recovery_ms := Ms, mark_s := MarkS}) -> Ms > MarkS * 1_000;
is_late(_) -> false.
