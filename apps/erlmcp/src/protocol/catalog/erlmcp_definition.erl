-module(erlmcp_definition).
-moduledoc """
Checks the definitions of tools, resources, resource templates and prompts when they are added, and
compiles them for requests. A definition is a map with the fields of `fields/1`. Pure.

Internal.
""".

-export([compile/3, encode/3, fields/1]).
-export([audience/1, sees/2, needs/1, extensions/2]).

-export_type([kind/0, source/0, definition/0, audience/0, error/0]).

-type kind() :: erlmcp:kind() | skill.
-type source() :: #{atom() => term()}.
-doc """
A checked definition: the fields of its source, its `key` in the catalog, and its JSON object for
clients (`wire`). A file of a skill has encoded `contents` in place of a handler.
""".
-type definition() :: #{
    key := binary(),
    handler => fun((map(), map()) -> term()),
    contents => binary(),
    wire := #{binary() => term()},
    input_validator => erlmcp_schema:compiled(),
    output_validator => erlmcp_schema:compiled(),
    atom() => term()
}.
-doc """
The principals that may see a definition: all, or those for which its `visible` returns `true`.
""".
-type audience() :: all | fun((erlmcp_auth:principal()) -> boolean()).
-type error() ::
    {bad_definition, kind(), Key :: binary() | undefined, Field :: atom(), Expected :: binary()}
    | erlmcp_skill:error().
-type type() ::
    name | text | object | objects | schema | uri_template | handler | completions | texts
    | milliseconds | wait | size | scope | scopes | visibility | middleware | cache | ui
    | task_support | task_start | count | rates | breaker | label | flag.

-doc """
Returns the fields that definitions of a kind may have. The kind must not be `skill`. Each field has
its name, its name on the wire or `hidden`, its type, and whether it is required.
""".
-spec fields(kind()) -> [{atom(), binary() | hidden, type(), required | optional}].
fields(tool) ->
    [{name, ~"name", name, required}, {input_schema, ~"inputSchema", schema, optional},
     {output_schema, ~"outputSchema", schema, optional}, annotations(),
     {timeout_ms, hidden, wait, optional}, {ui, hidden, ui, optional},
     {task, hidden, task_support, optional}, {task_starts, hidden, task_start, optional},
     {task_timeout_ms, hidden, wait, optional}, {repeatable, hidden, flag, optional}
     | common()];
fields(resource) ->
    [{uri, ~"uri", name, required}, {name, ~"name", name, required},
     {size, ~"size", size, optional} | resource_fields()];
fields(resource_template) ->
    [{uri_template, ~"uriTemplate", uri_template, required}, {name, ~"name", name, required},
     {complete, hidden, completions, optional} | resource_fields()];
fields(prompt) ->
    [{name, ~"name", name, required}, {arguments, ~"arguments", objects, optional},
     {complete, hidden, completions, optional} | common()].

resource_fields() ->
    [{mime_type, ~"mimeType", text, optional},
     {ttl_ms, hidden, milliseconds, optional}, {ui, hidden, ui, optional},
     {cache_scope, hidden, scope, optional}, annotations() | common()].

annotations() ->
    {annotations, ~"annotations", object, optional}.

common() ->
    [{handler, hidden, handler, required}, {quick, hidden, flag, optional},
     {middleware, hidden, middleware, optional}, {cache, hidden, cache, optional},
     {max_calls, hidden, count, optional}, {rates, hidden, rates, optional},
     {breaker, hidden, breaker, optional},
     {workers, hidden, label, optional}, {title, ~"title", text, optional},
     {description, ~"description", text, optional}, {icons, ~"icons", objects, optional},
     {meta, ~"_meta", object, optional}, {visible, hidden, visibility, optional},
     {scopes, hidden, scopes, optional}].

