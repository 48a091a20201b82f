-module(spec_2026_07_28_streamable_http_SUITE).
-moduledoc "Specification 2026-07-28, \"Transports / Streamable HTTP\".".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([endpoint_is_a_single_path/1, listens_on_loopback_by_default/1,
         origin_is_validated/1, origin_of_the_own_ipv6_host_is_allowed/1,
         origins_of_the_options_are_allowed/1, host_is_validated/1,
         hosts_of_the_options_are_allowed/1]).
-export([request_is_answered_with_json/1, notifications_come_on_a_stream_before_the_response/1,
         listening_clients_come_back_one_by_one/1, accept_chooses_the_media_type/1,
         content_type_must_be_json/1, encoded_body_is_refused/1]).
-export([version_header_is_checked_in_order/1, unsupported_version_is_refused_with_supported/1,
         mcp_method_must_match/1, mcp_name_must_match/1, header_names_have_no_case/1,
         mcp_name_in_base64_is_decoded/1, mcp_name_with_invalid_characters_is_refused/1]).
-export([mcp_param_must_match/1, mcp_param_of_another_type/1, mcp_param_is_for_what_is_there/1,
         mcp_param_declaration_is_checked/1]).
-export([unknown_method_is_404/1, removed_methods_are_404/1, session_id_is_ignored/1,
         get_without_session_is_405/1]).
