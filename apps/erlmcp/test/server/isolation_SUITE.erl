-module(isolation_SUITE).
-moduledoc "What is killed disturbs nobody, and nothing is left of what has ended.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([killed_calls_disturb_nobody/1, killed_connections_disturb_nobody/1,
         killed_sessions_disturb_nobody/1, starting_and_stopping_leaves_nothing/1,
         failed_starts_leave_nothing/1, crashed_starts_leave_nothing/1,
         killed_servers_leave_nothing/1, connections_leave_nothing/1,
         names_from_outside_become_no_atoms/1]).
%% As of a store of tasks.
-export([open/2]).

-import(erlmcp_test_line, [connect/1, close/1, send/2, recv/1, rest/1, is_quiet/1, initialize/2,
                           request/3, stateless/3, waiting_tool/1, await_call/0]).
-import(erlmcp_test_servers, [start/1, options/1, started/1, child/2, await/1, down/1, definition/2,
                              with/2, http/3, initialize_request/0]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [killed_calls_disturb_nobody, killed_connections_disturb_nobody, killed_sessions_disturb_nobody,
     starting_and_stopping_leaves_nothing, failed_starts_leave_nothing,
     crashed_starts_leave_nothing, killed_servers_leave_nothing, connections_leave_nothing,
     names_from_outside_become_no_atoms].

init_per_suite(Config) ->
    erlmcp_test_servers:init_suite(Config).

end_per_suite(Config) ->
    erlmcp_test_servers:end_suite(Config).

init_per_testcase(_, Config) ->
    erlmcp_test_servers:init_case(Config).

end_per_testcase(_, _) ->
    erlmcp_test_servers:stop_all().

%% "Its crash costs its caller one JSON-RPC error and nobody else anything."
killed_calls_disturb_nobody(_) ->
    Server = start(#{tools => [waiting_tool(~"wait")]}),
    Socket = connect(Server),
    [send(Socket, stateless(Id, ~"tools/call", #{~"name" => ~"wait", ~"arguments" => #{}}))
     || Id <- [1, 2]],
    [One, Two] = [await_call() || _ <- [1, 2]],
    exit(One, kill),
    #{~"id" := Killed, ~"error" := #{~"code" := _}} = recv(Socket),
    true = is_quiet(Socket),
    Two ! {answer, ~"fine"},
    #{~"id" := Kept, ~"result" := _} = recv(Socket),
    [1, 2] = lists:sort([Killed, Kept]).

%% Also a connection that could not say good-bye takes nobody with it but its own calls.
killed_connections_disturb_nobody(_) ->
    Server = start(#{tools => [waiting_tool(~"wait")]}),
    [Lost, Kept] = Sockets = [connect(Server) || _ <- [1, 2]],
    [initialize(Socket, ~"2025-11-25") || Socket <- Sockets],
    send(Lost, request(1, ~"tools/call", #{~"name" => ~"wait"})),
    Call = await_call(),
    send(Kept, request(1, ~"tools/call", #{~"name" => ~"wait"})),
    KeptCall = await_call(),
    {links, [Connection]} = process_info(Call, links),
    Monitor = monitor(process, Call),
    exit(Connection, kill),
    down(Monitor),
    {error, closed} = erlmcp_test_line:recv_line(Lost, ?PATIENCE),
    KeptCall ! {answer, ~"kept"},
    #{~"id" := 1, ~"result" := _} = recv(Kept),
    %% What the dead connection left in the session table holds up no change.
    ok = erlmcp:add(Server, tool, definition(tool, ~"added")),
    #{~"method" := ~"notifications/tools/list_changed"} = recv(Kept),
    true = is_quiet(connect(Server)).

%% An HTTP session that dies is gone, as its client is told; the others are not.
killed_sessions_disturb_nobody(_) ->
    Server = start(#{listen => [{http, #{}}, {tcp, #{}}]}),
    [#{url := Url}, _] = erlmcp:listeners(Server),
    Socket = connect(Server),
    _ = initialize(Socket, ~"2025-11-25"),
    Sessions = child(sessions, Server),
    [One, Two] = [session(Url), session(Url)],
    %% It has a process when it needs one.
    [] = session_pids(Sessions),
    {200, _, #{~"result" := _}} = http(Url, headers(One), request(2, ~"tools/call",
                                                                  #{name => ~"echo"})),
    [Pid] = session_pids(Sessions),
    {200, _, #{~"result" := _}} = http(Url, headers(Two), request(2, ~"tools/call",
                                                                  #{name => ~"echo"})),
    Monitor = monitor(process, Pid),
    exit(Pid, kill),
    down(Monitor),
    {404, _, #{~"error" := #{~"code" := _}}} = in_session(Url, One),
    {200, _, #{~"result" := #{~"tools" := [_]}}} = in_session(Url, Two),
    true = is_quiet(Socket),
    Sessions = child(sessions, Server),
    [_] = session_pids(Sessions).

session_pids(Sessions) ->
    [Pid || {_, Pid, _, _} <- supervisor:which_children(Sessions)].

session(Url) ->
    {200, Headers, #{~"result" := #{}}} = http(Url, [], initialize_request()),
    Id = proplists:get_value("mcp-session-id", Headers),
    ok = erlmcp_test_wire:session(list_to_binary(Id), ~"2025-11-25"),
    Id.

in_session(Url, Id) ->
    http(Url, headers(Id), request(2, ~"tools/list", #{})).

headers(Id) ->
    [{"mcp-session-id", Id}, {"mcp-protocol-version", "2025-11-25"}].

%% Nothing that a server was made of is left: no process, port, table, row, persistent term or atom.
starting_and_stopping_leaves_nothing(_) ->
    leaves_nothing(200, fun() ->
        {ok, Server} = erlmcp:start_server(options(#{listen => [{http, #{}}, {tcp, #{}}]})),
        ok = erlmcp:add(Server, tool, definition(tool, ~"added")),
        Socket = connect(Server),
        _ = initialize(Socket, ~"2025-11-25"),
        close(Socket),
        ok = erlmcp:stop_server(Server)
    end).

%% Nor does a server that could not start.
failed_starts_leave_nothing(_) ->
    leaves_nothing(50, fun() ->
        {error, {listen, tcp, eaddrnotavail}} = erlmcp:start_server(
            options(#{listen => [{http, #{}}, {tcp, #{ip => {192, 0, 2, 1}}}]})),
        {error, {bad_definition, _, _, _, _}} = started(with(tool, #{}))
    end).

%% Nor does one whose options have code that crashes in the server's own process.
crashed_starts_leave_nothing(_) ->
    Test = self(),
    %% The secret is read when the options are checked, and again for the listener.
    Secret = fun() when self() =:= Test -> {ok, binary:copy(~"s", 32)} end,
    Bearer = #{resource => ~"https://mcp.example/mcp",
               tokens => [{jwt, #{issuer => ~"https://issuer.example", jwks => {secret, Secret},
                                  algorithms => [~"HS256"]}}]},
    Listen = [{http, #{}}, {http, #{authenticate => {bearer, Bearer}}}],
    leaves_nothing(50, fun() ->
        {error, no_database} = started(options(#{task_store => {?MODULE, #{}}})),
        {error, {function_clause, _}} = started(options(#{listen => Listen}))
    end).

open(_, _) ->
    exit(no_database).

%% Even one that could not say good-bye.
killed_servers_leave_nothing(_) ->
    leaves_nothing(50, fun() ->
        {ok, Server} = erlmcp:start_server(options(#{listen => [{http, #{}}, {tcp, #{}}]})),
        Monitor = monitor(process, Server),
        exit(Server, kill),
        down(Monitor)
    end).

%% Clients come and go for as long as a server runs, politely or not.
connections_leave_nothing(_) ->
    Server = start(#{tools => [waiting_tool(~"wait")]}),
    leaves_nothing(200, fun() ->
        Polite = connect(Server),
        _ = initialize(Polite, ~"2025-11-25"),
        [] = rest(Polite),
        close(Polite),
        Rude = connect(Server),
        _ = initialize(Rude, ~"2025-11-25"),
        send(Rude, request(1, ~"tools/call", #{~"name" => ~"wait"})),
        Monitor = monitor(process, await_call()),
        erlmcp_test_line:reset(Rude),
        down(Monitor)
    end).

%% "Bytes from outside never become atoms", 10,000 names of each sort; nothing else grows either.
names_from_outside_become_no_atoms(_) ->
    Server = start(#{}),
    Socket = connect(Server),
    _ = initialize(Socket, ~"2025-11-25"),
    leaves_nothing(100, fun() -> [garbage(Socket) || _ <- lists:seq(1, 10)] end).

garbage(Socket) ->
    Name = <<"garbage-", (integer_to_binary(erlang:unique_integer([positive])))/binary>>,
    Own = #{Name => Name},
    Requests = [
        request(Name, Name, Own), stateless(Name, Name, Own),
        request(Name, ~"tools/call", #{~"name" => Name, ~"arguments" => Own}),
        stateless(Name, ~"tools/call", #{~"name" => ~"echo", ~"arguments" => Own#{~"text" => Name},
                                         ~"_meta" => Own#{~"progressToken" => Name}}),
        request(Name, ~"resources/read", #{~"uri" => Name}),
        request(Name, ~"prompts/get", #{~"name" => Name, ~"arguments" => Own}),
        request(Name, ~"logging/setLevel", #{~"level" => Name}),
        request(Name, ~"initialize", #{~"protocolVersion" => Name, ~"capabilities" => Own,
                                       ~"clientInfo" => Own#{~"name" => Name,
                                                             ~"version" => Name}}),
        request(Name, ~"ping", #{~"_meta" => #{
            ~"io.modelcontextprotocol/protocolVersion" => Name}}),
        (request(Name, ~"ping", Own))#{Name => Name}],
    Notifications = [erlmcp_test_line:notification(Name, Own),
                     erlmcp_test_line:notification(~"notifications/cancelled",
                                                   #{~"requestId" => Name})],
    [send(Socket, Message) || Message <- Notifications ++ Requests],
    [#{~"id" := Name} = recv(Socket) || _ <- Requests].

%% A few rounds first: code is loaded, and tables are filled, once.
leaves_nothing(Rounds, Round) ->
    [Round() || _ <- lists:seq(1, 20)],
    Before = held(),
    [Round() || _ <- lists:seq(1, Rounds)],
    flush(),
    %% A thing for each tenth round is a leak; less is somebody else's.
    await(fun() ->
        case #{What => {Was, Is} || What := Is <- held(), Was <- [maps:get(What, Before)],
                                    Is - Was >= Rounds div 10} of
            Grown when map_size(Grown) =:= 0 -> {ok, nothing};
            Grown -> ct:log("grown: ~p", [Grown]), again
        end
    end).

held() ->
    #{processes => erlang:system_info(process_count), ports => erlang:system_info(port_count),
      tables => length(ets:all()), atoms => erlang:system_info(atom_count),
      rows => lists:sum([Size || Table <- ets:all(), Size <- [ets:info(Table, size)],
                                 is_integer(Size)]),
      persistent_terms => maps:get(count, persistent_term:info())}.

%% The exits of servers that were linked to the test.
flush() ->
    receive {'EXIT', _, _} -> flush() after 0 -> ok end.
