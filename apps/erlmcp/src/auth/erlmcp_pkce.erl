-module(erlmcp_pkce).
-moduledoc """
The proof that who redeems an authorization code is who asked for it. The method is S256.

Source: RFC 7636.
""".

-export([new/0, challenge/1]).

-doc "A verifier of 43 characters (256 bits of chance), which is a secret, and its challenge.".
-spec new() -> #{verifier := binary(), challenge := binary()}.
new() ->
    Verifier = encode(crypto:strong_rand_bytes(32)),
    #{verifier => Verifier, challenge => challenge(Verifier)}.

-doc "The challenge of a verifier.".
-spec challenge(Verifier :: binary()) -> binary().
challenge(Verifier) ->
    encode(crypto:hash(sha256, Verifier)).

encode(Bytes) ->
    base64:encode(Bytes, #{mode => urlsafe, padding => false}).
