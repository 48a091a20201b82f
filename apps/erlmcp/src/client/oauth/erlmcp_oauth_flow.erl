-module(erlmcp_oauth_flow).
-moduledoc """
The way from a challenge to a token: discovery, renewal or login, and the choice of scopes. It runs
in the process that asks, for as long as a user takes.

The metadata of the resource is read at each challenge, since the authorization server may have
changed. Credentials of the old one are not shown to the new one.

Internal.
""".

-export([run/2]).

-export_type([intent/0, challenge/0, context/0, reason/0]).

-doc """
The purpose of a flow.

- `login`: there is no token, or it is not accepted (any more).
- `step_up`: the token's scopes are not enough.
- `renew`: the token ends soon.
""".
-type intent() :: {login, challenge()} | {step_up, challenge()} | renew.
-doc "The content of a challenge: the URL of the resource's metadata, and scopes.".
-type challenge() :: #{metadata := binary() | none, scopes := [binary()]}.
-doc """
The input of a flow. `tokens` are the previous ones. `issuer` is the one that the client's own
credentials belong to, if known. `known` and `learned` read and write registrations; `learned` is
also called when a login begins.
""".
-type context() :: #{
    server_url := binary(),
    settings := erlmcp_oauth_options:settings(),
    fetch := erlmcp_fetch:settings(),
    tokens := erlmcp_oauth_token:tokens() | none,
    issuer := binary() | none,
    dpop := erlmcp_dpop:key() | none,
    known := fun((Issuer :: binary()) -> {ok, erlmcp_oauth_registration:client()} | none),
    learned := fun(({client, Issuer :: binary(), erlmcp_oauth_registration:client()}
                    | {forget, Issuer :: binary()}
                    | {issuer, binary()}
                    | login) -> ok)
}.
-type reason() ::
    erlmcp_oauth_discovery:reason()
    | erlmcp_oauth_registration:reason()
    | erlmcp_oauth_code:reason()
    | erlmcp_oauth_token:reason()
    | {browser, term()}
    | {insufficient_scope, [binary()]}
    | {issuer_changed, Expected :: binary(), Found :: binary()}.

-doc "Runs a flow to its end.".
-spec run(intent(), context()) -> {ok, erlmcp_oauth_token:tokens()} | {error, reason()}.
run(renew, #{tokens := #{server := Server} = Tokens} = Context) ->
    case Tokens of
        #{refresh_token := _} ->
            refreshed(Tokens, Context);
        #{resource := Resource, requested := Scopes} ->
            Place = #{resource => Resource, scopes => none, server => Server},
            erlmcp_oauth_grant:tokens(Place, Scopes, Context)
    end;
run({login, Challenge}, Context) ->
    maybe
        {ok, Place} ?= located(Challenge, Context),
        again ?= try_refresh(Place, Context),
        erlmcp_oauth_grant:tokens(Place, first(Challenge, Place, Context), Context)
    end;
run({step_up, Challenge}, #{tokens := #{requested := Before}} = Context) ->
    maybe
        {ok, Place} ?= located(Challenge, Context),
        {ok, Scopes} ?= more(Before, Challenge, Place, Context),
        erlmcp_oauth_grant:tokens(Place, Scopes, Context)
    end.

located(#{metadata := Url}, #{server_url := ServerUrl, fetch := Fetch} = Context) ->
    Expected = expected(Context),
    maybe
        {ok, Place} ?= erlmcp_oauth_discovery:locate(ServerUrl, #{metadata => Url,
                                                                 issuer => chosen(Context)}, Fetch),
        ok ?= bound(Expected, Place, Context),
        {ok, Place}
    end.

chosen(#{settings := #{issuer := Issuer}}) -> Issuer;
chosen(#{}) -> none.

expected(#{settings := #{issuer := Issuer}}) -> Issuer;
expected(#{settings := #{client_id := _}, issuer := Issuer}) -> Issuer;
expected(#{}) -> none.

%% Credentials without an issuer belong to the first issuer that they were used with.
bound(none, #{server := #{issuer := Found}}, #{settings := #{client_id := _}} = Context) ->
    (maps:get(learned, Context))({issuer, Found});
bound(none, _, _) ->
    ok;
bound(Expected, #{server := #{issuer := Expected}}, _) ->
    ok;
bound(Expected, #{server := #{issuer := Found}}, _) ->
    {error, {issuer_changed, Expected, Found}}.

%% A refresh token goes to its issuer only. A refused one is worthless, and the login begins anew.
try_refresh(#{server := #{issuer := Issuer} = Server, resource := Resource},
            #{tokens := #{refresh_token := _, server := #{issuer := Issuer},
                          resource := Resource} = Tokens} = Context) ->
    case refreshed(Tokens#{server := Server}, Context) of
        {ok, New} -> {ok, New};
        {error, {token_refused, Status, _, _}} when Status < 500 -> again;
        {error, {no_client, _}} -> again;
        {error, _} = Error -> Error
    end;
try_refresh(_, _) ->
    again.

refreshed(Tokens, Context) ->
    maybe
        {ok, Client} ?= owner(Tokens, Context),
        erlmcp_oauth_token:refresh(Tokens, Client, Context)
    end.

%% The client of the token, since another server of the same issuer may have registered a newer one.
owner(#{client := Client}, _) -> {ok, Client};
owner(#{server := Server}, Context) -> erlmcp_oauth_registration:configured(Server, Context).

first(#{scopes := Challenged}, #{scopes := Supported, server := Server},
      #{settings := #{scope := Configured}} = Context) ->
    Scopes = erlmcp_oauth_scope:first(Challenged, Configured, Supported),
    offline(erlmcp_oauth_scope:union(before(Server, Context), Scopes), Server, Context).

%% Earlier scopes are asked for again, unless they were another authorization server's.
before(#{issuer := Issuer}, #{tokens := #{server := #{issuer := Issuer}, requested := Before}}) ->
    Before;
before(_, _) ->
    [].

more(Before, #{scopes := Challenged}, #{scopes := Supported, server := Server}, Context) ->
    case erlmcp_oauth_scope:more(Before, Challenged, Supported) of
        {ok, Scopes} -> {ok, offline(Scopes, Server, Context)};
        none -> {error, {insufficient_scope, Challenged}}
    end.

offline(Scopes, #{scopes := Offered}, #{settings := #{grant := authorization_code}}) ->
    erlmcp_oauth_scope:offline(Scopes, Offered);
offline(Scopes, _, _) ->
    Scopes.
