-module(erlmcp_oauth_flow).
-moduledoc """
From a challenge to a token: where it is to be had, whether the one we have can be renewed, what to
ask for. It runs in the process that asks, which may take as long as a user does.

The metadata of the resource is read at each challenge, since its authorization server may be
another one now; what belonged to the one before is not shown to it.

Internal.
""".

-export([run/2]).

-export_type([intent/0, challenge/0, context/0, reason/0]).

-doc """
- `login`: there is no token, or it is not accepted (any more).
- `step_up`: it is not enough.
- `renew`: it ends.
""".
-type intent() :: {login, challenge()} | {step_up, challenge()} | renew.
-doc "What a challenge says: the URL of the resource's metadata, and scopes.".
-type challenge() :: #{metadata := binary() | none, scopes := [binary()]}.
-doc """
What a flow knows. `tokens` are those of before. `issuer` is the one that the client's own
credentials are for, if that is known. `known` and `learned` read and write what was registered;
`learned` is told, too, when a login begins.
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
        again ?= kept(Place, Context),
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

%% Credentials that do not say whose they are belong to the first issuer that they were used with.
bound(none, #{server := #{issuer := Found}}, #{settings := #{client_id := _}} = Context) ->
    (maps:get(learned, Context))({issuer, Found});
bound(none, _, _) ->
    ok;
bound(Expected, #{server := #{issuer := Expected}}, _) ->
    ok;
bound(Expected, #{server := #{issuer := Found}}, _) ->
    {error, {issuer_changed, Expected, Found}}.

%% A refresh token goes to who issued it. Refused, it is worth nothing, and the login begins anew.
kept(#{server := #{issuer := Issuer} = Server, resource := Resource},
     #{tokens := #{refresh_token := _, server := #{issuer := Issuer},
                   resource := Resource} = Tokens} = Context) ->
    case refreshed(Tokens#{server := Server}, Context) of
        {ok, New} -> {ok, New};
        {error, {token_refused, Status, _, _}} when Status < 500 -> again;
        {error, {no_client, _}} -> again;
        {error, _} = Error -> Error
    end;
kept(_, _) ->
    again.

refreshed(Tokens, Context) ->
    maybe
        {ok, Client} ?= owner(Tokens, Context),
        erlmcp_oauth_token:refresh(Tokens, Client, Context)
    end.

%% A client may have registered itself again since, for another server of the same issuer.
owner(#{client := Client}, _) -> {ok, Client};
owner(#{server := Server}, Context) -> erlmcp_oauth_registration:configured(Server, Context).

first(#{scopes := Challenged}, #{scopes := Supported, server := Server},
      #{settings := #{scope := Configured}} = Context) ->
    Scopes = erlmcp_oauth_scope:first(Challenged, Configured, Supported),
    offline(erlmcp_oauth_scope:union(before(Server, Context), Scopes), Server, Context).

%% What was asked for before stays, unless that was of another authorization server.
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
