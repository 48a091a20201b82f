-module(skills_SUITE).
-moduledoc """
The Skills extension (`io.modelcontextprotocol/skills`): its methods over HTTP and TCP in both eras,
as a host uses them, and what a server refuses to start with.
""".

-behaviour(erlmcp_server).

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([server/0, skills/0]).
-export([declared_where_served/1, not_there_without_skills/1, entries_bind_their_files/1,
         lists_can_be_kept/1, one_is_the_listed_one/1, unknown_skills_are_refused/1,
         main_files_are_listed/1, files_have_their_types/1, unknown_files_are_refused/1,
         directories_have_their_children/1, others_are_no_directories/1,
         lists_have_pages/1, directories_have_pages/1, older_clients_read_files/1]).
-export([skills_stay/1, nested_skills_share_files/1, a_module_has_skills/1, a_list_of_none/1,
         folders_are_read/1, hostile_folders_are_refused/1, deep_folders_are_refused/1,
         hostile_paths_are_refused/1, names_and_fields_are_checked/1, sources_are_checked/1,
         numbers_are_bounded/1, sizes_are_bounded/1, all_together_are_bounded/1]).

-import(rounds_client, [open/3, ask/3]).

-define(ID, ~"io.modelcontextprotocol/skills").
-define(FORMS, ~"# Forms\n").
-define(PNG, <<137, "PNG", 0, 255>>).
-define(WIRE, [declared_where_served, entries_bind_their_files, lists_can_be_kept,
               one_is_the_listed_one, unknown_skills_are_refused, main_files_are_listed,
               files_have_their_types, unknown_files_are_refused, directories_have_their_children,
               others_are_no_directories, lists_have_pages, directories_have_pages,
               older_clients_read_files]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}
     | [Case || {Case, 1} <- ?MODULE:module_info(exports),
                not lists:member(Case, [init_per_suite, end_per_suite, module_info | ?WIRE])]].

