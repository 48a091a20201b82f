-module(erlmcp_gate_counters).
-moduledoc """
All counters of a gate, and the one owner of their layout: words of `atomics` arrays, which their
users change themselves, with no process between them.

The server has a counter of each kind. A tenant, an address or a tool that has a limit of its own
has one under a key: an array of four words, found in a table, made when it is first needed and
removed when it is idle. Taking is one compare-and-exchange, so that never more than the limit is
held.

A process may be killed after it took, and before it wrote down what it took. So a counter has two
counts, one for each of two generations that take turns. Nothing is added to the count of a
generation that is over, and so it shows what nobody has written down: `m:erlmcp_gate_permits` looks
for that every second, and gives it back.

What happened at the gate is added up here too: how long requests waited for a scheduler when they
had their permits, what work they were, and how many came in vain.

Internal.
""".

-export([new/1, now/1]).
-export([is_draining/1, drain/1, limit/1, limit/2, queue_limit/1, queue_limit/2]).
-export([enter/1, enter_waiting/1, enter_next/1, take/2, take_tenant/5, give/2, give_and_look/2]).
-export([count_rates/4, uncount_rates/3]).
-export([held/2, queued/1, queued/2]).
-export([next_generation/1, add_up/3, unwritten/3, correct/3, remove_idle/1]).
-export([add_start/2, starts/1, starts_between/2, add_work/2, work/1, add_refused/1, refused/1]).
-export([most/0]).

%% Every request passes here.
-compile({inline, [now/1, take_in_flight/3, take_word/5, give_share/3, is_held/2]}).

-export_type([counters/0, taken/0, key/0, name/0, generation/0, starts/0, limited/0]).

-record(counters, {
    words :: atomics:atomics_ref(),
    %% {Key, Array}
    keyed :: ets:table(),
    %% how many keys there may be
    keys :: pos_integer(),
    load :: counters:counters_ref(),
    %% the clock's zero
    epoch :: integer()
}).
-opaque counters() :: #counters{}.

-doc "The owner of a counter: a tenant, an address or a definition.".
-type key() :: {Kind :: atom(), term()}.
-doc "A counter of the server, or one under a key.".
-type name() :: in_flight | connections | waiting | waiting_bytes | key().
-type counter() :: in_flight | connections | waiting | waiting_bytes | atomics:atomics_ref().
-doc "A share that was taken of a counter, and is given back once.".
-type taken() :: {counter(), pos_integer()}.
-doc "An amount of a counter, of which no more than the limit may be held.".
-type limited() :: {name(), Amount :: pos_integer(), Limit :: pos_integer()}.
-type generation() :: 0 | 1.
-doc "The starts of requests until a moment; they mean something next to those of another moment.".
-type starts() :: integer().

%% The server's words. STATE and IN_FLIGHT stand side by side, since every request reads the one and
%% changes the other. The others that change often have a line of the processor's cache each: eight
%% words. The words of the server's rates are the three after RATES.
-define(QUEUE_LIMIT, 2).
-define(STATE, 9).
-define(IN_FLIGHT, 10).
-define(CONNECTIONS, 18).
-define(WAITING, 26).
-define(WAITING_BYTES, 27).
-define(RATES, 33).
-define(WORDS, 40).

%% The words of a counter under a key: what is held, and the words of its rates after that.
-define(HELD_AT, 1).
-define(KEY_WORDS, 4).

%% What is held: two counts of 29 bits. Above them a mark says that the key's counter was removed.
%% All that is a small integer.
-define(BITS, 29).
-define(COUNT(Word), ((Word) band (1 bsl ?BITS - 1))).
-define(HELD(Word), (?COUNT(Word) + ?COUNT((Word) bsr ?BITS))).
-define(REMOVED, (1 bsl (2 * ?BITS))).
-define(MOST, (1 bsl 28 - 1)).

