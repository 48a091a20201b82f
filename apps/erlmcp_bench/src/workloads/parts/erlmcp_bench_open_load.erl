-module(erlmcp_bench_open_load).
-moduledoc """
The processes that send whole requests to a server of this node (`m:erlmcp_bench_requests`) when
they are due. Request N is due N / `per_second` seconds after the beginning, and its number selects
the worker. A late worker sends its due requests one after the other, without a pause. With
`per_second` of `uncapped`, a worker's next request is due when the one before it is answered.

If the server ends, due requests fail at once until it runs again.

`m:erlmcp_bench_pacer` wakes the workers.
""".

-export([start/1, workers/1, begins/1, answered/1, p99_us/1, await/1]).

-export_type([plan/0, load/0, report/0]).

-type plan() :: #{
    server := erlmcp:server(), text_bytes := non_neg_integer(),
    per_second := pos_integer() | uncapped, workers := pos_integer(),
    duration_ms := pos_integer(), warm_ms := non_neg_integer(),
    %% counts the outcomes after a failure
    recovery => erlmcp_bench_recovery:recovery(), atom() => term()
}.
-opaque load() :: #{
    workers := [pid()],
    %% The workers, and the pacers of a load with a rate.
    processes := #{pid() => reference()}, begins := integer(), histograms := histograms(),
    due := pos_integer() | uncapped
}.
-type report() :: #{
    sent := non_neg_integer(), answered := non_neg_integer(), unsent := non_neg_integer(),
    refused := #{integer() => pos_integer()}, wrong := non_neg_integer(),
    failed := non_neg_integer(), duration_ns := pos_integer(),
    latency := erlmcp_bench_histogram:histogram(),
    service => erlmcp_bench_histogram:histogram(), lateness => erlmcp_bench_histogram:histogram()
}.
%% If requests are due when they are sent, only their latency is measured.
-type histograms() :: #{latency | service | lateness => erlmcp_bench_histogram:histogram()}.

%% Milliseconds for the workers to start.
-define(START, 200).
-define(MILLISECOND, 1_000_000).

-doc "Starts the workers. They end with the calling process.".
-spec start(plan()) -> load().
start(#{workers := Workers, duration_ms := Duration, warm_ms := Warm, per_second := PerSecond}
      = Plan) ->
    Begins = erlang:monotonic_time(millisecond) + ?START + Warm,
    Histograms = #{Name => erlmcp_bench_histogram:new() || Name <- times(PerSecond)},
    Pacer = erlmcp_bench_pacer:new(Workers),
    Schedule = Plan#{begins => Begins * ?MILLISECOND, ends => (Begins + Duration) * ?MILLISECOND,
                     histograms => Histograms, pacer => Pacer},
    Caller = self(),
    Started = [erlmcp_one_shot:start(fun() ->
        _ = monitor(process, Caller),
        worker(Number, Schedule)
    end, []) || Number <- lists:seq(0, Workers - 1)],
    Pids = [Pid || {Pid, _} <- Started],
    Pacers = case PerSecond of
        uncapped -> [];
        _ -> erlmcp_bench_pacer:start(Pids, Schedule, Pacer)
    end,
    #{workers => Pids, processes => maps:from_list(Started ++ Pacers), begins => Begins,
      histograms => Histograms, due => due_before(Duration, PerSecond)}.

times(uncapped) -> [latency];
times(_) -> [latency, service, lateness].

%% The first request is due at the beginning, and none at the end.
due_before(_, uncapped) -> uncapped;
due_before(Duration, PerSecond) -> (Duration * PerSecond + 999) div 1_000.

