-module(erlmcp_base64url).
-moduledoc """
Base64 with the URL-safe alphabet and without padding (RFC 4648, section 5). Pure.

Internal.
""".

-export([encode/1, decode/1]).

-define(OPTIONS, #{mode => urlsafe, padding => false}).

-doc """
Encodes bytes as text.

## Examples

```erlang
1> erlmcp_base64url:encode(<<251, 255>>).
~"-_8"
```
""".
-spec encode(binary()) -> binary().
%% Most ids have 24 bytes. They are encoded in one step, into a new binary.
encode(<<A1:6, A2:6, A3:6, A4:6, A5:6, A6:6, A7:6, A8:6, B1:6, B2:6, B3:6, B4:6, B5:6, B6:6, B7:6,
         B8:6, C1:6, C2:6, C3:6, C4:6, C5:6, C6:6, C7:6, C8:6, D1:6, D2:6, D3:6, D4:6, D5:6, D6:6,
         D7:6, D8:6>>) ->
    <<(digit(A1)), (digit(A2)), (digit(A3)), (digit(A4)), (digit(A5)), (digit(A6)), (digit(A7)),
      (digit(A8)), (digit(B1)), (digit(B2)), (digit(B3)), (digit(B4)), (digit(B5)), (digit(B6)),
      (digit(B7)), (digit(B8)), (digit(C1)), (digit(C2)), (digit(C3)), (digit(C4)), (digit(C5)),
      (digit(C6)), (digit(C7)), (digit(C8)), (digit(D1)), (digit(D2)), (digit(D3)), (digit(D4)),
      (digit(D5)), (digit(D6)), (digit(D7)), (digit(D8))>>;
encode(Bytes) ->
    base64:encode(Bytes, ?OPTIONS).

-compile({inline, [digit/1]}).
digit(N) ->
    element(N + 1, {$A, $B, $C, $D, $E, $F, $G, $H, $I, $J, $K, $L, $M, $N, $O, $P, $Q, $R, $S, $T,
                    $U, $V, $W, $X, $Y, $Z, $a, $b, $c, $d, $e, $f, $g, $h, $i, $j, $k, $l, $m, $n,
                    $o, $p, $q, $r, $s, $t, $u, $v, $w, $x, $y, $z, $0, $1, $2, $3, $4, $5, $6, $7,
                    $8, $9, $-, $_}).

-doc """
Decodes a text. Returns `error` unless the text is exactly what `encode/1` returns for the decoded
bytes.

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
