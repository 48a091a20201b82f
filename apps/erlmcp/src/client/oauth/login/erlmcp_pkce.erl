-module(erlmcp_pkce).
-moduledoc """
The proof (PKCE) that an authorization code is redeemed by the client that asked for it. The method
is S256.

Source: RFC 7636.

Internal.
""".

-export([new/0, challenge/1]).

-doc """
Generates a verifier of 43 characters (256 random bits), which is a secret, and its challenge.
""".
-spec new() -> #{verifier := binary(), challenge := binary()}.
new() ->
    Verifier = erlmcp_base64url:encode(crypto:strong_rand_bytes(32)),
    #{verifier => Verifier, challenge => challenge(Verifier)}.

-doc "Returns the challenge of a verifier.".
-spec challenge(Verifier :: binary()) -> binary().
challenge(Verifier) ->
    erlmcp_base64url:encode(crypto:hash(sha256, Verifier)).
