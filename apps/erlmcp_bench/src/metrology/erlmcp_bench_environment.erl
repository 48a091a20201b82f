-module(erlmcp_bench_environment).
-moduledoc """
Where a result was measured: the machine, the versions, the command. What cannot be known is
`unknown`, and never left out.
""".

-export([read/0, kind/0, kind/1, command_line/1]).

-export_type([environment/0]).

-type environment() :: #{
    cores := pos_integer(), schedulers := pos_integer(), architecture := binary(),
    cpu := binary(), memory_total_mib := pos_integer(), kernel := binary(),
    otp := binary(), erts := binary(), jit := boolean(),
    erlmcp_version := binary(), erlmcp_commit := binary(), command_line := binary()
}.

-define(MIB, 1_048_576).
-define(GIT_MS, 10_000).
%% Of a command line.
-define(COMMAND_CHARACTERS, 1_000).
%% Options whose values are nobody's business.
-define(SECRETS, ["--token", "--header"]).

-doc """
All that is known. What a result says of the load generator, whether it is in the node, its workload
knows.
""".
-spec read() -> environment().
read() ->
    #{cores => cores(),
      schedulers => erlang:system_info(schedulers_online),
      architecture => architecture(),
      cpu => cpu(),
      memory_total_mib => memory() div ?MIB,
      kernel => kernel(),
      otp => list_to_binary(erlang:system_info(otp_release)),
      erts => list_to_binary(erlang:system_info(version)),
      jit => erlang:system_info(emu_flavor) =:= jit,
      erlmcp_version => version(),
      erlmcp_commit => commit(),
      command_line => command_line(words())}.

-doc "The kind of this machine, which baselines are kept for: `2-core-x86_64`.".
-spec kind() -> binary().
kind() ->
    kind(cores(), architecture()).

-doc "The kind of the machine of an environment, as results have it.".
-spec kind(Environment :: #{binary() => term()}) -> binary().
kind(#{~"cores" := Cores} = Environment) ->
    kind(Cores, maps:get(~"architecture", Environment, ~"unknown")).

kind(Cores, Architecture) ->
    <<(integer_to_binary(Cores))/binary, "-core-", Architecture/binary>>.

cores() ->
    case erlang:system_info(logical_processors_available) of
        unknown -> erlang:system_info(schedulers_online);
        Cores -> Cores
    end.

architecture() ->
    [Architecture | _] = string:split(erlang:system_info(system_architecture), "-"),
    list_to_binary(Architecture).

%% The kernel has a name for it on some architectures only.
cpu() ->
    case re:run(text("/proc/cpuinfo"), ~"^model name\\s*: *(.+)$",
                [multiline, {capture, all_but_first, binary}]) of
        {match, [Name]} -> Name;
        nomatch -> ~"unknown"
    end.

%% What the node may have: a control group may give less than the machine has.
memory() ->
    Facts = erlmcp_machine:facts("/"),
    case maps:values(maps:with([memory, group_memory], Facts)) of
        [] -> erlang:memory(total);
        Bounds -> lists:min(Bounds)
    end.

kernel() ->
    {_, Name} = os:type(),
    Release = case string:trim(text("/proc/sys/kernel/osrelease")) of
        ~"" ->
            case os:version() of
                {Major, Minor, Patch} -> io_lib:format("~b.~b.~b", [Major, Minor, Patch]);
                Other -> Other
            end;
        Known ->
            Known
    end,
    iolist_to_binary([atom_to_list(Name), $\s, Release]).

version() ->
    _ = application:load(erlmcp),
    {ok, Version} = application:get_key(erlmcp, vsn),
    list_to_binary(Version).

%% Asked for once: it takes longer than some measurements.
commit() ->
    case persistent_term:get({?MODULE, commit}, none) of
        none ->
            Commit = sources(),
            ok = persistent_term:put({?MODULE, commit}, Commit),
            Commit;
        Commit ->
            Commit
    end.

%% The commit of the sources that this module was compiled from, and whether they have changed.
sources() ->
    Source = proplists:get_value(source, ?MODULE:module_info(compile), ""),
    maybe
        {ok, Git} ?= program("git"),
        true ?= filelib:is_regular(Source),
        Folder = filename:dirname(Source),
        {ok, Commit} ?= said(Git, ["rev-parse", "HEAD"], Folder),
        {ok, Changed} ?= said(Git, ["status", "--porcelain", "--untracked-files=no"], Folder),
        case Changed of
            ~"" -> Commit;
            _ -> <<Commit/binary, "-changed">>
        end
    else
        _ -> ~"unknown"
    end.

program(Name) ->
    case os:find_executable(Name) of
        false -> none;
        Program -> {ok, Program}
    end.

said(Program, Arguments, Folder) ->
    Port = open_port({spawn_executable, Program},
                     [{args, Arguments}, {cd, Folder}, binary, exit_status, use_stdio,
                      stderr_to_stdout, hide]),
    said(Port, []).

said(Port, Said) ->
    receive
        {Port, {data, Bytes}} -> said(Port, [Said, Bytes]);
        {Port, {exit_status, 0}} -> {ok, string:trim(iolist_to_binary(Said))};
        {Port, {exit_status, _}} -> none
    after ?GIT_MS ->
        true = port_close(Port),
        none
    end.

%% What would repeat it: the `erlmcp` command, where that runs; elsewhere what started the node.
words() ->
    case {os:getenv("ERLMCP_COMMAND"), init:get_plain_arguments()} of
        {[_ | _], [_ | _] = Arguments} -> ["erlmcp" | Arguments];
        _ -> [binary_to_list(Word)
              || Word <- binary:split(text("/proc/self/cmdline"), ~"\0", [global, trim_all])]
    end.

-doc """
Words as a line that a shell would read as them; without what nobody should read.

## Examples

```
1> erlmcp_bench_environment:command_line(["erlmcp", "load", "--token", "abc", "it's"]).
~"erlmcp load --token ... 'it'\\''s'"
```
""".
-spec command_line([string()]) -> binary().
command_line(Words) ->
    case unicode:characters_to_list(lists:join($\s, [quoted(Word) || Word <- public(Words)])) of
        [] -> ~"unknown";
        Line -> << <<Character/utf8>> || Character <- lists:sublist(Line, ?COMMAND_CHARACTERS) >>
    end.

public([]) ->
    [];
public([Word | Words]) ->
    case [Option || Option <- ?SECRETS, lists:prefix(Option, Word)] of
        [] -> [Word | public(Words)];
        [Word] -> [Word, "..." | public(lists:nthtail(min(1, length(Words)), Words))];
        [Option] -> [Option ++ "=..." | public(Words)]
    end.

quoted(Word) ->
    case re:run(Word, "^[A-Za-z0-9_@%+=:,./~-]+$", [unicode, {capture, none}]) of
        match -> Word;
        nomatch -> [$', string:replace(Word, "'", "'\\''", all), $']
    end.

text(File) ->
    case file:read_file(File, [raw]) of
        {ok, Text} -> Text;
        {error, _} -> ~""
    end.
