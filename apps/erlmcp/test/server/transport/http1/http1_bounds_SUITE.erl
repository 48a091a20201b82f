-module(http1_bounds_SUITE).
-moduledoc "HTTP/1.1 under load: what is too much or too slow is refused, and nothing else is.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([depth_and_members_are_bounded/1, body_is_bounded_by_its_length/1,
         body_is_bounded_while_it_arrives/1, body_that_stops_is_408/1,
         body_that_never_starts_is_408/1, refused_body_that_never_comes_is_not_waited_for/1,
         expectation_is_answered_with_continue/1, what_waits_behind_a_call_is_bounded/1,
         a_head_in_many_packets_is_searched_once/1, memory_of_a_connection_is_bounded/1]).
-export([connection_lives_after_each_refusal/1, broken_rest_of_a_refused_request_ends_it/1,
         http_1_0_is_served/1, pipelined_requests_are_answered_in_order/1,
         hundred_connections_are_served_at_once/1]).
-export([crash_is_one_internal_error/1, deadline_ends_the_call/1, heap_bound_ends_the_call/1]).
-export([log/2]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [connect/1, write/2, send/4, close/1, response/1, head/1, closed/1,
                           call/3, post/3, message/3, running/0, finish/2, ended/1]).

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

start(Options) ->
    erlmcp_test_http:start(maps:merge(erlmcp_test_http:definitions(self()), Options)).

