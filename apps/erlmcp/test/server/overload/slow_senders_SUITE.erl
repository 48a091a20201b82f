-module(slow_senders_SUITE).
-moduledoc """
Clients that send slowly, or too many messages without an answer. Each message has a deadline that
its bytes do not put off, on every transport. Other clients are not delayed.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([head_of_http1_has_a_deadline/1, body_of_http1_has_a_deadline/1,
         body_of_http2_has_a_deadline/1, preface_of_http2_has_a_deadline/1,
         preface_of_http2_over_tls_has_a_deadline/1, handshake_of_tls_has_a_deadline/1,
         line_of_tcp_has_a_deadline/1, message_of_sse_has_a_deadline/1]).
-export([many_of_them_hold_nobody_up/1, floods_of_notifications_cost_nothing/1]).

-import(erlmcp_test_http, [message/3, call/3, call/4]).

-define(TIMEOUT, 60_000).
%% Milliseconds between two bytes.
-define(PACE, 50).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    Started = erlmcp_test_applications:start([erlmcp, ssl, gun], Config),
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    Chain = #{root => Made, intermediates => [], peer => Made},
    #{server_config := Tls} =
        public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    [{tls, Tls} | Started].

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

start() ->
    start([{http, #{}}]).

start(Listen) ->
    start(#{receive_timeout_ms => 1500}, Listen).

start(Limits, Listen) ->
    erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
        limits => Limits, listen => Listen}).

%% Sends one byte at a time until the server closes, and returns its last words.
dribble(Socket, Bytes) ->
    dribble(Socket, Bytes, <<>>, ?TIMEOUT div ?PACE).

dribble(Socket, <<Byte, Rest/binary>>, Read, Left) when Left > 0 ->
    _ = gen_tcp:send(Socket, <<Byte>>),
    case gen_tcp:recv(Socket, 0, ?PACE) of
        {ok, Bytes} -> dribble(Socket, <<Rest/binary, Byte>>, <<Read/binary, Bytes/binary>>, Left);
        {error, timeout} -> dribble(Socket, <<Rest/binary, Byte>>, Read, Left - 1);
        {error, _} -> Read
    end.

connect(#{port := Port}) ->
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port,
                                   [binary, {active, false}, {nodelay, true}]),
    Socket.

head_of_http1_has_a_deadline(_) ->
    Server = start(),
    Socket = connect(Server),
    ok = gen_tcp:send(Socket, ~"POST /mcp HTTP/1.1\r\nx-slow: "),
    <<"HTTP/1.1 408 ", _/binary>> = dribble(Socket, ~"abcdef"),
    %% Without a whole line there is no request to answer.
    <<>> = dribble(connect(Server), ~"POST"),
    erlmcp_test_http:stop(Server).

body_of_http1_has_a_deadline(_) ->
    Server = start(),
    {Headers, _} = message(~"tools/list", #{}, #{}),
    Socket = connect(Server),
    ok = erlmcp_test_http:send(Socket, ~"POST", [{~"content-length", ~"100000"} | Headers], ~"{"),
    <<"HTTP/1.1 408 ", _/binary>> = Said = dribble(Socket, ~"      "),
    {_, _} = binary:match(Said, ~'"code":1069'),
    erlmcp_test_http:stop(Server).

%% Its stream alone is ended.
body_of_http2_has_a_deadline(_) ->
    #{port := Port} = Server = start(),
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2], retry => 0}),
    {ok, http2} = gun:await_up(Connection, ?TIMEOUT),
    {Headers, Body} = message(~"tools/call", #{name => ~"wait"}, #{}),
    Beside = gun:post(Connection, "/mcp", Headers, Body),
    {Call, _} = erlmcp_test_http:running(),
    Slow = gun:headers(Connection, "POST", "/mcp", Headers),
    408 = drip(Connection, Slow, ?TIMEOUT div ?PACE),
    erlmcp_test_http:finish(Call, ~"undisturbed"),
    {response, nofin, 200, _} = gun:await(Connection, Beside, ?TIMEOUT),
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

drip(Connection, Stream, Left) when Left > 0 ->
    ok = gun:data(Connection, Stream, nofin, ~" "),
    case gun:await(Connection, Stream, ?PACE) of
        {response, nofin, Status, _} -> Status;
        {error, timeout} -> drip(Connection, Stream, Left - 1)
    end.

preface_of_http2_has_a_deadline(_) ->
    Server = start(),
    Socket = connect(Server),
    ok = gen_tcp:send(Socket, ~"PRI * HTTP/2.0\r\n\r\nS"),
    ok = erlmcp_test_http:closed(Socket),
    erlmcp_test_http:stop(Server).

preface_of_http2_over_tls_has_a_deadline(Config) ->
    #{port := Port} = Server = start([{http, #{tls => proplists:get_value(tls, Config)}}]),
    {ok, Socket} = ssl:connect({127, 0, 0, 1}, Port,
                               [{verify, verify_none}, {active, false}, binary,
                                {alpn_advertised_protocols, [~"h2"]}], ?TIMEOUT),
    {ok, ~"h2"} = ssl:negotiated_protocol(Socket),
    ok = closed(Socket),
    erlmcp_test_http:stop(Server).

closed(Socket) ->
    case ssl:recv(Socket, 0, ?TIMEOUT) of
        {ok, _} -> closed(Socket);
        {error, closed} -> ok
    end.

handshake_of_tls_has_a_deadline(Config) ->
    Server = start([{http, #{tls => proplists:get_value(tls, Config)}}]),
    ok = erlmcp_test_http:closed(connect(Server)),
    %% The beginning of a ClientHello of 512 bytes.
    Begun = connect(Server),
    ok = gen_tcp:send(Begun, <<22, 3, 1, 512:16, 1, 508:24, 3, 3>>),
    _ = dribble(Begun, <<0, 1, 2, 3>>),
    erlmcp_test_http:stop(Server).

line_of_tcp_has_a_deadline(_) ->
    Server = start([{tcp, #{}}]),
    Said = dribble(connect(Server), ~'{"jsonrpc": "2.0", "id": 1, '),
    {_, _} = binary:match(Said, ~'"code":1069'),
    erlmcp_test_http:stop(Server).

message_of_sse_has_a_deadline(_) ->
    Server = start([{http, #{sse => #{}}}]),
    #{endpoint := Endpoint} = Client = erlmcp_test_sse:open(Server),
    Socket = connect(Server),
    ok = gen_tcp:send(Socket, [~"POST ", Endpoint, ~" HTTP/1.1\r\nhost: localhost\r\n",
                               ~"content-type: application/json\r\ncontent-length: 1000\r\n\r\n"]),
    <<"HTTP/1.1 408 ", _/binary>> = dribble(Socket, ~"     "),
    Other = erlmcp_test_sse:open(Server),
    Ping = json:encode(erlmcp_test_line:request(1, ~"ping", #{})),
    {202, _, <<>>} = erlmcp_test_sse:post(Other, Endpoint, Ping),
    #{~"id" := 1} = erlmcp_test_sse:message(Client),
    erlmcp_test_sse:close(Client),
    erlmcp_test_http:stop(Server).

%% Each holds a connection, and no more, until it is closed.
many_of_them_hold_nobody_up(_) ->
    Server = start(),
    {Headers, _} = message(~"tools/list", #{}, #{}),
    Slow = [begin
                Socket = connect(Server),
                ok = erlmcp_test_http:send(Socket, ~"POST",
                                           [{~"content-length", ~"100000"} | Headers], ~"{"),
                Socket
            end || _ <- lists:seq(1, 100)],
    [#{status := 200} = call(Server, ~"tools/list", #{}) || _ <- lists:seq(1, 20)],
    [#{status := 408} = erlmcp_test_http:response(Socket) || Socket <- Slow],
    [ok = erlmcp_test_http:closed(Socket) || Socket <- Slow],
    erlmcp_test_http:stop(Server).

%% Messages without an answer are handled at once, and leave nothing.
floods_of_notifications_cost_nothing(_) ->
    #{port := Port} = Server = start(#{}, [{tcp, #{}}]),
    Socket = erlmcp_test_line:connect(Port),
    _ = erlmcp_test_line:initialize(Socket, ~"2025-11-25"),
    Flood = [[json:encode(erlmcp_test_line:notification(Method, Params)), $\n]
             || N <- lists:seq(1, 1000),
                {Method, Params} <- [{~"notifications/cancelled", #{requestId => N}},
                                     {~"notifications/progress",
                                      #{progressToken => N, progress => N}},
                                     {~"notifications/initialized", #{}},
                                     {~"notifications/roots/list_changed", #{}}]],
    ok = gen_tcp:send(Socket, Flood),
    ok = gen_tcp:send(Socket, [json:encode(erlmcp_test_line:request(1, ~"ping", #{})), $\n]),
    #{~"id" := 1, ~"result" := #{}} = erlmcp_test_line:recv(Socket),
    true = erlmcp_test_line:is_quiet(Socket),
    gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server),
    Http = start(#{}, [{http, #{}}]),
    Session = erlmcp_test_http:initialize(Http, ~"2025-11-25"),
    [#{status := 202} = call(Http, ~"notifications/cancelled", #{requestId => N},
                             #{session => Session, id => none}) || N <- lists:seq(1, 100)],
    %% The session's process has had them all before this.
    #{status := 200} = call(Http, ~"resources/subscribe", #{uri => ~"test://text"},
                            #{session => Session}),
    erlmcp_test_http:stop(Http).
