-module(erlmcp_schema_index).
-moduledoc """
The resources of a schema, by its `$id`s, `$anchor`s and `$dynamicAnchor`s. The index covers the
schema, the given schemas, and the published meta-schemas that these refer to. No document is ever
fetched. Pure.

Internal.
""".

-export([new/2, root/1, dynamic/2]).
-export([find/2, resolve_uri/2, fragment/1]).

-export_type([index/0, resource/0]).

-record(index, {
    root :: binary(),
    resources = #{} :: #{binary() => resource() | {alias, binary()}},
    %% Referenced addresses, to look up among the published documents.
    wanted = [] :: [binary()],
    %% The names that dynamic references use; other names need no scope.
    dynamic = #{} :: #{binary() | recursive => true}
}).

-opaque index() :: #index{}.
-type resource() :: #{
    schema := erlmcp_schema:json(),
    dialect := erlmcp_schema_dialect:dialect(),
    anchors := #{binary() => [binary()]},
    dynamic := #{binary() | recursive => [binary()]}
}.
-type limits() :: #{
    dialect := binary(),
    schemas := #{binary() => erlmcp_schema:json()},
    max_depth := pos_integer(),
    _ => _
}.

%% The base of relative references in a schema without an `$id`.
-define(NOWHERE, ~"schema:///").

