-module(erlmcp_gate_books).
-moduledoc """
The books of a gate: the words of the server's own bounds, the accounts (`m:erlmcp_accounts`), and
the ledger of who holds what of them (`m:erlmcp_ledger`), with the sums of what happened
(`m:erlmcp_gate_sums`). A value that all share; its tables belong to who made it. What is taken is a
list of shares; it is written down under a number, and is given back once, by who takes that away.
Whether what is counted and what is written down agree is for `m:erlmcp_gate_audit`.
""".

-export([new/1, now/1]).
-export([is_draining/1, drain/1, limit/1, limit/2, room/1, room/2, held/2, calls/1]).
-export([take_rates/4, give_rates/3, take_one/5, take_all/2, give/2, give_place/2]).
-export([take_place/1, take_freed/1]).
-export([enter/2, write/2, queue/3, add/3, hand_over/3, leave/2, leave_as/2, grant/4]).
-export([is_written/2]).
-export([put_queue/3, queue/1, queued/2, call_queue/1, tell_queue/1]).
-export([turn/1, indexes/1]).

%% Every request passes here twice.
-compile({inline, [take_place/3, tell_queue/1, generation/1]}).

-export_type([books/0, shares/0, want/0, key/0]).

-type books() :: #{
    words := erlmcp_account:words(), accounts := erlmcp_accounts:accounts(),
    ledger := erlmcp_ledger:ledger(), processes := ets:table(),
    sums := erlmcp_gate_sums:sums(), epoch := integer()
}.
-type shares() :: erlmcp_ledger:shares().
-doc "What is held of: the server's, or an account's.".
-type key() :: in_flight | connections | waiting | waiting_bytes | erlmcp_accounts:key().
-doc "An amount of that, of which so much may be held.".
-type want() :: {key(), Amount :: pos_integer(), Limit :: pos_integer()}.

%% The words of the server itself, before those of the accounts. Those that are written often are
%% so far apart that they share no line of a processor's cache.
-define(STATE, 1).
-define(ROOM, 2).
-define(IN_FLIGHT, 9).
-define(CONNECTIONS, 17).
-define(RATES, 25).
-define(WAITING, 33).
-define(WAITING_BYTES, 34).
-define(WORDS, 40).

