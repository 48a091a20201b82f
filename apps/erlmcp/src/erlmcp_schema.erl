-module(erlmcp_schema).
-moduledoc """
JSON Schema: compiles a schema once into funs, which then validate values without reading it again.
Pure.

The dialects are 2020-12 (the default), 2019-09 and draft-07, and meta-schemas made of their
vocabularies. A schema in another dialect is refused. The required part of the official test suite
passes for all three.

No document is ever fetched. The caller gives the documents that a `$ref` can lead to, and a `$ref`
that leads nowhere is refused. Schemas and values may be hostile. The depth of a schema, the number
of its subschemas and the length of its patterns are bounded. So are the steps of a validation, and
no pattern can take long.

`expand/1` makes a schema of the shorthand in which tools and forms can be written.

```erlang
{ok, Json} = erlmcp_schema:expand(#{days => {integer, #{minimum => 1}}}),
{ok, Schema} = erlmcp_schema:compile(Json),
{error, Errors} = erlmcp_schema:validate(#{~"days" => 0}, Schema),
[~"/days must be at least 1, not 0."] = erlmcp_schema:explain(Errors).
```
""".

-include("schema/erlmcp_schema.hrl").

-export([compile/1, compile/2, validate/2, is_valid/2]).
-export([explain/1, details/1, reason/1, expand/1, metaschemas/0]).

-export_type([json/0, compiled/0, options/0, reason/0, error/0, detail/0]).
-export_type([shorthand/0, fields/0]).

-record(compiled, {
    table :: tuple(),
    max_steps :: pos_integer(),
    max_errors :: pos_integer()
}).

-doc "JSON as `json:decode/1` returns it.".
-type json() ::
    null | boolean() | number() | binary() | [json()] | #{binary() => json()}.
-doc "A compiled schema. It can be stored, and used by several processes.".
-opaque compiled() :: #compiled{}.
-doc "The options of `compile/2`, whose documentation has a table of them.".
-type options() :: #{
    dialect => Uri :: binary(),
    formats => assert | annotate,
    schemas => #{Uri :: binary() => json()},
    check => boolean(),
    metaschemas => #{Uri :: binary() => compiled()},
    max_depth => pos_integer(),
    max_subschemas => pos_integer(),
    max_pattern => pos_integer(),
    max_steps => pos_integer(),
    max_errors => pos_integer()
}.
-doc """
The reason why a schema cannot be compiled, or a shorthand expanded. `Path` is a JSON pointer to the
place in the schema; `Names` are the names that lead to the place in a shorthand.

- `unsupported_dialect`, `unsupported_vocabulary`: the schema is written in another language.
- `invalid_schema`: the meta-schema of its dialect refuses the schema, see `t:detail/0`.
- `invalid_keyword`, `invalid_pattern`, `duplicate_id`: a keyword has a value that it cannot have.
- `unresolved_ref`: a reference leads to no schema that was given, or its JSON pointer passes more
  than 10,000 items of arrays.
- `endless_ref`: a reference leads back to itself for the same value, so no validation would end.
- `too_deep`, `too_many_subschemas`, `pattern_too_long`: a bound of `t:options/0` is exceeded.
- `budget`: the meta-schema needs more than 2,000,000 steps to check the schema.
- `bad_shorthand`: `Term` is neither a shorthand nor JSON.
""".
-type reason() ::
    {unsupported_dialect, Uri :: binary()}
    | {unsupported_vocabulary, Uri :: binary()}
    | {invalid_schema, [detail()]}
    | {invalid_keyword, Path :: binary(), Keyword :: binary()}
    | {invalid_pattern, Path :: binary(), Pattern :: binary()}
    | {pattern_too_long, Path :: binary(), Limit :: pos_integer()}
    | {unresolved_ref, Path :: binary(), Ref :: binary()}
    | {endless_ref, Path :: binary()}
    | {duplicate_id, Uri :: binary()}
    | {too_deep, Limit :: pos_integer()}
    | {too_many_subschemas, Limit :: pos_integer()}
    | {bad_shorthand, Names :: [binary()], Term :: term()}
    | budget.
