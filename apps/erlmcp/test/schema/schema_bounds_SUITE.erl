-module(schema_bounds_SUITE).
-moduledoc """
Hostile schemas and values: each bound at its value and one beyond, and nothing that takes long.

MCP, `basic`, "Composition-Keyword Resource Use": "Implementations SHOULD apply reasonable bounds,
such as a maximum schema depth, a cap on the total number of subschemas, or a per-validation time
budget".
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([depth/1, subschemas/1, dynamic_scopes/1, pointers_into_arrays/1, pattern_length/1,
         errors/1, steps/1,
         endless_references/1, recursion_ends_with_the_value/1,
         exponential_schemas/1, costly_keywords/1, large_values/1,
         patterns_blow_up/1, patterns_blow_up_where_they_are_negated/1,
         patterns_blow_up_where_evaluations_count/1, long_texts/1,
         memory_of_a_match/1,
         compiled_is_a_tree/1, compiled_grows_with_the_schema/1, no_atoms/1]).

%% Generous, for a machine that does much else.
-define(LONG, 20_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [depth, subschemas, dynamic_scopes, pointers_into_arrays, pattern_length, errors, steps,
     endless_references, recursion_ends_with_the_value,
     exponential_schemas, costly_keywords, large_values,
     patterns_blow_up, patterns_blow_up_where_they_are_negated,
     patterns_blow_up_where_evaluations_count, long_texts, memory_of_a_match,
     compiled_is_a_tree, compiled_grows_with_the_schema, no_atoms].

depth(_Config) ->
    {ok, _} = erlmcp_schema:compile(nested(63)),
    ?assertEqual({error, {too_deep, 64}}, erlmcp_schema:compile(nested(64))),
    {ok, _} = erlmcp_schema:compile(nested(2), #{max_depth => 3}),
    ?assertEqual({error, {too_deep, 3}}, erlmcp_schema:compile(nested(3), #{max_depth => 3})),
    %% Also what nothing refers to.
    ?assertEqual({error, {too_deep, 3}},
                 erlmcp_schema:compile(#{~"$defs" => #{~"a" => nested(2)}}, #{max_depth => 3})).

nested(0) -> #{};
nested(N) -> #{~"items" => nested(N - 1)}.

subschemas(_Config) ->
    Of = fun(N) -> #{~"allOf" => lists:duplicate(N - 1, true)} end,
    {ok, _} = erlmcp_schema:compile(Of(10_000)),
    ?assertEqual({error, {too_many_subschemas, 10_000}}, erlmcp_schema:compile(Of(10_001))).

%% What a dynamic reference means depends on the way that leads to it; there are many ways.
dynamic_scopes(_Config) ->
    Resources = #{<<"r", (integer_to_binary(N))/binary>> => #{
        ~"$id" => <<"http://x/", (integer_to_binary(N))/binary>>,
        ~"$dynamicAnchor" => <<"a", (integer_to_binary(N))/binary>>,
        ~"properties" => #{integer_to_binary(M) => #{~"$ref" => integer_to_binary(M)}
                           || M <- lists:seq(1, 12)},
        ~"items" => #{~"$dynamicRef" => <<"#a", (integer_to_binary(N))/binary>>}
    } || N <- lists:seq(1, 12)},
    Schema = #{~"$id" => ~"http://x/0", ~"$defs" => Resources,
               ~"$ref" => ~"1"},
    {Time, Result} = timer:tc(fun() -> erlmcp_schema:compile(Schema) end, millisecond),
    ?assertEqual({error, {too_many_subschemas, 10_000}}, Result),
    ?assert(Time < ?LONG, Time).

%% A pointer passes 10,000 items at most, of all arrays on its way.
pointers_into_arrays(_Config) ->
    Long = lists:duplicate(1_000_000, true),
    Of = fun(Refs) ->
        erlmcp_schema:compile(#{~"allOf" => [#{~"$ref" => Ref} || Ref <- Refs], ~"x" => Long,
                                ~"y" => lists:duplicate(5_002, lists:duplicate(5_002, true))},
                              #{check => false})
    end,
    {ok, _} = Of([~"#/x/10000", ~"#/y/5000/5000", ~"#/y/5001/4999"]),
    [?assertEqual({error, {unresolved_ref, ~"/allOf/0", Ref}}, Of([Ref]))
     || Ref <- [~"#/x/10001", ~"#/x/999999", ~"#/x/1000000", ~"#/y/5000/5001", ~"#/y/5001/5000",
                ~"#/y/0/5002", ~"#/y/5002/0"]],
    quick(fun() -> {ok, _} = Of(lists:duplicate(9_000, ~"#/x/10000")) end),
    %% So is the way to a dynamic anchor of an outer resource.
    Dynamic = fun(Before) ->
        Inner = #{~"$id" => ~"http://i/", ~"$dynamicAnchor" => ~"n",
                  ~"properties" => #{~"a" => #{~"$dynamicRef" => ~"#n"}}},
        Anchored = lists:duplicate(Before, true) ++ [#{~"$dynamicAnchor" => ~"n"}],
        erlmcp_schema:compile(#{~"$id" => ~"http://o/", ~"$ref" => ~"http://i/",
                                ~"$defs" => #{~"i" => Inner, ~"big" => #{~"anyOf" => Anchored}}},
                              #{check => false})
    end,
    {ok, _} = Dynamic(10_000),
    {error, {unresolved_ref, _, ~"#n"}} = Dynamic(10_001).

pattern_length(_Config) ->
    Of = fun(N) -> #{~"pattern" => binary:copy(~"a", N)} end,
    {ok, _} = erlmcp_schema:compile(Of(2_000)),
    ?assertEqual({error, {pattern_too_long, ~"/pattern", 2_000}}, erlmcp_schema:compile(Of(2_001))),
    ?assertEqual({error, {pattern_too_long, ~"/patternProperties/abc", 2}},
                 erlmcp_schema:compile(#{~"patternProperties" => #{~"abc" => true}},
                                       #{max_pattern => 2})).

errors(_Config) ->
    [begin
         {ok, Schema} = erlmcp_schema:compile(#{~"items" => false}, #{max_errors => Most}),
         {error, Errors} = erlmcp_schema:validate([1, 2, 3, 4], Schema),
         ?assertEqual(min(4, Most), length(Errors))
     end || Most <- [1, 3, 4, 5]].

%% The root is free; each item is a step, and so is each reference.
steps(_Config) ->
    Of = fun(Schema) ->
        {ok, Compiled} = erlmcp_schema:compile(Schema, #{max_steps => 100}),
        fun(Value) -> erlmcp_schema:validate(Value, Compiled) end
    end,
    Items = Of(#{~"items" => true}),
    ok = Items(lists:seq(1, 100)),
    ?assertEqual({error, budget}, Items(lists:seq(1, 101))),
    References = Of(#{~"items" => #{~"$ref" => ~"#/$defs/a"}, ~"$defs" => #{~"a" => true}}),
    ok = References(lists:seq(1, 50)),
    ?assertEqual({error, budget}, References(lists:seq(1, 51))),
    %% Errors are looked for within the budget, too.
    Invalid = Of(#{~"items" => #{~"type" => ~"integer"}}),
    ?assertEqual({error, budget}, Invalid(lists:seq(1, 98) ++ [x, y, z])),
    ?assertMatch({error, [_]}, Invalid([~"x"])).

endless_references(_Config) ->
    [?assertEqual({error, {endless_ref, Path}}, erlmcp_schema:compile(Schema), Schema)
     || {Schema, Path} <- [
            {#{~"$ref" => ~"#"}, ~""},
            {#{~"allOf" => [#{~"$ref" => ~"#"}]}, ~""},
            {#{~"if" => true, ~"then" => #{~"not" => #{~"anyOf" => [#{~"$ref" => ~"#"}]}}}, ~""},
            {#{~"$dynamicRef" => ~"#a", ~"$dynamicAnchor" => ~"a"}, ~""},
            {#{~"$schema" => ~"https://json-schema.org/draft/2019-09/schema",
               ~"$recursiveRef" => ~"#"}, ~""},
            {#{~"dependentSchemas" => #{~"a" => #{~"$ref" => ~"#"}}}, ~""},
            {#{~"items" => #{~"$ref" => ~"#/$defs/a"},
               ~"$defs" => #{~"a" => #{~"$ref" => ~"#/$defs/b"},
                             ~"b" => #{~"oneOf" => [#{~"$ref" => ~"#/$defs/a"}]}}}, ~"/$defs/a"}
        ]].

recursion_ends_with_the_value(_Config) ->
    {ok, Schema} = erlmcp_schema:compile(
        #{~"type" => ~"array", ~"items" => #{~"$ref" => ~"#"}, ~"contains" => #{~"$ref" => ~"#"},
          ~"minContains" => 0}),
    Deep = lists:foldl(fun(_, Value) -> [Value] end, [], lists:seq(1, 15)),
    ok = erlmcp_schema:validate(Deep, Schema),
    %% Each level is looked at twice: that doubles with each.
    Deeper = lists:foldl(fun(_, Value) -> [Value] end, [], lists:seq(1, 64)),
    quick(fun() -> ?assertEqual({error, budget}, erlmcp_schema:validate(Deeper, Schema)) end).

exponential_schemas(_Config) ->
    %% 2 ^ 40 ways through it.
    Definitions = #{integer_to_binary(N) => #{Keyword => [reference(N + 1), reference(N + 1)]}
                    || {N, Keyword} <- [{N, ~"allOf"} || N <- lists:seq(1, 39)]},
    Schema = #{~"$ref" => ~"#/$defs/1", ~"$defs" => Definitions#{~"40" => #{~"type" => ~"null"}}},
    quick(fun() -> ?assertEqual({error, budget}, validate(null, Schema)) end),
    %% Branches that fail cost as much as those that pass.
    Or = #{~"$ref" => ~"#/$defs/1",
           ~"$defs" => #{Name => case Of of
                                     #{~"allOf" := Two} -> #{~"anyOf" => Two};
                                     _ -> Of
                                 end || Name := Of <- map_get(~"$defs", Schema)}},
    quick(fun() -> ?assertEqual({error, budget}, validate(1, Or)) end),
    Unevaluated = Schema#{~"unevaluatedProperties" => false},
    quick(fun() -> ?assertEqual({error, budget}, validate(null, Unevaluated)) end).

reference(N) ->
    #{~"$ref" => <<"#/$defs/", (integer_to_binary(N))/binary>>}.

%% One step each would be too little for what they look at.
costly_keywords(_Config) ->
    Many = fun(Schema) ->
        {ok, Compiled} = erlmcp_schema:compile(#{~"allOf" => lists:duplicate(1_000, Schema)},
                                               #{max_steps => 200_000, check => false}),
        Compiled
    end,
    Text = binary:copy(~"é", 500_000),
    Items = lists:seq(1, 300_000),
    Names = [integer_to_binary(N) || N <- lists:seq(1, 500)],
    [begin
         Compiled = Many(Schema),
         quick(fun() ->
             ?assertEqual({error, budget}, erlmcp_schema:validate(Value, Compiled), Schema)
         end)
     end || {Schema, Value} <- [
            {#{~"maxLength" => 999_999}, Text},
            {#{~"pattern" => ~"^[^x]*$"}, Text},
            {#{~"pattern" => ~"^[a-z]*$"}, binary:copy(~"a", 1_000_000)},
            {#{~"uniqueItems" => true}, Items},
            {#{~"minItems" => 1}, Items},
            {#{~"items" => true}, Items},
            {#{~"contains" => #{~"const" => 0}, ~"minContains" => 0, ~"maxContains" => 0}, Items},
            {#{~"propertyNames" => true}, #{Name => 1 || Name <- Names}},
            {#{~"additionalProperties" => #{~"type" => ~"integer"}}, #{Name => 1 || Name <- Names}},
            {#{~"dependentRequired" => #{~"1" => Names}}, #{Name => 1 || Name <- Names}},
            {#{~"required" => Names}, #{Name => 1 || Name <- Names}},
            {#{~"not" => #{~"enum" => [[Name] || Name <- Names]}}, [1]}
        ]],
    %% A text that is longer than all of them is not read.
    Enum = Many(#{~"not" => #{~"enum" => [~"a"]}}),
    quick(fun() -> ok = erlmcp_schema:validate(Text, Enum) end).

large_values(_Config) ->
    Schema = #{~"type" => ~"array",
               ~"items" => #{~"type" => ~"object", ~"properties" => #{~"a" => #{~"minimum" => 0}},
                             ~"required" => [~"a"]}},
    quick(fun() -> ok = validate([#{~"a" => N} || N <- lists:seq(1, 300_000)], Schema) end),
    {error, Errors} = validate([#{~"a" => -N} || N <- lists:seq(1, 300_000)], Schema),
    ?assertEqual(10, length(Errors)),
    Object = #{integer_to_binary(N) => N || N <- lists:seq(1, 100_000)},
    [#{message := Message}] = details(Object, #{~"required" => [~"a"]}),
    ?assert(byte_size(Message) < 300),
    [#{message := Same}] = details([Object, Object], #{~"uniqueItems" => true}),
    ?assert(byte_size(Same) < 300).

patterns_blow_up(_Config) ->
    Text = <<(binary:copy(~"a", 40))/binary, "!">>,
    [begin
         {ok, Schema} = erlmcp_schema:compile(
             #{~"properties" => #{~"a" => #{~"pattern" => Pattern}}}),
         %% The best of three, on a machine that may do much else.
         {Time, Result} = lists:min([
             timer:tc(fun() -> erlmcp_schema:validate(#{~"a" => Text}, Schema) end, millisecond)
             || _ <- [1, 2, 3]]),
         {error, Errors} = Result,
         [#{message := Message, instance_path := ~"/a", schema_path := ~"/properties/a/pattern"}] =
             erlmcp_schema:details(Errors),
         ?assertMatch({match, _}, re:run(Message, "^/a cannot be checked: the pattern .* took too "
                                                  "long\\.$"), {Pattern, Message}),
         %% Without a bound it is years.
         ?assert(Time < ?LONG, {Pattern, Time})
     end || Pattern <- [~"(a+)+$", ~"^(a+)+$", ~"^(a|a)*$", ~"^(a|aa)+$", ~"(a*)*[bc]",
                        ~"^(([a-z])+.)+[A-Z]([a-z])+$"]].

%% No answer is not a no: `not` must not make it a yes.
patterns_blow_up_where_they_are_negated(_Config) ->
    Text = <<(binary:copy(~"a", 40))/binary, "!">>,
    Hostile = #{~"pattern" => ~"^(a+)+$"},
    [?assertMatch([#{message := _}], details(Value, Schema), Schema)
     || {Value, Schema} <- [
            {Text, #{~"not" => Hostile}},
            {Text, #{~"anyOf" => [Hostile, true]}},
            {Text, #{~"oneOf" => [Hostile, true]}},
            {Text, #{~"if" => Hostile, ~"then" => false}},
            {[Text], #{~"contains" => Hostile, ~"minContains" => 0, ~"maxContains" => 0}},
            {#{Text => 1}, #{~"patternProperties" => #{~"^(a+)+$" => false}}},
            {#{Text => 1}, #{~"patternProperties" => #{~"^(a+)+$" => true},
                             ~"additionalProperties" => true}},
            {#{Text => 1}, #{~"propertyNames" => #{~"not" => Hostile}}},
            {#{Text => 1}, #{~"not" => #{~"patternProperties" => #{~"^(a+)+$" => false}}}},
            {#{~"a" => Text}, #{~"allOf" => [#{~"properties" => #{~"a" => #{~"not" => Hostile}}}],
                                ~"unevaluatedProperties" => false}}
        ]].

%% A check whose result depends on what was evaluated looks for errors meanwhile.
patterns_blow_up_where_evaluations_count(_Config) ->
    Text = <<(binary:copy(~"a", 40))/binary, "!">>,
    Hostile = #{~"properties" => #{~"a" => #{~"pattern" => ~"^(a+)+$"}}},
    Unevaluated = #{~"allOf" => [Hostile], ~"unevaluatedProperties" => false},
    [begin
         ?assertMatch([#{message := _}], details(#{~"a" => Text}, Given), Given),
         {ok, Schema} = erlmcp_schema:compile(Given),
         false = erlmcp_schema:is_valid(#{~"a" => Text}, Schema)
     end || Given <- [Unevaluated, #{~"not" => Unevaluated}]].

%% Patterns that take time linear in the text have the time for it, others are cut.
long_texts(_Config) ->
    Text = binary:copy(~"a", 1_000_000),
    [quick(fun() -> ok = validate(Text, #{~"pattern" => Pattern}) end)
     || Pattern <- [~"^a+$", ~"^[^b]*$", ~"a$", ~B"\S"]],
    quick(fun() ->
        ok = validate(binary:part(Text, 0, 600_000), #{~"pattern" => ~"^(?:[a-z0-9+/]{4})*$"})
    end),
    quick(fun() -> {error, [_]} = validate(Text, #{~"pattern" => ~"b"}) end),
    quick(fun() -> {error, [_]} = validate(Text, #{~"pattern" => ~"a+b"}) end),
    quick(fun() -> {error, [_]} = validate(Text, #{~"pattern" => ~"^(a|b)*c"}) end).

%% Each repetition takes memory until the match ends, so their number has a bound of its own. The
%% match needs few steps, and is not cut for its time.
memory_of_a_match(_Config) ->
    Schema = #{~"pattern" => ~"^(?:ab|cd)*$"},
    ok = validate(binary:copy(~"ab", 100_000), Schema),
    [#{message := Message}] = details(binary:copy(~"ab", 300_000), Schema),
    ?assertMatch({match, _}, re:run(Message, "cannot be checked: the pattern")).

%% What is compiled is copied to other processes: sharing would come out as growth.
compiled_is_a_tree(_Config) ->
    Definitions = #{integer_to_binary(N) => #{~"properties" => #{~"a" => reference(N + 1),
                                                                 ~"b" => reference(N + 1)}}
                    || N <- lists:seq(1, 39)},
    {ok, Compiled} = erlmcp_schema:compile(
        #{~"$ref" => ~"#/$defs/1", ~"$defs" => Definitions#{~"40" => #{~"type" => ~"null"}}}),
    ?assert(erts_debug:flat_size(Compiled) < 50_000),
    {ok, Nested} = erlmcp_schema:compile(
        lists:foldl(fun(_, Schema) -> #{~"oneOf" => [Schema], ~"not" => Schema} end,
                    #{~"type" => ~"null"}, lists:seq(1, 8))),
    ?assert(erts_debug:flat_size(Nested) < 200_000).

%% Nor is anything held twice that holds others: in a hostile schema it would double at each level.
compiled_grows_with_the_schema(_Config) ->
    Size = fun(Around, Levels) ->
        Schema = lists:foldl(fun(_, Inside) -> Around(Inside) end, #{~"type" => ~"null"},
                             lists:seq(1, Levels)),
        {ok, Compiled} = erlmcp_schema:compile(Schema, #{check => false, max_depth => 200}),
        erts_debug:flat_size(Compiled)
    end,
    [?assert(Size(Around, 60) < 7 * Size(Around, 10), Around(inside))
     || Around <- [fun(In) -> #{~"properties" => #{~"a" => In}} end,
                   fun(In) -> #{~"properties" => #{~"a" => In}, ~"required" => [~"a", ~"b"],
                                ~"additionalProperties" => #{~"type" => ~"string"}} end,
                   fun(In) -> #{~"patternProperties" => #{~"a" => In},
                                ~"additionalProperties" => false} end,
                   fun(In) -> #{~"properties" => #{~"b" => true},
                                ~"additionalProperties" => In} end,
                   fun(In) -> #{~"propertyNames" => In} end,
                   fun(In) -> #{~"dependentSchemas" => #{~"a" => In}} end,
                   fun(In) -> #{~"items" => In, ~"minItems" => 1} end,
                   fun(In) -> #{~"prefixItems" => [In], ~"items" => false} end,
                   fun(In) -> #{~"contains" => In, ~"maxContains" => 2} end,
                   fun(In) -> #{~"allOf" => [In]} end,
                   fun(In) -> #{~"anyOf" => [In, #{~"type" => ~"string"}]} end,
                   fun(In) -> #{~"oneOf" => [In, #{~"type" => ~"string"}]} end,
                   fun(In) -> #{~"oneOf" => [tagged(~"a", In), tagged(~"b", true)]} end,
                   fun(In) -> #{~"not" => In} end,
                   fun(In) -> #{~"if" => In, ~"then" => true, ~"else" => false} end,
                   fun(In) -> #{~"if" => true, ~"then" => In} end,
                   fun(In) -> #{~"allOf" => [In], ~"unevaluatedProperties" => false} end,
                   fun(In) -> #{~"allOf" => [true], ~"unevaluatedProperties" => In} end,
                   fun(In) -> #{~"anyOf" => [In], ~"unevaluatedItems" => false} end,
                   fun(In) -> #{~"contains" => true, ~"unevaluatedItems" => In} end]].

tagged(Tag, In) ->
    #{~"type" => ~"object", ~"required" => [~"kind"],
      ~"properties" => #{~"kind" => #{~"const" => Tag}, ~"in" => In}}.

no_atoms(_Config) ->
    Schema = fun(N) ->
        Name = <<"no_such_atom_", (integer_to_binary(N))/binary>>,
        #{Name => 1, ~"properties" => #{Name => #{~"$anchor" => Name, ~"enum" => [Name]}},
          ~"required" => [Name], ~"format" => Name, ~"$id" => Name}
    end,
    _ = validate(1, Schema(0)),
    Before = erlang:system_info(atom_count),
    [ok = validate(1, Schema(N)) || N <- lists:seq(1, 100)],
    %% Others of this node may make some.
    ?assert(erlang:system_info(atom_count) - Before < 50).

quick(Fun) ->
    {Time, _} = timer:tc(Fun, millisecond),
    ?assert(Time < ?LONG, Time).

validate(Value, Schema) ->
    {ok, Compiled} = erlmcp_schema:compile(Schema),
    erlmcp_schema:validate(Value, Compiled).

details(Value, Schema) ->
    {error, Errors} = validate(Value, Schema),
    erlmcp_schema:details(Errors).
