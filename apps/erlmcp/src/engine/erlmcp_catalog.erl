-module(erlmcp_catalog).
-moduledoc """
What a server offers, compiled for reading: definitions by name and, for each revision, the answers
to the list requests, `initialize` and `server/discover`, already encoded. Pure; `erlmcp_publisher`
is the process that holds the current one.

For a principal that may not see a definition there is none. Skills all see; they are there from
the start to the end: a user's approval binds to what they were, and no notification tells of a
change. Their files are resources that have their contents.
""".

-export([new/4, add/4, remove/3, mount/4, unmount/2]).
-export([greeting/2, first_page/4, page/5]).
-export([tool/3, prompt/3, resource/3, resource_template/3, is_resource/2]).
-export([audience/2]).
-export([skill/2, directory/4, extends/3, result/4]).
-export([server_meta/1, keys/1, page_size/1, has_tasks/1, version/1, changed/2]).

-export_type([catalog/0, identity/0, settings/0, left_out/0]).

-doc "Who the server is: the fields of MCP's `Implementation`, and `instructions`.".
-type identity() :: #{
    name := binary(), version := binary(), title => binary(), description => binary(),
    website_url => binary(), icons => [map()], instructions => binary()
}.
-doc """
How lists are given out: the definitions of one page, the milliseconds that a client may keep a list
for, and the keys that sign cursors and seal state. And what is around each handler: the server's
`middleware`, and the one that keeps results, for the definitions that ask for it.
""".
-type settings() :: #{
    page_size := pos_integer(), list_ttl_ms := non_neg_integer(), keys := erlmcp_seal:key_ring(),
    middleware => [erlmcp_middleware:middleware()],
    cached => fun((erlmcp_definition:kind(), Key :: binary(), Place :: non_neg_integer(),
                   Wanted :: map()) -> erlmcp_middleware:middleware())
}.
-opaque catalog() :: #{
    identity := #{binary() => term()},
    instructions := binary() | undefined,
    settings := settings(),
    server_meta := binary(),
    next := non_neg_integer(),
    entries := #{erlmcp_definition:kind() => #{binary() => entry()}},
    directories := #{Uri :: binary() => erlmcp_listing:listing()},
    extensions := erlmcp_extension:extensions(),
    greetings := #{erlmcp_revision:revision() => binary()},
    templates := [erlmcp_definition:definition()],
    lists := #{erlmcp_definition:kind() => erlmcp_listing:listing()}
}.
-type metaschemas() :: #{Uri :: binary() => erlmcp_schema:compiled()}.
-type entry() :: {Place :: non_neg_integer(), erlmcp_definition:definition()}.
-doc "A definition of a mounted server that is not offered, and why.".
-type left_out() ::
    {duplicate, erlmcp_definition:kind(), Key :: binary()} | erlmcp_definition:error().

-define(KINDS, [tool, resource, resource_template, prompt, skill]).

-doc """
A catalog with these definitions; lists keep their order. The meta-schemas, which their schemas are
checked against, are what `erlmcp_schema:metaschemas/0` gives.
""".
-spec new(identity(), [{erlmcp_definition:kind(), erlmcp_definition:source()}], settings(),
          metaschemas()) ->
    {ok, catalog()} | {error, erlmcp_definition:error() | {duplicate, atom(), binary()}}.
new(Identity, Sources, Settings, Metaschemas) ->
    Implementation = implementation(Identity),
    ServerInfo = #{~"io.modelcontextprotocol/serverInfo" => Implementation},
    Empty = #{identity => Implementation,
              instructions => maps:get(instructions, Identity, undefined),
              settings => Settings,
              server_meta => iolist_to_binary(json:encode(ServerInfo)),
              next => 0,
              entries => #{Kind => #{} || Kind <- ?KINDS},
              directories => #{},
              extensions => #{},
              greetings => #{},
              templates => [],
              lists => #{}},
    maybe
        {ok, Filled} ?= insert_all(Sources, Metaschemas, Empty),
        {ok, Index} ?= erlmcp_skill_directory:index(files(Filled)),
        ok ?= with_views(Filled),
        {ok, encode_lists(?KINDS, encode_directories(Index, encode_greetings(Filled)))}
    end.

