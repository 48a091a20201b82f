-module(erlmcp_session_call).
-moduledoc """
Runs a call of an HTTP session, or a batch, in its own process. A call counts among the session's
running calls, and is linked to the session's process. It sends its answer to the connection that
waits for it, or through the session if it has reported something before.

The marks of a call (`t:erlmcp_call_messages:marks/0`) are shared by its process, by processes of
its handler, and by its session's process.

Internal.
""".

-export([take/3, start/4, run/4, give_back/4, has_ended/2, lost/2, is_elsewhere/1]).

-export_type([session/0]).

-doc """
The session of a call: its id, its principal, its process and its server. `streams` is `true` if the
connection that waits for the answer can be sent a stream.
""".
-type session() :: #{
    id := binary(), principal := erlmcp_auth:principal(), pid := pid(),
    instance := erlmcp_instance:instance(), streams := boolean()
}.

-doc """
Adds `Count` to the running calls of a session. Returns a refusal, and adds nothing, if there would
be more than `calls_per_connection`. Returns `ok`, and adds nothing, if the session has ended.
""".
-spec take(erlmcp_session_table:session_id(), Count :: non_neg_integer(),
           erlmcp_instance:instance()) ->
    ok | {error, erlmcp_refusal:refusal()}.
take(Id, Count, #{limits := #{calls_per_connection := Max}} = Instance) ->
    case erlmcp_session_table:take_calls(Id, Count, Max, Instance) of
        ok ->
            ok;
        full ->
            {error, erlmcp_refusal:new(concurrent_limit_exceeded,
                                       ~"too many requests in flight in this session",
                                       #{limit => Max, observed => Max + 1,
                                         retry_after_ms => 1000})}
    end.

-doc """
Starts a call and returns its process, which is not linked to the calling one. `Waiting` is the
connection that waits for the call's answer.
""".
-spec start(erlmcp_engine:call(), erlmcp_instance:instance(), Waiting :: erlmcp_call:owner(),
            session()) -> pid().
