-module(floods_SUITE).
-moduledoc """
Floods of sessions and tasks, over real sockets. A client that sends one uses up its own share. No
other client loses a session, or is refused one.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([one_address_takes_no_others_places/1, sessions_in_use_of_one_address_are_bounded/1,
         a_principal_has_sessions_of_its_own/1, many_addresses_shut_out_nobody/1,
         sessions_in_use_are_not_given_up/1, the_oldest_unused_goes_first/1,
         unused_sessions_end/1, killed_sessions_make_room/1, each_use_is_one/1,
         streams_of_http_sse_are_bounded/1, streams_of_http_sse_that_say_nothing_end/1,
         tasks_of_one_address_take_no_others_places/1, results_of_one_take_no_others_room/1,
         defaults_leave_room_for_others/1]).

-import(erlmcp_test_http, [start/1, stop/1, connect/1, close/1, write/2, response/1, call/4,
                           initialize/2, initialize/3, delete/2, get_stream/2]).

-define(REVISION, ~"2025-11-25").
-define(OTHERS, 100).
%% Requests that are written to a connection of a flood before their answers are read.
-define(AT_ONCE, 200).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, sessions}, {group, tasks}, defaults_leave_room_for_others].

groups() ->
    [{sessions, [one_address_takes_no_others_places, sessions_in_use_of_one_address_are_bounded,
                 a_principal_has_sessions_of_its_own, many_addresses_shut_out_nobody,
                 sessions_in_use_are_not_given_up, the_oldest_unused_goes_first,
                 unused_sessions_end, killed_sessions_make_room, each_use_is_one,
                 streams_of_http_sse_are_bounded, streams_of_http_sse_that_say_nothing_end]},
     {tasks, [tasks_of_one_address_take_no_others_places, results_of_one_take_no_others_room]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% Sessions.

%% With what a server has by default: more than its 10,000 sessions from one address.
one_address_takes_no_others_places(_) ->
    Server = start(#{}),
    Before = [initialize(from(other(N), Server), ?REVISION) || N <- lists:seq(1, ?OTHERS div 2)],
    Flood = together(fun() -> flood(12_000, Server) end),
    %% They come while it goes on, and after it.
    Meanwhile = [initialize(from(other(N), Server), ?REVISION)
                 || N <- lists:seq(?OTHERS div 2 + 1, ?OTHERS)],
    [200] = over(Flood),
    After = [initialize(from(other(N), Server), ?REVISION) || N <- lists:seq(1, ?OTHERS)],
    [200 = asked(Server, Session) || Session <- Before ++ Meanwhile ++ After],
    %% Its own address is still let in, and keeps what it uses.
    Own = initialize(Server, ?REVISION),
    [200] = flood(1_100, Server),
    200 = asked(Server, Own),
    #{sessions := Open} = erlmcp:info(pid(Server)),
    true = Open =< 1_000 + 2 * ?OTHERS,
    stop(Server).

%% A flood that uses what it opens has what one address may have, and is told so.
sessions_in_use_of_one_address_are_bounded(_) ->
    Server = start(#{limits => #{sessions_per_principal => 3}}),
    [First | _] = [initialize(Server, ?REVISION) || _ <- [1, 2, 3]],
    #{~"limit" := 3, ~"observed" := 4, ~"retryAfterMs" := 1000,
      ~"name" := ~"concurrent_limit_exceeded"} = refused(Server),
    %% Not others, nor what needs no session.
    _ = initialize(from(other(1), Server), ?REVISION),
    #{status := 200} = call(Server, ~"tools/list", #{}, #{}),
    %% And not what comes when one of them has ended.
    #{status := 204} = delete(Server, First),
    _ = initialize(Server, ?REVISION),
    _ = refused(Server),
    stop(Server).

%% Clients with a principal are counted by it, and not by their address.
a_principal_has_sessions_of_its_own(_) ->
    Who = fun(#{headers := Headers}) -> {ok, maps:get(~"x-who", Headers)} end,
    Server = start(#{listen => [{http, #{authenticate => Who}}],
                     limits => #{sessions_per_principal => 2}}),
    Open = fun(Name, From) -> initialize(from(From, Server), ?REVISION, #{~"x-who" => Name}) end,
    Use = fun(Name, #{status := 200, headers := #{~"mcp-session-id" := Id}}) ->
        #{status := 200} = call(Server, ~"ping", #{}, #{session => {Id, ?REVISION},
                                                       headers => #{~"x-who" => Name}})
    end,
    [Use(~"ada", Open(~"ada", other(N))) || N <- [1, 2]],
    #{status := 429, messages := [#{~"error" := #{~"code" := 1060, ~"message" := Message}}]} =
        Open(~"ada", other(3)),
    ~"too many open sessions of this principal" = Message,
    [Use(~"eve", Open(~"eve", other(1))) || _ <- [1, 2]],
    #{status := 429} = Open(~"eve", other(1)),
    stop(Server).

%% All sessions are taken, and none of their clients is at work. A new client gets one.
many_addresses_shut_out_nobody(_) ->
    Server = start(#{limits => #{sessions => 500, sessions_per_principal => 50}}),
    Old = [initialize(from(other(N), Server), ?REVISION) || N <- lists:seq(1, 20)],
    [[200] = flood(60, from({127, 1, 0, N}, Server)) || N <- lists:seq(1, 20)],
    #{sessions := 500} = erlmcp:info(pid(Server)),
    New = [initialize(from(other(N), Server), ?REVISION) || N <- lists:seq(21, ?OTHERS)],
    [[200] = flood(60, from({127, 1, 0, N}, Server)) || N <- lists:seq(1, 20)],
    [200 = asked(Server, Session) || Session <- Old ++ New],
    #{sessions := 500} = erlmcp:info(pid(Server)),
    stop(Server).

sessions_in_use_are_not_given_up(_) ->
    Server = start(#{limits => #{sessions => 3}}),
    Sessions = [initialize(from(other(N), Server), ?REVISION) || N <- [1, 2, 3]],
    #{~"limit" := 3, ~"observed" := 4} = refused(Server),
    #{~"limit" := 3, ~"observed" := 4} = refused(from(other(1), Server)),
    [200 = asked(Server, Session) || Session <- Sessions],
    stop(Server).

the_oldest_unused_goes_first(_) ->
    Server = start(#{limits => #{sessions => 4, sessions_per_principal => 2}}),
    [A1, A2, B1, C1] = [opened(from(other(N), Server)) || N <- [1, 1, 2, 3]],
    200 = asked(Server, A1),
    %% The oldest of all sessions.
    C2 = opened(from(other(3), Server)),
    404 = asked(Server, A2),
    %% Of its own, where it has as many as one may have; there is an older one.
    C3 = opened(from(other(3), Server)),
    [404, 200, 200, 200, 200] = [asked(Server, Session) || Session <- [C1, C2, C3, B1, A1]],
    stop(Server).

unused_sessions_end(_) ->
    Server = start(#{limits => #{unused_session_ms => 1_500}}),
    Used = initialize(Server, ?REVISION),
    Unused = opened(Server),
    ok = erlmcp_test_servers:await(fun() ->
        case erlmcp:info(pid(Server)) of
            #{sessions := 1} -> {ok, ok};
            #{sessions := 2} -> again
        end
    end),
    404 = asked(Server, Unused),
    200 = asked(Server, Used),
    stop(Server).

%% A session whose process was killed leaves its row, and its client may never come back.
killed_sessions_make_room(_) ->
    Server = start(#{limits => #{session_idle_ms => 1_500}}),
    {Stream, {200, _}} = get_stream(Server, initialize(Server, ?REVISION)),
    exit(erlmcp_test_http:session_process(), kill),
    ok = erlmcp_test_servers:await(fun() ->
        case erlmcp:info(pid(Server)) of
            #{sessions := 0} -> {ok, ok};
            #{sessions := 1} -> again
        end
    end),
    ok = close(Stream),
    stop(Server).

%% A request, a notification, and the stream of the session.
each_use_is_one(_) ->
    Server = start(#{limits => #{sessions => 3}}),
    [A, B, C] = [opened(Server) || _ <- [1, 2, 3]],
    200 = asked(Server, A),
    #{status := 202} = call(Server, ~"notifications/initialized", #{},
                            #{id => none, session => B}),
    {Stream, {200, _}} = get_stream(Server, C),
    _ = refused(Server),
    ok = close(Stream),
    stop(Server).

%% Each of these has a process, and a stream for as long as it is there.
streams_of_http_sse_are_bounded(_) ->
    {ok, _} = application:ensure_all_started(gun),
    Server = erlmcp_test_sse_server:start(#{sessions_per_principal => 2}),
    Clients = [erlmcp_test_sse:open(Server) || _ <- [1, 2]],
    [erlmcp_test_sse:initialize(Client, ?REVISION, #{}) || Client <- Clients],
    {429, _, Refused} = erlmcp_test_sse:get(Server, ~"GET", ~"/sse", []),
    #{~"error" := #{~"code" := 1060, ~"data" := #{~"limit" := 2, ~"observed" := 3}}} =
        json:decode(Refused),
    %% Sessions of both kinds count.
    #{status := 429} = initialize(Server, ?REVISION, #{}),
    _ = initialize(from(other(1), Server), ?REVISION),
    [ok = erlmcp_test_sse:close(Client) || Client <- Clients],
    stop(Server).

streams_of_http_sse_that_say_nothing_end(_) ->
    Server = erlmcp_test_sse_server:start(#{sessions_per_principal => 1}),
    [First, Second] = [connect(Server), connect(Server)],
    Get = ~"GET /sse HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n",
    [begin
         ok = write(Socket, Get),
         {200, _} = erlmcp_test_http:head(Socket),
         <<"event: endpoint", _/binary>> = erlmcp_test_http:chunk(Socket)
     end || Socket <- [First, Second]],
    <<>> = erlmcp_test_http:chunk(First),
    #{sessions := 1} = erlmcp:info(pid(Server)),
    [ok = close(Socket) || Socket <- [First, Second]],
    stop(Server).

%% Tasks.

tasks_of_one_address_take_no_others_places(_) ->
    Server = start_tasks(#{tasks => 600, tasks_per_principal => 60}),
    Flood = together(fun() -> [task(Server) || _ <- lists:seq(1, 700)] end),
    Meanwhile = [{N, task(from(other(N), Server))} || N <- lists:seq(1, ?OTHERS div 2)],
    Statuses = over(Flood),
    {Own, Refused} = lists:partition(fun is_binary/1, Statuses),
    60 = length(Own),
    [#{~"code" := 1060, ~"data" := #{~"limit" := 60, ~"observed" := 61}}] = lists:usort(Refused),
    After = [{N, task(from(other(N), Server))} || N <- lists:seq(1, ?OTHERS)],
    [true = is_there(Id, from(other(N), Server)) || {N, Id} <- Meanwhile ++ After],
    %% Anonymous clients cannot be distinguished: every one that has the id finds it.
    [Id | _] = Own,
    true = is_there(Id, from(other(1), Server)),
    stop(Server).

results_of_one_take_no_others_room(_) ->
    Server = start_tasks(#{task_bytes => 50_000, task_bytes_per_principal => 10_000}),
    Ended = [status(task(Server, 3_000), Server) || _ <- lists:seq(1, 20)],
    3 = length([~"completed" || ~"completed" <- Ended]),
    17 = length([~"failed" || ~"failed" <- Ended]),
    Other = from(other(1), Server),
    [~"completed" = status(task(Other, 3_000), Other) || _ <- [1, 2, 3]],
    stop(Server).

%% One client may take a tenth of all at most; of results a fourth, so that a large one has room.
defaults_leave_room_for_others(_) ->
    Limits = #{Name => Default || {Name, Default, _} <- erlmcp_server_options:limits()},
    [true = map_get(OfOne, Limits) * Parts =< map_get(All, Limits)
     || {OfOne, All, Parts} <- [{sessions_per_principal, sessions, 10},
                                {tasks_per_principal, tasks, 10},
                                {task_bytes_per_principal, task_bytes, 4},
                                {used_states_per_principal, used_states, 10}]],
    ok.

%% Clients.

pid(#{pid := Pid}) ->
    Pid.

from(Ip, Server) ->
    Server#{from => Ip}.

other(N) ->
    {127, 0, 1, N}.

together(Do) ->
    Test = self(),
    spawn_link(fun() -> Test ! {self(), Do()} end).

over(Pid) ->
    receive {Pid, Done} -> Done end.

%% Sends this many `initialize` from one address and nothing else, and returns the answers.
flood(Count, Server) ->
    Socket = connect(Server),
    Statuses = flooded(Count, request(), Socket, []),
    ok = close(Socket),
    Statuses.

flooded(0, _, _, Statuses) ->
    Statuses;
flooded(Count, Request, Socket, Statuses) ->
    AtOnce = min(Count, ?AT_ONCE),
    ok = write(Socket, lists:duplicate(AtOnce, Request)),
    Some = [Status || _ <- lists:seq(1, AtOnce), #{status := Status} <- [response(Socket)]],
    flooded(Count - AtOnce, Request, Socket, lists:usort(Some ++ Statuses)).

request() ->
    Body = json:encode(#{jsonrpc => ~"2.0", id => 1, method => ~"initialize",
                         params => #{protocolVersion => ?REVISION, capabilities => #{},
                                     clientInfo => #{name => ~"flood", version => ~"1"}}}),
    [~"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n",
     ~"Accept: application/json, text/event-stream\r\nContent-Length: ",
     integer_to_binary(iolist_size(Body)), ~"\r\n\r\n", Body].

%% A session that was not used again.
opened(Server) ->
    #{status := 200, headers := #{~"mcp-session-id" := Id}} = initialize(Server, ?REVISION, #{}),
    {Id, ?REVISION}.

refused(Server) ->
    #{status := 429, headers := #{~"retry-after" := ~"1"},
      messages := [#{~"id" := 1, ~"error" := #{~"code" := 1060, ~"data" := Data}}]} =
        initialize(Server, ?REVISION, #{}),
    Data.

asked(Server, Session) ->
    #{status := Status} = call(Server, ~"ping", #{}, #{session => Session}),
    Status.

start_tasks(Limits) ->
    Handler = fun(#{~"bytes" := Bytes}, _) -> binary:copy(~"x", Bytes) end,
    start(#{limits => Limits,
            tools => [#{name => ~"run", task => required, handler => Handler}]}).

task(Server) ->
    task(Server, 1).

%% The id of a new task, or why there is none.
task(Server, Bytes) ->
    Params = #{name => ~"run", arguments => #{bytes => Bytes}},
    case in_tasks(~"tools/call", Params, Server) of
        #{~"result" := #{~"taskId" := Id}} -> Id;
        #{~"error" := Error} -> maps:remove(~"message", Error)
    end.

is_there(Id, Server) ->
    is_map_key(~"result", in_tasks(~"tasks/get", #{taskId => Id}, Server)).

status(Id, Server) ->
    erlmcp_test_servers:await(fun() ->
        case in_tasks(~"tasks/get", #{taskId => Id}, Server) of
            #{~"result" := #{~"status" := ~"working"}} -> again;
            #{~"result" := #{~"status" := Status}} -> {ok, Status}
        end
    end).

in_tasks(Method, Params, Server) ->
    Has = #{extensions => #{~"io.modelcontextprotocol/tasks" => #{}}},
    #{messages := [Answer]} =
        call(Server, Method, Params,
             #{meta => #{~"io.modelcontextprotocol/clientCapabilities" => Has}}),
    Answer.
