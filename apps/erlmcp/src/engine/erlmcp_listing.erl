-module(erlmcp_listing).
-moduledoc """
The list of one kind of definitions, as it is given out in pages: its objects encoded for each
revision, and the first pages whole. Pure.

A list in which some definitions are `visible` to some principals only has no page beforehand. It is
put together for each request, of the encoded objects that the principal sees; `visible` is asked
for each of them until the page is full.

A cursor says after which definition a page begins, so that it stays good while others come and go.
It is sealed: nobody reads in it how many there are that he does not see. That of a list that is not
the same for all is its principal's. None is good once its list has become the other sort, since the
pages of one walk have one scope.

Source: specification 2026-07-28, "Pagination" and "Caching".
""".

-export([new/4, changed/3, directory/4, first_page/3, page/4, is_shared/1]).
-export([kind/1]).

-export_type([listing/0, settings/0]).

-doc """
How lists are given out: the definitions of one page, the milliseconds that a client may keep a list
for, and the keys that seal cursors and state.
""".
-type settings() :: #{
    page_size := pos_integer(), list_ttl_ms := non_neg_integer(), keys := erlmcp_seal:key_ring()
}.
-opaque listing() :: #{
    kind := erlmcp_definition:kind() | {directory, Uri :: binary()},
    scope := public | private,
    settings := settings(),
    server_meta := binary(),
    items := #{erlmcp_revision:revision() => [item()]},
    first_pages := #{erlmcp_revision:revision() => binary()}
}.
-type item() :: {place(), erlmcp_definition:audience(), Encoded :: binary()}.
-type place() :: non_neg_integer().
-type entry() :: {place(), erlmcp_definition:definition()}.

