-module(spec_2025_11_25_tasks_SUITE).
-moduledoc """
Specification 2025-11-25, "Tasks", over HTTP and TCP: task-augmented tool calls in a session.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([init_per_group/2, end_per_group/2,
         init_per_testcase/2, end_per_testcase/2]).
-export([capability_is_declared_with_tools/1, tools_say_their_support/1,
         call_becomes_a_task/1, ttl_is_the_servers_to_override/1, wrong_task_is_refused/1,
         forbidden_is_refused/1, required_is_refused_without/1,
         undeclared_server_ignores_the_parameter/1, older_revisions_have_no_tasks/1,
         rounds_are_in_the_task/1]).
-export([result_waits_for_the_end/1, result_is_what_the_call_gives/1, result_is_the_same_error/1,
         error_result_is_failed/1, result_of_a_cancelled_task/1, result_is_cancelled_alone/1,
         waiting_keeps_nobody_waiting/1, waiting_counts_as_a_call/1]).
-export([input_is_asked_on_the_result/1, refused_input_fails_the_task/1,
         input_is_asked_again_of_the_next/1, input_is_asked_of_who_still_waits/1,
         answers_may_come_from_two/1, client_that_cannot_be_asked_waits/1]).
-export([progress_goes_to_who_waits/1, progress_goes_to_the_session/1, changes_are_told/1,
         changes_are_told_to_their_session/1, a_lost_task_is_told/1,
         what_nobody_reads_is_not_kept/1]).
-export([cancel_shows_the_cancelled/1, cancel_of_the_ended_is_refused/1, unknown_is_refused/1]).
-export([list_is_the_sessions/1, list_has_pages/1, list_is_the_principals/1,
         tasks_are_their_principals/1]).
-export([survives_the_session/1, is_seen_by_the_other_revision/1, expired_is_gone/1]).

-import(rounds_client, [request/4, over/1, answer/3, answer_error/3]).
-import(tasks_client, [ask/3, next/1, running/0, finish/2, get/2, id/1, until/3]).

-define(REVISION, ~"2025-11-25").
-define(RELATED, ~"io.modelcontextprotocol/related-task").
-define(INVALID, -32602).
-define(NO_METHOD, -32601).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}].

groups() ->
    Cases = [Case || {Case, 1} <- ?MODULE:module_info(exports),
                     not lists:member(Case, [init_per_suite, end_per_suite, module_info])],
    Http = [client_that_cannot_be_asked_waits, what_nobody_reads_is_not_kept],
    [{http, Cases}, {tcp, Cases -- Http}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, tasks_client:start(#{})} | Config].

end_per_testcase(_, Config) ->
    rounds_client:stop(server(Config)).

server(Config) ->
    proplists:get_value(server, Config).

transport(Config) ->
    proplists:get_value(transport, Config).

client(Config) ->
    client(server(Config), Config).

client(Server, Config) ->
    rounds_client:open(Server, transport(Config), ?REVISION, #{elicitation => #{}}).

%% A call as a task.
augmented(Client, Tool) ->
    augmented(Client, Tool, #{}).

augmented(Client, Tool, More) ->
    ask(Client, ~"tools/call", maps:merge(#{name => Tool, arguments => #{}, task => #{}}, More)).

call(Client, Tool) ->
    ask(Client, ~"tools/call", #{name => Tool, arguments => #{}}).

waiting(Client) ->
    Id = id(augmented(Client, ~"wait")),
    {Pid, _} = running(),
    {Id, Pid}.

result(Client, Id) ->
    ask(Client, ~"tasks/result", #{taskId => Id}).

refused(Code, #{~"error" := #{~"code" := Code} = Error}) ->
    maps:get(~"data", Error, #{});
refused(Code, Answer) ->
    error({not_refused, Code, Answer}).

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
    Plain = rounds_client:start(#{tools => []}),
    false = is_map_key(~"tasks", capabilities(Plain, Config, ?REVISION)),
    rounds_client:stop(Plain).

%% "In the result of `tools/list`, tools declare support for tasks via `execution.taskSupport`"
tools_say_their_support(Config) ->
    Support = fun(Revision) ->
        Client = rounds_client:open(server(Config), transport(Config), Revision, #{}),
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
    Server = rounds_client:start(#{tools => [#{name => ~"a", handler => fun(_, _) -> ~"a" end}]}),
    Client = client(Server, Config),
    #{~"result" := #{~"content" := [#{~"text" := ~"a"}]}} = augmented(Client, ~"a"),
    #{~"result" := #{~"content" := _}} = augmented(Client, ~"a", #{task => 1}),
    [refused(?NO_METHOD, ask(Client, Method, #{taskId => ~"a"}))
     || Method <- [~"tasks/get", ~"tasks/list", ~"tasks/result", ~"tasks/cancel"]],
    rounds_client:stop(Server).

older_revisions_have_no_tasks(Config) ->
    [begin
         Client = rounds_client:open(server(Config), transport(Config), Revision, #{}),
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

accept(Field, Value) ->
    #{action => accept, content => #{Field => Value}}.

%% "it MUST block the response until the task reaches a terminal status"; "The `tasks/result`
%% operation MUST include this metadata in its response".
result_waits_for_the_end(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    %% Others are answered meanwhile: it is not the connection that waits.
    #{~"status" := ~"working"} = get(Client, Id),
    finish(Pid, ~"done"),
    #{~"id" := 5, ~"result" := #{~"content" := [#{~"text" := ~"done"}],
                                 ~"_meta" := #{?RELATED := #{~"taskId" := Id}}}} = next(Exchange),
    over(Exchange),
    %% And again, when it is over.
    #{~"result" := #{~"content" := [#{~"text" := ~"done"}],
                     ~"_meta" := #{?RELATED := #{~"taskId" := Id}}}} = result(Client, Id).

result_is_what_the_call_gives(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    finish(Pid, #{sum => 3}),
    #{~"result" := Result} = result(Client, Id),
    #{~"structuredContent" := #{~"sum" := 3}, ~"content" := [_]} = Result,
    [~"_meta", ~"content", ~"structuredContent"] = lists:sort(maps:keys(Result)).

%% "If the underlying request resulted in a JSON-RPC error, `tasks/result` MUST return that same
%% JSON-RPC error."
result_is_the_same_error(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"slow")),
    {_, _} = running(),
    #{~"status" := ~"failed", ~"statusMessage" := Message} = until(Client, Id, ~"failed"),
    #{~"error" := #{~"code" := 1069, ~"message" := Message}} = result(Client, Id).

%% "For tasks that wrap tool call requests, when the tool result has `isError` set to `true`, the
%% task should reach `failed` status."
error_result_is_failed(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"fails")),
    %% "The `tasks/get` response SHOULD include a `statusMessage` field with diagnostic information
    %% about the failure."
    #{~"statusMessage" := _} = until(Client, Id, ~"failed"),
    #{~"result" := #{~"isError" := true, ~"content" := [#{~"text" := ~"it broke"}]}} =
        result(Client, Id),
    ok.

result_of_a_cancelled_task(Config) ->
    Client = client(Config),
    {Id, _} = waiting(Client),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    %% Not on the stream that the other answer comes on: which is first, nobody says.
    #{~"result" := #{~"status" := ~"cancelled"}} =
        ask(client(Config), ~"tasks/cancel", #{taskId => Id}),
    #{~"id" := 5, ~"error" := #{~"code" := -32603}} = next(Exchange),
    over(Exchange),
    _ = refused(-32603, result(Client, Id)).

%% "For task cancellation, use the `tasks/cancel` request instead of this notification." What is
%% cancelled by it is the waiting.
result_is_cancelled_alone(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    case transport(Config) of
        http -> fin = cancelled(Client, 5, Exchange);
        tcp -> ok = rounds_client:cancel(Client, 5)
    end,
    #{~"status" := ~"working"} = get(Client, Id),
    finish(Pid, ~"done"),
    #{~"result" := #{~"content" := [#{~"text" := ~"done"}]}} = result(Client, Id).

%% On another connection than the request's a cancellation may come first, and means nothing then.
cancelled(Client, Id, Exchange) ->
    Canceller = spawn_link(fun Again() ->
        ok = rounds_client:cancel(Client, Id),
        receive after 200 -> Again() end
    end),
    Next = next(Exchange),
    true = unlink(Canceller),
    true = exit(Canceller, kill),
    Next.

waiting_keeps_nobody_waiting(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    Exchanges = [request(Client, N, ~"tasks/result", #{taskId => Id}) || N <- lists:seq(1, 20)],
    Last = request(Client, 21, ~"tools/call", #{name => ~"plain", arguments => #{}}),
    #{~"id" := 21} = next(Last),
    finish(Pid, ~"done"),
    Answers = [next(Exchange) || Exchange <- Exchanges],
    20 = length(lists:usort([N || #{~"id" := N, ~"result" := _} <- Answers])).

waiting_counts_as_a_call(Config) ->
    Server = tasks_client:start(#{calls_per_connection => 2}),
    Client = client(Server, Config),
    {Id, Pid} = waiting(Client),
    Exchanges = [request(Client, N, ~"tasks/result", #{taskId => Id}) || N <- [1, 2]],
    %% They arrive each on its own connection.
    ok = tasks_client:waited_for(Server, Id, 2),
    %% The task itself is none of its connection's calls; those that wait for it are.
    #{~"limit" := 2} = refused(1060, call(Client, ~"quick")),
    finish(Pid, ~"done"),
    _ = [#{~"result" := _} = next(Exchange) || Exchange <- Exchanges],
    rounds_client:stop(Server).

%% "The receiver MUST include the `io.modelcontextprotocol/related-task` metadata in the request to
%% associate it with the task."; "When the receiver receives all required input, the task SHOULD
%% transition out of `input_required` status".
input_is_asked_on_the_result(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"ask")),
    #{~"status" := ~"input_required"} = Task = until(Client, Id, ~"input_required"),
    false = is_map_key(~"inputRequests", Task),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    Asked = #{Message => Request || #{~"id" := Request, ~"method" := ~"elicitation/create",
                                      ~"params" := #{~"message" := Message} = Params}
                                        <- [next(Exchange), next(Exchange)],
                                    is_related(Params, Id)},
    #{~"Name?" := Name, ~"Town?" := Town} = Asked,
    ok = answer(Client, Name, accept(~"name", ~"Ada")),
    ok = answer(Client, Town, accept(~"town", ~"Rome")),
    #{~"id" := 5, ~"result" := #{~"structuredContent" := #{~"answers" := Answers}}} =
        next(Exchange),
    #{~"name" := #{~"name" := ~"Ada"}, ~"town" := #{~"town" := ~"Rome"}} = Answers,
    over(Exchange).

is_related(#{~"_meta" := #{?RELATED := #{~"taskId" := Id}}}, Id) -> true;
is_related(_, _) -> false.

refused_input_fails_the_task(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"twice")),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := Asked} = next(Exchange),
    ok = answer_error(Client, Asked, -32603),
    #{~"id" := 5, ~"error" := #{~"code" := -32603}} = next(Exchange),
    over(Exchange),
    #{~"status" := ~"failed"} = get(Client, Id),
    ok.

%% The client went away while it was asked; the next one who waits is asked again.
input_is_asked_again_of_the_next(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"twice")),
    Lost = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := _} = next(Lost),
    ok = rounds_client:close(Client, Lost),
    Other = client(Config),
    Exchange = request(Other, 6, ~"tasks/result", #{taskId => Id}),
    #{~"id" := First, ~"params" := #{~"message" := ~"Name?"}} = next(Exchange),
    ok = answer(Other, First, accept(~"name", ~"Ada")),
    #{~"id" := Second, ~"params" := #{~"message" := ~"And again?"}} = next(Exchange),
    ok = answer(Other, Second, accept(~"name", ~"Bob")),
    #{~"id" := 6, ~"result" := #{~"structuredContent" := #{~"first" := #{~"name" := ~"Ada"},
                                                           ~"second" := #{~"name" := ~"Bob"}}}} =
        next(Exchange),
    over(Exchange).

input_is_asked_of_who_still_waits(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"twice")),
    One = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := First} = next(One),
    Other = client(Config),
    Two = request(Other, 6, ~"tasks/result", #{taskId => Id}),
    #{~"id" := _} = next(Two),
    ok = answer(Client, First, accept(~"name", ~"Ada")),
    #{~"params" := #{~"message" := ~"And again?"}} = next(Two),
    %% The one that was asked waits no more.
    ok = rounds_client:cancel(Other, 6),
    #{~"id" := Second, ~"params" := #{~"message" := ~"And again?"}} = next(One),
    ok = answer(Client, Second, accept(~"name", ~"Bob")),
    #{~"id" := 5, ~"result" := #{~"structuredContent" := #{~"second" := #{~"name" := ~"Bob"}}}} =
        next(One),
    over(One).

answers_may_come_from_two(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"ask")),
    One = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"Name?" := Name} = asked(One),
    Other = client(Config),
    Two = request(Other, 6, ~"tasks/result", #{taskId => Id}),
    #{~"Town?" := Town} = asked(Two),
    ok = answer(Client, Name, accept(~"name", ~"Ada")),
    ok = answer(Other, Town, accept(~"town", ~"Rome")),
    [#{~"result" := #{~"structuredContent" := #{~"answers" := #{
        ~"name" := #{~"name" := ~"Ada"}, ~"town" := #{~"town" := ~"Rome"}}}}} = next(Exchange)
     || Exchange <- [One, Two]].

asked(Exchange) ->
    #{Message => Id || #{~"id" := Id, ~"params" := #{~"message" := Message}}
                           <- [next(Exchange), next(Exchange)]}.

%% One that reads no streams can wait for the result; it is another one that is asked.
client_that_cannot_be_asked_waits(Config) ->
    #{session := Session} = Client = client(Config),
    Id = id(augmented(Client, ~"twice")),
    _ = until(Client, Id, ~"input_required"),
    Socket = erlmcp_test_http:connect(server(Config)),
    {Headers, Body} = erlmcp_test_http:message(~"tasks/result", #{taskId => Id},
                                               #{session => Session, id => 5,
                                                 headers => #{~"accept" => ~"application/json"}}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    Exchange = request(Client, 6, ~"tasks/result", #{taskId => Id}),
    #{~"id" := First} = next(Exchange),
    ok = answer(Client, First, accept(~"name", ~"Ada")),
    #{~"id" := Second} = next(Exchange),
    ok = answer(Client, Second, accept(~"name", ~"Bob")),
    #{~"id" := 6, ~"result" := _} = next(Exchange),
    #{status := 200, messages := [#{~"id" := 5, ~"result" := _}]} =
        erlmcp_test_http:response(Socket),
    ok.

%% "The `progressToken` provided in the initial request remains valid throughout the task
%% lifetime."; "All requests, notifications, and responses related to a task MUST include the
%% `io.modelcontextprotocol/related-task` key in their `_meta` field".
progress_goes_to_who_waits(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"later", #{'_meta' => #{progressToken => ~"p"}})),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := Asked} = next(Exchange),
    ok = answer(Client, Asked, accept(~"name", ~"Ada")),
    {Pid, Context} = running(),
    ok = erlmcp:progress(Context, 1, #{message => ~"half"}),
    ok = erlmcp:log(Context, error, ~"logged"),
    #{~"method" := ~"notifications/progress",
      ~"params" := #{~"progressToken" := ~"p", ~"progress" := 1} = Progress} = next(Exchange),
    true = is_related(Progress, Id),
    #{~"method" := ~"notifications/message", ~"params" := #{~"data" := ~"logged"} = Logged} =
        next(Exchange),
    true = is_related(Logged, Id),
    #{~"statusMessage" := ~"half"} = get(Client, Id),
    finish(Pid, ~"done"),
    #{~"id" := 5} = next(Exchange),
    over(Exchange).

progress_goes_to_the_session(Config) ->
    Client = client(Config),
    Session = rounds_client:stream(Client),
    Id = id(augmented(Client, ~"report", #{'_meta' => #{progressToken => 7}})),
    {Pid, _} = running(),
    #{~"method" := ~"notifications/progress",
      ~"params" := #{~"progressToken" := 7, ~"progress" := 1} = Params} = next(Session),
    true = is_related(Params, Id),
    #{~"method" := ~"notifications/message"} = next(Session),
    #{~"params" := #{~"progress" := 2}} = next(Session),
    finish(Pid, ~"done").

%% "When a task status changes, receivers MAY send a `notifications/tasks/status` notification";
%% it "SHOULD NOT include the `io.modelcontextprotocol/related-task` metadata".
changes_are_told(Config) ->
    Client = client(Config),
    Session = rounds_client:stream(Client),
    Id = id(augmented(Client, ~"wait")),
    {Pid, _} = running(),
    finish(Pid, ~"done"),
    #{~"method" := ~"notifications/tasks/status",
      ~"params" := #{~"taskId" := Id, ~"status" := ~"completed"} = Told} =
        rounds_client:next(Session),
    Told = get(Client, Id),
    false = is_map_key(~"_meta", Told).

changes_are_told_to_their_session(Config) ->
    Client = client(Config),
    Other = client(Config),
    OtherSession = rounds_client:stream(Other),
    {Id, Pid} = waiting(Client),
    finish(Pid, ~"done"),
    _ = until(Client, Id, ~"completed"),
    Mine = id(augmented(Other, ~"quick")),
    #{~"method" := ~"notifications/tasks/status", ~"params" := #{~"taskId" := Mine}} =
        rounds_client:next(OtherSession),
    %% Nobody is subscribed to what is over.
    [] = [Topic || {{task, _, _} = Topic, _} <- rounds_client:subscribers(server(Config))].

%% Its keeper could not tell it, nor take with it what it had in tables.
a_lost_task_is_told(Config) ->
    Client = client(Config),
    Session = rounds_client:stream(Client),
    {Id, Pid} = waiting(Client),
    exit(tasks_client:keeper(server(Config), Id), kill),
    _ = erlmcp_test_http:ended(Pid),
    ok = tasks_client:sweep(server(Config)),
    #{~"method" := ~"notifications/tasks/status",
      ~"params" := #{~"taskId" := Id, ~"status" := ~"failed"}} = rounds_client:next(Session),
    [] = [Topic || {{task, _, _} = Topic, _} <- rounds_client:subscribers(server(Config))],
    {0, 0} = tasks_client:counts(server(Config)).

%% A session whose own stream was never open is not told later of each task that it ever had.
what_nobody_reads_is_not_kept(Config) ->
    Client = client(Config),
    [_ = until(Client, id(augmented(Client, ~"quick")), ~"completed") || _ <- [1, 2, 3]],
    Session = rounds_client:stream(Client),
    #{pid := Pid} = server(Config),
    ok = erlmcp:add(Pid, tool, #{name => ~"new", handler => fun(_, _) -> ~"" end}),
    #{~"method" := ~"notifications/tools/list_changed"} = rounds_client:next(Session),
    ok.

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
    Server = rounds_client:start((tasks_client:definitions(self()))#{page_size => 2}),
    Client = client(Server, Config),
    Ids = [begin {Id, _} = waiting(Client), Id end || _ <- lists:seq(1, 5)],
    Pages = pages(Client, #{}),
    [2, 2, 1] = [length(Page) || Page <- Pages],
    Listed = [Id || Page <- Pages, #{~"taskId" := Id} <- Page],
    true = lists:sort(Ids) =:= lists:sort(Listed),
    rounds_client:stop(Server).

pages(Client, Params) ->
    case ask(Client, ~"tasks/list", Params) of
        #{~"result" := #{~"tasks" := Tasks, ~"nextCursor" := Cursor}} ->
            [Tasks | pages(Client, #{cursor => Cursor})];
        #{~"result" := #{~"tasks" := Tasks}} ->
            [Tasks]
    end.

%% A server where each of two clients is somebody: by a listener of his own.
principals(Config) ->
    Transport = transport(Config),
    Listeners = [listener(Transport, Name) || Name <- [ada, eve]],
    #{pid := Pid} = Server = tasks_client:start(#{}, Listeners),
    Ports = [Port || #{port := Port} <- erlmcp:listeners(Pid)],
    {Server, [fun() ->
        rounds_client:open(at(Transport, Port, Server), Transport, ?REVISION, #{})
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
    rounds_client:stop(Server).

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
    rounds_client:stop(Server).

survives_the_session(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    case Client of
        #{transport := http, session := Session} ->
            #{status := 204} = erlmcp_test_http:delete(server(Config), Session);
        #{transport := tcp} ->
            ok = rounds_client:close(Client)
    end,
    Other = client(Config),
    #{~"status" := ~"working"} = get(Other, Id),
    finish(Pid, ~"done"),
    #{~"result" := #{~"content" := [#{~"text" := ~"done"}]}} = result(Other, Id).

%% SEP-2663: servers that have both "SHOULD continue to permit `tasks/get` and `tasks/cancel`
%% requests [...] to operate on tasks created under that flow".
is_seen_by_the_other_revision(Config) ->
    Client = client(Config),
    Modern = tasks_client:open(server(Config), transport(Config), ~"2026-07-28", #{}),
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
