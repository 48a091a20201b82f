-module(erlmcp_engine).
-moduledoc """
The protocol as a function: a message in, effects out. Pure; the shell around it (a connection, an
HTTP stream) performs the effects.

A request is served statelessly when its `_meta` names a protocol version, or when its
`MCP-Protocol-Version` header is none of the older revisions; `initialize` opens a session. What
happens then differs between the eras only in what stands around the one dispatcher.

Each request gives exactly one `reply` or `call` effect. A notification or a response gives
`accepted`, with a `cancel` before it where that is what it asks for.
""".

-export([handle/4, era/2, refuse/2, refuse/3, unreadable/1]).

-export_type([effect/0, call/0, envelope/0, session/0, status/0, context/0]).

-doc """
What a transport knows beside the body: the HTTP headers by their names in lower case, or `none`
where it has no headers.
""".
-type envelope() :: #{headers := none | #{binary() => binary()}}.
-type session() :: #{
    revision := erlmcp_revision:revision(),
    client_info := map() | undefined,
    client_capabilities := map(),
    log_level := erlmcp_meta:level(),
    initialized := boolean()
}.
-doc "An HTTP status, with the seconds of `Retry-After` where waiting helps.".
-type status() :: 200..599 | {200..599, RetryAfter :: pos_integer()}.
-doc """
What a handler is given beside its arguments; `erlmcp:progress/3` and `erlmcp:log/3` take it.
`deadline` is in `erlang:monotonic_time(millisecond)`.
""".
-type context() :: #{
    revision := erlmcp_revision:revision(),
    method := binary(),
    name => binary(),
    uri => binary(),
    meta := map(),
    client_info := map() | undefined,
    client_capabilities := map(),
    log_level := erlmcp_meta:level() | undefined,
    progress_token := binary() | integer() | undefined,
    server_meta := binary(),
    deadline => integer(),
    owner => {pid(), term()}
}.
-type call() :: #{
    id := erlmcp_message:id(),
    kind := erlmcp_definition:kind(),
    definition := erlmcp_definition:definition(),
    arguments := map(),
    context := context()
}.
-type effect() ::
    {reply, status(), iodata()}
    | {call, call()}
    | {batch, [{reply, status(), iodata()} | {call, call()}, ...]}
    | {cancel, erlmcp_message:id()}
    | accepted.

%% Messages in one JSON-RPC batch.
-define(MAX_BATCH, 100).
%% What a session is sent before it says which level it wants: `info` and above.
-define(DEFAULT_LOG_LEVEL, 6).

-doc """
The effects of a decoded message, and the session after it. `none` is no session: before
`initialize`, and always for a stateless client.
""".
-spec handle(Json :: term(), envelope(), erlmcp_catalog:catalog(), session() | none) ->
    {[effect(), ...], session() | none}.
handle(Json, Envelope, Catalog, Session) ->
    message(erlmcp_message:parse(Json), Envelope, Catalog, Session).

message({request, Id, Method, Params}, Envelope, Catalog, Session) ->
    case era(Method, Params, Envelope) of
        stateless ->
            {[stateless(Id, Method, Params, Envelope, Catalog)], Session};
        session ->
            {Effect, Next} = session(Id, Method, Params, Catalog, Session),
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
message({response, _}, _, _, Session) ->
    {[accepted], Session};
