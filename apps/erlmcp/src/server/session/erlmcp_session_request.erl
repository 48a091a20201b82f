-module(erlmcp_session_request).
-moduledoc """
Handles requests of an HTTP session on the node that has the session. A message may start calls of
the session, answer its calls, and subscribe it to resources. GET opens the session's stream, and
DELETE ends the session.

A connection calls these functions for the sessions of its own node. A request that came to another
node is a visit: a process of this node that handles the request and ends (`visit/1`). Its outcome
is its exit reason. The connection, or what stands for it on the other node
(`m:erlmcp_session_forward`), is the owner that waits for the answer in either case.

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
What a message comes with. `waiting` is the owner that waits for the answer, and `streams` is `true`
if its client reads streams. A quick call may run in the calling process if `quick` is `true`.
""".
-type request() :: #{
    context := erlmcp_engine:request_context(), tenant := erlmcp_gate:tenant(),
    waiting := erlmcp_call:owner(), streams := boolean(), quick := boolean(),
    instance := erlmcp_instance:instance()
}.
-doc """
The outcome of a message: its answer, or the process of the session, which will send the owner the
answer. `gone` is the answer if the session has just ended.
""".
-type outcome() ::
    erlmcp_reply:reply() | accepted | {session, pid()} | {gone, erlmcp_message:id() | undefined}.
-doc """
A request that came to another node. `asks` is the decoded message with its bytes, `get` with the
`Last-Event-ID`, or `delete`.
""".
-type visit() :: #{
    server := term(), session := binary(),
    asks := {message, Json :: term(), Bytes :: non_neg_integer()} | {get, binary() | none} | delete,
    identity := erlmcp_auth:identity(), headers := #{binary() => binary()},
    tenant := erlmcp_gate:tenant(), from := {Version :: atom(), Peer :: tuple()},
    waiting := erlmcp_call:owner(), streams := boolean()
}.
-doc """
The outcome of a visit, in addition to that of a message: `attached` for GET, `ended` for DELETE, a
refusal at the gate with its answer, or a refusal of GET or DELETE. `unknown` is no session of the
principal. `moved` and `unavailable` say that this node is not the session's home, or cannot know
it.
""".
-type visited() ::
    outcome() | {attached, pid()} | ended
    | {refused, erlmcp_refusal:refusal(), erlmcp_reply:reply()}
    | {refuse, erlmcp_refusal:refusal()} | unknown | moved | unavailable | unsupported.

