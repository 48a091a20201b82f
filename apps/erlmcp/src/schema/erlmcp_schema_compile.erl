-module(erlmcp_schema_compile).
-moduledoc """
Compiles a schema to funs: a check and a finder (`m:erlmcp_schema_run`) for each numbered subschema,
which contain the funs of the subschemas inside it. Pure.

The root, the targets of references, and some others (`stands_apart/1`) have numbers. Their funs are
called by number, through a table, so a schema may refer to itself. A reference that leads back to
itself without going deeper into the instance is refused, since its validation would never end.

Internal.
""".

-include("erlmcp_schema.hrl").

-export([table/2]).

-type options() :: #{
    max_subschemas := pos_integer(), formats := assert | annotate, max_pattern := pos_integer(),
    _ => _
}.

-record(graph, {
    numbers = #{} :: #{erlmcp_schema_place:key() => pos_integer()},
    places = [] :: [erlmcp_schema_place:subschema()],
    %% From the number of a subschema to the numbers of those that it applies to the same part of
    %% the instance.
    edges = #{} :: #{pos_integer() => [pos_integer()]},
    count = 0 :: non_neg_integer()
}).

-doc """
Returns a tuple with the checks of all numbered subschemas, followed by their finders in the same
order. The root schema is the first. Throws a reason of `t:erlmcp_schema:reason/0` if the schema
cannot be compiled.
""".
-spec table(erlmcp_schema_index:index(), options()) -> tuple().
table(Index, #{max_subschemas := Limit, formats := Formats, max_pattern := MaxPattern}) ->
    {Places, Numbers} = numbered_places(Index, Limit),
    Context = #{index => Index, numbers => Numbers, compile => fun inside/2,
                formats => Formats, max_pattern => MaxPattern},
    {Checks, Finders} = lists:unzip([pair(Place, Context) || Place <- Places]),
    list_to_tuple(Checks ++ Finders).

%% The check and the finder of a subschema inside another one.
inside(Place, Context) ->
    case stands_apart(Place) of
        true -> numbered(number(Place, Context), Context);
        false -> pair(Place, Context)
    end.

pair(#place{schema = true}, _) ->
    erlmcp_schema_run:pass();
pair(#place{schema = false}, _) ->
    erlmcp_schema_run:refuse();
pair(#place{schema = Whole, dialect = Dialect} = Place, Context0) ->
    Context = Context0#{place => Place},
    Keywords = maps:filter(fun(Keyword, _) -> erlmcp_schema_dialect:has(Keyword, Dialect) end,
                           erlmcp_schema_dialect:effective(Whole, Dialect)),
    {Schema, Sought} = erlmcp_schema_unevaluated:resolved(Keywords, Dialect),
    {Checks, Finders} = lists:foldr(fun erlmcp_schema_run:both/2, {[], []}, lists:append([
        erlmcp_schema_value:parts(Schema, Context),
        erlmcp_schema_object:parts(Schema, Context),
        erlmcp_schema_array:parts(Schema, Context),
        erlmcp_schema_logic:parts(Schema, Context),
        [reference(Keyword, Context)
         || Keyword <- erlmcp_schema_place:references(Schema, Dialect)]
    ])),
    Find = erlmcp_schema_run:in_turn(Finders),
    case erlmcp_schema_unevaluated:finders(Sought, Context) of
        [] ->
            {erlmcp_schema_run:all(Checks), unless_passed(Find, Schema, Context)};
        Last ->
            %% These keywords depend on what the others evaluated, which only finders record.
            Finder = asking(erlmcp_schema_run:in_turn([Find | Last])),
            Check = fun(V, Table, Budget) ->
                Holds = fun(Run) -> Finder(V, [], [], Run) end,
                erlmcp_schema_run:holds(Holds, Table, erlmcp_schema_run:spend(1, Budget))
            end,
            {Check, Finder}
    end.

%% The items and properties that adjacent schemas evaluate do not count in this one. Those that it
%% evaluates itself count in the schemas around it.
asking(Find) ->
    fun(V, I, S, #run{evaluated = Before} = Run) ->
        #run{evaluated = Evaluated} = Found = Find(V, I, S, Run#run{evaluated = #{}}),
        erlmcp_schema_run:evaluated(Evaluated, Found#run{evaluated = Before})
    end.

%% If no schema around asks for evaluations, the finder has nothing to find in a valid value.
%% Skipping such values saves most of the work in schemas with branches.
unless_passed(Find, Schema, #{place := Place} = Context)
        when is_map_key(~"anyOf", Schema); is_map_key(~"oneOf", Schema) ->
    {Check, _} = numbered(number(Place, Context), Context),
    fun
        (V, I, S, #run{evaluated = off} = Run) ->
            case erlmcp_schema_run:passes(Check, V, Run) of
                {true, Next} -> Next;
                {false, Next} -> Find(V, I, S, Next)
            end;
        (V, I, S, Run) ->
            Find(V, I, S, Run)
    end;
unless_passed(Find, _, _) ->
    Find.

number(Place, #{numbers := Numbers}) ->
    map_get(erlmcp_schema_place:key(Place), Numbers).

%% The funs of a numbered subschema, which look it up in the table when they are called.
numbered(N, #{numbers := Numbers}) ->
    Half = map_size(Numbers),
    {fun(V, Table, Budget) -> (element(N, Table))(V, Table, Budget) end,
     fun(V, I, S, #run{table = Table} = Run) -> (element(Half + N, Table))(V, I, S, Run) end}.

reference(Keyword, #{place := Place, index := Index} = Context) ->
    N = number(erlmcp_schema_place:reference(Keyword, Place, Index), Context),
    {_, Find} = numbered(N, Context),
    Check = fun
        (V, Table, Budget) when Budget > 0 -> (element(N, Table))(V, Table, Budget - 1);
        (_, _, _) -> throw(budget)
    end,
    Finder = fun(V, I, S, Run) ->
        Find(V, I, [Keyword | S], erlmcp_schema_run:spent(1, Run))
    end,
    {[Check], [Finder]}.

%% The numbered subschemas in their order, the root first, and their numbers.
numbered_places(Index, Limit) ->
    Root = erlmcp_schema_place:root(Index),
    {1, Start, New} = with_number(Root, #graph{}),
    Graph = reach(New, Index, Limit, Start),
    Places = lists:reverse(Graph#graph.places),
    refuse_endless(list_to_tuple(Places), Graph#graph.edges),
    {Places, Graph#graph.numbers}.

with_number(Place, #graph{numbers = Numbers, places = Places} = Graph) ->
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

%% `From` is the number of the subschema that applies this one to its own instance, or `inside` if
%% the instance is a part of it.
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
    {N, Graph, More} = with_number(Target, Graph0),
    Edges = case From of
        inside -> Graph#graph.edges;
        _ -> maps:update_with(From, fun(To) -> [N | To] end, [N], Graph#graph.edges)
    end,
    {More ++ New, Graph#graph{edges = Edges}}.

%% Depth first: an edge back to a subschema that is still open closes a circle.
refuse_endless(Places, Edges) ->
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

%% Such a subschema has a number even without a reference to it. Its funs contain those of its own
%% subschemas more than once. If the funs around it contained it, too, the copies would multiply
%% with each level. So the size of all funs stays linear in the schema's, even after a copy into a
%% persistent term.
stands_apart(#place{schema = #{} = Schema}) ->
    lists:any(fun(Keyword) -> is_map_key(Keyword, Schema) end,
              [~"anyOf", ~"oneOf", ~"unevaluatedProperties", ~"unevaluatedItems"]);
stands_apart(_) ->
    false.
