-module(erlmcp_bench_open_load).
-moduledoc """
The processes that send whole requests to a server of this node (`m:erlmcp_bench_requests`), each at
its times: request N is due N / `per_second` seconds after the beginning, and belongs to one of the
workers by its number. Who is late sends at once what is due. Where `per_second` is `uncapped`, each
worker's next request is due when the one before it is answered.

Timers have whole milliseconds, in each of which many requests may be due. If all of them began
together, they would wait for each other, and that would be the load's own doing. So a worker sleeps
until the millisecond and then gives way to others, again and again, until the time has come.
""".

-export([start/1, begins/1, answered/1, await/1]).

-export_type([plan/0, load/0, report/0]).

-type plan() :: #{
    instance := erlmcp_instance:instance(), text_bytes := non_neg_integer(),
    per_second := pos_integer() | uncapped, workers := pos_integer(),
    duration_ms := pos_integer(), warm_ms := non_neg_integer(), atom() => term()
}.
-opaque load() :: #{
    workers := #{pid() => reference()}, begins := integer(), answered := counters:counters_ref(),
    histograms := histograms(),
    due := pos_integer() | uncapped
}.
-type report() :: #{
    sent := non_neg_integer(), answered := non_neg_integer(), unsent := non_neg_integer(),
    refused := #{integer() => pos_integer()}, wrong := non_neg_integer(),
    failed := non_neg_integer(), duration_ns := pos_integer(),
    latency := erlmcp_bench_histogram:histogram(),
    service => erlmcp_bench_histogram:histogram(), lateness => erlmcp_bench_histogram:histogram()
}.
%% Where a request is due when it is sent, its latency is all there is.
-type histograms() :: #{latency | service | lateness => erlmcp_bench_histogram:histogram()}.

%% Milliseconds that the workers have to be there.
-define(START, 200).
-define(MILLISECOND, 1_000_000).

-doc "Starts the workers, which end with the calling process.".
-spec start(plan()) -> load().
start(#{workers := Workers, duration_ms := Duration, warm_ms := Warm, per_second := PerSecond}
      = Plan) ->
    Begins = erlang:monotonic_time(millisecond) + ?START + Warm,
    Answered = counters:new(1, [write_concurrency]),
    Histograms = #{Name => erlmcp_bench_histogram:new() || Name <- times(PerSecond)},
    Times = #{begins => Begins * ?MILLISECOND, ends => (Begins + Duration) * ?MILLISECOND,
              answered => Answered, histograms => Histograms},
    Caller = self(),
    Started = [erlmcp_outcome:start(fun() ->
        _ = monitor(process, Caller),
        worker(Number, maps:merge(Plan, Times))
    end, []) || Number <- lists:seq(0, Workers - 1)],
    #{workers => maps:from_list(Started), begins => Begins, answered => Answered,
      histograms => Histograms, due => due_before(Duration, PerSecond)}.

times(uncapped) -> [latency];
times(_) -> [latency, service, lateness].

%% The first is due at the beginning, and none at the end.
due_before(_, uncapped) -> uncapped;
due_before(Duration, PerSecond) -> (Duration * PerSecond + 999) div 1_000.

