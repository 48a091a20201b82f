-module(erlmcp_oauth_options).
-moduledoc "The option `auth` of a client: one map, checked once when the client starts. Pure.".

-export([check/1]).

-export_type([options/0, settings/0, grant/0, secret/0]).

-doc """
The way to a token.

- `authorization_code`: a user logs in with a browser (the default).
- `client_credentials`: the client itself, by `client_secret` or `key`.
- `enterprise`: the user's identity token is exchanged at the `idp` of their organisation.
- `jwt_bearer`: the `assertion` of a workload's identity.
""".
-type grant() :: authorization_code | client_credentials | enterprise | jwt_bearer.
-doc "A secret, or a fun that returns it, called whenever the secret is sent.".
-type secret() :: binary() | fun(() -> {ok, binary()} | {error, term()}).
-doc """
The options of `auth`.

- `grant`: see `t:grant/0`.
- `client_id`, `client_secret`: those of a client that is registered already. Its credentials go to
  the `issuer` and nowhere else; by default that is the first issuer that the MCP server names.
- `key`, `algorithm`: a private key (PEM) and its JWS algorithm (`ES256`), in place of a secret.
- `client_metadata_url`: the https URL of the client's metadata document, which is its id at
  authorization servers that read such documents.
- `client_name`: the name of a client that has to register itself.
- `browser`: sends the user to a URL; by default with the machine's own browser. A listener on the
  loopback waits for the answer: `loopback` has its options, see `m:erlmcp_loopback`. With `none` a
  login fails, and stored tokens are used and renewed.
- `redirect_uri`: the URL that the browser is sent back to, if another program waits there. Then
  `browser` is required and returns `{ok, Url}`, the URL that the browser came back to.
- `scope`: scopes to ask for in addition to those of a challenge, and in place of those of the
  metadata.
- `assertion`: the JWT of `jwt_bearer`; a fun gets the issuer that it is for.
- `idp`: for `enterprise`, the identity provider's `token_endpoint`, the `client_id` there, its
  `client_secret` if it has one, and the user's `id_token`.
- `dpop`: whether tokens are bound to a key of this client (RFC 9449).
- `store`: where registrations and tokens are kept, a module with `-behaviour(erlmcp_token_store)`;
  by default in memory, as long as the client lives.
- `allow_hosts`: hosts that a login may lead to, outside of the issuer's origin or further inside
  than the MCP server. A fun may decide instead, see `t:erlmcp_outbound_hosts:allow/0`. By default
  there are none.
- `tls`: options of TLS with the authorization server.
- `login_timeout`: milliseconds that a user has for a login (300,000).
""".
-type options() :: #{
    grant => grant(),
    client_id => binary(),
    client_secret => secret(),
    issuer => binary(),
    key => secret(),
    algorithm => binary(),
    client_metadata_url => binary(),
    client_name => binary(),
    redirect_uri => binary(),
    loopback => #{port => inet:port_number(), path => binary(), host => binary(),
                  say => fun((Url :: binary()) -> term())},
    browser => none | fun((Url :: binary()) -> ok | {ok, binary()} | {error, term()}),
    scope => binary(),
    assertion => binary() | fun((Issuer :: binary()) -> {ok, binary()} | {error, term()}),
    idp => #{token_endpoint := binary(), client_id := binary(), client_secret => secret(),
             id_token := secret()},
    dpop => boolean(),
    store => {module(), term()},
    allow_hosts => erlmcp_outbound_hosts:allow(),
    tls => [ssl:tls_client_option()],
    login_timeout => pos_integer()
}.
-doc "The options with their defaults.".
-type settings() :: #{
    grant := grant(), client_name := binary(), scope := [binary()], dpop := boolean(),
    store := {module(), term()}, allow_hosts := erlmcp_outbound_hosts:allow(), tls := list(),
    login_timeout := pos_integer(), algorithm := binary(), atom() => term()
}.

-define(DEFAULTS, #{
    grant => authorization_code, client_name => ~"erlmcp", scope => ~"", dpop => false,
    store => {erlmcp_token_store_ets, #{}}, allow_hosts => [], tls => [],
    login_timeout => 300_000, algorithm => ~"ES256"
}).

-doc "Checks the options. An error names the option and the expected values, and never its value.".
-spec check(options() | term()) ->
    {ok, settings()} | {error, {bad_option, Key :: term(), Expected :: binary()}}.
