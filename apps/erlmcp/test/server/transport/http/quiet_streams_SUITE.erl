-module(quiet_streams_SUITE).
-moduledoc """
Comments on streams that have nothing to say: they come at each interval, and not only once, since a
proxy between server and client gives up a stream that was quiet for too long.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([of_a_call/1, of_a_subscription/1, of_a_session/1, of_http_sse/1]).

-define(TIMEOUT, 30_000).
-define(INTERVAL_MS, 20).
-define(COMMENTS, 4).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, http2}].

groups() ->
    [{Protocol, [of_a_call, of_a_subscription, of_a_session, of_http_sse]}
     || Protocol <- [http, http2]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Protocol, Config) ->
    [{protocol, Protocol} | Config].

end_per_group(_, _) ->
    ok.

%% A call whose handler has said one thing, and then waits.
of_a_call(Config) ->
    comments(Config, fun(_) ->
        {Headers, Body} = erlmcp_test_http:message(
            ~"tools/call", #{name => ~"talks"},
            #{meta => #{~"io.modelcontextprotocol/logLevel" => ~"debug"}}),
        {~"POST", ~"/mcp", Headers, Body}
    end).

of_a_subscription(Config) ->
    comments(Config, fun(_) ->
        {Headers, Body} = erlmcp_test_http:message(
            ~"subscriptions/listen", #{notifications => #{toolsListChanged => true}}, #{}),
        {~"POST", ~"/mcp", Headers, Body}
    end).

of_a_session(Config) ->
    comments(Config, fun(Server) ->
        {Id, Revision} = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
        {~"GET", ~"/mcp", [{~"accept", ~"text/event-stream"}, {~"mcp-session-id", Id},
                           {~"mcp-protocol-version", Revision}], ~""}
    end).

of_http_sse(Config) ->
    comments(Config, fun(_) -> {~"GET", ~"/sse", [{~"accept", ~"text/event-stream"}], ~""} end).

comments(Config, Request) ->
    #{tools := Tools} = Definitions = erlmcp_test_http:definitions(self()),
    Talks = #{name => ~"talks", handler => fun(_, Context) ->
        ok = erlmcp:log(Context, error, ~"one thing"),
        receive never -> ~"" end
    end},
    #{port := Port} = Server = erlmcp_test_http:start(
        Definitions#{tools := [Talks | Tools], limits => #{keep_alive_ms => ?INTERVAL_MS},
                     listen => [{http, #{sse => #{}}}]}),
    {Method, Path, Headers, Body} = Request(Server),
    Protocol = proplists:get_value(protocol, Config),
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [Protocol], retry => 0}),
    {ok, Protocol} = gun:await_up(Connection, ?TIMEOUT),
    Begun = erlang:monotonic_time(millisecond),
    Stream = gun:request(Connection, Method, Path, Headers, Body),
    {response, nofin, 200, _} = gun:await(Connection, Stream, ?TIMEOUT),
    ok = read(?COMMENTS, ~"", Connection, Stream),
    %% A session's stream begins with a comment.
    true = erlang:monotonic_time(millisecond) - Begun >= (?COMMENTS - 1) * ?INTERVAL_MS,
    gun:close(Connection),
    erlmcp_test_http:stop(Server).

read(Left, Held, Connection, Stream) ->
    {data, nofin, Data} = gun:await(Connection, Stream, ?TIMEOUT),
    Blocks = binary:split(<<Held/binary, Data/binary>>, ~"\n\n", [global]),
    case Left - length([Block || <<":", _/binary>> = Block <- lists:droplast(Blocks)]) of
        Fewer when Fewer > 0 -> read(Fewer, lists:last(Blocks), Connection, Stream);
        _ -> ok
    end.
