-module(erlmcp_task_records).
-moduledoc """
Calls the store that a server's option `task_store` names, by the callbacks of
`m:erlmcp_task_store`.

Internal.
""".

-export([open/2, put/2, get/2, update/2, list/4, delete/2, sweep/2]).

-export_type([store/0]).

-doc "An open store: its module, and the state that `open/2` of that module returned.".
-opaque store() :: {module(), State :: term()}.

-doc "Opens a store, given as its module and its options.".
-spec open({module(), map()}, erlmcp_server_options:limits()) -> store().
open({Module, Options}, Limits) ->
    {Module, Module:open(Options, Limits)}.

-doc "Calls `c:erlmcp_task_store:put/2`.".
-spec put(erlmcp_task_store:task(), store()) -> ok | {error, {full, pos_integer()}}.
put(Task, {Module, State}) ->
    Module:put(Task, State).

-doc "Calls `c:erlmcp_task_store:get/2`.".
-spec get(erlmcp_task_store:id(), store()) -> {ok, erlmcp_task_store:task()} | error.
get(Id, {Module, State}) ->
    Module:get(Id, State).

-doc "Calls `c:erlmcp_task_store:update/2`.".
-spec update(erlmcp_task_store:task(), store()) -> ok | {error, changed | {full, pos_integer()}}.
update(Task, {Module, State}) ->
    Module:update(Task, State).

-doc "Calls `c:erlmcp_task_store:list/4`.".
-spec list(erlmcp_task_store:owner(), erlmcp_task_store:position() | first, pos_integer(),
           store()) ->
    {[erlmcp_task_store:task()], More :: boolean()}.
list(Owner, After, Count, {Module, State}) ->
    Module:list(Owner, After, Count, State).

-doc "Calls `c:erlmcp_task_store:delete/2`.".
-spec delete(erlmcp_task_store:id(), store()) -> ok.
delete(Id, {Module, State}) ->
    Module:delete(Id, State).

-doc "Calls `c:erlmcp_task_store:sweep/2`.".
-spec sweep(Now :: integer(), store()) -> ok.
sweep(Now, {Module, State}) ->
    Module:sweep(Now, State).