-export([disconnect_cancels_the_call/1, disconnect_while_streaming_cancels_the_call/1,
         disconnect_ends_a_handler_that_traps_exits/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [connect/1, write/2, send/4, close/1, response/1, head/1, event/1, call/3,
                           call/4, post/3, message/3, meta/0, running/0, finish/2, ended/1]).

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

%% The streams of all clients end at once with a server or a proxy before it.
listening_clients_come_back_one_by_one(_) ->
    Server = start(#{limits => #{retry_ms => 1000}}),
    Delays = [begin
                  Socket = connect(Server),
                  {Headers, Body} = message(~"subscriptions/listen", #{notifications => #{}}, #{}),
                  ok = send(Socket, ~"POST", Headers, Body),
                  {200, _} = head(Socket),
                  [#{retry := Delay, data := _}] =
                      erlmcp_test_http:read_events(erlmcp_test_http:chunk(Socket)),
                  close(Socket),
                  Delay
              end || _ <- lists:seq(1, 20)],
    [] = [Delay || Delay <- Delays, Delay < 1000 orelse Delay > 1500],
    true = length(lists:usort(Delays)) > 1,
    erlmcp_test_http:stop(Server).

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
     || Type <- [~"application/json", ~"application/json; charset=utf-8",
                 ~"Application/JSON;charset=UTF-8"]],
    [{Type, 415} = {Type, with_headers(Server, #{~"content-type" => Type})}
     || Type <- [none, ~"text/plain", ~"application/x-www-form-urlencoded", ~"application/jsonx",
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
    [#{status := 200} =
         post(server(Config), [{Case(Name), Value} || {Name, Value} <- Headers], Body)
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

region(Type) ->
    Properties = #{region => #{type => Type, 'x-mcp-header' => ~"Region"}, free => #{}},
    Echo = fun(Arguments, _) -> #{arguments => Arguments} end,
    start(#{tools => [#{name => ~"query", handler => Echo,
                        input_schema => #{type => object, properties => Properties}}]}).

query(Server, Arguments, Headers) ->
    call(Server, ~"tools/call", #{name => ~"query", arguments => Arguments}, #{headers => Headers}).

%% "Any server that processes the message body MUST validate that encoded header values, after
%% decoding if Base64-encoded, match the corresponding values in the request body. Servers MUST
%% reject requests with a 400 Bad Request HTTP status and JSON-RPC error code -32020."
mcp_param_must_match(_) ->
    Server = region(string),
    [#{status := 200, messages := [#{~"result" := _}]} =
         query(Server, #{region => Value}, #{Name => Header})
     || {Value, Header} <- [{~"us-west1", ~"us-west1"}, {~"us-west1", ~"  us-west1\t"},
                            {~"Hello", ~"=?base64?SGVsbG8=?="}, {~"SGVsbG8=", ~"SGVsbG8="},
                            {~"=?base64?SGVsbG8=", ~"=?base64?SGVsbG8="}, {~"", ~""},
                            {~"Hello, 世界", ~"=?base64?SGVsbG8sIOS4lueVjA==?="},
                            {~" padded ", ~"=?base64?IHBhZGRlZCA=?="},
                            {~"line1\nline2", ~"=?base64?bGluZTEKbGluZTI=?="},
                            {~"=?base64?literal?=", ~"=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="}],
        Name <- [~"mcp-param-region", ~"Mcp-Param-Region", ~"MCP-PARAM-REGION"]],
    [ok = mismatched(query(Server, #{region => Value}, #{~"mcp-param-region" => Header}))
     || {Value, Header} <- [{~"us-west1", ~"us-west2"}, {~"us-west1", ~"US-WEST1"},
                            {~"us-west1", none}, {~"us-west1", ~""}, {~"", none},
                            {~"Hello", ~"=?base64?SGVsbG8?="},
                            {~"Hello", ~"=?base64?SGVs!!!bG8=?="}, {~"Hello", ~"SGVsbG8="},
                            {~"世界", ~"世界"}, {~"a", ~"a, a"},
                            {~"=?base64?SGVsbG8=?=", ~"=?base64?SGVsbG8=?="}]],
    erlmcp_test_http:stop(Server).

%% "integer: convert to decimal string representation; boolean: convert to lowercase." "Servers
%% SHOULD compare the header value and the body value numerically rather than as strings."
mcp_param_of_another_type(_) ->
    [begin
         Server = region(Type),
         [#{status := 200} = query(Server, #{region => Value}, #{~"mcp-param-region" => Header})
          || Header <- Right],
         [ok = mismatched(query(Server, #{region => Value}, #{~"mcp-param-region" => Header}))
          || Header <- Wrong],
         erlmcp_test_http:stop(Server)
     end || {Type, Value, Right, Wrong} <-
            [{integer, 42, [~"42", ~"42.0", ~"=?base64?NDI=?="],
              [~"43", ~"042", ~"x", ~"42 43", ~"", none]},
             {integer, -7, [~"-7"], [~"7", ~"-7.5"]},
             {integer, 9007199254740991, [~"9007199254740991"], [~"9007199254740990"]},
             {boolean, true, [~"true"], [~"True", ~"1", ~"false", none]},
             {boolean, false, [~"false"], [~"true", ~"0", ~""]}]].

%% "Parameter value is null, or not in arguments: server MUST NOT expect the header." "Header
%% extraction is defined as reading the instance value at the exact property path."
mcp_param_is_for_what_is_there(_) ->
    Server = region(string),
    [#{status := 200, messages := [#{~"result" := _}]} = query(Server, Arguments, #{})
     || Arguments <- [#{}, #{region => null}, #{free => ~"us"}, #{free => #{region => ~"us"}}]],
    %% "A header value does not match the corresponding request body value"; "Servers MUST reject
    %% requests with a recognized Mcp-Param-{Name} header that contains invalid characters".
    [ok = mismatched(query(Server, Arguments, #{~"mcp-param-region" => Header}))
     || Arguments <- [#{}, #{region => null}, #{free => ~"us"}],
        Header <- [~"us", ~"", ~"=?base64?SGVsbG8?=", ~"世界"]],
    %% A session's clients know of no such header.
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    #{status := 200, messages := [#{~"result" := _}]} =
        call(Server, ~"tools/call", #{name => ~"query", arguments => #{region => ~"us"}},
             #{session => Session}),
    Nested = #{type => object,
               properties => #{where => #{type => object,
                                          properties => #{region => #{type => string,
                                                                      'x-mcp-header' => ~"R"}}}}},
    ok = erlmcp:add(maps:get(pid, Server), tool,
                    #{name => ~"deep", input_schema => Nested, handler => fun(_, _) -> ~"" end}),
    Deep = fun(Arguments, Header) ->
        call(Server, ~"tools/call", #{name => ~"deep", arguments => Arguments},
             #{headers => #{~"mcp-param-r" => Header}})
    end,
    #{status := 200} = Deep(#{where => #{region => ~"us"}}, ~"us"),
    ok = mismatched(Deep(#{where => #{region => ~"us"}}, none)),
    #{status := 200} = Deep(#{region => ~"us"}, none),
    #{status := 200} = Deep(#{where => ~"us"}, none),
    erlmcp_test_http:stop(Server).

%% "Clients MUST reject tool definitions where any x-mcp-header value violates these constraints":
%% such a definition is refused where it is made.
mcp_param_declaration_is_checked(Config) ->
    #{pid := Pid} = server(Config),
    String = #{type => string, 'x-mcp-header' => ~"Region"},
    [{error, {bad_definition, tool, ~"bad", input_schema, _}} =
         erlmcp:add(Pid, tool, #{name => ~"bad", handler => fun(_, _) -> ~"" end,
                                 input_schema => Schema#{type => object}})
     || Schema <- [#{properties => #{a => String#{'x-mcp-header' := Name}}}
                   || Name <- [~"", ~"a b", ~"a:b", ~"ä", ~"a\r\n", 5]]
            ++ [#{properties => #{a => String#{type := Type}}}
                || Type <- [number, object, array, null]]
            ++ [#{properties => #{a => String, b => String#{'x-mcp-header' := ~"REGION"}}},
                #{properties => #{a => #{type => array, items => String}}},
                #{properties => #{a => #{anyOf => [String]}}},
                #{'$defs' => #{a => String}}, #{'$defs' => #{default => String}},
                #{'$defs' => #{'x-mcp-header' => #{items => String}}}]],
    %% Arguments may have the names of keywords. The value of a keyword such as `default` is data.
    Named = #{Name => String#{'x-mcp-header' := atom_to_binary(Name)}
              || Name <- [a, default, const, enum, examples, properties, 'x-mcp-header']},
    Data = #{Keyword => [#{'x-mcp-header' => ~"x"}] || Keyword <- [default, enum, examples]},
    ok = erlmcp:add(Pid, tool, #{name => ~"good", handler => fun(_, _) -> ~"" end,
                                 input_schema => #{properties => Named#{data => Data}}}).

%% "If the server does not implement the requested RPC method, it MUST respond with 404 Not Found
%% and a JSON-RPC error with code -32601 (Method not found)."
unknown_method_is_404(Config) ->
    [#{status := 404, messages := [#{~"id" := 1, ~"error" := #{~"code" := -32601}}]} =
         call(server(Config), Method, #{})
     || Method <- [~"unknown/method", ~"tools/callx", ~"Tools/list", ~"",
                   ~"notifications/cancelled"]].

%% "Removal of protocol-level sessions", and with them of what only sessions have.
removed_methods_are_404(Config) ->
    [#{status := 404, messages := [#{~"id" := 1, ~"error" := #{~"code" := -32601}}]} =
         call(server(Config), Method, Params)
     || {Method, Params} <- [{~"initialize",
                              #{protocolVersion => ~"2025-11-25", capabilities => #{},
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
    {Headers, Body} = message(~"tools/call", #{name => ~"stream"},
                              #{meta => #{progressToken => 1}}),
    ok = send(Socket, ~"POST", Headers, Body),
    {200, _} = head(Socket),
    {event, #{~"method" := ~"notifications/progress"}} = event(Socket),
    {Pid, _} = running(),
    close(Socket),
    _ = ended(Pid).

disconnect_ends_a_handler_that_traps_exits(_) ->
    Test = self(),
    Stubborn = fun(_, _) ->
        process_flag(trap_exit, true),
        Test ! {running, self(), #{}},
        receive never -> ~"" end
    end,
    Server = start(#{tools => [#{name => ~"stubborn", handler => Stubborn}]}),
    Socket = connect(Server),
    {Headers, Body} = message(~"tools/call", #{name => ~"stubborn"}, #{}),
    ok = send(Socket, ~"POST", Headers, Body),
    {Pid, _} = running(),
    close(Socket),
    _ = ended(Pid),
    erlmcp_test_http:stop(Server).
