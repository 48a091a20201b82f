-module(every_message_is_valid_SUITE).
-moduledoc "Every message that the server sends in a broad exchange is valid in its revision.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([messages_of_2024_11_05/1, messages_of_2025_03_26/1, messages_of_2025_06_18/1,
         messages_of_2025_11_25/1, messages_of_2026_07_28/1, wrong_messages_are_found/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/4, initialize/2, initialize/3, get_stream/2, event/1, close/1,
                           post/3]).
-import(erlmcp_test_schema, [check/3]).

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
    Options = Catalog#{tools := Tools ++ Working, limits => #{call_heap_bytes => 1_000_000}},
    [{server, erlmcp_test_http:start(Options)} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

messages_of_2024_11_05(Config) -> of_session(~"2024-11-05", Config).
messages_of_2025_03_26(Config) -> of_session(~"2025-03-26", Config).
messages_of_2025_06_18(Config) -> of_session(~"2025-06-18", Config).
messages_of_2025_11_25(Config) -> of_session(~"2025-11-25", Config).

of_session(Revision, Config) ->
    #{pid := Pid} = Server = server(Config),
    #{messages := Hello} = initialize(Server, Revision, #{}),
    ok = check(Revision, ~"initialize", Hello),
    Session = initialize(Server, Revision),
    {Stream, {200, _}} = get_stream(Server, Session),
    [begin
         Meta = #{progressToken => ~"token"},
         #{messages := Messages} =
             call(Server, Method, Params#{'_meta' => Meta}, #{session => Session}),
         ok = check(Revision, Method, Messages)
     end || {Method, Params} <- exchange() ++ [{~"logging/setLevel", #{level => ~"debug"}},
                                               {~"logging/setLevel", #{level => ~"loud"}},
                                               {~"ping", #{}},
                                               {~"tools/call", #{name => ~"log"}}]],
    Handler = fun(_, _) -> ~"new" end,
    [begin
         ok = erlmcp:add(Pid, Kind, Definition#{handler => Handler}),
         {event, Message} = event(Stream),
         ok = check(Revision, none, [Message])
     end || {Kind, Definition} <- [{tool, #{name => ~"new"}}, {prompt, #{name => ~"new"}},
                                   {resource, #{uri => ~"new://1", name => ~"new"}}]],
    close(Stream).

messages_of_2026_07_28(Config) ->
    Server = server(Config),
    Revision = ~"2026-07-28",
    Meta = #{progressToken => 5, ~"io.modelcontextprotocol/logLevel" => ~"debug"},
    [begin
         #{messages := Messages} = call(Server, Method, Params, #{meta => Meta}),
         ok = check(Revision, Method, Messages)
     end || {Method, Params} <- exchange() ++ [{~"server/discover", #{}}, {~"ping", #{}},
                                               {~"initialize", #{}}]],
    [begin
         #{messages := [#{~"error" := #{~"code" := Code}}] = Messages} =
             call(Server, ~"tools/list", #{}, Options),
         ok = check(Revision, ~"tools/list", Messages)
     end || {Code, Options} <-
            [{-32020, #{headers => #{~"mcp-protocol-version" => ~"2025-11-25"}}},
             {-32020, #{headers => #{~"mcp-method" => none}}},
             {-32022, #{headers => #{~"mcp-protocol-version" => ~"x"},
                        meta => #{~"io.modelcontextprotocol/protocolVersion" => ~"x"}}},
             {-32602, #{meta => #{~"io.modelcontextprotocol/logLevel" => ~"loud"}}},
             {1014, #{headers => #{~"origin" => ~"null"}}},
             {1024, #{headers => #{~"content-type" => ~"text/html"}}}]],
    [begin
         #{messages := [#{~"error" := _}] = Messages} = post(Server, [], Body),
         ok = check(Revision, none, Messages)
     end || Body <- [~"", ~"{", ~"[]", ~"1", ~'{"jsonrpc":"2.0","id":null,"method":"ping"}']].

%% What is asked in every revision; what it has not is refused, and that is checked too.
exchange() ->
    Tools = [~"contents", ~"structured", ~"list", ~"number", ~"fails", ~"fails_richly", ~"context",
             ~"progress", ~"log", ~"crash", ~"slow", ~"hog", ~"no such"],
    Uris = [~"test://text", ~"test://blob", ~"test://both", ~"test://gone", ~"test://broken",
            ~"test://item/7", ~"test://item/none", ~"no such"],
    [{~"tools/list", #{}}, {~"resources/list", #{}}, {~"resources/templates/list", #{}},
     {~"prompts/list", #{}}, {~"tools/list", #{cursor => ~"x"}}, {~"no/such", #{}},
     {~"tools/call", #{name => 5}}, {~"prompts/get", #{name => ~"greet"}},
     {~"prompts/get", #{name => ~"greet", arguments => #{who => ~"you"}}},
     {~"prompts/get", #{name => ~"talk"}}, {~"prompts/get", #{name => ~"fails"}},
     {~"prompts/get", #{name => ~"no such"}}]
    ++ [{~"tools/call", #{name => Name}} || Name <- Tools]
    ++ [{~"resources/read", #{uri => Uri}} || Uri <- Uris].

%% A check that finds nothing wrong in anything is none.
wrong_messages_are_found(_) ->
    Modern = ~"2026-07-28",
    Response = fun(Result) -> #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"result" => Result} end,
    Server = #{~"io.modelcontextprotocol/serverInfo" => #{~"name" => ~"n", ~"version" => ~"1"}},
    Complete = #{~"resultType" => ~"complete", ~"_meta" => Server},
    Listed = Complete#{~"ttlMs" => 0, ~"cacheScope" => ~"public",
                       ~"tools" => [#{~"name" => ~"t", ~"inputSchema" => #{~"type" => ~"object"}}]},
    ok = check(Modern, ~"tools/list", [Response(Listed)]),
    Error = #{~"code" => -32602, ~"message" => ~"m", ~"data" => #{}},
    Failed = #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"error" => Error},
    ok = check(Modern, ~"tools/list", [Failed]),
    [{not_valid, _} = {element(1, found(Revision, Method, Message)), Message}
     || {Revision, Method, Message} <-
            [{Modern, ~"tools/list", maps:remove(~"jsonrpc", Response(Listed))},
             {Modern, ~"tools/list", (Response(Listed))#{~"id" := 2}},
             {Modern, ~"tools/list", (Response(Listed))#{~"id" := ~"1"}},
             {Modern, ~"tools/list", (Response(Listed))#{~"error" => Error}},
             {Modern, ~"tools/list", Response(maps:remove(~"resultType", Listed))},
             {Modern, ~"tools/list", Response(maps:remove(~"ttlMs", Listed))},
             {Modern, ~"tools/list", Response(Listed#{~"ttlMs" := -1})},
             {Modern, ~"tools/list", Response(Listed#{~"cacheScope" := ~"all"})},
             {Modern, ~"tools/list", Response(Listed#{~"tools" := #{}})},
             {Modern, ~"tools/list", Response(Listed#{~"tools" := [#{~"name" => ~"t"}]})},
             {Modern, ~"tools/list", maps:remove(~"id", Failed)},
             {Modern, ~"tools/list", Failed#{~"error" := Error#{~"code" := 1.5}}},
             {Modern, ~"tools/list", Failed#{~"error" := Error#{~"code" := -32002}}},
             {Modern, ~"tools/list", Failed#{~"error" := Error#{~"code" := -32050}}},
             {~"2025-11-25", ~"tools/list", Failed#{~"error" := Error#{~"code" := -32020}}},
             {~"2024-11-05", ~"tools/call",
              Response(#{~"content" => [#{~"type" => ~"audio", ~"data" => ~"AA==",
                                          ~"mimeType" => ~"audio/wav"}]})},
             {~"2025-03-26", ~"tools/call", Response(#{~"content" => [#{~"type" => ~"text"}]})},
             {~"2025-03-26", ~"tools/call",
              Response(#{~"content" => [#{~"type" => ~"image", ~"data" => ~"A A",
                                          ~"mimeType" => ~"image/png"}]})},
             {~"2025-11-25", ~"tools/call",
              Response(#{~"content" => [], ~"structuredContent" => [1]})},
             {~"2025-11-25", ~"resources/read", Response(#{~"contents" => [#{~"uri" => ~"a:b"}]})},
             {~"2025-11-25", ~"prompts/get",
              Response(#{~"messages" => [#{~"role" => ~"system",
                                           ~"content" => #{~"type" => ~"text",
                                                           ~"text" => ~"t"}}]})}]].

found(Revision, Method, Message) ->
    try check(Revision, Method, [Message]) of
        ok -> {nothing, Revision, Method, Message}
    catch
        error:Found -> Found
    end.
