-module(erlmcp_client_task).
-moduledoc """
A call that has become a task on the server. The module polls the task at the pace that the server
names, answers its questions, and returns the result that the call would have had. Each poll has the
time of a call, and all polls together have the longest time of a call. It runs in the call's
process; when the call ends before the task, the task is cancelled.

Sources: the extension `io.modelcontextprotocol/tasks`; specification 2025-11-25, "Tasks".

Internal.
""".

-export([run/5]).

%% Milliseconds between two polls, unless the server names another pace, which is bounded.
-define(PACE, 1000).
-define(FASTEST, 50).
-define(SLOWEST, 60_000).

-doc "The funs that send a request: `Late` when the call's time is over, or its caller gone.".
-type sends() :: {send(), Late :: fun((request()) -> {ok, map()} | {error, term()})}.
-type send() :: fun((request(), erlmcp_client_exchange:watch()) -> {ok, map()} | {error, term()}).
-type request() :: {Method :: binary(), Params :: map()}.

-doc "Returns the state of a task, waits for its result, or cancels it.".
-spec run(get | await | cancel, Task :: map(), sends(), erlmcp_client_exchange:watch(),
          erlmcp_client_connection:client()) -> {ok, map()} | {error, term()}.
run(Operation, #{~"taskId" := Id} = Task, {Send, Late}, Watch, Client) when is_binary(Id) ->
    case Operation of
        get -> Send({~"tasks/get", #{~"taskId" => Id}}, Watch);
        cancel -> Send({~"tasks/cancel", #{~"taskId" => Id}}, Watch);
        await -> waited(Task, {Send, Late}, Watch, Client)
    end;
run(_, _, _, _, _) ->
    {error, {protocol, ~"task: taskId: expected a string"}}.

waited(#{~"taskId" := Id} = Task, {Send, Late}, Watch, Client) ->
    try
        look(Task, #{}, Send, Watch, Client)
    of
        {error, {timeout, _}} = Error ->
            ok = end_task(Id, Late),
            Error;
        Outcome ->
            Outcome
    catch
        throw:cancelled ->
            ok = end_task(Id, Late),
            throw(cancelled)
    end.

%% Cancelling a task that is over already fails, which does not matter here.
end_task(Id, Late) ->
    _ = Late({~"tasks/cancel", #{~"taskId" => Id}}),
    ok.

look(#{~"taskId" := Id} = Task, Answered, Send, Watch, Client) ->
    ok = pause(pace(Task), Watch),
    case in_time({~"tasks/get", #{~"taskId" => Id}}, Send, Watch) of
        {ok, #{~"status" := Status} = Now} ->
            on_status(Status, Now#{~"taskId" => Id}, Answered, Send, Watch, Client);
        {ok, _} -> {error, {protocol, ~"result of tasks/get: status: expected a string"}};
        {error, _} = Error -> Error
    end.

on_status(~"working", Task, Answered, Send, Watch, Client) ->
    look(Task, Answered, Send, Watch, Client);
on_status(~"input_required", #{~"inputRequests" := #{} = Requests} = Task, Answered, Send, Watch,
          Client) ->
    #{~"taskId" := Id} = Task,
    #{last_deadline := Last} = Watch,
    Asked = erlmcp_clock:now_ms(),
    maybe
        New = maps:without(maps:keys(Answered), Requests),
        {ok, Answers} ?= erlmcp_client_inputs:gather(New, Watch, Client),
        %% The time of the user's answers is not counted as the server's.
        Renewed = Watch#{last_deadline := Last + erlmcp_clock:now_ms() - Asked},
        {ok, _} ?= updated(Id, Answers, Send, Renewed),
        look(Task, maps:merge(Answered, Answers), Send, Renewed, Client)
    end;
on_status(~"completed", #{~"result" := Result}, _, _, _, _) ->
    case erlmcp_client_operation:check(~"tools/call", Result) of
        ok -> {ok, Result};
        {error, What} -> {error, {protocol, What}}
    end;
on_status(~"failed", #{~"error" := #{~"code" := Code, ~"message" := Message} = Error}, _, _, _,
          _) ->
    {error, {rpc, maps:from_list([{code, Code}, {message, Message}]
                                 ++ [{data, Data} || #{~"data" := Data} <- [Error]])}};
on_status(~"cancelled", _, _, _, _, _) ->
    {error, cancelled};
%% A session's server asks its questions, and gives the result or the error, in answer to this
%% request.
on_status(Status, #{~"taskId" := Id}, _, Send, #{max_timeout := Most} = Watch, _) when
    Status =:= ~"input_required"; Status =:= ~"completed"; Status =:= ~"failed"
->
    in_time({~"tasks/result", #{~"taskId" => Id}}, Send, Watch#{timeout := Most});
on_status(_, _, _, _, _, _) ->
    {error, {protocol, ~"result of tasks/get: status: expected a known one"}}.

updated(_, Answers, _, _) when map_size(Answers) =:= 0 ->
    {ok, none};
updated(Id, Answers, Send, Watch) ->
    in_time({~"tasks/update", #{~"taskId" => Id, ~"inputResponses" => Answers}}, Send, Watch).

in_time(Request, Send, #{timeout := Timeout, last_deadline := Last, max_timeout := Most} = Watch) ->
    case erlmcp_clock:now_ms() of
        Now when Now < Last -> Send(Request, Watch#{deadline := min(Now + Timeout, Last)});
        _ -> {error, {timeout, Most}}
    end.

pace(#{~"pollIntervalMs" := Pace}) when is_integer(Pace) -> max(?FASTEST, min(?SLOWEST, Pace));
pace(#{~"pollInterval" := Pace}) when is_integer(Pace) -> max(?FASTEST, min(?SLOWEST, Pace));
pace(_) -> ?PACE.

pause(Milliseconds, #{last_deadline := Last} = Watch) ->
    Caller = maps:get(caller, Watch, none),
    Cancel = maps:get(cancel, Watch, none),
    receive
        {'DOWN', Caller, process, _, _} -> throw(cancelled);
        {erlmcp_cancel, Cancel} -> throw(cancelled)
    after max(0, min(Milliseconds, Last - erlmcp_clock:now_ms())) -> ok
    end.
