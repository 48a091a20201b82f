-module(client_skills_SUITE).
-moduledoc """
`m:erlmcp_skills`: the extension `io.modelcontextprotocol/skills`, as a client has it. A file that
is not what its entry says is not given to anybody.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([skills_are_listed_and_read/1, nothing_is_read_unasked/1, other_files_are_refused/1,
         tampering_is_found/1, numbers_are_compared_as_numbers/1, other_yaml_is_named/1,
         entries_may_lack_everything/1, without_skills/1]).

-import(erlmcp_test_peer, [result/2]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [skills_are_listed_and_read, nothing_is_read_unasked, other_files_are_refused,
     tampering_is_found, numbers_are_compared_as_numbers, other_yaml_is_named,
     entries_may_lack_everything, without_skills].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    erlmcp_test_sent:listen(Config).

end_per_testcase(_, Config) ->
    erlmcp_test_sent:heard(Config, []).

-define(MAIN, ~"---\nname: pdf\ndescription: Reads PDFs\n---\nOpen the file.\n").

skills_are_listed_and_read(_) ->
    Image = <<0, 255, 1, 254>>,
    {ok, Server} = erlmcp:start_server(#{
        name => ~"test", version => ~"1.0.0",
        skills => [#{files => #{~"SKILL.md" => ?MAIN, ~"icon.png" => Image}}]}),
    [begin
         {ok, Client} = erlmcp_client:start_link({server, Server, #{era => Era}}),
         {ok, [#{~"frontmatter" := #{~"description" := ~"Reads PDFs"}} = Skill]} =
             erlmcp_client:list_skills(Client),
         {ok, ?MAIN} = erlmcp_skills:load(Client, Skill),
         {ok, Image} = erlmcp_skills:read(Client, Skill, ~"skill://pdf/icon.png"),
         ok = erlmcp_client:stop(Client)
     end || Era <- [stateless, session]],
    ok = erlmcp:stop_server(Server).

nothing_is_read_unasked(_) ->
    {ok, _} = erlmcp_client:list_skills(client(?MAIN, #{})),
    receive {peer, #{~"method" := ~"resources/read"}} -> error(read) after 0 -> ok end.

other_files_are_refused(_) ->
    Client = client(?MAIN, #{}),
    {ok, [Skill]} = erlmcp_client:list_skills(Client),
    {error, {not_in_skill, ~"skill://pdf/other.md"}} =
        erlmcp_skills:read(Client, Skill, ~"skill://pdf/other.md"),
    receive {peer, #{~"method" := ~"resources/read"}} -> error(read) after 0 -> ok end.

tampering_is_found(_) ->
    Uri = ~"skill://pdf/SKILL.md",
    [begin
         Client = client(Served, Entry),
         {ok, [Skill]} = erlmcp_client:list_skills(Client),
         Outcome = erlmcp_skills:load(Client, Skill)
     end || {Served, Entry, Outcome} <-
            [{?MAIN, #{}, {ok, ?MAIN}},
             {binary:replace(?MAIN, ~"Open", ~"Shut"), #{}, {error, {unverified, digest, Uri}}},
             {<<?MAIN/binary, " ">>, #{}, {error, {unverified, size, Uri}}},
             {?MAIN, #{~"frontmatter" => #{~"name" => ~"pdf"}},
              {error, {unverified, frontmatter, Uri}}}]].

%% A server in JavaScript has read 1.0, and writes 1.
numbers_are_compared_as_numbers(_) ->
    Text = ~"---\nname: pdf\ndescription: Reads PDFs\nversion: 1.0\n---\nOpen the file.\n",
    Load = fun(Version) ->
        Frontmatter = #{~"name" => ~"pdf", ~"description" => ~"Reads PDFs",
                        ~"version" => Version},
        Client = client(Text, #{~"resources" => files(Text), ~"frontmatter" => Frontmatter}),
        {ok, [Skill]} = erlmcp_client:list_skills(Client),
        erlmcp_skills:load(Client, Skill)
    end,
    [{ok, Text} = Load(Version) || Version <- [1, 1.0]],
    [{error, {unverified, frontmatter, _}} = Load(Version) || Version <- [2, ~"1.0", true]].

%% The server is right, and its file is one that this library does not read.
other_yaml_is_named(_) ->
    Uri = ~"skill://pdf/SKILL.md",
    [begin
         Text = <<"---\nname: pdf\ndescription: ", Description/binary, "\n---\nOpen the file.\n">>,
         Client = client(Text, #{~"resources" => files(Text)}),
         {ok, [Skill]} = erlmcp_client:list_skills(Client),
         {error, {unreadable, {Line, <<_, _/binary>>}, Uri}} = erlmcp_skills:load(Client, Skill)
     end || {Description, Line} <- [{~"Reads\n  PDFs", 4}, {~"\"Reads PDFs\" # well", 3}]].

%% The server is wrong, and the caller goes on.
entries_may_lack_everything(_) ->
    Uri = ~"skill://pdf/SKILL.md",
    [begin
         {ok, [Skill]} = erlmcp_client:list_skills(client(?MAIN, Entry)),
         {error, Reason} = erlmcp_skills:load(client(?MAIN, #{}), maps:without(Without, Skill))
     end || {Entry, Without, Reason} <-
            [{#{}, [~"frontmatter"], {unverified, frontmatter, Uri}},
             {#{}, [~"resources"], {not_in_skill, Uri}},
             {#{~"resources" => 7}, [], {not_in_skill, Uri}},
             {#{~"resources" => [7, #{}]}, [], {not_in_skill, Uri}}]].

without_skills(_) ->
    {ok, Server} = erlmcp:start_server(#{name => ~"test", version => ~"1.0.0"}),
    {ok, Client} = erlmcp_client:start_link({server, Server, #{}}),
    {error, {rpc, #{code := -32601}}} = erlmcp_client:list_skills(Client),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp:stop_server(Server).

%% Of a server that lists the skill as it is and serves its SKILL.md as a case says.
client(Served, Entry) ->
    #{port := Port} = erlmcp_test_peer:tcp(
        fun(#{~"method" := ~"server/discover"} = Message) ->
                [result(Message, #{resultType => complete, supportedVersions => [~"2026-07-28"],
                                   capabilities => #{}, ttlMs => 0, cacheScope => public})];
           (#{~"method" := ~"skills/list"} = Message) ->
                [result(Message, #{resultType => complete, ttlMs => 0, cacheScope => public,
                                   skills => [maps:merge(entry(), Entry)]})];
           (#{~"method" := ~"resources/read", ~"params" := #{~"uri" := Uri}} = Message) ->
                [result(Message, #{resultType => complete, ttlMs => 0, cacheScope => public,
                                   contents => [#{uri => Uri, text => Served}]})]
        end),
    {ok, Client} = erlmcp_client:start_link({tcp, ~"127.0.0.1", Port, #{}}),
    Client.

entry() ->
    #{~"uri" => ~"skill://pdf/SKILL.md",
      ~"frontmatter" => #{~"name" => ~"pdf", ~"description" => ~"Reads PDFs"},
      ~"resources" => files(?MAIN)}.

files(Main) ->
    Digest = binary:encode_hex(crypto:hash(sha256, Main), lowercase),
    [#{~"uri" => ~"skill://pdf/SKILL.md", ~"size" => byte_size(Main),
       ~"digest" => <<"sha256:", Digest/binary>>}].
