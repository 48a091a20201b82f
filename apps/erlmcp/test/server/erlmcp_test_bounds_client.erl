-module(erlmcp_test_bounds_client).
-moduledoc """
One client for the transports whose bounds are tested, and for both eras. On HTTP/1.1 each request
has a connection of its own. On HTTP/2, TCP and stdio all requests share one. A reply has the same
form on each: the message, and what HTTP says beside it.
""".

-export([serve/3, stop/1, connect/2, keep/2, open/3, open/4, close/1]).
-export([send/3, send/4, reply/1, call/3, message/4, batch/2, answer/3, cancel/2]).

-export_type([client/0, exchange/0, reply/0]).

-type transport() :: http | http2 | tcp | stdio.
-doc "A server; on stdio the node in which it runs.".
-type server() :: pid() | {stdio, erlmcp_test_bounds_stdio:node_()}.
-type client() :: #{server := server(), transport := transport(), era := binary(),
                    atom() => term()}.
-type exchange() ::
    {http | kept | tcp, gen_tcp:socket()} | {http2, pid(), reference()}
    | {stdio, erlmcp_test_bounds_stdio:node_()}.
-doc "A reply. `status`, and `retry_after` in seconds, are `none` on transports without HTTP.".
-type reply() :: #{status := none | 100..599, retry_after := none | pos_integer(),
                   message := map() | none, headers => map()}.

-define(TIMEOUT, 60_000).

-doc """
Starts a server with these limits and definitions, which listens on a transport. On stdio the server
runs in the option `node`, with the definitions of that node.
""".
-spec serve(transport(), Limits :: map(), Options :: map()) -> server().
serve(stdio, Limits, #{node := Node}) ->
    ok = erlmcp_test_bounds_stdio:serve(Limits, Node),
    {stdio, Node};
serve(Transport, Limits, Options) ->
    Listen = case Transport of
        tcp -> {tcp, maps:get(tcp, Options, #{})};
        _ -> {http, maps:get(http, Options, #{})}
    end,
    {ok, Server} = erlmcp:start_server((maps:without([tcp, http], Options))#{
        name => ~"bounds", version => ~"1.0.0", limits => Limits, listen => [Listen]}),
    Server.

-doc "Stops a server.".
-spec stop(server()) -> ok.
stop({stdio, Node}) ->
    erlmcp_test_bounds_stdio:stop_server(Node);
stop(Server) ->
    erlmcp:stop_server(Server).

-doc """
Returns a new connection: a socket on HTTP/1.1 and TCP, and gun's process on HTTP/2. On stdio it is
the node.
""".
-spec connect(server(), transport()) -> gen_tcp:socket() | pid() | erlmcp_test_bounds_stdio:node_().
connect({stdio, Node}, stdio) ->
    Node;
connect(Server, http2) ->
    #{port := Port} = listener(Server),
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2], retry => 0}),
    {ok, http2} = gun:await_up(Connection, ?TIMEOUT),
    Connection;
connect(Server, http) ->
    erlmcp_test_http:connect(listener(Server));
connect(Server, tcp) ->
    erlmcp_test_line:connect(Server).

listener(Server) ->
    [Listener] = erlmcp:listeners(Server),
    Listener.

-doc "Opens a stateless client that has one connection on each transport.".
-spec keep(server(), transport()) -> client().
keep(Server, Transport) ->
    #{server => Server, transport => Transport, era => ~"2026-07-28", headers => #{},
      connection => connect(Server, Transport)}.

