-module(recent_requests_SUITE).
-moduledoc """
The last requests of servers: kept while somebody looks, at most so many a second, those that fail
besides those that went well, each once, and without what they carried.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([nothing_is_kept_while_nobody_looks/1, each_end_of_a_request_is_kept_once/1,
         some_a_second_are_kept/1, servers_are_apart/1, the_ring_is_bounded/1,
         payloads_are_not_kept/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [nothing_is_kept_while_nobody_looks, each_end_of_a_request_is_kept_once,
     some_a_second_are_kept, servers_are_apart, the_ring_is_bounded, payloads_are_not_kept].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

nothing_is_kept_while_nobody_looks(_) ->
    {Server, Client} = server(),
    ok = erlmcp_recent_requests:allow(0),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    [] = recent(Server),
    ok = erlmcp:stop_server(Server).

each_end_of_a_request_is_kept_once(_) ->
    {Server, Client} = server(),
    ok = erlmcp_recent_requests:allow(1_000),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    {error, _} = erlmcp_client:call_tool(Client, ~"none", #{}),
    {error, _} = erlmcp_client:call_tool(Client, ~"crashes", #{}),
    Rows = [Row || #{method := ~"tools/call"} = Row <- recent(Server)],
    %% A request for what is not there has no call, and so no target.
    [{~"crashes", 1079}, {undefined, 1048}, {~"echo", none}] =
        [{Target, Error} || #{target := Target, error := Error} <- Rows],
    [#{principal := anonymous, trace := none} = Row || Row <- Rows],
    [true = Took >= 0 andalso Took < 10_000_000 andalso Out > 0
     || #{took_us := Took, bytes_out := Out} <- Rows],
    true = lists:all(fun(#{at := At}) -> abs(erlang:system_time(millisecond) - At) < 10_000 end,
                     Rows),
    ok = erlmcp:stop_server(Server).

%% Those that fail are seen among many that do not.
some_a_second_are_kept(_) ->
    {Server, Client} = server(),
    ok = erlmcp_recent_requests:allow(3),
    [{ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}) || _ <- lists:seq(1, 10)],
    [{error, _} = erlmcp_client:call_tool(Client, ~"none", #{}) || _ <- lists:seq(1, 10)],
    Errors = [Error || #{error := Error} <- recent(Server)],
    {3, 3} = {length([none || none <- Errors]), length([refused || 1048 <- Errors])},
    ok = erlmcp_recent_requests:allow(1),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    7 = length(recent(Server)),
    ok = erlmcp:stop_server(Server).

servers_are_apart(_) ->
    {One, Client} = server(),
    {Other, _} = server(),
    ok = erlmcp_recent_requests:allow(1_000),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    [] = recent(Other),
    [#{target := ~"echo"}] = recent(One),
    ok = erlmcp:stop_server(One),
    ok = erlmcp:stop_server(Other).

the_ring_is_bounded(_) ->
    {Server, Client} = server(),
    ok = erlmcp_recent_requests:allow(10_000),
    [{ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}) || _ <- lists:seq(1, 1_100)],
    100 = length(recent(Server)),
    %% A thousand rows, and the number of the next one.
    true = ets:info(erlmcp_recent_requests, size) =< 1_001,
    ok = erlmcp:stop_server(Server).

payloads_are_not_kept(_) ->
    {Server, Client} = server(),
    ok = erlmcp_recent_requests:allow(1_000),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{password => ~"hunter2-planted"},
                                      #{meta => #{~"token" => ~"hunter2-planted"}}),
    [_ | _] = recent(Server),
    Text = iolist_to_binary(io_lib:format("~0tp", [ets:tab2list(erlmcp_recent_requests)])),
    nomatch = binary:match(Text, ~"hunter2"),
    ok = erlmcp:stop_server(Server).

server() ->
    {ok, Server} = erlmcp:start_server(#{
        name => ~"test", version => ~"1.0.0",
        tools => [#{name => ~"echo", handler => fun(_, _) -> ~"done" end},
                  #{name => ~"crashes", handler => fun(_, _) -> error(on_purpose) end}]}),
    {ok, Client} = erlmcp_client:start_link({server, Server, #{}}),
    ok = erlmcp_recent_requests:allow(0),
    {ok, _} = erlmcp_client:list_tools(Client),
    {Server, Client}.

%% A row is there when its client has its answer, since it is added before.
recent(Server) ->
    {ok, _, #{key := Key}} = erlmcp_registry:whereis(Server),
    erlmcp_recent_requests:list(Key).
