-module(erlmcp_json).
-moduledoc """
JSON within limits, on top of OTP's `m:json`. Pure.

Bytes from outside are refused at the first one that breaks a limit or the grammar, with a reason
that a program can match. Only `true`, `false` and `null` become atoms. A decoded string of more
than 64 bytes is a part of its message, and keeps it alive.

Standards: RFC 8259; RFC 7493 (I-JSON) for duplicate keys and lone surrogates, which are refused.

Internal.
""".

-export([encode/1, decode/2, decode/3, params/4, known_meta/1, known_object/1, is_known/2]).

-export_type([limits/0, json_term/0, decode_error/0, known_object/0]).

-type limits() :: #{
    message_bytes := pos_integer(), depth := pos_integer(), members := pos_integer(),
    atom() => term()
}.
-type json_term() :: erlmcp_schema:json().
-doc "An object that is recognised by its text: the text, the object, its depth, and its members.".
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

%% Bytes of a number. Reading an integer takes time quadratic in its digits.
-define(NUMBER_BYTES, 400).
%% Bytes of an object that is worth recognising.
-define(KNOWN, 1_024).
%% Bytes of a message that is worth reading twice, if it turns out to be invalid.
-define(PLAIN, 65_536).
%% Members of a request.
-define(REQUEST, 4).

%% An open array or object: the remaining depth, the members that objects may still have, and its
%% content so far, the last first.
-type open() ::
    {Depth :: non_neg_integer(), Left :: non_neg_integer(), Inside :: list()}.

-doc """
Encodes a term as `json:encode/1` does, with two additions for Elixir. `nil` is `null`, and a date
or a time (`m:erlmcp_elixir_terms`) is a string of ISO 8601. Any other struct is refused by its
name, since its members are private and would reach clients by accident.

## Errors

`{unsupported_struct, Name, Expected}`; `{unsupported_type, Term}` and others of `json:encode/1`.

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
Decodes the JSON value in `Binary`; whitespace may stand around it.

`message_bytes` is the size of the message. `depth` is how many arrays and objects may be nested (1
allows one). `members` is how many members the objects of the whole message may have. `members` and
`depth` are checked as the bytes are read, a duplicate key when its object ends.

Some reasons need an explanation:

- `invalid_byte`: a byte that is neither JSON nor UTF-8 at its place.
- `invalid_escape`: a `\u` escape that is not a character, such as a low surrogate alone. A high one
  alone is an `invalid_byte` after it.
- `number_too_long`: a number of more than 400 bytes, or 398 if it has an exponent and no fraction.
- `number_out_of_range`: a number that no float can hold.
- `unexpected_end`: also an escape that the end of the message cuts short.

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

-doc "Decodes as `decode/2` does, faster if a member `_meta` is the known object.".
-spec decode(binary(), limits(), known_object() | none) ->
    {ok, json_term()} | {error, decode_error()}.
decode(Binary, #{message_bytes := Limit}, _) when byte_size(Binary) > Limit ->
    {error, {too_large, Limit, byte_size(Binary)}};
decode(Binary, #{depth := Depth, members := Most}, Known) when byte_size(Binary) =< ?PLAIN ->
    case erlmcp_json_fast:decode(Binary, Depth, Most, Known) of
        {ok, _} = Decoded -> Decoded;
        other -> read(Binary, Depth, Most)
    end;
decode(Binary, #{depth := Depth, members := Most}, _) ->
    read(Binary, Depth, Most).

-doc """
Decodes `params`, the last of a request's four members. `Text` is the part behind the first `At`
bytes, which have the version and the id, up to the value: the method and the key. Returns `other`
if the binary is different, invalid, or goes on behind the request.

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
params(Binary, Begun, #{message_bytes := Limit, depth := Depth, members := Most}, Known) when
    byte_size(Binary) =< Limit, byte_size(Binary) =< ?PLAIN, Most >= ?REQUEST
->
    erlmcp_json_fast:last(Binary, Begun, Depth - 1, Most - ?REQUEST, Known);
params(_, _, _, _) ->
    other.

-doc """
Returns the first object that is a member `_meta` in the text of a value, to be recognised when the
next value is decoded. It keeps no part of `Binary` alive. `none` if there is no such object, or it
has more than 1,024 bytes.

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
        {ok, #{} = Object} ?= erlmcp_json_fast:decode(Own, ?KNOWN, ?KNOWN, none),
        {Depth, Members} = measures(Object),
        {ok, {Own, Object, Depth, Members}}
    else
        _ -> none
    end.

%% The depth of a value, and the number of members of its objects.
measures(Object) when is_map(Object) ->
    {Depth, Members} = measures(maps:values(Object)),
    {Depth, Members + map_size(Object)};
measures(Array) when is_list(Array) ->
    {Depths, Members} = lists:unzip([measures(Value) || Value <- Array]),
    {1 + lists:max([0 | Depths]), lists:sum(Members)};
measures(_) ->
    {0, 0}.

-doc "Returns the known object.".
-spec known_object(known_object()) -> #{binary() => json_term()}.
known_object({_, Object, _, _}) -> Object.

-doc "Returns `true` if an object is the known one.".
-spec is_known(json_term(), known_object() | none) -> boolean().
is_known(Object, {_, Object, _, _}) -> true;
is_known(_, _) -> false.

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

%% The first key that came again.
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
