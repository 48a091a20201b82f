-module(erlmcp_oauth_registration).
-moduledoc """
The identity of the client at an authorization server. The first of these counts: a client that the
user has registered, the URL of the client's metadata document, or a dynamic registration. The URL
counts only if the server reads such documents. The functions run in the calling process.

Source: specification 2026-07-28, "Client Registration"; RFC 7591.

Internal.
""".

-export([client/3, configured/2, redirect_uri/2]).

-export_type([client/0, reason/0]).

-doc """
A client of one authorization server. `auth` is how it authenticates itself at the token endpoint. A
dynamically registered client has its `redirect_uri`, and `expires_at` if its secret expires, in
seconds of system time.
""".
-type client() :: #{
    client_id := binary(),
    auth := none | client_secret_basic | client_secret_post | private_key_jwt,
    client_secret => erlmcp_oauth:secret(),
    redirect_uri => binary(),
    expires_at => integer()
}.
-type reason() ::
    erlmcp_fetch:reason()
    | {no_client, Issuer :: binary()}
    | {client_auth_not_supported, [binary()]}
    | {registration_refused, Status :: pos_integer(), Error :: binary() | none,
       Description :: binary() | none}.

-doc """
Returns the client for a login that redirects to `RedirectUri`. It is the client that the options
give, or else the stored one. The stored client counts only if it has this URI, and if its secret
has not expired. Without a client, the function registers one, and stores it. The errors are those
of `t:reason/0`.
""".
-spec client(erlmcp_oauth_discovery:server(), RedirectUri :: binary(),
             erlmcp_oauth_flow:context()) ->
    {ok, client()} | {error, reason()}.
