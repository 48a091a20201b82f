-module(chaos_journal_SUITE).
-moduledoc "Tests for the journal of a fault, and for the counts of its requests.".

-include_lib("eunit/include/eunit.hrl").

-export([all/0]).
-export([outcomes_are_counted_by_source/1, refusals_have_the_code_of_the_table/1,
         kinds_are_bounded/1, lost_requests_are_those_without_an_answer/1,
         warm_up_is_not_the_usual_latency/1, percentiles_are_of_the_steady_time/1,
         steady_time_begins_anew/1,
         settled_once_is_settled/1, kept_latencies_are_bounded/1,
         events_are_counted_and_detect/1,
         events_stand_for_the_codes_of_their_refusals/1, earliest_notice_detects/1,
         notices_before_are_kept_apart/1, answers_are_awaited/1, detection_is_awaited/1,
         recovery_is_awaited/1, newest_round_is_awaited/1, waits_end_in_time/1, facts_are_kept/1,
         marks_have_their_time/1, loads_report_through_a_tap/1,
         report_waits_for_a_slow_tap/1, late_probe_counts/1]).

all() ->
    [outcomes_are_counted_by_source, refusals_have_the_code_of_the_table, kinds_are_bounded,
     lost_requests_are_those_without_an_answer, warm_up_is_not_the_usual_latency,
     percentiles_are_of_the_steady_time, steady_time_begins_anew, settled_once_is_settled,
     kept_latencies_are_bounded, events_are_counted_and_detect,
     events_stand_for_the_codes_of_their_refusals, earliest_notice_detects,
     notices_before_are_kept_apart, answers_are_awaited, detection_is_awaited, recovery_is_awaited,
     newest_round_is_awaited, waits_end_in_time, facts_are_kept, marks_have_their_time,
     loads_report_through_a_tap, report_waits_for_a_slow_tap, late_probe_counts].

%% The counts.

