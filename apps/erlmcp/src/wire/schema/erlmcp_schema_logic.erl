-module(erlmcp_schema_logic).
-moduledoc """
The keywords that apply other schemas to the same value: `allOf`, `anyOf`, `oneOf`, `not`, `if`.
Pure.
""".

-include("erlmcp_schema.hrl").

-export([parts/2]).

-import(erlmcp_schema_run, [leaf/3, spend/2, spent/2, under/2, fail/3, branch/1, join/2, merge/2]).
-import(erlmcp_schema_text, [value/1]).

-doc "The parts of a schema that these keywords are.".
-spec parts(map(), erlmcp_schema_compile:context()) -> [erlmcp_schema_run:part()].
parts(Schema, Context) ->
    [part(Keyword, Value, Schema, Context)
     || Keyword <- [~"allOf", ~"anyOf", ~"oneOf", ~"not", ~"if"],
        #{Keyword := Value} <- [Schema]].

part(~"allOf", Of, _, Context) ->
    Pairs = erlmcp_schema_compile:children(~"allOf", Of, list, Context),
    Check = erlmcp_schema_run:all([Check || {_, {Check, _}} <- Pairs]),
    Finds = finds(Pairs),
    {[charged(length(Pairs), Check)],
     [fun(V, At, Sum) ->
          lists:foldl(fun({Token, Find}, {Evaluated, Run}) ->
              {More, Found} = Find(V, under([~"allOf", Token], At), spent(1, Run)),
              {merge(Evaluated, More), Found}
          end, Sum, Finds)
      end]};
part(~"anyOf", Of, _, Context) ->
    Pairs = erlmcp_schema_compile:children(~"anyOf", Of, list, Context),
    Finds = finds(Pairs),
    {[choice(~"anyOf", Of, Pairs, Context)],
     [fun(V, At, {Evaluated, Run}) ->
          case branches(~"anyOf", Finds, V, At, Run) of
              {[], Failed, Left} ->
                  Text = fun() -> none(~"anyOf", V, Failed) end,
                  {Evaluated, fail(under([~"anyOf"], At), Text, Left)};
              {Passed, _, Left} ->
                  {merged(Passed, Evaluated), Left}
          end
      end]};
part(~"oneOf", Of, _, Context) ->
    Pairs = erlmcp_schema_compile:children(~"oneOf", Of, list, Context),
    Finds = finds(Pairs),
    {[choice(~"oneOf", Of, Pairs, Context)],
     [fun(V, At, {Evaluated, Run}) ->
          case branches(~"oneOf", Finds, V, At, Run) of
              {[], Failed, Left} ->
                  Text = fun() -> none(~"oneOf", V, Failed) end,
                  {Evaluated, fail(under([~"oneOf"], At), Text, Left)};
              {[_] = Passed, _, Left} ->
                  {merged(Passed, Evaluated), Left};
              {Passed, _, Left} ->
                  Text = fun() -> several(V, Passed) end,
                  {Evaluated, fail(under([~"oneOf"], At), Text, Left)}
          end
      end]};
part(~"not", Sub, _, Context) ->
    {Refused, _} = erlmcp_schema_compile:child([~"not"], Sub, Context, ~"not"),
    Check = fun(V, Table, Budget) -> bnot Refused(V, Table, spend(1, Budget)) end,
    leaf(~"not", Check, fun(V) ->
        [~"must not match the schema in not, and is ", value(V)]
    end);
part(~"if", Sub, Schema, Context) ->
    {If, FindIf} = erlmcp_schema_compile:child([~"if"], Sub, Context, ~"if"),
    {Then, FindThen} = branch_of(~"then", Schema, Context),
    {Else, FindElse} = branch_of(~"else", Schema, Context),
    {[conditional(If, Then, Else)],
     [fun(V, At, {Evaluated, Run}) ->
          {More, #run{errors = Errors} = Tried} =
              FindIf(V, under([~"if"], At), branch(spent(1, Run))),
          {Keyword, Find, Before} = case Errors of
              [] -> {~"then", FindThen, merge(Evaluated, More)};
              _ -> {~"else", FindElse, Evaluated}
          end,
          {Also, Found} = Find(V, under([Keyword], At), spent(1, join(Run, Tried))),
          {merge(Before, Also), Found}
      end]}.

branch_of(Keyword, Schema, Context) ->
    case Schema of
        #{Keyword := Sub} -> erlmcp_schema_compile:child([Keyword], Sub, Context, Keyword);
        #{} -> erlmcp_schema_run:pass()
    end.

finds(Pairs) ->
    [{Token, Find} || {Token, {_, Find}} <- Pairs].

%% Each of the schemas that may be applied costs a step.
charged(Cost, Check) ->
    fun
        (V, Table, Budget) when Cost =< Budget -> Check(V, Table, Budget - Cost);
        (_, _, _) -> throw(budget)
    end.

choice(Keyword, Of, Pairs, #{place := Place, index := Index}) ->
    Checks = [Check || {_, {Check, _}} <- Pairs],
    Places = [erlmcp_schema_place:child([Keyword, Token], Sub, Place, Index)
              || {{Token, _}, Sub} <- lists:zip(Pairs, Of)],
    Cost = length(Checks),
    case {erlmcp_schema_tag:find(Places, Index), Keyword} of
        {{Name, Numbers}, _} ->
            tagged(Name, #{Tag => lists:nth(N + 1, Checks) || Tag := N <- Numbers}, Cost);
        {none, ~"anyOf"} ->
            charged(Cost, fun(V, Table, Budget) -> any(Checks, V, Table, Budget) end);
        {none, ~"oneOf"} ->
            charged(Cost, fun(V, Table, Budget) -> one(Checks, V, Table, Budget) end)
    end.

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
        Left when Left >= 0 -> Left;
        Failed -> any(Checks, V, Table, bnot Failed)
    end;
any([], _, _, Budget) ->
    bnot Budget.

one([Check | Checks], V, Table, Budget) ->
    case Check(V, Table, Budget) of
        Left when Left >= 0 -> no(Checks, V, Table, Left);
        Failed -> one(Checks, V, Table, bnot Failed)
    end;
one([], _, _, Budget) ->
    bnot Budget.

no([Check | Checks], V, Table, Budget) ->
    case Check(V, Table, Budget) of
        Left when Left >= 0 -> bnot Left;
        Failed -> no(Checks, V, Table, bnot Failed)
    end;
no([], _, _, Budget) ->
    Budget.

conditional(If, Then, Else) ->
    fun(V, Table, Budget) ->
        case If(V, Table, spend(2, Budget)) of
            Left when Left >= 0 -> Then(V, Table, Left);
            Failed -> Else(V, Table, bnot Failed)
        end
    end.

%% Which schemas the value passes, with what they evaluated, and the errors that the others found.
branches(Keyword, Finds, V, At, Run0) ->
    {Tried, Run} = lists:mapfoldl(fun({Token, Find}, Before) ->
        {Evaluated, #run{errors = Errors} = After} =
            Find(V, under([Keyword, Token], At), branch(spent(1, Before))),
        {{Token, Evaluated, lists:reverse(Errors)}, join(Before, After)}
    end, Run0, Finds),
    {Passed, Failed} = lists:partition(fun({_, _, Errors}) -> Errors =:= [] end, Tried),
    {Passed, [Errors || {_, _, Errors} <- Failed], Run}.

merged(Passed, Evaluated0) ->
    lists:foldl(fun({_, More, _}, Evaluated) -> merge(Evaluated, More) end, Evaluated0, Passed).

%% The schema that was meant is most likely the one that goes wrong furthest inside of the value.
none(Keyword, V, []) ->
    [~"must match a schema in ", Keyword, ~", which has none, and is ", value(V)];
none(Keyword, _, Failed) ->
    Errors = [Error || [Error | _] <- Failed],
    {{Instance, _}, Text} = lists:foldl(fun({At, _} = Error, {Best, _} = Nearest) ->
        case depth(At) > depth(Best) of
            true -> Error;
            false -> Nearest
        end
    end, hd(Errors), Errors),
    Field = erlmcp_schema_text:field(erlmcp_schema_place:pointer(Instance)),
    [~"must match a schema in ", Keyword, ~"; by the nearest of ",
     integer_to_binary(length(Failed)), ~", ", Field, $\s, Text()].

depth({Instance, _}) -> length(Instance).

several(V, Passed) ->
    [~"must match exactly one schema in oneOf, but ", value(V), ~" matches ",
     erlmcp_schema_text:list([Token || {Token, _, _} <- Passed], ~"and")].
