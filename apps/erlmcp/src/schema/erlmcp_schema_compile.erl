-module(erlmcp_schema_compile).
-moduledoc """
The compiler of schemas: a pair of funs for each numbered place, which contains those of the
subschemas inside it. Pure.

Numbered places are called through the table and never contained, and a fun contains any other fun
once. So the funs grow with the schema, even when they are copied, as into a persistent term; and a
schema may refer to itself.

Internal.
""".

-include("erlmcp_schema.hrl").

-export([table/2]).
-export([child/4, children/4, invalid/2, location/2, asserts_formats/1]).

-export_type([context/0]).

-type context() :: #{
    index := erlmcp_schema_index:index(),
    numbers := #{erlmcp_schema_place:key() => pos_integer()},
    formats := assert | annotate,
    max_pattern := pos_integer(),
    place := erlmcp_schema_place:place()
}.
-type options() :: #{
    max_subschemas := pos_integer(), formats := assert | annotate, max_pattern := pos_integer(),
    _ => _
}.

-doc """
Returns the checks of all numbered places, followed by their finders; the root is the first. Throws
a reason of `t:erlmcp_schema:reason/0`.
""".
-spec table(erlmcp_schema_index:index(), options()) -> tuple().
table(Index, #{max_subschemas := Limit, formats := Formats, max_pattern := MaxPattern}) ->
    {Places, Numbers} = erlmcp_schema_graph:new(Index, Limit),
    Context = #{index => Index, numbers => Numbers, formats => Formats, max_pattern => MaxPattern},
    {Checks, Finders} = lists:unzip([pair(Place, Context) || Place <- Places]),
    list_to_tuple(Checks ++ Finders).

-doc "Returns the funs of the subschema at `Tokens` in a place.".
-spec child([binary()], term(), context(), InvalidKeyword :: binary()) ->
    erlmcp_schema_run:node_pair().
child(Tokens, Schema, #{place := Place, index := Index} = Context, _)
        when is_map(Schema); is_boolean(Schema) ->
    Below = erlmcp_schema_place:child(Tokens, Schema, Place, Index),
    case erlmcp_schema_graph:stands_apart(Below) of
        true -> numbered(number(Below, Context), Context);
        false -> pair(Below, Context)
    end;
child(_, _, Context, Keyword) ->
    invalid(Keyword, Context).

-doc "Returns the funs of the schemas in a keyword's list or map, each with its token.".
-spec children(binary(), term(), list | map, context()) ->
    [{binary(), erlmcp_schema_run:node_pair()}].
children(Keyword, Schemas, list, Context) when is_list(Schemas) ->
    [{Token, child([Keyword, Token], Schema, Context, Keyword)}
     || {N, Schema} <- lists:enumerate(0, Schemas), Token <- [integer_to_binary(N)]];
children(Keyword, Schemas, map, Context) when is_map(Schemas) ->
    [{Name, child([Keyword, Name], Schema, Context, Keyword)}
     || {Name, Schema} <- lists:sort(maps:to_list(Schemas))];
children(Keyword, _, _, Context) ->
    invalid(Keyword, Context).

-doc "Throws that the value of a keyword is not what the keyword requires.".
-spec invalid(binary(), context()) -> no_return().
invalid(Keyword, #{place := Place}) ->
    throw({invalid_keyword, erlmcp_schema_place:location(Place), Keyword}).

-doc "Returns the location of `Tokens` in a place, for an error.".
-spec location([binary()], context()) -> binary().
location(Tokens, #{place := #place{pointer = Pointer} = Place}) ->
    erlmcp_schema_place:location(Place#place{pointer = lists:reverse(Tokens, Pointer)}).

-doc "Returns `true` if `format` is more than an annotation.".
-spec asserts_formats(context()) -> boolean().
asserts_formats(#{formats := assert}) -> true;
asserts_formats(#{place := #place{dialect = Dialect}}) ->
    erlmcp_schema_dialect:formats(Dialect) =:= asserted.

pair(#place{schema = true}, _) ->
    erlmcp_schema_run:pass();
pair(#place{schema = false}, _) ->
    erlmcp_schema_run:refuse();
pair(#place{schema = Whole, dialect = Dialect} = Place, Context0) ->
    Context = Context0#{place => Place},
    Known = maps:filter(fun(Keyword, _) -> erlmcp_schema_dialect:has(Keyword, Dialect) end,
                        erlmcp_schema_dialect:effective(Whole, Dialect)),
    {Schema, Sought} = erlmcp_schema_unevaluated:resolved(Known, Dialect),
    {Checks, Finders} = lists:foldr(fun erlmcp_schema_run:both/2, {[], []}, lists:append([
        erlmcp_schema_value:parts(Schema, Context),
        [erlmcp_schema_members:part(Schema, Context)],
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
            %% These keywords need to know what the others evaluated, which only finders do.
            Finder = asking(erlmcp_schema_run:in_turn([Find | Last])),
            Check = fun(V, Table, Budget) ->
                Holds = fun(Run) -> Finder(V, [], [], Run) end,
                erlmcp_schema_run:holds(Holds, Table, erlmcp_schema_run:spend(1, Budget))
            end,
            {Check, Finder}
    end.

%% Evaluations of adjacent schemas do not count in this one; its own count in those around it.
asking(Find) ->
    fun(V, I, S, #run{evaluated = Before} = Run) ->
        #run{evaluated = Evaluated} = Found = Find(V, I, S, Run#run{evaluated = #{}}),
        erlmcp_schema_run:evaluated(Evaluated, Found#run{evaluated = Before})
    end.

%% Without a schema around that asks for evaluations, a valid value has nothing to find. Skipping it
%% saves most of the work where there are branches.
unless_passed(Find, Schema, #{place := Place} = Context)
        when is_map_key(~"anyOf", Schema); is_map_key(~"oneOf", Schema) ->
    {Check, _} = numbered(number(Place, Context), Context),
    fun
        (V, I, S, #run{evaluated = unasked} = Run) ->
            case erlmcp_schema_run:passes(Check, V, Run) of
                {true, Left} -> Left;
                {false, Left} -> Find(V, I, S, Left)
            end;
        (V, I, S, Run) ->
            Find(V, I, S, Run)
    end;
unless_passed(Find, _, _) ->
    Find.

number(Place, #{numbers := Numbers}) ->
    map_get(erlmcp_schema_place:key(Place), Numbers).

%% The funs of the numbered place, which are looked up in the table when called.
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