%% STATE: whether the gate drains, the generation, the limit of requests in flight in 28 bits, and
%% the requests in the queue above that.
-define(DRAINING, 2#1).
-define(GENERATION, 2#10).
-define(GENERATION_OF(State), (((State) bsr 1) band 1)).
-define(LIMIT_AT, 2).
-define(LIMIT_OF(State), (((State) bsr ?LIMIT_AT) band ?MOST)).
-define(QUEUED_AT, 30).
-define(QUEUED_OF(State), ((State) bsr ?QUEUED_AT)).

%% LOAD. Every request adds to both the starts and how long these waited, and so they are one word:
%% the starts in the lower bits, units of 1,024 nanoseconds above them.
-define(STARTS, 1).
-define(STARTS_BITS, 24).
-define(UNIT_BITS, 10).
-define(STARTS_WORD, (1 bsl 64)).
-define(REFUSED, 2).
-define(DONE, 3).
-define(WORK, 4).

-doc """
Makes counters with up to this many keys, and no limit of requests in flight until `limit/2`. They
belong to the calling process.
""".
-spec new(Keys :: pos_integer()) -> counters().
new(Keys) ->
    Words = atomics:new(?WORDS, []),
    ok = atomics:put(Words, ?STATE, ?MOST bsl ?LIMIT_AT),
    ok = atomics:put(Words, ?QUEUE_LIMIT, ?MOST),
    #counters{words = Words, keys = Keys, load = counters:new(4, [write_concurrency]),
              %% One count of its rows: the bound on the keys reads it.
              keyed = ets:new(?MODULE, [public, {write_concurrency, true},
                                        {decentralized_counters, false}]),
              %% Zero is before all that a rate counts.
              epoch = erlang:monotonic_time(nanosecond) - 1}.

-doc "Returns the time of the rates, in nanoseconds.".
-spec now(counters()) -> pos_integer().
now(#counters{epoch = Epoch}) when is_integer(Epoch) ->
    erlang:monotonic_time(nanosecond) - Epoch.

-doc "Returns the most that can be held of a counter.".
-spec most() -> pos_integer().
most() -> ?MOST.

-doc "Returns `true` if nobody may enter any more.".
-spec is_draining(counters()) -> boolean().
is_draining(#counters{words = Words}) ->
    atomics:get(Words, ?STATE) band ?DRAINING =/= 0.

-doc "Lets nobody enter any more.".
-spec drain(counters()) -> ok.
drain(Counters) ->
    _ = change_state(fun(State) -> State bor ?DRAINING end, Counters),
    ok.

%% Returns what it was.
change_state(Change, #counters{words = Words} = Counters) ->
    State = atomics:get(Words, ?STATE),
    case atomics:compare_exchange(Words, ?STATE, State, Change(State)) of
        ok -> State;
        _ -> change_state(Change, Counters)
    end.

-doc "Returns how many requests may be in flight.".
-spec limit(counters()) -> pos_integer().
limit(#counters{words = Words}) ->
    ?LIMIT_OF(atomics:get(Words, ?STATE)).

-doc "Sets how many requests may be in flight.".
-spec limit(pos_integer(), counters()) -> ok.
limit(Limit, Counters) ->
    _ = change_state(fun(State) ->
        State band bnot (?MOST bsl ?LIMIT_AT) bor (min(Limit, ?MOST) bsl ?LIMIT_AT)
    end, Counters),
    ok.

-doc "Returns how many requests may wait, as `queue_limit/2` has set it.".
-spec queue_limit(counters()) -> pos_integer().
queue_limit(#counters{words = Words}) ->
    atomics:get(Words, ?QUEUE_LIMIT).

-doc "Sets how many requests may wait.".
-spec queue_limit(pos_integer(), counters()) -> ok.
queue_limit(Limit, #counters{words = Words}) ->
    atomics:put(Words, ?QUEUE_LIMIT, min(Limit, ?MOST)).

-doc "Returns how many requests are in the queue, by its process.".
-spec queued(counters()) -> non_neg_integer().
queued(#counters{words = Words}) ->
    ?QUEUED_OF(atomics:get(Words, ?STATE)).

-doc """
Sets how many requests are in the queue. Its process does so before it looks for a permit, and what
leaves looks at it after it has given back: one of the two sees the other.
""".
-spec queued(non_neg_integer(), counters()) -> ok.
queued(Count, Counters) ->
    _ = change_state(fun(State) ->
        State band (1 bsl ?QUEUED_AT - 1) bor (Count bsl ?QUEUED_AT)
    end, Counters),
    ok.

-doc """
Takes one of the requests in flight, where one is left after each request in the queue has its own:
nobody overtakes those. Returns the time, too.
""".
-spec enter(counters()) ->
    {ok, taken(), Now :: pos_integer()}
    | {full, Limit :: pos_integer(), Observed :: pos_integer()}
    | draining.
enter(#counters{words = Words} = Counters) ->
    case atomics:get(Words, ?STATE) of
        State when State band ?DRAINING =/= 0 ->
            draining;
        State ->
            case take_in_flight(State, ?LIMIT_OF(State) - ?QUEUED_OF(State), Words) of
                {ok, InFlight} -> {ok, InFlight, now(Counters)};
                Full -> Full
            end
    end.

-doc "Takes one for a request that entered before and waits, in the same way.".
-spec enter_waiting(counters()) ->
    {ok, taken()} | {full, Limit :: pos_integer(), Observed :: pos_integer()}.
enter_waiting(#counters{words = Words}) ->
    State = atomics:get(Words, ?STATE),
    take_in_flight(State, ?LIMIT_OF(State) - ?QUEUED_OF(State), Words).

-doc "Takes one for the request that is next in the queue.".
-spec enter_next(counters()) ->
    {ok, taken()} | {full, Limit :: pos_integer(), Observed :: pos_integer()}.
enter_next(#counters{words = Words}) ->
    State = atomics:get(Words, ?STATE),
    take_in_flight(State, ?LIMIT_OF(State), Words).

%% STATE was read first. If the exchange succeeds at the first try nothing has changed since of what
%% is in flight, and the requests that were in the queue then have their permits, or find them. At a
%% later one it may overtake a request that came to the queue meanwhile.
take_in_flight(State, Limit, Words) ->
    case take_word(Words, ?IN_FLIGHT, 1, ?GENERATION_OF(State), Limit) of
        {ok, Share} -> {ok, {in_flight, Share}};
        {full, Observed} -> {full, ?LIMIT_OF(State), Observed}
    end.

%% The share of one generation that was taken, if no more than the limit is held with it.
take_word(Words, Index, Amount, Generation, Limit) ->
    take_word(Words, Index, Amount, Generation, min(Limit, ?MOST), atomics:get(Words, Index)).

take_word(_, _, _, _, _, ?REMOVED) ->
    removed;
take_word(_, _, Amount, _, Limit, Word) when ?HELD(Word) + Amount > Limit ->
    {full, ?HELD(Word) + Amount};
take_word(Words, Index, Amount, Generation, Limit, Word) ->
    Share = Amount bsl (?BITS * Generation),
    case atomics:compare_exchange(Words, Index, Word, Word + Share) of
        ok -> {ok, Share};
        Changed -> take_word(Words, Index, Amount, Generation, Limit, Changed)
    end.

-doc """
Takes all of these, or nothing: then it returns what is full, or `keys_full` where there are as many
keys as there may be.
""".
-spec take([limited()], counters()) ->
    {ok, [taken()]} | {full, limited(), Observed :: pos_integer()} | keys_full.
take(Limited, Counters) ->
    take(Limited, [], Counters).

take([], Taken, _) ->
    {ok, Taken};
take([{Name, Amount, Limit} = One | Limited], Taken, Counters) ->
    case take_one(Name, Amount, Limit, Counters) of
        {ok, More} ->
            take(Limited, [More | Taken], Counters);
        {full, Observed} ->
            ok = give(Taken, Counters),
            {full, One, Observed};
        keys_full ->
            ok = give(Taken, Counters),
            keys_full
    end.

take_one({_, _} = Key, Amount, Limit, Counters) ->
    maybe
        {ok, Array} ?= find(Key, Counters),
        {ok, Share} ?= take_word(Array, ?HELD_AT, Amount, generation(Counters), Limit),
        {ok, {Array, Share}}
    else
        removed -> take_one(Key, Amount, Limit, Counters);
        Full -> Full
    end;
take_one(Name, Amount, Limit, #counters{words = Words} = Counters) ->
    maybe
        {ok, Share} ?= take_word(Words, index(Name), Amount, generation(Counters), Limit),
        {ok, {Name, Share}}
    end.

generation(#counters{words = Words}) ->
    ?GENERATION_OF(atomics:get(Words, ?STATE)).

index(in_flight) -> ?IN_FLIGHT;
index(connections) -> ?CONNECTIONS;
index(waiting) -> ?WAITING;
index(waiting_bytes) -> ?WAITING_BYTES.

%% The array of a key, in which one that was removed is found no more.
find(Key, #counters{keyed = Keyed} = Counters) ->
    case ets:lookup_element(Keyed, Key, 2, none) of
        none ->
            add_key(Key, Counters);
        Array ->
            case atomics:get(Array, ?HELD_AT) of
                ?REMOVED ->
                    true = ets:delete_object(Keyed, {Key, Array}),
                    find(Key, Counters);
                _ ->
                    {ok, Array}
            end
    end.

%% Processes that are here at the same moment may each add a key: so many more there may be.
add_key(Key, #counters{keyed = Keyed, keys = Most} = Counters) ->
    case ets:info(Keyed, size) < Most of
        true ->
            _ = ets:insert_new(Keyed, {Key, atomics:new(?KEY_WORDS, [])}),
            find(Key, Counters);
        false ->
            keys_full
    end.

-doc """
Counts a message in all rates of a tenant, and takes one of its requests in flight, where these have
a limit.
""".
-spec take_tenant(key(), [erlmcp_rate:rate()], Limit :: pos_integer() | infinity,
                  Now :: pos_integer(), counters()) ->
    {ok, [taken()]}
    | {full, Observed :: pos_integer()}
    | {wait, erlmcp_rate:rate(), Milliseconds :: pos_integer()}
    | keys_full.
take_tenant(_, [], infinity, _, _) ->
    {ok, []};
take_tenant(Key, Rates, Limit, Now, Counters) ->
    maybe
        {ok, Array} ?= find(Key, Counters),
        ok ?= count_all(Rates, Array, ?HELD_AT, Now),
        true ?= Limit =/= infinity,
        {ok, Share} ?= take_word(Array, ?HELD_AT, 1, generation(Counters), Limit),
        {ok, [{Array, Share}]}
    else
        false -> {ok, []};
        removed -> take_tenant(Key, Rates, Limit, Now, Counters);
        Refused -> Refused
    end.

-doc "Counts a message in all rates of the server or of a key, or in none.".
-spec count_rates(server | key(), [erlmcp_rate:rate()], Now :: pos_integer(), counters()) ->
    ok | {wait, erlmcp_rate:rate(), Milliseconds :: pos_integer()} | keys_full.
count_rates(server, Rates, Now, #counters{words = Words}) ->
    count_all(Rates, Words, ?RATES, Now);
count_rates(Key, Rates, Now, Counters) ->
    maybe
        {ok, Array} ?= find(Key, Counters),
        count_all(Rates, Array, ?HELD_AT, Now)
    end.

count_all([], _, _, _) ->
    ok;
count_all([{Period, _} = Rate | Rates], Words, At, Now) ->
    case count(Rate, Words, At + period(Period), Now) of
        ok ->
            case count_all(Rates, Words, At, Now) of
                ok ->
                    ok;
                Wait ->
                    ok = uncount(Rate, Words, At),
                    Wait
            end;
        {wait, Milliseconds} ->
            {wait, Rate, Milliseconds}
    end.

count(Rate, Words, Index, Now) ->
    Paid = atomics:get(Words, Index),
    case erlmcp_rate:count(Rate, Paid, Now) of
        {ok, Next} ->
            case atomics:compare_exchange(Words, Index, Paid, Next) of
                ok -> ok;
                _ -> count(Rate, Words, Index, Now)
            end;
        Wait ->
            Wait
    end.

uncount({Period, _} = Rate, Words, At) ->
    atomics:sub(Words, At + period(Period), erlmcp_rate:interval(Rate)).

%% After the word of what is held.
period(second) -> 1;
period(minute) -> 2;
period(day) -> 3.

-doc "Takes a message out of rates of a key, as if it had not come.".
-spec uncount_rates(key(), [erlmcp_rate:rate()], counters()) -> ok.
uncount_rates(Key, Rates, #counters{keyed = Keyed}) ->
    case ets:lookup_element(Keyed, Key, 2, none) of
        none -> ok;
        Array -> lists:foreach(fun(Rate) -> uncount(Rate, Array, ?HELD_AT) end, Rates)
    end.

-doc "Gives back what was taken.".
-spec give([taken()], counters()) -> ok.
give([], _) ->
    ok;
give([{Counter, Share}], Counters) ->
    give_share(Counter, Share, Counters);
give([{Counter, Share} | Taken], Counters) ->
    ok = give_share(Counter, Share, Counters),
    give(Taken, Counters).

-doc "Does the same, and returns `true` if a request is in the queue.".
-spec give_and_look([taken()], counters()) -> boolean().
give_and_look(Taken, #counters{words = Words} = Counters) ->
    ok = give(Taken, Counters),
    ?QUEUED_OF(atomics:get(Words, ?STATE)) > 0.

give_share(in_flight, Share, #counters{words = Words}) ->
    give_word(Words, ?IN_FLIGHT, Share, atomics:get(Words, ?IN_FLIGHT));
give_share(Counter, Share, Counters) ->
    {Words, Index} = word(Counter, Counters),
    give_word(Words, Index, Share, atomics:get(Words, Index)).

give_word(Words, Index, Share, Word) ->
    case is_held(Share, Word) of
        true ->
            case atomics:compare_exchange(Words, Index, Word, Word - Share) of
                ok -> ok;
                Changed -> give_word(Words, Index, Share, Changed)
            end;
        false ->
            %% It was taken for lost, and given back (`correct/3`).
            ok
    end.

is_held(Share, Word) ->
    ?COUNT(Word) >= ?COUNT(Share) andalso ?COUNT(Word bsr ?BITS) >= ?COUNT(Share bsr ?BITS).

word(Counter, #counters{words = Words}) when is_atom(Counter) -> {Words, index(Counter)};
word(Array, _) -> {Array, ?HELD_AT}.

-doc "Returns how much is held of a counter.".
-spec held(name(), counters()) -> non_neg_integer().
held({_, _} = Key, #counters{keyed = Keyed}) ->
    case ets:lookup_element(Keyed, Key, 2, none) of
        none -> 0;
        Array -> held_word(Array, ?HELD_AT)
    end;
held(Name, #counters{words = Words}) ->
    held_word(Words, index(Name)).

held_word(Words, Index) ->
    Word = atomics:get(Words, Index),
    ?HELD(Word).

-doc "Begins the other generation; returns the one that is over.".
-spec next_generation(counters()) -> generation().
next_generation(Counters) ->
    ?GENERATION_OF(change_state(fun(State) -> State bxor ?GENERATION end, Counters)).

-doc "Adds what was taken in a generation to sums of it by counter.".
-spec add_up([taken()], generation(), Sums) -> Sums when Sums :: #{counter() => pos_integer()}.
add_up(Taken, Generation, Sums) ->
    lists:foldl(fun({Counter, Share}, Sum) ->
        case count_of(Generation, Share) of
            0 -> Sum;
            Amount -> Sum#{Counter => maps:get(Counter, Sum, 0) + Amount}
        end
    end, Sums, Taken).

count_of(Generation, Word) ->
    ?COUNT(Word bsr (?BITS * Generation)).

-doc """
Returns the counters whose count of a generation differs from these sums: by how much there is more.
""".
-spec unwritten(generation(), Sums :: #{counter() => pos_integer()}, counters()) ->
    #{counter() => integer()}.
unwritten(Generation, Sums, #counters{keyed = Keyed} = Counters) ->
    Of = fun(Counter, More) ->
        {Words, Index} = word(Counter, Counters),
        Word = atomics:get(Words, Index),
        case count_of(Generation, Word) - maps:get(Counter, Sums, 0) of
            0 -> More;
            Differs -> More#{Counter => Differs}
        end
    end,
    ets:foldl(fun({_, Array}, More) -> Of(Array, More) end,
              lists:foldl(Of, #{}, [in_flight, connections, waiting, waiting_bytes]), Keyed).

-doc "Takes these differences away from the counts of a generation that is over.".
-spec correct(generation(), #{counter() => integer()}, counters()) -> ok.
correct(Generation, Differences, Counters) ->
    maps:foreach(fun(Counter, More) -> correct(Counter, More, Generation, Counters) end,
                 Differences).

correct(Counter, More, Generation, Counters) when More > 0 ->
    give_share(Counter, More bsl (?BITS * Generation), Counters);
correct(Counter, Less, Generation, Counters) ->
    {Words, Index} = word(Counter, Counters),
    atomics:add(Words, Index, -Less bsl (?BITS * Generation)).

-doc """
Removes the counters under keys of which nothing is held, and whose rates have no past. A process
that had found one before takes nothing of it. If it counts a message in a rate at this very moment,
that message is forgotten.
""".
-spec remove_idle(counters()) -> ok.
remove_idle(#counters{keyed = Keyed} = Counters) ->
    Now = now(Counters),
    ets:foldl(fun({_, Array} = Row, ok) ->
        case has_no_past(Array, Now)
            andalso atomics:compare_exchange(Array, ?HELD_AT, 0, ?REMOVED) =:= ok of
            true ->
                true = ets:delete_object(Keyed, Row),
                ok;
            false ->
                ok
        end
    end, ok, Keyed).

has_no_past(Array, Now) ->
    lists:all(fun(Period) -> atomics:get(Array, ?HELD_AT + period(Period)) =< Now end,
              [second, minute, day]).

-doc "Adds a request that begins to run now, and is in flight since then.".
-spec add_start(Since :: pos_integer(), counters()) -> ok.
add_start(Since, #counters{load = Load} = Counters) ->
    Nanoseconds = now(Counters) - Since,
    counters:add(Load, ?STARTS, Nanoseconds bsr ?UNIT_BITS bsl ?STARTS_BITS bor 1).

-doc "Returns the starts until now.".
-spec starts(counters()) -> starts().
starts(#counters{load = Load}) ->
    counters:get(Load, ?STARTS).

-doc """
Returns how many requests have started between two moments, and after how many nanoseconds together.
Of more than 16,777,215 starts it says nothing.
""".
-spec starts_between(Earlier :: starts(), Later :: starts()) ->
    {Count :: non_neg_integer(), Nanoseconds :: non_neg_integer()}.
starts_between(Earlier, Later) ->
    %% What ran over meanwhile did so in both.
    Word = (Later - Earlier) band (?STARTS_WORD - 1),
    {Word band (1 bsl ?STARTS_BITS - 1), Word bsr ?STARTS_BITS bsl ?UNIT_BITS}.

-doc "Adds a request that is over, and the reductions that its process used.".
-spec add_work(Reductions :: non_neg_integer(), counters()) -> ok.
add_work(Reductions, #counters{load = Load}) ->
    ok = counters:add(Load, ?DONE, 1),
    counters:add(Load, ?WORK, Reductions).

-doc "Returns how many requests were added, and their reductions together.".
-spec work(counters()) -> {Count :: non_neg_integer(), Reductions :: non_neg_integer()}.
work(#counters{load = Load}) ->
    {counters:get(Load, ?DONE), counters:get(Load, ?WORK)}.

-doc "Adds a request that came when as many were in flight as may be.".
-spec add_refused(counters()) -> ok.
add_refused(#counters{load = Load}) ->
    counters:add(Load, ?REFUSED, 1).

-doc "Returns how many requests came then.".
-spec refused(counters()) -> non_neg_integer().
refused(#counters{load = Load}) ->
    counters:get(Load, ?REFUSED).
