-module(erlmcp_schema_dialect).
-moduledoc """
The keywords of a schema, by the dialect that its `$schema` names: JSON Schema 2020-12, 2019-09,
draft-07, or a given meta-schema made of their vocabularies. Pure.

Internal.
""".

-export([named/2, uri/1, draft/1, formats/1, has/2]).
-export([effective/2, children/2]).

-export_type([dialect/0, draft/0, child/0]).

-record(dialect, {
    uri :: binary(),
    draft :: draft(),
    keywords :: #{binary() => true},
    formats = annotated :: annotated | asserted
}).

-opaque dialect() :: #dialect{}.
-type draft() :: draft_07 | draft_2019_09 | draft_2020_12.

%% A subschema that is applied to the instance itself (`here`), to a part of it (`inside`), or only
%% kept for references (`stored`).
-type child() :: {here | inside | stored, Tokens :: [binary()], erlmcp_schema:json()}.

-define(URI_2020, "https://json-schema.org/draft/2020-12/").
-define(URI_2019, "https://json-schema.org/draft/2019-09/").
-define(URI_07, ~"http://json-schema.org/draft-07/schema").

-doc """
Returns the dialect of a schema whose `$schema` is `Uri`, the address of a meta-schema. `Documents`
are the schemas that were given, by their addresses. Throws `{unsupported_dialect, Address}` if
`Uri` leads to none of the three published dialects, directly or through `Documents`. `Address` is
that of the meta-schema at which the way ends. Throws `{unsupported_vocabulary, Vocabulary}` if a
meta-schema on the way requires a vocabulary that is not known.
""".
-spec named(Uri :: binary(), Documents :: #{binary() => erlmcp_schema:json()}) -> dialect().
named(Uri, Documents) ->
    named(Uri, Documents, []).

named(Uri0, Documents, Seen) ->
    Uri = without_empty_fragment(Uri0),
    case {Uri, Documents} of
        {<<?URI_2020, "schema">>, _} -> standard(draft_2020_12);
        {<<?URI_2019, "schema">>, _} -> standard(draft_2019_09);
        {?URI_07, _} -> standard(draft_07);
        {_, #{Uri := #{~"$schema" := Meta} = Document}} when is_binary(Meta) ->
            lists:member(Uri, Seen) andalso throw({unsupported_dialect, Uri}),
            custom(Document, (named(Meta, Documents, [Uri | Seen]))#dialect{uri = Uri});
        _ -> throw({unsupported_dialect, Uri0})
    end.

without_empty_fragment(Uri) ->
    case binary:split(Uri, ~"#") of
        [Whole, ~""] -> Whole;
        _ -> Uri
    end.

standard(Draft) ->
    Uri = case Draft of
        draft_2020_12 -> <<?URI_2020, "schema">>;
        draft_2019_09 -> <<?URI_2019, "schema">>;
        draft_07 -> ?URI_07
    end,
    Names = [core, applicator, unevaluated, validation, format],
    #dialect{uri = Uri, draft = Draft, keywords = keywords(Names, Draft)}.

custom(#{~"$vocabulary" := Vocabularies}, #dialect{draft = Draft} = Dialect)
        when is_map(Vocabularies), Draft =/= draft_07 ->
    Included = maps:fold(fun(Uri, Required, Names) ->
        case vocabulary(Uri, Draft) of
            unknown when Required -> throw({unsupported_vocabulary, Uri});
            unknown -> Names;
            Name -> [Name | Names]
        end
    end, [core], Vocabularies),
    Formats = case lists:member(format_assertion, Included) of
        true -> asserted;
        false -> annotated
    end,
    Dialect#dialect{keywords = keywords(Included, Draft), formats = Formats};
custom(_, Dialect) ->
    Dialect.

vocabulary(<<?URI_2020, "vocab/", Name/binary>>, draft_2020_12) -> vocabulary(Name);
vocabulary(<<?URI_2019, "vocab/format">>, draft_2019_09) -> format;
vocabulary(<<?URI_2019, "vocab/", Name/binary>>, draft_2019_09) -> vocabulary(Name);
vocabulary(_, _) -> unknown.

vocabulary(~"core") -> core;
vocabulary(~"applicator") -> applicator;
vocabulary(~"unevaluated") -> unevaluated;
vocabulary(~"validation") -> validation;
vocabulary(~"format-annotation") -> format;
vocabulary(~"format-assertion") -> format_assertion;
vocabulary(~"meta-data") -> meta_data;
vocabulary(~"content") -> content;
vocabulary(_) -> unknown.

keywords(Names, Draft) ->
    #{Keyword => true || Name <- Names, Keyword <- keyword_list(Name, Draft)}.

keyword_list(core, draft_07) ->
    [~"$ref", ~"definitions"];
keyword_list(core, draft_2019_09) ->
    [~"$ref", ~"$recursiveRef", ~"$recursiveAnchor", ~"$anchor", ~"$defs", ~"definitions"];
keyword_list(core, draft_2020_12) ->
    [~"$ref", ~"$dynamicRef", ~"$dynamicAnchor", ~"$anchor", ~"$defs", ~"definitions"];
keyword_list(applicator, Draft) ->
    [~"properties", ~"patternProperties", ~"additionalProperties", ~"propertyNames", ~"items",
     ~"contains", ~"allOf", ~"anyOf", ~"oneOf", ~"not", ~"if", ~"then", ~"else",
     %% Replaced in 2019-09 by two keywords; a validator may still support it.
     ~"dependencies"] ++
        case Draft of
            draft_07 -> [~"additionalItems"];
            %% Only 2020-12 has a vocabulary of its own for these keywords.
            draft_2019_09 ->
                [~"additionalItems", ~"dependentSchemas", ~"unevaluatedItems",
                 ~"unevaluatedProperties"];
            draft_2020_12 -> [~"prefixItems", ~"dependentSchemas"]
        end;
keyword_list(unevaluated, draft_2020_12) ->
    [~"unevaluatedItems", ~"unevaluatedProperties"];
keyword_list(validation, Draft) ->
    [~"type", ~"enum", ~"const", ~"multipleOf", ~"maximum", ~"exclusiveMaximum", ~"minimum",
     ~"exclusiveMinimum", ~"maxLength", ~"minLength", ~"pattern", ~"maxItems", ~"minItems",
     ~"uniqueItems", ~"maxProperties", ~"minProperties", ~"required"] ++
        case Draft of
            draft_07 -> [];
            _ -> [~"maxContains", ~"minContains", ~"dependentRequired"]
        end;
keyword_list(Format, _) when Format =:= format; Format =:= format_assertion ->
    [~"format"];
keyword_list(_, _) ->
    [].

-doc "Returns the address of the dialect's meta-schema.".
-spec uri(dialect()) -> binary().
uri(#dialect{uri = Uri}) -> Uri.

-doc "Returns the draft whose rules the dialect follows.".
-spec draft(dialect()) -> draft().
draft(#dialect{draft = Draft}) -> Draft.

-doc """
Returns `asserted` if schemas of the dialect always assert `format`, and `annotated` if `format` is
only an annotation in them.
""".
-spec formats(dialect()) -> annotated | asserted.
formats(#dialect{formats = Formats}) -> Formats.

-doc "Returns `true` if the dialect has the keyword.".
-spec has(binary(), dialect()) -> boolean().
has(Keyword, #dialect{keywords = Keywords}) -> is_map_key(Keyword, Keywords).

-doc """
Returns a schema without the keywords that the dialect ignores. Draft-07 ignores all keywords next
to `$ref`, and the other drafts ignore none.
""".
-spec effective(map(), dialect()) -> map().
effective(#{~"$ref" := Ref}, #dialect{draft = draft_07}) -> #{~"$ref" => Ref};
effective(Schema, _) -> Schema.

-doc """
Returns the direct subschemas of a schema: those that are values of the dialect's keywords, or stand
in a list or map there. Values that are not schemas are left out. A subschema is `here` if it is for
the whole instance, and `inside` if it is for a part of it. A `stored` one is only for references.
""".
-spec children(map(), dialect()) -> [child()].
children(Schema, #dialect{keywords = Keywords}) ->
    [Child || Keyword := Value <- Schema,
              is_map_key(Keyword, Keywords),
              {Shape, How} <- [position(Keyword)],
              Child <- children(Shape, How, Keyword, Value)].

children(one, How, Keyword, Value) when is_map(Value); is_boolean(Value) ->
    [{How, [Keyword], Value}];
children(Shape, How, Keyword, Values) when is_list(Values), Shape =/= one, Shape =/= map ->
    [{How, [Keyword, integer_to_binary(N)], Value}
     || {N, Value} <- lists:enumerate(0, Values), is_map(Value) orelse is_boolean(Value)];
children(one_or_list, How, Keyword, Value) ->
    children(one, How, Keyword, Value);
children(map, How, Keyword, Values) when is_map(Values) ->
    [{How, [Keyword, Name], Value}
     || Name := Value <- Values, is_map(Value) orelse is_boolean(Value)];
children(_, _, _, _) ->
    [].

position(~"allOf") -> {list, here};
position(~"anyOf") -> {list, here};
position(~"oneOf") -> {list, here};
position(~"not") -> {one, here};
position(~"if") -> {one, here};
position(~"then") -> {one, here};
position(~"else") -> {one, here};
position(~"dependentSchemas") -> {map, here};
position(~"dependencies") -> {map, here};
position(~"properties") -> {map, inside};
position(~"patternProperties") -> {map, inside};
position(~"additionalProperties") -> {one, inside};
position(~"unevaluatedProperties") -> {one, inside};
position(~"propertyNames") -> {one, inside};
position(~"prefixItems") -> {list, inside};
position(~"items") -> {one_or_list, inside};
position(~"additionalItems") -> {one, inside};
position(~"unevaluatedItems") -> {one, inside};
position(~"contains") -> {one, inside};
position(~"$defs") -> {map, stored};
position(~"definitions") -> {map, stored};
position(_) -> none.
