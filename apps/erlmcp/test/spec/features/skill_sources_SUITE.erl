-module(skill_sources_SUITE).
-moduledoc """
The Skills extension (`io.modelcontextprotocol/skills`): what a server takes as a skill (maps,
folders, a module's own), and what it refuses to start with.
""".

-behaviour(erlmcp_server).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([server/0, skills/0]).
-export([skills_stay/1, nested_skills_share_files/1, a_module_has_skills/1, a_list_of_none/1,
         folders_are_read/1, hostile_folders_are_refused/1, deep_folders_are_refused/1,
         hostile_paths_are_refused/1, names_and_fields_are_checked/1, sources_are_checked/1,
         numbers_are_bounded/1, sizes_are_bounded/1, all_together_are_bounded/1]).

-import(erlmcp_test_client, [open/3]).
-import(erlmcp_test_skills, [result/3, code/3, verify/2, main/2]).

-define(PNG, <<137, "PNG", 0, 255>>).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [skills_stay, nested_skills_share_files, a_module_has_skills, a_list_of_none, folders_are_read,
     hostile_folders_are_refused, deep_folders_are_refused, hostile_paths_are_refused,
     names_and_fields_are_checked, sources_are_checked, numbers_are_bounded, sizes_are_bounded,
     all_together_are_bounded].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

server() -> #{name => ~"module", version => ~"1", listen => []}.

