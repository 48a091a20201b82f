-module(erlmcp_schema_array).
-moduledoc """
The keywords for arrays. Those for the first items (`prefixItems`, and before 2020-12 a list in
`items`) and for the other items have one common check. Pure.

Internal.
""".

-include("../erlmcp_schema.hrl").

-export([parts/2, has_items/1]).

-import(erlmcp_schema_run, [leaf/3, spend/2, spent/2, inside/3, evaluated/2, fail/6]).

-doc """
Compiles those keywords of `Schema` that are for arrays. Each part of the result has the checks and
finders of one keyword, or of several. Throws a reason of `t:erlmcp_schema:reason/0` if a keyword
has an invalid value.
""".
-spec parts(Schema :: map(), erlmcp_schema_context:context()) -> [erlmcp_schema_run:part()].
parts(Schema, Context) ->
    Sizes = keywords([~"minItems", ~"maxItems"], Schema, Context),
    Others = keywords([~"uniqueItems", ~"contains"], Schema, Context),
    case items(Schema, Context) of
        [{[Check], Finders}] when Sizes =/= [] ->
            Least = erlmcp_schema_number:to_integer(maps:get(~"minItems", Schema, 0)),
            Most = erlmcp_schema_number:to_integer(maps:get(~"maxItems", Schema, infinity)),
            [{[sized(Least, Most, Check)], Finders ++ [Find || {_, [Find]} <- Sizes]} | Others];
        Items ->
            Items ++ Sizes ++ Others
    end.

