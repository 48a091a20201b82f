-module(fair_queue_SUITE).
-moduledoc "The order in which waiting requests of several tenants have their turns.".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([tenants_take_turns/1, tenants_have_equal_shares/1, a_light_tenant_waits_little/1,
         a_burst_of_a_light_tenant_is_next/1, a_tenant_that_stays_has_its_turns/1,
         ended_tenants_are_forgotten/1, who_had_many_turns_is_not_forgotten/1,
         any_request_is_taken_out/1, turns_ahead_are_the_most/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [tenants_take_turns, tenants_have_equal_shares, a_light_tenant_waits_little,
     a_burst_of_a_light_tenant_is_next, a_tenant_that_stays_has_its_turns,
     ended_tenants_are_forgotten, who_had_many_turns_is_not_forgotten, any_request_is_taken_out,
     turns_ahead_are_the_most].

tenants_take_turns(_) ->
    ok = erlmcp_test_property:holds(?FORALL(Given, list(oneof([ada, bob, 1, 2.0, {eve, 1}])),
        begin
            Numbered = lists:enumerate(Given),
            Add = fun({Number, Tenant}, Queue) ->
                erlmcp_fair_queue:add(Tenant, Number, {Tenant, Number}, 0, Queue)
            end,
            Queue = lists:foldl(Add, erlmcp_fair_queue:new(), Numbered),
            Served = serve(Queue),
            %% All are served, each tenant in order, and none twice while another one waits.
            true = lists:sort(Served) =:= lists:sort([{F, N} || {N, F} <- Numbered]),
            [true = Own =:= lists:sort(Own)
             || Tenant <- lists:usort(Given), Own <- [[N || {F, N} <- Served, F =:= Tenant]]],
            fair(Served)
        end), 200).

serve(Queue) ->
    case erlmcp_fair_queue:next(Queue) of
        none ->
            0 = erlmcp_fair_queue:length(Queue),
            [];
        {Key, Key} ->
            {ok, Key, Rest} = erlmcp_fair_queue:take(Key, Queue),
            [Key | serve(erlmcp_fair_queue:served(Key, Rest))]
    end.

%% Between two turns of a tenant all other waiting tenants have one.
fair([]) ->
    true;
fair([{Tenant, _} | Served]) ->
    case lists:splitwith(fun({Other, _}) -> Other =/= Tenant end, Served) of
        {_, []} ->
            fair(Served);
        {Between, Rest} ->
            Waiting = lists:usort([Other || {Other, _} <- Rest, Other =/= Tenant]),
            Waiting -- [Other || {Other, _} <- Between] =:= [] andalso fair(Served)
    end.

%% A request has its turn after as many others as were said, or sooner.
turns_ahead_are_the_most(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Given, Tenant}, {list(range(1, 4)), range(1, 4)},
        begin
            {Number, Queue} = lists:foldl(fun come/2, {1, erlmcp_fair_queue:new()}, Given),
            Ahead = erlmcp_fair_queue:ahead(Tenant, Queue),
            Keys = [{Other, N} || {N, Other} <- lists:enumerate(Given)],
            Turns = order(length(Keys) + 1, come(Tenant, {Number, Queue})),
            {Before, _} = lists:splitwith(fun(Key) -> Key =/= {Tenant, Number} end, Turns),
            length(Before) =< Ahead andalso Ahead =< length(Keys)
        end), 200).

order(0, _) ->
    [];
order(Left, {_, Queue} = Waiting) ->
    {Key, _} = erlmcp_fair_queue:next(Queue),
    {_, Next} = turn(Waiting),
    [Key | order(Left - 1, Next)].

%% Some tenants have many waiting requests. The others have one at a time, and the next one comes as
%% soon as the last had its turn.
tenants_have_equal_shares(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Many, OneByOne, Rounds},
                                            {range(1, 6), range(1, 6), range(1, 40)},
        begin
            Names = [{Kind, N} || {Kind, Most} <- [{many, Many}, {one, OneByOne}],
                                  N <- lists:seq(1, Most)],
            Filled = lists:foldl(fun come/2, {1, erlmcp_fair_queue:new()},
                                 Names ++ [Name || {many, _} = Name <- Names,
                                                   _ <- lists:seq(1, Rounds)]),
            Turns = turns(Rounds * length(Names), Filled),
            [Rounds] =:= lists:usort([length([T || T <- Turns, T =:= Name]) || Name <- Names])
        end), 100).

turns(0, _) ->
    [];
turns(Left, Waiting) ->
    case turn(Waiting) of
        {{one, _} = Tenant, Next} -> [Tenant | turns(Left - 1, come(Tenant, Next))];
        {Tenant, Next} -> [Tenant | turns(Left - 1, Next)]
    end.

come(Tenant, {Number, Queue}) ->
    {Number + 1, erlmcp_fair_queue:add(Tenant, Number, none, 0, Queue)}.

