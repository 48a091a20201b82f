-module(spec_2026_07_28_streamable_http_SUITE).
-moduledoc "Specification 2026-07-28, \"Transports / Streamable HTTP\", and HTTP itself under it.".

-export([all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2, end_per_testcase/2]).
-export([endpoint_is_a_single_path/1, listens_on_loopback_by_default/1,
         origin_is_validated/1, origin_of_the_own_ipv6_host_is_allowed/1,
         origins_of_the_options_are_allowed/1, host_is_validated/1,
         hosts_of_the_options_are_allowed/1]).
-export([request_is_answered_with_json/1, notifications_come_on_a_stream_before_the_response/1,
         notification_is_accepted_without_body/1, response_is_ignored/1,
         accept_chooses_the_media_type/1, content_type_must_be_json/1,
         encoded_body_is_refused/1]).
-export([version_header_is_checked_in_order/1, unsupported_version_is_refused_with_supported/1,
         mcp_method_must_match/1, mcp_name_must_match/1, header_names_have_no_case/1,
         mcp_name_in_base64_is_decoded/1, mcp_name_with_invalid_characters_is_refused/1]).
-export([unknown_method_is_404/1, removed_methods_are_404/1, session_id_is_ignored/1,
         get_without_session_is_405/1]).
-export([disconnect_cancels_the_call/1, disconnect_while_streaming_cancels_the_call/1]).
-export([id_is_echoed/1, id_of_another_type_is_refused/1, unreadable_json_is_refused/1,
         no_message_is_refused_by_field/1, depth_and_keys_are_bounded/1]).
-export([body_is_bounded_by_its_length/1, body_is_bounded_while_it_arrives/1,
         body_that_stops_is_408/1, body_that_never_starts_is_408/1,
         refused_body_that_never_comes_is_not_waited_for/1,
         expectation_is_answered_with_continue/1]).
-export([connection_lives_after_each_refusal/1, pipelined_requests_are_answered_in_order/1,
         hundred_connections_are_served_at_once/1]).
-export([crash_is_one_internal_error/1, deadline_ends_the_call/1, heap_bound_ends_the_call/1]).
-export([log/2]).

-import(erlmcp_test_http, [connect/1, write/2, send/4, close/1, response/1, head/1, event/1,
                           closed/1, call/3, call/4, post/3, message/3, meta/0,
                           running/0, finish/2, ended/1]).

all() ->
    [Case || {Case, 1} <- ?MODULE:module_info(exports),
             not lists:member(Case, [init_per_suite, end_per_suite, module_info])].

init_per_suite(Config) ->
    {ok, Started} = application:ensure_all_started(erlmcp),
    [{started, Started} | Config].

end_per_suite(Config) ->
    [ok = application:stop(Application)
     || Application <- lists:reverse(proplists:get_value(started, Config))],
    ok.

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

start(Options) ->
    erlmcp_test_http:start(maps:merge(erlmcp_test_http:definitions(self()), Options)).

server(Config) ->
    proplists:get_value(server, Config).

-define(ACCEPT, {~"accept", ~"application/json, text/event-stream"}).
-define(JSON, {~"content-type", ~"application/json"}).

