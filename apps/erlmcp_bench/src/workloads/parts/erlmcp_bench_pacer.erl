-module(erlmcp_bench_pacer).
-moduledoc """
Wakes the workers of an open load (`m:erlmcp_bench_open_load`) when their requests are due. Request
N is due N / `per_second` seconds after the beginning, and its number selects the worker. Only
waiting workers are woken: a late worker gets no message.
""".

%% Timers have whole milliseconds, in which many requests may be due, so a process must read the
%% clock. If all workers did so, each would be late by the turns of all others. So a pacer does it
%% for them. It sleeps until the millisecond in which a request is due, and then yields to other
%% processes until the time has come. From 1,000 requests a second on there are two pacers that do
%% the same work: a delay of one of them does no harm.
%%
%% A waiting worker stores the number of its request in an atomic of its own. Either a pacer takes
%% it and wakes the worker, or the worker takes it back after reading the clock once more. A worker
%% is woken slightly early, and yields until its time.

-export([new/1, due/2, start/3, await/3]).

-export_type([schedule/0, pacer/0]).

-doc """
A schedule. `begins` is the time when the first request is due, and `ends` the end of the schedule,
both in monotonic nanoseconds.
""".
-type schedule() :: #{begins := integer(), ends := integer(), per_second := pos_integer(),
                      workers := pos_integer(), atom() => term()}.
-opaque pacer() :: atomics:atomics_ref().

-define(MILLISECOND, 1_000_000).
%% The rate, in requests a second, from which on there are two pacers.
-define(MANY, 1_000).
%% How many nanoseconds early a worker is woken. A worker with at most twice that time does not
%% wait: the pacers may already have passed it.
-define(AHEAD, 20_000).
%% The value of an atomic whose worker does not wait.
-define(AWAKE, -1).

-doc "Returns a pacer for `Workers` workers, none of which waits.".
-spec new(Workers :: pos_integer()) -> pacer().
new(Workers) ->
    Words = atomics:new(Workers, []),
    ok = lists:foreach(fun(Word) -> atomics:put(Words, Word, ?AWAKE) end, lists:seq(1, Workers)),
    Words.

-doc "Returns when the request number `Request`, counted from 0, is due, in monotonic nanoseconds.".
-spec due(Request :: non_neg_integer(), schedule()) -> integer().
due(Request, #{begins := Begins, per_second := PerSecond}) when is_integer(Begins) ->
    Begins + Request * 1_000_000 div PerSecond * 1_000.

-doc """
Starts the processes that wake `Workers`, which are listed in the order of their numbers. Returns
the started processes, each with its monitor. Each of them ends at the end of the schedule, with the
reason `{outcome, paced}`, or with the calling process.
""".
-spec start(Workers :: [pid()], schedule(), pacer()) -> [{pid(), reference()}].
start(Workers, Schedule, Words) ->
    Pids = list_to_tuple(Workers),
    Caller = self(),
    [erlmcp_one_shot:start(fun() ->
        _ = monitor(process, Caller),
        paces(0, Pids, Schedule, Words)
    end, []) || _ <- lists:seq(1, pacers(Schedule))].

pacers(#{per_second := PerSecond}) when PerSecond >= ?MANY -> 2;
pacers(_) -> 1.

paces(Request, Pids, #{ends := Ends} = Schedule, Words) ->
    case due(Request, Schedule) of
        Due when Due < Ends ->
            ok = until(Due - ?AHEAD, Schedule),
            ok = wake(Request, Pids, Words),
            paces(Request + 1, Pids, Schedule, Words);
        _ ->
            paced
    end.

until(Time, Schedule) ->
    case now_ns() of
        Now when Now >= Time ->
            receive {'DOWN', _, process, _, _} -> exit(normal) after 0 -> ok end;
        Now when Time - Now < ?MILLISECOND ->
            true = erlang:yield(),
            until(Time, Schedule);
        _ ->
            sleep_until(Time, Schedule)
    end.

sleep_until(Time, #{begins := Begins} = Schedule) ->
    %% Rounds down to a whole millisecond: monotonic times are negative.
    Milliseconds = Begins div ?MILLISECOND + (Time - Begins) div ?MILLISECOND,
    Timer = erlang:start_timer(Milliseconds, self(), due, [{abs, true}]),
    receive
        {timeout, Timer, due} -> until(Time, Schedule);
        {'DOWN', _, process, _, _} -> exit(normal)
    end.

wake(Request, Pids, Words) ->
    Word = word(Request, tuple_size(Pids)),
    case atomics:compare_exchange(Words, Word, Request, ?AWAKE) of
        ok ->
            element(Word, Pids) ! {due, Request},
            ok;
        _ ->
            ok
    end.

word(Request, Workers) -> Request rem Workers + 1.

-doc """
Waits in a worker until `Request` is due. Returns the monotonic time in nanoseconds, or `over` if a
process that the worker monitors has ended.
""".
-spec await(Request :: non_neg_integer(), schedule(), pacer()) -> Now :: integer() | over.
await(Request, #{workers := Workers} = Schedule, Words) ->
    Word = word(Request, Workers),
    Due = due(Request, Schedule),
    ok = atomics:put(Words, Word, Request),
    case Due - now_ns() =< 2 * ?AHEAD
        andalso atomics:compare_exchange(Words, Word, Request, ?AWAKE) of
        ok -> give_way(Due);
        _ -> await_wake(Request, Due)
    end.

await_wake(Request, Due) ->
    receive
        {due, Request} -> give_way(Due);
        {'DOWN', _, process, _, _} -> over
    end.

give_way(Due) ->
    case now_ns() of
        Now when Now >= Due ->
            Now;
        _ ->
            true = erlang:yield(),
            give_way(Due)
    end.

now_ns() -> erlang:monotonic_time(nanosecond).
