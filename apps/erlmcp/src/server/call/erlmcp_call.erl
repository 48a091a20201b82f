-module(erlmcp_call).
-moduledoc """
One running call of user code, in a process of its own. It has a deadline and a heap bound, sends
its owner what the handler reports (`m:erlmcp_call_report`) and, once, its answer; its crash is one
error for its caller.

The owner `{Pid, Tag}` is sent `{Tag, {notification, Bytes, Unread}}`, whose place it gives back
(`m:erlmcp_notification_window`) when it writes it, and `{Tag, {request, {Id, Task}, Call, Bytes}}`
for a request to the client, whose answer it passes on to the call as `{erlmcp_response, Id,
Outcome}`, unless the call ends before or says `{Tag, {withdraw, Id}}`; at the deadline it is sent
`{Tag, {deadline, Call, Milliseconds}}` and kills the call. The call is linked to it.

- The answer of a call that its owner started is the call's exit signal, `{'EXIT', Call,
  {erlmcp_answer, Status, Bytes}}`: one signal, and not a message and an exit to be told apart
  from a death. The owner traps exits.
- The owner of a session's call on HTTP is the session, which outlives the connections of its
  client. A call that has reported nothing answers the connection that waits for it,
  `{Tag, {answer, Status, Bytes}}`; one that has answers the session, which has its stream.
- A quick call (`m:erlmcp_inline_call`) has no process of its own; its owner is `{self(), quick}`,
  and what it reports is kept for who runs it.
- The owner of a task's call is the task's keeper. The call answers with a result or a refusal as
  such. It sends `{Tag, {status, Text}}` beside what others send, and asks for input with
  `{Tag, {input, Call, Requests}}`, which is answered with `{erlmcp_input, Outcome}`.
""".

-export([start/2, start/3, start/4, subject/1, place/1, take_over/1, leave/1]).
-export([timeout/2, answered/3, timed_out/4, died/4, within/3]).

-export_type([owner/0, message/0, subject/0]).

-type owner() :: {pid(), Tag :: term()}.
-doc "The name or the URI that was asked for is the target.".
-type subject() ::
    {erlmcp_revision:revision(), Method :: binary(), Target :: binary() | undefined}.
