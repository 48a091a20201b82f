-module(erlmcp_oauth_options).
-moduledoc """
Checks the option `auth` of a client, a map, when the client starts. Pure.

Internal.
""".

-export([check/1]).

-export_type([settings/0]).

-doc "The checked options, with the defaults of those that were left out.".
-type settings() :: #{
    grant := erlmcp_oauth:grant(), client_name := binary(), scope := [binary()], dpop := boolean(),
    store := {module(), term()}, allow_hosts := erlmcp_oauth:allow_hosts(), tls := list(),
    login_timeout := pos_integer(), algorithm := binary(), atom() => term()
}.

-define(DEFAULTS, #{
    grant => authorization_code, client_name => ~"erlmcp", scope => ~"", dpop => false,
    store => {erlmcp_token_store_ets, #{}}, allow_hosts => [], tls => [],
    login_timeout => 300_000, algorithm => ~"ES256"
}).

-doc """
Checks the options. The error names the option and the expected values, but never has the value,
which may be a secret.
""".
-spec check(erlmcp_oauth:options() | term()) ->
    {ok, settings()} | {error, {bad_option, Key :: term(), Expected :: binary()}}.
check(#{} = Options) ->
    maybe
        ok ?= erlmcp_client_options:first_wrong(Options, fun option/2),
        #{scope := Scope} = Settings = maps:merge(?DEFAULTS, Options),
        ok ?= together(Settings),
        {ok, Settings#{scope := erlmcp_oauth_scope:parse(Scope)}}
    end;
check(_) ->
    {error, {bad_option, auth, ~"a map"}}.

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
        andalso erlmcp_loopback:check(Value) =:= ok
        orelse ~"a map of port, path, host (127.0.0.1 or localhost) and say, a fun of a URL";
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
    is_function(Value, 1) orelse erlmcp_user_term:is_list_of(fun is_host/1, Value)
        orelse ~"a list of hosts, in lower case and without a port, or a fun of a question";
option(tls, Value) ->
    erlmcp_user_term:is_proper_list(Value) orelse ~"a list of options of ssl";
option(login_timeout, Value) ->
    erlmcp_user_term:check_wait(Value);
option(_, _) ->
    ~"an option of auth".

%% Checks that the options which another option requires are there.
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

%% A host as in a URL, in lower case and without a port.
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
