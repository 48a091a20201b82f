-module(erlmcp_cli_control).
-moduledoc """
The control socket of `erlmcp serve`: a Unix domain socket that only its user can connect to. Each
connection carries one question of an operator, a line of JSON, and its answer
(`m:erlmcp_operator`).

By default the socket of the process with the id 123 in the operating system is `123.sock`
(`erlmcp_cli_folders:control/0`). A process that was killed leaves its file, which is removed when
it is found.
""".

-behaviour(gen_server).

-include_lib("kernel/include/file.hrl").

-export([start_link/1, file/0, files/0, ask/3]).
-export([init/1, handle_call/3, handle_cast/2, handle_info/2, terminate/2]).

-record(control, {file :: file:filename_all(), socket :: gen_tcp:socket(), acceptor :: pid()}).

%% Bytes of a question.
-define(QUESTION, 65_536).
%% Milliseconds until the question has come, and until the answer was taken.
-define(PATIENCE, 5_000).
%% Milliseconds between two tries to accept a connection.
-define(PAUSE, 100).
%% Questions that are answered at once.
-define(AT_ONCE, 8).
%% The type of a file in its mode (`S_IFMT`), and that of a socket (`S_IFSOCK`).
-define(TYPE, 8#170000).
-define(SOCKET, 8#140000).
%% Connections that wait to be accepted. A connection over this bound fails.
-define(WAITING, 64).

-doc """
Starts the process that listens on the control socket `File`. The process removes the file when it
ends. A missing folder is made, and a socket without a listener is replaced. The error is that of
the file or the socket: `eaddrinuse` if a process listens there already, and `eexist` if the file is
no socket.
""".
-spec start_link(file:filename_all()) -> gen_server:start_ret().
start_link(File) ->
    gen_server:start_link(?MODULE, File, []).

-doc "Returns the file that this node's control socket has unless the user names another one.".
-spec file() -> file:filename_all().
file() ->
    filename:join(erlmcp_cli_folders:control(), os:getpid() ++ ".sock").

-doc """
Returns the `.sock` files in the folder of control sockets, in the order of their names. Some may be
of processes that were killed.
""".
-spec files() -> [file:filename()].
files() ->
    lists:sort(filelib:wildcard(filename:join(erlmcp_cli_folders:control(), "*.sock"))).

-doc """
Asks a question at a control socket, and returns the answer. Waits `Milliseconds` at most for each
part of the answer. The answer is cut off if the asked node ended meanwhile.

- `gone`: no process listens there any more.
- `timeout`: the connection was not accepted within five seconds, or a part of the answer did not
  come in time.
- `closed`: the connection ended before the answer.
- Other errors are those of the socket.
""".
-spec ask(file:filename_all(), Question :: iodata(), Milliseconds :: timeout()) ->
    {ok, binary()} | {error, gone | inet:posix() | closed | timeout}.
ask(File, Question, Milliseconds) ->
    case connected(File) of
        {ok, Socket} ->
            Answer = maybe
                ok ?= gen_tcp:send(Socket, [Question, $\n]),
                whole(Socket, [], Milliseconds)
            end,
            ok = gen_tcp:close(Socket),
            Answer;
        {error, Why} when Why =:= econnrefused; Why =:= enoent ->
            {error, gone};
        {error, _} = Error ->
            Error
    end.

connected(File) ->
    try
        gen_tcp:connect({local, File}, 0, [binary, {active, false}], ?PATIENCE)
    catch
        %% The address of a socket has room for about a hundred bytes.
        exit:badarg -> {error, enametoolong}
    end.

%% The server closes the connection behind its answer.
whole(Socket, Before, Milliseconds) ->
    case gen_tcp:recv(Socket, 0, Milliseconds) of
        {ok, Bytes} -> whole(Socket, [Before, Bytes], Milliseconds);
        {error, closed} when Before =/= [] -> {ok, iolist_to_binary(Before)};
        {error, _} = Error -> Error
    end.

-doc false.
init(File) ->
    process_flag(trap_exit, true),
    maybe
        ok ?= filelib:ensure_path(filename:dirname(File)),
        ok ?= private(File),
        ok ?= without_left(File),
        {ok, Socket} ?= gen_tcp:listen(0, [binary, {ifaddr, {local, File}}, {active, false},
                                           {packet, line}, {packet_size, ?QUESTION},
                                           {recbuf, ?QUESTION}, {backlog, ?WAITING},
                                           {send_timeout, ?PATIENCE},
                                           {send_timeout_close, true}]),
        ok ?= file:change_mode(File, 8#600),
        Acceptor = spawn_link(fun() -> accept(Socket, 0) end),
        {ok, #control{file = File, socket = Socket, acceptor = Acceptor}}
    else
        {error, Why} -> {error, Why}
    end.

%% Only the folder of control sockets is made private: a folder that the user names may be shared.
private(File) ->
    case filename:dirname(File) =:= erlmcp_cli_folders:control() of
        true -> file:change_mode(filename:dirname(File), 8#700);
        false -> ok
    end.

%% A process that was killed has left its socket. Every other file stays: a socket on which a
%% process listens, and what is no socket.
without_left(File) ->
    case file:read_link_info(File) of
        {ok, #file_info{mode = Mode}} when Mode band ?TYPE =:= ?SOCKET ->
            case gen_tcp:connect({local, File}, 0, [], ?PATIENCE) of
                {ok, Socket} ->
                    ok = gen_tcp:close(Socket),
                    {error, eaddrinuse};
                {error, econnrefused} ->
                    file:delete(File);
                {error, _} = Error ->
                    Error
            end;
        {ok, _} -> {error, eexist};
        {error, enoent} -> ok;
        {error, _} = Error -> Error
    end.

accept(Socket, ?AT_ONCE) ->
    receive {'DOWN', _, process, _, _} -> accept(Socket, ?AT_ONCE - 1) end;
accept(Socket, Busy) ->
    receive
        {'DOWN', _, process, _, _} -> accept(Socket, Busy - 1)
    after 0 ->
        case gen_tcp:accept(Socket) of
            {ok, Connection} ->
                {Pid, _} = spawn_monitor(fun() ->
                    receive go -> answer(Connection) after ?PATIENCE -> ok end
                end),
                _ = gen_tcp:controlling_process(Connection, Pid),
                Pid ! go,
                accept(Socket, Busy + 1);
            {error, closed} ->
                exit({shutdown, closed});
            {error, _} ->
                %% Descriptors or ports are short. The server goes on, and so does its socket.
                receive after ?PAUSE -> accept(Socket, Busy) end
        end
    end.

answer(Connection) ->
    maybe
        {ok, Question} ?= gen_tcp:recv(Connection, 0, ?PATIENCE),
        gen_tcp:send(Connection, erlmcp_operator:ask(Question))
    end,
    gen_tcp:close(Connection).

-doc false.
handle_call(_, _, Control) ->
    {noreply, Control}.

-doc false.
handle_cast(_, Control) ->
    {noreply, Control}.

-doc false.
handle_info({'EXIT', Acceptor, Reason}, #control{acceptor = Acceptor} = Control) ->
    {stop, Reason, Control};
handle_info(_, Control) ->
    {noreply, Control}.

-doc false.
terminate(_, #control{file = File, socket = Socket}) ->
    ok = gen_tcp:close(Socket),
    _ = file:delete(File),
    ok.
