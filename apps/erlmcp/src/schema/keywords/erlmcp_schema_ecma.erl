-module(erlmcp_schema_ecma).
-moduledoc """
The translation of regular expressions of ECMA-262 (2023, section 22.2, with the `u` flag) to those
of `m:re`, for the options `unicode`, `dotall` and `dollar_endonly`. Pure.

Syntax that only Perl has (`(?i)`, `(?>`, `(*`, `a++`, `\A`, `\Z`, `\Q`) is refused. In some points
the translation is more lenient than the standard. For example, a backslash may stand before any
character that is neither a letter nor a digit. `{`, `}` and `]` may stand for themselves, and so
may `-` next to `\w` or another set. Back references differ in one point: a group that is repeated
keeps what it has matched, although ECMA-262 forgets that with each repetition.

Internal.
""".

-export([translate/1]).

%% WhiteSpace and LineTerminator of the standard, and their complement.
-define(SPACE, "\\x{9}-\\x{d}\\x{20}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
               "\\x{202f}\\x{205f}\\x{3000}\\x{feff}").
-define(NO_SPACE, "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"
                  "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"
                  "\\x{3001}-\\x{fefe}\\x{ff00}-\\x{10ffff}").

%% Letters, digits and `_` of ASCII, and their complement. Without Unicode properties, the `\w` and
%% `\b` of `m:re` are those of Latin-1 before OTP 28.
-define(WORD, "A-Za-z0-9_").
-define(NO_WORD, "\\x{0}-\\x{2f}\\x{3a}-\\x{40}\\x{5b}-\\x{5e}\\x{60}\\x{7b}-\\x{10ffff}").
-define(BEFORE_WORD, "(?=[" ?WORD "])").
-define(NOT_BEFORE_WORD, "(?![" ?WORD "])").
-define(AFTER_WORD, "(?<=[" ?WORD "])").
-define(NOT_AFTER_WORD, "(?<![" ?WORD "])").

-define(IS_DIGIT(C), (C >= $0 andalso C =< $9)).
-define(IS_SET(C),
    (C =:= $w orelse C =:= $W orelse C =:= $s orelse C =:= $S orelse C =:= $d orelse C =:= $D)
).
-define(IS_ALNUM(C),
    (?IS_DIGIT(C) orelse C >= $a andalso C =< $z orelse C >= $A andalso C =< $Z)
).

-doc """
Translates a regular expression of ECMA-262 to one of `m:re`. Returns `error` for syntax that only
Perl has, and for most malformed expressions. Other malformed expressions are translated, and
`re:compile/2` refuses the result.

## Examples

```erlang
1> {ok, Regex} = erlmcp_schema_ecma:translate(~B"^\p{Letter}+\u00e9.$").
2> iolist_to_binary(Regex).
~B"^\p{L}+\x{e9}[^\n\r\x{2028}\x{2029}]$"
3> erlmcp_schema_ecma:translate(~B"\Z").
error
```
""".
-spec translate(binary()) -> {ok, iodata()} | error.
translate(Text) ->
    try {ok, outside(Text)} catch throw:invalid -> error end.

