-module(erlmcp_cluster_lost_tasks).
-moduledoc """
Takes over the tasks of dead nodes, for the servers of this node. A task has one home among the
survivors of a death, as a session has. That home fails the task, or runs it again
(`erlmcp_tasks:take_over/4`). Every ten seconds the process also takes running tasks that nobody
runs any more: of dead nodes, and of this node. When this node has a new incarnation, the process
ends the tasks that still run here for the old one.

Internal.
""".

-behaviour(gen_server).

-export([start_link/0]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2]).

-define(LOOK_MS, 100).
%% Milliseconds between two looks for tasks that stayed behind.
-define(BEHIND_MS, 10_000).

-record(state, {
    %% this node's incarnation and the number of deaths, as they were seen last
    own = none :: none | erlmcp_cluster_deaths:incarnation(),
    epoch = 0 :: non_neg_integer(),
    %% for the next `behind`
    timer :: reference()
}).

-doc "Starts the process that takes over the tasks of dead nodes.".
-spec start_link() -> gen_server:start_ret().
start_link() ->
    gen_server:start_link({local, ?MODULE}, ?MODULE, [], []).

-doc false.
init([]) ->
    ok = erlmcp_label:set([?MODULE]),
    self() ! look,
    {ok, #state{timer = behind_later()}}.

behind_later() ->
    erlang:send_after(?BEHIND_MS, self(), behind).

-doc false.
handle_call(_, _, State) ->
    {noreply, State}.

-doc false.
handle_cast(_, State) ->
    {noreply, State}.

-doc false.
handle_info(look, State) ->
    Next = case erlmcp_cluster_lease:incarnation() of
        none -> State;
        Own -> look(State, Own)
    end,
    _ = erlang:send_after(?LOOK_MS, self(), look),
    {noreply, Next};
handle_info(behind, #state{timer = Timer} = State) ->
    %% The message may have come from outside.
    _ = erlang:cancel_timer(Timer),
    Next = case erlmcp_cluster_lease:incarnation() of
        none ->
            State;
        Own ->
            %% A task that is taken over hides a process that still runs it here for another
            %% incarnation. So such processes are ended first.
            Looked = look(State, Own),
            _ = take_behind(Own),
            Looked
    end,
    {noreply, Next#state{timer = behind_later()}};
handle_info(_, State) ->
    {noreply, State}.

look(#state{own = Own} = State, Own) ->
    take_lost(State);
look(State, Own) ->
    lists:foreach(fun({_, Instance}) ->
        unless_ended(fun() -> erlmcp_tasks:end_others(Own, Instance) end)
    end, servers()),
    take_lost(State#state{own = Own}).

%% All tasks are looked at again if one cannot be taken now, or its incarnation is leaving and still
%% runs it. The same holds if the tables are not there.
take_lost(#state{own = Own, epoch = Epoch} = State) ->
    Deaths = erlmcp_cluster_members:deaths(),
    maybe
        New = erlmcp_cluster_deaths:epoch(Deaths),
        true ?= New =/= Epoch,
        {ok, Leases} ?= erlmcp_cluster_store:leases(low_latency),
        {Leaving, Lost} = lists:partition(
            fun({_, _, Dead}) -> is_leaving(Dead, Leases) end,
            [{Server, Task, Dead}
             || Dead <- erlmcp_cluster_task_tables:incarnations(),
                {Server, #{id := Id} = Task} <- erlmcp_cluster_task_tables:running(Dead),
                Dead =/= Own,
                erlmcp_cluster_deaths:home(Id, Dead, Deaths) =:= {ok, Own}]),
        ok ?= take_over(Lost),
        [] ?= Leaving,
        true ?= erlmcp_cluster_task_tables:are_there(),
        State#state{epoch = New}
    else
        _ -> State
    end.

is_leaving(Incarnation, Leases) ->
    case Leases of
        #{Incarnation := {leaving, _, _}} -> true;
        #{} -> false
    end.

%% Tasks of dead incarnations whose home does not run their server, and those of this incarnation
%% that have no process: their server has ended. The first node that tries takes each.
%% The leases are read last: an incarnation that has tasks by then has had a lease.
take_behind(Own) ->
    Incarnations = erlmcp_cluster_task_tables:incarnations(),
    maybe
        {ok, Leases} ?= erlmcp_cluster_store:leases(low_latency),
        take_over([{Server, Task, Dead}
                   || Dead <- Incarnations, Dead =:= Own orelse not is_map_key(Dead, Leases),
                      {Server, Task} <- erlmcp_cluster_task_tables:running(Dead),
                      Dead =/= Own orelse not has_process(Task)])
    end.

has_process(#{process := Process}) -> node(Process) =:= node() andalso is_process_alive(Process);
has_process(_) -> true.

take_over(Lost) ->
    Servers = maps:from_list(servers()),
    Taken = [take_over(Task, Dead, maps:get(Server, Servers)) || {Server, Task, Dead} <- Lost,
                                                               is_map_key(Server, Servers)],
    case lists:member(again, Taken) of
        true -> again;
        false -> ok
    end.

take_over(Task, Dead, #{tasks := {Store, _}} = Instance) ->
    Swap = fun(Taken) ->
        erlmcp_cluster_task_store:take_over(Taken, Dead, erlmcp_task_records:state(Store))
    end,
    Why = case erlmcp_cluster_lease:incarnation() of
        Dead -> ~"its server has ended";
        _ -> ~"its node was lost"
    end,
    unless_ended(fun() ->
        case erlmcp_tasks:take_over(Task, Why, Swap, Instance) of
            ok -> ok;
            {error, unavailable} -> again
        end
    end).

%% The server may have just ended, with its processes and its tables.
unless_ended(Do) ->
    try
        Do()
    catch
        exit:_ -> ok;
        error:badarg -> ok
    end.

%% The servers of this node that have their tasks in the store, by their names there.
servers() ->
    [{erlmcp_cluster_task_tables:server(Id), Instance}
     || {Id, _, #{tasks := {Store, _}} = Instance} <- erlmcp_registry:servers(),
        erlmcp_task_records:module(Store) =:= erlmcp_cluster_task_store].
