-module(erlmcp_cluster_sup).
-moduledoc """
The supervisor of the application. From the time when the node joins a cluster until it leaves, this
supervisor has `m:erlmcp_cluster_member_sup` as its child.

Internal.
""".

-behaviour(supervisor).

-export([start_link/0, start_member/1, stop_member/0, is_joined/0, intensity/0]).
-export([init/1, start_joined/1]).

-doc "Starts the supervisor.".
-spec start_link() -> supervisor:startlink_ret().
start_link() ->
    supervisor:start_link({local, ?MODULE}, ?MODULE, []).

-doc """
Starts the processes of a node in a cluster, and waits until the node has joined. The errors are
among those of `erlmcp_cluster:join/1`. Exits if the application does not run.
""".
-spec start_member(erlmcp_cluster:options()) -> ok | {error, term()}.
start_member(Options) ->
    Member = #{id => member, start => {?MODULE, start_joined, [Options]}, type => supervisor,
               modules => [erlmcp_cluster_member_sup]},
    case supervisor:start_child(?MODULE, Member) of
        {ok, _} -> ok;
        {error, {already_started, _}} -> {error, already_joined};
        %% Its processes were stopped, but not by `stop_member/0`.
        {error, already_present} ->
            ok = forget(),
            ok = supervisor:delete_child(?MODULE, member),
            start_member(Options);
        {error, {{shutdown, {failed_to_start_child, _, Reason}}, _}} -> {error, Reason};
        {error, Reason} -> {error, Reason}
    end.

-doc """
Stops the processes of the node in its cluster, and so ends its lease. Does not take the node out of
the cluster: the node's part of the store stays in its folder. Returns `{error, not_joined}` if the
node has not joined.
""".
-spec stop_member() -> ok | {error, not_joined}.
stop_member() ->
    case supervisor:terminate_child(?MODULE, member) of
        ok ->
            ok = forget(),
            supervisor:delete_child(?MODULE, member);
        {error, not_found} -> {error, not_joined}
    end.

forget() ->
    _ = persistent_term:erase(?MODULE),
    erlmcp_cluster_clock:forget().

-doc """
Returns `true` if this node has joined its cluster, also while some of its processes restart.
""".
-spec is_joined() -> boolean().
is_joined() ->
    %% The supervisor is not asked: it is busy while the node joins.
    persistent_term:get(?MODULE, none) =:= joined
        andalso is_pid(whereis(erlmcp_cluster_member_sup)).

-doc "Returns how often the processes of a node in a cluster may restart: 20 times a minute.".
-spec intensity() -> supervisor:sup_flags().
intensity() ->
    %% A store that cannot start takes more than three seconds to say so, so it restarts less often.
    #{intensity => 20, period => 60}.

-doc false.
%% In the supervisor: the process that joins may end before the node has joined.
start_joined(Options) ->
    maybe
        {ok, _} = Started ?= erlmcp_cluster_member_sup:start_link(Options),
        ok = persistent_term:put(?MODULE, joined),
        Started
    end.

-doc false.
init([]) ->
    %% The application may have stopped while the node was in a cluster.
    _ = persistent_term:erase(?MODULE),
    {ok, {intensity(), []}}.
