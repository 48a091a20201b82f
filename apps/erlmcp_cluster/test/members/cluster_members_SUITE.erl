-module(cluster_members_SUITE).
-moduledoc """
Three nodes, each a process of the operating system: they agree on who is alive, whatever happens to
one of them. A node is killed, stands still, is cut off, leaves, and comes back.
""".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([three_nodes_form_one_cluster/1, a_killed_leader_is_declared_dead_once/1,
         a_slow_leader_goes_on/1, elections_for_a_busy_leader_become_rare/1,
         a_leader_that_resigns_asks_another_one/1, leases_come_back_while_the_leader_is_slow/1,
         a_lease_that_was_opened_unheard_is_ended/1, a_home_that_begins_late_is_unseen/1,
         a_node_that_stood_still_is_fenced/1, a_full_connection_holds_no_lease_up/1,
         a_doubt_closes_no_other_connection/1, a_minority_has_no_lease/1,
         a_part_that_stands_still_ends_the_lease_late/1,
         a_leader_that_resigns_does_not_elect_itself/1,
         a_node_alone_among_silent_ones_has_no_lease/1,
         a_store_that_cannot_start_is_tried_again/1, a_node_whose_processes_restart_has_joined/1,
         reads_end_while_the_store_stops/1,
         a_part_that_cannot_start_says_so_once/1,
         a_silent_node_holds_no_other_up/1, a_silent_node_holds_no_join_up/1,
         one_node_writes_a_death_down/1,
         a_node_leaves_and_comes_back/1, a_node_that_the_others_need_stays/1,
         a_node_comes_back_while_another_one_joins/1, a_node_joins_those_that_agree/1,
         a_node_joins_when_the_dead_one_is_forgotten/1,
         a_dead_node_is_forgotten/1, a_node_that_is_forgotten_joins_again/1,
         nodes_find_each_other_by_dns/1,
         a_node_waits_for_its_cluster/1, a_cluster_that_is_killed_at_once_comes_back/1,
         nodes_take_snapshots_at_different_entries/1, options_are_checked/1]).
%% On the nodes.
-export([sample/1, samples/0, slow_down/1, hear/0, log/2, heard/0, lose_an_opening/0, opening/3,
         hold_elections/0, election/3, elections/0, fail_to_start/1, starting/3, tries/0,
         watch_burials/0, hold_burials/0, burial/3, burials/0, read_until_it_stops/0,
         write/1, applied/0, snapshot/0]).

-import(erlmcp_test_cluster, [incarnation/1]).

%% A death takes 1,250 ms of stillness, and at most 250 ms until it is noticed. Add the election of
%% a leader, and the other suites of this machine. `make test-cluster` has a tighter bound.
-define(DECLARED_MS, 10_000).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [options_are_checked, three_nodes_form_one_cluster, a_killed_leader_is_declared_dead_once,
     a_slow_leader_goes_on, elections_for_a_busy_leader_become_rare,
     a_leader_that_resigns_asks_another_one, a_leader_that_resigns_does_not_elect_itself,
     leases_come_back_while_the_leader_is_slow,
     a_lease_that_was_opened_unheard_is_ended, a_home_that_begins_late_is_unseen,
     a_node_that_stood_still_is_fenced, a_full_connection_holds_no_lease_up,
     a_doubt_closes_no_other_connection, a_minority_has_no_lease,
     a_part_that_stands_still_ends_the_lease_late,
     a_node_alone_among_silent_ones_has_no_lease, a_store_that_cannot_start_is_tried_again,
     a_node_whose_processes_restart_has_joined, reads_end_while_the_store_stops,
     a_part_that_cannot_start_says_so_once,
     a_silent_node_holds_no_other_up, a_silent_node_holds_no_join_up,
     one_node_writes_a_death_down, a_node_leaves_and_comes_back,
     a_node_that_the_others_need_stays, a_node_comes_back_while_another_one_joins,
     a_node_joins_those_that_agree,
     a_node_joins_when_the_dead_one_is_forgotten,
     a_dead_node_is_forgotten, a_node_that_is_forgotten_joins_again,
     nodes_find_each_other_by_dns, a_node_waits_for_its_cluster,
     a_cluster_that_is_killed_at_once_comes_back, nodes_take_snapshots_at_different_entries].

init_per_testcase(options_are_checked, Config) ->
    Config;
init_per_testcase(nodes_find_each_other_by_dns, Config) ->
    {Dns, Port} = erlmcp_test_dns:start(#{"mcp.test" => [{127, 0, 0, 2}, {127, 0, 0, 3},
                                                         {127, 0, 0, 4}]}),
    Inetrc = filename:join(proplists:get_value(priv_dir, Config), "inetrc"),
    ok = file:write_file(Inetrc, io_lib:format("{resolv_conf, \"\"}.~n{hosts_file, \"\"}.~n"
                                               "{lookup, [dns]}.~n"
                                               "{nameserver, {127,0,0,1}, ~b}.~n", [Port])),
    with_members(#{options => #{discovery => {dns, "mcp.test"}},
                   args => ["-kernel", "inetrc", lists:flatten(io_lib:format("~0p", [Inetrc]))]},
                 [{dns, Dns} | Config]);
