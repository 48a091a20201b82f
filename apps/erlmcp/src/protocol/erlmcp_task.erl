-module(erlmcp_task).
-moduledoc """
The rules for tasks: when a tool call becomes a task, and the operations of requests about tasks.
The rules are those of the extension `io.modelcontextprotocol/tasks` in 2026-07-28, and of the core
of 2025-11-25. Pure.

Sources: the extension's specification (SEP-2663); specification 2025-11-25, "Tasks".

Internal.
""".

-export([mode/4, operation/4, topics/3]).
-export([capability/0]).

-export_type([mode/0, operation/0]).

-doc """
The way in which a call becomes a task: at once, or when its handler returns a continuation. `ttl`
is how many milliseconds the client asks to keep the task, or `undefined` if it does not ask.
""".
-type mode() :: #{starts := at_once | on_return, ttl := non_neg_integer() | undefined}.
-type operation() :: get | update | cancel | result | list.

%% The most tasks in one subscription filter.
-define(MAX_TASKS, 1000).
%% The most bytes of a task's id. The ids of this server are shorter, so a longer one names no task.
-define(MAX_ID_BYTES, 64).

-doc "Returns the `tasks` capability of a 2025-11-25 server.".
-spec capability() -> map().
capability() ->
    #{~"list" => #{}, ~"cancel" => #{}, ~"requests" => #{~"tools" => #{~"call" => #{}}}}.

-doc """
Returns how a tool call becomes a task, or `none` if it does not. A call is refused if the tool
requires a task and the call may not become one. A call with a `task` parameter (2025-11-25) is
refused if the tool forbids tasks, or the parameter is malformed. If the server has no tasks
(`Offered` is `false`), a `task` parameter has no meaning.
""".
-spec mode(Tool :: erlmcp_definition:definition(), Params :: map(), erlmcp_engine:client(),
           Offered :: boolean()) ->
    {ok, mode() | none} | {error, erlmcp_refusal:refusal()}.
