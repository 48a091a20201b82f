-module(erlmcp_worker_table).
-moduledoc """
The workers of a pool and the calls that have them, in a table. A call takes a worker from the
table, and gives it back, without a message to a process. The pool's process (`m:erlmcp_workers`)
adds and removes workers, which have numbered seats, and counts the calls that wait.

Internal.
""".

%% A call takes a worker by inserting a row that names the worker and the call. A worker has at most
%% one such row, so the table always shows which call has it. Each seat also has an atomic, its
%% word, which says whether the seat is worth a try: whether it may have a free worker. The word can
%% be wrong if a process is killed between two steps, and `mend/1` corrects it. The word also counts
%% the workers that were removed from the seat.

-export([new/1, seat/4, unseat/3]).
-export([borrow/2, give_back/2, take/2, leave/2]).
-export([withdraw/2, is_taken/2, taken/2, worker/1, mend/1, counts/1]).
-export([await/2, awaited/1, used/2, used_ms/1, now_us/0]).

%% Taking a worker and giving it back costs little more than calls of functions.
-compile({inline, [take/2, claimed/4, leave/2, used/2, awaited/1, now_us/0]}).

-export_type([seats/0, claim/0, seat/0]).

-opaque seats() :: {ets:table(), atomics:atomics_ref(), Size :: pos_integer()}.
-type seat() :: pos_integer().
%% The time is monotonic, in microseconds; the word is the seat's at that time.
-opaque claim() ::
    {{taken, Worker :: pid()}, Borrower :: pid(), Since :: integer(), seat(), Word :: integer()}.

%% The words are the number of waiting calls, the mean time of a loan in microseconds, and one word
%% for each seat. A seat's word is odd if the seat is worth a try, and grows by two with each
%% removed worker. No two words share a line of a processor's cache.
-define(STRIDE, 8).
-define(WAITING, 1).
-define(USED, (1 + ?STRIDE)).
-define(SEAT(Number), (1 + ?STRIDE * (1 + (Number)))).
%% The newest loan counts for a fifth of that mean.
-define(PART, 5).

-doc "Creates empty seats for `Size` workers. The table belongs to the calling process.".
-spec new(Size :: pos_integer()) -> seats().
new(Size) ->
    %% Its size is not read, and each row is written about as often as it is read.
    {ets:new(?MODULE, [public, {write_concurrency, true}, {decentralized_counters, true}]),
     atomics:new(?SEAT(Size), []), Size}.

-doc "Adds `Worker`, whose process is `Pid`, at the seat `Number`.".
-spec seat(seat(), pid(), Worker :: term(), seats()) -> ok.
seat(Number, Pid, Worker, {Table, _, _} = Seats) ->
    true = ets:insert(Table, {Number, Pid, Worker}),
    worth_a_try(Number, Seats).

-doc """
Removes the worker whose process is `Pid` from the seat `Number`, and from the call that has the
worker, if there is one.
""".
-spec unseat(seat(), pid(), seats()) -> ok.
unseat(Number, Pid, {Table, Words, _}) ->
    %% The order matters. A call that takes the worker at the same time either sees the new count,
    %% or has inserted its row before that.
    true = ets:match_delete(Table, {Number, Pid, '_'}),
    ok = atomics:add(Words, ?SEAT(Number), 2),
    true = ets:delete(Table, {taken, Pid}),
    ok.

worth_a_try(Number, {_, Words, _} = Seats) ->
    case atomics:add_get(Words, ?SEAT(Number), 0) of
        Word when Word band 1 =:= 1 ->
            ok;
        Word ->
            case atomics:compare_exchange(Words, ?SEAT(Number), Word, Word + 1) of
                ok -> ok;
                _ -> worth_a_try(Number, Seats)
            end
    end.

-doc """
Takes a worker for the call `Borrower`, and returns the claim on it. The call must give the worker
back later (`give_back/2`). Returns `none` if no worker is free, or if other calls wait for one.
Raises `badarg` if the pool has ended.
""".
-spec borrow(Borrower :: pid(), seats()) -> {ok, claim(), Worker :: term()} | none.
borrow(Borrower, Seats) ->
    case awaited(Seats) of
        false -> take(Borrower, Seats);
        true -> none
    end.

-doc """
Gives back the worker of a claim, and counts its use. Returns `true` if calls wait for a worker: the
caller must then tell the pool's process. Raises `badarg` if the pool has ended.
""".
-spec give_back(claim(), seats()) -> Awaited :: boolean().
give_back({_, _, Since, _, _} = Claim, Seats) ->
    ok = used(Since, Seats),
    ok = leave(Claim, Seats),
    %% The order matters. A call that begins to wait at the same time looks for a free worker again.
    awaited(Seats).

-doc """
Takes a worker for the process `Borrower`, as `borrow/2` does, but even if calls wait for one.
Returns `none` if no worker is free.
""".
-spec take(Borrower :: pid(), seats()) -> {ok, claim(), Worker :: term()} | none.
take(Borrower, {_, _, Size} = Seats) ->
    %% Calls that run at the same time begin at different seats.
    First = erlang:system_info(scheduler_id) rem Size,
    take(First, Size, Borrower, Seats).

take(_, 0, _, _) ->
    none;
