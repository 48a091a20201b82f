-module(erlmcp_stdio_channel).
-moduledoc """
A channel to a server that is a child process of this node. `Target` is `{stdio, Command}`: a path,
a name to be found on the `PATH`, or a list of that and its first arguments. Options:

- `args`: more arguments;
- `env`: a map or list of environment variables that it is given; `false` removes one;
- `inherit`: what it has of the node's own environment besides: `safe`, a few variables that have no
  secrets (see `erlmcp_stdio_environment`), or `all`;
- `cd`: the folder that it runs in;
- `stop_ms`: milliseconds that it has to end after its input has, and again after SIGTERM (2000).

What the server writes on standard error is logged, each line as a notice with the domain
`[erlmcp, client, stderr]`, at most 200 lines a second. It ends in the order of the specification:
its input is closed; SIGTERM; SIGKILL, to all of its process group. That also happens when the node
is killed, for it is done by a guard outside of the node: see `priv/erlmcp_stdio.sh`. A server that
ends is started again, after a pause that grows while it does not last.

A server that writes faster than it is read is held up, as by a pipe that is full. Ports read ahead
without a bound, so what feeds them copies a portion of the pipe and waits to be told to go on; it
is told so before a portion is used up, and says when one is.

Source: specification 2026-07-28, "Transports / stdio".

Internal.
""".

-behaviour(erlmcp_channel).
-behaviour(erlmcp_line_channel).

-export([open/2, send/2, received/2, abort/1, leave/4, close/1]).
-export([connect/2, activate/2, arrived/2, deliver/2, drop/1, finish/1, option/2, about/1]).

-define(STOP_MS, 2000).
%% Records of at most 2048 bytes in a portion of the server's output, or of its errors; up to two
%% portions of each may wait in our mailbox.
-define(PORTION, 1024).
%% Milliseconds between the end of the server and the end of its output, which another may have. Who
%% copies the output, and who says how the server ended, are programs that may have to wait for a
%% processor.
-define(LAST_WORDS, 2000).
%% And between the end of its output and its own, by which the reason is known.
-define(OWN_END, 10_000).
%% Milliseconds that the guard takes at most beside the two times that it waits.
-define(GUARD, 5000).

-record(way, {
    folder :: file:filename(),
    stop_ms :: pos_integer(),
    server :: port(),
    guard :: port(),
    %% Of the server's output, and of what it writes on standard error.
    reader :: port(),
    error_reader :: port(),
    reader_pids :: [string()],
    %% Where the readers say that they have copied a portion.
    teller :: port(),
    told = ~"" :: binary(),
    errors :: erlmcp_stdio_stderr:lines(),
    heard = false :: boolean(),
    ended = none :: none | term(),
    output = open :: open | closed
}).

-doc "Starts it; the server is started, and started again, in the background.".
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

-doc "See `erlmcp_line_channel:send/2`.".
-spec send(erlmcp_channel:outgoing(), erlmcp_line_channel:handle()) ->
    {ok, erlmcp_line_channel:exchange()} | {error, erlmcp_channel:reason()}.
send(Outgoing, Handle) ->
    erlmcp_line_channel:send(Outgoing, Handle).

-doc "See `erlmcp_line_channel:received/2`.".
-spec received(term(), erlmcp_line_channel:exchange()) ->
    {[erlmcp_channel:event()], erlmcp_line_channel:exchange()} | other.
received(Message, Exchange) ->
    erlmcp_line_channel:received(Message, Exchange).

-doc "See `erlmcp_line_channel:abort/1`.".
-spec abort(erlmcp_line_channel:exchange()) -> false.
abort(Exchange) ->
    erlmcp_line_channel:abort(Exchange).

-doc "See `erlmcp_line_channel:leave/4`.".
-spec leave(binary() | none, [{binary(), iodata()}], integer(), erlmcp_line_channel:handle()) -> ok.
leave(Session, Headers, Deadline, Handle) ->
    erlmcp_line_channel:leave(Session, Headers, Deadline, Handle).

-doc "Ends the server, in order; waits for that up to twice `stop_ms` and a little.".
-spec close(pid()) -> ok.
close(Pid) ->
    erlmcp_line_channel:close(Pid).

