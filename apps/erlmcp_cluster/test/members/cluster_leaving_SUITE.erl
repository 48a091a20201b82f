-module(cluster_leaving_SUITE).
-moduledoc """
"Leaving" of `docs/cluster.md`: a node that is drained gives its sessions up and finishes its calls,
and one that stops ends its lease. The cases follow each other in one cluster of three nodes.
""".

-behaviour(erlmcp_server).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([the_cluster_is_shown/1, a_drained_node_fails_no_call/1,
         a_stopped_node_is_replaced_at_once/1, a_node_that_inherits_may_leave/1,
         a_change_that_has_begun_is_made/1, a_killed_process_delays_no_drain/1,
         a_lost_renewal_delays_a_drain/1, a_node_that_leaves_ends_its_streams/1,
         a_task_begins_while_its_node_leaves/1, a_drain_needs_no_other_process/1,
         a_drained_leader_leads_no_more/1, a_drained_server_starts_again/1,
         a_server_that_starts_again_ends_no_task/1, a_node_that_cannot_leave_serves_on/1,
         a_drained_node_that_cannot_leave_has_no_incarnation/1,
         a_node_alone_is_not_ready/1, sessions_outlive_a_stop_of_all/1,
         balancers_take_their_configurations/1]).
%% On the nodes.
-export([hear_of_deaths/0, has_declared_deaths/0, log/2, visits/0]).
-export([change/0, looks_for_changes/0, lose_a_renewal/0, renewal/3, is_handed_over/0]).
-export([hold_changes/0, make_changes/0, made_later/3, hold_lock/0]).
-export([server/0, tools/0, call_tool/3, stop/0]).

-import(erlmcp_test_cluster, [call/4, call/5, await/2, at_once/2]).
-import(erlmcp_test_cluster_node, [serve/2, answered/1, get_stream/3, await_waiting/2, finish/3,
                                   hold_sessions/2, await_held/2, release/2]).

