-module(erlmcp_token_claims).
-moduledoc """
Checks the claims of an access token, and derives the client's identity from them. The claims are
those of a JWT, or of the answer to an introspection. Pure.

Sources: RFC 9068, sections 2.2 and 4; RFC 7519, section 4.1; RFC 7662, section 2.2; RFC 8707.

Internal.
""".

-export([check/2, principal/2, identity/3, confirmation/1]).

-export_type([claims/0, wanted/0, confirmation/0, reason/0]).

-type claims() :: #{binary() => erlmcp_json:json_term()}.
-doc """
The required claims. `issuer` must have issued the token, for at least one `audience`. `now` is in
seconds of system time, and clocks may differ by `leeway` seconds. With `introspected` the issuer
and the times may be missing, since the authorization server has checked them.
""".
-type wanted() :: #{issuer := binary(), audience := [binary(), ...], now := integer(),
                    leeway := non_neg_integer(), introspected := boolean()}.
-doc """
The bindings of a token (`cnf`): the thumbprints of a key, of a certificate, of both or of neither.
`unknown` stands for a binding of another kind.
""".
-type confirmation() :: [{jkt | certificate, binary()}] | unknown.
-type reason() :: issuer | expiry | expired | not_yet | issued_at | audience | no_subject.

%% The latest end of a token: the end of the year 9999.
-define(LAST, 253_402_300_799).

-doc """
Checks the claims. The reason of an error says which claim is missing or wrong. `expiry` means that
`exp` is missing or not a number, and `expired` that its time has passed. `not_yet` is about `nbf`.
`no_subject` means that `sub` is empty or not a string; it may be missing.
""".
-spec check(claims(), wanted()) -> ok | {error, reason()}.
check(Claims, #{issuer := Issuer, now := Now, leeway := Leeway} = Wanted) ->
    #{introspected := Introspected, audience := Accepted} = Wanted,
    maybe
        true ?= one_is(~"iss", Claims, Introspected, fun(Value) -> Value =:= Issuer end)
            orelse {error, issuer},
        true ?= one_is(~"exp", Claims, Introspected, fun is_number/1) orelse {error, expiry},
        true ?= one_is(~"exp", Claims, true, fun(End) -> Now < End + Leeway end)
            orelse {error, expired},
        true ?= date(~"nbf", Claims, fun(Start) -> Start =< Now + Leeway end)
            orelse {error, not_yet},
        true ?= date(~"iat", Claims, fun(Start) -> Start =< Now + Leeway end)
            orelse {error, issued_at},
        true ?= is_for(maps:get(~"aud", Claims, none), Accepted) orelse {error, audience},
        true ?= one_is(~"sub", Claims, true, fun is_name/1) orelse {error, no_subject},
        ok
    end.

one_is(Name, Claims, MayMiss, Is) ->
    case Claims of
        #{Name := Value} -> Is(Value);
        #{} -> MayMiss
    end.

date(Name, Claims, Is) ->
    one_is(Name, Claims, true, fun(Value) -> is_number(Value) andalso Is(Value) end).

is_for(Audience, Accepted) when is_binary(Audience) ->
    is_for([Audience], Accepted);
is_for(Audiences, Accepted) when is_list(Audiences) ->
    lists:any(fun(Audience) -> is_binary(Audience) andalso is_one(Audience, Accepted) end,
              Audiences);
is_for(_, _) ->
    false.

is_one(Audience, Accepted) ->
    lists:any(fun(One) -> erlmcp_oauth_url:same_resource(Audience, One) end, Accepted).

is_name(Value) ->
    is_binary(Value) andalso Value =/= ~"".

-doc """
Returns the default principal of claims that `check/2` accepted: `{Issuer, Subject}`, or
`{Issuer, {client, Id}}` if the claims have a `client_id` and no `sub`. Returns `no_subject` if the
claims have neither.
""".
-spec principal(claims(), wanted()) -> {ok, erlmcp_auth:principal()} | {error, no_subject}.
principal(Claims, #{issuer := Issuer}) ->
    maybe
        {ok, Subject} ?= subject(Claims),
        {ok, {Issuer, Subject}}
    end.

%% By RFC 9068 a client's own token has the client's id as its subject. A `client_id` without a
%% subject is marked as a client, since the id could be a user's name elsewhere.
subject(#{~"sub" := Subject}) -> {ok, Subject};
subject(#{~"client_id" := Id}) when is_binary(Id), Id =/= ~"" -> {ok, {client, Id}};
subject(_) -> {error, no_subject}.

-doc """
Returns the identity with the given principal and the scopes of the claims. The token is not
accepted from `expires_at` on, in seconds of system time. `expires_at` is `infinity` if the claims
have no `exp`.
""".
-spec identity(erlmcp_auth:principal(), claims(), wanted()) ->
    #{principal := erlmcp_auth:principal(), scopes := [binary()],
      expires_at := integer() | infinity, claims := claims()}.
identity(Principal, Claims, #{leeway := Leeway}) ->
    #{principal => Principal, scopes => scopes(Claims), expires_at => expiry(Claims, Leeway),
      claims => Claims}.

scopes(#{~"scope" := Text}) when is_binary(Text) -> erlmcp_oauth_scope:parse(Text);
scopes(#{~"scope" := List}) -> listed(List);
scopes(#{~"scp" := Text}) when is_binary(Text) -> erlmcp_oauth_scope:parse(Text);
scopes(#{~"scp" := List}) -> listed(List);
scopes(_) -> [].

listed(List) when is_list(List) ->
    [One || One <- List, is_binary(One), erlmcp_oauth_scope:parse(One) =:= [One]];
listed(_) ->
    [].

expiry(#{~"exp" := End}, Leeway) -> trunc(min(End, ?LAST)) + Leeway;
expiry(_, _) -> infinity.

-doc "Returns the bindings of a token, or an empty list if the token is not bound.".
-spec confirmation(claims()) -> confirmation().
confirmation(#{~"cnf" := #{} = Confirmation}) when map_size(Confirmation) > 0 ->
    Bindings = [binding(Member) || Member <- maps:to_list(Confirmation)],
    case lists:member(unknown, Bindings) of
        true -> unknown;
        false -> Bindings
    end;
confirmation(#{~"cnf" := _}) ->
    unknown;
confirmation(_) ->
    [].

binding({~"jkt", Thumbprint}) when is_binary(Thumbprint) -> {jkt, Thumbprint};
binding({~"x5t#S256", Thumbprint}) when is_binary(Thumbprint) -> {certificate, Thumbprint};
binding(_) -> unknown.
