-module(erlmcp_schema_unevaluated).
-moduledoc """
The keywords `unevaluatedProperties` and `unevaluatedItems`. They apply to members and items that no
other keyword has evaluated, in this schema or in one that it applies to the value. Pure.

Internal.
""".

-include("../erlmcp_schema.hrl").

-export([resolved/2, finders/2]).

%% Keywords that apply a subschema to the same value. That of `not` evaluates nothing.
-define(HERE, [~"$ref", ~"$dynamicRef", ~"$recursiveRef", ~"allOf", ~"anyOf", ~"oneOf", ~"if",
               ~"dependentSchemas", ~"dependencies"]).

-doc """
Splits a schema in two maps. `Sought` has the `unevaluated` keywords whose result depends on what
other keywords evaluate at run time. The first map has all other keywords. If one of them is
`unevaluatedProperties`, it means the same here as `additionalProperties`. In the same way,
`unevaluatedItems` in the first map means the same as `items` for the items that no other keyword is
for.
""".
-spec resolved(map(), erlmcp_schema_dialect:dialect()) -> {map(), Sought :: map()}.
resolved(Schema, Dialect) when is_map_key(~"unevaluatedProperties", Schema);
                               is_map_key(~"unevaluatedItems", Schema) ->
    Here = lists:any(fun(Keyword) -> is_map_key(Keyword, Schema) end, ?HERE),
    %% Since 2020-12 the items that `contains` evaluates depend on the value.
    Contains = is_map_key(~"contains", Schema)
        andalso erlmcp_schema_dialect:draft(Dialect) =:= draft_2020_12,
    Sought = [~"unevaluatedProperties" || Here] ++ [~"unevaluatedItems" || Here orelse Contains],
    {maps:without(Sought, Schema), maps:with(Sought, Schema)};
resolved(Schema, _) ->
    {Schema, #{}}.

-doc """
Returns the finders of the keywords in `Sought`, the second map that `resolved/2` returns. They must
run after the finders of all other keywords. Throws a reason of `t:erlmcp_schema:reason/0` if a
keyword has an invalid value.
""".
-spec finders(map(), erlmcp_schema_context:context()) -> [erlmcp_schema_run:finder()].
finders(Schema, Context) ->
    [finder(Keyword, Child)
     || Keyword <- [~"unevaluatedProperties", ~"unevaluatedItems"],
        #{Keyword := Sub} <- [Schema],
        {_, Child} <- [erlmcp_schema_context:child([Keyword], Sub, Context, Keyword)]].

finder(Keyword, Find) ->
    fun
        (V, I, S, #run{evaluated = Evaluated} = Run)
                when is_map(V), Keyword =:= ~"unevaluatedProperties", Evaluated =/= all ->
            Others = lists:sort(maps:to_list(maps:without(maps:keys(Evaluated), V))),
            (each(Others, Find, I, [Keyword | S], Run#run{evaluated = off}))#run{evaluated = all};
        (V, I, S, #run{evaluated = Evaluated} = Run)
                when is_list(V), Keyword =:= ~"unevaluatedItems", Evaluated =/= all ->
            Others = [Item || {N, _} = Item <- lists:enumerate(0, V),
                            not is_map_key(N, Evaluated)],
            (each(Others, Find, I, [Keyword | S], Run#run{evaluated = off}))#run{evaluated = all};
        (_, _, _, Run) ->
            Run
    end.

each(Members, Find, I, S, Run) ->
    lists:foldl(fun({Token, Value}, Sum) ->
        Find(Value, [Token | I], S, erlmcp_schema_run:spent(1, Sum))
    end, Run, Members).
