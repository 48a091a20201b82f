-module(erlmcp_task_waiter).
-moduledoc """
`tasks/result` of 2025-11-25: a call that waits until a task is over and then gives what the task's
own call would have been answered. Meanwhile it is the way of the task's requests to the client:
they go out on its stream, and the answers go to the task. The task does not end with it.

It has no deadline but the task's own; it ends with its owner, or when its client cancels it.

Internal.
""".

-export([await/4]).

%% Milliseconds between two looks at a task that runs on another node.
-define(LOOK, 1000).

-doc "Waits for the end of a task. Called by the process of the call.".
-spec await(erlmcp_task_store:id(), erlmcp_engine:context(), erlmcp_call:owner(),
            erlmcp_instance:of_calls()) ->
    {ok, iodata()} | {error, erlmcp_refusal:refusal()}.
await(Id, Context, Owner, Instance) ->
    maybe
        {ok, Task} ?= erlmcp_tasks:find(Id, Context, Instance),
        case {erlmcp_task_view:is_over(Task), erlmcp_tasks:process(Id, Instance)} of
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

%% The process of a task that is here has ended just now.
look_later(#{node := Node}) when Node =:= node() -> ok;
look_later(_) -> timer:sleep(?LOOK).

wait(Id, Owner, Process, Monitor, Sent) ->
    receive
        {'DOWN', Monitor, process, _, _} ->
            ok;
        {erlmcp_task, {ask, Requests}} ->
            New = maps:without(maps:values(Sent), Requests),
            Asked = #{ask(Id, Request, Owner) => Key || Key := Request <- New},
            wait(Id, Owner, Process, Monitor, maps:merge(Sent, Asked));
        {erlmcp_task, {answered, Keys}} ->
            %% On another stream.
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
