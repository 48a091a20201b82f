-module(erlmcp_chaos_pauses).
-moduledoc """
A process that measures when the machine gave this node no processor. The process only waits for a
timer, with a high priority, and takes each delay of the timer for a pause.
""".

-export([start_link/0, pauses/1, longest_us/1, stood_still/3]).

-export_type([pause/0]).

-doc "The beginning and the end of a pause, in monotonic microseconds.".
-type pause() :: {FromUs :: integer(), ToUs :: integer()}.

%% Milliseconds between two looks, and the fewest microseconds of a pause that is kept. A timer of
%% the runtime may be late by one millisecond.
-define(BEAT_MS, 2).
-define(KEPT_US, 2_000).

-doc """
Starts the process that measures pauses. The process is linked to the caller, and ends with it.
""".
-spec start_link() -> pid().
start_link() ->
    Caller = self(),
    spawn_link(fun() ->
        _ = process_flag(priority, high),
        watch([], 0, monitor(process, Caller))
    end).

-doc "Returns the pauses of two milliseconds and more until now, oldest first.".
-spec pauses(pid()) -> [pause()].
pauses(Pid) ->
    {Pauses, _} = measured(Pid),
    lists:reverse(Pauses).

-doc "Returns the microseconds of the longest pause until now.".
-spec longest_us(pid()) -> non_neg_integer().
longest_us(Pid) ->
    {_, Longest} = measured(Pid),
    Longest.

-doc """
Returns `true` if there was a pause of at least `LeastUs` microseconds that ended after `SinceUs`,
in monotonic microseconds.
""".
-spec stood_still(SinceUs :: integer(), LeastUs :: pos_integer(), pid()) -> boolean().
stood_still(SinceUs, LeastUs, Pid) ->
    [] =/= [Pause || {From, To} = Pause <- pauses(Pid), To > SinceUs, To - From >= LeastUs].

measured(Pid) ->
    Monitor = monitor(process, Pid),
    Pid ! {measured, self(), Monitor},
    receive
        {Monitor, Measured} ->
            true = demonitor(Monitor, [flush]),
            Measured;
        {'DOWN', Monitor, process, _, Reason} ->
            exit(Reason)
    end.

watch(Pauses, Longest, Monitor) ->
    Due = erlang:monotonic_time(microsecond) + ?BEAT_MS * 1_000,
    receive
        {measured, From, Request} ->
            %% A pause may have ended just now.
            {Kept, Longer} = Measured = looked(Due, Pauses, Longest),
            From ! {Request, Measured},
            watch(Kept, Longer, Monitor);
        {'DOWN', Monitor, process, _, _} ->
            ok
    after ?BEAT_MS ->
        {Kept, Longer} = looked(Due, Pauses, Longest),
        watch(Kept, Longer, Monitor)
    end.

looked(Due, Pauses, Longest) ->
    case erlang:monotonic_time(microsecond) of
        Now when Now - Due >= ?KEPT_US -> {[{Due, Now} | Pauses], max(Longest, Now - Due)};
        Now -> {Pauses, max(Longest, Now - Due)}
    end.
