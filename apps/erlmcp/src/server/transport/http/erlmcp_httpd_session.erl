-module(erlmcp_httpd_session).
-moduledoc """
Handles requests that name an HTTP session. GET opens the session's stream, and DELETE ends the
session. A message may start calls of the session, and subscribe it to resources.

Source: specification 2025-11-25, "Transports / Session Management" and "/ Resumability and
Redelivery".

Internal.
""".

-export([get/4, delete/3, gone/0]).
-export([of_message/4, start/4, watch/3]).

-export_type([session/0]).

-doc "A session that was found: its id, its process if it had one then, and its state.".
-type session() :: {Id :: binary(), pid() | none, erlmcp_engine:session()}.

-doc """
Attaches a connection to a session's own stream, or to the stream that `Last-Event-ID` in its
headers names. Returns the session's process, or a refusal.
""".
-spec get(Id :: binary(), erlmcp_auth:principal(),
          {erlmcp_call:owner(), Headers :: #{binary() => binary()}}, erlmcp_instance:instance()) ->
    {ok, Session :: pid()} | {refuse, erlmcp_refusal:refusal()}.
get(Id, Principal, {Owner, Headers}, Instance) ->
    maybe
        {_, _, _} ?= find(Id, Principal, Instance),
        {ok, Pid} ?= erlmcp_session:process(Id, Instance),
        ok ?= opened(Pid, Owner, Headers),
        {ok, Pid}
    else
        unknown -> {refuse, gone()};
        ended -> {refuse, gone()};
        {error, closed} -> {refuse, gone()};
        {error, attached} ->
            {refuse, erlmcp_refusal:new(entity_duplicate, ~"this session has its stream open")};
        {error, gone} ->
            #{~"last-event-id" := EventId} = Headers,
            {refuse, erlmcp_refusal:new(invalid_header,
                                        [~"Last-Event-ID: the events after this one are not kept: ",
                                         erlmcp_printable:quoted(EventId)],
                                        #{status => 400})}
    end.

opened(Pid, Owner, #{~"last-event-id" := EventId}) ->
    erlmcp_session:resume_stream(Pid, EventId, Owner);
opened(Pid, Owner, _) ->
    erlmcp_session:open_stream(Pid, Owner).

-doc """
Ends a session. Returns a refusal if the principal has no such session.
""".
-spec delete(Id :: binary(), erlmcp_auth:principal(), erlmcp_instance:instance()) ->
    ok | {refuse, erlmcp_refusal:refusal()}.
delete(Id, Principal, Instance) ->
    case find(Id, Principal, Instance) of
        {Id, _, _} ->
            erlmcp_session:delete(Id, Instance);
        unknown ->
            {refuse, gone()}
    end.

-doc "Returns the refusal of a session that does not exist.".
-spec gone() -> erlmcp_refusal:refusal().
gone() ->
    erlmcp_refusal:new(session_invalid, ~"Mcp-Session-Id: no such session; initialize a new one").

-doc """
Returns the session `Id` of a message. Returns `none` for a stateless message, whose session is
ignored, and `unknown` if the principal has no such session.
""".
-spec of_message(Json :: term(), Id :: binary(), erlmcp_engine:request_context(),
                 erlmcp_instance:instance()) -> session() | unknown | none.
of_message(Json, Id, #{principal := Principal} = RequestContext, Instance) ->
    case erlmcp_engine:era(Json, RequestContext) of
        stateless -> none;
        session -> find(Id, Principal, Instance)
    end.

%% A session of another principal is answered as one that does not exist.
find(Id, Principal, Instance) ->
    case erlmcp_session_table:find(Id, Principal, Instance) of
        {ok, Pid, Session} -> {Id, Pid, Session};
        error -> unknown
    end.

-doc """
Starts calls of a session, for a connection that waits for their answers. `Streams` is `true` if the
connection's client reads streams. `ran` is a quick call that has ended, and has reported something.
Returns the session's process, the answer of a call that was refused or has ended, or `gone` if the
session has just ended.
""".
-spec start(Calls, session(), {Waiting :: erlmcp_call:owner(), Streams :: boolean()},
            erlmcp_instance:instance()) ->
    {ok, pid()} | erlmcp_reply:reply() | {gone, erlmcp_message:id() | undefined} when
    Calls :: {call, erlmcp_engine:call()} | {batch, [erlmcp_admission:effect(), ...]}
        | {ran, erlmcp_engine:call(), Said :: [erlmcp_call_messages:message()],
           erlmcp_reply:reply()}.
start(Calls, {Id, none, Session}, Waiting, Instance) ->
    case erlmcp_session:process(Id, Instance) of
        {ok, Pid} -> start(Calls, {Id, Pid, Session}, Waiting, Instance);
        ended -> ended(Calls, Instance)
    end;
start(Calls, {Id, Pid, _} = Session, {Waiting, Streams}, Instance) ->
    OfCalls = #{id => Id, pid => Pid, instance => Instance, streams => Streams},
    case started(Calls, Session, Waiting, OfCalls) of
        ok -> {ok, Pid};
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

-doc "Subscribes a session to a resource, or ends its subscription, and returns the answer.".
-spec watch({subscribe | unsubscribe, Uri :: binary(), erlmcp_meter:about()}, session(),
            erlmcp_instance:instance()) -> erlmcp_reply:reply().
watch({subscribe, Uri, About}, {SessionId, _, Session}, Instance) ->
    Watched = case erlmcp_session:process(SessionId, Instance) of
        {ok, Pid} -> erlmcp_session:subscribe(Pid, Uri);
        ended -> {error, gone()}
    end,
    watched(Watched, About, Session, Instance);
watch({unsubscribe, _, About}, {_, none, Session}, Instance) ->
    watched(ok, About, Session, Instance);
watch({unsubscribe, Uri, About}, {_, Pid, Session}, Instance) ->
    watched(erlmcp_session:unsubscribe(Pid, Uri), About, Session, Instance).

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
