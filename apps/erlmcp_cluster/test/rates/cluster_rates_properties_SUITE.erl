-module(cluster_rates_properties_SUITE).
-moduledoc """
Properties of the rates of a cluster. Nodes with counters and reports of their own tell each other
what they count, over links that take their time. Their clock is that of the simulation: no time
passes. A request comes at a time, in microseconds, to a node.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([no_more_than_the_rate_is_let_in/1, who_stays_below_the_rate_is_not_refused/1,
         nearly_the_whole_rate_is_let_in/1, a_node_that_nobody_hears_lets_its_part_in/1,
         what_was_taken_back_counts_nowhere/1, what_was_heard_is_said_last/1]).
%% As a cluster.
-export([rate_nodes/1, counted/2]).

-define(KEY, {principal, ~"ada"}).
-define(NAME, {server, ?KEY}).
-define(RATES, [{second, 1_000}, {second, 10}, {minute, 600}, {minute, 1}, {day, 5}]).
-define(REPORT, 5_000).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [no_more_than_the_rate_is_let_in, who_stays_below_the_rate_is_not_refused,
     nearly_the_whole_rate_is_let_in, a_node_that_nobody_hears_lets_its_part_in,
     what_was_taken_back_counts_nowhere, what_was_heard_is_said_last].

%% Whatever comes, at whatever speed: at most one message more for each other node.
no_more_than_the_rate_is_let_in(_) ->
    holds(?FORALL({Rate, Delays, Loads}, {oneof(?RATES), delays(), loads()}, begin
        Let = let_in(simulated(Rate, Delays, requests(Rate, Loads))),
        Over = overdraft(Rate, Let),
        ?WHENFAIL(ct:pal("over: ~p of ~p", [Over, length(Let)]), Over =< allowance(Rate))
    end)).

%% And what a node has counted before it was idle for a moment: up to a round trip of the rate.
allowance({_, Most}) -> 2 + 0.02 * Most.

%% Each request comes when an exact count would have room for it, with some to spare, and at twice
%% the rate at most.
who_stays_below_the_rate_is_not_refused(_) ->
    holds(?FORALL({{_, Most} = Rate, Delays, Loads}, {oneof(?RATES), delays(), loads()}, begin
        Spare = ceil(0.15 * Most),
        Below = below(Rate, Spare, slowed(Rate, requests(Rate, Loads))),
        Refused = [Request || {Request, false} <- simulated(Rate, Delays, Below)],
        ?WHENFAIL(ct:pal("refused: ~p of ~p", [Refused, length(Below)]), Refused =:= [])
    end)).

%% Loads of 90, 5 and 5 percent of twice the rate, and then 5, 90 and 5.
nearly_the_whole_rate_is_let_in(_) ->
    holds(?FORALL({Delays, Seed}, {delays(), integer(1, 1_000_000)}, begin
        Rate = {second, 1_000},
        _ = rand:seed(exsss, Seed),
        Requests = [{N * 500, node_of(rand:uniform(), N < 6_000)} || N <- lists:seq(1, 12_000)],
        Let = let_in(simulated(Rate, Delays, Requests)),
        Windows = [length([At || {At, _} <- Let, At > From, At =< From + 1_000_000])
                   || From <- lists:seq(1_000_000, 5_000_000, 100_000)],
        ?WHENFAIL(ct:pal("~p", [Windows]),
                  lists:all(fun(Count) -> abs(Count - 1_000) =< 50 end, Windows))
    end)).

node_of(Part, true) when Part < 0.9 -> 1;
node_of(Part, false) when Part < 0.9 -> 2;
node_of(Part, First) when Part < 0.95 -> case First of true -> 2; false -> 1 end;
node_of(_, _) -> 3.

%% A third of the rate, with two other nodes.
a_node_that_nobody_hears_lets_its_part_in(_) ->
    holds(?FORALL({_, Most} = Rate, oneof([{second, 1_000}, {second, 10}, {minute, 600}]), begin
        Seconds = 5,
        Requests = [{N * 1_000, 1} || N <- lists:seq(1, Seconds * 1_000)],
        Let = length(let_in(simulated(Rate, cut, Requests))),
        Part = (Most + Seconds * 1_000_000_000 / interval(Rate)) / 3,
        ?WHENFAIL(ct:pal("~p of ~p", [Let, Part]), abs(Let - Part) =< 2)
    end), 3).

%% A message that the server's own rate refuses is not one of its tenant's, also if others have
%% heard of it meanwhile.
what_was_taken_back_counts_nowhere(_) ->
    Rate = {minute, 9},
    Counters = counters(1),
    Account = fun() -> receive {counted, 1, It} -> It end end,
    Take = fun() ->
        erlmcp_gate_counters:take_tenant(?KEY, [Rate], infinity, 1, Counters)
    end,
    {ok, []} = Take(),
    One = Account(),
    ok = erlmcp_gate_counters:uncount_tenant(?KEY, [Rate], Counters),
    0 = erlmcp_gate_counters:unheard(One),
    {ok, []} = Take(),
    _ = Account(),
    ok = erlmcp_gate_counters:heard_by_all(One, 1, 3),
    ok = erlmcp_gate_counters:uncount_tenant(?KEY, [Rate], Counters),
    -1 = erlmcp_gate_counters:unheard(One),
    ok = erlmcp_gate_counters:heard_by_all(One, -1, 3),
    %% Three that nobody has heard of, and then nine that all know.
    [{ok, []} = Take() || _ <- lists:seq(1, 3)],
    {wait, Rate, _} = Take(),
    ok = erlmcp_gate_counters:heard_by_all(One, 3, 3),
    [begin {ok, []} = Take(), ok = erlmcp_gate_counters:heard_by_all(One, 1, 3) end
     || _ <- lists:seq(1, 6)],
    {wait, Rate, _} = Take(),
    ok.

%% Whoever reads that a node has heard of its report has all that this node had counted until then,
%% of more clients than fit into one report, too.
what_was_heard_is_said_last(_) ->
    Of = {2, 0},
    One = fun(_) -> 1 end,
    New = erlmcp_cluster_rate_reports:new(),
    {[{2, {1, 0, [_]}}], [], Own} =
        erlmcp_cluster_rate_reports:report(One, [2], Of,
                                           erlmcp_cluster_rate_reports:add(?NAME, own, New)),
    Other = lists:foldl(fun(N, Reports) ->
        erlmcp_cluster_rate_reports:add({server, N}, N, Reports)
    end, erlmcp_cluster_rate_reports:heard(1, 1, New), lists:seq(1, 2_500)),
    {[_, _ | _] = Messages, [], Said} = erlmcp_cluster_rate_reports:report(One, [1], Of, Other),
    {2_500, [2_500], _} = lists:foldl(fun({1, {_, Heard, Counts}}, {Read, Done, Reports}) ->
        Now = Read + length(Counts),
        case erlmcp_cluster_rate_reports:heard_by(2, Heard, Reports) of
            {[{own, 1, 2}], Next} -> {Now, [Now | Done], Next};
            {[], Next} -> {Now, Done, Next}
        end
    end, {0, [], Own}, Messages),
    %% It is said again if the last report could not be sent, and only then.
    {[], _, _} = erlmcp_cluster_rate_reports:report(One, [1], Of, Said),
    Owing = erlmcp_cluster_rate_reports:owe(1, Said),
    {[{1, {none, 1, []}}], _, _} = erlmcp_cluster_rate_reports:report(One, [1], Of, Owing).

%% As a cluster.

rate_nodes(_) -> 3.

counted(Account, Node) ->
    self() ! {counted, Node, Account},
    ok.

counters(Node) ->
    erlmcp_gate_counters:new(10, {?MODULE, Node}).

%% Requests.

holds(Property) ->
    holds(Property, 40).

holds(Property, Times) ->
    erlmcp_test_property:holds(Property, Times).

%% The microseconds of the next messages between nodes, again and again.
delays() ->
    non_empty(list(integer(20, 3_000))).

%% Loads of a node, or of all: requests with a gap between them, in thousandths of the time for
%% which one message pays, and a pause of so many of these times before them.
loads() ->
    non_empty(list({integer(0, 3), integer(1, 300), oneof([0, integer(0, 3_000)]),
                    frequency([{3, 0}, {1, integer(0, 1_200)}])})).

requests(Rate, Loads) ->
    Thousandth = interval(Rate) div 1_000_000,
    {Requests, _} = lists:mapfoldl(fun({Node, Count, Gap, Pause}, Now) ->
        At = fun(N) -> Now + (Pause * 1_000 + N * Gap) * Thousandth end,
        {[{At(N), case Node of 0 -> N rem 3 + 1; _ -> Node end} || N <- lists:seq(1, Count)],
         At(Count)}
    end, 0, Loads),
    lists:append(Requests).

slowed(Rate, Requests) ->
    {Slowed, _} = lists:mapfoldl(fun({At, Node}, Next) ->
        Then = max(At, Next),
        {{Then, Node}, Then + interval(Rate) div 2_000}
    end, 0, Requests),
    Slowed.

interval({second, Most}) -> 1_000_000_000 div Most;
interval({minute, Most}) -> 60_000_000_000 div Most;
interval({day, Most}) -> 86_400_000_000_000 div Most.

let_in(Judged) -> [Request || {Request, true} <- Judged].

%% How many messages too many were let in at some moment: the least level of a bucket that is never
%% empty.
overdraft({_, Most} = Rate, Let) ->
    {_, _, Least} = lists:foldl(fun({At, _}, {Level, Last, Least}) ->
        Next = min(Most, Level + (At - Last) * 1_000 / interval(Rate)) - 1,
        {Next, At, min(Least, Next)}
    end, {Most, 0, 0}, Let),
    -Least.

below({_, Most} = Rate, Spare, Requests) ->
    Size = max(1, Most - Spare),
    {Below, _} = lists:foldl(fun({At, _} = Request, {Below, {Level, Last}}) ->
        case min(Size, Level + (At - Last) * 950 / interval(Rate)) of
            Enough when Enough >= 1 -> {[Request | Below], {Enough - 1, At}};
            Short -> {Below, {Short, At}}
        end
    end, {[], {Size, 0}}, Requests),
    lists:reverse(Below).

%% The simulation. Returns each request, and whether it was let in.

simulated(Rate, Delays, Requests) ->
    Nodes = #{Node => {counters(Node), erlmcp_cluster_rate_reports:new(), 0}
              || Node <- [1, 2, 3]},
    Events = gb_sets:from_list([{At, 0, N, {request, Node}}
                                || {N, {At, Node}} <- lists:enumerate(Requests)]),
    run(#{rate => Rate, delays => Delays, nodes => Nodes, events => Events, links => #{},
          last => length(Requests), judged => []}).

run(#{events := Events, judged := Judged} = All) ->
    case gb_sets:is_empty(Events) of
        true ->
            lists:reverse(Judged);
        false ->
            {{At, _, _, Event}, Rest} = gb_sets:take_smallest(Events),
            run(event(Event, At, All#{events := Rest}))
    end.

event({request, Node}, At, #{rate := Rate, nodes := Nodes, judged := Judged} = All) ->
    {Counters, Reports, Next} = map_get(Node, Nodes),
    Let = erlmcp_gate_counters:take_tenant(?KEY, [Rate], infinity, nanoseconds(At), Counters),
    Noted = receive
        {counted, Node, Account} -> erlmcp_cluster_rate_reports:add(?NAME, Account, Reports)
    after 0 -> Reports
    end,
    due(Node, At, All#{nodes := Nodes#{Node := {Counters, Noted, Next}},
                       judged := [{{At, Node}, Let =:= {ok, []}} | Judged]});
event({report, Node}, At, #{nodes := Nodes} = All) ->
    {Counters, Reports, _} = map_get(Node, Nodes),
    reported(Node, At, All#{nodes := Nodes#{Node := {Counters, Reports, At}}});
event({message, From, To, {Number, Heard, Counts}}, At, #{nodes := Nodes, rate := Rate} = All) ->
    {Counters, Before, Next} = map_get(To, Nodes),
    _ = [ok = erlmcp_gate_counters:count_heard(?KEY, Count, [Rate], nanoseconds(At), Counters)
         || {?NAME, Count} <- Counts],
    {Done, Reports} = erlmcp_cluster_rate_reports:heard_by(From, Heard, Before),
    ok = note(Done),
    Owing = case Number of
        none -> Reports;
        _ -> erlmcp_cluster_rate_reports:heard(From, Number, Reports)
    end,
    due(To, At, All#{nodes := Nodes#{To := {Counters, Owing, Next}}}).

%% A time that is no number says that the node will report.
due(Node, At, #{nodes := Nodes} = All) ->
    {Counters, Reports, Next} = map_get(Node, Nodes),
    case erlmcp_cluster_rate_reports:is_empty(Reports) of
        false when is_integer(Next), Next =< At -> reported(Node, At, All);
        false when is_integer(Next) ->
            later(Next, {report, Node},
                  All#{nodes := Nodes#{Node := {Counters, Reports, waits}}});
        _ -> All
    end.

reported(Node, At, #{nodes := Nodes} = All) ->
    {Counters, Before, _} = map_get(Node, Nodes),
    Milliseconds = At div 1_000,
    {Given, Kept} = erlmcp_cluster_rate_reports:expire(Milliseconds - 1_000, Before),
    ok = note(Given),
    {Messages, Done, Reports} =
        erlmcp_cluster_rate_reports:report(fun erlmcp_gate_counters:unheard/1, [1, 2, 3] -- [Node],
                                           {3, Milliseconds}, Kept),
    ok = note(Done),
    Sent = lists:foldl(fun({To, Message}, Next) -> sent(Node, To, Message, At, Next) end,
                       All#{nodes := Nodes#{Node := {Counters, Reports, At + ?REPORT}}}, Messages),
    due(Node, At, Sent).

sent(_, _, _, _, #{delays := cut} = All) ->
    All;
sent(From, To, Message, At, #{delays := [Delay | Delays], links := Links} = All) ->
    Arrives = max(At + Delay, maps:get({From, To}, Links, 0)),
    later(Arrives, {message, From, To, Message},
          All#{delays := Delays ++ [Delay], links := Links#{{From, To} => Arrives}}).

later(At, Event, #{events := Events, last := Last} = All) ->
    All#{events := gb_sets:add({At, 1, Last + 1, Event}, Events), last := Last + 1}.

note(Done) ->
    lists:foreach(fun({Account, Count, Nodes}) ->
                      ok = erlmcp_gate_counters:heard_by_all(Account, Count, Nodes)
                  end, Done).

nanoseconds(At) -> At * 1_000 + 1.
