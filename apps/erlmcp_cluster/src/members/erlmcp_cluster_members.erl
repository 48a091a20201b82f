-module(erlmcp_cluster_members).
-moduledoc """
Watches the leases of all nodes. The process declares a node dead when the node's lease has stood
still for 1,250 ms by this node's clock, and writes the death down. Without a valid lease of its
own, this node declares none dead. The process also connects this node to members that it has lost
the connection to. It closes a connection to a member without a lease that is full at two looks, a
second apart.

Each incarnation has a process on each node, which ends when that node knows that the incarnation
has ended. Processes that wait for the next home of a session monitor it.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0, home/2, incarnations/0, deaths/0, is_over/1]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-define(WATCH_MS, 100).
-define(CONNECT_MS, 1_000).
%% After so many looks without a lease, the store finds out why. It asks all nodes, which a cluster
%% that is only busy should not do.
-define(WITHOUT, 10).
%% A lease must stand still for longer than it is valid. The rest is for clocks that do not run at
%% the same speed.
-define(STILL_MS, (erlmcp_cluster_lease:validity_ms() + 250)).

%% How long a lease that has ended waits for the node with the oldest incarnation.
-define(UNWRITTEN_MS, 500).

-record(state, {
    %% each lease as it was first seen, and when
    seen = #{} :: #{erlmcp_cluster_deaths:incarnation() =>
                        {erlmcp_cluster_store:lease(), Since :: integer()}},
    %% how many looks this node has had no lease for
    without = 0 :: non_neg_integer(),
    %% the dead nodes to which the connection had no room at the last look
    full = [] :: [node()]
}).

-doc "Starts the process that watches the leases of all nodes.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc """
Returns the home of the session with the name `Name`, which the incarnation `First` opened. `Watch`
is the process of the home's incarnation on this node. Returns `unseen` if this node has not heard
of the home yet. Returns `unknown` if the session has no home, or if the death of its home is
forgotten.
""".
-spec home(erlmcp_cluster_session_id:nonce(), First :: erlmcp_cluster_deaths:incarnation()) ->
    {ok, {node(), erlmcp_cluster_deaths:incarnation()}, Watch :: pid()} | unseen | unknown.
home(Name, First) ->
    {Living, Deaths} = view(),
    case erlmcp_cluster_deaths:home(Name, First, Deaths) of
        {ok, Incarnation} when is_map_key(Incarnation, Living) ->
            {Node, Watch} = map_get(Incarnation, Living),
            {ok, {Node, Incarnation}, Watch};
        {ok, Incarnation} ->
            case is_unseen(Incarnation, Living, Deaths) of
                true -> unseen;
                false -> unknown
            end;
        none ->
            unknown
    end.

%% Numbers are given out in order, but leases are opened in any. So a lower one than others may be
%% later, unless deaths were forgotten.
is_unseen(Incarnation, Living, Deaths) ->
    Dead = [Known || {Known, _} <- erlmcp_cluster_deaths:list(Deaths)],
    length(Dead) =:= erlmcp_cluster_deaths:epoch(Deaths)
        orelse lists:all(fun(Known) -> Incarnation > Known end, maps:keys(Living) ++ Dead).

-doc """
Returns the incarnations that live or are leaving, with their nodes, as this node knows them. An
incarnation that has ended is among them until its death is written down. The map is empty while
this node is in no cluster, or has not seen the leases yet.
""".
-spec incarnations() -> #{erlmcp_cluster_deaths:incarnation() => node()}.
incarnations() ->
    #{Incarnation => Node || Incarnation := {Node, _} <- element(1, view())}.

-doc "Returns the deaths that this node knows of.".
-spec deaths() -> erlmcp_cluster_deaths:deaths().
deaths() ->
    element(2, view()).

-doc """
Returns `true` if an incarnation has ended. This node must have heard of the incarnation. Returns
`false` if the incarnation lives or is leaving, and also if the store does not answer.
""".
-spec is_over(non_neg_integer()) -> boolean().
is_over(Incarnation) ->
    case erlmcp_cluster_store:leases(low_latency) of
        {ok, #{Incarnation := {How, _, _}}} -> How =:= dead orelse How =:= left;
        {ok, _} -> true;
        {error, _} -> false
    end.

view() ->
    persistent_term:get(?MODULE, {#{}, erlmcp_cluster_deaths:new()}).

-doc false.
init([]) ->
    _ = process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE]),
    %% The process before this one may have been killed, and those of its incarnations with it.
    _ = persistent_term:erase(?MODULE),
    self() ! watch,
    self() ! connect,
    {ok, #state{}}.

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(watch, State) ->
    Next = watch(State),
    _ = erlang:send_after(?WATCH_MS, self(), watch),
    {noreply, Next};
%% A connection that was lost comes back only if a process asks for it. That may take seconds.
handle_info(connect, #state{without = Before, full = FullBefore} = State) ->
    Members = erlmcp_cluster_store:members() -- [node()],
    Dead = dead(Members, maps:values(incarnations())),
    %% A member without a lease may also be one that is about to have one. What it is sent then may
    %% fill the connection for a moment.
    Full = erlmcp_cluster_store:close_full(Dead, FullBefore),
    lists:foreach(fun(Node) -> spawn(net_kernel, connect_node, [Node]) end, Members -- nodes()),
    Without = case erlmcp_cluster_lease:is_valid() of
        true -> 0;
        false -> Before + 1
    end,
    _ = Without > 0 andalso Without rem ?WITHOUT =:= 0
        andalso erlmcp_cluster_store:without_lease(),
    _ = erlang:send_after(?CONNECT_MS, self(), connect),
    {noreply, State#state{without = Without, full = Full}};
handle_info(_, State) ->
    {noreply, State}.

%% This node may not have seen the leases yet.
dead(_, []) -> [];
dead(Members, Living) -> Members -- Living.

watch(#state{seen = Seen} = State) ->
    maybe
        {ok, Leases} ?= erlmcp_cluster_store:leases(low_latency),
        {ok, Deaths} ?= erlmcp_cluster_store:deaths(low_latency),
        ok = show(Leases, Deaths),
        Now = erlmcp_clock:now_ms(),
        case erlmcp_cluster_lease:is_valid() of
            true ->
                Watched = maps:map(fun(Incarnation, Lease) ->
                                       seen(Incarnation, Lease, Now, Seen)
                                   end, Leases),
                ok = end_all(Watched, Deaths, Now),
                State#state{seen = Watched};
            %% Perhaps the others are well, and this node is alone. With a lease again, it gives all
            %% others their full time.
            false ->
                State#state{seen = #{}}
        end
    else
        %% The store starts, or has no answer.
        {error, _} -> State#state{seen = #{}}
    end.

show(Leases, Deaths) ->
    {Before, _} = View = view(),
    Living = #{Incarnation => living(Incarnation, Node, Before)
               || Incarnation := {_, Node, _} <- Leases},
    case {Living, Deaths} of
        View ->
            ok;
        Next ->
            ok = persistent_term:put(?MODULE, Next),
            erlmcp_cluster_events:members_changed()
    end,
    %% Whoever hears of an end finds the next home.
    _ = [Watch ! ended || {_, Watch} <- maps:values(maps:without(maps:keys(Living), Before))],
    ok.

living(Incarnation, Node, Before) ->
    case Before of
        #{Incarnation := Known} -> Known;
        #{} -> {Node, spawn_link(fun() -> stay(Incarnation) end)}
    end.

stay(Incarnation) ->
    ok = erlmcp_label:set([?MODULE, Incarnation]),
    receive ended -> ok end.

seen(Incarnation, Lease, Now, Seen) ->
    case Seen of
        #{Incarnation := {Lease, _} = Same} -> Same;
        #{} -> {Lease, Now}
    end.

%% The node with the oldest incarnation writes a death down, and any other one half a second later.
%% Few nodes should attempt it, since an attempt writes all deaths that are remembered.
end_all(Watched, Deaths, Now) ->
    Living = [Incarnation || Incarnation := {{alive, _, _}, _} <- Watched],
    IsOldest = Living =/= [] andalso lists:min(Living) =:= erlmcp_cluster_lease:lasting(),
    maps:foreach(
        fun(Incarnation, {{How, _, _} = Lease, Since}) when How =:= alive; How =:= leaving ->
                Now - Since >= ?STILL_MS andalso declare(Incarnation, Lease),
                %% The node that leaves does it, too. If this fails, it is done again.
                IsOldest andalso How =:= leaving
                    andalso not erlmcp_cluster_deaths:is_dead(Incarnation, Deaths)
                    andalso erlmcp_cluster_store:bury(Incarnation);
           (Incarnation, {_, Since}) ->
                (IsOldest orelse Now - Since >= ?UNWRITTEN_MS)
                    andalso erlmcp_cluster_store:bury(Incarnation)
        end, Watched).

declare(Incarnation, {_, Node, _} = Lease) ->
    case erlmcp_cluster_store:end_lease(Incarnation, Lease, dead) of
        ok ->
            ok = erlmcp_log:report(warning, #{what => cluster_node_declared_dead, node => Node,
                                              incarnation => Incarnation}),
            erlmcp_cluster_store:bury(Incarnation);
        %% It was renewed, or another node was first, or there is no majority.
        _ ->
            ok
    end.

-doc false.
terminate(_, _) ->
    persistent_term:erase(?MODULE).
