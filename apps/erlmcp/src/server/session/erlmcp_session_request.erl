-module(erlmcp_session_request).
-moduledoc """
Handles requests of an HTTP session on the node that has the session. A message may start calls of
the session, answer its calls, and subscribe it to resources. GET opens the session's stream, or
resumes one of its streams. DELETE ends the session.

A connection calls these functions for the sessions of its own node. A request that was passed on
(`m:erlmcp_session_forward`) is handled by a process of its own, which exits with the outcome
(`visit/1`).

Source: specification 2025-11-25, "Transports / Session Management" and "/ Resumability and
Redelivery".

Internal.
""".

-export([find/3, message/4, get/4, delete/3, gone/0]).
-export([visit/1]).

-export_type([session/0, request/0, outcome/0, visit/0, visited/0]).

-doc "A session that was found: its id, its process if it had one then, and its state.".
-type session() :: {Id :: binary(), pid() | none, erlmcp_engine:session()}.
-doc """
The data that come with a message. `waiting` is the owner that waits for the answer. It is the
connection or, if the request was passed on, the process that has passed it on. `streams` is `true`
if the client reads streams. A quick call may run in the calling process if `quick` is `true`.
""".
-type request() :: #{
    context := erlmcp_engine:request_context(), tenant := erlmcp_gate:tenant(),
    waiting := erlmcp_call:owner(), streams := boolean(), quick := boolean(),
    instance := erlmcp_instance:instance()
}.
-doc """
The outcome of a message.

- a reply: the answer.
- `accepted`: the message has no answer.
- `session`: the owner is sent the answer later. The process is that of the session.
- `gone`: the session has ended before the request with this id could begin a call. The id is
  `undefined` for a batch.
""".
-type outcome() ::
    erlmcp_reply:reply() | accepted | {session, pid()} | {gone, erlmcp_message:id() | undefined}.
-doc """
A request that was passed on (`m:erlmcp_session_forward`), with the ids of its server and its
session. `asks` is the decoded message with the number of its bytes, `get` with the `Last-Event-ID`
or `none`, or `delete`. `from` has the version of HTTP and the client's address.
""".
-type visit() :: #{
    server := term(), session := binary(),
    asks := {message, Json :: term(), Bytes :: non_neg_integer()} | {get, binary() | none} | delete,
    identity := erlmcp_auth:identity(), headers := #{binary() => binary()},
    tenant := erlmcp_gate:tenant(), from := {Version :: atom(), Peer :: tuple()},
    waiting := erlmcp_call:owner(), streams := boolean()
}.
-doc """
The outcome of a request that was passed on: that of a message, or one of these.

- `attached`: GET has a stream. The process is that of the session.
- `ended`: DELETE has ended the session.
- `refused`: the gate has refused a message, with this answer.
- `refuse`: GET or DELETE is refused, or this node cannot inherit the session within its limits.
- `unknown`: the principal has no such session.
- `moved`: this node is not the session's home, or the server does not run in a cluster here.
- `unavailable`: this node may serve no session now.
- `unsupported`: this node does not know the version of the message.
""".
-type visited() ::
    outcome() | {attached, pid()} | ended
    | {refused, erlmcp_refusal:refusal(), erlmcp_reply:reply()}
    | {refuse, erlmcp_refusal:refusal()} | unknown | moved | unavailable | unsupported.

-doc """
Finds a principal's session on this node, and counts the look-up as a use of the session. Returns
`unknown` if the principal has no open session with the id `Id` here.
""".
-spec find(Id :: binary(), erlmcp_auth:principal(), erlmcp_instance:instance()) ->
    session() | unknown.
find(Id, Principal, Instance) ->
    case erlmcp_session_table:find(Id, Principal, Instance) of
        {ok, Pid, Session} -> {Id, Pid, Session};
        error -> unknown
    end.

-doc "Returns the refusal of a session that does not exist.".
-spec gone() -> erlmcp_refusal:refusal().
gone() ->
    erlmcp_refusal:new(session_invalid, ~"Mcp-Session-Id: no such session; initialize a new one").

-doc """
Handles an admitted message of a session: answers it, starts its calls, or passes it on to the
session's process. In a cluster, may wait for other nodes.
""".
-spec message(Json :: term(), erlmcp_admission:admitted(), session(), request()) -> outcome().
message(Json, Admitted, {Id, Pid, Session}, #{context := Context, tenant := Tenant,
                                              instance := Instance} = Request) ->
    Catalog = erlmcp_published_catalog:catalog(Instance),
    {Effects, Next} = erlmcp_engine:handle(Json, Context, Catalog, Session),
    case Next =:= Session orelse update(Id, Session, Next, Instance) of
        {error, Refusal} ->
            Refused = refused(erlmcp_admission:summary(Json), Refusal, Session),
            perform(erlmcp_admission:effects([Refused], Admitted, Tenant, Instance),
                    {Id, Pid, Session}, Request);
        _ ->
            perform(erlmcp_admission:effects(Effects, Admitted, Tenant, Instance),
                    {Id, Pid, Next}, Request)
    end.

