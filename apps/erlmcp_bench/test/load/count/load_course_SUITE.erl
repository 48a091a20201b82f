-module(load_course_SUITE).
-moduledoc """
Tests for the course of a load: planted requests have exactly these errors in each window, and this
backlog, at each bound and just beyond it.
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([errors_belong_to_their_window/1, the_last_window_has_the_rest/1,
         what_was_due_before_is_in_no_window/1,
         the_backlog_is_what_was_due_and_has_not_ended/1, troubles_have_their_last_time/1,
         courses_add_up/1]).

%% Erlang's monotonic times are negative.
-define(SINCE, -5_000_000_123).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [errors_belong_to_their_window, the_last_window_has_the_rest,
     what_was_due_before_is_in_no_window,
     the_backlog_is_what_was_due_and_has_not_ended, troubles_have_their_last_time, courses_add_up].

%% A window is ten seconds. A request belongs to that in which it was due, whenever it ends.
errors_belong_to_their_window(_) ->
    Course = course([{{refused, 1056}, 0, 1}, {{failed, timeout}, 9_999_999, 19_999_999},
                     {{failed, timeout}, 10_000_000, 20_000_000}, {unsent, 10_000_001, 30_000_000},
                     {unsent, 19_999_999, 30_000_000}, {{wrong, id}, 20_000_000, 20_000_001},
                     {answered, 15_000_000, 15_000_001}]),
    ?assertEqual([{10.0, 10.0, #{{refused, 1056} => 1, {failed, timeout} => 1}},
                  {20.0, 10.0, #{{failed, timeout} => 1, unsent => 2}},
                  {30.0, 10.0, #{{wrong, id} => 1}}],
                 [{At, Seconds, Errors}
                  || #{at_s := At, duration_s := Seconds, errors := Errors}
                         <- erlmcp_load_course:windows(?SINCE + 30_000_000, Course)]),
    ?assertEqual(#{timeout => 2}, erlmcp_load_course:reasons(failed, Course)),
    ?assertEqual(#{1056 => 1}, erlmcp_load_course:reasons(refused, Course)),
    ?assertEqual(#{id => 1}, erlmcp_load_course:reasons(wrong, Course)),
    ?assertEqual(2, erlmcp_load_course:unsent(Course)).

the_last_window_has_the_rest(_) ->
    Course = course([{unsent, 9_000_000, 9_000_001}, {unsent, 10_400_000, 10_400_001}]),
    Windows = fun(Until) ->
        [{At, Seconds, maps:get(unsent, Errors, 0)}
         || #{at_s := At, duration_s := Seconds, errors := Errors}
                <- erlmcp_load_course:windows(?SINCE + Until, Course)]
    end,
    ?assertEqual([{10.0, 10.0, 1}, {10.5, 0.5, 1}], Windows(10_500_000)),
    %% One that was due while the load was stopped.
    ?assertEqual([{10.0, 10.0, 2}], Windows(10_000_000)),
    ?assertEqual([{9.5, 9.5, 2}], Windows(9_500_000)),
    ?assertEqual([], Windows(0)).

%% Before the course began. It is in the backlog until it ends.
what_was_due_before_is_in_no_window(_) ->
    Course = course([{unsent, -1, -1}, {{failed, timeout}, -9_999_999, 250_000},
                     {answered, -1, 99_999}, {answered, -300_000, -200_000}, {unsent, 0, 1}]),
    [#{errors := Errors}] = erlmcp_load_course:windows(?SINCE + 10_000_000, Course),
    ?assertEqual(#{unsent => 1}, Errors),
    ?assertEqual(2, erlmcp_load_course:unsent(Course)),
    ?assertEqual(#{timeout => 1}, erlmcp_load_course:reasons(failed, Course)),
    ?assertEqual([1, 1, 0], [Requests || {_, Requests} <- erlmcp_load_course:backlog(
                                                              ?SINCE + 300_000, Course)]).

%% Three are due in the first tenth of a second. The server stands still until 350 ms.
the_backlog_is_what_was_due_and_has_not_ended(_) ->
    Course = course([{answered, 0, 99_999}, {answered, 10_000, 350_000},
                     {answered, 99_999, 350_000}, {unsent, 100_000, 400_000},
                     {{failed, closed}, 300_000, 300_010}]),
    Backlog = fun(Until) -> [{At - ?SINCE, Requests}
                             || {At, Requests} <- erlmcp_load_course:backlog(?SINCE + Until,
                                                                             Course)] end,
    ?assertEqual([{100_000, 2}, {200_000, 3}, {300_000, 3}, {400_000, 1}, {500_000, 0}],
                 Backlog(500_000)),
    ?assertEqual([{100_000, 2}, {200_000, 3}, {250_000, 3}], Backlog(250_000)),
    ?assertEqual([{50_000, 0}], Backlog(50_000)),
    [#{backlog_requests := 3, at_s := 0.25}] =
        erlmcp_load_course:windows(?SINCE + 250_000, Course).

troubles_have_their_last_time(_) ->
    Course = course([{answered, 100_000, 300_000}, {answered, 1_000_000, 1_500_000},
                     {answered, 2_000_000, 2_300_001}, {{refused, 1056}, 3_000_000, 3_000_010},
                     {answered, 4_000_000, 4_300_000}]),
    ?assertEqual(200_000, erlmcp_load_course:slowest_us(?SINCE + 1_000_000, Course)),
    ?assertEqual(500_000, erlmcp_load_course:slowest_us(?SINCE + 1_000_001, Course)),
    Latest = fun(Until) -> erlmcp_load_course:latest_us(?SINCE + Until, Course) - ?SINCE end,
    ?assertEqual([1_000_000, 1_500_000, 1_900_000, 4_000_000, 4_300_000],
                 [Latest(Until) || Until <- [1_000_000, 1_000_001, 1_900_000, 4_000_000,
                                             4_000_001]]),
    Trouble = fun(From, Slow) ->
        erlmcp_load_course:latest_trouble_us(?SINCE + From, Slow, Course) - ?SINCE
    end,
    %% An answer is slow beyond the bound only; the refusal is an error however fast it was.
    ?assertEqual(4_300_000, Trouble(0, 299_999)),
    ?assertEqual(3_000_010, Trouble(0, 300_000)),
    ?assertEqual(3_500_000, Trouble(3_500_000, 300_000)).

courses_add_up(_) ->
    All = [{unsent, N * 1_000_000, N * 1_000_000 + 500_000} || N <- lists:seq(0, 29)]
        ++ [{answered, N * 700_000, N * 710_000} || N <- lists:seq(1, 40)],
    {One, Other} = lists:partition(fun({_, Due, _}) -> Due div 1_000_000 rem 2 =:= 0 end, All),
    Empty = erlmcp_load_course:new(0),
    [?assertEqual(course(All), erlmcp_load_course:merge(Courses))
     || Courses <- [[course(One), Empty, course(Other)], [Empty, course(One), course(Other)]]],
    ?assertEqual(Empty, erlmcp_load_course:merge([Empty, Empty])).

course(Requests) ->
    lists:foldl(fun({Outcome, Due, End}, Course) ->
                    erlmcp_load_course:ended(Outcome, ?SINCE + Due, ?SINCE + End, Course)
                end, erlmcp_load_course:new(?SINCE), Requests).
