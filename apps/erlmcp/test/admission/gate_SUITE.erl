-module(gate_SUITE).
-moduledoc "The gate: each of its bounds at the limit and at one more, also under contention.".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([at_the_limit_and_one_more/1, rates_at_the_limit_and_one_more/1, a_rate_by_its_clock/1,
         a_refusal_takes_nothing/1, tools_have_bounds/1, networks_are_addresses/1,
         never_more_than_the_limit/1, nobody_enters_when_it_drains/1, the_limit_can_be_lower/1]).

-import(gate_users, [request/1, queued/1, entered/1, refused/1, visit/3, together/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [at_the_limit_and_one_more, rates_at_the_limit_and_one_more, a_rate_by_its_clock,
     a_refusal_takes_nothing, tools_have_bounds, networks_are_addresses, never_more_than_the_limit,
     nobody_enters_when_it_drains, the_limit_can_be_lower].

init_per_testcase(_, Config) ->
    process_flag(trap_exit, true),
    Config.

end_per_testcase(_, _) ->
    ok.

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
