-module(erlmcp_schema).
-moduledoc """
JSON Schema: a schema is compiled once into funs, which then validate values. Pure.

The dialects are 2020-12 (the default without `$schema`), 2019-09 and draft-07, and meta-schemas
made of their vocabularies. Any other dialect is refused. The required part of the official test
suite passes for all three. `format` is an annotation unless asserted (`m:erlmcp_schema_format` has
the list).

No document is ever fetched: the target of a `$ref` that leads out of the schema must be given. A
schema with an unresolved `$ref` is refused. Schemas and values may be hostile. A schema is bounded
in its depth, its subschemas and the length of patterns; a value in the steps of its validation. No
pattern can take long.
""".

-include("erlmcp_schema.hrl").

-export([compile/1, compile/2, validate/2, is_valid/2]).
-export([explain/1, details/1, reason/1, metaschemas/0]).

-export_type([compiled/0, options/0, reason/0, error/0, detail/0]).

-record(compiled, {
    table :: tuple(),
    max_steps :: pos_integer(),
    max_errors :: pos_integer()
}).

-opaque compiled() :: #compiled{}.
-type json_term() :: erlmcp_json:json_term().
-type options() :: #{
    dialect => Uri :: binary(),
    formats => assert | annotate,
    schemas => #{Uri :: binary() => json_term()},
    check => boolean(),
    metaschemas => #{Uri :: binary() => compiled()},
    max_depth => pos_integer(),
    max_subschemas => pos_integer(),
    max_pattern => pos_integer(),
    max_steps => pos_integer(),
    max_errors => pos_integer()
}.
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
    | budget.
-opaque error() :: erlmcp_schema_error:error().
-type detail() :: erlmcp_schema_error:detail().

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

-doc #{equiv => compile(Schema, #{})}.
-spec compile(json_term()) -> {ok, compiled()} | {error, reason()}.
compile(Schema) ->
    compile(Schema, #{}).

-doc """
Compiles a schema, whose keys are binaries.

| option | default | meaning |
| --- | --- | --- |
| `dialect` | 2020-12 | the dialect of a schema without `$schema`, by its meta-schema's address |
| `formats` | `annotate` | `assert`: a value that is not of its `format` is not valid |
| `schemas` | `#{}` | schemas that may be referred to, by their address without fragment |
| `check` | `true` | whether the schema must be valid by the meta-schema of its dialect |
| `metaschemas` | `#{}` | a kept result of `metaschemas/0`, which saves most of the time |
| `max_depth` | 64 | levels of subschemas inside each other |
| `max_subschemas` | 10,000 | subschemas; the target of a reference counts again |
| `max_pattern` | 2,000 | bytes of a regular expression |
| `max_steps` | 2,000,000 | steps of a validation: applied subschemas, and comparable work |
| `max_errors` | 10 | errors that a validation reports at most |

A path in a reason is a JSON pointer to the place in the schema. `endless_ref` is a reference that
leads back to itself for the same value, so that no validation would end. The meta-schema checks the
schema alone, and not those in `schemas`.

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
-spec compile(json_term(), options()) -> {ok, compiled()} | {error, reason()}.
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
    Compiled = case {Options, erlmcp_schema_dialect:document(Uri)} of
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
Returns the compiled meta-schemas of the three dialects, for the option `metaschemas` of
`compile/2`. Keep them to compile many schemas.
""".
-spec metaschemas() -> #{Uri :: binary() => compiled()}.
metaschemas() ->
    #{Uri => metaschema(Document, #{})
      || Uri <- erlmcp_schema_dialect:uris(),
         {ok, Document} <- [erlmcp_schema_dialect:document(Uri)]}.

-doc """
Validates a value. The errors are in the order of the schema's keywords, at most `max_errors`.
`{error, budget}` means that the validation took more than `max_steps`. An error is a small term;
`explain/1` and `details/1` describe it.

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
-spec validate(json_term(), compiled()) -> ok | {error, [error(), ...] | budget}.
validate(Value, #compiled{table = Table, max_steps = Steps} = Compiled) ->
    Check = element(1, Table),
    try Check(Value, Table, Steps) of
        Left when Left >= 0 -> ok;
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
        %% A pattern under `not` or `contains`, where only validity counts, has no path of its own.
        throw:pattern -> [{halted, none, Value, [], []}];
        throw:budget -> budget
    end.

-doc """
Returns `true` if a value is valid; `false` also for a validation that takes too long.

## Examples

```erlang
1> {ok, Schema} = erlmcp_schema:compile(#{~"items" => #{~"type" => ~"integer"}}).
2> erlmcp_schema:is_valid([1, ~"2"], Schema).
false
```
""".
-spec is_valid(json_term(), compiled()) -> boolean().
is_valid(Value, #compiled{table = Table, max_steps = Steps}) ->
    Check = element(1, Table),
    try
        Check(Value, Table, Steps) >= 0
    catch
        throw:budget -> false;
        throw:pattern -> false
    end.

-doc """
Describes the errors of `validate/2`, each in a sentence.

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
Describes the errors of `validate/2` with both places, as JSON pointers: the value's
(`instance_path`) and the broken keyword's (`schema_path`, through references).
""".
-spec details([error(), ...]) -> [detail(), ...].
details(Errors) ->
    [erlmcp_schema_error:detail(Error) || Error <- Errors].

-doc "Describes why a schema cannot be compiled, in a sentence.".
-spec reason(reason()) -> binary().
reason(Reason) ->
    erlmcp_value_text:reason(Reason).
