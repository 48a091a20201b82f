-module(erlmcp_cluster_discovery).
-moduledoc """
Finds the nodes of a cluster, and decides what a node does with those that it has found.

Nodes are a list of names, or the addresses of a DNS name, such as that of a headless service in
Kubernetes. With DNS, all nodes have the same name before the `@`, and their address after it.

Internal.
""".

-export([nodes/1, step/4]).

-export_type([discovery/0, step/0]).

%% Each address that DNS returns becomes an atom.
-define(ADDRESSES, 64).

-type discovery() :: erlmcp_cluster:discovery().
-doc """
A step of a node: it stays in its cluster, forms one, joins that of another node, or waits for more
nodes. `other_cluster` has nodes that are in another cluster than this node or than each other.
""".
-type step() ::
    stay | form | wait | {join, node()}
    | {error, {other_cluster, [node(), ...]}}.

-doc """
Returns the nodes that may be members, this one too if it is among them. A DNS name gives 64 nodes
at most, and `[]` if it has no address or DNS does not answer.
""".
-spec nodes(discovery()) -> [node()].
nodes({seeds, Nodes}) ->
    Nodes;
nodes({dns, Name}) ->
    [Base, _] = string:split(atom_to_list(node()), "@"),
    Addresses = lists:append([addresses(Name, Family) || Family <- [inet, inet6]]),
    [list_to_atom(Base ++ "@" ++ inet:ntoa(Address))
     || Address <- lists:sublist(lists:usort(Addresses), ?ADDRESSES)].

addresses(Name, Family) ->
    case inet:getaddrs(Name, Family) of
        {ok, Addresses} -> Addresses;
        {error, _} -> []
    end.

-doc """
Returns the next step of a node, from its own view and those of the nodes that it has reached.
`Missing` are the nodes that it has found and not reached.

A node that is in no cluster joins the cluster of a node that it has reached. If none of them is in
a cluster, the node with the least name forms one, and the others wait. No cluster is formed while a
node is missing, or while there are fewer than `Size` nodes. A node in a cluster stays there, or
joins it again if it was taken out. If the nodes are in two clusters, the result is `other_cluster`.
""".
-spec step({node(), erlmcp_cluster_store:view()}, [{node(), erlmcp_cluster_store:view()}],
           Missing :: [node()], Size :: pos_integer()) -> step().
step({Self, Own}, Others, Missing, Size) ->
    Formed = [Other || {_, View} = Other <- Others, is_formed(View)],
    case is_formed(Own) of
        true -> formed(Self, Own, Formed);
        false -> unformed(Self, Formed, [Node || {Node, _} <- Others], Missing, Size)
    end.

formed(Self, #{cluster := Cluster, members := Members}, Formed) ->
    case [Node || {Node, #{cluster := Other}} <- Formed, is_other(Cluster, Other)] of
        [] ->
            %% With an id that is not known yet, it is the cluster of those that it was with.
            case [Node || {Node, #{cluster := Same, members := [_ | _] = Theirs}} <- Formed,
                          Same =/= none,
                          Same =:= Cluster orelse lists:member(Node, Members),
                          not lists:member(Self, Theirs)] of
                [] -> stay;
                [Node | _] -> {join, Node}
            end;
        Nodes ->
            %% The facts of two clusters contradict each other.
            {error, {other_cluster, Nodes}}
    end.

%% A node that is missing may be in a cluster.
unformed(Self, [], Nodes, [], Size) when length(Nodes) + 1 >= Size ->
    case lists:min([Self | Nodes]) of
        Self -> form;
        _ -> wait
    end;
unformed(_, [], _, _, _) ->
    wait;
unformed(_, [{Node, #{cluster := Cluster}} | _] = Formed, _, _, _) ->
    case [Other || {Other, #{cluster := Id}} <- Formed, is_other(Cluster, Id)] of
        [] -> {join, Node};
        Nodes -> {error, {other_cluster, [Node | Nodes]}}
    end.

%% A member that starts again learns of the cluster's id a little later.
is_formed(#{cluster := Cluster, members := Members}) ->
    Cluster =/= none orelse length(Members) > 1.

is_other(none, _) -> false;
is_other(_, none) -> false;
is_other(One, Other) -> One =/= Other.
