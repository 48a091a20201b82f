-module(drain_SUITE).
-moduledoc """
"Draining" of `docs/running.md`: what was accepted is answered, the rest is told 1077, in both eras
and on each transport.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([nothing_runs/1, running_calls_are_answered/1, new_requests_are_refused/1,
         no_connections_are_taken/1, late_calls_are_ended/1, calls_that_trap_exits_are_ended/1,
         calls_of_a_busy_connection_are_ended/1, calls_that_ask_are_waited_for/1,
         late_answers_end_their_calls/1, calls_that_nobody_can_answer_end/1,
         connections_are_no_calls/1,
         subscriptions_end_with_their_result/1, sessions_end_with_their_streams/1,
         sessions_of_sse_end_with_their_calls/1, no_stream_of_sse_opens/1,
         tasks_are_waited_for/1, cancelling_goes_on/1,
         a_drained_server_stops/1, a_server_stops_while_it_is_drained/1, no_such_server/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/3, call/4, initialize/2, start_call/4, running/0, finish/2,
                           response/1]).

-define(LONG, 60_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [nothing_runs, running_calls_are_answered, new_requests_are_refused, no_connections_are_taken,
     late_calls_are_ended, calls_that_trap_exits_are_ended, calls_of_a_busy_connection_are_ended,
     calls_that_ask_are_waited_for, late_answers_end_their_calls,
     calls_that_nobody_can_answer_end, connections_are_no_calls,
     subscriptions_end_with_their_result,
     sessions_end_with_their_streams, sessions_of_sse_end_with_their_calls, no_stream_of_sse_opens,
     tasks_are_waited_for, cancelling_goes_on, a_drained_server_stops,
     a_server_stops_while_it_is_drained, no_such_server].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    Definitions = erlmcp_test_http:definitions(self()),
    Server = erlmcp_test_http:start(Definitions#{listen => [{http, #{}}, {tcp, #{}}]}),
    [{server, Server} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

%% Drains beside the test, which awaits it.
draining(#{pid := Pid}, Milliseconds) ->
    {_, Monitor} = spawn_monitor(fun() -> exit({drained, erlmcp:drain(Pid, Milliseconds)}) end),
    Monitor.

drained(Monitor) ->
    receive {'DOWN', Monitor, _, _, {drained, {ok, Left}}} -> Left end.

%% The listeners are suspended when it has begun.
begun(#{pid := Pid} = Server) ->
    erlmcp:listeners(Pid) =:= [] orelse begin timer:sleep(5), begun(Server) end.

is_refused(#{~"error" := #{~"code" := 1077, ~"data" := #{~"name" := ~"server_shutting_down",
                                                         ~"retryAfterMs" := _}}}) -> true.

nothing_runs(Config) ->
    #{pid := Pid} = server(Config),
    {ok, #{calls := 0, tasks := 0}} = erlmcp:drain(Pid, ?LONG),
    {ok, #{calls := 0, tasks := 0}} = erlmcp:drain(Pid, ?LONG).

%% A call on each transport and in each era, which the server has when it is drained.
calls(Server) ->
    Stateless = erlmcp_test_http:connect(Server),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"wait"}, #{}),
    ok = erlmcp_test_http:send(Stateless, ~"POST", Headers, Body),
    {One, _} = running(),
    {InSession, Other} = start_call(Server, initialize(Server, ~"2025-11-25"), ~"wait", 1),
    Lines = [tcp_call(Revision, Server) || Revision <- erlmcp_test_two_eras:eras()],
    [{One, fun() -> body(response(Stateless)) end}, {Other, fun() -> body(response(InSession)) end}
     | Lines].

body(#{messages := [Message]}) -> Message.

tcp_call(Revision, #{pid := Pid}) ->
    {_, Socket} = erlmcp_test_two_eras:open(Revision, Pid),
    Params = #{~"name" => ~"wait"},
    erlmcp_test_line:send(Socket, case Revision of
        ~"2026-07-28" -> erlmcp_test_line:stateless(7, ~"tools/call", Params);
        _ -> erlmcp_test_line:request(7, ~"tools/call", Params)
    end),
    {Call, _} = running(),
    {Call, fun() -> erlmcp_test_line:recv(Socket) end}.

running_calls_are_answered(Config) ->
    Server = server(Config),
    Calls = calls(Server),
    Drain = draining(Server, ?LONG),
    begun(Server),
    ok = lists:foreach(fun({Call, _}) -> finish(Call, ~"done") end, Calls),
    [~"done" = erlmcp_test_two_eras:text(Answer()) || {_, Answer} <- Calls],
    #{calls := 0} = drained(Drain).

new_requests_are_refused(Config) ->
    #{pid := Pid} = Server = server(Config),
    Http = erlmcp_test_http:connect(Server),
    Session = initialize(Server, ~"2025-11-25"),
    InSession = erlmcp_test_http:connect(Server),
    Clients = [erlmcp_test_two_eras:open(Revision, Pid) || Revision <- erlmcp_test_two_eras:eras()],
    [{Call, _} | _] = Running = calls(Server),
    Drain = draining(Server, ?LONG),
    begun(Server),
    [true = is_refused(erlmcp_test_two_eras:call(Client, ~"echo", #{~"text" => ~"a"}))
     || Client <- Clients],
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"echo"}, #{}),
    ok = erlmcp_test_http:send(Http, ~"POST", Headers, Body),
    #{status := 503, headers := #{~"retry-after" := _}, messages := [Refused]} = response(Http),
    true = is_refused(Refused),
    {Own, OfSession} = erlmcp_test_http:message(~"tools/call", #{name => ~"echo"},
                                                #{session => Session}),
    ok = erlmcp_test_http:send(InSession, ~"POST", Own, OfSession),
    true = is_refused(body(response(InSession))),
    true = is_process_alive(Call),
    ok = lists:foreach(fun({One, _}) -> finish(One, ~"done") end, Running),
    _ = drained(Drain).

%% On an address where nobody else takes a port that is free.
no_connections_are_taken(_) ->
    Ip = {127, 0, 9, 1},
    #{pid := Pid} = Server =
        erlmcp_test_http:start(#{listen => [{http, #{ip => Ip}}, {tcp, #{ip => Ip}}]}),
    Ports = [Port || #{port := Port} <- erlmcp:listeners(Pid)],
    2 = length(Ports),
    {ok, _} = erlmcp:drain(Pid, ?LONG),
    [ok = erlmcp_test_http:until_refused(Ip, Port) || Port <- Ports],
    [] = erlmcp:listeners(Pid),
    erlmcp_test_http:stop(Server).

late_calls_are_ended(Config) ->
    #{pid := Pid} = Server = server(Config),
    Calls = calls(Server),
    {ok, #{calls := 4, tasks := 0}} = erlmcp:drain(Pid, 20),
    [#{~"error" := #{~"code" := 1077}} = Answer() || {_, Answer} <- Calls].

%% They get an exit signal, and are killed some time after it.
calls_that_trap_exits_are_ended(_) ->
    #{pid := Pid} = Server = trapping(),
    Calls = calls(Server),
    Monitors = [{Call, monitor(process, Call)} || {Call, _} <- Calls],
    {ok, #{calls := 4, tasks := 0}} = erlmcp:drain(Pid, 20),
    [receive {draining, Call} -> ok end || {Call, _} <- Calls],
    [#{~"error" := #{~"code" := 1077}} = Answer() || {_, Answer} <- Calls],
    [receive {'DOWN', Monitor, process, Call, killed} -> ok end || {Call, Monitor} <- Monitors],
    erlmcp_test_http:stop(Server).

trapping() ->
    Test = self(),
    Traps = fun(Arguments, _) ->
        _ = process_flag(trap_exit, true),
        Test ! {running, self(), Arguments},
        receive {'EXIT', _, {shutdown, draining}} -> Test ! {draining, self()} end,
        receive {finish, Return} -> Return end
    end,
    erlmcp_test_http:start(#{tools => [#{name => ~"wait", handler => Traps}],
                             listen => [{http, #{}}, {tcp, #{}}]}).

%% A connection whose client does not read, for example, kills no call.
calls_of_a_busy_connection_are_ended(_) ->
    #{pid := Pid} = Server = trapping(),
    {Call, Answer} = tcp_call(~"2026-07-28", Server),
    {links, [Connection]} = process_info(Call, links),
    Monitor = monitor(process, Call),
    true = erlang:suspend_process(Connection),
    {ok, #{calls := 1}} = erlmcp:drain(Pid, 20),
    receive {'DOWN', Monitor, process, Call, killed} -> ok end,
    true = erlang:resume_process(Connection),
    #{~"error" := #{~"code" := 1077}} = Answer(),
    erlmcp_test_http:stop(Server).

%% A call of a session is not in flight while its client is asked, and is not lost then.
calls_that_ask_are_waited_for(_) ->
    Server = erlmcp_test_client:start(#{tools => [asking()]}),
    Asked = [asked(Transport, Server) || Transport <- [http, tcp, sse]],
    [{#{session := Session}, _, _} | _] = Asked,
    %% On HTTP a client answers on another connection, which the server must have before.
    Socket = erlmcp_test_http:connect(Server),
    Progress = #{progressToken => 1, progress => 1},
    ok = post(Socket, Session, #{method => ~"notifications/progress", params => Progress}),
    Drain = draining(Server, ?LONG),
    begun(Server),
    [begin
         receive {'DOWN', Drain, _, _, Early} -> error(Early) after 100 -> ok end,
         ok = case Client of
             #{transport := http} ->
                 post(Socket, Session, #{id => Question, result => #{roots => []}});
             #{} ->
                 erlmcp_test_client:answer(Client, Question, #{roots => []})
         end,
         ~"done" = erlmcp_test_two_eras:text(erlmcp_test_client:next(Exchange))
     end || {Client, Exchange, Question} <- Asked],
    #{calls := 0} = drained(Drain),
    erlmcp_test_client:stop(Server).

post(Socket, Session, Message) ->
    {Headers, _} = erlmcp_test_http:message(~"", #{}, #{session => Session}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers,
                               json:encode(Message#{jsonrpc => ~"2.0"})),
    #{status := 202} = response(Socket),
    ok.

late_answers_end_their_calls(_) ->
    calls_that_ask_are_ended(20).

%% HTTP takes no answer once the server was lame. So the drain does not wait for one.
calls_that_nobody_can_answer_end(_) ->
    calls_that_ask_are_ended(#{lame_ms => 1, timeout_ms => 10 * ?LONG}).

calls_that_ask_are_ended(Options) ->
    #{pid := Pid} = Server = erlmcp_test_client:start(#{tools => [asking()]}),
    Asked = [asked(Transport, Server) || Transport <- [http, tcp, sse]],
    {ok, #{calls := 3, tasks := 0}} = erlmcp:drain(Pid, Options),
    [begin
         {[#{~"method" := ~"notifications/cancelled"}],
          #{~"id" := 7, ~"error" := #{~"code" := 1077}}} = erlmcp_test_client:answered(Exchange)
     end || {_, Exchange, _} <- Asked],
    erlmcp_test_client:stop(Server).

asking() ->
    #{name => ~"ask", handler => fun(_, #{input := _}) -> ~"done";
                                    (_, _) -> {input_required, #{~"it" => erlmcp_input:roots()}}
                                 end}.

asked(Transport, Server) ->
    Client = erlmcp_test_client:open(Server, Transport, ~"2025-11-25", #{roots => #{}}),
    Exchange = erlmcp_test_client:request(Client, 7, ~"tools/call", #{name => ~"ask"}),
    #{~"method" := ~"roots/list", ~"id" := Question} = erlmcp_test_client:next(Exchange),
    {Client, Exchange, Question}.

%% A connection that runs a quick call itself is not ended.
connections_are_no_calls(_) ->
    Test = self(),
    Quick = #{name => ~"quick", quick => true, handler => fun(_, _) ->
        Test ! {running, self(), none},
        receive {finish, Return} -> Return end
    end},
    #{pid := Pid} = Server = erlmcp_test_http:start(#{tools => [Quick]}),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"quick"}, #{}),
    Calling = erlmcp_test_http:connect(Server),
    ok = erlmcp_test_http:send(Calling, ~"POST", Headers, Body),
    {Connection, _} = running(),
    {ok, #{calls := 0}} = erlmcp:drain(Pid, 20),
    ok = finish(Connection, ~"done"),
    ~"done" = erlmcp_test_two_eras:text(body(response(Calling))),
    erlmcp_test_http:stop(Server).

%% "The server SHOULD send an empty response": the stream ends with its result.
subscriptions_end_with_their_result(Config) ->
    #{pid := Pid} = Server = server(Config),
    Socket = erlmcp_test_http:connect(Server),
    Params = #{notifications => #{toolsListChanged => true}},
    {Headers, Body} = erlmcp_test_http:message(~"subscriptions/listen", Params, #{}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    {200, _} = erlmcp_test_http:head(Socket),
    {event, #{~"method" := ~"notifications/subscriptions/acknowledged"}} =
        erlmcp_test_http:event(Socket),
    {ok, _} = erlmcp:drain(Pid, ?LONG),
    ok = result(Socket).

%% What it says before has its own suite.
result(Socket) ->
    Events = [Message || {_, Message} <- erlmcp_test_http:events(erlmcp_test_http:chunk(Socket))],
    case [Result || #{~"id" := 1, ~"result" := Result} <- Events] of
        [#{}] -> ok;
        [] -> result(Socket)
    end.

sessions_end_with_their_streams(Config) ->
    #{pid := Pid} = Server = server(Config),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, {200, _}} = erlmcp_test_http:get_stream(Server, Session),
    {ok, _} = erlmcp:drain(Pid, ?LONG),
    last = last_chunk(Socket).

%% A stream that ends, and is not lost, has a last chunk.
last_chunk(Socket) ->
    case erlmcp_test_http:chunk(Socket) of
        <<>> -> last;
        _ -> last_chunk(Socket)
    end.

sessions_of_sse_end_with_their_calls(_) ->
    #{pid := Pid} = Server = erlmcp_test_sse_server:start(#{}),
    [begin
         Client = erlmcp_test_sse:open(Server, #{protocol => Protocol}),
         _ = erlmcp_test_sse:initialize(Client, ~"2024-11-05"),
         put({client, Protocol}, Client)
     end || Protocol <- [http, http2]],
    [ok = erlmcp_test_sse:send(get({client, Protocol}), erlmcp_test_sse_server:call(7, ~"wait"))
     || Protocol <- [http, http2]],
    [{_, _} = running() || _ <- [1, 2]],
    {ok, #{calls := 2}} = erlmcp:drain(Pid, 20),
    [begin
         #{~"id" := 7, ~"error" := #{~"code" := 1077}} = erlmcp_test_sse:message(Client),
         fin = erlmcp_test_sse:message(Client)
     end || Protocol <- [http, http2], Client <- [get({client, Protocol})]],
    erlmcp_test_http:stop(Server).

no_stream_of_sse_opens(_) ->
    #{pid := Pid} = Server = erlmcp_test_sse_server:start(#{}),
    Socket = erlmcp_test_http:connect(Server),
    ok = erlmcp_test_http:write(Socket, ~"GET /none HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    #{status := 404} = response(Socket),
    {ok, _} = erlmcp:drain(Pid, ?LONG),
    ok = erlmcp_test_http:write(Socket, ~"GET /sse HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    #{status := 503, messages := [Refused]} = response(Socket),
    true = is_refused(Refused),
    erlmcp_test_http:stop(Server).

tasks_are_waited_for(_) ->
    #{pid := Pid} = Server = erlmcp_test_http:start(#{tools => [long()]}),
    Call = task(Server),
    {ok, #{calls := 0, tasks := 1}} = erlmcp:drain(Pid, 20),
    Drain = draining(Server, ?LONG),
    Call ! go,
    #{calls := 0, tasks := 0} = drained(Drain),
    erlmcp_test_http:stop(Server).

long() ->
    Self = self(),
    #{name => ~"long", task => optional,
      handler => fun(_, _) -> Self ! {runs, self()}, receive go -> ~"done" end end}.

%% One that runs, in its call's process.
task(Server) ->
    Session = initialize(Server, ~"2025-11-25"),
    #{messages := [#{~"result" := #{~"task" := #{}}}]} =
        call(Server, ~"tools/call", #{name => ~"long", task => #{}}, #{session => Session}),
    receive {runs, Call} -> Call end.

%% What is no request is taken: a client may still end what it waits for.
cancelling_goes_on(Config) ->
    #{pid := Pid} = Server = server(Config),
    {_, Socket} = erlmcp_test_two_eras:open(~"2026-07-28", Pid),
    erlmcp_test_line:send(Socket, erlmcp_test_line:stateless(7, ~"tools/call",
                                                             #{~"name" => ~"wait"})),
    {Call, _} = running(),
    Drain = draining(Server, ?LONG),
    begun(Server),
    Monitor = monitor(process, Call),
    erlmcp_test_line:send(Socket, erlmcp_test_line:notification(~"notifications/cancelled",
                                                                #{requestId => 7})),
    receive {'DOWN', Monitor, _, _, _} -> ok end,
    #{calls := 0} = drained(Drain).

a_drained_server_stops(Config) ->
    #{pid := Pid} = Server = server(Config),
    #{status := 200} = call(Server, ~"tools/list", #{}),
    {ok, _} = erlmcp:drain(Pid, ?LONG),
    ok = erlmcp:stop_server(Pid).

%% Who drains what somebody else stops hears that it is gone, whatever ran there.
a_server_stops_while_it_is_drained(Config) ->
    Server = server(Config),
    _ = calls(Server),
    ok = stopped_while_drained(Server),
    Other = erlmcp_test_http:start(#{tools => [long()]}),
    _ = task(Other),
    ok = stopped_while_drained(Other).

stopped_while_drained(#{pid := Pid} = Server) ->
    {_, Monitor} = spawn_monitor(fun() -> exit(erlmcp:drain(Pid, ?LONG)) end),
    begun(Server),
    ok = erlmcp:stop_server(Pid),
    receive {'DOWN', Monitor, _, _, Said} -> {error, not_found} = Said end,
    ok.

no_such_server(_) ->
    {error, not_found} = erlmcp:drain(nobody, ?LONG).
