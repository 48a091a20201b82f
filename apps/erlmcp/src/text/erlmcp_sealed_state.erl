-module(erlmcp_sealed_state).
-moduledoc """
Values that leave the server and must come back unchanged: encrypted and authenticated, with
AES-256-GCM. Pure: a nonce is the caller's, or made of the value.

A key ring is a list of 32-byte keys. The first seals; all of them open, so that a key can be
replaced: put the new one in front, and drop the old one when what it sealed has expired.

Internal.
""".

-export([seal/3, seal/4, open/3]).

-doc """
The bytes sealed, as printable ASCII. `Bound` is not in it, but opening takes the same. The nonce
is 12 bytes that are never used twice with one key.
""".
-spec seal(Plain :: binary(), Bound :: binary(), Nonce :: <<_:96>>, erlmcp:key_ring()) -> binary().
seal(Plain, Bound, Nonce, [Key | _]) ->
    {Cipher, Tag} = crypto:crypto_one_time_aead(aes_256_gcm, Key, Nonce, Plain, Bound, 16, true),
    erlmcp_base64url:encode(<<Nonce/binary, Tag/binary, Cipher/binary>>).

-doc """
The same with a nonce that is made of the value, so that a value sealed twice is the same text: for
what may be known to be the same.
""".
-spec seal(Plain :: binary(), Bound :: binary(), erlmcp:key_ring()) -> binary().
seal(Plain, Bound, [Key | _] = Keys) ->
    %% The length, so that no two pairs are the same bytes.
    Both = [<<(byte_size(Bound)):32>>, Bound, Plain],
    seal(Plain, Bound, crypto:macN(hmac, sha256, Key, Both, 12), Keys).

-doc "The bytes of a seal, if one of the keys and `Bound` made it.".
-spec open(Sealed :: binary(), Bound :: binary(), erlmcp:key_ring()) -> {ok, binary()} | error.
open(Sealed, Bound, Keys) ->
    case erlmcp_base64url:decode(Sealed) of
        {ok, <<Nonce:12/binary, Tag:16/binary, Cipher/binary>>} ->
            open(Keys, Nonce, Tag, Cipher, Bound);
        _ ->
            error
    end.

open([], _, _, _, _) ->
    error;
open([Key | Keys], Nonce, Tag, Cipher, Bound) ->
    case crypto:crypto_one_time_aead(aes_256_gcm, Key, Nonce, Cipher, Bound, Tag, false) of
        error -> open(Keys, Nonce, Tag, Cipher, Bound);
        Plain -> {ok, Plain}
    end.
