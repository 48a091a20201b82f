-module(erlmcp_server_sup).
-moduledoc """
The supervisor of one server, in its user's tree. Its children end in the opposite order of their
start, and the process that removes the shared state ends last.

Internal.
""".

-behaviour(supervisor).

-export([start_link/2, publisher/1, events/1, listeners/1, drain/3]).
-export([init/1]).

%% Milliseconds between two sweeps of the tasks. A task that has expired is never found, even before
%% a sweep deletes it.
-define(TASKS, 10_000).
%% Milliseconds between two sweeps of the subscriptions, whose processes may have been killed.
-define(SUBSCRIPTIONS, 60_000).
%% Milliseconds between two sweeps of the failures. Others may take the place of a failure that was
%% not counted in between.
-define(FAILURES, 60_000).
%% Milliseconds between two sweeps of the sessions, at least and at most. Between these bounds they
%% are this part of the time that a session may be unused.
-define(LEAST, 10).
-define(MOST, 30_000).
-define(PART, 4).
%% How often a child that ends is looked for again, and the milliseconds between two looks.
-define(LOOKS, 500).
-define(APART, 10).

-doc """
Starts a server with `Settings` and the catalog that is compiled from them, and logs its listeners.
The error is `{shutdown, Reason}` if the id is taken, the application does not run, the tracer
cannot be made, or a child does not start.
""".
-spec start_link(erlmcp_server_options:settings(), erlmcp_catalog:catalog()) ->
    supervisor:startlink_ret().
