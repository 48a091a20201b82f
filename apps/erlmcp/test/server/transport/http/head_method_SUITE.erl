-module(head_method_SUITE).
-moduledoc """
RFC 9110, section 9.3.2: "The HEAD method is identical to GET except that the server MUST NOT send
content in the response." On HTTP/1.1, in the clear and over TLS, and on HTTP/2.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([refusals_have_no_content/1, what_is_there_has_its_length/1,
         connections_without_a_place/1, those_behind_are_answered_in_step/1,
         what_ends_its_connection_has_none/1]).

-import(erlmcp_test_http, [connect/1, write/2, response/1, message/3, start/1, stop/1]).

-define(TIMEOUT, 30_000).
-define(PAGE, ~"https://app.example.com").
-define(METADATA, ~"/.well-known/oauth-protected-resource").
-define(LENGTH, ~"content-length").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, clear}, {group, tls}, {group, http2}].

groups() ->
    Cases = [refusals_have_no_content, what_is_there_has_its_length, connections_without_a_place],
    Http1 = Cases ++ [those_behind_are_answered_in_step, what_ends_its_connection_has_none],
    [{clear, Http1}, {tls, Http1}, {http2, Cases}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(tls, Config) -> [{listener, #{tls => erlmcp_test_http:shown()}} | Config];
init_per_group(Group, Config) -> [{listener, #{}}, {protocol, Group} | Config].

end_per_group(_, _) ->
    ok.

%% RFC 9110, 8.6: "a server MUST NOT send Content-Length in such a response unless its field value
%% equals the decimal number of octets that would have been sent in the content of a response if the
%% same request had used the GET method": a refusal names the method, and GET may be none.
refusals_have_no_content(Config) ->
    Server = serve(#{}, Config),
    {Protocol, _} = Connection = open(Server, Config),
    Ada = {~"authorization", ~"Bearer ada"},
    [begin
         {Status, Headers} = ask(Connection, ~"HEAD", Path, Sent, Body),
         {200, _} = in_step(Connection),
         {Path, false} = {Path, is_map_key(?LENGTH, Headers)}
     end || {Status, Path, Sent, Body} <-
            [{405, ~"/mcp", [Ada], ~""},
             {405, ~"/mcp", [Ada, {~"origin", ?PAGE}], ~""},
             {405, ~"/mcp", [Ada, {~"mcp-session-id", ~"none"}], ~""},
             {405, ~"/mcp", [Ada], ~"{}"},
             {405, ~"/mcp", [Ada], binary:copy(~" ", 10_000)},
             {401, ~"/mcp", [], ~""},
             {401, ~"/mcp", [], ~"{}"},
             {403, ~"/mcp", [Ada, {~"host", ~"evil.example.com"}], ~""},
             {403, ~"/mcp", [Ada, {~"origin", ~"null"}], ~""},
             {403, ?METADATA, [{~"host", ~"evil.example.com"}], ~""},
             {404, ~"/", [], ~""},
             {404, ~"/elsewhere", [], ~"{}"},
             {405, ~"/sse", [Ada], ~""},
             {405, ~"/messages?sessionId=none", [Ada], ~""}],
            %% Gun ends a request with HEAD on HTTP/2 before its body.
            Protocol =:= http1 orelse Body =:= ~""],
    ok = leave(Connection),
    stop(Server).

what_is_there_has_its_length(Config) ->
    Server = serve(#{}, Config),
    Connection = open(Server, Config),
    {200, #{?LENGTH := Length}} = ask(Connection, ~"HEAD", ?METADATA, [], ~""),
    {200, #{?LENGTH := Length}, Document} = whole(Connection, ~"GET", ?METADATA, [], ~""),
    Length = integer_to_binary(byte_size(Document)),
    {200, _} = in_step(Connection),
    ok = leave(Connection),
    stop(Server).

connections_without_a_place(Config) ->
    Server = serve(#{connections => 1}, Config),
    Connection = open(Server, Config),
    {200, _} = in_step(Connection),
    [begin
         Refused = open(Server, Config),
         {429, Headers} = ask(Refused, ~"HEAD", ~"/mcp", Sent, ~""),
         <<>> = left(Refused),
         false = is_map_key(?LENGTH, Headers)
     end || Sent <- [[], [{~"origin", ?PAGE}]]],
    {200, _} = in_step(Connection),
    ok = leave(Connection),
    stop(Server).

%% A proxy reads the next response where the one before it ends.
those_behind_are_answered_in_step(Config) ->
    Server = serve(#{}, Config),
    Post = post(),
    Chunks = [~"2\r\n{}\r\n0\r\n\r\n"],
    [begin
         {http1, Socket} = Connection = open(Server, Config),
         write(Socket, [Post, Head, Post, Head, Head, Post]),
         [{Status, _} = case Status of
              200 -> answered(Socket);
              _ -> erlmcp_test_http:head(Socket)
          end || Status <- [200, Refused, 200, Refused, Refused, 200]],
         ok = leave(Connection)
     end || {Refused, Head} <-
            [{401, request(~"HEAD", ~"/mcp", [], ~"")},
             {401, request(~"HEAD", ~"/mcp", [], ~"{}")},
             {401, [request(~"HEAD", ~"/mcp", [{~"transfer-encoding", ~"chunked"}], ~""), Chunks]},
             {404, request(~"HEAD", ~"/elsewhere", [], ~"")}]],
    stop(Server).

what_ends_its_connection_has_none(Config) ->
    Server = serve(#{}, Config),
    [begin
         {http1, Socket} = Connection = open(Server, Config),
         write(Socket, request(~"HEAD", Path, Headers, ~"")),
         {Status, #{~"connection" := ~"close"}} = erlmcp_test_http:head(Socket),
         <<>> = left(Connection)
     end || {Status, Path, Headers} <-
            [{401, ~"/mcp", [{?LENGTH, ~"1000001"}]},
             {404, ~"/elsewhere", [{?LENGTH, ~"1000001"}]},
             {401, ~"/mcp", [{?LENGTH, ~"2"}, {~"expect", ~"100-continue"}]},
             {401, ~"/mcp", [{~"connection", ~"close"}]}]],
    stop(Server).

%% The server.

serve(Limits, Config) ->
    Listener = (proplists:get_value(listener, Config))#{
        authenticate => fun authenticate/1, sse => #{}, allowed_origins => [?PAGE],
        protected_resource => #{authorization_servers => [~"https://as.example"]}},
    start((erlmcp_test_http:definitions(self()))#{limits => Limits, listen => [{http, Listener}]}).

authenticate(#{headers := #{~"authorization" := ~"Bearer ada"}}) -> {ok, ~"ada"};
authenticate(_) -> {error, ~"a token is needed"}.

%% Its client, on either protocol.

open(#{port := Port} = Server, Config) ->
    case proplists:get_value(protocol, Config) of
        http2 ->
            {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2], retry => 0}),
            {ok, _} = gun:await_up(Connection, ?TIMEOUT),
            {http2, Connection};
        _ ->
            {http1, connect(Server)}
    end.

leave({http1, Socket}) -> erlmcp_test_http:close(Socket);
leave({http2, Connection}) -> gun:close(Connection).

%% What comes behind the head of a response, to the end of its connection.
left({http1, Socket}) -> until_closed(Socket);
left({http2, Connection}) -> ok = gun:close(Connection), <<>>.

until_closed(Socket) ->
    Received = case is_port(Socket) of
        true -> gen_tcp:recv(Socket, 0, ?TIMEOUT);
        false -> ssl:recv(Socket, 0, ?TIMEOUT)
    end,
    case Received of
        {ok, Bytes} -> <<Bytes/binary, (until_closed(Socket))/binary>>;
        {error, closed} -> <<>>
    end.

%% A response that is its head, and ends with it.
ask({http1, Socket}, Method, Path, Headers, Body) ->
    write(Socket, request(Method, Path, Headers, Body)),
    erlmcp_test_http:head(Socket);
ask({http2, Connection}, Method, Path, Headers, Body) ->
    Stream = gun:request(Connection, Method, Path, Headers, Body),
    {response, fin, Status, Received} = gun:await(Connection, Stream, ?TIMEOUT),
    {Status, maps:from_list(Received)}.

whole({http1, Socket}, Method, Path, Headers, Body) ->
    write(Socket, request(Method, Path, Headers, Body)),
    {Status, Received} = erlmcp_test_http:head(Socket),
    {Status, Received, erlmcp_test_http:body(Socket, Received)};
whole({http2, Connection}, Method, Path, Headers, Body) ->
    Stream = gun:request(Connection, Method, Path, Headers, Body),
    {response, nofin, Status, Received} = gun:await(Connection, Stream, ?TIMEOUT),
    {ok, Content} = gun:await_body(Connection, Stream, ?TIMEOUT),
    {Status, maps:from_list(Received), Content}.

%% The answer to the next request, which is read where the response before it ends.
in_step(Connection) ->
    {Headers, Body} = listing(),
    {Status, _, Answer} = whole(Connection, ~"POST", ~"/mcp", Headers, Body),
    #{~"id" := 1, ~"result" := #{~"tools" := _}} = json:decode(Answer),
    {Status, Answer}.

answered(Socket) ->
    #{status := Status, messages := [#{~"result" := #{~"tools" := _}}]} = response(Socket),
    {Status, #{}}.

post() ->
    {Headers, Body} = listing(),
    request(~"POST", ~"/mcp", Headers, Body).

listing() ->
    message(~"tools/list", #{}, #{headers => #{~"authorization" => ~"Bearer ada"}}).

request(Method, Path, Headers, Body) ->
    Given = maps:from_list(Headers),
    Known = #{?LENGTH => integer_to_binary(byte_size(Body)) || Body =/= ~""},
    All = maps:merge(Known#{~"host" => ~"127.0.0.1"}, Given),
    [Method, $\s, Path, ~" HTTP/1.1\r\n", [[Name, ~": ", Value, ~"\r\n"] || Name := Value <- All],
     ~"\r\n", Body].
