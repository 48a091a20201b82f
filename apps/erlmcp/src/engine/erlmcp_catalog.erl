-module(erlmcp_catalog).
-moduledoc """
What a server offers, compiled for reading: definitions by name and, for each revision, the answers
to the list requests, `initialize` and `server/discover`, already encoded. Pure; `erlmcp_publisher`
is the process that holds the current one.
""".

-export([new/3, add/3, remove/3]).
-export([greeting/2, first_page/3, page/4]).
-export([tool/2, prompt/2, resource/2, resource_template/2]).
-export([server_meta/1, keys/1]).

-export_type([catalog/0, identity/0, settings/0]).

-doc "Who the server is: the fields of MCP's `Implementation`, and `instructions`.".
-type identity() :: #{
    name := binary(), version := binary(), title => binary(), description => binary(),
    website_url => binary(), icons => [map()], instructions => binary()
}.
-doc """
How lists are given out: the definitions of one page, the milliseconds that a client may keep a list
for, and the keys that sign cursors and seal state.
""".
-type settings() :: #{
    page_size := pos_integer(), list_ttl_ms := non_neg_integer(), keys := erlmcp_seal:key_ring()
}.
-opaque catalog() :: #{
    identity := #{binary() => term()},
    instructions := binary() | undefined,
    settings := settings(),
    server_meta := binary(),
    next := non_neg_integer(),
    entries := #{erlmcp_definition:kind() => #{binary() => entry()}},
    greetings := #{erlmcp_revision:revision() => binary()},
    lists := #{erlmcp_definition:kind() => #{erlmcp_revision:revision() => list()}},
    first_pages := #{erlmcp_revision:revision() => #{Method :: binary() => binary()}}
}.
-type entry() :: {Place :: non_neg_integer(), erlmcp_definition:definition()}.

-define(KINDS, [tool, resource, resource_template, prompt]).

-doc "A catalog with these definitions; lists keep their order.".
-spec new(identity(), [{erlmcp_definition:kind(), erlmcp_definition:source()}], settings()) ->
    {ok, catalog()} | {error, erlmcp_definition:error() | {duplicate, atom(), binary()}}.
new(Identity, Sources, Settings) ->
    Implementation = implementation(Identity),
    ServerInfo = #{~"io.modelcontextprotocol/serverInfo" => Implementation},
    Empty = #{identity => Implementation,
              instructions => maps:get(instructions, Identity, undefined),
              settings => Settings,
              server_meta => iolist_to_binary(json:encode(ServerInfo)),
              next => 0,
              entries => #{Kind => #{} || Kind <- ?KINDS},
              greetings => #{},
              lists => #{},
              first_pages => #{Revision => #{} || Revision <- erlmcp_revision:all()}},
    maybe
        {ok, Filled} ?= insert_all(Sources, Empty),
        {ok, encode_lists(?KINDS, encode_greetings(Filled))}
    end.

implementation(Identity) ->
    Names = #{name => ~"name", version => ~"version", title => ~"title",
              description => ~"description", website_url => ~"websiteUrl", icons => ~"icons"},
    #{Wire => maps:get(Name, Identity) || Name := Wire <- Names, is_map_key(Name, Identity)}.

insert_all([], Catalog) ->
    {ok, Catalog};
insert_all([{Kind, Source} | Sources], Catalog) ->
    maybe
        {ok, Next} ?= insert(Kind, Source, Catalog),
        insert_all(Sources, Next)
    end.

