-module(erlmcp_cluster_task_store).
-moduledoc """
The tasks of a server in the cluster's store, the default of a server with the option `cluster`. A
change needs a valid lease. It replaces the version before it, of this node's present incarnation or
of a dead one (`take_over/3`). So a node that was declared dead can change no task that it ran
before.

The node's own tables (`m:erlmcp_cluster_task_tables`) answer for a task that has ended, or whose
process runs on this node. For any other task, and for a list, the node catches up with the leader
first.

The limits are checked with the counts of this node's tables. So nodes that store at the same time
can exceed a limit together. A result has at most 1,048,576 bytes, and so has the rest of a task's
record.

Internal.
""".

-behaviour(erlmcp_task_store).

-export([open/2, put/2, get/2, update/2, list/4, delete/2, sweep/2, now_ms/1, count/1]).
-export([take_over/3]).

%% The most bytes of a result, and of the rest of a record: an entry of the store's log.
-define(MOST_BYTES, 1_048_576).
%% Milliseconds for which each later node waits in addition before it deletes what has expired.
-define(NEXT_NODE_MS, 30_000).

-type bounds() :: {InAll :: pos_integer(), OfOne :: pos_integer()}.
-record(store, {
    server :: binary(),
    max :: {Tasks :: bounds(), Bytes :: bounds()},
    %% what this node is about to store, by what it is counted as
    about :: ets:table(),
    turns :: erlmcp_cluster_turns:turns()
}).

-doc false.
open(#{server := Id}, Limits) ->
    #{tasks := Max, tasks_per_principal := MaxOfOne, task_bytes := MaxBytes,
      task_bytes_per_principal := MaxBytesOfOne} = Limits,
    #store{server = erlmcp_cluster_task_tables:server(Id),
           max = {{Max, MaxOfOne}, {MaxBytes, MaxBytesOfOne}},
           about = erlmcp_tenant_counts:new(), turns = erlmcp_cluster_turns:new()}.

