-module(erlmcp_call).
-moduledoc """
One running call of user code, in a process of its own. It has a deadline and a heap bound, sends
its owner what the handler reports and, once, its answer; its crash is one error for its caller.

The owner `{Pid, Tag}` is sent `{Tag, {notification, Bytes}}`, and `{Tag, {request, Id, Call,
Bytes}}` for a request to the client, whose answer it passes on to the call as
`{erlmcp_response, Id, Outcome}`; at the deadline it is sent `{Tag, {deadline, Call}}` and kills the
call. The call is linked to it.

- The answer of a call that its owner started is the call's exit signal, `{'EXIT', Call,
  {erlmcp_answer, Status, Bytes}}`: one signal, and not a message and an exit to be told apart
  from a death. The owner traps exits.
- The owner of a session's call on HTTP is the session, which outlives the connections of its
  client. A call that has reported nothing answers the connection that waits for it,
  `{Tag, {answer, Status, Bytes}}`; one that has answers the session, which has its stream.
""".

-export([start/2, start/3, start/4]).
-export([progress/3, log/4, elicitation_complete/2, close_connection/1, report/2]).
-export([timed_out/2, died/3]).

-export_type([owner/0, message/0]).

-type owner() :: {pid(), Tag :: term()}.
-type message() ::
    {notification, iodata()}
    | {answer, erlmcp_reply:status(), iodata()}
    | {request, erlmcp_message:id(), Call :: pid(), iodata()}
    | {deadline, pid()}
    | close_connection.

-doc """
Starts a call that is linked to the calling process, its owner and guard. The tag of its messages is
`{erlmcp_call, Call}`.
""".
-spec start(erlmcp_engine:call(), erlmcp_options:limits()) -> pid().
start(Call, Limits) ->
    Owner = self(),
    spawn_call(fun() -> run_linked(Call, {Owner, {erlmcp_call, self()}}, Limits) end, [link],
               Limits).

-doc "The same with a tag of the owner's.".
-spec start(erlmcp_engine:call(), erlmcp_options:limits(), Tag :: term()) -> pid().
start(Call, Limits, Tag) ->
    Owner = {self(), Tag},
    spawn_call(fun() -> run_linked(Call, Owner, Limits) end, [link], Limits).

-doc "Starts a call of an HTTP session. `Waiting` is the connection that waits for its answer.".
-spec start(erlmcp_engine:call(), erlmcp_options:limits(), Waiting :: owner(),
            erlmcp_session:guard()) -> pid().
