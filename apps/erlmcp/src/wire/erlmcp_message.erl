-module(erlmcp_message).
-moduledoc """
JSON-RPC 2.0 messages as MCP uses them: ids are strings or integers, `params` is an object, and a
response is a result or an error. Pure. The functions turn decoded JSON into tagged tuples, and
messages into iodata for the wire.

Source: specification, "Base protocol / Messages", of each revision.

Internal.
""".

-export([parse/1, is_message/1, first_id/1, own_id/1]).
-export([result/2, error/2, errors/2, notification/2, request/3, batch/1]).

-export_type([id/0, message/0]).

-compile({no_auto_import, [error/2]}).

-type id() :: binary() | integer().
-type message() ::
    {request, id(), Method :: binary(), Params :: map()}
    | {notification, Method :: binary(), Params :: map()}
    | {response, id(), {ok, term()} | {error, term()}}
    | {response, undefined, {error, term()}}
    | {batch, [term(), ...]}
    | {invalid, id() | undefined, erlmcp_refusal:refusal()}.

%% The most digits of an id that `first_id/1` reads; the number is then a small integer.
-define(FIRST_ID, 15).
%% Bytes before the id in an encoded request.
-define(BEFORE_ID, byte_size(~"{\"jsonrpc\":\"2.0\",\"id\":")).

%% The most bytes of a result that are copied into one binary.
-define(SHORT, 1_024).

%% Inlined, since every answer has an id.
-compile({inline, [id/1]}).

