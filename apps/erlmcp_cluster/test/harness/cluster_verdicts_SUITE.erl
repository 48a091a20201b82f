-module(cluster_verdicts_SUITE).
-moduledoc """
The verdicts of `make test-cluster` are right about what clients have seen, at each bound and just
past it.
""".

-export([suite/0, all/0]).
-export([an_error_of_a_later_request_counts/1, a_slow_answer_is_no_full_service/1,
         a_long_pause_excuses_errors/1, a_pause_is_no_time_of_an_answer/1,
         errors_are_a_part_of_a_minute/1, a_call_is_made_once/1, a_history_is_impossible/1,
         what_was_never_sent_had_no_effect/1, the_worst_verdict_stands_for_all/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [an_error_of_a_later_request_counts, a_slow_answer_is_no_full_service,
     a_long_pause_excuses_errors, a_pause_is_no_time_of_an_answer,
     errors_are_a_part_of_a_minute, a_call_is_made_once, a_history_is_impossible,
     what_was_never_sent_had_no_effect, the_worst_verdict_stands_for_all].

%% A node dies from 100 to 110.
an_error_of_a_later_request_counts(_) ->
    Errors = fun(Began, Seen, Why) ->
        Of = erlmcp_test_cluster_verdict:errors(100, 1_000, [trouble(Began, Seen, Why)]),
        {length(Of), length(erlmcp_test_cluster_verdict:after_the_fault(110, Of))}
    end,
    {0, 0} = Errors(50, 99, closed),
    {1, 0} = Errors(50, 100, closed),
    {1, 0} = Errors(110, 120, closed),
    {1, 1} = Errors(111, 120, closed),
    {1, 1} = Errors(1_000, 1_001, closed),
    {0, 0} = Errors(1_001, 1_002, closed),
    {0, 0} = Errors(111, 900_000, slow).

a_slow_answer_is_no_full_service(_) ->
    Operation = fun(Took, More) -> maps:merge(#{began => 1_000, seen => 1_000 + Took}, More) end,
    [] = erlmcp_test_cluster_verdict:trouble([Operation(500_000, #{result => ok})]),
    [#{why := slow}] = Slow =
        erlmcp_test_cluster_verdict:trouble([Operation(500_001, #{result => ok})]),
    [#{why := closed}] = Failed =
        erlmcp_test_cluster_verdict:trouble([Operation(1, #{result => unknown, why => closed})]),
    Service = fun(At, Trouble) ->
        erlmcp_test_cluster_verdict:full_service_ms(At, 2_000, Trouble)
    end,
    0 = Service(1_000, []),
    500.001 = Service(1_000, Slow ++ Failed),
    0.001 = Service(1_000, Failed),
    %% It was over before the fault, or began too late to be of it.
    0 = Service(501_002, Slow),
    0 = erlmcp_test_cluster_verdict:full_service_ms(0, 999, Slow).

%% The machine stands still from 1,000 to 1,250 ms.
a_long_pause_excuses_errors(_) ->
    Pause = {1_000_000, 1_250_000},
    Counts = fun(BeganMs, SeenMs, Pauses) ->
        Error = trouble(1_000 * BeganMs, 1_000 * SeenMs, 1080),
        {Excused, Counting} = erlmcp_test_cluster_verdict:excused([Error], Pauses),
        [Error] = Excused ++ Counting,
        Errors = erlmcp_test_cluster_verdict:errors(0, 10_000_000, Counting),
        length(Errors)
    end,
    %% No pause explains it.
    1 = Counts(1_000, 1_100, []),
    1 = Counts(1_000, 1_100, [{5_000_000, 6_000_000}]),
    %% It was under way.
    1 = Counts(900, 999, [Pause]),
    0 = Counts(900, 1_000, [Pause]),
    0 = Counts(1_100, 1_200, [{0, 1}, Pause, {5_000_000, 5_010_000}]),
    %% It began until a second after the pause.
    0 = Counts(2_250, 2_300, [Pause]),
    1 = Counts(2_251, 2_300, [Pause]),
    %% It waited longer than any request waits for the cluster.
    0 = Counts(900, 3_650, [Pause]),
    1 = Counts(900, 3_651, [Pause]),
    0 = Counts(2_250, 4_750, [Pause]),
    1 = Counts(2_250, 4_751, [Pause]),
    %% A shorter pause costs no lease.
    1 = Counts(1_100, 1_200, [{1_000_000, 1_249_999}]),
    %% Several short ones are not a long one.
    1 = Counts(900, 1_500, [{1_000_000, 1_200_000}, {1_200_001, 1_400_000}]).

a_pause_is_no_time_of_an_answer(_) ->
    Slow = fun(BeganMs, SeenMs, Pauses) ->
        Answer = trouble(1_000 * BeganMs, 1_000 * SeenMs, slow),
        {_, Counting} = erlmcp_test_cluster_verdict:excused([Answer], Pauses),
        erlmcp_test_cluster_verdict:full_service_ms(0, 10_000_000, Counting)
    end,
    Short = [{1_000_000, 1_100_000}, {1_200_000, 1_300_000}],
    0 = Slow(900, 1_600, Short),
    1_601.0 = Slow(900, 1_601, Short),
    %% Of a pause it counts what is in the time of the answer.
    0 = Slow(1_050, 1_600, [hd(Short)]),
    1_601.0 = Slow(1_050, 1_601, [hd(Short)]),
    %% After a long one a request may wait for the next lease.
    0 = Slow(2_250, 4_750, [{1_000_000, 1_250_000}]),
    4_751.0 = Slow(2_250, 4_751, [{1_000_000, 1_250_000}]),
    %% Each is either excused, or counts.
    {[_, _], [_]} = erlmcp_test_cluster_verdict:excused(
        [trouble(900_000, 1_600_000, slow), trouble(0, 900_000, slow),
         trouble(950_000, 1_550_000, slow)], Short),
    100.0 = erlmcp_test_cluster_verdict:longest_pause_ms(1_100_000, 1_150_000, Short),
    0 = erlmcp_test_cluster_verdict:longest_pause_ms(1_100_001, 1_150_000, Short),
    [true, false, false] = [erlmcp_test_cluster_verdict:is_disturbed(1_000_000, 2_000_000, Pauses)
                            || Pauses <- [[{900_000, 1_150_000}], [{900_000, 1_149_999}],
                                          [{2_000_001, 3_000_000}]]].

errors_are_a_part_of_a_minute(_) ->
    Errors = [trouble(0, 1, closed), trouble(0, 1, closed)],
    %% 100 requests in 6 seconds are 1,000 a minute.
    0.2 = erlmcp_test_cluster_verdict:of_a_minute(Errors, 100, 6_000_000),
    #{passed := true} = erlmcp_test_cluster_verdict:at_most("fault", ~"figure", 0.2, 0.2),
    #{passed := false} = erlmcp_test_cluster_verdict:at_most("fault", ~"figure", 0.201, 0.2),
    #{passed := true} = erlmcp_test_cluster_verdict:at_least("fault", ~"figure", 1, 1),
    #{passed := false} = erlmcp_test_cluster_verdict:at_least("fault", ~"figure", 0, 1).

a_call_is_made_once(_) ->
    Asked = [#{line => ~"1", result => ok}, #{line => ~"2", result => unknown},
             #{line => ~"3", result => unknown}, #{do => open, result => ok}],
    [] = erlmcp_test_cluster_verdict:not_once([~"1", ~"2"], Asked),
    [~"2"] = erlmcp_test_cluster_verdict:not_once([~"2", ~"1", ~"2"], Asked),
    [~"1"] = erlmcp_test_cluster_verdict:not_once([~"2"], Asked).

a_history_is_impossible(_) ->
    Open = [operation(session, ~"a", open, ok, 0), operation(session, ~"b", open, ok, 1)],
    Created = [operation(polled_task, ~"a", create, ok, 2)],
    Lost = [operation(session, ~"b", call, not_found, 10)],
    Ended = [operation(polled_task, ~"a", get, How, At) || {How, At} <- [{completed, 20},
                                                                       {failed, 30}]],
    [] = erlmcp_test_cluster_verdict:impossible(Open ++ Created),
    [{session, ~"b", [_, _]}] = erlmcp_test_cluster_verdict:impossible(Lost ++ Open ++ Created),
    [{polled_task, ~"a", History}] =
        erlmcp_test_cluster_verdict:impossible(Open ++ Ended ++ Created),
    %% It was possible until the last one.
    #{result := failed} = lists:last(erlmcp_test_history:until_impossible(polled_task, History)),
    [#{result := completed}] = erlmcp_test_history:until_impossible(polled_task, tl(History)).

what_was_never_sent_had_no_effect(_) ->
    Unknown = (operation(session, ~"a", delete, unknown, 10))#{ended := infinity},
    History = [operation(session, ~"a", open, ok, 0),
               operation(session, ~"a", call, not_found, 20)],
    [] = erlmcp_test_cluster_verdict:impossible([Unknown#{why => closed} | History]),
    [_] = erlmcp_test_cluster_verdict:impossible([Unknown#{why => {not_connected, timeout}}
                                                  | History]),
    %% Nobody knows the session that it was to open.
    [] = erlmcp_test_cluster_verdict:histories([operation(session, none, open, unknown, 0)]).

the_worst_verdict_stands_for_all(_) ->
    Verdict = fun(Figure, Measured) ->
        erlmcp_test_cluster_verdict:at_most("kill", Figure, Measured, 5)
    end,
    [#{figure := ~"a", measured := 7, passed := false, times := 3},
     #{figure := ~"b", measured := 0, passed := true, times := 1}] =
        erlmcp_test_cluster_verdict:worst([Verdict(~"a", 1), Verdict(~"b", 0), Verdict(~"a", 7),
                                           Verdict(~"a", 2)]),
    %% A smaller one fails if its bound is smaller.
    Bounded = fun(Measured, Most) ->
        erlmcp_test_cluster_verdict:at_most("kill", ~"a", Measured, Most)
    end,
    [#{measured := 6, at_most := 5, passed := false, times := 2}] =
        erlmcp_test_cluster_verdict:worst([Bounded(7, 9), Bounded(6, 5)]).

trouble(Began, Seen, Why) ->
    #{began => Began, seen => Seen, why => Why}.

operation(Model, Key, Do, Result, Began) ->
    #{model => Model, key => Key, do => Do, result => Result, began => Began, ended => Began + 1}.
