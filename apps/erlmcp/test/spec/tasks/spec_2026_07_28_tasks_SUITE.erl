-module(spec_2026_07_28_tasks_SUITE).
-moduledoc """
The extension `io.modelcontextprotocol/tasks` of 2026-07-28, over HTTP and TCP. Quotes are of its
specification. Input is in `m:spec_2026_07_28_tasks_input_SUITE`; who is told, and the bounds, in
`m:spec_2026_07_28_tasks_notifications_SUITE`.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([log/2]).
-export([extension_is_advertised_with_tools/1, call_becomes_a_task/1, task_is_there_at_once/1,
         undeclared_clients_get_the_result/1, required_needs_the_extension/1,
         methods_need_the_extension/1, methods_need_a_tool/1, methods_of_2025_are_gone/1,
         task_parameter_means_nothing/1, handler_cannot_tell/1, completed_has_the_result/1,
         tool_error_is_completed/1, crash_is_failed/1, deadline_is_failed/1,
         memory_bound_is_failed/1, lost_task_is_failed/1, unknown_task_is_refused/1,
         name_header_is_the_task/1, wrong_parameters_are_refused/1, survives_the_connection/1,
         ends_with_the_server/1, cancel_ends_at_once/1, cancel_is_idempotent/1, expired_is_gone/1,
         handler_decides/1, progress_is_the_status_message/1, mounted_tools_are_tasks/1,
         mounted_tools_go_on_as_mounted/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_extension_tasks, [client/1, client/2, undeclared/1, call/2, call/3, waiting/1,
                                      lacks_the_extension/1, settled/1, dead/1]).
-import(erlmcp_test_client, [ask/3]).
-import(erlmcp_test_tasks, [refused/2, running/0, finish/2, get/2, id/1, told/3, until/3]).

-define(EXTENSION, ~"io.modelcontextprotocol/tasks").
-define(INVALID, -32602).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE),
    Http = [name_header_is_the_task],
    [{http, Cases}, {tcp, Cases -- Http}].

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

%% "servers advertise the extension in `capabilities.extensions`", and not in `tasks`.
extension_is_advertised_with_tools(Config) ->
    #{~"result" := #{~"capabilities" := Capabilities}} =
        ask(client(Config), ~"server/discover", #{}),
    #{~"extensions" := #{?EXTENSION := #{} = Settings}} = Capabilities,
    0 = map_size(Settings),
    false = is_map_key(~"tasks", Capabilities),
    Plain =
        erlmcp_test_client:start(#{tools => [#{name => ~"a", handler => fun(_, _) -> ~"a" end}]}),
    Other = client(Plain, Config),
    #{~"result" := #{~"capabilities" := None}} = ask(Other, ~"server/discover", #{}),
    false = is_map_key(~"extensions", None),
    ok = erlmcp:add(maps:get(pid, Plain), tool, #{name => ~"b", task => optional,
                                                  handler => fun(_, _) -> ~"b" end}),
    #{~"result" := #{~"capabilities" := #{~"extensions" := #{?EXTENSION := _}}}} =
        ask(Other, ~"server/discover", #{}),
    erlmcp_test_client:stop(Plain).

%% "Servers MUST set `resultType` to `\"task\"` when returning a `CreateTaskResult`".
call_becomes_a_task(Config) ->
    Client = client(Config),
    #{~"result" := Result} = call(Client, ~"wait"),
    #{~"resultType" := ~"task", ~"taskId" := Id, ~"status" := ~"working", ~"ttlMs" := 3_600_000,
      ~"pollIntervalMs" := Poll, ~"createdAt" := Created, ~"lastUpdatedAt" := Created,
      ~"_meta" := _} = Result,
    true = is_integer(Poll) andalso Poll > 0,
    %% Nothing else, and no wrapper.
    8 = map_size(Result),
    true = abs(calendar:rfc3339_to_system_time(binary_to_list(Created), [{unit, millisecond}])
               - erlang:system_time(millisecond)) < 60_000,
    {Pid, _} = running(),
    #{~"resultType" := ~"complete", ~"status" := ~"working"} = Shown = get(Client, Id),
    [] = [Key || Key <- [~"result", ~"error", ~"inputRequests", ~"requestState"],
                 is_map_key(Key, Shown)],
    finish(Pid, ~"done").

%% "A server MUST NOT return `CreateTaskResult` until the task is durably created".
task_is_there_at_once(Config) ->
    Client = client(Config),
    Ids = [begin
               Id = id(call(Client, ~"quick")),
               #{~"taskId" := Id} = get(Client, Id),
               Id
           end || _ <- lists:seq(1, 50)],
    %% "with sufficient entropy that a third party cannot enumerate or guess them"
    50 = length(lists:usort(Ids)),
    [32] = lists:usort([byte_size(Id) || Id <- Ids]).

%% "A server MUST NOT return `CreateTaskResult` to a client that did not include the extension
%% capability on its request, regardless of prior declarations."
undeclared_clients_get_the_result(Config) ->
    Client = client(Config),
    #{~"result" := #{~"resultType" := ~"task"}} = call(Client, ~"quick"),
    #{~"result" := Result} = call(undeclared(Client), ~"quick"),
    #{~"resultType" := ~"complete", ~"content" := [#{~"text" := ~"quick"}]} = Result,
    false = is_map_key(~"taskId", Result).

%% "the server MUST return an error with the code `-32021` [...], indicating the required extension"
required_needs_the_extension(Config) ->
    Client = client(Config),
    ok = lacks_the_extension(call(undeclared(Client), ~"need")),
    Id = id(call(Client, ~"need")),
    {Pid, #{task := Id}} = running(),
    finish(Pid, ~"done").

%% "Servers MUST return this error for non-declaring clients issuing `tasks/get`, `tasks/update`,
%% and `tasks/cancel` requests."
methods_need_the_extension(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    ok = lists:foreach(fun(Method) ->
        Params = #{taskId => Id, inputResponses => #{}},
        ok = lacks_the_extension(ask(undeclared(Client), Method, Params))
    end, [~"tasks/get", ~"tasks/update", ~"tasks/cancel"]),
    #{~"status" := ~"working"} = get(Client, Id),
    finish(Pid, ~"done").

methods_need_a_tool(Config) ->
    Server = erlmcp_test_client:start(#{}),
    Client = client(Server, Config),
    _ = refused(-32601, ask(Client, ~"tasks/get", #{taskId => ~"a"})),
    erlmcp_test_client:stop(Server).

%% "`tasks/result` is removed; clients calling it MUST receive `-32601`" (SEP-2663)
methods_of_2025_are_gone(Config) ->
    Client = client(Config),
    _ = refused(-32601, ask(Client, ~"tasks/result", #{taskId => ~"a"})),
    _ = refused(-32601, ask(Client, ~"tasks/list", #{})).

%% "servers MUST ignore it (treat the field as unknown) rather than using it as an opt-in"
task_parameter_means_nothing(Config) ->
    Client = client(Config),
    Legacy = #{task => #{ttl => 60_000}},
    [#{~"result" := #{~"resultType" := ~"complete"}} = call(Client, Tool, Legacy)
     || Tool <- [~"plain", ~"never"]],
    #{~"result" := #{~"resultType" := ~"complete"}} = call(undeclared(Client), ~"quick", Legacy),
    #{~"result" := #{~"ttlMs" := 3_600_000}} = call(Client, ~"quick", Legacy).

handler_cannot_tell(Config) ->
    Client = client(Config),
    Meta = #{~"com.example/a" => 1},
    Id = id(call(Client, ~"wait", #{'_meta' => Meta})),
    {Pid, #{task := Id, deadline := Deadline} = Context} = running(),
    true = Deadline > erlang:monotonic_time(millisecond),
    #{method := ~"tools/call", name := ~"wait", principal := anonymous, revision := '2026-07-28',
      client_capabilities := #{~"elicitation" := _}} = Context,
    finish(Pid, [~"two", ~"texts"]),
    #{~"result" := #{~"content" := [#{~"text" := ~"two"}, #{~"text" := ~"texts"}]}} =
        until(Client, Id, ~"completed"),
    ok.

%% "If the status is `completed`, the server MUST return a `Task` object with status `completed`
%% and a `result` field containing the final result of the task."
completed_has_the_result(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    finish(Pid, #{sum => 3}),
    #{~"result" := Result, ~"createdAt" := Created, ~"lastUpdatedAt" := Updated} = Task =
        until(Client, Id, ~"completed"),
    #{~"structuredContent" := #{~"sum" := 3}, ~"resultType" := ~"complete"} = Result,
    true = Updated >= Created,
    false = is_map_key(~"error", Task),
    %% "the v1 related-task key MUST NOT appear" (conformance)
    false = is_map_key(~"io.modelcontextprotocol/related-task", maps:get(~"_meta", Result, #{})),
    %% A finished task holds no process.
    {0, 0} = settled(server(Config)).

%% "The `failed` status MUST NOT be used to represent non-JSON-RPC errors, such as a tool result
%% that completed with `isError: true`."
tool_error_is_completed(Config) ->
    Client = client(Config),
    Id = id(call(Client, ~"fails")),
    #{~"result" := #{~"isError" := true, ~"content" := [#{~"text" := ~"it broke"}]}} =
        until(Client, Id, ~"completed"),
    ok.

%% "the task uses `failed` status and the `error` field MUST contain that JSON-RPC error"
crash_is_failed(Config) ->
    ok = logger:add_primary_filter(crash, {fun ?MODULE:log/2, self()}),
    try
        Client = client(Config),
        Id = id(call(Client, ~"crash")),
        #{~"error" := #{~"code" := -32603, ~"message" := Message,
                        ~"data" := #{~"incident" := Incident}},
          ~"statusMessage" := Message} = Task = until(Client, Id, ~"failed"),
        false = is_map_key(~"result", Task),
        receive {incident, Incident} -> ok after 30_000 -> error(not_logged) end
    after
        logger:remove_primary_filter(crash)
    end.

deadline_is_failed(Config) ->
    Client = client(Config),
    Id = id(call(Client, ~"slow")),
    {Pid, _} = running(),
    #{~"error" := #{~"code" := 1069}} = until(Client, Id, ~"failed"),
    dead(Pid).

memory_bound_is_failed(Config) ->
    Server = erlmcp_test_tasks:start(#{call_heap_bytes => 10_000_000}),
    Client = client(Server, Config),
    Id = id(call(Client, ~"hog")),
    #{~"error" := #{~"code" := 1089}} = until(Client, Id, ~"failed"),
    #{~"result" := #{~"resultType" := ~"task"}} = call(Client, ~"quick"),
    erlmcp_test_client:stop(Server).

lost_task_is_failed(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    Keeper = erlmcp_test_tasks:keeper(server(Config), Id),
    exit(Keeper, kill),
    ok = dead(Keeper),
    ok = dead(Pid),
    #{~"status" := ~"failed", ~"error" := #{~"code" := -32603}} = get(Client, Id),
    #{~"status" := ~"failed"} = get(Client, Id).

%% "Invalid or nonexistent `taskId`: `-32602` (Invalid params)"
unknown_task_is_refused(Config) ->
    Client = client(Config),
    [refused(?INVALID, ask(Client, Method, #{taskId => Id, inputResponses => #{}}))
     || Method <- [~"tasks/get", ~"tasks/update", ~"tasks/cancel"],
        Id <- [~"none", ~"", binary:copy(~"a", 1000)]].

%% "the client MUST set the `Mcp-Name` header to the value of `params.taskId`"
name_header_is_the_task(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    Capabilities = #{extensions => #{?EXTENSION => #{}}},
    Options = #{meta => #{~"io.modelcontextprotocol/clientCapabilities" => Capabilities}},
    [begin
         Headers = #{headers => #{~"mcp-name" => Name}},
         Reply = erlmcp_test_http:call(server(Config), Method,
                                       #{taskId => Id, inputResponses => #{}},
                                       maps:merge(Options, Headers)),
         #{status := 400, messages := [#{~"error" := #{~"code" := -32020}}]} = Reply
     end || Method <- [~"tasks/get", ~"tasks/update", ~"tasks/cancel"],
            Name <- [none, ~"another"]],
    #{~"status" := ~"working"} = get(Client, Id),
    finish(Pid, ~"done").

wrong_parameters_are_refused(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    [refused(?INVALID, ask(Client, Method, Params))
     || {Method, Params} <- [{~"tasks/get", #{}}, {~"tasks/get", #{taskId => 1}},
                             {~"tasks/cancel", #{taskId => null}},
                             {~"tasks/update", #{taskId => Id}},
                             {~"tasks/update", #{taskId => Id, inputResponses => []}},
                             {~"tasks/update", #{taskId => Id, inputResponses => #{a => 1}}}]],
    finish(Pid, ~"done").

survives_the_connection(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    ok = erlmcp_test_client:close(Client),
    Other = client(Config),
    #{~"status" := ~"working"} = get(Other, Id),
    finish(Pid, ~"done"),
    #{~"result" := #{~"content" := [#{~"text" := ~"done"}]}} = until(Other, Id, ~"completed"),
    ok.

ends_with_the_server(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    Keeper = erlmcp_test_tasks:keeper(server(Config), Id),
    ok = erlmcp_test_client:stop(server(Config)),
    ok = dead(Keeper),
    ok = dead(Pid).

%% "the server MUST acknowledge the request with an empty result"
cancel_ends_at_once(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    #{~"result" := #{~"resultType" := ~"complete"} = Result} =
        ask(Client, ~"tasks/cancel", #{taskId => Id}),
    [~"_meta", ~"resultType"] = lists:sort(maps:keys(Result)),
    #{~"status" := ~"cancelled", ~"statusMessage" := _} = get(Client, Id),
    dead(Pid).

%% "Tasks with a terminal status MUST NOT transition to any other status."
cancel_is_idempotent(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    Cancelled = [ask(Client, ~"tasks/cancel", #{taskId => Id}) || _ <- [1, 2, 3]],
    3 = length([ok || #{~"result" := #{~"resultType" := ~"complete"}} <- Cancelled]),
    finish(Pid, ~"too late"),
    #{~"status" := ~"cancelled"} = get(Client, Id),
    Done = id(call(Client, ~"quick")),
    #{~"lastUpdatedAt" := Updated} = until(Client, Done, ~"completed"),
    #{~"result" := _} = ask(Client, ~"tasks/cancel", #{taskId => Done}),
    #{~"result" := _} = ask(Client, ~"tasks/update", #{taskId => Done, inputResponses => #{}}),
    #{~"status" := ~"completed", ~"lastUpdatedAt" := Updated} = get(Client, Done),
    ok.

%% "The server may discard the task after the TTL elapses."
expired_is_gone(Config) ->
    Server = erlmcp_test_tasks:start(#{task_ttl_ms => 2000}),
    Client = client(Server, Config),
    #{~"result" := #{~"ttlMs" := 2000, ~"taskId" := Id}} = call(Client, ~"wait"),
    {Pid, _} = running(),
    Done = id(call(Client, ~"quick")),
    _ = until(Client, Done, ~"completed"),
    ok = erlmcp_test_tasks:gone(Client, Id),
    ok = erlmcp_test_tasks:gone(Client, Done),
    ok = dead(Pid),
    {0, 0} = settled(Server),
    erlmcp_test_client:stop(Server).

handler_decides(Config) ->
    Client = client(Config),
    #{~"result" := #{~"resultType" := ~"complete", ~"content" := [#{~"text" := ~"short"}]}} =
        call(Client, ~"decides", #{arguments => #{long => false}}),
    #{~"result" := #{~"resultType" := ~"task"}} = Created =
        call(Client, ~"decides", #{arguments => #{long => true}}),
    #{~"result" := #{~"content" := [#{~"text" := ~"long"}]}} =
        until(Client, id(Created), ~"completed"),
    ok.

%% "`notifications/progress` and `notifications/message` notifications [...] are not supported on
%% tasks in general"; `statusMessage`: "Progress descriptions for \"working\"".
progress_is_the_status_message(Config) ->
    Client = client(Config),
    Meta = #{progressToken => ~"p", ~"io.modelcontextprotocol/logLevel" => ~"debug"},
    Id = id(call(Client, ~"report", #{'_meta' => Meta})),
    {Pid, _} = running(),
    #{~"status" := ~"working"} = told(Client, Id, ~"two of three"),
    finish(Pid, ~"done"),
    false = is_map_key(~"statusMessage", until(Client, Id, ~"completed")).

mounted_tools_are_tasks(Config) ->
    Mounted = (erlmcp_test_tasks:definitions(self()))#{name => ~"mounted", version => ~"1.0.0"},
    Server = erlmcp_test_client:start(#{mounts => [{~"sub", Mounted}]}),
    Client = client(Server, Config),
    #{~"result" := #{~"capabilities" := #{~"extensions" := #{?EXTENSION := _}}}} =
        ask(Client, ~"server/discover", #{}),
    Id = id(call(Client, ~"sub_wait")),
    {Pid, #{task := Id}} = running(),
    finish(Pid, ~"done"),
    #{~"result" := #{~"content" := [#{~"text" := ~"done"}]}} = until(Client, Id, ~"completed"),
    erlmcp_test_client:stop(Server).

%% A handler that goes on by a fun is given its own name there too, and what it links to is found.
mounted_tools_go_on_as_mounted(Config) ->
    Read = fun(_, _) -> ~"read" end,
    Goes = fun(_, _) ->
        {task, fun(#{name := Name}) ->
            {task, fun(#{name := Again}) ->
                [erlmcp_content:resource_link(~"note://1", <<Name/binary, $+, Again/binary>>)]
            end}
        end}
    end,
    Mounted = #{name => ~"mounted", version => ~"1.0.0",
                resources => [#{uri => ~"note://1", name => ~"n", handler => Read}],
                tools => [#{name => ~"goes", task => optional, task_starts => on_return,
                            handler => Goes}]},
    Server = erlmcp_test_client:start(#{mounts => [{~"sub", Mounted}]}),
    Client = client(Server, Config),
    Linked = [#{~"type" => ~"resource_link", ~"uri" => ~"note://sub/1", ~"name" => ~"goes+goes"}],
    #{~"result" := #{~"content" := Linked}} = call(undeclared(Client), ~"sub_goes"),
    #{~"result" := #{~"content" := Linked}} =
        until(Client, id(call(Client, ~"sub_goes")), ~"completed"),
    erlmcp_test_client:stop(Server).

-doc false.
log(#{msg := {report, #{what := call_crashed, incident := Incident}}}, Test) ->
    Test ! {incident, Incident},
    stop;
log(_, _) ->
    ignore.
