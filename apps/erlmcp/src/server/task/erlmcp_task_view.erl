-module(erlmcp_task_view).
-moduledoc """
A task as clients are shown it. Pure. 2026-07-28 has the outcome in the task itself, and calls only
a JSON-RPC error a failure; in 2025-11-25 the outcome is asked for by `tasks/result`, and a result
that is an error is a failure too. A client may be shown a task that one of the other revision made.

Internal.
""".

-export([created/2, shown/2, listed/2, notifications/1, status/2, is_over/1]).
-export([outcome/1, related/2]).

%% Milliseconds between two looks at a task that clients are asked to keep to.
-define(POLL, 1000).

-doc "Returns the result of the call that became a task.".
-spec created(erlmcp_task_store:task(), erlmcp_engine:context()) -> iodata().
created(Task, #{revision := '2026-07-28' = Revision, call := #{server_meta := ServerMeta}}) ->
    erlmcp_result:object(task, maps:to_list(fields(Task)), Revision, ServerMeta);
created(Task, _) ->
    json:encode(#{~"task" => fields_2025(Task)}).

-doc "Returns the result of a request that asks for a task.".
-spec shown(erlmcp_task_store:task(), erlmcp_engine:context()) -> iodata().
shown(Task, #{revision := '2026-07-28' = Revision, call := #{server_meta := ServerMeta}}) ->
    Result = [{~"result", {encoded, result(Task)}} || is_map_key(result, Task)],
    erlmcp_result:object(maps:to_list(detailed(Task)) ++ Result, Revision, ServerMeta);
shown(Task, _) ->
    json:encode(fields_2025(Task)).

-doc "Returns the result of a list, with the cursor of the next page or without.".
-spec listed([erlmcp_task_store:task()], Cursor :: binary() | none) -> iodata().
listed(Tasks, Cursor) ->
    json:encode(maps:merge(#{~"tasks" => [fields_2025(Task) || Task <- Tasks]},
                           #{~"nextCursor" => Cursor || Cursor =/= none})).

-doc "Returns what sessions, and what stateless subscriptions are told of a change.".
-spec notifications(erlmcp_task_store:task()) ->
    {{Method :: binary(), map()}, {Method :: binary(), map()}}.
notifications(Task) ->
    Result = #{~"result" => json:decode(iolist_to_binary(result(Task)))
               || is_map_key(result, Task)},
    {{~"notifications/tasks/status", fields_2025(Task)},
     {~"notifications/tasks", maps:merge(detailed(Task), Result)}}.

-doc "Returns the status of a task as a client of a revision calls it.".
-spec status(erlmcp_task_store:task(), erlmcp_revision:revision()) -> erlmcp_task_store:status().
status(#{status := completed, is_error := true}, '2025-11-25') -> failed;
status(#{status := Status}, _) -> Status.

-doc "Returns `true` if a task has ended, and will not change any more.".
-spec is_over(erlmcp_task_store:task()) -> boolean().
is_over(#{status := Status}) ->
    Status =/= working andalso Status =/= input_required.

-doc """
Returns the answer to `tasks/result` when a task is over: what its call would have been answered.
""".
-spec outcome(erlmcp_task_store:task()) -> {ok, iodata()} | {error, erlmcp_refusal:refusal()}.
outcome(#{status := completed, id := Id, result := Result}) ->
    {ok, json:encode(related(Id, json:decode(Result)))};
outcome(#{status := failed, error := Refusal}) ->
    {error, Refusal};
outcome(#{status := cancelled}) ->
    {error, erlmcp_refusal:new(protocol_error, ~"the task was cancelled", #{code => -32603})}.

-doc "Returns a result, or parameters, with the task that they belong to.".
-spec related(erlmcp_task_store:id(), map()) -> map().
related(Id, Object) ->
    Meta = maps:get(~"_meta", Object, #{}),
    Related = #{~"taskId" => Id},
    Object#{~"_meta" => Meta#{~"io.modelcontextprotocol/related-task" => Related}}.

%% Of a task that a session asked for it does not say what it is.
result(#{result := <<"{\"resultType\"", _/binary>> = Result}) -> Result;
result(#{result := <<"{", Rest/binary>>}) -> [~"{\"resultType\":\"complete\",", Rest].

%% But for the result, which is encoded.
detailed(#{status := input_required, requests := Requests} = Task) ->
    (fields(Task))#{~"inputRequests" => Requests};
detailed(#{status := failed, error := Refusal} = Task) ->
    Error = json:decode(iolist_to_binary(erlmcp_refusal:encode(Refusal))),
    (fields(Task))#{~"error" => Error};
detailed(Task) ->
    fields(Task).

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
