-module(spec_2026_07_28_tasks_input_SUITE).
-moduledoc """
Input in the middle of a task of 2026-07-28, over HTTP and TCP. Quotes are of the specification of
the extension `io.modelcontextprotocol/tasks`.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([input_is_asked_in_the_task/1, answers_may_come_one_by_one/1, other_answers_are_ignored/1,
         url_is_asked_without_an_id/1, keys_are_used_once/1, input_in_time_or_failed/1,
         undeclared_input_is_failed/1, rounds_come_before_the_task/1,
         undeclared_clients_go_on_in_the_call/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_extension_tasks, [client/1, client/2, undeclared/1, call/2, call/3, update/3,
                                      keys/1]).
-import(erlmcp_test_client, [with_capabilities/2]).
-import(erlmcp_test_tasks, [accept/2, running/0, finish/2, get/2, id/1, until/3]).

-define(EXTENSION, ~"io.modelcontextprotocol/tasks").
-define(UNDECLARED, -32021).

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

%% "The `inputRequests` field MUST contain all outstanding requests from the server to the client
%% that need to be fulfilled before the task can proceed."
input_is_asked_in_the_task(Config) ->
    Client = client(Config),
    Id = id(call(Client, ~"ask")),
    #{~"inputRequests" := Requests} = until(Client, Id, ~"input_required"),
    #{~"Name?" := Name, ~"Town?" := Town} = keys(Requests),
    [~"elicitation/create"] = lists:usort([Method || _ := #{~"method" := Method} <- Requests]),
    #{~"result" := #{~"resultType" := ~"complete"} = Result} =
        update(Client, Id, #{Name => accept(~"name", ~"Ada"), Town => accept(~"town", ~"Rome")}),
    2 = map_size(Result),
    #{~"result" := #{~"structuredContent" := #{~"answers" := Answers}}} = Task =
        until(Client, Id, ~"completed"),
    #{~"name" := #{~"name" := ~"Ada"}, ~"town" := #{~"town" := ~"Rome"}} = Answers,
    false = is_map_key(~"inputRequests", Task).

%% "A server MAY accept a partial set of responses [...]; in that case the task remains in
%% `input_required` until the remaining responses arrive."
answers_may_come_one_by_one(Config) ->
    Client = client(Config),
    Id = id(call(Client, ~"ask")),
    #{~"inputRequests" := Requests} = until(Client, Id, ~"input_required"),
    #{~"Name?" := Name, ~"Town?" := Town} = keys(Requests),
    #{~"result" := _} = update(Client, Id, #{Name => accept(~"name", ~"Ada")}),
    #{~"status" := ~"input_required", ~"inputRequests" := Left} = get(Client, Id),
    [Town] = maps:keys(Left),
    #{~"result" := _} = update(Client, Id, #{Town => accept(~"town", ~"Rome")}),
    #{~"result" := #{~"structuredContent" := #{~"answers" := Answers}}} =
        until(Client, Id, ~"completed"),
    #{~"name" := #{~"name" := ~"Ada"}, ~"town" := #{~"town" := ~"Rome"}} = Answers,
    ok.

%% The URL of an elicitation has no id in this revision.
url_is_asked_without_an_id(Config) ->
    Client = with_capabilities(#{extensions => #{?EXTENSION => #{}},
                                 elicitation => #{url => #{}}}, client(Config)),
    Id = id(call(Client, ~"visit")),
    #{~"inputRequests" := Requests} = until(Client, Id, ~"input_required"),
    [{Key, #{~"method" := ~"elicitation/create", ~"params" := Params}}] = maps:to_list(Requests),
    #{~"mode" := ~"url", ~"message" := ~"Go?", ~"url" := ~"https://a.example"} = Params,
    3 = map_size(Params),
    #{~"result" := _} = update(Client, Id, #{Key => #{action => decline}}),
    #{~"result" := #{~"content" := [#{~"text" := ~"decline"}]}} = until(Client, Id, ~"completed"),
    ok.

%% "A server SHOULD ignore any `inputResponses` responses mapped to a key that is not currently
%% outstanding for the task - including keys that were never issued, keys that have already been
%% answered".
other_answers_are_ignored(Config) ->
    Client = client(Config),
    Id = id(call(Client, ~"ask")),
    #{~"inputRequests" := Requests, ~"lastUpdatedAt" := Updated} =
        until(Client, Id, ~"input_required"),
    #{~"Name?" := Name, ~"Town?" := Town} = keys(Requests),
    #{~"result" := _} = update(Client, Id, #{~"unknown" => accept(~"a", ~"b")}),
    #{~"result" := _} = update(Client, Id, #{}),
    #{~"inputRequests" := Requests, ~"lastUpdatedAt" := Updated} = get(Client, Id),
    #{~"result" := _} = update(Client, Id, #{Name => accept(~"name", ~"Ada"),
                                             ~"unknown" => accept(~"a", ~"b")}),
    #{~"result" := _} = update(Client, Id, #{Name => accept(~"name", ~"Eve")}),
    #{~"result" := _} = update(Client, Id, #{Name => accept(~"name", ~"Eve"),
                                             Town => accept(~"town", ~"Rome")}),
    #{~"result" := #{~"structuredContent" := #{~"answers" := Answers}}} =
        until(Client, Id, ~"completed"),
    [{~"name", #{~"name" := ~"Ada"}}, {~"town", _}] = lists:sort(maps:to_list(Answers)),
    ok.

%% "Each request key in `inputRequests` MUST be unique over the lifetime of a single task."
keys_are_used_once(Config) ->
    Client = client(Config),
    Id = id(call(Client, ~"twice")),
    #{~"inputRequests" := #{} = First} = until(Client, Id, ~"input_required"),
    #{~"Name?" := One} = keys(First),
    #{~"result" := _} = update(Client, Id, #{One => accept(~"name", ~"Ada")}),
    Second = asked_again(Client, Id, ~"And again?", 3000),
    #{~"And again?" := Two} = keys(Second),
    true = One =/= Two,
    #{~"result" := _} = update(Client, Id, #{One => accept(~"name", ~"Eve")}),
    #{~"result" := _} = update(Client, Id, #{Two => accept(~"name", ~"Bob")}),
    #{~"result" := #{~"structuredContent" := #{~"first" := #{~"name" := ~"Ada"},
                                               ~"second" := #{~"name" := ~"Bob"}}}} =
        until(Client, Id, ~"completed"),
    ok.

asked_again(Client, Id, Message, Tries) when Tries > 0 ->
    #{~"inputRequests" := Requests} = until(Client, Id, ~"input_required"),
    case keys(Requests) of
        #{Message := _} -> Requests;
        #{} -> receive after 10 -> asked_again(Client, Id, Message, Tries - 1) end
    end.

input_in_time_or_failed(Config) ->
    Server = erlmcp_test_tasks:start(#{input_timeout_ms => 100}),
    Client = client(Server, Config),
    Id = id(call(Client, ~"ask")),
    #{~"error" := #{~"code" := 1069}} = until(Client, Id, ~"failed"),
    erlmcp_test_client:stop(Server).

undeclared_input_is_failed(Config) ->
    Client = with_capabilities(#{extensions => #{?EXTENSION => #{}}}, client(Config)),
    Id = id(call(Client, ~"ask")),
    #{~"error" := #{~"code" := ?UNDECLARED}} = until(Client, Id, ~"failed"),
    ok.

%% "Server implementations that use multi round-trip requests in conjunction with task creation
%% SHOULD resolve all MRTR exchanges synchronously before responding with a `CreateTaskResult`."
rounds_come_before_the_task(Config) ->
    Client = client(Config),
    #{~"result" := #{~"resultType" := ~"input_required", ~"inputRequests" := Requests} = First} =
        call(Client, ~"later"),
    [~"name"] = maps:keys(Requests),
    false = is_map_key(~"taskId", First),
    Answers = #{inputResponses => #{name => accept(~"name", ~"Ada")}},
    #{~"result" := #{~"resultType" := ~"task"} = Second} = Created =
        call(Client, ~"later", Answers),
    [] = [Key || Key <- [~"requestState", ~"inputRequests"], is_map_key(Key, Second)],
    Id = id(Created),
    {Pid, #{task := Id}} = running(),
    finish(Pid, ~"Hello, Ada"),
    #{~"result" := #{~"content" := [#{~"text" := ~"Hello, Ada"}]}} =
        until(Client, Id, ~"completed"),
    ok.

undeclared_clients_go_on_in_the_call(Config) ->
    Client = undeclared(client(Config)),
    Answers = #{inputResponses => #{name => accept(~"name", ~"Ada")}},
    Exchange = erlmcp_test_client:request(Client, 7, ~"tools/call",
                                          Answers#{name => ~"later", arguments => #{}}),
    {Pid, Context} = running(),
    false = is_map_key(task, Context),
    finish(Pid, ~"Hello, Ada"),
    #{~"result" := #{~"resultType" := ~"complete", ~"content" := [#{~"text" := ~"Hello, Ada"}]}} =
        erlmcp_test_client:next(Exchange),
    erlmcp_test_client:over(Exchange).
