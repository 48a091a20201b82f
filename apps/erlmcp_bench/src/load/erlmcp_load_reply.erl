-module(erlmcp_load_reply).
-moduledoc """
Judges whether a reply answers its request, with the expected content. Pure.

A pattern is an earlier reply without its id. A reply that differs from it only in the id has the
same verdict. All others are decoded, so each reply is checked to its last byte.
""".

-export([id/1, is_reply/1, check/5, pattern/3]).

-export_type([outcome/0, verdict/0, expectation/0, pattern/0]).

-doc """
The content that a result must have.

- `text`: a text that contains the given one.
- `number`: a text that is the given number in JSON.
- `bytes`: a text of the given number of bytes.
- `member`: a member with the name `Name`, which is a list or an object.
- `any`: the result may be any object.
""".
-type expectation() ::
    {text, binary()} | {number, number()} | {bytes, non_neg_integer()}
    | {member, Name :: binary(), list | object} | any.

-doc """
The judgement of a reply.

- `refused` has the code of an error: its `data.refusal`, or else its JSON-RPC code. The code of a
  body that is no JSON-RPC response is the HTTP status, from 400 on. `tool_error` is a result with
  `isError`. `Details` is the `data` of the error, or the result with `isError`, or otherwise an
  empty map.
- `wrong` is a reply that does not match its request. `What` says what is wrong about the reply.
""".
-type verdict() ::
    answered
    | {refused, Code :: integer() | tool_error, Details :: map()}
    | {wrong, What :: id | content | json | message | empty | status}.

-doc """
The outcome of a request: the verdict on its reply, or `failed` without a reply. On a wire with
ordered replies, a reply that cannot be read is `{wrong, Reason}`, with the error of the wire.
""".
-type outcome() ::
    verdict() | {failed, Reason :: atom()} | {wrong, Reason :: bad_head | bad_chunk | too_large}.

-type pattern() :: {BeforeId :: binary(), BehindId :: binary(), erlmcp_load_wire:event_status(),
                    verdict()}.

-doc """
Returns the id of the reply in a line if it is an integer, `none` for a message with a method, and
`unknown` for everything else.
""".
-spec id(binary()) -> {ok, integer()} | unknown | none.
id(<<"{\"jsonrpc\":\"2.0\",\"id\":", Digits:10/binary, ",\"result\":", _/binary>> = Line) ->
    integer(Digits, Line);
id(<<"{\"jsonrpc\":\"2.0\",\"id\":", Digits:10/binary, ",\"error\":", _/binary>> = Line) ->
    integer(Digits, Line);
id(<<"{\"result\":", _/binary>> = Line) ->
    last(Line);
id(<<"{\"jsonrpc\":\"2.0\",\"result\":", _/binary>> = Line) ->
    last(Line);
id(Line) ->
    decoded_id(Line).

integer(Digits, Line) ->
    try
        {ok, binary_to_integer(Digits)}
    catch
        error:badarg -> decoded_id(Line)
    end.

%% The last brace closes the message itself.
last(Line) ->
    Before = max(0, byte_size(Line) - 17),
    case Line of
        <<_:Before/binary, ",\"id\":", Digits:10/binary, "}">> -> integer(Digits, Line);
        _ -> decoded_id(Line)
    end.

