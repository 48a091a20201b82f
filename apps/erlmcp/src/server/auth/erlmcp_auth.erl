-module(erlmcp_auth).
-moduledoc """
Who asks, and what he may: the identity of an HTTP request, as the listener's `authenticate` says
it. It is asked once for each request, before the request's body is read.

A principal is any term that means the same client each time: sessions, sealed state and the lists
of what only some may see belong to the principal that they were made for, compared by `=:=`. What
changes while a client stays the same (a token, its expiry) has no place in it.

Source: specification 2026-07-28, "Authorization", and "Security Best Practices / Session
Hijacking".

Internal.
""".

-export([identity/3, anonymous/0, guarded/2, bad_return/1, unavailable/1, died/1]).

-export_type([principal/0, identity/0]).

-type principal() :: erlmcp:principal().
-doc """
Who asks, and which scopes the request has. `claims` is what its token says beside, and `expires_at`
the second of system time from which it is good no more: a stream that is open then ends.
""".
-type identity() :: #{
    principal := principal(),
    scopes := erlmcp:scopes(),
    claims => map(),
    expires_at => integer() | infinity,
    dpop_nonce => binary()
}.

-doc "The identity of those that nobody asked.".
-spec anonymous() -> identity().
anonymous() ->
    #{principal => anonymous, scopes => all}.

-doc """
The identity of a request, or its refusal: 401 where `authenticate` refuses. Where it crashes, or
gives what is neither, it is 500; the log has the place of the crash, and nothing of the request,
whose headers are secrets. `Key` is that of the server that is asked, as elsewhere here.
""".
-spec identity(erlmcp_listen:ask(), erlmcp_listen:request(), Key :: reference()) ->
    {ok, identity()} | {error, erlmcp_refusal:refusal()}.
identity(Authenticate, #{headers := Headers} = Request, Key) ->
    case guarded(fun() -> Authenticate(Request) end, Key) of
        {ok, {ok, Principal}} ->
            {ok, #{principal => Principal, scopes => all}};
        {ok, {ok, Principal, #{} = More}} ->
            case maps:fold(fun is_known/3, true, More) of
                true -> {ok, maps:merge(#{scopes => all}, More#{principal => Principal})};
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

is_known(scopes, all, Good) -> Good;
is_known(scopes, Scopes, Good) -> Good andalso erlmcp_scope:are_scopes(Scopes);
is_known(claims, Claims, Good) -> Good andalso is_map(Claims);
is_known(expires_at, Second, Good) -> Good andalso (is_integer(Second) orelse Second =:= infinity);
is_known(_, _, _) -> false.

-doc "The refusal of a request where nobody said in time who asks.".
-spec unavailable(Milliseconds :: pos_integer()) -> erlmcp_refusal:refusal().
unavailable(Milliseconds) ->
    erlmcp_refusal:new(dependency_unavailable, ~"who asks was not found out in time",
                       #{limit => Milliseconds, retry_after_ms => 1000}).

-doc "The refusal of a request where the process that was to say who asks died without a word.".
-spec died(Key :: reference()) -> erlmcp_refusal:refusal().
died(Key) ->
    failed(died, [], Key).

refused(Reason, #{~"authorization" := _}) -> erlmcp_refusal:new(auth_invalid_credentials, Reason);
refused(Reason, _) -> erlmcp_refusal:new(auth_missing, Reason).

-doc """
What a fun of the user's gives that is asked who asks; where it crashes, 500, and the log has the
place and nothing of what it was given.
""".
-spec guarded(fun(() -> Result), Key :: reference()) ->
    {ok, Result} | {error, erlmcp_refusal:refusal()}.
guarded(Fun, Key) ->
    try Fun() of
        Result -> {ok, Result}
    catch
        _:Reason:Stack -> {error, failed(outline(Reason), Stack, Key)}
    end.

-doc "The refusal where such a fun gives what it may not.".
-spec bad_return(Key :: reference()) -> erlmcp_refusal:refusal().
bad_return(Key) ->
    failed(bad_return, [], Key).

failed(Reason, Stack, Key) ->
    Incident = erlmcp_incident:log(#{what => authenticate_failed, reason => Reason,
                                     stacktrace => [place(Entry) || Entry <- Stack]}, Key),
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
