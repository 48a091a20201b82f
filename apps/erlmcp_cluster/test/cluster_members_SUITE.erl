-module(cluster_members_SUITE).
-moduledoc """
Three nodes, each a process of the operating system: they agree on who is alive, whatever happens to
one of them. A node is killed, stands still, is cut off, leaves, and comes back.
""".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([three_nodes_form_one_cluster/1, a_killed_leader_is_declared_dead_once/1,
         a_node_that_stood_still_is_fenced/1, a_minority_has_no_lease/1,
         a_node_alone_among_silent_ones_has_no_lease/1, a_node_leaves_and_comes_back/1,
         a_dead_node_is_forgotten/1, nodes_find_each_other_by_dns/1,
         a_node_waits_for_its_cluster/1, options_are_checked/1]).
%% On the nodes.
-export([sample/1, samples/0]).

%% A death takes 1,250 ms of stillness, and at most 250 ms until it is noticed. Add the election of
%% a leader, and the other suites of this machine.
-define(DECLARED_MS, 4_000).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [options_are_checked, three_nodes_form_one_cluster, a_killed_leader_is_declared_dead_once,
     a_node_that_stood_still_is_fenced, a_minority_has_no_lease,
     a_node_alone_among_silent_ones_has_no_lease, a_node_leaves_and_comes_back,
     a_dead_node_is_forgotten, nodes_find_each_other_by_dns, a_node_waits_for_its_cluster].

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
     || {Name, Values} <- [{data_dir, [none, ""]}, {join_ms, [0, infinity]},
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
    %% A node that has not seen the last renewal of a lease does not end it.
    [changed = erlmcp_test_cluster:call(Member, erlmcp_cluster_store, end_lease,
                                        [incarnation(A), {alive, node_of(A), 0}, dead])
     || Member <- Members],
    %% For five seconds the leases last, and no node is declared dead. The machine may be too busy
    %% for them now and then.
    ok = sampled(Members),
    receive after 5_000 -> ok end,
    [begin
         Samples = samples(Member),
         Without = [Sample || {_, false, _} = Sample <- Samples],
         true = length(Without) * 20 =< length(Samples)
     end || Member <- Members],
    [#{deaths := []} = erlmcp_test_cluster:status(Member) || Member <- Members].

a_killed_leader_is_declared_dead_once(Config) ->
    Members = joined(Config),
    {Leader, Survivors} = leader(Members),
    Number = incarnation(Leader),
    Ids = [opened(Leader, ~"alice") || _ <- lists:seq(1, 30)],
    ok = sampled(Survivors),
    ok = erlmcp_test_cluster:kill(Leader),
    {_, Took} = erlmcp_test_cluster:await(fun() -> all_say([Number], Survivors) end,
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
        {_, _} = erlmcp_test_cluster:await(fun() -> alive([Back | Survivors]) end, 5_000),
        Homes = [begin
                     {ok, _, Home} = found(Back, Id, ~"alice"),
                     Home
                 end || Id <- Ids],
        [[Death]] = lists:usort([deaths(Member) || Member <- [Back | Survivors]])
    after
        erlmcp_test_cluster:stop(Back)
    end.

%% The leader stands still, which is harder for the others: no connection closes.
a_node_that_stood_still_is_fenced(Config) ->
    Members = joined(Config),
    {Still, Others} = leader(Members),
    Number = incarnation(Still),
    ok = sampled(Members),
    Id = opened(Still, ~"alice"),
    ok = erlmcp_test_cluster:pause(Still),
    {_, Took} = erlmcp_test_cluster:await(fun() -> all_say([Number], Others) end,
                                          ?DECLARED_MS),
    Declared = erlang:system_time(millisecond),
    receive after max(0, 3_000 - Took) -> ok end,
    [[{Number, #{survivors := Left}}]] = lists:usort([deaths(Member) || Member <- Others]),
    Left = lists:sort([incarnation(Member) || Member <- Others]),
    Woken = erlang:system_time(millisecond),
    ok = erlmcp_test_cluster:resume(Still),
    {New, Back} = erlmcp_test_cluster:await(fun() -> newer(Still, Number) end, 5_000),
    Samples = samples(Still),
    %% From its declaration until it had a new incarnation, no request there saw a valid lease.
    Valid = [Time || {Time, true, Of} <- Samples, Of =:= Number, Time >= Declared],
    ct:pal("declared after ~b ms, woken after ~b more, again in the cluster ~b ms after that as ~b",
           [Took, Woken - Declared, Back, New]),
    [] = Valid,
    {_, _} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 5_000),
    %% Its sessions stay where they went.
    [{ok, _, {Home, _}}] = lists:usort([found(Member, Id, ~"alice") || Member <- Members]),
    false = Home =:= node_of(Still),
    %% The others hardly noticed.
    ct:pal("samples without a lease at the others: ~p",
           [[length([Sample || {_, false, _} = Sample <- samples(Member)])
             || Member <- Others]]).

a_minority_has_no_lease(Config) ->
    Members = joined(Config),
    {Alone, Others} = leader(Members),
    Number = incarnation(Alone),
    ok = erlmcp_test_cluster:cut([Alone], Others),
    {_, Took} = erlmcp_test_cluster:await(fun() -> not has_lease(Alone) end, 1_500),
    ct:pal("no lease after ~b ms", [Took]),
    {_, _} = erlmcp_test_cluster:await(fun() -> all_say([Number], Others) end, ?DECLARED_MS),
    {_, _} = erlmcp_test_cluster:await(fun() -> lists:all(fun has_lease/1, Others) end, 2_000),
    %% It cannot open a session, nor does it declare anybody dead.
    no_lease = certified(Alone, ~"alice"),
    [] = deaths(Alone),
    ok = erlmcp_test_cluster:heal([Alone], Others),
    {_, Back} = erlmcp_test_cluster:await(fun() -> newer(Alone, Number) end, 30_000),
    ct:pal("back after ~b ms", [Back]),
    {_, _} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 5_000),
    {_, _} = erlmcp_test_cluster:await(fun() -> all_say([Number], Members) end, 5_000).

%% Two of three stand still: nothing closes a connection, and there is no majority.
a_node_alone_among_silent_ones_has_no_lease(Config) ->
    [Alone | Silent] = Members = joined(Config),
    Before = [incarnation(Member) || Member <- Members],
    lists:foreach(fun erlmcp_test_cluster:pause/1, Silent),
    {_, Took} = erlmcp_test_cluster:await(fun() -> not has_lease(Alone) end, 1_500),
    ct:pal("no lease after ~b ms", [Took]),
    receive after 2_000 -> ok end,
    false = has_lease(Alone),
    lists:foreach(fun erlmcp_test_cluster:resume/1, Silent),
    {_, _} = erlmcp_test_cluster:await(fun() -> lists:all(fun has_lease/1, Members) end, 15_000),
    %% No node could declare another one dead, so none has.
    receive after 500 -> ok end,
    [] = lists:append([deaths(Member) || Member <- Members]),
    Before = [incarnation(Member) || Member <- Members].

a_node_leaves_and_comes_back(Config) ->
    [A, B, Leaving] = joined(Config),
    Number = incarnation(Leaving),
    Id = opened(Leaving, ~"alice"),
    ok = erlmcp_test_cluster:call(Leaving, erlmcp_cluster, leave, [], 30_000),
    {_, Took} = erlmcp_test_cluster:await(fun() -> all_say([Number], [A, B]) end, 2_000),
    ct:pal("its sessions had another home after ~b ms", [Took]),
    {error, not_joined} = erlmcp_test_cluster:call(Leaving, erlmcp_cluster, status, []),
    Two = lists:sort([node_of(A), node_of(B)]),
    {_, _} = erlmcp_test_cluster:await(fun() -> members([A, B]) =:= [Two] end, 5_000),
    [{ok, _, {Home, _}}] = lists:usort([found(Member, Id, ~"alice") || Member <- [A, B]]),
    true = lists:member(Home, Two),
    [ok] = erlmcp_test_cluster:join([Leaving]),
    true = incarnation(Leaving) > Number,
    {_, _} = erlmcp_test_cluster:await(fun() -> alive([A, B, Leaving]) end, 5_000).

a_dead_node_is_forgotten(Config) ->
    [A, B, Dead] = joined(Config),
    {error, alive} = erlmcp_test_cluster:call(A, erlmcp_cluster, forget, [node_of(Dead)]),
    Number = incarnation(Dead),
    ok = erlmcp_test_cluster:kill(Dead),
    {_, _} = erlmcp_test_cluster:await(fun() -> all_say([Number], [A, B]) end, ?DECLARED_MS),
    ok = erlmcp_test_cluster:call(A, erlmcp_cluster, forget, [node_of(Dead)], 30_000),
    {error, not_member} =
        erlmcp_test_cluster:call(A, erlmcp_cluster, forget, [node_of(Dead)], 30_000),
    Two = lists:sort([node_of(A), node_of(B)]),
    {_, _} = erlmcp_test_cluster:await(fun() -> members([A, B]) =:= [Two] end, 5_000),
    %% It comes back with what it had on disk, and joins as a new one.
    Back = erlmcp_test_cluster:revive(Dead),
    try
        [ok] = erlmcp_test_cluster:join([Back]),
        {_, _} = erlmcp_test_cluster:await(fun() -> alive([A, B, Back]) end, 5_000),
        3 = length(hd(members([A, B, Back])))
    after
        erlmcp_test_cluster:stop(Back)
    end.

nodes_find_each_other_by_dns(Config) ->
    Members = joined(Config),
    [[_, _, _]] = members(Members),
    %% A node that asks for another name stays alone.
    [Any | _] = Members,
    [] = erlmcp_test_cluster:call(Any, erlmcp_cluster_discovery, nodes, [{dns, "none.test"}]).

%% Two of three are no cluster, when it is new.
a_node_waits_for_its_cluster(Config) ->
    [A, B, C] = proplists:get_value(members, Config),
    [{error, no_cluster}, {error, no_cluster}] = erlmcp_test_cluster:join([A, B], 2_000),
    [ok, ok, ok] = erlmcp_test_cluster:join([A, B, C]),
    {_, _} = erlmcp_test_cluster:await(fun() -> alive([A, B, C]) end, 5_000).

%% What the nodes say.

joined(Config) ->
    Members = proplists:get_value(members, Config),
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    {_, Took} = erlmcp_test_cluster:await(fun() -> alive(Members) end, 10_000),
    ct:pal("all see all ~b ms after they have joined", [Took]),
    Members.

node_of(#{node := Node}) -> Node.

incarnation(Member) ->
    #{incarnation := Number} = erlmcp_test_cluster:status(Member),
    Number.

%% Each sees the present incarnations of all of these, and no others.
alive(Members) ->
    Expected = lists:sort([{node_of(Member), incarnation(Member)} || Member <- Members]),
    lists:all(fun(Member) ->
                  #{alive := Alive} = erlmcp_test_cluster:status(Member),
                  Expected =:= lists:sort([{Node, Number} || Number := Node <- Alive])
              end, Members).

all_say(Deaths, Members) ->
    lists:all(fun(Member) ->
                  #{deaths := Said} = erlmcp_test_cluster:status(Member),
                  Said =:= Deaths
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
    case erlmcp_test_cluster:status(Member) of
        #{incarnation := Number, lease_ms := Left} when Number > Than, Left > 0 -> Number;
        _ -> false
    end.

leader(Members) ->
    #{leader := Node} = erlmcp_test_cluster:status(hd(Members)),
    {[Leader], Others} = lists:partition(fun(Member) -> node_of(Member) =:= Node end, Members),
    {Leader, Others}.

opened(Member, Principal) ->
    {ok, Id} = certified(Member, Principal),
    Id.

certified(Member, Principal) ->
    Session = #{principal => Principal, scopes => all, revision => '2025-06-18',
                client_info => #{~"name" => ~"suite", ~"version" => ~"1"},
                client_capabilities => #{}, log_level => 6, initialized => false},
    erlmcp_test_cluster:call(Member, erlmcp_cluster_sessions, certify, [Session, ~"server"]).

found(Member, Id, Principal) ->
    case erlmcp_test_cluster:call(Member, erlmcp_cluster_sessions, home,
                                  [Id, ~"server", Principal]) of
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
        Number = erlmcp_cluster_lease:incarnation(),
        sample([{erlang:system_time(millisecond), is_integer(Number), Number} | Samples])
    end.

-doc false.
samples() ->
    sampler ! {samples, self()},
    receive {samples, Samples} -> Samples end.
