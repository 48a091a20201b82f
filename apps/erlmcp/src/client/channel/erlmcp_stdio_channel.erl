-module(erlmcp_stdio_channel).
-moduledoc """
A channel to a server that is a child process of this node. `Target` is `{stdio, Command}`: a path,
a name on the `PATH`, or a list of a command and its first arguments. Options:

- `args`: more arguments;
- `env`: a map or list of environment variables for the server; `false` removes one;
- `inherit`: the variables of the node's own environment that the server gets: `safe`, a few without
  secrets (see `erlmcp_stdio_environment`), or `all`;
- `cd`: the folder that the server runs in;
- `stop_ms`: milliseconds for the server to end after its input is closed, and again after SIGTERM
  (2000).

The server's standard error is logged, each line as a notice with the domain `[erlmcp, client,
stderr]`, at most 200 lines a second. The server is ended in the order of the specification: its
input is closed, then SIGTERM and SIGKILL go to its whole process group. A guard outside of the node
does this, so it also happens when the node is killed: see `priv/erlmcp_stdio.sh`. A server that
ends is started again, after a pause that grows while it does not last.

A server that writes faster than the channel reads is held up, as by a full pipe. Ports read ahead
without a bound, so a program between them copies one portion of the pipe at a time. It reports each
portion, and is allowed the next one before the current one is used up.

Source: specification 2026-07-28, "Transports / stdio".

Internal.
""".

-behaviour(erlmcp_channel).
-behaviour(erlmcp_line_channel).

-export([open/2, send/2, received/2, abort/1, leave/4, close/1]).
-export([connect/3, activate/2, arrived/2, deliver/2, drop/1, finish/1, option/2, about/1]).

-define(STOP_MS, 2000).
%% Records of at most 2048 bytes in a portion of the server's output or errors. Up to two portions
%% of each may wait in the channel's mailbox.
-define(PORTION, 1024).
%% Milliseconds between the end of the server and the end of its output, which another process may
%% hold open. The programs that copy the output and report the end may have to wait for a processor.
-define(LAST_WORDS, 2000).
%% Milliseconds between the end of its output and the end of the server, which tells the reason.
-define(OWN_END, 10_000).
%% Milliseconds that the guard takes at most, in addition to the two times that it waits.
-define(GUARD, 5000).