mode(#{task := Support} = Tool, Params, #{revision := Revision} = Client, _) when
    Support =/= forbidden
->
    case requested_ttl(Revision, Params, Client) of
        {ok, Ttl} -> {ok, #{starts => starts(Tool, Revision), ttl => Ttl}};
        no when Support =:= optional -> {ok, none};
        no -> {error, required(Revision)};
        {error, _} = Error -> Error
    end;
mode(_, #{~"task" := _}, #{revision := '2025-11-25'}, true) ->
    {error, no_method(~"this tool does not run as a task")};
mode(_, _, _, _) ->
    {ok, none}.

%% A client of 2025-11-25 that asks for a task gets it at once, before the handler runs.
starts(_, '2025-11-25') -> at_once;
starts(Tool, _) -> maps:get(task_starts, Tool, at_once).

requested_ttl('2026-07-28', _, Client) ->
    case declares(Client) of
        true -> {ok, undefined};
        false -> no
    end;
requested_ttl('2025-11-25', #{~"task" := #{~"ttl" := Ttl}}, _) when is_number(Ttl), Ttl >= 0 ->
    {ok, trunc(Ttl)};
requested_ttl('2025-11-25', #{~"task" := #{~"ttl" := Ttl}}, _) ->
    {error, erlmcp_params:mistyped(~"task.ttl", ~"milliseconds, 0 or more", Ttl)};
requested_ttl('2025-11-25', #{~"task" := #{}}, _) ->
    {ok, undefined};
requested_ttl('2025-11-25', #{~"task" := Task}, _) ->
    {error, erlmcp_params:mistyped(~"task", ~"an object", Task)};
requested_ttl(_, _, _) ->
    no.

declares(#{client_capabilities := Capabilities}) ->
    erlmcp_extension:client_has(erlmcp_extension:tasks(), Capabilities).

required('2026-07-28') -> undeclared();
required(_) -> no_method(~"this tool runs as a task only: call it with a task parameter").

undeclared() ->
    Extension = erlmcp_extension:tasks(),
    Required = #{~"extensions" => #{Extension => #{}}},
    erlmcp_refusal:new(protocol_error,
                       [~"the client lacks the extension ", Extension, ~", which this needs"],
                       #{code => -32021, status => 400,
                         data => #{~"requiredCapabilities" => Required}}).

no_method(Message) ->
    erlmcp_refusal:new(protocol_error, Message, #{code => -32601, status => 404}).

-doc """
Returns the operation that a request about tasks asks for, and its arguments. The revision must have
the method. The request is refused if the server has no tasks (`Offered` is `false`). So is a
request whose client does not declare the extension (2026-07-28), or whose parameters are malformed.
""".
-spec operation(Method :: binary(), Params :: map(), erlmcp_engine:client(),
                Offered :: boolean()) ->
    {ok, operation(), Arguments :: map()} | {error, erlmcp_refusal:refusal()}.
operation(_, _, _, false) ->
    {error, no_method(~"method not found: no tool of this server runs as a task")};
operation(Method, Params, #{revision := Revision} = Client, true) ->
    case Revision =/= '2026-07-28' orelse declares(Client) of
        true -> operation(Method, Params);
        false -> {error, undeclared()}
    end.

operation(~"tasks/list", #{~"cursor" := Cursor}) when is_binary(Cursor) ->
    {ok, list, #{cursor => Cursor}};
operation(~"tasks/list", #{~"cursor" := Cursor}) ->
    {error, erlmcp_params:mistyped(~"cursor", ~"a string", Cursor)};
operation(~"tasks/list", _) ->
    {ok, list, #{}};
operation(~"tasks/update", Params) ->
    maybe
        {ok, Id} ?= erlmcp_params:string(~"taskId", Params),
        true ?= is_map_key(~"inputResponses", Params)
            orelse {error, erlmcp_params:missing(~"inputResponses")},
        {ok, Responses} ?= erlmcp_params:objects(~"inputResponses", Params),
        {ok, update, #{task => Id, responses => Responses}}
    end;
operation(Method, Params) ->
    maybe
        {ok, Id} ?= erlmcp_params:string(~"taskId", Params),
        {ok, operation(Method), #{task => Id}}
    end.

operation(~"tasks/get") -> get;
operation(~"tasks/cancel") -> cancel;
operation(~"tasks/result") -> result.

-doc """
Returns the tasks of a subscription filter: the ids that are honoured, and their topics. A topic
contains the principal, so that clients are notified of tasks of their own principal only. Ids of
more than 64 bytes are left out, and so are all ids if the server has no tasks (`Offered` is
`false`). Otherwise, more than 1,000 ids are refused, and so is anything else than a list of
strings. Any ids of a client that does not declare the extension are refused, too.
""".
-spec topics(Filter :: map(), erlmcp_engine:client(), Offered :: boolean()) ->
    {ok, [binary()], [erlmcp_engine:topic()]} | {error, erlmcp_refusal:refusal()}.
topics(#{~"taskIds" := _} = Filter, #{principal := Principal} = Client, true) ->
    maybe
        true ?= declares(Client) orelse {error, undeclared()},
        {ok, Ids} ?= erlmcp_params:strings(~"taskIds", Filter),
        true ?= length(Ids) =< ?MAX_TASKS orelse {error, too_many(length(Ids))},
        Known = [binary:copy(Id) || Id <- Ids, byte_size(Id) =< ?MAX_ID_BYTES],
        {ok, Known, [{task, Principal, Id} || Id <- Known]}
    end;
topics(_, _, _) ->
    {ok, [], []}.

too_many(Count) ->
    erlmcp_refusal:new(invalid_params, ~"notifications.taskIds: too many tasks",
                       #{code => -32602, limit => ?MAX_TASKS, observed => Count}).
