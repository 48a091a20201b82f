-module(erlmcp_call_messages).
-moduledoc """
The messages between running calls, the processes that own them, and the connections that wait for
their answers. Each message has a type here and a function that sends it.

An owner is `{Pid, Tag}`, and is sent `{Tag, Message}`. There are six kinds of owners:

- A call on lines, or of a session of HTTP+SSE, is owned by the process of its connection or
  session. The tag is `{erlmcp_call, Call}`. The call answers with its exit signal.
- A call of a stateless HTTP request is owned by the process of its connection. The tag is cowboy's
  `{Pid, StreamId}`. The call answers with its exit signal.
- A call of a batch is owned by the batch's process. The tag is `{erlmcp_call, Call}`. The call
  answers with its exit signal.
- A call of a session of Streamable HTTP is owned by the session's process. The tag is
  `{erlmcp_call, Call, Marks}`. The call answers the connection that waits for it or, if it has
  reported something before, the session.
- A call of a task is owned by the task's process. The tag is `erlmcp_task`. The call answers with
  its exit signal.
- An inline call runs in the process of its connection, which owns it. The tag is `inline`. Its
  reports are kept until it returns its answer.

The exit signal with an answer is `{'EXIT', Call, {erlmcp_answer, Status, Bytes}}`. `ended/1` reads
its reason.

Internal.
""".

-export([linked_owner/1, session_owner/2, inline_owner/0]).
-export([notification/3, request/3, withdraw/2, close_connection/1, task_status/2, task_input/2,
         pass_on/2, within/3, end_call/3, exit_with_answer/3, ended/1]).
-export([adopt/2, new_marks/0, has_reported/1, give_back/1, is_given_back/1]).
-export([response/3, input/2, cancel/2]).
-export([answer/3, event/4, cancelled/1]).
-export([task_requests/2, task_answered/2, task_notification/2]).

-export_type([message/0, ender/0, client_request/0, to_call/0, to_waiting/0, to_task_waiter/0,
              adoption/0, marks/0, ending/0]).

