-module(erlmcp_skill).
-moduledoc """
Checks the files of a skill, and encodes all answers about it. The files of all skills are in
folders, whose children `resources/directory/read` returns in the order of their URIs. Pure;
`erlmcp_skill_folder` reads the files of a folder on disk.

The error of an invalid skill is `{bad_skill, Skill, Where, Expected}`. `Where` is a file, a line of
the frontmatter (`SKILL.md:3`), a field of the frontmatter, or a key of the skill's source, such as
`prefix`. `Where` is `skills` if the source is no skill at all. `Expected` is what was expected
there.

Source: the Skills extension, <https://github.com/modelcontextprotocol/ext-skills>, and
<https://agentskills.io/specification>.

Internal.
""".

-export([compile/1, label/1, max_files/0, max_bytes/0, digest/1]).
-export([folders/1, listings/3, page/4]).

-export_type([definition/0, file/0, error/0, folders/0, listings/0]).

-doc """
A file of a skill: a resource with fixed contents, which are encoded. Only `SKILL.md` is listed.
""".
-type file() :: #{
    key := binary(), wire := #{binary() => term()}, contents := binary(), digest := binary(),
    listed := boolean()
}.
-type definition() :: #{
    key := binary(), wire := #{binary() => term()}, encoded := binary(), files := [file()]
}.
-doc "Folders by their URIs, each with the encoded resources in it.".
-type folders() :: #{Uri :: binary() => [{Position :: non_neg_integer(), Encoded :: binary()}]}.
-type listings() :: #{Uri :: binary() => erlmcp_listing:listing()}.
-type error() ::
    {bad_skill, Skill :: binary(), Where :: binary(), Expected :: binary()}.

%% Every host loads a skill of this size: "Servers SHOULD NOT serve a skill that exceeds either
%% limit".
-define(MAX_FILES, 512).
-define(MAX_BYTES, 16_777_216).
-define(MAX_PATH_BYTES, 1024).

-define(MAIN, ~"SKILL.md").

%% The media types of files, by the endings of their names.
-define(MEDIA_TYPES, #{
    ~"md" => ~"text/markdown", ~"markdown" => ~"text/markdown", ~"txt" => ~"text/plain",
    ~"csv" => ~"text/csv", ~"tsv" => ~"text/tab-separated-values", ~"html" => ~"text/html",
    ~"htm" => ~"text/html", ~"css" => ~"text/css", ~"js" => ~"text/javascript",
    ~"mjs" => ~"text/javascript", ~"py" => ~"text/x-python", ~"sh" => ~"application/x-sh",
    ~"json" => ~"application/json", ~"yaml" => ~"application/yaml",
    ~"yml" => ~"application/yaml", ~"toml" => ~"application/toml", ~"xml" => ~"application/xml",
    ~"pdf" => ~"application/pdf", ~"zip" => ~"application/zip", ~"gz" => ~"application/gzip",
    ~"wasm" => ~"application/wasm", ~"svg" => ~"image/svg+xml", ~"png" => ~"image/png",
    ~"jpg" => ~"image/jpeg", ~"jpeg" => ~"image/jpeg", ~"gif" => ~"image/gif",
    ~"webp" => ~"image/webp", ~"ico" => ~"image/vnd.microsoft.icon", ~"mp3" => ~"audio/mpeg",
    ~"wav" => ~"audio/wav", ~"mp4" => ~"video/mp4", ~"ttf" => ~"font/ttf",
    ~"woff2" => ~"font/woff2",
    ~"docx" => ~"application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    ~"xlsx" => ~"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    ~"pptx" => ~"application/vnd.openxmlformats-officedocument.presentationml.presentation"
}).

-doc "Returns 512, the most files that one skill may have, including its `SKILL.md`.".
-spec max_files() -> pos_integer().
max_files() -> ?MAX_FILES.

-doc "Returns 16,777,216, the most bytes that the files of one skill may have together.".
-spec max_bytes() -> pos_integer().
max_bytes() -> ?MAX_BYTES.

-doc """
Compiles a skill for the catalog. The error has the first wrong place in the skill.
""".
-spec compile(erlmcp:skill()) -> {ok, definition()} | {error, error()}.
compile(Source) ->
    Label = label(Source),
    try
        Files = files(Source),
        ok = check_files(Files),
        Frontmatter = frontmatter(Files),
        ok = check_fields(Frontmatter),
        ok = check_folder(Source, Frontmatter),
        {ok, definition(<<(prefix(Source))/binary, (maps:get(~"name", Frontmatter))/binary>>,
                        Frontmatter, Files)}
    catch
        throw:{Where, Expected} -> {error, {bad_skill, Label, Where, Expected}}
    end.