decoded_id(Line) ->
    case decode(Line) of
        {ok, #{~"method" := _}} -> none;
        {ok, #{~"id" := Id} = Reply} when is_integer(Id) ->
            case is_map_key(~"result", Reply) orelse is_map_key(~"error", Reply) of
                true -> {ok, Id};
                false -> unknown
            end;
        _ -> unknown
    end.

-doc """
Returns `true` if the data of an event count as a reply, even if they are no JSON. Notifications and
requests of the server do not, and neither do the empty data of a stream's first event (2025-11-25,
basic/transports, "Sending Messages to the Server").
""".
-spec is_reply(binary()) -> boolean().
is_reply(~"") ->
    false;
is_reply(Bytes) ->
    id(Bytes) =/= none.

-doc """
Judges the reply `Body` with the HTTP status `Status` to the request with the id `Id`. The result
says `known` if the reply matches one of the patterns, and `read` if the reply was decoded. The
patterns must be those of replies to requests with the same expectation.
""".
-spec check(Body :: binary(), Status :: erlmcp_load_wire:event_status(), Id :: binary(),
            expectation(), [pattern()]) -> {known | read, verdict()}.
check(Body, Status, Id, Expected, Patterns) ->
    case fits(Body, Status, Id, Patterns) of
        false -> {read, judge(decode(Body), Body, Status, Id, Expected)};
        Verdict -> {known, Verdict}
    end.

fits(_, _, _, []) ->
    false;
fits(Body, Status, Id, [{Before, Behind, Status, Verdict} | Patterns]) ->
    Size = byte_size(Before),
    case Body of
        <<Before:Size/binary, Id:10/binary, Behind/binary>> -> Verdict;
        _ -> fits(Body, Status, Id, Patterns)
    end;
fits(Body, Status, Id, [_ | Patterns]) ->
    fits(Body, Status, Id, Patterns).

-doc """
Returns the pattern of a decoded reply to the request with the id `Id`. Returns `none` if the reply
is wrong, or if `Id` does not occur in `Body` exactly once.
""".
-spec pattern({Body :: binary(), erlmcp_load_wire:event_status()}, Id :: binary(), verdict()) ->
    {ok, pattern()} | none.
pattern(_, _, {wrong, _}) ->
    none;
pattern({Body, Status}, Id, Verdict) ->
    case binary:matches(Body, Id) of
        [{At, Length}] ->
            <<Before:At/binary, _:Length/binary, Behind/binary>> = Body,
            %% The copies do not keep the whole packet in memory.
            {ok, {binary:copy(Before), binary:copy(Behind), Status, Verdict}};
        _ ->
            none
    end.

judge({ok, #{~"jsonrpc" := ~"2.0", ~"result" := Result, ~"id" := Answered}}, _, Status, Id,
      Expected) ->
    case is_integer(Answered) andalso integer_to_binary(Answered) =:= Id of
        false -> {wrong, id};
        true when Status =/= none, Status =/= 200 -> {wrong, status};
        true -> result(Result, Expected)
    end;
judge({ok, #{~"jsonrpc" := ~"2.0", ~"error" := #{~"code" := Code} = Error} = Reply}, _, Status,
      Id, _) when is_integer(Code) ->
    case maps:get(~"id", Reply, null) of
        %% Without a readable id, HTTP still tells which request was refused.
        null when Status =/= none -> refused(Error);
        Answered when is_integer(Answered) ->
            case integer_to_binary(Answered) =:= Id of
                true -> refused(Error);
                false -> {wrong, id}
            end;
        _ -> {wrong, id}
    end;
judge(_, _, Status, _, _) when is_integer(Status), Status >= 400 ->
    {refused, Status, #{}};
judge(_, ~"", _, _, _) ->
    {wrong, empty};
judge({ok, _}, _, _, _, _) ->
    {wrong, message};
judge(error, _, _, _, _) ->
    {wrong, json}.

refused(#{~"code" := Code} = Error) ->
    Details = case Error of
        #{~"data" := #{} = Data} -> Data;
        #{} -> #{}
    end,
    case Details of
        #{~"refusal" := Number} when is_integer(Number) -> {refused, Number, Details};
        #{} -> {refused, Code, Details}
    end.

result(#{~"isError" := true} = Result, _) ->
    {refused, tool_error, Result};
result(Result, Expected) ->
    case is_map(Result) andalso has(Expected, Result) of
        true -> answered;
        false -> {wrong, content}
    end.

has(any, _) ->
    true;
has({member, Name, Type}, Result) ->
    case Result of
        #{Name := Value} when Type =:= list -> is_list(Value);
        #{Name := Value} when Type =:= object -> is_map(Value);
        #{} -> false
    end;
has(Expected, #{~"content" := Content}) when is_list(Content) ->
    [] =/= [Text || #{~"type" := ~"text", ~"text" := Text} <- Content, is_binary(Text),
                    says(Expected, Text)];
has(_, _) ->
    false.

says({text, ~""}, _) -> true;
says({text, Words}, Text) -> Text =:= Words orelse binary:match(Text, Words) =/= nomatch;
says({bytes, Size}, Text) -> byte_size(Text) =:= Size;
says({number, Number}, Text) ->
    case decode(Text) of
        {ok, Value} -> is_number(Value) andalso Value == Number;
        error -> false
    end.

decode(Bytes) ->
    try
        {ok, json:decode(Bytes)}
    catch
        error:_ -> error
    end.
