-module(erlmcp_chaos_cpu_saturation).
-moduledoc """
A fault: every scheduler is busy. Processes inside the node that are not calls, and processes of the
machine outside the node, compute all the time.

The node has a bound for how long a process may wait for a scheduler. Over that bound it refuses new
work with 1078, so that callers can go elsewhere.

The evidence: how many processes of the node wait for a scheduler at once, and the processor time
that the processes outside take.
""".

-behaviour(erlmcp_chaos_scenario).

-export([id/0, title/0, needs/0, bounds/0, harms/0, setup/1, run/1]).
-export([compute/2, await_idle/1]).

%% Milliseconds that a process may wait for a scheduler. Other programs of the machine, before the
%% fault, should not make one wait for so long.
-define(BOUND_MS, 50).
%% Processes for each scheduler, and for each core.
-define(INSIDE, 400).
-define(OUTSIDE, 1).
-define(BUSY_MS, 5_000).
-define(SHORT_BUSY_MS, 2_000).
-define(TIMEOUT_MS, 20_000).
%% The processes outside take at least this part of the processor time that there is.
-define(SHARE_PERCENT, 5).
%% Connections of the load. Each has one request at a time, which waits for several schedulers in a
%% row.
-define(CONNECTIONS, 40).

-doc false.
id() -> ~"chaos_cpu_saturation".

-doc false.
title() -> ~"every scheduler is busy from inside and from outside".

-doc false.
needs() -> [].

-doc false.
%% The first refusal waits for a turn of its connection, behind 400 other processes. The load is
%% settled when the requests that were due during the fault are answered, too.
bounds() ->
    #{code => 1078, detect_ms => 1_500, recover_ms => 2_500, load => refused, pauses => own}.

-doc false.
harms() -> [inside, outside].

-doc false.
setup(_) ->
    {ok, #{target => #{flags => ["-erlmcp", "scheduler_wait_ms", integer_to_list(?BOUND_MS)]},
           load => #{timeout_ms => ?TIMEOUT_MS, connections => ?CONNECTIONS}}}.

-doc false.
run(Context) ->
    BusyMs = case erlmcp_chaos_context:is_short(Context) of
        true -> ?SHORT_BUSY_MS;
        false -> ?BUSY_MS
    end,
    Cores = ?OUTSIDE * cores(erlang:system_info(logical_processors_available)),
    Call = fun(Module, Function, Arguments) ->
        erlmcp_chaos_context:call(Context, Module, Function, Arguments)
    end,
    Schedulers = Call(erlang, system_info, [schedulers_online]),
    ok = Call(erlmcp_chaos_peaks, follow, [#{waiting => {erlang, statistics, [run_queue]}}]),
    maybe
        %% The processes outside make others wait from their start on.
        Injected = erlmcp_chaos_context:inject(Context),
        {ok, Hogs} ?= erlmcp_chaos_hogs:start(
            erlmcp_chaos_context:harm(Context, outside, 0, fun() -> Cores end)),
        Computing = erlmcp_chaos_context:harm(Context, inside, none, fun() ->
            Call(?MODULE, compute, [?INSIDE, BusyMs])
        end),
        receive after BusyMs -> ok end,
        TakenMs = erlmcp_chaos_hogs:cpu_us(Hogs) / 1_000,
        ThereMs = Cores * (erlmcp_chaos_context:now_us() - Injected) / 1_000,
        ok ?= erlmcp_chaos_hogs:stop(Hogs),
        ok = Call(?MODULE, await_idle, [Computing]),
        _ = erlmcp_chaos_context:heal(Context),
        #{waiting := Waiting} = Call(erlmcp_chaos_peaks, highest, []),
        Inside = erlmcp_chaos_context:seen(Context, inside, waiting_processes, Waiting,
                                           {at_least, ?INSIDE * Schedulers div 2}),
        ok ?= erlmcp_chaos_context:seen(Context, outside, taken_percent, 100 * TakenMs / ThereMs,
                                        {at_least, ?SHARE_PERCENT}),
        ok ?= Inside,
        _ = erlmcp_chaos_context:await_recovered(Context),
        ok
    end.

cores(unknown) -> erlang:system_info(schedulers_online);
cores(Cores) -> Cores.

-doc """
Runs in the server's node: starts processes that compute for `Milliseconds`. For each scheduler
there are `Processes` of them. Returns another process, which ends when all of them have ended.
""".
-spec compute(Processes :: pos_integer(), Milliseconds :: pos_integer()) -> pid().
compute(Processes, Milliseconds) ->
    End = erlang:monotonic_time(millisecond) + Milliseconds,
    spawn(fun() ->
        Computing = [spawn_monitor(fun() -> compute_until(End, 0) end)
                     || _ <- lists:seq(1, Processes * erlang:system_info(schedulers_online))],
        lists:foreach(fun({Pid, Monitor}) ->
            receive {'DOWN', Monitor, process, Pid, _} -> ok end
        end, Computing)
    end).

-doc """
Runs in the server's node: waits until the processes of `compute/2` have ended. `Computing` is the
result of `compute/2`. Returns at once if `Computing` is `none`.
""".
-spec await_idle(Computing :: pid() | none) -> ok.
await_idle(none) ->
    ok;
await_idle(Computing) ->
    Monitor = monitor(process, Computing),
    receive {'DOWN', Monitor, process, Computing, _} -> ok end.

compute_until(End, Number) ->
    case erlang:monotonic_time(millisecond) of
        Now when Now >= End -> ok;
        _ -> compute_until(End, erlang:phash2({Number, End}))
    end.
