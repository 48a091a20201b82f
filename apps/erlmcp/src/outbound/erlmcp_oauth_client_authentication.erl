-module(erlmcp_oauth_client_authentication).
-moduledoc """
Authenticates a client at an authorization server, in the way that is registered there: by its id
alone, by a secret, or by an assertion. An assertion is a JWT that the client's own key signs
(`private_key_jwt`). An MCP client does this at the token endpoint, and an MCP server at the
introspection endpoint.

Sources: OAuth 2.1 (draft 13), section 2.4; RFC 7523, sections 2.2 and 3; RFC 7518 and RFC 8037 for
the algorithms.

Internal.
""".

-export([authenticate/3, post/4]).

-export_type([client/0, reason/0]).

-doc """
A client as an authorization server knows it. `client_secret` may be a fun that returns the secret;
`client_secret_basic` and `client_secret_post` require it.
""".
-type client() :: #{
    auth := none | client_secret_basic | client_secret_post | private_key_jwt,
    client_id := binary(),
    client_secret => binary() | fun(() -> {ok, binary()} | {error, term()}),
    atom() => term()
}.
-doc """
The reason why a client cannot authenticate itself: its assertion cannot be signed, or the fun of
its secret or key has returned an error.

- `no_key`: the PEM text has no private key, or a malformed one.
- `encrypted_key`: the key is encrypted.
- `{unsupported_algorithm, Algorithm}`: the algorithm is not one of those of `authenticate/3`.
- `{wrong_key, Algorithm}`: the algorithm requires a key of another type or size.
""".
-type reason() ::
    {assertion, no_key | encrypted_key | {unsupported_algorithm, binary()} | {wrong_key, binary()}}
    | {secret, term()}.

%% Seconds for which an assertion is valid.
-define(SECONDS, 60).

-doc """
Posts `Form` to `Url` with the authentication of a client, and returns the answer, of any status.
`settings` are those of `authenticate/3`, and `Url` is the audience of an assertion.
""".
-spec post(Url :: binary(), Form :: [{binary(), binary()}], client(),
           #{fetch := erlmcp_fetch:settings(), settings := map(), _ => _}) ->
    {ok, erlmcp_fetch:answer()} | {error, erlmcp_fetch:reason() | reason()}.
post(Url, Form, Client, #{fetch := Fetch, settings := Settings}) ->
    maybe
        {ok, Headers, Parameters} ?= authenticate(Client, Url, Settings),
        erlmcp_fetch:post_form(Url, Headers, Form ++ Parameters, Fetch)
    end.

-doc """
Returns the headers and the form parameters that authenticate a client. For `private_key_jwt`,
`Settings` must have two members:

- `key`: a PEM text, or a fun that returns `{ok, Text}` or `{error, Reason}`. The first private key
  in the text signs: PKCS#8, or the older formats of EC and RSA, not encrypted.
- `algorithm`: `ES256` (a key on P-256), `RS256` or `PS256` (RSA of 2,048 to 8,192 bits) or `EdDSA`
  (Ed25519).

`Audience` of an assertion is the server's issuer, or the URL that the client calls. Each assertion
is valid for 60 seconds, and has its own id, by which a server can refuse a second use.
""".
-spec authenticate(client(), Audience :: binary(), Settings :: map()) ->
    {ok, [{binary(), iodata()}], [{binary(), binary()}]} | {error, reason()}.
authenticate(#{auth := none, client_id := Id}, _, _) ->
    {ok, [], [{~"client_id", Id}]};
authenticate(#{auth := client_secret_basic, client_id := Id, client_secret := Secret}, _, _) ->
    maybe
        {ok, Text} ?= revealed(Secret),
        Pair = <<(uri_string:quote(Id))/binary, ":", (uri_string:quote(Text))/binary>>,
        {ok, [{~"authorization", [~"Basic ", base64:encode(Pair)]}], []}
    end;
authenticate(#{auth := client_secret_post, client_id := Id, client_secret := Secret}, _, _) ->
    maybe
        {ok, Text} ?= revealed(Secret),
        {ok, [], [{~"client_id", Id}, {~"client_secret", Text}]}
    end;
authenticate(#{auth := private_key_jwt, client_id := Id}, Audience, Settings) ->
    #{key := Key, algorithm := Algorithm} = Settings,
    maybe
        {ok, Pem} ?= revealed(Key),
        {ok, Jwt} ?= assertion(Id, Audience, Pem, Algorithm),
        {ok, [], [{~"client_id", Id},
                  {~"client_assertion_type",
                   ~"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
                  {~"client_assertion", Jwt}]}
    end.

revealed(Secret) when is_binary(Secret) -> {ok, Secret};
revealed(Secret) ->
    case Secret() of
        {ok, Text} when is_binary(Text) -> {ok, Text};
        {error, Reason} -> {error, {secret, Reason}}
    end.

assertion(Id, Audience, Pem, Algorithm) ->
    maybe
        ok ?= supported(Algorithm),
        {ok, Key} ?= key(Pem),
        ok ?= fits(Algorithm, Key),
        Now = erlang:system_time(second),
        Payload = #{
            ~"iss" => Id,
            ~"sub" => Id,
            ~"aud" => Audience,
            ~"iat" => Now,
            ~"exp" => Now + ?SECONDS,
            ~"jti" => erlmcp_base64url:encode(crypto:strong_rand_bytes(16))
        },
        {ok, sign(Key, #{~"alg" => Algorithm, ~"typ" => ~"JWT"}, Payload)}
    else
        {error, Reason} -> {error, {assertion, Reason}}
    end.

supported(Algorithm) ->
    case lists:member(Algorithm, [~"ES256", ~"RS256", ~"PS256", ~"EdDSA"]) of
        true -> ok;
        false -> {error, {unsupported_algorithm, Algorithm}}
    end.

%% Other entries may stand before the key, such as the parameters of its curve.
key(Pem) ->
    Private = ['PrivateKeyInfo', 'ECPrivateKey', 'RSAPrivateKey'],
    case [Entry || {Type, _, _} = Entry <- entries(Pem), lists:member(Type, Private)] of
        [{_, _, not_encrypted} = Entry | _] -> read(public_key:pem_encode([Entry]));
        [_ | _] -> {error, encrypted_key};
        [] -> {error, no_key}
    end.

%% The reason of a crash would contain the key, so it is not passed on.
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
