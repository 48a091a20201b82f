-module(erlmcp_cli_code_path).
-moduledoc """
Takes the current folder out of the node's code path. OTP puts it there in each node that loads
modules when they are called; a file of the right name in the folder of a stranger would be run.

The boot scripts of the command (`m:erlmcp_cli_boot`) load this module first. OTP runs its
`-on_load` as soon as there is a code path, before anything that depends on flags is started.
""".

-on_load(leave_current_folder/0).

-export([file/1]).

leave_current_folder() ->
    _ = code:del_path("."),
    ok.

-doc """
Returns the file of the module that `Name` names. A name with a slash in it, or that ends in
`.beam`, is that of a file. Its folder is then the last one of the code path, since a server has
other modules in it. Any other name is a module's, and looked for in the code path, which `ERL_LIBS`
extends.
""".
-spec file(Name :: string()) -> {ok, file:filename()} | {error, unicode:chardata()}.
file(Name) ->
    case lists:member($/, Name) orelse filename:extension(Name) of
        Named when Named =:= true; Named =:= ".beam" -> named(filename:absname(Name));
        ".erl" -> {error, [Name, ": a compiled module was expected; erlc makes one"]};
        _ -> found(Name, re:run(Name, "^[A-Za-z][A-Za-z0-9_.@]*$",
                                    [{capture, none}, dollar_endonly]))
    end.

named(File) ->
    case filelib:is_regular(File) of
        true ->
            true = code:add_pathz(filename:dirname(File)),
            {ok, File};
        false ->
            {error, [File, ": there is no such file"]}
    end.

found(Name, match) ->
    case code:where_is_file(Name ++ ".beam") of
        File when is_list(File) -> {ok, File};
        non_existing -> {error, missing(Name)}
    end;
found(Name, nomatch) ->
    {error, missing(Name)}.

missing(Name) ->
    [Name, ": no compiled module of this name is in the code path, which ERL_LIBS extends"
     | case filelib:is_regular(Name ++ ".beam") of
           true -> ["; for the file in this folder: ./", Name, ".beam"];
           false -> []
       end].
