-module(erlmcp_schema_object).
-moduledoc """
The keywords for an object as a whole: the number of its members, their names, and members that
require others. Pure.

Internal.
""".

-export([parts/2]).

-import(erlmcp_schema_run, [leaf/3, spend/2, spent/2, inside/3]).

-doc "Returns the parts of a schema for these keywords.".
-spec parts(map(), erlmcp_schema_compile:context()) -> [erlmcp_schema_run:part()].
parts(Schema, Context) ->
    [part(Keyword, Value, Context)
     || Keyword <- [~"minProperties", ~"maxProperties", ~"propertyNames", ~"dependentRequired",
                    ~"dependencies", ~"dependentSchemas"],
        #{Keyword := Value} <- [Schema]].

part(~"minProperties", Value, Context) ->
    Limit = erlmcp_schema_value:integral({~"minProperties", Value}, Context),
    Check = fun
        (V, _, Budget) when is_map(V), map_size(V) < Limit -> bnot Budget;
        (_, _, Budget) -> Budget
    end,
    leaf(~"minProperties", Check, Limit);
part(~"maxProperties", Value, Context) ->
    Limit = erlmcp_schema_value:integral({~"maxProperties", Value}, Context),
    Check = fun
        (V, _, Budget) when is_map(V), map_size(V) > Limit -> bnot Budget;
        (_, _, Budget) -> Budget
    end,
    leaf(~"maxProperties", Check, Limit);
part(~"propertyNames", Sub, Context) ->
    {Check, Find} =
        erlmcp_schema_compile:child([~"propertyNames"], Sub, Context, ~"propertyNames"),
    Names = fun
        (V, Table, Budget) when is_map(V) ->
            each_name(maps:keys(V), Check, Table, spend(map_size(V), Budget));
        (_, _, Budget) ->
            Budget
    end,
    Finder = fun
        (V, I, S, Run) when is_map(V) ->
            Each = fun(Before) ->
                lists:foldl(fun(Name, Sum) ->
                    Find(Name, [Name | I], [~"propertyNames" | S], Sum)
                end, spent(map_size(V), Before), lists:sort(maps:keys(V)))
            end,
            inside(Each, #{}, Run);
        (_, _, _, Run) ->
            Run
    end,
    {[Names], [Finder]};
part(~"dependentRequired", Of, Context) when is_map(Of) ->
    both([dependent_names(~"dependentRequired", Name, Names, Context)
          || {Name, Names} <- lists:sort(maps:to_list(Of))]);
part(~"dependentSchemas", Of, Context) ->
    Pairs = erlmcp_schema_compile:children(~"dependentSchemas", Of, map, Context),
    both([dependent_schema(~"dependentSchemas", Name, Pair) || {Name, Pair} <- Pairs]);
part(~"dependencies", Of, Context) when is_map(Of) ->
    both([case Needed of
              _ when is_list(Needed) ->
                  dependent_names(~"dependencies", Name, Needed, Context);
              _ ->
                  Pair = erlmcp_schema_compile:child([~"dependencies", Name], Needed, Context,
                                                     ~"dependencies"),
                  dependent_schema(~"dependencies", Name, Pair)
          end || {Name, Needed} <- lists:sort(maps:to_list(Of))]);
part(Keyword, _, Context) ->
    erlmcp_schema_compile:invalid(Keyword, Context).

both(Parts) ->
    lists:foldr(fun erlmcp_schema_run:both/2, {[], []}, Parts).

each_name([Name | Names], Check, Table, Budget) ->
    case Check(Name, Table, Budget) of
        Left when Left >= 0 -> each_name(Names, Check, Table, Left);
        Failed -> Failed
    end;
each_name([], _, _, Budget) ->
    Budget.

dependent_names(Keyword, Name, Names, Context) ->
    Needed = erlmcp_schema_value:names({Keyword, Names}, Context),
    Cost = length(Needed),
    Check = fun
        (V, _, Budget) when is_map_key(Name, V) ->
            Left = spend(Cost, Budget),
            case lists:all(fun(Other) -> is_map_key(Other, V) end, Needed) of
                true -> Left;
                false -> bnot Left
            end;
        (_, _, Budget) ->
            Budget
    end,
    leaf(Keyword, Check, {Name, Needed}).

dependent_schema(Keyword, Name, {Check, Find}) ->
    Finder = fun
        (V, I, S, Run) when is_map_key(Name, V) ->
            Find(V, I, [Name, Keyword | S], spent(1, Run));
        (_, _, _, Run) ->
            Run
    end,
    {[fun
          (V, Table, Budget) when is_map_key(Name, V) -> Check(V, Table, spend(1, Budget));
          (_, _, Budget) -> Budget
      end],
     [Finder]}.
