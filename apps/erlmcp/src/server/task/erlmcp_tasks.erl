-module(erlmcp_tasks).
-moduledoc """
The tasks of a server: how a call becomes one, and what the requests about them do. Called by the
processes of calls, so that a store that waits keeps no connection waiting.

A task is bound to the principal that asked for it: for others it is not there. Its id says nothing
and cannot be guessed; where nobody is told from anybody, who knows it may use it.
""".

-export([open/2, store/1]).
-export([start/3, perform/4]).
-export([find/3, keeper/2, put_keeper/3, delete_keeper/2, sweep/1]).

-export_type([tables/0]).

-doc "Where the tasks of an instance are: their records, and the keepers of those that run here.".
-type tables() :: {erlmcp_task_store:handle(), Keepers :: ets:table()}.

-doc "Opens the tables; they belong to the calling process, the server's supervisor.".
-spec open({module(), map()}, erlmcp_server_options:limits()) -> tables().
open(Store, Limits) ->
    {erlmcp_task_store:open(Store, Limits),
     ets:new(erlmcp_task_keepers, [public, {read_concurrency, true}, {write_concurrency, auto}])}.

-doc "The store.".
-spec store(tables()) -> erlmcp_task_store:handle().
store({Store, _}) ->
    Store.

-doc """
Goes on with a call as a task, and gives the result that says so. The task is there when this
returns.
""".
-spec start(erlmcp_engine:call(), erlmcp_engine:context(), erlmcp_instance:of_calls()) ->
    {ok, iodata()} | {error, erlmcp_refusal:refusal()}.
start(#{task := #{ttl := Ttl}, flow := Flow} = Call, #{principal := Principal} = Context,
      Instance) ->
    #{limits := #{task_ttl_ms := Max}} = Instance,
    Id = erlmcp_base64url:encode(crypto:strong_rand_bytes(24)),
    Now = erlang:system_time(millisecond),
    Session = session(Context, Instance),
    Task = #{id => Id, version => 1, principal => Principal, flow => Flow,
             owner => owner(Call, Context), node => node(), status => working,
             created => Now, updated => Now, ttl => ttl(Ttl, Max), requests => #{}, bytes => 0},
    Rest = maps:without([task, ticket, session], Call),
    Running = Rest#{id := task, context := (maps:remove(owner, Context))#{task => Id}},
    {ok, Keeper} = supervisor:start_child(erlmcp_instance:supervisor(tasks, Instance),
                                          [fun() -> Running end, Task, Session]),
    case erlmcp_task_process:open(Keeper) of
        ok ->
            {ok, erlmcp_task_view:created(Task, Context)};
        {error, {full, Limit}} ->
            {error, erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many tasks are kept",
                                       #{limit => Limit, observed => Limit + 1,
                                         retry_after_ms => 1000})}
    end.

ttl(undefined, Max) -> Max;
ttl(Wanted, Max) -> min(Wanted, Max).

