-module(erlmcp_test_installed).
-moduledoc "Programs that a script of the project installs if they are missing.".

-export([path/1, path/2]).

-doc "Returns the path that the script `scripts/NAME.sh` prints when it has installed a program.".
-spec path(Name :: string()) -> file:filename().
path(Name) ->
    path(Name, []).

-doc "Returns the path as `path/1` does, from a script that takes arguments.".
-spec path(Name :: string(), Arguments :: [string()]) -> file:filename().
path(Name, Arguments) ->
    Script = filename:join([erlmcp_test_page:root(), "scripts", Name ++ ".sh"]),
    Port = open_port({spawn_executable, Script},
                     [{args, Arguments}, {line, 1000}, exit_status]),
    receive
        {Port, {data, {eol, Path}}} -> Path;
        {Port, {exit_status, Status}} -> error({not_installed, Name, Status})
    after 200_000 ->
        error({not_installed, Name, timeout})
    end.
