-module(erlmcp_http_session).
-moduledoc """
The requests that name an HTTP session and carry no message: GET, for the session's stream, and
DELETE, its end, whose answers are cowboy's commands. And what a session's messages ask of it at
once: what it watches, and places for the calls of a batch.

Source: specification 2025-11-25, "Transports / Session Management" and "/ Resumability and
Redelivery".
""".

-export([find/3, get/4, delete/3, gone/0]).
-export([watch/2, batched/3]).

-type found() :: {Id :: binary(), pid(), erlmcp_engine:session()} | unknown.

-doc "A principal's session. Another's is as unknown as one that is not there.".
-spec find(Id :: binary(), erlmcp_auth:principal(), erlmcp_instance:instance()) -> found().
find(Id, Principal, Instance) ->
    case erlmcp_instance:find_session(Id, Principal, Instance) of
        {ok, Pid, Session} -> {Id, Pid, Session};
        error -> unknown
    end.

-doc "Makes the owner the connection of a session's stream, or of one that goes on; or refuses it.".
-spec get(Id :: binary(), erlmcp_auth:principal(),
          {erlmcp_call:owner(), Headers :: #{binary() => binary()}}, erlmcp_instance:instance()) ->
    {ok, Session :: pid()} | {refuse, erlmcp_refusal:refusal()}.
get(Id, Principal, {Owner, Headers}, Instance) ->
    maybe
        {_, Pid, _} ?= find(Id, Principal, Instance),
        ok ?= opened(Pid, Owner, Headers),
        {ok, Pid}
    else
        unknown -> {refuse, gone()};
        {error, closed} -> {refuse, gone()};
        {error, attached} ->
            {refuse, erlmcp_refusal:new(entity_duplicate, ~"this session has its stream open")};
        {error, gone} ->
            {refuse, erlmcp_refusal:new(invalid_header,
                                        ~"Last-Event-ID: what follows this event is not kept",
                                        #{status => 400})}
    end.

opened(Pid, Owner, #{~"last-event-id" := EventId}) ->
    erlmcp_session:resume_stream(Pid, EventId, Owner);
opened(Pid, Owner, _) ->
    erlmcp_session:open_stream(Pid, Owner).

-doc "Ends a session.".
-spec delete(Id :: binary(), erlmcp_auth:principal(), erlmcp_instance:instance()) ->
    cowboy_stream:commands().
delete(Id, Principal, Instance) ->
    case find(Id, Principal, Instance) of
        {Id, Pid, _} ->
            %% Gone for every request after this one, also before the process has ended.
            ok = erlmcp_instance:delete_session(Id, Instance),
            ok = erlmcp_session:close(Pid),
            erlmcp_http_response:respond(204, #{}, <<>>);
        unknown ->
            erlmcp_http_response:refuse(gone())
    end.

-doc "What is said of a session that is not there.".
-spec gone() -> erlmcp_refusal:refusal().
gone() ->
    erlmcp_refusal:new(session_invalid, ~"Mcp-Session-Id: no such session; initialize a new one").

-doc "The session watches a resource, or does so no longer: the answer.".
-spec watch({subscribe | unsubscribe, erlmcp_message:id(), Uri :: binary()},
            {Id :: binary(), pid(), erlmcp_engine:session()}) -> erlmcp_reply:reply().
watch({subscribe, Id, Uri}, {_, Pid, Session}) ->
    watched(erlmcp_session:subscribe(Pid, Uri), Id, Session);
watch({unsubscribe, Id, Uri}, {_, Pid, Session}) ->
    watched(erlmcp_session:unsubscribe(Pid, Uri), Id, Session).

watched(ok, Id, _) ->
    erlmcp_reply:result(Id, ~"{}");
watched({error, Refusal}, Id, #{revision := Revision}) ->
    erlmcp_reply:refuse(Id, Refusal, Revision).

-doc """
An item of a session's batch: its calls count like others, and what is neither a call nor an answer
is done.
""".
-spec batched(erlmcp_engine:effect(), {Id :: binary(), pid(), erlmcp_engine:session()},
              erlmcp_instance:instance()) -> erlmcp_engine:effect().
batched({call, #{id := Id} = Call} = Item, {SessionId, _, #{revision := Revision}}, Instance) ->
    case erlmcp_session:take_calls(SessionId, 1, Instance) of
        ok ->
            Item;
        {error, Refusal} ->
            ok = erlmcp_call:leave(Call),
            erlmcp_reply:refuse(Id, Refusal, Revision)
    end;
batched({Watching, _, _} = Watch, Session, _) when
    Watching =:= subscribe; Watching =:= unsubscribe
->
    watch(Watch, Session);
batched({listen, #{id := Id}}, _, _) ->
    erlmcp_batch:refuse_listen(Id);
batched(Item, _, _) ->
    Item.
