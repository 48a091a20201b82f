-module(erlmcp_oauth_code).
-moduledoc """
Makes the authorization request of a login, and checks the answer. With PKCE (method S256), the
client that redeems a code proves that it has requested the code. Pure, except for random numbers.

Source: specification 2026-07-28, "Authorization Response Validation" and "Authorization Code
Protection"; RFC 7636; RFC 8707; RFC 9207.

Internal.
""".

-export([state/0, pending/5, url/1, code/2, grant/2]).

-export_type([pending/0, reason/0]).

-doc "A login in progress, with the values against which its answer is checked.".
-type pending() :: #{
    protected_resource := erlmcp_oauth_discovery:protected_resource(),
    client_id := binary(),
    redirect_uri := binary(),
    scopes := [binary()],
    state := binary(),
    verifier := binary(),
    jkt := binary() | none
}.
-doc """
The reason for a failed login. `answer` names the wrong part of the URL of the redirect; `refused`
has the error of the authorization server.
""".
-type reason() ::
    {no_authorization_endpoint, Issuer :: binary()}
    | {pkce_not_supported, Issuer :: binary()}
    | {url_not_allowed, binary()}
    | {answer, redirect_uri | query | state | iss_missing | iss | code}
    | {refused, Error :: binary(), Description :: binary() | none}.

-doc "Returns a random `state`, by which the answer to a login is recognised.".
-spec state() -> binary().
state() ->
    erlmcp_base64url:encode(crypto:strong_rand_bytes(24)).

-doc """
Prepares a login at the authorization server of a protected resource, for `url/1`, `code/2` and
`grant/2`. It is an error if the server has no authorization endpoint or no PKCE with S256. It is
also an error if the endpoint's URL is not allowed.
""".
-spec pending(erlmcp_oauth_discovery:protected_resource(),
              {ClientId :: binary(), RedirectUri :: binary()},
              Scopes :: [binary()], State :: binary(), erlmcp_oauth_flow:context()) ->
    {ok, pending()} | {error, reason()}.
pending(#{server := Server} = Protected, {ClientId, RedirectUri}, Scopes, State, Context) ->
    #{fetch := #{plain := Plain}, dpop := Dpop} = Context,
    maybe
        ok ?= possible(Server, Plain),
        {ok, #{protected_resource => Protected, client_id => ClientId, redirect_uri => RedirectUri,
               scopes => Scopes, state => State, verifier => verifier(),
               jkt => thumbprint(Dpop)}}
    end.

%% The PKCE code verifier: 256 random bits in 43 characters, a secret.
verifier() ->
    erlmcp_base64url:encode(crypto:strong_rand_bytes(32)).

challenge(Verifier) ->
    erlmcp_base64url:encode(crypto:hash(sha256, Verifier)).

possible(#{authorization_endpoint := none, issuer := Issuer}, _) ->
    {error, {no_authorization_endpoint, Issuer}};
possible(#{authorization_endpoint := Url, code_challenge_methods := Methods, issuer := Issuer},
         Plain) ->
    case {lists:member(~"S256", Methods), erlmcp_oauth_url:allowed(Url, Plain)} of
        {true, true} -> ok;
        {false, _} -> {error, {pkce_not_supported, Issuer}};
        {true, false} -> {error, {url_not_allowed, Url}}
    end.

thumbprint(none) -> none;
thumbprint(Key) -> erlmcp_dpop:thumbprint(Key).

-doc "Returns the URL of the authorization request, which the browser opens.".
-spec url(pending()) -> binary().
url(#{protected_resource := #{resource := Resource, server := #{authorization_endpoint := Url}},
      client_id := ClientId, redirect_uri := RedirectUri, scopes := Scopes, state := State,
      verifier := Verifier, jkt := Jkt}) ->
    erlmcp_oauth_url:with_query(
        Url,
        [{~"response_type", ~"code"}, {~"client_id", ClientId}, {~"redirect_uri", RedirectUri},
         {~"state", State}, {~"code_challenge", challenge(Verifier)},
         {~"code_challenge_method", ~"S256"}, {~"resource", Resource}]
        ++ [{~"scope", erlmcp_oauth_scope:text(Scopes)} || Scopes =/= []]
        ++ [{~"dpop_jkt", Jkt} || Jkt =/= none]).

-doc """
Returns the code in the URL of the redirect. The answer, even an error, counts only if it has the
`state` of this login. It must also name the issuer that the request was sent to, or no issuer if
the server's metadata does not announce the parameter `iss`.
""".
-spec code(Redirected :: binary(), pending()) -> {ok, binary()} | {error, reason()}.
code(Redirected, #{redirect_uri := RedirectUri, state := State} = Pending) ->
    #{protected_resource := #{server := Server}} = Pending,
    maybe
        true ?= erlmcp_oauth_url:endpoint(Redirected) =:= erlmcp_oauth_url:endpoint(RedirectUri)
            orelse {error, {answer, redirect_uri}},
        {ok, Query} ?= erlmcp_oauth_url:query(Redirected),
        true ?= is_state(Query, State) orelse {error, {answer, state}},
        ok ?= issuer(Query, Server),
        answered(Query)
    else
        {error, invalid_url} -> {error, {answer, query}};
        {error, _} = Error -> Error
    end.

is_state(#{~"state" := Found}, State) when byte_size(Found) =:= byte_size(State) ->
    crypto:hash_equals(Found, State);
is_state(_, _) ->
    false.

%% Issuers are compared as strings, without normalisation.
issuer(#{~"iss" := Issuer}, #{issuer := Issuer}) -> ok;
issuer(#{~"iss" := _}, _) -> {error, {answer, iss}};
issuer(#{}, #{iss := true}) -> {error, {answer, iss_missing}};
issuer(#{}, _) -> ok.

answered(#{~"error" := _} = Query) ->
    {error, {refused, erlmcp_oauth_token:error_text(~"error", Query),
             erlmcp_oauth_token:error_text(~"error_description", Query)}};
answered(#{~"code" := Code}) when Code =/= ~"" ->
    {ok, Code};
answered(_) ->
    {error, {answer, code}}.

-doc "Returns the form parameters with which the code is redeemed at the token endpoint.".
-spec grant(Code :: binary(), pending()) -> [{binary(), binary()}].
grant(Code, #{redirect_uri := RedirectUri, verifier := Verifier}) ->
    [{~"grant_type", ~"authorization_code"}, {~"code", Code}, {~"redirect_uri", RedirectUri},
     {~"code_verifier", Verifier}].
