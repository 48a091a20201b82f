-module(erlmcp_token_store_file).
-moduledoc """
A token store (`m:erlmcp_token_store`) in a folder of a POSIX file system. Set it as the option
`store => {erlmcp_token_store_file, #{folder => Path}}` of `t:erlmcp_oauth:options/0`.

The store creates the folder with mode 0700, and a JSON file with mode 0600 for each key. A value is
written to a temporary file that is then renamed, so a reader sees the old value or the new one.
Several nodes may share the folder.

At most 1000 values of at most 64 KiB are kept. A folder or file is refused if it is a symbolic
link, belongs to another user, or others have any permission for it.
""".

-behaviour(erlmcp_token_store).

-include_lib("kernel/include/file.hrl").

-export([open/1, get/2, put/3, delete/2]).

-record(store, {folder :: file:filename_all(), owner :: non_neg_integer()}).

-define(MAX_VALUES, 1000).
-define(MAX_BYTES, 65536).
%% The bytes bound the rest, so that each stored value can be read.
-define(LIMITS, #{message_bytes => ?MAX_BYTES, depth => ?MAX_BYTES, members => ?MAX_BYTES}).
%% Seconds after which the temporary file of a killed writer is deleted.
-define(ABANDONED_S, 3600).
%% Tries of an operation, at most, while other processes create the folder.
-define(TRIES, 10).

-doc false.
open(#{folder := Path} = Options)
        when map_size(Options) =:= 1, is_binary(Path) orelse is_list(Path) ->
    Folder = filename:absname(Path),
    tried(fun() -> opened(Folder) end, ?TRIES);
open(Options) ->
    {error, {bad_option, hd([Name || Name <- maps:keys(Options), Name =/= folder] ++ [folder])}}.

opened(Folder) ->
    maybe
        ok ?= filed(filelib:ensure_dir(Folder)),
        ok ?= make(Folder),
        {ok, Info} ?= safe(folder, Folder),
        {ok, Owner} ?= owner(Folder),
        ok ?= owned(folder, Info, Owner),
        ok ?= sweep(Folder),
        {ok, #store{folder = Folder, owner = Owner}}
    end.

%% Another process may create the folder at the same time, and its rename replaces an empty one. A
%% file that is created between the two steps then finds no folder.
tried(Fun, Tries) ->
    case Fun() of
        {error, {file, enoent}} when Tries > 1 -> tried(Fun, Tries - 1);
        Outcome -> Outcome
    end.

%% The folder gets its mode under a temporary name, and is renamed after that. A folder that another
%% process has created meanwhile stays if it has files.
make(Folder) ->
    case file:read_link_info(Folder) of
        {error, enoent} -> make_aside(Folder, aside(filename:dirname(Folder)));
        _ -> ok
    end.

make_aside(Folder, Aside) ->
    maybe
        ok ?= filed(file:make_dir(Aside)),
        ok ?= filed(file:change_mode(Aside, 8#700)),
        ok ?= file:rename(Aside, Folder)
    else
        {error, {file, Why}} ->
            {error, {file, Why}};
        {error, Why} ->
            ok = filed(file:del_dir(Aside)),
            case Why of
                _ when Why =:= eexist; Why =:= enotempty -> ok;
                _ -> {error, {file, Why}}
            end
    end.

%% Erlang cannot say which user it runs as. The owner of a new file is that user.
owner(Folder) ->
    Path = aside(Folder),
    maybe
        ok ?= write_aside(Path, ~""),
        {ok, #file_info{uid = Owner}} ?= filed(file:read_link_info(Path)),
        ok ?= filed(file:delete(Path)),
        {ok, Owner}
    end.

sweep(Folder) ->
    Before = erlang:system_time(second) - ?ABANDONED_S,
    maybe
        {ok, Names} ?= filed(file:list_dir(Folder)),
        lists:foreach(fun(Path) ->
                          case file:read_link_info(Path, [{time, posix}]) of
                              {ok, #file_info{mtime = At}} when At < Before -> file:delete(Path);
                              _ -> ok
                          end
                      end, [filename:join(Folder, Name) || "aside-" ++ _ = Name <- Names])
    end.

-doc false.
get(Key, Store) ->
    Path = path(Key, Store),
    maybe
        ok ?= still_safe(Store),
        {ok, Info} ?= safe(file, Path),
        ok ?= owned(file, Info, Store#store.owner),
        {ok, Bytes} ?= read(Path),
        {ok, #{} = Value} ?= erlmcp_json:decode(Bytes, ?LIMITS),
        {ok, Value}
    else
        {error, {file, enoent}} -> none;
        {error, {file, Why}} -> {error, {file, Why}};
        {error, {unsafe, What, Why}} -> {error, {unsafe, What, Why}};
        _ -> {error, malformed}
    end.

read(Path) ->
    maybe
        {ok, File} ?= filed(file:open(Path, [read, raw, binary])),
        Read = file:read(File, ?MAX_BYTES + 1),
        ok ?= filed(file:close(File)),
        case Read of
            {ok, Bytes} -> {ok, Bytes};
            eof -> {ok, ~""};
            {error, Why} -> {error, {file, Why}}
        end
    end.

-doc false.
put(Key, Value, Store) ->
    maybe
        {ok, Bytes} ?= encode(Value),
        tried(fun() -> kept(path(Key, Store), Bytes, Store) end, ?TRIES)
    end.

kept(Path, Bytes, #store{folder = Folder} = Store) ->
    Aside = aside(Folder),
    maybe
        %% If the folder was removed, it is made again.
        ok ?= make(Folder),
        ok ?= still_safe(Store),
        ok ?= room(Path, Folder),
        ok ?= write_aside(Aside, Bytes),
        rename(Aside, Path)
    end.

encode(Value) ->
    case iolist_to_binary(json:encode(Value)) of
        Bytes when byte_size(Bytes) > ?MAX_BYTES -> {error, {too_large, ?MAX_BYTES}};
        Bytes -> {ok, Bytes}
    end.

room(Path, Folder) ->
    case {file:read_link_info(Path), file:list_dir(Folder)} of
        {{error, enoent}, {ok, Names}} when length(Names) >= ?MAX_VALUES ->
            {error, {full, ?MAX_VALUES}};
        {_, {error, Why}} ->
            {error, {file, Why}};
        _ ->
            ok
    end.

%% The file gets its mode while it is still empty.
write_aside(Path, Bytes) ->
    maybe
        {ok, File} ?= filed(file:open(Path, [write, exclusive, raw, binary])),
        Written = maybe
            ok ?= file:change_mode(Path, 8#600),
            ok ?= file:write(File, Bytes),
            file:sync(File)
        end,
        Closed = file:close(File),
        case {Written, Closed} of
            {ok, ok} -> ok;
            {ok, {error, Why}} -> discard(Path, Why);
            {{error, Why}, _} -> discard(Path, Why)
        end
    end.

rename(Aside, Path) ->
    case file:rename(Aside, Path) of
        ok -> ok;
        {error, Why} -> discard(Aside, Why)
    end.

discard(Aside, Why) ->
    _ = file:delete(Aside),
    {error, {file, Why}}.

-doc false.
delete(Key, Store) ->
    maybe
        ok ?= still_safe(Store),
        ok ?= filed(file:delete(path(Key, Store)))
    else
        {error, {file, enoent}} -> ok;
        {error, Why} -> {error, Why}
    end.

still_safe(#store{folder = Folder, owner = Owner}) ->
    maybe
        {ok, Info} ?= safe(folder, Folder),
        owned(folder, Info, Owner)
    end.

safe(What, Path) ->
    maybe
        {ok, #file_info{type = Type, mode = Mode} = Info} ?= filed(file:read_link_info(Path)),
        case {What, Type} of
            {_, symlink} -> {error, {unsafe, What, symlink}};
            {folder, directory} when Mode band 8#077 =:= 0 -> {ok, Info};
            {file, regular} when Mode band 8#077 =:= 0 -> {ok, Info};
            {folder, directory} -> {error, {unsafe, What, {mode, Mode band 8#7777}}};
            {file, regular} -> {error, {unsafe, What, {mode, Mode band 8#7777}}};
            _ -> {error, {unsafe, What, type}}
        end
    end.

owned(_, #file_info{uid = Owner}, Owner) -> ok;
owned(What, _, _) -> {error, {unsafe, What, owner}}.

filed({error, Why}) -> {error, {file, Why}};
filed(Done) -> Done.

aside(Folder) ->
    filename:join(Folder, <<"aside-", (binary:encode_hex(rand:bytes(16), lowercase))/binary>>).

path(Key, #store{folder = Folder}) ->
    Name = binary:encode_hex(crypto:hash(sha256, text(Key)), lowercase),
    filename:join(Folder, <<Name/binary, ".json">>).

%% Encodes a key as bytes that are the same in every release of OTP. The external term format may
%% change between releases.
text(Key) when is_binary(Key) -> sized($b, Key);
text(Key) when is_atom(Key) -> sized($a, atom_to_binary(Key));
text(Key) when is_integer(Key) -> sized($i, integer_to_binary(Key));
text(Key) when is_tuple(Key) -> several($t, tuple_to_list(Key));
text(Key) when is_list(Key) -> several($l, Key).

sized(Kind, Bytes) ->
    [Kind, integer_to_binary(byte_size(Bytes)), $:, Bytes].

several(Kind, Keys) ->
    [Kind, integer_to_binary(length(Keys)), $:, [text(Key) || Key <- Keys]].
