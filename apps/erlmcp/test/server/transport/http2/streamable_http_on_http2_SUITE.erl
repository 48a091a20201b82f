-module(streamable_http_on_http2_SUITE).
-moduledoc "Streamable HTTP over HTTP/2 in the clear, and over TLS with ALPN, by gun.".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([requests_are_answered/1, large_messages_pass/1, notifications_come_on_a_stream/1,
         refusals_have_their_status/1, session_lives_from_initialize_to_delete/1]).
-export([hundred_streams_are_served_at_once/1, busy_connection_goes_on/1,
         slow_call_delays_no_other/1,
         reset_cancels_the_call/1, reset_while_streaming_cancels_the_call/1,
         reset_in_the_packet_of_its_call/1, cancelled_in_the_packet_of_its_call/1,
         listener_that_does_not_read_ends_alone/1,
         disconnect_cancels_all_calls/1, body_is_bounded/1, body_that_stops_is_408/1,
         streams_of_a_connection_are_bounded/1, silent_calls_keep_their_connections/1,
         bodies_of_a_connection_are_bounded/1,
         largest_body_of_a_connection_makes_room/1, refused_body_is_not_counted_again/1,
         windows_are_opened_again/1]).
-export([tls_url_is_https/1, alpn_prefers_http2/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_http, [message/3, running/0, finish/2, ended/1]).

-define(TIMEOUT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, h2c}, {group, tls_h2}, {group, tls_http11}, {group, streams}, {group, alpn}].

groups() ->
    Main = [requests_are_answered, large_messages_pass, notifications_come_on_a_stream,
            refusals_have_their_status, session_lives_from_initialize_to_delete],
    [{h2c, Main}, {tls_h2, Main}, {tls_http11, Main},
     {streams, [hundred_streams_are_served_at_once, busy_connection_goes_on,
                slow_call_delays_no_other,
                reset_cancels_the_call, reset_while_streaming_cancels_the_call,
                reset_in_the_packet_of_its_call, cancelled_in_the_packet_of_its_call,
                listener_that_does_not_read_ends_alone,
                disconnect_cancels_all_calls, body_is_bounded, body_that_stops_is_408,
                streams_of_a_connection_are_bounded, silent_calls_keep_their_connections,
                bodies_of_a_connection_are_bounded,
                largest_body_of_a_connection_makes_room, refused_body_is_not_counted_again,
                windows_are_opened_again]},
     {alpn, [tls_url_is_https, alpn_prefers_http2]}].

init_per_suite(Config) ->
    Started = erlmcp_test_applications:start([erlmcp, ssl, gun], Config),
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    Chain = #{root => Made, intermediates => [], peer => Made},
    #{server_config := Server, client_config := Client} =
        public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    %% The test certificate is of the machine's name.
    Verify = [{verify, verify_peer}, {server_name_indication, net_adm:localhost()},
              {cacerts, proplists:get_value(cacerts, Client)}],
    [{server_tls, Server}, {client_tls, Verify} | Started].

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(tls_h2, Config) -> [{transport, tls}, {protocol, http2} | Config];
init_per_group(tls_http11, Config) -> [{transport, tls}, {protocol, http} | Config];
init_per_group(alpn, Config) -> [{transport, tls} | Config];
init_per_group(_, Config) -> [{transport, tcp}, {protocol, http2} | Config].

end_per_group(_, _) ->
    ok.

