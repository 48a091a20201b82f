-module(erlmcp_listing).
-moduledoc """
The list of one kind of definitions, in pages. The objects are encoded for each revision by
`erlmcp_catalog_entries`, and the first pages are encoded whole. Pure.

A list with definitions that are `visible` to some principals only has no page in advance. Each
request's page is made of the encoded objects that the principal sees: `visible` is asked for each
of them until the page is full.

A cursor names the definition that a page begins after, so it stays valid while others come and go.
It is sealed, so that no client can read how many definitions it does not see. For a list that
differs between principals, it belongs to its principal. Cursors end when a list changes between the
two sorts, since the pages of one walk have one scope.

Source: specification 2026-07-28, "Pagination" and "Caching".

Internal.
""".

-export([all/3, changed/3, directory/4, first_page/4, page/5]).
-export([kind/1]).

-export_type([listing/0, settings/0]).

-doc """
Settings of lists: the definitions of one page, the milliseconds that a client may keep a list, and
the keys that seal cursors and state.
""".
-type settings() :: #{
    page_size := pos_integer(), list_ttl_ms := non_neg_integer(),
    keys := erlmcp:key_ring()
}.
-opaque listing() :: #{
    kind := erlmcp_definition:kind() | {directory, Uri :: binary()},
    scope := public | private,
    settings := settings(),
    server_meta := binary(),
    children => [{place(), Encoded :: binary()}],
    %% The place behind which a change does not show in the first pages.
    last := place() | none,
    first_pages := #{erlmcp_revision:revision() => binary()}
}.
-type place() :: erlmcp_catalog_entries:place().

-doc "Returns the list of each kind of definitions. `Settings` may have further members.".
-spec all(erlmcp_catalog_entries:entries(), map(), ServerMeta :: binary()) ->
    #{erlmcp_definition:kind() => listing()}.
all(Entries, Settings, ServerMeta) ->
    Needed = maps:with([page_size, list_ttl_ms, keys], Settings),
    #{Kind => in_pages(Entries, #{kind => Kind, scope => private, settings => Needed,
                                  server_meta => ServerMeta, last => none, first_pages => #{}})
      || Kind <- erlmcp_catalog_entries:kinds()}.

-doc "Updates the list after a definition was added or removed at a place.".
-spec changed(place(), erlmcp_catalog_entries:entries(), listing()) -> listing().
changed(Place, Entries, #{kind := Kind, scope := public, last := Last} = Listing)
  when is_integer(Last), Place > Last ->
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
    %% A definition more than fits tells that there is another page.
    Found = found(-1, Shared, Entries, anonymous),
    Last = case length(Found) > Size of
        true -> element(1, lists:last(Found));
        false -> none
    end,
    Shared#{last := Last,
            first_pages := #{Revision => page_of(Found, Shared, Revision, anonymous)
                             || Revision <- erlmcp_revision:all()}}.

-doc "Returns the list of a folder's encoded children in their order, which all principals see.".
-spec directory(Uri :: binary(), [{place(), Encoded :: binary()}], settings(),
                ServerMeta :: binary()) -> listing().
directory(Uri, Children, Settings, ServerMeta) ->
    shared(none, #{kind => {directory, Uri}, scope => public, settings => Settings,
                   server_meta => ServerMeta, children => Children, last => none,
                   first_pages => #{}}).

-doc "Returns the encoded result of a principal's list request without a cursor.".
-spec first_page(listing(), erlmcp_catalog_entries:entries() | none, erlmcp_revision:revision(),
                 erlmcp_auth:principal()) -> binary().
first_page(#{first_pages := Pages} = Listing, Entries, Revision, Principal) ->
    case Pages of
        #{Revision := Page} -> Page;
        #{} -> page_after(-1, Listing, Entries, Revision, Principal)
    end.

-doc """
Returns the encoded result of a list request with a cursor. A folder's list needs no entries.
""".
-spec page(Cursor :: binary(), listing(), erlmcp_catalog_entries:entries() | none,
           erlmcp_revision:revision(), erlmcp_auth:principal()) -> {ok, binary()} | error.
page(Cursor, Listing, Entries, Revision, Principal) ->
    case place(Cursor, Listing, Principal) of
        {ok, <<Place:64>>} -> {ok, page_after(Place, Listing, Entries, Revision, Principal)};
        _ -> error
    end.

page_after(Place, Listing, Entries, Revision, Principal) ->
    page_of(found(Place, Listing, Entries, Principal), Listing, Revision, Principal).

%% Returns one definition more than fits into a page.
found(Place, #{children := Children, settings := #{page_size := Size}}, _, _) ->
    Rest = lists:dropwhile(fun({P, _}) -> P =< Place end, Children),
    lists:sublist(Rest, Size + 1);
found(Place, #{kind := Kind, settings := #{page_size := Size}}, Entries, Principal) ->
    erlmcp_catalog_entries:take(Size + 1, Kind, Place, fun({At, Definition, Encoded}) ->
        erlmcp_definition:sees(Principal, erlmcp_definition:audience(Definition))
            andalso {true, {At, Encoded}}
    end, Entries).

page_of(Found, #{kind := Kind, scope := Scope} = Listing, Revision, Principal) ->
    #{settings := #{page_size := Size, list_ttl_ms := Milliseconds}, server_meta := ServerMeta} =
        Listing,
    {Page, More} = lists:split(min(Size, length(Found)), Found),
    Objects = [encoded(Encoded, Revision) || {_, Encoded} <- Page],
    Next = case More of
        [] ->
            [];
        _ ->
            {Last, _} = lists:last(Page),
            [{~"nextCursor", cursor(<<Last:64>>, Listing, Principal)}]
    end,
    Caching = erlmcp_result:caching(Milliseconds, Scope, Revision),
    Members = [{member(Kind), {encoded, [$[, lists:join($,, Objects), $]]}} | Next ++ Caching],
    iolist_to_binary(erlmcp_result:object(Members, Revision, ServerMeta)).

encoded(#{} = Encoded, Revision) -> map_get(Revision, Encoded);
encoded(Encoded, _) -> Encoded.

cursor(Place, #{settings := #{keys := Keys}} = Listing, Principal) ->
    erlmcp_sealed_state:seal(Place, bound(Listing, Principal), Keys).

place(Cursor, #{settings := #{keys := Keys}} = Listing, Principal) ->
    erlmcp_sealed_state:open(Cursor, bound(Listing, Principal), Keys).

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
