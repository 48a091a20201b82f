-module(erlmcp_cli_reader).
-moduledoc """
Ends the command when the reader of its stdout is gone, such as `head` after its last line. A write
would detect that, but a measurement may write nothing for an hour.
""".

-include_lib("kernel/include/file.hrl").

-export([watch/0, status/0]).

%% The exit status that shells report for a program that SIGPIPE ended: 128 plus the number of the
%% signal.
-define(STATUS, 141).
%% The bits of a file's mode with the kind of file, and their value for a pipe.
-define(KIND, 8#170000).
-define(PIPE, 8#010000).
-define(GONE, 9).
%% OTP reports an error of a descriptor only after a write. In bash, a pipe without a reader counts
%% as readable. The script checks that once a second, and ends when this node closes descriptor 3.
-define(LOOK, "while ! read -t 0 -u 1; do read -t 1 -u 3; [ $? -gt 128 ] || exit 0; done; exit 9").

-doc """
Starts to watch the reader of stdout until the calling process ends, if stdout is a pipe and the
machine has bash. When the reader is gone, the node halts with `status/0`.
""".
-spec watch() -> ok.
watch() ->
    case {is_pipe(file:read_file_info("/dev/fd/1", [raw])), os:find_executable("bash")} of
        {true, Bash} when is_list(Bash) ->
            %% Waits until the script has started: a node that ends while a port is being opened
            %% logs an error.
            Command = self(),
            Pid = spawn(fun() -> look(Bash, Command) end),
            receive {Pid, looks} -> ok end;
        _ ->
            ok
    end.

is_pipe({ok, #file_info{mode = Mode}}) -> Mode band ?KIND =:= ?PIPE;
is_pipe({error, _}) -> false.

look(Bash, Command) ->
    Monitor = monitor(process, Command),
    %% `BASH_ENV` is removed, so that bash runs no code of the user, which could write on stdout.
    Port = open_port({spawn_executable, Bash}, [{args, ["-c", ?LOOK]}, {env, [{"BASH_ENV", false}]},
                                                nouse_stdio, exit_status]),
    Command ! {self(), looks},
    receive
        {Port, {exit_status, ?GONE}} -> halt(?STATUS);
        {Port, {exit_status, _}} -> ok;
        {'DOWN', Monitor, process, Command, _} -> port_close(Port)
    end.

-doc "Returns the exit code of a command whose reader is gone.".
-spec status() -> 141.
status() -> ?STATUS.
