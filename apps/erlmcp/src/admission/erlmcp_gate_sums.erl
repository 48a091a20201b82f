-module(erlmcp_gate_sums).
-moduledoc """
What happened at a gate, added up: how long requests waited for a scheduler when they had their
place, what work they were, and how many found none. All may add; what is read may be of moments
that differ a little.
""".

-export([new/0, started/2, waits/1, worked/2, work/1, found_none/1, pressed/1]).

-export_type([sums/0]).

-opaque sums() :: counters:counters_ref().

-define(STARTED, 1).
-define(WAITED, 2).
-define(FOUND_NONE, 3).
-define(DONE, 4).
-define(WORKED, 5).

-doc "Nothing has happened.".
-spec new() -> sums().
new() ->
    counters:new(5, [write_concurrency]).

-doc "A request has come to its call's process so many nanoseconds after it had its place.".
-spec started(Nanoseconds :: integer(), sums()) -> ok.
started(Nanoseconds, Sums) ->
    ok = counters:add(Sums, ?STARTED, 1),
    counters:add(Sums, ?WAITED, Nanoseconds).

-doc "How many have, and after how many nanoseconds together.".
-spec waits(sums()) -> {Count :: non_neg_integer(), Nanoseconds :: non_neg_integer()}.
waits(Sums) ->
    {counters:get(Sums, ?STARTED), counters:get(Sums, ?WAITED)}.

-doc "A request's process has used so many reductions, when it is over.".
-spec worked(Reductions :: non_neg_integer(), sums()) -> ok.
worked(Reductions, Sums) ->
    ok = counters:add(Sums, ?DONE, 1),
    counters:add(Sums, ?WORKED, Reductions).

-doc "How many have been told of, and how many reductions they used together.".
-spec work(sums()) -> {Count :: non_neg_integer(), Reductions :: non_neg_integer()}.
work(Sums) ->
    {counters:get(Sums, ?DONE), counters:get(Sums, ?WORKED)}.

-doc "A request found no place in flight.".
-spec found_none(sums()) -> ok.
found_none(Sums) ->
    counters:add(Sums, ?FOUND_NONE, 1).

-doc "How many have found none.".
-spec pressed(sums()) -> non_neg_integer().
pressed(Sums) ->
    counters:get(Sums, ?FOUND_NONE).
