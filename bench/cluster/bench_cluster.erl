-module(bench_cluster).
-moduledoc """
The CPU time of the nodes of a cluster for a request, with 1, 2, 4 and 8 nodes on one machine, and
for comparison that of a node without a cluster. HAProxy gives each request to the next node. The
nodes, HAProxy, and the clients (this node) are processes of the operating system.

The load grows with the nodes, so each node has as much to do as one alone. The time that the same
nodes use without load is subtracted.
""".

-export([main/1]).
%% In the nodes.
-export([serve/3, echo/2, work/2, ticks/2]).

-define(SIZES, [none, 1, 2, 4, 8]).
%% For each node, in a second.
-define(CALLS, 150).
-define(TASKS, 10).
%% In a second, and streams that hear of it, whatever the number of nodes.
-define(CHANGES, 10).
-define(STREAMS, 160).
-define(CONNECTIONS, 16).
-define(SETTLE_MS, 500).
-define(TASK_MS, 30).
-define(WHOLE_MS, 30_000).
-define(URI, ~"bench://ticks").
-define(KINDS, [stateless, session, task, change]).

-doc """
`HAPROXY FOLDER PORT ROUNDS SECONDS FILE`: measures, prints a table, and writes FILE. FOLDER is for
files of the nodes, and PORT is free on each of their addresses.
""".
-spec main([string()]) -> no_return().
main([Haproxy, Folder, Port, Rounds, Seconds, File]) ->
    ok = logger:set_primary_config(level, error),
    {ok, _} = application:ensure_all_started([gun, erlmcp]),
    Plan = #{haproxy => Haproxy, folder => Folder, port => list_to_integer(Port),
             rounds => list_to_integer(Rounds), ms => 1_000 * list_to_integer(Seconds)},
    Before = load(),
    Sizes = #{size_name(Size) => measured(Size, Plan) || Size <- ?SIZES},
    Result = #{~"rounds" => maps:get(rounds, Plan), ~"seconds" => list_to_integer(Seconds),
               ~"load" => [Before, load()], ~"calls_per_s_per_node" => ?CALLS,
               ~"tasks_per_s_per_node" => ?TASKS, ~"changes_per_s" => ?CHANGES,
               ~"streams" => ?STREAMS, ~"nodes" => Sizes, ~"model" => model(Sizes)},
    ok = file:write_file(File, erlmcp_bench_json:lines(Result)),
    ok = show(Result),
    halt(0).

size_name(none) -> ~"none";
size_name(Count) -> integer_to_binary(Count).

load() ->
    {ok, Text} = file:read_file("/proc/loadavg"),
    [First | _] = binary:split(Text, ~" "),
    binary_to_float(First).

%% One size.

measured(Size, #{rounds := Rounds} = Plan) ->
    Run = started(Size, Plan),
    %% The first round warms up.
    [_ | Measured] = [one_round(Run) || _ <- lists:seq(0, Rounds)],
    ok = stopped(Run),
    io:format(standard_error, "~ts~n", [size_name(Size)]),
    Names = maps:keys(hd(Measured)),
    #{Name => spread([map_get(Name, Round) || Round <- Measured]) || Name <- Names}.

spread(Values) ->
    Sorted = lists:sort(Values),
    Count = length(Sorted),
    Median = (lists:nth((Count + 1) div 2, Sorted) + lists:nth(Count div 2 + 1, Sorted)) / 2,
    #{~"median" => rounded(Median), ~"least" => rounded(hd(Sorted)),
      ~"most" => rounded(lists:last(Sorted))}.

rounded(Number) ->
    round(Number * 100) / 100.

one_round(#{members := Members} = Run) ->
    Idle = used(Run, fun() -> 1 end),
    #{us := IdleUs, each := Each, ms := IdleMs} = Idle,
    Count = length(Members),
    Loaded = #{name(Kind) => begin
                                 #{us := Us, ms := Ms, units := Units} = load(Kind, Run),
                                 (Us - IdleUs * Ms / IdleMs) / Units
                             end || Kind <- ?KINDS},
    Loaded#{~"idle" => IdleUs / IdleMs / Count, ~"idle_most" => lists:max(Each) / IdleMs}.

name(Kind) -> atom_to_binary(Kind).

