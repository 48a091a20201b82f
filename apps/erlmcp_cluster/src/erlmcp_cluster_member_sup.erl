-module(erlmcp_cluster_member_sup).
-moduledoc """
The supervisor of a node in a cluster. Each of its processes needs some of those before it, and
restarts when one of them does.

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
                {erlmcp_cluster_clock, []}, {erlmcp_cluster_lease, []},
                {erlmcp_cluster_members, []},
                {erlmcp_cluster_events, []}, {erlmcp_cluster_sessions, []},
                {pg, [erlmcp_cluster_scope]},
                {erlmcp_cluster_changes, []}, {erlmcp_cluster_lost_tasks, []},
                {erlmcp_cluster_figures, []}, {erlmcp_cluster_rates, []},
                {erlmcp_cluster_catch_up, [fun erlmcp_cluster_store:catch_up/1]}],
    {ok, {(erlmcp_cluster_sup:intensity())#{strategy => rest_for_one},
          [#{id => Module, start => {Module, start_link, Arguments}, shutdown => 15_000}
           || {Module, Arguments} <- Children]}}.