outside(<<>>) -> [];
outside(<<"\\", Rest/binary>>) -> escape(Rest, outside);
outside(<<"[]", Rest/binary>>) -> [~"(?!)" | quantifier(Rest)];
outside(<<"[^]", Rest/binary>>) -> [~"." | quantifier(Rest)];
outside(<<"[^", Rest/binary>>) -> [~"[^" | inside(Rest)];
outside(<<"[", Rest/binary>>) -> [~"[" | inside(Rest)];
outside(<<".", Rest/binary>>) -> [~B"[^\n\r\x{2028}\x{2029}]" | quantifier(Rest)];
outside(<<"(?:", Rest/binary>>) -> [~"(?:" | outside(Rest)];
outside(<<"(?=", Rest/binary>>) -> [~"(?=" | outside(Rest)];
outside(<<"(?!", Rest/binary>>) -> [~"(?!" | outside(Rest)];
outside(<<"(?<=", Rest/binary>>) -> [~"(?<=" | outside(Rest)];
outside(<<"(?<!", Rest/binary>>) -> [~"(?<!" | outside(Rest)];
outside(<<"(?<", C, Rest/binary>>) when ?IS_ALNUM(C); C =:= $_ -> [~"(?<", C | outside(Rest)];
outside(<<"(?", _/binary>>) -> throw(invalid);
outside(<<"(*", _/binary>>) -> throw(invalid);
outside(<<"(", Rest/binary>>) -> [$( | outside(Rest)];
outside(<<")", Rest/binary>>) -> [$) | quantifier(Rest)];
outside(<<C, Rest/binary>>) when C =:= $|; C =:= $^; C =:= $$ -> [C | outside(Rest)];
%% A quantifier with nothing before it.
outside(<<C, _/binary>>) when C =:= $*; C =:= $+; C =:= $? -> throw(invalid);
outside(<<C, Rest/binary>>) when C =:= ${; C =:= $}; C =:= $] -> [$\\, C | quantifier(Rest)];
outside(<<C/utf8, Rest/binary>>) -> [<<C/utf8>> | quantifier(Rest)];
outside(_) -> throw(invalid).

%% After an expression that can be repeated.
quantifier(Text) ->
    {Quantifier, Rest} = quantified(Text),
    [Quantifier | outside(Rest)].

quantified(<<C, Rest/binary>>) when C =:= $*; C =:= $+; C =:= $? -> lazy(C, Rest);
quantified(<<"{", Rest/binary>> = Text) ->
    case counts(Rest) of
        {Counts, More} -> lazy([${, Counts, $}], More);
        none -> {[], Text}
    end;
quantified(Rest) -> {[], Rest}.

lazy(Quantifier, <<"?", Rest/binary>>) -> {[Quantifier, $?], unquantified(Rest)};
lazy(Quantifier, Rest) -> {Quantifier, unquantified(Rest)}.

%% Two quantifiers are an error in ECMA-262, and possessive in `m:re`.
unquantified(<<C, _/binary>>) when C =:= $*; C =:= $+; C =:= $? -> throw(invalid);
unquantified(<<"{", Rest/binary>> = Text) ->
    counts(Rest) =:= none orelse throw(invalid),
    Text;
unquantified(Rest) -> Rest.

counts(Text) ->
    case digits(Text) of
        {~"", _} -> none;
        {Least, <<"}", Rest/binary>>} -> {Least, Rest};
        {Least, <<",", More/binary>>} ->
            case digits(More) of
                {Most, <<"}", Rest/binary>>} -> {[Least, $,, Most], Rest};
                _ -> none
            end;
        _ -> none
    end.

digits(Text) ->
    digits(Text, 0).

digits(Text, N) ->
    case Text of
        <<_:N/binary, C, _/binary>> when ?IS_DIGIT(C) -> digits(Text, N + 1);
        <<Digits:N/binary, Rest/binary>> -> {Digits, Rest}
    end.

inside(<<"]", Rest/binary>>) -> [$] | quantifier(Rest)];
inside(<<"\\", Rest/binary>>) -> escape(Rest, inside);
inside(<<"[", Rest/binary>>) -> [~B"\[" | inside(Rest)];
inside(<<"-\\", C, Rest/binary>>) when ?IS_SET(C) ->
    [~B"\-" | escape(<<C, Rest/binary>>, inside)];
inside(<<C/utf8, Rest/binary>>) -> [<<C/utf8>> | inside(Rest)];
inside(_) -> throw(invalid).

escape(<<C, Rest/binary>>, Where) when C =:= $f; C =:= $n; C =:= $r; C =:= $t ->
    [$\\, C | continue(Rest, Where)];
