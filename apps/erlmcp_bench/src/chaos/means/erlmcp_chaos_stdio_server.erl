-module(erlmcp_chaos_stdio_server).
-moduledoc """
Runs a server of `m:erlmcp_bench_fixture` on the standard streams of an operating system process of
its own.
""".

-export([open/1, send/2, reply/2, close/1]).
-export([serve/0]).

-export_type([server/0]).

-opaque server() :: port().

%% An incoming line is a refusal, or a small answer.
-define(LINE_BYTES, 65_536).

-doc """
Starts the server, which takes messages of at most `MessageBytes` bytes. Only the calling process
may read the server's messages (`reply/2`). The server ends when the calling process ends.
""".
-spec open(MessageBytes :: pos_integer()) -> server().
open(MessageBytes) ->
    [Program | Arguments] = erlmcp_bench_node:words(
        ["-noinput", "+sbwt", "none", "+sbwtdcpu", "none", "+sbwtdio", "none",
         "-s", ?MODULE_STRING, "serve", "-pa" | erlmcp_bench_node:code_path()]
        ++ ["-extra", integer_to_list(MessageBytes)]),
    open_port({spawn_executable, Program},
              [{args, Arguments}, {line, ?LINE_BYTES}, binary, use_stdio, exit_status]).

-doc false.
serve() ->
    [MessageBytes] = init:get_plain_arguments(),
    {ok, _} = application:ensure_all_started(erlmcp),
    %% The server is not linked to init's process, which ends when everything has started.
    _ = spawn(fun() ->
        {ok, _} = erlmcp:start_server(#{
            handler => erlmcp_bench_fixture, listen => [{stdio, #{}}],
            limits => #{message_bytes => list_to_integer(MessageBytes)}}),
        receive stop -> ok end
    end),
    ok.

-doc """
Writes `Bytes` to the server's standard input. Waits while the server leaves too many earlier bytes
unread. The error is `closed` if the server has ended. Any process may call the function.
""".
-spec send(server(), iodata()) -> ok | {error, closed}.
send(Port, Bytes) ->
    try port_command(Port, Bytes) of
        true -> ok
    catch
        error:badarg -> {error, closed}
    end.

-doc """
Reads and decodes the next message of the server, which must come within `Milliseconds`. The error
is `timeout`, or `{exit_status, Status}` if the server has ended.
""".
-spec reply(server(), Milliseconds :: non_neg_integer()) -> {ok, map()} | {error, term()}.
reply(Port, Milliseconds) ->
    receive
        {Port, {data, {eol, Line}}} -> {ok, json:decode(Line)};
        {Port, {exit_status, Status}} -> {error, {exit_status, Status}}
    after Milliseconds ->
        {error, timeout}
    end.

-doc "Closes the server's input, so that the server ends. Does not wait for its end.".
-spec close(server()) -> ok.
close(Port) ->
    try port_close(Port) of
        true -> ok
    catch
        error:badarg -> ok
    end.