-doc false.
put(#{tenant := Tenant} = Task, #store{max = {Max, _}} = Store) ->
    maybe
        ok ?= small(Task, too_large),
        change(Tenant, Store, fun(Own) ->
            counted(tasks, Tenant, 1, Max, Store, fun() -> create(Task, Own, Store) end)
        end)
    end.

%% While the task waited for its turn, this node may have begun another incarnation, which ends the
%% tasks of the one before.
create(#{incarnation := Other}, Own, _) when Other =/= Own ->
    {error, unavailable};
create(#{id := Id, version := Version} = Task, Own, #store{server = Server}) ->
    case erlmcp_cluster_store:create_task(Server, Id, {Version, Own, Task}, patience()) of
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
        ok ?= small(Task, full),
        change(Tenant, Store, fun(Own) ->
            maybe
                {ok, Before} ?= read(fun() -> {ok, bytes(Server, Id)} end),
                counted(bytes, Tenant, Bytes - Before, Max, Store, fun() ->
                    swap(Task, Own, Own, Store)
                end)
            end
        end)
    end.

%% These tables may lag behind the store, which knows whether the task is there.
bytes(Server, Id) ->
    case erlmcp_cluster_task_tables:find(Server, Id) of
        {ok, {_, _, #{bytes := Counted}}} -> Counted;
        error -> 0
    end.

-doc """
Stores a task in place of its previous version, if `Dead` is the incarnation of that version.
Returns the task, which then belongs to this node's incarnation. Returns `{error, changed}` if the
store has another version, one of another incarnation, or none. Returns `{error, unavailable}` if
this node has no valid lease, or too many changes wait. If the store has not answered, the error is
the same, and the task may be stored.
""".
-spec take_over(erlmcp_task_store:task(), Dead :: erlmcp_cluster_deaths:incarnation(),
                State :: term()) ->
    {ok, erlmcp_task_store:task()} | {error, changed} | erlmcp_task_store:unavailable().
take_over(#{tenant := Tenant} = Task, Dead, Store) ->
    Take = fun(Own) ->
        Taken = Task#{incarnation => Own},
        maybe
            ok ?= swap(Taken, Dead, Own, Store),
            {ok, Taken}
        end
    end,
    case change(Tenant, Store, Take) of
        {ok, _} = Done -> Done;
        {error, _} = Error -> Error
    end.

swap(#{id := Id, version := Version} = Task, From, Own, #store{server = Server}) ->
    erlmcp_cluster_store:swap_task(Server, Id, {Version - 1, From}, {Version, Own, Task},
                                   patience()).

held() ->
    case erlmcp_cluster_lease:lasting() of
        none -> {error, unavailable};
        Own -> {ok, Own}
    end.

%% The tables are the store's own, which may end while it is asked.
read(Read) ->
    try
        Read()
    catch
        error:badarg -> {error, unavailable}
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
                    {error, _} = Error ->
                        Error
                end
            after
                erlmcp_tenant_counts:give_back({What, Tenant}, Amount, About)
            end;
        {error, _} = Error ->
            Error
    end.

take(Counted, Amount, Max, #store{server = Server, about = About}) ->
    maybe
        {ok, Count} ?= read(fun() -> {ok, erlmcp_cluster_task_tables:count(Server, Counted)} end),
        {full, _} ?= erlmcp_tenant_counts:take(Counted, Amount, Max - Count, About),
        {error, {full, Max}}
    end.

%% Makes a change of the store, as the incarnation that this node has when not too many others are
%% under way.
change(Tenant, #store{turns = Turns}, Do) ->
    InTurn = fun() ->
        maybe
            {ok, Own} ?= held(),
            Do(Own)
        end
    end,
    case erlmcp_cluster_turns:run(Tenant, Turns, InTurn) of
        ok -> ok;
        {ok, _} = Taken -> Taken;
        changed -> {error, changed};
        {error, {full, _}} = Full -> Full;
        _ -> {error, unavailable}
    end.

-doc false.
get(Id, #store{server = Server}) ->
    Find = fun() -> erlmcp_cluster_task_tables:find(Server, Id) end,
    maybe
        {ok, Own} ?= held(),
        {ok, _} = Known ?= read(Find),
        true ?= is_settled(Known, Own),
        unexpired(Known)
    else
        {error, unavailable} = Unavailable -> Unavailable;
        _ -> caught_up(fun() -> unexpired(Find()) end)
    end.

%% Of a task that this node runs, no other node has changed the record while this node's lease was
%% valid. So the lease is asked after the record was read. A task without its process may have
%% ended: a part of the store that has just begun again may lack its end.
is_settled({ok, {_, Own, #{status := Status, process := Process}}}, Own) when
    Status =:= working; Status =:= input_required
->
    is_process_alive(Process) andalso erlmcp_cluster_lease:lasting() =:= Own;
is_settled({ok, {_, _, #{status := Status}}}, _) ->
    Status =/= working andalso Status =/= input_required.

unexpired({ok, {_, _, #{created := Created, ttl := Ttl} = Task}}) ->
    case Created + Ttl > erlmcp_cluster_time:now(millisecond) of
        true -> {ok, Task};
        false -> error
    end;
unexpired(error) ->
    error.

caught_up(Read) ->
    case erlmcp_cluster_catch_up:catch_up(patience()) of
        ok -> read(Read);
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
        true ?= erlmcp_cluster_time:may_delete(),
        Alive = lists:sort(maps:keys(erlmcp_cluster_members:incarnations())),
        Older = length([Other || Other <- Alive, Other < Own]),
        delete_expired(Server, Now - Older * ?NEXT_NODE_MS)
    else
        {error, unavailable} -> ok;
        %% The nodes differ about the time.
        false -> ok
    end.

delete_expired(Server, Now) ->
    maybe
        {ok, Id} ?= read(fun() -> erlmcp_cluster_task_tables:expired(Server, Now) end),
        ok ?= erlmcp_cluster_store:delete_task(Server, Id),
        delete_expired(Server, Now)
    else
        _ -> ok
    end.

-doc false.
now_ms(_) ->
    erlmcp_cluster_time:now(millisecond).

-doc false.
count(#store{server = Server}) ->
    maybe
        {ok, Count} ?= read(fun() -> {ok, erlmcp_cluster_task_tables:count(Server, tasks)} end),
        Count
    end.