escape(<<C, Rest/binary>>, Where) when ?IS_SET(C) -> set(ranges(C), Rest, Where);
escape(<<"v", Rest/binary>>, Where) -> [~B"\x{b}" | continue(Rest, Where)];
escape(<<"b", Rest/binary>>, inside) -> [~B"\x{8}" | inside(Rest)];
escape(<<"b", Rest/binary>>, outside) ->
    ["(?:" ?NOT_AFTER_WORD ?BEFORE_WORD "|" ?AFTER_WORD ?NOT_BEFORE_WORD ")" | outside(Rest)];
escape(<<"B", Rest/binary>>, outside) ->
    ["(?:" ?NOT_AFTER_WORD ?NOT_BEFORE_WORD "|" ?AFTER_WORD ?BEFORE_WORD ")" | outside(Rest)];
escape(<<"c", C, Rest/binary>>, Where)
        when C >= $a, C =< $z; C >= $A, C =< $Z ->
    [character(C rem 32) | continue(Rest, Where)];
escape(<<"0", C, _/binary>>, _) when ?IS_DIGIT(C) -> throw(invalid);
escape(<<"0", Rest/binary>>, Where) -> [~B"\x{0}" | continue(Rest, Where)];
escape(<<C, _/binary>> = Text, outside) when C >= $1, C =< $9 ->
    {Number, Rest} = digits(Text),
    back_reference(Number, [~B"\g{", Number, $}], Rest);
escape(<<"k<", Rest/binary>>, outside) ->
    case binary:split(Rest, ~">") of
        [Name, More] -> back_reference([$<, Name, $>], [~B"\k<", Name, $>], More);
        _ -> throw(invalid)
    end;
escape(<<"x", Hex:2/binary, Rest/binary>>, Where) ->
    [character(hex(Hex)) | continue(Rest, Where)];
escape(<<"u{", Rest/binary>>, Where) ->
    case binary:split(Rest, ~"}") of
        [Hex, More] when byte_size(Hex) =< 8 -> [character(hex(Hex)) | continue(More, Where)];
        _ -> throw(invalid)
    end;
escape(<<"u", High:4/binary, "\\u", Low:4/binary, Rest/binary>>, Where) ->
    case {hex(High), hex(Low)} of
        {H, L} when H >= 16#D800, H =< 16#DBFF, L >= 16#DC00, L =< 16#DFFF ->
            Code = 16#10000 + (H - 16#D800) * 16#400 + L - 16#DC00,
            [character(Code) | continue(Rest, Where)];
        {H, _} ->
            [character(H) | continue(<<"\\u", Low/binary, Rest/binary>>, Where)]
    end;
escape(<<"u", Hex:4/binary, Rest/binary>>, Where) ->
    [character(hex(Hex)) | continue(Rest, Where)];
escape(<<P, "{", Rest/binary>>, Where) when P =:= $p; P =:= $P ->
    case binary:split(Rest, ~"}") of
        [Property, More] -> [$\\, P, ${, property(Property), $} | continue(More, Where)];
        _ -> throw(invalid)
    end;
escape(<<C, _/binary>>, _) when ?IS_ALNUM(C) -> throw(invalid);
escape(<<C, Rest/binary>>, Where) when C < 128 -> [$\\, C | continue(Rest, Where)];
escape(<<C/utf8, Rest/binary>>, Where) -> [<<C/utf8>> | continue(Rest, Where)];
escape(_, _) -> throw(invalid).

%% A reference to a group that has matched nothing yet matches the empty text in ECMA-262, and
%% nothing in `m:re`. It is repeated within its condition: `m:re` copies a repeated condition, and
%% has no room for many copies.
back_reference(Group, Reference, Text) ->
    {Quantifier, Rest} = quantified(Text),
    [~"(?(", Group, $), Reference, Quantifier, $) | outside(Rest)].

