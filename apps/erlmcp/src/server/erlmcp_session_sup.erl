-module(erlmcp_session_sup).
-moduledoc "Supervises the HTTP sessions of one server. One that dies is gone: clients start anew.".

-behaviour(supervisor).

-export([start_link/1]).
-export([init/1]).

-doc "Starts the supervisor of an instance's sessions.".
-spec start_link(erlmcp_instance:instance()) -> supervisor:startlink_ret().
start_link(Instance) ->
    supervisor:start_link(?MODULE, Instance).

-doc false.
init(Instance) ->
    ok = erlmcp_instance:put_supervisor(sessions, self(), Instance),
    {ok, {#{strategy => simple_one_for_one, intensity => 1000, period => 1},
          [#{id => session, start => {erlmcp_session, start_link, [Instance]},
             restart => temporary, shutdown => 1000}]}}.
