-module(slow_consumers_SUITE).
-moduledoc """
Clients that do not read. Bytes and messages that wait for them, and the time, are bounded on every
transport. Clients that read are not affected. The size of a result is bounded, too.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([stream_of_http2_that_is_not_read_is_reset_alone/1, unread_bytes_of_http2_are_bounded/1,
         connection_of_http1_that_is_not_read_leaves_nothing/1,
         connection_of_tcp_that_is_not_read_leaves_nothing/1]).
-export([streams_that_are_read_are_counted_less/1]).
-export([who_reads_tcp_steadily_is_not_cut/1, who_reads_sse_steadily_is_not_cut/1]).
-export([what_a_call_says_is_bounded/1, what_is_no_json_takes_no_room/1,
         bytes_that_a_call_says_are_bounded/1,
         a_late_result_of_http2_is_bounded/1, a_call_waits_again_for_who_reads_again/1,
         a_call_waits_five_seconds_in_all/1, who_reads_misses_nothing/1,
         a_connection_that_stands_still_misses_nothing/1]).
-export([results_are_bounded/1, results_of_sessions_are_bounded/1, results_of_tcp_are_bounded/1,
         results_of_sse_are_bounded/1, lists_are_bounded/1, batches_are_bounded/1]).
-export([log/2]).

-import(erlmcp_test_http, [message/3, call/3, call/4, running/0, finish/2]).

-define(TIMEOUT, 60_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    Config.

end_per_testcase(_, _) ->
    logger:remove_handler(?MODULE).

-doc false.
log(#{msg := {report, Report}}, #{config := #{test := Test}}) -> Test ! {logged, Report};
log(_, _) -> ok.

logged(What) ->
    receive
        {logged, #{what := What} = Report} -> Report
    after ?TIMEOUT ->
        error({not_logged, What})
    end.

start(Limits) ->
    start(Limits, [{http, #{}}]).

start(Limits, Listen) ->
    #{tools := Tools} = Definitions = erlmcp_test_http:definitions(self()),
    Test = self(),
    Sized = #{name => ~"sized", handler => fun(#{~"size" := Size}, _) ->
        binary:copy(~"x", Size)
    end},
    %% Logs as often as it is told to, and says whose messages those are.
    Logs = #{name => ~"logs", handler => fun(_, #{call := #{owner := {Owner, _}}} = Context) ->
        Test ! {running, self(), Owner},
        logs(Test, Context)
    end},
    erlmcp_test_http:start(Definitions#{tools := [Sized, Logs | Tools], limits => Limits,
                                        resources => [#{uri => ~"test://sized", name => ~"sized",
                                                        handler => fun(_, _) ->
                                                            binary:copy(~"x", 2000)
                                                        end}],
                                        listen => Listen}).

logs(Test, Context) ->
    receive
        {log, Count} ->
            [ok = erlmcp:log(Context, error, N) || N <- lists:seq(1, Count)],
            Test ! {said, self()},
            logs(Test, Context);
        {log_texts, Texts} ->
            [ok = erlmcp:log(Context, error, Text) || Text <- Texts],
            Test ! {said, self()},
            logs(Test, Context);
        {log_no_json, Count} ->
            [raised = try erlmcp:log(Context, error, self()) catch error:_ -> raised end
             || _ <- lists:seq(1, Count)],
            Test ! {said, self()},
            logs(Test, Context);
        {log_at_once, Count} ->
            All = [spawn_monitor(fun() -> ok = erlmcp:log(Context, error, N) end)
                   || N <- lists:seq(1, Count)],
            [receive {'DOWN', Monitor, process, Pid, normal} -> ok end || {Pid, Monitor} <- All],
            Test ! {said, self()},
            logs(Test, Context);
        {finish, Return} ->
            Return
    end.

%% The window of one stream is closed, and the connection's is open.
open(#{port := Port}) ->
    {ok, Connection} = gun:open("127.0.0.1", Port,
                                #{protocols => [http2], retry => 0,
                                  http2_opts => #{initial_stream_window_size => 65_535}}),
    {ok, http2} = gun:await_up(Connection, ?TIMEOUT),
    Connection.

ask(Connection, Tool, Arguments, Options) ->
    {Headers, Body} = message(~"tools/call", #{name => Tool, arguments => Arguments}, #{}),
    gun:post(Connection, "/mcp", Headers, Body, Options).

sized(Connection, Size) ->
    Stream = ask(Connection, ~"sized", #{size => Size}, #{flow => 1}),
    {response, nofin, 200, _} = gun:await(Connection, Stream, ?TIMEOUT),
    Stream.

%% "A connection that mixes a slow stream with good ones" keeps the good ones. That holds also for
%% more slow ones than cowboy gives up for one connection by itself.
stream_of_http2_that_is_not_read_is_reset_alone(_) ->
    Server = start(#{send_timeout_ms => 300}),
    Connection = open(Server),
    Stays = ask(Connection, ~"wait", #{}, #{}),
    {Call, _} = running(),
    Deaf = [sized(Connection, 1_000_000) || _ <- lists:seq(1, 20)],
    [{error, {stream_error, _}} = gun:await_body(Connection, Stream, ?TIMEOUT) || Stream <- Deaf],
    #{refusal := 1055, limit := 300} = logged(slow_consumer),
    %% A stream whose bytes cowboy holds is one of them.
    Little = sized(Connection, 65_600),
    {error, {stream_error, _}} = gun:await_body(Connection, Little, ?TIMEOUT),
    finish(Call, ~"undisturbed"),
    {response, nofin, 200, _} = gun:await(Connection, Stays, ?TIMEOUT),
    {ok, _} = gun:await_body(Connection, Stays, ?TIMEOUT),
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

%% Bounded refusal: the limit counts the bytes of all streams except the one with most of them.
unread_bytes_of_http2_are_bounded(_) ->
    Probe = start(#{}),
    #{headers := #{~"content-length" := Length}} =
        call(Probe, ~"tools/call", #{name => ~"sized", arguments => #{size => 0}}),
    erlmcp_test_http:stop(Probe),
    %% Bodies of one piece, and 1,000 and 2,000 bytes more; an end counts as one.
    Size = fun(More) -> 65_536 + More - binary_to_integer(Length) end,
    [begin
         Server = start(#{unread_bytes => Limit}),
         Connection = open(Server),
         First = sized(Connection, Size(1000)),
         Second = sized(Connection, Size(2000)),
         First_ = case Limit of
             1001 ->
                 read(Connection, First);
             1000 ->
                 {error, {stream_error, _}} = gun:await_body(Connection, First, ?TIMEOUT),
                 #{refusal := 1055, limit := 1000} = logged(slow_consumer),
                 66_536
         end,
         66_536 = First_,
         67_536 = read(Connection, Second),
         gun:close(Connection),
         erlmcp_test_http:stop(Server)
     end || Limit <- [1001, 1000]].

%% The bytes that a client has taken are not counted. The stream that has waited longest is the one
%% of which the client has taken nothing for the longest time.
streams_that_are_read_are_counted_less(_) ->
    Server = start(#{unread_bytes => 2_200_000}),
    Connection = open(Server),
    Read = sized(Connection, 2_000_000),
    Deaf = sized(Connection, 2_000_000),
    ok = read_some(Connection, Read, 1_500_000),
    Small = sized(Connection, 700_000),
    Large = sized(Connection, 2_000_000),
    {error, {stream_error, _}} = gun:await_body(Connection, Deaf, ?TIMEOUT),
    [true = read(Connection, Stream) > 0 || Stream <- [Read, Small, Large]],
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

read_some(_, _, Left) when Left =< 0 ->
    ok;
read_some(Connection, Stream, Left) ->
    ok = gun:update_flow(Connection, Stream, 1),
    {data, nofin, Data} = gun:await(Connection, Stream, ?TIMEOUT),
    read_some(Connection, Stream, Left - byte_size(Data)).

read(Connection, Stream) ->
    ok = gun:update_flow(Connection, Stream, 1000),
    {ok, Body} = gun:await_body(Connection, Stream, ?TIMEOUT),
    byte_size(Body).

connection_of_http1_that_is_not_read_leaves_nothing(_) ->
    Server = start(#{send_timeout_ms => 300}),
    Socket = erlmcp_test_http:connect(Server),
    Arguments = #{size => 20_000_000},
    {Headers, Body} = message(~"tools/call", #{name => ~"sized", arguments => Arguments}, #{}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    #{refusal := 1055, limit := 300} = logged(slow_consumer),
    ok = forgotten(Socket, 500),
    erlmcp_test_http:stop(Server).

connection_of_tcp_that_is_not_read_leaves_nothing(_) ->
    Server = start(#{send_timeout_ms => 300}, [{tcp, #{}}]),
    Socket = erlmcp_test_http:connect(Server),
    Call = erlmcp_test_line:stateless(1, ~"tools/call", #{~"name" => ~"sized",
                                                          ~"arguments" => #{size => 20_000_000}}),
    ok = gen_tcp:send(Socket, [json:encode(Call), $\n]),
    #{refusal := 1055, limit := 300} = logged(slow_consumer),
    ok = forgotten(Socket, 500),
    erlmcp_test_http:stop(Server).

%% A client that reads all the time may read for longer than `send_timeout_ms`.
who_reads_tcp_steadily_is_not_cut(_) ->
    #{port := Port} = Server = start(#{send_timeout_ms => 3000}, [{tcp, #{}}]),
    %% The socket keeps little of an answer, so that a part of it waits at the server.
    {ok, Socket} = gen_tcp:connect({127, 0, 0, 1}, Port, [binary, {active, false},
                                                          {recbuf, 100_000}]),
    [begin
         ok = gen_tcp:send(Socket, [call_sized(Id, Size), $\n]),
         ok = read_steadily(Socket, Size)
     end || {Id, Size} <- [{1, 4_000_000}, {2, 24_000_000}]],
    gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

who_reads_sse_steadily_is_not_cut(_) ->
    Server = start(#{send_timeout_ms => 4000}, [{http, #{sse => #{}}}]),
    Socket = erlmcp_test_http:connect(Server),
    ok = erlmcp_test_http:write(Socket, ~"GET /sse HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    {200, _} = erlmcp_test_http:head(Socket),
    {match, [Endpoint]} = re:run(erlmcp_test_http:chunk(Socket), ~"data: ([^\n]+)",
                                 [{capture, [1], binary}]),
    Poster = erlmcp_test_sse:open(Server),
    [{202, _, <<>>} = erlmcp_test_sse:post(Poster, Endpoint, Message)
     || Message <- [json:encode(erlmcp_test_line:initialize_request(0, ~"2024-11-05")),
                    call_sized(1, 32_000_000)]],
    ok = read_steadily(Socket, 32_000_000),
    %% The session goes on, too.
    Ping = json:encode(erlmcp_test_line:request(~"last", ~"ping", #{})),
    {202, _, <<>>} = erlmcp_test_sse:post(Poster, Endpoint, Ping),
    ok = read_until(~"\"last\"", Socket),
    erlmcp_test_sse:close(Poster),
    gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

call_sized(Id, Size) ->
    json:encode(erlmcp_test_line:stateless(Id, ~"tools/call", #{~"name" => ~"sized",
                                                                ~"arguments" => #{size => Size}})).

%% About four million bytes in a second, and never one that is long without a byte.
read_steadily(_, Left) when Left =< 0 ->
    ok;
read_steadily(Socket, Left) ->
    {ok, Bytes} = gen_tcp:recv(Socket, min(Left, 400_000), ?TIMEOUT),
    receive after 100 -> read_steadily(Socket, Left - byte_size(Bytes)) end.

read_until(Text, Socket) ->
    {ok, Bytes} = gen_tcp:recv(Socket, 0, ?TIMEOUT),
    case binary:match(Bytes, Text) of
        nomatch -> read_until(Text, Socket);
        _ -> ok
    end.

%% The server's end of the connection is no more, though the client's is.
forgotten(Socket, Left) when Left > 0 ->
    {ok, Client} = inet:sockname(Socket),
    case [Port || Port <- erlang:ports(), erlang:port_info(Port, name) =:= {name, "tcp_inet"},
                  inet:peername(Port) =:= {ok, Client}] of
        [] ->
            gen_tcp:close(Socket);
        _ ->
            receive after 20 -> forgotten(Socket, Left - 1) end
    end.

%% Bounded refusal: as many messages wait as the limit says. The client is told how many were
%% dropped.
what_a_call_says_is_bounded(_) ->
    [begin
         Server = start(#{unread_messages => 10}, Listen),
         Socket = connect(Listen, Server),
         ok = log_call(Listen, Socket),
         {Call, Owner} = running(),
         say(1, Call),
         [1] = said(Listen, Socket, 1),
         true = erlang:suspend_process(Owner),
         say(10 + Over, Call),
         true = erlang:resume_process(Owner),
         Ten = lists:seq(1, 10),
         Ten = said(Listen, Socket, 10),
         say(1, Call),
         #{~"data" := 1} = Next = params(Listen, Socket),
         case Over of
             0 -> false = is_map_key(~"_meta", Next);
             _ -> #{~"_meta" := #{~"erlmcp/leftOut" := Over}} = Next
         end,
         finish(Call, ~"done"),
         #{~"result" := _} = next(Listen, Socket),
         gen_tcp:close(Socket),
         erlmcp_test_http:stop(Server)
     end || Listen <- [[{http, #{}}], [{tcp, #{}}]], Over <- [0, 1, 3]].

%% A message that is no JSON is an error for the handler, and takes no room of others. The client is
%% still told how many were dropped before it.
what_is_no_json_takes_no_room(_) ->
    [begin
         Server = start(#{unread_messages => 10}, Listen),
         Socket = connect(Listen, Server),
         ok = log_call(Listen, Socket),
         {Call, Owner} = running(),
         said_after({log_no_json, 30}, Call),
         say(1, Call),
         [1] = said(Listen, Socket, 1),
         true = erlang:suspend_process(Owner),
         say(10 + 3, Call),
         true = erlang:resume_process(Owner),
         Ten = lists:seq(1, 10),
         Ten = said(Listen, Socket, 10),
         said_after({log_no_json, 1}, Call),
         say(1, Call),
         #{~"data" := 1, ~"_meta" := #{~"erlmcp/leftOut" := 3}} = params(Listen, Socket),
         finish(Call, ~"done"),
         #{~"result" := _} = next(Listen, Socket),
         gen_tcp:close(Socket),
         erlmcp_test_http:stop(Server)
     end || Listen <- [[{http, #{}}], [{tcp, #{}}]]].

connect([{http, _}], Server) -> erlmcp_test_http:connect(Server);
connect([{tcp, _}], #{port := Port}) -> erlmcp_test_line:connect(Port).

say(Count, Call) ->
    said_after({log, Count}, Call).

say_texts(Texts, Call) ->
    said_after({log_texts, Texts}, Call).

said_after(Order, Call) ->
    Call ! Order,
    receive
        {said, Call} -> ok
    after ?TIMEOUT ->
        error(still_waiting)
    end.

log_call([{http, _}], Socket) ->
    {Headers, Body} = message(~"tools/call", #{name => ~"logs"},
                              #{meta => #{~"io.modelcontextprotocol/logLevel" => ~"debug"}}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body);
log_call([{tcp, _}], Socket) ->
    Meta = #{~"io.modelcontextprotocol/logLevel" => ~"debug"},
    Call = erlmcp_test_line:stateless(1, ~"tools/call", #{~"name" => ~"logs", ~"_meta" => Meta}),
    gen_tcp:send(Socket, [json:encode(Call), $\n]).

said(Listen, Socket, Count) ->
    [maps:get(~"data", params(Listen, Socket)) || _ <- lists:seq(1, Count)].

params(Listen, Socket) ->
    #{~"method" := ~"notifications/message", ~"params" := Params} = next(Listen, Socket),
    Params.

next([{http, _}], Socket) ->
    _ = get({head, Socket}) =:= undefined
        andalso put({head, Socket}, erlmcp_test_http:head(Socket)),
    {event, Message} = erlmcp_test_http:event(Socket),
    Message;
next([{tcp, _}], Socket) ->
    erlmcp_test_line:recv(Socket).

%% Bounded refusal: a call may have a sixteenth of the connection's bytes. A message is sent if
%% fewer bytes wait before it, and a single message has no bound.
bytes_that_a_call_says_are_bounded(_) ->
    Text = binary:copy(~"x", 3_000),
    [begin
         Server = start(#{unread_bytes => 16 * 10_000}, Listen),
         Socket = connect(Listen, Server),
         ok = log_call(Listen, Socket),
         {Call, Owner} = running(),
         true = erlang:suspend_process(Owner),
         say_texts([binary:copy(~"x", 30_000), Text], Call),
         true = erlang:resume_process(Owner),
         [30_000] = [byte_size(Read) || Read <- said(Listen, Socket, 1)],
         true = erlang:suspend_process(Owner),
         say_texts(lists:duplicate(6, Text), Call),
         true = erlang:resume_process(Owner),
         #{~"_meta" := #{~"erlmcp/leftOut" := 1}} = params(Listen, Socket),
         [Text, Text, Text] = said(Listen, Socket, 3),
         say(1, Call),
         #{~"data" := 1, ~"_meta" := #{~"erlmcp/leftOut" := 2}} = params(Listen, Socket),
         finish(Call, ~"done"),
         #{~"result" := _} = next(Listen, Socket),
         gen_tcp:close(Socket),
         erlmcp_test_http:stop(Server)
     end || Listen <- [[{http, #{}}], [{tcp, #{}}]]].

%% A call waits once for a client that has stopped reading. It waits for the client again when that
%% reads again.
a_call_waits_again_for_who_reads_again(_) ->
    erlmcp_test_pauses:undisturbed(50, fun waits_again_for_who_reads_again/0).

waits_again_for_who_reads_again() ->
    Listen = [{tcp, #{}}],
    Server = start(#{unread_messages => 10}, Listen),
    Socket = connect(Listen, Server),
    ok = log_call(Listen, Socket),
    {Call, Owner} = running(),
    true = erlang:suspend_process(Owner),
    {Milliseconds, _} = timer:tc(fun() -> say(10 + 300, Call) end, millisecond),
    %% If each message waited, they would wait for five seconds in all.
    true = Milliseconds < 4_500,
    true = erlang:resume_process(Owner),
    Ten = lists:seq(1, 10),
    Ten = said(Listen, Socket, 10),
    Call ! {log, 2000},
    All = lists:seq(1, 2000),
    All = said(Listen, Socket, 2000),
    gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

%% Bounded refusal: processes of one call wait together for what one of them could wait. Then the
%% call waits no more, though the client has read since.
a_call_waits_five_seconds_in_all(_) ->
    Listen = [{tcp, #{}}],
    Server = start(#{unread_messages => 1}, Listen),
    Socket = connect(Listen, Server),
    ok = log_call(Listen, Socket),
    {Call, Owner} = running(),
    true = erlang:suspend_process(Owner),
    say(1, Call),
    %% Each waits for 500 milliseconds, or until they have waited for so long in all.
    said_after({log_at_once, 70}, Call),
    ok = waits_no_more(Listen, Socket, {Call, Owner}, 50),
    gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

%% The first message has room, and the second has none.
waits_no_more(Listen, Socket, {Call, Owner} = Running, Left) when Left > 0 ->
    true = erlang:resume_process(Owner),
    [_] = said(Listen, Socket, 1),
    %% When the connection has answered, it has also given the room back.
    Ping = erlmcp_test_line:stateless(Left, ~"tools/list", #{}),
    ok = gen_tcp:send(Socket, [json:encode(Ping), $\n]),
    #{~"id" := _, ~"result" := _} = next(Listen, Socket),
    true = erlang:suspend_process(Owner),
    {Milliseconds, ok} = timer:tc(fun() -> say(2, Call) end, millisecond),
    case Milliseconds < 100 of
        true -> true = erlang:resume_process(Owner), ok;
        false -> waits_no_more(Listen, Socket, Running, Left - 1)
    end.

%% Bounded refusal: bytes that come to a stream while others wait there. The first may be more.
a_late_result_of_http2_is_bounded(_) ->
    [begin
         Server = start(#{unread_bytes => 1_000_000}),
         Connection = open(Server),
         {Headers, Body} = message(~"tools/call", #{name => ~"logs"},
                                   #{meta => #{~"io.modelcontextprotocol/logLevel" => ~"debug"}}),
         Stream = gun:post(Connection, "/mcp", Headers, Body, #{flow => 1}),
         {Call, _} = running(),
         say_texts([binary:copy(~"x", 200_000) || Waits], Call),
         finish(Call, binary:copy(~"x", 1_000_000)),
         {response, nofin, 200, _} = gun:await(Connection, Stream, ?TIMEOUT),
         case Waits of
             true ->
                 {error, {stream_error, _}} = gun:await_body(Connection, Stream, ?TIMEOUT),
                 #{refusal := 1055, limit := 1_000_000} = logged(slow_consumer);
             false ->
                 true = read(Connection, Stream) > 1_000_000
         end,
         gun:close(Connection),
         erlmcp_test_http:stop(Server)
     end || Waits <- [false, true]].

%% A handler that is quicker than its connection waits for a client that reads.
who_reads_misses_nothing(_) ->
    misses_nothing(fun(Call, _) ->
        Call ! {log, 2000},
        2000
    end).

%% On a busy machine it is the connection that has no turn. Its client reads all the time.
a_connection_that_stands_still_misses_nothing(_) ->
    misses_nothing(fun(Call, Owner) ->
        true = erlang:suspend_process(Owner),
        Call ! {log, 100},
        receive after 300 -> ok end,
        true = erlang:resume_process(Owner),
        100
    end).

misses_nothing(Log) ->
    Listen = [{tcp, #{}}],
    erlmcp_test_pauses:undisturbed(50, fun() ->
        Server = start(#{unread_messages => 10}, Listen),
        Socket = connect(Listen, Server),
        ok = log_call(Listen, Socket),
        {Call, Owner} = running(),
        All = lists:seq(1, Log(Call, Owner)),
        All = said(Listen, Socket, length(All)),
        gen_tcp:close(Socket),
        erlmcp_test_http:stop(Server)
    end).

%% Bounded refusal: 1004 for a result of one byte more than it may have, and it is in the log.
results_are_bounded(_) ->
    At = answer_size(fun(Server) -> tool(Server, #{}) end),
    AtRead = answer_size(fun(Server) -> resource(Server, #{}) end),
    [begin
         Server = start(#{reply_bytes => Limit}),
         #{status := 200, messages := [#{~"result" := _}]} = Call(Server, #{}),
         erlmcp_test_http:stop(Server),
         Less = start(#{reply_bytes => Limit - 1}),
         #{status := 503, messages := [#{~"error" := Error}]} = Call(Less, #{}),
         too_large(Limit, Error),
         erlmcp_test_http:stop(Less)
     end || {Limit, Call} <- [{At, fun tool/2}, {AtRead, fun resource/2}]].

%% The client gets it under 200, like every failure of a request.
results_of_sessions_are_bounded(_) ->
    Server = start(#{reply_bytes => 1000}),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    #{status := 200, messages := [#{~"error" := #{~"code" := 1004}}]} =
        tool(Server, #{session => Session}),
    #{status := 200, messages := [#{~"result" := _}]} =
        call(Server, ~"ping", #{}, #{session => Session}),
    erlmcp_test_http:stop(Server).

results_of_tcp_are_bounded(_) ->
    Server = start(#{reply_bytes => 1000}, [{tcp, #{}}]),
    Socket = erlmcp_test_line:connect(maps:get(port, Server)),
    [begin
         Call = erlmcp_test_line:stateless(Size, ~"tools/call",
                                           #{~"name" => ~"sized", ~"arguments" => #{size => Size}}),
         ok = gen_tcp:send(Socket, [json:encode(Call), $\n]),
         #{~"id" := Size, Outcome := _} = erlmcp_test_line:recv(Socket)
     end || {Size, Outcome} <- [{500, ~"result"}, {1000, ~"error"}, {500, ~"result"}]],
    gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

results_of_sse_are_bounded(_) ->
    Server = start(#{reply_bytes => 1000}, [{http, #{sse => #{}}}]),
    Client = erlmcp_test_sse:open(Server),
    _ = erlmcp_test_sse:initialize(Client, ~"2024-11-05"),
    #{~"error" := #{~"code" := 1004}} =
        erlmcp_test_sse:ask(Client, 2, ~"tools/call",
                            #{name => ~"sized", arguments => #{size => 1000}}),
    true = erlmcp_test_sse:is_quiet(Client),
    erlmcp_test_sse:close(Client),
    erlmcp_test_http:stop(Server).

lists_are_bounded(_) ->
    List = fun(Server) -> call(Server, ~"tools/list", #{}) end,
    Limit = answer_size(List),
    Server = start(#{reply_bytes => Limit}),
    #{status := 200} = List(Server),
    erlmcp_test_http:stop(Server),
    Less = start(#{reply_bytes => Limit - 1}),
    #{status := 503, messages := [#{~"error" := #{~"code" := 1004}}]} = List(Less),
    erlmcp_test_http:stop(Less).

%% In addition to one of them, the answers of a batch share the limit of one.
batches_are_bounded(_) ->
    Server = start(#{reply_bytes => 1000}, [{tcp, #{}}]),
    Socket = erlmcp_test_line:connect(maps:get(port, Server)),
    _ = erlmcp_test_line:initialize(Socket, ~"2025-03-26"),
    Batch = [erlmcp_test_line:request(Id, ~"tools/call",
                                      #{~"name" => ~"sized", ~"arguments" => #{size => 600}})
             || Id <- [1, 2, 3]],
    ok = gen_tcp:send(Socket, [json:encode(Batch), $\n]),
    Answers = erlmcp_test_line:recv(Socket),
    [1, 2, 3] = lists:sort([Id || #{~"id" := Id} <- Answers]),
    [#{}] = [Answer || #{~"result" := _} = Answer <- Answers],
    [1004, 1004] = [Code || #{~"error" := #{~"code" := Code}} <- Answers],
    gen_tcp:close(Socket),
    erlmcp_test_http:stop(Server).

tool(Server, Options) ->
    call(Server, ~"tools/call", #{name => ~"sized", arguments => #{size => 2000}}, Options).

resource(Server, Options) ->
    call(Server, ~"resources/read", #{uri => ~"test://sized"}, Options).

answer_size(Call) ->
    Server = start(#{}),
    #{status := 200, body := Body} = Call(Server),
    erlmcp_test_http:stop(Server),
    byte_size(Body).

too_large(Limit, Error) ->
    Less = Limit - 1,
    #{~"code" := 1004,
      ~"data" := #{~"refusal" := 1004, ~"name" := ~"buffer_overflow", ~"limit" := Less,
                   ~"observed" := Limit, ~"incident" := Incident}} = Error,
    #{incident := Incident, limit := Less, observed := Limit} = logged(reply_too_large).
