-module(erlmcp_engine).
-moduledoc """
The protocol as a function: a message in, effects out. Pure; the shell around it (a connection, an
HTTP stream) performs the effects.

A request is stateless if its `_meta` names a protocol version, or if its `MCP-Protocol-Version`
header is not one of the older revisions. `initialize` opens a session. The eras differ only in the
steps before and after the common dispatcher.

Each request gives exactly one effect: its answer, or the call that will answer it. A notification
or a response gives `accepted`, after a `cancel` or a `response` if it is one.

Internal.
""".

-export([handle/4, request/3, envelope/2, era/2, max_batch/0]).

-export_type([effect/0, call/0, listen/0, envelope/0, request/0, session/0, topic/0]).
-export_type([context/0, call_reference/0]).

-doc """
The transport's knowledge of a request, next to its body: the principal, its scopes (all by
default), and the HTTP headers by lower-case names. `headers` is `none` if the transport has none.
""".
-type envelope() :: #{
    headers := none | #{binary() => binary()},
    %% The era that the headers ask for, and their other content, if they were read before.
    header_era => erlmcp_revision:era(),
    header_values => erlmcp_header:values(),
    %% The validated `_meta` of the message, if it is known.
    meta => erlmcp_meta:validated() | none,
    principal := erlmcp_auth:principal(),
    scopes => erlmcp:scopes(),
    claims => map(),
    expires_at => integer()
}.
-doc "A stateless request, read so far, with its validated `_meta` if it is known.".
-type request() ::
    {erlmcp_message:id(), Method :: binary(), Params :: map(), erlmcp_meta:validated() | none}.
-type session() :: #{
    principal := erlmcp_auth:principal(),
    %% Each request has scopes of its own in their place.
    scopes => all,
    revision := erlmcp_revision:revision(),
    client_info := map() | undefined,
    client_capabilities := map(),
    log_level := erlmcp_meta:level(),
    initialized := boolean()
}.
-type context() :: erlmcp:context().
-doc """
The `call` of a context. `server_meta` is the server's identity as every result has it, encoded;
`owner` is the process that the call reports to, `progressed` its last progress, and `window` the
bound of its notifications.
""".
-type call_reference() :: #{
    server_meta := iodata(),
    owner => {pid(), Tag :: term()},
    progressed => atomics:atomics_ref(),
    window => term()
}.
-type call() :: #{
    id := erlmcp_message:id() | task,
    kind := erlmcp_definition:kind() | completion | {task, erlmcp_task:operation()},
    definition := #{handler => fun((map(), map()) -> term()), atom() => term()},
    arguments := map(),
    context := context(),
    input := #{responses := #{binary() => map()}, state => binary()},
    keys := erlmcp:key_ring(),
    %% The permit of the server's gate and the flow that its bounds are for, which the shell passes
    %% on.
    permit => term(),
    flow => erlmcp_gate:tenant(),
    %% The number of its session among those of its connection.
    session => non_neg_integer(),
    %% The call is to become a task, or it is the continuation of one that became a task.
    task => erlmcp_task:mode(),
    continue => fun((context()) -> term())
}.
-doc "A subject of notifications: a changed list, the resource with a URI, or a task.".
-type topic() ::
    tool | prompt | resource | {uri, binary()} | {task, Principal :: term(), Id :: binary()}.
-doc """
A subscription, with the message that acknowledges it, and those for its end. The last of these is
the answer to its request.
""".
-type listen() :: #{
    id := erlmcp_message:id(), topics := [topic()],
    acknowledged := iodata(), closed := erlmcp_subscription:closing()
}.
-type effect() ::
    erlmcp_reply:reply()
    | {call, call()}
    | {batch, [effect(), ...]}
    | {subscribe | unsubscribe, erlmcp_message:id(), Uri :: binary()}
    | {listen, listen()}
    | {cancel, erlmcp_message:id()}
    | {response, erlmcp_message:id(), {ok, term()} | {error, term()}}
    | accepted.

