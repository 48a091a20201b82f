-module(erlmcp_cluster_member_sup).
-moduledoc """
The supervisor of a node in a cluster: its keys, its part of the store, its lease, its view of the
other members, what is kept of sessions, the changes of servers, and the tasks that it takes over.
Each process needs those before it, so it restarts with them.

Internal.
""".

-behaviour(supervisor).

-export([start_link/1]).
-export([init/1]).

-doc "Starts the supervisor and its processes.".
-spec start_link(erlmcp_cluster:options()) -> supervisor:startlink_ret().
start_link(Options) ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, Options).

-doc false.
init(#{secret := Sources} = Options) ->
    Children = [{erlmcp_cluster_secret, [Sources]}, {erlmcp_cluster_store, [Options]},
                {erlmcp_cluster_lease, []}, {erlmcp_cluster_members, []},
                {erlmcp_cluster_sessions, []},
                {erlmcp_cluster_changes, []}, {erlmcp_cluster_lost_tasks, []},
                {erlmcp_cluster_figures, []}],
    {ok, {#{strategy => rest_for_one},
          [#{id => Module, start => {Module, start_link, Arguments}, shutdown => 15_000}
           || {Module, Arguments} <- Children]}}.
