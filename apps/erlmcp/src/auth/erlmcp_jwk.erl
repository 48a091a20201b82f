-module(erlmcp_jwk).
-moduledoc """
Public keys as JSON (JWK), and which algorithm of signatures each serves. Pure.

What comes from outside is read member by member: a key has only those of its kind, and keys of
secrets (`oct`), too short or too long ones, and those that are for something else are none.

Sources: RFC 7517, RFC 7518, RFC 8037; RFC 7638 for the thumbprint; RFC 8725, sections 3.1 to 3.5.
""".

-export([algorithms/0, fits/2, set/1, public/1, candidates/3, verifies/3, thumbprint/1]).

-export_type([key/0]).

-doc "A public key; `alg` and `kid` where its JWK has them.".
-type key() :: #{map := #{binary() => binary()}, jose := jose_jwk:key(), alg => binary(),
                 kid => binary()}.

-define(RSA_BITS, 2048).
%% Checking a signature takes time with the size of both numbers of a key.
-define(MOST_RSA_BITS, 8192).
-define(EXPONENT_BYTES, 4).
-define(KEYS, 100).
-define(ID_BYTES, 1024).
%% Keys that are tried for a token that does not name one.
-define(TRIED, 8).

-doc "The algorithms of JWS that have public keys, as far as they are known here.".
-spec algorithms() -> [binary()].
algorithms() ->
    [~"RS256", ~"RS384", ~"RS512", ~"PS256", ~"PS384", ~"PS512", ~"ES256", ~"ES384", ~"ES512",
     ~"EdDSA"].

-doc "Whether an algorithm takes a key with these public members.".
-spec fits(Algorithm :: binary(), #{binary() => term()}) -> boolean().
fits(~"ES256", #{~"kty" := ~"EC", ~"crv" := ~"P-256"}) -> true;
fits(~"ES384", #{~"kty" := ~"EC", ~"crv" := ~"P-384"}) -> true;
fits(~"ES512", #{~"kty" := ~"EC", ~"crv" := ~"P-521"}) -> true;
fits(~"EdDSA", #{~"kty" := ~"OKP", ~"crv" := ~"Ed25519"}) -> true;
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

%% What a number is written with, without the zeros before it.
number(<<0, Rest/binary>>) -> number(Rest);
number(Bytes) -> Bytes.

-doc "The keys of a JWK set that serve for signatures: of a set of more than 100, the first 100.".
-spec set(term()) -> [key()].
set(#{~"keys" := Given}) when is_list(Given) ->
    [Key || Jwk <- lists:sublist(Given, ?KEYS), {ok, Key} <- [of_set(Jwk)]];
set(_) ->
    [].

%% One key that is not well formed does not take the others with it.
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

-doc "The public key that a JWK has, whatever else it has.".
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

-doc """
The keys that a signature with this algorithm may be of: those of the id, if the header has one, or
a few that fit. A key that names an algorithm serves for no other.
""".
-spec candidates(Algorithm :: binary(), Kid :: binary() | none, [key()]) -> [key()].
candidates(Algorithm, Kid, Keys) ->
    lists:sublist([Key || #{map := Map} = Key <- Keys, maps:get(alg, Key, Algorithm) =:= Algorithm,
                          Kid =:= none orelse maps:get(kid, Key, none) =:= Kid,
                          fits(Algorithm, Map)], ?TRIED).

-doc "Whether a compact JWS was signed with this algorithm and key.".
-spec verifies(Jws :: binary(), Algorithm :: binary(), key()) -> boolean().
verifies(Jws, Algorithm, #{map := Map, jose := Key}) ->
    %% A point that is not on its curve, for one, crashes deep inside.
    fits(Algorithm, Map) andalso
        try jose_jws:verify_strict(Key, [Algorithm], Jws) of
            {true, _, _} -> true;
            _ -> false
        catch
            error:_ -> false
        end.

-doc "The thumbprint of a key, as `jkt` has it.".
-spec thumbprint(key()) -> binary().
thumbprint(#{jose := Key}) ->
    <<Thumbprint/binary>> = jose_jwk:thumbprint(Key),
    Thumbprint.

decoded(Text) when is_binary(Text) -> erlmcp_base64url:decode(Text);
decoded(_) -> error.
