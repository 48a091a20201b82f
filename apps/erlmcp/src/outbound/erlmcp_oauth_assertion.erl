-module(erlmcp_oauth_assertion).
-moduledoc """
A JWT with which a client with a key of its own authenticates itself (`private_key_jwt`).

Source: RFC 7523, sections 2.2 and 3; RFC 7518 and RFC 8037 for the algorithms.

Internal.
""".

-export([client/1]).

-export_type([options/0, reason/0]).

-doc """
Options of an assertion.

- `key`: a PEM text whose first private key signs: PKCS#8, or the older forms of EC and RSA, not
  encrypted.
- `algorithm`: `ES256` (a key on P-256), `RS256` or `PS256` (RSA of 2048 bits or more) or `EdDSA`
  (Ed25519).
- `audience`: the issuer or the token endpoint, as the server requires.
- `key_id`: the header's `kid`.
- `seconds`: the life of the assertion, 60 by default.
""".
-type options() :: #{
    client_id := binary(),
    audience := binary(),
    key := Pem :: binary(),
    algorithm := binary(),
    key_id => binary(),
    seconds => pos_integer()
}.
-doc """
The reason for which no assertion was made.

- `no_key`: the text has no private key, or a malformed one.
- `encrypted_key`: the key is encrypted.
- `{unsupported_algorithm, Algorithm}`: the algorithm is not one of the four.
- `{wrong_key, Algorithm}`: the algorithm requires another kind of key, or a longer one.
""".
-type reason() ::
    no_key | encrypted_key | {unsupported_algorithm, binary()} | {wrong_key, binary()}.

-define(SECONDS, 60).

-doc "Makes an assertion. Each has an id of its own, so it serves once.".
-spec client(options()) -> {ok, Jwt :: binary()} | {error, reason()}.
client(#{client_id := Client, audience := Audience} = Options) ->
    #{key := Pem, algorithm := Algorithm} = Options,
    maybe
        ok ?= supported(Algorithm),
        {ok, Key} ?= key(Pem),
        ok ?= fits(Algorithm, Key),
        Now = erlang:system_time(second),
        Payload = #{
            ~"iss" => Client,
            ~"sub" => Client,
            ~"aud" => Audience,
            ~"iat" => Now,
            ~"exp" => Now + maps:get(seconds, Options, ?SECONDS),
            ~"jti" => erlmcp_base64url:encode(crypto:strong_rand_bytes(16))
        },
        {ok, sign(Key, header(Algorithm, Options), Payload)}
    end.

supported(Algorithm) ->
    case lists:member(Algorithm, [~"ES256", ~"RS256", ~"PS256", ~"EdDSA"]) of
        true -> ok;
        false -> {error, {unsupported_algorithm, Algorithm}}
    end.

header(Algorithm, #{key_id := Id}) -> (header(Algorithm, #{}))#{~"kid" => Id};
header(Algorithm, _) -> #{~"alg" => Algorithm, ~"typ" => ~"JWT"}.

%% Other entries may stand before the key, such as the parameters of its curve.
key(Pem) ->
    Private = ['PrivateKeyInfo', 'ECPrivateKey', 'RSAPrivateKey'],
    case [Entry || {Type, _, _} = Entry <- entries(Pem), lists:member(Type, Private)] of
        [{_, _, not_encrypted} = Entry | _] -> read(public_key:pem_encode([Entry]));
        [_ | _] -> {error, encrypted_key};
        [] -> {error, no_key}
    end.

%% The reason of a crash here would contain the key, so it is dropped.
entries(Pem) ->
    try
        public_key:pem_decode(Pem)
    catch
        _:_ -> []
    end.

read(Pem) ->
    try jose_jwk:from_pem(Pem) of
        Key when is_tuple(Key) ->
            {_, #{~"kty" := _} = Map} = jose_jwk:to_public_map(Key),
            {ok, {Key, Map}};
        _ ->
            {error, no_key}
    catch
        _:_ -> {error, no_key}
    end.

fits(Algorithm, {_, Map}) ->
    case erlmcp_jwk:fits(Algorithm, Map) of
        true -> ok;
        false -> {error, {wrong_key, Algorithm}}
    end.

sign({Key, _}, Header, Payload) ->
    {_, Jwt} = jose_jws:compact(jose_jwt:sign(Key, Header, Payload)),
    Jwt.
