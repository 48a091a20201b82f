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
    base64:encode(Bytes, ?OPTIONS).

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
