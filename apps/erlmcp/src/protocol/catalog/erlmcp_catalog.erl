-module(erlmcp_catalog).
-moduledoc """
The offer of a server, compiled for reading. It has the definitions (`erlmcp_catalog_entries`), and
answers that are encoded for each revision: to list requests (`erlmcp_listing`), to `initialize` and
to `server/discover` (`erlmcp_greeting`). Pure; the current one is read from
`erlmcp_published_catalog`.

A definition does not exist for a principal that may not see it. Skills are visible to all, and do
not change while the server runs. A user's approval is bound to their content, and no notification
tells of a change. Their files are resources with fixed contents.

Internal.
""".

-export([new/4, add/4, remove/3, mount/5, unmount/2]).
-export([greeting/2, first_page/4, page/5]).
-export([tool/3, prompt/3, resource/3, resource_template/3, is_resource/2, audience/2]).
-export([definition/3, directory/4, extends/3, result/4]).
-export([whole/1, split/1, join/2]).
-export([server_meta/1, keys/1, page_size/1, reply_bytes/1, has_tasks/1, version/1, changed/2]).

-export_type([catalog/0, settings/0, part/0]).

-doc """
Settings of a catalog: the definitions of one page, the milliseconds that a client may keep a list,
and the keys for cursors and state. The others wrap each handler: the server's `middleware`, the one
that caches results (`cached`), and the guards of a definition (`guarded`).
""".
-type settings() :: #{
    page_size := pos_integer(), list_ttl_ms := non_neg_integer(),
    keys := erlmcp:key_ring(),
    reply_bytes => pos_integer(),
    middleware => [erlmcp:middleware()],
    cached => fun((erlmcp_definition:kind(), Place :: non_neg_integer(),
                   erlmcp_definition:definition()) -> erlmcp:middleware()),
    guarded => fun((erlmcp_definition:definition()) ->
                       {ok, [erlmcp:middleware()]} | {error, atom(), binary()}),
    quick => fun(() -> Mark :: term())
}.
-opaque catalog() :: #{
    identity := #{binary() => term()},
    instructions := binary() | undefined,
    settings := settings(),
    server_meta := binary(),
    entries := erlmcp_catalog_entries:entries(),
    %% They do not change while the server runs.
    directories := erlmcp_skill:listings() | apart,
    extensions := erlmcp_extension:extensions(),
    greetings := #{erlmcp_revision:revision() => binary()},
    templates := [erlmcp_definition:definition()] | many,
    lists := #{erlmcp_definition:kind() => erlmcp_listing:listing()}
}.

-doc "A part that many changes leave as it is.".
-type part() :: erlmcp_catalog_entries:layer() | erlmcp_skill:listings().

%% Definitions up to which a catalog counts as small.
-define(SMALL, 256).
%% Resource templates that are at hand as a list.
-define(FEW_TEMPLATES, 16).

-type metaschemas() :: #{Uri :: binary() => erlmcp_schema:compiled()}.

-doc """
Creates a catalog with these definitions; lists keep their order. The meta-schemas that check their
schemas are those of `erlmcp_schema:metaschemas/0`.
""".
-spec new(erlmcp_greeting:identity(), [{erlmcp_definition:kind(), erlmcp_definition:source()}],
          settings(), metaschemas()) ->
    {ok, catalog()} | {error, erlmcp_definition:error() | {duplicate, atom(), binary()}}.