init_per_testcase(_, Config) ->
    [{server, start(#{}, Config)} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

start(Limits, Config) ->
    Listener = case transport(Config) of
        tls -> #{tls => proplists:get_value(server_tls, Config)};
        tcp -> #{}
    end,
    erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{limits => Limits,
                                                                   listen => [{http, Listener}]}).

open(Config) ->
    open(server(Config), [proplists:get_value(protocol, Config)], Config).

open(#{port := Port}, Protocols, Config) ->
    Options = #{transport => transport(Config), protocols => Protocols,
                retry => 0, tls_opts => proplists:get_value(client_tls, Config)},
    {ok, Connection} = gun:open("127.0.0.1", Port, Options),
    {ok, Protocol} = gun:await_up(Connection, ?TIMEOUT),
    true = lists:member(Protocol, Protocols),
    Connection.

post(Connection, Method, Params, Options) ->
    {Headers, Body} = message(Method, Params, Options),
    Stream = gun:post(Connection, "/mcp", Headers, Body),
    ok = erlmcp_test_wire:sent(Stream, maps:from_list(Headers), Body),
    Stream.

wait(Connection, Id) ->
    post(Connection, ~"tools/call", #{name => ~"wait", arguments => #{id => Id}}, #{id => Id}).

stream(Connection) ->
    post(Connection, ~"tools/call", #{name => ~"stream"}, #{meta => #{progressToken => 9}}).

echo(Connection, Text) ->
    post(Connection, ~"tools/call", #{name => ~"echo", arguments => #{text => Text}}, #{}).

%% The status, the headers and the JSON values of a response.
answer(Connection, Stream) ->
    case gun:await(Connection, Stream, ?TIMEOUT) of
        {response, fin, Status, Headers} ->
            {Status, maps:from_list(Headers), []};
        {response, nofin, Status, Headers} ->
            {ok, Body} = gun:await_body(Connection, Stream, ?TIMEOUT),
            Messages = messages(maps:from_list(Headers), Body),
            {Status, maps:from_list(Headers), erlmcp_test_wire:received(Stream, Messages)}
    end.

messages(_, <<>>) ->
    [];
messages(#{~"content-type" := ~"application/json"}, Body) ->
    [json:decode(Body)];
messages(#{~"content-type" := ~"text/event-stream"}, Body) ->
    [Message || {_, Message} <- erlmcp_test_http:events(Body)].

%% The next event of a stream.
event(Connection, Stream) ->
    case gun:await(Connection, Stream, ?TIMEOUT) of
        {data, nofin, <<>>} ->
            event(Connection, Stream);
        {data, nofin, Data} ->
            case erlmcp_test_http:events(Data) of
                [] -> event(Connection, Stream);
                [{_, Event}] -> erlmcp_test_wire:received(Stream, Event)
            end
    end.

%% One path for everything: the same bytes on each protocol.
requests_are_answered(Config) ->
    Connection = open(Config),
    [begin
         {200, Headers, [#{~"id" := Id, ~"result" := #{~"resultType" := ~"complete"}}]} =
             answer(Connection, post(Connection, Method, Params, #{id => Id})),
         #{~"content-type" := ~"application/json", ~"content-length" := _, ~"date" := _} = Headers
     end || {Id, Method, Params} <-
            [{1, ~"server/discover", #{}}, {~"two", ~"tools/list", #{}},
             {3, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}}},
             {4, ~"resources/read", #{uri => ~"test://text"}},
             {5, ~"prompts/get", #{name => ~"hello"}}]],
    {202, _, []} = answer(Connection, post(Connection, ~"notifications/x", #{}, #{id => none})),
    gun:close(Connection).

%% Larger than a frame and than the windows of HTTP/2 are at first.
large_messages_pass(Config) ->
    Connection = open(Config),
    Text = binary:copy(~"0123456789abcdef", 1 bsl 16),
    {200, _, [#{~"result" := #{~"content" := [#{~"text" := Text}]}}]} =
        answer(Connection, echo(Connection, Text)),
    gun:close(Connection).

notifications_come_on_a_stream(Config) ->
    Connection = open(Config),
    Stream = stream(Connection),
    {response, nofin, 200, Headers} = gun:await(Connection, Stream, ?TIMEOUT),
    #{~"content-type" := ~"text/event-stream", ~"x-accel-buffering" := ~"no"} =
        maps:from_list(Headers),
    #{~"method" := ~"notifications/progress", ~"params" := #{~"progressToken" := 9}} =
        event(Connection, Stream),
    {Pid, _} = running(),
    finish(Pid, ~"over"),
    {ok, Rest} = gun:await_body(Connection, Stream, ?TIMEOUT),
    [#{~"id" := 1, ~"result" := #{~"content" := [#{~"text" := ~"over"}]}}] =
        messages(#{~"content-type" => ~"text/event-stream"}, Rest),
    %% The connection is there for the next.
    {200, _, [#{~"result" := _}]} = answer(Connection, echo(Connection, ~"a")),
    gun:close(Connection).

refusals_have_their_status(Config) ->
    Connection = open(Config),
    [begin
         {Headers, Body} = message(Method, Params, #{headers => Changed}),
         Stream = gun:request(Connection, Verb, Path, Headers, Body),
         {Status, _, [#{~"error" := #{~"code" := Code}}]} = answer(Connection, Stream),
         {200, _, [#{~"result" := _}]} = answer(Connection, echo(Connection, ~"a"))
     end || {Status, Code, Verb, Path, Method, Params, Changed} <-
            [{404, 1023, ~"POST", ~"/other", ~"tools/list", #{}, #{}},
             {404, -32601, ~"POST", ~"/mcp", ~"no/such", #{}, #{}},
             {405, 1066, ~"PUT", ~"/mcp", ~"tools/list", #{}, #{}},
             {403, 1014, ~"POST", ~"/mcp", ~"tools/list", #{}, #{~"origin" => ~"http://evil"}},
             {403, 1014, ~"POST", ~"/mcp", ~"tools/list", #{}, #{~"host" => ~"evil"}},
             {406, 1025, ~"POST", ~"/mcp", ~"tools/list", #{}, #{~"accept" => ~"text/html"}},
             {415, 1024, ~"POST", ~"/mcp", ~"tools/list", #{}, #{~"content-type" => ~"text/html"}},
             {400, -32020, ~"POST", ~"/mcp", ~"tools/list", #{}, #{~"mcp-method" => ~"x"}},
             {400, -32602, ~"POST", ~"/mcp", ~"tools/call", #{name => ~"no such"}, #{}}]],
    gun:close(Connection).

session_lives_from_initialize_to_delete(Config) ->
    #{pid := Pid} = server(Config),
    Connection = open(Config),
    Params = #{protocolVersion => ~"2025-11-25", capabilities => #{},
               clientInfo => #{name => ~"suite", version => ~"1"}},
    New = #{session => {~"", ~"2025-11-25"}, headers => #{~"mcp-session-id" => none}},
    {200, #{~"mcp-session-id" := Id}, [#{~"result" := #{~"protocolVersion" := ~"2025-11-25"}}]} =
        answer(Connection, post(Connection, ~"initialize", Params, New)),
    Session = #{session => {Id, ~"2025-11-25"}},
    {202, _, []} = answer(Connection, post(Connection, ~"notifications/initialized", #{},
                                           Session#{id => none})),
    {200, _, [#{~"result" := #{~"tools" := _}}]} =
        answer(Connection, post(Connection, ~"tools/list", #{}, Session)),
    %% HTTP/1.1 has one answer at a time on a connection.
    Listening = open(Config),
    Headers = [{~"mcp-session-id", Id}, {~"accept", ~"text/event-stream"}],
    Stream = gun:get(Listening, "/mcp", Headers),
    {response, nofin, 200, _} = gun:await(Listening, Stream, ?TIMEOUT),
    ok = erlmcp:add(Pid, tool, #{name => ~"new", handler => fun(_, _) -> ~"" end}),
    #{~"method" := ~"notifications/tools/list_changed"} = event(Listening, Stream),
    {204, _, []} = answer(Connection, gun:delete(Connection, "/mcp", Headers)),
    {data, fin, ~""} = gun:await(Listening, Stream, ?TIMEOUT),
    {404, _, [#{~"error" := #{~"code" := 1016}}]} =
        answer(Connection, post(Connection, ~"tools/list", #{}, Session)),
    gun:close(Listening),
    gun:close(Connection).

%% RFC 9113, 5: "A single HTTP/2 connection can contain multiple concurrently open streams".
hundred_streams_are_served_at_once(Config) ->
    Connection = open(Config),
    Streams = [{Id, wait(Connection, Id)} || Id <- lists:seq(1, 100)],
    Calls = maps:from_list([{Id, Pid} || _ <- Streams, {Pid, #{~"id" := Id}} <- [running()]]),
    100 = map_size(Calls),
    [begin
         finish(maps:get(Id, Calls), integer_to_binary(Id)),
         Text = integer_to_binary(Id),
         {200, _, [#{~"id" := Id, ~"result" := #{~"content" := [#{~"text" := Text}]}}]} =
             answer(Connection, Stream)
     end || {Id, Stream} <- lists:reverse(Streams)],
    gun:close(Connection).

%% Two frames each: more within ten seconds than cowboy takes for well-meant by itself.
busy_connection_goes_on(Config) ->
    Connection = open(Config),
    [begin
         Streams = [post(Connection, ~"server/discover", #{}, #{}) || _ <- lists:seq(1, 100)],
         [{200, _, [_]} = answer(Connection, Stream) || Stream <- Streams]
     end || _ <- lists:seq(1, 51)],
    gun:close(Connection).

slow_call_delays_no_other(Config) ->
    Connection = open(Config),
    Slow = wait(Connection, 0),
    {Pid, _} = running(),
    Quick = [echo(Connection, integer_to_binary(N)) || N <- lists:seq(1, 99)],
    [{200, _, [#{~"result" := _}]} = answer(Connection, Stream) || Stream <- Quick],
    %% It had not ended.
    finish(Pid, ~"at last"),
    {200, _, [#{~"id" := 0, ~"result" := #{~"content" := [#{~"text" := ~"at last"}]}}]} =
        answer(Connection, Slow),
    gun:close(Connection).

%% "The server MUST treat a client disconnect as cancellation of that request": in HTTP/2 that is
%% the stream's reset.
reset_cancels_the_call(Config) ->
    Connection = open(Config),
    Cancelled = wait(Connection, 1),
    {Pid, _} = running(),
    Stays = wait(Connection, 2),
    {Other, _} = running(),
    ok = gun:cancel(Connection, Cancelled),
    _ = ended(Pid),
    finish(Other, ~"undisturbed"),
    {200, _, [#{~"id" := 2, ~"result" := _}]} = answer(Connection, Stays),
    gun:close(Connection).

reset_while_streaming_cancels_the_call(Config) ->
    Connection = open(Config),
    Stream = stream(Connection),
    {response, nofin, 200, _} = gun:await(Connection, Stream, ?TIMEOUT),
    #{~"method" := ~"notifications/progress"} = event(Connection, Stream),
    {Pid, _} = running(),
    ok = gun:cancel(Connection, Stream),
    _ = ended(Pid),
    gun:close(Connection).

%% The connection is ahead of the call's process then. The call's question waits for a client that
%% comes back, and not for one that is there and does not answer.
reset_in_the_packet_of_its_call(Config) ->
    Server = start(#{reconnect_ms => 100}, Config),
    #{session := Session} =
        erlmcp_test_client:open(Server, http, ~"2025-11-25", #{elicitation => #{}}),
    Socket = erlmcp_test_http:connect(Server),
    ok = gen_tcp:send(Socket, [preface(), cow_http2:settings_ack()]),
    ok = gen_tcp:send(Socket, [in_session(1, Session, ~"tools/call", #{name => ~"wait"}),
                               cow_http2:rst_stream(1, cancel)]),
    {Call, _} = running(),
    finish(Call, {input_required, #{~"it" => erlmcp_input:elicit(~"What?", #{})}}),
    _ = ended(Call),
    ok = gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

cancelled_in_the_packet_of_its_call(Config) ->
    Session = erlmcp_test_http:initialize(server(Config), ~"2025-11-25"),
    Socket = erlmcp_test_http:connect(server(Config)),
    ok = gen_tcp:send(Socket, [preface(), cow_http2:settings_ack()]),
    [begin
         ok = gen_tcp:send(Socket, [in_session(Id, Session, ~"tools/call", #{name => ~"wait"}),
                                    in_session(Id + 2, Session, ~"notifications/cancelled",
                                               #{requestId => Id})]),
         %% Its answer is empty, and all of the call is gone.
         Of = lists:sort([frame(Socket, headers) || _ <- [call, cancelled]]),
         [{headers, Id, _, head_fin, _}, {headers, _, fin, head_fin, _}] = Of,
         [_ = ended(Call) || {Call, _} <- maybe_running()]
     end || Id <- lists:seq(1, 41, 4)],
    ok = gen_tcp:close(Socket).

%% A call that was cancelled early may not have run.
maybe_running() ->
    receive
        {running, Call, Arguments} -> [{Call, Arguments}]
    after 0 ->
        []
    end.

%% The frames of a message in a session, whose id is that of its stream.
in_session(Id, Session, Method, Params) ->
    Of = case Method of
        <<"notifications/", _/binary>> -> none;
        _ -> Id
    end,
    {Headers, Body} = message(Method, Params, #{session => Session, id => Of}),
    [cow_http2:headers(Id, nofin, block(Headers)), cow_http2:data(Id, fin, Body)].

%% A proxy may have one connection for all of its clients.
listener_that_does_not_read_ends_alone(Config) ->
    #{pid := Server, port := Port} = Started = start(#{send_timeout_ms => 300}, Config),
    {ok, Connection} = gun:open("127.0.0.1", Port,
                                #{protocols => [http2], retry => 0,
                                  http2_opts => #{initial_stream_window_size => 65_535}}),
    {ok, http2} = gun:await_up(Connection, ?TIMEOUT),
    Stays = wait(Connection, 1),
    {Call, _} = running(),
    Uri = <<"test://item/", (binary:copy(~"x", 8000))/binary>>,
    Filter = #{resourceSubscriptions => [Uri]},
    {Headers, Body} = message(~"subscriptions/listen", #{notifications => Filter}, #{id => 2}),
    Stream = gun:post(Connection, "/mcp", Headers, Body, #{flow => 1}),
    {response, nofin, 200, _} = gun:await(Connection, Stream, ?TIMEOUT),
    [begin
         ok = erlmcp:resource_updated(Server, Uri),
         {200, _, _} = answer(Connection, echo(Connection, ~"handled"))
     end || _ <- lists:seq(1, 30)],
    {error, {stream_error, _}} = gun:await_body(Connection, Stream, ?TIMEOUT),
    finish(Call, ~"undisturbed"),
    {200, _, [#{~"id" := 1, ~"result" := _}]} = answer(Connection, Stays),
    gun:close(Connection),
    erlmcp_test_http:stop(Started).

disconnect_cancels_all_calls(Config) ->
    Connection = open(Config),
    _ = [wait(Connection, Id) || Id <- lists:seq(1, 10)],
    Calls = [running() || _ <- lists:seq(1, 10)],
    gun:close(Connection),
    [_ = ended(Pid) || {Pid, _} <- Calls].

%% Bounded refusal: a length that is too large, and a body without one that becomes it.
body_is_bounded(Config) ->
    Server = start(#{message_bytes => 1000}, Config),
    Connection = open(Server, [http2], Config),
    {Headers, Body} = message(~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}}, #{}),
    Padded = fun(Size) -> [Body, binary:copy(~" ", Size - byte_size(Body))] end,
    Largest = gun:post(Connection, "/mcp", Headers, Padded(1000)),
    {200, _, [#{~"result" := _}]} = answer(Connection, Largest),
    Announced = gun:headers(Connection, "POST", "/mcp", [{~"content-length", ~"1001"} | Headers]),
    {413, _, [#{~"error" := #{~"code" := 1068}}]} = answer(Connection, Announced),
    Arriving = gun:headers(Connection, "POST", "/mcp", Headers),
    ok = gun:data(Connection, Arriving, nofin, Padded(1000)),
    ok = gun:data(Connection, Arriving, nofin, ~" "),
    {413, _, [#{~"error" := #{~"code" := 1068}}]} = answer(Connection, Arriving),
    InTime = gun:headers(Connection, "POST", "/mcp", Headers),
    ok = gun:data(Connection, InTime, nofin, Body),
    ok = gun:data(Connection, InTime, fin, ~" "),
    {200, _, [#{~"result" := _}]} = answer(Connection, InTime),
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

body_that_stops_is_408(Config) ->
    Server = start(#{receive_timeout_ms => 1500}, Config),
    Connection = open(Server, [http2], Config),
    {Headers, Body} = message(~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}}, #{}),
    Beside = wait(Connection, 1),
    {Pid, _} = running(),
    Started = gun:headers(Connection, "POST", "/mcp", Headers),
    ok = gun:data(Connection, Started, nofin, binary:part(Body, 0, 10)),
    {408, _, [#{~"error" := #{~"code" := 1069}}]} = answer(Connection, Started),
    Never = gun:headers(Connection, "POST", "/mcp", Headers),
    {408, _, [#{~"error" := #{~"code" := 1069}}]} = answer(Connection, Never),
    %% It is that stream's alone.
    finish(Pid, ~"undisturbed"),
    {200, _, [#{~"id" := 1, ~"result" := _}]} = answer(Connection, Beside),
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

%% Bounded refusal: as many requests run at once on a connection as the limit says. A client is told
%% so in SETTINGS_MAX_CONCURRENT_STREAMS, and one that does not listen is refused the stream:
%% "The endpoint refused the stream prior to performing any application processing" (RFC 9113, 7).
streams_of_a_connection_are_bounded(Config) ->
    Server = start(#{calls_per_connection => 2}, Config),
    Socket = erlmcp_test_http:connect(Server),
    ok = gen_tcp:send(Socket, preface()),
    {Headers, Body} = message(~"tools/call", #{name => ~"wait"}, #{}),
    Block = block(Headers),
    [begin
         ok = gen_tcp:send(Socket, [cow_http2:headers(Id, nofin, Block),
                                    cow_http2:data(Id, fin, Body)]),
         running()
     end || Id <- [1, 3]],
    ok = gen_tcp:send(Socket, cow_http2:headers(5, nofin, Block)),
    {settings, #{max_concurrent_streams := 2}} = frame(Socket, settings),
    {rst_stream, 5, refused_stream} = frame(Socket, rst_stream),
    ok = gen_tcp:close(Socket),
    %% Those within the limit are served, and others after them.
    Connection = open(Server, [http2], Config),
    Streams = [{Id, wait(Connection, Id)} || Id <- [1, 2]],
    Calls = [running() || _ <- Streams],
    [finish(Pid, ~"done") || {Pid, _} <- Calls],
    [{200, _, [#{~"id" := Id, ~"result" := _}]} = answer(Connection, Stream)
     || {Id, Stream} <- Streams],
    {200, _, [#{~"result" := _}]} = answer(Connection, echo(Connection, ~"next")),
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

%% A connection without a request ends in the meantime. It is the younger one, and so each other one
%% was without a message for as long.
silent_calls_keep_their_connections(Config) ->
    Server = start(#{keep_alive_ms => 50}, Config),
    ok = inactive_after(500, Server),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    Silent = [begin
                  Connection = open(Server, [http2], Config),
                  Stream = post(Connection, ~"tools/call", #{name => ~"wait"}, Options),
                  {Call, _} = running(),
                  {Connection, Stream, Call}
              end || Options <- [#{}, #{session => Session}]],
    _ = ended(open(Server, [http2], Config)),
    [begin
         finish(Call, ~"at last"),
         {200, _, [#{~"result" := #{~"content" := [#{~"text" := ~"at last"}]}}]} =
             answer(Connection, Stream),
         gun:close(Connection)
     end || {Connection, Stream, Call} <- Silent],
    erlmcp_test_http:stop(Server).

%% Changes what the connections of a server have in common.
inactive_after(Milliseconds, #{pid := Pid}) ->
    [Ref] = [Id || {{listener, Id}, _, _, _} <- supervisor:which_children(Pid)],
    {ok, {Ref, Options}} = erlmcp_instance:find(Ref),
    _ = erlmcp_instance:share(Ref, {Ref, Options#{inactivity_timeout := Milliseconds}}),
    ok.

preface() ->
    [~"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", cow_http2:settings(#{})].

%% Which says nothing of those before it, and is said again without a change.
block(Headers) ->
    Head = [{~":method", ~"POST"}, {~":scheme", ~"http"}, {~":authority", ~"localhost"},
            {~":path", ~"/mcp"} | Headers],
    {Block, _} = cow_hpack:encode(Head),
    Block.

%% A proxy may have one connection for all of its clients. Bodies that one of them never ends would
%% take the memory that the connection may have, and end the requests of the others.
bodies_of_a_connection_are_bounded(Config) ->
    Size = 2_000_000,
    Server = start(#{message_bytes => Size, reply_bytes => Size, unread_bytes => Size,
                     queue_bytes_per_connection => Size}, Config),
    Connection = open(Server, [http2], Config),
    Stays = wait(Connection, 1),
    {Call, _} = running(),
    {Headers, _} = message(~"tools/list", #{}, #{}),
    Begun = [begin
                 Stream = gun:headers(Connection, "POST", "/mcp", Headers),
                 ok = gun:data(Connection, Stream, nofin, binary:copy(~" ", Size - 1)),
                 Stream
             end || _ <- lists:seq(1, 40)],
    Refused = [receive
                   {gun_response, Connection, Stream, nofin, 503, _} -> Stream
               after ?TIMEOUT ->
                   error(not_refused)
               end || _ <- lists:seq(1, 40 - 8)],
    [#{~"error" := #{~"code" := 1002, ~"data" := #{~"limit" := 16_000_000}}} = json:decode(Body)
     || Stream <- Refused, {ok, Body} <- [gun:await_body(Connection, Stream, ?TIMEOUT)]],
    finish(Call, ~"undisturbed"),
    {200, _, [#{~"id" := 1, ~"result" := _}]} = answer(Connection, Stays),
    %% There is room again when they have ended.
    [ok = gun:cancel(Connection, Stream) || Stream <- Begun -- Refused],
    {200, _, [#{~"result" := _}]} =
        answer(Connection, echo(Connection, binary:copy(~"a", Size - 1_000))),
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

%% One of them that never ends eight large ones keeps out no smaller ones.
largest_body_of_a_connection_makes_room(Config) ->
    Size = 2_000_000,
    Server = start(#{message_bytes => Size}, Config),
    Connection = open(Server, [http2], Config),
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    Begun = [begin
                 Stream = gun:headers(Connection, "POST", "/mcp", Headers),
                 ok = gun:data(Connection, Stream, nofin, binary:copy(~" ", Size - 1)),
                 Stream
             end || _ <- lists:seq(1, 8)],
    ok = arrived(length(Begun), Size - 1),
    Small = gun:headers(Connection, "POST", "/mcp", Headers),
    ok = gun:data(Connection, Small, nofin, binary:copy(~" ", 1_000)),
    Refused = receive
        {gun_response, Connection, Stream, nofin, 503, _} -> Stream
    after ?TIMEOUT ->
        error(not_refused)
    end,
    true = lists:member(Refused, Begun),
    {ok, Answer} = gun:await_body(Connection, Refused, ?TIMEOUT),
    #{~"error" := #{~"code" := 1002}} = json:decode(Answer),
    ok = gun:data(Connection, Small, fin, Body),
    {200, _, [#{~"result" := _}]} = answer(Connection, Small),
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

%% The largest body gets one more byte before it has its refusal, when another one is the largest.
refused_body_is_not_counted_again(Config) ->
    Size = 2_000_000,
    Server = start(#{message_bytes => Size}, Config),
    Connection = open(Server, [http2], Config),
    {Headers, _} = message(~"tools/list", #{}, #{}),
    [Small, Largest, Next | Others] =
        [gun:headers(Connection, "POST", "/mcp", Headers) || _ <- lists:seq(1, 9)],
    More = fun(Stream, Bytes) -> gun:data(Connection, Stream, nofin, binary:copy(~" ", Bytes)) end,
    [ok = More(Stream, Bytes) || {Stream, Bytes} <- [{Largest, Size - 10}, {Next, Size - 20}
                                                     | [{Other, Size - 100} || Other <- Others]]],
    [ok = arrived(Count, Bytes)
     || {Count, Bytes} <- [{1, Size - 10}, {1, Size - 20}, {6, Size - 100}]],
    [Serving] = [Pid || {{Pid, _}, Bytes, _, _} <- ets:tab2list(erlmcp_unfinished_messages),
                        Bytes =:= Size - 10],
    %% What is sent meanwhile is handled before any message of the process to itself.
    true = erlang:suspend_process(Serving),
    [ok = More(Stream, Bytes) || {Stream, Bytes} <- [{Small, 1_000}, {Next, 15}, {Largest, 1}]],
    ok = has_received(1_000 + 15 + 1 + 3 * 9, Serving),
    true = erlang:resume_process(Serving),
    receive
        {gun_response, Connection, Largest, nofin, 503, _} -> ok
    after ?TIMEOUT ->
        error(not_refused)
    end,
    {200, _, [#{~"result" := _}]} = answer(Connection, echo(Connection, ~"next")),
    receive {gun_response, _, _, _, _, _} = Response -> error(Response) after 0 -> ok end,
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

%% Waits until a process that does not run has so many bytes, with heads of frames of 9 bytes.
has_received(Bytes, Pid) ->
    {messages, Messages} = process_info(Pid, messages),
    case lists:sum([byte_size(Data) || {tcp, _, Data} <- Messages]) of
        Received when Received >= Bytes -> ok;
        _ -> receive after 10 -> has_received(Bytes, Pid) end
    end.

arrived(Count, Bytes) ->
    case [ok || {_, Of, _, _} <- ets:tab2list(erlmcp_unfinished_messages), Of =:= Bytes] of
        Arrived when length(Arrived) =:= Count -> ok;
        _ -> receive after 10 -> arrived(Count, Bytes) end
    end.

%% RFC 9113, 6.9.1: "The sender MUST NOT send a flow-controlled frame with a length that exceeds the
%% space available in either of the flow-control windows advertised by the receiver." So whoever has
%% sent exactly as much as there was room for waits for more.
windows_are_opened_again(Config) ->
    Socket = erlmcp_test_http:connect(server(Config)),
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    Size = 65_535 div 15,
    Whole = [Body, binary:copy(~" ", Size - byte_size(Body))],
    Block = block([{~"content-length", integer_to_binary(Size)} | Headers]),
    ok = gen_tcp:send(Socket, preface()),
    [begin
         ok = gen_tcp:send(Socket, [cow_http2:headers(Id, nofin, Block),
                                    cow_http2:data(Id, fin, Whole)]),
         {headers, Id, nofin, head_fin, _} = frame(Socket, headers)
     end || Id <- lists:seq(1, 29, 2)],
    ok = gen_tcp:send(Socket, cow_http2:headers(31, nofin, Block)),
    {window_update, _} = frame(Socket, window_update),
    ok = gen_tcp:send(Socket, cow_http2:data(31, fin, Whole)),
    {headers, 31, nofin, head_fin, _} = frame(Socket, headers),
    ok = gen_tcp:close(Socket).

%% The next frame of a type.
frame(Socket, Type) ->
    {ok, <<Length:24>> = Head} = gen_tcp:recv(Socket, 3, ?TIMEOUT),
    {ok, Rest} = gen_tcp:recv(Socket, 6 + Length, ?TIMEOUT),
    case cow_http2:parse(<<Head/binary, Rest/binary>>) of
        {ok, Frame, <<>>} when element(1, Frame) =:= Type -> Frame;
        {ok, _, <<>>} -> frame(Socket, Type)
    end.

tls_url_is_https(Config) ->
    #{url := <<"https://127.0.0.1:", _/binary>>} = server(Config).

%% RFC 7301, 3.2: the server selects the protocol that it prefers of those that the client offers.
alpn_prefers_http2(Config) ->
    #{port := Port} = server(Config),
    Client = proplists:get_value(client_tls, Config),
    [begin
         {ok, Socket} = ssl:connect("127.0.0.1", Port,
                                    [{alpn_advertised_protocols, Offered} | Client], ?TIMEOUT),
         {Offered, {ok, Chosen}} = {Offered, ssl:negotiated_protocol(Socket)},
         ok = ssl:close(Socket)
     end || {Offered, Chosen} <- [{[~"http/1.1", ~"h2"], ~"h2"}, {[~"h2"], ~"h2"},
                                  {[~"http/1.1"], ~"http/1.1"}]],
    %% Who offers nothing is served HTTP/1.1.
    {ok, Plain} = ssl:connect("127.0.0.1", Port, [{active, false}, binary | Client], ?TIMEOUT),
    ok = ssl:send(Plain, ~"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    {ok, ~"HTTP/1.1 405 "} = ssl:recv(Plain, 13, ?TIMEOUT),
    ok = ssl:close(Plain).
