-module(erlmcp_bench_scenario_run).
-moduledoc """
The process that runs a scenario. It starts and stops loads as the steps require, injects the faults
at their times, and reports events.
""".

-export([run/3]).

-export_type([event/0, fault/0, facts/0, load/0, scrape/0]).

-doc """
An event of a run.

- `started`: `metrics` are the URLs to scrape, the generator's first, and `nodes` is the number of
  our own nodes.
- `phase`: a phase begins. `clients` is the number of clients at its end.
- `second`: the figures of the last `span_ms` milliseconds. These are a second, or more if clients
  took long to connect. `clients` is the planned number, and `rate` the requests that they send
  together in a second.
- `fault`: see `t:fault/0`.
""".
-type event() ::
    #{event := started, metrics := [binary()], nodes := non_neg_integer(), duration_s := number()}
    | #{event := phase, phase := atom(), clients := pos_integer(), seconds := number()}
    | #{event := second, phase := atom(), clients := pos_integer(), rate := number(),
        elapsed_s := pos_integer(), duration_s := number(), span_ms := pos_integer(),
        connections := non_neg_integer(), sums := erlmcp_bench_scenario_sums:sums()}
    | fault().

-doc """
A fault that begins or ends. `extent` has the amounts that the injection reached, and `least` the
amounts that it must have reached. `not_run` is the reason why the fault was not injected.
""".
-type fault() :: #{
    event := fault, fault := atom(), state := begins | ends,
    extent => #{atom() => non_neg_integer()}, least => #{atom() => non_neg_integer()},
    not_run => term()
}.

-doc """
The facts at the end of a run: the figures of each step with the milliseconds that it took, and the
loads with their reports. A step takes longer than planned if its clients took long to connect.
`readings` are what the processes had used at each second, and `scrapes` the metrics at the end of
each phase. `outages` are the effects of each fault. `unopened` is the number of clients that could
not connect when they were started. `pauses` has the garbage collections of our own nodes in each
phase. Times are in monotonic microseconds.
""".
-type facts() :: #{
    steps := [{erlmcp_bench_scenario_plan:step(), erlmcp_bench_scenario_sums:sums(),
               TookMs :: non_neg_integer()}],
    loads := [{load(), erlmcp_load:report()}], nodes := non_neg_integer(),
    unopened := non_neg_integer(),
    readings := [erlmcp_bench_scenario_resources:reading()], scrapes := [scrape()],
    pauses := #{Phase :: atom() => erlmcp_bench_pauses:pauses()},
    faults := [fault()], outages := [erlmcp_bench_scenario_outages:outage()],
    began_us := integer(), ended_us := integer()
}.
-doc "A load, with the name of its node or URL, and its number of clients.".
-type load() :: #{load := binary(), node := binary(), clients := pos_integer()}.
-doc """
The metrics of the generator and the nodes at the end of a phase, at `at_us`. If a node did not
answer, those of all nodes are missing.
""".
-type scrape() :: #{phase := atom(), at_us := integer(),
                    families := [erlmcp_bench_prometheus:family()]}.

-record(run, {
    scenario :: erlmcp_bench_scenarios:scenario(),
    options :: map(),
    caller :: reference(),
    endpoints :: erlmcp_bench_scenario_endpoints:endpoints(),
    tally :: pid(),
    outages :: pid() | none,
    began_us :: integer(),
    %% monotonic milliseconds; `began` is later if clients took long to connect
    began :: integer(),
    next_second :: integer(),
    %% when the tally was last looked at, in monotonic milliseconds
    looked :: integer(),
    step = none :: none | erlmcp_bench_scenario_plan:step(),
    %% when each step has begun, in monotonic milliseconds, the newest first
    begins = [] :: [integer()],
    %% newest first
    groups = [] :: [erlmcp_bench_scenario_plan:group()],
    loads = #{} :: #{pos_integer() => {erlmcp_load:load(), load()}},
    started = 0 :: non_neg_integer(),
    clients = 0 :: non_neg_integer(),
    %% clients of loads that did not start
    unopened = 0 :: non_neg_integer(),
    stopping = [] :: [{pid(), reference(), load()}],
    readings = [] :: [erlmcp_bench_scenario_resources:reading()],
    scrapers = [] :: [{pid(), reference(), scrape()}],
    faults = [] :: [fault()]
}).

