-module(erlmcp_schema_context).
-moduledoc """
The context in which the keywords of a schema are compiled: the subschema, and the options. With the
context, a keyword compiles its subschemas (`child/4`, `children/4`) and checks its own value
(`integral/2`, `names/2`). Pure.

Internal.
""".

-include("erlmcp_schema.hrl").

-export([child/4, children/4, integral/2, names/2, invalid/2, location/2, asserts_formats/1]).

-export_type([context/0]).

-type context() :: #{
    index := erlmcp_schema_index:index(),
    place := erlmcp_schema_place:subschema(),
    %% Returns the check and the finder of a subschema inside this one. With this fun of the
    %% compiler, the modules of keywords call no module above them.
    compile := fun((erlmcp_schema_place:subschema(), context()) -> erlmcp_schema_run:node_pair()),
    %% The compiler's numbers of subschemas.
    numbers := #{erlmcp_schema_place:key() => pos_integer()},
    formats := assert | annotate,
    max_pattern := pos_integer()
}.

-doc """
Returns the check and the finder of `Schema`, which is at `Tokens` in the current subschema. Throws
a reason of `t:erlmcp_schema:reason/0` if `Schema` cannot be compiled. If `Schema` is neither a map
nor a boolean, the reason is `{invalid_keyword, Location, InvalidKeyword}`.
""".
-spec child(Tokens :: [binary()], Schema :: term(), context(), InvalidKeyword :: binary()) ->
    erlmcp_schema_run:node_pair().
child(Tokens, Schema, #{place := Place, index := Index, compile := Compile} = Context, _)
        when is_map(Schema); is_boolean(Schema) ->
    Compile(erlmcp_schema_place:child(Tokens, Schema, Place, Index), Context);
child(_, _, Context, Keyword) ->
    invalid(Keyword, Context).

-doc """
Returns the check and the finder of each schema in the list or map `Schemas`, the value of
`Keyword`. The check and the finder stand after the schema's token: its index or its name. Throws a
reason of `t:erlmcp_schema:reason/0` if a schema cannot be compiled. The reason is `invalid_keyword`
if `Schemas` is not a list for `list`, or not a map for `map`.
""".
-spec children(binary(), term(), list | map, context()) ->
    [{binary(), erlmcp_schema_run:node_pair()}].
children(Keyword, Schemas, list, Context) when is_list(Schemas) ->
    [{Token, child([Keyword, Token], Schema, Context, Keyword)}
     || {N, Schema} <- lists:enumerate(0, Schemas), Token <- [integer_to_binary(N)]];
children(Keyword, Schemas, map, Context) when is_map(Schemas) ->
    [{Name, child([Keyword, Name], Schema, Context, Keyword)}
     || {Name, Schema} <- lists:sort(maps:to_list(Schemas))];
children(Keyword, _, _, Context) ->
    invalid(Keyword, Context).

-doc """
Returns the value of a keyword as a non-negative integer. Throws as `invalid/2` does for any other
value.
""".
-spec integral({Keyword :: binary(), Value :: term()}, context()) -> non_neg_integer().
integral({Keyword, Value}, Context) ->
    case erlmcp_schema_number:to_integer(Value) of
        N when is_integer(N), N >= 0 -> N;
        _ -> invalid(Keyword, Context)
    end.

-doc """
Returns the names in the value of a keyword, each once. If the value is not a list of strings,
throws as `invalid/2` does.
""".
-spec names({Keyword :: binary(), Value :: term()}, context()) -> [binary()].
names({Keyword, Names}, Context) ->
    is_list(Names) andalso lists:all(fun is_binary/1, Names) orelse invalid(Keyword, Context),
    lists:uniq(Names).

-doc """
Throws `{invalid_keyword, Location, Keyword}`, for a keyword whose value is invalid. `Location` is
that of the current subschema.
""".
-spec invalid(binary(), context()) -> no_return().
invalid(Keyword, #{place := Place}) ->
    throw({invalid_keyword, erlmcp_schema_place:location(Place), Keyword}).

-doc "Returns the location of the value at `Tokens` in the current subschema, for an error.".
-spec location(Tokens :: [binary()], context()) -> binary().
location(Tokens, #{place := #place{pointer = Pointer} = Place}) ->
    erlmcp_schema_place:location(Place#place{pointer = lists:reverse(Tokens, Pointer)}).

-doc """
Returns `true` if a value must have the `format` that the current subschema gives, and `false` if
`format` is only an annotation.
""".
-spec asserts_formats(context()) -> boolean().
asserts_formats(#{formats := assert}) -> true;
asserts_formats(#{place := #place{dialect = Dialect}}) ->
    erlmcp_schema_dialect:formats(Dialect) =:= asserted.
