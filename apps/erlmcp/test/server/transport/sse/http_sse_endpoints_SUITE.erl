-module(http_sse_endpoints_SUITE).
-moduledoc """
The two endpoints of HTTP+SSE, as HTTP: what may be asked of them, by whom, and what is beside them.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([origin_and_host_are_checked/1, other_methods_are_405/1, stream_must_be_accepted/1,
         unknown_sessions_are_404/1, wrong_messages_are_refused_at_once/1, bodies_are_bounded/1,
         other_endpoint_is_served_beside/1, kinds_of_sessions_are_not_mixed/1,
         paths_are_the_options/1, without_the_option_there_is_nothing/1,
         sessions_belong_to_their_principal/1, options_are_checked/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_sse_server, [start/1, start/2, client/1, client/2, session/1, session/2,
                                 open_post/1, json_headers/0, call/2, call/3, text/1, code/1]).
-import(erlmcp_test_sse, [open/1, open/2, get/4, message/1, post/2, post/3, post/4, initialize/2,
                          is_quiet/1]).
-import(erlmcp_test_line, [request/3]).
-import(erlmcp_test_http, [finish/2]).

-define(TIMEOUT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [origin_and_host_are_checked, other_methods_are_405, stream_must_be_accepted,
     unknown_sessions_are_404, wrong_messages_are_refused_at_once, bodies_are_bounded,
     other_endpoint_is_served_beside, kinds_of_sessions_are_not_mixed, paths_are_the_options,
     without_the_option_there_is_nothing, sessions_belong_to_their_principal, options_are_checked].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

%% "Servers MUST validate the Origin header on all incoming connections to prevent DNS rebinding
%% attacks".
origin_and_host_are_checked(Config) ->
    Server = server(Config),
    #{endpoint := Endpoint} = Client = client(Config),
    [begin
         {403, _, Stream} = get(Server, ~"GET", ~"/sse", [Header]),
         {403, _, Message} = post(Client, Endpoint, [Header | json_headers()],
                                  json:encode(request(1, ~"ping", #{}))),
         [1014 = code(json:decode(Body)) || Body <- [Stream, Message]]
     end || Header <- [{~"origin", ~"http://evil.example.com"}, {~"origin", ~"null"},
                       {~"host", ~"evil.example.com"}]],
    {200, _, stream} = get(Server, ~"GET", ~"/sse", [{~"origin", ~"http://localhost:1234"}]),
    true = is_quiet(Client).

%% 2025-11-25, Backwards Compatibility: a client that tries to POST to a server of this transport
%% expects "400 Bad Request", "404 Not Found" or "405 Method Not Allowed", and then issues "a GET
%% request to the server URL, expecting that this will open an SSE stream".
other_methods_are_405(Config) ->
    Server = server(Config),
    #{endpoint := Endpoint} = client(Config),
    [{405, #{~"allow" := Allowed}, _} = get(Server, Method, Path, [])
     || {Path, Allowed, Methods} <-
            [{~"/sse", ~"GET", [~"POST", ~"PUT", ~"DELETE", ~"OPTIONS"]},
             {Endpoint, ~"POST", [~"GET", ~"PUT", ~"DELETE"]},
             {~"/messages", ~"POST", [~"GET"]}],
        Method <- Methods],
    {405, _, _} = post(open(Server), ~"/sse", json:encode(request(1, ~"initialize", #{}))),
    {200, #{~"content-type" := ~"text/event-stream", ~"cache-control" := ~"no-cache",
            ~"x-accel-buffering" := ~"no"}, stream} = get(Server, ~"GET", ~"/sse", []).

stream_must_be_accepted(Config) ->
    Server = server(Config),
    [{Status, _, _} = get(Server, ~"GET", ~"/sse", [{~"accept", Accept}])
     || {Status, Accept} <- [{200, ~"text/event-stream"}, {200, ~"*/*"},
                             {200, ~"application/json, text/event-stream"},
                             {406, ~"application/json"}, {406, ~"text/html"}, {400, ~";"}]].

unknown_sessions_are_404(Config) ->
    Client = client(Config),
    Ping = json:encode(request(1, ~"ping", #{})),
    [begin
         {404, _, Body} = post(Client, <<"/messages?sessionId=", Id/binary>>, Ping),
         1016 = code(json:decode(Body))
     end || Id <- [~"", ~"x", ~"%00", binary:copy(~"A", 32), binary:copy(~"A", 4000)]],
    [begin
         {400, _, Body} = post(Client, <<"/messages", Query/binary>>, Ping),
         1026 = code(json:decode(Body))
     end || Query <- [~"", ~"?", ~"?sessionId", ~"?session=x", ~"?%zz", ~"?a=1&b",
                      ~"?sessionId=%26%2355296%3B", ~"?sessionId=%26%23", ~"?%26%239=x"]],
    %% What a proxy or a client adds is none of ours.
    #{endpoint := Endpoint} = Client,
    {202, _, <<>>} = post(Client, <<Endpoint/binary, "&token=1">>, Ping),
    #{~"id" := 1} = message(Client).

%% What cannot be answered on the stream under an id is refused where it was sent.
wrong_messages_are_refused_at_once(Config) ->
    Client = session(Config),
    [begin
         {400, _, Refused} = post(Client, Body),
         #{~"error" := #{~"code" := Code}} = Message = json:decode(Refused),
         false = is_map_key(~"id", Message)
     end || {Code, Body} <- [{-32700, ~"{"}, {-32700, ~""}, {-32700, ~"\xff"}, {-32700, ~"{} {}"},
                             {-32600, ~"[]"}, {-32600, ~"1"}, {-32600, ~"{}"},
                             {-32600, ~'{"jsonrpc":"2.0","id":null,"method":"ping"}'},
                             {-32602, ~'{"jsonrpc":"2.0","method":"m","params":[]}'}]],
    {202, _, <<>>} = post(Client, ~'{"jsonrpc":"1.0","id":5,"method":"ping"}'),
    #{~"id" := 5, ~"error" := #{~"code" := -32600}} = message(Client),
    Ping = json:encode(request(1, ~"ping", #{})),
    #{endpoint := Endpoint} = Client,
    [{Status, _, _} = post(Client, Endpoint, Headers, Ping)
     || {Status, Headers} <- [{415, [{~"content-type", ~"text/plain"}]},
                              {415, [{~"content-encoding", ~"gzip"} | json_headers()]}]],
    %% Its Accept is of no interest: the answer comes elsewhere.
    {202, _, <<>>} = post(Client, Endpoint, [{~"accept", ~"text/html"},
                                             {~"content-type", ~"application/json; charset=utf-8"}],
                          Ping),
    #{~"id" := 1} = message(Client),
    true = is_quiet(Client).

%% Bounded refusal: in size, announced or not, and in time.
bodies_are_bounded(Config) ->
    Server = start(#{message_bytes => 1000}),
    #{endpoint := Endpoint} = Client = session(Server, Config),
    {_, Empty} = sized(~""),
    {_, Full} = sized(binary:copy(~"x", 1000 - byte_size(Empty))),
    1000 = byte_size(Full),
    {202, _, <<>>} = post(Client, Full),
    #{~"id" := 1, ~"result" := #{}} = message(Client),
    {413, _, Refused} = post(Client, <<Full/binary, " ">>),
    #{~"error" := #{~"code" := 1068, ~"data" := #{~"limit" := 1000, ~"observed" := 1001}}} =
        json:decode(Refused),
    #{posting := Chunked} = open_post(Server),
    Many = gun:post(Chunked, Endpoint, json_headers()),
    ok = gun:data(Chunked, Many, nofin, Full),
    ok = gun:data(Chunked, Many, nofin, ~" "),
    {response, nofin, 413, _} = gun:await(Chunked, Many, ?TIMEOUT),
    true = is_quiet(Client),
    Hasty = start(#{receive_timeout_ms => 1500}),
    #{posting := Late, endpoint := There} = client(Hasty, Config),
    Begun = gun:post(Late, There, json_headers()),
    ok = gun:data(Late, Begun, nofin, ~"{"),
    {response, nofin, 408, _} = gun:await(Late, Begun, ?TIMEOUT),
    [erlmcp_test_http:stop(Each) || Each <- [Server, Hasty]].

sized(Text) ->
    Message = call(1, ~"echo", #{text => Text}),
    {Message, iolist_to_binary(json:encode(Message))}.

%% 2025-03-26, Backwards Compatibility: servers "should continue to host both the SSE and POST
%% endpoints of the old transport, alongside the new MCP endpoint".
other_endpoint_is_served_beside(Config) ->
    Server = server(Config),
    Client = session(Config),
    #{status := 200, messages := [#{~"result" := #{}}]} =
        erlmcp_test_http:call(Server, ~"tools/list", #{}),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    {Socket, Call} = erlmcp_test_http:start_call(Server, Session, ~"stream", 7),
    finish(Call, ~"over"),
    #{messages := [_, _, #{~"id" := 7}]} = erlmcp_test_http:response(Socket),
    erlmcp_test_http:close(Socket),
    {Stream, {200, _}} = erlmcp_test_http:get_stream(Server, Session),
    ok = erlmcp:add(maps:get(pid, Server), tool, #{name => ~"n", handler => fun(_, _) -> ~"" end}),
    {event, #{~"method" := Method}} = erlmcp_test_http:event(Stream),
    #{~"method" := Method} = message(Client),
    erlmcp_test_http:close(Stream),
    #{status := 413} = erlmcp_test_http:post(Server, json_headers(), binary:copy(~" ", 5_000_000)),
    {404, _, _} = get(Server, ~"GET", ~"/sse/", []),
    [#{transport := http, url := Url, sse_url := Sse}] = erlmcp:listeners(maps:get(pid, Server)),
    Url = iolist_to_binary(string:replace(Sse, ~"/sse", ~"/mcp")).

kinds_of_sessions_are_not_mixed(Config) ->
    Server = server(Config),
    #{endpoint := <<"/messages?sessionId=", Id/binary>>} = Client = session(Config),
    #{status := 404} = erlmcp_test_http:call(Server, ~"tools/list", #{},
                                             #{session => {Id, ~"2025-11-25"}}),
    #{status := 404} = erlmcp_test_http:delete(Server, {Id, ~"2025-11-25"}),
    {Other, _} = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    {404, _, _} = post(Client, <<"/messages?sessionId=", Other/binary>>,
                       json:encode(request(1, ~"ping", #{}))),
    true = is_quiet(Client).

paths_are_the_options(Config) ->
    Server = start(#{}, #{path => ~"/sse", sse => #{path => ~"/old/stream",
                                                    message_path => ~"/old/~m:1"}}),
    #{endpoint := <<"/old/~m:1?sessionId=", _/binary>>} = Client =
        open(Server, #{path => ~"/old/stream?user=1"}),
    true = is_quiet(Client),
    [{Status, _, _} = get(Server, ~"GET", Path, [])
     || {Status, Path} <- [{405, ~"/sse"}, {404, ~"/messages"}, {404, ~"/mcp"}]],
    erlmcp_test_http:stop(Server),
    #{endpoint := <<"/messages?", _/binary>>} = client(Config).

without_the_option_there_is_nothing(_) ->
    Server = start(#{}, #{}),
    [{404, _, _} = get(Server, Method, Path, [])
     || Method <- [~"GET", ~"POST"], Path <- [~"/sse", ~"/messages", ~"/messages?sessionId=x"]],
    [#{url := _} = Listener] = erlmcp:listeners(maps:get(pid, Server)),
    false = is_map_key(sse_url, Listener),
    erlmcp_test_http:stop(Server).

%% Security Best Practices, Session Hijacking: the principal of a message is that of its stream.
sessions_belong_to_their_principal(_) ->
    Authenticate = fun(#{headers := #{~"authorization" := Who}}) -> {ok, Who};
                      (_) -> {error, ~"who?"}
                   end,
    Server = start(#{}, #{sse => #{}, authenticate => Authenticate}),
    Test = self(),
    ok = erlmcp:add(maps:get(pid, Server), tool,
                    #{name => ~"who", handler => fun(_, #{principal := Principal}) ->
                        Test ! {principal, Principal},
                        Principal
                      end}),
    [Alice, Bob] = [{~"authorization", Name} || Name <- [~"alice", ~"bob"]],
    {401, #{~"www-authenticate" := <<"Bearer", _/binary>>}, _} =
        get(Server, ~"GET", ~"/sse", []),
    #{endpoint := Endpoint} = Client = open(Server, #{headers => [Alice]}),
    _ = initialize(Client, ~"2024-11-05"),
    Who = json:encode(call(1, ~"who")),
    {202, _, <<>>} = post(Client, Who),
    ~"alice" = text(message(Client)),
    {404, _, Body} = post(Client, Endpoint, [Bob | json_headers()], Who),
    1016 = code(json:decode(Body)),
    {401, _, _} = post(Client, Endpoint, json_headers(), Who),
    true = is_quiet(Client),
    receive {principal, ~"alice"} -> ok end,
    receive {principal, _} = Other -> error(Other) after 0 -> ok end,
    erlmcp_test_http:stop(Server).

%% `{bad_option, Key, Expected}`.
options_are_checked(_) ->
    [{error, {bad_option, Key, <<_, _/binary>>}} =
         erlmcp:start_server(#{name => ~"a", version => ~"1", listen => [{Transport, Options}]})
     || {Key, Transport, Options} <-
            [{{http, sse}, http, #{sse => true}},
             {{http, sse}, http, #{sse => [{path, ~"/sse"}]}},
             {{tcp, sse}, tcp, #{sse => #{}}},
             {{http, sse, paths}, http, #{sse => #{paths => ~"/sse"}}},
             {{http, sse, path}, http, #{sse => #{path => "/sse"}}},
             {{http, sse, path}, http, #{sse => #{path => ~"sse"}}},
             {{http, sse, path}, http, #{sse => #{path => ~""}}},
             {{http, sse, path}, http, #{sse => #{path => ~"/a b"}}},
             {{http, sse, message_path}, http, #{sse => #{message_path => ~"/a?b"}}},
             {{http, sse, message_path}, http, #{sse => #{message_path => ~"/a\n"}}},
             {{http, sse, message_path}, http, #{sse => #{message_path => 1}}},
             {{http, sse}, http, #{sse => #{path => ~"/mcp"}}},
             {{http, sse}, http, #{path => ~"/messages", sse => #{}}},
             {{http, sse}, http, #{sse => #{path => ~"/a", message_path => ~"/a"}}}]].
