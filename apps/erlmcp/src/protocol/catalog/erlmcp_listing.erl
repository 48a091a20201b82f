-module(erlmcp_listing).
-moduledoc """
The list of one kind of definitions, as the pages of its list method. If all principals see the same
list, its first page is encoded in advance. Otherwise each request gets a page of the definitions
that its principal sees. Pure.

A cursor has the position of the definition that a page begins after, so it stays valid while others
are added and removed. The cursor also has the name or URI of that definition, by which another
server with the same definitions finds the place.

A cursor is sealed, so that no client can find out how many definitions it does not see. If a list
differs between principals, a cursor is valid for one principal alone. When a list begins or ceases
to differ, its cursors become invalid.

Source: specification 2026-07-28, "Pagination" and "Caching".

Internal.
""".

-export([all/3, changed/3, directory/4, with_keys/2, first_page/4, page/5]).
-export([kind/1]).

-export_type([listing/0, settings/0]).

-doc """
Settings of lists.

- `page_size`: the most definitions in one page.
- `list_ttl_ms`: how many milliseconds a client may cache a list.
- `keys`: the keys that seal cursors.
- `numbering`: 8 bytes that no other server's numbering of positions has.
""".
-type settings() :: #{
    page_size := pos_integer(), list_ttl_ms := non_neg_integer(),
    keys := erlmcp:key_ring(), numbering := <<_:64>>
}.
-opaque listing() :: #{
    kind := erlmcp_definition:kind() | {directory, Uri :: binary()},
    scope := public | private,
    settings := settings(),
    server_meta := binary(),
    children => [{position(), Encoded :: binary()}],
    %% A change after this position does not show in the first page; `none` if every change may.
    last := position() | none,
    first_pages := #{erlmcp_revision:revision() => binary()}
}.
-type position() :: erlmcp_catalog_entries:position().

-doc """
Returns the lists of all kinds of definitions. The map has the settings (`t:settings/0`), and may
have further members. `ServerMeta` is the encoded `_meta` of stateless results.
""".
-spec all(erlmcp_catalog_entries:entries(), map(), ServerMeta :: binary()) ->
    #{erlmcp_definition:kind() => listing()}.
all(Entries, Settings, ServerMeta) ->
    Needed = maps:with([page_size, list_ttl_ms, keys, numbering], Settings),
    #{Kind => in_pages(Entries, #{kind => Kind, scope => private, settings => Needed,
                                  server_meta => ServerMeta, last => none, first_pages => #{}})
      || Kind <- erlmcp_catalog_entries:kinds()}.

-doc """
Updates the list after definitions were added or removed, the first of them at `Position`.
""".
-spec changed(Position :: position(), erlmcp_catalog_entries:entries(), listing()) -> listing().
changed(Position, Entries, #{kind := Kind, scope := public, last := Last} = Listing)
  when is_integer(Last), Position > Last ->
    case erlmcp_catalog_entries:is_shared(Kind, Entries) of
        true -> Listing;
        false -> in_pages(Entries, Listing)
    end;
changed(_, Entries, Listing) ->
    in_pages(Entries, Listing).

in_pages(Entries, #{kind := Kind} = Listing) ->
    case erlmcp_catalog_entries:is_shared(Kind, Entries) of
        true -> shared(Entries, Listing);
        false -> Listing#{scope := private, last := none, first_pages := #{}}
    end.

shared(Entries, Listing) ->
    #{settings := #{page_size := Size}} = Shared = Listing#{scope := public},
    %% One definition more than fits into the page shows that there is another page.
    Found = found(-1, Shared, Entries, anonymous),
    Last = case length(Found) > Size of
        true -> element(1, lists:last(Found));
        false -> none
    end,
    Shared#{last := Last,
            first_pages := #{Revision => page_of(Found, Shared, Revision, anonymous)
                             || Revision <- erlmcp_revision:all()}}.

-doc """
Creates the list of a folder's children, which are encoded already and which all principals see.
""".
-spec directory(Uri :: binary(), [{position(), Encoded :: binary()}], settings(),
                ServerMeta :: binary()) -> listing().
