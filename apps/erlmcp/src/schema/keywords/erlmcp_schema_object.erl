-module(erlmcp_schema_object).
-moduledoc """
The keywords for objects. Those for single members (`properties`, `patternProperties`,
`additionalProperties`, `required`) have one common check. The others concern the object as a whole:
the number of its members, their names, and members that require others. Pure.

Internal.
""".

-include("../erlmcp_schema.hrl").

-export([parts/2, has_check/1]).

-import(erlmcp_schema_run, [leaf/3, spend/2, spent/2, inside/3, fail/6]).

%% Up to this size OTP stores the members of a map as an array in the order of their keys.
-define(SMALL, 32).
%% Below this size, looking up each member costs less than making a list of them.
-define(TINY, 4).

-type rest() :: [{Keyword :: binary(), Sub :: term(), erlmcp_schema_run:node_pair()}].

-doc """
Returns `true` if a schema has a keyword for single members. Such a schema has the common check of
these keywords. If its `type` is `object`, this check also refuses values that are not objects.
""".
-spec has_check(map()) -> boolean().
has_check(Schema) ->
    lists:any(fun(Keyword) -> is_map_key(Keyword, Schema) end,
              [~"properties", ~"patternProperties", ~"required", ~"additionalProperties",
               ~"unevaluatedProperties"]).

