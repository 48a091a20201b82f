-module(lame_SUITE).
-moduledoc """
"Behind a load balancer" of `docs/running.md`: a server that is about to be drained is not ready,
and still serves. So no call fails if its balancer notices in time.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([a_lame_server_serves/1, responses_end_their_connections/1, connections_end_after_that/1,
         a_client_that_has_just_connected_is_answered/1, streams_end_after_that/1,
         streams_of_sse_end_after_that/1, http2_goes_away/1, options_are_checked/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/3, initialize/2, connect/1, close/1, start_call/4, finish/2,
                           response/1, running/0]).

-define(LONG, 60_000).
%% The server is lame for so long where a case awaits what follows, and where something has to
%% happen before.
-define(SHORT, 300).
-define(ENOUGH, 5_000).
%% Cowboy's own bound for the streams of a connection that goes away.
-define(COWBOY_MS, 3_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_lame_server_serves, responses_end_their_connections, connections_end_after_that,
     a_client_that_has_just_connected_is_answered, streams_end_after_that,
     streams_of_sse_end_after_that, http2_goes_away, options_are_checked].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    Definitions = erlmcp_test_http:definitions(self()),
    Listen = [{http, #{health => true}}, {tcp, #{}}],
    Server = erlmcp_test_http:start(Definitions#{listen => Listen}),
    [{server, Server} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

%% Drains beside the test, which awaits it.
draining(#{pid := Pid}, How) ->
    {_, Monitor} = spawn_monitor(fun() -> exit({drained, erlmcp:drain(Pid, How)}) end),
    Monitor.

drained(Monitor) ->
    receive {'DOWN', Monitor, _, _, {drained, Drained}} -> Drained end.

until_lame(#{pid := Pid} = Server) ->
    #{ready := Ready} = erlmcp:health(Pid),
    Ready andalso until_lame(Server).

a_lame_server_serves(Config) ->
    #{pid := Pid} = Server = server(Config),
    Drain = draining(Server, #{lame_ms => ?LONG, timeout_ms => ?LONG}),
    _ = until_lame(Server),
    #{state := open} = erlmcp:info(Pid),
    #{ready := false, checks := #{drain := #{passes := false}, listeners := #{passes := true}}} =
        erlmcp:health(Pid),
    503 = status(~"/health/ready", Server),
    200 = status(~"/health/live", Server),
    #{status := 200, messages := [#{~"result" := _}]} = call(Server, ~"tools/list", #{}),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"wait", 1),
    ok = finish(Call, ~"done"),
    #{status := 200, messages := [#{~"result" := _}]} = response(Socket),
    Line = erlmcp_test_two_eras:open(~"2026-07-28", Pid),
    ~"a" = erlmcp_test_two_eras:text(erlmcp_test_two_eras:call(Line, ~"echo", #{~"text" => ~"a"})),
    ok = erlmcp:stop_server(Pid),
    {error, not_found} = drained(Drain).

status(Path, Server) ->
    Socket = connect(Server),
    ok = erlmcp_test_http:write(Socket, [~"GET ", Path, ~" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"]),
    {Status, _} = erlmcp_test_http:head(Socket),
    ok = close(Socket),
    Status.

%% Those that were open before, and new ones.
responses_end_their_connections(Config) ->
    #{pid := Pid} = Server = server(Config),
    Before = connect(Server),
    #{} = Headers = listed(Before),
    false = is_map_key(~"connection", Headers),
    Drain = draining(Server, #{lame_ms => ?LONG, timeout_ms => ?LONG}),
    ok = until_last(Before),
    ok = erlmcp_test_http:closed(Before),
    New = connect(Server),
    ok = until_last(New),
    ok = erlmcp_test_http:closed(New),
    ok = erlmcp:stop_server(Pid),
    {error, not_found} = drained(Drain).

%% Each request is answered until the response that is the last one.
until_last(Socket) ->
    case listed(Socket) of
        #{~"connection" := ~"close"} -> ok;
        #{} -> until_last(Socket)
    end.

listed(Socket) ->
    {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    #{status := 200, headers := Of} = response(Socket),
    Of.

%% On an address where nobody else takes a port that is free.
connections_end_after_that(_) ->
    Ip = {127, 0, 9, 2},
    #{pid := Pid, port := Port} = Server = erlmcp_test_http:start(
        (erlmcp_test_http:definitions(self()))#{listen => [{http, #{ip => Ip}}]}),
    Idle = connect(Server),
    _ = listed(Idle),
    Session = initialize(Server, ~"2025-11-25"),
    {Busy, Call} = start_call(Server, Session, ~"wait", 1),
    Drain = draining(Server, #{lame_ms => ?SHORT, timeout_ms => ?LONG}),
    ok = erlmcp_test_http:closed(Idle),
    [] = erlmcp:listeners(Pid),
    ok = erlmcp_test_http:until_refused(Ip, Port),
    %% What runs is answered.
    ok = finish(Call, ~"done"),
    #{status := 200, headers := #{~"connection" := ~"close"}, messages := [#{~"result" := _}]} =
        response(Busy),
    {ok, #{calls := 0, tasks := 0}} = drained(Drain),
    erlmcp_test_http:stop(Server).

%% Its request may be on its way, so its connection must not be closed.
a_client_that_has_just_connected_is_answered(Config) ->
    #{pid := Pid} = Server = server(Config),
    [New, Begun] = [connect(Server) || _ <- [1, 2]],
    {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
    ok = erlmcp_test_http:write(Begun, ~"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\n"),
    {ok, _} = erlmcp:drain(Pid, #{lame_ms => ?SHORT, timeout_ms => ?LONG}),
    ok = erlmcp_test_http:send(New, ~"POST", Headers, Body),
    #{status := 503, headers := #{~"connection" := ~"close"}} = response(New),
    ok = erlmcp_test_http:write(Begun, ~"content-length: 0\r\n\r\n"),
    #{headers := #{~"connection" := ~"close"}} = response(Begun).

streams_end_after_that(Config) ->
    #{pid := Pid} = Server = server(Config),
    Session = initialize(Server, ~"2025-11-25"),
    {OfSession, {200, _}} = erlmcp_test_http:get_stream(Server, Session),
    Listen = connect(Server),
    Params = #{notifications => #{toolsListChanged => true}},
    {Headers, Body} = erlmcp_test_http:message(~"subscriptions/listen", Params, #{}),
    ok = erlmcp_test_http:send(Listen, ~"POST", Headers, Body),
    {200, _} = erlmcp_test_http:head(Listen),
    {event, #{~"method" := ~"notifications/subscriptions/acknowledged"}} =
        erlmcp_test_http:event(Listen),
    Drain = draining(Server, #{lame_ms => ?ENOUGH, timeout_ms => ?LONG}),
    %% They live as long as the server is lame, and hear of a change in that time.
    _ = until_lame(Server),
    ok = erlmcp:add(Pid, tool, #{name => ~"new", handler => fun(_, _) -> ~"" end}),
    {event, #{~"method" := ~"notifications/tools/list_changed"}} = erlmcp_test_http:event(Listen),
    {event, #{~"method" := ~"notifications/tools/list_changed"}} =
        erlmcp_test_http:event(OfSession),
    [_ | _] = [Result || {_, #{~"result" := Result}} <- rest(Listen)],
    [] = rest(OfSession),
    {ok, _} = drained(Drain).

%% The events until a stream ends as one that was not cut.
rest(Stream) ->
    case erlmcp_test_http:chunk(Stream) of
        <<>> -> [];
        Chunk -> erlmcp_test_http:events(Chunk) ++ rest(Stream)
    end.

%% A stream on which a call is answered ends after the answer.
streams_of_sse_end_after_that(_) ->
    Server = erlmcp_test_sse_server:start(#{}),
    Open = fun(Protocol) ->
        Client = erlmcp_test_sse:open(Server, #{protocol => Protocol}),
        _ = erlmcp_test_sse:initialize(Client, ~"2024-11-05"),
        Client
    end,
    Quiet = [Open(Protocol) || Protocol <- [http, http2]],
    Busy = [begin
                Client = Open(Protocol),
                ok = erlmcp_test_sse:send(Client, erlmcp_test_sse_server:call(7, ~"wait")),
                {Call, _} = running(),
                {Client, Call}
            end || Protocol <- [http, http2]],
    Drain = draining(Server, #{lame_ms => ?SHORT, timeout_ms => ?LONG}),
    [fin = erlmcp_test_sse:message(Client) || Client <- Quiet],
    [begin
         ok = finish(Call, ~"done"),
         #{~"id" := 7, ~"result" := _} = erlmcp_test_sse:message(Client),
         fin = erlmcp_test_sse:message(Client)
     end || {Client, Call} <- Busy],
    {ok, #{calls := 0}} = drained(Drain),
    erlmcp_test_http:stop(Server).

%% A call may take longer than cowboy would give it.
http2_goes_away(Config) ->
    #{port := Port} = Server = server(Config),
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false}]),
    {Fields, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"wait"}, #{}),
    {Block, _} = cow_hpack:encode([{~":method", ~"POST"}, {~":scheme", ~"http"},
                                   {~":authority", ~"127.0.0.1"}, {~":path", ~"/mcp"} | Fields]),
    ok = gen_tcp:send(Socket, [~"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", cow_http2:settings(#{}),
                               cow_http2:headers(1, nofin, Block), cow_http2:data(1, fin, Body)]),
    {Call, _} = running(),
    Drain = draining(Server, #{lame_ms => ?SHORT, timeout_ms => ?LONG}),
    {{goaway, _, no_error, _}, Rest} = until_frame(goaway, Socket, <<>>),
    receive after ?COWBOY_MS + 500 -> ok end,
    ok = finish(Call, ~"done"),
    {{data, 1, fin, Answer}, _} = until_frame(data, Socket, Rest),
    #{~"result" := _} = json:decode(Answer),
    ok = erlmcp_test_http:closed(Socket),
    {ok, #{calls := 0}} = drained(Drain).

until_frame(Type, Socket, Bytes) ->
    case cow_http2:parse(Bytes) of
        {ok, Frame, Rest} when element(1, Frame) =:= Type -> {Frame, Rest};
        {ok, _, Rest} -> until_frame(Type, Socket, Rest);
        more ->
            {ok, More} = gen_tcp:recv(Socket, 0, ?LONG),
            until_frame(Type, Socket, <<Bytes/binary, More/binary>>)
    end.

options_are_checked(Config) ->
    #{pid := Pid} = server(Config),
    [try erlmcp:drain(Pid, Wrong) of
         _ -> error({taken, Wrong})
     catch
         error:function_clause -> ok
     end || Wrong <- [-1, #{}, #{lame_ms => 1}, #{timeout_ms => -1}, #{timeout_ms => 1, lame => 1},
                      #{timeout_ms => 1, lame_ms => -1},
                      #{timeout_ms => 1, lame_ms => 1, lame => 1}]],
    #{ready := true} = erlmcp:health(Pid).
