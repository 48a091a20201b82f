-module(erlmcp_sup).
-moduledoc """
The application's own supervisor, with the processes that all servers and clients of the node share.
Servers and clients themselves are in their users' trees. The supervisor also owns tables that must
outlive a child, and tables that have no process of their own.

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
    ok = erlmcp_event_handler:open(),
    ok = erlmcp_incident:open(),
    ok = erlmcp_recent_requests:open(),
    ok = erlmcp_registry:open(),
    ok = erlmcp_inline_call_watchdog:open(),
    ok = erlmcp_unfinished_messages:open(),
    ok = erlmcp_span_exporter:open(),
    ok = erlmcp_client_meter:open(),
    ok = erlmcp_forecaster:open(),
    {ok, {#{strategy => one_for_one},
          [#{id => registry, start => {erlmcp_registry, start_link, []}},
           #{id => inline_call_watchdog, start => {erlmcp_inline_call_watchdog, start_link, []}},
           #{id => span_exporter, start => {erlmcp_span_exporter, start_link, []}},
           #{id => clients, start => {erlmcp_client_table, start_link, []}},
           #{id => unfinished, start => {erlmcp_unfinished_messages, start_link, []}},
           #{id => memory_guard, start => {erlmcp_memory_guard, start_link, []}},
           #{id => processor_guard, start => {erlmcp_processor_guard, start_link, []}},
           #{id => forecaster, start => {erlmcp_forecaster, start_link, []}}]}}.
