-module(erlmcp_schema_graph).
-moduledoc """
The numbered places of a schema: the targets of references, so that recursive schemas can be
compiled, and the places that stand apart. They are called by their numbers. A reference that leads
back to itself without going deeper into the instance is refused, since no validation would end.
Pure.

Internal.
""".

-include("erlmcp_schema.hrl").

-export([new/2, stands_apart/1]).

-record(graph, {
    numbers = #{} :: #{erlmcp_schema_place:key() => pos_integer()},
    places = [] :: [erlmcp_schema_place:place()],
    %% From a place to the places that it applies to the same part of the instance.
    edges = #{} :: #{pos_integer() => [pos_integer()]},
    count = 0 :: non_neg_integer()
}).

-doc """
Returns the numbered places in their order, the root first, and their numbers. Throws a reason of
`t:erlmcp_schema:reason/0`.
""".
-spec new(erlmcp_schema_index:index(), Limit :: pos_integer()) ->
    {[erlmcp_schema_place:place()], #{erlmcp_schema_place:key() => pos_integer()}}.
new(Index, Limit) ->
    Root = erlmcp_schema_place:root(Index),
    {1, Start, New} = number(Root, #graph{}),
    Graph = reach(New, Index, Limit, Start),
    Places = lists:reverse(Graph#graph.places),
    endless(list_to_tuple(Places), Graph#graph.edges),
    {Places, Graph#graph.numbers}.

-doc """
Returns `true` if a place has a number even without a reference to it. Its funs contain its
subschemas more than once, and the funs around it would contain it more than once in turn.
""".
-spec stands_apart(erlmcp_schema_place:place()) -> boolean().
stands_apart(#place{schema = #{} = Schema}) ->
    lists:any(fun(Keyword) -> is_map_key(Keyword, Schema) end,
              [~"anyOf", ~"oneOf", ~"unevaluatedProperties", ~"unevaluatedItems"]);
stands_apart(_) ->
    false.

number(Place, #graph{numbers = Numbers, places = Places} = Graph) ->
    Key = erlmcp_schema_place:key(Place),
    case Numbers of
        #{Key := N} ->
            {N, Graph, []};
        #{} ->
            N = map_size(Numbers) + 1,
            {N, Graph#graph{numbers = Numbers#{Key => N}, places = [Place | Places]},
             [{N, Place}]}
    end.

reach([], _, _, Graph) ->
    Graph;
reach([{N, Place} | Rest], Index, Limit, Graph0) ->
    {New, Graph} = scan(Place, N, Index, Limit, {[], Graph0}),
    reach(New ++ Rest, Index, Limit, Graph).

%% `From` is the number of the place whose instance this one is applied to, or `inside`.
scan(#place{schema = Schema, dialect = Dialect} = Place, From, Index, Limit, {New0, Graph0}) ->
    Count = Graph0#graph.count + 1,
    Count =< Limit orelse throw({too_many_subschemas, Limit}),
    Counted = {New0, Graph0#graph{count = Count}},
    case Schema of
        #{} ->
            Effective = erlmcp_schema_dialect:effective(Schema, Dialect),
            Referred = lists:foldl(fun(Keyword, Sum) ->
                refer(erlmcp_schema_place:reference(Keyword, Place, Index), From, Sum)
            end, Counted, erlmcp_schema_place:references(Effective, Dialect)),
            lists:foldl(fun
                ({stored, _, _}, Sum) ->
                    Sum;
                ({How, Tokens, Child}, Sum) ->
                    Below = erlmcp_schema_place:child(Tokens, Child, Place, Index),
                    case stands_apart(Below) of
                        true -> refer(Below, from(How, From), Sum);
                        false -> scan(Below, from(How, From), Index, Limit, Sum)
                    end
            end, Referred, erlmcp_schema_dialect:children(Effective, Dialect));
        _ ->
            Counted
    end.

from(here, From) -> From;
from(inside, _) -> inside.

refer(Target, From, {New, Graph0}) ->
    {N, Graph, More} = number(Target, Graph0),
    Edges = case From of
        inside -> Graph#graph.edges;
        _ -> maps:update_with(From, fun(To) -> [N | To] end, [N], Graph#graph.edges)
    end,
    {More ++ New, Graph#graph{edges = Edges}}.

%% Depth first: an edge back to a place that is still open closes a circle.
endless(Places, Edges) ->
    _ = lists:foldl(fun(N, Done) -> visit(N, #{}, Done, Places, Edges) end, #{},
                    lists:seq(1, tuple_size(Places))),
    ok.

visit(N, Open, _, Places, _) when is_map_key(N, Open) ->
    throw({endless_ref, erlmcp_schema_place:location(element(N, Places))});
visit(N, _, Done, _, _) when is_map_key(N, Done) ->
    Done;
visit(N, Open, Done0, Places, Edges) ->
    Below = Open#{N => true},
    Done = lists:foldl(fun(To, Sum) -> visit(To, Below, Sum, Places, Edges) end, Done0,
                       lists:uniq(maps:get(N, Edges, []))),
    Done#{N => true}.
