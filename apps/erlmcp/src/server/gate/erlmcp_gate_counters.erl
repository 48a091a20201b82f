-module(erlmcp_gate_counters).
-moduledoc """
The books of a gate: the words of the server's own bounds, the accounts (`m:erlmcp_gate_accounts`),
and the ledger of who holds what of them (`m:erlmcp_gate_permits`), with the sums of what happened
(`m:erlmcp_gate_sums`). A value that all share; its tables belong to who made it. What is taken is a
list of shares; it is written down under a number, and is given back once, by who takes that away. A
place that a process has for itself alone is in its seat instead (`m:erlmcp_gate_seat`). Whether
what is counted and what is written down agree is for `m:erlmcp_gate_audit`.

Internal.
""".

-export([new/1, now/1]).
-export([is_draining/1, drain/1, limit/1, limit/2, room/1, room/2, held/2, calls/1]).
-export([take_rates/4, give_rates/3, take_one/5, take_all/2, give/2, give_place/2]).
-export([take_place/1, take_freed/1]).
-export([enter/2, write/2, queue/3, add/3, unseat/2, hand_over/3, leave/2, leave_as/2, grant/4]).
-export([give_up_seat/1, holding/1, is_written/2]).
-export([put_queue/3, queue/1, queued/2, call_queue/1, tell_queue/1]).
-export([turn/1, indexes/1]).

%% Every request passes here twice.
-compile({inline, [leave_row/2, give_share/2, told/2]}).

-export_type([books/0, shares/0, want/0, key/0]).

-type books() :: #{
    words := erlmcp_gate_account:words(), accounts := erlmcp_gate_accounts:accounts(),
    ledger := erlmcp_gate_permits:ledger(), processes := ets:table(),
    sums := erlmcp_gate_sums:sums(), epoch := integer()
}.
-type shares() :: erlmcp_gate_permits:shares().
-doc "What is held of: the server's, or an account's.".
-type key() :: in_flight | connections | waiting | waiting_bytes | erlmcp_gate_accounts:key().
-doc "An amount of that, of which so much may be held.".
-type want() :: {key(), Amount :: pos_integer(), Limit :: pos_integer()}.

%% The words of the server itself, before those of the accounts; IN_FLIGHT is beside the
%% one of `m:erlmcp_gate_state`, which the same change. Others that are written often are so far
%% apart that they share no line of a processor's cache, nor the one in which the array's size is:
%% eight words. The words of the rates are the three behind RATES.
-define(IN_FLIGHT, 10).
-define(ROOM, 2).
-define(CONNECTIONS, 18).
-define(RATES, 25).
-define(WAITING, 36).
-define(WAITING_BYTES, 37).
-define(WORDS, 44).

%% So many requests of a tenant may wait in any case: what comes in one burst of a few callers.
-define(LEAST_ROOM, 10).

-doc "Books with so many accounts. Any number of requests may be in flight, until `limit/2`.".
-spec new(Accounts :: pos_integer()) -> books().
new(Most) ->
    #{words := Words} = Accounts = erlmcp_gate_accounts:new(Most, ?WORDS),
    ok = erlmcp_gate_state:new(Words),
    ok = atomics:put(Words, ?ROOM, erlmcp_gate_account:most()),
    #{words => Words, accounts => Accounts, ledger => erlmcp_gate_permits:new(),
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
    erlmcp_gate_state:is_draining(Words).

