-module(erlmcp_bench_requests).
-moduledoc """
Sends whole requests to a server of this node, without a socket. The calling process acts as the
process of a connection (`m:erlmcp_connection_process`): it has its state (`m:erlmcp_connection`)
and its heap (`m:erlmcp_heap`).

It passes in the bytes of a line, which are decoded, admitted and dispatched. A quick tool runs in
the same process, and another one in the process of its call. The answer comes back as bytes. The
first right answer is decoded. Answers that differ only in their id are also right, and every other
answer is decoded again.

The calling process traps exits from then on: the process of a call answers with its end.
""".

-export([new/2, call/2, close/1]).

-export_type([connection/0, outcome/0]).

-opaque connection() :: #{
    connection := erlmcp_connection:connection(),
    %% the bytes before and after the id, of a request and of its answer once it is known
    request := {binary(), binary()}, answer := {binary(), binary()} | unknown,
    text := binary()
}.
-type outcome() :: answered | {refused, Code :: integer()} | {wrong, binary()} | timeout.

%% Milliseconds to wait for an answer: as many as a call has.
-define(ANSWER, 60_000).

-doc """
Returns a connection of the calling process to a server with the tool `echo`. Its requests have a
text of `Bytes` bytes.
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

-doc """
Sends a request with the id `Id`, and waits for its answer, at most a minute. The outcome `wrong`
has the bytes of an answer that is neither right nor an error.
""".
-spec call(Id :: pos_integer(), connection()) -> {outcome(), connection()}.
call(Id, #{connection := Connection, request := {Before, After}} = Client) ->
    Digits = integer_to_binary(Id),
    {Got, Next} = send(<<Before/binary, Digits/binary, After/binary>>, Connection),
    outcome(Id, Digits, Got, Client#{connection := Next}).

outcome(_, _, timeout, Client) ->
    {timeout, Client};
outcome(Id, Digits, Got, #{answer := {Before, After}} = Client) ->
    {Begins, Size} = {byte_size(Before), byte_size(Digits)},
    case Got of
        <<Before:Begins/binary, Digits:Size/binary, After/binary>> -> {answered, Client};
        _ -> {read(Id, Got, Client), Client}
    end;
outcome(Id, _, Got, #{answer := unknown} = Client) ->
    case read(Id, Got, Client) of
        answered -> {answered, Client#{answer := around_id(Id, Got)}};
        Other -> {Other, Client}
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

send(Request, Connection) ->
    {_, Out, Next} = erlmcp_connection:data(Request, Connection),
    written(Out, Next).

%% Receives only messages of the connection's calls: the mailbox may have others.
awaited(Connection) ->
    receive
        {'EXIT', _, _} = Message -> handled(Message, Connection);
        {{erlmcp_call, _}, _} = Message -> handled(Message, Connection)
    after ?ANSWER ->
        {timeout, Connection}
    end.

handled(Message, Connection) ->
    {Out, Next} = erlmcp_connection:info(Message, Connection),
    written(Out, Next).

written(Out, Connection) ->
    case iolist_to_binary(Out) of
        <<>> -> awaited(Connection);
        Bytes -> {Bytes, Connection}
    end.

-doc "Closes the connection.".
-spec close(connection()) -> ok.
close(#{connection := Connection}) ->
    erlmcp_connection:close(Connection).
