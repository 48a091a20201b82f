-module(fair_queue_SUITE).
-moduledoc "Who has which turn among those that wait.".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([flows_take_turns/1, flows_have_equal_shares/1, who_asks_for_little_waits_little/1,
         a_burst_of_who_asks_for_little_is_next/1, those_that_stay_have_their_turns/1,
         ended_flows_are_forgotten/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [flows_take_turns, flows_have_equal_shares, who_asks_for_little_waits_little,
     a_burst_of_who_asks_for_little_is_next, those_that_stay_have_their_turns,
     ended_flows_are_forgotten].

flows_take_turns(_) ->
    ok = erlmcp_test_property:holds(?FORALL(Given, list(oneof([ada, bob, 1, 2.0, {eve, 1}])),
        begin
            Numbered = lists:enumerate(Given),
            Flows = lists:foldl(fun({Number, Flow}, Flows) ->
                                    erlmcp_fair_queue:add(Flow, Number, {Flow, Number}, 0, Flows)
                                end, erlmcp_fair_queue:new(), Numbered),
            Served = serve(Flows),
            %% All of them, each flow in its order, and no flow twice where another one waits.
            true = lists:sort(Served) =:= lists:sort([{F, N} || {N, F} <- Numbered]),
            [true = Own =:= lists:sort(Own)
             || Flow <- lists:usort(Given), Own <- [[N || {F, N} <- Served, F =:= Flow]]],
            fair(Served)
        end), 200).

serve(Flows) ->
    case erlmcp_fair_queue:next(Flows) of
        none ->
            0 = erlmcp_fair_queue:length(Flows),
            [];
        {Key, Key} ->
            {ok, Key, Rest} = erlmcp_fair_queue:take(Key, Flows),
            [Key | serve(erlmcp_fair_queue:served(Key, Rest))]
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
        {{one, _} = Flow, Next} -> [Flow | turns(Left - 1, come(Flow, Next))];
        {Flow, Next} -> [Flow | turns(Left - 1, Next)]
    end.

come(Flow, {Number, Flows}) ->
    {Number + 1, erlmcp_fair_queue:add(Flow, Number, none, 0, Flows)}.

turn({Number, Flows}) ->
    {{Flow, _} = Key, none} = erlmcp_fair_queue:next(Flows),
    {ok, none, Rest} = erlmcp_fair_queue:take(Key, Flows),
    {Flow, {Number, erlmcp_fair_queue:served(Key, Rest)}}.

%% Of some floods and some others that ask for less than their share at random times: one of the
%% others waits for those of its like, and for a turn of each flow at most, however long the floods'
%% queues are.
who_asks_for_little_waits_little(_) ->
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
    Flooded = lists:foldl(fun come/2, {1, erlmcp_fair_queue:new()}, lists:duplicate(200, flood)),
    Turn = fun(_, Waiting) -> turn(Waiting) end,
    {_, Served} = lists:mapfoldl(Turn, Flooded, lists:seq(1, 100)),
    Both = lists:foldl(fun come/2, Served, lists:duplicate(20, burst)),
    {Turns, _} = lists:mapfoldl(Turn, Both, lists:seq(1, 14)),
    {First, Others} = lists:split(4, Turns),
    [burst] = lists:usort(First),
    true = abs(length([burst || burst <- Others]) - length([flood || flood <- Others])) =< 2.

%% Others that nobody knew before come in each turn, and are due at once.
those_that_stay_have_their_turns(_) ->
    Stays = lists:foldl(fun come/2, {1, erlmcp_fair_queue:new()}, lists:duplicate(100, stays)),
    {Turns, _} = lists:mapfoldl(fun(N, Waiting) -> turn(come({new, N}, Waiting)) end, Stays,
                                lists:seq(1, 400)),
    true = length([stays || stays <- Turns]) >= 400 div 20.

ended_flows_are_forgotten(_) ->
    {_, Flows} = lists:foldl(fun(N, Waiting) -> element(2, turn(come(N, Waiting))) end,
                             {1, erlmcp_fair_queue:new()}, lists:seq(1, 10_000)),
    true = erts_debug:flat_size(Flows) < 1_000.
