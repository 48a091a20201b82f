-module(frontmatter_SUITE).
-moduledoc """
The frontmatter of a `SKILL.md`: what is read, and as what; what is refused, and in which line. What
the subset of YAML means was tried against PyYAML, js-yaml and yaml (YAML 1.1 and 1.2).
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([scalars_are_read/1, ambiguous_scalars_are_refused/1, quotes_are_read/1, lists_are_read/1,
         mappings_are_read/1, block_scalars_are_read/1, line_ends_do_not_matter/1,
         what_is_refused_is_named_by_line/1, bounds_hold/1]).
-export([composed_fields_come_back/1, any_text_is_answered/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

value(Text) ->
    case erlmcp_frontmatter:parse(<<"---\nkey: ", Text/binary, "\n---\n">>) of
        {ok, #{~"key" := Value}} -> Value;
        {error, {2, Expected}} when is_binary(Expected) -> refused
    end.

scalars_are_read(_) ->
    [{Text, Value} = {Text, value(Text)}
     || {Text, Value} <- [
            {~"some text", ~"some text"}, {~"  two  spaces  ", ~"two  spaces"},
            {~"hé ü 日本", ~"hé ü 日本"}, {~"http://example.com/#x", ~"http://example.com/#x"},
            {~"Bash(git:*) Read", ~"Bash(git:*) Read"}, {~"a'b\"c", ~"a'b\"c"},
            {~"2.1.0", ~"2.1.0"},
            {~"1st", ~"1st"}, {~"true", true}, {~"false", false}, {~"null", null}, {~"0", 0},
            {~"-17", -17}, {~"999999999999999", 999999999999999}, {~"1.50", 1.5},
            {~"-0.25", -0.25}, {~"{}", #{}}]].

%% Some readers make a boolean, a number, a date or nothing of these.
ambiguous_scalars_are_refused(_) ->
    [{Text, refused} = {Text, value(Text)}
     || Text <- [~"yes", ~"No", ~"ON", ~"off", ~"y", ~"N", ~"True", ~"FALSE", ~"Null", ~"~", ~"-0",
                 ~"007", ~"+1", ~"1_000", ~"0x1f", ~"0o17", ~"0b1", ~"12:30", ~"1e5", ~".5", ~"5.",
                 ~".inf", ~"-.INF", ~".NaN", ~"=", ~"<<", ~"2026-07-28", ~"2026-7-8 10:00", ~"e5",
                 ~".", ~"9999999999999999", ~"1234567890.12345"]].

quotes_are_read(_) ->
    [{Text, Value} = {Text, value(Text)}
     || {Text, Value} <- [
            {~B|"yes"|, ~"yes"}, {~B|""|, ~""}, {~B|"a: b # c"|, ~"a: b # c"},
            {~B|"\"\\\/\b\f\n\r\t"|, ~"\"\\/\b\f\n\r\t"}, {~B|"\u00e9\u65E5"|, ~"é日"},
            {~B|'it''s'|, ~"it's"}, {~B|'\n'|, ~"\\n"}, {~B|''|, ~""}, {~B|"a" |, ~"a"},
            {~B|"\x41"|, refused}, {~B|"\ud83d\ude00"|, refused}, {~B|"\u12"|, refused},
            {~B|"\u+123"|, refused}, {~B|"a|, refused}, {~B|'a|, refused}, {~B|"a" b|, refused},
            {~B|"a" # b|, refused}, {~B|'a''|, refused}]].

lists_are_read(_) ->
    [{Text, Value} = {Text, value(Text)}
     || {Text, Value} <- [
            {~"[]", []}, {~"[Read]", [~"Read"]},
            {~"[ Read , \"a, b\", 'c''d' ]", [~"Read", ~"a, b", ~"c'd"]},
            {~"[Read,]", refused}, {~"[Read", refused}, {~"[a: b]", refused}, {~"[yes]", refused},
            {~"[[a]]", refused}, {~"[a] b", refused}]],
    {ok, #{~"a" := [~"one", ~"two: 2"], ~"b" := [1, true]}} =
        erlmcp_frontmatter:parse(
            ~"---\na:\n  - one\n  # no item\n\n  -  \"two: 2\"\nb:\n- 1\n- true\n---\n").

mappings_are_read(_) ->
    {ok, #{~"name" := ~"x", ~"a" := #{~"b" := #{~"c.d/e-f_g" := ~"1"}, ~"h" := ~"2"}}} =
        erlmcp_frontmatter:parse(
            ~"""
            ---
            # a comment
            name: x

            a:
                b:
                  # another
                  c.d/e-f_g: "1"
                h: "2"
            ---
            name: not this
            """),
    {ok, #{}} = erlmcp_frontmatter:parse(~"---\n---\n"),
    {ok, #{~"a" := ~"b"}} = erlmcp_frontmatter:parse(~"---\na: b\n--- \t\n---\n").

block_scalars_are_read(_) ->
    [{Text, Value} = {Text, value(Text)}
     || {Text, Value} <- [
            {~"|\n  one\n  two", ~"one\ntwo\n"},
            {~"|-\n  one\n   more\n\n  two\n", ~"one\n more\n\ntwo"},
            {~">\n  one\n  two\n\n\n  three\n\n", ~"one two\n\nthree\n"},
            {~">-\n  one \n  two", ~"one  two"},
            {~">-\n  # no comment\n  a: b", ~"# no comment a: b"},
            {~"|-\n  one\n# comment", ~"one"}]],
    [{Text, {error, {Line, _}}} =
         {Text, erlmcp_frontmatter:parse(<<"---\nkey: ", Text/binary, "\n---\n">>)}
     || {Line, Text} <- [
            {2, ~"|+\n  one"}, {2, ~">2\n  one"}, {2, ~"|-\n\n  one"}, {2, ~"|-"},
            {2, ~"|-\none: 1"},
            {2, ~"|-\n\tone"}, {4, ~">-\n  one\n   more"}, {4, ~"|-\n  one\n two"},
            {4, ~"|-\n   one\n      \n   two"}, {4, ~">-\n  one\n  \tmore"}]].

line_ends_do_not_matter(_) ->
    Text = ~"---\nname: x\nd: >-\n  one\n\n  two\nl:\n  - a\n---\nText\n",
    {ok, Known} = erlmcp_frontmatter:parse(Text),
    {ok, Known} = erlmcp_frontmatter:parse(binary:replace(Text, ~"\n", ~"\r\n", [global])).

what_is_refused_is_named_by_line(_) ->
    [{Text, {error, {Line, _}}} = {Text, erlmcp_frontmatter:parse(Text)}
     || {Line, Text} <- [
            {1, ~""}, {1, ~"name: x\n"}, {1, ~"\n---\nname: x\n---\n"},
            {1, ~"--- \nname: x\n---\n"},
            {1, ~"\x{feff}---\nname: x\n---\n"}, {1, ~"---\nname: x\n"}, {1, ~"---"},
            {3, ~"---\na: b\na: c\n---\n"}, {3, ~"---\na: b\n  c\n---\n"},
            {3, ~"---\na: b\n  c: d\n---\n"},
            {2, ~"---\n a: b\n---\n"}, {2, ~"---\n- a\n---\n"}, {2, ~"---\na\n---\n"},
            {2, ~"---\na:b\n---\n"},
            {2, ~"---\n? a\n---\n"}, {2, ~"---\n\"a\": b\n---\n"}, {2, ~"---\nyes: b\n---\n"},
            {2, ~"---\n1: b\n---\n"}, {2, ~"---\na: b: c\n---\n"}, {2, ~"---\na: b #c\n---\n"},
            {2, ~"---\na: &b c\n---\n"}, {2, ~"---\na: *b\n---\n"}, {2, ~"---\na: !b c\n---\n"},
            {2, ~"---\na: {b: c}\n---\n"}, {2, ~"---\na: @b\n---\n"}, {2, ~"---\na: %b\n---\n"},
            {2, ~"---\na: `b\n---\n"}, {2, ~"---\na: - b\n---\n"}, {2, ~"---\na:\tb\n---\n"},
            {2, ~"---\na: b\tc\n---\n"}, {2, ~"---\na: b\t\n---\n"}, {3, ~"---\na: b\n\t\n---\n"},
            {3, ~"---\na:\n\tb: c\n---\n"}, {2, ~"---\na:\nb: c\n---\n"}, {2, ~"---\na:\n---\n"},
            {2, ~"---\na: # b\n---\n"}, {4, ~"---\na:\n  - b\n  c: d\n---\n"},
            {3, ~"---\na:\n  - - b\n---\n"},
            {3, ~"---\na:\n  - b: c\n---\n"}, {3, ~"---\na:\n  - |-\n    b\n---\n"},
            {2, ~"---\n...\n---\n"}, {2, ~"---\n%YAML 1.2\n---\n"},
            {2, <<"---\na: ", 255, "\n---\n">>},
            {2, ~"---\na: \x{0}\n---\n"}, {2, ~"---\na: \x{85}\n---\n"},
            {2, ~"---\na: \x{2028}\n---\n"}]].

bounds_hold(_) ->
    Long = fun(Bytes) ->
        Fixed = byte_size(~"---\na: \n---"),
        erlmcp_frontmatter:parse(<<"---\na: ", (binary:copy(~"x", Bytes - Fixed))/binary, "\n---">>)
    end,
    {ok, _} = Long(65536),
    TooLong = ~"a line --- that ends the frontmatter, within 65536 bytes",
    {error, {1, TooLong}} = Long(65537),
    %% Wherever the bound is in a line: in a character, or behind what would end the frontmatter.
    Cut = fun(Line, At) ->
        Before = [~"---\n#", binary:copy(~"x", 65536 - At - byte_size(~"---\n#\n")), $\n],
        erlmcp_frontmatter:parse(iolist_to_binary([Before, Line]))
    end,
    [{error, {1, TooLong}} = Cut(~"a: 世界\n---\n", At) || At <- lists:seq(0, 12)],
    [{error, {1, TooLong}} = Cut(~"---a\n---\n", At) || At <- lists:seq(0, 7)],
    {ok, #{~"a" := ~"世界"}} = Cut(~"a: 世界\n---\n", 13),
    {ok, #{}} = Cut(~"---\nText\n", 3),
    {error, {1, _}} = erlmcp_frontmatter:parse(binary:copy(~"x", 70000)),
    Deep = fun(Depth) ->
        Lines = [[binary:copy(~" ", N), ~"a:\n"] || N <- lists:seq(0, Depth - 2)],
        erlmcp_frontmatter:parse(iolist_to_binary(
            [~"---\n", Lines, binary:copy(~" ", Depth - 1), ~"a: b\n---\n"]))
    end,
    {ok, _} = Deep(8),
    {error, {9, ~"at most 8 mappings within each other"}} = Deep(9).

composed_fields_come_back(_) ->
    erlmcp_test_property:holds(?FORALL(Fields, fields(),
        {ok, maps:from_list(Fields)} =:= erlmcp_frontmatter:parse(
            <<(erlmcp_frontmatter:compose(Fields))/binary, "---\nText\n">>)), 500).

fields() ->
    ?LET(Fields, list({key(), oneof([text(), list(text()), non_empty(map(key(), text()))])}),
         maps:to_list(maps:from_list(Fields))).

key() ->
    ?LET(Rest, list(oneof("ab1_-./")), list_to_binary([$k | Rest])).

text() ->
    ?LET(Characters, list(oneof([char(),
                                 oneof("\"'\\:#-[]{}\n\t\r\x{85}\x{2028}\x{feff}\x{7f} ")])),
         unicode:characters_to_binary([C || C <- Characters, C < 16#d800 orelse C > 16#dfff])).

any_text_is_answered(_) ->
    erlmcp_test_property:holds(?FORALL(Text, soup(),
        case erlmcp_frontmatter:parse(<<"---\n", Text/binary>>) of
            {ok, #{} = Known} -> is_binary(iolist_to_binary(json:encode(Known)));
            {error, {Line, Expected}} -> Line > 0 andalso is_binary(Expected)
        end), 3000).

soup() ->
    Parts = [~"a", ~"b: ", ~"\n", ~"\n", ~"\n  ", ~"\n    ", ~"- ", ~": ", ~"#", ~"\"", ~"'",
             ~"\\", ~"|", ~">-", ~"[", ~"]", ~",", ~"\t", ~"\r", ~"---\n", ~"\n---\n", ~"é",
             <<255>>, ~"1", ~"{}", ~"&", ~"*"],
    ?LET(Chosen, list(oneof(Parts)), iolist_to_binary([Chosen, ~"\n---\n"])).
