-module(erlmcp_cluster_task_tables).
-moduledoc """
The tasks of the cluster's servers, in tables on each node. The tables are a projection of the
store. When a change is answered, the tables of the node that asked for the change have it. A
function that reads the tables raises `badarg` while they are not there, unless its text says
otherwise.

Internal.
""".

-export([server/1, are_there/0, find/2, next_of_owner/3, expired/2, incarnations/0, running/1,
         count/2]).
-export([projection/0]).

-export_type([entry/0]).

%% The tasks by server and id.
-define(TASKS, erlmcp_cluster_tasks).
%% Each task by its expiry and by its owner and, while it runs, by its incarnation.
-define(INDEX, erlmcp_cluster_task_index).
-define(COUNTS, erlmcp_cluster_task_counts).

-type incarnation() :: erlmcp_cluster_deaths:incarnation().
-type task() :: erlmcp_task_store:task().
-doc "A task, as the store has it.".
-type entry() :: {Version :: pos_integer(), incarnation(), task()}.
-doc "A count of a server: its tasks, or the bytes of their results, in all or of one tenant.".
-type counted() :: tasks | bytes | {tasks | bytes, Tenant :: term()}.

-doc "Returns the name that the server with the id `Id` has in the store.".
-spec server(Id :: term()) -> binary().
server(Id) ->
    term_to_binary(Id, [deterministic]).

-doc "Returns `true` if this node's part of the store runs, and so its tables are there.".
-spec are_there() -> boolean().
are_there() ->
    ets:whereis(?COUNTS) =/= undefined.

-doc """
Returns a task with its version and its incarnation, as this node's table has it. Returns `error` if
the table does not have the task.
""".
-spec find(Server :: binary(), erlmcp_task_store:id()) -> {ok, entry()} | error.
find(Server, Id) ->
    case ets:lookup(?TASKS, {Server, Id}) of
        [{_, Version, Incarnation, Task}] -> {ok, {Version, Incarnation, Task}};
        [] -> error
    end.

-doc "Returns the position of an owner's first task after a position, or `none` if there is none.".
-spec next_of_owner(Server :: binary(), erlmcp_task_store:owner(), erlmcp_task_store:position()) ->
    {ok, erlmcp_task_store:position()} | none.
next_of_owner(Server, Owner, {Created, Id}) ->
    Name = name(Owner),
    case ets:next(?INDEX, {owner, Server, Name, Created, Id}) of
        {owner, Server, Name, NextCreated, NextId} -> {ok, {NextCreated, NextId}};
        _ -> none
    end.

-doc """
Returns the id of the task of a server that expired first, or `none` if none has expired at `Now`,
in milliseconds since 1970.
""".
-spec expired(Server :: binary(), Now :: integer()) -> {ok, erlmcp_task_store:id()} | none.
expired(Server, Now) ->
    case ets:next(?INDEX, {expires, Server, -1, ~""}) of
        {expires, Server, At, Id} when At =< Now -> {ok, Id};
        _ -> none
    end.

-doc """
Returns the incarnations that have running tasks, the oldest first. Returns `[]` while the tables
are not there.
""".
-spec incarnations() -> [incarnation()].
incarnations() ->
    try
        incarnations(0)
    catch
        %% The tables are the store's own, which starts or stops.
        error:badarg -> []
    end.

incarnations(Last) ->
    case ets:next(?INDEX, {running, Last + 1, ~"", ~""}) of
        {running, Incarnation, _, _} -> [Incarnation | incarnations(Incarnation)];
        _ -> []
    end.

-doc """
Returns the running tasks of an incarnation, each with its server. Returns `[]` while the tables are
not there.
""".
-spec running(incarnation()) -> [{Server :: binary(), task()}].
running(Incarnation) ->
    Keys = [{{{running, Incarnation, '$1', '$2'}}, [], [{{'$1', '$2'}}]}],
    try
        [{Server, Task} || {Server, Id} <- ets:select(?INDEX, Keys),
                           {ok, {_, Of, Task}} <- [find(Server, Id)], Of =:= Incarnation]
    catch
        error:badarg -> []
    end.