-doc """
Returns the index of `Schema`, of the schemas in the option `schemas`, and of the published
meta-schemas that these refer to. If `Schema` has no `$schema`, its dialect is the option `dialect`.
A schema in `schemas` that has no `$schema` has the dialect of `Schema`. Throws a reason of
`t:erlmcp_schema:reason/0` if one of the schemas cannot be indexed.
""".
-spec new(erlmcp_schema:json(), limits()) -> index().
new(Schema, #{schemas := Documents, dialect := Default} = Limits) ->
    Own = dialect(Schema, erlmcp_schema_dialect:named(Default, Documents), Documents),
    Index = add_document(Schema, ?NOWHERE, Own, Limits, #index{root = ?NOWHERE}),
    Given = maps:fold(fun(Uri, Document, Sum) ->
        [Address | _] = binary:split(Uri, ~"#"),
        add_document(Document, Address, Own, Limits, Sum)
    end, Index, Documents),
    published(Given, Limits).

published(#index{wanted = []} = Index, _) ->
    Index;
published(#index{wanted = [Uri | Wanted]} = Index0, Limits) ->
    Index = Index0#index{wanted = Wanted},
    case not is_map_key(Uri, Index#index.resources) andalso erlmcp_schema_meta:document(Uri) of
        {ok, Document} ->
            Dialect = erlmcp_schema_dialect:named(map_get(~"$schema", Document), #{}),
            published(add_document(Document, Uri, Dialect, Limits, Index), Limits);
        _ ->
            published(Index, Limits)
    end.

dialect(#{~"$schema" := Uri}, _, Documents) when is_binary(Uri) ->
    erlmcp_schema_dialect:named(Uri, Documents);
dialect(_, Inherited, _) ->
    Inherited.

%% A document is found by the address that it is given under, and by its own `$id`.
add_document(Schema, Address, Inherited, #{schemas := Documents} = Limits, Index0) ->
    Dialect = dialect(Schema, Inherited, Documents),
    case own_id(Schema, Dialect) of
        {resource, Id} ->
            Uri = resolve_uri(Id, Address),
            Index = add_resource(Schema, Uri, Dialect, 1, Limits, Index0),
            case Uri of
                Address -> Index;
                _ -> add(Address, {alias, Uri}, Index)
            end;
        _ ->
            add_resource(Schema, Address, Dialect, 1, Limits, Index0)
    end.

add_resource(Schema, Uri, Dialect, Depth, Limits, Index) ->
    Resource = #{schema => Schema, dialect => Dialect, anchors => #{}, dynamic => #{}},
    walk(Schema, {Uri, []}, Dialect, Depth, Limits, add(Uri, Resource, Index)).

add(Uri, New, #index{resources = Resources} = Index) ->
    case Resources of
        #{Uri := Old} ->
            is_same(Old, New) orelse throw({duplicate_id, Uri}),
            Index;
        #{} ->
            Index#index{resources = Resources#{Uri => New}}
    end.

%% A resource may already have its anchors.
is_same(#{schema := Schema}, #{schema := Schema}) -> true;
is_same(Old, New) -> Old =:= New.

walk(_, _, _, Depth, #{max_depth := Limit}, _) when Depth > Limit ->
    throw({too_deep, Limit});
walk(Schema, {Uri, Pointer} = At, Dialect, Depth, Limits, Index0) when is_map(Schema) ->
    Index = references(Schema, Uri, Dialect, names(Schema, At, Dialect, Index0)),
    lists:foldl(fun({_, Tokens, Child}, Sum) ->
        Below = {Uri, lists:reverse(Tokens, Pointer)},
        walk_child(Child, Below, Dialect, Depth + 1, Limits, Sum)
    end, Index, erlmcp_schema_dialect:children(Schema, Dialect));
walk(_, _, _, _, _, Index) ->
    Index.

walk_child(Schema, {Uri, _} = At, Inherited, Depth, #{schemas := Documents} = Limits, Index) ->
    case own_id(Schema, Inherited) of
        {resource, Id} ->
            Dialect = dialect(Schema, Inherited, Documents),
            add_resource(Schema, resolve_uri(Id, Uri), Dialect, Depth, Limits, Index);
        _ ->
            walk(Schema, At, Inherited, Depth, Limits, Index)
    end.

%% In draft-07 an `$id` that is only a fragment means the later `$anchor`.
own_id(#{~"$id" := Id} = Schema, Dialect) when is_binary(Id) ->
    Ignored = is_map_key(~"$ref", Schema),
    case {erlmcp_schema_dialect:draft(Dialect), Id} of
        {draft_07, _} when Ignored -> none;
        {draft_07, <<"#", Name/binary>>} when Name =/= ~"" -> {anchor, Name};
        {_, <<"#", _/binary>>} -> none;
        _ -> {resource, Id}
    end;
own_id(_, _) ->
    none.

names(Schema, {Uri, Pointer}, Dialect, #index{resources = Resources} = Index) ->
    #{Uri := #{anchors := Anchors, dynamic := Dynamic} = Resource} = Resources,
    Of = fun(Keyword) ->
        case Schema of
            #{Keyword := Name} when is_binary(Name) ->
                [Name || erlmcp_schema_dialect:has(Keyword, Dialect)];
            _ ->
                []
        end
    end,
    Old = case own_id(Schema, Dialect) of
        {anchor, Anchor} -> [Anchor];
        _ -> []
    end,
    Recursive = case Schema of
        #{~"$recursiveAnchor" := true} when Pointer =:= [] ->
            [recursive || erlmcp_schema_dialect:has(~"$recursiveAnchor", Dialect)];
        _ ->
            []
    end,
    case {Of(~"$anchor") ++ Of(~"$dynamicAnchor") ++ Old, Of(~"$dynamicAnchor") ++ Recursive} of
        {[], []} ->
            Index;
        {New, NewDynamic} ->
            Anchored = Resource#{anchors := with(New, Pointer, Anchors),
                                 dynamic := with(NewDynamic, Pointer, Dynamic)},
            Index#index{resources = Resources#{Uri := Anchored}}
    end.

with(Names, Pointer, Map) ->
    maps:merge(Map, #{Name => Pointer || Name <- Names}).

references(Schema, Uri, Dialect, Index) ->
    Of = fun(Keyword) ->
        case Schema of
            #{Keyword := Ref} when is_binary(Ref) ->
                [Ref || erlmcp_schema_dialect:has(Keyword, Dialect)];
            _ ->
                []
        end
    end,
    Dynamic = [fragment(Ref) || Ref <- Of(~"$dynamicRef")]
        ++ [recursive || _ <- Of(~"$recursiveRef")],
    #index{wanted = Wanted, dynamic = Names} = Index,
    Index#index{
        wanted = [resolve_uri(Ref, Uri) || Ref <- Of(~"$ref") ++ Of(~"$dynamicRef")] ++ Wanted,
        dynamic = maps:merge(Names, #{Name => true || Name <- Dynamic})
    }.

-doc "Returns the address of the root schema: its `$id`, or one that the index made up.".
-spec root(index()) -> binary().
root(#index{root = Root} = Index) ->
    {Uri, _} = find(Root, Index),
    Uri.

-doc """
Returns the resource that the index has at the address `Uri`, preceded by the resource's own
address. This is the address of the resource's `$id`, or `Uri` if the resource has no `$id`. `Uri`
must have no fragment. Returns `error` if the index has no resource at `Uri`.
""".
-spec find(binary(), index()) -> {Uri :: binary(), resource()} | error.
find(Uri, #index{resources = Resources} = Index) ->
    case Resources of
        #{Uri := {alias, Other}} -> find(Other, Index);
        #{Uri := Resource} -> {Uri, Resource};
        #{} -> error
    end.

-doc """
Returns the dynamic anchors of the resource at the address `Uri`, each name with its target. The
name of `$recursiveAnchor` is `recursive`. A target is `Uri` and the tokens of a JSON pointer into
the resource, the last token first. Anchors whose names no dynamic reference in the index uses are
left out.
""".
-spec dynamic(binary(), index()) -> #{binary() | recursive => {binary(), [binary()]}}.
dynamic(Uri, #index{dynamic = Used, resources = Resources}) ->
    case Resources of
        #{Uri := #{dynamic := Dynamic}} when map_size(Used) > 0 ->
            #{Name => {Uri, Pointer} || Name := Pointer <- Dynamic, is_map_key(Name, Used)};
        #{} ->
            #{}
    end.

-doc """
Resolves the reference `Ref` against the address `Base`, and returns the address that `Ref` names.
If `Ref` cannot be resolved, returns `Ref` itself. Neither result has the fragment of `Ref`.
""".
-spec resolve_uri(Ref :: binary(), Base :: binary()) -> binary().
resolve_uri(Ref, Base) ->
    case binary:split(Ref, ~"#") of
        [~"" | _] ->
            Base;
        [Relative | _] ->
            case uri_string:resolve(Relative, Base) of
                Uri when is_binary(Uri) -> Uri;
                %% The base is not hierarchical (a URN), or the reference is not a URI: it stays as
                %% it is.
                _ -> Relative
            end
    end.

-doc """
Returns the fragment of a reference, still percent-encoded, or an empty binary if the reference has
none.
""".
-spec fragment(binary()) -> binary().
fragment(Ref) ->
    case binary:split(Ref, ~"#") of
        [_, Fragment] -> Fragment;
        [_] -> ~""
    end.
