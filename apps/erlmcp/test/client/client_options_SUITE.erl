-module(client_options_SUITE).
-moduledoc "The options of `m:erlmcp_client`: what is refused on which transport, and what holds.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([wrong_options_are_named/1, wrong_filters_are_named/1, nobody_there_is_one_reason/1,
         calls_may_be_more_than_by_default/1, a_session_hears_and_tells/1,
         capabilities_may_have_atoms/1,
         what_crashes_a_call_is_named/1, wrong_options_of_a_call_are_refused/1,
         wrong_targets_are_refused/1]).

-define(WAIT, 30_000).
%% One millisecond more than a process can wait.
-define(TOO_LONG, 4_294_967_296).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [wrong_options_are_named, wrong_filters_are_named, nobody_there_is_one_reason,
     calls_may_be_more_than_by_default, a_session_hears_and_tells, capabilities_may_have_atoms,
     what_crashes_a_call_is_named, wrong_options_of_a_call_are_refused,
     wrong_targets_are_refused].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

wrong_options_are_named(_) ->
    %% The one who starts a client is linked to what finds the option wrong.
    process_flag(trap_exit, true),
    Common = [{Key, Value} || {Key, Values} <- [
                  {timeout, [0, ~"1", ?TOO_LONG]}, {connect_timeout, [?TOO_LONG]}, {calls, [0]},
                  {name, [name]}, {era, ['1999-01-01']}, {inputs, [none]},
                  {capabilities, [#{~"a" => self()}]}, {tasks, [yes]},
                  {log_level, [loud]}, {cache, [true]}, {limits, [10]}, {bogus, [1]}],
                              Value <- Values],
    Stdio = [{args, ~"x"}, {args, [1]}, {args, [~"x" | y]}, {args, [<<0>>]},
             {args, ["x", [$x, 0]]}, {cd, <<"/tmp", 0>>}, {env, x}, {env, [{~"A", 1}]},
             {env, [{~"A", ~"1"} | x]}, {env, #{~"" => ~"1"}}, {env, #{~"A=B" => ~"1"}},
             {env, #{<<255>> => ~"1"}}, {env, #{~"A" => <<255>>}}, {env, #{~"A" => <<0>>}},
             {env, #{"A" => [0]}}, {cd, none}, {stop_ms, 0}, {stop_ms, ?TOO_LONG},
             {inherit, none}, {inherit, [~"A"]}, {principal, ada}, {token, ~"t"}],
    Http = [{connections, 0}, {args, []}, {idle_ms, ?TOO_LONG}, {headers, [{~"a", ~"b"} | c]},
            {tls, [verify | none]}],
    [{error, {bad_option, Key, <<_, _/binary>>}} = start(Target, #{Key => Value})
     || {Target, Own} <- [{http, Http}, {stdio, Stdio},
                          {tcp, [{tls, []}, {args, []}]}, {server, [{args, []}]}],
        {Key, Value} <- Common ++ Own],
    {error, {bad_option, {limits, dept}, _}} = start(http, #{limits => #{dept => 1}}),
    {error, {bad_option, {inputs, elicit}, _}} = start(tcp, #{inputs => #{elicit => yes}}),
    [{error, {bad_option, {capabilities, extensions}, _}} =
         start(server, #{capabilities => #{Key => Value}})
     || Key <- [extensions, ~"extensions"], Value <- [null, []]],
    {error, {bad_option, {inputs, roots}, _}} = start(tcp, #{inputs => #{roots => [#{} | x]}}),
    {error, {bad_option, {cache, size}, _}} = start(server, #{cache => #{size => 1}}),
    {error, {bad_option, target, _}} = erlmcp_client:start_link(~"http://127.0.0.1:1/mcp"),
    {error, {bad_option, url, _}} = erlmcp_client:start_link({http, ~"ftp://a.example", #{}}).

start(http, Options) ->
    erlmcp_client:start_link({http, ~"http://127.0.0.1:1/mcp", Options});
start(stdio, Options) ->
    erlmcp_client:start_link({stdio, ~"/no/such/program", Options});
start(tcp, Options) ->
    erlmcp_client:start_link({tcp, ~"127.0.0.1", 1, Options});
start(server, Options) ->
    erlmcp_client:start_link({server, nobody, Options}).

wrong_filters_are_named(_) ->
    {ok, Client} = start(server, #{}),
    [{error, {bad_option, Key, _}} = erlmcp_client:subscribe(Client, #{Key => Value})
     || {Key, Value} <- [{tools_change, true}, {tools_changed, yes}, {resources, ~"a:b"},
                         {resources, [1]}, {resources, [~"a:b" | ~"a:c"]}, {resources, [<<255>>]},
                         {logs, info}]],
    {error, {bad_option, filter, _}} = erlmcp_client:subscribe(Client, tools_changed),
    ok = erlmcp_client:stop(Client).

%% `{connect, Why}` has why, on every transport.
nobody_there_is_one_reason(_) ->
    [begin
         {ok, Client} = start(Target, #{timeout => ?WAIT}),
         {error, {connect, Why}} = erlmcp_client:ping(Client),
         ok = erlmcp_client:stop(Client)
     end || {Target, Why} <- [{http, econnrefused}, {tcp, econnrefused}, {server, no_server},
                              {stdio, {exit_status, 127}}]].

%% The channel has as many exchanges as the client has calls.
calls_may_be_more_than_by_default(_) ->
    {Client, Socket} = connected(#{calls => 1500, era => stateless}),
    {~"server/discover", _} =
        answer(Socket, #{supportedVersions => [~"2026-07-28"], capabilities => #{}}),
    {ok, _} = erlmcp_client:server(Client),
    Calls = [begin
                 {ok, Call} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
                 Call
             end || _ <- lists:seq(1, 1500)],
    [{~"tools/call", _} = answer(Socket, #{content => []}) || _ <- Calls],
    [receive {erlmcp, Call, {ok, _}} -> ok after ?WAIT -> error(late) end || Call <- Calls],
    ok = erlmcp_client:stop(Client).

%% "Clients that support roots and declare the listChanged capability"; that a URL was visited.
a_session_hears_and_tells(_) ->
    {Client, Socket} = connected(#{era => session, inputs => #{roots => fun() -> [] end}}),
    {~"initialize", #{~"capabilities" := #{~"roots" := #{~"listChanged" := true}}}} =
        answer(Socket, #{protocolVersion => ~"2025-11-25", capabilities => #{}}),
    {none, ~"notifications/initialized", _} = heard(Socket),
    {ok, Visits} = erlmcp_client:subscribe(Client, #{elicitations => true}),
    receive {erlmcp, Visits, subscribed} -> ok after ?WAIT -> error(late) end,
    ok = say(Socket, #{method => ~"notifications/elicitation/complete",
                       params => #{elicitationId => ~"7"}}),
    receive {erlmcp, Visits, {elicitation_complete, ~"7"}} -> ok after ?WAIT -> error(late) end,
    ok = erlmcp_client:notify(Client, ~"notifications/roots/list_changed", #{}),
    {none, ~"notifications/roots/list_changed", _} = heard(Socket),
    ok = erlmcp_client:stop(Client),
    {error, stopped} = erlmcp_client:notify(Client, ~"notifications/roots/list_changed", #{}).

%% A member that `inputs` or `tasks` make, too, is sent once: a server refuses duplicate keys.
capabilities_may_have_atoms(_) ->
    Declared = fun(_, #{client_capabilities := Capabilities}) -> {structured, Capabilities} end,
    {ok, Server} = erlmcp:start_server(#{name => ~"a", version => ~"1",
                                         tools => [#{name => ~"t", handler => Declared}]}),
    [begin
         {ok, Client} = erlmcp_client:start_link({server, Server, #{
             era => Era, tasks => true, inputs => #{sample => fun(_) -> {error, ~"no"} end},
             capabilities => #{sampling => #{tools => #{}},
                               extensions => #{~"a.example/b" => #{},
                                               'io.modelcontextprotocol/tasks' => #{}}}}}),
         {ok, #{~"structuredContent" := #{
             ~"sampling" := #{~"tools" := #{}},
             ~"extensions" := #{~"a.example/b" := #{},
                                ~"io.modelcontextprotocol/tasks" := #{}}}}} =
             erlmcp_client:call_tool(Client, ~"t", #{}),
         ok = erlmcp_client:stop(Client)
     end || Era <- [stateless, session]],
    ok = erlmcp:stop_server(Server).

%% What is no JSON.
what_crashes_a_call_is_named(_) ->
    {ok, Server} = erlmcp:start_server(#{name => ~"a", version => ~"1",
                                         tools => [#{name => ~"t",
                                                     handler => fun(_, _) -> ~"" end}]}),
    {ok, Client} = erlmcp_client:start_link({server, Server, #{}}),
    Arguments = #{pid => self()},
    {error, {crashed, {_, _}}} = erlmcp_client:call_tool(Client, ~"t", Arguments),
    {ok, Call} = erlmcp_client:async(Client, {call_tool, ~"t", Arguments}),
    receive {erlmcp, Call, {error, {crashed, {_, _}}}} -> ok after ?WAIT -> error(late) end,
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).

wrong_options_of_a_call_are_refused(_) ->
    {ok, Client} = erlmcp_client:start_link({server, nobody, #{}}),
    {ok, Pool} = erlmcp_pool:start_link(#{targets => [{server, nobody, #{}}]}),
    Wrong = [{timeout, soon}, {timeout, 0}, {max_timeout, -1}, {timeout, ?TOO_LONG},
             {max_timeout, ?TOO_LONG}, {progress, fun() -> ok end},
             {log, log}, {log_level, loud}, {meta, []}, {fresh, yes}, {repeatable, 1}, {task, wait},
             {timeot, 100}],
    [begin
         {error, {bad_option, Key, Expected} = Reason} =
             erlmcp_client:call_tool(To, ~"t", #{}, #{Key => Value}),
         {error, Reason} = erlmcp_client:async(To, {call_tool, ~"t", #{}}, #{Key => Value}),
         true = is_binary(Expected) andalso is_binary(erlmcp_client:format_error(Reason))
     end || {Key, Value} <- Wrong, To <- [Client, Pool]],
    {error, {bad_option, options, ~"a map"}} = erlmcp_client:ping(Client, []),
    {error, {bad_option, timeout, _}} = erlmcp_client:server(Client, #{timeout => soon}),
    {error, {connect, no_server}} = erlmcp_client:ping(Client, #{
        timeout => 1_000, max_timeout => 1_000, key => {a, 1}, fresh => true, repeatable => true,
        task => await, meta => #{}, log_level => debug, progress => fun(_) -> ok end,
        log => fun(_) -> ok end}),
    ok = erlmcp_client:stop(Pool),
    ok = erlmcp_client:stop(Client).

wrong_targets_are_refused(_) ->
    process_flag(trap_exit, true),
    [{error, {bad_option, command, _}} = erlmcp_client:start_link({stdio, Command, #{}})
     || Command <- [cat, 5, [], ["cat", cat], ["cat" | ~"x"], ~"",
                    <<"cat", 0>>, ["cat", <<0>>], [~"cat", [0]]]],
    [{error, {bad_option, Key, _}} = erlmcp_client:start_link({tcp, Host, Port, #{}})
     || {Key, Host, Port} <- [{port, ~"127.0.0.1", 0}, {port, ~"127.0.0.1", 65536},
                              {port, ~"127.0.0.1", ~"80"}, {host, ~"", 80}, {host, "", 80},
                              {host, none, 80}, {host, {1, 2, 3}, 80}, {host, {0, 0, 0, 256}, 80},
                              {host, [a], 80}]],
    [begin
         {ok, Tcp} = erlmcp_client:start_link({tcp, Host, Port, #{}}),
         ok = erlmcp_client:stop(Tcp)
     end || {Host, Port} <- [{~"127.0.0.1", 1}, {"127.0.0.1", 65535}, {{127, 0, 0, 1}, 1},
                             {{0, 0, 0, 0, 0, 0, 0, 1}, 1}]],
    {ok, Client} = erlmcp_client:start_link({stdio, "cat", #{}}),
    ok = erlmcp_client:stop(Client),
    [{error, {bad_option, url, _}} = erlmcp_client:start_link({http, Url, #{}})
     || Url <- ["http://127.0.0.1/mcp", <<"http://", 255, "/mcp">>, <<"http://a/", 255>>,
                <<255>>]],
    {error, {bad_option, bogus, _}} =
        erlmcp_pool:start_link(#{targets => [{http, ~"http://127.0.0.1/mcp", #{bogus => 1}}]}).

%% A client whose server is this process.
connected(Options) ->
    {ok, Listen} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {active, false},
                                      {packet, line}, {buffer, 65_536}]),
    {ok, Port} = inet:port(Listen),
    {ok, Client} = erlmcp_client:start_link({tcp, ~"127.0.0.1", Port, Options}),
    {ok, Socket} = gen_tcp:accept(Listen, ?WAIT),
    {Client, Socket}.

answer(Socket, Result) ->
    {Id, Method, Params} = heard(Socket),
    ok = say(Socket, #{id => Id, result => Result#{resultType => complete}}),
    {Method, Params}.

heard(Socket) ->
    {ok, Line} = gen_tcp:recv(Socket, 0, ?WAIT),
    #{~"method" := Method} = Message = json:decode(Line),
    {maps:get(~"id", Message, none), Method, maps:get(~"params", Message, #{})}.

say(Socket, Message) ->
    gen_tcp:send(Socket, [json:encode(Message#{jsonrpc => ~"2.0"}), $\n]).
