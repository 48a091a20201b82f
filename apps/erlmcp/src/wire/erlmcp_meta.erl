-module(erlmcp_meta).
-moduledoc """
The `_meta` member of a request: the per-request protocol fields of 2026-07-28, and the progress
token that every revision has. Pure.

Source: specification 2026-07-28, "Base protocol / General fields / _meta".

Internal.
""".

-export([is_modern/1, validate/2, validate/3, reusable/1, progress_token/1]).
-export([level/1, level/2, levels/0]).

-export_type([meta/0, level/0, validated/0]).

-type level() :: 0..7.
-type meta() :: #{
    client_capabilities := map(),
    client_info := map() | undefined,
    log_level := level() | undefined
}.

-doc "The outcome of validating a `_meta` object, valid for every request with an equal `_meta`.".
-opaque validated() :: {Version :: binary(), erlmcp_revision:revision(), meta()}.

-define(VERSION, ~"io.modelcontextprotocol/protocolVersion").
-define(INFO, ~"io.modelcontextprotocol/clientInfo").
-define(CAPABILITIES, ~"io.modelcontextprotocol/clientCapabilities").
-define(LOG_LEVEL, ~"io.modelcontextprotocol/logLevel").

-doc """
Returns `true` if a request's parameters name a protocol version in `_meta`, so the request is
stateless.
""".
-spec is_modern(Params :: map()) -> boolean().
is_modern(#{~"_meta" := #{?VERSION := _}}) -> true;
is_modern(_) -> false.

-doc """
Validates the protocol fields of a stateless request. `Header` is the `MCP-Protocol-Version` header:
`undefined` if the HTTP request lacks it, `none` if the transport has no headers.

These checks are made in this order, each with its error code:

1. The header is present (-32020).
2. The required fields are present. The version, the capabilities, the log level and the progress
   token have the right types (-32602).
3. The header equals the body (-32020).
4. The version is supported (-32022).
5. The client's declaration fits the version's schema (-32602).
""".
-spec validate(Params :: map(), Header :: binary() | undefined | none) ->
    {ok, erlmcp_revision:revision(), meta()} | {error, erlmcp_refusal:refusal()}.
validate(_, undefined) ->
    {error, header_mismatch(~"MCP-Protocol-Version: the header is missing")};
validate(#{~"_meta" := #{?VERSION := Version, ?CAPABILITIES := Capabilities} = Meta}, Header) when
    is_binary(Version), is_map(Capabilities)
->
    case {fields(Meta, Capabilities), erlmcp_revision:parse(Version)} of
        {{error, _} = Error, _} ->
            Error;
        {_, _} when Header =/= none, Header =/= Version ->
            {error, header_mismatch([~"MCP-Protocol-Version: the header says ",
                                     erlmcp_printable:quoted(Header), ~", _meta says ",
                                     erlmcp_printable:quoted(Version)])};
        {#{} = Fields, {ok, '2026-07-28' = Revision}} ->
            case declared(Fields, Revision) of
                ok -> {ok, Revision, Fields};
                {error, _} = Error -> Error
            end;
        {_, _} ->
            {error, unsupported(Version)}
    end;
validate(Params, Header) ->
    {error, missing(maps:get(~"_meta", Params, undefined), Header)}.

-doc """
Validates a request as `validate/2` does, and faster with the result of an earlier `reusable/1`. The
third argument is that result for an equal `_meta`, or `none`.
""".
-spec validate(Params :: map(), Header :: binary() | undefined | none, validated() | none) ->
    {ok, erlmcp_revision:revision(), meta()} | {error, erlmcp_refusal:refusal()}.
validate(_, Header, {Version, Revision, Fields}) when Header =:= Version; Header =:= none ->
    {ok, Revision, Fields};
validate(Params, Header, _) -> validate(Params, Header).

-doc """
Validates a `_meta` object for `validate/3`. Returns `none` if a request with that object would be
refused.
""".
-spec reusable(Meta :: map()) -> validated() | none.
reusable(#{} = Meta) ->
    case validate(#{~"_meta" => Meta}, none) of
        {ok, Revision, Fields} -> {map_get(?VERSION, Meta), Revision, Fields};
        {error, _} -> none
    end.

fields(Meta, Capabilities) ->
    maybe
        {ok, _} ?= progress_token(Meta),
        {ok, Level} ?= log_level(Meta),
        #{client_info => maps:get(?INFO, Meta, undefined), client_capabilities => Capabilities,
          log_level => Level}
    end.

declared(#{client_info := Identity, client_capabilities := Capabilities}, Revision) ->
    maybe
        ok ?= identity(Identity, Revision),
        erlmcp_client_declaration:capabilities([~"_meta.", ?CAPABILITIES], Capabilities, Revision)
    end.

%% The specification does not require `clientInfo`.
identity(undefined, _) -> ok;
identity(Identity, Revision) ->
    erlmcp_client_declaration:identity([~"_meta.", ?INFO], Identity, Revision).

log_level(#{?LOG_LEVEL := Name}) -> level([~"_meta.", ?LOG_LEVEL], Name);
log_level(_) -> {ok, undefined}.

-doc """
Returns the progress token of a `_meta` object, which is a string or an integer, or `undefined` if
there is none. Returns a refusal if the token is of another type.
""".
-spec progress_token(Meta :: map()) ->
    {ok, binary() | integer() | undefined} | {error, erlmcp_refusal:refusal()}.
progress_token(#{~"progressToken" := Token}) when is_binary(Token); is_integer(Token) ->
    {ok, Token};
progress_token(#{~"progressToken" := Token}) ->
    {error, erlmcp_params:mistyped(~"_meta.progressToken", ~"a string or an integer", Token)};
progress_token(_) ->
    {ok, undefined}.

-doc """
Returns the severity of RFC 5424 for the name of a log level, from 0 for `emergency` to 7 for
`debug`. Returns the atom `error` for any other term.
""".
-spec level(term()) -> {ok, level()} | error.
level(~"emergency") -> {ok, 0};
level(~"alert") -> {ok, 1};
level(~"critical") -> {ok, 2};
level(~"error") -> {ok, 3};
level(~"warning") -> {ok, 4};
level(~"notice") -> {ok, 5};
level(~"info") -> {ok, 6};
level(~"debug") -> {ok, 7};
level(_) -> error.

-doc """
Converts the name of a log level, the value of the field `Field`, as `level/1` does. If there is no
such level, returns a refusal that names the field. `undefined` is an absent field, which is
refused.
""".
-spec level(Field :: iodata(), term()) -> {ok, level()} | {error, erlmcp_refusal:refusal()}.
level(Field, Name) ->
    case level(Name) of
        {ok, _} = Level ->
            Level;
        error ->
            {error, erlmcp_params:mistyped(Field, levels(), Name)}
    end.

-doc "Returns the names of all log levels as part of a sentence.".
-spec levels() -> binary().
levels() -> ~"debug, info, notice, warning, error, critical, alert or emergency".

missing(#{?VERSION := Version, ?CAPABILITIES := _}, _) when not is_binary(Version) ->
    erlmcp_params:mistyped([~"_meta.", ?VERSION], ~"a string", Version);
missing(#{?VERSION := _, ?CAPABILITIES := Capabilities}, _) ->
    erlmcp_params:mistyped([~"_meta.", ?CAPABILITIES], ~"an object", Capabilities);
missing(#{} = Meta, _) ->
    Keys = [Key || Key <- [?VERSION, ?CAPABILITIES], not is_map_key(Key, Meta)],
    erlmcp_refusal:new(missing_required_field, [~"_meta: missing ", lists:join(~" and ", Keys)],
                       #{code => -32602, status => 400});
missing(undefined, Header) when is_binary(Header) ->
    %% The header may be what is wrong: with an older version in it, the request would belong to a
    %% session.
    erlmcp_refusal:new(missing_required_field,
                       [~"params._meta: missing, and MCP-Protocol-Version says ",
                        erlmcp_printable:quoted(Header)],
                       #{code => -32602});
missing(undefined, _) ->
    erlmcp_params:missing(~"params._meta");
missing(Meta, _) ->
    erlmcp_params:mistyped(~"params._meta", ~"an object", Meta).

header_mismatch(Message) ->
    erlmcp_refusal:new(invalid_header, Message, #{code => -32020, status => 400}).

unsupported(Version) ->
    Supported = erlmcp_revision:supported(stateless),
    erlmcp_refusal:new(invalid_protocol_version,
                       [~"unsupported protocol version ", erlmcp_printable:quoted(Version),
                        ~"; supported: ", lists:join(~", ", Supported)],
                       #{code => -32022, status => 400,
                         data => #{~"supported" => Supported, ~"requested" => Version}}).
