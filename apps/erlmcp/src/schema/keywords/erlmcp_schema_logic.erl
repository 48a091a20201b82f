-module(erlmcp_schema_logic).
-moduledoc """
The keywords that apply other schemas to the same value: `allOf`, `anyOf`, `oneOf`, `not`, `if`.
Pure.

Internal.
""".

-include("../erlmcp_schema.hrl").

-export([parts/2]).

-import(erlmcp_schema_run, [leaf/3, spend/2, spent/2, fail/6, branch/1, join/2]).

-doc """
Compiles the keywords `allOf`, `anyOf`, `oneOf` and `not` of `Schema`, and `if` with `then` and
`else`. Each part of the result has the check and the finder of one of these five. Throws a reason
of `t:erlmcp_schema:reason/0` if a keyword has an invalid value.
""".
-spec parts(Schema :: map(), erlmcp_schema_context:context()) -> [erlmcp_schema_run:part()].
parts(Schema, Context) ->
    [part(Keyword, Value, Schema, Context)
     || Keyword <- [~"allOf", ~"anyOf", ~"oneOf", ~"not", ~"if"],
        #{Keyword := Value} <- [Schema]].

part(~"allOf", Of, _, Context) ->
    Pairs = erlmcp_schema_context:children(~"allOf", Of, list, Context),
    Check = erlmcp_schema_run:all([Check || {_, {Check, _}} <- Pairs]),
    Finds = finds(Pairs),
    {[charged(length(Pairs), Check)],
     [fun(V, I, S, Run) ->
          lists:foldl(fun({Token, Find}, Sum) ->
              Find(V, I, [Token, ~"allOf" | S], spent(1, Sum))
          end, Run, Finds)
      end]};
part(~"anyOf", Of, _, Context) ->
    choice(~"anyOf", Of, Context);
part(~"oneOf", Of, _, Context) ->
    choice(~"oneOf", Of, Context);
part(~"not", Sub, _, Context) ->
    {Refused, _} = erlmcp_schema_context:child([~"not"], Sub, Context, ~"not"),
    leaf(~"not", fun(V, Table, Budget) -> bnot Refused(V, Table, spend(1, Budget)) end, true);
part(~"if", Sub, Schema, Context) ->
    {If, FindIf} = erlmcp_schema_context:child([~"if"], Sub, Context, ~"if"),
    {Then, FindThen} = branch_of(~"then", Schema, Context),
    {Else, FindElse} = branch_of(~"else", Schema, Context),
    {[conditional(If, Then, Else)],
     [fun(V, I, S, Run) ->
          #run{errors = Errors} = Tried = FindIf(V, I, [~"if" | S], branch(spent(1, Run))),
          Next = spent(1, join(Run, Tried)),
          case Errors of
              [] -> FindThen(V, I, [~"then" | S], Next);
              _ -> FindElse(V, I, [~"else" | S], Next)
          end
      end]}.

branch_of(Keyword, Schema, Context) ->
    case Schema of
        #{Keyword := Sub} -> erlmcp_schema_context:child([Keyword], Sub, Context, Keyword);
        #{} -> erlmcp_schema_run:pass()
    end.

finds(Pairs) ->
    [{Token, Find} || {Token, {_, Find}} <- Pairs].

%% Each schema that may be applied costs a step.
charged(Cost, Check) ->
    fun
        (V, Table, Budget) when Cost =< Budget -> Check(V, Table, Budget - Cost);
        (_, _, _) -> throw(budget)
    end.

%% The part for `anyOf` or `oneOf`.
choice(Keyword, Of, #{place := Place, index := Index} = Context) ->
    Pairs = erlmcp_schema_context:children(Keyword, Of, list, Context),
    Checks = [Check || {_, {Check, _}} <- Pairs],
    Finds = finds(Pairs),
    Places = [erlmcp_schema_place:child([Keyword, Token], Sub, Place, Index)
              || {{Token, _}, Sub} <- lists:zip(Pairs, Of)],
    Cost = length(Checks),
    case {common_tag(Places, Index), Keyword} of
        {{Name, Numbers}, _} ->
            {[tagged(Name, #{Tag => lists:nth(N + 1, Checks) || Tag := N <- Numbers}, Cost)],
             [find_tagged(Keyword, Name, Numbers, list_to_tuple(Finds))]};
        {none, ~"anyOf"} ->
            {[charged(Cost, fun(V, Table, Budget) -> any(Checks, V, Table, Budget) end)],
             [find_choice(Keyword, Finds)]};
        {none, ~"oneOf"} ->
            {[charged(Cost, fun(V, Table, Budget) -> one(Checks, V, Table, Budget) end)],
             [find_choice(Keyword, Finds)]}
    end.

%% Finds a property that tells the schemas apart: each schema requires it and allows another
%% constant, so a value passes at most one schema. In practice most `oneOf` and `anyOf` have such a
%% property. Returns the property, and for each constant the index of its schema, counted from 0.
common_tag([_, _ | _] = Places, Index) ->
    Tags = [tags(followed(Place, Index)) || Place <- Places],
    first_tag(lists:sort(maps:keys(hd(Tags))), Tags);
common_tag(_, _) ->
    none.

first_tag([Name | Names], Tags) ->
    Values = [{Value, N} || {N, #{Name := Value}} <- lists:enumerate(0, Tags)],
    case maps:from_list(Values) of
        Table when map_size(Table) =:= length(Tags) -> {Name, Table};
        _ -> first_tag(Names, Tags)
    end;
first_tag([], _) ->
    none.

%% A value that passes the referring schema also passes the target.
followed(#place{schema = #{~"$ref" := _}, dialect = Dialect} = Place, Index) ->
    case erlmcp_schema_dialect:has(~"$ref", Dialect) of
        true -> erlmcp_schema_place:reference(~"$ref", Place, Index);
        false -> Place
    end;
followed(Place, _) ->
    Place.

%% The required properties with a constant, each with its constant, of a schema that only objects
%% pass.
tags(#place{schema = #{} = Whole, dialect = Dialect}) ->
    Keywords = maps:filter(fun(Keyword, _) -> erlmcp_schema_dialect:has(Keyword, Dialect) end,
                           erlmcp_schema_dialect:effective(Whole, Dialect)),
    HasConst = erlmcp_schema_dialect:has(~"const", Dialect),
    case Keywords of
        #{~"type" := ~"object", ~"properties" := #{} = Properties, ~"required" := Required}
                when is_list(Required), HasConst ->
            #{Name => Value || Name <- Required,
                               #{Name := #{~"const" := Value} = Sub} <- [Properties],
                               is_binary(Value), not is_map_key(~"$ref", Sub),
                               not is_map_key(~"$id", Sub)};
        #{} ->
            #{}
    end;
tags(_) ->
    #{}.

tagged(Name, ByTag, Cost) ->
    fun
        (#{Name := Tag} = V, Table, Budget) when Cost =< Budget, is_map_key(Tag, ByTag) ->
            (map_get(Tag, ByTag))(V, Table, Budget - Cost);
        (_, _, Budget) when Cost =< Budget ->
            bnot (Budget - Cost);
        (_, _, _) ->
            throw(budget)
    end.

any([Check | Checks], V, Table, Budget) ->
    case Check(V, Table, Budget) of
        Balance when Balance >= 0 -> Balance;
        Failed -> any(Checks, V, Table, bnot Failed)
    end;
any([], _, _, Budget) ->
    bnot Budget.

one([Check | Checks], V, Table, Budget) ->
    case Check(V, Table, Budget) of
        Balance when Balance >= 0 -> no(Checks, V, Table, Balance);
        Failed -> one(Checks, V, Table, bnot Failed)
    end;
one([], _, _, Budget) ->
    bnot Budget.

no([Check | Checks], V, Table, Budget) ->
    case Check(V, Table, Budget) of
        Balance when Balance >= 0 -> bnot Balance;
        Failed -> no(Checks, V, Table, bnot Failed)
    end;
no([], _, _, Budget) ->
    Budget.

conditional(If, Then, Else) ->
    fun(V, Table, Budget) ->
        case If(V, Table, spend(2, Budget)) of
            Balance when Balance >= 0 -> Then(V, Table, Balance);
            Failed -> Else(V, Table, bnot Failed)
        end
    end.

%% The value of the property selects the schema that was meant. The value fails the other schemas,
%% which require other constants.
find_tagged(Keyword, Name, Numbers, Finds) ->
    Count = tuple_size(Finds),
    fun
        (#{Name := Tag} = V, I, S, Run) when is_map_key(Tag, Numbers) ->
            {Token, Find} = element(map_get(Tag, Numbers) + 1, Finds),
            case Find(V, I, [Token, Keyword | S], branch(spent(Count, Run))) of
                #run{errors = []} = Tried ->
                    join(Run, Tried);
                #run{errors = Errors} = Tried ->
                    fail(Keyword, {Count, Errors}, V, I, [Keyword | S], join(Run, Tried))
            end;
        (V, I, S, Run) ->
            choose(Keyword, tuple_to_list(Finds), V, I, [Keyword | S], Run)
    end.

find_choice(Keyword, Finds) ->
    fun(V, I, S, Run) -> choose(Keyword, Finds, V, I, [Keyword | S], Run) end.

choose(Keyword, Finds, V, I, S, Run) ->
    case branches(Finds, V, I, S, Run, [], []) of
        {[], Errors, Next} ->
            fail(Keyword, {length(Errors), Errors}, V, I, S, Next);
        {[_, _ | _] = Passed, _, Next} when Keyword =:= ~"oneOf" ->
            fail(Keyword, {passed, lists:reverse(Passed)}, V, I, S, Next);
        {_, _, Next} ->
            Next
    end.

%% The schemas that the value passes, and the first error of each schema that it fails.
branches([{Token, Find} | Finds], V, I, S, Run, Passed, Failed) ->
    case Find(V, I, [Token | S], branch(spent(1, Run))) of
        #run{errors = []} = Tried ->
            branches(Finds, V, I, S, join(Run, Tried), [Token | Passed], Failed);
        #run{errors = [Error]} = Tried ->
            branches(Finds, V, I, S, join(Run, Tried), Passed, [Error | Failed])
    end;
branches([], _, _, _, Run, Passed, Failed) ->
    {Passed, lists:reverse(Failed), Run}.
