-module(erlmcp_instance).
-moduledoc """
The state that the processes of one running server share: a value, the instance, which is a
persistent term under the server's key. `share/2` stores further persistent terms of the server,
such as the settings of its listeners. The process of this module removes them when the server ends.

Internal.
""".

-behaviour(gen_server).

-export([new/1, subscriptions/1]).
-export([put_supervisor/3, supervisor/2]).
-export([share/2, find/1, erase/2, start_link/2]).
-export([init/1, handle_call/3, handle_cast/2, terminate/2]).

-export_type([instance/0]).

-doc """
The state that the processes of a server share. These tables are created by `new/1`:

- `supervisors`: the supervisors of sessions and tasks.
- `mounting`: the servers that mount this one (`m:erlmcp_mounts`).
- `changing`: the catalog while it changes often (`m:erlmcp_published_catalog`).
- `cache`: cached results (`m:erlmcp_result_cache`).
- `visible_crashes`: the logged crashes of funs `visible` (`m:erlmcp_visibility`).
""".
-type instance() :: #{
    id := term(), key := reference(), limits := erlmcp_server_options:limits(),
    gate := erlmcp_gate:gate(), handler := erlmcp_server_options:handler() | none,
    mounts := [erlmcp_mounts:mount()],
    %% the names of the pools of workers
    workers := [atom()],
    %% ids of the listeners: of all but stdio they are ranch's references
    listeners := [{{reference(), pos_integer()}, http | tcp | stdio, map()}],
    sessions := erlmcp_session_table:sessions(), subscriptions := ets:table(),
    supervisors := ets:table(), mounting := ets:table(), changing := ets:table(),
    cache := ets:table(), visible_crashes := ets:table(),
    tasks := erlmcp_tasks:tables(), used_states := erlmcp_used_states:used(),
    %% the module of the option `cluster` with its state
    cluster := none | {module(), State :: term()},
    %% whether the keys of cursors and states are those of the cluster
    shares_keys := boolean(),
    meter := erlmcp_meter:meter(), observers := [erlmcp_meter:observer()],
    tracer := erlmcp_tracer:tracer() | none, telemetry := module() | none,
    started_ms := integer(),
    error_budget := erlmcp_error_budget:budget(),
    %% The options with which the process of a call is spawned.
    process := [{atom(), term()}]
}.

-doc """
Returns an instance that has `Parts`, and in addition the spawn options of the processes of calls
and the tables that no other module creates. The tables belong to the calling process.
""".
-spec new(Parts :: #{atom() => term()}) -> instance().
new(#{limits := Limits} = Parts) ->
    Parts#{
        process => erlmcp_heap:of_call(Limits),
        supervisors => ets:new(erlmcp_supervisors, [public]),
        mounting => ets:new(erlmcp_mounting, [public]),
        changing => ets:new(erlmcp_changing, [public, {read_concurrency, true}]),
        cache => ets:new(erlmcp_result_cache, [ordered_set, public, {read_concurrency, true}]),
        visible_crashes => ets:new(erlmcp_visible_crashes, [public])}.

-doc "Returns the table of subscriptions (`m:erlmcp_subscriptions`).".
-spec subscriptions(instance()) -> ets:table().
subscriptions(#{subscriptions := Subscriptions}) ->
    Subscriptions.

-doc """
Stores the supervisor of the processes of a kind: of HTTP sessions, of HTTP+SSE sessions, or of
tasks.
""".
-spec put_supervisor(erlmcp_on_demand_sup:kind(), pid(), instance()) -> ok.
put_supervisor(Kind, Pid, #{supervisors := Supervisors}) ->
    true = ets:insert(Supervisors, {Kind, Pid}),
    ok.

-doc """
Returns the supervisor of the processes of a kind, or `undefined` if the server has started none.
The supervisor may have ended. Raises `badarg` if the server has ended.
""".
-spec supervisor(erlmcp_on_demand_sup:kind(), instance()) -> pid() | undefined.
supervisor(Kind, #{supervisors := Supervisors}) ->
    ets:lookup_element(Supervisors, Kind, 2, undefined).

-doc """
Stores a persistent term under a name that is unique on the node, and returns the stored term. When
the server ends, the process of `start_link/2` removes the term, if `Name` is the `Key` or one of
the `Names` of that process.
""".
-spec share(Name :: term(), Term) -> Term when Term :: dynamic().
share(Name, Term) ->
    ok = persistent_term:put({?MODULE, Name}, Term),
    persistent_term:get({?MODULE, Name}).

-doc """
Returns the term that is shared under `Name`, or `gone` if there is none: its server has ended, or
has not shared it yet.
""".
-spec find(Name :: term()) -> {ok, Term :: dynamic()} | gone.
find(Name) ->
    case persistent_term:get({?MODULE, Name}, ?MODULE) of
        ?MODULE -> gone;
        Term -> {ok, Term}
    end.

-doc """
Removes the terms that are shared under `Key`, the key of a server, and under `Names`. Also removes
the server's catalog, and what the log keeps about the server.
""".
-spec erase(Key :: reference(), Names :: [term()]) -> ok.
erase(Key, Names) ->
    lists:foreach(fun(Name) -> persistent_term:erase({?MODULE, Name}) end, [Key | Names]),
    ok = erlmcp_published_catalog:erase(Key),
    erlmcp_log:forget(Key).

-doc """
Starts the process that calls `erase/2` with `Key` and `Names` when the server ends. The process
also logs the end of a server that has listeners.
""".
-spec start_link(Key :: reference(), Names :: [term()]) -> gen_server:start_ret().
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
    ok = log_end(find(Key), Key),
    erase(Key, Names).

%% A server without listeners is part of a program that knows of its end.
log_end({ok, #{listeners := [_ | _], started_ms := Started}}, Key) ->
    Lasted = (erlang:system_time(millisecond) - Started) div 1_000,
    erlmcp_log:report(notice, #{what => server_ended, seconds => max(0, Lasted)}, Key);
log_end(_, _) ->
    ok.