directory(Uri, Children, Settings, ServerMeta) ->
    shared(none, #{kind => {directory, Uri}, scope => public, settings => Settings,
                   server_meta => ServerMeta, children => Children, last => none,
                   first_pages => #{}}).

-doc "Changes the keys that seal the cursors of a folder's list.".
-spec with_keys(erlmcp:key_ring(), listing()) -> listing().
with_keys(Keys, #{settings := Settings} = Listing) ->
    shared(none, Listing#{settings := Settings#{keys := Keys}}).

-doc """
Returns the encoded result of a principal's list request without a cursor. A folder's list needs no
entries (`none`).
""".
-spec first_page(listing(), erlmcp_catalog_entries:entries() | none, erlmcp_revision:revision(),
                 erlmcp_auth:principal()) -> binary().
first_page(#{first_pages := Pages} = Listing, Entries, Revision, Principal) ->
    case Pages of
        #{Revision := Page} -> Page;
        #{} -> page_after(-1, Listing, Entries, Revision, Principal)
    end.

-doc """
Returns the encoded result of a list request with a cursor, or `error` if the cursor is not valid. A
folder's list needs no entries (`none`).
""".
-spec page(Cursor :: binary(), listing(), erlmcp_catalog_entries:entries() | none,
           erlmcp_revision:revision(), erlmcp_auth:principal()) -> {ok, binary()} | error.
page(Cursor, Listing, Entries, Revision, Principal) ->
    case position(Cursor, Listing, Entries, Principal) of
        {ok, Position} -> {ok, page_after(Position, Listing, Entries, Revision, Principal)};
        error -> error
    end.

page_after(Position, Listing, Entries, Revision, Principal) ->
    page_of(found(Position, Listing, Entries, Principal), Listing, Revision, Principal).

%% Returns the definitions after a position that the principal sees, one more than fit into a page.
found(Position, #{children := Children, settings := #{page_size := Size}}, _, _) ->
    Rest = lists:dropwhile(fun({P, _}) -> P =< Position end, Children),
    lists:sublist(Rest, Size + 1);
found(Position, #{kind := Kind, settings := #{page_size := Size}}, Entries, Principal) ->
    erlmcp_catalog_entries:take(Size + 1, Kind, Position, fun({At, Definition, Encoded}) ->
        erlmcp_definition:sees(Principal, erlmcp_definition:audience(Definition))
            andalso {true, {At, Encoded, map_get(key, Definition)}}
    end, Entries).

page_of(Found, #{kind := Kind, scope := Scope} = Listing, Revision, Principal) ->
    #{settings := #{page_size := Size, list_ttl_ms := Milliseconds}, server_meta := ServerMeta} =
        Listing,
    {Page, More} = lists:split(min(Size, length(Found)), Found),
    Objects = [encoded(element(2, Listed), Revision) || Listed <- Page],
    Next = case More of
        [] ->
            [];
        _ ->
            [{~"nextCursor", cursor(lists:last(Page), Listing, Principal)}]
    end,
    Caching = erlmcp_result:caching(Milliseconds, Scope, Revision),
    Members = [{member(Kind), {encoded, [$[, lists:join($,, Objects), $]]}} | Next ++ Caching],
    iolist_to_binary(erlmcp_result:object(Members, Revision, ServerMeta)).

encoded(#{} = Encoded, Revision) -> map_get(Revision, Encoded);
encoded(Encoded, _) -> Encoded.

cursor(Last, #{settings := #{keys := Keys, numbering := Numbering}} = Listing, Principal) ->
    Plain = case Last of
        {Position, _, Key} -> <<Position:64, Numbering/binary, Key/binary>>;
        %% A child of a folder, whose children have the same positions everywhere.
        {Position, _} -> <<Position:64>>
    end,
    erlmcp_sealed_state:seal(Plain, bound(Listing, Principal), Keys).

position(Cursor, #{settings := #{keys := Keys}} = Listing, Entries, Principal) ->
    case erlmcp_sealed_state:open(Cursor, bound(Listing, Principal), Keys) of
        {ok, <<Position:64>>} -> {ok, Position};
        {ok, <<Position:64, Numbering:8/binary, Key/binary>>} ->
            {ok, position_here(Position, Numbering, Key, Listing, Entries)};
        _ -> error
    end.

position_here(Position, Numbering, _, #{settings := #{numbering := Numbering}}, _) ->
    Position;
position_here(Position, _, Key, #{kind := Kind}, Entries) ->
    case erlmcp_catalog_entries:find(Kind, Key, Entries) of
        {Here, _} -> Here;
        error -> Position
    end.

%% A cursor does not survive a change of the scope, since all pages of one traversal must have the
%% same cache scope.
bound(#{scope := public, kind := Kind}, _) -> method(Kind);
bound(#{kind := Kind}, Principal) -> term_to_binary({method(Kind), Principal}, [deterministic]).

method(tool) -> ~"tools/list";
method(resource) -> ~"resources/list";
method(resource_template) -> ~"resources/templates/list";
method(prompt) -> ~"prompts/list";
method(skill) -> ~"skills/list";
method({directory, Uri}) -> <<"resources/directory/read ", Uri/binary>>.

-doc "Returns the kind of definitions that a list request asks for.".
-spec kind(Method :: binary()) -> erlmcp_definition:kind().
kind(~"tools/list") -> tool;
kind(~"resources/list") -> resource;
kind(~"resources/templates/list") -> resource_template;
kind(~"prompts/list") -> prompt;
kind(~"skills/list") -> skill.

member(tool) -> ~"tools";
member(resource) -> ~"resources";
member(resource_template) -> ~"resourceTemplates";
member(prompt) -> ~"prompts";
member(skill) -> ~"skills";
member({directory, _}) -> ~"resources".
