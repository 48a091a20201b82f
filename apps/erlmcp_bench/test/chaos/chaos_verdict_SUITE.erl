-module(chaos_verdict_SUITE).
-moduledoc """
Tests for the judge of faults: it finds every broken promise. The first cases use written logs, the
others use servers with unpromised faults.
""".

-export([suite/0, all/0, groups/0]).
-export([good_notes_pass/1, no_fault_is_no_pass/1, another_code_is_found/1,
         late_detection_is_found/1, late_recovery_is_found/1, worst_round_counts/1,
         slow_replies_are_no_recovery/1, fault_that_never_ends_is_found/1,
         failed_probe_is_found/1, lost_requests_are_found/1, requests_without_an_end_are_found/1,
         disturbed_load_is_found/1, what_was_amiss_before_is_found/1, unreachable_is_not_lost/1]).
-export([server_that_meets_its_fault_passes/1, load_that_is_cut_is_found/1,
         server_that_fell_over_is_found/1, crash_of_a_scenario_is_found/1,
         what_cannot_be_injected_is_not_run/1, teardown_comes_without_the_caller/1]).
-export([what_cannot_be_set_up_is_not_run/1, what_is_missing_is_said/1, unknown_scenario/1]).

-define(TIMEOUT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [good_notes_pass, no_fault_is_no_pass, another_code_is_found, late_detection_is_found,
     late_recovery_is_found, worst_round_counts, slow_replies_are_no_recovery,
     fault_that_never_ends_is_found, failed_probe_is_found, lost_requests_are_found,
     requests_without_an_end_are_found, disturbed_load_is_found, what_was_amiss_before_is_found,
     unreachable_is_not_lost, {group, servers},
     what_cannot_be_set_up_is_not_run, what_is_missing_is_said, unknown_scenario].

groups() ->
    [{servers, [parallel], [server_that_meets_its_fault_passes, load_that_is_cut_is_found,
                            server_that_fell_over_is_found, crash_of_a_scenario_is_found,
                            what_cannot_be_injected_is_not_run,
                            teardown_comes_without_the_caller]}].

%% Notes: a request in ten milliseconds, answered in one; what happened, in milliseconds from the
%% injection on.

good_notes_pass(_) ->
    [] = violations([{99, refused, 1066}, {100, heal}, {305, load, 1, answered}]).

no_fault_is_no_pass(_) ->
    [{never, injected}] = violations(none, bounds()).

another_code_is_found(_) ->
    [{code, 1066, never_seen}] =
        violations([{5, refused, 1060}, {100, heal}, {110, load, 1, answered}]),
    [{never, detected}] = violations([{100, heal}, {110, load, 1, answered}],
                                     (bounds())#{code := none}),
    %% Without a code, any notice of the fault is enough.
    [] = violations([{5, refused, 1060}, {100, heal}, {110, load, 1, answered}],
                    (bounds())#{code := none}).

late_detection_is_found(_) ->
    [{late, detection, 101_000, 100}] =
        violations([{101, refused, 1066}, {102, heal}, {110, load, 1, answered}]).

%% The load sees it as finely as it asks, and is answered.
late_recovery_is_found(_) ->
    [] = violations([{1, refused, 1066}, {2, heal}, {2 + 200 + 31, load, 1, answered}]),
    [{late, recovery, 232_000, 200}] =
        violations([{1, refused, 1066}, {2, heal}, {2 + 200 + 32, load, 1, answered}]).

worst_round_counts(_) ->
    [{late, detection, 150_000, 100}] =
        violations([{1, refused, 1066}, {2, heal}, {3, load, 1, answered},
                    {1_000, inject}, {1_150, refused, 1066}, {1_151, heal},
                    {1_152, load, 1, answered},
                    {2_000, inject}, {2_001, refused, 1066}, {2_002, heal},
                    {2_003, load, 1, answered}]).

slow_replies_are_no_recovery(_) ->
    [{never, recovered}] = violations([{1, refused, 1066}, {2, heal}, {10, load, 5, answered}]),
    [{late, recovery, 998_000, 200}] =
        violations([{1, refused, 1066}, {2, heal}, {10, load, 5, answered},
                    {1_000, load, 1, answered}]).

fault_that_never_ends_is_found(_) ->
    [{never, recovered}] = violations([{1, refused, 1066}, {50, load, 1, answered}]),
    %% An event before the end is no recovery either, even if it is reported later.
    [{never, recovered}] =
        violations([{1, refused, 1066}, {100, heal}, {50, load, 1, answered}]).

%% A scenario with probes needs their replies too.
failed_probe_is_found(_) ->
    Failed = {3, probe, 1, {failed, closed}},
    [{never, recovered}, {not_good, probe, #{closed := 1}}] =
        violations([{1, refused, 1066}, {2, heal}, Failed, {4, load, 1, answered}]),
    [{late, recovery, 998_000, 200}] =
        violations([{1, refused, 1066}, {2, heal}, {4, load, 1, answered},
                    {1_000, probe, 400, answered}]).

lost_requests_are_found(_) ->
    Notes = [{1, refused, 1066}, {2, heal}, {4, load, 1, answered}],
    [{lost, fault, 1}] = violations(Notes ++ [{5, fault, 1, {failed, timeout}}]),
    [{not_good, fault, {wrong, #{id := 1}}}] =
        violations(Notes ++ [{5, fault, 1, {wrong, id}}]),
    [{lost, load, 1}, {not_good, load, {wrong, #{id := 1}}}] =
        violations(Notes ++ [{5, load, 1, {failed, timeout}}, {6, load, 1, {wrong, id}}],
                   (bounds())#{load := failed}).

%% The generator counted more than it told of.
requests_without_an_end_are_found(_) ->
    [{unaccounted, 3}] = violations([{1, refused, 1066}, {2, heal}, {4, load, 1, answered}],
                                    bounds(), 3).

disturbed_load_is_found(_) ->
    Notes = [{1, refused, 1066}, {2, heal}, {4, load, 1, answered}],
    Refused = {5, load, 1, {refused, 1066, #{}}},
    Other = {6, load, 1, {refused, 1060, #{}}},
    Failed = {7, load, 1, {failed, closed}},
    Disturbed = Notes ++ [Refused, Other, Failed],
    [{not_good, load, {refused, #{1060 := 1, 1066 := 1}}}, {not_good, load, {failed, _}}] =
        violations(Disturbed),
    [{not_good, load, {refused, #{1060 := 1} = Others}}, {not_good, load, {failed, _}}] =
        violations(Disturbed, (bounds())#{load := refused}),
    1 = map_size(Others),
    [] = violations(Disturbed, (bounds())#{load := failed}).

what_was_amiss_before_is_found(_) ->
    [{before, [{refused, 1078}]}] =
        violations([{-20, refused, 1078}, {0, inject}, {1, refused, 1066}, {2, heal},
                    {4, load, 1, answered}]).

bounds() ->
    #{code => 1066, detect_ms => 100, recover_ms => 200, load => undisturbed}.

violations(Notes) ->
    violations(Notes, bounds()).

violations(Notes, Bounds) ->
    violations(Notes, Bounds, 0).

violations(Notes, #{code := Code} = Bounds, Missing) ->
    {ok, Journal} = erlmcp_chaos_journal:start_link(Code),
    ok = erlmcp_chaos_journal:steady(Journal),
    _ = [noted({At, load, 1, answered}, Journal) || At <- lists:seq(-500, -10, 10)],
    _ = [noted(Note, Journal) || Note <- begun(Notes)],
    #{accounting := Accounting} = Report = erlmcp_chaos_journal:report(Journal),
    ok = erlmcp_chaos_journal:stop(Journal),
    Sent = erlmcp_chaos_accounting:sent(erlmcp_chaos_accounting:counts(load, Accounting)),
    erlmcp_chaos_verdict:violations(Report, Bounds, #{
        sent => Sent + Missing, fell_over => [], complaints => [], interval_us => 10_000}).

begun(none) -> [];
begun([{Before, _, _} = Note | Notes]) when Before < 0 -> [Note | Notes];
begun(Notes) -> [{0, inject} | Notes].

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
             {60, heal}, {70, load, 1, answered}],
    Failed = (bounds())#{code := none, load := failed},
    [{lost, load, 1}, {lost, fault, 1}] = violations(Notes, Failed),
    [] = violations(Notes, Failed#{load := unreachable}),
    Quiet = [{60, heal}, {70, load, 1, answered}],
    [{never, detected}] = violations(Quiet, Failed),
    [] = violations(Quiet, Failed#{detect_ms := none}).

%% Servers. Their speed is not judged here, since other tests share the machine.

server_that_meets_its_fault_passes(_) ->
    #{status := passed, violations := [], figures := #{rounds := 1, detection_us := _}} =
        judged(fun(Context) ->
            _ = erlmcp_chaos_context:inject(Context),
            ok = malformed(Context),
            _ = erlmcp_chaos_context:heal(Context),
            ok
        end).

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

crash_of_a_scenario_is_found(_) ->
    #{status := failed, violations := Violations} = judged(fun(_) -> error(on_purpose) end),
    [{scenario, {error, on_purpose, _}}] =
        [Violation || {scenario, _} = Violation <- Violations].

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
        erlmcp_chaos_run:run(erlmcp_test_fault, #{short => true, preload => false, test => Test,
                                                  setup => #{}, run => Run})
    end),
    receive running -> ok after ?TIMEOUT -> error(not_running) end,
    exit(Caller, kill),
    torn_down().

what_cannot_be_set_up_is_not_run(_) ->
    #{status := not_run, reason := ~"no tmpfs here"} =
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
    Outcome = erlmcp_chaos_run:run(erlmcp_test_fault, #{short => true, preload => false,
                                                        test => self(), run => Run,
                                                        setup => Setup}),
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
    erlmcp_chaos_client:close(Connection).

inside(Function, Arguments, Context) ->
    erlmcp_chaos_context:call(Context, erlmcp_chaos_inside, Function, Arguments).
