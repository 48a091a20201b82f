-module(erlmcp_cluster_task_store).
-moduledoc """
The tasks of a server in the cluster's store, the default of a server with the option `cluster`.

A change replaces the version before it, of this node's present incarnation (`update/2`) or of a
dead one (`take_over/3`). So a node that stood still can change no task that it ran before: either
another node has taken it over, or its incarnation is not the present one. Nothing is changed
without a valid lease.

The node's own tables (`m:erlmcp_cluster_task_tables`) answer for a task that has ended, and for one
that this node runs: nobody else can have changed it. For others the node catches up with the leader
first.

The limits are checked with the counts of these tables, and with what this node is about to store.
So other nodes that store at the same time can exceed a limit together: each by what it stores in
the milliseconds until all nodes have it.

Internal.
""".

-behaviour(erlmcp_task_store).

-export([open/2, put/2, get/2, update/2, list/4, delete/2, sweep/2]).
-export([take_over/3]).

%% The most bytes of a result, and of the rest of a record: an entry of the store's log.
-define(MOST_BYTES, 1_048_576).
%% Changes of a server that this node has under way. Leases are renewed in the same log.
-define(MOST_CHANGES, 64).
%% Milliseconds until a change without room tries again, and in all.
-define(TURN_MS, 5).
-define(PATIENCE_MS, 1_000).
%% A later node deletes what has expired so much earlier.
-define(NEXT_NODE_MS, 30_000).

-type bounds() :: {InAll :: pos_integer(), OfOne :: pos_integer()}.
-record(store, {
    server :: binary(),
    max :: {Tasks :: bounds(), Bytes :: bounds()},
    %% what this node is about to store, by what it is counted as
    about :: ets:table(),
    changes :: counters:counters_ref()
}).

-doc false.
open(#{server := Id}, Limits) ->
    #{tasks := Max, tasks_per_principal := MaxOfOne, task_bytes := MaxBytes,
      task_bytes_per_principal := MaxBytesOfOne} = Limits,
    #store{server = erlmcp_cluster_task_tables:server(Id),
           max = {{Max, MaxOfOne}, {MaxBytes, MaxBytesOfOne}},
           about = erlmcp_tenant_counts:new(), changes = counters:new(1, [])}.

