-module(api_SUITE).
-moduledoc """
`m:erlmcp`, as the user's own code meets it: servers that start, stop, change while they are used,
and leave nothing behind.
""".

-behaviour(erlmcp_server).
-behaviour(supervisor).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([init_per_testcase/2, end_per_testcase/2]).
-export([init/1]).
-export([server/0, tools/0, resources/0, resource_templates/0, prompts/0,
         call_tool/3, read_resource/3, get_prompt/3]).
-export([servers_live_in_the_users_tree/1, servers_share_nothing/1, ids_name_servers/1,
         ids_and_ports_are_free_again_at_once/1, unknown_servers_are_not_found/1,
         stopped_servers_are_gone/1,
         any_process_may_stop_a_server/1, stopping_ends_what_runs/1,
         servers_end_with_their_starter/1, listeners_are_where_they_say/1,
         used_ports_are_refused/1, bad_options_are_refused_by_name/1,
         bad_listener_options_say_what_is_expected/1,
         bad_limits_are_refused_by_name/1, every_limit_can_be_set/1,
         bad_definitions_are_refused_by_name/1, duplicates_are_refused/1,
         handler_modules_are_servers/1, options_win_over_the_handlers/1,
         changes_are_seen_at_once/1, removed_tools_end_in_their_own_time/1,
         changes_disturb_nobody/1, refused_changes_change_nothing/1,
         published_catalogs_survive_their_publisher/1, killed_calls_disturb_nobody/1,
         killed_connections_disturb_nobody/1, killed_sessions_disturb_nobody/1,
         sessions_on_tcp_are_no_http_sessions/1, starting_and_stopping_leaves_nothing/1,
         failed_starts_leave_nothing/1, killed_servers_leave_nothing/1,
         connections_leave_nothing/1, names_from_outside_become_no_atoms/1,
         the_application_must_run/1, servers_that_end_while_asked_are_not_found/1,
         ids_are_free_before_it_is_heard_that_they_are/1]).

-import(erlmcp_test_line, [connect/1, close/1, send/2, recv/1, rest/1, is_quiet/1, ask/4,
                           ask_stateless/4, initialize/2, request/3, stateless/3, result/1, code/1,
                           echo_tool/0, waiting_tool/1, await_call/0]).

-define(PATIENCE, 30_000).
-define(KINDS, [tool, resource, resource_template, prompt]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [servers_live_in_the_users_tree, servers_share_nothing, ids_name_servers,
     ids_and_ports_are_free_again_at_once, unknown_servers_are_not_found, stopped_servers_are_gone,
     any_process_may_stop_a_server, stopping_ends_what_runs, servers_end_with_their_starter,
     listeners_are_where_they_say, used_ports_are_refused, bad_options_are_refused_by_name,
     bad_listener_options_say_what_is_expected,
     bad_limits_are_refused_by_name, every_limit_can_be_set, bad_definitions_are_refused_by_name,
     duplicates_are_refused, handler_modules_are_servers, options_win_over_the_handlers,
     changes_are_seen_at_once, removed_tools_end_in_their_own_time, changes_disturb_nobody,
     refused_changes_change_nothing, published_catalogs_survive_their_publisher,
     killed_calls_disturb_nobody, killed_connections_disturb_nobody,
     killed_sessions_disturb_nobody, sessions_on_tcp_are_no_http_sessions,
     starting_and_stopping_leaves_nothing, failed_starts_leave_nothing,
     killed_servers_leave_nothing, connections_leave_nothing, names_from_outside_become_no_atoms,
     the_application_must_run, servers_that_end_while_asked_are_not_found,
     ids_are_free_before_it_is_heard_that_they_are].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started([erlmcp, inets]),
    %% Servers that cannot start say so to the log too, at length.
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    [{log_level, Level} | Config].

end_per_suite(Config) ->
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)).

init_per_testcase(_, Config) ->
    %% A server that cannot start sends its starter an exit signal, as all OTP processes do.
    process_flag(trap_exit, true),
    Config.

end_per_testcase(_, _) ->
    [_ = erlmcp:stop_server(Server) || Server <- get_servers()],
    ok.