init_per_testcase(_, Config) ->
    with_members(#{}, Config).

with_members(Extra, Config) ->
    [{members, erlmcp_test_cluster:start(Config, Extra)} | Config].

end_per_testcase(_, Config) ->
    _ = [erlmcp_test_dns:stop(Dns) || {dns, Dns} <- Config],
    lists:foreach(fun erlmcp_test_cluster:stop/1, proplists:get_value(members, Config, [])).

options_are_checked(Config) ->
    {ok, Started} = application:ensure_all_started(erlmcp_cluster),
    Folder = filename:join(proplists:get_value(priv_dir, Config), "options"),
    Good = #{data_dir => Folder, discovery => {seeds, ['mcp@127.0.0.2']},
             secret => {env, "ERLMCP_TEST_NO_SECRET"}},
    Bad = fun(Name, Value) ->
        {error, {bad_option, Name, Expected}} = erlmcp_cluster:join(Good#{Name => Value}),
        true = is_binary(Expected)
    end,
    [Bad(Name, Value)
     || {Name, Values} <- [{data_dir, [none, ""]}, {join_ms, [0, infinity, 4_294_967_296]},
                           {size, [0, 65, three]},
                           {discovery, [{seeds, []}, {seeds, [mcp]}, {seeds, ["mcp@a"]},
                                        {seeds, lists:duplicate(65, 'mcp@a')}, {dns, ""}, dns]},
                           {secret, ["0123456789012345678901234567890123456789", [], {file, ""},
                                     [{env, "A"}, {env, "B"}, {env, "C"}]]},
                           {no_such_option, [1]}],
        Value <- Values],
    [{error, {bad_option, Name, _}} = erlmcp_cluster:join(maps:remove(Name, Good))
     || Name <- [data_dir, discovery, secret]],
    {error, not_distributed} = erlmcp_cluster:join(Good),
    {error, not_joined} = erlmcp_cluster:leave(),
    {error, not_joined} = erlmcp_cluster:forget('mcp@127.0.0.2'),
    {error, not_joined} = erlmcp_cluster:status(),
    %% An operator is told the same, whatever the question.
    [{error, ~"this node is in no cluster"} = erlmcp_cluster:operate(Question, none)
     || Question <- [#{~"do" => ~"status"}, #{~"do" => ~"leave"},
                     #{~"do" => ~"forget", ~"node" => ~"mcp@127.0.0.2"}]],
    false = erlmcp_cluster_lease:is_valid(),
    [ok = application:stop(Application) || Application <- lists:reverse(Started)].

three_nodes_form_one_cluster(Config) ->
    [A | _] = Members = joined(Config),
    Statuses = [erlmcp_test_cluster:status(Member) || Member <- Members],
    [_] = lists:usort([maps:get(members, Status) || Status <- Statuses]),
    3 = length(lists:usort([maps:get(incarnation, Status) || Status <- Statuses])),
    [] = [Status || #{deaths := Deaths} = Status <- Statuses, Deaths =/= []],
    {error, already_joined} =
        erlmcp_test_cluster:call(A, erlmcp_cluster, join, [maps:get(options, A)]),
    %% A session that one of them opens is known to each, for its principal.
    Id = opened(A, ~"alice"),
    Home = {node_of(A), incarnation(A)},
    [{ok, #{session := #{revision := '2025-06-18', client_info := #{~"name" := ~"suite"}}}, Home} =
         found(Member, Id, ~"alice") || Member <- Members],
    [unknown = found(Member, Id, ~"bob") || Member <- Members],
    %% A node that has not seen the last renewal of a lease does not end it. This lease may not have
    %% been renewed yet.
    [changed = erlmcp_test_cluster:call(Member, erlmcp_cluster_store, end_lease,
                                        [incarnation(A), {alive, node_of(A), -1}, dead])
     || Member <- Members],
    %% The machine may be too busy for that now and then.
    ok = sampled(Members),
    true = lists:any(fun(_) -> all_last(Members) end, lists:seq(1, 6)).

%% Whether the leases last for three seconds, and no node is declared dead meanwhile.
all_last(Members) ->
    Deaths = [deaths(Member) || Member <- Members],
    Began = erlang:system_time(millisecond),
    receive after 3_000 -> ok end,
    lists:all(fun(Member) ->
        Valid = [IsValid || {Time, IsValid, _} <- samples(Member), Time >= Began],
        length([false || false <- Valid]) * 20 =< length(Valid)
    end, Members) andalso Deaths =:= [deaths(Member) || Member <- Members].

a_killed_leader_is_declared_dead_once(Config) ->
    Members = joined(Config),
    {Leader, Survivors} = leader(Members),
    Number = incarnation(Leader),
    Ids = [opened(Leader, ~"alice") || _ <- lists:seq(1, 30)],
    ok = sampled(Survivors),
    ok = erlmcp_test_cluster:kill(Leader),
    {_, Took} = erlmcp_test_cluster:in_time(fun() -> all_say([Number], Survivors) end,
                                          ?DECLARED_MS),
    ct:pal("declared dead after ~b ms; leases of the others: ~p",
           [Took, [length([false || {_, false, _} <- samples(Member)]) || Member <- Survivors]]),
    %% All see the same, and see it once.
    [[Death]] = lists:usort([deaths(Member) || Member <- Survivors]),
    {Number, #{epoch := 1, survivors := Left}} = Death,
    Left = lists:sort([incarnation(Member) || Member <- Survivors]),
    %% Both survivors agree on the home of each session, and each has some.
    Homes = [begin
                 [{ok, _, Home}] = lists:usort([found(Member, Id, ~"alice")
                                                || Member <- Survivors]),
                 Home
             end || Id <- Ids],
    2 = length(lists:usort(Homes)),
    [] = [Home || {Node, _} = Home <- Homes, Node =:= node_of(Leader)],
    %% It comes back with what it had on disk, as another incarnation, and takes nothing.
    Back = erlmcp_test_cluster:revive(Leader),
    try
        [ok] = erlmcp_test_cluster:join([Back]),
        true = incarnation(Back) > Number,
        {_, _} = erlmcp_test_cluster:await(fun() -> alive([Back | Survivors]) end, 30_000),
        Homes = [begin
                     {ok, _, Home} = found(Back, Id, ~"alice"),
                     Home
                 end || Id <- Ids],
        [[Death]] = lists:usort([deaths(Member) || Member <- [Back | Survivors]])
    after
        erlmcp_test_cluster:stop(Back)
    end.

%% To elect another one would make it slower. A busy machine can make the leader slower than this
%% case does.
a_slow_leader_goes_on(Config) ->
    Members = joined(Config),
    [ok = erlmcp_test_cluster:call(Member, ?MODULE, hold_elections, []) || Member <- Members],
    true = lists:any(fun(_) -> goes_on(Members) end, lists:seq(1, 10)).

%% Whether no election is asked for after a doubt in which the leader was slow for 150 ms at most.
goes_on(Members) ->
    {Leader, [By, _]} = leader(Members),
    Before = erlmcp_test_cluster:call(By, ?MODULE, elections, []),
    Began = erlang:monotonic_time(millisecond),
    ok = erlmcp_test_cluster:call(Leader, sys, suspend, [erlmcp_cluster]),
    ok = erlmcp_test_cluster:call(By, erlmcp_cluster_store, doubt, []),
    ok = erlmcp_test_cluster:call(Leader, sys, resume, [erlmcp_cluster]),
    Took = erlang:monotonic_time(millisecond) - Began,
    %% Until the doubt is over.
    _ = erlmcp_test_cluster:call(By, sys, get_state, [erlmcp_cluster_store]),
    case Took =< 150 of
        true -> erlmcp_test_cluster:call(By, ?MODULE, elections, []) =:= Before;
        false -> goes_on(Members)
    end.

%% Each one makes the cluster slower, and this node waits longer before the next one, until a leader
%% has answered. No election is held, so that the same leader is busy for all of the time.
elections_for_a_busy_leader_become_rare(Config) ->
    Members = joined(Config),
    {Leader, [By, Other]} = leader(Members),
    [ok = erlmcp_test_cluster:call(Member, ?MODULE, hold_elections, []) || Member <- [By, Other]],
    Store = fun(Do) -> ok = erlmcp_test_cluster:call(Leader, sys, Do, [erlmcp_cluster]) end,
    Elections = fun() -> erlmcp_test_cluster:call(By, ?MODULE, elections, []) end,
    Doubt = fun() ->
        ok = erlmcp_test_cluster:call(By, erlmcp_cluster_store, doubt, []),
        _ = erlmcp_test_cluster:call(By, sys, get_state, [erlmcp_cluster_store])
    end,
    Store(suspend),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        ok = erlmcp_test_cluster:call(By, erlmcp_cluster_store, doubt, []),
        length(Elections()) >= 3
    end, 30_000),
    [First, Second, Third | _] = Times = lists:reverse(Elections()),
    ct:pal("elections ~w ms after the first one", [[Time - First || Time <- Times]]),
    %% However late the node is, none is due before so many milliseconds have passed.
    true = Second - First >= 400 andalso Third - Second >= 800,
    Store(resume),
    [Doubt() || _ <- [1, 2]],
    Answered = length(Elections()),
    Store(suspend),
    Pauses = erlmcp_test_pauses:start(),
    {Took, _} = timer:tc(Doubt, millisecond),
    Paused = erlmcp_test_pauses:total_ms(Pauses),
    ok = erlmcp_test_pauses:stop(Pauses),
    Store(resume),
    true = length(Elections()) > Answered,
    true = Took - Paused < 1_600.

%% The node that it asks first stands still. No node that doubts the leader helps.
a_leader_that_resigns_asks_another_one(Config) ->
    Members = joined(Config),
    {Leader, Others} = leader(Members),
    [ok = erlmcp_test_cluster:call(Member, ?MODULE, hold_elections, []) || Member <- Members],
    [{_, First}, {_, Second}] = lists:sort([{incarnation(Other), Other} || Other <- Others]),
    ok = erlmcp_test_cluster:call(First, sys, suspend, [erlmcp_cluster]),
    ok = erlmcp_test_cluster:call(Leader, erlmcp_cluster_store, resign, []),
    {_, _} = erlmcp_test_cluster:await(fun() -> leads(Second, Second) end, 30_000),
    ok = erlmcp_test_cluster:call(First, sys, resume, [erlmcp_cluster]),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        lists:all(fun(Member) -> leads(Second, Member) end, Members)
    end, 30_000).

%% Nobody else can lead. A node that is about to stop must not ask for an election that it wins.
a_leader_that_resigns_does_not_elect_itself(Config) ->
    Members = joined(Config),
    {Leader, Others} = leader(Members),
    ok = erlmcp_test_cluster:call(Leader, ?MODULE, hold_elections, []),
    [ok = erlmcp_test_cluster:call(Other, sys, suspend, [erlmcp_cluster]) || Other <- Others],
    _ = erlmcp_test_cluster:call(Leader, erlang, spawn, [erlmcp_cluster_store, resign, []]),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        erlmcp_test_cluster:call(Leader, ra, ping, [{erlmcp_cluster, node_of(Leader)}, 5_000])
            =:= {pong, await_condition}
    end, 30_000),
    ok = erlmcp_test_cluster:call(Leader, erlmcp_cluster_store, doubt, []),
    %% Until the doubt is over.
    _ = erlmcp_test_cluster:call(Leader, sys, get_state, [erlmcp_cluster_store]),
    [] = erlmcp_test_cluster:call(Leader, ?MODULE, elections, []),
    [ok = erlmcp_test_cluster:call(Other, sys, resume, [erlmcp_cluster]) || Other <- Others].

%% Whether a node leads, as another one sees it.
leads(#{node := Node}, Member) ->
    erlmcp_test_cluster:call(Member, erlmcp_cluster_store, leader, []) =:= Node.

%% A renewal takes longer than until the next one is due, so the lease ends. But the node finds out
%% whether it still has it, and one that begins again has a lease that is valid. No election is
%% held: on a busy machine another node would lead, which is not slow.
leases_come_back_while_the_leader_is_slow(Config) ->
    Members = joined(Config),
    {Leader, [Other, _]} = leader(Members),
    [ok = erlmcp_test_cluster:call(Member, ?MODULE, hold_elections, []) || Member <- Members],
    ok = erlmcp_test_cluster:call(Leader, ?MODULE, slow_down, [150]),
    {_, _} = erlmcp_test_cluster:await(fun() -> not has_lease(Other) end, 30_000),
    {_, Took} = erlmcp_test_cluster:await(fun() -> has_lease(Other) end, 30_000),
    ct:pal("a lease after ~b ms", [Took]),
    ok = erlmcp_test_cluster:call(Other, ?MODULE, hear, []),
    %% If the machine stands still meanwhile, the lease may be over when it has begun.
    true = lists:any(fun(_) -> begins_valid(Other) end, [1, 2, 3]).

%% Whether the lease of another incarnation is valid when it has begun.
begins_valid(Member) ->
    Number = incarnation(Member),
    ok = lose_lease(Member),
    {New, Took} = erlmcp_test_cluster:await(fun() -> newer(Member, Number) end, 30_000),
    {{cluster_lease_begun, New, IsValid}, _} =
        erlmcp_test_cluster:await(fun() -> lists:keyfind(New, 2, heard(Member)) end, 30_000),
    ct:pal("another lease after ~b ms", [Took]),
    IsValid.

%% The store has opened it, but did not answer in time. Nobody needs to declare it dead.
a_lease_that_was_opened_unheard_is_ended(Config) ->
    [A, _, C] = Members = joined(Config),
    Number = incarnation(C),
    [ok = erlmcp_test_cluster:call(Member, ?MODULE, hear, []) || Member <- Members],
    ok = erlmcp_test_cluster:call(C, ?MODULE, lose_an_opening, []),
    ok = lose_lease(C),
    {Unheard, _} = erlmcp_test_cluster:await(fun() ->
        erlmcp_test_cluster:call(C, persistent_term, get, [{?MODULE, lost}, false])
    end, 30_000),
    {_, _} = erlmcp_test_cluster:await(fun() -> newer(C, Unheard) end, 30_000),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        [] =:= [Number, Unheard] -- [Dead || {Dead, _} <- deaths(A)]
    end, 30_000),
    %% C may be the first to declare its own one dead.
    Declared = [Dead || Member <- Members,
                        {cluster_node_declared_dead, Dead, _} <- heard(Member)],
    {true, false} = {lists:member(Number, Declared), lists:member(Unheard, Declared)}.

heard(Member) ->
    erlmcp_test_cluster:call(Member, ?MODULE, heard, []).

%% Its number was given out before that of one that has begun. Whoever has not heard of it waits.
a_home_that_begins_late_is_unseen(Config) ->
    [A, B, C] = joined(Config),
    {ok, Late} = erlmcp_test_cluster:call(A, erlmcp_cluster_store, next_incarnation, []),
    ok = lose_lease(C),
    {Number, _} = erlmcp_test_cluster:await(fun() -> newer(C, Late) end, 30_000),
    Home = fun(First) ->
        erlmcp_test_cluster:call(B, erlmcp_cluster_members, home, [<<7:96>>, First])
    end,
    {_, _} = erlmcp_test_cluster:await(fun() -> is_tuple(Home(Number)) end, 30_000),
    unseen = Home(Late),
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster_store, open_lease, [Late]),
    Node = node_of(A),
    {{ok, {Node, Late}, _}, _} = erlmcp_test_cluster:await(fun() ->
        case Home(Late) of
            unseen -> false;
            Known -> Known
        end
    end, 30_000).

lose_lease(Member) ->
    Lease = erlmcp_test_cluster:call(Member, erlang, whereis, [erlmcp_cluster_lease]),
    true = erlmcp_test_cluster:call(Member, erlang, exit, [Lease, kill]),
    ok.

%% The leader stands still, which is harder for the others: no connection closes.
a_node_that_stood_still_is_fenced(Config) ->
    Members = joined(Config),
    {Still, Others} = leader(Members),
    Number = incarnation(Still),
    ok = sampled(Members),
    Id = opened(Still, ~"alice"),
    ok = erlmcp_test_cluster:pause(Still),
    {_, Took} = erlmcp_test_cluster:in_time(fun() -> all_say([Number], Others) end,
                                          ?DECLARED_MS),
    Declared = erlang:system_time(millisecond),
    receive after max(0, 3_000 - Took) -> ok end,
    [[{Number, #{survivors := Left}}]] = lists:usort([deaths(Member) || Member <- Others]),
    Left = lists:sort([incarnation(Member) || Member <- Others]),
    Woken = erlang:system_time(millisecond),
    ok = erlmcp_test_cluster:resume(Still),
    {New, Back} = erlmcp_test_cluster:await(fun() -> newer(Still, Number) end, 30_000),
    Samples = samples(Still),
    %% From its declaration until it had a new incarnation, no request there saw a valid lease.
    Valid = [Time || {Time, true, Of} <- Samples, Of =:= Number, Time >= Declared],
    ct:pal("declared after ~b ms, woken after ~b more, again in the cluster ~b ms after that as ~b",
           [Took, Woken - Declared, Back, New]),
    [] = Valid,
    {_, _} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 30_000),
    %% Its sessions stay where they went.
    [{ok, _, {Home, _}}] = lists:usort([found(Member, Id, ~"alice") || Member <- Members]),
    false = Home =:= node_of(Still),
    %% The others hardly noticed.
    ct:pal("samples without a lease at the others: ~p",
           [[length([Sample || {_, false, _} = Sample <- samples(Member)])
             || Member <- Others]]).

%% What a process sends waits for room then, until OTP closes the connection after a minute.
a_full_connection_holds_no_lease_up(Config) ->
    Members = joined(Config),
    {Leader, Others} = leader(Members),
    Number = incarnation(Leader),
    Lease = fun(Do) ->
        [ok = erlmcp_test_cluster:call(Other, sys, Do, [erlmcp_cluster_lease]) || Other <- Others]
    end,
    %% They find the connections full.
    Lease(suspend),
    ok = erlmcp_test_cluster:pause(Leader),
    [ok = erlmcp_test_cluster_node:fill(Other, Leader) || Other <- Others],
    Lease(resume),
    {_, Took} = erlmcp_test_cluster:await(fun() ->
        lists:all(fun has_lease/1, Others) andalso all_say([Number], Others)
    end, 30_000),
    ct:pal("leases again, and the leader dead, after ~b ms", [Took]),
    ok = erlmcp_test_cluster:resume(Leader),
    {_, _} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 30_000).

%% It may be full because it is busy. The leader answers, so it is not in the way.
a_doubt_closes_no_other_connection(Config) ->
    Members = joined(Config),
    {_, [Doubting, Still]} = leader(Members),
    Call = fun(Module, Function, Arguments) ->
        erlmcp_test_cluster:call(Doubting, Module, Function, Arguments)
    end,
    %% This process would close the connection to a dead node.
    ok = Call(sys, suspend, [erlmcp_cluster_members]),
    ok = erlmcp_test_cluster:pause(Still),
    ok = erlmcp_test_cluster_node:fill(Doubting, Still),
    lists:foreach(fun(_) ->
        ok = Call(erlmcp_cluster_store, doubt, []),
        %% The doubt is over.
        _ = Call(sys, get_state, [erlmcp_cluster_store])
    end, [first, second, third]),
    Connected = Call(erlang, nodes, []),
    ok = erlmcp_test_cluster:resume(Still),
    ok = Call(sys, resume, [erlmcp_cluster_members]),
    true = lists:member(node_of(Still), Connected),
    {_, _} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 30_000).

a_minority_has_no_lease(Config) ->
    Members = joined(Config),
    {Alone, Others} = leader(Members),
    Number = incarnation(Alone),
    ok = erlmcp_test_cluster:cut([Alone], Others),
    {_, Took} = erlmcp_test_cluster:in_time(fun() -> not has_lease(Alone) end, 1_500),
    ct:pal("no lease after ~b ms", [Took]),
    {_, _} = erlmcp_test_cluster:in_time(fun() -> all_say([Number], Others) end, ?DECLARED_MS),
    {_, _} = erlmcp_test_cluster:await(fun() -> lists:all(fun has_lease/1, Others) end, 30_000),
    %% It cannot open a session, nor does it declare anybody dead.
    no_lease = certified(Alone, ~"alice"),
    [] = deaths(Alone),
    ok = erlmcp_test_cluster:heal([Alone], Others),
    {_, Back} = erlmcp_test_cluster:await(fun() -> newer(Alone, Number) end, 30_000),
    ct:pal("back after ~b ms", [Back]),
    {_, _} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 30_000),
    {_, _} = erlmcp_test_cluster:await(fun() -> all_say([Number], Members) end, 30_000).

%% A node's part of the store stands still while it takes a snapshot. The leader renews the lease in
%% its place, twice.
a_part_that_stands_still_ends_the_lease_late(Config) ->
    Members = joined(Config),
    {_, [Still, Other]} = leader(Members),
    %% The machine may stand still, too.
    true = lists:any(fun(_) -> lasts_without_its_part(Still) end, lists:seq(1, 6)),
    {_, _} = erlmcp_test_cluster:await(fun() -> has_lease(Still) end, 30_000),
    Number = incarnation(Still),
    ok = erlmcp_test_cluster:call(Still, sys, suspend, [erlmcp_cluster]),
    {_, Took} = erlmcp_test_cluster:await(fun() -> not has_lease(Still) end, 30_000),
    ct:pal("no lease after ~b ms", [Took]),
    {_, _} = erlmcp_test_cluster:await(fun() -> all_say([Number], [Other]) end, 30_000),
    ok = erlmcp_test_cluster:call(Still, sys, resume, [erlmcp_cluster]),
    {_, _} = erlmcp_test_cluster:await(fun() -> newer(Still, Number) end, 30_000).

%% Whether the lease lasts while the node's part of the store stands still for 1.5 seconds.
lasts_without_its_part(Member) ->
    {_, _} = erlmcp_test_cluster:await(fun() -> has_lease(Member) end, 30_000),
    Number = incarnation(Member),
    ok = erlmcp_test_cluster:call(Member, sys, suspend, [erlmcp_cluster]),
    receive after 1_500 -> ok end,
    Lasts = erlmcp_test_cluster:call(Member, erlmcp_cluster_lease, incarnation, []) =:= Number,
    ok = erlmcp_test_cluster:call(Member, sys, resume, [erlmcp_cluster]),
    Lasts.

%% Two of three stand still: nothing closes a connection, and there is no majority.
a_node_alone_among_silent_ones_has_no_lease(Config) ->
    Members = joined(Config),
    {Leader, [Alone, Other]} = leader(Members),
    Silent = [Leader, Other],
    lists:foreach(fun erlmcp_test_cluster:pause/1, Silent),
    {_, Took} = erlmcp_test_cluster:in_time(fun() -> not has_lease(Alone) end, 1_500),
    ct:pal("no lease after ~b ms", [Took]),
    receive after 2_000 -> ok end,
    false = has_lease(Alone),
    %% It knows of no leader any more. Whoever asks for what the cluster has agreed on is told so.
    {error, _} = erlmcp_test_cluster:call(Alone, erlmcp_cluster_store, leases, [consistency]),
    %% It could declare no other one dead.
    [] = deaths(Alone),
    lists:foreach(fun erlmcp_test_cluster:resume/1, Silent),
    {_, _} = erlmcp_test_cluster:await(fun() -> lists:all(fun has_lease/1, Members) end, 30_000).

%% As on a full disk. The node needs nobody when it can start again.
a_store_that_cannot_start_is_tried_again(Config) ->
    [A, B, C] = Members = joined(Config),
    Number = incarnation(C),
    ok = erlmcp_test_cluster:call(C, ?MODULE, fail_to_start, [true]),
    Store = erlmcp_test_cluster:call(C, erlang, whereis, [erlmcp_cluster_store]),
    true = erlmcp_test_cluster:call(C, erlang, exit, [Store, kill]),
    {_, _} = erlmcp_test_cluster:await(fun() -> all_say([Number], [A, B]) end, ?DECLARED_MS),
    {error, already_joined} =
        erlmcp_test_cluster:call(C, erlmcp_cluster, join, [maps:get(options, C)]),
    ok = erlmcp_test_cluster:call(C, ?MODULE, fail_to_start, [false]),
    {_, Took} = erlmcp_test_cluster:await(fun() -> has_lease(C) end, 30_000),
    ct:pal("a lease after ~b ms", [Took]),
    %% A supervisor whose processes have restarted too often ends in this way.
    ok = erlmcp_test_cluster:call(C, gen_server, stop,
                                  [erlmcp_cluster_member_sup, shutdown, 30_000], 30_000),
    {_, _} = erlmcp_test_cluster:await(fun() -> has_lease(C) andalso alive(Members) end, 30_000),
    %% An operator who has stopped its processes lets it join again.
    ok = erlmcp_test_cluster:call(C, supervisor, terminate_child, [erlmcp_cluster_sup, member],
                                  30_000),
    {error, not_joined} = erlmcp_test_cluster:call(C, erlmcp_cluster, status, []),
    [ok] = erlmcp_test_cluster:join([C]),
    {_, _} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 30_000).