take(Before, Tries, Borrower, {_, Words, Size} = Seats) ->
    Number = Before rem Size + 1,
    maybe
        Word = atomics:get(Words, ?SEAT(Number)),
        1 ?= Word band 1,
        ok ?= atomics:compare_exchange(Words, ?SEAT(Number), Word, Word - 1),
        {ok, _, _} ?= claimed(Number, Word - 1, Borrower, Seats)
    else
        _ -> take(Number, Tries - 1, Borrower, Seats)
    end.

claimed(Number, Word, Borrower, {Table, Words, _}) ->
    maybe
        [{_, Pid, Worker}] ?= ets:lookup(Table, Number),
        Claim = {{taken, Pid}, Borrower, now_us(), Number, Word},
        true ?= ets:insert_new(Table, Claim),
        case atomics:get(Words, ?SEAT(Number)) - Word of
            Same when Same < 2 ->
                {ok, Claim, Worker};
            _ ->
                %% The worker was removed meanwhile.
                true = ets:delete_object(Table, Claim),
                none
        end
    end.

-doc "Makes the worker of a claim free again, without counting a use of the worker.".
-spec leave(claim(), seats()) -> ok.
leave({_, _, _, Number, Word} = Claim, {Table, Words, _} = Seats) ->
    true = ets:delete_object(Table, Claim),
    %% Most often the word has not changed since.
    case atomics:compare_exchange(Words, ?SEAT(Number), Word, Word + 1) of
        ok -> ok;
        _ -> worth_a_try(Number, Seats)
    end.

-doc "Counts a loan that began at `Since` (`now_us/0`) and ends now in the mean time of a loan.".
-spec used(Since :: integer(), seats()) -> ok.
used(Since, {_, Words, _}) ->
    Used = atomics:get(Words, ?USED),
    %% If two processes write concurrently, one write is lost, which hardly changes a mean.
    atomics:put(Words, ?USED, Used + (now_us() - Since - Used) div ?PART).

-doc """
Takes the worker of a claim away from its call, and from its seat, and returns `true`. If the call
does not have the worker any more, does nothing, and returns `false`.
""".
-spec withdraw(claim(), seats()) -> boolean().
withdraw({{taken, Pid}, _, _, Number, _} = Claim, Seats) ->
    case is_taken(Claim, Seats) of
        true ->
            ok = unseat(Number, Pid, Seats),
            true;
        false ->
            false
    end.

-doc "Returns `true` if the call of a claim still has the worker.".
-spec is_taken(claim(), seats()) -> boolean().
is_taken({Key, _, _, _, _} = Claim, {Table, _, _}) ->
    ets:lookup(Table, Key) =:= [Claim].

-doc """
Returns the claims on all workers that calls have, each with the call. Claims of the process
`Except` are left out.
""".
-spec taken(Except :: pid(), seats()) -> #{claim() => Borrower :: pid()}.
taken(Except, {Table, _, _}) ->
    #{Claim => Borrower
      || {_, Borrower, _, _, _} = Claim
             <- ets:match_object(Table, {{taken, '_'}, '_', '_', '_', '_'}),
         Borrower =/= Except}.

-doc "Returns the process of the worker of a claim.".
-spec worker(claim()) -> pid().
worker({{taken, Pid}, _, _, _, _}) ->
    Pid.

-doc """
Makes all free workers visible to `take/2` again. If a call is killed while it takes a worker or
gives it back, `take/2` may not see that worker any more.
""".
-spec mend(seats()) -> ok.
mend({Table, _, _} = Seats) ->
    Seated = ets:select(Table, [{{'$1', '$2', '_'}, [], [{{'$1', '$2'}}]}]),
    lists:foreach(fun({Number, Pid}) ->
        _ = ets:member(Table, {taken, Pid}) orelse worth_a_try(Number, Seats)
    end, Seated).

-doc """
Returns the number of seats (`size`), of workers (`ready`), of workers that calls have (`taken`),
and of calls that wait (`waiting`). Raises `badarg` if the pool has ended.
""".
-spec counts(seats()) ->
    #{size := pos_integer(), ready := non_neg_integer(), taken := non_neg_integer(),
      waiting := non_neg_integer()}.
counts({Table, Words, Size}) ->
    #{size => Size,
      ready => ets:select_count(Table, [{{'_', '_', '_'}, [], [true]}]),
      taken => ets:select_count(Table, [{{{taken, '_'}, '_', '_', '_', '_'}, [], [true]}]),
      waiting => atomics:get(Words, ?WAITING)}.

-doc "Sets the number of waiting calls to `Count`. While calls wait, `borrow/2` takes no worker.".
-spec await(Count :: non_neg_integer(), seats()) -> ok.
await(Count, {_, Words, _}) ->
    atomics:put(Words, ?WAITING, Count).

-doc "Returns `true` if a call waits for a worker.".
-spec awaited(seats()) -> boolean().
awaited({_, Words, _}) ->
    atomics:get(Words, ?WAITING) > 0.

-doc "Returns the recent mean time of a loan, in milliseconds; 0 before a loan was counted.".
-spec used_ms(seats()) -> number().
used_ms({_, Words, _}) ->
    atomics:get(Words, ?USED) / 1_000.

-doc "Returns the monotonic time in microseconds.".
-spec now_us() -> integer().
now_us() ->
    erlang:monotonic_time(microsecond).
