-module(erlmcp_auth).
-moduledoc """
Who asks: the principal of an HTTP request, as the listener's `authenticate` says it. It is asked
once for each request, in the connection's process and before the request's body is read.

A principal is any term that means the same client each time: sessions, sealed state and the lists
of what only some may see belong to the principal that they were made for, compared by `=:=`. What
changes while a client stays the same (a token, its expiry) has no place in it.

Source: specification 2026-07-28, "Authorization", and "Security Best Practices / Session
Hijacking".
""".

-export([principal/2, guarded/1, bad_return/0, challenge/1]).

-export_type([principal/0, authenticate/0, request/0]).

-doc "Who asks; `anonymous` where nobody is asked.".
-type principal() :: term().
-doc """
The head of an HTTP request. Header names are in lower case; `path` is without a query.
`certificate` is the client's (DER), where TLS asked for one and the client has one.
""".
-type request() :: #{
    method := binary(),
    path := binary(),
    headers := #{binary() => binary()},
    peer := {inet:ip_address(), inet:port_number()},
    tls := boolean(),
    certificate => public_key:der_encoded()
}.
-doc """
Says who asks, or why the request is refused: `Reason` is a sentence in UTF-8 that the client is
shown. It runs in the connection's process, which waits for it, so it looks up and does not call.
""".
-type authenticate() :: fun((request()) -> {ok, principal()} | {error, Reason :: binary()}).

-doc """
The principal of a request, or its refusal: 401 where `authenticate` refuses. Where it crashes, or
gives what is neither, it is 500; the log has the place of the crash, and nothing of the request,
whose headers are secrets.
""".
-spec principal(authenticate(), request()) ->
    {ok, principal()} | {error, erlmcp_refusal:refusal()}.
principal(Authenticate, #{headers := Headers} = Request) ->
    case guarded(fun() -> Authenticate(Request) end) of
        {ok, {ok, Principal}} ->
            {ok, Principal};
        {ok, {error, Reason}} when is_binary(Reason) ->
            case unicode:characters_to_binary(Reason) of
                Reason -> {error, refused(Reason, Headers)};
                _ -> {error, bad_return()}
            end;
        {ok, _} ->
            {error, bad_return()};
        {error, Refusal} ->
            {error, Refusal}
    end.

refused(Reason, #{~"authorization" := _}) -> erlmcp_refusal:new(auth_invalid_credentials, Reason);
refused(Reason, _) -> erlmcp_refusal:new(auth_missing, Reason).

-doc """
What a fun of the user's gives that is asked who asks; where it crashes, 500, and the log has the
place and nothing of what it was given.
""".
-spec guarded(fun(() -> Result)) -> {ok, Result} | {error, erlmcp_refusal:refusal()}.
guarded(Fun) ->
    try Fun() of
        Result -> {ok, Result}
    catch
        _:Reason:Stack -> {error, failed(outline(Reason), Stack)}
    end.

-doc "The refusal where such a fun gives what it may not.".
-spec bad_return() -> erlmcp_refusal:refusal().
bad_return() ->
    failed(bad_return, []).

failed(Reason, Stack) ->
    Incident = erlmcp_incident:log(#{what => authenticate_failed, reason => Reason,
                                     stacktrace => [place(Entry) || Entry <- Stack]}),
    erlmcp_refusal:new(internal_error, ~"internal error", #{code => -32603, incident => Incident}).

%% What kind of error, without the value it was made with.
outline(Reason) when is_atom(Reason) -> Reason;
outline(Reason) when is_tuple(Reason), is_atom(element(1, Reason)) -> element(1, Reason);
outline(_) -> thrown.

%% Arguments stand in the place of the arity of a function that had no clause for them.
place({Module, Function, Arguments, Location}) when is_list(Arguments) ->
    {Module, Function, length(Arguments), Location};
place(Entry) ->
    Entry.

-doc """
The `WWW-Authenticate` header of a refusal under status 401. As RFC 6750 has it, the error is named
to those who brought credentials.
""".
-spec challenge(erlmcp_refusal:refusal()) -> binary().
challenge(Refusal) ->
    case erlmcp_refusal:name(Refusal) of
        auth_missing -> ~"Bearer";
        _ -> ~"Bearer error=\"invalid_token\""
    end.
