-module(erlmcp_oauth_flight).
-moduledoc """
A flow in a process of its own, linked to its starter. The starter gets `{learned, Pid, {issuer,
Issuer} | {host, Consent} | login}` during the flow, and `{landed, Pid, Result}` at its end. Tokens
are in a fun, so that no message prints them. A crash is an ordinary result.

Internal.
""".

-export([start/3]).

-export_type([before/0, result/0]).

-doc """
The state before a flow. `tokens` and `dpop` are funs, since their values are secret; `consents` are
the hosts that were allowed.
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
-type result() ::
    {ok, fun(() -> erlmcp_oauth_token:tokens())}
    | {error, erlmcp_oauth_flow:reason() | {crashed, Incident :: binary()}}.

%% A token that is refused so soon after its refresh has not just expired.
-define(NEW_SECONDS, 30).

-doc "Starts the flow. `Deadline` is in milliseconds of `erlang:monotonic_time/1`.".
-spec start(erlmcp_oauth_flow:intent(), before(), Deadline :: integer()) -> pid().
start(Intent, Before, Deadline) ->
    Owner = self(),
    spawn_link(fun() ->
        process_flag(sensitive, true),
        Owner ! {landed, self(), flown(Intent, Before, Deadline, Owner)}
    end).

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
        known => fun(Issuer) -> erlmcp_oauth_credentials:client(Issuer, Kept) end,
        learned => fun(What) -> learned(What, Kept, Owner) end
    }.

usable(none, _) -> none;
usable(Tokens, {login, _}) -> refreshable(Tokens());
usable(Tokens, _) -> Tokens().

%% The server does not accept a token that was just refreshed, so another refresh would not help.
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

%% The arguments in the stack of a crash may be secrets, so only its places are logged.
flown(Intent, Before, Deadline, Owner) ->
    try erlmcp_oauth_flow:run(Intent, context(Intent, Before, Deadline, Owner)) of
        {ok, Tokens} -> {ok, fun() -> Tokens end};
        {error, Reason} -> {error, Reason}
    catch
        Class:Reason:Stack ->
            Incident = erlmcp_incident:log(#{what => authorization_crashed, class => Class,
                                             reason => outline(Reason),
                                             stacktrace => [place(Entry) || Entry <- Stack]}),
            {error, {crashed, Incident}}
    end.

outline(Reason) when is_atom(Reason) -> Reason;
outline(Reason) when is_tuple(Reason), is_atom(element(1, Reason)) -> element(1, Reason);
outline(_) -> thrown.

place({Module, Function, Arguments, Location}) when is_list(Arguments) ->
    {Module, Function, length(Arguments), proplists:delete(error_info, Location)};
place({Module, Function, Arity, Location}) ->
    {Module, Function, Arity, proplists:delete(error_info, Location)}.
