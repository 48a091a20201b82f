-module(erlmcp_batch).
-moduledoc """
A JSON-RPC batch of 2025-03-26: the calls of one message, run side by side by one process, and
their answers sent to the owner as one. To its owner it is a call.

Source: specification 2025-03-26, "Base protocol / Batching".
""".

-export([start/2, start/4, entry/2, ids/1, cancel/2, refuse_listen/1]).

-doc """
Starts a batch that is linked to the calling process. `Items` are calls, and answers that are known
already.
""".
-spec start([erlmcp_engine:effect(), ...], erlmcp_instance:of_calls()) -> pid().
start(Items, Instance) ->
    Owner = self(),
    spawn_link(fun() ->
        {Status, Bytes} = run(Items, Instance, {Owner, {erlmcp_call, self()}}),
        exit(Owner, {erlmcp_answer, Status, Bytes}),
        unlink(Owner)
    end).

-doc "Starts a batch of an HTTP session. `Waiting` is the connection that waits for its answer.".
-spec start([erlmcp_engine:effect(), ...], erlmcp_instance:of_calls(),
            Waiting :: erlmcp_call:owner(), erlmcp_session_call:session()) -> pid().
start(Items, Instance, Waiting, Session) ->
    spawn(fun() ->
        Run = fun(Owner) -> run(Items, Instance, Owner) end,
        erlmcp_session_call:run(Session, entry(Items, '2025-03-26'), Waiting, Run) =:= ended
            andalso [erlmcp_call:leave(Call) || {call, Call} <- Items]
    end).

-doc "What its owner keeps of a batch.".
-spec entry([erlmcp_engine:effect()], erlmcp_revision:revision()) -> erlmcp_calls:entry().
entry(Items, Revision) ->
    {batch, ids(Items), {Revision, ~"batch", undefined}, none}.

-doc "The ids of the calls in a batch.".
-spec ids([erlmcp_engine:effect()]) -> [erlmcp_message:id()].
ids(Items) ->
    [Id || {call, #{id := Id}} <- Items].

-doc "Ends the call of this id in a batch; the others go on.".
-spec cancel(pid(), erlmcp_message:id()) -> ok.
cancel(Batch, Id) ->
    Batch ! {cancel, Id},
    ok.

-doc "The answer to a subscription in a batch: it would keep the others waiting for its end.".
-spec refuse_listen(erlmcp_message:id()) -> erlmcp_reply:reply().
refuse_listen(Id) ->
    Message = ~"subscriptions/listen: not in a batch",
    erlmcp_reply:refuse(Id, erlmcp_refusal:new(protocol_error, Message, #{code => -32600})).

%% A batch of which nothing is left to answer is answered with nothing.
run(Items, #{key := Key, limits := #{reply_bytes := Max}} = Instance, Owner) ->
    process_flag(trap_exit, true),
    %% Whatever becomes of this process before it has started them all.
    ok = lists:foreach(fun erlmcp_call:take_over/1, [Call || {call, Call} <- Items]),
    {Answers, Calls} = lists:foldl(fun item/2, {[], erlmcp_calls:new(Instance)}, Items),
    case gather(Answers, Calls, Owner, {Max, Key}) of
        [] -> {202, ~""};
        All -> {200, iolist_to_binary(erlmcp_message:batch(All))}
    end.

item({reply, _, Bytes}, {Answers, Calls}) ->
    {[Bytes | Answers], Calls};
item({call, Call}, {Answers, Calls}) ->
    case erlmcp_calls:start(Call, Calls) of
        {ok, Started} -> {Answers, Started};
        {reply, _, Bytes} -> {[Bytes | Answers], Calls}
    end.

gather(Answers, Calls, Owner, Most) ->
    case erlmcp_calls:count(Calls) of
        0 ->
            lists:reverse(Answers);
        _ ->
            {Ids, {Withdrawn, Out, Next}} = event(Calls, Owner),
            ok = lists:foreach(fun({Id, _}) ->
                erlmcp_call_report:to_owner(Owner, {withdraw, Id})
            end, Withdrawn),
            gather(with(Out, Ids, Answers, Most), Next, Owner, Most)
    end.

event(Calls, {Pid, _} = Owner) ->
    receive
        {{erlmcp_call, _}, {notification, _, _} = Notification} ->
            ok = erlmcp_call_report:to_owner(Owner, Notification),
            {[], {[], [], Calls}};
        {{erlmcp_call, Call}, {request, Asked, _, _} = Request} ->
            {[], Bytes, Next} = erlmcp_calls:message(Call, Request, Calls),
            %% The answer comes here, so that what is not answered is known. An ended call has none.
            ok = case Bytes of
                [] -> ok;
                _ -> erlmcp_call_report:to_owner(Owner, {request, Asked, self(), Bytes})
            end,
            {[], {[], [], Next}};
        {erlmcp_response, Id, Outcome} ->
            {[], {[], [], erlmcp_calls:response(Id, Outcome, Calls)}};
        {{erlmcp_call, Call}, Message} ->
            {erlmcp_calls:ids(Call, Calls), erlmcp_calls:message(Call, Message, Calls)};
        {cancel, Id} ->
            {Withdrawn, Left} = erlmcp_calls:cancel(Id, Calls),
            {[], {Withdrawn, [], Left}};
        {'EXIT', Pid, _} ->
            erlmcp_calls:stop(Calls),
            exit(shutdown);
        {'EXIT', Call, Reason} ->
            {erlmcp_calls:ids(Call, Calls), erlmcp_calls:exited(Call, Reason, Calls)}
    end.

%% Together they may have as many bytes as the result of one, beside one of them.
with([], _, Answers, _) ->
    Answers;
with(Out, [Id], [_ | _] = Answers, {Max, Key}) ->
    case erlmcp_reply:bounded([Out | Answers], Max) of
        ok ->
            [Out | Answers];
        {too_large, Size} ->
            Incident = erlmcp_incident:log(#{what => reply_too_large, method => ~"batch",
                                             limit => Max, observed => Size}, Key),
            Refusal = erlmcp_reply:too_large(Size, Max, #{incident => Incident}),
            {reply, _, Bytes} = erlmcp_reply:refuse(Id, Refusal, '2025-03-26'),
            [Bytes | Answers]
    end;
with(Out, _, Answers, _) ->
    [Out | Answers].
