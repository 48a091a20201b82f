-module(erlmcp_bench_text).
-moduledoc "Formats numbers and hostile strings as text for a page. Pure.".

-export([number/1, cell/1, html/1, json/1]).

-doc """
Formats a number for people. An integer, or a number from 100 on, has no decimals, and commas
between thousands. A smaller number has at most three significant digits. Below 0.000001, except 0,
it is in scientific notation, with two digits. Negative numbers have the same form, after a minus.

```erlang
> erlmcp_bench_text:number(12345.678).
~"12,346"
> erlmcp_bench_text:number(0.0012345).
~"0.00123"
```
""".
-spec number(number()) -> binary().
number(Value) when Value == 0 -> ~"0";
number(Value) when Value < 0 -> <<"-", (number(-Value))/binary>>;
number(Value) when is_integer(Value) -> thousands(integer_to_binary(Value));
number(Value) when Value >= 100 -> number(round(Value));
number(Value) when Value < 1.0e-6 ->
    iolist_to_binary(io_lib:format("~.2e", [Value]));
number(Value) ->
    Decimals = max(0, 2 - floor(math:log10(Value))),
    Text = float_to_binary(float(Value), [{decimals, Decimals}, compact]),
    case binary:split(Text, ~".0") of
        [Whole, ~""] -> Whole;
        _ -> Text
    end.

thousands(Digits) when byte_size(Digits) =< 3 -> Digits;
thousands(Digits) ->
    Size = byte_size(Digits) - 3,
    <<Front:Size/binary, Back/binary>> = Digits,
    <<(thousands(Front))/binary, ",", Back/binary>>.

-doc """
Escapes a text for a cell of a table of Markdown. A backquote becomes a single quote, and a line
break a space.

```erlang
> erlmcp_bench_text:cell(~"a|b`<c>").
~"a\\|b'&lt;c>"
```
""".
-spec cell(binary()) -> binary().
cell(Text) ->
    << <<(case Character of
              $| -> ~"\\|";
              $` -> ~"'";
              $< -> ~"&lt;";
              $& -> ~"&amp;";
              $\n -> ~" ";
              _ -> <<Character/utf8>>
          end)/binary>> || <<Character/utf8>> <= Text >>.

-doc """
Escapes a text for HTML, between tags or in quotes. Control characters, except line feeds and tabs,
become the replacement character. So do those that embed, override or isolate a direction of
writing.

```erlang
> erlmcp_bench_text:html(~"<b title='x'>").
~"&lt;b title=&#39;x&#39;&gt;"
```
""".
-spec html(unicode:chardata()) -> binary().
html(Text) ->
    Bytes = case unicode:characters_to_binary(Text) of
        Whole when is_binary(Whole) -> Whole;
        %% Not UTF-8: each byte as a character.
        _ -> unicode:characters_to_binary(iolist_to_binary(Text), latin1)
    end,
    << <<(escaped(Character))/binary>> || <<Character/utf8>> <= Bytes >>.

escaped($<) -> ~"&lt;";
escaped($>) -> ~"&gt;";
escaped($&) -> ~"&amp;";
escaped($") -> ~"&quot;";
escaped($') -> ~"&#39;";
escaped(Character) when Character =:= $\n; Character =:= $\t -> <<Character>>;
escaped(Character) when Character < 16#20;
                        Character >= 16#7f, Character < 16#a0;
                        Character >= 16#202a, Character =< 16#202e;
                        Character >= 16#2066, Character =< 16#2069 -> <<16#fffd/utf8>>;
escaped(Character) -> <<Character/utf8>>.

-doc "Encodes a term as JSON for a `script` element, which no part of the JSON can end.".
-spec json(json:encode_value()) -> binary().
json(Value) ->
    << <<(inert(Byte))/binary>> || <<Byte>> <= iolist_to_binary(json:encode(Value)) >>.

%% These characters occur only in strings.
inert($<) -> ~"\\u003c";
inert($>) -> ~"\\u003e";
inert($&) -> ~"\\u0026";
inert(Byte) -> <<Byte>>.
