-module(erlmcp_tasks).
-moduledoc """
Makes tasks of calls, and performs the requests about tasks. This runs in the processes of calls, so
that a slow store keeps no connection waiting.

A task is bound to the principal that asked for it, and other principals do not find it. Its id is
random and cannot be guessed. If all clients are anonymous, every client that has the id can use the
task.

Internal.
""".

-export([open/2, store/1]).
-export([start/3, perform/4]).
-export([find/3, process/2, put_process/3, delete_process/2, running/1, sweep/1]).

-export_type([tables/0]).

%% Milliseconds between two looks at a task that runs on another node.
-define(LOOK, 1000).

-doc "The store of a server's tasks, and the table of the processes of tasks on this node.".
-type tables() :: {erlmcp_task_records:store(), Processes :: ets:table()}.

-doc """
Opens the store of a server's tasks, and creates the table of their processes. Both belong to the
calling process, the server's supervisor.
""".
-spec open({module(), map()}, erlmcp_server_options:limits()) -> tables().
open(Store, Limits) ->
    {erlmcp_task_records:open(Store, Limits),
     ets:new(erlmcp_task_processes, [public, {read_concurrency, true}, {write_concurrency, auto}])}.

-doc "Returns the store of a server's tasks.".
-spec store(erlmcp_instance:of_calls()) -> erlmcp_task_records:store().
store(#{tasks := {Store, _}}) ->
    Store.

-doc """
Makes a task of a call, and returns the result that names the task, or a refusal if no more tasks
can be stored. The task is stored when this returns, and its call starts when the calling process
has ended.
""".
-spec start(erlmcp_engine:call(), erlmcp_engine:context(), erlmcp_instance:of_calls()) ->
    {ok, iodata()} | {error, erlmcp_refusal:refusal()}.
start(#{task := #{ttl := Ttl}, tenant := Tenant} = Call, #{principal := Principal} = Context,
      Instance) ->
    #{limits := #{task_ttl_ms := Max}} = Instance,
    Id = erlmcp_base64url:encode(crypto:strong_rand_bytes(24)),
    Now = erlang:system_time(millisecond),
    Session = session(Context, Instance),
    Task = #{id => Id, version => 1, principal => Principal, tenant => Tenant,
             owner => owner(Call, Context), node => node(), status => working,
             created => Now, updated => Now, ttl => ttl(Ttl, Max), requests => #{}, bytes => 0},
    Rest = maps:without([task, permit, session], Call),
    Running = Rest#{id := task, context := (maps:remove(owner, Context))#{task => Id}},
    {ok, Process} = erlmcp_on_demand_sup:start_child(tasks, [fun() -> Running end, Task, Session],
                                                     Instance),
    case erlmcp_task_process:open(Process) of
        ok ->
            {ok, erlmcp_task_view:created(Task, Context)};
        {error, {full, Limit}} ->
            {error, erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many tasks are kept",
                                       #{limit => Limit, observed => Limit + 1,
                                         retry_after_ms => 1000})}
    end.

ttl(undefined, Max) -> Max;
ttl(Wanted, Max) -> min(Wanted, Max).

