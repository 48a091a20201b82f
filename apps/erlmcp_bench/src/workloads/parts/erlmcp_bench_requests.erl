-module(erlmcp_bench_requests).
-moduledoc """
Whole requests to a server of this node, without a socket: the calling process is the connection, as
the shell of a transport is (`m:erlmcp_connection_process`), and has its state
(`m:erlmcp_connection`) and its heap (`m:erlmcp_heap`). What it hands in are the bytes of a line,
which are decoded, admitted and dispatched; the tool runs there if it is quick, and in the process
of its call if not; the answer comes back as bytes. The first one that is right is read; those that
are the same but for their id are right as well, and every other one is read again.

The calling process traps exits from then on: calls that have a process answer with its end.
""".

-export([new/2, call/2, close/1]).

-export_type([connection/0, outcome/0]).

-opaque connection() :: #{
    connection := erlmcp_connection:connection(),
    %% what stands before and after the id, of a request and of its answer, when that is known
    request := {binary(), binary()}, answer := {binary(), binary()} | unknown,
    text := binary()
}.
-type outcome() :: answered | {refused, Code :: integer()} | {wrong, binary()} | timeout.

%% Milliseconds until nobody waits for an answer any more: as many as a call has.
-define(ANSWER, 60_000).

-doc """
A connection to a server that has the tool `echo`; its requests have a text of so many bytes.
""".
-spec new(erlmcp_instance:instance(), Bytes :: non_neg_integer()) -> connection().
new(#{limits := Limits} = Instance, Bytes) ->
    _ = process_flag(trap_exit, true),
    ok = erlmcp_heap:bound_connection(Limits),
    Text = binary:copy(~"x", Bytes),
    #{connection => erlmcp_connection:new(Instance, anonymous, local), text => Text,
      request => around_id(0, request(Text)), answer => unknown}.

request(Text) ->
    Revision = erlmcp_revision:latest(stateless),
    Identity = #{info => #{name => ~"erlmcp-bench", version => ~"0.1.0"}, capabilities => #{}},
    Params = #{~"name" => ~"echo", ~"arguments" => #{~"text" => Text}},
    {Bytes, _} = erlmcp_client_request:request(0, {~"tools/call", Params}, #{},
                                               {Revision, Identity}),
    iolist_to_binary([Bytes, $\n]).

around_id(Id, Bytes) ->
    Member = <<"\"id\":", (integer_to_binary(Id))/binary>>,
    [Before, After] = binary:split(Bytes, Member),
    {<<Before/binary, "\"id\":">>, After}.

-doc "Sends a request with this id, and waits for its answer.".
-spec call(Id :: pos_integer(), connection()) -> {outcome(), connection()}.
call(Id, #{connection := Connection, request := {Before, After}} = Known) ->
    Digits = integer_to_binary(Id),
    {Got, Next} = asked(<<Before/binary, Digits/binary, After/binary>>, Connection),
    outcome(Id, Digits, Got, Known#{connection := Next}).

outcome(_, _, timeout, Known) ->
    {timeout, Known};
outcome(Id, Digits, Got, #{answer := {Before, After}} = Known) ->
    {Begins, Size} = {byte_size(Before), byte_size(Digits)},
    case Got of
        <<Before:Begins/binary, Digits:Size/binary, After/binary>> -> {answered, Known};
        _ -> {read(Id, Got, Known), Known}
    end;
outcome(Id, _, Got, #{answer := unknown} = Known) ->
    case read(Id, Got, Known) of
        answered -> {answered, Known#{answer := around_id(Id, Got)}};
        Other -> {Other, Known}
    end.

read(Id, Got, #{text := Text}) ->
    try json:decode(Got) of
        #{~"id" := Id, ~"result" := #{~"content" := [#{~"text" := Text}]}} -> answered;
        #{~"id" := Id, ~"error" := #{~"code" := Code} = Error} when is_integer(Code) ->
            {refused, number(Error)};
        _ -> {wrong, Got}
    catch
        error:_ -> {wrong, Got}
    end.

number(#{~"data" := #{~"refusal" := Number}}) when is_integer(Number) -> Number;
number(#{~"code" := Code}) -> Code.

asked(Request, Connection) ->
    {_, Out, Next} = erlmcp_connection:data(Request, Connection),
    written(Out, Next).

%% Only what the calls of the connection send: the mailbox has other things too.
awaited(Connection) ->
    receive
        {'EXIT', _, _} = Message -> heard(Message, Connection);
        {{erlmcp_call, _}, _} = Message -> heard(Message, Connection)
    after ?ANSWER ->
        {timeout, Connection}
    end.

heard(Message, Connection) ->
    {Out, Next} = erlmcp_connection:info(Message, Connection),
    written(Out, Next).

written(Out, Connection) ->
    case iolist_to_binary(Out) of
        <<>> -> awaited(Connection);
        Bytes -> {Bytes, Connection}
    end.

-doc "The connection is over.".
-spec close(connection()) -> ok.
close(#{connection := Connection}) ->
    erlmcp_connection:close(Connection).
