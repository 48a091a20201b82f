-module(erlmcp_cli_json).
-moduledoc "Decodes JSON that a user has typed, and shows where an error is. Pure.".

-export([decode/1]).

%% The most characters of a line that are shown before the wrong one, and from it on.
-define(BEFORE, 50).
-define(AFTER, 20).
%% More characters than any word or escape of JSON has, so that the decoder does not wait for the
%% rest of one.
-define(PADDING, "            ").

-doc ~S"""
Returns the value of a JSON text. The error shows where the text ceases to be JSON: a sentence, the
line, and a mark below the wrong character.

## Examples

```erlang
1> erlmcp_cli_json:decode(~B'{"a": 1}').
{ok, #{~"a" => 1}}
2> {error, Why} = erlmcp_cli_json:decode(~B'{"a": 1, b: 2}').
3> string:split(unicode:characters_to_binary(Why), "\n", all).
[~"line 1, column 10: `b` was not expected",
 ~B'  {"a": 1, b: 2}',
 ~"           ^"]
```
""".
-spec decode(binary()) -> {ok, json:decode_value()} | {error, unicode:chardata()}.
decode(Text) ->
    case decoded(Text) of
        {ok, _} = Decoded -> Decoded;
        unfinished ->
            case decoded(<<Text/binary, ?PADDING>>) of
                {error, Position} -> wrong(Text, Position);
                _ -> wrong(Text, byte_size(Text))
            end;
        {error, Position} -> wrong(Text, Position)
    end.

decoded(Text) ->
    try json:decode(Text, ok, #{}) of
        {Value, ok, Rest} ->
            case string:trim(Rest, leading, " \t\r\n") of
                ~"" -> {ok, Value};
                More -> {error, byte_size(Text) - byte_size(More)}
            end
    catch
        error:unexpected_end -> unfinished;
        error:_:Stacktrace ->
            [{_, _, _, Info} | _] = Stacktrace,
            #{cause := #{position := Position}} = proplists:get_value(error_info, Info),
            {error, begun(Text, Position)}
    end.

%% For a word such as `nil`, the decoder reports the second letter, and this function returns the
%% position of the first.
begun(Text, Position) when Position > 0, Position < byte_size(Text) ->
    case binary:part(Text, Position - 1, 2) of
        <<First, Second>> when First =:= $t; First =:= $f; First =:= $n ->
            case Second >= $a andalso Second =< $z of
                true -> Position - 1;
                false -> Position
            end;
        _ ->
            Position
    end;
begun(_, Position) ->
    Position.

wrong(Text, Position) ->
    <<Before:(min(Position, byte_size(Text)))/binary, Rest/binary>> = Text,
    Lines = binary:split(Before, ~"\n", [global]),
    Start = lists:last(Lines),
    [End | _] = binary:split(Rest, ~"\n"),
    {error, [io_lib:format("line ~b, column ~b: ", [length(Lines), count(Start, 1)]), what(Rest),
             pointed(last(Start), first(End))]}.

%% Counts the characters of a line, which may have megabytes.
count(<<Part:2, _:6, Line/binary>>, Count) when Part =:= 2#10 -> count(Line, Count);
count(<<_, Line/binary>>, Count) -> count(Line, Count + 1);
count(<<>>, Count) -> Count.

last(Line) ->
    Bytes = min(byte_size(Line), 4 * (?BEFORE + 4)),
    characters(binary:part(Line, byte_size(Line), -Bytes)).

first(Line) -> characters(binary:part(Line, 0, min(byte_size(Line), 4 * (?AFTER + 1)))).

what(~"") -> "the text ends here, and its JSON does not";
what(<<$\n, _/binary>>) -> "the end of a line was not expected";
what(<<C/utf8, _/binary>>) -> ["`", <<C/utf8>>, "` was not expected"];
what(_) -> "UTF-8 was expected".

%% Returns one character for each that is shown, so that the mark stands below the right one.
characters(Line) ->
    [case erlmcp_printable:is_visible(C) of
         true -> C;
         false -> 16#fffd
     end || C <- decoded_characters(Line)].

decoded_characters(<<C/utf8, Line/binary>>) -> [C | decoded_characters(Line)];
decoded_characters(<<_, Line/binary>>) -> [16#fffd | decoded_characters(Line)];
decoded_characters(<<>>) -> [].

pointed(Start, End) ->
    Left = case length(Start) > ?BEFORE of
        true -> "..." ++ lists:nthtail(length(Start) - ?BEFORE, Start);
        false -> Start
    end,
    Right = case length(End) > ?AFTER of
        true -> lists:sublist(End, ?AFTER) ++ "...";
        false -> End
    end,
    ["\n  ", Left, Right, "\n  ", lists:duplicate(length(Left), $\s), "^"].
