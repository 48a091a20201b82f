-module(erlmcp_meter_counts).
-moduledoc """
The counters that the meters of servers and of clients have in common. A row counts requests that
belong together: their bytes, and the times of those that ended well, in fine buckets. A failure
counts the times of requests that ended with the same error, in coarse buckets
(`m:erlmcp_histogram`). Failures, and the rows of clients, take a slot when they are first needed.
`erlmcp_meter:add_result/5` counts requests that ended well.

Internal.
""".

-include("erlmcp_meter.hrl").

%% Every request passes here.
-compile({inline, [path/2]}).

-export([slots/1, slot/3, has_slot/3, close/3, release/2, rename/4, taken/1, moving/2, steady/2]).
-export([add_failure/5, add_duration/3, row/2, no_row/0, is_empty/2, failure/2]).
-export([method/1, methods/0, code/1, code_index/1]).

-export_type([row/0, slots/0, slot/0, figures/0, times/0]).

-doc "The first word of a row or a failure in the counters.".
-type row() :: pos_integer().
-doc """
The slots, each with the key that has taken it, and the numbers of moves of counts that have begun
and ended (`moving/2`).
""".
-type slots() :: atomics:atomics_ref().
-type slot() :: non_neg_integer().
-doc """
The counts of a row: its bytes, and the times of its requests that ended well. `sum` is the sum of
these times in nanoseconds, and `counts` has their counts by fine buckets (`m:erlmcp_histogram`).
""".
-type figures() :: #{
    bytes_in := non_neg_integer(), bytes_out := non_neg_integer(), sum := non_neg_integer(),
    counts := [non_neg_integer()]
}.
-doc "The sum of times in nanoseconds, and their counts by coarse buckets.".
-type times() :: {Sum :: non_neg_integer(), Counts :: [non_neg_integer()]}.

%% A row is bytes in, bytes out, nanoseconds, and the buckets. A failure has no bytes.
-define(BUCKETS, (?ROW_WORDS - 3)).
-define(COARSE_BUCKETS, (?FAILURE_WORDS - 1)).
%% The most slots that are tried for a key. Keys differ in their first slot and in their steps, so
%% most find one while a few are free. A slot that was never taken ends the search. One that was
%% released does not, since a key behind it may have been there before. No key takes a closed one.
-define(PROBES, 32).
-define(BEGUN, 1).
-define(ENDED, 2).
-define(KEY(Slot), ((Slot) + 3)).
%% The most times that counts are read for one reader.
-define(READS, 10).
-define(NEW, 0).
-define(RELEASED, 1).
-define(CLOSED, 2).
-define(METHODS, #{
    ~"tools/call" => 3, ~"tools/list" => 4, ~"prompts/get" => 5, ~"prompts/list" => 6,
    ~"resources/read" => 7, ~"resources/list" => 8, ~"resources/templates/list" => 9,
    ~"resources/subscribe" => 10, ~"resources/unsubscribe" => 11, ~"subscriptions/listen" => 12,
    ~"completion/complete" => 13, ~"logging/setLevel" => 14, ~"ping" => 15, ~"initialize" => 16,
    ~"server/discover" => 17, ~"tasks/get" => 18, ~"tasks/result" => 19, ~"tasks/list" => 20,
    ~"tasks/cancel" => 21, ~"tasks/update" => 22, ~"skills/list" => 23, ~"skills/get" => 24,
    ~"resources/directory/read" => 25
}).
-define(CODES, #{
    -32700 => 100, -32600 => 101, -32601 => 102, -32602 => 103, -32603 => 104,
    -32000 => 105, -32001 => 106, -32002 => 107, -32020 => 108, -32021 => 109, -32022 => 110,
    -32042 => 111
}).

-doc """
Creates `Size` free slots, numbered from 0. `Size` must be a power of 2, and at least 32.
""".
-spec slots(Size :: pos_integer()) -> slots().
slots(Size) ->
    atomics:new(?KEY(Size) - 1, []).

-doc """
Returns the slot of a key. `Key` must be more than 2, and `Size` must be that of `slots/1`. A key
without a slot takes a free one of the 32 slots that the key may have. Returns `full` if none of
these is free.
""".
-spec slot(Key :: pos_integer(), Size :: pos_integer(), slots()) -> slot() | full.
slot(Key, Size, Slots) ->
    {First, Step} = path(Key, Size),
    probe(?PROBES, First, Step, none, {Key, Size, Slots}).

path(Key, Size) ->
    Hash = erlang:phash2(Key, Size * Size),
    {Hash rem Size, Hash div Size bor 1}.

probe(0, _, _, none, _) ->
    full;
