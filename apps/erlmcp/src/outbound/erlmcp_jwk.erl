-module(erlmcp_jwk).
-moduledoc """
Reads public keys in JSON (JWK), and verifies signatures with them. Pure.

Symmetric keys (`oct`) and keys of a wrong size are refused; in a set, so are keys for another use.
The only symmetric keys are secrets that the server's owner configures (`secret/1`), for `HS256` and
similar algorithms, which accept no public key. So no public key can be used to sign a token.

Sources: RFC 7517, RFC 7518, RFC 8037; RFC 7638 for the thumbprint; RFC 8725, sections 3.1 to 3.5.

Internal.
""".

-export([algorithms/0, secret_algorithms/0, fits/2, set/1, public/1, problem/1]).
-export([secret/1, secret_problem/2]).
-export([candidates/3, verifies/3, thumbprint/1]).

-export_type([key/0]).

-doc """
A public key, or a secret. `map` has the public members of its JWK; that of a secret has only `kty`.
A key of a set has `alg` and `kid` if its JWK has them.
""".
-type key() :: #{map := #{binary() => binary()}, jose := jose_jwk:key(), alg => binary(),
                 kid => binary()}.

-define(RSA_BITS, 2048).
%% Bounds on RSA keys, since the time to check a signature grows with the modulus and with the
%% exponent.
-define(MOST_RSA_BITS, 8192).
-define(EXPONENT_BYTES, 4).
-define(KEYS, 100).
-define(ID_BYTES, 1024).
%% The most keys that are tried for a token that does not name its key.
-define(TRIED, 8).

-doc "Returns the supported JWS algorithms with public keys.".
-spec algorithms() -> [binary()].
algorithms() ->
    [~"RS256", ~"RS384", ~"RS512", ~"PS256", ~"PS384", ~"PS512", ~"ES256", ~"ES384", ~"ES512",
     ~"EdDSA"].

-doc "Returns the supported JWS algorithms with a secret that both signs and verifies.".
-spec secret_algorithms() -> [binary()].
secret_algorithms() ->
    [~"HS256", ~"HS384", ~"HS512"].