-doc """
Finds a principal's session on this node. A session of another principal is answered as one that
does not exist.
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

-doc "Handles an admitted message of a session.".
-spec message(Json :: term(), erlmcp_admission:admitted(), session(), request()) -> outcome().
message(Json, Admitted, {Id, Pid, Session}, #{context := Context, tenant := Tenant,
                                              instance := Instance} = Request) ->
    Catalog = erlmcp_published_catalog:catalog(Instance),
    {Effects, Next} = erlmcp_engine:handle(Json, Context, Catalog, Session),
    case Next =:= Session orelse update(Id, Session, Next, Instance) of
        {error, Refusal} ->
            Refused = refused(erlmcp_admission:asked(Json), Refusal, Session),
            perform(erlmcp_admission:effects([Refused], Admitted, Tenant, Instance),
                    {Id, Pid, Session}, Request);
        _ ->
            perform(erlmcp_admission:effects(Effects, Admitted, Tenant, Instance),
                    {Id, Pid, Next}, Request)
    end.

refused({Id, _, _} = Asked, Refusal, #{revision := Revision}) ->
    {answer, Asked, {refused, Refusal}, erlmcp_reply:refuse(Id, Refusal, Revision)}.

update(Id, #{log_level := Level}, #{log_level := Level} = Next, Instance) ->
    erlmcp_session_table:update(Id, Next, Instance);
update(Id, _, #{log_level := Level} = Next, Instance) ->
    case erlmcp_session:change(Id, {log_level, Level}, Instance) of
        ok -> erlmcp_session_table:update(Id, Next, Instance);
        {error, _} = Refused -> Refused
    end.

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
    case erlmcp_inline_call:run(Call, erlmcp_instance:of_calls(Instance)) of
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
        ended -> ended(Calls, Instance)
    end;
start(Calls, {Id, Pid, _} = Session, #{waiting := Waiting, streams := Streams,
                                       instance := Instance}) ->
    OfCalls = #{id => Id, pid => Pid, instance => Instance, streams => Streams},
    case started(Calls, Session, Waiting, OfCalls) of
        ok -> {session, Pid};
        {reply, _, _} = Refused -> Refused
    end.

started({call, Call}, {Id, _, _}, Waiting, #{instance := Instance} = OfCalls) ->
    case erlmcp_session_call:take(Id, 1, Instance) of
        ok ->
            _ = erlmcp_session_call:start(Call#{session => Id}, erlmcp_instance:of_calls(Instance),
                                          Waiting, OfCalls),
            ok;
        {error, Refusal} ->
            erlmcp_call:refuse(Call, Refusal, erlmcp_instance:of_calls(Instance))
    end;
started({batch, Items}, Session, Waiting, #{instance := Instance} = OfCalls) ->
    Ready = [batched(Item, Session, Instance) || Item <- Items],
    _ = erlmcp_batch:start(Ready, erlmcp_instance:of_calls(Instance), Waiting, OfCalls),
    ok;
started({ran, Call, Said, Reply}, _, Waiting, OfCalls) ->
    erlmcp_inline_call:tell(Said, Reply, Call, Waiting, OfCalls).

ended({call, #{id := Id} = Call}, Instance) ->
    _ = erlmcp_call:refuse(Call, gone(), erlmcp_instance:of_calls(Instance)),
    {gone, Id};
ended({batch, Items}, Instance) ->
    Known = erlmcp_instance:of_calls(Instance),
    _ = [erlmcp_call:refuse(Call, gone(), Known) || {call, Call} <- Items],
    {gone, undefined};
ended({ran, _, _, Reply}, _) ->
    Reply.

%% Subscribes a session to a resource, or ends its subscription, and returns the answer.
watch({subscribe, Uri, About}, {SessionId, _, Session}, Instance) ->
    Watched = maybe
        {ok, Pid} ?= erlmcp_session:process(SessionId, Instance),
        ok ?= erlmcp_session:subscribe(Pid, Uri),
        {error, _} = Refused ?= erlmcp_session:change(SessionId, {watched, Uri}, Instance),
        _ = erlmcp_session:unsubscribe(Pid, Uri),
        Refused
    else
        ended -> {error, gone()};
        Other -> Other
    end,
    watched(Watched, About, Session, Instance);
watch({unsubscribe, Uri, About}, {SessionId, Pid, Session}, Instance) ->
    Unwatched = maybe
        ok ?= erlmcp_session:change(SessionId, {unwatched, Uri}, Instance),
        true ?= is_pid(Pid),
        erlmcp_session:unsubscribe(Pid, Uri)
    else
        false -> ok;
        {error, _} = Refused -> Refused
    end,
    watched(Unwatched, About, Session, Instance).

watched(ok, About, #{revision := Revision}, Instance) ->
    erlmcp_admission:watched(ok, About, Revision, Instance);
watched({error, Refusal}, About, #{revision := Revision}, Instance) ->
    erlmcp_admission:watched({refuse, Refusal}, About, Revision, Instance).

%% Handles an item of a session's batch. Calls count like others. Items that are neither calls nor
%% answers are performed here.
batched({call, Call} = Item, {SessionId, _, _}, Instance) ->
    case erlmcp_session_call:take(SessionId, 1, Instance) of
        ok ->
            Item;
        {error, Refusal} ->
            erlmcp_call:refuse(Call, Refusal, erlmcp_instance:of_calls(Instance))
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
Attaches an owner to a session's own stream, or to the stream of the event `LastEventId`. Returns
the session's process, or a refusal.
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
        unknown -> {refuse, gone()};
        ended -> {refuse, gone()};
        {error, closed} -> {refuse, gone()};
        {error, attached} ->
            {refuse, erlmcp_refusal:new(entity_duplicate, ~"this session has its stream open")};
        {error, gone} ->
            {refuse, erlmcp_refusal:new(invalid_header,
                                        [~"Last-Event-ID: the events after this one are not kept: ",
                                         erlmcp_printable:quoted(LastEventId)],
                                        #{status => 400})}
    end.

opened(Pid, Owner, none) -> erlmcp_session:open_stream(Pid, Owner);
opened(Pid, Owner, LastEventId) -> erlmcp_session:resume_stream(Pid, LastEventId, Owner).

-doc """
Ends a session. Returns a refusal if the principal has no such session, or its end cannot be stored.
""".
-spec delete(Id :: binary(), erlmcp_auth:principal(), erlmcp_instance:instance()) ->
    ok | {refuse, erlmcp_refusal:refusal()}.
delete(Id, Principal, Instance) ->
    maybe
        {Id, _, _} ?= find(Id, Principal, Instance),
        ok ?= erlmcp_session:change(Id, ended, Instance),
        erlmcp_session:delete(Id, Instance)
    else
        unknown -> {refuse, gone()};
        {error, Refusal} -> {refuse, Refusal}
    end.

%% Visits.

-doc """
Handles a request that came to another node, in a process of its own. It exits with
`{erlmcp_visited, Outcome}`. A later version of the message is answered with `unsupported`.
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
        true ?= is_integer(Module:incarnation(State)),
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