groups() ->
    [{http, ?WIRE}, {tcp, ?WIRE}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(Case, Config) ->
    case lists:member(Case, ?WIRE) of
        true -> [{server, rounds_client:start(#{skills => served()})} | Config];
        false -> Config
    end.

end_per_testcase(_, Config) ->
    case proplists:get_value(server, Config) of
        undefined -> ok;
        Server -> rounds_client:stop(Server)
    end.

served() ->
    [#{files => #{~"SKILL.md" => main(~"pdf-processing", ~"metadata:\n  version: \"2.1.0\"\n"),
                  ~"references/FORMS.md" => ?FORMS,
                  ~"templates/invoice.md" => ~"# Invoice",
                  ~"templates/regional/eu invoice (1).md" => ~"# Facture",
                  ~"assets/logo.png" => ?PNG,
                  ~"assets/empty.txt" => ~""}},
     #{name => ~"refunds", description => ~"Refunds: how \"we\" do them", body => ~"# Refunds\n",
       license => ~"Apache-2.0", allowed_tools => [~"Read", ~"Bash(git:*)"],
       prefix => ~"acme/billing", files => #{~"examples/email.md" => ~"Dear customer"}}].

main(Name, More) ->
    <<"---\nname: ", Name/binary, "\ndescription: What it does\n", More/binary, "---\n\n# Text\n">>.

server() -> #{name => ~"module", version => ~"1", listen => []}.

skills() -> [#{name => ~"of-the-module", description => ~"There"}].

client(Revision, Config) ->
    open(proplists:get_value(server, Config), proplists:get_value(transport, Config), Revision).

clients(Config) ->
    [client(Revision, Config) || Revision <- [~"2026-07-28", ~"2025-11-25"]].

result(Client, Method, Params) ->
    #{~"result" := Result} = ask(Client, Method, Params),
    Result.

code(Client, Method, Params) ->
    #{~"error" := #{~"code" := Code}} = ask(Client, Method, Params),
    Code.

start(Options) ->
    erlmcp:start_server(maps:merge(#{name => ~"test", version => ~"1", listen => []}, Options)).

%% An error at start does not leave a server behind.
refused(Skills) ->
    {error, {bad_skill, Skill, Place, Expected}} = start(#{skills => Skills}),
    true = is_binary(Skill) andalso is_binary(Expected),
    Place.

%% "A server that declares this extension MUST implement skills/list and skills/get"; "A server that
%% additionally declares directoryRead: true MUST implement resources/directory/read"; "MUST also
%% declare the resources capability".
declared_where_served(Config) ->
    [Modern, Session] = clients(Config),
    #{~"capabilities" := #{~"extensions" := #{?ID := #{~"directoryRead" := true}} = Extensions,
                           ~"resources" := #{}}} = result(Modern, ~"server/discover", #{}),
    1 = map_size(Extensions),
    Server = proplists:get_value(server, Config),
    #{~"extensions" := Extensions} = capabilities(Server, ~"2025-11-25"),
    [false = is_map_key(~"extensions", capabilities(Server, Older))
     || Older <- [~"2025-06-18", ~"2025-03-26", ~"2024-11-05"]],
    [#{~"skills" := [_, _]} = result(Client, ~"skills/list", #{}) || Client <- [Modern, Session]].

capabilities(Server, Revision) ->
    #{messages := [#{~"result" := #{~"protocolVersion" := Revision, ~"capabilities" := Known}}]} =
        erlmcp_test_http:initialize(Server, Revision, #{}),
    Known.

not_there_without_skills(_) ->
    Server = rounds_client:start(#{}),
    Methods = [~"skills/list", ~"skills/get", ~"resources/directory/read"],
    [begin
         Client = open(Server, http, Revision),
         [-32601 = code(Client, Method, #{uri => ~"skill://a"}) || Method <- Methods]
     end || Revision <- [~"2026-07-28", ~"2025-11-25", ~"2024-11-05"]],
    #{~"capabilities" := Capabilities} =
        result(open(Server, tcp, ~"2026-07-28"), ~"server/discover", #{}),
    false = is_map_key(~"extensions", Capabilities),
    rounds_client:stop(Server).

%% What a host does: "it MUST verify the content against that entry's digest and size"; "hosts MUST
%% parse its YAML frontmatter and compare it field-by-field against the entry's frontmatter".
entries_bind_their_files(Config) ->
    [begin
         #{~"skills" := [Pdf, Refunds]} = result(Client, ~"skills/list", #{}),
         #{~"uri" := ~"skill://pdf-processing/SKILL.md",
           ~"frontmatter" := #{~"name" := ~"pdf-processing", ~"description" := ~"What it does",
                               ~"metadata" := #{~"version" := ~"2.1.0"}} = Frontmatter,
           ~"resources" := Files} = Pdf,
         {3, 3} = {map_size(Pdf), map_size(Frontmatter)},
         Uris = [Uri || #{~"uri" := Uri} <- Files],
         Uris = lists:sort([~"skill://pdf-processing/SKILL.md",
                            ~"skill://pdf-processing/assets/empty.txt",
                            ~"skill://pdf-processing/assets/logo.png",
                            ~"skill://pdf-processing/references/FORMS.md",
                            ~"skill://pdf-processing/templates/invoice.md",
                            ~"skill://pdf-processing/templates/regional/eu%20invoice%20(1).md"]),
         #{~"uri" := ~"skill://acme/billing/refunds/SKILL.md",
           ~"frontmatter" := #{~"name" := ~"refunds", ~"license" := ~"Apache-2.0",
                               ~"description" := ~"Refunds: how \"we\" do them",
                               ~"allowed-tools" := [~"Read", ~"Bash(git:*)"]},
           ~"resources" := [#{~"uri" := ~"skill://acme/billing/refunds/SKILL.md"},
                            #{~"uri" := ~"skill://acme/billing/refunds/examples/email.md"}]} =
             Refunds,
         [verify(Skill, Client) || Skill <- [Pdf, Refunds]]
     end || Client <- clients(Config)].

verify(#{~"uri" := Main, ~"frontmatter" := Frontmatter, ~"resources" := Files}, Client) ->
    [begin
         #{~"contents" := [#{~"uri" := Uri} = Item]} =
             result(Client, ~"resources/read", #{uri => Uri}),
         Bytes = case Item of
             #{~"text" := Text} -> Text;
             #{~"blob" := Blob} -> base64:decode(Blob)
         end,
         Size = byte_size(Bytes),
         Digest = <<"sha256:", (binary:encode_hex(crypto:hash(sha256, Bytes), lowercase))/binary>>,
         Uri =:= Main andalso ({ok, Frontmatter} = erlmcp_frontmatter:parse(Bytes))
     end || #{~"uri" := Uri, ~"digest" := Digest, ~"size" := Size} <- Files].

%% "ttlMs and cacheScope are REQUIRED"; "The resultType field MUST be set to complete".
lists_can_be_kept(Config) ->
    Requests = [{~"skills/list", #{}},
                {~"skills/get", #{uri => ~"skill://pdf-processing/SKILL.md"}},
                {~"resources/read", #{uri => ~"skill://pdf-processing/SKILL.md"}},
                {~"resources/directory/read", #{uri => ~"skill://pdf-processing"}}],
    Modern = client(~"2026-07-28", Config),
    Session = client(~"2025-11-25", Config),
    [begin
         #{~"resultType" := ~"complete", ~"ttlMs" := 60000, ~"cacheScope" := ~"public"} =
             result(Modern, Method, Params),
         [] = [Key || Key <- [~"resultType", ~"ttlMs", ~"cacheScope"],
                      is_map_key(Key, result(Session, Method, Params))]
     end || {Method, Params} <- Requests].

%% "identical in shape and meaning to an entry of skills/list"; "no pagination cursor".
one_is_the_listed_one(Config) ->
    [begin
         #{~"skills" := Skills} = result(Client, ~"skills/list", #{}),
         [begin
              #{~"skill" := Skill} = Result = result(Client, ~"skills/get", #{uri => Uri}),
              false = is_map_key(~"nextCursor", Result)
          end || #{~"uri" := Uri} = Skill <- Skills]
     end || Client <- clients(Config)].

%% "If the URI does not identify a skill the server serves, the server MUST return error -32602".
unknown_skills_are_refused(Config) ->
    [[-32602 = code(Client, ~"skills/get", Params)
      || Params <- [#{uri => ~"skill://nobody/SKILL.md"}, #{uri => ~"skill://pdf-processing"},
                    #{uri => ~"skill://pdf-processing/references/FORMS.md"}, #{uri => 1}, #{}]]
     || Client <- clients(Config)].

%% "mimeType SHOULD be text/markdown", "name SHOULD be set from the name field", "description".
main_files_are_listed(Config) ->
    [begin
         #{~"resources" := [Pdf, Refunds]} = result(Client, ~"resources/list", #{}),
         #{~"uri" := ~"skill://pdf-processing/SKILL.md", ~"name" := ~"pdf-processing",
           ~"description" := ~"What it does", ~"mimeType" := ~"text/markdown",
           ~"size" := Size} = Pdf,
         Size = byte_size(main(~"pdf-processing", ~"metadata:\n  version: \"2.1.0\"\n")),
         #{~"uri" := ~"skill://acme/billing/refunds/SKILL.md", ~"name" := ~"refunds"} = Refunds
     end || Client <- clients(Config)].

files_have_their_types(Config) ->
    [begin
         Read = fun(Path) ->
             Uri = <<"skill://pdf-processing/", Path/binary>>,
             #{~"contents" := [Item]} = result(Client, ~"resources/read", #{uri => Uri}),
             Item
         end,
         #{~"mimeType" := ~"text/markdown", ~"text" := ?FORMS} = Read(~"references/FORMS.md"),
         #{~"mimeType" := ~"image/png", ~"blob" := Png} = Read(~"assets/logo.png"),
         ?PNG = base64:decode(Png),
         #{~"mimeType" := ~"text/plain", ~"text" := ~""} = Read(~"assets/empty.txt")
     end || Client <- clients(Config)].

%% "resources/read of a skill file the server does not serve: -32602", before 2026-07-28 -32002.
unknown_files_are_refused(Config) ->
    [Modern, Session] = clients(Config),
    [begin
         -32602 = code(Modern, ~"resources/read", #{uri => Uri}),
         -32002 = code(Session, ~"resources/read", #{uri => Uri})
     end || Uri <- [~"skill://pdf-processing/none.md", ~"skill://pdf-processing/references",
                    ~"skill://pdf-processing/references/../SKILL.md",
                    ~"skill://pdf-processing/templates/regional/eu invoice (1).md"]].

%% "The result contains every direct child of the directory"; "subdirectories are listed as
%% directory resources"; "The listing is not recursive".
directories_have_their_children(Config) ->
    [begin
         Children = fun(Uri) ->
             #{~"resources" := Resources} =
                 result(Client, ~"resources/directory/read", #{uri => Uri}),
             [{Name, Type, Own}
              || #{~"uri" := Own, ~"name" := Name, ~"mimeType" := Type} <- Resources]
         end,
         [{~"pdf-processing", ~"text/markdown", ~"skill://pdf-processing/SKILL.md"},
          {~"assets", ~"inode/directory", ~"skill://pdf-processing/assets"},
          {~"references", ~"inode/directory", ~"skill://pdf-processing/references"},
          {~"templates", ~"inode/directory", ~"skill://pdf-processing/templates"}] =
             Children(~"skill://pdf-processing"),
         [{~"invoice.md", ~"text/markdown", _},
          {~"regional", ~"inode/directory", ~"skill://pdf-processing/templates/regional"}] =
             Children(~"skill://pdf-processing/templates"),
         [{~"eu invoice (1).md", ~"text/markdown",
           ~"skill://pdf-processing/templates/regional/eu%20invoice%20(1).md"}] =
             Children(~"skill://pdf-processing/templates/regional"),
         [{~"billing", ~"inode/directory", ~"skill://acme/billing"}] = Children(~"skill://acme"),
         [{~"refunds", ~"inode/directory", ~"skill://acme/billing/refunds"}] =
             Children(~"skill://acme/billing")
     end || Client <- clients(Config)].

%% "If the URI does not exist, or exists but is not a directory resource, the server MUST return
%% error -32602"; "Directory URIs are written without a trailing slash".
others_are_no_directories(Config) ->
    [[-32602 = code(Client, ~"resources/directory/read", Params)
      || Params <- [#{uri => ~"skill://pdf-processing/SKILL.md"}, #{uri => ~"skill://none"},
                    #{uri => ~"skill://pdf-processing/"}, #{uri => ~"skill://"}, #{uri => []}, #{},
                    #{uri => ~"skill://pdf-processing", cursor => 1}]]
     || Client <- clients(Config)].

%% "An entry is atomic"; "when the result includes nextCursor the client passes it back".
lists_have_pages(Config) ->
    Names = [<<"skill-", (integer_to_binary(N))/binary>> || N <- lists:seq(1, 7)],
    Skills = [#{name => Name, description => ~"x"} || Name <- Names],
    Server = rounds_client:start(#{page_size => 3, skills => Skills}),
    [begin
         Client = open(Server, proplists:get_value(transport, Config), Revision),
         Pages = walk(Client, ~"skills/list", ~"skills", #{}),
         [3, 3, 1] = [length(Page) || Page <- Pages],
         Names = [Name || #{~"frontmatter" := #{~"name" := Name}} <- lists:append(Pages)],
         #{~"nextCursor" := Other} = result(Client, ~"resources/list", #{}),
         -32602 = code(Client, ~"skills/list", #{cursor => Other}),
         -32602 = code(Client, ~"skills/list", #{cursor => ~"x"})
     end || Revision <- [~"2026-07-28", ~"2025-11-25"]],
    rounds_client:stop(Server).

walk(Client, Method, Member, Params) ->
    case result(Client, Method, Params) of
        #{Member := Page, ~"nextCursor" := Cursor} ->
            [Page | walk(Client, Method, Member, Params#{cursor => Cursor})];
        #{Member := Page} ->
            [Page]
    end.

directories_have_pages(Config) ->
    Files = #{<<Folder, "/", (integer_to_binary(N))/binary>> => ~"x"
              || Folder <- "ab", N <- lists:seq(1, 5)},
    Server = rounds_client:start(#{page_size => 2,
                                   skills => [#{files => Files#{~"SKILL.md" => main(~"x", ~"")}}]}),
    [begin
         Client = open(Server, proplists:get_value(transport, Config), Revision),
         Read = ~"resources/directory/read",
         Pages = walk(Client, Read, ~"resources", #{uri => ~"skill://x/a"}),
         [[~"1", ~"2"], [~"3", ~"4"], [~"5"]] =
             [[Name || #{~"name" := Name} <- Page] || Page <- Pages],
         #{~"nextCursor" := Cursor} = result(Client, Read, #{uri => ~"skill://x/a"}),
         -32602 = code(Client, Read, #{uri => ~"skill://x/b", cursor => Cursor}),
         -32602 = code(Client, ~"resources/list", #{cursor => Cursor})
     end || Revision <- [~"2026-07-28", ~"2025-11-25"]],
    rounds_client:stop(Server).

%% "To a client that does not implement this extension, skill:// resources are ordinary resources".
older_clients_read_files(Config) ->
    [begin
         Client = client(Revision, Config),
         #{~"contents" := [#{~"text" := ?FORMS}]} =
             result(Client, ~"resources/read",
                    #{uri => ~"skill://pdf-processing/references/FORMS.md"}),
         -32601 = code(Client, ~"skills/list", #{})
     end || Revision <- [~"2025-06-18", ~"2025-03-26", ~"2024-11-05"]].

%% What was approved is what is read: nothing changes or takes away a file while the server runs.
skills_stay(Config) ->
    Folder = folder(~"stays", #{~"SKILL.md" => main(~"stays", ~""), ~"a.txt" => ~"before"}, Config),
    Server = rounds_client:start(#{skills => [#{path => Folder}]}),
    #{pid := Pid} = Server,
    Client = open(Server, http, ~"2026-07-28"),
    #{~"skills" := [Skill]} = result(Client, ~"skills/list", #{}),
    ok = file:write_file(filename:join(Folder, "a.txt"), ~"after"),
    ok = file:delete(filename:join(Folder, "SKILL.md")),
    verify(Skill, Client),
    Uris = [Uri || #{~"uri" := Uri} <- maps:get(~"resources", Skill)],
    [begin
         {error, {in_use, skill, Uri}} = erlmcp:remove(Pid, resource, Uri),
         {error, {duplicate, resource, Uri}} =
             erlmcp:add(Pid, resource, #{uri => Uri, name => ~"x", handler => fun(_, _) -> ~"" end})
     end || Uri <- Uris],
    verify(Skill, Client),
    rounds_client:stop(Server).

%% "The enclosing skill's resources lists them too, and the same file may appear in both".
nested_skills_share_files(_) ->
    Inner = main(~"inner", ~""),
    Outer = #{files => #{~"SKILL.md" => main(~"outer", ~""), ~"inner/SKILL.md" => Inner,
                         ~"inner/a.txt" => ~"x"}},
    Nested = #{prefix => ~"outer", files => #{~"SKILL.md" => Inner, ~"a.txt" => ~"x"}},
    [begin
         Server = rounds_client:start(#{skills => Skills}),
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
         rounds_client:stop(Server)
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
    Server = rounds_client:start(#{handler => ?MODULE,
                                   skills => [#{name => ~"of-the-options", description => ~"x"}]}),
    #{~"skills" := [#{~"frontmatter" := #{~"name" := ~"of-the-module"}},
                    #{~"frontmatter" := #{~"name" := ~"of-the-options"}}]} =
        result(open(Server, http, ~"2026-07-28"), ~"skills/list", #{}),
    rounds_client:stop(Server).

a_list_of_none(_) ->
    Server = rounds_client:start(#{skills => []}),
    -32601 = code(open(Server, http, ~"2026-07-28"), ~"skills/list", #{}),
    rounds_client:stop(Server).

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
         Server = rounds_client:start(#{skills => [#{path => Path, prefix => ~"my"}]}),
         Client = open(Server, http, ~"2025-11-25"),
         #{~"skills" := [#{~"resources" := Listed} = Skill]} = result(Client, ~"skills/list", #{}),
         verify(Skill, Client),
         [~"skill://my/tidy/%C3%A9%20%C3%BC.txt", ~"skill://my/tidy/SKILL.md",
          ~"skill://my/tidy/a/b/c.bin"] = lists:sort([Uri || #{~"uri" := Uri} <- Listed]),
         rounds_client:stop(Server)
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
    Server = rounds_client:start(#{skills => [#{files => #{
        ~"SKILL.md" => main(~"x", ~"allowed-tools: Read Write\nnew:\n  a: [b]\n  c: 1.5\n")}}]}),
    #{~"skills" := [#{~"frontmatter" := #{~"allowed-tools" := ~"Read Write",
                                          ~"new" := #{~"a" := [~"b"], ~"c" := 1.5}}}]} =
        result(open(Server, http, ~"2026-07-28"), ~"skills/list", #{}),
    rounds_client:stop(Server).

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
