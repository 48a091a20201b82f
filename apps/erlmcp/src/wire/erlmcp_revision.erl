-module(erlmcp_revision).
-moduledoc """
The five revisions of MCP as data: the era, the methods, the content types and the definition fields
of each. Pure. Most differences between revisions are looked up here, so that one dispatcher and one
encoder serve all of them.

Sources: `schema.json` and the changelog page of each revision.

Internal.
""".

-export([all/0, latest/1, supported/1, parse/1, name/1, era/1]).
-export([offers/2, is_method/1, fields/2, content_types/1, structured/2]).
-export([batches/1, polls/1, elicitation_ids/1, missing_resource_code/1, invalid_arguments/1]).

-export_type([revision/0, era/0, definition_kind/0]).

-type revision() :: erlmcp:revision().
-type era() :: session | stateless.
-type definition_kind() ::
    implementation | tool | resource | resource_template | prompt | argument.

-doc "Returns all revisions, the newest first.".
-spec all() -> [revision(), ...].
all() ->
    ['2026-07-28', '2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05'].

-doc "Returns the newest revision of an era.".
-spec latest(era()) -> revision().
latest(stateless) -> '2026-07-28';
latest(session) -> '2025-11-25'.

-doc "Returns the names of an era's revisions, for `supportedVersions` and for errors.".
-spec supported(era()) -> [binary()].
supported(Era) ->
    [name(Revision) || Revision <- all(), era(Revision) =:= Era].

-doc "Returns the revision with a name, and makes no atom; `error` if no revision has the name.".
-spec parse(term()) -> {ok, revision()} | error.
parse(~"2026-07-28") -> {ok, '2026-07-28'};
parse(~"2025-11-25") -> {ok, '2025-11-25'};
parse(~"2025-06-18") -> {ok, '2025-06-18'};
parse(~"2025-03-26") -> {ok, '2025-03-26'};
parse(~"2024-11-05") -> {ok, '2024-11-05'};
parse(_) -> error.

-doc "Returns the name of a revision on the wire.".
-spec name(revision()) -> binary().
name('2026-07-28') -> ~"2026-07-28";
name('2025-11-25') -> ~"2025-11-25";
name('2025-06-18') -> ~"2025-06-18";
name('2025-03-26') -> ~"2025-03-26";
name('2024-11-05') -> ~"2024-11-05".

-doc "Returns the era of a revision: requests stand alone (`stateless`), or belong to a `session`.".
-spec era(revision()) -> era().
era('2026-07-28') -> stateless;
era(_) -> session.

-doc """
Returns `true` if clients may send requests of `Method` in a revision, or in its extension for
tasks. `erlmcp_extension:offers/3` has the methods of other extensions.
""".
-spec offers(Method :: binary(), revision()) -> boolean().
offers(~"tools/call", _) -> true;
offers(~"tools/list", _) -> true;
offers(~"resources/read", _) -> true;
offers(~"resources/list", _) -> true;
offers(~"resources/templates/list", _) -> true;
offers(~"prompts/get", _) -> true;
offers(~"prompts/list", _) -> true;
offers(~"completion/complete", _) -> true;
offers(~"subscriptions/listen", Revision) -> era(Revision) =:= stateless;
offers(~"resources/subscribe", Revision) -> era(Revision) =:= session;
offers(~"resources/unsubscribe", Revision) -> era(Revision) =:= session;
offers(~"tasks/get", Revision) -> Revision >= '2025-11-25';
offers(~"tasks/cancel", Revision) -> Revision >= '2025-11-25';
offers(~"tasks/update", Revision) -> Revision =:= '2026-07-28';
offers(~"tasks/result", Revision) -> Revision =:= '2025-11-25';
offers(~"tasks/list", Revision) -> Revision =:= '2025-11-25';
offers(~"server/discover", Revision) -> era(Revision) =:= stateless;
offers(~"initialize", Revision) -> era(Revision) =:= session;
offers(~"ping", Revision) -> era(Revision) =:= session;
offers(~"logging/setLevel", Revision) -> era(Revision) =:= session;
offers(_, _) -> false.