%% "The server MUST provide a single HTTP endpoint path (hereafter referred to as the MCP endpoint)
%% that supports POST."
endpoint_is_a_single_path(_) ->
    Server = start(#{listen => [{http, #{path => ~"/here"}}]}),
    #{url := Url} = Server,
    true = string:find(Url, ~"/here") =:= ~"/here",
    [{Path, Status} = {Path, status(Server, Path)}
     || {Path, Status} <- [{~"/here", 200}, {~"/here?a=b", 200}, {~"/", 404}, {~"/mcp", 404},
                           {~"/here/", 404}, {~"/HERE", 404}, {~"/here/../here", 404}]],
    erlmcp_test_http:stop(Server).

status(Server, Path) ->
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    Socket = connect(Server),
    write(Socket, [~"POST ", Path, ~" HTTP/1.1\r\nHost: localhost\r\nContent-Length: ",
                   integer_to_binary(byte_size(Body)), ~"\r\n",
                   [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers], ~"\r\n", Body]),
    #{status := Status} = response(Socket),
    close(Socket),
    Status.

%% "When running locally, servers SHOULD bind only to localhost (127.0.0.1) rather than all network
%% interfaces (0.0.0.0)."
listens_on_loopback_by_default(Config) ->
    #{ip := {127, 0, 0, 1}} = server(Config).

%% "Servers MUST validate the Origin header on all incoming connections to prevent DNS rebinding
%% attacks. If the Origin header is present and invalid, servers MUST respond with HTTP 403
%% Forbidden. The HTTP response body MAY comprise a JSON-RPC error response that has no id."
origin_is_validated(Config) ->
    #{port := Port} = Server = server(Config),
    At = integer_to_binary(Port),
    [200 = with_headers(Server, Headers)
     || Headers <- [#{},
                    #{~"origin" => <<"http://127.0.0.1:", At/binary>>},
                    #{~"origin" => <<"http://localhost:", At/binary>>},
                    #{~"origin" => ~"http://[::1]:1"},
                    #{~"origin" => ~"https://localhost"},
                    #{~"origin" => ~"http://192.0.2.7:80", ~"host" => ~"192.0.2.7:80"}]],
    [403 = with_headers(Server, #{~"origin" => Origin})
     || Origin <- [~"http://evil.example.com", ~"https://evil.example.com", ~"null", ~"",
                   ~"http://localhost.evil.example.com", ~"http://127.0.0.1.evil.example.com",
                   ~"http://127.0.0.1@evil.example.com", ~"http://192.0.2.7", ~"127.0.0.1",
                   ~"file://", ~"http://", ~"\"'><"]],
    #{messages := [Error]} = call(Server, ~"tools/list", #{},
                                  #{headers => #{~"origin" => ~"http://evil.example.com"}}),
    #{~"error" := #{~"code" := 1014, ~"data" := #{~"name" := ~"authz_forbidden"}}} = Error,
    false = is_map_key(~"id", Error),
    %% On every method, and before anything else is looked at.
    [{403, _} = {plain(Server, Method, [{~"origin", ~"http://evil.example.com"}]), Method}
     || Method <- [~"GET", ~"DELETE", ~"OPTIONS", ~"PUT"]].

origin_of_the_own_ipv6_host_is_allowed(Config) ->
    Host = ~"[2001:db8::7]:80",
    200 = with_headers(server(Config), #{~"host" => Host, ~"origin" => <<"http://", Host/binary>>}),
    403 = with_headers(server(Config), #{~"host" => Host, ~"origin" => ~"http://[2001:db8::8]"}).

origins_of_the_options_are_allowed(_) ->
    Origin = ~"https://app.example.com",
    Some = start(#{listen => [{http, #{allowed_origins => [Origin]}}]}),
    200 = with_headers(Some, #{~"origin" => Origin}),
    200 = with_headers(Some, #{~"origin" => ~"http://localhost"}),
    403 = with_headers(Some, #{~"origin" => ~"http://app.example.com"}),
    403 = with_headers(Some, #{~"origin" => <<Origin/binary, ":8443">>}),
    erlmcp_test_http:stop(Some),
    Any = start(#{listen => [{http, #{allowed_origins => any}}]}),
    200 = with_headers(Any, #{~"origin" => ~"http://evil.example.com"}),
    erlmcp_test_http:stop(Any).

%% "Without these protections, attackers could use DNS rebinding to interact with local MCP servers
%% from remote websites": a rebinding page has its own name in Host.
host_is_validated(Config) ->
    Server = server(Config),
    {ok, Own} = inet:gethostname(),
    [{Host, 200} = {Host, with_headers(Server, #{~"host" => Host})}
     || Host <- [~"127.0.0.1", ~"127.0.0.1:1", ~"localhost", ~"LocalHost:80", ~"[::1]", ~"[::1]:80",
                 ~"192.0.2.7", ~"[2001:db8::7]", list_to_binary(Own)]],
    [{Host, 403} = {Host, with_headers(Server, #{~"host" => Host})}
     || Host <- [~"evil.example.com", ~"evil.example.com:80", ~"localhost.evil.example.com",
                 ~"127.0.0.1.evil.example.com", ~"127.1"]].

hosts_of_the_options_are_allowed(_) ->
    Some = start(#{listen => [{http, #{allowed_hosts => [~"MCP.example.com"]}}]}),
    200 = with_headers(Some, #{~"host" => ~"mcp.example.com:443"}),
    200 = with_headers(Some, #{~"host" => ~"localhost"}),
    200 = with_headers(Some, #{~"host" => ~"mcp.example.com",
                               ~"origin" => ~"https://mcp.example.com"}),
    403 = with_headers(Some, #{~"host" => ~"www.example.com"}),
    erlmcp_test_http:stop(Some),
    Any = start(#{listen => [{http, #{allowed_hosts => any}}]}),
    200 = with_headers(Any, #{~"host" => ~"www.example.com"}),
    403 = with_headers(Any, #{~"host" => ~"www.example.com",
                              ~"origin" => ~"http://evil.example.com"}),
    erlmcp_test_http:stop(Any).

with_headers(Server, Headers) ->
    #{status := Status} = call(Server, ~"tools/list", #{}, #{headers => Headers}),
    Status.

plain(Server, Method, Headers) ->
    #{status := Status} = request(Server, Method, Headers),
    Status.

request(Server, Method, Headers) ->
    Socket = connect(Server),
    ok = send(Socket, Method, Headers, ~""),
    Reply = response(Socket),
    close(Socket),
    Reply.

%% "If the body is a JSON-RPC request, the server MUST return either Content-Type: application/json
%% (a single JSON object) or Content-Type: text/event-stream (an SSE response stream)."
request_is_answered_with_json(Config) ->
    Server = server(Config),
    [#{status := 200, headers := #{~"content-type" := ~"application/json"},
       messages := [#{~"jsonrpc" := ~"2.0", ~"id" := 1, ~"result" := #{}}]} =
         call(Server, Method, Params)
     || {Method, Params} <- [{~"tools/list", #{}}, {~"server/discover", #{}},
                             {~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}}}]].

%% "The server MAY send JSON-RPC notifications before the final response. These notifications MUST
%% relate to the originating client request." "The final JSON-RPC response SHOULD terminate the
%% stream." "Servers SHOULD include the X-Accel-Buffering: no header."
notifications_come_on_a_stream_before_the_response(Config) ->
    Socket = connect(server(Config)),
    {Headers, Body} = message(~"tools/call", #{name => ~"stream"},
                              #{id => ~"s", meta => #{progressToken => ~"tok"}}),
    ok = send(Socket, ~"POST", Headers, Body),
    {200, #{~"content-type" := ~"text/event-stream", ~"x-accel-buffering" := ~"no",
            ~"cache-control" := ~"no-cache"}} = head(Socket),
    %% It is there while the call still runs.
    {event, #{~"method" := ~"notifications/progress",
              ~"params" := #{~"progressToken" := ~"tok", ~"progress" := 1}}} = event(Socket),
    {Pid, #{}} = running(),
    finish(Pid, ~"over"),
    {event, #{~"id" := ~"s",
              ~"result" := #{~"content" := [#{~"text" := ~"over"}]}}} = event(Socket),
    fin = event(Socket),
    %% The stream was terminated, not the connection.
    ok = send(Socket, ~"POST", Headers, Body),
    {200, _} = head(Socket),
    close(Socket).

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
    [#{status := 202, body := <<>>} = post(server(Config), [?JSON, ?ACCEPT], Body)
     || Body <- [~'{"jsonrpc":"2.0","id":1,"result":{}}',
                 ~'{"jsonrpc":"2.0","id":"a","error":{"code":-32603,"message":"x"}}']].

%% "The client MUST include an Accept header listing both application/json and text/event-stream."
%% Clients that do not are served what they say they read.
accept_chooses_the_media_type(Config) ->
    Server = server(Config),
    Call = fun(Accept) ->
        call(Server, ~"tools/call", #{name => ~"progress"},
             #{headers => #{~"accept" => Accept}, meta => #{progressToken => 1}})
    end,
    Json = ~"application/json",
    Stream = ~"text/event-stream",
    %% Three reports and the response where a stream is read, the response alone where none is.
    [#{status := 200, headers := #{~"content-type" := Stream},
       messages := [#{~"method" := _}, #{~"method" := _}, #{~"method" := _}, #{~"id" := 1}]} =
         Call(Accept)
     || Accept <- [~"application/json, text/event-stream", ~"text/event-stream, application/json",
                   none, ~"*/*", ~"APPLICATION/JSON;q=0.5, Text/Event-Stream",
                   ~"application/*, text/*", Stream, ~"application/json;q=0, text/event-stream"]],
    [#{status := 200, headers := #{~"content-type" := Json}, messages := [#{~"id" := 1}]} =
         Call(Accept)
     || Accept <- [Json, ~"application/*", ~"application/json, text/event-stream;q=0"]],
    %% A response alone is a stream for who reads nothing else.
    #{status := 200, headers := #{~"content-type" := Stream}, messages := [#{~"result" := #{}}]} =
        call(Server, ~"tools/list", #{}, #{headers => #{~"accept" => Stream}}),
    [begin
         #{status := Status, messages := [#{~"error" := #{~"code" := 1025}}]} = Call(Accept)
     end || {Accept, Status} <- [{~"text/html", 406}, {~"image/*", 406}, {~"*/*;q=0", 406},
                                 {~"json", 400}]].

content_type_must_be_json(Config) ->
    Server = server(Config),
    [{Type, 200} = {Type, with_headers(Server, #{~"content-type" => Type})}
     || Type <- [none, ~"application/json", ~"application/json; charset=utf-8",
                 ~"Application/JSON;charset=UTF-8"]],
    [{Type, 415} = {Type, with_headers(Server, #{~"content-type" => Type})}
     || Type <- [~"text/plain", ~"application/x-www-form-urlencoded", ~"application/jsonx",
                 ~"application/json-rpc", ~"application/xml", ~"json", ~""]],
    #{messages := [#{~"error" := #{~"code" := 1024}}]} =
        call(Server, ~"tools/list", #{}, #{headers => #{~"content-type" => ~"text/plain"}}).

encoded_body_is_refused(Config) ->
    Server = server(Config),
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    #{status := 415, messages := [#{~"error" := #{~"code" := 1070}}]} =
        post(Server, [{~"content-encoding", ~"gzip"} | Headers], zlib:gzip(Body)),
    200 = with_headers(Server, #{~"content-encoding" => ~"identity"}).

%% "Every POST request to the MCP endpoint MUST include an MCP-Protocol-Version header." "The header
%% value MUST match the io.modelcontextprotocol/protocolVersion field carried in the request body's
%% _meta. If the values do not match, the server MUST reject the request with 400 Bad Request and a
%% HeaderMismatch JSON-RPC error." "A request missing any required field [of _meta] is malformed;
%% the server MUST reject it with JSON-RPC error code -32602. On HTTP, the response status MUST be
%% 400 Bad Request." In the order of the official conformance suite.
version_header_is_checked_in_order(Config) ->
    Server = server(Config),
    Key = fun(Name) -> <<"io.modelcontextprotocol/", Name/binary>> end,
    Version = Key(~"protocolVersion"),
    Probe = fun(Header, Meta) -> probe(Server, ~"server/discover", Header, Meta) end,
    Modern = ~"2026-07-28",
    {400, -32020, _} = Probe(none, meta()),
    {400, -32602, _} = Probe(Modern, none),
    {400, -32602, _} = Probe(Modern, null),
    {400, -32602, _} = Probe(Modern, #{}),
    {400, -32602, Without} = Probe(Modern, maps:remove(Version, meta())),
    true = names(Without, Version),
    {400, -32602, Incapable} = Probe(Modern, maps:remove(Key(~"clientCapabilities"), meta())),
    true = names(Incapable, ~"clientCapabilities"),
    [{400, -32602, _} = Probe(Modern, maps:merge(meta(), Wrong))
     || Wrong <- [#{Version => 20260728}, #{Key(~"clientCapabilities") => []},
                  #{Key(~"clientInfo") => ~"me"}, #{progressToken => 1.5},
                  #{progressToken => null}]],
    {200, result, _} = Probe(Modern, maps:remove(Key(~"clientInfo"), meta())),
    {400, -32020, _} = Probe(~"2025-11-25", meta()),
    {400, -32020, _} = Probe(Modern, (meta())#{Version := ~"2025-11-25"}),
    {400, -32020, _} = Probe(Modern, (meta())#{Version := ~"v999.0.0"}),
    {400, -32020, _} = Probe(~"v999.0.0", meta()),
    {400, -32022, _} = Probe(~"v999.0.0", (meta())#{Version := ~"v999.0.0"}),
    {200, result, _} = Probe(Modern, meta()),
    %% The method is looked at last.
    {400, -32020, _} = probe(Server, ~"no/such", none, meta()),
    {400, -32602, _} = probe(Server, ~"no/such", Modern, none),
    {404, -32601, _} = probe(Server, ~"no/such", Modern, meta()).

%% The status, the code or `result`, and the error of a request; its id was echoed.
probe(Server, Method, Version, Meta) ->
    Params = case Meta of
        none -> #{};
        _ -> #{'_meta' => Meta}
    end,
    Body = json:encode(#{jsonrpc => ~"2.0", id => ~"probe", method => Method, params => Params}),
    Headers = [{~"mcp-protocol-version", Version} || Version =/= none],
    case post(Server, [?JSON, ?ACCEPT, {~"mcp-method", Method} | Headers], Body) of
        #{status := Status, messages := [#{~"id" := ~"probe", ~"error" := Error}]} ->
            #{~"code" := Code, ~"message" := _} = Error,
            {Status, Code, Error};
        #{status := Status, messages := [#{~"id" := ~"probe", ~"result" := Result}]} ->
            {Status, result, Result}
    end.

names(#{~"message" := Message}, Field) ->
    string:find(Message, Field) =/= nomatch.

%% "If the server does not implement the requested protocol version (whether the version is unknown
%% to the server, or is a known version the server has chosen not to support), it MUST respond with
%% 400 Bad Request and an UnsupportedProtocolVersionError listing its supported versions."
unsupported_version_is_refused_with_supported(Config) ->
    Server = server(Config),
    {200, result, #{~"supportedVersions" := Discovered}} =
        probe(Server, ~"server/discover", ~"2026-07-28", meta()),
    [begin
         Meta = (meta())#{~"io.modelcontextprotocol/protocolVersion" := Version},
         {400, -32022, #{~"data" := Data}} = probe(Server, ~"tools/list", Version, Meta),
         #{~"supported" := [_ | _] = Supported, ~"requested" := Version} = Data,
         [] = Supported -- Discovered
     end || Version <- [~"1900-01-01", ~"v999.0.0", ~"2027-01-01", ~"2025-11-25", ~"x"]].

%% "Mcp-Method: required for all requests." "Servers that process the request body MUST reject
%% requests where the values specified in the headers do not match the corresponding values in the
%% request body", with 400 and -32020. "Header values (such as method names) are case-sensitive."
mcp_method_must_match(Config) ->
    Server = server(Config),
    [mismatched(call(Server, ~"tools/list", #{}, #{headers => #{~"mcp-method" => Value}}))
     || Value <- [none, ~"prompts/list", ~"TOOLS/LIST", ~"tools/list, tools/list", ~"tools/lis",
                  ~"", ~"=?base64?dG9vbHMvbGlzdA==?="]],
    %% "Optional whitespace" around a value is not part of it.
    200 = with_headers(Server, #{~"mcp-method" => ~" \t tools/list \t "}).

mismatched(#{status := 400,
             messages := [#{~"id" := 1, ~"error" := #{~"code" := -32020, ~"message" := _}}]}) ->
    ok.

%% "Mcp-Name: params.name or params.uri; required for tools/call, resources/read, prompts/get."
mcp_name_must_match(Config) ->
    Server = server(Config),
    [begin
         Call = fun(Name) -> call(Server, Method, Params, #{headers => #{~"mcp-name" => Name}}) end,
         [ok = mismatched(Call(Name))
          || Name <- [none, ~"", ~"wrong", string:uppercase(Right), <<Right/binary, "x">>,
                      <<Right/binary, ", ", Right/binary>>]],
         #{status := 200} = Call(Right),
         #{status := 200} = Call(<<"  ", Right/binary, "\t ">>)
     end || {Method, Params, Right} <-
            [{~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}}, ~"echo"},
             {~"prompts/get", #{name => ~"hello"}, ~"hello"},
             {~"resources/read", #{uri => ~"test://text"}, ~"test://text"}]],
    %% Twice is not once.
    {Headers, Body} = message(~"prompts/get", #{name => ~"hello"}, #{}),
    ok = mismatched(post(Server, [{~"mcp-name", ~"hello"} | Headers], Body)),
    %% What has no name needs none, and what it then says is nobody's business.
    200 = with_headers(Server, #{~"mcp-name" => ~"anything"}).

%% "Header names are case-insensitive. Clients and servers MUST use case-insensitive comparisons for
%% header names."
header_names_have_no_case(Config) ->
    {Headers, Body} = message(~"prompts/get", #{name => ~"hello"}, #{}),
    [#{status := 200} = post(server(Config), [{Case(Name), Value} || {Name, Value} <- Headers], Body)
     || Case <- [fun string:uppercase/1, fun string:titlecase/1, fun string:lowercase/1]].

%% "Servers MUST decode an encoded Mcp-Name value before comparing it to the corresponding request
%% body value." "These markers are case-sensitive and MUST appear exactly as shown."
mcp_name_in_base64_is_decoded(_) ->
    Names = [~"Hello", ~"世界", ~" padded ", ~"=?base64?literal?=", ~"=?base64?SGVsbG8=",
             ~"SGVsbG8="],
    Server = start(#{prompts => [#{name => Name, handler => fun(_, #{name := N}) -> N end}
                                 || Name <- Names]}),
    Get = fun(Name, Header) ->
        call(Server, ~"prompts/get", #{name => Name}, #{headers => #{~"mcp-name" => Header}})
    end,
    [#{status := 200} =
         Get(Name, <<"=?base64?", (base64:encode(Name))/binary, "?=">>) || Name <- Names],
    %% What is no sentinel stands for itself.
    [#{status := 200} = Get(Name, Name) || Name <- [~"Hello", ~"=?base64?SGVsbG8=", ~"SGVsbG8="]],
    [ok = mismatched(Get(~"Hello", Header))
     || Header <- [~"=?base64?SGVsbG8?=", ~"=?base64?SGVs!!!bG8=?=", ~"=?base64?SGVs bG8=?=",
                   ~"=?base64?SGVsbG8==?=", ~"=?base64??=", ~"=?BASE64?SGVsbG8=?=",
                   ~"=?base64?SGVsbG8=", ~"SGVsbG8=", ~"=?base64?aGVsbG8=?="]],
    %% "Clients MUST also Base64-encode any plain-ASCII value that matches the sentinel pattern."
    ok = mismatched(Get(~"=?base64?literal?=", ~"=?base64?literal?=")),
    erlmcp_test_http:stop(Server).

%% "Validation failure conditions include: a header value contains invalid characters"; valid are
%% "visible ASCII characters (0x21-0x7E), space (0x20), and horizontal tab (0x09)".
mcp_name_with_invalid_characters_is_refused(_) ->
    Names = [~"世界", ~"caf\xc3\xa9", <<"del", 16#7f>>, <<"bell", 7>>],
    Server = start(#{prompts => [#{name => Name, handler => fun(_, _) -> ~"hi" end}
                                 || Name <- Names]}),
    [ok = mismatched(call(Server, ~"prompts/get", #{name => Name})) || Name <- Names],
    erlmcp_test_http:stop(Server).

%% "If the server does not implement the requested RPC method, it MUST respond with 404 Not Found
%% and a JSON-RPC error with code -32601 (Method not found)."
unknown_method_is_404(Config) ->
    [#{status := 404, messages := [#{~"id" := 1, ~"error" := #{~"code" := -32601}}]} =
         call(server(Config), Method, #{})
     || Method <- [~"unknown/method", ~"tools/callx", ~"Tools/list", ~"notifications/cancelled", ~""]].

%% "Removal of protocol-level sessions", and with them of what only sessions have.
removed_methods_are_404(Config) ->
    [#{status := 404, messages := [#{~"id" := 1, ~"error" := #{~"code" := -32601}}]} =
         call(server(Config), Method, Params)
     || {Method, Params} <- [{~"initialize", #{protocolVersion => ~"2025-11-25", capabilities => #{},
                                               clientInfo => #{name => ~"c", version => ~"1"}}},
                             {~"ping", #{}}, {~"logging/setLevel", #{level => ~"info"}},
                             {~"resources/subscribe", #{uri => ~"test://text"}},
                             {~"resources/unsubscribe", #{uri => ~"test://text"}}]].

%% "An Mcp-Session-Id header on a request: ignore it, and do not mint or echo session IDs." "A
%% Last-Event-ID header: ignore it; streams are not resumable."
session_id_is_ignored(Config) ->
    Server = server(Config),
    {Open, _} = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    [begin
         #{status := 200, headers := Headers} =
             call(Server, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}},
                  #{headers => #{~"mcp-session-id" => Id, ~"last-event-id" => ~"1"}}),
         false = is_map_key(~"mcp-session-id", Headers)
     end || Id <- [~"no-such-session", Open, ~"\"", none]].

%% "HTTP GET or DELETE to the MCP endpoint: respond with 405 Method Not Allowed." A DELETE is for
%% the sessions that this server has too, so it is told which header is missing.
get_without_session_is_405(Config) ->
    Server = server(Config),
    [#{status := 405, headers := #{~"allow" := ~"POST, GET, DELETE"}} = request(Server, Method, [])
     || Method <- [~"GET", ~"PUT", ~"PATCH", ~"OPTIONS", ~"BREW"]],
    #{status := 400, messages := [#{~"error" := #{~"data" := #{~"refusal" := 1026}}}]} =
        request(Server, ~"DELETE", []).

%% "Closing the SSE response stream MUST be treated by the server as cancellation of that request."
%% "The server MUST treat a client disconnect as cancellation of that request."
disconnect_cancels_the_call(Config) ->
    Server = server(Config),
    {Headers, Body} = message(~"tools/call", #{name => ~"wait", arguments => #{n => 1}}, #{}),
    Leaving = connect(Server),
    ok = send(Leaving, ~"POST", Headers, Body),
    {Cancelled, #{~"n" := 1}} = running(),
    Staying = connect(Server),
    ok = send(Staying, ~"POST", Headers, Body),
    {Other, #{~"n" := 1}} = running(),
    close(Leaving),
    _ = ended(Cancelled),
    finish(Other, ~"undisturbed"),
    #{status := 200, messages := [#{~"result" := #{}}]} = response(Staying),
    close(Staying).

disconnect_while_streaming_cancels_the_call(Config) ->
    Socket = connect(server(Config)),
    {Headers, Body} = message(~"tools/call", #{name => ~"stream"}, #{meta => #{progressToken => 1}}),
    ok = send(Socket, ~"POST", Headers, Body),
    {200, _} = head(Socket),
    {event, #{~"method" := ~"notifications/progress"}} = event(Socket),
    {Pid, _} = running(),
    close(Socket),
    _ = ended(Pid).

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
     end || Id <- [~"a", ~"", ~"1", ~"\"\\\n\t", ~"käse 世界 🧀", binary:copy(~"x", 1000), 0, 1, -1,
                   9007199254740993, -9007199254740993, 1 bsl 200]].

%% "Requests MUST include a string or integer ID. Unlike base JSON-RPC, the ID MUST NOT be null."
id_of_another_type_is_refused(Config) ->
    [begin
         #{status := 400, messages := [#{~"error" := #{~"code" := -32600}} = Error]} =
             call(server(Config), ~"tools/list", #{}, #{id => Id}),
         false = is_map_key(~"id", Error)
     end || Id <- [null, 1.5, 1.0, true, [1], #{a => 1}]].

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
             {~'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[]}', -32602, ~"params", 1},
             {~'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":null}', -32602, ~"params", 1},
             {~"[]", -32600, ~"array", none}, {~"5", -32600, ~"object", none},
             {~'"tools/list"', -32600, ~"object", none}, {~"null", -32600, ~"object", none},
             {[~"[", Good, ~"]"], -32600, ~"batch", none},
             {[~"[", Good, ~",", Good, ~"]"], -32600, ~"batch", none}]].

%% Bounded refusal: at the limit it succeeds, at the limit plus one it is refused.
depth_and_keys_are_bounded(_) ->
    %% The echoed request itself is nested 3 deep and has 11 keys.
    Nested = fun(Depth) -> lists:foldl(fun(_, Inner) -> [Inner] end, [], lists:seq(2, Depth)) end,
    Echo = fun(Server, Arguments) ->
        #{status := Status, messages := [Message]} =
            call(Server, ~"tools/call", #{name => ~"echo", arguments => Arguments#{text => ~"a"}}),
        {Status, Message}
    end,
    Deep = start(#{limits => #{depth => 10}}),
    {200, #{~"result" := _}} = Echo(Deep, #{deep => Nested(7)}),
    {400, #{~"error" := #{~"code" := -32700, ~"data" := #{~"limit" := 10}}}} =
        Echo(Deep, #{deep => Nested(8)}),
    erlmcp_test_http:stop(Deep),
    Wide = start(#{limits => #{keys => 100}}),
    Keys = fun(Count) -> #{integer_to_binary(N) => N || N <- lists:seq(1, Count)} end,
    {_, Body} = message(~"tools/call", #{name => ~"echo", arguments => #{text => ~"a"}}, #{}),
    Own = length(binary:matches(Body, ~"\":")),
    {200, #{~"result" := _}} = Echo(Wide, Keys(100 - Own)),
    {400, #{~"error" := #{~"code" := -32700, ~"data" := #{~"limit" := 100}}}} =
        Echo(Wide, Keys(101 - Own)),
    erlmcp_test_http:stop(Wide).

%% Bounded refusal: 413 before the body that is too large is sent.
body_is_bounded_by_its_length(_) ->
    Server = start(#{limits => #{message_bytes => 1000}}),
    {Headers, _} = message(~"tools/call", #{name => ~"echo"}, #{}),
    #{status := 200} = post(Server, Headers, sized(1000)),
    Socket = connect(Server),
    ok = send(Socket, ~"POST", [{~"content-length", ~"1001"} | Headers], ~""),
    #{status := 413, messages := [#{~"error" := #{~"code" := 1068, ~"data" := Data}}]} =
        response(Socket),
    #{~"limit" := 1000, ~"observed" := 1001, ~"name" := ~"message_too_large"} = Data,
    close(Socket),
    #{status := 413} = post(Server, Headers, sized(1001)),
    %% Not an atom, an integer or a megabyte more of anything for a number without end.
    Huge = connect(Server),
    ok = send(Huge, ~"POST", [{~"content-length", ~"99999999999999999"} | Headers], ~"{"),
    #{status := 413} = response(Huge),
    ok = closed(Huge),
    erlmcp_test_http:stop(Server).

%% Bounded refusal: a body without a length is refused when it passes the limit, not when it ends.
body_is_bounded_while_it_arrives(_) ->
    Server = start(#{limits => #{message_bytes => 1000}}),
    {Headers, _} = message(~"tools/call", #{name => ~"echo"}, #{}),
    Chunked = [{~"transfer-encoding", ~"chunked"}, {~"host", ~"localhost"} | Headers],
    Open = fun() ->
        Socket = connect(Server),
        write(Socket, [~"POST /mcp HTTP/1.1\r\n",
                       [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Chunked], ~"\r\n"]),
        Socket
    end,
    Good = Open(),
    <<First:400/binary, Second/binary>> = sized(1000),
    write(Good, chunk(First)),
    write(Good, [chunk(Second), ~"0\r\n\r\n"]),
    #{status := 200} = response(Good),
    %% and it lives on
    ok = send(Good, ~"POST", Headers, sized(500)),
    #{status := 200} = response(Good),
    close(Good),
    Bad = Open(),
    write(Bad, chunk(First)),
    write(Bad, chunk(<<Second/binary, $\s>>)),
    #{status := 413, messages := [#{~"error" := #{~"code" := 1068}}]} = response(Bad),
    %% What follows cannot be told from a new request: the connection is over.
    ok = closed(Bad),
    erlmcp_test_http:stop(Server).

sized(Size) ->
    {_, Empty} = echo(~""),
    {_, Body} = echo(binary:copy(~"x", Size - byte_size(Empty))),
    Size = byte_size(Body),
    Body.

echo(Text) ->
    message(~"tools/call", #{name => ~"echo", arguments => #{text => Text}}, #{}).

chunk(Bytes) ->
    [integer_to_binary(byte_size(Bytes), 16), ~"\r\n", Bytes, ~"\r\n"].

%% RFC 9110, 15.5.9: "408 (Request Timeout): the server did not receive a complete request message
%% within the time that it was prepared to wait." "The server SHOULD send the close connection
%% option" (RFC 9112, 9.6), and does not wait for the rest.
body_that_stops_is_408(_) ->
    Server = start(#{limits => #{receive_timeout_ms => 100}}),
    {Headers, Body} = echo(~"text"),
    <<Half:20/binary, _/binary>> = Body,
    Length = {~"content-length", integer_to_binary(byte_size(Body))},
    Socket = connect(Server),
    ok = send(Socket, ~"POST", [Length | Headers], Half),
    timed_out(Socket),
    erlmcp_test_http:stop(Server).

body_that_never_starts_is_408(_) ->
    Server = start(#{limits => #{receive_timeout_ms => 100}}),
    {Headers, _} = echo(~"text"),
    Socket = connect(Server),
    ok = send(Socket, ~"POST", [{~"content-length", ~"20"} | Headers], ~""),
    timed_out(Socket),
    erlmcp_test_http:stop(Server).

timed_out(Socket) ->
    #{status := 408, messages := [#{~"error" := #{~"code" := 1069}}]} = response(Socket),
    ok = closed(Socket).

%% A refusal "costs the server almost nothing": a client that is refused early and sends neither
%% the rest nor another request does not keep its connection.
refused_body_that_never_comes_is_not_waited_for(_) ->
    Server = start(#{limits => #{receive_timeout_ms => 100}}),
    Socket = connect(Server),
    ok = send(Socket, ~"POST", [{~"content-length", ~"20"}, {~"content-type", ~"text/plain"}], ~""),
    #{status := 415} = response(Socket),
    ok = closed(Socket),
    erlmcp_test_http:stop(Server).

%% RFC 9110, 10.1.1: "Upon receiving an HTTP/1.1 request that [...] contains a 100-continue
%% expectation, an origin server MUST send either an immediate response with a final status code
%% [...] or an immediate 100 (Continue) response."
expectation_is_answered_with_continue(Config) ->
    Server = server(Config),
    {Headers, Body} = echo(~"waited for"),
    Expecting = [{~"expect", ~"100-continue"},
                 {~"content-length", integer_to_binary(byte_size(Body))} | Headers],
    Socket = connect(Server),
    ok = send(Socket, ~"POST", Expecting, ~""),
    {100, _} = head(Socket),
    write(Socket, Body),
    #{status := 200} = response(Socket),
    close(Socket),
    Refused = connect(Server),
    ok = send(Refused, ~"POST", [{~"origin", ~"http://evil.example.com"} | Expecting], ~""),
    #{status := 403} = response(Refused),
    close(Refused).

%% Nothing else is disturbed by a refusal, on the same connection neither.
connection_lives_after_each_refusal(_) ->
    Server = start(#{limits => #{message_bytes => 2000}}),
    Socket = connect(Server),
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    Replaced = fun(Name, Value) -> lists:keystore(Name, 1, Headers, {Name, Value}) end,
    [begin
         ok = send(Socket, Method, Sent, Bytes),
         {Status, _} = {Got, _} = {maps:get(status, response(Socket)), {Method, Sent}},
         Status = Got,
         ok = send(Socket, ~"POST", Headers, Body),
         #{status := 200} = response(Socket)
     end || {Status, Method, Sent, Bytes} <-
            [{403, ~"POST", [{~"origin", ~"null"} | Headers], Body},
             {403, ~"POST", [{~"host", ~"evil.example.com"} | Headers], Body},
             {405, ~"PUT", Headers, Body},
             {405, ~"GET", Headers, ~""},
             {400, ~"DELETE", Headers, ~""},
             {404, ~"DELETE", [{~"mcp-session-id", ~"none"} | Headers], ~""},
             {415, ~"POST", Replaced(~"content-type", ~"text/plain"), Body},
             {415, ~"POST", [{~"content-encoding", ~"br"} | Headers], Body},
             {406, ~"POST", Replaced(~"accept", ~"text/html"), Body},
             {413, ~"POST", Headers, sized(2001)},
             {400, ~"POST", Headers, ~"{"},
             {400, ~"POST", Headers, ~"[]"},
             {400, ~"POST", Headers, ~""},
             {400, ~"POST", Replaced(~"mcp-protocol-version", ~"1"), Body},
             {400, ~"POST", Replaced(~"mcp-method", ~"ping"), Body},
             {404, ~"POST", Replaced(~"mcp-method", ~"no/such"),
              element(2, message(~"no/such", #{}, #{}))},
             {202, ~"POST", Headers, ~'{"jsonrpc":"2.0","method":"notifications/x"}'}]],
    close(Socket),
    erlmcp_test_http:stop(Server).

%% RFC 9112, 9.3.2: "A server [...] MUST send the corresponding responses in the same order that the
%% requests were received."
pipelined_requests_are_answered_in_order(Config) ->
    Socket = connect(server(Config)),
    Posts = [message(~"tools/call", #{name => ~"wait"}, #{id => 1}),
             message(~"tools/list", #{}, #{id => 2}),
             message(~"tools/call", #{name => ~"progress"},
                     #{id => 3, meta => #{progressToken => 3}}),
             message(~"tools/call", #{name => ~"no such"}, #{id => 4}),
             message(~"server/discover", #{}, #{id => 5})],
    write(Socket, [[~"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: ",
                    integer_to_binary(byte_size(Body)), ~"\r\n",
                    [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers], ~"\r\n", Body]
                   || {Headers, Body} <- Posts]),
    {Pid, _} = running(),
    finish(Pid, ~"first"),
    [#{~"id" := Id} = lists:last(maps:get(messages, response(Socket)))
     || Id <- [1, 2, 3, 4, 5]],
    close(Socket).

hundred_connections_are_served_at_once(Config) ->
    Server = server(Config),
    Sockets = [{N, connect(Server)} || N <- lists:seq(1, 100)],
    [begin
         {Headers, Body} = message(~"tools/call", #{name => ~"wait", arguments => #{n => N}},
                                   #{id => N}),
         ok = send(Socket, ~"POST", Headers, Body)
     end || {N, Socket} <- Sockets],
    %% All of them run before one of them ends.
    Calls = maps:from_list([{N, Pid} || _ <- Sockets, {Pid, #{~"n" := N}} <- [running()]]),
    100 = map_size(Calls),
    [finish(maps:get(N, Calls), integer_to_binary(N)) || {N, _} <- lists:reverse(Sockets)],
    [begin
         Text = integer_to_binary(N),
         #{messages := [#{~"id" := N, ~"result" := #{~"content" := [#{~"text" := Text}]}}]} =
             response(Socket),
         close(Socket)
     end || {N, Socket} <- Sockets].

%% JSON-RPC 2.0: "-32603 Internal error." What happened is in the log under the incident's id.
crash_is_one_internal_error(Config) ->
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    Socket = connect(server(Config)),
    {Headers, Body} = message(~"tools/call", #{name => ~"crash"}, #{id => 7}),
    ok = send(Socket, ~"POST", Headers, Body),
    #{messages := [#{~"id" := 7, ~"error" := #{~"code" := -32603, ~"data" := Data} = Error}],
      status := 500, body := Bytes} = response(Socket),
    #{~"incident" := Incident, ~"refusal" := 1079} = Data,
    receive
        {logged, #{incident := Incident, reason := on_purpose}} -> ok
    after 5000 ->
        error(not_logged)
    end,
    ok = logger:remove_handler(?MODULE),
    [nomatch = string:find(Bytes, Secret) || Secret <- [~"on_purpose", ~".erl", ~"<0.", ~"erlmcp_"]],
    true = is_binary(maps:get(~"message", Error)),
    {More, Text} = echo(~"still here"),
    ok = send(Socket, ~"POST", More, Text),
    #{status := 200} = response(Socket),
    close(Socket).

-doc false.
log(#{msg := {report, Report}}, #{config := #{test := Test}}) ->
    Test ! {logged, Report};
log(_, _) ->
    ok.

%% "Implementations SHOULD always enforce a maximum timeout."
deadline_ends_the_call(Config) ->
    Socket = connect(server(Config)),
    {Headers, Body} = message(~"tools/call", #{name => ~"slow"}, #{id => 8}),
    ok = send(Socket, ~"POST", Headers, Body),
    {Pid, _} = running(),
    killed = ended(Pid),
    #{status := 503, messages := [#{~"id" := 8, ~"error" := #{~"code" := 1069}}]} =
        response(Socket),
    {More, Text} = echo(~"still here"),
    ok = send(Socket, ~"POST", More, Text),
    #{status := 200} = response(Socket),
    close(Socket).

heap_bound_ends_the_call(_) ->
    Server = start(#{limits => #{call_heap_bytes => 1_000_000}}),
    Socket = connect(Server),
    {Headers, Body} = message(~"tools/call", #{name => ~"hog"}, #{id => 9}),
    ok = send(Socket, ~"POST", Headers, Body),
    #{status := 503, messages := [#{~"id" := 9, ~"error" := #{~"code" := 1089}}]} =
        response(Socket),
    {More, Text} = echo(~"still here"),
    ok = send(Socket, ~"POST", More, Text),
    #{status := 200} = response(Socket),
    close(Socket),
    erlmcp_test_http:stop(Server).
