-module(erlmcp_chaos_verdict).
-moduledoc """
Judges whether a server met a fault as promised. The harm must be seen. The server must notice the
fault, by its code if it has one, and recover, both in time. Requests may fail only as the bounds of
the fault allow. Pure.

The bound of a recovery is longer by the time in which the load can see it (`resolution_us`). A
bound of time is also longer by the pauses of the machine within it. The bound of a recovery starts
over after a pause of ten milliseconds or more, which adds at most a second in all. With
`pauses => own` in the bounds of the fault, only the longest pause counts, by its own time.
""".

-export([figures/3, violations/3, is_within/2]).

-export_type([figures/0, violation/0, facts/0, limit/0]).

%% The number of the load's requests of which one must be answered in time, since a single request
%% is sometimes slow without any fault.
-define(LOOKS, 3).
%% The fewest microseconds of a pause that makes answers slow, and the most that all such pauses
%% give back to a recovery.
-define(SLOW_US, 10_000).
-define(ANEW_US, 1_000_000).

-doc """
The number of rounds, and the worst value that a figure has in any of them.

- `detection_us` and `recovery_us` are the longest times until the detection and until the recovery.
  Each of them is missing if a round lacks that event, or if there is no round.
- `signal` is the first detected event, refusal, failure or wrong answer.
- `resolution_us` is the shortest recovery that the load can measure: the time of three of its
  requests and a quick answer.
- `pause_us` is the longest pause of the machine.
- `detection_moved_us` and `recovery_moved_us` are the most by which pauses have moved a bound. They
  are missing if no bound was moved.
""".
-type figures() :: #{
    rounds := non_neg_integer(), detection_us => non_neg_integer(), signal => tuple(),
    recovery_us => non_neg_integer(), resolution_us := pos_integer(),
    pause_us := non_neg_integer(),
    detection_moved_us => pos_integer(), recovery_moved_us => pos_integer()
}.
-doc "The bound of a figure that shows a harm: the least or the most that the figure may be.".
-type limit() :: {at_least | at_most, number()}.
-type violation() ::
    {unseen, Harm :: atom()}
    | {unseen, Harm :: atom(), Figure :: atom(), Value :: number(), limit()}
    | {code, Expected :: integer() | none, never_seen}
    | {late, detection | recovery, Us :: integer(), BoundMs :: integer()}
    | {never, injected | detected | recovered}
    | {not_good, load | fault | probe, term()}
    | {lost, load | fault | probe, pos_integer()}
    | {unaccounted, integer()}
    | {before, [term()]}
    | {fell_over, term()}
    | {scenario, term()}.
-doc """
Facts that are not in the journal.

- `sent`: the load's count of sent requests, or `none` without a load.
- `harms`, `complaints`: the harms of the scenario, and its errors.
- `fell_over`: unexpected restarts.
- `interval_us`: the time between two requests of the load, or 1 without an open loop.
- `pauses`, `pause_us`: the pauses of the machine, oldest first, and the longest one.
""".
-type facts() :: #{
    sent := non_neg_integer() | none, harms := [atom()], fell_over := [term()],
    complaints := [term()],
    interval_us := pos_integer(), pauses := [erlmcp_chaos_pauses:pause()],
    pause_us := non_neg_integer()
}.