-doc """
Compiles a definition for the catalog. The error has a field that is unknown, missing or wrong, and
what was expected there. The meta-schemas are those of `erlmcp_schema:metaschemas/0`.
""".
-spec compile(erlmcp:kind(), source(), #{binary() => erlmcp_schema:compiled()}) ->
    {ok, definition()} | {error, error()}.
compile(Kind, Source, Metaschemas) when is_map(Source) ->
    Fields = fields(Kind),
    maybe
        ok ?= check_names(Kind, Source, Fields),
        ok ?= check(Kind, Source, Fields),
        ok ?= private(Kind, Source),
        ok ?= quick(Kind, Source),
        {ok, Shown} ?= erlmcp_ui:with_meta(Kind, Source),
        {ok, Wire} ?= wire(Kind, Shown, Fields),
        ok ?= erlmcp_ui:check_meta(Kind, Wire),
        Key = key(Kind, Source),
        derive(Kind, (named(Shown))#{key => Key, wire => Wire}, Metaschemas)
    else
        {error, Field, Expected} -> bad(Kind, Source, Field, Expected);
        {error, _} = Error -> Error
    end;
compile(Kind, _, _) ->
    {error, {bad_definition, Kind, undefined, definition, ~"a map"}}.

%% Requests name arguments by binaries; definitions may use atoms.
named(#{complete := Complete} = Source) ->
    Source#{complete := #{case is_atom(Name) of
                              true -> atom_to_binary(Name);
                              false -> Name
                          end => Values || Name := Values <- Complete}};
named(Source) ->
    Source.

%% Adds fields that are computed in advance for requests, such as validators.
derive(tool, #{task_starts := _} = Tool, _) when not is_map_key(task, Tool) ->
    bad(tool, Tool, task_starts, ~"a tool whose task is optional or required");
derive(tool, #{task_timeout_ms := _} = Tool, _) when not is_map_key(task, Tool) ->
    bad(tool, Tool, task_timeout_ms, ~"a tool whose task is optional or required");
derive(tool, #{repeatable := true} = Tool, _) when not is_map_key(task, Tool) ->
    bad(tool, Tool, repeatable, ~"a tool whose task is optional or required");
derive(tool, #{repeatable := true, task_starts := on_return} = Tool, _) ->
    bad(tool, Tool, repeatable, ~"a tool whose task starts at once");
derive(tool, #{wire := #{~"inputSchema" := Schema} = Wire} = Tool, Metaschemas) ->
    maybe
        {ok, Headers} ?= erlmcp_header:declared(Schema),
        {ok, Validators} ?= erlmcp_tool_schema:compile(Wire, Metaschemas),
        {ok, maps:merge(Tool#{headers => Headers}, Validators)}
    else
        {error, Expected} -> bad(tool, Tool, input_schema, Expected);
        {error, Field, Why} -> bad(tool, Tool, Field, Why)
    end;
derive(resource_template, #{uri_template := Text} = Definition, _) ->
    {ok, Template} = erlmcp_uri_template:compile(Text),
    completed(resource_template, Definition#{template => Template},
              erlmcp_uri_template:variables(Template));
derive(prompt, #{wire := Wire} = Prompt, _) ->
    Arguments = maps:get(~"arguments", Wire, []),
    case lists:all(fun is_argument/1, Arguments) of
        true -> completed(prompt, Prompt, [Name || #{~"name" := Name} <- Arguments]);
        false -> bad(prompt, Prompt, arguments, ~"a list of maps, each with a name")
    end;
derive(_, Definition, _) ->
    {ok, Definition}.

%% Completions for a misspelt name would never be used.
completed(Kind, Definition, Names) ->
    case lists:sort(maps:keys(maps:get(complete, Definition, #{}))) -- Names of
        [] ->
            {ok, Definition};
        [Unknown | _] ->
            Called = case Kind of
                prompt -> ~"arguments";
                resource_template -> ~"variables"
            end,
            bad(Kind, Definition, complete,
                <<"names of its ", Called/binary, "; ", Unknown/binary, " is none">>)
    end.

is_argument(#{~"name" := Name} = Argument) ->
    is_a(name, Name) andalso is_boolean(maps:get(~"required", Argument, false));
is_argument(_) ->
    false.

key(tool, #{name := Name}) -> Name;
key(prompt, #{name := Name}) -> Name;
key(resource, #{uri := Uri}) -> Uri;
key(resource_template, #{uri_template := Template}) -> Template;
key(_, _) -> undefined.

check_names(Kind, Source, Fields) ->
    case maps:keys(Source) -- [Name || {Name, _, _, _} <- Fields] of
        [] -> ok;
        [Unknown | _] -> bad(Kind, Source, Unknown, ~"no such field")
    end.

check(_, _, []) ->
    ok;
check(Kind, Source, [{Name, _, Type, Presence} | Fields]) ->
    case Source of
        #{Name := Value} ->
            case is_a(Type, Value) of
                true -> check(Kind, Source, Fields);
                false -> bad(Kind, Source, Name, expected(Type))
            end;
        #{} when Presence =:= required ->
            bad(Kind, Source, Name, expected(Type));
        #{} ->
            check(Kind, Source, Fields)
    end.

%% Results in a shared cache would be visible to all principals.
private(Kind, #{visible := _, cache_scope := public} = Source) ->
    bad(Kind, Source, cache_scope, ~"private, since only some may see it");
private(_, _) ->
    ok.

%% A definition whose calls may have to wait cannot be `quick`.
quick(Kind, #{quick := true} = Source) when
    is_map_key(workers, Source); is_map_key(breaker, Source); is_map_key(cache, Source);
    is_map_key(task, Source)
->
    bad(Kind, Source, quick, ~"a definition without workers, breaker, cache and task");
quick(_, _) ->
    ok.

bad(Kind, Source, Field, Expected) ->
    {error, {bad_definition, Kind, key(Kind, Source), Field, Expected}}.

is_a(name, Value) -> is_binary(Value) andalso Value =/= ~"";
is_a(text, Value) -> is_binary(Value);
is_a(object, Value) -> is_map(Value);
%% Schemas are checked later, by `wire/4`, with better reasons.
is_a(schema, _) -> true;
is_a(objects, [Object | Objects]) -> is_map(Object) andalso is_a(objects, Objects);
is_a(objects, Value) -> Value =:= [];
is_a(uri_template, Value) when is_binary(Value) ->
    element(1, erlmcp_uri_template:compile(Value)) =:= ok;
is_a(uri_template, _) -> false;
is_a(handler, Value) -> is_function(Value, 2);
is_a(completions, Value) when is_map(Value) ->
    lists:all(fun({Name, Complete}) ->
        (is_atom(Name) orelse erlmcp_user_term:is_utf8(Name))
            andalso (is_function(Complete, 2) orelse is_a(texts, Complete))
    end, maps:to_list(Value));
is_a(completions, _) -> false;
is_a(texts, [Text | Texts]) -> erlmcp_user_term:is_utf8(Text) andalso is_a(texts, Texts);
is_a(texts, Value) -> Value =:= [];
is_a(milliseconds, Value) -> is_integer(Value) andalso Value >= 0;
is_a(wait, Value) -> Value =:= 0 orelse erlmcp_user_term:is_wait(Value);
is_a(size, Value) -> is_integer(Value) andalso Value >= 0;
is_a(scope, Value) -> Value =:= public orelse Value =:= private;
is_a(scopes, Value) -> erlmcp_scope:are_scopes(Value);
is_a(visibility, Value) -> is_function(Value, 1);
is_a(middleware, Value) -> erlmcp_middleware:is_list_of(Value);
is_a(cache, #{ttl_ms := Ttl} = Value) when is_integer(Ttl), Ttl > 0 ->
    is_a(scope, maps:get(scope, Value, private)) andalso maps:keys(Value) -- [ttl_ms, scope] =:= [];
is_a(cache, _) -> false;
is_a(ui, Value) -> is_map(Value);
is_a(count, Value) -> is_integer(Value) andalso Value > 0;
is_a(rates, Value) when is_map(Value) ->
    lists:all(fun({Period, Most}) ->
        lists:member(Period, [second, minute, day]) andalso is_a(count, Most)
    end, maps:to_list(Value));
is_a(rates, _) -> false;
is_a(breaker, Value) -> is_atom(Value) orelse is_map(Value);
is_a(label, Value) -> is_atom(Value);
is_a(flag, Value) -> is_boolean(Value);
is_a(task_support, Value) -> lists:member(Value, [forbidden, optional, required]);
is_a(task_start, Value) -> Value =:= at_once orelse Value =:= on_return.

expected(name) -> ~"a non-empty binary";
expected(text) -> ~"a binary";
expected(object) -> ~"a map that is JSON";
expected(objects) -> ~"a list of maps that are JSON";
expected(uri_template) -> ~"an RFC 6570 URI template";
expected(handler) -> ~"a fun of two arguments";
expected(completions) ->
    ~"a map of argument names to lists of binaries or funs of two arguments";
expected(milliseconds) -> ~"milliseconds, 0 or more";
expected(wait) -> ~"milliseconds, 0 to 4294967295";
expected(size) -> ~"bytes, 0 or more";
expected(scope) -> ~"public or private";
expected(scopes) -> ~"a list of scopes: binaries of printable ASCII, without a space";
expected(visibility) -> ~"a fun of one argument";
expected(middleware) -> ~"a list of funs of three arguments";
expected(cache) -> ~"a map with ttl_ms, 1 or more, and scope: public or private";
expected(ui) -> ~"a map";
expected(task_support) -> ~"forbidden, optional or required";
expected(task_start) -> ~"at_once or on_return";
expected(count) -> ~"a positive integer";
expected(rates) -> ~"a map of second, minute or day to calls, 1 or more";
expected(breaker) -> ~"a name, or a map of options";
expected(label) -> ~"a name, an atom";
expected(flag) -> ~"true or false".

%% Converts a definition to JSON as clients read it: keys become binaries, and terms that JSON does
%% not have are refused.
wire(Kind, Source, Fields) ->
    Sent = [{Wire, Name, maps:get(Name, Source)}
            || {Name, Wire, _, _} <- Fields, Wire =/= hidden, is_map_key(Name, Source)],
    wire(Kind, Source, Sent, #{}).

wire(tool, Source, [], Wire) ->
    Schema = maps:get(~"inputSchema", Wire, #{}),
    case maps:get(~"type", Schema, ~"object") of
        ~"object" -> {ok, Wire#{~"inputSchema" => with_properties(Schema#{~"type" => ~"object"})}};
        _ ->
            bad(tool, Source, input_schema, ~"""
                a schema of type object, or {fields, Map} if these are the names of members
                """)
    end;
wire(_, _, [], Wire) ->
    {ok, Wire};
wire(Kind, Source, [{Key, Name, Value} | Sent], Wire) ->
    maybe
        {ok, Plain} ?= plain(Name, Value),
        {ok, Json} ?= json(Plain),
        wire(Kind, Source, Sent, Wire#{Key => Json})
    else
        {error, Expected} -> bad(Kind, Source, Name, Expected)
    end.

%% Some hosts read `properties` without checking that an input schema has it.
with_properties(#{~"type" := _} = Schema) when map_size(Schema) =:= 1 ->
    Schema#{~"properties" => #{}};
with_properties(Schema) ->
    Schema.

plain(Name, Value) when Name =:= input_schema; Name =:= output_schema ->
    maybe
        {error, Reason} ?= erlmcp_schema_shorthand:expand(Value),
        {error, erlmcp_schema_shorthand:reason(Reason)}
    end;
plain(_, Value) ->
    {ok, Value}.

json(Value) ->
    try
        {ok, json:decode(iolist_to_binary(erlmcp_json:encode(Value)))}
    catch
        error:{unsupported_struct, Name, Expected} ->
            {error, <<Expected/binary, "; the struct ", Name/binary, " is none">>};
        error:_ ->
            {error, ~"a value that JSON can say, in UTF-8"}
    end.

-doc "Encodes a definition as JSON for the clients of a revision.".
-spec encode(kind(), definition(), erlmcp_revision:revision()) -> iodata().
encode(skill, #{encoded := Encoded}, _) ->
    Encoded;
encode(Kind, #{wire := Wire} = Definition, Revision) ->
    Shown = maps:with(erlmcp_revision:fields(Kind, Revision), Wire),
    json:encode(maps:merge(shown(Kind, Shown, Revision), execution(Definition, Revision))).

%% In 2025-11-25 clients read whether they may call a tool as a task. With the later extension for
%% tasks, the server decides that alone.
execution(#{task := Support}, '2025-11-25') ->
    #{~"execution" => #{~"taskSupport" => Support}};
execution(_, _) ->
    #{}.

shown(prompt, #{~"arguments" := Arguments} = Wire, Revision) ->
    Fields = erlmcp_revision:fields(argument, Revision),
    Wire#{~"arguments" => [maps:with(Fields, Argument) || Argument <- Arguments]};
shown(tool, Wire, Revision) ->
    case erlmcp_tool_schema:is_promised(Wire, Revision) of
        true -> Wire;
        false -> maps:remove(~"outputSchema", Wire)
    end;
shown(_, Wire, _) ->
    Wire.

-doc "Returns the principals that may see a definition.".
-spec audience(source() | definition()) -> audience().
audience(#{visible := Visible}) -> Visible;
audience(#{}) -> all.

-doc """
Returns `true` if a principal belongs to an audience. The calling process runs the `visible` fun,
which never crashes in a catalog (`m:erlmcp_visibility`).
""".
-spec sees(erlmcp_auth:principal(), audience()) -> boolean().
sees(_, all) -> true;
sees(Principal, Visible) -> Visible(Principal).

-doc "Returns the scopes that a request must have to use a definition.".
-spec needs(definition()) -> [erlmcp:scope()].
needs(#{scopes := Scopes}) -> Scopes;
needs(#{}) -> [].

-doc "Returns the protocol extensions that a definition uses, with their settings.".
-spec extensions(kind(), definition()) -> erlmcp_extension:extensions().
extensions(skill, _) ->
    #{erlmcp_extension:skills() => #{~"directoryRead" => true}};
extensions(_, Definition) ->
    maps:merge(#{erlmcp_extension:ui() => #{} || erlmcp_ui:is_used(Definition)},
               #{erlmcp_extension:tasks() => #{}
                 || maps:get(task, Definition, forbidden) =/= forbidden}).
