-module(spec_2026_07_28_messages_SUITE).
-moduledoc "Specification 2026-07-28, \"Base protocol / Messages\", over HTTP.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([notification_is_accepted_without_body/1, response_is_ignored/1, id_is_echoed/1,
         id_of_another_type_is_refused/1, id_is_bounded/1, unreadable_json_is_refused/1,
         no_message_is_refused_by_field/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/4, post/3, message/3]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

start(Options) ->
    erlmcp_test_http:start(maps:merge(erlmcp_test_http:definitions(self()), Options)).

%% "If the body is a JSON-RPC notification: if the server accepts it, the server MUST return HTTP
%% status code 202 Accepted with no body."
notification_is_accepted_without_body(Config) ->
    Server = server(Config),
    [#{status := 202, body := <<>>, headers := #{~"content-length" := ~"0"}} = Reply
     || {Method, Params} <- [{~"notifications/cancelled", #{requestId => 1}},
                             {~"notifications/cancelled", #{}},
                             {~"notifications/nobody/knows", #{}}],
        Reply <- [call(Server, Method, Params, #{id => none}),
                  %% "header requirements for notification POSTs are not defined"
                  call(Server, Method, Params,
                       #{id => none, headers => #{~"mcp-protocol-version" => none,
                                                  ~"mcp-method" => none}})]].

%% "The client MUST NOT send JSON-RPC responses." One that does is ignored.
response_is_ignored(Config) ->
    Headers = [{~"content-type", ~"application/json"}],
    [#{status := 202, body := <<>>} = post(server(Config), Headers, Body)
     || Body <- [~'{"jsonrpc":"2.0","id":1,"result":{}}',
                 ~'{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"x"}}']].

%% "Result responses MUST include the same ID as the request they correspond to." "Error responses
%% MUST include the same ID."
id_is_echoed(Config) ->
    Server = server(Config),
    [begin
         #{messages := [#{~"id" := Id, ~"result" := _}]} =
             call(Server, ~"tools/list", #{}, #{id => Id}),
         #{messages := [#{~"id" := Id, ~"result" := _}]} =
             call(Server, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}},
                  #{id => Id}),
         #{messages := [#{~"id" := Id, ~"error" := _}]} =
             call(Server, ~"tools/call", #{name => ~"no such"}, #{id => Id}),
         #{messages := [#{~"id" := Id, ~"error" := _}]} =
             call(Server, ~"tools/call", #{name => ~"crash"}, #{id => Id})
     end || Id <- [~"a", ~"", ~"1", ~"\"\\\n\t", ~"käse 世界 🧀", binary:copy(~"x", 1000),
                   0, 1, -1, 9007199254740993, -9007199254740993, 1 bsl 200]].

%% "Requests MUST include a string or integer ID. Unlike base JSON-RPC, the ID MUST NOT be null."
id_of_another_type_is_refused(Config) ->
    [begin
         #{status := 400, messages := [#{~"error" := #{~"code" := -32600}} = Error]} =
             call(server(Config), ~"tools/list", #{}, #{id => Id}),
         false = is_map_key(~"id", Error)
     end || Id <- [null, 1.5, 1.0, true, [1], #{a => 1}]].

%% Bounded refusal: of a request in either era, before the tool is called.
id_is_bounded(Config) ->
    Server = server(Config),
    Longest = binary:copy(~"x", 1024),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    [begin
         Call = fun(Id) ->
             call(Server, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}},
                  Options#{id => Id})
         end,
         #{status := 200, messages := [#{~"id" := Longest, ~"result" := _}]} = Call(Longest),
         TooLong = <<Longest/binary, "x">>,
         #{status := Status, messages := [#{~"id" := TooLong, ~"error" := Error}]} = Call(TooLong),
         #{~"code" := -32600, ~"data" := #{~"limit" := 1024, ~"observed" := 1025},
           ~"message" := ~"id: expected at most 1024 bytes, got 1025"} = Error
     end || {Options, Status} <- [{#{}, 400}, {#{session => Session}, 200}]].

%% JSON-RPC 2.0: "-32700 Parse error: Invalid JSON was received by the server." "Error responses
%% MUST include the same ID [...] except in error cases where the ID could not be read."
unreadable_json_is_refused(Config) ->
    Server = server(Config),
    {Headers, Good} = message(~"tools/list", #{}, #{}),
    Bodies = [~"", ~" ", ~"{", ~"nonsense", ~"{\"jsonrpc\":\"2.0\",}", ~"{'a':1}",
              <<Good/binary, "x">>, <<Good/binary, Good/binary>>, <<Good/binary, "\n{}">>,
              ~'{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/list"}',
              ~'{"jsonrpc":"2.0","id":1,"method":"tools/list","method":"tools/list"}',
              ~'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":{"b":1,"b":1}}}',
              <<"{\"jsonrpc\":\"2.0\",\"id\":\"", 16#ff, 16#fe, "\",\"method\":\"ping\"}">>,
              <<"{\"jsonrpc\":\"2.0\",\"id\":\"", 16#c0, 16#80, "\",\"method\":\"ping\"}">>,
              <<"{\"jsonrpc\":\"2.0\",\"id\":\"", 16#ed, 16#a0, 16#80, "\",\"method\":\"ping\"}">>,
              ~'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}',
              ~'{"jsonrpc":"2.0","id":NaN,"method":"ping"}',
              ~'{"jsonrpc":"2.0","id":01,"method":"ping"}',
              [~'{"jsonrpc":"2.0","method":"ping","id":', binary:copy(~"9", 100_000), ~"}"],
              unicode:characters_to_binary(Good, utf8, utf16)],
    [begin
         {_, #{status := 400, headers := #{~"content-type" := ~"application/json"},
               messages := [#{~"error" := #{~"code" := -32700}} = Error]}} =
             {Body, post(Server, Headers, Body)},
         false = is_map_key(~"id", Error)
     end || Body <- Bodies].

%% "The body of the HTTP POST MUST be a single JSON-RPC request or notification."
no_message_is_refused_by_field(Config) ->
    Server = server(Config),
    {Headers, Good} = message(~"tools/list", #{}, #{}),
    [begin
         #{status := 400, messages := [#{~"error" := #{~"code" := Code} = Error} = Message]} =
             post(Server, Headers, Body),
         {_, true} = {Error, names(Error, Named)},
         Id = maps:get(~"id", Message, none)
     end || {Body, Code, Named, Id} <-
            [{~'{"id":1,"method":"tools/list"}', -32600, ~"jsonrpc", 1},
             {~'{"jsonrpc":"1.0","id":1,"method":"tools/list"}', -32600, ~"jsonrpc", 1},
             {~'{"jsonrpc":2.0,"id":1,"method":"tools/list"}', -32600, ~"jsonrpc", 1},
             {~'{"jsonrpc":"2.0","id":1,"method":5}', -32600, ~"method", 1},
             {~'{"jsonrpc":"2.0","id":1}', -32600, ~"method", 1},
             {~'{"jsonrpc":"2.0","id":1,"result":1,"error":1}', -32600, ~"result", 1},
             {~'{"jsonrpc":"2.0","id":1,"method":"x","params":[]}', -32602, ~"params", 1},
             {~'{"jsonrpc":"2.0","id":1,"method":"x","params":null}', -32602, ~"params", 1},
             {~"[]", -32600, ~"array", none}, {~"5", -32600, ~"object", none},
             {~'"tools/list"', -32600, ~"object", none}, {~"null", -32600, ~"object", none},
             {[~"[", Good, ~"]"], -32600, ~"batch", none},
             {[~"[", Good, ~",", Good, ~"]"], -32600, ~"batch", none}]].

names(#{~"message" := Message}, Field) ->
    string:find(Message, Field) =/= nomatch.
