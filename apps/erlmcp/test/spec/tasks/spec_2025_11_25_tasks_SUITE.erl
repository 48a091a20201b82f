-module(spec_2025_11_25_tasks_SUITE).
-moduledoc """
Specification 2025-11-25, "Tasks", over HTTP and TCP: task-augmented tool calls in a session.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([capability_is_declared_with_tools/1, tools_say_their_support/1, call_becomes_a_task/1,
         ttl_is_the_servers_to_override/1, wrong_task_is_refused/1, forbidden_is_refused/1,
         required_is_refused_without/1, undeclared_server_ignores_the_parameter/1,
         older_revisions_have_no_tasks/1, rounds_are_in_the_task/1, cancel_shows_the_cancelled/1,
         cancel_of_the_ended_is_refused/1, unknown_is_refused/1, list_is_the_sessions/1,
         list_has_pages/1, list_is_the_principals/1, cursors_are_their_principals/1,
         tasks_are_their_principals/1, survives_the_session/1, is_seen_by_the_other_revision/1,
         expired_is_gone/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [request/4, over/1, answer/3]).
-import(erlmcp_test_session_tasks, [client/1, client/2, augmented/2, augmented/3, call/2, waiting/1,
                                    result/2]).
-import(erlmcp_test_tasks, [accept/2, refused/2, ask/3, next/1, running/0, finish/2, get/2, id/1,
                            until/3]).

-define(REVISION, ~"2025-11-25").
-define(INVALID, -32602).
-define(NO_METHOD, -32601).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}].

groups() ->
    [{Transport, erlmcp_test_suite:cases(?MODULE)} || Transport <- [http, tcp]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) ->
    [{transport, Transport} | Config].

end_per_group(_, _) ->
    ok.

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_tasks:start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

%% The capabilities of a new session.
capabilities(Server, Config, Revision) ->
    Params = #{protocolVersion => Revision, capabilities => #{},
               clientInfo => #{name => ~"suite", version => ~"1"}},
    Client = case transport(Config) of
        http ->
            None = #{~"mcp-session-id" => none, ~"mcp-protocol-version" => none},
            #{messages := [#{~"result" := Result}]} =
                erlmcp_test_http:call(Server, ~"initialize", Params,
                                      #{session => {~"", Revision}, headers => None}),
            Result;
        tcp ->
            Socket = erlmcp_test_line:connect(maps:get(pid, Server)),
            erlmcp_test_line:send(Socket, #{jsonrpc => ~"2.0", id => 1, method => initialize,
                                            params => Params}),
            #{~"result" := Result} = erlmcp_test_line:recv(Socket),
            Result
    end,
    maps:get(~"capabilities", Client).

%% "Servers and clients that support task-augmented requests MUST declare a `tasks` capability
%% during initialization."
capability_is_declared_with_tools(Config) ->
    #{~"tasks" := #{~"list" := #{}, ~"cancel" := #{},
                    ~"requests" := #{~"tools" := #{~"call" := #{}}}}} = Capabilities =
        capabilities(server(Config), Config, ?REVISION),
    false = is_map_key(~"extensions", Capabilities),
    false = is_map_key(~"tasks", capabilities(server(Config), Config, ~"2025-06-18")),
    Plain = erlmcp_test_client:start(#{tools => []}),
    false = is_map_key(~"tasks", capabilities(Plain, Config, ?REVISION)),
    erlmcp_test_client:stop(Plain).

%% "In the result of `tools/list`, tools declare support for tasks via `execution.taskSupport`"
tools_say_their_support(Config) ->
    Support = fun(Revision) ->
        Client = erlmcp_test_client:open(server(Config), transport(Config), Revision, #{}),
        #{~"result" := #{~"tools" := Tools}} = ask(Client, ~"tools/list", #{}),
        #{Name => maps:get(~"execution", Tool, none) || #{~"name" := Name} = Tool <- Tools}
    end,
    #{~"plain" := none, ~"never" := #{~"taskSupport" := ~"forbidden"},
      ~"wait" := #{~"taskSupport" := ~"optional"}, ~"need" := #{~"taskSupport" := ~"required"}} =
        Support(?REVISION),
    [[none] = lists:usort(maps:values(Support(Revision)))
     || Revision <- [~"2025-06-18", ~"2026-07-28"]].

%% "Receivers that accept a task-augmented request MUST return a `CreateTaskResult` as the
%% response."; "Tasks MUST begin in the `working` status when created."
call_becomes_a_task(Config) ->
    Client = client(Config),
    #{~"result" := #{~"task" := Task} = Result} = augmented(Client, ~"wait"),
    1 = map_size(Result),
    #{~"taskId" := Id, ~"status" := ~"working", ~"ttl" := 3_600_000, ~"pollInterval" := _,
      ~"createdAt" := Created, ~"lastUpdatedAt" := Created} = Task,
    6 = map_size(Task),
    {Pid, #{task := Id}} = running(),
    Task = get(Client, Id),
    finish(Pid, ~"done"),
    #{~"createdAt" := Created} = Done = until(Client, Id, ~"completed"),
    %% "the actual result becomes available only through `tasks/result`"
    [] = [Key || Key <- [~"result", ~"content", ~"_meta"], is_map_key(Key, Done)],
    #{~"result" := #{~"content" := [#{~"text" := ~"quick"}]}} = call(Client, ~"quick").

%% "Receivers MAY override the requested `ttl` duration."; "Receivers MUST include the actual `ttl`
%% duration".
ttl_is_the_servers_to_override(Config) ->
    Client = client(Config),
    Ttl = fun(Wanted) ->
        #{~"result" := #{~"task" := #{~"ttl" := Ttl}}} =
            augmented(Client, ~"quick", #{task => #{ttl => Wanted}}),
        Ttl
    end,
    [60_000, 3_600_000, 3_600_000, 2] = [Ttl(Wanted) || Wanted <- [60_000, 3_600_000, 1.0e12, 2.5]].

wrong_task_is_refused(Config) ->
    Client = client(Config),
    [refused(?INVALID, augmented(Client, ~"quick", #{task => Task}))
     || Task <- [1, ~"a", [], null, #{ttl => ~"1"}, #{ttl => -1}, #{ttl => null}]].

%% "Servers SHOULD return a `-32601` (Method not found) error if a client attempts to do so."
forbidden_is_refused(Config) ->
    Client = client(Config),
    [begin
         _ = refused(?NO_METHOD, augmented(Client, Tool)),
         #{~"result" := _} = call(Client, Tool)
     end || Tool <- [~"plain", ~"never"]].

%% "Servers MUST return a `-32601` (Method not found) error if a client does not attempt to do so."
required_is_refused_without(Config) ->
    Client = client(Config),
    _ = refused(?NO_METHOD, call(Client, ~"need")),
    #{~"result" := #{~"task" := _}} = augmented(Client, ~"need"),
    {Pid, _} = running(),
    finish(Pid, ~"done").

%% "Receivers that do not declare the task capability for a request type MUST process requests of
%% that type normally, ignoring any task-augmentation metadata if present."
undeclared_server_ignores_the_parameter(Config) ->
    Server =
        erlmcp_test_client:start(#{tools => [#{name => ~"a", handler => fun(_, _) -> ~"a" end}]}),
    Client = client(Server, Config),
    #{~"result" := #{~"content" := [#{~"text" := ~"a"}]}} = augmented(Client, ~"a"),
    #{~"result" := #{~"content" := _}} = augmented(Client, ~"a", #{task => 1}),
    [refused(?NO_METHOD, ask(Client, Method, #{taskId => ~"a"}))
     || Method <- [~"tasks/get", ~"tasks/list", ~"tasks/result", ~"tasks/cancel"]],
    erlmcp_test_client:stop(Server).

older_revisions_have_no_tasks(Config) ->
    [begin
         Client = erlmcp_test_client:open(server(Config), transport(Config), Revision, #{}),
         #{~"result" := #{~"content" := _}} = augmented(Client, ~"quick"),
         _ = refused(?NO_METHOD, augmented(Client, ~"need")),
         _ = refused(?NO_METHOD, ask(Client, ~"tasks/get", #{taskId => ~"a"}))
     end || Revision <- [~"2024-11-05", ~"2025-03-26", ~"2025-06-18"]].

%% A tool that asks first asks in the task too, where the client wants one from the beginning.
rounds_are_in_the_task(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"later")),
    _ = until(Client, Id, ~"input_required"),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := Asked, ~"method" := ~"elicitation/create"} = next(Exchange),
    ok = answer(Client, Asked, accept(~"name", ~"Ada")),
    {Pid, #{task := Id}} = running(),
    finish(Pid, ~"Hello, Ada"),
    #{~"result" := #{~"content" := [#{~"text" := ~"Hello, Ada"}]}} = next(Exchange),
    over(Exchange).

%% "Upon receiving a valid cancellation request, receivers SHOULD attempt to stop the task
%% execution and MUST transition the task to `cancelled` status before sending the response."
cancel_shows_the_cancelled(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    #{~"result" := #{~"taskId" := Id, ~"status" := ~"cancelled", ~"statusMessage" := _} = Task} =
        ask(Client, ~"tasks/cancel", #{taskId => Id}),
    Task = get(Client, Id),
    _ = erlmcp_test_http:ended(Pid),
    ok.

%% "Receivers MUST reject cancellation requests for tasks already in a terminal status
%% (`completed`, `failed`, or `cancelled`) with error code `-32602` (Invalid params)."
cancel_of_the_ended_is_refused(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    finish(Pid, ~"done"),
    _ = until(Client, Id, ~"completed"),
    _ = refused(?INVALID, ask(Client, ~"tasks/cancel", #{taskId => Id})),
    {Cancelled, _} = waiting(Client),
    #{~"result" := _} = ask(Client, ~"tasks/cancel", #{taskId => Cancelled}),
    #{~"error" := #{~"code" := ?INVALID, ~"message" := Message}} =
        ask(Client, ~"tasks/cancel", #{taskId => Cancelled}),
    {_, _} = binary:match(Message, ~"cancelled"),
    %% "Once a task is cancelled, it MUST remain in `cancelled` status".
    #{~"status" := ~"cancelled"} = get(Client, Cancelled),
    ok.

%% "Invalid or nonexistent `taskId` in `tasks/get`, `tasks/result`, or `tasks/cancel`: `-32602`";
%% "Invalid or nonexistent cursor in `tasks/list`: `-32602`".
unknown_is_refused(Config) ->
    Client = client(Config),
    [refused(?INVALID, ask(Client, Method, Params))
     || Method <- [~"tasks/get", ~"tasks/result", ~"tasks/cancel"],
        Params <- [#{taskId => ~"none"}, #{taskId => 1}, #{}]],
    [refused(?INVALID, ask(Client, ~"tasks/list", #{cursor => Cursor}))
     || Cursor <- [~"", ~"none", 1]],
    _ = refused(?NO_METHOD, ask(Client, ~"tasks/update", #{taskId => ~"a", inputResponses => #{}})).

listed(Client) ->
    #{~"result" := #{~"tasks" := Tasks} = Result} = ask(Client, ~"tasks/list", #{}),
    false = is_map_key(~"nextCursor", Result),
    Tasks.

%% "receivers MUST ensure the returned task list includes only tasks associated with the
%% requestor's authorization context." Without one that is the session.
list_is_the_sessions(Config) ->
    Client = client(Config),
    Other = client(Config),
    [] = listed(Client),
    {Id, Pid} = waiting(Client),
    [#{~"taskId" := Id, ~"status" := ~"working", ~"ttl" := _, ~"createdAt" := _,
       ~"lastUpdatedAt" := _} = Task] = listed(Client),
    Task = get(Other, Id),
    [] = listed(Other),
    finish(Pid, ~"done").

%% "Receivers MUST include a `nextCursor` in the response if more tasks are available."
list_has_pages(Config) ->
    Server = erlmcp_test_client:start((erlmcp_test_tasks:definitions(self()))#{page_size => 2}),
    Client = client(Server, Config),
    Ids = [begin {Id, _} = waiting(Client), Id end || _ <- lists:seq(1, 5)],
    Pages = pages(Client, #{}),
    [2, 2, 1] = [length(Page) || Page <- Pages],
    Listed = [Id || Page <- Pages, #{~"taskId" := Id} <- Page],
    true = lists:sort(Ids) =:= lists:sort(Listed),
    erlmcp_test_client:stop(Server).

pages(Client, Params) ->
    case ask(Client, ~"tasks/list", Params) of
        #{~"result" := #{~"tasks" := Tasks, ~"nextCursor" := Cursor}} ->
            [Tasks | pages(Client, #{cursor => Cursor})];
        #{~"result" := #{~"tasks" := Tasks}} ->
            [Tasks]
    end.

%% A server where each of two clients is somebody: by a listener of his own.
principals(Config) ->
    principals(Config, #{}).

principals(Config, Options) ->
    Transport = transport(Config),
    Listeners = [listener(Transport, Name) || Name <- [ada, eve]],
    Definitions = maps:merge(erlmcp_test_tasks:definitions(self()), Options),
    #{pid := Pid} = Server = erlmcp_test_http:start(Definitions#{listen => Listeners}),
    Ports = [Port || #{port := Port} <- erlmcp:listeners(Pid)],
    {Server, [fun() ->
        erlmcp_test_client:open(at(Transport, Port, Server), Transport, ?REVISION, #{})
    end || Port <- Ports]}.

listener(http, Name) -> {http, #{authenticate => fun(_) -> {ok, Name} end}};
listener(tcp, Name) -> {tcp, #{principal => Name}}.

at(http, Port, Server) -> Server#{port := Port};
at(tcp, Port, Server) -> Server#{pid := Port}.

%% "If a task is retrievable via `tasks/get` for a requestor, it MUST be retrievable via
%% `tasks/list` for that requestor."
list_is_the_principals(Config) ->
    {Server, [Ada, Eve]} = principals(Config),
    {Id, Pid} = waiting(Ada()),
    Again = Ada(),
    [#{~"taskId" := Id}] = listed(Again),
    [] = listed(Eve()),
    finish(Pid, ~"done"),
    erlmcp_test_client:stop(Server).

%% A cursor of another principal is none, whatever tasks its bearer has.
cursors_are_their_principals(Config) ->
    {Server, [Ada, Eve]} = principals(Config, #{page_size => 1}),
    {Own, Other} = {Ada(), Eve()},
    Pids = [Pid || Client <- [Own, Own, Other, Other], {_, Pid} <- [waiting(Client)]],
    #{~"result" := #{~"nextCursor" := Cursor}} = ask(Own, ~"tasks/list", #{}),
    _ = refused(?INVALID, ask(Other, ~"tasks/list", #{cursor => Cursor})),
    #{~"result" := #{~"tasks" := [_]}} = ask(Ada(), ~"tasks/list", #{cursor => Cursor}),
    [ok = finish(Pid, ~"done") || Pid <- Pids],
    erlmcp_test_client:stop(Server).

%% "receivers MUST reject `tasks/get`, `tasks/result`, and `tasks/cancel` requests for tasks that
%% do not belong to the same authorization context as the requestor"
tasks_are_their_principals(Config) ->
    {Server, [Ada, Eve]} = principals(Config),
    {Id, Pid} = waiting(Ada()),
    Other = Eve(),
    [begin
         Told = refused(?INVALID, ask(Other, Method, #{taskId => Id})),
         Told = refused(?INVALID, ask(Other, Method, #{taskId => ~"none"}))
     end || Method <- [~"tasks/get", ~"tasks/result", ~"tasks/cancel"]],
    finish(Pid, ~"done"),
    #{~"result" := #{~"content" := [#{~"text" := ~"done"}]}} = result(Ada(), Id),
    erlmcp_test_client:stop(Server).

survives_the_session(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    case Client of
        #{transport := http, session := Session} ->
            #{status := 204} = erlmcp_test_http:delete(server(Config), Session);
        #{transport := tcp} ->
            ok = erlmcp_test_client:close(Client)
    end,
    Other = client(Config),
    #{~"status" := ~"working"} = get(Other, Id),
    finish(Pid, ~"done"),
    #{~"result" := #{~"content" := [#{~"text" := ~"done"}]}} = result(Other, Id).

%% SEP-2663: servers that have both "SHOULD continue to permit `tasks/get` and `tasks/cancel`
%% requests [...] to operate on tasks created under that flow".
is_seen_by_the_other_revision(Config) ->
    Client = client(Config),
    Modern = erlmcp_test_tasks:open(server(Config), transport(Config), ~"2026-07-28", #{}),
    Failed = id(augmented(Client, ~"fails")),
    #{~"result" := #{~"isError" := true, ~"resultType" := ~"complete"}, ~"ttlMs" := _} =
        until(Modern, Failed, ~"completed"),
    #{~"status" := ~"failed"} = get(Client, Failed),
    {Id, _} = waiting(Client),
    #{~"result" := _} = ask(Modern, ~"tasks/cancel", #{taskId => Id}),
    #{~"status" := ~"cancelled"} = get(Modern, Id),
    Theirs = id(ask(Modern, ~"tools/call", #{name => ~"quick", arguments => #{}})),
    #{~"result" := #{~"content" := [#{~"text" := ~"quick"}]}} = result(Client, Theirs).

%% "After a task's `ttl` lifetime has elapsed, receivers MAY delete the task and its results,
%% regardless of the task status."
expired_is_gone(Config) ->
    Client = client(Config),
    #{~"result" := #{~"task" := #{~"ttl" := 1000, ~"taskId" := Id}}} =
        augmented(Client, ~"wait", #{task => #{ttl => 1000}}),
    {Pid, _} = running(),
    _ = refused(?INVALID, result(Client, Id)),
    _ = erlmcp_test_http:ended(Pid),
    _ = refused(?INVALID, ask(Client, ~"tasks/get", #{taskId => Id})),
    [] = listed(Client).
