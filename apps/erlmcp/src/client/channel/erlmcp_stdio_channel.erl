-module(erlmcp_stdio_channel).
-moduledoc """
The transport of a line channel to a server that is a child process of this node. Its options are
`t:erlmcp_client:stdio_options/0`.

The server's standard error is logged (`m:erlmcp_stdio_stderr`). To end the server, its input is
closed, and then SIGTERM and SIGKILL go to its whole process group. A script outside of the node,
the guard, does this, so the server ends even if the node is killed (`priv/erlmcp_stdio.sh`). A
server that writes faster than the channel reads has to wait, as at a full pipe.

Source: specification 2026-07-28, "Transports / stdio".

Internal.
""".

-behaviour(erlmcp_line_channel).

-export([target/1, option/2, about/1]).
-export([connect/3, activate/2, arrived/2, deliver/2, drop/1, finish/1]).

-define(STOP_MS, 2000).
%% A portion of the server's output or standard error, in records of at most 2048 bytes. Up to two
%% portions of each may wait in the channel's mailbox. Ports of the runtime read ahead without a
%% bound, so a program between the server and the port copies one portion at a time, and the next
%% one only when the channel allows that.
-define(PORTION, 1024).
%% The most milliseconds from the end of the server to the end of its output, which another process
%% may keep open. The time must also suffice for the programs that copy the output, if the
%% processors are busy.
-define(LAST_WORDS, 2000).
%% The most milliseconds from the end of the server's output to the end of the server, whose exit
%% status is the reason.
-define(OWN_END, 10_000).
%% The most milliseconds that the guard takes in addition to waiting `stop_ms` twice.
-define(GUARD, 5000).

-record(child, {
    folder :: file:filename(),
    stop_ms :: pos_integer(),
    server :: port(),
    guard :: port(),
    %% The programs that copy the server's output and its standard error.
    reader :: port(),
    error_reader :: port(),
    reader_pids :: [string()],
    %% The program that reports copied portions, and the unfinished line of its reports.
    teller :: port(),
    report = ~"" :: binary(),
    errors :: erlmcp_stdio_stderr:lines(),
    heard = false :: boolean(),
    ended = none :: none | term(),
    output = open :: open | closed
}).

-doc false.
target({stdio, [First | _] = Command}) when not is_integer(First) ->
    checked(Command);
target({stdio, Command}) ->
    checked([Command]).

checked([Program | _] = Command) ->
    case Program =/= "" andalso Program =/= ~""
             andalso erlmcp_user_term:is_list_of(fun is_text/1, Command) of
        true -> {ok, {stdio, Command}};
        false -> {error, {bad_option, command,
                          ~"a program, or a list of it and its arguments, without NUL"}}
    end.

-doc false.
option(args, Args) ->
    erlmcp_user_term:is_list_of(fun is_text/1, Args) orelse ~"a list of binaries without NUL";
option(env, Env) ->
    erlmcp_stdio_environment:is_env(Env)
        orelse ~"a map or list of names and values, or false for one to be removed";
option(inherit, Value) ->
    erlmcp_stdio_environment:is_inherit(Value) orelse ~"safe or all";
option(cd, Folder) ->
    is_text(Folder) orelse ~"the path of a folder, without NUL";
option(stop_ms, Value) ->
    erlmcp_user_term:check_wait(Value);
option(_, _) ->
    ~"no such option of a client on stdio".

%% No argument and no path can have NUL. A binary may have any other bytes, as a file's name may.
is_text(Text) when is_binary(Text) -> binary:match(Text, <<0>>) =:= nomatch;
is_text(Text) -> io_lib:char_list(Text) andalso not lists:member(0, Text).

-doc false.
about({stdio, [Command | _]}) ->
    #{transport => stdio, command => Command}.