turn({Number, Queue}) ->
    {{Tenant, _} = Key, none} = erlmcp_fair_queue:next(Queue),
    {ok, none, Rest} = erlmcp_fair_queue:take(Key, Queue),
    {Tenant, {Number, erlmcp_fair_queue:served(Key, Rest)}}.

%% Some tenants flood the queue, and others ask for less than their share at random times. A request
%% of the others waits for at most one turn of each tenant, for floods of any length.
a_light_tenant_waits_little(_) ->
    ok = erlmcp_test_property:holds(?FORALL({Floods, Others, Seed},
                                            {range(1, 5), range(1, 9), integer(1, inf)},
        begin
            _ = rand:seed(exsss, Seed),
            Flooded = lists:foldl(fun come/2, {1, erlmcp_fair_queue:new()},
                                  [{flood, N rem Floods} || N <- lists:seq(1, 600)]),
            Waits = waits(300, Floods, Others, #{}, Flooded),
            ?WHENFAIL(ct:log("~p", [Waits]), lists:all(fun(Turns) -> Turns =< Floods + Others end,
                                                       Waits))
        end), 50).

%% In each turn each light tenant without a waiting request asks with half the chance of its share.
waits(0, _, _, _, _) ->
    [];
waits(Left, Floods, Others, Since, Waiting) ->
    Coming = [Tenant || N <- lists:seq(1, Others), Tenant <- [{other, N}],
                      not is_map_key(Tenant, Since), rand:uniform(2 * (Floods + Others)) =:= 1],
    {Tenant, Next} = turn(lists:foldl(fun come/2, Waiting, Coming)),
    Asked = maps:merge(Since, #{Other => Left || Other <- Coming}),
    case Asked of
        #{Tenant := At} -> [At - Left | waits(Left - 1, Floods, Others, maps:remove(Tenant, Asked),
                                            Next)];
        #{} -> waits(Left - 1, Floods, Others, Asked, Next)
    end.

%% Up to four requests of a burst are served next; the rest takes turns with the flood.
a_burst_of_a_light_tenant_is_next(_) ->
    Flooded = lists:foldl(fun come/2, {1, erlmcp_fair_queue:new()}, lists:duplicate(200, flood)),
    Turn = fun(_, Waiting) -> turn(Waiting) end,
    {_, Served} = lists:mapfoldl(Turn, Flooded, lists:seq(1, 100)),
    Both = lists:foldl(fun come/2, Served, lists:duplicate(20, burst)),
    {Turns, _} = lists:mapfoldl(Turn, Both, lists:seq(1, 14)),
    {First, Others} = lists:split(4, Turns),
    [burst] = lists:usort(First),
    true = abs(length([burst || burst <- Others]) - length([flood || flood <- Others])) =< 2.

%% A new tenant comes in each turn, and is due at once.
a_tenant_that_stays_has_its_turns(_) ->
    Stays = lists:foldl(fun come/2, {1, erlmcp_fair_queue:new()}, lists:duplicate(100, stays)),
    {Turns, _} = lists:mapfoldl(fun(N, Waiting) -> turn(come({new, N}, Waiting)) end, Stays,
                                lists:seq(1, 400)),
    true = length([stays || stays <- Turns]) >= 400 div 20.

ended_tenants_are_forgotten(_) ->
    {_, Queue} = lists:foldl(fun(N, Waiting) -> element(2, turn(come(N, Waiting))) end,
                             {1, erlmcp_fair_queue:new()}, lists:seq(1, 10_000)),
    true = erts_debug:flat_size(Queue) < 1_000.

%% Many other tenants end in the meantime. One that had no turn yet is served first, though it came
%% second.
who_had_many_turns_is_not_forgotten(_) ->
    Served = lists:foldl(fun(Tenant, Waiting) -> element(2, turn(come(Tenant, Waiting))) end,
                         {1, erlmcp_fair_queue:new()},
                         lists:duplicate(50, flood) ++ lists:seq(1, 40)),
    {Turns, _} = lists:mapfoldl(fun(_, Waiting) -> turn(Waiting) end,
                                come(light, come(flood, Served)), [1, 2]),
    [light, flood] = Turns.

%% Its deadline may be earlier than that of others before it.
any_request_is_taken_out(_) ->
    {_, Queue} = lists:foldl(fun come/2, {1, erlmcp_fair_queue:new()}, [ada, ada, ada]),
    {ok, none, Two} = erlmcp_fair_queue:take({ada, 2}, Queue),
    [error = erlmcp_fair_queue:take(Key, Two) || Key <- [{ada, 2}, {ada, 4}, {bob, 1}]],
    2 = erlmcp_fair_queue:length(Two),
    {{ada, 1}, none} = erlmcp_fair_queue:next(Two),
    {ok, none, One} = erlmcp_fair_queue:take({ada, 1}, Two),
    {{ada, 3}, none} = erlmcp_fair_queue:next(One),
    {ok, none, None} = erlmcp_fair_queue:take({ada, 3}, One),
    none = erlmcp_fair_queue:next(None).
