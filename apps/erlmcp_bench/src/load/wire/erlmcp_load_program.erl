-module(erlmcp_load_program).
-moduledoc """
A server on stdio: a program that is started for one connection. Its output comes to the process
that has started it. Its input is written by another one, because a program that does not read holds
up whoever writes; what waits there is what the connection has in flight. Its errors are written
where the generator's own are.

It ends with the process that has started it, or before: its input is closed, and if it stays it is
told to end, and killed, with all of its process group.
""".

-export([start/2, is_environment/1, send/2, key/1, message/2, next/2, stop/1, os_pid/1]).

-export_type([program/0, environment/0]).

-doc "Differences of a program's environment from this node's; `false` removes a variable.".
-type environment() :: [{Name :: string(), Value :: string() | false}].

-opaque program() :: #{port := port(), closed := reference(), writer := pid(), guard := pid(),
                       os_pid := pos_integer()}.

%% Milliseconds that a program has to end by itself, and again after SIGTERM; how often it is looked
%% for; and what stopping it may take altogether.
-define(END_MS, 1000).
-define(LOOK_MS, 10).
-define(STOP_MS, 10_000).

-doc "Starts a program: a path or a name, and its arguments. No shell reads them.".
-spec start([string() | binary(), ...], environment()) ->
    {ok, program()} | {error, Reason :: atom()}.
start([First | Arguments], Environment) ->
    case os:find_executable(unicode:characters_to_list(First)) of
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
    %% A pipe that breaks is no reason to die; that it closes with its owner is the guard's part.
    true = unlink(Port),
    {ok, #{port => Port, closed => Closed, writer => Writer, guard => Guard, os_pid => OsPid}};
owned(_, undefined) ->
    {error, ended}.

-doc "Returns `true` if `Term` is an environment.".
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
            %% The port may close at any moment, and whoever waits for it hears so.
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
        %% It is closed already.
        error:badarg -> ok
    end,
    ended(OsPid, ["TERM", "KILL"], ?END_MS).

ended(OsPid, Signals, Left) ->
    case filelib:is_dir("/proc/" ++ integer_to_list(OsPid)) of
        false ->
            ok;
        true when Left > 0 ->
            receive after ?LOOK_MS -> ended(OsPid, Signals, Left - ?LOOK_MS) end;
        true when Signals =:= [] ->
            ok;
        true ->
            [Signal | Others] = Signals,
            %% The runtime makes every port's program the leader of a group.
            _ = os:cmd(lists:concat(["kill -", Signal, " -", OsPid])),
            ended(OsPid, Others, ?END_MS)
    end.

-doc "Writes to its input.".
-spec send(program(), iodata()) -> ok.
send(#{writer := Writer}, Bytes) ->
    Writer ! {write, Bytes},
    ok.

-doc "What its messages have in them.".
-spec key(program()) -> port().
key(#{port := Port}) ->
    Port.

-doc "What a message says of the program.".
-spec message(term(), program()) -> {bytes, binary()} | {closed, ended} | other.
message({Port, {data, Bytes}}, #{port := Port}) -> {bytes, Bytes};
message({Port, {exit_status, _}}, #{port := Port}) -> {closed, ended};
%% It may have closed its input before it has ended.
message({'DOWN', Closed, port, _, _}, #{closed := Closed}) -> {closed, ended};
message(_, _) -> other.

-doc "The next of them, within so many milliseconds; others are left where they are.".
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

-doc "Ends it, and waits until it has ended.".
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

-doc "Its number.".
-spec os_pid(program()) -> pos_integer().
os_pid(#{os_pid := OsPid}) -> OsPid.