%% A server of the test's, stopped at its end.
start(Given) ->
    {ok, Server} = erlmcp:start_server(options(Given)),
    put(servers, [Server | get_servers()]),
    Server.

get_servers() ->
    case get(servers) of
        undefined -> [];
        Servers -> Servers
    end.

options(Given) ->
    maps:merge(#{name => ~"api", version => ~"1", tools => [echo_tool()],
                 listen => [{tcp, #{port => 0}}]}, Given).

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

await_child(Id, Supervisor, Old) ->
    await(fun() ->
        case lists:keyfind(Id, 1, supervisor:which_children(Supervisor)) of
            {_, Pid, _, _} when is_pid(Pid), Pid =/= Old -> {ok, Pid};
            _ -> again
        end
    end).

%% What is true soon, but says nothing when it becomes so.
await(Ask) ->
    await(Ask, erlang:monotonic_time(millisecond) + ?PATIENCE).

await(Ask, Deadline) ->
    case Ask() of
        {ok, Answer} -> Answer;
        again ->
            true = erlang:monotonic_time(millisecond) < Deadline,
            receive after 5 -> await(Ask, Deadline) end
    end.

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
    ok = application:stop(erlmcp),
    {error, {not_started, erlmcp}} = erlmcp:start_server(options(#{})),
    ok = application:start(erlmcp).

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
    [{error, econnrefused} = gen_tcp:connect(Ip, Port, []) || Port <- Ports].

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

%% `{bad_option, Key, Expected}`: "an option is unknown, missing or of the wrong type".
bad_options_are_refused_by_name(_) ->
    [{Options, {error, {bad_option, Key, _}}} = {Options, started(Options)}
     || {Options, Key} <- [{[], options}, {not_a_map, options}, {#{version => ~"1"}, name},
                           {#{name => ~"n"}, version}]],
    [] = [{Key, Value, Got} || {Key, Value} <- bad_options(),
                               Got <- [started(options(#{Key => Value}))],
                               not is_refused(Key, Got)].

%% One that is there but wrong is told from one that is not.
bad_listener_options_say_what_is_expected(_) ->
    [{Listener, {error, {bad_option, Key, Expected}}} =
         {Listener, started(options(#{listen => [Listener]}))}
     || {Listener, Key, Expected} <- [
            {{tcp, #{port => 65536}}, {tcp, port}, ~"an integer of 0 to 65535"},
            {{tcp, #{porrt => 1}}, {tcp, porrt}, ~"no such option of this listener"},
            {{http, #{path => ~"mcp"}}, {http, path}, ~"a binary that begins with a slash"},
            {{http, #{sse => #{path => ~"/a?b"}}}, {http, sse, path},
             ~"a path: a slash, and no query"}]].

%% The key is the option's; for a listener or a limit, its and the option's in it.
is_refused(Key, {error, {bad_option, Named, <<_, _/binary>>}}) ->
    Named =:= Key orelse Key =:= listen andalso is_tuple(Named);
is_refused(_, _) ->
    false.

bad_options() ->
    Unclosed = [echo_tool() | echo_tool()],
    [{Key, Value}
     || {Key, Values} <- [
            {nam, [~"n"]}, {~"name", [~"n"]}, {tool, [[]]}, {limit, [#{}]},
            {name, [n, "n", 1, undefined, <<255>>]}, {version, [1.0, "1", <<255>>]},
            {title, [t, <<255>>]}, {description, ["d", <<255>>]}, {website_url, ["u", <<255>>]},
            {instructions, [i, <<255>>]},
            {icons, [#{}, ~"i", [~"i"], [#{src => self()}], [#{src => <<255>>}]]},
            {tools, [#{}, none, Unclosed]}, {resources, [#{}]}, {resource_templates, [x]},
            {prompts, [~"p"]},
            {handler, [~"lists", 1, no_such_module, lists, fun() -> ok end]},
            {limits, [[], none, [{depth, 1}]]},
            {middleware, [#{}, fun(_, _, _) -> ok end, [fun(_, _) -> ok end], [api_SUITE]]},
            {mounts, [#{}, api_SUITE, [api_SUITE], [{a, api_SUITE}], [{~"", api_SUITE}],
                      [{~"A", api_SUITE}], [{~"a.b", api_SUITE}], [{~"_a", api_SUITE}],
                      [{binary:copy(~"a", 65), api_SUITE}], [{~"a", api_SUITE} | x]]},
            {task_store, [erlmcp_task_store_ets, {erlmcp_task_store_ets, []}, {lists, #{}},
                          {no_such_module, #{}}]},
            {listen, [none, #{}, [tcp], [{tcp}], [{tcp, []}], [{bogus, #{}}],
                      [{bogus, #{port => 0}}], [{tcp, #{port => -1}}], [{tcp, #{port => 65536}}],
                      [{tcp, #{port => ~"0"}}],
                      [{tcp, #{ip => ~"127.0.0.1"}}], [{tcp, #{ip => {1, 2}}}],
                      [{tcp, #{path => ~"/"}}], [{tcp, #{bogus => 1}}], [{stdio, #{port => 0}}],
                      [{http, #{path => ~"mcp"}}], [{http, #{path => "/mcp"}}],
                      [{http, #{tls => #{}}}], [{http, #{allowed_hosts => [localhost]}}],
                      [{http, #{allowed_origins => ~"any"}}], [{tcp, #{}} | tcp]]}],
        Value <- Values].

started(Options) ->
    try erlmcp:start_server(Options) of
        {ok, Server} -> erlmcp:stop_server(Server), started;
        {error, _} = Error -> Error
    catch
        Class:Reason -> {Class, Reason}
    end.

%% Each limit is a positive integer, and nothing else is a limit.
bad_limits_are_refused_by_name(_) ->
    [{Name, Value, {error, {bad_option, {limits, Name}, <<_, _/binary>>}}} =
         {Name, Value, started(options(#{limits => #{Name => Value}}))}
     || {Name, Default, _} <- [{no_such_limit, 1, ~""} | erlmcp_options:limits()],
        Value <- [0, -1, 1.5, ~"1", infinity, undefined, #{}],
        Value =/= Default, {Name, Value} =/= {queue, 0}].

%% Each of them, with its default from one place, and described there.
every_limit_can_be_set(_) ->
    [begin
         true = byte_size(What) > 10,
         true = Default =:= infinity orelse is_integer(Default) andalso Default > 0,
         started = started(options(#{limits => #{Name => Value}}))
     end || {Name, Default, What} <- erlmcp_options:limits(),
            Value <- [1, Default] ++ [Default * 2 || Default =/= infinity]].

%% `{bad_definition, Kind, Name, Field, Expected}`, for every field of every kind, at the start and
%% at run time.
bad_definitions_are_refused_by_name(_) ->
    Server = start(#{}),
    Socket = connect(Server),
    _ = initialize(Socket, ~"2025-11-25"),
    [begin
         %% A definition is called by its key, where it has one.
         Refused = {error, {bad_definition, Kind, maps:get(Key, Definition, undefined), Field}},
         {Definition, Refused} = {Definition, fault(started(with(Kind, Definition)))},
         {Definition, Refused} = {Definition, fault(erlmcp:add(Server, Kind, Definition))}
     end || Kind <- ?KINDS, Key <- [key(Kind)], {Field, Definition} <- bad_definitions(Kind)],
    [{error, {bad_definition, Kind, undefined, definition}} =
         fault(started(with(Kind, NoMap)))
     || Kind <- ?KINDS, NoMap <- [none, [], [{name, ~"n"}], {tool}]],
    [~"echo"] = listed(tool, Socket),
    [[] = listed(Kind, Socket) || Kind <- ?KINDS -- [tool]].

fault({error, {bad_definition, Kind, Key, Field, <<_, _/binary>>}}) ->
    {error, {bad_definition, Kind, Key, Field}};
fault(Other) ->
    Other.

key(resource) -> uri;
key(resource_template) -> uri_template;
key(_) -> name.

bad_definitions(Kind) ->
    Fields = erlmcp_definition:fields(Kind),
    Good = definition(Kind, ~"good"),
    [{Field, maps:remove(Field, Good)} || {Field, _, _, required} <- Fields]
        ++ [{Field, Good#{Field => Wrong}} || {Field, _, Type, _} <- Fields, Wrong <- wrong(Type)]
        ++ [{Field, Good#{Field => ~"x"}} || Field <- [nam, inputSchema, ~"name", 1]]
        %% "PromptArgument": `name` is required.
        ++ [{arguments, Good#{arguments => [#{name => ~"a"}, Argument]}}
            || Kind =:= prompt, Argument <- [#{}, #{title => ~"b"}, #{name => 1}, #{name => ~""},
                                             #{name => ~"b", required => ~"yes"}]]
        %% MCP has no annotations of prompts.
        ++ [{annotations, Good#{annotations => #{}}} || Kind =:= prompt]
        ++ [{input_schema, Good#{input_schema => Schema}}
            || Kind =:= tool, Schema <- [#{type => string}, #{~"type" => ~"array"},
                                         #{type => [object]}]]
        ++ [{Field, Good#{Field => Value}}
            || Kind =:= tool, {Field, Value} <- [{task_starts, on_return}, {task_timeout_ms, 1}]]
        %% What waits for others is not quick.
        ++ [{quick, Good#{quick => true, breaker => #{}}}]
        %% What only some may see is in no shared cache.
        ++ [{cache_scope, Good#{visible => fun(_) -> true end, cache_scope => public}}
            || {cache_scope, _, _, _} <- Fields].

wrong(name) -> [~"" | wrong(text)];
wrong(text) -> [text, "text", 1, undefined, <<255>>];
wrong(object) -> [[], ~"{}", [{a, 1}], undefined, #{a => self()}, #{a => <<255>>}, #{a => {b}}];
wrong(schema) ->
    [[], ~"{}", [{a, 1}], undefined, [string | string], #{a => self()}, #{a => {const, <<255>>}},
     #{a => {b}}, #{type => object, properties => []}, #{properties => #{a => #{type => int}}},
     #{type => object, '$ref' => ~"#/$defs/a"}, #{a => {string, #{pattern => ~"("}}}];
wrong(objects) -> [#{}, undefined, [1], [[]], [#{} | #{}], [#{a => self()}]];
wrong(uri_template) -> [template, "a://b", ~"a://{b", ~"a://b}", ~"a://{b c}", <<255>>];
wrong(handler) -> [fun() -> ok end, fun(_) -> ok end, handler, {?MODULE, call_tool}, undefined];
wrong(completions) -> [[], undefined, #{a => []}, #{~"a" => ~"text"}, #{~"a" => [a]},
                       #{~"a" => [~"b" | ~"c"]}, #{~"a" => [<<255>>]}, #{~"a" => fun(_) -> [] end}];
wrong(milliseconds) -> [-1, 1.5, infinity, ~"1", undefined];
wrong(size) -> [-1, 1.5, ~"1", undefined];
wrong(flag) -> [yes, 1, ~"true", undefined];
wrong(scope) -> [everybody, ~"public", undefined];
wrong(visibility) -> [true, undefined, all, fun() -> true end, fun(_, _) -> true end];
wrong(middleware) -> [fun(_, _, _) -> ok end, [fun(_, _) -> ok end], [log], undefined];
wrong(cache) -> [1000, #{}, #{ttl_ms => 0}, #{ttl_ms => ~"1"}, #{ttl_ms => 1, scope => everybody},
                 #{ttl_ms => 1, size => 1}, undefined];
wrong(ui) -> [[], undefined, ~"ui://a", #{visibility => []}, #{colour => red}];
wrong(task_support) -> [true, ~"optional", undefined];
wrong(task_start) -> [later, ~"at_once", undefined];
wrong(breaker) -> [~"db", db, [], 1, #{failures => 0}, #{opens => 1}];
wrong(count) -> [0, -1, 1.5, ~"1", infinity];
wrong(rates) -> [10, #{hour => 1}, #{second => 0}, [{second, 1}]];
wrong(scopes) -> [~"read", [read], [~""], [~"a b"], #{}];
wrong(label) -> [~"db", db, #{}, 1].

definition(resource, Name) ->
    #{uri => <<"r://", Name/binary>>, name => Name, handler => fun(_, _) -> Name end};
definition(resource_template, Name) ->
    #{uri_template => <<"t://", Name/binary, "/{id}">>, name => Name,
      handler => fun(#{~"id" := Id}, _) -> Id end};
definition(_, Name) ->
    #{name => Name, handler => fun(_, _) -> Name end}.

with(Kind, Definition) ->
    Key = maps:get(Kind, #{tool => tools, resource => resources, prompt => prompts,
                           resource_template => resource_templates}),
    maps:merge(options(#{tools => [], listen => []}), #{Key => [Definition]}).

%% `{duplicate, Kind, Name}`: within a kind. What is of two kinds may have one name.
duplicates_are_refused(_) ->
    Server = start(#{tools => []}),
    [begin
         Definition = definition(Kind, ~"one"),
         Key = maps:get(key(Kind), Definition),
         Twice = with(Kind, Definition),
         Both = #{List => Items ++ Items || List := [_] = Items <- Twice},
         {error, {duplicate, Kind, Key}} = started(maps:merge(Twice, Both)),
         ok = erlmcp:add(Server, Kind, Definition),
         {error, {duplicate, Kind, Key}} = erlmcp:add(Server, Kind, Definition),
         ok = erlmcp:remove(Server, Kind, Key),
         ok = erlmcp:add(Server, Kind, Definition)
     end || Kind <- ?KINDS],
    {error, {duplicate, tool, ~"of the module"}} =
        started(#{handler => ?MODULE, tools => [definition(tool, ~"of the module")]}).

server() ->
    #{name => ~"module", version => ~"2", instructions => ~"Mine.",
      tools => [definition(tool, ~"of its options")]}.

tools() -> [#{name => ~"of the module"}, definition(tool, ~"with a fun")].

resources() -> [#{uri => ~"m://plain", name => ~"plain"}].

resource_templates() -> [#{uri_template => ~"m://{id}/x", name => ~"template"}].

prompts() -> [#{name => ~"prompt", arguments => [#{name => ~"who"}]}].

call_tool(Name, Arguments, #{name := Name}) -> #{tool => Name, arguments => Arguments}.

read_resource(Uri, Variables, #{uri := Uri}) ->
    iolist_to_binary([Uri, json:encode(Variables)]).

get_prompt(Name, Arguments, #{name := Name}) -> iolist_to_binary([Name, json:encode(Arguments)]).

%% "A definition may leave `handler` out; the module's `call_tool/3`, `read_resource/3` or
%% `get_prompt/3` is called for it then."
handler_modules_are_servers(_) ->
    {ok, Server} = erlmcp:start_server(#{handler => ?MODULE, listen => [{tcp, #{}}]}),
    Socket = connect(Server),
    #{~"serverInfo" := #{~"name" := ~"module", ~"version" := ~"2"}, ~"instructions" := ~"Mine."} =
        initialize(Socket, ~"2025-11-25"),
    [~"of its options", ~"of the module", ~"with a fun"] = lists:sort(listed(tool, Socket)),
    #{~"structuredContent" := #{~"tool" := ~"of the module", ~"arguments" := #{~"a" := 1}}} =
        result(ask(Socket, 1, ~"tools/call", #{~"name" => ~"of the module",
                                               ~"arguments" => #{~"a" => 1}})),
    #{~"content" := [#{~"text" := ~"with a fun"}]} =
        result(ask(Socket, 2, ~"tools/call", #{~"name" => ~"with a fun"})),
    [#{~"contents" := [#{~"uri" := Uri, ~"text" := Text}]} =
         result(ask(Socket, 3, ~"resources/read", #{~"uri" => Uri}))
     || {Uri, Text} <- [{~"m://plain", ~"m://plain{}"}, {~"m://7/x", ~'m://7/x{"id":"7"}'}]],
    #{~"messages" := [#{~"role" := ~"user", ~"content" := #{~"text" := ~'prompt{"who":"me"}'}}]} =
        result(ask(Socket, 4, ~"prompts/get", #{~"name" => ~"prompt",
                                                ~"arguments" => #{~"who" => ~"me"}})),
    ok = erlmcp:stop_server(Server).

%% "`server/0` gives the options that are not given here, and whose definitions come before those
%% given here."
options_win_over_the_handlers(_) ->
    Server = start(#{handler => ?MODULE, name => ~"given", tools => [echo_tool()]}),
    Socket = connect(Server),
    #{~"serverInfo" := #{~"name" := ~"given"}, ~"instructions" := ~"Mine."} =
        initialize(Socket, ~"2025-11-25"),
    [_, _, _, ~"echo"] = listed(tool, Socket),
    [~"m://plain"] = listed(resource, Socket).

%% "Its list has it at once, at the end": the next request finds it, and after its removal does not.
changes_are_seen_at_once(_) ->
    Server = start(#{tools => []}),
    Socket = connect(Server),
    [begin
         Definitions = [definition(Kind, Name) || Name <- [~"one", ~"two", ~"three"]],
         Keys = [One, Two, Three] = [maps:get(key(Kind), Definition) || Definition <- Definitions],
         [ok = erlmcp:add(Server, Kind, Definition) || Definition <- Definitions],
         Keys = listed(Kind, Socket),
         #{~"result" := _} = used(Kind, ~"two", Socket),
         ok = erlmcp:remove(Server, Kind, Two),
         [One, Three] = listed(Kind, Socket),
         -32602 = code(used(Kind, ~"two", Socket)),
         {error, not_found} = erlmcp:remove(Server, Kind, Two),
         ok = erlmcp:add(Server, Kind, lists:nth(2, Definitions)),
         [One, Three, Two] = listed(Kind, Socket),
         #{~"result" := _} = used(Kind, ~"two", Socket)
     end || Kind <- ?KINDS].

used(tool, Name, Socket) -> ask_stateless(Socket, 1, ~"tools/call", #{~"name" => Name});
used(prompt, Name, Socket) -> ask_stateless(Socket, 1, ~"prompts/get", #{~"name" => Name});
used(resource, Name, Socket) ->
    ask_stateless(Socket, 1, ~"resources/read", #{~"uri" => <<"r://", Name/binary>>});
used(resource_template, Name, Socket) ->
    ask_stateless(Socket, 1, ~"resources/read", #{~"uri" => <<"t://", Name/binary, "/7">>}).

listed(Kind, Socket) ->
    {Method, Member, Key} = maps:get(Kind, #{
        tool => {~"tools/list", ~"tools", ~"name"},
        resource => {~"resources/list", ~"resources", ~"uri"},
        resource_template => {~"resources/templates/list", ~"resourceTemplates", ~"uriTemplate"},
        prompt => {~"prompts/list", ~"prompts", ~"name"}}),
    #{Member := Items} = result(ask_stateless(Socket, Method, Method, #{})),
    [maps:get(Key, Item) || Item <- Items].

%% "Calls of it that run already end in their own time."
removed_tools_end_in_their_own_time(_) ->
    Server = start(#{tools => [waiting_tool(~"wait")]}),
    Socket = connect(Server),
    send(Socket, stateless(1, ~"tools/call", #{~"name" => ~"wait"})),
    Call = await_call(),
    ok = erlmcp:remove(Server, tool, ~"wait"),
    -32602 = code(ask_stateless(Socket, 2, ~"tools/call", #{~"name" => ~"wait"})),
    Call ! {answer, ~"late"},
    #{~"id" := 1, ~"result" := #{~"content" := [#{~"text" := ~"late"}]}} = recv(Socket).

%% No request fails, and none waits, because the catalog changes under it.
changes_disturb_nobody(_) ->
    Stable = #{tools => [definition(tool, ~"s")], resources => [definition(resource, ~"s")],
               resource_templates => [definition(resource_template, ~"s")],
               prompts => [definition(prompt, ~"s")]},
    Server = start(Stable),
    Test = self(),
    Clients = [spawn_link(fun() ->
        Socket = connect(Server),
        Requests = ask_until_told(Socket, 0),
        Test ! {done, self(), Requests}
    end) || _ <- lists:seq(1, 6)],
    [begin
         Definition = definition(Kind, Name),
         ok = erlmcp:add(Server, Kind, Definition),
         ok = erlmcp:remove(Server, Kind, maps:get(key(Kind), Definition))
     end || N <- lists:seq(1, 50), Name <- [<<"n", (integer_to_binary(N))/binary>>],
            Kind <- ?KINDS],
    [Client ! stop || Client <- Clients],
    Counts = [receive {done, Client, Count} -> Count after ?PATIENCE -> ct:fail(stuck) end
              || Client <- Clients],
    [true = Count >= length(?KINDS) || Count <- Counts].

ask_until_told(Socket, Count) ->
    [begin
         #{~"result" := _} = used(Kind, ~"s", Socket),
         [_ | _] = listed(Kind, Socket)
     end || Kind <- ?KINDS],
    receive
        stop -> Count + length(?KINDS)
    after 0 ->
        ask_until_told(Socket, Count + length(?KINDS))
    end.

%% What is refused leaves the catalog as it was.
refused_changes_change_nothing(_) ->
    Server = start(#{}),
    Socket = connect(Server),
    Before = result(ask_stateless(Socket, 1, ~"tools/list", #{})),
    {error, {duplicate, tool, ~"echo"}} = erlmcp:add(Server, tool, echo_tool()),
    {error, {bad_definition, tool, ~"x", handler, _}} = erlmcp:add(Server, tool, #{name => ~"x"}),
    {error, not_found} = erlmcp:remove(Server, tool, ~"x"),
    {error, not_found} = erlmcp:remove(Server, prompt, ~"echo"),
    Before = result(ask_stateless(Socket, 2, ~"tools/list", #{})).

%% "After a crash the last published catalog stands, with what was added since the start", and
%% requests go on meanwhile.
published_catalogs_survive_their_publisher(_) ->
    Server = start(#{}),
    Socket = connect(Server),
    ok = erlmcp:add(Server, tool, definition(tool, ~"added")),
    Publisher = child(publisher, Server),
    Monitor = monitor(process, Publisher),
    exit(Publisher, kill),
    down(Monitor),
    [~"echo", ~"added"] = listed(tool, Socket),
    #{~"result" := _} = used(tool, ~"added", Socket),
    _ = await_child(publisher, Server, Publisher),
    [~"echo", ~"added"] = listed(tool, Socket),
    ok = erlmcp:remove(Server, tool, ~"echo"),
    ok = erlmcp:add(Server, tool, definition(tool, ~"later")),
    [~"added", ~"later"] = listed(tool, Socket),
    #{~"result" := _} = used(tool, ~"later", Socket).

child(Id, Supervisor) ->
    {_, Pid, _, _} = lists:keyfind(Id, 1, supervisor:which_children(Supervisor)),
    Pid.

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

initialize_request() ->
    erlmcp_test_line:initialize_request(1, ~"2025-11-25").

http(Url, Headers, Message) ->
    Exchange = make_ref(),
    Known = #{list_to_binary(Name) => list_to_binary(Value) || {Name, Value} <- Headers},
    ok = erlmcp_test_wire:sent(Exchange, Known, iolist_to_binary(json:encode(Message))),
    {ok, {{_, Status, _}, Answered, Body}} =
        httpc:request(post, {Url, [{"accept", "application/json, text/event-stream"} | Headers],
                             "application/json", iolist_to_binary(json:encode(Message))},
                      [{timeout, ?PATIENCE}], [{body_format, binary}]),
    {Status, Answered, erlmcp_test_wire:received(Exchange, json:decode(Body))}.

%% `sessions`: "open HTTP sessions". At the limit and one more, whatever TCP's clients do.
sessions_on_tcp_are_no_http_sessions(_) ->
    Server = start(#{listen => [{http, #{}}, {tcp, #{}}], limits => #{sessions => 1}}),
    [#{url := Url}, _] = erlmcp:listeners(Server),
    [initialize(connect(Server), ~"2025-11-25") || _ <- [1, 2]],
    {200, _, #{~"result" := #{}}} = http(Url, [], initialize_request()),
    {429, Headers, #{~"error" := #{~"code" := 1060, ~"data" := #{~"limit" := 1}}}} =
        http(Url, [], initialize_request()),
    true = is_list(proplists:get_value("retry-after", Headers)),
    #{~"protocolVersion" := _} = initialize(connect(Server), ~"2025-11-25").

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
        request(Name, ~"initialize", #{~"protocolVersion" => Name, ~"clientInfo" => Own}),
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

down(Monitor) ->
    receive
        {'DOWN', Monitor, process, _, _} -> ok
    after ?PATIENCE ->
        ct:fail(still_there)
    end.