-doc """
Returns the text by which errors name a skill: its folder, or else its name, or else `a skill`.
""".
-spec label(term()) -> binary().
label(#{folder := Folder}) -> Folder;
label(#{name := Name}) when is_binary(Name) -> Name;
label(#{files := #{?MAIN := Main}}) when is_binary(Main) ->
    case erlmcp_frontmatter:parse(Main) of
        {ok, #{~"name" := Name}} when is_binary(Name) -> Name;
        _ -> ~"a skill"
    end;
label(_) -> ~"a skill".

%% Returns the files of a skill's source: the given ones, or also a SKILL.md that is made of its
%% fields.

files(#{files := Files} = Source) when map_size(Source) =:= 1 -> Files;
files(#{files := Files, folder := _}) -> Files;
files(#{files := Files, prefix := _} = Source) when map_size(Source) =:= 2 -> Files;
files(#{name := _} = Source) ->
    Fields = [{name, ~"name", text}, {description, ~"description", text},
              {license, ~"license", text}, {compatibility, ~"compatibility", text},
              {metadata, ~"metadata", texts_by_key}, {allowed_tools, ~"allowed-tools", texts}],
    Other = maps:keys(Source) -- [body, files, prefix | [Field || {Field, _, _} <- Fields]],
    Other =:= [] orelse throw({text(hd(Other)), ~"no such field"}),
    Given = [{Name, typed(Name, Type, maps:get(Field, Source))}
             || {Field, Name, Type} <- Fields, is_map_key(Field, Source)],
    Body = typed(~"body", text, maps:get(body, Source, ~"")),
    More = maps:get(files, Source, #{}),
    is_map(More) andalso not is_map_key(?MAIN, More)
        orelse throw({~"files", ~"a map of the files next to SKILL.md"}),
    Head = erlmcp_frontmatter:compose(Given),
    More#{?MAIN => <<Head/binary, $\n, Body/binary>>};
files(#{files := _}) ->
    throw({~"files", ~"files alone, or with name, description and body for a SKILL.md"});
files(_) ->
    throw({~"skills", ~"a map with path, with files, or with name and description"}).

text(Term) -> unicode:characters_to_binary(io_lib:format("~tp", [Term])).

typed(Name, Type, Value) ->
    case is_a(Type, Value) of
        true -> Value;
        false -> throw({Name, expected(Type)})
    end.

is_a(text, Value) -> erlmcp_user_term:is_utf8(Value);
is_a(texts, [Value | Values]) -> is_a(text, Value) andalso is_a(texts, Values);
is_a(texts, Value) -> Value =:= [];
is_a(texts_by_key, Value) when is_map(Value) ->
    lists:all(fun({Key, Text}) -> is_a(text, Key) andalso is_a(text, Text) end,
              maps:to_list(Value));
is_a(texts_by_key, _) -> false.

expected(text) -> ~"a text in UTF-8";
expected(texts) -> ~"a list of texts";
expected(texts_by_key) -> ~"a mapping of keys to texts".

check_files(Files) when is_map(Files) ->
    lists:foreach(fun check_file/1, maps:to_list(Files)),
    map_size(Files) =< ?MAX_FILES
        orelse throw({~"files", ~"at most 512 files"}),
    lists:sum([byte_size(Bytes) || _ := Bytes <- Files]) =< ?MAX_BYTES
        orelse throw({~"files", ~"at most 16777216 bytes"}),
    ok;
check_files(_) ->
    throw({~"files", ~"a map of paths to bytes"}).

check_file({Path, Bytes}) ->
    is_a(text, Path) andalso byte_size(Path) =< ?MAX_PATH_BYTES
        orelse throw({text(Path), ~"a path in UTF-8 of at most 1024 bytes"}),
    Segments = binary:split(Path, ~"/", [global]),
    lists:all(fun is_segment/1, Segments)
        orelse throw({Path, <<"a path in the skill, of names without \\, control characters or "
                              "a dot at the start">>}),
    is_binary(Bytes) orelse throw({Path, ~"bytes"}).

is_segment(<<".", _/binary>>) -> false;
is_segment(Segment) -> re:run(Segment, "^[^\\x00-\\x1f\\x7f\\\\]+$", [{capture, none}]) =:= match.

frontmatter(#{?MAIN := Bytes}) ->
    is_a(text, Bytes) orelse throw({?MAIN, ~"text in UTF-8"}),
    case erlmcp_frontmatter:parse(Bytes) of
        {ok, Frontmatter} ->
            Frontmatter;
        {error, {Line, Expected}} ->
            throw({<<?MAIN/binary, ":", (integer_to_binary(Line))/binary>>, Expected})
    end;
frontmatter(_) ->
    throw({?MAIN, ~"a file of this name"}).

%% Checks the fields of the frontmatter that the Agent Skills specification defines. Other fields
%% pass.
check_fields(Frontmatter) ->
    Name = required(~"name", Frontmatter),
    re:run(Name, "^(?!.*--)[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$",
           [{capture, none}, dollar_endonly]) =:= match
        orelse throw({~"name", ~"1 to 64 of a-z, 0-9 and -, none of them - at an end or twice"}),
    is_short(required(~"description", Frontmatter), 1024)
        orelse throw({~"description", ~"1 to 1024 characters"}),
    lists:foreach(fun({Key, Value}) -> check_field(Key, Value) end, maps:to_list(Frontmatter)).

required(Field, Frontmatter) ->
    typed(Field, text, maps:get(Field, Frontmatter, missing)).

is_short(Text, Max) ->
    string:trim(Text) =/= ~"" andalso length(unicode:characters_to_list(Text)) =< Max.

check_field(~"license", Value) ->
    typed(~"license", text, Value);
check_field(~"compatibility", Value) ->
    is_short(typed(~"compatibility", text, Value), 500)
        orelse throw({~"compatibility", ~"1 to 500 characters"});
check_field(~"metadata", Value) ->
    Reserved = [Key || Key := _ <- typed(~"metadata", texts_by_key, Value),
                       string:prefix(Key, "io.modelcontextprotocol/") =/= nomatch],
    Reserved =:= []
        orelse throw({~"metadata", ~"no keys under io.modelcontextprotocol/, which are reserved"});
check_field(~"allowed-tools", Value) when not is_binary(Value) ->
    typed(~"allowed-tools", texts, Value);
check_field(_, _) ->
    ok.

%% "Must match the parent directory name".
check_folder(#{folder_name := Name}, #{~"name" := Name}) -> ok;
check_folder(#{folder_name := _}, _) -> throw({~"name", ~"the name of the skill's folder"});
check_folder(_, _) -> ok.

prefix(#{prefix := Prefix}) ->
    is_binary(Prefix) andalso
        lists:all(fun(Segment) ->
            re:run(Segment, "^[a-z0-9][a-z0-9._~-]*$", [{capture, none}, dollar_endonly]) =:= match
        end, binary:split(Prefix, ~"/", [global]))
        orelse throw({~"prefix", ~"names of a-z, 0-9, . _ ~ and -, with / between them"}),
    <<Prefix/binary, $/>>;
prefix(_) ->
    ~"".

%% From here on: the skill as clients see it.

definition(SkillPath, Frontmatter, Files) ->
    Root = <<"skill://", SkillPath/binary, $/>>,
    Compiled = [file(Root, Path, Bytes, Frontmatter)
                || Path := Bytes <- maps:iterator(Files, ordered)],
    Wire = #{~"uri" => <<Root/binary, ?MAIN/binary>>,
             ~"frontmatter" => Frontmatter,
             ~"resources" => [#{~"uri" => Uri, ~"digest" => Digest, ~"size" => Size}
                              || #{key := Uri, digest := Digest, wire := #{~"size" := Size}}
                                     <- Compiled]},
    #{key => <<Root/binary, ?MAIN/binary>>, wire => Wire,
      encoded => iolist_to_binary(json:encode(Wire)), files => Compiled}.

file(Root, Path, Bytes, Frontmatter) ->
    Segments = binary:split(Path, ~"/", [global]),
    Uri = iolist_to_binary([Root, lists:join($/, [quoted(Segment) || Segment <- Segments])]),
    Content = case is_a(text, Bytes) of
        true -> text;
        false -> bytes
    end,
    Type = media_type(Path, Content),
    Item = case Content of
        text -> erlmcp_content:text_contents(Uri, Type, Bytes);
        bytes -> erlmcp_content:blob_contents(Uri, Type, Bytes)
    end,
    Resource = #{~"uri" => Uri, ~"mimeType" => Type, ~"size" => byte_size(Bytes)},
    #{key => Uri, digest => digest(Bytes), listed => Path =:= ?MAIN,
      wire => maps:merge(Resource, names(Path, lists:last(Segments), Frontmatter)),
      contents => iolist_to_binary(json:encode([Item]))}.

%% Returns the media type by the ending of the name; if the ending is unknown, by whether the
%% content is UTF-8.
media_type(Name, Content) ->
    case {ending(Name), Content} of
        {Ending, _} when is_map_key(Ending, ?MEDIA_TYPES) -> maps:get(Ending, ?MEDIA_TYPES);
        {_, text} -> ~"text/plain";
        {_, bytes} -> ~"application/octet-stream"
    end.

ending(Name) ->
    case binary:split(Name, ~".", [global]) of
        [_] -> none;
        Parts -> string:lowercase(lists:last(Parts))
    end.

names(?MAIN, _, Frontmatter) -> maps:with([~"name", ~"description"], Frontmatter);
names(_, Name, _) -> #{~"name" => Name}.

%% Percent-encodes a path segment, except the characters that RFC 3986 allows there.
quoted(Segment) ->
    uri_string:quote(Segment, "!$&'()*+,;=:@").

-doc """
Returns the SHA-256 digest of a file, as skill entries have it: `sha256:` and 64 hexadecimal digits.
""".
-spec digest(binary()) -> binary().
digest(Bytes) ->
    Digest = binary:encode_hex(crypto:hash(sha256, Bytes), lowercase),
    <<"sha256:", Digest/binary>>.

-doc """
Returns the folders that contain the files. The error has a URI that is both a file and a folder.
""".
-spec folders([file()]) -> {ok, folders()} | {error, {duplicate, resource, binary()}}.
folders(Files) ->
    Resources = #{Uri => Wire || #{key := Uri, wire := Wire} <- Files},
    Folders = maps:fold(fun(Uri, Wire, Known) -> below(parent(Uri), Uri, Wire, Known) end,
                        #{}, Resources),
    case [Uri || Uri := _ <- Folders, is_map_key(Uri, Resources)] of
        [] -> {ok, #{Uri => children(Children) || Uri := Children <- Folders}};
        [Uri | _] -> {error, {duplicate, resource, Uri}}
    end.

below(none, _, _, Known) ->
    Known;
below(Folder, Uri, Wire, Known) ->
    case Known of
        #{Folder := Children} ->
            Known#{Folder := Children#{Uri => Wire}};
        #{} ->
            Resource = #{~"uri" => Folder, ~"name" => name(Folder),
                         ~"mimeType" => ~"inode/directory"},
            below(parent(Folder), Folder, Resource, Known#{Folder => #{Uri => Wire}})
    end.

parent(<<"skill://", Path/binary>>) ->
    case lists:droplast(binary:split(Path, ~"/", [global])) of
        [] -> none;
        Segments -> iolist_to_binary([~"skill://", lists:join($/, Segments)])
    end.

name(Uri) ->
    uri_string:percent_decode(lists:last(binary:split(Uri, ~"/", [global]))).

children(Children) ->
    Wires = [Wire || _ := Wire <- maps:iterator(Children, ordered)],
    [{Position, iolist_to_binary(json:encode(Wire))}
     || {Position, Wire} <- lists:enumerate(0, Wires)].

-doc "Returns the listings of the children of all folders.".
-spec listings(folders(), erlmcp_listing:settings(), ServerMeta :: binary()) -> listings().
listings(Folders, Settings, ServerMeta) ->
    #{Uri => erlmcp_listing:directory(Uri, Children, Settings, ServerMeta)
      || Uri := Children <- Folders}.

-doc """
Returns an encoded page of the children of the folder `Uri`: the page of `Cursor`, or the first one
for `none`. `error` means that there is no such folder, and `bad_cursor` that the cursor is not one
of this list.
""".
-spec page(Uri :: binary(), Cursor :: binary() | none, erlmcp_revision:revision(), listings()) ->
    {ok, binary()} | error | bad_cursor.
page(Uri, Cursor, Revision, Listings) ->
    case Listings of
        #{Uri := Listing} when Cursor =:= none ->
            {ok, erlmcp_listing:first_page(Listing, none, Revision, anonymous)};
        #{Uri := Listing} ->
            case erlmcp_listing:page(Cursor, Listing, none, Revision, anonymous) of
                {ok, _} = Page -> Page;
                error -> bad_cursor
            end;
        #{} ->
            error
    end.
