-module(erlmcp_test_cluster).
-moduledoc """
A cluster of nodes, each an operating system's process of its own with an address of its own
(127.0.0.2 and on). The test node is not part of the distribution: it controls them by their
standard input and output, so a node that is cut off still answers it.
""".

-compile(nowarn_missing_spec_documented).

-export([start/2, boot/1, join/1, join/2, leave/1, kill/1, pause/1, resume/1, stop/1, revive/1]).
-export([call/4, call/5, cut/2, heal/2, status/1, incarnation/1, await/2, in_time/2, at_once/2]).

-export_type([member/0]).

-define(SECRET, "a secret of the test's own nodes: 0123456789").
-define(ADDRESSES, ["127.0.0.2", "127.0.0.3", "127.0.0.4"]).
%% A node answers at once. On a machine that pauses or is busy, it may take this long.
-define(PATIENCE, 60_000).

-type member() :: #{peer := pid(), node := node(), os_pid := string(), options := map()}.

%% Starts three nodes, which have not joined yet. `Extra` has more options and arguments. With
%% `clocks` each node has a clock of its own (`m:erlmcp_test_faked_clock`).
start(Config, Extra) ->
    Port = erlmcp_test_port:unused(),
    Folder = filename:join(proplists:get_value(priv_dir, Config),
                           integer_to_list(erlang:unique_integer([positive]))),
    Nodes = [list_to_atom("mcp@" ++ Address) || Address <- ?ADDRESSES],
    Common = maps:merge(#{discovery => {seeds, Nodes}, secret => {env, "ERLMCP_TEST_SECRET"}},
                        maps:get(options, Extra, #{})),
    at_once(fun(Address) ->
        Clock = #{clock => filename:join(Folder, Address ++ ".clock")
                  || #{clocks := true} <- [Extra]},
        boot(Clock#{address => Address, port => Port, args => maps:get(args, Extra, []),
                    options => Common#{data_dir => filename:join(Folder, Address)}})
    end, ?ADDRESSES).

%% One scheduler each, and no name server: all listen at the same port of their own addresses. With
%% `exec` the node starts as this program, with the arguments of `erl` after its own.
boot(#{clock := File} = Start) when not is_map_key(env, Start) ->
    boot(Start#{env => erlmcp_test_faked_clock:env(File)});
boot(#{address := Address, port := Port, args := More} = Start) ->
    Paths = [Path || Path <- code:get_path(), Path =/= "."],
    {ok, Interface} = inet:parse_address(Address),
    Listen = lists:flatten(io_lib:format("~w", [Interface])),
    NoEpmd = erlmcp_test_port:unused(),
    {ok, Peer, Node} = peer:start((maps:with([exec], Start))#{
        name => mcp, host => Address, longnames => true, connection => standard_io,
        wait_boot => ?PATIENCE,
        env => [{"ERLMCP_TEST_SECRET", ?SECRET}, {"ERL_EPMD_PORT", integer_to_list(NoEpmd)}
                | maps:get(env, Start, [])],
        args => ["+S", "1:1", "+sbwt", "none", "-setcookie", "erlmcp_test_cluster",
                 "-start_epmd", "false", "-erl_epmd_port", integer_to_list(Port),
                 "-kernel", "prevent_overlapping_partitions", "false",
                 "-kernel", "inet_dist_use_interface", Listen, "-kernel", "logger_level", "error",
                 %% What a killed process has written stays with the operating system.
                 "-ra", "wal_sync_method", "none"
                 | More ++ ["-pa" | Paths]]}),
    _ = erlmcp_test_coverage:is_counting()
        andalso call(Peer, erlmcp_test_coverage, start, [], ?PATIENCE),
    {ok, _} = call(Peer, application, ensure_all_started, [erlmcp_cluster], ?PATIENCE),
    Start#{peer => Peer, node => Node, os_pid => call(Peer, os, getpid, [], ?PATIENCE)}.

%% Starts a node again that was killed, with what it had on disk.
revive(Member) ->
    boot(maps:without([peer, node, os_pid], Member)).

join(Members) ->
    join(Members, 60_000).

%% All at the same time, as when machines start.
join(Members, Milliseconds) ->
    at_once(fun(#{options := Options} = Member) ->
        call(Member, erlmcp_cluster, join, [Options#{join_ms => Milliseconds}],
             Milliseconds + ?PATIENCE)
    end, Members).

%% A store that is late says `timeout`. Then the function is to be called again.
leave(Member) ->
    {ok, _} = await(fun() ->
        case call(Member, erlmcp_cluster, leave, []) of
            {error, timeout} -> false;
            Left -> Left
        end
    end, ?PATIENCE),
    ok.

%% Does the same with each of these, in a process of its own. Returns what they return, in order.
at_once(Do, All) ->
    Doing = [spawn_monitor(fun() -> exit({done, Do(Each)}) end) || Each <- All],
    [receive
         {'DOWN', Monitor, process, Pid, {done, Done}} -> Done;
         {'DOWN', Monitor, process, Pid, Reason} -> error(Reason)
     end || {Pid, Monitor} <- Doing].

kill(#{os_pid := Pid, peer := Peer}) ->
    Monitor = monitor(process, Peer),
    signal("KILL", Pid),
    receive {'DOWN', Monitor, process, Peer, _} -> ok end,
    {_, _} = await(fun() -> lists:all(fun is_dead/1, threads(Pid)) end, ?PATIENCE),
    ok.

%% The system closes the connections of a program before the last of its threads is dead.
is_dead(Thread) -> is_in_state(Thread, "[ZX]").

%% On a busy machine a node goes on for some milliseconds after the signal: a thread of it must run
%% to see the signal, and then stops the others.
pause(#{os_pid := Pid}) ->
    ok = signal("STOP", Pid),
    {_, _} = await(fun() -> lists:all(fun is_stopped/1, threads(Pid)) end, ?PATIENCE),
    ok.

threads(Pid) -> filelib:wildcard("/proc/" ++ Pid ++ "/task/*/stat").

is_stopped(Thread) -> is_in_state(Thread, "T").

%% A thread has its name in brackets, and its state after them. One that is gone has any state.
is_in_state(Thread, State) ->
    case file:read_file(Thread) of
        {ok, Stat} -> match =:= re:run(Stat, ["^.*\\) ", State, " "], [dotall, {capture, none}]);
        {error, _} -> true
    end.

resume(#{os_pid := Pid}) -> signal("CONT", Pid).

%% Whatever has happened to it.
stop(#{os_pid := Pid, peer := Peer} = Member) ->
    case is_process_alive(Peer) of
        true ->
            _ = erlmcp_test_coverage:is_counting() andalso count(Member),
            kill(Member);
        false ->
            signal("KILL", Pid)
    end.

%% Writes what the node has run, unless it stands still.
count(#{os_pid := Pid} = Member) ->
    try call(Member, erlmcp_test_coverage, loaded, [], 20_000) of
        Lines -> erlmcp_test_coverage:write(Pid, Lines)
    catch
        error:timeout -> ok;
        exit:_ -> ok
    end.

signal(Name, Pid) ->
    _ = os:cmd("kill -" ++ Name ++ " " ++ Pid),
    ok.

call(Member, Module, Function, Arguments) ->
    call(Member, Module, Function, Arguments, ?PATIENCE).

call(#{peer := Peer}, Module, Function, Arguments, Milliseconds) ->
    call(Peer, Module, Function, Arguments, Milliseconds);
call(Peer, Module, Function, Arguments, Milliseconds) ->
    peer:call(Peer, Module, Function, Arguments, Milliseconds).

%% Cuts the connections between two groups of nodes, which then refuse each other.
cut(Some, Others) ->
    %% Each side expects its own name as the cookie of the other.
    between(Some, Others, fun(#{node := Own} = Member, Node) ->
        true = call(Member, erlang, set_cookie, [Node, Own])
    end),
    between(Some, Others, fun(Member, Node) ->
        _ = call(Member, erlang, disconnect_node, [Node])
    end).

heal(Some, Others) ->
    between(Some, Others, fun(Member, Node) ->
        true = call(Member, erlang, set_cookie, [Node, erlmcp_test_cluster])
    end).

between(Some, Others, Do) ->
    [begin
         Do(One, maps:get(node, Other)),
         Do(Other, maps:get(node, One))
     end || One <- Some, Other <- Others],
    ok.

status(Member) ->
    {ok, Status} = call(Member, erlmcp_cluster, status, []),
    Status.

%% The incarnation of a node. One that has lost its lease begins another soon.
incarnation(Member) ->
    {Number, _} = await(fun() ->
        #{incarnation := Present} = status(Member),
        Present =/= none andalso Present
    end, ?PATIENCE),
    Number.

%% Awaits what other processes of the machine do, of which nothing tells: `Found` returns `false`
%% until it is there. Returns it, and the milliseconds that it took.
await(Found, Milliseconds) ->
    await(Found, erlang:monotonic_time(millisecond), Milliseconds).

%% As `await/2`, of what the cluster promises within a time. The time in which the machine stood
%% still is not counted.
in_time(Found, Milliseconds) ->
    Pauses = erlmcp_test_pauses:start(),
    {It, Took} = await(Found, ?PATIENCE),
    Paused = erlmcp_test_pauses:total_ms(Pauses),
    ok = erlmcp_test_pauses:stop(Pauses),
    Took - Paused =< Milliseconds orelse error({not_in_time, Milliseconds, Took, Paused}),
    {It, Took}.

await(Found, Began, Milliseconds) ->
    Now = erlang:monotonic_time(millisecond),
    case Found() of
        false when Now - Began > Milliseconds ->
            error({not_in_time, Milliseconds});
        false ->
            receive after 20 -> await(Found, Began, Milliseconds) end;
        It ->
            {It, erlang:monotonic_time(millisecond) - Began}
    end.