start_link(#{key := Key} = Settings, Catalog) ->
    ok = erlmcp_published_catalog:first(Catalog, Key),
    %% The supervisor keeps its argument as long as it lives, so the sources are left out. It logs
    %% its argument if it crashes, and a fun hides the keys.
    Kept = maps:without([sources], Settings),
    case supervisor:start_link(?MODULE, fun() -> Kept end) of
        {ok, Pid} = Started ->
            ok = log_listeners(Pid, Key),
            Started;
        NotStarted ->
            ok = erlmcp_published_catalog:erase(Key),
            NotStarted
    end.

%% One line for each listener: where it is, and which clients may come.
log_listeners(Supervisor, Key) ->
    lists:foreach(fun({_, _, #{clients := Clients}} = Id) ->
                      _ = [ok = erlmcp_log:report(notice, (maps:without([ip, port], Address))#{
                                                      what => server_listens, clients => Clients},
                                                  Key) || Address <- address(Id)],
                      ok
                  end, lists:sort(listener_ids(Supervisor))).

-doc """
Returns the process that changes the catalog of a server with the given supervisor. Waits while the
process is started again, and exits if that takes more than five seconds, or if the server has
ended.
""".
-spec publisher(pid()) -> pid().
publisher(Supervisor) ->
    child(publisher, Supervisor, ?LOOKS).

-doc """
Returns the supervisor of the event handlers of a server with the given supervisor. Waits and exits
as `publisher/1` does.
""".
-spec events(pid()) -> pid().
events(Supervisor) ->
    child(events, Supervisor, ?LOOKS).

%% Until the supervisor gets the exit signal of a child, it still has the dead process.
child(Id, Supervisor, Looks) ->
    case [Pid || {Child, Pid, _, _} <- supervisor:which_children(Supervisor), Child =:= Id,
                 is_pid(Pid), is_process_alive(Pid)] of
        [Pid] ->
            Pid;
        [] when Looks > 0 ->
            receive after ?APART -> ok end,
            child(Id, Supervisor, Looks - 1);
        [] ->
            exit({not_running, Id})
    end.

-doc """
Returns the addresses of a server's listeners, as `erlmcp:listeners/1` does. Addresses of listeners
that a drain has closed are left out. Exits if the server has ended.
""".
-spec listeners(pid()) -> [map()].
listeners(Supervisor) ->
    lists:append([address(Id) || Id <- lists:sort(listener_ids(Supervisor))]).

listener_ids(Supervisor) ->
    [Id || {{listener, Id}, _, _, _} <- supervisor:which_children(Supervisor)].

-doc """
Takes a server out of service, as `erlmcp:drain/2` describes it, with the options `How`. `not_found`
means that the server has ended meanwhile.
""".
-spec drain(pid(), erlmcp_instance:instance(), erlmcp_drain:options()) ->
    {ok, erlmcp_drain:drained()} | {error, not_found}.
drain(Supervisor, Instance, How) ->
    try
        %% A listener that has only pages stays open, so that instruments see the drain.
        Closing = [{Transport, Id} || {_, Transport, Options} = Id <- listener_ids(Supervisor),
                                      Transport =/= stdio,
                                      erlmcp_listen_options:has_endpoint(Options)],
        Drained = erlmcp_drain:drain(Instance, Closing, How),
        _ = supervisor:count_children(Supervisor),
        {ok, Drained}
    catch
        Class:Reason:Stack ->
            %% The drain calls processes that end with the server, and then its calls fail.
            try supervisor:count_children(Supervisor) of
                _ -> erlang:raise(Class, Reason, Stack)
            catch
                exit:_ -> {error, not_found}
            end
    end.

address({_, stdio, _}) ->
    [#{transport => stdio}];
address({_, Transport, Options} = Id) ->
    case {Transport, ranch:get_addr(Id)} of
        %% A suspended listener.
        {_, {undefined, undefined}} -> [];
        {http, At} -> [(erlmcp_httpd:address(At, Options))#{transport => http}];
        {tcp, At} -> [(erlmcp_tcp:address(At))#{transport => tcp}]
    end.

-doc false.
init(Given) ->
    #{id := Id, key := Key, listen := Wanted} = Settings = Given(),
    case erlmcp_registry:register(Id, Key) of
        ok -> ok;
        {error, Reason} -> exit({shutdown, Reason})
    end,
    ok = erlmcp_log:name(Key, Id),
    ok = erlmcp_label:set([erlmcp_server], Key),
    Listen = [{listener_id(Number, Listener, Key), Listener}
              || {Number, Listener} <- lists:enumerate(opened(Wanted, Key))],
    try
        specification(Listen, Settings)
    catch
        Class:Crash:Stack ->
            %% The process that does this when a server ends has not started.
            ok = erlmcp_instance:erase(Key, [ListenerId || {ListenerId, _} <- Listen]),
            erlang:raise(Class, Crash, Stack)
    end.

specification(Listen, #{key := Key, limits := Limits, mounts := Mounts, workers := Workers,
                        on_event := OnEvent} = Settings) ->
    #{error_budget := Budget, gate := Gate} = Instance =
        erlmcp_instance:share(Key, instance(Settings, [Number || {Number, _} <- Listen])),
    #{error_budget_requests := Least} = Limits,
    Listeners = lists:append([listener(ListenerId, Listener, Instance)
                              || {ListenerId, Listener} <- Listen]),
    Shared = [ListenerId || #{id := {listener, ListenerId}} <- Listeners]
        ++ [erlmcp_workers:shared_name(Name, Key) || Name := _ <- Workers],
    {ok, {#{strategy => one_for_one, intensity => 10, period => 10},
          %% The first child ends last.
          [#{id => shared, start => {erlmcp_instance, start_link, [Key, Shared]}}]
          ++
          %% The handlers of events end after all others, which may still report some.
          [#{id => events, start => {erlmcp_event_sup, start_link, [Key, OnEvent]},
             type => supervisor}]
          ++
          [#{id => error_budget,
             start => {erlmcp_error_budget, start_link, [Key, Budget, Least]}},
           sweeper(failure_sweeper, ?FAILURES, fun erlmcp_meter:sweep/1, Instance)]
          ++
          [#{id => {mounted, Prefix}, start => {erlmcp, start_server, [Options]},
             type => supervisor} || #{prefix := Prefix, start := Options} <- Mounts]
          ++
          [#{id => gate_permits, start => {erlmcp_gate_permits, start_link, [Gate]}},
           #{id => gate_queue, start => {erlmcp_gate_queue, start_link, [Gate]}},
           #{id => concurrency_limiter, start => {erlmcp_concurrency_limiter, start_link, [Gate]}},
           #{id => cache, start => {erlmcp_result_cache, start_link, [Instance]}},
           #{id => guard, start => {erlmcp_definition_guard, start_link, [Instance]}}]
          ++ [#{id => {workers, Name},
                start => {erlmcp_workers, start_link, [Name, Pool, Instance]}}
              || Name := Pool <- Workers]
          ++
          [#{id => publisher, start => {erlmcp_catalog_publisher, start_link, [Instance]}},
           on_demand(sessions, erlmcp_session, Instance),
           sweeper(session_sweeper, session_sweep_ms(Limits), fun erlmcp_session:sweep/1, Instance),
           on_demand(tasks, erlmcp_task_process, Instance),
           sweeper(task_sweeper, ?TASKS, fun erlmcp_tasks:sweep/1, Instance)]
          ++ Listeners
          ++ sse_sessions([Listener || {_, Listener} <- Listen], Instance)
          ++ [subscription_sweeper(Instance)]}}.

cluster(#{cluster := none}) -> none;
cluster(#{cluster := Module, id := Id, limits := Limits}) -> {Module, Module:init(Id, Limits)}.

task_store(#{task_store := default}, none) -> {erlmcp_task_store_ets, #{}};
task_store(#{task_store := default}, {Module, State}) -> Module:task_store(State);
task_store(#{task_store := Store}, _) -> Store.

tracer(#{trace := none}) ->
    none;
tracer(#{trace := Trace, identity := #{name := Name, version := Version}}) ->
    case erlmcp_trace_options:tracer(Trace, {Name, Version}) of
        {ok, Tracer} -> Tracer;
        {error, Reason} -> exit({shutdown, Reason})
    end.

%% The tables of the instance belong to the calling process.
instance(#{id := Id, key := Key, meter := Meter, limits := Limits, mounts := Mounts,
           access_log := AccessLog, workers := Workers, handler := Handler,
           shares_keys := SharesKeys} = Settings,
         Listeners) ->
    Cluster = cluster(Settings),
    GateLimits = maps:with([Name || {Name, _, _} <- erlmcp_server_options:gate_limits()], Limits),
    erlmcp_instance:new(#{id => Id, key => Key, limits => Limits,
                          gate => erlmcp_gate:new(GateLimits, Cluster), handler => Handler,
                          mounts => Mounts, workers => lists:sort(maps:keys(Workers)),
                          listeners => Listeners,
                          sessions => erlmcp_session_table:new(),
                          subscriptions => erlmcp_subscriptions:new(),
                          tasks => erlmcp_tasks:open(task_store(Settings, Cluster), Limits),
                          used_states => erlmcp_used_states:new(),
                          cluster => Cluster, shares_keys => SharesKeys,
                          meter => Meter, observers => erlmcp_access_log:observer(AccessLog),
                          tracer => tracer(Settings), telemetry => erlmcp_telemetry:module(),
                          started_ms => erlang:system_time(millisecond),
                          error_budget => erlmcp_error_budget:new(Meter)}).

on_demand(Kind, Module, Instance) ->
    #{id => Kind, start => {erlmcp_on_demand_sup, start_link, [Kind, Module, Instance]},
      type => supervisor}.

sweeper(Name, Milliseconds, Sweep, Instance) ->
    sweeper(Name, Milliseconds, Sweep, fun(_) -> ok end, Instance).

sweeper(Name, Milliseconds, Sweep, Last, Instance) ->
    #{id => Name,
      start => {erlmcp_sweeper, start_link, [Name, Milliseconds, {Sweep, Last}, Instance]}}.

%% This process ends before all others of its server. Then it closes the open subscriptions while
%% their connections still exist, so that each stream ends with its result. A client takes a stream
%% without a result for a lost one (specification 2026-07-28, "Subscriptions / Graceful Closure").
subscription_sweeper(Instance) ->
    Table = erlmcp_instance:subscriptions(Instance),
    sweeper(subscription_sweeper, ?SUBSCRIPTIONS,
            fun(_) -> erlmcp_subscriptions:sweep(Table) end,
            fun(_) -> erlmcp_subscriptions:close(Table) end, Instance).

%% An expired session is never found. Sweeps make room for other sessions.
session_sweep_ms(#{session_idle_ms := Idle, unused_session_ms := Unused}) ->
    min(?MOST, max(?LEAST, min(Idle, Unused) div ?PART)).

%% These start after the listeners, and so end before them.
sse_sessions(Listen, Instance) ->
    [on_demand(sse_sessions, erlmcp_httpd_sse_session, Instance)
     || lists:any(fun({_, Options}) -> is_map_key(sse, Options) end, Listen)].

%% Returns the listeners to open. If the environment `listening_applications` is set, servers of
%% other applications open none.
opened([], _) ->
    [];
opened(Listen, Key) ->
    maybe
        {ok, Listening} ?= application:get_env(erlmcp, listening_applications),
        {ok, Application} ?= application:get_application(),
        false ?= lists:member(Application, Listening),
        Closed = [Transport || {Transport, _} <- Listen],
        ok = erlmcp_log:report(notice, #{what => listeners_stay_closed, application => Application,
                                         listeners => Closed}, Key),
        []
    else
        _ -> Listen
    end.

%% The id is also the listener's ranch reference. The key makes it unique on the node. Logs may show
%% it: it has no `tls` options and no states of pages, which can have secrets.
listener_id(Number, {Transport, Options}, Key) ->
    Shown = (maps:with([path, sse], Options))#{
        tls => is_map_key(tls, Options),
        clients => clients(Transport, Options),
        pages => lists:sort(maps:keys(erlmcp_listen_options:pages(Options)))},
    {{Key, Number}, Transport, Shown}.

%% Which clients a listener lets in.
clients(stdio, _) -> one;
clients(http, #{authenticate := {bearer, _}}) -> with_tokens;
clients(http, #{authenticate := {certificate, _}}) -> with_certificates;
clients(http, #{authenticate := _}) -> authenticated;
clients(_, _) -> anonymous.

listener(Id, {Transport, Options}, #{key := Key} = Instance) ->
    ok = warn(Transport, Options, Key),
    {Before, Spec} = case Transport of
        http -> erlmcp_httpd:child_specs(Id, Options, Instance);
        tcp -> {[], erlmcp_tcp:child_spec(Id, Options, Instance)};
        stdio -> {[], erlmcp_stdio:child_spec(Options, Instance)}
    end,
    [Needed#{id => {Name, Id}} || #{id := Name} = Needed <- Before]
        ++ [Spec#{id => {listener, Id}}].

warn(stdio, _, _) ->
    ok;
warn(Transport, Options, Key) ->
    Ip = maps:get(ip, Options, {127, 0, 0, 1}),
    case erlmcp_listener:is_loopback(Ip) orelse is_asking(Transport, Options) of
        true ->
            ok;
        false ->
            erlmcp_log:report(warning, #{what => listener_asks_nobody, transport => Transport,
                                         ip => list_to_binary(inet:ntoa(Ip)),
                                         advice => advice(Transport)}, Key)
    end.

is_asking(http, Options) -> is_map_key(authenticate, Options);
%% On TCP, a listener with this option was given a principal for all clients on purpose.
is_asking(tcp, Options) -> is_map_key(principal, Options).

advice(http) ->
    <<"everybody who can reach it may call the tools: set its option authenticate, or ip to a "
      "loopback address">>;
advice(tcp) ->
    <<"everybody who can reach it may call the tools: set its option ip to a loopback address, or "
      "principal to say that this is meant">>.
