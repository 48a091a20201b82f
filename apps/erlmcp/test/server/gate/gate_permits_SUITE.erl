-module(gate_permits_SUITE).
-moduledoc """
Permits of a gate. Each is given back once, by any process, and those of dead processes come back.
Counters of idle clients are removed.
""".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([permits_are_handed_over/1, a_permit_that_left_before_it_was_handed_over_has_left/1,
         a_permit_that_left_says_nothing_of_the_next/1, holders_of_requests_are_named/1,
         requests_that_ask_make_room/1, requests_that_ask_may_leave_or_die/1,
         requests_that_ask_may_leave_at_any_time/1,
         few_holders_among_many_processes/1, many_holders/1, what_the_dead_held_comes_back_once/1,
         what_was_handed_over_meanwhile_stays/1, what_was_never_written_comes_back/1,
         what_is_lost_at_any_time_comes_back/1, a_look_in_between_is_followed_by_one/1,
         what_comes_back_and_is_given_back_is_counted_again/1,
         counters_of_idle_clients_are_removed/1, counters_are_exact_while_idle_ones_are_removed/1,
         shares_of_two_generations_are_apart/1]).

-import(erlmcp_test_gate, [request/1, entered/1, refused/1, visit/3, processes/1, looks/2,
                           looks_for_all/2, stop/1, await_end/1, together/1]).

%% Holders of each kind: those that live, and those that have ended.
-define(FEW, 3).
-define(MANY, 300).
%% Processes that hold nothing.
-define(OTHERS, 1_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [permits_are_handed_over, a_permit_that_left_before_it_was_handed_over_has_left,
     a_permit_that_left_says_nothing_of_the_next, holders_of_requests_are_named,
     requests_that_ask_make_room, requests_that_ask_may_leave_or_die,
     requests_that_ask_may_leave_at_any_time,
     few_holders_among_many_processes, many_holders, what_the_dead_held_comes_back_once,
     what_was_handed_over_meanwhile_stays, what_was_never_written_comes_back,
     what_is_lost_at_any_time_comes_back, a_look_in_between_is_followed_by_one,
     what_comes_back_and_is_given_back_is_counted_again, counters_of_idle_clients_are_removed,
     counters_are_exact_while_idle_ones_are_removed, shares_of_two_generations_are_apart].

init_per_testcase(_, Config) ->
    process_flag(trap_exit, true),
    Config.

end_per_testcase(_, _) ->
    ok.

permits_are_handed_over(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 3}),
    {Permits, Queue} = processes(Gate),
    [begin
         Other = spawn_link(fun() -> receive stop -> ok end end),
         Permit = enter(Gate),
         ok = erlmcp_gate:hand_over(Permit, Other),
         [Other] = erlmcp_gate:calls(Gate),
         Next = enter(Gate),
         true = lists:sort(erlmcp_gate:calls(Gate)) =:= lists:sort([self(), Other]),
         ok = looks(Permits, 1),
         2 = erlmcp_gate:held(Gate, in_flight),
         ok = End(Other, Permit),
         ok = looks(Permits, 1),
         1 = erlmcp_gate:held(Gate, in_flight),
         ok = erlmcp_gate:leave(Permit),
         1 = erlmcp_gate:held(Gate, in_flight),
         ok = erlmcp_gate:leave(Next),
         0 = erlmcp_gate:held(Gate, in_flight)
     end || End <- [fun(Other, _) -> stop([Other]) end,
                    fun(_, Left) -> erlmcp_gate:leave(Left) end]],
    ok = stop([Permits, Queue]).

%% A share that is given back again takes nothing from those of the other generation.
shares_of_two_generations_are_apart(_) ->
    #{counters := Counters} = Gate = erlmcp_gate:new(#{in_flight => 10}),
    Enter = fun() ->
        {ok, Share, _} = erlmcp_gate_counters:enter(Counters),
        [{in_flight, Share}]
    end,
    Held = fun(Taken) ->
        ok = erlmcp_gate_counters:give(Taken, Counters),
        erlmcp_gate:held(Gate, in_flight)
    end,
    [begin
         Share = Enter(),
         Generation = erlmcp_gate_counters:next_generation(Counters),
         Other = Enter(),
         [1, 1, 0, 0] = [Held(Taken) || Taken <- [Share, Share, Other, Other]]
     end || Generation <- [0, 1]].

