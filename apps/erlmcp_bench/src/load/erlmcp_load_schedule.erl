-module(erlmcp_load_schedule).
-moduledoc """
Says when the requests of an open loop are due. All groups share one sequence of times, and take the
next one when a connection is free. A request keeps its due time, however late it is sent.

Times are in monotonic microseconds. Due times are whole milliseconds, because the emulator's timers
have that resolution.
""".

-export([new/2, set_rate/3, begins/2, begins/3, next/1, fold_remaining/4, start_timer/2]).

-export_type([schedule/0, arrivals/0]).

-doc """
The distances between requests. With `poisson` they are exponentially distributed, like those of
many independent callers. With `even` they are equal.
""".
-type arrivals() :: poisson | even.

-record(schedule, {
    arrivals :: arrivals(),
    %% When the schedule began, the time from there to the last request that was taken, the mean
    %% distance, and the number of changes of the rate. Then two cells for each of the last changes:
    %% its time, and the mean distance before it. Times and distances are in picoseconds, except the
    %% first.
    cells :: atomics:atomics_ref()
}).

-opaque schedule() :: #schedule{}.

-define(BEGUN, 1).
-define(LAST, 2).
-define(DISTANCE, 3).
-define(CHANGES, 4).
-define(KEPT_CHANGES, 1_000).
-define(SECOND_PS, 1_000_000_000_000).
-define(MILLISECOND_PS, 1_000_000_000).
%% 53 days: no mean distance is longer, and no request is due later. The cells have room for twice
%% that time.
-define(FAR_PS, (1 bsl 62)).
%% The most requests that `fold_remaining/4` takes.
-define(MOST, 100_000_000).

-doc """
Creates a schedule of `Rate` requests a second, at equal or random distances. The distances of a
very low rate are 53 days.
""".
-spec new(Rate :: number(), arrivals()) -> schedule().
new(Rate, Arrivals) ->
    Cells = atomics:new(?CHANGES + 2 * ?KEPT_CHANGES, [{signed, true}]),
    ok = atomics:put(Cells, ?DISTANCE, distance(Rate)),
    #schedule{arrivals = Arrivals, cells = Cells}.

distance(Rate) when Rate > ?SECOND_PS / ?FAR_PS -> max(1, round(?SECOND_PS / Rate));
distance(_) -> ?FAR_PS.

