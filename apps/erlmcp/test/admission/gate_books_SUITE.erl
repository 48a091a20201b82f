-module(gate_books_SUITE).
-moduledoc "The gate's books: what killed holders held, what was lost, and accounts that are idle.".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([killed_holders_hold_nothing/1, accounts_are_closed_when_idle/1, idle_accounts_are_exact/1,
         what_was_lost_is_found/1, tickets_are_handed_over/1, tickets_have_their_own_rows/1,
         generations_are_counted_apart/1, the_queue_is_told_once/1,
         nothing_is_lost_below_zero/1]).

-import(gate_users, [request/1, queued/1, entered/1, refused/1, visit/3, processes/1, rounds/2,
                     stop/1, await_end/1, together/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [killed_holders_hold_nothing, accounts_are_closed_when_idle, idle_accounts_are_exact,
     what_was_lost_is_found, tickets_are_handed_over, tickets_have_their_own_rows,
     generations_are_counted_apart, the_queue_is_told_once, nothing_is_lost_below_zero].

init_per_testcase(_, Config) ->
    process_flag(trap_exit, true),
    Config.

end_per_testcase(_, _) ->
    ok.

killed_holders_hold_nothing(_) ->
    ok = erlmcp_test_property:holds(?FORALL(Lives, [{integer(1, 3), integer(0, 3000)}],
        begin
            Gate = erlmcp_gate:new(#{in_flight => 4, in_flight_per_principal => 3, queue => 10,
                                     queue_per_principal => 8, connections => 10,
                                     connections_per_address => 9, connections_per_principal => 9}),
            {Keeper, Queue} = processes(Gate),
            Self = self(),
            Pids = [spawn(fun() -> born(Self, Gate, Flow) end) || {Flow, _} <- Lives],
            [receive {born, Pid} -> ok end || Pid <- Pids],
            %% At any time of what they do.
            [begin _ = lists:seq(1, Spins), exit(Pid, kill) end
             || {Pid, {_, Spins}} <- lists:zip(Pids, Lives)],
            [await_end(Pid) || Pid <- Pids],
            ok = rounds(Keeper, 8),
            Keys = [in_flight, connections, waiting, waiting_bytes]
                ++ [{Kind, Flow} || Kind <- [principal, waiting, connections, address],
                                    Flow <- [1, 2, 3]],
            [] = [{Key, Held} || Key <- Keys, Held <- [erlmcp_gate:held(Gate, Key)], Held =/= 0],
            [_ = entered(erlmcp_gate:enter(Gate, request(1))) || _ <- [1, 2, 3]],
            ok = stop([Keeper, Queue]),
            true
        end), 60).

born(Parent, Gate, Flow) ->
    _ = erlmcp_gate:connect(Gate, #{address => Flow}),
    Parent ! {born, self()},
    live(Gate, Flow).

live(Gate, Flow) ->
    _ = [erlmcp_gate:connect(Gate, #{address => Flow}), erlmcp_gate:joined(Gate, Flow)],
    case erlmcp_gate:enter(Gate, request(Flow)) of
        {ok, Ticket} ->
            case erlmcp_gate:await(Ticket, 1000) of
                {ok, Admitted} ->
                    _ = erlmcp_gate:take(Admitted, [{{tool, Flow}, {at_once, 2}}]),
                    Flow =:= 3 orelse erlmcp_gate:leave(Admitted);
                {refuse, _} ->
                    ok
            end;
        {refuse, _} ->
            ok
    end,
    live(Gate, Flow).

what_was_lost_is_found(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 3, in_flight_per_principal => 3}),
    #{books := Books} = Gate,
    {Keeper, Queue} = processes(Gate),
    %% As if somebody had been killed after he took, and before he wrote it down.
    {ok, _} = erlmcp_gate_counters:take_place(Books),
    {ok, _} = erlmcp_gate_counters:take_one({principal, ada}, [], 3, 1, Books),
    Stays = entered(erlmcp_gate:enter(Gate, request(ada))),
    %% It is never quiet meanwhile.
    [begin
         Ticket = entered(erlmcp_gate:enter(Gate, request(ada))),
         ok = rounds(Keeper, 1),
         ok = erlmcp_gate:leave(Ticket)
     end || _ <- lists:seq(1, 9)],
    1 = erlmcp_gate:held(Gate, in_flight),
    1 = erlmcp_gate:held(Gate, {principal, ada}),
    ok = erlmcp_gate:leave(Stays),
    {0, 0} = {erlmcp_gate:held(Gate, in_flight), erlmcp_gate:held(Gate, {principal, ada})},
    %% What is held in both generations is left as it is.
    Old = entered(erlmcp_gate:enter(Gate, request(ada))),
    ok = rounds(Keeper, 4),
    New = entered(erlmcp_gate:enter(Gate, request(ada))),
    ok = rounds(Keeper, 12),
    2 = erlmcp_gate:held(Gate, in_flight),
    [ok = erlmcp_gate:leave(Ticket) || Ticket <- [Old, New]],
    0 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Keeper, Queue]).

accounts_are_closed_when_idle(_) ->
    Gate = erlmcp_gate:new(#{connections_per_address => 1, principals => 3}),
    {Keeper, Queue} = processes(Gate),
    Connect = fun(Last) -> erlmcp_gate:connect(Gate, #{address => {192, 0, 2, Last}}) end,
    [First | _] = [entered(Connect(Last)) || Last <- [1, 2, 3]],
    {refuse, Refusal} = Connect(4),
    {resource_exhausted, 503} = {erlmcp_refusal:name(Refusal), erlmcp_refusal:status(Refusal)},
    ok = erlmcp_gate:leave(First),
    %% One look closes it, and the next one lets another have it.
    ok = rounds(Keeper, 20),
    _ = entered(Connect(4)),
    resource_exhausted = refused(Connect(1)),
    %% A rate that is not over is not forgotten.
    Rated = erlmcp_gate:new(#{principal_messages_per_day => 1, principals => 1}),
    {RatedKeeper, RatedQueue} = processes(Rated),
    ok = erlmcp_gate:leave(entered(erlmcp_gate:enter(Rated, request(ada)))),
    ok = rounds(RatedKeeper, 20),
    resource_exhausted = refused(erlmcp_gate:enter(Rated, request(bob))),
    quota_exceeded = refused(erlmcp_gate:enter(Rated, request(ada))),
    ok = stop([Keeper, Queue, RatedKeeper, RatedQueue]).

idle_accounts_are_exact(_) ->
    %% Who had found an account before it was closed takes nothing of it.
    #{words := Words} = Small = erlmcp_gate_accounts:new(1, 8),
    {ok, Index} = erlmcp_gate_accounts:find({principal, ada}, Small),
    ok = erlmcp_gate_accounts:close_idle(1, Small),
    closed = erlmcp_gate_account:take(Words, Index, {1, 0}, 10),
    {none, [Index]} =
        {erlmcp_gate_accounts:known({principal, ada}, Small), erlmcp_gate_accounts:lost(Small)},
    %% And what he counted in its rates is not its next owner's.
    ok = erlmcp_rate:take_all([{day, 1}], Words, Index, 1),
    ok = erlmcp_gate_accounts:free(Index, Small),
    {ok, Index} = erlmcp_gate_accounts:find({principal, bob}, Small),
    ok = erlmcp_rate:take_all([{day, 1}], Words, Index, 1),
    %% He opens another one instead, though the closed one can still be found.
    Two = erlmcp_gate_accounts:new(2, 8),
    {ok, Closed} = erlmcp_gate_accounts:find({principal, ada}, Two),
    true = erlmcp_gate_account:close(maps:get(words, Two), Closed),
    {ok, {Open, _}} = erlmcp_gate_accounts:take({principal, ada}, {[], 1}, 0, 10, Two),
    true = Open =/= Closed,
    {ok, Open} = erlmcp_gate_accounts:known({principal, ada}, Two),
    %% So they are exact while others enter.
    Gate = erlmcp_gate:new(#{in_flight_per_principal => 1, principals => 100_000}),
    #{books := #{accounts := Accounts}} = Gate,
    Inside = atomics:new(3, []),
    Closer = spawn_link(fun Close() ->
        ok = erlmcp_gate_accounts:close_idle(1 bsl 58, Accounts),
        Close()
    end),
    Run = fun(Flow) -> [visit(Gate, Flow, Inside) || _ <- lists:seq(1, 500)] end,
    Most = lists:append(together([fun() -> Run(1 + N rem 2) end || N <- lists:seq(1, 8)])),
    ok = stop([Closer]),
    [1] = lists:usort([Held || {_, Held} <- Most, Held > 0]).

tickets_are_handed_over(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 2}),
    {Keeper, Queue} = processes(Gate),
    Other = spawn_link(fun() -> receive stop -> ok end end),
    Ticket = entered(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:unseat(Ticket),
    ok = erlmcp_gate:hand_over(Ticket, Other),
    ok = rounds(Keeper, 1),
    1 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Other]),
    ok = rounds(Keeper, 1),
    0 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Keeper, Queue]).

%% Those of connections and of who waits are numbered in two ways, which may not meet.
tickets_have_their_own_rows(_) ->
    #{books := Books} = Gate = queued(#{}),
    Numbers = [{erlmcp_gate_counters:write([], Books), erlmcp_gate_counters:queue([], [], Books)}
               || _ <- lists:seq(1, 1000)],
    true = lists:all(fun({Holds, Waits}) -> Holds < 0 andalso Waits > 0 end, Numbers),
    [] = erlmcp_gate:calls(Gate).

generations_are_counted_apart(_) ->
    Words = atomics:new(1, []),
    Take = fun(Generation) ->
        {ok, Share} = erlmcp_gate_account:take(Words, 1, {1, Generation}, 10),
        Share
    end,
    [First | _] = [Take(0), Take(0)],
    [Second | _] = [Take(1), Take(1), Take(1)],
    {2, 3, 5} = {erlmcp_gate_account:held(Words, 1, 0), erlmcp_gate_account:held(Words, 1, 1),
                 erlmcp_gate_account:held(Words, 1)},
    [{1, 0}, {0, 1}] = [{erlmcp_gate_account:amount(Share, 0), erlmcp_gate_account:amount(Share, 1)}
                        || Share <- [First, Second]].

%% What it asked for is in the word that counts the places, and is none of them.
the_queue_is_told_once(_) ->
    #{books := Books} = Gate = erlmcp_gate:new(#{in_flight => 2}),
    ok = erlmcp_gate_counters:put_queue(self(), 1000, Books),
    [First, Second] = [entered(erlmcp_gate:enter(Gate, request(ada))) || _ <- [1, 2]],
    ok = erlmcp_gate:leave(First),
    none = told(),
    ok = erlmcp_gate_counters:call_queue(Books),
    ok = erlmcp_gate_counters:call_queue(Books),
    Third = entered(erlmcp_gate:enter(Gate, request(ada))),
    2 = erlmcp_gate:held(Gate, in_flight),
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:leave(Second),
    turn = told(),
    Fourth = entered(erlmcp_gate:enter(Gate, request(ada))),
    [ok = erlmcp_gate:leave(Ticket) || Ticket <- [Third, Fourth]],
    none = told(),
    ok = erlmcp_gate_counters:call_queue(Books),
    ok = erlmcp_gate:limit(Gate, 1),
    turn = told(),
    %% Nor is it lost with what is given back twice.
    {ok, Place} = erlmcp_gate_counters:take_place(Books),
    ok = erlmcp_gate_counters:give_place(Place, Books),
    ok = erlmcp_gate_counters:call_queue(Books),
    ok = erlmcp_gate_counters:give_place(Place, Books),
    turn = told(),
    none = told(),
    0 = erlmcp_gate:held(Gate, in_flight).

%% A place that was corrected away is given back: for a moment its count is below zero, and has
%% borrowed the mark. Who looks at the mark just then takes nothing away that nobody gives back.
nothing_is_lost_below_zero(_) ->
    InFlight = 2,
    Words = atomics:new(16, []),
    ok = erlmcp_gate_state:new(Words),
    Call = fun() -> erlmcp_gate_state:call_queue(InFlight, Words) end,
    [begin
         ok = Before(),
         Word = atomics:get(Words, InFlight),
         ok = atomics:sub(Words, InFlight, Borrowed),
         false = erlmcp_gate_state:was_called(InFlight, Words),
         ok = Call(),
         ok = atomics:add(Words, InFlight, Borrowed),
         Word = atomics:get(Words, InFlight),
         Place = erlmcp_gate_state:enter(InFlight, Words),
         Called = erlmcp_gate_state:give_place(InFlight, Place, Words),
         0 = erlmcp_gate_account:held(Words, InFlight)
     end || {Called, Before} <- [{false, fun() -> ok end}, {true, Call}],
            Borrowed <- [1, 1 bsl 29]],
    %% Nor does who corrects it when it has just been given back.
    [begin
         ok = erlmcp_gate_account:correct(Words, InFlight, Generation, -1),
         0 = atomics:get(Words, InFlight)
     end || Generation <- [0, 1]],
    ok = erlmcp_gate_account:correct(Words, InFlight, 1, 2),
    ok = erlmcp_gate_account:correct(Words, InFlight, 1, -1),
    1 = erlmcp_gate_account:held(Words, InFlight, 1).

told() ->
    receive turn -> turn after 0 -> none end.
