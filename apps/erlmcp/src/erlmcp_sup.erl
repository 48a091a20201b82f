-module(erlmcp_sup).
-moduledoc "The application's own supervisor. Servers do not live here but in their users' trees.".

-behaviour(supervisor).

-export([start_link/0]).
-export([init/1]).

-doc "Starts the supervisor.".
-spec start_link() -> supervisor:startlink_ret().
start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

-doc false.
init([]) ->
    {ok, {#{strategy => one_for_one},
          [#{id => registry, start => {erlmcp_registry, start_link, []}}]}}.
