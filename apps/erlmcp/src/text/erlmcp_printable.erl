-module(erlmcp_printable).
-moduledoc """
Makes bytes of a peer safe to show in errors and on terminals. They may be long, not text, or
crafted to deceive a reader. Pure. `erlmcp_value_text:value/1` describes decoded JSON.

Internal.
""".

-export([quoted/1, part/2, beginning/2, text/1, is_visible/1]).

%% Bytes that are enough to recognise a text.
-define(QUOTED, 64).

-doc """
Returns the bytes in quotes, as printable ASCII and spaces; `?` stands for any other byte. Of more
than 64 bytes, only the first 64 are shown, and then `...`.

## Examples

```erlang
1> iolist_to_binary(erlmcp_printable:quoted(~"text/plain")).
~"\"text/plain\""
```
""".
-spec quoted(binary()) -> iodata().
quoted(<<Start:?QUOTED/binary, _, _/binary>>) -> [$", visible(Start), ~"...\""];
quoted(Bytes) -> [$", visible(Bytes), $"].

-doc """
Returns at most `Most` of the bytes as printable ASCII and spaces; `?` stands for any other byte.

## Examples

```erlang
1> erlmcp_printable:part(~"caf\x{e9} au lait", 5).
~"caf??"
```
""".
-spec part(binary(), Most :: non_neg_integer()) -> binary().
part(Bytes, Most) ->
    visible(binary:part(Bytes, 0, min(byte_size(Bytes), Most))).

visible(Bytes) ->
    << <<(case C >= $\s andalso C < 16#7f of true -> C; false -> $? end)>> || <<C>> <= Bytes >>.

-doc """
Returns a copy of the whole characters in the first `Most` bytes of a text. The copy does not keep
the text in memory. If these bytes are not UTF-8, all of them are returned.

## Examples

```erlang
1> erlmcp_printable:beginning(~"café", 4).
~"caf"
2> erlmcp_printable:beginning(~"café", 5).
~"café"
```
""".
-spec beginning(Text :: binary(), Most :: non_neg_integer()) -> binary().
beginning(Text, Most) ->
    Part = binary:part(Text, 0, min(byte_size(Text), Most)),
    binary:copy(case unicode:characters_to_binary(Part) of
        {incomplete, Whole, _} -> Whole;
        _ -> Part
    end).

-doc """
Returns a text in which all characters that a terminal would obey or hide are spelled out. Newlines
and tabs stay. Bytes that are not UTF-8 become U+FFFD.

Other C0 controls, and DEL, become the Unicode pictures for them. C1 controls, and other characters
for which `is_visible/1` returns `false`, become their code points, such as `\u{202E}`.

## Examples

```erlang
1> erlmcp_printable:text(<<"a\e[1m\tb", 16#202e/utf8, 16#1f468/utf8, 16#200d/utf8, "\n">>).
<<"a␛[1m\tb\\u{202E}👨\\u{200D}\n"/utf8>>
2> erlmcp_printable:text(<<"gr", 16#fc, "n">>).
<<"gr", 16#fffd/utf8, "n">>
```
""".
-spec text(binary()) -> binary().
text(Text) -> text(Text, ~"").

text(<<C/utf8, Rest/binary>>, Shown) ->
    case C =:= $\n orelse C =:= $\t orelse is_visible(C) of
        true -> text(Rest, <<Shown/binary, C/utf8>>);
        false -> text(Rest, <<Shown/binary, (spelled(C))/binary>>)
    end;
text(<<_, Rest/binary>>, Shown) ->
    text(Rest, <<Shown/binary, 16#fffd/utf8>>);
text(<<>>, Shown) ->
    Shown.

%% C0 controls and DEL have pictures in Unicode.
spelled(C) when C < $\s -> <<(16#2400 + C)/utf8>>;
spelled(16#7f) -> <<16#2421/utf8>>;
spelled(C) -> <<"\\u{", (integer_to_binary(C, 16))/binary, "}">>.

-doc """
Returns `true` if a character is visible or a space, and has no effect on a terminal. Returns
`false` for controls, separators of lines and paragraphs, and interlinear annotations. Also returns
`false` for the `Default_Ignorable_Code_Point`s of Unicode, such as overrides of direction and
joiners.

## Examples

```erlang
1> [erlmcp_printable:is_visible(C) || C <- [$a, 16#4e16, 16#a0, $\e, 16#200b, 16#2028, 16#e0041]].
[true, true, true, false, false, false, false]
```
""".
-spec is_visible(char()) -> boolean().
is_visible(C) when C >= $\s, C < 16#7f -> true;
is_visible(C) when C < 16#a0 -> false;
is_visible(C) when C < 16#2000 ->
    not lists:member(C, [16#ad, 16#34f, 16#61c, 16#115f, 16#1160, 16#17b4, 16#17b5,
                         16#180b, 16#180c, 16#180d, 16#180e, 16#180f]);
is_visible(C) when C >= 16#200b, C =< 16#200f -> false;
is_visible(C) when C >= 16#2028, C =< 16#202e -> false;
is_visible(C) when C >= 16#2060, C =< 16#206f -> false;
is_visible(16#3164) -> false;
is_visible(C) when C >= 16#fe00, C =< 16#fe0f -> false;
is_visible(C) when C =:= 16#feff; C =:= 16#ffa0 -> false;
%% Interlinear annotations, which only browsers interpret.
is_visible(C) when C >= 16#fff0, C =< 16#fffb -> false;
is_visible(C) when C >= 16#1bca0, C =< 16#1bca3 -> false;
is_visible(C) when C >= 16#1d173, C =< 16#1d17a -> false;
is_visible(C) when C >= 16#e0000, C =< 16#e0fff -> false;
is_visible(_) -> true.
