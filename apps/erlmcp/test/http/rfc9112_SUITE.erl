-module(rfc9112_SUITE).
-moduledoc "RFC 9112, HTTP/1.1: malformed requests are answered before their connection is closed.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([an_invalid_request_line_gets_400/1, an_invalid_chunk_gets_400/1,
         a_valid_chunked_body_is_read/1]).

-import(erlmcp_test_http, [connect/1, write/2, response/1, closed/1, close/1]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [an_invalid_request_line_gets_400, an_invalid_chunk_gets_400, a_valid_chunked_body_is_read].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    Who = #{authenticate => {process, fun who/1}},
    Servers = [erlmcp_test_http:start(#{listen => [{http, Options}]})
               || Options <- [#{sse => #{}}, Who]],
    [{servers, Servers} | Config].

end_per_testcase(_, Config) ->
    [erlmcp_test_http:stop(Server) || Server <- proplists:get_value(servers, Config)].

%% It is asked in a process of its own, which the body does not wait for.
who(_) ->
    receive after 200 -> {ok, ada} end.

%% 3: "Recipients of an invalid request-line SHOULD respond with either a 400 (Bad Request) error".
an_invalid_request_line_gets_400(Config) ->
    [Server | _] = proplists:get_value(servers, Config),
    [begin
         Socket = connect(Server),
         ok = write(Socket, [Line, ~"\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"]),
         {Line, 400} = {Line, status(Socket)},
         ok = closed(Socket)
     end || Line <- [~"POST /mcp now HTTP/1.1", ~"POST /mcp HTTP/1.1 now", ~"POST /mcp", ~"POST",
                     ~"POST  /mcp HTTP/1.1", ~"POST mcp HTTP/1.1"]].

%% 7.1: "A recipient MUST be able to parse and decode the chunked transfer coding"; 2.2: "the
%% recipient SHOULD respond with a 400 (Bad Request) response and close the connection".
an_invalid_chunk_gets_400(Config) ->
    [Server, Waiting] = proplists:get_value(servers, Config),
    #{endpoint := Messages} = Client = erlmcp_test_sse:open(Server),
    [begin
         Socket = connect(Of),
         ok = write(Socket, [head(Path), Chunks]),
         {Path, Chunks, 400} = {Path, Chunks, status(Socket)},
         ok = closed(Socket)
     end || {Of, Path} <- [{Server, ~"/mcp"}, {Server, Messages},
                           {Waiting, ~"/mcp"}],
            Chunks <- [~"zz\r\nabc\r\n0\r\n\r\n", ~"-3\r\nabc\r\n0\r\n\r\n", ~"\r\nabc",
                       ~"3\r\nabcd\r\n0\r\n\r\n", ~"ffffffffffffffffffffff\r\nabc"]],
    ok = erlmcp_test_sse:close(Client).

a_valid_chunked_body_is_read(Config) ->
    [begin
         Socket = connect(Server),
         {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, #{}),
         <<First:10/binary, Rest/binary>> = iolist_to_binary(Body),
         ok = write(Socket, [
             ~"POST /mcp HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n",
             [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers], ~"\r\n",
             chunk(First), chunk(Rest), ~"0\r\n\r\n"]),
         #{status := 200} = response(Socket),
         ok = close(Socket)
     end || Server <- proplists:get_value(servers, Config)].

chunk(Bytes) ->
    [integer_to_list(byte_size(Bytes), 16), ~";name=value\r\n", Bytes, ~"\r\n"].

head(Path) ->
    [~"POST ", Path, ~" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n",
     ~"Transfer-Encoding: chunked\r\n\r\n"].

status(Socket) ->
    {Status, _} = erlmcp_test_http:head(Socket),
    Status.