-doc "When the first request is due, in monotonic milliseconds; what is sent before warms up.".
-spec begins(load()) -> integer().
begins(#{begins := Begins}) -> Begins.

-doc "How many requests were answered as they have to be, until now.".
-spec answered(load()) -> non_neg_integer().
answered(#{answered := Answered}) -> counters:get(Answered, 1).

-doc "Waits for the end, and says what became of the requests.".
-spec await(load()) -> {ok, report()} | {error, {worker_failed, Reason :: term()}}.
await(#{workers := Workers} = Load) ->
    case counted(Workers, []) of
        {ok, Counted} -> {ok, report(Counted, Load)};
        {error, _} = Error -> Error
    end.

counted(Workers, Counted) when map_size(Workers) =:= 0 ->
    {ok, Counted};
counted(Workers, Counted) ->
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Own}} when map_get(Pid, Workers) =:= Monitor ->
            counted(maps:remove(Pid, Workers), [Own | Counted]);
        {'DOWN', Monitor, process, Pid, Reason} when map_get(Pid, Workers) =:= Monitor ->
            ok = maps:foreach(fun(Other, Watched) ->
                                  true = demonitor(Watched, [flush]),
                                  exit(Other, kill)
                              end, Workers),
            {error, {worker_failed, Reason}}
    end.

report(Counted, #{histograms := Histograms, due := Due, begins := Begins}) ->
    Sum = fun(Outcome) -> lists:sum([maps:get(Outcome, Counts, 0) || {Counts, _} <- Counted]) end,
    Refused = lists:foldl(
        fun({Code, Count}, Codes) -> maps:update_with(Code, fun(C) -> C + Count end, Count, Codes)
        end, #{}, [{Code, Count} || {Counts, _} <- Counted, {refused, Code} := Count <- Counts]),
    [Answered, Wrong, Failed] = [Sum(Outcome) || Outcome <- [answered, wrong, timeout]],
    Sent = Answered + Wrong + Failed + lists:sum(maps:values(Refused)),
    Last = lists:max([End || {_, End} <- Counted]),
    Histograms#{sent => Sent, answered => Answered, wrong => Wrong, failed => Failed,
                refused => Refused, unsent => unsent(Due, Sent),
                duration_ns => max(1, Last - Begins * ?MILLISECOND)}.

unsent(uncapped, _) -> 0;
unsent(Due, Sent) -> max(0, Due - Sent).

%% In a worker.

worker(Number, #{instance := Instance, text_bytes := Bytes, begins := Begins} = Plan) ->
    Connection = erlmcp_bench_requests:new(Instance, Bytes),
    Warm = warmed(1, Begins, Connection),
    sends(Number, Warm, {#{}, Begins}, Plan).

warmed(Id, Begins, Connection) ->
    case now_ns() < Begins of
        true ->
            {_, Next} = erlmcp_bench_requests:call(Id, Connection),
            warmed(Id + 1, Begins, Next);
        false ->
            Connection
    end.

%% The clock is read once for each: when one is answered, it is the next one's turn.
sends(Request, Connection, {Counts, Last} = Counted, Plan) ->
    #{workers := Workers, begins := Begins, ends := Ends} = Plan,
    Due = due(Request, Last, Plan),
    case Due < Ends andalso sent_at(Due, Last, Begins) of
        Sent when is_integer(Sent), Sent < Ends ->
            {Outcome, Next} = erlmcp_bench_requests:call(Request + 1, Connection),
            Done = now_ns(),
            Kind = kind(Outcome),
            ok = recorded(Kind, Due, Sent, Done, Plan),
            sends(Request + Workers, Next, {one_more(Kind, Counts), Done}, Plan);
        _ ->
            ok = erlmcp_bench_requests:close(Connection),
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
due(Request, _, #{begins := Begins, per_second := PerSecond}) ->
    Begins + Request * 1_000_000 div PerSecond * 1_000.

sent_at(Due, Now, _) when Now >= Due ->
    %% Whom it is for has ended.
    receive {'DOWN', _, process, _, _} -> exit(normal) after 0 -> Now end;
sent_at(Due, Now, Begins) when Due - Now < ?MILLISECOND ->
    true = erlang:yield(),
    sent_at(Due, now_ns(), Begins);
sent_at(Due, _, Begins) ->
    %% The last whole one before: monotonic times are negative.
    Milliseconds = Begins div ?MILLISECOND + (Due - Begins) div ?MILLISECOND,
    Timer = erlang:start_timer(Milliseconds, self(), due, [{abs, true}]),
    receive
        {timeout, Timer, due} -> sent_at(Due, now_ns(), Begins);
        {'DOWN', _, process, _, _} -> exit(normal)
    end.

recorded(answered, Due, Sent, Done, #{histograms := Histograms, answered := Answered}) ->
    ok = counters:add(Answered, 1, 1),
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

us(Nanoseconds) -> Nanoseconds div 1_000.

now_ns() -> erlang:monotonic_time(nanosecond).
