-module(chaos_verdict_SUITE).
-moduledoc """
Tests for the judge of faults: it finds every broken promise. The first cases use written logs, the
others use servers with unpromised faults.
""".

-export([suite/0, all/0, groups/0]).
-export([good_notes_pass/1, no_fault_is_no_pass/1, another_code_is_found/1,
         late_detection_is_found/1, late_recovery_is_found/1, pause_begins_the_recovery_anew/1,
         own_pauses_excuse_little/1, late_recovery_is_found_beside_pauses/1, worst_round_counts/1,
         few_good_replies_are_no_recovery/1, slow_replies_are_no_recovery/1,
         usual_latency_is_the_measure/1, failure_begins_the_recovery_anew/1,
         fault_that_never_ends_is_found/1, failed_probe_is_found/1, lost_requests_are_found/1,
         requests_without_an_end_are_found/1, disturbed_load_is_found/1,
         what_was_amiss_before_is_found/1, unreachable_is_not_lost/1, unseen_harm_is_found/1,
         what_fell_over_is_found/1, figures_are_of_the_worst_round/1]).
-export([server_that_meets_its_fault_passes/1, paused_steady_time_is_repeated/1,
         load_is_opened_again/1, load_that_cannot_be_opened_is_found/1,
         answers_over_the_rate_are_found/1, fault_without_harm_is_found/1,
         load_that_is_cut_is_found/1,
         server_that_fell_over_is_found/1, crash_of_a_scenario_is_found/1,
         what_cannot_be_injected_is_not_run/1, teardown_comes_without_the_caller/1]).
-export([what_cannot_be_set_up_is_not_run/1, what_is_missing_is_said/1, unknown_scenario/1]).

