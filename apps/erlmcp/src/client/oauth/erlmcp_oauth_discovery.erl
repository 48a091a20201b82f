-module(erlmcp_oauth_discovery).
-moduledoc """
Finds the authorization server of an MCP server. It reads the metadata of the protected resource
(RFC 9728), and then that of the authorization server (RFC 8414, OpenID Connect Discovery). It runs
in the calling process.

An MCP server without resource metadata is one of 2025-03-26. It is its own authorization server,
unless the user has configured an issuer.

Source: specification 2026-07-28, "Authorization Server Discovery"; 2025-03-26, "Authorization".

Internal.
""".

-export([locate/3]).

-export_type([protected_resource/0, server/0, reason/0]).

-doc """
A protected resource, which is the MCP server, with the authorization server that issues its tokens.
`resource` is byte for byte the value in the resource's metadata. Without metadata, it is the
canonical URL of the MCP server. `scopes` are the scopes in the metadata, or `none` if it has no
such member.
""".
-type protected_resource() :: #{
    resource := binary(),
    scopes := [binary()] | none,
    server := server()
}.
-doc """
The members of an authorization server's metadata that the client uses. `auth_methods` are those of
the token endpoint. `client_metadata` is `true` if the server reads metadata documents of clients,
and `iss` is `true` if the redirect of a login names the issuer.
""".
-type server() :: #{
    issuer := binary(),
    authorization_endpoint := binary() | none,
    token_endpoint := binary(),
    registration_endpoint := binary() | none,
    scopes := [binary()],
    code_challenge_methods := [binary()],
    auth_methods := [binary()],
    client_metadata := boolean(),
    iss := boolean()
}.
-type reason() ::
    erlmcp_fetch:reason()
    | {metadata, Url :: binary(), Why :: atom() | {status, pos_integer()} | {member, binary()}}
    | {resource_mismatch, binary()}
    | {issuer_mismatch, Expected :: binary(), Found :: binary()}
    | {issuer_not_offered, binary(), [binary()]}
    | {no_metadata, Issuer :: binary()}.

-define(LIST, 200).

-doc """
Finds the protected resource and the authorization server of an MCP server. `metadata` is the URL in
the challenge, at which the resource must have metadata. With `none`, the well-known URLs are tried.
`issuer` is the authorization server that the user has configured, and that metadata must offer.
With `none`, the server is the first one that the metadata offers or, without metadata, the MCP
server itself. The errors are those of `t:reason/0`.
""".
-spec locate(ServerUrl :: binary(), #{metadata := binary() | none, issuer := binary() | none},
             erlmcp_fetch:settings()) ->
    {ok, protected_resource()} | {error, reason()}.
