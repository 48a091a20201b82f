-module(erlmcp_browser).
-moduledoc """
Opens the user's browser on this machine: with `open` on macOS, `wslview` in WSL, and `xdg-open` on
other Unix systems with a display.

Internal.
""".

-export([open/1, is_url/1]).

-export_type([reason/0]).

-type reason() :: no_browser | {exit_status, binary()}.

-define(WAIT_MS, 3000).
-define(MAX_URL_BYTES, 16384).

%% The output of the browser is discarded, so that it is not mixed with the node's. A browser that
%% keeps running does not keep the port open, and does not fail when the port is closed. The URL is
%% an argument, of which the shell interprets no part.
-define(COMMAND, "\"$0\" \"$1\" >/dev/null 2>&1 </dev/null; echo $? 2>/dev/null").

-doc """
Opens a URL, for which `is_url/1` must be `true`. The program gets each `$` percent-encoded. A
program that has not failed within three seconds counts as successful, since a browser may keep
running. Returns the exit status of a program that failed, or `no_browser` if there is none to
start.
""".
-spec open(Url :: binary()) -> ok | {error, reason()}.
open(Url) ->
    true = is_url(Url),
    case [Found || Name <- names(os:type()), Found <- [os:find_executable(Name)], is_list(Found)] of
        [Program | _] -> run(Program, without_dollar(Url));
        [] -> {error, no_browser}
    end.

%% Up to wslu 4.1, `wslview` puts the URL between double quotes into code for PowerShell, which runs
%% `$(command)` there. The URL may be a hostile server's.
without_dollar(Url) ->
    binary:replace(Url, ~"$", ~"%24", [global]).

names({unix, darwin}) ->
    ["open"];
names({unix, _}) ->
    case os:getenv("DISPLAY", "") ++ os:getenv("WAYLAND_DISPLAY", "") of
        "" -> ["wslview"];
        _ -> ["wslview", "xdg-open"]
    end;
names(_) ->
    [].

run(Program, Url) ->
    Port = open_port({spawn_executable, "/bin/sh"},
                     [{args, ["-c", ?COMMAND, Program, Url]}, binary, exit_status, {line, 16}]),
    receive
        {Port, {data, {_, ~"0"}}} -> closed(Port, ok);
        {Port, {data, {_, Status}}} -> closed(Port, {error, {exit_status, Status}});
        {Port, {exit_status, Status}} -> {error, {exit_status, integer_to_binary(Status)}}
    after ?WAIT_MS ->
        closed(Port, ok)
    end.

%% The shell exits right after its output, so the port may be closed already.
closed(Port, Result) ->
    try
        true = port_close(Port)
    catch
        error:badarg -> true
    end,
    flush(Port),
    Result.

flush(Port) ->
    receive
        {Port, _} -> flush(Port)
    after 0 -> ok
    end.

-doc """
Returns `true` if a browser may be given `Url`: an `http` or `https` URL of at most 16384 bytes, in
the characters of URLs. For a URL of another scheme, the system might start any program.
""".
-spec is_url(binary()) -> boolean().
is_url(Url) when byte_size(Url) > ?MAX_URL_BYTES -> false;
is_url(<<"https://", Rest/binary>>) -> is_plain(Rest);
is_url(<<"http://", Rest/binary>>) -> is_plain(Rest);
is_url(_) -> false.

is_plain(Text) ->
    re:run(Text, ~B|^[!#-;=?-[\]_a-z~]+$|, [{capture, none}, dollar_endonly]) =:= match.
