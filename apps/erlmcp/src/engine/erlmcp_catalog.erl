-module(erlmcp_catalog).
-moduledoc """
What a server offers, compiled for reading: definitions by name and, for each revision, the answers
to the list requests, `initialize` and `server/discover`, already encoded. Pure; `erlmcp_publisher`
is the process that holds the current one.
""".

-export([new/2, add/3, remove/3]).
-export([answer/3, tool/2, resource/2, prompt/2]).
-export([server_meta/1, changed/1]).

-export_type([catalog/0, identity/0]).

-doc "Who the server is: the fields of MCP's `Implementation`, and `instructions`.".
-type identity() :: #{
    name := binary(), version := binary(), title => binary(), description => binary(),
    website_url => binary(), icons => [map()], instructions => binary()
}.
-opaque catalog() :: #{
    identity := #{binary() => term()},
    instructions := binary() | undefined,
    server_meta := binary(),
    next := non_neg_integer(),
    entries := #{erlmcp_definition:kind() => #{binary() => entry()}},
    answers := #{erlmcp_revision:revision() => #{binary() => binary()}}
}.
-type entry() :: {Place :: non_neg_integer(), erlmcp_definition:definition()}.

-define(KINDS, [tool, resource, resource_template, prompt]).

-doc "A catalog with these definitions; lists keep their order.".
-spec new(identity(), [{erlmcp_definition:kind(), erlmcp_definition:source()}]) ->
    {ok, catalog()} | {error, erlmcp_definition:error() | {duplicate, atom(), binary()}}.
new(Identity, Sources) ->
    Implementation = implementation(Identity),
    ServerInfo = #{~"io.modelcontextprotocol/serverInfo" => Implementation},
    Empty = #{identity => Implementation,
              instructions => maps:get(instructions, Identity, undefined),
              server_meta => iolist_to_binary(json:encode(ServerInfo)),
              next => 0,
              entries => #{Kind => #{} || Kind <- ?KINDS},
              answers => #{Revision => #{} || Revision <- erlmcp_revision:all()}},
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

-doc """
The result that answers a request no user code is needed for (`tools/list`, `server/discover`,
`initialize`, ...), encoded.
""".
-spec answer(Method :: binary(), erlmcp_revision:revision(), catalog()) -> binary().
answer(Method, Revision, #{answers := Answers}) ->
    #{Revision := #{Method := Answer}} = Answers,
    Answer.

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

-doc "The notification that a list of this kind changed.".
-spec changed(erlmcp_definition:kind()) -> iodata().
changed(tool) -> erlmcp_message:notification(~"notifications/tools/list_changed", #{});
changed(prompt) -> erlmcp_message:notification(~"notifications/prompts/list_changed", #{});
changed(_) -> erlmcp_message:notification(~"notifications/resources/list_changed", #{}).

definitions(Kind, #{entries := Entries}) ->
    #{Kind := Known} = Entries,
    [Definition || {_, Definition} <- lists:sort(maps:values(Known))].

%% The answers that say who the server is.
encode_greetings(Catalog) ->
    lists:foldl(fun encode_greeting/2, Catalog, erlmcp_revision:all()).

encode_greeting(Revision, #{identity := Identity, server_meta := ServerMeta,
                            instructions := Instructions} = Catalog) ->
    Hello = [{~"instructions", Instructions} || Instructions =/= undefined],
    case erlmcp_revision:era(Revision) of
        stateless ->
            Members = [{~"supportedVersions", erlmcp_revision:supported(stateless)},
                       {~"capabilities", capabilities(stateless)} | caching(Revision)],
            put_answer(~"server/discover", Revision,
                       erlmcp_result:object(Members ++ Hello, Revision, ServerMeta), Catalog);
        session ->
            Fields = erlmcp_revision:fields(implementation, Revision),
            Members = [{~"protocolVersion", erlmcp_revision:name(Revision)},
                       {~"capabilities", capabilities(session)},
                       {~"serverInfo", maps:with(Fields, Identity)}],
            put_answer(~"initialize", Revision,
                       erlmcp_result:object(Members ++ Hello, Revision, ServerMeta), Catalog)
    end.

%% Definitions can be added at any time, so all three are offered even while a list is empty.
%% Sessions are told of changes; a stateless client has nothing to be told on yet.
capabilities(session) ->
    List = #{~"listChanged" => true},
    #{~"tools" => List, ~"resources" => List, ~"prompts" => List, ~"logging" => #{}};
capabilities(stateless) ->
    #{~"tools" => #{}, ~"resources" => #{}, ~"prompts" => #{}, ~"logging" => #{}}.

encode_lists(Kinds, Catalog) ->
    lists:foldl(fun encode_list/2, Catalog,
                [{Kind, Revision} || Kind <- Kinds, Revision <- erlmcp_revision:all()]).

encode_list({Kind, Revision}, #{server_meta := ServerMeta} = Catalog) ->
    {Method, Member} = list(Kind),
    Items = [erlmcp_definition:encode(Kind, {Definition, Revision})
             || Definition <- definitions(Kind, Catalog)],
    Members = [{Member, {encoded, [$[, lists:join($,, Items), $]]}} | caching(Revision)],
    put_answer(Method, Revision, erlmcp_result:object(Members, Revision, ServerMeta), Catalog).

list(tool) -> {~"tools/list", ~"tools"};
list(resource) -> {~"resources/list", ~"resources"};
list(resource_template) -> {~"resources/templates/list", ~"resourceTemplates"};
list(prompt) -> {~"prompts/list", ~"prompts"}.

%% Lists are the same for everybody, and can change at any moment.
caching(Revision) ->
    case erlmcp_revision:era(Revision) of
        stateless -> [{~"ttlMs", 0}, {~"cacheScope", public}];
        session -> []
    end.

put_answer(Method, Revision, Answer, #{answers := Answers} = Catalog) ->
    #{Revision := Known} = Answers,
    Catalog#{answers := Answers#{Revision := Known#{Method => iolist_to_binary(Answer)}}}.
