-module(gate_SUITE).
-moduledoc """
The gate: each of its bounds at the limit and at one more, what it holds under contention and when
holders are killed, who has which turn in its queue, and how its books are set right.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([at_the_limit_and_one_more/1, rates_at_the_limit_and_one_more/1, a_rate_by_its_clock/1,
         a_refusal_takes_nothing/1, tools_have_bounds/1, networks_are_addresses/1]).
-export([never_more_than_the_limit/1, killed_holders_hold_nothing/1,
         accounts_are_closed_when_idle/1, idle_accounts_are_exact/1, what_was_lost_is_found/1,
         tickets_are_handed_over/1, tickets_have_their_own_rows/1,
         generations_are_counted_apart/1]).
-export([flows_take_turns/1, flows_have_equal_shares/1, who_asks_for_little_waits_little/1,
         a_burst_of_who_asks_for_little_is_next/1,
         those_that_stay_have_their_turns/1, ended_flows_are_forgotten/1,
         places_go_to_those_that_wait/1, places_that_nobody_waits_for_are_taken/1,
         a_dead_one_waits_no_longer/1,
         one_that_left_waits_no_longer/1, a_wait_has_an_end/1, a_wait_in_vain_is_refused_now/1,
         a_higher_limit_is_used/1, who_floods_leaves_room/1, without_a_queue_nobody_waits/1,
         patience_is_short_in_a_long_queue/1]).
-export([nobody_enters_when_it_drains/1, the_limit_can_be_lower/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [at_the_limit_and_one_more, rates_at_the_limit_and_one_more, a_rate_by_its_clock,
     a_refusal_takes_nothing, tools_have_bounds, networks_are_addresses,
     never_more_than_the_limit, killed_holders_hold_nothing, accounts_are_closed_when_idle,
     idle_accounts_are_exact, what_was_lost_is_found, tickets_are_handed_over,
     tickets_have_their_own_rows, generations_are_counted_apart,
     flows_take_turns, flows_have_equal_shares, who_asks_for_little_waits_little,
     a_burst_of_who_asks_for_little_is_next,
     those_that_stay_have_their_turns, ended_flows_are_forgotten,
     places_go_to_those_that_wait, places_that_nobody_waits_for_are_taken,
     a_dead_one_waits_no_longer,
     one_that_left_waits_no_longer, a_wait_has_an_end, a_wait_in_vain_is_refused_now,
     a_higher_limit_is_used, who_floods_leaves_room, without_a_queue_nobody_waits,
     patience_is_short_in_a_long_queue,
     nobody_enters_when_it_drains, the_limit_can_be_lower].

init_per_testcase(_, Config) ->
    process_flag(trap_exit, true),
    Config.

end_per_testcase(_, _) ->
    ok.

%% At the limit, and at one more.

at_the_limit_and_one_more(_) ->
    [ok = limited(Bounds, Enter, Expected) || {Bounds, Enter, Expected} <- bounds()].

bounds() ->
    Of = fun(Flow) -> fun(Gate) -> erlmcp_gate:enter(Gate, request(Flow)) end end,
    From = fun(Address) -> fun(Gate) -> erlmcp_gate:connect(Gate, #{address => Address}) end end,
    Queue = #{in_flight => 1, queue => 100},
    [{#{in_flight => 3}, Of(ada), {concurrent_limit_exceeded, 429, 3}},
     {#{in_flight => 5, in_flight_per_principal => 3}, Of(ada),
      {concurrent_limit_exceeded, 429, 3}},
     {#{connections => 3}, From(local), {concurrent_limit_exceeded, 429, 3}},
     {#{connections_per_address => 3}, From({192, 0, 2, 1}), {concurrent_limit_exceeded, 429, 3}},
     {#{connections_per_principal => 3}, fun(Gate) -> erlmcp_gate:joined(Gate, ada) end,
      {concurrent_limit_exceeded, 429, 3}},
     %% One has the place, and two wait.
     {Queue#{queue => 2}, Of(ada), {queue_cap_exceeded, 503, 2}},
     {Queue#{queue_bytes => 200}, Of(ada), {queue_byte_cap_exceeded, 503, 200}},
     {Queue#{queue_per_principal => 2}, Of(ada), {queue_tenant_cap_exceeded, 429, 2}},
     {#{messages_per_day => 3}, Of(ada), {rate_limit_exceeded, 429, 3}},
     {#{messages_per_minute => 3}, Of(ada), {rate_limit_exceeded, 429, 3}},
     {#{principal_messages_per_minute => 3}, Of(ada), {rate_limit_per_minute, 429, 3}},
     {#{principal_messages_per_day => 3}, Of(ada), {quota_exceeded, 429, 3}}].

%% Three may, whatever the bound is.
limited(Bounds, Enter, {Name, Status, Limit}) ->
    Gate = erlmcp_gate:new(Bounds),
    Tickets = [entered(Enter(Gate)) || _ <- lists:seq(1, 3)],
    [Name = refused(Enter(Gate)) || _ <- lists:seq(1, 3)],
    {refuse, Refusal} = Enter(Gate),
    Status = erlmcp_refusal:status(Refusal),
    true = erlmcp_refusal:retry_after(Refusal) > 0,
    #{~"data" := #{~"limit" := Limit, ~"observed" := Observed}} =
        json:decode(iolist_to_binary(erlmcp_refusal:encode(Refusal))),
    true = Observed > Limit,
    %% Who leaves twice leaves once.
    _ = [ok = erlmcp_gate:leave(Ticket) || Ticket <- Tickets ++ Tickets],
    _ = [0 = erlmcp_gate:held(Gate, Key) || Key <- [in_flight, connections, waiting, waiting_bytes,
                                                    {principal, ada}, {waiting, ada},
                                                    {connections, ada}]],
    case maps:to_list(maps:filter(fun(Bound, _) -> is_rate(Bound) end, Bounds)) of
        [] -> _ = entered(Enter(Gate)), ok;
        _ -> Name = refused(Enter(Gate)), ok
    end.

is_rate(Bound) ->
    string:find(atom_to_list(Bound), "_per_day") =/= nomatch
        orelse string:find(atom_to_list(Bound), "_per_minute") =/= nomatch.

rates_at_the_limit_and_one_more(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Most, Period, Now}, {rate(), period(), moment()},
        begin
            Words = atomics:new(8, []),
            Take = fun(At) -> erlmcp_rate:take_all([{Period, Most}], Words, 1, At) end,
            [ok] = lists:usort([Take(Now) || _ <- lists:seq(1, Most)]),
            {wait, {Period, Most}, Milliseconds} = Take(Now),
            {wait, _, Milliseconds} = Take(Now),
            %% Not before that time, and then.
            {wait, _, _} = Take(Now + (Milliseconds - 1) * 1_000_000),
            ok = Take(Now + Milliseconds * 1_000_000),
            %% After the whole period, all of it.
            Later = Now + Milliseconds * 1_000_000 + nanoseconds(Period),
            [ok] = lists:usort([Take(Later) || _ <- lists:seq(1, Most)]),
            {wait, _, _} = Take(Later),
            %% What one rate refuses is not counted in the others.
            Both = [{minute, Most + 1}, {day, Most}],
            Fresh = atomics:new(8, []),
            Counted = [erlmcp_rate:take_all(Both, Fresh, 1, Now) || _ <- lists:seq(0, Most + 5)],
            Most = length([ok || ok <- Counted]),
            6 = length([day || {wait, {day, _}, _} <- Counted]),
            ok = erlmcp_rate:take_all([{minute, Most + 1}], Fresh, 1, Now),
            {wait, _, _} = erlmcp_rate:take_all([{minute, Most + 1}], Fresh, 1, Now),
            true
        end), 200).

rate() -> integer(1, 500).
period() -> oneof([second, minute, day]).
moment() -> integer(1, 1 bsl 58).

nanoseconds(second) -> 1_000_000_000;
nanoseconds(minute) -> 60_000_000_000;
nanoseconds(day) -> 86_400_000_000_000.

a_rate_by_its_clock(_) ->
    %% All that comes in this second is in it, unless the second ends meanwhile: then it is again.
    Gate = erlmcp_gate:new(#{principal_messages_per_second => 1}),
    Names = [refused(Result) || _ <- lists:seq(1, 1000),
                                {refuse, _} = Result <- [erlmcp_gate:enter(Gate, request(ada))]],
    [rate_limit_per_second] = lists:usort(Names),
    %% Another one has a rate of its own; so have other messages none.
    _ = entered(erlmcp_gate:enter(Gate, request(bob))),
    rate_limit_per_second =
        until_refused(fun() -> erlmcp_gate:enter(Gate, (request(bob))#{kind := notification}) end).

until_refused(Enter) ->
    case Enter() of
        {ok, _} -> until_refused(Enter);
        Refused -> refused(Refused)
    end.

a_refusal_takes_nothing(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 1, in_flight_per_principal => 2,
                             principal_messages_per_minute => 3, messages_per_day => 4}),
    Ticket = entered(erlmcp_gate:enter(Gate, request(ada))),
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))),
    1 = erlmcp_gate:held(Gate, {principal, ada}),
    ok = erlmcp_gate:leave(Ticket),
    _ = entered(erlmcp_gate:enter(Gate, request(ada))),
    %% What a rate refuses is not counted in another.
    [rate_limit_per_minute = refused(erlmcp_gate:enter(Gate, request(ada)))
     || _ <- lists:seq(1, 5)],
    1 = erlmcp_gate:held(Gate, {principal, ada}),
    {ok, _} = erlmcp_gate:enter(Gate, (request(bob))#{kind := response}),
    rate_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(eve))),
    0 = erlmcp_gate:held(Gate, {principal, eve}),
    %% Nor is one in flight that cannot wait.
    Queued = queued(#{in_flight_per_principal => 5, queue => 1, queue_per_principal => 5}),
    [_ = entered(erlmcp_gate:enter(Queued, request(ada))) || _ <- [1, 2]],
    queue_cap_exceeded = refused(erlmcp_gate:enter(Queued, request(ada))),
    {2, 1} = {erlmcp_gate:held(Queued, {principal, ada}), erlmcp_gate:held(Queued, {waiting, ada})}.

tools_have_bounds(_) ->
    Gate = erlmcp_gate:new(#{}),
    Enter = fun() -> entered(erlmcp_gate:enter(Gate, request(ada))) end,
    Bounds = [{{tool, ~"dig"}, {minute, 4}}, {{tool, ~"dig"}, {at_once, 2}}],
    [First, _] = [begin T = Enter(), ok = erlmcp_gate:take(T, Bounds), T end || _ <- [1, 2]],
    Third = Enter(),
    concurrent_limit_exceeded = refused(erlmcp_gate:take(Third, Bounds)),
    %% The place of the first is free with all that it had; and the third did not count in the rate.
    ok = erlmcp_gate:leave(First),
    ok = erlmcp_gate:take(Third, Bounds),
    ok = erlmcp_gate:leave(Third),
    Fourth = Enter(),
    ok = erlmcp_gate:take(Fourth, Bounds),
    ok = erlmcp_gate:leave(Fourth),
    Fifth = Enter(),
    rate_limit_per_minute = refused(erlmcp_gate:take(Fifth, Bounds)),
    1 = erlmcp_gate:held(Gate, {tool, ~"dig"}),
    %% Who has left takes nothing.
    ok = erlmcp_gate:take(Third, [{{tool, ~"fill"}, {at_once, 1}}]),
    0 = erlmcp_gate:held(Gate, {tool, ~"fill"}).

networks_are_addresses(_) ->
    Gate = erlmcp_gate:new(#{connections_per_address => 1}),
    Connect = fun(Address) -> erlmcp_gate:connect(Gate, #{address => Address}) end,
    _ = entered(Connect({16#2001, 16#db8, 0, 1, 0, 0, 0, 1})),
    concurrent_limit_exceeded = refused(Connect({16#2001, 16#db8, 0, 1, 0, 0, 0, 2})),
    _ = entered(Connect({16#2001, 16#db8, 0, 2, 0, 0, 0, 1})),
    _ = entered(Connect({192, 0, 2, 1})),
    concurrent_limit_exceeded = refused(Connect({0, 0, 0, 0, 0, 16#ffff, 16#c000, 16#201})),
    _ = entered(Connect({0, 0, 0, 0, 0, 16#ffff, 16#c000, 16#202})),
    [_ = entered(Connect(local)) || _ <- [1, 2]].

%% Under contention, and with kills.

never_more_than_the_limit(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Limit, OfOne, Processes},
                                            {integer(1, 6), integer(1, 3), integer(2, 16)},
        begin
            Gate = erlmcp_gate:new(#{in_flight => Limit, in_flight_per_principal => OfOne}),
            Inside = atomics:new(3, []),
            Run = fun(Flow) -> [visit(Gate, Flow, Inside) || _ <- lists:seq(1, 200)] end,
            Most = lists:append(together([fun() -> Run(1 + N rem 2) end
                                          || N <- lists:seq(1, Processes)])),
            true = lists:max([0 | [All || {All, _} <- Most]]) =< Limit,
            true = lists:max([0 | [One || {_, One} <- Most]]) =< OfOne,
            %% Somebody was let in, and all have left.
            true = length(Most) > 0,
            0 = erlmcp_gate:held(Gate, in_flight),
            0 = erlmcp_gate:held(Gate, {principal, 1}),
            0 = erlmcp_gate:held(Gate, {principal, 2}),
            true
        end), 40).

%% How many were inside, and of the same flow, while this one was.
visit(Gate, Flow, Inside) ->
    case erlmcp_gate:enter(Gate, request(Flow)) of
        {ok, Ticket} ->
            All = atomics:add_get(Inside, 3, 1),
            One = atomics:add_get(Inside, Flow, 1),
            _ = erlang:yield(),
            ok = atomics:sub(Inside, Flow, 1),
            ok = atomics:sub(Inside, 3, 1),
            ok = erlmcp_gate:leave(Ticket),
            {All, One};
        {refuse, Refusal} ->
            concurrent_limit_exceeded = erlmcp_refusal:name(Refusal),
            {0, 0}
    end.

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
    {ok, _} = erlmcp_gate_books:take_place(Books),
    {ok, _} = erlmcp_gate_books:take_one({principal, ada}, [], 3, 1, Books),
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
    #{words := Words} = Small = erlmcp_accounts:new(1, 8),
    {ok, Index} = erlmcp_accounts:find({principal, ada}, Small),
    ok = erlmcp_accounts:close_idle(1, Small),
    closed = erlmcp_account:take(Words, Index, {1, 0}, 10),
    {none, [Index]} = {erlmcp_accounts:known({principal, ada}, Small), erlmcp_accounts:lost(Small)},
    %% And what he counted in its rates is not its next owner's.
    ok = erlmcp_rate:take_all([{day, 1}], Words, Index, 1),
    ok = erlmcp_accounts:free(Index, Small),
    {ok, Index} = erlmcp_accounts:find({principal, bob}, Small),
    ok = erlmcp_rate:take_all([{day, 1}], Words, Index, 1),
    %% He opens another one instead, though the closed one can still be found.
    Two = erlmcp_accounts:new(2, 8),
    {ok, Closed} = erlmcp_accounts:find({principal, ada}, Two),
    true = erlmcp_account:close(maps:get(words, Two), Closed),
    {ok, {Open, _}} = erlmcp_accounts:take({principal, ada}, {[], 1}, 0, 10, Two),
    true = Open =/= Closed,
    {ok, Open} = erlmcp_accounts:known({principal, ada}, Two),
    %% So they are exact while others enter.
    Gate = erlmcp_gate:new(#{in_flight_per_principal => 1, principals => 100_000}),
    #{books := #{accounts := Accounts}} = Gate,
    Inside = atomics:new(3, []),
    Closer = spawn_link(fun Close() ->
        ok = erlmcp_accounts:close_idle(1 bsl 58, Accounts),
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
    Numbers = [{erlmcp_gate_books:write([], Books), erlmcp_gate_books:queue([], [], Books)}
               || _ <- lists:seq(1, 1000)],
    true = lists:all(fun({Holds, Waits}) -> Holds < 0 andalso Waits > 0 end, Numbers),
    [] = erlmcp_gate:calls(Gate).

generations_are_counted_apart(_) ->
    Words = atomics:new(1, []),
    Take = fun(Generation) ->
        {ok, Share} = erlmcp_account:take(Words, 1, {1, Generation}, 10),
        Share
    end,
    [First | _] = [Take(0), Take(0)],
    [Second | _] = [Take(1), Take(1), Take(1)],
    {2, 3, 5} = {erlmcp_account:held(Words, 1, 0), erlmcp_account:held(Words, 1, 1),
                 erlmcp_account:held(Words, 1)},
    [{1, 0}, {0, 1}] = [{erlmcp_account:amount(Share, 0), erlmcp_account:amount(Share, 1)}
                        || Share <- [First, Second]].

%% The queue.

flows_take_turns(_) ->
    ok = erlmcp_test_property:holds(?FORALL(Given, list(oneof([ada, bob, 1, 2.0, {eve, 1}])),
        begin
            Numbered = lists:enumerate(Given),
            Flows = lists:foldl(fun({Number, Flow}, Flows) ->
                                    erlmcp_flows:add(Flow, Number, {Flow, Number}, 0, Flows)
                                end, erlmcp_flows:new(), Numbered),
            Served = serve(Flows),
            %% All of them, each flow in its order, and no flow twice where another one waits.
            true = lists:sort(Served) =:= lists:sort([{F, N} || {N, F} <- Numbered]),
            [true = Own =:= lists:sort(Own)
             || Flow <- lists:usort(Given), Own <- [[N || {F, N} <- Served, F =:= Flow]]],
            fair(Served)
        end), 200).

serve(Flows) ->
    case erlmcp_flows:next(Flows) of
        none ->
            0 = erlmcp_flows:length(Flows),
            [];
        {Key, Key} ->
            {ok, Key, Rest} = erlmcp_flows:take(Key, Flows),
            [Key | serve(erlmcp_flows:served(Key, Rest))]
    end.

%% Between two turns of a flow all others that wait have one.
fair([]) ->
    true;
fair([{Flow, _} | Served]) ->
    case lists:splitwith(fun({Other, _}) -> Other =/= Flow end, Served) of
        {_, []} ->
            fair(Served);
        {Between, Rest} ->
            Waiting = lists:usort([Other || {Other, _} <- Rest, Other =/= Flow]),
            Waiting -- [Other || {Other, _} <- Between] =:= [] andalso fair(Served)
    end.

%% Whether a flow has many that wait, or one at a time that comes as soon as the last had its turn.
flows_have_equal_shares(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Many, OneByOne, Rounds},
                                            {range(1, 6), range(1, 6), range(1, 40)},
        begin
            Names = [{Kind, N} || {Kind, Most} <- [{many, Many}, {one, OneByOne}],
                                  N <- lists:seq(1, Most)],
            Filled = lists:foldl(fun come/2, {1, erlmcp_flows:new()},
                                 Names ++ [Name || {many, _} = Name <- Names,
                                                   _ <- lists:seq(1, Rounds)]),
            Turns = turns(Rounds * length(Names), Filled),
            [Rounds] =:= lists:usort([length([T || T <- Turns, T =:= Name]) || Name <- Names])
        end), 100).

turns(0, _) ->
    [];
turns(Left, Waiting) ->
    case turn(Waiting) of
        {{one, _} = Flow, Next} -> [Flow | turns(Left - 1, come(Flow, Next))];
        {Flow, Next} -> [Flow | turns(Left - 1, Next)]
    end.

come(Flow, {Number, Flows}) ->
    {Number + 1, erlmcp_flows:add(Flow, Number, none, 0, Flows)}.

turn({Number, Flows}) ->
    {{Flow, _} = Key, none} = erlmcp_flows:next(Flows),
    {ok, none, Rest} = erlmcp_flows:take(Key, Flows),
    {Flow, {Number, erlmcp_flows:served(Key, Rest)}}.

%% Of some floods and some others that ask for less than their share at random times: one of the
%% others waits for those of its like, and for a turn of each flow at most, however long the floods'
%% queues are.
who_asks_for_little_waits_little(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Floods, Others, Seed},
                                            {range(1, 5), range(1, 9), integer(1, inf)},
        begin
            _ = rand:seed(exsss, Seed),
            Flooded = lists:foldl(fun come/2, {1, erlmcp_flows:new()},
                                  [{flood, N rem Floods} || N <- lists:seq(1, 600)]),
            Waits = waits(300, Floods, Others, #{}, Flooded),
            ?WHENFAIL(ct:log("~p", [Waits]), lists:all(fun(Turns) -> Turns =< Floods + Others end,
                                                       Waits))
        end), 50).

%% In each turn each of them asks with half the chance of its share, if it does not wait.
waits(0, _, _, _, _) ->
    [];
waits(Left, Floods, Others, Since, Waiting) ->
    Coming = [Flow || N <- lists:seq(1, Others), Flow <- [{other, N}],
                      not is_map_key(Flow, Since), rand:uniform(2 * (Floods + Others)) =:= 1],
    {Flow, Next} = turn(lists:foldl(fun come/2, Waiting, Coming)),
    Asked = maps:merge(Since, #{Other => Left || Other <- Coming}),
    case Asked of
        #{Flow := At} -> [At - Left | waits(Left - 1, Floods, Others, maps:remove(Flow, Asked),
                                            Next)];
        #{} -> waits(Left - 1, Floods, Others, Asked, Next)
    end.

%% What comes at once of one that asks for little is served next, up to four turns; the rest takes
%% turns with the flood.
a_burst_of_who_asks_for_little_is_next(_) ->
    Flooded = lists:foldl(fun come/2, {1, erlmcp_flows:new()}, lists:duplicate(200, flood)),
    Turn = fun(_, Waiting) -> turn(Waiting) end,
    {_, Served} = lists:mapfoldl(Turn, Flooded, lists:seq(1, 100)),
    Both = lists:foldl(fun come/2, Served, lists:duplicate(20, burst)),
    {Turns, _} = lists:mapfoldl(Turn, Both, lists:seq(1, 14)),
    {First, Others} = lists:split(4, Turns),
    [burst] = lists:usort(First),
    true = abs(length([burst || burst <- Others]) - length([flood || flood <- Others])) =< 2.

%% Others that nobody knew before come in each turn, and are due at once.
those_that_stay_have_their_turns(_) ->
    Stays = lists:foldl(fun come/2, {1, erlmcp_flows:new()}, lists:duplicate(100, stays)),
    {Turns, _} = lists:mapfoldl(fun(N, Waiting) -> turn(come({new, N}, Waiting)) end, Stays,
                                lists:seq(1, 400)),
    true = length([stays || stays <- Turns]) >= 400 div 20.

ended_flows_are_forgotten(_) ->
    {_, Flows} = lists:foldl(fun(N, Waiting) -> element(2, turn(come(N, Waiting))) end,
                             {1, erlmcp_flows:new()}, lists:seq(1, 10_000)),
    true = erts_debug:flat_size(Flows) < 1_000.

places_go_to_those_that_wait(_) ->
    Gate = queued(#{}),
    {Keeper, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Flood = [wait(Gate, ada) || _ <- lists:seq(1, 5)],
    Others = [wait(Gate, bob), wait(Gate, eve)],
    ok = waiting(Gate, Queue, 7),
    %% Nobody overtakes them, though there is a place.
    ok = sys:suspend(Queue),
    ok = erlmcp_gate:leave(First),
    Late = entered(erlmcp_gate:enter(Gate, request(ada))),
    {0, 8} = {erlmcp_gate:held(Gate, in_flight), erlmcp_gate:held(Gate, waiting)},
    ok = erlmcp_gate:leave(Late),
    ok = sys:resume(Queue),
    Order = [begin
                 {Pid, Flow, {ok, _}} = answer(),
                 [] = answers(),
                 1 = erlmcp_gate:held(Gate, in_flight),
                 Pid ! leave,
                 Flow
             end || _ <- lists:seq(1, 7)],
    [ada, bob, eve] = lists:sort(lists:sublist(Order, 3)),
    [ada, ada, ada, ada] = lists:nthtail(3, Order),
    [await_end(Pid) || Pid <- Flood ++ Others],
    [0 = erlmcp_gate:held(Gate, Key) || Key <- [in_flight, waiting, waiting_bytes]],
    {ok, _} = erlmcp_gate:await(First, 1),
    {8, Nanoseconds} = erlmcp_gate_sums:waits(erlmcp_gate:sums(Gate)),
    true = Nanoseconds > 0,
    ok = stop([Keeper, Queue]).

places_that_nobody_waits_for_are_taken(_) ->
    %% Who found none and has not come to the queue yet holds up nobody, and needs no queue where
    %% there is one when he comes.
    Alone = queued(#{}),
    First = entered(erlmcp_gate:enter(Alone, request(ada))),
    Late = entered(erlmcp_gate:enter(Alone, request(ada))),
    ok = erlmcp_gate:leave(First),
    Next = entered(erlmcp_gate:enter(Alone, request(bob))),
    {1, 1} = {erlmcp_gate:held(Alone, in_flight), erlmcp_gate:held(Alone, waiting)},
    ok = erlmcp_gate:leave(Next),
    {ok, Granted} = erlmcp_gate:await(Late, 50_000),
    {1, 0} = {erlmcp_gate:held(Alone, in_flight), erlmcp_gate:held(Alone, waiting)},
    ok = erlmcp_gate:leave(Granted),
    [0 = erlmcp_gate:held(Alone, Key) || Key <- [in_flight, waiting_bytes, {waiting, ada}]],
    %% Where one is in the queue, all places but one are to be had.
    Gate = queued(#{in_flight => 3}),
    {Keeper, Queue} = processes(Gate),
    Tickets = [entered(erlmcp_gate:enter(Gate, request(ada))) || _ <- [1, 2, 3]],
    Waits = wait(Gate, bob),
    ok = waiting(Gate, Queue, 1),
    ok = sys:suspend(Queue),
    _ = [ok = erlmcp_gate:leave(Ticket) || Ticket <- Tickets],
    Places = [begin
                  _ = entered(erlmcp_gate:enter(Gate, request(ada))),
                  erlmcp_gate:held(Gate, in_flight)
              end || _ <- [1, 2, 3]],
    [1, 2, 2] = Places,
    ok = sys:resume(Queue),
    {Waits, bob, {ok, _}} = answer(),
    ok = stop([Waits, Keeper, Queue]).

a_dead_one_waits_no_longer(_) ->
    Gate = queued(#{queue => 2}),
    {Keeper, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Killed = wait(Gate, ada),
    ok = waiting(Gate, Queue, 1),
    Next = wait(Gate, ada),
    ok = waiting(Gate, Queue, 2),
    queue_cap_exceeded = refused(erlmcp_gate:enter(Gate, request(bob))),
    ok = stop([Killed]),
    %% Its room in the queue is another one's when the keeper looks, and the queue forgets it.
    ok = rounds(Keeper, 1),
    1 = erlmcp_gate:held(Gate, waiting),
    ok = waiting(Gate, Queue, 1),
    Last = wait(Gate, ada),
    ok = waiting(Gate, Queue, 2),
    ok = erlmcp_gate:leave(First),
    {Next, ada, {ok, _}} = answer(),
    %% A killed holder's place is found when the keeper looks.
    ok = stop([Next]),
    ok = rounds(Keeper, 1),
    {Last, ada, {ok, _}} = answer(),
    ok = stop([Last, Keeper, Queue]).

one_that_left_waits_no_longer(_) ->
    Gate = queued(#{}),
    {Keeper, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Ticket = entered(erlmcp_gate:enter(Gate, request(ada))),
    Self = self(),
    Waits = spawn_link(fun() -> Self ! {self(), ada, erlmcp_gate:await(Ticket, 50_000)} end),
    ok = erlmcp_gate:hand_over(Ticket, Waits),
    ok = waiting(Gate, Queue, 1),
    ok = erlmcp_gate:leave(Ticket),
    ok = erlmcp_gate:leave(First),
    %% It hears of it when it would be its turn, and no place is lost.
    ok = until(fun() -> Queue ! turn, answers() =/= [] orelse not is_process_alive(Waits) end),
    0 = erlmcp_gate:held(Gate, in_flight),
    _ = entered(erlmcp_gate:enter(Gate, request(ada))),
    ok = stop([Keeper, Queue]).

a_wait_has_an_end(_) ->
    Gate = queued(#{queue_ms => 50}),
    {Keeper, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Waits = wait(Gate, ada),
    {Waits, ada, {refuse, Refusal}} = answer(),
    {backpressure_active, 503} = {erlmcp_refusal:name(Refusal), erlmcp_refusal:status(Refusal)},
    true = erlmcp_refusal:retry_after(Refusal) > 0,
    %% And one without any time left is not even asked to wait.
    Late = entered(erlmcp_gate:enter(Gate, request(ada))),
    backpressure_active = refused(erlmcp_gate:await(Late, 0)),
    0 = erlmcp_gate:held(Gate, waiting),
    %% Nor is one that waits when the queue ends.
    unlink(Queue),
    Long = queued(#{queue_ms => 50_000}),
    {LongKeeper, LongQueue} = processes(Long),
    Held = entered(erlmcp_gate:enter(Long, request(ada))),
    Orphan = wait(Long, ada),
    ok = waiting(Long, LongQueue, 1),
    ok = stop([LongQueue]),
    {Orphan, ada, {refuse, _}} = answer(),
    0 = erlmcp_gate:held(Long, waiting),
    %% Nobody waits in the next one.
    {ok, NextQueue} = erlmcp_gate_queue:start_link(Long),
    ok = erlmcp_gate:leave(Held),
    _ = entered(erlmcp_gate:enter(Long, request(ada))),
    {1, 0} = {erlmcp_gate:held(Long, in_flight), erlmcp_gate:held(Long, waiting)},
    ok = erlmcp_gate:leave(First),
    ok = stop([Keeper, Queue, LongKeeper, NextQueue]).

a_wait_in_vain_is_refused_now(_) ->
    Gate = queued(#{queue => 1000, queue_ms => 500_000}),
    {Keeper, Queue} = processes(Gate),
    First = entered(erlmcp_gate:enter(Gate, request(ada))),
    Waiting = [wait(Gate, ada, 400_000) || _ <- lists:seq(1, 601)],
    ok = waiting(Gate, Queue, 601),
    %% A turn takes 100 milliseconds or more: six hundred take a minute.
    ok = timer:sleep(100),
    ok = erlmcp_gate:leave(First),
    {_, ada, {ok, _}} = answer(),
    {refuse, Refusal} = erlmcp_gate:await(entered(erlmcp_gate:enter(Gate, request(ada))), 60_000),
    backpressure_active = erlmcp_refusal:name(Refusal),
    true = erlmcp_refusal:retry_after(Refusal) >= 60,
    %% The other flow would have the next turn but one.
    Other = wait(Gate, bob, 60_000),
    ok = waiting(Gate, Queue, 601),
    ok = stop([Other, Keeper, Queue | Waiting]).

a_higher_limit_is_used(_) ->
    Gate = queued(#{in_flight => 5}),
    {Keeper, Queue} = processes(Gate),
    ok = erlmcp_gate:limit(Gate, 1),
    _ = entered(erlmcp_gate:enter(Gate, request(ada))),
    Waiting = [wait(Gate, ada), wait(Gate, bob)],
    ok = waiting(Gate, Queue, 2),
    ok = erlmcp_gate:limit(Gate, 100),
    5 = erlmcp_gate:limit(Gate),
    [{_, _, {ok, _}} = answer() || _ <- Waiting],
    3 = erlmcp_gate:held(Gate, in_flight),
    ok = stop([Keeper, Queue | Waiting]).

%% Each has as many as the room for all has left, and ten in any case.
who_floods_leaves_room(_) ->
    Gate = queued(#{}),
    _ = entered(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:room(Gate, 60),
    [30, 15, 10, 10, 10] = [enter_all(Gate, Flow) || Flow <- [ada, bob, eve, joe, sue]],
    0 = enter_all(Gate, ada),
    ok = erlmcp_gate:room(Gate, none),
    25 = enter_all(Gate, ada).

%% How many may, until one is refused.
enter_all(Gate, Flow) ->
    case erlmcp_gate:enter(Gate, request(Flow)) of
        {ok, _} ->
            1 + enter_all(Gate, Flow);
        {refuse, Refusal} ->
            true = lists:member(erlmcp_refusal:name(Refusal),
                                [queue_tenant_cap_exceeded, queue_cap_exceeded]),
            0
    end.

without_a_queue_nobody_waits(_) ->
    Gate = queued(#{}),
    _ = entered(erlmcp_gate:enter(Gate, request(ada))),
    Ticket = entered(erlmcp_gate:enter(Gate, request(ada))),
    %% The queue is about to be started.
    backpressure_active = refused(erlmcp_gate:await(Ticket, 1000)),
    0 = erlmcp_gate:held(Gate, waiting).

patience_is_short_in_a_long_queue(_) ->
    New = erlmcp_patience:began(0, erlmcp_patience:new(1000)),
    1000 = erlmcp_patience:allowed(250, 0, 1, New),
    Turned = lists:foldl(fun erlmcp_patience:turned/2, New, lists:seq(10, 2000, 10)),
    100 = erlmcp_patience:allowed(2001, 0, 1, Turned),
    %% A flow in which nobody always waited may wait for a round of turns more, if that is short.
    150 = erlmcp_patience:allowed(2001, 1900, 5, Turned),
    200 = erlmcp_patience:allowed(2001, 1900, 5_000, Turned),
    %% A turn may take longer than that.
    [300 = erlmcp_patience:allowed(2300, Since, 1, Turned) || Since <- [0, 2200]],
    100 = erlmcp_patience:needed(10, Turned),
    0 = erlmcp_patience:needed(0, Turned),
    0 = erlmcp_patience:needed(10, New),
    %% It is new again when it was empty.
    1000 = erlmcp_patience:allowed(2750, 2500, 1, erlmcp_patience:began(2500, Turned)).

%% The state of the server.

nobody_enters_when_it_drains(_) ->
    Gate = erlmcp_gate:new(#{}),
    open = erlmcp_gate:state(Gate),
    Ticket = entered(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:drain(Gate),
    [server_shutting_down = refused(Refused)
     || Refused <- [erlmcp_gate:state(Gate), erlmcp_gate:enter(Gate, request(ada)),
                    erlmcp_gate:connect(Gate, #{address => local})]],
    %% What is in comes to its end.
    {ok, Response} = erlmcp_gate:enter(Gate, (request(ada))#{kind := response}),
    ok = erlmcp_gate:leave(Response),
    {ok, Ticket} = erlmcp_gate:await(Ticket, 1000),
    ok = erlmcp_gate:leave(Ticket),
    0 = erlmcp_gate:held(Gate, in_flight).

the_limit_can_be_lower(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 3}),
    [First, Second] = [entered(erlmcp_gate:enter(Gate, request(ada))) || _ <- [1, 2]],
    ok = erlmcp_gate:limit(Gate, 1),
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:leave(First),
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:leave(Second),
    _ = entered(erlmcp_gate:enter(Gate, request(ada))).

%% What the cases share.

request(Flow) ->
    #{flow => Flow, kind => request, bytes => 100}.

queued(Bounds) ->
    erlmcp_gate:new(maps:merge(#{in_flight => 1, queue => 100, queue_ms => 50_000}, Bounds)).

entered({ok, Ticket}) -> Ticket.

refused({refuse, Refusal}) -> erlmcp_refusal:name(Refusal).

processes(Gate) ->
    {ok, Keeper} = erlmcp_gate_keeper:start_link(Gate),
    {ok, Queue} = erlmcp_gate_queue:start_link(Gate),
    {Keeper, Queue}.

%% So many rounds of the keeper, at once.
rounds(Keeper, Count) ->
    _ = [Keeper ! round || _ <- lists:seq(1, Count)],
    _ = sys:get_state(Keeper),
    ok.

%% A process that waits for a place, says what came of it, and leaves when it is told to.
wait(Gate, Flow) ->
    wait(Gate, Flow, 50_000).

wait(Gate, Flow, Milliseconds) ->
    Self = self(),
    spawn_link(fun() ->
        Ticket = entered(erlmcp_gate:enter(Gate, request(Flow))),
        Self ! {self(), Flow, erlmcp_gate:await(Ticket, Milliseconds)},
        receive leave -> erlmcp_gate:leave(Ticket) end
    end).

%% Until so many wait in the queue's process.
waiting(Gate, Queue, Count) ->
    until(fun() ->
        erlmcp_gate:held(Gate, waiting) =:= Count
            andalso erlmcp_flows:length(element(4, sys:get_state(Queue))) =:= Count
    end).

until(Condition) ->
    case Condition() of
        true ->
            ok;
        false ->
            receive after 5 -> until(Condition) end
    end.

answer() ->
    receive {Pid, _, _} = Answer when is_pid(Pid) -> Answer end.

answers() ->
    receive {Pid, _, _} = Answer when is_pid(Pid) -> [Answer | answers()] after 0 -> [] end.

%% What each of these gives, all at the same time.
together(Funs) ->
    Self = self(),
    Pids = [spawn_link(fun() -> receive go -> Self ! {self(), Fun()} end end) || Fun <- Funs],
    _ = [Pid ! go || Pid <- Pids],
    [receive {Pid, Result} -> Result end || Pid <- Pids].

stop(Pids) ->
    lists:foreach(fun(Pid) -> unlink(Pid), exit(Pid, kill), await_end(Pid) end, Pids).

await_end(Pid) ->
    Reference = monitor(process, Pid),
    receive {'DOWN', Reference, _, _, _} -> ok end.
