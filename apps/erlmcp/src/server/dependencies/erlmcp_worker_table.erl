-module(erlmcp_worker_table).
-moduledoc """
The workers of a pool that are there, and the calls that have them: a table in which a call takes a
worker and leaves it again without asking a process. The pool's process (`m:erlmcp_workers`) seats
workers and takes them away, counts the calls that wait, and looks whether all calls that have a
worker live.

A call takes a worker by a row with its own name, of which there can be one. So at no moment is a
worker away without its being known which call has it. In addition to its row each seat has a word,
which says whether the seat is worth a try. That may be wrong for a while, where a process was
killed between two steps, and is put right by `mend/1`. The word also counts how often a worker was
taken away from the seat.

Internal.
""".

-export([new/1, seat/4, unseat/3]).
-export([borrow/2, give_back/2, take/2, leave/2]).
-export([withdraw/2, is_taken/2, taken/2, worker/1, mend/1]).
-export([await/2, awaited/1, used/2, used_ms/1, now_us/0]).

%% Taking and leaving a worker is little more than calls of functions.
-compile({inline, [take/2, claimed/4, leave/2, used/2, awaited/1, now_us/0]}).

-export_type([seats/0, claim/0, seat/0]).

-opaque seats() :: {ets:table(), atomics:atomics_ref(), Size :: pos_integer()}.
-type seat() :: pos_integer().
%% Since when, in monotonic microseconds, and what the seat's word was then.
-opaque claim() ::
    {{taken, Worker :: pid()}, Borrower :: pid(), Since :: integer(), seat(), Word :: integer()}.

%% Of the words: how many wait, and the mean time that a worker is used, in microseconds. The seats'
%% follow: odd where it is worth a try, and two more for each worker taken away. They are so far
%% apart that no two share a line of a processor's cache.
-define(STRIDE, 8).
-define(WAITING, 1).
-define(USED, (1 + ?STRIDE)).
-define(SEAT(Number), (1 + ?STRIDE * (1 + (Number)))).
%% The part of the newest loan in that mean.
-define(PART, 5).

-doc """
Makes seats for `Size` workers, and nobody on them. The table belongs to the calling process.
""".
-spec new(Size :: pos_integer()) -> seats().
new(Size) ->
    %% Nobody asks for its size, and each row is written about as often as it is read.
    {ets:new(?MODULE, [public, {write_concurrency, true}, {decentralized_counters, true}]),
     atomics:new(?SEAT(Size), []), Size}.

-doc "Seats a worker, and its process: it is ready to be taken.".
-spec seat(seat(), pid(), Worker :: term(), seats()) -> ok.
seat(Number, Pid, Worker, {Table, _, _} = Seats) ->
    true = ets:insert(Table, {Number, Pid, Worker}),
    worth_a_try(Number, Seats).

-doc "Removes a worker that is not there any more, whoever has it.".
-spec unseat(seat(), pid(), seats()) -> ok.
unseat(Number, Pid, {Table, Words, _}) ->
    %% In this order: a call that has found the worker and takes it now either sees that it is
    %% counted, or has taken it before that.
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

-doc "Takes a worker for the calling process, if one is free and nobody waits for it.".
-spec borrow(Borrower :: pid(), seats()) -> {ok, claim(), Worker :: term()} | none.
borrow(Borrower, Seats) ->
    case awaited(Seats) of
        false -> take(Borrower, Seats);
        true -> none
    end.

-doc "Leaves a worker that was used since it was taken; says whether somebody waits for one.".
-spec give_back(claim(), seats()) -> Awaited :: boolean().
give_back({_, _, Since, _, _} = Claim, Seats) ->
    ok = used(Since, Seats),
    ok = leave(Claim, Seats),
    %% In this order: a call that begins to wait meanwhile looks whether the worker is free.
    awaited(Seats).

-doc "Takes a worker for a process, if one is free.".
-spec take(Borrower :: pid(), seats()) -> {ok, claim(), Worker :: term()} | none.
take(Borrower, {_, _, Size} = Seats) ->
    %% Those that run at the same time begin at different seats.
    First = erlang:system_info(scheduler_id) rem Size,
    take(First, Size, Borrower, Seats).

