-module(skills_SUITE).
-moduledoc """
The Skills extension (`io.modelcontextprotocol/skills`): its methods over HTTP and TCP in both eras,
as a host uses them.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([declared_where_served/1, not_there_without_skills/1, entries_bind_their_files/1,
         lists_can_be_kept/1, one_is_the_listed_one/1, unknown_skills_are_refused/1,
         main_files_are_listed/1, files_have_their_types/1, unknown_files_are_refused/1,
         directories_have_their_children/1, others_are_no_directories/1,
         lists_have_pages/1, directories_have_pages/1, older_clients_read_files/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/3]).
-import(erlmcp_test_skills, [result/3, code/3, verify/2, main/2]).

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
    [{group, http}, {group, tcp}, not_there_without_skills].

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
        true -> [{server, erlmcp_test_client:start(#{skills => served()})} | Config];
        false -> Config
    end.

end_per_testcase(_, Config) ->
    case server(Config) of
        undefined -> ok;
        Server -> erlmcp_test_client:stop(Server)
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

client(Revision, Config) ->
    open(server(Config), transport(Config), Revision).

clients(Config) ->
    [client(Revision, Config) || Revision <- [~"2026-07-28", ~"2025-11-25"]].

%% "A server that declares this extension MUST implement skills/list and skills/get"; "A server that
%% additionally declares directoryRead: true MUST implement resources/directory/read"; "MUST also
%% declare the resources capability".
declared_where_served(Config) ->
    [Modern, Session] = clients(Config),
    #{~"capabilities" := #{~"extensions" := #{?ID := #{~"directoryRead" := true}} = Extensions,
                           ~"resources" := #{}}} = result(Modern, ~"server/discover", #{}),
    1 = map_size(Extensions),
    Server = server(Config),
    #{~"extensions" := Extensions} = capabilities(Server, ~"2025-11-25"),
    [false = is_map_key(~"extensions", capabilities(Server, Older))
     || Older <- [~"2025-06-18", ~"2025-03-26", ~"2024-11-05"]],
    [#{~"skills" := [_, _]} = result(Client, ~"skills/list", #{}) || Client <- [Modern, Session]].

capabilities(Server, Revision) ->
    #{messages := [#{~"result" := #{~"protocolVersion" := Revision, ~"capabilities" := Known}}]} =
        erlmcp_test_http:initialize(Server, Revision, #{}),
    Known.

not_there_without_skills(_) ->
    Server = erlmcp_test_client:start(#{}),
    Methods = [~"skills/list", ~"skills/get", ~"resources/directory/read"],
    [begin
         Client = open(Server, http, Revision),
         [-32601 = code(Client, Method, #{uri => ~"skill://a"}) || Method <- Methods]
     end || Revision <- [~"2026-07-28", ~"2025-11-25", ~"2024-11-05"]],
    #{~"capabilities" := Capabilities} =
        result(open(Server, tcp, ~"2026-07-28"), ~"server/discover", #{}),
    false = is_map_key(~"extensions", Capabilities),
    erlmcp_test_client:stop(Server).

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
    Server = erlmcp_test_client:start(#{page_size => 3, skills => Skills}),
    [begin
         Client = open(Server, transport(Config), Revision),
         Pages = walk(Client, ~"skills/list", ~"skills", #{}),
         [3, 3, 1] = [length(Page) || Page <- Pages],
         Names = [Name || #{~"frontmatter" := #{~"name" := Name}} <- lists:append(Pages)],
         #{~"nextCursor" := Other} = result(Client, ~"resources/list", #{}),
         -32602 = code(Client, ~"skills/list", #{cursor => Other}),
         -32602 = code(Client, ~"skills/list", #{cursor => ~"x"})
     end || Revision <- [~"2026-07-28", ~"2025-11-25"]],
    erlmcp_test_client:stop(Server).

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
    Server = erlmcp_test_client:start(#{page_size => 2,
                                        skills => [#{files => Files#{~"SKILL.md" =>
                                                                         main(~"x", ~"")}}]}),
    [begin
         Client = open(Server, transport(Config), Revision),
         Read = ~"resources/directory/read",
         Pages = walk(Client, Read, ~"resources", #{uri => ~"skill://x/a"}),
         [[~"1", ~"2"], [~"3", ~"4"], [~"5"]] =
             [[Name || #{~"name" := Name} <- Page] || Page <- Pages],
         #{~"nextCursor" := Cursor} = result(Client, Read, #{uri => ~"skill://x/a"}),
         -32602 = code(Client, Read, #{uri => ~"skill://x/b", cursor => Cursor}),
         -32602 = code(Client, ~"resources/list", #{cursor => Cursor})
     end || Revision <- [~"2026-07-28", ~"2025-11-25"]],
    erlmcp_test_client:stop(Server).

%% "To a client that does not implement this extension, skill:// resources are ordinary resources".
older_clients_read_files(Config) ->
    [begin
         Client = client(Revision, Config),
         #{~"contents" := [#{~"text" := ?FORMS}]} =
             result(Client, ~"resources/read",
                    #{uri => ~"skill://pdf-processing/references/FORMS.md"}),
         -32601 = code(Client, ~"skills/list", #{})
     end || Revision <- [~"2025-06-18", ~"2025-03-26", ~"2024-11-05"]].
