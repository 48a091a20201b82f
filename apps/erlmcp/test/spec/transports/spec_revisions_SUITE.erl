-module(spec_revisions_SUITE).
-moduledoc "What each revision's schema knows, a client of it is shown, and no more.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([server_info_has_the_revisions_fields/1, tools_have_the_revisions_fields/1,
         resources_have_the_revisions_fields/1, prompts_have_the_revisions_fields/1,
         output_schema_is_of_an_object/1, tool_content_is_of_the_revisions_types/1,
         prompt_content_is_of_the_revisions_types/1, structured_content_is_of_the_revision/1,
         only_the_newest_has_result_types_and_caching/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/3, call/4, initialize/2, initialize/3]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_http:start(erlmcp_test_http:catalog())} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

revisions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25", ~"2026-07-28"].

result(Server, ~"2026-07-28", Method, Params) ->
    #{status := 200, messages := [#{~"result" := Result}]} = call(Server, Method, Params),
    Result;
result(Server, Revision, Method, Params) ->
    #{status := 200, messages := [#{~"result" := Result}]} =
        call(Server, Method, Params, #{session => initialize(Server, Revision)}),
    Result.

%% The fields since each revision, from its schema.json; a revision has those of the earlier ones.
check(Revision, Since, Shown) ->
    Expected = lists:sort(lists:append([Fields || {First, Fields} <- Since, First =< Revision])),
    {Revision, Expected} = {Revision, lists:sort(maps:keys(Shown))},
    ok.

common() ->
    [{~"2025-06-18", [~"title", ~"_meta"]}, {~"2025-11-25", [~"icons"]}].

%% "Implementation" in schema.json of each revision.
server_info_has_the_revisions_fields(Config) ->
    Since = [{~"2024-11-05", [~"name", ~"version"]}, {~"2025-06-18", [~"title"]},
             {~"2025-11-25", [~"description", ~"websiteUrl", ~"icons"]}],
    [begin
         #{messages := [#{~"result" := Result}]} = initialize(server(Config), Revision, #{}),
         #{~"protocolVersion" := Revision, ~"serverInfo" := Info,
           ~"instructions" := ~"Call the tools."} = Result,
         check(Revision, Since, Info)
     end || Revision <- revisions() -- [~"2026-07-28"]],
    #{~"_meta" := #{~"io.modelcontextprotocol/serverInfo" := Info}} =
        result(server(Config), ~"2026-07-28", ~"server/discover", #{}),
    check(~"2026-07-28", Since, Info).

%% "Tool".
tools_have_the_revisions_fields(Config) ->
    [begin
         #{~"tools" := [Contents, Structured | _] = Tools} =
             result(server(Config), Revision, ~"tools/list", #{}),
         7 = length(Tools),
         Since = [{~"2024-11-05", [~"name", ~"description", ~"inputSchema"]} | common()],
         check(Revision, [{~"2025-03-26", [~"annotations"]} | Since], Contents),
         check(Revision, [{~"2025-06-18", [~"outputSchema"]} | Since], Structured)
     end || Revision <- revisions()].

%% "Resource" and "ResourceTemplate".
resources_have_the_revisions_fields(Config) ->
    [begin
         Since = [{~"2024-11-05", [~"name", ~"description", ~"mimeType", ~"annotations"]}
                  | common()],
         #{~"resources" := [Text | _]} = result(server(Config), Revision, ~"resources/list", #{}),
         check(Revision, [{~"2024-11-05", [~"uri", ~"size"]} | Since], Text),
         #{~"resourceTemplates" := [Item]} =
             result(server(Config), Revision, ~"resources/templates/list", #{}),
         check(Revision, [{~"2024-11-05", [~"uriTemplate"]} | Since], Item)
     end || Revision <- revisions()].

%% "Prompt" and "PromptArgument".
prompts_have_the_revisions_fields(Config) ->
    [begin
         #{~"prompts" := [Greet | _]} = result(server(Config), Revision, ~"prompts/list", #{}),
         Since = [{~"2024-11-05", [~"name", ~"description", ~"arguments"]} | common()],
         check(Revision, Since, Greet),
         #{~"arguments" := [Who, How]} = Greet,
         check(Revision, [{~"2024-11-05", [~"name", ~"description", ~"required"]},
                          {~"2025-06-18", [~"title"]}], Who),
         check(Revision, [{~"2024-11-05", [~"name"]}], How)
     end || Revision <- revisions()].

%% "outputSchema: currently restricted to type object at the root level" until 2025-11-25.
output_schema_is_of_an_object(Config) ->
    [begin
         #{~"tools" := Tools} = result(server(Config), Revision, ~"tools/list", #{}),
         [List] = [Tool || #{~"name" := ~"list"} = Tool <- Tools],
         {Revision, Shown} = {Revision, is_map_key(~"outputSchema", List)}
     end || {Revision, Shown} <- [{~"2024-11-05", false}, {~"2025-03-26", false},
                                  {~"2025-06-18", false}, {~"2025-11-25", false},
                                  {~"2026-07-28", true}]].

types(Contents) ->
    [maps:get(~"type", Content) || Content <- Contents].

%% What a revision has no type for becomes a text: nothing is lost without a word.
known_types(~"2024-11-05") ->
    [~"text", ~"text", ~"image", ~"text", ~"text", ~"resource", ~"resource"];
known_types(~"2025-03-26") ->
    [~"text", ~"text", ~"image", ~"audio", ~"text", ~"resource", ~"resource"];
known_types(_) ->
    [~"text", ~"text", ~"image", ~"audio", ~"resource_link", ~"resource", ~"resource"].

tool_content_is_of_the_revisions_types(Config) ->
    [begin
         #{~"content" := Contents} =
             result(server(Config), Revision, ~"tools/call",
                    #{name => Name, arguments => #{a => ~"b"}}),
         {Revision, Types} = {Revision, types(Contents)},
         [true = is_binary(Text) andalso Text =/= ~""
          || #{~"type" := ~"text"} = Content <- Contents, Text <- [maps:get(~"text", Content)]]
     end || Revision <- revisions(), Types <- [known_types(Revision)],
            Name <- [~"contents", ~"fails_richly"]].

prompt_content_is_of_the_revisions_types(Config) ->
    [begin
         #{~"messages" := [_ | Messages]} =
             result(server(Config), Revision, ~"prompts/get", #{name => ~"talk"}),
         {Revision, Types} = {Revision, types([maps:get(~"content", M) || M <- Messages])}
     end || Revision <- revisions(), Types <- [known_types(Revision)]].

%% "structuredContent" is an object since 2025-06-18, any JSON value since 2026-07-28. Text has it
%% in each of them.
structured_content_is_of_the_revision(Config) ->
    [begin
         #{~"content" := [#{~"type" := ~"text", ~"text" := Text}]} = Result =
             result(server(Config), Revision, ~"tools/call",
                    #{name => Name, arguments => #{a => ~"b"}}),
         Value = json:decode(Text),
         {Revision, Name, Known} =
             {Revision, Name, maps:get(~"structuredContent", Result, none) =:= Value},
         Known = is_map_key(~"structuredContent", Result)
     end || {Name, Value, First} <- [{~"structured", #{~"n" => 1}, ~"2025-06-18"},
                                     {~"list", [1, ~"two", null], ~"2026-07-28"},
                                     {~"number", 1.5, ~"2026-07-28"}],
            Revision <- revisions(), Known <- [Revision >= First]].

only_the_newest_has_result_types_and_caching(Config) ->
    [begin
         Result = result(server(Config), Revision, Method, Params),
         [{Revision, Method, Field, false} =
              {Revision, Method, Field, is_map_key(Field, Result)}
          || Field <- [~"resultType", ~"ttlMs", ~"cacheScope", ~"_meta"]]
     end || Revision <- revisions() -- [~"2026-07-28"],
            {Method, Params} <- [{~"tools/list", #{}}, {~"resources/list", #{}},
                                 {~"resources/templates/list", #{}}, {~"prompts/list", #{}},
                                 {~"resources/read", #{uri => ~"test://text"}},
                                 {~"tools/call", #{name => ~"contents", arguments => #{a => ~"b"}}},
                                 {~"prompts/get", #{name => ~"talk"}}, {~"ping", #{}}]].
