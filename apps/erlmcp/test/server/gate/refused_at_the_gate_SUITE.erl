-module(refused_at_the_gate_SUITE).
-moduledoc """
Permits of a server's gate: their refusals, in addition to those that `bounds_SUITE` shows of each
limit, and all ends that give a permit back.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([principals_are_bounded/1, clients_take_no_room_from_tools/1,
         a_refused_connection_holds_no_permit/1, tls_connections_are_refused_by_http/1,
         discovery_is_refused_as_unavailable/1, batches_are_refused_one_by_one/1,
         refusals_without_a_request_have_no_id/1, streams_of_sse_count_for_their_principal/1,
         permits_come_back_whatever_ends_a_call/1, a_running_task_holds_no_permit/1,
         a_call_that_waits_for_its_client_holds_no_permit/1, no_rate_keeps_a_call_from_its_end/1,
         drained_servers_refuse_on_the_head/1, connections_leave_nothing/1,
         refusals_in_a_session_are_answers/1, principals_of_a_connection_have_a_number/1]).

-import(erlmcp_test_bounds_calls, [definitions/0, wait/1, finish/2, refused/4, held/2, gate/1,
                                   until/1, over/1, served_on/1]).
-import(erlmcp_test_bounds_client, [serve/3, stop/1, keep/2, open/3, open/4, close/1, send/4,
                                    reply/1, call/3]).
-import(erlmcp_test_http, [running/0, ended/1]).

-define(TIMEOUT, 60_000).
-define(STATELESS, ~"2026-07-28").
-define(SESSION, ~"2025-11-25").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [principals_are_bounded, clients_take_no_room_from_tools, a_refused_connection_holds_no_permit,
     tls_connections_are_refused_by_http, discovery_is_refused_as_unavailable,
     batches_are_refused_one_by_one, refusals_without_a_request_have_no_id,
     streams_of_sse_count_for_their_principal, permits_come_back_whatever_ends_a_call,
     a_running_task_holds_no_permit, a_call_that_waits_for_its_client_holds_no_permit,
     no_rate_keeps_a_call_from_its_end,
     drained_servers_refuse_on_the_head, connections_leave_nothing,
     refusals_in_a_session_are_answers, principals_of_a_connection_have_a_number].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% No more principals are counted than the limit says.
principals_are_bounded(_) ->
    Server = serve(http, #{principals => 3, in_flight_per_principal => 2},
                   (definitions())#{http => #{authenticate =>
                                                  fun erlmcp_test_bounds_calls:authenticate/1}}),
    Client = fun(Name) -> (keep(Server, http))#{headers := #{~"authorization" => Name}} end,
    In = [Client(Name) || Name <- [~"ada", ~"bob", ~"eve"]],
    Waiting = [wait(One) || One <- In],
    Over = Client(~"tim"),
    refused(resource_exhausted, #{}, call(Over, ~"tools/list", #{}), Over),
    [begin
         finish(Handler, ~"done"),
         #{message := #{~"result" := _}} = reply(Exchange)
     end || {Exchange, Handler} <- Waiting],
    [ok = close(One) || One <- [Over | In]],
    stop(Server).

%% Clients are refused if too many are counted already, and calls of a tool with a limit are not.
clients_take_no_room_from_tools(_) ->
    Tool = fun(Limit) -> Limit#{handler => fun(_, _) -> ~"done" end} end,
    Server = serve(http, #{principals => 2, connections_per_address => 9},
                   #{tools => [Tool(#{name => ~"dig", max_calls => 1}),
                               Tool(#{name => ~"sow", rates => #{minute => 1}})]}),
    [Listener] = erlmcp:listeners(Server),
    From = fun(Last) ->
        Socket = erlmcp_test_http:connect(Listener#{from => {127, 0, 0, Last}}),
        #{server => Server, transport => http, era => ?STATELESS, headers => #{},
          connection => Socket}
    end,
    [In, Also] = [From(Last) || Last <- [2, 3]],
    [ok = served_on(Client) || Client <- [In, Also]],
    Over = From(4),
    #{status := 503} = call(Over, ~"tools/list", #{}),
    Call = fun(Name, Client) ->
        #{message := Message} = call(Client, ~"tools/call", #{name => Name}),
        Message
    end,
    [#{~"result" := #{}} = Call(~"dig", Client) || Client <- [In, Also]],
    #{~"result" := #{}} = Call(~"sow", In),
    #{~"error" := #{~"data" := #{~"name" := ~"rate_limit_per_minute"}}} = Call(~"sow", Also),
    [ok = close(Client) || Client <- [In, Also, Over]],
    stop(Server).

%% A connection that many share, as a proxy's, counts for a hundred of them. Others are served, and
%% not counted.
principals_of_a_connection_have_a_number(_) ->
    Server = serve(http, #{connections_per_principal => 1},
                   (definitions())#{http => #{authenticate =>
                                                  fun erlmcp_test_bounds_calls:authenticate/1}}),
    As = fun(Client, N) ->
        Client#{headers := #{~"authorization" => integer_to_binary(N)}}
    end,
    Shared = keep(Server, http),
    [ok = served_on(As(Shared, N)) || N <- lists:seq(1, 101)],
    Uncounted = As(keep(Server, http), 101),
    ok = served_on(Uncounted),
    Counted = As(keep(Server, http), 100),
    refused(concurrent_limit_exceeded, #{limit => 1, observed => 2},
            call(Counted, ~"tools/list", #{}), Counted),
    [ok = served_on(As(Shared, N)) || N <- [1, 100, 101]],
    [ok = close(One) || One <- [Shared, Counted, Uncounted]],
    ok = until(fun() -> held(Server, {connections, ~"100"}) =:= 0 end),
    Again = As(keep(Server, http), 100),
    ok = served_on(Again),
    ok = close(Again),
    stop(Server).

%% A refused connection holds no permit: if one leaves, another may come in.
a_refused_connection_holds_no_permit(_) ->
    Server = serve(http, #{connections => 1}, definitions()),
    In = keep(Server, http),
    ok = served_on(In),
    Refused = [begin
                   Over = keep(Server, http),
                   #{status := 429} = call(Over, ~"tools/list", #{}),
                   Over
               end || _ <- lists:seq(1, 20)],
    1 = held(Server, connections),
    ok = close(In),
    ok = until(fun() -> held(Server, connections) =:= 0 end),
    Next = keep(Server, http),
    ok = served_on(Next),
    [ok = over(Connection) || Connection <- Refused],
    ok = served_on(Next),
    close(Next),
    stop(Server).

%% "The refusal at once", and on TLS as elsewhere: after the handshake, in HTTP.
tls_connections_are_refused_by_http(_) ->
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    Chain = #{root => Made, intermediates => [], peer => Made},
    #{server_config := Tls} =
        public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    Server = serve(http, #{connections => 1}, (definitions())#{http => #{tls => Tls}}),
    [#{port := Port}] = erlmcp:listeners(Server),
    Open = fun(Protocol) ->
        {ok, Connection} = gun:open("127.0.0.1", Port,
                                    #{transport => tls, protocols => [Protocol], retry => 0,
                                      tls_opts => [{verify, verify_none}]}),
        {ok, Protocol} = gun:await_up(Connection, ?TIMEOUT),
        #{server => Server, transport => http2, era => ?STATELESS, headers => #{},
          connection => Connection}
    end,
    In = Open(http2),
    ok = served_on(In),
    [begin
         Over = Open(Protocol),
         refused(concurrent_limit_exceeded, #{limit => 1, observed => 2},
                 call(Over, ~"tools/list", #{}), Over),
         ok = over(Over)
     end || Protocol <- [http, http2]],
    ok = served_on(In),
    close(In),
    stop(Server).

%% A client that tries which era a server is of takes 429 for the word of an older one.
discovery_is_refused_as_unavailable(_) ->
    Server = serve(http, #{messages_per_day => 1}, definitions()),
    In = keep(Server, http),
    #{message := #{~"result" := #{}}} = call(In, ~"server/discover", #{}),
    #{status := 503, retry_after := Seconds, message := #{~"error" := #{~"code" := 1056}}} =
        call(In, ~"server/discover", #{}),
    true = Seconds > 0,
    #{status := 429} = call(In, ~"tools/list", #{}),
    close(In),
    stop(Server),
    Small = serve(http, #{connections => 1}, definitions()),
    One = keep(Small, http),
    ok = served_on(One),
    Over = keep(Small, http),
    #{status := 503, message := #{~"error" := #{~"code" := 1060}}} =
        call(Over, ~"server/discover", #{}),
    ok = over(Over),
    close(One),
    stop(Small).

%% Within a session a refusal is the answer of a request. A stateless request has none, though it
%% names a session.
refusals_in_a_session_are_answers(_) ->
    Server = erlmcp_test_http:start(#{limits => #{messages_per_day => 2}}),
    {Id, _} = Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    Refused = fun(Options) ->
        #{status := Status, messages := [#{~"error" := #{~"code" := 1056}}]} =
            erlmcp_test_http:call(Server, ~"tools/list", #{}, Options),
        Status
    end,
    200 = Refused(#{session => Session}),
    429 = Refused(#{headers => #{~"mcp-session-id" => Id}}),
    429 = Refused(#{}),
    erlmcp_test_http:stop(Server).

%% A batch is as many messages as it has: those that may not enter are refused in its answer.
batches_are_refused_one_by_one(_) ->
    [begin
         %% Two messages open the session.
         Server = serve(Transport, #{messages_per_day => 4}, definitions()),
         Client = open(Server, Transport, ~"2025-03-26"),
         Ids = [~"a", ~"b", ~"c"],
         Request = fun(Id) ->
             #{jsonrpc => ~"2.0", id => Id, method => ~"tools/call", params => #{name => ~"echo"}}
         end,
         Answers = erlmcp_test_bounds_client:batch(Client, [Request(Id) || Id <- Ids]),
         Ids = lists:sort([Id || #{~"id" := Id} <- Answers]),
         [~"a", ~"b"] = lists:sort([Id || #{~"id" := Id, ~"result" := _} <- Answers]),
         [1056] = [Code || #{~"id" := ~"c", ~"error" := #{~"code" := Code}} <- Answers],
         [#{~"error" := #{~"code" := 1056}}] =
             erlmcp_test_bounds_client:batch(Client, [Request(~"d")]),
         0 = held(Server, in_flight),
         close(Client),
         stop(Server)
     end || Transport <- [http, tcp]].

%% 2025-03-26, Transports: "If the server cannot accept the input, it MUST return an HTTP error
%% status code (e.g., 400 Bad Request). The HTTP response body MAY comprise a JSON-RPC error
%% response that has no id."
refusals_without_a_request_have_no_id(_) ->
    %% Two messages open the session.
    Server = serve(http, #{messages_per_day => 2}, definitions()),
    Client = open(Server, http, ~"2025-03-26"),
    {Headers, _} = erlmcp_test_bounds_client:message(Client, none, ~"", #{}),
    [Listener] = erlmcp:listeners(Server),
    Notification = #{jsonrpc => ~"2.0", method => ~"notifications/progress"},
    [begin
         #{status := 429, messages := [#{~"error" := #{~"code" := 1056}} = Refused]} =
             erlmcp_test_http:post(Listener, Headers, json:encode(Message)),
         false = is_map_key(~"id", Refused)
     end || Message <- [Notification, [Notification, Notification]]],
    close(Client),
    stop(Server).

%% HTTP+SSE has two connections: that of its stream, and that of its messages.
streams_of_sse_count_for_their_principal(_) ->
    Server = serve(http, #{connections_per_principal => 2},
                   (definitions())#{http => #{sse => #{}, authenticate =>
                                                  fun erlmcp_test_bounds_calls:authenticate/1}}),
    [Listener] = erlmcp:listeners(Server),
    Of = fun(Name) -> [{~"authorization", Name}] end,
    Open = fun(Name) -> erlmcp_test_sse:open(Listener, #{headers => Of(Name)}) end,
    Client = Open(~"ada"),
    true = erlmcp_test_sse:is_quiet(Client),
    {429, #{~"retry-after" := _}, Refused} =
        erlmcp_test_sse:get(Listener, ~"GET", ~"/sse", Of(~"ada")),
    #{~"error" := #{~"code" := 1060, ~"data" := #{~"limit" := 2, ~"observed" := 3}}} =
        json:decode(Refused),
    Other = Open(~"bob"),
    ok = erlmcp_test_sse:close(Client),
    ok = until(fun() -> held(Server, {connections, ~"ada"}) =:= 0 end),
    Again = Open(~"ada"),
    [ok = erlmcp_test_sse:close(One) || One <- [Other, Again]],
    stop(Server).

%% After an answer, a crash, the deadline, the memory bound, a cancellation, or the client's end.
permits_come_back_whatever_ends_a_call(_) ->
    Tools = [#{name => ~"crash", handler => fun(_, _) -> error(on_purpose) end},
             #{name => ~"exit", handler => fun(_, _) -> exit(kill) end},
             #{name => ~"killed", handler => fun(_, _) -> exit(self(), kill) end},
             #{name => ~"late", timeout_ms => 1, handler => fun(_, _) -> receive after 5000 -> x end
                                                            end}],
    [begin
         #{tools := Usual} = Definitions = definitions(),
         Server = serve(Transport, #{in_flight => 1, queue => 0},
                        Definitions#{tools := Usual ++ Tools}),
         Client = open(Server, Transport, Era),
         [begin
              #{message := #{~"error" := _}} = call(Client, ~"tools/call", #{name => Name}),
              #{message := #{~"result" := _}} = call(Client, ~"tools/call", #{name => ~"echo"})
          end || Name <- [~"crash", ~"exit", ~"killed", ~"late"]],
         0 = held(Server, in_flight),
         Waited = send(Client, ~"waited", ~"tools/call", #{name => ~"wait"}),
         {Cancelled, _} = running(),
         ok = erlmcp_test_bounds_client:cancel(Client, {Waited, ~"waited"}),
         _ = ended(Cancelled),
         ok = until(fun() -> held(Server, in_flight) =:= 0 end),
         close(Client),
         stop(Server)
     end || Transport <- [http, http2, tcp], Era <- [?STATELESS, ?SESSION]].

%% A call that goes on as a task has answered, and gives its permit back. A request that waits for
%% the result of a task holds none, either.
a_running_task_holds_no_permit(_) ->
    #{tools := Tools} = Definitions = definitions(),
    Server = serve(tcp, #{in_flight => 1, queue_ms => 10_000},
                   Definitions#{tools := [Tool#{task => optional} || Tool <- Tools]}),
    Client = open(Server, tcp, ?SESSION),
    #{message := #{~"result" := #{~"task" := #{~"taskId" := Task}}}} =
        call(Client, ~"tools/call", #{name => ~"wait", task => #{}}),
    {Handler, _} = running(),
    Result = send(Client, ~"result", ~"tasks/result", #{taskId => Task}),
    #{message := #{~"result" := _}} = call(Client, ~"tools/call", #{name => ~"echo"}),
    finish(Handler, ~"done"),
    %% A notification of its status comes, too.
    [_] = [Message || #{~"id" := ~"result", ~"result" := _} = Message <-
                          [maps:get(message, reply(Result)) || _ <- [status, result]]],
    0 = held(Server, in_flight),
    close(Client),
    stop(Server).

%% People take their time.
a_call_that_waits_for_its_client_holds_no_permit(_) ->
    #{tools := Tools} = Definitions = definitions(),
    Server = serve(tcp, #{in_flight => 1, queue => 0}, Definitions#{tools := [ask() | Tools]}),
    Client = open(Server, tcp, ?SESSION, #{roots => #{}}),
    Asked = send(Client, ~"ask", ~"tools/call", #{name => ~"ask"}),
    #{message := #{~"method" := ~"roots/list", ~"id" := Id}} = reply(Asked),
    #{message := #{~"result" := _}} = call(Client, ~"tools/call", #{name => ~"echo"}),
    ok = erlmcp_test_bounds_client:answer(Client, Id, #{roots => []}),
    #{message := #{~"id" := ~"ask", ~"result" := _}} = reply(Asked),
    close(Client),
    stop(Server).

ask() ->
    #{name => ~"ask", handler => fun
        (_, #{input := #{~"roots" := _}}) -> ~"asked";
        (_, _) -> {input_required, #{~"roots" => erlmcp_input:roots()}}
    end}.

%% The two calls are the last messages for which there is room.
no_rate_keeps_a_call_from_its_end(_) ->
    #{tools := Tools} = Definitions = definitions(),
    [begin
         Server = serve(tcp, #{Rate => 4}, Definitions#{tools := [ask() | Tools]}),
         Client = open(Server, tcp, ?SESSION, #{roots => #{}}),
         Waits = send(Client, ~"wait", ~"tools/call", #{name => ~"wait"}),
         {Handler, _} = running(),
         Asked = send(Client, ~"ask", ~"tools/call", #{name => ~"ask"}),
         #{message := #{~"method" := ~"roots/list", ~"id" := Id}} = reply(Asked),
         refused(Refusal, #{limit => 4}, call(Client, ~"tools/list", #{}), Client),
         ok = erlmcp_test_bounds_client:answer(Client, Id, #{roots => []}),
         #{message := #{~"id" := ~"ask", ~"result" := _}} = reply(Asked),
         ok = erlmcp_test_bounds_client:cancel(Client, {Waits, ~"wait"}),
         _ = ended(Handler),
         close(Client),
         stop(Server)
     end || {Rate, Refusal} <- [{messages_per_day, rate_limit_exceeded},
                                {principal_messages_per_day, quota_exceeded}]].

%% Before a body is read; what a session's client posts may be waited for, and is.
drained_servers_refuse_on_the_head(_) ->
    Server = serve(http, #{}, definitions()),
    In = keep(Server, http),
    ok = served_on(In),
    Session = open(Server, http, ?SESSION),
    {Waiting, Handler} = wait(Session),
    ok = erlmcp_gate:drain(gate(Server)),
    #{connection := Socket} = In,
    {Headers, _} = erlmcp_test_bounds_client:message(In, 1, ~"tools/list", #{}),
    ok = erlmcp_test_http:send(Socket, ~"POST", [{~"content-length", ~"1000"} | Headers], ~""),
    #{status := 503, headers := #{~"retry-after" := _},
      messages := [#{~"error" := #{~"code" := 1077}}]} = erlmcp_test_http:response(Socket),
    finish(Handler, ~"accepted before"),
    #{message := #{~"result" := _}} = reply(Waiting),
    close(In),
    stop(Server).

%% A connection gives back what it held itself when it ends.
connections_leave_nothing(_) ->
    [begin
         Server = serve(Transport, #{}, definitions()),
         %% The process that gives back what the dead held does nothing meanwhile.
         Looking = [Pid || Pid <- processes(),
                           proc_lib:translate_initial_call(Pid) =:= {erlmcp_gate_permits, init, 1}],
         [ok = sys:suspend(Pid) || Pid <- Looking],
         Client = keep(Server, Transport),
         [ok = served_on(Client) || _ <- [1, 2]],
         1 = held(Server, connections),
         ok = close(Client),
         ok = until(fun() -> held(Server, connections) =:= 0 end),
         [] = erlmcp_gate:calls(gate(Server)),
         [ok = sys:resume(Pid) || Pid <- Looking],
         stop(Server)
     end || Transport <- [http, http2, tcp]].