-doc """
Changes the rate to `Rate` requests a second from `Now` on, in monotonic microseconds. Requests that
were due before `Now` keep their times. A later time that was already taken is void: the group that
took it must take another one. Only one process may change the rate.
""".
-spec set_rate(Rate :: number(), Now :: integer(), schedule()) -> ok.
set_rate(Rate, Now, #schedule{cells = Cells}) ->
    Passed = max(0, (Now - atomics:get(Cells, ?BEGUN)) * 1_000_000),
    Change = atomics:get(Cells, ?CHANGES) + 1,
    ok = atomics:put(Cells, time_of(Change), Passed),
    ok = atomics:put(Cells, time_of(Change) + 1, atomics:get(Cells, ?DISTANCE)),
    ok = atomics:put(Cells, ?CHANGES, Change),
    ok = atomics:put(Cells, ?DISTANCE, distance(Rate)),
    back(Passed, atomics:get(Cells, ?LAST), Cells).

time_of(Change) ->
    ?CHANGES + 1 + 2 * (Change rem ?KEPT_CHANGES).

back(Passed, Last, _) when Last =< Passed ->
    ok;
back(Passed, Last, Cells) ->
    case atomics:compare_exchange(Cells, ?LAST, Last, Passed) of
        ok -> ok;
        Other -> back(Passed, Other, Cells)
    end.

-doc """
Sets the time `Us` at which the schedule begins, in monotonic microseconds, and keeps the rate. No
request may be taken (`next/1`) before this call.
""".
-spec begins(Us :: integer(), schedule()) -> ok.
begins(Us, #schedule{cells = Cells}) ->
    ok = atomics:put(Cells, ?BEGUN, Us div 1000 * 1000),
    ok = atomics:put(Cells, ?CHANGES, 0),
    atomics:put(Cells, ?LAST, 0).

-doc """
Sets the rate to `Rate` requests a second, and the time `Us` at which the schedule begins, in
monotonic microseconds. No request may be taken (`next/1`) before this call.
""".
-spec begins(Rate :: number(), Us :: integer(), schedule()) -> ok.
begins(Rate, Us, #schedule{cells = Cells} = Schedule) ->
    ok = atomics:put(Cells, ?DISTANCE, distance(Rate)),
    begins(Us, Schedule).

-doc "Takes the next request, and returns when it is, or was, due, in monotonic microseconds.".
-spec next(schedule()) -> Us :: integer().
next(#schedule{arrivals = even, cells = Cells}) ->
    next(1, Cells);
next(#schedule{arrivals = poisson, cells = Cells}) ->
    next(-math:log(1 - rand:uniform()), Cells).

%% `Means` is how many mean distances lie between the last request and the next one. If the rate
%% changes between them, the rest of the way is one of the new distances.
next(Means, Cells) ->
    Last = atomics:get(Cells, ?LAST),
    {Mean, Until} = period(Last, Cells),
    Due = min(?FAR_PS, Last + round(Means * Mean)),
    case atomics:compare_exchange(Cells, ?LAST, Last, min(Due, Until)) of
        ok when Due =< Until ->
            atomics:get(Cells, ?BEGUN) + (Due + ?MILLISECOND_PS - 1) div ?MILLISECOND_PS * 1000;
        ok ->
            next(Means - (Until - Last) / Mean, Cells);
        _ ->
            next(Means, Cells)
    end.

%% The mean distance after `Last`, and the time until which it holds.
period(Last, Cells) ->
    Changes = atomics:get(Cells, ?CHANGES),
    Period = {atomics:get(Cells, ?DISTANCE), infinity},
    period(Last, Changes, max(0, Changes - ?KEPT_CHANGES), Period, Cells).

period(_, Oldest, Oldest, Period, _) ->
    Period;
period(Last, Change, Oldest, Period, Cells) ->
    case atomics:get(Cells, time_of(Change)) of
        Until when Until > Last ->
            Before = {atomics:get(Cells, time_of(Change) + 1), Until},
            period(Last, Change - 1, Oldest, Before, Cells);
        _ ->
            Period
    end.

-doc """
Takes the requests that are due before `Until`, in monotonic microseconds, at most 100 million of
them. Folds `Fun` over their due times, beginning with the value `Start`, and returns the last
value. The call also takes the first request that is due at `Until` or later, and drops it.
""".
-spec fold_remaining(Fun :: fun((DueUs :: integer(), Value) -> Value), Start :: Value,
                     Until :: integer(), schedule()) -> Value.
fold_remaining(Fun, Start, Until, Schedule) ->
    fold_remaining(Fun, Start, Until, Schedule, ?MOST).

fold_remaining(_, Value, _, _, 0) ->
    Value;
fold_remaining(Fun, Value, Until, Schedule, More) ->
    case next(Schedule) of
        Due when Due < Until -> fold_remaining(Fun, Fun(Due, Value), Until, Schedule, More - 1);
        _ -> Value
    end.

-doc """
Starts a timer. The calling process gets `{timeout, Timer, Message}` at the time `Us`, in monotonic
microseconds, and never earlier.
""".
-spec start_timer(Us :: integer(), Message) -> Timer :: reference() when Message :: term().
start_timer(Us, Message) ->
    %% Rounds up to a whole millisecond. Monotonic times are negative, and `div` rounds towards
    %% zero.
    Milliseconds = -erlang:convert_time_unit(-Us, microsecond, millisecond),
    erlang:start_timer(Milliseconds, self(), Message, [{abs, true}]).
