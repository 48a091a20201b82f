-module(erlmcp_dpop).
-moduledoc """
Makes proofs of possession (DPoP): a JWT for each request, signed with the key that the token is
bound to. The key is on the curve P-256, and the algorithm is ES256.

Source: RFC 9449; RFC 7638 for the thumbprint.

Internal.
""".

-export([new/0, proof/4, nonce/1, thumbprint/1, to_map/1, from_map/1]).

-export_type([key/0, claims/0]).

-record(key, {private :: jose_jwk:key(), public :: #{binary() => binary()}}).

-doc "A private key, a secret; `to_map/1` converts it for storage.".
-opaque key() :: #key{}.
-doc """
Further claims of a proof: the latest nonce of the server, and the access token of the request, of
which the proof contains the hash. A request to the token endpoint has no access token.
""".
-type claims() :: #{nonce => binary(), access_token => binary()}.

-doc "Generates a key.".
-spec new() -> key().
new() ->
    key(jose_jwk:generate_key({ec, ~"P-256"})).

key(Private) ->
    {_, Public} = jose_jwk:to_public_map(Private),
    #key{private = Private, public = maps:with([~"kty", ~"crv", ~"x", ~"y"], Public)}.

-doc """
Returns a proof, the value of the `DPoP` header of one request. `Method` is in upper case. The query
and the fragment of `Url` are left out of the proof. Each proof has its own id, so it can be used
once.
""".
-spec proof(Method :: binary(), Url :: binary(), claims(), key()) -> binary().
proof(Method, Url, Claims, #key{private = Private, public = Public}) ->
    Header = #{~"typ" => ~"dpop+jwt", ~"alg" => ~"ES256", ~"jwk" => Public},
    [Target | _] = binary:split(Url, [~"?", ~"#"]),
    Payload = maps:merge(claims(Claims), #{
        ~"jti" => erlmcp_base64url:encode(crypto:strong_rand_bytes(16)),
        ~"htm" => Method,
        ~"htu" => Target,
        ~"iat" => erlang:system_time(second)
    }),
    {_, <<Proof/binary>>} = jose_jws:compact(jose_jwt:sign(Private, Header, Payload)),
    Proof.

claims(Claims) ->
    maps:from_list([claim(Claim) || Claim <- maps:to_list(Claims)]).

claim({nonce, Nonce}) -> {~"nonce", Nonce};
claim({access_token, Token}) -> {~"ath", erlmcp_base64url:encode(crypto:hash(sha256, Token))}.

-doc """
Returns the nonce in the headers of a response. Returns `none` without a nonce, and for one that is
longer than 1024 bytes or not printable ASCII.
""".
-spec nonce(#{binary() => binary()}) -> binary() | none.
nonce(#{~"dpop-nonce" := Nonce}) when byte_size(Nonce) =< 1024 ->
    %% RFC 9449, section 8.1: `nonce = 1*NQCHAR`, which is ASCII. The claims of a proof cannot have
    %% any bytes. Spaces and quotes are no NQCHARs, and do no harm.
    case re:run(Nonce, ~"^[ -~]+$", [{capture, none}, dollar_endonly]) of
        match -> Nonce;
        nomatch -> none
    end;
nonce(_) ->
    none.

-doc "Returns the SHA-256 thumbprint of the key, as in `jkt` and `dpop_jkt`.".
-spec thumbprint(key()) -> binary().
thumbprint(#key{private = Private}) ->
    <<Thumbprint/binary>> = jose_jwk:thumbprint(Private),
    Thumbprint.

-doc """
Returns the key as a JWK with its private part, for storing it with the refresh token that is bound
to it.
""".
-spec to_map(key()) -> #{binary() => binary()}.
to_map(#key{private = Private}) ->
    {_, Map} = jose_jwk:to_map(Private),
    Map.

-doc "Returns the key from a map that `to_map/1` returned; `bad_key` if the map has no valid key.".
-spec from_map(#{binary() => term()}) -> {ok, key()} | {error, bad_key}.
from_map(#{~"kty" := ~"EC", ~"crv" := ~"P-256", ~"d" := _} = Map) ->
    %% jose crashes on an invalid key, and the reason of the crash would contain the key.
    try
        Key = key(jose_jwk:from_map(Map)),
        case is_whole(Key) of
            true -> {ok, Key};
            false -> {error, bad_key}
        end
    catch
        _:_ -> {error, bad_key}
    end;
from_map(_) ->
    {error, bad_key}.

%% Returns `true` if the private and the public part belong together: the key must verify its own
%% signature.
is_whole(#key{private = Private}) ->
    Signed = jose_jws:sign(Private, ~"", #{~"alg" => ~"ES256"}),
    {Verified, _, _} = jose_jws:verify(jose_jwk:to_public(Private), Signed),
    Verified.
