-module(erlmcp_bench_operations).
-moduledoc """
Runs an operation many times, in several processes at once, and measures the time of each. The
processes have the heap of a busy connection of a server (`m:erlmcp_heap`).

All processes do unmeasured operations first. The cost of reading the clock is subtracted from each
time. The throughput includes it, and the cost of keeping the times.
""".

-export([run/1]).

-export_type([plan/0, measured/0]).

-doc """
The plan of a run.

- `prepare` gets the number of its process and returns the first state. `operation` takes a state
  and returns the next one. `finish` takes the last state. All three run in the process itself. An
  operation with a wrong result crashes.
- `operations` is the number of operations of all processes together. `most_ms` may end them
  earlier.
- `on_part` is called from time to time with the completed share, from 0 to 1.
""".
-type plan() :: #{
    workers := pos_integer(), operations := pos_integer(),
    prepare := fun((Number :: pos_integer()) -> State :: term()),
    operation := fun((State :: term()) -> State :: term()),
    finish => fun((State :: term()) -> term()),
    most_ms => pos_integer() | infinity,
    on_part => fun((float()) -> term())
}.
-doc """
The number of operations, their times in nanoseconds (`histogram`), and the time from the signal to
begin until the last process was done (`duration_ns`). Each process has subtracted its own cost of
the clock from the times of its operations. `timer_ns` is the median of these costs.
""".
-type measured() :: #{
    operations := pos_integer(), duration_ns := pos_integer(), timer_ns := non_neg_integer(),
    histogram := erlmcp_bench_histogram:histogram()
}.

%% Milliseconds of unmeasured operations, and operations of a process between two checks for their
%% end. The measured operations follow without a pause: a sleeping scheduler takes milliseconds to
%% wake and to get its share of the processes, which is the time of thousands of operations.
-define(WARM_MS, 50).
-define(WARM, 16).
%% The most times that a process keeps before they go into the histogram.
-define(KEPT, 131_072).
%% Readings whose median is the cost of the clock.
-define(READINGS, 1_001).
%% Operations between two progress counts, and milliseconds between two readings of the progress.
-define(COUNTED, 64).
-define(LOOK, 100).

-doc """
Runs the operations of a plan and returns their times. If one of them crashes, the error has the
reason, and all processes are killed.
""".
-spec run(plan()) -> {ok, measured()} | {error, {operation_failed, Reason :: term()}}.
run(#{workers := Workers, operations := Operations} = Plan) ->
    Histogram = erlmcp_bench_histogram:new(),
    Done = counters:new(1, [write_concurrency]),
    To = {Histogram, Done},
    Started = maps:from_list([started(Number, share(Number, Workers, Operations), To, Plan)
                              || Number <- lists:seq(1, min(Workers, Operations))]),
    maybe
        {ok, Timers} ?= answers(Started, fun() -> ok end),
        receive after ?WARM_MS -> ok end,
        Begin = erlang:monotonic_time(nanosecond),
        ok = tell(go, Started),
        {ok, Counted} ?= answers(Started, fun() -> part(Done, Plan) end),
        ok = tell(finish, Started),
        ok ?= ended(maps:to_list(Started)),
        {ok, #{operations => lists:sum([Count || {Count, _} <- Counted]),
               duration_ns => lists:max([End || {_, End} <- Counted]) - Begin,
               timer_ns => lists:nth((length(Timers) + 1) div 2, lists:sort(Timers)),
               histogram => Histogram}}
    else
        {error, Reason} ->
            ok = kill(Started),
            {error, {operation_failed, Reason}}
    end.

share(Number, Workers, Operations) ->
    Operations div Workers
        + case Number =< Operations rem Workers of
              true -> 1;
              false -> 0
          end.

started(Number, Share, To, Plan) ->
    Caller = self(),
    spawn_monitor(fun() ->
        ok = erlmcp_heap:busy_connection(true),
        %% The worker ends with the calling process.
        Watched = monitor(process, Caller),
        worker(Number, Share, To, Plan, {Caller, Watched})
    end).

%% The next message of each process, in any order.
answers(Started, Look) ->
    answers(maps:size(Started), Started, Look, []).

answers(0, _, _, Answers) ->
    {ok, Answers};
