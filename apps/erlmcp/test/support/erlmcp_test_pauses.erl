-module(erlmcp_test_pauses).
-moduledoc """
Measures when the machine stood still: how late a process comes that only waits. A case whose
subject is a time allows what was measured, or is judged again.

A machine that gives a node 25 of each 100 milliseconds shows as pauses of 75 milliseconds.
""".

-export([undisturbed/2, start/0, longest_ms/1, total_ms/1, pauses/1, stop/1]).

-export_type([pause/0]).

-doc "The begin and the end of a pause, in microseconds of the monotonic time.".
-type pause() :: {FromUs :: integer(), ToUs :: integer()}.

-define(BEAT_MS, 2).
%% A pause that is no longer is not kept.
-define(SHORT_US, 5_000).
-define(TRIES, 5).

-doc """
Runs `Judge`, and again if it crashed while the machine stood still for `Ms` or longer. After five
tries a crash counts in any case, so a fault that is there is found on any machine.
""".
-spec undisturbed(Ms :: pos_integer(), Judge :: fun(() -> Value)) -> Value.
undisturbed(Ms, Judge) ->
    undisturbed(Ms, Judge, ?TRIES).

undisturbed(Ms, Judge, Tries) ->
    Pauses = start(),
    try Judge() of
        Value ->
            ok = stop(Pauses),
            Value
    catch
        Class:Reason:Stack ->
            Longest = longest_ms(Pauses),
            ok = stop(Pauses),
            case Longest >= Ms andalso Tries > 1 of
                true ->
                    ct:pal("stood still for ~b ms: ~p", [Longest, Reason]),
                    undisturbed(Ms, Judge, Tries - 1);
                false ->
                    erlang:raise(Class, Reason, Stack)
            end
    end.

-doc "Begins to measure. The process ends with `stop/1`, or with the calling process.".
-spec start() -> pid().
start() ->
    Caller = self(),
    spawn_link(fun() ->
        _ = process_flag(priority, high),
        watch([], monitor(process, Caller))
    end).

-doc "Returns the length of the longest pause so far, in milliseconds.".
-spec longest_ms(pid()) -> non_neg_integer().
longest_ms(Pauses) ->
    lists:max([0 | lengths_ms(Pauses)]).

-doc "Returns how long the machine stood still so far, in all pauses together.".
-spec total_ms(pid()) -> non_neg_integer().
total_ms(Pauses) ->
    lists:sum(lengths_ms(Pauses)).

lengths_ms(Pauses) ->
    [(To - From) div 1_000 || {From, To} <- pauses(Pauses)].

-doc "Returns the pauses so far, the latest first. Each is longer than 5 milliseconds.".
-spec pauses(pid()) -> [pause()].
pauses(Pauses) ->
    asked(pauses, Pauses).

-doc "Ends the measuring.".
-spec stop(pid()) -> ok.
stop(Pauses) ->
    true = unlink(Pauses),
    asked(stop, Pauses).

asked(What, Pauses) ->
    Monitor = monitor(process, Pauses),
    Pauses ! {What, self(), Monitor},
    receive
        {Monitor, Answer} ->
            true = demonitor(Monitor, [flush]),
            Answer;
        {'DOWN', Monitor, process, _, Reason} ->
            exit(Reason)
    end.

watch(Kept, Monitor) ->
    Due = now_us() + ?BEAT_MS * 1_000,
    receive
        {pauses, From, Request} ->
            Seen = seen(Due, Kept),
            From ! {Request, Seen},
            watch(Seen, Monitor);
        {stop, From, Request} ->
            From ! {Request, ok};
        {'DOWN', Monitor, process, _, _} ->
            ok
    after ?BEAT_MS ->
        watch(seen(Due, Kept), Monitor)
    end.

%% A pause may have just ended when a question comes.
seen(Due, Kept) ->
    case now_us() of
        Now when Now - Due > ?SHORT_US -> [{Due, Now} | Kept];
        _ -> Kept
    end.

now_us() ->
    erlang:monotonic_time(microsecond).