%% One of its processes has just ended, and its supervisor has not started it again yet.
a_node_whose_processes_restart_has_joined(Config) ->
    [A, B, C] = joined(Config),
    [ok = erlmcp_test_cluster:call(Member, sys, suspend, [erlmcp_cluster_member_sup])
     || Member <- [B, C]],
    ok = erlmcp_test_cluster:call(C, gen_server, stop, [erlmcp_cluster_changes, shutdown, 30_000]),
    #{alive := #{}} = erlmcp_test_cluster:status(C),
    {error, alive} = erlmcp_test_cluster:call(C, erlmcp_cluster, forget, [node_of(A)]),
    %% It has no server, so that all are drained. It gives its sessions up.
    ok = erlmcp_test_cluster:call(C, erlmcp_cluster, leaving, [none]),
    no_lease = certified(C, ~"alice"),
    ok = erlmcp_test_cluster:call(B, gen_server, stop, [erlmcp_cluster_lease, shutdown, 30_000]),
    {error, noproc} = erlmcp_test_cluster:call(B, erlmcp_cluster, leave, []).

%% As when its disk is full. Whoever reads at that moment gets an error, and does not crash.
reads_end_while_the_store_stops(Config) ->
    [_, _, C] = joined(Config),
    %% One that is late must not find the next part.
    ok = erlmcp_test_cluster:call(C, ?MODULE, fail_to_start, [true]),
    [normal] = erlmcp_test_cluster:call(C, ?MODULE, read_until_it_stops, []).