locate(ServerUrl, #{metadata := Named, issuer := Issuer}, Settings) ->
    maybe
        {ok, Resource} ?= resource(ServerUrl, Named, Settings),
        with_server(Resource, ServerUrl, Issuer, Settings)
    end.

with_server(none, ServerUrl, Issuer, Settings) ->
    maybe
        {ok, Own} ?= set_or_own(Issuer, ServerUrl, Settings),
        {ok, Canonical} ?= erlmcp_oauth_url:canonical(ServerUrl),
        {ok, #{resource => Canonical, scopes => none, server => Own}}
    end;
with_server(#{resource := Resource, servers := Issuers, scopes := Scopes}, _, Issuer, Settings) ->
    maybe
        {ok, Chosen} ?= chosen(Issuer, Issuers),
        {ok, Server} ?= server(Chosen, Settings),
        {ok, #{resource => Resource, scopes => Scopes, server => Server}}
    end.

chosen(none, [First | _]) -> {ok, First};
chosen(Issuer, Issuers) ->
    case lists:member(Issuer, Issuers) of
        true -> {ok, Issuer};
        false -> {error, {issuer_not_offered, Issuer, Issuers}}
    end.

%% Metadata whose URL the challenge names must exist; metadata at a well-known URL may be missing.
resource(ServerUrl, none, Settings) ->
    probed(erlmcp_oauth_url:resource_metadata(ServerUrl), ServerUrl, Settings);
resource(ServerUrl, Named, Settings) ->
    maybe
        {ok, Document} ?= named(Named, Settings),
        resource_document(Document, Named, ServerUrl)
    end.

probed([], _, _) ->
    {ok, none};
probed([Url | Urls], ServerUrl, Settings) ->
    maybe
        {ok, Document} ?= looked_for(Url, Settings),
        resource_document(Document, Url, ServerUrl)
    else
        missing -> probed(Urls, ServerUrl, Settings);
        {error, _} = Error -> Error
    end.

resource_document(Document, Url, ServerUrl) ->
    maybe
        {ok, Resource} ?= member(~"resource", Document, Url, fun is_binary/1),
        ok ?= matches(Resource, ServerUrl),
        {ok, Servers} ?= member(~"authorization_servers", Document, Url, fun is_filled/1),
        {ok, Scopes} ?= optional(~"scopes_supported", Document, Url, fun are_texts/1, none),
        {ok, #{resource => Resource, servers => Servers, scopes => Scopes}}
    end.

matches(Resource, ServerUrl) ->
    case erlmcp_oauth_url:within(ServerUrl, Resource) of
        true -> ok;
        false -> {error, {resource_mismatch, Resource}}
    end.

%% Reads the metadata of the authorization server with an issuer.
server(Issuer, #{plain := Plain} = Settings) ->
    maybe
        true ?= erlmcp_oauth_url:allowed(Issuer, Plain) orelse {error, {url_not_allowed, Issuer}},
        {ok, Server} ?= described(Issuer, Settings),
        usable(Server, Settings)
    else
        missing -> {error, {no_metadata, Issuer}};
        {error, _} = Error -> Error
    end.

%% Checks that the token endpoint may be called, before a user logs in.
usable(#{token_endpoint := Url, issuer := Issuer} = Server, Settings) ->
    maybe
        ok ?= erlmcp_outbound_hosts:endpoint(Url, Issuer, Settings),
        {ok, Server}
    end.

described(Issuer, Settings) ->
    described(erlmcp_oauth_url:server_metadata(Issuer), Issuer, Settings).

described([], _, _) ->
    missing;
described([Url | Urls], Issuer, Settings) ->
    maybe
        {ok, Document} ?= looked_for(Url, Settings),
        server_document(Document, Url, Issuer)
    else
        missing -> described(Urls, Issuer, Settings);
        {error, _} = Error -> Error
    end.

set_or_own(none, ServerUrl, Settings) ->
    own_server(erlmcp_oauth_url:under_origin(ServerUrl, ~""), Settings);
set_or_own(Issuer, _, Settings) ->
    server(Issuer, Settings).

own_server(Origin, Settings) ->
    case described(Origin, Settings) of
        missing -> {ok, default_server(Origin)};
        {ok, Server} -> usable(Server, Settings);
        {error, _} = Error -> Error
    end.

%% The default endpoints of 2025-03-26, in which all servers have PKCE and dynamic registration.
default_server(Origin) ->
    #{issuer => Origin,
      authorization_endpoint => <<Origin/binary, "/authorize">>,
      token_endpoint => <<Origin/binary, "/token">>,
      registration_endpoint => <<Origin/binary, "/register">>,
      scopes => [], code_challenge_methods => [~"S256"], auth_methods => [~"none"],
      client_metadata => false, iss => false}.

server_document(Document, Url, Issuer) ->
    Text = fun is_binary/1,
    Texts = fun are_texts/1,
    Truth = fun is_boolean/1,
    maybe
        {ok, Found} ?= member(~"issuer", Document, Url, Text),
        true ?= Found =:= Issuer orelse {error, {issuer_mismatch, Issuer, Found}},
        {ok, Token} ?= member(~"token_endpoint", Document, Url, Text),
        {ok, Authorize} ?= optional(~"authorization_endpoint", Document, Url, Text, none),
        {ok, Register} ?= optional(~"registration_endpoint", Document, Url, Text, none),
        {ok, Scopes} ?= optional(~"scopes_supported", Document, Url, Texts, []),
        {ok, Pkce} ?= optional(~"code_challenge_methods_supported", Document, Url, Texts, []),
        {ok, Methods} ?= optional(~"token_endpoint_auth_methods_supported", Document, Url, Texts,
                                  [~"client_secret_basic"]),
        {ok, Cimd} ?= optional(~"client_id_metadata_document_supported", Document, Url, Truth,
                               false),
        {ok, Iss} ?= optional(~"authorization_response_iss_parameter_supported", Document, Url,
                              Truth, false),
        {ok, #{issuer => Issuer, authorization_endpoint => Authorize, token_endpoint => Token,
               registration_endpoint => Register, scopes => Scopes,
               code_challenge_methods => Pkce, auth_methods => Methods,
               client_metadata => Cimd, iss => Iss}}
    end.

named(Url, Settings) ->
    case erlmcp_fetch:get_json(Url, Settings) of
        {ok, #{status := 200, json := {ok, #{} = Document}}} -> {ok, Document};
        {ok, #{status := 200}} -> {error, {metadata, Url, not_json}};
        {ok, #{status := Status}} -> {error, {metadata, Url, {status, Status}}};
        {error, _} = Error -> Error
    end.

%% Some web servers answer every path with an HTML page and status 200, which counts as missing
%% metadata.
looked_for(Url, Settings) ->
    case erlmcp_fetch:get_json(Url, Settings) of
        {ok, #{status := 200, json := {ok, #{} = Document}}} -> {ok, Document};
        {ok, #{status := 200}} -> missing;
        {ok, #{status := Status}} when Status >= 400, Status < 500 -> missing;
        {ok, #{status := Status}} -> {error, {metadata, Url, {status, Status}}};
        {error, _} = Error -> Error
    end.

member(Name, Document, Url, Check) ->
    case Document of
        #{Name := Value} -> checked(Check(Value), Value, Name, Url);
        #{} -> {error, {metadata, Url, {member, Name}}}
    end.

optional(Name, Document, Url, Check, Default) ->
    case Document of
        #{Name := null} -> {ok, Default};
        #{Name := Value} -> checked(Check(Value), Value, Name, Url);
        #{} -> {ok, Default}
    end.

checked(true, Value, _, _) -> {ok, Value};
checked(false, _, Name, Url) -> {error, {metadata, Url, {member, Name}}}.

are_texts(Value) ->
    is_list(Value) andalso length(Value) =< ?LIST andalso lists:all(fun is_binary/1, Value).

is_filled(Value) ->
    are_texts(Value) andalso Value =/= [].