-doc "The list of these definitions, which are in the order of their places.".
-spec new(erlmcp_definition:kind(), [entry()], settings(), ServerMeta :: binary()) -> listing().
new(Kind, Definitions, Settings, ServerMeta) ->
    Items = #{Revision => [item(Kind, Definition, Revision) || Definition <- Definitions]
              || Revision <- erlmcp_revision:all()},
    in_pages(Definitions, #{kind => Kind, scope => private, settings => Settings,
                            server_meta => ServerMeta, items => Items, first_pages => #{}}).

-doc """
The list that has these definitions now, and had those before: what stays at its place as it was is
not encoded again.
""".
-spec changed([entry()], Before :: [entry()], listing()) -> listing().
changed(Definitions, Before, #{kind := Kind, items := Items} = Listing) ->
    Changed = #{Revision => kept(Definitions, Before, Encoded,
                                 fun(Definition) -> item(Kind, Definition, Revision) end)
                || Revision := Encoded <- Items},
    in_pages(Definitions, Listing#{scope := private, items := Changed, first_pages := #{}}).

kept([], _, _, _) ->
    [];
kept([Same | Now], [Same | Before], [Item | Items], Encode) ->
    [Item | kept(Now, Before, Items, Encode)];
kept([{Place, _} | _] = Now, [{Was, _} | Before], [_ | Items], Encode) when Was < Place ->
    kept(Now, Before, Items, Encode);
kept([{Place, _} = Other | Now], [{Place, _} | Before], [_ | Items], Encode) ->
    [Encode(Other) | kept(Now, Before, Items, Encode)];
kept([New | Now], Before, Items, Encode) ->
    [Encode(New) | kept(Now, Before, Items, Encode)].

in_pages(Definitions, Listing) ->
    case [Definition || {_, #{visible := _} = Definition} <- Definitions] of
        [] -> shared(Listing);
        _ -> Listing
    end.

shared(Listing) ->
    Shared = Listing#{scope := public},
    Shared#{first_pages := #{Revision => page_after(-1, Shared, Revision, anonymous)
                             || Revision <- erlmcp_revision:all()}}.

-doc "The list of the children of a folder of resources, which all see, in their order, encoded.".
-spec directory(Uri :: binary(), [{place(), Encoded :: binary()}], settings(),
                ServerMeta :: binary()) -> listing().
directory(Uri, Children, Settings, ServerMeta) ->
    Items = [{Place, all, Encoded} || {Place, Encoded} <- Children],
    shared(#{kind => {directory, Uri}, scope => public, settings => Settings,
             server_meta => ServerMeta, first_pages => #{},
             items => #{Revision => Items || Revision <- erlmcp_revision:all()}}).

item(Kind, {Place, Definition}, Revision) ->
    Encoded = iolist_to_binary(erlmcp_definition:encode(Kind, Definition, Revision)),
    {Place, erlmcp_definition:audience(Definition), Encoded}.

-doc "Whether all see the same.".
-spec is_shared(listing()) -> boolean().
is_shared(#{scope := Scope}) ->
    Scope =:= public.

-doc "The result of a principal's list request without a cursor, encoded.".
-spec first_page(listing(), erlmcp_revision:revision(), erlmcp_auth:principal()) -> binary().
first_page(#{first_pages := Pages} = Listing, Revision, Principal) ->
    case Pages of
        #{Revision := Page} -> Page;
        #{} -> page_after(-1, Listing, Revision, Principal)
    end.

-doc "The result of a list request with a cursor.".
-spec page(Cursor :: binary(), listing(), erlmcp_revision:revision(), erlmcp_auth:principal()) ->
    {ok, binary()} | error.
page(Cursor, Listing, Revision, Principal) ->
    case place(Cursor, Listing, Principal) of
        {ok, <<Place:64>>} -> {ok, page_after(Place, Listing, Revision, Principal)};
        _ -> error
    end.

page_after(Place, #{kind := Kind, scope := Scope, items := Items} = Listing, Revision, Principal) ->
    #{settings := #{page_size := Size, list_ttl_ms := Milliseconds}, server_meta := ServerMeta} =
        Listing,
    Rest = lists:dropwhile(fun({P, _, _}) -> P =< Place end, maps:get(Revision, Items)),
    %% One more than goes into the page says that there are more.
    Found = seen(Rest, Size + 1, Principal),
    {Page, More} = lists:split(min(Size, length(Found)), Found),
    Objects = [Encoded || {_, _, Encoded} <- Page],
    Next = case More of
        [] ->
            [];
        _ ->
            {Last, _, _} = lists:last(Page),
            [{~"nextCursor", cursor(<<Last:64>>, Listing, Principal)}]
    end,
    Caching = erlmcp_result:caching(Milliseconds, Scope, Revision),
    Members = [{member(Kind), {encoded, [$[, lists:join($,, Objects), $]]}} | Next ++ Caching],
    iolist_to_binary(erlmcp_result:object(Members, Revision, ServerMeta)).

seen([{_, Audience, _} = Item | Items], Left, Principal) when Left > 0 ->
    case erlmcp_definition:sees(Principal, Audience) of
        true -> [Item | seen(Items, Left - 1, Principal)];
        false -> seen(Items, Left, Principal)
    end;
seen(_, _, _) ->
    [].

cursor(Place, #{settings := #{keys := Keys}} = Listing, Principal) ->
    erlmcp_seal:seal(Place, bound(Listing, Principal), Keys).

place(Cursor, #{settings := #{keys := Keys}} = Listing, Principal) ->
    erlmcp_seal:open(Cursor, bound(Listing, Principal), Keys).

bound(#{scope := public, kind := Kind}, _) -> method(Kind);
bound(#{kind := Kind}, Principal) -> term_to_binary({method(Kind), Principal}, [deterministic]).

method(tool) -> ~"tools/list";
method(resource) -> ~"resources/list";
method(resource_template) -> ~"resources/templates/list";
method(prompt) -> ~"prompts/list";
method(skill) -> ~"skills/list";
method({directory, Uri}) -> <<"resources/directory/read ", Uri/binary>>.

-doc "The kind that a list request asks for.".
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
