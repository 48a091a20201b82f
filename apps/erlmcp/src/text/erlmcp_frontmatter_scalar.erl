-module(erlmcp_frontmatter_scalar).
-moduledoc """
Values of one line in a frontmatter. Pure.

- A text without quotes, if every YAML reader takes it for a text. Some read `yes`, `1_000`, `0x1f`,
  `12:30` or `2026-07-28` as a boolean, a number or a date; such texts must be quoted.
- `"a text"` with the escapes of JSON, `'a text'` with `''` for a quote.
- `true`, `false`, `null`, and decimal numbers of at most 15 characters.
- `[one, "two"]`: a list of texts; `{}`: an empty mapping.
""".

-export([parse/1, is_plain/1, quoted/1]).

%% Words that YAML 1.1 or 1.2 takes for another value than a text.
-define(WORDS, "|~|=|<<|y|n|yes|no|on|off|true|false|null").
-define(INTEGERS, "|[-+]?0[xob][0-9a-f_]*|[-+]?[0-9][0-9_,]*(:[0-9_]+)*(\\.[0-9_]*)?").
-define(FLOATS, "|[-+]?([0-9][0-9_]*\\.?[0-9_]*)?(e[-+]?[0-9]*)?|"
                "[-+]?\\.([0-9][0-9_]*(e[-+]?[0-9]*)?|inf|nan)?").
-define(DATES, "|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*").
-define(OTHER, "^(" ?WORDS ?INTEGERS ?FLOATS ?DATES ")$").

-doc "Parses a text without space around it, or returns what was expected.".
-spec parse(binary()) -> {ok, erlmcp_frontmatter:value()} | {error, Expected :: binary()}.
parse(<<$", Rest/binary>>) ->
    whole(double(Rest, <<>>));
parse(<<$', Rest/binary>>) ->
    whole(single(Rest, <<>>));
parse(<<$[, Rest/binary>>) ->
    whole(items(spaces(Rest), []));
parse(~"{}") ->
    {ok, #{}};
parse(~"true") ->
    {ok, true};
parse(~"false") ->
    {ok, false};
parse(~"null") ->
    {ok, null};
parse(Text) ->
    case number(Text) of
        {ok, _} = Number ->
            Number;
        error ->
            case is_plain(Text) of
                true -> {ok, Text};
                false -> {error, ~"a text that can stand without quotes; quote it"}
            end
    end.

whole({ok, Value, ~""}) -> {ok, Value};
whole({ok, _, _}) -> {error, ~"nothing after the value, not even a comment"};
whole({error, _} = Error) -> Error.

%% No more digits than a double holds, and no -0: the same number to every reader.
number(Text) when byte_size(Text) =< 15 ->
    case re:run(Text, "^(-(?=.*[1-9]))?(0|[1-9][0-9]*)(\\.[0-9]+)?$",
                [{capture, [3], binary}, dollar_endonly]) of
        {match, [~""]} -> {ok, binary_to_integer(Text)};
        {match, [_]} -> {ok, binary_to_float(Text)};
        nomatch -> error
    end;
number(_) ->
    error.

-doc "Returns `true` if a text needs no quotes, and every reader takes it for a text.".
-spec is_plain(binary()) -> boolean().
is_plain(Text) ->
    re:run(Text, "^[^-?:,\\[\\]{}#&*!|>'\"%@`\\s]", [{capture, none}, unicode]) =:= match
        andalso re:run(Text, ":(\\s|$)|\\s#|\\t", [{capture, none}, dollar_endonly]) =:= nomatch
        andalso not is_other(Text).

is_other(Text) ->
    re:run(Text, ?OTHER, [{capture, none}, caseless, dollar_endonly]) =:= match.

double(<<$", Rest/binary>>, Text) ->
    {ok, Text, Rest};
double(<<$\\, C, Rest/binary>>, Text) ->
    case C of
        $u -> code_point(Rest, Text);
        $n -> double(Rest, <<Text/binary, $\n>>);
        $t -> double(Rest, <<Text/binary, $\t>>);
        $r -> double(Rest, <<Text/binary, $\r>>);
        $b -> double(Rest, <<Text/binary, $\b>>);
        $f -> double(Rest, <<Text/binary, $\f>>);
        _ when C =:= $"; C =:= $\\; C =:= $/ -> double(Rest, <<Text/binary, C>>);
        _ -> {error, ~"an escape that JSON has"}
    end;
double(<<C, Rest/binary>>, Text) ->
    double(Rest, <<Text/binary, C>>);
double(<<>>, _) ->
    {error, ~"a closing quote in the same line"}.

code_point(<<Hex:4/binary, Rest/binary>>, Text) ->
    try binary:decode_hex(Hex) of
        <<C:16>> when C < 16#d800; C > 16#dfff -> double(Rest, <<Text/binary, C/utf8>>);
        _ -> {error, ~"\\u with four hexadecimal digits that are a character"}
    catch
        error:badarg -> {error, ~"\\u with four hexadecimal digits that are a character"}
    end;
code_point(_, _) ->
    {error, ~"\\u with four hexadecimal digits that are a character"}.

single(<<"''", Rest/binary>>, Text) -> single(Rest, <<Text/binary, $'>>);
single(<<$', Rest/binary>>, Text) -> {ok, Text, Rest};
single(<<C, Rest/binary>>, Text) -> single(Rest, <<Text/binary, C>>);
single(<<>>, _) -> {error, ~"a closing quote in the same line"}.

items(<<$], Rest/binary>>, []) ->
    {ok, [], Rest};
items(Rest, Items) ->
    maybe
        {ok, Item, After} ?= item(Rest),
        case spaces(After) of
            <<$], End/binary>> -> {ok, lists:reverse(Items, [Item]), End};
            <<$,, More/binary>> -> items(spaces(More), [Item | Items]);
            _ -> {error, ~"a comma or ] after an item"}
        end
    end.

item(<<$", Rest/binary>>) -> double(Rest, <<>>);
item(<<$', Rest/binary>>) -> single(Rest, <<>>);
item(Text) ->
    case re:run(Text, "^[A-Za-z][A-Za-z0-9_.()*/ -]*", [{capture, all, binary}]) of
        {match, [Item]} ->
            Trimmed = string:trim(Item, trailing),
            case is_other(Trimmed) of
                true -> {error, ~"a text that can stand without quotes; quote it"};
                false -> {ok, Trimmed, binary:part(Text, byte_size(Item),
                                                   byte_size(Text) - byte_size(Item))}
            end;
        nomatch ->
            {error, ~"an item of letters, digits and _ . ( ) * / -; quote others"}
    end.

spaces(<<" ", Rest/binary>>) -> spaces(Rest);
spaces(Rest) -> Rest.

-doc "Returns a text in double quotes, which every reader reads as the same text.".
-spec quoted(binary()) -> iodata().
quoted(Text) ->
    [$", [escaped(C) || <<C/utf8>> <= Text], $"].

escaped($") -> ~"\\\"";
escaped($\\) -> ~"\\\\";
escaped($\n) -> ~"\\n";
escaped(C) when C >= $\s, C < 16#7f; C >= 16#a0, C < 16#2028; C > 16#2029, C < 16#feff;
                C > 16#feff, C < 16#fffe; C > 16#ffff ->
    <<C/utf8>>;
escaped(C) ->
    io_lib:format("\\u~4.16.0b", [C]).