-doc "Returns the processes that send the requests.".
-spec workers(load()) -> [pid()].
workers(#{workers := Workers}) -> Workers.

-doc """
Returns when the first measured request is due, in monotonic milliseconds. Earlier requests are
warm-up.
""".
-spec begins(load()) -> integer().
begins(#{begins := Begins}) -> Begins.

-doc "Returns how many requests were answered correctly so far, without the warm-up.".
-spec answered(load()) -> non_neg_integer().
answered(#{histograms := #{latency := Latency}}) -> erlmcp_bench_histogram:count(Latency).

-doc """
Returns the 99th percentile of the latencies so far, in microseconds and without the warm-up.
Returns 0 if there are none.
""".
-spec p99_us(load()) -> non_neg_integer().
p99_us(#{histograms := #{latency := Latency}}) -> erlmcp_bench_histogram:percentile(Latency, 99).

-doc """
Waits for the end of the load in the process that started it, and returns its outcomes. If a worker
fails, the error has the reason, and the others are killed.
""".
-spec await(load()) -> {ok, report()} | {error, {worker_failed, Reason :: term()}}.
await(#{processes := Processes} = Load) ->
    case counted(Processes, []) of
        {ok, Counted} -> {ok, report(Counted, Load)};
        {error, _} = Error -> Error
    end.

counted(Processes, Counted) when map_size(Processes) =:= 0 ->
    {ok, Counted};
counted(Processes, Counted) ->
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Own}} when map_get(Pid, Processes) =:= Monitor ->
            counted(maps:remove(Pid, Processes), [Own || Own =/= paced] ++ Counted);
        {'DOWN', Monitor, process, Pid, Reason} when map_get(Pid, Processes) =:= Monitor ->
            ok = maps:foreach(fun(Other, Watched) ->
                                  true = demonitor(Watched, [flush]),
                                  exit(Other, kill)
                              end, Processes),
            {error, {worker_failed, Reason}}
    end.

report(Counted, #{histograms := Histograms, due := Due, begins := Begins}) ->
    Sum = fun(Outcome) -> lists:sum([maps:get(Outcome, Counts, 0) || {Counts, _} <- Counted]) end,
    Refused = lists:foldl(
        fun({Code, Count}, Codes) -> maps:update_with(Code, fun(C) -> C + Count end, Count, Codes)
        end, #{}, [{Code, Count} || {Counts, _} <- Counted, {refused, Code} := Count <- Counts]),
    [Answered, Wrong, Late, Lost] = [Sum(Outcome)
                                     || Outcome <- [answered, wrong, timeout, no_server]],
    Failed = Late + Lost,
    Sent = Answered + Wrong + Failed + lists:sum(maps:values(Refused)),
    Last = lists:max([End || {_, End} <- Counted]),
    Histograms#{sent => Sent, answered => Answered, wrong => Wrong, failed => Failed,
                refused => Refused, unsent => unsent(Due, Sent),
                duration_ns => max(1, Last - Begins * ?MILLISECOND)}.

unsent(uncapped, _) -> 0;
unsent(Due, Sent) -> max(0, Due - Sent).

%% Functions of a worker.

worker(Number, #{server := Server, text_bytes := Bytes, begins := Begins} = Plan) ->
    Warm = warmed(1, Begins, erlmcp_bench_requests:new(Server, Bytes)),
    sends(Number, Warm, {#{}, Begins}, Plan).

warmed(Id, Begins, Client) ->
    case now_ns() < Begins of
        true ->
            {_, Next} = erlmcp_bench_requests:call(Id, Client),
            warmed(Id + 1, Begins, Next);
        false ->
            Client
    end.

%% The clock is read once for each request: the next one begins when this one is answered.
sends(Request, Client, {Counts, Last} = Counted, Plan) ->
    #{workers := Workers, ends := Ends} = Plan,
    Due = due(Request, Last, Plan),
    case Due < Ends andalso sent_at(Request, Due, Last, Plan) of
        Sent when is_integer(Sent), Sent < Ends ->
            {Outcome, Next} = erlmcp_bench_requests:call(Request + 1, Client),
            Done = now_ns(),
            Kind = kind(Outcome),
            ok = recorded(Kind, Due, Sent, Done, Plan),
            ok = after_failure(Kind, Due, Sent, Done, Plan),
            sends(Request + Workers, Next, {one_more(Kind, Counts), Done}, Plan);
        _ ->
            ok = erlmcp_bench_requests:close(Client),
            Counted
    end.

kind({wrong, _}) -> wrong;
kind(Outcome) -> Outcome.

one_more(Kind, Counts) ->
    case Counts of
        #{Kind := Count} -> Counts#{Kind := Count + 1};
        #{} -> Counts#{Kind => 1}
    end.

due(_, Last, #{per_second := uncapped}) ->
    Last;
due(Request, _, Plan) ->
    erlmcp_bench_pacer:due(Request, Plan).

sent_at(_, Due, Now, _) when Now >= Due ->
    %% The process that started the load has ended.
    receive {'DOWN', _, process, _, _} -> exit(normal) after 0 -> Now end;
sent_at(Request, _, _, #{pacer := Pacer} = Plan) ->
    case erlmcp_bench_pacer:await(Request, Plan, Pacer) of
        over -> exit(normal);
        Now -> Now
    end.

recorded(answered, Due, Sent, Done, #{histograms := Histograms}) ->
    ok = erlmcp_bench_histogram:record(map_get(latency, Histograms), us(Done - Due)),
    case Histograms of
        #{service := Service, lateness := Lateness} ->
            ok = erlmcp_bench_histogram:record(Lateness, us(Sent - Due)),
            erlmcp_bench_histogram:record(Service, us(Done - Sent));
        #{} ->
            ok
    end;
recorded(_, Due, Sent, _, #{histograms := #{lateness := Lateness}}) ->
    erlmcp_bench_histogram:record(Lateness, us(Sent - Due));
recorded(_, _, _, _, _) ->
    ok.

after_failure(Kind, Due, Sent, Done, #{recovery := Recovery}) ->
    erlmcp_bench_recovery:ended(Kind, us(Done - Due), Sent, Done, Recovery);
after_failure(_, _, _, _, _) ->
    ok.

us(Nanoseconds) -> Nanoseconds div 1_000.

now_ns() -> erlang:monotonic_time(nanosecond).
