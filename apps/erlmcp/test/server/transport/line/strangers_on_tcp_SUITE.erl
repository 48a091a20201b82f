-module(strangers_on_tcp_SUITE).
-moduledoc """
Programs that are no MCP clients reach a TCP port. A web page can send its visitor's machine any
bytes behind the head of an HTTP request. A peer that does not begin with a message is answered once
and closed, and none of its lines is run.
""".

-export([suite/0, all/0, end_per_testcase/2]).
-export([request_of_a_page_is_not_read/1, page_in_a_browser_calls_nothing/1,
         first_line_is_a_message/1, first_line_has_a_bound/1, blank_lines_are_no_lines/1,
         batch_of_messages_is_one/1, error_without_an_id_is_a_message/1,
         later_lines_are_answered/1, http_is_never_a_line/1,
         what_came_before_is_answered/1, end_of_input_is_no_way_around/1]).

-import(erlmcp_test_line, [serve/1, port/1, connect/1, send/2, recv/1, recv_line/2, rest/1,
                           is_quiet/1, ask/4, initialize/2, request/3, stateless/3,
                           code/1, result/1, waiting_tool/1]).

-define(PATIENCE, 30_000).
%% A browser starts slowly where the machine has other work.
-define(BROWSER, 120_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [request_of_a_page_is_not_read, page_in_a_browser_calls_nothing, first_line_is_a_message,
     first_line_has_a_bound, blank_lines_are_no_lines, batch_of_messages_is_one,
     error_without_an_id_is_a_message,
     later_lines_are_answered, http_is_never_a_line, what_came_before_is_answered,
     end_of_input_is_no_way_around].

%% No case leaves a call behind, answered or not.
end_per_testcase(_, _) ->
    receive {called, _, _, _} -> {fail, a_tool_was_called} after 0 -> ok end.

%% The bytes of a page's `fetch` with `mode: 'no-cors'`, in one piece and in two.
request_of_a_page_is_not_read(_) ->
    Server = server(),
    [begin
         Socket = connect(Server),
         [ok = gen_tcp:send(Socket, Piece) || Piece <- Pieces],
         turned_away(-32700, Socket)
     end || Pieces <- [[[head(~"POST / HTTP/1.1"), body()]],
                       [head(~"POST / HTTP/1.1"), body()],
                       [~"POST / HTTP/1.1\r\n", ~"Host: localhost\r\n\r\n", body()]]].

server() ->
    serve(#{tools => [waiting_tool(~"wait")], limits => #{message_bytes => 10_000}}).

head(RequestLine) ->
    [RequestLine, ~"\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\nContent-Length: ",
     integer_to_binary(iolist_size(body())), ~"\r\n\r\n"].

body() ->
    [~"\n", line(call()), line(call())].

line(Message) -> [json:encode(Message), $\n].

call() -> stateless(1, ~"tools/call", #{~"name" => ~"wait", ~"arguments" => #{}}).

%% The peer gets one answer, and then the end. If a tool ran, the connection would wait for it.
turned_away(Code, Socket) ->
    #{~"error" := #{~"code" := Code}} = Refused = recv(Socket),
    {error, closed} = recv_line(Socket, ?PATIENCE),
    Refused.

%% A page of another origin, in a real browser. Between that and the server something passes all on
%% and keeps it, so that it is seen that the page's request has reached the server.
page_in_a_browser_calls_nothing(Config) ->
    Browser = erlmcp_test_installed:path("chromium"),
    {Relay, Port} = relay(port(server())),
    Page = page(Port),
    Profile = filename:join(proplists:get_value(priv_dir, Config), "profile"),
    Window = open(Browser, Profile, Page),
    {Sent, Answered} =
        try
            receive
                {Relay, PassedOn} -> settled(Page), PassedOn
            after ?BROWSER ->
                error(connection_goes_on)
            end
        after
            ct:log("~ts", [leave(Window)]),
            _ = file:del_dir_r(Profile)
        end,
    <<"POST / HTTP/1.1\r\n", _/binary>> = Sent,
    [_, Body] = binary:split(Sent, ~"\r\n\r\n"),
    true = iolist_to_binary(body()) =:= Body,
    [Answer] = binary:split(Answered, ~"\n", [global, trim]),
    -32700 = code(json:decode(Answer)).

%% The browser keeps its files there.
open(Browser, Profile, Page) ->
    ok = filelib:ensure_path(Profile),
    open_port({spawn_executable, Browser},
              [{args, ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
                       "--no-first-run", "--disable-background-networking",
                       "--disable-component-update", "--disable-sync",
                       "--user-data-dir=" ++ Profile,
                       "http://localhost:" ++ integer_to_list(Page)]},
               {env, [{"HOME", Profile}]}, binary, stderr_to_stdout, exit_status]).

%% A server of one page, that sends its request when it is loaded, and says when that is over.
page(Target) ->
    Test = self(),
    Page = [~"<!doctype html><script>fetch('http://127.0.0.1:", integer_to_binary(Target),
            ~"/', {method: 'POST', mode: 'no-cors', headers: {'content-type': 'text/plain'}, ",
            ~"body: ", json:encode(iolist_to_binary(body())), ~"})",
            ~".finally(() => fetch('/settled'))</script>"],
    {ok, Listen} = gen_tcp:listen(0, [binary, {packet, http_bin}, {active, false}]),
    {ok, Port} = inet:port(Listen),
    _ = spawn_link(fun() -> pages(Listen, Page, {Port, Test}) end),
    Port.

pages(Listen, Page, {Port, Test} = Reader) ->
    {ok, Socket} = gen_tcp:accept(Listen),
    case gen_tcp:recv(Socket, 0) of
        {ok, {http_request, _, {abs_path, ~"/settled"}, _}} -> Test ! {settled, Port};
        _ -> ok
    end,
    ok = read_head(Socket),
    _ = gen_tcp:send(Socket, [~"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n",
                              ~"Connection: close\r\nContent-Length: ",
                              integer_to_binary(iolist_size(Page)), ~"\r\n\r\n", Page]),
    ok = gen_tcp:close(Socket),
    pages(Listen, Page, Reader).

read_head(Socket) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, {http_header, _, _, _, _}} -> read_head(Socket);
        _ -> ok
    end.

settled(Page) ->
    receive {settled, Page} -> ok after ?PATIENCE -> error(the_page_waits) end.

%% Passes on what comes on its first connection, both ways, and tells it when the server has closed.
relay(Target) ->
    Test = self(),
    {ok, Listen} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {active, false}]),
    {ok, Port} = inet:port(Listen),
    Relay = spawn_link(fun() ->
        {ok, Page} = gen_tcp:accept(Listen),
        {ok, Server} = gen_tcp:connect({127, 0, 0, 1}, Target, [binary, {active, true}]),
        ok = inet:setopts(Page, [{active, true}]),
        Test ! {self(), passed_on(Page, Server, ~"", ~"")},
        ok = gen_tcp:close(Page)
    end),
    {Relay, Port}.

