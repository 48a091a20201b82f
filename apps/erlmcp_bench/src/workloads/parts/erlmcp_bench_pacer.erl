-module(erlmcp_bench_pacer).
-moduledoc """
Wakes the workers of an open load (`m:erlmcp_bench_open_load`) when their requests are due. Request
N is due N / `per_second` seconds after the beginning, and belongs to one of the workers by its
number.

Timers have whole milliseconds, in each of which many requests may be due, and so somebody has to
look at the clock. If all workers did, each would look when all others had, and be late by that. So
a process does it for them, which sleeps until the millisecond and then gives way to others, again
and again, until the time has come. Where requests are due in each millisecond there are two, of
which each looks for all: what holds up one of them holds up nobody.

A worker that waits says for which request in a word of its own. Whoever takes that away goes on
with the request: a pacer, which tells the worker, or the worker itself, which looks at the clock
once more when it has written its word. So a worker is told when it waits and not else: who is late
sends at once, and finds nothing in its mailbox. It is told a moment before its time, and gives way
to others until that has come.
""".

-export([new/1, due/2, start/3, await/3]).

-export_type([schedule/0, pacer/0]).

-doc "When the first request is due, and when none is any more, in monotonic nanoseconds.".
-type schedule() :: #{begins := integer(), ends := integer(), per_second := pos_integer(),
                      workers := pos_integer(), atom() => term()}.
-opaque pacer() :: atomics:atomics_ref().

-define(MILLISECOND, 1_000_000).
%% Requests in a second from which on there are two pacers.
-define(MANY, 1_000).
%% Nanoseconds before its time when a worker is told. One that has no more than twice as many left
%% does not wait to be told: the pacers may have been there.
-define(AHEAD, 20_000).
%% In a word: its worker does not wait.
-define(AWAKE, -1).

-doc "A pacer of so many workers, none of which waits.".
-spec new(Workers :: pos_integer()) -> pacer().
new(Workers) ->
    Words = atomics:new(Workers, []),
    ok = lists:foreach(fun(Word) -> atomics:put(Words, Word, ?AWAKE) end, lists:seq(1, Workers)),
    Words.

-doc "When a request is due, in monotonic nanoseconds.".
-spec due(Request :: non_neg_integer(), schedule()) -> integer().
due(Request, #{begins := Begins, per_second := PerSecond}) when is_integer(Begins) ->
    Begins + Request * 1_000_000 div PerSecond * 1_000.

-doc """
Starts the processes that look at the clock for these workers, which are in the order of their
numbers. They end with the schedule (`{outcome, paced}`), and with the calling process.
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
    %% The last whole one before: monotonic times are negative.
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
In a worker: waits until its request is due. Gives the time, or `over` where a process that the
worker watches has ended.
""".
-spec await(Request :: non_neg_integer(), schedule(), pacer()) -> Now :: integer() | over.
await(Request, #{workers := Workers} = Schedule, Words) ->
    Word = word(Request, Workers),
    Due = due(Request, Schedule),
    ok = atomics:put(Words, Word, Request),
    case Due - now_ns() =< 2 * ?AHEAD
        andalso atomics:compare_exchange(Words, Word, Request, ?AWAKE) of
        ok -> give_way(Due);
        _ -> told(Request, Due)
    end.

told(Request, Due) ->
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