probe(0, _, _, Released, Of) ->
    take(Released, ?RELEASED, Of);
probe(Left, Slot, Step, Released, {Key, Size, Slots} = Of) ->
    case atomics:get(Slots, ?KEY(Slot)) of
        Key -> Slot;
        ?NEW when Released =:= none -> take(Slot, ?NEW, Of);
        ?NEW -> take(Released, ?RELEASED, Of);
        ?RELEASED when Released =:= none ->
            probe(Left - 1, (Slot + Step) rem Size, Step, Slot, Of);
        _ -> probe(Left - 1, (Slot + Step) rem Size, Step, Released, Of)
    end.

take(Slot, Free, {Key, Size, Slots}) ->
    case atomics:compare_exchange(Slots, ?KEY(Slot), Free, Key) of
        ok -> Slot;
        %% Another process was faster, with this key or another one.
        _ -> slot(Key, Size, Slots)
    end.

-doc "Returns `true` if a key has taken a slot.".
-spec has_slot(Key :: pos_integer(), Size :: pos_integer(), slots()) -> boolean().
has_slot(Key, Size, Slots) ->
    {First, Step} = path(Key, Size),
    lists:any(fun(Probe) ->
        atomics:get(Slots, ?KEY((First + Probe * Step) rem Size)) =:= Key
    end, lists:seq(0, ?PROBES - 1)).

-doc """
Closes the slot of a key, so that the calling process may empty it, and returns `true`. Returns
`false` if another process has closed or renamed the slot before.
""".
-spec close(slot(), Key :: pos_integer(), slots()) -> boolean().
close(Slot, Key, Slots) ->
    atomics:compare_exchange(Slots, ?KEY(Slot), Key, ?CLOSED) =:= ok.

-doc "Releases a slot that the calling process has closed and emptied.".
-spec release(slot(), slots()) -> ok.
release(Slot, Slots) ->
    atomics:put(Slots, ?KEY(Slot), ?RELEASED).

-doc """
Gives the slot of a key to another key, and returns `true`. Returns `false` if another process has
closed or renamed the slot before. Only `taken/1` is sure to find a renamed slot.
""".
-spec rename(slot(), Key :: pos_integer(), Other :: pos_integer(), slots()) -> boolean().
rename(Slot, Key, Other, Slots) ->
    atomics:compare_exchange(Slots, ?KEY(Slot), Key, Other) =:= ok.

-doc "Returns the slots that are taken, with their keys.".
-spec taken(slots()) -> [{slot(), Key :: pos_integer()}].
taken(Slots) ->
    #{size := Words} = atomics:info(Slots),
    [{Slot, Key} || Slot <- lists:seq(0, Words - ?KEY(0)),
                    Key <- [atomics:get(Slots, ?KEY(Slot))], Key > ?CLOSED].

-doc """
Calls `Move`, a fun that moves counts from one place to another, and returns its value. Processes
that read meanwhile with `steady/2` read again.
""".
-spec moving(slots(), Move :: fun(() -> Result)) -> Result.
moving(Slots, Move) ->
    ok = atomics:add(Slots, ?BEGUN, 1),
    try
        Move()
    after
        atomics:add(Slots, ?ENDED, 1)
    end.

-doc """
Calls `Read`, a fun that reads counts, and returns its value. If counts were moved meanwhile, `Read`
is called again. The value of the tenth call is returned in any case.
""".
-spec steady(slots(), Read :: fun(() -> Result)) -> Result.
steady(Slots, Read) ->
    steady(Slots, Read, ?READS).

steady(Slots, Read, Reads) ->
    %% The ends are read first: if both numbers are the same, nothing moves when the second is read.
    Ended = atomics:get(Slots, ?ENDED),
    Begun = atomics:get(Slots, ?BEGUN),
    Result = Read(),
    case atomics:get(Slots, ?BEGUN) of
        Begun when Begun =:= Ended -> Result;
        _ when Reads =:= 1 -> Result;
        _ -> steady(Slots, Read, Reads - 1)
    end.

-doc """
Counts a request that ended with the failure at `At` after `Nanoseconds`. The request's bytes are
counted in `Row`. If the meter has a count of all requests, the caller adds the request there.
""".
-spec add_failure(At :: row(), row(), Bytes :: {In :: non_neg_integer(), Out :: non_neg_integer()},
                  Nanoseconds :: integer(), counters:counters_ref()) -> ok.
add_failure(At, Row, {BytesIn, BytesOut}, Nanoseconds, Counters) ->
    ok = counters:add(Counters, Row, BytesIn),
    ok = counters:add(Counters, Row + 1, BytesOut),
    add_duration(At, Nanoseconds, Counters).