-doc """
Returns `true` if a key with the public members `Map` is of the type and curve that `Algorithm`
needs. An RSA key must have 2,048 to 8,192 bits.
""".
-spec fits(Algorithm :: binary(), Map :: #{binary() => term()}) -> boolean().
fits(~"ES256", #{~"kty" := ~"EC", ~"crv" := ~"P-256"}) -> true;
fits(~"ES384", #{~"kty" := ~"EC", ~"crv" := ~"P-384"}) -> true;
fits(~"ES512", #{~"kty" := ~"EC", ~"crv" := ~"P-521"}) -> true;
fits(~"EdDSA", #{~"kty" := ~"OKP", ~"crv" := ~"Ed25519"}) -> true;
fits(Algorithm, #{~"kty" := ~"oct"}) -> lists:member(Algorithm, secret_algorithms());
fits(<<Kind:2/binary, _/binary>> = Algorithm, #{~"kty" := ~"RSA", ~"n" := Modulus})
        when Kind =:= ~"RS"; Kind =:= ~"PS" ->
    lists:member(Algorithm, algorithms()) andalso
        case decoded(Modulus) of
            {ok, Bytes} ->
                Bits = bit_size(number(Bytes)),
                Bits >= ?RSA_BITS andalso Bits =< ?MOST_RSA_BITS;
            error ->
                false
        end;
fits(_, _) -> false.

%% The bytes of a number without leading zeros.
number(<<0, Rest/binary>>) -> number(Rest);
number(Bytes) -> Bytes.

-doc """
Returns the keys of a JWK set that can verify signatures. Only the first 100 of the set are read. A
term that is not a JWK set has no keys.
""".
-spec set(term()) -> [key()].
set(#{~"keys" := Given}) when is_list(Given) ->
    [Key || Jwk <- lists:sublist(Given, ?KEYS), {ok, Key} <- [of_set(Jwk)]];
set(_) ->
    [].

%% A malformed key does not invalidate the others.
of_set(#{} = Jwk) ->
    case is_for_signatures(Jwk) andalso public(Jwk) of
        {ok, Key} -> {ok, maps:merge(Key, labels(Jwk))};
        _ -> error
    end;
of_set(_) ->
    error.

is_for_signatures(Jwk) ->
    maps:get(~"use", Jwk, ~"sig") =:= ~"sig"
        andalso case Jwk of
                    #{~"key_ops" := Operations} ->
                        is_list(Operations) andalso lists:member(~"verify", Operations);
                    #{} -> true
                end
        andalso is_label(maps:get(~"alg", Jwk, ~"any"))
        andalso is_label(maps:get(~"kid", Jwk, ~"")).

is_label(Label) -> is_binary(Label) andalso byte_size(Label) =< ?ID_BYTES.

labels(Jwk) ->
    #{Name => Value || {Name, Member} <- [{alg, ~"alg"}, {kid, ~"kid"}],
                       #{Member := Value} <- [Jwk]}.

-doc """
Returns the public key of a JWK; `error` if it has none that can verify signatures. The members
`use`, `key_ops`, `alg` and `kid` are not read.
""".
-spec public(#{binary() => term()}) -> {ok, key()} | error.
public(#{~"kty" := ~"RSA", ~"n" := _, ~"e" := Exponent} = Jwk) ->
    case decoded(Exponent) of
        {ok, Bytes} when byte_size(Bytes) =< ?EXPONENT_BYTES -> key([~"kty", ~"n", ~"e"], Jwk);
        _ -> error
    end;
public(#{~"kty" := ~"EC", ~"crv" := Curve, ~"x" := X, ~"y" := Y} = Jwk) ->
    case {decoded(X), decoded(Y), coordinate(Curve)} of
        {{ok, One}, {ok, Other}, Bytes} when byte_size(One) =:= Bytes, byte_size(Other) =:= Bytes ->
            key([~"kty", ~"crv", ~"x", ~"y"], Jwk);
        _ -> error
    end;
public(#{~"kty" := ~"OKP", ~"crv" := ~"Ed25519", ~"x" := X} = Jwk) ->
    case decoded(X) of
        {ok, <<_:32/binary>>} -> key([~"kty", ~"crv", ~"x"], Jwk);
        _ -> error
    end;
public(_) ->
    error.

coordinate(~"P-256") -> 32;
coordinate(~"P-384") -> 48;
coordinate(~"P-521") -> 66;
coordinate(_) -> none.

key(Members, Jwk) ->
    Map = maps:with(Members, Jwk),
    maybe
        true ?= lists:any(fun(Algorithm) -> fits(Algorithm, Map) end, algorithms()),
        {ok, #{map => Map, jose => jose_jwk:from_map(Map)}}
    else
        false -> error
    end.

-doc "Returns the key of a secret that `secret_problem/2` has accepted.".
-spec secret(binary()) -> key().
secret(Secret) ->
    #{map => #{~"kty" => ~"oct"}, jose => jose_jwk:from_oct(Secret)}.

-doc """
Returns `none` if a secret is valid for `Algorithms`, which are one or more of
`secret_algorithms/0`. Otherwise returns a text that says what was expected, without a byte of the
secret. A secret must have at least as many bytes as the longest hash of the algorithms (RFC 7518,
section 3.2). The text of a key or a certificate is refused, since it may be public.
""".
-spec secret_problem(Secret :: term(), Algorithms :: [binary()]) -> none | binary().
secret_problem(Secret, Algorithms) when is_binary(Secret) ->
    {Bytes, Algorithm} = lists:max([{hash_bytes(Algorithm), Algorithm} || Algorithm <- Algorithms]),
    case is_written_key(Secret) of
        true ->
            ~"a secret that only its owner knows, not the text of a key or of a certificate";
        false when byte_size(Secret) < Bytes ->
            text("a secret of at least ~b bytes for ~ts, got ~b",
                 [Bytes, Algorithm, byte_size(Secret)]);
        false ->
            none
    end;
secret_problem(_, _) ->
    ~"a secret as a binary, or a fun that gives {ok, Secret}".

hash_bytes(~"HS256") -> 32;
hash_bytes(~"HS384") -> 48;
hash_bytes(~"HS512") -> 64.

%% Returns `true` for a key in PEM, in DER, as a JWK (set), or in the format of SSH.
is_written_key(Text) ->
    binary:match(Text, [~"-----BEGIN ", ~"---- BEGIN ", ~"\"kty\"", ~"ssh-rsa", ~"ssh-dss",
                        ~"ssh-ed25519", ~"ssh-ed448", ~"ecdsa-sha2-"]) =/= nomatch
        orelse lists:any(fun(Type) -> is_der(Type, Text) end,
                         ['SubjectPublicKeyInfo', 'RSAPublicKey', 'Certificate']).

is_der(Type, Bytes) ->
    try
        _ = public_key:der_decode(Type, Bytes),
        true
    catch
        error:_ -> false
    end.

-doc "Returns a text that says what is wrong with a JWK that cannot verify signatures.".
-spec problem(term()) -> binary().
problem(#{~"use" := Use}) when Use =/= ~"sig" -> mismatch("use", "sig", Use);
problem(#{~"key_ops" := Operations} = Jwk) ->
    case is_list(Operations) andalso lists:member(~"verify", Operations) of
        true -> problem(maps:remove(~"key_ops", Jwk));
        false -> mismatch("key_ops", "a list with verify", Operations)
    end;
problem(#{~"kty" := ~"RSA"} = Jwk) ->
    case {size_of(~"n", Jwk), size_of(~"e", Jwk)} of
        {none, _} -> mismatch("n", "a number in base64url", maps:get(~"n", Jwk, none));
        {_, Bytes} when Bytes =:= none; Bytes > ?EXPONENT_BYTES ->
            mismatch("e", "a number of at most 4 bytes in base64url", maps:get(~"e", Jwk, none));
        _ ->
            {ok, Modulus} = decoded(maps:get(~"n", Jwk)),
            case bit_size(number(Modulus)) of
                Bits when Bits < ?RSA_BITS; Bits > ?MOST_RSA_BITS ->
                    text("n: expected a number of ~b to ~b bits, got ~b",
                         [?RSA_BITS, ?MOST_RSA_BITS, Bits]);
                _ ->
                    label_problem(Jwk)
            end
    end;
problem(#{~"kty" := ~"EC", ~"crv" := Curve} = Jwk) ->
    case coordinate(Curve) of
        none -> mismatch("crv", "P-256, P-384 or P-521", Curve);
        Bytes -> bytes_problem([~"x", ~"y"], Bytes, Jwk)
    end;
problem(#{~"kty" := ~"OKP", ~"crv" := ~"Ed25519"} = Jwk) ->
    bytes_problem([~"x"], 32, Jwk);
problem(#{~"kty" := ~"OKP"} = Jwk) -> mismatch("crv", "Ed25519", maps:get(~"crv", Jwk, none));
problem(#{~"kty" := ~"EC"}) -> mismatch("crv", "P-256, P-384 or P-521", none);
problem(#{~"kty" := ~"oct"}) ->
    ~"kty: oct is a secret, which is given as {secret, Secret}";
problem(#{~"kty" := Type}) -> mismatch("kty", "RSA, EC or OKP", Type);
problem(#{kty := _}) -> ~"kty: expected names and values that are binaries";
problem(#{}) -> mismatch("kty", "RSA, EC or OKP", none);
problem(_) -> ~"expected a map with kty and the members of its kind".

bytes_problem([], _, Jwk) ->
    label_problem(Jwk);
bytes_problem([Name | Names], Bytes, Jwk) ->
    case size_of(Name, Jwk) of
        Bytes -> bytes_problem(Names, Bytes, Jwk);
        none -> text("~ts: expected ~b bytes in base64url, got none", [Name, Bytes]);
        Other -> text("~ts: expected ~b bytes in base64url, got ~b", [Name, Bytes, Other])
    end.

label_problem(Jwk) ->
    text("alg and kid: expected texts of at most ~b bytes, got others: ~ts",
         [?ID_BYTES, lists:join(", ", [Name || Name <- [~"alg", ~"kid"], is_map_key(Name, Jwk)])]).

size_of(Name, Jwk) ->
    case decoded(maps:get(Name, Jwk, none)) of
        {ok, Bytes} -> byte_size(Bytes);
        error -> none
    end.

mismatch(Name, Expected, none) -> text("~ts: expected ~ts, got nothing", [Name, Expected]);
mismatch(Name, Expected, Came) when is_binary(Came) ->
    text("~ts: expected ~ts, got ~ts", [Name, Expected, erlmcp_printable:quoted(Came)]);
mismatch(Name, Expected, _) -> text("~ts: expected ~ts, got no text", [Name, Expected]).

text(Format, Arguments) ->
    <<_/binary>> = unicode:characters_to_binary(io_lib:format(Format, Arguments)).

-doc """
Returns the keys that may verify a signature with `Algorithm`, the first 8 at most. They have the id
`Kid`, the `kid` of the token's header; for `none` their ids do not matter. A key that names an
algorithm is used for no other.
""".
-spec candidates(Algorithm :: binary(), Kid :: binary() | none, [key()]) -> [key()].
candidates(Algorithm, Kid, Keys) ->
    lists:sublist([Key || #{map := Map} = Key <- Keys, maps:get(alg, Key, Algorithm) =:= Algorithm,
                          Kid =:= none orelse maps:get(kid, Key, none) =:= Kid,
                          fits(Algorithm, Map)], ?TRIED).

-doc "Returns `true` if the signature of the compact `Jws` verifies with `Algorithm` and the key.".
-spec verifies(Jws :: binary(), Algorithm :: binary(), key()) -> boolean().
verifies(Jws, Algorithm, #{map := Map, jose := Key}) ->
    %% An invalid key, such as a point that is not on its curve, crashes inside jose.
    fits(Algorithm, Map) andalso
        try jose_jws:verify_strict(Key, [Algorithm], Jws) of
            {true, _, _} -> true;
            _ -> false
        catch
            error:_ -> false
        end.

-doc "Returns the SHA-256 thumbprint of a key in base64url, as in `jkt`.".
-spec thumbprint(key()) -> binary().
thumbprint(#{jose := Key}) ->
    <<Thumbprint/binary>> = jose_jwk:thumbprint(Key),
    Thumbprint.

decoded(Text) when is_binary(Text) -> erlmcp_base64url:decode(Text);
decoded(_) -> error.
