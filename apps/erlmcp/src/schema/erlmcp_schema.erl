-module(erlmcp_schema).
-moduledoc """
JSON Schema: a schema is compiled once into funs, and validates values then without being looked
at again. Pure.

Dialects: 2020-12, which is meant where no `$schema` is, 2019-09 and draft-07, and meta-schemas made
of their vocabularies; another one is refused. The required part of the official test suite passes
for all three. `format` is an annotation unless asked for (`m:erlmcp_schema_format` has the list).

Nothing is fetched, ever: what a `$ref` means that leads out of the schema has to be given, and a
schema with one that leads nowhere is refused. A schema may be hostile, and so may a value: the one
is bounded in depth, subschemas and length of patterns, the other in the steps of its validation,
and no pattern can take long.
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
A schema, ready to validate. Its keys are binaries.

| option | default | what it says |
| --- | --- | --- |
| `dialect` | 2020-12 | what a schema without `$schema` is, by the address of its meta-schema |
| `formats` | `annotate` | `assert`: a value that is not of its `format` is not valid |
| `schemas` | `#{}` | schemas that may be referred to, by their address without fragment |
| `check` | `true` | whether the schema must be valid by the meta-schema of its dialect |
| `metaschemas` | `#{}` | what `metaschemas/0` gives, kept: most of the time goes into these |
| `max_depth` | 64 | how many subschemas may stand inside each other |
| `max_subschemas` | 10,000 | how many subschemas there may be; what is referred to counts again |
| `max_pattern` | 2,000 | bytes that a regular expression may have |
| `max_steps` | 2,000,000 | subschemas that one validation may apply, as the other work is counted |
| `max_errors` | 10 | errors that a validation reports at most |

A path in a reason is a JSON pointer to the place in the schema. `endless_ref` is a reference that
comes back to itself for the same value, so that no validation would end. The meta-schema checks the
schema alone, not those given beside it.

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
The compiled meta-schemas of the three dialects, for the option `metaschemas` of `compile/2`.
Whoever compiles many schemas keeps them.
""".
-spec metaschemas() -> #{Uri :: binary() => compiled()}.
metaschemas() ->
    #{Uri => metaschema(Document, #{})
      || Uri <- erlmcp_schema_dialect:uris(),
         {ok, Document} <- [erlmcp_schema_dialect:document(Uri)]}.

-doc """
Whether a value is valid. The errors come in the order of the schema's keywords, at most as many as
`max_errors` says; `{error, budget}` is a validation that took more than `max_steps`. An error is a
small term that holds what is wrong and where; `explain/1` and `details/1` tell it.

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
        %% Where a schema is only asked whether the value passes (`not`, `contains`).
        throw:pattern -> [{halted, none, Value, [], []}];
        throw:budget -> budget
    end.

-doc """
The same where nothing is asked but yes or no; a validation that takes too long says no.

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
What `validate/2` found wrong, a sentence each.

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
The same with both places: the value's (`instance_path`) and that of the keyword it breaks
(`schema_path`, as the validation came to it, through references), as JSON pointers.
""".
-spec details([error(), ...]) -> [detail(), ...].
details(Errors) ->
    [erlmcp_schema_error:detail(Error) || Error <- Errors].

-doc "Why a schema cannot be compiled, in a sentence.".
-spec reason(reason()) -> binary().
reason(Reason) ->
    erlmcp_value_text:reason(Reason).