message({batch, Messages}, Envelope, Catalog, #{revision := Revision} = Session) ->
    case erlmcp_revision:batches(Revision) of
        true when length(Messages) > ?MAX_BATCH ->
            {[refuse(undefined, too_many(length(Messages)), Revision)], Session};
        true ->
            batch(Messages, Envelope, Catalog, Session);
        false ->
            {[refuse(undefined, no_batches(), Revision)], Session}
    end;
message({batch, _}, _, _, none) ->
    {[refuse(undefined, no_batches())], none};
message({invalid, Id, Refusal}, _, _, #{revision := Revision} = Session) when Id =/= undefined ->
    {[refuse(Id, Refusal, Revision)], Session};
message({invalid, Id, Refusal}, _, _, Session) ->
    {[refuse(Id, Refusal)], Session}.

-doc """
The era that a decoded message asks to be served in: what its `_meta` says, or else its
`MCP-Protocol-Version` header. Without either it belongs to a session.
""".
-spec era(Json :: term(), envelope()) -> erlmcp_revision:era().
era(#{~"method" := Method, ~"params" := #{} = Params}, Envelope) -> era(Method, Params, Envelope);
era(#{~"method" := Method}, Envelope) -> era(Method, #{}, Envelope);
era(_, Envelope) -> header_era(Envelope).

%% `server/discover` exists to find out the era, so it needs no proof of its own.
era(~"server/discover", _, _) ->
    stateless;
era(_, Params, Envelope) ->
    case erlmcp_meta:is_modern(Params) of
        true -> stateless;
        false -> header_era(Envelope)
    end.

header_era(#{headers := #{~"mcp-protocol-version" := Version}}) ->
    case erlmcp_revision:parse(Version) of
        {ok, Revision} -> erlmcp_revision:era(Revision);
        error -> stateless
    end;
header_era(_) ->
    session.

%% Stateless: everything is in the request.

stateless(Id, Method, Params, #{headers := Headers}, Catalog) ->
    maybe
        {ok, Revision, Meta} ?= erlmcp_meta:validate(Params, protocol_version(Headers)),
        ok ?= mirrored(Method, Params, Headers, Catalog),
        ok ?= offered(Method, Revision),
        dispatch(Method, Id, Params, Meta#{revision => Revision}, Catalog)
    else
        {error, Refusal} -> refuse(Id, Refusal)
    end.

protocol_version(none) -> none;
protocol_version(Headers) -> maps:get(~"mcp-protocol-version", Headers, undefined).

mirrored(_, _, none, _) ->
    ok;
mirrored(Method, Params, Headers, Catalog) ->
    maybe
        ok ?= erlmcp_header:check(Method, Params, Headers),
        ~"tools/call" ?= Method,
        #{~"name" := Name, ~"arguments" := #{} = Arguments} ?= Params,
        {ok, #{headers := [_ | _] = Declared}} ?= erlmcp_catalog:tool(Name, Catalog),
        erlmcp_header:check_arguments(Arguments, Declared, Headers)
    else
        {error, _} = Error -> Error;
        _ -> ok
    end.

offered(Method, Revision) ->
    case erlmcp_revision:offers(Method, Revision) of
        true ->
            ok;
        false ->
            Message = [~"method not found in ", erlmcp_revision:name(Revision)],
            {error, erlmcp_refusal:new(protocol_error, Message, #{code => -32601, status => 404})}
    end.

%% Sessions: what `initialize` agreed on holds for the requests after it.

session(Id, ~"initialize", Params, Catalog, none) ->
    case initialize(Params) of
        {ok, #{revision := Revision} = Session} ->
            Answer = erlmcp_catalog:answer(~"initialize", Revision, Catalog),
            {{reply, 200, erlmcp_message:result(Id, Answer)}, Session};
        {error, Refusal} ->
            {refuse(Id, Refusal), none}
    end;
session(Id, ~"initialize", _, _, #{revision := Revision} = Session) ->
    Message = ~"initialize: this session is initialized already",
    {refuse(Id, erlmcp_refusal:new(protocol_error, Message, #{code => -32600}), Revision), Session};
session(Id, ~"ping", _, _, Session) ->
    {{reply, 200, erlmcp_message:result(Id, ~"{}")}, Session};
session(Id, _, _, _, none) ->
    Message = ~"expected initialize first, or the protocol fields of 2026-07-28 in params._meta",
    {refuse(Id, erlmcp_refusal:new(server_uninitialized, Message,
                                   #{code => -32600, status => 400})), none};
session(Id, ~"logging/setLevel", Params, _, #{revision := Revision} = Session) ->
    case erlmcp_meta:level(maps:get(~"level", Params, undefined)) of
        {ok, Level} ->
            {{reply, 200, erlmcp_message:result(Id, ~"{}")}, Session#{log_level := Level}};
        error ->
            {refuse(Id, mistyped(~"level", ~"a log level"), Revision), Session}
    end;
session(Id, Method, Params, Catalog, #{revision := Revision} = Session) ->
    case offered(Method, Revision) of
        ok -> {dispatch(Method, Id, Params, Session, Catalog), Session};
        {error, Refusal} -> {refuse(Id, Refusal, Revision), Session}
    end.

initialize(#{~"protocolVersion" := Version} = Params) when is_binary(Version) ->
    Capabilities = maps:get(~"capabilities", Params, #{}),
    Info = maps:get(~"clientInfo", Params, undefined),
    if
        not is_map(Capabilities) -> {error, mistyped(~"capabilities", ~"an object")};
        Info =/= undefined, not is_map(Info) -> {error, mistyped(~"clientInfo", ~"an object")};
        true ->
            {ok, #{revision => negotiate(Version), client_info => Info,
                   client_capabilities => Capabilities, log_level => ?DEFAULT_LOG_LEVEL,
                   initialized => false}}
    end;
initialize(#{~"protocolVersion" := _}) ->
    {error, mistyped(~"protocolVersion", ~"a string")};
initialize(_) ->
    {error, missing(~"protocolVersion")}.

%% What the client asked for, or else the newest that has sessions.
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
                {batch, _} -> {[refuse(undefined, no_batches())], Current};
                Message -> message(Message, Envelope, Catalog, Current)
            end
        end, Session, Messages),
    All = lists:append(Effects),
    Cancels = [Effect || {cancel, _} = Effect <- All],
    case [Effect || Effect <- All -- Cancels, Effect =/= accepted] of
        [] -> {Cancels ++ [accepted], Last};
        Answers -> {Cancels ++ [{batch, Answers}], Last}
    end.

%% The one dispatcher.

dispatch(~"tools/call", Id, Params, Client, Catalog) ->
    named(tool, Id, Params, Client, Catalog);
dispatch(~"prompts/get", Id, Params, Client, Catalog) ->
    named(prompt, Id, Params, Client, Catalog);
dispatch(~"resources/read", Id, Params, #{revision := Revision} = Client, Catalog) ->
    maybe
        {ok, Uri} ?= string(~"uri", Params),
        {ok, Kind, Definition, Variables} ?= resource(Uri, Revision, Catalog),
        call(Kind, Id, Definition, Variables, #{uri => Uri}, ~"resources/read", Params, Client,
             Catalog)
    else
        {error, Refusal} -> refuse(Id, Refusal, Revision)
    end;
dispatch(_, Id, #{~"cursor" := _}, #{revision := Revision}, _) ->
    Message = ~"cursor: not one that this server gave",
    refuse(Id, erlmcp_refusal:new(invalid_params, Message, #{code => -32602}), Revision);
dispatch(Method, Id, _, #{revision := Revision}, Catalog) ->
    {reply, 200, erlmcp_message:result(Id, erlmcp_catalog:answer(Method, Revision, Catalog))}.

named(Kind, Id, Params, #{revision := Revision} = Client, Catalog) ->
    maybe
        {ok, Name} ?= string(~"name", Params),
        {ok, Arguments} ?= object(~"arguments", Params),
        {ok, Definition} ?= find(Kind, Name, Catalog),
        ok ?= required(Kind, Definition, Arguments),
        call(Kind, Id, Definition, Arguments, #{name => Name}, method(Kind), Params, Client,
             Catalog)
    else
        {error, Refusal} -> refuse(Id, Refusal, Revision)
    end.

method(tool) -> ~"tools/call";
method(prompt) -> ~"prompts/get".

find(tool, Name, Catalog) ->
    with_refusal(erlmcp_catalog:tool(Name, Catalog), tool_not_found, [~"unknown tool: ", Name]);
find(prompt, Name, Catalog) ->
    with_refusal(erlmcp_catalog:prompt(Name, Catalog), prompt_not_found,
                 [~"unknown prompt: ", Name]).

with_refusal({ok, _} = Found, _, _) -> Found;
with_refusal(error, Name, Message) ->
    {error, erlmcp_refusal:new(Name, Message, #{code => -32602, status => 400})}.

resource(Uri, Revision, Catalog) ->
    case erlmcp_catalog:resource(Uri, Catalog) of
        {ok, _, _, _} = Found -> Found;
        error -> {error, erlmcp_result:missing_resource(Uri, Revision)}
    end.

%% The arguments that a prompt's definition calls required; all of them are strings.
required(prompt, #{wire := #{~"arguments" := Declared}}, Arguments) ->
    Missing = [Name || #{~"name" := Name, ~"required" := true} <- Declared,
                       not is_map_key(Name, Arguments)],
    Mistyped = [Name || Name := Value <- Arguments, not is_binary(Value)],
    case {Missing, Mistyped} of
        {[], []} -> ok;
        {[Name | _], _} -> {error, missing([~"arguments.", Name])};
        {[], [Name | _]} -> {error, mistyped([~"arguments.", Name], ~"a string")}
    end;
required(_, _, _) ->
    ok.

call(Kind, Id, Definition, Arguments, Target, Method, Params, Client, Catalog) ->
    #{revision := Revision, client_info := Info, client_capabilities := Capabilities,
      log_level := Level} = Client,
    maybe
        {ok, Meta} ?= object(~"_meta", Params),
        {ok, Token} ?= erlmcp_meta:progress_token(Meta),
        Context = Target#{revision => Revision, method => Method, meta => Meta,
                          client_info => Info, client_capabilities => Capabilities,
                          log_level => Level, progress_token => Token,
                          server_meta => erlmcp_catalog:server_meta(Catalog)},
        {call, #{id => Id, kind => Kind, definition => Definition, arguments => Arguments,
                 context => Context}}
    else
        {error, Refusal} -> refuse(Id, Refusal, Revision)
    end.

string(Field, Params) ->
    case Params of
        #{Field := Value} when is_binary(Value) -> {ok, Value};
        #{Field := _} -> {error, mistyped(Field, ~"a string")};
        #{} -> {error, missing(Field)}
    end.

object(Field, Params) ->
    case Params of
        #{Field := Value} when is_map(Value) -> {ok, Value};
        #{Field := _} -> {error, mistyped(Field, ~"an object")};
        #{} -> {ok, #{}}
    end.

-doc """
The error that answers a request of a revision. A session's client is told under 200: to some of
them any other status means that the session or the transport is gone, not that a request failed.
""".
-spec refuse(erlmcp_message:id() | undefined, erlmcp_refusal:refusal(),
             erlmcp_revision:revision()) -> {reply, status(), iodata()}.
refuse(Id, Refusal, Revision) ->
    case erlmcp_revision:era(Revision) of
        session -> {reply, 200, erlmcp_message:error(Id, Refusal)};
        stateless -> refuse(Id, Refusal)
    end.

-doc "The same where no revision is agreed on yet: under the refusal's own HTTP status.".
-spec refuse(erlmcp_message:id() | undefined, erlmcp_refusal:refusal()) ->
    {reply, status(), iodata()}.
refuse(Id, Refusal) ->
    Status = case erlmcp_refusal:retry_after(Refusal) of
        undefined -> erlmcp_refusal:status(Refusal);
        Seconds -> {erlmcp_refusal:status(Refusal), Seconds}
    end,
    {reply, Status, erlmcp_message:error(Id, Refusal)}.

-doc "The refusal for bytes that are no JSON, or more of it than the limits allow.".
-spec unreadable(erlmcp_json:decode_error()) -> erlmcp_refusal:refusal().
unreadable({too_large, Limit, Observed}) ->
    erlmcp_refusal:new(message_too_large, ~"the message is too large",
                       #{limit => Limit, observed => Observed});
unreadable({too_deep, Limit}) ->
    parse_error(~"the message is nested too deep", #{limit => Limit});
unreadable({too_many_keys, Limit}) ->
    parse_error(~"the message has too many object members", #{limit => Limit});
unreadable({number_too_long, Limit}) ->
    parse_error(~"a number has too many digits", #{limit => Limit});
unreadable({duplicate_key, _}) ->
    parse_error(~"an object has the same key twice", #{});
unreadable(_) ->
    parse_error(~"expected JSON in UTF-8", #{}).

parse_error(Message, Details) ->
    erlmcp_refusal:new(protocol_error, Message, Details#{code => -32700, status => 400}).

missing(Field) ->
    erlmcp_refusal:new(missing_required_field, [Field, ~": missing"], #{code => -32602}).

mistyped(Field, Expected) ->
    erlmcp_refusal:new(field_type_mismatch, [Field, ~": expected ", Expected], #{code => -32602}).

no_batches() ->
    erlmcp_refusal:new(protocol_error, ~"batches exist in 2025-03-26 only", #{code => -32600}).

too_many(Count) ->
    erlmcp_refusal:new(protocol_error, ~"too many messages in one batch",
                       #{code => -32600, limit => ?MAX_BATCH, observed => Count}).
