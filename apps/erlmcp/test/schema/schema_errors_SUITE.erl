-module(schema_errors_SUITE).
-moduledoc """
What `m:erlmcp_schema` says, beside yes and no: which keyword, where in the value, in what words;
and why a schema is refused. The rules of MCP are quoted from `basic`, "JSON Schema Usage".
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([examples/1, sentences/1, paths/1, paths_lead_through_references/1, pointers_are_escaped/1,
         several_errors/1, nearest_branch/1, values_are_cut/1, no_json/1,
         default_dialect/1, declared_dialect/1, unsupported_dialect/1, custom_dialect/1,
         schemas_are_valid/1, malformed_keywords/1, reasons_have_sentences/1,
         references_are_not_fetched/1, given_schemas/1, one_schema_has_an_address/1,
         metaschemas_can_be_kept/1,
         numbers/1, patterns/1, shapes_agree_with_patterns/1, formats_when_asked/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [examples, sentences, paths, paths_lead_through_references, pointers_are_escaped,
     several_errors, nearest_branch, values_are_cut, no_json,
     default_dialect, declared_dialect, unsupported_dialect, custom_dialect,
     schemas_are_valid, malformed_keywords, reasons_have_sentences,
     references_are_not_fetched, given_schemas, one_schema_has_an_address, metaschemas_can_be_kept,
     numbers, patterns, shapes_agree_with_patterns, formats_when_asked].

examples(_Config) ->
    erlmcp_test_doctests:run([erlmcp_schema, erlmcp_schema_shorthand, erlmcp_schema_number,
                              erlmcp_schema_ecma, erlmcp_schema_shape, erlmcp_schema_format]).

%% Every keyword once: the value, and what is said of it.
sentences(_Config) ->
    [?assertEqual(Sentence, message(Value, Schema), Schema)
     || {Schema, Value, Sentence} <- [
            {#{type => integer}, ~"three",
             ~B'The value must be an integer, not the string "three".'},
            {#{type => [string, ~"null"]}, 3,
             ~"The value must be a string or null, not the number 3."},
            {#{enum => [a, b, 3]}, ~"c",
             ~B'The value must be one of "a", "b" or 3, not the string "c".'},
            {#{const => #{a => 1}}, [],
             ~"The value must be an object of 1 member, not an empty array."},
            {#{minimum => 1}, 0, ~"The value must be at least 1, not 0."},
            {#{maximum => 1}, 1.5, ~"The value must be at most 1, not 1.5."},
            {#{exclusiveMinimum => 1}, 1, ~"The value must be more than 1, not 1."},
            {#{exclusiveMaximum => 1}, 1, ~"The value must be less than 1, not 1."},
            {#{multipleOf => 0.01}, 0.015, ~"The value must be a multiple of 0.01, not 0.015."},
            {#{minLength => 2}, ~"é", ~"The value must have at least 2 characters, not 1."},
            {#{maxLength => 1}, ~"ab", ~"The value must have at most 1 character, not 2."},
            {#{pattern => ~"^a"}, ~"b",
             ~B'The value must match the pattern "^a", not the string "b".'},
            {#{minItems => 1}, [], ~"The value must have at least 1 item, not 0."},
            {#{maxItems => 1}, [1, 2], ~"The value must have at most 1 item, not 2."},
            {#{uniqueItems => true}, [1, 2, 1.0],
             ~"The value must not have an item twice, as its items 0 and 2 are."},
            {#{contains => #{type => ~"null"}}, [1],
             ~"The value must have an item that matches the schema in contains."},
            {#{contains => #{type => ~"null"}, minContains => 2}, [null],
             ~"The value must have at least 2 items that match the schema in contains, not 1."},
            {#{contains => #{type => ~"null"}, maxContains => 1}, [null, null],
             ~"The value must have at most 1 item that match the schema in contains, not 2."},
            {#{required => [a]}, #{}, ~B'The value must have the property "a", but has none.'},
            {#{required => [a]}, #{b => 1, c => 2},
             ~B'The value must have the property "a", but has "b" and "c".'},
            {#{additionalProperties => false}, #{b => 1},
             ~B'The value must not have the property "b".'},
            {#{properties => #{a => true, c => true}, additionalProperties => false}, #{b => 1},
             ~B'The value must not have the property "b", only "a" and "c".'},
            {#{minProperties => 1}, #{}, ~"The value must have at least 1 member, not 0."},
            {#{maxProperties => 0}, #{a => 1}, ~"The value must have at most 0 members, not 1."},
            {#{dependentRequired => #{a => [b]}}, #{a => 1},
             ~B'The value must have the property "b", but has "a"; it is required with "a".'},
            {#{'not' => #{}}, null,
             ~"The value must not match the schema in not, and is null."},
            {#{oneOf => [true, #{}]}, true,
             ~"The value must match exactly one schema in oneOf, but true matches 0 and 1."},
            {false, 1, ~"The value must not be there."}
        ]].

paths(_Config) ->
    [?assertEqual({Instance, Path}, where(Value, Schema), Schema)
     || {Schema, Value, Instance, Path} <- [
            {#{type => ~"null"}, 1, ~"", ~"/type"},
            {#{properties => #{a => #{type => ~"null"}}}, #{a => 1}, ~"/a", ~"/properties/a/type"},
            {#{patternProperties => #{~"^a" => #{type => ~"null"}}}, #{ab => 1}, ~"/ab",
             ~"/patternProperties/^a/type"},
            {#{additionalProperties => #{type => ~"null"}}, #{a => 1}, ~"/a",
             ~"/additionalProperties/type"},
            {#{additionalProperties => false}, #{a => 1}, ~"", ~"/additionalProperties"},
            {#{unevaluatedProperties => #{type => ~"null"}, allOf => [true]}, #{a => 1}, ~"/a",
             ~"/unevaluatedProperties/type"},
            {#{propertyNames => #{maxLength => 1}}, #{ab => 1}, ~"/ab",
             ~"/propertyNames/maxLength"},
            {#{dependentSchemas => #{a => #{required => [b]}}}, #{a => 1}, ~"",
             ~"/dependentSchemas/a/required"},
            {#{items => #{type => ~"null"}}, [null, 1], ~"/1", ~"/items/type"},
            {#{prefixItems => [true, #{type => ~"null"}]}, [1, 2], ~"/1", ~"/prefixItems/1/type"},
            {#{prefixItems => [true], items => false}, [1, 2], ~"/1", ~"/items"},
            {#{unevaluatedItems => false, prefixItems => [true], contains => false,
               minContains => 0}, [1, 2], ~"/1", ~"/unevaluatedItems"},
            {#{allOf => [true, #{minimum => 2}]}, 1, ~"", ~"/allOf/1/minimum"},
            {#{anyOf => [#{minimum => 2}]}, 1, ~"", ~"/anyOf"},
            {#{'if' => #{minimum => 1}, then => #{minimum => 3}}, 2, ~"", ~"/then/minimum"},
            {#{'if' => #{minimum => 1}, 'else' => #{maximum => -1}}, 0, ~"", ~"/else/maximum"}
        ]].

paths_lead_through_references(_Config) ->
    Schema = #{'$ref' => ~"#/$defs/node",
               '$defs' => #{node => #{properties => #{next => #{'$ref' => ~"#/$defs/node"},
                                                      value => #{type => integer}}}}},
    ?assertEqual({~"/next/next/value",
                  ~"/$ref/properties/next/$ref/properties/next/$ref/properties/value/type"},
                 where(#{next => #{next => #{value => null}}}, Schema)).

pointers_are_escaped(_Config) ->
    ?assertEqual({~"/a~1b/~0", ~"/properties/a~1b/properties/~0/type"},
                 where(#{~"a/b" => #{~"~" => 1}},
                       #{properties => #{~"a/b" => #{properties => #{~"~" =>
                                                                         #{type => ~"null"}}}}})).

several_errors(_Config) ->
    Schema = compiled(#{items => #{type => ~"null"}}, #{max_errors => 3}),
    {error, Errors} = erlmcp_schema:validate(lists:seq(1, 10), Schema),
    ?assertEqual([~"/0", ~"/1", ~"/2"],
                 [Path || #{instance_path := Path} <- erlmcp_schema:details(Errors)]),
    {error, Ten} = erlmcp_schema:validate(lists:seq(1, 100), compiled(#{items => false}, #{})),
    ?assertEqual(10, length(Ten)).

%% Of several schemas, the one that goes wrong furthest inside is taken for the one that was meant.
nearest_branch(_Config) ->
    Branch = fun(Kind, Type) ->
        #{properties => #{kind => #{const => Kind}, size => #{type => Type}}, required => [kind]}
    end,
    Value = #{kind => box, size => ~"x"},
    [?assertEqual(<<"The value must match a schema in ", Keyword/binary,
                    "; by the nearest of 2, /size must be a number, not the string \"x\".">>,
                  message(Value, #{Keyword => [#{type => string}, Branch(box, number)]}))
     || Keyword <- [~"anyOf", ~"oneOf"]].

values_are_cut(_Config) ->
    Long = binary:copy(~"é", 1000),
    Message = message(Long, #{type => ~"null"}),
    ?assert(byte_size(Message) < 200),
    ?assertEqual(Message, unicode:characters_to_binary(Message)).

%% A handler's own result is no JSON from outside.
no_json(_Config) ->
    [?assertMatch({error, [_]}, validate(Value, #{~"type" => ~"string", ~"minLength" => 1}))
     || Value <- [{a, b}, self(), <<255, 254>>, make_ref(), undefined], Value =/= <<255, 254>>],
    ?assertMatch({error, [_]}, validate(<<255, 254>>, #{~"pattern" => ~"(a|b)"})),
    ?assertMatch({error, [_]}, validate(#{1 => 2}, #{~"additionalProperties" => false})),
    ?assertMatch({error, [_]}, validate(#{a => 2}, #{~"required" => [~"a"]})),
    ok = validate(#{a => 2}, #{~"patternProperties" => #{~"^(a|b)" => false, ~"^c$" => false}}).

%% "MUST support JSON Schema 2020-12 for schemas without an explicit $schema field"
default_dialect(_Config) ->
    ?assertMatch({~"/0", _}, where([1], #{prefixItems => [#{type => ~"null"}]})).

%% "MUST validate schemas according to their declared or default dialect"
declared_dialect(_Config) ->
    Schema = #{prefixItems => [false], items => [#{type => ~"null"}]},
    [?assertEqual({~"/0", ~"/items/0/type"}, where([1], Schema#{'$schema' => Uri}), Uri)
     || Uri <- [~"http://json-schema.org/draft-07/schema#",
                ~"http://json-schema.org/draft-07/schema",
                ~"https://json-schema.org/draft/2019-09/schema"]],
    ok = validate(1, #{~"$ref" => ~"#/definitions/a", ~"type" => ~"null",
                       ~"definitions" => #{~"a" => true},
                       ~"$schema" => ~"http://json-schema.org/draft-07/schema#"}).

%% "returning an appropriate error indicating the dialect is not supported"
unsupported_dialect(_Config) ->
    [?assertEqual({error, {unsupported_dialect, Uri}},
                  erlmcp_schema:compile(#{~"$schema" => Uri}))
     || Uri <- [~"http://json-schema.org/draft-04/schema#", ~"https://example.com/mine", ~""]].

custom_dialect(_Config) ->
    Uri = ~"https://example.com/mine",
    Vocabulary = ~"https://json-schema.org/draft/2020-12/vocab/",
    Meta = #{~"$schema" => ~"https://json-schema.org/draft/2020-12/schema", ~"$id" => Uri,
             ~"$vocabulary" => #{<<Vocabulary/binary, "core">> => true,
                                 <<Vocabulary/binary, "applicator">> => true},
             ~"maxProperties" => 2},
    Options = #{schemas => #{Uri => Meta}},
    Schema = #{~"$schema" => Uri, ~"type" => ~"null"},
    {ok, Compiled} = erlmcp_schema:compile(Schema, Options),
    ok = erlmcp_schema:validate(1, Compiled),
    ?assertMatch({error, {invalid_schema, [#{schema_path := ~"/maxProperties"}]}},
                 erlmcp_schema:compile(Schema#{~"title" => ~"x"}, Options)),
    Unknown = ~"https://example.com/vocabulary",
    Requires = Meta#{~"$vocabulary" := #{Unknown => true}},
    ?assertEqual({error, {unsupported_vocabulary, Unknown}},
                 erlmcp_schema:compile(Schema, #{schemas => #{Uri => Requires}})),
    Mentions = Meta#{~"$vocabulary" := #{Unknown => false}},
    {ok, _} = erlmcp_schema:compile(Schema, #{schemas => #{Uri => Mentions}}).

%% "Schemas MUST be valid according to their declared or default dialect"
schemas_are_valid(_Config) ->
    [?assertMatch({error, {invalid_schema, [#{instance_path := Path} | _]}}, compile(Schema),
                  Schema)
     || {Schema, Path} <- [
            {#{type => int}, ~"/type"},
            {#{properties => #{a => #{minimum => ~"1"}}}, ~"/properties/a/minimum"},
            {#{required => a}, ~"/required"},
            {#{'$defs' => #{unused => #{maxLength => -1}}}, ~"/$defs/unused/maxLength"},
            {#{'$schema' => ~"http://json-schema.org/draft-07/schema#", items => 1}, ~"/items"},
            {3, ~""}
        ]],
    %% What is no keyword of a dialect may be anything in it.
    {ok, _} = compile(#{'$schema' => ~"http://json-schema.org/draft-07/schema#",
                        prefixItems => 1, unevaluatedProperties => 1}).

%% The same, where nobody asked the meta-schema.
malformed_keywords(_Config) ->
    Keywords = [type, enum, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf,
                minLength, maxLength, pattern, minItems, maxItems, uniqueItems, contains,
                minProperties, maxProperties, propertyNames, required, properties,
                patternProperties, additionalProperties, unevaluatedProperties, dependentRequired,
                dependentSchemas, dependencies, prefixItems, items, unevaluatedItems, allOf, anyOf,
                oneOf, 'not', 'if', '$ref', '$dynamicRef', format],
    [?assertMatch({error, {invalid_keyword, ~"/properties/a", Keyword}},
                  erlmcp_schema:compile(#{~"properties" => #{~"a" => #{Keyword => Value}}},
                                        #{check => false, formats => assert}), Keyword)
     || Name <- Keywords, Keyword <- [atom_to_binary(Name)], Value <- [null, [null]],
        {Keyword, Value} =/= {~"enum", [null]}],
    [{ok, _} = erlmcp_schema:compile(#{Keyword => null}, #{check => false})
     || Keyword <- [~"const", ~"title", ~"$id", ~"$anchor", ~"$dynamicAnchor", ~"$defs",
                    ~"then", ~"minContains", ~"$schema"]].

reasons_have_sentences(_Config) ->
    [begin
         {error, Reason} = erlmcp_schema:compile(Schema, Options),
         Sentence = erlmcp_schema:reason(Reason),
         ?assertMatch({match, _}, re:run(Sentence, Expected), Sentence)
     end || {Schema, Options, Expected} <- [
        {#{~"$schema" => ~"x"}, #{}, "^.schema names the dialect \"x\", but JSON Schema 2020-12"},
        {#{~"type" => 1}, #{}, "^The schema is not valid: /type must match"},
        {#{~"type" => 1}, #{check => false}, "^The value has an invalid type\\.$"},
        {#{~"pattern" => ~"("}, #{}, "^/pattern is not a regular expression"},
        {#{~"pattern" => ~"abc"}, #{max_pattern => 2}, "^/pattern .* more than 2 bytes\\.$"},
        {#{~"items" => #{~"$ref" => ~"#/x"}}, #{}, "^/items refers to \"#/x\", which is not there"},
        {#{~"$ref" => ~"#"}, #{}, "refers to itself"},
        {#{~"$defs" => #{~"a" => #{~"$id" => ~"x:y"},
                         ~"b" => #{~"$id" => ~"x:y", ~"type" => ~"null"}}},
         #{}, "^Two different schemas have the address \"x:y\"\\.$"},
        {#{~"items" => #{~"items" => #{}}}, #{max_depth => 2}, "deeper than 2 levels"},
        {#{~"items" => #{~"items" => #{}}}, #{max_subschemas => 2}, "more than 2 subschemas"}
    ]].

%% "Implementations MUST NOT automatically dereference $ref values that resolve to a network URI";
%% "SHOULD be rejected rather than silently treated as permissive"
references_are_not_fetched(_Config) ->
    [?assertEqual({error, {unresolved_ref, ~"/properties/a", Ref}},
                  compile(#{properties => #{a => #{'$ref' => Ref}}}), Ref)
     || Ref <- [~"https://example.com/schema.json", ~"http://127.0.0.1/", ~"file:///etc/passwd",
                ~"other.json", ~"#/$defs/none", ~"#none", ~"#/properties/a/$ref", ~"#/%", ~"%",
                ~"#/$defs/100%_of", ~"#/$defs/caf%E9", ~"#%zz", ~"http://[", ~"//example.com",
                ~"urn:uuid:1"]],
    ?assertEqual({error, {unresolved_ref, ~"https://example.com/a#/items", ~"b"}},
                 compile(#{'$id' => ~"https://example.com/a", items => #{'$ref' => ~"b"}})).

given_schemas(_Config) ->
    Options = #{schemas => #{~"https://example.com/b" => #{~"type" => ~"null"},
                             ~"https://example.com/c" => #{~"$defs" => #{~"d" => #{
                                 ~"$anchor" => ~"e", ~"$ref" => ~"b"}}}}},
    {ok, Schema} = erlmcp_schema:compile(
        #{~"$id" => ~"https://example.com/a", ~"items" => #{~"$ref" => ~"c#e"}}, Options),
    ok = erlmcp_schema:validate([null], Schema),
    {error, Errors} = erlmcp_schema:validate([1], Schema),
    [#{schema_path := Path}] = erlmcp_schema:details(Errors),
    ?assertEqual(~"/items/$ref/$ref/type", Path),
    %% The published meta-schemas are always there.
    ok = validate(#{~"type" => ~"null"},
                  #{~"$ref" => ~"http://json-schema.org/draft-07/schema#"}),
    ?assertMatch({error, [_ | _]},
                 validate(#{~"type" => ~"nil"},
                          #{~"$ref" => ~"https://json-schema.org/draft/2019-09/schema"})).

%% Whichever way each schema has come to it, and in any order.
one_schema_has_an_address(_Config) ->
    Of = fun(Schema, Documents) -> erlmcp_schema:compile(Schema, #{schemas => Documents}) end,
    Named = fun(Id) -> #{~"$id" => Id, ~"type" => ~"null"} end,
    Around = fun(Id) -> #{~"$defs" => #{~"a" => #{~"$id" => Id}}} end,
    [?assertEqual({error, {duplicate_id, Id}}, Of(Schema, Documents), {Schema, Documents})
     || {Id, Schema, Documents} <- [
            {~"http://b", true, #{~"http://b" => Named(~"http://x"),
                                  ~"http://c" => Around(~"http://b")}},
            {~"http://b", true, #{~"http://a" => Around(~"http://b"),
                                  ~"http://b" => Named(~"http://x")}},
            {~"http://a", true, #{~"http://a" => Named(~"http://b"),
                                  ~"http://b" => Named(~"http://a")}},
            {~"http://b", Named(~"http://b"), #{~"http://b" => Named(~"http://x")}},
            {~"schema:///", (Around(~"schema:///"))#{~"$id" => ~"http://r"}, #{}},
            {~"schema:///", Around(~"schema:///"), #{}},
            {~"schema:///", Named(~"http://r"), #{~"http://a" => Around(~"schema:///")}}
        ]],
    %% The same schema may be given under several addresses, and more than once.
    {ok, _} = Of(Named(~"http://r"), #{Uri => Named(~"http://r")
                                       || Uri <- [~"http://r", ~"http://r#a", ~"http://r#b",
                                                  ~"http://x#a", ~"http://x#b"]}).

metaschemas_can_be_kept(_Config) ->
    Options = #{metaschemas => erlmcp_schema:metaschemas()},
    ?assertEqual(3, map_size(map_get(metaschemas, Options))),
    [begin
         {ok, _} = erlmcp_schema:compile(#{~"$schema" => Uri, ~"type" => ~"null"}, Options),
         ?assertEqual(erlmcp_schema:compile(#{~"$schema" => Uri, ~"type" => 1}),
                      erlmcp_schema:compile(#{~"$schema" => Uri, ~"type" => 1}, Options))
     end || Uri <- maps:keys(map_get(metaschemas, Options))].

numbers(_Config) ->
    Big = 1 bsl 80,
    [?assertEqual(Valid, validate(Value, Schema) =:= ok, {Value, Schema})
     || {Value, Schema, Valid} <- [
            {1.0, #{~"type" => ~"integer"}, true},
            {1.0e20, #{~"type" => ~"integer", ~"minimum" => 1}, true},
            {1.5, #{~"type" => ~"integer", ~"minimum" => 1}, false},
            {true, #{~"type" => ~"number", ~"maximum" => 1}, false},
            {1.0, #{~"const" => 1}, true},
            {1, #{~"enum" => [2, 1.0]}, true},
            {[#{~"a" => 1.0}], #{~"const" => [#{~"a" => 1}]}, true},
            {false, #{~"const" => 0}, false},
            {Big + 1, #{~"const" => Big}, false},
            {Big + 1, #{~"maximum" => Big}, false},
            {Big * 3, #{~"multipleOf" => Big}, true},
            {0.3, #{~"multipleOf" => 0.1}, true},
            {19.99, #{~"multipleOf" => 0.01}, true},
            {1.0e-8, #{~"multipleOf" => 1.0e-8}, true},
            {12391239123, #{~"multipleOf" => 1.0e-8}, true},
            {4.5, #{~"multipleOf" => 1.5}, true},
            {4, #{~"multipleOf" => 2.0}, true},
            {4.000001, #{~"multipleOf" => 2.0}, false},
            {3, #{~"type" => ~"integer", ~"maximum" => 2.5}, false},
            {2, #{~"type" => ~"number", ~"minimum" => 2, ~"maximum" => 2.0}, true}
        ]].

%% As ECMA-262 means them; what it does not have is refused.
patterns(_Config) ->
    [?assertEqual(Valid, validate(Text, #{~"pattern" => Pattern}) =:= ok, {Text, Pattern})
     || {Pattern, Text, Valid} <- [
            {~"b", ~"abc", true},
            {~"^b", ~"abc", false},
            {~"a|^b$", ~"xa", true},
            {~"^a$", ~"a\n", false},
            {~"^.$", ~"\n", false},
            {~"^.$", ~"\r", false},
            {~"^.$", ~"😀", true},
            {~B"^\d+$", ~"১", false},
            {~B"^\w$", ~"é", false},
            {~B"^(\w)$", ~"é", false},
            {~B"^[^\w]$", ~"é", true},
            {~B"^\W$", ~"é", true},
            {~B"^[\W]$", ~"é", true},
            {~B"^\W$", ~"_", false},
            {~B"^[\W\d]+$", ~"-7", true},
            {~B"^[\w-.]+$", ~"a-b.c", true},
            {~B"^[\s-a]+$", ~"- a", true},
            {~B"^[+-\w]+$", ~"+-w", true},
            {~B"^[+-\w]+$", ~"=", false},
            {~B"^[\d-a]+$", ~"1-a", true},
            {~B"\bé", ~"é", false},
            {~B"a\bé", ~"aé", true},
            {~B"\ba_9\b", ~"(a_9)", true},
            {~B"^\Bé\B$", ~"é", true},
            {~B"a\Bé", ~"aé", false},
            {~B"\B", ~"a", false},
            {~B"^\s\S$", <<16#a0/utf8, "x">>, true},
            {~B"^[^\s]$", <<16#feff/utf8>>, false},
            {~B"^[\S]$", <<16#2003/utf8>>, false},
            {~B"^\p{L}+$", ~"éß", true},
            {~B"^\p{Script=Greek}$", ~"λ", true},
            {~B"^\P{Lowercase_Letter}$", ~"a", false},
            {~B"^\u00e9$", ~"é", true},
            {~B"^\uD83D\uDE00$", ~"😀", true},
            {~B"^\u{1F600}$", ~"😀", true},
            {~B"^\cJ$", ~"\n", true},
            {~B"^[\b]$", ~"\b", true},
            {~B"^[[:alpha:]]+$", ~":]", true},
            {~"[]", ~"a", false},
            {~"^[^]$", ~"\n", true},
            {~"^(a)\\1$", ~"aa", true},
            {~"^(?<x>a)\\k<x>$", ~"aa", true},
            {~B"^(?:(a)|b)\1$", ~"b", true},
            {~B"^(?:(a)|b)\1$", ~"aa", true},
            {~B"^(?:(a)|b)\1$", ~"a", false},
            {~B"^(?:(a)|b)\1$", ~"ba", false},
            {~B"^(?:(?<x>a)|b)\k<x>$", ~"b", true},
            {~B"^(?:(?<x>a)|b)\k<x>$", ~"ab", false},
            {~B"^\1(a)$", ~"a", true},
            {~B"^\k<R>(?<R>a)$", ~"a", true},
            {~B"^(a)\1{2}$", ~"aaa", true},
            {~B"^(a)\1{6000}$", binary:copy(~"a", 6_001), true},
            {~B"^(a)\1{6000}$", binary:copy(~"a", 6_000), false},
            {~B"^(?<x>a)\k<x>{6000}$", binary:copy(~"a", 6_001), true},
            {~B"^(?:(a)|b)\1{3}$", ~"b", true},
            {~B"^(?:(a)|b)\1+?$", ~"aaaa", true},
            {~B"^(?:(a)|b)\1{3}$", ~"aaa", false},
            {~B"^(a)\1*?b|c$", ~"aaab", true},
            {~"^a{,2}$", ~"a{,2}", true},
            {~B"^\-\/\_$", ~"-/_", true},
            {~"(?<=a)b(?!c)", ~"abd", true}
        ]],
    [?assertEqual({error, {invalid_pattern, ~"/pattern", Pattern}}, compile(#{pattern => Pattern}))
     || Pattern <- [~"(", ~"[a", ~"*a", ~"a**", ~"a++", ~"a{2}+", ~"(?i)a", ~"(?>a)", ~"(?#a)",
                    ~"(?R)", ~"(*COMMIT)", ~"(*LIMIT_MATCH=9)a", ~B"\Aa", ~B"a\Z", ~B"\Qa\E",
                    ~B"\K", ~B"\R", ~B"\N{U+61}", ~B"\x{61}", ~B"\p{Foo}", ~B"\u12", ~"\\",
                    ~B"\uD83D", ~B"\1", ~B"(a)\2", ~B"\k<x>", ~B"(?<x>a)\k<y>", <<255>>]].

%% The same patterns by re: the first run of each is the one that is quick.
shapes_agree_with_patterns(_Config) ->
    Texts = [~"", ~"a", ~"aa", ~"aaa", ~"ab", ~"a-b", ~"2024-11", ~"2024-1", ~"v12", ~"v", ~"A_b.c",
             ~"a\n", ~"é", ~"aé", ~"--", ~"a]", ~"1a", ~"12345678", ~"x=1", ~"x=", ~"\\"],
    [begin
         {ok, _} = erlmcp_schema_shape:compile(Pattern),
         {ok, Translated} = erlmcp_schema_ecma:translate(Pattern),
         {ok, Regex} = re:compile(Translated, [unicode, dollar_endonly]),
         [?assertEqual(re:run(Text, Regex, [{capture, none}]) =:= match,
                       validate(Text, #{~"pattern" => Pattern}) =:= ok, {Pattern, Text})
          || Text <- Texts]
     end || Pattern <- [~"^$", ~"^a$", ~"^a*$", ~"^a+b?$", ~"^[a-z]{2,3}$", ~"^[a-z]{2}[a-z]$",
                        ~B"^\d{4}-\d{2}$", ~B"^v\d+$", ~B"^[\w.-]+$", ~"^[a-z0-9-]{1,64}$",
                        ~"^[-a]*$", ~"^x=[0-9]*$", ~B"^[\]a]+$", ~B"^\\$", ~"^a{0}$", ~"^a{2,}$",
                        ~"^[0-9]?[a-z]+$", ~B"^\w{3}$"]],
    [?assertEqual(error, erlmcp_schema_shape:compile(Pattern), Pattern)
     || Pattern <- [~"a", ~"^a", ~"^a|b$", ~"^(a)$", ~"^a+?$", ~"^a*a$", ~"^[a-z]*b?a$", ~"^.$",
                    ~"^[^a]$", ~B"^\s$", ~"^é$", ~"^[a-é]$", ~"^a**$", ~"^[z-a]$", ~"^[+-Z]$",
                    ~"^a{3,2}$", ~"^[]$", ~B"^\1$", ~"^$a$", ~"^[a", ~"^a\\", ~""]].

formats_when_asked(_Config) ->
    IsByte = erlmcp_schema_format:check(~"byte"),
    [?assertEqual(Is, IsByte(Text), Text)
     || {Is, Text} <- [{true, ~""}, {true, ~"AA=="}, {true, ~"AAA="}, {true, ~"ab+/"},
                       {true, ~"0123AA=="}, {false, ~"A"}, {false, ~"AA"}, {false, ~"AAA"},
                       {false, ~"A==="}, {false, ~"===="}, {false, ~"AA==AA=="}, {false, ~"A A="},
                       {false, ~"AA-_"}, {false, ~"AA=A"}]],
    Schema = #{~"format" => ~"email"},
    ok = validate(~"nobody", Schema),
    {ok, Asserted} = erlmcp_schema:compile(Schema, #{formats => assert}),
    {error, Errors} = erlmcp_schema:validate(~"nobody", Asserted),
    [Message] = erlmcp_schema:explain(Errors),
    ?assertEqual(~B'The value must have the format email, not be the string "nobody".', Message),
    ok = erlmcp_schema:validate(3, Asserted),
    {ok, Unknown} = erlmcp_schema:compile(#{~"format" => ~"colour"}, #{formats => assert}),
    ok = erlmcp_schema:validate(~"x", Unknown).

%% The tables are written with atoms; schemas and values have binaries.
json(Term) ->
    json:decode(iolist_to_binary(json:encode(Term))).

compile(Schema) ->
    erlmcp_schema:compile(case Schema of
        #{pattern := <<255>>} -> #{~"pattern" => <<255>>};
        _ -> json(Schema)
    end).

compiled(Schema, Options) ->
    {ok, Compiled} = erlmcp_schema:compile(json(Schema), Options),
    Compiled.

validate(Value, Schema) ->
    {ok, Compiled} = erlmcp_schema:compile(Schema),
    erlmcp_schema:validate(Value, Compiled).

first(Value, Schema) ->
    {error, Errors} = erlmcp_schema:validate(json(Value), compiled(Schema, #{})),
    hd(erlmcp_schema:details(Errors)).

message(Value, Schema) ->
    map_get(message, first(Value, Schema)).

where(Value, Schema) ->
    #{instance_path := Instance, schema_path := Path} = first(Value, Schema),
    {Instance, Path}.