-doc """
Converts a decoded JSON value to a message. A non-empty array becomes a `batch` of its elements,
which are not converted. A value that is not a message becomes `invalid`, with a refusal that says
what was expected. `invalid` has the value's id, or `undefined` if the value has no id that is a
string or an integer. An error without an id, or with the id `null`, is a `response` with the id
`undefined`: its sender could not read the id of a message.
""".
-spec parse(term()) -> message().
parse(#{~"jsonrpc" := ~"2.0", ~"method" := Method, ~"id" := Id} = Message) when
    is_binary(Method), is_binary(Id); is_binary(Method), is_integer(Id)
->
    case Message of
        #{~"params" := Params} when is_map(Params) -> {request, Id, Method, Params};
        #{~"params" := Params} -> {invalid, Id, wrong_params(Params)};
        #{} -> {request, Id, Method, #{}}
    end;
parse(#{~"jsonrpc" := ~"2.0", ~"method" := Method} = Message) when
    is_binary(Method), not is_map_key(~"id", Message)
->
    case Message of
        #{~"params" := Params} when is_map(Params) -> {notification, Method, Params};
        #{~"params" := Params} -> {invalid, undefined, wrong_params(Params)};
        #{} -> {notification, Method, #{}}
    end;
parse(#{~"jsonrpc" := ~"2.0", ~"id" := Id} = Message) when
    (is_binary(Id) orelse is_integer(Id)),
    (is_map_key(~"result", Message) xor is_map_key(~"error", Message)),
    not is_map_key(~"method", Message)
->
    case Message of
        #{~"result" := Result} -> {response, Id, {ok, Result}};
        #{~"error" := Error} -> {response, Id, {error, Error}}
    end;
parse(#{~"jsonrpc" := ~"2.0", ~"error" := Error} = Message) when
    not is_map_key(~"method", Message), not is_map_key(~"result", Message),
    not is_map_key(~"id", Message) orelse map_get(~"id", Message) =:= null
->
    {response, undefined, {error, Error}};
parse([_ | _] = Messages) ->
    {batch, Messages};
parse(#{~"id" := Id} = Message) when is_binary(Id); is_integer(Id) ->
    {invalid, Id, not_a_message(Message)};
parse(Message) ->
    {invalid, undefined, not_a_message(Message)}.

-doc "Returns `true` if a decoded JSON value is a message, or a batch that contains only messages.".
-spec is_message(term()) -> boolean().
is_message([_ | _] = Messages) -> lists:all(fun is_single/1, Messages);
is_message(Json) -> is_single(Json).

is_single(Json) -> not lists:member(element(1, parse(Json)), [invalid, batch]).

-doc """
Returns the id of an encoded request, and the number of bytes up to the id's end. Returns `unseen`
unless the request begins with `{"jsonrpc":"2.0","id":`, and an integer of 1 to 15 digits with a
comma behind it. The rest of the request is not checked.
""".
-spec first_id(binary()) -> {ok, id(), Bytes :: pos_integer()} | unseen.
first_id(<<"{\"jsonrpc\":\"2.0\",\"id\":", Rest/binary>>) -> first_id(Rest, 0, 0);
first_id(_) -> unseen.

first_id(<<$0, C, _/binary>>, 0, 0) when C =/= $, -> unseen;
first_id(<<C, Rest/binary>>, Digits, Id) when C >= $0, C =< $9, Digits < ?FIRST_ID ->
    first_id(Rest, Digits + 1, Id * 10 + C - $0);
first_id(<<$,, _/binary>>, Digits, Id) when Digits > 0 -> {ok, Id, ?BEFORE_ID + Digits};
first_id(_, _, _) -> unseen.

-doc """
Returns a copy of an id, for a process that keeps the id. A long id is a sub-binary of its message,
and would keep the whole message in memory.
""".
-spec own_id(id()) -> id().
own_id(Id) when is_binary(Id) -> binary:copy(Id);
own_id(Id) -> Id.

wrong_params(Params) ->
    erlmcp_params:mistyped(~"params", ~"an object", Params).

not_a_message(Message) ->
    erlmcp_refusal:new(protocol_error, fault(Message), #{code => -32600}).

fault([]) ->
    ~"expected a message, got an empty array";
fault(Message) when not is_map(Message) ->
    [~"expected a JSON-RPC message object, got ", erlmcp_value_text:value(Message)];
fault(#{~"jsonrpc" := ~"2.0", ~"id" := Id}) when not is_binary(Id), not is_integer(Id) ->
    [~"id: expected a string or an integer, got ", erlmcp_value_text:value(Id)];
fault(#{~"jsonrpc" := ~"2.0", ~"method" := Method}) when not is_binary(Method) ->
    [~"method: expected a string, got ", erlmcp_value_text:value(Method)];
fault(#{~"jsonrpc" := ~"2.0"} = Message) ->
    Came = [Name || Name <- [~"method", ~"id", ~"result", ~"error"], is_map_key(Name, Message)],
    [~"expected a method, or an id with either a result or an error, got ",
     erlmcp_value_text:list(Came, ~"and")];
fault(#{~"jsonrpc" := Version}) ->
    [~"jsonrpc: expected \"2.0\", got ", erlmcp_value_text:value(Version)];
fault(_) ->
    ~"jsonrpc: expected \"2.0\", got nothing".

-doc "Encodes a response with a result, which is encoded already.".
-spec result(id(), Result :: iodata()) -> iodata().
result(Id, [A, B, C, D, E]) when
    is_integer(Id), is_binary(A), is_binary(B), is_binary(C), is_binary(D), is_binary(E),
    byte_size(A) + byte_size(B) + byte_size(C) + byte_size(D) + byte_size(E) < ?SHORT
->
    %% Building one binary here is quicker than flattening the iodata later.
    <<"{\"jsonrpc\":\"2.0\",\"id\":", (integer_to_binary(Id))/binary, ",\"result\":", A/binary,
      B/binary, C/binary, D/binary, E/binary, "}">>;
result(Id, Result) ->
    [~"{\"jsonrpc\":\"2.0\",\"id\":", id(Id), ~",\"result\":", Result, $}].

id(Id) when is_integer(Id) -> integer_to_binary(Id);
id(Id) -> json:encode(Id).

-doc """
Encodes an error response. If the id is `undefined`, because no id of a request is known, the
response has none.
""".
-spec error(id() | undefined, erlmcp_refusal:refusal()) -> iodata().
error(undefined, Refusal) ->
    [~"{\"jsonrpc\":\"2.0\",\"error\":", erlmcp_refusal:encode(Refusal), $}];
error(Id, Refusal) ->
    [~"{\"jsonrpc\":\"2.0\",\"id\":", id(Id), ~",\"error\":", erlmcp_refusal:encode(Refusal), $}].

-doc """
Encodes the same error as the response to a request, or to each request of a batch. A batch without
requests gets one error without an id.
""".
-spec errors({call | batch, [id()]}, erlmcp_refusal:refusal()) -> iodata().
errors({call, [Id]}, Refusal) -> error(Id, Refusal);
errors({batch, []}, Refusal) -> error(undefined, Refusal);
errors({batch, Ids}, Refusal) -> batch([error(Id, Refusal) || Id <- Ids]).

-doc "Encodes a notification with the parameters `Params`. An empty map stands for none.".
-spec notification(Method :: binary(), Params :: map()) -> iodata().
notification(Method, Params) when map_size(Params) =:= 0 ->
    [~"{\"jsonrpc\":\"2.0\",\"method\":", json:encode(Method), $}];
notification(Method, Params) ->
    [~"{\"jsonrpc\":\"2.0\",\"method\":", json:encode(Method),
     ~",\"params\":", erlmcp_json:encode(Params), $}].

-doc "Encodes a request of either side, with the parameters `Params`.".
-spec request(id(), Method :: binary(), Params :: map()) -> iodata().
request(Id, Method, Params) ->
    [~"{\"jsonrpc\":\"2.0\",\"id\":", json:encode(Id), ~",\"method\":", json:encode(Method),
     ~",\"params\":", erlmcp_json:encode(Params), $}].

-doc "Joins encoded responses to one JSON-RPC batch.".
-spec batch([iodata(), ...]) -> iodata().
batch(Responses) ->
    [$[, lists:join($,, Responses), $]].
