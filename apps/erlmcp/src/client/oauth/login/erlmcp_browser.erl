-module(erlmcp_browser).
-moduledoc """
Opens a URL in the browser of who sits at this machine: with `open` on macOS, `wslview` in WSL, and
`xdg-open` elsewhere if there is a display.

Internal.
""".

-export([open/1, is_url/1]).

-export_type([reason/0]).

-type reason() :: no_browser | {exit_status, binary()}.

-define(WAIT_MS, 3000).
-define(MAX_URL_BYTES, 16384).

%% What the browser says is not mixed with what this node says, and a browser that runs on does not
%% hold the port, nor complain when the port is gone. The URL is an argument, and nothing of it is
%% read as a command.
-define(COMMAND, "\"$0\" \"$1\" >/dev/null 2>&1 </dev/null; echo $? 2>/dev/null").

-doc """
Opens a URL (`is_url/1`). What has not failed after three seconds, which a browser need not end in,
is taken for opened.
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
Whether a text is a URL that a browser may be given: of `http` or `https`, in the characters of a
URL alone, and at most 16384 bytes. A URL of another scheme would start what the system has for it.
""".
-spec is_url(binary()) -> boolean().
is_url(Url) when byte_size(Url) > ?MAX_URL_BYTES -> false;
is_url(<<"https://", Rest/binary>>) -> is_plain(Rest);
is_url(<<"http://", Rest/binary>>) -> is_plain(Rest);
is_url(_) -> false.

is_plain(Text) ->
    re:run(Text, ~B|^[!#-;=?-[\]_a-z~]+$|, [{capture, none}, dollar_endonly]) =:= match.
