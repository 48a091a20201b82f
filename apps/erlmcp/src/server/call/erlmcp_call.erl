-module(erlmcp_call).
-moduledoc """
A running call of user code, in a process of its own, with a deadline and a heap bound. A call sends
its owner the reports of the handler (`m:erlmcp_call_report`), and answers once. If a call crashes,
its client gets an error, and nothing else is affected. `m:erlmcp_call_messages` describes the
owners of calls and their messages.

Internal.
""".

-export([start/2, start/3, start_process/2, run/3]).
-export([subject/1, permit/1, take_over/1, pause/1, resume/1, leave/1, mark/1]).
-export([timeout/2, answered/3, refuse/3, timed_out/4, died/3, cancelled/3, ended_by/4,
         not_begun/2]).

-export_type([owner/0, subject/0, mark/0]).

%% The key of a call's mark in the dictionary of its process.
-define(MARK, '$erlmcp_call').
%% The most bytes of a method and of a target in a report of an incident.
-define(REPORTED_BYTES, 1024).

-type owner() :: {pid(), Tag :: term()}.
-doc """
The subject of a call or a batch. `id` is `task` for the call of a task. `target` is the requested
name or URI, or `undefined` without one. A batch has no `principal`, and `undefined` as its `id`.
""".
-type subject() :: #{
    id := erlmcp_message:id() | task | undefined, revision := erlmcp_revision:revision(),
    method := binary(), target := binary() | undefined,
    row := erlmcp_meter:row(), arrival := erlmcp_meter:arrival(),
    principal => erlmcp:principal(),
    span => erlmcp_request_span:started()
}.

-doc """
The mark of a process that runs a call with a permit. The first element is the beginning of the
call, in milliseconds of `erlmcp_clock:now_ms/0`. `Target` is the requested name or URI, or
`undefined` without one. The last element is the owner of the call.
""".
-type mark() ::
    {integer(), Method :: binary(), Target :: binary() | undefined, erlmcp:principal(), owner()}.

-doc """
Starts a call that is linked to the calling process, its owner. The owner must trap exits, since the
call answers with its exit signal. If the call has a permit, the call's process holds the permit
from now on. The call's messages to its owner have the tag `{erlmcp_call, Pid}`, where `Pid` is the
returned process.
""".
-spec start(erlmcp_engine:call(), erlmcp_instance:instance()) -> Pid :: pid().
start(Call, Instance) ->
    Owner = self(),
    start_linked(fun() ->
        run_linked(Call, erlmcp_call_messages:linked_owner(Owner), Instance)
    end, Call, Instance).

-doc """
Starts a call that is linked to the calling process, as `start/2` does. The call's messages to its
owner have the tag `Tag`.
""".
-spec start(erlmcp_engine:call(), erlmcp_instance:instance(), Tag :: term()) -> pid().
start(Call, Instance, Tag) ->
    Owner = {self(), Tag},
    start_linked(fun() -> run_linked(Call, Owner, Instance) end, Call, Instance).

