-module(erlmcp_oauth_flow).
-moduledoc """
A flow gets a token, after a challenge or when the token in use expires: discovery, the choice of
scopes, and renewal or login. It runs in a process of its own, since a user may take minutes.

Other clients may share the token store. If one of them has stored newer tokens, a flow ends with
these.

Internal.
""".

-export([start/3]).

-export_type([intent/0, challenge/0, before/0, context/0, result/0, reason/0]).

-doc """
The purpose of a flow.

- `login`: there is no token, or the server does not accept it.
- `step_up`: the token lacks scopes.
- `renew`: the token expires soon, or has expired.
""".
-type intent() :: {login, challenge()} | {step_up, challenge()} | renew.
-doc "The content of a challenge: the URL of the resource's metadata, and the required scopes.".
-type challenge() :: #{metadata := binary() | none, scopes := [binary()]}.
-doc """
The state that a flow starts from. `tokens` and `dpop` are funs, since their values are secret.
`consents` are the hosts that were allowed before, and `reached` is the depth of the outermost
address of the MCP server.
""".
-type before() :: #{
    server_url := binary(),
    settings := erlmcp_oauth_options:settings(),
    tokens := none | fun(() -> erlmcp_oauth_token:tokens()),
    issuer := binary() | none,
    consents := [erlmcp_outbound_hosts:consent()],
    reached := erlmcp_outbound_hosts:depth() | none,
    dpop := fun(() -> erlmcp_dpop:key() | none),
    kept := erlmcp_oauth_credentials:kept()
}.
-doc """
The input of each step of a flow. `tokens` are those from before the flow. `issuer` is the one that
the client's own credentials belong to, if it is known. `registered` reads stored registrations, and
`stored` reads stored tokens. `learned` writes and deletes registrations, and reports an issuer or
the beginning of a login. `fetch` has the hosts that may be called. When a step allows a further
host, the process that started the flow gets a message (`start/3`).
""".
-type context() :: #{
    server_url := binary(),
    settings := erlmcp_oauth_options:settings(),
    fetch := erlmcp_fetch:settings(),
    tokens := erlmcp_oauth_token:tokens() | none,
    issuer := binary() | none,
    dpop := erlmcp_dpop:key() | none,
    registered := fun((Issuer :: binary()) -> {ok, erlmcp_oauth_registration:client()} | none),
    stored := fun(() -> erlmcp_oauth_credentials:stored()),
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

-type result() ::
    {ok, fun(() -> erlmcp_oauth_token:tokens())}
    | {stored, fun(() -> erlmcp_oauth_credentials:stored())}
    | {error, reason() | {crashed, Incident :: binary()}}.

%% Seconds after a refresh within which a refused token cannot simply have expired.
-define(NEW_SECONDS, 30).

-doc """
Starts a flow, in a process linked to the calling one. `Deadline`, in milliseconds of
`erlang:monotonic_time/1`, bounds the requests of the flow and its wait for the redirect. It does
not bound the funs of the options, such as `allow_hosts`, or `browser` if `redirect_uri` is set.

The calling process gets `{learned, Pid, What}` during the flow. `What` is `{issuer, Issuer}` for
the issuer that the client's own credentials belong to, and `{host, Consent}` for a host that was
allowed. It is `login` when a login begins. At the end the process gets `{flow_ended, Pid, Result}`,
in which `Result` is a `t:result/0`. A flow that is killed sends no such message.
""".
-spec start(intent(), before(), Deadline :: integer()) -> pid().
start(Intent, Before, Deadline) ->
    Owner = self(),
    spawn_link(fun() ->
        process_flag(sensitive, true),
        Owner ! {flow_ended, self(), ended(Intent, Before, Deadline, Owner)}
    end).

%% The arguments in the stack of a crash may be secrets, so only functions and lines are logged.
ended(Intent, Before, Deadline, Owner) ->
    try run_unless_stored(Intent, context(Intent, Before, Deadline, Owner)) of
        {ok, Tokens} -> {ok, fun() -> Tokens end};
        {stored, Stored} -> {stored, Stored};
        {error, Reason} -> {error, Reason}
    catch
        Class:Reason:Stack ->
            Incident = erlmcp_incident:log(#{what => authorization_crashed, class => Class,
                                             reason => outline(Reason),
                                             stacktrace => [frame(Entry) || Entry <- Stack]}),
            {error, {crashed, Incident}}
    end.

outline(Reason) when is_atom(Reason) -> Reason;
outline(Reason) when is_tuple(Reason), is_atom(element(1, Reason)) -> element(1, Reason);
outline(_) -> thrown.

frame({Module, Function, Arguments, Location}) when is_list(Arguments) ->
    {Module, Function, length(Arguments), proplists:delete(error_info, Location)};
frame({Module, Function, Arity, Location}) ->
    {Module, Function, Arity, proplists:delete(error_info, Location)}.

context(Intent, #{server_url := Url, settings := #{tls := Tls} = Settings, tokens := Tokens,
                  dpop := Dpop, kept := Kept, consents := Consents,
                  reached := Reached} = Before, Deadline, Owner) ->
    Allowed = fun(Consent) -> learned({host, Consent}, Kept, Owner) end,
    (maps:with([server_url, settings, issuer], Before))#{
        fetch => #{deadline => Deadline, tls => Tls,
                   plain => erlmcp_oauth_url:plain_hosts(Url),
                   hosts => erlmcp_outbound_hosts:new({Url, Reached}, Settings, Consents, Allowed)},
        tokens => usable(Tokens, Intent),
        dpop => Dpop(),
        registered => fun(Issuer) -> erlmcp_oauth_credentials:client(Issuer, Kept) end,
        stored => fun() -> erlmcp_oauth_credentials:tokens(Kept) end,
        learned => fun(What) -> learned(What, Kept, Owner) end
    }.

