-module(erlmcp_cli_code_path).
-moduledoc """
Keeps the current folder out of the node's code path, where OTP puts it. Otherwise a file with the
name of a module, in a folder of somebody else, would be run. The boot scripts of the command
(`m:erlmcp_cli_boot`) load this module first.
""".

%% OTP runs this as soon as there is a code path, before it starts anything that flags ask for.
-on_load(leave_current_folder/0).

-export([file/1]).

leave_current_folder() ->
    _ = code:del_path("."),
    ok.

-doc """
Returns the compiled file that `Name` means. A name with a slash, or with the ending `.beam`, is a
path. Its folder is added at the end of the code path, for the other modules of the server. Any
other name is a module's, which is looked for in the code path (`ERL_LIBS` extends it). The error is
a sentence for the user.
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