-doc false.
connect({stdio, Command}, #{connect_timeout := Timeout}) ->
    Name = "erlmcp-" ++ binary_to_list(binary:encode_hex(rand:bytes(16), lowercase)),
    Folder = filename:absname(Name, os:getenv("TMPDIR", "/tmp")),
    maybe
        {ok, Port} ?= open_script(["make", Folder], []),
        receive
            {Port, {data, _}} ->
                %% It takes the folder away again if we end before.
                true = port_command(Port, ~"taken\n"),
                {ok, {Folder, Command}};
            {Port, {exit_status, Status}} -> {error, {no_folder, Folder, Status}}
        after Timeout ->
            {error, timeout}
        end
    end.

-doc false.
activate({Folder, Command}, #{options := Options}) ->
    StopMs = maps:get(stop_ms, Options, ?STOP_MS),
    maybe
        {ok, Teller} ?= open_script(["tell", Folder], []),
        {ok, Reader} ?= open_reader(Folder, "out"),
        {ok, ErrorReader} ?= open_reader(Folder, "err"),
        Pids = [Pid || Port <- [Reader, ErrorReader], Pid <- pid_of(Port)],
        {ok, Guard} ?= open_script(guard(Folder, StopMs, Pids), []),
        {ok, Server} ?= open_server(Folder, Command, Options,
                                    [Guard, Reader, ErrorReader, Teller]),
        {ok, #way{folder = Folder, stop_ms = StopMs, server = Server, guard = Guard,
                  reader = Reader, error_reader = ErrorReader, reader_pids = Pids,
                  teller = Teller, errors = erlmcp_stdio_stderr:new(hd(Command), script())}}
    end.

%% While it copies a portion it is to have leave for the next.
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

%% A port whose program has ended already has none.
pid_of(Port) ->
    [integer_to_list(Pid) || {os_pid, Pid} <- [erlang:port_info(Port, os_pid)]].

-doc false.
arrived({Reader, {data, Bytes}}, #way{reader = Reader} = Way) ->
    {data, Bytes, Way#way{heard = true}};
arrived({Reader, {data, Bytes}}, #way{error_reader = Reader, errors = Errors} = Way) ->
    {ignore, Way#way{errors = erlmcp_stdio_stderr:push(Bytes, Errors)}};
arrived({Teller, {data, Bytes}}, #way{teller = Teller} = Way) ->
    {ignore, told(Bytes, Way)};
arrived({Teller, {exit_status, _}}, #way{teller = Teller} = Way) ->
    over(Way);
arrived({Server, {data, Status}}, #way{server = Server} = Way) ->
    over(Way#way{ended = {exit_status, binary_to_integer(string:trim(Status))}});
%% Who was to say so could not begin, or was killed.
arrived({Server, {exit_status, Status}}, #way{server = Server} = Way) ->
    over(Way#way{ended = {exit_status, Status}});
arrived({Reader, {exit_status, _}}, #way{reader = Reader} = Way) ->
    over(Way#way{output = closed});
arrived({?MODULE, Server, last_words}, #way{server = Server, ended = Ended} = Way) ->
    {ended, why(Ended, Way), Way};
arrived({Guard, {exit_status, Status}},
        #way{guard = Guard, folder = Folder, reader_pids = Pids, stop_ms = StopMs} = Way) ->
    %% Somebody killed it. The server may not live without one.
    case open_script(guard(Folder, StopMs, Pids), []) of
        {ok, Next} -> {ended, {guard, Status}, Way#way{guard = Next}};
        {error, Why} -> {ended, {guard, Why}, Way}
    end;
arrived(_, _) ->
    other.

%% What it wrote before its end is still on the way; and who closes its output only has not ended.
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
%% The shell's way to say that there is no such program, or that it is none.
why({exit_status, Status}, #way{heard = false}) when Status =:= 126; Status =:= 127 ->
    {connect, {exit_status, Status}};
why(Ended, _) -> Ended.

%% All that was copied before is in our mailbox, and was before this, but for a pipe's content.
told(Bytes, #way{told = Before, reader = Reader, error_reader = ErrorReader} = Way) ->
    Lines = binary:split(<<Before/binary, Bytes/binary>>, ~"\n", [global]),
    [Rest | Streams] = lists:reverse(Lines),
    [ok = go_on(case Stream of ~"out" -> Reader; ~"err" -> ErrorReader end) || Stream <- Streams],
    Way#way{told = Rest}.

%% Of a port that may have ended.
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
        %% The program has ended, with a status that is on its way to the channel.
        error:badarg -> gone
    end.

%% The guard does the rest: its input ends.
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

%% The server can go on writing until it ends.
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
            await_ends(Ports, Timer, told(Bytes, Way));
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
