-module(erlmcp_test_client).
-moduledoc """
A server on each transport, and one client for all transports and both eras. The client sends a
message as a POST of its own or as a line, and reads the answers message by message.
""".

-export([start/1, stop/1]).
-export([open/3, open/4, open_as/3, close/1, close/2, with_capabilities/2]).
-export([request/4, batch/2, next/1, status/1, over/1, answered/1, nothing_more/1, ask/3, ask/4]).
-export([notify/3, answer/3, answer_error/3]).
-export([listen/3, listen/4, told/1, stream/1, cancel/2]).
-export([subscribers/1, forgotten/1, counts/1]).

-export_type([client/0, exchange/0]).

-type client() :: #{
    transport := http | tcp | sse, server := erlmcp_test_http:server(), atom() => term()
}.
-type exchange() :: {http | tcp, gen_tcp:socket()} | {sse, erlmcp_test_sse:client()}.

-doc """
Starts a server that listens on HTTP, with HTTP+SSE, and on TCP, linked to the calling process.
""".
-spec start(map()) -> erlmcp_test_http:server().
start(Options) ->
    {ok, _} = application:ensure_all_started(gun),
    erlmcp_test_http:start(Options#{listen => [{http, #{sse => #{}}}, {tcp, #{}}]}).

-doc """
Stops a server, after it has closed the connections of the calling process's clients. The server
would wait for a client that does not close its side.
""".
-spec stop(erlmcp_test_http:server()) -> ok.
stop(Server) ->
    _ = [case is_pid(Open) of
             true -> gun:close(Open);
             false -> gen_tcp:close(Open)
         end || {{open, Open}, _} <- get()],
    erlmcp_test_http:stop(Server).

-doc "Opens a client without capabilities.".
-spec open(erlmcp_test_http:server(), http | tcp | sse, Revision :: binary()) -> client().
open(Server, Transport, Revision) ->
    open(Server, Transport, Revision, #{}).

-doc "Opens a client on HTTP without capabilities, which sends these headers with each request.".
-spec open_as(erlmcp_test_http:server(), Revision :: binary(), #{binary() => binary()}) ->
    client().
open_as(Server, ~"2026-07-28", Headers) ->
    #{transport => http, server => Server, capabilities => #{}, headers => Headers};
open_as(Server, Revision, Headers) ->
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        erlmcp_test_http:initialize(Server, Revision, Headers),
    Client = #{transport => http, server => Server, session => {Id, Revision}, headers => Headers},
    ok = notify(Client, ~"notifications/initialized", #{}),
    Client.

-doc """
Opens a client of a revision with these capabilities, and its session if the revision has one.
""".
-spec open(erlmcp_test_http:server(), http | tcp | sse, Revision :: binary(), map()) -> client().
open(Server, sse, ~"2026-07-28", Capabilities) ->
    #{transport => sse, server => Server, capabilities => Capabilities,
      sse => erlmcp_test_sse:open(Server)};
open(Server, sse, Revision, Capabilities) ->
    Sse = erlmcp_test_sse:open(Server),
    _ = erlmcp_test_sse:initialize(Sse, Revision, Capabilities),
    #{transport => sse, server => Server, session => Revision, sse => Sse};
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

-doc "Returns a stateless client that declares other capabilities from now on.".
-spec with_capabilities(map(), client()) -> client().
with_capabilities(Capabilities, #{capabilities := _} = Client) ->
    Client#{capabilities := Capabilities}.

-doc "Closes the client's connection. On HTTP a client has none.".
-spec close(client()) -> ok.
close(#{sse := Sse}) -> erlmcp_test_sse:close(Sse);
close(#{socket := Socket}) -> gen_tcp:close(Socket);
close(_) -> ok.

-doc "Closes the connection of an exchange: the client goes away while it waits.".
-spec close(client(), exchange()) -> ok.
close(_, {sse, Sse}) ->
    erlmcp_test_sse:close(Sse);
close(_, {_, Socket}) ->
    gen_tcp:close(Socket).

-doc "Sends a request. The exchange that it returns has the answer.".
-spec request(client(), Id :: term(), Method :: binary(), Params :: map()) -> exchange().
request(#{transport := http, server := Server} = Client, Id, Method, Params) ->
    Socket = erlmcp_test_http:connect(Server),
    put({open, Socket}, true),
    post(Socket, Method, Params, Id, Client),
    {http, Socket};
request(#{socket := Socket} = Client, Id, Method, Params) ->
    erlmcp_test_line:send(Socket, encoded(Id, Method, Params, Client)),
    {tcp, Socket};
request(#{sse := Sse} = Client, Id, Method, Params) ->
    ok = erlmcp_test_sse:send(Sse, encoded(Id, Method, Params, Client)),
    {sse, Sse}.

encoded(Id, Method, Params, Client) ->
    #{jsonrpc => ~"2.0", id => Id, method => Method, params => meta(Params, Client)}.

-doc "Sends a batch of requests, in a session of 2025-03-26.".
-spec batch(client(), [map()]) -> exchange().
batch(#{socket := Socket}, Requests) ->
    erlmcp_test_line:send(Socket, Requests),
    {tcp, Socket};
batch(#{sse := Sse}, Requests) ->
    ok = erlmcp_test_sse:send(Sse, Requests),
    {sse, Sse};
batch(#{server := Server, session := Session}, Requests) ->
    Socket = erlmcp_test_http:connect(Server),
    {Headers, _} = erlmcp_test_http:message(~"", #{}, #{session => Session}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, json:encode(Requests)),
    {http, Socket}.

post(Socket, Method, Params, Id, Client) ->
    Headed = maps:with([headers, session], Client),
    Options = case Client of
        #{session := _} -> Headed;
        #{capabilities := Capabilities} ->
            Own = maps:get('_meta', Params, #{}),
            Headed#{meta => Own#{~"io.modelcontextprotocol/clientCapabilities" => Capabilities}}
    end,
    {Headers, Body} = erlmcp_test_http:message(Method, Params, Options#{id => Id}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body).

meta(Params, #{session := _}) ->
    Params;
meta(Params, #{capabilities := Capabilities}) ->
    Meta = maps:merge(erlmcp_test_line:meta(), maps:get('_meta', Params, #{})),
    Params#{'_meta' => Meta#{~"io.modelcontextprotocol/clientCapabilities" := Capabilities}}.

-doc "Returns the next message of an exchange, or `fin` when its stream is over.".
-spec next(exchange()) -> map() | [map()] | fin.
next({tcp, Socket}) ->
    erlmcp_test_line:recv(Socket);
next({sse, Sse}) ->
    erlmcp_test_sse:message(Sse);
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
    erlmcp_test_wire:received(Socket, json:decode(erlmcp_test_http:body(Socket, Headers)));
first(Socket, Headers) ->
    <<>> = erlmcp_test_http:body(Socket, Headers),
    fin.

event(Socket) ->
    case erlmcp_test_http:event(Socket) of
        {event, Message} -> Message;
        fin -> fin
    end.

-doc "Returns the HTTP status of an exchange of which a message was read; 200 on TCP and HTTP+SSE.".
-spec status(exchange()) -> 100..599.
status({Transport, _}) when Transport =:= tcp; Transport =:= sse -> 200;
status({http, Socket}) -> element(1, get({head, Socket})).

-doc """
Checks that an exchange is over: its stream has ended. A connection that others share stays open.
""".
-spec over(exchange()) -> ok.
over({Transport, _}) when Transport =:= tcp; Transport =:= sse ->
    ok;
over({http, Socket}) ->
    case get({head, Socket}) of
        {_, #{~"transfer-encoding" := _}} -> fin = event(Socket);
        {_, _} -> ok
    end,
    gen_tcp:close(Socket).

-doc "Reads an exchange to its end. Returns the messages before the answer, and the answer.".
-spec answered(exchange()) -> {[map()], map()}.
answered(Exchange) ->
    case next(Exchange) of
        #{~"method" := _} = Message ->
            {Messages, Answer} = answered(Exchange),
            {[Message | Messages], Answer};
        #{~"id" := _} = Answer ->
            ok = over(Exchange),
            {[], Answer}
    end.

-doc "Checks that each message of the server was read: the next one answers a request of now.".
-spec nothing_more(client()) -> ok.
nothing_more(#{session := _} = Client) ->
    #{~"result" := #{}} = ask(Client, ~"ping", #{}),
    ok;
nothing_more(Client) ->
    #{~"result" := #{}} = ask(Client, ~"server/discover", #{}),
    ok.

-doc "Sends a request, and returns its answer, which must be the next message.".
-spec ask(client(), Method :: binary(), Params :: map()) -> map().
ask(Client, Method, Params) ->
    ask(Client, erlang:unique_integer([positive]), Method, Params).

-doc "Sends a request as `ask/3` does, with this id.".
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

-doc "Answers a request of the server.".
-spec answer(client(), Id :: term(), Result :: term()) -> ok.
answer(Client, Id, Result) ->
    message(Client, #{jsonrpc => ~"2.0", id => Id, result => Result}).

-doc "Answers a request of the server with an error.".
-spec answer_error(client(), Id :: term(), Code :: integer()) -> ok.
answer_error(Client, Id, Code) ->
    message(Client, #{jsonrpc => ~"2.0", id => Id, error => #{code => Code, message => ~"no"}}).

message(#{socket := Socket}, Message) ->
    erlmcp_test_line:send(Socket, Message);
message(#{sse := Sse}, Message) ->
    erlmcp_test_sse:send(Sse, Message);
message(#{server := Server} = Client, #{} = Message) ->
    {Headers, _} = erlmcp_test_http:message(maps:get(method, Message, ~""), #{},
                                            maps:with([headers, session], Client)),
    #{status := 202, body := <<>>} =
        erlmcp_test_http:post(Server, Headers, json:encode(Message)),
    ok.

-doc """
Opens a session's stream beside its requests by GET. On TCP and HTTP+SSE it is the connection.
""".
-spec stream(client()) -> exchange().
stream(#{socket := Socket}) ->
    {tcp, Socket};
stream(#{sse := Sse}) ->
    {sse, Sse};
stream(#{server := Server, session := Session} = Client) ->
    Headers = maps:to_list(maps:get(headers, Client, #{})),
    {Socket, {200, _} = Head} =
        erlmcp_test_http:get_stream(Server, Session, [{~"accept", ~"text/event-stream"} | Headers]),
    put({head, Socket}, Head),
    put({open, Socket}, true),
    {http, Socket}.

-doc "Opens a subscription, and waits until it is acknowledged with the filter asked for.".
-spec listen(client(), Id :: term(), Filter :: map()) -> exchange().
listen(Client, Id, Filter) ->
    listen(Client, Id, Filter, json:decode(iolist_to_binary(json:encode(Filter)))).

-doc "Opens a subscription as `listen/3` does, which must be acknowledged with `Honoured`.".
-spec listen(client(), Id :: term(), Filter :: map(), Honoured :: map()) -> exchange().
listen(Client, Id, Filter, Honoured) ->
    Exchange = request(Client, Id, ~"subscriptions/listen", #{notifications => Filter}),
    #{~"method" := ~"notifications/subscriptions/acknowledged",
      ~"params" := #{~"_meta" := #{~"io.modelcontextprotocol/subscriptionId" := Id},
                     ~"notifications" := Honoured} = Params} = Acknowledged = next(Exchange),
    {3, 2} = {map_size(Acknowledged), map_size(Params)},
    Exchange.

-doc """
Reads the next event. Returns the subscription that it is of (`none` in a session), its method and
its parameters.
""".
-spec told(exchange()) -> {Subscription :: term(), Method :: binary(), Params :: map()}.
told(Exchange) ->
    #{~"jsonrpc" := ~"2.0", ~"method" := Method} = Event = next(Exchange),
    false = is_map_key(~"id", Event),
    Params = maps:get(~"params", Event, #{}),
    case Params of
        #{~"_meta" := #{~"io.modelcontextprotocol/subscriptionId" := Id} = Meta} ->
            1 = map_size(Meta),
            {Id, Method, maps:remove(~"_meta", Params)};
        #{} ->
            {none, Method, Params}
    end.

-doc "Returns the processes that hear of changes, each with a topic that it subscribes to.".
-spec subscribers(erlmcp_test_http:server()) -> [{Topic :: term(), pid()}].
subscribers(#{pid := Pid}) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    [{Topic, Owner}
     || {{Topic, {Owner, _}, _}, _, _, _} <- ets:tab2list(erlmcp_instance:subscriptions(Instance))].

-doc """
Waits until a server has no subscriber any more, and looks every ten milliseconds. Nothing tells
when a server has seen that its client is gone.
""".
-spec forgotten(erlmcp_test_http:server()) -> ok.
forgotten(Server) ->
    forgotten(Server, 3000).

forgotten(Server, Tries) when Tries > 0 ->
    case subscribers(Server) of
        [] -> ok;
        _ -> receive after 10 -> forgotten(Server, Tries - 1) end
    end.

-doc """
Returns how many rows the server's tables of subscriptions and of supervisors have, and how many
sessions it has.
""".
-spec counts(erlmcp_test_http:server()) -> #{atom() => non_neg_integer()}.
counts(#{pid := Pid}) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    Sizes = #{Key => ets:info(Table, size)
              || Key := Table <- maps:with([subscriptions, supervisors], Instance)},
    Sizes#{sessions => erlmcp_session_table:count(Instance)}.

-doc "Cancels a request.".
-spec cancel(client(), Id :: term()) -> ok.
cancel(Client, Id) ->
    notify(Client, ~"notifications/cancelled", #{requestId => Id}).
