-module(erlmcp_tasks).
-moduledoc """
Makes tasks of calls (`start/3`), and performs the requests about tasks (`perform/4`). Both
functions run in the processes of calls, so that a slow store keeps no connection waiting.

A task is bound to the principal that asked for it, and other principals do not find it. Its id is
random and cannot be guessed. All anonymous clients are one principal, so each of them that has the
id can use the task.

Internal.
""".

-export([open/2, store/1, now_ms/1]).
-export([start/3, perform/4]).
-export([find/3, process/2, put_process/3, delete_process/3, running/1, sweep/1]).
-export([take_over/4, end_others/2]).

-export_type([tables/0, swap/0]).

%% Milliseconds between two looks at a task that runs on another node.
-define(LOOK, 1000).
%% Milliseconds until a look at a task whose node has just gone.
-define(SOON, 200).
%% How often a waiting call looks, each 200 milliseconds, while the cluster has no majority.
-define(LOOKS, 50).
%% Milliseconds that a request waits for the cluster, and between two attempts or looks.
-define(PATIENCE, 2000).
-define(ATTEMPT, 50).
%% Milliseconds after which a client may try again what needs a majority of the cluster, or a node
%% that does not answer.
-define(RETRY, 1000).

-doc "The store of a server's tasks, and the table of the processes of tasks on this node.".
-type tables() :: {erlmcp_task_records:store(), Processes :: ets:table()}.
-doc """
Stores a record in place of that of a task whose process was lost. Returns the record as it is
stored then: with the incarnation of this node. `changed` means that another process has changed or
deleted the record, and `unavailable` that the cluster cannot be asked now. `full` has the bound
that the record would exceed.
""".
-type swap() ::
    fun((erlmcp_task_store:task()) -> {ok, erlmcp_task_store:task()}
                                      | {error, changed | {full, pos_integer()} | unavailable}).

-doc """
Opens the store of a server's tasks, and creates the table of their processes. This table, and those
of the default store, belong to the calling process, the server's supervisor.
""".
-spec open({module(), map()}, erlmcp_server_options:limits()) -> tables().
open(Store, Limits) ->
    {erlmcp_task_records:open(Store, Limits),
     ets:new(erlmcp_task_processes, [public, {read_concurrency, true}, {write_concurrency, auto}])}.

