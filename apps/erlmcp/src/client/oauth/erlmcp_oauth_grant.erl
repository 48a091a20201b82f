-module(erlmcp_oauth_grant).
-moduledoc """
Gets tokens by a grant: a login of the user, or one of the grants without a user. It runs in the
calling process. Only the configured grant is tried.

Sources: specification 2026-07-28, "Authorization"; the extensions OAuth Client Credentials,
Enterprise-Managed Authorization and Workload Identity Federation; RFC 7523; RFC 8693.

Internal.
""".

-export([tokens/3]).

-define(TOKEN_TYPE, "urn:ietf:params:oauth:token-type:").
-define(JWT_BEARER, ~"urn:ietf:params:oauth:grant-type:jwt-bearer").

-doc """
Gets tokens with `Scopes` for a protected resource, by the grant in the settings. The errors are
those of `t:erlmcp_oauth_flow:reason/0`.
""".
-spec tokens(erlmcp_oauth_discovery:protected_resource(), Scopes :: [binary()],
             erlmcp_oauth_flow:context()) ->
    {ok, erlmcp_oauth_token:tokens()} | {error, erlmcp_oauth_flow:reason()}.
tokens(Protected, Scopes, #{settings := #{grant := authorization_code}} = Context) ->
    login(Protected, Scopes, Context);
tokens(#{server := Server} = Protected, Scopes, Context) ->
    #{settings := #{grant := Kind}, learned := Learned} = Context,
    maybe
        {ok, Client} ?= erlmcp_oauth_registration:configured(Server, Context),
        ok = Learned(login),
        {ok, Grant} ?= grant(Kind, Protected, Scopes, Context),
        erlmcp_oauth_token:request(Grant ++ scope(Scopes), Scopes, Client, Protected, Context)
    end.

scope([]) -> [];
scope(Scopes) -> [{~"scope", erlmcp_oauth_scope:text(Scopes)}].

grant(client_credentials, _, _, _) ->
    {ok, [{~"grant_type", ~"client_credentials"}]};
grant(jwt_bearer, #{server := #{issuer := Issuer}}, _, #{settings := #{assertion := Source}}) ->
    maybe
        {ok, Assertion} ?= assertion(Source, Issuer),
        {ok, [{~"grant_type", ?JWT_BEARER}, {~"assertion", Assertion}]}
    end;
grant(enterprise, Protected, Scopes, #{settings := #{idp := Idp}} = Context) ->
    maybe
        {ok, Assertion} ?= identity_assertion(Idp, Protected, Scopes, Context),
        {ok, [{~"grant_type", ?JWT_BEARER}, {~"assertion", Assertion}]}
    end.

assertion(Source, _) when is_binary(Source) -> {ok, Source};
assertion(Source, Issuer) -> secret(Source(Issuer)).

secret({ok, Text}) when is_binary(Text) -> {ok, Text};
secret({error, Reason}) -> {error, {secret, Reason}}.

identity_assertion(#{token_endpoint := Url, id_token := Source} = Idp,
                   #{resource := Resource, server := #{issuer := Issuer}}, Scopes, Context) ->
    maybe
        {ok, IdToken} ?= id_token(Source),
        Form = [{~"grant_type", ~"urn:ietf:params:oauth:grant-type:token-exchange"},
                {~"requested_token_type", <<?TOKEN_TYPE "id-jag">>},
                {~"audience", Issuer},
                {~"resource", Resource},
                {~"subject_token", IdToken},
                {~"subject_token_type", <<?TOKEN_TYPE "id_token">>}],
        erlmcp_oauth_token:exchange(Url, Form ++ scope(Scopes), at_provider(Idp),
                                    provider_context(Context))
    end.

id_token(Source) when is_binary(Source) -> {ok, Source};
id_token(Source) -> secret(Source()).

at_provider(#{client_id := Id, client_secret := Secret}) ->
    #{client_id => Id, client_secret => Secret, auth => client_secret_basic};
at_provider(#{client_id := Id}) ->
    #{client_id => Id, auth => none}.

%% The context for calls of the identity provider. The user has named it, so all of its addresses
%% are allowed.
provider_context(#{fetch := Fetch} = Context) ->
    Context#{fetch := (maps:remove(hosts, Fetch))#{plain := [loopback]}}.

login(_, _, #{settings := #{browser := none}}) ->
    {error, {browser, none}};
%% With a configured redirect URI, the fun `browser` of the user waits for the browser; otherwise a
%% listener on the loopback does.
login(Protected, Scopes, #{settings := #{redirect_uri := Uri, browser := Browser}} = Context) ->
    maybe
        {ok, Client, Pending} ?=
            begin_login(Protected, Uri, Scopes, erlmcp_oauth_code:state(), Context),
        {ok, Redirected} ?= sent(Browser(erlmcp_oauth_code:url(Pending))),
        redeemed(Redirected, Client, Pending, Context)
    end;
login(Protected, Scopes, #{fetch := #{deadline := Deadline}} = Context) ->
    State = erlmcp_oauth_code:state(),
    Reference = make_ref(),
    AuthorizeUrl = fun(RedirectUri) ->
        case begin_login(Protected, RedirectUri, Scopes, State, Context) of
            {ok, Client, Pending} ->
                self() ! {Reference, Client, Pending},
                erlmcp_oauth_code:url(Pending);
            {error, Reason} ->
                throw({Reference, Reason})
        end
    end,
    try erlmcp_loopback:login(AuthorizeUrl, listener(State, Protected, Context), Deadline) of
        {ok, Redirected, _} ->
            receive
                {Reference, Client, Pending} -> redeemed(Redirected, Client, Pending, Context)
            end;
        {error, timeout} ->
            {error, timeout};
        {error, Reason} ->
            {error, {browser, Reason}}
    catch
        throw:{Reference, Reason} -> {error, Reason}
    end.

%% A registration can be reused with the same redirect URI, so its port is preferred. A server that
%% does not accept another port (against RFC 8252, 7.3) would tell only the user.
listener(State, #{server := Server}, #{settings := Settings} = Context) ->
    Given = (maps:get(loopback, Settings, #{}))#{state => State},
    Options = maps:merge(Given, #{open => Browser || #{browser := Browser} <- [Settings]}),
    maybe
        {ok, Uri} ?= erlmcp_oauth_registration:redirect_uri(Server, Context),
        {ok, {_, _, Port}} ?= erlmcp_oauth_url:origin(Uri),
        Options#{wanted => Port}
    else
        _ -> Options
    end.

sent({ok, Redirected}) when is_binary(Redirected) -> {ok, Redirected};
sent({error, Reason}) -> {error, {browser, Reason}};
sent(_) -> {error, {browser, no_answer}}.

begin_login(#{server := Server} = Protected, RedirectUri, Scopes, State, Context) ->
    #{learned := Learned} = Context,
    maybe
        ok ?= browsed(Server, Context),
        {ok, #{client_id := Id} = Client} ?=
            erlmcp_oauth_registration:client(Server, RedirectUri, Context),
        {ok, Pending} ?=
            erlmcp_oauth_code:pending(Protected, {Id, RedirectUri}, Scopes, State, Context),
        ok = Learned(login),
        {ok, Client, Pending}
    end.

%% Checks the authorization endpoint. Later the browser looks up the host itself, and the user sees
%% where it leads.
browsed(#{authorization_endpoint := none}, _) -> ok;
browsed(#{authorization_endpoint := Url, issuer := Issuer}, #{fetch := Fetch}) ->
    erlmcp_outbound_hosts:endpoint(Url, Issuer, Fetch).

redeemed(Redirected, Client, Pending, Context) ->
    #{protected_resource := Protected, scopes := Scopes} = Pending,
    maybe
        {ok, Code} ?= erlmcp_oauth_code:code(Redirected, Pending),
        Grant = erlmcp_oauth_code:grant(Code, Pending),
        erlmcp_oauth_token:request(Grant, Scopes, Client, Protected, Context)
    end.