new(Identity, Sources, Settings, Metaschemas) ->
    Implementation = erlmcp_greeting:implementation(Identity),
    ServerInfo = #{~"io.modelcontextprotocol/serverInfo" => Implementation},
    Empty = #{identity => Implementation,
              instructions => maps:get(instructions, Identity, undefined),
              settings => Settings,
              server_meta => iolist_to_binary(erlmcp_json:encode(ServerInfo)),
              entries => erlmcp_catalog_entries:new(),
              directories => #{},
              extensions => #{},
              greetings => #{},
              templates => templates(erlmcp_catalog_entries:new()),
              lists => #{}},
    maybe
        {ok, #{entries := Entries} = Inserted} ?= insert_all(Sources, Metaschemas, Empty),
        Filled = Inserted#{entries := erlmcp_catalog_entries:whole(Entries)},
        {ok, Folders} ?= erlmcp_skill:folders(files(Filled)),
        Greeting = encode_directories(Folders, encode_greetings(Filled)),
        with_views(-1, encode_lists(Greeting))
    end.

insert_all([], _, Catalog) ->
    {ok, Catalog};
insert_all([{Kind, Source} | Sources], Metaschemas, Catalog) ->
    maybe
        {ok, Next} ?= insert(Kind, Source, Metaschemas, Catalog),
        insert_all(Sources, Metaschemas, Next)
    end.

insert(Kind, Source, Metaschemas, Catalog) ->
    maybe
        {ok, Definition} ?= compiled(Kind, Source, Metaschemas),
        {ok, Next} ?= keep(Kind, maps:remove(files, Definition), Catalog),
        keep_files(maps:get(files, Definition, []), Next)
    end.

compiled(skill, Source, _) -> erlmcp_skill:compile(Source);
compiled(Kind, Source, Metaschemas) -> erlmcp_definition:compile(Kind, Source, Metaschemas).

keep(Kind, Definition, Catalog) ->
    #{entries := Entries, extensions := Extensions, settings := Settings} = Catalog,
    maybe
        {ok, Wrapped} ?= erlmcp_middleware:of_server(Kind, erlmcp_catalog_entries:next(Entries),
                                                     Definition,
                                                     Settings),
        {ok, Next} ?= erlmcp_catalog_entries:add(Kind, Wrapped, Entries),
        Needed = erlmcp_definition:extensions(Kind, Definition),
        {ok, Catalog#{entries := Next, extensions := maps:merge(Extensions, Needed)}}
    else
        {error, Field, Expected} ->
            {error, {bad_definition, Kind, map_get(key, Definition), Field, Expected}};
        {error, _} = Error ->
            Error
    end.

%% A skill inside another one shares its files with it.
keep_files([], Catalog) ->
    {ok, Catalog};
keep_files([#{key := Uri, digest := Digest} = File | Files], Catalog) ->
    maybe
        {ok, Next} ?= case definition(resource, Uri, Catalog) of
            {ok, #{digest := Digest, listed := true}} -> {ok, Catalog};
            {ok, #{digest := Digest}} -> keep(resource, File, without(resource, Uri, Catalog));
            _ -> keep(resource, File, Catalog)
        end,
        keep_files(Files, Next)
    end.

files(#{entries := Entries}) ->
    [File || #{contents := _} = File <- erlmcp_catalog_entries:definitions(resource, Entries)].

%% "Resource MUST exist on the server": for as long as a tool names it. A mounted server checks its
%% own.
with_views(After, Catalog) ->
    case without_view(After, fun(Uri) -> not is_resource(Uri, Catalog) end, Catalog) of
        [] -> {ok, Catalog};
        [{Name, Uri} | _] ->
            Expected = <<"resource_uri: a resource with the URI ", Uri/binary, " on this server">>,
            {error, {bad_definition, tool, Name, ui, Expected}}
    end.

%% The first tool behind a place whose view is missing, if there is one.
without_view(After, IsMissing, #{entries := Entries, extensions := Extensions}) ->
    case is_map_key(erlmcp_extension:ui(), Extensions) of
        true -> tool_without_view(After, IsMissing, Entries);
        false -> []
    end.

-doc "Adds a definition at the end of its list.".
-spec add(erlmcp_definition:kind(), erlmcp_definition:source(), metaschemas(), catalog()) ->
    {ok, catalog()} | {error, erlmcp_definition:error() | {duplicate, atom(), binary()}}.
add(Kind, Source, Metaschemas, Catalog) ->
    Place = erlmcp_catalog_entries:next(map_get(entries, Catalog)),
    maybe
        {ok, Next} ?= insert(Kind, Source, Metaschemas, Catalog),
        with_views(Place - 1, changed_at(Place, Kind, greeting_again(Catalog, Next)))
    end.

greeting_again(#{extensions := Extensions}, #{extensions := Extensions} = Next) -> Next;
greeting_again(_, Next) -> encode_greetings(Next).

-doc """
Removes the definition whose name, URI or URI template is `Key`. `in_use` names the definition that
needs it: the tool whose view it is, or the skill.
""".
-spec remove(erlmcp_definition:kind(), Key :: binary(), catalog()) ->
    {ok, catalog()}
    | {error, not_found | {mounted, erlmcp_mount:prefix()}
              | {in_use, erlmcp_definition:kind(), binary()}}.
remove(Kind, Key, Catalog) ->
    #{entries := Entries} = Catalog,
    case erlmcp_catalog_entries:find(Kind, Key, Entries) of
        {_, #{contents := _}} ->
            {error, {in_use, skill, Key}};
        {_, #{mounted := Prefix}} ->
            {error, {mounted, Prefix}};
        {Place, _} ->
            without_views(Kind, Catalog, changed_at(Place, Kind, without(Kind, Key, Catalog)));
        error ->
            {error, not_found}
    end.

%% Checks all tools, one of which may have lost its view. A mounted server's view may go.
without_views(Kind, Before, Rest) when Kind =:= resource; Kind =:= resource_template ->
    IsLost = fun(Uri) -> is_resource(Uri, Before) andalso not is_resource(Uri, Rest) end,
    case without_view(-1, IsLost, Rest) of
        [] -> {ok, Rest};
        [{Name, _}] -> {error, {in_use, tool, Name}}
    end;
without_views(_, _, Rest) ->
    {ok, Rest}.

without(Kind, Key, #{entries := Entries} = Catalog) ->
    Catalog#{entries := erlmcp_catalog_entries:remove(Kind, Key, Entries)}.

-doc """
Adds all definitions of the catalog `Mounted` under `Prefix`, and returns those that are left out.
Definitions that `Since` names were mounted already, and are not compiled again: see
`erlmcp_mount:mount/6`.
""".
-spec mount(erlmcp_mount:prefix(), Since :: erlmcp_mount:since(), Mounted :: catalog(),
            erlmcp_mount:offers(), catalog()) -> {catalog(), [erlmcp_mount:left_out()]}.
mount(Prefix, Since, #{entries := Mounted}, Offers, Catalog) ->
    #{entries := Before, extensions := Extensions, settings := Settings} = Catalog,
    Middleware = maps:get(middleware, Settings, []),
    #{entries := Entries, extensions := Needed, changed := Changed, left_out := LeftOut} =
        erlmcp_mount:mount(Prefix, Since, Mounted, Offers, Middleware, Before),
    Filled = Catalog#{entries := Entries, extensions := maps:merge(Extensions, Needed)},
    {changed_at(Changed, greeting_again(Catalog, Filled)), LeftOut}.

-doc "Removes all definitions that are mounted under a prefix.".
-spec unmount(erlmcp_mount:prefix(), catalog()) -> catalog().
unmount(Prefix, #{entries := Entries} = Catalog) ->
    encode_lists(Catalog#{entries := erlmcp_mount:unmount(Prefix, Entries)}).

-doc "Returns a small catalog in the form that is cheapest to read; `large` for a large one.".
-spec whole(catalog()) -> {ok, catalog()} | large.
whole(#{entries := Entries} = Catalog) ->
    case erlmcp_catalog_entries:size(Entries) > ?SMALL of
        true -> large;
        false -> {ok, Catalog#{entries := erlmcp_catalog_entries:whole(Entries)}}
    end.

-doc """
Splits a large catalog into the part that changes often, and the parts that many changes leave as
they are. It cannot be read before it is joined again.
""".
-spec split(catalog()) -> {catalog(), [{erlmcp_catalog_entries:id() | directories, part()}]}.
split(#{entries := Entries, directories := Directories} = Catalog) ->
    {Few, Many} = erlmcp_catalog_entries:split(Entries),
    Rest = Catalog#{entries := Few},
    case map_size(Directories) of
        0 -> {Rest, Many};
        _ -> {Rest#{directories := apart}, Many ++ [{directories, Directories}]}
    end.

-doc "Joins the parts of a catalog that was split.".
-spec join(catalog(), [part()]) -> catalog().
join(#{directories := apart} = Catalog, Parts) ->
    {Layers, [Directories]} = lists:split(length(Parts) - 1, Parts),
    join(Catalog#{directories := Directories}, Layers);
join(#{entries := Few} = Catalog, Many) ->
    Catalog#{entries := erlmcp_catalog_entries:join(Few, Many)}.

-doc "Returns the version of a catalog: a number that is different after each change.".
-spec version(catalog()) -> non_neg_integer().
version(#{entries := Entries}) ->
    erlmcp_catalog_entries:next(Entries).

-doc "Returns the definitions by which the lists of two catalogs differ, by their kinds.".
-spec changed(catalog(), catalog()) ->
    #{erlmcp_definition:kind() => [erlmcp_definition:definition(), ...]}.
changed(#{entries := One}, #{entries := Other}) ->
    erlmcp_catalog_entries:changed(One, Other).

-doc "Returns the encoded result of `initialize` or `server/discover` for a revision.".
-spec greeting(erlmcp_revision:revision(), catalog()) -> binary().
greeting(Revision, #{greetings := Greetings}) ->
    maps:get(Revision, Greetings).

-doc "Returns the encoded result of a principal's list request without a cursor.".
-spec first_page(Method :: binary(), erlmcp_revision:revision(), erlmcp_auth:principal(),
                 catalog()) -> binary().
first_page(Method, Revision, Principal, #{entries := Entries} = Catalog) ->
    erlmcp_listing:first_page(list(Method, Catalog), Entries, Revision, Principal).

-doc """
Returns the encoded result of a list request with a cursor, if the cursor is one of this list.
""".
-spec page(Method :: binary(), Cursor :: binary(), erlmcp_revision:revision(),
           erlmcp_auth:principal(), catalog()) -> {ok, binary()} | error.
page(Method, Cursor, Revision, Principal, #{entries := Entries} = Catalog) ->
    erlmcp_listing:page(Cursor, list(Method, Catalog), Entries, Revision, Principal).

list(Method, #{lists := Lists}) ->
    maps:get(erlmcp_listing:kind(Method), Lists).

-doc "Returns the tool `Name`, if the principal sees it.".
-spec tool(binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
tool(Name, Principal, #{entries := Entries}) ->
    erlmcp_catalog_entries:find(tool, Name, Principal, Entries).

-doc "Returns the prompt `Name`, if the principal sees it.".
-spec prompt(binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
prompt(Name, Principal, #{entries := Entries}) ->
    erlmcp_catalog_entries:find(prompt, Name, Principal, Entries).

-doc """
Returns the resource at `Uri`, or else the first template that matches it, with the template's
variables.
""".
-spec resource(Uri :: binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, resource | resource_template, erlmcp_definition:definition(), Variables :: map()} | error.
resource(Uri, Principal, #{entries := Entries, templates := Templates}) ->
    case erlmcp_catalog_entries:find(resource, Uri, Principal, Entries) of
        {ok, Resource} -> {ok, resource, Resource, #{}};
        error -> match_template(Uri, Principal, Templates, Entries)
    end.

-doc "Returns `true` if some principal finds a resource at `Uri`.".
-spec is_resource(Uri :: binary(), catalog()) -> boolean().
is_resource(Uri, #{entries := Entries}) ->
    erlmcp_catalog_entries:find(resource, Uri, Entries) =/= error
        orelse is_matched(Uri, Entries).

-doc "Returns the resource template whose text is `Template`, if the principal sees it.".
-spec resource_template(binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
resource_template(Template, Principal, #{entries := Entries}) ->
    erlmcp_catalog_entries:find(resource_template, Template, Principal, Entries).

-doc "Returns an encoded page of the children of a folder: the first one, or a cursor's.".
-spec directory(Uri :: binary(), Cursor :: binary() | none, erlmcp_revision:revision(),
                catalog()) -> {ok, binary()} | error | bad_cursor.
directory(Uri, Cursor, Revision, #{directories := Directories}) ->
    erlmcp_skill:page(Uri, Cursor, Revision, Directories).

-doc "Returns `true` if an extension that the definitions need adds `Method` to `Revision`.".
-spec extends(Method :: binary(), erlmcp_revision:revision(), catalog()) -> boolean().
extends(Method, Revision, #{extensions := Extensions}) ->
    erlmcp_extension:offers(Method, Revision, Extensions).

-doc "Returns a result with one encoded member, which any client may cache as long as a list.".
-spec result(Member :: binary(), Encoded :: iodata(), erlmcp_revision:revision(), catalog()) ->
    iodata().
result(Member, Encoded, Revision, #{server_meta := ServerMeta, settings := Settings}) ->
    #{list_ttl_ms := Milliseconds} = Settings,
    Members = [{Member, {encoded, Encoded}}
               | erlmcp_result:caching(Milliseconds, public, Revision)],
    erlmcp_result:object(Members, Revision, ServerMeta).

-doc "Returns the definition with the key `Key`, whether or not a principal sees it.".
-spec definition(erlmcp_definition:kind(), Key :: binary(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
definition(Kind, Key, #{entries := Entries}) ->
    case erlmcp_catalog_entries:find(Kind, Key, Entries) of
        {_, Definition} -> {ok, Definition};
        error -> error
    end.

-doc "Returns the principals that may hear of a change of a resource: those that may read it.".
-spec audience(Uri :: binary(), catalog()) -> erlmcp_definition:audience().
audience(Uri, #{entries := Entries} = Catalog) ->
    case erlmcp_catalog_entries:is_shared(resource, Entries)
        andalso erlmcp_catalog_entries:is_shared(resource_template, Entries) of
        true -> all;
        false -> fun(Principal) -> resource(Uri, Principal, Catalog) =/= error end
    end.

-doc "Returns the `_meta` object of every stateless result, with the server's identity.".
-spec server_meta(catalog()) -> binary().
server_meta(#{server_meta := ServerMeta}) ->
    ServerMeta.

-doc "Returns the keys that seal cursors and state.".
-spec keys(catalog()) -> erlmcp:key_ring().
keys(#{settings := #{keys := Keys}}) ->
    Keys.

-doc "Returns the number of definitions of one page of a list.".
-spec page_size(catalog()) -> pos_integer().
page_size(#{settings := #{page_size := Size}}) ->
    Size.

-doc "Returns the number of bytes that a result may have, if that is bounded.".
-spec reply_bytes(catalog()) -> {ok, pos_integer()} | error.
reply_bytes(#{settings := Settings}) ->
    maps:find(reply_bytes, Settings).

-doc "Returns `true` if a tool runs as a task, or one did: its tasks may outlive it.".
-spec has_tasks(catalog()) -> boolean().
has_tasks(#{extensions := Extensions}) ->
    is_map_key(erlmcp_extension:tasks(), Extensions).

encode_greetings(#{settings := #{list_ttl_ms := Milliseconds}} = Catalog) ->
    Server = maps:with([identity, instructions, extensions, server_meta], Catalog),
    Catalog#{greetings := erlmcp_greeting:encode(Server#{ttl_ms => Milliseconds})}.

encode_directories(Folders, #{settings := Settings, server_meta := ServerMeta} = Catalog) ->
    Catalog#{directories := erlmcp_skill:listings(Folders, Settings, ServerMeta)}.

encode_lists(#{entries := Entries, settings := Settings, server_meta := ServerMeta} = Catalog) ->
    Catalog#{lists := erlmcp_listing:all(Entries, Settings, ServerMeta),
             templates := templates(Entries)}.

changed_at(all, Catalog) ->
    encode_lists(Catalog);
changed_at(Changed, Catalog) ->
    maps:fold(fun(Kind, Place, Next) -> changed_at(Place, Kind, Next) end, Catalog, Changed).

%% Definitions of a kind came or went, the first of them at this place.
changed_at(Place, Kind, #{entries := Entries, lists := Lists, templates := Before} = Catalog) ->
    #{Kind := List} = Lists,
    Templates = case Kind of
        resource_template -> templates(Entries);
        _ -> Before
    end,
    Catalog#{lists := Lists#{Kind := erlmcp_listing:changed(Place, Entries, List)},
             templates := Templates}.

%% The first tool behind a place whose view is missing, with the view's URI. Tools of a mounted
%% server are not checked.
tool_without_view(After, IsMissing, Entries) ->
    Lacks = fun({_, #{mounted := _}, _}) ->
                    false;
               ({_, #{key := Name} = Tool, _}) ->
                    maybe
                        {ok, Uri} ?= erlmcp_ui:view_of(Tool),
                        true ?= IsMissing(Uri),
                        {true, {Name, Uri}}
                    else
                        _ -> false
                    end
            end,
    erlmcp_catalog_entries:take(1, tool, After, Lacks, Entries).

%% The resource templates that a URI is matched against, in the order of their list. A few are kept
%% as a list of their own. More would be costly to copy with each change, and are looked up in the
%% entries.

templates(Entries) ->
    Definition = fun({_, Template, _}) -> {true, Template} end,
    Found = erlmcp_catalog_entries:take(?FEW_TEMPLATES + 1, resource_template, -1, Definition,
                                        Entries),
    case length(Found) > ?FEW_TEMPLATES of
        true -> many;
        false -> Found
    end.

match_template(Uri, Principal, many, Entries) ->
    Match = fun({_, Definition, _}) ->
        case first_match(Uri, Principal, [Definition]) of
            error -> false;
            Found -> {true, Found}
        end
    end,
    case erlmcp_catalog_entries:take(1, resource_template, -1, Match, Entries) of
        [Found] -> Found;
        [] -> error
    end;
match_template(Uri, Principal, Templates, _) ->
    first_match(Uri, Principal, Templates).

first_match(_, _, []) ->
    error;
first_match(Uri, Principal, [#{template := Template} = Definition | Definitions]) ->
    maybe
        {ok, Variables} ?= erlmcp_uri_template:match(Uri, Template),
        true ?= erlmcp_definition:sees(Principal, erlmcp_definition:audience(Definition)),
        {ok, resource_template, Definition, Variables}
    else
        _ -> first_match(Uri, Principal, Definitions)
    end.

is_matched(Uri, Entries) ->
    Match = fun({_, #{template := Template}, _}) ->
        case erlmcp_uri_template:match(Uri, Template) of
            {ok, _} -> {true, matches};
            nomatch -> false
        end
    end,
    erlmcp_catalog_entries:take(1, resource_template, -1, Match, Entries) =/= [].
