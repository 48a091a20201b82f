-module(erlmcp_test_pauses).
-moduledoc """
Measures when the machine stood still, by how late a process comes that only waits. Each scheduler
has such a process, since a machine may stop a single processor, and what runs there. A case whose
subject is a time allows for the measured pauses, or is judged again.

A machine that gives a node 25 of each 100 milliseconds shows as pauses of 75 milliseconds.
""".

-export([undisturbed/2, start/0, longest_ms/1, total_ms/1, pauses/1, joined/1, stop/1]).

-export_type([watch/0, pause/0]).

-doc "The processes that wait, by their schedulers.".
-opaque watch() :: [pid(), ...].

-doc "The beginning and the end of a pause, in microseconds of the monotonic time.".
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

-doc "Begins to measure. The processes end with `stop/1`, or with the calling process.".
-spec start() -> watch().
start() ->
    Caller = self(),
    [spawn_opt(fun() -> watch([], monitor(process, Caller)) end,
               [link, {priority, high}, {scheduler, Scheduler}])
     || Scheduler <- lists:seq(1, erlang:system_info(schedulers_online))].

-doc "Returns the length of the longest pause of a scheduler so far, in milliseconds.".
-spec longest_ms(watch()) -> non_neg_integer().
longest_ms(Watch) ->
    lists:max([0 | lengths_ms(pauses(Watch))]).

-doc """
Returns how long the machine stood still so far, in all pauses together. A time in which several
schedulers stood still counts once.
""".
-spec total_ms(watch()) -> non_neg_integer().
total_ms(Watch) ->
    lists:sum(lengths_ms(joined(pauses(Watch)))).

lengths_ms(Pauses) ->
    [(To - From) div 1_000 || {From, To} <- Pauses].

-doc """
Returns the pauses of each scheduler so far. Each is longer than 5 milliseconds. Those of several
schedulers may overlap.
""".
-spec pauses(watch()) -> [pause()].
pauses(Watch) ->
    lists:append([asked(pauses, Pid) || Pid <- Watch]).

-doc "Returns the times in which at least one scheduler stood still, in their order.".
-spec joined([pause()]) -> [pause()].
joined(Pauses) ->
    in_order(lists:sort(Pauses)).

in_order([{From, To}, {Next, Until} | Pauses]) when Next =< To ->
    in_order([{From, max(To, Until)} | Pauses]);
in_order([Pause | Pauses]) ->
    [Pause | in_order(Pauses)];
in_order([]) ->
    [].

-doc "Ends the measuring.".
-spec stop(watch()) -> ok.
stop(Watch) ->
    lists:foreach(fun(Pid) ->
                      true = unlink(Pid),
                      ok = asked(stop, Pid)
                  end, Watch).

asked(What, Pid) ->
    Monitor = monitor(process, Pid),
    Pid ! {What, self(), Monitor},
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
