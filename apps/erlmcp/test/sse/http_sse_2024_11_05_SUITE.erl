-module(http_sse_2024_11_05_SUITE).
-moduledoc """
Specification 2024-11-05, "Transports / HTTP with SSE", over HTTP/1.1 and HTTP/2. What a client and
a server say to each other is in the suites of `rounds`, which run over HTTP+SSE too.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([first_event_names_the_endpoint/1, messages_come_as_message_events/1,
         every_revision_is_agreed_on/1, stateless_requests_are_answered/1,
         messages_are_taken_in_order/1, reports_come_before_the_answer/1,
         large_messages_pass/1, sessions_hear_of_changes/1, sessions_are_told_apart/1,
         cancelled_ends_the_call/1, end_of_the_stream_ends_the_session/1,
         stop_ends_the_stream/1, stop_says_what_waits/1, death_of_the_session_ends_the_stream/1,
         quiet_streams_are_kept_alive/1]).
-export([sessions_are_bounded/1, calls_are_bounded/1, untaken_messages_are_bounded/1,
         streams_without_a_place_are_refused/1, untaken_messages_are_waited_for_in_time/1,
         untaken_messages_are_told_of_the_end/1,
         unread_bytes_are_bounded/1, slow_readers_are_cut/1, stalled_readers_are_cut/1,
         reading_late_is_not_slow/1]).
-export([origin_and_host_are_checked/1, other_methods_are_405/1, stream_must_be_accepted/1,
         unknown_sessions_are_404/1, wrong_messages_are_refused_at_once/1, bodies_are_bounded/1,
         other_endpoint_is_served_beside/1, kinds_of_sessions_are_not_mixed/1,
         paths_are_the_options/1, without_the_option_there_is_nothing/1,
         sessions_belong_to_their_principal/1, options_are_checked/1]).
-export([log/2]).

-import(erlmcp_test_sse, [open/1, open/2, close/1, get/4, event/1, message/1, post/2, post/3,
                          post/4, send/2, ask/4, initialize/2, is_quiet/1]).
-import(erlmcp_test_line, [request/3, stateless/3, notification/2]).
-import(erlmcp_test_http, [running/0, finish/2, ended/1]).

-define(TIMEOUT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, http2}, {group, endpoints}].

groups() ->
    Endpoints = [origin_and_host_are_checked, other_methods_are_405, stream_must_be_accepted,
                 unknown_sessions_are_404, wrong_messages_are_refused_at_once, bodies_are_bounded,
                 other_endpoint_is_served_beside, kinds_of_sessions_are_not_mixed,
                 paths_are_the_options, without_the_option_there_is_nothing,
                 sessions_belong_to_their_principal, options_are_checked],
    Streams = [Case || {Case, 1} <- ?MODULE:module_info(exports),
                       not lists:member(Case, [init_per_suite, end_per_suite, module_info
                                               | Endpoints])],
    [{http, Streams}, {http2, Streams}, {endpoints, Endpoints}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(http2, Config) -> [{protocol, http2} | Config];
init_per_group(_, Config) -> [{protocol, http} | Config].

end_per_group(_, _) ->
    ok.

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    _ = logger:remove_handler(?MODULE),
    erlmcp_test_http:stop(server(Config)).

start(Limits) ->
    start(Limits, #{sse => #{}}).

start(Limits, Listener) ->
    #{tools := Tools} = Definitions = erlmcp_test_http:definitions(self()),
    Test = self(),
    Flood = #{name => ~"flood", handler => fun(#{~"count" := Count} = Arguments, Context) ->
        Test ! {running, self(), Arguments},
        Text = binary:copy(~"x", 10_000),
        [ok = erlmcp:log(Context, error, Text) || _ <- lists:seq(1, Count)],
        receive never -> ok end
    end},
    erlmcp_test_http:start(Definitions#{tools := [Flood | Tools], limits => Limits,
                                        listen => [{http, Listener}]}).

server(Config) ->
    proplists:get_value(server, Config).

client(Config) ->
    client(server(Config), Config).

client(Server, Config) ->
    open(Server, #{protocol => proplists:get_value(protocol, Config)}).

session(Config) ->
    session(server(Config), Config).

session(Server, Config) ->
    Client = client(Server, Config),
    _ = initialize(Client, ~"2024-11-05"),
    Client.

call(Id, Tool) ->
    call(Id, Tool, #{}).

call(Id, Tool, Arguments) ->
    request(Id, ~"tools/call", #{name => Tool, arguments => Arguments}).

text(#{~"result" := #{~"content" := [#{~"text" := Text}]}}) -> Text.

code(#{~"error" := #{~"code" := Code}}) -> Code.

instance(#{pid := Pid}) ->
    {ok, _, Instance} = erlmcp_registry:whereis(Pid),
    Instance.

%% The processes of the open sessions.
sessions(Server) ->
    Supervisor = erlmcp_instance:supervisor(sse_sessions, instance(Server)),
    [Pid || {_, Pid, _, _} <- supervisor:which_children(Supervisor)].

count(Server) ->
    erlmcp_instance:count_sessions(instance(Server)).

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
    Echo = #{name => ~"echo", arguments => #{text => ~"it"}},
    ~"it" = text(ask(Client, ~"8", ~"tools/call", Echo)),
    -32602 = code(ask(Client, 9, ~"tools/call", #{name => ~"no such"})),
    -32601 = code(ask(Client, 10, ~"no/such", #{})),
    -32600 = code(ask(Client, 11, ~"initialize", #{protocolVersion => ~"2024-11-05"})),
    true = is_quiet(Client).

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

settled(Server, Count) ->
    settled(Server, Count, 500).

%% Nothing tells when a server has seen that its client is gone, so it is looked up again.
settled(Server, Count, Tries) when Tries > 0 ->
    case count(Server) of
        Count -> ok;
        _ -> receive after 10 -> settled(Server, Count, Tries - 1) end
    end.

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
    [_] = rounds_client:subscribers(Server),
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

%% The process that writes what a session says.
stream(Session) ->
    {Pid, _} = element(4, sys:get_state(Session)),
    Pid.

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

%% Bounded refusal: sessions of both kinds count.
sessions_are_bounded(Config) ->
    Server = start(#{sessions => 2}),
    Client = session(Server, Config),
    {_, _} = Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    {429, #{~"retry-after" := _}, Refused} = get(Server, ~"GET", ~"/sse", []),
    #{~"error" := #{~"code" := 1060, ~"data" := #{~"limit" := 2, ~"observed" := 3}}} =
        json:decode(Refused),
    #{status := 429} = erlmcp_test_http:initialize(Server, ~"2025-11-25", #{}),
    true = is_quiet(Client),
    #{status := 204} = erlmcp_test_http:delete(Server, Session),
    Again = session(Server, Config),
    close(Client),
    settled(Server, 1),
    true = is_quiet(Again),
    erlmcp_test_http:stop(Server).

%% A listener is there a moment before the sessions, and a moment after them; nothing stays taken.
streams_without_a_place_are_refused(Config) ->
    #{pid := Pid} = Server = server(Config),
    ok = supervisor:terminate_child(Pid, sse_sessions),
    {503, _, Refused} = get(Server, ~"GET", ~"/sse", []),
    1077 = code(json:decode(Refused)),
    0 = count(Server),
    {ok, _} = supervisor:restart_child(Pid, sse_sessions),
    true = is_quiet(client(Config)).

%% Bounded refusal: on the stream, where the caller waits for its answer.
calls_are_bounded(Config) ->
    Server = start(#{calls_per_connection => 3}),
    Client = session(Server, Config),
    Calls = [begin
                 ok = send(Client, call(Id, ~"wait")),
                 element(1, running())
             end || Id <- [1, 2, 3]],
    #{~"id" := 4, ~"error" := #{~"code" := 1060, ~"data" := Data}} =
        ask(Client, 4, ~"tools/call", #{name => ~"echo", arguments => #{text => ~""}}),
    #{~"limit" := 3, ~"observed" := 4, ~"retryAfterMs" := _} = Data,
    Other = session(Server, Config),
    ~"" = text(ask(Other, 1, ~"tools/call", #{name => ~"echo", arguments => #{text => ~""}})),
    [finish(Call, ~"done") || Call <- Calls],
    [1, 2, 3] = lists:sort([maps:get(~"id", message(Client)) || _ <- Calls]),
    ~"" = text(ask(Client, 5, ~"tools/call", #{name => ~"echo", arguments => #{text => ~""}})),
    erlmcp_test_http:stop(Server).

%% Bounded refusal: a session that is slow to take its messages has no queue without an end.
untaken_messages_are_bounded(Config) ->
    Server = start(#{calls_per_connection => 3}),
    #{endpoint := Endpoint} = Client = client(Server, Config),
    [Session] = sessions(Server),
    ok = sys:suspend(Session),
    Posts = [begin
                 #{posting := Connection} = open_post(Server),
                 Body = json:encode(request(Id, ~"ping", #{})),
                 {Connection, gun:post(Connection, Endpoint, json_headers(), Body)}
             end || Id <- [1, 2, 3]],
    ok = untaken(3, Endpoint, Server, 500),
    #{posting := Fourth} = open_post(Server),
    Refused = gun:post(Fourth, Endpoint, json_headers(), json:encode(request(4, ~"ping", #{}))),
    {response, nofin, 429, Headers} = gun:await(Fourth, Refused, ?TIMEOUT),
    {_, _} = lists:keyfind(~"retry-after", 1, Headers),
    ok = sys:resume(Session),
    [{response, fin, 202, _} = gun:await(Connection, Post, ?TIMEOUT)
     || {Connection, Post} <- Posts],
    [1, 2, 3] = lists:sort([maps:get(~"id", message(Client)) || _ <- Posts]),
    true = is_quiet(Client),
    erlmcp_test_http:stop(Server).

%% A connection of its own for each, since one waits for the other in HTTP/1.1.
open_post(#{port := Port}) ->
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http], retry => 0}),
    {ok, http} = gun:await_up(Connection, ?TIMEOUT),
    #{posting => Connection}.

json_headers() ->
    [{~"content-type", ~"application/json"}].

untaken(Count, <<"/messages?sessionId=", Id/binary>> = Endpoint, Server, Tries) when Tries > 0 ->
    #{sessions := Sessions} = instance(Server),
    case ets:lookup_element(Sessions, {sse, Id}, 5) of
        Count -> ok;
        _ -> receive after 10 -> untaken(Count, Endpoint, Server, Tries - 1) end
    end.

untaken_messages_are_waited_for_in_time(Config) ->
    Server = start(#{receive_timeout_ms => 200}),
    Client = client(Server, Config),
    [Session] = sessions(Server),
    ok = sys:suspend(Session),
    {503, _, Refused} = post(Client, json:encode(request(1, ~"ping", #{}))),
    #{~"error" := #{~"code" := 1069}} = json:decode(Refused),
    ok = sys:resume(Session),
    #{~"id" := 1} = message(Client),
    erlmcp_test_http:stop(Server).

%% Accepted is only what the session has.
untaken_messages_are_told_of_the_end(Config) ->
    Server = server(Config),
    #{endpoint := Endpoint, reading := Reading, stream := Stream} = client(Config),
    [Session] = sessions(Server),
    ok = sys:suspend(Session),
    #{posting := Connection} = open_post(Server),
    Post = gun:post(Connection, Endpoint, json_headers(), json:encode(request(1, ~"ping", #{}))),
    ok = untaken(1, Endpoint, Server, 500),
    %% The end comes to it before the message, though after it.
    ok = gun:cancel(Reading, Stream),
    gun:close(Reading),
    Monitor = monitor(process, Session),
    exit(Session, shutdown),
    ok = sys:terminate(Session, normal),
    receive {'DOWN', Monitor, process, _, _} -> ok after ?TIMEOUT -> error(alive) end,
    {response, nofin, 404, _} = gun:await(Connection, Post, ?TIMEOUT).

%% Bounded refusal: what waits for a stream that does not write may have so many bytes; a message
%% more, and the session ends.
unread_bytes_are_bounded(Config) ->
    Size = byte_size(~'event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\n\n'),
    Ping = fun(Id) -> request(Id, ~"ping", #{}) end,
    [begin
         Server = start(#{unread_bytes => 3 * Size}),
         %% The POSTs come on connections of their own, for the stream's does nothing.
         #{endpoint := Endpoint} = Client = client(Server, Config),
         [Session] = sessions(Server),
         Stream = stream(Session),
         ok = sys:suspend(Stream),
         Poster = open(Server),
         %% The first is with the stream, the others wait.
         [{202, _, <<>>} = post(Poster, Endpoint, json:encode(Ping(Id)))
          || Id <- lists:seq(1, 4)],
         Monitor = monitor(process, Session),
         case Over of
             false ->
                 ok = sys:resume(Stream),
                 [1, 2, 3, 4] = [maps:get(~"id", message(Client)) || _ <- [1, 2, 3, 4]],
                 true = is_quiet(Client);
             true ->
                 {202, _, <<>>} = post(Poster, Endpoint, json:encode(Ping(5))),
                 receive
                     {'DOWN', Monitor, process, _, {shutdown, slow_consumer}} -> ok
                 after ?TIMEOUT ->
                     error(not_cut)
                 end,
                 ok = sys:resume(Stream),
                 1 = maps:get(~"id", message(Client)),
                 cut = erlmcp_test_sse:over(Client)
         end,
         true = is_quiet(Poster),
         erlmcp_test_http:stop(Server)
     end || Over <- [false, true]].

%% "Nothing waits without a bound": a client that does not read, and a call that says much.
slow_readers_are_cut(Config) ->
    cut(start(#{unread_bytes => 100_000}), 100_000, 100_000, Config).

%% Milliseconds that a client may take to read what it was sent.
stalled_readers_are_cut(Config) ->
    cut(start(#{send_timeout_ms => 300, unread_bytes => 1 bsl 40}), 2000, 300, Config).

cut(Server, Count, Limit, Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    Other = session(Server, Config),
    Protocol = proplists:get_value(protocol, Config),
    Deaf = deaf(Protocol, Server),
    ok = post_to(Deaf, Server, call(2, ~"flood", #{count => Count})),
    {Call, _} = running(),
    _ = ended(Call),
    receive
        {logged, #{what := slow_consumer, refusal := 1055, limit := Limit}} -> ok
    after ?TIMEOUT ->
        error(not_logged)
    end,
    ok = logger:remove_handler(?MODULE),
    settled(Server, 1),
    [_] = sessions(Server),
    true = is_quiet(Other),
    case Deaf of
        #{socket := Socket} -> gen_tcp:close(Socket);
        #{} -> ok
    end,
    erlmcp_test_http:stop(Server).

-doc false.
log(#{msg := {report, Report}}, #{config := #{test := Test}}) ->
    Test ! {logged, Report};
log(_, _) ->
    ok.

%% A client that reads its endpoint, and then nothing more.
deaf(http, Server) ->
    Socket = erlmcp_test_http:connect(Server),
    ok = erlmcp_test_http:write(Socket, ~"GET /sse HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    {200, _} = erlmcp_test_http:head(Socket),
    #{socket => Socket, endpoint => endpoint(Socket, <<>>)};
deaf(http2, Server) ->
    open(Server, #{protocol => http2, flow => 2}).

endpoint(Socket, Read) ->
    case re:run(Read, ~"data: ([^\n]+)\n\n", [{capture, [1], binary}]) of
        {match, [Endpoint]} ->
            Endpoint;
        nomatch ->
            {ok, Bytes} = gen_tcp:recv(Socket, 0, ?TIMEOUT),
            endpoint(Socket, <<Read/binary, Bytes/binary>>)
    end.

post_to(#{endpoint := Endpoint}, Server, Message) ->
    Poster = open(Server),
    Initialize = request(1, ~"initialize", #{protocolVersion => ~"2024-11-05",
                                             capabilities => #{}, clientInfo => #{}}),
    [{202, _, <<>>} = post(Poster, Endpoint, json:encode(Each)) || Each <- [Initialize, Message]],
    close(Poster).

%% Who reads at last gets all of it, in its order, if it was within the bounds.
reading_late_is_not_slow(Config) ->
    Server = start(#{}),
    #{endpoint := Endpoint} = Client = session(Server, Config),
    [Session] = sessions(Server),
    Stream = stream(Session),
    ok = sys:suspend(Stream),
    Poster = open(Server),
    Text = binary:copy(~"x", 30_000),
    [{202, _, <<>>} = post(Poster, Endpoint, json:encode(call(Id, ~"echo", #{text => Text})))
     || Id <- lists:seq(1, 40)],
    [{202, _, <<>>} = post(Poster, Endpoint, json:encode(request(-Id, ~"ping", #{})))
     || Id <- lists:seq(1, 200)],
    ok = sys:resume(Stream),
    Messages = [message(Client) || _ <- lists:seq(1, 240)],
    [Text = text(Answer) || #{~"id" := Id} = Answer <- Messages, Id > 0],
    Pings = [-Id || #{~"id" := Id} <- Messages, Id < 0],
    Pings = lists:seq(1, 200),
    true = is_quiet(Client),
    erlmcp_test_http:stop(Server).

%% "Servers MUST validate the Origin header on all incoming connections to prevent DNS rebinding
%% attacks".
origin_and_host_are_checked(Config) ->
    Server = server(Config),
    #{endpoint := Endpoint} = Client = client(Config),
    [begin
         {403, _, Stream} = get(Server, ~"GET", ~"/sse", [Header]),
         {403, _, Message} = post(Client, Endpoint, [Header | json_headers()],
                                  json:encode(request(1, ~"ping", #{}))),
         [1014 = code(json:decode(Body)) || Body <- [Stream, Message]]
     end || Header <- [{~"origin", ~"http://evil.example.com"}, {~"origin", ~"null"},
                       {~"host", ~"evil.example.com"}]],
    {200, _, stream} = get(Server, ~"GET", ~"/sse", [{~"origin", ~"http://localhost:1234"}]),
    true = is_quiet(Client).

%% 2025-11-25, Backwards Compatibility: a client that tries to POST to a server of this transport
%% expects "400 Bad Request", "404 Not Found" or "405 Method Not Allowed", and then issues "a GET
%% request to the server URL, expecting that this will open an SSE stream".
other_methods_are_405(Config) ->
    Server = server(Config),
    #{endpoint := Endpoint} = client(Config),
    [{405, #{~"allow" := Allowed}, _} = get(Server, Method, Path, [])
     || {Path, Allowed, Methods} <-
            [{~"/sse", ~"GET", [~"POST", ~"PUT", ~"DELETE", ~"OPTIONS"]},
             {Endpoint, ~"POST", [~"GET", ~"PUT", ~"DELETE"]},
             {~"/messages", ~"POST", [~"GET"]}],
        Method <- Methods],
    {405, _, _} = post(open(Server), ~"/sse", json:encode(request(1, ~"initialize", #{}))),
    {200, #{~"content-type" := ~"text/event-stream", ~"cache-control" := ~"no-cache",
            ~"x-accel-buffering" := ~"no"}, stream} = get(Server, ~"GET", ~"/sse", []).

stream_must_be_accepted(Config) ->
    Server = server(Config),
    [{Status, _, _} = get(Server, ~"GET", ~"/sse", [{~"accept", Accept}])
     || {Status, Accept} <- [{200, ~"text/event-stream"}, {200, ~"*/*"},
                             {200, ~"application/json, text/event-stream"},
                             {406, ~"application/json"}, {406, ~"text/html"}, {400, ~";"}]].

unknown_sessions_are_404(Config) ->
    Client = client(Config),
    Ping = json:encode(request(1, ~"ping", #{})),
    [begin
         {404, _, Body} = post(Client, <<"/messages?sessionId=", Id/binary>>, Ping),
         1016 = code(json:decode(Body))
     end || Id <- [~"", ~"x", ~"%00", binary:copy(~"A", 32), binary:copy(~"A", 4000)]],
    [begin
         {400, _, Body} = post(Client, <<"/messages", Query/binary>>, Ping),
         1026 = code(json:decode(Body))
     end || Query <- [~"", ~"?", ~"?sessionId", ~"?session=x", ~"?%zz", ~"?a=1&b"]],
    %% What a proxy or a client adds is none of ours.
    #{endpoint := Endpoint} = Client,
    {202, _, <<>>} = post(Client, <<Endpoint/binary, "&token=1">>, Ping),
    #{~"id" := 1} = message(Client).

%% What cannot be answered on the stream under an id is refused where it was sent.
wrong_messages_are_refused_at_once(Config) ->
    Client = session(Config),
    [begin
         {400, _, Refused} = post(Client, Body),
         #{~"error" := #{~"code" := Code}} = Message = json:decode(Refused),
         false = is_map_key(~"id", Message)
     end || {Code, Body} <- [{-32700, ~"{"}, {-32700, ~""}, {-32700, ~"\xff"}, {-32700, ~"{} {}"},
                             {-32600, ~"[]"}, {-32600, ~"1"}, {-32600, ~"{}"},
                             {-32600, ~'{"jsonrpc":"2.0","id":null,"method":"ping"}'},
                             {-32602, ~'{"jsonrpc":"2.0","method":"m","params":[]}'}]],
    {202, _, <<>>} = post(Client, ~'{"jsonrpc":"1.0","id":5,"method":"ping"}'),
    #{~"id" := 5, ~"error" := #{~"code" := -32600}} = message(Client),
    Ping = json:encode(request(1, ~"ping", #{})),
    #{endpoint := Endpoint} = Client,
    [{Status, _, _} = post(Client, Endpoint, Headers, Ping)
     || {Status, Headers} <- [{415, [{~"content-type", ~"text/plain"}]},
                              {415, [{~"content-encoding", ~"gzip"} | json_headers()]}]],
    %% Its Accept is of no interest: the answer comes elsewhere.
    {202, _, <<>>} = post(Client, Endpoint, [{~"accept", ~"text/html"},
                                             {~"content-type", ~"application/json; charset=utf-8"}],
                          Ping),
    #{~"id" := 1} = message(Client),
    true = is_quiet(Client).

%% Bounded refusal: in size, announced or not, and in time.
bodies_are_bounded(Config) ->
    Server = start(#{message_bytes => 1000}),
    #{endpoint := Endpoint} = Client = session(Server, Config),
    {_, Empty} = sized(~""),
    {_, Full} = sized(binary:copy(~"x", 1000 - byte_size(Empty))),
    1000 = byte_size(Full),
    {202, _, <<>>} = post(Client, Full),
    #{~"id" := 1, ~"result" := #{}} = message(Client),
    {413, _, Refused} = post(Client, <<Full/binary, " ">>),
    #{~"error" := #{~"code" := 1068, ~"data" := #{~"limit" := 1000, ~"observed" := 1001}}} =
        json:decode(Refused),
    #{posting := Chunked} = open_post(Server),
    Many = gun:post(Chunked, Endpoint, json_headers()),
    ok = gun:data(Chunked, Many, nofin, Full),
    ok = gun:data(Chunked, Many, nofin, ~" "),
    {response, nofin, 413, _} = gun:await(Chunked, Many, ?TIMEOUT),
    true = is_quiet(Client),
    Hasty = start(#{receive_timeout_ms => 300}),
    #{posting := Late, endpoint := There} = client(Hasty, Config),
    Begun = gun:post(Late, There, json_headers()),
    ok = gun:data(Late, Begun, nofin, ~"{"),
    {response, nofin, 408, _} = gun:await(Late, Begun, ?TIMEOUT),
    [erlmcp_test_http:stop(Each) || Each <- [Server, Hasty]].

sized(Text) ->
    Message = call(1, ~"echo", #{text => Text}),
    {Message, iolist_to_binary(json:encode(Message))}.

%% 2025-03-26, Backwards Compatibility: servers "should continue to host both the SSE and POST
%% endpoints of the old transport, alongside the new MCP endpoint".
other_endpoint_is_served_beside(Config) ->
    Server = server(Config),
    Client = session(Config),
    #{status := 200, messages := [#{~"result" := #{}}]} =
        erlmcp_test_http:call(Server, ~"tools/list", #{}),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    {Socket, Call} = erlmcp_test_http:start_call(Server, Session, ~"stream", 7),
    finish(Call, ~"over"),
    #{messages := [_, _, #{~"id" := 7}]} = erlmcp_test_http:response(Socket),
    erlmcp_test_http:close(Socket),
    {Stream, {200, _}} = erlmcp_test_http:get_stream(Server, Session),
    ok = erlmcp:add(maps:get(pid, Server), tool, #{name => ~"n", handler => fun(_, _) -> ~"" end}),
    {event, #{~"method" := Method}} = erlmcp_test_http:event(Stream),
    #{~"method" := Method} = message(Client),
    erlmcp_test_http:close(Stream),
    #{status := 413} = erlmcp_test_http:post(Server, json_headers(), binary:copy(~" ", 5_000_000)),
    {404, _, _} = get(Server, ~"GET", ~"/sse/", []),
    [#{transport := http, url := Url, sse_url := Sse}] = erlmcp:listeners(maps:get(pid, Server)),
    Url = iolist_to_binary(string:replace(Sse, ~"/sse", ~"/mcp")).

kinds_of_sessions_are_not_mixed(Config) ->
    Server = server(Config),
    #{endpoint := <<"/messages?sessionId=", Id/binary>>} = Client = session(Config),
    #{status := 404} = erlmcp_test_http:call(Server, ~"tools/list", #{},
                                             #{session => {Id, ~"2025-11-25"}}),
    #{status := 404} = erlmcp_test_http:delete(Server, {Id, ~"2025-11-25"}),
    {Other, _} = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    {404, _, _} = post(Client, <<"/messages?sessionId=", Other/binary>>,
                       json:encode(request(1, ~"ping", #{}))),
    true = is_quiet(Client).

paths_are_the_options(Config) ->
    Server = start(#{}, #{path => ~"/sse", sse => #{path => ~"/old/stream",
                                                    message_path => ~"/old/~m:1"}}),
    #{endpoint := <<"/old/~m:1?sessionId=", _/binary>>} = Client =
        open(Server, #{path => ~"/old/stream?user=1"}),
    true = is_quiet(Client),
    [{Status, _, _} = get(Server, ~"GET", Path, [])
     || {Status, Path} <- [{405, ~"/sse"}, {404, ~"/messages"}, {404, ~"/mcp"}]],
    erlmcp_test_http:stop(Server),
    #{endpoint := <<"/messages?", _/binary>>} = client(Config).

without_the_option_there_is_nothing(_) ->
    Server = start(#{}, #{}),
    [{404, _, _} = get(Server, Method, Path, [])
     || Method <- [~"GET", ~"POST"], Path <- [~"/sse", ~"/messages", ~"/messages?sessionId=x"]],
    [#{url := _} = Listener] = erlmcp:listeners(maps:get(pid, Server)),
    false = is_map_key(sse_url, Listener),
    erlmcp_test_http:stop(Server).

%% Security Best Practices, Session Hijacking: the principal of a message is that of its stream.
sessions_belong_to_their_principal(_) ->
    Authenticate = fun(#{headers := #{~"authorization" := Who}}) -> {ok, Who};
                      (_) -> {error, ~"who?"}
                   end,
    Server = start(#{}, #{sse => #{}, authenticate => Authenticate}),
    Test = self(),
    ok = erlmcp:add(maps:get(pid, Server), tool,
                    #{name => ~"who", handler => fun(_, #{principal := Principal}) ->
                        Test ! {principal, Principal},
                        Principal
                      end}),
    [Alice, Bob] = [{~"authorization", Name} || Name <- [~"alice", ~"bob"]],
    {401, #{~"www-authenticate" := <<"Bearer", _/binary>>}, _} =
        get(Server, ~"GET", ~"/sse", []),
    #{endpoint := Endpoint} = Client = open(Server, #{headers => [Alice]}),
    _ = initialize(Client, ~"2024-11-05"),
    Who = json:encode(call(1, ~"who")),
    {202, _, <<>>} = post(Client, Who),
    ~"alice" = text(message(Client)),
    {404, _, Body} = post(Client, Endpoint, [Bob | json_headers()], Who),
    1016 = code(json:decode(Body)),
    {401, _, _} = post(Client, Endpoint, json_headers(), Who),
    true = is_quiet(Client),
    receive {principal, ~"alice"} -> ok end,
    receive {principal, _} = Other -> error(Other) after 0 -> ok end,
    erlmcp_test_http:stop(Server).

%% `{bad_option, Key, Expected}`.
options_are_checked(_) ->
    [{error, {bad_option, Key, <<_, _/binary>>}} =
         erlmcp:start_server(#{name => ~"a", version => ~"1", listen => [{Transport, Options}]})
     || {Key, Transport, Options} <-
            [{{http, sse}, http, #{sse => true}},
             {{http, sse}, http, #{sse => [{path, ~"/sse"}]}},
             {{tcp, sse}, tcp, #{sse => #{}}},
             {{http, sse, paths}, http, #{sse => #{paths => ~"/sse"}}},
             {{http, sse, path}, http, #{sse => #{path => "/sse"}}},
             {{http, sse, path}, http, #{sse => #{path => ~"sse"}}},
             {{http, sse, path}, http, #{sse => #{path => ~""}}},
             {{http, sse, path}, http, #{sse => #{path => ~"/a b"}}},
             {{http, sse, message_path}, http, #{sse => #{message_path => ~"/a?b"}}},
             {{http, sse, message_path}, http, #{sse => #{message_path => ~"/a\n"}}},
             {{http, sse, message_path}, http, #{sse => #{message_path => 1}}},
             {{http, sse}, http, #{sse => #{path => ~"/mcp"}}},
             {{http, sse}, http, #{path => ~"/messages", sse => #{}}},
             {{http, sse}, http, #{sse => #{path => ~"/a", message_path => ~"/a"}}}]].
