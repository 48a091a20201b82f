-module(erlmcp_oauth_code).
-moduledoc """
The authorization request of a login, and the check of its answer. A proof (PKCE, with the method
S256) shows that the client that asked for a code redeems it. Pure, except for chance.

Source: specification 2026-07-28, "Authorization Response Validation" and "Authorization Code
Protection"; RFC 7636; RFC 8707; RFC 9207.

Internal.
""".

-export([state/0, pending/5, url/1, code/2, grant/2]).

-export_type([pending/0, reason/0]).

-doc "A login in progress, with the values that its answer is checked against.".
-type pending() :: #{
    place := erlmcp_oauth_discovery:place(),
    client_id := binary(),
    redirect_uri := binary(),
    scopes := [binary()],
    state := binary(),
    verifier := binary(),
    jkt := binary() | none
}.
-doc """
The reason for a failed login. `answer` names the wrong part of the URL that the browser came back
to; `refused` has the error of the authorization server.
""".
-type reason() ::
    {no_authorization_endpoint, Issuer :: binary()}
    | {pkce_not_supported, Issuer :: binary()}
    | {url_not_allowed, binary()}
    | {answer, redirect_uri | query | state | iss_missing | iss | code}
    | {refused, Error :: binary(), Description :: binary() | none}.

-doc "Returns a random state. An answer without it does not belong to this login.".
-spec state() -> binary().
state() ->
    erlmcp_base64url:encode(crypto:strong_rand_bytes(24)).

-doc "Begins a login at the authorization server `Server`, by a client with `RedirectUri`.".
-spec pending(erlmcp_oauth_discovery:place(), Client :: {binary(), RedirectUri :: binary()},
              Scopes :: [binary()], State :: binary(), erlmcp_oauth_flow:context()) ->
    {ok, pending()} | {error, reason()}.
pending(#{server := Server} = Place, {ClientId, RedirectUri}, Scopes, State, Context) ->
    #{fetch := #{plain := Plain}, dpop := Dpop} = Context,
    maybe
        ok ?= possible(Server, Plain),
        {ok, #{place => Place, client_id => ClientId, redirect_uri => RedirectUri,
               scopes => Scopes, state => State, verifier => verifier(),
               jkt => thumbprint(Dpop)}}
    end.

%% 43 characters of 256 random bits, a secret.
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

-doc "Returns the URL that the user is sent to.".
-spec url(pending()) -> binary().
url(#{place := #{resource := Resource, server := #{authorization_endpoint := Url}},
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
Returns the code in the URL that the browser returned to. The answer, even an error, counts only if
its state is the login's and its issuer the one that the user was sent to.
""".
-spec code(Redirected :: binary(), pending()) -> {ok, binary()} | {error, reason()}.
code(Redirected, #{redirect_uri := RedirectUri, state := State, place := #{server := Server}}) ->
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

%% Simple string comparison, without normalisation.
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

-doc "Returns the form parameters that redeem a code.".
-spec grant(Code :: binary(), pending()) -> [{binary(), binary()}].
grant(Code, #{redirect_uri := RedirectUri, verifier := Verifier}) ->
    [{~"grant_type", ~"authorization_code"}, {~"code", Code}, {~"redirect_uri", RedirectUri},
     {~"code_verifier", Verifier}].