%% What the nodes use in a time in which `Units` counts what they do.
used(#{members := Members, ms := Ms}, Units) ->
    CountBefore = Units(),
    Before = [cpu_us(Member) || Member <- Members],
    Began = erlang:monotonic_time(microsecond),
    receive after Ms -> ok end,
    Took = erlang:monotonic_time(microsecond) - Began,
    Each = [After - Of || {After, Of} <- lists:zip([cpu_us(Member) || Member <- Members], Before)],
    #{us => lists:sum(Each), each => Each, ms => Took / 1_000, units => Units() - CountBefore}.

%% The processor time of all threads. In nanoseconds, other than that of /proc/PID/stat.
cpu_us(#{os_pid := Pid}) ->
    lists:sum([begin
                   {ok, Text} = file:read_file(File),
                   [Nanoseconds | _] = binary:split(Text, ~" "),
                   binary_to_integer(Nanoseconds)
               end || File <- filelib:wildcard("/proc/" ++ Pid ++ "/task/*/schedstat")]) / 1_000.

%% Loads.

load(Kind, #{url := Url, members := Members} = Run) when Kind =:= stateless; Kind =:= session ->
    Era = case Kind of stateless -> stateless; session -> {session, ~"2025-11-25"} end,
    {ok, Load} = erlmcp_load:start(
        #{target => {http, Url}, era => Era, connections => ?CONNECTIONS,
          loop => {open, ?CALLS * length(Members), poisson}, duration_ms => 600_000}),
    receive after ?SETTLE_MS -> ok end,
    Used = used(Run, fun() ->
        #{counts := #{answered := Answered}} = erlmcp_load:peek(Load),
        Answered
    end),
    Wrong = maps:with([refused, failed, wrong_by], erlmcp_load:stop(Load)),
    [] = [{Kind, Reasons} || _ := Reasons <- Wrong, Reasons =/= #{}],
    Used;
load(task, #{url := Url, members := Members} = Run) ->
    Done = counters:new(1, []),
    Period = ?CONNECTIONS * 1_000 div (?TASKS * length(Members)),
    Now = erlang:monotonic_time(millisecond),
    Workers = [spawn_link(fun() ->
                   tasks(Now + Period * Worker div ?CONNECTIONS, Period, Done,
                         erlmcp_test_cluster_client:new(Url))
               end) || Worker <- lists:seq(1, ?CONNECTIONS)],
    receive after ?SETTLE_MS -> ok end,
    Used = used(Run, fun() -> counters:get(Done, 1) end),
    ok = lists:foreach(fun stop/1, Workers),
    Used;
load(change, #{url := Url, members := [Member | _]} = Run) ->
    Heard = counters:new(1, []),
    Streams = [begin
                   Self = self(),
                   Pid = spawn_link(fun() -> watch(Url, Heard, Self) end),
                   receive {ready, Pid} -> Pid end
               end || _ <- lists:seq(1, ?STREAMS)],
    Ticker = spawn_link(fun() -> tick(Member, erlang:monotonic_time(millisecond)) end),
    receive after ?SETTLE_MS -> ok end,
    #{units := Events} = Used = used(Run, fun() -> counters:get(Heard, 1) end),
    ok = lists:foreach(fun stop/1, [Ticker | Streams]),
    Used#{units := Events / ?STREAMS}.

stop(Worker) ->
    Monitor = monitor(process, Worker),
    true = unlink(Worker),
    true = exit(Worker, kill),
    receive {'DOWN', Monitor, process, Worker, _} -> ok end.

%% A task is created at one node, and got from another one, when it has ended.
tasks(At, Period, Done, Client) ->
    receive after max(0, At - erlang:monotonic_time(millisecond)) -> ok end,
    {{ok, #{id := Id}, _}, Created} =
        erlmcp_test_cluster_client:create_task(~"work", 0, stateless, Client),
    receive after ?TASK_MS -> ok end,
    {{ok, #{~"status" := ~"completed"}, _}, Got} =
        erlmcp_test_cluster_client:get_task(Id, stateless, Created),
    ok = counters:add(Done, 1, 1),
    tasks(At + Period, Period, Done, Got).

watch(Url, Heard, Starter) ->
    {{ok, #{id := Id}, _}, Opened} =
        erlmcp_test_cluster_client:open(erlmcp_test_cluster_client:new(Url)),
    {{ok, _, _}, Subscribed} =
        erlmcp_test_cluster_client:subscribe(?URI, {session, Id}, Opened),
    {{200, Stream}, _} = erlmcp_test_cluster_client:stream(Id, none, Subscribed),
    Starter ! {ready, self()},
    hear(Stream, Heard).

hear(Stream, Heard) ->
    {ok, Data} = erlmcp_test_cluster_client:more(Stream),
    ok = counters:add(Heard, 1, length(binary:matches(Data, ?URI))),
    hear(Stream, Heard).

tick(Member, At) ->
    receive after max(0, At - erlang:monotonic_time(millisecond)) -> ok end,
    ok = erlmcp_test_cluster:call(Member, erlmcp, resource_updated, [bench, ?URI]),
    tick(Member, At + 1_000 div ?CHANGES).

%% Nodes.

started(Size, #{haproxy := Haproxy, folder := Folder, port := Port} = Plan) ->
    Count = case Size of none -> 1; _ -> Size end,
    Addresses = ["127.0.0." ++ integer_to_list(1 + Machine) || Machine <- lists:seq(1, Count)],
    Seeds = [list_to_atom("mcp@" ++ Address) || Address <- Addresses],
    DistPort = erlmcp_test_port:unused(),
    Work = filename:join(Folder, lists:concat(["nodes-", Size])),
    Members = [erlmcp_test_cluster:boot(
                   #{address => Address, port => DistPort, args => [],
                     options => #{discovery => {seeds, Seeds},
                                  secret => {env, "ERLMCP_TEST_SECRET"},
                                  data_dir => filename:join(Work, Address)}})
               || Address <- Addresses],
    More = case Size of
        none ->
            #{};
        _ ->
            ok = lists:foreach(fun(ok) -> ok end, erlmcp_test_cluster:join(Members)),
            #{cluster => erlmcp_cluster}
    end,
    ok = lists:foreach(fun(#{address := Address} = Member) ->
        ok = erlmcp_test_cluster:call(Member, ?MODULE, serve, [Address, Port, More], 30_000)
    end, Members),
    ok = filelib:ensure_path(Work),
    Proxy = erlmcp_test_cluster_proxy:start(
        Haproxy, Port, [{"node" ++ Address, Address} || Address <- Addresses], Work),
    {_, _} = erlmcp_test_cluster:await(
        fun() -> length(erlmcp_test_cluster_proxy:up(Proxy)) =:= Count end, ?WHOLE_MS),
    Plan#{members => Members, work => Work,
          url => iolist_to_binary(io_lib:format("http://127.0.0.1:~b/mcp", [Port]))}.

%% The next HAProxy has the same port.
stopped(#{members := Members, work := Work}) ->
    _ = os:cmd("pkill -f -- " ++ filename:join(Work, "haproxy")),
    lists:foreach(fun erlmcp_test_cluster:stop/1, Members).

-doc false.
serve(Address, Port, More) ->
    {ok, Ip} = inet:parse_address(Address),
    {ok, _} = application:ensure_all_started(erlmcp),
    Caller = self(),
    Options = More#{
        id => bench, name => ~"bench", version => ~"1",
        tools => [#{name => ~"echo", description => ~"Echoes", input_schema => #{text => string},
                    handler => fun ?MODULE:echo/2},
                  #{name => ~"work", description => ~"A task", task => optional,
                    input_schema => #{ms => integer}, handler => fun ?MODULE:work/2}],
        resources => [#{uri => ?URI, name => ~"ticks", handler => fun ?MODULE:ticks/2}],
        limits => #{tasks => 100_000, tasks_per_principal => 100_000},
        listen => [{http, #{ip => Ip, port => Port, health => true}}]},
    %% The server ends with the process that started it.
    _ = spawn(fun() ->
                  Caller ! {serving, erlmcp:start_server(Options)},
                  receive stop -> ok end
              end),
    receive {serving, Started} -> {ok, _} = Started end,
    ok.

-doc false.
echo(#{~"text" := Text}, _) -> Text.

-doc false.
work(_, _) -> ~"done".

-doc false.
ticks(_, _) -> ~"tick".

%% What the figures have in common: a part that does not depend on the number of nodes, and one that
%% grows. Least squares over the medians.

model(Sizes) ->
    #{Name => line([{Grows(Count), median(Name, Count, Sizes)} || Count <- ?SIZES, Count =/= none])
      || {Name, Grows} <- [{~"session", fun(Count) -> (Count - 1) / Count end},
                           {~"task", fun float/1}, {~"change", fun float/1},
                           {~"idle", fun float/1}, {~"idle_most", fun float/1}]}.

median(Name, Count, Sizes) ->
    #{~"median" := Median} = map_get(Name, map_get(size_name(Count), Sizes)),
    Median.

line(Points) ->
    Count = length(Points),
    MeanX = lists:sum([X || {X, _} <- Points]) / Count,
    MeanY = lists:sum([Y || {_, Y} <- Points]) / Count,
    Slope = lists:sum([(X - MeanX) * (Y - MeanY) || {X, Y} <- Points])
        / lists:sum([(X - MeanX) * (X - MeanX) || {X, _} <- Points]),
    Base = MeanY - Slope * MeanX,
    Off = lists:max([abs(Base + Slope * X - Y) / Y || {X, Y} <- Points]),
    #{~"base" => rounded(Base), ~"slope" => rounded(Slope), ~"off_percent" => rounded(100 * Off)}.

show(#{~"rounds" := Rounds, ~"seconds" := Seconds, ~"load" := [Before, After], ~"nodes" := Sizes,
       ~"model" := Model}) ->
    io:format("~b rounds of ~b s; load before ~.2f, after ~.2f~n"
              "CPU time of all nodes for one of each, in us; of a node without load (and of that~n"
              "which uses most), in ms a second~n",
              [Rounds, Seconds, Before, After]),
    Names = [~"idle", ~"idle_most" | [name(Kind) || Kind <- ?KINDS]],
    io:format("~-6s~ts~n", ["nodes", [io_lib:format("~27ts", [Name]) || Name <- Names]]),
    _ = [io:format("~-6s~ts~n",
                   [size_name(Size), [cell(map_get(Name, map_get(size_name(Size), Sizes)))
                                      || Name <- Names]])
         || Size <- ?SIZES],
    io:format("model ~p~n", [Model]).

cell(#{~"median" := Median, ~"least" := Least, ~"most" := Most}) ->
    io_lib:format("~27ts", [io_lib:format("~.1f (~.1f-~.1f)", [Median, Least, Most])]).
