-module(erlmcp_dpop_nonce).
-moduledoc """
The nonces that proofs of possession have to have: one of this time, or of the time before, each of
five minutes. Nothing is kept: a nonce is made of its time with a secret.

Source: RFC 9449, section 9.

Internal.
""".

-export([new/0, current/2, is_known/3]).

-export_type([secret/0]).

-opaque secret() :: binary().

-define(SECONDS, 300).

-doc "A new secret.".
-spec new() -> secret().
new() ->
    crypto:strong_rand_bytes(32).

-doc "The nonce of this second of system time.".
-spec current(secret(), Now :: integer()) -> binary().
current(Secret, Now) ->
    nonce(Secret, Now div ?SECONDS).

-doc "Whether a nonce is that of this time, or was that of the time before.".
-spec is_known(secret(), Nonce :: term(), Now :: integer()) -> current | previous | false.
is_known(Secret, Nonce, Now) when is_binary(Nonce) ->
    Time = Now div ?SECONDS,
    case {is(Nonce, nonce(Secret, Time)), is(Nonce, nonce(Secret, Time - 1))} of
        {true, _} -> current;
        {_, true} -> previous;
        _ -> false
    end;
is_known(_, _, _) ->
    false.

is(Nonce, Known) ->
    byte_size(Nonce) =:= byte_size(Known) andalso crypto:hash_equals(Nonce, Known).

nonce(Secret, Time) ->
    erlmcp_base64url:encode(crypto:macN(hmac, sha256, Secret, <<Time:64>>, 16)).