take(_, 0, _, _) ->
    none;
take(Before, Left, Borrower, {_, Words, Size} = Seats) ->
    Number = Before rem Size + 1,
    maybe
        Word = atomics:get(Words, ?SEAT(Number)),
        1 ?= Word band 1,
        ok ?= atomics:compare_exchange(Words, ?SEAT(Number), Word, Word - 1),
        {ok, _, _} ?= claimed(Number, Word - 1, Borrower, Seats)
    else
        _ -> take(Number, Left - 1, Borrower, Seats)
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
                %% It was taken away meanwhile.
                true = ets:delete_object(Table, Claim),
                none
        end
    end.

-doc "Leaves a worker as it was, to be taken again.".
-spec leave(claim(), seats()) -> ok.
leave({_, _, _, Number, Word} = Claim, {Table, Words, _} = Seats) ->
    true = ets:delete_object(Table, Claim),
    %% Mostly it is as it was left.
    case atomics:compare_exchange(Words, ?SEAT(Number), Word, Word + 1) of
        ok -> ok;
        _ -> worth_a_try(Number, Seats)
    end.

-doc "Counts that a worker was used since then.".
-spec used(Since :: integer(), seats()) -> ok.
used(Since, {_, Words, _}) ->
    Used = atomics:get(Words, ?USED),
    %% Of two that write at once one counts: it is a mean.
    atomics:put(Words, ?USED, Used + (now_us() - Since - Used) div ?PART).

-doc "Takes a worker away from its call; `false` if it was left, or taken away, before.".
-spec withdraw(claim(), seats()) -> boolean().
withdraw({{taken, Pid}, _, _, Number, _} = Claim, Seats) ->
    case is_taken(Claim, Seats) of
        true ->
            ok = unseat(Number, Pid, Seats),
            true;
        false ->
            false
    end.

-doc """
Returns `true` if a worker is still taken by the one who took it: it was not left, nor taken away.
""".
-spec is_taken(claim(), seats()) -> boolean().
is_taken({Key, _, _, _, _} = Claim, {Table, _, _}) ->
    ets:lookup(Table, Key) =:= [Claim].

-doc "Returns what is taken, and by whom, except by one process.".
-spec taken(Except :: pid(), seats()) -> #{claim() => Borrower :: pid()}.
taken(Except, {Table, _, _}) ->
    #{Claim => Borrower
      || {_, Borrower, _, _, _} = Claim
             <- ets:match_object(Table, {{taken, '_'}, '_', '_', '_', '_'}),
         Borrower =/= Except}.

-doc "Returns the process of the worker that was taken.".
-spec worker(claim()) -> pid().
worker({{taken, Pid}, _, _, _, _}) ->
    Pid.

-doc "Marks workers that nobody has as worth a try, if that was forgotten.".
-spec mend(seats()) -> ok.
mend({Table, _, _} = Seats) ->
    Seated = ets:select(Table, [{{'$1', '$2', '_'}, [], [{{'$1', '$2'}}]}]),
    lists:foreach(fun({Number, Pid}) ->
        _ = ets:member(Table, {taken, Pid}) orelse worth_a_try(Number, Seats)
    end, Seated).

-doc "Notes that `Count` calls wait: nobody takes a worker before them.".
-spec await(non_neg_integer(), seats()) -> ok.
await(Count, {_, Words, _}) ->
    atomics:put(Words, ?WAITING, Count).

-doc "Returns `true` if a call waits.".
-spec awaited(seats()) -> boolean().
awaited({_, Words, _}) ->
    atomics:get(Words, ?WAITING) > 0.

-doc "Returns how many milliseconds a worker is used, recently.".
-spec used_ms(seats()) -> number().
used_ms({_, Words, _}) ->
    atomics:get(Words, ?USED) / 1_000.

-doc "Returns the monotonic time in microseconds.".
-spec now_us() -> integer().
now_us() ->
    erlang:monotonic_time(microsecond).
