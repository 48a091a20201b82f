-module(erlmcp_session_call).
-moduledoc """
A call of an HTTP session, or a batch, in its own process: it has a place among those of its
session, is linked to the session's process, and sends its answer to the connection that waits for
it, unless it has reported something before. Then the answer goes the way of that, through the
session.

What is marked of a call is in one place for its process, those of its handler, and its session's.
""".

-export([take/3, run/4, mark_reported/1, give_back/4, has_ended/2]).

-export_type([session/0, marks/0]).

-doc """
What calls know of their session: its id, its process, what it belongs to, and whether the
connection that waits for an answer can be sent a stream.
""".
-type session() :: #{
    id := binary(), pid := pid(), instance := erlmcp_instance:instance(), streams := boolean()
}.
-opaque marks() :: atomics:atomics_ref().

-define(GIVEN_BACK, 1).
-define(REPORTED, 2).

-doc "Takes places for calls of a session, or says that there are none left.".
-spec take(erlmcp_instance:session_id(), Count :: non_neg_integer(), erlmcp_instance:instance()) ->
    ok | {error, erlmcp_refusal:refusal()}.
take(Id, Count, #{limits := #{calls_per_connection := Max}} = Instance) ->
    case erlmcp_instance:take_calls(Id, Count, Max, Instance) of
        ok ->
            ok;
        full ->
            {error, erlmcp_refusal:new(concurrent_limit_exceeded,
                                       ~"too many requests in flight in this session",
                                       #{limit => Max, observed => Max + 1,
                                         retry_after_ms => 1000})}
    end.

-doc """
Runs a call or a batch, whose process calls this, as one of a session. `Run` is given the owner of
what it reports, and gives its answer. `ended`: the session has, and nothing ran.
""".
-spec run(session(), erlmcp_calls:entry(), Waiting :: erlmcp_call:owner(),
          fun((erlmcp_call:owner()) -> {erlmcp_reply:status(), iodata()})) -> ok | ended.
run(#{pid := Session} = Known, {_, Ids, _, _} = Entry, {Pid, Tag} = Waiting, Run) ->
    Marks = atomics:new(2, []),
    case erlmcp_session:adopt(Known, Entry, Waiting, Marks) of
        ok ->
            Owner = {Session, {erlmcp_call, self(), Marks}},
            {Status, Bytes} = Run(Owner),
            case atomics:get(Marks, ?REPORTED) of
                1 ->
                    erlmcp_call_report:to_owner(Owner, {answer, Status, Bytes});
                0 ->
                    #{id := Id, instance := Instance} = Known,
                    %% Where the session has, it has answered too.
                    _ = give_back(Marks, length(Ids), Id, Instance) =:= given andalso
                        (Pid ! {Tag, {answer, Status, Bytes}}),
                    ok
            end;
        ended ->
            Pid ! {Tag, cancelled},
            ended
    end.

-doc "A call of a session, whose marks these are, says something before its answer.".
-spec mark_reported(marks()) -> ok.
mark_reported(Marks) ->
    atomics:put(Marks, ?REPORTED, 1).

-doc """
Gives back the places of a call. One that has just answered may be cancelled, or late, before the
session hears of its end: one of the two does it, and that is the one who answers.
""".
-spec give_back(marks(), Count :: non_neg_integer(), binary(), erlmcp_instance:instance()) ->
    given | already.
give_back(Marks, Count, Id, Instance) ->
    case atomics:exchange(Marks, ?GIVEN_BACK, 1) of
        0 ->
            ok = erlmcp_instance:count_calls(Id, -Count, Instance),
            given;
        1 ->
            already
    end.

-doc """
Whether a call that has just been adopted is over, for the session's process: most are when they are
heard of. One that has answered itself has reported nothing, and leaves nothing to do.
""".
-spec has_ended(Call :: pid(), marks()) -> boolean().
has_ended(Call, Marks) ->
    case atomics:get(Marks, ?GIVEN_BACK) of
        1 ->
            receive {'EXIT', Call, normal} -> true
            after 0 -> false
            end;
        0 ->
            false
    end.
