-module(erlmcp_chaos_tmpfs).
-moduledoc """
A small file system in memory that can be filled, in a folder of its own. Needs Linux and root.
`erlmcp_chaos_program:reason/1` words the errors.
""".

-export([start/1, stop/1, folder/1, fill/1, free/1, attempt/2, sweep/0]).

-export_type([tmpfs/0]).

-opaque tmpfs() :: #{keeper := erlmcp_chaos_keeper:keeper(), folder := string()}.

-define(PREFIX, "erlmcp-chaos").

-define(MAKE, "
    mkdir -m 700 \"$1\" && mount -t tmpfs -o \"size=$2,mode=0700\" \"$3\" \"$1\"").
%% A lazy unmount works even while a file is open.
-define(UNMAKE, "
    umount -l \"$1\" 2>/dev/null
    rmdir \"$1\" 2>/dev/null").

-doc """
Calls `sweep/0`, and then mounts a file system of `Bytes` bytes. The file system is removed when the
calling process ends, or by `stop/1`.
""".
-spec start(Bytes :: pos_integer()) -> {ok, tmpfs()} | {error, term()}.
start(Bytes) ->
    ok = sweep(),
    Name = erlmcp_chaos_keeper:name(?PREFIX),
    Folder = filename:join(os:getenv("TMPDIR", "/tmp"), Name),
    maybe
        {ok, Keeper} ?= erlmcp_chaos_keeper:keep(?MAKE, ?UNMAKE,
                                                 [Folder, integer_to_list(Bytes), Name]),
        {ok, #{keeper => Keeper, folder => Folder}}
    end.

-doc "Unmounts the file system and removes its folder. Only the process that mounted it may do so.".
-spec stop(tmpfs()) -> ok | {error, term()}.
stop(#{keeper := Keeper}) ->
    erlmcp_chaos_keeper:release(Keeper).

-doc "Returns the folder of the file system.".
-spec folder(tmpfs()) -> string().
folder(#{folder := Folder}) ->
    Folder.

-doc "Writes until the file system is full, and returns `ok`. `enospc` is not an error here.".
-spec fill(tmpfs()) -> ok | {error, file:posix()}.
fill(Tmpfs) ->
    maybe
        {ok, File} ?= file:open(ballast(Tmpfs), [append, raw, binary]),
        Filled = fill(File, 65_536),
        ok = file:close(File),
        Filled
    end.

fill(_, 0) ->
    ok;
fill(File, Bytes) ->
    case file:write(File, binary:copy(<<0>>, Bytes)) of
        ok -> fill(File, Bytes);
        {error, enospc} -> fill(File, Bytes div 2);
        {error, _} = Error -> Error
    end.

-doc """
Deletes the file of `fill/1`, so that there is room again. The error is `enoent` if there is no such
file.
""".
-spec free(tmpfs()) -> ok | {error, file:posix()}.
free(Tmpfs) ->
    file:delete(ballast(Tmpfs)).

-doc """
Writes a file of `Bytes` bytes, as far as there is room, and deletes it. Without enough room the
error is `enospc`.
""".
-spec attempt(tmpfs(), Bytes :: pos_integer()) -> ok | {error, file:posix()}.
attempt(#{folder := Folder}, Bytes) ->
    File = filename:join(Folder, "attempt"),
    Written = file:write_file(File, binary:copy(<<0>>, Bytes), [raw]),
    _ = file:delete(File),
    Written.

ballast(#{folder := Folder}) ->
    filename:join(Folder, "ballast").

-doc "Removes the file systems that killed nodes had mounted with `start/1` and left behind.".
-spec sweep() -> ok.
sweep() ->
    case file:read_file("/proc/self/mounts") of
        {ok, Mounts} ->
            Mounted = [string:lexemes(Line, " ")
                       || Line <- string:lexemes(binary_to_list(Mounts), "\n")],
            %% The device has the folder's name too, since a path may have escapes there.
            lists:foreach(fun remove/1, [Folder || [Name, Folder, "tmpfs" | _] <- Mounted,
                                        erlmcp_chaos_keeper:owner_lives(?PREFIX, Name) =:= false]);
        {error, _} ->
            ok
    end.

remove(Folder) ->
    _ = erlmcp_chaos_program:run("umount", ["-l", Folder]),
    _ = file:del_dir(Folder),
    ok.
