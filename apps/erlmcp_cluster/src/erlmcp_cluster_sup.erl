-module(erlmcp_cluster_sup).
-moduledoc """
The supervisor of the application. It has the `pg` scope `erlmcp_cluster_scope`. When the node joins
a cluster, it has `m:erlmcp_cluster_member_sup`, too.

Internal.
""".

-behaviour(supervisor).

-export([start_link/0, start_member/1, stop_member/0]).
-export([init/1]).

-doc "Starts the supervisor.".
-spec start_link() -> supervisor:startlink_ret().
start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

-doc "Starts the processes of a node in a cluster, and waits until the node has joined.".
-spec start_member(erlmcp_cluster:options()) -> ok | {error, term()}.
start_member(Options) ->
    Member = #{id => member, start => {erlmcp_cluster_member_sup, start_link, [Options]},
               type => supervisor, restart => transient},
    case supervisor:start_child(?MODULE, Member) of
        {ok, _} -> ok;
        {error, {already_started, _}} -> {error, already_joined};
        {error, already_present} -> {error, already_joined};
        {error, {{shutdown, {failed_to_start_child, _, Reason}}, _}} -> {error, Reason};
        {error, Reason} -> {error, Reason}
    end.

-doc "Stops these processes. The node's part of the store stays in its folder.".
-spec stop_member() -> ok | {error, not_joined}.
stop_member() ->
    case supervisor:terminate_child(?MODULE, member) of
        ok -> supervisor:delete_child(?MODULE, member);
        {error, not_found} -> {error, not_joined}
    end.

-doc false.
init([]) ->
    {ok, {#{}, [#{id => pg, start => {pg, start_link, [erlmcp_cluster_scope]}}]}}.
