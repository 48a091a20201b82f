-module(erlmcp_gate_counters).
-moduledoc """
The counters of a gate, as words of `atomics` arrays that every process changes itself. The server
has a counter of each kind. A tenant, an address or a definition with a limit of its own has a
counter under a key. This counter is made when it is first needed, and removed when it is idle.

The rates of messages are counted here, too, with the generic cell rate algorithm of "Traffic
Control and Congestion Control in B-ISDN" (ITU-T I.371). A tenant may use its whole rate at once,
and after that one message in each part of the period. In a cluster the rates of a tenant are those
of all nodes together.

Internal.
""".

-export([new/2, now/1]).
-export([is_lame/1, lame/1, is_draining/1, drain/1]).
-export([limit/1, limit/2, queue_limit/1, queue_limit/2]).
-export([enter/1, enter_waiting/1, enter_next/1, leave/2, take/2, take_tenant/5, give/2]).
-export([count_rates/4, uncount_rates/3, uncount_tenant/3]).
-export([accounts/2, client/1, unheard/1, heard_by_all/3, count_heard/5, paid/1, pay/5]).
-export([held/2, queued/1, queued/2]).
-export([next_generation/1, add_up/3, unwritten/3, correct/3, remove_idle/1]).
-export([add_start/2, starts/1, starts_between/2, add_work/2, work/1, add_refused/1, refused/1]).
-export([most/0]).

%% Every request passes here.
-compile({inline, [now/1, take_in_flight/3, take_word/5, is_held/2, rate_nodes/2,
                   count_in_cluster/5, table/2]}).

-export_type([counters/0, share/0, taken/0, key/0, name/0, generation/0, starts/0, limited/0,
              rate/0, account/0, paid/0]).

%% A share is taken with a compare-and-exchange, so that never more than the limit is held. A
%% process may be killed after it took a share and before it wrote its permit. So each counter has
%% two counts, for two generations that alternate. Soon nothing is added any more to the count of a
%% generation that is over. Any part of it that no permit holds then is lost, and
%% `erlmcp_gate_permits` gives it back.
%%
%% The state of a rate is one word: the time until which all messages so far are paid for. In a
%% cluster each node has such words of its own. While other nodes have not heard of a message, each
%% of them may let one in at the same moment. So the message pays for as many as there are nodes.
%% When all have heard of it, it gets back what it has paid for others. A message of another node
%% pays once, as soon as this node hears of it. If a rate has room for one message, but not for as
%% many as there are nodes, one message is let in at a time.

-record(counters, {
    words :: atomics:atomics_ref(),
    %% {Key, Array} of tenants and addresses, and the highest number of these keys
    keyed :: ets:table(),
    keys :: pos_integer(),
    %% the same of definitions, and of requests that are passed on; these have no bound, since there
    %% are as many as definitions, and as clients with requests on their way
    own :: ets:table(),
    load :: counters:counters_ref(),
    %% the monotonic time that is zero for the rates
    epoch :: integer(),
    cluster :: none | {module(), State :: term()}
}).
-opaque counters() :: #counters{}.

-doc """
The key of a counter: its kind, and a tenant, an address or a definition. No kind is `answers`. The
kind `forwarded` has `requests`, `bytes` or `waiting` in place of these, each also in a pair with a
tenant, or `answers`, `answer_bytes` or `waiting_answers`.
""".
-type key() :: {Kind :: atom(), term()}.
-doc "The name of a counter: one of the server's, or a key.".
-type name() :: in_flight | asking | connections | waiting | waiting_bytes | streams | key().
-type counter() ::
    in_flight | asking | connections | waiting | waiting_bytes | streams | atomics:atomics_ref().
