-module(erlmcp_task_store).
-moduledoc """
The behaviour of what keeps the records of a server's tasks. `m:erlmcp_task_store_ets` is the one
that a server has unless its option `task_store` names another: in memory, on this node.

A task that runs is written by one process, its keeper (`erlmcp_task_process`); others read it. Its
`version` grows by one with each change, and a change is made only to the version before it
(`update/2`): a keeper that was cut off from its store, and whose task another one declared lost or
removed, does not write over that. What a store keeps must be readable on every node that shares it.
The pid of a session in `owner` is compared only, and `node` says where the keeper runs.

The callbacks are called by the processes of calls and keepers, never by a connection's, and may
wait. A task that has expired is not found and not listed, whether it was swept or not.
""".

-export([open/2, put/2, get/2, update/2, list/4, delete/2, sweep/2]).

-export_type([handle/0, task/0, id/0, owner/0, place/0, status/0]).

-type id() :: binary().
-type status() :: working | input_required | completed | failed | cancelled.
-doc """
Whose list a task is in: its principal's, or, as nobody else can be told from anybody, that of the
session it was made in. A connection on lines can have several, one after the other; `Number` counts
them.
""".
-type owner() :: {principal, term()} | {session, {pid(), Number :: non_neg_integer()}}.
-doc """
The record of a task. `principal` is who may see it, and `flow` whom it is counted for: the same, or
of anonymous clients where they come from. Times are milliseconds, `created` and `updated` in system
time. `requests` are
those that wait for answers, as JSON, by keys that the task uses once; `result` is encoded, `bytes`
what it takes, and `is_error` whether it says that the tool failed.
""".
-type task() :: #{
    id := id(),
    version := pos_integer(),
    principal := term(),
    flow := erlmcp_gate:flow(),
    owner := owner(),
    node := node(),
    status := status(),
    message => binary(),
    created := integer(),
    updated := integer(),
    ttl := non_neg_integer(),
    requests := #{binary() => map()},
    result => binary(),
    is_error => boolean(),
    error => erlmcp_refusal:refusal(),
    bytes := non_neg_integer()
}.
-doc "A place in the order of a list: after the task that was made then and has this id.".
-type place() :: {Created :: integer(), id()}.
-opaque handle() :: {module(), State :: term()}.

-doc """
Opens the store. Called by the supervisor of the server, as often as it starts; what belongs to the
calling process ends with it. `Options` are those of the option `task_store`.
""".
-callback open(Options :: map(), erlmcp_server_options:limits()) -> State :: term().
-doc """
Keeps a new task; there are limits of them (`tasks`, and `tasks_per_principal` of those with one
`flow`).
""".
-callback put(task(), State :: term()) -> ok | {error, {full, Limit :: pos_integer()}}.
-doc "The task of this id.".
-callback get(id(), State :: term()) -> {ok, task()} | error.
-doc """
Puts a task in the place of the version before its own. `changed`: that is not the stored one any
more, or there is none. `full`: its result is more than there is room for (`task_bytes`, and
`task_bytes_per_principal` for one `flow`).
""".
-callback update(task(), State :: term()) -> ok | {error, changed | {full, Limit :: pos_integer()}}.
-doc "So many tasks of an owner at most, the oldest first, and whether there are more.".
-callback list(owner(), After :: place() | first, Count :: pos_integer(), State :: term()) ->
    {[task()], More :: boolean()}.
-doc "Forgets a task; one that is not there is forgotten already.".
-callback delete(id(), State :: term()) -> ok.
-doc "Forgets what has expired by `Now`, without looking at what has not.".
-callback sweep(Now :: integer(), State :: term()) -> ok.

-doc "Opens a store: its module and its options.".
-spec open({module(), map()}, erlmcp_server_options:limits()) -> handle().
open({Module, Options}, Limits) ->
    {Module, Module:open(Options, Limits)}.

-doc "See the callback of this name.".
-spec put(task(), handle()) -> ok | {error, {full, pos_integer()}}.
put(Task, {Module, State}) ->
    Module:put(Task, State).

-doc "See the callback of this name.".
-spec get(id(), handle()) -> {ok, task()} | error.
get(Id, {Module, State}) ->
    Module:get(Id, State).

-doc "See the callback of this name.".
-spec update(task(), handle()) -> ok | {error, changed | {full, pos_integer()}}.
update(Task, {Module, State}) ->
    Module:update(Task, State).

-doc "See the callback of this name.".
-spec list(owner(), place() | first, pos_integer(), handle()) -> {[task()], More :: boolean()}.
list(Owner, After, Count, {Module, State}) ->
    Module:list(Owner, After, Count, State).

-doc "See the callback of this name.".
-spec delete(id(), handle()) -> ok.
delete(Id, {Module, State}) ->
    Module:delete(Id, State).

-doc "See the callback of this name.".
-spec sweep(Now :: integer(), handle()) -> ok.
sweep(Now, {Module, State}) ->
    Module:sweep(Now, State).