-define(SERVER, ~"cluster_leaving_SUITE").
-define(REVISION, ~"2025-11-25").
-define(EXTENSION, #{~"io.modelcontextprotocol/tasks" => #{}}).
%% A lease that nobody ends is taken for dead after this time.
-define(STILL_MS, 1_250).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [the_cluster_is_shown, a_drained_node_fails_no_call, a_stopped_node_is_replaced_at_once,
     a_node_that_inherits_may_leave, a_change_that_has_begun_is_made,
     a_killed_process_delays_no_drain, a_lost_renewal_delays_a_drain,
     a_node_that_leaves_ends_its_streams, a_task_begins_while_its_node_leaves,
     a_drain_needs_no_other_process,
     a_drained_leader_leads_no_more, a_drained_server_starts_again,
     a_server_that_starts_again_ends_no_task, a_node_that_cannot_leave_serves_on,
     a_drained_node_that_cannot_leave_has_no_incarnation,
     a_node_alone_is_not_ready, sessions_outlive_a_stop_of_all,
     balancers_take_their_configurations].

init_per_suite(Config) ->
    Members = erlmcp_test_cluster:start(Config, #{}),
    [ok, ok, ok] = erlmcp_test_cluster:join(Members),
    ok = keep(at_once(fun served/1, Members)),
    ok = all_alive(),
    Config.

end_per_suite(_) ->
    lists:foreach(fun erlmcp_test_cluster:stop/1, members()),
    persistent_term:erase(?MODULE).

the_cluster_is_shown(_) ->
    [A, B, _] = members(),
    Session = initialize(A),
    #{~"result" := _} = result(B, Session, ~"ping", #{}),
    {Left, _} = await(fun() ->
        case call(A, erlmcp, health, [?SERVER]) of
            #{ready := true, checks := #{cluster := #{passes := true, observed := It}}} -> It;
            _ -> false
        end
    end, 30_000),
    true = Left =< 1_000,
    #{cluster := #{forwarded := Forwarded, majority := 2, nodes := Nodes}} =
        call(B, erlmcp, metrics, [?SERVER]),
    true = Forwarded >= 1,
    3 = length([Node || #{state := alive} = Node <- Nodes]),
    %% Another node may be elected at any time.
    {_, _} = await(fun() ->
        #{cluster := #{nodes := Shown}} = call(B, erlmcp, metrics, [?SERVER]),
        length([Node || #{leads := true} = Node <- Shown]) =:= 1
    end, 30_000),
    {ok, _} = call(B, application, ensure_all_started, [prometheus]),
    {200, _, Metrics} = call(B, erlmcp_prometheus, handle,
                             [#{method => ~"GET", below => ~""}, none]),
    Of = ["{server=\"", ?SERVER, $"],
    [{Line, {match, _}} = {Line, re:run(Metrics, [$^, Line, $$], [multiline])}
     || Line <- [["mcp_cluster_lease_seconds", Of, "} [01](\\.[0-9]+)?"],
                 ["mcp_cluster_nodes", Of, ",state=\"alive\"} 3"],
                 ["mcp_cluster_nodes", Of, ",state=\"dead\"} 0"],
                 ["mcp_cluster_majority", Of, "} 2"],
                 ["mcp_cluster_requests_forwarded_total", Of, "} [1-9][0-9]*"],
                 ["mcp_cluster_sessions_inherited_total", Of, "} 0"]]],
    %% Every node shows the figures of the others.
    {_, _} = await(fun() ->
        lists:all(fun(Member) -> has_figures(node_of(A), Member) end, members())
    end, 30_000).

has_figures(Node, Member) ->
    #{cluster := #{nodes := Nodes}} = call(Member, erlmcp, metrics, [?SERVER]),
    [] =/= [Of || #{node := Of, sessions := 1, lease_ms := _, forwarded := _, inherited := _}
                      <- Nodes, Of =:= Node].

%% What runs there is answered wherever its client waits, and what comes is served elsewhere. Its
%% tasks go on, too.
a_drained_node_fails_no_call(_) ->
    [A, B, C] = members(),
    Session = initialize(A),
    Own = start_tool(A, Session, 1, ~"wait", #{as => ~"own"}),
    Passed = start_tool(B, Session, 2, ~"wait", #{as => ~"passed"}),
    #{~"result" := #{~"task" := #{~"taskId" := Task}}} =
        result(A, Session, ~"tools/call",
               #{name => ~"wait", arguments => #{as => ~"task"}, task => #{}}),
    [_ = await_waiting(A, Name) || Name <- [~"own", ~"passed", ~"task"]],
    %% It came in at the node that leaves, and runs at another one.
    Out = start_tool(A, initialize(B), 3, ~"wait", #{as => ~"out"}),
    _ = await_waiting(B, ~"out"),
    Drain = draining(A, #{lame_ms => 200, timeout_ms => 60_000}),
    %% It is leaving: others have its sessions, and its lease goes on.
    {_, _} = await(fun() -> state(node_of(A), B) =:= leaving end, 30_000),
    [Home] = lists:usort([text(tool(Member, Session, ~"where")) || Member <- [B, C]]),
    false = Home =:= atom_to_binary(node_of(A)),
    %% For longer than a lease is valid by itself.
    receive after ?STILL_MS + 250 -> ok end,
    leaving = state(node_of(A), C),
    ~"working" = status(B, Session, Task),
    [ok = finish(A, Name, ~"done") || Name <- [~"own", ~"passed", ~"task"]],
    [#{messages := [#{~"result" := _}]} = erlmcp_test_http:response(Socket)
     || Socket <- [Own, Passed]],
    receive
        {drained, Drain, Early} -> error({drained_before_its_answer, Early})
    after 500 ->
        ok
    end,
    ok = finish(B, ~"out", ~"done"),
    #{messages := [#{~"result" := _}]} = erlmcp_test_http:response(Out),
    {ok, #{calls := 0, tasks := 0}} = drained(Drain),
    ~"completed" = status(B, Session, Task),
    %% It opens no session, and inherits none.
    no_lease = call(A, erlmcp_cluster_lease, next_nonce, []),
    ok = stopped(A),
    {_, _} = await(fun() -> state(node_of(A), B) =:= dead end, 30_000),
    ok = started_again(A),
    %% It takes nothing back.
    [Home] = lists:usort([text(tool(Member, Session, ~"where")) || Member <- members()]).

%% Without a drain its calls are lost, but not its sessions. No node has to declare it dead.
a_stopped_node_is_replaced_at_once(_) ->
    [A, B, C] = members(),
    Session = initialize(A),
    [ok = call(Member, ?MODULE, hear_of_deaths, []) || Member <- [B, C]],
    ok = stopped(A),
    {_, Took} = await(fun() -> state(node_of(A), B) =:= dead end, 30_000),
    ct:pal("dead ~b ms after it has stopped", [Took]),
    _ = text(tool(B, Session, ~"where")),
    [false = call(Member, ?MODULE, has_declared_deaths, []) || Member <- [B, C]],
    ok = started_again(A).

%% A request waits for the home after it.
a_node_that_inherits_may_leave(Config) ->
    [A, B, C] = members(),
    {Id, _} = Session = initialize(A),
    ok = stopped(A),
    {Node, _} = await(fun() ->
        case [element(3, call(Member, erlmcp_cluster_sessions, home,
                              [Id, server_of_ids(), anonymous]))
              || Member <- [B, C]] of
            [{Same, _}, {Same, _}] -> Same =/= node_of(A) andalso Same;
            _ -> false
        end
    end, 30_000),
    {[Home], [Other]} = lists:partition(fun(#{node := Of}) -> Of =:= Node end, [B, C]),
    %% While the store stands still, nobody knows yet what the home has to know of the session. If a
    %% busy machine lets it stand still for longer, leases end.
    Began = erlang:monotonic_time(millisecond),
    [ok = call(Member, sys, suspend, [erlmcp_cluster]) || Member <- [B, C]],
    Socket = start_tool(Other, Session, 1, ~"where", #{}),
    Passed = fun() -> erlang:monotonic_time(millisecond) - Began end,
    %% Without a lease the request does not come.
    {_, _} = await(fun() -> call(Home, ?MODULE, visits, []) =:= 1 orelse Passed() > 500 end,
                   30_000),
    Drain = draining(Home, #{timeout_ms => 0}),
    {_, _} = await(fun() -> call(Home, erlmcp_cluster_lease, incarnation, []) =:= none end, 30_000),
    [ok = call(Member, sys, resume, [erlmcp_cluster]) || Member <- [B, C]],
    Took = Passed(),
    #{messages := [Answer]} = erlmcp_test_http:response(Socket),
    ok = erlmcp_test_http:close(Socket),
    {ok, _} = drained(Drain),
    ok = started(A),
    ok = stopped(Home),
    ok = started_again(Home),
    case Took =< 500 of
        true -> true = text(Answer) =:= atom_to_binary(node_of(Other));
        false -> a_node_that_inherits_may_leave(Config)
    end.

%% The home waits until they are stored, before others are the homes of its sessions. It does so for
%% 1,500 ms, and its lease is valid for 1,000 ms, so a busy machine may be late.
a_change_that_has_begun_is_made(Config) ->
    [A, B, _] = members(),
    [First, Second] = [initialize(A) || _ <- [1, 2]],
    ok = call(A, ?MODULE, hold_changes, []),
    Began = erlang:monotonic_time(millisecond),
    Level = started(B, First, 1, ~"logging/setLevel", #{level => ~"error"}),
    Deleted = erlmcp_test_http:connect(http(B)),
    {Headers, _} = erlmcp_test_http:message(~"ping", #{}, #{session => Second, id => 2}),
    ok = erlmcp_test_http:send(Deleted, ~"DELETE", Headers, ~""),
    Passed = fun() -> erlang:monotonic_time(millisecond) - Began end,
    {_, _} = await(fun() -> call(A, ?MODULE, visits, []) =:= 2 orelse Passed() > 700 end, 30_000),
    Drain = draining(A, #{timeout_ms => 0}),
    {_, _} = await(fun() -> call(A, erlmcp_cluster_lease, incarnation, []) =:= none end, 30_000),
    ok = call(A, ?MODULE, make_changes, []),
    Answers = [erlmcp_test_http:response(Socket) || Socket <- [Level, Deleted]],
    Took = Passed(),
    [ok = erlmcp_test_http:close(Socket) || Socket <- [Level, Deleted]],
    {ok, _} = drained(Drain),
    ok = stopped(A),
    ok = started_again(A),
    case Took =< 700 of
        true -> [#{status := 200, messages := [#{~"result" := #{}}]}, #{status := 204}] = Answers;
        false -> a_change_that_has_begun_is_made(Config)
    end.

%% It cannot say that its change has ended. On a busy machine the lease may end first.
a_killed_process_delays_no_drain(Config) ->
    [A | _] = members(),
    Killed = call(A, ?MODULE, change, []),
    true = call(A, erlang, exit, [Killed, kill]),
    {_, _} = await(fun() -> not call(A, erlang, is_process_alive, [Killed]) end, 30_000),
    Looks = call(A, ?MODULE, looks_for_changes, []),
    ok = stopped(A),
    ok = started_again(A),
    case Looks of
        {error, Late} when Late =:= no_lease; Late =:= timeout ->
            a_killed_process_delays_no_drain(Config);
        _ ->
            0 = Looks
    end.

%% The others would not know yet that the node leaves. On a busy machine its lease may end first.
a_lost_renewal_delays_a_drain(Config) ->
    [_, B | _] = members(),
    ok = call(B, ?MODULE, lose_a_renewal, []),
    IsHandedOver = call(B, ?MODULE, is_handed_over, []),
    ok = stopped(B),
    ok = started_again(B),
    case IsHandedOver of
        {error, Late} when Late =:= no_lease; Late =:= timeout ->
            a_lost_renewal_delays_a_drain(Config);
        _ -> true = IsHandedOver
    end.

%% It was not drained. The clients open their streams again, and come to another node.
a_node_that_leaves_ends_its_streams(_) ->
    [B, _, A] = members(),
    [Own, Away] = [initialize(A) || _ <- [1, 2]],
    Streams = [listen(A) | [stream(Member, Session)
                            || {Member, Session} <- [{A, Own}, {B, Away}, {A, initialize(B)}]]],
    ok = erlmcp_test_cluster:leave(A),
    lists:foreach(fun ended/1, Streams),
    lists:foreach(fun erlmcp_test_http:close/1,
                  Streams ++ [stream(B, Session) || Session <- [Own, Away]]),
    [ok] = erlmcp_test_cluster:join([A]),
    ok = all_alive().

listen(Member) ->
    Socket = erlmcp_test_http:connect(http(Member)),
    {Headers, Body} = erlmcp_test_http:message(~"subscriptions/listen",
                                               #{notifications => #{toolsListChanged => true}},
                                               #{}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    {200, _} = erlmcp_test_http:head(Socket),
    Socket.

stream(Member, Session) ->
    {Socket, {200, _}} =
        get_stream(http(Member), Session, [{~"accept", ~"text/event-stream"}]),
    Socket.

ended(Socket) ->
    case erlmcp_test_http:chunk(Socket) of
        ~"" -> ok;
        _ -> ended(Socket)
    end.

%% Its call was taken before.
a_task_begins_while_its_node_leaves(_) ->
    [A, B, _] = members(),
    Session = initialize(A),
    Held = hold_sessions(A, ?SERVER),
    Asked = started(B, Session, 1, ~"tools/call",
                    #{name => ~"wait", arguments => #{as => ~"late"}, task => #{}}),
    ok = await_held(A, Held),
    Drain = draining(A, #{timeout_ms => 60_000}),
    {_, _} = await(fun() -> call(A, erlmcp_cluster_lease, incarnation, []) =:= none end, 30_000),
    ok = release(A, Held),
    #{messages := [#{~"result" := #{~"task" := #{~"taskId" := Task}}}]} =
        erlmcp_test_http:response(Asked),
    ok = erlmcp_test_http:close(Asked),
    _ = await_waiting(A, ~"late"),
    ok = finish(A, ~"late", ~"done"),
    {ok, #{tasks := 0}} = drained(Drain),
    ~"completed" = status(B, Session, Task),
    ok = stopped(A),
    ok = started_again(A).

%% The process of the copies is busy, or has just ended, and so has that of the lease.
a_drain_needs_no_other_process(_) ->
    [A | _] = members(),
    Drained = fun() ->
        {ok, #{calls := 0}} = call(A, erlmcp, drain, [?SERVER, #{timeout_ms => 0}])
    end,
    ok = call(A, sys, suspend, [erlmcp_cluster_events]),
    _ = Drained(),
    ok = call(A, sys, resume, [erlmcp_cluster_events]),
    [begin
         true = call(A, erlang, unregister, [Process]),
         Drained()
     end || Process <- [erlmcp_cluster_events, erlmcp_cluster_lease]],
    ok = stopped(A),
    ok = started_again(A).

%% The others need not wait for an election when it stops.
a_drained_leader_leads_no_more(_) ->
    [A | _] = members(),
    {{Node, Leader}, _} = await(fun() -> leader(A) end, 30_000),
    [Other | _] = lists:delete(Leader, members()),
    {ok, _} = call(Leader, erlmcp, drain, [?SERVER, #{timeout_ms => 0}]),
    {_, _} = await(fun() ->
        not lists:member(call(Other, erlmcp_cluster_store, leader, []), [Node, none])
    end, 30_000),
    ok = stopped(Leader),
    ok = started_again(Leader).

%% The node that leads as another one knows it, or `false`.
leader(Member) ->
    Node = call(Member, erlmcp_cluster_store, leader, []),
    case [Leads || #{node := Of} = Leads <- members(), Of =:= Node] of
        [Leader] -> {Node, Leader};
        [] -> false
    end.

%% Its node goes on, as when its application is stopped and started.
a_drained_server_starts_again(_) ->
    [A, B, _] = members(),
    Session = initialize(A),
    {ok, _} = call(A, erlmcp, drain, [?SERVER, #{timeout_ms => 0}]),
    Again = served_again(A),
    {_, _} = await(fun() -> is_ready(Again) end, 30_000),
    New = initialize(Again),
    Home = atom_to_binary(node_of(A)),
    [Home = text(tool(Member, New, ~"where")) || Member <- [Again, B]],
    %% It takes nothing back.
    false = Home =:= text(tool(B, Session, ~"where")),
    ok = all_alive().

%% Another server of its node was drained with it, and has a task that still runs.
a_server_that_starts_again_ends_no_task(_) ->
    [A | _] = members(),
    {_, [#{port := Port}]} = serve(A, #{id => other, handler => ?MODULE, cluster => erlmcp_cluster,
                                        listen => [{http, #{}}]}),
    Other = A#{http => #{port => Port, url => ~"http://127.0.0.1"}},
    #{~"result" := #{~"task" := #{~"taskId" := Task}}} =
        result(Other, initialize(Other), ~"tools/call",
               #{name => ~"wait", arguments => #{as => ~"other"}, task => #{}}),
    _ = await_waiting(A, ~"other"),
    {ok, #{tasks := 0}} = call(A, erlmcp, drain, [?SERVER, #{timeout_ms => 0}]),
    {ok, #{tasks := 1}} = call(A, erlmcp, drain, [other, #{timeout_ms => 0}]),
    Again = served_again(A),
    Renewals = renewals(A),
    {_, _} = await(fun() -> renewals(A) >= Renewals + 3 end, 30_000),
    #{checks := #{cluster := #{passes := false}}} = call(A, erlmcp, health, [?SERVER]),
    %% Its own tasks would end with the incarnation.
    #{~"error" := #{~"code" := 1080}} =
        erlmcp_test_client:ask(erlmcp_test_client:open(http(Again), http, ~"2026-07-28",
                                                       #{extensions => ?EXTENSION}),
                               ~"tools/call", #{name => ~"wait", arguments => #{as => ~"again"}}),
    ok = finish(A, ~"other", ~"done"),
    {_, _} = await(fun() -> is_completed(A, other, Task) end, 30_000),
    ok = call(A, erlmcp, stop_server, [other]),
    {_, _} = await(fun() -> is_ready(A) end, 30_000),
    _ = initialize(Again),
    ok = all_alive().

served_again(A) ->
    ok = call(A, erlmcp, stop_server, [?SERVER]),
    Again = served(A),
    ok = replaced(Again),
    Again.

renewals(#{node := Node} = Member) ->
    {ok, Leases} = call(Member, erlmcp_cluster_store, leases, [low_latency]),
    lists:max([Renewals || {leaving, Of, Renewals} <- maps:values(Leases), Of =:= Node]).

is_completed(Member, Server, Task) ->
    {ok, {_, _, #{status := Status}}} =
        call(Member, erlmcp_cluster_task_tables, find,
             [erlmcp_cluster_task_tables:server(Server), Task]),
    Status =:= completed.

%% One of three stands still, and OTP has not noticed yet.
a_node_that_cannot_leave_serves_on(_) ->
    {{_, Leads}, _} = await(fun() -> leader(hd(members())) end, 30_000),
    [Leaving, Silent] = lists:delete(Leads, members()),
    ok = erlmcp_test_cluster:pause(Silent),
    {_, _} = await(fun() ->
        case call(Leaving, erlmcp_cluster, leave, []) of
            {error, no_majority} -> true;
            %% On a busy machine.
            {error, timeout} -> false
        end
    end, 30_000),
    ok = erlmcp_test_cluster:resume(Silent),
    ok = all_alive(),
    %% Another node starts its part of the store, and is slow.
    Holder = call(Leads, erlang, spawn, [?MODULE, hold_lock, []]),
    {_, _} = await(fun() ->
        call(Leads, erlang, process_info, [Holder, label]) =:= {label, ?MODULE}
    end, 30_000),
    Pauses = erlmcp_test_pauses:start(),
    {Took, {error, timeout}} = timer:tc(fun() ->
        call(Leaving, erlmcp_cluster, leave, [], 90_000)
    end, millisecond),
    Paused = erlmcp_test_pauses:total_ms(Pauses),
    ok = erlmcp_test_pauses:stop(Pauses),
    ct:pal("gave up after ~b ms, with pauses of ~b ms", [Took, Paused]),
    true = Took - Paused < 25_000,
    Session = initialize(Leaving),
    true = text(tool(Leaving, Session, ~"where")) =:= atom_to_binary(node_of(Leaving)),
    true = call(Leads, erlang, exit, [Holder, kill]),
    ok = all_alive(),
    %% Its part of the store has ended, and nobody starts it again yet. So nothing says which nodes
    %% the cluster has.
    ok = call(Leaving, sys, suspend, [erlmcp_cluster_store]),
    ok = call(Leaving, khepri, stop, [erlmcp_cluster], 30_000),
    {error, timeout} = call(Leaving, erlmcp_cluster, leave, [], 30_000),
    ok = call(Leaving, sys, resume, [erlmcp_cluster_store]),
    ok = all_alive().

%% As `leave/0` does when the store has no answer. The last one is over, and no other begins.
a_drained_node_that_cannot_leave_has_no_incarnation(_) ->
    [A | _] = members(),
    {ok, _} = call(A, erlmcp, drain, [?SERVER, #{timeout_ms => 0}]),
    {ok, _} = await(fun() ->
        case call(A, erlmcp_cluster_lease, leave, []) of
            {error, timeout} -> false;
            Left -> Left
        end
    end, 30_000),
    ok = call(A, erlmcp_cluster_lease, stay, []),
    {_, _} = await(fun() ->
        #{incarnation := Incarnation} = erlmcp_test_cluster:status(A),
        Incarnation =:= none
    end, 30_000),
    _ = served_again(A),
    ok = all_alive().

%% It would serve no client that opens a session.
a_node_alone_is_not_ready(_) ->
    [A, B, C] = members(),
    ok = erlmcp_test_cluster:cut([A], [B, C]),
    {_, _} = await(fun() ->
        case call(A, erlmcp, health, [?SERVER]) of
            #{ready := false, checks := #{cluster := #{passes := false, observed := 0}}} -> true;
            _ -> false
        end
    end, 30_000),
    %% What needs no session goes on.
    #{status := 200} = erlmcp_test_http:call(http(A), ~"tools/list", #{}),
    ok = erlmcp_test_cluster:heal([A], [B, C]),
    {_, _} = await(fun() -> is_ready(A) end, 30_000),
    ok = all_alive().

is_ready(Member) ->
    #{ready := Ready} = call(Member, erlmcp, health, [?SERVER]),
    Ready.

%% The last node that stops is survived by the first one that comes back.
sessions_outlive_a_stop_of_all(_) ->
    [A | _] = Members = members(),
    Session = initialize(A),
    lists:foreach(fun(Member) -> ok = stopped(Member) end, Members),
    Back = at_once(fun(Member) -> erlmcp_test_cluster:revive(maps:remove(http, Member)) end,
                   Members),
    ok = keep(Back),
    [ok, ok, ok] = erlmcp_test_cluster:join(Back),
    ok = keep(at_once(fun served/1, Back)),
    {_, _} = await(fun() -> is_map_key(~"result", tool(hd(members()), Session, ~"where")) end,
                   30_000),
    ok = all_alive().

balancers_take_their_configurations(Config) ->
    Programs = erlmcp_test_installed:path("proxies"),
    Folder = filename:join(proplists:get_value(priv_dir, Config), "balancers"),
    ok = filelib:ensure_path(Folder),
    [ok = checked(filename:join(Programs, "haproxy"), Folder, ["-c", "-f", File])
     || File <- files("haproxy*.cfg", Folder)],
    [ok = checked(filename:join(Programs, "nginx"), Folder,
                  ["-t", "-e", "stderr", "-p", Folder, "-c", File])
     || File <- files("nginx*.conf", Folder)].

%% With fewer connections than the limits of a test machine allow. In place of a port, which another
%% program may have, nginx listens at a file of the folder.
files(Pattern, Folder) ->
    Files = [_, _] = filelib:wildcard(filename:join([erlmcp_test_page:root(), "ops", "cluster",
                                                     Pattern])),
    [begin
         {ok, Bytes} = file:read_file(File),
         Fewer = re:replace(Bytes, "(maxconn|worker_connections) [0-9]+", "\\1 100", [global]),
         Socket = re:replace(Fewer, "listen 80;", "listen unix:socket;"),
         Here = re:replace(Socket, "^http \\{", here(Folder), [multiline]),
         Copy = filename:join(Folder, filename:basename(File)),
         ok = file:write_file(Copy, Here),
         Copy
     end || File <- Files].

%% An nginx that is not installed lacks the folders of its system.
here(Folder) ->
    ["pid ", Folder, "/pid;\nhttp {\n    access_log off;\n",
     [["    ", Kind, "_temp_path ", Folder, $/, Kind, ";\n"]
      || Kind <- ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]]].

checked(Program, Folder, Arguments) ->
    Port = open_port({spawn_executable, Program}, [{args, Arguments}, {cd, Folder}, exit_status,
                                                   stderr_to_stdout, binary]),
    ended(Port, <<>>).

ended(Port, Said) ->
    receive
        {Port, {data, More}} -> ended(Port, <<Said/binary, More/binary>>);
        {Port, {exit_status, 0}} -> ok;
        {Port, {exit_status, _}} -> {refused, Said}
    end.

%% The nodes.

%% They change from case to case.
members() -> persistent_term:get(?MODULE).

keep(Members) -> persistent_term:put(?MODULE, Members).

node_of(#{node := Node}) -> Node.

http(#{http := Http}) -> Http.

served(Member) ->
    {_, [#{port := Port}]} = serve(Member, #{
        id => ?SERVER, handler => ?MODULE, cluster => erlmcp_cluster,
        listen => [{http, #{health => true}}]}),
    Member#{http => #{port => Port, url => ~"http://127.0.0.1"}}.

all_alive() ->
    {_, _} = await(fun() ->
        [alive] =:= lists:usort([state(node_of(Of), At) || Of <- members(), At <- members()])
    end, 30_000),
    ok.

state(Node, At) ->
    #{nodes := Nodes} = call(At, erlmcp_cluster_figures, overview, []),
    case [Is || #{node := Of, state := Is} <- Nodes, Of =:= Node] of
        [State] -> State;
        %% Its part of the store has just started again.
        [] -> unknown
    end.

draining(Member, How) ->
    Test = self(),
    spawn_link(fun() ->
        Test ! {drained, self(), call(Member, erlmcp, drain, [?SERVER, How], 60_000)}
    end).

drained(Drain) ->
    receive {drained, Drain, Drained} -> Drained end.

%% As SIGTERM stops a node.
stopped(#{peer := Peer} = Member) ->
    Monitor = monitor(process, Peer),
    ok = call(Member, ?MODULE, stop, []),
    receive {'DOWN', Monitor, process, Peer, _} -> ok end.

started_again(Member) ->
    ok = started(Member),
    all_alive().

started(Member) ->
    Back = erlmcp_test_cluster:revive(maps:remove(http, Member)),
    [ok] = erlmcp_test_cluster:join([Back]),
    replaced(served(Back)).

replaced(#{node := Node} = Served) ->
    keep([case Of of
              Node -> Served;
              _ -> Other
          end || #{node := Of} = Other <- members()]).

%% A node that declares another one dead logs it.
-doc false.
hear_of_deaths() ->
    ok = logger:set_primary_config(level, warning),
    logger:add_handler(?MODULE, ?MODULE, #{}).

-doc false.
log(#{msg := {report, #{what := cluster_node_declared_dead}}}, _) ->
    persistent_term:put({?MODULE, declared}, true);
log(_, _) ->
    ok.

-doc false.
has_declared_deaths() ->
    persistent_term:get({?MODULE, declared}, false).

%% How many requests wait here that another node has passed on.
-doc false.
visits() ->
    length([Pid || Pid <- processes(), is_visit(process_info(Pid, [status, backtrace]))]).

is_visit([{status, waiting}, {backtrace, Stack}]) ->
    binary:match(Stack, ~"erlmcp_session_request:visit") =/= nomatch;
is_visit(_) ->
    false.

%% Returns a process that has begun a change of a session, and does not end it.
-doc false.
change() ->
    Test = self(),
    Changing = spawn(fun() -> change(Test) end),
    receive {changes, Changing} -> Changing end.

%% A busy machine may let a lease end for a moment.
change(Test) ->
    no_lease = erlmcp_cluster_lease:change(fun() ->
        Test ! {changes, self()},
        receive never -> ok end
    end),
    receive after 20 -> change(Test) end.

%% Hands the sessions over, and returns how often the lease has looked again whether all changes
%% have ended.
-doc false.
looks_for_changes() ->
    Lease = whereis(erlmcp_cluster_lease),
    1 = erlang:trace(Lease, true, ['receive']),
    HandedOver = erlmcp_cluster_lease:hand_over(),
    1 = erlang:trace(Lease, false, ['receive']),
    case HandedOver of
        ok -> looks_for_changes(Lease, erlang:trace_delivered(Lease), 0);
        {error, _} -> HandedOver
    end.

looks_for_changes(Lease, Delivered, Looks) ->
    receive
        {trace, Lease, 'receive', {hand_over, _, _}} ->
            looks_for_changes(Lease, Delivered, Looks + 1);
        {trace_delivered, Lease, Delivered} ->
            Looks
    end.

%% Changes of sessions wait until `make_changes/0`, whatever else is stored meanwhile.
-doc false.
hold_changes() ->
    ok = persistent_term:put({?MODULE, held}, true),
    erlmcp_bench_wrapping:around(erlmcp_cluster_store,
                                 [{{put_session, 5}, {?MODULE, made_later, change}},
                                  {{end_session, 3}, {?MODULE, made_later, change}}]).

%% The lock with which Khepri starts and stops a node's part of the store.
-doc false.
hold_lock() ->
    true = global:set_lock({{khepri, erlmcp_cluster}, self()}),
    ok = proc_lib:set_label(?MODULE),
    receive after infinity -> ok end.

-doc false.
make_changes() ->
    persistent_term:put({?MODULE, held}, false).

-doc false.
made_later(change, Arguments, Whole) ->
    case persistent_term:get({?MODULE, held}) of
        true ->
            receive after 1 -> made_later(change, Arguments, Whole) end;
        false ->
            apply(Whole, Arguments)
    end.

%% Of the renewals that say that this node is leaving, the first one is lost.
-doc false.
lose_a_renewal() ->
    erlmcp_bench_wrapping:around(erlmcp_cluster_store,
                                 [{{renew_lease, 5}, {?MODULE, renewal, lost}}]).

-doc false.
renewal(lost, [_, As | _] = Arguments, Whole) ->
    case As =:= leaving andalso persistent_term:get({?MODULE, lost}, not_yet) of
        not_yet ->
            ok = persistent_term:put({?MODULE, lost}, already),
            {error, timeout};
        _ ->
            apply(Whole, Arguments)
    end.

%% Hands the sessions over, and returns whether the cluster agrees on it then.
-doc false.
is_handed_over() ->
    maybe
        #{number := Number} ?= erlmcp_cluster_lease:current(),
        ok ?= erlmcp_cluster_lease:hand_over(),
        {ok, Deaths} ?= erlmcp_cluster_store:deaths(consistency),
        erlmcp_cluster_deaths:is_dead(Number, Deaths)
    else
        none -> {error, no_lease};
        {error, _} = Error -> Error
    end.

-doc false.
stop() ->
    init:stop().

-doc false.
server() ->
    #{name => ~"test", version => ~"1"}.

-doc false.
tools() ->
    [#{name => ~"where"}, #{name => ~"wait", task => optional}].

-doc false.
call_tool(~"where", _, _) ->
    atom_to_binary(node());
call_tool(~"wait", #{~"as" := Name}, _) ->
    erlmcp_test_cluster_node:wait(Name).

%% Clients.

initialize(Member) ->
    erlmcp_test_cluster_node:initialize(http(Member), ?REVISION).

result(Member, Session, Method, Params) ->
    #{messages := [Message]} = answered(fun() ->
        erlmcp_test_http:call(http(Member), Method, Params, #{session => Session})
    end),
    Message.

tool(Member, Session, Name) ->
    result(Member, Session, ~"tools/call", #{name => Name}).

status(Member, Session, Task) ->
    #{~"result" := #{~"status" := Status}} =
        result(Member, Session, ~"tasks/get", #{taskId => Task}),
    Status.

text(#{~"result" := #{~"content" := [#{~"text" := Text}]}}) -> Text.

start_tool(Member, Session, Id, Name, Arguments) ->
    started(Member, Session, Id, ~"tools/call", #{name => Name, arguments => Arguments}).

started(Member, Session, Id, Method, Params) ->
    Socket = erlmcp_test_http:connect(http(Member)),
    {Headers, Body} = erlmcp_test_http:message(Method, Params, #{session => Session, id => Id}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    Socket.

server_of_ids() ->
    erlmcp_cluster_session_id:server(?SERVER).