-doc false.
put(#{id := Id, version := Version, tenant := Tenant} = Task,
    #store{server = Server, max = {Max, _}} = Store) ->
    maybe
        {ok, Own} ?= held(),
        ok ?= small(Task, too_large),
        counted(tasks, Tenant, 1, Max, Store, fun() ->
            change(Store, fun() -> create(Server, Id, {Version, Own, Task}) end)
        end)
    end.

create(Server, Id, Entry) ->
    case erlmcp_cluster_store:create_task(Server, Id, Entry, patience()) of
        ok ->
            ok;
        {error, _} = Error ->
            %% Perhaps the task is there. No client will know its id.
            _ = erlmcp_cluster_store:delete_task(Server, Id),
            Error
    end.

-doc false.
update(#{id := Id, bytes := Bytes, tenant := Tenant} = Task,
       #store{server = Server, max = {_, Max}} = Store) ->
    maybe
        {ok, Own} ?= held(),
        ok ?= small(Task, full),
        {ok, {_, _, #{bytes := Before}}} ?= erlmcp_cluster_task_tables:find(Server, Id),
        counted(bytes, Tenant, Bytes - Before, Max, Store, fun() ->
            swap(Task, Own, Own, Store)
        end)
    else
        {error, _} = Error -> Error;
        _ -> {error, changed}
    end.

-doc """
Replaces the version of a task before this one, which belongs to the incarnation `Dead`, and returns
the task: it belongs to this node's incarnation then.
""".
-spec take_over(erlmcp_task_store:task(), Dead :: erlmcp_cluster_deaths:incarnation(),
                State :: term()) ->
    {ok, erlmcp_task_store:task()} | {error, changed} | erlmcp_task_store:unavailable().
take_over(Task, Dead, Store) ->
    maybe
        {ok, Own} ?= held(),
        Taken = Task#{incarnation => Own},
        ok ?= swap(Taken, Dead, Own, Store),
        {ok, Taken}
    end.

swap(#{id := Id, version := Version} = Task, From, Own, #store{server = Server} = Store) ->
    Swapped = change(Store, fun() ->
        erlmcp_cluster_store:swap_task(Server, Id, {Version - 1, From}, {Version, Own, Task},
                                       patience())
    end),
    case Swapped of
        changed -> {error, changed};
        Other -> Other
    end.

held() ->
    case erlmcp_cluster_lease:lasting() of
        none -> {error, unavailable};
        Own -> {ok, Own}
    end.

%% A node that gets no answer within its lease is not renewing that, either.
patience() ->
    max(1, erlmcp_cluster_lease:remaining_ms()).

small(#{bytes := Bytes} = Task, TooLarge) ->
    case max(Bytes, erlang:external_size(maps:remove(result, Task))) of
        Size when Size > ?MOST_BYTES -> {error, {TooLarge, ?MOST_BYTES}};
        _ -> ok
    end.

%% Counts what is about to be stored while it is stored. The bound of one tenant is checked first,
%% since it is reached sooner.
counted(_, _, Amount, _, _, Do) when Amount =< 0 ->
    Do();
counted(What, Tenant, Amount, {Max, MaxOfOne}, #store{about = About} = Store, Do) ->
    case take({What, Tenant}, Amount, MaxOfOne, Store) of
        ok ->
            try
                case take(What, Amount, Max, Store) of
                    ok ->
                        try
                            Do()
                        after
                            erlmcp_tenant_counts:give_back(What, Amount, About)
                        end;
                    Full ->
                        Full
                end
            after
                erlmcp_tenant_counts:give_back({What, Tenant}, Amount, About)
            end;
        Full ->
            Full
    end.

take(Counted, Amount, Max, #store{server = Server, about = About}) ->
    Room = Max - erlmcp_cluster_task_tables:count(Server, Counted),
    case erlmcp_tenant_counts:take(Counted, Amount, Room, About) of
        ok -> ok;
        {full, _} -> {error, {full, Max}}
    end.

%% Makes a change of the store, if not too many are under way.
change(#store{changes = Changes}, Do) ->
    case has_turn(Changes, erlmcp_clock:now_ms() + ?PATIENCE_MS) of
        true ->
            try Do() of
                {error, _} -> {error, unavailable};
                Changed -> Changed
            after
                counters:sub(Changes, 1, 1)
            end;
        false ->
            {error, unavailable}
    end.

has_turn(Changes, Until) ->
    ok = counters:add(Changes, 1, 1),
    case counters:get(Changes, 1) =< ?MOST_CHANGES of
        true ->
            true;
        false ->
            ok = counters:sub(Changes, 1, 1),
            erlmcp_clock:now_ms() < Until andalso begin
                receive after ?TURN_MS -> ok end,
                has_turn(Changes, Until)
            end
    end.

-doc false.
get(Id, #store{server = Server}) ->
    maybe
        {ok, Own} ?= held(),
        {ok, _} = Known ?= erlmcp_cluster_task_tables:find(Server, Id),
        true ?= is_settled(Known, Own),
        unexpired(Known)
    else
        {error, unavailable} = Unavailable -> Unavailable;
        _ -> caught_up(fun() -> unexpired(erlmcp_cluster_task_tables:find(Server, Id)) end)
    end.

%% Of a task that this node runs, no other node has changed the record while this node's lease was
%% valid. So the lease is asked after the record was read.
is_settled({ok, {_, Own, #{status := Status}}}, Own) when
    Status =:= working; Status =:= input_required
->
    erlmcp_cluster_lease:lasting() =:= Own;
is_settled({ok, {_, _, #{status := Status}}}, _) ->
    Status =/= working andalso Status =/= input_required.

unexpired({ok, {_, _, #{created := Created, ttl := Ttl} = Task}}) ->
    case Created + Ttl > erlang:system_time(millisecond) of
        true -> {ok, Task};
        false -> error
    end;
unexpired(error) ->
    error.

caught_up(Read) ->
    case erlmcp_cluster_store:catch_up(patience()) of
        ok -> Read();
        {error, _} -> {error, unavailable}
    end.

-doc false.
list(Owner, first, Count, Store) ->
    list(Owner, {-1, ~""}, Count, Store);
list(Owner, After, Count, #store{server = Server}) ->
    maybe
        {ok, _} ?= held(),
        caught_up(fun() -> list(Server, Owner, After, Count, []) end)
    end.

list(Server, Owner, After, Count, Found) ->
    case erlmcp_cluster_task_tables:next_of_owner(Server, Owner, After) of
        {ok, _} when Count =:= 0 ->
            {lists:reverse(Found), true};
        {ok, {_, Id} = Next} ->
            case unexpired(erlmcp_cluster_task_tables:find(Server, Id)) of
                {ok, Task} -> list(Server, Owner, Next, Count - 1, [Task | Found]);
                error -> list(Server, Owner, Next, Count, Found)
            end;
        none ->
            {lists:reverse(Found), false}
    end.

%% A task that is not deleted now is deleted by a sweep.
-doc false.
delete(Id, #store{server = Server}) ->
    maybe
        {ok, _} ?= held(),
        erlmcp_cluster_store:delete_task(Server, Id)
    end,
    ok.

%% The oldest incarnation deletes what has expired. If it has no such server, the next one does.
-doc false.
sweep(Now, #store{server = Server}) ->
    maybe
        {ok, Own} ?= held(),
        Alive = lists:sort(maps:keys(erlmcp_cluster_members:incarnations())),
        Older = length([Other || Other <- Alive, Other < Own]),
        delete_expired(Server, Now - Older * ?NEXT_NODE_MS)
    else
        {error, unavailable} -> ok
    end.

delete_expired(Server, Now) ->
    maybe
        {ok, Id} ?= erlmcp_cluster_task_tables:expired(Server, Now),
        ok ?= erlmcp_cluster_store:delete_task(Server, Id),
        delete_expired(Server, Now)
    else
        _ -> ok
    end.
