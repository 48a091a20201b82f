-module(erlmcp_visible).
-moduledoc """
Bytes of a peer's as a sentence shows them: what came may be long, no text, or made to disturb who
reads it. Pure. What has been decoded from JSON is told by `erlmcp_schema_text:value/1`.
""".

-export([quoted/1, part/2]).

%% Enough to find it by.
-define(QUOTED, 64).

-doc """
Bytes in quotes, no more than the first of them.

## Examples

```erlang
1> iolist_to_binary(erlmcp_visible:quoted(~"text/plain")).
~"\"text/plain\""
```
""".
-spec quoted(binary()) -> iodata().
quoted(<<Start:?QUOTED/binary, _, _/binary>>) -> [$", visible(Start), ~"...\""];
quoted(Bytes) -> [$", visible(Bytes), $"].

-doc """
At most so many of these bytes, visible characters of ASCII and spaces; `?` stands for what is none.

## Examples

```erlang
1> erlmcp_visible:part(~"caf\x{e9} au lait", 5).
~"caf??"
```
""".
-spec part(binary(), Most :: non_neg_integer()) -> binary().
part(Bytes, Most) ->
    visible(binary:part(Bytes, 0, min(byte_size(Bytes), Most))).

visible(Bytes) ->
    << <<(case C >= $\s andalso C < 16#7f of true -> C; false -> $? end)>> || <<C>> <= Bytes >>.
