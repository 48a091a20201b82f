-module(erlmcp_httpc_answer).
-moduledoc """
Interprets an HTTP response to a client's message: the kind of its body, and the messages in it.
Pure.

Internal.
""".

-export([fields/1, closes/1, kind/3, whole/3, event/3]).
-export([reason/3, refusal/3, kept_bytes/0]).

-export_type([fields/0, kind/0, expected/0]).

%% The most bytes of a repeated header. Of a longer one only the first value is used.
-define(JOINED, 65_536).
%% The most characters of a decoder's reason that a call gets.
-define(REASON, 200).

-type fields() :: #{binary() => binary()}.
-doc "The id of the awaited response, or `none`.".
-type expected() :: erlmcp_message:id() | none.
-doc """
The kind of a response. The body is one JSON value (`json`), which may be a JSON-RPC error, or a
stream of `events`. `taken` means that the server has accepted a notification or a response of the
client. `refused` means that the status is at least 300. `{error, Reason}` means that the status is
below 300, and that the response breaks the protocol by its status, content type or encoding.
""".
-type kind() :: json | events | taken | refused | {error, erlmcp_channel:reason()}.

-doc """
Returns the headers as a map by name. The values of a repeated header are joined with commas, as in
RFC 9110. If they have more than 65,536 bytes together, only the first value is used.
""".
-spec fields([{binary(), binary()}]) -> fields().
fields(Headers) ->
    case maps:from_list(Headers) of
        Fields when map_size(Fields) =:= length(Headers) -> Fields;
        _ -> maps:map(fun(_, Values) -> joined(Values) end,
                      maps:groups_from_list(fun({Name, _}) -> Name end,
                                            fun({_, Value}) -> Value end, Headers))
    end.

%% HTTP/2 compresses a repeated header to one byte, so the joined value needs a bound.
joined([First | _] = Values) ->
    case iolist_size(Values) =< ?JOINED of
        true -> iolist_to_binary(lists:join(~", ", Values));
        false -> First
    end.

