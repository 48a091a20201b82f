-module(erlmcp_json).
-moduledoc """
Encodes JSON, and decodes it within limits, on top of OTP's `m:json`. Pure. Only `true`, `false` and
`null` become atoms. A decoded string of more than 64 bytes may be a sub-binary of its message, and
then keeps the message in memory.

Standards: RFC 8259; RFC 7493 (I-JSON) for duplicate keys and lone surrogates, which are refused.

Internal.
""".

%% Nearly all messages are valid, so a fast decoder comes first, for up to 65,536 bytes. It passes
%% strings that are not plain ASCII, and numbers that are not small positive integers, to `json` one
%% by one. If the fast decoder fails, `json:decode/3` decodes the message again, and finds the
%% reason of an error.

-export([encode/1, decode/2, decode/3, params/4, known_meta/1, known_object/1, is_known/2,
         is_plain/1]).

-export_type([limits/0, json_term/0, decode_error/0, known_object/0]).

-compile({inline, [object/1]}).

-type limits() :: #{
    message_bytes := pos_integer(), depth := pos_integer(), members := pos_integer(),
    atom() => term()
}.
-type json_term() :: erlmcp_schema:json().
-doc """
An object that is recognised by its text: the text, the decoded object, its depth, and the number of
members in it at all levels.
""".
-type known_object() ::
    {binary(), #{binary() => json_term()}, Depth :: pos_integer(), Members :: non_neg_integer()}.
-type decode_error() ::
    {too_large, Limit :: pos_integer(), Observed :: pos_integer()}
    | {too_deep, Limit :: pos_integer()}
    | {too_many_members, Limit :: pos_integer()}
    | {duplicate_key, Key :: binary()}
    | {number_too_long, Limit :: pos_integer()}
    | {number_out_of_range, Offset :: non_neg_integer()}
    | {invalid_escape, Offset :: non_neg_integer()}
    | {invalid_byte, byte(), Offset :: non_neg_integer()}
    | unexpected_end
    | trailing_bytes.

%% The most bytes of a number. Decoding an integer takes time quadratic in its digits.
-define(NUMBER_BYTES, 400).
%% The most bytes of an object that is recognised by its text.
-define(KNOWN, 1_024).
%% The number of members of a request.
-define(REQUEST, 4).

%% The most bytes of a message for the fast decoder, since an invalid message is decoded twice.
-define(FAST_BYTES, 65_536).
%% The most digits of an integer that the fast decoder reads itself, and the most bytes of any other
%% number. `json:decode/3` makes a number with an exponent and no fraction two bytes longer, which
%% then may have `NUMBER_BYTES`.
-define(SMALL_DIGITS, 18).
-define(FAST_NUMBER_BYTES, 398).
%% The most bytes of a text that `is_plain/1` checks, since a text that is not plain is read twice.
-define(PLAIN_BYTES, 1_024).

-define(IS_SPACE(C), C =:= $\s; C =:= $\n; C =:= $\r; C =:= $\t).
%% Whether none of seven bytes of a string is a control character, a quote, a backslash, or outside
%% of ASCII. Subtracting a greater byte sets the highest bit of a byte that did not have it. A byte
%% equals a quote if `bxor` with a quote makes it less than 1.
-define(ALL(Byte), (Byte * 16#01010101010101)).
-define(LESS(Seven, Byte), ((Seven - ?ALL(Byte)) band bnot Seven)).
-define(ARE_PLAIN(Seven),
        (Seven bor ?LESS(Seven, $\s) bor ?LESS((Seven bxor ?ALL($")), 1)
             bor ?LESS((Seven bxor ?ALL($\\)), 1)) band ?ALL(16#80) =:= 0).

%% The slot that the fast decoder's next value fills: the whole text (`alone`), an `element` of an
%% array, or the member with a key. `last` is the last member of the outermost object.
-type slot() :: alone | element | binary() | last.
%% The slots of the open arrays and objects, innermost first, each with the values read before it in
%% its own container, in reverse order.
-type around() :: [{slot(), list()}].
%% The whole text, and the object to recognise in it.
-type whole() :: {binary(), known_object() | none}.
-type outcome() :: {ok, json_term()} | other.

%% An open array or object for `json:decode/3`: the remaining depth, the members that objects may
%% still have, and its content so far, in reverse order.
-type open() ::
    {Depth :: non_neg_integer(), Left :: non_neg_integer(), Inside :: list()}.

-doc """
Encodes a term as `json:encode/1` does, with two additions for Elixir. `nil` is `null`, and a date
or a time (`m:erlmcp_elixir_terms`) is an ISO 8601 string. Any other struct is refused.

## Errors

Raises `{unsupported_struct, Name, Expected}`, with the name of the struct's module and a text that
says what to encode instead. Raises the errors of `json:encode/1`, such as `{unsupported_type,
Term}`.

## Examples

```erlang
1> iolist_to_binary(erlmcp_json:encode(#{name => nil})).
~B'{"name":null}'
2> catch erlmcp_json:encode(#{'__struct__' => 'Elixir.Shop.User', password => ~"..."}).
{'EXIT', {{unsupported_struct, ~"Shop.User", _}, _}}
```
""".
-spec encode(term()) -> iodata().
encode(Term) ->
    json:encode(Term, fun encoded/2).

%% The members of a struct are private, and would reach clients by accident.
encoded(nil, _) ->
    ~"null";
encoded(#{'__struct__' := Module} = Struct, _) when is_atom(Module) ->
    case erlmcp_elixir_terms:iso8601(Struct) of
        {ok, Text} -> json:encode_binary(Text);
        error -> error({unsupported_struct, erlmcp_elixir_terms:name(Module),
                        ~"a map with the members that clients may see"})
    end;
encoded(Term, Encode) ->
    json:encode_value(Term, Encode).

-doc """
Decodes a JSON text, which may have whitespace around its value.

`message_bytes` is how many bytes the text may have. `depth` is how many arrays and objects may be
nested (1 allows one). `members` is how many members all objects of the text together may have.

Some reasons need an explanation:

- `invalid_byte`: a byte at which neither JSON nor UTF-8 can continue, and its offset.
- `invalid_escape`: a `\u` escape that is not a character, such as a low surrogate alone.
- `number_too_long`: a number of more than 400 bytes, or 398 if it has an exponent and no fraction.
- `number_out_of_range`: a number with a fraction or an exponent that no float can hold.
- `unexpected_end`: also a `\u` escape, or a high surrogate alone, with too few bytes after it.

## Examples

```erlang
1> Limits = #{message_bytes => 1_000_000, depth => 64, members => 10_000}.
2> erlmcp_json:decode(~B'{"id": 1, "ok": [true, null]}', Limits).
{ok, #{~"id" => 1, ~"ok" => [true, null]}}
3> erlmcp_json:decode(~B'{"id": 1, "id": 2}', Limits).
{error, {duplicate_key, ~"id"}}
4> erlmcp_json:decode(~B'{"id": x}', Limits).
{error, {invalid_byte, $x, 7}}
5> erlmcp_json:decode(~B'[[1]]', Limits#{depth := 1}).
{error, {too_deep, 1}}
```
""".
-spec decode(binary(), limits()) -> {ok, json_term()} | {error, decode_error()}.
decode(Binary, Limits) ->
    decode(Binary, Limits, none).

-doc """
Decodes as `decode/2` does, and faster if a text of at most 65,536 bytes has the known object, byte
for byte, as a member `_meta`.
""".
-spec decode(binary(), limits(), known_object() | none) ->
    {ok, json_term()} | {error, decode_error()}.
decode(Binary, #{message_bytes := Limit}, _) when byte_size(Binary) > Limit ->
    {error, {too_large, Limit, byte_size(Binary)}};
decode(Binary, #{depth := Depth, members := Most}, Known) when byte_size(Binary) =< ?FAST_BYTES ->
    case fast(Binary, Depth, Most, Known) of
        {ok, _} = Decoded -> Decoded;
        other -> read(Binary, Depth, Most)
    end;
decode(Binary, #{depth := Depth, members := Most}, _) ->
    read(Binary, Depth, Most).

-doc """
Decodes only the value of `params` in a request with four members, whose last member is `params`.
The value may be any JSON. `Known` is used as in `decode/3`. The first `At` bytes, with the version
and the id, are skipped and not checked. `Text` must follow them, and has the method and the key
`params`. Returns `other` if the binary has another form, an invalid `params`, or more than 65,536
bytes, or is over a limit. `decode/3` may be able to decode such a binary.

## Examples

```erlang
1> Limits = #{message_bytes => 1_000_000, depth => 64, members => 10_000}.
2> erlmcp_json:params(~B'{"jsonrpc":"2.0","id":7,"method":"a","params":{"b":1}}',
                      {23, ~B',"method":"a","params":'}, Limits, none).
{ok, #{~"b" => 1}}
```
""".
-spec params(binary(), {At :: non_neg_integer(), Text :: binary()}, limits(),
             known_object() | none) ->
    {ok, json_term()} | other.
params(Binary, {At, Text}, #{message_bytes := Limit, depth := Depth, members := Most}, Known) when
    byte_size(Binary) =< Limit, byte_size(Binary) =< ?FAST_BYTES, Most >= ?REQUEST
->
    Size = byte_size(Text),
    case Binary of
        <<_:At/binary, Text:Size/binary, Rest/binary>> ->
            value(Rest, {Binary, Known}, At + Size, last, [], [], Depth - 1, Most - ?REQUEST);
        _ ->
            other
    end;
params(_, _, _, _) ->
    other.

-doc """
Returns the first object that is a member `_meta` in a JSON text, for use with `decode/3` on other
texts. `decode/2` must have accepted the text. The object does not keep the text in memory. Returns
`none` if there is no such object, or it has more than 1,024 bytes. An object with whitespace
between `"_meta"` and its `{` is not found.

## Examples

```erlang
1> Limits = #{message_bytes => 1_000_000, depth => 64, members => 10_000}.
2> {ok, Known} = erlmcp_json:known_meta(~B'{"id": 1, "params": {"_meta":{"a": 1}}}').
3> {ok, #{~"params" := #{~"_meta" := Meta}}} =
       erlmcp_json:decode(~B'{"id": 2, "params": {"_meta":{"a": 1}}}', Limits, Known).
4> erlmcp_json:is_known(Meta, Known).
true
```
""".
-spec known_meta(binary()) -> {ok, known_object()} | none.
known_meta(Binary) ->
    maybe
        {At, Size} ?= binary:match(Binary, ~B'"_meta":{'),
        From = At + Size - 1,
        <<_:From/binary, Text/binary>> = Binary,
        {_, _, Rest} = json:decode(Text, none, #{}),
        Bytes = byte_size(Text) - byte_size(Rest),
        true ?= Bytes =< ?KNOWN,
        Own = binary:copy(binary_part(Text, 0, Bytes)),
        {ok, #{} = Object} ?= fast(Own, ?KNOWN, ?KNOWN, none),
        {Depth, Members} = measures(Object),
        {ok, {Own, Object, Depth, Members}}
    else
        _ -> none
    end.

%% Returns the depth of a value, and the number of members in all of its objects.
measures(Object) when is_map(Object) ->
    {Depth, Members} = measures(maps:values(Object)),
    {Depth, Members + map_size(Object)};
measures(Array) when is_list(Array) ->
    {Depths, Members} = lists:unzip([measures(Value) || Value <- Array]),
    {1 + lists:max([0 | Depths]), lists:sum(Members)};
measures(_) ->
    {0, 0}.

-doc "Returns the decoded object of a known object, without its text and measures.".
-spec known_object(known_object()) -> #{binary() => json_term()}.
known_object({_, Object, _, _}) -> Object.

-doc """
Returns `true` if `Object` equals the decoded object of the known one. Returns `false` for any other
term, and always for `none`.
""".
-spec is_known(json_term(), known_object() | none) -> boolean().
is_known(Object, {_, Object, _, _}) -> true;
is_known(_, _) -> false.

-doc """
Returns `true` if a text has at most 1,024 bytes, all ASCII, and its JSON string is the text itself
in quotes.

## Examples

```erlang
1> [erlmcp_json:is_plain(Text) || Text <- [~"plain", ~"\t", ~B'"', ~"\x{e9}"]].
[true, false, false, false]
```
""".
-spec is_plain(binary()) -> boolean().
is_plain(Text) ->
    byte_size(Text) =< ?PLAIN_BYTES andalso are_plain(Text).

are_plain(<<Seven:56, Rest/binary>>) when ?ARE_PLAIN(Seven) -> are_plain(Rest);
are_plain(<<C, Rest/binary>>) when C >= $\s, C < 16#80, C =/= $", C =/= $\\ -> are_plain(Rest);
are_plain(Rest) -> Rest =:= <<>>.

%% The fast decoder. Arrays and objects may be nested up to `Depth`. All objects together may have
%% `Members` members, and no object the same key twice. A member `_meta` with the text of the known
%% object becomes that object.
-spec fast(binary(), Depth :: pos_integer(), Members :: pos_integer(), known_object() | none) ->
    outcome().
fast(Binary, Depth, Members, Known) ->
    value(Binary, {Binary, Known}, 0, alone, [], [], Depth, Members).

%% The arguments of all these functions are the unread bytes; the whole text, and the offset of the
%% unread bytes in it; the slot of the next value, the values read before it in its container, and
%% the slots of the containers around; the remaining depth and members.
-spec value(binary(), whole(), non_neg_integer(), slot(), list(), around(), non_neg_integer(),
            integer()) -> outcome().
value(<<$", Rest/binary>>, Whole, At, Slot, Read, Around, Depth, Left) ->
    string(Rest, Whole, At + 1, 0, Slot, Read, Around, Depth, Left);
value(<<${, Rest/binary>>, Whole, At, Slot, Read, Around, Depth, Left) when Depth > 0 ->
    first_key(Rest, Whole, At + 1, [{Slot, Read} | Around], Depth - 1, Left);
value(<<C, Rest/binary>>, Whole, At, Slot, Read, Around, Depth, Left) when C >= $1, C =< $9 ->
    integer(Rest, Whole, At, 1, C - $0, Slot, Read, Around, Depth, Left);
value(<<$[, Rest/binary>>, Whole, At, Slot, Read, Around, Depth, Left) when Depth > 0 ->
    first_element(Rest, Whole, At + 1, [{Slot, Read} | Around], Depth - 1, Left);
value(<<"true", Rest/binary>>, Whole, At, Slot, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + 4, true, Slot, Read, Around, Depth, Left);
value(<<"false", Rest/binary>>, Whole, At, Slot, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + 5, false, Slot, Read, Around, Depth, Left);
value(<<"null", Rest/binary>>, Whole, At, Slot, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + 4, null, Slot, Read, Around, Depth, Left);
value(<<C, Rest/binary>>, Whole, At, Slot, Read, Around, Depth, Left) when ?IS_SPACE(C) ->
    value(Rest, Whole, At + 1, Slot, Read, Around, Depth, Left);
value(<<C, Rest/binary>>, Whole, At, Slot, Read, Around, Depth, Left) when C =:= $0; C =:= $- ->
    number(Rest, Whole, At, 1, Slot, Read, Around, Depth, Left);
value(_, _, _, _, _, _, _, _) ->
    other.

behind(<<$,, Rest/binary>>, Whole, At, Value, Key, Read, Around, Depth, Left) when
    is_binary(Key)
->
    key(Rest, Whole, At + 1, [{Key, Value} | Read], Around, Depth, Left - 1);
behind(<<$}, Rest/binary>>, Whole, At, Value, Key, Read, [{Slot, Outside} | Around], Depth, Left)
  when is_binary(Key), Left > 0 ->
    Members = [{Key, Value} | Read],
    case object(Members) of
        Object when map_size(Object) =:= length(Members) ->
            behind(Rest, Whole, At + 1, Object, Slot, Outside, Around, Depth + 1, Left - 1);
        _ ->
            other
    end;
behind(<<$,, Rest/binary>>, Whole, At, Value, element, Read, Around, Depth, Left) ->
    value(Rest, Whole, At + 1, element, [Value | Read], Around, Depth, Left);
behind(<<$], Rest/binary>>, Whole, At, Value, element, Read, [{Slot, Outside} | Around], Depth,
       Left) ->
    Array = lists:reverse(Read, [Value]),
    behind(Rest, Whole, At + 1, Array, Slot, Outside, Around, Depth + 1, Left);
behind(<<C, Rest/binary>>, Whole, At, Value, Slot, Read, Around, Depth, Left) when ?IS_SPACE(C) ->
    behind(Rest, Whole, At + 1, Value, Slot, Read, Around, Depth, Left);
behind(<<>>, _, _, Value, alone, _, _, _, _) ->
    {ok, Value};
behind(<<"}">>, _, _, Value, last, _, _, _, _) ->
    {ok, Value};
behind(_, _, _, _, _, _, _, _, _) ->
    other.

object([{Key, Value}]) -> #{Key => Value};
object([{One, First}, {Other, Second}]) -> #{One => First, Other => Second};
object(Members) -> maps:from_list(Members).

first_element(<<$], Rest/binary>>, Whole, At, [{Slot, Read} | Around], Depth, Left) ->
    behind(Rest, Whole, At + 1, [], Slot, Read, Around, Depth + 1, Left);
first_element(<<C, Rest/binary>>, Whole, At, Around, Depth, Left) when ?IS_SPACE(C) ->
    first_element(Rest, Whole, At + 1, Around, Depth, Left);
first_element(Rest, Whole, At, Around, Depth, Left) ->
    value(Rest, Whole, At, element, [], Around, Depth, Left).

first_key(<<$}, Rest/binary>>, Whole, At, [{Slot, Read} | Around], Depth, Left) ->
    behind(Rest, Whole, At + 1, #{}, Slot, Read, Around, Depth + 1, Left);
first_key(<<C, Rest/binary>>, Whole, At, Around, Depth, Left) when ?IS_SPACE(C) ->
    first_key(Rest, Whole, At + 1, Around, Depth, Left);
first_key(Rest, Whole, At, Around, Depth, Left) ->
    key(Rest, Whole, At, [], Around, Depth, Left).

%% Frequent keys and values are literals, which cost no memory in each message.
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

%% The text of an object is never a prefix of another object's, so a text that begins with it is
%% that object.
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

%% A string that begins at the offset `At` of the whole text; `Size` bytes of it are read.
string(<<Seven:56, Rest/binary>>, Whole, At, Size, Slot, Read, Around, Depth, Left) when
    ?ARE_PLAIN(Seven)
->
    string(Rest, Whole, At, Size + 7, Slot, Read, Around, Depth, Left);
string(Rest, Whole, At, Size, Slot, Read, Around, Depth, Left) ->
    string_end(Rest, Whole, At, Size, Slot, Read, Around, Depth, Left).

string_end(<<C, Rest/binary>>, Whole, At, Size, Slot, Read, Around, Depth, Left) when
    C >= $\s, C < 16#80, C =/= $", C =/= $\\
->
    string_end(Rest, Whole, At, Size + 1, Slot, Read, Around, Depth, Left);
string_end(<<$", Rest/binary>>, Whole, At, Size, key, Read, Around, Depth, Left) ->
    colon(Rest, Whole, At + Size + 1, part(Whole, At, Size), Read, Around, Depth, Left);
string_end(<<$", Rest/binary>>, Whole, At, Size, Slot, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + Size + 1, part(Whole, At, Size), Slot, Read, Around, Depth,
           Left);
string_end(Rest, Whole, At, Size, Slot, Read, Around, Depth, Left) ->
    text(Rest, Whole, At, Size, Slot, Read, Around, Depth, Left).

%% A string that is not plain ASCII: its end is found first, and then `m:json` decodes it.
text(<<$", Rest/binary>>, Whole, At, Size, Slot, Read, Around, Depth, Left) ->
    case token(Whole, At - 1, Size + 2) of
        {ok, Key} when Slot =:= key ->
            colon(Rest, Whole, At + Size + 1, Key, Read, Around, Depth, Left);
        {ok, String} ->
            behind(Rest, Whole, At + Size + 1, String, Slot, Read, Around, Depth, Left);
        other ->
            other
    end;
text(<<$\\, _, Rest/binary>>, Whole, At, Size, Slot, Read, Around, Depth, Left) ->
    text(Rest, Whole, At, Size + 2, Slot, Read, Around, Depth, Left);
text(<<_, Rest/binary>>, Whole, At, Size, Slot, Read, Around, Depth, Left) ->
    text(Rest, Whole, At, Size + 1, Slot, Read, Around, Depth, Left);
text(<<>>, _, _, _, _, _, _, _, _) ->
    other.

integer(<<C, Rest/binary>>, Whole, At, Size, Integer, Slot, Read, Around, Depth, Left) when
    C >= $0, C =< $9, Size < ?SMALL_DIGITS
->
    integer(Rest, Whole, At, Size + 1, Integer * 10 + C - $0, Slot, Read, Around, Depth, Left);
integer(<<C, _/binary>> = Rest, Whole, At, Size, _, Slot, Read, Around, Depth, Left) when
    C >= $0, C =< $9; C =:= $.; C =:= $e; C =:= $E
->
    number(Rest, Whole, At, Size, Slot, Read, Around, Depth, Left);
integer(Rest, Whole, At, Size, Integer, Slot, Read, Around, Depth, Left) ->
    behind(Rest, Whole, At + Size, Integer, Slot, Read, Around, Depth, Left).

number(<<C, Rest/binary>>, Whole, At, Size, Slot, Read, Around, Depth, Left) when
    C >= $0, C =< $9; C =:= $.; C =:= $e; C =:= $E; C =:= $+; C =:= $-
->
    number(Rest, Whole, At, Size + 1, Slot, Read, Around, Depth, Left);
number(Rest, Whole, At, Size, Slot, Read, Around, Depth, Left) when Size =< ?FAST_NUMBER_BYTES ->
    case token(Whole, At, Size) of
        {ok, Number} -> behind(Rest, Whole, At + Size, Number, Slot, Read, Around, Depth, Left);
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

%% The slower decoder, which finds the reason of an error.

read(Binary, Depth, Most) ->
    Decoders = #{
        array_start => fun open/1,
        array_push => fun push/2,
        array_finish => fun close_array/2,
        object_start => fun open/1,
        object_push => fun push/3,
        object_finish => fun close_object/2,
        integer => fun to_integer/1,
        float => fun to_float/1
    },
    try json:decode(Binary, {Depth, Most, []}, Decoders) of
        {Value, _, <<>>} -> {ok, Value};
        {_, _, _} -> {error, trailing_bytes}
    catch
        throw:too_deep -> {error, {too_deep, Depth}};
        throw:too_many_members -> {error, {too_many_members, Most}};
        throw:Reason -> {error, Reason};
        error:unexpected_end -> {error, unexpected_end};
        error:{invalid_byte, Byte}:Stack -> {error, {invalid_byte, Byte, offset(Stack)}};
        error:{unexpected_sequence, Text}:Stack -> {error, unexpected(Text, offset(Stack))}
    end.

-spec open(open()) -> open().
open({0, _, _}) -> throw(too_deep);
open({Depth, Left, _}) -> {Depth - 1, Left, []}.

-spec push(json_term(), open()) -> open().
push(Value, {Depth, Left, Values}) ->
    {Depth, Left, [Value | Values]}.

-spec push(binary(), json_term(), open()) -> open().
push(_, _, {_, 0, _}) ->
    throw(too_many_members);
push(Key, Value, {Depth, Left, Members}) ->
    {Depth, Left - 1, [{Key, Value} | Members]}.

-spec close_array(open(), Around :: open()) -> {[json_term()], open()}.
close_array({_, Left, Values}, {Depth, _, Around}) ->
    {lists:reverse(Values), {Depth, Left, Around}}.

-spec close_object(open(), Around :: open()) -> {#{binary() => json_term()}, open()}.
close_object({_, Left, Members}, {Depth, _, Around}) ->
    case maps:from_list(Members) of
        Object when map_size(Object) =:= length(Members) -> {Object, {Depth, Left, Around}};
        Object -> throw({duplicate_key, duplicate(Members, Object)})
    end.

%% Returns the first key that occurs a second time.
duplicate(Members, Object) ->
    hd([Key || {Key, _} <- lists:reverse(Members)] -- maps:keys(Object)).

to_integer(Text) when byte_size(Text) =< ?NUMBER_BYTES -> binary_to_integer(Text);
to_integer(_) -> throw({number_too_long, ?NUMBER_BYTES}).

%% json:decode/3 replaces any exception of this fun by {unexpected_sequence, Text}.
to_float(Text) when byte_size(Text) =< ?NUMBER_BYTES -> binary_to_float(Text).

unexpected(<<$\\, _/binary>>, Offset) -> {invalid_escape, Offset};
unexpected(Text, _) when byte_size(Text) > ?NUMBER_BYTES -> {number_too_long, ?NUMBER_BYTES};
unexpected(_, Offset) -> {number_out_of_range, Offset}.

offset([{_, _, _, Info} | _]) ->
    {error_info, #{cause := #{position := Offset}}} = lists:keyfind(error_info, 1, Info),
    Offset.
