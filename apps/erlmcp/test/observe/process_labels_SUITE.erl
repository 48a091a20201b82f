-module(process_labels_SUITE).
-moduledoc """
The labels by which observer shows the processes of a running server and of a client: every process
that lives long has one, which says what it is for, is small, and has no secret.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([processes_of_a_server_say_what_they_are/1, connections_and_sessions_say_whose_they_are/1,
         tasks_and_workers_say_their_names/1, clients_say_where_their_server_is/1,
         long_names_are_cut/1]).

-define(REVISION, ~"2025-11-25").

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [processes_of_a_server_say_what_they_are, connections_and_sessions_say_whose_they_are,
     tasks_and_workers_say_their_names, clients_say_where_their_server_is, long_names_are_cut].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

processes_of_a_server_say_what_they_are(_) ->
    #{pid := Pid} = Server = start(?FUNCTION_NAME, #{on_event => fun(_) -> ok end}),
    {erlmcp_server, ?FUNCTION_NAME} = label(Pid),
    Children = [{Id, label(Child)} || {Id, Child, _, _} <- supervisor:which_children(Pid),
                                      not is_of_another(Id)],
    [] = [Id || {Id, undefined} <- Children],
    %% Those of the gate do not know whose gate it is.
    Gates = [label(Child) || {Id, Child, _, _} <- supervisor:which_children(Pid), is_of_gate(Id)],
    [{erlmcp_concurrency_limiter}, {erlmcp_gate_permits}, {erlmcp_gate_queue}] = lists:sort(Gates),
    [] = [Label || {_, Label} <- Children,
                   element(tuple_size(Label), Label) =/= ?FUNCTION_NAME],
    Names = [element(1, Label) || {_, Label} <- Children],
    [] = [erlmcp_catalog_publisher, erlmcp_error_budget, erlmcp_event_sup, erlmcp_instance,
          erlmcp_result_cache, erlmcp_sweeper] -- Names,
    [{on_event, Handler, _, _}] = supervisor:which_children(erlmcp_server_sup:events(Pid)),
    {erlmcp_event_handler, ?FUNCTION_NAME} = label(Handler),
    [sessions, tasks] = [Kind || {_, {erlmcp_on_demand_sup, Kind, _}} <- lists:sort(Children)],
    erlmcp_test_http:stop(Server).

%% A listener's supervisor is ranch's.
is_of_another({listener, _}) -> true;
is_of_another(Id) -> is_of_gate(Id).

is_of_gate(Id) -> lists:member(Id, [gate_permits, gate_queue, concurrency_limiter]).

connections_and_sessions_say_whose_they_are(_) ->
    #{pid := Pid} = Server = start(?FUNCTION_NAME, #{listen => [{http, #{}}, {tcp, #{}}]}),
    [TcpPort] = [Port || #{transport := tcp, port := Port} <- erlmcp:listeners(Pid)],
    Tcp = erlmcp_test_line:connect(TcpPort),
    #{~"result" := _} = erlmcp_test_line:ask_stateless(Tcp, 1, ~"tools/list", #{}),
    {Id, _} = Session = erlmcp_test_http:initialize(Server, ?REVISION),
    {Stream, {200, _}} = erlmcp_test_http:get_stream(Server, Session),
    Http = erlmcp_test_http:connect(Server),
    {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
    ok = erlmcp_test_http:send(Http, ~"POST", Headers, Body),
    #{status := 200} = erlmcp_test_http:response(Http),
    {ok, OwnTcp} = inet:sockname(Tcp),
    {ok, OwnHttp} = inet:sockname(Http),
    Labels = labels(?FUNCTION_NAME),
    [] = [{erlmcp_connection, tcp, OwnTcp, ?FUNCTION_NAME},
          {erlmcp_connection, http, OwnHttp, ?FUNCTION_NAME},
          {erlmcp_session, '2025-11-25', ?FUNCTION_NAME}] -- Labels,
    %% Whoever knows the id of a session may use it.
    nomatch = binary:match(term_to_binary(Labels), Id),
    ok = gen_tcp:close(Tcp),
    lists:foreach(fun erlmcp_test_http:close/1, [Stream, Http]),
    erlmcp_test_http:stop(Server).

tasks_and_workers_say_their_names(_) ->
    Jam = #{name => ~"jam", task => required, handler => fun(_, _) -> receive never -> ok end end},
    Workers = #{db => #{size => 2, start => fun() -> {ok, scarce} end}},
    #{pid := Pid} = Server = start(?FUNCTION_NAME, #{tools => [Jam], workers => Workers}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{tasks => true}}),
    {ok, #{~"taskId" := Id}} = erlmcp_client:call_tool(Client, ~"jam", #{}, #{task => handle}),
    %% Nobody waits until a worker has begun.
    Labels = await_labels([{erlmcp_task, ~"tools/call", ~"jam", ?FUNCTION_NAME},
                           {erlmcp_workers, db, ?FUNCTION_NAME},
                           {erlmcp_worker, db, ?FUNCTION_NAME},
                           {erlmcp_worker, db, ?FUNCTION_NAME}], ?FUNCTION_NAME),
    nomatch = binary:match(term_to_binary(Labels), Id),
    ok = erlmcp_client:stop(Client),
    erlmcp_test_http:stop(Server).

clients_say_where_their_server_is(_) ->
    #{port := Port} = Server = start(?FUNCTION_NAME, #{listen => [{http, #{}}]}),
    Address = [~"127.0.0.1:", integer_to_binary(Port)],
    Url = iolist_to_binary([~"http://", Address, ~"/mcp?key=hidden"]),
    {ok, Http} = erlmcp_client:start_link({http, Url, #{}}),
    _ = erlmcp_client:list_tools(Http),
    {ok, Stdio} = erlmcp_client:start_link({stdio, [~"/bin/cat", ~"hidden"], #{}}),
    {ok, Pool} = erlmcp_pool:start_link(#{targets => [{server, ?FUNCTION_NAME, #{}}],
                                         size => 2}),
    {erlmcp_client, http, {~"127.0.0.1", Port}} = label(Http),
    {erlmcp_client, stdio, ~"cat"} = label(Stdio),
    {erlmcp_pool, 2} = label(Pool),
    [{erlmcp_client, memory, ?FUNCTION_NAME}, {erlmcp_client, memory, ?FUNCTION_NAME}] =
        [label(Member) || {_, Member, _, _} <- supervisor:which_children(Pool)],
    [] = [{erlmcp_channel, http, {~"127.0.0.1", Port}},
          {erlmcp_httpc_pool, http, {~"127.0.0.1", Port}}, {erlmcp_channel, stdio, ~"cat"}]
        -- [label(Pid) || Pid <- processes()],
    nomatch = binary:match(term_to_binary([label(Pid) || Pid <- processes()]), ~"hidden"),
    lists:foreach(fun erlmcp_client:stop/1, [Http, Stdio]),
    ok = erlmcp_pool:stop(Pool),
    erlmcp_test_http:stop(Server).

%% What a user calls a server may be long, or any term.
long_names_are_cut(_) ->
    Long = binary:copy(~"x", 1_000),
    Cut = binary:copy(~"x", 64),
    [begin
         #{pid := Pid} = Server = start(Id, #{}),
         {erlmcp_server, Shown} = label(Pid),
         erlmcp_test_http:stop(Server)
     end || {Id, Shown} <- [{Long, Cut}, {{shard, 7}, {shard, 7}}, {{shard, Long}, {shard, Cut}},
                            {{shard, [Long]}, {shard, '...'}}, {#{name => Long}, '...'}]].

start(Id, Options) ->
    erlmcp_test_http:start(Options#{id => Id}).

label(Pid) ->
    proc_lib:get_label(Pid).

%% The labels of a server's processes when these are among them. The case's time is the bound.
await_labels(Expected, Server) ->
    Labels = labels(Server),
    case Expected -- Labels of
        [] -> Labels;
        _ -> receive after 20 -> await_labels(Expected, Server) end
    end.

%% Those of the processes of the server with this id.
labels(Server) ->
    [Label || Pid <- processes(), Label <- [label(Pid)], is_tuple(Label),
              element(tuple_size(Label), Label) =:= Server].
