-module(erlmcp_console_sup).
-moduledoc """
The supervisor of the console's one process, the collector. The supervisor owns the tables of the
page's calls, of errors in the log, and of places that grow.
""".

-behaviour(supervisor).

-export([start_link/0]).
-export([init/1]).

-doc "Starts the supervisor.".
-spec start_link() -> supervisor:startlink_ret().
start_link() -> supervisor:start_link({local, ?MODULE}, ?MODULE, []).

-doc false.
init([]) ->
    ok = erlmcp_console_try:open(),
    ok = erlmcp_console_log:open(),
    ok = erlmcp_console_places:open(),
    {ok, {#{}, [#{id => erlmcp_console_collector,
                  start => {erlmcp_console_collector, start_link, []}}]}}.