-doc "Returns `true` if an HTTP/1.1 server closes the connection after the response.".
-spec closes(fields()) -> boolean().
closes(#{~"connection" := Options}) ->
    lists:any(fun(Option) -> cowboy_bstr:to_lower(Option) =:= ~"close" end,
              binary:split(Options, [~",", ~" ", ~"\t"], [global]));
closes(_) ->
    false.

-doc """
Returns the kind of a response, from its status and its headers. `Awaited` says whether the client's
message awaits a response, a stream, or neither.
""".
-spec kind(100..999, fields(), Awaited :: response | stream | nothing) -> kind().
kind(200, #{~"content-encoding" := Encoding}, Awaited) when
    Awaited =/= nothing, Encoding =/= ~"identity"
->
    protocol([~"content-encoding: expected none, got ", shown(Encoding)]);
kind(200, #{~"content-type" := ~"application/json"}, response) -> json;
kind(200, #{~"content-type" := ~"text/event-stream"}, Awaited) when Awaited =/= nothing -> events;
kind(Status, _, nothing) when Status >= 200, Status < 300 -> taken;
kind(200, #{~"content-type" := Type}, Awaited) ->
    case {media_type(Type), Awaited} of
        {~"application/json", response} -> json;
        {~"text/event-stream", _} -> events;
        {_, response} -> protocol([~"content-type: expected application/json or ",
                                   ~"text/event-stream, got ", shown(Type)]);
        {_, stream} -> protocol([~"content-type: expected text/event-stream, got ", shown(Type)])
    end;
kind(200, _, _) -> protocol(~"content-type: the header is missing");
kind(Status, _, _) when Status < 300 ->
    protocol([~"status: expected 200 with a response, got ", integer_to_binary(Status)]);
kind(_, _, _) -> refused.

%% The functions of `string` need UTF-8, and a header may have any bytes.
media_type(Value) ->
    [Type | _] = binary:split(Value, [~";", ~" ", ~"\t"]),
    cowboy_bstr:to_lower(Type).

-doc """
Returns the messages in a JSON body, as events of the exchange. One of them must be the response
with the id `Expected`. The error is the reason with which the exchange fails, such as
`{protocol, What}`.
""".
-spec whole(binary(), expected(), erlmcp_json:limits()) ->
    {ok, [erlmcp_channel:event()]} | {error, erlmcp_channel:reason()}.
whole(Body, Expected, Limits) ->
    case event(Body, Expected, Limits) of
        {answered, Events} -> {ok, Events};
        {open, _} -> protocol([~"body: expected the response to id ", id(Expected), ~", got none"]);
        {error, _} = Error -> Error
    end.

-doc """
Returns the messages in the data of an SSE event, as events of the exchange. They come with
`answered` if the response with the id `Expected` is among them, and otherwise with `open`.

It is an error if the data is not a message within the limits. If a response is awaited, a response
with another id is an error, too. A JSON-RPC error without an id counts as the awaited response.
""".
-spec event(binary(), expected(), erlmcp_json:limits()) ->
    {answered | open, [erlmcp_channel:event()]} | {error, erlmcp_channel:reason()}.
event(Data, Expected, Limits) ->
    case erlmcp_json:decode(Data, Limits) of
        {ok, Value} -> message(Value, Expected);
        {error, {too_large, Limit, _}} -> {error, {too_large, Limit}};
        {error, Reason} ->
            %% A reason may have a key of any length.
            Why = io_lib:format("~0tp", [Reason], [{chars_limit, ?REASON}]),
            protocol([~"expected JSON, got ", Why, ~" in ", shown(Data)])
    end.

message(Value, Expected) ->
    case erlmcp_message:parse(Value) of
        %% The server could not read the id, so the error answers the message that was sent.
        {response, undefined, Outcome} when Expected =/= none ->
            {answered, [{message, {response, Expected, Outcome}}]};
        {response, Expected, _} = Response -> {answered, [{message, Response}]};
        {response, Id, _} when Expected =/= none ->
            protocol([~"id: expected ", id(Expected), ~", got ",
                      shown(iolist_to_binary(id(Id)))]);
        {batch, Values} -> batch(Values, Expected, open, []);
        {invalid, _, Refusal} -> protocol(erlmcp_refusal:message(Refusal));
        Message -> {open, [{message, Message}]}
    end.

batch([], _, State, Events) ->
    {State, lists:reverse(Events)};
batch([Value | Values], Expected, State, Events) ->
    case message(Value, Expected) of
        {answered, _} when State =:= answered ->
            protocol([~"id: ", id(Expected), ~" was answered twice"]);
        {answered, [Event]} -> batch(Values, Expected, answered, [Event | Events]);
        {open, [Event]} -> batch(Values, Expected, State, [Event | Events]);
        {open, _} -> protocol(~"a batch in a batch");
        {error, _} = Error -> Error
    end.

-doc "Returns the most bytes that are kept of a body that is not a message.".
-spec kept_bytes() -> pos_integer().
kept_bytes() ->
    4096.

-doc """
Returns the reason with which an exchange fails after a refusal of HTTP without a JSON-RPC message.
The reason has at most `kept_bytes/0` bytes of `Body`.
""".
-spec reason(100..999, fields(), Body :: binary()) -> erlmcp_channel:reason().
reason(Status, Fields, Body) ->
    {http, Status, Fields, binary:copy(binary_part(Body, 0, min(kept_bytes(), byte_size(Body))))}.

-doc """
Returns what an HTTP response with a status of at least 300 means for the client's message.
`Session` is the id of the message's session, or `none`.

- `session_lost`: the server no longer knows the session.
- `unauthorized`: the server demands authorization.
- `{error, Error}`: the body has the JSON-RPC error `Error`, which answers the message.
- `none`: only the status says why the server has refused the message.
""".
-spec refusal({100..999, fields(), Body :: binary()},
              {Session :: binary() | none, expected()}, erlmcp_json:limits()) ->
    session_lost | unauthorized | {error, map()} | none.
refusal({404, _, Body}, {Session, Id}, Limits) when Session =/= none ->
    case error_of(Body, Limits) of
        %% Any other code is an answer of a server that knows the session.
        {ok, Id, #{~"code" := Code} = Error} when Code =/= -32001, Code =/= -32600, Code =/= 1016 ->
            {error, Error};
        _ ->
            session_lost
    end;
refusal({401, _, _}, _, _) ->
    unauthorized;
refusal({403, #{~"www-authenticate" := _}, _}, _, _) ->
    unauthorized;
refusal({405, _, _}, _, _) ->
    %% A 405, whatever its body, is about the URL: it accepts no messages.
    none;
refusal({Status, _, Body}, {_, Id}, Limits) ->
    case error_of(Body, Limits) of
        {ok, _, Error} when Id =/= none -> {error, Error};
        none when Status =:= 403 -> unauthorized;
        _ -> none
    end.

error_of(<<C, _/binary>> = Body, Limits)
  when C =:= ${; C =:= $\s; C =:= $\n; C =:= $\r; C =:= $\t ->
    case erlmcp_json:decode(Body, Limits) of
        {ok, #{~"jsonrpc" := ~"2.0", ~"error" := #{~"code" := Code} = Error} = Value}
          when is_integer(Code) ->
            {ok, maps:get(~"id", Value, null), Error};
        _ ->
            none
    end;
error_of(_, _) ->
    none.

protocol(What) ->
    {error, {protocol, unicode:characters_to_binary(What)}}.

id(Id) -> json:encode(Id).

%% The bytes that are enough to recognise a text.
shown(Bytes) -> erlmcp_printable:part(Bytes, 80).
