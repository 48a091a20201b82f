-module(machine_resources_SUITE).
-moduledoc "What is read of machines and of control groups.".

-export([suite/0, all/0]).
-export([machines_are_read/1, groups_of_version_2_are_read/1, groups_of_version_1_are_read/1,
         containers_are_read/1, what_is_not_there_is_left_out/1, this_machine_is_read/1]).

-define(MIB, 1_048_576).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [machines_are_read, groups_of_version_2_are_read, groups_of_version_1_are_read,
     containers_are_read, what_is_not_there_is_left_out, this_machine_is_read].

machines_are_read(Config) ->
    Root = root(Config, #{"proc/meminfo" => meminfo()}),
    [#{source := machine, total := 16_384_000, used := 4_096_000}] = looks(Root),
    #{memory := 16_384_000} = Facts = erlmcp_machine:facts(Root),
    false = is_map_key(group_memory, Facts).

meminfo() ->
    "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:   12000 kB\n".

%% The group itself and one above have a bound, the one between has none.
groups_of_version_2_are_read(Config) ->
    Group = fun(Max, Current, Inactive) ->
        #{"memory.max" => Max, "memory.current" => Current,
          "memory.stat" => ["anon 1\ninactive_anon 7\ninactive_file ", Inactive, "\nslab 3\n"]}
    end,
    Root = root(Config, #{
        "proc/meminfo" => meminfo(), "proc/self/cgroup" => "0::/user.slice/a.scope/b\n",
        "sys/fs/cgroup/user.slice" => Group("9000000\n", "5000000\n", "1000000"),
        "sys/fs/cgroup/user.slice/a.scope" => Group("max\n", "1\n", "0"),
        "sys/fs/cgroup/user.slice/a.scope/b" => Group("8000000\n", "4000000\n", "1500000")}),
    [#{source := machine}, #{source := group, total := 9_000_000, used := 4_000_000},
     #{source := group, total := 8_000_000, used := 2_500_000}] = looks(Root),
    #{memory := 16_384_000, group_memory := 8_000_000} = erlmcp_machine:facts(Root).

groups_of_version_1_are_read(Config) ->
    Group = fun(Limit, Usage, Inactive) ->
        #{"memory.limit_in_bytes" => Limit, "memory.usage_in_bytes" => Usage,
          "memory.stat" => ["inactive_file 7\ntotal_inactive_file ", Inactive, "\n"]}
    end,
    Root = root(Config, #{
        "proc/self/cgroup" => "9:name=systemd:/x\n4:cpu,memory:/inner\n1:cpuset:/\n0::/\n",
        "sys/fs/cgroup/memory" => Group("9223372036854771712\n", "900\n", "1"),
        "sys/fs/cgroup/memory/inner" => Group("6000\n", "5000\n", "1000")}),
    [#{source := group, total := 6000, used := 4000}] = looks(Root),
    #{group_memory := 6000} = erlmcp_machine:facts(Root).

%% The path is that of the host, whose folders are not there; the container's group is the root.
containers_are_read(Config) ->
    Root = root(Config, #{
        "proc/self/cgroup" => "0::/docker/0123456789abcdef\n",
        "sys/fs/cgroup" => #{"memory.max" => "1000\n", "memory.current" => "10\n"}}),
    [#{source := group, total := 1000, used := 10}] = looks(Root).

what_is_not_there_is_left_out(Config) ->
    Root = root(Config, #{}),
    [] = looks(Root),
    Facts = erlmcp_machine:facts(Root),
    [] = [cores, descriptors, ports, processes, schedulers] -- maps:keys(Facts),
    [] = maps:keys(Facts) -- [cores, descriptors, ports, processes, schedulers].

this_machine_is_read(_) ->
    #{descriptors := Descriptors} = Facts = erlmcp_machine:facts("/"),
    true = Descriptors > 0,
    case os:type() of
        {unix, linux} ->
            #{memory := Memory, descriptors_hard := _, backlog := _, local_ports := _} = Facts,
            true = Memory > 100 * ?MIB;
        _ ->
            ok
    end.

looks(Root) ->
    [Memory || Place <- erlmcp_machine:memory_sources(Root),
               {ok, Memory} <- [erlmcp_machine:memory(Place)]].

%% A folder with these files under it; a map is a folder.
root(Config, Files) ->
    Root = filename:join(proplists:get_value(priv_dir, Config),
                         integer_to_list(erlang:unique_integer([positive]))),
    ok = write(Root, Files),
    Root.

write(Path, Files) when is_map(Files) ->
    maps:foreach(fun(Name, Content) -> ok = write(filename:join(Path, Name), Content) end, Files);
write(Path, Content) ->
    ok = filelib:ensure_dir(Path),
    ok = file:write_file(Path, Content).
