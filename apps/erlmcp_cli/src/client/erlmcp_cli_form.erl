-module(erlmcp_cli_form).
-moduledoc """
The fields of a form that a server requests, and the values that the user types for them. Pure.
""".

-export([fields/1, question/1, answer/2]).

-export_type([field/0]).

-record(field, {
    name :: binary(),
    schema :: map(),
    required :: boolean()
}).
-opaque field() :: #field{}.

-doc """
Returns the fields of a form's schema, the required fields first. The error is a sentence about a
member of the schema.
""".
-spec fields(Schema :: map()) -> {ok, [field()]} | {error, unicode:chardata()}.
fields(#{~"properties" := Properties}) when not is_map(Properties) ->
    {error, ["properties: expected an object, got ", erlmcp_value_text:literal(Properties)]};
fields(#{~"required" := Required}) when not is_list(Required) ->
    {error, ["required: expected an array, got ", erlmcp_value_text:literal(Required)]};
fields(Schema) ->
    Required = maps:get(~"required", Schema, []),
    Fields = [#field{name = Name, schema = Property, required = lists:member(Name, Required)}
              || Name := #{} = Property <- maps:get(~"properties", Schema, #{})],
    {First, Others} = lists:partition(fun(#field{required = Must}) -> Must end, Fields),
    {ok, First ++ Others}.

-doc """
Returns the question for a field: its name, its description or title, its type and its choices, as
far as the schema has them. At the end, in brackets, is what Enter selects: the default, or `none`
for an optional field without a default. A required field without a default has no brackets.
""".
-spec question(field()) -> unicode:chardata().
question(#field{name = Name, schema = Schema} = Field) ->
    [erlmcp_cli_text:one_line(Name), described(Schema), " (", kind(Schema),
     choices(Schema), ")", enter(Field), ": "].

described(Schema) ->
    case Schema of
        #{~"description" := Text} when is_binary(Text) -> [", ", erlmcp_cli_text:one_line(Text)];
        #{~"title" := Text} when is_binary(Text) -> [", ", erlmcp_cli_text:one_line(Text)];
        #{} -> ""
    end.

kind(#{~"type" := ~"array"}) -> "several, with commas";
kind(#{~"type" := ~"boolean"}) -> "y or n";
kind(#{~"type" := ~"string", ~"format" := Format}) when is_binary(Format) ->
    erlmcp_cli_text:one_line(Format);
kind(#{~"type" := Type}) when is_binary(Type) -> erlmcp_cli_text:one_line(Type);
kind(_) -> "JSON".

choices(#{~"items" := #{} = Items}) -> choices(Items);
choices(#{~"enum" := [_ | _] = Values}) -> among([shown(Value) || Value <- Values]);
choices(#{~"oneOf" := [_ | _] = Options}) -> among(titled(Options));
choices(#{~"anyOf" := [_ | _] = Options}) -> among(titled(Options));
choices(_) -> "".

among(Choices) -> ["; one of ", lists:join(", ", Choices)].

titled(Options) ->
    [[shown(Value), [[" = ", erlmcp_cli_text:one_line(Title)]
                     || #{~"title" := Title} <- [Option], is_binary(Title)]]
     || #{~"const" := Value} = Option <- Options].

enter(#field{schema = #{~"default" := Default}}) -> [" [", shown(Default), "]"];
enter(#field{required = false}) -> " [none]";
enter(_) -> "".

shown(Value) when is_binary(Value) -> erlmcp_cli_text:one_line(Value);
shown(true) -> "y";
shown(false) -> "n";
shown([_ | _] = Values) -> lists:join(",", [shown(Value) || Value <- Values]);
shown(Value) -> erlmcp_cli_text:json(Value).

-doc """
Returns the typed value, checked against the field's schema. The error is a sentence. `none` stands
for an empty line, if the field has a default or is not required. The default then applies, or the
field is left out.
""".
-spec answer(Typed :: binary(), field()) ->
    {ok, Name :: binary(), json:decode_value()} | none | {error, unicode:chardata()}.
answer(~"", #field{schema = #{~"default" := _}}) ->
    none;
answer(~"", #field{required = false}) ->
    none;
answer(Typed, #field{name = Name, schema = Schema}) ->
    maybe
        {ok, Value} ?= value(Typed, Schema),
        {ok, Compiled} ?= erlmcp_schema:compile(Schema, #{formats => assert}),
        ok ?= erlmcp_schema:validate(Value, Compiled),
        {ok, Name, Value}
    else
        error -> {error, [kind(Schema), " was expected"]};
        {error, [_ | _] = Found} -> {error, lists:join(" ", explained(Found))};
        {error, _} -> {error, "the server's schema of this field is invalid"}
    end.

explained(Found) ->
    [erlmcp_cli_text:one_line(unicode:characters_to_binary(Sentence))
     || Sentence <- erlmcp_schema:explain(Found)].

value(Typed, #{~"type" := ~"string"}) ->
    {ok, Typed};
value(Typed, #{~"type" := ~"boolean"}) ->
    case string:lowercase(string:trim(Typed)) of
        Yes when Yes =:= ~"y"; Yes =:= ~"yes"; Yes =:= ~"true" -> {ok, true};
        No when No =:= ~"n"; No =:= ~"no"; No =:= ~"false" -> {ok, false};
        _ -> error
    end;
value(Typed, #{~"type" := ~"array", ~"items" := #{} = Items}) ->
    Parts = [string:trim(Part) || Part <- string:split(Typed, ",", all)],
    Values = [value(Part, maps:merge(#{~"type" => ~"string"}, Items))
              || Part <- Parts, Part =/= ~""],
    case lists:member(error, Values) of
        true -> error;
        false -> {ok, [Value || {ok, Value} <- Values]}
    end;
value(Typed, _) ->
    try
        {ok, json:decode(string:trim(Typed))}
    catch
        error:_ -> error
    end.