check(#{} = Options) ->
    maybe
        ok ?= each(maps:to_list(Options)),
        #{scope := Scope} = Settings = maps:merge(?DEFAULTS, Options),
        ok ?= together(Settings),
        {ok, Settings#{scope := erlmcp_oauth_scope:parse(Scope)}}
    end;
check(_) ->
    {error, {bad_option, auth, ~"a map"}}.

each([]) -> ok;
each([{Key, Value} | Options]) ->
    case option(Key, Value) of
        true -> each(Options);
        Expected -> {error, {bad_option, Key, Expected}}
    end.

option(grant, Value) ->
    lists:member(Value, [authorization_code, client_credentials, enterprise, jwt_bearer])
        orelse ~"authorization_code, client_credentials, enterprise or jwt_bearer";
option(client_id, Value) ->
    is_text(Value) orelse ~"a binary that is not empty";
option(client_secret, Value) ->
    is_secret(Value) orelse ~"a binary that is not empty, or a fun without arguments";
option(issuer, Value) ->
    is_url(Value, [loopback]) orelse ~"the https URL of an authorization server";
option(key, Value) ->
    is_secret(Value) orelse ~"a private key in PEM, or a fun without arguments";
option(algorithm, Value) ->
    lists:member(Value, [~"ES256", ~"RS256", ~"PS256", ~"EdDSA"])
        orelse ~"ES256, RS256, PS256 or EdDSA";
option(client_metadata_url, Value) ->
    is_url(Value, []) andalso has_path(Value) orelse ~"an https URL with a path";
option(client_name, Value) ->
    is_text(Value) orelse ~"a binary that is not empty";
option(redirect_uri, Value) ->
    is_url(Value, [loopback]) orelse ~"an https URL, or http on the loopback";
option(loopback, Value) ->
    is_map(Value) andalso maps:keys(maps:without([port, path, host, say], Value)) =:= []
        orelse ~"a map of port, path, host and say";
option(browser, Value) ->
    Value =:= none orelse is_function(Value, 1) orelse ~"a fun of a URL, or none";
option(scope, Value) ->
    is_scope(Value) orelse ~"scopes with a space between them";
option(assertion, Value) ->
    is_text(Value) orelse is_function(Value, 1) orelse ~"a JWT, or a fun of an issuer";
option(idp, Value) ->
    is_provider(Value) orelse
        ~"a map of token_endpoint, client_id and id_token, and client_secret if there is one";
option(dpop, Value) ->
    is_boolean(Value) orelse ~"true or false";
option(store, {Module, _}) when is_atom(Module) ->
    true;
option(store, _) ->
    ~"{Module, Options}";
option(allow_hosts, Value) ->
    is_function(Value, 1) orelse is_list(Value) andalso lists:all(fun is_host/1, Value)
        orelse ~"a list of hosts, in lower case and without a port, or a fun of a question";
option(tls, Value) ->
    is_list(Value) orelse ~"a list of options of ssl";
option(login_timeout, Value) ->
    is_integer(Value) andalso Value > 0 orelse ~"milliseconds, at least 1";
option(_, _) ->
    ~"an option of auth".

%% The options that one option requires.
together(#{grant := client_credentials} = Settings) ->
    case Settings of
        #{client_id := _, client_secret := _} -> ok;
        #{client_id := _, key := _} -> ok;
        #{client_id := _} -> missing(client_secret, ~"client_credentials wants it, or a key");
        #{} -> missing(client_id, ~"client_credentials wants it")
    end;
together(#{grant := enterprise} = Settings) ->
    case Settings of
        #{client_id := _, idp := _} -> ok;
        #{client_id := _} -> missing(idp, ~"enterprise wants it");
        #{} -> missing(client_id, ~"enterprise wants it")
    end;
together(#{grant := jwt_bearer} = Settings) ->
    case Settings of
        #{client_id := _, assertion := _} -> ok;
        #{client_id := _} -> missing(assertion, ~"jwt_bearer wants it");
        #{} -> missing(client_id, ~"jwt_bearer wants it")
    end;
together(#{redirect_uri := _} = Settings) when not is_map_key(browser, Settings) ->
    missing(browser, ~"redirect_uri wants it");
together(#{client_secret := _} = Settings) when not is_map_key(client_id, Settings) ->
    missing(client_id, ~"client_secret wants it");
together(#{}) ->
    ok.

missing(Key, Expected) ->
    {error, {bad_option, Key, Expected}}.

is_text(Value) -> is_binary(Value) andalso Value =/= ~"".

%% A host as in a URL.
is_host(Value) ->
    is_text(Value) andalso lists:any(fun(Authority) ->
        Url = <<"https://", Authority/binary>>,
        erlmcp_oauth_url:origin(Url) =:= {ok, {~"https", Value, 443}}
    end, [Value, <<"[", Value/binary, "]">>]).

is_secret(Value) -> is_text(Value) orelse is_function(Value, 0).

is_url(Value, Plain) -> is_binary(Value) andalso erlmcp_oauth_url:allowed(Value, Plain).

has_path(Url) ->
    #{path := Path} = uri_string:parse(Url),
    not lists:member(Path, [~"", ~"/"]).

is_provider(#{token_endpoint := Url, client_id := Id, id_token := Token} = Idp) ->
    is_url(Url, [loopback]) andalso is_text(Id) andalso is_secret(Token)
        andalso is_secret(maps:get(client_secret, Idp, ~"none"))
        andalso maps:keys(maps:without([token_endpoint, client_id, id_token, client_secret],
                                       Idp)) =:= [];
is_provider(_) ->
    false.

is_scope(Value) ->
    is_binary(Value)
        andalso erlmcp_oauth_scope:text(erlmcp_oauth_scope:parse(Value)) =:= Value.
