-module(load_schedules_SUITE).
-moduledoc """
Tests for when the requests of an open loop are due. A latency begins there, so a time that is off
is a server that is better or worse than it was.
""".

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([equal_distances/1, random_distances_have_their_mean/1, what_remains_is_due_before/1,
         another_rate_holds_from_now_on/1, a_far_request_comes_nearer/1,
         every_rate_has_its_requests/1, more_changes_than_are_kept/1,
         a_rate_may_be_set_at_the_beginning/1, a_rate_may_be_very_low/1, timers_are_never_early/1]).

%% Erlang's monotonic times are negative. A schedule begins in its millisecond.
-define(BEGINS, -5_000_000_123).
-define(BEGUN, -5_000_000_000).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [equal_distances, random_distances_have_their_mean, what_remains_is_due_before,
     another_rate_holds_from_now_on, a_far_request_comes_nearer, every_rate_has_its_requests,
     more_changes_than_are_kept, a_rate_may_be_set_at_the_beginning, a_rate_may_be_very_low,
     timers_are_never_early].

begun(Rate, Arrivals) ->
    Schedule = erlmcp_load_schedule:new(Rate, Arrivals),
    ok = erlmcp_load_schedule:begins(?BEGINS, Schedule),
    Schedule.

%% In milliseconds since the beginning.
next(Count, Schedule) ->
    [(erlmcp_load_schedule:next(Schedule) - ?BEGUN) / 1_000 || _ <- lists:seq(1, Count)].

%% In the millisecond that follows, and never in one before.
equal_distances(_) ->
    ?assertEqual([1.0, 2.0, 3.0, 4.0], next(4, begun(1_000, even))),
    ?assertEqual([3.0, 5.0, 8.0, 10.0], next(4, begun(400, even))),
    ?assertEqual([1.0, 1.0, 1.0, 2.0], next(4, begun(3_000, even))),
    ?assertEqual([2_000.0, 4_000.0], next(2, begun(0.5, even))),
    %% A rate that no machine keeps is one all the same.
    ?assertEqual([1.0, 1.0], next(2, begun(1.0e15, even))).

%% Six standard deviations of ten thousand, and as many are nearer than the mean as should be.
random_distances_have_their_mean(_) ->
    Times = next(10_000, begun(100, poisson)),
    ?assert(abs(lists:last(Times) - 100_000) < 6_000),
    {Distances, _} = lists:mapfoldl(fun(Time, Before) -> {Time - Before, Time} end, 0.0, Times),
    Near = length([Distance || Distance <- Distances, Distance =< 10.0]),
    ?assert(abs(Near - 6_321) < 500),
    ?assertEqual(Times, lists:sort(Times)).

what_remains_is_due_before(_) ->
    Remaining = fun(Until, Schedule) ->
        lists:reverse(erlmcp_load_schedule:fold_remaining(
            fun(Due, Dues) -> [(Due - ?BEGUN) div 1_000 | Dues] end, [], ?BEGUN + Until, Schedule))
    end,
    Schedule = begun(1_000, even),
    [1.0] = next(1, Schedule),
    ?assertEqual([2, 3], Remaining(4_000, Schedule)),
    ?assertEqual([1, 2, 3, 4], Remaining(4_001, begun(1_000, even))),
    ?assertEqual([], Remaining(1_000, begun(1_000, even))).

%% Those that were due at the rate of then stay due.
another_rate_holds_from_now_on(_) ->
    Schedule = begun(1_000, even),
    [1.0, 2.0, 3.0, 4.0, 5.0] = next(5, Schedule),
    ok = erlmcp_load_schedule:set_rate(100, ?BEGUN + 10_000, Schedule),
    ?assertEqual([6.0, 7.0, 8.0, 9.0, 10.0, 20.0, 30.0], next(7, Schedule)),
    %% A second change, before those of the first rate are taken.
    Twice = begun(1_000, even),
    ok = erlmcp_load_schedule:set_rate(500, ?BEGUN + 2_000, Twice),
    ok = erlmcp_load_schedule:set_rate(100, ?BEGUN + 4_000, Twice),
    ?assertEqual([1.0, 2.0, 4.0, 14.0], next(4, Twice)).

%% One that is taken already is void, so that a load of one a minute can become a thousand a second.
a_far_request_comes_nearer(_) ->
    Schedule = begun(0.01, even),
    [100_000.0] = next(1, Schedule),
    ok = erlmcp_load_schedule:set_rate(1_000, ?BEGUN + 10_000, Schedule),
    ?assertEqual([11.0, 12.0], next(2, Schedule)),
    %% And one that nobody has taken yet.
    Waiting = begun(0.01, even),
    ok = erlmcp_load_schedule:set_rate(1_000, ?BEGUN + 10_000, Waiting),
    ?assertEqual([11.0, 12.0], next(2, Waiting)).

