-module(erlmcp_tool_schema).
-moduledoc """
Compiles the schemas of a tool when the tool is defined, checks arguments before its handler runs,
and structured content after it. Pure.

Source: specification, "Server features / Tools", "Output Schema" and "Security Considerations".

Internal.
""".

-export([compile/2, check_arguments/3, check_result/3, is_promised/2]).

-type validators() :: #{input_validator | output_validator => erlmcp_schema:compiled()}.
-type metaschemas() :: #{Uri :: binary() => erlmcp_schema:compiled()}.

%% Keywords that no value can violate.
-define(SILENT, [~"$schema", ~"$comment", ~"$defs", ~"definitions", ~"title", ~"description",
                 ~"default", ~"examples", ~"deprecated", ~"readOnly", ~"writeOnly"]).

-doc """
Returns the validators for the arguments and the structured content of a tool, given as its JSON
object. The arguments have none if it is obvious that every object fits the input schema. The
structured content has one if the tool has an output schema. The error names the wrong schema, and
`Why` says what is wrong in it.
""".
-spec compile(Wire :: #{binary() => term()}, metaschemas()) ->
    {ok, validators()} | {error, input_schema | output_schema, Why :: binary()}.
compile(#{~"inputSchema" := Input} = Wire, Metaschemas) when
    Input =:= #{~"type" => ~"object", ~"properties" => #{}}
->
    output(Wire, Metaschemas);
compile(#{~"inputSchema" := Input} = Wire, Metaschemas) ->
    maybe
        {ok, InputValidator} ?= validator(input_schema, Input, Metaschemas),
        {ok, Output} ?= output(Wire, Metaschemas),
        case fits_all(Input) of
            true -> {ok, Output};
            false -> {ok, Output#{input_validator => InputValidator}}
        end
    end.

output(#{~"outputSchema" := Schema}, Metaschemas) ->
    maybe
        {ok, Validator} ?= validator(output_schema, Schema, Metaschemas),
        {ok, #{output_validator => Validator}}
    end;
output(_, _) ->
    {ok, #{}}.

validator(Field, Schema, Metaschemas) ->
    case erlmcp_schema:compile(Schema, #{formats => assert, metaschemas => Metaschemas}) of
        {ok, _} = Compiled -> Compiled;
        {error, Reason} -> {error, Field, erlmcp_schema:reason(Reason)}
    end.

%% Returns `true` if every object fits the schema, and `false` if that is not obvious.
fits_all(Schema) ->
    lists:all(fun({~"type", Type}) -> Type =:= ~"object";
                 ({~"required", Names}) -> Names =:= [];
                 ({~"properties", Properties}) ->
                     lists:all(fun says_nothing/1, maps:values(Properties));
                 ({~"additionalProperties", Others}) -> says_nothing(Others);
                 ({Keyword, _}) -> lists:member(Keyword, ?SILENT)
              end, maps:to_list(Schema)).

says_nothing(#{} = Schema) -> maps:keys(Schema) -- ?SILENT =:= [];
says_nothing(Schema) -> Schema =:= true.

-doc """
Checks the arguments of a call. If they do not fit, returns an encoded result with up to ten errors
for the model (`tool_error`). Before 2025-11-25, a refusal is returned instead.
""".
-spec check_arguments(Arguments :: map(), erlmcp_schema:compiled(), erlmcp_result:context()) ->
    ok | {tool_error, iodata()} | {error, erlmcp_refusal:refusal()}.
check_arguments(Arguments, Validator, #{revision := Revision} = Context) ->
    case erlmcp_schema:validate(Arguments, Validator) of
        ok ->
            ok;
        {error, Found} ->
            case erlmcp_revision:invalid_arguments(Revision) of
                result ->
                    {tool_error, _} =
                        erlmcp_result:from(tool, {error, text(Found)}, #{}, Context);
                error -> {error, erlmcp_params:unfit(~"arguments", Found)}
            end
    end.

text(Found) ->
    Sentences = [[~"\n", Sentence] || Sentence <- erlmcp_schema:explain(Found)],
    iolist_to_binary([~"The arguments do not fit the tool's input schema." | Sentences]).

-doc """
Checks that `Content`, the JSON of a tool's structured content, fits the output schema that clients
of the revision were shown. `none`, for a result without structured content, does not fit. If the
clients were shown no output schema, anything fits. The error has up to ten sentences.
""".
-spec check_result(Content :: binary() | none, erlmcp_definition:definition() | #{},
                   erlmcp_revision:revision()) ->
    ok | {error, Errors :: [binary(), ...]}.
check_result(Content, #{output_validator := Validator, wire := Wire}, Revision) ->
    case is_promised(Wire, Revision) of
        false -> ok;
        true when Content =:= none -> {error, [~"There is no structured content."]};
        true ->
            case erlmcp_schema:validate(json:decode(Content), Validator) of
                ok -> ok;
                {error, Found} -> {error, erlmcp_schema:explain(Found)}
            end
    end;
check_result(_, _, _) ->
    ok.

-doc """
Returns `true` if clients of a revision are shown the output schema of a tool, given as its JSON
object. Before 2025-06-18 no schema is shown, and before 2026-07-28 only one of type object.
""".
-spec is_promised(Wire :: #{binary() => term()}, erlmcp_revision:revision()) -> boolean().
is_promised(#{~"outputSchema" := #{~"type" := ~"object"}}, Revision) ->
    erlmcp_revision:structured(#{}, Revision);
is_promised(#{~"outputSchema" := _}, Revision) ->
    erlmcp_revision:structured(null, Revision);
is_promised(_, _) ->
    false.