%% A process that is started with a permit may leave before its parent hands the permit over.
a_permit_that_left_before_it_was_handed_over_has_left(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 1}),
    Ended = fun(Monitor) -> receive {'DOWN', Monitor, process, _, normal} -> ok end end,
    lists:foreach(fun(N) ->
        Permit = enter(Gate),
        {Pid, Monitor} = spawn_monitor(fun() -> erlmcp_gate:leave(Permit) end),
        %% Before it ends, after that, or at any time.
        _ = N rem 2 =:= 0 andalso Ended(Monitor),
        ok = erlmcp_gate:hand_over(Permit, Pid),
        _ = N rem 2 =:= 0 orelse Ended(Monitor),
        {0, []} = {erlmcp_gate:held(Gate, in_flight), erlmcp_gate:calls(Gate)}
    end, lists:seq(1, 2_000)).

a_permit_that_left_says_nothing_of_the_next(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 1}),
    Left = [begin
                Permit = enter(Gate),
                ok = erlmcp_gate:leave(Permit),
                Permit
            end || _ <- lists:seq(1, 10)],
    Permit = enter(Gate),
    [ok = erlmcp_gate:leave(Before) || Before <- Left],
    [ok = erlmcp_gate:hand_over(Before, self()) || Before <- Left],
    1 = erlmcp_gate:held(Gate, in_flight),
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:leave(Permit),
    0 = erlmcp_gate:held(Gate, in_flight).

%% Holders of connections and of definitions are not.
holders_of_requests_are_named(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 1, queue => 1}),
    _ = entered(erlmcp_gate:connect(Gate, #{address => local})),
    _ = entered(erlmcp_gate:enter_definition(Gate, [{{definition, {tool, ~"dig"}}, {at_once, 1}}])),
    [] = erlmcp_gate:calls(Gate),
    Self = self(),
    Permits = [InFlight, Waits] = [enter(Gate) || _ <- [1, 2]],
    {false, true} = {erlmcp_gate:waits(InFlight), erlmcp_gate:waits(Waits)},
    [Self, Self] = erlmcp_gate:calls(Gate),
    ok = erlmcp_gate:drain(Gate),
    [Self, Self] = erlmcp_gate:calls(Gate),
    [ok = erlmcp_gate:leave(Permit) || Permit <- Permits],
    [] = erlmcp_gate:calls(Gate).

%% A request whose client has answered is in flight again, above the limits.
requests_that_ask_make_room(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 1, in_flight_per_principal => 1}),
    {Permits, Queue} = processes(Gate),
    Self = self(),
    Asks = enter(Gate),
    ok = erlmcp_gate:pause(Asks),
    {[0, 1, 0], [Self], []} = {asked(Gate), erlmcp_gate:calls(Gate), listed(Gate)},
    Other = enter(Gate),
    [1, 1, 1] = asked(Gate),
    ok = looks(Permits, 1),
    ok = erlmcp_gate:resume(Asks, ada),
    {[2, 0, 2], [Self, Self], [Self, Self]} =
        {asked(Gate), erlmcp_gate:calls(Gate), listed(Gate)},
    ok = erlmcp_gate:leave(Other),
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))),
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(bob))),
    ok = erlmcp_gate:leave(Asks),
    {[0, 0, 0], []} = {asked(Gate), erlmcp_gate:calls(Gate)},
    ok = stop([Permits, Queue]).