%% The process of the store lives on, and tries again twice a second. So does a process that looks
%% for tasks meanwhile, whose tables have ended.
a_part_that_cannot_start_says_so_once(Config) ->
    [_, _, C] = Members = joined(Config),
    ok = erlmcp_test_cluster:call(C, ?MODULE, hear, []),
    ok = erlmcp_test_cluster:call(C, ?MODULE, fail_to_start, [true]),
    Results = fun() ->
        [Result || {cluster_store_started_again, Result, _} <- heard(C)]
    end,
    [begin
         ok = erlmcp_test_cluster:call(C, ?MODULE, fail_to_start, [true]),
         Looks = erlmcp_test_cluster:call(C, erlang, whereis, [erlmcp_cluster_lost_tasks]),
         ok = erlmcp_test_cluster:call(C, ra_system, stop, [erlmcp_cluster]),
         behind = erlmcp_test_cluster:call(C, erlang, send, [Looks, behind]),
         _ = erlmcp_test_cluster:call(C, sys, get_state, [Looks]),
         {_, _} = erlmcp_test_cluster:await(fun() -> Results() =/= Before end, 30_000),
         Tries = fun() -> erlmcp_test_cluster:call(C, ?MODULE, tries, []) end,
         Tried = Tries(),
         {_, _} = erlmcp_test_cluster:await(fun() -> Tries() >= Tried + 2 end, 30_000),
         ok = erlmcp_test_cluster:call(C, ?MODULE, fail_to_start, [false]),
         {_, _} = erlmcp_test_cluster:await(fun() -> lists:last(Results()) =:= ok end, 30_000),
         After = Before ++ [{error, enospc}, ok],
         After = Results(),
         {_, _} = erlmcp_test_cluster:await(fun() -> has_lease(C) andalso alive(Members) end,
                                            30_000)
     end || Before <- [[], [{error, enospc}, ok]]].

