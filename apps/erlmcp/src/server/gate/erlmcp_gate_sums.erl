-module(erlmcp_gate_sums).
-moduledoc """
What happened at a gate, added up: how long requests waited for a scheduler when they had their
place, what work they were, and how many found none. All may add; what is read may be of moments
that differ a little.

Internal.
""".

-export([new/0, started/2, waits/1, between/2, worked/2, work/1, found_none/1, pressed/1]).

-export_type([sums/0, waits/0]).

-opaque sums() :: counters:counters_ref().
-doc "The waits until a moment, which say something beside those until another one.".
-type waits() :: integer().

%% How many have started, in the lower bits, and how long they waited, in units of 1,024 nanoseconds
%% above them: every request adds both, and so they are one word.
-define(STARTED, 1).
-define(COUNT_BITS, 24).
-define(UNIT_BITS, 10).
-define(WORD, (1 bsl 64)).
-define(FOUND_NONE, 2).
-define(DONE, 3).
-define(WORKED, 4).

-doc "Nothing has happened.".
-spec new() -> sums().
new() ->
    counters:new(4, [write_concurrency]).

-doc "A request has come to its call's process so many nanoseconds after it had its place.".
-spec started(Nanoseconds :: non_neg_integer(), sums()) -> ok.
started(Nanoseconds, Sums) ->
    counters:add(Sums, ?STARTED, Nanoseconds bsr ?UNIT_BITS bsl ?COUNT_BITS bor 1).

-doc "The waits until now.".
-spec waits(sums()) -> waits().
waits(Sums) ->
    counters:get(Sums, ?STARTED).

-doc """
How many requests have started between two moments, and after how many nanoseconds together. Of more
than 16,777,215 between them it says nothing.
""".
-spec between(Earlier :: waits(), Later :: waits()) ->
    {Count :: non_neg_integer(), Nanoseconds :: non_neg_integer()}.
between(Earlier, Later) ->
    %% Whatever ran over meanwhile, it did for both.
    Word = (Later - Earlier) band (?WORD - 1),
    {Word band (1 bsl ?COUNT_BITS - 1), Word bsr ?COUNT_BITS bsl ?UNIT_BITS}.

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
