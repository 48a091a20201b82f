-module(erlmcp_bench_stress).
-moduledoc """
Measures a server of this node under load for a long time. The result shows whether it stays as fast
as at the beginning, and whether it leaks memory. An operation is a whole request without a socket
(`m:erlmcp_bench_requests`).

The load is open: `target_ops_per_s` requests are due in each second, at equal distances. A latency
begins when its request was due, and a `service_` time when it was sent. `unsent_count` is the
number of due requests that were not sent. The target `uncapped` measures the capacity: each worker
sends again when it is answered.

Each interval gives a sample: the answers a second, and the least memory that the node had. The
interval is `sample_ms`, if the workload has that. Otherwise it is 5 s, or a sixth of a run below
30 s. A line is fitted through the samples. A growth of more than 1 MiB a minute is a leak. A loss
of more than 5 % of the throughput a minute is a degradation. Both must be certain
(`erlmcp_bench_slope:verdict/3`). A run is judged only if it has at least three samples, and has a
`sample_ms` or lasts at least ten seconds.

With the option `fail` a service of the server is killed during the run (`m:erlmcp_bench_failure`).
The result has the errors and the recovery (`m:erlmcp_bench_recovery`) as `failure`, and its name
ends with that of the service. The run fails if the failure was not seen, or if the service or the
load did not recover. A run of `uncapped` with this option fails with `fail_needs_a_target`.
""".

-behaviour(erlmcp_bench_run).

-export([run_workload/1, run_workload/2, run_all/0]).
-export([measured/2]).

%% Bounds of the slopes, in MiB and percent a minute.
-define(LEAK, 1).
-define(DEGRADATION, -5).
%% The shortest run that is judged, and the longest warm-up, in seconds.
-define(JUDGED, 10).
-define(WARM, 2).
%% Milliseconds of an interval, intervals of a short run, and memory readings in one interval.
-define(INTERVAL, 5_000).
-define(SAMPLES, 6).
-define(LOOKS, 10).
%% Bytes of the echoed text.
-define(TEXT, 64).
-define(MIB, 1_048_576).

