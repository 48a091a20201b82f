-module(workers_SUITE).
-moduledoc "A pool of workers as calls meet it: who has which, in what order, and what ends.".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([free_workers_are_taken_without_a_process/1, no_worker_is_had_by_two/1,
         nobody_overtakes_those_that_wait/1, who_waits_no_more_has_no_place/1,
         a_killed_borrower_makes_room_for_who_waits/1, a_pool_may_begin_anew/1]).

-import(erlmcp_test_line, [serve/1]).
-import(erlmcp_test_two_eras, [await/1]).

-define(LONG_MS, 60_000).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [free_workers_are_taken_without_a_process, no_worker_is_had_by_two,
     nobody_overtakes_those_that_wait, who_waits_no_more_has_no_place,
     a_killed_borrower_makes_room_for_who_waits, a_pool_may_begin_anew].

init_per_testcase(_, Config) ->
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    [{log_level, Level} | Config].

end_per_testcase(_, Config) ->
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)).

%% A server with a pool of so many workers; each is a word, 0 as long as nobody has it.
pool(Size) ->
    pool(Size, 100).

pool(Size, Queue) ->
    Server = serve(#{workers => #{db => #{size => Size, queue => Queue,
                                          start => fun() -> {ok, atomics:new(1, [])} end}}}),
    {ok, _, Instance} = erlmcp_registry:whereis(Server),
    Taken = [ready(Instance) || _ <- lists:seq(1, Size)],
    [ok = erlmcp_workers:give_back(Loan, good) || {Loan, _} <- Taken],
    Instance.

ready(Instance) ->
    {ok, Loan, Worker} = borrow(Instance),
    {Loan, Worker}.

borrow(Instance) ->
    erlmcp_workers:borrow(db, erlang:monotonic_time(millisecond) + ?LONG_MS, Instance).

process(Instance) ->
    {ok, {Pid, _}} = erlmcp_workers:pool(db, Instance),
    Pid.

%% A process that borrows a worker, tells so, and gives it back when it is told.
borrower(Instance) ->
    Self = self(),
    spawn_monitor(fun() ->
        {ok, Loan, _} = borrow(Instance),
        Self ! {has, self()},
        receive give_back -> ok = erlmcp_workers:give_back(Loan, good) end
    end).

%% It waits, and the pool knows that.
waiting(Instance) ->
    {Pid, _} = Borrower = borrower(Instance),
    await(fun() -> process_info(Pid, status) =:= {status, waiting} end),
    _ = sys:get_state(process(Instance)),
    Borrower.