-doc "Nobody may enter any more.".
-spec drain(books()) -> ok.
drain(#{words := Words}) ->
    erlmcp_gate_state:drain(Words).

-doc "How many requests may be in flight.".
-spec limit(books()) -> pos_integer().
limit(#{words := Words}) ->
    erlmcp_gate_state:limit(Words).

-doc "From now on so many may.".
-spec limit(pos_integer(), books()) -> ok.
limit(Limit, #{words := Words} = Books) ->
    ok = erlmcp_gate_state:limit(Limit, Words),
    tell_queue(Books).

-doc """
How many requests of one tenant may wait, beside the bound on them: as many as the room for all has
left. So one tenant gets half of it at most, two get a third each, and what is left is another's.
""".
-spec room(books()) -> pos_integer().
room(#{words := Words}) ->
    max(?LEAST_ROOM, atomics:get(Words, ?ROOM) - erlmcp_gate_account:held(Words, ?WAITING)).

-doc "From now on there is room for so many.".
-spec room(pos_integer(), books()) -> ok.
room(Room, #{words := Words}) ->
    atomics:put(Words, ?ROOM, min(Room, erlmcp_gate_account:most())).

-doc "How much is held of this.".
-spec held(key(), books()) -> non_neg_integer().
held({_, _} = Key, #{words := Words, accounts := Accounts}) ->
    case erlmcp_gate_accounts:known(Key, Accounts) of
        {ok, Index} -> erlmcp_gate_account:held(Words, Index);
        none -> 0
    end;
held(Key, #{words := Words}) ->
    erlmcp_gate_account:held(Words, index(Key)).

-doc "The words that count what is held: the server's, and those of all accounts.".
-spec indexes(books()) -> [erlmcp_gate_account:index()].
indexes(#{accounts := Accounts}) ->
    [?IN_FLIGHT, ?CONNECTIONS, ?WAITING, ?WAITING_BYTES | erlmcp_gate_accounts:indexes(Accounts)].

index(in_flight) -> ?IN_FLIGHT;
index(connections) -> ?CONNECTIONS;
index(waiting) -> ?WAITING;
index(waiting_bytes) -> ?WAITING_BYTES.

-doc "Counts a message in the rates of the server or of an account; in all of them, or in none.".
-spec take_rates(server | erlmcp_gate_accounts:key(), [erlmcp_rate:rate()], Now :: pos_integer(),
                 books()) ->
    ok | {wait, erlmcp_rate:rate(), Milliseconds :: pos_integer()} | full.
take_rates(server, Rates, Now, #{words := Words}) ->
    erlmcp_rate:take_all(Rates, Words, ?RATES, Now);
take_rates(Key, Rates, Now, #{words := Words, accounts := Accounts}) ->
    maybe
        {ok, Index} ?= erlmcp_gate_accounts:find(Key, Accounts),
        erlmcp_rate:take_all(Rates, Words, Index, Now)
    end.

-doc "A message that was counted in rates of an account did not come after all.".
-spec give_rates(erlmcp_gate_accounts:key(), [erlmcp_rate:rate()], books()) -> ok.
give_rates(Key, Rates, #{words := Words, accounts := Accounts}) ->
    case erlmcp_gate_accounts:known(Key, Accounts) of
        {ok, Index} -> erlmcp_rate:give_all(Rates, Words, Index);
        none -> ok
    end.

-doc "Counts a message in rates of an account, and takes one of what it holds.".
-spec take_one(erlmcp_gate_accounts:key(), [erlmcp_rate:rate()], Limit :: pos_integer(),
               Now :: pos_integer(), books()) ->
    {ok, shares()}
    | {full, Observed :: pos_integer()}
    | {wait, erlmcp_rate:rate(), Milliseconds :: pos_integer()}
    | full.
take_one(Key, Rates, Limit, Now, #{words := Words, accounts := Accounts}) ->
    Generation = erlmcp_gate_state:generation(Words),
    case erlmcp_gate_accounts:take(Key, {Rates, Now}, Generation, Limit, Accounts) of
        {ok, Share} -> {ok, [Share]};
        Refused -> Refused
    end.

-doc "Takes all of this, or nothing and says of what there is not enough.".
-spec take_all([want()], books()) ->
    {ok, shares()} | {full, want(), Observed :: pos_integer()} | full.
take_all(Wants, #{words := Words} = Books) ->
    take_all(Wants, erlmcp_gate_state:generation(Words), [], Books).

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
    erlmcp_gate_accounts:take(Key, {[], 1}, Generation, Limit, Accounts);
take_share(Key, Amount, Limit, #{words := Words}) ->
    Index = index(Key),
    case erlmcp_gate_account:take(Words, Index, Amount, Limit) of
        {ok, Share} -> {ok, {Index, Share}};
        Full -> Full
    end.

-doc """
Takes a place in flight, where one is left when all that are in the queue have theirs: nobody
overtakes them.
""".
-spec take_place(books()) -> {ok, shares()} | {full, Limit :: pos_integer(), pos_integer()}.
take_place(#{words := Words}) ->
    of_place(erlmcp_gate_state:take_place(?IN_FLIGHT, Words)).

-doc "Takes one for who is first in the queue.".
-spec take_freed(books()) -> {ok, shares()} | {full, Limit :: pos_integer(), pos_integer()}.
take_freed(#{words := Words}) ->
    of_place(erlmcp_gate_state:take_freed(?IN_FLIGHT, Words)).

of_place({full, _, _} = Full) -> Full;
of_place(Share) -> {ok, [{?IN_FLIGHT, Share}]}.

-doc "Gives back what was taken, and is not written down.".
-spec give(shares(), books()) -> ok.
give([], _) ->
    ok;
give([{Index, Share} | Shares], #{words := Words} = Books) ->
    ok = erlmcp_gate_account:give(Words, Index, Share),
    give(Shares, Books).

-doc "Gives back a place that was taken, and is not written down.".
-spec give_place(shares(), books()) -> ok.
give_place(Place, Books) ->
    ok = give(Place, Books),
    tell_queue(Books).

-doc """
The calling process holds this, and a place in flight, where one is left for it (`take_place/1`) and
it may enter: what it is written down under. A place alone is in its seat, where that is free.
""".
-spec enter(shares(), books()) ->
    erlmcp_gate_permits:id() | {full, Limit :: pos_integer(), pos_integer()} | draining.
enter(Held, #{words := Words, ledger := Ledger} = Books) ->
    case erlmcp_gate_state:enter(?IN_FLIGHT, Words) of
        Share when is_integer(Share), Held =:= [] ->
            case erlmcp_gate_seat:take(Share, Ledger) of
                none -> write([{?IN_FLIGHT, Share}], Books);
                Taken -> Taken
            end;
        Share when is_integer(Share) ->
            write([{?IN_FLIGHT, Share} | Held], Books);
        Refused ->
            Refused
    end.

-doc "The calling process holds this: the number that it is written down under.".
-spec write(shares(), books()) -> erlmcp_gate_permits:id().
write(Held, #{ledger := Ledger}) ->
    erlmcp_gate_permits:write(erlang:unique_integer(), Held, [], Ledger).

-doc """
The same of who waits, with what it holds as long as it does. Who comes later has a higher number.
""".
-spec queue(Held :: shares(), Waits :: shares(), books()) -> erlmcp_gate_permits:id().
queue(Held, Waits, #{ledger := Ledger}) ->
    %% The integers of other modifiers are others, but not other numbers; those of `write/2` begin
    %% far below zero.
    erlmcp_gate_permits:write(erlang:unique_integer([monotonic, positive]), Held, Waits, Ledger).

-doc "More is held, which is given back at once where the number is gone.".
-spec add(erlmcp_gate_permits:id(), shares(), books()) -> ok.
add(Id, Shares, #{ledger := Ledger} = Books) ->
    ok = unseat(Id, Books),
    case erlmcp_gate_permits:add(Id, Shares, Ledger) of
        true -> ok;
        false -> give(Shares, Books)
    end.

-doc "What is in a seat has a row of its own instead, which the calling process holds.".
-spec unseat(erlmcp_gate_permits:id(), books()) -> ok.
unseat({_, _} = Taken, #{ledger := Ledger}) ->
    case erlmcp_gate_seat:leave(Taken) of
        none ->
            ok;
        Share ->
            _ = erlmcp_gate_permits:write(Taken, [{?IN_FLIGHT, Share}], [], Ledger),
            ok
    end;
unseat(_, _) ->
    ok.

-doc "Another process holds it, which is in no seat.".
-spec hand_over(erlmcp_gate_permits:id(), pid(), books()) -> ok.
hand_over(Id, Pid, #{ledger := Ledger}) ->
    _ = erlmcp_gate_permits:hand_over(Id, Pid, Ledger),
    ok.

-doc "Gives back what is written down under a number, if that was not done before.".
-spec leave(erlmcp_gate_permits:id(), books()) -> ok.
leave({_, _} = Taken, Books) ->
    case erlmcp_gate_seat:leave(Taken) of
        none -> leave_row(Taken, Books);
        Share -> give_share(Share, Books)
    end;
leave(Id, Books) ->
    leave_row(Id, Books).

%% Whoever gets the row gives back what it says. No call of the ledger's: many requests leave here.
leave_row(Id, #{ledger := Ledger} = Books) ->
    case ets:take(Ledger, Id) of
        %% As most have it.
        [{_, _, [{?IN_FLIGHT, Share}], []}] -> give_share(Share, Books);
        [Row] -> left(Row, Books);
        [] -> ok
    end.

give_share(none, _) ->
    ok;
give_share(Share, #{words := Words} = Books) ->
    told(erlmcp_gate_state:give_place(?IN_FLIGHT, Share, Words), Books).

told(false, _) -> ok;
told(true, Books) -> send_turn(queue(Books)).

-doc "The calling process will not enter any more, for a while at least.".
-spec give_up_seat(books()) -> ok.
give_up_seat(#{ledger := Ledger}) ->
    erlmcp_gate_seat:give_up(Ledger).

-doc "The same of a row as it was read; `false` where it is another's now, holds else, or is gone.".
-spec leave_as(erlmcp_gate_permits:row(), books()) -> boolean().
leave_as({_, Seat} = Row, #{ledger := Ledger} = Books) ->
    ok = give_share(erlmcp_gate_seat:clear(Seat), Books),
    erlmcp_gate_permits:take_seat(Row, Ledger);
leave_as(Row, #{ledger := Ledger} = Books) ->
    Taken = erlmcp_gate_permits:take_as(Row, Ledger),
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
-spec grant(erlmcp_gate_permits:id(), Place :: shares(), {Held :: shares(), Waits :: shares()},
            books()) -> boolean().
grant(Id, Place, {Held, Waits}, #{ledger := Ledger} = Books) ->
    erlmcp_gate_permits:replace(Id, Place ++ Held, Ledger) andalso give(Waits, Books) =:= ok.

-doc "Whether a number still stands for what somebody holds.".
-spec is_written(erlmcp_gate_permits:id(), books()) -> boolean().
is_written(Id, #{ledger := Ledger}) ->
    erlmcp_gate_permits:has(Id, Ledger).

-doc "Who holds what, as a row says it, or a seat as it is now; and what of that for waiting.".
-spec holding(erlmcp_gate_permits:row()) -> {pid(), Held :: shares(), Waits :: shares()}.
holding({Holder, Seat}) ->
    case erlmcp_gate_seat:held(Seat) of
        none -> {Holder, [], []};
        Share -> {Holder, [{?IN_FLIGHT, Share}], []}
    end;
holding({_, Holder, Held, Waits}) ->
    {Holder, Held, Waits}.

-doc "Who holds a place of a request, or waits for one.".
-spec calls(books()) -> [pid()].
calls(#{ledger := Ledger}) ->
    [Pid || {Pid, Held, Waits} <- lists:map(fun holding/1, erlmcp_gate_permits:rows(Ledger)),
            Waits =/= [] orelse lists:keymember(?IN_FLIGHT, 1, Held)].

-doc "This is the gate's queue, where nobody waits longer than this; nobody is in it.".
-spec put_queue(pid(), LongestMs :: pos_integer(), books()) -> ok.
put_queue(Pid, Longest, #{processes := Processes, words := Words} = Books) ->
    true = ets:insert(Processes, {queue, {Pid, Longest}}),
    _ = erlmcp_gate_state:was_called(?IN_FLIGHT, Words),
    queued(0, Books).

-doc "The gate's queue; `none` while it is started.".
-spec queue(books()) -> {pid(), LongestMs :: pos_integer()} | none.
queue(#{processes := Processes}) ->
    ets:lookup_element(Processes, queue, 2, none).

-doc "So many are in the queue.".
-spec queued(non_neg_integer(), books()) -> ok.
queued(Count, #{words := Words}) ->
    erlmcp_gate_state:queued(Count, Words).

-doc """
The queue, which has found no place, is sent `turn`, once, when there is one. It has to look again
after this: who left before has told nobody.
""".
-spec call_queue(books()) -> ok.
call_queue(#{words := Words}) ->
    erlmcp_gate_state:call_queue(?IN_FLIGHT, Words).

-doc "There may be a place for who waits: the queue hears of it, where it asked to be called.".
-spec tell_queue(books()) -> ok.
tell_queue(#{words := Words} = Books) ->
    told(erlmcp_gate_state:was_called(?IN_FLIGHT, Words), Books).

send_turn(none) -> ok;
send_turn({Queue, _}) -> Queue ! turn, ok.

-doc "The other generation begins; gives the one that is over.".
-spec turn(books()) -> erlmcp_gate_account:generation().
turn(#{words := Words}) ->
    erlmcp_gate_state:turn(Words).
