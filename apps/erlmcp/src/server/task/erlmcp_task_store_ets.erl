-module(erlmcp_task_store_ets).
-moduledoc """
The default task store: ETS tables of the server's supervisor, which live as long as the server. One
table has the tasks by id, one is an index by expiry and by owner, and one has counts.

Internal.
""".

-behaviour(erlmcp_task_store).

-export([open/2, put/2, get/2, update/2, list/4, delete/2, sweep/2, count/1]).

-type bounds() :: {InAll :: pos_integer(), OfOne :: pos_integer()}.
-record(store, {
    tasks :: ets:table(),
    %% ordered: {{expires, At, Id}} and {{owner, Name, Created, Id}}
    index :: ets:table(),
    %% of `tasks`, `{tasks, Tenant}`, `bytes` and `{bytes, Tenant}`
    counts :: ets:table(),
    max :: {Tasks :: bounds(), Bytes :: bounds()}
}).

-doc false.
open(Options, Limits) when map_size(Options) =:= 0 ->
    #{tasks := Max, tasks_per_principal := MaxOfOne, task_bytes := MaxBytes,
      task_bytes_per_principal := MaxBytesOfOne} = Limits,
    Concurrent = [public, {read_concurrency, true}, {write_concurrency, auto}],
    #store{tasks = ets:new(erlmcp_tasks, Concurrent),
           index = ets:new(erlmcp_task_index, [ordered_set | Concurrent]),
           counts = erlmcp_tenant_counts:new(), max = {{Max, MaxOfOne}, {MaxBytes, MaxBytesOfOne}}}.

-doc false.
put(#{id := Id, version := Version, tenant := Tenant} = Task,
    #store{tasks = Tasks, index = Index, max = {Max, _}} = Store) ->
    maybe
        ok ?= take(tasks, Tenant, 1, Max, Store),
        true = ets:insert_new(Tasks, {Id, Version, Task}),
        true = ets:insert(Index, [{Key} || Key <- keys(Task)]),
        ok
    end.

%% The bound of one tenant is checked first, since it is reached sooner.
take(What, Tenant, Amount, {Max, MaxOfOne}, #store{counts = Counts}) ->
    case erlmcp_tenant_counts:take({What, Tenant}, Amount, MaxOfOne, Counts) of
        ok ->
            case erlmcp_tenant_counts:take(What, Amount, Max, Counts) of
                ok ->
                    ok;
                {full, _} ->
                    ok = erlmcp_tenant_counts:give_back({What, Tenant}, Amount, Counts),
                    {error, {full, Max}}
            end;
        {full, _} ->
            {error, {full, MaxOfOne}}
    end.

give_back(What, Tenant, Amount, #store{counts = Counts}) ->
    ok = erlmcp_tenant_counts:give_back({What, Tenant}, Amount, Counts),
    erlmcp_tenant_counts:give_back(What, Amount, Counts).

keys(#{id := Id, owner := Owner, created := Created} = Task) ->
    [{expires, expiry(Task), Id}, {owner, name(Owner), Created, Id}].

%% In an ordered table 1 and 1.0 are the same key.
name(Owner) ->
    term_to_binary(Owner, [deterministic]).

expiry(#{created := Created, ttl := Ttl}) ->
    Created + Ttl.

-doc false.
get(Id, #store{tasks = Tasks}) ->
    maybe
        [{_, _, Task}] ?= ets:lookup(Tasks, Id),
        true ?= expiry(Task) > erlang:system_time(millisecond),
        {ok, Task}
    else
        _ -> error
    end.

-doc false.
update(#{id := Id, version := Version, bytes := Bytes} = Task,
       #store{tasks = Tasks, max = {_, Max}} = Store) ->
    maybe
        [{_, Before, #{bytes := Old, tenant := Tenant}}] ?= ets:lookup(Tasks, Id),
        true ?= Before + 1 =:= Version,
        ok ?= take(bytes, Tenant, Bytes - Old, Max, Store),
        Replace = [{{Id, Before, '_'}, [], [{const, {Id, Version, Task}}]}],
        case ets:select_replace(Tasks, Replace) of
            1 ->
                ok;
            0 ->
                ok = give_back(bytes, Tenant, Bytes - Old, Store),
                {error, changed}
        end
    else
        {error, _} = Full -> Full;
        _ -> {error, changed}
    end.

-doc false.
list(Owner, first, Count, Store) ->
    list(Owner, {-1, ~""}, Count, Store);
list(Owner, {Created, Id}, Count, Store) ->
    list_after({owner, name(Owner), Created, Id}, Count, [], Store).

list_after({owner, Name, _, _} = Key, Count, Found, #store{index = Index} = Store) ->
    case ets:next(Index, Key) of
        {owner, Name, _, _} when Count =:= 0 ->
            {lists:reverse(Found), true};
        {owner, Name, _, Id} = Next ->
            case get(Id, Store) of
                {ok, Task} -> list_after(Next, Count - 1, [Task | Found], Store);
                error -> list_after(Next, Count, Found, Store)
            end;
        _ ->
            {lists:reverse(Found), false}
    end.

-doc false.
delete(Id, #store{tasks = Tasks, index = Index} = Store) ->
    case ets:take(Tasks, Id) of
        [{_, _, #{tenant := Tenant, bytes := Bytes} = Task}] ->
            lists:foreach(fun(Key) -> ets:delete(Index, Key) end, keys(Task)),
            ok = give_back(tasks, Tenant, 1, Store),
            give_back(bytes, Tenant, Bytes, Store);
        [] ->
            ok
    end.

-doc false.
sweep(Now, #store{index = Index} = Store) ->
    case ets:first(Index) of
        {expires, At, Id} = Key when At =< Now ->
            ok = delete(Id, Store),
            %% The row may belong to a task that was deleted while `put/2` added it.
            true = ets:delete(Index, Key),
            sweep(Now, Store);
        _ ->
            ok
    end.

%% The tables of a server end with it, and have no size then.
-doc false.
count(#store{tasks = Tasks}) ->
    case ets:info(Tasks, size) of
        undefined -> {error, unavailable};
        Count -> Count
    end.
