-module(erlmcp_bench_environment).
-moduledoc """
Describes where a result was measured: the machine, the versions, the command. A text that cannot be
determined is `unknown`, and never left out.
""".

-export([begins/0, read/0, kind/0, kind/1, is_committed/1, command_line/1]).

-export_type([environment/0]).

-type environment() :: #{
    cores := pos_integer(), schedulers := pos_integer(), architecture := binary(),
    cpu := binary(), memory_total_mib := pos_integer(), kernel := binary(),
    otp := binary(), erts := binary(), jit := boolean(),
    erlmcp_version := binary(), erlmcp_commit := binary(), command_line := binary()
}.

-define(MIB, 1_048_576).
-define(GIT_MS, 10_000).
%% The longest command line, in characters.
-define(COMMAND_CHARACTERS, 1_000).
%% Options whose values may be secret.
-define(SECRETS, ["--token", "--header", "--env"]).

-doc """
Finds the commit of the sources, and keeps it for the results of the measurement that begins now. A
measurement may run for a day. A commit that is made in this time does not belong to its results.
""".
-spec begins() -> ok.
begins() ->
    persistent_term:put({?MODULE, commit}, sources()).

-doc """
Returns the environment of this node. `erlmcp_commit` ends in `-changed` if files that Git tracks
have changes that are not committed. The commit is that of the last `begins/0`. If there was none,
the first call of `read/0` finds the commit. `load_generator` is not included, since only the
workload knows it.
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

-doc "Returns the kind of this machine, such as `2-core-x86_64`. Each kind has its own baseline.".
-spec kind() -> binary().
kind() ->
    kind(cores(), architecture()).

-doc """
Returns the kind of the machine that a result's `Environment` describes. A kind becomes part of a
file name. So an `architecture` with other characters than letters, digits and underscores counts as
`unknown`.
""".
-spec kind(Environment :: #{binary() => term()}) -> binary().
kind(#{~"cores" := Cores, ~"architecture" := Architecture}) when is_binary(Architecture) ->
    case re:run(Architecture, "^[A-Za-z0-9_]+$", [{capture, none}, dollar_endonly]) of
        match -> kind(Cores, Architecture);
        nomatch -> kind(Cores, ~"unknown")
    end;
kind(#{~"cores" := Cores}) ->
    kind(Cores, ~"unknown").

kind(Cores, Architecture) ->
    <<(integer_to_binary(Cores))/binary, "-core-", Architecture/binary>>.

-doc """
Returns `true` if the commit of a result's `Environment` is known, and all changes of the sources
were committed.
""".
-spec is_committed(Environment :: #{binary() => term()}) -> boolean().
is_committed(#{~"erlmcp_commit" := Commit}) ->
    re:run(Commit, "^[0-9a-f]+$", [{capture, none}, dollar_endonly]) =:= match.

cores() ->
    case erlang:system_info(logical_processors_available) of
        unknown -> erlang:system_info(schedulers_online);
        Cores -> Cores
    end.

architecture() ->
    [Architecture | _] = string:split(erlang:system_info(system_architecture), "-"),
    list_to_binary(Architecture).

%% The kernel names the processor only on some architectures.
cpu() ->
    case re:run(text("/proc/cpuinfo"), ~"^model name\\s*: *(.+)$",
                [multiline, {capture, all_but_first, binary}]) of
        {match, [Name]} -> Name;
        nomatch -> ~"unknown"
    end.

%% The memory that the node may use: a control group may allow less than the machine has.
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
        Text ->
            Text
    end,
    iolist_to_binary([atom_to_list(Name), $\s, Release]).

version() ->
    _ = application:load(erlmcp),
    {ok, Version} = application:get_key(erlmcp, vsn),
    list_to_binary(Version).

%% Not found anew for each result: that takes longer than some measurements.
commit() ->
    case persistent_term:get({?MODULE, commit}, none) of
        none ->
            ok = begins(),
            commit();
        Commit ->
            Commit
    end.

%% The commit of the sources of this module, and whether they have changed since.
sources() ->
    Source = proplists:get_value(source, ?MODULE:module_info(compile), ""),
    maybe
        {ok, Git} ?= program("git"),
        true ?= filelib:is_regular(Source),
        Folder = filename:dirname(Source),
        {ok, Commit} ?= output(Git, ["rev-parse", "HEAD"], Folder),
        {ok, Changed} ?= output(Git, ["status", "--porcelain", "--untracked-files=no"], Folder),
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

output(Program, Arguments, Folder) ->
    Port = open_port({spawn_executable, Program},
                     [{args, Arguments}, {cd, Folder}, binary, exit_status, use_stdio,
                      stderr_to_stdout, hide]),
    output(Port, []).

output(Port, Output) ->
    receive
        {Port, {data, Bytes}} -> output(Port, [Output, Bytes]);
        {Port, {exit_status, 0}} -> {ok, string:trim(iolist_to_binary(Output))};
        {Port, {exit_status, _}} -> none
    after ?GIT_MS ->
        true = port_close(Port),
        none
    end.

%% The command that repeats the measurement: `erlmcp`, if that runs, or what started the node.
words() ->
    case {os:getenv("ERLMCP_COMMAND"), init:get_plain_arguments()} of
        {[_ | _], [_ | _] = Arguments} -> ["erlmcp" | Arguments];
        _ -> [word(Word)
              || Word <- binary:split(text("/proc/self/cmdline"), ~"\0", [global, trim_all])]
    end.

%% A word that is not UTF-8 is shown as its bytes.
word(Bytes) ->
    case unicode:characters_to_list(Bytes) of
        Word when is_list(Word) -> Word;
        _ -> binary_to_list(Bytes)
    end.

-doc """
Returns words as a line of a shell, cut to 1,000 characters. The values of `--token`, `--header` and
`--env` are replaced by `...`, since they may be secret. An empty list becomes `unknown`.

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
    case [Option || Option <- ?SECRETS,
                    Word =:= Option orelse lists:prefix(Option ++ "=", Word)] of
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