-type message() ::
    {notification, binary(), erlmcp_notification_window:unread()}
    | {answer, erlmcp_reply:status(), iodata()}
    | {request, erlmcp_calls:asked(), Call :: pid(), iodata()}
    | {withdraw, erlmcp_message:id()}
    | {deadline, pid(), Milliseconds :: non_neg_integer()}
    | {status, binary()}
    | {input, Call :: pid(), #{Name :: binary() => Request :: map()}}
    | close_connection.

-doc """
Starts a call that is linked to the calling process, its owner. The tag of its messages is
`{erlmcp_call, Call}`.
""".
-spec start(erlmcp_engine:call(), erlmcp_instance:of_calls()) -> pid().
start(Call, Instance) ->
    Owner = self(),
    start_linked(fun() -> run_linked(Call, {Owner, {erlmcp_call, self()}}, Instance) end, Call,
                 Instance).

-doc "The same with a tag of the owner's.".
-spec start(erlmcp_engine:call(), erlmcp_instance:of_calls(), Tag :: term()) -> pid().
start(Call, Instance, Tag) ->
    Owner = {self(), Tag},
    start_linked(fun() -> run_linked(Call, Owner, Instance) end, Call, Instance).

-doc "Starts a call of an HTTP session. `Waiting` is the connection that waits for its answer.".
-spec start(erlmcp_engine:call(), erlmcp_instance:of_calls(), Waiting :: owner(),
            erlmcp_session_call:session()) -> pid().
start(#{id := Id} = Call, Instance, Waiting, Session) ->
    Start = fun() ->
        %% The connection may end before the call, and hears nothing of its end.
        ok = take_over(Call),
        Run = fun(Owner) ->
            {reply, Status, Bytes} = run(Call, Owner, Instance),
            {Status, Bytes}
        end,
        Entry = {call, [Id], subject(Call), place(Call)},
        erlmcp_session_call:run(Session, Entry, Waiting, Run) =:= ended andalso leave(Call)
    end,
    spawn_call(Start, [], Instance).

%% Who holds a place is known, and so who has to be told when the server is drained.
start_linked(Run, #{permit := Permit}, Instance) ->
    Pid = spawn_call(Run, [link], Instance),
    ok = erlmcp_gate:hand_over(Permit, Pid),
    Pid;
start_linked(Run, _, Instance) ->
    spawn_call(Run, [link], Instance).

spawn_call(Run, Options, #{limits := Limits}) ->
    Heap = [{min_heap_size, erlmcp_heap:first_words()},
            {max_heap_size, erlmcp_heap:max_of_call(Limits)}],
    case spawn_opt(Run, Heap ++ Options) of
        Pid when is_pid(Pid) -> Pid
    end.

run_linked(Call, {Pid, _} = Owner, Instance) ->
    {reply, Status, Bytes} = run(Call, Owner, Instance),
    exit(Pid, {erlmcp_answer, Status, Bytes}),
    unlink(Pid).

%% The call waits its turn at the gate. Its place is free before the answer is sent: who asks next
%% because of that finds it so. The owner leaves it if the call is killed.
run(#{permit := Permit, id := Id, context := #{revision := Revision}} = Call, Owner, Instance) ->
    try
        case erlmcp_gate:await(Permit, timeout(Call, Instance)) of
            {ok, Granted} ->
                Answer = admitted(Call, Owner, Instance),
                ok = erlmcp_gate:add_work(Granted),
                Answer;
            {refuse, Refusal} ->
                answer({error, erlmcp_error_budget_answers:refused(Refusal, Instance)}, Id,
                       Revision)
        end
    after
        leave(Call)
    end;
run(Call, Owner, Instance) ->
    admitted(Call, Owner, Instance).

-doc "Milliseconds that a call may run.".
-spec timeout(erlmcp_engine:call(), erlmcp_instance:of_calls()) -> non_neg_integer().
timeout(#{definition := Definition}, #{limits := #{call_timeout_ms := Timeout}}) ->
    maps:get(timeout_ms, Definition, Timeout).

%% For another process: in one binary.
admitted(#{context := Context} = Call, Owner, Instance) ->
    case answered(Call, Instance, fun() -> outcome(Call, Context, Owner, Instance) end) of
        {reply, Status, Message} when is_list(Message) ->
            {reply, Status, iolist_to_binary(Message)};
        Reply ->
            Reply
    end.

-doc """
The answer of a call to what a fun gives: with the bounds of answers, an incident where it fails,
and counted. An `exit(shutdown)` goes through.
""".
-spec answered(erlmcp_engine:call(), erlmcp_instance:of_calls(),
               fun(() -> {ok, iodata()} | {error, erlmcp_refusal:refusal()})) ->
    {reply, erlmcp_reply:status() | ok | error, term()}.
answered(#{id := Id, context := Context}, Instance, Run) ->
    {Outcome, Answer} =
        try
            bounded(Run(), Id, Context, Instance)
        catch
            error:Reason:Stack -> crashed(error, Reason, Stack, Id, Context, Instance);
            throw:Reason:Stack -> crashed(throw, Reason, Stack, Id, Context, Instance);
            exit:Reason:Stack when Reason =/= shutdown ->
                crashed(exit, Reason, Stack, Id, Context, Instance)
        end,
    _ = erlmcp_error_budget_answers:answered(Outcome, Instance),
    Answer.

outcome(#{kind := {task, result}} = Call, Context, Owner, Instance) ->
    %% It waits for what another process does.
    ok = leave(Call),
    erlmcp_tasks:perform(Call, Context, Owner, Instance);
outcome(#{kind := {task, _}} = Call, Context, Owner, Instance) ->
    erlmcp_tasks:perform(Call, Context, Owner, Instance);
outcome(Call, Context, Owner, Instance) ->
    erlmcp_input_rounds:run(Call, Context, Owner, Instance).

%% What is too large is told in the log, where who can mend it looks; it need not be its caller.
bounded({ok, Result} = Outcome, Id, #{method := Method, revision := Revision} = Context,
        #{limits := #{reply_bytes := Max}} = Instance) ->
    Message = message(Result, Id),
    case erlmcp_reply:bounded(Message, Max) of
        ok ->
            {Outcome, encoded(Message, Id)};
        {too_large, Size} ->
            Incident = incident(
                #{what => reply_too_large, method => Method, target => target(Context)},
                #{limit => Max, observed => Size}, Instance),
            refused(erlmcp_reply:too_large(Size, Max, #{incident => Incident}), Id, Revision)
    end;
bounded({error, Refusal}, Id, #{revision := Revision}, #{limits := #{reply_bytes := Max}}) ->
    case byte_size(erlmcp_refusal:message(Refusal)) of
        Size when Size > Max -> refused(erlmcp_reply:too_large(Size, Max, #{}), Id, Revision);
        _ -> refused(Refusal, Id, Revision)
    end.

refused(Refusal, Id, Revision) ->
    {{error, Refusal}, answer({error, Refusal}, Id, Revision)}.

%% Of a task its result is kept alone.
message(Result, task) -> Result;
message(Result, Id) -> erlmcp_message:result(Id, Result).

%% What is wrong with a result has shown when its size was asked, while its call could still fail.
%% Nobody waits for the answer of a task; its keeper stores what it is.
encoded(Message, task) ->
    Bytes = iolist_to_binary(Message),
    {reply, ok, {Bytes, maps:get(~"isError", json:decode(Bytes), false)}};
encoded(Message, _) ->
    {reply, 200, Message}.

answer({error, Refusal}, task, _) ->
    {reply, error, Refusal};
answer({error, Refusal}, Id, Revision) ->
    {reply, Status, Bytes} = erlmcp_reply:refuse(Id, Refusal, Revision),
    {reply, Status, iolist_to_binary(Bytes)}.

%% What happened stays in the log; the caller gets the id that finds it there.
crashed(Class, Reason, Stack, Id, #{revision := Revision, method := Method} = Context, Instance) ->
    Incident = incident(#{what => call_crashed, method => Method, target => target(Context)},
                        #{class => Class, reason => Reason, stacktrace => Stack}, Instance),
    Refusal = erlmcp_refusal:new(internal_error, ~"internal error",
                                 #{code => -32603, incident => Incident}),
    refused(Refusal, Id, Revision).

%% The operator is told that it was, and the log why.
incident(Told, Why, #{key := Key}) ->
    told(erlmcp_incident:log(maps:merge(Told, Why), Key), Told, Key).

%% The same in the owner's process, on which more waits than this call.
owners_incident(Told, Why, #{key := Key}) ->
    told(erlmcp_incident:log_apart(maps:merge(Told, Why), Key), Told, Key).

told(Incident, Told, Key) ->
    ok = erlmcp_event:emit(Key, incident, Told#{incident => Incident}),
    Incident.

target(Context) ->
    maps:get(name, Context, maps:get(uri, Context, undefined)).

-doc "What a call is about, for who answers in its place.".
-spec subject(erlmcp_engine:call()) -> subject().
subject(#{context := #{revision := Revision, method := Method} = Context}) ->
    {Revision, Method, target(Context)}.

-doc "The place of a call at the server's gate, for who is to leave it if the call is killed.".
-spec place(erlmcp_engine:call()) -> erlmcp_calls:place().
place(#{permit := Permit}) -> {permit, Permit};
place(_) -> none.

-doc "The place is the calling process's from now on.".
-spec take_over(erlmcp_engine:call()) -> ok.
take_over(#{permit := Permit}) -> erlmcp_gate:hand_over(Permit, self());
take_over(_) -> ok.

-doc """
Leaves the place of a call at the server's gate: when it is not started, is killed, or waits for its
client. Once is enough, and more do no harm.
""".
-spec leave(erlmcp_engine:call()) -> ok.
leave(#{permit := Permit}) -> erlmcp_gate:leave(Permit);
leave(_) -> ok.

-doc "The answer to a request whose call did not end within so many milliseconds.".
-spec timed_out(Milliseconds :: non_neg_integer(), erlmcp_message:id(), subject(),
                erlmcp_instance:of_calls()) -> {reply, erlmcp_reply:status(), iodata()};
               (Milliseconds :: non_neg_integer(), task, subject(),
                erlmcp_instance:of_calls()) -> {reply, error, erlmcp_refusal:refusal()}.
timed_out(Milliseconds, Id, {Revision, Method, Target}, Instance) ->
    Incident = owners_incident(#{what => call_timed_out, method => Method, target => Target},
                               #{limit => Milliseconds}, Instance),
    Refusal = erlmcp_refusal:new(timeout, ~"the call passed its deadline and was ended",
                                 #{limit => Milliseconds, incident => Incident}),
    answer(erlmcp_error_budget_answers:answered({error, Refusal}, Instance), Id, Revision).

-doc "The answer to a request whose call died without one: of its heap bound, or of another hand.".
-spec died(Reason :: term(), erlmcp_message:id() | undefined, subject(),
           erlmcp_instance:of_calls()) -> {reply, erlmcp_reply:status(), iodata()};
          (Reason :: term(), task, subject(), erlmcp_instance:of_calls()) ->
          {reply, error, erlmcp_refusal:refusal()}.
died(Reason, Id, {Revision, _, _} = Subject, Instance) ->
    Refusal = why(Reason, Subject, Instance),
    answer(erlmcp_error_budget_answers:answered({error, Refusal}, Instance), Id, Revision).

why({shutdown, draining}, _, _) ->
    erlmcp_refusal:new(server_shutting_down, ~"the server stops, and the call with it");
why(killed, Subject, #{limits := #{call_heap_bytes := Bytes}} = Instance) ->
    %% The runtime kills with the reason that a process kills with.
    erlmcp_refusal:new(resource_exhausted,
                       [~"the call was killed: it passed its memory bound of ",
                        integer_to_binary(Bytes), ~" bytes, or a process killed it"],
                       #{incident => dead(killed, Subject, Instance)});
why(Reason, Subject, Instance) ->
    erlmcp_refusal:new(internal_error, ~"the call was ended",
                       #{code => -32603, incident => dead(Reason, Subject, Instance)}).

%% What it was linked to ended it, or the runtime: it could not say so itself.
dead(Reason, {_, Method, Target}, Instance) ->
    owners_incident(#{what => call_died, method => Method, target => Target},
                    #{reason => Reason}, Instance).

-doc "What a fun gives; after so many milliseconds the owner is told that they have passed.".
-spec within(Milliseconds :: non_neg_integer(), owner(), fun(() -> Result)) -> Result.
within(Milliseconds, {Pid, Tag}, Run) ->
    Timer = erlang:send_after(Milliseconds, Pid, {Tag, {deadline, self(), Milliseconds}}),
    try
        Run()
    after
        erlang:cancel_timer(Timer)
    end.