%% The requests that were due at a rate are as many as the rate says, whenever they are taken. A
%% change may take the part of a request that is due next with it.
every_rate_has_its_requests(_) ->
    ?assert(proper:quickcheck(
        ?FORALL(Periods, non_empty(list({rate(), range(1, 500), range(0, 300)})),
                begin
                    Dues = dues(Periods),
                    {_, Wrong} = lists:foldl(fun({Rate, Ms, _}, {From, Found}) ->
                        Until = From + Ms,
                        Count = length([Due || Due <- Dues, Due > From, Due =< Until]),
                        {Until, [{Rate, Ms, Count} || abs(Count - Rate * Ms / 1_000) > 1.001]
                                    ++ Found}
                    end, {0, []}, Periods),
                    Wrong =:= [] orelse error({Wrong, length(Dues)})
                end), [{to_file, user}, {numtests, 200}])),
    %% Six standard deviations.
    Random = begun(1_000, poisson),
    ok = erlmcp_load_schedule:set_rate(100, ?BEGUN + 10_000_000, Random),
    ok = erlmcp_load_schedule:set_rate(2_000, ?BEGUN + 20_000_000, Random),
    All = remaining(30_000_001, Random),
    Within = fun(From) -> length([Due || Due <- All, Due > From, Due =< From + 10_000]) end,
    [?assert(abs(Within(From) - Count) < 6 * math:sqrt(Count))
     || {From, Count} <- [{0, 10_000}, {10_000, 1_000}, {20_000, 20_000}]].

rate() -> oneof([range(1, 100), range(100, 5_000)]).

%% When the requests are due of a schedule with these rates, each for `Ms` milliseconds. Before the
%% next change at most `Takes` of them are taken, none of them before it is due. One that was taken
%% early is void.
dues([{Rate, _, _} | _] = Periods) ->
    Schedule = begun(Rate, even),
    {End, Taken} = lists:foldl(fun({Of, Ms, Takes}, {From, Before}) ->
        [ok = erlmcp_load_schedule:set_rate(Of, ?BEGUN + From * 1_000, Schedule) || From > 0],
        {From + Ms, taken(Takes, From + Ms, Schedule) ++ Before}
    end, {0, []}, Periods),
    Taken ++ remaining(End * 1_000 + 1, Schedule).

taken(0, _, _) ->
    [];
taken(Takes, Until, Schedule) ->
    case next(1, Schedule) of
        [Due] when Due =< Until -> [Due | taken(Takes - 1, Until, Schedule)];
        [_] -> []
    end.

remaining(Until, Schedule) ->
    erlmcp_load_schedule:fold_remaining(fun(Due, Dues) -> [(Due - ?BEGUN) / 1_000 | Dues] end, [],
                                        ?BEGUN + Until, Schedule).

%% Then the oldest rate that is kept holds before it.
more_changes_than_are_kept(_) ->
    [begin
         Schedule = begun(1_000, even),
         [ok = erlmcp_load_schedule:set_rate(500, ?BEGUN + Ms * 1_000, Schedule)
          || Ms <- lists:seq(10, Last)],
         ?assertEqual(Expected, next(2, Schedule))
     end || {Last, Expected} <- [{1_009, [1.0, 2.0]}, {1_010, [2.0, 4.0]}]].

a_rate_may_be_set_at_the_beginning(_) ->
    Schedule = erlmcp_load_schedule:new(1, even),
    ok = erlmcp_load_schedule:begins(200, ?BEGINS, Schedule),
    ?assertEqual([5.0, 10.0], next(2, Schedule)),
    %% Nothing is due earlier if the rate changes before that.
    ok = erlmcp_load_schedule:begins(?BEGINS, Schedule),
    ok = erlmcp_load_schedule:set_rate(500, ?BEGUN - 20_000, Schedule),
    ?assertEqual([2.0, 4.0], next(2, Schedule)),
    ok = erlmcp_load_schedule:set_rate(200, ?BEGUN - 10_000, Schedule),
    %% Again from the beginning.
    ok = erlmcp_load_schedule:begins(?BEGINS, Schedule),
    ?assertEqual([5.0, 10.0], next(2, Schedule)).

%% However many of its requests are taken, none of them is due on the next day.
a_rate_may_be_very_low(_) ->
    [begin
         Schedule = begun(Rate, Arrivals),
         Times = next(200, Schedule),
         ?assertEqual(Times, lists:sort(Times)),
         ?assert(Arrivals =:= poisson orelse hd(Times) > 86_400_000),
         ok = erlmcp_load_schedule:set_rate(Rate, ?BEGUN + 10_000, Schedule),
         [_] = next(1, Schedule),
         ok = erlmcp_load_schedule:set_rate(1_000, ?BEGUN + 20_000, Schedule),
         [Time] = next(1, Schedule),
         ?assert(Time < 86_400_000)
     end || Rate <- [1.0e-5, 1.0e-7, 1.0e-300], Arrivals <- [even, poisson]].

timers_are_never_early(_) ->
    [begin
         Us = erlang:monotonic_time(microsecond) + Later,
         Timer = erlmcp_load_schedule:start_timer(Us, {due, Later}),
         receive {timeout, Timer, {due, Later}} -> ok end,
         ?assert(erlang:monotonic_time(microsecond) >= Us)
     end || Later <- [-5_000, 0, 1, 999, 1_000, 1_001, 2_500, 3_999]].
