-module(erlmcp_batch).
-moduledoc """
A JSON-RPC batch of 2025-03-26. One process starts the calls of the batch, which run at the same
time, and sends their answers together. To its owner a batch is a call.

Source: specification 2025-03-26, "Base protocol / Batching".

Internal.
""".

-export([start/3, start/4, no_listen/0]).

-doc """
Starts a batch that is linked to the calling process, and returns `Calls` with the batch added.
`Given` has the calls of the batch, and the answers that are known already. `Revision` is the
revision of the client. A call over the limit `calls_per_connection`, or with an id in use, is
refused in the batch's answer.
""".
-spec start(Given :: [erlmcp_admission:effect(), ...], erlmcp_revision:revision(),
            Calls :: erlmcp_calls:calls()) -> erlmcp_calls:calls().
start(Given, Revision, Calls) ->
    Instance = erlmcp_calls:instance(Calls),
    {Items, _} = lists:mapfoldl(
        fun({call, #{id := Id} = Call} = Item, Count) ->
                case erlmcp_calls:room_for({Id, Count}, Calls) of
                    ok -> {Item, Count + 1};
                    {error, Refusal} -> {erlmcp_call:refuse(Call, Refusal, Instance), Count}
                end;
           (Item, Count) ->
                {Item, Count}
        end, 0, Given),
    erlmcp_calls:adopt(start_linked(Items, Instance), entry(Items, Revision), Calls).

start_linked(Items, Instance) ->
    Owner = self(),
    spawn_link(fun() ->
        ok = hold_permits(Items),
        {Status, Bytes} = run(Items, Instance, erlmcp_call_messages:linked_owner(Owner)),
        erlmcp_call_messages:exit_with_answer(Owner, Status, Bytes)
    end).

-doc """
Starts a batch of an HTTP session, and returns the batch's process, which is not linked to the
calling one. `Items` are the calls of the batch, and the answers that are known already. `Waiting`
is the connection that waits for the batch's answer. If the session has ended, the calls do not
begin (`erlmcp_call:not_begun/2`), and `Waiting` is sent an error.
""".
-spec start([erlmcp_admission:effect(), ...], erlmcp_instance:instance(),
            Waiting :: erlmcp_call:owner(), erlmcp_session_call:session()) -> pid().
start(Items, Instance, Waiting, Session) ->
    spawn(fun() ->
        ok = hold_permits(Items),
        Run = fun(Owner) -> run(Items, Instance, Owner) end,
        erlmcp_session_call:run(Session, entry(Items, '2025-03-26'), Waiting, Run) =:= ended
            andalso [erlmcp_call:not_begun(Call, Instance) || {call, Call} <- Items]
    end).

%% The batch traps exits first. It may be ended before it has started its calls, and has to count
%% their requests then.
hold_permits(Items) ->
    process_flag(trap_exit, true),
    lists:foreach(fun erlmcp_call:take_over/1, [Call || {call, Call} <- Items]).

%% The entry of a batch for its owner.
entry(Items, Revision) ->
    Subject = #{id => undefined, revision => Revision, method => ~"batch", target => undefined,
                row => erlmcp_meter:method_row(~"batch"), arrival => erlmcp_meter:arrived(0)},
    {batch, [Id || {call, #{id := Id}} <- Items], Subject, none}.

-doc """
Returns the refusal of a subscription in a batch.
""".
-spec no_listen() -> erlmcp_refusal:refusal().
%% The answers of the other requests would have to wait for the end of the subscription.
no_listen() ->
    erlmcp_refusal:new(protocol_error, ~"subscriptions/listen: not in a batch",
                       #{code => -32600}).

%% If no request of the batch is left to be answered, the batch has no answer.
run(Items, #{key := Key, limits := #{reply_bytes := Max}} = Instance, Owner) ->
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
                erlmcp_call_messages:withdraw(Owner, Id)
            end, Withdrawn),
            gather(with(Out, Ids, Answers, Most), Next, Owner, Most)
    end.

event(Calls, {Pid, _} = Owner) ->
    receive
        {{erlmcp_call, _}, {notification, _, _} = Notification} ->
            ok = erlmcp_call_messages:pass_on(Owner, Notification),
            {[], {[], [], Calls}};
        {{erlmcp_call, Call}, {request, Asked, _, _} = Request} ->
            {[], Bytes, Next} = erlmcp_calls:message(Call, Request, Calls),
            %% The answer comes here, so that the calls know which requests are not answered. The
            %% request of an ended call is not sent.
            ok = case Bytes of
                [] -> ok;
                _ -> erlmcp_call_messages:request(Owner, Asked, Bytes)
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

%% The answer of a call, with the answers before it, has the bound of a single answer. The first one
%% has passed it already, in its call.
with([], _, Answers, _) ->
    Answers;
with(Out, [Id], [_ | _] = Answers, {Max, Key}) ->
    case iolist_size([Out | Answers]) of
        Size when Size > Max ->
            Incident = erlmcp_incident:log(#{what => reply_too_large, method => ~"batch",
                                             limit => Max, observed => Size}, Key),
            Refusal = erlmcp_reply:too_large(Size, Max, #{incident => Incident}),
            {reply, _, Bytes} = erlmcp_reply:refuse(Id, Refusal, '2025-03-26'),
            [Bytes | Answers];
        _ ->
            [Out | Answers]
    end;
with(Out, _, Answers, _) ->
    [Out | Answers].