implementation(Identity) ->
    Names = #{name => ~"name", version => ~"version", title => ~"title",
              description => ~"description", website_url => ~"websiteUrl", icons => ~"icons"},
    #{Wire => maps:get(Name, Identity) || Name := Wire <- Names, is_map_key(Name, Identity)}.

insert_all([], _, Catalog) ->
    {ok, Catalog};
insert_all([{Kind, Source} | Sources], Metaschemas, Catalog) ->
    maybe
        {ok, Next} ?= insert(Kind, Source, Metaschemas, Catalog),
        insert_all(Sources, Metaschemas, Next)
    end.

insert(Kind, Source, Metaschemas, Catalog) ->
    maybe
        {ok, Definition} ?= erlmcp_definition:compile(Kind, Source, Metaschemas),
        {ok, Next} ?= keep(Kind, maps:remove(files, Definition), Catalog),
        keep_files(maps:get(files, Definition, []), Next)
    end.

keep(Kind, #{key := Key} = Definition, Catalog) ->
    #{entries := #{Kind := Known} = Entries, next := Place, extensions := Extensions} = Catalog,
    case Known of
        #{Key := _} ->
            {error, {duplicate, Kind, Key}};
        #{} ->
            Entry = {Place, wrapped(Kind, Place, Definition, Catalog)},
            {ok, Catalog#{entries := Entries#{Kind := Known#{Key => Entry}},
                          extensions := maps:merge(Extensions, extensions(Kind, Definition)),
                          next := Place + 1}}
    end.

