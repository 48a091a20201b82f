-module(erlmcp_cluster_figures).
-moduledoc """
The figures of the cluster's nodes, for operators. A process of each node sends the node's own
figures to the others once a second, so an overview asks no other node. Figures of a node that has
sent none for five seconds are left out.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0, overview/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(TELL_MS, 1_000).
-define(KEPT_MS, 5_000).

-doc "Starts the process that sends and receives the figures of nodes.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc "Returns the state of the cluster, as `c:erlmcp_server_cluster:overview/1` describes it.".
-spec overview() -> erlmcp_server_cluster:overview().
overview() ->
    Members = members(),
    Leader = erlmcp_cluster_store:leader(),
    Deaths = erlmcp_cluster_members:deaths(),
    Living = maps:groups_from_list(fun({_, Node}) -> Node end, fun({Number, _}) -> Number end,
                                   maps:to_list(erlmcp_cluster_members:incarnations())),
    #{lease_ms => erlmcp_cluster_lease:remaining_ms(), disk => erlmcp_cluster_store:disk(),
      clock => erlmcp_cluster_time:report(), majority => length(Members) div 2 + 1,
      nodes => [maps:merge(figures(Node),
                           #{node => Node, leads => Node =:= Leader,
                             state => state(maps:get(Node, Living, []), Deaths)})
                || Node <- lists:sort(Members)]}.

%% From a table of Ra, so that nobody is asked.
members() ->
    case ra_leaderboard:lookup_members(erlmcp_cluster) of
        undefined -> [];
        Members -> [Node || {_, Node} <- Members]
    end.

%% An earlier incarnation of a node may still be among the living.
state([], _) ->
    dead;
state(Living, Deaths) ->
    case erlmcp_cluster_deaths:is_dead(lists:max(Living), Deaths) of
        true -> leaving;
        false -> alive
    end.

figures(Node) when Node =:= node() ->
    own();
figures(Node) ->
    Now = erlmcp_clock:now_ms(),
    try ets:lookup(?MODULE, Node) of
        [{_, Figures, At}] when Now - At < ?KEPT_MS -> Figures;
        _ -> #{}
    catch
        %% This node is in no cluster.
        error:badarg -> #{}
    end.

own() ->
    Of = [erlmcp_metrics:in_cluster(Instance)
          || {_, _, #{cluster := {erlmcp_cluster, _}} = Instance} <- erlmcp_registry:servers()],
    Sum = fun(Name) -> lists:sum([map_get(Name, Figures) || Figures <- Of]) end,
    #{ahead_s := Ahead} = erlmcp_cluster_time:report(),
    #{lease_ms => erlmcp_cluster_lease:remaining_ms(), sessions => Sum(sessions),
      forwarded => Sum(forwarded), inherited => Sum(inherited), clock_ahead_s => Ahead}.

-doc false.
init([]) ->
    ok = erlmcp_label:set([?MODULE]),
    ?MODULE = ets:new(?MODULE, [named_table, {read_concurrency, true}]),
    self() ! tell,
    {ok, none}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast({figures, 1, Node, #{} = Figures}, State) when is_atom(Node) ->
    true = ets:insert(?MODULE, {Node, Figures, erlmcp_clock:now_ms()}),
    {noreply, State};
%% Of a later release.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(tell, State) ->
    Members = members(),
    %% A node that has left needs no row.
    _ = [ets:delete(?MODULE, Node) || {Node, _, _} <- ets:tab2list(?MODULE),
                                      not lists:member(Node, Members)],
    %% To nodes that are connected only: this process must not wait for another one.
    abcast = gen_server:abcast([Node || Node <- Members, lists:member(Node, nodes())], ?MODULE,
                               {figures, 1, node(), own()}),
    _ = erlang:send_after(?TELL_MS, self(), tell),
    {noreply, State};
handle_info(_, State) ->
    {noreply, State}.
