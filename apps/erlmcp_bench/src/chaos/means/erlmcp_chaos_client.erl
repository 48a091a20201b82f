-module(erlmcp_chaos_client).
-moduledoc """
A client that can misbehave: a plain socket to which anything can be written, and from which replies
can be read. HTTP/1.1 takes one request at a time, and TCP any number.
""".

-export([connect/2, connect/3, close/1, send/2]).
-export([request/3, call/3, bytes/2, posted/2, announced/1]).
-export([reply/2, ask/5, discard/3, ended/2, outcome/1]).

-export_type([connection/0, transport/0]).

-type transport() :: tcp | http.
-opaque connection() :: {transport(), gen_tcp:socket()}.

-define(CONNECT_MS, 5_000).
%% An incoming line is a refusal, or a small answer.
-define(BUFFER, 1_048_576).
-define(VERSION, ~"2026-07-28").

-doc "Connects to the server under test within five seconds. The errors are those of `m:gen_tcp`.".
-spec connect(transport(), erlmcp_bench_target:target()) ->
    {ok, connection()} | {error, inet:posix() | timeout}.
connect(Transport, Target) ->
    connect(Transport, Target, []).

-doc "Connects as `connect/2` does, with `Options` of the socket in addition to the usual ones.".
-spec connect(transport(), erlmcp_bench_target:target(), [gen_tcp:connect_option()]) ->
    {ok, connection()} | {error, inet:posix() | timeout}.
connect(Transport, Target, Options) ->
    {Ip, Port} = erlmcp_bench_target:address(Transport, Target),
    Packet = case Transport of
        tcp -> line;
        http -> raw
    end,
    case gen_tcp:connect(Ip, Port, [binary, {active, false}, {packet, Packet}, {nodelay, true},
                                    {buffer, ?BUFFER} | Options], ?CONNECT_MS) of
        {ok, Socket} -> {ok, {Transport, Socket}};
        {error, _} = Error -> Error
    end.

-doc "Closes the connection.".
-spec close(connection()) -> ok.
close({_, Socket}) ->
    gen_tcp:close(Socket).

-doc "Writes bytes to the connection, as they are. The error is that of the socket.".
-spec send(connection(), iodata()) -> ok | {error, term()}.
send({_, Socket}, Bytes) ->
    gen_tcp:send(Socket, Bytes).

-doc """
Returns a request of the stateless era. Adds to `_meta` in `Params` the members that such a request
must have. Members that `_meta` already has are kept.
""".
-spec request(Id :: integer(), Method :: binary(), Params :: map()) -> map().
request(Id, Method, Params) ->
    Meta = #{~"io.modelcontextprotocol/protocolVersion" => ?VERSION,
             ~"io.modelcontextprotocol/clientCapabilities" => #{}},
    #{jsonrpc => ~"2.0", id => Id, method => Method,
      params => Params#{'_meta' => maps:merge(Meta, maps:get('_meta', Params, #{}))}}.