%% The server's middleware, the definition's own, and next to the handler what keeps its results.
wrapped(Kind, Place, #{key := Key, handler := _} = Definition, #{settings := Settings}) ->
    All = maps:get(middleware, Settings, []) ++ maps:get(middleware, Definition, []),
    Inner = case {Definition, Settings} of
        {#{cache := Wanted}, #{cached := Cached}} -> [Cached(Kind, Key, Place, Wanted)];
        _ -> []
    end,
    erlmcp_middleware:wrap(All, Inner, Definition);
wrapped(_, _, Definition, _) ->
    Definition.

%% A skill that lies in another one shares its files with it.
keep_files([], Catalog) ->
    {ok, Catalog};
keep_files([#{key := Uri, digest := Digest} = File | Files], Catalog) ->
    maybe
        {ok, Next} ?= case known(resource, Uri, Catalog) of
            {ok, #{digest := Digest, listed := true}} -> {ok, Catalog};
            {ok, #{digest := Digest}} -> keep(resource, File, without(resource, Uri, Catalog));
            _ -> keep(resource, File, Catalog)
        end,
        keep_files(Files, Next)
    end.

files(Catalog) ->
    [File || #{contents := _} = File <- definitions(resource, Catalog)].

%% What a definition needs of the protocol beyond its core.
extensions(skill, _) ->
    #{erlmcp_extension:skills() => #{~"directoryRead" => true}};
extensions(_, Definition) ->
    maps:merge(#{erlmcp_extension:ui() => #{} || erlmcp_ui:is_used(Definition)},
               #{erlmcp_extension:tasks() => #{}
                 || maps:get(task, Definition, forbidden) =/= forbidden}).

%% "Resource MUST exist on the server": for as long as a tool names it. A mounted server sees to its
%% own.
with_views(Catalog) ->
    case without_view(Catalog) of
        [] ->
            ok;
        [{Name, Uri} | _] ->
            Expected = <<"resource_uri: a resource with the URI ", Uri/binary, " on this server">>,
            {error, {bad_definition, tool, Name, ui, Expected}}
    end.

without_view(#{extensions := Extensions} = Catalog) ->
    [{Name, Uri} || is_map_key(erlmcp_extension:ui(), Extensions),
                    #{key := Name} = Tool <- definitions(tool, Catalog),
                    not is_map_key(mounted, Tool),
                    {ok, Uri} <- [erlmcp_ui:view_of(Tool)],
                    not is_served(Uri, Catalog)].

is_served(Uri, #{entries := #{resource := Resources}} = Catalog) ->
    is_map_key(Uri, Resources)
        orelse lists:any(fun(#{template := Template}) ->
                             erlmcp_uri_template:match(Uri, Template) =/= nomatch
                         end, definitions(resource_template, Catalog)).

-doc "The catalog with one definition more, at the end of its list.".
-spec add(erlmcp_definition:kind(), erlmcp_definition:source(), metaschemas(), catalog()) ->
    {ok, catalog()} | {error, erlmcp_definition:error() | {duplicate, atom(), binary()}}.
add(Kind, Source, Metaschemas, Catalog) ->
    maybe
        {ok, Next} ?= insert(Kind, Source, Metaschemas, Catalog),
        ok ?= with_views(Next),
        {ok, encode_lists([Kind], greeting_again(Catalog, Next))}
    end.

greeting_again(#{extensions := Extensions}, #{extensions := Extensions} = Next) -> Next;
greeting_again(_, Next) -> encode_greetings(Next).

-doc """
The catalog without the definition of this name, URI or URI template. `in_use` names what needs it:
the tool whose view it is, or the skill.
""".
-spec remove(erlmcp_definition:kind(), Key :: binary(), catalog()) ->
    {ok, catalog()}
    | {error, not_found | {mounted, erlmcp_mount:prefix()}
              | {in_use, erlmcp_definition:kind(), binary()}}.
remove(Kind, Key, Catalog) ->
    case known(Kind, Key, Catalog) of
        {ok, #{contents := _}} ->
            {error, {in_use, skill, Key}};
        {ok, #{mounted := Prefix}} ->
            {error, {mounted, Prefix}};
        {ok, _} ->
            Rest = without(Kind, Key, Catalog),
            case without_view(Rest) of
                [] -> {ok, encode_lists([Kind], Rest)};
                [{Name, _} | _] -> {error, {in_use, tool, Name}}
            end;
        error ->
            {error, not_found}
    end.

without(Kind, Key, #{entries := Entries, next := Next} = Catalog) ->
    #{Kind := Known} = Entries,
    Catalog#{entries := Entries#{Kind := maps:remove(Key, Known)}, next := Next + 1}.

-doc """
The catalog with all that another one offers, under a prefix and as it is now: what was mounted
there before and is not offered any more goes, the rest keeps its place. With those that are left
out: their name is taken, or too long with the prefix.
""".
-spec mount(erlmcp_mount:prefix(), Mounted :: catalog(), erlmcp_mount:offers(), catalog()) ->
    {catalog(), [left_out()]}.
mount(Prefix, Mounted, Offers, #{settings := Settings, entries := Before} = Catalog) ->
    Definitions = [{Kind, Definition}
                   || Kind <- ?KINDS, {_, #{handler := _} = Definition} <- in_order(Kind, Mounted)],
    Middleware = maps:get(middleware, Settings, []),
    {Left, Filled} = lists:foldl(
        fun({Kind, Definition}, {Left, Filling}) ->
            #{entries := Entries, extensions := Extensions, next := Next} = Filling,
            #{key := Key} = Entry = erlmcp_middleware:wrap(
                Middleware, [], erlmcp_mount:definition(Prefix, Kind, Definition, Offers)),
            #{Kind := Known} = Entries,
            case room(Kind, Key, Known) of
                ok ->
                    Place = place(Kind, Key, Prefix, Before, Next),
                    {Left, Filling#{entries := Entries#{Kind := Known#{Key => {Place, Entry}}},
                                    extensions := maps:merge(Extensions, extensions(Kind, Entry)),
                                    next := Next + 1}};
                {error, Reason} ->
                    {[Reason | Left], Filling}
            end
        end, {[], without(Prefix, Catalog)}, Definitions),
    {encode_others(Catalog, Filled), lists:reverse(Left)}.

place(Kind, Key, Prefix, Entries, Next) ->
    case Entries of
        #{Kind := #{Key := {Place, #{mounted := Prefix}}}} -> Place;
        #{} -> Next
    end.

room(Kind, Key, Known) ->
    case erlmcp_mount:fits(Kind, Key) of
        ok when is_map_key(Key, Known) -> {error, {duplicate, Kind, Key}};
        ok -> ok;
        {error, {Field, Expected}} -> {error, {bad_definition, Kind, Key, Field, Expected}}
    end.

-doc "The catalog without what is mounted under a prefix.".
-spec unmount(erlmcp_mount:prefix(), catalog()) -> catalog().
unmount(Prefix, Catalog) ->
    Bare = without(Prefix, Catalog),
    encode_others(Catalog, Bare).

without(Prefix, #{entries := Entries, next := Next} = Catalog) ->
    Own = fun(_, {_, Definition}) -> maps:get(mounted, Definition, none) =/= Prefix end,
    Catalog#{entries := #{Kind => maps:filter(Own, Known) || Kind := Known <- Entries},
             next := Next + 1}.

-doc "A number that is another one after each change.".
-spec version(catalog()) -> non_neg_integer().
version(#{next := Next}) ->
    Next.

-doc "The definitions by which the lists of two catalogs differ, of the kinds that do.".
-spec changed(catalog(), catalog()) ->
    #{erlmcp_definition:kind() => [erlmcp_definition:definition(), ...]}.
changed(One, Other) ->
    maps:from_list([{Kind, Differing} || Kind <- ?KINDS,
                                         [_ | _] = Differing <- [differing(Kind, One, Other)]]).

differing(Kind, One, Other) ->
    [Before, After] = [shown(Kind, Catalog) || Catalog <- [One, Other]],
    maps:values(maps:without(maps:keys(After), Before))
        ++ maps:values(maps:without(maps:keys(Before), After)).

shown(Kind, Catalog) ->
    #{{Place, Wire, erlmcp_definition:audience(Definition)} => Definition
      || {Place, #{wire := Wire} = Definition} <- in_order(Kind, Catalog)}.

-doc "The result of `initialize` or `server/discover` for a revision, encoded.".
-spec greeting(erlmcp_revision:revision(), catalog()) -> binary().
greeting(Revision, #{greetings := Greetings}) ->
    maps:get(Revision, Greetings).

-doc "The result of a principal's list request without a cursor, encoded.".
-spec first_page(Method :: binary(), erlmcp_revision:revision(), erlmcp_auth:principal(),
                 catalog()) -> binary().
first_page(Method, Revision, Principal, Catalog) ->
    erlmcp_listing:first_page(list(Method, Catalog), Revision, Principal).

-doc "The result of a list request with a cursor, if it is one for this list.".
-spec page(Method :: binary(), Cursor :: binary(), erlmcp_revision:revision(),
           erlmcp_auth:principal(), catalog()) -> {ok, binary()} | error.
page(Method, Cursor, Revision, Principal, Catalog) ->
    erlmcp_listing:page(Cursor, list(Method, Catalog), Revision, Principal).

list(Method, #{lists := Lists}) ->
    maps:get(erlmcp_listing:kind(Method), Lists).

-doc "The tool of this name that a principal sees.".
-spec tool(binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
tool(Name, Principal, Catalog) ->
    find(tool, Name, Principal, Catalog).

-doc "The prompt of this name.".
-spec prompt(binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
prompt(Name, Principal, Catalog) ->
    find(prompt, Name, Principal, Catalog).

-doc """
The resource of this URI, or else the first template that matches it, with the template's variables.
""".
-spec resource(Uri :: binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, resource | resource_template, erlmcp_definition:definition(), Variables :: map()} | error.
resource(Uri, Principal, #{templates := Templates} = Catalog) ->
    case find(resource, Uri, Principal, Catalog) of
        {ok, Resource} -> {ok, resource, Resource, #{}};
        error -> match(Uri, Principal, Templates)
    end.

-doc "Whether some principal finds a resource under this URI.".
-spec is_resource(Uri :: binary(), catalog()) -> boolean().
is_resource(Uri, #{entries := #{resource := Resources}, templates := Templates}) ->
    is_map_key(Uri, Resources)
        orelse lists:any(fun(#{template := Template}) ->
                             erlmcp_uri_template:match(Uri, Template) =/= nomatch
                         end, Templates).

-doc "The resource template with this text.".
-spec resource_template(binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
resource_template(Template, Principal, Catalog) ->
    find(resource_template, Template, Principal, Catalog).

-doc "The skill whose `SKILL.md` has this URI.".
-spec skill(Uri :: binary(), catalog()) -> {ok, erlmcp_definition:definition()} | error.
skill(Uri, Catalog) ->
    known(skill, Uri, Catalog).

-doc "A page of the children of the folder with this URI, encoded: the first, or a cursor's.".
-spec directory(Uri :: binary(), Cursor :: binary() | none, erlmcp_revision:revision(),
                catalog()) -> {ok, binary()} | error | bad_cursor.
directory(Uri, Cursor, Revision, #{directories := Directories}) ->
    case Directories of
        #{Uri := Listing} when Cursor =:= none ->
            {ok, erlmcp_listing:first_page(Listing, Revision, anonymous)};
        #{Uri := Listing} ->
            case erlmcp_listing:page(Cursor, Listing, Revision, anonymous) of
                {ok, _} = Page -> Page;
                error -> bad_cursor
            end;
        #{} ->
            error
    end.

-doc "Whether an extension that the definitions need adds this method to a revision.".
-spec extends(Method :: binary(), erlmcp_revision:revision(), catalog()) -> boolean().
extends(Method, Revision, #{extensions := Extensions}) ->
    erlmcp_extension:offers(Method, Revision, Extensions).

-doc "A result with one member, given encoded, that everybody may keep as long as a list.".
-spec result(Member :: binary(), Encoded :: iodata(), erlmcp_revision:revision(), catalog()) ->
    iodata().
result(Member, Encoded, Revision, #{server_meta := ServerMeta, settings := Settings}) ->
    #{list_ttl_ms := Milliseconds} = Settings,
    Members = [{Member, {encoded, Encoded}}
               | erlmcp_result:caching(Milliseconds, public, Revision)],
    erlmcp_result:object(Members, Revision, ServerMeta).

known(Kind, Key, #{entries := Entries}) ->
    case Entries of
        #{Kind := #{Key := {_, Definition}}} -> {ok, Definition};
        #{} -> error
    end.

find(Kind, Key, Principal, #{entries := Entries}) ->
    case Entries of
        #{Kind := #{Key := {_, #{visible := Visible} = Definition}}} ->
            case erlmcp_definition:sees(Principal, Visible) of
                true -> {ok, Definition};
                false -> error
            end;
        #{Kind := #{Key := {_, Definition}}} ->
            {ok, Definition};
        #{} ->
            error
    end.

match(_, _, []) ->
    error;
match(Uri, Principal, [#{template := Template} = Definition | Definitions]) ->
    maybe
        {ok, Variables} ?= erlmcp_uri_template:match(Uri, Template),
        true ?= erlmcp_definition:sees(Principal, erlmcp_definition:audience(Definition)),
        {ok, resource_template, Definition, Variables}
    else
        _ -> match(Uri, Principal, Definitions)
    end.

-doc "Who may know of a change of the resource with this URI: who may read it.".
-spec audience(Uri :: binary(), catalog()) -> erlmcp_definition:audience().
audience(Uri, #{lists := #{resource := Resources, resource_template := Templates}} = Catalog) ->
    case erlmcp_listing:is_shared(Resources) andalso erlmcp_listing:is_shared(Templates) of
        true -> all;
        false -> fun(Principal) -> resource(Uri, Principal, Catalog) =/= error end
    end.

-doc "The `_meta` object of every stateless result: who the server is.".
-spec server_meta(catalog()) -> binary().
server_meta(#{server_meta := ServerMeta}) ->
    ServerMeta.

-doc "The keys that sign and seal.".
-spec keys(catalog()) -> erlmcp_seal:key_ring().
keys(#{settings := #{keys := Keys}}) ->
    Keys.

-doc "The definitions of one page of a list.".
-spec page_size(catalog()) -> pos_integer().
page_size(#{settings := #{page_size := Size}}) ->
    Size.

-doc "Whether a tool runs as a task, or one did: its tasks may outlive it.".
-spec has_tasks(catalog()) -> boolean().
has_tasks(#{extensions := Extensions}) ->
    is_map_key(erlmcp_extension:tasks(), Extensions).

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
                            instructions := Instructions, settings := Settings} = Catalog) ->
    #{list_ttl_ms := Milliseconds} = Settings,
    Hello = [{~"instructions", Instructions} || Instructions =/= undefined],
    Era = erlmcp_revision:era(Revision),
    Members = case Era of
        stateless ->
            [{~"supportedVersions", erlmcp_revision:supported(stateless)},
             {~"capabilities", capabilities(Revision, Catalog)}
             | erlmcp_result:caching(Milliseconds, public, Revision)];
        session ->
            Fields = erlmcp_revision:fields(implementation, Revision),
            [{~"protocolVersion", erlmcp_revision:name(Revision)},
             {~"capabilities", capabilities(Revision, Catalog)},
             {~"serverInfo", maps:with(Fields, Identity)}]
    end,
    erlmcp_result:object(Members ++ Hello, Revision, ServerMeta).

%% Definitions can be added at any time, so all are offered even while a list is empty.
capabilities(Revision, #{extensions := Extensions} = Catalog) ->
    List = #{~"listChanged" => true},
    Base = #{~"tools" => List, ~"resources" => List#{~"subscribe" => true}, ~"prompts" => List,
             ~"completions" => #{}, ~"logging" => #{}},
    %% The one revision that has tasks in its core.
    Core = maps:merge(Base, #{~"tasks" => erlmcp_task:capability()
                              || Revision =:= '2025-11-25', has_tasks(Catalog)}),
    case erlmcp_extension:shown(Revision, Extensions) of
        Shown when map_size(Shown) =:= 0 -> Core;
        Shown -> Core#{~"extensions" => Shown}
    end.

encode_directories(Index, #{settings := Settings, server_meta := ServerMeta} = Catalog) ->
    Catalog#{directories := #{Uri => erlmcp_listing:directory(Uri, Children, Settings, ServerMeta)
                              || Uri := Children <- Index}}.

%% The kinds in which two catalogs differ, be it in a handler only.
encode_others(#{entries := Before} = Earlier, #{entries := After} = Catalog) ->
    encode_lists([Kind || Kind <- ?KINDS, maps:get(Kind, Before) =/= maps:get(Kind, After)],
                 greeting_again(Earlier, Catalog)).

encode_lists(Kinds, Catalog) ->
    lists:foldl(fun encode_list/2, Catalog, Kinds).

encode_list(Kind, #{lists := Lists, settings := Settings, server_meta := ServerMeta} = Catalog) ->
    Entries = [Entry || {_, Definition} = Entry <- in_order(Kind, Catalog),
                        maps:get(listed, Definition, true)],
    Listing = maps:with([page_size, list_ttl_ms, keys], Settings),
    List = erlmcp_listing:new(Kind, Entries, Listing, ServerMeta),
    with_templates(Kind, Entries, Catalog#{lists := Lists#{Kind => List}}).

with_templates(resource_template, Entries, Catalog) ->
    Catalog#{templates := [Definition || {_, Definition} <- Entries]};
with_templates(_, _, Catalog) ->
    Catalog.