passed_on(Page, Server, Sent, Answered) ->
    receive
        {tcp, Page, Bytes} ->
            _ = gen_tcp:send(Server, Bytes),
            passed_on(Page, Server, <<Sent/binary, Bytes/binary>>, Answered);
        {tcp, Server, Bytes} ->
            _ = gen_tcp:send(Page, Bytes),
            passed_on(Page, Server, Sent, <<Answered/binary, Bytes/binary>>);
        {tcp_closed, Server} ->
            {Sent, Answered};
        {tcp_closed, Page} ->
            _ = gen_tcp:shutdown(Server, write),
            passed_on(Page, Server, Sent, Answered)
    end.

%% Chromium ends its own processes when it is asked to end. Gives what it has said.
leave(Window) ->
    case erlang:port_info(Window, os_pid) of
        {os_pid, Pid} -> os:cmd("kill " ++ integer_to_list(Pid));
        undefined -> ended
    end,
    said(Window, []).

said(Window, Said) ->
    receive
        {Window, {data, Bytes}} -> said(Window, [Said, Bytes]);
        {Window, {exit_status, _}} -> iolist_to_binary(Said)
    after ?PATIENCE ->
        iolist_to_binary(Said)
    end.

%% The first line has to be a JSON-RPC message: lines behind any other are not run.
first_line_is_a_message(_) ->
    Server = server(),
    [begin
         Socket = connect(Server),
         ok = gen_tcp:send(Socket, [First, $\n, body()]),
         {First, _} = {First, turned_away(Code, Socket)}
     end || {Code, First} <-
                [{-32700, Line} || Line <- no_json()]
                ++ [{-32600, Line} || Line <- [~"{}", ~"[]", ~"1", ~"null", ~"\"POST\"", ~"[1]",
                                               ~'{"jsonrpc":"1.0","id":1,"method":"ping"}',
                                               ~'{"jsonrpc":"2.0","id":1}',
                                               ~'[{"jsonrpc":"2.0","id":1,"method":"ping"}, {}]']]].