-record(way, {
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

-doc "Starts the channel, which starts the server in the background, and again when it ends.".
-spec open({stdio, Command :: binary() | string() | [binary() | string()]},
           erlmcp_channel:settings()) ->
    {ok, pid(), erlmcp_line_channel:handle()} | {error, term()}.
open({stdio, [First | _] = Command}, Settings) when not is_integer(First) ->
    opened(Command, Settings);
open({stdio, Command}, Settings) ->
    opened([Command], Settings).

opened([Program | _] = Command, Settings) ->
    case Program =/= "" andalso Program =/= ~"" andalso lists:all(fun is_text/1, Command) of
        true -> erlmcp_line_channel:open(?MODULE, {stdio, Command}, Settings);
        false -> {error, {bad_option, command, ~"a program, or a list of it and its arguments"}}
    end.

-doc "Sends as `erlmcp_line_channel:send/2` does.".
-spec send(erlmcp_channel:outgoing(), erlmcp_line_channel:handle()) ->
    {ok, erlmcp_line_channel:exchange()} | {error, erlmcp_channel:reason()}.
send(Outgoing, Handle) ->
    erlmcp_line_channel:send(Outgoing, Handle).

-doc "Returns events as `erlmcp_line_channel:received/2` does.".
-spec received(term(), erlmcp_line_channel:exchange()) ->
    {[erlmcp_channel:event()], erlmcp_line_channel:exchange()} | other.
received(Message, Exchange) ->
    erlmcp_line_channel:received(Message, Exchange).

-doc "Aborts as `erlmcp_line_channel:abort/1` does.".
-spec abort(erlmcp_line_channel:exchange()) -> false.
abort(Exchange) ->
    erlmcp_line_channel:abort(Exchange).

-doc "Leaves as `erlmcp_line_channel:leave/4` does.".
-spec leave(binary() | none, [{binary(), iodata()}], integer(), erlmcp_line_channel:handle()) -> ok.
leave(Session, Headers, Deadline, Handle) ->
    erlmcp_line_channel:leave(Session, Headers, Deadline, Handle).

-doc "Ends the server in order, and waits for at most twice `stop_ms` and five seconds.".
-spec close(pid()) -> ok.
close(Pid) ->
    erlmcp_line_channel:close(Pid).

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

%% The script that made the folder removes it when its port ends, unless it was told that there is a
%% guard, which does so from then on.
-doc false.
activate({Maker, Folder, Command}, #{options := Options}) ->
    StopMs = maps:get(stop_ms, Options, ?STOP_MS),
    Activated = maybe
        {ok, Teller} ?= open_script(["tell", Folder], []),
        {ok, Reader} ?= open_reader(Folder, "out"),
        {ok, ErrorReader} ?= open_reader(Folder, "err"),
        Pids = [Pid || Port <- [Reader, ErrorReader], Pid <- pid_of(Port)],
        {ok, Guard} ?= open_script(guard(Folder, StopMs, Pids), []),
        ok = command(Maker, ~"taken\n"),
        {ok, Server} ?= open_server(Folder, Command, Options,
                                    [Guard, Reader, ErrorReader, Teller]),
        {ok, #way{folder = Folder, stop_ms = StopMs, server = Server, guard = Guard,
                  reader = Reader, error_reader = ErrorReader, reader_pids = Pids,
                  teller = Teller, errors = erlmcp_stdio_stderr:new(hd(Command), script())}}
    end,
    ok = close_port(Maker),
    Activated.

%% Two permits: while the reader copies one portion it already may copy the next.
open_reader(Folder, Stream) ->
    maybe
        {ok, Reader} ?= open_script(["read", Folder, Stream, integer_to_list(?PORTION)], []),
        ok = go_on(Reader),
        ok = go_on(Reader),
        {ok, Reader}
    end.

go_on(Reader) -> command(Reader, ~"more\n").

guard(Folder, StopMs, ReaderPids) ->
    ["guard", Folder, integer_to_list(StopMs) | ReaderPids].

open_server(Folder, Command, Options, Others) ->
    Cd = [{cd, Path} || {ok, Path} <- [maps:find(cd, Options)]],
    Env = [{env, erlmcp_stdio_environment:changes(maps:get(inherit, Options, safe),
                                                  maps:get(env, Options, []))}],
    case open_script(["run", Folder | Command] ++ maps:get(args, Options, []), Cd ++ Env) of
        {ok, Server} ->
            {ok, Server};
        {error, _} = Error ->
            lists:foreach(fun close_port/1, Others),
            Error
    end.

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

%% A port whose program has ended has no pid any more.
pid_of(Port) ->
    [integer_to_list(Pid) || {os_pid, Pid} <- [erlang:port_info(Port, os_pid)]].

-doc false.
arrived({Reader, {data, Bytes}}, #way{reader = Reader} = Way) ->
    {data, Bytes, Way#way{heard = true}};
arrived({Reader, {data, Bytes}}, #way{error_reader = Reader, errors = Errors} = Way) ->
    {ignore, Way#way{errors = erlmcp_stdio_stderr:push(Bytes, Errors)}};
arrived({Teller, {data, Bytes}}, #way{teller = Teller} = Way) ->
    {ignore, allow_more(Bytes, Way)};
arrived({Teller, {exit_status, _}}, #way{teller = Teller} = Way) ->
    over(Way);
arrived({Server, {data, Status}}, #way{server = Server} = Way) ->
    over(Way#way{ended = {exit_status, binary_to_integer(string:trim(Status))}});
%% The script that reports the status could not begin, or was killed.
arrived({Server, {exit_status, Status}}, #way{server = Server} = Way) ->
    over(Way#way{ended = {exit_status, Status}});
arrived({Reader, {exit_status, _}}, #way{reader = Reader} = Way) ->
    over(Way#way{output = closed});
arrived({?MODULE, Server, last_words}, #way{server = Server, ended = Ended} = Way) ->
    {ended, why(Ended, Way), Way};
arrived({Guard, {exit_status, Status}},
        #way{guard = Guard, folder = Folder, reader_pids = Pids, stop_ms = StopMs} = Way) ->
    %% The guard was killed from outside. The server must not live without one.
    case open_script(guard(Folder, StopMs, Pids), []) of
        {ok, Next} -> {ended, {guard, Status}, Way#way{guard = Next}};
        {error, Why} -> {ended, {guard, Why}, Way}
    end;
arrived(_, _) ->
    other.

%% The last output of an ended server is still on its way. A server that only closed its output runs
%% on.
over(#way{ended = Ended, output = closed} = Way) when Ended =/= none ->
    {ended, why(Ended, Way), Way};
over(#way{server = Server, ended = Ended} = Way) ->
    Longest = case Ended of
        none -> ?OWN_END;
        _ -> ?LAST_WORDS
    end,
    _ = erlang:send_after(Longest, self(), {?MODULE, Server, last_words}),
    {ignore, Way}.

why(none, _) -> output_closed;
%% The status of a shell for a command that was not found, or cannot be run.
why({exit_status, Status}, #way{heard = false}) when Status =:= 126; Status =:= 127 ->
    {connect, {exit_status, Status}};
why(Ended, _) -> Ended.

%% All that was copied before this report is already in the mailbox, except the content of a pipe.
allow_more(Bytes, #way{report = Before, reader = Reader, error_reader = ErrorReader} = Way) ->
    Lines = binary:split(<<Before/binary, Bytes/binary>>, ~"\n", [global]),
    [Rest | Streams] = lists:reverse(Lines),
    [ok = go_on(case Stream of ~"out" -> Reader; ~"err" -> ErrorReader end) || Stream <- Streams],
    Way#way{report = Rest}.

%% The program of the port may have ended.
command(Port, Bytes) ->
    try port_command(Port, Bytes, [nosuspend]) of
        _ -> ok
    catch
        error:badarg -> ok
    end.

-doc false.
deliver(Bytes, #way{server = Server}) ->
    try
        true = port_command(Server, Bytes),
        ok
    catch
        %% The program has ended; its status is on the way to the channel.
        error:badarg -> gone
    end.

%% The guard sees the end of its input and ends the server.
-doc false.
drop(#way{server = Server, guard = Guard, reader = Reader, error_reader = ErrorReader,
          teller = Teller}) ->
    lists:foreach(fun close_port/1, [Server, Guard, Reader, ErrorReader, Teller]).

-doc false.
finish(#way{server = Server, guard = Guard, error_reader = ErrorReader} = Way) ->
    ok = close_port(Server),
    ok = command(Guard, ~"end\n"),
    Timer = erlang:start_timer(2 * Way#way.stop_ms + ?GUARD, self(), finish),
    ok = await_ends([Guard, ErrorReader], Timer, Way),
    drop(Way).

%% The server may write until it ends.
await_ends([], Timer, _) ->
    _ = erlang:cancel_timer(Timer),
    ok;
await_ends(Ports, Timer, #way{reader = Reader, error_reader = ErrorReader,
                                  teller = Teller} = Way) ->
    receive
        {ErrorReader, {data, Bytes}} ->
            await_ends(Ports, Timer,
                       Way#way{errors = erlmcp_stdio_stderr:push(Bytes, Way#way.errors)});
        {Reader, {data, _}} ->
            await_ends(Ports, Timer, Way);
        {Teller, {data, Bytes}} ->
            await_ends(Ports, Timer, allow_more(Bytes, Way));
        {Port, {exit_status, _}} ->
            await_ends(lists:delete(Port, Ports), Timer, Way);
        {timeout, Timer, finish} ->
            ok
    end.

close_port(Port) ->
    try port_close(Port) of
        true -> ok
    catch
        error:badarg -> ok
    end.

-doc false.
option(args, Args) ->
    is_list(Args) andalso lists:all(fun is_text/1, Args) orelse ~"a list of binaries";
option(env, Env) ->
    erlmcp_stdio_environment:is_env(Env)
        orelse ~"a map or list of names and values, or false for one to be removed";
option(inherit, Value) ->
    erlmcp_stdio_environment:is_inherit(Value) orelse ~"safe or all";
option(cd, Folder) ->
    is_text(Folder) orelse ~"the path of a folder";
option(stop_ms, Value) ->
    is_integer(Value) andalso Value > 0 orelse ~"a positive integer";
option(_, _) ->
    ~"no such option of a client on stdio".

is_text(Text) when is_binary(Text) -> true;
is_text(Text) -> io_lib:char_list(Text).

-doc false.
about({stdio, [Command | _]}) ->
    #{transport => stdio, command => Command}.
