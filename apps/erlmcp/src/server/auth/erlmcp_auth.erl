-module(erlmcp_auth).
-moduledoc """
The identity of an HTTP request, as the listener's `authenticate` returns it. `authenticate` is
called at most once for a request, before the request's body is read.

A principal is a term that identifies a client. Principals are compared by `=:=`, so a principal
must not contain values that change for the same client, such as a token or its expiry.

Source: specification 2026-07-28, "Authorization", and "Security Best Practices / Session
Hijacking".

Internal.
""".

-export([identity/3, anonymous/0, own_principal/1]).
-export([run_guarded/2, bad_return/1, unavailable/1, died/1]).

-export_type([principal/0, identity/0]).

-type principal() :: erlmcp:principal().
-doc """
The principal and the scopes of a request. `claims` are further claims about the client. The
identity is invalid from `expires_at` on, in seconds of system time. If `expires_at` is absent or
`infinity`, the identity stays valid. `scheme` is the token's scheme in `Authorization`, and
`dpop_nonce` a new nonce for the client. Only `m:erlmcp_bearer` sets these two.
""".
-type identity() :: #{
    principal := principal(),
    scopes := erlmcp:scopes(),
    claims => map(),
    expires_at => integer() | infinity,
    scheme => bearer | dpop,
    dpop_nonce => binary()
}.

-doc "Returns the identity of requests that need no authentication: `anonymous`, with all scopes.".
-spec anonymous() -> identity().
anonymous() ->
    #{principal => anonymous, scopes => all}.

-doc """
Returns a copy of a principal, for a process or table that keeps the principal after its request. A
principal is often a part of the request's head, and would keep the whole head in memory.
""".
-spec own_principal(principal()) -> principal().
own_principal(anonymous) -> anonymous;
own_principal(Principal) when is_binary(Principal) -> binary:copy(Principal);
own_principal(Principal) -> binary_to_term(term_to_binary(Principal)).

-doc """
Returns the identity of a request, or its refusal. The refusal is a 401 if `Authenticate` refuses
the request or returns an `expires_at` that has passed. It is a 500, with an incident in the log, if
`Authenticate` crashes or returns an invalid term. `Key` is the key of the server.
""".
-spec identity(erlmcp_listen:ask(), erlmcp_listen:request(), Key :: reference()) ->
    {ok, identity()} | {error, erlmcp_refusal:refusal()}.
identity(Authenticate, #{headers := Headers} = Request, Key) ->
    case run_guarded(fun() -> Authenticate(Request) end, Key) of
        {ok, {ok, Principal}} ->
            {ok, #{principal => Principal, scopes => all}};
        {ok, {ok, Principal, #{} = More}} ->
            case maps:fold(fun is_valid/3, true, More) of
                true -> unexpired(maps:merge(#{scopes => all}, More#{principal => Principal}));
                false -> {error, bad_return(Key)}
            end;
        {ok, {error, Reason}} when is_binary(Reason) ->
            case unicode:characters_to_binary(Reason) of
                Reason -> {error, refused(Reason, Headers)};
                _ -> {error, bad_return(Key)}
            end;
        {ok, _} ->
            {error, bad_return(Key)};
        {error, Refusal} ->
            {error, Refusal}
    end.

unexpired(#{expires_at := Second} = Identity) when is_integer(Second) ->
    case erlang:system_time(second) < Second of
        true -> {ok, Identity};
        false -> {error, erlmcp_refusal:new(auth_expired, ~"the credentials have expired")}
    end;
unexpired(Identity) ->
    {ok, Identity}.

is_valid(scopes, all, Good) -> Good;
is_valid(scopes, Scopes, Good) -> Good andalso erlmcp_scope:are_scopes(Scopes);
is_valid(claims, Claims, Good) -> Good andalso is_map(Claims);
is_valid(expires_at, Second, Good) -> Good andalso (is_integer(Second) orelse Second =:= infinity);
is_valid(_, _, _) -> false.

-doc "Returns the refusal of a request that was not authenticated within `Milliseconds`: 503.".
-spec unavailable(Milliseconds :: pos_integer()) -> erlmcp_refusal:refusal().
unavailable(Milliseconds) ->
    erlmcp_refusal:new(dependency_unavailable, ~"the request was not authenticated in time",
                       #{limit => Milliseconds, retry_after_ms => 1000}).

-doc """
Returns the refusal of a request whose authenticating process died: 500. Logs an incident. `Key` is
the key of the server.
""".
-spec died(Key :: reference()) -> erlmcp_refusal:refusal().
died(Key) ->
    failed(died, [], Key).

refused(Reason, #{~"authorization" := _}) -> erlmcp_refusal:new(auth_invalid_credentials, Reason);
refused(Reason, _) -> erlmcp_refusal:new(auth_missing, Reason).

-doc """
Runs `Fun`, which calls an authentication fun of the user. Returns the result of `Fun` as
`{ok, Result}`. If `Fun` crashes, returns the refusal, a 500, and logs an incident. The incident has
no arguments, since these may be secrets. `Key` is the key of the server.
""".
-spec run_guarded(Fun :: fun(() -> Result), Key :: reference()) ->
    {ok, Result} | {error, erlmcp_refusal:refusal()}.
run_guarded(Fun, Key) ->
    try Fun() of
        Result -> {ok, Result}
    catch
        _:Reason:Stack -> {error, failed(outline(Reason), Stack, Key)}
    end.

-doc """
Returns the refusal for an invalid return value of an authentication fun: 500. Logs an incident.
`Key` is the key of the server.
""".
-spec bad_return(Key :: reference()) -> erlmcp_refusal:refusal().
bad_return(Key) ->
    failed(bad_return, [], Key).

failed(Reason, Stack, Key) ->
    Outline = erlmcp_incident:outline(Reason, Stack),
    Incident = erlmcp_incident:log(Outline#{what => authenticate_failed}, Key),
    erlmcp_refusal:new(internal_error, ~"internal error", #{code => -32603, incident => Incident}).

%% The kind of an error, without the value it was made with.
outline(Reason) when is_atom(Reason) -> Reason;
outline(Reason) when is_tuple(Reason), is_atom(element(1, Reason)) -> element(1, Reason);
outline(_) -> thrown.