-doc "Returns a request of the stateless era that calls the tool `Tool` with `Arguments`.".
-spec call(Id :: integer(), Tool :: binary(), Arguments :: map()) -> map().
call(Id, Tool, Arguments) ->
    request(Id, ~"tools/call", #{name => Tool, arguments => Arguments}).

-doc "Encodes a request for a transport: as an HTTP request with its headers, or as a line.".
-spec bytes(transport(), Message :: map()) -> iodata().
bytes(tcp, Message) ->
    [json:encode(Message), $\n];
bytes(http, #{method := Method, params := Params} = Message) ->
    Name = [[~"mcp-name: ", Value, ~"\r\n"] || #{name := Value} <- [Params]],
    posted([~"mcp-protocol-version: ", ?VERSION, ~"\r\nmcp-method: ", Method, ~"\r\n", Name],
           json:encode(Message)).

-doc """
Returns an HTTP request with the body `Body`. Its head has the usual header lines and those of
`Headers`, each of which ends with CR LF.
""".
-spec posted(Headers :: iodata(), Body :: iodata()) -> iodata().
posted(Headers, Body) ->
    [head(Headers, iolist_size(Body)), Body].

-doc """
Returns the head of an HTTP request that announces a body of `Bytes` bytes. The body need not be
sent.
""".
-spec announced(Bytes :: non_neg_integer()) -> iodata().
announced(Bytes) ->
    head([], Bytes).

head(Headers, Bytes) ->
    [~"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n",
     ~"accept: application/json, text/event-stream\r\n", Headers, ~"content-length: ",
     integer_to_binary(Bytes), ~"\r\n\r\n"].

-doc """
Sends the request `Message`, reads its reply as `reply/2` does, and records the outcome under
`Source`. Returns the outcome.

If the request could not be sent, or no reply could be read, the outcome is `{failed, Reason}`. The
reply may be an error without an id. For any other message that does not have the id of the request,
the outcome is `{wrong, id}`.
""".
-spec ask(connection(), erlmcp_chaos_context:context(), Source :: erlmcp_chaos_scenario:source(),
          Message :: map(), Milliseconds :: pos_integer()) -> erlmcp_chaos_accounting:outcome().
ask({Transport, _} = Connection, Context, Source, #{id := Id} = Message, Milliseconds) ->
    SentUs = erlmcp_chaos_context:now_us(),
    Outcome = case send(Connection, bytes(Transport, Message)) of
        ok ->
            case reply(Connection, Milliseconds) of
                {ok, #{~"id" := Id} = Reply} -> outcome(Reply);
                %% A refusal without an id, which concerns the whole connection.
                {ok, #{~"error" := _} = Reply} when not is_map_key(~"id", Reply) -> outcome(Reply);
                {ok, _} -> {wrong, id};
                {error, Reason} -> {failed, Reason}
            end;
        {error, Reason} ->
            {failed, Reason}
    end,
    ok = erlmcp_chaos_context:outcome(Context, Source, Outcome, SentUs),
    Outcome.

-doc """
Reads and decodes the next reply on a connection. Each line, and the body of an HTTP reply, must
come within `Milliseconds`. An HTTP reply without a body, or without `content-length`, is returned
as an error response with the status as its code. The errors are those of the socket, `no_http`,
`no_json`, and `no_reply` for JSON that is not an object.
""".
-spec reply(connection(), Milliseconds :: timeout()) -> {ok, map()} | {error, term()}.
reply({tcp, Socket}, Milliseconds) ->
    case gen_tcp:recv(Socket, 0, Milliseconds) of
        {ok, Line} -> decoded(Line);
        {error, _} = Error -> Error
    end;
reply({http, Socket}, Milliseconds) ->
    maybe
        ok ?= inet:setopts(Socket, [{packet, http_bin}]),
        {ok, {http_response, _, Status, _}} ?= gen_tcp:recv(Socket, 0, Milliseconds),
        {ok, Length} ?= length_of(Socket, 0, Milliseconds),
        ok ?= inet:setopts(Socket, [{packet, raw}]),
        {ok, Body} ?= body(Socket, Length, Milliseconds),
        decoded(Status, Body)
    else
        {ok, {http_error, _}} -> {error, no_http};
        {error, _} = Error -> Error
    end.

length_of(Socket, Length, Milliseconds) ->
    case gen_tcp:recv(Socket, 0, Milliseconds) of
        {ok, {http_header, _, 'Content-Length', _, Value}} ->
            length_of(Socket, binary_to_integer(Value), Milliseconds);
        {ok, {http_header, _, _, _, _}} -> length_of(Socket, Length, Milliseconds);
        {ok, http_eoh} -> {ok, Length};
        {ok, {http_error, _}} -> {error, no_http};
        {error, _} = Error -> Error
    end.

body(_, 0, _) -> {ok, <<>>};
body(Socket, Length, Milliseconds) -> gen_tcp:recv(Socket, Length, Milliseconds).

%% An invalid HTTP request is refused by a status, without a body.
decoded(Status, <<>>) -> {ok, #{~"error" => #{~"code" => Status}}};
decoded(_, Body) -> decoded(Body).

decoded(Bytes) ->
    try json:decode(Bytes) of
        #{} = Reply -> {ok, Reply};
        _ -> {error, no_reply}
    catch
        error:_ -> {error, no_json}
    end.

-doc """
Reads and drops at least `Bytes` bytes. Each part must come within `Milliseconds` of the one before.
`Missing` is the number of bytes that did not come.
""".
-spec discard(connection(), Bytes :: integer(), Milliseconds :: non_neg_integer()) ->
    ok | {error, Reason :: term(), Missing :: pos_integer()}.
discard(_, Bytes, _) when Bytes =< 0 ->
    ok;
discard({_, Socket} = Connection, Bytes, Milliseconds) ->
    case gen_tcp:recv(Socket, 0, Milliseconds) of
        {ok, Read} -> discard(Connection, Bytes - byte_size(Read), Milliseconds);
        {error, Reason} -> {error, Reason, Bytes}
    end.

-doc """
Drops incoming data until the connection ends, and returns 1 then. Returns 0 if neither data nor the
end comes within `Milliseconds`.
""".
-spec ended(connection(), Milliseconds :: non_neg_integer()) -> 0 | 1.
ended({_, Socket} = Connection, Milliseconds) ->
    case gen_tcp:recv(Socket, 0, Milliseconds) of
        {ok, _} -> ended(Connection, Milliseconds);
        {error, timeout} -> 0;
        {error, _} -> 1
    end.

-doc """
Returns the outcome that a reply gives its request. A tool error counts as `wrong`, and so does a
message with neither a result nor an error.
""".
-spec outcome(Reply :: map()) -> erlmcp_chaos_accounting:outcome().
outcome(#{~"result" := #{~"isError" := true}}) -> {wrong, is_error};
outcome(#{~"result" := _}) -> answered;
outcome(#{~"error" := #{~"code" := Code} = Error}) ->
    {refused, Code, maps:get(~"data", Error, #{})};
outcome(_) -> {wrong, no_reply}.
