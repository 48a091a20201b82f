-module(strange_messages_SUITE).
-moduledoc """
Messages of strangers to the processes of running servers and clients, such as the late answer of
a library. None of them ends a process, and all goes on.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([processes_of_a_server_go_on/1, processes_of_a_client_go_on/1]).

-define(REVISION, ~"2025-11-25").

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [processes_of_a_server_go_on, processes_of_a_client_go_on].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

processes_of_a_server_go_on(_) ->
    Before = processes(),
    Tokens = #{resource => ~"https://mcp.example/mcp",
               tokens => [{static, [#{token => ~"t", principal => ada}]}]},
    #{pid := Pid} = Server = erlmcp_test_http:start(
        #{tools => [#{name => ~"jam", task => optional, handler => fun jam/2},
                    #{name => ~"kept", breaker => #{failures => 1, open_ms => 1},
                      handler => fun(_, _) -> ~"kept" end}],
          workers => #{db => #{size => 1, start => fun() -> {ok, scarce} end}},
          on_event => fun(_) -> ok end,
          listen => [{http, #{sse => #{}}}, {tcp, #{}},
                     {http, #{path => ~"/closed", authenticate => {bearer, Tokens}}}]}),
    Tcp = erlmcp_test_line:connect(Pid),
    List = fun() ->
        #{~"result" := _} = erlmcp_test_line:ask_stateless(Tcp, 1, ~"tools/list", #{})
    end,
    _ = List(),
    Session = erlmcp_test_http:initialize(Server, ?REVISION),
    {Stream, {200, _}} = erlmcp_test_http:get_stream(Server, Session),
    Sse = erlmcp_test_sse:open(Server),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{tasks => true}}),
    {ok, #{~"taskId" := _}} = erlmcp_client:call_tool(Client, ~"jam", #{}, #{task => handle}),
    ok = go_on(Before, [erlmcp_bearer_keeper, erlmcp_catalog_publisher, erlmcp_concurrency_limiter,
                        erlmcp_error_budget, erlmcp_event_handler, erlmcp_gate_permits,
                        erlmcp_gate_queue, erlmcp_httpd_sse_session, erlmcp_session, erlmcp_sweeper,
                        erlmcp_task, erlmcp_workers]),
    _ = List(),
    #{status := 200} = erlmcp_test_http:call(Server, ~"ping", #{}, #{session => Session}),
    true = erlmcp_test_sse:is_quiet(Sse),
    ok = erlmcp_client:stop(Client),
    erlmcp_test_sse:close(Sse),
    erlmcp_test_http:close(Stream),
    erlmcp_test_http:stop(Server).

jam(_, _) ->
    receive never -> ok end.

processes_of_a_client_go_on(_) ->
    #{pid := Pid, port := Port} = Server = erlmcp_test_http:start(
        #{tools => [#{name => ~"echo", handler => fun(#{~"text" := Text}, _) -> Text end}],
          listen => [{http, #{sse => #{}}}, {tcp, #{}}]}),
    [TcpPort] = [Own || #{transport := tcp, port := Own} <- erlmcp:listeners(Pid)],
    Url = fun(Path) -> iolist_to_binary([~"http://127.0.0.1:", integer_to_binary(Port), Path]) end,
    Targets = [{http, Url(~"/mcp"), #{}}, {http, Url(~"/mcp"), #{era => session}},
               {tcp, ~"127.0.0.1", TcpPort, #{}}, {server, Pid, #{}}],
    Before = processes(),
    Clients = [begin
                   {ok, Client} = erlmcp_client:start_link(Target),
                   Client
               end || Target <- Targets],
    {ok, Pool} = erlmcp_pool:start_link(#{targets => [{server, Pid, #{}}], size => 2}),
    Echo = fun() ->
        [{ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{~"text" => ~"e"})
         || Client <- Clients]
    end,
    _ = Echo(),
    ok = go_on(Before, [erlmcp_client, erlmcp_httpc_pool]),
    _ = Echo(),
    [ok = erlmcp_client:stop(Client) || Client <- Clients],
    ok = erlmcp_pool:stop(Pool),
    erlmcp_test_http:stop(Server).

%% Sends strange messages to all processes since then that handle messages.
go_on(Before, Expected) ->
    Labelled = [{Pid, element(1, Label)} || Pid <- processes() -- Before,
                                            Label <- [proc_lib:get_label(Pid)], is_tuple(Label),
                                            handles_messages(Pid)],
    [] = Expected -- [Name || {_, Name} <- Labelled],
    [begin
         [Pid ! Message || Message <- [strange, {strange, make_ref()}]],
         %% It has handled them when it answers this.
         sys:get_state(Pid)
     end || {Pid, _} <- Labelled],
    ok.

handles_messages(Pid) ->
    case proc_lib:translate_initial_call(Pid) of
        {supervisor, _, _} -> false;
        {Module, init, _} ->
            lists:any(fun({Name, Arity}) -> erlang:function_exported(Module, Name, Arity) end,
                      [{handle_info, 2}, {callback_mode, 0}]);
        _ -> false
    end.
