-module(erlmcp_task_process).
-moduledoc """
The process of a running task: the owner of its call, and the writer of its record. It outlives the
connection that asked for the task. It ends when the call has ended or is cancelled, or when the
task has expired.

The record keeps the call's requests to the client until they are answered (`update/2`) or one is
refused (`refused/2`). A call of `tasks/result`, which waits for the end of the task, gets these
requests and asks its client (`wait/1`). If several calls wait, only the last one gets them.

Internal.
""".

-behaviour(gen_server).

-export([open/1, take_over/2, end_other/2]).
-export([update/2, cancel/1, wait/1, cannot_ask/1, refused/2, passed_on/2]).
-export([start_link/4]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2, format_status/1]).

%% Milliseconds after which the process ends if `open/1` was not called.
-define(UNOPENED, 5000).
%% Characters of a status message.
-define(MAX_MESSAGE, 500).
%% Milliseconds between two changes of a record in a cluster, except for the last one.
-define(PACE, 1000).
%% Milliseconds until a change is written again that the cluster did not take.
-define(AGAIN, 250).
%% Milliseconds that another node may take to answer.
-define(ANSWER, 2000).
%% More rounds than one run of a call can have (`m:erlmcp_input_rounds`).
-define(ROUNDS, 1000).

%% Messages from other processes have a version, since in a cluster these processes may be on other
%% nodes. A change that the store cannot take now is written again later, except one by `cancel/1`.
-record(state, {
    instance :: erlmcp_instance:instance(),
    %% the call to run, until it runs; in a fun, since it has keys that no log may show
    call :: fun(() -> erlmcp_engine:call()) | started,
    subject :: erlmcp_call:subject(),
    task :: erlmcp_task_store:task(),
    %% the session that asked for the task, which gets notifications of its changes
    session :: erlmcp_call:owner() | none,
    %% the monitor of the process that answers with the task; the call starts when it has ended
    creator :: undefined | reference(),
    pid :: undefined | pid(),
    %% the number of the last round of input. A run that was taken over begins with a later number
    %% than those before, whose keys a client may have answered.
    rounds :: non_neg_integer(),
    %% the names that the call has for the requests that wait for answers, and the answers so far
    names = #{} :: #{Key :: binary() => Name :: binary()},
    answers = #{} :: #{Name :: binary() => map()},
    %% the processes that wait, the last one first, since its stream is the most likely to be open,
    %% and those whose clients could not be asked in this round
    waiting = [] :: [pid()],
    unable = [] :: [pid()],
    %% the window of the notifications to the waiting processes
    window = none :: none | erlmcp_notification_window:window(),
    %% in a cluster: when the record may be written next, by `erlmcp_clock:now_ms/0`, and whether
    %% the task has changes that are not written
    next = none :: none | integer(),
    unwritten = false :: boolean()
}).

-doc """
Stores the task of `Process`, and waits for the store for as long as it takes. The task's call
starts when the calling process has ended. If the calling process has ended before the task is
stored, the task is deleted instead, and `Process` ends. If the task cannot be stored, `Process`
ends, too, and the error is that of `c:erlmcp_task_store:put/2`. Exits if `Process` has ended.
""".
-spec open(Process :: pid()) ->
    ok | {error, {full | too_large, pos_integer()}} | erlmcp_task_store:unavailable().
open(Process) ->
    gen_server:call(Process, open, infinity).

-doc """
Lets `Process` take over the task whose record it was started with, and run the task's call.
`Process` stores the record by `Swap`. If that fails, `Process` ends, and the error is that of
`t:erlmcp_tasks:swap/0`. Exits if `Process` does not answer within five seconds.
""".
-spec take_over(Process :: pid(), erlmcp_tasks:swap()) ->
    ok | {error, changed | {full, pos_integer()} | unavailable}.
take_over(Process, Swap) ->
    gen_server:call(Process, {take_over, Swap}).

-doc """
Tells `Process` to end, and to end its call, if the record of its task is of an incarnation other
than `Incarnation`. Does not wait for the end. The record stays as it is.
""".
-spec end_other(Process :: pid(), Incarnation :: pos_integer()) -> ok.
end_other(Process, Incarnation) ->
    gen_server:cast(Process, {end_other, Incarnation}).

