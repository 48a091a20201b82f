-module(erlmcp_bench_recovery).
-moduledoc """
Counts a load's requests that end after its server has failed: those of each millisecond, for a
minute. The counts show the errors, and when the load was served as before. Any number of processes
can count at once.

The load has recovered when a hundred requests in a row are answered, and their 99th percentile is
at most 1.2 times the earlier one. No later request may lack a right answer. The time of the
recovery is that of the first of these hundred.
""".

-export([new/0, failed/2, seen/1, ended/5, figures/1]).

-export_type([recovery/0, figures/0]).

-record(recovery, {
    times :: atomics:atomics_ref(),
    %% of each millisecond, in the order of `column/3`
    counts :: counters:counters_ref()
}).

-opaque recovery() :: #recovery{}.

-doc """
The figures. Of the requests that ended within a minute after the failure, `errors` had no right
answer, and `unanswered` of these had none at all. Times begin with the failure. `first_good_ms` is
the time of the first right answer to a request that was sent once the failure was seen.
`recovery_ms` is the time at which the load had recovered. A time is missing if its event did not
happen.
""".
-type figures() :: #{
    errors := non_neg_integer(), unanswered := non_neg_integer(),
    first_good_ms => float(), recovery_ms => pos_integer()
}.

%% Indexes of the times, in monotonic nanoseconds, and of the longest quick latency.
-define(FAILED, 1).
-define(SEEN, 2).
-define(GOOD, 3).
-define(QUICK_US, 4).
%% A time that has not come.
-define(NEVER, (1 bsl 59 - 1)).

-define(COUNTED_MS, 60_000).
-define(COLUMNS, 4).

%% Answers that show the load recovered, and how many of a hundred may be slow.
-define(ANSWERS, 100).
-define(SLOW, 1).
-define(FACTOR, 1.2).

-doc "Returns counters for a load whose server has not failed yet.".
-spec new() -> recovery().
new() ->
    Times = atomics:new(4, []),
    ok = lists:foreach(fun(Time) -> atomics:put(Times, Time, ?NEVER) end,
                       [?FAILED, ?SEEN, ?GOOD]),
    #recovery{times = Times, counts = counters:new(?COLUMNS * ?COUNTED_MS, [])}.

-doc """
Marks that the server fails now, and returns the time in monotonic nanoseconds. `EarlierUs` is the
99th percentile of the latencies until now, in microseconds.
""".
-spec failed(EarlierUs :: non_neg_integer(), recovery()) -> AtNs :: integer().
failed(EarlierUs, #recovery{times = Times}) ->
    ok = atomics:put(Times, ?QUICK_US, floor(?FACTOR * EarlierUs)),
    At = erlang:monotonic_time(nanosecond),
    ok = atomics:put(Times, ?FAILED, At),
    At.

-doc "Marks now as the time at which the failure was seen.".
-spec seen(recovery()) -> ok.
seen(#recovery{times = Times}) ->
    atomics:put(Times, ?SEEN, erlang:monotonic_time(nanosecond)).

-doc """
Counts a request with its latency `Us`, in microseconds. It was sent at `SentNs` and ended at
`DoneNs`, in monotonic nanoseconds. A request that ended before the failure does not count. One that
ended a minute or more after the failure counts only if it has the first right answer.
""".
-spec ended(Outcome :: answered | timeout | no_server | wrong | {refused, integer()},
            Us :: integer(), SentNs :: integer(), DoneNs :: integer(), recovery()) -> ok.
ended(Outcome, Us, SentNs, DoneNs, #recovery{times = Times, counts = Counts}) ->
    case atomics:get(Times, ?FAILED) of
        Failed when DoneNs < Failed ->
            ok;
        Failed ->
            ok = good(Outcome, SentNs, DoneNs, Times),
            count((DoneNs - Failed) div 1_000_000, column(Outcome, Us, Times), Counts)
    end.

good(answered, SentNs, DoneNs, Times) ->
    _ = atomics:get(Times, ?GOOD) =:= ?NEVER andalso SentNs >= atomics:get(Times, ?SEEN)
        andalso atomics:compare_exchange(Times, ?GOOD, ?NEVER, DoneNs),
    ok;
good(_, _, _, _) ->
    ok.

column(answered, Us, Times) ->
    case atomics:get(Times, ?QUICK_US) of
        Quick when Us =< Quick -> 1;
        _ -> 2
    end;
column(Unanswered, _, _) when Unanswered =:= no_server; Unanswered =:= timeout -> 3;
column(_, _, _) -> 4.

count(Millisecond, Column, Counts) when Millisecond < ?COUNTED_MS ->
    counters:add(Counts, ?COLUMNS * Millisecond + Column, 1);
count(_, _, _) ->
    ok.

-doc """
Returns the figures of a failure, which are complete when the load has ended, or a minute after the
failure.
""".
-spec figures(recovery()) -> figures().
figures(#recovery{times = Times} = Recovery) ->
    Rows = rows(Recovery),
    Unanswered = lists:sum([Count || {_, _, _, Count, _} <- Rows]),
    Others = lists:sum([Count || {_, _, _, _, Count} <- Rows]),
    Last = lists:max([-1 | [Ms || {Ms, _, _, None, Wrong} <- Rows, None + Wrong > 0]]),
    Good = atomics:get(Times, ?GOOD),
    maps:from_list(
        [{errors, Unanswered + Others}, {unanswered, Unanswered}]
        ++ [{first_good_ms, (Good - atomics:get(Times, ?FAILED)) / 1_000_000} || Good < ?NEVER]
        %% The end of the millisecond in which the first of the answers came.
        ++ [{recovery_ms, Ms + 1} || Ms <- settled([Row || Row <- Rows, element(1, Row) > Last])]).

%% The milliseconds in which a request ended: quick, slow, unanswered and other ones.
rows(#recovery{counts = Counts}) ->
    [Row || Ms <- lists:seq(0, ?COUNTED_MS - 1),
            {_, Quick, Slow, Unanswered, Other} = Row <- [row(Ms, Counts)],
            Quick + Slow + Unanswered + Other > 0].

row(Ms, Counts) ->
    list_to_tuple([Ms | [counters:get(Counts, ?COLUMNS * Ms + Column)
                         || Column <- lists:seq(1, ?COLUMNS)]]).

settled([]) ->
    [];
settled([{Ms, _, _, _, _} | Later] = Rows) ->
    case is_settled(Rows, 0, 0) of
        true -> [Ms];
        false -> settled(Later)
    end.

is_settled(_, Answered, Slow) when Answered >= ?ANSWERS -> 100 * Slow =< ?SLOW * Answered;
is_settled([], _, _) -> false;
is_settled([{_, Quick, Slow, _, _} | Rows], Answered, SlowBefore) ->
    is_settled(Rows, Answered + Quick + Slow, SlowBefore + Slow).
