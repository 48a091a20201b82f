-module(erlmcp_params).
-moduledoc """
Reads the members of a request's parameters by name and type, and makes the refusals for wrong ones.
Pure.

Internal.
""".

-export([string/2, object/2, objects/2, strings/2, cursor/1]).
-export([missing/1, mistyped/3, invalid/2, unfit/2, bad_cursor/0, unreadable/1]).

-doc "Returns the member `Field`, or a refusal if the member is absent or not a string.".
-spec string(Field :: binary(), Params :: map()) ->
    {ok, binary()} | {error, erlmcp_refusal:refusal()}.
string(Field, Params) ->
    case Params of
        #{Field := Value} when is_binary(Value) -> {ok, Value};
        #{Field := Value} -> {error, mistyped(Field, ~"a string", Value)};
        #{} -> {error, missing(Field)}
    end.

-doc """
Returns the member `Field`, or an empty object if it is absent. Returns a refusal if the member is
not an object.
""".
-spec object(Field :: binary(), Params :: map()) -> {ok, map()} | {error, erlmcp_refusal:refusal()}.
object(Field, Params) ->
    case Params of
        #{Field := Value} when is_map(Value) -> {ok, Value};
        #{Field := Value} -> {error, mistyped(Field, ~"an object", Value)};
        #{} -> {ok, #{}}
    end.

-doc """
Returns the member `Field`, or an empty object if it is absent. Returns a refusal if the member is
not an object whose values are objects.
""".
-spec objects(Field :: binary(), Params :: map()) ->
    {ok, #{binary() => map()}} | {error, erlmcp_refusal:refusal()}.
objects(Field, Params) ->
    maybe
        {ok, Object} ?= object(Field, Params),
        [] ?= [Item || Item := Value <- Object, not is_map(Value)],
        {ok, Object}
    else
        [Item | _] ->
            #{Field := #{Item := Value}} = Params,
            {error, mistyped([Field, $., erlmcp_value_text:name(Item)], ~"an object", Value)};
        {error, _} = Error ->
            Error
    end.

-doc """
Returns the member `Field`, or an empty list if it is absent. Returns a refusal if the member is not
an array of strings.
""".
-spec strings(Field :: binary(), Params :: map()) ->
    {ok, [binary()]} | {error, erlmcp_refusal:refusal()}.
strings(Field, Params) ->
    case maps:get(Field, Params, []) of
        Values when is_list(Values) ->
            case lists:dropwhile(fun is_binary/1, Values) of
                [] -> {ok, Values};
                [Value | _] -> {error, mistyped([Field, ~": each item"], ~"a string", Value)}
            end;
        Value ->
            {error, mistyped(Field, ~"an array of strings", Value)}
    end.

-doc """
Returns the cursor of a list request, or `none` if the request has none. Returns a refusal if the
cursor is not a string.
""".
-spec cursor(Params :: map()) -> {ok, binary() | none} | {error, erlmcp_refusal:refusal()}.
cursor(#{~"cursor" := Cursor}) when is_binary(Cursor) -> {ok, Cursor};
cursor(#{~"cursor" := Value}) -> {error, mistyped(~"cursor", ~"a string", Value)};
cursor(_) -> {ok, none}.

-doc "Returns the refusal for the member `Field`, which is absent.".
-spec missing(Field :: iodata()) -> erlmcp_refusal:refusal().
missing(Field) ->
    erlmcp_refusal:new(missing_required_field, [Field, ~": missing"], #{code => -32602}).

-doc """
Returns the refusal for the member `Field`, which has the wrong type. `Came` is its value, or
`undefined` if the member is absent.
""".
-spec mistyped(Field :: iodata(), Expected :: iodata(), Came :: term()) -> erlmcp_refusal:refusal().
mistyped(Field, Expected, Came) ->
    erlmcp_refusal:new(field_type_mismatch,
                       [Field, ~": expected ", Expected, ~", got ", received_text(Came)],
                       #{code => -32602}).

received_text(undefined) -> ~"nothing";
received_text(Value) -> erlmcp_value_text:value(Value).

-doc """
Returns the refusal for the member `Field`, whose value is not allowed. Its message is `Field`, a
colon and `Why`, such as `cursor: not one that this server gave`.
""".
-spec invalid(Field :: iodata(), Why :: iodata()) -> erlmcp_refusal:refusal().
invalid(Field, Why) ->
    erlmcp_refusal:new(invalid_params, [Field, ~": ", Why], #{code => -32602}).

-doc "Returns the refusal for a cursor that this server did not return for this list.".
-spec bad_cursor() -> erlmcp_refusal:refusal().
bad_cursor() ->
    invalid(~"cursor", ~"not one that this server gave").

-doc """
Returns the refusal for the member `Field`, which does not fit a schema. `data.errors` of the
refusal lists the errors, each with its `instancePath` (a JSON pointer) and its `message`. `budget`
means that the validation was too costly. Its entry in `data.errors` has only a `message`.
""".
-spec unfit(Field :: iodata(), [erlmcp_schema:error(), ...] | budget) -> erlmcp_refusal:refusal().
unfit(Field, Found) ->
    [First | _] = Sentences = erlmcp_schema:explain(Found),
    Errors = case Found of
        budget -> [#{message => Text} || Text <- Sentences];
        _ -> [#{instancePath => Path, message => Text}
              || #{instance_path := Path, message := Text} <- erlmcp_schema:details(Found)]
    end,
    erlmcp_refusal:new(invalid_params, [Field, ~": ", First],
                       #{code => -32602, data => #{~"errors" => Errors}}).

-doc "Returns the refusal for bytes that `erlmcp_json:decode/2` refused.".
-spec unreadable(erlmcp_json:decode_error()) -> erlmcp_refusal:refusal().
unreadable({too_large, Limit, Observed}) ->
    erlmcp_refusal:new(message_too_large, ~"the message is too large",
                       #{limit => Limit, observed => Observed});
unreadable({too_deep, Limit}) ->
    parse_error(~"the message is nested too deep", #{limit => Limit});
unreadable({too_many_members, Limit}) ->
    parse_error(~"the message has too many object members", #{limit => Limit});
unreadable({number_too_long, Limit}) ->
    parse_error(~"a number has too many digits", #{limit => Limit});
unreadable({duplicate_key, Key}) ->
    parse_error([~"an object has the key ", erlmcp_value_text:literal(Key), ~" twice"], #{});
unreadable(Reason) ->
    parse_error([~"expected JSON in UTF-8, got ", found(Reason)], #{}).

found({number_out_of_range, Offset}) -> [~"a number out of range", after_bytes(Offset)];
found({invalid_escape, Offset}) -> [~"an escape that is no character", after_bytes(Offset)];
found({invalid_byte, Byte, Offset}) -> [~"the byte ", integer_to_binary(Byte), after_bytes(Offset)];
found(unexpected_end) -> ~"an incomplete value";
found(trailing_bytes) -> ~"more bytes after the value".

after_bytes(Offset) -> [~" after ", erlmcp_value_text:count(Offset, ~"byte")].

parse_error(Message, Details) ->
    erlmcp_refusal:new(protocol_error, Message, Details#{code => -32700, status => 400}).
