-module(erlmcp_load_program).
-moduledoc """
A server on stdio: a program that is started for one connection. Its output comes to the process
that started it, and its errors go to the generator's standard error.

The program is ended when that process ends, or by `stop/1`: its input is closed. If it has not
ended after a second, its process group gets SIGTERM, and after another second SIGKILL.
""".

-export([executable/1, is_environment/1, start/2, send/2, key/1, message/2, next/2, stop/1,
         os_pid/1]).

-export_type([program/0, environment/0]).

-doc """
The variables in which a program's environment differs from this node's. `false` removes a variable.
""".
-type environment() :: [{Name :: string(), Value :: string() | false}].

-opaque program() :: #{port := port(), closed := reference(), writer := pid(), guard := pid(),
                       os_pid := pos_integer()}.

%% Milliseconds for a program to end by itself, and again after SIGTERM; the time between two
%% checks; and the most that a stop may take.
-define(END_MS, 1000).
-define(LOOK_MS, 10).
-define(STOP_MS, 10_000).

-doc """
Returns the absolute path of a program, or `false` if there is none. A name without a slash is
looked up on the path, as a shell does.
""".
-spec executable(Program :: string()) -> file:filename() | false.
executable(Program) ->
    case lists:member($/, Program) of
        %% `os:find_executable/1` looks up a relative path in the folders of the path alone.
        true -> os:find_executable(filename:absname(Program));
        false -> os:find_executable(Program)
    end.

-doc """
Starts a program. The first text of the list is the path or the name of the program, and the others
are its arguments. No shell reads them. The calling process owns the program. The error is `enoent`
if there is no such program, `ended` if it ended at once, or else the reason of `open_port/2`.
""".
-spec start([string() | binary(), ...], environment()) ->
    {ok, program()} | {error, Reason :: atom()}.
start([First | Arguments], Environment) ->
    case executable(unicode:characters_to_list(First)) of
        false -> {error, enoent};
        Path -> opened(Path, Arguments, Environment)
    end.

opened(Path, Arguments, Environment) ->
    try open_port({spawn_executable, Path},
                  [{args, Arguments}, {env, Environment}, binary, stream, use_stdio, exit_status,
                   hide]) of
        Port -> owned(Port, erlang:port_info(Port, os_pid))
    catch
        error:Reason when is_atom(Reason) -> {error, Reason}
    end.

owned(Port, {os_pid, OsPid}) ->
    Owner = self(),
    Closed = monitor(port, Port),
    Writer = spawn(fun() -> write(Port, monitor(process, Owner)) end),
    Guard = spawn(fun() -> guard(Port, OsPid, monitor(process, Owner)) end),
    %% A broken pipe must not end this process, so it is not linked to the port. The guard closes
    %% the port when its owner ends.
    true = unlink(Port),
    {ok, #{port => Port, closed => Closed, writer => Writer, guard => Guard, os_pid => OsPid}};
owned(_, undefined) ->
    {error, ended}.

-doc "Returns `true` if the term has the form of `t:environment/0`.".
-spec is_environment(term()) -> boolean().
is_environment(Term) ->
    is_list(Term)
        andalso lists:all(fun({Name, Value}) ->
                                  io_lib:char_list(Name)
                                      andalso (Value =:= false orelse io_lib:char_list(Value));
                             (_) ->
                                  false
                          end, Term).

write(Port, Owner) ->
    receive
        {write, Bytes} ->
            %% The port may close at any moment. Its owner gets a message then.
            try port_command(Port, Bytes) of
                true -> write(Port, Owner)
            catch
                error:badarg -> ok
            end;
        {'DOWN', Owner, process, _, _} ->
            ok
    end.

guard(Port, OsPid, Owner) ->
    receive
        stop -> ok;
        {'DOWN', Owner, process, _, _} -> ok
    end,
    try port_close(Port) of
        true -> ok
    catch
        %% The port is already closed.
        error:badarg -> ok
    end,
    ended(OsPid, ["TERM", "KILL"], ?END_MS).

ended(OsPid, Signals, Remaining) ->
    case filelib:is_dir("/proc/" ++ integer_to_list(OsPid)) of
        false ->
            ok;
        true when Remaining > 0 ->
            receive after ?LOOK_MS -> ended(OsPid, Signals, Remaining - ?LOOK_MS) end;
        true when Signals =:= [] ->
            ok;
        true ->
            [Signal | Others] = Signals,
            %% The runtime makes every port's program the leader of a group.
            _ = os:cmd(lists:concat(["kill -", Signal, " -", OsPid])),
            ended(OsPid, Others, ?END_MS)
    end.

-doc """
Writes bytes to the program's input. Does not wait, and queues the bytes that the program has not
read. If the program has ended, the bytes are lost.
""".
-spec send(program(), iodata()) -> ok.
send(#{writer := Writer}, Bytes) ->
    Writer ! {write, Bytes},
    ok.

-doc "Returns the port of the program. All messages of the program have this port.".
-spec key(program()) -> port().
key(#{port := Port}) ->
    Port.

-doc """
Interprets a message of the mailbox: bytes of the program's output, or its end (`closed`). `other`
is a message that the program did not send.
""".
-spec message(term(), program()) -> {bytes, binary()} | {closed, ended} | other.
message({Port, {data, Bytes}}, #{port := Port}) -> {bytes, Bytes};
message({Port, {exit_status, _}}, #{port := Port}) -> {closed, ended};
%% The program may close its input before it ends.
message({'DOWN', Closed, port, _, _}, #{closed := Closed}) -> {closed, ended};
message(_, _) -> other.

-doc """
Waits for the next message of the program, or returns `timeout` after `Milliseconds`. Other messages
stay in the mailbox.
""".
-spec next(program(), Milliseconds :: non_neg_integer()) ->
    {bytes, binary()} | {closed, ended} | timeout.
next(#{port := Port, closed := Closed}, Milliseconds) ->
    receive
        {Port, {data, Bytes}} -> {bytes, Bytes};
        {Port, {exit_status, _}} -> {closed, ended};
        {'DOWN', Closed, port, _, _} -> {closed, ended}
    after Milliseconds ->
        timeout
    end.

-doc "Ends the program, and waits for its end, at most ten seconds.".
-spec stop(program()) -> ok.
stop(#{closed := Closed, guard := Guard}) ->
    true = demonitor(Closed, [flush]),
    Ended = monitor(process, Guard),
    Guard ! stop,
    receive
        {'DOWN', Ended, process, _, _} -> ok
    after ?STOP_MS ->
        true = demonitor(Ended, [flush]),
        ok
    end.

-doc "Returns the process id of the program in the operating system.".
-spec os_pid(program()) -> pos_integer().
os_pid(#{os_pid := OsPid}) -> OsPid.
