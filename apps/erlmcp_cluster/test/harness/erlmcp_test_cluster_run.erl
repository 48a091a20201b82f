-module(erlmcp_test_cluster_run).
-moduledoc """
Harms a cluster under load, and judges what its clients have seen (`make test-cluster`). The nodes
and HAProxy are programs of their own, on machines of one network. The clients, the load and the
judges are in this node, which is another machine of that network.

At the end, faults are planted in the cluster's code, which the judges must find.
""".

-compile(nowarn_missing_spec_documented).

-export([main/0]).

%% `rate` is in requests a second. A fault names the machine that it harms, and milliseconds.
-define(PLANS, #{
    short => #{
        nodes => 3, rate => 300,
        faults => [conformance, {quiet, 5_000},
                   {kill, 1}, {kill, 2}, {kill, 3}, {kill, 1}, {kill, 2},
                   {stop, 3, 3_000}, {cut, 1, 4_000}, {cut_one_way, 2, 4_000}, {clock, 3, 4_000},
                   {rolling, 1}],
        planted => [{ignores_lease, {cut, 1, 4_000}}, {forgets_delete, {kill, 3}},
                    {no_compare_and_swap, {stop, 2, 4_000}}]},
    long => #{
        nodes => 8, rate => 1_000,
        faults => [conformance, {quiet, 60_000}]
            ++ [{kill, Number rem 8 + 1} || Number <- lists:seq(1, 20)]
            ++ [{stop, 3, 30_000}, {cut, 1, 30_000}, {cut_one_way, 2, 30_000},
                {disk_full, 4, 30_000}, {clock, 5, 180_000}, {clock_at_start, 6, 90_000},
                {rolling, 600_000}],
        planted => [{ignores_lease, {cut, 1, 10_000}}, {ignores_lease, {stop, 2, 30_000}},
                    {forgets_delete, {kill, 3}}, {no_compare_and_swap, {stop, 4, 30_000}}]}}).

%% The most that the verdicts accept. Those in milliseconds are longer by the longest pause that the
%% machine made during the fault. What a pause excuses is three seconds of requests at most.
-define(SERVICE_MS, 2_000).
-define(ERRORS_PERCENT, 0.5).
-define(EXCUSED_PERCENT, 5).
-define(REFUSED_MS, 1_500).

%% The nodes left have full service long before this.
-define(KILLED_MS, 4_000).
%% The most kills of a node for one verdict.
-define(KILLS, 3).
%% By how many seconds a clock is wrong, and for how many milliseconds a node with such a clock
%% tries to join at first.
-define(WRONG_S, 3_600).
-define(APART_MS, 10_000).
%% Between two looks at the proxy.
-define(LOOK_MS, 250).
%% A session has its new home long before this.
-define(DELETE_BEFORE_MS, 500).
%% For each node, the tasks that end while one node stands still or is cut off. Some of them are on
%% that node.
-define(TASKS, 8).
%% Milliseconds in which calls and tasks may end before a node stops. Kept tasks do not.
-define(DRAIN_MS, 3_000).
%% For each node, the sessions that clients have ended, and the tasks that they have cancelled,
%% before a fault that is to be found. Some of them are on the node that it harms.
-define(ENDED, 25).
%% Until a cluster is whole again.
-define(WHOLE_MS, 60_000).
%% The store of a node has a disk of its own.
-define(DISK_BYTES, 134_217_728).
-define(DIST_PORT, 4370).
%% Of the two servers of a node.
-define(PORT, 8080).
-define(CONFORMANCE_PORT, 8081).
%% Histories for a comparison of the checkers, in addition to those of the run.
-define(EXAMPLES, 2_000).
%% Of what is impossible, and of errors.
-define(SHOWN, 5).
-define(ERRORS_SHOWN, 20).

