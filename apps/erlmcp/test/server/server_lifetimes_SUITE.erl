-module(server_lifetimes_SUITE).
-moduledoc "`m:erlmcp`, as the user's own code meets it: servers that start, are found and stop.".

-behaviour(supervisor).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([init/1]).
-export([servers_live_in_the_users_tree/1, servers_share_nothing/1, ids_name_servers/1,
         ids_and_ports_are_free_again_at_once/1, unknown_servers_are_not_found/1,
         stopped_servers_are_gone/1, any_process_may_stop_a_server/1, stopping_ends_what_runs/1,
         servers_end_with_their_starter/1, listeners_are_where_they_say/1, used_ports_are_refused/1,
         sessions_on_tcp_are_no_http_sessions/1, the_application_must_run/1,
         nothing_is_found_without_the_application/1,
         servers_that_end_while_asked_are_not_found/1,
         resources_of_a_server_that_ends_are_not_found/1,
         ids_are_free_before_it_is_heard_that_they_are/1, operators_see_what_runs/1]).

-import(erlmcp_test_line, [connect/1, send/2, recv/1, is_quiet/1, initialize/2, stateless/3,
                           echo_tool/0, waiting_tool/1, await_call/0]).
-import(erlmcp_test_servers, [start/1, options/1, await_child/3, await/1, down/1, listed/2, http/3,
                              initialize_request/0]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [servers_live_in_the_users_tree, servers_share_nothing, ids_name_servers,
     ids_and_ports_are_free_again_at_once, unknown_servers_are_not_found, stopped_servers_are_gone,
     any_process_may_stop_a_server, stopping_ends_what_runs, servers_end_with_their_starter,
     listeners_are_where_they_say, used_ports_are_refused, sessions_on_tcp_are_no_http_sessions,
     the_application_must_run, nothing_is_found_without_the_application,
     servers_that_end_while_asked_are_not_found,
     resources_of_a_server_that_ends_are_not_found,
     ids_are_free_before_it_is_heard_that_they_are, operators_see_what_runs].

init_per_suite(Config) ->
    erlmcp_test_servers:init_suite(Config).

end_per_suite(Config) ->
    erlmcp_test_servers:end_suite(Config).

init_per_testcase(_, Config) ->
    erlmcp_test_servers:init_case(Config).

end_per_testcase(_, _) ->
    erlmcp_test_servers:stop_all().

%% Servers "under a child_spec/1 in the user's own tree": started, restarted and stopped there.
servers_live_in_the_users_tree(_) ->
    Specs = [erlmcp:child_spec(options(#{id => Id})) || Id <- [one, two]],
    {ok, Supervisor} = supervisor:start_link(?MODULE, Specs),
    [{ChildOne, One, supervisor, _}, {_, Two, supervisor, _}] =
        lists:sort(supervisor:which_children(Supervisor)),
    [true = is_quiet(connect(Id)) || Id <- [one, two]],
    Monitor = monitor(process, One),
    exit(One, kill),
    down(Monitor),
    %% The supervisor heard of it before it answers.
    Again = await_child(ChildOne, Supervisor, One),
    true = is_quiet(connect(one)),
    true = is_quiet(connect(Two)),
    ok = supervisor:terminate_child(Supervisor, ChildOne),
    {error, not_found} = erlmcp:listeners(Again),
    {ok, _} = supervisor:restart_child(Supervisor, ChildOne),
    true = is_quiet(connect(one)),
    Ended = monitor(process, Two),
    exit(Supervisor, shutdown),
    down(Ended).

init(Specs) ->
    {ok, {#{strategy => one_for_one}, Specs}}.

%% "Two instances share no name."
servers_share_nothing(_) ->
    [One, Two] = [start(#{}) || _ <- [1, 2]],
    true = erlmcp_test_line:port(One) =/= erlmcp_test_line:port(Two),
    [First, Second] = Sockets = [connect(Server) || Server <- [One, Two]],
    [initialize(Socket, ~"2025-11-25") || Socket <- Sockets],
    [true = is_quiet(Socket) || Socket <- Sockets],
    ok = erlmcp:add(One, tool, #{name => ~"only", handler => fun(_, _) -> ~"" end}),
    #{~"method" := ~"notifications/tools/list_changed"} = recv(First),
    [~"echo", ~"only"] = listed(tool, First),
    [~"echo"] = listed(tool, Second),
    ok = erlmcp:stop_server(One),
    {error, closed} = erlmcp_test_line:recv_line(First, ?PATIENCE),
    true = is_quiet(Second).

the_application_must_run(_) ->
    Inner = #{name => ~"inner", version => ~"1"},
    without_the_application(fun() ->
        [{error, {not_started, erlmcp}} = erlmcp:start_server(options(#{mounts => Mounts}))
         || Mounts <- [[], [{~"m", no_such_server}], [{~"m", self()}], [{~"m", Inner}],
                       [{~"m", Inner#{mounts => [{~"n", no_such_server}]}}]]],
        {error, {bad_option, mounts, _}} = erlmcp:start_server(options(#{mounts => none}))
    end).

%% A server outlives the application, but is found no more.
nothing_is_found_without_the_application(_) ->
    Server = start(#{id => ?FUNCTION_NAME}),
    Tool = #{name => ~"added", handler => fun(_, _) -> ~"" end},
    without_the_application(fun() ->
        [] = erlmcp:servers(),
        [{Number, {error, not_found}} = {Number, Ask(Of)}
         || Of <- [Server, ?FUNCTION_NAME, no_such_server],
            {Number, Ask} <- lists:enumerate([
                fun erlmcp:info/1, fun erlmcp:metrics/1, fun erlmcp:health/1, fun erlmcp:sessions/1,
                fun erlmcp:calls/1, fun erlmcp:listeners/1, fun erlmcp:stop_server/1,
                fun erlmcp:reload/1, fun(Known) -> erlmcp:drain(Known, 0) end,
                fun(Known) -> erlmcp:cancel(Known, ~"1") end,
                fun(Known) -> erlmcp:resource_updated(Known, ~"test://a") end,
                fun(Known) -> erlmcp:add(Known, tool, Tool) end,
                fun(Known) -> erlmcp:remove(Known, tool, ~"echo") end,
                fun(Known) -> erlmcp:replace(Known, #{tools => []}) end,
                fun(Known) -> erlmcp_event:attach(Known, one, fun(_) -> ok end) end,
                fun(Known) -> erlmcp_event:detach(Known, one) end])]
    end),
    Monitor = monitor(process, Server),
    true = exit(Server, shutdown),
    down(Monitor).

without_the_application(Do) ->
    ok = application:stop(erlmcp),
    try
        Do()
    after
        ok = application:start(erlmcp)
    end.

servers_that_end_while_asked_are_not_found(_) ->
    Tool = #{name => ~"added", handler => fun(_, _) -> ~"" end},
    [begin
         Server = start(#{}),
         true = erlang:suspend_process(Server),
         {error, not_found} = said_by_one_that_waits(
             fun() -> Ask(Server) end,
             fun() -> ended(Server) end)
     end || Ask <- [fun erlmcp:listeners/1, fun erlmcp:stop_server/1,
                    fun(Server) -> erlmcp:add(Server, tool, Tool) end]].

%% The server ends while the function waits for the process that keeps results.
resources_of_a_server_that_ends_are_not_found(_) ->
    Uri = ~"test://a",
    Server = start(#{resources => [#{uri => Uri, name => ~"a", cache => #{ttl_ms => 60_000},
                                     handler => fun(_, _) -> ~"text" end}]}),
    {ok, Client} = erlmcp_client:start_link({server, Server, #{}}),
    {ok, _} = erlmcp_client:read_resource(Client, Uri),
    ok = erlmcp_client:stop(Client),
    [Cache] = [Pid || {cache, Pid, _, _} <- supervisor:which_children(Server)],
    ok = sys:suspend(Cache),
    {error, not_found} = said_by_one_that_waits(
        fun() -> erlmcp:resource_updated(Server, Uri) end,
        fun() -> ended(Server) end).

%% A supervisor starts a server anew as soon as it has ended; the registry hears of that later.
ids_are_free_before_it_is_heard_that_they_are(_) ->
    Id = #{id => ?FUNCTION_NAME},
    Server = start(Id),
    ok = sys:suspend(erlmcp_registry),
    {ok, _} = said_by_one_that_waits(
        fun() -> erlmcp:start_server(options(Id)) end,
        fun() ->
            ok = ended(Server),
            ok = sys:resume(erlmcp_registry)
        end).

ended(Server) ->
    Monitor = monitor(process, Server),
    exit(Server, kill),
    down(Monitor).

%% What a process says that waits, once something has happened.
said_by_one_that_waits(Ask, Happen) ->
    {Asking, Asked} = spawn_monitor(fun() -> exit({said, Ask()}) end),
    await(fun() ->
        case process_info(Asking, status) of
            {status, waiting} -> {ok, waiting};
            _ -> again
        end
    end),
    ok = Happen(),
    receive
        {'DOWN', Asked, process, _, {said, Said}} -> Said;
        {'DOWN', Asked, process, _, Reason} -> error(Reason)
    end.

%% `id`: "a term to call the server by, beside its pid"; a second one with it is refused.
ids_name_servers(_) ->
    [begin
         Server = start(#{id => Id}),
         {error, {already_started, Server}} = erlmcp:start_server(options(#{id => Id})),
         Listeners = erlmcp:listeners(Server),
         Listeners = erlmcp:listeners(Id),
         ok = erlmcp:add(Id, tool, #{name => ~"added", handler => fun(_, _) -> ~"" end}),
         ok = erlmcp:remove(Id, tool, ~"added"),
         ok = erlmcp:stop_server(Id),
         {error, not_found} = erlmcp:listeners(Id)
     end || Id <- [name, ~"binary", {any, [term]}, 7, make_ref()]].

%% `stop_server/1` "waits for its end": its name and its ports are free then.
ids_and_ports_are_free_again_at_once(_) ->
    Ip = {127, 0, 77, 2},
    First = start(#{listen => [{tcp, #{ip => Ip}}, {http, #{ip => Ip}}]}),
    [Tcp, Http] = [Port || #{port := Port} <- erlmcp:listeners(First)],
    ok = erlmcp:stop_server(First),
    Options = options(#{id => same, listen => [{tcp, #{ip => Ip, port => Tcp}},
                                               {http, #{ip => Ip, port => Http}}]}),
    [begin
         {Round, {ok, Server}} = {Round, erlmcp:start_server(Options)},
         {ok, Socket} = gen_tcp:connect(Ip, Tcp, []),
         ok = erlmcp:stop_server(Server),
         ok = gen_tcp:close(Socket)
     end || Round <- lists:seq(1, 200)].

%% `not_found` "for no such server".
unknown_servers_are_not_found(_) ->
    Tool = echo_tool(),
    [begin
         {error, not_found} = erlmcp:stop_server(Unknown),
         {error, not_found} = erlmcp:listeners(Unknown),
         {error, not_found} = erlmcp:add(Unknown, tool, Tool),
         {error, not_found} = erlmcp:remove(Unknown, tool, ~"echo")
     end || Unknown <- [nobody, self(), ~"api", undefined]].

%% After stop_server/1 nothing runs and nothing listens.
stopped_servers_are_gone(_) ->
    %% An address that nobody else takes a port of.
    Ip = {127, 0, 77, 1},
    Server = start(#{listen => [{tcp, #{ip => Ip}}, {http, #{ip => Ip}}]}),
    Ports = [Port || #{port := Port} <- erlmcp:listeners(Server)],
    [{ok, _} = gen_tcp:connect(Ip, Port, []) || Port <- Ports],
    ok = erlmcp:stop_server(Server),
    false = is_process_alive(Server),
    {error, not_found} = erlmcp:stop_server(Server),
    [ok = erlmcp_test_http:until_refused(Ip, Port) || Port <- Ports].

%% One process starts a server, another one may have to stop it.
any_process_may_stop_a_server(_) ->
    Server = start(#{id => anybodys}),
    {Pid, Monitor} = spawn_monitor(fun() -> ok = erlmcp:stop_server(anybodys) end),
    receive
        {'DOWN', Monitor, process, Pid, Reason} -> normal = Reason
    after ?PATIENCE ->
        exit(Pid, kill),
        ct:fail(does_not_stop)
    end,
    false = is_process_alive(Server).

%% Calls and connections end with their server, and it does not wait for them.
stopping_ends_what_runs(_) ->
    Server = start(#{tools => [waiting_tool(~"wait")]}),
    Socket = connect(Server),
    send(Socket, stateless(1, ~"tools/call", #{~"name" => ~"wait"})),
    Call = monitor(process, await_call()),
    ok = erlmcp:stop_server(Server),
    down(Call),
    {error, closed} = erlmcp_test_line:recv_line(Socket, ?PATIENCE).

%% "Starts a server, linked to the caller".
servers_end_with_their_starter(_) ->
    [begin
         Test = self(),
         Starter = spawn(fun() ->
             {ok, Server} = erlmcp:start_server(options(#{})),
             Test ! {started, Server},
             receive {exit, With} -> exit(With) end
         end),
         Monitor = receive {started, Server} -> monitor(process, Server) end,
         Starter ! {exit, Reason},
         down(Monitor)
     end || Reason <- [normal, shutdown, crash]].

%% "Where a server listens": in the order of the options, and each can be reached there.
listeners_are_where_they_say(_) ->
    [] = erlmcp:listeners(start(#{listen => []})),
    Server = start(#{listen => [{tcp, #{port => 0}}, {http, #{path => ~"/here"}}, {http, #{}},
                                {tcp, #{ip => {127, 0, 0, 2}}}]}),
    [#{transport := tcp, ip := {127, 0, 0, 1}, port := One, url := Tcp},
     #{transport := http, ip := {127, 0, 0, 1}, port := Two, url := Here},
     #{transport := http, port := Three, url := Usual},
     #{transport := tcp, ip := {127, 0, 0, 2}, port := Four}] = erlmcp:listeners(Server),
    4 = length(lists:usort([One, Two, Three, Four])),
    Tcp = url(~"tcp", One, ~""),
    Here = url(~"http", Two, ~"/here"),
    Usual = url(~"http", Three, ~"/mcp"),
    true = is_quiet(connect(One)),
    [{200, _, #{~"result" := #{}}} = http(Url, [], initialize_request()) || Url <- [Here, Usual]],
    {ok, _} = gen_tcp:connect({127, 0, 0, 2}, Four, []).

url(Scheme, Port, Path) ->
    <<Scheme/binary, "://127.0.0.1:", (integer_to_binary(Port))/binary, Path/binary>>.

%% `{listen, Transport, Reason}`, `Reason` as of inet:posix/0; what did listen listens no more.
used_ports_are_refused(_) ->
    Server = start(#{}),
    Port = erlmcp_test_line:port(Server),
    [{error, {listen, Transport, eaddrinuse}} =
         erlmcp:start_server(options(#{id => second,
                                       listen => [{tcp, #{}}, {Transport, #{port => Port}}]}))
     || Transport <- [http, tcp]],
    {error, not_found} = erlmcp:listeners(second),
    true = is_quiet(connect(Server)),
    {error, {listen, tcp, eaddrnotavail}} =
        erlmcp:start_server(options(#{listen => [{tcp, #{ip => {192, 0, 2, 1}}}]})),
    {error, {listen, http, _}} =
        erlmcp:start_server(options(#{listen => [{http, #{tls => [{certfile, "/no/such"}]}}]})).

%% `sessions`: "open HTTP sessions". At the limit and one more, whatever TCP's clients do.
sessions_on_tcp_are_no_http_sessions(_) ->
    Server = start(#{listen => [{http, #{}}, {tcp, #{}}], limits => #{sessions => 1}}),
    [#{url := Url}, _] = erlmcp:listeners(Server),
    [initialize(connect(Server), ~"2025-11-25") || _ <- lists:seq(1, 50)],
    {200, Opened, #{~"result" := #{}}} = http(Url, [], initialize_request()),
    %% It is in use: one that is not makes room for the next.
    Id = proplists:get_value("mcp-session-id", Opened),
    {200, _, #{~"result" := #{}}} =
        http(Url, [{"mcp-session-id", Id}], erlmcp_test_line:request(2, ~"ping", #{})),
    {429, Headers, #{~"error" := #{~"code" := 1060, ~"data" := #{~"limit" := 1}}}} =
        http(Url, [], initialize_request()),
    true = is_list(proplists:get_value("retry-after", Headers)),
    #{~"protocolVersion" := _} = initialize(connect(Server), ~"2025-11-25").

%% "What there is of it now, and whether a request would be let in."
operators_see_what_runs(_) ->
    Server = start(#{tools => [waiting_tool(~"wait")], listen => [{http, #{}}, {tcp, #{}}],
                     limits => #{in_flight => 1, queue_ms => 60_000}}),
    #{state := open, connections := 0, sessions := 0, in_flight := 0, concurrency_limit := 1,
      waiting := 0} = erlmcp:info(Server),
    Socket = connect(Server),
    [ok = send(Socket, stateless(Id, ~"tools/call", #{name => ~"wait"})) || Id <- [1, 2]],
    Call = await_call(),
    await_info(#{connections => 1, in_flight => 1, waiting => 1}, Server),
    Call ! {answer, ~"first"},
    _ = await_call(),
    await_info(#{in_flight => 1, waiting => 0}, Server),
    [#{url := Url}, _] = erlmcp:listeners(Server),
    {200, _, _} = http(Url, [], initialize_request()),
    #{sessions := 1} = erlmcp:info(Server),
    {ok, #{calls := 1}} = erlmcp:drain(Server, 0),
    await_info(#{state => server_shutting_down, sessions => 0, in_flight => 0}, Server).

await_info(Expected, Server) ->
    await(fun() ->
        case maps:with(maps:keys(Expected), erlmcp:info(Server)) of
            Expected -> {ok, Expected};
            _ -> again
        end
    end).
