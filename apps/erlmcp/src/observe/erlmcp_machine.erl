-module(erlmcp_machine).
-moduledoc """
Reads facts about the machine, its control groups (version 1 or 2) and the node. The facts are those
of the runtime, of `/proc` and of `/sys/fs/cgroup`. Facts that are not known are left out.

In a control group, cached file pages that are not in use do not count as used memory. The kernel
reclaims them before it kills a process.

Internal.
""".

-export([facts/1, memory_sources/1, memory/1]).

-export_type([facts/0, memory_source/0, memory/0]).

-doc """
Facts about the machine, the control group and the node.

- `descriptors`: how many file descriptors the node may open. `descriptors_hard`: the number to
  which the node may raise this limit without privileges.
- `ports`, `processes`: how many of them the node may have at once.
- `schedulers`: the number of schedulers that are online. `cores`: the number of processors that the
  node may use.
- `memory`, `group_memory`: the bytes of memory of the machine, and the lowest limit of a control
  group.
- `backlog`: the most connections of a listener that may wait to be accepted.
- `local_ports`: the number of ports for connections that the machine opens itself.
""".
-type facts() :: #{
    descriptors => pos_integer(), descriptors_hard => pos_integer() | unlimited,
    ports := pos_integer(), processes := pos_integer(), schedulers := pos_integer(),
    cores => pos_integer(), memory => pos_integer(), group_memory => pos_integer(),
    backlog => pos_integer(), local_ports => pos_integer()
}.
-doc "A source of numbers on memory: the machine, or a control group that has a file of its limit.".
-opaque memory_source() ::
    {machine, file:filename()}
    | {group, Limit :: file:filename(), Held :: file:filename(), Stat :: file:filename(),
       Unused :: binary()}.
-type memory() :: #{
    source := machine | group, used := non_neg_integer(), total := pos_integer()
}.

-doc """
Returns the facts that the runtime knows, and those that can be read under the folder `Root`, which
is `/` except in tests.
""".
-spec facts(Root :: file:filename()) -> facts().
facts(Root) ->
    Facts = #{ports => erlang:system_info(port_limit),
              processes => erlang:system_info(process_limit),
              schedulers => erlang:system_info(schedulers_online),
              cores => erlang:system_info(logical_processors_available)},
    Kernel = filename:join(Root, "proc/sys/net"),
    lists:foldl(fun maps:merge/2, maps:filter(fun(_, Value) -> is_integer(Value) end, Facts),
                [descriptors(Root), memories(Root),
                 #{backlog => Longest
                   || [Longest] <- [numbers(filename:join(Kernel, "core/somaxconn"))]},
                 #{local_ports => Last - First + 1
                   || [First, Last] <- [numbers(filename:join(Kernel,
                                                              "ipv4/ip_local_port_range"))]}]).

descriptors(Root) ->
    Line = ~"^Max open files +([0-9]+) +([0-9]+|unlimited)",
    case re:run(text(filename:join(Root, "proc/self/limits")), Line,
                [multiline, {capture, all_but_first, binary}]) of
        {match, [Soft, ~"unlimited"]} ->
            #{descriptors => binary_to_integer(Soft), descriptors_hard => unlimited};
        {match, [Soft, Hard]} ->
            #{descriptors => binary_to_integer(Soft), descriptors_hard => binary_to_integer(Hard)};
        nomatch ->
            %% The limit that the runtime found when it started.
            #{descriptors => lists:max([Max || Set <- erlang:system_info(check_io),
                                               {max_fds, Max} <- Set])}
    end.

memories(Root) ->
    Looks = [Memory || Source <- memory_sources(Root), {ok, Memory} <- [memory(Source)]],
    Machine = #{memory => Total || #{source := machine, total := Total} <- Looks},
    case [Total || #{source := group, total := Total} <- Looks] of
        [] -> Machine;
        Totals -> Machine#{group_memory => lists:min(Totals)}
    end.

-doc """
Returns the sources of numbers on the node's memory under `Root`. The sources are the machine, the
node's control group, and each one above it. A group without a file of its limit is left out.
""".
-spec memory_sources(Root :: file:filename()) -> [memory_source()].
memory_sources(Root) ->
    Groups = binary:split(text(filename:join(Root, "proc/self/cgroup")), ~"\n", [global, trim_all]),
    [{machine, filename:join(Root, "proc/meminfo")}
     | lists:append([groups(binary:split(Group, ~":", [global]), Root) || Group <- Groups])].

groups([~"0", ~"", Path], Root) ->
    [{group, filename:join(Folder, "memory.max"), filename:join(Folder, "memory.current"),
      filename:join(Folder, "memory.stat"), ~"inactive_file"}
     || Folder <- folders(filename:join(Root, "sys/fs/cgroup"), Path),
        filelib:is_regular(filename:join(Folder, "memory.max"))];
groups([_, Controllers, Path], Root) ->
    [{group, filename:join(Folder, "memory.limit_in_bytes"),
      filename:join(Folder, "memory.usage_in_bytes"), filename:join(Folder, "memory.stat"),
      ~"total_inactive_file"}
     || lists:member(~"memory", binary:split(Controllers, ~",", [global])),
        Folder <- folders(filename:join(Root, "sys/fs/cgroup/memory"), Path),
        filelib:is_regular(filename:join(Folder, "memory.limit_in_bytes"))];
groups(_, _) ->
    [].

%% Returns the folders of a group and of all groups above it. In a container the path may be that of
%% the host. The base folder is then the container's own group.
folders(Base, Path) ->
    {Folders, _} = lists:mapfoldl(fun(Name, Above) ->
                                      Folder = filename:join(Above, Name),
                                      {Folder, Folder}
                                  end, Base, binary:split(Path, ~"/", [global, trim_all])),
    [Base | Folders].

-doc """
Returns the used and the total bytes of a source. Returns `none` if the source has no limit, or if
its limit or its usage cannot be read.
""".
-spec memory(memory_source()) -> {ok, memory()} | none.
memory({machine, File}) ->
    Text = text(File),
    case {line(~"MemTotal:", Text), line(~"MemAvailable:", Text)} of
        {Total, Available} when is_integer(Total), is_integer(Available), Total > 0 ->
            {ok, #{source => machine, used => (Total - Available) * 1024, total => Total * 1024}};
        _ ->
            none
    end;
memory({group, Limit, Held, Stat, Unused}) ->
    case {numbers(Limit), numbers(Held)} of
        %% Version 1 writes a number even without a limit: the largest number of whole pages.
        {[Total], [Used]} when Total > 0, Total < 1 bsl 60 ->
            Kept = case line(Unused, text(Stat)) of
                none -> 0;
                Bytes -> Bytes
            end,
            {ok, #{source => group, used => max(0, Used - Kept), total => Total}};
        _ ->
            none
    end.

line(Name, Text) ->
    case re:run(Text, [~"^", Name, ~"\\s+([0-9]+)"],
                [multiline, {capture, all_but_first, binary}]) of
        {match, [Number]} -> binary_to_integer(Number);
        nomatch -> none
    end.

numbers(File) ->
    case re:run(text(File), ~"[0-9]+", [global, {capture, all, binary}]) of
        {match, Numbers} -> [binary_to_integer(Number) || [Number] <- Numbers];
        nomatch -> []
    end.

text(File) ->
    case file:read_file(File, [raw]) of
        {ok, Text} -> Text;
        {error, _} -> ~""
    end.