%% The process of a session, or the connection on lines that has it, owns the session's calls. A
%% connection may have several sessions, one after the other.
owner(Call, #{principal := anonymous, revision := '2025-11-25', call := #{owner := {Pid, _}}}) ->
    {session, {Pid, maps:get(session, Call, 1)}};
owner(_, #{principal := Principal}) ->
    {principal, Principal}.

%% The session that gets notifications of the task's changes.
session(#{revision := '2026-07-28'}, _) ->
    none;
session(#{call := #{owner := {Session, _}}}, Instance) ->
    erlmcp_subscriptions:session(Session, erlmcp_instance:subscriptions(Instance)).

-doc """
Performs a request about tasks, and returns its result or a refusal. For `tasks/result` it waits for
the end of the task. `Owner` is sent messages for the client that precede the result.
""".
-spec perform(erlmcp_engine:call(), erlmcp_engine:context(), Owner :: erlmcp_call:owner(),
              erlmcp_instance:of_calls()) ->
    {ok, iodata()} | {error, erlmcp_refusal:refusal()}.
perform(#{kind := {task, result}, arguments := #{task := Id}}, Context, Owner, Instance) ->
    await(Id, Context, Owner, Instance);
perform(#{kind := {task, Operation}} = Call, Context, Owner, Instance) ->
    #{limits := #{call_timeout_ms := Timeout}} = Instance,
    erlmcp_call_messages:within(Timeout, Owner, fun() ->
        operate(Operation, Call, erlmcp_call_report:owned(Owner, Context), Instance)
    end).

%% Waits for the end of a task, and returns the answer that the task's own call would have had.
%% Meanwhile the task's requests to the client go out on the stream of the waiting call, and their
%% answers go to the task. The waiting call has no deadline except the task's own. It ends with its
%% owner, or when its client cancels it; the task does not end with it.
await(Id, Context, Owner, Instance) ->
    maybe
        {ok, Task} ?= find(Id, Context, Instance),
        case {erlmcp_task_view:is_over(Task), process(Id, Instance)} of
            {true, _} ->
                erlmcp_task_view:outcome(Task);
            {false, {ok, Process}} ->
                Monitor = monitor(process, Process),
                ok = erlmcp_task_process:wait(Process),
                ok = wait(Id, Owner, Process, Monitor, #{}),
                await(Id, Context, Owner, Instance);
            {false, error} ->
                ok = look_later(Task),
                await(Id, Context, Owner, Instance)
        end
    end.

%% If the task runs on this node, its process has just ended, and there is no need to wait.
look_later(#{node := Node}) when Node =:= node() -> ok;
look_later(_) -> timer:sleep(?LOOK).

wait(Id, Owner, Process, Monitor, Sent) ->
    receive
        {'DOWN', Monitor, process, _, _} ->
            ok;
        {erlmcp_task, {ask, Requests}} ->
            New = maps:without(maps:values(Sent), Requests),
            Ids = #{ask(Id, Request, Owner) => Key || Key := Request <- New},
            wait(Id, Owner, Process, Monitor, maps:merge(Sent, Ids));
        {erlmcp_task, {answered, Keys}} ->
            %% The client has answered on another stream.
            Answered = [Request || Request := Key <- Sent, lists:member(Key, Keys)],
            ok = withdraw(Answered, Owner),
            wait(Id, Owner, Process, Monitor, maps:without(Answered, Sent));
        {erlmcp_response, Request, Outcome} when is_map_key(Request, Sent) ->
            {Key, Rest} = maps:take(Request, Sent),
            ok = answered(Key, Outcome, Process),
            wait(Id, Owner, Process, Monitor, Rest);
        {erlmcp_task, {notification, _, _} = Notification} ->
            ok = erlmcp_call_messages:pass_on(Owner, Notification),
            wait(Id, Owner, Process, Monitor, Sent)
    end.

ask(Id, #{~"method" := Method, ~"params" := Params}, Owner) ->
    erlmcp_input_rounds:send(Method, erlmcp_task_view:related(Id, Params), Id, Owner).

withdraw(Requests, Owner) ->
    lists:foreach(fun(Request) ->
        erlmcp_call_messages:withdraw(Owner, Request)
    end, Requests).

answered(Key, {ok, Answer}, Process) when is_map(Answer) ->
    _ = erlmcp_task_process:update(Process, #{Key => Answer}),
    ok;
answered(_, {error, Reason}, _) when is_atom(Reason) ->
    %% No answer: this stream cannot ask. Another one may.
    ok;
answered(Key, _, Process) ->
    erlmcp_task_process:refused(Process, Key).

operate(get, #{arguments := #{task := Id}}, Context, Instance) ->
    maybe
        {ok, Task} ?= find(Id, Context, Instance),
        {ok, erlmcp_task_view:shown(Task, Context)}
    end;
operate(update, #{arguments := #{task := Id, responses := Responses}}, Context, Instance) ->
    maybe
        {ok, _} ?= find(Id, Context, Instance),
        _ = with_process(Id, Instance, fun(Process) ->
            erlmcp_task_process:update(Process, Responses)
        end),
        {ok, acknowledged(Context)}
    end;
operate(cancel, #{arguments := #{task := Id}}, Context, Instance) ->
    maybe
        {ok, _} ?= find(Id, Context, Instance),
        cancelled(with_process(Id, Instance, fun erlmcp_task_process:cancel/1), Id, Context,
                  Instance)
    end;
operate(list, #{arguments := Arguments, keys := Keys, definition := Definition} = Call, Context,
        Instance) ->
    maybe
        #{page_size := Size} = Definition,
        Owner = owner(Call, Context),
        {ok, After} ?= position(Arguments, Owner, Keys),
        {Tasks, More} = erlmcp_task_records:list(Owner, After, Size, store(Instance)),
        {ok, erlmcp_task_view:listed(Tasks, cursor(Tasks, More, Owner, Keys))}
    end.

with_process(Id, Instance, Do) ->
    case process(Id, Instance) of
        {ok, Process} -> Do(Process);
        error -> over
    end.

acknowledged(#{revision := Revision, call := #{server_meta := ServerMeta}}) ->
    erlmcp_result:object([], Revision, ServerMeta).

%% Cancelling a task that is over is acknowledged in 2026-07-28 and refused in 2025-11-25.
cancelled(_, _, #{revision := '2026-07-28'} = Context, _) ->
    {ok, acknowledged(Context)};
cancelled({ok, Task}, _, Context, _) ->
    {ok, erlmcp_task_view:shown(Task, Context)};
cancelled(over, Id, #{revision := Revision} = Context, Instance) ->
    maybe
        {ok, Task} ?= find(Id, Context, Instance),
        Status = atom_to_binary(erlmcp_task_view:status(Task, Revision)),
        {error, erlmcp_params:invalid(~"taskId", [~"the task is over: ", Status])}
    end.

position(#{cursor := Cursor}, Owner, Keys) ->
    case erlmcp_sealed_state:open(Cursor, bound(Owner), Keys) of
        {ok, <<Created:64, Id/binary>>} -> {ok, {Created, Id}};
        error -> {error, erlmcp_params:invalid(~"cursor", ~"not one that this server gave")}
    end;
position(_, _, _) ->
    {ok, first}.

cursor(_, false, _, _) ->
    none;
cursor(Tasks, true, Owner, Keys) ->
    #{id := Id, created := Created} = lists:last(Tasks),
    erlmcp_sealed_state:seal(<<Created:64, Id/binary>>, bound(Owner), Keys).

%% A cursor is bound to the list and its owner.
bound(Owner) ->
    term_to_binary({~"tasks/list", Owner}, [deterministic]).

-doc """
Finds a task of the context's principal by its id. Returns a refusal if there is none, or it has
expired. If the task should run on this node and has no process, its process was killed: the task
fails now.
""".
-spec find(erlmcp_task_store:id(), erlmcp_engine:context(), erlmcp_instance:of_calls()) ->
    {ok, erlmcp_task_store:task()} | {error, erlmcp_refusal:refusal()}.
find(Id, #{principal := Principal} = Context, Instance) ->
    case erlmcp_task_records:get(Id, store(Instance)) of
        {ok, #{principal := Principal} = Task} -> still_running(Task, Context, Instance);
        _ -> {error, erlmcp_params:invalid(~"taskId", ~"no such task, or it has expired")}
    end.

still_running(#{id := Id, node := Node} = Task, Context, Instance) ->
    case erlmcp_task_view:is_over(Task) orelse Node =/= node() orelse process(Id, Instance) of
        error ->
            ok = lost(Task, Instance),
            find(Id, Context, Instance);
        _ ->
            {ok, Task}
    end.

lost(#{id := Id, principal := Principal, version := Version} = Task, Instance) ->
    Refusal = erlmcp_refusal:new(internal_error, ~"the task was lost", #{code => -32603}),
    Lost = Task#{version := Version + 1, updated := erlang:system_time(millisecond),
                 status := failed, error => Refusal, requests := #{},
                 message => erlmcp_refusal:message(Refusal)},
    case erlmcp_task_records:update(Lost, store(Instance)) of
        ok ->
            Tell = fun() -> erlmcp_task_view:notifications(Lost) end,
            erlmcp_changes:task_changed({task, Principal, Id}, Tell, Instance);
        %% Another process has just ended the task.
        {error, _} ->
            ok
    end.

-doc """
Fails the tasks whose processes were killed, since clients may wait for their notifications. Lets
the store delete the tasks that have expired.
""".
-spec sweep(erlmcp_instance:of_calls()) -> ok.
sweep(#{tasks := {Store, Processes}} = Instance) ->
    Killed = [Id || {Id, Process} <- ets:tab2list(Processes), not is_process_alive(Process)],
    lists:foreach(fun(Id) ->
        case erlmcp_task_records:get(Id, Store) of
            {ok, Task} -> erlmcp_task_view:is_over(Task) orelse lost(Task, Instance);
            error -> ok
        end,
        ok = erlmcp_subscriptions:remove_task(Id, erlmcp_instance:subscriptions(Instance)),
        ok = delete_process(Id, Instance)
    end, Killed),
    erlmcp_task_records:sweep(erlang:system_time(millisecond), Store).

-doc "Returns the process of a task, or `error` if the task does not run on this node.".
-spec process(erlmcp_task_store:id(), erlmcp_instance:of_calls()) -> {ok, pid()} | error.
process(Id, #{tasks := {_, Processes}}) ->
    case ets:lookup(Processes, Id) of
        [{_, Process}] ->
            %% A process that was killed could not delete its row; the sweep deletes it.
            case is_process_alive(Process) of
                true -> {ok, Process};
                false -> error
            end;
        [] ->
            error
    end.

-doc "Returns how many tasks run.".
-spec running(erlmcp_instance:of_calls()) -> non_neg_integer().
running(#{tasks := {_, Processes}}) ->
    ets:info(Processes, size).

-doc "Stores the process of a task.".
-spec put_process(erlmcp_task_store:id(), pid(), erlmcp_instance:of_calls()) -> ok.
put_process(Id, Process, #{tasks := {_, Processes}}) ->
    true = ets:insert(Processes, {Id, Process}),
    ok.

-doc "Deletes the process of a task.".
-spec delete_process(erlmcp_task_store:id(), erlmcp_instance:of_calls()) -> ok.
delete_process(Id, #{tasks := {_, Processes}}) ->
    true = ets:delete(Processes, Id),
    ok.