%% Bounded refusal: at the limit it succeeds, at the limit plus one it is refused.
depth_and_members_are_bounded(_) ->
    %% The echoed request itself is nested 3 deep and has 11 members.
    Nested = fun(Depth) -> lists:foldl(fun(_, Inner) -> [Inner] end, [], lists:seq(2, Depth)) end,
    Echo = fun(Server, Arguments) ->
        Params = #{name => ~"echo", arguments => Arguments#{text => ~"a"}},
        #{status := Status, messages := [Message]} = call(Server, ~"tools/call", Params),
        {Status, Message}
    end,
    Deep = start(#{limits => #{depth => 10}}),
    {200, #{~"result" := _}} = Echo(Deep, #{deep => Nested(7)}),
    {400, #{~"error" := #{~"code" := -32700, ~"data" := #{~"limit" := 10}}}} =
        Echo(Deep, #{deep => Nested(8)}),
    erlmcp_test_http:stop(Deep),
    Wide = start(#{limits => #{members => 100}}),
    Members = fun(Count) -> #{integer_to_binary(N) => N || N <- lists:seq(1, Count)} end,
    {_, Body} = message(~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}}, #{}),
    Own = length(binary:matches(Body, ~"\":")),
    {200, #{~"result" := _}} = Echo(Wide, Members(100 - Own)),
    {400, #{~"error" := #{~"code" := -32700, ~"data" := #{~"limit" := 100}}}} =
        Echo(Wide, Members(101 - Own)),
    erlmcp_test_http:stop(Wide).

%% Messages that a client sends ahead have no other bound.
memory_of_a_connection_is_bounded(Config) ->
    Socket = connect(server(Config)),
    {ok, Own} = inet:sockname(Socket),
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    ok = send(Socket, ~"POST", Headers, Body),
    #{status := 200} = response(Socket),
    [{max_heap_size, #{size := Words, kill := true}}] =
        [process_info(Pid, max_heap_size)
         || Pid <- processes(), {erlmcp_connection, http, Address, _} <- [proc_lib:get_label(Pid)],
            Address =:= Own],
    true = Words > 0,
    close(Socket).

%% Bounded refusal: 413 before the body that is too large is sent.
body_is_bounded_by_its_length(_) ->
    Server = start(#{limits => #{message_bytes => 1000}}),
    {Headers, _} = message(~"tools/call", #{name => ~"echo"}, #{}),
    #{status := 200} = post(Server, Headers, sized(1000)),
    Socket = connect(Server),
    ok = send(Socket, ~"POST", [{~"content-length", ~"1001"} | Headers], ~""),
    #{status := 413, messages := [#{~"error" := #{~"code" := 1068, ~"data" := Data}}]} =
        response(Socket),
    #{~"limit" := 1000, ~"observed" := 1001, ~"name" := ~"message_too_large"} = Data,
    close(Socket),
    #{status := 413} = post(Server, Headers, sized(1001)),
    %% Not an atom, an integer or a megabyte more of anything for a number without end.
    Huge = connect(Server),
    ok = send(Huge, ~"POST", [{~"content-length", ~"99999999999999999"} | Headers], ~"{"),
    #{status := 413} = response(Huge),
    ok = closed(Huge),
    erlmcp_test_http:stop(Server).

%% Bounded refusal: a body without a length is refused when it passes the limit, not when it ends.
body_is_bounded_while_it_arrives(_) ->
    Server = start(#{limits => #{message_bytes => 1000}}),
    {Headers, _} = message(~"tools/call", #{name => ~"echo"}, #{}),
    Chunked = [{~"transfer-encoding", ~"chunked"}, {~"host", ~"localhost"} | Headers],
    Open = fun() ->
        Socket = connect(Server),
        write(Socket, [~"POST /mcp HTTP/1.1\r\n",
                       [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Chunked], ~"\r\n"]),
        Socket
    end,
    Good = Open(),
    <<First:400/binary, Second/binary>> = sized(1000),
    write(Good, chunk(First)),
    write(Good, [chunk(Second), ~"0\r\n\r\n"]),
    #{status := 200} = response(Good),
    %% and it lives on
    ok = send(Good, ~"POST", Headers, sized(500)),
    #{status := 200} = response(Good),
    close(Good),
    Bad = Open(),
    write(Bad, chunk(First)),
    write(Bad, chunk(<<Second/binary, $\s>>)),
    #{status := 413, messages := [#{~"error" := #{~"code" := 1068}}]} = response(Bad),
    %% What follows cannot be told from a new request: the connection is over.
    ok = closed(Bad),
    erlmcp_test_http:stop(Server).

sized(Size) ->
    {_, Empty} = echo(~""),
    {_, Body} = echo(binary:copy(~"x", Size - byte_size(Empty))),
    Size = byte_size(Body),
    Body.

echo(Text) ->
    message(~"tools/call", #{name => ~"echo", arguments => #{text => Text}}, #{}).

chunk(Bytes) ->
    [integer_to_binary(byte_size(Bytes), 16), ~"\r\n", Bytes, ~"\r\n"].

%% RFC 9110, 15.5.9: "The 408 (Request Timeout) status code indicates that the server did not
%% receive a complete request message within the time that it was prepared to wait." It says that it
%% closes the connection (RFC 9112, 9.6), and does not wait for the rest.
body_that_stops_is_408(_) ->
    Server = start(#{limits => #{receive_timeout_ms => 1500}}),
    {Headers, Body} = echo(~"text"),
    <<Half:20/binary, _/binary>> = Body,
    Length = {~"content-length", integer_to_binary(byte_size(Body))},
    Socket = connect(Server),
    ok = send(Socket, ~"POST", [Length | Headers], Half),
    timed_out(Socket),
    erlmcp_test_http:stop(Server).

body_that_never_starts_is_408(_) ->
    Server = start(#{limits => #{receive_timeout_ms => 1500}}),
    {Headers, _} = echo(~"text"),
    Socket = connect(Server),
    ok = send(Socket, ~"POST", [{~"content-length", ~"20"} | Headers], ~""),
    timed_out(Socket),
    erlmcp_test_http:stop(Server).

timed_out(Socket) ->
    #{status := 408, messages := [#{~"error" := Error}]} = response(Socket),
    #{~"code" := 1069, ~"data" := #{~"limit" := 1500}} = Error,
    ok = closed(Socket).

%% A refusal "costs the server almost nothing": a client that is refused early and sends neither
%% the rest nor another request does not keep its connection.
refused_body_that_never_comes_is_not_waited_for(_) ->
    Server = start(#{limits => #{receive_timeout_ms => 1500}}),
    Socket = connect(Server),
    ok = send(Socket, ~"POST", [{~"content-length", ~"20"}, {~"content-type", ~"text/plain"}], ~""),
    #{status := 415} = response(Socket),
    ok = closed(Socket),
    erlmcp_test_http:stop(Server).

%% RFC 9110, 10.1.1: "Upon receiving an HTTP/1.1 (or later) request that has a method, target URI,
%% and complete header section that contains a 100-continue expectation and an indication that
%% request content will follow, an origin server MUST send either: an immediate response with a
%% final status code [...] or an immediate 100 (Continue) response".
expectation_is_answered_with_continue(Config) ->
    Server = server(Config),
    {Headers, Body} = echo(~"waited for"),
    Expecting = [{~"expect", ~"100-continue"},
                 {~"content-length", integer_to_binary(byte_size(Body))} | Headers],
    Socket = connect(Server),
    ok = send(Socket, ~"POST", Expecting, ~""),
    {100, _} = head(Socket),
    write(Socket, Body),
    #{status := 200} = response(Socket),
    close(Socket),
    Refused = connect(Server),
    ok = send(Refused, ~"POST", [{~"origin", ~"http://evil.example.com"} | Expecting], ~""),
    #{status := 403} = response(Refused),
    close(Refused).

%% "Nothing waits without a bound": not what a client sends behind a request that is being served.
what_waits_behind_a_call_is_bounded(_) ->
    Server = start(#{limits => #{message_bytes => 100_000, reply_bytes => 100_000,
                                 unread_bytes => 100_000}}),
    Socket = connect(Server),
    ok = inet:setopts(Socket, [{send_timeout, 500}]),
    {Headers, Body} = message(~"tools/call", #{name => ~"wait"}, #{}),
    ok = send(Socket, ~"POST", Headers, Body),
    {Pid, _} = running(),
    %% More than the kernel's buffers of both sides hold.
    {error, _} = flood(Socket, binary:copy(~"x", 1 bsl 20), 64),
    close(Socket),
    _ = ended(Pid),
    #{status := 200} = call(Server, ~"tools/list", #{}),
    erlmcp_test_http:stop(Server).

flood(_, _, 0) ->
    everything_was_taken;
flood(Socket, Bytes, Times) ->
    case gen_tcp:send(Socket, Bytes) of
        ok -> flood(Socket, Bytes, Times - 1);
        {error, _} = Error -> Error
    end.

%% Nothing else is disturbed by a refusal, on the same connection neither.
connection_lives_after_each_refusal(_) ->
    Server = start(#{limits => #{message_bytes => 2000}}),
    Socket = connect(Server),
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    Replaced = fun(Name, Value) -> lists:keystore(Name, 1, Headers, {Name, Value}) end,
    [begin
         ok = send(Socket, Method, Sent, Bytes),
         {Status, _} = {Got, _} = {maps:get(status, response(Socket)), {Method, Sent}},
         Status = Got,
         ok = send(Socket, ~"POST", Headers, Body),
         #{status := 200} = response(Socket)
     end || {Status, Method, Sent, Bytes} <-
            [{403, ~"POST", [{~"origin", ~"null"} | Headers], Body},
             {403, ~"POST", [{~"host", ~"evil.example.com"} | Headers], Body},
             {405, ~"PUT", Headers, Body},
             {405, ~"GET", Headers, ~""},
             {400, ~"DELETE", Headers, ~""},
             {404, ~"DELETE", [{~"mcp-session-id", ~"none"} | Headers], ~""},
             {415, ~"POST", Replaced(~"content-type", ~"text/plain"), Body},
             {415, ~"POST", [{~"content-encoding", ~"br"} | Headers], Body},
             {406, ~"POST", Replaced(~"accept", ~"text/html"), Body},
             {415, ~"POST", [{~"transfer-encoding", ~"chunked"}, {~"content-length", none}
                             | Replaced(~"content-type", ~"text/plain")],
              [chunk(Body), chunk(Body), ~"0\r\n\r\n"]},
             {413, ~"POST", Headers, sized(2001)},
             {400, ~"POST", Headers, ~"{"},
             {400, ~"POST", Headers, ~"[]"},
             {400, ~"POST", Headers, ~""},
             {400, ~"POST", Replaced(~"mcp-protocol-version", ~"1"), Body},
             {400, ~"POST", Replaced(~"mcp-method", ~"ping"), Body},
             {404, ~"POST", Replaced(~"mcp-method", ~"no/such"),
              element(2, message(~"no/such", #{}, #{}))},
             {202, ~"POST", Headers, ~'{"jsonrpc":"2.0","method":"notifications/x"}'}]],
    close(Socket),
    erlmcp_test_http:stop(Server).

%% The rest of a refused request is read and dropped, unless its chunks are broken. Then the
%% connection ends, and its process does not crash.
broken_rest_of_a_refused_request_ends_it(_) ->
    #{pid := Supervisor} = Server = start(#{listen => [{http, #{health => true}}]}),
    [Listener] = [Id || {{listener, Id}, _, _, _} <- supervisor:which_children(Supervisor)],
    [begin
         Socket = connect(Server),
         write(Socket, [Head, ~" HTTP/1.1\r\nHost: localhost\r\n",
                        ~"Transfer-Encoding: chunked\r\n\r\n"]),
         #{status := Status} = response(Socket),
         [Connection] = connections(1, Listener),
         Monitor = monitor(process, Connection),
         write(Socket, ~"x\r\n"),
         receive {'DOWN', Monitor, process, Connection, Reason} -> {shutdown, _} = Reason end,
         ~"" = until_closed(Socket)
     end || {Status, Head} <- [{405, ~"PUT /health"}, {405, ~"PUT /mcp"}, {404, ~"POST /other"}]],
    erlmcp_test_http:stop(Server).

%% RFC 9112, 2.5 and 9.3: a response to an HTTP/1.0 request, which has no chunks and no keep-alive.
http_1_0_is_served(Config) ->
    Post = fun({Headers, Body}) ->
        Socket = connect(server(Config)),
        write(Socket, [~"POST /mcp HTTP/1.0\r\nHost: localhost\r\nContent-Length: ",
                       integer_to_binary(byte_size(Body)), ~"\r\n",
                       [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers], ~"\r\n", Body]),
        {200, Received} = head(Socket),
        false = is_map_key(~"transfer-encoding", Received),
        {maps:get(~"content-type", Received), until_closed(Socket)}
    end,
    {~"application/json", Json} = Post(message(~"tools/list", #{}, #{})),
    #{~"id" := 1, ~"result" := _} = json:decode(Json),
    {~"text/event-stream", Events} =
        Post(message(~"tools/call", #{name => ~"progress"}, #{meta => #{progressToken => 1}})),
    4 = length(binary:matches(Events, ~"data: ")).

until_closed(Socket) ->
    case gen_tcp:recv(Socket, 0, 5000) of
        {ok, Bytes} -> <<Bytes/binary, (until_closed(Socket))/binary>>;
        {error, closed} -> <<>>
    end.

%% RFC 9112, 9.3.2: "A server MAY process a sequence of pipelined requests in parallel if they all
%% have safe methods [...], but it MUST send the corresponding responses in the same order that the
%% requests were received."
pipelined_requests_are_answered_in_order(Config) ->
    Socket = connect(server(Config)),
    Posts = [message(~"tools/call", #{name => ~"wait"}, #{id => 1}),
             message(~"tools/list", #{}, #{id => 2}),
             message(~"tools/call", #{name => ~"progress"},
                     #{id => 3, meta => #{progressToken => 3}}),
             message(~"tools/call", #{name => ~"no such"}, #{id => 4}),
             message(~"server/discover", #{}, #{id => 5})],
    write(Socket, [[~"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: ",
                    integer_to_binary(byte_size(Body)), ~"\r\n",
                    [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers], ~"\r\n", Body]
                   || {Headers, Body} <- Posts]),
    {Pid, _} = running(),
    finish(Pid, ~"first"),
    [#{~"id" := Id} = lists:last(maps:get(messages, response(Socket)))
     || Id <- [1, 2, 3, 4, 5]],
    close(Socket).

hundred_connections_are_served_at_once(Config) ->
    Server = server(Config),
    Sockets = [{N, connect(Server)} || N <- lists:seq(1, 100)],
    [begin
         {Headers, Body} = message(~"tools/call", #{name => ~"wait", arguments => #{n => N}},
                                   #{id => N}),
         ok = send(Socket, ~"POST", Headers, Body)
     end || {N, Socket} <- Sockets],
    %% All of them run before one of them ends.
    Calls = maps:from_list([{N, Pid} || _ <- Sockets, {Pid, #{~"n" := N}} <- [running()]]),
    100 = map_size(Calls),
    [finish(maps:get(N, Calls), integer_to_binary(N)) || {N, _} <- lists:reverse(Sockets)],
    [begin
         Text = integer_to_binary(N),
         #{messages := [#{~"id" := N, ~"result" := #{~"content" := [#{~"text" := Text}]}}]} =
             response(Socket),
         close(Socket)
     end || {N, Socket} <- Sockets].

%% JSON-RPC 2.0: "-32603 Internal error." What happened is in the log under the incident's id.
crash_is_one_internal_error(Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    Socket = connect(server(Config)),
    {Headers, Body} = message(~"tools/call", #{name => ~"crash"}, #{id => 7}),
    ok = send(Socket, ~"POST", Headers, Body),
    #{messages := [#{~"id" := 7, ~"error" := #{~"code" := -32603, ~"data" := Data} = Error}],
      status := 500, body := Bytes} = response(Socket),
    #{~"incident" := Incident, ~"refusal" := 1079} = Data,
    receive
        {logged, #{incident := Incident, reason := on_purpose}} -> ok
    after 30_000 ->
        error(not_logged)
    end,
    ok = logger:remove_handler(?MODULE),
    [nomatch = string:find(Bytes, Secret)
     || Secret <- [~"on_purpose", ~".erl", ~"<0.", ~"erlmcp_"]],
    true = is_binary(maps:get(~"message", Error)),
    {More, Text} = echo(~"still here"),
    ok = send(Socket, ~"POST", More, Text),
    #{status := 200} = response(Socket),
    close(Socket).

-doc false.
log(#{msg := {report, Report}}, #{config := #{test := Test}}) ->
    Test ! {logged, Report};
log(_, _) ->
    ok.

%% "Implementations SHOULD always enforce a maximum timeout."
deadline_ends_the_call(Config) ->
    Socket = connect(server(Config)),
    {Headers, Body} = message(~"tools/call", #{name => ~"slow"}, #{id => 8}),
    ok = send(Socket, ~"POST", Headers, Body),
    {Pid, _} = running(),
    %% It may have ended already.
    true = lists:member(ended(Pid), [killed, noproc]),
    #{status := 503, messages := [#{~"id" := 8, ~"error" := #{~"code" := 1069}}]} =
        response(Socket),
    {More, Text} = echo(~"still here"),
    ok = send(Socket, ~"POST", More, Text),
    #{status := 200} = response(Socket),
    close(Socket).

heap_bound_ends_the_call(_) ->
    Server = start(#{limits => #{call_heap_bytes => 1_000_000}}),
    Socket = connect(Server),
    {Headers, Body} = message(~"tools/call", #{name => ~"hog"}, #{id => 9}),
    ok = send(Socket, ~"POST", Headers, Body),
    #{status := 503, messages := [#{~"id" := 9, ~"error" := #{~"code" := 1089}}]} =
        response(Socket),
    {More, Text} = echo(~"still here"),
    ok = send(Socket, ~"POST", More, Text),
    #{status := 200} = response(Socket),
    close(Socket),
    erlmcp_test_http:stop(Server).

%% An empty line before it makes no difference.
a_head_in_many_packets_is_searched_once(Config) ->
    #{pid := Supervisor} = Server = server(Config),
    [Listener] = [Id || {{listener, Id}, _, _, _} <- supervisor:which_children(Supervisor)],
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    Long = binary:copy(~"y", 4_000),
    Lines = [~"POST /mcp HTTP/1.1", ~"Host: localhost",
             [~"Content-Length: ", integer_to_binary(byte_size(Body))]
             | [[Name, ~": ", Value] || {Name, Value} <- Headers]]
        ++ lists:duplicate(80, [~"X: ", Long]),
    Work = fun(Before) ->
        Socket = connect(Server),
        Bytes = iolist_to_binary([Before, [[Line, ~"\r\n"] || Line <- Lines], ~"\r\n"]),
        Size = byte_size(Bytes) - 200,
        <<First:Size/binary, Rest/binary>> = Bytes,
        ok = write(Socket, First),
        [Pid] = connections(1, Listener),
        Side = erlmcp_test_http:other_side(Socket),
        ok = until_read(Size, Side),
        Reductions = erlmcp_test_reductions:of_process(Pid, fun() ->
            %% Each byte is a packet of its own.
            [begin
                 ok = write(Socket, <<Byte>>),
                 ok = until_read(Size + Nth, Side)
             end || {Nth, Byte} <- lists:enumerate(binary_to_list(Rest))],
            ok = write(Socket, Body),
            #{status := 200} = response(Socket)
        end),
        close(Socket),
        [] = connections(0, Listener),
        Reductions
    end,
    _ = Work(~""),
    [Alone, Behind] = [lists:min([Work(Before) || _ <- [1, 2, 3]]) || Before <- [~"", ~"\r\n"]],
    {true, _} = {Behind < 2 * Alone, {Alone, Behind}}.

until_read(Bytes, Port) ->
    case inet:getstat(Port, [recv_oct]) of
        {ok, [{recv_oct, Bytes}]} -> ok;
        {ok, [{recv_oct, Fewer}]} when Fewer < Bytes -> until_read(Bytes, Port)
    end.

connections(Count, Listener) ->
    case ranch:procs(Listener, connections) of
        Pids when length(Pids) =:= Count -> Pids;
        _ -> receive after 10 -> connections(Count, Listener) end
    end.
