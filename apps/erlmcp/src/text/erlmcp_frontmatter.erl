-module(erlmcp_frontmatter).
-moduledoc """
Parses the YAML frontmatter of a `SKILL.md` to a map that is JSON. Pure.

Only a subset of YAML is accepted, which every YAML parser understands in the same way. Other YAML
is refused, with the line and the form to use instead. The subset has

- mappings of plain keys, nested by indentation with spaces, up to 8 levels. A plain key is a letter
  or `_`, then letters, digits, `_`, `-`, `.` and `/`. Words such as `yes` and `null` are no keys;
- values of one line:
  - a text without quotes that every YAML reader takes for a text. `yes`, `1_000`, `0x1f`, `12:30`
    and `2026-07-28` need quotes, since some read them as a boolean, a number or a date;
  - `"a text"` with the escapes of JSON, except surrogates, and `'a text'` with `''` for a quote;
  - `true`, `false`, `null`, and decimal numbers of at most 15 characters;
  - `[one, "two"]`, a list of texts, and `{}`, an empty mapping;
- block scalars: `|`, `|-`, `>` and `>-`, the folded ones without lines that are indented more;
- lists of one-line values, each in a line of its own after `- `, below their key;
- whole lines that are comments.

The subset has no anchors, aliases, tags, other values of several lines, or comments after a value.

Source: <https://yaml.org/spec/1.2.2/> and <https://agentskills.io/specification>.

Internal.
""".

-export([parse/1, compose/1]).

-export_type([value/0, error/0]).

-type value() ::
    binary() | number() | boolean() | null | [value()] | #{binary() => value()}.
-type error() :: {Line :: pos_integer(), Expected :: binary()}.
-type line() :: {pos_integer(), Indent :: non_neg_integer() | tab, Text :: binary()}.

%% The most bytes of the frontmatter, and the most levels of mappings.
-define(MAX_BYTES, 65_536).
-define(MAX_DEPTH, 8).

%% Texts without quotes that YAML 1.1 or 1.2 parses as another type.
-define(WORDS, "|~|=|<<|y|n|yes|no|on|off|true|false|null").
-define(INTEGERS, "|[-+]?0[xob][0-9a-f_]*|[-+]?[0-9][0-9_,]*(:[0-9_]+)*(\\.[0-9_]*)?").
-define(FLOATS, "|[-+]?([0-9][0-9_]*\\.?[0-9_]*)?(e[-+]?[0-9]*)?|"
                "[-+]?\\.([0-9][0-9_]*(e[-+]?[0-9]*)?|inf|nan)?").
-define(DATES, "|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*").
-define(OTHER, "^(" ?WORDS ?INTEGERS ?FLOATS ?DATES ")$").

