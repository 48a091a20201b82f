-module(chaos_injectors_SUITE).
-moduledoc """
Tests for what the faults change on the machine: namespaces, links, mounts, busy processes and
proxies are made, and nothing of them remains. If a case needs root or a missing program, it checks
that the fault reports this.
""".

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([a_keeper_makes_and_unmakes/1, what_cannot_be_made_is_unmade/1,
         a_keeper_outlives_its_caller/1, a_killed_node_leaves_nothing/1, a_namespace_has_a_link/1,
         a_file_system_fills_up/1, leftovers_are_swept/1, hogs_compute_and_end/1,
         a_proxy_adds_latency/1, a_proxy_leads_to_ipv6/1, peaks_have_one_follower/1,
         a_server_that_has_ended_is_the_only_victim/1]).
-export([kept/1]).

-define(WAIT, 60_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, beside_each_other}].

groups() ->
    [{beside_each_other, [parallel],
      [a_killed_node_leaves_nothing, a_namespace_has_a_link, a_proxy_adds_latency,
       a_keeper_makes_and_unmakes, what_cannot_be_made_is_unmade, a_keeper_outlives_its_caller,
       a_file_system_fills_up, leftovers_are_swept, hogs_compute_and_end, a_proxy_leads_to_ipv6,
       peaks_have_one_follower, a_server_that_has_ended_is_the_only_victim]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

a_keeper_makes_and_unmakes(Config) ->
    File = file(Config),
    {ok, Keeper} = erlmcp_chaos_keeper:keep("echo word >\"$1\"", "rm \"$1\"", [File]),
    {ok, ~"word\n"} = file:read_file(File),
    ok = erlmcp_chaos_keeper:release(Keeper),
    {error, enoent} = file:read_file(File),
    {error, {keeper, gone, ~""}} = erlmcp_chaos_keeper:release(Keeper).

what_cannot_be_made_is_unmade(Config) ->
    File = file(Config),
    {error, {keeper, 1, ~"not to be had\n"}} =
        erlmcp_chaos_keeper:keep("echo >\"$1\"; echo not to be had; false", "rm \"$1\"", [File]),
    {error, enoent} = file:read_file(File),
    {error, {keeper, 1, ~"made\n"}} = erlmcp_chaos_keeper:keep("echo made; false", "true", []).

%% In a folder whose name a shell would take apart.
file(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "a b'\"$c"),
    ok = filelib:ensure_path(Folder),
    filename:join(Folder, integer_to_list(erlang:unique_integer([positive]))).

a_keeper_outlives_its_caller(Config) ->
    File = file(Config),
    {Pid, Monitor} = spawn_monitor(fun() ->
        {ok, _} = erlmcp_chaos_keeper:keep("echo >\"$1\"", "rm \"$1\"", [File]),
        exit(made)
    end),
    receive {'DOWN', Monitor, process, Pid, made} -> ok end,
    await(fun() -> file:read_file(File) =:= {error, enoent} end).

a_killed_node_leaves_nothing(Config) ->
    File = file(Config),
    {ok, #{peer := Peer} = Target} = erlmcp_bench_target:start(#{}),
    true = unlink(Peer),
    %% The port belongs to a process that stays.
    {ok, _} = erlmcp_bench_target:call(Target, ?MODULE, kept, [File]),
    {ok, _} = file:read_file(File),
    {ok, _} = erlmcp_chaos_program:run(
        "kill", ["-KILL", integer_to_list(erlmcp_bench_target:os_pid(Target))]),
    await(fun() -> file:read_file(File) =:= {error, enoent} end).

%% In the node that is killed.
kept(File) ->
    Self = self(),
    Pid = spawn(fun() ->
        Self ! {self(), erlmcp_chaos_keeper:keep("echo >\"$1\"", "rm \"$1\"", [File])},
        receive stop -> ok end
    end),
    receive {Pid, Kept} -> Kept end.

a_namespace_has_a_link(_) ->
    needing_root(erlmcp_chaos_namespaces:start(), fun(Link) ->
        Host = erlmcp_chaos_namespaces:host(Link),
        Prefix = erlmcp_chaos_namespaces:prefix(Link),
        {ok, Target} = erlmcp_bench_target:start(#{host => Host, prefix => Prefix}),
        Url = erlmcp_bench_target:url(Target),
        {ok, Client} = erlmcp_client:start_link({http, Url, #{}}),
        {ok, _} = echo(Client, ?WAIT),
        ok = erlmcp_chaos_namespaces:down(Link),
        {error, _} = echo(Client),
        ok = erlmcp_chaos_namespaces:up(Link),
        await(fun() -> element(1, echo(Client)) =:= ok end),
        ok = erlmcp_client:stop(Client),
        ok = erlmcp_bench_target:stop(Target),
        ok = erlmcp_chaos_namespaces:stop(Link),
        {ok, Left} = erlmcp_chaos_program:run("ip", ["netns", "list"]),
        nomatch = string:find(Left, lists:last(Prefix)),
        {ok, Addresses} = erlmcp_chaos_program:run("ip", ["-4", "address"]),
        nomatch = string:find(Addresses, network(Host))
    end).

echo(Client) ->
    echo(Client, 1_000).

echo(Client, Milliseconds) ->
    erlmcp_client:call_tool(Client, ~"echo", #{text => ~"there"}, #{timeout => Milliseconds}).

network({A, B, C, _}) -> io_lib:format("~b.~b.~b.", [A, B, C]).

a_file_system_fills_up(_) ->
    needing_root(erlmcp_chaos_tmpfs:start(1_048_576), fun(Tmpfs) ->
        Folder = erlmcp_chaos_tmpfs:folder(Tmpfs),
        File = filename:join(Folder, "file"),
        ok = file:write_file(File, ~"some"),
        ok = erlmcp_chaos_tmpfs:fill(Tmpfs),
        {error, enospc} = file:write_file(filename:join(Folder, "other"), ~"more"),
        {ok, ~"some"} = file:read_file(File),
        ok = erlmcp_chaos_tmpfs:free(Tmpfs),
        ok = file:write_file(File, ~"more"),
        ok = erlmcp_chaos_tmpfs:stop(Tmpfs),
        false = filelib:is_dir(Folder)
    end).

%% As after the end of an instrument and its keepers: no process has this number. Another case or
%% node may sweep at the same time, and be in the middle of it.
leftovers_are_swept(_) ->
    Number = "4194999",
    Namespace = "erlmcp-" ++ Number ++ "-1",
    needing_root(erlmcp_chaos_program:run("ip", ["netns", "add", Namespace]), fun(_) ->
        Own = "erlmcp-" ++ os:getpid() ++ "-0",
        {ok, _} = erlmcp_chaos_program:run("ip", ["netns", "add", Own]),
        Name = "erlmcp-chaos-" ++ Number ++ "-1",
        Folder = filename:join("/tmp", Name),
        ok = filelib:ensure_path(Folder),
        {ok, _} = erlmcp_chaos_program:run("mount", ["-t", "tmpfs", "-o", "size=4096", Name,
                                                     Folder]),
        ok = erlmcp_chaos_namespaces:sweep(),
        ok = erlmcp_chaos_tmpfs:sweep(),
        Is = fun(Made) ->
            {ok, Listed} = erlmcp_chaos_program:run("ip", ["netns", "list"]),
            string:find(Listed, Made) =/= nomatch
        end,
        await(fun() -> not Is(Namespace) end),
        true = Is(Own),
        {ok, _} = erlmcp_chaos_program:run("ip", ["netns", "delete", Own]),
        await(fun() -> not filelib:is_dir(Folder) end)
    end).

hogs_compute_and_end(_) ->
    {ok, Hogs} = erlmcp_chaos_hogs:start(2),
    Pids = erlmcp_chaos_keeper:children(Hogs),
    2 = length(Pids),
    await(fun() -> lists:all(fun(Pid) -> erlmcp_bench_process:cpu_us(Pid) > 0 end, Pids) end),
    true = erlmcp_chaos_hogs:cpu_us(Hogs) >= 20_000,
    ok = erlmcp_chaos_hogs:stop(Hogs),
    [undefined, undefined] = [erlmcp_bench_process:cpu_us(Pid) || Pid <- Pids].

a_proxy_adds_latency(_) ->
    case erlmcp_chaos_toxiproxy:start() of
        {error, {no_program, "toxiproxy-server"}} ->
            #{status := not_run, reason := <<_/binary>>} =
                erlmcp_chaos_run:run(erlmcp_chaos_drill_latency, #{short => true});
        {ok, Toxiproxy} ->
            {ok, Target} = erlmcp_bench_target:start(#{}),
            {ok, Proxy, {Ip, Port}} =
                erlmcp_chaos_toxiproxy:proxy(Toxiproxy, erlmcp_bench_target:address(http, Target)),
            Url = iolist_to_binary(io_lib:format("http://~s:~b/mcp", [inet:ntoa(Ip), Port])),
            {ok, Client} = erlmcp_client:start_link({http, Url, #{}}),
            {ok, _} = echo(Client, ?WAIT),
            ok = erlmcp_chaos_toxiproxy:add(Toxiproxy, Proxy, {latency, 300}),
            {Us, {ok, _}} = timer:tc(fun() -> echo(Client, ?WAIT) end),
            true = Us >= 300_000,
            ok = erlmcp_chaos_toxiproxy:remove(Toxiproxy, Proxy),
            ok = erlmcp_client:stop(Client),
            ok = erlmcp_bench_target:stop(Target),
            ok = erlmcp_chaos_toxiproxy:stop(Toxiproxy)
    end.

a_proxy_leads_to_ipv6(_) ->
    Local = {0, 0, 0, 0, 0, 0, 0, 1},
    maybe
        {ok, Listener} ?= gen_tcp:listen(0, [inet6, {ip, Local}, {active, false}]),
        {ok, Port} = inet:port(Listener),
        {ok, Toxiproxy} ?= erlmcp_chaos_toxiproxy:start(),
        {ok, _, {Ip, ProxyPort}} = erlmcp_chaos_toxiproxy:proxy(Toxiproxy, {Local, Port}),
        {ok, _} = gen_tcp:connect(Ip, ProxyPort, []),
        {ok, _} = gen_tcp:accept(Listener, ?WAIT),
        ok = erlmcp_chaos_toxiproxy:stop(Toxiproxy)
    else
        {error, {no_program, Program}} -> {comment, "needs " ++ Program};
        {error, Reason} when is_atom(Reason) -> {skip, "needs IPv6"}
    end.

%% A user other than root gets the reason.
needing_root({ok, Had}, Do) ->
    Do(Had),
    ok;
needing_root({error, Reason}, _) ->
    case erlmcp_chaos_run:missing([root, {program, "ip"}, {program, "mount"}]) of
        [] -> error(Reason);
        Missing -> {comment, iolist_to_binary(lists:join(", ", Missing))}
    end.

%% As long as the case may take.
await(Is) ->
    case Is() of
        true -> ok;
        false -> receive after 20 -> await(Is) end
    end.

%% A second one fails, and the first one goes on.
peaks_have_one_follower(_) ->
    ok = erlmcp_chaos_peaks:follow(#{schedulers => {erlang, system_info, [schedulers]}}),
    ?assertError({badarg, _},
                 erlmcp_chaos_peaks:follow(#{memory => {erlang, memory, [total]}})),
    #{schedulers := Schedulers} = Highest = erlmcp_chaos_peaks:highest(),
    {Schedulers, 1} = {erlang:system_info(schedulers), map_size(Highest)},
    true = exit(whereis(erlmcp_chaos_peaks), kill).

%% Its supervisor does not know its end yet, or only knows it when it is asked again.
a_server_that_has_ended_is_the_only_victim(_) ->
    {Server, Monitor} = spawn_monitor(fun() -> ok end),
    receive {'DOWN', Monitor, process, Server, _} -> ok end,
    [begin
         {Host, Ended} = spawn_monitor(fun() -> host(Servers) end),
         true = register(erlmcp_bench_host, Host),
         [Server] = erlmcp_chaos_victims:choose(10),
         receive {'DOWN', Ended, process, Host, normal} -> ok end
     end || Servers <- [[Server, Server], [Server, restarting]]].

%% Tells of another server each time that it is asked.
host([Server | Servers]) ->
    receive
        {'$gen_call', From, which_children} ->
            ok = gen_server:reply(From, [{server, Server, supervisor, []}]),
            host(Servers)
    end;
host([]) ->
    ok.
