-module(erlmcp_engine).
-moduledoc """
The protocol as a function: it takes a message and returns effects. Pure; the calling process, such
as that of a connection, performs the effects. `era/2` tells stateless messages from those of
sessions, which `initialize` opens.

Each request gives exactly one effect: its answer, the call that will answer it, or the subscription
that it begins or ends. A notification or a response gives `accepted`; a cancellation gives `cancel`
first, and a response in a session `response`, if it has an id. The effects of the requests in a
batch are the items of one effect, `batch`.

Internal.
""".

-export([handle/4, request/3, refuse/2, request_context/2, era/2, max_batch/0]).

-export_type([effect/0, summary/0, outcome/0, call/0, listen/0, request_context/0, request/0,
              session/0, topic/0]).
-export_type([context/0, call_reference/0, client/0]).

-doc """
The transport's knowledge of a request, in addition to its body: the principal, its scopes (all by
default), and the HTTP headers by lower-case names. `headers` is `none` if the transport has none.
""".
-type request_context() :: #{
    headers := none | #{binary() => binary()},
    %% The era that the headers ask for, if the headers were parsed before.
    header_era => erlmcp_revision:era(),
    header_values => erlmcp_header:values(),
    %% The validated `_meta` of the message, if an equal one was validated before.
    meta => erlmcp_meta:validated() | none,
    principal := erlmcp_auth:principal(),
    scopes => erlmcp:scopes(),
    claims => map(),
    expires_at => integer()
}.
-doc "A stateless request, with its validated `_meta` if an equal one was validated before.".
-type request() ::
    {erlmcp_message:id(), Method :: binary(), Params :: map(), erlmcp_meta:validated() | none}.
-type session() :: #{
    principal := erlmcp_auth:principal(),
    %% Not the session's: each request has its own scopes.
    scopes => all,
    revision := erlmcp_revision:revision(),
    client_info := map() | undefined,
    client_capabilities := map(),
    log_level := erlmcp_meta:level(),
    initialized := boolean(),
    %% When the session was opened. The caller of the engine adds this.
    opened => integer(),
    %% The resources that the client watches, if the session had another home before. The caller of
    %% the engine adds these, too.
    inherited => [binary()]
}.
-type context() :: erlmcp:context().
-doc """
The `call` of a handler's context. `server_meta` is the encoded `_meta` of every stateless result.
`owner` is the process that the call reports to, `progressed` has the last progress of the call, and
`window` bounds its notifications.
""".
-type call_reference() :: #{
    server_meta := iodata(),
    owner => {pid(), Tag :: term()},
    progressed => atomics:atomics_ref(),
    window => term()
}.
-doc "The client of a request, in the same form for both eras.".
-type client() :: #{
    principal := erlmcp_auth:principal(),
    scopes := erlmcp:scopes(),
    claims => map(),
    revision := erlmcp_revision:revision(),
    client_info := map() | undefined,
    client_capabilities := map(),
    log_level := erlmcp_meta:level() | undefined,
    %% The headers of a stateless HTTP request, which mirror its body.
    headers => none | erlmcp_header:headers(),
    atom() => term()
}.
-type call() :: #{
    id := erlmcp_message:id() | task,
    kind := erlmcp_definition:kind() | completion | {task, erlmcp_task:operation()},
    definition := #{handler => fun((map(), map()) -> term()), atom() => term()},
    arguments := map(),
    context := context(),
    input := #{responses := #{binary() => map()}, state => binary()},
    keys := erlmcp:key_ring(),
    %% The permit of the server's gate, and the tenant that it counts for. The caller of the engine
    %% adds both.
    permit => term(),
    tenant => erlmcp_gate:tenant(),
    %% The id of the request's session or, on lines, its number among those of its connection.
    session => binary() | non_neg_integer(),
    %% Set if the call becomes a task.
    task => erlmcp_task:mode(),
    continue => fun((context()) -> term()),
    %% The arrival of the request. The caller of the engine adds it.
    arrival => {Began :: integer(), Bytes :: non_neg_integer(), Origin :: term()},
    %% The span of the request, if the server has a tracer. The caller of the engine adds it, too.
    span => term()
}.
-doc "A subject of notifications: a changed list, the resource with a URI, or a task.".
-type topic() ::
    tool | prompt | resource | {uri, binary()} | {task, Principal :: term(), Id :: binary()}.