client(#{issuer := Issuer} = Server, RedirectUri, Context) ->
    case set(Server, Context) of
        none ->
            case stored_client(Issuer, Context) of
                {ok, #{redirect_uri := RedirectUri} = Client} -> {ok, Client};
                _ -> register(Server, RedirectUri, Context)
            end;
        Set ->
            Set
    end.

-doc """
Returns the redirect URI of the client that was registered dynamically with the server. Returns
`none` if there is no such client in the store, or if its secret has expired.
""".
-spec redirect_uri(erlmcp_oauth_discovery:server(), erlmcp_oauth_flow:context()) ->
    {ok, binary()} | none.
redirect_uri(#{issuer := Issuer}, Context) ->
    case stored_client(Issuer, Context) of
        {ok, #{redirect_uri := Uri}} -> {ok, Uri};
        _ -> none
    end.

-doc """
Returns the client that needs no dynamic registration with an authorization server. It is the one
that the user has registered or, if the server reads metadata documents, that of the client's
document. Without either, the error is `{no_client, Issuer}`. It is `{client_auth_not_supported,
Methods}` if the server accepts no method by which the client can authenticate itself.
""".
-spec configured(erlmcp_oauth_discovery:server(), erlmcp_oauth_flow:context()) ->
    {ok, client()} | {error, reason()}.
configured(#{issuer := Issuer} = Server, Context) ->
    case set(Server, Context) of
        none -> {error, {no_client, Issuer}};
        Set -> Set
    end.

set(#{auth_methods := Methods}, #{settings := #{client_id := Id} = Settings}) ->
    authenticated(Settings, Methods, #{client_id => Id});
set(#{client_metadata := true, auth_methods := Methods},
    #{settings := #{client_metadata_url := Url} = Settings}) ->
    %% A public document has no secret, but it may name a key.
    authenticated(maps:without([client_secret], Settings), Methods, #{client_id => Url});
set(_, _) ->
    none.

authenticated(#{key := _}, Methods, Client) ->
    case lists:member(~"private_key_jwt", Methods) of
        true -> {ok, Client#{auth => private_key_jwt}};
        false -> {error, {client_auth_not_supported, Methods}}
    end;
authenticated(#{client_secret := Secret}, Methods, Client) ->
    case with_secret(Methods) of
        none -> {error, {client_auth_not_supported, Methods}};
        Method -> {ok, Client#{auth => Method, client_secret => Secret}}
    end;
authenticated(_, _, Client) ->
    {ok, Client#{auth => none}}.

with_secret(Methods) ->
    first_of([client_secret_basic, client_secret_post], Methods).

first_of(Preferred, Methods) ->
    case [Method || Method <- Preferred, lists:member(atom_to_binary(Method), Methods)] of
        [Method | _] -> Method;
        [] -> none
    end.

stored_client(Issuer, #{registered := Registered}) ->
    case Registered(Issuer) of
        {ok, #{expires_at := Until} = Client} ->
            case Until > erlang:system_time(second) of
                true -> {ok, Client};
                false -> none
            end;
        Other ->
            Other
    end.

register(#{registration_endpoint := none, issuer := Issuer}, _, _) ->
    {error, {no_client, Issuer}};
register(#{registration_endpoint := Url, issuer := Issuer, auth_methods := Methods}, RedirectUri,
         #{settings := Settings, fetch := Fetch, learned := Learned}) ->
    Method = first_of([none, client_secret_basic, client_secret_post], Methods),
    maybe
        ok ?= erlmcp_outbound_hosts:endpoint(Url, Issuer, Fetch),
        {ok, Answer} ?= erlmcp_fetch:post_json(Url, document(Method, RedirectUri, Settings), Fetch),
        {ok, Registered} ?= registered(Answer, Method),
        Client = Registered#{redirect_uri => RedirectUri},
        ok = Learned({client, Issuer, Client}),
        {ok, Client}
    end.

document(Method, RedirectUri, #{client_name := Name, dpop := Dpop}) ->
    Document = #{
        ~"client_name" => Name,
        ~"redirect_uris" => [RedirectUri],
        ~"application_type" => application_type(RedirectUri),
        ~"grant_types" => [~"authorization_code", ~"refresh_token"],
        ~"response_types" => [~"code"],
        ~"token_endpoint_auth_method" => atom_to_binary(Method)
    },
    case Dpop of
        true -> Document#{~"dpop_bound_access_tokens" => true};
        false -> Document
    end.

%% A client with a redirect to the loopback is a native application.
application_type(RedirectUri) ->
    {ok, {_, Host, _}} = erlmcp_oauth_url:origin(RedirectUri),
    case erlmcp_oauth_url:loopback(Host) of
        true -> ~"native";
        false -> ~"web"
    end.

registered(#{status := Status, json := {ok, #{~"client_id" := Id} = Document}}, Method)
  when Status =:= 201 orelse Status =:= 200, is_binary(Id), Id =/= ~"" ->
    Client = maps:merge(#{client_id => Id}, expiry(Document)),
    case {given_method(Document, Method), Document} of
        {none, _} ->
            {ok, Client#{auth => none}};
        {Given, #{~"client_secret" := Secret}} when Given =/= unknown, is_binary(Secret) ->
            {ok, Client#{auth => Given, client_secret => Secret}};
        _ ->
            refused(Status, Document)
    end;
registered(#{status := Status, json := {ok, #{} = Document}}, _) ->
    refused(Status, Document);
registered(#{status := Status}, _) ->
    refused(Status, #{}).

given_method(#{~"token_endpoint_auth_method" := ~"none"}, _) -> none;
given_method(#{~"token_endpoint_auth_method" := ~"client_secret_basic"}, _) -> client_secret_basic;
given_method(#{~"token_endpoint_auth_method" := ~"client_secret_post"}, _) -> client_secret_post;
given_method(#{~"token_endpoint_auth_method" := _}, _) -> unknown;
given_method(#{}, Method) -> Method.

expiry(#{~"client_secret_expires_at" := Until}) when is_integer(Until), Until > 0 ->
    #{expires_at => Until};
expiry(_) ->
    #{}.

refused(Status, Document) ->
    {error, {registration_refused, Status, erlmcp_oauth_token:error_text(~"error", Document),
             erlmcp_oauth_token:error_text(~"error_description", Document)}}.