start(#{id := Id} = Call, Limits, Waiting, Guard) ->
    Run = fun() ->
        erlmcp_session:run(Guard, call, [Id], Waiting, fun(Owner) ->
            {reply, Status, Bytes} = run(Call, Owner, Limits),
            {Status, Bytes}
        end)
    end,
    spawn_call(Run, [], Limits).

spawn_call(Run, Options, #{call_heap_bytes := Bytes}) ->
    MaxHeap = #{size => Bytes div erlang:system_info(wordsize), kill => true,
                error_logger => false},
    Heap = [{min_heap_size, erlmcp_heap:first_words()}, {max_heap_size, MaxHeap}],
    case spawn_opt(Run, Heap ++ Options) of
        Pid when is_pid(Pid) -> Pid
    end.

run_linked(Call, {Pid, _} = Owner, Limits) ->
    {reply, Status, Bytes} = run(Call, Owner, Limits),
    exit(Pid, {erlmcp_answer, Status, Bytes}),
    unlink(Pid).

run(#{id := Id, context := #{revision := Revision} = Context} = Call, Owner, Limits) ->
    try
        answer(erlmcp_rounds:run(Call, Context, Owner, Limits), Id, Revision)
    catch
        error:Reason:Stack -> crashed(error, Reason, Stack, Id, Context);
        throw:Reason:Stack -> crashed(throw, Reason, Stack, Id, Context);
        exit:Reason:Stack when Reason =/= shutdown -> crashed(exit, Reason, Stack, Id, Context)
    end.

%% In one binary already here: what is wrong with a result shows while its call can still fail.
answer({ok, Result}, Id, _) ->
    {reply, 200, iolist_to_binary(erlmcp_message:result(Id, Result))};
answer({error, Refusal}, Id, Revision) ->
    {reply, Status, Bytes} = erlmcp_reply:refuse(Id, Refusal, Revision),
    {reply, Status, iolist_to_binary(Bytes)}.

%% What happened stays in the log; the caller gets the id that finds it there.
crashed(Class, Reason, Stack, Id, #{revision := Revision, method := Method} = Context) ->
    Target = maps:get(name, Context, maps:get(uri, Context, undefined)),
    Incident = erlmcp_incident:log(#{what => call_crashed, method => Method, target => Target,
                                     class => Class, reason => Reason, stacktrace => Stack}),
    Refusal = erlmcp_refusal:new(internal_error, ~"internal error",
                                 #{code => -32603, incident => Incident}),
    answer({error, Refusal}, Id, Revision).

-doc "The answer to a request whose call ran past its deadline.".
-spec timed_out(erlmcp_message:id(), erlmcp_revision:revision()) ->
    {reply, erlmcp_reply:status(), iodata()}.
timed_out(Id, Revision) ->
    Refusal = erlmcp_refusal:new(timeout, ~"the call passed its deadline and was ended"),
    erlmcp_reply:refuse(Id, Refusal, Revision).

-doc "The answer to a request whose call died without one: of its heap bound, or of another hand.".
-spec died(Reason :: term(), erlmcp_message:id() | undefined, erlmcp_revision:revision()) ->
    {reply, erlmcp_reply:status(), iodata()}.
died(killed, Id, Revision) ->
    Refusal = erlmcp_refusal:new(resource_exhausted, ~"the call passed its memory bound"),
    erlmcp_reply:refuse(Id, Refusal, Revision);
died(_, Id, Revision) ->
    Refusal = erlmcp_refusal:new(internal_error, ~"the call was ended", #{code => -32603}),
    erlmcp_reply:refuse(Id, Refusal, Revision).

-doc """
Reports progress, if the client asked for it. A value that does not grow is not sent: the
specification wants each to be greater than the one before.
""".
-spec progress(erlmcp_engine:context(), number(), #{total => number(), message => binary()}) -> ok.
progress(#{progress_token := undefined}, _, _) ->
    ok;
progress(#{progress_token := Token, owner := Owner}, Progress, Details) ->
    case get(erlmcp_progress) of
        Last when is_number(Last), Progress =< Last ->
            ok;
        _ ->
            put(erlmcp_progress, Progress),
            Params = maps:with([total, message], Details),
            notify(Owner, ~"notifications/progress",
                 Params#{progressToken => Token, progress => Progress})
    end.

-doc "Sends the client a log message, if the level is one that it asked for.".
-spec log(erlmcp_engine:context(), Level :: binary(), Data :: term(), #{logger => binary()}) -> ok.
log(#{log_level := Wanted, owner := Owner}, Level, Data, Details) ->
    {ok, Severity} = erlmcp_meta:level(Level),
    case Wanted =/= undefined andalso Severity =< Wanted of
        true -> notify(Owner, ~"notifications/message",
                       (maps:with([logger], Details))#{level => Level, data => Data});
        false -> ok
    end.

-doc "Tells the client that a URL elicitation is done, if its revision has a word for it.".
-spec elicitation_complete(erlmcp_engine:context(), Id :: binary()) -> ok.
elicitation_complete(#{revision := Revision, owner := Owner}, Id) ->
    case erlmcp_revision:elicitation_ids(Revision) of
        true -> notify(Owner, ~"notifications/elicitation/complete", #{elicitationId => Id});
        false -> ok
    end.

notify(Owner, Method, Params) ->
    report(Owner, {notification, iolist_to_binary(erlmcp_message:notification(Method, Params))}).

-doc """
Ends the connection of the call's stream, whose client comes back for what follows. Only a session
of 2025-11-25 on HTTP has that.
""".
-spec close_connection(erlmcp_engine:context()) -> ok.
close_connection(#{owner := Owner}) ->
    report(Owner, close_connection).

-doc "Sends the owner of this call something before its answer.".
-spec report(owner(), message()) -> ok.
report({Pid, Tag}, Message) ->
    %% What went this way is followed by the answer on the same way (`erlmcp_session:run/5`).
    put(erlmcp_reported, true),
    Pid ! {Tag, Message},
    ok.
