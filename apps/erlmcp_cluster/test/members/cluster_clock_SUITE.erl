-module(cluster_clock_SUITE).
-moduledoc """
Nodes whose clocks are wrong, or jump, each a process of the operating system with a clock of its
own. Nothing that others have stored may end before its time.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([the_median_counts/1, a_clock_ahead_gets_no_lease/1, a_clock_behind_gets_no_lease/1,
         a_clock_that_jumps_ahead_ends_nothing/1, a_clock_that_jumps_back_ends_nothing/1,
         two_nodes_that_differ_go_on/1, a_clock_that_jumps_ends_no_lease/1,
         a_node_that_compares_nothing_begins_none/1, those_that_start_outvote_nobody/1,
         a_lease_that_is_over_counts_nothing/1]).
%% On the nodes.
-export([sweep/1, begins_anew/0]).

-import(erlmcp_test_cluster, [await/2]).
-import(erlmcp_test_cluster_node, [serve/2, initialize/2, answered/1]).
-import(erlmcp_test_tasks, [get/2, id/1, until/3]).

-define(SERVER, ~"cluster_clock_SUITE").
-define(REVISION, ~"2025-11-25").
-define(EXTENSION, #{~"io.modelcontextprotocol/tasks" => #{}}).
-define(HOUR, 3_600).
%% The keys that seal are those of a day, and open for the day after it.
-define(DAYS, 3 * 24 * ?HOUR).
%% Clocks are compared each ten seconds.
-define(COMPARED_MS, 30_000).
-define(SESSIONS, 20).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [the_median_counts, {group, one_cluster}, a_clock_that_jumps_ahead_ends_nothing,
     a_clock_that_jumps_back_ends_nothing, two_nodes_that_differ_go_on,
     a_lease_that_is_over_counts_nothing].

groups() ->
    [{one_cluster, [], [a_clock_ahead_gets_no_lease, a_clock_behind_gets_no_lease,
                        a_clock_that_jumps_ends_no_lease,
                        a_node_that_compares_nothing_begins_none,
                        those_that_start_outvote_nobody]}].

init_per_suite(Config) ->
    case erlmcp_test_faked_clock:install() of
        none -> {skip, "needs libfaketime"};
        _ -> Config
    end.

end_per_suite(_) ->
    ok.

%% The cases follow each other in one cluster, and each leaves the members' clocks right.
init_per_group(one_cluster, Config) ->
    Members = erlmcp_test_cluster:start(Config, #{clocks => true}),
    ok = keep([#{member => Member} || Member <- Members]),
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    ok = keep([served(Member) || Member <- Members]),
    Config.

end_per_group(one_cluster, _) ->
    [ok = erlmcp_test_cluster:stop(Member) || #{member := Member} <- kept()],
    persistent_term:erase(?MODULE).

keep(Servers) -> persistent_term:put(?MODULE, Servers).

kept() -> persistent_term:get(?MODULE).

init_per_testcase(Case, Config) ->
    %% Those of the group share one cluster.
    case Case =/= the_median_counts andalso lists:member(Case, all()) of
        true -> [{members, erlmcp_test_cluster:start(Config, #{clocks => true})} | Config];
        false -> Config
    end.

end_per_testcase(_, Config) ->
    lists:foreach(fun erlmcp_test_cluster:stop/1, proplists:get_value(members, Config, [])).

%% Of the functions alone. Numbers are seconds.
the_median_counts(_) ->
    Found = fun(Differences) ->
        [erlmcp_cluster_clock:median(Which, Differences) || Which <- [nearer, farther]]
    end,
    [0, 0] = Found([]),
    [0, 3_600] = Found([3_600]),
    [0, -3_600] = Found([-3_600]),
    %% One of three is wrong: another one, or this one.
    [0, 0] = Found([0, 3_600]),
    [3_590, 3_590] = Found([3_590, 3_600]),
    %% All differ.
    [0, 0] = Found([-3_600, 3_600]),
    %% Two against two, one against three.
    [0, 3_600] = Found([0, 3_600, 3_600]),
    [-3_600, -3_600] = Found([-3_600, -3_600, -3_600]),
    %% Those that have had a lease count alone, unless the clocks of all of them have jumped.
    Counted = fun erlmcp_cluster_clock:counted/2,
    [1, 2] = Counted(new, [{1, new}, {2, new}]),
    [3] = Counted(new, [{1, new}, {2, new}, {3, steady}]),
    [2, 3] = Counted(new, [{1, new}, {2, jumped}, {3, steady}]),
    [1, 2] = Counted(new, [{1, new}, {2, jumped}]),
    [] = Counted(steady, [{1, new}, {2, new}]),
    [2] = Counted(steady, [{1, new}, {2, jumped}]),
    [1, 2] = Counted(jumped, [{1, new}, {2, jumped}]),
    [2] = Counted(jumped, [{1, new}, {2, steady}]),
    [{right, 0}, {right, 0}, {doubtful, 60_001}, {apart, -60_001}] =
        [erlmcp_cluster_clock:state(Nearer, Farther)
         || {Nearer, Farther} <- [{0, 0}, {-60_000, 60_000}, {60_000, 60_001},
                                  {-60_001, -60_001}]],
    %% The answer may take as long as it wants.
    [1, 0, 0, -1] = [erlmcp_cluster_clock:difference(100, 70_100, Other)
                     || Other <- [99, 100, 70_100, 70_101]].

a_clock_ahead_gets_no_lease(_) ->
    no_lease(?DAYS).

a_clock_behind_gets_no_lease(_) ->
    no_lease(-?DAYS).

%% It has been a member, and is started again when its clock is wrong. It forgets nothing of the
%% others' tasks and sessions. When its clock is right, it has a lease by itself, and the keys of
%% that day. Erlang's time stays wrong for days.
no_lease(Seconds) ->
    [#{member := #{clock := Clock} = C}, AtA, AtB] = kept(),
    Task = done(AtA),
    Ended = ended(AtB),
    Session = initialize(AtA, ?REVISION),
    ok = erlmcp_test_cluster:kill(C),
    ok = erlmcp_test_faked_clock:set(Clock, Seconds),
    Back = erlmcp_test_cluster:revive(C),
    ok = keep([#{member => Back}, AtA, AtB]),
    Late = served(Back),
    ok = keep([Late, AtA, AtB]),
    _ = Seconds > 0 andalso begin
        %% A busy machine takes seconds to start a part of the store, and says `timeout` if it is
        %% late.
        [{error, {clock_apart, Apart}}] = erlmcp_test_cluster:join([Back], 10_000),
        true = abs(Apart - Seconds) =< 5
    end,
    Self = self(),
    _ = spawn(fun() -> Self ! {joined, erlmcp_test_cluster:join([Back])} end),
    {Later, _} = await(fun() -> is_apart(Late) end, ?COMPARED_MS),
    true = abs(Later - Seconds) =< 5,
    none = erlmcp_test_cluster:call(Back, erlmcp_cluster_lease, current, []),
    lists:foreach(fun await_healthy/1, [AtA, AtB]),
    ok = set(Back, 0),
    receive {joined, [ok]} -> ok end,
    #{status := 200} = pinged(Late, Session),
    #{status := 200} = pinged(AtA, initialize(Late, ?REVISION)),
    ok = await_healthy(Late),
    ok = sweep(0, Late),
    [#{~"status" := ~"completed"} = get(client(Each), Task) || Each <- kept()],
    [true = has_ended(Ended, Each) || #{member := Each} <- kept()].

a_clock_that_jumps_ahead_ends_nothing(Config) ->
    jumps(?HOUR, Config).

a_clock_that_jumps_back_ends_nothing(Config) ->
    jumps(-?HOUR, Config).

%% It is a member, and stays one. Its load balancer sends it nothing until its clock is right.
jumps(Seconds, Config) ->
    [A, B, C] = members(Config),
    [ok, ok, ok] = erlmcp_test_cluster:join([A, B, C]),
    [AtA, AtB, AtC] = [served(Member) || Member <- [A, B, C]],
    Before = done(AtA),
    Ended = ended(AtC),
    Sessions = [initialize(AtA, ?REVISION) || _ <- lists:seq(1, ?SESSIONS)],
    ok = set(C, Seconds),
    %% One case shows that nobody has to ask for the comparison.
    _ = Seconds < 0 andalso compared(C, apart),
    {Apart, _} = await(fun() -> is_apart(AtC) end, ?COMPARED_MS),
    true = abs(Apart - Seconds) =< 5,
    %% What others have stored is there, and so is what it stores.
    ok = sweep(0, AtC),
    After = done(AtC),
    LaterEnded = ended(AtC),
    [ok = sweep(0, Each) || Each <- [AtA, AtB, AtC]],
    [#{~"status" := ~"completed"} = get(client(Each), Task)
     || Each <- [AtA, AtB, AtC], Task <- [Before, After]],
    [true = has_ended(Name, Each) || Name <- [Ended, LaterEnded], Each <- [A, B, C]],
    %% Sessions of a node that dies are as old as they are, whoever has declared it dead.
    ok = erlmcp_test_cluster:kill(A),
    [#{status := 200} = pinged(Each, Session) || Session <- Sessions, Each <- [AtB, AtC]],
    ok = set(C, 0),
    ok = compared(C, right),
    ok = await_healthy(AtC),
    [#{status := 200} = pinged(AtC, Session) || Session <- Sessions].

%% Nobody knows which one is right. Both serve, and delete nothing, even if one begins another
%% incarnation. A third one decides it.
two_nodes_that_differ_go_on(Config) ->
    [A, B, C] = members(Config),
    [ok, ok, ok] = erlmcp_test_cluster:join([A, B, C]),
    [AtA, AtB] = [served(Member) || Member <- [A, B]],
    Task = done(AtA),
    Ended = ended(AtA),
    ok = erlmcp_test_cluster:kill(C),
    ok = set(B, ?HOUR),
    [ok = compared(Each, doubtful) || Each <- [A, B]],
    lists:foreach(fun await_healthy/1, [AtA, AtB]),
    #{incarnation := Number} = erlmcp_test_cluster:status(B),
    Store = erlmcp_test_cluster:call(B, erlang, whereis, [erlmcp_cluster_store]),
    true = erlmcp_test_cluster:call(B, erlang, exit, [Store, kill]),
    {_, _} = await(fun() ->
        case erlmcp_test_cluster:call(B, erlmcp_cluster, status, []) of
            {ok, #{incarnation := Next, lease_ms := Left}} when is_integer(Next), Next > Number ->
                Left > 0;
            _ ->
                false
        end
    end, ?COMPARED_MS),
    doubtful = clock(B),
    lists:foreach(fun await_healthy/1, [AtA, AtB]),
    %% Both are longer gone than they are kept.
    [ok = sweep(2 * ?HOUR, Each) || Each <- [AtA, AtB]],
    [#{~"status" := ~"completed"} = get(client(Each), Task) || Each <- [AtA, AtB]],
    [true = has_ended(Ended, Each) || Each <- [A, B]],
    Back = erlmcp_test_cluster:revive(C),
    try
        [ok] = erlmcp_test_cluster:join([Back]),
        ok = compared(B, apart),
        ok = compared(A, right),
        right = clock(Back),
        ok = await_healthy(AtA),
        {_, _} = await(fun() ->
            ok = sweep(2 * ?HOUR, AtA),
            not has_ended(Ended, A) andalso is_deleted(Task, A)
        end, ?COMPARED_MS)
    after
        erlmcp_test_cluster:stop(Back)
    end.

%% Erlang's monotonic clock goes faster or slower by one percent for that. Leases bear it, and what
%% the nodes agree on does not jump.
a_clock_that_jumps_ends_no_lease(_) ->
    [A | _] = Members = [Member || #{member := Member} <- kept()],
    Numbers = [maps:get(incarnation, erlmcp_test_cluster:status(Each)) || Each <- Members],
    [begin
         ok = set(A, Seconds),
         ok = compared(A, State),
         %% Longer than a lease.
         Before = renewals(A),
         {_, _} = await(fun() -> renewals(A) >= Before + 6 end, ?COMPARED_MS),
         true = agrees(A)
     end || {Seconds, State} <- [{?HOUR, apart}, {-?HOUR, apart}, {0, right}]],
    [right = clock(Each) || Each <- Members],
    Numbers = [maps:get(incarnation, erlmcp_test_cluster:status(Each)) || Each <- Members].

renewals(#{node := Node} = Member) ->
    {ok, Leases} = erlmcp_test_cluster:call(Member, erlmcp_cluster_store, leases, [low_latency]),
    lists:max([Renewals || {alive, Of, Renewals} <- maps:values(Leases), Of =:= Node]).

%% The others stand still, and OTP has not noticed yet.
a_node_that_compares_nothing_begins_none(_) ->
    [#{member := C} | Others] = kept(),
    [ok = erlmcp_test_cluster:pause(Other) || #{member := Other} <- Others],
    try
        {error, not_compared} = erlmcp_test_cluster:call(C, ?MODULE, begins_anew, [])
    after
        [ok = erlmcp_test_cluster:resume(Other) || #{member := Other} <- Others]
    end.

%% As if it had begun no lease yet.
-doc false.
begins_anew() ->
    ok = erlmcp_cluster_clock:forget(),
    erlmcp_cluster_clock:begins().

%% Two of three start again. If their clocks are wrong, the third one keeps the time. If its own
%% clock has jumped, theirs are right.
those_that_start_outvote_nobody(_) ->
    [#{member := A}, #{member := B} = AtB, #{member := C}] = kept(),
    Task = done(AtB),
    Ended = ended(AtB),
    ok = killed([A, C]),
    Wrong = started_again([A, C], ?HOUR, AtB),
    _ = spawn(fun() -> erlmcp_test_cluster:join(Wrong) end),
    [{_, _} = await(fun() -> clock(Each) =:= apart end, ?COMPARED_MS) || Each <- Wrong],
    ok = compared(B, right),
    ok = await_healthy(AtB),
    ok = sweep(0, AtB),
    #{~"status" := ~"completed"} = get(client(AtB), Task),
    true = has_ended(Ended, B),
    ok = killed(Wrong),
    ok = set(B, ?HOUR),
    Right = started_again(Wrong, 0, AtB),
    [ok, ok] = erlmcp_test_cluster:join(Right),
    ok = compared(B, apart),
    [right = clock(Each) || Each <- Right],
    true = has_ended(Ended, B),
    [true = agrees(Each) || Each <- [B | Right]].

killed(Members) ->
    lists:foreach(fun erlmcp_test_cluster:kill/1, Members).

%% Starts two nodes of the cluster again, with their clocks set.
started_again(Members, Seconds, Other) ->
    [ok = erlmcp_test_faked_clock:set(Clock, Seconds) || #{clock := Clock} <- Members],
    Back = erlmcp_test_cluster:at_once(fun erlmcp_test_cluster:revive/1, Members),
    ok = keep([Other | [#{member => Member} || Member <- Back]]),
    Back.

%% Whether the time that a node takes for that of all is right. It may take long to say it.
agrees(Member) ->
    Asked = os:system_time(second),
    Agreed = erlmcp_test_cluster:call(Member, erlmcp_cluster_time, now, [second]),
    Agreed >= Asked - 3 andalso Agreed =< os:system_time(second) + 3.

%% The last node that stops cannot end its lease. The two others are right, and can wait for nobody
%% to do so.
a_lease_that_is_over_counts_nothing(Config) ->
    [#{clock := Clock} = A | Others] = Members = members(Config),
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    [ok = stopped(Other) || Other <- Others],
    ok = erlmcp_test_cluster:kill(A),
    ok = erlmcp_test_faked_clock:set(Clock, ?HOUR),
    [Wrong | Right] = Back = erlmcp_test_cluster:at_once(fun erlmcp_test_cluster:revive/1, Members),
    try
        _ = spawn(fun() -> erlmcp_test_cluster:join([Wrong]) end),
        [ok, ok] = erlmcp_test_cluster:join(Right, 30_000),
        {_, _} = await(fun() -> clock(Wrong) =:= apart end, ?COMPARED_MS),
        [right, right] = [clock(Each) || Each <- Right]
    after
        lists:foreach(fun erlmcp_test_cluster:stop/1, Back)
    end.

stopped(#{peer := Peer} = Member) ->
    Monitor = monitor(process, Peer),
    ok = erlmcp_test_cluster:call(Member, init, stop, []),
    receive {'DOWN', Monitor, process, Peer, _} -> ok end.

%% The nodes.

members(Config) ->
    proplists:get_value(members, Config).

served(Member) ->
    {_, [#{port := Port}]} = serve(Member, server()),
    #{member => Member, port => Port, url => ~"http://127.0.0.1"}.

server() ->
    #{id => ?SERVER, name => ~"clock", version => ~"1.0.0", cluster => erlmcp_cluster,
      listen => [{http, #{}}],
      tools => [#{name => ~"say", task => optional, handler => fun(_, _) -> ~"done" end}]}.

%% Deletes what has expired so many seconds from now, as it does with 0 once in a while.
sweep(Seconds, #{member := Member}) ->
    erlmcp_test_cluster:call(Member, ?MODULE, sweep, [Seconds]).

-doc false.
sweep(Seconds) ->
    {ok, _, #{tasks := {Store, _}}} = erlmcp_registry:whereis(?SERVER),
    Now = erlmcp_task_records:now_ms(Store) + 1_000 * Seconds,
    ok = erlmcp_task_records:sweep(Now, Store),
    erlmcp_cluster_sessions:sweep(Seconds).

%% Whoever asks whether it may begin a lease compares the clocks at once.
compared(Member, State) ->
    {_, _} = await(fun() ->
        _ = erlmcp_test_cluster:call(Member, erlmcp_cluster_clock, begins, []),
        clock(Member) =:= State
    end, ?COMPARED_MS),
    ok.

overview(Member) ->
    erlmcp_test_cluster:call(Member, erlmcp_cluster_figures, overview, []).

clock(Member) ->
    #{clock := #{state := State}} = overview(Member),
    State.

%% Returns by how many seconds it is, if it is not ready for that.
is_apart(#{member := #{node := Node} = Member} = Server) ->
    maybe
        {false, Failed} ?= health(Server),
        true ?= lists:member(cluster_clock, Failed),
        #{clock := #{state := apart, ahead_s := Seconds}, nodes := Nodes} = overview(Member),
        [Seconds] = [Ahead || #{node := Of, clock_ahead_s := Ahead} <- Nodes, Of =:= Node],
        Seconds
    else
        _ -> false
    end.

health(#{member := Member}) ->
    #{checks := Checks} = erlmcp_test_cluster:call(Member, erlmcp, health, [?SERVER]),
    Failed = [Name || Name := #{passes := false} <- maps:with([cluster, cluster_clock], Checks)],
    {Failed =:= [], Failed}.

%% A busy machine may let a lease end for a moment.
await_healthy(Server) ->
    {_, _} = await(fun() -> health(Server) =:= {true, []} end, ?COMPARED_MS),
    ok.

%% Sets the clock of a node's machine.
set(#{clock := File} = Member, Seconds) ->
    ok = erlmcp_test_faked_clock:set(File, Seconds),
    {_, _} = await(fun() ->
        abs(erlmcp_test_cluster:call(Member, os, system_time, [second])
                - os:system_time(second) - Seconds) =< 2
    end, 30_000),
    ok.

%% The clients.

client(Server) ->
    erlmcp_test_client:open(Server, http, ~"2026-07-28", #{extensions => ?EXTENSION}).

%% A task that has ended, and is kept for half an hour.
done(Server) ->
    {Id, _} = await(fun() ->
        case erlmcp_test_client:ask(client(Server), ~"tools/call",
                                    #{name => ~"say", arguments => #{}}) of
            #{~"error" := #{~"code" := 1080}} -> false;
            Answer -> id(Answer)
        end
    end, 30_000),
    #{~"status" := ~"completed"} = until(client(Server), Id, ~"completed"),
    Id.

is_deleted(Task, Member) ->
    error =:= erlmcp_test_cluster:call(Member, erlmcp_cluster_task_tables, find,
                                       [erlmcp_cluster_task_tables:server(?SERVER), Task]).

%% The name of a session that its client has ended.
ended(Server) ->
    {Id, _} = Session = initialize(Server, ?REVISION),
    #{status := 204} = answered(fun() -> erlmcp_test_http:delete(Server, Session) end),
    erlmcp_cluster_session_id:name(Id).

has_ended(Name, Member) ->
    erlmcp_test_cluster:call(Member, erlmcp_cluster_store, has_fact, [Name, ended]).

pinged(Server, Session) ->
    answered(fun() -> erlmcp_test_http:call(Server, ~"ping", #{}, #{session => Session}) end).