-define(TIMEOUT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [good_notes_pass, no_fault_is_no_pass, another_code_is_found, late_detection_is_found,
     late_recovery_is_found, pause_begins_the_recovery_anew, own_pauses_excuse_little,
     late_recovery_is_found_beside_pauses,
     worst_round_counts, few_good_replies_are_no_recovery, slow_replies_are_no_recovery,
     usual_latency_is_the_measure, failure_begins_the_recovery_anew, fault_that_never_ends_is_found,
     failed_probe_is_found, lost_requests_are_found, requests_without_an_end_are_found,
     disturbed_load_is_found, what_was_amiss_before_is_found, unreachable_is_not_lost,
     unseen_harm_is_found, what_fell_over_is_found, figures_are_of_the_worst_round,
     {group, servers}, answers_over_the_rate_are_found, paused_steady_time_is_repeated,
     what_cannot_be_set_up_is_not_run, what_is_missing_is_said, unknown_scenario].

groups() ->
    [{servers, [parallel], [server_that_meets_its_fault_passes, load_is_opened_again,
                            load_that_cannot_be_opened_is_found, fault_without_harm_is_found,
                            load_that_is_cut_is_found, server_that_fell_over_is_found,
                            crash_of_a_scenario_is_found, what_cannot_be_injected_is_not_run,
                            teardown_comes_without_the_caller]}].

%% Notes: a request in ten milliseconds, answered in one; what happened, in milliseconds from the
%% injection on.

good_notes_pass(_) ->
    [] = violations([{99, refused, 1066}, {100, heal} | settled(305)]).

%% A hundred good replies, from `At` on.
settled(At) ->
    replies(At, 100, 1).

replies(At, Count, Latency) ->
    [{At + N, load, Latency, answered} || N <- lists:seq(0, Count - 1)].

no_fault_is_no_pass(_) ->
    [{never, injected}] = violations(none, bounds()).

another_code_is_found(_) ->
    [{code, 1066, never_seen}] =
        violations([{5, refused, 1060}, {100, heal} | settled(110)]),
    [{never, detected}] = violations([{100, heal} | settled(110)], (bounds())#{code := none}),
    %% Without a code, any notice of the fault is enough.
    [] = violations([{5, refused, 1060}, {100, heal} | settled(110)], (bounds())#{code := none}).

late_detection_is_found(_) ->
    [] = violations([{100, refused, 1066}, {102, heal} | settled(110)]),
    [{late, detection, 101_000, 100}] =
        violations([{101, refused, 1066}, {102, heal} | settled(110)]),
    %% The machine may have stopped both, the server and its judge, for seven milliseconds in all.
    Paused = #{paused => [{-5, 2}, {50, 55}]},
    [] = violations([{107, refused, 1066}, {109, heal} | settled(117)], bounds(), Paused),
    [{late, detection, 108_000, 100}] =
        violations([{108, refused, 1066}, {109, heal} | settled(117)], bounds(), Paused),
    %% Pauses before the fault and after the bound excuse nothing.
    [{late, detection, 130_000, 100}] =
        violations([{130, refused, 1066}, {131, heal} | settled(140)], bounds(),
                   #{paused => [{-40, -10}, {101, 129}, {130, 200}]}).

%% The load sees it as finely as it asks, and is answered: three requests, and ten milliseconds.
late_recovery_is_found(_) ->
    [] = violations([{1, refused, 1066}, {2, heal} | settled(2 + 200 + 40)]),
    [{late, recovery, 241_000, 200}] =
        violations([{1, refused, 1066}, {2, heal} | settled(2 + 200 + 41)]),
    Paused = #{paused => [{0, 4}, {100, 105}]},
    [] = violations([{1, refused, 1066}, {2, heal} | settled(2 + 200 + 47)], bounds(), Paused),
    [{late, recovery, 248_000, 200}] =
        violations([{1, refused, 1066}, {2, heal} | settled(2 + 200 + 48)], bounds(), Paused).

%% A hundred quick answers show a recovery, and a pause among them makes some of them slow.
pause_begins_the_recovery_anew(_) ->
    Recovered = fun(At, Paused) ->
        violations([{1, refused, 1066}, {2, heal} | settled(At)], bounds(), #{paused => Paused})
    end,
    [] = Recovered(180 + 240, [{150, 180}]),
    [{late, recovery, 419_000, 200}] = Recovered(181 + 240, [{150, 180}]),
    %% The hundred answers take a second, from the last recovery in time on.
    [] = Recovered(1_030 + 240, [{1_000, 1_030}]),
    [{late, recovery, 1_269_000, 200}] = Recovered(1_031 + 240, [{1_000, 1_030}]),
    [{late, recovery, 1_298_000, 200}] = Recovered(1_300, [{1_243, 1_299}]),
    %% Each of two pauses.
    [] = Recovered(430 + 240, [{150, 180}, {400, 430}]),
    [{late, recovery, 669_000, 200}] = Recovered(431 + 240, [{150, 180}, {400, 430}]),
    %% One that is too short to make answers slow gives no more than its own time.
    [] = Recovered(2 + 9 + 240, [{150, 159}]),
    [{late, recovery, 250_000, 200}] = Recovered(2 + 10 + 240, [{150, 159}]).

%% A fault that takes the processors makes pauses itself. Only the longest may be another's.
own_pauses_excuse_little(_) ->
    Own = (bounds())#{pauses => own},
    Late = fun(Events, Bounds) ->
        violations(Events, Bounds, #{paused => [{10, 41}, {50, 70}, {150, 180}]})
    end,
    Noticed = fun(At) -> [{At, refused, 1066}, {151, heal} | settled(160)] end,
    [] = Late(Noticed(150), bounds()),
    [] = Late(Noticed(131), Own),
    [{late, detection, 132_000, 100}] = Late(Noticed(132), Own),
    Recovered = fun(At) -> [{1, refused, 1066}, {2, heal} | settled(At)] end,
    [] = Late(Recovered(180 + 240), bounds()),
    [] = Late(Recovered(2 + 31 + 240), Own),
    [{late, recovery, 272_000, 200}] = Late(Recovered(2 + 32 + 240), Own).

%% However often the machine pauses: in the end for three quarters of the time.
late_recovery_is_found_beside_pauses(_) ->
    Recovered = fun(At, Paused) ->
        violations([{1, refused, 1066}, {2, heal} | settled(At)], bounds(), #{paused => Paused})
    end,
    [{late, recovery, 1_998_000, 200}] = Recovered(2_000, [{150, 180}]),
    [{late, recovery, 1_998_000, 200}] = Recovered(2_000, [{3, 900}]),
    Often = [{Ms + 25, Ms + 100} || Ms <- lists:seq(0, 9_900, 100)],
    %% Of this time the server and its load had a second and 240 ms.
    [] = Recovered(4_900, Often),
    [{late, recovery, 5_098_000, 200}] = Recovered(5_100, Often),
    %% Pauses excuse neither a recovery that never came nor a refusal.
    [{never, recovered}, {not_good, load, {refused, _}}] =
        violations([{1, refused, 1066}, {2, heal}, {3, load, 1, {refused, 1066, #{}}}], bounds(),
                   #{paused => Often}).

worst_round_counts(_) ->
    [{late, detection, 150_000, 100}] =
        violations([{1, refused, 1066}, {2, heal}] ++ settled(3)
                   ++ [{1_000, inject}, {1_150, refused, 1066}, {1_151, heal}] ++ settled(1_152)
                   ++ [{2_000, inject}, {2_001, refused, 1066}, {2_002, heal}] ++ settled(2_003)),
    %% Each round has to end well.
    [{never, recovered}] =
        violations([{1, refused, 1066}, {2, heal}] ++ settled(3)
                   ++ [{1_000, inject}, {1_001, refused, 1066}, {1_002, heal}]
                   ++ [{2_000, inject}, {2_001, refused, 1066}, {2_002, heal}] ++ settled(2_003)).

few_good_replies_are_no_recovery(_) ->
    [{never, recovered}] =
        violations([{1, refused, 1066}, {2, heal} | replies(10, 99, 1)]),
    [] = violations([{1, refused, 1066}, {2, heal} | replies(10, 100, 1)]),
    %% Nor are some before a failure and some after it.
    [{never, recovered}] =
        violations([{1, refused, 1066}, {2, heal}] ++ replies(10, 60, 1)
                   ++ [{70, load, 1, {failed, closed}}] ++ replies(71, 60, 1),
                   (bounds())#{load := failed}),
    %% One that failed earlier, and is reported later, changes nothing.
    [] = violations([{1, refused, 1066}, {20, heal}] ++ replies(20, 60, 1)
                    ++ [{19, load, 1, {failed, closed}}] ++ replies(80, 40, 1),
                    (bounds())#{load := failed}),
    %% Those of the time before do not count.
    [{never, recovered}] =
        violations([{1, refused, 1066}] ++ replies(2, 50, 1) ++ [{60, heal}] ++ replies(61, 50, 1)).

%% Up to ten milliseconds are noise, and one in a hundred may take longer: this is the 99th
%% percentile.
slow_replies_are_no_recovery(_) ->
    Healed = [{1, refused, 1066}, {2, heal}],
    [] = violations(Healed ++ replies(10, 100, 10)),
    [{never, recovered}] = violations(Healed ++ replies(10, 100, 11)),
    [] = violations(Healed ++ replies(10, 1, 11) ++ replies(11, 99, 1)),
    [{never, recovered}] = violations(Healed ++ replies(10, 2, 11) ++ replies(12, 98, 1)),
    %% The second slow one of the two is in the first hundred that are settled.
    [] = violations(Healed ++ replies(10, 2, 11) ++ replies(12, 99, 1)),
    [{late, recovery, 998_000, 200}] =
        violations(Healed ++ replies(10, 90, 11) ++ [{1_000, load, 11, answered}]
                   ++ replies(1_001, 99, 1)).

%% With answers of twenty milliseconds before the fault, those after it may take 24.
usual_latency_is_the_measure(_) ->
    Notes = fun(Latency) ->
        replies(-400, 100, 20)
            ++ [{0, inject}, {1, refused, 1066}, {2, heal} | replies(30, 100, Latency)]
    end,
    [] = violations(Notes(24)),
    [{never, recovered}] = violations(Notes(25)).

failure_begins_the_recovery_anew(_) ->
    Failed = (bounds())#{load := failed},
    Notes = [{1, refused, 1066}, {2, heal} | settled(10)],
    Reset = Notes ++ [{200, load, 1, {failed, closed}}],
    [{never, recovered}] = violations(Reset, Failed),
    [{late, recovery, 299_000, 200}] = violations(Reset ++ settled(301), Failed),
    [{never, recovered}] = violations(Notes ++ [{200, load, 1, {refused, 1066, #{}}}], Failed),
    %% Of the fault itself some may fail later.
    [] = violations(Notes ++ [{200, fault, 1, {failed, closed}}], Failed).

fault_that_never_ends_is_found(_) ->
    [{never, recovered}] = violations([{1, refused, 1066} | settled(50)]),
    %% Replies before the end are no recovery either, even if they are reported later.
    [{never, recovered}] = violations([{1, refused, 1066}, {200, heal} | settled(50)]).

%% A scenario with probes needs their replies too.
failed_probe_is_found(_) ->
    Failed = {3, probe, 1, {failed, closed}},
    [{never, recovered}, {not_good, probe, #{closed := 1}}] =
        violations([{1, refused, 1066}, {2, heal}, Failed | settled(4)]),
    [{late, recovery, 998_000, 200}] =
        violations([{1, refused, 1066}, {2, heal}] ++ settled(4)
                   ++ [{1_000, probe, 400, answered}, {2_000, probe, 1, answered}]),
    [{late, recovery, 998_000, 200}] =
        violations([{1, refused, 1066}, {2, heal}, {3, probe, 1, answered} | settled(1_000)]),
    %% One before the end of the fault says nothing.
    [{never, recovered}] =
        violations([{1, refused, 1066}, {3, heal}, {2, probe, 1, answered} | settled(4)]),
    [{never, recovered}] =
        violations([{1, refused, 1066}, {2, probe, 1, answered}, {3, heal} | settled(4)]).

lost_requests_are_found(_) ->
    Notes = [{1, refused, 1066}, {2, heal}, {3, load, 1, answered}],
    After = settled(7),
    [{lost, fault, 1}] = violations(Notes ++ [{5, fault, 1, {failed, timeout}} | After]),
    [{lost, fault, 1}] = violations(Notes ++ [{5, fault, 1, {failed, behind_timeout}} | After]),
    [{not_good, fault, {wrong, #{id := 1}}}] =
        violations(Notes ++ [{5, fault, 1, {wrong, id}} | After]),
    [{lost, load, 1}, {not_good, load, {wrong, #{id := 1}}}] =
        violations(Notes ++ [{5, load, 1, {failed, timeout}}, {6, load, 1, {wrong, id}} | After],
                   (bounds())#{load := failed}),
    [{lost, probe, 1}, {not_good, probe, #{timeout := 1}}] =
        violations(Notes ++ [{5, probe, 1, {failed, timeout}}, {6, probe, 1, answered} | After]),
    [{not_good, probe, {wrong, #{id := 1}}}] =
        violations(Notes ++ [{5, probe, 1, {wrong, id}}, {6, probe, 1, answered} | After]).

%% The generator counted more than it told of, or fewer.
requests_without_an_end_are_found(_) ->
    Notes = [{1, refused, 1066}, {2, heal} | settled(4)],
    [{unaccounted, 3}] = violations(Notes, bounds(), #{missing => 3}),
    [{unaccounted, -2}] = violations(Notes, bounds(), #{missing => -2}),
    %% Without a load there is nothing to compare.
    [] = violations(Notes, bounds(), #{sent => none}).

disturbed_load_is_found(_) ->
    Notes = [{1, refused, 1066}, {2, heal}],
    Refused = {5, load, 1, {refused, 1066, #{}}},
    Other = {6, load, 1, {refused, 1060, #{}}},
    Failed = {7, load, 1, {failed, closed}},
    Disturbed = Notes ++ [Refused, Other, Failed | settled(8)],
    [{not_good, load, {refused, #{1060 := 1, 1066 := 1}}}, {not_good, load, {failed, _}}] =
        violations(Disturbed),
    [{not_good, load, {refused, #{1060 := 1} = Others}}, {not_good, load, {failed, _}}] =
        violations(Disturbed, (bounds())#{load := refused}),
    1 = map_size(Others),
    [] = violations(Notes ++ [Refused | settled(8)], (bounds())#{load := refused}),
    [] = violations(Disturbed, (bounds())#{load := failed}),
    [] = violations(Disturbed, (bounds())#{load := unreachable}).

what_was_amiss_before_is_found(_) ->
    [{before, [{refused, 1078}]}] =
        violations([{-20, refused, 1078}, {0, inject}, {1, refused, 1066}, {2, heal}
                    | settled(4)]).

unseen_harm_is_found(_) ->
    Notes = [{1, refused, 1066}, {2, heal} | settled(4)],
    Of = fun(Harms, Saw) -> violations(Notes ++ Saw, bounds(), #{harms => Harms}) end,
    [{unseen, disk}] = Of([disk], []),
    [{unseen, disk, writes, 9, {at_least, 10}}] =
        Of([disk], [{saw, disk, writes, 9, {at_least, 10}}]),
    [] = Of([disk], [{saw, disk, writes, 10, {at_least, 10}}]),
    [{unseen, half, added_ms, 46, {at_most, 45}}] =
        Of([half], [{saw, half, added_ms, 46, {at_most, 45}}]),
    [] = Of([half], [{saw, half, added_ms, 45, {at_most, 45}}]),
    %% Each harm, and each figure of it.
    [{unseen, other}] = Of([disk, other], [{saw, disk, writes, 10, {at_least, 10}}]),
    [{unseen, disk, reads, 0, {at_least, 1}}] =
        Of([disk], [{saw, disk, writes, 10, {at_least, 10}}, {saw, disk, reads, 0, {at_least, 1}}]),
    [{unseen, disk, writes, 9, {at_least, 10}}] =
        Of([disk, other], [{saw, disk, writes, 9, {at_least, 10}},
                           {saw, disk, reads, 1, {at_least, 1}},
                           {saw, other, writes, 10, {at_least, 10}}]),
    %% The worst of all rounds.
    [{unseen, disk, writes, 9, {at_least, 10}}] =
        Of([disk], [{saw, disk, writes, Saw, {at_least, 10}} || Saw <- [11, 9, 10]]),
    [{unseen, half, added_ms, 50, {at_most, 45}}] =
        Of([half], [{saw, half, added_ms, Saw, {at_most, 45}} || Saw <- [1, 50, 2]]).

what_fell_over_is_found(_) ->
    Notes = [{1, refused, 1066}, {2, heal} | settled(4)],
    [{fell_over, server_restarted}] =
        violations(Notes, bounds(), #{fell_over => [server_restarted]}),
    [{scenario, {bytes_kept, 1}}] =
        violations(Notes, bounds(), #{complaints => [{bytes_kept, 1}]}).

figures_are_of_the_worst_round(_) ->
    Notes = [{5, refused, 1066}, {9, heal}] ++ settled(12)
        ++ [{1_000, inject}, {1_002, refused, 1066}, {1_009, heal}] ++ settled(1_079),
    #{rounds := 2, detection_us := 5_000, recovery_us := 70_000, signal := {refused, 1066},
      resolution_us := 40_000, pause_us := 0} = Figures =
        erlmcp_chaos_verdict:figures(report(Notes, 1066), bounds(), facts(#{})),
    [] = [Key || Key <- [detection_moved_us, recovery_moved_us], is_map_key(Key, Figures)],
    %% A figure that one round does not have is not the other's.
    #{rounds := 1} = Late =
        erlmcp_chaos_verdict:figures(report([{9, heal}], 1066), bounds(), facts(#{})),
    [pause_us, resolution_us, rounds] = lists:sort(maps:keys(Late)),
    %% By how much pauses have moved the bounds.
    #{detection_moved_us := 3_000, recovery_moved_us := 31_000, pause_us := 20_000} =
        erlmcp_chaos_verdict:figures(report(Notes, 1066), bounds(),
                                     facts(#{paused => [{1, 4}, {1_020, 1_040}]})).

bounds() ->
    #{code => 1066, detect_ms => 100, recover_ms => 200, load => undisturbed}.

violations(Notes) ->
    violations(Notes, bounds()).

violations(Notes, Bounds) ->
    violations(Notes, Bounds, #{}).

violations(Notes, #{code := Code} = Bounds, Facts) ->
    #{accounting := Accounting} = Report = report(Notes, Code),
    Ended = erlmcp_chaos_accounting:sent(erlmcp_chaos_accounting:counts(load, Accounting)),
    erlmcp_chaos_verdict:violations(Report, Bounds, facts(
        Facts#{sent => Ended + maps:get(missing, Facts, 0)})).

facts(Given) ->
    Pauses = [{From * 1_000, To * 1_000} || {From, To} <- maps:get(paused, Given, [])],
    maps:merge(#{sent => none, harms => [], fell_over => [], complaints => [],
                 interval_us => 10_000, pauses => Pauses,
                 pause_us => lists:max([0 | [To - From || {From, To} <- Pauses]])}, Given).

report(Notes, Code) ->
    {ok, Journal} = erlmcp_chaos_journal:start_link(Code),
    ok = erlmcp_chaos_journal:steady(Journal),
    _ = [noted({At, load, 1, answered}, Journal) || At <- lists:seq(-1_500, -510, 10)],
    _ = [noted(Note, Journal) || Note <- begun(Notes)],
    Report = erlmcp_chaos_journal:report(Journal),
    ok = erlmcp_chaos_journal:stop(Journal),
    Report.

begun(none) -> [];
begun([{Before, _, _} = Note | Notes]) when Before < 0 -> [Note | Notes];
begun([{Before, _, _, _} = Note | Notes]) when is_integer(Before), Before < 0 -> [Note | Notes];
begun(Notes) -> [{0, inject} | Notes].

noted({saw, Harm, Figure, Value, Limit}, Journal) ->
    erlmcp_chaos_journal:seen(Journal, Harm, Figure, Value, Limit);
noted({At, Mark}, Journal) ->
    erlmcp_chaos_journal:mark(Journal, Mark, At * 1000);
noted({At, refused, Code}, Journal) ->
    noted({At, fault, 1, {refused, Code, #{}}}, Journal);
noted({At, Source, Latency, Outcome}, Journal) ->
    erlmcp_chaos_journal:outcome(Journal, Source, Outcome, (At - Latency) * 1000, At * 1000).

%% A request to an unreachable server ends with its own timeout, and is not lost. A fault without a
%% code need not be noticed.
unreachable_is_not_lost(_) ->
    Notes = [{50, load, 50, {failed, timeout}}, {51, fault, 50, {failed, timeout}},
             {60, heal} | settled(70)],
    Failed = (bounds())#{code := none, load := failed},
    [{lost, load, 1}, {lost, fault, 1}] = violations(Notes, Failed),
    [] = violations(Notes, Failed#{load := unreachable}),
    Quiet = [{60, heal} | settled(70)],
    [{never, detected}] = violations(Quiet, Failed),
    [] = violations(Quiet, Failed#{detect_ms := none}).

%% Servers. Their speed is not judged here, since other tests share the machine.

server_that_meets_its_fault_passes(_) ->
    #{status := passed, violations := [], figures := #{rounds := 1, detection_us := _}} =
        judged(fun met/1).

met(Context) ->
    _ = erlmcp_chaos_context:inject(Context),
    ok = malformed(Context),
    _ = erlmcp_chaos_context:heal(Context),
    ok.

%% The first attempt gets no answer in its time, as of a machine that pauses.
load_is_opened_again(_) ->
    #{status := passed, violations := []} =
        judged(fun met/1, #{load => silent_at_first(1, 2_000)}).

load_that_cannot_be_opened_is_found(_) ->
    #{status := failed, violations := [{scenario, Reason}]} =
        judged(fun met/1, #{load => silent_at_first(5, 200)}),
    {{case_clause, {error, {open, timeout}}}, _} = Reason.

%% A load of sessions on another server, which answers only after some openings.
silent_at_first(Silent, TimeoutMs) ->
    Server = erlmcp_test_load_server:start(lines, fun
        (Number, _) when Number =< Silent -> nothing;
        (_, none) -> nothing;
        (Number, Id) when Number =:= Silent + 1 -> erlmcp_test_load_server:line(began(Id));
        (_, Id) -> erlmcp_test_load_server:line(erlmcp_test_load_server:good(Id))
    end),
    #{target => {tcp, {127, 0, 0, 1}, erlmcp_test_load_server:port(Server)}, connections => 1,
      era => {session, ~"2025-11-25"}, timeout_ms => TimeoutMs}.

began(Id) ->
    json:encode(#{jsonrpc => ~"2.0", id => Id,
                  result => #{protocolVersion => ~"2025-11-25", capabilities => #{},
                              serverInfo => #{name => ~"slow", version => ~"1"}}}).

%% The machine stands still for 30 ms, six times a second, for two seconds from the load's beginning
%% on. One of its times of half a second without a fault has no pause.
paused_steady_time_is_repeated(_) ->
    Pauses = fun(_) ->
        _ = spawn_link(fun() ->
            "" = os:cmd("for turn in 1 2 3 4 5 6 7 8 9 10 11 12; do"
                        " sleep 0.13; kill -STOP " ++ os:getpid() ++ "; sleep 0.03;"
                        " kill -CONT " ++ os:getpid() ++ "; done")
        end),
        #{}
    end,
    #{status := passed, facts := #{steady_again_count := Again},
      figures := #{pause_us := Longest}} =
        judged(fun met/1, #{load => Pauses}, #{undisturbed => true}),
    true = Again >= 1 andalso Longest >= 25_000 orelse error({Again, Longest}).

%% Everything is good, except that there was no fault.
fault_without_harm_is_found(_) ->
    #{status := failed, violations := Violations, seen := Seen} = judged(fun(Context) ->
        _ = erlmcp_chaos_context:inject(Context),
        ok = malformed(Context),
        unseen = erlmcp_chaos_context:seen(Context, malformed, refused_messages, 0, {at_least, 1}),
        _ = erlmcp_chaos_context:heal(Context),
        ok
    end),
    [{unseen, malformed, refused_messages, 0, {at_least, 1}}] = Violations,
    #{malformed := #{refused_messages := {0, {at_least, 1}}}} = Seen.

%% The connections of the load are cut while it waits, which the fault does not promise.
load_that_is_cut_is_found(_) ->
    Sleeps = {~"tools/call", #{~"name" => ~"sleep", ~"arguments" => #{~"ms" => 10}}},
    #{status := failed, violations := Violations} = judged(fun(Context) ->
        _ = erlmcp_chaos_context:inject(Context),
        ok = malformed(Context),
        ok = erlmcp_chaos_context:until(fun() -> inside(pids, [calls], Context) =/= [] end),
        _ = inside(kill, [connections], Context),
        _ = erlmcp_chaos_context:heal(Context),
        ok
    end, #{load => #{requests => [{1, Sleeps}], connections => 8}}),
    [{not_good, load, {failed, _}}] = Violations.

server_that_fell_over_is_found(_) ->
    #{status := failed, violations := Violations} = judged(fun(Context) ->
        _ = erlmcp_chaos_context:inject(Context),
        ok = malformed(Context),
        1 = inside(kill, [catalog], Context),
        _ = erlmcp_chaos_context:heal(Context),
        ok
    end),
    [{fell_over, {supervisor_reports, 1}}] = Violations.

%% Of a flood at ten times the rate, a server answers those at five times the rate, and refuses only
%% the others.
answers_over_the_rate_are_found(_) ->
    Limits = #{limits => #{messages_per_second => 2_500}},
    #{status := failed, violations := Violations} =
        judged(fun erlmcp_chaos_message_flood:run/1, #{server => Limits}),
    [{Answered, Most}] =
        [{Answered, Most} || {scenario, {answered_over_the_rate, Answered, Most}} <- Violations],
    true = Answered > Most.

crash_of_a_scenario_is_found(_) ->
    #{status := failed, violations := Violations} = judged(fun(_) -> error(on_purpose) end),
    [{unseen, malformed}, {never, injected}, {scenario, {error, on_purpose, _}}] = Violations.

what_cannot_be_injected_is_not_run(_) ->
    #{status := not_run, reason := ~"no such thing"} =
        judged(fun(_) -> {not_run, ~"no such thing"} end).

teardown_comes_without_the_caller(_) ->
    Test = self(),
    Caller = spawn(fun() ->
        Run = fun(_) ->
            Test ! running,
            receive after infinity -> ok end
        end,
        erlmcp_chaos_run:run(erlmcp_test_fault, #{short => true, preload => false,
                                                  undisturbed => false, test => Test,
                                                  setup => #{}, run => Run})
    end),
    receive running -> ok after ?TIMEOUT -> error(not_running) end,
    exit(Caller, kill),
    torn_down().

what_cannot_be_set_up_is_not_run(_) ->
    #{status := not_run, reason := ~"no tmpfs here", lacks := []} =
        erlmcp_chaos_run:run(erlmcp_test_fault, #{setup => {not_run, ~"no tmpfs here"}}).

what_is_missing_is_said(_) ->
    [] = erlmcp_chaos_run:missing([{program, "sh"}]),
    [~"it needs the program no-such-program"] =
        erlmcp_chaos_run:missing([{program, "sh"}, {program, "no-such-program"}]).

unknown_scenario(_) ->
    {error, {unknown_scenario, ~"chaos_of_nobody"}} =
        erlmcp_bench_chaos:run_scenario(~"chaos_of_nobody").

judged(Run) ->
    judged(Run, #{}).

judged(Run, Setup) ->
    judged(Run, Setup, #{undisturbed => false}).

judged(Run, Setup, Options) ->
    Outcome = erlmcp_chaos_run:run(erlmcp_test_fault,
                                   Options#{short => true, preload => false, test => self(),
                                            run => Run, setup => Setup}),
    ok = torn_down(),
    Outcome.

torn_down() ->
    receive torn_down -> ok after ?TIMEOUT -> error(not_torn_down) end.

malformed(#{target := Target} = Context) ->
    {ok, Connection} = erlmcp_chaos_client:connect(tcp, Target),
    SentUs = erlmcp_chaos_context:now_us(),
    ok = erlmcp_chaos_client:send(Connection, ~"nothing\n"),
    {ok, Reply} = erlmcp_chaos_client:reply(Connection, ?TIMEOUT),
    ok = erlmcp_chaos_context:outcome(Context, fault, erlmcp_chaos_client:outcome(Reply), SentUs),
    #{refused := #{1066 := Refused}} = erlmcp_chaos_context:counts(Context, fault),
    ok = erlmcp_chaos_context:seen(Context, malformed, refused_messages, Refused, {at_least, 1}),
    erlmcp_chaos_client:close(Connection).

inside(Function, Arguments, Context) ->
    erlmcp_chaos_context:call(Context, erlmcp_chaos_inside, Function, Arguments).
