-module(erlmcp_recent_requests).
-moduledoc """
Records the requests of the node's servers while an operator looks at them, and none at other times.
The last 1,000 are kept. The operator's page allows a number of requests a second, and as many
failed ones (`allow/2`).

The payload of a request is its arguments and its result. Payloads are kept only for servers whose
page asks for them, and without secrets (`m:erlmcp_redaction`).

Internal.
""".

-export([open/0, allow/2, is_wanted/1, add/2, list/1, payload/3]).

-export_type([row/0, payload/0, kept/0]).

-doc """
A request that ended at the system time `at`, in milliseconds. `id` names the request on this node.
`method` and `target` have 256 bytes at most, or are `undefined` if not known. `took_us` has the
microseconds from arrival to end. `error` is the number of a refusal, `tool_error` or `cancelled`,
and `none` for a request that ended well. `trace` is the id of the request's trace, or `none`.
`payload` is `true` if the payload was kept when the request ended.

`principal` is `anonymous`, and `trace` is `none`, if the request had no call. `trace` is `none`,
too, if another process than the call's ended the request, as after a timeout.
""".
-type row() :: #{
    id := pos_integer(), at := integer(), server := reference(), method := binary() | undefined,
    target := binary() | undefined, principal := erlmcp:principal(),
    took_us := non_neg_integer(), error := none | pos_integer() | tool_error | cancelled,
    trace := binary() | none, bytes_in := non_neg_integer(), bytes_out := non_neg_integer(),
    payload := boolean()
}.
-doc """
The arguments of a request and its answer. `none` means that the part is not known, such as the
answer of a call that was killed.
""".
-type payload() :: {Arguments :: map() | none, Answer :: term()}.
-doc """
A payload without secrets. A part is `omitted` if the part, or the message that has it, has more
than 16,384 bytes; `Bytes` is that size. A part that is not known is absent, and so is a result that
is not JSON. The result of a refused request is its JSON-RPC error; that of a refused task is
absent.
""".
-type kept() :: #{arguments | result => Json :: binary() | {omitted, Bytes :: pos_integer()}}.

%% Rows of the ring.
-define(ROWS, 1000).
-define(LISTED, 100).
%% The most bytes of a method and of a target, which are the client's.
-define(TEXT_BYTES, 256).
%% Payloads of all servers, and the bytes of arguments and of a result that are kept.
-define(PAYLOADS, 200).
-define(PAYLOAD_BYTES, 16_384).
-define(PAYLOAD_TABLE, erlmcp_recent_payloads).
%% Words of the atomics: how many more requests may be added, of those that went well and of others.
%% Every request reads the term (`?NOBODY_LOOKS`). Changing it costs little, since it is an atom.
-define(WELL, 1).
-define(FAILED, 2).
-define(NOBODY, erlmcp_nobody_looks).

-doc """
Creates the tables of the last 1,000 requests and the last 200 payloads, owned by the calling
process.
""".
-spec open() -> ok.
open() ->
    ?MODULE = ets:new(?MODULE, [named_table, public, {write_concurrency, true}]),
    ?PAYLOAD_TABLE = ets:new(?PAYLOAD_TABLE, [named_table, public, {write_concurrency, true}]),
    persistent_term:put(?NOBODY, true),
    persistent_term:put(?MODULE, atomics:new(2, [{signed, true}])).