answers(More, Started, Look, Answers) ->
    receive
        {?MODULE, Worker, Answer} when is_map_key(Worker, Started) ->
            answers(More - 1, Started, Look, [Answer | Answers]);
        {'DOWN', Monitor, process, Pid, Reason} when map_get(Pid, Started) =:= Monitor ->
            {error, Reason}
    after ?LOOK ->
        _ = Look(),
        answers(More, Started, Look, Answers)
    end.

part(Done, #{operations := Operations, on_part := OnPart}) ->
    OnPart(min(1.0, counters:get(Done, 1) / Operations));
part(_, _) ->
    ok.

tell(What, Started) ->
    maps:foreach(fun(Pid, _) -> Pid ! {?MODULE, What} end, Started).

ended([]) ->
    ok;
ended([{Pid, Monitor} | Workers]) ->
    receive
        {'DOWN', Monitor, process, Pid, normal} -> ended(Workers);
        {'DOWN', Monitor, process, Pid, Reason} -> {error, Reason}
    end.

kill(Started) ->
    maps:foreach(fun(Pid, Monitor) ->
        true = demonitor(Monitor, [flush]),
        Gone = monitor(process, Pid),
        true = exit(Pid, kill),
        receive {'DOWN', Gone, process, Pid, _} -> ok end
    end, Started),
    flush(Started).

%% Removes the messages of killed processes.
flush(Started) ->
    receive
        {?MODULE, Worker, _} when is_map_key(Worker, Started) -> flush(Started)
    after 0 -> ok
    end.

%% Functions of a worker.

worker(Number, Share, To, #{prepare := Prepare, operation := Operation} = Plan, Caller) ->
    Timer = timer_ns(),
    First = Prepare(Number),
    ok = answer(Timer, Caller),
    Warm = warmed(?WARM, Operation, First, Caller),
    Deadline = case maps:get(most_ms, Plan, infinity) of
        infinity -> infinity;
        Milliseconds -> erlang:monotonic_time(nanosecond) + Milliseconds * 1_000_000
    end,
    Times = atomics:new(min(Share, ?KEPT), []),
    {More, Kept, End, Last} = measured(Share, 0, Warm, {Operation, Timer, Deadline, Times, To}),
    ok = answer({Share - More, End}, Caller),
    %% The worker must not work while others are still measured.
    ok = await_message(finish, Caller),
    ok = recorded(Kept, Times, To),
    Finish = maps:get(finish, Plan, fun(_) -> ok end),
    Finish(Last).

answer(Answer, {Caller, _}) ->
    Caller ! {?MODULE, self(), Answer},
    ok.

await_message(What, {_, Watched}) ->
    receive
        {?MODULE, What} -> ok;
        {'DOWN', Watched, process, _, _} -> exit(normal)
    end.

warmed(0, Operation, State, {_, Watched} = Caller) ->
    receive
        {?MODULE, go} -> State;
        {'DOWN', Watched, process, _, _} -> exit(normal)
    after 0 ->
        warmed(?WARM, Operation, State, Caller)
    end;
warmed(More, Operation, State, Caller) ->
    warmed(More - 1, Operation, Operation(State), Caller).

timer_ns() ->
    Readings = [begin
                    Begin = erlang:monotonic_time(nanosecond),
                    erlang:monotonic_time(nanosecond) - Begin
                end || _ <- lists:seq(1, ?READINGS)],
    lists:nth((?READINGS + 1) div 2, lists:sort(Readings)).

measured(More, ?KEPT, State, {_, _, _, Times, To} = With) ->
    ok = recorded(?KEPT, Times, To),
    measured(More, 0, State, With);
measured(More, Kept, State, {Operation, Timer, Deadline, Times, {_, Done}} = With) ->
    Begin = erlang:monotonic_time(nanosecond),
    Next = Operation(State),
    End = erlang:monotonic_time(nanosecond),
    ok = atomics:put(Times, Kept + 1, max(1, End - Begin - Timer)),
    _ = More rem ?COUNTED =:= 0 andalso counters:add(Done, 1, ?COUNTED),
    %% `infinity`, an atom, is greater than any number.
    case More > 1 andalso End < Deadline of
        true -> measured(More - 1, Kept + 1, Next, With);
        false -> {More - 1, Kept + 1, End, Next}
    end.

recorded(0, _, _) ->
    ok;
recorded(Kept, Times, {Histogram, _} = To) ->
    ok = erlmcp_bench_histogram:record(Histogram, atomics:get(Times, Kept)),
    recorded(Kept - 1, Times, To).
