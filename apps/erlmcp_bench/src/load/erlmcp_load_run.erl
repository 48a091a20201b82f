-module(erlmcp_load_run).
-moduledoc """
The process of a load. It starts the groups that own the connections, lets all groups begin
together, takes a sample each second and adds up the figures. It ends with the process that started
it.
""".

-behaviour(gen_server).

-export([start/1, await_open/1, await/1, stop/1, set_rate/2, meters/1, peek/1]).
-export([init/1, handle_continue/2, handle_call/3, handle_cast/2, handle_info/2, format_status/1]).

-record(run, {
    settings :: erlmcp_load_plan:settings(),
    owner :: reference(),
    starter = none :: none | gen_server:from(),
    waiting = [] :: [gen_server:from()],
    phase = opening :: opening | running | finishing | done,
    groups = #{} :: #{pid() => []},
    %% While opening: how many attempts have not ended, and why the last one failed.
    opening = 0 :: non_neg_integer(),
    last_failure = none :: term(),
    %% When the load began, and when all connections were open.
    started :: erlmcp_load_sample:mark(),
    ready = none :: none | erlmcp_load_sample:mark(),
    opened = 0 :: non_neg_integer(),
    begin_at = 0 :: integer(),
    from = 0 :: integer(),
    until = 0 :: integer(),
    timer = none :: none | reference(),
    %% Of a load that measures the capacity: when the second half of its warm-up began, with how
    %% many answers, and the answers a second since then.
    half = none :: none | {Us :: integer(), Answers :: integer()},
    carried = none :: none | float(),
    %% The counters when measuring began, and at the last sample.
    before = none :: none | erlmcp_load_sample:mark(),
    last = none :: none | erlmcp_load_sample:mark(),
    samples = [] :: [erlmcp_load_sample:sample()],
    courses = [] :: [erlmcp_load_course:course()],
    report = none :: none | erlmcp_load_report:report()
}).

%% Microseconds until all groups have received the start.
-define(LEAD_US, 20_000).
%% The average uses of a connection before its cost is steady. The runtime polls a socket separately
%% until it had data more than ten times. Then the most halves that the first half may last until
%% that is so, and the time between two checks.
-define(USED, 12).
-define(LONGEST_HALVES, 10).
-define(LOOK_US, 50_000).
%% Milliseconds after the timeouts of the last requests in which all groups must have ended.
-define(GRACE_MS, 15_000).

-doc "Starts the process of a load, which begins to open its connections.".
-spec start(erlmcp_load_plan:settings()) -> pid().
start(Settings) ->
    {ok, Pid} = gen_server:start(?MODULE, {self(), Settings}, []),
    Pid.

-doc """
Waits until each connection of a load was opened or has failed to open. If none could be opened, the
error has the reason of the last attempt, and the process ends.
""".
-spec await_open(pid()) -> ok | {error, {open, Reason :: term()}}.
await_open(Pid) ->
    gen_server:call(Pid, started, infinity).

-doc "Waits for the end of a load, and returns its report, as `erlmcp_load:await/1` does.".
-spec await(pid()) -> erlmcp_load_report:report().
await(Pid) ->
    gen_server:call(Pid, await, infinity).

-doc "Ends a load early, and returns its report, as `erlmcp_load:stop/1` does.".
-spec stop(pid()) -> erlmcp_load_report:report().
stop(Pid) ->
    gen_server:call(Pid, stop, infinity).

-doc "Changes the rate of an open loop, as `erlmcp_load:set_rate/2` does.".
-spec set_rate(pid(), Rate :: number()) -> ok | {error, {bad_option, loop}}.
set_rate(Pid, Rate) ->
    gen_server:call(Pid, {set_rate, Rate}, infinity).

-doc "Returns the meters of a load, as `erlmcp_load:meters/1` does.".
-spec meters(pid()) -> erlmcp_load_sample:meters().
meters(Pid) ->
    gen_server:call(Pid, meters, infinity).

-doc "Returns the counters of a load, as `erlmcp_load:peek/1` does.".
-spec peek(pid()) -> erlmcp_load_sample:mark().
peek(Pid) ->
    gen_server:call(Pid, peek, infinity).

