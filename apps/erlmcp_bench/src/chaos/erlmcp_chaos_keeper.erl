-module(erlmcp_chaos_keeper).
-moduledoc """
Creates a resource of the machine that a fault needs, such as a namespace, a mount or busy
processes. A shell outside the node makes the resource, and removes it on request. It also does so
when the process that called `keep/3` ends, or the node is killed.

A shell that was itself killed leaves its resource behind. If `name/1` made the resource's name,
`owner_lives/2` says whether its node still runs.
""".

-export([keep/3, release/1, children/1, name/1, owner_lives/2]).

-export_type([keeper/0, reason/0]).

-opaque keeper() :: port().
-doc """
The exit status of a shell, and the beginning of its output. The status is `timeout` if the script
took longer than 30 seconds, and `gone` if the shell had ended before `release/1`.
""".
-type reason() :: {keeper, Status :: integer() | timeout | gone, Output :: binary()}.

-define(MAKE_MS, 30_000).
-define(UNMAKE_MS, 30_000).
%% Bytes of a script's output after which no further line is kept.
-define(OUTPUT_BYTES, 2_000).

-doc """
Runs the script `Make`, which may take 30 seconds. Returns a keeper for `release/1` if `Make` has
succeeded, and an error otherwise.

The script `Unmake` runs on `release/1`, or when the caller ends. It also runs after `Make` has
failed, or has taken too long. Both scripts get `Words` as `$1`, `$2`, ...
""".
-spec keep(Make :: iodata(), Unmake :: iodata(), Words :: [string()]) ->
    {ok, keeper()} | {error, reason()}.
keep(Make, Unmake, Words) ->
    %% `Make` may print any other line.
    Made = name("made"),
    %% The script ignores signals: it ends only when its work is done.
    Script = ["trap '' HUP INT TERM PIPE\nmake() {\n", Make, "\n}\nunmake() {\n", Unmake, "\n}\n",
              "if make \"$@\"; then echo ", Made, "; read -r end; status=0; else status=1; fi\n",
              "unmake \"$@\"\nexit \"$status\"\n"],
    Port = open_port({spawn_executable, "/bin/sh"},
                     [{args, ["-c", iolist_to_binary(Script), "erlmcp-chaos" | Words]},
                      binary, exit_status, stderr_to_stdout, {line, 1_000}]),
    made(Port, list_to_binary(Made), ~"", erlang:monotonic_time(millisecond) + ?MAKE_MS).

made(Port, Made, Output, Deadline) ->
    receive
        {Port, {data, {eol, Made}}} ->
            {ok, Port};
        {Port, {data, {_, Line}}} ->
            made(Port, Made, more(Output, Line), Deadline);
        {Port, {exit_status, Status}} ->
            {error, {keeper, Status, Output}}
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        %% The shell runs `Unmake` when it reads the end of its input.
        true = port_close(Port),
        {error, {keeper, timeout, Output}}
    end.

more(Output, Line) when byte_size(Output) < ?OUTPUT_BYTES -> <<Output/binary, Line/binary, $\n>>;
more(Output, _) -> Output.

-doc """
Runs the script `Unmake`, and waits until it is done, at most 30 seconds. Only the process that
called `keep/3` may call this function.
""".
-spec release(keeper()) -> ok | {error, reason()}.
release(Port) ->
    try port_command(Port, "end\n") of
        true -> unmade(Port, ~"", erlang:monotonic_time(millisecond) + ?UNMAKE_MS)
    catch
        %% The shell was killed.
        error:badarg -> {error, {keeper, gone, ~""}}
    end.

unmade(Port, Output, Deadline) ->
    receive
        {Port, {data, {_, Line}}} ->
            unmade(Port, more(Output, Line), Deadline);
        {Port, {exit_status, 0}} ->
            ok;
        {Port, {exit_status, Status}} ->
            {error, {keeper, Status, Output}}
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        true = port_close(Port),
        {error, {keeper, timeout, Output}}
    end.

-doc """
Returns the ids of the operating system processes that the shell of a keeper has started and that
still run. Fails if the shell has ended.
""".
-spec children(keeper()) -> [pos_integer()].
children(Port) ->
    {os_pid, Shell} = erlang:port_info(Port, os_pid),
    Stats = [{list_to_integer(filename:basename(Folder)), file:read_file(Folder ++ "/stat")}
             || Folder <- filelib:wildcard("/proc/[0-9]*")],
    %% Behind the name, which is in parentheses, stand the state and the parent.
    [Pid || {Pid, {ok, Stat}} <- Stats,
            [_, Behind] <- [string:split(Stat, ") ", trailing)],
            [_, Parent | _] <- [string:lexemes(Behind, " ")],
            binary_to_integer(Parent) =:= Shell].

-doc "Returns a unique name, `Prefix-PID-NUMBER`. `PID` is this node's operating system process.".
-spec name(Prefix :: string()) -> string().
name(Prefix) ->
    lists:flatten([Prefix, $-, os:getpid(), $-,
                   integer_to_list(erlang:unique_integer([positive]))]).

-doc """
Returns `true` if the operating system process in which `name/1` made `Name` still runs. Returns
`foreign` if the name is not one of `name/1` with `Prefix`.
""".
-spec owner_lives(Prefix :: string(), Name :: string()) -> boolean() | foreign.
owner_lives(Prefix, Name) ->
    case re:run(Name, ["^", Prefix, "-([0-9]+)-[0-9]+$"], [{capture, all_but_first, list}]) of
        {match, [Pid]} -> filelib:is_dir(filename:join("/proc", Pid));
        nomatch -> foreign
    end.
