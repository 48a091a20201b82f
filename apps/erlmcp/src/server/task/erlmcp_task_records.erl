-module(erlmcp_task_records).
-moduledoc """
Calls the store of a server's tasks, a module with `-behaviour(erlmcp_task_store)`. Each function
that has the name of a callback calls it.

Internal.
""".

-export([open/2, module/1, state/1, put/2, get/2, update/2, list/4, delete/2, sweep/2, now_ms/1,
         count/1]).

-export_type([store/0]).

-doc "An open store: its module, and the state that `open/2` of that module returned.".
-opaque store() :: {module(), State :: term()}.

-doc "Opens a store, given as its module and its options.".
-spec open({module(), map()}, erlmcp_server_options:limits()) -> store().
open({Module, Options}, Limits) ->
    {Module, Module:open(Options, Limits)}.

-doc "Returns the module of a store.".
-spec module(store()) -> module().
module({Module, _}) ->
    Module.

-doc "Returns the state that `open/2` of a store's module returned.".
-spec state(store()) -> State :: term().
state({_, State}) ->
    State.

-doc "Stores a new task. The errors are those of `c:erlmcp_task_store:put/2`.".
-spec put(erlmcp_task_store:task(), store()) ->
    ok | {error, {full | too_large, pos_integer()}} | erlmcp_task_store:unavailable().
put(Task, {Module, State}) ->
    Module:put(Task, State).

-doc "Returns the task with this id. The errors are those of `c:erlmcp_task_store:get/2`.".
-spec get(erlmcp_task_store:id(), store()) ->
    {ok, erlmcp_task_store:task()} | error | erlmcp_task_store:unavailable().
get(Id, {Module, State}) ->
    Module:get(Id, State).

-doc "Replaces a task by its next version. The errors are those of `c:erlmcp_task_store:update/2`.".
-spec update(erlmcp_task_store:task(), store()) ->
    ok | {error, changed | {full, pos_integer()}} | erlmcp_task_store:unavailable().
update(Task, {Module, State}) ->
    Module:update(Task, State).

-doc """
Returns a page of an owner's tasks, with the arguments and the errors of
`c:erlmcp_task_store:list/4`.
""".
-spec list(erlmcp_task_store:owner(), erlmcp_task_store:position() | first, pos_integer(),
           store()) ->
    {[erlmcp_task_store:task()], More :: boolean()} | erlmcp_task_store:unavailable().
list(Owner, After, Count, {Module, State}) ->
    Module:list(Owner, After, Count, State).

-doc "Deletes a task (`c:erlmcp_task_store:delete/2`).".
-spec delete(erlmcp_task_store:id(), store()) -> ok.
delete(Id, {Module, State}) ->
    Module:delete(Id, State).

-doc "Deletes the tasks that have expired at `Now` (`c:erlmcp_task_store:sweep/2`).".
-spec sweep(Now :: integer(), store()) -> ok.
sweep(Now, {Module, State}) ->
    Module:sweep(Now, State).

-doc """
Returns the time of a store, in milliseconds since 1970 (`c:erlmcp_task_store:now_ms/1`), or that of
this node if the store has none.
""".
-spec now_ms(store()) -> integer().
now_ms({Module, State}) ->
    case erlang:function_exported(Module, now_ms, 1) of
        true -> Module:now_ms(State);
        false -> erlang:system_time(millisecond)
    end.

-doc """
Returns how many tasks a store keeps (`c:erlmcp_task_store:count/1`). Returns `error` if the store
does not count them, cannot be reached now, or crashes.
""".
-spec count(store()) -> {ok, non_neg_integer()} | error.
count({Module, State}) ->
    %% The requests about tasks tell of a store that fails. The process that forecasts the bounds of
    %% all servers must not fail with it.
    try erlang:function_exported(Module, count, 1) andalso Module:count(State) of
        Count when is_integer(Count) -> {ok, Count};
        _ -> error
    catch
        _:_ -> error
    end.
