-module(rfc9112_SUITE).
-moduledoc """
RFC 9112, HTTP/1.1: what it says a server or a recipient MUST do, each quoted where it is tried, and
what it says of malformed requests. `http1_beside_cowboy_SUITE` has many more of these, and
`http1_bounds_SUITE` the order of responses (9.3.2).
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([an_invalid_request_line_gets_400/1, an_invalid_chunk_gets_400/1,
         a_valid_chunked_body_is_read/1]).
-export([empty_lines_before_a_request_are_ignored/1, a_bare_cr_is_invalid/1,
         space_before_the_first_field_is_rejected/1, a_long_target_gets_414/1,
         a_host_is_required_once/1, the_absolute_form_is_accepted/1,
         the_host_of_an_absolute_target_counts/1, the_asterisk_form_is_accepted/1,
         space_before_a_colon_gets_400/1, a_folded_line_gets_400/1,
         http_1_0_has_no_transfer_codings/1, chunked_is_the_last_coding/1,
         two_lengths_are_refused/1, an_invalid_length_gets_400/1,
         an_incomplete_message_is_none/1, chunk_extensions_are_ignored/1,
         a_chunk_size_does_not_overflow/1, a_chunk_begins_with_its_size/1,
         trailers_are_discarded/1, trailers_are_fields/1, trailers_are_bounded/1,
         a_response_says_its_framing/1, a_body_is_read_or_the_connection_closed/1,
         close_ends_the_connection/1, http_1_0_persists_if_asked/1,
         an_unknown_expectation_gets_417/1, a_response_has_a_date/1]).
-export([octets_need_not_be_text/1, a_status_line_has_both_spaces/1,
         chunks_without_the_last_are_no_message/1, nothing_is_served_after_a_refusal/1,
         the_last_response_can_be_read/1, the_rest_is_not_read_for_ever/1,
         tls_ends_with_an_alert/1]).

-import(erlmcp_test_http, [connect/1, write/2, response/1, closed/1, close/1, message/3]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl], Config).

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

%% 7.1: "A recipient MUST be able to parse and decode the chunked transfer coding." 2.2: "the server
%% SHOULD respond with a 400 (Bad Request) response and close the connection."
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

%% Most cases: what is answered to these bytes, and whether the connection lives on.

server(Config) ->
    hd(proplists:get_value(servers, Config)).

answered(Bytes, Config) ->
    Socket = connect(server(Config)),
    ok = write(Socket, Bytes),
    Status = status(Socket),
    {Socket, Status}.

%% The connection ends with this answer.
refused(Status, Bytes, Config) ->
    {Socket, Got} = answered(Bytes, Config),
    {Bytes, Status} = {Bytes, Got},
    ok = closed(Socket).

served(Bytes, Config) ->
    served_by(server(Config), Bytes).

served_by(Server, Bytes) ->
    Socket = connect(Server),
    ok = write(Socket, Bytes),
    {Bytes, #{status := 200}} = {Bytes, response(Socket)},
    Socket.

lives(Socket) ->
    ok = write(Socket, listing()),
    #{status := 200} = response(Socket),
    close(Socket).

listing() -> listing(~"POST /mcp HTTP/1.1", [~"Host: localhost"]).

%% A request for a list, with this line and these fields in addition to its own.
listing(Line, Lines) ->
    {Headers, Body} = message(~"tools/list", #{}, #{}),
    head(Line, Lines ++ [[~"Content-Length: ", integer_to_binary(byte_size(Body))]
                         | [[Name, ~": ", Value] || {Name, Value} <- Headers]], Body).

head(Line, Lines, Body) ->
    iolist_to_binary([[[Each, ~"\r\n"] || Each <- [Line | Lines]], ~"\r\n", Body]).

%% 2.2: "a server that is expecting to receive and parse a request-line SHOULD ignore at least one
%% empty line (CRLF) received prior to the request-line."
empty_lines_before_a_request_are_ignored(Config) ->
    [lives(served([Empty, listing()], Config)) || Empty <- [~"\r\n", ~"\r\n\r\n\r\n"]].

%% 2.2: "A recipient of such a bare CR MUST consider that element to be invalid or replace each bare
%% CR with SP before processing the element or forwarding the message."
a_bare_cr_is_invalid(Config) ->
    {Size, Body} = sized(),
    [refused(400, Bytes, Config)
     || Bytes <- [listing(~"POST /mcp\rHTTP/1.1", [~"Host: localhost"]),
                  listing(~"POST /mcp HTTP/1.1", [~"Host: localhost", ~"X-Mine: a\rb"]),
                  chunked([Size, ~";a\rb\r\n", Body, ~"\r\n0\r\n\r\n"]),
                  chunked([Size, ~"\r\n", Body, ~"\r0\r\n\r\n"])]].

%% 2.2: "A recipient MUST parse an HTTP message as a sequence of octets in an encoding that is a
%% superset of US-ASCII".
octets_need_not_be_text(Config) ->
    [lives(served(listing(Line, [~"Host: localhost", <<"X-Mine: ", 16#C3, 16#28, 255>>]), Config))
     || Line <- [~"POST /mcp HTTP/1.1", <<"POST /mcp?", 16#C3, 16#28, 255, " HTTP/1.1">>]].

%% 2.2: "A recipient that receives whitespace between the start-line and the first header field MUST
%% either reject the message as invalid or consume each whitespace-preceded line".
space_before_the_first_field_is_rejected(Config) ->
    [refused(400, listing(~"POST /mcp HTTP/1.1", [Line, ~"Host: localhost"]), Config)
     || Line <- [~" Host: a", ~"\tHost: a", ~" "]].

%% 3: "A server that receives a request-target longer than any URI it wishes to parse MUST respond
%% with a 414 (URI Too Long) status code". "It is RECOMMENDED that all HTTP senders and recipients
%% support, at a minimum, request-line lengths of 8000 octets."
a_long_target_gets_414(Config) ->
    Line = fun(Size) ->
        Rest = Size - byte_size(~"POST /mcp? HTTP/1.1"),
        [~"POST /mcp?", binary:copy(~"a", Rest), ~" HTTP/1.1"]
    end,
    Longest = listing(Line(8_000), [~"Host: localhost"]),
    Socket = served(Longest, Config),
    %% The packets may end within the end of the line.
    <<First:8_001/binary, Rest/binary>> = Longest,
    ok = write(Socket, First),
    ok = until_read(byte_size(Longest) + byte_size(First), erlmcp_test_http:other_side(Socket)),
    ok = write(Socket, Rest),
    #{status := 200} = response(Socket),
    lives(Socket),
    refused(414, listing(Line(8_001), [~"Host: localhost"]), Config),
    %% The end of the line is not waited for.
    refused(414, [~"POST /", binary:copy(~"a", 8_000)], Config).

until_read(Bytes, Port) ->
    case inet:getstat(Port, [recv_oct]) of
        {ok, [{recv_oct, Bytes}]} -> ok;
        {ok, [{recv_oct, Fewer}]} when Fewer < Bytes -> until_read(Bytes, Port)
    end.

%% 3.2: "A server MUST respond with a 400 (Bad Request) status code to any HTTP/1.1 request message
%% that lacks a Host header field and to any request message that contains more than one Host header
%% field line or a Host header field with an invalid field value."
a_host_is_required_once(Config) ->
    [refused(400, listing(Line, Lines), Config)
     || {Line, Lines} <- [{~"POST /mcp HTTP/1.1", Lines}
                          || Lines <- [[], [~"Host: localhost", ~"Host: localhost"],
                                       [~"Host: a b"], [~"Host: a/b"], [~"Host: localhost:70000"]]]
                         ++ [{~"POST http://localhost/mcp HTTP/1.1", []},
                             {~"POST /mcp HTTP/1.0", [~"Host: localhost", ~"Host: localhost"]}]].

%% 3.2.2: "A server MUST accept the absolute-form in requests even though most HTTP/1.1 clients will
%% only send the absolute-form to a proxy."
the_absolute_form_is_accepted(Config) ->
    [lives(served(listing([~"POST ", Target, ~" HTTP/1.1"], [~"Host: localhost"]), Config))
     || Target <- [~"http://localhost/mcp", ~"HTTP://localhost:80/mcp?a"]].

%% 3.2.2: "When an origin server receives a request with an absolute-form of request-target, the
%% origin server MUST ignore the received Host header field (if any) and instead use the host
%% information of the request-target."
the_host_of_an_absolute_target_counts(Config) ->
    lives(served(listing(~"POST http://localhost/mcp HTTP/1.1", [~"Host: evil.example.com"]),
                 Config)),
    {Socket, 403} = answered(listing(~"POST http://evil.example.com/mcp HTTP/1.1",
                                     [~"Host: localhost"]), Config),
    close(Socket).

%% 3.2.4: "The asterisk-form of request-target is only used for a server-wide OPTIONS request".
the_asterisk_form_is_accepted(Config) ->
    {Socket, 404} = answered(head(~"OPTIONS * HTTP/1.1", [~"Host: localhost"], ~""), Config),
    close(Socket),
    refused(400, listing(~"POST * HTTP/1.1", [~"Host: localhost"]), Config).

%% 4: "A server MUST send the space that separates the status-code from the reason-phrase even when
%% the reason-phrase is absent".
a_status_line_has_both_spaces(Config) ->
    {Id, _} = erlmcp_test_http:initialize(server(Config), ~"2025-11-25"),
    [begin
         Socket = connect(server(Config)),
         ok = write(Socket, Bytes),
         {ok, <<"HTTP/1.1 ", Status:3/binary, Behind/binary>>} = gen_tcp:recv(Socket, 0, 30_000),
         {Status, <<" ", _/binary>>} = {Status, Behind},
         close(Socket)
     end || {Status, Bytes} <-
                [{~"200", listing()},
                 {~"204", head(~"DELETE /mcp HTTP/1.1",
                               [~"Host: localhost", [~"Mcp-Session-Id: ", Id]], ~"")},
                 {~"404", head(~"OPTIONS * HTTP/1.1", [~"Host: localhost"], ~"")},
                 {~"417", listing(~"POST /mcp HTTP/1.1", [~"Host: localhost", ~"Expect: more"])},
                 {~"431", listing(~"POST /mcp HTTP/1.1", [~"Host: localhost",
                                                          [~"X: ", binary:copy(~"y", 5_000)]])},
                 {~"501", listing(~"TRACE /mcp HTTP/1.1", [~"Host: localhost"])},
                 {~"505", listing(~"POST /mcp HTTP/1.2", [~"Host: localhost"])}]].

%% 5.1: "A server MUST reject, with a response status code of 400 (Bad Request), any received
%% request message that contains whitespace between a header field name and colon."
space_before_a_colon_gets_400(Config) ->
    [refused(400, listing(~"POST /mcp HTTP/1.1", [~"Host: localhost", Line]), Config)
     || Line <- [~"X-Mine : a", ~"X-Mine\t: a"]].

%% 5.2: "A server that receives an obs-fold in a request message that is not within a "message/http"
%% container MUST either reject the message by sending a 400 (Bad Request) [...] or replace each
%% received obs-fold with one or more SP octets".
a_folded_line_gets_400(Config) ->
    [refused(400, listing(~"POST /mcp HTTP/1.1", [~"Host: localhost", ~"X-Mine: a", Line]), Config)
     || Line <- [~" b", ~"\tb"]].

%% 6.1: "A server or client that receives an HTTP/1.0 message containing a Transfer-Encoding header
%% field MUST treat the message as if the framing is faulty, even if a Content-Length is present,
%% and close the connection after processing the message."
http_1_0_has_no_transfer_codings(Config) ->
    Coded = [~"Host: localhost", ~"Transfer-Encoding: chunked"],
    refused(400, listing(~"POST /mcp HTTP/1.0", Coded), Config),
    refused(400, head(~"POST /mcp HTTP/1.0", Coded, ~"0\r\n\r\n"), Config).

%% 6.3: "If a Transfer-Encoding header field is present in a request and the chunked transfer coding
%% is not the final encoding, the message body length cannot be determined reliably; the server MUST
%% respond with the 400 (Bad Request) status code and then close the connection." 6.1: "A sender
%% MUST NOT apply the chunked transfer coding more than once to a message body"; "A server that
%% receives a request message with a transfer coding it does not understand SHOULD respond with
%% 501".
chunked_is_the_last_coding(Config) ->
    [refused(Status, head(~"POST /mcp HTTP/1.1", [~"Host: localhost",
                                                  [~"Transfer-Encoding: ", Coding]], ~""), Config)
     || {Status, Coding} <- [{400, ~"gzip"}, {400, ~"chunked, gzip"}, {400, ~"chunked, chunked"},
                             {400, ~""}, {501, ~"gzip, chunked"}]].

%% 6.1: "A server MAY reject a request that contains both Content-Length and Transfer-Encoding or
%% process such a request in accordance with the Transfer-Encoding alone. Regardless, the server
%% MUST close the connection after responding to such a request".
two_lengths_are_refused(Config) ->
    refused(400, listing(~"POST /mcp HTTP/1.1", [~"Host: localhost",
                                                 ~"Transfer-Encoding: chunked"]), Config).

%% 6.3: "If a message is received without Transfer-Encoding and with an invalid Content-Length
%% header field, then the message framing is invalid and the recipient MUST treat it as an
%% unrecoverable error [...] the server MUST respond with a 400 (Bad Request) status code and then
%% close the connection."
an_invalid_length_gets_400(Config) ->
    [refused(400, head(~"POST /mcp HTTP/1.1", [~"Host: localhost" | Lines], ~"{}"), Config)
     || Lines <- [[~"Content-Length: -2"], [~"Content-Length: +2"], [~"Content-Length: 2.0"],
                  [~"Content-Length: 0x2"], [~"Content-Length: 2 2"], [~"Content-Length:"],
                  [~"Content-Length: 2, 3"], [~"Content-Length: 2", ~"Content-Length: 3"]]].

%% 6.3: "If the sender closes the connection or the recipient times out before the indicated number
%% of octets are received, the recipient MUST consider the message to be incomplete and close the
%% connection."
an_incomplete_message_is_none(Config) ->
    Server = server(Config),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    {Headers, Body} = message(~"resources/subscribe", #{uri => ~"test://none"},
                              #{session => Session}),
    Socket = connect(Server),
    ok = write(Socket, head(~"POST /mcp HTTP/1.1",
                            [~"Host: localhost",
                             [~"Content-Length: ", integer_to_binary(byte_size(Body) + 1)]
                             | [[Name, ~": ", Value] || {Name, Value} <- Headers]], Body)),
    ok = gen_tcp:shutdown(Socket, write),
    {error, closed} = gen_tcp:recv(Socket, 0, 30_000),
    close(Socket).

%% 8: "A message body that uses the chunked transfer coding is incomplete if the zero-sized chunk
%% that terminates the encoding has not been received."
chunks_without_the_last_are_no_message(Config) ->
    {Size, Body} = sized(),
    Socket = connect(server(Config)),
    ok = write(Socket, chunked([Size, ~"\r\n", Body, ~"\r\n"])),
    ok = gen_tcp:shutdown(Socket, write),
    {error, closed} = gen_tcp:recv(Socket, 0, 30_000),
    close(Socket).

%% 7.1.1: "A recipient MUST ignore unrecognized chunk extensions."
chunk_extensions_are_ignored(Config) ->
    [lives(served(chunked([[Size, Extension, ~"\r\n", Body, ~"\r\n0", Extension, ~"\r\n\r\n"]
                           || {Size, Body} <- [sized()]]), Config))
     || Extension <- [~";a", ~";a=b", ~";a=\"b c\";d"]].

sized() ->
    {_, Body} = message(~"tools/list", #{}, #{}),
    {integer_to_binary(byte_size(Body), 16), Body}.

chunked(Body) ->
    {Headers, _} = message(~"tools/list", #{}, #{}),
    head(~"POST /mcp HTTP/1.1",
         [~"Host: localhost", ~"Transfer-Encoding: chunked"
          | [[Name, ~": ", Value] || {Name, Value} <- Headers]], Body).

%% 7.1: "recipients MUST anticipate potentially large hexadecimal numerals and prevent parsing
%% errors due to integer conversion overflows or precision loss due to integer representation."
a_chunk_size_does_not_overflow(Config) ->
    {Size, Body} = sized(),
    %% Their last digits are those of the size.
    [refused(Status, chunked([Large, Size, ~"\r\n", Body, ~"\r\n0\r\n\r\n"]), Config)
     || {Status, Large} <- [{400, [~"1", binary:copy(~"0", 16)]},
                            {400, [~"1", binary:copy(~"0", 32)]}]].

%% 7.1: "chunk = chunk-size [ chunk-ext ] CRLF chunk-data CRLF"; "chunk-size = 1*HEXDIG". 7.1.1:
%% "chunk-ext = *( BWS ";" BWS chunk-ext-name [...] )". If a proxy in between read another size, the
%% two would not agree on the beginning of the next request.
a_chunk_begins_with_its_size(Config) ->
    {Size, Body} = sized(),
    [refused(400, chunked([Size, ~"\r\n", Body, ~"\r\n", Last, ~"\r\n\r\n"]), Config)
     || Last <- [~";a", ~" ", ~"\t", ~"", ~"0 0", ~"0\ta", ~"0x0", ~"0\r", ~"0;a\n", ~"0;a\0"]],
    lives(served(chunked([Size, ~" \t;a\r\n", Body, ~"\r\n00 \r\n\r\n"]), Config)).

%% 7.1.2: "A recipient that removes the chunked coding from a message MAY selectively retain or
%% discard the received trailer fields. [...] A recipient MUST NOT merge a received trailer field
%% into the header section unless its corresponding header field definition explicitly permits and
%% instructs how the trailer field value can be safely merged." The next message begins behind them,
%% whatever they say about lengths.
trailers_are_discarded(Config) ->
    [begin
         Lines = [[Trailer, ~"\r\n"] || Trailer <- Trailers],
         Socket = served([trailed(Lines), listing()], Config),
         #{status := 200} = response(Socket),
         lives(Socket)
     end || Trailers <- [[~"Host: evil.example.com", ~"X: y"], [~"Content-Length: 5"],
                         [~"Transfer-Encoding: chunked"], [~"Connection: close"]]].

trailed(Trailers) ->
    {Size, Body} = sized(),
    chunked([Size, ~"\r\n", Body, ~"\r\n0\r\n", Trailers, ~"\r\n"]).

%% 7.1.2: "trailer-section = *( field-line CRLF )". 2.2: "A recipient of such a bare CR MUST
%% consider that element to be invalid or replace each bare CR with SP". 5.1: "A server MUST reject,
%% with a response status code of 400 (Bad Request), any received request message that contains
%% whitespace between a header field name and colon." 5.2: "A server that receives an obs-fold in a
%% request message [...] MUST either reject the message by sending a 400 (Bad Request) [...] or
%% replace each received obs-fold". RFC 9110, 5.5: "Field values containing CR, LF, or NUL
%% characters are invalid and dangerous [...]; a recipient of CR, LF, or NUL within a field value
%% MUST either reject the message or replace each of those characters with SP".
trailers_are_fields(Config) ->
    [refused(400, [trailed([Trailer, ~"\r\n"]), listing()], Config)
     || Trailer <- [~"X: a\rb", ~"\rX: a", ~"X: a\r", ~"X: a\nY: b", ~"X: a\0", ~"X : a",
                    ~"X: a\r\n b", ~" X: a", ~"X", ~": a", ~"X\xe9: a", ~"X Y: a",
                    ~"POST /mcp HTTP/1.1"]].

%% RFC 9110, 5.4: "A server that receives a request header field line, field value, or set of fields
%% larger than it wishes to process MUST respond with an appropriate 4xx (Client Error) status
%% code." It wishes to process 4,096 octets and 100 fields, whichever packets they come in.
trailers_are_bounded(Config) ->
    Octets = fun(Count) -> [~"X: ", binary:copy(~"y", Count - 5), ~"\r\n"] end,
    [begin
         lives(served(trailed(Octets(4_096)), Config)),
         lives(served(trailed(lists:duplicate(100, ~"X: y\r\n")), Config)),
         Socket = connect(server(Config)),
         <<First:(byte_size(Whole) - Last)/binary, Rest/binary>> = Whole,
         ok = write(Socket, First),
         {error, timeout} = gen_tcp:recv(Socket, 0, 100),
         ok = write(Socket, Rest),
         #{status := 200} = response(Socket),
         lives(Socket)
     end || Whole <- [iolist_to_binary(trailed(Octets(4_096)))], Last <- [1, 2, 3]],
    refused(400, trailed(Octets(4_097)), Config),
    refused(400, trailed(lists:duplicate(101, ~"X: y\r\n")), Config),
    %% The end of them is not waited for.
    {Size, Body} = sized(),
    Long = binary:copy(~"y", 4_096),
    refused(400, chunked([Size, ~"\r\n", Body, ~"\r\n0\r\nX: ", Long]), Config).

%% 6.1: "A server MUST NOT send a response containing Transfer-Encoding unless the corresponding
%% request indicates HTTP/1.1 (or later minor revisions)"; "A server MUST NOT send a
%% Transfer-Encoding header field in any response with a status code of 1xx (Informational) or 204
%% (No Content)." 6.2: "A sender MUST NOT send a Content-Length header field in any message that
%% contains a Transfer-Encoding header field."
a_response_says_its_framing(Config) ->
    {Headers, Body} = message(~"subscriptions/listen", #{notifications => #{}}, #{}),
    Length = [~"Content-Length: ", integer_to_binary(byte_size(Body))],
    Listen = fun(Line) ->
        Listening = connect(server(Config)),
        Lines = [[Name, ~": ", Value] || {Name, Value} <- Headers],
        ok = write(Listening, head(Line, [~"Host: localhost", Length | Lines], Body)),
        {200, Received} = erlmcp_test_http:head(Listening),
        close(Listening),
        maps:with([~"transfer-encoding", ~"content-length", ~"connection"], Received)
    end,
    [{~"transfer-encoding", ~"chunked"}] = maps:to_list(Listen(~"POST /mcp HTTP/1.1")),
    [{~"connection", ~"close"}] = maps:to_list(Listen(~"POST /mcp HTTP/1.0")),
    {Id, _} = erlmcp_test_http:initialize(server(Config), ~"2025-11-25"),
    Socket = connect(server(Config)),
    ok = write(Socket, head(~"DELETE /mcp HTTP/1.1",
                            [~"Host: localhost", [~"Mcp-Session-Id: ", Id]], ~"")),
    {204, Gone} = erlmcp_test_http:head(Socket),
    [] = framing(Gone),
    ok = write(Socket, head(~"POST /mcp HTTP/1.1",
                            [~"Host: localhost", ~"Expect: 100-continue", Length
                             | [[Name, ~": ", Value] || {Name, Value} <- Headers]], ~"")),
    {100, Continue} = erlmcp_test_http:head(Socket),
    [] = framing(Continue),
    close(Socket).

framing(Headers) ->
    [Name || Name := _ <- Headers, lists:member(Name, [~"transfer-encoding", ~"content-length"])].

%% 9.3: "In order to remain persistent, all messages on a connection need to have a self-defined
%% message length". "A server MUST read the entire request message body or close the connection
%% after sending its response; otherwise, the remaining data on a persistent connection would be
%% misinterpreted".
a_body_is_read_or_the_connection_closed(Config) ->
    Wrong = fun(Length) -> head(~"POST /mcp HTTP/1.1",
                                [~"Host: localhost", ~"Content-Type: text/plain",
                                 [~"Content-Length: ", integer_to_binary(Length)]], ~"") end,
    %% As a request it would be answered.
    Socket = connect(server(Config)),
    ok = write(Socket, [Wrong(byte_size(listing())), listing()]),
    #{status := 415} = response(Socket),
    lives(Socket),
    refused(415, Wrong(1_000_001), Config).

%% 9.6: "A server that receives a "close" connection option MUST initiate closure of the connection
%% (see below) after it sends the final response to the request that contained the "close"
%% connection option. The server SHOULD send a "close" connection option in its final response on
%% that connection. The server MUST NOT process any further requests received on that connection."
close_ends_the_connection(Config) ->
    Server = server(Config),
    {Id, _} = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    Delete = head(~"DELETE /mcp HTTP/1.1", [~"Host: localhost", [~"Mcp-Session-Id: ", Id]], ~""),
    [begin
         Socket = connect(Server),
         ok = write(Socket, [listing(Line, [~"Host: localhost", [~"Connection: ", Option]]),
                             Delete]),
         #{status := 200, headers := #{~"connection" := ~"close"}} = response(Socket),
         ok = closed(Socket)
     end || Line <- [~"POST /mcp HTTP/1.1", ~"POST /mcp HTTP/1.0"],
            Option <- [~"close", ~"CLOSE", ~"keep-alive, close"]],
    %% It was not processed.
    {Socket, 204} = answered(Delete, Config),
    close(Socket).

%% 9.6: "A server that sends a "close" connection option MUST initiate closure of the connection
%% (see below) after it sends the response containing the "close" connection option. The server MUST
%% NOT process any further requests received on that connection."
nothing_is_served_after_a_refusal(Config) ->
    Server = server(Config),
    {Id, _} = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    Delete = head(~"DELETE /mcp HTTP/1.1", [~"Host: localhost", [~"Mcp-Session-Id: ", Id]], ~""),
    [begin
         Socket = connect(Server),
         ok = write(Socket, [Bytes, Delete]),
         {Bytes, #{status := Status, headers := #{~"connection" := ~"close"}}} =
             {Bytes, response(Socket)},
         ok = closed(Socket)
     end || {Status, Bytes} <-
                [{400, listing(~"POST /mcp HTTP/1.1", [])},
                 {501, listing(~"TRACE /mcp HTTP/1.1", [~"Host: localhost"])},
                 {400, chunked(~"x\r\n")}]],
    {Socket, 204} = answered(Delete, Config),
    close(Socket).

%% 9.3: "If the received protocol is HTTP/1.0, the "keep-alive" connection option is present, [...]
%% the connection will persist after the current response; otherwise, The connection will close
%% after the current response."
http_1_0_persists_if_asked(Config) ->
    Old = ~"POST /mcp HTTP/1.0",
    Socket = connect(server(Config)),
    ok = write(Socket, listing(Old, [~"Connection: keep-alive"])),
    #{status := 403} = response(Socket),
    ok = write(Socket, listing(Old, [~"Host: localhost", ~"Connection: keep-alive"])),
    #{status := 200, headers := #{~"connection" := ~"keep-alive"}} = response(Socket),
    lives(Socket),
    refused(200, listing(Old, [~"Host: localhost"]), Config).

%% RFC 9110, 10.1.1: "A server that receives an Expect field value containing a member other than
%% 100-continue MAY respond with a 417"; "A server that receives a 100-continue expectation in an
%% HTTP/1.0 request MUST ignore that expectation."
an_unknown_expectation_gets_417(Config) ->
    refused(417, listing(~"POST /mcp HTTP/1.1", [~"Host: localhost", ~"Expect: more"]), Config),
    Ignored = served(listing(~"POST /mcp HTTP/1.0", [~"Host: localhost", ~"Expect: 100-continue"]),
                     Config),
    ok = closed(Ignored).

%% 9.6: "If a server performs an immediate close of a TCP connection, there is a significant risk
%% that the client will not be able to read the last HTTP response." The server reads for a second
%% what the client still sends.
the_last_response_can_be_read(_) ->
    [erlmcp_test_pauses:undisturbed(50, fun() ->
         Server = erlmcp_test_http:start(#{listen => [{http, Listener}]}),
         Socket = connect(Server),
         ok = write(Socket, head(~"POST /mcp HTTP/1.1",
                                 [~"Host: localhost", ~"Content-Type: text/plain",
                                  ~"Content-Length: 5000000"], ~"")),
         ok = write(Socket, binary:copy(~"x", 5_000_000)),
         #{status := 415} = response(Socket),
         close(Socket),
         erlmcp_test_http:stop(Server)
     end) || Listener <- [#{}, #{tls => erlmcp_test_http:shown()},
                          #{tls => [{versions, ['tlsv1.2']} | erlmcp_test_http:shown()]}]].

%% A client that goes on sending does not keep its connection: that is read for two seconds at most.
the_rest_is_not_read_for_ever(_) ->
    [begin
         #{pid := Pid} = Server = erlmcp_test_http:start(#{listen => [{http, Listener}]}),
         [Ref] = [Id || {{listener, Id}, _, _, _} <- supervisor:which_children(Pid)],
         Socket = served_by(Server, listing()),
         ok = write(Socket, listing(~"TRACE /mcp HTTP/1.1", [~"Host: localhost"])),
         ok = erlmcp_test_servers:await(fun() ->
             _ = case is_port(Socket) of
                 true -> gen_tcp:send(Socket, ~"x");
                 false -> ssl:send(Socket, ~"x")
             end,
             case ranch:procs(Ref, connections) of
                 [] -> {ok, ok};
                 [_] -> again
             end
         end),
         close(Socket),
         erlmcp_test_http:stop(Server)
     end || Listener <- [#{}, #{tls => erlmcp_test_http:shown()},
                         #{tls => [{versions, ['tlsv1.2']} | erlmcp_test_http:shown()]}]].

%% 9.8: "Servers MUST attempt to initiate an exchange of closure alerts with the client before
%% closing the connection." In TLS 1.2 a record says outside that it is an alert: 21.
tls_ends_with_an_alert(_) ->
    Server = erlmcp_test_http:start(#{listen => [{http, #{tls => erlmcp_test_http:shown()}}]}),
    21 = lists:last(erlmcp_test_tls_relay:record_types(Server, [], fun(Socket) ->
        ok = write(Socket, listing(~"POST /mcp HTTP/1.1",
                                   [~"Host: localhost", ~"Connection: close"])),
        #{status := 200} = response(Socket),
        ok = closed(Socket)
    end)),
    erlmcp_test_http:stop(Server).

%% RFC 9110, 6.6.1: "An origin server with a clock [...] MUST generate a Date header field in all
%% 2xx (Successful), 3xx (Redirection), and 4xx (Client Error) responses".
a_response_has_a_date(Config) ->
    {Id, _} = erlmcp_test_http:initialize(server(Config), ~"2025-11-25"),
    [begin
         Socket = connect(server(Config)),
         ok = write(Socket, Bytes),
         {Bytes, {Status, #{~"date" := _}}} = {Bytes, erlmcp_test_http:head(Socket)},
         close(Socket)
     end || {Status, Bytes} <-
                [{200, listing()},
                 {204, head(~"DELETE /mcp HTTP/1.1",
                            [~"Host: localhost", [~"Mcp-Session-Id: ", Id]], ~"")},
                 {403, listing(~"POST /mcp HTTP/1.1", [~"Host: localhost",
                                                       ~"Origin: http://evil.example.com"])},
                 {404, head(~"OPTIONS * HTTP/1.1", [~"Host: localhost"], ~"")},
                 {405, head(~"PUT /mcp HTTP/1.1", [~"Host: localhost"], ~"")}]],
    Socket = connect(server(Config)),
    ok = write(Socket, ~"POST\r\n\r\n"),
    {400, #{~"date" := _, ~"content-length" := ~"0", ~"connection" := ~"close"}} =
        erlmcp_test_http:head(Socket),
    ok = closed(Socket).
