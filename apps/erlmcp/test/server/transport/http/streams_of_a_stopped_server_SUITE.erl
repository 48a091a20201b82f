-module(streams_of_a_stopped_server_SUITE).
-moduledoc """
The connections of a server that is stopped: one without a request ends at once, and so does one
with a stream that would not end by itself. Nobody waits until a connection is killed.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([an_idle_connection_ends/1, a_sessions_stream_ends/1, a_subscription_ends/1,
         many_streams_end/1, streams_that_have_ended_are_forgotten/1]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [{group, http}, {group, http2}].

groups() ->
    Cases = [an_idle_connection_ends, a_sessions_stream_ends, a_subscription_ends],
    [{http, Cases}, {http2, Cases ++ [many_streams_end, streams_that_have_ended_are_forgotten]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Protocol, Config) ->
    [{protocol, Protocol} | Config].

end_per_group(_, _) ->
    ok.

an_idle_connection_ends(Config) ->
    Server = erlmcp_test_http:start(#{}),
    Connection = connection(Server, Config),
    {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
    Stream = gun:post(Connection, ~"/mcp", Headers, Body),
    {response, nofin, 200, _} = gun:await(Connection, Stream, ?PATIENCE),
    {ok, _} = gun:await_body(Connection, Stream, ?PATIENCE),
    ok = stopped_at_once(Server),
    gun:close(Connection).

a_sessions_stream_ends(Config) ->
    Server = erlmcp_test_http:start(#{}),
    Connection = connection(Server, Config),
    Stream = of_session(Connection, Server),
    ok = stopped_at_once(Server),
    {ok, _} = gun:await_body(Connection, Stream, ?PATIENCE),
    gun:close(Connection).

of_session(Connection, Server) ->
    {Id, Revision} = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    Stream = gun:get(Connection, ~"/mcp", [{~"mcp-session-id", Id},
                                           {~"mcp-protocol-version", Revision},
                                           {~"accept", ~"text/event-stream"}]),
    {response, nofin, 200, _} = gun:await(Connection, Stream, ?PATIENCE),
    Stream.

%% With its result.
a_subscription_ends(Config) ->
    Server = erlmcp_test_http:start(#{}),
    Connection = connection(Server, Config),
    {Headers, Body} = erlmcp_test_http:message(
        ~"subscriptions/listen", #{notifications => #{toolsListChanged => true}}, #{}),
    Stream = gun:post(Connection, ~"/mcp", Headers, Body),
    {response, nofin, 200, _} = gun:await(Connection, Stream, ?PATIENCE),
    ok = stopped_at_once(Server),
    {ok, Bytes} = gun:await_body(Connection, Stream, ?PATIENCE),
    {_, _} = binary:match(Bytes, ~"\"result\""),
    gun:close(Connection).

many_streams_end(Config) ->
    Server = erlmcp_test_http:start(#{}),
    Connection = connection(Server, Config),
    Streams = [of_session(Connection, Server) || _ <- lists:seq(1, 20)],
    ok = stopped_at_once(Server),
    [{ok, _} = gun:await_body(Connection, Stream, ?PATIENCE) || Stream <- Streams],
    gun:close(Connection).

%% Streams that the client has left.
streams_that_have_ended_are_forgotten(Config) ->
    Server = erlmcp_test_http:start(#{}),
    Connection = connection(Server, Config),
    [begin
         Stream = of_session(Connection, Server),
         gun:cancel(Connection, Stream)
     end || _ <- lists:seq(1, 20)],
    Last = of_session(Connection, Server),
    [_] = lasting(),
    ok = stopped_at_once(Server),
    {ok, _} = gun:await_body(Connection, Last, ?PATIENCE),
    gun:close(Connection).

%% The streams that the node's one HTTP/2 connection would end.
lasting() ->
    [Lasting] = [element(4, Known)
                 || Pid <- processes(),
                    {{dictionary, erlmcp_httpd_http2}, Known} <-
                        [process_info(Pid, {dictionary, erlmcp_httpd_http2})],
                    is_tuple(Known)],
    Lasting.

connection(#{port := Port}, Config) ->
    {ok, Connection} = gun:open("127.0.0.1", Port, #{
        protocols => [proplists:get_value(protocol, Config)], retry => 0}),
    {ok, _} = gun:await_up(Connection, ?PATIENCE),
    Connection.

%% A connection that does not end by itself is killed after five seconds, and cowboy's after four.
stopped_at_once(Server) ->
    Pauses = erlmcp_test_pauses:start(),
    Began = erlang:monotonic_time(millisecond),
    ok = erlmcp_test_http:stop(Server),
    Took = erlang:monotonic_time(millisecond) - Began,
    true = Took < 3_000 + erlmcp_test_pauses:total_ms(Pauses) orelse error({took, Took}),
    erlmcp_test_pauses:stop(Pauses).
