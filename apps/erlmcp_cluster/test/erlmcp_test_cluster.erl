-module(erlmcp_test_cluster).
-moduledoc """
A cluster of nodes, each an operating system's process of its own with an address of its own
(127.0.0.2 and on). The test node is not part of the distribution: it controls them by their
standard input and output, so a node that is cut off still answers it.
""".

-compile(nowarn_missing_spec_documented).

-export([start/2, boot/1, join/1, join/2, kill/1, pause/1, resume/1, stop/1, revive/1]).
-export([call/4, call/5, cut/2, heal/2, status/1, await/2]).

-export_type([member/0]).

-define(SECRET, "a secret of the test's own nodes: 0123456789").
-define(ADDRESSES, ["127.0.0.2", "127.0.0.3", "127.0.0.4"]).

-type member() :: #{peer := pid(), node := node(), os_pid := string(), options := map()}.

%% Starts three nodes, which have not joined yet. `Extra` has more options and arguments.
start(Config, Extra) ->
    Port = erlmcp_test_port:unused(),
    Folder = filename:join(proplists:get_value(priv_dir, Config),
                           integer_to_list(erlang:unique_integer([positive]))),
    Nodes = [list_to_atom("mcp@" ++ Address) || Address <- ?ADDRESSES],
    Common = maps:merge(#{discovery => {seeds, Nodes}, secret => {env, "ERLMCP_TEST_SECRET"}},
                        maps:get(options, Extra, #{})),
    [boot(#{address => Address, port => Port, args => maps:get(args, Extra, []),
            options => Common#{data_dir => filename:join(Folder, Address)}})
     || Address <- ?ADDRESSES].

%% One scheduler each, and no name server: all listen at the same port of their own addresses. With
%% `exec` the node starts as this program, with the arguments of `erl` after its own.
boot(#{address := Address, port := Port, args := More} = Start) ->
    Paths = [Path || Path <- code:get_path(), Path =/= "."],
    {ok, Interface} = inet:parse_address(Address),
    Listen = lists:flatten(io_lib:format("~w", [Interface])),
    NoEpmd = erlmcp_test_port:unused(),
    {ok, Peer, Node} = peer:start((maps:with([exec], Start))#{
        name => mcp, host => Address, longnames => true, connection => standard_io,
        wait_boot => 60_000,
        env => [{"ERLMCP_TEST_SECRET", ?SECRET}, {"ERL_EPMD_PORT", integer_to_list(NoEpmd)}],
        args => ["+S", "1:1", "+sbwt", "none", "-setcookie", "erlmcp_test_cluster",
                 "-start_epmd", "false", "-erl_epmd_port", integer_to_list(Port),
                 "-kernel", "prevent_overlapping_partitions", "false",
                 "-kernel", "inet_dist_use_interface", Listen, "-kernel", "logger_level", "error",
                 %% What a killed process has written stays with the operating system.
                 "-ra", "wal_sync_method", "none"
                 | More ++ ["-pa" | Paths]]}),
    _ = erlmcp_test_coverage:is_counting()
        andalso call(Peer, erlmcp_test_coverage, start, [], 5_000),
    {ok, _} = call(Peer, application, ensure_all_started, [erlmcp_cluster], 60_000),
    Start#{peer => Peer, node => Node, os_pid => call(Peer, os, getpid, [], 5_000)}.

%% Starts a node again that was killed, with what it had on disk.
revive(Member) ->
    boot(maps:without([peer, node, os_pid], Member)).

join(Members) ->
    join(Members, 60_000).

%% All at the same time, as when machines start.
join(Members, Milliseconds) ->
    Joining = [spawn_monitor(fun() ->
                   exit(call(Member, erlmcp_cluster, join, [Options#{join_ms => Milliseconds}],
                             Milliseconds + 30_000))
               end) || #{options := Options} = Member <- Members],
    [receive {'DOWN', Monitor, process, Pid, Result} -> Result end || {Pid, Monitor} <- Joining].

kill(#{os_pid := Pid, peer := Peer}) ->
    Monitor = monitor(process, Peer),
    signal("KILL", Pid),
    receive {'DOWN', Monitor, process, Peer, _} -> ok end.

pause(#{os_pid := Pid}) -> signal("STOP", Pid).

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
    try call(Member, erlmcp_test_coverage, loaded, [], 5_000) of
        Lines -> erlmcp_test_coverage:write(Pid, Lines)
    catch
        error:timeout -> ok;
        exit:_ -> ok
    end.

signal(Name, Pid) ->
    _ = os:cmd("kill -" ++ Name ++ " " ++ Pid),
    ok.

call(Member, Module, Function, Arguments) ->
    call(Member, Module, Function, Arguments, 10_000).

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

%% Awaits what other processes of the machine do, of which nothing tells: `Found` returns `false`
%% until it is there. Returns it, and the milliseconds that it took.
await(Found, Milliseconds) ->
    await(Found, erlang:monotonic_time(millisecond), Milliseconds).

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