skills() -> [#{name => ~"of-the-module", description => ~"There"}].

start(Options) ->
    erlmcp:start_server(maps:merge(#{name => ~"test", version => ~"1", listen => []}, Options)).

%% An error at start does not leave a server behind.
refused(Skills) ->
    {error, {bad_skill, Skill, Place, Expected}} = start(#{skills => Skills}),
    true = is_binary(Skill) andalso is_binary(Expected),
    Place.

%% What was approved is what is read: nothing changes or takes away a file while the server runs.
skills_stay(Config) ->
    Folder = folder(~"stays", #{~"SKILL.md" => main(~"stays", ~""), ~"a.txt" => ~"before"}, Config),
    Server = erlmcp_test_client:start(#{skills => [#{path => Folder}]}),
    #{pid := Pid} = Server,
    Client = open(Server, http, ~"2026-07-28"),
    #{~"skills" := [Skill]} = result(Client, ~"skills/list", #{}),
    ok = file:write_file(filename:join(Folder, "a.txt"), ~"after"),
    ok = file:delete(filename:join(Folder, "SKILL.md")),
    verify(Skill, Client),
    Uris = [Uri || #{~"uri" := Uri} <- maps:get(~"resources", Skill)],
    [begin
         {error, {in_use, skill, ~"skill://stays/SKILL.md"}} = erlmcp:remove(Pid, resource, Uri),
         {error, {duplicate, resource, Uri}} =
             erlmcp:add(Pid, resource, #{uri => Uri, name => ~"x", handler => fun(_, _) -> ~"" end})
     end || Uri <- Uris],
    verify(Skill, Client),
    erlmcp_test_client:stop(Server).

%% "The enclosing skill's resources lists them too, and the same file may appear in both".
nested_skills_share_files(_) ->
    Inner = main(~"inner", ~""),
    Outer = #{files => #{~"SKILL.md" => main(~"outer", ~""), ~"inner/SKILL.md" => Inner,
                         ~"inner/a.txt" => ~"x"}},
    Nested = #{prefix => ~"outer", files => #{~"SKILL.md" => Inner, ~"a.txt" => ~"x"}},
    [begin
         Server = erlmcp_test_client:start(#{skills => Skills}),
         Client = open(Server, tcp, ~"2026-07-28"),
         #{~"skills" := Listed} = result(Client, ~"skills/list", #{}),
         [verify(Skill, Client) || Skill <- Listed],
         [~"skill://outer/SKILL.md", ~"skill://outer/inner/SKILL.md"] =
             lists:sort(fun(A, B) -> byte_size(A) =< byte_size(B) end,
                        [Uri || #{~"uri" := Uri} <- Listed]),
         #{~"resources" := Main} = result(Client, ~"resources/list", #{}),
         [~"inner", ~"outer"] = lists:sort([Name || #{~"name" := Name} <- Main]),
         #{~"resources" := [_, _]} =
             result(Client, ~"resources/directory/read", #{uri => ~"skill://outer/inner"}),
         erlmcp_test_client:stop(Server)
     end || Skills <- [[Outer, Nested], [Nested, Outer]]],
    {error, {duplicate, resource, ~"skill://outer/inner/a.txt"}} =
        start(#{skills => [Outer, Nested#{files := #{~"SKILL.md" => Inner, ~"a.txt" => ~"y"}}]}),
    {error, {duplicate, skill, ~"skill://outer/SKILL.md"}} = start(#{skills => [Outer, Outer]}),
    %% One's file where another has a folder.
    {error, {duplicate, resource, ~"skill://a/b"}} =
        start(#{skills => [#{files => #{~"SKILL.md" => main(~"a", ~""), ~"b" => ~"x"}},
                           #{files => #{~"SKILL.md" => main(~"b", ~"")}, prefix => ~"a"}]}),
    {error, {duplicate, resource, ~"skill://a/SKILL.md"}} =
        start(#{skills => [#{name => ~"a", description => ~"x"}],
                resources => [#{uri => ~"skill://a/SKILL.md", name => ~"x",
                                handler => fun(_, _) -> ~"" end}]}).

a_module_has_skills(_) ->
    Server = erlmcp_test_client:start(#{handler => ?MODULE,
                                        skills => [#{name => ~"of-the-options",
                                                     description => ~"x"}]}),
    #{~"skills" := [#{~"frontmatter" := #{~"name" := ~"of-the-module"}},
                    #{~"frontmatter" := #{~"name" := ~"of-the-options"}}]} =
        result(open(Server, http, ~"2026-07-28"), ~"skills/list", #{}),
    erlmcp_test_client:stop(Server).

a_list_of_none(_) ->
    Server = erlmcp_test_client:start(#{skills => []}),
    -32601 = code(open(Server, http, ~"2026-07-28"), ~"skills/list", #{}),
    erlmcp_test_client:stop(Server).

%% A folder with these files, below the test's own.
folder(Name, Files, Config) ->
    Folder = filename:join([proplists:get_value(priv_dir, Config),
                            integer_to_list(erlang:unique_integer([positive])), Name]),
    ok = filelib:ensure_path(Folder),
    [begin
         File = filename:join(Folder, Path),
         ok = filelib:ensure_dir(File),
         ok = file:write_file(File, Bytes)
     end || Path := Bytes <- Files],
    iolist_to_binary(Folder).

folders_are_read(Config) ->
    Files = #{~"SKILL.md" => main(~"tidy", ~""), ~"a/b/c.bin" => ?PNG, ~"é ü.txt" => ~"é"},
    Folder = folder(~"tidy", maps:merge(Files, #{~".git/config" => ~"secret",
                                                 ~"a/.env" => ~"secret"}),
                    Config),
    ok = filelib:ensure_path(filename:join(Folder, "empty")),
    %% A link on the way to the folder is the operator's own.
    Link = filename:join(proplists:get_value(priv_dir, Config), "link"),
    ok = file:make_symlink(filename:dirname(Folder), Link),
    [begin
         Server = erlmcp_test_client:start(#{skills => [#{path => Path, prefix => ~"my"}]}),
         Client = open(Server, http, ~"2025-11-25"),
         #{~"skills" := [#{~"resources" := Listed} = Skill]} = result(Client, ~"skills/list", #{}),
         verify(Skill, Client),
         [~"skill://my/tidy/%C3%A9%20%C3%BC.txt", ~"skill://my/tidy/SKILL.md",
          ~"skill://my/tidy/a/b/c.bin"] = lists:sort([Uri || #{~"uri" := Uri} <- Listed]),
         erlmcp_test_client:stop(Server)
     end || Path <- [Folder, binary_to_list(Folder), <<Folder/binary, "/">>,
                     filename:join(Link, "tidy")]].

hostile_folders_are_refused(Config) ->
    Secret = filename:join(proplists:get_value(priv_dir, Config), "secret"),
    ok = file:write_file(Secret, ~"secret"),
    Refused = fun(Files, Spoil) ->
        Folder = folder(~"x", maps:merge(#{~"SKILL.md" => main(~"x", ~"")}, Files), Config),
        _ = Spoil(Folder),
        Place = refused([#{path => Folder}]),
        %% A link to `/` is not left to whoever walks through the results.
        _ = file:delete(filename:join(Folder, "a")),
        Place
    end,
    In = fun filename:join/2,
    ~"a" = Refused(#{}, fun(Folder) -> ok = file:make_symlink(Secret, In(Folder, "a")) end),
    ~"a" = Refused(#{}, fun(Folder) -> ok = file:make_symlink("/", In(Folder, "a")) end),
    ~"a" = Refused(#{}, fun(Folder) -> ok = file:make_symlink(".", In(Folder, "a")) end),
    ~"a" = Refused(#{}, fun(Folder) -> ok = file:make_symlink("none", In(Folder, "a")) end),
    ~"b/c" = Refused(#{~"b/d" => ~"x"}, fun(Folder) ->
        ok = file:make_symlink(Secret, In(Folder, "b/c"))
    end),
    ~"SKILL.md" = Refused(#{}, fun(Folder) ->
        ok = file:delete(In(Folder, "SKILL.md")),
        ok = file:make_symlink(Secret, In(Folder, "SKILL.md"))
    end),
    ~"a" = Refused(#{}, fun(Folder) ->
        "" = os:cmd("mkfifo '" ++ binary_to_list(In(Folder, "a")) ++ "'")
    end),
    ~"b" = Refused(#{~"b/c" => ~"x"}, fun(Folder) ->
        ok = file:write_file(In(Folder, <<"b/", 255>>), ~"x")
    end),
    ~"a\\b" = Refused(#{~"a\\b" => ~"x"}, fun(_) -> ok end),
    ~"a\nb" = Refused(#{~"a\nb" => ~"x"}, fun(_) -> ok end),
    ~"SKILL.md" = Refused(#{}, fun(Folder) -> ok = file:delete(In(Folder, "SKILL.md")) end),
    ~"SKILL.md" = Refused(#{~"SKILL.md" => <<255, 254>>}, fun(_) -> ok end),
    ~"SKILL.md:1" = Refused(#{~"SKILL.md" => ~"# No frontmatter"}, fun(_) -> ok end),
    ~"SKILL.md:3" = Refused(#{~"SKILL.md" => ~"---\nname: x\ndescription: a: b\n---\n"},
                            fun(_) -> ok end),
    %% "Must match the parent directory name".
    ~"name" = Refused(#{~"SKILL.md" => main(~"other", ~"")}, fun(_) -> ok end),
    ~"path" = refused([#{path => Secret}]),
    ~"path" = refused([#{path => ~"/no/such/folder"}]),
    ~"path" = refused([#{path => <<255>>}]),
    ~"path" = refused([#{path => folder}]),
    ~"path" = refused([#{path => folder(~"x", #{~"SKILL.md" => main(~"x", ~"")}, Config),
                         name => ~"x"}]).

deep_folders_are_refused(Config) ->
    Deep = fun(Depth) ->
        Path = iolist_to_binary([lists:duplicate(Depth, ~"d/"), ~"f"]),
        [#{path => folder(~"x", #{~"SKILL.md" => main(~"x", ~""), Path => ~"x"}, Config)}]
    end,
    {ok, Server} = start(#{skills => Deep(32)}),
    ok = erlmcp:stop_server(Server),
    <<"d/d/", _/binary>> = refused(Deep(33)).

hostile_paths_are_refused(_) ->
    Start = fun(Path) ->
        start(#{skills => [#{name => ~"x", description => ~"x", files => #{Path => ~"x"}}]})
    end,
    [{Path, {error, {bad_skill, ~"x", Path, _}}} = {Path, Start(Path)}
     || Path <- [~"..", ~"../a", ~"a/../../b", ~"a/..", ~"/a", ~"a//b", ~"a/", ~"", ~".", ~"./a",
                 ~".env",
                 ~"a/.b", ~"a\\b", ~"..\\a", ~"a\0", ~"a\nb", ~"a\x7f"]],
    [{error, {bad_skill, ~"x", _, _}} = Start(Path) || Path <- [<<255>>, a, "a", 1, [26085]]],
    Longest = binary:copy(~"a", 1024),
    {ok, Server} = Start(Longest),
    ok = erlmcp:stop_server(Server),
    {error, {bad_skill, ~"x", _, _}} = Start(<<Longest/binary, "a">>),
    {error, {bad_skill, ~"x", ~"a", _}} =
        start(#{skills => [#{name => ~"x", description => ~"x", files => #{~"a" => text}}]}).

%% What the Agent Skills specification says of each field.
names_and_fields_are_checked(_) ->
    Fields = fun(Known) ->
        start(#{skills => [maps:merge(#{name => ~"x", description => ~"x"}, Known)]})
    end,
    Right = [#{name => ~"a"}, #{name => ~"0-a-1"}, #{name => binary:copy(~"a", 64)},
             #{description => binary:copy(~"é", 1024)}, #{compatibility => binary:copy(~"é", 500)},
             #{metadata => #{~"com.example/key" => ~"yes"}}, #{metadata => #{}}, #{license => ~""},
             #{allowed_tools => []}, #{prefix => ~"a.b/c_d~e-f"}, #{body => ~"é"}],
    [begin {ok, Server} = Fields(Known), ok = erlmcp:stop_server(Server) end || Known <- Right],
    [{Known, {error, {bad_skill, _, Place, _}}} = {Known, Fields(Known)}
     || {Place, Known} <- [
            {~"name", #{name => ~"A"}}, {~"name", #{name => ~"-a"}}, {~"name", #{name => ~"a-"}},
            {~"name", #{name => ~"a--b"}}, {~"name", #{name => ~"a_b"}},
            {~"name", #{name => ~"a/b"}},
            {~"name", #{name => ~"a\n"}}, {~"name", #{name => ~""}},
            {~"name", #{name => binary:copy(~"a", 65)}}, {~"name", #{name => x}},
            {~"description", #{description => ~""}}, {~"description", #{description => ~" \n"}},
            {~"description", #{description => binary:copy(~"é", 1025)}},
            {~"description", #{description => <<255>>}},
            {~"compatibility", #{compatibility => ~""}},
            {~"compatibility", #{compatibility => binary:copy(~"é", 501)}},
            {~"license", #{license => none}},
            {~"metadata", #{metadata => #{~"a" => 1}}},
            {~"metadata", #{metadata => #{~"io.modelcontextprotocol/a" => ~"b"}}},
            {~"allowed-tools", #{allowed_tools => ~"Read"}},
            {~"SKILL.md:5", #{metadata => #{~"a b" => ~"c"}}},
            {~"body", #{body => <<255>>}}, {~"colour", #{colour => red}},
            {~"prefix", #{prefix => ~""}}, {~"prefix", #{prefix => ~"/a"}},
            {~"prefix", #{prefix => ~"a//b"}}, {~"prefix", #{prefix => ~".."}},
            {~"prefix", #{prefix => ~"A"}}, {~"prefix", #{prefix => a}},
            {~"files", #{files => #{~"SKILL.md" => ~"x"}}}, {~"files", #{files => []}}]],
    [{More, Place} = {More, refused([#{files => #{~"SKILL.md" => main(~"x", More)}}])}
     || {Place, More} <- [
            {~"metadata", ~"metadata: text\n"}, {~"metadata", ~"metadata:\n  version: 1.0\n"},
            {~"license", ~"license: 1\n"}, {~"allowed-tools", ~"allowed-tools: 1\n"},
            {~"allowed-tools", ~"allowed-tools: {}\n"},
            {~"compatibility", ~"compatibility: []\n"}]],
    ~"name" = refused([#{files => #{~"SKILL.md" => ~"---\ndescription: x\n---\n"}}]),
    {error, {bad_skill, ~"x", ~"description", _}} =
        start(#{skills => [#{files => #{~"SKILL.md" => ~"---\nname: x\n---\n"}}]}),
    %% "Every other field the author wrote passes through unchanged".
    Server = erlmcp_test_client:start(#{skills => [#{files => #{
        ~"SKILL.md" => main(~"x", ~"allowed-tools: Read Write\nnew:\n  a: [b]\n  c: 1.5\n")}}]}),
    #{~"skills" := [#{~"frontmatter" := #{~"allowed-tools" := ~"Read Write",
                                          ~"new" := #{~"a" := [~"b"], ~"c" := 1.5}}}]} =
        result(open(Server, http, ~"2026-07-28"), ~"skills/list", #{}),
    erlmcp_test_client:stop(Server).

sources_are_checked(_) ->
    {error, {bad_option, skills, _}} = start(#{skills => #{}}),
    [~"skills" = refused([Source]) || Source <- [x, ~"folder", #{}, #{description => ~"x"}]],
    ~"files" = refused([#{files => []}]),
    ~"files" = refused([#{files => #{}, body => ~"x"}]),
    ~"SKILL.md" = refused([#{files => #{}}]),
    %% What names a folder in errors is not the caller's to give.
    {ok, Server} = start(#{skills => [#{name => ~"x", description => ~"x", folder => ~"y"}]}),
    ok = erlmcp:stop_server(Server).

%% "Resources per skill: 512 entries", "SKILL.md included".
numbers_are_bounded(Config) ->
    Files = fun(Count) ->
        Names = [<<"f/", (integer_to_binary(N))/binary>> || N <- lists:seq(2, Count)],
        #{Name => ~"x" || Name <- [~"SKILL.md" | Names]}#{~"SKILL.md" := main(~"x", ~"")}
    end,
    [begin
         {ok, Server} = start(#{skills => [Source(Files(512))]}),
         ok = erlmcp:stop_server(Server),
         ~"files" = refused([Source(Files(513))])
     end || Source <- [fun in_memory/1, in_folder(Config)]],
    Folders = fun(Count) ->
        Folder = folder(~"x", #{~"SKILL.md" => main(~"x", ~"")}, Config),
        [ok = file:make_dir(filename:join(Folder, integer_to_list(N))) || N <- lists:seq(2, Count)],
        [#{path => Folder}]
    end,
    {ok, Most} = start(#{skills => Folders(512)}),
    ok = erlmcp:stop_server(Most),
    _ = refused(Folders(513)).

in_memory(Files) -> #{files => Files}.

in_folder(Config) ->
    fun(Files) -> #{path => folder(~"x", Files, Config)} end.

%% "Total file size per skill: 16 MiB (16,777,216 bytes)".
sizes_are_bounded(Config) ->
    Main = main(~"x", ~""),
    Files = fun(Bytes) ->
        Half = (Bytes - byte_size(Main)) div 2,
        Rest = Bytes - byte_size(Main) - Half,
        #{~"SKILL.md" => Main, ~"a.bin" => binary:copy(<<255>>, Half),
          ~"b.bin" => binary:copy(<<255>>, Rest)}
    end,
    [begin
         {ok, Server} = start(#{skills => [Source(Files(16_777_216))]}),
         ok = erlmcp:stop_server(Server),
         ~"files" = refused([Source(Files(16_777_217))])
     end || Source <- [fun in_memory/1, in_folder(Config)]].

all_together_are_bounded(Config) ->
    Named = fun(Name, Bytes) ->
        Main = main(Name, ~""),
        #{~"SKILL.md" => Main, ~"a" => binary:copy(~"x", Bytes - byte_size(Main))}
    end,
    Start = fun(Bytes) ->
        start(#{skills => [#{path => folder(~"one", Named(~"one", 500), Config)},
                           #{files => Named(~"two", Bytes)}],
                limits => #{skills_bytes => 1000}})
    end,
    {ok, Server} = Start(500),
    ok = erlmcp:stop_server(Server),
    {error, {bad_skill, _, ~"files", ~"all skills within the limit skills_bytes"}} = Start(501).