-doc "An amount that was taken, encoded with the generation in which it was taken.".
-type share() :: pos_integer().
-doc "A share of a counter, which is given back once.".
-type taken() :: {counter(), share()}.
-doc "An amount of a counter, and the counter's limit.".
-type limited() :: {name(), Amount :: pos_integer(), Limit :: pos_integer()}.
-doc "A period, and the number of messages that the rate allows at once.".
-type rate() :: {second | minute | day, pos_integer()}.
-doc """
The messages that a rate counts, of the server or of a key. `answers` are responses and
cancellations, which are counted apart.
""".
-type counted() :: server | key() | {answers, server | key()}.
-doc """
A tenant whose messages count in the rates of a cluster: its key, its counts, and these rates.
""".
-opaque account() :: {key(), atomics:atomics_ref(), [rate()], counters()}.
-doc """
A period of a rate, and for how many nanoseconds from now the messages of a tenant are paid for in
it. Each message pays for a part of the period: for 100 ms if the rate is `{second, 10}`. A message
is refused if the paid time from now on would become longer than a whole period.
""".
-type paid() :: {second | minute | day, pos_integer()}.
-type generation() :: 0 | 1.
-doc """
The number of requests that have started until a moment, and the sum of their waits, encoded for
`starts_between/2`.
""".
-type starts() :: integer().

%% The indexes of the server's words. Every request reads STATE and changes IN_FLIGHT, so these two
%% stand side by side. Each other word that changes often has a line of the processor's cache, eight
%% words, for itself. The words of the server's rates are the three after RATES, and those of its
%% rates of answers the three after ANSWERS.
-define(QUEUE_LIMIT, 2).
-define(LAME, 3).
-define(STATE, 9).
-define(IN_FLIGHT, 10).
-define(CONNECTIONS, 18).
-define(WAITING, 26).
-define(WAITING_BYTES, 27).
-define(RATES, 33).
-define(ANSWERS, 36).
-define(STREAMS, 42).
-define(ASKING, 43).
-define(WORDS, 48).

%% The words of a counter under a key: the shares that are held, then the words of its rates, the
%% number of messages of which other nodes have not heard, and the words of its rates of answers.
-define(HELD_AT, 1).
-define(UNHEARD, 5).
-define(KEY_WORDS, 8).

%% A word of held shares has the counts of both generations, of 29 bits each. The bit above them
%% says that the counter was removed from the table. The whole is a small integer.
-define(BITS, 29).
-define(COUNT(Word), ((Word) band (1 bsl ?BITS - 1))).
-define(HELD(Word), (?COUNT(Word) + ?COUNT((Word) bsr ?BITS))).
-define(REMOVED, (1 bsl (2 * ?BITS))).
-define(MOST, (1 bsl 28 - 1)).
%% Adding zero is the quickest way to read: it takes the cache line for writing, and a change of the
%% word follows. `atomics:get/2` also waits for all earlier writes.
-define(READ(Words, Index), atomics:add_get(Words, Index, 0)).