requests_that_ask_may_leave_or_die(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 1, in_flight_per_principal => 1}),
    {Permits, Queue} = processes(Gate),
    [begin
         Permit = enter(Gate),
         [ok = Step(Permit) || Step <- Steps],
         {[0, 0, 0], []} = {asked(Gate), erlmcp_gate:calls(Gate)}
     end || Pause <- [fun erlmcp_gate:pause/1],
            Resume <- [fun(Permit) -> erlmcp_gate:resume(Permit, ada) end],
            Leave <- [fun erlmcp_gate:leave/1],
            Steps <- [[Pause, Leave], [Pause, Leave, Resume], [Leave, Pause],
                      [Leave, Pause, Resume], [Pause, Resume, Leave, Leave]]],
    Self = self(),
    Dies = spawn_link(fun() ->
        ok = erlmcp_gate:pause(enter(Gate)),
        Self ! asks,
        receive never -> ok end
    end),
    receive asks -> ok end,
    {[0, 1, 0], [Dies]} = {asked(Gate), erlmcp_gate:calls(Gate)},
    ok = stop([Dies]),
    ok = looks(Permits, 1),
    {[0, 0, 0], []} = {asked(Gate), erlmcp_gate:calls(Gate)},
    ok = stop([Permits, Queue]).

%% The owner of a call gives the permit back while the call begins to ask, or gets its answer.
requests_that_ask_may_leave_at_any_time(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 1, in_flight_per_principal => 1}),
    lists:foreach(fun(_) ->
        Permit = enter(Gate),
        {_, Monitor} = spawn_monitor(fun() -> erlmcp_gate:leave(Permit) end),
        _ = [begin
                 ok = erlmcp_gate:pause(Permit),
                 ok = erlmcp_gate:resume(Permit, ada)
             end || _ <- lists:seq(1, rand:uniform(50))],
        receive {'DOWN', Monitor, process, _, normal} -> ok end,
        {[0, 0, 0], []} = {asked(Gate), erlmcp_gate:calls(Gate)}
    end, lists:seq(1, 5_000)).

asked(Gate) ->
    [erlmcp_gate:held(Gate, Counter) || Counter <- [in_flight, asking, {principal, ada}]].

listed(Gate) ->
    [Pid || {_, Pid} <- erlmcp_gate:oldest_calls(Gate, infinity)].

few_holders_among_many_processes(_) ->
    Others = [spawn_link(fun() -> receive stop -> ok end end) || _ <- lists:seq(1, ?OTHERS)],
    ok = looked(?FEW),
    lists:foreach(fun(Other) -> Other ! stop end, Others).

many_holders(_) ->
    looked(?MANY).

looked(Count) ->
    Gate = erlmcp_gate:new(#{in_flight => 3 * Count}),
    {Permits, Queue} = processes(Gate),
    Living = [holder(Gate) || _ <- lists:seq(1, Count)],
    Dead = [holder(Gate) || _ <- lists:seq(1, Count)],
    Both = 2 * Count,
    Both = erlmcp_gate:held(Gate, in_flight),
    ok = stop(Dead),
    ok = looks(Permits, 1),
    Count = erlmcp_gate:held(Gate, in_flight),
    lists:foreach(fun(Pid) -> Pid ! leave, await_end(Pid) end, Living),
    0 = erlmcp_gate:held(Gate, in_flight),
    stop([Permits, Queue]).

holder(Gate) ->
    Self = self(),
    Pid = spawn_link(fun() ->
        Permit = enter(Gate),
        Self ! {holds, self(), Permit},
        receive leave -> erlmcp_gate:leave(Permit) end
    end),
    receive {holds, Pid, _} -> Pid end.

what_the_dead_held_comes_back_once(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 2}),
    {Permits, Queue} = processes(Gate),
    Stays = enter(Gate),
    [begin
         Self = self(),
         Pid = spawn_link(fun() ->
             Self ! {permit, enter(Gate)},
             receive stop -> ok end
         end),
         Permit = receive {permit, Entered} -> Entered end,
         ok = stop([Pid]),
         2 = erlmcp_gate:held(Gate, in_flight),
         %% Its owner leaves for it, and a look finds it, in any order or at the same time.
         Leave = fun() -> erlmcp_gate:leave(Permit) end,
         Look = fun() -> looks(Permits, 1) end,
         case Order of
             together -> [ok, ok, ok] = together([Leave, Look, Leave]);
             _ -> [ok = Do() || Do <- lists:sublist([Look, Leave, Look], Order, 2)]
         end,
         ok = looks(Permits, 1),
         1 = erlmcp_gate:held(Gate, in_flight)
     end || Order <- [1, 2 | lists:duplicate(50, together)]],
    ok = erlmcp_gate:leave(Stays),
    0 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Permits, Queue]).

