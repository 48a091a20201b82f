-module(erlmcp_session_sup).
-moduledoc """
Supervises the processes of the HTTP sessions of one server. A session has one from when it is
needed first: for a call, a stream, a subscription. One that dies is gone: clients start anew.

Internal.
""".

-behaviour(supervisor).

-export([start_link/1, process/2]).
-export([init/1]).

-doc "Starts the supervisor of an instance's sessions.".
-spec start_link(erlmcp_instance:instance()) -> supervisor:startlink_ret().
start_link(Instance) ->
    supervisor:start_link(?MODULE, Instance).

-doc "The process of a session, started where there is none yet; `ended` if the session has.".
-spec process(Id :: binary(), erlmcp_instance:instance()) -> {ok, pid()} | ended.
process(Id, Instance) ->
    case erlmcp_session_table:lookup(Id, Instance) of
        {ok, none, Session, Flow} -> start(Id, Session, Flow, Instance);
        {ok, Pid, _, _} -> {ok, Pid};
        error -> ended
    end.

start(Id, Session, Flow, Instance) ->
    Supervisor = erlmcp_instance:supervisor(sessions, Instance),
    try supervisor:start_child(Supervisor, [Id, Session, Flow]) of
        {ok, Pid} when is_pid(Pid) -> {ok, Pid};
        %% Somebody else was first, or has just ended the session.
        {ok, undefined} -> process(Id, Instance)
    catch
        %% The server starts or stops.
        exit:_ -> ended
    end.

-doc false.
init(#{key := Key} = Instance) ->
    ok = erlmcp_label:set([?MODULE], Key),
    ok = erlmcp_instance:put_supervisor(sessions, self(), Instance),
    {ok, {#{strategy => simple_one_for_one, intensity => 1000, period => 1},
          [#{id => session, start => {erlmcp_session, start_link, [Instance]},
             restart => temporary, shutdown => 1000}]}}.