-define(SECOND, 1_000).
%% Milliseconds by which the end of a load may exceed its timeout.
-define(STOP_MS, 30_000).
%% Milliseconds for clients to connect to overloaded servers.
-define(OPENING_MS, 600_000).
%% Addresses of the clients of our own nodes. Each address is a separate client for a server, which
%% remembers 10,000.
-define(ADDRESSES, 5_000).
%% Requests in flight, of all clients and on one connection. Further due requests are sent later: an
%% overload must fill the server's queues and not the generator's.
-define(IN_FLIGHT, 65_536).
-define(OF_ONE, 32).

-doc """
Runs a scenario to its end in the calling process, which exits if the process `Caller` ends.
`Options` are those of `erlmcp_bench_scenario:run/2` with all defaults, and `name`, which names the
listener of the metrics. This listener stays until `erlmcp_bench_scrape:stop/1` is called with the
`name`. The loads and nodes of a failed run end with the calling process. The error is
`{node, Reason}`, `{load, Reason}` or `{metrics, Reason}`.
""".
-spec run(erlmcp_bench_scenarios:scenario(), Options :: map(), Caller :: pid()) ->
    {ok, erlmcp_bench_scenario_outcome:outcome()} | {error, term()}.
run(Scenario, #{duration_s := DurationS} = Options, Caller) ->
    %% Steps and faults come on time, however busy the loads are.
    _ = process_flag(priority, high),
    Steps = erlmcp_bench_scenario_plan:steps(Scenario, Options),
    {ok, Tally} = erlmcp_bench_scenario_tally:start_link(),
    maybe
        {ok, Metrics} ?= published(Tally, Options),
        {ok, Endpoints} ?= erlmcp_bench_scenario_endpoints:open(Scenario, Options),
        ok = tell(#{event => started, duration_s => DurationS,
                    metrics => Metrics ++ erlmcp_bench_scenario_endpoints:metrics(Endpoints),
                    nodes => erlmcp_bench_scenario_endpoints:nodes(Endpoints)}, Options),
        BeganUs = erlang:monotonic_time(microsecond),
        Now = erlang:convert_time_unit(BeganUs, microsecond, millisecond),
        {ok, Run} ?= crowded(#run{scenario = Scenario, options = Options, endpoints = Endpoints,
                                  caller = monitor(process, Caller), tally = Tally,
                                  outages = outages(Scenario), began_us = BeganUs, began = Now,
                                  next_second = Now + ?SECOND, looked = Now}),
        {ok, Last} ?= followed(timeline(Scenario, Steps), Run),
        Facts = finished(Steps, Last),
        ok = erlmcp_bench_scenario_endpoints:close(Endpoints),
        {ok, erlmcp_bench_scenario_outcome:new(Scenario, Options, Facts)}
    end.