-doc "Returns the store of a server's tasks.".
-spec store(erlmcp_instance:instance()) -> erlmcp_task_records:store().
store(#{tasks := {Store, _}}) ->
    Store.

-doc "Returns the time of the store of a server's tasks, in milliseconds since 1970.".
-spec now_ms(erlmcp_instance:instance()) -> integer().
now_ms(Instance) ->
    erlmcp_task_records:now_ms(store(Instance)).

-doc """
Makes a task of a call, and returns the result that names the task. When the function returns this
result, the task is stored. The task's call starts when the calling process has ended. Returns a
refusal if the task cannot be stored, or if the cluster lets this node begin no task now. If the
store takes longer than the call may take, the call's owner is sent `deadline`
(`m:erlmcp_call_messages`). Crashes if the task's process cannot start.
""".
-spec start(erlmcp_engine:call(), erlmcp_engine:context(), erlmcp_instance:instance()) ->
    {ok, iodata()} | {error, erlmcp_refusal:refusal()}.
start(#{task := #{ttl := Ttl}, tenant := Tenant} = Call, #{principal := Principal} = Context,
      Instance) ->
    #{limits := #{task_ttl_ms := Max}} = Instance,
    Id = erlmcp_base64url:encode(crypto:strong_rand_bytes(24)),
    Now = now_ms(Instance),
    Session = session(Context, Instance),
    Rest = maps:without([task, permit, session], Call),
    Running = Rest#{id := task, context := (maps:remove(owner, Context))#{task => Id}},
    maybe
        {ok, InCluster} ?= in_cluster(Call, Context, Instance),
        Task = InCluster#{id => Id, version => 1, principal => Principal, tenant => Tenant,
                          owner => owner(Call, Context), node => node(), status => working,
                          created => Now, updated => Now, ttl => ttl(Ttl, Max),
                          requests => #{}, bytes => 0},
        {ok, Process} = start_process(Running, Task, Session, Instance),
        ok ?= open(Process, Call, Context, Instance),
        {ok, erlmcp_task_view:created(Task, Context)}
    else
        {error, Reason} -> {error, refusal(Reason)}
    end.

start_process(Running, Task, Session, Instance) ->
    erlmcp_on_demand_sup:start_child(tasks, [fun() -> Running end, Task, Session], Instance).

%% The store may take longer than a call has.
open(Process, Call, #{call := #{owner := Owner}}, Instance) ->
    erlmcp_call_messages:within(erlmcp_call:timeout(Call, Instance), Owner,
                                fun() -> erlmcp_task_process:open(Process) end).

%% The members of a task's record that a server in a cluster adds.
in_cluster(_, _, #{cluster := none}) ->
    {ok, #{}};
in_cluster(#{definition := Definition} = Call, Context, Instance) ->
    case {incarnation_to_begin_in(Instance), Definition} of
        {none, _} ->
            {error, unavailable};
        {Incarnation, #{repeatable := true}} ->
            {ok, #{incarnation => Incarnation, repeat => repeat(Call, Context)}};
        {Incarnation, _} ->
            {ok, #{incarnation => Incarnation}}
    end.

%% A node that has given up its sessions ends its incarnation, with all tasks. It waits for those of
%% servers that are drained, but for none of a server that has started again.
incarnation_to_begin_in(#{cluster := {Module, State}, key := Key}) ->
    maybe
        none ?= Module:incarnation(sessions, State),
        {ok, #{gate := Gate}} ?= erlmcp_instance:find(Key),
        false ?= erlmcp_gate:is_lame(Gate),
        none
    else
        _ -> Module:incarnation(tasks, State)
    end.

repeat(#{arguments := Arguments, input := Input}, #{name := Name} = Context) ->
    #{name => Name, arguments => Arguments, input => Input,
      context => maps:without([call, owner], Context)}.

refusal({full, Limit}) ->
    erlmcp_refusal:new(concurrent_limit_exceeded, ~"too many tasks are kept",
                       #{limit => Limit, observed => Limit + 1, retry_after_ms => ?RETRY});
refusal({too_large, Limit}) ->
    erlmcp_refusal:new(message_too_large, ~"the arguments do not fit in the record of the task",
                       #{limit => Limit});
refusal(unavailable) ->
    erlmcp_refusal:new(dependency_unavailable,
                       ~"this node cannot reach the task, or a majority of the cluster, now",
                       #{retry_after_ms => ?RETRY}).

ttl(undefined, Max) -> Max;
ttl(Wanted, Max) -> min(Wanted, Max).

%% The owner of a session on HTTP is the same on every node of a cluster. A connection on lines may
%% have several sessions, one after the other.
owner(#{session := <<Id/binary>>}, #{principal := anonymous, revision := '2025-11-25'}) ->
    {session, crypto:hash(sha256, Id)};
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
Performs a request about tasks, and returns its result or a refusal. For `tasks/result` the function
waits for the end of the task, and `Owner` is sent messages for the client that precede the result.
If any other request takes longer than `call_timeout_ms`, `Owner` is sent `deadline`.
""".
-spec perform(erlmcp_engine:call(), erlmcp_engine:context(), Owner :: erlmcp_call:owner(),
              erlmcp_instance:instance()) ->
    {ok, iodata()} | {error, erlmcp_refusal:refusal()}.
perform(#{kind := {task, result}, arguments := #{task := Id}, tenant := Tenant}, Context, Owner,
        Instance) ->
    case patiently(fun(_) -> find(Id, Context, Instance) end, Tenant, Instance) of
        {ok, Task} -> await(Task, Context, Owner, Instance);
        {error, _} = Refused -> Refused
    end;
perform(#{kind := {task, Operation}, tenant := Tenant} = Call, Context, Owner, Instance) ->
    #{limits := #{call_timeout_ms := Timeout}} = Instance,
    Owned = erlmcp_call_report:owned(Owner, Context),
    erlmcp_call_messages:within(Timeout, Owner, fun() ->
        patiently(fun(Attempt) -> operate(Operation, Attempt, Call, Owned, Instance) end, Tenant,
                  Instance)
    end).

%% A request waits while the cluster elects a leader, or has lost the node of its task, and is
%% attempted again. All of these requests may be: a task is cancelled once, and each of its requests
%% is answered once. A node without a lease does not wait: the majority may be elsewhere.
patiently(Do, _, #{cluster := none}) ->
    Do(first);
patiently(Do, Tenant, Instance) ->
    Until = erlmcp_clock:now_ms() + ?PATIENCE,
    case Do(first) of
        {error, Refusal} = Refused ->
            maybe
                true ?= may_wait(Refusal, Instance),
                {ok, Permit} ?= permit(Tenant, Instance),
                try
                    again(Do, Until, Instance)
                after
                    erlmcp_gate:leave(Permit)
                end
            else
                false -> Refused;
                {refuse, Full} -> {error, Full}
            end;
        Done ->
            Done
    end.

may_wait(Refusal, #{cluster := {Module, State}}) ->
    erlmcp_refusal:name(Refusal) =:= dependency_unavailable
        andalso is_integer(Module:incarnation(tasks, State)).

%% Few calls wait, so no other has the gate in its part of the instance.
permit(Tenant, #{key := Key}) ->
    {ok, #{gate := Gate}} = erlmcp_instance:find(Key),
    erlmcp_gate:wait_for_cluster(Tenant, Gate).

again(Do, Until, Instance) ->
    ok = timer:sleep(?ATTEMPT),
    case Do(again) of
        {error, Refusal} = Refused ->
            case erlmcp_clock:now_ms() < Until andalso may_wait(Refusal, Instance) of
                true -> again(Do, Until, Instance);
                false -> Refused
            end;
        Done ->
            Done
    end.

%% Waits for the end of a task, and returns the answer that the task's own call would have had.
%% Meanwhile the task's requests to the client go out on the stream of the waiting call, and their
%% answers go to the task. The waiting call has no deadline except the task's own. It ends with its
%% owner, or when its client cancels it; the task does not end with it.
await(#{id := Id} = Task, Context, Owner, Instance) ->
    case {erlmcp_task_view:is_over(Task), process_of(Task, Instance)} of
        {true, _} ->
            erlmcp_task_view:outcome(Task);
        {false, {ok, Process}} ->
            ok = wait(Id, Process, Context, Owner, Instance),
            await_next(Id, Context, Owner, Instance, ?LOOKS);
        {false, error} ->
            ok = look_later(Task),
            await_next(Id, Context, Owner, Instance, ?LOOKS)
    end.

%% A call that waits also waits for a cluster that elects a leader.
await_next(Id, Context, Owner, Instance, Looks) ->
    case find(Id, Context, Instance) of
        {ok, Task} ->
            await(Task, Context, Owner, Instance);
        {error, Refusal} = Refused ->
            case erlmcp_refusal:name(Refusal) of
                dependency_unavailable when Looks > 0 ->
                    ok = timer:sleep(?SOON),
                    await_next(Id, Context, Owner, Instance, Looks - 1);
                _ ->
                    Refused
            end
    end.

%% If the task runs on this node, its process has just ended, or was killed and the store cannot
%% record that now. In a cluster, another node may be about to take the task over.
look_later(#{process := _}) -> timer:sleep(?SOON);
look_later(#{node := Node}) when Node =:= node() -> timer:sleep(?ATTEMPT);
look_later(_) -> timer:sleep(?LOOK).

%% Waits until a task's process has ended. A process on another node may be lost without a sign, and
%% another one runs the task then.
wait(Id, Process, Context, Owner, #{limits := Limits} = Instance) ->
    {Look, Window} = case node(Process) of
        Node when Node =:= node() -> {infinity, none};
        _ -> {?LOOK, erlmcp_notification_window:new(Limits)}
    end,
    Monitor = monitor(process, Process),
    ok = erlmcp_task_process:wait(Process),
    waiting(#{}, #{id => Id, process => Process, context => Context, owner => Owner,
                   monitor => Monitor, look => Look, window => Window, instance => Instance}).

waiting(Sent, #{id := Id, process := Process, context := Context, owner := Owner,
                monitor := Monitor, look := Look, window := Window} = Wait) ->
    receive
        {'DOWN', Monitor, process, _, Reason} when Look =:= infinity; Reason =:= normal ->
            ok;
        {'DOWN', Monitor, process, _, _} ->
            ok = withdraw(maps:keys(Sent), Owner),
            timer:sleep(?SOON);
        {erlmcp_task, 1, {ask, Requests}} ->
            New = maps:without(maps:values(Sent), Requests),
            Answerable = answerable(New, Context),
            Ids = #{ask(Id, Request, Owner) => Key || Key := Request <- Answerable},
            ok = case map_size(Answerable) =:= map_size(New) of
                true -> ok;
                false -> erlmcp_task_process:cannot_ask(Process)
            end,
            waiting(maps:merge(Sent, Ids), Wait);
        {erlmcp_task, 1, {answered, Keys}} ->
            %% The client has answered. The owner has forgotten the requests that were answered
            %% here, and withdraws only the others.
            Answered = [Request || Request := Key <- Sent, lists:member(Key, Keys)],
            ok = withdraw(Answered, Owner),
            waiting(maps:without(Answered, Sent), Wait);
        {erlmcp_response, Request, Outcome} when is_map_key(Request, Sent) ->
            #{Request := Key} = Sent,
            case answered(Key, Outcome, Process) of
                %% The process may ask again before it has the answer, and so the key stays.
                ok -> waiting(Sent, Wait);
                unanswered -> waiting(maps:remove(Request, Sent), Wait)
            end;
        {erlmcp_task, 1, {notification, Bytes, Process}} ->
            ok = pass_on(Bytes, Window, Owner),
            ok = erlmcp_task_process:passed_on(Process, byte_size(Bytes)),
            waiting(Sent, Wait);
        %% The task runs on another node now, and the process that ran it before stood still.
        {erlmcp_task, 1, {notification, _, Other}} when is_pid(Other) ->
            waiting(Sent, Wait);
        {erlmcp_task, 1, {notification, _, _} = Notification} ->
            ok = erlmcp_call_messages:pass_on(Owner, Notification),
            waiting(Sent, Wait)
    after Look ->
        case is_elsewhere(Wait) of
            true ->
                true = demonitor(Monitor, [flush]),
                withdraw(maps:keys(Sent), Owner);
            false ->
                waiting(Sent, Wait)
        end
    end.

%% The window of the task's call counts on the task's own node.
pass_on(Bytes, Window, Owner) ->
    case erlmcp_notification_window:room(Window) of
        {ok, _} ->
            ok = erlmcp_notification_window:sent(byte_size(Bytes), Window),
            erlmcp_call_messages:notification(Owner, Bytes, Window);
        none ->
            ok
    end.

is_elsewhere(#{id := Id, process := Process, instance := Instance}) ->
    case erlmcp_task_records:get(Id, store(Instance)) of
        {ok, #{process := Process} = Task} -> erlmcp_task_view:is_over(Task);
        {error, unavailable} -> false;
        _ -> true
    end.

%% The client that waits may be another one than the client that called the tool.
answerable(Requests, #{client_capabilities := Capabilities, revision := Revision}) ->
    erlmcp_input_requests:answerable(Requests, Capabilities, Revision).

ask(Id, #{~"method" := Method, ~"params" := Params}, Owner) ->
    erlmcp_input_rounds:send(Method, erlmcp_task_view:related(Id, Params), Id, Owner).

withdraw(Requests, Owner) ->
    lists:foreach(fun(Request) ->
        erlmcp_call_messages:withdraw(Owner, Request)
    end, Requests).

answered(Key, {ok, Answer}, Process) when is_map(Answer) ->
    case erlmcp_task_process:update(Process, #{Key => Answer}) of
        {error, unavailable} -> unanswered;
        _ -> ok
    end;
answered(_, {error, Reason}, Process) when is_atom(Reason) ->
    %% No answer: this stream cannot ask. Another one may.
    ok = erlmcp_task_process:cannot_ask(Process),
    unanswered;
answered(Key, _, Process) ->
    erlmcp_task_process:refused(Process, Key).

operate(get, _, #{arguments := #{task := Id}}, Context, Instance) ->
    maybe
        {ok, Task} ?= find(Id, Context, Instance),
        {ok, erlmcp_task_view:shown(Task, Context)}
    end;
operate(update, _, #{arguments := #{task := Id, responses := Responses}}, Context, Instance) ->
    maybe
        {ok, Task} ?= find(Id, Context, Instance),
        Update = fun(Process) -> erlmcp_task_process:update(Process, Responses) end,
        {ok, _} ?= with_process(Task, Context, Instance, Update),
        {ok, acknowledged(Context)}
    end;
operate(cancel, Attempt, #{arguments := #{task := Id}}, Context, Instance) ->
    maybe
        {ok, Task} ?= find(Id, Context, Instance),
        {ok, Answer} ?= with_process(Task, Context, Instance, fun erlmcp_task_process:cancel/1),
        cancelled(Answer, Attempt, Id, Context, Instance)
    end;
operate(list, _, #{arguments := Arguments, keys := Keys, definition := Definition} = Call,
        Context, Instance) ->
    maybe
        #{page_size := Size} = Definition,
        Owner = owner(Call, Context),
        {ok, After} ?= position(Arguments, Owner, Keys),
        {ok, {Tasks, More}} ?= list(Owner, After, Size, Instance),
        {ok, erlmcp_task_view:listed(Tasks, cursor(Tasks, More, Owner, Keys))}
    end.

list(Owner, After, Size, Instance) ->
    case erlmcp_task_records:list(Owner, After, Size, store(Instance)) of
        {error, Reason} -> {error, refusal(Reason)};
        Listed -> {ok, Listed}
    end.

%% Asks the process of a task, and returns its answer; `over` if the task has ended.
with_process(#{id := Id} = Task, Context, Instance, Ask) ->
    Answer = case erlmcp_task_view:is_over(Task) orelse process_of(Task, Instance) of
        {ok, Process} -> Ask(Process);
        _ -> over
    end,
    case Answer of
        over -> over(find(Id, Context, Instance));
        {error, unavailable} -> {error, refusal(unavailable)};
        _ -> {ok, Answer}
    end.

%% In a cluster, a process may have ended with its node, and the task has not. The end of a task may
%% not be stored yet.
over({ok, Task}) ->
    case erlmcp_task_view:is_over(Task) of
        true -> {ok, over};
        false -> {error, refusal(unavailable)}
    end;
over({error, _}) ->
    {ok, over}.

%% The process of a task, which may be on another node of the cluster.
process_of(#{process := Process}, _) when node(Process) =/= node() -> {ok, Process};
process_of(#{id := Id}, Instance) -> process(Id, Instance).

acknowledged(#{revision := Revision, call := #{server_meta := ServerMeta}}) ->
    erlmcp_result:object([], Revision, ServerMeta).

%% Cancelling a task that is over is acknowledged in 2026-07-28 and refused in 2025-11-25. If an
%% attempt before this one has failed, it may have cancelled the task.
cancelled(_, _, _, #{revision := '2026-07-28'} = Context, _) ->
    {ok, acknowledged(Context)};
cancelled({ok, Task}, _, _, Context, _) ->
    {ok, erlmcp_task_view:shown(Task, Context)};
cancelled(over, Attempt, Id, #{revision := Revision} = Context, Instance) ->
    case {find(Id, Context, Instance), Attempt} of
        {{ok, #{status := cancelled} = Task}, again} ->
            {ok, erlmcp_task_view:shown(Task, Context)};
        {{ok, Task}, _} ->
            Status = atom_to_binary(erlmcp_task_view:status(Task, Revision)),
            {error, erlmcp_params:invalid(~"taskId", [~"the task is over: ", Status])};
        {{error, _} = Refused, _} ->
            Refused
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
Finds a task of the context's principal by its id. Returns a refusal if there is none, if it has
expired, or if the store cannot be asked now. If a running task of this node has lost its process,
its failure is recorded first. A task that a node of the cluster is to take over stays as it is.
""".
-spec find(erlmcp_task_store:id(), erlmcp_engine:context(), erlmcp_instance:instance()) ->
    {ok, erlmcp_task_store:task()} | {error, erlmcp_refusal:refusal()}.
find(Id, Context, Instance) ->
    maybe
        {ok, Task} ?= found(Id, Context, Instance),
        still_running(Task, Context, Instance)
    end.

found(Id, #{principal := Principal}, Instance) ->
    case erlmcp_task_records:get(Id, store(Instance)) of
        {ok, #{principal := Principal} = Task} -> {ok, Task};
        {error, unavailable} -> {error, refusal(unavailable)};
        _ -> {error, erlmcp_params:invalid(~"taskId", ~"no such task, or it has expired")}
    end.

still_running(#{id := Id, node := Node} = Task, Context, Instance) ->
    case erlmcp_task_view:is_over(Task) orelse Node =/= node() orelse process(Id, Instance) of
        error ->
            %% In a cluster, this node may have run the task in another incarnation. Then the record
            %% stays as it is until a node takes the task over.
            _ = was_killed(Task, Instance),
            found(Id, Context, Instance);
        _ ->
            {ok, Task}
    end.

%% A task that may be repeated goes on: the cluster looks for those without a process. Such a task
%% may have none although nothing was killed: if this node has taken the task over, and did not hear
%% of that in time.
was_killed(#{repeat := _}, _) ->
    ok;
was_killed(Task, Instance) ->
    Update = fun(Lost) ->
        case erlmcp_task_records:update(Lost, store(Instance)) of
            ok -> {ok, Lost};
            {error, _} = Error -> Error
        end
    end,
    fail(lost(Task, ~"the task was lost", Instance), Update, Instance).

%% If the record was changed, another process has just ended the task.
fail(Task, Swap, Instance) ->
    maybe
        {ok, #{id := Id, principal := Principal} = Lost} ?= Swap(Task),
        Tell = fun() -> erlmcp_task_view:notifications(Lost) end,
        erlmcp_changes:task_changed({task, Principal, Id}, Tell, Instance)
    end.

lost(#{version := Version} = Task, Message, Instance) ->
    Refusal = erlmcp_refusal:new(internal_error, Message, #{code => -32603}),
    (maps:remove(repeat, Task))#{version := Version + 1, status := failed, error => Refusal,
                                 updated := now_ms(Instance), requests := #{},
                                 message => Message}.

-doc """
Takes over a task whose process was lost, for the reason in the text `Why`. If the tool is
`repeatable`, a new process runs the task again, and its time of expiry stays. Otherwise, or if no
process can start, the task fails. `Swap` stores the new record. Does nothing, and returns `ok`, if
another node has taken the task over, or if the record would exceed a bound. Returns `unavailable`
if the record cannot be written now. Exits if the new process does not answer within five seconds.
Exits, or raises `badarg`, if the server has ended.
""".
-spec take_over(erlmcp_task_store:task(), Why :: binary(), swap(), erlmcp_instance:instance()) ->
    ok | erlmcp_task_store:unavailable().
take_over(Task, Why, Swap, Instance) ->
    Taken = case call_again(Task, Instance) of
        {ok, Call} -> run_again(Call, Task, Why, Swap, Instance);
        error -> fail(lost(Task, Why, Instance), Swap, Instance)
    end,
    case Taken of
        {error, unavailable} -> Taken;
        _ -> ok
    end.

%% The call of a task, from its record and this node's definition of its tool.
call_again(#{id := Id, tenant := Tenant,
             repeat := #{name := Name, arguments := Arguments, input := Input,
                         context := Context}}, Instance) ->
    Catalog = erlmcp_published_catalog:catalog(Instance),
    case erlmcp_catalog:definition(tool, Name, Catalog) of
        {ok, #{repeatable := true} = Definition} ->
            Reference = #{server_meta => erlmcp_catalog:server_meta(Catalog)},
            {ok, #{id => task, kind => tool, definition => Definition, arguments => Arguments,
                   context => Context#{task => Id, call => Reference}, input => Input,
                   keys => erlmcp_catalog:keys(Catalog), tenant => Tenant,
                   arrival => erlmcp_meter:arrived(0)}};
        _ ->
            error
    end;
call_again(_, _) ->
    error.

run_again(Call, #{version := Version} = Task, Why, Swap, Instance) ->
    Again = Task#{version := Version + 1, updated := now_ms(Instance),
                  node := node(), status := working, requests := #{},
                  message => <<"it runs again: ", Why/binary>>},
    case start_process(Call, Again, none, Instance) of
        {ok, Process} ->
            erlmcp_task_process:take_over(Process, Swap);
        %% OTP logs why.
        {error, _} ->
            fail(lost(Task, <<Why/binary, ", and it cannot run again">>, Instance), Swap, Instance)
    end.

-doc """
Tells those task processes of this node to end whose tasks' records are of incarnations other than
`Incarnation`. Does not wait for their ends. Raises `badarg` if the server has ended.
""".
-spec end_others(Incarnation :: pos_integer(), erlmcp_instance:instance()) -> ok.
end_others(Incarnation, #{tasks := {_, Processes}}) ->
    %% The cluster has declared the others dead, and has taken their tasks over or is about to.
    lists:foreach(fun({_, Process}) -> erlmcp_task_process:end_other(Process, Incarnation) end,
                  ets:tab2list(Processes)).

-doc """
Fails the tasks whose processes were killed and which must not be repeated. Removes the sessions'
subscriptions to all tasks whose processes were killed. Lets the store delete the tasks that have
expired. Raises `badarg` if the server has ended.
""".
-spec sweep(erlmcp_instance:instance()) -> ok.
sweep(#{tasks := {Store, Processes}} = Instance) ->
    %% Clients may wait for the notifications of tasks that fail.
    Killed = [Row || {_, Process} = Row <- ets:tab2list(Processes), not is_process_alive(Process)],
    lists:foreach(fun({Id, Process}) ->
        _ = case erlmcp_task_records:get(Id, Store) of
            {ok, Task} -> erlmcp_task_view:is_over(Task) orelse was_killed(Task, Instance);
            _ -> ok
        end,
        ok = erlmcp_subscriptions:remove_task(Id, erlmcp_instance:subscriptions(Instance)),
        ok = delete_process(Id, Process, Instance)
    end, Killed),
    erlmcp_task_records:sweep(erlmcp_task_records:now_ms(Store), Store).

-doc """
Returns the process of a task, or `error` if the task does not run on this node. Raises `badarg` if
the server has ended.
""".
-spec process(erlmcp_task_store:id(), erlmcp_instance:instance()) -> {ok, pid()} | error.
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

-doc """
Returns how many tasks of a running server run on this node. A task whose process was killed counts
until the next sweep (`sweep/1`).
""".
-spec running(erlmcp_instance:instance()) -> non_neg_integer().
running(#{tasks := {_, Processes}}) ->
    ets:info(Processes, size).

-doc "Records the process of a task, in place of the one before.".
-spec put_process(erlmcp_task_store:id(), pid(), erlmcp_instance:instance()) -> ok.
put_process(Id, Process, #{tasks := {_, Processes}}) ->
    true = ets:insert(Processes, {Id, Process}),
    ok.

-doc "Deletes the record of a task's process, unless the task has another process now.".
-spec delete_process(erlmcp_task_store:id(), pid(), erlmcp_instance:instance()) -> ok.
delete_process(Id, Process, #{tasks := {_, Processes}}) ->
    true = ets:delete_object(Processes, {Id, Process}),
    ok.