%% The process that a session is, or is in, owns the session's calls. A connection may have several,
%% one after the other.
owner(Call, #{principal := anonymous, revision := '2025-11-25', owner := {Pid, _}}) ->
    {session, {Pid, maps:get(session, Call, 1)}};
owner(_, #{principal := Principal}) ->
    {principal, Principal}.

%% Who is told of changes.
session(#{revision := '2026-07-28'}, _) ->
    none;
session(#{owner := {Session, _}}, Instance) ->
    erlmcp_subscriptions:session(Session, erlmcp_instance:subscriptions(Instance)).

-doc "The result of a request about tasks. `Owner` is sent what goes to the client before it.".
-spec perform(erlmcp_engine:call(), erlmcp_engine:context(), erlmcp_call:owner(),
              erlmcp_instance:of_calls()) ->
    {ok, iodata()} | {error, erlmcp_refusal:refusal()}.
perform(#{kind := {task, result}, arguments := #{task := Id}}, Context, Owner, Instance) ->
    erlmcp_task_waiter:await(Id, Context, Owner, Instance);
perform(#{kind := {task, Operation}} = Call, Context, Owner, Instance) ->
    #{limits := #{call_timeout_ms := Timeout}} = Instance,
    erlmcp_call:within(Timeout, Owner, fun() ->
        operate(Operation, Call, Context#{owner => Owner}, Instance)
    end).

operate(get, #{arguments := #{task := Id}}, Context, Instance) ->
    maybe
        {ok, Task} ?= find(Id, Context, Instance),
        {ok, erlmcp_task_view:shown(Task, Context)}
    end;
operate(update, #{arguments := #{task := Id, responses := Responses}}, Context, Instance) ->
    maybe
        {ok, _} ?= find(Id, Context, Instance),
        _ = with_keeper(Id, Instance, fun(Keeper) ->
            erlmcp_task_process:update(Keeper, Responses)
        end),
        {ok, acknowledged(Context)}
    end;
operate(cancel, #{arguments := #{task := Id}}, Context, Instance) ->
    maybe
        {ok, _} ?= find(Id, Context, Instance),
        cancelled(with_keeper(Id, Instance, fun erlmcp_task_process:cancel/1), Id, Context,
                  Instance)
    end;
operate(list, #{arguments := Arguments, keys := Keys, definition := Definition} = Call, Context,
        Instance) ->
    maybe
        #{page_size := Size} = Definition,
        Owner = owner(Call, Context),
        {ok, After} ?= place(Arguments, Owner, Keys),
        {Tasks, More} = erlmcp_task_store:list(Owner, After, Size,
                                               erlmcp_instance:task_store(Instance)),
        {ok, erlmcp_task_view:listed(Tasks, cursor(Tasks, More, Owner, Keys))}
    end.

with_keeper(Id, Instance, Do) ->
    case keeper(Id, Instance) of
        {ok, Keeper} -> Do(Keeper);
        error -> over
    end.

acknowledged(#{revision := Revision, server_meta := ServerMeta}) ->
    erlmcp_result:object([], Revision, ServerMeta).

%% A task that is over is acknowledged by the one revision and refused by the other.
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

place(#{cursor := Cursor}, Owner, Keys) ->
    case erlmcp_sealed_state:open(Cursor, bound(Owner), Keys) of
        {ok, <<Created:64, Id/binary>>} -> {ok, {Created, Id}};
        error -> {error, erlmcp_params:invalid(~"cursor", ~"not one that this server gave")}
    end;
place(_, _, _) ->
    {ok, first}.

cursor(_, false, _, _) ->
    none;
cursor(Tasks, true, Owner, Keys) ->
    #{id := Id, created := Created} = lists:last(Tasks),
    erlmcp_sealed_state:seal(<<Created:64, Id/binary>>, bound(Owner), Keys).

%% What a cursor is good for.
bound(Owner) ->
    term_to_binary({~"tasks/list", Owner}, [deterministic]).

-doc """
The task of this id, if it is the principal's. One that runs here without its keeper is lost, and
has failed.
""".
-spec find(erlmcp_task_store:id(), erlmcp_engine:context(), erlmcp_instance:of_calls()) ->
    {ok, erlmcp_task_store:task()} | {error, erlmcp_refusal:refusal()}.
find(Id, #{principal := Principal} = Context, Instance) ->
    case erlmcp_task_store:get(Id, erlmcp_instance:task_store(Instance)) of
        {ok, #{principal := Principal} = Task} -> kept(Task, Context, Instance);
        _ -> {error, erlmcp_params:invalid(~"taskId", ~"no such task, or it has expired")}
    end.

kept(#{id := Id, node := Node} = Task, Context, Instance) ->
    case erlmcp_task_view:is_over(Task) orelse Node =/= node() orelse keeper(Id, Instance) of
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
    case erlmcp_task_store:update(Lost, erlmcp_instance:task_store(Instance)) of
        ok ->
            Tell = fun() -> erlmcp_task_view:notifications(Lost) end,
            erlmcp_subscriptions:publish({task, Principal, Id}, all, Tell,
                                         erlmcp_instance:subscriptions(Instance));
        %% It was just ended.
        {error, _} ->
            ok
    end.

-doc """
Ends the tasks whose keepers were killed, and could not do it themselves: their clients may wait to
be told. Has the store forget what has expired.
""".
-spec sweep(erlmcp_instance:of_calls()) -> ok.
sweep(#{tasks := {Store, Keepers}} = Instance) ->
    Killed = [Id || {Id, Keeper} <- ets:tab2list(Keepers), not is_process_alive(Keeper)],
    lists:foreach(fun(Id) ->
        case erlmcp_task_store:get(Id, Store) of
            {ok, Task} -> erlmcp_task_view:is_over(Task) orelse lost(Task, Instance);
            error -> ok
        end,
        ok = erlmcp_subscriptions:remove_task(Id, erlmcp_instance:subscriptions(Instance)),
        ok = delete_keeper(Id, Instance)
    end, Killed),
    erlmcp_task_store:sweep(erlang:system_time(millisecond), Store).

-doc "The keeper of a task that runs here.".
-spec keeper(erlmcp_task_store:id(), erlmcp_instance:of_calls()) -> {ok, pid()} | error.
keeper(Id, #{tasks := {_, Keepers}}) ->
    case ets:lookup(Keepers, Id) of
        [{_, Keeper}] ->
            %% One that was killed could not take its row with it; that is swept.
            case is_process_alive(Keeper) of
                true -> {ok, Keeper};
                false -> error
            end;
        [] ->
            error
    end.

-doc "Makes a keeper known.".
-spec put_keeper(erlmcp_task_store:id(), pid(), erlmcp_instance:of_calls()) -> ok.
put_keeper(Id, Keeper, #{tasks := {_, Keepers}}) ->
    true = ets:insert(Keepers, {Id, Keeper}),
    ok.

-doc "Forgets the keeper of a task.".
-spec delete_keeper(erlmcp_task_store:id(), erlmcp_instance:of_calls()) -> ok.
delete_keeper(Id, #{tasks := {_, Keepers}}) ->
    true = ets:delete(Keepers, Id),
    ok.
