-module(cluster_discovery_SUITE).
-moduledoc """
What a node does when it looks for its cluster. The steps of nodes that start at the same time, in
whatever order and however often, end in one cluster.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([nodes_that_start_together_form_one_cluster/1, the_least_of_enough_nodes_forms_it/1,
         a_member_stays/1,
         a_node_that_was_taken_out_joins_again/1, two_clusters_do_not_become_one/1,
         a_name_gives_the_nodes_at_its_addresses/1]).

-define(NODES, ['a@h', 'b@h', 'c@h', 'd@h', 'e@h']).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [nodes_that_start_together_form_one_cluster, the_least_of_enough_nodes_forms_it,
     a_member_stays,
     a_node_that_was_taken_out_joins_again, two_clusters_do_not_become_one,
     a_name_gives_the_nodes_at_its_addresses].

%% Each step of a schedule is one of a node, which reaches some of those that are up. A node that
%% takes a step is up, and then the others find it. At the end all reach all.
nodes_that_start_together_form_one_cluster(_) ->
    ok = erlmcp_test_property:holds(
        ?FORALL(Schedule, list({oneof(?NODES), list(oneof(?NODES))}), begin
            Order = [{Node, ?NODES} || _ <- [1, 2, 3], Node <- lists:reverse(?NODES)],
            Views = lists:foldl(fun taken/2, #{}, Schedule ++ Order),
            Clusters = lists:usort([Cluster || #{cluster := Cluster} <- maps:values(Views)]),
            map_size(Views) =:= 5 andalso length(Clusters) =:= 1 andalso Clusters =/= [none]
        end), 3_000).

taken({Node, Reached}, Views) ->
    Own = maps:get(Node, Views, #{cluster => none, members => [Node]}),
    Up = Views#{Node => Own},
    Others = maps:to_list(maps:with(Reached -- [Node], Up)),
    Missing = maps:keys(maps:without([Node | Reached], Up)),
    case erlmcp_cluster_discovery:step({Node, Own}, Others, Missing, 3) of
        form -> Up#{Node := Own#{cluster := Node}};
        {join, Member} -> Up#{Node := maps:get(Member, Up)};
        wait -> Up;
        stay -> Up
    end.

the_least_of_enough_nodes_forms_it(_) ->
    New = fun(Node) -> {Node, #{cluster => none, members => [Node]}} end,
    Step = fun(Self, Others, Missing) ->
        erlmcp_cluster_discovery:step(New(Self), [New(Other) || Other <- Others], Missing, 3)
    end,
    form = Step('a@h', ['c@h', 'b@h'], []),
    wait = Step('b@h', ['a@h', 'c@h'], []),
    wait = Step('a@h', ['b@h'], []),
    wait = Step('a@h', ['b@h', 'c@h'], ['d@h']),
    form = Step('a@h', ['b@h', 'c@h', 'd@h'], []).

a_member_stays(_) ->
    Own = #{cluster => ~"1", members => ['a@h', 'b@h']},
    stay = step('a@h', Own, []),
    stay = step('a@h', Own, [{'b@h', Own}]),
    stay = step('a@h', Own, [{'b@h', #{cluster => none, members => ['b@h']}}]),
    %% It has just started, and its store has not told it yet.
    stay = step('a@h', Own#{cluster := none}, [{'b@h', Own}]),
    stay = step('a@h', Own#{cluster := none}, []).

a_node_that_was_taken_out_joins_again(_) ->
    Own = #{cluster => ~"1", members => ['a@h', 'b@h', 'c@h']},
    {join, 'b@h'} = step('a@h', Own, [{'b@h', Own#{members := ['b@h', 'c@h']}}]),
    %% It has just started, and its store has not told it the id of its cluster.
    {join, 'b@h'} = step('a@h', Own#{cluster := none}, [{'b@h', Own#{members := ['b@h', 'c@h']}}]),
    stay = step('a@h', Own#{cluster := none}, [{'d@h', Own#{members := ['d@h', 'e@h']}}]),
    stay = step('a@h', Own#{cluster := none}, [{'b@h', #{cluster => none, members => ['b@h']}}]),
    %% Its disk was lost.
    {join, 'b@h'} = step('a@h', #{cluster => none, members => ['a@h']}, [{'b@h', Own}]).

two_clusters_do_not_become_one(_) ->
    One = #{cluster => ~"1", members => ['a@h', 'b@h']},
    Two = #{cluster => ~"2", members => ['c@h']},
    {error, {other_cluster, ['c@h']}} = step('a@h', One, [{'b@h', One}, {'c@h', Two}]),
    {error, {other_cluster, ['b@h', 'c@h']}} =
        step('d@h', #{cluster => none, members => ['d@h']}, [{'b@h', One}, {'c@h', Two}]).

step(Self, Own, Others) ->
    erlmcp_cluster_discovery:step({Self, Own}, Others, [], 3).

a_name_gives_the_nodes_at_its_addresses(Config) ->
    {Dns, Port} = erlmcp_test_dns:start(#{"mcp.test" => [{10, 0, 0, 2}, {10, 0, 0, 1},
                                                         {16#fd00, 0, 0, 0, 0, 0, 0, 7}],
                                          "many.test" => [{10, 1, 0, Last}
                                                          || Last <- lists:seq(1, 65)]}),
    Inetrc = filename:join(proplists:get_value(priv_dir, Config), "inetrc"),
    ok = file:write_file(Inetrc, io_lib:format("{resolv_conf, \"\"}.~n{hosts_file, \"\"}.~n"
                                               "{lookup, [dns]}.~n"
                                               "{nameserver, {127,0,0,1}, ~b}.~n", [Port])),
    {Peer, _} = erlmcp_test_peer_node:start_link(#{
        args => ["-kernel", "inetrc", lists:flatten(io_lib:format("~0p", [Inetrc]))]}),
    Nodes = fun(Name) ->
        erlmcp_test_peer_node:call(Peer, erlmcp_cluster_discovery, nodes, [{dns, Name}])
    end,
    %% The name of this node is `nonode@nohost`.
    ['nonode@10.0.0.1', 'nonode@10.0.0.2', 'nonode@fd00::7'] = Nodes("mcp.test"),
    [] = Nodes("none.test"),
    64 = length(Nodes("many.test")),
    ok = erlmcp_test_peer_node:stop(Peer),
    erlmcp_test_dns:stop(Dns).
