-module(erlmcp_bench_uplot).
-moduledoc """
Fetches uPlot, the library that draws a report's plots: its script, style and licence are written
into the page. `priv/report/uplot.sh` fetches it once, into the user's cache folder.
""".

-export([read/0]).

-export_type([library/0, reason/0]).

-type library() :: #{script := binary(), style := binary(), licence := binary(),
                     version := binary()}.

-doc """
The exit status of the script that fetches the library, `timeout` if it took too long, or the file
that cannot be read.
""".
-type reason() :: {uplot, {exit_status, 1..255} | timeout | {file, file:filename(), file:posix()}}.

-define(FETCH_MS, 120_000).
%% The longest output of the script: the path of a folder.
-define(SAID_BYTES, 4096).

-doc """
Reads the library from the cache. If it is not there, it is fetched first, within two minutes.
""".
-spec read() -> {ok, library()} | {error, reason()}.
read() ->
    maybe
        {ok, Folder} ?= fetched(),
        {ok, Script} ?= file(Folder, "dist/uPlot.iife.min.js"),
        {ok, Style} ?= file(Folder, "dist/uPlot.min.css"),
        {ok, Licence} ?= file(Folder, "LICENSE"),
        {ok, Package} ?= file(Folder, "package.json"),
        #{~"version" := Version} = json:decode(Package),
        {ok, #{script => Script, style => Style, licence => Licence, version => Version}}
    end.

file(Folder, Name) ->
    File = filename:join(Folder, Name),
    case file:read_file(File) of
        {ok, Contents} -> {ok, Contents};
        {error, Posix} -> {error, {uplot, {file, File, Posix}}}
    end.

fetched() ->
    Script = filename:join([code:priv_dir(erlmcp_bench), "report", "uplot.sh"]),
    Port = open_port({spawn_executable, "/bin/sh"},
                     [{args, [Script]}, exit_status, binary, use_stdio, hide]),
    output(Port, <<>>, erlang:monotonic_time(millisecond) + ?FETCH_MS).

output(Port, Output, Deadline) ->
    receive
        {Port, {data, More}} when byte_size(Output) + byte_size(More) =< ?SAID_BYTES ->
            output(Port, <<Output/binary, More/binary>>, Deadline);
        {Port, {data, _}} ->
            output(Port, Output, Deadline);
        {Port, {exit_status, 0}} ->
            {ok, string:trim(Output)};
        {Port, {exit_status, Status}} ->
            {error, {uplot, {exit_status, Status}}}
    after max(0, Deadline - erlang:monotonic_time(millisecond)) ->
        true = port_close(Port),
        {error, {uplot, timeout}}
    end.
