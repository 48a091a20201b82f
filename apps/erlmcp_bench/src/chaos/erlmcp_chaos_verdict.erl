-module(erlmcp_chaos_verdict).
-moduledoc """
Judges whether a server met a fault as promised. The fault was seen. The server used the right code,
and noticed the fault and recovered in time. It lost nothing, and nothing else failed. Pure.

Every broken promise is a term in a list. An empty list means that the server has passed.
""".

-export([figures/2, violations/3, is_within/2]).

-export_type([figures/0, violation/0, facts/0, limit/0]).

%% The number of the load's requests of which one must be answered in time, since a single request
%% is sometimes slow without any fault.
-define(LOOKS, 3).

-doc """
The number of rounds, and the figures of the worst. A figure is missing if a round has none.
`signal` is what was detected in the first round. `resolution_us` is the shortest recovery that the
load can measure: the time of three of its requests and a quick answer. `pause_us` is the longest
time for which the machine gave the judge no processor. A bound of time is longer by that.
""".
-type figures() :: #{
    rounds := non_neg_integer(), detection_us => non_neg_integer(), signal => tuple(),
    recovery_us => non_neg_integer(), resolution_us := pos_integer(),
    pause_us := non_neg_integer()
}.
-doc "The bound of a figure that shows a harm.".
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
Facts that are not in the journal: the generator's count of sent requests, the scenario's harms and
complaints, unexpected restarts, and in microseconds the interval between the load's requests and
the longest pause of the machine.
""".
-type facts() :: #{
    sent := non_neg_integer() | none, harms := [atom()], fell_over := [term()],
    complaints := [term()],
    interval_us := pos_integer(), pause_us := non_neg_integer()
}.

-doc "Returns the figures of a report.".
-spec figures(erlmcp_chaos_journal:report(), facts()) -> figures().
figures(#{rounds := Rounds, earlier := #{quick := Quick}},
        #{interval_us := Interval, pause_us := Pause}) ->
    Times = [times(Round) || Round <- Rounds],
    Worst = maps:from_list([{Key, lists:max([Value || #{Key := Value} <- Times])}
                            || Key <- [detection_us, recovery_us],
                               Times =/= [], lists:all(fun(T) -> is_map_key(Key, T) end, Times)]),
    Signals = [Signal || #{detected := {_, Signal}} <- Rounds],
    maps:merge(Worst, maps:from_list([{rounds, length(Rounds)},
                                      {resolution_us, ?LOOKS * Interval + Quick},
                                      {pause_us, Pause}
                                      | [{signal, hd(Signals)} || Signals =/= []]])).

times(#{injected := Injected} = Round) ->
    maps:from_list(
        [{detection_us, At - Injected} || #{detected := {At, _}} <- [Round]]
        ++ [{recovery_us, At - Healed}
            || #{healed := Healed} <- [Round],
               {ok, At} <- [erlmcp_chaos_journal:recovered_at(Round)]]).

-doc "Returns every broken promise.".
-spec violations(erlmcp_chaos_journal:report(), erlmcp_chaos_scenario:bounds(), facts()) ->
    [violation()].
violations(#{accounting := Accounting, before := Before} = Report, Bounds, Facts) ->
    #{fell_over := FellOver, complaints := Complaints} = Facts,
    Of = fun(Source) -> erlmcp_chaos_accounting:counts(Source, Accounting) end,
    unseen(Report, Facts)
        ++ times(Report, Bounds, Facts)
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

times(#{rounds := []}, _, _) ->
    [{never, injected}];
times(Report, Bounds, Facts) ->
    #{code := Code, detect_ms := DetectMs, recover_ms := RecoverMs} = Bounds,
    %% The load sees a recovery only with its next requests, so this is the shortest one that it can
    %% measure.
    #{resolution_us := Resolution, pause_us := Pause} = Figures = figures(Report, Facts),
    noticed(Code, DetectMs, Figures)
        ++ case Figures of
               #{recovery_us := Us} when Us =< RecoverMs * 1000 + Resolution + Pause -> [];
               #{recovery_us := Us} -> [{late, recovery, Us, RecoverMs}];
               #{} -> [{never, recovered}]
           end.

noticed(_, none, #{}) -> [];
noticed(_, Bound, #{detection_us := Us, pause_us := Pause}) when Us =< Bound * 1000 + Pause -> [];
noticed(_, Bound, #{detection_us := Us}) -> [{late, detection, Us, Bound}];
noticed(none, _, #{}) -> [{never, detected}];
noticed(Code, _, #{}) -> [{code, Code, never_seen}].

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