-doc "Adds the duration `Nanoseconds` to the sum at `At`, and counts the duration in its bucket.".
-spec add_duration(At :: row(), Nanoseconds :: integer(), counters:counters_ref()) -> ok.
add_duration(At, Nanoseconds, Counters) ->
    ok = counters:add(Counters, At, Nanoseconds),
    counters:add(Counters, At + coarse_bucket(Nanoseconds), 1).

%% The buckets of OpenTelemetry (`erlmcp_histogram:coarse_bounds/0`). The first refusal of a node on
%% stdio would wait for that module to be loaded.
coarse_bucket(Time) when Time =< 10_000_000 -> 1;
coarse_bucket(Time) when Time =< 20_000_000 -> 2;
coarse_bucket(Time) when Time =< 50_000_000 -> 3;
coarse_bucket(Time) when Time =< 100_000_000 -> 4;
coarse_bucket(Time) when Time =< 200_000_000 -> 5;
coarse_bucket(Time) when Time =< 500_000_000 -> 6;
coarse_bucket(Time) when Time =< 1_000_000_000 -> 7;
coarse_bucket(Time) when Time =< 2_000_000_000 -> 8;
coarse_bucket(Time) when Time =< 5_000_000_000 -> 9;
coarse_bucket(Time) when Time =< 10_000_000_000 -> 10;
coarse_bucket(Time) when Time =< 30_000_000_000 -> 11;
coarse_bucket(Time) when Time =< 60_000_000_000 -> 12;
coarse_bucket(Time) when Time =< 120_000_000_000 -> 13;
coarse_bucket(Time) when Time =< 300_000_000_000 -> 14;
coarse_bucket(_) -> 15.

-doc "Returns the counts of a row.".
-spec row(row(), counters:counters_ref()) -> figures().
row(Row, Counters) ->
    #{bytes_in => counters:get(Counters, Row), bytes_out => counters:get(Counters, Row + 1),
      sum => counters:get(Counters, Row + 2),
      counts => [counters:get(Counters, Row + 2 + Bucket) || Bucket <- lists:seq(1, ?BUCKETS)]}.

-doc "Returns `true` if a row has neither bytes nor a request that ended well.".
-spec is_empty(row(), counters:counters_ref()) -> boolean().
is_empty(Row, Counters) ->
    lists:all(fun(Word) -> counters:get(Counters, Row + Word) =:= 0 end, [0, 1, 2]).

-doc "Returns the counts of a row in which nothing is counted.".
-spec no_row() -> figures().
no_row() ->
    #{bytes_in => 0, bytes_out => 0, sum => 0, counts => lists:duplicate(?BUCKETS, 0)}.

-doc "Returns the times that are counted at `At`.".
-spec failure(At :: row(), counters:counters_ref()) -> times().
failure(At, Counters) ->
    {counters:get(Counters, At),
     [counters:get(Counters, At + Bucket) || Bucket <- lists:seq(1, ?COARSE_BUCKETS)]}.

-doc """
Returns the index of a method. All methods that are not MCP's share an index. `undefined`, for a
method that is not known, has an index of its own.
""".
-spec method(Method :: binary() | undefined) -> 0..25.
method(undefined) ->
    ?UNREAD_METHOD;
method(Method) ->
    case ?METHODS of
        #{Method := Index} -> Index;
        #{} -> ?OTHER_METHOD
    end.

-doc """
Returns the names of methods with their indices. `_OTHER` is for all that are not MCP's, and `_TASK`
for the runs of tasks. `_UNREAD` is for requests that were refused before their message was read,
and for messages without a method.
""".
-spec methods() -> [{Name :: binary(), Index :: 0..25}].
methods() ->
    [{~"_OTHER", ?OTHER_METHOD}, {~"_UNREAD", ?UNREAD_METHOD}, {~"_TASK", ?TASK_METHOD}
     | lists:sort(maps:to_list(?METHODS))].

-doc """
Returns the index of an error code of JSON-RPC, of MCP or of its SDKs, or of the number of a
refusal. All other codes share an index.
""".
-spec code_index(Code :: integer()) -> 1..127.
code_index(Code) when Code > 1000, Code < 1090 -> Code - 1000;
code_index(Code) -> maps:get(Code, ?CODES, ?OTHER_CODE).

-doc """
Returns the code with an index: `none` for 0, and `other` for the index that several codes share.
""".
-spec code(Index :: 0..127) -> integer() | other | none.
code(0) -> none;
code(?OTHER_CODE) -> other;
code(Index) when Index < 90 -> 1000 + Index;
code(Index) ->
    [Code] = [Code || Code := Is <- ?CODES, Is =:= Index],
    Code.