keywords(Keywords, Schema, Context) ->
    [part(Keyword, Value, Schema, Context)
     || Keyword <- Keywords, #{Keyword := Value} <- [Schema]].

%% The bounds of the size and the items in one check. A missing bound is an atom, which is greater
%% than any number.
sized(Least, Most, Items) ->
    fun
        (V, Table, Budget) when length(V) >= Least, length(V) =< Most ->
            Items(V, Table, spend(length(V) bsr 6, Budget));
        (V, _, Budget) when length(V) >= 0 ->
            bnot spend(length(V) bsr 6, Budget);
        (V, Table, Budget) ->
            Items(V, Table, Budget)
    end.

-doc """
Returns `true` if a schema has a keyword for items. Such a schema has the common check of these
keywords. If its `type` is `array`, this check also refuses values that are not arrays.
""".
-spec has_items(map()) -> boolean().
has_items(Schema) ->
    lists:any(fun(Keyword) -> is_map_key(Keyword, Schema) end,
              [~"prefixItems", ~"items", ~"unevaluatedItems"]).

items(Schema, #{place := #place{dialect = Dialect}} = Context) ->
    {First, Rest} = case {erlmcp_schema_dialect:draft(Dialect), Schema} of
        {draft_2020_12, _} -> {~"prefixItems", ~"items"};
        {_, #{~"items" := List}} when is_list(List) -> {~"items", ~"additionalItems"};
        _ -> {none, ~"items"}
    end,
    Prefix = [Pair || #{First := List} <- [Schema],
                      {_, Pair} <- erlmcp_schema_context:children(First, List, list, Context)],
    Others = case {Schema, Schema} of
        {#{Rest := Sub}, _} ->
            [{Rest, erlmcp_schema_context:child([Rest], Sub, Context, Rest)}];
        {_, #{~"unevaluatedItems" := Sub}} ->
            [{~"unevaluatedItems", erlmcp_schema_context:child(
                [~"unevaluatedItems"], Sub, Context, ~"unevaluatedItems")}];
        _ ->
            []
    end,
    case has_items(Schema) of
        false -> [];
        true ->
            Only = maps:get(~"type", Schema, any) =:= ~"array",
            [{[check([Check || {Check, _} <- Prefix], Others, Schema)],
              [finder(First, [Find || {_, Find} <- Prefix], Others, Only)]}]
    end.

check(Prefix, Others, Schema) ->
    Rest = case Others of
        [{_, {Check, _}}] -> Check;
        [] -> element(1, erlmcp_schema_run:pass())
    end,
    case {Prefix, Schema} of
        {[], #{~"type" := ~"array"}} ->
            fun
                (V, Table, Budget) when is_list(V) -> each(V, Rest, Table, Budget);
                (_, _, Budget) -> bnot Budget
            end;
        {_, #{~"type" := ~"array"}} ->
            fun
                (V, Table, Budget) when is_list(V) -> each(V, Prefix, Rest, Table, Budget);
                (_, _, Budget) -> bnot Budget
            end;
        _ ->
            fun
                (V, Table, Budget) when is_list(V) -> each(V, Prefix, Rest, Table, Budget);
                (_, _, Budget) -> Budget
            end
    end.

each([Item | Items], [Check | Checks], Rest, Table, Budget) when Budget > 0 ->
    case Check(Item, Table, Budget - 1) of
        Balance when Balance >= 0 -> each(Items, Checks, Rest, Table, Balance);
        Failed -> Failed
    end;
each([], _, _, _, Budget) -> Budget;
each(Items, [], Rest, Table, Budget) -> each(Items, Rest, Table, Budget);
each(_, _, _, _, _) -> throw(budget).

each([Item | Items], Check, Table, Budget) when Budget > 0 ->
    case Check(Item, Table, Budget - 1) of
        Balance when Balance >= 0 -> each(Items, Check, Table, Balance);
        Failed -> Failed
    end;
each([], _, _, Budget) -> Budget;
each(_, _, _, _) -> throw(budget).

finder(First, Finds, Rest, Only) ->
    Last = case Rest of
        [{Keyword, {_, Find}}] -> {Keyword, Find};
        [] -> none
    end,
    fun
        (V, I, S, #run{evaluated = off} = Run) when is_list(V) ->
            first(V, 0, Finds, I, First, S, Last, spent(length(V), Run));
        (V, I, S, Run) when is_list(V) ->
            Each = fun(Before) -> first(V, 0, Finds, I, First, S, Last, Before) end,
            inside(Each, parts(length(Finds), V, Last), spent(length(V), Run));
        (V, I, S, Run) when Only ->
            fail(~"type", [~"array"], V, I, [~"type" | S], Run);
        (_, _, _, Run) ->
            Run
    end.

%% The items that these keywords evaluate.
parts(First, V, none) -> maps:from_keys(lists:seq(0, min(First, length(V)) - 1), true);
parts(_, _, _) -> all.

first([Item | Items], N, [Find | Finds], I, First, S, Last, Run) ->
    Found = Find(Item, [N | I], [integer_to_binary(N), First | S], Run),
    first(Items, N + 1, Finds, I, First, S, Last, Found);
first([_ | _] = Items, N, [], I, _, S, {Keyword, Find}, Run) ->
    rest(Items, N, Find, I, [Keyword | S], Run);
first(_, _, _, _, _, _, _, Run) ->
    Run.

rest([Item | Items], N, Find, I, S, Run) ->
    rest(Items, N + 1, Find, I, S, Find(Item, [N | I], S, Run));
rest([], _, _, _, _, Run) ->
    Run.

part(~"minItems", Value, _, Context) ->
    Limit = erlmcp_schema_context:integral({~"minItems", Value}, Context),
    Check = fun
        (V, _, Budget) when is_list(V) ->
            Length = length(V),
            case spend(Length bsr 6, Budget) of
                Balance when Length >= Limit -> Balance;
                Balance -> bnot Balance
            end;
        (_, _, Budget) ->
            Budget
    end,
    leaf(~"minItems", Check, Limit);
part(~"maxItems", Value, _, Context) ->
    Limit = erlmcp_schema_context:integral({~"maxItems", Value}, Context),
    Check = fun
        (V, _, Budget) when is_list(V) ->
            Length = length(V),
            case spend(Length bsr 6, Budget) of
                Balance when Length =< Limit -> Balance;
                Balance -> bnot Balance
            end;
        (_, _, Budget) ->
            Budget
    end,
    leaf(~"maxItems", Check, Limit);
part(~"uniqueItems", false, _, _) ->
    {[], []};
part(~"uniqueItems", true, _, _) ->
    Check = fun
        ([_, _ | _] = V, _, Budget) ->
            Balance = spend(weight(V, 0), Budget),
            %% Sorting treats 1 and 1.0 as equal, also inside of items.
            case length(lists:usort(V)) =:= length(V) of
                true -> Balance;
                false -> bnot Balance
            end;
        (_, _, Budget) ->
            Budget
    end,
    leaf(~"uniqueItems", Check, true);
part(~"contains", Sub, Schema, #{place := #place{dialect = Dialect}} = Context) ->
    {Check, _} = erlmcp_schema_context:child([~"contains"], Sub, Context, ~"contains"),
    Least = erlmcp_schema_context:integral(
        {~"minContains", maps:get(~"minContains", Schema, 1)}, Context),
    Most = case Schema of
        #{~"maxContains" := Max} ->
            erlmcp_schema_context:integral({~"maxContains", Max}, Context);
        #{} ->
            %% Greater than any number.
            infinity
    end,
    Evaluates = erlmcp_schema_dialect:draft(Dialect) =:= draft_2020_12,
    Contains = fun
        (V, Table, Budget) when is_list(V) -> contains(V, Check, Least, Most, Table, Budget);
        (_, _, Budget) -> Budget
    end,
    {[Contains], [contains_finder(Check, Least, Most, Evaluates)]};
part(Keyword, _, _, Context) ->
    erlmcp_schema_context:invalid(Keyword, Context).

contains(_, _, _, Most, _, Budget) when Most < 0 -> bnot Budget;
contains([], _, Least, _, _, Budget) when Least > 0 -> bnot Budget;
contains([], _, _, _, _, Budget) -> Budget;
contains([Item | Items], Check, Least, Most, Table, Budget) when Budget > 0 ->
    case Check(Item, Table, Budget - 1) of
        Balance when Balance >= 0, Least =< 1, Most =:= infinity -> Balance;
        Balance when Balance >= 0 -> contains(Items, Check, Least - 1, less(Most), Table, Balance);
        Failed -> contains(Items, Check, Least, Most, Table, bnot Failed)
    end;
contains(_, _, _, _, _, _) -> throw(budget).

less(infinity) -> infinity;
less(N) -> N - 1.

contains_finder(Check, Least, Most, Evaluates) ->
    fun
        (V, I, S, Run0) when is_list(V) ->
            {Found, Run} = lists:foldl(fun({N, Item}, {Sum, Before}) ->
                case erlmcp_schema_run:passes(Check, Item, spent(1, Before)) of
                    {true, Next} -> {[N | Sum], Next};
                    {false, Next} -> {Sum, Next}
                end
            end, {[], Run0}, lists:enumerate(0, V)),
            Failed = case length(Found) of
                Few when Few < Least, Least =:= 1 ->
                    fail(~"contains", true, V, I, [~"contains" | S], Run);
                Few when Few < Least ->
                    fail(~"minContains", {Least, Few}, V, I, [~"minContains" | S], Run);
                Many when Many > Most ->
                    fail(~"maxContains", {Most, Many}, V, I, [~"maxContains" | S], Run);
                _ ->
                    Run
            end,
            case Evaluates of
                true -> evaluated(#{N => true || N <- Found}, Failed);
                false -> Failed
            end;
        (_, _, _, Run) ->
            Run
    end.

%% The cost, in steps, of reading a whole term.
weight([Item | Items], N) when is_list(Item); is_map(Item) -> weight(Items, weight(Item, N));
weight([_ | Items], N) -> weight(Items, N + 1);
weight(#{} = Map, N) -> weight(maps:values(Map), N + map_size(Map));
weight(_, N) -> N + 1.
