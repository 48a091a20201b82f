-module(erlmcp_schema_value).
-moduledoc """
The keywords for a single value: its type, the allowed values, and the form of a number or a string.
Pure.

Internal.
""".

-include("../erlmcp_schema.hrl").

-export([parts/2]).
-export([characters/1]).

-import(erlmcp_schema_run, [leaf/3, spend/2]).

-doc """
Compiles those keywords of `Schema` that are for a single value. The only part of the result has the
checks and finders of all of them. Throws a reason of `t:erlmcp_schema:reason/0` if a keyword has an
invalid value.
""".
-spec parts(Schema :: map(), erlmcp_schema_context:context()) -> [erlmcp_schema_run:part()].
parts(Schema, Context) ->
    Parts = [{Keyword, part(Keyword, Value, Context)}
             || Keyword <- [~"type", ~"enum", ~"const", ~"minimum", ~"exclusiveMinimum",
                            ~"maximum", ~"exclusiveMaximum", ~"multipleOf", ~"minLength",
                            ~"maxLength", ~"pattern", ~"format"],
                #{Keyword := Value} <- [Schema]],
    {Fused, Covered} = fused(Schema),
    Uncovered = [Part || {Keyword, Part} <- Parts, not lists:member(Keyword, Covered)],
    Checks = Fused ++ lists:append([Of || {Of, _} <- Uncovered]),
    case {Fused, Covered} of
        {[], [~"type"]} -> [{Checks, finders(Uncovered, Checks, Schema)}];
        _ -> [{Checks, finders(Parts, Checks, Schema)}]
    end.

%% Most values are valid, so one check for all keywords comes first.
finders(Parts, Checks, Schema) ->
    case {lists:append([Finders || {_, {_, Finders}} <- Parts]), Schema} of
        {[], _} ->
            [];
        {Finders, #{~"pattern" := Text}} ->
            [erlmcp_schema_pattern:halting(~"pattern", Text, finder(Finders, Checks))];
        {Finders, _} ->
            [finder(Finders, Checks)]
    end.

finder([Finder], _) -> Finder;
finder(Finders, Checks) ->
    unless_passed(erlmcp_schema_run:all(Checks), erlmcp_schema_run:in_turn(Finders)).

unless_passed(Check, Find) ->
    fun(V, I, S, #run{table = Table, budget = Budget} = Run) ->
        case Check(V, Table, Budget) of
            Budget -> Run;
            Balance when Balance >= 0 -> Run#run{budget = Balance};
            Failed -> Find(V, I, S, Run#run{budget = bnot Failed})
        end
    end.

%% One check for the type and the keywords that most often stand next to it.
fused(#{~"type" := ~"object"} = Schema) ->
    %% The check of the members also refuses values that are not objects.
    {[], [~"type" || erlmcp_schema_object:has_check(Schema)]};
fused(#{~"type" := ~"array"} = Schema) ->
    {[], [~"type" || erlmcp_schema_array:has_items(Schema)]};
fused(#{~"type" := ~"string"} = Schema) when is_map_key(~"minLength", Schema);
                                             is_map_key(~"maxLength", Schema) ->
    Least = erlmcp_schema_number:to_integer(maps:get(~"minLength", Schema, 0)),
    Most = erlmcp_schema_number:to_integer(maps:get(~"maxLength", Schema, infinity)),
    {[fun
          %% A character has one to four bytes.
          (V, _, Budget) when is_binary(V), byte_size(V) >= 4 * Least, byte_size(V) =< Most ->
              Budget;
          (V, _, Budget) when is_binary(V) ->
              Balance = spend(byte_size(V) bsr 6, Budget),
              case characters(V, 0) of
                  N when N >= Least, N =< Most -> Balance;
                  _ -> bnot Balance
              end;
          (_, _, Budget) ->
              bnot Budget
      end],
     [~"type", ~"minLength", ~"maxLength"]};
fused(#{~"type" := ~"string", ~"pattern" := Text}) ->
    case erlmcp_schema_shape:compile(Text) of
        {ok, Shape} ->
            {[fun
                  (V, _, Budget) when is_binary(V) ->
                      Balance = spend(byte_size(V) bsr 5, Budget),
                      case erlmcp_schema_shape:match(V, Shape) of
                          true -> Balance;
                          false -> bnot Balance
                      end;
                  (_, _, Budget) ->
                      bnot Budget
              end],
             [~"type", ~"pattern"]};
        error ->
            {[], []}
    end;
fused(#{~"type" := Type} = Schema)
        when Type =:= ~"integer" orelse Type =:= ~"number",
             is_map_key(~"minimum", Schema) orelse is_map_key(~"maximum", Schema) ->
    Least = maps:get(~"minimum", Schema, none),
    Most = maps:get(~"maximum", Schema, none),
    Integral = Type =:= ~"integer",
    %% A missing bound is an atom, which is greater than any number.
    {[fun
          (V, _, Budget) when is_integer(V), V =< Most, Least =:= none orelse V >= Least ->
              Budget;
          (V, _, Budget) when is_float(V), V =< Most, Least =:= none orelse V >= Least,
                              not Integral orelse trunc(V) == V ->
              Budget;
          (_, _, Budget) ->
              bnot Budget
      end],
     [~"type", ~"minimum", ~"maximum"]};
fused(_) ->
    {[], []}.

part(~"type", Types, Context) ->
    Names = case Types of
        [_ | _] -> Types;
        _ -> [Types]
    end,
    Checks = [type(Name, Context) || Name <- Names],
    leaf(~"type", any(Checks), Names);
part(~"enum", Values, _) when is_list(Values) ->
    leaf(~"enum", enum(Values), Values);
part(~"const", Value, _) ->
    leaf(~"const", enum([Value]), Value);
part(~"minimum", Limit, _) when is_number(Limit) ->
    Check = fun
        (V, _, Budget) when is_number(V), V < Limit -> bnot Budget;
        (_, _, Budget) -> Budget
    end,
    leaf(~"minimum", Check, Limit);
part(~"maximum", Limit, _) when is_number(Limit) ->
    Check = fun
        (V, _, Budget) when is_number(V), V > Limit -> bnot Budget;
        (_, _, Budget) -> Budget
    end,
    leaf(~"maximum", Check, Limit);
part(~"exclusiveMinimum", Limit, _) when is_number(Limit) ->
    Check = fun
        (V, _, Budget) when is_number(V), V =< Limit -> bnot Budget;
        (_, _, Budget) -> Budget
    end,
    leaf(~"exclusiveMinimum", Check, Limit);
part(~"exclusiveMaximum", Limit, _) when is_number(Limit) ->
    Check = fun
        (V, _, Budget) when is_number(V), V >= Limit -> bnot Budget;
        (_, _, Budget) -> Budget
    end,
    leaf(~"exclusiveMaximum", Check, Limit);
part(~"multipleOf", Of, _) when is_number(Of), Of > 0 ->
    Step = erlmcp_schema_number:to_integer(Of),
    Check = fun
        (V, _, Budget) when is_integer(V), is_integer(Step) ->
            case V rem Step of
                0 -> Budget;
                _ -> bnot Budget
            end;
        (V, _, Budget) when is_number(V) ->
            case erlmcp_schema_number:is_multiple(V, Step) of
                true -> Budget;
                false -> bnot Budget
            end;
        (_, _, Budget) ->
            Budget
    end,
    leaf(~"multipleOf", Check, Of);
part(~"minLength", Value, Context) ->
    Limit = erlmcp_schema_context:integral({~"minLength", Value}, Context),
    Check = fun
        %% A character has one to four bytes.
        (V, _, Budget) when is_binary(V), byte_size(V) < 4 * Limit ->
            Balance = spend(byte_size(V) bsr 6, Budget),
            case byte_size(V) >= Limit andalso characters(V, 0) >= Limit of
                true -> Balance;
                false -> bnot Balance
            end;
        (_, _, Budget) ->
            Budget
    end,
    leaf(~"minLength", Check, Limit);
part(~"maxLength", Value, Context) ->
    Limit = erlmcp_schema_context:integral({~"maxLength", Value}, Context),
    Check = fun
        (V, _, Budget) when is_binary(V), byte_size(V) > Limit ->
            Balance = spend(byte_size(V) bsr 6, Budget),
            case characters(V, 0) =< Limit of
                true -> Balance;
                false -> bnot Balance
            end;
        (_, _, Budget) ->
            Budget
    end,
    leaf(~"maxLength", Check, Limit);
part(~"pattern", Text, Context) when is_binary(Text) ->
    Pattern = erlmcp_schema_pattern:compile(Text, [~"pattern"], Context),
    Check = fun
        (V, _, Budget) when is_binary(V) -> erlmcp_schema_pattern:match(V, Pattern, Budget);
        (_, _, Budget) -> Budget
    end,
    leaf(~"pattern", Check, Text);
part(~"format", Name, Context) when is_binary(Name) ->
    case erlmcp_schema_context:asserts_formats(Context) of
        true -> format(Name);
        false -> {[], []}
    end;
part(Keyword, _, Context) ->
    erlmcp_schema_context:invalid(Keyword, Context).

format(Name) ->
    case erlmcp_schema_format:check(Name) of
        unknown ->
            {[], []};
        Is ->
            Check = fun
                (V, _, Budget) when is_binary(V) ->
                    Balance = spend(byte_size(V) bsr 5, Budget),
                    case Is(V) of
                        true -> Balance;
                        false -> bnot Balance
                    end;
                (_, _, Budget) ->
                    Budget
            end,
            leaf(~"format", Check, Name)
    end.

type(~"string", _) ->
    fun(V, _, Budget) when is_binary(V) -> Budget; (_, _, Budget) -> bnot Budget end;
type(~"integer", _) ->
    fun
        (V, _, Budget) when is_integer(V) -> Budget;
        (V, _, Budget) when is_float(V), trunc(V) == V -> Budget;
        (_, _, Budget) -> bnot Budget
    end;
type(~"number", _) ->
    fun(V, _, Budget) when is_number(V) -> Budget; (_, _, Budget) -> bnot Budget end;
type(~"boolean", _) ->
    fun(V, _, Budget) when is_boolean(V) -> Budget; (_, _, Budget) -> bnot Budget end;
type(~"null", _) ->
    fun(null, _, Budget) -> Budget; (_, _, Budget) -> bnot Budget end;
type(~"object", _) ->
    fun(V, _, Budget) when is_map(V) -> Budget; (_, _, Budget) -> bnot Budget end;
type(~"array", _) ->
    fun(V, _, Budget) when is_list(V) -> Budget; (_, _, Budget) -> bnot Budget end;
type(_, Context) ->
    erlmcp_schema_context:invalid(~"type", Context).

any([Check]) -> Check;
any([Check | Checks]) -> erlmcp_schema_run:either(Check, any(Checks)).

%% Scalars are looked up in a set. Arrays and objects are compared, with the numbers in them by
%% value (`1` is `1.0`).
enum(Values) ->
    {Composite, Scalar} = lists:partition(fun(V) -> is_map(V) orelse is_list(V) end, Values),
    Set = #{erlmcp_schema_number:to_integer(V) => true || V <- Scalar},
    Longest = lists:max([0 | [byte_size(V) || V <- Scalar, is_binary(V)]]),
    Cost = length(Composite),
    fun
        (V, _, Budget) when is_binary(V), byte_size(V) > Longest ->
            bnot Budget;
        %% A lookup would hash the whole array or object.
        (V, _, Budget) when not is_map(V), not is_list(V), is_map_key(V, Set) ->
            Budget;
        (V, _, Budget) when is_float(V), is_map_key(trunc(V), Set), trunc(V) == V ->
            Budget;
        (V, _, Budget) when not is_map(V), not is_list(V) ->
            bnot Budget;
        (V, _, Budget) ->
            Balance = spend(Cost, Budget),
            case lists:any(fun(Value) -> Value == V end, Composite) of
                true -> Balance;
                false -> bnot Balance
            end
    end.

-doc """
Returns the number of characters in a text. In bytes that are not UTF-8, each byte except those of
the form `10xxxxxx` counts as a character.
""".
-spec characters(binary()) -> non_neg_integer().
characters(Text) ->
    characters(Text, 0).

%% Bytes that begin a character.
characters(<<C, Rest/binary>>, N) when C band 16#C0 =/= 16#80 -> characters(Rest, N + 1);
characters(<<_, Rest/binary>>, N) -> characters(Rest, N);
characters(<<>>, N) -> N.
