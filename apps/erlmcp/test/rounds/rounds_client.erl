-module(rounds_client).
-moduledoc """
One client for both transports and both eras: what the suites of this folder send goes out as a POST
of its own or as a line, and what comes back is read message by message.
""".

-export([start/1, open/3, open/4, close/1, close/2, with_capabilities/2]).
-export([request/4, next/1, status/1, over/1, ask/3, ask/4, notify/3, answer/3, answer_error/3]).
-export([stream/1, cancel/2, holds/2]).

-export_type([client/0, exchange/0]).

-type client() :: #{transport := http | tcp, server := erlmcp_test_http:server(), atom() => term()}.
-type exchange() :: {http | tcp, gen_tcp:socket()}.

-doc "A server that listens on HTTP and TCP, linked to the caller.".
-spec start(map()) -> erlmcp_test_http:server().
start(Options) ->
    erlmcp_test_http:start(Options#{listen => [{http, #{}}, {tcp, #{}}]}).

-doc "A client without capabilities.".
-spec open(erlmcp_test_http:server(), http | tcp, Revision :: binary()) -> client().
open(Server, Transport, Revision) ->
    open(Server, Transport, Revision, #{}).

-doc "A client of a revision with these capabilities; its session is open.".
-spec open(erlmcp_test_http:server(), http | tcp, Revision :: binary(), map()) -> client().
open(Server, http, ~"2026-07-28", Capabilities) ->
    #{transport => http, server => Server, capabilities => Capabilities};
open(Server, http, Revision, Capabilities) ->
    None = #{~"mcp-session-id" => none, ~"mcp-protocol-version" => none},
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        erlmcp_test_http:call(Server, ~"initialize", initialize(Revision, Capabilities),
                              #{session => {~"", Revision}, headers => None}),
    Client = #{transport => http, server => Server, session => {Id, Revision}},
    ok = notify(Client, ~"notifications/initialized", #{}),
    Client;
open(#{pid := Pid} = Server, tcp, ~"2026-07-28", Capabilities) ->
    #{transport => tcp, server => Server, capabilities => Capabilities,
      socket => erlmcp_test_line:connect(Pid)};
open(#{pid := Pid} = Server, tcp, Revision, Capabilities) ->
    Client = #{transport => tcp, server => Server, session => Revision,
               socket => erlmcp_test_line:connect(Pid)},
    #{~"result" := #{~"protocolVersion" := Revision}} =
        ask(Client, ~"initialize", ~"initialize", initialize(Revision, Capabilities)),
    ok = notify(Client, ~"notifications/initialized", #{}),
    Client.

initialize(Revision, Capabilities) ->
    #{protocolVersion => Revision, capabilities => Capabilities,
      clientInfo => #{name => ~"suite", version => ~"1"}}.

-doc "The same client, declaring other capabilities from its next request on (stateless).".
-spec with_capabilities(map(), client()) -> client().
with_capabilities(Capabilities, #{capabilities := _} = Client) ->
    Client#{capabilities := Capabilities}.

-doc "The client goes away.".
-spec close(client()) -> ok.
close(#{socket := Socket}) -> gen_tcp:close(Socket);
close(_) -> ok.

-doc "The client goes away while it waits for this.".
-spec close(client(), exchange()) -> ok.
close(_, {_, Socket}) ->
    gen_tcp:close(Socket).

-doc "Sends a request.".
-spec request(client(), Id :: term(), Method :: binary(), Params :: map()) -> exchange().
request(#{transport := http, server := Server} = Client, Id, Method, Params) ->
    Socket = erlmcp_test_http:connect(Server),
    post(Socket, Method, Params, Id, Client),
    {http, Socket};
request(#{socket := Socket} = Client, Id, Method, Params) ->
    Message = #{jsonrpc => ~"2.0", id => Id, method => Method, params => meta(Params, Client)},
    erlmcp_test_line:send(Socket, Message),
    {tcp, Socket}.

post(Socket, Method, Params, Id, Client) ->
    Options = case Client of
        #{session := Session} -> #{session => Session};
        #{capabilities := Capabilities} ->
            #{meta => #{~"io.modelcontextprotocol/clientCapabilities" => Capabilities}}
    end,
    {Headers, Body} = erlmcp_test_http:message(Method, Params, Options#{id => Id}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body).

meta(Params, #{session := _}) ->
    Params;
meta(Params, #{capabilities := Capabilities}) ->
    Meta = erlmcp_test_line:meta(),
    Params#{'_meta' => Meta#{~"io.modelcontextprotocol/clientCapabilities" := Capabilities}}.

-doc "The next message of an exchange; `fin` when its stream is over.".
-spec next(exchange()) -> map() | [map()] | fin.
next({tcp, Socket}) ->
    erlmcp_test_line:recv(Socket);
next({http, Socket}) ->
    %% The head comes with the first message, which is known only when it is asked for.
    case get({head, Socket}) of
        undefined ->
            {_, Headers} = Head = erlmcp_test_http:head(Socket),
            put({head, Socket}, Head),
            first(Socket, Headers);
        _ ->
            event(Socket)
    end.

first(Socket, #{~"transfer-encoding" := ~"chunked"}) ->
    event(Socket);
first(Socket, #{~"content-type" := ~"application/json"} = Headers) ->
    json:decode(erlmcp_test_http:body(Socket, Headers));
first(Socket, Headers) ->
    <<>> = erlmcp_test_http:body(Socket, Headers),
    fin.

event(Socket) ->
    case erlmcp_test_http:event(Socket) of
        {event, Message} -> Message;
        fin -> fin
    end.

-doc "The HTTP status of an exchange of which a message was read; 200 where there is none.".
-spec status(exchange()) -> 100..599.
status({tcp, _}) -> 200;
status({http, Socket}) -> element(1, get({head, Socket})).

-doc "The exchange is over: its stream has ended. A line-framed connection goes on.".
-spec over(exchange()) -> ok.
over({tcp, _}) ->
    ok;
over({http, Socket}) ->
    case get({head, Socket}) of
        {_, #{~"transfer-encoding" := _}} -> fin = event(Socket);
        {_, _} -> ok
    end,
    gen_tcp:close(Socket).

-doc "The one answer to a request.".
-spec ask(client(), Method :: binary(), Params :: map()) -> map().
ask(Client, Method, Params) ->
    ask(Client, erlang:unique_integer([positive]), Method, Params).

-doc "The same with this id.".
-spec ask(client(), Id :: term(), Method :: binary(), Params :: map()) -> map().
ask(Client, Id, Method, Params) ->
    Exchange = request(Client, Id, Method, Params),
    #{~"id" := Id} = Answer = next(Exchange),
    _ = put(status, status(Exchange)),
    ok = over(Exchange),
    Answer.

-doc "Sends a notification.".
-spec notify(client(), Method :: binary(), Params :: map()) -> ok.
notify(Client, Method, Params) ->
    message(Client, #{jsonrpc => ~"2.0", method => Method, params => Params}).

-doc "Answers a request of the server's.".
-spec answer(client(), Id :: term(), Result :: term()) -> ok.
answer(Client, Id, Result) ->
    message(Client, #{jsonrpc => ~"2.0", id => Id, result => Result}).

-doc "Answers a request of the server's with an error.".
-spec answer_error(client(), Id :: term(), Code :: integer()) -> ok.
answer_error(Client, Id, Code) ->
    message(Client, #{jsonrpc => ~"2.0", id => Id, error => #{code => Code, message => ~"no"}}).

message(#{socket := Socket}, Message) ->
    erlmcp_test_line:send(Socket, Message);
message(#{server := Server, session := _} = Client, Message) ->
    {Headers, _} = erlmcp_test_http:message(~"", #{}, maps:with([session], Client)),
    #{status := 202, body := <<>>} =
        erlmcp_test_http:post(Server, Headers, json:encode(Message)),
    ok.

-doc "The stream of a session beside its requests: its GET stream, or the connection.".
-spec stream(client()) -> exchange().
stream(#{socket := Socket}) ->
    {tcp, Socket};
stream(#{server := Server, session := Session}) ->
    {Socket, {200, _} = Head} = erlmcp_test_http:get_stream(Server, Session),
    put({head, Socket}, Head),
    {http, Socket}.

-doc "Cancels a request.".
-spec cancel(client(), Id :: term()) -> ok.
cancel(Client, Id) ->
    notify(Client, ~"notifications/cancelled", #{requestId => Id}).

-doc "Fails with the counterexample of a property.".
-spec holds(proper:outer_test(), pos_integer()) -> ok.
holds(Property, Cases) ->
    Says = fun(Format, Arguments) -> ct:log(Format, Arguments) end,
    case proper:quickcheck(Property, [{numtests, Cases}, {max_size, 30}, {on_output, Says},
                                      long_result]) of
        true -> ok;
        Counterexample -> ct:fail({fails_for, Counterexample})
    end.
