-module(erlmcp_test_module).
-moduledoc "Modules that a case writes, compiled into a folder as by a user's build.".

-export([compiled/2, unload/1]).

-doc "Compiles the text of a module, writes its file into `Folder`, and returns that file.".
-spec compiled(Source :: iodata(), Folder :: file:filename()) -> file:filename().
compiled(Source, Folder) ->
    {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Source)),
    Forms = forms(Tokens, [], []),
    {ok, Module, Beam} = compile:forms(Forms, []),
    File = filename:join(Folder, atom_to_list(Module) ++ ".beam"),
    ok = filelib:ensure_path(Folder),
    ok = file:write_file(File, Beam),
    File.

forms([], [], Forms) ->
    lists:reverse(Forms);
forms([{dot, _} = Dot | Tokens], Form, Forms) ->
    {ok, Parsed} = erl_parse:parse_form(lists:reverse([Dot | Form])),
    forms(Tokens, [], [Parsed | Forms]);
forms([Token | Tokens], Form, Forms) ->
    forms(Tokens, [Token | Form], Forms).

-doc "Unloads a module, and ends the processes that run it.".
-spec unload(module()) -> ok.
unload(Module) ->
    _ = code:purge(Module),
    _ = code:delete(Module),
    _ = code:purge(Module),
    ok.