-doc """
Answers requests of the task to its client. `Responses` has the answers by the keys of these
requests; other keys are ignored. Returns `over` if the process has ended. Returns `unavailable` if
a process of another node cannot be reached, or does not answer within two seconds. Waits for a
process of this node for as long as its store takes.
""".
-spec update(pid(), #{Key :: binary() => map()}) -> ok | over | erlmcp_task_store:unavailable().
update(Process, Responses) ->
    call(Process, {update, 1, Responses}).

-doc """
Cancels the task, and returns it. Returns `over` if the task or its process has ended before.
Returns `unavailable` if the task's record cannot be written now, or if a process of another node
does not answer. Waits as `update/2` does.
""".
-spec cancel(pid()) ->
    {ok, erlmcp_task_store:task()} | over | erlmcp_task_store:unavailable().
cancel(Process) ->
    call(Process, {cancel, 1}).

call(Process, Request) when node(Process) =:= node() ->
    try
        gen_server:call(Process, Request, infinity)
    catch
        exit:_ -> over
    end;
call(Process, Request) ->
    try gen_server:call(Process, Request, ?ANSWER) of
        unsupported -> {error, unavailable};
        Answer -> Answer
    catch
        exit:{noproc, _} -> over;
        exit:{normal, _} -> over;
        exit:_ -> {error, unavailable}
    end.

-doc """
Registers the calling process as one that waits for the end of the task. The calling process is sent
`t:erlmcp_call_messages:to_task_waiter/0` until the task's process ends. No message announces that
end, so the calling process monitors the task's process.
""".
-spec wait(pid()) -> ok.
wait(Process) ->
    gen_server:cast(Process, {wait, 1, self()}).

-doc """
Tells the task's process that the calling process, which waits (`wait/1`), cannot ask its client.
The requests go to another process that waits, if there is one whose client can be asked.
""".
-spec cannot_ask(pid()) -> ok.
cannot_ask(Process) ->
    gen_server:cast(Process, {cannot_ask, 1, self()}).

-doc """
Tells the task's call that the client has refused the request `Key`, and removes all requests of the
call from the record. Has no effect if no request with this key waits for an answer.
""".
-spec refused(pid(), Key :: binary()) -> ok.
refused(Process, Key) ->
    gen_server:cast(Process, {refused, 1, Key}).

-doc """
Tells the task's process that the calling process, on another node, has passed on, or dropped, a
notification of `Bytes` bytes.
""".
-spec passed_on(pid(), Bytes :: non_neg_integer()) -> ok.
passed_on(Process, Bytes) ->
    gen_server:cast(Process, {passed_on, 1, Bytes}).

-doc false.
-spec start_link(erlmcp_instance:instance(), fun(() -> erlmcp_engine:call()),
                 erlmcp_task_store:task(), erlmcp_call:owner() | none) -> gen_server:start_ret().
start_link(#{limits := Limits} = Instance, Call, Task, Session) ->
    %% Reports of the call pass through the process, so it has the heap bound of a call.
    gen_server:start_link(?MODULE, {Instance, Call, Task, Session},
                          [{hibernate_after, 1000},
                           {spawn_opt, [{max_heap_size, erlmcp_heap:max_of_call(Limits)}]}]).

-doc false.
init({Instance, Call, #{id := Id, version := Version} = Task, Session}) ->
    #{method := Method, target := Target} = Asked = erlmcp_call:subject(Call()),
    %% Copies, so that the whole request is not kept for as long as the task. The run of the task
    %% gets a span of its own when it starts.
    Subject = (maps:remove(span, Asked))#{id := task, method := binary:copy(Method),
                                          target := binary:copy(Target)},
    process_flag(trap_exit, true),
    #{key := Key} = Instance,
    ok = erlmcp_label:set([erlmcp_task, Method, Target], Key),
    ok = erlmcp_tasks:put_process(Id, self(), Instance),
    {ok, #state{instance = Instance, call = Call, subject = Subject, task = Task,
                session = Session, rounds = (Version - 1) * ?ROUNDS}, ?UNOPENED}.

-doc false.
handle_call(open, {Creator, _}, #state{instance = Instance, task = Given} = State) ->
    Task = with_process(Given),
    case erlmcp_task_records:put(Task, erlmcp_tasks:store(Instance)) of
        ok ->
            ok = expire(Task, Instance),
            {reply, ok, paced(State#state{task = Task, creator = monitor(process, Creator)})};
        {error, _} = Refused ->
            {stop, normal, Refused, State}
    end;
handle_call({take_over, Swap}, _, #state{task = Given, instance = Instance} = State) ->
    case Swap(with_process(Given)) of
        {ok, Task} ->
            Taken = start_call(paced(State#state{task = Task})),
            ok = expire(Task, Instance),
            ok = publish(Taken),
            {reply, ok, Taken};
        {error, _} = Error ->
            {stop, normal, Error, State}
    end;
handle_call({update, 1, Responses}, _, State) ->
    reply(ok, answered(Responses, State));
handle_call({cancel, 1}, _, #state{task = Task} = State) ->
    case erlmcp_task_view:is_over(Task) of
        %% Its end is not written yet.
        true -> {reply, over, State};
        false -> cancelled(State)
    end;
handle_call(_, _, State) ->
    {reply, unsupported, State}.

cancelled(State) ->
    Cancelled = #{status => cancelled, message => ~"cancelled by its client", requests => #{}},
    case changed(Cancelled, ending(State)) of
        {noreply, #state{unwritten = true}} ->
            {reply, {error, unavailable}, State};
        {noreply, #state{task = #{status := cancelled} = Task} = Next} ->
            {stop, normal, {ok, Task}, Next};
        %% The cluster has made the change, but did not confirm it at first.
        {stop, normal, #state{task = #{status := cancelled} = Task} = Next} ->
            {stop, normal, {ok, Task}, Next};
        {stop, normal, Next} ->
            {stop, normal, over, Next}
    end.

reply(Reply, {noreply, State}) -> {reply, Reply, State};
reply(Reply, {stop, Reason, State}) -> {stop, Reason, Reply, State}.

%% In a cluster, other nodes send their requests to the process.
with_process(#{incarnation := _} = Task) -> Task#{process => self()};
with_process(Task) -> Task.

paced(#state{task = #{incarnation := _}} = State) -> State#state{next = erlmcp_clock:now_ms()};
paced(State) -> State.

%% A task that was taken over has a part of its time left.
expire(#{created := Created, ttl := Ttl}, Instance) ->
    Left = min(Ttl, Created + Ttl - erlmcp_tasks:now_ms(Instance)),
    _ = erlang:send_after(max(0, Left), self(), expired),
    ok.

-doc false.
handle_cast({wait, 1, Pid}, #state{waiting = Waiting} = State) ->
    _ = monitor(process, Pid),
    Next = State#state{waiting = [Pid | Waiting]},
    ok = ask(Next),
    {noreply, Next};
handle_cast({cannot_ask, 1, Pid}, #state{waiting = Waiting, unable = Unable} = State) ->
    case lists:member(Pid, Waiting) of
        true ->
            Next = State#state{waiting = lists:delete(Pid, Waiting), unable = Unable ++ [Pid]},
            %% If no other process is left to try, all have been asked.
            ok = case Next of
                #state{waiting = []} -> ok;
                #state{} -> ask(Next)
            end,
            {noreply, Next};
        false ->
            {noreply, State}
    end;
handle_cast({refused, 1, Key}, #state{names = Names, pid = Pid} = State) when
    is_map_key(Key, Names)
->
    #{Key := Name} = Names,
    Message = [~"the client did not answer the request for ", Name],
    Refusal = erlmcp_refusal:new(dependency_unavailable, Message, #{code => -32603}),
    ok = erlmcp_call_messages:input(Pid, {error, Refusal}),
    changed(#{status => working, requests => #{}}, State#state{names = #{}, answers = #{}});
handle_cast({passed_on, 1, _}, #state{window = none} = State) ->
    {noreply, State};
handle_cast({passed_on, 1, Bytes}, #state{window = Window} = State) ->
    ok = erlmcp_notification_window:written(Bytes, Window),
    {noreply, State};
handle_cast({end_other, Incarnation}, #state{task = #{incarnation := Own}} = State) when
    Own =/= Incarnation
->
    {stop, normal, State};
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
%% A process that outlives its call may report late: the message of a task that has ended stays.
handle_info({erlmcp_task, {status, _}}, #state{pid = undefined} = State) ->
    {noreply, State};
handle_info({erlmcp_task, {status, Message}}, State) ->
    changed(#{message => string:slice(latest(Message), 0, ?MAX_MESSAGE)}, State);
handle_info({erlmcp_task, {notification, Bytes, Window} = Notification},
            #state{instance = Instance} = State) ->
    case waiting(State) of
        [Pid | _] ->
            ok = erlmcp_call_messages:task_notification(Pid, Notification),
            {noreply, State#state{window = Window}};
        [] ->
            ok = erlmcp_notification_window:written(byte_size(Bytes), Window),
            ok = erlmcp_subscriptions:pass_on(topic(State), Bytes,
                                              erlmcp_instance:subscriptions(Instance)),
            {noreply, State}
    end;
handle_info({erlmcp_task, {input, Pid, Requests}}, #state{pid = Pid} = State) ->
    asking(Requests, State);
handle_info({erlmcp_task, {deadline, Pid, Milliseconds}}, #state{pid = Pid} = State) ->
    #state{subject = Subject, instance = Instance} = State,
    true = exit(Pid, kill),
    over(erlmcp_call:timed_out(Pid, Milliseconds, Subject, Instance), State#state{pid = undefined});
handle_info({'EXIT', Pid, Reason}, #state{pid = Pid, subject = Subject} = Running) ->
    #state{instance = Instance} = State = Running#state{pid = undefined},
    case erlmcp_call_messages:ended(Reason) of
        {answer, Kind, Answer} -> over({reply, Kind, Answer}, State);
        _ -> over(erlmcp_call:died(Reason, Subject, Instance), State)
    end;
handle_info({'DOWN', Creator, process, _, noproc}, #state{creator = Creator} = State) ->
    {stop, normal, deleted(State)};
handle_info({'DOWN', Creator, process, _, _}, #state{creator = Creator} = State) ->
    ok = subscribe(State),
    {noreply, start_call(State)};
handle_info({'DOWN', _, process, Pid, _}, #state{waiting = Waiting, unable = Unable} = State) ->
    %% Those that could not be asked may be asked again.
    Next = State#state{waiting = lists:delete(Pid, Waiting ++ Unable), unable = []},
    ok = case {waiting(State), State#state.window} of
        {[Pid | _], none} -> ask(Next);
        {[Pid | _], Window} -> erlmcp_notification_window:forget(Window), ask(Next);
        {_, _} -> ok
    end,
    {noreply, Next};
handle_info(expired, State) ->
    {stop, normal, deleted(State)};
handle_info(write, State) ->
    written_later(State);
handle_info(timeout, #state{pid = undefined} = State) ->
    {stop, normal, State};
handle_info(_, State) ->
    {noreply, State}.

deleted(#state{task = #{id := Id}, instance = Instance} = State) ->
    ok = erlmcp_task_records:delete(Id, erlmcp_tasks:store(Instance)),
    State.

start_call(#state{instance = #{tracer := Tracer} = Instance, call = Call,
                  subject = Subject} = State) ->
    %% The run of the task ends apart from the request that asked for it.
    Arrival = erlmcp_meter:arrived(0),
    Run = erlmcp_request_span:start_task((Call())#{arrival => Arrival}, Arrival, Tracer),
    Pid = erlmcp_call:start(Run, Instance, erlmcp_task),
    Started = maps:merge(Subject, maps:with([arrival, span], Run)),
    State#state{pid = Pid, call = started, subject = Started}.

%% Returns the last of the status messages that have arrived.
latest(Message) ->
    receive
        {erlmcp_task, {status, Later}} -> latest(Later)
    after 0 ->
        Message
    end.

%% The call asks its client. Each request gets a key that the task uses once.
asking(Requests, #state{rounds = Rounds} = State) ->
    Round = integer_to_binary(Rounds + 1),
    Keyed = [{<<Name/binary, $., Round/binary>>, Name, Request} || Name := Request <- Requests],
    %% A client that could not be asked in an earlier round may answer these.
    Asking = State#state{rounds = Rounds + 1, answers = #{},
                         names = #{Key => Name || {Key, Name, _} <- Keyed},
                         waiting = waiting(State), unable = []},
    maybe
        {noreply, Next} ?= changed(#{status => input_required,
                                     requests => #{Key => Request || {Key, _, Request} <- Keyed}},
                                   Asking),
        ok = ask(Next),
        {noreply, Next}
    end.

ask(#state{task = #{status := input_required, requests := Requests}} = State) ->
    case waiting(State) of
        [Pid | _] -> erlmcp_call_messages:task_requests(Pid, Requests);
        [] -> ok
    end;
ask(_) ->
    ok.

%% A client that could not be asked may have come back to its stream.
waiting(#state{waiting = Waiting, unable = Unable}) ->
    Waiting ++ Unable.

answered(Responses, #state{names = Names, answers = Answers, task = Task, pid = Pid} = State) ->
    Accepted = maps:with(maps:keys(Names), Responses),
    ok = tell_answered(maps:keys(Accepted), State),
    All = maps:merge(Answers, #{maps:get(Key, Names) => Answer || Key := Answer <- Accepted}),
    #{requests := Requests} = Task,
    Open = maps:without(maps:keys(Accepted), Requests),
    Next = State#state{names = maps:without(maps:keys(Accepted), Names), answers = All},
    if
        map_size(Accepted) =:= 0 ->
            {noreply, State};
        map_size(Open) =:= 0 ->
            ok = erlmcp_call_messages:input(Pid, {ok, All}),
            changed(#{status => working, requests => #{}}, Next);
        true ->
            changed(#{requests => Open}, Next)
    end.

tell_answered([], _) ->
    ok;
tell_answered(Keys, State) ->
    %% Each of them may have asked before.
    lists:foreach(fun(Pid) -> erlmcp_call_messages:task_answered(Pid, Keys) end, waiting(State)).

%% The call has ended.
over({reply, ok, {Bytes, IsError}}, #state{task = Task} = State) ->
    %% The last status message of the handler does not describe the end of the task.
    Message = #{message => ~"the tool gave an error" || IsError},
    ended(Message#{status => completed, result => Bytes, is_error => IsError,
                   bytes => byte_size(Bytes)}, State#state{task = maps:remove(message, Task)});
over({reply, error, Refusal}, State) ->
    ended(failed(Refusal), State).

failed(Refusal) ->
    #{status => failed, error => Refusal, message => erlmcp_refusal:message(Refusal)}.

%% In a cluster, the process waits until its last change is written.
ended(Changes, State) ->
    case changed(Changes#{requests => #{}}, ending(State)) of
        {noreply, #state{unwritten = true} = Next} -> {noreply, Next};
        {noreply, Next} -> {stop, normal, Next};
        Stop -> Stop
    end.

%% Without what only a task that runs needs.
ending(#state{task = Task} = State) ->
    State#state{task = maps:remove(repeat, Task), names = #{}, answers = #{}}.

%% Makes a change, and writes and publishes it, in a cluster perhaps later. Ends if another process
%% has written the task's record.
changed(Changes, #state{task = Task, next = Next, unwritten = Unwritten,
                        instance = Instance} = State) ->
    Changed = maps:merge(Task, Changes#{updated => erlmcp_tasks:now_ms(Instance)}),
    case Next =:= none orelse erlmcp_task_view:is_over(Changed) of
        true ->
            write(Changed, State);
        false when Unwritten ->
            {noreply, State#state{task = Changed}};
        false ->
            case Next - erlmcp_clock:now_ms() of
                Wait when Wait > 0 -> {noreply, write_later(Wait, Changed, State)};
                _ -> write(Changed, State)
            end
    end.

%% While the task has changes that are not written, there is a timer.
write_later(_, Changed, #state{unwritten = true} = State) ->
    State#state{task = Changed};
write_later(Milliseconds, Changed, State) ->
    _ = erlang:send_after(Milliseconds, self(), write),
    State#state{task = Changed, unwritten = true}.

written_later(#state{unwritten = false} = State) ->
    {noreply, State};
written_later(#state{task = Task} = State) ->
    case {write(Task, State#state{unwritten = false}), erlmcp_task_view:is_over(Task)} of
        {{noreply, #state{unwritten = false} = Next}, true} -> {stop, normal, Next};
        {Written, _} -> Written
    end.

write(#{version := Version} = Changed, #state{next = Next, instance = Instance} = State) ->
    New = Changed#{version := Version + 1},
    case erlmcp_task_records:update(New, erlmcp_tasks:store(Instance)) of
        ok ->
            Written = State#state{task = New, next = next(Next), unwritten = false},
            ok = publish(Written),
            {noreply, Written};
        {error, changed} when Next =/= none ->
            changed_by(Changed, State);
        {error, changed} ->
            {stop, normal, State};
        {error, {full, Max}} ->
            no_room(Max, Changed, State);
        {error, unavailable} ->
            {noreply, write_later(?AGAIN, Changed, State)}
    end.

next(none) -> none;
next(_) -> erlmcp_clock:now_ms() + ?PACE.

%% The task fails, and its call ends with it. The record of a task that has failed is small: if the
%% store has no room even for that, the process ends.
no_room(Max, Changed, #state{task = Task, pid = Pid} = State) ->
    Message = case Changed of
        #{result := _} -> ~"there is no room for the result of the task";
        _ -> ~"there is no room for the record of the task, with its requests"
    end,
    Refusal = erlmcp_refusal:new(resource_exhausted, Message, #{limit => Max}),
    case is_exhausted(Changed) of
        true ->
            {stop, normal, State};
        false ->
            ok = cancel_call(Pid, State),
            ended(failed(Refusal), State#state{task = without_result(Task), pid = undefined})
    end.

is_exhausted(#{error := Error}) -> erlmcp_refusal:name(Error) =:= resource_exhausted;
is_exhausted(_) -> false.

without_result(Task) ->
    (maps:without([result, is_error], Task))#{bytes := 0}.

%% A change that the cluster did not confirm may have been made. Then the record is this process's,
%% with a later version, and the next change follows that one. With the same version, the task's
%% incarnation is over: no change of this process is accepted any more.
changed_by(#{version := Before} = Changed,
           #state{task = #{id := Id}, instance = Instance} = State) ->
    Self = self(),
    case erlmcp_task_records:get(Id, erlmcp_tasks:store(Instance)) of
        {ok, #{process := Self, version := Version} = Stored} when Version =/= Before ->
            case erlmcp_task_view:is_over(Stored) of
                true ->
                    Ended = State#state{task = Stored},
                    ok = publish(Ended),
                    {stop, normal, Ended};
                false ->
                    write(Changed#{version := Version}, State)
            end;
        {error, unavailable} ->
            {noreply, write_later(?AGAIN, Changed, State)};
        _ ->
            {stop, normal, State}
    end.

publish(#state{task = Task, instance = Instance} = State) ->
    Tell = fun() -> erlmcp_task_view:notifications(Task) end,
    erlmcp_changes:task_changed(topic(State), Tell, Instance).

topic(#state{task = #{principal := Principal, id := Id}}) ->
    {task, Principal, Id}.

subscribe(#state{session = none}) ->
    ok;
subscribe(#state{session = Session, task = Task, instance = Instance} = State) ->
    #{principal := Principal} = Task,
    erlmcp_subscriptions:add([topic(State)], Session, session, Principal,
                             erlmcp_instance:subscriptions(Instance)).

unsubscribe(#state{session = none}) ->
    ok;
unsubscribe(#state{session = Session, instance = Instance} = State) ->
    erlmcp_subscriptions:remove([topic(State)], Session, session,
                                erlmcp_instance:subscriptions(Instance)).

-doc false.
format_status(Status) ->
    erlmcp_log:without_state(Status).

-doc false.
terminate(_, #state{task = #{id := Id}, pid = Pid, instance = Instance} = State) ->
    ok = cancel_call(Pid, State),
    ok = erlmcp_tasks:delete_process(Id, self(), Instance),
    unsubscribe(State).

cancel_call(undefined, _) ->
    ok;
cancel_call(Pid, #state{subject = Subject, instance = Instance}) ->
    true = exit(Pid, kill),
    erlmcp_call:cancelled(Pid, Subject, Instance).
