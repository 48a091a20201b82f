-module(erlmcp_schema_error).
-moduledoc """
The errors of a validation: small terms while the validation runs, which become text only when a
caller asks for it. Pure.

Internal.
""".

-export([detail/1, sentence/1]).

-export_type([error/0, kind/0]).

-import(erlmcp_value_text, [value/1, literal/1, count/2]).

-doc """
An error of a validation. `Instance` is the path to the value, and `Schema` the path to the keyword.
Both have their last token first. `Expected` is for the error's sentence, such as the limit that
`Value` exceeds.
""".
-type error() :: {kind(), Expected :: term(), Value :: term(),
                  Instance :: erlmcp_schema_run:path(), Schema :: erlmcp_schema_run:path()}.
-doc """
The kind of an error: the keyword that refuses the value, or one of three atoms. `false` is the
schema `false`. `closed` is an object that may not have one of its members, and `halted` a pattern
that took too long.
""".
-type kind() :: binary() | false | closed | halted.

-doc """
Returns an error as data: the JSON pointers to the value and to the keyword, and the sentence.
""".
-spec detail(error()) -> erlmcp_schema:detail().
detail({_, _, _, Instance, Schema} = Error) ->
    #{
        instance_path => erlmcp_schema_place:pointer(Instance),
        schema_path => erlmcp_schema_place:pointer(Schema),
        message => sentence(Error)
    }.

-doc """
Returns an error as a sentence that begins with the name of the value (`erlmcp_value_text:field/1`).
""".
-spec sentence(error()) -> binary().
sentence(Error) ->
    iolist_to_binary([clause(Error), $.]).

clause({Kind, Expected, V, Instance, _}) ->
    Field = erlmcp_value_text:field(erlmcp_schema_place:pointer(Instance)),
    [Field, $\s, text(Kind, Expected, V)].

text(false, _, _) ->
    ~"must not be there";
text(closed, {Name, []}, _) ->
    [~"must not have the property ", literal(Name)];
text(closed, {Name, Names}, _) ->
    [~"must not have the property ", literal(Name), ~", only ", literals(Names, ~"and")];
text(halted, none, _) ->
    ~"cannot be checked: a pattern took too long";
text(halted, Pattern, _) ->
    [~"cannot be checked: the pattern ", literal(Pattern), ~" took too long"];
text(~"type", Names, V) ->
    Types = erlmcp_value_text:list([erlmcp_value_text:type(Name) || Name <- Names], ~"or"),
    [~"must be ", Types, ~", not ", value(V)];
text(~"enum", Values, V) ->
    [~"must be one of ", literals(Values, ~"or"), ~", not ", value(V)];
text(~"const", Value, V) ->
    [~"must be ", literal(Value), ~", not ", value(V)];
text(~"minimum", Limit, V) ->
    bound(~"at least ", Limit, V);
text(~"maximum", Limit, V) ->
    bound(~"at most ", Limit, V);
text(~"exclusiveMinimum", Limit, V) ->
    bound(~"more than ", Limit, V);
text(~"exclusiveMaximum", Limit, V) ->
    bound(~"less than ", Limit, V);
text(~"multipleOf", Of, V) ->
    bound(~"a multiple of ", Of, V);
text(~"minLength", Limit, V) ->
    size(~"at least ", Limit, ~"character", erlmcp_schema_value:characters(V));
text(~"maxLength", Limit, V) ->
    size(~"at most ", Limit, ~"character", erlmcp_schema_value:characters(V));
text(~"minItems", Limit, V) ->
    size(~"at least ", Limit, ~"item", length(V));
text(~"maxItems", Limit, V) ->
    size(~"at most ", Limit, ~"item", length(V));
text(~"minProperties", Limit, V) ->
    size(~"at least ", Limit, ~"member", map_size(V));
text(~"maxProperties", Limit, V) ->
    size(~"at most ", Limit, ~"member", map_size(V));
text(~"pattern", Pattern, V) ->
    [~"must match the pattern ", literal(Pattern), ~", not ", value(V)];
text(~"format", Name, V) ->
    [~"must have the format ", Name, ~", not be ", value(V)];
text(~"required", Name, V) ->
    missing(Name, V);
text(Dependent, {Name, Needed}, V) when
    Dependent =:= ~"dependentRequired"; Dependent =:= ~"dependencies"
->
    [Missing | _] = [Other || Other <- Needed, not is_map_key(Other, V)],
    [missing(Missing, V), ~"; it is required with ", literal(Name)];
text(~"uniqueItems", _, V) ->
    {First, Second} = same(lists:sort([{Item, N} || {N, Item} <- lists:enumerate(0, V)])),
    [~"must not have an item twice, as its items ", integer_to_binary(First), ~" and ",
     integer_to_binary(Second), ~" are"];
text(~"contains", _, _) ->
    ~"must have an item that matches the schema in contains";
text(~"minContains", {Limit, Count}, _) ->
    few(~"at least ", Limit, Count);
text(~"maxContains", {Limit, Count}, _) ->
    few(~"at most ", Limit, Count);
text(~"not", _, V) ->
    [~"must not match the schema in not, and is ", value(V)];
text(Choice, {0, []}, V) ->
    [~"must match a schema in ", Choice, ~", which has none, and is ", value(V)];
text(Choice, {passed, Tokens}, V) ->
    [~"must match exactly one schema in ", Choice, ~", but ", value(V), ~" matches ",
     erlmcp_value_text:list(Tokens, ~"and")];
text(Choice, {Count, Errors}, _) ->
    [~"must match a schema in ", Choice, ~"; by the nearest of ", integer_to_binary(Count), ~", ",
     clause(nearest(Errors))].

literals(Values, Last) ->
    erlmcp_value_text:list([literal(Value) || Value <- Values], Last).

bound(Text, Limit, V) ->
    [~"must be ", Text, literal(Limit), ~", not ", literal(V)].

size(Text, Limit, Thing, Size) ->
    [~"must have ", Text, count(Limit, Thing), ~", not ", integer_to_binary(Size)].

missing(Name, V) ->
    [~"must have the property ", literal(Name), ~", but has ", has(lists:sort(maps:keys(V)))].

has([]) -> ~"none";
has(Names) -> literals(Names, ~"and").

few(Text, Limit, Count) ->
    [~"must have ", Text, count(Limit, ~"item"),
     ~" that match the schema in contains, not ", integer_to_binary(Count)].

same([{A, First}, {B, Second} | _]) when A == B -> {First, Second};
same([_ | Rest]) -> same(Rest).

%% The schema that was meant is most likely the one whose error lies deepest in the value.
nearest([First | Errors]) ->
    lists:foldl(fun(Error, Best) ->
        case depth(Error) > depth(Best) of
            true -> Error;
            false -> Best
        end
    end, First, Errors).

depth({_, _, _, Instance, _}) -> length(Instance).
