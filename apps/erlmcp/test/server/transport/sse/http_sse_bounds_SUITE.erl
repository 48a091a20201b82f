-module(http_sse_bounds_SUITE).
-moduledoc "Bounds of HTTP+SSE: sessions, calls, what a client posts and what it does not read.".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([log/2]).
-export([sessions_are_bounded/1, calls_are_bounded/1, untaken_messages_are_bounded/1,
         streams_without_a_place_are_refused/1, untaken_messages_are_waited_for_in_time/1,
         untaken_messages_are_told_of_the_end/1, unread_bytes_are_bounded/1, slow_readers_are_cut/1,
         stalled_readers_are_cut/1, a_stalled_stream_is_cut/1, bytes_that_were_read_are_free/1,
         reading_late_is_not_slow/1, streams_keep_no_head/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_sse_server, [start/1, client/1, client/2, session/2, open_post/1,
                                 json_headers/0, call/2, call/3, text/1, code/1, sessions/1,
                                 count/1, settled/2, stream/1, untaken/4]).
-import(erlmcp_test_sse, [open/1, open/2, close/1, get/4, message/1, post/2, post/3, send/2, ask/4,
                          is_quiet/1]).
-import(erlmcp_test_line, [request/3]).
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
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    _ = logger:remove_handler(?MODULE),
    erlmcp_test_http:stop(server(Config)).

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
    ok = untaken(3, Endpoint, Server, 3000),
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

%% What was refused is not handled later, and takes no room of other messages.
untaken_messages_are_waited_for_in_time(Config) ->
    Server = start(#{receive_timeout_ms => 1500}),
    Client = client(Server, Config),
    [Session] = sessions(Server),
    ok = sys:suspend(Session),
    {503, _, Refused} = post(Client, json:encode(request(1, ~"ping", #{}))),
    #{~"error" := #{~"code" := 1069}} = json:decode(Refused),
    ok = sys:resume(Session),
    #{endpoint := Endpoint} = Client,
    ok = untaken(0, Endpoint, Server, 3000),
    %% A connection may end when it has been idle for as long.
    true = is_quiet(maps:merge(Client, open_post(Server))),
    erlmcp_test_http:stop(Server).

%% Accepted is only what the session has.
untaken_messages_are_told_of_the_end(Config) ->
    Server = server(Config),
    #{endpoint := Endpoint, reading := Reading, stream := Stream} = client(Config),
    [Session] = sessions(Server),
    ok = sys:suspend(Session),
    #{posting := Connection} = open_post(Server),
    Post = gun:post(Connection, Endpoint, json_headers(), json:encode(request(1, ~"ping", #{}))),
    ok = untaken(1, Endpoint, Server, 3000),
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
                 true = is_quiet(Client),
                 %% As many may wait again.
                 ok = sys:suspend(Stream),
                 [{202, _, <<>>} = post(Poster, Endpoint, json:encode(Ping(Id)))
                  || Id <- [1, 2, 3, 4]],
                 ok = sys:resume(Stream),
                 [1, 2, 3, 4] = [maps:get(~"id", message(Client)) || _ <- [1, 2, 3, 4]];
             true ->
                 {202, _, <<>>} = post(Poster, Endpoint, json:encode(Ping(5))),
                 ok = cut_off(Monitor),
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
    cut(start(#{send_timeout_ms => 800, unread_bytes => 1 bsl 40}), 2000, 800, Config).

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
                                             capabilities => #{},
                                             clientInfo => #{name => ~"a", version => ~"1"}}),
    [{202, _, <<>>} = post(Poster, Endpoint, json:encode(Each)) || Each <- [Initialize, Message]],
    close(Poster).

%% The session waits for its stream itself, whatever keeps the stream from writing.
a_stalled_stream_is_cut(Config) ->
    Server = start(#{send_timeout_ms => 1000}),
    #{endpoint := Endpoint} = client(Server, Config),
    [Session] = sessions(Server),
    Monitor = monitor(process, Session),
    Stream = stream(Session),
    ok = sys:suspend(Stream),
    {202, _, <<>>} = post(open(Server), Endpoint, json:encode(request(1, ~"ping", #{}))),
    ok = cut_off(Monitor),
    ok = sys:resume(Stream),
    erlmcp_test_http:stop(Server).

cut_off(Monitor) ->
    receive
        {'DOWN', Monitor, process, _, {shutdown, slow_consumer}} -> ok
    after ?TIMEOUT ->
        error(not_cut)
    end.

%% Large messages, each of which is written as a piece of its own.
bytes_that_were_read_are_free(Config) ->
    Server = start(#{unread_bytes => 300_000}),
    #{endpoint := Endpoint} = Client = session(Server, Config),
    [Session] = sessions(Server),
    Stream = stream(Session),
    Poster = open(Server),
    Text = binary:copy(~"x", 70_000),
    Echo = fun(Id) -> json:encode(call(Id, ~"echo", #{text => Text})) end,
    [begin
         ok = sys:suspend(Stream),
         [{202, _, <<>>} = post(Poster, Endpoint, Echo(Id)) || Id <- [7, 8, 9]],
         ok = sys:resume(Stream),
         [Text = text(message(Client)) || _ <- [7, 8, 9]]
     end || _ <- [1, 2, 3]],
    true = is_quiet(Client),
    erlmcp_test_http:stop(Server).

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

%% A stream may last for long, and its head may be large.
streams_keep_no_head(Config) ->
    Server = server(Config),
    Socket = erlmcp_test_http:connect(Server),
    Padding = [[~"X-", Name, ~": ", binary:copy(~"x", 4_000), ~"\r\n"] || Name <- "abcdefghij"],
    ok = erlmcp_test_http:write(Socket, [~"GET /sse HTTP/1.1\r\nHost: localhost\r\n", Padding,
                                         ~"\r\n"]),
    {200, _} = erlmcp_test_http:head(Socket),
    _ = endpoint(Socket, <<>>),
    [Session] = sessions(Server),
    Stream = stream(Session),
    _ = sys:get_state(Stream),
    true = erlang:garbage_collect(Stream),
    {binary, Kept} = process_info(Stream, binary),
    [] = [Bytes || {_, Bytes, _} <- Kept, Bytes >= iolist_size(Padding)],
    ok = gen_tcp:close(Socket).

-doc false.
log(#{msg := {report, Report}}, #{config := #{test := Test}}) ->
    Test ! {logged, Report};
log(_, _) ->
    ok.
