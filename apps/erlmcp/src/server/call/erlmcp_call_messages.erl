-module(erlmcp_call_messages).
-moduledoc """
The messages between running calls, the processes that own them, and the connections that wait for
their answers. Each has a type here and a function that sends it; no other module builds one.

An owner is `{Pid, Tag}`, and is sent `{Tag, Message}`. The owner of a call is

- of a stateless request its connection, with the tag `{erlmcp_call, Call}` on lines and cowboy's
  `{Pid, StreamId}` on HTTP. The call answers with its exit signal.
- of an HTTP session the session's process, with `{erlmcp_call, Call, Marks}`. The call answers the
  connection that waits for it, or, if it has reported something before, the session.
- of a task the task's process, with `erlmcp_task`. The call answers with its exit signal.
- inline, without a process of its own, the connection that it runs in, with `inline`. Its reports
  are kept until it returns its answer.

The answer is the exit signal `{'EXIT', Call, {erlmcp_answer, Status, Bytes}}`. The owner traps
exits and must hear of a death anyway, and so it hears of each call once, and not twice. `ended/1`
reads the reason of an exit signal.

The receivers match the messages where they wait for them: `m:erlmcp_connection`,
`m:erlmcp_httpd_stream`, `m:erlmcp_session`, `m:erlmcp_task_process`, `m:erlmcp_batch` and
`m:erlmcp_calls` what owners are sent (`t:message/0`) and connections that wait (`t:to_waiting/0`);
`m:erlmcp_input_rounds`, `m:erlmcp_tasks` and `m:erlmcp_batch` what calls are sent
(`t:to_call/0`).

Internal.
""".

-export([linked_owner/1, session_owner/2, inline_owner/0]).
-export([notification/3, request/3, withdraw/2, close_connection/1, task_status/2, task_input/2,
         pass_on/2, within/3, exit_with_answer/3, ended/1]).
-export([adopt/2, new_marks/0, has_reported/1, give_back/1, is_given_back/1]).
-export([response/3, input/2, cancel/2]).
-export([answer/3, event/4, cancelled/1]).
-export([task_requests/2, task_answered/2, task_notification/2]).

-export_type([message/0, asked/0, to_call/0, to_waiting/0, to_task_waiter/0, adoption/0, marks/0,
              ending/0]).