-doc "Returns `true` if clients may send requests of a method in any revision; see `offers/2`.".
-spec is_method(binary()) -> boolean().
is_method(Method) ->
    lists:any(fun(Revision) -> offers(Method, Revision) end, all()).

-doc """
Returns the fields that a kind of definition has in a revision, by their names on the wire. Other
fields are not sent to clients of the revision, except for `execution` of a tool in 2025-11-25.
""".
-spec fields(definition_kind(), revision()) -> [binary()].
fields(Kind, Revision) ->
    [Field || {Field, Since} <- fields(Kind), Since =< Revision].

fields(implementation) ->
    [{~"name", '2024-11-05'}, {~"version", '2024-11-05'}, {~"title", '2025-06-18'},
     {~"description", '2025-11-25'}, {~"websiteUrl", '2025-11-25'}, {~"icons", '2025-11-25'}];
fields(tool) ->
    [{~"inputSchema", '2024-11-05'}, {~"annotations", '2025-03-26'},
     {~"outputSchema", '2025-06-18'} | common()];
fields(resource) ->
    [{~"uri", '2024-11-05'}, {~"mimeType", '2024-11-05'}, {~"annotations", '2024-11-05'},
     {~"size", '2024-11-05'} | common()];
fields(resource_template) ->
    [{~"uriTemplate", '2024-11-05'}, {~"mimeType", '2024-11-05'},
     {~"annotations", '2024-11-05'} | common()];
fields(prompt) ->
    [{~"arguments", '2024-11-05'} | common()];
fields(argument) ->
    [{~"name", '2024-11-05'}, {~"description", '2024-11-05'}, {~"required", '2024-11-05'},
     {~"title", '2025-06-18'}].

common() ->
    [{~"name", '2024-11-05'}, {~"description", '2024-11-05'}, {~"title", '2025-06-18'},
     {~"_meta", '2025-06-18'}, {~"icons", '2025-11-25'}].

-doc "Returns the types of content items that a revision has.".
-spec content_types(revision()) -> [binary()].
content_types('2024-11-05') -> [~"text", ~"image", ~"resource"];
content_types('2025-03-26') -> [~"text", ~"image", ~"resource", ~"audio"];
content_types(_) -> [~"text", ~"image", ~"resource", ~"audio", ~"resource_link"].

-doc """
Returns `true` if a value may stand in `structuredContent`: none before 2025-06-18, only an object
up to 2025-11-25, any JSON value after that.
""".
-spec structured(term(), revision()) -> boolean().
structured(_, '2026-07-28') -> true;
structured(Value, Revision) -> is_map(Value) andalso Revision >= '2025-06-18'.

-doc "Returns `true` if the revision has JSON-RPC batches. Only 2025-03-26 has them.".
-spec batches(revision()) -> boolean().
batches(Revision) ->
    Revision =:= '2025-03-26'.

-doc """
Returns `true` if clients reconnect to a stream whose connection the server has ended before the
answer. Such a stream begins with an event without data, which has the id to resume after.
""".
-spec polls(revision()) -> boolean().
polls(Revision) ->
    Revision =:= '2025-11-25'.

-doc """
Returns `true` if a URL elicitation has an id, with which the server tells the client that the
elicitation is complete.
""".
-spec elicitation_ids(revision()) -> boolean().
elicitation_ids(Revision) ->
    Revision =:= '2025-11-25'.

-doc "Returns the error code for a resource that does not exist.".
-spec missing_resource_code(revision()) -> integer().
missing_resource_code('2026-07-28') -> -32602;
missing_resource_code(_) -> -32002.

-doc """
Returns how a server answers arguments that do not fit a tool's input schema. From 2025-11-25 on
(SEP-1303) the answer is a `result`, which the model can read to correct its call. In older
revisions the answer is an `error`.
""".
-spec invalid_arguments(revision()) -> result | error.
invalid_arguments(Revision) when Revision >= '2025-11-25' -> result;
invalid_arguments(_) -> error.