-doc "Opens a client of an era, and its session if the era has one.".
-spec open(server(), transport(), Era :: binary()) -> client().
open(Server, Transport, Era) ->
    open(Server, Transport, Era, #{}).

-doc "Opens a client as `open/3` does, with capabilities.".
-spec open(server(), transport(), Era :: binary(), Capabilities :: map()) -> client().
open(Server, Transport, Era, Capabilities) ->
    Client = #{server => Server, transport => Transport, era => Era, headers => #{}},
    initialized(case Transport of
        http -> Client;
        _ -> Client#{connection => connect(Server, Transport)}
    end, Capabilities).

initialized(#{era := ~"2026-07-28"} = Client, _) ->
    Client;
initialized(#{era := Era} = Client, Capabilities) ->
    Params = #{protocolVersion => Era, capabilities => Capabilities,
               clientInfo => #{name => ~"suite", version => ~"1"}},
    #{message := #{~"result" := #{}}} = Reply = call(Client, ~"initialize", Params),
    Session = case Reply of
        #{headers := #{~"mcp-session-id" := Id}} -> Client#{session => Id};
        #{} -> Client#{session => none}
    end,
    case send(Session, none, ~"notifications/initialized", #{}) of
        {Lines, _} when Lines =:= tcp; Lines =:= stdio -> ok;
        Exchange -> #{status := 202} = reply(Exchange)
    end,
    Session.

-doc "Closes a connection, or that of a client. A connection of stdio ends with its server.".
-spec close(client() | gen_tcp:socket() | pid()) -> ok.
close(#{transport := stdio}) -> ok;
close(#{connection := Connection}) -> close(Connection);
close(#{}) -> ok;
close(Connection) when is_pid(Connection) -> gun:close(Connection);
close(Socket) -> gen_tcp:close(Socket).

-doc "Sends a request with an id of its own. All these ids have the same length.".
-spec send(client(), Method :: binary(), Params :: map()) -> exchange().
send(Client, Method, Params) ->
    send(Client, 1_000_000_000 + erlang:unique_integer([positive]), Method, Params).

-doc "Sends a request with this id, or a notification if the id is `none`.".
-spec send(client(), Id :: term(), Method :: binary(), Params :: map()) -> exchange().
send(#{transport := tcp, connection := Socket} = Client, Id, Method, Params) ->
    {_, Body} = message(Client, Id, Method, Params),
    ok = erlmcp_test_line:send(Socket, Body),
    {tcp, Socket};
send(#{transport := stdio, connection := Node} = Client, Id, Method, Params) ->
    {_, Body} = message(Client, Id, Method, Params),
    ok = erlmcp_test_bounds_stdio:send(Body, Node),
    {stdio, Node};
send(#{transport := http2, connection := Connection} = Client, Id, Method, Params) ->
    {Headers, Body} = message(Client, Id, Method, Params),
    {http2, Connection, gun:post(Connection, "/mcp", Headers, Body)};
send(#{transport := http, connection := Socket} = Client, Id, Method, Params) ->
    {Headers, Body} = message(Client, Id, Method, Params),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    {kept, Socket};
send(#{transport := http, server := Server} = Client, Id, Method, Params) ->
    {Headers, Body} = message(Client, Id, Method, Params),
    Socket = connect(Server, http),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    {http, Socket}.

-doc "Returns the headers and the body of a client's request.".
-spec message(client(), Id :: term(), Method :: binary(), Params :: map()) ->
    {erlmcp_test_http:headers(), binary()}.
message(#{era := ~"2026-07-28", headers := Headers}, Id, Method, Params) ->
    erlmcp_test_http:message(Method, Params, #{id => Id, headers => Headers});
message(#{era := Era, session := Session, headers := Headers}, Id, Method, Params) ->
    erlmcp_test_http:message(Method, Params, #{id => Id, session => {Session, Era},
                                               headers => Headers});
message(#{era := Era, headers := Headers}, Id, Method, Params) ->
    None = #{~"mcp-session-id" => none, ~"mcp-protocol-version" => none},
    erlmcp_test_http:message(Method, Params, #{id => Id, session => {~"", Era},
                                               headers => maps:merge(None, Headers)}).

-doc "Waits for the reply of an exchange. Closes the connection if the exchange had its own.".
-spec reply(exchange()) -> reply().
reply({tcp, Socket}) ->
    #{status => none, retry_after => none, message => erlmcp_test_line:recv(Socket)};
reply({stdio, Node}) ->
    #{status => none, retry_after => none, message => erlmcp_test_bounds_stdio:recv(Node)};
reply({http, Socket}) ->
    Reply = reply({kept, Socket}),
    ok = gen_tcp:close(Socket),
    Reply;
reply({kept, Socket}) ->
    #{status := Status, headers := Headers, messages := Messages} =
        erlmcp_test_http:response(Socket),
    replied(Status, Headers, Messages);
reply({http2, Connection, Stream}) ->
    case gun:await(Connection, Stream, ?TIMEOUT) of
        {response, fin, Status, Headers} ->
            replied(Status, maps:from_list(Headers), []);
        {response, nofin, Status, Headers} ->
            {ok, Body} = gun:await_body(Connection, Stream, ?TIMEOUT),
            replied(Status, maps:from_list(Headers), [json:decode(Body)])
    end.

replied(Status, Headers, Messages) ->
    RetryAfter = case Headers of
        #{~"retry-after" := Seconds} -> binary_to_integer(Seconds);
        #{} -> none
    end,
    Message = case Messages of
        [One] -> One;
        [] -> none
    end,
    #{status => Status, retry_after => RetryAfter, headers => Headers, message => Message}.

-doc "Sends a request, and waits for its reply.".
-spec call(client(), Method :: binary(), Params :: map()) -> reply().
call(Client, Method, Params) ->
    reply(send(Client, Method, Params)).


-doc "Sends a batch on TCP or HTTP/1.1, and returns its answer, which is one message.".
-spec batch(client(), [map()]) -> [map()].
batch(#{transport := tcp, connection := Socket}, Requests) ->
    ok = erlmcp_test_line:send(Socket, Requests),
    erlmcp_test_line:recv(Socket);
batch(#{server := Server} = Client, Requests) ->
    {Headers, _} = message(Client, 1, ~"", #{}),
    #{status := 200, messages := [Answers]} =
        erlmcp_test_http:post(listener(Server), Headers, json:encode(Requests)),
    Answers.

-doc "Answers a request of the server, on TCP.".
-spec answer(client(), Id :: term(), Result :: map()) -> ok.
answer(#{connection := Socket}, Id, Result) ->
    erlmcp_test_line:send(Socket, #{jsonrpc => ~"2.0", id => Id, result => Result}).

-doc "Cancels an exchange, in the way of its era and transport.".
-spec cancel(client(), {exchange(), Id :: term()}) -> ok.
cancel(#{transport := tcp} = Client, {_, Id}) ->
    {tcp, _} = send(Client, none, ~"notifications/cancelled", #{requestId => Id}),
    ok;
cancel(#{session := _} = Client, {_, Id}) ->
    #{status := 202} = reply(send(Client, none, ~"notifications/cancelled", #{requestId => Id})),
    ok;
cancel(_, {{http, Socket}, _}) ->
    gen_tcp:close(Socket);
cancel(_, {{http2, Connection, Stream}, _}) ->
    gun:cancel(Connection, Stream).
