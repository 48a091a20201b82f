-module(erlmcp_instance).
-moduledoc """
What the processes of one running server share: a value that each of them is handed, and persistent
terms that all read and none has a copy of. Nothing in it has a name that another server of the node
could collide with.

The persistent terms are the value itself, under the server's key, the settings of its listeners,
its pools of workers, and its catalog (`m:erlmcp_published_catalog`). A process that starts is
handed a persistent term without a copy, so that a connection costs what is its own. Each is written
again where its writer begins anew. The process of this module takes them away when the server ends:
it writes nothing, answers nobody, and ends after all that read them.

Internal.
""".

-behaviour(gen_server).

-export([new/1, of_calls/1, subscriptions/1]).
-export([put_supervisor/3, supervisor/2]).
-export([share/2, find/1, start_link/2]).
-export([init/1, handle_call/3, handle_cast/2, terminate/2]).

-export_type([instance/0, of_calls/0]).

-doc """
A server's key, its limits and gate, the servers that it mounts, and the tables of its processes:
`supervisors` of sessions and tasks, `mounting` with the servers that mount this one
(`m:erlmcp_mounts`), `changing` with a catalog that changes (`m:erlmcp_published_catalog`), `cache`
with kept results (`m:erlmcp_result_cache`).
""".
-type instance() :: #{
    key := reference(), limits := erlmcp_server_options:limits(), gate := erlmcp_gate:gate(),
    mounts := [erlmcp_mounts:mount()],
    sessions := erlmcp_session_table:sessions(), subscriptions := ets:table(),
    supervisors := ets:table(), mounting := ets:table(), changing := ets:table(),
    cache := ets:table(),
    tasks := erlmcp_tasks:tables(), used_states := erlmcp_used_states:used(),
    error_budget := erlmcp_error_budget:budget(),
    of_calls := of_calls()
}.

-doc "The part of an instance that calls know. Each call has a copy, and so it is little.".
-type of_calls() :: #{
    key := reference(), limits := #{atom() => pos_integer() | infinity},
    subscriptions := ets:table(), supervisors := ets:table(), tasks := erlmcp_tasks:tables(),
    used_states := erlmcp_used_states:used(), error_budget := erlmcp_error_budget:budget(),
    atom() => term()
}.

-doc """
Completes an instance with what calls know of it, and with tables that have no module of their own.
They belong to the calling process, the server's supervisor.
""".
-spec new(#{atom() => term()}) -> instance().
new(Parts) ->
    Instance = Parts#{
        supervisors => ets:new(erlmcp_supervisors, [public]),
        mounting => ets:new(erlmcp_mounting, [public]),
        changing => ets:new(erlmcp_changing, [public, {read_concurrency, true}]),
        cache => ets:new(erlmcp_result_cache, [ordered_set, public, {read_concurrency, true}])},
    Instance#{of_calls => of_calls(Instance)}.

-doc "Returns what calls know of an instance.".
-spec of_calls(instance() | of_calls()) -> of_calls().
of_calls(#{of_calls := Known}) ->
    Known;
of_calls(Instance) ->
    #{limits := Limits} = Known =
        maps:with([key, limits, subscriptions, supervisors, tasks, used_states, error_budget],
                  Instance),
    Known#{limits := maps:with([calls_per_connection, call_timeout_ms, call_heap_bytes,
                                input_timeout_ms, task_ttl_ms, task_timeout_ms,
                                used_states, used_states_per_principal,
                                rate_retry_ms, queue_retry_ms,
                                reply_bytes, unread_bytes, unread_messages], Limits)}.

-doc "Returns the table of those who want to hear of changes (`m:erlmcp_subscriptions`).".
-spec subscriptions(of_calls()) -> ets:table().
subscriptions(#{subscriptions := Subscriptions}) ->
    Subscriptions.

-doc "Makes the supervisor of the HTTP sessions of a kind, or of the tasks, known.".
-spec put_supervisor(erlmcp_on_demand_sup:kind(), pid(), instance()) -> ok.
put_supervisor(Kind, Pid, #{supervisors := Supervisors}) ->
    true = ets:insert(Supervisors, {Kind, Pid}),
    ok.

-doc "Returns that supervisor; `undefined` while there is none yet.".
-spec supervisor(erlmcp_on_demand_sup:kind(), of_calls()) -> pid() | undefined.
supervisor(Kind, #{supervisors := Supervisors}) ->
    ets:lookup_element(Supervisors, Kind, 2, undefined).

-doc """
Shares a term under a name that is the node's only one, and returns it as it is shared. The names
that a server uses are given to `start_link/2`.
""".
-spec share(Name :: term(), Term) -> Term when Term :: dynamic().
share(Name, Term) ->
    ok = persistent_term:put({?MODULE, Name}, Term),
    persistent_term:get({?MODULE, Name}).

-doc "Returns the term that is shared under this name; `gone` when its server has ended.".
-spec find(Name :: term()) -> {ok, Term :: dynamic()} | gone.
find(Name) ->
    case persistent_term:get({?MODULE, Name}, ?MODULE) of
        ?MODULE -> gone;
        Term -> {ok, Term}
    end.

-doc """
Starts the process that takes away what is shared under the key of a server and these other names,
and what stands elsewhere under its key alone.
""".
-spec start_link(Server :: reference(), Names :: [term()]) -> gen_server:start_ret().
start_link(Key, Names) ->
    gen_server:start_link(?MODULE, {Key, Names}, [{hibernate_after, 0}]).

-doc false.
init({Key, _} = Shared) ->
    process_flag(trap_exit, true),
    ok = erlmcp_label:set([?MODULE], Key),
    {ok, Shared}.

-doc false.
handle_call(_, _, Shared) ->
    {noreply, Shared}.

-doc false.
handle_cast(_, Shared) ->
    {noreply, Shared}.

-doc false.
terminate(_, {Key, Names}) ->
    lists:foreach(fun(Name) -> persistent_term:erase({?MODULE, Name}) end, [Key | Names]),
    ok = erlmcp_published_catalog:erase(Key),
    erlmcp_log:forget(Key).
