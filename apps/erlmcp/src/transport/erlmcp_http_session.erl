-module(erlmcp_http_session).
-moduledoc """
The requests that name an HTTP session and carry no message: GET, for the session's stream, and
DELETE, its end. What they answer is cowboy's commands.

Source: specification 2025-11-25, "Transports / Session Management" and "/ Resumability and
Redelivery".
""".

-export([find/3, get/4, delete/3, gone/0]).

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