published(Tally, #{metrics := Port, name := Name}) ->
    case erlmcp_bench_scrape:start(Name, Port,
                                   fun() -> erlmcp_bench_scenario_tally:families(Tally) end) of
        {ok, Bound} -> {ok, [erlmcp_bench_scrape:url(Bound)]};
        {error, Reason} -> {error, {metrics, Reason}}
    end;
published(_, _) ->
    {ok, []}.

outages(#{faults := []}) ->
    none;
outages(_) ->
    {ok, Outages} = erlmcp_bench_scenario_outages:start_link(),
    Outages.

tell(Event, #{on_event := Fun}) ->
    _ = Fun(Event),
    ok.

%% A fault at the beginning of a step follows the step.
timeline(Scenario, Steps) ->
    Begins = [{Ms, {step, Index, Step}}
              || {Index, #{from_ms := Ms} = Step} <- lists:enumerate(Steps)],
    #{until_ms := End} = lists:last(Steps),
    lists:keysort(1, Begins ++ fault_times(Scenario, Steps))
        ++ [{End, finish}].

followed([{Ms, Action} | Rest], #run{began = Began} = Run) ->
    Waited = waited(Began + Ms, Run),
    case acted(Action, Waited) of
        {ok, Next} when Rest =:= [] -> {ok, Next};
        {ok, Next} -> followed(Rest, Next);
        {error, _} = Error -> Error
    end.

%% Waits until a time, and reports each second meanwhile.
waited(Until, #run{next_second = Second} = Run) when Second =< Until ->
    ok = paused(Second, Run),
    waited(Until, report_second(Run));
waited(Until, Run) ->
    ok = paused(Until, Run),
    Run.

paused(Until, #run{caller = Caller}) ->
    receive
        {'DOWN', Caller, process, _, _} -> exit(nobody_waits)
    after max(0, Until - erlang:monotonic_time(millisecond)) -> ok
    end.

report_second(#run{step = Step, began = Began, next_second = Second, tally = Tally,
                 looked = Looked, options = #{duration_s := DurationS} = Options} = Run) ->
    #{phase := Phase, clients := Clients, rate := Rate} = Step,
    {Look, Bytes} = erlmcp_bench_scenario_tally:look(Tally),
    Now = erlang:monotonic_time(millisecond),
    Read = read(Phase, Bytes, Run),
    ok = missed(Look, Run),
    ok = tell(Look#{event => second, phase => Phase, clients => Clients, rate => Clients * Rate,
                    elapsed_s => (Second - Began) div ?SECOND, duration_s => DurationS,
                    span_ms => max(1, Now - Looked)}, Options),
    Read#run{next_second = Second + ?SECOND, looked = Now}.

%% Reads the resources that each process has used until now.
read(Phase, Bytes, #run{endpoints = Endpoints, readings = Readings} = Run) ->
    Servers = erlmcp_bench_scenario_endpoints:processes(Endpoints),
    Reading = erlmcp_bench_scenario_resources:read(
        Phase, [{~"generator", erlmcp_bench_process:self()} | Servers],
        maps:merge(#{Name => {0, 0} || {Name, _} <- Servers}, Bytes)),
    Run#run{readings = [Reading | Readings]}.

missed(#{connections := Open}, #run{outages = Outages, groups = Groups} = Run) ->
    case lists:sum([Clients || {_, Clients, _} <- Groups]) + crowd(Run) of
        Clients when Clients > Open, Outages =/= none ->
            erlmcp_bench_scenario_outages:missing(Outages, erlang:monotonic_time(microsecond));
        _ ->
            ok
    end.

acted({step, Index, #{phase := Phase} = Step},
      #run{step = Former, begins = Begins, options = Options} = Run) ->
    ok = erlmcp_bench_scenario_tally:step(Run#run.tally, Index),
    Begin = erlang:monotonic_time(millisecond),
    Begun = Run#run{begins = [Begin | Begins]},
    Next = case Former of
        #{phase := Phase} ->
            Begun;
        _ ->
            ok = tell(phase(Step, Run), Options),
            phase_ended(Former, Begun)
    end,
    maybe
        %% Later actions wait until the step's clients have connected: a peak is not shorter if
        %% overloaded servers delay them.
        {ok, Changed} ?= changed(Step, Next#run{step = Step}),
        {ok, later(Begin, Changed)}
    end;
acted(finish, #run{step = Last} = Run) ->
    {ok, phase_ended(Last, Run)};
acted(Fault, #run{endpoints = Endpoints, outages = Outages, faults = Faults} = Run) ->
    Event = act(Fault, crowd(Run), #{endpoints => Endpoints, outages => Outages}),
    ok = tell(Event, Run#run.options),
    {ok, Run#run{faults = [Event | Faults]}}.

%% Everything that is to come is later by the time since `Begin`.
later(Begin, #run{began = Began, next_second = Second} = Run) ->
    Took = erlang:monotonic_time(millisecond) - Begin,
    Run#run{began = Began + Took, next_second = Second + Took}.

%% When each fault begins and ends, in milliseconds from the first step.
fault_times(#{faults := Faults}, Steps) ->
    Peak = [Step || #{phase := peak} = Step <- Steps],
    From = lists:min([Ms || #{from_ms := Ms} <- Peak]),
    Until = lists:max([Ms || #{until_ms := Ms} <- Peak]),
    [{From + round(Part * (Until - From)), Action}
     || Fault <- Faults, {Part, Action} <- actions(Fault)].

actions({add_latency, From, To, _} = Fault) -> [{From, {begins, Fault}}, {To, {ends, Fault}}];
actions({_, At, _} = Fault) -> [{At, {begins, Fault}}].

%% Begins or ends a fault. `Crowd` is the number of clients in the crowd.
act({begins, {add_latency, _, _, #{milliseconds := Milliseconds}}}, _,
    #{endpoints := Endpoints} = Run) ->
    Now = erlang:monotonic_time(microsecond),
    case erlmcp_bench_scenario_endpoints:add_latency(Endpoints, Milliseconds) of
        ok ->
            ok = begins(add_latency, Now, Run),
            begun(add_latency, #{added_ms => Milliseconds}, #{});
        {not_run, Reason} ->
            (fault_event(add_latency, begins))#{not_run => Reason}
    end;
act({ends, {add_latency, _, _, _}}, _, #{endpoints := Endpoints}) ->
    ok = erlmcp_bench_scenario_endpoints:remove_latency(Endpoints),
    fault_event(add_latency, ends);
act({begins, {drop_clients, _, _}}, Crowd, #{endpoints := Endpoints} = Run) ->
    ok = begins(drop_clients, erlang:monotonic_time(microsecond), Run),
    Dropped = erlmcp_bench_scenario_endpoints:drop(Endpoints, Crowd),
    %% A client that is just connecting again has no connection to lose.
    begun(drop_clients, #{clients => Dropped}, #{clients => Crowd * 9 div 10});
act({begins, {kill_node, _, _}}, _, #{endpoints := Endpoints} = Run) ->
    ok = begins(kill_node, erlang:monotonic_time(microsecond), Run),
    Ended = case erlmcp_bench_scenario_endpoints:kill(Endpoints) of
        true -> 1;
        false -> 0
    end,
    begun(kill_node, #{nodes => Ended}, #{nodes => 1}).

begins(Fault, AtUs, #{outages := Outages}) ->
    erlmcp_bench_scenario_outages:begins(Outages, Fault, AtUs).

begun(Fault, Extent, Least) ->
    (fault_event(Fault, begins))#{extent => Extent, least => Least}.

fault_event(Fault, State) ->
    #{event => fault, fault => Fault, state => State}.

phase(#{phase := Name}, #run{scenario = Scenario, options = Options}) ->
    Of = [Step || #{phase := Phase} = Step <- erlmcp_bench_scenario_plan:steps(Scenario, Options),
                  Phase =:= Name],
    #{from_ms := From} = hd(Of),
    #{until_ms := Until, clients := Clients} = lists:last(Of),
    #{event => phase, phase => Name, clients => Clients, seconds => (Until - From) / ?SECOND}.

%% A separate process waits for the figures of the nodes, which may be busy or restart.
phase_ended(none, #run{endpoints = Endpoints, tally = Tally} = Run) ->
    %% The collections of the first phase begin now.
    _ = erlmcp_bench_scenario_endpoints:pauses(Endpoints),
    read(start, erlmcp_bench_scenario_tally:bytes(Tally), Run);
phase_ended(#{phase := Phase}, #run{endpoints = Endpoints, tally = Tally} = Run) ->
    #run{scrapers = Scrapers} = Read =
        read(Phase, erlmcp_bench_scenario_tally:bytes(Tally), Run),
    Scrape = #{phase => Phase, at_us => erlang:monotonic_time(microsecond),
               families => erlmcp_bench_prometheus:labelled(
                               {~"instance", ~"generator"},
                               erlmcp_bench_scenario_tally:families(Tally))},
    Self = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        Pauses = erlmcp_bench_scenario_endpoints:pauses(Endpoints),
        Self ! {self(), Pauses, erlmcp_bench_scenario_endpoints:families(Endpoints)}
    end),
    Read#run{scrapers = [{Pid, Monitor, Scrape} | Scrapers]}.

scraped({Pid, Monitor, #{families := OfGenerator} = Scrape}) ->
    receive
        {Pid, Pauses, OfNodes} ->
            true = demonitor(Monitor, [flush]),
            {Scrape#{families := OfGenerator ++ OfNodes}, Pauses};
        {'DOWN', Monitor, process, Pid, _} ->
            {Scrape, none}
    end.

%% The clients.

crowded(#run{scenario = #{crowd := #{rate := Rate, bytes := Bytes}}} = Run) ->
    Endpoints = erlmcp_bench_scenario_endpoints:crowd(Run#run.endpoints),
    Begin = erlang:monotonic_time(millisecond),
    %% The crowd stays to the end, so it is in no group that a step may stop.
    case started(erlmcp_bench_scenario_plan:split(crowd(Run), Endpoints), Rate, Bytes, Run) of
        {ok, Crowded} -> {ok, later(Begin, Crowded#run{groups = []})};
        {error, _} = Error -> Error
    end;
crowded(Run) ->
    {ok, Run}.

crowd(#run{scenario = #{crowd := #{clients := Clients}}, options = #{scale := Scale}}) ->
    max(1, round(Clients * Scale));
crowd(_) ->
    0.

changed(#{clients := Clients, rate := Rate, bytes := Bytes}, #run{groups = Groups} = Run) ->
    {Stopped, Kept, More} = erlmcp_bench_scenario_plan:change(Groups, Clients, Rate),
    _ = [begin
             #{Id := {Load, _}} = Run#run.loads,
             ok = erlmcp_load:set_rate(Load, Size * Rate)
         end || {Id, Size, _} <- Kept -- Groups],
    Fewer = lists:foldl(fun stopping/2, Run#run{groups = Kept}, Stopped),
    Endpoints = erlmcp_bench_scenario_endpoints:clients(Run#run.endpoints),
    %% With fewer clients than endpoints, the first endpoints are not always chosen.
    {Late, Early} = lists:split(Run#run.started rem length(Endpoints), Endpoints),
    started(erlmcp_bench_scenario_plan:split(More, Early ++ Late), Rate, Bytes, Fewer).

%% All connect at the same time, since each may have to wait for overloaded servers.
started(Parts, Rate, Bytes, #run{started = Number, clients = Clients} = Run) ->
    {Plans, Later} = lists:mapfoldl(fun({Endpoint, More}, Before) ->
        {plan(Endpoint, More, Rate, Bytes, Run#run{clients = Before}), Before + More}
    end, Clients, Parts),
    Loads = lists:zip3(lists:seq(Number + 1, Number + length(Parts)), Parts,
                       erlmcp_load:start_all(Plans)),
    added(Loads, Rate, Run#run{started = Number + length(Parts), clients = Later}).

added([], _, Run) ->
    {ok, Run};
added([{Id, {#{name := Name}, Clients}, {ok, Load}} | Rest], Rate, Run) ->
    #run{groups = Groups, loads = Loads} = Run,
    ok = erlmcp_bench_scenario_tally:started(Run#run.tally, Id, Name, Load),
    Info = #{load => <<"load_", (integer_to_binary(Id))/binary>>, node => Name,
             clients => Clients},
    added(Rest, Rate, Run#run{groups = [{Id, Clients, Rate} | Groups],
                              loads = Loads#{Id => {Load, Info}}});
%% Later clients that cannot connect are a figure of the scenario.
added([{_, {_, Clients}, {error, {open, _}}} | Rest], Rate,
      #run{loads = Loads, unopened = Unopened} = Run) when map_size(Loads) > 0 ->
    added(Rest, Rate, Run#run{unopened = Unopened + Clients});
added([{_, _, {error, Reason}} | _], _, _) ->
    {error, {load, Reason}}.

plan(Endpoint, Clients, Rate, Bytes, Run) ->
    #run{options = #{timeout_ms := TimeoutMs, duration_s := DurationS, scale := Scale} = Options,
         scenario = Scenario, outages = Outages} = Run,
    All = erlmcp_bench_scenario_plan:clients(Scenario, Scale) + crowd(Run),
    Plan = #{connections => Clients, loop => {open, Clients * Rate, poisson},
             in_flight => in_flight(Endpoint, All),
             payload_bytes => Bytes, timeout_ms => TimeoutMs, warmup_ms => 0,
             since => Run#run.began_us,
             %% The load is stopped earlier, even if connecting takes long.
             duration_ms => 10 * ceil(DurationS * ?SECOND) + ?OPENING_MS},
    Way = maps:remove(name, Endpoint),
    maps:merge(maps:merge(maps:merge(Plan, Way), maps:with([requests, era, headers], Options)),
               maps:from_list([{observer, Outages} || Outages =/= none] ++ sources(Clients, Run))).

%% On HTTP/1.1 requests wait for each other in any case.
in_flight(#{protocol := http1}, _) -> 1;
in_flight(_, Clients) -> max(1, min(?OF_ONE, ?IN_FLIGHT div Clients)).

sources(_, #run{options = #{urls := _}}) ->
    [];
sources(Clients, #run{clients = Before}) ->
    [{sources, [{127, 1, Number div 250, Number rem 250 + 1}
                || Client <- lists:seq(Before, Before + min(Clients, ?ADDRESSES) - 1),
                   Number <- [Client rem ?ADDRESSES]]}].

%% A separate process waits for the load's outstanding answers.
stopping({Id, _, _}, #run{loads = Loads, tally = Tally, stopping = Stopping} = Run) ->
    {{Load, Info}, Others} = maps:take(Id, Loads),
    ok = erlmcp_bench_scenario_tally:stopping(Tally, Id),
    Self = self(),
    {Pid, Monitor} = spawn_monitor(fun() ->
        Report = erlmcp_load:stop(Load),
        ok = erlmcp_bench_scenario_tally:ended(Tally, Id, Report),
        Self ! {self(), Report}
    end),
    Run#run{loads = Others, stopping = [{Pid, Monitor, Info} | Stopping]}.

finished(Steps, #run{loads = Loads, faults = Faults, outages = Outages, begins = Begins} = Run) ->
    EndedUs = erlang:monotonic_time(microsecond),
    Ended = erlang:convert_time_unit(EndedUs, microsecond, millisecond),
    [_ | Ends] = lists:reverse([Ended | Begins]),
    #run{stopping = Stopping, options = #{timeout_ms := TimeoutMs}, tally = Tally} =
        lists:foldl(fun stopping/2, Run, [{Id, 0, 0.0} || Id <- maps:keys(Loads)]),
    Deadline = erlang:monotonic_time(millisecond) + TimeoutMs + ?STOP_MS,
    Reported = [{Info, await_report(Pid, Monitor, Deadline)} || {Pid, Monitor, Info} <- Stopping],
    OfSteps = erlmcp_bench_scenario_tally:steps(Tally),
    Scraped = [scraped(Scraper) || Scraper <- lists:reverse(Run#run.scrapers)],
    #{steps => [{Step, maps:get(Index, OfSteps, erlmcp_bench_scenario_sums:none()), End - Begin}
                || {{Index, Step}, Begin, End}
                       <- lists:zip3(lists:enumerate(Steps), lists:reverse(Begins), Ends)],
      loads => lists:reverse(Reported),
      unopened => lists:sum([Run#run.unopened | [Clients - Opened || {#{clients := Clients},
                                                                      #{opened := Opened}}
                                                                         <- Reported]]),
      nodes => erlmcp_bench_scenario_endpoints:nodes(Run#run.endpoints),
      readings => lists:reverse(Run#run.readings),
      scrapes => [Scrape || {Scrape, _} <- Scraped],
      pauses => #{Phase => Pauses || {#{phase := Phase}, Pauses} <- Scraped, Pauses =/= none},
      faults => lists:reverse(Faults), outages => outages_of(Outages),
      began_us => Run#run.began_us, ended_us => EndedUs}.

await_report(Pid, Monitor, Deadline) ->
    receive
        {Pid, Report} ->
            true = demonitor(Monitor, [flush]),
            Report;
        {'DOWN', Monitor, process, Pid, Reason} -> exit({load, Reason})
    after max(0, Deadline - erlang:monotonic_time(millisecond)) -> exit({load, still_running})
    end.

outages_of(none) -> [];
outages_of(Outages) -> erlmcp_bench_scenario_outages:report(Outages).
