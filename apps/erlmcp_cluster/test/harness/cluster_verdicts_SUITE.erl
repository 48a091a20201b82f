-module(cluster_verdicts_SUITE).
-moduledoc """
The verdicts of `make test-cluster` are right about what clients have seen, at each bound and just
past it.
""".

-export([suite/0, all/0]).
-export([an_error_of_a_later_request_counts/1, a_slow_answer_is_no_full_service/1,
         errors_are_a_part_of_a_minute/1, a_call_is_made_once/1, a_history_is_impossible/1,
         what_was_never_sent_had_no_effect/1, the_worst_verdict_stands_for_all/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [an_error_of_a_later_request_counts, a_slow_answer_is_no_full_service,
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
                                           Verdict(~"a", 2)]).

trouble(Began, Seen, Why) ->
    #{began => Began, seen => Seen, why => Why}.

operation(Model, Key, Do, Result, Began) ->
    #{model => Model, key => Key, do => Do, result => Result, began => Began, ended => Began + 1}.