%% The gate knows the process of each permit, so that a drain can end those that still run.
start_linked(Run, #{permit := Permit}, Instance) ->
    Pid = start_process(Run, Instance),
    ok = erlmcp_gate:hand_over(Permit, Pid),
    Pid;
start_linked(Run, _, Instance) ->
    start_process(Run, Instance).

-doc """
Starts a process that runs `Run`, with the memory bound of calls. The process is linked to the
calling one.
""".
-spec start_process(Run :: fun(() -> term()), erlmcp_instance:instance()) -> pid().
start_process(Run, #{process := Heap}) ->
    case spawn_opt(Run, [link | Heap]) of
        Pid when is_pid(Pid) -> Pid
    end.

run_linked(Call, {Pid, _} = Owner, Instance) ->
    {reply, Status, Bytes} = run(Call, Owner, Instance),
    erlmcp_call_messages:exit_with_answer(Pid, Status, Bytes).

-doc """
Runs a call in the calling process, counts its request as ended, and returns its answer. `Owner` is
sent the reports of the handler. A call with a permit first waits for its turn at the gate, which
may refuse it. The permit is given back when this function returns. The answer of a task's call has
`ok` or `error` as its status, and is not encoded.
""".
-spec run(erlmcp_engine:call(), owner(), erlmcp_instance:instance()) ->
    {reply, erlmcp_reply:status() | ok | error, term()}.
%% The call waits its turn at the gate. It gives its permit back before it answers, so that the next
%% request of its client finds room. If the call is killed, its owner gives the permit back.
run(#{permit := Permit, id := Id, context := Context} = Call, Owner, Instance) ->
    #{revision := Revision, method := Method, principal := Principal} = Context,
    _ = put(?MARK, {erlmcp_clock:now_ms(), Method, target(Context), Principal, Owner}),
    try
        case erlmcp_gate:await(Permit, timeout(Call, Instance)) of
            {ok, Granted} ->
                Answer = admitted(Call, Owner, Instance),
                ok = erlmcp_gate:add_work(Granted),
                Answer;
            {refuse, Refusal} ->
                {reply, _, Bytes} = Answer =
                    answer({error, erlmcp_admission:not_before(Refusal, Instance)}, Id, Revision),
                ok = erlmcp_meter:ended(Call, {refused, Refusal}, iolist_size(Bytes), Instance),
                Answer
        end
    after
        leave(Call)
    end;
run(Call, Owner, Instance) ->
    admitted(Call, Owner, Instance).

-doc """
Returns how many milliseconds the handler of a call, outside of a task, may run before it returns:
`timeout_ms` of its definition, or the limit `call_timeout_ms`.
""".
-spec timeout(erlmcp_engine:call(), erlmcp_instance:instance()) -> non_neg_integer().
timeout(#{definition := Definition}, #{limits := #{call_timeout_ms := Timeout}}) ->
    maps:get(timeout_ms, Definition, Timeout).

%% Runs an admitted call. Its answer is one binary, since it is sent to another process.
admitted(#{context := Context} = Call, Owner, Instance) ->
    case answered(Call, Instance, fun() -> outcome(Call, Context, Owner, Instance) end) of
        {reply, Status, Message} when is_list(Message) ->
            {reply, Status, iolist_to_binary(Message)};
        Reply ->
            Reply
    end.

-doc """
Runs `Run`, and returns the answer of a call, made from the result of `Run`. Counts the request as
ended (`m:erlmcp_meter`). If `Run` crashes, or its result makes too large an answer (`reply_bytes`),
returns a refusal instead and logs an incident. Does not catch `exit(shutdown)`, and then counts
nothing.
""".
-spec answered(erlmcp_engine:call(), erlmcp_instance:instance(),
               Run :: fun(() -> {ok | tool_error, iodata()}
                                | {error, erlmcp_refusal:refusal()})) ->
    {reply, erlmcp_reply:status() | ok | error, term()}.
answered(Call, Instance, Run) ->
    {Outcome, BytesOut, Answer} = case Call of
        #{span := unsampled} ->
            %% This stays until the next call: the process runs nothing else that may ask for it.
            _ = erlmcp_tracer:enter(unsampled),
            attempted(Call, Instance, Run);
        #{span := _} ->
            erlmcp_request_span:run(Call, fun() -> attempted(Call, Instance, Run) end);
        #{} ->
            attempted(Call, Instance, Run)
    end,
    ok = erlmcp_meter:ended(Call, Outcome, BytesOut, Answer, Instance),
    Answer.

attempted(#{id := Id, context := Context}, Instance, Run) ->
    try
        bounded(measured(Run, Context, Instance), Id, Context, Instance)
    catch
        error:Reason:Stack -> crashed(error, Reason, Stack, Id, Context, Instance);
        throw:Reason:Stack -> crashed(throw, Reason, Stack, Id, Context, Instance);
        exit:Reason:Stack when Reason =/= shutdown ->
            crashed(exit, Reason, Stack, Id, Context, Instance)
    end.

measured(Run, _, #{telemetry := none}) -> Run();
measured(Run, Context, Instance) -> erlmcp_telemetry:span(Run, Context, Instance).

outcome(#{kind := {task, result}} = Call, Context, Owner, Instance) ->
    %% The call waits for another process, and needs no permit meanwhile.
    ok = leave(Call),
    erlmcp_tasks:perform(Call, Context, Owner, Instance);
outcome(#{kind := {task, _}} = Call, Context, Owner, Instance) ->
    erlmcp_tasks:perform(Call, Context, Owner, Instance);
outcome(Call, Context, Owner, Instance) ->
    erlmcp_input_rounds:run(Call, Context, Owner, Instance).

%% A result that is too large is logged, since only the operator can change that.
bounded({error, Refusal}, Id, #{revision := Revision}, #{limits := #{reply_bytes := Max}}) ->
    case byte_size(erlmcp_refusal:message(Refusal)) of
        Size when Size > Max -> refused(erlmcp_reply:too_large(Size, Max, #{}), Id, Revision);
        _ -> refused(Refusal, Id, Revision)
    end;
bounded({Outcome, Result}, Id, #{method := Method, revision := Revision} = Context,
        #{limits := #{reply_bytes := Max}} = Instance) ->
    Message = message(Result, Id),
    case iolist_size(Message) of
        Size when Size > Max ->
            Incident = incident(reported(reply_too_large, Method, target(Context)),
                                #{limit => Max, observed => Size}, Instance),
            refused(erlmcp_reply:too_large(Size, Max, #{incident => Incident}), Id, Revision);
        Size ->
            {Outcome, Size, encoded(Outcome, Message, Id)}
    end.

refused(Refusal, Id, Revision) ->
    Answer = answer({error, Refusal}, Id, Revision),
    {{refused, Refusal}, size_of(Answer), Answer}.

%% The refusal of a task is not sent.
size_of({reply, error, _}) -> 0;
size_of({reply, _, Bytes}) -> iolist_size(Bytes).

%% A task keeps its result only.
message(Result, task) -> Result;
message(Result, Id) -> erlmcp_message:result(Id, Result).

%% Computing the size (`bounded/4`) has already raised any error of the iolist, so nothing here
%% fails. The process of a task stores the result.
encoded(Outcome, Message, task) ->
    {reply, ok, {iolist_to_binary(Message), Outcome =:= tool_error}};
encoded(_, Message, _) ->
    {reply, 200, Message}.

answer({error, Refusal}, task, _) ->
    {reply, error, Refusal};
answer({error, Refusal}, Id, Revision) ->
    {reply, Status, Bytes} = erlmcp_reply:refuse(Id, Refusal, Revision),
    {reply, Status, iolist_to_binary(Bytes)}.

%% The reason stays in the log, and the caller gets the id that finds it there.
crashed(Class, Reason, Stack, Id, #{revision := Revision, method := Method} = Context, Instance) ->
    Incident = incident(reported(call_crashed, Method, target(Context)),
                        (erlmcp_incident:outline(Reason, Stack))#{class => Class}, Instance),
    Refusal = erlmcp_refusal:new(internal_error, ~"internal error",
                                 #{code => -32603, incident => Incident}),
    refused(Refusal, Id, Revision).

%% The event has the id of the incident, and the log has the reason, too.
incident(Subject, Reason, #{key := Key}) ->
    emit_incident(erlmcp_incident:log(maps:merge(Subject, Reason), Key), Subject, Key).

%% Logs an incident in the owner's process, which must not wait for the log: other calls depend on
%% that process.
owners_incident(Subject, Reason, #{key := Key}) ->
    emit_incident(erlmcp_incident:log_apart(maps:merge(Subject, Reason), Key), Subject, Key).

emit_incident(Incident, Told, Key) ->
    ok = erlmcp_event_handler:emit(Key, incident, Told#{incident => Incident}),
    Incident.

%% The part of a report about its call. Reports may wait, and the message of a request may be large.
reported(What, Method, Target) ->
    #{what => What, method => erlmcp_printable:beginning(Method, ?REPORTED_BYTES),
      target => case Target of
                    undefined -> undefined;
                    _ -> erlmcp_printable:beginning(Target, ?REPORTED_BYTES)
                end}.

target(Context) ->
    maps:get(name, Context, maps:get(uri, Context, undefined)).

-doc "Returns the subject of a call, for a process that answers in place of the call's process.".
-spec subject(erlmcp_engine:call()) -> subject().
subject(#{context := Context, id := Id, arrival := Arrival} = Call) ->
    #{revision := Revision, method := Method, principal := Principal} = Context,
    (maps:with([span], Call))#{id => Id, revision => Revision, method => Method,
                               target => target(Context), row => erlmcp_meter:row(Call),
                               arrival => Arrival, principal => Principal}.

-doc """
Returns `{permit, Permit}` with the permit of a call, or `none` if the call has no permit. The
result is for the process that gives the permit back if the call is killed.
""".
-spec permit(erlmcp_engine:call()) -> erlmcp_calls:permit().
permit(#{permit := Permit}) -> {permit, Permit};
permit(_) -> none.

-doc "Makes the calling process the holder of a call's permit, if the call has one.".
-spec take_over(erlmcp_engine:call()) -> ok.
take_over(#{permit := Permit}) -> erlmcp_gate:hand_over(Permit, self());
take_over(_) -> ok.

-doc """
Takes a call out of flight while it waits for its client, if it has a permit. Only the process that
runs the call may call this function, and `resume/1`.
""".
-spec pause(erlmcp_engine:call()) -> ok.
pause(#{permit := Permit}) -> erlmcp_gate:pause(Permit);
pause(_) -> ok.

-doc "Brings a call in flight again after `pause/1`, even above the limits.".
-spec resume(erlmcp_engine:call()) -> ok.
resume(#{permit := Permit, tenant := Tenant}) -> erlmcp_gate:resume(Permit, Tenant);
resume(_) -> ok.

-doc """
Gives back the permit of a call that has ended, will not start, or waits for a task. Has no effect
if the permit was given back before, or if the call has none.
""".
-spec leave(erlmcp_engine:call()) -> ok.
leave(#{permit := Permit}) -> erlmcp_gate:leave(Permit);
leave(_) -> ok.

-doc """
Gives back the permit of a call that will not begin, and counts the call's request as cancelled.
""".
-spec not_begun(erlmcp_engine:call(), erlmcp_instance:instance()) -> ok.
not_begun(Call, Instance) ->
    ok = leave(Call),
    erlmcp_meter:ended(subject(Call), cancelled, 0, Instance).

-doc """
Returns the mark of a process that runs a call with a permit. Returns `none` if the process runs no
such call, or has ended.
""".
-spec mark(pid()) -> mark() | none.
mark(Pid) ->
    case process_info(Pid, {dictionary, ?MARK}) of
        {_, {_, _, _, _, _} = Mark} -> Mark;
        _ -> none
    end.

-doc """
Returns the answer that refuses a request whose call is not started. Gives the call's permit back,
and counts the request as ended.
""".
-spec refuse(erlmcp_engine:call(), erlmcp_refusal:refusal(), erlmcp_instance:instance()) ->
    erlmcp_reply:reply().
refuse(#{id := Id, context := #{revision := Revision}} = Call, Refusal, Instance) ->
    ok = leave(Call),
    erlmcp_meter:answered(Call, {refused, Refusal}, erlmcp_reply:refuse(Id, Refusal, Revision),
                          Instance).

-doc """
Returns the answer to a request whose linked call `Call` did not end within `Milliseconds`. For the
call of a task, the answer is the refusal itself, not encoded. The caller is the owner of the call,
and has just killed it. Logs an incident, and counts the request as ended. If the call's own answer
waits in the mailbox, does neither, and returns that answer.
""".
-spec timed_out(Call :: pid(), Milliseconds :: non_neg_integer(), subject(),
                erlmcp_instance:instance()) ->
    {reply, erlmcp_reply:status(), iodata()} | {reply, ok | error, Outcome :: term()}.
%% A call counts its request just before it answers. So a call that is killed between the two is
%% counted twice.
timed_out(Call, Milliseconds, #{method := Method, target := Target} = Subject, Instance) ->
    unless_answered(Call, Subject, Instance, fun() ->
        Incident = owners_incident(reported(call_timed_out, Method, Target),
                                   #{limit => Milliseconds}, Instance),
        erlmcp_refusal:new(timeout, ~"the call passed its deadline and was ended",
                           #{limit => Milliseconds, incident => Incident})
    end).

unless_answered(Call, Subject, Instance, Refusal) ->
    case own_answer(Call) of
        none -> ended(Refusal(), Subject, Instance);
        Answer -> Answer
    end.

-doc """
Returns the answer to a request whose call died without one. For the call of a task, the answer is
the refusal itself, not encoded. `Reason` is the reason of the call's exit signal. Counts the
request as ended. Logs an incident, unless a drain has ended the call.
""".
-spec died(Reason :: term(), subject(), erlmcp_instance:instance()) ->
    {reply, erlmcp_reply:status(), iodata()} | {reply, error, erlmcp_refusal:refusal()}.
died(Reason, Subject, Instance) ->
    ended(why(Reason, Subject, Instance), Subject, Instance).

-doc """
Returns the answer to a request whose linked call `Call` an operator or a drain has ended. For the
call of a task, the answer is the refusal itself, not encoded. The caller is the owner of the call,
and has just killed it. Counts the request as ended. If the call's own answer waits in the mailbox,
counts nothing, and returns that answer.
""".
-spec ended_by(erlmcp_call_messages:ender(), Call :: pid(), subject(),
               erlmcp_instance:instance()) ->
    {reply, erlmcp_reply:status(), iodata()} | {reply, ok | error, Outcome :: term()}.
ended_by(Ender, Call, Subject, Instance) ->
    unless_answered(Call, Subject, Instance, fun() -> ended_by(Ender) end).

ended_by(operator) ->
    erlmcp_refusal:new(internal_error, ~"an operator has ended the call",
                       #{code => -32603, fault => false});
ended_by(drain) ->
    erlmcp_refusal:new(server_shutting_down, ~"the server stops, and has ended the call").

ended(Refusal, #{id := Id, revision := Revision} = Subject, Instance) ->
    {Outcome, BytesOut, Answer} = refused(Refusal, Id, Revision),
    ok = erlmcp_meter:ended(Subject, Outcome, BytesOut, Instance),
    Answer.

-doc """
Counts the request of a linked call as cancelled. The caller is the owner of the call, and has just
killed it. If the call's own answer waits in the mailbox, drops that answer and counts nothing.
""".
-spec cancelled(Call :: pid(), subject(), erlmcp_instance:instance()) -> ok.
cancelled(Call, Subject, Instance) ->
    case own_answer(Call) of
        none -> erlmcp_meter:ended(Subject, cancelled, 0, Instance);
        _ -> ok
    end.

%% Takes the answer of a call out of the mailbox of its owner. A connection also waits for the exit
%% signal of each of its calls, and so gets one without the answer.
own_answer(Call) ->
    receive
        {'EXIT', Call, {erlmcp_answer, Status, Answer}} ->
            self() ! {'EXIT', Call, normal},
            {reply, Status, Answer};
        {{erlmcp_call, Call, _}, {answer, Status, Answer}} ->
            {reply, Status, Answer}
    after 0 ->
        none
    end.

why({shutdown, draining}, _, _) ->
    ended_by(drain);
why(killed, Subject, #{limits := #{call_heap_bytes := Bytes}} = Instance) ->
    %% The exit reason is `killed`, whether the runtime or a process has killed the call.
    erlmcp_refusal:new(resource_exhausted,
                       [~"the call was killed: it passed its memory bound of ",
                        integer_to_binary(Bytes), ~" bytes, or a process killed it"],
                       #{incident => dead(killed, Subject, Instance)});
why(Reason, Subject, Instance) ->
    erlmcp_refusal:new(internal_error, ~"the call was ended",
                       #{code => -32603, incident => dead(Reason, Subject, Instance)}).

%% A linked process, the runtime or the handler has ended the call's process, so the owner reports
%% the incident.
dead(Reason, #{method := Method, target := Target}, Instance) ->
    owners_incident(reported(call_died, Method, Target),
                    #{reason => erlmcp_incident:outline(Reason)}, Instance).
