-module(erlmcp_catalog).
-moduledoc """
Everything that a server offers, compiled so that requests only read it. A catalog has the
definitions (`m:erlmcp_catalog_entries`), and the encoded answers to list requests
(`m:erlmcp_listing`), `initialize` and `server/discover` (`m:erlmcp_greeting`). Pure; requests read
the current catalog from `m:erlmcp_published_catalog`.

A definition does not exist for a principal that may not see it. Skills are visible to all, and do
not change while the server runs. Their files are resources with fixed contents.

Internal.
""".

-export([new/4, add/4, remove/3, replace/3, own/2, mount/5, unmount/2, with_keys/2, with_rows/2]).
-export([greeting/2, first_page/4, page/5]).
-export([tool/3, prompt/3, resource/3, resource_template/3, is_resource/2, audience/2]).
-export([definition/3, values/2, directory/4, extends/3, result/4]).
-export([whole/1, split/1, join/2]).
-export([name/1, server_meta/1, keys/1, page_size/1, reply_bytes/1, has_tasks/1, version/1,
         changed/2]).

-export_type([catalog/0, settings/0, part/0]).

-doc """
Settings of a catalog.

- `page_size`: the most definitions in one page of a list.
- `list_ttl_ms`: how many milliseconds a client may cache a list.
- `keys`: the keys that seal cursors and state.
- `numbering`: 8 bytes that no other server's numbering of positions has (`m:erlmcp_listing`).
- `reply_bytes`: the most bytes of a result.
- `middleware`: the server's middleware, around each handler.
- `cached`: returns the middleware that caches the results of a definition.
- `guarded`: returns the guards of a definition, as middleware, and the definition with its breaker.
- `quick`: makes the mark of a quick definition (`erlmcp_middleware:of_server/4`).
- `row`: returns the row of a definition in the server's meter.
""".
-type settings() :: #{
    page_size := pos_integer(), list_ttl_ms := non_neg_integer(),
    keys := erlmcp:key_ring(),
    numbering := <<_:64>>,
    reply_bytes => pos_integer(),
    middleware => [erlmcp:middleware()],
    cached => fun((erlmcp_definition:kind(), Position :: non_neg_integer(),
                   erlmcp_definition:definition()) -> erlmcp:middleware()),
    guarded => fun((erlmcp_definition:kind(), erlmcp_definition:definition()) ->
                       {ok, [erlmcp:middleware()], erlmcp_definition:definition()}
                       | {error, atom(), binary()}),
    quick => fun(() -> Mark :: term()),
    row => fun((erlmcp_definition:kind(), Key :: binary()) -> Row :: term())
}.
-opaque catalog() :: #{
    identity := #{binary() => term()},
    instructions := binary() | undefined,
    settings := settings(),
    server_meta := binary(),
    entries := erlmcp_catalog_entries:entries(),
    %% Folders of skills do not change while the server runs.
    directories := erlmcp_skill:listings() | apart,
    extensions := erlmcp_extension:extensions(),
    greetings := #{erlmcp_revision:revision() => binary()},
    templates := [erlmcp_definition:definition()] | many,
    lists := #{erlmcp_definition:kind() => erlmcp_listing:listing()}
}.

-doc "A part of a catalog that most changes do not touch.".
-type part() :: erlmcp_catalog_entries:layer() | erlmcp_skill:listings().

%% The most definitions of a small catalog.
-define(SMALL, 256).
%% The most resource templates that are kept as a list of their own.
-define(FEW_TEMPLATES, 16).

-type metaschemas() :: #{Uri :: binary() => erlmcp_schema:compiled()}.