%% While the rows are looked at, and their first holders end.
what_was_handed_over_meanwhile_stays(_) ->
    Gate = erlmcp_gate:new(#{}),
    {Permits, Queue} = processes(Gate),
    Self = self(),
    Count = 2_000,
    Looking = spawn_link(fun Look() -> ok = looks(Permits, 1), Look() end),
    _ = [spawn_link(fun() ->
             Permit = enter(Gate),
             _ = [erlang:yield() || _ <- lists:seq(1, N rem 100)],
             ok = erlmcp_gate:hand_over(Permit, Self),
             Self ! {has, Permit}
         end) || N <- lists:seq(1, Count)],
    Handed = [receive {has, Permit} -> Permit end || _ <- lists:seq(1, Count)],
    ok = stop([Looking]),
    ok = looks_for_all(Permits, Queue),
    Count = erlmcp_gate:held(Gate, in_flight),
    [ok = erlmcp_gate:leave(Permit) || Permit <- Handed],
    0 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Permits, Queue]).

what_was_never_written_comes_back(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 3, in_flight_per_principal => 3}),
    #{counters := Counters} = Gate,
    {Permits, Queue} = processes(Gate),
    %% As if a process had been killed after it took its shares, and before it wrote its row.
    {ok, _, _} = erlmcp_gate_counters:enter(Counters),
    {ok, [_]} = erlmcp_gate_counters:take_tenant({principal, ada}, [], 3, 1, Counters),
    Own = [{definition, {tool, ~"dig"}}, {forwarded, requests}],
    {ok, [_, _]} = erlmcp_gate_counters:take([{Key, 1, 3} || Key <- Own], Counters),
    Stays = enter(Gate),
    %% It is never quiet meanwhile.
    [begin
         Permit = enter(Gate),
         ok = looks(Permits, 1),
         ok = erlmcp_gate:leave(Permit)
     end || _ <- lists:seq(1, 6)],
    {1, 1} = {erlmcp_gate:held(Gate, in_flight), erlmcp_gate:held(Gate, {principal, ada})},
    [0, 0] = [erlmcp_gate:held(Gate, Key) || Key <- Own],
    ok = erlmcp_gate:leave(Stays),
    {0, 0} = {erlmcp_gate:held(Gate, in_flight), erlmcp_gate:held(Gate, {principal, ada})},
    %% Permits of both generations stay.
    Old = enter(Gate),
    ok = looks(Permits, 3),
    New = enter(Gate),
    ok = looks(Permits, 12),
    2 = erlmcp_gate:held(Gate, in_flight),
    [ok = erlmcp_gate:leave(Permit) || Permit <- [Old, New]],
    0 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Permits, Queue]).

%% In eight looks, wherever they are among the three looks at each generation.
what_is_lost_at_any_time_comes_back(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 2, in_flight_per_principal => 2}),
    {Permits, Queue} = processes(Gate),
    Held = fun() ->
        [erlmcp_gate:held(Gate, Counter) || Counter <- [in_flight, {principal, ada}]]
    end,
    [begin
         {_, {Table, Id}, _} = enter(Gate),
         ok = looks(Permits, Before),
         %% As if a process had been killed after it removed its row, and before it gave its shares
         %% back.
         true = ets:delete(Table, Id),
         [1, 1] = Held(),
         ok = looks(Permits, 8),
         [0, 0] = Held()
     end || Before <- lists:seq(0, 8)],
    ok = stop([Permits, Queue]).

