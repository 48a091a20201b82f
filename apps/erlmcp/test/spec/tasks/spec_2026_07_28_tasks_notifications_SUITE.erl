-module(spec_2026_07_28_tasks_notifications_SUITE).
-moduledoc """
Who is told of tasks of 2026-07-28, whose they are, how many there may be, and what is kept of them,
over HTTP and TCP. Quotes are of the specification of the extension
`io.modelcontextprotocol/tasks`.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([tasks_are_bounded/1, results_are_bounded/1, nothing_is_kept_of_the_request/1,
         changes_are_told/1, listening_needs_the_extension/1, listening_is_bounded/1,
         listening_is_by_task/1, tasks_are_their_principals/1, principals_are_bounded/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_extension_tasks, [client/1, client/2, undeclared/1, call/2, call/3, waiting/1,
                                      update/3, lacks_the_extension/1, settled/1]).
-import(erlmcp_test_client, [ask/3, listen/4, told/1]).
-import(erlmcp_test_tasks, [accept/2, refused/2, running/0, finish/2, get/2, id/1, keeper/2,
                            until/3]).

-define(REVISION, ~"2026-07-28").
-define(INVALID, -32602).

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

tasks_are_bounded(Config) ->
    Server = erlmcp_test_tasks:start(#{tasks => 3}),
    Client = client(Server, Config),
    [Id | _] = [id(call(Client, ~"quick")) || _ <- [1, 2, 3]],
    #{~"limit" := 3, ~"observed" := 4, ~"retryAfterMs" := _} =
        refused(1060, call(Client, ~"quick")),
    _ = until(Client, Id, ~"completed"),
    %% Other calls are as before.
    #{~"result" := _} = call(Client, ~"plain"),
    #{~"result" := _} = call(undeclared(Client), ~"quick"),
    {0, 0} = settled(Server),
    erlmcp_test_client:stop(Server).

results_are_bounded(Config) ->
    Server = erlmcp_test_tasks:start(#{task_bytes => 5000}),
    Client = client(Server, Config),
    Run = fun(Bytes) ->
        {Id, Pid} = waiting(Client),
        finish(Pid, binary:copy(~"a", Bytes)),
        Id
    end,
    Kept = Run(4000),
    _ = until(Client, Kept, ~"completed"),
    #{~"error" := #{~"code" := 1089, ~"data" := #{~"limit" := 5000}}} =
        until(Client, Run(4000), ~"failed"),
    #{~"status" := ~"completed"} = get(Client, Kept),
    erlmcp_test_client:stop(Server).

%% A long name in it is a part of its bytes, and the task may last for hours.
nothing_is_kept_of_the_request(Config) ->
    #{tools := Tools} = erlmcp_test_tasks:definitions(self()),
    Name = binary:copy(~"n", 100),
    [Wait] = [Tool#{name := Name} || #{name := ~"wait"} = Tool <- Tools],
    Server = erlmcp_test_client:start(#{tools => [Wait]}),
    Text = binary:copy(~"a", 100_000),
    Id = id(call(client(Server, Config), Name, #{arguments => #{text => Text}})),
    {Pid, _} = running(),
    Keeper = keeper(Server, Id),
    _ = sys:get_state(Keeper),
    true = erlang:garbage_collect(Keeper),
    {binary, Kept} = process_info(Keeper, binary),
    [] = [Bytes || {_, Bytes, _} <- Kept, Bytes >= byte_size(Text)],
    finish(Pid, ~"done"),
    erlmcp_test_client:stop(Server).

%% "Each notification carries a complete `DetailedTask` for the current status, identical to what
%% `tasks/get` would have returned at that moment."
changes_are_told(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    {Other, OtherPid} = waiting(Client),
    Filter = #{taskIds => [Id]},
    Stream = listen(Client, ~"s", Filter, #{~"taskIds" => [Id]}),
    finish(OtherPid, ~"not told"),
    _ = until_beside(Config, Other),
    finish(Pid, ~"told"),
    {~"s", ~"notifications/tasks", Told} = told(Stream),
    #{~"status" := ~"completed", ~"taskId" := Id,
      ~"result" := #{~"content" := [#{~"text" := ~"told"}]}} = Told,
    Told = maps:without([~"_meta", ~"resultType"], get(beside(Config), Id)),
    ok.

%% On a connection of its own: the other one tells of changes.
beside(Config) ->
    client(Config).

until_beside(Config, Id) ->
    until(beside(Config), Id, ~"completed").

%% "If a client requests task status notifications but does not declare the extension capability,
%% the server MUST return a JSON-RPC error specifying the missing capabilities".
listening_needs_the_extension(Config) ->
    Client = undeclared(client(Config)),
    Params = #{notifications => #{taskIds => [~"a"]}},
    ok = lacks_the_extension(ask(Client, ~"subscriptions/listen", Params)).

listening_is_bounded(Config) ->
    Client = client(Config),
    Ids = [integer_to_binary(N) || N <- lists:seq(1, 1001)],
    Listen = fun(TaskIds) ->
        Params = #{notifications => #{taskIds => TaskIds}},
        refused(?INVALID, ask(Client, ~"subscriptions/listen", Params))
    end,
    #{~"limit" := 1000, ~"observed" := 1001} = Listen(Ids),
    [Listen(Wrong) || Wrong <- [[1], ~"a", null]],
    %% What cannot be the id of a task is not honoured.
    Long = binary:copy(~"a", 65),
    _ = listen(Client, ~"s", #{taskIds => [~"a", Long]}, #{~"taskIds" => [~"a"]}),
    ok.

listening_is_by_task(Config) ->
    Client = client(Config),
    Id = id(call(Client, ~"twice")),
    #{~"inputRequests" := Requests} = until(Client, Id, ~"input_required"),
    [Key] = maps:keys(Requests),
    Stream = listen(Client, 1, #{taskIds => [Id]}, #{~"taskIds" => [Id]}),
    #{~"result" := _} = update(beside(Config), Id, #{Key => accept(~"name", ~"Ada")}),
    {1, ~"notifications/tasks", #{~"status" := ~"working"}} = told(Stream),
    {1, ~"notifications/tasks", #{~"status" := ~"input_required", ~"inputRequests" := Again}} =
        told(Stream),
    1 = map_size(Again),
    #{~"result" := _} = ask(beside(Config), ~"tasks/cancel", #{taskId => Id}),
    {1, ~"notifications/tasks", #{~"status" := ~"cancelled"}} = told(Stream),
    ok.

%% "Servers MUST perform authentication and authorization checks on each task-related request to
%% ensure that the client has permission to access a task."
tasks_are_their_principals(Config) ->
    {Server, [Ada, Eve]} = principals(#{}, Config),
    {Id, Pid} = waiting(Ada),
    Params = #{taskId => Id, inputResponses => #{}},
    Unknown = #{taskId => ~"none", inputResponses => #{}},
    [begin
         Data = refused(?INVALID, ask(Eve, Method, Params)),
         %% As if there were none.
         Data = refused(?INVALID, ask(Eve, Method, Unknown))
     end || Method <- [~"tasks/get", ~"tasks/update", ~"tasks/cancel"]],
    #{~"status" := ~"working"} = get(Ada, Id),
    Stream = listen(Eve, ~"s", #{taskIds => [Id], toolsListChanged => true},
                    #{~"taskIds" => [Id], ~"toolsListChanged" => true}),
    Told = listen(Ada, ~"t", #{taskIds => [Id]}, #{~"taskIds" => [Id]}),
    finish(Pid, ~"secret"),
    {~"t", ~"notifications/tasks", #{~"status" := ~"completed"}} = told(Told),
    %% She is told of what comes after it, and not of it.
    New = #{name => ~"new", handler => fun(_, _) -> ~"" end},
    ok = erlmcp:add(maps:get(pid, Server), tool, New),
    {~"s", ~"notifications/tools/list_changed", _} = told(Stream),
    erlmcp_test_client:stop(Server).

principals_are_bounded(Config) ->
    {Server, [Ada, Eve]} = principals(#{tasks_per_principal => 2}, Config),
    _ = [id(call(Ada, ~"quick")) || _ <- [1, 2]],
    #{~"limit" := 2, ~"observed" := 3} = refused(1060, call(Ada, ~"quick")),
    _ = [id(call(Eve, ~"quick")) || _ <- [1, 2]],
    _ = refused(1060, call(Eve, ~"quick")),
    erlmcp_test_client:stop(Server).

%% A server where each of two clients is somebody: by a listener of his own.
principals(Limits, Config) ->
    Transport = transport(Config),
    Listeners = [listener(Transport, Name) || Name <- [ada, eve]],
    #{pid := Pid} = Server = erlmcp_test_tasks:start(Limits, Listeners),
    Ports = [Port || #{port := Port} <- erlmcp:listeners(Pid)],
    {Server, [erlmcp_test_tasks:open(at(Transport, Port, Server), Transport, ?REVISION,
                                     #{elicitation => #{}}) || Port <- Ports]}.

listener(http, Name) -> {http, #{authenticate => fun(_) -> {ok, Name} end}};
listener(tcp, Name) -> {tcp, #{principal => Name}}.

at(http, Port, Server) -> Server#{port := Port};
at(tcp, Port, Server) -> Server#{pid := Port}.