%% Messages in one JSON-RPC batch.
-define(MAX_BATCH, 100).
%% Bytes that a session keeps of its client's declaration.
-define(MAX_KEPT, 16_384).
%% The log level of a session before its client sets one: `info` and above.
-define(DEFAULT_LOG_LEVEL, 6).

-doc """
Returns the effects of a decoded message, and the session after it. `none` is no session: before
`initialize`, and always for a stateless client.
""".
-spec handle(Json :: term(), envelope(), erlmcp_catalog:catalog(), session() | none) ->
    {[effect(), ...], session() | none}.
handle(Json, Envelope, Catalog, Session) ->
    message(erlmcp_message:parse(Json), Envelope, Catalog, Session).

message({request, Id, Method, Params}, Envelope, Catalog, Session) ->
    case era(Method, Params, Envelope) of
        stateless ->
            {[request({Id, Method, Params, known_meta(Envelope)}, Envelope, Catalog)], Session};
        session ->
            {Effect, Next} = session(Id, Method, Params, Envelope, Catalog, Session),
            {[Effect], Next}
    end;
message({notification, ~"notifications/cancelled", #{~"requestId" := Id}}, _, _, Session) when
    is_binary(Id); is_integer(Id)
->
    {[{cancel, Id}, accepted], Session};
message({notification, ~"notifications/initialized", _}, _, _, #{} = Session) ->
    {[accepted], Session#{initialized := true}};
message({notification, _, _}, _, _, Session) ->
    {[accepted], Session};
message({response, Id, Outcome}, _, _, #{} = Session) ->
    {[{response, Id, Outcome}, accepted], Session};
message({response, _, _}, _, _, none) ->
    {[accepted], none};
message({batch, Messages}, Envelope, Catalog, #{revision := Revision} = Session) ->
    case erlmcp_revision:batches(Revision) of
        true when length(Messages) > ?MAX_BATCH ->
            {[erlmcp_reply:refuse(undefined, too_many(length(Messages)), Revision)], Session};
        true ->
            batch(Messages, Envelope, Catalog, Session);
        false ->
            {[erlmcp_reply:refuse(undefined, no_batches(), Revision)], Session}
    end;
message({batch, _}, _, _, none) ->
    {[erlmcp_reply:refuse(undefined, no_batches())], none};
message({invalid, Id, Refusal}, _, _, #{revision := Revision} = Session) when Id =/= undefined ->
    {[erlmcp_reply:refuse(Id, Refusal, Revision)], Session};
message({invalid, Id, Refusal}, _, _, Session) ->
    {[erlmcp_reply:refuse(Id, Refusal)], Session}.

-doc """
Returns the era that a decoded message asks for: that of its `_meta`, or else of its
`MCP-Protocol-Version` header. Without either it belongs to a session.
""".
-spec era(Json :: term(), envelope()) -> erlmcp_revision:era().
era(#{~"method" := Method, ~"params" := #{} = Params}, Envelope) -> era(Method, Params, Envelope);
era(#{~"method" := Method}, Envelope) -> era(Method, #{}, Envelope);
era(_, Envelope) -> header_era(Envelope).

%% Clients send `server/discover` to learn the era, so it is always stateless.
era(~"server/discover", _, _) ->
    stateless;
era(_, Params, Envelope) ->
    case erlmcp_meta:is_modern(Params) of
        true -> stateless;
        false -> header_era(Envelope)
    end.

-doc "Returns the envelope of requests with these headers, which are read once for all of them.".
-spec envelope(erlmcp_auth:identity(), erlmcp_header:headers()) -> envelope().
envelope(Identity, Headers) ->
    Envelope = Identity#{headers => Headers},
    Envelope#{header_era => header_era(Envelope), header_values => erlmcp_header:read(Headers)}.

%% The era of the headers holds for a message that names none itself.
header_era(#{header_era := Era}) ->
    Era;
header_era(#{headers := #{~"mcp-protocol-version" := Version}}) ->
    case erlmcp_revision:parse(Version) of
        {ok, Revision} -> erlmcp_revision:era(Revision);
        error -> stateless
    end;
header_era(_) ->
    session.

%% Stateless: everything is in the request.

-doc "Returns the effect of a request that is known to be stateless.".
-spec request(request(), envelope(), erlmcp_catalog:catalog()) -> effect().
request({Id, Method, Params, Known}, Envelope, Catalog) ->
    #{headers := Headers, principal := Principal} = Envelope,
    Values = header_values(Envelope),
    maybe
        {ok, Revision, Meta} ?= erlmcp_meta:validate(Params, version(Values), Known),
        ok ?= mirrored(Method, Params, Values),
        ok ?= offered(Method, Revision, Catalog),
        #{client_info := Info, client_capabilities := Capabilities, log_level := Level} = Meta,
        Client = asking(Envelope, #{revision => Revision, principal => Principal, scopes => all,
                                    client_info => Info, client_capabilities => Capabilities,
                                    log_level => Level, headers => Headers}),
        erlmcp_dispatch:request(Method, Id, Params, Client, Catalog)
    else
        {error, Refusal} -> erlmcp_reply:refuse(Id, Refusal)
    end.

%% The principal of a session is a copy: a request's is a part of its head.
asking(#{claims := Claims} = Envelope, Known) ->
    scoped(Envelope, Known#{claims => Claims});
asking(Envelope, Known) ->
    scoped(Envelope, Known).

scoped(#{scopes := Scopes}, Known) -> Known#{scopes => Scopes};
scoped(_, Known) -> Known#{scopes => all}.

known_meta(#{meta := Known}) -> Known;
known_meta(_) -> none.

header_values(#{header_values := Values}) -> Values;
header_values(#{headers := none}) -> none;
header_values(#{headers := Headers}) -> erlmcp_header:read(Headers).

version(none) -> none;
version(#{version := Version}) -> Version.

mirrored(_, _, none) -> ok;
mirrored(Method, Params, Values) -> erlmcp_header:check(Method, Params, Values).

offered(Method, Revision, Catalog) ->
    case erlmcp_revision:offers(Method, Revision)
        orelse erlmcp_catalog:extends(Method, Revision, Catalog) of
        true ->
            ok;
        false ->
            Message = [~"method not found in ", erlmcp_revision:name(Revision), ~": ",
                       erlmcp_value_text:literal(Method)],
            {error, erlmcp_refusal:new(protocol_error, Message, #{code => -32601, status => 404})}
    end.

%% Sessions: the agreement of `initialize` holds for the requests after it.

session(Id, ~"initialize", Params, #{principal := Principal}, Catalog, none) ->
    case initialize(Params, Principal) of
        {ok, #{revision := Revision} = Session} ->
            {erlmcp_reply:result(Id, erlmcp_catalog:greeting(Revision, Catalog)), Session};
        {error, Refusal} ->
            {erlmcp_reply:refuse(Id, Refusal), none}
    end;
session(Id, ~"initialize", _, _, _, #{revision := Revision} = Session) ->
    Message = ~"initialize: this session is initialized already",
    Refusal = erlmcp_refusal:new(protocol_error, Message, #{code => -32600}),
    {erlmcp_reply:refuse(Id, Refusal, Revision), Session};
session(Id, ~"ping", _, _, _, Session) ->
    {erlmcp_reply:result(Id, ~"{}"), Session};
session(Id, Method, _, _, _, none) ->
    Message = [~"expected initialize first, or the protocol fields of 2026-07-28 in params._meta",
               ~", got ", erlmcp_value_text:literal(Method), ~" without them"],
    {erlmcp_reply:refuse(Id, erlmcp_refusal:new(server_uninitialized, Message,
                                   #{code => -32600, status => 400})), none};
session(Id, ~"logging/setLevel", Params, _, _, #{revision := Revision} = Session) ->
    case erlmcp_meta:level(~"level", maps:get(~"level", Params, undefined)) of
        {ok, Level} -> {erlmcp_reply:result(Id, ~"{}"), Session#{log_level := Level}};
        {error, Refusal} -> {erlmcp_reply:refuse(Id, Refusal, Revision), Session}
    end;
session(Id, Method, Params, Envelope, Catalog, #{revision := Revision} = Session) ->
    case offered(Method, Revision, Catalog) of
        ok ->
            %% Each request has scopes of its own.
            Client = asking(Envelope, Session),
            {erlmcp_dispatch:request(Method, Id, Params, Client, Catalog), Session};
        {error, Refusal} -> {erlmcp_reply:refuse(Id, Refusal, Revision), Session}
    end.

initialize(#{~"protocolVersion" := Version} = Params, Principal) when is_binary(Version) ->
    Revision = negotiate(Version),
    Identity = maps:get(~"clientInfo", Params, undefined),
    Capabilities = maps:get(~"capabilities", Params, undefined),
    maybe
        ok ?= erlmcp_client_declaration:identity(~"clientInfo", Identity, Revision),
        ok ?= erlmcp_client_declaration:capabilities(~"capabilities", Capabilities, Revision),
        {ok, {OwnIdentity, OwnCapabilities}} ?= copy_declaration({Identity, Capabilities}),
        %% A principal is often a part of a header, so it is copied to keep no request alive.
        OwnPrincipal = binary_to_term(term_to_binary(Principal)),
        {ok, #{principal => OwnPrincipal, scopes => all, revision => Revision,
               client_info => OwnIdentity, client_capabilities => OwnCapabilities,
               log_level => ?DEFAULT_LOG_LEVEL, initialized => false}}
    end;
initialize(#{~"protocolVersion" := Version}, _) ->
    {error, erlmcp_params:mistyped(~"protocolVersion", ~"a string", Version)};
initialize(_, _) ->
    {error, erlmcp_params:missing(~"protocolVersion")}.

%% The declaration lives as long as the session: bounded, and copied out of its message.
copy_declaration(Declared) ->
    case term_to_binary(Declared) of
        Kept when byte_size(Kept) > ?MAX_KEPT ->
            {error, erlmcp_refusal:new(invalid_params, ~"clientInfo and capabilities: too large",
                                       #{code => -32602, limit => ?MAX_KEPT,
                                         observed => byte_size(Kept)})};
        Kept ->
            {ok, binary_to_term(Kept)}
    end.

-doc "Returns the number of messages that one JSON-RPC batch may have.".
-spec max_batch() -> pos_integer().
max_batch() ->
    ?MAX_BATCH.

%% The revision that the client asked for, or else the newest one with sessions.
negotiate(Version) ->
    Latest = erlmcp_revision:latest(session),
    case erlmcp_revision:parse(Version) of
        {ok, Revision} ->
            case erlmcp_revision:era(Revision) of
                session -> Revision;
                stateless -> Latest
            end;
        error ->
            Latest
    end.

batch(Messages, Envelope, Catalog, Session) ->
    {Effects, Last} = lists:mapfoldl(
        fun(Json, Current) ->
            case erlmcp_message:parse(Json) of
                {batch, _} -> {[erlmcp_reply:refuse(undefined, no_batches())], Current};
                Message -> message(Message, Envelope, Catalog, Current)
            end
        end, Session, Messages),
    All = lists:append(Effects) -- [accepted || _ <- Messages],
    Silent = [Effect || Effect <- All,
                        element(1, Effect) =:= cancel orelse element(1, Effect) =:= response],
    case All -- Silent of
        [] -> {Silent ++ [accepted], Last};
        Answers -> {Silent ++ [{batch, Answers}], Last}
    end.

no_batches() ->
    erlmcp_refusal:new(protocol_error, ~"batches exist in 2025-03-26 only", #{code => -32600}).

too_many(Count) ->
    erlmcp_refusal:new(protocol_error, ~"too many messages in one batch",
                       #{code => -32600, limit => ?MAX_BATCH, observed => Count}).
