-module(erlmcp_task_view).
-moduledoc """
Encodes a task as the clients of a revision see it. Pure.

In 2026-07-28 a completed task contains its result, and a failed one its JSON-RPC error. In
2025-11-25 clients get the result by `tasks/result`, and a task whose result has `isError` has
failed, too. A client may see a task that a client of the other revision has created.

Internal.
""".

-export([created/2, shown/2, listed/2, notifications/1, status/2, is_over/1]).
-export([outcome/1, related/2]).

%% Milliseconds between two looks at a task that clients are advised to use.
-define(POLL, 1000).

-doc "Returns the result of a request whose call became a task.".
-spec created(erlmcp_task_store:task(), erlmcp_engine:context()) -> iodata().
created(Task, #{revision := '2026-07-28' = Revision, call := #{server_meta := ServerMeta}}) ->
    erlmcp_result:object(task, maps:to_list(fields(Task)), Revision, ServerMeta);
created(Task, _) ->
    json:encode(#{~"task" => fields_2025(Task)}).

-doc "Returns the result of `tasks/get`, or of `tasks/cancel` in 2025-11-25.".
-spec shown(erlmcp_task_store:task(), erlmcp_engine:context()) -> iodata().
shown(Task, #{revision := '2026-07-28' = Revision, call := #{server_meta := ServerMeta}}) ->
    Result = [{~"result", {encoded, result(Task)}} || is_map_key(result, Task)],
    erlmcp_result:object(maps:to_list(detailed(Task)) ++ Result, Revision, ServerMeta);
shown(Task, _) ->
    json:encode(fields_2025(Task)).

-doc "Returns the result of `tasks/list`, with the cursor of the next page if there is one.".
-spec listed([erlmcp_task_store:task()], Cursor :: binary() | none) -> iodata().
listed(Tasks, Cursor) ->
    json:encode(maps:merge(#{~"tasks" => [fields_2025(Task) || Task <- Tasks]},
                           #{~"nextCursor" => Cursor || Cursor =/= none})).

-doc "Returns the notifications of a changed task, for sessions and for stateless subscriptions.".
-spec notifications(erlmcp_task_store:task()) ->
    erlmcp_subscriptions:notifications().
notifications(Task) ->
    Result = #{~"result" => json:decode(iolist_to_binary(result(Task)))
               || is_map_key(result, Task)},
    {{~"notifications/tasks/status", fields_2025(Task)},
     {~"notifications/tasks", maps:merge(detailed(Task), Result)}}.

-doc """
Returns the status of a task as a revision names it. In 2025-11-25, a completed task whose result
has `isError` is `failed`.
""".
-spec status(erlmcp_task_store:task(), erlmcp_revision:revision()) -> erlmcp_task_store:status().
status(#{status := completed, is_error := true}, '2025-11-25') -> failed;
status(#{status := Status}, _) -> Status.

-doc "Returns `true` if a task has ended, and so will not change any more.".
-spec is_over(erlmcp_task_store:task()) -> boolean().
is_over(#{status := Status}) ->
    Status =/= working andalso Status =/= input_required.

-doc """
Returns the answer to `tasks/result` for a task that has ended. The answer is the task's result,
with the id of the task in `_meta`, or the refusal with which the task failed. For a cancelled task
the refusal has the code -32603.
""".
-spec outcome(erlmcp_task_store:task()) -> {ok, iodata()} | {error, erlmcp_refusal:refusal()}.
outcome(#{status := completed, id := Id, result := Result}) ->
    {ok, json:encode(related(Id, json:decode(Result)))};
outcome(#{status := failed, error := Refusal}) ->
    {error, Refusal};
outcome(#{status := cancelled}) ->
    {error, erlmcp_refusal:new(protocol_error, ~"the task was cancelled", #{code => -32603})}.

-doc """
Adds the id of a task to the `_meta` of `Object`. This is the result of the task, or the parameters
of a request or a notification that belongs to the task.
""".
-spec related(erlmcp_task_store:id(), map()) -> map().
related(Id, Object) ->
    Meta = maps:get(~"_meta", Object, #{}),
    Related = #{~"taskId" => Id},
    Object#{~"_meta" => Meta#{~"io.modelcontextprotocol/related-task" => Related}}.

%% Adds `resultType`, which the result of a task of a session lacks.
result(#{result := <<"{\"resultType\"", _/binary>> = Result}) -> Result;
result(#{result := <<"{", Rest/binary>>}) -> [~"{\"resultType\":\"complete\",", Rest].

%% A task in 2026-07-28, except for its result, which is encoded already.
detailed(#{status := input_required, requests := Requests} = Task) ->
    (fields(Task))#{~"inputRequests" => maps:map(fun without_id/2, Requests)};
detailed(#{status := failed, error := Refusal} = Task) ->
    Error = json:decode(iolist_to_binary(erlmcp_refusal:encode(Refusal))),
    (fields(Task))#{~"error" => Error};
detailed(Task) ->
    fields(Task).

%% Only in 2025-11-25 has the URL of an elicitation an id.
without_id(_, #{~"params" := Params} = Request) ->
    Request#{~"params" := maps:remove(~"elicitationId", Params)}.

fields(#{status := Status, ttl := Ttl} = Task) ->
    (common(Task))#{~"status" => Status, ~"ttlMs" => Ttl, ~"pollIntervalMs" => ?POLL}.

fields_2025(#{ttl := Ttl} = Task) ->
    (common(Task))#{~"status" => status(Task, '2025-11-25'), ~"ttl" => Ttl,
                    ~"pollInterval" => ?POLL}.

common(#{id := Id, created := Created, updated := Updated} = Task) ->
    maps:merge(#{~"taskId" => Id, ~"createdAt" => time(Created), ~"lastUpdatedAt" => time(Updated)},
               #{~"statusMessage" => Message || #{message := Message} <- [Task]}).

time(Milliseconds) ->
    list_to_binary(calendar:system_time_to_rfc3339(Milliseconds, [{unit, millisecond},
                                                                  {offset, "Z"}])).