-doc "A request to the client: its id, and the id of the task that it belongs to, or `none`.".
-type client_request() :: {erlmcp_message:id(), erlmcp_task_store:id() | none}.
-doc """
A message of a call to its owner:

- `notification`: bytes for the client. When the owner has written or kept them, the owner frees
  their room in the window (`m:erlmcp_notification_window`).
- `request`: a request to the client. The owner passes its answer on to `Asking` (`response/3`),
  unless the call ends before, or withdraws the request.
- `withdraw`: the call does not wait for the answer to a request any more.
- `deadline`: the call has passed its deadline. The owner kills it.
- `end_call`: an operator or a drain ends the call. The owner kills it.
- `close_connection`: the owner ends the connection of the call's stream, and the client reconnects.
  Only a session of 2025-11-25 on HTTP does so.
- `status`, `input`: only from the call of a task. Its process answers `input` with `input/2`.
- `answer`: only from a call of an HTTP session that has reported something before.
""".
-type message() ::
    {notification, binary(), erlmcp_notification_window:window()}
    | {request, client_request(), Asking :: pid(), iodata()}
    | {withdraw, erlmcp_message:id()}
    | {deadline, Call :: pid(), Milliseconds :: non_neg_integer()}
    | {end_call, ender(), Call :: pid()}
    | close_connection
    | {status, binary()}
    | {input, Call :: pid(), #{Name :: binary() => Request :: map()}}
    | {answer, erlmcp_reply:status(), iodata()}.
-doc "Whoever ends a running call.".
-type ender() :: operator | drain.
-doc """
A message to a call. `erlmcp_response` has the client's answer to one of the call's requests, or
the reason why there is none. `erlmcp_input` has all answers that the call of a task has asked for,
or a refusal. `cancel` is sent to a batch: its client has cancelled this request.
""".
-type to_call() ::
    {erlmcp_response, erlmcp_message:id(), {ok, term()} | {error, term()}}
    | {erlmcp_input, {ok, #{binary() => map()}} | {error, erlmcp_refusal:refusal()}}
    | {cancel, erlmcp_message:id()}.
-doc """
A message to a connection that waits for the answer of a session's call, or is attached to one of
the session's streams. The connection confirms the `Key` of each event that it has written. After
the `last` event, an answer or `cancelled` nothing more is sent.
""".
-type to_waiting() ::
    {answer, erlmcp_reply:status(), iodata()}
    | {stream, erlmcp_session_streams:key(), erlmcp_sse:event(), more | last}
    | cancelled.
-doc """
A message of a task's process to a call that waits for the end of the task. The 1 is the version of
the message's form, since the call may be on a node with another release. For a call on another
node, a notification has the task's process in place of the window. The call confirms the
notification to that process.
""".
-type to_task_waiter() ::
    {erlmcp_task, 1,
     {ask, #{Key :: binary() => Request :: map()}}
     | {answered, [Key :: binary()]}
     | {notification, binary(), erlmcp_notification_window:window() | pid()}}.
-doc "A call or batch of an HTTP session, for the session's process.".
-type adoption() :: #{
    call := pid(), entry := erlmcp_calls:entry(), waiting := erlmcp_call:owner(),
    %% whether the connection that waits can be sent a stream
    streams := boolean(), marks := marks()
}.
-doc """
The marks that all processes of a session's call share: whether the call has reported something, and
whether it still counts among the session's running calls.
""".
-opaque marks() :: atomics:atomics_ref().
-doc "The end of a call: with its answer, or without one (`died`).".
-type ending() :: {answer, Status :: term(), Answer :: term()} | died.

-define(GIVEN_BACK, 1).
-define(REPORTED, 2).

-doc """
Returns the owner of the calling process, which is a call. The process `Pid` owns this call, and is
linked to it.
""".
-spec linked_owner(Pid :: pid()) -> erlmcp_call:owner().
linked_owner(Pid) ->
    {Pid, {erlmcp_call, self()}}.

-doc """
Returns the owner of the calling process, which is a call of an HTTP session. `Session` is the
session's process, and owns this call. `Marks` are the marks of the call.
""".
-spec session_owner(Session :: pid(), marks()) -> erlmcp_call:owner().
session_owner(Session, Marks) ->
    {Session, {erlmcp_call, self(), Marks}}.

-doc "Returns the owner of an inline call in the calling process.".
-spec inline_owner() -> erlmcp_call:owner().
inline_owner() ->
    {self(), inline}.

-doc """
Sends the owner a notification for the client. The caller has taken room for it in the window
(`erlmcp_notification_window:room/1`).
""".
-spec notification(erlmcp_call:owner(), binary(), erlmcp_notification_window:window()) -> ok.
notification(Owner, Bytes, Window) ->
    pass_on(Owner, {notification, Bytes, Window}).

-doc """
Sends the owner a request to the client. The client's answer to the request goes to the calling
process.
""".
-spec request(erlmcp_call:owner(), client_request(), iodata()) -> ok.
request(Owner, Asked, Bytes) ->
    pass_on(Owner, {request, Asked, self(), Bytes}).

-doc """
Tells the owner that the call does not wait for the answer to a request to the client any more.
""".
-spec withdraw(erlmcp_call:owner(), erlmcp_message:id()) -> ok.
withdraw(Owner, Id) ->
    pass_on(Owner, {withdraw, Id}).

-doc "Asks the owner to end the connection of the call's stream.".
-spec close_connection(erlmcp_call:owner()) -> ok.
close_connection(Owner) ->
    pass_on(Owner, close_connection).

-doc "Sends a task's process the new status message of the task.".
-spec task_status(erlmcp_call:owner(), binary()) -> ok.
task_status(Owner, Text) ->
    pass_on(Owner, {status, Text}).

-doc "Sends a task's process the requests that the task's handler needs answers to, by name.".
-spec task_input(erlmcp_call:owner(), #{Name :: binary() => Request :: map()}) -> ok.
task_input(Owner, Requests) ->
    pass_on(Owner, {input, self(), Requests}).

-doc """
Sends an owner a message. The message may come from another call than the one that has this owner.
After the message, a call of a session of Streamable HTTP counts as one that has reported something
(`has_reported/1`). A message for the owner of an inline call is kept until the call's answer, or
dropped if another process than the call's sends it.
""".
-spec pass_on(erlmcp_call:owner(), message()) -> ok.
pass_on({Pid, {erlmcp_call, _, Marks} = Tag}, Message) ->
    %% Before the message: the call then sends its answer through the session, too.
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

-doc """
Runs `Run` and returns its result. If `Run` takes longer than `Milliseconds`, the owner is sent the
message `deadline`. `Run` itself goes on, and the owner must end the call.
""".
-spec within(Milliseconds :: non_neg_integer(), erlmcp_call:owner(), Run :: fun(() -> Result)) ->
    Result.
within(Milliseconds, {Pid, Tag}, Run) ->
    Timer = erlang:send_after(Milliseconds, Pid, {Tag, {deadline, self(), Milliseconds}}),
    try
        Run()
    after
        erlang:cancel_timer(Timer)
    end.

-doc "Asks the owner of the call `Call` to kill the call, in the name of `Ender`.".
-spec end_call(Ender :: ender(), Call :: pid(), erlmcp_call:owner()) -> ok.
end_call(Ender, Call, {Pid, Tag}) ->
    Pid ! {Tag, {end_call, Ender, Call}},
    ok.

-doc """
Sends the answer of the calling process, which is a call, as an exit signal to its owner's process
`Pid`, and unlinks the two. The caller must end with the reason `normal` after that, so that
processes which its handler has linked go on.
""".
-spec exit_with_answer(Pid :: pid(), erlmcp_reply:status() | ok | error, Answer :: term()) -> ok.
exit_with_answer(Pid, Status, Answer) ->
    exit(Pid, {erlmcp_answer, Status, Answer}),
    unlink(Pid),
    ok.

-doc """
Returns how a call has ended, from the reason of its exit signal. The reason may be `normal` without
an answer, too: a handler may end its process with any reason.
""".
-spec ended(Reason :: term()) -> ending().
ended({erlmcp_answer, Status, Answer}) -> {answer, Status, Answer};
ended(_) -> died.

-doc "Hands a call over to its session's process, which is sent `{erlmcp_adopt, Adoption}`.".
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
Marks a call as one that does not count among its session's running calls any more. Returns `true`
to the first caller, and `false` to all others. The first caller subtracts the call from that count,
and alone may answer the request.
""".
-spec give_back(marks()) -> boolean().
give_back(Marks) ->
    atomics:exchange(Marks, ?GIVEN_BACK, 1) =:= 0.

-doc "Returns `true` if the call does not count among its session's running calls any more.".
-spec is_given_back(marks()) -> boolean().
is_given_back(Marks) ->
    atomics:get(Marks, ?GIVEN_BACK) =:= 1.

-doc """
Sends the call `Asking` the client's answer to the call's request `Id`, or the reason why there is
no answer.
""".
-spec response(Asking :: pid(), Id :: erlmcp_message:id(), {ok, term()} | {error, term()}) -> ok.
response(Asking, Id, Outcome) ->
    Asking ! {erlmcp_response, Id, Outcome},
    ok.

-doc """
Sends the call of a task the client's answers to its questions, or the refusal that the call gets
instead of answers.
""".
-spec input(Call :: pid(), {ok, #{binary() => map()}} | {error, erlmcp_refusal:refusal()}) -> ok.
input(Call, Outcome) ->
    Call ! {erlmcp_input, Outcome},
    ok.

-doc "Asks a batch to end its call of the request `Id`. The batch's other calls go on.".
-spec cancel(Batch :: pid(), Id :: erlmcp_message:id()) -> ok.
cancel(Batch, Id) ->
    Batch ! {cancel, Id},
    ok.

-doc "Sends the connection `Waiting` the answer of the call for which it waits.".
-spec answer(Waiting :: erlmcp_call:owner(), erlmcp_reply:status(), iodata()) -> ok.
answer({Pid, Tag}, Status, Bytes) ->
    Pid ! {Tag, {answer, Status, Bytes}},
    ok.

-doc """
Sends a connection an event of its stream. The connection confirms the event by its key. After the
`last` event the connection is sent no more, and after `more` it may be sent others.
""".
-spec event(Connection :: erlmcp_call:owner(), erlmcp_session_streams:key(), erlmcp_sse:event(),
            more | last) -> ok.
event({Pid, Tag}, Key, Event, More) ->
    Pid ! {Tag, {stream, Key, Event, More}},
    ok.

-doc "Tells a connection that nothing more is sent to it.".
-spec cancelled(Waiting :: erlmcp_call:owner()) -> ok.
cancelled({Pid, Tag}) ->
    Pid ! {Tag, cancelled},
    ok.

-doc "Sends a call that waits for the end of a task the requests of the task, by their keys.".
-spec task_requests(Waiter :: pid(), #{Key :: binary() => Request :: map()}) -> ok.
task_requests(Waiter, Requests) ->
    Waiter ! {erlmcp_task, 1, {ask, Requests}},
    ok.

-doc """
Tells a call that waits for the end of a task that the requests `Keys` of the task are answered.
""".
-spec task_answered(Waiter :: pid(), [Key :: binary()]) -> ok.
task_answered(Waiter, Keys) ->
    Waiter ! {erlmcp_task, 1, {answered, Keys}},
    ok.

-doc """
Sends a call that waits for the end of a task a notification of the task's call. The caller is the
task's process.
""".
-spec task_notification(Waiter :: pid(), message()) -> ok.
task_notification(Waiter, {notification, _, _} = Notification) when node(Waiter) =:= node() ->
    Waiter ! {erlmcp_task, 1, Notification},
    ok;
task_notification(Waiter, {notification, Bytes, _}) ->
    Waiter ! {erlmcp_task, 1, {notification, Bytes, self()}},
    ok.
