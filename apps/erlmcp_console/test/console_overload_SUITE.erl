-module(console_overload_SUITE).
-moduledoc """
The console of a server that is overloaded: all its places for requests, for waiting requests and
for connections are taken, and clients that are refused come again at once. The page, its stream and
its actions are answered within a second.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([a_flooded_server_has_its_console/1]).

-import(erlmcp_test_console, [get/2, post/3, open/2]).

%% The bound of every answer of the console.
-define(ANSWERS_MS, 1_000).
-define(IN_FLIGHT, 4).
-define(WAITING, 4).
-define(CONNECTIONS, 16).
-define(INSIDE, 2).
-define(OUTSIDE, 6).
-define(PATIENCE, 60_000).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [a_flooded_server_has_its_console].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, erlmcp_console], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

a_flooded_server_has_its_console(_) ->
    Test = self(),
    Wait = fun(_, _) -> Test ! {waits, self()}, waits() end,
    Server = erlmcp_test_console:start(#{
        tools => [#{name => ~"wait", handler => Wait}],
        limits => #{in_flight => ?IN_FLIGHT, queue => ?WAITING, connections => ?CONNECTIONS}}),
    #{pid := Pid} = Server,
    %% A call on each of some connections, and no room on any other.
    Calling = [calling(Server) || _ <- lists:seq(1, ?IN_FLIGHT + ?WAITING)],
    Handlers = [receive {waits, Handler} -> Handler after ?PATIENCE -> ct:fail(no_call) end
                || _ <- lists:seq(1, ?IN_FLIGHT)],
    Inside = [spawn_link(fun() -> flood_inside(erlmcp_test_http:connect(Server)) end)
              || _ <- lists:seq(1, ?INSIDE)],
    Idle = [erlmcp_test_http:connect(Server)
            || _ <- lists:seq(1, ?CONNECTIONS - length(Calling) - ?INSIDE)],
    ok = until(fun() ->
        #{in_flight := InFlight, waiting := Waiting, connections := Connections} =
            erlmcp:metrics(Pid),
        {InFlight, Waiting, Connections} =:= {?IN_FLIGHT, ?WAITING, ?CONNECTIONS}
    end),
    Refused = counters:new(1, []),
    Outside = [spawn_link(fun() -> flood(Server, Refused) end) || _ <- lists:seq(1, ?OUTSIDE)],
    ok = until(fun() -> counters:get(Refused, 1) > 100 end),
    Pauses = erlmcp_test_pauses:start(),
    Feed = open(~"/console/feed", Server),
    {200, _} = in_time(head, fun() -> erlmcp_test_http:head(Feed) end, Pauses),
    {~"hello", _} = in_time(hello, fun() -> erlmcp_test_console:next_event(Feed) end,
                             Pauses),
    [{200, _, _} = in_time(page, fun() -> get(~"/console/", Server) end, Pauses)
     || _ <- lists:seq(1, 5)],
    %% A snapshot comes each second, and says what is wrong.
    Snapshot = not_well(Feed, erlang:monotonic_time(millisecond), Pauses),
    #{~"calls" := Calls, ~"verdict" := #{~"causes" := Causes}} = Snapshot,
    [_ | _] = [Words || #{~"link" := ~"bounds", ~"words" := Words} <- Causes],
    %% One that holds a place is ended.
    Monitors = [monitor(process, Handler) || Handler <- Handlers],
    [Id | _] = [Id || #{~"id" := Id, ~"stack" := Stack} <- Calls,
                      Frame <- Stack, binary:match(Frame, atom_to_binary(?MODULE)) =/= nomatch],
    {200, _, _} = in_time(cancel, fun() -> post(~"/console/cancel", #{id => Id}, Server) end,
                          Pauses),
    Before = counters:get(Refused, 1),
    in_time(ended, fun() ->
        receive {'DOWN', Monitor, process, _, _} -> true = lists:member(Monitor, Monitors)
        after ?PATIENCE -> ct:fail(runs_on)
        end
    end, Pauses),
    %% All the time it was flooded.
    ok = until(fun() -> counters:get(Refused, 1) > Before + 50 end),
    ok = erlmcp_test_pauses:stop(Pauses),
    [begin unlink(Flood), exit(Flood, kill) end || Flood <- Inside ++ Outside],
    [ok = erlmcp_test_http:close(Socket) || Socket <- [Feed | Calling ++ Idle]],
    erlmcp_test_http:stop(Server).

%% In the stack of its call.
waits() ->
    receive never -> ~"done" end.

calling(Server) ->
    Socket = erlmcp_test_http:connect(Server),
    {Headers, Body} = call(),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    Socket.

call() ->
    erlmcp_test_http:message(~"tools/call", #{name => ~"wait", arguments => #{}}, #{}).

%% A client that comes again as soon as it was refused, on the next connection, or on the same one.
flood(Server, Refused) ->
    {Headers, Body} = call(),
    #{status := 429} = erlmcp_test_http:post(Server, Headers, Body),
    ok = counters:add(Refused, 1, 1),
    flood(Server, Refused).

flood_inside(Socket) ->
    {Headers, Body} = call(),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    #{} = erlmcp_test_http:response(Socket),
    flood_inside(Socket).

%% The time in which the machine stood still is not the console's.
in_time(What, Do, Pauses) ->
    Begun = erlang:monotonic_time(millisecond),
    Paused = erlmcp_test_pauses:total_ms(Pauses),
    Done = Do(),
    Took = erlang:monotonic_time(millisecond) - Begun,
    ct:pal("~ts: ~b ms", [What, Took]),
    true = Took - (erlmcp_test_pauses:total_ms(Pauses) - Paused) < ?ANSWERS_MS,
    Done.

%% The next snapshot after the one before comes a second later, and that is not the time to answer.
not_well(Feed, Before, Pauses) ->
    Paused = erlmcp_test_pauses:total_ms(Pauses),
    {~"snapshot", Snapshot} = erlmcp_test_console:next_event(Feed),
    Now = erlang:monotonic_time(millisecond),
    true = Now - Before - (erlmcp_test_pauses:total_ms(Pauses) - Paused) < 2 * ?ANSWERS_MS,
    case Snapshot of
        #{~"verdict" := #{~"well" := false}, ~"calls" := [_ | _]} -> Snapshot;
        #{} -> not_well(Feed, Now, Pauses)
    end.

until(Holds) ->
    case Holds() of
        true -> ok;
        false -> receive after 20 -> until(Holds) end
    end.
