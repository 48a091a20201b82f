-module(client_operations_SUITE).
-moduledoc """
`m:erlmcp_client` as a user has it: every operation, on every transport, in both eras and each
revision, at a server of erlmcp's own.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([says_who_the_server_is/1, lists_have_all_pages/1, tools_are_called/1, errors_are_reasons/1,
         resources_are_read/1, prompts_are_got/1, arguments_are_completed/1, server_is_pinged/1,
         progress_is_told/1, input_is_asked_for/1, asynchronous_calls_deliver/1,
         cancelled_call_ends_on_the_server/1, dead_caller_cancels/1, deadline_cancels/1,
         changes_are_heard/1, calls_do_not_wait_for_each_other/1, stop_ends_calls/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_http, [running/0, finish/2, ended/1]).

-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, Group} || {Group, _, _} <- groups()].

groups() ->
    Cases = [says_who_the_server_is, lists_have_all_pages, tools_are_called, errors_are_reasons,
             resources_are_read, prompts_are_got, arguments_are_completed, server_is_pinged,
             progress_is_told, input_is_asked_for, asynchronous_calls_deliver,
             cancelled_call_ends_on_the_server, dead_caller_cancels, deadline_cancels,
             changes_are_heard, calls_do_not_wait_for_each_other, stop_ends_calls],
    [{Group, [], Cases}
     || Group <- [http, http_2025_11_25, http_2025_06_18, http_2025_03_26, http_2024_11_05,
                  http2, http2_session, sse, sse_found, sse_stateless, tcp, tcp_session, server,
                  server_session]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Group, Config) ->
    {Transport, Era, Options} = way(Group),
    [{transport, Transport}, {era, Era}, {options, Options} | Config].

end_per_group(_, _) ->
    ok.

way(http) -> {http, stateless, #{}};
way(http_2025_11_25) -> {http, '2025-11-25', #{}};
way(http_2025_06_18) -> {http, '2025-06-18', #{}};
way(http_2025_03_26) -> {http, '2025-03-26', #{}};
way(http_2024_11_05) -> {http, '2024-11-05', #{}};
way(http2) -> {http, stateless, #{protocols => [http2]}};
way(http2_session) -> {http, session, #{protocols => [http2]}};
way(sse) -> {sse, session, #{transport => sse}};
way(sse_found) -> {sse, session, #{}};
way(sse_stateless) -> {sse, stateless, #{transport => sse}};
way(tcp) -> {tcp, stateless, #{}};
way(tcp_session) -> {tcp, session, #{}};
way(server) -> {server, stateless, #{}};
way(server_session) -> {server, session, #{}}.

init_per_testcase(_, Config0) ->
    Config = erlmcp_test_sent:listen(Config0),
    #{tools := Tools} = Definitions = erlmcp_test_http:definitions(self()),
    {ok, Server} = erlmcp:start_server(Definitions#{
        name => ~"test", version => ~"1.0.0", instructions => ~"Read this", page_size => 4,
        tools := Tools ++ [asking()],
        prompts := [#{name => ~"hello", arguments => [#{name => ~"who", required => true},
                                                        #{name => ~"home"}],
                      complete => #{~"who" => [~"Ada", ~"Alan", ~"Barbara"],
                                    ~"home" => fun(_, #{arguments := #{~"who" := Who}}) ->
                                                   [<<Who/binary, "'s home">>]
                                               end},
                      handler => fun(#{~"who" := Who}, _) -> <<"Greet ", Who/binary>> end}],
        listen => [{http, #{sse => #{}}}, {tcp, #{}}]}),
    Client = client(Server, #{}, Config),
    [{server, Server}, {client, Client} | Config].

%% What the clients sent must have been valid.
end_per_testcase(Case, Config) ->
    ok = erlmcp_client:stop(proplists:get_value(client, Config)),
    ok = erlmcp:stop_server(server(Config)),
    erlmcp_test_sent:heard(Config, [~"no/such" || Case =:= errors_are_reasons]).

client(Server, Own, Config) ->
    Options = maps:merge((proplists:get_value(options, Config))#{
        era => proplists:get_value(era, Config), inputs => inputs()}, Own),
    Target = case transport(Config) of
        http ->
            [#{url := Url}] = [L || #{transport := http} = L <- erlmcp:listeners(Server)],
            {http, Url, Options};
        sse ->
            [#{url := Url}] = [L || #{transport := http} = L <- erlmcp:listeners(Server)],
            {http, uri_string:resolve(~"/sse", Url), Options};
        tcp ->
            [Port] = [P || #{transport := tcp, port := P} <- erlmcp:listeners(Server)],
            {tcp, ~"127.0.0.1", Port, Options};
        server ->
            {server, Server, Options}
    end,
    {ok, Client} = erlmcp_client:start_link(Target),
    Client.

inputs() ->
    #{elicit => fun(#{~"message" := ~"Name?"}) -> {accept, #{name => ~"Ada"}} end,
      sample => fun(#{~"messages" := _}) ->
                    {ok, #{role => assistant, model => ~"m",
                           content => #{type => text, text => ~"hi"}}}
                end,
      roots => [#{uri => ~"file:///work"}]}.

%% Asks for everything that a client of the revision can be asked for.
asking() ->
    #{name => ~"ask", description => ~"asks",
      handler => fun(_, #{input := Input}) -> json(Input);
                    (_, #{revision := Revision}) -> {input_required, questions(Revision)}
                 end}.

questions(Revision) ->
    Always = #{~"sample" => erlmcp_input:sample(#{messages => [], maxTokens => 9}),
               ~"roots" => erlmcp_input:roots()},
    case Revision >= '2025-06-18' of
        true -> Always#{~"form" => erlmcp_input:elicit(~"Name?", #{
            name => string, age => {integer, #{default => 36}}})};
        false -> Always
    end.

json(Value) ->
    iolist_to_binary(json:encode(Value)).

client(Config) -> proplists:get_value(client, Config).

revision(Config) ->
    case proplists:get_value(era, Config) of
        Era when Era =:= stateless; Era =:= session -> erlmcp_revision:latest(Era);
        Revision -> Revision
    end.

says_who_the_server_is(Config) ->
    Revision = revision(Config),
    {ok, #{revision := Revision, server_info := #{~"name" := ~"test", ~"version" := ~"1.0.0"},
           instructions := ~"Read this", capabilities := #{~"tools" := #{}, ~"prompts" := #{}}}} =
        erlmcp_client:server(client(Config)),
    #{revision := Revision, calls := 0} = erlmcp_client:info(client(Config)).

lists_have_all_pages(Config) ->
    Client = client(Config),
    {ok, Tools} = erlmcp_client:list_tools(Client),
    [~"echo", ~"add", ~"wait", ~"stream", ~"progress", ~"log", ~"crash", ~"hog", ~"slow", ~"ask"] =
        [Name || #{~"name" := Name, ~"inputSchema" := #{}} <- Tools],
    {ok, [#{~"uri" := ~"test://text"}]} = erlmcp_client:list_resources(Client),
    {ok, [#{~"uriTemplate" := ~"test://item/{id}"}]} =
        erlmcp_client:list_resource_templates(Client),
    {ok, [#{~"name" := ~"hello"}]} = erlmcp_client:list_prompts(Client).

tools_are_called(Config) ->
    Client = client(Config),
    Text = <<"h\x{e4}llo \x{1f600} "/utf8>>,
    {ok, #{~"content" := [#{~"type" := ~"text", ~"text" := Text}]}} =
        erlmcp_client:call_tool(Client, ~"echo", #{text => Text}),
    Large = binary:copy(~"0123456789abcdef", 1 bsl 15),
    {ok, #{~"content" := [#{~"text" := Large}]}} =
        erlmcp_client:call_tool(Client, ~"echo", #{~"text" => Large}),
    {ok, #{~"content" := [#{~"text" := Sum}]}} =
        erlmcp_client:call_tool(Client, ~"add", #{a => 1, b => 2}),
    #{~"sum" := 3} = json:decode(Sum).

errors_are_reasons(Config) ->
    Client = client(Config),
    {error, {rpc, #{code := -32602, message := Message, data := #{~"name" := ~"tool_not_found"}}}} =
        Error = erlmcp_client:call_tool(Client, ~"none", #{}),
    {_, _} = binary:match(Message, ~"none"),
    {_, _} = binary:match(erlmcp_client:format_error(element(2, Error)), ~"-32602"),
    {error, {rpc, #{code := -32603}}} = erlmcp_client:call_tool(Client, ~"crash", #{}),
    {error, {rpc, #{code := -32601}}} = erlmcp_client:request(Client, ~"no/such", #{}).

resources_are_read(Config) ->
    Client = client(Config),
    {ok, #{~"contents" := [#{~"uri" := ~"test://text", ~"text" := ~"some text"}]}} =
        erlmcp_client:read_resource(Client, ~"test://text"),
    {ok, [#{~"uriTemplate" := Listed}]} = erlmcp_client:list_resource_templates(Client),
    {ok, Template} = erlmcp_uri_template:compile(Listed),
    [~"id"] = erlmcp_uri_template:variables(Template),
    Item = erlmcp_uri_template:expand(Template, #{~"id" => ~"42"}),
    {ok, #{~"contents" := [#{~"uri" := Item, ~"text" := ~"42"}]}} =
        erlmcp_client:read_resource(Client, Item),
    {error, {rpc, #{code := Code}}} = erlmcp_client:read_resource(Client, ~"test://none"),
    Code = erlmcp_revision:missing_resource_code(revision(Config)).

prompts_are_got(Config) ->
    {ok, #{~"messages" := [#{~"role" := ~"user", ~"content" := #{~"text" := ~"Greet Ada"}}]}} =
        erlmcp_client:get_prompt(client(Config), ~"hello", #{who => ~"Ada"}).

arguments_are_completed(Config) ->
    {ok, #{~"completion" := #{~"values" := [~"Ada", ~"Alan"]}}} =
        erlmcp_client:complete(client(Config), {prompt, ~"hello"}, {~"who", ~"A"}),
    {ok, #{~"completion" := #{~"values" := [~"Ada's home"]}}} =
        erlmcp_client:complete(client(Config), {prompt, ~"hello"}, {~"home", ~""},
                               #{arguments => #{~"who" => ~"Ada"}}),
    {ok, Reference} = erlmcp_client:async(client(Config), {complete, {prompt, ~"hello"},
                                                           {~"who", ~"A"}, #{}}),
    {ok, #{~"completion" := #{~"values" := [~"Ada", ~"Alan"]}}} =
        receive {erlmcp, Reference, Outcome} -> Outcome end.

server_is_pinged(Config) ->
    {ok, pong} = erlmcp_client:ping(client(Config)).

progress_is_told(Config) ->
    Test = self(),
    {ok, _} = erlmcp_client:call_tool(client(Config), ~"progress", #{},
                                      #{progress => fun(Params) -> Test ! {told, Params} end}),
    [1, 2, 3] = [receive {told, #{~"progress" := N, ~"total" := 3}} -> N end
                 || _ <- [one, two, three]].

input_is_asked_for(Config) ->
    {ok, #{~"content" := [#{~"text" := Text}]}} =
        erlmcp_client:call_tool(client(Config), ~"ask", #{}),
    #{~"sample" := #{~"content" := #{~"text" := ~"hi"}},
      ~"roots" := #{~"roots" := [#{~"uri" := ~"file:///work"}]}} = Answers = json:decode(Text),
    case revision(Config) >= '2025-06-18' of
        true ->
            %% What the fun left out has the schema's default.
            #{~"form" := #{~"action" := ~"accept",
                           ~"content" := #{~"name" := ~"Ada", ~"age" := 36}}} = Answers;
        false ->
            ok
    end.

asynchronous_calls_deliver(Config) ->
    Client = client(Config),
    {ok, First} = erlmcp_client:async(Client, {call_tool, ~"wait", #{id => 1}}),
    {Pid, #{~"id" := 1}} = running(),
    {ok, Second} = erlmcp_client:async(Client, {call_tool, ~"progress", #{}}),
    [1, 2, 3] = [receive {erlmcp, Second, {progress, #{~"progress" := N}}} -> N
                 after ?WAIT -> none end || _ <- [one, two, three]],
    receive {erlmcp, Second, {ok, #{~"content" := [_]}}} -> ok after ?WAIT -> error(late) end,
    finish(Pid, ~"done"),
    receive
        {erlmcp, First, {ok, #{~"content" := [#{~"text" := ~"done"}]}}} -> ok
    after ?WAIT -> error(late)
    end.

cancelled_call_ends_on_the_server(Config) ->
    Client = client(Config),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"wait", #{id => 1}}),
    {Pid, _} = running(),
    ok = erlmcp_client:cancel(Client, Reference),
    receive {erlmcp, Reference, {error, cancelled}} -> ok after ?WAIT -> error(late) end,
    ended(Pid),
    ok = erlmcp_client:cancel(Client, Reference),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{text => ~"on"}).

%% "a call is a process: it ends with the process that waits for it, and the server is told".
dead_caller_cancels(Config) ->
    Client = client(Config),
    Caller = spawn(fun() -> erlmcp_client:call_tool(Client, ~"wait", #{id => 1}) end),
    {Pid, _} = running(),
    exit(Caller, kill),
    ended(Pid).

%% "When the request has not received a response within the timeout period, the sender SHOULD cancel
%% the request and stop waiting."
deadline_cancels(Config) ->
    Client = client(Config),
    {ok, _} = erlmcp_client:server(Client),
    {error, {timeout, 3000}} =
        erlmcp_client:call_tool(Client, ~"wait", #{id => 1}, #{timeout => 3000}),
    {Pid, _} = running(),
    ended(Pid).

changes_are_heard(Config) ->
    Client = client(Config),
    Server = server(Config),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true,
                                                        resources => [~"test://text"]}),
    subscribed = event(Reference),
    ok = erlmcp:resource_updated(Server, ~"test://other"),
    ok = erlmcp:resource_updated(Server, ~"test://text"),
    {resource_updated, ~"test://text"} = event(Reference),
    ok = erlmcp:add(Server, tool, #{name => ~"new", handler => fun(_, _) -> ~"new" end}),
    tools_changed = event(Reference),
    {ok, Tools} = erlmcp_client:list_tools(Client, #{fresh => true}),
    [_] = [Tool || #{~"name" := ~"new"} = Tool <- Tools],
    ok = erlmcp_client:unsubscribe(Client, Reference).

event(Reference) ->
    receive {erlmcp, Reference, Event} -> Event after ?WAIT -> error(no_event) end.

calls_do_not_wait_for_each_other(Config) ->
    Client = client(Config),
    Slow = [begin
                {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"wait", #{id => Id}}),
                {Reference, running()}
            end || Id <- lists:seq(1, 5)],
    [{ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{text => ~"quick"})
     || _ <- lists:seq(1, 10)],
    [begin
         finish(Pid, ~"slow"),
         receive {erlmcp, Reference, {ok, _}} -> ok after ?WAIT -> error(late) end
     end || {Reference, {Pid, _}} <- Slow].

stop_ends_calls(Config) ->
    Client = client(server(Config), #{}, Config),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"wait", #{id => 1}}),
    {_, _} = running(),
    Test = self(),
    _ = spawn_link(fun() ->
        Test ! {waited, erlmcp_client:call_tool(Client, ~"wait", #{id => 2})}
    end),
    {_, _} = running(),
    {ok, Changes} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    subscribed = event(Changes),
    ok = erlmcp_client:stop(Client),
    {ended, stopped} = event(Changes),
    receive {erlmcp, Reference, {error, stopped}} -> ok after ?WAIT -> error(late) end,
    receive {waited, {error, stopped}} -> ok after ?WAIT -> error(late) end,
    {error, stopped} = erlmcp_client:call_tool(Client, ~"echo", #{text => ~"late"}).