-doc "An error of a validation, for `details/1` and `explain/1`.".
-opaque error() :: erlmcp_schema_error:error().
-doc """
An error as data. `instance_path` is the place in the value. `schema_path` is the way through the
schema and its references to the keyword that refuses the value. Both are JSON pointers. `message`
is the sentence that `explain/1` returns.
""".
-type detail() :: #{
    instance_path := binary(),
    schema_path := binary(),
    message := binary()
}.
-doc """
A short way to write the schemas that most tools have.

| shorthand | schema |
| --- | --- |
| `string`, `integer`, `number`, `boolean`, `null` | a value of that type |
| `any`, `object`, `array` | any value, object, array |
| `{enum, [a, ~"b", 3]}`, `{const, 1}` | one of these values; this value |
| `[Type]` | an array of such items |
| `#{name => Type}`, `{fields, #{name => Type}}` | an object with these members and no others |
| `{any_of, [Type, ...]}` | a value of one of these types |
| `{optional, Type}` | of a member: it may be absent |
| `{Type, #{minimum => 1, ...}}` | the same, with more keywords of JSON Schema |
| `{Type, ~"..."}` | the same, with a description |
| `{schema, Map}` | JSON Schema as it is |

A map is read as JSON Schema if it has a `type` that names JSON Schema types, or a key that begins
with `$`. So is a map with one of `properties`, `anyOf`, `oneOf`, `allOf` and
`additionalProperties`. An empty map is any object. Every other map is a shorthand, and so is
`{fields, Map}`, for members that have such names themselves.

Names and keywords may be atoms or binaries. An atom that stands for a value is a string, except
`true`, `false`, `null` and Elixir's `nil`, which is `null`. An `enum` whose values are all strings,
all integers, all numbers or all booleans has that type.
""".
-type shorthand() ::
    string | integer | number | boolean | null | any | object | array
    | {enum, [term(), ...]}
    | {const, term()}
    | [shorthand()]
    | fields()
    | {fields, fields()}
    | {any_of, [shorthand(), ...]}
    | {schema, map()}
    | JsonSchema :: map()
    | {shorthand(), Keywords :: #{atom() | binary() => term()} | Description :: binary()}.
-doc "The members of an object: the shorthand of each by its name.".
-type fields() :: #{atom() | binary() => shorthand() | {optional, shorthand()}}.

-define(DEFAULTS, #{
    dialect => ~"https://json-schema.org/draft/2020-12/schema",
    formats => annotate,
    schemas => #{},
    check => true,
    metaschemas => #{},
    max_depth => 64,
    max_subschemas => 10_000,
    max_pattern => 2_000,
    max_steps => 2_000_000,
    max_errors => 10
}).

