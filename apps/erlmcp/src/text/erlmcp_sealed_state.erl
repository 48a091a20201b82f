-module(erlmcp_sealed_state).
-moduledoc """
Seals values that clients keep and send back: a seal is encrypted and authenticated with
AES-256-GCM, so that clients can neither read nor change it. Pure: the nonce is an argument, or
derived from the value.

A key ring is a list of 32-byte keys. The first key seals, and each of them opens, so that a key can
be replaced. Put the new key in front, and remove the old one when its seals have expired.

Internal.
""".

-export([seal/3, seal/4, encrypt/4, open/3]).

%% A page of a list seals its cursor.
-compile({inline, [encrypt/4]}).

-doc """
Seals `Plain` with the first key, as printable ASCII. `Bound` is authenticated but is not in the
seal, so the caller of `open/3` must give the same `Bound`. `Nonce` is 12 bytes that must never be
used twice with a key.
""".
-spec seal(Plain :: binary(), Bound :: binary(), Nonce :: <<_:96>>, erlmcp:key_ring()) -> binary().
seal(Plain, Bound, Nonce, Keys) ->
    erlmcp_base64url:encode(encrypt(Plain, Bound, Nonce, Keys)).

-doc """
Encrypts and authenticates `Plain` as `seal/4` does, with the same arguments. Returns the bytes that
`seal/4` encodes as text.
""".
-spec encrypt(Plain :: binary(), Bound :: binary(), Nonce :: <<_:96>>, erlmcp:key_ring()) ->
    binary().
encrypt(Plain, Bound, Nonce, [Key | _]) ->
    {Cipher, Tag} = crypto:crypto_one_time_aead(aes_256_gcm, Key, Nonce, Plain, Bound, 16, true),
    %% With a size the nonce is not taken for a binary that grows, which would be a large one.
    <<Nonce:12/binary, Tag/binary, Cipher/binary>>.

-doc """
Seals `Plain` as `seal/4` does, with a nonce derived from `Plain` and `Bound`. Equal values thus
have equal seals. Use this function only where equality may be visible.
""".
-spec seal(Plain :: binary(), Bound :: binary(), erlmcp:key_ring()) -> binary().
seal(Plain, Bound, [Key | _] = Keys) ->
    %% With the length in front, no two pairs of `Bound` and `Plain` give the same bytes.
    Both = [<<(byte_size(Bound)):32>>, Bound, Plain],
    seal(Plain, Bound, crypto:macN(hmac, sha256, Key, Both, 12), Keys).

-doc """
Opens the seal `Sealed`, and returns its `Plain`. Returns `error` unless the seal was made with one
of the keys and the same `Bound`.
""".
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