%% It stands still, and OTP has not noticed yet. Another node can stop, and is told that it cannot
%% start: with one of three there is no majority.
a_silent_node_holds_no_other_up(Config) ->
    [Silent, A, B] = Members = joined(Config),
    ok = erlmcp_test_cluster:pause(Silent),
    Pauses = erlmcp_test_pauses:start(),
    {Stopped, ok} = timer:tc(fun() ->
        erlmcp_test_cluster:call(A, erlmcp_cluster_sup, stop_member, [], 60_000)
    end, millisecond),
    {Joined, [{error, timeout}]} = timer:tc(fun() ->
        erlmcp_test_cluster:join([A], 1_000)
    end, millisecond),
    Paused = erlmcp_test_pauses:total_ms(Pauses),
    ok = erlmcp_test_pauses:stop(Pauses),
    ct:pal("stopped after ~b ms, and gave up after ~b ms, with pauses of ~b ms",
           [Stopped, Joined, Paused]),
    true = Stopped - Paused < 12_000 andalso Joined - Paused < 20_000,
    ok = erlmcp_test_cluster:resume(Silent),
    [ok] = erlmcp_test_cluster:join([A]),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        lists:all(fun has_lease/1, [A, B]) andalso alive(Members)
    end, 20_000).

%% It is no member, and stands still when the new node has started its part of the store.
a_silent_node_holds_no_join_up(Config) ->
    [Silent, A, #{options := Options} = B] = proplists:get_value(members, Config),
    ok = erlmcp_test_cluster:cut([A], [B]),
    Seeds = Options#{discovery => {seeds, [node_of(A), node_of(B)]}},
    [ok] = erlmcp_test_cluster:join([A#{options := (maps:get(options, A))#{
                                           discovery => {seeds, [node_of(A)]}}}]),
    true = erlmcp_test_cluster:call(B, net_kernel, connect_node, [node_of(Silent)]),
    Pauses = erlmcp_test_pauses:start(),
    Test = self(),
    _ = spawn_link(fun() ->
        Test ! {joined, timer:tc(fun() ->
            erlmcp_test_cluster:join([B#{options := Seeds}], 12_000)
        end, millisecond)}
    end),
    {_, _} = erlmcp_test_cluster:await(fun() ->
        %% It answers.
        [node_of(B)] =:= erlmcp_test_cluster:call(B, erlmcp_cluster_store, members, [])
    end, 30_000),
    ok = erlmcp_test_cluster:pause(Silent),
    ok = erlmcp_test_cluster:heal([A], [B]),
    {Took, Joined} = receive {joined, Timed} -> Timed end,
    Paused = erlmcp_test_pauses:total_ms(Pauses),
    ok = erlmcp_test_pauses:stop(Pauses),
    ct:pal("~p after ~b ms, with pauses of ~b ms", [Joined, Took, Paused]),
    [{error, timeout}] = Joined,
    true = Took - Paused < 40_000,
    ok = erlmcp_test_cluster:resume(Silent),
    [ok] = erlmcp_test_cluster:join([B#{options := Seeds}]),
    {_, _} = erlmcp_test_cluster:await(fun() -> alive([A, B]) end, 30_000).

%% A node that stops does not wait for that. If the oldest one does not do it, another one does.
one_node_writes_a_death_down(Config) ->
    [A, B, C] = Members = joined(Config),
    [ok = erlmcp_test_cluster:call(Member, ?MODULE, watch_burials, []) || Member <- Members],
    [{_, Oldest}, {_, Other}] = lists:sort([{incarnation(Member), Member} || Member <- [A, B]]),
    Stop = fun() ->
        Number = incarnation(C),
        ok = erlmcp_test_cluster:call(C, erlmcp_cluster_sup, stop_member, [], 30_000),
        {_, _} = erlmcp_test_cluster:await(fun() -> is_dead(Number, [A, B]) end, 30_000),
        Number
    end,
    Writes = fun(Member, Number) -> lists:member(Number, burials(Member)) end,
    Began = erlang:monotonic_time(millisecond),
    First = Stop(),
    false = Writes(C, First),
    Written = {Writes(Oldest, First), Writes(Other, First)},
    Took = erlang:monotonic_time(millisecond) - Began,
    ct:pal("written down within ~b ms", [Took]),
    case Written of
        {true, false} -> ok;
        %% Half a second later the other one tries, too.
        {_, true} when Took >= 500 -> ok
    end,
    [ok] = erlmcp_test_cluster:join([C]),
    {_, _} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 30_000),
    ok = erlmcp_test_cluster:call(Oldest, ?MODULE, hold_burials, []),
    Second = Stop(),
    true = Writes(Other, Second).

is_dead(Number, Members) ->
    lists:all(fun(Member) -> lists:keymember(Number, 1, deaths(Member)) end, Members).

burials(Member) ->
    erlmcp_test_cluster:call(Member, ?MODULE, burials, []).

a_node_leaves_and_comes_back(Config) ->
    [A, B, Leaving] = joined(Config),
    Number = incarnation(Leaving),
    Id = opened(Leaving, ~"alice"),
    ok = erlmcp_test_cluster:leave(Leaving),
    {_, Took} = erlmcp_test_cluster:await(fun() -> all_say([Number], [A, B]) end, 30_000),
    ct:pal("its sessions had another home after ~b ms", [Took]),
    {error, not_joined} = erlmcp_test_cluster:call(Leaving, erlmcp_cluster, status, []),
    Two = lists:sort([node_of(A), node_of(B)]),
    {_, _} = erlmcp_test_cluster:await(fun() -> members([A, B]) =:= [Two] end, 30_000),
    [{ok, _, {Home, _}}] = lists:usort([found(Member, Id, ~"alice") || Member <- [A, B]]),
    true = lists:member(Home, Two),
    [ok] = erlmcp_test_cluster:join([Leaving]),
    true = incarnation(Leaving) > Number,
    {_, _} = erlmcp_test_cluster:await(fun() -> alive([A, B, Leaving]) end, 30_000).

%% Without it the others could not even forget the dead one.
a_node_that_the_others_need_stays(Config) ->
    [A, B, Dead] = joined(Config),
    [Last, Number] = [incarnation(Member) || Member <- [A, Dead]],
    ok = erlmcp_test_cluster:kill(Dead),
    %% Its lease has not ended yet.
    ok = refuses_to_leave(no_majority, A),
    {_, _} = erlmcp_test_cluster:in_time(fun() -> all_say([Number], [A, B]) end, ?DECLARED_MS),
    ok = refuses_to_leave(no_majority, A),
    Last = incarnation(A),
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster, forget, [node_of(Dead)], 30_000),
    Two = lists:sort([node_of(A), node_of(B)]),
    {_, _} = erlmcp_test_cluster:await(fun() -> members([A, B]) =:= [Two] end, 30_000),
    ok = erlmcp_test_cluster:leave(B),
    {_, _} = erlmcp_test_cluster:await(fun() -> members([A]) =:= [[node_of(A)]] end, 30_000),
    ok = refuses_to_leave(last_member, A),
    Last = incarnation(A).

%% A busy machine may say `timeout` before.
refuses_to_leave(Reason, Member) ->
    {_, _} = erlmcp_test_cluster:await(fun() ->
        case erlmcp_test_cluster:call(Member, erlmcp_cluster, leave, []) of
            {error, Reason} -> true;
            {error, timeout} -> false
        end
    end, 30_000),
    ok.

%% Each takes a lock to start its part. One that can only join later must not keep it from the one
%% that is waited for.
a_node_comes_back_while_another_one_joins(Config) ->
    {Leader, [Other, Joining]} = leader(joined(Config)),
    ok = erlmcp_test_cluster:leave(Joining),
    Two = lists:sort([node_of(Leader), node_of(Other)]),
    {_, _} = erlmcp_test_cluster:await(fun() -> members([Leader, Other]) =:= [Two] end, 30_000),
    %% Nobody can lead then.
    ok = erlmcp_test_cluster:kill(Leader),
    [Joined, {Back, BackAgain, Took}] = erlmcp_test_cluster:at_once(fun(Do) -> Do() end, [
        fun() -> erlmcp_test_cluster:join([Joining]) end,
        fun() ->
            %% The other one has begun to join by then.
            receive after 2_000 -> ok end,
            Revived = erlmcp_test_cluster:revive(Leader),
            Pauses = erlmcp_test_pauses:start(),
            {Milliseconds, Done} =
                timer:tc(fun() -> erlmcp_test_cluster:join([Revived]) end, millisecond),
            Paused = erlmcp_test_pauses:total_ms(Pauses),
            ok = erlmcp_test_pauses:stop(Pauses),
            {Revived, Done, Milliseconds - Paused}
        end]),
    ct:pal("it was back after ~b ms", [Took]),
    try
        {[ok], [ok]} = {Joined, BackAgain},
        true = Took < 8_000,
        {_, _} = erlmcp_test_cluster:await(fun() -> alive([Back, Other, Joining]) end, 30_000)
    after
        erlmcp_test_cluster:stop(Back)
    end.

%% It is in touch with all. One of them, the first that it finds, is cut off from the others.
a_node_joins_those_that_agree(Config) ->
    [A, B, C] = joined(Config),
    ok = erlmcp_test_cluster:cut([A], [B, C]),
    {_, _} = erlmcp_test_cluster:await(fun() -> not has_lease(A) end, 30_000),
    New = another(C),
    try
        [ok] = erlmcp_test_cluster:join([New]),
        {_, _} = erlmcp_test_cluster:await(fun() -> alive([B, C, New]) end, 30_000)
    after
        erlmcp_test_cluster:stop(New)
    end.

%% Three of four would be needed for a majority, so the new one would have to have all facts.
a_node_joins_when_the_dead_one_is_forgotten(Config) ->
    [A, B, Dead] = joined(Config),
    Number = incarnation(Dead),
    ok = erlmcp_test_cluster:kill(Dead),
    {_, _} = erlmcp_test_cluster:in_time(fun() -> all_say([Number], [A, B]) end, ?DECLARED_MS),
    New = another(Dead),
    try
        Gone = node_of(Dead),
        {_, _} = erlmcp_test_cluster:await(fun() ->
            case erlmcp_test_cluster:join([New], 1_000) of
                [{error, {dead_members, [Gone]}}] -> true;
                %% On a busy machine.
                [{error, Late}] when Late =:= timeout; Late =:= no_cluster -> false
            end
        end, 60_000),
        ok = erlmcp_test_cluster:call(A, erlmcp_cluster, forget, [Gone], 30_000),
        [ok] = erlmcp_test_cluster:join([New]),
        {_, _} = erlmcp_test_cluster:await(fun() -> alive([A, B, New]) end, 30_000)
    after
        erlmcp_test_cluster:stop(New)
    end.

%% A node of the same cluster at an address of its own.
another(#{options := #{data_dir := Folder} = Options} = Member) ->
    Address = "127.0.0.5",
    Own = filename:join(filename:dirname(Folder), Address),
    erlmcp_test_cluster:boot((maps:without([peer, node, os_pid], Member))#{
        address := Address, options := Options#{data_dir := Own}}).

a_dead_node_is_forgotten(Config) ->
    [A, B, Dead] = joined(Config),
    {error, alive} = erlmcp_test_cluster:call(A, erlmcp_cluster, forget, [node_of(Dead)]),
    Number = incarnation(Dead),
    %% Ra writes its own tables seconds later.
    [ok = erlmcp_test_cluster:call(Dead, dets, sync, [Table])
     || Table <- erlmcp_test_cluster:call(Dead, dets, all, [])],
    ok = erlmcp_test_cluster:kill(Dead),
    {_, _} = erlmcp_test_cluster:in_time(fun() -> all_say([Number], [A, B]) end, ?DECLARED_MS),
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster, forget, [node_of(Dead)], 30_000),
    {error, not_member} =
        erlmcp_test_cluster:call(A, erlmcp_cluster, forget, [node_of(Dead)], 30_000),
    Two = lists:sort([node_of(A), node_of(B)]),
    {_, _} = erlmcp_test_cluster:await(fun() -> members([A, B]) =:= [Two] end, 30_000),
    %% It comes back with what it had on disk, and joins as a new one.
    Back = erlmcp_test_cluster:revive(Dead),
    try
        [ok] = erlmcp_test_cluster:join([Back]),
        {_, _} = erlmcp_test_cluster:await(fun() -> alive([A, B, Back]) end, 30_000),
        {_, _} = erlmcp_test_cluster:await(fun() -> are_three([A, B, Back]) end, 30_000)
    after
        erlmcp_test_cluster:stop(Back)
    end.

%% It was cut off, and is alive.
a_node_that_is_forgotten_joins_again(Config) ->
    [A, B, Alone] = Members = joined(Config),
    Number = incarnation(Alone),
    Id = opened(Alone, ~"alice"),
    ok = erlmcp_test_cluster:cut([Alone], [A, B]),
    {_, _} = erlmcp_test_cluster:in_time(fun() -> all_say([Number], [A, B]) end, ?DECLARED_MS),
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster, forget, [node_of(Alone)], 30_000),
    Two = lists:sort([node_of(A), node_of(B)]),
    {_, _} = erlmcp_test_cluster:await(fun() -> members([A, B]) =:= [Two] end, 30_000),
    ok = erlmcp_test_cluster:heal([Alone], [A, B]),
    {_, Back} = erlmcp_test_cluster:await(fun() -> newer(Alone, Number) end, 60_000),
    ct:pal("joined again after ~b ms", [Back]),
    {_, _} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 30_000),
    {_, _} = erlmcp_test_cluster:await(fun() -> are_three(Members) end, 30_000),
    [{ok, _, {Home, _}}] = lists:usort([found(Member, Id, ~"alice") || Member <- Members]),
    true = lists:member(Home, Two).

%% Whether each knows the same three members. A node whose store is slow says none.
are_three(Members) ->
    case members(Members) of
        [[_, _, _]] -> true;
        _ -> false
    end.

nodes_find_each_other_by_dns(Config) ->
    Members = joined(Config),
    {_, _} = erlmcp_test_cluster:await(fun() -> are_three(Members) end, 30_000),
    %% A node that asks for another name stays alone.
    [Any | _] = Members,
    [] = erlmcp_test_cluster:call(Any, erlmcp_cluster_discovery, nodes, [{dns, "none.test"}]).

%% Two of three are no cluster, when it is new.
a_node_waits_for_its_cluster(Config) ->
    [A, B, C] = proplists:get_value(members, Config),
    %% A busy machine takes seconds to start a part of the store, and says `timeout` if it is late.
    [{error, no_cluster}, {error, no_cluster}] = erlmcp_test_cluster:join([A, B], 10_000),
    [ok, ok, ok] = erlmcp_test_cluster:join([A, B, C]),
    {_, _} = erlmcp_test_cluster:await(fun() -> alive([A, B, C]) end, 30_000).

%% What each node is goes to the disk before it has joined.
a_cluster_that_is_killed_at_once_comes_back(Config) ->
    Members = proplists:get_value(members, Config),
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    Last = lists:max([incarnation(Member) || Member <- Members]),
    ok = lists:foreach(fun erlmcp_test_cluster:kill/1, Members),
    Back = erlmcp_test_cluster:at_once(fun erlmcp_test_cluster:revive/1, Members),
    try
        [ok, ok, ok] = erlmcp_test_cluster:join(Back, 30_000),
        %% Those of a new cluster would begin with 1.
        [] = [Number || Number <- [incarnation(Member) || Member <- Back], Number =< Last]
    after
        lists:foreach(fun erlmcp_test_cluster:stop/1, Back)
    end.

%% What the nodes say.

joined(Config) ->
    Members = proplists:get_value(members, Config),
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    {_, Took} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 30_000),
    ct:pal("all see all ~b ms after they have joined", [Took]),
    Members.