no_json() ->
    [~"GET / HTTP/1.1\r", ~"GET /", ~"PRI * HTTP/2.0\r", ~"OPTIONS * HTTP/1.0",
     ~"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r", ~"USER anonymous\r", ~"EHLO localhost\r", ~"x",
     ~"data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}", ~"{\"jsonrpc\":",
     %% TLS's ClientHello and STUN's Allocate: a page, or a server that it came from, can have bytes
     %% of its own in both.
     <<22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3, (binary:copy(<<7>>, 32))/binary, 32>>,
     <<0, 3, 0, 8, 16#21, 16#12, 16#a4, 16#42, 1:96, 0, 6, 0, 4>>, <<255, 254, ${, $}>>].

%% A line that is too long is no message, even before its end.
first_line_has_a_bound(_) ->
    Server = server(),
    Socket = connect(Server),
    ok = gen_tcp:send(Socket, [~"{\"a\":\"", binary:copy(~"x", 20_000)]),
    #{~"error" := #{~"code" := 1068}} = recv(Socket),
    {error, closed} = recv_line(Socket, ?PATIENCE),
    WithMore = connect(Server),
    ok = gen_tcp:send(WithMore, [binary:copy(~"x", 20_000), $\n, body()]),
    _ = turned_away(1068, WithMore).

%% Lines of nothing are left out, at the beginning too.
blank_lines_are_no_lines(_) ->
    Socket = connect(server()),
    ok = gen_tcp:send(Socket, ~"\r\n\n  \n\t\n"),
    #{} = result(ask(Socket, 1, ~"ping", #{})),
    Other = connect(server()),
    ok = gen_tcp:send(Other, [~"\r\n\n", head(~"POST / HTTP/1.1"), body()]),
    turned_away(-32700, Other).

%% It is refused where there are no batches, and its sender is a client.
batch_of_messages_is_one(_) ->
    Socket = connect(server()),
    send(Socket, [request(1, ~"ping", #{})]),
    -32600 = code(recv(Socket)),
    #{} = result(ask(Socket, 2, ~"ping", #{})).

%% A client that could not read a message of the server says so without an id.
error_without_an_id_is_a_message(_) ->
    Socket = connect(server()),
    send(Socket, #{jsonrpc => ~"2.0", error => #{code => -32700, message => ~"what?"}}),
    #{} = result(ask(Socket, 1, ~"ping", #{})).

%% A client that began with a message gets an error for a wrong line, and goes on.
later_lines_are_answered(_) ->
    Socket = connect(server()),
    _ = initialize(Socket, ~"2025-11-25"),
    [begin
         send(Socket, Line),
         -32700 = code(recv(Socket)),
         true = is_quiet(Socket)
     end || Line <- no_json(), not is_http(Line)],
    send(Socket, ~"{}"),
    -32600 = code(recv(Socket)),
    send(Socket, binary:copy(~"x", 20_000)),
    1068 = code(recv(Socket)),
    true = is_quiet(Socket).

is_http(Line) -> binary:match(Line, ~" HTTP/") =/= nomatch.

%% An HTTP request's first line ends the connection of a client, too.
http_is_never_a_line(_) ->
    Server = server(),
    [begin
         Socket = connect(Server),
         _ = initialize(Socket, ~"2025-11-25"),
         ok = gen_tcp:send(Socket, [head(RequestLine), body()]),
         {RequestLine, _} = {RequestLine, turned_away(-32700, Socket)}
     end || RequestLine <- [~"GET / HTTP/1.1", ~"POST /mcp?a=b HTTP/1.1", ~"PRI * HTTP/2.0",
                            ~"OPTIONS * HTTP/1.0", ~"CONNECT localhost:1 HTTP/1.1",
                            ~"M-SEARCH * HTTP/1.1", ~"x /a b HTTP/9.9", ~"GET\t/\tHTTP/1.1",
                            ~"QUERY http://a/ HTTP/3", ~"GET / HTTP/1.1 \r\r"]],
    %% Lines that only look like a request of HTTP do not.
    Socket = connect(Server),
    #{} = result(ask(Socket, 1, ~"ping", #{})),
    [begin
         send(Socket, Line),
         -32700 = code(recv(Socket))
     end || Line <- [~"GET /", ~"HTTP/1.1 200 OK", ~"I read of HTTP/1.1 today", ~"GET / HTTP/1.1 x",
                     ~"{\"a\": GET / HTTP/1.1", ~"GET / HTTP/x", ~"GET / HTTP/1x1"]],
    true = is_quiet(Socket).

%% In one write: what stands before is served, what stands behind is not.
what_came_before_is_answered(_) ->
    Socket = connect(server()),
    ok = gen_tcp:send(Socket, [line(request(7, ~"ping", #{})), head(~"POST / HTTP/1.1"), body()]),
    #{~"id" := 7, ~"result" := #{}} = recv(Socket),
    turned_away(-32700, Socket).

%% A first line without an end is held to the same.
end_of_input_is_no_way_around(_) ->
    Socket = connect(server()),
    ok = gen_tcp:send(Socket, ~"POST / HTTP/1.1"),
    [#{~"error" := #{~"code" := -32700}}] = rest(Socket).
