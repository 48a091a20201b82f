-module(cluster_leaving_SUITE).
-moduledoc """
"Leaving" of `docs/cluster.md`: a node that is drained gives its sessions up and finishes its calls,
and one that stops ends its lease. The cases follow each other in one cluster of three nodes.
""".

-behaviour(erlmcp_server).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([the_cluster_is_shown/1, a_drained_node_fails_no_call/1,
         a_stopped_node_is_replaced_at_once/1, a_node_alone_is_not_ready/1,
         sessions_outlive_a_stop_of_all/1, balancers_take_their_configurations/1]).
%% On the nodes.
-export([hear_of_deaths/0, has_declared_deaths/0, log/2]).
-export([serve/0, server/0, tools/0, call_tool/3, is_waiting/1, finish/1, stop/0]).

-import(erlmcp_test_cluster, [call/4, call/5, await/2]).

-define(SERVER, ~"cluster_leaving_SUITE").
-define(REVISION, ~"2025-11-25").
%% A lease that nobody ends is taken for dead after this time.
-define(STILL_MS, 1_250).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [the_cluster_is_shown, a_drained_node_fails_no_call, a_stopped_node_is_replaced_at_once,
     a_node_alone_is_not_ready, sessions_outlive_a_stop_of_all,
     balancers_take_their_configurations].

