-module(erlmcp_base64url).
-moduledoc """
Base64 for URLs, without padding (RFC 4648, section 5): how what is sealed, signed, hashed or random
is written. Pure.
""".

-export([encode/1, decode/1]).

-define(OPTIONS, #{mode => urlsafe, padding => false}).

-doc """
Bytes as text.

## Examples

```erlang
1> erlmcp_base64url:encode(<<251, 255>>).
~"-_8"
```
""".
-spec encode(binary()) -> binary().
encode(Bytes) ->
    encode(Bytes, <<>>).

%% As ids are, which are made often: twelve bytes at once.
encode(<<A:6, B:6, C:6, D:6, E:6, F:6, G:6, H:6, I:6, J:6, K:6, L:6, M:6, N:6, O:6, P:6,
         Rest/binary>>, Text) ->
    encode(Rest, <<Text/binary, (digit(A)), (digit(B)), (digit(C)), (digit(D)), (digit(E)),
                   (digit(F)), (digit(G)), (digit(H)), (digit(I)), (digit(J)), (digit(K)),
                   (digit(L)), (digit(M)), (digit(N)), (digit(O)), (digit(P))>>);
encode(<<>>, Text) ->
    Text;
encode(Rest, Text) ->
    <<Text/binary, (base64:encode(Rest, ?OPTIONS))/binary>>.

-compile({inline, [digit/1]}).
digit(N) ->
    element(N + 1, {$A, $B, $C, $D, $E, $F, $G, $H, $I, $J, $K, $L, $M, $N, $O, $P, $Q, $R, $S, $T,
                    $U, $V, $W, $X, $Y, $Z, $a, $b, $c, $d, $e, $f, $g, $h, $i, $j, $k, $l, $m, $n,
                    $o, $p, $q, $r, $s, $t, $u, $v, $w, $x, $y, $z, $0, $1, $2, $3, $4, $5, $6, $7,
                    $8, $9, $-, $_}).

-doc """
The bytes of a text, if it is the only way to write them.

## Examples

```erlang
1> erlmcp_base64url:decode(~"-_8").
{ok, <<251, 255>>}
2> erlmcp_base64url:decode(~"-_9").
error
```
""".
-spec decode(binary()) -> {ok, binary()} | error.
decode(Text) ->
    try base64:decode(Text, ?OPTIONS) of
        Bytes ->
            case encode(Bytes) of
                Text -> {ok, Bytes};
                _ -> error
            end
    catch
        error:_ -> error
    end.