-doc false.
connect({stdio, Command}, Channel, #{connect_timeout := Timeout}) ->
    Name = "erlmcp-" ++ binary_to_list(binary:encode_hex(rand:bytes(16), lowercase)),
    Folder = filename:absname(Name, os:getenv("TMPDIR", "/tmp")),
    maybe
        {ok, Port} ?= open_script(["make", Folder], []),
        receive
            {Port, {data, _}} ->
                true = port_connect(Port, Channel),
                true = unlink(Port),
                {ok, {Port, Folder, Command}};
            {Port, {exit_status, Status}} ->
                {error, {no_folder, Folder, Status}}
        after Timeout ->
            {error, timeout}
        end
    end.

%% The script that created the folder removes it when its port closes. After the line `taken` the
%% guard removes it instead.
-doc false.
activate({Maker, Folder, Command}, #{options := Options}) ->
    StopMs = maps:get(stop_ms, Options, ?STOP_MS),
    Activated = maybe
        {ok, [Teller, Reader, ErrorReader] = Copiers} ?=
            open_scripts([["tell", Folder], read(Folder, "out"), read(Folder, "err")], []),
        %% Two portions are allowed: while the reader copies one, it may already copy the next.
        [ok = go_on(Copier) || Copier <- [Reader, ErrorReader], _ <- [1, 2]],
        Pids = [Pid || Port <- [Reader, ErrorReader], Pid <- pid_of(Port)],
        {ok, [Guard]} ?= open_scripts([guard(Folder, StopMs, Pids)], Copiers),
        ok = command(Maker, ~"taken\n"),
        {ok, Server} ?= open_server(Folder, Command, Options, [Guard | Copiers]),
        {ok, #child{folder = Folder, stop_ms = StopMs, server = Server, guard = Guard,
                  reader = Reader, error_reader = ErrorReader, reader_pids = Pids,
                  teller = Teller, errors = erlmcp_stdio_stderr:new(hd(Command), script())}}
    end,
    ok = close_port(Maker),
    Activated.

%% Opens a port for each script. If one fails, it closes these and `Others`.
open_scripts([], _) ->
    {ok, []};
open_scripts([Arguments | More], Others) ->
    maybe
        {ok, Port} ?= or_close(Others, open_script(Arguments, [])),
        {ok, Ports} ?= open_scripts(More, [Port | Others]),
        {ok, [Port | Ports]}
    end.

or_close(_, {ok, _} = Opened) ->
    Opened;
or_close(Others, {error, _} = Error) ->
    lists:foreach(fun close_port/1, Others),
    Error.

read(Folder, Stream) -> ["read", Folder, Stream, integer_to_list(?PORTION)].

go_on(Reader) -> command(Reader, ~"more\n").

guard(Folder, StopMs, ReaderPids) ->
    ["guard", Folder, integer_to_list(StopMs) | ReaderPids].

open_server(Folder, Command, Options, Others) ->
    Cd = [{cd, Path} || {ok, Path} <- [maps:find(cd, Options)]],
    Env = [{env, erlmcp_stdio_environment:changes(maps:get(inherit, Options, safe),
                                                  maps:get(env, Options, []))}],
    or_close(Others, open_script(["run", Folder | Command] ++ maps:get(args, Options, []),
                                 Cd ++ Env)).

open_script(Arguments, Options) ->
    Script = script(),
    try
        {ok, open_port({spawn_executable, "/bin/sh"},
                       [{args, [Script | Arguments]}, binary, stream, exit_status, use_stdio
                        | Options])}
    catch
        error:Why -> {error, Why}
    end.

script() -> filename:absname("erlmcp_stdio.sh", code:priv_dir(erlmcp)).

%% A port whose program has ended no longer has a pid.
pid_of(Port) ->
    [integer_to_list(Pid) || {os_pid, Pid} <- [erlang:port_info(Port, os_pid)]].

-doc false.
arrived({Reader, {data, Bytes}}, #child{reader = Reader} = Child) ->
    {data, Bytes, Child#child{heard = true}};
arrived({Reader, {data, Bytes}}, #child{error_reader = Reader, errors = Errors} = Child) ->
    {ignore, Child#child{errors = erlmcp_stdio_stderr:push(Bytes, Errors)}};
arrived({Teller, {data, Bytes}}, #child{teller = Teller} = Child) ->
    {ignore, allow_more(Bytes, Child)};
arrived({Teller, {exit_status, _}}, #child{teller = Teller} = Child) ->
    over(Child);
arrived({Server, {data, Status}}, #child{server = Server} = Child) ->
    over(Child#child{ended = {exit_status, binary_to_integer(string:trim(Status))}});
%% The script that reports the server's exit status could not start, or was killed.
arrived({Server, {exit_status, Status}}, #child{server = Server} = Child) ->
    over(Child#child{ended = {exit_status, Status}});
arrived({Reader, {exit_status, _}}, #child{reader = Reader} = Child) ->
    over(Child#child{output = closed});
arrived({?MODULE, Server, last_words}, #child{server = Server, ended = Ended} = Child) ->
    {ended, why(Ended, Child), Child};
arrived({Guard, {exit_status, Status}},
        #child{guard = Guard, folder = Folder, reader_pids = Pids, stop_ms = StopMs} = Child) ->
    %% The guard was killed from outside. The server must not run without one, so a new guard ends
    %% it.
    case open_script(guard(Folder, StopMs, Pids), []) of
        {ok, Next} -> {ended, {guard, Status}, Child#child{guard = Next}};
        {error, Why} -> {ended, {guard, Why}, Child}
    end;
arrived(_, _) ->
    other.

%% Waits until both the server and its output have ended. The last output of an ended server may
%% still come, and a server without output may still run.
over(#child{ended = Ended, output = closed} = Child) when Ended =/= none ->
    {ended, why(Ended, Child), Child};
over(#child{server = Server, ended = Ended} = Child) ->
    Longest = case Ended of
        none -> ?OWN_END;
        _ -> ?LAST_WORDS
    end,
    _ = erlang:send_after(Longest, self(), {?MODULE, Server, last_words}),
    {ignore, Child}.

why(none, _) -> output_closed;
%% The exit statuses of a shell for a command that was not found, or cannot be run.
why({exit_status, Status}, #child{heard = false}) when Status =:= 126; Status =:= 127 ->
    {connect, {exit_status, Status}};
why(Ended, _) -> Ended.

%% Everything that was copied before this report is already in the mailbox, except what is in a
%% pipe. So the next portion is allowed.
allow_more(Bytes, #child{report = Before, reader = Reader, error_reader = ErrorReader} = Child) ->
    Lines = binary:split(<<Before/binary, Bytes/binary>>, ~"\n", [global]),
    [Rest | Streams] = lists:reverse(Lines),
    [ok = go_on(case Stream of ~"out" -> Reader; ~"err" -> ErrorReader end) || Stream <- Streams],
    Child#child{report = Rest}.

%% Writes to a port whose program may have ended.
command(Port, Bytes) ->
    try port_command(Port, Bytes, [nosuspend]) of
        _ -> ok
    catch
        error:badarg -> ok
    end.

-doc false.
deliver(Bytes, #child{server = Server}) ->
    try
        true = port_command(Server, Bytes),
        ok
    catch
        %% The program has ended. Its exit status is on its way to the channel.
        error:badarg -> gone
    end.

%% The guard ends the server when its own input is closed.
-doc false.
drop(#child{server = Server, guard = Guard, reader = Reader, error_reader = ErrorReader,
          teller = Teller}) ->
    lists:foreach(fun close_port/1, [Server, Guard, Reader, ErrorReader, Teller]).

-doc false.
finish(#child{server = Server, guard = Guard, error_reader = ErrorReader} = Child) ->
    ok = close_port(Server),
    ok = command(Guard, ~"end\n"),
    Timer = erlang:start_timer(2 * Child#child.stop_ms + ?GUARD, self(), finish),
    ok = await_ends([Guard, ErrorReader], Timer, Child),
    drop(Child).

%% Discards what the server writes until it ends.
await_ends([], Timer, _) ->
    _ = erlang:cancel_timer(Timer),
    ok;
await_ends(Ports, Timer, #child{reader = Reader, error_reader = ErrorReader,
                                teller = Teller} = Child) ->
    receive
        {ErrorReader, {data, Bytes}} ->
            await_ends(Ports, Timer,
                       Child#child{errors = erlmcp_stdio_stderr:push(Bytes, Child#child.errors)});
        {Reader, {data, _}} ->
            await_ends(Ports, Timer, Child);
        {Teller, {data, Bytes}} ->
            await_ends(Ports, Timer, allow_more(Bytes, Child));
        {Port, {exit_status, _}} ->
            await_ends(lists:delete(Port, Ports), Timer, Child);
        {timeout, Timer, finish} ->
            ok
    end.

close_port(Port) ->
    try port_close(Port) of
        true -> ok
    catch
        error:badarg -> ok
    end.