init_per_suite(Config) ->
    Members = erlmcp_test_cluster:start(Config, #{}),
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    ok = keep(at_once(fun served/1, Members)),
    ok = all_alive(),
    Config.

end_per_suite(_) ->
    lists:foreach(fun erlmcp_test_cluster:stop/1, members()),
    persistent_term:erase(?MODULE).

the_cluster_is_shown(_) ->
    [A, B, _] = members(),
    Session = initialize(A),
    #{~"result" := _} = result(B, Session, ~"ping", #{}),
    #{ready := true, checks := #{cluster := #{passes := true, observed := Left}}} =
        call(A, erlmcp, health, [?SERVER]),
    true = Left =< 1_000,
    #{cluster := #{forwarded := Forwarded, majority := 2, nodes := Nodes}} =
        call(B, erlmcp, metrics, [?SERVER]),
    true = Forwarded >= 1,
    3 = length([Node || #{state := alive} = Node <- Nodes]),
    [_] = [Node || #{leads := true} = Node <- Nodes],
    {ok, _} = call(B, application, ensure_all_started, [prometheus]),
    {200, _, Metrics} = call(B, erlmcp_prometheus, handle,
                             [#{method => ~"GET", below => ~""}, none]),
    Of = ["{server=\"", ?SERVER, $"],
    [{Line, {match, _}} = {Line, re:run(Metrics, [$^, Line, $$], [multiline])}
     || Line <- [["mcp_cluster_lease_seconds", Of, "} [01](\\.[0-9]+)?"],
                 ["mcp_cluster_nodes", Of, ",state=\"alive\"} 3"],
                 ["mcp_cluster_nodes", Of, ",state=\"dead\"} 0"],
                 ["mcp_cluster_majority", Of, "} 2"],
                 ["mcp_cluster_requests_forwarded_total", Of, "} [1-9][0-9]*"],
                 ["mcp_cluster_sessions_inherited_total", Of, "} 0"]]],
    %% Every node shows the figures of the others.
    {_, _} = await(fun() ->
        lists:all(fun(Member) -> has_figures(node_of(A), Member) end, members())
    end, 5_000).

has_figures(Node, Member) ->
    #{cluster := #{nodes := Nodes}} = call(Member, erlmcp, metrics, [?SERVER]),
    [] =/= [Of || #{node := Of, sessions := 1, lease_ms := _, forwarded := _, inherited := _}
                      <- Nodes, Of =:= Node].

%% What runs there is answered wherever its client waits, and what comes is served elsewhere. Its
%% tasks go on, too.
a_drained_node_fails_no_call(_) ->
    [A, B, C] = members(),
    Session = initialize(A),
    Own = start_tool(A, Session, 1, ~"wait", #{as => ~"own"}),
    Passed = start_tool(B, Session, 2, ~"wait", #{as => ~"passed"}),
    #{~"result" := #{~"task" := #{~"taskId" := Task}}} =
        result(A, Session, ~"tools/call",
               #{name => ~"wait", arguments => #{as => ~"task"}, task => #{}}),
    [ok = waiting(A, Name) || Name <- [~"own", ~"passed", ~"task"]],
    %% It came in at the node that leaves, and runs at another one.
    Out = start_tool(A, initialize(B), 3, ~"wait", #{as => ~"out"}),
    ok = waiting(B, ~"out"),
    Drain = draining(A, #{lame_ms => 200, timeout_ms => 60_000}),
    %% It is leaving: others have its sessions, and its lease goes on.
    {_, _} = await(fun() -> state(node_of(A), B) =:= leaving end, 5_000),
    [Home] = lists:usort([text(tool(Member, Session, ~"where")) || Member <- [B, C]]),
    false = Home =:= atom_to_binary(node_of(A)),
    %% For longer than a lease is valid by itself.
    receive after ?STILL_MS + 250 -> ok end,
    leaving = state(node_of(A), C),
    ~"working" = status(B, Session, Task),
    [ok = call(A, ?MODULE, finish, [Name]) || Name <- [~"own", ~"passed", ~"task"]],
    [#{messages := [#{~"result" := _}]} = erlmcp_test_http:response(Socket)
     || Socket <- [Own, Passed]],
    receive
        {drained, Drain, Early} -> error({drained_before_its_answer, Early})
    after 500 ->
        ok
    end,
    ok = call(B, ?MODULE, finish, [~"out"]),
    #{messages := [#{~"result" := _}]} = erlmcp_test_http:response(Out),
    {ok, #{calls := 0, tasks := 0}} = drained(Drain),
    ~"completed" = status(B, Session, Task),
    %% It opens no session, and inherits none.
    no_lease = call(A, erlmcp_cluster_lease, next_nonce, []),
    ok = stopped(A),
    {_, _} = await(fun() -> state(node_of(A), B) =:= dead end, 5_000),
    ok = started_again(A),
    %% It takes nothing back.
    [Home] = lists:usort([text(tool(Member, Session, ~"where")) || Member <- members()]).

%% Without a drain its calls are lost, but not its sessions. No node has to declare it dead.
a_stopped_node_is_replaced_at_once(_) ->
    [A, B, C] = members(),
    Session = initialize(A),
    [ok = call(Member, ?MODULE, hear_of_deaths, []) || Member <- [B, C]],
    ok = stopped(A),
    {_, Took} = await(fun() -> state(node_of(A), B) =:= dead end, 5_000),
    ct:pal("dead ~b ms after it has stopped", [Took]),
    _ = text(tool(B, Session, ~"where")),
    [false = call(Member, ?MODULE, has_declared_deaths, []) || Member <- [B, C]],
    ok = started_again(A).

%% It would serve no client that opens a session.
a_node_alone_is_not_ready(_) ->
    [A, B, C] = members(),
    ok = erlmcp_test_cluster:cut([A], [B, C]),
    {_, _} = await(fun() -> not is_ready(A) end, 5_000),
    #{checks := #{cluster := #{passes := false, observed := 0}}} =
        call(A, erlmcp, health, [?SERVER]),
    %% What needs no session goes on.
    #{status := 200} = erlmcp_test_http:call(http(A), ~"tools/list", #{}),
    ok = erlmcp_test_cluster:heal([A], [B, C]),
    {_, _} = await(fun() -> is_ready(A) end, 30_000),
    ok = all_alive().

is_ready(Member) ->
    #{ready := Ready} = call(Member, erlmcp, health, [?SERVER]),
    Ready.

%% The last node that stops is survived by the first one that comes back.
sessions_outlive_a_stop_of_all(_) ->
    [A | _] = Members = members(),
    Session = initialize(A),
    lists:foreach(fun(Member) -> ok = stopped(Member) end, Members),
    Back = at_once(fun(Member) -> erlmcp_test_cluster:revive(maps:remove(http, Member)) end,
                   Members),
    ok = keep(Back),
    [ok, ok, ok] = erlmcp_test_cluster:join(Back),
    ok = keep(at_once(fun served/1, Back)),
    {_, _} = await(fun() -> is_map_key(~"result", tool(hd(members()), Session, ~"where")) end,
                   10_000),
    ok = all_alive().

balancers_take_their_configurations(Config) ->
    Programs = erlmcp_test_installed:path("proxies"),
    Folder = filename:join(proplists:get_value(priv_dir, Config), "balancers"),
    ok = filelib:ensure_path(Folder),
    [ok = checked(filename:join(Programs, "haproxy"), ["-c", "-f", File])
     || File <- files("haproxy*.cfg", Folder)],
    [ok = checked(filename:join(Programs, "nginx"),
                  ["-t", "-e", "stderr", "-p", Folder, "-c", File])
     || File <- files("nginx*.conf", Folder)].

%% With fewer connections than the limits of a test machine allow.
files(Pattern, Folder) ->
    Files = [_, _] = filelib:wildcard(filename:join([erlmcp_test_page:root(), "ops", "cluster",
                                                     Pattern])),
    [begin
         {ok, Bytes} = file:read_file(File),
         Fewer = re:replace(Bytes, "(maxconn|worker_connections) [0-9]+", "\\1 100", [global]),
         Here = re:replace(Fewer, "^http \\{", here(Folder), [multiline]),
         Copy = filename:join(Folder, filename:basename(File)),
         ok = file:write_file(Copy, Here),
         Copy
     end || File <- Files].

%% An nginx that is not installed lacks the folders of its system.
here(Folder) ->
    ["pid ", Folder, "/pid;\nhttp {\n    access_log off;\n",
     [["    ", Kind, "_temp_path ", Folder, $/, Kind, ";\n"]
      || Kind <- ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]]].

checked(Program, Arguments) ->
    Port = open_port({spawn_executable, Program}, [{args, Arguments}, exit_status,
                                                   stderr_to_stdout, binary]),
    ended(Port, <<>>).

ended(Port, Said) ->
    receive
        {Port, {data, More}} -> ended(Port, <<Said/binary, More/binary>>);
        {Port, {exit_status, 0}} -> ok;
        {Port, {exit_status, _}} -> {refused, Said}
    end.

%% The nodes.

%% They change from case to case.
members() -> persistent_term:get(?MODULE).

keep(Members) -> persistent_term:put(?MODULE, Members).

at_once(Do, Members) ->
    Doing = [spawn_monitor(fun() -> exit({done, Do(Member)}) end) || Member <- Members],
    [receive {'DOWN', Monitor, process, Pid, {done, Done}} -> Done end || {Pid, Monitor} <- Doing].

node_of(#{node := Node}) -> Node.

http(#{http := Http}) -> Http.

served(Member) ->
    {ok, Port} = call(Member, ?MODULE, serve, []),
    Member#{http => #{port => Port, url => ~"http://127.0.0.1"}}.

all_alive() ->
    {_, _} = await(fun() ->
        [alive] =:= lists:usort([state(node_of(Of), At) || Of <- members(), At <- members()])
    end, 10_000),
    ok.

state(Node, At) ->
    #{nodes := Nodes} = call(At, erlmcp_cluster_figures, overview, []),
    [State] = [Is || #{node := Of, state := Is} <- Nodes, Of =:= Node],
    State.

draining(Member, How) ->
    Test = self(),
    spawn_link(fun() ->
        Test ! {drained, self(), call(Member, erlmcp, drain, [?SERVER, How], 60_000)}
    end).

drained(Drain) ->
    receive {drained, Drain, Drained} -> Drained end.

%% As SIGTERM stops a node.
stopped(#{peer := Peer} = Member) ->
    Monitor = monitor(process, Peer),
    ok = call(Member, ?MODULE, stop, []),
    receive {'DOWN', Monitor, process, Peer, _} -> ok end.

started_again(#{node := Node} = Member) ->
    Back = erlmcp_test_cluster:revive(maps:remove(http, Member)),
    [ok] = erlmcp_test_cluster:join([Back]),
    Served = served(Back),
    ok = keep([case Of of
                   Node -> Served;
                   _ -> Other
               end || #{node := Of} = Other <- members()]),
    all_alive().

%% A node that declares another one dead logs it.
-doc false.
hear_of_deaths() ->
    ok = logger:set_primary_config(level, warning),
    logger:add_handler(?MODULE, ?MODULE, #{}).

-doc false.
log(#{msg := {report, #{what := cluster_node_declared_dead}}}, _) ->
    persistent_term:put({?MODULE, declared}, true);
log(_, _) ->
    ok.

-doc false.
has_declared_deaths() ->
    persistent_term:get({?MODULE, declared}, false).

-doc false.
stop() ->
    init:stop().

-doc false.
serve() ->
    Test = self(),
    %% The server ends with the process that has started it.
    _ = spawn(fun() ->
        {ok, Server} = erlmcp:start_server(#{
            id => ?SERVER, handler => ?MODULE, cluster => erlmcp_cluster,
            listen => [{http, #{health => true}}]}),
        [#{port := Port}] = erlmcp:listeners(Server),
        Test ! {serves, Port},
        receive after infinity -> ok end
    end),
    receive {serves, Port} -> {ok, Port} after 10_000 -> error(no_server) end.

-doc false.
server() ->
    #{name => ~"test", version => ~"1"}.

-doc false.
tools() ->
    [#{name => ~"where"}, #{name => ~"wait", task => optional}].

-doc false.
call_tool(~"where", _, _) ->
    atom_to_binary(node());
call_tool(~"wait", #{~"as" := Name}, _) ->
    true = register(waiting_as(Name), self()),
    receive finish -> ~"done" end.

waiting_as(Name) ->
    binary_to_atom(<<"waiting as ", Name/binary>>).

-doc false.
is_waiting(Name) ->
    is_pid(whereis(waiting_as(Name))).

-doc false.
finish(Name) ->
    waiting_as(Name) ! finish,
    ok.

waiting(Member, Name) ->
    {_, _} = await(fun() -> call(Member, ?MODULE, is_waiting, [Name]) end, 10_000),
    ok.

%% Clients.

initialize(Member) ->
    erlmcp_test_http:initialize(http(Member), ?REVISION).

result(Member, Session, Method, Params) ->
    #{messages := [Message]} =
        erlmcp_test_http:call(http(Member), Method, Params, #{session => Session}),
    Message.

tool(Member, Session, Name) ->
    result(Member, Session, ~"tools/call", #{name => Name}).

status(Member, Session, Task) ->
    #{~"result" := #{~"status" := Status}} =
        result(Member, Session, ~"tasks/get", #{taskId => Task}),
    Status.

text(#{~"result" := #{~"content" := [#{~"text" := Text}]}}) -> Text.

start_tool(Member, Session, Id, Name, Arguments) ->
    Socket = erlmcp_test_http:connect(http(Member)),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call",
                                               #{name => Name, arguments => Arguments},
                                               #{session => Session, id => Id}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    Socket.
