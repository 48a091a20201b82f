-module(schema_shorthand_SUITE).
-moduledoc "The notation of `t:erlmcp_schema:shorthand/0`, each form of it, and what is none.".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([forms/1, objects/1, schemas_are_told_from_shorthands/1, refused/1, sentences/1,
         expanded_is_a_schema/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [forms, objects, schemas_are_told_from_shorthands, refused, sentences, expanded_is_a_schema].

forms(_Config) ->
    [?assertEqual({ok, Schema}, erlmcp_schema_shorthand:expand(Shorthand), Shorthand)
     || {Shorthand, Schema} <- [
            {any, #{}},
            {string, #{~"type" => ~"string"}},
            {null, #{~"type" => ~"null"}},
            {object, #{~"type" => ~"object"}},
            {array, #{~"type" => ~"array"}},
            {{enum, [c, ~"f", 3, null, true]}, #{~"enum" => [~"c", ~"f", 3, null, true]}},
            {{enum, [c, ~"f"]}, #{~"type" => ~"string", ~"enum" => [~"c", ~"f"]}},
            {{enum, [1, 2]}, #{~"type" => ~"integer", ~"enum" => [1, 2]}},
            {{enum, [1, 2.5]}, #{~"type" => ~"number", ~"enum" => [1, 2.5]}},
            {{enum, [true, false]}, #{~"type" => ~"boolean", ~"enum" => [true, false]}},
            {{enum, [c, nil]}, #{~"enum" => [~"c", null]}},
            {{{enum, [1, 2]}, #{type => number}}, #{~"type" => ~"number", ~"enum" => [1, 2]}},
            {#{a => {optional, string}},
             #{~"type" => ~"object", ~"properties" => #{~"a" => #{~"type" => ~"string"}},
               ~"additionalProperties" => false}},
            {{string, #{default => nil}}, #{~"type" => ~"string", ~"default" => null}},
            {{const, #{'__struct__' => 'Elixir.Date', calendar => 'Elixir.Calendar.ISO',
                       year => 2026, month => 7, day => 28}}, #{~"const" => ~"2026-07-28"}},
            {{const, c}, #{~"const" => ~"c"}},
            {{const, []}, #{~"const" => []}},
            {[string], #{~"type" => ~"array", ~"items" => #{~"type" => ~"string"}}},
            {[[any]], #{~"type" => ~"array",
                        ~"items" => #{~"type" => ~"array", ~"items" => #{}}}},
            {{any_of, [string, null]},
             #{~"anyOf" => [#{~"type" => ~"string"}, #{~"type" => ~"null"}]}},
            {{integer, #{minimum => 1, ~"default" => 2}},
             #{~"type" => ~"integer", ~"minimum" => 1, ~"default" => 2}},
            {{string, #{format => date}}, #{~"type" => ~"string", ~"format" => ~"date"}},
            {{string, ~"Where"}, #{~"type" => ~"string", ~"description" => ~"Where"}},
            {{{string, #{format => date}}, ~"When"},
             #{~"type" => ~"string", ~"format" => ~"date", ~"description" => ~"When"}},
            {{[string], #{uniqueItems => true}},
             #{~"type" => ~"array", ~"items" => #{~"type" => ~"string"}, ~"uniqueItems" => true}},
            {{schema, #{type => [string, ~"null"], properties => #{a => true}}},
             #{~"type" => [~"string", ~"null"], ~"properties" => #{~"a" => true}}}
        ]].

%% The example of the design: members are required unless they are optional.
objects(_Config) ->
    Fields = #{city => string,
               days => {integer, #{minimum => 1}},
               unit => {optional, {enum, [~"c", ~"f"]}},
               tags => {optional, [string]},
               ~"at" => #{x => number}},
    Schema = #{
        ~"type" => ~"object",
        ~"properties" => #{
            ~"city" => #{~"type" => ~"string"},
            ~"days" => #{~"type" => ~"integer", ~"minimum" => 1},
            ~"unit" => #{~"type" => ~"string", ~"enum" => [~"c", ~"f"]},
            ~"tags" => #{~"type" => ~"array", ~"items" => #{~"type" => ~"string"}},
            ~"at" => #{~"type" => ~"object", ~"properties" => #{~"x" => #{~"type" => ~"number"}},
                       ~"required" => [~"x"], ~"additionalProperties" => false}
        },
        ~"required" => [~"at", ~"city", ~"days"],
        ~"additionalProperties" => false
    },
    ?assertEqual({ok, Schema}, erlmcp_schema_shorthand:expand(Fields)),
    ?assertEqual({ok, Schema}, erlmcp_schema_shorthand:expand({fields, Fields})),
    ?assertEqual({ok, Schema#{~"additionalProperties" := true}},
                 erlmcp_schema_shorthand:expand({{fields, Fields},
                                                 #{additionalProperties => true}})),
    {ok, Compiled} = erlmcp_schema:compile(Schema),
    ok = erlmcp_schema:validate(
        #{~"city" => ~"Oslo", ~"days" => 1, ~"at" => #{~"x" => 1.5}}, Compiled),
    {error, [_, _]} = erlmcp_schema:validate(
        #{~"city" => ~"Oslo", ~"days" => 0, ~"at" => #{}}, Compiled).

%% "A map is JSON Schema as it is where it has a type that is the name of a JSON Schema type or a
%% list of them, [...] or a key that begins with $."
schemas_are_told_from_shorthands(_Config) ->
    [begin
         ?assert(erlmcp_schema_shorthand:is_json_schema(Map), Map),
         ?assertEqual({ok, Json}, erlmcp_schema_shorthand:expand(Map))
     end || {Map, Json} <- [
            {#{type => string}, #{~"type" => ~"string"}},
            {#{~"type" => ~"string", title => ~"T"}, #{~"type" => ~"string", ~"title" => ~"T"}},
            {#{type => [object, ~"null"]}, #{~"type" => [~"object", ~"null"]}},
            {#{properties => #{}}, #{~"properties" => #{}}},
            {#{~"anyOf" => []}, #{~"anyOf" => []}},
            {#{oneOf => [true]}, #{~"oneOf" => [true]}},
            {#{allOf => [#{}]}, #{~"allOf" => [#{}]}},
            {#{additionalProperties => false}, #{~"additionalProperties" => false}},
            {#{'$ref' => ~"#"}, #{~"$ref" => ~"#"}},
            {#{~"$comment" => ~"", a => string}, #{~"$comment" => ~"", ~"a" => ~"string"}}
        ]],
    %% The same names as those of members.
    [begin
         ?assertNot(erlmcp_schema_shorthand:is_json_schema(Map), Map),
         {ok, #{~"properties" := Properties, ~"additionalProperties" := false}} =
             erlmcp_schema_shorthand:expand(Map),
         ?assertEqual(lists:sort([atom_to_binary(Name) || Name := _ <- Map]),
                      lists:sort(maps:keys(Properties)))
     end || Map <- [#{type => {string, ~"Which"}}, #{type => {enum, [a]}}, #{type => [any]},
                    #{required => boolean}, #{items => [string]}, #{title => string}]],
    ?assertNot(erlmcp_schema_shorthand:is_json_schema(#{})),
    ?assertEqual({ok, #{~"type" => ~"object"}}, erlmcp_schema_shorthand:expand(#{})),
    {ok, #{~"properties" := #{~"type" := #{~"type" := ~"string"},
                              ~"properties" := #{~"type" := ~"integer"}}}} =
        erlmcp_schema_shorthand:expand({fields, #{type => string, properties => integer}}),
    %% Inside of a shorthand too.
    {ok, #{~"properties" := #{~"a" := #{~"maxLength" := 5, ~"type" := ~"string"}}}} =
        erlmcp_schema_shorthand:expand(#{a => #{type => string, maxLength => 5}}).

sentences(_Config) ->
    [begin
         {error, Reason} = erlmcp_schema_shorthand:expand(Shorthand),
         ?assertEqual(Text, erlmcp_schema_shorthand:reason(Reason))
     end || {Shorthand, Text} <- [
            {int, ~"The schema is neither a shorthand nor JSON: int."},
            {#{a => [#{b => {x}}]}, ~"/a/b is neither a shorthand nor JSON: {x}."}]],
    {error, Long} = erlmcp_schema_shorthand:expand(lists:seq(1, 10_000)),
    ?assert(byte_size(erlmcp_schema_shorthand:reason(Long)) < 400).

refused(_Config) ->
    [?assertEqual({error, {bad_shorthand, Path, Term}},
                  erlmcp_schema_shorthand:expand(Shorthand), Shorthand)
     || {Shorthand, Path, Term} <- [
            {int, [], int},
            {3, [], 3},
            {[], [], []},
            {[string, integer], [], [string, integer]},
            {{enum, []}, [], {enum, []}},
            {{const, #{'__struct__' => shop}}, [], #{'__struct__' => shop}},
            {{optional, string}, [], {optional, string}},
            {[{optional, string}], [], {optional, string}},
            {#{a => #{~"b" => {optional, {int, ~"x"}}}}, [~"a", ~"b"], int},
            {#{a => {string, #{pattern => {}}}}, [~"a", ~"pattern"], {}},
            {#{3 => string}, [], 3},
            {#{a => string, ~"a" => integer}, [], #{a => string, ~"a" => integer}},
            {{string, #{enum => [a | b]}}, [~"enum"], [a | b]},
            {{schema, string}, [], {schema, string}},
            {{fields, []}, [], {fields, []}}
        ]].

expanded_is_a_schema(_Config) ->
    Options = #{metaschemas => erlmcp_schema:metaschemas()},
    Property = ?FORALL(Shorthand, shorthand(), begin
        {ok, Schema} = erlmcp_schema_shorthand:expand(Shorthand),
        {ok, _} = erlmcp_schema:compile(Schema, Options),
        true
    end),
    ?assert(proper:quickcheck(Property, [{to_file, user}, {numtests, 500}, {max_size, 20}])).

shorthand() ->
    ?SIZED(Size, shorthand(Size)).

shorthand(0) ->
    oneof([string, integer, number, boolean, null, any, object, array,
           {enum, non_empty(list(oneof([integer(), name()])))}, {const, integer()},
           {schema, #{type => string}}]);
shorthand(Size) ->
    Smaller = shorthand(Size div 3),
    oneof([shorthand(0), [Smaller], {Smaller, ~"described"},
           {Smaller, ?LET(Title, name(), #{title => Title})},
           {any_of, non_empty(list(Smaller))},
           ?LET(Fields, list({name(), oneof([Smaller, {optional, Smaller}])}),
                maps:from_list(Fields))]).

name() ->
    elements([a, b, c, ~"d", ~"e"]).