-doc """
Creates a catalog with the given definitions. Lists have them in the given order. The meta-schemas
are those of `erlmcp_schema:metaschemas/0`. The error has the first wrong field or the wrong place
in a skill. `duplicate` has the key that two definitions have, or the URI of a skill's file that is
also a folder.
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
    keep(last, Kind, Definition, Catalog).

keep(Place, Kind, Definition, Catalog) ->
    #{entries := Entries, extensions := Extensions, settings := Settings} = Catalog,
    maybe
        {ok, Wrapped} ?= erlmcp_middleware:of_server(Kind, erlmcp_catalog_entries:next(Entries),
                                                     Definition,
                                                     Settings),
        {ok, Next} ?= case Place of
            last -> erlmcp_catalog_entries:add(Kind, Wrapped, Entries);
            Position -> erlmcp_catalog_entries:add(Position, Kind, Wrapped, Entries, Entries)
        end,
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

%% "Resource MUST exist on the server", for as long as a tool names it as its view. A mounted server
%% checks its own tools.
with_views(After, Catalog) ->
    case without_view(After, fun(Uri) -> not is_resource(Uri, Catalog) end, Catalog) of
        [] -> {ok, Catalog};
        [{Name, Uri} | _] ->
            Expected = <<"resource_uri: a resource with the URI ", Uri/binary, " on this server">>,
            {error, {bad_definition, tool, Name, ui, Expected}}
    end.

%% Returns the first tool after a position whose view is missing, in a list that may be empty.
without_view(After, IsMissing, #{entries := Entries, extensions := Extensions}) ->
    case is_map_key(erlmcp_extension:ui(), Extensions) of
        true -> tool_without_view(After, IsMissing, Entries);
        false -> []
    end.

-doc """
Adds a definition of any kind except `skill`, at the end of its list. The error has the first wrong
field, or the key of an existing definition.
""".
-spec add(erlmcp_definition:kind(), erlmcp_definition:source(), metaschemas(), catalog()) ->
    {ok, catalog()} | {error, erlmcp_definition:error() | {duplicate, atom(), binary()}}.
add(Kind, Source, Metaschemas, Catalog) ->
    Position = erlmcp_catalog_entries:next(map_get(entries, Catalog)),
    maybe
        {ok, Next} ?= insert(Kind, Source, Metaschemas, Catalog),
        with_views(Position - 1, changed_at(Position, Kind, greeting_again(Catalog, Next)))
    end.

greeting_again(#{extensions := Extensions}, #{extensions := Extensions} = Next) -> Next;
greeting_again(_, Next) -> encode_greetings(Next).

-doc """
Removes the definition whose name, URI or URI template is `Key`. The kind may be any kind except
`skill`. `not_found` means that there is no such definition. `mounted` means that the definition
belongs to the mounted server with that prefix. `in_use` has the kind and the key of a definition
that needs the resource: a tool as its view, or a skill as its file.
""".
-spec remove(erlmcp_definition:kind(), Key :: binary(), catalog()) ->
    {ok, catalog()}
    | {error, not_found | {mounted, erlmcp_mount:prefix()}
              | {in_use, erlmcp_definition:kind(), binary()}}.
remove(Kind, Key, Catalog) ->
    #{entries := Entries} = Catalog,
    case erlmcp_catalog_entries:find(Kind, Key, Entries) of
        {_, #{contents := _}} ->
            {error, {in_use, skill, skill_of(Key, Entries)}};
        {_, #{mounted := Prefix}} ->
            {error, {mounted, Prefix}};
        {Position, _} ->
            without_views(Kind, Catalog, changed_at(Position, Kind, without(Kind, Key, Catalog)));
        error ->
            {error, not_found}
    end.

%% Returns the first skill with the file at `Uri`, since one inside another shares its files.
skill_of(Uri, Entries) ->
    hd([Key || #{key := Key, wire := #{~"resources" := Files}}
                   <- erlmcp_catalog_entries:definitions(skill, Entries),
               #{~"uri" := File} <- Files, File =:= Uri]).

%% Returns the catalog, unless one of its tools has lost its view. A view of a mounted server may be
%% removed.
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
Replaces the server's own definitions of the kinds in `Sources` by those of `Sources`, in the order
of their lists. Definitions of mounted servers and files of skills stay. The error has the first
wrong field, or the key that two definitions have.
""".
-spec replace(#{erlmcp_definition:kind() => [erlmcp_definition:source()]}, metaschemas(),
              catalog()) ->
    {ok, catalog()} | {error, erlmcp_definition:error() | {duplicate, atom(), binary()}}.