-doc "Compiles a schema as `compile/2` does, with the default options and the same errors.".
-spec compile(json()) -> {ok, compiled()} | {error, reason()}.
compile(Schema) ->
    compile(Schema, #{}).

-doc """
Compiles a schema, whose keys are binaries.

| option | default | meaning |
| --- | --- | --- |
| `dialect` | 2020-12 | the dialect if the schema has no `$schema`: the address of its meta-schema |
| `formats` | `annotate` | `assert` refuses a value that does not have its `format` |
| `schemas` | `#{}` | schemas that may be referred to, by their address without fragment |
| `check` | `true` | whether the meta-schema of its dialect must accept the schema |
| `metaschemas` | `#{}` | the result of an earlier `metaschemas/0`, which saves most of the time |
| `max_depth` | 64 | subschemas inside each other |
| `max_subschemas` | 10,000 | subschemas in use; the target of a reference may count twice |
| `max_pattern` | 2,000 | bytes of a regular expression |
| `max_steps` | 2,000,000 | steps of one validation, such as applying a subschema to a value |
| `max_errors` | 10 | errors that a validation reports |

A schema in `schemas` without `$schema` has the dialect of the compiled schema. The meta-schema
checks the schema itself, not those in `schemas`. `formats => assert` checks these formats:
`date-time`, `date`, `time`, `email`, `uri`, `uri-reference`, `uri-template`, `ipv4`, `ipv6`,
`uuid`, `json-pointer`, `regex`, `byte` (base64). Any other format is an annotation. A dialect with
the vocabulary `format-assertion` asserts formats, whatever the option says.

## Examples

```erlang
1> {ok, _} = erlmcp_schema:compile(#{~"type" => ~"string", ~"maxLength" => 5}), ok.
ok
2> erlmcp_schema:compile(#{~"$ref" => ~"https://example.com/address"}).
{error, {unresolved_ref, ~"", ~"https://example.com/address"}}
3> {error, {invalid_schema, [Error]}} = erlmcp_schema:compile(#{~"type" => ~"int"}).
4> maps:get(instance_path, Error).
~"/type"
```
""".
-spec compile(json(), options()) -> {ok, compiled()} | {error, reason()}.
compile(Schema, Options) ->
    #{max_steps := Steps, max_errors := Errors} = Given = maps:merge(?DEFAULTS, Options),
    try
        is_map(Schema) orelse is_boolean(Schema) orelse throw(no_schema(Schema)),
        Index = erlmcp_schema_index:new(Schema, Given),
        is_map(Schema) andalso check(Schema, Index, Given),
        Table = erlmcp_schema_compile:table(Index, Given),
        {ok, #compiled{table = Table, max_steps = Steps, max_errors = Errors}}
    catch
        throw:Reason -> {error, Reason}
    end.

no_schema(Schema) ->
    Error = {~"type", [~"object", ~"boolean"], Schema, [], [~"type"]},
    {invalid_schema, details([Error])}.

check(_, _, #{check := false}) ->
    ok;
check(Schema, Index, #{schemas := Documents} = Options) ->
    {_, #{dialect := Dialect}} = erlmcp_schema_index:find(erlmcp_schema_index:root(Index), Index),
    Uri = erlmcp_schema_dialect:uri(Dialect),
    Compiled = case {Options, erlmcp_schema_meta:document(Uri)} of
        {#{metaschemas := #{Uri := Kept}}, _} -> Kept;
        {_, {ok, Document}} -> metaschema(Document, #{});
        {_, error} -> metaschema(map_get(Uri, Documents), Documents)
    end,
    case validate(Schema, Compiled) of
        ok -> ok;
        {error, budget} -> throw(budget);
        {error, Errors} -> throw({invalid_schema, details(Errors)})
    end.

metaschema(Document, Documents) ->
    case compile(Document, #{check => false, schemas => Documents}) of
        {ok, Compiled} -> Compiled;
        {error, Reason} -> throw(Reason)
    end.

-doc """
Compiles the meta-schemas of the three dialects, for the option `metaschemas` of `compile/2`. Call
this function once in a program that compiles many schemas.
""".
-spec metaschemas() -> #{Uri :: binary() => compiled()}.
metaschemas() ->
    #{Uri => metaschema(Document, #{})
      || Uri <- erlmcp_schema_meta:uris(),
         {ok, Document} <- [erlmcp_schema_meta:document(Uri)]}.

-doc """
Validates a value. Returns `ok` if it is valid, and otherwise at most `max_errors` errors, for
`explain/1` and `details/1`. Returns `{error, budget}` if the validation takes more than
`max_steps`. If a pattern takes too long for a text, the only error says so.

## Examples

```erlang
1> {ok, Schema} = erlmcp_schema:compile(#{
       ~"type" => ~"object",
       ~"properties" => #{~"days" => #{~"type" => ~"integer", ~"minimum" => 1}},
       ~"required" => [~"days"]
   }).
2> erlmcp_schema:validate(#{~"days" => 3}, Schema).
ok
3> {error, Errors} = erlmcp_schema:validate(#{~"days" => 0}, Schema).
4> erlmcp_schema:details(Errors).
[#{instance_path => ~"/days",
   schema_path => ~"/properties/days/minimum",
   message => ~"/days must be at least 1, not 0."}]
```
""".
-spec validate(json(), compiled()) -> ok | {error, [error(), ...] | budget}.
validate(Value, #compiled{table = Table, max_steps = Steps} = Compiled) ->
    Check = element(1, Table),
    try Check(Value, Table, Steps) of
        Balance when Balance >= 0 -> ok;
        _ -> {error, errors(Value, Compiled)}
    catch
        throw:budget -> {error, budget};
        throw:pattern -> {error, errors(Value, Compiled)}
    end.

errors(Value, #compiled{table = Table, max_steps = Steps, max_errors = Room}) ->
    Find = element(tuple_size(Table) div 2 + 1, Table),
    try Find(Value, [], [], #run{table = Table, budget = Steps, room = Room}) of
        Run -> erlmcp_schema_run:errors(Run)
    catch
        throw:{full, Run} -> erlmcp_schema_run:errors(Run);
        throw:{halt, Error} -> [Error];
        %% The pattern is in a schema that only needs a yes or no (`not`, `contains`).
        throw:pattern -> [{halted, none, Value, [], []}];
        throw:budget -> budget
    end.

-doc """
Returns `true` if a value is valid. Returns `false` if it is not, if the validation takes more than
`max_steps`, or if a pattern takes too long. Collects no errors, so an invalid value costs less than
with `validate/2`.

## Examples

```erlang
1> {ok, Schema} = erlmcp_schema:compile(#{~"items" => #{~"type" => ~"integer"}}).
2> erlmcp_schema:is_valid([1, ~"2"], Schema).
false
```
""".
-spec is_valid(json(), compiled()) -> boolean().
is_valid(Value, #compiled{table = Table, max_steps = Steps}) ->
    Check = element(1, Table),
    try
        Check(Value, Table, Steps) >= 0
    catch
        throw:budget -> false;
        throw:pattern -> false
    end.

-doc """
Returns the errors of `validate/2` as sentences, one for each error; one sentence for `budget`.

## Examples

```erlang
1> {ok, Schema} = erlmcp_schema:compile(#{~"items" => #{~"type" => ~"integer"}}).
2> {error, Found} = erlmcp_schema:validate([1, ~"2", 3, null], Schema).
3> erlmcp_schema:explain(Found).
[~"/1 must be an integer, not the string \"2\".", ~"/3 must be an integer, not null."]
```
""".
-spec explain([error(), ...] | budget) -> [binary(), ...].
explain(budget) ->
    [~"The value takes too long to check."];
explain(Errors) ->
    [erlmcp_schema_error:sentence(Error) || Error <- Errors].

-doc """
Returns the errors of `validate/2` as data: the paths and the sentence of each. The error `budget`
has no such data, so do not pass it.
""".
-spec details([error(), ...]) -> [detail(), ...].
details(Errors) ->
    [erlmcp_schema_error:detail(Error) || Error <- Errors].

-doc "Returns a reason of `compile/2` or `expand/1` as a sentence for people.".
-spec reason(reason()) -> binary().
reason({bad_shorthand, _, _} = Reason) ->
    erlmcp_schema_shorthand:reason(Reason);
reason(Reason) ->
    erlmcp_value_text:reason(Reason).

-doc """
Returns the JSON Schema that a shorthand stands for. Its keys are binaries.

## Examples

```erlang
1> {ok, Schema} = erlmcp_schema:expand(#{
       city => {string, ~"Where"},
       days => {optional, {integer, #{minimum => 1}}}
   }).
2> Schema.
#{~"type" => ~"object",
  ~"properties" => #{
      ~"city" => #{~"type" => ~"string", ~"description" => ~"Where"},
      ~"days" => #{~"type" => ~"integer", ~"minimum" => 1}
  },
  ~"required" => [~"city"],
  ~"additionalProperties" => false}
3> {error, Reason} = erlmcp_schema:expand(#{size => #{width => int}}).
4> Reason.
{bad_shorthand, [~"size", ~"width"], int}
5> erlmcp_schema:reason(Reason).
~"/size/width is neither a shorthand nor JSON: int."
```
""".
-spec expand(shorthand()) ->
    {ok, #{binary() => json()}} | {error, {bad_shorthand, Names :: [binary()], Term :: term()}}.
expand(Shorthand) ->
    erlmcp_schema_shorthand:expand(Shorthand).
