-module(erlmcp_chaos_run).
-moduledoc """
Runs one scenario: checks its needs, sets it up, starts the server and its load, injects the fault,
and judges the outcome. The server is in an operating system process of its own, without the load.
The teardown runs after every successful setup, even if the caller ends.
""".

-export([run/2, missing/1]).

-export_type([outcome/0, progress/0, options/0]).

-doc """
The outcome of a scenario.

- `violations` lists every broken promise. A scenario that was broken off, such as one that took too
  long, has violations, but no figures.
- `reason` says why a scenario did not run, and `lacks` has a sentence for each need that the
  machine lacks. Only a scenario with the status `not_run` has these two members.
- `earlier`, `events`, `facts` and `seen` are those of the journal
  (`t:erlmcp_chaos_journal:report/0`).
""".
-type outcome() :: #{
    scenario := binary(), title := binary(), status := passed | failed | not_run,
    bounds := erlmcp_chaos_scenario:bounds(), reason => binary(), lacks => [binary()],
    violations => [erlmcp_chaos_verdict:violation()],
    figures => erlmcp_chaos_verdict:figures(),
    accounting => #{erlmcp_chaos_scenario:source() => erlmcp_chaos_accounting:counts()},
    earlier => map(), events => #{atom() => pos_integer()}, facts => #{atom() => number()},
    seen => #{Harm :: atom() => #{Figure :: atom() => {number(), erlmcp_chaos_verdict:limit()}}},
    duration_ms => pos_integer(), short => boolean()
}.
-type progress() :: {Scenario :: binary(), started | steady | inject | heal | ended,
                     ElapsedMs :: non_neg_integer()}.
-doc """
The options of a run.

- `short` (`false`) shortens the fault.
- `preload` (`true`) loads all code first. Otherwise the measured times include the loading of code.
- `undisturbed` (`true`) repeats the measurement that precedes the fault if the machine has paused
  during the measurement, nine times at most.
- `on_progress` is called with each step, in the process that runs the scenario.
- `harm` takes harms out, and `patience_ms` is how long a wait for a detection or a recovery may
  last. Both are for test suites.
""".
-type options() :: #{
    short => boolean(), preload => boolean(), undisturbed => boolean(),
    patience_ms => pos_integer(), on_progress => fun((progress()) -> term()),
    harm => erlmcp_chaos_scenario:way(),
    atom() => term()
}.

%% Milliseconds of warm-up, of load without a fault, and of load after it. A short run uses the
%% second value of each. The last value is the limit of a whole scenario, in milliseconds.
-define(WARM_MS, {500, 200}).
-define(STEADY_MS, {2_000, 500}).
-define(AFTER_MS, {500, 200}).
-define(ALL_MS, 300_000).
%% The fewest replies that show the usual latency, and its 99th percentile.
-define(STEADY_REPLIES, 100).
-define(WAIT_MS, 30_000).
%% Requests a second during the fault.
-define(RATE, 200).
%% Microseconds of a pause for which the time before the fault is measured again, and how often it
%% is measured.
-define(PAUSE_US, 10_000).
-define(STEADY_TRIES, 10).
%% How often the load is opened: with a short timeout, a pause may prevent it.
-define(OPEN_TRIES, 5).

