-module(erlmcp_bench_node).
-moduledoc """
Makes the command that starts another node on this machine, with this node's Erlang. The command
does not set the code path (`code_path/0`). The other node runs in Erlang's own folder, since a node
also looks for modules in its current folder.
""".

-export([words/1, code_path/0]).

%% POSIX: the first argument after the script is its $0.
-define(SCRIPT, "cd \"$0\" && exec \"$@\"").

-doc "Returns the program and its arguments that start a node with `Flags`.".
-spec words(Flags :: [string()]) -> [string(), ...].
words(Flags) ->
    Root = code:root_dir(),
    ["/bin/sh", "-c", ?SCRIPT, Root, filename:join([Root, "bin", "erl"]), "-boot", "no_dot_erlang"
     | Flags].

-doc "Returns the folders of this node's code path, except `.`, as absolute paths.".
-spec code_path() -> [file:filename()].
code_path() ->
    [filename:absname(Folder) || Folder <- code:get_path(), Folder =/= "."].