insert(Kind, Source, #{entries := Entries, next := Place} = Catalog) ->
    maybe
        {ok, #{key := Key} = Definition} ?= erlmcp_definition:compile(Kind, Source),
        #{Kind := Known} = Entries,
        case Known of
            #{Key := _} ->
                {error, {duplicate, Kind, Key}};
            #{} ->
                {ok, Catalog#{entries := Entries#{Kind := Known#{Key => {Place, Definition}}},
                              next := Place + 1}}
        end
    end.

-doc "The catalog with one definition more, at the end of its list.".
-spec add(erlmcp_definition:kind(), erlmcp_definition:source(), catalog()) ->
    {ok, catalog()} | {error, erlmcp_definition:error() | {duplicate, atom(), binary()}}.
add(Kind, Source, Catalog) ->
    maybe
        {ok, Next} ?= insert(Kind, Source, Catalog),
        {ok, encode_lists([Kind], Next)}
    end.

-doc "The catalog without the definition of this name, URI or URI template.".
-spec remove(erlmcp_definition:kind(), Key :: binary(), catalog()) ->
    {ok, catalog()} | {error, not_found}.
remove(Kind, Key, #{entries := Entries} = Catalog) ->
    case Entries of
        #{Kind := #{Key := _} = Known} ->
            Rest = maps:remove(Key, Known),
            {ok, encode_lists([Kind], Catalog#{entries := Entries#{Kind := Rest}})};
        #{} ->
            {error, not_found}
    end.

-doc "The result of `initialize` or `server/discover` for a revision, encoded.".
-spec greeting(erlmcp_revision:revision(), catalog()) -> binary().
greeting(Revision, #{greetings := Greetings}) ->
    maps:get(Revision, Greetings).

-doc "The result of a list request without a cursor, encoded.".
-spec first_page(Method :: binary(), erlmcp_revision:revision(), catalog()) -> binary().
first_page(Method, Revision, #{first_pages := Pages}) ->
    #{Revision := #{Method := Page}} = Pages,
    Page.

-doc """
The result of a list request with a cursor. A cursor says after which definition a page begins, so
that it stays good while others come and go.
""".
-spec page(Method :: binary(), Cursor :: binary(), erlmcp_revision:revision(), catalog()) ->
    {ok, binary()} | error.
page(Method, Cursor, Revision, #{settings := #{keys := Keys}} = Catalog) ->
    case erlmcp_seal:verify(Cursor, Method, Keys) of
        {ok, <<Place:64>>} -> {ok, page_after(Place, kind(Method), Revision, Catalog)};
        _ -> error
    end.

-doc "The tool of this name.".
-spec tool(binary(), catalog()) -> {ok, erlmcp_definition:definition()} | error.
tool(Name, Catalog) ->
    find(tool, Name, Catalog).

-doc "The prompt of this name.".
-spec prompt(binary(), catalog()) -> {ok, erlmcp_definition:definition()} | error.
prompt(Name, Catalog) ->
    find(prompt, Name, Catalog).

-doc """
The resource of this URI, or else the first template that matches it, with the template's variables.
""".
-spec resource(Uri :: binary(), catalog()) ->
    {ok, resource | resource_template, erlmcp_definition:definition(), Variables :: map()} | error.
resource(Uri, Catalog) ->
    case find(resource, Uri, Catalog) of
        {ok, Resource} -> {ok, resource, Resource, #{}};
        error -> match(Uri, definitions(resource_template, Catalog))
    end.

-doc "The resource template with this text.".
-spec resource_template(binary(), catalog()) -> {ok, erlmcp_definition:definition()} | error.
resource_template(Template, Catalog) ->
    find(resource_template, Template, Catalog).

find(Kind, Key, #{entries := Entries}) ->
    case Entries of
        #{Kind := #{Key := {_, Definition}}} -> {ok, Definition};
        #{} -> error
    end.

match(_, []) ->
    error;
match(Uri, [#{template := Template} = Definition | Definitions]) ->
    case erlmcp_uri_template:match(Uri, Template) of
        {ok, Variables} -> {ok, resource_template, Definition, Variables};
        nomatch -> match(Uri, Definitions)
    end.

-doc "The `_meta` object of every stateless result: who the server is.".
-spec server_meta(catalog()) -> binary().
server_meta(#{server_meta := ServerMeta}) ->
    ServerMeta.

-doc "The keys that sign and seal.".
-spec keys(catalog()) -> erlmcp_seal:key_ring().
keys(#{settings := #{keys := Keys}}) ->
    Keys.

definitions(Kind, Catalog) ->
    [Definition || {_, Definition} <- in_order(Kind, Catalog)].

in_order(Kind, #{entries := Entries}) ->
    #{Kind := Known} = Entries,
    lists:sort(maps:values(Known)).

%% The answers that say who the server is.
encode_greetings(Catalog) ->
    Greetings = #{Revision => iolist_to_binary(encode_greeting(Revision, Catalog))
                  || Revision <- erlmcp_revision:all()},
    Catalog#{greetings := Greetings}.

encode_greeting(Revision, #{identity := Identity, server_meta := ServerMeta,
                            instructions := Instructions} = Catalog) ->
    Hello = [{~"instructions", Instructions} || Instructions =/= undefined],
    Era = erlmcp_revision:era(Revision),
    Members = case Era of
        stateless ->
            [{~"supportedVersions", erlmcp_revision:supported(stateless)},
             {~"capabilities", capabilities()} | caching(Revision, Catalog)];
        session ->
            Fields = erlmcp_revision:fields(implementation, Revision),
            [{~"protocolVersion", erlmcp_revision:name(Revision)},
             {~"capabilities", capabilities()},
             {~"serverInfo", maps:with(Fields, Identity)}]
    end,
    erlmcp_result:object(Members ++ Hello, Revision, ServerMeta).

%% Definitions can be added at any time, so all are offered even while a list is empty.
capabilities() ->
    List = #{~"listChanged" => true},
    #{~"tools" => List, ~"resources" => List#{~"subscribe" => true}, ~"prompts" => List,
      ~"completions" => #{}, ~"logging" => #{}}.

encode_lists(Kinds, Catalog) ->
    lists:foldl(fun encode_list/2, Catalog, Kinds).

encode_list(Kind, #{lists := Lists, first_pages := Pages} = Catalog) ->
    Entries = in_order(Kind, Catalog),
    List = #{Revision => [{Place, iolist_to_binary(erlmcp_definition:encode(Kind, Definition,
                                                                           Revision))}
                          || {Place, Definition} <- Entries]
             || Revision <- erlmcp_revision:all()},
    Encoded = Catalog#{lists := Lists#{Kind => List}},
    Encoded#{first_pages := #{Revision => Known#{method(Kind) => page_after(-1, Kind, Revision,
                                                                            Encoded)}
                              || Revision := Known <- Pages}}.

page_after(Place, Kind, Revision, #{lists := Lists, server_meta := ServerMeta,
                                    settings := Settings} = Catalog) ->
    #{page_size := Size, keys := Keys} = Settings,
    #{Kind := #{Revision := List}} = Lists,
    Rest = lists:dropwhile(fun({P, _}) -> P =< Place end, List),
    {Page, More} = lists:split(min(Size, length(Rest)), Rest),
    Items = [Item || {_, Item} <- Page],
    Next = case More of
        [] ->
            [];
        _ ->
            {Last, _} = lists:last(Page),
            [{~"nextCursor", erlmcp_seal:sign(<<Last:64>>, method(Kind), Keys)}]
    end,
    Members = [{member(Kind), {encoded, [$[, lists:join($,, Items), $]]}}
               | Next ++ caching(Revision, Catalog)],
    iolist_to_binary(erlmcp_result:object(Members, Revision, ServerMeta)).

method(tool) -> ~"tools/list";
method(resource) -> ~"resources/list";
method(resource_template) -> ~"resources/templates/list";
method(prompt) -> ~"prompts/list".

kind(~"tools/list") -> tool;
kind(~"resources/list") -> resource;
kind(~"resources/templates/list") -> resource_template;
kind(~"prompts/list") -> prompt.

member(tool) -> ~"tools";
member(resource) -> ~"resources";
member(resource_template) -> ~"resourceTemplates";
member(prompt) -> ~"prompts".

%% Lists are the same for everybody.
caching(Revision, #{settings := #{list_ttl_ms := Milliseconds}}) ->
    case erlmcp_revision:era(Revision) of
        stateless -> [{~"ttlMs", Milliseconds}, {~"cacheScope", public}];
        session -> []
    end.