-doc false.
init({Owner, Settings}) ->
    _ = process_flag(trap_exit, true),
    %% This process does little work, but it must do it on time, however busy the groups are.
    _ = process_flag(priority, high),
    Patterns = ets:new(?MODULE, [public, {read_concurrency, true}]),
    {ok, #run{settings = Settings#{patterns => Patterns}, owner = monitor(process, Owner),
              started = erlmcp_load_sample:mark(Settings)}, {continue, open}}.

-doc false.
handle_continue(open, Run) ->
    {noreply, opened(Run)}.

-doc false.
handle_call(started, From, #run{phase = opening} = Run) ->
    opening(Run#run{starter = From});
handle_call(started, _, Run) ->
    {reply, ok, Run};
handle_call(meters, _, #run{settings = Settings} = Run) ->
    {reply, maps:with([counts, latency], Settings), Run};
handle_call(peek, _, #run{settings = Settings} = Run) ->
    {reply, erlmcp_load_sample:mark(Settings), Run};
handle_call(stop, From, #run{phase = running, waiting = Waiting} = Run) ->
    {noreply, finishing(Run#run{waiting = [From | Waiting], until = min(now_us(), Run#run.until)})};
handle_call(Ask, _, #run{phase = done, report = Report} = Run) when Ask =:= await; Ask =:= stop ->
    {stop, normal, Report, Run};
handle_call(Ask, From, #run{waiting = Waiting} = Run) when Ask =:= await; Ask =:= stop ->
    {noreply, Run#run{waiting = [From | Waiting]}};
handle_call({set_rate, Rate}, _, #run{settings = #{loop := {open, Schedule}}} = Run)
  when is_number(Rate), Rate > 0 ->
    ok = erlmcp_load_schedule:set_rate(Rate, now_us(), Schedule),
    %% Groups that wait for a due time took it at the former rate.
    _ = [ok = erlmcp_load_group:renew(Pid) || Pid := _ <- Run#run.groups],
    {reply, ok, Run};
handle_call({set_rate, _}, _, Run) ->
    {reply, {error, {bad_option, loop}}, Run}.

-doc false.
handle_cast(_, Run) ->
    {noreply, Run}.

-doc false.
handle_info({Pid, Word}, #run{groups = Groups} = Run) when is_map_key(Pid, Groups) ->
    group_reported(Word, Pid, Run);
handle_info({timeout, Timer, Phase}, #run{timer = Timer} = Run) ->
    timed(Phase, Run#run{timer = none});
handle_info({'EXIT', _, normal}, Run) ->
    {noreply, Run};
handle_info({'EXIT', Pid, Reason}, #run{groups = Groups} = Run) when is_map_key(Pid, Groups) ->
    %% This is a bug: the figures of the group are lost, so the whole load is worthless.
    {stop, {group, Reason}, Run};
handle_info({'DOWN', Owner, process, _, _}, #run{owner = Owner} = Run) ->
    %% The reason is not `normal`, which would not end the linked groups.
    {stop, shutdown, Run};
handle_info(_, Run) ->
    {noreply, Run}.

-doc false.
%% The settings have the payloads, which may be large.
format_status(#{state := #run{phase = Phase, groups = Groups, opened = Opened}} = Status) ->
    Status#{state := #{phase => Phase, groups => maps:keys(Groups), opened => Opened}}.

%% Opening.

group_reported({opened, OsPid}, _, Run) ->
    #run{opened = Opened, opening = Opening, settings = Settings} = Run,
    opening(Run#run{opened = Opened + 1, opening = Opening - 1,
                    settings = watched(OsPid, Settings)});
group_reported({open_failed, Reason}, _, #run{opening = Opening} = Run) ->
    opening(Run#run{opening = Opening - 1, last_failure = Reason});
group_reported({closed, Closed}, _, #run{phase = running, groups = Groups} = Run) ->
    Pid = erlmcp_load_group:reopen(own(Run#run.settings), Closed),
    ok = start_group(Pid, Run),
    {noreply, Run#run{groups = Groups#{Pid => []}}};
group_reported({closed, _}, _, Run) ->
    {noreply, Run};
group_reported({finished, Course}, Pid, #run{groups = Groups, courses = Courses} = Run) ->
    over(Run#run{groups = maps:remove(Pid, Groups), courses = [Course | Courses]}).

%% The only program that was started is the server. One that is started after its end is not
%% watched: the figures of two processes do not add up.
watched(OsPid, #{server_os_pid := none, connections := 1} = Settings) ->
    Settings#{server_os_pid := OsPid};
watched(_, Settings) ->
    Settings.

opened(#run{settings = #{connections := Number, way := Way} = Settings} = Run) ->
    Groups = groups(Settings),
    Endpoints = fun(First) -> [erlmcp_load_target:endpoint(Of, Way)
                               || Of <- lists:seq(First, Number - 1, Groups)] end,
    Started = [erlmcp_load_group:start_link(own(Settings), Endpoints(First))
               || First <- lists:seq(0, Groups - 1)],
    Run#run{opening = Number, groups = #{Pid => [] || Pid <- Started}}.

%% The addresses are those of all connections, which may be thousands.
own(#{way := Way, callers := Callers} = Settings) ->
    Settings#{way := Way#{sources := [any]}, callers := part(Callers, groups(Settings))}.

part(all, _) -> all;
part(Callers, Groups) -> (Callers + Groups - 1) div Groups.

%% Each program has a connection of its own, and its end is waited for.
groups(#{way := #{connect := {stdio, _, _}}, connections := Number}) -> Number;
%% A group with many messages at once handles each cheaply. More groups than schedulers would have
%% fewer.
groups(#{connections := Number}) -> min(Number, erlang:system_info(schedulers_online)).

%% The starter waits for the outcome of the opening.
opening(#run{opening = 0, opened = 0, starter = none} = Run) ->
    {noreply, Run};
opening(#run{opening = 0, opened = 0, last_failure = Reason, starter = Starter} = Run) ->
    ok = gen_server:reply(Starter, {error, {open, Reason}}),
    {stop, shutdown, Run};
opening(#run{opening = 0} = Run) ->
    {noreply, running(Run)};
opening(Run) ->
    {noreply, Run}.

running(#run{settings = Settings, groups = Groups, starter = Starter} = Run) ->
    #{warmup_us := Warmup, duration_us := Duration, loop := Loop, percent := Percent} = Settings,
    Ready = erlmcp_load_sample:mark(Settings),
    Begin = now_us() + ?LEAD_US,
    From = Begin + Warmup,
    _ = case Loop of
        {open, Schedule} -> erlmcp_load_schedule:begins(Begin, Schedule);
        _ -> ok
    end,
    Running = Run#run{phase = running, begin_at = Begin, from = From, until = From + Duration,
                      ready = Ready},
    _ = [ok = start_group(Pid, Running) || Pid := _ <- Groups],
    _ = [gen_server:reply(Starter, ok) || Starter =/= none],
    case Percent of
        none -> timer(From, from, Running);
        _ -> timer(Begin + Warmup div 2, half, Running)
    end.

%% Until the capacity is known, a group does not know when measuring begins.
start_group(Pid, #run{settings = #{percent := Percent}, carried = none, begin_at = Begin})
  when Percent =/= none ->
    erlmcp_load_group:warm(Pid, Begin);
start_group(Pid, #run{begin_at = Begin, from = From, until = Until}) ->
    erlmcp_load_group:go(Pid, Begin, From, Until).

%% Measuring the capacity, and then the load.

timed(half, #run{settings = #{counts := Counts} = Settings, begin_at = Begin} = Run) ->
    #{warm := Warm, connections := Connections} = erlmcp_load_counts:all(Counts),
    #{warmup_us := Warmup} = Settings,
    Now = now_us(),
    %% Connections are used in turn.
    case Warm >= ?USED * Connections orelse Now - Begin > ?LONGEST_HALVES * Warmup div 2 of
        true -> {noreply, timer(Now + Warmup div 2, carried, Run#run{half = {Now, Warm}})};
        false -> {noreply, timer(Now + ?LOOK_US, half, Run)}
    end;
timed(carried, #run{half = {Half, Before}, settings = Settings, groups = Groups} = Run) ->
    #{counts := Counts, loop := {open, Schedule}, percent := Percent, duration_us := Duration} =
        Settings,
    #{warm := Warm} = erlmcp_load_counts:all(Counts),
    Now = now_us(),
    Carried = (Warm - Before) * 1_000_000 / max(1, Now - Half),
    From = Now + ?LEAD_US,
    ok = erlmcp_load_schedule:begins(max(1, Carried * Percent / 100), From, Schedule),
    Found = Run#run{begin_at = From, from = From, until = From + Duration, carried = Carried},
    _ = [ok = start_group(Pid, Found) || Pid := _ <- Groups],
    {noreply, timer(From, from, Found)};
timed(from, #run{settings = Settings, from = From} = Run) ->
    Mark = erlmcp_load_sample:mark(Settings),
    {noreply, next(From, Run#run{before = Mark, last = Mark})};
timed(second, Run) ->
    {noreply, next(now_us(), sampled(Run))};
timed(until, Run) ->
    {noreply, finishing(Run)};
timed(grace, Run) ->
    {stop, groups_do_not_end, Run}.

timer(At, Phase, Run) ->
    Run#run{timer = erlmcp_load_schedule:start_timer(At, Phase)}.

next(Now, #run{from = From, until = Until} = Run) ->
    Second = From + ((Now - From) div 1_000_000 + 1) * 1_000_000,
    case Second < Until of
        true -> timer(Second, second, Run);
        false -> timer(Until, until, Run)
    end.

sampled(#run{settings = #{on_second := OnSecond} = Settings, from = From, last = Last,
             samples = Samples} = Run) ->
    Mark = erlmcp_load_sample:mark(Settings),
    Sample = erlmcp_load_sample:between(Last, Mark, From),
    _ = OnSecond(Sample),
    Run#run{last = Mark, samples = [Sample | Samples]}.

finishing(#run{phase = running, before = none, settings = Settings} = Run) ->
    %% The load is stopped before the timer `from` came.
    #{at := Now} = Mark = erlmcp_load_sample:mark(Settings),
    finishing(Run#run{before = Mark, last = Mark, from = measured_from(Now, Run), until = Now});
finishing(#run{phase = running, settings = Settings, groups = Groups} = Run) ->
    %% A program ends with its connection, so it is sampled before that.
    Sampled = sampled(Run),
    _ = [ok = erlmcp_load_group:finish(Pid) || Pid := _ <- Groups],
    #{timeout_us := Timeout, connections := Connections} = Settings,
    %% A server that does not read may delay a group by a timeout on each of its connections.
    Delays = part(Connections, groups(Settings)),
    timer(now_us() + (1 + Delays) * Timeout + ?GRACE_MS * 1000, grace,
          Sampled#run{phase = finishing}).

%% The groups measure from `from` on, and do not wait for the timer. They measure nothing until the
%% capacity is known.
measured_from(Now, #run{settings = #{percent := Percent}, carried = none}) when Percent =/= none ->
    Now;
measured_from(Now, #run{from = From}) ->
    min(Now, From).

%% The end.

over(#run{groups = Groups} = Run) when map_size(Groups) > 0 ->
    {noreply, Run};
over(#run{settings = #{counts := Counts} = Settings, waiting = Waiting, from = From} = Run) ->
    Rest = remaining(erlmcp_load_course:new(erlmcp_load_plan:since(From, Settings)), Run),
    ok = erlmcp_load_counts:add(Counts, unsent, erlmcp_load_course:unsent(Rest)),
    Report = report(Rest, Run),
    _ = [gen_server:reply(Asked, Report) || Asked <- Waiting],
    case Waiting of
        %% All connections have ended, so the timer is not needed.
        [] -> {noreply, Run#run{phase = done, report = Report, timer = none}};
        _ -> {stop, normal, Run}
    end.

%% Adds the requests that were due and that no group has taken. None was due before the rate was
%% known.
remaining(None, #run{settings = #{loop := {open, Schedule}, percent := Percent}, carried = Carried,
                     from = From, until = Until}) when Percent =:= none; Carried =/= none ->
    erlmcp_load_schedule:fold_remaining(
        fun(Due, Course) when Due >= From ->
                erlmcp_load_course:ended(unsent, Due, Until, Course);
           (_, Course) ->
                Course
        end, None, Until, Schedule);
remaining(None, _) ->
    None.

report(Rest, #run{settings = Settings, before = Before, last = Last, samples = Samples,
                  courses = Courses, from = From, until = Until, opened = Opened,
                  started = Started, ready = Ready, carried = Carried}) ->
    erlmcp_load_report:new(#{
        settings => Settings, before => Before, until => Last,
        after_all => erlmcp_load_sample:mark(Settings), samples => lists:reverse(Samples),
        course => erlmcp_load_course:merge([Rest | Courses]), from_us => From, until_us => Until,
        opened => Opened, started => Started, ready => Ready, carried => Carried}).

now_us() ->
    erlang:monotonic_time(microsecond).
