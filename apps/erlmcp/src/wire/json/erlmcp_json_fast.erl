-module(erlmcp_json_fast).
-moduledoc """
A quick decoder for valid JSON within limits, as nearly all messages are. For any other message it
returns only `other`, and `m:erlmcp_json` finds the reason. Strings that are not plain ASCII, and
numbers that are not small integers, are left to `m:json`, each by itself. The module also tells
which texts are the same as JSON strings. Pure.

Internal.
""".

-export([decode/4, last/5, is_plain/1]).

-compile({inline, [object/1]}).

%% Digits of a small integer, and bytes of any other number. `m:json` makes a number with an
%% exponent and no fraction two bytes longer, and `m:erlmcp_json` takes at most 400. So longer ones
%% are left to it.
-define(SMALL, 18).
-define(NUMBER, 398).
%% Bytes of a text that is worth reading twice, if it turns out not to be plain.
-define(SHORT, 1_024).

-define(IS_SPACE(C), C =:= $\s; C =:= $\n; C =:= $\r; C =:= $\t).
%% Whether none of seven bytes of a string is a control character, a quote, a backslash, or outside
%% of ASCII. Subtracting a greater byte sets the highest bit of a byte that did not have it. (A byte
%% equals a quote if its difference to a quote is less than 1.)
-define(ALL(Byte), (Byte * 16#01010101010101)).
-define(LESS(Seven, Byte), ((Seven - ?ALL(Byte)) band bnot Seven)).
-define(ARE_PLAIN(Seven),
        (Seven bor ?LESS(Seven, $\s) bor ?LESS((Seven bxor ?ALL($")), 1)
             bor ?LESS((Seven bxor ?ALL($\\)), 1)) band ?ALL(16#80) =:= 0).

%% The place of a value: by itself, in an array, under a key in an object, or as the last member of
%% the outermost object.
-type place() :: alone | element | binary() | last.
%% The places around it, each with the values read there, the last first.
-type around() :: [{place(), list()}].
%% The whole binary, and the object that is known in it.
-type whole() :: {binary(), erlmcp_json:known_object() | none}.
-type outcome() :: {ok, erlmcp_json:json_term()} | other.

-doc """
Decodes a binary whose arrays and objects are no deeper than `Depth`. Its objects may have `Members`
members together, none of them twice. Returns `other` otherwise. A member `_meta` with the text of
the known object becomes that object.
""".
-spec decode(binary(), Depth :: pos_integer(), Members :: pos_integer(),
             erlmcp_json:known_object() | none) -> outcome().
decode(Binary, Depth, Members, Known) ->
    value(Binary, {Binary, Known}, 0, alone, [], [], Depth, Members).

-doc """
Decodes the value of an object's last member, which must begin behind `Text` at the offset `At`, and
end with the object and the binary. Returns `other` otherwise. The bytes before the value do not
count for `Members` and `Depth`.
""".
-spec last(binary(), {At :: non_neg_integer(), Text :: binary()}, Depth :: integer(),
           Members :: integer(), erlmcp_json:known_object() | none) -> outcome().
last(Binary, {At, Text}, Depth, Members, Known) ->
    Size = byte_size(Text),
    case Binary of
        <<_:At/binary, Text:Size/binary, Rest/binary>> ->
            value(Rest, {Binary, Known}, At + Size, last, [], [], Depth, Members);
        _ ->
            other
    end.

%% The arguments of all these functions: the unread bytes, the whole, and the offset of the unread
%% bytes in it; the place of the value, the values read there, and the places around it; the
%% remaining depth and members.
-spec value(binary(), whole(), non_neg_integer(), place(), list(), around(), non_neg_integer(),
            integer()) -> outcome().
value(<<$", Rest/binary>>, Whole, At, Place, Read, Around, Depth, Left) ->
    string(Rest, Whole, At + 1, 0, Place, Read, Around, Depth, Left);
value(<<${, Rest/binary>>, Whole, At, Place, Read, Around, Depth, Left) when Depth > 0 ->
    first_key(Rest, Whole, At + 1, [{Place, Read} | Around], Depth - 1, Left);
value(<<C, Rest/binary>>, Whole, At, Place, Read, Around, Depth, Left) when C >= $1, C =< $9 ->
    integer(Rest, Whole, At, 1, C - $0, Place, Read, Around, Depth, Left);
value(<<$[, Rest/binary>>, Whole, At, Place, Read, Around, Depth, Left) when Depth > 0 ->
    first_element(Rest, Whole, At + 1, [{Place, Read} | Around], Depth - 1, Left);
value(<<"true", Rest/binary>>, Whole, At, Place, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + 4, true, Place, Read, Around, Depth, Left);
value(<<"false", Rest/binary>>, Whole, At, Place, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + 5, false, Place, Read, Around, Depth, Left);
value(<<"null", Rest/binary>>, Whole, At, Place, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + 4, null, Place, Read, Around, Depth, Left);
value(<<C, Rest/binary>>, Whole, At, Place, Read, Around, Depth, Left) when ?IS_SPACE(C) ->
    value(Rest, Whole, At + 1, Place, Read, Around, Depth, Left);
value(<<C, Rest/binary>>, Whole, At, Place, Read, Around, Depth, Left) when C =:= $0; C =:= $- ->
    number(Rest, Whole, At, 1, Place, Read, Around, Depth, Left);
value(_, _, _, _, _, _, _, _) ->
    other.

behind(<<$,, Rest/binary>>, Whole, At, Value, Key, Read, Around, Depth, Left) when
    is_binary(Key)
->
    key(Rest, Whole, At + 1, [{Key, Value} | Read], Around, Depth, Left - 1);
behind(<<$}, Rest/binary>>, Whole, At, Value, Key, Read, [{Place, Outside} | Around], Depth, Left)
  when is_binary(Key), Left > 0 ->
    Members = [{Key, Value} | Read],
    case object(Members) of
        Object when map_size(Object) =:= length(Members) ->
            behind(Rest, Whole, At + 1, Object, Place, Outside, Around, Depth + 1, Left - 1);
        _ ->
            other
    end;
behind(<<$,, Rest/binary>>, Whole, At, Value, element, Read, Around, Depth, Left) ->
    value(Rest, Whole, At + 1, element, [Value | Read], Around, Depth, Left);
behind(<<$], Rest/binary>>, Whole, At, Value, element, Read, [{Place, Outside} | Around], Depth,
       Left) ->
    Array = lists:reverse(Read, [Value]),
    behind(Rest, Whole, At + 1, Array, Place, Outside, Around, Depth + 1, Left);
behind(<<C, Rest/binary>>, Whole, At, Value, Place, Read, Around, Depth, Left) when ?IS_SPACE(C) ->
    behind(Rest, Whole, At + 1, Value, Place, Read, Around, Depth, Left);
behind(<<>>, _, _, Value, alone, _, _, _, _) ->
    {ok, Value};
behind(<<"}">>, _, _, Value, last, _, _, _, _) ->
    {ok, Value};
behind(_, _, _, _, _, _, _, _, _) ->
    other.

object([{Key, Value}]) -> #{Key => Value};
object([{One, First}, {Other, Second}]) -> #{One => First, Other => Second};
object(Members) -> maps:from_list(Members).

first_element(<<$], Rest/binary>>, Whole, At, [{Place, Read} | Around], Depth, Left) ->
    behind(Rest, Whole, At + 1, [], Place, Read, Around, Depth + 1, Left);
first_element(<<C, Rest/binary>>, Whole, At, Around, Depth, Left) when ?IS_SPACE(C) ->
    first_element(Rest, Whole, At + 1, Around, Depth, Left);
first_element(Rest, Whole, At, Around, Depth, Left) ->
    value(Rest, Whole, At, element, [], Around, Depth, Left).

first_key(<<$}, Rest/binary>>, Whole, At, [{Place, Read} | Around], Depth, Left) ->
    behind(Rest, Whole, At + 1, #{}, Place, Read, Around, Depth + 1, Left);
first_key(<<C, Rest/binary>>, Whole, At, Around, Depth, Left) when ?IS_SPACE(C) ->
    first_key(Rest, Whole, At + 1, Around, Depth, Left);
first_key(Rest, Whole, At, Around, Depth, Left) ->
    key(Rest, Whole, At, [], Around, Depth, Left).

%% Frequent keys and values are literals, and not built again for each message.
key(<<"\"jsonrpc\":\"2.0\"", Rest/binary>>, Whole, At, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + 15, ~"2.0", ~"jsonrpc", Read, Around, Depth, Left);
key(<<"\"method\":\"tools/call\"", Rest/binary>>, Whole, At, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + 21, ~"tools/call", ~"method", Read, Around, Depth, Left);
key(<<"\"jsonrpc\":", Rest/binary>>, Whole, At, Read, Around, Depth, Left) ->
    value(Rest, Whole, At + 10, ~"jsonrpc", Read, Around, Depth, Left);
key(<<"\"id\":", Rest/binary>>, Whole, At, Read, Around, Depth, Left) ->
    value(Rest, Whole, At + 5, ~"id", Read, Around, Depth, Left);
key(<<"\"method\":", Rest/binary>>, Whole, At, Read, Around, Depth, Left) ->
    value(Rest, Whole, At + 9, ~"method", Read, Around, Depth, Left);
key(<<"\"params\":", Rest/binary>>, Whole, At, Read, Around, Depth, Left) ->
    value(Rest, Whole, At + 9, ~"params", Read, Around, Depth, Left);
key(<<"\"name\":", Rest/binary>>, Whole, At, Read, Around, Depth, Left) ->
    value(Rest, Whole, At + 7, ~"name", Read, Around, Depth, Left);
key(<<"\"arguments\":", Rest/binary>>, Whole, At, Read, Around, Depth, Left) ->
    value(Rest, Whole, At + 12, ~"arguments", Read, Around, Depth, Left);
key(<<"\"_meta\":", Rest/binary>>, Whole, At, Read, Around, Depth, Left) ->
    meta(Rest, Whole, At + 8, Read, Around, Depth, Left);
key(<<"\"io.modelcontextprotocol/protocolVersion\":", Rest/binary>>, Whole, At, Read, Around, Depth,
    Left) ->
    value(Rest, Whole, At + 42, ~"io.modelcontextprotocol/protocolVersion", Read, Around, Depth,
          Left);
key(<<"\"io.modelcontextprotocol/clientInfo\":", Rest/binary>>, Whole, At, Read, Around, Depth,
    Left) ->
    value(Rest, Whole, At + 37, ~"io.modelcontextprotocol/clientInfo", Read, Around, Depth, Left);
key(<<"\"io.modelcontextprotocol/clientCapabilities\":", Rest/binary>>, Whole, At, Read, Around,
    Depth, Left) ->
    value(Rest, Whole, At + 45, ~"io.modelcontextprotocol/clientCapabilities", Read, Around, Depth,
          Left);
key(<<$", Rest/binary>>, Whole, At, Read, Around, Depth, Left) ->
    string(Rest, Whole, At + 1, 0, key, Read, Around, Depth, Left);
key(<<C, Rest/binary>>, Whole, At, Read, Around, Depth, Left) when ?IS_SPACE(C) ->
    key(Rest, Whole, At + 1, Read, Around, Depth, Left);
key(_, _, _, _, _, _, _) ->
    other.

%% No object's text is the beginning of another one's, so a matching beginning is that object.
meta(Rest, {_, {Text, Object, Deep, Members}} = Whole, At, Read, Around, Depth, Left) when
    Deep =< Depth
->
    Size = byte_size(Text),
    case Rest of
        <<Text:Size/binary, More/binary>> ->
            behind(More, Whole, At + Size, Object, ~"_meta", Read, Around, Depth, Left - Members);
        _ ->
            value(Rest, Whole, At, ~"_meta", Read, Around, Depth, Left)
    end;
meta(Rest, Whole, At, Read, Around, Depth, Left) ->
    value(Rest, Whole, At, ~"_meta", Read, Around, Depth, Left).

colon(<<$:, Rest/binary>>, Whole, At, Key, Read, Around, Depth, Left) ->
    value(Rest, Whole, At + 1, Key, Read, Around, Depth, Left);
colon(<<C, Rest/binary>>, Whole, At, Key, Read, Around, Depth, Left) when ?IS_SPACE(C) ->
    colon(Rest, Whole, At + 1, Key, Read, Around, Depth, Left);
colon(_, _, _, _, _, _, _, _) ->
    other.

%% A string begins at `At` in the whole, and `Size` bytes of it are read.
string(<<Seven:56, Rest/binary>>, Whole, At, Size, Place, Read, Around, Depth, Left) when
    ?ARE_PLAIN(Seven)
->
    string(Rest, Whole, At, Size + 7, Place, Read, Around, Depth, Left);
string(Rest, Whole, At, Size, Place, Read, Around, Depth, Left) ->
    string_end(Rest, Whole, At, Size, Place, Read, Around, Depth, Left).

string_end(<<C, Rest/binary>>, Whole, At, Size, Place, Read, Around, Depth, Left) when
    C >= $\s, C < 16#80, C =/= $", C =/= $\\
->
    string_end(Rest, Whole, At, Size + 1, Place, Read, Around, Depth, Left);
string_end(<<$", Rest/binary>>, Whole, At, Size, key, Read, Around, Depth, Left) ->
    colon(Rest, Whole, At + Size + 1, part(Whole, At, Size), Read, Around, Depth, Left);
string_end(<<$", Rest/binary>>, Whole, At, Size, Place, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + Size + 1, part(Whole, At, Size), Place, Read, Around, Depth,
           Left);
string_end(Rest, Whole, At, Size, Place, Read, Around, Depth, Left) ->
    text(Rest, Whole, At, Size, Place, Read, Around, Depth, Left).

%% A string that is not plain: its end is found first, and then it is decoded.
text(<<$", Rest/binary>>, Whole, At, Size, Place, Read, Around, Depth, Left) ->
    case token(Whole, At - 1, Size + 2) of
        {ok, Key} when Place =:= key ->
            colon(Rest, Whole, At + Size + 1, Key, Read, Around, Depth, Left);
        {ok, String} ->
            behind(Rest, Whole, At + Size + 1, String, Place, Read, Around, Depth, Left);
        other ->
            other
    end;
text(<<$\\, _, Rest/binary>>, Whole, At, Size, Place, Read, Around, Depth, Left) ->
    text(Rest, Whole, At, Size + 2, Place, Read, Around, Depth, Left);
text(<<_, Rest/binary>>, Whole, At, Size, Place, Read, Around, Depth, Left) ->
    text(Rest, Whole, At, Size + 1, Place, Read, Around, Depth, Left);
text(<<>>, _, _, _, _, _, _, _, _) ->
    other.

integer(<<C, Rest/binary>>, Whole, At, Size, Integer, Place, Read, Around, Depth, Left) when
    C >= $0, C =< $9, Size < ?SMALL
->
    integer(Rest, Whole, At, Size + 1, Integer * 10 + C - $0, Place, Read, Around, Depth, Left);
integer(<<C, _/binary>> = Rest, Whole, At, Size, _, Place, Read, Around, Depth, Left) when
    C >= $0, C =< $9; C =:= $.; C =:= $e; C =:= $E
->
    number(Rest, Whole, At, Size, Place, Read, Around, Depth, Left);
integer(Rest, Whole, At, Size, Integer, Place, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + Size, Integer, Place, Read, Around, Depth, Left).

number(<<C, Rest/binary>>, Whole, At, Size, Place, Read, Around, Depth, Left) when
    C >= $0, C =< $9; C =:= $.; C =:= $e; C =:= $E; C =:= $+; C =:= $-
->
    number(Rest, Whole, At, Size + 1, Place, Read, Around, Depth, Left);
number(Rest, Whole, At, Size, Place, Read, Around, Depth, Left) when Size =< ?NUMBER ->
    case token(Whole, At, Size) of
        {ok, Number} -> behind(Rest, Whole, At + Size, Number, Place, Read, Around, Depth, Left);
        other -> other
    end;
number(_, _, _, _, _, _, _, _, _) ->
    other.

token(Whole, At, Size) ->
    try
        {ok, json:decode(part(Whole, At, Size))}
    catch
        error:_ -> other
    end.

part({Whole, _}, At, Size) ->
    binary_part(Whole, At, Size).

-doc """
Returns `true` if a text is short, and equals its JSON string without the quotes.

## Examples

```erlang
1> [erlmcp_json_fast:is_plain(Text) || Text <- [~"plain", ~"\t", ~B'"', ~"\x{e9}"]].
[true, false, false, false]
```
""".
-spec is_plain(binary()) -> boolean().
is_plain(Text) ->
    byte_size(Text) =< ?SHORT andalso are_plain(Text).

are_plain(<<Seven:56, Rest/binary>>) when ?ARE_PLAIN(Seven) -> are_plain(Rest);
are_plain(<<C, Rest/binary>>) when C >= $\s, C < 16#80, C =/= $", C =/= $\\ -> are_plain(Rest);
are_plain(Rest) -> Rest =:= <<>>.