continue(Rest, outside) -> quantifier(Rest);
continue(Rest, inside) -> inside(Rest).

ranges($d) -> "0-9";
ranges($D) -> "\\x{0}-\\x{2f}\\x{3a}-\\x{10ffff}";
ranges($w) -> ?WORD;
ranges($W) -> ?NO_WORD;
ranges($s) -> ?SPACE;
ranges($S) -> ?NO_SPACE.

set(Ranges, Rest, outside) -> [$[, Ranges, $] | quantifier(Rest)];
set(Ranges, <<"-", Rest/binary>>, inside) -> [Ranges, ~B"\-" | inside(Rest)];
set(Ranges, Rest, inside) -> [Ranges | inside(Rest)].

hex(Digits) ->
    try binary_to_integer(Digits, 16) of
        N when N >= 0 -> N;
        _ -> throw(invalid)
    catch
        error:badarg -> throw(invalid)
    end.

%% No text contains a lone surrogate.
character(C) when C >= 16#D800, C =< 16#DFFF; C > 16#10FFFF -> throw(invalid);
character(C) -> io_lib:format("\\x{~.16b}", [C]).

property(<<"General_Category=", Name/binary>>) -> category(Name);
property(<<"gc=", Name/binary>>) -> category(Name);
property(<<"Script=", Name/binary>>) -> name(Name);
property(<<"sc=", Name/binary>>) -> name(Name);
property(<<"Script_Extensions=", Name/binary>>) -> [~"scx:", name(Name)];
property(<<"scx=", Name/binary>>) -> [~"scx:", name(Name)];
property(Name) -> category(Name).

%% `m:re` accepts only the short names.
category(Name) ->
    maps:get(Name, #{
        ~"Letter" => ~"L", ~"Cased_Letter" => ~"L&", ~"LC" => ~"L&", ~"Uppercase_Letter" => ~"Lu",
        ~"Lowercase_Letter" => ~"Ll", ~"Titlecase_Letter" => ~"Lt", ~"Modifier_Letter" => ~"Lm",
        ~"Other_Letter" => ~"Lo", ~"Mark" => ~"M", ~"Combining_Mark" => ~"M",
        ~"Nonspacing_Mark" => ~"Mn", ~"Spacing_Mark" => ~"Mc", ~"Enclosing_Mark" => ~"Me",
        ~"Number" => ~"N", ~"Decimal_Number" => ~"Nd", ~"digit" => ~"Nd",
        ~"Letter_Number" => ~"Nl", ~"Other_Number" => ~"No", ~"Punctuation" => ~"P",
        ~"punct" => ~"P", ~"Connector_Punctuation" => ~"Pc", ~"Dash_Punctuation" => ~"Pd",
        ~"Open_Punctuation" => ~"Ps", ~"Close_Punctuation" => ~"Pe",
        ~"Initial_Punctuation" => ~"Pi", ~"Final_Punctuation" => ~"Pf",
        ~"Other_Punctuation" => ~"Po", ~"Symbol" => ~"S", ~"Math_Symbol" => ~"Sm",
        ~"Currency_Symbol" => ~"Sc", ~"Modifier_Symbol" => ~"Sk", ~"Other_Symbol" => ~"So",
        ~"Separator" => ~"Z", ~"Space_Separator" => ~"Zs", ~"Line_Separator" => ~"Zl",
        ~"Paragraph_Separator" => ~"Zp", ~"Other" => ~"C", ~"Control" => ~"Cc", ~"cntrl" => ~"Cc",
        ~"Format" => ~"Cf", ~"Surrogate" => ~"Cs", ~"Private_Use" => ~"Co",
        ~"Unassigned" => ~"Cn"
    }, name(Name)).

name(Name) ->
    case << <<C>> || <<C>> <= Name, ?IS_ALNUM(C) orelse C =:= $_ >> of
        Name -> Name;
        _ -> throw(invalid)
    end.
