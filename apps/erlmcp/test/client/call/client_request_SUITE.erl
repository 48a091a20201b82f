-module(client_request_SUITE).
-moduledoc """
What a client writes into a message: the `_meta` and the headers of each era, and nothing of the
other. A server refuses a request that lacks them, or takes it for another one.
""".

-export([suite/0, all/0]).
-export([stateless_requests_say_who_asks/1, requests_of_a_session_do_not/1, own_meta_is_kept/1,
         headers_repeat_the_request/1, headers_mirror_arguments/1, notifications_have_no_meta/1,
         answers_are_results_or_errors/1, sessions_begin_with_a_declaration/1]).

-define(INFO, #{~"name" => ~"test", ~"version" => ~"1"}).
-define(CAPABILITIES, #{~"roots" => #{}}).
-define(IDENTITY, #{info => ?INFO, capabilities => ?CAPABILITIES}).
-define(META, ~"io.modelcontextprotocol/").
-define(SESSIONS, ['2024-11-05', '2025-03-26', '2025-06-18', '2025-11-25']).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [stateless_requests_say_who_asks, requests_of_a_session_do_not, own_meta_is_kept,
     headers_repeat_the_request, headers_mirror_arguments, notifications_have_no_meta,
     answers_are_results_or_errors, sessions_begin_with_a_declaration].

request(Request, Extra, Revision) ->
    {Message, Headers} = erlmcp_client_request:request(7, Request, Extra, {Revision, ?IDENTITY}),
    {json:decode(iolist_to_binary(Message)),
     [{Name, iolist_to_binary(Value)} || {Name, Value} <- Headers]}.

of_meta(Name) -> <<?META/binary, Name/binary>>.

who() ->
    #{of_meta(~"protocolVersion") => ~"2026-07-28", of_meta(~"clientInfo") => ?INFO,
      of_meta(~"clientCapabilities") => ?CAPABILITIES}.

stateless_requests_say_who_asks(_) ->
    Who = who(),
    [begin
         {#{~"jsonrpc" := ~"2.0", ~"id" := 7, ~"method" := ~"tools/call",
            ~"params" := #{~"name" := ~"t", ~"_meta" := Meta}}, _} =
             request({~"tools/call", #{~"name" => ~"t"}}, Extra, '2026-07-28'),
         {Extra, Meta} = {Extra, maps:merge(Who, More)}
     end || {Extra, More} <- [
                {#{}, #{}}, {#{token => 7}, #{~"progressToken" => 7}},
                {#{log_level => ~"debug"}, #{of_meta(~"logLevel") => ~"debug"}},
                {#{token => ~"t", log_level => ~"info"},
                 #{~"progressToken" => ~"t", of_meta(~"logLevel") => ~"info"}}]].

%% The handshake has said it. A level is set by a request of its own there.
requests_of_a_session_do_not(_) ->
    [begin
         {#{~"params" := Params}, _} = request({~"tools/list", #{~"cursor" => ~"c"}}, Extra,
                                               Revision),
         {Revision, Params} = {Revision, maps:merge(#{~"cursor" => ~"c"}, More)}
     end || Revision <- ?SESSIONS,
            {Extra, More} <- [{#{}, #{}}, {#{log_level => ~"debug"}, #{}},
                              {#{token => 7}, #{~"_meta" => #{~"progressToken" => 7}}}]].

%% Those of the parameters go before those of the option. Nobody says that he is another client.
own_meta_is_kept(_) ->
    Forged = of_meta(~"clientInfo"),
    {#{~"params" := #{~"_meta" := Meta}}, _} =
        request({~"tools/list", #{~"_meta" => #{~"a" => 1, ~"b" => 2, Forged => 3}}},
                #{meta => #{~"b" => 4, ~"c" => 5}}, '2026-07-28'),
    Expected = maps:merge(#{~"a" => 1, ~"b" => 2, ~"c" => 5}, who()),
    Expected = Meta,
    {#{~"params" := #{~"_meta" := #{~"b" := 4, ~"progressToken" := 7} = Two}}, _} =
        request({~"tools/list", #{}}, #{meta => #{~"b" => 4}, token => 7}, '2025-11-25'),
    2 = map_size(Two).

headers_repeat_the_request(_) ->
    [begin
         {_, Headers} = request({Method, Params}, #{}, Revision),
         {Method, Revision, Headers} = {Method, Revision, Expected}
     end || {Method, Params, Revision, Expected} <- [
                {~"tools/call", #{~"name" => ~"t"}, '2026-07-28',
                 [{~"mcp-protocol-version", ~"2026-07-28"}, {~"mcp-method", ~"tools/call"},
                  {~"mcp-name", ~"t"}]},
                {~"tools/list", #{}, '2026-07-28',
                 [{~"mcp-protocol-version", ~"2026-07-28"}, {~"mcp-method", ~"tools/list"}]},
                {~"tools/call", #{~"name" => ~"t"}, '2025-11-25',
                 [{~"mcp-protocol-version", ~"2025-11-25"}]},
                {~"initialize", #{}, '2025-11-25', []}]].

%% As they stand in the body, where an atom is a string.
headers_mirror_arguments(_) ->
    {ok, Declared} = erlmcp_header:declared(
        #{~"properties" => #{~"region" => #{~"type" => ~"string", ~"x-mcp-header" => ~"Region"}}}),
    Mirrored = fun(Params, Revision) ->
        {_, Headers} = request({~"tools/call", Params#{~"name" => ~"t"}},
                               #{declarations => Declared}, Revision),
        [Value || {~"mcp-param-region", Value} <- Headers]
    end,
    [~"eu"] = Mirrored(#{~"arguments" => #{region => eu}}, '2026-07-28'),
    [] = Mirrored(#{~"arguments" => #{other => eu}}, '2026-07-28'),
    [] = Mirrored(#{}, '2026-07-28'),
    [] = Mirrored(#{~"arguments" => #{region => eu}}, '2025-11-25').

notifications_have_no_meta(_) ->
    [begin
         {Message, Headers} =
             erlmcp_client_request:notification(~"notifications/x", #{~"a" => 1}, Revision),
         #{~"jsonrpc" := ~"2.0", ~"method" := ~"notifications/x", ~"params" := #{~"a" := 1}} =
             Sent = json:decode(iolist_to_binary(Message)),
         3 = map_size(Sent),
         {Revision, Expected} = {Revision, [{Name, iolist_to_binary(Value)}
                                            || {Name, Value} <- Headers]}
     end || {Revision, Expected} <- [
                {'2026-07-28', [{~"mcp-protocol-version", ~"2026-07-28"},
                                {~"mcp-method", ~"notifications/x"}]},
                {'2025-06-18', [{~"mcp-protocol-version", ~"2025-06-18"}]}]].

answers_are_results_or_errors(_) ->
    [begin
         {Message, [{~"mcp-protocol-version", ~"2025-11-25"}]} =
             erlmcp_client_request:response(~"q", Answer, '2025-11-25'),
         Expected = json:decode(iolist_to_binary(Message))
     end || {Answer, Expected} <- [
                {{ok, #{~"roots" => []}},
                 #{~"jsonrpc" => ~"2.0", ~"id" => ~"q", ~"result" => #{~"roots" => []}}},
                {{error, -32603, ~"why"},
                 #{~"jsonrpc" => ~"2.0", ~"id" => ~"q",
                   ~"error" => #{~"code" => -32603, ~"message" => ~"why"}}}]].

%% Changes of the roots are announced in sessions only, unless the client says that they are not.
sessions_begin_with_a_declaration(_) ->
    Info = ?INFO,
    [#{~"protocolVersion" := ~"2025-06-18", ~"clientInfo" := Info,
       ~"capabilities" := Declared} =
         erlmcp_client_request:initialize('2025-06-18', #{info => Info,
                                                          capabilities => Capabilities})
     || {Capabilities, Declared} <- [
            {#{}, #{}}, {#{~"sampling" => #{}}, #{~"sampling" => #{}}},
            {#{~"roots" => #{}}, #{~"roots" => #{~"listChanged" => true}}},
            {#{~"roots" => #{~"listChanged" => false}},
             #{~"roots" => #{~"listChanged" => false}}}]].