main() ->
    [Form, Changes, Folder, Haproxy, Porcupine, Json] = init:get_plain_arguments(),
    ok = logger:set_primary_config(level, error),
    {ok, _} = application:ensure_all_started([gun, erlmcp]),
    #{faults := Faults, planted := Planted} = Plan =
        maps:merge(map_get(list_to_existing_atom(Form), ?PLANS), term(Changes)),
    Network = network(Plan#{folder => Folder, haproxy => Haproxy,
                            pauses => erlmcp_test_pauses:start()}),
    {Verdicts, Operations} = harmed(Faults, started(none, Network)),
    Found = [is_found(Fault, Harm, Network) || {Fault, Harm} <- Planted],
    All = erlmcp_test_cluster_verdict:worst(Verdicts) ++ Found
        ++ checkers(Porcupine, Folder, Operations),
    ok = file:write_file(Json, erlmcp_bench_json:lines(
        #{form => list_to_binary(Form), seconds => since_start(), verdicts => All,
          plan => maps:with([nodes, rate], Plan),
          environment => erlmcp_bench_environment:read()})),
    lists:foreach(fun show/1, All),
    Passed = length([passed || #{passed := true} <- All]),
    io:format("~b passed, ~b failed~n", [Passed, length(All) - Passed]),
    halt(case Passed =:= length(All) of true -> 0; false -> 1 end).

term(Text) ->
    {ok, Tokens, _} = erl_scan:string(Text ++ "."),
    {ok, Term} = erl_parse:parse_term(Tokens),
    Term.

show(#{scenario := Scenario, figure := Figure, measured := Measured, passed := Passed} = Verdict) ->
    io:format("~ts - ~ts: ~ts ~w ~0p~n",
              [case Passed of true -> "ok"; false -> "not ok" end, Scenario, Figure, Measured,
               maps:to_list(maps:with([at_most, at_least, times], Verdict))]).

%% Machines, nodes, clients.

network(#{nodes := Count, folder := Folder, haproxy := Haproxy} = Plan) ->
    ok = erlmcp_test_cluster_network:start(Count),
    Disks = maps:from_list([begin
                                {ok, Disk} = erlmcp_chaos_tmpfs:start(?DISK_BYTES),
                                {Machine, Disk}
                            end || Machine <- lists:seq(1, Count)]),
    Servers = [{name(Machine), erlmcp_test_cluster_network:address(Machine)}
               || Machine <- lists:seq(1, Count)],
    [Proxy, _] = [erlmcp_test_cluster_proxy:start(Haproxy, Port, Servers, Folder)
                  || Port <- [?PORT, ?CONFORMANCE_PORT]],
    Plan#{disks => Disks, proxy => Proxy}.

url(Address, Port) ->
    iolist_to_binary(["http://", Address, $:, integer_to_list(Port), "/mcp"]).

name(Machine) ->
    "node" ++ integer_to_list(Machine).

started(Planted, #{nodes := Count, folder := Folder, rate := Rate} = Network) ->
    Machines = lists:seq(1, Count),
    Nodes = [list_to_atom("mcp@" ++ erlmcp_test_cluster_network:address(Machine))
             || Machine <- Machines],
    Members = parallel([fun() -> booted(Machine, Nodes, Network) end || Machine <- Machines]),
    _ = [ok = erlmcp_test_cluster:call(Member, erlmcp_test_cluster_planted, install, [Planted])
         || Planted =/= none, Member <- Members],
    ok = in_service(Members, Folder),
    Run = Network#{members => maps:from_list(lists:zip(Machines, Members))},
    _ = whole(Run),
    Url = url("127.0.0.1", ?PORT),
    Run#{clients => erlmcp_test_cluster_clients:start(Url),
         watchers => erlmcp_test_cluster_watchers:start(Url),
         load => erlmcp_test_cluster_load:start(Url, Rate)}.

booted(Machine, Nodes, #{folder := Folder, disks := Disks} = Plan) ->
    Erl = filename:join([code:root_dir(), "bin", "erl"]),
    Address = erlmcp_test_cluster_network:address(Machine),
    %% Without its filters, which drop what Ra says of its elections.
    Log = [{handler, default, logger_std_h,
            #{filters => [], config => #{file => filename:join(Folder, name(Machine) ++ ".log")}}}],
    at_full_share(erlmcp_test_cluster:boot(
        (clock(Machine, Plan))#{
          machine => Machine, address => Address, port => ?DIST_PORT,
          args => ["-kernel", "logger", lists:flatten(io_lib:format("~0p", [Log]))],
          exec => erlmcp_test_cluster_network:command(
                      Machine, ["nice", "-n", "10", Erl, "-boot", "no_dot_erlang"]),
          options => #{discovery => {seeds, Nodes}, secret => {env, "ERLMCP_TEST_SECRET"},
                       data_dir => data(map_get(Machine, Disks))}})).

revived(Member) ->
    at_full_share(erlmcp_test_cluster:revive(Member)).

%% A program that starts takes the time that the others leave. On machines of their own, it would
%% take none of theirs. From now on the node has the same share as each of them.
at_full_share(#{os_pid := Pid} = Member) ->
    {ok, Threads} = file:list_dir("/proc/" ++ Pid ++ "/task"),
    {ok, _} = erlmcp_chaos_program:run("renice", ["-n", "0", "-p" | Threads]),
    Member.

%% A clock of its own, only where it is needed: such a clock takes longer to read.
clock(Machine, #{faults := Faults, folder := Folder}) ->
    Clocks = [Fault || {Fault, Of, _} <- Faults, Of =:= Machine,
                       Fault =:= clock orelse Fault =:= clock_at_start],
    #{clock => filename:join(Folder, name(Machine) ++ ".clock") || Clocks =/= []}.

data(Disk) ->
    filename:join(erlmcp_chaos_tmpfs:folder(Disk), "data").

in_service(Members, Folder) ->
    Joined = erlmcp_test_cluster:join(Members),
    [] = [Error || Error <- Joined, Error =/= ok],
    serving(Members, Folder).

serving(Members, Folder) ->
    lists:foreach(fun(#{machine := Machine, address := Address} = Member) ->
        ok = erlmcp_test_cluster:call(Member, logger, set_primary_config, [level, notice]),
        ok = erlmcp_test_cluster:call(
            Member, erlmcp_test_cluster_server, start,
            [Address, lines_of(Machine, Folder), #{cluster => erlmcp_cluster}], 30_000)
    end, Members).

lines_of(Machine, Folder) ->
    filename:join(Folder, name(Machine) ++ ".lines").

parallel(Funs) ->
    Callers = [spawn_monitor(fun() -> exit({ok, Fun()}) end) || Fun <- Funs],
    [receive {'DOWN', Monitor, process, Pid, {ok, Value}} -> Value end
     || {Pid, Monitor} <- Callers].

%% Waits until all nodes see all, and the proxy sends requests to all.
whole(#{members := Members, proxy := Proxy}) ->
    {_, Took} = erlmcp_test_cluster:await(
        fun() ->
            length(erlmcp_test_cluster_proxy:up(Proxy)) =:= map_size(Members)
                andalso all_see_all(maps:values(Members))
        end, ?WHOLE_MS),
    Took.

all_see_all(Members) ->
    Expected = lists:sort([Node || #{node := Node} <- Members]),
    lists:all(fun(Member) ->
                  case erlmcp_test_cluster:call(Member, erlmcp_cluster, status, []) of
                      {ok, #{alive := Alive, lease_ms := Left}} ->
                          Left > 0 andalso lists:sort(maps:values(Alive)) =:= Expected;
                      {error, not_joined} ->
                          false
                  end
              end, Members).

%% What is left of the cluster must not be found by the next one.
stopped(#{members := Members, disks := Disks, folder := Folder}) ->
    lists:foreach(fun erlmcp_test_cluster:stop/1, maps:values(Members)),
    lists:foreach(fun(Machine) -> file:delete(lines_of(Machine, Folder)) end, maps:keys(Members)),
    lists:foreach(fun(Disk) -> ok = file:del_dir_r(data(Disk)) end, maps:values(Disks)).

%% Faults: each has its verdicts, and leaves the cluster whole.

harmed(Faults, Run) ->
    {Verdicts, #{clients := Clients, watchers := Watchers, load := Load} = Last} = lists:mapfoldl(
        fun(Fault, Each) ->
            say("~0p", [Fault]),
            fault(Fault, Each)
        end, Run, Faults),
    ok = erlmcp_test_cluster_clients:stop(Clients),
    ok = erlmcp_test_cluster_watchers:stop(Watchers),
    ok = erlmcp_test_cluster_load:stop(Load),
    Operations = erlmcp_test_cluster_clients:operations(Clients),
    Seen = seen(Operations, Last),
    ok = stopped(Last),
    {lists:append(Verdicts) ++ Seen, Operations}.

fault(conformance, Run) ->
    {conformance(), Run};
fault({quiet, Milliseconds}, Run) ->
    Began = now_us(),
    receive after Milliseconds -> ok end,
    {unfailing(~"no fault", Began, Run), Run};
fault({ended, Count}, #{clients := Clients} = Run) ->
    {_, Took} = erlmcp_test_cluster:await(fun() -> have_ended(Count, Clients) end, ?WHOLE_MS),
    say("clients have ended ~b sessions and ~b tasks after ~b ms", [Count, Count, Took]),
    {[], Run};
fault({kill, Machine}, Run) ->
    killed(Machine, ?KILLS, Run);
fault({stop, Machine, Milliseconds}, #{members := Members} = Run) ->
    #{Machine := Member} = Members,
    {_, Verdicts} = fenced(~"SIGSTOP", Machine, Milliseconds, Run,
                           fun() -> erlmcp_test_cluster:pause(Member) end,
                           fun() -> erlmcp_test_cluster:resume(Member) end),
    {Verdicts, Run};
fault({cut, Machine, Milliseconds}, Run) ->
    {cut_off(~"cut off", Machine, Milliseconds, both, Run), Run};
fault({cut_one_way, Machine, Milliseconds}, Run) ->
    {cut_off(~"cut off in one direction", Machine, Milliseconds, one_way, Run), Run};
fault({disk_full, Machine, Milliseconds}, #{disks := Disks} = Run) ->
    #{Machine := Disk} = Disks,
    ok = erlmcp_chaos_tmpfs:fill(Disk),
    receive after Milliseconds -> ok end,
    Verdicts = swept(~"disk full", Run),
    ok = erlmcp_chaos_tmpfs:free(Disk),
    Took = whole(Run),
    say("whole again after ~b ms", [Took]),
    {Verdicts, Run};
fault({clock, Machine, Milliseconds}, Run) ->
    Began = now_us(),
    [begin
         ok = set_clock(Machine, Seconds, Run),
         receive after Milliseconds div 2 -> ok end,
         %% It compares its clock with others each ten seconds.
         say("the node says ~0p", [clock_report(Machine, Run)])
     end || Seconds <- [?WRONG_S, -?WRONG_S]],
    ok = set_clock(Machine, 0, Run),
    {unfailing(~"clock jumps", Began, Run) ++ swept(~"clock jumps", Run), Run};
fault({clock_at_start, Machine, Milliseconds}, Run) ->
    Began = now_us(),
    {Ready, Last} = with_wrong_clock(Machine, Milliseconds, Run),
    {[erlmcp_test_cluster_verdict:at_most(~"clock wrong at the start", ~"times_ready", Ready, 0)
      | unfailing(~"clock wrong at the start", Began, Last)
            ++ swept(~"clock wrong at the start", Last)], Last};
fault({rolling, Milliseconds}, Run) ->
    Began = now_us(),
    Rolled = rolled(Began + 1_000 * Milliseconds, Run),
    {unfailing(~"rolling restart", Began, Rolled) ++ swept(~"rolling restart", Rolled), Rolled}.

%% A long pause of the machine near a kill would excuse whatever the cluster does, so the node is
%% killed once more. What is lost counts in any case.
killed(Machine, Kills, #{members := Members, pauses := Pauses} = Run) ->
    #{Machine := Member} = Members,
    Began = now_us(),
    ok = erlmcp_test_cluster:kill(Member),
    Killed = now_us(),
    receive after ?KILLED_MS -> ok end,
    Until = now_us(),
    Served = served(Began, Killed, Until, Run),
    Swept = swept(~"kill -9", Run),
    Back = back(Machine, Member, Run),
    IsDisturbed = erlmcp_test_cluster_verdict:is_disturbed(Began, Until,
                                                           erlmcp_test_pauses:pauses(Pauses)),
    case IsDisturbed andalso Kills > 1 of
        true ->
            say("the machine stood still, so the kill is repeated", []),
            {Verdicts, Last} = killed(Machine, Kills - 1, Back),
            {Swept ++ Verdicts, Last};
        false ->
            {Served ++ Swept, Back}
    end.

have_ended(Count, Clients) ->
    Ended = [Do || #{do := Do, result := ok} <- erlmcp_test_cluster_clients:operations(Clients)],
    lists:all(fun(How) -> length([Do || Do <- Ended, Do =:= How]) >= Count end, [delete, cancel]).

back(Machine, Member, #{members := Members, folder := Folder} = Run) ->
    Back = revived(Member),
    ok = in_service([Back], Folder),
    Whole = Run#{members := Members#{Machine := Back}},
    _ = whole(Whole),
    Whole.

rolled(Until, #{members := Members} = Run) ->
    Rolled = lists:foldl(fun restarted/2, Run, lists:sort(maps:keys(Members))),
    case now_us() < Until of
        true -> rolled(Until, Rolled);
        false -> Rolled
    end.

restarted(Machine, #{members := Members} = Run) ->
    #{Machine := Member} = Members,
    ok = drained(Member),
    back(Machine, Member, Run).

drained(#{peer := Peer} = Member) ->
    ok = erlmcp_test_cluster:call(Member, erlmcp_test_cluster_server, drain, [?DRAIN_MS],
                                  ?WHOLE_MS),
    Monitor = monitor(process, Peer),
    ok = erlmcp_test_cluster:call(Member, init, stop, []),
    receive {'DOWN', Monitor, process, Peer, _} -> ok end.

%% Sets the clock of a node's machine, and waits until the node reads it.
set_clock(Machine, Seconds, #{members := Members}) ->
    #{Machine := #{clock := File} = Member} = Members,
    ok = erlmcp_test_faked_clock:set(File, Seconds),
    {_, Took} = erlmcp_test_cluster:await(
        fun() ->
            Read = erlmcp_test_cluster:call(Member, os, system_time, [second]),
            abs(Read - os:system_time(second) - Seconds) =< 2
        end, ?WHOLE_MS),
    say("the clock is ~b s ahead after ~b ms", [Seconds, Took]),
    ok.

clock_report(Machine, #{members := Members}) ->
    #{Machine := Member} = Members,
    erlmcp_test_cluster:call(Member, erlmcp_cluster_time, report, []).

%% A node starts when the clock is wrong, and goes on to ask for its place until the clock is right.
%% Returns how often the proxy has found it ready before.
with_wrong_clock(Machine, Milliseconds, #{members := Members, folder := Folder} = Run) ->
    #{Machine := #{clock := File} = Member} = Members,
    ok = drained(Member),
    ok = erlmcp_test_faked_clock:set(File, ?WRONG_S),
    Wrong = revived(Member),
    [{error, {clock_apart, Seconds}}] = erlmcp_test_cluster:join([Wrong], ?APART_MS),
    say("the node says that its clock is ~b s ahead", [Seconds]),
    Caller = self(),
    Joining = spawn_link(fun() ->
        [ok] = erlmcp_test_cluster:join([Wrong], Milliseconds + ?WHOLE_MS),
        Caller ! {joined, self()}
    end),
    ok = serving([Wrong], Folder),
    Ready = times_ready(name(Machine), now_us() + 1_000 * Milliseconds, Run),
    Back = Run#{members := Members#{Machine := Wrong}},
    ok = set_clock(Machine, 0, Back),
    receive {joined, Joining} -> ok end,
    Took = whole(Back),
    say("whole again after ~b ms", [Took]),
    {Ready, Back}.

times_ready(Name, Until, #{proxy := Proxy} = Run) ->
    receive after ?LOOK_MS -> ok end,
    Ready = length([Up || Up <- erlmcp_test_cluster_proxy:up(Proxy), Up =:= list_to_binary(Name)]),
    case now_us() < Until of
        true -> Ready + times_ready(Name, Until, Run);
        false -> Ready
    end.

%% Cuts a machine off from all other nodes. The proxy and the clients still reach it.
cut_off(Scenario, Machine, Milliseconds, Directions,
        #{members := Members, pauses := Pauses} = Run) ->
    Others = maps:keys(Members) -- [Machine],
    Pairs = [{Machine, Other} || Other <- Others]
        ++ [{Other, Machine} || Directions =:= both, Other <- Others],
    Each = fun(Do) -> lists:foreach(fun({From, To}) -> ok = Do(From, To) end, Pairs) end,
    Began = now_us(),
    {Refused, Verdicts} = fenced(Scenario, Machine, Milliseconds, Run,
                                 fun() -> Each(fun erlmcp_test_cluster_network:cut/2) end,
                                 fun() -> Each(fun erlmcp_test_cluster_network:heal/2) end),
    Pause = erlmcp_test_cluster_verdict:longest_pause_ms(Began, now_us(),
                                                         erlmcp_test_pauses:pauses(Pauses)),
    [erlmcp_test_cluster_verdict:at_most(Scenario, ~"refused_after_ms", Refused,
                                         ?REFUSED_MS + Pause)
     | Verdicts].

%% A node that the others take for dead still gets requests for its sessions, and its tasks end. One
%% of these sessions is ended meanwhile, at its new home. Returns after how many milliseconds the
%% node refused for good, too.
fenced(Scenario, Machine, Milliseconds, #{members := Members, clients := Clients} = Run, Harm,
       Heal) ->
    #{Machine := #{node := Node, address := Address}} = Members,
    Id = erlmcp_test_cluster_clients:open_at(atom_to_binary(Node), Clients),
    Probe = erlmcp_test_cluster_clients:probe(url(Address, ?PORT), Id, Clients),
    Tasks = erlmcp_test_cluster_clients:tasks(?TASKS * map_size(Members), Milliseconds div 2,
                                              Clients),
    Began = now_us(),
    ok = Harm(),
    receive after Milliseconds - ?DELETE_BEFORE_MS -> ok end,
    ok = erlmcp_test_cluster_clients:look_at(Tasks, Clients),
    Deleted = erlmcp_test_cluster_clients:delete(Id, Clients),
    receive after ?DELETE_BEFORE_MS -> ok end,
    Healed = now_us(),
    ok = Heal(),
    Took = whole(Run),
    ok = erlmcp_test_cluster_clients:look_at(Tasks, Clients),
    Probe ! {stop, self()},
    receive {stopped, Probe} -> ok end,
    say("DELETE: ~p; whole again after ~b ms", [Deleted, Took]),
    {refused_ms(Id, Began, Healed, Clients), swept(Scenario, Run)}.

refused_ms(Id, Began, Healed, Clients) ->
    Asked = [Operation || #{key := Key, do := call, began := At} = Operation
                              <- erlmcp_test_cluster_clients:operations(Clients),
                          Key =:= Id, At >= Began, At < Healed],
    Refusals = [Seen || #{why := 1080, seen := Seen} <- Asked],
    Good = [Seen || #{result := ok, seen := Seen} <- Asked],
    (lists:max([lists:min([Healed | Refusals]) | Good]) - Began) / 1_000.

%% Verdicts.

served(Began, Killed, Until, #{load := Load, pauses := Pauses} = Run) ->
    Pause = erlmcp_test_cluster_verdict:longest_pause_ms(Began, Until,
                                                         erlmcp_test_pauses:pauses(Pauses)),
    {Excused, Trouble} = excused(~"kill -9", Began, Until, Run),
    Errors = erlmcp_test_cluster_verdict:errors(Began, Until, Trouble),
    Percent = erlmcp_test_cluster_verdict:of_a_minute(
        Errors, erlmcp_test_cluster_load:due(Began, Until, Load), Until - Began),
    Later = erlmcp_test_cluster_verdict:after_the_fault(Killed, Errors),
    Service = erlmcp_test_cluster_verdict:full_service_ms(Began, Until, Trouble),
    ok = show_kinds(Errors),
    ok = show_trouble(Began, Later),
    [Excused | [erlmcp_test_cluster_verdict:at_most(~"kill -9", Figure, Measured, Most)
                || {Figure, Measured, Most} <-
                       [{~"errors_percent_of_a_minute", Percent, ?ERRORS_PERCENT},
                        {~"errors_of_later_requests", length(Later), 0},
                        {~"full_service_ms", Service, ?SERVICE_MS + Pause}]]].

%% A time in which no request may fail.
unfailing(Scenario, Began, Run) ->
    Until = now_us(),
    {Excused, Trouble} = excused(Scenario, Began, Until, Run),
    Errors = erlmcp_test_cluster_verdict:errors(Began, Until, Trouble),
    ok = show_kinds(Errors),
    ok = show_trouble(Began, Errors),
    ok = show_seconds(Began, Errors),
    [Excused, erlmcp_test_cluster_verdict:at_most(Scenario, ~"errors", length(Errors), 0)].

%% The verdict on what pauses of the machine excuse, and the trouble that they do not.
excused(Scenario, Began, Until, #{load := Load, pauses := Pauses} = Run) ->
    {Excused, Trouble} = erlmcp_test_cluster_verdict:excused(trouble(Run),
                                                             erlmcp_test_pauses:pauses(Pauses)),
    Within = erlmcp_test_cluster_verdict:within(Began, Until, Excused),
    _ = [say("a pause of the machine excuses ~b requests ~0p", [length(Within), kinds(Within)])
         || Within =/= []],
    Percent = erlmcp_test_cluster_verdict:of_a_minute(
        Within, erlmcp_test_cluster_load:due(Began, Until, Load), Until - Began),
    {erlmcp_test_cluster_verdict:at_most(Scenario, ~"excused_percent_of_a_minute", Percent,
                                         ?EXCUSED_PERCENT), Trouble}.

swept(Scenario, #{clients := Clients, watchers := Watchers}) ->
    #{sessions_lost := Sessions, tasks_lost := Tasks} = Swept =
        erlmcp_test_cluster_clients:sweep(Clients),
    say("~0p", [Swept]),
    Deaf = erlmcp_test_cluster_watchers:without_news(Watchers),
    [erlmcp_test_cluster_verdict:at_most(Scenario, Figure, Measured, 0)
     || {Figure, Measured} <- [{~"sessions_lost", Sessions}, {~"tasks_lost", Tasks},
                               {~"watchers_without_news", Deaf}]].

%% What all clients have seen, from the first request to the last.
seen(Operations, #{members := Members, folder := Folder}) ->
    Impossible = erlmcp_test_cluster_verdict:impossible(Operations),
    lists:foreach(fun show_impossible/1, lists:sublist(Impossible, ?SHOWN)),
    Lines = lists:append([lines(lines_of(Machine, Folder)) || Machine <- maps:keys(Members)]),
    Wrong = erlmcp_test_cluster_verdict:not_once(Lines, Operations),
    say("~b operations", [length(Operations)]),
    [erlmcp_test_cluster_verdict:at_most(~"all", ~"impossible_histories", length(Impossible), 0),
     erlmcp_test_cluster_verdict:at_most(~"all", ~"calls_not_made_once", length(Wrong), 0)].

%% The operations that ended last before the history was impossible; numbers are milliseconds.
show_impossible({Model, Key, History}) ->
    [#{began := First} | _] = History,
    Milliseconds = fun(infinity) -> infinity; (Us) -> (Us - First) / 1_000 end,
    say("~p ~ts is impossible:", [Model, Key]),
    Part = erlmcp_test_history:until_impossible(Model, History),
    lists:foreach(
        fun(#{do := Do, result := Result, began := Began, ended := Ended} = Operation) ->
            io:format("    ~p to ~p: ~0p ~0p ~0p~n",
                      [Milliseconds(Began), Milliseconds(Ended), Do, Result,
                       maps:with([why, server, node], Operation)])
        end, lists:nthtail(max(0, length(Part) - ?SHOWN), Part)).

lines(File) ->
    case file:read_file(File) of
        {ok, Text} -> binary:split(Text, ~"\n", [global, trim_all]);
        {error, enoent} -> []
    end.

trouble(#{clients := Clients, load := Load}) ->
    erlmcp_test_cluster_load:trouble(Load)
        ++ erlmcp_test_cluster_verdict:trouble(erlmcp_test_cluster_clients:operations(Clients)).

show_kinds(Errors) ->
    say("~b errors ~0p", [length(Errors), kinds(Errors)]).

kinds(Trouble) ->
    Kinds = [{maps:get(do, Each, load), Why} || #{why := Why} = Each <- Trouble],
    Counts = maps:groups_from_list(fun(Kind) -> Kind end, fun(_) -> 1 end, Kinds),
    #{Kind => length(Of) || Kind := Of <- Counts}.

%% Errors that should not be, in milliseconds since the fault began.
show_trouble(Since, Errors) ->
    lists:foreach(
        fun(#{began := Began, seen := Seen, why := Why} = Error) ->
            io:format("    ~p to ~p: ~0p ~0p ~0p~n",
                      [(Began - Since) / 1_000, (Seen - Since) / 1_000,
                       maps:get(do, Error, load), Why, maps:with([server, era], Error)])
        end, lists:sublist(Errors, ?ERRORS_SHOWN)).

%% How many errors ended in which second since the fault began.
show_seconds(Since, Errors) ->
    Seconds = maps:groups_from_list(fun(#{seen := Seen}) -> (Seen - Since) div 1_000_000 end,
                                    fun(_) -> 1 end, Errors),
    say("seconds with errors: ~0p", [[{Second, length(Of)}
                                      || Second := Of <- maps:iterator(Seconds, ordered)]]).

%% The official suite, through the proxy. Each check counts once, and none may fail.
conformance() ->
    Url = url("127.0.0.1", ?CONFORMANCE_PORT),
    Output = os:cmd("scripts/conformance.sh --direct " ++ binary_to_list(Url)
                    ++ " 2025-11-25 2026-07-28 2>&1"),
    case re:run(Output, "^([0-9]+) passed, ([0-9]+) failed$",
                [multiline, {capture, all_but_first, list}]) of
        {match, [Passed, Failed]} ->
            _ = [say("~ts", [Line]) || "not ok" ++ _ = Line <- string:lexemes(Output, "\n")],
            say("~ts passed, ~ts failed", [Passed, Failed]),
            [erlmcp_test_cluster_verdict:at_most(~"conformance", ~"failed_checks",
                                                 list_to_integer(Failed), 0)];
        nomatch ->
            error({no_conformance, Output})
    end.

%% The judges of the judges.

is_found(Planted, Fault, #{nodes := Count} = Network) ->
    {Verdicts, _} = harmed([{ended, Count * ?ENDED}, Fault], started(Planted, Network)),
    [Impossible] = [Number || #{figure := ~"impossible_histories", measured := Number} <- Verdicts],
    Scenario = io_lib:format("planted ~s, ~s", [Planted, element(1, Fault)]),
    erlmcp_test_cluster_verdict:at_least(Scenario, ~"impossible_histories", Impossible, 1).

%% Porcupine judges the histories of the run, and any others, as the checker does.
checkers(Porcupine, Folder, Operations) ->
    Histories = erlmcp_test_cluster_verdict:histories(Operations)
        ++ history_checker_SUITE:examples(?EXAMPLES),
    File = filename:join(Folder, "histories.json"),
    ok = file:write_file(File, json:encode(
        [#{model => Model, operations => erlmcp_test_history:to_json(History)}
         || {Model, History} <- Histories])),
    Verdicts = string:lexemes(os:cmd(Porcupine ++ " <" ++ File), "\n"),
    Ours = [atom_to_list(erlmcp_test_history:check(Model, History) =:= ok)
            || {Model, History} <- Histories],
    Others = [differs || {One, Other} <- lists:zip(Ours, Verdicts, {pad, {none, none}}),
                         One =/= Other],
    say("~b histories, of which ~b are impossible",
        [length(Histories), length([false || "false" <- Ours])]),
    [erlmcp_test_cluster_verdict:at_most(~"porcupine", ~"other_verdicts", length(Others), 0)].

%% What happens when, in seconds since the run began.
say(Format, Arguments) ->
    io:format("~7.1f " ++ Format ++ "~n", [since_start() | Arguments]).

since_start() ->
    Since = erlang:monotonic_time() - erlang:system_info(start_time),
    erlang:convert_time_unit(Since, native, millisecond) / 1_000.

now_us() ->
    erlang:monotonic_time(microsecond).
