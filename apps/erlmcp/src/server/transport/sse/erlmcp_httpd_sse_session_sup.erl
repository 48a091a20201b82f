-module(erlmcp_httpd_sse_session_sup).
-moduledoc """
Supervises the HTTP+SSE sessions of one server. They end before its listeners, so that their streams
can still be ended in order.

Internal.
""".

-behaviour(supervisor).

-export([start_link/1]).
-export([init/1]).

-doc "Starts the supervisor of an instance's HTTP+SSE sessions.".
-spec start_link(erlmcp_instance:instance()) -> supervisor:startlink_ret().
start_link(Instance) ->
    supervisor:start_link(?MODULE, Instance).

-doc false.
init(#{key := Key} = Instance) ->
    ok = erlmcp_label:set([?MODULE], Key),
    ok = erlmcp_instance:put_supervisor(sse_sessions, self(), Instance),
    {ok, {#{strategy => simple_one_for_one, intensity => 1000, period => 1},
          [#{id => sse_session, start => {erlmcp_httpd_sse_session, start_link, [Instance]},
             restart => temporary, shutdown => 1000}]}}.
