-module(spec_2024_11_05_http_sse_SUITE).
-moduledoc """
Specification 2024-11-05, "Transports / HTTP with SSE", over HTTP/1.1 and HTTP/2. What a client and
a server say to each other is in the suites of `spec/features`, which run over HTTP+SSE too; bounds
are in `m:http_sse_bounds_SUITE`, and what the endpoints are asked in `m:http_sse_endpoints_SUITE`.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([first_event_names_the_endpoint/1, messages_come_as_message_events/1,
         another_initialize_opens_the_session_anew/1, every_revision_is_agreed_on/1,
         stateless_requests_are_answered/1,
         messages_are_taken_in_order/1, reports_come_before_the_answer/1, large_messages_pass/1,
         sessions_hear_of_changes/1, sessions_are_told_apart/1, cancelled_ends_the_call/1,
         end_of_the_stream_ends_the_session/1, stop_ends_the_stream/1, stop_says_what_waits/1,
         death_of_the_session_ends_the_stream/1, quiet_streams_are_kept_alive/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_sse_server, [client/1, session/1, call/2, call/3, text/1, code/1, sessions/1,
                                 count/1, settled/2, stream/1]).
-import(erlmcp_test_sse, [open/1, close/1, event/1, message/1, post/2, post/3, send/2, ask/4,
                          initialize/2, is_quiet/1]).
-import(erlmcp_test_line, [request/3, stateless/3, notification/2]).
-import(erlmcp_test_http, [running/0, finish/2, ended/1]).

-define(TIMEOUT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, http2}].

groups() ->
    [{Protocol, erlmcp_test_suite:cases(?MODULE)} || Protocol <- [http, http2]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Protocol, Config) ->
    [{protocol, Protocol} | Config].

end_per_group(_, _) ->
    ok.

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_sse_server:start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

%% "When a client connects, the server MUST send an endpoint event containing a URI for the client
%% to use for sending messages." It is the session's, and nobody can guess it.
first_event_names_the_endpoint(Config) ->
    Clients = [client(Config) || _ <- [1, 2, 3]],
    Ids = [begin
               <<"/messages?sessionId=", Id/binary>> = Endpoint,
               Id
           end || #{endpoint := Endpoint} <- Clients],
    3 = length(lists:usort(Ids)),
    [true = byte_size(base64:decode(Id, #{mode => urlsafe})) * 8 >= 128 || Id <- Ids],
    [#{~"result" := #{}} = ask(Client, 1, ~"ping", #{}) || Client <- Clients].

%% "All subsequent client messages MUST be sent as HTTP POST requests to this endpoint." "Server
%% messages are sent as SSE message events, with the message content encoded as JSON in the event
%% data."
messages_come_as_message_events(Config) ->
    Client = client(Config),
    {202, Headers, <<>>} = post(Client, json:encode(request(7, ~"ping", #{}))),
    true = is_map(Headers),
    {~"message", Data} = event(Client),
    #{~"jsonrpc" := ~"2.0", ~"id" := 7, ~"result" := #{}} = json:decode(Data),
    _ = initialize(Client, ~"2024-11-05"),
    ok = send(Client, notification(~"notifications/unknown", #{})),
    ok = send(Client, #{jsonrpc => ~"2.0", id => 12, result => #{}}),
    %% A client that could not read an id says so without one.
    Unread = #{jsonrpc => ~"2.0", error => #{code => -32700, message => ~"what?"}},
    [ok = send(Client, Message) || Message <- [Unread, Unread#{id => null}]],
    Echo = #{name => ~"echo", arguments => #{text => ~"it"}},
    ~"it" = text(ask(Client, ~"8", ~"tools/call", Echo)),
    -32602 = code(ask(Client, 9, ~"tools/call", #{name => ~"no such"})),
    -32601 = code(ask(Client, 10, ~"no/such", #{})),
    true = is_quiet(Client).

%% As on lines: the stream is the session's, and another `initialize` opens a new one.
another_initialize_opens_the_session_anew(Config) ->
    Client = session(Config),
    ok = send(Client, call(1, ~"wait")),
    {Call, _} = running(),
    #{~"protocolVersion" := ~"2025-06-18"} = initialize(Client, ~"2025-06-18"),
    _ = ended(Call),
    true = is_quiet(Client),
    ~"again" = text(ask(Client, 1, ~"tools/call", #{name => ~"echo",
                                                    arguments => #{text => ~"again"}})).

%% Lifecycle: "If the server supports the requested protocol version, it MUST respond with the same
%% version. Otherwise, the server MUST respond with another protocol version it supports."
every_revision_is_agreed_on(Config) ->
    [begin
         Client = client(Config),
         #{~"result" := #{~"protocolVersion" := Agreed}} =
             ask(Client, 1, ~"initialize", #{protocolVersion => Asked, capabilities => #{},
                                             clientInfo => #{name => ~"a", version => ~"1"}}),
         #{~"result" := #{~"tools" := [_ | _]}} = ask(Client, 2, ~"tools/list", #{}),
         close(Client)
     end || {Asked, Agreed} <- [{Same, Same} || Same <- [~"2024-11-05", ~"2025-03-26",
                                                         ~"2025-06-18", ~"2025-11-25"]]
                ++ [{~"2026-07-28", ~"2025-11-25"}, {~"1", ~"2025-11-25"}]].

%% 2026-07-28, Versioning: a request says what it is of, and stands alone; "the protocol is
%% transport-agnostic". Its headers are those of Streamable HTTP, which this is not.
stateless_requests_are_answered(Config) ->
    Client = client(Config),
    send(Client, stateless(1, ~"server/discover", #{})),
    #{~"id" := 1, ~"result" := #{~"supportedVersions" := [~"2026-07-28"]}} = message(Client),
    send(Client, stateless(2, ~"tools/call", #{~"name" => ~"progress",
                                               ~"_meta" => #{~"progressToken" => ~"t"}})),
    [1, 2, 3] = [maps:get(~"progress", Params)
                 || _ <- [1, 2, 3],
                    #{~"method" := ~"notifications/progress", ~"params" := Params}
                        <- [message(Client)]],
    #{~"id" := 2, ~"result" := #{~"resultType" := ~"complete"}} = message(Client),
    %% And without a session there is none.
    -32600 = code(ask(Client, 3, ~"tools/list", #{})),
    _ = initialize(Client, ~"2024-11-05"),
    #{~"result" := #{}} = ask(Client, 4, ~"tools/list", #{}).

%% What was accepted is before what is sent after that, also on another connection.
messages_are_taken_in_order(Config) ->
    Server = server(Config),
    [begin
         #{endpoint := Endpoint} = Client = client(Config),
         Other = client(Config),
         _ = initialize(Client, ~"2025-06-18"),
         ok = send(Client, call(1, ~"wait")),
         {Call, _} = running(),
         {202, _, <<>>} = post(Other, Endpoint, json:encode(
             notification(~"notifications/cancelled", #{requestId => 1}))),
         _ = ended(Call),
         true = is_quiet(Client),
         [close(Each) || Each <- [Client, Other]]
     end || _ <- lists:seq(1, 20)],
    settled(Server, 0).

%% Progress, Logging: they relate to a request that is being answered.
reports_come_before_the_answer(Config) ->
    Client = session(Config),
    ok = send(Client, request(1, ~"tools/call", #{name => ~"stream",
                                                  '_meta' => #{progressToken => ~"t"}})),
    {Call, _} = running(),
    #{~"method" := ~"notifications/progress",
      ~"params" := #{~"progressToken" := ~"t", ~"progress" := 1}} = message(Client),
    #{~"method" := ~"notifications/message", ~"params" := #{~"level" := ~"error"}} =
        message(Client),
    ~"beside" = text(ask(Client, 2, ~"tools/call",
                         #{name => ~"echo", arguments => #{text => ~"beside"}})),
    finish(Call, ~"over"),
    #{~"id" := 1} = Answer = message(Client),
    ~"over" = text(Answer).

%% Larger than a frame, than a piece, and than the client's windows.
large_messages_pass(Config) ->
    Client = session(Config),
    Text = binary:copy(~"0123456789abcdef", 1 bsl 16),
    ~"" = text(ask(Client, 0, ~"tools/call", #{name => ~"echo", arguments => #{text => ~""}})),
    [ok = send(Client, call(Id, ~"echo", #{text => Text})) || Id <- lists:seq(1, 5)],
    [Text = text(message(Client)) || _ <- lists:seq(1, 5)],
    true = is_quiet(Client).

%% "When the list of available tools changes, servers that declared the listChanged capability
%% SHOULD send a notification": to those that are there, from their initialize on.
sessions_hear_of_changes(Config) ->
    #{pid := Pid} = server(Config),
    Client = client(Config),
    New = #{name => ~"new", handler => fun(_, _) -> ~"new" end},
    ok = erlmcp:add(Pid, tool, New),
    true = is_quiet(Client),
    _ = initialize(Client, ~"2024-11-05"),
    ok = erlmcp:remove(Pid, tool, ~"new"),
    #{~"method" := ~"notifications/tools/list_changed"} = Changed = message(Client),
    false = is_map_key(~"id", Changed),
    true = is_quiet(Client).

%% An endpoint is of one stream, and the answers come on it.
sessions_are_told_apart(Config) ->
    #{endpoint := Endpoint} = First = session(Config),
    Second = session(Config),
    {202, _, <<>>} = post(Second, Endpoint, json:encode(request(1, ~"ping", #{}))),
    #{~"id" := 1} = message(First),
    [true = is_quiet(Client) || Client <- [First, Second]].

cancelled_ends_the_call(Config) ->
    Client = session(Config),
    ok = send(Client, call(1, ~"wait")),
    {One, _} = running(),
    ok = send(Client, call(~"1", ~"wait")),
    {Two, _} = running(),
    ok = send(Client, notification(~"notifications/cancelled", #{requestId => 1})),
    _ = ended(One),
    true = is_quiet(Client),
    finish(Two, ~"two"),
    #{~"id" := ~"1"} = message(Client).

%% "Close SSE connection" ends the exchange: nobody is there who could be told anything. On HTTP/2
%% it is the stream that is closed, and the connection that lives on.
end_of_the_stream_ends_the_session(Config) ->
    Server = server(Config),
    #{reading := Reading, stream := Stream} = Client = session(Config),
    Other = session(Config),
    ok = send(Client, call(1, ~"wait")),
    {Call, _} = running(),
    ok = send(Client, stateless(2, ~"subscriptions/listen",
                                #{notifications => #{toolsListChanged => true}})),
    #{~"method" := ~"notifications/subscriptions/acknowledged"} = message(Client),
    case proplists:get_value(protocol, Config) of
        http -> ok = gun:close(Reading);
        http2 -> ok = gun:cancel(Reading, Stream)
    end,
    _ = ended(Call),
    settled(Server, 1),
    {404, _, Refused} = post(Client, json:encode(request(3, ~"ping", #{}))),
    #{~"error" := #{~"code" := 1016}} = json:decode(Refused),
    [_] = sessions(Server),
    %% One row, for its three lists.
    [_] = erlmcp_test_client:subscribers(Server),
    true = is_quiet(Other).

%% A stream that ends as it should was closed; one that does not was lost. What was to be said is
%% said before.
stop_ends_the_stream(Config) ->
    #{pid := Pid} = server(Config),
    Client = session(Config),
    Idle = client(Config),
    ok = send(Client, call(1, ~"wait")),
    {Call, _} = running(),
    ok = send(Client, stateless(~"s", ~"subscriptions/listen",
                                #{notifications => #{toolsListChanged => true}})),
    #{~"method" := ~"notifications/subscriptions/acknowledged"} = message(Client),
    ok = erlmcp:stop_server(Pid),
    _ = ended(Call),
    #{~"method" := ~"notifications/cancelled"} = message(Client),
    #{~"id" := ~"s", ~"result" := #{}} = message(Client),
    [fin = message(Each) || Each <- [Client, Idle]].

%% Also to a client that has not read for a while.
stop_says_what_waits(Config) ->
    #{pid := Pid} = Server = server(Config),
    #{endpoint := Endpoint} = Client = client(Config),
    [Session] = sessions(Server),
    Stream = stream(Session),
    ok = sys:suspend(Stream),
    Poster = open(Server),
    [{202, _, <<>>} = post(Poster, Endpoint, json:encode(request(Id, ~"ping", #{})))
     || Id <- [1, 2, 3]],
    _ = spawn(fun() ->
        _ = ended(Session),
        ok = sys:resume(Stream)
    end),
    ok = erlmcp:stop_server(Pid),
    [1, 2, 3] = [maps:get(~"id", message(Client)) || _ <- [1, 2, 3]],
    fin = message(Client).

%% It leaves nothing behind, and its neighbour alone.
death_of_the_session_ends_the_stream(Config) ->
    Server = server(Config),
    Other = session(Config),
    [Spared] = sessions(Server),
    Client = session(Config),
    ok = send(Client, call(1, ~"wait")),
    {Call, _} = running(),
    [Killed] = sessions(Server) -- [Spared],
    exit(Killed, kill),
    fin = message(Client),
    _ = ended(Call),
    1 = count(Server),
    {404, _, _} = post(Client, json:encode(request(3, ~"ping", #{}))),
    true = is_quiet(Other).

%% WHATWG HTML, Server-sent events: "authors can include a comment line (one starting with a ':'
%% character) every 15 seconds or so."
quiet_streams_are_kept_alive(Config) ->
    #{reading := Reading, stream := Stream} = Client = client(Config),
    [Session] = sessions(server(Config)),
    Session ! keep_alive,
    {data, nofin, ~":\n\n"} = gun:await(Reading, Stream, ?TIMEOUT),
    true = is_quiet(Client).
