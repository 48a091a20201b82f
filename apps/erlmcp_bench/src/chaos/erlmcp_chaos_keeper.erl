-module(erlmcp_chaos_keeper).
-moduledoc """
Keeps what a fault needs of the machine (a namespace, a mount, busy processes) and takes it away
again for certain: a shell outside of the node makes it, and unmakes it when it is told to or when
its input ends. Then the process that called `keep/3` has ended, or the node is dead, however it
died.

What a shell leaves that was killed itself is found by its name: that has the number of the node's
process in it (`name/1`), and `owner_lives/2` says whether there is one of that number.
""".

-export([keep/3, release/1, name/1, owner_lives/2]).

-export_type([keeper/0, reason/0]).

-opaque keeper() :: port().
-doc "How the shell ended, and what it had said by then.".
-type reason() :: {keeper, Status :: integer() | timeout | gone, Said :: binary()}.

-define(MAKE_MS, 30_000).
-define(UNMAKE_MS, 30_000).
%% Of what a script said.
-define(SAID, 2_000).

-doc """
Runs the script `Make`, and `Unmake` in the end, both with these words as `$1`, `$2`, ... Where
`Make` fails, `Unmake` is run at once.
""".
-spec keep(Make :: iodata(), Unmake :: iodata(), [string()]) ->
    {ok, keeper()} | {error, reason()}.
keep(Make, Unmake, Words) ->
    %% Nothing ends it but the end of its work.
    Script = ["trap '' HUP INT TERM PIPE\nmake() {\n", Make, "\n}\nunmake() {\n", Unmake, "\n}\n",
              "if make \"$@\"; then echo made; read -r end; status=0; else status=1; fi\n",
              "unmake \"$@\"\nexit \"$status\"\n"],
    Port = open_port({spawn_executable, "/bin/sh"},
                     [{args, ["-c", iolist_to_binary(Script), "erlmcp-chaos" | Words]},
                      binary, exit_status, stderr_to_stdout, {line, 1_000}]),
    made(Port, ~"", erlang:monotonic_time(millisecond) + ?MAKE_MS).

made(Port, Said, Deadline) ->
    receive
        {Port, {data, {eol, ~"made"}}} ->
            {ok, Port};
        {Port, {data, {_, Line}}} ->
            made(Port, more(Said, Line), Deadline);
        {Port, {exit_status, Status}} ->
            {error, {keeper, Status, Said}}
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        %% It unmakes what it has made when it comes to read.
        true = port_close(Port),
        {error, {keeper, timeout, Said}}
    end.

more(Said, Line) when byte_size(Said) < ?SAID -> <<Said/binary, Line/binary, $\n>>;
more(Said, _) -> Said.

-doc "Unmakes it, and waits until that is done.".
-spec release(keeper()) -> ok | {error, reason()}.
release(Port) ->
    try port_command(Port, "end\n") of
        true -> unmade(Port, ~"", erlang:monotonic_time(millisecond) + ?UNMAKE_MS)
    catch
        %% Somebody killed it.
        error:badarg -> {error, {keeper, gone, ~""}}
    end.

unmade(Port, Said, Deadline) ->
    receive
        {Port, {data, {_, Line}}} ->
            unmade(Port, more(Said, Line), Deadline);
        {Port, {exit_status, 0}} ->
            ok;
        {Port, {exit_status, Status}} ->
            {error, {keeper, Status, Said}}
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        true = port_close(Port),
        {error, {keeper, timeout, Said}}
    end.

-doc "A name that nobody else has: `Prefix-PID-NUMBER`.".
-spec name(Prefix :: string()) -> string().
name(Prefix) ->
    lists:flatten([Prefix, $-, os:getpid(), $-,
                   integer_to_list(erlang:unique_integer([positive]))]).

-doc """
Whether the process lives whose node made this name; `foreign` where it is no name of `name/1` with
this prefix.
""".
-spec owner_lives(Prefix :: string(), Name :: string()) -> boolean() | foreign.
owner_lives(Prefix, Name) ->
    case re:run(Name, ["^", Prefix, "-([0-9]+)-[0-9]+$"], [{capture, all_but_first, list}]) of
        {match, [Pid]} -> filelib:is_dir(filename:join("/proc", Pid));
        nomatch -> foreign
    end.