-doc """
Compiles those keywords of `Schema` that are for objects. Each part of the result has the checks and
finders of one keyword, or of several. Throws a reason of `t:erlmcp_schema:reason/0` if a keyword
has an invalid value.
""".
-spec parts(Schema :: map(), erlmcp_schema_context:context()) -> [erlmcp_schema_run:part()].
parts(Schema, Context) ->
    [members(Schema, Context)
     | [part(Keyword, Value, Context)
        || Keyword <- [~"minProperties", ~"maxProperties", ~"propertyNames", ~"dependentRequired",
                       ~"dependencies", ~"dependentSchemas"],
           #{Keyword := Value} <- [Schema]]].

members(Schema, Context) ->
    Properties = children(~"properties", Schema, Context),
    Patterns = [{erlmcp_schema_pattern:compile(Text, [~"patternProperties", Text], Context), Text,
                 Pair}
                || {Text, Pair} <- children(~"patternProperties", Schema, Context)],
    Required = erlmcp_schema_context:names(
        {~"required", maps:get(~"required", Schema, [])}, Context),
    Rest = rest(Schema, Context),
    {[check(Properties, Required, Patterns, Rest, Schema) || has_check(Schema)],
     finders([{Name, Find} || {Name, {_, Find}} <- Properties], Required, Patterns,
             rest_finder(Rest, names(Properties), [Pattern || {Pattern, _, _} <- Patterns]),
             Schema)}.

names(Properties) ->
    #{Name => true || {Name, _} <- Properties}.

children(Keyword, Schema, Context) ->
    case Schema of
        #{Keyword := Of} -> erlmcp_schema_context:children(Keyword, Of, map, Context);
        #{} -> []
    end.

%% Next to `additionalProperties`, `unevaluatedProperties` finds nothing.
-spec rest(map(), erlmcp_schema_context:context()) -> rest().
rest(Schema, Context) ->
    Keywords = [Keyword || Keyword <- [~"additionalProperties", ~"unevaluatedProperties"],
                           is_map_key(Keyword, Schema)],
    [{Keyword, Sub, erlmcp_schema_context:child([Keyword], Sub, Context, Keyword)}
     || Keyword <- lists:sublist(Keywords, 1), #{Keyword := Sub} <- [Schema]].

%% The common check. `any` stands for members without a check, `none` for forbidden members.
check(Properties, Required, Patterns, Rest, Schema) ->
    {Any, _} = erlmcp_schema_run:pass(),
    Declared = names(Properties),
    Needed = #{Name => true || Name <- Required},
    Constants = constants(Schema),
    {First, Others} = lists:partition(
        fun({Name, _, _}) -> is_map_key(Name, Constants) end,
        lists:sort([{Name, is_map_key(Name, Needed), Check} || {Name, {Check, _}} <- Properties]
            ++ [{Name, true, Any} || Name <- Required, not is_map_key(Name, Declared)])),
    Named = First ++ Others,
    Matching = [{Pattern, Check} || {Pattern, _, {Check, _}} <- Patterns],
    Only = case Schema of
        #{~"type" := ~"object"} -> true;
        #{} -> false
    end,
    case Rest of
        _ when Matching =/= [] -> full(Named, Declared, Matching, additional(Rest), Only);
        [{_, Sub, {Check, _}}] when Sub =/= true, Sub =/= #{}, Sub =/= false, Named =:= [] ->
            every(Check, Only);
        [{_, Sub, _}] when Sub =/= true, Sub =/= #{}, Sub =/= false ->
            full(Named, Declared, [], additional(Rest), Only);
        [{_, false, _}] when map_size(Declared) =:= length(Named) -> closed(Named, Only);
        [{_, false, _}] -> full(Named, Declared, [], none, Only);
        _ -> open(Named, Only)
    end.

%% The property that tells the schemas of a `oneOf` apart is most often one of these.
constants(#{~"properties" := Properties}) ->
    #{Name => true || Name := #{~"const" := _} <- Properties};
constants(_) ->
    #{}.

additional([{_, false, _}]) -> none;
additional([{_, _, {Check, _}}]) -> Check;
additional([]) -> any.

every(Check, Only) ->
    fun
        (V, Table, Budget) when is_map(V) ->
            values(maps:values(V), Check, Table, spend(map_size(V), Budget));
        (_, _, Budget) when Only -> bnot Budget;
        (_, _, Budget) -> Budget
    end.

values([Value | Values], Check, Table, Budget) ->
    case Check(Value, Table, Budget) of
        Balance when Balance >= 0 -> values(Values, Check, Table, Balance);
        Failed -> Failed
    end;
values([], _, _, Budget) ->
    Budget.

open(Named, Only) ->
    Cost = length(Named),
    fun
        (V, Table, Budget) when is_map(V), Cost =< Budget ->
            named(Named, order(V), V, Table, Budget - Cost);
        (V, _, _) when is_map(V) -> throw(budget);
        (_, _, Budget) when Only -> bnot Budget;
        (_, _, Budget) -> Budget
    end.

named([{Name, _, Check} | Named], [{Name, Value} | Members], V, Table, Budget) ->
    case Check(Value, Table, Budget) of
        Balance when Balance >= 0 -> named(Named, Members, V, Table, Balance);
        Failed -> Failed
    end;
named([{Name, Required, Check} | Named], Members, V, Table, Budget) ->
    case V of
        #{Name := Value} ->
            case Check(Value, Table, Budget) of
                Balance when Balance >= 0 -> named(Named, Members, V, Table, Balance);
                Failed -> Failed
            end;
        #{} when Required -> bnot Budget;
        #{} -> named(Named, Members, V, Table, Budget)
    end;
named([], _, _, _, Budget) ->
    Budget.

closed(Named, Only) ->
    Cost = length(Named),
    fun
        (V, Table, Budget) when is_map(V), Cost =< Budget ->
            only(Named, order(V), V, map_size(V), Table, Budget - Cost);
        (V, _, _) when is_map(V) -> throw(budget);
        (_, _, Budget) when Only -> bnot Budget;
        (_, _, Budget) -> Budget
    end.

%% `Other` counts the members that are not in `properties`.
only([{Name, _, Check} | Named], [{Name, Value} | Members], V, Other, Table, Budget) ->
    case Check(Value, Table, Budget) of
        Balance when Balance >= 0 -> only(Named, Members, V, Other - 1, Table, Balance);
        Failed -> Failed
    end;
only([{Name, Required, Check} | Named], Members, V, Other, Table, Budget) ->
    case V of
        #{Name := Value} ->
            case Check(Value, Table, Budget) of
                Balance when Balance >= 0 -> only(Named, Members, V, Other - 1, Table, Balance);
                Failed -> Failed
            end;
        #{} when Required -> bnot Budget;
        #{} -> only(Named, Members, V, Other, Table, Budget)
    end;
only([], _, _, 0, _, Budget) -> Budget;
only([], _, _, _, _, Budget) -> bnot Budget.

%% The members of a small map and the named properties have the same order, so the next member is
%% most often the one to check. Otherwise the member is looked up: the order matters only for speed.
order(V) when map_size(V) >= ?TINY, map_size(V) =< ?SMALL -> maps:to_list(V);
order(_) -> [].

full(Named, Declared, Patterns, Rest, Only) ->
    Cost = length(Named),
    Each = length(Patterns) + 1,
    fun
        (V, Table, Budget) when is_map(V) ->
            case named(Named, order(V), V, Table, spend(Cost, Budget)) of
                Balance when Balance >= 0 ->
                    others(maps:to_list(V), Declared, Patterns, Rest, Table,
                           spend(Each * map_size(V), Balance));
                Failed -> Failed
            end;
        (_, _, Budget) when Only -> bnot Budget;
        (_, _, Budget) -> Budget
    end.

others([{Name, Value} | Members], Declared, Patterns, Rest, Table, Budget) ->
    case matching(Patterns, Name, Value, Table, Budget, is_map_key(Name, Declared)) of
        {true, Balance} when Balance >= 0 ->
            others(Members, Declared, Patterns, Rest, Table, Balance);
        {true, Failed} ->
            Failed;
        {false, Balance} when Rest =:= any ->
            others(Members, Declared, Patterns, Rest, Table, Balance);
        {false, Balance} when Rest =:= none ->
            bnot Balance;
        {false, Before} ->
            case Rest(Value, Table, Before) of
                Balance when Balance >= 0 ->
                    others(Members, Declared, Patterns, Rest, Table, Balance);
                Failed -> Failed
            end
    end;
others([], _, _, _, _, Budget) ->
    Budget.

matching([{Pattern, Check} | Patterns], Name, Value, Table, Budget, Evaluated) ->
    case erlmcp_schema_pattern:match(Name, Pattern, Budget) of
        Matched when Matched >= 0 ->
            case Check(Value, Table, Matched) of
                Balance when Balance >= 0 -> matching(Patterns, Name, Value, Table, Balance, true);
                Failed -> {true, Failed}
            end;
        Unmatched ->
            matching(Patterns, Name, Value, Table, bnot Unmatched, Evaluated)
    end;
matching([], _, _, _, Budget, Evaluated) ->
    {Evaluated, Budget}.

%% The finders. The first one refuses a value that is not an object, if `type` does.
finders(Properties, Required, [], Rest, Schema) ->
    [finder(Properties, Required, Rest, Schema) || has_check(Schema)];
finders(Properties, Required, Patterns, Rest, Schema) ->
    Last = erlmcp_schema_run:in_turn([]),
    [finder(Properties, Required, Last, Schema)]
        ++ [erlmcp_schema_pattern:halting(~"patternProperties", Text,
                                          pattern_finder(Pattern, Text, Find))
            || {Pattern, Text, {_, Find}} <- Patterns]
        ++ [Rest].

finder(Properties, Required, Rest, Schema) ->
    Cost = length(Properties) + length(Required),
    Only = maps:get(~"type", Schema, any) =:= ~"object",
    fun
        (V, I, S, #run{evaluated = off} = Run) when is_map(V) ->
            properties(Properties, V, map_size(V), I, [~"properties" | S], Required, Rest,
                       spent(Cost, Run));
        (V, I, S, Run) when is_map(V) ->
            Parts = #{Name => true || {Name, _} <- Properties, is_map_key(Name, V)},
            Find = fun(Before) ->
                properties(Properties, V, 0, I, [~"properties" | S], Required, none, Before)
            end,
            Rest(V, I, S, inside(Find, Parts, spent(Cost, Run)));
        (V, I, S, Run) when Only ->
            fail(~"type", [~"object"], V, I, [~"type" | S], Run);
        (_, _, _, Run) ->
            Run
    end.

%% `Other` counts the members that are not in `properties`, as in `only/6`.
properties([{Name, Find} | Properties], V, Other, I, S, Required, Rest, Run) ->
    case V of
        #{Name := Value} ->
            properties(Properties, V, Other - 1, I, S, Required, Rest,
                       Find(Value, [Name | I], [Name | S], Run));
        #{} ->
            properties(Properties, V, Other, I, S, Required, Rest, Run)
    end;
properties([], V, Other, I, [_ | S], Required, Rest, Run) when Other > 0 ->
    Rest(V, I, S, required(Required, V, I, S, Run));
properties([], V, _, I, [_ | S], Required, _, Run) ->
    required(Required, V, I, S, Run).

required([Name | Names], V, I, S, Run) when is_map_key(Name, V) ->
    required(Names, V, I, S, Run);
required([Name | Names], V, I, S, Run) ->
    required(Names, V, I, S, fail(~"required", Name, V, I, [~"required" | S], Run));
required([], _, _, _, Run) ->
    Run.

pattern_finder(Pattern, Text, Find) ->
    fun
        (V, I, S, Run) when is_map(V) ->
            Below = [Text, ~"patternProperties" | S],
            lists:foldl(fun({Name, Value}, Sum) ->
                case matches(Name, Pattern, Sum) of
                    {true, Next} ->
                        Inside = fun(Before) -> Find(Value, [Name | I], Below, Before) end,
                        inside(Inside, #{Name => true}, Next);
                    {false, Next} ->
                        Next
                end
            end, spent(map_size(V), Run), sorted(V));
        (_, _, _, Run) ->
            Run
    end.

matches(Name, Pattern, Run) ->
    Check = fun(Text, _, Budget) -> erlmcp_schema_pattern:match(Text, Pattern, Budget) end,
    erlmcp_schema_run:passes(Check, Name, Run).

rest_finder([], _, _) ->
    erlmcp_schema_run:in_turn([]);
rest_finder([{Keyword, Sub, {_, Find}}], Declared, Patterns) ->
    Names = lists:sort(maps:keys(Declared)),
    Other = case Sub of
        false -> fun(V, [Name | I], S, Run) -> fail(closed, {Name, Names}, V, I, S, Run) end;
        _ -> Find
    end,
    fun
        (V, I, S, Run) when is_map(V) ->
            Each = fun(Before) ->
                Unnamed = [Member || {Name, _} = Member <- maps:to_list(V),
                                     not is_map_key(Name, Declared)],
                unnamed(lists:sort(Unnamed), Patterns, Other, I, [Keyword | S], Before)
            end,
            inside(Each, all, spent(map_size(V), Run));
        (_, _, _, Run) ->
            Run
    end.

unnamed([{Name, Value} | Members], Patterns, Find, I, S, Run) ->
    case is_matched(Name, Patterns, Run) of
        {true, Next} ->
            unnamed(Members, Patterns, Find, I, S, Next);
        {false, Next} ->
            unnamed(Members, Patterns, Find, I, S, Find(Value, [Name | I], S, Next))
    end;
unnamed([], _, _, _, _, Run) ->
    Run.

is_matched(Name, [Pattern | Patterns], Run) ->
    case matches(Name, Pattern, Run) of
        {true, Next} -> {true, Next};
        {false, Next} -> is_matched(Name, Patterns, Next)
    end;
is_matched(_, [], Run) ->
    {false, Run}.

sorted(V) -> lists:sort(maps:to_list(V)).

%% The keywords for the object as a whole.

part(~"minProperties", Value, Context) ->
    Limit = erlmcp_schema_context:integral({~"minProperties", Value}, Context),
    Check = fun
        (V, _, Budget) when is_map(V), map_size(V) < Limit -> bnot Budget;
        (_, _, Budget) -> Budget
    end,
    leaf(~"minProperties", Check, Limit);
part(~"maxProperties", Value, Context) ->
    Limit = erlmcp_schema_context:integral({~"maxProperties", Value}, Context),
    Check = fun
        (V, _, Budget) when is_map(V), map_size(V) > Limit -> bnot Budget;
        (_, _, Budget) -> Budget
    end,
    leaf(~"maxProperties", Check, Limit);
part(~"propertyNames", Sub, Context) ->
    {Check, Find} =
        erlmcp_schema_context:child([~"propertyNames"], Sub, Context, ~"propertyNames"),
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
    Pairs = erlmcp_schema_context:children(~"dependentSchemas", Of, map, Context),
    both([dependent_schema(~"dependentSchemas", Name, Pair) || {Name, Pair} <- Pairs]);
part(~"dependencies", Of, Context) when is_map(Of) ->
    both([case Needed of
              _ when is_list(Needed) ->
                  dependent_names(~"dependencies", Name, Needed, Context);
              _ ->
                  Pair = erlmcp_schema_context:child([~"dependencies", Name], Needed, Context,
                                                     ~"dependencies"),
                  dependent_schema(~"dependencies", Name, Pair)
          end || {Name, Needed} <- lists:sort(maps:to_list(Of))]);
part(Keyword, _, Context) ->
    erlmcp_schema_context:invalid(Keyword, Context).

both(Parts) ->
    lists:foldr(fun erlmcp_schema_run:both/2, {[], []}, Parts).

each_name([Name | Names], Check, Table, Budget) ->
    case Check(Name, Table, Budget) of
        Balance when Balance >= 0 -> each_name(Names, Check, Table, Balance);
        Failed -> Failed
    end;
each_name([], _, _, Budget) ->
    Budget.

dependent_names(Keyword, Name, Names, Context) ->
    Needed = erlmcp_schema_context:names({Keyword, Names}, Context),
    Cost = length(Needed),
    Check = fun
        (V, _, Budget) when is_map_key(Name, V) ->
            Balance = spend(Cost, Budget),
            case lists:all(fun(Other) -> is_map_key(Other, V) end, Needed) of
                true -> Balance;
                false -> bnot Balance
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