-doc """
Runs a workload, given as its name or as a map with its `id`. The map may change the workload's
`duration_s`, `target_ops_per_s` and `workers`, and set `sample_ms`, the milliseconds of an
interval.
""".
-spec run_workload(binary() | atom() | map()) -> erlmcp_bench_run:outcome().
run_workload(Workload) -> run_workload(Workload, #{}).

-doc "Runs a workload with options. The workload is given as `run_workload/1` takes it.".
-spec run_workload(binary() | atom() | map(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:outcome().
run_workload(Workload, Options) ->
    erlmcp_bench_run:workload(stress, Workload, Options).

-doc "Runs every workload, which takes more than a day.".
-spec run_all() -> erlmcp_bench_run:outcome().
run_all() -> erlmcp_bench_run:all(stress, #{}).

-doc false.
-spec measured(erlmcp_bench_workloads:workload(), erlmcp_bench_run:options()) ->
    erlmcp_bench_run:measured().
%% Without a target no requests are due while no server runs.
measured(#{id := Id, target_ops_per_s := uncapped}, #{fail := _} = Options) ->
    erlmcp_bench_run:measured({error, fail_needs_a_target}, {Id, Options});
measured(#{id := Id, target_ops_per_s := Target, workers := Workers} = Workload, Options) ->
    {Seconds, Shortened} = erlmcp_bench_run:seconds(Workload, Options),
    #{id := Server} = OfServer = erlmcp_bench_run:server(#{id => {?MODULE, make_ref()}}, Options),
    maybe
        {ok, Host} ?= erlmcp_bench_host:start_link(OfServer),
        Plan = #{server => Server, text_bytes => ?TEXT, per_second => Target, workers => Workers,
                 duration_ms => max(1, round(Seconds * 1_000)),
                 warm_ms => round(min(?WARM, Seconds / 5) * 1_000),
                 interval_ms => interval_ms(Workload, Seconds),
                 judged => Seconds >= ?JUDGED orelse is_map_key(sample_ms, Workload),
                 shortened => Shortened},
        Recovery = erlmcp_bench_recovery:new(),
        Load = erlmcp_bench_open_load:start(
            maps:merge(Plan, #{recovery => Recovery || is_map_key(fail, Options)})),
        Failing = failing(Options, Server, Recovery, Load),
        Pauses = erlmcp_bench_pauses:start(erlmcp_bench_open_load:workers(Load)),
        Samples = sampled(Load, Plan, erlmcp_bench_run:on_part(Options)),
        Collections = erlmcp_bench_pauses:stop(Pauses),
        Outcome = erlmcp_bench_open_load:await(Load),
        Failure = failure(Failing, Options, Recovery),
        ok = erlmcp_bench_host:stop(Host),
        erlmcp_bench_run:measured(fields(Outcome, Samples, Collections, Failure, Id, Plan),
                                  {Id, Options})
    else
        {error, Reason} ->
            erlmcp_bench_run:measured({error, {no_server, Reason}}, {Id, Options})
    end.

interval_ms(#{sample_ms := Milliseconds}, _) -> Milliseconds;
interval_ms(_, Seconds) -> min(?INTERVAL, max(?LOOKS, round(Seconds * 1_000) div ?SAMPLES)).

%% The failure.

failing(#{fail := {Service, Seconds}} = Options, Server, Recovery, Load) ->
    erlmcp_bench_failure:start(#{
        service => Service, server => Server, recovery => Recovery,
        at_ms => erlmcp_bench_open_load:begins(Load) + round(Seconds * 1_000),
        kill => maps:get(kill, Options, fun(Pid) -> exit(Pid, kill) end)}, Load);
failing(_, _, _, _) ->
    none.

%% The figures of the failure, the number of requests that it left unanswered, and the reasons for
%% which the run has failed by it.
failure(none, _, _) ->
    {none, 0, []};
failure(Failing, #{fail := {Service, Seconds}}, Recovery) ->
    Seen = erlmcp_bench_failure:stop(Failing),
    #{errors := Errors, unanswered := Unanswered} = Figures =
        erlmcp_bench_recovery:figures(Recovery),
    OfFailure = maps:merge(Seen#{service => Service, at_s => Seconds, errors_count => Errors},
                           maps:without([errors, unanswered], Figures)),
    {OfFailure, Unanswered, [{Reason, Service} || Reason <- broken(OfFailure)]}.

broken(#{killed_processes := 0}) -> [unseen];
broken(#{restarted_ms := _, first_good_ms := _, recovery_ms := _}) -> [];
broken(#{restarted_ms := _}) -> [not_recovered];
broken(#{}) -> [not_restarted].

%% Sampling.

sampled(Load, #{duration_ms := Duration, interval_ms := Interval}, OnPart) ->
    Begin = erlmcp_bench_open_load:begins(Load),
    samples(1, Duration div Interval, Interval, {Begin, 0}, Load, OnPart, []).

samples(Number, Count, _, _, _, _, Samples) when Number > Count ->
    lists:reverse(Samples);
samples(Number, Count, Interval, {Begin, Before}, Load, OnPart, Samples) ->
    Least = least_memory(?LOOKS, Begin + (Number - 1) * Interval, Interval div ?LOOKS, infinity),
    Answered = erlmcp_bench_open_load:answered(Load),
    Now = erlang:monotonic_time(millisecond),
    Since = case Samples of
        [] -> Begin;
        [#{at_ms := At} | _] -> Begin + At
    end,
    _ = OnPart(Number / Count),
    Sample = #{at_ms => max(1, Now - Begin), memory_bytes => Least,
               answered_per_s => (Answered - Before) * 1_000 / max(1, Now - Since)},
    samples(Number + 1, Count, Interval, {Begin, Answered}, Load, OnPart, [Sample | Samples]).

%% The least memory is that after a garbage collection.
least_memory(0, _, _, Least) ->
    Least;
least_memory(More, From, Pause, Least) ->
    Until = From + Pause,
    receive after max(0, Until - erlang:monotonic_time(millisecond)) -> ok end,
    least_memory(More - 1, Until, Pause, min(Least, erlang:memory(total))).

%% Results.

fields({error, _} = Error, _, _, _, _, _) ->
    Error;
fields({ok, #{answered := 0}}, _, _, _, _, _) ->
    {error, nothing_answered};
fields({ok, Outcome}, Samples, Collections, {OfFailure, Unanswered, Broken}, Id, Plan) ->
    #{per_second := Target, workers := Workers, shortened := Shortened, judged := Judged} = Plan,
    #{answered := Answered, sent := Sent, unsent := Unsent, refused := Refused, wrong := Wrong,
      failed := Failed, duration_ns := Nanoseconds, latency := Latency} = Outcome,
    Seconds = Nanoseconds / 1_000_000_000,
    Judgement = judgement(Samples, Judged),
    Fields = #{workload_id => name(Id, OfFailure), benchmark => ~"stress", transport => in_process,
               scope => per_node, workers => Workers, sample_count => Answered,
               duration_s => Seconds, throughput_msg_per_s => Answered / Seconds,
               sent_count => Sent, unsent_count => Unsent,
               wrong_count => Wrong, failed_count => Failed,
               refused_count => #{integer_to_binary(Code) => Count || Code := Count <- Refused},
               shortened => Shortened,
               seconds => [#{at_s => At / 1_000, memory_total_mib_per_node => Bytes / ?MIB,
                             throughput_msg_per_s => Rate}
                           || #{at_ms := At, memory_bytes := Bytes, answered_per_s := Rate} <-
                                  Samples]},
    Reasons = [{wrong_answers, Wrong} || Wrong > 0]
        ++ [{requests_failed, Failed - Unanswered} || Failed > Unanswered] ++ Broken
        ++ [{leak, map_get(growth_mib_per_min, Judgement)}
            || #{leak := found} <- [Judgement]]
        ++ [{degradation, map_get(degradation_percent_per_min, Judgement)}
            || #{degradation := found} <- [Judgement]],
    Times = [erlmcp_bench_result:latency(atom_to_binary(Name), Histogram)
             || Name := Histogram <- maps:with([service, lateness], Outcome)],
    Pauses = erlmcp_bench_pauses:fields(Collections, Answered / Seconds,
                                        erlmcp_bench_histogram:percentile(Latency, 95)),
    {ok, lists:foldl(fun maps:merge/2, Fields,
                     [#{target_msg_per_s => Target || is_integer(Target)}, Judgement, resident(),
                      Pauses, #{failure => OfFailure || is_map(OfFailure)},
                      erlmcp_bench_result:latency(Latency) | Times]), Reasons}.

%% The result of a run with a failure is no other run of its workload.
name(Id, #{service := Service}) -> <<Id/binary, "_fail_", (atom_to_binary(Service))/binary>>;
name(Id, none) -> Id.

resident() ->
    case erlmcp_bench_process:rss_bytes(erlmcp_bench_process:self()) of
        undefined -> #{};
        Bytes -> #{memory_rss_mib_per_node => Bytes / ?MIB}
    end.

judgement(Samples, Judged) when length(Samples) >= 3 ->
    Rates = [Rate || #{answered_per_s := Rate} <- Samples],
    Mean = lists:sum(Rates) / length(Rates),
    Memory = line([{At, Bytes / ?MIB} || #{at_ms := At, memory_bytes := Bytes} <- Samples]),
    Rate = line([{At, 100 * One / max(1, Mean)}
                 || #{at_ms := At, answered_per_s := One} <- Samples]),
    #{growth_mib_per_min => map_get(slope, Memory),
      growth_error_mib_per_min => map_get(error, Memory),
      leak => found(above, ?LEAK, Memory, Judged),
      degradation_percent_per_min => map_get(slope, Rate),
      degradation_error_percent_per_min => map_get(error, Rate),
      degradation => found(below, ?DEGRADATION, Rate, Judged),
      throughput_deviation_percent => erlmcp_bench_slope:deviation_percent(Rates)};
judgement(_, _) ->
    #{leak => not_judged, degradation => not_judged}.

%% The slope is per minute.
line(Points) ->
    erlmcp_bench_slope:fit([{At / 60_000, Value} || {At, Value} <- Points]).

found(_, _, _, false) ->
    not_judged;
found(Direction, Bound, Line, true) ->
    case erlmcp_bench_slope:verdict(Direction, Bound, Line) of
        beyond -> found;
        unclear -> unclear;
        within -> none
    end.
