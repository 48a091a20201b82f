-module(server_logs_SUITE).
-moduledoc """
What a server writes to the log of OTP: where it listens, when it drains and ends, and its access
log. A handler of the log passes each report of a server on to its case.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([a_server_says_where_it_listens/1, a_server_says_that_it_drains_and_ends/1,
         a_server_without_listeners_says_nothing/1, each_request_is_logged/1,
         one_in_so_many_is_logged/1, a_log_that_blocks_delays_no_request/1]).
-export([log/2]).

-define(TIMEOUT, 30_000).
-define(SECRET, ~"s3cr3t-of-the-caller").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(Case, Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{level => notice, config => #{test => self(),
                                                                            server => Case}}),
    [{id, Case} | Config].

end_per_testcase(_, _) ->
    logger:remove_handler(?MODULE).

%% A handler of `m:logger`.
log(#{msg := {report, #{server := Id} = Report}}, #{config := #{test := Test, server := Id}}) ->
    case Report of
        #{what := request_ended, target := ~"blocked"} ->
            Test ! {blocked, self()},
            receive never -> ok end;
        _ ->
            Test ! {logged, Report}
    end;
log(_, _) ->
    ok.

logged(What) ->
    receive
        {logged, #{what := What} = Report} -> Report
    after ?TIMEOUT ->
        error({not_logged, What})
    end.

quiet() ->
    receive {logged, Report} -> error({logged, Report}) after 0 -> ok end.

a_server_says_where_it_listens(Config) ->
    Options = [{http, #{}},
               {http, #{authenticate => fun(_) -> {ok, ~"ada"} end, health => true, sse => #{}}},
               {http, #{tls => erlmcp_test_http:shown(),
                        authenticate => {bearer, #{tokens => [{static, []}],
                                                   resource => ~"https://mcp.example"}}}},
               {http, #{path => none, health => true}},
               {tcp, #{}}],
    Pid = start(#{listen => Options}, Config),
    Listeners = erlmcp:listeners(Pid),
    Clients = [anonymous, authenticated, with_tokens, anonymous, anonymous],
    [begin
         Report = logged(server_listens),
         Expected = (maps:without([ip, port], Listener))#{
             what => server_listens, server => proplists:get_value(id, Config),
             clients => Whose},
         Expected = Report
     end || {Listener, Whose} <- lists:zip(Listeners, Clients)],
    ok = quiet(),
    ok = erlmcp:stop_server(Pid).

a_server_says_that_it_drains_and_ends(Config) ->
    Began = erlang:monotonic_time(second),
    Pid = start(#{listen => [{http, #{}}]}, Config),
    _ = logged(server_listens),
    {ok, _} = erlmcp:drain(Pid, 1_234),
    #{milliseconds := 1_234} = logged(server_drains),
    #{calls := 0, tasks := 0} = logged(server_drained),
    ok = quiet(),
    ok = erlmcp:stop_server(Pid),
    #{seconds := Seconds} = logged(server_ended),
    true = Seconds >= 0 andalso Seconds =< erlang:monotonic_time(second) - Began + 1,
    ok = quiet().

a_server_without_listeners_says_nothing(Config) ->
    Pid = start(#{}, Config),
    ok = erlmcp:stop_server(Pid),
    ok = quiet().

each_request_is_logged(Config) ->
    Server = serve(#{access_log => #{}}, Config),
    #{status := 200} = erlmcp_test_http:call(Server, ~"tools/call", arguments(~"echo")),
    #{method := ~"tools/call", target := ~"echo", outcome := ok, principal := anonymous,
      duration_us := Duration, bytes_in := In, bytes_out := Out} = Called = logged(request_ended),
    true = Duration < 10_000_000,
    true = In > byte_size(?SECRET),
    true = Out > byte_size(?SECRET),
    nomatch = string:find(io_lib:format("~p", [Called]), ?SECRET),
    #{status := 200} = erlmcp_test_http:call(Server, ~"tools/call", arguments(~"fails")),
    #{outcome := tool_error, target := ~"fails"} = logged(request_ended),
    _ = erlmcp_test_http:call(Server, ~"tools/call", arguments(~"crash")),
    #{outcome := refused, code := 1079, refusal := internal_error, target := ~"crash"} =
        logged(request_ended),
    _ = logged(call_crashed),
    %% Another process than the call's ends such a request.
    _ = erlmcp_test_http:call(Server, ~"tools/call", arguments(~"late")),
    #{outcome := refused, code := 1069, target := ~"late", principal := anonymous} =
        logged(request_ended),
    _ = logged(call_timed_out),
    #{status := 200} = erlmcp_test_http:call(Server, ~"tools/list", #{}),
    #{method := ~"tools/list", outcome := ok} = logged(request_ended),
    %% The head of a request that is not read tells its method.
    #{status := 406} = erlmcp_test_http:call(Server, ~"tools/list", #{}, #{
        headers => #{~"accept" => ~"text/plain"}}),
    #{method := ~"tools/list", outcome := refused} = logged(request_ended),
    ok = quiet(),
    erlmcp_test_http:stop(Server).

arguments(Tool) ->
    #{name => Tool, arguments => #{text => ?SECRET}}.

%% Of 1,000 requests about 100: fewer than 40 or more than 160 are as good as impossible.
one_in_so_many_is_logged(Config) ->
    Pid = start(#{access_log => #{sample => 10}}, Config),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    [{ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{text => ~"a"})
     || _ <- lists:seq(1, 1_000)],
    ok = erlmcp_client:stop(Client),
    Logged = length(settled(0)),
    true = Logged >= 40,
    true = Logged =< 160,
    ok = erlmcp:stop_server(Pid).

settled(_) ->
    receive
        {logged, #{what := request_ended} = Report} -> [Report | settled(0)]
    after 1_000 ->
        []
    end.

%% More than 1,000 entries do not wait. Those that do not fit are dropped.
a_log_that_blocks_delays_no_request(Config) ->
    Pid = start(#{access_log => #{sample => 1}}, Config),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    [{ok, _} = erlmcp_client:call_tool(Client, ~"blocked", #{}) || _ <- lists:seq(1, 1_100)],
    Writers = blocked([]),
    true = length(Writers) =< 1_000,
    true = length(Writers) > 900,
    [true = exit(Writer, kill) || Writer <- Writers],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Pid).

blocked(Writers) ->
    receive
        {blocked, Writer} -> blocked([Writer | Writers])
    after 3_000 ->
        Writers
    end.

serve(Options, Config) ->
    Pid = start(Options#{listen => [{http, #{}}]}, Config),
    _ = logged(server_listens),
    [Listener] = erlmcp:listeners(Pid),
    Listener#{pid => Pid}.

start(Options, Config) ->
    Tools = [#{name => ~"echo", handler => fun(#{~"text" := Text}, _) -> Text end},
             #{name => ~"blocked", handler => fun(_, _) -> ~"done" end},
             #{name => ~"fails", handler => fun(_, _) -> {error, ~"on purpose"} end},
             #{name => ~"crash", handler => fun(_, _) -> error(on_purpose) end},
             #{name => ~"late", timeout_ms => 1,
               handler => fun(_, _) -> receive never -> ~"" end end}],
    {ok, Pid} = erlmcp:start_server(Options#{id => proplists:get_value(id, Config),
                                             name => ~"logs", version => ~"1", tools => Tools}),
    Pid.