node_of(#{node := Node}) -> Node.

%% Each sees the present incarnations of all of these, and no others.
alive(Members) ->
    Expected = lists:sort([{node_of(Member), incarnation(Member)} || Member <- Members]),
    lists:all(fun(Member) ->
                  #{alive := Alive} = erlmcp_test_cluster:status(Member),
                  Expected =:= lists:sort([{Node, Number} || Number := Node <- Alive])
              end, Members).

%% A machine that is too busy may have had more.
all_say(Deaths, Members) ->
    lists:all(fun(Member) ->
                  #{deaths := Said} = erlmcp_test_cluster:status(Member),
                  [] =:= Deaths -- Said
              end, Members).

members(Members) ->
    lists:usort([lists:sort(maps:get(members, erlmcp_test_cluster:status(Member)))
                 || Member <- Members]).

deaths(Member) ->
    erlmcp_cluster_deaths:list(erlmcp_test_cluster:call(Member, erlmcp_cluster_members, deaths,
                                                        [])).

has_lease(Member) ->
    erlmcp_test_cluster:call(Member, erlmcp_cluster_lease, is_valid, []).

newer(Member, Than) ->
    case erlmcp_test_cluster:call(Member, erlmcp_cluster_lease, incarnation, []) of
        Number when is_integer(Number), Number > Than -> Number;
        _ -> false
    end.

leader(Members) ->
    {Node, _} = erlmcp_test_cluster:await(fun() ->
        #{leader := Leads} = erlmcp_test_cluster:status(hd(Members)),
        Leads =/= none andalso Leads
    end, 30_000),
    {[Leader], Others} = lists:partition(fun(Member) -> node_of(Member) =:= Node end, Members),
    {Leader, Others}.

%% A busy machine may let a lease end for a moment.
opened(Member, Principal) ->
    {Id, _} = erlmcp_test_cluster:await(fun() ->
        case certified(Member, Principal) of
            {ok, New, _} -> New;
            no_lease -> false
        end
    end, 30_000),
    Id.

certified(Member, Principal) ->
    Session = #{principal => Principal, scopes => all, revision => '2025-06-18',
                client_info => #{~"name" => ~"suite", ~"version" => ~"1"},
                client_capabilities => #{}, log_level => 6, initialized => false},
    erlmcp_test_cluster:call(Member, erlmcp_cluster_sessions, certify,
                             [Session, erlmcp_cluster_session_id:server(~"server")]).

found(Member, Id, Principal) ->
    case erlmcp_test_cluster:call(Member, erlmcp_cluster_sessions, home,
                                  [Id, erlmcp_cluster_session_id:server(~"server"), Principal]) of
        {ok, Birth, Home, _} -> {ok, Birth, Home};
        unknown -> unknown
    end.

%% What a request would see on a node, each 5 ms.

sampled(Members) ->
    lists:foreach(fun(Member) ->
                      Sampler = erlmcp_test_cluster:call(Member, erlang, spawn,
                                                         [?MODULE, sample, [[]]]),
                      true = erlmcp_test_cluster:call(Member, erlang, register,
                                                      [sampler, Sampler])
                  end, Members).

samples(Member) ->
    erlmcp_test_cluster:call(Member, ?MODULE, samples, []).

-doc false.
sample(Samples) ->
    receive
        {samples, From} ->
            From ! {samples, Samples},
            sample(Samples)
    after 5 ->
        %% The node may stand still between the two.
        Time = erlang:system_time(millisecond),
        Number = erlmcp_cluster_lease:incarnation(),
        sample([{Time, is_integer(Number), Number} | Samples])
    end.

-doc false.
samples() ->
    sampler ! {samples, self()},
    receive {samples, Samples} -> Samples end.

%% Whatever is sent to this node's part of the store arrives so many milliseconds later.
-doc false.
slow_down(Milliseconds) ->
    Store = whereis(erlmcp_cluster),
    true = unregister(erlmcp_cluster),
    true = register(erlmcp_cluster, spawn(fun() -> delay(Store, Milliseconds) end)),
    ok.

delay(Store, Milliseconds) ->
    receive Message -> erlang:send_after(Milliseconds, Store, Message) end,
    delay(Store, Milliseconds).

%% What the node logs of incarnations and of its store from now on, and whether its own lease was
%% valid then.
-doc false.
hear() ->
    true = register(hears, spawn(fun() -> hear([]) end)),
    ok = logger:set_primary_config(level, notice),
    logger:add_handler(?MODULE, ?MODULE, #{}).

hear(Heard) ->
    receive
        {heard, From} ->
            From ! {heard, lists:reverse(Heard)},
            hear(Heard);
        Event ->
            hear([Event | Heard])
    end.

-doc false.
log(#{msg := {report, #{what := What, incarnation := Number}}}, _) ->
    hears ! {What, Number, erlmcp_cluster_lease:is_valid()};
log(#{msg := {report, #{what := What, result := Result}}}, _) ->
    hears ! {What, Result, erlmcp_cluster_lease:is_valid()};
log(_, _) ->
    ok.

-doc false.
heard() ->
    hears ! {heard, self()},
    receive {heard, Heard} -> Heard end.

%% The first lease that this node opens from now on is open, but the node does not hear of it.
-doc false.
lose_an_opening() ->
    erlmcp_bench_wrapping:around(erlmcp_cluster_store,
                                 [{{open_lease, 1}, {?MODULE, opening, lost}}]).

-doc false.
opening(lost, [Incarnation] = Arguments, Whole) ->
    Opened = apply(Whole, Arguments),
    case {Opened, persistent_term:get({?MODULE, lost}, not_yet)} of
        {ok, not_yet} ->
            ok = persistent_term:put({?MODULE, lost}, Incarnation),
            {error, timeout};
        _ ->
            Opened
    end.

%% This node notes the times of the elections that it would ask for.
-doc false.
hold_elections() ->
    ok = persistent_term:put({?MODULE, elections}, []),
    erlmcp_bench_wrapping:around(erlmcp_cluster_store,
                                 [{{elect, 0}, {?MODULE, election, held}}]).

-doc false.
election(held, _, _) ->
    persistent_term:put({?MODULE, elections}, [erlmcp_clock:now_ms() | elections()]).

-doc false.
elections() ->
    persistent_term:get({?MODULE, elections}).

%% Whether this node's part of the store cannot be started.
-doc false.
fail_to_start(Fails) ->
    case persistent_term:get({?MODULE, fails}, none) of
        none ->
            ok = persistent_term:put({?MODULE, fails}, Fails),
            ok = persistent_term:put({?MODULE, tries}, counters:new(1, [])),
            erlmcp_bench_wrapping:around(erlmcp_cluster_store,
                                         [{{start_store, 1}, {?MODULE, starting, fails}}]);
        _ ->
            persistent_term:put({?MODULE, fails}, Fails)
    end.

-doc false.
starting(fails, Arguments, Whole) ->
    ok = counters:add(persistent_term:get({?MODULE, tries}), 1, 1),
    case persistent_term:get({?MODULE, fails}) of
        true -> {error, enospc};
        false -> apply(Whole, Arguments)
    end.

-doc false.
tries() ->
    counters:get(persistent_term:get({?MODULE, tries}), 1).

%% Which deaths this node writes down, or tries to.
-doc false.
watch_burials() ->
    ok = persistent_term:put({?MODULE, burials}, []),
    erlmcp_bench_wrapping:around(erlmcp_cluster_store, [{{bury, 1}, {?MODULE, burial, of_node}}]).

-doc false.
hold_burials() ->
    persistent_term:put({?MODULE, burials}, held).

-doc false.
burial(of_node, [Incarnation] = Arguments, Whole) ->
    case persistent_term:get({?MODULE, burials}) of
        held ->
            {error, timeout};
        Before ->
            ok = persistent_term:put({?MODULE, burials}, [Incarnation | Before]),
            apply(Whole, Arguments)
    end.

-doc false.
burials() ->
    persistent_term:get({?MODULE, burials}).

%% Returns how the readers have ended.
-doc false.
read_until_it_stops() ->
    Readers = [spawn_monitor(fun() -> read_until_it_stops(Favor) end)
               || _ <- lists:seq(1, 50), Favor <- [low_latency, consistency]],
    receive after 100 -> ok end,
    ok = ra_system:stop(erlmcp_cluster),
    lists:usort([receive {'DOWN', Monitor, process, _, Reason} -> Reason end
                 || {_, Monitor} <- Readers]).

read_until_it_stops(Favor) ->
    case erlmcp_cluster_store:leases(Favor) of
        {ok, _} -> read_until_it_stops(Favor);
        {error, _} -> ok
    end.

%% A node is busy while it writes all facts to its disk. If all did so at the same entry of the log,
%% none would answer meanwhile.
nodes_take_snapshots_at_different_entries(Config) ->
    [A | _] = Members = joined(Config),
    {Entries, _} = erlmcp_test_cluster:await(fun() ->
        ok = erlmcp_test_cluster:call(A, ?MODULE, write, [1_000]),
        ok = all_follow(Members),
        Taken = [erlmcp_test_cluster:call(Member, ?MODULE, snapshot, []) || Member <- Members],
        not lists:member(none, Taken) andalso Taken
    end, 120_000),
    ct:pal("snapshots of the entries ~w", [Entries]),
    [First, Second, Third] = lists:sort(Entries),
    true = Second - First > 100 andalso Third - Second > 100.

%% A member that fell far behind would get the snapshot of the leader.
all_follow(Members) ->
    {_, _} = erlmcp_test_cluster:await(fun() ->
        Applied = [erlmcp_test_cluster:call(Member, ?MODULE, applied, []) || Member <- Members],
        lists:max(Applied) - lists:min(Applied) < 100
    end, 30_000),
    ok.

%% Each is an entry of its own. Nobody waits for the answers but the last. If the leader changes
%% meanwhile, that answer is lost, and the last one is written again.
-doc false.
write(Entries) ->
    _ = [ok = khepri:put(erlmcp_cluster, [test], Number, #{async => true})
         || Number <- lists:seq(2, Entries)],
    {_, _} = erlmcp_test_cluster:await(fun() ->
        khepri:put(erlmcp_cluster, [test], 1, #{timeout => 5_000}) =:= ok
    end, 30_000),
    ok.

-doc false.
applied() ->
    #{last_applied := Applied} = ra:key_metrics({erlmcp_cluster, node()}),
    Applied.

%% The last entry whose outcome is in this node's snapshot.
-doc false.
snapshot() ->
    case ra:key_metrics({erlmcp_cluster, node()}) of
        #{snapshot_index := Index} when Index > 0 -> Index;
        #{} -> none
    end.
