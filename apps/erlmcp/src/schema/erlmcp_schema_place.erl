-module(erlmcp_schema_place).
-moduledoc """
Subschemas and the ways to them: the root, a subschema inside another one, and the target of a
reference. Dynamic references are resolved here, too, at compile time. A subschema that is reached
in two ways is two values if its dynamic references have different targets then. Pure.

Internal.
""".

-include("erlmcp_schema.hrl").

-export([root/1, child/4, references/2, reference/3]).
-export([key/1, pointer/1, location/1]).

-export_type([subschema/0, key/0]).

-type subschema() :: #place{}.
-type key() :: {binary(), [binary()], map()}.

%% The most items of arrays that a pointer passes. Each of many references may have a pointer into a
%% long array.
-define(MAX_PASSED, 10_000).

-doc "Returns the root schema of an index as a subschema.".
-spec root(erlmcp_schema_index:index()) -> subschema().
root(Index) ->
    {ok, Place} = at(erlmcp_schema_index:root(Index), [], #{}, Index),
    Place.

-doc """
Returns `Schema` as a subschema. `Schema` lies inside the given subschema. `Tokens` are the tokens
of the JSON pointer from there to `Schema`.
""".
-spec child(Tokens :: [binary()], Schema :: erlmcp_schema:json(), subschema(),
            erlmcp_schema_index:index()) -> subschema().
child(Tokens, Schema, #place{uri = Uri, pointer = Pointer} = Place, Index) ->
    case crossing(Schema, Uri, Index) of
        {Other, #{dialect := Dialect}} ->
            enter(Place#place{uri = Other, pointer = [], schema = Schema, dialect = Dialect},
                  Index);
        no ->
            Place#place{pointer = lists:reverse(Tokens, Pointer), schema = Schema}
    end.

%% A subschema whose `$id` is in the index begins a resource of its own.
crossing(#{~"$id" := Id} = Schema, Uri, Index) when is_binary(Id) ->
    Own = erlmcp_schema_index:resolve_uri(Id, Uri),
    case erlmcp_schema_index:find(Own, Index) of
        {Other, #{schema := Schema} = Resource} when Other =/= Uri -> {Other, Resource};
        _ -> no
    end;
crossing(_, _, _) ->
    no.

%% If several resources on the way have the same dynamic anchor, a dynamic reference means the
%% outermost.
enter(#place{uri = Uri, scope = Scope} = Place, Index) ->
    Place#place{scope = maps:merge(erlmcp_schema_index:dynamic(Uri, Index), Scope)}.

-doc "Returns those keywords of a schema that are references in the dialect, such as `$ref`.".
-spec references(map(), erlmcp_schema_dialect:dialect()) -> [Keyword :: binary()].
references(Schema, Dialect) ->
    [Keyword || Keyword <- [~"$ref", ~"$dynamicRef", ~"$recursiveRef"],
                is_map_key(Keyword, Schema), erlmcp_schema_dialect:has(Keyword, Dialect)].

-doc """
Returns the subschema that a reference leads to. `Keyword` is the reference's keyword in the given
subschema, such as `$ref`. Throws `{unresolved_ref, Location, Ref}` if the reference leads to no
schema. Throws `{invalid_keyword, Location, Keyword}` if the value of `Keyword` is not a string.
""".
-spec reference(Keyword :: binary(), subschema(), erlmcp_schema_index:index()) -> subschema().
reference(Keyword, #place{schema = Schema} = Place, Index) ->
    case map_get(Keyword, Schema) of
        Ref when is_binary(Ref) -> follow(Keyword, Ref, Place, Index);
        _ -> throw({invalid_keyword, location(Place), Keyword})
    end.

follow(Keyword, Ref, #place{uri = Base, scope = Scope} = Place, Index) ->
    Fragment = erlmcp_schema_index:fragment(Ref),
    First =
        case erlmcp_schema_index:find(erlmcp_schema_index:resolve_uri(Ref, Base), Index) of
            {Uri, Resource} ->
                case pointer(Fragment, Resource) of
                    error -> error;
                    Tokens -> at(Uri, Tokens, Scope, Index)
                end;
            error ->
                error
        end,
    maybe
        {ok, Target} ?= First,
        {ok, Found} ?= dynamic(Keyword, Fragment, Target, Scope, Index),
        Found
    else
        error -> throw({unresolved_ref, location(Place), Ref})
    end.

%% An anchor is looked for in outer resources only if the resource that the reference names has it
%% as a dynamic one.
dynamic(~"$ref", _, Target, _, _) ->
    {ok, Target};
dynamic(~"$dynamicRef", Name, #place{uri = Uri} = Target, Scope, Index) ->
    outermost(Name, Uri, Target, Scope, Index);
dynamic(~"$recursiveRef", _, #place{uri = Uri} = Target, Scope, Index) ->
    outermost(recursive, Uri, Target, Scope, Index).

outermost(Name, Uri, Target, Scope, Index) ->
    case {erlmcp_schema_index:dynamic(Uri, Index), Scope} of
        {#{Name := _}, #{Name := {Outer, Tokens}}} ->
            at(Outer, lists:reverse(Tokens), Scope, Index);
        _ ->
            {ok, Target}
    end.

pointer(Fragment, #{anchors := Anchors}) ->
    case decoded(Fragment) of
        ~"" -> [];
        <<"/", Rest/binary>> -> [unescape(T) || T <- binary:split(Rest, ~"/", [global])];
        Name when is_map_key(Name, Anchors) -> lists:reverse(map_get(Name, Anchors));
        _ -> error
    end.

%% For a binary, the function throws the error that it is documented to return.
decoded(Fragment) ->
    try uri_string:percent_decode(Fragment) catch throw:{error, _, _} -> error end.

unescape(Token) ->
    Slashes = binary:replace(Token, ~"~1", ~"/", [global]),
    binary:replace(Slashes, ~"~0", ~"~", [global]).

at(Uri, Tokens, Scope, Index) ->
    {Uri, #{schema := Schema, dialect := Dialect}} = erlmcp_schema_index:find(Uri, Index),
    Place = #place{uri = Uri, schema = Schema, dialect = Dialect},
    case descend(Tokens, Place, ?MAX_PASSED, Index) of
        %% A pointer brings the dynamic anchors of its target's resource into scope, and of no
        %% resource that it passes through.
        {ok, Target} -> {ok, enter(Target#place{scope = Scope}, Index)};
        error -> error
    end.

descend([], #place{schema = Schema} = Place, _, _) when is_map(Schema); is_boolean(Schema) ->
    {ok, Place};
descend([Token | Tokens], #place{schema = #{} = Schema} = Place, Room, Index)
        when is_map_key(Token, Schema) ->
    descend(Tokens, child([Token], map_get(Token, Schema), Place, Index), Room, Index);
descend([Token | Tokens], #place{schema = [_ | _] = Schema} = Place, Room, Index) ->
    case item(number(Token), Schema, Room) of
        {Item, Less} -> descend(Tokens, child([Token], Item, Place, Index), Less, Index);
        error -> error
    end;
descend(_, _, _, _) ->
    error.

item(0, [Item | _], Room) -> {Item, Room};
item(N, [_ | Items], Room) when is_integer(N), Room > 0 -> item(N - 1, Items, Room - 1);
item(_, _, _) -> error.

%% An index without leading zeros, so that each subschema has one pointer.
number(Token) when byte_size(Token) >= 1, byte_size(Token) =< 6 ->
    case << <<C>> || <<C>> <= Token, C >= $0, C =< $9 >> of
        ~"0" -> 0;
        <<C, _/binary>> = Token when C =/= $0 -> binary_to_integer(Token);
        _ -> none
    end;
number(_) ->
    none.

-doc """
Returns a key of a subschema. Two subschemas have the same key only if they are the same place in a
schema, and their dynamic references have the same targets.
""".
-spec key(subschema()) -> key().
key(#place{uri = Uri, pointer = Pointer, scope = Scope}) ->
    {Uri, Pointer, Scope}.

-doc "Returns the JSON pointer of `Tokens`, which are in reverse order.".
-spec pointer(Tokens :: [binary() | non_neg_integer()]) -> binary().
pointer(Reversed) ->
    << <<"/", (escape(Token))/binary>> || Token <- lists:reverse(Reversed) >>.

escape(N) when is_integer(N) -> integer_to_binary(N);
escape(Token) when is_binary(Token) ->
    case is_plain(Token) of
        true -> Token;
        false -> << <<(escape_byte(C))/binary>> || <<C>> <= Token >>
    end;
%% A key that is neither a string nor a number: a handler of the server returned it by mistake.
escape(_) -> ~"?".

is_plain(<<C, Rest/binary>>) when C =/= $~, C =/= $/ -> is_plain(Rest);
is_plain(Rest) -> Rest =:= <<>>.

escape_byte($~) -> ~"~0";
escape_byte($/) -> ~"~1";
escape_byte(C) -> <<C>>.

-doc """
Returns the location of a subschema, for an error. The location is a JSON pointer. If the
subschema's resource has an address, the address and `#` stand before the pointer.
""".
-spec location(subschema()) -> binary().
location(#place{uri = <<"schema:///">>, pointer = Pointer}) ->
    pointer(Pointer);
location(#place{uri = Uri, pointer = Pointer}) ->
    <<Uri/binary, "#", (pointer(Pointer))/binary>>.