replace(Sources, Metaschemas, #{entries := Before} = Catalog) ->
    Kept = erlmcp_catalog_entries:filter(
        fun(Kind, Definition) -> not (is_map_key(Kind, Sources) andalso is_own(Definition)) end,
        Before),
    Placed = [{Kind, Place, Source}
              || Kind <- erlmcp_catalog_entries:kinds(), #{Kind := Given} <- [Sources],
                 {Place, Source} <- placed(Given, positions(Kind, Before))],
    maybe
        {ok, #{entries := Entries} = Filled} ?=
            keep_all(Placed, Metaschemas, Catalog#{entries := Kept}),
        Whole = Filled#{entries := erlmcp_catalog_entries:whole(Entries)},
        with_views(-1, encode_lists(greeting_again(Catalog, Whole)))
    end.

-doc """
Replaces the rows that definitions have in the server's meter by those that a fun returns. A
definition without a row gets none. The catalog must not have been published.
""".
-spec with_rows(fun((erlmcp_definition:kind(), Key :: binary(), Row :: dynamic()) -> Row :: term()),
                catalog()) -> catalog().
with_rows(Row, #{entries := Entries} = Catalog) ->
    Catalog#{entries := erlmcp_catalog_entries:with_rows(Row, Entries)}.

is_own(Definition) ->
    not is_map_key(mounted, Definition) andalso not is_map_key(contents, Definition).

positions(Kind, Entries) ->
    [Position || #{key := Key} = Definition <- erlmcp_catalog_entries:definitions(Kind, Entries),
                 is_own(Definition),
                 {Position, _} <- [erlmcp_catalog_entries:find(Kind, Key, Entries)]].

%% The places of replaced definitions are taken in their order. So a list that has not changed is
%% the same list as before.
placed([Source | Sources], [Position | Positions]) ->
    [{Position, Source} | placed(Sources, Positions)];
placed(Sources, _) ->
    [{last, Source} || Source <- Sources].

keep_all([], _, Catalog) ->
    {ok, Catalog};
keep_all([{Kind, Place, Source} | Placed], Metaschemas, Catalog) ->
    maybe
        {ok, Definition} ?= compiled(Kind, Source, Metaschemas),
        {ok, Next} ?= keep(Place, Kind, Definition, Catalog),
        keep_all(Placed, Metaschemas, Next)
    end.

-doc """
Returns the server's own definitions of some kinds by kind and key, without those of mounted servers
and the files of skills.
""".
-spec own([erlmcp_definition:kind()], catalog()) ->
    #{{erlmcp_definition:kind(), Key :: binary()} => erlmcp_definition:definition()}.
own(Kinds, #{entries := Entries}) ->
    #{{Kind, Key} => Definition
      || Kind <- Kinds,
         #{key := Key} = Definition <- erlmcp_catalog_entries:definitions(Kind, Entries),
         is_own(Definition)}.

-doc """
Mounts the definitions of the catalog `Mounted` under `Prefix`, except skills and their files. Those
of an earlier mount that `Mounted` no longer has are removed. Also returns the definitions that are
left out because their name or URI is taken or too long. `Since` tells what was mounted before
(`erlmcp_mount:mount/6`), and `Offers` which URIs in results get the prefix.
""".
-spec mount(Prefix :: erlmcp_mount:prefix(), Since :: erlmcp_mount:since(), Mounted :: catalog(),
            erlmcp_mount:offers(), catalog()) -> {catalog(), [erlmcp_mount:left_out()]}.
mount(Prefix, Since, #{entries := Mounted}, Offers, Catalog) ->
    #{entries := Before, extensions := Extensions, settings := Settings} = Catalog,
    #{entries := Entries, extensions := Needed, changed := Changed, left_out := LeftOut} =
        erlmcp_mount:mount(Prefix, Since, Mounted, Offers, Settings, Before),
    Filled = Catalog#{entries := Entries, extensions := maps:merge(Extensions, Needed)},
    {changed_at(Changed, greeting_again(Catalog, Filled)), LeftOut}.

-doc "Removes all definitions that are mounted under a prefix.".
-spec unmount(erlmcp_mount:prefix(), catalog()) -> catalog().
unmount(Prefix, #{entries := Entries} = Catalog) ->
    encode_lists(Catalog#{entries := erlmcp_mount:unmount(Prefix, Entries)}).

-doc """
Changes the keys that seal cursors and state. Cursors and states of keys that are not in the new
ring become invalid.
""".
-spec with_keys(erlmcp:key_ring(), catalog()) -> catalog().
with_keys(Keys, #{settings := Settings, directories := Directories} = Catalog) ->
    encode_lists(Catalog#{settings := Settings#{keys := Keys},
                          directories := #{Uri => erlmcp_listing:with_keys(Keys, Listing)
                                           || Uri := Listing <- Directories}}).

-doc """
Returns a catalog of at most 256 definitions with all of them in one layer, which is cheapest to
read. Returns `large` if there may be more (`erlmcp_catalog_entries:size/1`).
""".
-spec whole(catalog()) -> {ok, catalog()} | large.
whole(#{entries := Entries} = Catalog) ->
    case erlmcp_catalog_entries:size(Entries) > ?SMALL of
        true -> large;
        false -> {ok, Catalog#{entries := erlmcp_catalog_entries:whole(Entries)}}
    end.

-doc """
Splits a catalog into a small one and the parts that most changes do not touch, each with its id.
The small catalog cannot be read until `join/2` has put it together with the parts again.
""".
-spec split(catalog()) ->
    {catalog(), [{erlmcp_catalog_entries:id() | {directories, Keys :: integer()}, part()}]}.
split(#{entries := Entries, directories := Directories, settings := #{keys := Keys}} = Catalog) ->
    {Few, Many} = erlmcp_catalog_entries:split(Entries),
    Rest = Catalog#{entries := Few},
    case map_size(Directories) of
        0 -> {Rest, Many};
        _ -> {Rest#{directories := apart},
              Many ++ [{{directories, erlang:phash2(Keys)}, Directories}]}
    end.

-doc """
Puts a catalog that `split/1` has split together again. `Parts` are in the order of `split/1`,
without their ids.
""".
-spec join(catalog(), Parts :: [part()]) -> catalog().
join(#{directories := apart} = Catalog, Parts) ->
    {Layers, [Directories]} = lists:split(length(Parts) - 1, Parts),
    join(Catalog#{directories := Directories}, Layers);
join(#{entries := Few} = Catalog, Many) ->
    Catalog#{entries := erlmcp_catalog_entries:join(Few, Many)}.

-doc "Returns the version of a catalog, a number that grows with each change of definitions.".
-spec version(catalog()) -> non_neg_integer().
version(#{entries := Entries}) ->
    erlmcp_catalog_entries:next(Entries).

-doc """
Returns the definitions by which the lists of two catalogs differ, grouped by kind. Of a changed
definition both versions are returned.
""".
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
Returns the encoded result of a list request with a cursor, or `error` if the cursor is not valid
for this list and this principal.
""".
-spec page(Method :: binary(), Cursor :: binary(), erlmcp_revision:revision(),
           erlmcp_auth:principal(), catalog()) -> {ok, binary()} | error.
page(Method, Cursor, Revision, Principal, #{entries := Entries} = Catalog) ->
    erlmcp_listing:page(Cursor, list(Method, Catalog), Entries, Revision, Principal).

list(Method, #{lists := Lists}) ->
    maps:get(erlmcp_listing:kind(Method), Lists).

-doc "Returns the tool with a name, or `error` if there is none that the principal may see.".
-spec tool(binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
tool(Name, Principal, #{entries := Entries}) ->
    erlmcp_catalog_entries:find(tool, Name, Principal, Entries).

-doc "Returns the prompt with a name, or `error` if there is none that the principal may see.".
-spec prompt(binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
prompt(Name, Principal, #{entries := Entries}) ->
    erlmcp_catalog_entries:find(prompt, Name, Principal, Entries).

-doc """
Returns the resource at `Uri`, or else the first template that matches `Uri`, with the values of the
template's variables. Only definitions that the principal may see count; `error` means that there is
none.
""".
-spec resource(Uri :: binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, resource | resource_template, erlmcp_definition:definition(), Variables :: map()} | error.
resource(Uri, Principal, #{entries := Entries, templates := Templates}) ->
    case erlmcp_catalog_entries:find(resource, Uri, Principal, Entries) of
        {ok, Resource} -> {ok, resource, Resource, #{}};
        error -> match_template(Uri, Principal, Templates, Entries)
    end.

-doc """
Returns `true` if a resource has `Uri`, or a template matches `Uri`, whether or not a principal may
see it.
""".
-spec is_resource(Uri :: binary(), catalog()) -> boolean().
is_resource(Uri, #{entries := Entries}) ->
    erlmcp_catalog_entries:find(resource, Uri, Entries) =/= error
        orelse is_matched(Uri, Entries).

-doc """
Returns the resource template with the text `Template`, or `error` if there is none that the
principal may see.
""".
-spec resource_template(Template :: binary(), erlmcp_auth:principal(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
resource_template(Template, Principal, #{entries := Entries}) ->
    erlmcp_catalog_entries:find(resource_template, Template, Principal, Entries).

-doc """
Returns an encoded page of the children of the folder `Uri`: the page of `Cursor`, or the first one
for `none`. `error` means that there is no such folder, and `bad_cursor` that the cursor is not one
of this list.
""".
-spec directory(Uri :: binary(), Cursor :: binary() | none, erlmcp_revision:revision(),
                catalog()) -> {ok, binary()} | error | bad_cursor.
directory(Uri, Cursor, Revision, #{directories := Directories}) ->
    erlmcp_skill:page(Uri, Cursor, Revision, Directories).

-doc """
Returns `true` if an extension that the definitions need adds `Method` to `Revision`. The methods of
tasks do not count (`erlmcp_revision:offers/2`).
""".
-spec extends(Method :: binary(), Revision :: erlmcp_revision:revision(), catalog()) -> boolean().
extends(Method, Revision, #{extensions := Extensions}) ->
    erlmcp_extension:offers(Method, Revision, Extensions).

-doc """
Encodes a result with one member, whose value is encoded already. In a stateless revision any client
may cache the result for as long as a list.
""".
-spec result(Member :: binary(), Encoded :: iodata(), erlmcp_revision:revision(), catalog()) ->
    iodata().
result(Member, Encoded, Revision, #{server_meta := ServerMeta, settings := Settings}) ->
    #{list_ttl_ms := Milliseconds} = Settings,
    Members = [{Member, {encoded, Encoded}}
               | erlmcp_result:caching(Milliseconds, public, Revision)],
    erlmcp_result:object(Members, Revision, ServerMeta).

-doc """
Returns the definition with a key, whether or not a principal may see it; `error` if there is none.
""".
-spec definition(erlmcp_definition:kind(), Key :: binary(), catalog()) ->
    {ok, erlmcp_definition:definition()} | error.
definition(Kind, Key, #{entries := Entries}) ->
    case erlmcp_catalog_entries:find(Kind, Key, Entries) of
        {_, Definition} -> {ok, Definition};
        error -> error
    end.

-doc """
Returns the rows that definitions have in the server's meter, or their breakers, each with the key
of its definition. Definitions without one are left out.
""".
-spec values(row | breaker, catalog()) -> [{Key :: binary(), Value :: dynamic()}].
values(Field, #{entries := Entries}) ->
    [{Key, map_get(Field, Definition)}
     || Kind <- erlmcp_catalog_entries:kinds(),
        #{key := Key} = Definition <- erlmcp_catalog_entries:definitions(Kind, Entries),
        is_map_key(Field, Definition)].

-doc """
Returns the audience of a change of the resource `Uri`: `all`, or a fun that returns `true` for a
principal that may see the resource. Scopes do not matter.
""".
-spec audience(Uri :: binary(), catalog()) -> erlmcp_definition:audience().
audience(Uri, #{entries := Entries} = Catalog) ->
    case erlmcp_catalog_entries:is_shared(resource, Entries)
        andalso erlmcp_catalog_entries:is_shared(resource_template, Entries) of
        true -> all;
        false -> fun(Principal) -> resource(Uri, Principal, Catalog) =/= error end
    end.

-doc "Returns the name of the server.".
-spec name(catalog()) -> binary().
name(#{identity := #{~"name" := Name}}) ->
    Name.

-doc "Returns the encoded `_meta` of every stateless result, which has the server's identity.".
-spec server_meta(catalog()) -> binary().
server_meta(#{server_meta := ServerMeta}) ->
    ServerMeta.

-doc "Returns the key ring that seals cursors and state.".
-spec keys(catalog()) -> erlmcp:key_ring().
keys(#{settings := #{keys := Keys}}) ->
    Keys.

-doc "Returns the most definitions that one page of a list has.".
-spec page_size(catalog()) -> pos_integer().
page_size(#{settings := #{page_size := Size}}) ->
    Size.

-doc "Returns the most bytes of a result, or `error` if there is no bound.".
-spec reply_bytes(catalog()) -> {ok, pos_integer()} | error.
reply_bytes(#{settings := Settings}) ->
    maps:find(reply_bytes, Settings).

-doc """
Returns `true` if a tool may run as a task, or if a removed tool could, whose tasks may still run.
""".
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
    maps:fold(fun(Kind, Position, Next) -> changed_at(Position, Kind, Next) end, Catalog, Changed).

%% Updates the list of a kind after definitions were added or removed, the first of them at
%% `Position`.
changed_at(Position, Kind, #{entries := Entries, lists := Lists, templates := Before} = Catalog) ->
    #{Kind := List} = Lists,
    Templates = case Kind of
        resource_template -> templates(Entries);
        _ -> Before
    end,
    Catalog#{lists := Lists#{Kind := erlmcp_listing:changed(Position, Entries, List)},
             templates := Templates}.

%% Returns the first tool after a position whose view is missing, with the view's URI, in a list
%% that may be empty. Tools of mounted servers are not checked.
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
%% as a list of their own. A longer list would be costly to copy at each change, so more templates
%% are read from the entries.

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
