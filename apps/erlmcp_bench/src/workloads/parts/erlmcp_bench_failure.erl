-module(erlmcp_bench_failure).
-moduledoc """
Kills the process of one service of a server in this node, once, while a load runs
(`m:erlmcp_bench_open_load`). The process's supervisor starts it again.
""".

-export([services/0, start/2, stop/1]).

-export_type([service/0, plan/0, seen/0]).

-doc """
The service that fails:

- `server`: the server's supervisor, and so all its processes and tables;
- `gate`: gives back the permits of dead processes (`m:erlmcp_gate_permits`);
- `queue`: has the requests that wait (`m:erlmcp_gate_queue`);
- `catalog`: changes the server's catalog (`m:erlmcp_catalog_publisher`);
- `registry`: enters servers into the node's registry (`m:erlmcp_registry`).
""".
-type service() :: server | gate | queue | catalog | registry.

-doc """
The `service` of `server` is killed at `at_ms`, in monotonic milliseconds: `kill` is called with the
service's process. `recovery` is told when that happens, and when the process has ended.
""".
-type plan() :: #{
    service := service(), server := erlmcp:server(), at_ms := integer(),
    recovery := erlmcp_bench_recovery:recovery(), kill := fun((pid()) -> term())
}.
-doc """
The number of processes that were killed, 0 or 1. `earlier_p99_us` is the 99th percentile of the
latencies before the kill, and missing if there were none. `restarted_ms` is the time from the kill
until the service ran again, and missing if it did not.
""".
-type seen() :: #{killed_processes := 0 | 1, earlier_p99_us => pos_integer(),
                  restarted_ms => float()}.
-type injector() :: {pid(), Monitor :: reference()}.

-doc "Returns every service that can fail.".
-spec services() -> [service(), ...].
services() -> [server, gate, queue, catalog, registry].

-doc """
Starts a process that kills the service at its time. Just before the kill it reads the latencies of
the load. The process ends when the service runs again, at `stop/1`, or with the calling process.
Until `stop/1`, the node does not log reports of OTP: those of the killed processes are expected.
""".
-spec start(plan(), erlmcp_bench_open_load:load()) -> injector().
start(Plan, Load) ->
    Caller = self(),
    _ = logger:add_primary_filter(?MODULE, {fun logger_filters:domain/2, {stop, sub, [otp]}}),
    erlmcp_one_shot:start(fun() -> injected(Plan, Load, monitor(process, Caller)) end, []).

-doc """
Ends the process that `start/2` started, and returns what was seen of the failure. Only the caller
of `start/2` may call this function, after the end of the load. The node logs reports of OTP again.
Exits with the reason of the process if it has crashed.
""".
-spec stop(injector()) -> seen().
stop({Pid, Monitor}) ->
    Pid ! stop,
    _ = logger:remove_primary_filter(?MODULE),
    receive
        {'DOWN', Monitor, process, Pid, {outcome, Seen}} -> Seen;
        {'DOWN', Monitor, process, Pid, Reason} -> exit(Reason)
    end.

injected(#{service := Service, server := Server, at_ms := At} = Plan, Load, Caller) ->
    receive
        stop -> unseen();
        {'DOWN', Caller, process, _, _} -> exit(normal)
    after max(0, At - erlang:monotonic_time(millisecond)) ->
        killed(process(Service, Server), Plan, Load, Caller)
    end.

killed(Pid, #{recovery := Recovery, kill := Kill} = Plan, Load, Caller) ->
    Monitor = monitor(process, Pid),
    Earlier = erlmcp_bench_open_load:p99_us(Load),
    Began = erlmcp_bench_recovery:failed(Earlier, Recovery),
    _ = Kill(Pid),
    receive
        {'DOWN', Monitor, process, Pid, killed} ->
            ok = erlmcp_bench_recovery:seen(Recovery),
            Restarted = restarted(Pid, Began, Plan, Caller),
            maps:merge(Restarted#{killed_processes => 1},
                       #{earlier_p99_us => Earlier || Earlier > 0});
        stop ->
            unseen();
        {'DOWN', Caller, process, _, _} ->
            exit(normal)
    end.

unseen() -> #{killed_processes => 0}.

%% A supervisor does not report a restart, so this process looks once a millisecond.
restarted(Killed, Began, #{service := Service, server := Server} = Plan, Caller) ->
    case process(Service, Server) of
        Pid when is_pid(Pid), Pid =/= Killed ->
            #{restarted_ms => (erlang:monotonic_time(nanosecond) - Began) / 1_000_000};
        _ ->
            receive
                stop -> #{};
                {'DOWN', Caller, process, _, _} -> exit(normal)
            after 1 -> restarted(Killed, Began, Plan, Caller)
            end
    end.

process(registry, _) ->
    whereis(erlmcp_registry);
process(Service, Server) ->
    case erlmcp_registry:whereis(Server) of
        {ok, Supervisor, _} when Service =:= server -> Supervisor;
        {ok, Supervisor, _} -> child(id(Service), Supervisor);
        error -> undefined
    end.

id(gate) -> gate_permits;
id(queue) -> gate_queue;
id(catalog) -> publisher.

child(Id, Supervisor) ->
    {_, Pid, _, _} = lists:keyfind(Id, 1, supervisor:which_children(Supervisor)),
    Pid.
