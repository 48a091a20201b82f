-module(erlmcp_schema_shorthand).
-moduledoc """
Expands the shorthand of schemas (`t:erlmcp_schema:shorthand/0`), and tells it from a map that is
JSON Schema already. Pure.

Internal.
""".

-export([expand/1, is_json_schema/1, reason/1]).

-type reason() :: {bad_shorthand, [binary()], term()}.

-doc """
Expands a shorthand to JSON Schema whose keys are binaries. In the error
`{bad_shorthand, Path, Term}`, `Term` is the part that is neither a shorthand nor JSON. `Path` has
the names of the properties that lead to `Term`.
""".
-spec expand(erlmcp_schema:shorthand()) ->
    {ok, #{binary() => erlmcp_schema:json()}} | {error, reason()}.
expand(Shorthand) ->
    try
        {ok, schema(Shorthand, [])}
    catch
        throw:{bad_shorthand, Path, Term} -> {error, {bad_shorthand, lists:reverse(Path), Term}}
    end.

schema(any, _) ->
    #{};
schema(Type, _)
        when Type =:= string; Type =:= integer; Type =:= number; Type =:= boolean; Type =:= null;
             Type =:= object; Type =:= array ->
    #{~"type" => atom_to_binary(Type)};
schema({enum, [_ | _] = Values}, Path) ->
    Json = json(Values, Path),
    maps:put(~"enum", Json, type_of(Json));
schema({const, Value}, Path) ->
    #{~"const" => json(Value, Path)};
schema({schema, Schema}, Path) when is_map(Schema) ->
    json(Schema, Path);
schema({fields, Fields}, Path) when is_map(Fields) ->
    object(Fields, Path);
schema({any_of, [_ | _] = Types}, Path) ->
    #{~"anyOf" => [schema(Type, Path) || Type <- Types]};
schema([Type], Path) ->
    #{~"type" => ~"array", ~"items" => schema(Type, Path)};
schema(Map, _) when is_map(Map), map_size(Map) =:= 0 ->
    #{~"type" => ~"object"};
schema(#{} = Map, Path) ->
    case is_json_schema(Map) of
        true -> json(Map, Path);
        false -> object(Map, Path)
    end;
schema({optional, _} = Type, Path) ->
    throw({bad_shorthand, Path, Type});
schema({Type, Description}, Path) when is_binary(Description) ->
    maps:put(~"description", Description, schema(Type, Path));
schema({Type, #{} = Keywords}, Path) ->
    maps:merge(schema(Type, Path), json(Keywords, Path));
schema(Other, Path) ->
    throw({bad_shorthand, Path, Other}).

object(Fields, Path) ->
    Named = named(Fields, Path),
    Required = lists:sort([Name || Name := Type <- Named, not is_optional(Type)]),
    Object = #{
        ~"type" => ~"object",
        ~"properties" =>
            #{Name => schema(present(Type), [Name | Path]) || Name := Type <- Named},
        ~"additionalProperties" => false
    },
    maps:merge(Object, #{~"required" => Required || Required =/= []}).

%% The type of all values, if they have the same. Many clients require a `type` next to an `enum`.
type_of(Values) ->
    Types = [{~"string", fun is_binary/1}, {~"integer", fun is_integer/1},
             {~"number", fun is_number/1}, {~"boolean", fun is_boolean/1}],
    case [Type || {Type, Is} <- Types, lists:all(Is, Values)] of
        [Type | _] -> #{~"type" => Type};
        [] -> #{}
    end.

is_optional({optional, _}) -> true;
is_optional(_) -> false.

present({optional, Type}) -> Type;
present(Type) -> Type.

json(#{'__struct__' := Module} = Struct, Path) when is_atom(Module) ->
    case erlmcp_elixir_terms:iso8601(Struct) of
        {ok, Text} -> Text;
        error -> throw({bad_shorthand, Path, Struct})
    end;
json(#{} = Map, Path) ->
    #{Key => json(Value, [Key | Path]) || Key := Value <- named(Map, Path)};
json(List, Path) when length(List) >= 0 -> [json(Value, Path) || Value <- List];
json(Value, _) when is_binary(Value); is_number(Value) -> Value;
json(Value, _) when Value =:= true; Value =:= false; Value =:= null -> Value;
json(nil, _) -> null;
json(Value, _) when is_atom(Value) -> atom_to_binary(Value);
json(Value, Path) -> throw({bad_shorthand, Path, Value}).

named(Map, Path) ->
    Named = #{name(Name, Path) => Value || Name := Value <- Map},
    %% An atom and a binary of the same name would be one key.
    map_size(Named) =:= map_size(Map) orelse throw({bad_shorthand, Path, Map}),
    Named.

name(Name, _) when is_atom(Name) -> atom_to_binary(Name);
name(Name, _) when is_binary(Name) -> Name;
name(Name, Path) -> throw({bad_shorthand, Path, Name}).

-doc """
Returns `true` if a map counts as JSON Schema, and not as a shorthand. Such a map has a key that
begins with `$`, or a `type` with names of types. Or one of its keys is `properties`,
`additionalProperties`, `anyOf`, `oneOf` or `allOf`.
""".
-spec is_json_schema(map()) -> boolean().
is_json_schema(Map) ->
    lists:any(fun says_so/1, maps:to_list(Map)).

says_so({type, Types}) -> is_type(Types);
says_so({~"type", Types}) -> is_type(Types);
says_so({Name, _}) when is_atom(Name) -> is_keyword(atom_to_binary(Name));
says_so({Name, _}) -> is_keyword(Name).

is_type([_ | _] = Names) when length(Names) > 0 -> lists:all(fun is_type_name/1, Names);
is_type(Name) -> is_type_name(Name).

is_type_name(Name) when is_atom(Name) -> is_type_name(atom_to_binary(Name));
is_type_name(Name) ->
    lists:member(Name, [~"string", ~"integer", ~"number", ~"boolean", ~"null", ~"object",
                        ~"array"]).

is_keyword(<<"$", _/binary>>) -> true;
is_keyword(Name) ->
    lists:member(Name, [~"properties", ~"anyOf", ~"oneOf", ~"allOf", ~"additionalProperties"]).

-doc "Returns a sentence that says why a term is not a schema.".
-spec reason(reason()) -> binary().
reason({bad_shorthand, Path, Term}) ->
    Where = [[$/, Name] || Name <- Path],
    Text = io_lib:format("~ts is neither a shorthand nor JSON: ~0tp.",
                         [case Where of [] -> ~"The schema"; _ -> Where end, Term],
                         [{chars_limit, 300}]),
    <<_/binary>> = unicode:characters_to_binary(Text).
