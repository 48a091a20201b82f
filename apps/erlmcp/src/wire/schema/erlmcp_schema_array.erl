-module(erlmcp_schema_array).
-moduledoc """
The keywords that look at an array's items. The first ones (`prefixItems`, and before 2020-12 a list
in `items`) and the rest are one check. Pure.
""".

-include("erlmcp_schema.hrl").

-export([parts/2, has_items/1]).

-import(erlmcp_schema_run, [leaf/3, spend/2, spent/2, down/3, under/2, fail/3]).
-import(erlmcp_schema_text, [count/2]).

-doc "The parts of a schema that these keywords are.".
-spec parts(map(), erlmcp_schema_compile:context()) -> [erlmcp_schema_run:part()].
parts(Schema, Context) ->
    items(Schema, Context) ++
        [part(Keyword, Value, Schema, Context)
         || Keyword <- [~"minItems", ~"maxItems", ~"uniqueItems", ~"contains"],
            #{Keyword := Value} <- [Schema]].

-doc "Whether the items have a check. It refuses all but arrays if `type` does.".
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
                      {_, Pair} <- erlmcp_schema_compile:children(First, List, list, Context)],
    Others = case {Schema, Schema} of
        {#{Rest := Sub}, _} ->
            [{Rest, erlmcp_schema_compile:child([Rest], Sub, Context, Rest)}];
        {_, #{~"unevaluatedItems" := Sub}} ->
            [{~"unevaluatedItems", erlmcp_schema_compile:child(
                [~"unevaluatedItems"], Sub, Context, ~"unevaluatedItems")}];
        _ ->
            []
    end,
    case has_items(Schema) of
        false -> [];
        true -> [{[check([Check || {Check, _} <- Prefix], Others, Schema)],
               [first(First, [Find || {_, Find} <- Prefix]),
                rest(length(Prefix), [{Keyword, Find} || {Keyword, {_, Find}} <- Others])]}]
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
        Left when Left >= 0 -> each(Items, Checks, Rest, Table, Left);
        Failed -> Failed
    end;
each([], _, _, _, Budget) -> Budget;
each(Items, [], Rest, Table, Budget) -> each(Items, Rest, Table, Budget);
each(_, _, _, _, _) -> throw(budget).

each([Item | Items], Check, Table, Budget) when Budget > 0 ->
    case Check(Item, Table, Budget - 1) of
        Left when Left >= 0 -> each(Items, Check, Table, Left);
        Failed -> Failed
    end;
each([], _, _, Budget) -> Budget;
each(_, _, _, _) -> throw(budget).

first(Keyword, Finds) ->
    fun
        (V, At, Sum) when is_list(V) ->
            Pairs = lists:zip(lists:sublist(V, length(Finds)),
                              lists:sublist(Finds, length(V))),
            lists:foldl(fun({N, {Item, Find}}, {Evaluated, Run}) ->
                {_, Found} =
                    Find(Item, down(N, [Keyword, integer_to_binary(N)], At), spent(1, Run)),
                {with(N, Evaluated), Found}
            end, Sum, lists:enumerate(0, Pairs));
        (_, _, Sum) ->
            Sum
    end.

rest(_, []) ->
    fun(_, _, Sum) -> Sum end;
rest(Skipped, [{Keyword, Find}]) ->
    fun
        (V, At, {_, Run}) when is_list(V) ->
            Left = [Item || {N, _} = Item <- lists:enumerate(0, V), N >= Skipped],
            {all, lists:foldl(fun({N, Item}, Sum) ->
                {_, Found} = Find(Item, down(N, [Keyword], At), spent(1, Sum)),
                Found
            end, Run, Left)};
        (_, _, Sum) ->
            Sum
    end.

with(_, all) -> all;
with(N, Evaluated) -> Evaluated#{N => true}.

part(~"minItems", Value, _, Context) ->
    Limit = erlmcp_schema_value:integral({~"minItems", Value}, Context),
    Check = fun
        (V, _, Budget) when is_list(V) ->
            Length = length(V),
            case spend(Length bsr 6, Budget) of
                Left when Length >= Limit -> Left;
                Left -> bnot Left
            end;
        (_, _, Budget) ->
            Budget
    end,
    leaf(~"minItems", Check, fun(V) ->
        [~"must have at least ", count(Limit, ~"item"), ~", not ", integer_to_binary(length(V))]
    end);
part(~"maxItems", Value, _, Context) ->
    Limit = erlmcp_schema_value:integral({~"maxItems", Value}, Context),
    Check = fun
        (V, _, Budget) when is_list(V) ->
            Length = length(V),
            case spend(Length bsr 6, Budget) of
                Left when Length =< Limit -> Left;
                Left -> bnot Left
            end;
        (_, _, Budget) ->
            Budget
    end,
    leaf(~"maxItems", Check, fun(V) ->
        [~"must have at most ", count(Limit, ~"item"), ~", not ", integer_to_binary(length(V))]
    end);
part(~"uniqueItems", false, _, _) ->
    {[], []};
part(~"uniqueItems", true, _, _) ->
    Check = fun
        ([_, _ | _] = V, _, Budget) ->
            Left = spend(weight(V, 0), Budget),
            %% Sorting holds 1 and 1.0 for equal, also inside of items.
            case length(lists:usort(V)) =:= length(V) of
                true -> Left;
                false -> bnot Left
            end;
        (_, _, Budget) ->
            Budget
    end,
    leaf(~"uniqueItems", Check, fun(V) ->
        {First, Second} = same(lists:sort([{Item, N} || {N, Item} <- lists:enumerate(0, V)])),
        [~"must not have an item twice, as its items ", integer_to_binary(First), ~" and ",
         integer_to_binary(Second), ~" are"]
    end);
part(~"contains", Sub, Schema, #{place := #place{dialect = Dialect}} = Context) ->
    {Check, _} = erlmcp_schema_compile:child([~"contains"], Sub, Context, ~"contains"),
    Least = erlmcp_schema_value:integral(
        {~"minContains", maps:get(~"minContains", Schema, 1)}, Context),
    Most = case Schema of
        #{~"maxContains" := Max} ->
            erlmcp_schema_value:integral({~"maxContains", Max}, Context);
        #{} ->
            %% More than any number.
            infinity
    end,
    Evaluates = erlmcp_schema_dialect:draft(Dialect) =:= draft_2020_12,
    Contains = fun
        (V, Table, Budget) when is_list(V) -> contains(V, Check, Least, Most, Table, Budget);
        (_, _, Budget) -> Budget
    end,
    {[Contains], [contains_finder(Check, Least, Most, Evaluates)]};
part(Keyword, _, _, Context) ->
    erlmcp_schema_compile:invalid(Keyword, Context).

contains(_, _, _, Most, _, Budget) when Most < 0 -> bnot Budget;
contains([], _, Least, _, _, Budget) when Least > 0 -> bnot Budget;
contains([], _, _, _, _, Budget) -> Budget;
contains([Item | Items], Check, Least, Most, Table, Budget) when Budget > 0 ->
    case Check(Item, Table, Budget - 1) of
        Left when Left >= 0, Least =< 1, Most =:= infinity -> Left;
        Left when Left >= 0 -> contains(Items, Check, Least - 1, less(Most), Table, Left);
        Failed -> contains(Items, Check, Least, Most, Table, bnot Failed)
    end;
contains(_, _, _, _, _, _) -> throw(budget).

less(infinity) -> infinity;
less(N) -> N - 1.

contains_finder(Check, Least, Most, Evaluates) ->
    fun
        (V, At, {Evaluated, Run0}) when is_list(V) ->
            {Found, Run} = lists:foldl(fun({N, Item}, {Sum, Before}) ->
                case erlmcp_schema_run:passes(Check, Item, spent(1, Before)) of
                    {true, Left} -> {[N | Sum], Left};
                    {false, Left} -> {Sum, Left}
                end
            end, {[], Run0}, lists:enumerate(0, V)),
            Count = length(Found),
            Failed = if
                Count < Least, Least =:= 1 ->
                    fail(under([~"contains"], At), fun() ->
                        ~"must have an item that matches the schema in contains"
                    end, Run);
                Count < Least ->
                    Few = fun() -> few(~"at least ", Least, Count) end,
                    fail(under([~"minContains"], At), Few, Run);
                Count > Most ->
                    Many = fun() -> few(~"at most ", Most, Count) end,
                    fail(under([~"maxContains"], At), Many, Run);
                true ->
                    Run
            end,
            case Evaluates of
                true -> {erlmcp_schema_run:merge(Evaluated, #{N => true || N <- Found}), Failed};
                false -> {Evaluated, Failed}
            end;
        (_, _, Sum) ->
            Sum
    end.

few(Text, Limit, Count) ->
    [~"must have ", Text, count(Limit, ~"item"),
     ~" that match the schema in contains, not ", integer_to_binary(Count)].

%% What looking at all of a term costs.
weight([Item | Items], N) when is_list(Item); is_map(Item) -> weight(Items, weight(Item, N));
weight([_ | Items], N) -> weight(Items, N + 1);
weight(#{} = Map, N) -> weight(maps:values(Map), N + map_size(Map));
weight(_, N) -> N + 1.

same([{A, First}, {B, Second} | _]) when A == B -> {First, Second};
same([_ | Rest]) -> same(Rest).
