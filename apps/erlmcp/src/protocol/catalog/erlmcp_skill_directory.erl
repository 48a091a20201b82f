-module(erlmcp_skill_directory).
-moduledoc """
The folders of the files of skills, by URI. Each has its direct children as in
`resources/directory/read`: encoded, in the order of their URIs. Pure.

Internal.
""".

-export([index/1, listings/3, page/4]).

-export_type([index/0, listings/0]).

-type listings() :: #{Uri :: binary() => erlmcp_listing:listing()}.
-type index() :: #{Uri :: binary() => [{Place :: non_neg_integer(), Encoded :: binary()}]}.

-doc "Returns the folders of these files, or a URI that is both a file and a folder.".
-spec index([erlmcp_skill:file()]) -> {ok, index()} | {error, {duplicate, resource, binary()}}.
index(Files) ->
    Resources = #{Uri => Wire || #{key := Uri, wire := Wire} <- Files},
    Folders = maps:fold(fun(Uri, Wire, Known) -> below(parent(Uri), Uri, Wire, Known) end,
                        #{}, Resources),
    case [Uri || Uri := _ <- Folders, is_map_key(Uri, Resources)] of
        [] -> {ok, #{Uri => encoded(Children) || Uri := Children <- Folders}};
        [Uri | _] -> {error, {duplicate, resource, Uri}}
    end.

below(none, _, _, Known) ->
    Known;
below(Folder, Uri, Wire, Known) ->
    case Known of
        #{Folder := Children} ->
            Known#{Folder := Children#{Uri => Wire}};
        #{} ->
            Resource = #{~"uri" => Folder, ~"name" => name(Folder),
                         ~"mimeType" => ~"inode/directory"},
            below(parent(Folder), Folder, Resource, Known#{Folder => #{Uri => Wire}})
    end.

parent(<<"skill://", Path/binary>>) ->
    case lists:droplast(binary:split(Path, ~"/", [global])) of
        [] -> none;
        Segments -> iolist_to_binary([~"skill://", lists:join($/, Segments)])
    end.

name(Uri) ->
    uri_string:percent_decode(lists:last(binary:split(Uri, ~"/", [global]))).

encoded(Children) ->
    Wires = [Wire || _ := Wire <- maps:iterator(Children, ordered)],
    [{Place, iolist_to_binary(json:encode(Wire))} || {Place, Wire} <- lists:enumerate(0, Wires)].

-doc "Returns the listings of these folders.".
-spec listings(index(), erlmcp_listing:settings(), ServerMeta :: binary()) -> listings().
listings(Index, Settings, ServerMeta) ->
    #{Uri => erlmcp_listing:directory(Uri, Children, Settings, ServerMeta)
      || Uri := Children <- Index}.

-doc "Returns an encoded page of the children of a folder: the first one, or a cursor's.".
-spec page(Uri :: binary(), Cursor :: binary() | none, erlmcp_revision:revision(), listings()) ->
    {ok, binary()} | error | bad_cursor.
page(Uri, Cursor, Revision, Listings) ->
    case Listings of
        #{Uri := Listing} when Cursor =:= none ->
            {ok, erlmcp_listing:first_page(Listing, none, Revision, anonymous)};
        #{Uri := Listing} ->
            case erlmcp_listing:page(Cursor, Listing, none, Revision, anonymous) of
                {ok, _} = Page -> Page;
                error -> bad_cursor
            end;
        #{} ->
            error
    end.