-doc """
Returns the figures of a fault from its journal's report, its bounds, and the facts that are not in
the journal.
""".
-spec figures(erlmcp_chaos_journal:report(), erlmcp_chaos_scenario:bounds(), facts()) -> figures().
figures(#{rounds := Rounds} = Report, Bounds, #{pause_us := Longest} = Facts) ->
    Times = [times(Round, Report, Bounds, Facts) || Round <- Rounds],
    Worst = [{Key, lists:max([Value || #{Key := Value} <- Times])}
             || Key <- [detection_us, recovery_us],
                Times =/= [], lists:all(fun(T) -> is_map_key(Key, T) end, Times)],
    Moved = [{Key, Most} || Key <- [detection_moved_us, recovery_moved_us],
                            Most <- [lists:max([0 | [Us || #{Key := Us} <- Times]])], Most > 0],
    Signals = [Signal || #{detected := {_, Signal}} <- Rounds],
    maps:from_list(Worst ++ Moved ++ [{signal, hd(Signals)} || Signals =/= []]
                   ++ [{rounds, length(Rounds)}, {resolution_us, resolution(Report, Facts)},
                       {pause_us, Longest}]).

%% The load sees a recovery only with its next requests, so this is the shortest one that it can
%% measure.
resolution(#{earlier := #{quick := Quick}}, #{interval_us := Interval}) ->
    ?LOOKS * Interval + Quick.

times(Round, Report, Bounds, #{pauses := Pauses} = Facts) ->
    Others = Facts#{pauses := others(Bounds, Pauses)},
    maps:merge(detection(Round, Bounds, Others), recovery(Round, Report, Bounds, Others)).

%% The pauses that may not be the fault itself.
others(#{pauses := own}, [_ | _] = Pauses) ->
    {_, Longest} = lists:max([{To - From, Pause} || {From, To} = Pause <- Pauses]),
    [Longest];
others(_, Pauses) ->
    Pauses.

detection(#{injected := Injected, detected := {At, _}}, #{detect_ms := none}, _) ->
    #{detection_us => At - Injected};
detection(#{injected := Injected, detected := {At, _}}, #{detect_ms := Bound}, Facts) ->
    #{pauses := Pauses} = Facts,
    #{detection_us => At - Injected,
      detection_moved_us => moved(Injected, At, Bound * 1_000, 0, Pauses)};
detection(#{}, _, _) ->
    #{}.

recovery(#{healed := Healed} = Round, Report, #{recover_ms := Bound} = Bounds, Facts) ->
    #{interval_us := Interval, pauses := Pauses} = Facts,
    case erlmcp_chaos_journal:recovered_at(Round) of
        {ok, At} ->
            %% The answers that show the recovery come after it.
            Within = Bound * 1_000 + resolution(Report, Facts)
                + erlmcp_chaos_journal:answers() * Interval,
            #{recovery_us => At - Healed,
              recovery_moved_us => moved(Healed, At, Within, anew_us(Bounds), Pauses)};
        not_recovered ->
            #{}
    end;
recovery(#{}, _, _, _) ->
    #{}.

anew_us(#{pauses := own}) -> 0;
anew_us(#{}) -> ?ANEW_US.

%% Returns by how many microseconds pauses move a bound that begins at `Began`. They began before
%% `At`, the time of the event, and no later than `Within` after the moved beginning. A pause that
%% makes answers slow also gives back the time before it: all of them together at most `Anew`.
moved(Began, At, Within, Anew, Pauses) ->
    {Beginning, _} = lists:foldl(fun({From, To}, {Begins, More}) when
        To > Began, From < At, From =< Begins + Within
    ->
        Again = again(From - Begins, To - From, More),
        {Begins + Again + To - max(From, Began), More - Again};
    (_, Moved) ->
        Moved
    end, {Began, Anew}, Pauses),
    Beginning - Began.

again(Us, Pause, More) when Pause >= ?SLOW_US -> max(0, min(Us, More));
again(_, _, _) -> 0.

-doc """
Returns every broken promise of a fault, from the same arguments as `figures/3`. If the list is
empty, the server has passed.
""".
-spec violations(erlmcp_chaos_journal:report(), erlmcp_chaos_scenario:bounds(), facts()) ->
    [violation()].
violations(#{accounting := Accounting, before := Before} = Report, Bounds, Facts) ->
    #{fell_over := FellOver, complaints := Complaints} = Facts,
    Of = fun(Source) -> erlmcp_chaos_accounting:counts(Source, Accounting) end,
    unseen(Report, Facts)
        ++ in_time(Report, Bounds, Facts)
        ++ [{before, Before} || Before =/= []]
        ++ lists:append([lost(Source, Of(Source), Bounds) || Source <- [load, fault, probe]])
        ++ not_good(Of(load), Bounds)
        ++ [{not_good, probe, Failed} || #{failed := Failed} <- [Of(probe)], Failed =/= #{}]
        ++ unaccounted(Of(load), Facts)
        ++ [{fell_over, What} || What <- FellOver]
        ++ [{scenario, What} || What <- Complaints].

%% A harm without a figure was never looked for.
unseen(#{seen := Seen}, #{harms := Harms}) ->
    [{unseen, Harm} || Harm <- Harms, not is_map_key(Harm, Seen)]
        ++ [{unseen, Harm, Figure, Value, Limit}
            || Harm := Figures <- maps:iterator(Seen, ordered),
               Figure := {Value, Limit} <- maps:iterator(Figures, ordered),
               not is_within(Value, Limit)].

-doc "Returns `true` if a figure is within its bound.".
-spec is_within(number(), limit()) -> boolean().
is_within(Value, {at_least, Least}) -> Value >= Least;
is_within(Value, {at_most, Most}) -> Value =< Most.

in_time(#{rounds := []}, _, _) ->
    [{never, injected}];
in_time(#{rounds := Rounds} = Report, Bounds, Facts) ->
    #{code := Code, detect_ms := DetectMs, recover_ms := RecoverMs} = Bounds,
    Times = [times(Round, Report, Bounds, Facts) || Round <- Rounds],
    noticed(Code, DetectMs, Times)
        ++ case [Us || #{recovery_us := Us} <- Times] of
               Recovered when length(Recovered) < length(Rounds) ->
                   [{never, recovered}];
               _ ->
                   late(recovery, RecoverMs, resolution(Report, Facts),
                        [{Us, Moved} || #{recovery_us := Us, recovery_moved_us := Moved} <- Times])
           end.

noticed(_, none, _) ->
    [];
noticed(Code, Bound, Times) ->
    case [{Us, Moved} || #{detection_us := Us, detection_moved_us := Moved} <- Times] of
        Noticed when length(Noticed) =:= length(Times) -> late(detection, Bound, 0, Noticed);
        _ when Code =:= none -> [{never, detected}];
        _ -> [{code, Code, never_seen}]
    end.

%% The worst of the rounds that were late.
late(What, BoundMs, MoreUs, Times) ->
    case [Us || {Us, Moved} <- Times, Us - Moved > BoundMs * 1_000 + MoreUs] of
        [] -> [];
        Late -> [{late, What, lists:max(Late), BoundMs}]
    end.

%% Only a timeout shows that a server is unreachable.
lost(Source, #{wrong := Wrong} = Counts, #{load := Promised}) ->
    [{lost, Source, Lost} || Promised =/= unreachable,
                             Lost <- [erlmcp_chaos_accounting:lost(Counts)], Lost > 0]
        ++ [{not_good, Source, {wrong, Wrong}} || Wrong =/= #{}].

not_good(#{refused := Refused, failed := Failed}, #{load := undisturbed}) ->
    [{not_good, load, {refused, Refused}} || Refused =/= #{}] ++ failed(Failed);
not_good(#{refused := Refused, failed := Failed}, #{load := refused, code := Code}) ->
    [{not_good, load, {refused, Other}} || Other <- [maps:remove(Code, Refused)], Other =/= #{}]
        ++ failed(Failed);
not_good(#{}, #{load := Promised}) when Promised =:= failed; Promised =:= unreachable ->
    [].

failed(Failed) ->
    [{not_good, load, {failed, Failed}} || Failed =/= #{}].

unaccounted(_, #{sent := none}) ->
    [];
unaccounted(Counts, #{sent := Sent}) ->
    [{unaccounted, Missing} || Missing <- [Sent - erlmcp_chaos_accounting:sent(Counts)],
                               Missing =/= 0].
