-module(erlmcp_browser).
-moduledoc """
The browser of the user at this machine: `open` on macOS, `wslview` in WSL, and `xdg-open` elsewhere
if there is a display.

Internal.
""".

-export([open/1, is_url/1]).

-export_type([reason/0]).

-type reason() :: no_browser | {exit_status, binary()}.

-define(WAIT_MS, 3000).
-define(MAX_URL_BYTES, 16384).

%% The browser's output is dropped, so that it is not mixed with the node's. A browser that runs on
%% neither holds the port, nor fails when the port is gone. The URL is an argument: the shell
%% interprets no part of it.
-define(COMMAND, "\"$0\" \"$1\" >/dev/null 2>&1 </dev/null; echo $? 2>/dev/null").

-doc """
Opens a URL (`is_url/1`). A program that has not failed after three seconds counts as successful,
since a browser need not end.
""".
-spec open(Url :: binary()) -> ok | {error, reason()}.
open(Url) ->
    true = is_url(Url),
    case [Found || Name <- names(os:type()), Found <- [os:find_executable(Name)], is_list(Found)] of
        [Program | _] -> run(Program, Url);
        [] -> {error, no_browser}
    end.

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

%% The shell ends right after its line, so the port may be gone already.
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
characters of URLs. A URL of another scheme would start any program that the system has for it.
""".
-spec is_url(binary()) -> boolean().
is_url(Url) when byte_size(Url) > ?MAX_URL_BYTES -> false;
is_url(<<"https://", Rest/binary>>) -> is_plain(Rest);
is_url(<<"http://", Rest/binary>>) -> is_plain(Rest);
is_url(_) -> false.

is_plain(Text) ->
    re:run(Text, ~B|^[!#-;=?-[\]_a-z~]+$|, [{capture, none}, dollar_endonly]) =:= match.