-doc """
Sets how many more requests may be added: `Count` that ended well, and `Count` others. Payloads are
kept for the servers whose keys are in `Payloads`, redacted by the rules there
(`erlmcp_redaction:redacted/2`). Payloads of other servers are deleted.
""".
-spec allow(Count :: non_neg_integer(),
            Payloads :: #{Key :: reference() => [erlmcp_redaction:rule()]}) -> ok.
allow(Count, Payloads) ->
    Words = persistent_term:get(?MODULE),
    true = ets:insert(?PAYLOAD_TABLE, {allowed, Payloads}),
    _ = [true = ets:delete(?PAYLOAD_TABLE, Place)
         || [Place, Key] <- ets:match(?PAYLOAD_TABLE, {'$1', '_', '$2', '_', '_'}),
            not is_map_key(Key, Payloads)],
    ok = atomics:put(Words, ?WELL, Count),
    ok = atomics:put(Words, ?FAILED, Count),
    persistent_term:put(?NOBODY, Count =:= 0).

-doc "Returns `true` if a request with this outcome may be added, and counts the request if so.".
-spec is_wanted(erlmcp_meter:outcome()) -> boolean().
is_wanted(Outcome) ->
    Words = persistent_term:get(?MODULE),
    Kind = kind(Outcome),
    %% Several processes may see that one more may be added. The subtraction tells which of them may
    %% add it.
    atomics:get(Words, Kind) > 0 andalso atomics:sub_get(Words, Kind, 1) >= 0.

kind(ok) -> ?WELL;
kind(_) -> ?FAILED.

-doc """
Adds a request that has ended, and for which `is_wanted/1` has returned `true`. The payload is added
if payloads of the server are kept (`allow/2`). Does nothing after the application has stopped.
""".
-spec add(erlmcp_meter:ended(), payload()) -> ok.
add(#{server := Key, method := Method, target := Target, outcome := Outcome, began := Began,
      ended := Ended, bytes_in := In, bytes_out := Out, context := Context} = Request, Payload) ->
    Row = #{at => erlang:system_time(millisecond), server => Key, method => beginning(Method),
            target => beginning(Target), principal => maps:get(principal, Request, anonymous),
            took_us => max(0, Ended - Began) div 1_000,
            error => error_of(Outcome), trace => trace(Context), bytes_in => In,
            bytes_out => Out},
    try
        Next = ets:update_counter(?MODULE, next, 1, {next, 0}),
        IsKept = keep(Next, Row, Payload, ets:lookup_element(?PAYLOAD_TABLE, allowed, 2, #{})),
        true = ets:insert(?MODULE, {Next rem ?ROWS, Next, Row#{id => Next, payload => IsKept}}),
        ok
    catch
        %% The application has stopped before the server.
        error:badarg -> ok
    end.

%% The message of a request may be large.
beginning(undefined) -> undefined;
beginning(Text) -> erlmcp_printable:beginning(Text, ?TEXT_BYTES).

trace(#{trace := #{trace_id := Id}}) when is_binary(Id) -> Id;
trace(_) -> none.

error_of(ok) -> none;
error_of({refused, Refusal}) -> erlmcp_refusal:number(Refusal);
error_of(Other) -> Other.

keep(Number, #{server := Key, bytes_in := In}, {Arguments, Answer}, Allowed) when
    is_map_key(Key, Allowed)
->
    Rules = map_get(Key, Allowed),
    Payload = maps:merge(arguments(Arguments, In, Rules), result(Answer, Rules)),
    true = ets:insert(?PAYLOAD_TABLE, {Number rem ?PAYLOADS, Number, Key, Rules, Payload}),
    true;
keep(_, _, _, _) ->
    false.

%% A message in a batch may be larger than its share of the bytes.
arguments(none, _, _) ->
    #{};
arguments(_, In, _) when In > ?PAYLOAD_BYTES ->
    #{arguments => {omitted, In}};
arguments(Arguments, _, Rules) ->
    case iolist_size(json:encode(Arguments)) of
        Bytes when Bytes > ?PAYLOAD_BYTES -> #{arguments => {omitted, Bytes}};
        _ -> #{arguments => clean(Arguments, Rules)}
    end.

%% The result of a task is in no message.
result({reply, ok, {Result, _}}, Rules) -> of_answer(Result, Rules);
result({reply, Status, Message}, Rules) when Status =/= error -> of_answer(Message, Rules);
result(_, _) -> #{}.

of_answer(Answer, Rules) ->
    case iolist_size(Answer) of
        Bytes when Bytes > ?PAYLOAD_BYTES ->
            #{result => {omitted, Bytes}};
        _ ->
            try json:decode(iolist_to_binary(Answer)) of
                Json -> #{result => clean(part(Json), Rules)}
            catch
                %% A handler may return what is encoded already.
                error:_ -> #{}
            end
    end.

part(#{~"jsonrpc" := _, ~"result" := Result}) -> part(Result);
part(#{~"jsonrpc" := _, ~"error" := Error}) -> Error;
part(#{~"_meta" := _} = Result) -> maps:remove(~"_meta", Result);
part(Json) -> Json.

clean(Json, Rules) ->
    iolist_to_binary(json:encode(erlmcp_redaction:redacted(Json, Rules))).

-doc "Returns the last requests of the server with the key `Key`, the newest first, 100 at most.".
-spec list(Key :: reference()) -> [row()].
list(Key) ->
    Rows = [{Number, Row} || {_, Number, #{server := Of} = Row} <- ets:tab2list(?MODULE),
                             Of =:= Key],
    [Row || {_, Row} <- lists:sublist(lists:reverse(lists:keysort(1, Rows)), ?LISTED)].

-doc """
Returns the payload of the request `Id` of the server with the key `Key`. Returns `gone` if the
payload was not kept, or is not kept any more. Returns `gone`, too, if the payload was redacted
without one of `Rules`.
""".
-spec payload(Id :: pos_integer(), Key :: reference(), [erlmcp_redaction:rule()]) ->
    {ok, kept()} | gone.
payload(Id, Key, Rules) ->
    maybe
        [{_, Id, Key, With, Payload}] ?= ets:lookup(?PAYLOAD_TABLE, Id rem ?PAYLOADS),
        [] ?= Rules -- With,
        {ok, Payload}
    else
        _ -> gone
    end.