-doc """
A subscription: its topics, the message that acknowledges it, and the data for the messages at its
end (`erlmcp_subscription:closed/1`).
""".
-type listen() :: #{
    id := erlmcp_message:id(), topics := [topic()],
    acknowledged := iodata(), closed := erlmcp_subscription:closing()
}.
-doc """
The id, the method and the parameters of a message. A message that cannot be read may have no id and
no method.
""".
-type summary() ::
    {erlmcp_message:id() | undefined, Method :: binary() | undefined, Params :: map()}.
-type outcome() :: ok | {refused, erlmcp_refusal:refusal()}.
-type effect() ::
    {answer, summary(), outcome(), erlmcp_reply:reply()}
    | {call, call()}
    | {batch, [effect(), ...]}
    | {subscribe | unsubscribe, erlmcp_message:id(), Uri :: binary()}
    | {listen, listen()}
    | {cancel, erlmcp_message:id()}
    | {response, erlmcp_message:id(), {ok, term()} | {error, term()}}
    | accepted.

%% The most messages in one JSON-RPC batch.
-define(MAX_BATCH, 100).
%% The most bytes of a client's declaration, which its session keeps.
-define(MAX_KEPT, 16_384).
%% The most bytes of a request's id, since a server keeps ids. A number is bounded by the decoder.
-define(ID_BYTES, 1_024).
%% A message without an id that can be read.
-define(UNREADABLE, {undefined, undefined, #{}}).
%% The log level of a session before its client sets one: `info` and above.
-define(DEFAULT_LOG_LEVEL, 6).

-doc """
Returns the effects of a decoded message, and the client's session after the message. A session is
`none` before `initialize`, and always for a stateless client.
""".
-spec handle(Json :: term(), request_context(), erlmcp_catalog:catalog(), session() | none) ->
    {[effect(), ...], session() | none}.
handle(Json, RequestContext, Catalog, Session) ->
    message(erlmcp_message:parse(Json), RequestContext, Catalog, Session).

message({request, Id, _, _}, RequestContext, Catalog, Session) when byte_size(Id) > ?ID_BYTES ->
    message({invalid, Id, too_long(byte_size(Id))}, RequestContext, Catalog, Session);
message({request, Id, Method, Params}, RequestContext, Catalog, Session) ->
    case era(Method, Params, RequestContext) of
        stateless ->
            Request = {Id, Method, Params, known_meta(RequestContext)},
            {[request(Request, RequestContext, Catalog)], Session};
        session ->
            {Effect, Next} = session({Id, Method, Params}, RequestContext, Catalog, Session),
            {[Effect], Next}
    end;
%% No request has a longer id.
message({notification, ~"notifications/cancelled", #{~"requestId" := Id}}, _, _, Session) when
    is_binary(Id), byte_size(Id) =< ?ID_BYTES; is_integer(Id)
->
    {[{cancel, Id}, accepted], Session};
message({notification, ~"notifications/initialized", _}, _, _, #{} = Session) ->
    {[accepted], Session#{initialized := true}};
message({notification, _, _}, _, _, Session) ->
    {[accepted], Session};
message({response, Id, Outcome}, _, _, #{} = Session) when Id =/= undefined ->
    {[{response, Id, Outcome}, accepted], Session};
message({response, _, _}, _, _, Session) ->
    {[accepted], Session};
message({batch, Messages}, RequestContext, Catalog, #{revision := Revision} = Session) ->
    case erlmcp_revision:batches(Revision) of
        true when length(Messages) > ?MAX_BATCH ->
            {[refuse(?UNREADABLE, too_many(length(Messages)), Revision)], Session};
        true ->
            batch(Messages, RequestContext, Catalog, Session);
        false ->
            {[refuse(?UNREADABLE, no_batches(), Revision)], Session}
    end;
message({batch, _}, _, _, none) ->
    {[refuse(?UNREADABLE, no_batches())], none};
message({invalid, Id, Refusal}, _, _, #{revision := Revision} = Session) when Id =/= undefined ->
    {[refuse({Id, undefined, #{}}, Refusal, Revision)], Session};
message({invalid, Id, Refusal}, _, _, Session) ->
    {[refuse({Id, undefined, #{}}, Refusal)], Session}.

too_long(Bytes) ->
    erlmcp_refusal:new(protocol_error,
                       [~"id: expected at most ", integer_to_binary(?ID_BYTES), ~" bytes, got ",
                        integer_to_binary(Bytes)],
                       #{code => -32600, limit => ?ID_BYTES, observed => Bytes}).

answer({Id, _, _} = Asked, Result) ->
    {answer, Asked, ok, erlmcp_reply:result(Id, Result)}.

-doc "Returns the effect that refuses a request, with the HTTP status of `erlmcp_reply:refuse/2`.".
-spec refuse(summary(), erlmcp_refusal:refusal()) -> effect().
refuse({Id, _, _} = Asked, Refusal) ->
    {answer, Asked, {refused, Refusal}, erlmcp_reply:refuse(Id, Refusal)}.

refuse({Id, _, _} = Asked, Refusal, Revision) ->
    {answer, Asked, {refused, Refusal}, erlmcp_reply:refuse(Id, Refusal, Revision)}.

-doc """
Returns the era of a decoded message. `server/discover`, and a request or notification whose `_meta`
names a protocol version, are stateless. For any other message the header `MCP-Protocol-Version`
decides. If the header is absent, or names a revision with sessions, the message belongs to a
session. With any other value of the header, the message is stateless.
""".
-spec era(Json :: term(), request_context()) -> erlmcp_revision:era().
era(#{~"method" := Method, ~"params" := #{} = Params}, RequestContext) ->
    era(Method, Params, RequestContext);
era(#{~"method" := Method}, RequestContext) ->
    era(Method, #{}, RequestContext);
era(_, RequestContext) ->
    header_era(RequestContext).

%% Clients send `server/discover` to learn the era, so it is always stateless.
era(~"server/discover", _, _) ->
    stateless;
era(_, Params, RequestContext) ->
    case erlmcp_meta:is_modern(Params) of
        true -> stateless;
        false -> header_era(RequestContext)
    end.

-doc """
Returns the request context for all requests with an identity and HTTP headers.
""".
-spec request_context(erlmcp_auth:identity(), erlmcp_header:headers()) -> request_context().
request_context(Identity, Headers) ->
    RequestContext = Identity#{headers => Headers},
    RequestContext#{header_era => header_era(RequestContext),
                    header_values => erlmcp_header:read(Headers)}.

%% The era that the headers ask for, which applies to a message without a version in its `_meta`.
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

-doc """
Returns the effect of a request that is known to be stateless, such as one whose HTTP headers say
so. The request's `_meta` and headers are still validated; the length of its id is not.
""".
-spec request(request(), request_context(), erlmcp_catalog:catalog()) -> effect().
request({Id, Method, Params, Known}, RequestContext, Catalog) ->
    #{headers := Headers, principal := Principal} = RequestContext,
    Values = header_values(RequestContext),
    maybe
        {ok, Revision, Meta} ?= erlmcp_meta:validate(Params, version(Values), Known),
        ok ?= mirrored(Method, Params, Values),
        ok ?= offered(Method, Revision, Catalog),
        #{client_info := Info, client_capabilities := Capabilities, log_level := Level} = Meta,
        Client = asking(RequestContext,
                        #{revision => Revision, principal => Principal, scopes => all,
                          client_info => Info, client_capabilities => Capabilities,
                          log_level => Level, headers => Headers}),
        dispatch(Method, Id, Params, Client, Catalog)
    else
        {error, Refusal} -> refuse({Id, Method, Params}, Refusal)
    end.

asking(#{claims := Claims} = RequestContext, Known) ->
    scoped(RequestContext, Known#{claims => Claims});
asking(RequestContext, Known) ->
    scoped(RequestContext, Known).

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

%% Sessions: the revision and capabilities of `initialize` apply to the requests after it.

session({_, ~"initialize", Params} = Asked, #{principal := Principal}, Catalog, none) ->
    case initialize(Params, Principal) of
        {ok, #{revision := Revision} = Session} ->
            {answer(Asked, erlmcp_catalog:greeting(Revision, Catalog)), Session};
        {error, Refusal} ->
            {refuse(Asked, Refusal), none}
    end;
session({_, ~"initialize", _} = Asked, _, _, #{revision := Revision} = Session) ->
    Message = ~"initialize: this session is initialized already",
    Refusal = erlmcp_refusal:new(protocol_error, Message, #{code => -32600}),
    {refuse(Asked, Refusal, Revision), Session};
session({_, ~"ping", _} = Asked, _, _, Session) ->
    {answer(Asked, ~"{}"), Session};
session({_, Method, _} = Asked, _, _, none) ->
    Message = [~"expected initialize first, or the protocol fields of 2026-07-28 in params._meta",
               ~", got ", erlmcp_value_text:literal(Method), ~" without them"],
    {refuse(Asked, erlmcp_refusal:new(server_uninitialized, Message,
                                      #{code => -32600, status => 400})), none};
session({_, ~"logging/setLevel", Params} = Asked, _, _, #{revision := Revision} = Session) ->
    case erlmcp_meta:level(~"level", maps:get(~"level", Params, undefined)) of
        {ok, Level} -> {answer(Asked, ~"{}"), Session#{log_level := Level}};
        {error, Refusal} -> {refuse(Asked, Refusal, Revision), Session}
    end;
session({Id, Method, Params} = Asked, RequestContext, Catalog,
        #{revision := Revision} = Session) ->
    case offered(Method, Revision, Catalog) of
        ok ->
            %% Each request has scopes of its own.
            Client = asking(RequestContext, Session),
            {dispatch(Method, Id, Params, Client, Catalog), Session};
        {error, Refusal} -> {refuse(Asked, Refusal, Revision), Session}
    end.

initialize(#{~"protocolVersion" := Version} = Params, Principal) when is_binary(Version) ->
    Revision = negotiate(Version),
    Identity = maps:get(~"clientInfo", Params, undefined),
    Capabilities = maps:get(~"capabilities", Params, undefined),
    maybe
        ok ?= erlmcp_client_declaration:identity(~"clientInfo", Identity, Revision),
        ok ?= erlmcp_client_declaration:capabilities(~"capabilities", Capabilities, Revision),
        {ok, {OwnIdentity, OwnCapabilities}} ?= copy_declaration({Identity, Capabilities}),
        {ok, #{principal => Principal, scopes => all, revision => Revision,
               client_info => OwnIdentity, client_capabilities => OwnCapabilities,
               log_level => ?DEFAULT_LOG_LEVEL, initialized => false}}
    end;
initialize(#{~"protocolVersion" := Version}, _) ->
    {error, erlmcp_params:mistyped(~"protocolVersion", ~"a string", Version)};
initialize(_, _) ->
    {error, erlmcp_params:missing(~"protocolVersion")}.

%% The declaration is kept as long as the session, so it is bounded, and copied out of its message.
copy_declaration(Declared) ->
    case term_to_binary(Declared) of
        Kept when byte_size(Kept) > ?MAX_KEPT ->
            {error, erlmcp_refusal:new(invalid_params, ~"clientInfo and capabilities: too large",
                                       #{code => -32602, limit => ?MAX_KEPT,
                                         observed => byte_size(Kept)})};
        Kept ->
            {ok, binary_to_term(Kept)}
    end.

-doc "Returns 100, the most messages of one JSON-RPC batch.".
-spec max_batch() -> pos_integer().
max_batch() ->
    ?MAX_BATCH.

%% Returns the revision that the client asked for, or else the newest one with sessions.
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

batch(Messages, RequestContext, Catalog, Session) ->
    {Effects, Last} = lists:mapfoldl(
        fun(Json, Current) ->
            case erlmcp_message:parse(Json) of
                {batch, _} -> {[refuse(?UNREADABLE, no_batches())], Current};
                Message -> message(Message, RequestContext, Catalog, Current)
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

%% The effect of a request by its method: an answer from the catalog, or a call of user code. Here
%% the revision is known to have the method.

dispatch(Method, Id, Params, #{revision := Revision} = Client, Catalog) ->
    case effect(Method, Id, Params, Client, Catalog) of
        {error, Refusal} -> refuse({Id, Method, Params}, Refusal, Revision);
        {reply, _, _} = Reply -> bounded(Reply, {Id, Method, Params}, Revision, Catalog);
        Effect -> Effect
    end.

%% Answers from the catalog have the same bound on their bytes as results of handlers.
bounded({reply, _, Bytes} = Reply, Asked, Revision, Catalog) ->
    case {erlmcp_catalog:reply_bytes(Catalog), iolist_size(Bytes)} of
        {{ok, Max}, Size} when Size > Max ->
            refuse(Asked, erlmcp_reply:too_large(Size, Max, #{}), Revision);
        _ ->
            {answer, Asked, ok, Reply}
    end.

effect(~"tools/call", Id, Params, Client, Catalog) ->
    named(tool, ~"tools/call", Id, Params, Client, Catalog);
effect(~"prompts/get", Id, Params, Client, Catalog) ->
    named(prompt, ~"prompts/get", Id, Params, Client, Catalog);
effect(~"resources/read", Id, Params, Client, Catalog) ->
    maybe
        {ok, Uri} ?= erlmcp_params:string(~"uri", Params),
        {ok, Kind, Definition, Variables} ?= permitted_resource(Uri, Client, Catalog),
        case Definition of
            #{contents := Contents} ->
                #{revision := Revision} = Client,
                skill_file(Id, Contents, Revision, Catalog);
            #{} ->
                Target = #{method => ~"resources/read", uri => Uri},
                call(Kind, Id, Definition, Variables, Target, Params, Client, Catalog)
        end
    end;
effect(~"completion/complete", Id, Params, Client, Catalog) ->
    complete(Id, Params, Client, Catalog);
effect(~"resources/subscribe", Id, Params, Client, Catalog) ->
    maybe
        {ok, Uri} ?= erlmcp_subscription:uri(Params),
        {ok, _, _, _} ?= permitted_resource(Uri, Client, Catalog),
        {subscribe, Id, Uri}
    end;
effect(~"resources/unsubscribe", Id, Params, _, _) ->
    maybe
        {ok, Uri} ?= erlmcp_subscription:uri(Params),
        {unsubscribe, Id, Uri}
    end;
effect(~"subscriptions/listen", Id, Params, Client, Catalog) ->
    erlmcp_subscription:listen(Id, Params, Client, Catalog);
effect(~"skills/get", Id, Params, #{revision := Revision}, Catalog) ->
    skill(Id, Params, Revision, Catalog);
effect(~"resources/directory/read", Id, Params, #{revision := Revision}, Catalog) ->
    skill_directory(Id, Params, Revision, Catalog);
effect(<<"tasks/", _/binary>> = Method, Id, Params, Client, Catalog) ->
    maybe
        {ok, Operation, Arguments} ?=
            erlmcp_task:operation(Method, Params, Client, erlmcp_catalog:has_tasks(Catalog)),
        Definition = #{page_size => erlmcp_catalog:page_size(Catalog)},
        call({task, Operation}, Id, Definition, Arguments, #{method => Method}, Params, Client,
             Catalog)
    end;
effect(~"server/discover", Id, _, #{revision := Revision}, Catalog) ->
    erlmcp_reply:result(Id, erlmcp_catalog:greeting(Revision, Catalog));
effect(List, Id, Params, Client, Catalog) ->
    maybe
        {ok, Page} ?= page(List, Params, Client, Catalog),
        erlmcp_reply:result(Id, Page)
    end.

page(List, Params, #{revision := Revision, principal := Principal}, Catalog) ->
    case erlmcp_params:cursor(Params) of
        {ok, none} ->
            {ok, erlmcp_catalog:first_page(List, Revision, Principal, Catalog)};
        {ok, Cursor} ->
            case erlmcp_catalog:page(List, Cursor, Revision, Principal, Catalog) of
                {ok, _} = Page -> Page;
                error -> {error, erlmcp_params:bad_cursor()}
            end;
        {error, _} = Error ->
            Error
    end.

named(Kind, Method, Id, Params, Client, Catalog) ->
    maybe
        {ok, Name} ?= erlmcp_params:string(~"name", Params),
        {ok, Arguments} ?= erlmcp_params:object(~"arguments", Params),
        {ok, Definition} ?= find(Kind, Name, Client, Catalog),
        ok ?= mirrored_arguments(Kind, Definition, Arguments, Client),
        ok ?= permitted(Definition, Client),
        ok ?= required(Kind, Definition, Arguments),
        {ok, Task} ?= task(Kind, Definition, Params, Client, Catalog),
        Target = #{method => Method, name => Name},
        {call, Call} ?= call(Kind, Id, Definition, Arguments, Target, Params, Client, Catalog),
        case Task of
            none -> {call, Call};
            Mode -> {call, Call#{task => Mode}}
        end
    end.

mirrored_arguments(tool, #{headers := [_ | _] = Declared}, Arguments,
                   #{headers := #{} = Headers}) ->
    erlmcp_header:check_arguments(Arguments, Declared, Headers);
mirrored_arguments(_, _, _, _) ->
    ok.

%% Most tools do not run as tasks, and most requests do not ask for one.
task(tool, Definition, Params, Client, Catalog) when
    is_map_key(task, Definition); is_map_key(~"task", Params)
->
    erlmcp_task:mode(Definition, Params, Client, erlmcp_catalog:has_tasks(Catalog));
task(_, _, _, _, _) ->
    {ok, none}.

find(tool, Name, #{principal := Principal}, Catalog) ->
    found(erlmcp_catalog:tool(Name, Principal, Catalog), tool_not_found, ~"unknown tool: ", Name);
find(prompt, Name, #{principal := Principal}, Catalog) ->
    found(erlmcp_catalog:prompt(Name, Principal, Catalog), prompt_not_found, ~"unknown prompt: ",
          Name).

found({ok, _} = Found, _, _, _) ->
    Found;
found(error, Refused, Unknown, Name) ->
    {error, erlmcp_refusal:new(Refused, [Unknown, erlmcp_value_text:name(Name)],
                               #{code => -32602, status => 400})}.

%% Seeing a definition and using it are separate rights: to use it, a request must have its scopes.
permitted(#{scopes := Needed}, #{scopes := Scopes}) -> erlmcp_scope:check(Needed, Scopes);
permitted(_, _) -> ok.

permitted_resource(Uri, Client, Catalog) ->
    maybe
        {ok, _, Definition, _} = Found ?= resource(Uri, Client, Catalog),
        ok ?= permitted(Definition, Client),
        Found
    end.

resource(Uri, #{revision := Revision, principal := Principal}, Catalog) ->
    case erlmcp_catalog:resource(Uri, Principal, Catalog) of
        {ok, _, _, _} = Found -> Found;
        error -> {error, erlmcp_result:missing_resource(Uri, Revision)}
    end.

%% Checks that the arguments of a prompt have all required ones, and that all are strings.
required(prompt, #{wire := Wire}, Arguments) ->
    Missing = [Name || #{~"name" := Name, ~"required" := true}
                           <- maps:get(~"arguments", Wire, []),
                       not is_map_key(Name, Arguments)],
    Mistyped = [Name || Name := Value <- Arguments, not is_binary(Value)],
    case {Missing, Mistyped} of
        {[], []} -> ok;
        {[Name | _], _} -> {error, erlmcp_params:missing([~"arguments.", Name])};
        {[], [Name | _]} ->
            {error, erlmcp_params:mistyped([~"arguments.", erlmcp_value_text:name(Name)],
                                           ~"a string", map_get(Name, Arguments))}
    end;
required(_, _, _) ->
    ok.

call(Kind, Id, Definition, Arguments, Target, Params, Client, Catalog) ->
    #{revision := Revision} = Client,
    maybe
        {ok, Meta} ?= erlmcp_params:object(~"_meta", Params),
        {ok, Token} ?= erlmcp_meta:progress_token(Meta),
        {ok, Input} ?= input(Params, Revision),
        Context = context(Target, Meta, Token, Client, Catalog),
        {call, #{id => Id, kind => Kind, definition => Definition, arguments => Arguments,
                 context => Context, input => Input, keys => erlmcp_catalog:keys(Catalog)}}
    end.

%% Most contexts have only these members, so they are built in one step.
context(#{method := Method, name := Name} = Target, Meta, Token, Client, Catalog) when
    map_size(Target) =:= 2, not is_map_key(claims, Client)
->
    #{principal := Principal, scopes := Scopes, revision := Revision, client_info := Info,
      client_capabilities := Capabilities, log_level := Level} = Client,
    #{method => Method, name => Name, principal => Principal, scopes => Scopes,
      revision => Revision, meta => Meta, client_info => Info,
      client_capabilities => Capabilities, log_level => Level, progress_token => Token,
      call => #{server_meta => erlmcp_catalog:server_meta(Catalog)}};
context(Target, Meta, Token, Client, Catalog) ->
    Who = maps:with([principal, scopes, claims, revision, client_info, client_capabilities,
                     log_level], Client),
    maps:merge(Target, Who#{meta => Meta, progress_token => Token,
                            call => #{server_meta => erlmcp_catalog:server_meta(Catalog)}}).

%% The answers and the sealed state that a stateless client returns after a round of input. The call
%% opens the state.
input(Params, '2026-07-28') when
    is_map_key(~"inputResponses", Params); is_map_key(~"requestState", Params)
->
    maybe
        {ok, Responses} ?= erlmcp_params:objects(~"inputResponses", Params),
        case Params of
            #{~"requestState" := State} when is_binary(State) ->
                {ok, #{responses => Responses, state => State}};
            #{~"requestState" := State} ->
                {error, erlmcp_params:mistyped(~"requestState", ~"a string", State)};
            #{} ->
                {ok, #{responses => Responses}}
        end
    end;
input(_, _) ->
    {ok, #{responses => #{}}}.

%% Completion: a list of values in the definition is answered here, and a fun is run by a call.

complete(Id, Params, #{revision := Revision} = Client, Catalog) ->
    maybe
        {ok, Ref} ?= erlmcp_params:object(~"ref", Params),
        {ok, Argument} ?= erlmcp_params:object(~"argument", Params),
        {ok, Name} ?= erlmcp_params:string(~"name", Argument),
        {ok, Value} ?= erlmcp_params:string(~"value", Argument),
        {ok, Given} ?= erlmcp_params:object(~"context", Params),
        {ok, Resolved} ?= erlmcp_params:object(~"arguments", Given),
        [] ?= [erlmcp_params:mistyped([~"context.arguments.", erlmcp_value_text:name(Known)],
                                      ~"a string", Other)
               || Known := Other <- Resolved, not is_binary(Other)],
        {ok, Target, Definition} ?= reference(Ref, Client, Catalog),
        ok ?= permitted(Definition, Client),
        case Definition of
            #{complete := #{Name := Complete}} when is_function(Complete, 2) ->
                Handler = fun(_, Context) -> Complete(Value, Context) end,
                call(completion, Id, #{handler => Handler}, Resolved,
                     Target#{method => ~"completion/complete", arguments => Resolved},
                     Params, Client, Catalog);
            #{complete := #{Name := Values}} ->
                Matching = [Known || Known <- Values, string:prefix(Known, Value) =/= nomatch],
                completed(Id, Matching, Revision, Catalog);
            #{} ->
                completed(Id, [], Revision, Catalog)
        end
    else
        [Refusal | _] -> {error, Refusal};
        {error, _} = Error -> Error
    end.

reference(#{~"type" := ~"ref/prompt", ~"name" := Name}, Client, Catalog) when is_binary(Name) ->
    maybe
        {ok, Definition} ?= find(prompt, Name, Client, Catalog),
        {ok, #{name => Name}, Definition}
    end;
reference(#{~"type" := ~"ref/resource", ~"uri" := Uri}, Client, Catalog) when is_binary(Uri) ->
    #{principal := Principal} = Client,
    case erlmcp_catalog:resource_template(Uri, Principal, Catalog) of
        {ok, Definition} ->
            {ok, #{uri => Uri}, Definition};
        error ->
            maybe
                {ok, _, Definition, _} ?= resource(Uri, Client, Catalog),
                {ok, #{uri => Uri}, Definition}
            end
    end;
reference(#{~"type" := ~"ref/prompt"} = Ref, _, _) ->
    {error, erlmcp_params:mistyped(~"ref.name", ~"a string", maps:get(~"name", Ref, undefined))};
reference(#{~"type" := ~"ref/resource"} = Ref, _, _) ->
    {error, erlmcp_params:mistyped(~"ref.uri", ~"a string", maps:get(~"uri", Ref, undefined))};
reference(Ref, _, _) ->
    {error, erlmcp_params:mistyped(~"ref.type", ~"ref/prompt or ref/resource",
                                   maps:get(~"type", Ref, undefined))}.

completed(Id, Values, Revision, Catalog) ->
    Call = #{server_meta => erlmcp_catalog:server_meta(Catalog)},
    Context = #{revision => Revision, call => Call},
    {ok, Result} = erlmcp_result:from(completion, Values, #{}, Context),
    erlmcp_reply:result(Id, Result).

%% The requests of the Skills extension about one skill, one folder or one file. (`skills/list` is a
%% list like the others.)

skill(Id, Params, Revision, Catalog) ->
    maybe
        {ok, Uri} ?= erlmcp_params:string(~"uri", Params),
        {ok, #{encoded := Skill}} ?=
            skill_found(erlmcp_catalog:definition(skill, Uri, Catalog), Uri, ~"skill"),
        skill_result(Id, {~"skill", Skill}, Revision, Catalog)
    end.

skill_directory(Id, Params, Revision, Catalog) ->
    maybe
        {ok, Uri} ?= erlmcp_params:string(~"uri", Params),
        {ok, Cursor} ?= erlmcp_params:cursor(Params),
        {ok, Page} ?=
            skill_found(erlmcp_catalog:directory(Uri, Cursor, Revision, Catalog), Uri,
                        ~"directory"),
        erlmcp_reply:result(Id, Page)
    else
        bad_cursor -> {error, erlmcp_params:bad_cursor()};
        {error, _} = Error -> Error
    end.

skill_found({ok, _} = Found, _, _) -> Found;
skill_found(bad_cursor, _, _) -> bad_cursor;
skill_found(error, Uri, What) ->
    Message = [~"no ", What, ~" has the URI ", erlmcp_value_text:name(Uri)],
    {error, erlmcp_refusal:new(resource_not_found, Message,
                               #{code => -32602, status => 400, data => #{~"uri" => Uri}})}.

skill_file(Id, Contents, Revision, Catalog) ->
    skill_result(Id, {~"contents", Contents}, Revision, Catalog).

skill_result(Id, {Member, Encoded}, Revision, Catalog) ->
    erlmcp_reply:result(Id, erlmcp_catalog:result(Member, Encoded, Revision, Catalog)).
