-module(erlmcp_bench_requests).
-moduledoc """
Sends whole requests to a server of this node, without a socket. The calling process acts as the
process of a connection (`m:erlmcp_connection_process`), with the state (`m:erlmcp_connection`) and
the heap (`m:erlmcp_heap`) of one. A quick tool runs in the calling process, and any other tool in
the process of its call.

If the server ends, a request to it has no answer. The next request looks the server up again. A
request that has no answer in time ends its connection, and the next one opens another.

After `new/2` the calling process traps exits, since the process of a call answers with its end.
""".

-export([new/2, call/2, close/1]).

-export_type([client/0, outcome/0]).

-opaque client() :: #{
    server := erlmcp:server(),
    %% with the key of the server that it was opened to
    connection := {reference(), erlmcp_connection:connection()} | none,
    %% how long to wait for an answer, once a connection was opened
    timeout_ms => pos_integer(),
    %% the bytes before and after the id, of a request and of its answer once it is known
    request := {binary(), binary()}, answer := {binary(), binary()} | unknown,
    text := binary()
}.
-doc """
The outcome of a request. `refused` has the number of the server's refusal or, if the error has
none, its JSON-RPC code. `no_server`: the server did not run, or ended before its answer.
""".
-type outcome() ::
    answered | {refused, Code :: integer()} | {wrong, binary()} | timeout | no_server.

%% Milliseconds to wait for an answer after those that a call has.
-define(GRACE, 1_000).

-doc """
Returns a client of a server with the tool `echo`, for the calling process, which traps exits from
now on. The client's requests have a text of `Bytes` bytes. The first one opens the connection.
""".
-spec new(Server :: erlmcp:server(), Bytes :: non_neg_integer()) -> client().
new(Server, Bytes) ->
    _ = process_flag(trap_exit, true),
    Text = binary:copy(~"x", Bytes),
    #{server => Server, connection => none, text => Text,
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
Sends a request with the id `Id`, and waits for its answer, at most for a second longer than the
server's limit `call_timeout_ms`. The outcome `wrong` has the bytes of an answer that is neither
right nor an error.
""".
-spec call(Id :: pos_integer(), client()) -> {outcome(), client()}.
call(Id, #{connection := {Key, Connection}, request := {Before, After}} = Client) ->
    #{timeout_ms := Timeout} = Client,
    Digits = integer_to_binary(Id),
    try send(<<Before/binary, Digits/binary, After/binary>>, Timeout, Connection) of
        {Got, Next} -> outcome(Id, Digits, Got, Client#{connection := {Key, Next}})
    catch
        error:badarg:Stack -> {no_server, without_server(Stack, Client)}
    end;
call(Id, #{connection := none, server := Server} = Client) ->
    case erlmcp_registry:whereis(Server) of
        {ok, _, #{key := Key, limits := Limits} = Instance} ->
            ok = erlmcp_heap:bound_connection(Limits),
            Connection = erlmcp_connection:new(Instance, anonymous, local),
            #{call_timeout_ms := Timeout} = Limits,
            call(Id, Client#{connection := {Key, Connection}, timeout_ms => Timeout + ?GRACE});
        error ->
            {no_server, Client}
    end.

%% The tables of a server that has ended are gone. Any other reason is a fault.
without_server(Stack, #{server := Server, connection := {Key, _}} = Client) ->
    case erlmcp_registry:whereis(Server) of
        {ok, _, #{key := Key}} -> erlang:raise(error, badarg, Stack);
        _ -> Client#{connection := none}
    end.

%% Answers are decoded until one is right. A later answer that differs only in its id is right, too.
outcome(_, _, timeout, Client) ->
    %% A late answer would be that of the next request.
    ok = close(Client),
    {timeout, Client#{connection := none}};
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

send(Request, Timeout, Connection) ->
    {_, Out, Next} = erlmcp_connection:data(Request, Connection),
    written(Out, Timeout, Next).

%% Receives only messages of the connection's calls: the mailbox may have others.
awaited(Timeout, Connection) ->
    receive
        {'EXIT', _, _} = Message -> handled(Message, Timeout, Connection);
        {{erlmcp_call, _}, _} = Message -> handled(Message, Timeout, Connection)
    after Timeout ->
        {timeout, Connection}
    end.

handled(Message, Timeout, Connection) ->
    {Out, Next} = erlmcp_connection:info(Message, Connection),
    written(Out, Timeout, Next).

written(Out, Timeout, Connection) ->
    case iolist_to_binary(Out) of
        <<>> -> awaited(Timeout, Connection);
        Bytes -> {Bytes, Connection}
    end.

-doc "Closes the client's connection.".
-spec close(client()) -> ok.
close(#{connection := none}) ->
    ok;
close(#{connection := {_, Connection}} = Client) ->
    try
        erlmcp_connection:close(Connection)
    catch
        error:badarg:Stack ->
            _ = without_server(Stack, Client),
            ok
    end.
