-module(erlmcp_bench_operations).
-moduledoc """
Runs an operation many times, in some processes at once, and takes the time of each.

The clock is read before and after each operation; what two readings cost is measured first, and is
taken off each time. The times are kept, in nanoseconds, and go into a histogram when there is no
room for more. What it costs to keep them and to read the clock is in the throughput: `erlmcp bench
core_ops` says how much it is, by an operation that does nothing. The histogram is made afterwards,
as long as each process has no more than 131,072 operations.

All processes do the operation for a while before the measured ones, and go on with those without a
pause: a scheduler that slept takes milliseconds to be woken and to get its share of the processes,
which is as long as some thousand operations last. The processes have the heap of a server's
connection that has much to do (`m:erlmcp_heap`).
""".

-export([run/1]).

-export_type([plan/0, measured/0]).

-doc """
- `prepare` gives each process, by its number, what its operations begin with; `operation` is given
  that, and gives what the next one is given; `finish` is given the last one. All three run in the
  process itself. An operation that finds its own result wrong crashes.
- `operations` are those of all processes together; `most_ms` ends them before, if that is over.
- `on_part` is called now and then with how much of it is done, from 0 to 1.
""".
-type plan() :: #{
    workers := pos_integer(), operations := pos_integer(),
    prepare := fun((Number :: pos_integer()) -> State :: term()),
    operation := fun((State :: term()) -> State :: term()),
    finish => fun((State :: term()) -> term()),
    most_ms => pos_integer() | infinity,
    on_part => fun((float()) -> term())
}.
-doc "How many there were, how long they took together, and each; `timer_ns` was taken off each.".
-type measured() :: #{
    operations := pos_integer(), duration_ns := pos_integer(), timer_ns := non_neg_integer(),
    histogram := erlmcp_bench_histogram:histogram()
}.

%% Milliseconds of operations before the measured ones, when all processes do them, and operations
%% of each between two looks whether they are over.
-define(WARM_MS, 50).
-define(WARM, 16).
%% Times that a process keeps before they go into the histogram.
-define(KEPT, 131_072).
%% Readings of which the middle one is what the clock costs.
-define(READINGS, 1_001).
%% Operations between two looks of those who watch, and milliseconds between two looks of theirs.
-define(TOLD, 64).
-define(LOOK, 100).

-doc "Runs them, or says how one of them ended.".
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
        %% It ends with who wants it.
        Watched = monitor(process, Caller),
        worker(Number, Share, To, Plan, {Caller, Watched})
    end).

%% What each process says next, in no order.
answers(Started, Look) ->
    answers(maps:size(Started), Started, Look, []).

answers(0, _, _, Answers) ->
    {ok, Answers};
answers(Left, Started, Look, Answers) ->
    receive
        {?MODULE, Worker, Answer} when is_map_key(Worker, Started) ->
            answers(Left - 1, Started, Look, [Answer | Answers]);
        {'DOWN', Monitor, process, Pid, Reason} when map_get(Pid, Started) =:= Monitor ->
            {error, Reason}
    after ?LOOK ->
        _ = Look(),
        answers(Left, Started, Look, Answers)
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

%% What those said that were killed.
flush(Started) ->
    receive
        {?MODULE, Worker, _} when is_map_key(Worker, Started) -> flush(Started)
    after 0 -> ok
    end.

%% In the process.

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
    {Left, Kept, End, Last} = measured(Share, 0, Warm, {Operation, Timer, Deadline, Times, To}),
    ok = answer({Share - Left, End}, Caller),
    %% Not while others are still measured.
    ok = told(finish, Caller),
    ok = recorded(Kept, Times, To),
    Finish = maps:get(finish, Plan, fun(_) -> ok end),
    Finish(Last).

answer(Answer, {Caller, _}) ->
    Caller ! {?MODULE, self(), Answer},
    ok.

told(What, {_, Watched}) ->
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
warmed(Left, Operation, State, Caller) ->
    warmed(Left - 1, Operation, Operation(State), Caller).

timer_ns() ->
    Readings = [begin
                    Begin = erlang:monotonic_time(nanosecond),
                    erlang:monotonic_time(nanosecond) - Begin
                end || _ <- lists:seq(1, ?READINGS)],
    lists:nth((?READINGS + 1) div 2, lists:sort(Readings)).

measured(Left, ?KEPT, State, {_, _, _, Times, To} = With) ->
    ok = recorded(?KEPT, Times, To),
    measured(Left, 0, State, With);
measured(Left, Kept, State, {Operation, Timer, Deadline, Times, {_, Done}} = With) ->
    Begin = erlang:monotonic_time(nanosecond),
    Next = Operation(State),
    End = erlang:monotonic_time(nanosecond),
    ok = atomics:put(Times, Kept + 1, max(1, End - Begin - Timer)),
    _ = Left rem ?TOLD =:= 0 andalso counters:add(Done, 1, ?TOLD),
    %% An atom is more than every number.
    case Left > 1 andalso End < Deadline of
        true -> measured(Left - 1, Kept + 1, Next, With);
        false -> {Left - 1, Kept + 1, End, Next}
    end.

recorded(0, _, _) ->
    ok;
recorded(Kept, Times, {Histogram, _} = To) ->
    ok = erlmcp_bench_histogram:record(Histogram, atomics:get(Times, Kept)),
    recorded(Kept - 1, Times, To).