usable(none, _) -> none;
usable(Tokens, {login, _}) -> refreshable(Tokens());
usable(Tokens, _) -> Tokens().

%% Removes the refresh token if the refused token was refreshed just before: another refresh would
%% not help.
refreshable(#{refreshed_at := At} = Tokens) ->
    case erlang:system_time(second) - At < ?NEW_SECONDS of
        true -> maps:remove(refresh_token, Tokens);
        false -> Tokens
    end;
refreshable(Tokens) ->
    Tokens.

learned({client, Issuer, Client}, Kept, _) ->
    erlmcp_oauth_credentials:keep_client({Issuer, Client}, Kept);
learned({forget, Issuer}, Kept, _) ->
    erlmcp_oauth_credentials:drop_client(Issuer, Kept);
learned(What, _, Owner) ->
    Owner ! {learned, self(), What},
    ok.

run_unless_stored(Intent, Context) ->
    case newer(Context) of
        none -> run(Intent, Context);
        Stored -> Stored
    end.

%% `infinity`, an atom, is greater than any number.
newer(#{tokens := Own, stored := Read}) ->
    case {Own, Read()} of
        {_, none} ->
            none;
        {#{access_token := Token}, {ok, #{access_token := Token}, _}} ->
            none;
        {#{expires_at := Before}, {ok, #{expires_at := End}, _}} when End < Before ->
            none;
        {_, Stored} ->
            {stored, fun() -> Stored end}
    end.

run(renew, #{tokens := #{server := Server} = Tokens} = Context) ->
    case Tokens of
        #{refresh_token := _} ->
            maybe
                {error, Reason} = Error ?= refreshed(Tokens, Context),
                true ?= erlmcp_oauth_token:is_refused(Reason) orelse Error,
                none ?= newer(Context),
                Error
            end;
        #{resource := Resource, requested := Scopes} ->
            Protected = #{resource => Resource, scopes => none, server => Server},
            erlmcp_oauth_grant:tokens(Protected, Scopes, Context)
    end;
run({login, Challenge}, Context) ->
    maybe
        {ok, Protected} ?= located(Challenge, Context),
        again ?= try_refresh(Protected, Context),
        erlmcp_oauth_grant:tokens(Protected, first(Challenge, Protected, Context), Context)
    end;
run({step_up, Challenge}, #{tokens := #{requested := Before}} = Context) ->
    maybe
        {ok, Protected} ?= located(Challenge, Context),
        {ok, Scopes} ?= more(Before, Challenge, Protected, Context),
        erlmcp_oauth_grant:tokens(Protected, Scopes, Context)
    end.

located(#{metadata := Url}, #{server_url := ServerUrl, fetch := Fetch} = Context) ->
    Expected = expected(Context),
    maybe
        {ok, Protected} ?= erlmcp_oauth_discovery:locate(ServerUrl, #{metadata => Url,
                                                                 issuer => chosen(Context)}, Fetch),
        ok ?= bound(Expected, Protected, Context),
        {ok, Protected}
    end.

chosen(#{settings := #{issuer := Issuer}}) -> Issuer;
chosen(#{}) -> none.

expected(#{settings := #{issuer := Issuer}}) -> Issuer;
expected(#{settings := #{client_id := _}, issuer := Issuer}) -> Issuer;
expected(#{}) -> none.

%% Checks that the issuer is the expected one. Credentials that were configured without an issuer
%% belong to the first issuer that they are used with.
bound(none, #{server := #{issuer := Found}}, #{settings := #{client_id := _}} = Context) ->
    (maps:get(learned, Context))({issuer, Found});
bound(none, _, _) ->
    ok;
bound(Expected, #{server := #{issuer := Expected}}, _) ->
    ok;
bound(Expected, #{server := #{issuer := Found}}, _) ->
    {error, {issuer_changed, Expected, Found}}.

%% Refreshes the token, if it belongs to the same issuer and resource. `again` means that there must
%% be a new login: there is no refresh token, or it was refused.
try_refresh(#{server := #{issuer := Issuer} = Server, resource := Resource},
            #{tokens := #{refresh_token := _, server := #{issuer := Issuer},
                          resource := Resource} = Tokens} = Context) ->
    case refreshed(Tokens#{server := Server}, Context) of
        {ok, New} ->
            {ok, New};
        {error, {no_client, _}} ->
            again;
        {error, Reason} = Error ->
            case erlmcp_oauth_token:is_refused(Reason) of
                true -> renewed_by_another(Context);
                false -> Error
            end
    end;
try_refresh(_, _) ->
    again.

renewed_by_another(Context) ->
    case newer(Context) of
        none -> again;
        Stored -> Stored
    end.

refreshed(Tokens, Context) ->
    maybe
        {ok, Client} ?= owner(Tokens, Context),
        erlmcp_oauth_token:refresh(Tokens, Client, Context)
    end.

%% The client that got the token. It need not be the stored one: for another MCP server, a newer
%% client may have been registered with the issuer.
owner(#{client := Client}, _) -> {ok, Client};
owner(#{server := Server}, Context) -> erlmcp_oauth_registration:configured(Server, Context).

first(#{scopes := Challenged}, #{scopes := Supported, server := Server},
      #{settings := #{scope := Configured}} = Context) ->
    Scopes = erlmcp_oauth_scope:first(Challenged, Configured, Supported),
    offline(erlmcp_oauth_scope:union(before(Server, Context), Scopes), Server, Context).

%% Scopes that were requested earlier are requested again, unless it was at another authorization
%% server.
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