%% STATE has one bit for a gate that drains, one for the generation, and 28 for the limit of
%% requests in flight. Above them is the number of requests in the queue.
-define(DRAINING, 2#1).
-define(GENERATION, 2#10).
-define(GENERATION_OF(State), (((State) bsr 1) band 1)).
-define(LIMIT_AT, 2).
-define(LIMIT_OF(State), (((State) bsr ?LIMIT_AT) band ?MOST)).
-define(QUEUED_AT, 30).
-define(QUEUED_OF(State), ((State) bsr ?QUEUED_AT)).

%% The sums. Every request adds to the starts and to their waits, and so one word has both: the
%% starts in the lower bits, and units of 1,024 nanoseconds above.
-define(STARTS, 1).
-define(STARTS_BITS, 24).
-define(UNIT_BITS, 10).
-define(STARTS_WORD, (1 bsl 64)).
-define(REFUSED, 2).
-define(DONE, 3).
-define(WORK, 4).

-doc """
Makes counters with up to `Keys` keys of tenants and addresses. The limits of requests in flight and
of waiting requests are `most/0` until `limit/2` and `queue_limit/2` set others. `Cluster` has the
module of the server's cluster, with the behaviour `m:erlmcp_server_cluster`, and the cluster's
state. With a cluster, the rates of a tenant count its messages on all nodes together. The tables of
the counters belong to the calling process.
""".
-spec new(Keys :: pos_integer(), Cluster :: none | {module(), State :: term()}) -> counters().
new(Keys, Cluster) ->
    Words = atomics:new(?WORDS, []),
    ok = atomics:put(Words, ?STATE, ?MOST bsl ?LIMIT_AT),
    ok = atomics:put(Words, ?QUEUE_LIMIT, ?MOST),
    #counters{words = Words, keys = Keys, load = counters:new(4, [write_concurrency]),
              %% The bound of the keys needs an exact size.
              keyed = ets:new(?MODULE, [public, {write_concurrency, true},
                                        {decentralized_counters, false}]),
              own = ets:new(?MODULE, [public, {write_concurrency, true}]),
              %% So that zero is earlier than every message.
              epoch = erlang:monotonic_time(nanosecond) - 1,
              cluster = Cluster}.

-doc "Returns the time of the rates: nanoseconds since the counters were made.".
-spec now(counters()) -> pos_integer().
now(#counters{epoch = Epoch}) when is_integer(Epoch) ->
    erlang:monotonic_time(nanosecond) - Epoch.

-doc "Returns 268,435,455, the largest value that a counter can have.".
-spec most() -> pos_integer().
most() -> ?MOST.

-doc "Returns `true` if `lame/1` was called.".
-spec is_lame(counters()) -> boolean().
is_lame(#counters{words = Words}) ->
    atomics:get(Words, ?LAME) =/= 0.

-doc "Records that the server is about to drain. Requests enter as before.".
-spec lame(counters()) -> ok.
lame(#counters{words = Words}) ->
    atomics:put(Words, ?LAME, 1).

-doc "Returns `true` if the gate drains.".
-spec is_draining(counters()) -> boolean().
is_draining(#counters{words = Words}) ->
    atomics:get(Words, ?STATE) band ?DRAINING =/= 0.

-doc "Sets the gate to drain: no new request enters any more.".
-spec drain(counters()) -> ok.
drain(Counters) ->
    _ = change_state(fun(State) -> State bor ?DRAINING end, Counters),
    ok.

%% Returns the state before the change.
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

-doc "Sets how many requests may be in flight: `Limit`, but at most `most/0`.".
-spec limit(Limit :: pos_integer(), counters()) -> ok.
limit(Limit, Counters) ->
    _ = change_state(fun(State) ->
        State band bnot (?MOST bsl ?LIMIT_AT) bor (min(Limit, ?MOST) bsl ?LIMIT_AT)
    end, Counters),
    ok.

-doc """
Returns the limit of waiting requests. It is `most/0` until `queue_limit/2` sets another one. The
gate applies this limit (`erlmcp_gate:limit_queue/2`).
""".
-spec queue_limit(counters()) -> pos_integer().
queue_limit(#counters{words = Words}) ->
    atomics:get(Words, ?QUEUE_LIMIT).

-doc "Sets the limit of waiting requests (`queue_limit/1`): `Limit`, but at most `most/0`.".
-spec queue_limit(Limit :: pos_integer(), counters()) -> ok.
queue_limit(Limit, #counters{words = Words}) ->
    atomics:put(Words, ?QUEUE_LIMIT, min(Limit, ?MOST)).

-doc "Returns how many requests are in the queue.".
-spec queued(counters()) -> non_neg_integer().
queued(#counters{words = Words}) ->
    ?QUEUED_OF(atomics:get(Words, ?STATE)).

-doc "Sets how many requests are in the queue.".
-spec queued(non_neg_integer(), counters()) -> ok.
queued(Count, Counters) ->
    %% The queue's process does this before it checks whether another request may be in flight. A
    %% process that leaves gives its share back first, and then reads this number. So at least one
    %% of the two notices the other.
    _ = change_state(fun(State) ->
        State band (1 bsl ?QUEUED_AT - 1) bor (Count bsl ?QUEUED_AT)
    end, Counters),
    ok.

-doc """
Takes a share of the requests in flight for a new request, and returns it with the time (`now/1`).
As many shares as there are requests in the queue stay free for these requests. If no other share is
free, returns `full` with the limit and the number of requests that would be in flight. Returns
`draining` if the gate drains.
""".
-spec enter(counters()) ->
    {ok, share(), Now :: pos_integer()}
    | {full, Limit :: pos_integer(), Observed :: pos_integer()}
    | draining.
enter(#counters{words = Words} = Counters) ->
    case ?READ(Words, ?STATE) of
        State when State band ?DRAINING =/= 0 ->
            draining;
        State ->
            case take_in_flight(State, ?LIMIT_OF(State) - ?QUEUED_OF(State), Words) of
                {ok, Share} -> {ok, Share, now(Counters)};
                Full -> Full
            end
    end.

-doc """
Takes a share as `enter/1` does, for a request that waits and is not in the queue yet. Takes it even
if the gate drains.
""".
-spec enter_waiting(counters()) ->
    {ok, share()} | {full, Limit :: pos_integer(), Observed :: pos_integer()}.
enter_waiting(#counters{words = Words}) ->
    State = atomics:get(Words, ?STATE),
    take_in_flight(State, ?LIMIT_OF(State) - ?QUEUED_OF(State), Words).

-doc """
Takes a share for the next request in the queue. Returns `full`, as `enter/1` does, if no share is
free.
""".
-spec enter_next(counters()) ->
    {ok, share()} | {full, Limit :: pos_integer(), Observed :: pos_integer()}.
enter_next(#counters{words = Words}) ->
    State = atomics:get(Words, ?STATE),
    take_in_flight(State, ?LIMIT_OF(State), Words).

%% STATE was read first. If the first exchange succeeds, the requests in flight have not changed
%% since. So no request is overtaken that was in the queue at that time. A later exchange may
%% overtake a request that was added to the queue meanwhile.
take_in_flight(State, Limit, Words) ->
    case take_word(Words, ?IN_FLIGHT, 1, ?GENERATION_OF(State), Limit) of
        {ok, _} = Taken -> Taken;
        {full, Observed} -> {full, ?LIMIT_OF(State), Observed}
    end.

-doc "Gives a share of the requests in flight back. Returns `true` if a request is in the queue.".
-spec leave(share(), counters()) -> boolean().
leave(Share, #counters{words = Words}) ->
    Word = atomics:add_get(Words, ?IN_FLIGHT, -Share) + Share,
    %% A share that was taken for lost was given back before (`correct/3`).
    _ = is_held(Share, Word) orelse atomics:add(Words, ?IN_FLIGHT, Share),
    ?QUEUED_OF(?READ(Words, ?STATE)) > 0.

%% Takes a share of one generation, unless more than the limit would be held.
take_word(Words, Index, Amount, Generation, Limit) ->
    take_word(Words, Index, Amount, Generation, min(Limit, ?MOST), ?READ(Words, Index)).

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
Takes all amounts of `Limited`, or none, and returns the shares. If an amount would exceed the limit
of its counter, returns `full` with the first such amount and the value that the counter would have.
Returns `keys_full` if there is no room for another key.
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
index(waiting_bytes) -> ?WAITING_BYTES;
index(streams) -> ?STREAMS;
index(asking) -> ?ASKING.

%% Returns the array of a key, and replaces one that was removed.
find(Key, Counters) ->
    Keyed = table(Key, Counters),
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

table({Kind, _}, #counters{own = Own}) when Kind =:= definition; Kind =:= forwarded -> Own;
table(_, #counters{keyed = Keyed}) -> Keyed.

%% Processes that do this at the same moment may each add a key above the bound.
add_key(Key, #counters{keyed = Bounded, keys = Most} = Counters) ->
    Keyed = table(Key, Counters),
    case Keyed =/= Bounded orelse ets:info(Keyed, size) < Most of
        true ->
            _ = ets:insert_new(Keyed, {Key, atomics:new(?KEY_WORDS, [])}),
            find(Key, Counters);
        false ->
            keys_full
    end.

-doc """
Counts a message of the tenant with this key in all of its rates, at the time `Now` (`now/1`). Also
takes a share of the tenant's requests in flight, unless `Limit` is `infinity`. Returns the shares
that were taken. Other nodes of a cluster will hear of the message
(`c:erlmcp_server_cluster:counted/2`).

Returns `full`, with the number of requests that would be in flight, if this number exceeds `Limit`.
Returns `wait` or `keys_full` as `count_rates/4` does. In these cases takes no share, and counts the
message in no rate.
""".
-spec take_tenant(key(), [rate()], Limit :: pos_integer() | infinity,
                  Now :: pos_integer(), counters()) ->
    {ok, [taken()]}
    | {full, Observed :: pos_integer()}
    | {wait, rate(), Milliseconds :: pos_integer()}
    | keys_full.
take_tenant(_, [], infinity, _, _) ->
    {ok, []};
take_tenant(Key, Rates, Limit, Now, Counters) ->
    maybe
        {ok, Array} ?= find(Key, Counters),
        {ok, Taken} ?= take_share(Array, Limit, Counters),
        Nodes = rate_nodes(Rates, Counters),
        case count_all(Rates, Array, ?HELD_AT, Now, Nodes) of
            ok ->
                ok = count_in_cluster(Nodes, Key, Array, Rates, Counters),
                {ok, Taken};
            Wait ->
                ok = give(Taken, Counters),
                Wait
        end
    else
        removed -> take_tenant(Key, Rates, Limit, Now, Counters);
        Refused -> Refused
    end.

rate_nodes(_, #counters{cluster = none}) -> 1;
rate_nodes([], _) -> 1;
rate_nodes(_, #counters{cluster = {Module, State}}) -> Module:rate_nodes(State).

count_in_cluster(1, _, _, _, _) ->
    ok;
count_in_cluster(_, Key, Array, Rates, #counters{cluster = {Module, State}} = Counters) ->
    case atomics:add_get(Array, ?UNHEARD, 1) of
        1 -> Module:counted({Key, Array, Rates, Counters}, State);
        _ -> ok
    end.

take_share(_, infinity, _) ->
    {ok, []};
take_share(Array, Limit, Counters) ->
    maybe
        {ok, Share} ?= take_word(Array, ?HELD_AT, 1, generation(Counters), Limit),
        {ok, [{Array, Share}]}
    end.

-doc """
Counts a message of the server, or of a key, in all of `Rates`, at the time `Now` (`now/1`). With
`answers`, counts it apart from other messages. If one of the rates is used up, counts the message
in none of them. Then returns this rate, and the milliseconds after which it has room for a message.
Returns `keys_full` if there is no room for another key.
""".
-spec count_rates(counted(), Rates :: [rate()], Now :: pos_integer(), counters()) ->
    ok | {wait, rate(), Milliseconds :: pos_integer()} | keys_full.
count_rates(server, Rates, Now, #counters{words = Words}) ->
    count_all(Rates, Words, ?RATES, Now, 1);
count_rates({answers, server}, Rates, Now, #counters{words = Words}) ->
    count_all(Rates, Words, ?ANSWERS, Now, 1);
count_rates({answers, Key}, Rates, Now, Counters) ->
    maybe
        {ok, Array} ?= find(Key, Counters),
        count_all(Rates, Array, ?UNHEARD, Now, 1)
    end;
count_rates(Key, Rates, Now, Counters) ->
    maybe
        {ok, Array} ?= find(Key, Counters),
        count_all(Rates, Array, ?HELD_AT, Now, 1)
    end.

count_all([], _, _, _, _) ->
    ok;
count_all([{Period, _} = Rate | Rates], Words, At, Now, Nodes) ->
    case count(Rate, Words, At + period(Period), Now, Nodes) of
        ok ->
            case count_all(Rates, Words, At, Now, Nodes) of
                ok ->
                    ok;
                Wait ->
                    ok = uncount(Rate, Words, At, Nodes),
                    Wait
            end;
        {wait, Milliseconds} ->
            {wait, Rate, Milliseconds}
    end.

%% The value of the word is the time until which all messages so far are paid for.
count({_, Most} = Rate, Words, Index, Now, Nodes) ->
    Paid = atomics:get(Words, Index),
    Interval = interval(Rate),
    Latest = Now + Interval * Most,
    Once = max(Paid, Now) + Interval,
    Next = Once + Interval * (Nodes - 1),
    case Next =< Latest orelse
             Nodes > 1 andalso Once =< Latest andalso atomics:get(Words, ?UNHEARD) =:= 0 of
        true ->
            case atomics:compare_exchange(Words, Index, Paid, Next) of
                ok -> ok;
                _ -> count(Rate, Words, Index, Now, Nodes)
            end;
        false ->
            {wait, max(1, (Once - Latest + 999_999) div 1_000_000)}
    end.

uncount({Period, _} = Rate, Words, At, Count) ->
    atomics:sub(Words, At + period(Period), interval(Rate) * Count).

%% Returns the nanoseconds for which one message pays.
interval({Period, Most}) ->
    max(1, nanoseconds(Period) div Most).

nanoseconds(second) -> 1_000_000_000;
nanoseconds(minute) -> 60_000_000_000;
nanoseconds(day) -> 86_400_000_000_000.

%% The position of a rate's word, after the word of held shares.
period(second) -> 1;
period(minute) -> 2;
period(day) -> 3.

-doc "Takes back one message that `count_rates/4` has counted in `Rates`.".
-spec uncount_rates(counted(), Rates :: [rate()], counters()) -> ok.
uncount_rates(_, [], _) ->
    ok;
uncount_rates(server, Rates, #counters{words = Words}) ->
    uncount_all(Rates, Words, ?RATES, 1);
uncount_rates({answers, server}, Rates, #counters{words = Words}) ->
    uncount_all(Rates, Words, ?ANSWERS, 1);
uncount_rates({answers, Key}, Rates, Counters) ->
    uncount_key(Key, Rates, ?UNHEARD, Counters);
uncount_rates(Key, Rates, Counters) ->
    uncount_key(Key, Rates, ?HELD_AT, Counters).

uncount_key(Key, Rates, At, Counters) ->
    case ets:lookup_element(table(Key, Counters), Key, 2, none) of
        none -> ok;
        Array -> uncount_all(Rates, Array, At, 1)
    end.

uncount_all(Rates, Words, At, Count) ->
    lists:foreach(fun(Rate) -> uncount(Rate, Words, At, Count) end, Rates).

-doc "Takes back one message that `take_tenant/5` has counted in `Rates`.".
-spec uncount_tenant(key(), Rates :: [rate()], counters()) -> ok.
uncount_tenant(Key, Rates, #counters{keyed = Keyed} = Counters) ->
    case {rate_nodes(Rates, Counters), ets:lookup_element(Keyed, Key, 2, none)} of
        {_, none} ->
            ok;
        {1, Array} ->
            uncount_all(Rates, Array, ?HELD_AT, 1);
        {Nodes, Array} ->
            ok = uncount_all(Rates, Array, ?HELD_AT, Nodes),
            atomics:sub(Array, ?UNHEARD, 1)
    end.

-doc "Returns an account for each tenant that has a counter. `Rates` are the rates of a tenant.".
-spec accounts(Rates :: [rate()], counters()) -> [account()].
accounts(Rates, #counters{keyed = Keyed} = Counters) ->
    [{Key, Array, Rates, Counters} || {{principal, _} = Key, Array} <- ets:tab2list(Keyed)].

-doc "Returns the key of an account, which is the same on all nodes.".
-spec client(account()) -> key().
client({Key, _, _, _}) -> Key.

-doc """
Returns the number of an account's messages of which other nodes have not heard. The number is
negative if a message was taken back after they had heard of it.
""".
-spec unheard(account()) -> integer().
unheard({_, Array, _, _}) ->
    atomics:get(Array, ?UNHEARD).

-doc """
Records that all other nodes have heard of `Count` messages of an account. Each of these messages
has paid for `Nodes` messages (`t:paid/0`). From now on it has paid for itself alone.
""".
-spec heard_by_all(account(), Count :: integer(), Nodes :: pos_integer()) -> ok.
heard_by_all({_, Array, Rates, _}, Count, Nodes) ->
    ok = atomics:sub(Array, ?UNHEARD, Count),
    uncount_all(Rates, Array, ?HELD_AT, Count * (Nodes - 1)).

-doc """
Counts `Count` messages of the tenant `Key`, which another node has let in, at the time `Now`
(`now/1`). Counts them even if they exceed `Rates`. A negative `Count` takes messages back. Counts
nothing if there is no room for another key.
""".
-spec count_heard(key(), Count :: integer(), Rates :: [rate()], Now :: pos_integer(),
                  counters()) -> ok.
count_heard(Key, Count, Rates, Now, Counters) ->
    case find(Key, Counters) of
        {ok, Array} ->
            lists:foreach(fun({Period, _} = Rate) ->
                Index = ?HELD_AT + period(Period),
                change(Array, Index, fun(Paid) -> max(Paid, Now) + interval(Rate) * Count end)
            end, Rates);
        keys_full ->
            ok
    end.

change(Words, Index, Change) ->
    Before = atomics:get(Words, Index),
    case atomics:compare_exchange(Words, Index, Before, Change(Before)) of
        ok -> ok;
        _ -> change(Words, Index, Change)
    end.

-doc """
Returns for how many nanoseconds from now the messages of an account are paid for, in each period.
Each message counts as if it had paid for itself alone. Leaves out a period in which the messages
are paid for until now at most.
""".
-spec paid(account()) -> [paid()].
paid({_, Array, Rates, Counters}) ->
    Now = now(Counters),
    More = (rate_nodes(Rates, Counters) - 1) * atomics:get(Array, ?UNHEARD),
    [{Period, Ahead} || {Period, _} = Rate <- Rates,
                        Ahead <- [atomics:get(Array, ?HELD_AT + period(Period)) - Now
                                  - interval(Rate) * More],
                        Ahead > 0].

-doc """
Moves the time until which the messages of the tenant `Key` are paid for, in each rate. The new time
is at least the one that another node has reported as `Paid` (`paid/1`), counted from `Now`.
Messages of this node of which others have not heard are added to the reported time. Does nothing if
there is no room for another key.
""".
-spec pay(key(), [paid()], Rates :: [rate()], Now :: pos_integer(), counters()) -> ok.
pay(Key, Paid, Rates, Now, Counters) ->
    case find(Key, Counters) of
        {ok, Array} ->
            Own = rate_nodes(Rates, Counters) * atomics:get(Array, ?UNHEARD),
            _ = [change(Array, ?HELD_AT + period(Period),
                        fun(Until) -> max(Until, Now + Ahead + Own * interval(Rate)) end)
                 || {Period, _} = Rate <- Rates, {Of, Ahead} <- Paid, Of =:= Period],
            ok;
        keys_full ->
            ok
    end.

-doc "Gives the shares `Taken` back.".
-spec give(Taken :: [taken()], counters()) -> ok.
give([], _) ->
    ok;
give([{Counter, Share} | Taken], Counters) ->
    {Words, Index} = word(Counter, Counters),
    ok = give_word(Words, Index, Share, ?READ(Words, Index)),
    give(Taken, Counters).

give_word(Words, Index, Share, Word) ->
    case is_held(Share, Word) of
        true ->
            case atomics:compare_exchange(Words, Index, Word, Word - Share) of
                ok -> ok;
                Changed -> give_word(Words, Index, Share, Changed)
            end;
        false ->
            %% The share was taken for lost, and given back before (`correct/3`).
            ok
    end.

is_held(Share, Word) ->
    ?COUNT(Word) >= ?COUNT(Share) andalso ?COUNT(Word bsr ?BITS) >= ?COUNT(Share bsr ?BITS).

word(Counter, #counters{words = Words}) when is_atom(Counter) -> {Words, index(Counter)};
word(Array, _) -> {Array, ?HELD_AT}.

-doc """
Returns the value of a counter: the sum of the shares that were taken and not given back. The value
is 0 if the counter of a key does not exist.
""".
-spec held(name(), counters()) -> non_neg_integer().
held({_, _} = Key, Counters) ->
    case ets:lookup_element(table(Key, Counters), Key, 2, none) of
        none -> 0;
        Array -> held_word(Array, ?HELD_AT)
    end;
held(Name, #counters{words = Words}) ->
    held_word(Words, index(Name)).

held_word(Words, Index) ->
    Word = atomics:get(Words, Index),
    ?HELD(Word).

-doc "Begins the other generation, and returns the generation that is over now.".
-spec next_generation(counters()) -> generation().
next_generation(Counters) ->
    ?GENERATION_OF(change_state(fun(State) -> State bxor ?GENERATION end, Counters)).

-doc "Adds those shares of a permit that belong to a generation to the sums of that generation.".
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
Returns by how much the counts of a generation exceed the sums of its permits (`add_up/3`), for each
counter where they differ. The number is negative if a count is less than the sum.
""".
-spec unwritten(generation(), Sums :: #{counter() => pos_integer()}, counters()) ->
    #{counter() => integer()}.
unwritten(Generation, Sums, #counters{keyed = Keyed, own = Own} = Counters) ->
    Of = fun(Counter, More) ->
        {Words, Index} = word(Counter, Counters),
        Word = atomics:get(Words, Index),
        case count_of(Generation, Word) - maps:get(Counter, Sums, 0) of
            0 -> More;
            Differs -> More#{Counter => Differs}
        end
    end,
    lists:foldl(fun(Table, Found) ->
        ets:foldl(fun({_, Array}, More) -> Of(Array, More) end, Found, Table)
    end, lists:foldl(Of, #{}, [in_flight, asking, connections, waiting, waiting_bytes, streams]),
    [Keyed, Own]).

-doc "Subtracts the differences of `unwritten/3` from the counts of a generation that is over.".
-spec correct(generation(), #{counter() => integer()}, counters()) -> ok.
correct(Generation, Differences, Counters) ->
    maps:foreach(fun(Counter, More) -> correct(Counter, More, Generation, Counters) end,
                 Differences).

correct(Counter, More, Generation, Counters) when More > 0 ->
    give([{Counter, More bsl (?BITS * Generation)}], Counters);
correct(Counter, Less, Generation, Counters) ->
    {Words, Index} = word(Counter, Counters),
    atomics:add(Words, Index, -Less bsl (?BITS * Generation)).

-doc """
Removes the idle counters of keys: those of which no share is held, and whose messages are paid for
until now at most. A message that is counted for such a key at this moment is lost.
""".
-spec remove_idle(counters()) -> ok.
remove_idle(#counters{keyed = Keyed, own = Own} = Counters) ->
    Now = now(Counters),
    lists:foreach(fun(Table) ->
        ets:foldl(fun({_, Array} = Row, ok) ->
            case has_no_past(Array, Now)
                andalso atomics:compare_exchange(Array, ?HELD_AT, 0, ?REMOVED) =:= ok of
                true ->
                    true = ets:delete_object(Table, Row),
                    ok;
                false ->
                    ok
            end
        end, ok, Table)
    end, [Keyed, Own]).

has_no_past(Array, Now) ->
    lists:all(fun(At) -> atomics:get(Array, At) =< Now end,
              [At + period(Period) || At <- [?HELD_AT, ?UNHEARD],
                                      Period <- [second, minute, day]]).

-doc "Counts a request that begins to run now, and came in flight at `Since` (`now/1`).".
-spec add_start(Since :: pos_integer(), counters()) -> ok.
add_start(Since, #counters{load = Load} = Counters) ->
    Nanoseconds = now(Counters) - Since,
    counters:add(Load, ?STARTS, Nanoseconds bsr ?UNIT_BITS bsl ?STARTS_BITS bor 1).

-doc "Returns the sums of the requests that have started until now, for `starts_between/2`.".
-spec starts(counters()) -> starts().
starts(#counters{load = Load}) ->
    counters:get(Load, ?STARTS).

-doc """
Returns how many requests have started between two moments, and for how many nanoseconds these
requests together waited before they started. The result is wrong for more than 16,777,215 starts.
""".
-spec starts_between(Earlier :: starts(), Later :: starts()) ->
    {Count :: non_neg_integer(), Nanoseconds :: non_neg_integer()}.
starts_between(Earlier, Later) ->
    %% The difference is right even if a part has overflowed in between.
    Word = (Later - Earlier) band (?STARTS_WORD - 1),
    {Word band (1 bsl ?STARTS_BITS - 1), Word bsr ?STARTS_BITS bsl ?UNIT_BITS}.

-doc "Counts a request that has ended, with the reductions of its process.".
-spec add_work(Reductions :: non_neg_integer(), counters()) -> ok.
add_work(Reductions, #counters{load = Load}) ->
    ok = counters:add(Load, ?DONE, 1),
    counters:add(Load, ?WORK, Reductions).

-doc "Returns how many requests `add_work/2` has counted, and the sum of their reductions.".
-spec work(counters()) -> {Count :: non_neg_integer(), Reductions :: non_neg_integer()}.
work(#counters{load = Load}) ->
    {counters:get(Load, ?DONE), counters:get(Load, ?WORK)}.

-doc "Counts a request that found the limit of requests in flight reached.".
-spec add_refused(counters()) -> ok.
add_refused(#counters{load = Load}) ->
    counters:add(Load, ?REFUSED, 1).

-doc "Returns how many requests have found the limit of requests in flight reached.".
-spec refused(counters()) -> non_neg_integer().
refused(#counters{load = Load}) ->
    counters:get(Load, ?REFUSED).
