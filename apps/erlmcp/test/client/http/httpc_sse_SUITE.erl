-module(httpc_sse_SUITE).
-moduledoc """
The client at servers of HTTP+SSE: specification 2024-11-05, "Transports / HTTP with SSE";
2025-11-25, "Transports / Backwards Compatibility". What it does with a good one is in
`client_operations_SUITE`; here are scripts on sockets.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([old_server_is_found/1, other_answers_are_no_reason_to_look/1,
         what_is_no_such_server_keeps_its_error/1, it_may_be_said/1,
         endpoint_of_another_origin_is_refused/1, first_event_is_the_endpoint/1,
         silence_is_bounded/1, relative_endpoint_is_resolved/1,
         response_before_the_post_is_taken/1, ended_stream_fails_its_calls/1,
         new_stream_is_a_new_session/1, unknown_session_is_opened_again/1,
         large_message_ends_the_stream/1, what_is_no_message_is_skipped/1,
         server_asks_on_the_stream/1, stop_closes_the_stream/1,
         slow_failures_are_failures/1]).

-import(erlmcp_test_peer, [event/1, result/2]).

-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [old_server_is_found, other_answers_are_no_reason_to_look,
     what_is_no_such_server_keeps_its_error, it_may_be_said, endpoint_of_another_origin_is_refused,
     first_event_is_the_endpoint, silence_is_bounded, relative_endpoint_is_resolved,
     response_before_the_post_is_taken, ended_stream_fails_its_calls, new_stream_is_a_new_session,
     unknown_session_is_opened_again, large_message_ends_the_stream, what_is_no_message_is_skipped,
     server_asks_on_the_stream, stop_closes_the_stream, slow_failures_are_failures].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% "If it fails with the following HTTP status codes "400 Bad Request", "404 Not Found" or "405
%% Method Not Allowed": Issue a GET request to the server URL, expecting that this will open an SSE
%% stream and return an `endpoint` event as the first event."
old_server_is_found(_) ->
    [begin
         {Client, _} = visit(fun(#{path := ~"/mcp", method := ~"POST"}) -> {Status, [], Body};
                                (Request) -> old(Request)
                             end, #{}),
         {ok, #{revision := '2024-11-05'}} = erlmcp_client:server(Client),
         {ok, [#{~"name" := ~"t"}]} = erlmcp_client:list_tools(Client),
         #{session := false} = erlmcp_client:info(Client),
         ok = erlmcp_client:stop(Client)
     end || {Status, Body} <- [{400, none}, {404, ~"<html>"}, {405, none},
                               {405, #{jsonrpc => ~"2.0", id => null,
                                       error => #{code => -32000, message => ~"not here"}}}]].

other_answers_are_no_reason_to_look(_) ->
    [begin
         {Client, _} = visit(fun(#{method := ~"GET"}) -> error(looked);
                                (_) -> {Status, [], none}
                             end, #{era => session}),
         {error, Reason} = erlmcp_client:list_tools(Client),
         true = lists:member(element(1, Reason), [http, unauthorized]),
         no_stream()
     end || Status <- [401, 403, 500, 503]].

what_is_no_such_server_keeps_its_error(_) ->
    {Client, _} = visit(fun(#{method := ~"POST"}) -> {404, [], ~"nothing here"};
                           (_) -> {200, [{~"content-type", ~"text/html"}], ~"<html>"}
                        end, #{}),
    {error, {http, 404, _, ~"nothing here"}} = erlmcp_client:list_tools(Client).

it_may_be_said(_) ->
    {Client, _} = visit(fun old/1, #{transport => sse}),
    {ok, [_]} = erlmcp_client:list_tools(Client),
    %% Nothing was posted to the URL itself.
    {peer, none} = receive {peer, _} = First -> First after ?WAIT -> none end,
    {error, {bad_option, transport, ~"sse"}} = start(~"http://127.0.0.1:1/", #{transport => tcp}).

start(Url, Options) ->
    Trap = process_flag(trap_exit, true),
    Outcome = erlmcp_client:start_link({http, Url, Options}),
    true = process_flag(trap_exit, Trap),
    Outcome.

%% Messages and tokens are for the origin that the user named.
endpoint_of_another_origin_is_refused(_) ->
    [begin
         {Client, _} = visit(fun(_) -> {events, [endpoint(Endpoint), follow]} end,
                             #{transport => sse}),
         {error, {protocol, <<"event endpoint", _/binary>>}} = erlmcp_client:list_tools(Client),
         ok = erlmcp_client:stop(Client)
     end || Endpoint <- [~"http://example.com/messages", ~"//example.com/messages",
                         ~"https://127.0.0.1/messages", ~"ftp:x", ~"a b"]].

%% "return an `endpoint` event as the first event".
first_event_is_the_endpoint(_) ->
    Early = event(#{jsonrpc => ~"2.0", method => ~"notifications/tools/list_changed"}),
    {Client, _} = visit(fun(_) -> {events, [~": hello\n\n", Early, endpoint(~"/m"), follow]} end,
                        #{transport => sse}),
    {error, {protocol, <<"events", _/binary>>}} = erlmcp_client:list_tools(Client).

silence_is_bounded(_) ->
    {Client, _} = visit(fun(_) -> {events, [~": hello\n\n", follow]} end,
                        #{transport => sse, connect_timeout => 200}),
    {error, {connect, timeout}} = erlmcp_client:list_tools(Client).

relative_endpoint_is_resolved(_) ->
    Test = self(),
    {Client, _} = visit(fun(#{method := ~"GET"}) ->
                                opened(),
                                {events, [endpoint(~"../post?s=1&t=%20"), follow]};
                           (#{path := Path} = Request) ->
                                Test ! {path, Path},
                                old(Request)
                        end, #{transport => sse}),
    {ok, _} = erlmcp_client:list_tools(Client),
    receive {path, ~"/post?s=1&t=%20"} -> ok after ?WAIT -> error(elsewhere) end.

%% The stream is another connection than the one that takes the message.
response_before_the_post_is_taken(_) ->
    {Client, _} = visit(fun(#{message := #{~"method" := ~"tools/list"} = Call}) ->
                                say(event(result(Call, #{tools => []}))),
                                receive after 50 -> {202, [], ~"Accepted"} end;
                           (Request) ->
                                old(Request)
                        end, #{transport => sse, connections => 1}),
    [{ok, []} = erlmcp_client:list_tools(Client) || _ <- lists:seq(1, 5)].

ended_stream_fails_its_calls(_) ->
    {Client, _} = visit(fun old/1, #{transport => sse}),
    {ok, _} = erlmcp_client:server(Client),
    {ok, Call} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
    _ = erlmcp_test_peer:received(~"tools/call"),
    say(close),
    receive {erlmcp, Call, {error, {closed, _}}} -> ok after ?WAIT -> error(no_outcome) end.

%% What belonged to the stream that ended is asked for again on the new one.
new_stream_is_a_new_session(_) ->
    {Client, _} = visit(fun old/1, #{transport => sse}),
    {ok, Subscription} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
    receive {erlmcp, Subscription, subscribed} -> ok after ?WAIT -> error(not_subscribed) end,
    _ = erlmcp_test_peer:received(~"initialize"),
    say(close),
    _ = erlmcp_test_peer:received(~"initialize"),
    receive {erlmcp, Subscription, subscribed} -> ok after ?WAIT -> error(not_again) end,
    {ok, [_]} = erlmcp_client:list_tools(Client),
    say(event(#{jsonrpc => ~"2.0", method => ~"notifications/tools/list_changed"})),
    receive {erlmcp, Subscription, tools_changed} -> ok after ?WAIT -> error(not_told) end.

%% A tool may be called again: the server has said that it did nothing.
unknown_session_is_opened_again(_) ->
    Posts = counters:new(1, []),
    {Client, _} = visit(fun(#{message := #{~"method" := ~"tools/call"} = Call}) ->
                                ok = counters:add(Posts, 1, 1),
                                case counters:get(Posts, 1) of
                                    1 ->
                                        {404, [], ~"no such session"};
                                    _ ->
                                        say(event(result(Call, #{content => []}))),
                                        {202, [], none}
                                end;
                           (Request) ->
                                old(Request)
                        end, #{transport => sse}),
    {ok, #{~"content" := []}} = erlmcp_client:call_tool(Client, ~"t", #{}),
    2 = counters:get(Posts, 1).

large_message_ends_the_stream(_) ->
    Large = binary:copy(~"x", 3000),
    {Client, _} = visit(fun(#{message := #{~"method" := ~"tools/call"} = Call}) ->
                                say(event(result(Call, #{content => [], large => Large}))),
                                {202, [], none};
                           (Request) ->
                                old(Request)
                        end, #{transport => sse, limits => #{message_bytes => 2000}}),
    {error, {too_large, 2000}} = erlmcp_client:call_tool(Client, ~"t", #{}),
    {ok, [_]} = erlmcp_client:list_tools(Client).

what_is_no_message_is_skipped(_) ->
    Noise = [~"data: hello\n\n", ~"event: other\ndata: {}\n\n", ~"data: {\"jsonrpc\": \"2.0\"}\n\n",
             event(#{jsonrpc => ~"2.0", id => 4711, result => #{}})],
    {Client, _} = visit(fun(#{message := #{~"method" := ~"tools/call"} = Call}) ->
                                [say(Event) || Event <- Noise],
                                say(event(result(Call, #{content => []}))),
                                {202, [], none};
                           (Request) ->
                                old(Request)
                        end, #{transport => sse}),
    {ok, #{~"content" := []}} = erlmcp_client:call_tool(Client, ~"t", #{}).

server_asks_on_the_stream(_) ->
    {Client, _} = visit(fun old/1, #{transport => sse,
                                     inputs => #{roots => [#{uri => ~"file:///"}]}}),
    {ok, _} = erlmcp_client:server(Client),
    say(event(#{jsonrpc => ~"2.0", id => ~"q", method => ~"roots/list"})),
    #{~"roots" := [#{~"uri" := ~"file:///"}]} = answer(~"q").

answer(Id) ->
    receive
        {peer, #{~"id" := Id, ~"result" := Result}} -> Result
    after ?WAIT ->
        error(no_answer)
    end.

stop_closes_the_stream(_) ->
    {Client, _} = visit(fun old/1, #{transport => sse}),
    {ok, _} = erlmcp_client:server(Client),
    Stream = erlang:whereis(?MODULE),
    Monitor = monitor(process, Stream),
    ok = erlmcp_client:stop(Client),
    receive {'DOWN', Monitor, process, Stream, _} -> ok after ?WAIT -> error(still_open) end.

%% An attempt that lasts as long as a steady stream is no stream. After the fifth failure in a row
%% the pause is at least 800 ms, and after the first one at most 100.
slow_failures_are_failures(_) ->
    Test = self(),
    Opened = counters:new(1, []),
    {Client, _} = visit(fun(#{method := ~"GET"} = Request) ->
                                ok = counters:add(Opened, 1, 1),
                                case counters:get(Opened, 1) of
                                    1 -> old(Request);
                                    5 -> unanswered(Test);
                                    6 -> Test ! {again, now_ms()}, {503, [], none};
                                    _ -> {503, [], none}
                                end;
                           (Request) ->
                                old(Request)
                        end, #{transport => sse, connect_timeout => 10_000}),
    {ok, [_]} = erlmcp_client:list_tools(Client),
    say(close),
    Failed = receive {failed, At} -> At after ?WAIT -> error(no_failure) end,
    Again = receive {again, Then} -> Then after ?WAIT -> error(not_again) end,
    true = Again - Failed >= 400,
    ok = erlmcp_client:stop(Client).

unanswered(Test) ->
    fun(Socket) ->
        {error, _} = gen_tcp:recv(Socket, 1),
        Test ! {failed, now_ms()},
        close
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).

%% A server of 2024-11-05, whose stream the test writes on: its connection has this suite's name.
old(#{method := ~"GET", path := ~"/mcp"}) ->
    opened(),
    {events, [endpoint(~"/messages?session=1"), follow]};
old(#{method := ~"POST", path := ~"/mcp"}) ->
    {405, [], none};
old(#{method := ~"POST", message := Message}) ->
    [say(event(Answer)) || Answer <- answers(Message)],
    {202, [], ~"Accepted"}.

answers(#{~"method" := ~"initialize"} = Message) ->
    [result(Message, #{protocolVersion => ~"2024-11-05", capabilities => #{tools => #{}},
                       serverInfo => #{name => ~"peer", version => ~"1"}})];
answers(#{~"method" := ~"tools/list"} = Message) ->
    [result(Message, #{tools => [#{name => ~"t", inputSchema => #{type => object}}]})];
answers(_) ->
    [].

opened() ->
    %% The one before may end just now.
    _ = try unregister(?MODULE) catch error:badarg -> true end,
    true = register(?MODULE, self()).

say(Piece) ->
    ?MODULE ! {say, Piece}.

endpoint(Url) ->
    [~"event: endpoint\ndata: ", Url, ~"\n\n"].

no_stream() ->
    receive {peer, none} -> error(looked) after 0 -> ok end.

visit(Answer, Options) ->
    #{url := Url} = Peer = erlmcp_test_peer:http(Answer),
    {ok, Client} = erlmcp_client:start_link({http, Url, Options}),
    {Client, Peer}.
