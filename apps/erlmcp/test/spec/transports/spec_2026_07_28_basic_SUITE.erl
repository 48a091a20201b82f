-module(spec_2026_07_28_basic_SUITE).
-moduledoc "Specification 2026-07-28: base protocol, discovery, server features, over HTTP.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([result_says_its_type_and_server/1, discovery_says_versions_capabilities_and_identity/1,
         declared_capabilities_are_served/1, cacheable_results_say_for_how_long/1]).
-export([requests_stand_alone/1, handler_knows_its_client/1]).
-export([lists_show_all_fields/1, lists_keep_their_order/1, lists_follow_changes/1,
         unknown_cursor_is_refused/1]).
-export([tool_gives_all_kinds_of_content/1, tool_gives_structured_content/1,
         tool_error_is_a_result/1, unknown_tool_is_invalid_params/1,
         malformed_call_is_invalid_params/1]).
-export([resource_gives_text_blob_and_several/1, template_gives_its_variables/1,
         missing_resource_is_invalid_params/1, failing_resource_is_an_internal_error/1]).
-export([prompt_takes_arguments/1, prompt_gives_all_kinds_of_content/1,
         missing_prompt_argument_is_named/1, prompt_arguments_are_strings/1,
         unknown_prompt_is_invalid_params/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/3, call/4, message/3, connect/1, send/4, close/1, response/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    #{tools := Working} = erlmcp_test_http:definitions(self()),
    #{tools := Tools} = Catalog = erlmcp_test_http:catalog(),
    [{server, erlmcp_test_http:start(Catalog#{tools := Tools ++ Working})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

result(Server, Method, Params) ->
    #{status := 200, messages := [#{~"jsonrpc" := ~"2.0", ~"id" := 1, ~"result" := Result}]} =
        call(Server, Method, Params),
    Result.

%% The error of a request that is refused with 400, as all that clients are to read must be.
refused(Server, Method, Params) ->
    refused(Server, Method, Params, #{}).

refused(Server, Method, Params, Options) ->
    #{status := 400, messages := [#{~"jsonrpc" := ~"2.0", ~"id" := 1, ~"error" := Error}]} =
        call(Server, Method, Params, Options),
    #{~"code" := Code, ~"message" := Message} = Error,
    {Code, Message, Error}.

names({-32602, Message, _}, Field) ->
    {Message, true} = {Message, string:find(Message, Field) =/= nomatch},
    ok.

requests() ->
    [{~"server/discover", #{}}, {~"tools/list", #{}}, {~"resources/list", #{}},
     {~"resources/templates/list", #{}}, {~"prompts/list", #{}},
     {~"tools/call", #{name => ~"contents", arguments => #{a => ~"b"}}},
     {~"tools/call", #{name => ~"structured"}},
     {~"tools/call", #{name => ~"fails"}}, {~"resources/read", #{uri => ~"test://text"}},
     {~"resources/read", #{uri => ~"test://item/7"}},
     {~"prompts/get", #{name => ~"greet", arguments => #{who => ~"you"}}},
     {~"prompts/get", #{name => ~"talk"}}].

%% "The result MUST include a resultType field to indicate the type of the result." "Servers SHOULD
%% include [io.modelcontextprotocol/serverInfo] in every result's _meta."
result_says_its_type_and_server(Config) ->
    [begin
         #{~"resultType" := ~"complete", ~"_meta" := Meta} = result(server(Config), Method, Params),
         #{~"io.modelcontextprotocol/serverInfo" :=
               #{~"name" := ~"test", ~"version" := ~"1.0.0"}} = Meta
     end || {Method, Params} <- requests()],
    %% Also where the result ends a stream.
    #{messages := [#{~"method" := _}, #{~"method" := _}, #{~"method" := _},
                   #{~"result" := #{~"resultType" := ~"complete", ~"_meta" := #{}}}]} =
        call(server(Config), ~"tools/call", #{name => ~"progress"},
             #{meta => #{progressToken => 1}}).

%% "The server replies with its supported protocol versions, capabilities, and identity." "Servers
%% MUST implement it."
discovery_says_versions_capabilities_and_identity(Config) ->
    #{~"supportedVersions" := [~"2026-07-28"], ~"capabilities" := Capabilities,
      ~"instructions" := ~"Call the tools.", ~"_meta" := Meta} = Result =
        result(server(Config), ~"server/discover", #{}),
    #{~"io.modelcontextprotocol/serverInfo" :=
          #{~"name" := ~"test", ~"version" := ~"1.0.0", ~"title" := ~"The test",
            ~"description" := ~"A server to test", ~"websiteUrl" := ~"https://example.com",
            ~"icons" := [#{~"src" := ~"data:image/png;base64,AA=="}]}} = Meta,
    [~"completions", ~"logging", ~"prompts", ~"resources", ~"tools"] =
        lists:sort(maps:keys(Capabilities)),
    [true = is_map(Capability) || _ := Capability <- Capabilities],
    false = is_map_key(~"serverInfo", Result),
    Bare = erlmcp_test_http:start(#{}),
    false = is_map_key(~"instructions", result(Bare, ~"server/discover", #{})),
    erlmcp_test_http:stop(Bare).

%% "Servers that declare the tools capability MUST respond to tools/list requests with the set of
%% tools currently available. This set MAY be empty." So for resources and prompts.
declared_capabilities_are_served(_) ->
    Server = erlmcp_test_http:start(#{}),
    #{~"capabilities" := #{~"tools" := _, ~"resources" := _, ~"prompts" := _} = Declared} =
        result(Server, ~"server/discover", #{}),
    #{~"tools" := []} = result(Server, ~"tools/list", #{}),
    #{~"resources" := []} = result(Server, ~"resources/list", #{}),
    #{~"resourceTemplates" := []} = result(Server, ~"resources/templates/list", #{}),
    #{~"prompts" := []} = result(Server, ~"prompts/list", #{}),
    %% What is not declared is not there.
    false = is_map_key(~"extensions", Declared),
    [#{status := 404, messages := [#{~"error" := #{~"code" := -32601}}]} = call(Server, Method, #{})
     || Method <- [~"tasks/get", ~"skills/list"]],
    erlmcp_test_http:stop(Server).

%% "Servers MUST include caching hints on results with resultType: complete returned by
%% server/discover, tools/list, prompts/list, resources/list, resources/templates/list,
%% resources/read." "Servers MUST provide a ttlMs value that is >= 0."
cacheable_results_say_for_how_long(Config) ->
    [begin
         #{~"ttlMs" := Ttl, ~"cacheScope" := Scope} = result(server(Config), Method, Params),
         true = is_integer(Ttl) andalso Ttl >= 0,
         true = lists:member(Scope, [~"public", ~"private"])
     end || {Method, Params} <- requests(), Method =/= ~"tools/call", Method =/= ~"prompts/get"],
    %% A resource's contents are its handler's: not for everybody unless its definition says so.
    #{~"ttlMs" := 5000, ~"cacheScope" := ~"public"} =
        result(server(Config), ~"resources/read", #{uri => ~"test://text"}),
    #{~"ttlMs" := 0, ~"cacheScope" := ~"private"} =
        result(server(Config), ~"resources/read", #{uri => ~"test://blob"}).

%% "Servers MUST NOT rely on prior requests over the same connection to establish context (e.g.,
%% capabilities, protocol version, client identity)."
requests_stand_alone(Config) ->
    Socket = connect(server(Config)),
    Call = fun(Name, Meta) ->
        {Headers, Body} = message(~"tools/call", #{name => Name}, #{meta => Meta}),
        ok = send(Socket, ~"POST", Headers, Body),
        #{status := 200, messages := Messages} = response(Socket),
        Messages
    end,
    9 = length(Call(~"log", #{~"io.modelcontextprotocol/logLevel" => ~"debug"})),
    1 = length(Call(~"log", #{})),
    4 = length(Call(~"progress", #{progressToken => 1})),
    1 = length(Call(~"progress", #{})),
    Capabilities = #{sampling => #{}},
    Structured = fun([#{~"result" := #{~"structuredContent" := Content}}]) -> Content end,
    #{~"client_capabilities" := #{~"sampling" := #{}}} =
        Structured(Call(~"context",
                        #{~"io.modelcontextprotocol/clientCapabilities" => Capabilities})),
    #{~"client_capabilities" := Empty} = Structured(Call(~"context", #{})),
    0 = map_size(Empty),
    close(Socket).

handler_knows_its_client(Config) ->
    Info = #{name => ~"someone", version => ~"2", title => ~"T"},
    #{messages := [#{~"result" := #{~"structuredContent" := Context}}]} =
        call(server(Config), ~"tools/call", #{name => ~"context"},
             #{meta => #{~"io.modelcontextprotocol/clientInfo" => Info}}),
    #{~"client_info" := #{~"name" := ~"someone", ~"version" := ~"2", ~"title" := ~"T"},
      ~"revision" := ~"2026-07-28", ~"name" := ~"context", ~"method" := ~"tools/call"} = Context.

lists_show_all_fields(Config) ->
    Server = server(Config),
    Common = #{~"title" => ~"A title", ~"description" => ~"A description",
               ~"icons" => [#{~"src" => ~"data:image/png;base64,AA==",
                              ~"mimeType" => ~"image/png", ~"sizes" => [~"1x1"]}],
               ~"_meta" => #{~"com.example/key" => 1}},
    Annotations = #{~"audience" => [~"user"], ~"priority" => 0.5},
    #{~"tools" := [Contents, Structured, List | _]} = result(Server, ~"tools/list", #{}),
    Contents = Common#{~"name" => ~"contents", ~"annotations" => #{~"readOnlyHint" => true},
                       ~"inputSchema" => #{~"type" => ~"object", ~"required" => [~"a"],
                                           ~"properties" => #{~"a" => #{~"type" => ~"string"}}}},
    Structured = Common#{~"name" => ~"structured", ~"inputSchema" => #{~"type" => ~"object",
                                                                              ~"properties" => #{}},
                         ~"outputSchema" =>
                             #{~"type" => ~"object",
                               ~"properties" => #{~"n" => #{~"type" => ~"integer"}}}},
    #{~"outputSchema" := #{~"type" := ~"array"}} = List,
    #{~"resources" := [Text | _]} = result(Server, ~"resources/list", #{}),
    Text = Common#{~"uri" => ~"test://text", ~"name" => ~"text", ~"mimeType" => ~"text/plain",
                   ~"size" => 9, ~"annotations" => Annotations},
    #{~"resourceTemplates" := [Item]} = result(Server, ~"resources/templates/list", #{}),
    Item = Common#{~"uriTemplate" => ~"test://item/{id}", ~"name" => ~"item",
                   ~"mimeType" => ~"text/plain", ~"annotations" => Annotations},
    #{~"prompts" := [Greet | _]} = result(Server, ~"prompts/list", #{}),
    Greet = Common#{~"name" => ~"greet",
                    ~"arguments" => [#{~"name" => ~"who", ~"title" => ~"Who",
                                       ~"description" => ~"Whom to greet", ~"required" => true},
                                     #{~"name" => ~"how"}]}.

%% "Servers SHOULD return tools in a deterministic order (i.e., the same ordering across requests
%% when the underlying set of tools has not changed)."
lists_keep_their_order(_) ->
    Names = [integer_to_binary(N) || N <- [17, 3, 99, 1 | lists:seq(100, 150)]],
    Tools = [#{name => Name, handler => fun(_, _) -> ~"" end} || Name <- Names],
    Server = erlmcp_test_http:start(#{tools => Tools}),
    Listed = fun() ->
        #{~"tools" := List} = result(Server, ~"tools/list", #{}),
        [maps:get(~"name", Tool) || Tool <- List]
    end,
    [Names = Listed() || _ <- lists:seq(1, 3)],
    ok = erlmcp:add(maps:get(pid, Server), tool, #{name => ~"0", handler => fun(_, _) -> ~"" end}),
    true = Listed() =:= Names ++ [~"0"],
    ok = erlmcp:remove(maps:get(pid, Server), tool, ~"3"),
    true = Listed() =:= (Names -- [~"3"]) ++ [~"0"],
    erlmcp_test_http:stop(Server).

%% The set of tools "MAY change over time".
lists_follow_changes(Config) ->
    #{pid := Pid} = Server = server(Config),
    Handler = fun(_, _) -> ~"here" end,
    [begin
         {Error, _, _} = refused(Server, Use, Params),
         -32602 = Error,
         ok = erlmcp:add(Pid, Kind, Definition#{handler => Handler}),
         _ = result(Server, Use, Params),
         true = lists:any(fun(Listed) -> lists:member(Key, maps:values(Listed)) end,
                          maps:get(Member, result(Server, List, #{}))),
         {error, {duplicate, Kind, Key}} = erlmcp:add(Pid, Kind, Definition#{handler => Handler}),
         ok = erlmcp:remove(Pid, Kind, Key),
         {-32602, _, _} = refused(Server, Use, Params),
         false = lists:any(fun(Listed) -> lists:member(Key, maps:values(Listed)) end,
                           maps:get(Member, result(Server, List, #{}))),
         {error, not_found} = erlmcp:remove(Pid, Kind, Key)
     end || {Kind, Key, Definition, List, Member, Use, Params} <-
            [{tool, ~"new", #{name => ~"new"}, ~"tools/list", ~"tools",
              ~"tools/call", #{name => ~"new"}},
             {prompt, ~"new", #{name => ~"new"}, ~"prompts/list", ~"prompts",
              ~"prompts/get", #{name => ~"new"}},
             {resource, ~"new://1", #{uri => ~"new://1", name => ~"n"}, ~"resources/list",
              ~"resources", ~"resources/read", #{uri => ~"new://1"}},
             {resource_template, ~"new://{id}", #{uri_template => ~"new://{id}", name => ~"n"},
              ~"resources/templates/list", ~"resourceTemplates", ~"resources/read",
              #{uri => ~"new://2"}}]].

%% "Invalid cursors SHOULD result in an error with code -32602 (Invalid params)."
unknown_cursor_is_refused(Config) ->
    [ok = names(refused(server(Config), Method, #{cursor => Cursor}), ~"cursor")
     || Method <- [~"tools/list", ~"resources/list", ~"resources/templates/list", ~"prompts/list"],
        Cursor <- [~"", ~"x", 5, null]],
    [false = is_map_key(~"nextCursor", result(server(Config), Method, #{}))
     || Method <- [~"tools/list", ~"resources/list", ~"resources/templates/list", ~"prompts/list"]].

contents() ->
    [#{~"type" => ~"text", ~"text" => ~"plain"},
     #{~"type" => ~"text", ~"text" => ~"text", ~"annotations" => #{~"priority" => 1}},
     #{~"type" => ~"image", ~"data" => base64:encode(<<1, 2>>), ~"mimeType" => ~"image/png"},
     #{~"type" => ~"audio", ~"data" => base64:encode(<<3, 4>>), ~"mimeType" => ~"audio/wav"},
     #{~"type" => ~"resource_link", ~"uri" => ~"test://text", ~"name" => ~"text",
       ~"mimeType" => ~"text/plain"},
     #{~"type" => ~"resource", ~"resource" => #{~"uri" => ~"test://text", ~"text" => ~"some text",
                                                ~"mimeType" => ~"text/plain"}},
     #{~"type" => ~"resource", ~"resource" => #{~"uri" => ~"test://blob",
                                                ~"blob" => base64:encode(<<0, 255, 1>>),
                                                ~"mimeType" => ~"image/png"}}].

%% "Unstructured content is returned in the content field of a result, and can contain multiple
%% content items of different types."
tool_gives_all_kinds_of_content(Config) ->
    Contents = contents(),
    #{~"content" := Contents} = Result =
        result(server(Config), ~"tools/call", #{name => ~"contents", arguments => #{a => ~"b"}}),
    false = maps:get(~"isError", Result, false),
    false = is_map_key(~"structuredContent", Result).

%% "For backwards compatibility, a tool that returns structured content SHOULD also return the
%% serialized JSON in a TextContent block."
tool_gives_structured_content(Config) ->
    [begin
         #{~"structuredContent" := Value, ~"content" := [#{~"type" := ~"text", ~"text" := Text}]} =
             result(server(Config), ~"tools/call", #{name => Name}),
         Value = json:decode(Text)
     end || {Name, Value} <- [{~"structured", #{~"n" => 1}}, {~"list", [1, ~"two", null]},
                              {~"number", 1.5}]].

%% "Tool Execution Errors are reported in tool results with isError: true."
tool_error_is_a_result(Config) ->
    #{~"isError" := true, ~"content" := [#{~"type" := ~"text", ~"text" := ~"on purpose"}]} =
        result(server(Config), ~"tools/call", #{name => ~"fails"}),
    Contents = contents(),
    #{~"isError" := true, ~"content" := Contents} =
        result(server(Config), ~"tools/call", #{name => ~"fails_richly"}).

%% "Protocol Errors indicate issues with the request structure itself: unknown tool, malformed
%% requests. They are returned as standard JSON-RPC errors: code -32602, Unknown tool."
unknown_tool_is_invalid_params(Config) ->
    [ok = names(refused(server(Config), ~"tools/call", #{name => Name}), Name)
     || Name <- [~"no_such", ~"Contents", ~"contents2", ~"tool/contents"]],
    {-32602, _, #{~"data" := #{~"refusal" := 1048, ~"name" := ~"tool_not_found"}}} =
        refused(server(Config), ~"tools/call", #{name => ~"no_such"}).

malformed_call_is_invalid_params(Config) ->
    Server = server(Config),
    [ok = names(refused(Server, Method, Params, #{headers => #{~"mcp-name" => none}}), Field)
     || {Method, Params, Field} <-
            [{~"tools/call", #{}, ~"name"}, {~"tools/call", #{name => 5}, ~"name"},
             {~"tools/call", #{name => null}, ~"name"},
             {~"prompts/get", #{}, ~"name"}, {~"prompts/get", #{name => [~"greet"]}, ~"name"},
             {~"resources/read", #{}, ~"uri"}, {~"resources/read", #{uri => 5}, ~"uri"}]],
    [ok = names(refused(Server, Method, Params), ~"arguments")
     || {Method, Params} <-
            [{~"tools/call", #{name => ~"contents", arguments => []}},
             {~"tools/call", #{name => ~"contents", arguments => null}},
             {~"prompts/get", #{name => ~"greet", arguments => ~"who"}}]].

%% "Binary data MUST be properly encoded."
resource_gives_text_blob_and_several(Config) ->
    [begin
         #{~"contents" := Contents} = result(server(Config), ~"resources/read", #{uri => Uri}),
         Contents = Expected
     end || {Uri, Expected} <-
            [{~"test://text", [#{~"uri" => ~"test://text", ~"mimeType" => ~"text/plain",
                                 ~"text" => ~"some text"}]},
             {~"test://blob", [#{~"uri" => ~"test://blob", ~"mimeType" => ~"image/png",
                                 ~"blob" => base64:encode(<<0, 255, 1>>)}]},
             {~"test://both", [#{~"uri" => ~"test://both", ~"text" => ~"1"},
                               #{~"uri" => ~"test://both", ~"blob" => ~"AA=="}]},
             {~"test://empty", []}]].

template_gives_its_variables(Config) ->
    [begin
         #{~"contents" := [#{~"uri" := Uri, ~"text" := Text}]} =
             result(server(Config), ~"resources/read", #{uri => Uri}),
         {Uri, Text} = {Uri, Expected}
     end || {Uri, Expected} <- [{~"test://item/7", ~"7"}, {~"test://item/a%20b", ~"a b"},
                                %% A resource of that very URI comes before a template.
                                {~"test://item/direct", ~"direct"}]].

%% "If the requested resource does not exist, servers MUST return a JSON-RPC error with code -32602
%% (Invalid Params)." "Servers MUST NOT return an empty contents array for a non-existent resource."
missing_resource_is_invalid_params(Config) ->
    [begin
         {-32602, _, #{~"data" := #{~"uri" := Uri}}} =
             refused(server(Config), ~"resources/read", #{uri => Uri})
     end || Uri <- [~"test://nowhere", ~"test://gone", ~"test://item/none", ~"test://item/1/2",
                    ~"not a uri", ~"", ~"file:///etc/passwd", ~"TEST://TEXT"]].

%% "Servers SHOULD return -32603 for internal errors."
failing_resource_is_an_internal_error(Config) ->
    [#{messages := [#{~"id" := 1, ~"error" := #{~"code" := -32603, ~"message" := Message}}]} =
         call(server(Config), Method, Params)
     || {Method, Params, Message} <-
            [{~"resources/read", #{uri => ~"test://broken"}, ~"disk on fire"},
             {~"prompts/get", #{name => ~"fails"}, ~"on purpose"}]].

prompt_takes_arguments(Config) ->
    Get = fun(Arguments) ->
        result(server(Config), ~"prompts/get", #{name => ~"greet", arguments => Arguments})
    end,
    #{~"description" := ~"A description",
      ~"messages" := [#{~"role" := ~"user",
                        ~"content" := #{~"type" := ~"text", ~"text" := ~"Hello you"}}]} =
        Get(#{who => ~"you"}),
    #{~"messages" := [#{~"content" := #{~"text" := ~"Bye you"}}]} =
        Get(#{who => ~"you", how => ~"Bye", more => ~"ignored"}).

prompt_gives_all_kinds_of_content(Config) ->
    #{~"description" := ~"Made for you",
      ~"messages" := [#{~"role" := ~"user", ~"content" := #{~"text" := ~"Hi"}} | Answers]} =
        result(server(Config), ~"prompts/get", #{name => ~"talk"}),
    true = Answers =:= [#{~"role" => ~"assistant", ~"content" => Content}
                        || Content <- contents()].

%% "Missing required arguments: -32602 (Invalid params)."
missing_prompt_argument_is_named(Config) ->
    [ok = names(refused(server(Config), ~"prompts/get", Params), ~"who")
     || Params <- [#{name => ~"greet"}, #{name => ~"greet", arguments => #{}},
                   #{name => ~"greet", arguments => #{how => ~"Bye"}},
                   #{name => ~"greet", arguments => #{who => 5}}]].

%% GetPromptRequestParams: the values of `arguments` are strings, also for a prompt that declares no
%% arguments.
prompt_arguments_are_strings(Config) ->
    [ok = names(refused(server(Config), ~"prompts/get",
                        #{name => Name, arguments => #{who => ~"you", how => Value}}), ~"how")
     || Name <- [~"greet", ~"talk"], Value <- [5, null, true, [~"Bye"], #{}]].

%% "Invalid prompt name: -32602 (Invalid params)."
unknown_prompt_is_invalid_params(Config) ->
    ok = names(refused(server(Config), ~"prompts/get", #{name => ~"no_such"}), ~"no_such"),
    {-32602, _, #{~"data" := #{~"name" := ~"prompt_not_found"}}} =
        refused(server(Config), ~"prompts/get", #{name => ~"no_such"}).
