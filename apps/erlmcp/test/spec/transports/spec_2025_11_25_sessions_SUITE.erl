-module(spec_2025_11_25_sessions_SUITE).
-moduledoc "Specification 2025-11-25, \"Streamable HTTP / Session Management\", and before it.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([initialize_gives_a_session_id/1, supported_revision_is_agreed_on/1,
         unsupported_revision_gets_the_latest/1, malformed_initialize_opens_no_session/1,
         second_initialize_is_refused/1]).
-export([request_without_session_is_400/1, request_of_an_unknown_session_is_404/1,
         request_after_delete_is_404/1, invalid_version_header_is_400/1,
         version_header_may_be_absent/1]).
-export([answers_of_a_session_are_200/1, bounds_of_a_call_are_200/1, notification_is_202/1,
         ping_is_answered/1, missing_resource_is_32002/1,
         handler_knows_the_client_of_its_session/1]).
-export([unused_session_expires/1, used_session_does_not_expire/1,
         asked_session_does_not_expire/1, sessions_are_bounded/1,
         refused_session_is_told_its_id/1, calls_of_a_session_are_bounded/1,
         ended_calls_make_room/1, a_cancelled_call_ends_as_its_client_reads/1,
         cancelled_answers_make_room_once/1, late_answers_make_room_once/1,
         a_cancellation_ends_no_later_call/1, a_refused_subscription_ends_no_other/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/3, call/4, start_call/4, close/1, response/1, initialize/2,
                           initialize/3, delete/2, get_stream/2, finish/2, ended/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

start(Limits) ->
    erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{limits => Limits}).

revisions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25"].

%% "A server using the Streamable HTTP transport MAY assign a session ID at initialization time, by
%% including it in an MCP-Session-Id header on the HTTP response containing the InitializeResult.
%% The session ID SHOULD be globally unique and cryptographically secure. The session ID MUST only
%% contain visible ASCII characters (ranging from 0x21 to 0x7E)."
initialize_gives_a_session_id(Config) ->
    Server = server(Config),
    Ids = [Id || _ <- lists:seq(1, 20), {Id, _} <- [initialize(Server, ~"2025-11-25")]],
    20 = length(lists:usort(Ids)),
    [begin
         true = byte_size(Id) >= 22,
         Id = << <<C>> || <<C>> <= Id, C > 16#20, C < 16#7f >>
     end || Id <- Ids],
    %% Said once, and on a stream too.
    #{headers := Headers} = in_session(Server, {hd(Ids), ~"2025-11-25"}, ~"tools/list", #{}),
    false = is_map_key(~"mcp-session-id", Headers),
    #{status := 200, messages := [#{~"result" := #{}}],
      headers := #{~"content-type" := ~"text/event-stream", ~"mcp-session-id" := _}} =
        initialize(Server, ~"2025-11-25", #{~"accept" => ~"text/event-stream"}).

in_session(Server, Session, Method, Params) ->
    call(Server, Method, Params, #{session => Session}).

%% "If the server supports the requested protocol version, it MUST respond with the same version."
%% "The server MUST respond with its own capabilities and information."
supported_revision_is_agreed_on(Config) ->
    [begin
         #{status := 200, messages := [#{~"id" := 1, ~"result" := Result}]} =
             initialize(server(Config), Revision, #{}),
         #{~"protocolVersion" := Revision, ~"capabilities" := Capabilities,
           ~"serverInfo" := #{~"name" := ~"test", ~"version" := ~"1.0.0"}} = Result,
         #{~"tools" := #{~"listChanged" := true}, ~"resources" := #{~"listChanged" := true},
           ~"prompts" := #{~"listChanged" := true}, ~"logging" := #{}} = Capabilities,
         false = is_map_key(~"resultType", Result)
     end || Revision <- revisions()].

%% "Otherwise, the server MUST respond with another protocol version it supports. This SHOULD be the
%% latest version supported by the server."
unsupported_revision_gets_the_latest(Config) ->
    [#{status := 200, headers := #{~"mcp-session-id" := _},
       messages := [#{~"result" := #{~"protocolVersion" := ~"2025-11-25"}}]} =
         initialize(server(Config), Revision, #{})
     || Revision <- [~"2026-07-28", ~"2025-11-26", ~"1.0.0", ~"", ~"DRAFT-2026-v1"]].

malformed_initialize_opens_no_session(Config) ->
    [begin
         #{status := 400, headers := Headers,
           messages := [#{~"id" := 1, ~"error" := #{~"code" := -32602, ~"message" := Message}}]} =
             call(server(Config), ~"initialize", Params, without_session()),
         {Message, true} = {Message, string:find(Message, Field) =/= nomatch},
         false = is_map_key(~"mcp-session-id", Headers)
     end || {Params, Field} <-
            [{#{}, ~"protocolVersion"}, {#{protocolVersion => 5}, ~"protocolVersion"},
             {#{protocolVersion => ~"2025-11-25", capabilities => [],
                clientInfo => #{name => ~"me", version => ~"1"}}, ~"capabilities"},
             {#{protocolVersion => ~"2025-11-25", capabilities => #{}}, ~"clientInfo"},
             {#{protocolVersion => ~"2025-11-25", capabilities => #{}, clientInfo => ~"me"},
              ~"clientInfo"}]].

without_session() ->
    #{session => {~"", ~"2025-11-25"}, headers => #{~"mcp-session-id" => none}}.

%% "The initialization phase MUST be the first interaction between client and server."
second_initialize_is_refused(Config) ->
    Server = server(Config),
    {Id, _} = Session = initialize(Server, ~"2025-06-18"),
    #{status := 200, headers := Headers,
      messages := [#{~"id" := 1, ~"error" := #{~"code" := -32600}}]} =
        initialize(Server, ~"2025-11-25", #{~"mcp-session-id" => Id}),
    false = is_map_key(~"mcp-session-id", Headers),
    %% The session is what it was.
    Add = #{name => ~"add", arguments => #{a => 1, b => 2}},
    #{messages := [#{~"result" := #{~"structuredContent" := #{~"sum" := 3}}}]} =
        in_session(Server, Session, ~"tools/call", Add).

%% "Servers that require a session ID SHOULD respond to requests without an MCP-Session-Id header
%% (other than initialization) with HTTP 400 Bad Request."
request_without_session_is_400(Config) ->
    [begin
         #{status := 400, messages := [#{~"id" := 1, ~"error" := Error}]} =
             call(server(Config), Method, Params,
                  (without_session())#{headers => #{~"mcp-session-id" => none,
                                                    ~"mcp-protocol-version" => Version}}),
         #{~"code" := -32600, ~"data" := #{~"refusal" := 1076}} = Error
     end || {Method, Params} <- [{~"tools/list", #{}}, {~"no/such", #{}},
                                 {~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}}},
                                 {~"logging/setLevel", #{level => ~"info"}}],
            Version <- [none | revisions()]].

%% "The server MAY terminate the session at any time, after which it MUST respond to requests
%% containing that session ID with HTTP 404 Not Found."
request_of_an_unknown_session_is_404(Config) ->
    Server = server(Config),
    [gone(Server, {Id, Revision})
     || Id <- [~"no-such-session", ~"", binary:copy(~"x", 1000), ~"../../etc"],
        Revision <- [~"2024-11-05", ~"2025-11-25"]].

gone(Server, Session) ->
    #{status := 404, messages := [#{~"id" := 1, ~"error" := #{~"code" := 1016}}]} =
        in_session(Server, Session, ~"tools/list", #{}),
    #{status := 404, messages := [#{~"id" := 1, ~"error" := #{~"code" := 1016}}]} =
        in_session(Server, Session, ~"initialize", #{}),
    #{status := 404} = call(Server, ~"notifications/initialized", #{},
                            #{session => Session, id => none}),
    #{status := 404} = delete(Server, Session),
    {Socket, {404, _}} = get_stream(Server, Session),
    close(Socket).

%% "Clients that no longer need a particular session SHOULD send an HTTP DELETE to the MCP endpoint
%% with the MCP-Session-Id header, to explicitly terminate the session."
request_after_delete_is_404(Config) ->
    Server = server(Config),
    Session = initialize(Server, ~"2025-11-25"),
    Other = initialize(Server, ~"2025-11-25"),
    #{status := 204, body := <<>>} = delete(Server, Session),
    gone(Server, Session),
    #{status := 200} = in_session(Server, Other, ~"tools/list", #{}).

%% "If the server receives a request with an invalid or unsupported MCP-Protocol-Version, it MUST
%% respond with 400 Bad Request."
invalid_version_header_is_400(Config) ->
    Session = initialize(server(Config), ~"2025-11-25"),
    [#{status := 400, messages := [#{~"id" := 1, ~"error" := #{~"code" := _}}]} =
         call(server(Config), ~"tools/list", #{},
              #{session => Session, headers => #{~"mcp-protocol-version" => Version}})
     || Version <- [~"1999-01-01", ~"v999", ~"", ~"2025-11-25, 2025-11-25"]].

%% "If the server does not receive an MCP-Protocol-Version header, and has no other way to identify
%% the version - for example, by relying on the protocol version negotiated during initialization -"
version_header_may_be_absent(Config) ->
    [begin
         Session = initialize(server(Config), Revision),
         #{status := 200, messages := [#{~"result" := #{}}]} =
             call(server(Config), ~"tools/list", #{},
                  #{session => Session, headers => #{~"mcp-protocol-version" => none}})
     end || Revision <- revisions()].

%% A status other than 200 means to some clients that their session or connection is lost (official
%% Python client 1: any 4xx but 404 ends it). An error is told in the message.
answers_of_a_session_are_200(Config) ->
    Server = server(Config),
    [begin
         Session = initialize(Server, Revision),
         Told = fun(Method, Params) ->
             #{status := 200, messages := [#{~"id" := 1, ~"error" := Error}]} =
                 in_session(Server, Session, Method, Params),
             #{~"code" := Code, ~"message" := _} = Error,
             Code
         end,
         -32601 = Told(~"no/such", #{}),
         -32601 = Told(~"subscriptions/listen", #{}),
         -32602 = Told(~"tools/call", #{name => ~"no such"}),
         -32602 = Told(~"tools/call", #{}),
         -32602 = Told(~"tools/call", #{name => ~"echo", arguments => []}),
         -32602 = Told(~"tools/call", #{name => ~"echo", '_meta' => #{progressToken => 1.5}}),
         -32602 = Told(~"tools/call", #{name => ~"echo", '_meta' => 5}),
         -32602 = Told(~"prompts/get", #{name => ~"no such"}),
         -32602 = Told(~"tools/list", #{cursor => ~"x"}),
         -32602 = Told(~"logging/setLevel", #{level => ~"loud"}),
         -32602 = Told(~"logging/setLevel", #{}),
         -32002 = Told(~"resources/read", #{uri => ~"test://nowhere"}),
         -32602 = Told(~"tools/list", []),
         -32603 = Told(~"tools/call", #{name => ~"crash"})
     end || Revision <- revisions()].

%% The same for the deadline and the heap bound.
bounds_of_a_call_are_200(_) ->
    Server = start(#{call_heap_bytes => 1_000_000}),
    Session = initialize(Server, ~"2025-11-25"),
    [#{status := 200, messages := [#{~"id" := 1, ~"error" := #{~"code" := Code}}]} =
         in_session(Server, Session, ~"tools/call", #{name => Name})
     || {Name, Code} <- [{~"slow", 1069}, {~"hog", 1089}]],
    #{messages := [#{~"result" := _}]} = in_session(Server, Session, ~"tools/list", #{}),
    erlmcp_test_http:stop(Server).

%% "If the input is a JSON-RPC response or notification: if the server accepts the input, the server
%% MUST return HTTP status code 202 Accepted with no body."
notification_is_202(Config) ->
    {Id, _} = Session = initialize(server(Config), ~"2025-11-25"),
    [#{status := 202, body := <<>>} =
         call(server(Config), Method, Params, #{session => Session, id => none})
     || {Method, Params} <- [{~"notifications/initialized", #{}},
                             {~"notifications/roots/list_changed", #{}},
                             {~"notifications/cancelled", #{requestId => 77}},
                             {~"notifications/cancelled", #{requestId => null}},
                             {~"notifications/progress", #{progressToken => 1, progress => 1}},
                             {~"notifications/nobody/knows", #{}}]],
    [#{status := 202, body := <<>>} =
         erlmcp_test_http:post(server(Config), [{~"mcp-session-id", Id},
                                                {~"content-type", ~"application/json"}], Body)
     || Body <- [~'{"jsonrpc":"2.0","id":1,"result":{}}',
                 ~'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no"}}',
                 %% "except in error cases where the ID could not be read"
                 ~'{"jsonrpc":"2.0","error":{"code":-32700,"message":"no"}}',
                 ~'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}']].

%% "The receiver MUST respond promptly with an empty response."
ping_is_answered(Config) ->
    [begin
         Session = initialize(server(Config), Revision),
         #{status := 200, messages := [#{~"jsonrpc" := ~"2.0", ~"id" := 1, ~"result" := Empty}]} =
             in_session(server(Config), Session, ~"ping", #{}),
         0 = map_size(Empty)
     end || Revision <- revisions()],
    %% "The client SHOULD NOT send requests other than pings before the server has responded to the
    %% initialize request."
    #{status := 200, messages := [#{~"result" := _}]} =
        call(server(Config), ~"ping", #{}, without_session()).

%% "Resource not found: -32002."
missing_resource_is_32002(Config) ->
    [begin
         Session = initialize(server(Config), Revision),
         #{messages := [#{~"id" := 1, ~"error" := #{~"code" := -32002, ~"data" := Data}}]} =
             in_session(server(Config), Session, ~"resources/read", #{uri => ~"test://nowhere"}),
         #{~"uri" := ~"test://nowhere", ~"refusal" := 1046} = Data
     end || Revision <- revisions()].

handler_knows_the_client_of_its_session(_) ->
    Context = #{name => ~"context", handler => fun(_, #{client_info := #{~"name" := Name}} = C) ->
        <<Name/binary, " ", (atom_to_binary(maps:get(revision, C)))/binary>>
    end},
    Server = erlmcp_test_http:start(#{tools => [Context]}),
    [begin
         Session = initialize(Server, Revision),
         #{messages := [#{~"result" := #{~"content" := [#{~"text" := Text}]}}]} =
             in_session(Server, Session, ~"tools/call", #{name => ~"context"}),
         Text = <<"suite ", Revision/binary>>
     end || Revision <- revisions()],
    erlmcp_test_http:stop(Server).

%% The processes of the open sessions.
sessions(#{pid := Pid}) ->
    {_, Supervisor, _, _} = lists:keyfind(sessions, 1, supervisor:which_children(Pid)),
    [Session || {_, Session, _, _} <- supervisor:which_children(Supervisor)].

unused_session_expires(_) ->
    Server = start(#{session_idle_ms => 50, sessions => 1}),
    %% A second request of the session could come too late.
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        initialize(Server, ~"2025-11-25", #{}),
    Session = {Id, ~"2025-11-25"},
    [] = sessions(Server),
    %% There is room for another one when it has.
    ok = next_opens(Server),
    gone(Server, Session),
    erlmcp_test_http:stop(Server).

next_opens(Server) ->
    case initialize(Server, ~"2025-11-25", #{}) of
        #{status := 200} -> ok;
        #{status := 429} -> next_opens(Server)
    end.

used_session_does_not_expire(_) ->
    Server = start(#{session_idle_ms => 1500}),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"wait", 7),
    [Pid] = sessions(Server),
    stays(Pid),
    {Stream, {200, _}} = get_stream(Server, Session),
    finish(Call, ~"done"),
    #{messages := [#{~"id" := 7, ~"result" := #{}}]} = response(Socket),
    close(Socket),
    stays(Pid),
    close(Stream),
    _ = ended(Pid),
    gone(Server, Session),
    erlmcp_test_http:stop(Server).

%% One of which nothing runs, either: it is asked again and again, for twice the idle time.
asked_session_does_not_expire(_) ->
    Idle = 400,
    Server = start(#{session_idle_ms => Idle}),
    ok = stays(Server, Idle),
    erlmcp_test_http:stop(Server).

stays(Server, Idle) ->
    Now = now_ms(),
    #{status := 200, headers := #{~"mcp-session-id" := Id}} =
        initialize(Server, ~"2025-11-25", #{}),
    Session = {Id, ~"2025-11-25"},
    #{status := Status} = call(Server, ~"notifications/initialized", #{},
                               #{id => none, session => Session}),
    Asked = case {Status, now_ms()} of
        {202, _} -> asked(Server, Session, Idle, Now + 2 * Idle, Now);
        {404, Later} when Later - Now >= Idle -> late
    end,
    case Asked of
        ok -> ok;
        %% Nobody asked for so long.
        late -> stays(Server, Idle)
    end.

asked(Server, Session, Idle, Until, Before) ->
    Begin = now_ms(),
    #{status := Status} = in_session(Server, Session, ~"tools/list", #{}),
    case {Status, now_ms()} of
        {200, Now} when Now >= Until -> ok;
        {200, _} -> asked(Server, Session, Idle, Until, Begin);
        {404, Now} when Now - Before >= Idle -> late
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).

%% For longer than the idle time.
stays(Pid) ->
    Monitor = monitor(process, Pid),
    receive
        {'DOWN', Monitor, process, _, Reason} -> error(Reason)
    after 2500 ->
        true = demonitor(Monitor, [flush])
    end.

%% Bounded refusal: as many sessions as the limit, and the next one when one has ended.
sessions_are_bounded(_) ->
    Server = start(#{sessions => 2}),
    First = initialize(Server, ~"2025-11-25"),
    Second = initialize(Server, ~"2025-06-18"),
    #{status := 429, headers := #{~"retry-after" := ~"1"} = Headers,
      messages := [#{~"error" := #{~"code" := 1060, ~"data" := Data}}]} =
        initialize(Server, ~"2025-11-25", #{}),
    #{~"limit" := 2, ~"observed" := 3, ~"retryAfterMs" := 1000} = Data,
    false = is_map_key(~"mcp-session-id", Headers),
    [#{status := 200} = in_session(Server, Open, ~"tools/list", #{}) || Open <- [First, Second]],
    %% Nothing else is disturbed.
    #{status := 200} = call(Server, ~"tools/list", #{}),
    #{status := 204} = delete(Server, First),
    _ = initialize(Server, ~"2025-11-25"),
    erlmcp_test_http:stop(Server).

%% "Error responses MUST include the same ID as the request they correspond to."
refused_session_is_told_its_id(_) ->
    Server = start(#{sessions => 1}),
    _ = initialize(Server, ~"2025-11-25"),
    #{status := 429, messages := [#{~"id" := 1, ~"error" := #{~"code" := 1060}}]} =
        initialize(Server, ~"2025-11-25", #{}),
    erlmcp_test_http:stop(Server).

%% Bounded refusal: a session runs as many calls at once as the limit says, on whatever connections.
calls_of_a_session_are_bounded(_) ->
    Server = start(#{calls_per_connection => 2}),
    Session = initialize(Server, ~"2025-11-25"),
    {First, One} = start_call(Server, Session, ~"wait", 1),
    {Second, Two} = start_call(Server, Session, ~"wait", 2),
    #{status := 200, messages := [#{~"id" := 3, ~"error" := #{~"code" := 1060, ~"data" := Data}}]} =
        call(Server, ~"tools/call", #{name => ~"progress"}, #{session => Session, id => 3}),
    #{~"limit" := 2, ~"observed" := 3, ~"retryAfterMs" := _} = Data,
    %% What is no call, and who is another, is not disturbed.
    #{messages := [#{~"result" := _}]} = in_session(Server, Session, ~"tools/list", #{}),
    Other = initialize(Server, ~"2025-11-25"),
    #{messages := [#{~"result" := _}]} =
        in_session(Server, Other, ~"tools/call", #{name => ~"progress"}),
    #{messages := [#{~"result" := _}]} = call(Server, ~"tools/call", #{name => ~"progress"}),
    finish(One, ~"done"),
    #{messages := [#{~"id" := 1, ~"result" := _}]} = response(First),
    #{messages := [#{~"result" := _}]} =
        in_session(Server, Session, ~"tools/call", #{name => ~"progress"}),
    finish(Two, ~"done"),
    #{messages := [#{~"id" := 2, ~"result" := _}]} = response(Second),
    [close(Socket) || Socket <- [First, Second]],
    erlmcp_test_http:stop(Server).

%% However a call ends, its place is free when its client is told so.
ended_calls_make_room(_) ->
    Server = start(#{calls_per_connection => 1, call_heap_bytes => 1_000_000}),
    Session = initialize(Server, ~"2025-11-25"),
    Code = fun(Tool) ->
        case in_session(Server, Session, ~"tools/call", #{name => Tool}) of
            #{messages := [#{~"error" := #{~"code" := Refused}}]} -> Refused;
            #{messages := [#{~"result" := _}]} -> result
        end
    end,
    [{Tool, Expected} = {Tool, Code(Tool)}
     || _ <- lists:seq(1, 50), {Tool, Expected} <- [{~"progress", result}, {~"crash", -32603},
                                                    {~"hog", 1089}, {~"no such", -32602}]],
    1069 = Code(~"slow"),
    {_, _} = erlmcp_test_http:running(),
    {Socket, Call} = start_call(Server, Session, ~"wait", 7),
    #{status := 202} = call(Server, ~"notifications/cancelled", #{requestId => 7},
                            #{session => Session, id => none}),
    _ = ended(Call),
    #{messages := []} = response(Socket),
    close(Socket),
    result = Code(~"progress"),
    erlmcp_test_http:stop(Server).

%% "The client MUST include an Accept header, listing both application/json and text/event-stream as
%% supported content types." One that lists only the first gets no stream, even for a call that ends
%% without an answer.
a_cancelled_call_ends_as_its_client_reads(_) ->
    Server = start(#{}),
    Session = initialize(Server, ~"2025-11-25"),
    Cancelled = fun(Accept) ->
        {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"wait"},
                                                   #{session => Session, id => 7,
                                                     headers => #{~"accept" => Accept}}),
        Socket = erlmcp_test_http:connect(Server),
        ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
        {Call, _} = erlmcp_test_http:running(),
        #{status := 202} = call(Server, ~"notifications/cancelled", #{requestId => 7},
                                #{session => Session, id => none}),
        #{status := Status, headers := Answered} = response(Socket),
        _ = ended(Call),
        close(Socket),
        {Status, maps:get(~"content-type", Answered, none)}
    end,
    {202, none} = Cancelled(~"application/json"),
    [{200, ~"text/event-stream"} = Cancelled(Accept)
     || Accept <- [~"application/json, text/event-stream", ~"text/event-stream"]],
    erlmcp_test_http:stop(Server).

%% A cancellation that meets the answer: the call's place is given back, and no other one. The
%% request ends once.
cancelled_answers_make_room_once(_) ->
    #{pid := Counted} = Server = start(#{calls_per_connection => 1}),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"wait", 7),
    Pid = erlmcp_test_http:session_process(),
    ok = sys:suspend(Pid),
    #{status := 202} = call(Server, ~"notifications/cancelled", #{requestId => 7},
                            #{session => Session, id => none}),
    finish(Call, ~"done"),
    #{messages := [#{~"id" := 7, ~"result" := _}]} = response(Socket),
    _ = ended(Call),
    ok = sys:resume(Pid),
    close(Socket),
    _ = sys:get_state(Pid),
    #{~"tools/call" := #{count := 1, cancelled := 0}} = maps:get(methods, erlmcp:metrics(Counted)),
    one_place(Server, Session, Pid).

%% The same of a deadline that passed while the call answered.
late_answers_make_room_once(_) ->
    Server = start(#{calls_per_connection => 1}),
    Session = initialize(Server, ~"2025-11-25"),
    {Socket, Call} = start_call(Server, Session, ~"wait", 7),
    Pid = erlmcp_test_http:session_process(),
    State = sys:get_state(Pid),
    [#{Call := Marks}] = [Of || #{Call := _} = Of <- tuple_to_list(State)],
    ok = sys:suspend(Pid),
    Pid ! {{erlmcp_call, Call, Marks}, {deadline, Call, 60_000}},
    finish(Call, ~"done"),
    #{messages := [#{~"id" := 7, ~"result" := _}]} = response(Socket),
    _ = ended(Call),
    ok = sys:resume(Pid),
    close(Socket),
    one_place(Server, Session, Pid).

%% A cancellation may come too late, and while another call begins. A later call with the same id
%% goes on.
a_cancellation_ends_no_later_call(_) ->
    #{pid := Pid} = Server = start(#{}),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    {Id, _} = Session = initialize(Server, ~"2025-11-25"),
    First = start_call(Server, Session, ~"wait", 1),
    %% A call that begins is counted first.
    ok = erlmcp_session_table:count_calls(Id, 1, Instance),
    #{status := 202} = call(Server, ~"notifications/cancelled", #{requestId => 7},
                            #{session => Session, id => none}),
    Others = [start_call(Server, Session, ~"wait", Other) || Other <- [2, 7]],
    [begin
         finish(Call, ~"done"),
         #{messages := [#{~"result" := _}]} = response(Socket),
         close(Socket)
     end || {Socket, Call} <- [First | Others]],
    erlmcp_test_http:stop(Server).

%% Two requests subscribe to one resource, and the subscription of one is not stored.
a_refused_subscription_ends_no_other(Config) ->
    #{pid := Pid} = Server = server(Config),
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    {Id, _} = initialize(Server, ~"2025-11-25"),
    {ok, Process} = erlmcp_session:process(Id, Instance),
    [Subscribe, Undo, Unsubscribe] =
        [fun() -> erlmcp_session:Change(Process, ~"test://text") end
         || Change <- [subscribe, undo_subscribe, unsubscribe]],
    [{ok, true}, {ok, false}] = [Subscribe() || _ <- [1, 2]],
    ok = Undo(),
    {ok, false} = Subscribe(),
    ok = Unsubscribe(),
    {ok, true} = Subscribe(),
    ok = Undo(),
    {ok, true} = Subscribe().

one_place(Server, Session, Pid) ->
    %% It has heard of all before this.
    _ = sys:get_state(Pid),
    {Socket, Call} = start_call(Server, Session, ~"wait", 8),
    #{messages := [#{~"error" := #{~"code" := 1060}}]} =
        call(Server, ~"tools/call", #{name => ~"progress"}, #{session => Session, id => 9}),
    finish(Call, ~"done"),
    #{messages := [#{~"id" := 8, ~"result" := _}]} = response(Socket),
    close(Socket),
    erlmcp_test_http:stop(Server).