start(#{id := Id} = Call, #{limits := Limits} = Instance, Waiting, Session) ->
    Start = fun() ->
        %% The connection may end before the call, so the call's process holds the permit.
        ok = erlmcp_call:take_over(Call),
        Run = fun(Owner) ->
            ok = erlmcp_heap:bound_call(Limits),
            {reply, Status, Bytes} = erlmcp_call:run(Call, Owner, Instance),
            {Status, Bytes}
        end,
        Entry = {call, [Id], erlmcp_call:subject(Call), erlmcp_call:permit(Call)},
        run(Session, Entry, Waiting, Run) =:= ended
            andalso erlmcp_call:not_begun(Call, Instance)
    end,
    %% If its memory bound ends the call, the session's process answers, which must know it first.
    case spawn_opt(Start, erlmcp_heap:of_unbounded_call()) of
        Pid when is_pid(Pid) -> Pid
    end.

-doc """
Runs a call or a batch of a session in the calling process. `Run` gets the owner of the call's
reports, and returns the call's status and answer. The answer is sent to `Waiting`, or through the
session if the call has reported something. If the session has ended, `Run` is not called, and
`Waiting` is sent the answer of `lost/2`. Then the function returns `ended` if the caller has to
count the requests as ended. Otherwise it returns `ok`.
""".
-spec run(session(), erlmcp_calls:entry(), Waiting :: erlmcp_call:owner(),
          Run :: fun((erlmcp_call:owner()) -> {erlmcp_reply:status(), iodata()})) -> ok | ended.
run(#{pid := Pid, instance := Instance} = Session, {Kind, Ids, _, _} = Entry, Waiting, Run) ->
    Marks = erlmcp_call_messages:new_marks(),
    case adopted(Session, Entry, Waiting, Marks) of
        true ->
            Owner = erlmcp_call_messages:session_owner(Pid, Marks),
            {Status, Bytes} = Run(Owner),
            case erlmcp_call_messages:has_reported(Marks) of
                true ->
                    erlmcp_call_messages:answer(Owner, Status, Bytes);
                false ->
                    #{id := Id} = Session,
                    %% If the session has already subtracted the call, it has answered too.
                    _ = give_back(Marks, length(Ids), Id, Instance) =:= given andalso
                        erlmcp_call_messages:answer(Waiting, Status, Bytes),
                    ok
            end;
        false ->
            %% The process of the session may still adopt the call, and end it.
            case erlmcp_call_messages:give_back(Marks) of
                true ->
                    ok = erlmcp_call_messages:answer(Waiting, 200, lost(Entry, Session)),
                    ended;
                false when Kind =:= batch ->
                    ended;
                false ->
                    ok
            end
    end.

%% Links the calling process to the session's process, and makes that process its owner. Returns
%% `false` if the session has ended.
adopted(#{id := Id, pid := Pid, instance := Instance, streams := Streams}, Entry, Waiting, Marks) ->
    %% Without this, a session that is just ending could end the call, and nobody would answer: the
    %% exit signal of the failed link comes after `link/1` then.
    Traps = process_flag(trap_exit, true),
    true = link(Pid),
    ok = erlmcp_call_messages:adopt(Pid, #{call => self(), entry => Entry, waiting => Waiting,
                                           streams => Streams, marks => Marks}),
    %% A session deletes its row before its process ends. If the row is there now, the process
    %% will still adopt the call. A process that was killed has deleted nothing.
    IsOpen = erlmcp_session_table:is_member(Id, Instance),
    _ = IsOpen orelse unlink(Pid),
    Adopted = receive {'EXIT', Pid, _} -> false
              after 0 -> IsOpen
              end,
    _ = process_flag(trap_exit, Traps),
    Adopted.

-doc """
Subtracts a call, which answers `Count` requests, from the running calls of the session with the
given id. The call and the session's process may both call this function. The first one gets
`given`, and answers the requests unless they are cancelled. The other one gets `already`.
""".
-spec give_back(erlmcp_call_messages:marks(), Count :: non_neg_integer(), binary(),
                erlmcp_instance:instance()) ->
    given | already.
give_back(Marks, Count, Id, Instance) ->
    %% A call that has just ended may be cancelled, or pass its deadline, before the session gets
    %% its exit signal.
    case erlmcp_call_messages:give_back(Marks) of
        true ->
            ok = erlmcp_session_table:count_calls(Id, -Count, Instance),
            given;
        false ->
            already
    end.

-doc """
Returns `true` if a call that the session's process is about to adopt has already sent its answer
itself and ended. Then the session need not adopt the call. In this case the function takes the
call's exit signal out of the mailbox.
""".
-spec has_ended(Call :: pid(), erlmcp_call_messages:marks()) -> boolean().
has_ended(Call, Marks) ->
    case erlmcp_call_messages:is_given_back(Marks) of
        true ->
            receive {'EXIT', Call, normal} -> true
            after 0 -> false
            end;
        false ->
            false
    end.

-doc """
Returns the answer of a call or a batch that ends with its session. Its error is `session_invalid`,
or `dependency_unavailable` if the session may go on at another node.
""".
-spec lost(erlmcp_calls:entry(), Session) -> binary() when
    Session :: #{id := binary(), principal := erlmcp_auth:principal(),
                 instance := erlmcp_instance:instance(), _ => _}.
lost({Kind, Ids, _, _}, Session) ->
    Refusal = case is_elsewhere(Session) of
        true ->
            erlmcp_refusal:new(dependency_unavailable,
                               ~"the session has left its node: the request may have run",
                               #{retry_after_ms => 1000});
        false ->
            erlmcp_refusal:new(session_invalid,
                               ~"the session has ended, and this request with it")
    end,
    iolist_to_binary(erlmcp_message:errors({Kind, Ids}, Refusal)).

-doc """
Returns `true` if a session that this node does not have any more may go on at another node. Returns
`false` if the session has ended: the server has no cluster, the cluster does not have the session,
or this node is its home.
""".
-spec is_elsewhere(Session) -> boolean() when
    Session :: #{id := binary(), principal := erlmcp_auth:principal(),
                 instance := erlmcp_instance:instance(), _ => _}.
is_elsewhere(#{instance := #{cluster := none}}) ->
    false;
is_elsewhere(#{id := Id, principal := Principal, instance := #{cluster := {Module, State}}}) ->
    case Module:find_session(Id, Principal, State) of
        inherited -> false;
        unknown -> false;
        _ -> true
    end.