refused({Id, _, _} = Asked, Refusal, #{revision := Revision}) ->
    {answer, Asked, {refused, Refusal}, erlmcp_reply:refuse(Id, Refusal, Revision)}.

update(Id, Before, Next, Instance) ->
    Changes = maps:from_list(maps:to_list(Next) -- maps:to_list(Before)),
    case stored(Id, Changes, Instance) of
        ok -> erlmcp_session_table:update(Id, Changes, Instance);
        ended -> {error, missing({Id, none, Next}, Instance)};
        {error, _} = Refused -> Refused
    end.

stored(Id, #{log_level := Level}, Instance) ->
    erlmcp_session:change(Id, {log_level, Level}, Instance);
stored(_, _, _) ->
    ok.

perform([{reply, _, _} = Reply], _, _) ->
    Reply;
perform([accepted], _, _) ->
    accepted;
perform([{response, Id, Outcome} | Effects], {_, Pid, _} = Session, Request) ->
    ok = erlmcp_session:response(Pid, Id, Outcome),
    perform(Effects, Session, Request);
perform([{cancel, Id} | Effects], {_, Pid, _} = Session, Request) ->
    ok = erlmcp_session:cancel(Pid, Id),
    perform(Effects, Session, Request);
perform([{Watching, _, _} = Watch], Session, #{instance := Instance}) when
    Watching =:= subscribe; Watching =:= unsubscribe
->
    watch(Watch, Session, Instance);
perform([{call, #{definition := #{quick := _}} = Call}], Session,
        #{quick := true, instance := Instance} = Request) ->
    case erlmcp_inline_call:run(Call, Instance) of
        {Reply, []} -> Reply;
        {Reply, Said} -> start({ran, Call, Said, Reply}, Session, Request);
        start -> start({call, Call}, Session, Request)
    end;
perform([Calls], Session, Request) ->
    start(Calls, Session, Request).

%% Starts calls of a session. `ran` is a quick call that has ended, and has reported something.
start(Calls, {Id, none, Session}, #{instance := Instance} = Request) ->
    case erlmcp_session:process(Id, Instance) of
        {ok, Pid} -> start(Calls, {Id, Pid, Session}, Request);
        ended -> ended(Calls, {Id, none, Session}, Instance)
    end;
start(Calls, {Id, Pid, #{principal := Principal}} = Session,
      #{waiting := Waiting, streams := Streams, instance := Instance}) ->
    OfCalls = #{id => Id, principal => Principal, pid => Pid, instance => Instance,
                streams => Streams},
    case started(Calls, Session, Waiting, OfCalls) of
        ok -> {session, Pid};
        {reply, _, _} = Refused -> Refused
    end.

started({call, Call}, {Id, _, _}, Waiting, #{instance := Instance} = OfCalls) ->
    case erlmcp_session_call:take(Id, 1, Instance) of
        ok ->
            _ = erlmcp_session_call:start(Call#{session => Id}, Instance, Waiting, OfCalls),
            ok;
        {error, Refusal} ->
            erlmcp_call:refuse(Call, Refusal, Instance)
    end;
started({batch, Items}, Session, Waiting, #{instance := Instance} = OfCalls) ->
    Ready = [batched(Item, Session, Instance) || Item <- Items],
    _ = erlmcp_batch:start(Ready, Instance, Waiting, OfCalls),
    ok;
started({ran, Call, Said, Reply}, _, Waiting, OfCalls) ->
    erlmcp_inline_call:tell(Said, Reply, Call, Waiting, OfCalls).

%% The session has ended, or left this node, since the request has found it.
ended({ran, _, _, Reply}, _, _) ->
    Reply;
ended({call, #{id := Id} = Call}, Session, Instance) ->
    Refusal = missing(Session, Instance),
    Reply = erlmcp_call:refuse(Call, Refusal, Instance),
    gone(Refusal, Id, Reply);
ended({batch, Items}, Session, Instance) ->
    Refusal = missing(Session, Instance),
    Answers = [refused(Item, Refusal, Session, Instance) || Item <- Items],
    Batch = erlmcp_message:batch([Bytes || {reply, _, Bytes} <- Answers]),
    gone(Refusal, undefined, {reply, 200, Batch}).

refused({call, Call}, Refusal, _, Instance) ->
    erlmcp_call:refuse(Call, Refusal, Instance);
refused({_, _, {_, _} = About}, Refusal, Session, Instance) ->
    watched({error, Refusal}, About, Session, Instance);
refused(Answer, _, _, _) ->
    Answer.

%% Only a session that has ended is answered with HTTP's 404, after which its client opens another.
gone(Refusal, Id, Reply) ->
    case erlmcp_refusal:name(Refusal) of
        session_invalid -> {gone, Id};
        _ -> Reply
    end.

%% The refusal of a session that was here, and is not any more. In a cluster it may have another
%% home.
missing({Id, _, #{principal := Principal}}, Instance) ->
    missing(Id, Principal, Instance).

missing(Id, Principal, Instance) ->
    case erlmcp_session_call:is_elsewhere(#{id => Id, principal => Principal,
                                            instance => Instance}) of
        true -> erlmcp_session:unavailable();
        false -> gone()
    end.

%% Subscribes a session to a resource, or ends its subscription, and returns the answer.
watch({subscribe, Uri, About}, {SessionId, _, _} = Found, Instance) ->
    Watched = maybe
        {ok, Pid} ?= erlmcp_session:process(SessionId, Instance),
        {ok, IsNew} ?= erlmcp_session:subscribe(Pid, Uri),
        {error, _} = Refused ?= erlmcp_session:change(SessionId, {watched, Uri}, Instance),
        %% The subscription of another request stays.
        _ = IsNew andalso erlmcp_session:undo_subscribe(Pid, Uri),
        Refused
    else
        ended -> {error, missing(Found, Instance)};
        Other -> Other
    end,
    watched(Watched, About, Found, Instance);
watch({unsubscribe, Uri, About}, {SessionId, Pid, _} = Found, Instance) ->
    Unwatched = maybe
        ok ?= erlmcp_session:change(SessionId, {unwatched, Uri}, Instance),
        true ?= is_pid(Pid),
        ok ?= erlmcp_session:unsubscribe(Pid, Uri)
    else
        false -> ok;
        ended -> {error, missing(Found, Instance)};
        {error, _} = Refused -> Refused
    end,
    watched(Unwatched, About, Found, Instance).

watched(ok, About, {_, _, #{revision := Revision}}, Instance) ->
    erlmcp_admission:watched(ok, About, Revision, Instance);
watched({error, Refusal}, About, {_, _, #{revision := Revision}}, Instance) ->
    erlmcp_admission:watched({refuse, Refusal}, About, Revision, Instance).

%% Handles an item of a session's batch. Calls count like others. Items that are neither calls nor
%% answers are performed here.
batched({call, Call} = Item, {SessionId, _, _}, Instance) ->
    case erlmcp_session_call:take(SessionId, 1, Instance) of
        ok ->
            Item;
        {error, Refusal} ->
            erlmcp_call:refuse(Call, Refusal, Instance)
    end;
batched({Watching, _, _} = Watch, Session, Instance) when
    Watching =:= subscribe; Watching =:= unsubscribe
->
    watch(Watch, Session, Instance);
batched({listen, _, About}, {_, _, #{revision := Revision}}, Instance) ->
    erlmcp_admission:watched({refuse, erlmcp_batch:no_listen()}, About, Revision, Instance);
batched(Item, _, _) ->
    Item.

-doc """
Attaches an owner to the stream of the event `LastEventId` or, with `none`, to the session's own
stream. Returns the session's process, or a refusal in these cases:

- The session does not exist here, or does not answer within five seconds.
- `LastEventId` is `none`, and the session's own stream has a connection already.
- No stream has sent the event `LastEventId`.
- The stream of this event is that of a call, and does not keep the events after `LastEventId`.
""".
-spec get(Id :: binary(), erlmcp_auth:principal(),
          {erlmcp_call:owner(), LastEventId :: binary() | none}, erlmcp_instance:instance()) ->
    {ok, Session :: pid()} | {refuse, erlmcp_refusal:refusal()}.
get(Id, Principal, {Owner, LastEventId}, Instance) ->
    maybe
        {_, _, _} ?= find(Id, Principal, Instance),
        {ok, Pid} ?= erlmcp_session:process(Id, Instance),
        ok ?= opened(Pid, Owner, LastEventId),
        {ok, Pid}
    else
        Missing when Missing =:= unknown; Missing =:= ended; Missing =:= {error, closed} ->
            {refuse, missing(Id, Principal, Instance)};
        {error, attached} ->
            {refuse, erlmcp_refusal:new(entity_duplicate, ~"this session has its stream open")};
        {error, gone} ->
            {refuse, erlmcp_refusal:new(invalid_header,
                                        [~"Last-Event-ID: the events after this one are not kept: ",
                                         erlmcp_printable:quoted(LastEventId)],
                                        #{status => 400})};
        {error, Refusal} ->
            {refuse, Refusal}
    end.

opened(Pid, Owner, none) -> erlmcp_session:open_stream(Pid, Owner);
opened(Pid, Owner, LastEventId) -> erlmcp_session:resume_stream(Pid, LastEventId, Owner).

-doc """
Ends a session. Returns a refusal if the principal has no such session here, or if it is not certain
that the cluster has stored the end.
""".
-spec delete(Id :: binary(), erlmcp_auth:principal(), erlmcp_instance:instance()) ->
    ok | {refuse, erlmcp_refusal:refusal()}.
delete(Id, Principal, Instance) ->
    maybe
        {Id, _, _} ?= find(Id, Principal, Instance),
        ok ?= erlmcp_session:end_for_client(Id, Instance)
    else
        Missing when Missing =:= unknown; Missing =:= ended ->
            {refuse, missing(Id, Principal, Instance)};
        {error, Refusal} ->
            {refuse, Refusal}
    end.

%% Visits.

-doc """
Handles a request that was passed on. The function runs in a process of its own, which it ends by an
exit with the reason `{erlmcp_visited, Outcome}`. The outcome is `unsupported` for a `Version` other
than 1.
""".
-spec visit({visit, Version :: pos_integer(), visit()}) -> no_return().
visit({visit, 1, Visit}) -> exit({erlmcp_visited, visited(Visit)});
visit(_) -> exit({erlmcp_visited, unsupported}).

visited(#{server := Server} = Visit) ->
    case erlmcp_registry:whereis(Server) of
        {ok, _, #{cluster := {_, _}} = Instance} ->
            visited(at_home(Visit, Instance), Visit, Instance);
        %% It has not started here yet, or has ended.
        _ ->
            moved
    end.

at_home(#{session := Id, identity := #{principal := Principal}, tenant := Tenant},
        #{cluster := {Module, State}} = Instance) ->
    maybe
        true ?= is_integer(Module:incarnation(sessions, State)),
        unknown ?= find(Id, Principal, Instance),
        inherited ?= Module:find_session(Id, Principal, State),
        ok ?= erlmcp_session:inherit(Id, Principal, Tenant, Instance),
        find(Id, Principal, Instance)
    else
        false -> unavailable;
        {away, _, _} -> moved;
        unseen -> moved;
        Other -> Other
    end.

visited({_, _, _} = Session, #{asks := {message, Json, Bytes}} = Visit, Instance) ->
    #{identity := Identity, headers := Headers, tenant := Tenant, from := {Version, Peer},
      waiting := Waiting, streams := Streams} = Visit,
    Context = erlmcp_engine:request_context(Identity, Headers),
    Arrival = erlmcp_meter:arrived(Bytes, origin({http, Version, Peer, Headers}, Instance)),
    case erlmcp_admission:enter(Json, Arrival, Tenant, Instance) of
        {ok, Message, Admitted} ->
            message(Message, Admitted, Session,
                    #{context => Context, tenant => Tenant, waiting => Waiting,
                      streams => Streams, quick => false, instance => Instance});
        {refuse, Id, Refusal} ->
            {refused, Refusal, erlmcp_admission:refused(Id, Refusal, Json, Context, true)};
        {unanswered, Refusal} ->
            {refused, Refusal, erlmcp_reply:refuse(undefined, Refusal)};
        {answer, Answer} ->
            {reply, 200, Answer}
    end;
visited({Id, _, #{principal := Principal}}, #{asks := {get, LastEventId}, waiting := Waiting},
        Instance) ->
    case get(Id, Principal, {Waiting, LastEventId}, Instance) of
        {ok, Pid} -> {attached, Pid};
        {refuse, _} = Refused -> Refused
    end;
visited({Id, _, #{principal := Principal}}, #{asks := delete}, Instance) ->
    case delete(Id, Principal, Instance) of
        ok -> ended;
        {refuse, _} = Refused -> Refused
    end;
visited({error, Refusal}, _, _) ->
    {refuse, Refusal};
visited(Elsewhere, _, _) ->
    Elsewhere.

origin(_, #{tracer := none}) -> none;
origin(Origin, _) -> Origin.
