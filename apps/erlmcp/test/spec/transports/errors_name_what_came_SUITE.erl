-module(errors_name_what_came_SUITE).
-moduledoc """
"An error names the field, what was expected and what came" (docs/architecture.md), of what a server
refuses on its sockets. What came is cut, and shown so that it does nothing to who reads it.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([headers_are_told/1, mirrored_headers_are_told/1, methods_and_paths_are_told/1,
         members_are_told/1, members_of_sessions_are_told/1, messages_are_told/1,
         bytes_are_told/1, hostile_headers_are_shown/1, hostile_members_are_shown/1,
         hostile_names_are_shown/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [connect/1, write/2, close/1, response/1, call/4, post/3, message/3,
                           initialize/2]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [headers_are_told, mirrored_headers_are_told, methods_and_paths_are_told, members_are_told,
     members_of_sessions_are_told, messages_are_told, bytes_are_told, hostile_headers_are_shown,
     hostile_members_are_shown, hostile_names_are_shown].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    Mirrored = #{name => ~"mirrored", handler => fun(_, _) -> ~"" end,
                 input_schema => #{type => object, properties => #{
                     region => #{type => string, 'x-mcp-header' => ~"Region"}}}},
    Prompt = #{name => ~"asks", arguments => [#{name => ~"a"}], handler => fun(_, _) -> ~"" end},
    #{tools := Tools, prompts := Prompts} = Definitions = erlmcp_test_http:definitions(self()),
    Skill = #{name => ~"refunds", description => ~"Refunds"},
    [{server, erlmcp_test_http:start(Definitions#{tools => [Mirrored | Tools], skills => [Skill],
                                                  prompts => [Prompt | Prompts]})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

headers_are_told(Config) ->
    [{Name, Told} = {Name, refused(call(server(Config), ~"tools/list", #{},
                                        #{headers => #{Name => Value}}))}
     || {Name, Value, Told} <- [
         {~"content-type", ~"text/plain; charset=utf-8",
          {415, 1024, <<"Content-Type: expected application/json, "
                        "got \"text/plain; charset=utf-8\"">>}},
         {~"content-type", none,
          {415, 1024, ~"Content-Type: expected application/json, got no such header"}},
         {~"content-type", ~"json",
          {415, 1024, ~B'Content-Type: expected application/json, got "json"'}},
         {~"content-encoding", ~"gzip",
          {415, 1070, ~B'Content-Encoding: expected none, got "gzip"'}},
         {~"accept", ~"text/html",
          {406, 1025, ~B'Accept: expected application/json, text/event-stream, got "text/html"'}},
         {~"accept", ~"json",
          {400, 1025, ~B'Accept: expected a list of media types, got "json"'}},
         {~"host", ~"evil.example.com",
          {403, 1014, ~B'Host: expected a name of this server, got "evil.example.com"'}},
         {~"origin", ~"http://evil.example.com",
          {403, 1014, <<"Origin: expected one that is allowed here, "
                      "got \"http://evil.example.com\"">>}},
         {~"mcp-protocol-version", ~"1999-01-01",
          {400, -32020, <<"MCP-Protocol-Version: the header says \"1999-01-01\", "
                        "_meta says \"2026-07-28\"">>}},
         {~"mcp-method", none,
          {400, -32020, <<"Mcp-Method: expected \"tools/list\", as the body's method, "
                        "got no such header">>}},
         {~"mcp-method", ~"prompts/list",
          {400, -32020, <<"Mcp-Method: expected \"tools/list\", as the body's method, "
                        "got \"prompts/list\"">>}}]],
    Json = #{headers => #{~"accept" => ~"application/json"}},
    {406, 1025, ~B'Accept: expected text/event-stream, got "application/json"'} =
        refused(call(server(Config), ~"subscriptions/listen", #{notifications => #{}}, Json)).

mirrored_headers_are_told(Config) ->
    [{Value, Told} = {Value, refused(call(server(Config), ~"tools/call", #{name => ~"echo"},
                                          #{headers => #{~"mcp-name" => Value}}))}
     || {Value, Told} <- [
         {none, {400, -32020, <<"Mcp-Name: expected \"echo\", as the body's params.name, "
                              "got no such header">>}},
         {~"add", {400, -32020, <<"Mcp-Name: expected \"echo\", as the body's params.name, "
                                "got \"add\"">>}},
         %% Decoded, as it was compared.
         {~"=?base64?Z3LDtsOfZQ==?=",
          {400, -32020, ~B|Mcp-Name: expected "echo", as the body's params.name, got "größe"|}},
         {~"=?base64?Z3L?=",
          {400, -32020, <<"Mcp-Name: expected printable ASCII or =?base64?...?=, "
                        "got \"=?base64?Z3L?=\"">>}}]],
    Params = #{name => ~"mirrored", arguments => #{region => ~"eu"}},
    [{Value, Told} = {Value, refused(call(server(Config), ~"tools/call", Params,
                                          #{headers => #{~"mcp-param-region" => Value}}))}
     || {Value, Told} <- [
         {none, {400, -32020, <<"mcp-param-region: expected \"eu\", as the argument region, "
                              "got no such header">>}},
         {~"us", {400, -32020, <<"mcp-param-region: expected \"eu\", as the argument region, "
                               "got \"us\"">>}},
         {~"=?base64?Z3L?=",
          {400, -32020, <<"mcp-param-region: expected printable ASCII or =?base64?...?=, "
                        "got \"=?base64?Z3L?=\"">>}}]],
    {400, -32020, <<"mcp-param-region: expected no such header, as the argument region is not "
                  "there, got \"eu\"">>} =
        refused(call(server(Config), ~"tools/call", #{name => ~"mirrored"},
                     #{headers => #{~"mcp-param-region" => ~"eu"}})).

methods_and_paths_are_told(Config) ->
    [{Method, Told} = {Method, refused(request(server(Config), Method, ~"/mcp", Body))}
     || {Method, Body, Told} <- [
         {~"PUT", ~"", {405, 1066, <<"this endpoint is for POST; GET and DELETE are for sessions; "
                                   "got \"PUT\"">>}},
         {~"GET", ~"{}", {400, 1066, ~"GET: expected no body, got one"}}]],
    {404, 1023, ~B|the endpoint's path is /mcp, not "/elsewhere"|} =
        refused(request(server(Config), ~"POST", ~"/elsewhere", ~"{}")),
    {404, -32601, ~B'method not found in 2026-07-28: "no/such"'} =
        refused(call(server(Config), ~"no/such", #{}, #{})).

request(Server, Method, Path, Body) ->
    Socket = connect(Server),
    ok = write(Socket, [Method, $\s, Path, ~" HTTP/1.1\r\nHost: localhost\r\nContent-Length: ",
                        integer_to_binary(byte_size(Body)), ~"\r\n\r\n", Body]),
    Reply = response(Socket),
    close(Socket),
    Reply.

members_are_told(Config) ->
    Key = fun(Name) -> <<"io.modelcontextprotocol/", Name/binary>> end,
    Levels = ~"debug, info, notice, warning, error, critical, alert or emergency",
    [{Meta, {400, -32602, Told}} = {Meta, refused(call(server(Config), ~"tools/list", #{},
                                                       #{meta => Meta}))}
     || {Meta, Told} <- [
         {#{Key(~"logLevel") => ~"loud"},
          <<"_meta.io.modelcontextprotocol/logLevel: expected ", Levels/binary,
            ", got the string \"loud\"">>},
         {#{Key(~"clientInfo") => ~"me"},
          <<"_meta.io.modelcontextprotocol/clientInfo: expected an object, "
          "got the string \"me\"">>},
         {#{Key(~"clientCapabilities") => []},
          <<"_meta.io.modelcontextprotocol/clientCapabilities: expected an object, "
          "got an empty array">>},
         {#{Key(~"protocolVersion") => 20260728},
          <<"_meta.io.modelcontextprotocol/protocolVersion: expected a string, "
          "got the number 20260728">>},
         {#{~"progressToken" => null},
          ~"_meta.progressToken: expected a string or an integer, got null"}]],
    [{Told, {400, -32602, Told}} = {Told, refused(call(server(Config), Method, Params, #{}))}
     || {Method, Params, Told} <- [
         {~"tools/call", #{name => ~"echo", arguments => [1, 2]},
          ~"arguments: expected an object, got an array of 2 items"},
         {~"tools/call", #{name => 7}, ~"name: expected a string, got the number 7"},
         {~"tools/list", #{cursor => true}, ~"cursor: expected a string, got true"},
         {~"prompts/get", #{name => ~"asks", arguments => #{a => 1}},
          ~"arguments.a: expected a string, got the number 1"},
         {~"completion/complete", #{ref => #{type => ~"ref/tool"},
                                    argument => #{name => ~"a", value => ~""}},
          ~B'ref.type: expected ref/prompt or ref/resource, got the string "ref/tool"'},
         {~"completion/complete", #{ref => #{type => ~"ref/prompt"},
                                    argument => #{name => ~"a", value => ~""}},
          ~"ref.name: expected a string, got nothing"},
         {~"subscriptions/listen", #{notifications => #{toolsListChanged => ~"yes"}},
          ~B'notifications.toolsListChanged: expected a boolean, got the string "yes"'},
         {~"subscriptions/listen", #{notifications => #{resourceSubscriptions => [~"a:b", 1]}},
          ~"resourceSubscriptions: each item: expected a string, got the number 1"}]],
    Unsupported = #{meta => #{Key(~"protocolVersion") => ~"1999-01-01"},
                    headers => #{~"mcp-protocol-version" => ~"1999-01-01"}},
    {400, -32022, <<"unsupported protocol version \"1999-01-01\"; supported: ", _/binary>>} =
        refused(call(server(Config), ~"tools/list", #{}, Unsupported)),
    %% Who has only the header wrong is told of the header.
    {Headers, _} = message(~"tools/list", #{}, Unsupported),
    {400, -32602, ~B'params._meta: missing, and MCP-Protocol-Version says "1999-01-01"'} =
        refused(post(server(Config), Headers, rpc(#{id => 1, method => ~"tools/list"}))).

members_of_sessions_are_told(Config) ->
    Session = #{session => initialize(server(Config), ~"2025-11-25")},
    Levels = ~"level: expected debug, info, notice, warning, error, critical, alert or emergency",
    [{Params, {200, -32602, Told}} =
         {Params, refused(call(server(Config), ~"logging/setLevel", Params, Session))}
     || {Params, Came} <- [{#{level => ~"loud"}, ~B', got the string "loud"'},
                           {#{level => 3}, ~", got the number 3"},
                           {#{}, ~", got nothing"}],
        Told <- [<<Levels/binary, Came/binary>>]],
    {400, -32602, ~"capabilities: expected an object, got true"} =
        refused(post(server(Config), headers(),
                     rpc(#{id => 1, method => ~"initialize",
                           params => #{protocolVersion => ~"2025-11-25", capabilities => true,
                                       clientInfo => #{name => ~"me", version => ~"1"}}}))),
    {400, -32600, <<"expected initialize first, or the protocol fields of 2026-07-28 in "
                  "params._meta, got \"tools/list\" without them">>} =
        refused(post(server(Config), headers(), rpc(#{id => 1, method => ~"tools/list"}))).

messages_are_told(Config) ->
    [{Body, {400, Code, Told}} = {Body, refused(post(server(Config), headers(), Body))}
     || {Body, Code, Told} <- [
         {~"7", -32600, ~"expected a JSON-RPC message object, got the number 7"},
         {~B'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600,
          ~B'jsonrpc: expected "2.0", got the string "1.0"'},
         {~B'{"id":1,"method":"ping"}', -32600, ~B'jsonrpc: expected "2.0", got nothing'},
         {~B'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600,
          ~"id: expected a string or an integer, got null"},
         {~B'{"jsonrpc":"2.0","id":1,"method":{}}', -32600,
          ~"method: expected a string, got an empty object"},
         {~B'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}', -32600,
          <<"expected a method, or an id with either a result or an error, "
          "got id, result and error">>},
         {~B'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', -32602,
          ~"params: expected an object, got an array of 1 item"}]].

bytes_are_told(Config) ->
    [{Body, {400, -32700, Told}} = {Body, refused(post(server(Config), headers(), Body))}
     || {Body, Told} <- [
         {~B'{"id": x}', ~"expected JSON in UTF-8, got the byte 120 after 7 bytes"},
         {<<"{\"id\": \"", 255, "\"}">>,
          ~"expected JSON in UTF-8, got the byte 255 after 8 bytes"},
         {~B'{"id": ', ~"expected JSON in UTF-8, got an incomplete value"},
         {~"{} {}", ~"expected JSON in UTF-8, got more bytes after the value"},
         {~B'{"id":1,"id":2}', ~B'an object has the key "id" twice'}]].

%% Bytes that are no text, and more of them than help.
hostile_headers_are_shown(Config) ->
    Long = binary:copy(~"a", 4000),
    [{415, 1024, <<"Content-Type: expected application/json, got \"", Shown/binary>>} =
         refused(call(server(Config), ~"tools/list", #{},
                      #{headers => #{~"content-type" => Hostile}}))
     || {Hostile, Shown} <- [{<<"text/plain; a=\"\e[2J", 16#e9, 16#ff, "\"">>,
                              ~B'text/plain; a="?[2J??""'},
                             {Long, <<(binary:part(Long, 0, 64))/binary, "...\"">>}]].

hostile_members_are_shown(Config) ->
    Session = #{session => initialize(server(Config), ~"2025-11-25")},
    [begin
         {200, -32602, Message} =
             refused(call(server(Config), ~"logging/setLevel", #{level => Hostile}, Session)),
         [_, Shown] = binary:split(Message, ~", got the string ")
     end || {Hostile, Shown} <- [
         {~"größe", ~B'"größe"'},
         {~"\e[2J", ~B'"\u001B[2J"'},
         %% The terminal's commands of eight bits, and what turns a text around.
         {<<16#9b/utf8, "2J">>, ~B'"\u009B2J"'},
         {<<"a", 16#202e/utf8, "b">>, ~B'"a\u202Eb"'},
         {<<"a\n", 16#7f>>, ~B'"a\n\u007F"'},
         %% Fillers and joiners that show nothing.
         {<<"a", 16#3164/utf8, 16#34f/utf8, 16#115f/utf8, 16#fe0f/utf8>>,
          ~B'"a\u3164\u034F\u115F\uFE0F"'},
         {binary:copy(~"ö", 3000), <<$", (binary:copy(~"ö", 30))/binary, "...\"">>}]].

%% Names are told as they are, but for those that are too long or do something.
hostile_names_are_shown(Config) ->
    Session = #{session => initialize(server(Config), ~"2025-11-25")},
    Named = fun(Name) ->
        [{~"tools/call", #{name => Name}, ~"unknown tool: ", ~""},
         {~"prompts/get", #{name => Name}, ~"unknown prompt: ", ~""},
         {~"prompts/get", #{name => ~"asks", arguments => #{a => ~"", Name => 1}},
          ~"arguments.", ~": expected a string, got the number 1"},
         {~"resources/read", #{uri => Name}, ~"no resource has the URI ", ~""},
         {~"skills/get", #{uri => Name}, ~"no skill has the URI ", ~""},
         {~"resources/directory/read", #{uri => Name}, ~"no directory has the URI ", ~""},
         {~"completion/complete", #{ref => #{type => ~"ref/prompt", name => ~"asks"},
                                    argument => #{name => ~"a", value => ~""},
                                    context => #{arguments => #{Name => 1}}},
          ~"context.arguments.", ~": expected a string, got the number 1"}]
    end,
    [{Method, Told} = {Method, element(3, refused(call(server(Config), Method, Params, Session)))}
     || {Hostile, Shown} <- [
            {~"größe", ~"größe"},
            {~"a\nb", ~B'"a\nb"'},
            {<<"a", 16#202e/utf8, 16#61c/utf8, 16#e0041/utf8>>, ~B'"a\u202E\u061C\uDB40\uDC41"'},
            {<<"a", 16#7f>>, ~B'"a\u007F"'},
            {<<"a", 16#3164/utf8, 16#fe00/utf8>>, ~B'"a\u3164\uFE00"'},
            {binary:copy(~"n", 100_000), <<(binary:copy(~"n", 200))/binary, "...">>}],
        {Method, Params, Before, Behind} <- Named(Hostile),
        Told <- [<<Before/binary, Shown/binary, Behind/binary>>]].

headers() ->
    [{~"content-type", ~"application/json"}, {~"accept", ~"application/json, text/event-stream"}].

rpc(Message) ->
    iolist_to_binary(json:encode(Message#{jsonrpc => ~"2.0"})).

%% The status, the code and the sentence.
refused(#{status := Status, messages := [#{~"error" := Error}]}) ->
    #{~"code" := Code, ~"message" := Message} = Error,
    {Status, Code, Message}.
