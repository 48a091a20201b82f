-module(gate_seats_SUITE).
-moduledoc """
Seats: what one process holds at a gate for one request after the other is counted, found and given
back as what has a row of its own, whoever is killed and whenever.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([one_row_for_all_requests/1, a_second_request_at_once_has_a_row/1,
         who_has_left_says_nothing_of_the_next/1, numbers_begin_anew/1,
         one_gate_has_a_seat/1, connections_take_their_seats_along/1,
         seated_holders_are_named/1, tickets_leave_their_seats/1,
         who_leaves_meanwhile_has_left/1, tickets_in_seats_are_for_more/1,
         what_the_dead_had_is_given_back_once/1, rows_are_taken_away_as_they_were_read/1,
         what_is_in_seats_is_not_astray/1,
         killed_holders_hold_nothing/1, never_more_than_the_limit/1]).

-import(gate_users, [request/1, entered/1, refused/1, visit/3, processes/1, rounds/2, stop/1,
                     await_end/1, together/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [one_row_for_all_requests, a_second_request_at_once_has_a_row,
     who_has_left_says_nothing_of_the_next, numbers_begin_anew, one_gate_has_a_seat,
     connections_take_their_seats_along, seated_holders_are_named, tickets_leave_their_seats,
     who_leaves_meanwhile_has_left, tickets_in_seats_are_for_more,
     what_the_dead_had_is_given_back_once, rows_are_taken_away_as_they_were_read,
     what_is_in_seats_is_not_astray,
     killed_holders_hold_nothing, never_more_than_the_limit].

%% Each case runs in a process of its own, which has no seat at first.
init_per_testcase(_, Config) ->
    process_flag(trap_exit, true),
    Config.

end_per_testcase(_, _) ->
    ok.

one_row_for_all_requests(_) ->
    #{books := #{ledger := Ledger}} = Gate = erlmcp_gate:new(#{in_flight => 2}),
    %% Who never asked for anything has none.
    [] = erlmcp_gate_permits:rows(Ledger),
    Rows = [begin
                Ticket = enter(Gate),
                1 = erlmcp_gate:held(Gate, in_flight),
                Within = erlmcp_gate_permits:rows(Ledger),
                ok = erlmcp_gate:leave(Ticket),
                0 = erlmcp_gate:held(Gate, in_flight),
                Within = erlmcp_gate_permits:rows(Ledger)
            end || _ <- lists:seq(1, 100)],
    Self = self(),
    [[{Self, _}]] = lists:usort(Rows).

a_second_request_at_once_has_a_row(_) ->
    #{books := #{ledger := Ledger}} = Gate = erlmcp_gate:new(#{in_flight => 3}),
    Tickets = [_, Second, _] = [enter(Gate) || _ <- [1, 2, 3]],
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))),
    3 = length(erlmcp_gate_permits:rows(Ledger)),
    ok = erlmcp_gate:leave(Second),
    2 = length(erlmcp_gate_permits:rows(Ledger)),
    [ok = erlmcp_gate:leave(Ticket) || Ticket <- Tickets],
    0 = erlmcp_gate:held(Gate, in_flight),
    [{_, _}] = erlmcp_gate_permits:rows(Ledger).

who_has_left_says_nothing_of_the_next(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 1}),
    Left = [begin
                Ticket = enter(Gate),
                ok = erlmcp_gate:leave(Ticket),
                Ticket
            end || _ <- lists:seq(1, 10)],
    Ticket = enter(Gate),
    [ok = erlmcp_gate:leave(Before) || Before <- Left],
    [ok = erlmcp_gate:hand_over(Before, self()) || Before <- Left],
    1 = erlmcp_gate:held(Gate, in_flight),
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:leave(Ticket),
    0 = erlmcp_gate:held(Gate, in_flight).

%% After as many requests as a word has numbers for.
numbers_begin_anew(_) ->
    #{books := #{ledger := Ledger}} = Gate = erlmcp_gate:new(#{in_flight => 1}),
    ok = erlmcp_gate:leave(enter(Gate)),
    [{_, Seat}] = erlmcp_gate_permits:rows(Ledger),
    ok = atomics:put(Seat, 1, (1 bsl 58) - (1 bsl 30)),
    Last = enter(Gate),
    true = atomics:get(Seat, 1) < 1 bsl 58,
    ok = erlmcp_gate:leave(Last),
    0 = atomics:get(Seat, 1),
    Next = enter(Gate),
    ok = erlmcp_gate:leave(Last),
    1 = erlmcp_gate:held(Gate, in_flight),
    ok = erlmcp_gate:leave(Next),
    0 = erlmcp_gate:held(Gate, in_flight).

one_gate_has_a_seat(_) ->
    First = erlmcp_gate:new(#{in_flight => 1}),
    #{books := #{ledger := Ledger}} = Second = erlmcp_gate:new(#{in_flight => 1}),
    [begin
         Tickets = [enter(Gate) || Gate <- [First, Second]],
         [{_, _, _, []}] = erlmcp_gate_permits:rows(Ledger),
         [1, 1] = [erlmcp_gate:held(Gate, in_flight) || Gate <- [First, Second]],
         [ok = erlmcp_gate:leave(Ticket) || Ticket <- Tickets],
         [0, 0] = [erlmcp_gate:held(Gate, in_flight) || Gate <- [First, Second]]
     end || _ <- [1, 2]],
    [] = erlmcp_gate_permits:rows(Ledger).

connections_take_their_seats_along(_) ->
    #{books := #{ledger := Ledger}} = Gate = erlmcp_gate:new(#{in_flight => 2}),
    {ok, Connection} = erlmcp_gate:connect(Gate, #{address => local}),
    ok = erlmcp_gate:leave(enter(Gate)),
    2 = length(erlmcp_gate_permits:rows(Ledger)),
    ok = erlmcp_gate:leave(Connection),
    [] = erlmcp_gate_permits:rows(Ledger),
    %% One that has something in it stays as long as that.
    {ok, Other} = erlmcp_gate:connect(Gate, #{address => local}),
    Ticket = enter(Gate),
    ok = erlmcp_gate:leave(Other),
    [{_, _}] = erlmcp_gate_permits:rows(Ledger),
    1 = erlmcp_gate:held(Gate, in_flight),
    ok = erlmcp_gate:leave(Ticket),
    0 = erlmcp_gate:held(Gate, in_flight).

seated_holders_are_named(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 2}),
    [] = erlmcp_gate:calls(Gate),
    Ticket = enter(Gate),
    ok = erlmcp_gate:drain(Gate),
    server_shutting_down = refused(erlmcp_gate:enter(Gate, request(ada))),
    {[Self], 1} = {erlmcp_gate:calls(Gate), erlmcp_gate:held(Gate, in_flight)},
    Self = self(),
    ok = erlmcp_gate:leave(Ticket),
    {[], 0} = {erlmcp_gate:calls(Gate), erlmcp_gate:held(Gate, in_flight)}.

tickets_leave_their_seats(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 3}),
    {Keeper, Queue} = processes(Gate),
    [begin
         Other = spawn_link(fun() -> receive stop -> ok end end),
         Ticket = enter(Gate),
         ok = erlmcp_gate:unseat(Ticket),
         ok = erlmcp_gate:hand_over(Ticket, Other),
         [Other] = erlmcp_gate:calls(Gate),
         1 = erlmcp_gate:held(Gate, in_flight),
         %% The seat is another request's.
         Next = enter(Gate),
         [One, Two] = erlmcp_gate:calls(Gate),
         true = lists:sort([One, Two]) =:= lists:sort([self(), Other]),
         ok = End(Other, Ticket),
         ok = rounds(Keeper, 1),
         1 = erlmcp_gate:held(Gate, in_flight),
         ok = erlmcp_gate:leave(Ticket),
         1 = erlmcp_gate:held(Gate, in_flight),
         ok = erlmcp_gate:leave(Next),
         0 = erlmcp_gate:held(Gate, in_flight)
     end || End <- [fun(Other, _) -> stop([Other]) end,
                    fun(_, Left) -> erlmcp_gate:leave(Left) end]],
    ok = stop([Keeper, Queue]).

%% Who starts another process that has the ticket lets it have that before it can say so.
who_leaves_meanwhile_has_left(_) ->
    #{books := #{ledger := Ledger}} = Gate = erlmcp_gate:new(#{in_flight => 1}),
    lists:foreach(fun(_) ->
        Ticket = enter(Gate),
        ok = erlmcp_gate:unseat(Ticket),
        {Pid, Monitor} = spawn_monitor(fun() -> erlmcp_gate:leave(Ticket) end),
        ok = erlmcp_gate:hand_over(Ticket, Pid),
        receive {'DOWN', Monitor, process, Pid, normal} -> ok end,
        0 = erlmcp_gate:held(Gate, in_flight),
        [{_, _}] = erlmcp_gate_permits:rows(Ledger)
    end, lists:seq(1, 2_000)).

tickets_in_seats_are_for_more(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 1}),
    [begin
         Ticket = enter(Gate),
         ok = erlmcp_gate:take(Ticket, [{{tool, ~"dig"}, {at_once, 1}}]),
         {1, 1} = {erlmcp_gate:held(Gate, in_flight), erlmcp_gate:held(Gate, {tool, ~"dig"})},
         [Self] = erlmcp_gate:calls(Gate),
         Self = self(),
         ok = erlmcp_gate:leave(Ticket),
         {0, 0} = {erlmcp_gate:held(Gate, in_flight), erlmcp_gate:held(Gate, {tool, ~"dig"})},
         %% Who has left takes nothing.
         ok = erlmcp_gate:take(Ticket, [{{tool, ~"dig"}, {at_once, 1}}]),
         0 = erlmcp_gate:held(Gate, {tool, ~"dig"})
     end || _ <- [1, 2]].

what_the_dead_had_is_given_back_once(_) ->
    #{books := #{ledger := Ledger}} = Gate = erlmcp_gate:new(#{in_flight => 2}),
    {Keeper, Queue} = processes(Gate),
    Stays = enter(Gate),
    [begin
         Self = self(),
         Pid = spawn(fun() ->
             Self ! {ticket, enter(Gate)},
             receive stop -> ok end
         end),
         Ticket = receive {ticket, Entered} -> Entered end,
         ok = stop([Pid]),
         2 = erlmcp_gate:held(Gate, in_flight),
         %% Its owner leaves for it, and the keeper, in any order, or at the same time.
         Leave = fun() -> erlmcp_gate:leave(Ticket) end,
         Look = fun() -> rounds(Keeper, 1) end,
         case Order of
             together -> [ok, ok, ok] = together([Leave, Look, Leave]);
             _ -> [ok = Do() || Do <- lists:sublist([Look, Leave, Look], Order, 2)]
         end,
         ok = rounds(Keeper, 1),
         [{Self, _}] = erlmcp_gate_permits:rows(Ledger),
         1 = erlmcp_gate:held(Gate, in_flight)
     end || Order <- [1, 2 | lists:duplicate(50, together)]],
    ok = erlmcp_gate:leave(Stays),
    0 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Keeper, Queue]).

%% Between the look at a row and the end of its process that may have had another seat.
rows_are_taken_away_as_they_were_read(_) ->
    #{books := #{ledger := Ledger} = Books} = Gate = erlmcp_gate:new(#{in_flight => 2}),
    ok = erlmcp_gate:leave(enter(Gate)),
    [Before] = erlmcp_gate_permits:rows(Ledger),
    ok = erlmcp_gate:rest(Gate),
    [] = erlmcp_gate_permits:rows(Ledger),
    _ = enter(Gate),
    [Now] = erlmcp_gate_permits:rows(Ledger),
    false = erlmcp_gate_counters:leave_as(Before, Books),
    {[Now], 1} = {erlmcp_gate_permits:rows(Ledger), erlmcp_gate:held(Gate, in_flight)},
    true = erlmcp_gate_counters:leave_as(Now, Books),
    {[], 0} = {erlmcp_gate_permits:rows(Ledger), erlmcp_gate:held(Gate, in_flight)}.

what_is_in_seats_is_not_astray(_) ->
    #{books := Books} = Gate = erlmcp_gate:new(#{in_flight => 4}),
    {Keeper, Queue} = processes(Gate),
    %% It is held in one generation after the other.
    Stays = enter(Gate),
    ok = rounds(Keeper, 12),
    1 = erlmcp_gate:held(Gate, in_flight),
    %% As if somebody had been killed after he took, or when the share was in no seat any more.
    {ok, _} = erlmcp_gate_counters:take_place(Books),
    ok = rounds(Keeper, 12),
    1 = erlmcp_gate:held(Gate, in_flight),
    ok = erlmcp_gate:unseat(Stays),
    New = enter(Gate),
    ok = rounds(Keeper, 12),
    2 = erlmcp_gate:held(Gate, in_flight),
    [ok = erlmcp_gate:leave(Ticket) || Ticket <- [Stays, New]],
    0 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Keeper, Queue]).

killed_holders_hold_nothing(_) ->
    ok = erlmcp_test_property:holds(?FORALL(Lives, [{integer(0, 3), integer(0, 3000)}],
        [ok] =:= together([fun() -> killed(Lives) end])), 60).

killed(Lives) ->
    Limit = 4,
    #{books := #{ledger := Ledger}} = Gate = erlmcp_gate:new(#{in_flight => Limit}),
    {Keeper, Queue} = processes(Gate),
    Stays = enter(Gate),
    Self = self(),
    Pids = [spawn(fun() -> born(Self, Gate, Kind) end) || {Kind, _} <- Lives],
    [receive {born, Pid} -> ok end || Pid <- Pids],
    %% At any time of what they do, and of what the keeper does.
    [begin _ = lists:seq(1, Spins), exit(Pid, kill), Keeper ! round end
     || {Pid, {_, Spins}} <- lists:zip(Pids, Lives)],
    [await_end(Pid) || Pid <- Pids],
    ok = await_others(Ledger),
    ok = rounds(Keeper, 12),
    [{Self, _}] = erlmcp_gate_permits:rows(Ledger),
    1 = erlmcp_gate:held(Gate, in_flight),
    Rest = [enter(Gate) || _ <- lists:seq(2, Limit)],
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))),
    [ok = erlmcp_gate:leave(Ticket) || Ticket <- [Stays | Rest]],
    0 = erlmcp_gate:held(Gate, in_flight),
    stop([Keeper, Queue]).

born(Parent, Gate, Kind) ->
    _ = erlmcp_gate:connect(Gate, #{address => local}),
    Parent ! {born, self()},
    live(Gate, Kind).

%% 0 enters and leaves, 1 is at two requests at once, 2 hands over, 3 never leaves its last one.
live(Gate, Kind) ->
    Entered = [Ticket || _ <- lists:seq(1, 1 + Kind rem 2),
                         {ok, Ticket} <- [erlmcp_gate:enter(Gate, request(ada))]],
    ok = lists:foreach(fun(Ticket) -> lived(Ticket, Kind) end, Entered),
    live(Gate, Kind).

lived(Ticket, 2) ->
    ok = erlmcp_gate:unseat(Ticket),
    Other = spawn(fun() -> receive after 0 -> erlmcp_gate:leave(Ticket) end end),
    erlmcp_gate:hand_over(Ticket, Other);
lived(_, 3) ->
    ok;
lived(Ticket, _) ->
    ok = erlmcp_gate:leave(Ticket),
    erlmcp_gate:leave(Ticket).

%% Those who were given a ticket are at their end, too.
await_others(Ledger) ->
    Holders = [case Row of {Holder, _} -> Holder; {_, Holder, _, _} -> Holder end
               || Row <- erlmcp_gate_permits:rows(Ledger)],
    lists:foreach(fun(Pid) -> await_end(Pid) end, lists:delete(self(), lists:usort(Holders))).

never_more_than_the_limit(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Limit, Processes}, {integer(1, 6), integer(2, 16)},
        begin
            Gate = erlmcp_gate:new(#{in_flight => Limit}),
            {Keeper, Queue} = processes(Gate),
            Inside = atomics:new(3, []),
            Run = fun() -> [visit(Gate, 1, Inside) || _ <- lists:seq(1, 200)] end,
            Look = fun() -> ok = rounds(Keeper, 12), [] end,
            Most = lists:append(together([Look | lists:duplicate(Processes, Run)])),
            true = lists:max([All || {All, _} <- Most]) =< Limit,
            0 = erlmcp_gate:held(Gate, in_flight),
            ok = stop([Keeper, Queue]),
            true
        end), 40).

enter(Gate) ->
    entered(erlmcp_gate:enter(Gate, request(ada))).
