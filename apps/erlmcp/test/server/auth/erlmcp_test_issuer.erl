-module(erlmcp_test_issuer).
-moduledoc """
A tiny authorization server. It issues JWTs and opaque tokens, and has a set of keys that can be
rotated. It answers introspections of the client `server` with the secret `server-secret`. After
`wants_nonce/1`, its token endpoint demands a nonce in proofs. Its logins are those of
`m:erlmcp_test_oauth`, whose functions accept it, too (`change/3`, `asked/2`, `browser/1`).
""".

-export([start/0, stop/1, url/1, url/2]).
-export([rotate/1, rotate/2, keys/1, sign/2, sign/3, claims/1]).
-export([token/2, opaque/2, revoke/2, grants/2, wants_nonce/1]).

-define(CLIENT, ~"Basic c2VydmVyOnNlcnZlci1zZWNyZXQ=").
-define(NONCE, ~"issuer-nonce").
-define(SECONDS, 300).

start() ->
    {ok, _} = application:ensure_all_started(jose),
    #{table := Table} = Issuer = erlmcp_test_oauth:start(),
    ets:insert(Table, {{issuer, claims}, #{}}),
    rotate(Issuer),
    erlmcp_test_oauth:metadata(Issuer, #{~"jwks_uri" => url(Issuer, ~"/jwks"),
                                         ~"introspection_endpoint" => url(Issuer, ~"/introspect"),
                                         ~"dpop_signing_alg_values_supported" => [~"ES256"]}),
    erlmcp_test_oauth:change(Issuer, ~"/jwks",
                             fun(_) -> erlmcp_test_oauth:json(200, keys(Issuer)) end),
    erlmcp_test_oauth:change(Issuer, ~"/introspect",
                             fun(Request) -> introspected(Request, Issuer) end),
    erlmcp_test_oauth:change(Issuer, ~"/token", fun(Request) -> issued(Request, Issuer) end),
    Issuer.

stop(Issuer) -> erlmcp_test_oauth:stop(Issuer).

-doc "Returns the issuer's name, which is its URL.".
url(#{base := Base}) -> Base.

url(Issuer, Path) -> erlmcp_test_oauth:url(Issuer, Path).

-doc "Replaces the key that signs, which is the only one of the set, by a new one of ES256.".
rotate(Issuer) -> rotate(~"ES256", Issuer).

rotate(Algorithm, #{table := Table}) ->
    Kid = <<"key-", (integer_to_binary(ets:update_counter(Table, keys, 1, {keys, 0})))/binary>>,
    ets:insert(Table, {{issuer, key}, {Algorithm, Kid, generated(Algorithm)}}),
    ok.

generated(~"ES256") -> jose_jwk:generate_key({ec, ~"P-256"});
generated(~"ES384") -> jose_jwk:generate_key({ec, ~"P-384"});
generated(~"EdDSA") -> jose_jwk:generate_key({okp, 'Ed25519'});
generated(_) -> jose_jwk:generate_key({rsa, 2048}).

-doc "Returns the set of keys, as it is served at `/jwks`.".
keys(#{table := Table}) ->
    [{_, {Algorithm, Kid, Key}}] = ets:lookup(Table, {issuer, key}),
    {_, Public} = jose_jwk:to_public_map(Key),
    #{~"keys" => [Public#{~"kid" => Kid, ~"alg" => Algorithm, ~"use" => ~"sig"}]}.

-doc "Returns a JWT with these claims and no others.".
sign(Claims, Issuer) -> sign(#{}, Claims, Issuer).

sign(Header, Claims, #{table := Table}) ->
    [{_, {Algorithm, Kid, Key}}] = ets:lookup(Table, {issuer, key}),
    Given = maps:merge(#{~"alg" => Algorithm, ~"kid" => Kid, ~"typ" => ~"at+jwt"}, Header),
    {_, Token} = jose_jws:compact(jose_jws:sign(
        Key, iolist_to_binary(json:encode(Claims)),
        maps:filter(fun(_, Value) -> Value =/= remove end, Given))),
    Token.

-doc "Returns claims of a token for Ada, which is valid for five minutes.".
claims(#{base := Base}) ->
    Now = erlang:system_time(second),
    #{~"iss" => Base, ~"sub" => ~"ada", ~"client_id" => ~"a-client", ~"iat" => Now,
      ~"exp" => Now + ?SECONDS,
      ~"jti" => binary:encode_hex(crypto:strong_rand_bytes(8), lowercase)}.

-doc "Returns a JWT for Ada with these claims in place of the usual ones; `remove` removes one.".
token(Changes, Issuer) ->
    sign(changed(Changes, Issuer), Issuer).

changed(Changes, Issuer) ->
    maps:filter(fun(_, Value) -> Value =/= remove end, maps:merge(claims(Issuer), Changes)).

-doc "Returns a token without content. `/introspect` has its claims.".
opaque(Changes, #{table := Table} = Issuer) ->
    Token = binary:encode_hex(crypto:strong_rand_bytes(16), lowercase),
    ets:insert(Table, {{opaque, Token}, changed(Changes, Issuer)}),
    Token.

-doc "Revokes an opaque token.".
revoke(Token, #{table := Table}) ->
    ets:delete(Table, {opaque, Token}),
    ok.

-doc "Sets claims that tokens of the token endpoint have in addition, such as `scope`.".
grants(Claims, #{table := Table}) ->
    ets:insert(Table, {{issuer, claims}, Claims}),
    ok.

-doc "Lets the token endpoint accept only proofs with its nonce from now on.".
wants_nonce(#{table := Table}) ->
    ets:insert(Table, {{issuer, nonce}, ?NONCE}),
    ok.

introspected(#{headers := #{~"authorization" := ?CLIENT}, form := #{~"token" := Token}},
             #{table := Table}) ->
    case ets:lookup(Table, {opaque, Token}) of
        [{_, Claims}] -> erlmcp_test_oauth:json(200, Claims#{~"active" => true});
        [] -> erlmcp_test_oauth:json(200, #{~"active" => false})
    end;
introspected(_, _) ->
    erlmcp_test_oauth:json(401, #{~"error" => ~"invalid_client"}).

issued(#{form := Form, headers := Headers}, #{table := Table} = Issuer) ->
    case proof(Headers, ets:lookup(Table, {issuer, nonce})) of
        wants_nonce ->
            {Status, Answered, Body} =
                erlmcp_test_oauth:json(400, #{~"error" => ~"use_dpop_nonce"}),
            {Status, Answered#{~"dpop-nonce" => ?NONCE}, Body};
        Bound ->
            granted(erlmcp_test_oauth:granted(Form, Issuer), Bound, Form, Issuer)
    end.

granted(false, _, _, _) ->
    erlmcp_test_oauth:json(400, #{~"error" => ~"invalid_grant"});
granted(true, Bound, Form, #{table := Table} = Issuer) ->
    [{_, More}] = ets:lookup(Table, {issuer, claims}),
    Claims = maps:merge(maps:merge(scope(Issuer), More), Bound),
    Type = case Bound of
        #{~"cnf" := _} -> ~"DPoP";
        #{} -> ~"Bearer"
    end,
    erlmcp_test_oauth:json(200, (erlmcp_test_oauth:token_answer(Issuer))#{
        ~"access_token" := token(Claims#{~"aud" => maps:get(~"resource", Form, ~"none")}, Issuer),
        ~"token_type" := Type, ~"expires_in" := ?SECONDS}).

%% What was asked for at the login that was last.
scope(Issuer) ->
    case lists:reverse(erlmcp_test_oauth:asked(Issuer, ~"/authorize")) of
        [#{query := #{~"scope" := Scope}} | _] -> #{~"scope" => Scope};
        _ -> #{}
    end.

%% The proofs themselves are for the suites to check.
proof(#{~"dpop" := Proof}, Nonces) ->
    {_, Payload} = {jose_jws:peek_protected(Proof), json:decode(jose_jws:peek_payload(Proof))},
    #{~"jwk" := Jwk} = json:decode(jose_jws:peek_protected(Proof)),
    case [Nonce || {_, Nonce} <- Nonces, maps:get(~"nonce", Payload, none) =/= Nonce] of
        [] -> #{~"cnf" => #{~"jkt" => jose_jwk:thumbprint(jose_jwk:from_map(Jwk))}};
        _ -> wants_nonce
    end;
proof(_, _) ->
    #{}.
