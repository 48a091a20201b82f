-module(erlmcp_skill_folder).
-moduledoc """
Reads the files of skills from their folders, once, when a server starts. Files and folders whose
names begin with a dot are left out. A link, a device, or a name that is not UTF-8 is refused.

Internal.
""".

-export([load/2]).

-include_lib("kernel/include/file.hrl").

%% Folders of one skill, and how deep they lie.
-define(MAX_FOLDERS, 512).
-define(MAX_DEPTH, 32).

-doc """
Returns the skills of `Sources`, values of the option `skills`. A skill with a `path` gets the files
of the folder at that path. All skills together may have at most `Max` bytes of files. The folder of
one skill may have at most `erlmcp_skill:max_files/0` files with `erlmcp_skill:max_bytes/0` bytes in
all, and 511 folders inside, in 32 levels. `m:erlmcp_skill` describes the error.
""".
-spec load(Sources :: [term()], Max :: pos_integer()) ->
    {ok, [erlmcp:skill()]} | {error, erlmcp_skill:error()}.
load(Sources, Max) ->
    load(Sources, Max, []).

load([], _, Loaded) ->
    {ok, lists:reverse(Loaded)};
load([Source | Sources], Max, Loaded) ->
    maybe
        {ok, Read} ?= read(Source),
        Rest = Max - bytes(Read),
        true ?= Rest >= 0 orelse {error, {bad_skill, erlmcp_skill:label(Read), ~"files",
                                          ~"all skills within the limit skills_bytes"}},
        load(Sources, Rest, [Read | Loaded])
    end.

bytes(#{files := #{} = Files}) ->
    lists:sum([byte_size(Bytes) || _ := Bytes <- Files, is_binary(Bytes)]);
bytes(_) ->
    0.

read(#{path := Path} = Source) ->
    maybe
        {ok, Folder} ?= folder(Path),
        read(Folder, Source)
    else
        error -> {error, {bad_skill, ~"a skill", ~"path", ~"a file name in UTF-8"}}
    end;
read(Source) when is_map(Source) ->
    {ok, maps:without([folder, folder_name], Source)};
read(_) ->
    {error, {bad_skill, ~"a skill", ~"skills", ~"a map"}}.

folder(Path) ->
    try unicode:characters_to_binary(filename:absname(Path)) of
        Folder when is_binary(Folder) -> {ok, Folder};
        _ -> error
    catch
        error:_ -> error
    end.

read(Folder, Source) ->
    try
        [] =:= maps:keys(Source) -- [path, prefix]
            orelse throw({~"path", ~"path and prefix alone"}),
        %% The path to the folder may contain links, and its contents may not.
        case file:read_file_info(Folder, [raw]) of
            {ok, #file_info{type = directory}} -> ok;
            _ -> throw({~"path", ~"a folder"})
        end,
        {Files, _, _} = walk(Folder, ~"", 0, {#{}, 0, 0}),
        {ok, maps:remove(path, Source#{files => Files, folder => Folder,
                                       folder_name => filename:basename(Folder)})}
    catch
        throw:{Place, Expected} -> {error, {bad_skill, Folder, Place, Expected}}
    end.

walk(_, Inner, Depth, {_, _, Folders}) when Depth > ?MAX_DEPTH; Folders >= ?MAX_FOLDERS ->
    throw({place(Inner), ~"at most 512 folders, 32 of them within each other"});
walk(Folder, Inner, Depth, {Files, Bytes, Folders}) ->
    case file:list_dir_all(Folder) of
        {ok, Names} ->
            lists:foldl(
                fun(Name, Found) -> entry(name(Name, Inner), Folder, Inner, Depth, Found) end,
                {Files, Bytes, Folders + 1}, lists:sort(Names));
        {error, _} ->
            throw({place(Inner), ~"a folder that can be read"})
    end.

place(~"") -> ~"path";
place(Inner) -> Inner.

name(Name, Inner) ->
    case unicode:characters_to_binary(listed(Name, file:native_name_encoding())) of
        Text when is_binary(Text), is_list(Name) -> Text;
        _ -> throw({place(Inner), ~"names in UTF-8"})
    end.

%% In a locale without UTF-8 the characters of a name are its bytes.
listed(Name, latin1) when is_list(Name) -> list_to_binary(Name);
listed(Name, _) -> Name.

entry(<<".", _/binary>>, _, _, _, Found) ->
    Found;
entry(Name, Folder, Inner, Depth, Found) ->
    Path = filename:join(Folder, Name),
    Within = case Inner of
        ~"" -> Name;
        _ -> <<Inner/binary, $/, Name/binary>>
    end,
    case file:read_link_info(Path, [raw]) of
        {ok, #file_info{type = regular, size = Size}} -> file(Path, Size, Within, Found);
        {ok, #file_info{type = directory}} -> walk(Path, Within, Depth + 1, Found);
        {ok, #file_info{type = symlink}} -> throw({Within, ~"a file of its own, not a link"});
        _ -> throw({Within, ~"a regular file or a folder"})
    end.

file(Path, Size, Within, {Files, Bytes, Folders}) ->
    map_size(Files) < erlmcp_skill:max_files() orelse throw({~"files", ~"at most 512 files"}),
    Size =< erlmcp_skill:max_bytes() - Bytes orelse throw({~"files", ~"at most 16777216 bytes"}),
    case read_at_most(Path, Size + 1) of
        {ok, Read} when byte_size(Read) =:= Size ->
            {Files#{Within => Read}, Bytes + Size, Folders};
        {ok, _} ->
            throw({Within, ~"a file that does not change while it is read"});
        error ->
            throw({Within, ~"a file that can be read"})
    end.

read_at_most(Path, Count) ->
    case file:open(Path, [read, raw, binary]) of
        {ok, File} ->
            try file:read(File, Count) of
                {ok, Bytes} -> {ok, Bytes};
                eof -> {ok, ~""};
                {error, _} -> error
            after
                file:close(File)
            end;
        {error, _} ->
            error
    end.