outcomes_are_counted_by_source(_) ->
    Accounting = counted([{load, answered}, {load, answered}, {load, {refused, 1056, #{}}},
                          {load, {refused, 1056, #{}}}, {load, {refused, 1060, #{}}},
                          {load, {failed, closed}}, {load, {wrong, id}}, {load, {wrong, id}},
                          {fault, answered}]),
    Load = #{answered => 2, refused => #{1056 => 2, 1060 => 1}, failed => #{closed => 1},
             wrong => #{id => 2}},
    Fault = #{answered => 1, refused => #{}, failed => #{}, wrong => #{}},
    ?assertEqual(Load, erlmcp_chaos_accounting:counts(load, Accounting)),
    ?assertEqual(Fault, erlmcp_chaos_accounting:counts(fault, Accounting)),
    ?assertEqual(Fault#{answered := 0}, erlmcp_chaos_accounting:counts(probe, Accounting)),
    ?assertEqual(#{load => Load, fault => Fault}, erlmcp_chaos_accounting:to_map(Accounting)),
    ?assertEqual(8, erlmcp_chaos_accounting:sent(Load)).

%% MCP has its own codes, with those of the table in their data.
refusals_have_the_code_of_the_table(_) ->
    ?assertEqual(1066, erlmcp_chaos_accounting:code({refused, -32700, #{~"refusal" => 1066}})),
    ?assertEqual(-32700, erlmcp_chaos_accounting:code({refused, -32700, #{~"refusal" => ~"x"}})),
    ?assertEqual(1060, erlmcp_chaos_accounting:code({refused, 1060, #{}})),
    ?assertEqual(overload, erlmcp_chaos_accounting:code({refused, overload, #{}})),
    #{refused := Refused} = erlmcp_chaos_accounting:counts(
        load, counted([{load, {refused, -32700, #{~"refusal" => 1066}}}])),
    ?assertEqual(#{1066 => 1}, Refused).

%% A hundred are told apart, and the rest are counted together.
kinds_are_bounded(_) ->
    Outcomes = [{load, {failed, {reason, N}}} || N <- lists:seq(1, 102)]
        ++ [{load, {failed, {reason, 1}}}],
    #{failed := Failed} = Counts =
        erlmcp_chaos_accounting:counts(load, counted(Outcomes)),
    ?assertMatch(#{{reason, 1} := 2, {reason, 100} := 1, other := 2}, Failed),
    ?assertEqual(101, map_size(Failed)),
    ?assertEqual(103, erlmcp_chaos_accounting:sent(Counts)).

lost_requests_are_those_without_an_answer(_) ->
    Counts = erlmcp_chaos_accounting:counts(
        load, counted([{load, answered}, {load, {failed, timeout}}, {load, {failed, timeout}},
                       {load, {failed, behind_timeout}}, {load, {failed, closed}},
                       {load, {wrong, timeout}}, {load, {refused, timeout, #{}}}])),
    ?assertEqual(3, erlmcp_chaos_accounting:lost(Counts)),
    ?assertEqual(7, erlmcp_chaos_accounting:sent(Counts)).

counted(Outcomes) ->
    lists:foldl(fun({Source, Outcome}, Accounting) ->
                    erlmcp_chaos_accounting:add(Source, Outcome, Accounting)
                end, erlmcp_chaos_accounting:new(), Outcomes).

%% The latency before the fault.

warm_up_is_not_the_usual_latency(_) ->
    Journal = journal(none),
    ok = answered(Journal, load, 0, 900),
    ok = erlmcp_chaos_journal:event(Journal, #{event => warm}, 1),
    ok = erlmcp_chaos_journal:steady(Journal),
    [ok = answered(Journal, Source, 0, Latency) || {Source, Latency} <- [{load, 20}, {fault, 50},
                                                                        {probe, 60}]],
    #{earlier := Earlier, before := Before} = erlmcp_chaos_journal:report(Journal),
    ?assertEqual(#{count => 1, p50 => 20, p99 => 20, max => 20, quick => 10_000}, Earlier),
    ?assertEqual([], Before),
    ok = erlmcp_chaos_journal:mark(Journal, inject, 100),
    ok = answered(Journal, load, 100, 800),
    ?assertMatch(#{earlier := Earlier}, erlmcp_chaos_journal:report(Journal)).

percentiles_are_of_the_steady_time(_) ->
    Journal = journal(none),
    #{earlier := None} = erlmcp_chaos_journal:report(Journal),
    ?assertEqual(#{count => 0, quick => 10_000}, None),
    ok = erlmcp_chaos_journal:steady(Journal),
    %% A time of 0 is below the clock's unit.
    ok = answered(Journal, load, 0, 0),
    ?assertMatch(#{earlier := #{count := 1, p50 := 1}}, erlmcp_chaos_journal:report(Journal)),
    ok = erlmcp_chaos_journal:stop(Journal),
    percentiles(journal(none)).

percentiles(Journal) ->
    ok = erlmcp_chaos_journal:steady(Journal),
    [ok = answered(Journal, load, 0, 1_000 * Latency) || Latency <- lists:seq(150, 1, -1)],
    Earlier = #{count => 150, p50 => 75_000, p99 => 149_000, max => 150_000, quick => 178_800},
    ?assertMatch(#{earlier := Earlier}, erlmcp_chaos_journal:report(Journal)),
    ok = erlmcp_chaos_journal:mark(Journal, inject, 0),
    ?assertMatch(#{earlier := Earlier}, erlmcp_chaos_journal:report(Journal)).

%% What came in a steady time that was disturbed is neither a measure nor a broken promise.
steady_time_begins_anew(_) ->
    Journal = journal(none),
    ok = erlmcp_chaos_journal:steady(Journal),
    [ok = answered(Journal, load, 0, 90_000) || _ <- lists:seq(1, 100)],
    ok = erlmcp_chaos_journal:outcome(Journal, load, {failed, disturbed}, 0, 1),
    ok = erlmcp_chaos_journal:steady(Journal),
    ok = answered(Journal, load, 0, 20),
    ok = erlmcp_chaos_journal:outcome(Journal, load, {failed, later}, 0, 1),
    ok = erlmcp_chaos_journal:mark(Journal, inject, 100),
    #{earlier := Earlier, before := Before, accounting := Accounting} =
        erlmcp_chaos_journal:report(Journal),
    ?assertEqual(#{count => 1, p50 => 20, p99 => 20, max => 20, quick => 10_000}, Earlier),
    ?assertEqual([{failed, later}], Before),
    %% They are accounted for.
    ?assertMatch(#{answered := 101, failed := #{disturbed := 1, later := 1}},
                 erlmcp_chaos_accounting:counts(load, Accounting)).

%% The first hundred show it, from the moment of the end of the fault on.
settled_once_is_settled(_) ->
    Journal = injected(none, 0),
    ok = erlmcp_chaos_journal:mark(Journal, heal, 10),
    [ok = answered(Journal, load, 9 + N, 1) || N <- lists:seq(0, 250)],
    ?assertMatch(#{rounds := [#{settled := 10}]}, erlmcp_chaos_journal:report(Journal)).

kept_latencies_are_bounded(_) ->
    Journal = journal(none),
    ok = erlmcp_chaos_journal:steady(Journal),
    [ok = answered(Journal, load, 0, 1) || _ <- lists:seq(1, 20_001)],
    #{earlier := #{count := Count}, accounting := Accounting} =
        erlmcp_chaos_journal:report(Journal),
    ?assertEqual(20_000, Count),
    ?assertMatch(#{answered := 20_001}, erlmcp_chaos_accounting:counts(load, Accounting)).

%% Detection.

events_are_counted_and_detect(_) ->
    Journal = injected(none, 1_000),
    ok = erlmcp_chaos_journal:event(Journal, #{event => first}, 999),
    ok = erlmcp_chaos_journal:event(Journal, #{event => second}, 1_000),
    ok = erlmcp_chaos_journal:event(Journal, #{event => second}, 1_001),
    #{events := Events, rounds := [Round]} = erlmcp_chaos_journal:report(Journal),
    ?assertEqual(#{first => 1, second => 2}, Events),
    ?assertEqual(#{injected => 1_000, detected => {1_000, {event, second}}}, Round).

events_stand_for_the_codes_of_their_refusals(_) ->
    [begin
         Journal = injected(Code, 0),
         ok = erlmcp_chaos_journal:event(Journal, #{event => another}, 1),
         ok = erlmcp_chaos_journal:event(Journal, #{event => Event}, 2),
         ?assertMatch(#{rounds := [#{detected := {2, {event, Event}}}]},
                      erlmcp_chaos_journal:report(Journal))
     end || {Event, Code} <- [{slow_consumer, 1055}, {memory_full, 1089}, {processors_busy, 1078},
                              {breaker_opened, 1086}, {draining, 1077}, {incident, 1079}]].

%% They may be recorded in another order.
earliest_notice_detects(_) ->
    Journal = injected(1056, 100),
    Refuse = fun(Code, At) ->
        erlmcp_chaos_journal:outcome(Journal, load, {refused, Code, #{}}, 0, At)
    end,
    ok = Refuse(1056, 99),
    ok = Refuse(1060, 101),
    ok = Refuse(1056, 300),
    ok = Refuse(1056, 200),
    ok = Refuse(1056, 250),
    ?assertMatch(#{rounds := [#{detected := {200, {refused, 1056}}}]},
                 erlmcp_chaos_journal:report(Journal)),
    %% Without a code, a failure counts too.
    Any = injected(none, 100),
    ok = erlmcp_chaos_journal:outcome(Any, load, {failed, closed}, 0, 150),
    ?assertMatch(#{rounds := [#{detected := {150, {failed, closed}}}]},
                 erlmcp_chaos_journal:report(Any)).

%% Each once, and a hundred at most.
notices_before_are_kept_apart(_) ->
    Journal = journal(none),
    ok = erlmcp_chaos_journal:outcome(Journal, load, {failed, warming}, 0, 1),
    ok = erlmcp_chaos_journal:steady(Journal),
    [ok = erlmcp_chaos_journal:outcome(Journal, load, {failed, N}, 0, 1)
     || N <- lists:seq(1, 101) ++ [1]],
    ok = erlmcp_chaos_journal:mark(Journal, inject, 10),
    ok = erlmcp_chaos_journal:outcome(Journal, load, {failed, later}, 0, 11),
    #{before := Before} = erlmcp_chaos_journal:report(Journal),
    ?assertEqual([{failed, N} || N <- lists:seq(1, 100)], lists:sort(Before)).

%% Waiting.

answers_are_awaited(_) ->
    Journal = journal(none),
    ok = answered(Journal, load, 0, 1),
    Waiting = waiting(Journal, {answered, 2}),
    ok = answered(Journal, load, 0, 1),
    ok = answered(Journal, fault, 0, 1),
    ok = erlmcp_chaos_journal:outcome(Journal, load, {failed, closed}, 0, 1),
    still_waiting(Journal, Waiting),
    ok = answered(Journal, load, 0, 1),
    ok = waited(Waiting).

detection_is_awaited(_) ->
    Journal = injected(1056, 0),
    Waiting = waiting(Journal, detected),
    ok = erlmcp_chaos_journal:outcome(Journal, load, {refused, 1060, #{}}, 0, 1),
    still_waiting(Journal, Waiting),
    ok = erlmcp_chaos_journal:outcome(Journal, load, {refused, 1056, #{}}, 0, 1),
    ok = waited(Waiting),
    ok = erlmcp_chaos_journal:await(Journal, detected, 0).

recovery_is_awaited(_) ->
    Journal = injected(none, 0),
    Waiting = waiting(Journal, recovered),
    ok = erlmcp_chaos_journal:mark(Journal, heal, 10),
    [ok = answered(Journal, load, 10 + N, 1) || N <- lists:seq(1, 99)],
    still_waiting(Journal, Waiting),
    ok = erlmcp_chaos_journal:outcome(Journal, probe, {failed, closed}, 10, 11),
    ok = answered(Journal, load, 200, 1),
    still_waiting(Journal, Waiting),
    ok = answered(Journal, probe, 300, 1),
    ok = waited(Waiting),
    ?assertMatch(#{rounds := [#{healed := 10, settled := 12, good := 301}]},
                 erlmcp_chaos_journal:report(Journal)).

newest_round_is_awaited(_) ->
    Journal = injected(none, 0),
    ok = erlmcp_chaos_journal:event(Journal, #{event => any}, 1),
    ok = erlmcp_chaos_journal:await(Journal, detected, 0),
    ok = erlmcp_chaos_journal:mark(Journal, inject, 10),
    timeout = erlmcp_chaos_journal:await(Journal, detected, 0),
    ?assertMatch(#{rounds := [#{injected := 0, detected := _}, #{injected := 10}]},
                 erlmcp_chaos_journal:report(Journal)),
    %% Replies after one fault do not show the recovery from the next.
    ok = erlmcp_chaos_journal:mark(Journal, heal, 20),
    [ok = answered(Journal, load, 20, 1) || _ <- lists:seq(1, 60)],
    ok = erlmcp_chaos_journal:mark(Journal, inject, 30),
    ok = erlmcp_chaos_journal:mark(Journal, heal, 40),
    [ok = answered(Journal, load, 40, 1) || _ <- lists:seq(1, 60)],
    timeout = erlmcp_chaos_journal:await(Journal, recovered, 0).

waits_end_in_time(_) ->
    Journal = injected(none, 0),
    %% A message of another process is no reason to end.
    Journal ! any,
    {Us, timeout} = timer:tc(fun() -> erlmcp_chaos_journal:await(Journal, detected, 50) end),
    ?assert(Us >= 50_000),
    ?assertMatch(#{rounds := [_]}, erlmcp_chaos_journal:report(Journal)).

facts_are_kept(_) ->
    Journal = journal(none),
    ok = erlmcp_chaos_journal:fact(Journal, one_count, 1),
    ok = erlmcp_chaos_journal:fact(Journal, other_count, 1),
    ok = erlmcp_chaos_journal:fact(Journal, other_count, 2),
    ?assertMatch(#{facts := #{one_count := 1, other_count := 2}},
                 erlmcp_chaos_journal:report(Journal)).

marks_have_their_time(_) ->
    Journal = journal(none),
    Before = erlang:monotonic_time(microsecond),
    At = erlmcp_chaos_journal:mark(Journal, inject),
    ?assert(At >= Before andalso At =< erlang:monotonic_time(microsecond)),
    Healed = erlmcp_chaos_journal:mark(Journal, heal),
    ?assertMatch(#{rounds := [#{injected := At, healed := Healed}]},
                 erlmcp_chaos_journal:report(Journal)).

%% As `erlmcp_load` reports to its observer. The tap ends with the journal.
loads_report_through_a_tap(_) ->
    Journal = injected(none, 5),
    Tap = erlmcp_chaos_journal:tap(Journal, probe),
    Waiting = waiting(Journal, detected),
    Tap ! {erlmcp_load, answered, 1, 2},
    Tap ! {erlmcp_load, {failed, closed}, 3, 9},
    ok = waited(Waiting),
    #{accounting := Accounting, rounds := [#{detected := {9, {failed, closed}}}]} =
        erlmcp_chaos_journal:report(Journal),
    ?assertMatch(#{answered := 1, failed := #{closed := 1}},
                 erlmcp_chaos_accounting:counts(probe, Accounting)),
    Monitor = monitor(process, Tap),
    ok = erlmcp_chaos_journal:stop(Journal),
    receive {'DOWN', Monitor, process, Tap, normal} -> ok end.

%% The tap had no processor since the last outcome came.
report_waits_for_a_slow_tap(_) ->
    Journal = journal(none),
    Tap = erlmcp_chaos_journal:tap(Journal, load),
    true = erlang:suspend_process(Tap),
    Tap ! {erlmcp_load, answered, 1, 2},
    Test = self(),
    Reporter = spawn_link(fun() -> Test ! {self(), erlmcp_chaos_journal:report(Journal)} end),
    receive {Reporter, _} -> error(reported_without_the_tap) after 50 -> ok end,
    true = erlang:resume_process(Tap),
    receive
        {Reporter, #{accounting := Accounting}} ->
            #{answered := 1} = erlmcp_chaos_accounting:counts(load, Accounting)
    end.

%% A first probe after the load has settled takes the recovery back.
late_probe_counts(_) ->
    Journal = injected(none, 0),
    ok = erlmcp_chaos_journal:mark(Journal, heal, 10),
    [ok = answered(Journal, load, 10 + N, 1) || N <- lists:seq(1, 100)],
    ok = erlmcp_chaos_journal:await(Journal, recovered, 0),
    ok = erlmcp_chaos_journal:outcome(Journal, probe, {failed, closed}, 10, 300),
    timeout = erlmcp_chaos_journal:await(Journal, recovered, 0).

journal(Code) ->
    {ok, Journal} = erlmcp_chaos_journal:start_link(Code),
    Journal.

injected(Code, At) ->
    Journal = journal(Code),
    ok = erlmcp_chaos_journal:steady(Journal),
    ok = erlmcp_chaos_journal:mark(Journal, inject, At),
    Journal.

answered(Journal, Source, DueUs, Latency) ->
    erlmcp_chaos_journal:outcome(Journal, Source, answered, DueUs, DueUs + Latency).

%% Returns when the journal has the question.
waiting(Journal, Awaited) ->
    Test = self(),
    Pid = spawn_link(fun() ->
        Test ! {self(), erlmcp_chaos_journal:await(Journal, Awaited, 60_000)}
    end),
    await_question(Journal, Pid).

await_question(Journal, Pid) ->
    case process_info(Pid, status) of
        {status, waiting} ->
            _ = erlmcp_chaos_journal:report(Journal),
            Pid;
        _ ->
            erlang:yield(),
            await_question(Journal, Pid)
    end.

still_waiting(Journal, Waiting) ->
    _ = erlmcp_chaos_journal:report(Journal),
    receive {Waiting, Early} -> error({early, Early}) after 0 -> ok end.

waited(Waiting) ->
    receive {Waiting, Answer} -> Answer end.
