-module(gate_limits_SUITE).
-moduledoc "The gate: each of its limits, at the limit and at one more.".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([at_the_limit_and_one_more/1, rates_at_the_limit_and_one_more/1,
         rates_count_all_or_none/1, a_rate_by_its_clock/1,
         answers_and_cancellations_count_apart/1,
         a_refused_message_uses_up_no_rate/1, a_refusal_takes_nothing/1,
         one_client_leaves_room_on_the_way/1, requests_without_a_home_are_bounded/1,
         one_client_leaves_room_to_wait/1, answers_wait_without_a_share/1,
         definitions_have_limits/1,
         the_servers_own_counters_always_have_room/1, networks_are_addresses/1,
         no_request_enters_when_it_drains/1, the_limit_can_be_lower/1,
         refusals_say_which_rate_is_used_up/1, refusals_say_what_is_called_too_often/1]).

-import(erlmcp_test_gate, [request/1, queued/1, entered/1, refused/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [at_the_limit_and_one_more, rates_at_the_limit_and_one_more, rates_count_all_or_none,
     a_rate_by_its_clock, answers_and_cancellations_count_apart,
     a_refused_message_uses_up_no_rate, a_refusal_takes_nothing,
     one_client_leaves_room_on_the_way, requests_without_a_home_are_bounded,
     one_client_leaves_room_to_wait, answers_wait_without_a_share, definitions_have_limits,
     refusals_say_what_is_called_too_often,
     the_servers_own_counters_always_have_room, networks_are_addresses,
     no_request_enters_when_it_drains, the_limit_can_be_lower,
     refusals_say_which_rate_is_used_up].

init_per_testcase(_, Config) ->
    process_flag(trap_exit, true),
    Config.

end_per_testcase(_, _) ->
    ok.

at_the_limit_and_one_more(_) ->
    [ok = limited(Bounds, Enter, Expected) || {Bounds, Enter, Expected} <- bounds()].

bounds() ->
    Of = fun(Tenant) -> fun(Gate) -> erlmcp_gate:enter(Gate, request(Tenant)) end end,
    From = fun(Address) -> fun(Gate) -> erlmcp_gate:connect(Gate, #{address => Address}) end end,
    Queue = #{in_flight => 1, queue => 100},
    [{#{in_flight => 3}, Of(ada), {concurrent_limit_exceeded, 429, 3}},
     {#{in_flight => 5, in_flight_per_principal => 3}, Of(ada),
      {concurrent_limit_exceeded, 429, 3}},
     {#{connections => 3}, From(local), {concurrent_limit_exceeded, 429, 3}},
     {#{connections_per_address => 3}, From({192, 0, 2, 1}), {concurrent_limit_exceeded, 429, 3}},
     {#{connections_per_principal => 3}, fun(Gate) -> erlmcp_gate:connect_tenant(Gate, ada) end,
      {concurrent_limit_exceeded, 429, 3}},
     %% One is in flight, and two wait.
     {Queue#{queue => 2}, Of(ada), {queue_cap_exceeded, 503, 2}},
     {Queue#{queue_bytes => 200}, Of(ada), {queue_byte_cap_exceeded, 503, 200}},
     {Queue#{queue_per_principal => 2}, Of(ada), {queue_tenant_cap_exceeded, 429, 2}},
     {#{in_flight => 3}, fun(Gate) -> erlmcp_gate:forward(make_ref(), 10, Gate) end,
      {backpressure_active, 503, 3}},
     {#{queue_bytes => 300}, fun(Gate) -> erlmcp_gate:forward(make_ref(), 100, Gate) end,
      {backpressure_active, 503, 300}},
     {#{messages_per_day => 3}, Of(ada), {rate_limit_exceeded, 429, 3}},
     {#{messages_per_minute => 3}, Of(ada), {rate_limit_exceeded, 429, 3}},
     {#{principal_messages_per_minute => 3}, Of(ada), {rate_limit_per_minute, 429, 3}},
     {#{principal_messages_per_day => 3}, Of(ada), {quota_exceeded, 429, 3}}].

%% A client may have as many requests on their way to other nodes, and as many bytes, as are still
%% free for all: half of them, if it is alone. A request may be on its way for minutes.
one_client_leaves_room_on_the_way(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 40, queue_bytes => 1_000}),
    Forward = fun(Tenant, Bytes) -> erlmcp_gate:forward(Tenant, Bytes, Gate) end,
    Permits = [entered(Forward(ada, 10)) || _ <- lists:seq(1, 20)],
    backpressure_active = refused(Forward(ada, 10)),
    %% Answers do not count as a client's: a request on its way may need one in order to end.
    Answer = #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"result" => #{}},
    Answers = [entered(erlmcp_admission:forward(Answer, 10, ada, #{gate => Gate}))
               || _ <- lists:seq(1, 11)],
    [ok = erlmcp_gate:leave(Permit) || Permit <- Answers],
    %% Ten in any case.
    _ = [entered(Forward(Tenant, 10)) || Tenant <- [bob, eve], _ <- lists:seq(1, 10)],
    backpressure_active = refused(Forward(dan, 10)),
    %% As many answers have room beside them, and as many bytes.
    Beside = [entered(Forward(none, 10)) || _ <- lists:seq(1, 40)],
    backpressure_active = refused(Forward(none, 10)),
    [ok = erlmcp_gate:leave(Permit) || Permit <- Beside],
    _ = entered(Forward(none, 1_000)),
    backpressure_active = refused(Forward(none, 1)),
    [ok = erlmcp_gate:leave(Permit) || Permit <- Permits],
    _ = entered(Forward(dan, 300)),
    _ = entered(Forward(ada, 150)),
    backpressure_active = refused(Forward(ada, 201)),
    _ = entered(Forward(bob, 10)).

requests_without_a_home_are_bounded(_) ->
    Gate = erlmcp_gate:new(#{}),
    Permits = [entered(erlmcp_gate:wait_for_cluster(Tenant, Gate))
               || Tenant <- lists:seq(1, 1_000)],
    backpressure_active = refused(erlmcp_gate:wait_for_cluster(ada, Gate)),
    ok = erlmcp_gate:leave(hd(Permits)),
    _ = entered(erlmcp_gate:wait_for_cluster(ada, Gate)).

%% As many as could still wait: half of them, if it is alone, and half of the rest for the next one.
one_client_leaves_room_to_wait(_) ->
    Gate = erlmcp_gate:new(#{}),
    Wait = fun(Tenant) -> erlmcp_gate:wait_for_cluster(Tenant, Gate) end,
    [begin
         _ = [entered(Wait(Tenant)) || _ <- lists:seq(1, Count)],
         {refuse, Refusal} = Wait(Tenant),
         <<"too many requests of one client wait", _/binary>> =
             iolist_to_binary(erlmcp_refusal:message(Refusal))
     end || {Tenant, Count} <- [{ada, 500}, {bob, 250}]],
    %% Ten in any case.
    _ = [entered(Wait(Tenant)) || Tenant <- lists:seq(1, 240)],
    _ = [entered(Wait(eve)) || _ <- lists:seq(1, 10)],
    backpressure_active = refused(Wait(dan)).

%% Requests of the same client may need them in order to end.
answers_wait_without_a_share(_) ->
    Gate = erlmcp_gate:new(#{}),
    Call = #{~"id" => 1, ~"method" => ~"tools/call"},
    Others = [Json#{~"jsonrpc" => ~"2.0"}
              || Json <- [#{~"id" => 1, ~"result" => #{}}, #{~"id" => 1, ~"error" => #{}},
                          #{~"method" => ~"notifications/cancelled"}]],
    [true, true, true] =
        [erlmcp_admission:is_request(Json) || Json <- [Call, [Call], Others ++ [Call]]],
    [false, false, false, false] =
        [erlmcp_admission:is_request(Json) || Json <- [Others | Others]],
    _ = [entered(erlmcp_gate:wait_for_cluster(none, Gate)) || _ <- lists:seq(1, 1_000)],
    backpressure_active = refused(erlmcp_gate:wait_for_cluster(none, Gate)),
    %% They keep no request out, nor do requests them.
    _ = entered(erlmcp_gate:wait_for_cluster(ada, Gate)).

refusals_say_which_rate_is_used_up(_) ->
    [begin
         Gate = erlmcp_gate:new(#{Bound => 1}),
         _ = entered(erlmcp_gate:enter(Gate, request(ada))),
         {refuse, Refusal} = erlmcp_gate:enter(Gate, request(ada)),
         {Bound, Message} = {Bound, iolist_to_binary(erlmcp_refusal:message(Refusal))}
     end || {Bound, Message} <- [
                {messages_per_minute, ~"too many messages to this server in a minute"},
                {principal_messages_per_day, ~"too many messages of one client in a day"}]].

%% Three may enter, whatever the limit is.
limited(Bounds, Enter, {Name, Status, Limit}) ->
    Gate = erlmcp_gate:new(Bounds),
    Permits = [entered(Enter(Gate)) || _ <- lists:seq(1, 3)],
    [Name = refused(Enter(Gate)) || _ <- lists:seq(1, 3)],
    {refuse, Refusal} = Enter(Gate),
    Status = erlmcp_refusal:status(Refusal),
    true = erlmcp_refusal:retry_after(Refusal) > 0,
    #{~"data" := #{~"limit" := Limit, ~"observed" := Observed}} =
        json:decode(iolist_to_binary(erlmcp_refusal:encode(Refusal))),
    true = Observed > Limit,
    %% To leave twice is to leave once.
    _ = [ok = erlmcp_gate:leave(Permit) || Permit <- Permits ++ Permits],
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
    ok = erlmcp_test_property:holds(?FORALL({Most, Period, Now}, {most(), period(), moment()},
        begin
            Counters = erlmcp_gate_counters:new(1, none),
            Rate = {Period, Most},
            Count = fun(At) -> erlmcp_gate_counters:count_rates(server, [Rate], At, Counters) end,
            CountAll = fun(At) -> [ok = Count(At) || _ <- lists:seq(1, Most)] end,
            _ = CountAll(Now),
            {wait, Rate, Milliseconds} = Count(Now),
            %% Not before that time, and then.
            {wait, Rate, _} = Count(Now + (Milliseconds - 1) * 1_000_000),
            ok = Count(Now + Milliseconds * 1_000_000),
            %% After the whole period, all of it.
            Later = Now + Milliseconds * 1_000_000 + nanoseconds(Period),
            _ = CountAll(Later),
            {wait, Rate, _} = Count(Later),
            true
        end), 200).

most() -> integer(1, 500).
period() -> oneof([second, minute, day]).
moment() -> integer(1, 1 bsl 58).

nanoseconds(second) -> 1_000_000_000;
nanoseconds(minute) -> 60_000_000_000;
nanoseconds(day) -> 86_400_000_000_000.

%% A message that one rate refuses is not counted in the others.
rates_count_all_or_none(_) ->
    Counters = erlmcp_gate_counters:new(10, none),
    Now = erlmcp_gate_counters:now(Counters),
    [begin
         Count = fun(Rates) -> erlmcp_gate_counters:count_rates(Of, Rates, Now, Counters) end,
         Both = [{minute, 5}, {day, 4}],
         [ok, ok, ok, ok] = [Count(Both) || _ <- lists:seq(1, 4)],
         [{wait, {day, 4}, _} = Count(Both) || _ <- lists:seq(1, 6)],
         ok = Count([{minute, 5}]),
         {wait, {minute, 5}, _} = Count([{minute, 5}])
     end || Of <- [server, {principal, ada}, {principal, bob}]].

a_rate_by_its_clock(_) ->
    %% All messages come in one second, or in two.
    Gate = erlmcp_gate:new(#{principal_messages_per_second => 1}),
    Names = [refused(Result) || _ <- lists:seq(1, 1000),
                                {refuse, _} = Result <- [erlmcp_gate:enter(Gate, request(ada))]],
    [rate_limit_per_second] = lists:usort(Names),
    %% Another tenant has a rate of its own. Messages of every kind are counted in it.
    _ = entered(erlmcp_gate:enter(Gate, request(bob))),
    rate_limit_per_second =
        until_refused(fun() -> erlmcp_gate:enter(Gate, (request(bob))#{kind := notification}) end).

until_refused(Enter) ->
    case Enter() of
        {ok, _} -> until_refused(Enter);
        Refused -> refused(Refused)
    end.

%% A call may need them in order to end.
answers_and_cancellations_count_apart(_) ->
    #{counters := Counters} = Gate =
        erlmcp_gate:new(#{principals => 2, principal_messages_per_day => 2, messages_per_day => 3}),
    Enter = fun(Tenant, Kind) -> erlmcp_gate:enter(Gate, (request(Tenant))#{kind := Kind}) end,
    [_ = entered(Enter(ada, Kind)) || Kind <- [request, notification]],
    [quota_exceeded = refused(Enter(ada, Kind)) || Kind <- [request, notification]],
    [_ = entered(Enter(ada, Kind)) || Kind <- [response, cancellation]],
    [quota_exceeded = refused(Enter(ada, Kind)) || Kind <- [response, cancellation]],
    %% The rates of the server.
    _ = entered(Enter(bob, response)),
    [rate_limit_exceeded = refused(Enter(bob, Kind)) || Kind <- [response, cancellation]],
    _ = entered(Enter(bob, request)),
    rate_limit_exceeded = refused(Enter(bob, request)),
    %% What was refused is counted nowhere.
    Count = fun(Of) ->
        erlmcp_gate_counters:count_rates(Of, [{day, 2}], erlmcp_gate_counters:now(Counters),
                                         Counters)
    end,
    [[ok, {wait, {day, 2}, _}] = [Count(Of) || _ <- [1, 2]]
     || Of <- [{principal, bob}, {answers, {principal, bob}}]],
    resource_exhausted = refused(Enter(eve, response)).

%% Whatever refuses it. Two messages a day are left after the first one.
a_refused_message_uses_up_no_rate(_) ->
    Rates = #{messages_per_day => 3, principal_messages_per_day => 3},
    [begin
         Gate = erlmcp_gate:new(maps:merge(Rates, Limits)),
         First = entered(erlmcp_gate:enter(Gate, request(ada))),
         [Name = refused(erlmcp_gate:enter(Gate, request(ada))) || _ <- lists:seq(1, 5)],
         ok = erlmcp_gate:leave(First),
         [ok = erlmcp_gate:leave(entered(erlmcp_gate:enter(Gate, request(ada)))) || _ <- [2, 3]],
         quota_exceeded = refused(erlmcp_gate:enter(Gate, request(ada)))
     end || {Limits, Name} <- [{#{in_flight_per_principal => 1}, concurrent_limit_exceeded},
                               {#{in_flight => 1, queue => 0}, concurrent_limit_exceeded}]],
    #{counters := Counters} = Gate =
        erlmcp_gate:new(Rates#{messages_per_day := 1, in_flight_per_principal => 2}),
    ok = erlmcp_gate:leave(entered(erlmcp_gate:enter(Gate, request(ada)))),
    [rate_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))) || _ <- lists:seq(1, 5)],
    0 = erlmcp_gate:held(Gate, {principal, ada}),
    Count = fun() ->
        erlmcp_gate_counters:count_rates({principal, ada}, [{day, 3}],
                                         erlmcp_gate_counters:now(Counters), Counters)
    end,
    [ok, ok, {wait, {day, 3}, _}] = [Count() || _ <- [2, 3, 4]].

a_refusal_takes_nothing(_) ->
    Gate = erlmcp_gate:new(#{in_flight => 1, in_flight_per_principal => 2,
                             principal_messages_per_minute => 2, messages_per_day => 3}),
    Permit = entered(erlmcp_gate:enter(Gate, request(ada))),
    concurrent_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(ada))),
    1 = erlmcp_gate:held(Gate, {principal, ada}),
    ok = erlmcp_gate:leave(Permit),
    _ = entered(erlmcp_gate:enter(Gate, request(ada))),
    %% A message that one rate refuses is not counted in another.
    [rate_limit_per_minute = refused(erlmcp_gate:enter(Gate, request(ada)))
     || _ <- lists:seq(1, 5)],
    1 = erlmcp_gate:held(Gate, {principal, ada}),
    {ok, _} = erlmcp_gate:enter(Gate, (request(bob))#{kind := notification}),
    rate_limit_exceeded = refused(erlmcp_gate:enter(Gate, request(eve))),
    0 = erlmcp_gate:held(Gate, {principal, eve}),
    %% A request that may not wait holds nothing of its tenant.
    Queued = queued(#{in_flight_per_principal => 5, queue => 1, queue_per_principal => 5}),
    [_ = entered(erlmcp_gate:enter(Queued, request(ada))) || _ <- [1, 2]],
    queue_cap_exceeded = refused(erlmcp_gate:enter(Queued, request(ada))),
    {2, 1} = {erlmcp_gate:held(Queued, {principal, ada}), erlmcp_gate:held(Queued, {waiting, ada})}.

%% The limits of a definition are those of all clients together.
refusals_say_what_is_called_too_often(_) ->
    [begin
         Gate = erlmcp_gate:new(#{}),
         Limits = [{{definition, {Kind, ~"dig"}}, Limit}],
         _ = entered(erlmcp_gate:enter_definition(Gate, Limits)),
         {refuse, Refusal} = erlmcp_gate:enter_definition(Gate, Limits),
         Message = <<"too many calls of this ", Name/binary, " ", Told/binary>>,
         {Kind, Message} = {Kind, iolist_to_binary(erlmcp_refusal:message(Refusal))}
     end || {Kind, Name} <- [{tool, ~"tool"}, {prompt, ~"prompt"}, {resource, ~"resource"},
                             {resource_template, ~"resource"}],
            {Limit, Told} <- [{{at_once, 1}, ~"in flight"}, {{minute, 1}, ~"in a minute"},
                              {{day, 1}, ~"in a day"}]].

definitions_have_limits(_) ->
    Gate = erlmcp_gate:new(#{}),
    Enter = fun(Limits) -> erlmcp_gate:enter_definition(Gate, Limits) end,
    Dig = {definition, {tool, ~"dig"}},
    Limits = [{Dig, {minute, 4}}, {Dig, {at_once, 2}}, {Dig, {day, 100}}],
    [First, _] = [entered(Enter(Limits)) || _ <- [1, 2]],
    concurrent_limit_exceeded = refused(Enter(Limits)),
    %% A refused call did not count in the rate, and a permit that was given back is another call's.
    ok = erlmcp_gate:leave(First),
    [ok = erlmcp_gate:leave(entered(Enter(Limits))) || _ <- [3, 4]],
    rate_limit_per_minute = refused(Enter(Limits)),
    1 = erlmcp_gate:held(Gate, Dig),
    %% A call that one rate refuses is not counted in the others.
    Rates = fun(Rates) -> [{{definition, {tool, ~"fill"}}, Rate} || Rate <- Rates] end,
    ok = erlmcp_gate:leave(entered(Enter(Rates([{day, 1}])))),
    [quota_exceeded = refused(Enter(Rates([{minute, 1}, {day, 1}]))) || _ <- [1, 2]],
    ok = erlmcp_gate:leave(entered(Enter(Rates([{minute, 1}])))),
    rate_limit_per_minute = refused(Enter(Rates([{minute, 1}]))),
    {ok, Free} = Enter([]),
    ok = erlmcp_gate:leave(Free).

%% However many clients are counted. These counters take no room from clients, either.
the_servers_own_counters_always_have_room(_) ->
    Gate = erlmcp_gate:new(#{principals => 2, connections_per_address => 1}),
    Connect = fun(Last) -> erlmcp_gate:connect(Gate, #{address => {192, 0, 2, Last}}) end,
    Tool = fun(Name) ->
        erlmcp_gate:enter_definition(Gate, [{{definition, {tool, Name}}, {at_once, 1}}])
    end,
    [_ = entered(Tool(Name)) || Name <- [~"dig", ~"fill", ~"sow"]],
    [_ = entered(Connect(Last)) || Last <- [1, 2]],
    resource_exhausted = refused(Connect(3)),
    _ = entered(Tool(~"reap")),
    concurrent_limit_exceeded = refused(Tool(~"reap")),
    Rate = [{{definition, {tool, ~"mow"}}, {minute, 1}}],
    _ = entered(erlmcp_gate:enter_definition(Gate, Rate)),
    rate_limit_per_minute = refused(erlmcp_gate:enter_definition(Gate, Rate)),
    _ = entered(erlmcp_gate:forward(ada, 10, Gate)),
    _ = entered(erlmcp_gate:wait_for_cluster(ada, Gate)).

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

no_request_enters_when_it_drains(_) ->
    Gate = erlmcp_gate:new(#{}),
    open = erlmcp_gate:state(Gate),
    Permit = entered(erlmcp_gate:enter(Gate, request(ada))),
    ok = erlmcp_gate:drain(Gate),
    [server_shutting_down = refused(Refused)
     || Refused <- [erlmcp_gate:state(Gate), erlmcp_gate:enter(Gate, request(ada)),
                    erlmcp_gate:connect(Gate, #{address => local})]],
    %% Requests inside come to their end.
    {ok, Response} = erlmcp_gate:enter(Gate, (request(ada))#{kind := response}),
    ok = erlmcp_gate:leave(Response),
    {ok, Permit} = erlmcp_gate:await(Permit, 1000),
    ok = erlmcp_gate:leave(Permit),
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