-doc """
Parses the frontmatter of a Markdown text: the lines between its first line, which must be `---`,
and the next line `---`. Both of these lines must be within the first 65,536 bytes. The error has
the number of the wrong line, and what was expected in it. If there is no second line `---`, this
number is 1.

```erlang
{ok, #{~"name" := ~"tidy", ~"metadata" := #{~"version" := ~"1.0"}}} =
    erlmcp_frontmatter:parse(~"---\nname: tidy\nmetadata:\n  version: \"1.0\"\n---\nText\n").
{error, {2, _}} = erlmcp_frontmatter:parse(~"---\nname: *tidy\n---\n").
```
""".
-spec parse(binary()) -> {ok, #{binary() => value()}} | {error, error()}.
parse(Markdown) ->
    %% One byte more, since the last line may end there.
    Head = binary:part(Markdown, 0, min(byte_size(Markdown), ?MAX_BYTES + 1)),
    try
        [First | Rest] = binary:split(Head, ~"\n", [global]),
        ok = opening(First),
        Lines = until_closed(whole_lines(Rest, Head), 2, []),
        {Mapping, []} = mapping(Lines, 0, 1, #{}),
        {ok, Mapping}
    catch
        throw:{Line, Expected} -> {error, {Line, Expected}}
    end.

opening(Line) when Line =:= ~"---"; Line =:= ~"---\r" -> ok;
opening(_) -> throw({1, ~"--- alone in the first line"}).

%% Of a text that is too long, the last line is a part of one, or empty.
whole_lines([_ | _] = Lines, Head) when byte_size(Head) > ?MAX_BYTES -> lists:droplast(Lines);
whole_lines(Lines, _) -> Lines.

until_closed([Raw | Rest], Number, Lines) ->
    Line = without_return(Raw),
    case Line of
        <<"---", Spaces/binary>> ->
            case is_white(Spaces) of
                true -> lists:reverse(Lines);
                false -> until_closed(Rest, Number + 1, [line(Number, Line) | Lines])
            end;
        _ ->
            until_closed(Rest, Number + 1, [line(Number, Line) | Lines])
    end;
until_closed([], _, _) ->
    throw({1, ~"a line --- that ends the frontmatter, within 65536 bytes"}).

without_return(Line) ->
    Size = byte_size(Line) - 1,
    case Line of
        <<Text:Size/binary, $\r>> -> Text;
        _ -> Line
    end.

line(Number, Line) ->
    true = is_printable(Line) orelse throw({Number, ~"printable characters, in UTF-8"}),
    {Number, indent(Line, 0), Line}.

indent(<<" ", Rest/binary>>, Indent) -> indent(Rest, Indent + 1);
indent(<<"\t", _/binary>>, _) -> tab;
indent(_, Indent) -> Indent.

%% Some parsers take the excluded characters for the end of a line, or refuse them.
is_printable(<<C/utf8, Rest/binary>>) when
    C =:= $\t; C >= $\s, C < 16#7f; C >= 16#a0, C =/= 16#2028, C =/= 16#2029, C =/= 16#feff,
    C =/= 16#fffe, C =/= 16#ffff
->
    is_printable(Rest);
is_printable(Rest) ->
    Rest =:= <<>>.

is_white(<<C, Rest/binary>>) when C =:= $\s; C =:= $\t -> is_white(Rest);
is_white(Rest) -> Rest =:= <<>>.

-spec mapping([line()], non_neg_integer(), pos_integer(), map()) -> {map(), [line()]}.
mapping(Lines, Indent, Depth, Mapping) ->
    case skip(Lines) of
        [{_, Less, _} | _] = Rest when is_integer(Less), Less < Indent ->
            {Mapping, Rest};
        [{Number, Indent, Text} | Rest] ->
            {Key, Inline} = entry(Number, binary:part(Text, Indent, byte_size(Text) - Indent)),
            false = is_map_key(Key, Mapping) andalso throw({Number, ~"each key once"}),
            {Value, After} = value(Inline, Number, Rest, Indent, Depth),
            mapping(After, Indent, Depth, Mapping#{Key => Value});
        [{Number, _, _} | _] ->
            throw({Number, <<"a key at the indentation of the others; for a value of more lines, "
                             "begin it with >-">>});
        [] ->
            {Mapping, []}
    end.

skip([{Number, tab, _} | _]) ->
    throw({Number, ~"spaces, not tabs, before the text"});
skip([{_, Indent, Text} = Line | Lines]) ->
    case Text of
        <<_:Indent/binary>> -> skip(Lines);
        <<_:Indent/binary, "#", _/binary>> -> skip(Lines);
        _ -> [Line | Lines]
    end;
skip([]) ->
    [].

entry(Number, Text) ->
    case re:run(Text, "^([A-Za-z_][A-Za-z0-9_./-]*):(?: +(.*))?$",
                [{capture, all_but_first, binary}, dollar_endonly]) of
        {match, [Key | Inline]} ->
            case is_plain(Key) of
                true -> {Key, trimmed(iolist_to_binary(Inline))};
                false -> throw({Number, ~"a key that no YAML reader takes for something else"})
            end;
        nomatch ->
            throw({Number, ~"key: value, the key of letters, digits, _ - . and /"})
    end.

trimmed(Text) ->
    string:trim(Text, trailing, " ").

value(~"", Number, Rest, Indent, Depth) ->
    nested(Number, skip(Rest), Indent, Depth);
value(<<Style, Chomp/binary>>, Number, Rest, Indent, _) when Style =:= $|; Style =:= $> ->
    block(Style, Chomp, Number, Rest, Indent);
value(Inline, Number, Rest, _, _) ->
    {inline(Inline, Number), Rest}.

inline(Text, Number) ->
    case scalar(Text) of
        {ok, Value} -> Value;
        {error, Expected} -> throw({Number, Expected})
    end.

nested(Number, [{_, At, Text} | _] = Lines, Indent, Depth) when is_integer(At), At >= Indent ->
    case Text of
        <<_:At/binary, "- ", _/binary>> -> sequence(Lines, At, []);
        _ when At =:= Indent -> throw({Number, ~"a value; quote an empty one"});
        _ when Depth =:= ?MAX_DEPTH -> throw({Number, ~"at most 8 mappings within each other"});
        _ -> mapping(Lines, At, Depth + 1, #{})
    end;
nested(Number, _, _, _) ->
    throw({Number, ~"a value; quote an empty one"}).

sequence(Lines, At, Items) ->
    case skip(Lines) of
        [{Number, At, Text} | Rest] ->
            case Text of
                <<_:At/binary, "- ", Item/binary>> ->
                    Inline = trimmed(string:trim(Item, leading, " ")),
                    sequence(Rest, At, [inline(Inline, Number) | Items]);
                _ ->
                    {lists:reverse(Items), [{Number, At, Text} | Rest]}
            end;
        [{_, Less, _} | _] = Rest when is_integer(Less), Less < At ->
            {lists:reverse(Items), Rest};
        [{Number, _, _} | _] ->
            throw({Number, ~"- and a value of one line"});
        [] ->
            {lists:reverse(Items), []}
    end.

%% A block scalar, whose first line sets the indentation of all its lines.
block(Style, Chomp, Number, Rest, Indent) ->
    End = case Chomp of
        ~"" -> ~"\n";
        ~"-" -> ~"";
        _ -> throw({Number, ~"| |- > or >-"})
    end,
    case Rest of
        [{_, At, Text} | _] when is_integer(At), At > Indent, byte_size(Text) > At ->
            {Lines, After} = block_lines(Rest, Indent, At, []),
            {<<(joined(Style, Lines))/binary, End/binary>>, After};
        _ ->
            throw({Number, ~"a text in the next line, indented with spaces"})
    end.

block_lines([{Number, Own, Text} | Rest] = Lines, Indent, At, Block) ->
    case Text of
        <<_:At/binary, Line/binary>> when Own =:= At, Line =/= <<>> ->
            block_lines(Rest, Indent, At, [{Number, Line} | Block]);
        <<_:At/binary, Line/binary>> when is_integer(Own), Own > At, byte_size(Text) > Own ->
            block_lines(Rest, Indent, At, [{Number, Line} | Block]);
        _ when Own =:= byte_size(Text), Own =< At ->
            block_lines(Rest, Indent, At, [{Number, ~""} | Block]);
        _ when is_integer(Own), Own =< Indent, byte_size(Text) > Own ->
            {ended(Block), Lines};
        _ ->
            throw({Number, ~"a line of the text, or an empty one, indented with spaces"})
    end;
block_lines([], _, _, Block) ->
    {ended(Block), []}.

%% Empty lines at the end belong to the block of the next line.
ended(Block) ->
    lists:reverse(lists:dropwhile(fun({_, Line}) -> Line =:= ~"" end, Block)).

joined($|, Lines) ->
    iolist_to_binary(lists:join($\n, [Line || {_, Line} <- Lines]));
joined($>, Lines) ->
    iolist_to_binary(folded(Lines)).

%% Folding: the end of a line becomes a space. If empty lines follow, each of them becomes a newline
%% instead.
folded([{Number, <<C, _/binary>>} | _]) when C =:= $\s; C =:= $\t ->
    throw({Number, ~"no line of a folded text indented more than its first; use |-"});
folded([{_, Line}]) ->
    [Line];
folded([{_, Line} | Rest]) ->
    case lists:splitwith(fun({_, Next}) -> Next =:= ~"" end, Rest) of
        {[], _} -> [Line, $\s | folded(Rest)];
        {Empty, More} -> [Line, [$\n || _ <- Empty] | folded(More)]
    end.

%% Returns the value of a one-line text without space around it, or what was expected.
-spec scalar(binary()) -> {ok, value()} | {error, Expected :: binary()}.
scalar(<<$", Rest/binary>>) ->
    whole(double(Rest, <<>>));
scalar(<<$', Rest/binary>>) ->
    whole(single(Rest, <<>>));
scalar(<<$[, Rest/binary>>) ->
    whole(items(spaces(Rest), []));
scalar(~"{}") ->
    {ok, #{}};
scalar(~"true") ->
    {ok, true};
scalar(~"false") ->
    {ok, false};
scalar(~"null") ->
    {ok, null};
scalar(Text) ->
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

%% No more digits than a double has, and no -0, so that every parser reads the same number.
number(Text) when byte_size(Text) =< 15 ->
    case re:run(Text, "^(-(?=.*[1-9]))?(0|[1-9][0-9]*)(\\.[0-9]+)?$",
                [{capture, [3], binary}, dollar_endonly]) of
        {match, [~""]} -> {ok, binary_to_integer(Text)};
        {match, [_]} -> {ok, binary_to_float(Text)};
        nomatch -> error
    end;
number(_) ->
    error.

%% Returns `true` if every YAML parser takes a text without quotes for a text.
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

-doc """
Returns the text of a frontmatter with the given fields, including its lines `---`. Keys must be
plain and differ, and values must be UTF-8. `parse/1` returns the same fields, if the text is not
too long for it.
""".
-spec compose([{binary(), binary() | [binary()] | #{binary() => binary()}}]) -> binary().
compose(Fields) ->
    iolist_to_binary([~"---\n", [field(Key, Value) || {Key, Value} <- Fields], ~"---\n"]).

field(Key, Value) when is_binary(Value) ->
    [Key, ~": ", quoted(Value), $\n];
field(Key, Values) when is_list(Values) ->
    Quoted = [quoted(Value) || Value <- Values],
    [Key, ~": [", lists:join(~", ", Quoted), ~"]\n"];
field(Key, Values) when map_size(Values) =:= 0 ->
    [Key, ~": {}\n"];
field(Key, Values) ->
    [Key, ~":\n", [[~"  ", field(Inner, Value)]
                   || Inner := Value <- maps:iterator(Values, ordered)]].

%% Returns a text in double quotes, with escapes, that every YAML parser reads as the same text.
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