-doc """
Runs the scenario of a module to its end, and returns its outcome. A scenario that takes longer than
five minutes is broken off, and has the status `failed`.
""".
-spec run(module(), options()) -> outcome().
run(Module, Given) ->
    Options = maps:merge(#{short => false, preload => true, undisturbed => true}, Given),
    ok = erlmcp_bench_environment:begins(),
    Caller = self(),
    {Keeper, Monitor} = spawn_monitor(fun() ->
        Caller ! {self(), run_for(Module, Options, Caller)}
    end),
    receive
        {Keeper, Outcome} ->
            true = demonitor(Monitor, [flush]),
            Outcome;
        {'DOWN', Monitor, process, Keeper, Reason} ->
            failed(Module, Options, [{scenario, Reason}])
    end.

%% This process outlives the caller and the fault.
run_for(Module, Options, Caller) ->
    case missing(Module:needs()) of
        [] ->
            Monitor = monitor(process, Caller),
            case setup(Module, Options) of
                {ok, Setup} -> set_up(Module, Setup, Options, Monitor);
                {not_run, Reason} -> not_run(Module, Reason, [])
            end;
        Missing ->
            not_run(Module, iolist_to_binary(lists:join(", ", Missing)), Missing)
    end.

-doc """
Returns a sentence for each of `Needs` that the machine does not meet, and an empty list if it meets
all.
""".
-spec missing(Needs :: [erlmcp_chaos_scenario:need()]) -> [binary()].
missing(Needs) ->
    lists:append([missing_one(Need) || Need <- Needs]).

missing_one(root) ->
    [~"it needs the rights of root" || not is_root()];
missing_one({program, Name}) ->
    [<<"it needs the program ", (list_to_binary(Name))/binary>>
     || os:find_executable(Name) =:= false].

%% The effective user is the second of the four. In a container, root may lack the capabilities to
%% administer networks (12) and to mount (21).
is_root() ->
    maybe
        {ok, Status} ?= file:read_file("/proc/self/status"),
        {match, [Hexadecimal]} ?=
            re:run(Status, ~"^Uid:\\s+\\d+\\s+0\\s.*^CapEff:\\s+([0-9a-f]+)$",
                   [multiline, dotall, {capture, all_but_first, binary}]),
        Needed = (1 bsl 12) bor (1 bsl 21),
        binary_to_integer(Hexadecimal, 16) band Needed =:= Needed
    else
        _ -> false
    end.

setup(Module, Options) ->
    {module, Module} = code:ensure_loaded(Module),
    case erlang:function_exported(Module, setup, 1) of
        true -> Module:setup(Options);
        false -> {ok, #{}}
    end.

set_up(Module, Setup, Options, Caller) ->
    Keeper = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        Keeper ! {self(), inject_fault(Module, Setup, Options)}
    end),
    Outcome = receive
        {Pid, Came} ->
            %% The node ends with that process.
            receive {'DOWN', Monitor, process, Pid, _} -> Came end;
        {'DOWN', Monitor, process, Pid, Reason} ->
            failed(Module, Options, [{scenario, Reason}]);
        {'DOWN', Caller, process, _, _} ->
            kill_and_wait(Pid, Monitor),
            failed(Module, Options, [{scenario, nobody_waits}])
    after ?ALL_MS ->
        kill_and_wait(Pid, Monitor),
        failed(Module, Options, [{scenario, {longer_than_ms, ?ALL_MS}}])
    end,
    case erlang:function_exported(Module, teardown, 1) of
        true -> ok = Module:teardown(maps:get(private, Setup, none));
        false -> ok
    end,
    Outcome.

kill_and_wait(Pid, Monitor) ->
    exit(Pid, kill),
    receive {'DOWN', Monitor, process, Pid, _} -> ok end.

base(Module) ->
    #{scenario => Module:id(), title => Module:title(), bounds => Module:bounds()}.

not_run(Module, Reason, Lacks) ->
    (base(Module))#{status => not_run, reason => Reason, lacks => Lacks}.

failed(Module, #{short := Short}, Violations) ->
    (base(Module))#{status => failed, violations => Violations, short => Short}.

%% The server's node, the load and the journal are linked to the process that injects the fault.
inject_fault(Module, Setup, #{short := Short, undisturbed := Undisturbed} = Options) ->
    false = process_flag(trap_exit, true),
    Began = erlang:monotonic_time(millisecond),
    #{code := Code} = Bounds = Module:bounds(),
    Tell = progress_fun(Module:id(), Began, Options),
    _ = Tell(started),
    {ok, Journal} = erlmcp_chaos_journal:start_link(Code),
    {ok, Target} = erlmcp_bench_target:start(target(Setup)),
    ok = erlmcp_bench_target:call(Target, erlmcp_chaos_relay, start, []),
    ok = preload(Target, Options),
    _ = spawn_link(fun() -> follow(Target, Journal, 0) end),
    Before = erlmcp_bench_target:call(Target, erlmcp_chaos_inside, state, []),
    Load = start_load(plan(Setup, Target, Journal), ?OPEN_TRIES),
    Pauses = erlmcp_chaos_pauses:start_link(),
    Tries = case Undisturbed of
        true -> ?STEADY_TRIES;
        false -> 1
    end,
    Steady = steady(Load, Journal, Pauses, Short, Tries),
    _ = Tell(steady),
    Context = #{target => Target, options => Options, private => maps:get(private, Setup, none),
                journal => Journal, bounds => Bounds, tell => Tell, load => running(Load),
                harm => maps:get(harm, Options, fun(_, _, Do) -> Do() end)},
    case scenario(Steady, Module, Context) of
        {not_run, Reason} ->
            _ = stop_load(Load),
            not_run(Module, Reason, []);
        Complaints ->
            ok = hold(?AFTER_MS, Short),
            _ = is_healed(Journal) andalso Load =/= none
                andalso erlmcp_chaos_context:await_recovered(Context),
            Sent = sent(stop_load(Load)),
            FellOver = unexpected_restarts(Before, Target, Setup, Journal),
            Report = erlmcp_chaos_journal:report(Journal),
            Facts = #{sent => Sent, complaints => Complaints, fell_over => FellOver,
                      interval_us => interval(Load), harms => Module:harms(),
                      pauses => erlmcp_chaos_pauses:pauses(Pauses),
                      pause_us => erlmcp_chaos_pauses:longest_us(Pauses)},
            ok = erlmcp_bench_target:stop(Target),
            _ = Tell(ended),
            Judged = judge(Module, Report, Bounds, Facts),
            DurationMs = erlang:monotonic_time(millisecond) - Began,
            Judged#{short => Short, duration_ms => max(1, DurationMs)}
    end.

judge(Module, #{accounting := Accounting} = Report, Bounds, Facts) ->
    Violations = erlmcp_chaos_verdict:violations(Report, Bounds, Facts),
    Status = case Violations of
        [] -> passed;
        _ -> failed
    end,
    maps:merge((base(Module))#{status => Status, violations => Violations,
                               figures => erlmcp_chaos_verdict:figures(Report, Bounds, Facts),
                               accounting => erlmcp_chaos_accounting:to_map(Accounting)},
               maps:with([earlier, events, facts, seen], Report)).

progress_fun(Id, Began, #{on_progress := Fun}) ->
    fun(What) -> Fun({Id, What, erlang:monotonic_time(millisecond) - Began}) end;
progress_fun(_, _, _) ->
    fun(_) -> ok end.

%% A fault proves nothing if the load was not served before it.
scenario(timeout, _, _) ->
    [load_was_not_served];
scenario(ok, Module, Context) ->
    try Module:run(Context) of
        ok -> [];
        unseen -> [];
        {error, Reason} -> [Reason];
        {not_run, _} = NotRun -> NotRun
    catch
        Class:Reason:Stack -> [{Class, Reason, Stack}]
    end.

%% The server under test.

target(Setup) ->
    Given = maps:get(target, Setup, #{}),
    Host = maps:get(host, Given, {127, 0, 0, 1}),
    Server = #{handler => erlmcp_bench_fixture,
               listen => [{http, #{port => 0, ip => Host}}, {tcp, #{port => 0, ip => Host}}],
               on_event => fun erlmcp_chaos_relay:event/1},
    Given#{server => maps:merge(Server, maps:get(server, Setup, #{}))}.

%% Times must not include the loading of code, in either node.
preload(_, #{preload := false}) ->
    ok;
preload(Target, #{preload := true}) ->
    ok = erlmcp_chaos_inside:load_all(),
    erlmcp_bench_target:call(Target, erlmcp_chaos_inside, load_all, []).

follow(Target, Journal, After) ->
    try erlmcp_bench_target:call(Target, erlmcp_chaos_relay, fetch, [After, 1_000], infinity) of
        {Last, Events} ->
            Offset = erlang:monotonic_time(microsecond) - os:system_time(microsecond),
            ok = lists:foreach(fun({Event, SystemUs}) ->
                                   erlmcp_chaos_journal:event(Journal, Event, SystemUs + Offset)
                               end, Events),
            follow(Target, Journal, Last)
    catch
        exit:_ -> ok
    end.

unexpected_restarts(#{supervisor := Supervisor}, Target, Setup, Journal) ->
    #{events := Events} = erlmcp_chaos_journal:report(Journal),
    Restarts = maps:get(restarts, Setup, none),
    try erlmcp_bench_target:call(Target, erlmcp_chaos_inside, state, []) of
        #{} when Restarts =:= server -> [];
        #{supervisor := Supervisor} ->
            [{supervisor_reports, Count} || Restarts =:= none,
                                            #{supervisor_report := Count} <- [Events]];
        #{} -> [server_restarted]
    catch
        Class:Reason -> [{node_gone, Class, Reason}]
    end.

%% The load.

plan(Setup, Target, Journal) ->
    case maps:get(load, Setup, #{}) of
        none -> none;
        Say when is_function(Say, 1) -> plan_for(Say(Target), Target, Journal);
        Given -> plan_for(Given, Target, Journal)
    end.

plan_for(Given, Target, Journal) ->
    maps:merge(#{target => {http, erlmcp_bench_target:url(Target)}, connections => 4,
                 payload_bytes => 64, loop => {open, ?RATE, even}, warmup_ms => 0,
                 duration_ms => ?ALL_MS, timeout_ms => 10_000,
                 observer => erlmcp_chaos_journal:tap(Journal, load)}, Given).

start_load(none, _) ->
    none;
start_load(Plan, Tries) ->
    case erlmcp_load:start(Plan) of
        {ok, Load} -> {Load, Plan};
        {error, {open, timeout}} when Tries > 1 -> start_load(Plan, Tries - 1)
    end.

running(none) -> none;
running({Load, _}) -> Load.

stop_load(none) -> none;
stop_load({Load, _}) -> erlmcp_load:stop(Load).

sent(none) -> none;
sent(#{sent := Sent}) -> Sent.

interval({_, #{loop := {open, Rate, _}}}) -> max(1, 1_000_000 div Rate);
interval(_) -> 1.

steady(none, Journal, _, _, _) ->
    erlmcp_chaos_journal:steady(Journal);
steady(_, Journal, Pauses, Short, Tries) ->
    maybe
        ok ?= erlmcp_chaos_journal:await(Journal, {answered, 1}, ?WAIT_MS),
        measured(Journal, Pauses, Short, Tries, 0)
    end.

%% The answers of a paused machine are no measure for those after the fault, and the server may
%% refuse what waited too long. The warm-up answers what was due in the pause.
measured(Journal, Pauses, Short, Tries, Again) ->
    ok = hold(?WARM_MS, Short),
    ok = erlmcp_chaos_journal:steady(Journal),
    Began = erlang:monotonic_time(microsecond),
    ok = hold(?STEADY_MS, Short),
    Answered = erlmcp_chaos_journal:await(Journal, {answered, ?STEADY_REPLIES}, ?WAIT_MS),
    Paused = erlmcp_chaos_pauses:stood_still(Began, ?PAUSE_US, Pauses),
    case Paused andalso Answered =:= ok andalso Again + 1 < Tries of
        true ->
            ok = erlmcp_chaos_journal:fact(Journal, steady_again_count, Again + 1),
            measured(Journal, Pauses, Short, Tries, Again + 1);
        false ->
            Answered
    end.

hold({Whole, _}, false) -> receive after Whole -> ok end;
hold({_, Less}, true) -> receive after Less -> ok end.

is_healed(Journal) ->
    #{rounds := Rounds} = erlmcp_chaos_journal:report(Journal),
    Rounds =/= [] andalso is_map_key(healed, lists:last(Rounds)).