-doc "A request to the client, by its id, and the task that it is of.".
-type asked() :: {erlmcp_message:id(), erlmcp_task_store:id() | none}.
-doc """
A message of a call to its owner:

- `notification`: bytes for the client. The owner gives back their place in the window when it has
  written them (`m:erlmcp_notification_window`).
- `request`: a request to the client. The owner passes its answer on to `Asking` (`response/3`),
  unless the call ends before, or withdraws the request.
- `withdraw`: the call waits no more for the answer to that request.
- `deadline`: the time of the call is over. The owner kills it.
- `close_connection`: the client is to come back for the rest of the stream.
- `status`, `input`: of a task alone. Its process answers `input` with `input/2`.
- `answer`: of a call of an HTTP session, after what it has reported.
""".
-type message() ::
    {notification, binary(), erlmcp_notification_window:window()}
    | {request, asked(), Asking :: pid(), iodata()}
    | {withdraw, erlmcp_message:id()}
    | {deadline, Call :: pid(), Milliseconds :: non_neg_integer()}
    | close_connection
    | {status, binary()}
    | {input, Call :: pid(), #{Name :: binary() => Request :: map()}}
    | {answer, erlmcp_reply:status(), iodata()}.
-doc """
A message to a call: the client's answer to one of its requests, or all answers of a task's clients.
`cancel` tells a batch that one of its requests is cancelled.
""".
-type to_call() ::
    {erlmcp_response, erlmcp_message:id(), {ok, term()} | {error, term()}}
    | {erlmcp_input, {ok, #{binary() => map()}} | {error, erlmcp_refusal:refusal()}}
    | {cancel, erlmcp_message:id()}.
-doc """
A message to a connection that waits for the answer of a session's call, or has one of the session's
streams. It confirms the `Key` of each event that it has written. After the `last` event, an answer
or `cancelled` nothing more is sent.
""".
-type to_waiting() ::
    {answer, erlmcp_reply:status(), iodata()}
    | {stream, erlmcp_session_streams:key(), erlmcp_sse:event(), more | last}
    | cancelled.
-doc "A message of a task's process to a call that waits for the end of the task.".
-type to_task_waiter() ::
    {erlmcp_task, {ask, #{Key :: binary() => Request :: map()}}
        | {answered, [Key :: binary()]}
        | {notification, binary(), erlmcp_notification_window:window()}}.
-doc "A call or batch of an HTTP session, for the session's process.".
-type adoption() :: #{
    call := pid(), entry := erlmcp_calls:entry(), waiting := erlmcp_call:owner(),
    %% whether the connection that waits can be sent a stream
    streams := boolean(), marks := marks()
}.
-doc """
The state that all processes of a session's call share: whether it has reported something, and
whether its places among the session's calls are given back.
""".
-opaque marks() :: atomics:atomics_ref().
-doc "The end of a call: with its answer, with nothing to say, or without an answer.".
-type ending() :: {answer, Status :: term(), Answer :: term()} | silent | {died, Reason :: term()}.

-define(GIVEN_BACK, 1).
-define(REPORTED, 2).

-doc "Returns the owner of the calling process, a call, that is linked to its owner's process.".
-spec linked_owner(pid()) -> erlmcp_call:owner().
linked_owner(Pid) ->
    {Pid, {erlmcp_call, self()}}.

-doc """
Returns the owner of the calling process, a call of the HTTP session whose process is `Session`.
""".
-spec session_owner(pid(), marks()) -> erlmcp_call:owner().
session_owner(Session, Marks) ->
    {Session, {erlmcp_call, self(), Marks}}.

-doc "Returns the owner of an inline call in the calling process.".
-spec inline_owner() -> erlmcp_call:owner().
inline_owner() ->
    {self(), inline}.

-doc "Sends the owner a notification for the client, which has a place in the window.".
-spec notification(erlmcp_call:owner(), binary(), erlmcp_notification_window:window()) -> ok.
notification(Owner, Bytes, Window) ->
    pass_on(Owner, {notification, Bytes, Window}).

-doc "Sends the owner a request to the client, whose answer goes to the calling process.".
-spec request(erlmcp_call:owner(), asked(), iodata()) -> ok.
request(Owner, Asked, Bytes) ->
    pass_on(Owner, {request, Asked, self(), Bytes}).

-doc "Withdraws a request to the client.".
-spec withdraw(erlmcp_call:owner(), erlmcp_message:id()) -> ok.
withdraw(Owner, Id) ->
    pass_on(Owner, {withdraw, Id}).

-doc "Asks the owner to end the connection of the call's stream.".
-spec close_connection(erlmcp_call:owner()) -> ok.
close_connection(Owner) ->
    pass_on(Owner, close_connection).

-doc "Sends a task's process its status message.".
-spec task_status(erlmcp_call:owner(), binary()) -> ok.
task_status(Owner, Text) ->
    pass_on(Owner, {status, Text}).

-doc "Sends a task's process the requests that its handler needs answers to.".
-spec task_input(erlmcp_call:owner(), #{Name :: binary() => Request :: map()}) -> ok.
task_input(Owner, Requests) ->
    pass_on(Owner, {input, self(), Requests}).

-doc "Sends an owner a message, which may be of another call.".
-spec pass_on(erlmcp_call:owner(), message()) -> ok.
pass_on({Pid, {erlmcp_call, _, Marks} = Tag}, Message) ->
    %% Before the message: the answer follows it through the session.
    ok = atomics:put(Marks, ?REPORTED, 1),
    Pid ! {Tag, Message},
    ok;
pass_on({Pid, inline}, Message) when Pid =:= self() ->
    erlmcp_connection_cache:add_report(Message);
pass_on({_, inline}, _) ->
    %% Reports of other processes for an inline call are dropped.
    ok;
pass_on({Pid, Tag}, Message) ->
    Pid ! {Tag, Message},
    ok.

-doc "Returns what a fun returns. The owner is sent `deadline` when it takes longer than this.".
-spec within(Milliseconds :: non_neg_integer(), erlmcp_call:owner(), fun(() -> Result)) -> Result.
within(Milliseconds, {Pid, Tag}, Run) ->
    Timer = erlang:send_after(Milliseconds, Pid, {Tag, {deadline, self(), Milliseconds}}),
    try
        Run()
    after
        erlang:cancel_timer(Timer)
    end.

-doc """
Ends the calling process, a call, with its answer for the owner's process that it is linked to. The
process itself ends normally, and what its handler linked is not disturbed.
""".
-spec exit_with_answer(pid(), erlmcp_reply:status() | ok | error, term()) -> ok.
exit_with_answer(Pid, Status, Answer) ->
    exit(Pid, {erlmcp_answer, Status, Answer}),
    unlink(Pid),
    ok.

-doc "Returns what the exit signal of a call says.".
-spec ended(Reason :: term()) -> ending().
ended({erlmcp_answer, Status, Answer}) -> {answer, Status, Answer};
ended(normal) -> silent;
ended(Reason) -> {died, Reason}.

-doc "Hands a call to its session's process, `{erlmcp_adopt, Adoption}`.".
-spec adopt(Session :: pid(), adoption()) -> ok.
adopt(Session, Adoption) ->
    Session ! {erlmcp_adopt, Adoption},
    ok.

-doc "Returns the marks of a new call of a session.".
-spec new_marks() -> marks().
new_marks() ->
    atomics:new(2, []).

-doc "Returns `true` if the call has reported something before its answer.".
-spec has_reported(marks()) -> boolean().
has_reported(Marks) ->
    atomics:get(Marks, ?REPORTED) =:= 1.

-doc """
Marks the places of a call as given back. It is `true` once: for the process that gives them back,
and that answers.
""".
-spec give_back(marks()) -> boolean().
give_back(Marks) ->
    atomics:exchange(Marks, ?GIVEN_BACK, 1) =:= 0.

-doc "Returns `true` if the places of the call are given back.".
-spec is_given_back(marks()) -> boolean().
is_given_back(Marks) ->
    atomics:get(Marks, ?GIVEN_BACK) =:= 1.

-doc "Sends a call the client's answer to one of its requests, or why there is none.".
-spec response(Asking :: pid(), erlmcp_message:id(), {ok, term()} | {error, term()}) -> ok.
response(Asking, Id, Outcome) ->
    Asking ! {erlmcp_response, Id, Outcome},
    ok.

-doc "Sends the call of a task the answers that it asked for, or why there are none.".
-spec input(Call :: pid(), {ok, #{binary() => map()}} | {error, erlmcp_refusal:refusal()}) -> ok.
input(Call, Outcome) ->
    Call ! {erlmcp_input, Outcome},
    ok.

-doc "Ends the call with the id `Id` in a batch; the batch's other calls go on.".
-spec cancel(Batch :: pid(), erlmcp_message:id()) -> ok.
cancel(Batch, Id) ->
    Batch ! {cancel, Id},
    ok.

-doc "Answers a connection that waits.".
-spec answer(Waiting :: erlmcp_call:owner(), erlmcp_reply:status(), iodata()) -> ok.
answer({Pid, Tag}, Status, Bytes) ->
    Pid ! {Tag, {answer, Status, Bytes}},
    ok.

-doc "Sends a connection an event of its stream.".
-spec event(Connection :: erlmcp_call:owner(), erlmcp_session_streams:key(), erlmcp_sse:event(),
            more | last) -> ok.
event({Pid, Tag}, Key, Event, Place) ->
    Pid ! {Tag, {stream, Key, Event, Place}},
    ok.

-doc "Tells a connection that nothing more is sent to it.".
-spec cancelled(Waiting :: erlmcp_call:owner()) -> ok.
cancelled({Pid, Tag}) ->
    Pid ! {Tag, cancelled},
    ok.

-doc "Sends a waiter the requests of a task, by their keys.".
-spec task_requests(Waiter :: pid(), #{Key :: binary() => Request :: map()}) -> ok.
task_requests(Waiter, Requests) ->
    Waiter ! {erlmcp_task, {ask, Requests}},
    ok.

-doc "Tells a waiter that the requests `Keys` of a task are answered.".
-spec task_answered(Waiter :: pid(), [Key :: binary()]) -> ok.
task_answered(Waiter, Keys) ->
    Waiter ! {erlmcp_task, {answered, Keys}},
    ok.

-doc "Sends a waiter a notification of the task's call.".
-spec task_notification(Waiter :: pid(), message()) -> ok.
task_notification(Waiter, {notification, _, _} = Notification) ->
    Waiter ! {erlmcp_task, Notification},
    ok.
