-module(erlmcp_dpop_nonce).
-moduledoc """
The nonces that proofs of possession must have if the option `dpop_nonce` is `true`. A nonce is
computed from its period of five minutes and a secret. It is valid in its period and in the next
one. Clients are given nonces of the first secret, and nonces of every secret are accepted.

Source: RFC 9449, section 9.

Internal.
""".

-export([new/0, current/2, period/3]).

-export_type([secrets/0]).

-type secrets() :: [binary(), ...].

-define(SECONDS, 300).

-doc "Generates a secret for a listener that shares its nonces with no other one.".
-spec new() -> secrets().
new() ->
    [crypto:strong_rand_bytes(32)].

-doc "Returns the nonce of the period of `Now`, in seconds of system time.".
-spec current(secrets(), Now :: integer()) -> binary().
current([Secret | _], Now) ->
    nonce(Secret, Now div ?SECONDS).

-doc """
Returns `current` if `Nonce` is that of the period of `Now`, in seconds of system time. Returns
`previous` if `Nonce` is that of the period before, and `false` for any other term.
""".
-spec period(secrets(), Nonce :: term(), Now :: integer()) -> current | previous | false.
period(Secrets, Nonce, Now) when is_binary(Nonce) ->
    Time = Now div ?SECONDS,
    case {is_of(Secrets, Nonce, Time), is_of(Secrets, Nonce, Time - 1)} of
        {true, _} -> current;
        {_, true} -> previous;
        _ -> false
    end;
period(_, _, _) ->
    false.

is_of(Secrets, Nonce, Time) ->
    lists:any(fun(Secret) -> is(Nonce, nonce(Secret, Time)) end, Secrets).

is(Nonce, Expected) ->
    byte_size(Nonce) =:= byte_size(Expected) andalso crypto:hash_equals(Nonce, Expected).

nonce(Secret, Time) ->
    erlmcp_base64url:encode(crypto:macN(hmac, sha256, Secret, <<Time:64>>, 16)).