%% What all who enter and leave look at is one word, since each look at one is a barrier: whether
%% nobody may enter any more, which generation it is, whether the gate's queue is to be told of a
%% free place, how many places there are, and how many are in the queue.
-define(DRAINING, 2#1).
-define(GENERATION, 2#10).
-define(CALLED, 2#100).
-define(LIMIT_AT, 3).
-define(QUEUED_AT, 31).
-define(MOST, (1 bsl 28 - 1)).
-define(GENERATION_OF(State), (((State) bsr 1) band 1)).
-define(LIMIT_OF(State), (((State) bsr ?LIMIT_AT) band ?MOST)).
-define(QUEUED_OF(State), ((State) bsr ?QUEUED_AT)).

%% So many requests of a tenant may wait in any case: what comes in one burst of a few callers.
-define(LEAST_ROOM, 10).

-doc "Books with so many accounts. Any number of requests may be in flight, until `limit/2`.".
-spec new(Accounts :: pos_integer()) -> books().
new(Most) ->
    #{words := Words} = Accounts = erlmcp_accounts:new(Most, ?WORDS),
    ok = atomics:put(Words, ?STATE, erlmcp_account:most() bsl ?LIMIT_AT),
    ok = atomics:put(Words, ?ROOM, erlmcp_account:most()),
    #{words => Words, accounts => Accounts, ledger => erlmcp_ledger:new(),
      processes => ets:new(erlmcp_gate_processes, [public, {read_concurrency, true}]),
      sums => erlmcp_gate_sums:new(),
      %% Zero is before all that a rate counts.
      epoch => erlang:monotonic_time(nanosecond) - 1}.

-doc "The time of the rates, in nanoseconds.".
-spec now(books()) -> pos_integer().
now(#{epoch := Epoch}) when is_integer(Epoch) ->
    erlang:monotonic_time(nanosecond) - Epoch.

-doc "Whether nobody may enter any more.".
-spec is_draining(books()) -> boolean().
is_draining(#{words := Words}) ->
    atomics:get(Words, ?STATE) band ?DRAINING =/= 0.

-doc "Nobody may enter any more.".
-spec drain(books()) -> ok.
drain(#{words := Words}) ->
    _ = change(fun(State) -> State bor ?DRAINING end, Words),
    ok.

%% Gives what it was.
change(Change, Words) ->
    change(Change, Words, atomics:get(Words, ?STATE)).

change(Change, Words, State) ->
    case atomics:compare_exchange(Words, ?STATE, State, Change(State)) of
        ok -> State;
        Other -> change(Change, Words, Other)
    end.

-doc "How many requests may be in flight.".
-spec limit(books()) -> pos_integer().
limit(#{words := Words}) ->
    ?LIMIT_OF(atomics:get(Words, ?STATE)).

-doc "From now on so many may.".
-spec limit(pos_integer(), books()) -> ok.
limit(Limit, #{words := Words} = Books) ->
    Places = min(Limit, erlmcp_account:most()),
    _ = change(fun(State) ->
                   State band bnot (?MOST bsl ?LIMIT_AT) bor (Places bsl ?LIMIT_AT)
               end, Words),
    tell_queue(Books).

-doc """
How many requests of one tenant may wait, beside the bound on them: as many as the room for all has
left. So one tenant gets half of it at most, two get a third each, and what is left is another's.
""".
-spec room(books()) -> pos_integer().
room(#{words := Words}) ->
    max(?LEAST_ROOM, atomics:get(Words, ?ROOM) - erlmcp_account:held(Words, ?WAITING)).

-doc "From now on there is room for so many.".
-spec room(pos_integer(), books()) -> ok.
room(Room, #{words := Words}) ->
    atomics:put(Words, ?ROOM, min(Room, erlmcp_account:most())).

-doc "How much is held of this.".
-spec held(key(), books()) -> non_neg_integer().
held({_, _} = Key, #{words := Words, accounts := Accounts}) ->
    case erlmcp_accounts:known(Key, Accounts) of
        {ok, Index} -> erlmcp_account:held(Words, Index);
        none -> 0
    end;
held(Key, #{words := Words}) ->
    erlmcp_account:held(Words, index(Key)).

-doc "The words that count what is held: the server's, and those of all accounts.".
-spec indexes(books()) -> [erlmcp_account:index()].
indexes(#{accounts := Accounts}) ->
    [?IN_FLIGHT, ?CONNECTIONS, ?WAITING, ?WAITING_BYTES | erlmcp_accounts:indexes(Accounts)].

index(in_flight) -> ?IN_FLIGHT;
index(connections) -> ?CONNECTIONS;
index(waiting) -> ?WAITING;
index(waiting_bytes) -> ?WAITING_BYTES.

-doc "Counts a message in the rates of the server or of an account; in all of them, or in none.".
-spec take_rates(server | erlmcp_accounts:key(), [erlmcp_rate:rate()], Now :: pos_integer(),
                 books()) ->
    ok | {wait, erlmcp_rate:rate(), Milliseconds :: pos_integer()} | full.
take_rates(server, Rates, Now, #{words := Words}) ->
    erlmcp_rate:take_all(Rates, Words, ?RATES, Now);
take_rates(Key, Rates, Now, #{words := Words, accounts := Accounts}) ->
    maybe
        {ok, Index} ?= erlmcp_accounts:find(Key, Accounts),
        erlmcp_rate:take_all(Rates, Words, Index, Now)
    end.

-doc "A message that was counted in rates of an account did not come after all.".
-spec give_rates(erlmcp_accounts:key(), [erlmcp_rate:rate()], books()) -> ok.
give_rates(Key, Rates, #{words := Words, accounts := Accounts}) ->
    case erlmcp_accounts:known(Key, Accounts) of
        {ok, Index} -> erlmcp_rate:give_all(Rates, Words, Index);
        none -> ok
    end.

-doc "Counts a message in rates of an account, and takes one of what it holds.".
-spec take_one(erlmcp_accounts:key(), [erlmcp_rate:rate()], Limit :: pos_integer(),
               Now :: pos_integer(), books()) ->
    {ok, shares()}
    | {full, Observed :: pos_integer()}
    | {wait, erlmcp_rate:rate(), Milliseconds :: pos_integer()}
    | full.
take_one(Key, Rates, Limit, Now, #{words := Words, accounts := Accounts}) ->
    case erlmcp_accounts:take(Key, {Rates, Now}, generation(Words), Limit, Accounts) of
        {ok, Share} -> {ok, [Share]};
        Refused -> Refused
    end.

-doc "Takes all of this, or nothing and says of what there is not enough.".
-spec take_all([want()], books()) ->
    {ok, shares()} | {full, want(), Observed :: pos_integer()} | full.
take_all(Wants, #{words := Words} = Books) ->
    take_all(Wants, generation(Words), [], Books).

take_all([], _, Taken, _) ->
    {ok, Taken};
take_all([{Key, Amount, Limit} = Want | Wants], Generation, Taken, Books) ->
    case take_share(Key, {Amount, Generation}, Limit, Books) of
        {ok, Share} ->
            take_all(Wants, Generation, [Share | Taken], Books);
        {full, Observed} ->
            ok = give(Taken, Books),
            {full, Want, Observed};
        full ->
            ok = give(Taken, Books),
            full
    end.

take_share({_, _} = Key, {1, Generation}, Limit, #{accounts := Accounts}) ->
    erlmcp_accounts:take(Key, {[], 1}, Generation, Limit, Accounts);
take_share(Key, Amount, Limit, #{words := Words}) ->
    Index = index(Key),
    case erlmcp_account:take(Words, Index, Amount, Limit) of
        {ok, Share} -> {ok, {Index, Share}};
        Full -> Full
    end.

-doc """
Takes a place in flight, where one is left when all that are in the queue have theirs: nobody
overtakes them.
""".
-spec take_place(books()) -> {ok, shares()} | {full, Limit :: pos_integer(), pos_integer()}.
take_place(#{words := Words}) ->
    State = atomics:get(Words, ?STATE),
    take_place(?QUEUED_OF(State), State, Words).

-doc "Takes one for who is first in the queue.".
-spec take_freed(books()) -> {ok, shares()} | {full, Limit :: pos_integer(), pos_integer()}.
take_freed(#{words := Words}) ->
    take_place(0, atomics:get(Words, ?STATE), Words).

%% The queue is looked at first. When the place is taken at the first try nothing has changed since
%% of what is in flight, and so those that were in the queue then have got theirs, or find them. At
%% a later one it may overtake who came to the queue meanwhile.
take_place(Queued, State, Words) ->
    Limit = ?LIMIT_OF(State),
    Amount = {1, ?GENERATION_OF(State)},
    case erlmcp_account:take(Words, ?IN_FLIGHT, Amount, Limit - Queued) of
        {ok, Share} -> {ok, [{?IN_FLIGHT, Share}]};
        {full, Observed} -> {full, Limit, Observed}
    end.

-doc "Gives back what was taken, and is not written down.".
-spec give(shares(), books()) -> ok.
give([], _) ->
    ok;
give([{Index, Share} | Shares], #{words := Words} = Books) ->
    ok = erlmcp_account:give(Words, Index, Share),
    give(Shares, Books).

-doc "Gives back a place that was taken, and is not written down.".
-spec give_place(shares(), books()) -> ok.
give_place(Place, Books) ->
    ok = give(Place, Books),
    tell_queue(Books).

-doc """
The calling process holds this, and a place in flight, where one is left for it (`take_place/1`) and
it may enter: the number that it is written down under.
""".
-spec enter(shares(), books()) ->
    erlmcp_ledger:id() | {full, Limit :: pos_integer(), pos_integer()} | draining.
enter(Held, #{words := Words, ledger := Ledger}) ->
    State = atomics:get(Words, ?STATE),
    case State band ?DRAINING =/= 0 orelse take_place(?QUEUED_OF(State), State, Words) of
        {ok, [Place]} ->
            erlmcp_ledger:write(erlang:unique_integer(), [Place | Held], [], Ledger);
        {full, _, _} = Full ->
            Full;
        true ->
            draining
    end.

-doc "The calling process holds this: the number that it is written down under.".
-spec write(shares(), books()) -> erlmcp_ledger:id().
write(Held, #{ledger := Ledger}) ->
    erlmcp_ledger:write(erlang:unique_integer(), Held, [], Ledger).

-doc """
The same of who waits, with what it holds as long as it does. Who comes later has a higher number.
""".
-spec queue(Held :: shares(), Waits :: shares(), books()) -> erlmcp_ledger:id().
queue(Held, Waits, #{ledger := Ledger}) ->
    %% The integers of other modifiers are others, but not other numbers; those of `write/2` begin
    %% far below zero.
    erlmcp_ledger:write(erlang:unique_integer([monotonic, positive]), Held, Waits, Ledger).

-doc "More is held, which is given back at once where the number is gone.".
-spec add(erlmcp_ledger:id(), shares(), books()) -> ok.
add(Id, Shares, #{ledger := Ledger} = Books) ->
    case erlmcp_ledger:add(Id, Shares, Ledger) of
        true -> ok;
        false -> give(Shares, Books)
    end.

-doc "Another process holds it.".
-spec hand_over(erlmcp_ledger:id(), pid(), books()) -> ok.
hand_over(Id, Pid, #{ledger := Ledger}) ->
    _ = erlmcp_ledger:hand_over(Id, Pid, Ledger),
    ok.

-doc "Gives back what is written down under a number, if that was not done before.".
-spec leave(erlmcp_ledger:id(), books()) -> ok.
leave(Id, #{words := Words, ledger := Ledger} = Books) ->
    %% Whoever gets the row gives back what it says. No call of the ledger's: every request leaves.
    case ets:take(Ledger, Id) of
        %% As most have it.
        [{_, _, [{Index, Share}], []}] ->
            ok = erlmcp_account:give(Words, Index, Share),
            tell_queue(Books);
        [Row] ->
            left(Row, Books);
        [] ->
            ok
    end.

-doc "The same of a row as it was read; `false` where it is another's now, holds else, or is gone.".
-spec leave_as(erlmcp_ledger:row(), books()) -> boolean().
leave_as(Row, #{ledger := Ledger} = Books) ->
    Taken = erlmcp_ledger:take_as(Row, Ledger),
    ok = case Taken of
        true -> left(Row, Books);
        false -> ok
    end,
    Taken.

left({_, _, Held, Waits}, Books) ->
    ok = give(Held, Books),
    ok = give(Waits, Books),
    tell_queue(Books).

-doc """
Who waits, and holds this and for waiting that, has a place too, and waits no longer. `false` where
it has left.
""".
-spec grant(erlmcp_ledger:id(), Place :: shares(), {Held :: shares(), Waits :: shares()},
            books()) -> boolean().
grant(Id, Place, {Held, Waits}, #{ledger := Ledger} = Books) ->
    erlmcp_ledger:replace(Id, Place ++ Held, Ledger) andalso give(Waits, Books) =:= ok.

-doc "Whether a number still stands for what somebody holds.".
-spec is_written(erlmcp_ledger:id(), books()) -> boolean().
is_written(Id, #{ledger := Ledger}) ->
    erlmcp_ledger:has(Id, Ledger).

-doc "Who holds a place of a request, or waits for one.".
-spec calls(books()) -> [pid()].
calls(#{ledger := Ledger}) ->
    [Pid || {_, Pid, Held, Waits} <- erlmcp_ledger:rows(Ledger),
            Waits =/= [] orelse lists:keymember(?IN_FLIGHT, 1, Held)].

-doc "This is the gate's queue, where nobody waits longer than this; nobody is in it.".
-spec put_queue(pid(), LongestMs :: pos_integer(), books()) -> ok.
put_queue(Pid, Longest, #{processes := Processes, words := Words} = Books) ->
    true = ets:insert(Processes, {queue, {Pid, Longest}}),
    _ = change(fun(State) -> State band bnot ?CALLED end, Words),
    queued(0, Books).

-doc "The gate's queue; `none` while it is started.".
-spec queue(books()) -> {pid(), LongestMs :: pos_integer()} | none.
queue(#{processes := Processes}) ->
    ets:lookup_element(Processes, queue, 2, none).

-doc "So many are in the queue.".
-spec queued(non_neg_integer(), books()) -> ok.
queued(Count, #{words := Words}) ->
    _ = change(fun(State) ->
                   State band (1 bsl ?QUEUED_AT - 1) bor (Count bsl ?QUEUED_AT)
               end, Words),
    ok.

-doc """
The queue, which has found no place, is sent `turn`, once, when there is one. It has to look again
after this: who left before has told nobody.
""".
-spec call_queue(books()) -> ok.
call_queue(#{words := Words}) ->
    _ = change(fun(State) -> State bor ?CALLED end, Words),
    ok.

-doc "There may be a place for who waits: the queue hears of it, where it asked to be called.".
-spec tell_queue(books()) -> ok.
tell_queue(#{words := Words} = Books) ->
    case atomics:get(Words, ?STATE) band ?CALLED of
        0 -> ok;
        _ -> tell_called(change(fun(State) -> State band bnot ?CALLED end, Words), Books)
    end.

tell_called(Before, _) when Before band ?CALLED =:= 0 ->
    ok;
tell_called(_, Books) ->
    case queue(Books) of
        none -> ok;
        {Queue, _} -> Queue ! turn, ok
    end.

-doc "The other generation begins; gives the one that is over.".
-spec turn(books()) -> erlmcp_account:generation().
turn(#{words := Words}) ->
    %% The keeper alone changes it.
    ?GENERATION_OF(change(fun(State) -> State bxor ?GENERATION end, Words)).

generation(Words) ->
    ?GENERATION_OF(atomics:get(Words, ?STATE)).