has({Pid, Monitor}) ->
    receive
        {has, Pid} -> ok;
        {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
    end.

gives_back({Pid, Monitor}) ->
    Pid ! give_back,
    receive {'DOWN', Monitor, process, Pid, normal} -> ok end.

is_killed({Pid, Monitor}) ->
    exit(Pid, kill),
    receive {'DOWN', Monitor, process, Pid, killed} -> ok end.

free_workers_are_taken_without_a_process(_) ->
    Instance = pool(2),
    ok = sys:suspend(process(Instance)),
    Both = [A, B] = [borrower(Instance) || _ <- [1, 2]],
    [ok = has(One) || One <- Both],
    ok = gives_back(A),
    C = borrower(Instance),
    ok = has(C),
    [ok = gives_back(One) || One <- [B, C]],
    ok = sys:resume(process(Instance)).

%% "It has it alone until it returns", whoever is killed meanwhile, at whatever step; and after all
%% that every worker is there.
no_worker_is_had_by_two(_) ->
    Size = 3,
    Instance = pool(Size),
    Self = self(),
    {ok, {_, Seats}} = erlmcp_workers:pool(db, Instance),
    %% As the pool does now and then, between any two steps of the others.
    Mending = spawn_link(fun() -> mends(Seats) end),
    Borrowers = [spawn_monitor(fun() -> used(200, Instance) end) || _ <- lists:seq(1, 8)],
    Killed = [spawn_monitor(fun() ->
        Self ! {starts, self()},
        used(infinity, Instance)
    end) || _ <- lists:seq(1, 30)],
    [begin
         receive {starts, Pid} -> ok end,
         _ = erlang:yield(),
         exit(Pid, kill),
         receive {'DOWN', Monitor, process, Pid, killed} -> ok end
     end || {Pid, Monitor} <- Killed],
    [receive {'DOWN', Monitor, process, Pid, normal} -> ok end || {Pid, Monitor} <- Borrowers],
    true = unlink(Mending),
    true = exit(Mending, kill),
    All = [ready(Instance) || _ <- lists:seq(1, Size)],
    Size = length(lists:usort([Worker || {_, Worker} <- All])),
    [0 = atomics:get(Worker, 1) || {_, Worker} <- All].

mends(Seats) ->
    ok = erlmcp_worker_table:mend(Seats),
    mends(Seats).

used(0, _) ->
    ok;
used(Left, Instance) ->
    {ok, Loan, Worker} = borrow(Instance),
    0 = atomics:exchange(Worker, 1, 1),
    _ = erlang:yield(),
    1 = atomics:exchange(Worker, 1, 0),
    ok = erlmcp_workers:give_back(Loan, good),
    used(case Left of infinity -> infinity; _ -> Left - 1 end, Instance).

nobody_overtakes_those_that_wait(_) ->
    Instance = pool(1),
    Before = borrower(Instance),
    ok = has(Before),
    [First, Second] = [waiting(Instance) || _ <- [1, 2]],
    %% It is free, and nobody has been told yet.
    ok = sys:suspend(process(Instance)),
    ok = gives_back(Before),
    {Pid, _} = Third = borrower(Instance),
    await(fun() -> process_info(Pid, status) =:= {status, waiting} end),
    ok = sys:resume(process(Instance)),
    ok = has(First),
    ok = gives_back(First),
    ok = has(Second),
    receive {has, _} -> error(two_have_it) after 0 -> ok end,
    ok = gives_back(Second),
    ok = has(Third),
    ok = gives_back(Third),
    %% Nobody waits any more.
    ok = sys:suspend(process(Instance)),
    Last = borrower(Instance),
    ok = has(Last),
    ok = gives_back(Last),
    ok = sys:resume(process(Instance)).

who_waits_no_more_has_no_place(_) ->
    Instance = pool(1, 1),
    Before = borrower(Instance),
    ok = has(Before),
    Killed = waiting(Instance),
    {error, _} = borrow(Instance),
    ok = is_killed(Killed),
    {ok, {_, Seats}} = erlmcp_workers:pool(db, Instance),
    await(fun() -> not erlmcp_worker_table:awaited(Seats) end),
    Waiting = waiting(Instance),
    ok = gives_back(Before),
    ok = has(Waiting),
    ok = gives_back(Waiting).

a_killed_borrower_makes_room_for_who_waits(_) ->
    Instance = pool(1),
    [begin
         Before = borrower(Instance),
         ok = has(Before),
         [First, Second] = [waiting(Instance) || _ <- [1, 2]],
         ok = is_killed(Before),
         ok = has(First),
         ok = is_killed(First),
         ok = has(Second),
         ok = gives_back(Second)
     end || _ <- [1, 2]].

a_pool_may_begin_anew(_) ->
    Instance = pool(2),
    {Loan, _} = ready(Instance),
    Pool = process(Instance),
    Monitor = monitor(process, Pool),
    exit(Pool, kill),
    receive {'DOWN', Monitor, process, Pool, killed} -> ok end,
    [ok = erlmcp_workers:give_back(Loan, State) || State <- [good, doubtful]],
    await(fun() -> element(1, borrow(Instance)) =:= ok end),
    {ok, _, _} = borrow(Instance).
