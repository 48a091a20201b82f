-module(erlmcp_sup).
-moduledoc """
The application's own supervisor. Servers and clients do not live here but in their users' trees;
the guards of the node's memory and of its processor time do, who watches quick calls, and who makes
room among unfinished messages. The tables of the node's servers, of who is told of events, of what
waits for the log, of who is in a quick call and of unfinished messages are its own.

Internal.
""".

-behaviour(supervisor).

-export([start_link/0]).
-export([init/1]).

-doc "Starts the supervisor.".
-spec start_link() -> supervisor:startlink_ret().
start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

-doc false.
init([]) ->
    ok = erlmcp_event:open(),
    ok = erlmcp_incident:open(),
    ok = erlmcp_registry:open(),
    ok = erlmcp_inline_call_watchdog:open(),
    ok = erlmcp_unfinished_messages:open(),
    {ok, {#{strategy => one_for_one},
          [#{id => registry, start => {erlmcp_registry, start_link, []}},
           #{id => quick_watch, start => {erlmcp_inline_call_watchdog, start_link, []}},
           #{id => clients, start => {erlmcp_client_table, start_link, []}},
           #{id => unfinished, start => {erlmcp_unfinished_messages, start_link, []}},
           #{id => memory_guard, start => {erlmcp_memory_guard, start_link, []}},
           #{id => processor_guard, start => {erlmcp_processor_guard, start_link, []}}]}}.