%% However many were asked for, the next one comes a second later, and is the only one.
a_look_in_between_is_followed_by_one(_) ->
    {Permits, Queue} = processes(erlmcp_gate:new(#{})),
    ok = looks(Permits, 50),
    1 = erlang:trace(Permits, true, ['receive']),
    receive {trace, Permits, 'receive', look} -> ok end,
    %% The others would come at the same time.
    receive after 100 -> ok end,
    1 = erlang:trace(Permits, false, ['receive']),
    true = more_looks(Permits) =< 1,
    ok = stop([Permits, Queue]).

more_looks(Permits) ->
    receive {trace, Permits, 'receive', look} -> 1 + more_looks(Permits) after 0 -> 0 end.

%% A process may live on after seconds without time between taking its share and writing its row.
what_comes_back_and_is_given_back_is_counted_again(_) ->
    #{counters := Counters} = Gate = erlmcp_gate:new(#{in_flight => 3}),
    {Permits, Queue} = processes(Gate),
    {ok, Late, _} = erlmcp_gate_counters:enter(Counters),
    ok = looks(Permits, 6),
    0 = erlmcp_gate:held(Gate, in_flight),
    %% A counter never goes below zero.
    false = erlmcp_gate_counters:leave(Late, Counters),
    0 = erlmcp_gate:held(Gate, in_flight),
    {ok, Again, _} = erlmcp_gate_counters:enter(Counters),
    ok = looks(Permits, 6),
    %% It gives back a share of another process then, whose row shows that the share is held.
    Stays = enter(Gate),
    false = erlmcp_gate_counters:leave(Again, Counters),
    0 = erlmcp_gate:held(Gate, in_flight),
    ok = looks(Permits, 6),
    1 = erlmcp_gate:held(Gate, in_flight),
    ok = erlmcp_gate:leave(Stays),
    0 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Permits, Queue]).

counters_of_idle_clients_are_removed(_) ->
    Gate = erlmcp_gate:new(#{connections_per_address => 1, principals => 3}),
    {Permits, Queue} = processes(Gate),
    Connect = fun(Last) -> erlmcp_gate:connect(Gate, #{address => {192, 0, 2, Last}}) end,
    [First | _] = [entered(Connect(Last)) || Last <- [1, 2, 3]],
    {refuse, Refusal} = Connect(4),
    {resource_exhausted, 503} = {erlmcp_refusal:name(Refusal), erlmcp_refusal:status(Refusal)},
    ok = erlmcp_gate:leave(First),
    ok = looks(Permits, 3),
    _ = entered(Connect(4)),
    resource_exhausted = refused(Connect(1)),
    %% A rate that is not over is not forgotten.
    Rated = erlmcp_gate:new(#{principal_messages_per_day => 1, principals => 1}),
    {RatedPermits, RatedQueue} = processes(Rated),
    ok = erlmcp_gate:leave(enter(Rated)),
    ok = looks(RatedPermits, 6),
    resource_exhausted = refused(erlmcp_gate:enter(Rated, request(bob))),
    quota_exceeded = refused(erlmcp_gate:enter(Rated, request(ada))),
    %% Nor are the counters of removed tools kept.
    Tools = erlmcp_gate:new(#{}),
    {ToolPermits, ToolQueue} = processes(Tools),
    [ok = erlmcp_gate:leave(entered(erlmcp_gate:enter_definition(Tools, [{Key, Limit}])))
     || {N, Limit} <- [{1, {at_once, 1}}, {2, {second, 1_000_000}}],
        Key <- [{definition, {tool, N}}]],
    2 = counted(),
    ok = looks(ToolPermits, 6),
    0 = counted(),
    ok = stop([Permits, Queue, RatedPermits, RatedQueue, ToolPermits, ToolQueue]).

%% The counters of tools, in all gates of this process.
counted() ->
    length([Key || Table <- ets:all(), ets:info(Table, name) =:= erlmcp_gate_counters,
                   ets:info(Table, owner) =:= self(),
                   {{definition, _} = Key, _} <- ets:tab2list(Table)]).

counters_are_exact_while_idle_ones_are_removed(_) ->
    Gate = erlmcp_gate:new(#{in_flight_per_principal => 1}),
    #{counters := Counters} = Gate,
    Inside = atomics:new(3, []),
    Remover = spawn_link(fun Remove() ->
        ok = erlmcp_gate_counters:remove_idle(Counters),
        Remove()
    end),
    Run = fun(Tenant) -> [visit(Gate, Tenant, Inside) || _ <- lists:seq(1, 500)] end,
    Most = lists:append(together([fun() -> Run(1 + N rem 2) end || N <- lists:seq(1, 8)])),
    ok = stop([Remover]),
    [1] = lists:usort([Held || {_, Held} <- Most, Held > 0]).

enter(Gate) ->
    entered(erlmcp_gate:enter(Gate, request(ada))).
