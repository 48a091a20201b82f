-module(chaos_verdict_SUITE).
-moduledoc """
The judge of faults is not bribed: what is not as it was promised is found, whatever it is, and
what was set up is undone whatever happens.
""".

-export([all/0, groups/0]).
-export([what_is_as_promised_passes/1, no_fault_is_no_pass/1, another_code_is_found/1,
         fault_that_never_ends_is_found/1, lost_request_is_found/1, disturbed_load_is_found/1,
         server_that_fell_over_is_found/1, crash_of_a_scenario_is_found/1,
         what_cannot_be_set_up_is_not_run/1, what_cannot_be_injected_is_not_run/1]).
-export([what_is_missing_is_said/1, unknown_scenario/1, teardown_comes_without_the_caller/1]).

-define(TIMEOUT, 30_000).

all() -> [{group, judged}, what_is_missing_is_said, unknown_scenario].

groups() ->
    [{judged, [parallel], [
        what_is_as_promised_passes, no_fault_is_no_pass, another_code_is_found,
        fault_that_never_ends_is_found, lost_request_is_found, disturbed_load_is_found,
        server_that_fell_over_is_found, crash_of_a_scenario_is_found,
        what_cannot_be_set_up_is_not_run, what_cannot_be_injected_is_not_run,
        teardown_comes_without_the_caller]}].

what_is_as_promised_passes(_) ->
    #{status := passed, violations := [], figures := #{rounds := 1, detection_us := _}} =
        judged(fun(Context) ->
            _ = erlmcp_chaos_context:inject(Context),
            ok = malformed(Context),
            _ = erlmcp_chaos_context:heal(Context),
            ok
        end).

no_fault_is_no_pass(_) ->
    #{status := failed, violations := [{never, injected}]} = judged(fun(_) -> ok end).

another_code_is_found(_) ->
    #{status := failed, violations := [{code, 1066, never_seen}]} = judged(fun(Context) ->
        _ = erlmcp_chaos_context:inject(Context),
        {refused, _, #{~"refusal" := 1048}} = ask(~"no_such_tool", #{}, Context),
        _ = erlmcp_chaos_context:heal(Context),
        ok
    end).

fault_that_never_ends_is_found(_) ->
    #{status := failed, violations := [{never, recovered}]} = judged(fun(Context) ->
        _ = erlmcp_chaos_context:inject(Context),
        malformed(Context)
    end).

lost_request_is_found(_) ->
    #{status := failed, violations := [{lost, fault, 1}]} = judged(fun(Context) ->
        _ = erlmcp_chaos_context:inject(Context),
        ok = malformed(Context),
        Now = erlmcp_chaos_context:now_us(),
        ok = erlmcp_chaos_context:outcome(Context, fault, {failed, timeout}, Now),
        _ = erlmcp_chaos_context:heal(Context),
        ok
    end).

%% Its connections are cut while it waits, and nobody promised that.
disturbed_load_is_found(_) ->
    Sleeps = {~"tools/call", #{~"name" => ~"sleep", ~"arguments" => #{~"ms" => 10}}},
    #{status := failed, violations := Violations} = judged(fun(Context) ->
        _ = erlmcp_chaos_context:inject(Context),
        ok = malformed(Context),
        ok = erlmcp_chaos_context:until(fun() -> inside(pids, [calls], Context) =/= [] end),
        _ = inside(kill, [connections], Context),
        _ = erlmcp_chaos_context:heal(Context),
        ok
    end, #{load => #{requests => [{1, Sleeps}]}}),
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

what_cannot_be_set_up_is_not_run(_) ->
    #{status := not_run, reason := ~"no tmpfs here"} =
        erlmcp_chaos_run:run(chaos_scenario,
                             #{setup => {not_run, ~"no tmpfs here"}}).

what_cannot_be_injected_is_not_run(_) ->
    #{status := not_run, reason := ~"no such thing"} =
        judged(fun(_) -> {not_run, ~"no such thing"} end).

teardown_comes_without_the_caller(_) ->
    Test = self(),
    Caller = spawn(fun() ->
        erlmcp_chaos_run:run(chaos_scenario, #{short => true, test => Test, setup => #{},
                                                run => fun(_) ->
            Test ! running,
            receive after infinity -> ok end
        end})
    end),
    receive running -> ok after ?TIMEOUT -> error(not_running) end,
    exit(Caller, kill),
    torn_down().

what_is_missing_is_said(_) ->
    [] = erlmcp_chaos_needs:missing([{program, "sh"}]),
    [~"it needs the program no-such-program"] =
        erlmcp_chaos_needs:missing([{program, "sh"}, {program, "no-such-program"}]).

unknown_scenario(_) ->
    {error, {unknown_scenario, ~"chaos_of_nobody"}} =
        erlmcp_bench_chaos:run_scenario(~"chaos_of_nobody").

judged(Run) ->
    judged(Run, #{}).

judged(Run, Setup) ->
    Outcome = erlmcp_chaos_run:run(chaos_scenario, #{short => true, test => self(), run => Run,
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

ask(Tool, Arguments, #{target := Target} = Context) ->
    {ok, Connection} = erlmcp_chaos_client:connect(tcp, Target),
    Message = erlmcp_chaos_client:call(1, Tool, Arguments),
    Outcome = erlmcp_chaos_client:ask(Connection, Context, fault, Message, ?TIMEOUT),
    ok = erlmcp_chaos_client:close(Connection),
    Outcome.

inside(Function, Arguments, Context) ->
    erlmcp_chaos_context:call(Context, erlmcp_chaos_inside, Function, Arguments).