-doc "Returns the count `Counted` of a server, or 0 if the server has none.".
-spec count(Server :: binary(), counted()) -> non_neg_integer().
count(Server, Counted) ->
    ets:lookup_element(?COUNTS, {Server, Counted}, 2, 0).

-doc "Returns the projection, which the first node of a cluster registers in the store.".
-spec projection() -> khepri_projection:projection().
projection() ->
    khepri_projection:new(?TASKS, fun project/4,
                          #{tables => #{?TASKS => #{type => set}, ?INDEX => #{type => ordered_set},
                                        ?COUNTS => #{type => set}},
                            read_concurrency => true}).

%% The store runs this on each node, and keeps the code of this function and those that it calls, as
%% they were when it was registered: other code needs a projection with another name. It changes the
%% tables from what they have, since a table that is filled again may have some rows.
project(#{?TASKS := Tasks} = Tables, [_, _, Server, Id], _, Properties) ->
    Old = case ets:lookup(Tasks, {Server, Id}) of
        [{_, _, OldIncarnation, OldTask}] -> {OldIncarnation, OldTask};
        [] -> none
    end,
    case {Old, Properties} of
        {none, #{data := {Version, Incarnation, Task}}} ->
            true = ets:insert(Tasks, {{Server, Id}, Version, Incarnation, Task}),
            add(Server, Incarnation, Task, Tables);
        {{Before, Replaced}, #{data := {Version, Incarnation, Task}}} ->
            true = ets:insert(Tasks, {{Server, Id}, Version, Incarnation, Task}),
            remove(Server, Before, Replaced, Tables),
            add(Server, Incarnation, Task, Tables);
        {{Before, Deleted}, _} ->
            true = ets:delete(Tasks, {Server, Id}),
            remove(Server, Before, Deleted, Tables);
        {none, _} ->
            ok
    end.

add(Server, Incarnation, #{tenant := Tenant, bytes := Bytes} = Task, #{?INDEX := Index,
                                                                      ?COUNTS := Counts}) ->
    true = ets:insert(Index, keys(Server, Incarnation, Task)),
    count(Server, tasks, Tenant, 1, Counts),
    count(Server, bytes, Tenant, Bytes, Counts).

remove(Server, Incarnation, #{tenant := Tenant, bytes := Bytes} = Task, #{?INDEX := Index,
                                                                         ?COUNTS := Counts}) ->
    delete(keys(Server, Incarnation, Task), Index),
    count(Server, tasks, Tenant, -1, Counts),
    count(Server, bytes, Tenant, -Bytes, Counts).

delete([{Key} | Keys], Index) ->
    true = ets:delete(Index, Key),
    delete(Keys, Index);
delete([], _) ->
    ok.

keys(Server, Incarnation, #{id := Id, status := Status} = Task) ->
    #{owner := Owner, created := Created, ttl := Ttl} = Task,
    Kept = [{{owner, Server, name(Owner), Created, Id}}, {{expires, Server, Created + Ttl, Id}}],
    case Status =:= working orelse Status =:= input_required of
        true -> [{{running, Incarnation, Server, Id}} | Kept];
        false -> Kept
    end.

%% In an ordered table 1 and 1.0 are the same key.
name(Owner) ->
    term_to_binary(Owner, [deterministic]).

count(Server, What, Tenant, Amount, Counts) ->
    count({Server, What}, Amount, Counts),
    count({Server, {What, Tenant}}, Amount, Counts).

%% A count of zero has no row.
count(_, 0, _) ->
    ok;
count(Key, Amount, Counts) ->
    case ets:update_counter(Counts, Key, {2, Amount}, {Key, 0}) of
        0 -> ets:delete(Counts, Key);
        _ -> true
    end.
