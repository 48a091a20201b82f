-module(erlmcp_cli_folders).
-moduledoc """
The folders in which the command keeps files.

Source: XDG Base Directory Specification.
""".

-export([state/1, control/0]).

-doc """
Returns the path of the folder `Name`, such as `tokens`, for files that outlive the command. The
folder may not exist.
""".
-spec state(Name :: string()) -> file:filename_all().
state(Name) ->
    State = case os:getenv("XDG_STATE_HOME", "") of
        "/" ++ _ = Set -> Set;
        _ -> filename:join([os:getenv("HOME", "/"), ".local", "state"])
    end,
    filename:join([State, "erlmcp", Name]).

-doc """
Returns the path of the folder of control sockets (`m:erlmcp_cli_control`). The folder may not
exist.
""".
-spec control() -> file:filename_all().
control() ->
    case os:getenv("XDG_RUNTIME_DIR", "") of
        "/" ++ _ = Runtime -> filename:join(Runtime, "erlmcp");
        _ -> state("run")
    end.
