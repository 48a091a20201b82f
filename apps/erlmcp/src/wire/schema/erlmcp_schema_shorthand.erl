-module(erlmcp_schema_shorthand).
-moduledoc """
A short way to write the schemas that most tools have. Pure.

| shorthand | what it is |
| --- | --- |
| `string`, `integer`, `number`, `boolean`, `null` | a value of that type |
| `any`, `object`, `array` | any value, object, array |
| `{enum, [a, ~"b", 3]}`, `{const, 1}` | one of these values; this value |
| `[Type]` | an array of such items |
| `#{name => Type}`, `{fields, #{name => Type}}` | an object with these members and no others |
| `{any_of, [Type, ...]}` | what one of these is |
| `{optional, Type}` | of a member: it may be absent |
| `{Type, #{minimum => 1, ...}}` | the same, with more keywords of JSON Schema |
| `{Type, ~"..."}` | the same, with a description |
| `{schema, Map}` | JSON Schema as it is |

Where a map may be JSON Schema, as in a tool's definition, an object is written as `{fields, Map}`:
a map there is never a shorthand. Names and keywords may be atoms or binaries; an atom that stands
for a value is a string, except `true`, `false` and `null`.
""".

-export([expand/1]).

-export_type([shorthand/0, fields/0]).

-type fields() :: #{atom() | binary() => shorthand() | {optional, shorthand()}}.
-type shorthand() ::
    string | integer | number | boolean | null | any | object | array
    | {enum, [term(), ...]}
    | {const, term()}
    | [shorthand()]
    | fields()
    | {fields, fields()}
    | {any_of, [shorthand(), ...]}
    | {schema, map()}
    | {shorthand(), Keywords :: #{atom() | binary() => term()} | Description :: binary()}.

-doc """
The JSON Schema, with binaries as its keys.

The reason of an error has the names that lead to the part of the shorthand that is none.

## Examples

```erlang
1> {ok, Schema} = erlmcp_schema_shorthand:expand({fields, #{
       city => {string, ~"Where"},
       days => {optional, {integer, #{minimum => 1}}}
   }}).
2> Schema.
#{~"type" => ~"object",
  ~"properties" => #{
      ~"city" => #{~"type" => ~"string", ~"description" => ~"Where"},
      ~"days" => #{~"type" => ~"integer", ~"minimum" => 1}
  },
  ~"required" => [~"city"],
  ~"additionalProperties" => false}
3> erlmcp_schema_shorthand:expand(#{size => #{width => int}}).
{error, {bad_shorthand, [~"size", ~"width"], int}}
```
""".
-spec expand(shorthand()) ->
    {ok, erlmcp_json:json_term()} | {error, {bad_shorthand, [binary()], term()}}.
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
    #{~"enum" => json(Values, Path)};
schema({const, Value}, Path) ->
    #{~"const" => json(Value, Path)};
schema({schema, Schema}, Path) when is_map(Schema) ->
    json(Schema, Path);
schema({fields, Fields}, Path) when is_map(Fields) ->
    schema(Fields, Path);
schema({any_of, [_ | _] = Types}, Path) ->
    #{~"anyOf" => [schema(Type, Path) || Type <- Types]};
schema([Type], Path) ->
    #{~"type" => ~"array", ~"items" => schema(Type, Path)};
schema(#{} = Fields, Path) ->
    Named = [{name(Name, Path), Type} || Name := Type <- Fields],
    #{
        ~"type" => ~"object",
        ~"properties" =>
            #{Name => schema(present(Type), [Name | Path]) || {Name, Type} <- Named},
        ~"required" => lists:sort([Name || {Name, Type} <- Named, not is_optional(Type)]),
        ~"additionalProperties" => false
    };
schema({optional, _} = Type, Path) ->
    throw({bad_shorthand, Path, Type});
schema({Type, Description}, Path) when is_binary(Description) ->
    maps:put(~"description", Description, schema(Type, Path));
schema({Type, #{} = Keywords}, Path) ->
    maps:merge(schema(Type, Path), json(Keywords, Path));
schema(Other, Path) ->
    throw({bad_shorthand, Path, Other}).

is_optional({optional, _}) -> true;
is_optional(_) -> false.

present({optional, Type}) -> Type;
present(Type) -> Type.

json(#{} = Map, Path) -> #{name(Key, Path) => json(Value, Path) || Key := Value <- Map};
json([_ | _] = List, Path) -> [json(Value, Path) || Value <- List];
json([], _) -> [];
json(Value, _) when is_binary(Value); is_number(Value) -> Value;
json(Value, _) when Value =:= true; Value =:= false; Value =:= null -> Value;
json(Value, _) when is_atom(Value) -> atom_to_binary(Value);
json(Value, Path) -> throw({bad_shorthand, Path, Value}).

name(Name, _) when is_atom(Name) -> atom_to_binary(Name);
name(Name, _) when is_binary(Name) -> Name;
name(Name, Path) -> throw({bad_shorthand, Path, Name}).
