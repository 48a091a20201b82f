-module(httpc_channel_SUITE).
-moduledoc """
The client's channel on HTTP, `m:erlmcp_httpc_channel`, against sockets that answer byte by byte
what a case says. Against a server of erlmcp's own: `httpc_channel_at_own_server_SUITE`.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, init_per_suite/1, end_per_suite/1]).
-export([headers/1, options/1, framings/1, refusals/1, odd_answers/1, ends_early/1,
         redirects/1, sessions_lost/1, taken/1, resumes/1, resumes_with_pauses/1,
         resumes_when_there_is_a_connection/1, resumes_in_another_attempt/1,
         resumes_nothing_at_its_end/1,
         ids_of_events_are_bounded/1, large/1, flood/1, reuses/1, closes/1, aborts/1, batch/1,
         unprocessed/1]).

-import(erlmcp_test_httpc_channel, [open/2, with_channel/3, outgoing/1, next/1, events/1,
                                     await/2]).

all() ->
    [headers, options, framings, refusals, odd_answers, ends_early, redirects, sessions_lost, taken,
     resumes, resumes_with_pauses, resumes_when_there_is_a_connection, resumes_in_another_attempt,
     resumes_nothing_at_its_end, ids_of_events_are_bounded, large, flood, reuses, closes, aborts,
     batch, unprocessed].

suite() ->
    [{timetrap, {minutes, 4}}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, ssl, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% What is sent beside the body.
headers(_) ->
    Options = #{headers => [{~"X-Own", ~"1"}], token => ~"secret"},
    Outgoing = #{session => ~"s1", headers => [{~"mcp-method", ~"ping"}]},
    Peer = peer([json(200, result(1))]),
    [_, {message, {response, 1, _}}] = told(Peer, Options, Outgoing),
    [#{headers := Headers, body := Body, line := Line}] = asked(Peer),
    ?assertEqual(~"POST /mcp?a=b HTTP/1.1", Line),
    ?assertEqual(~B'{"jsonrpc":"2.0","id":1,"method":"ping"}', Body),
    ?assertMatch(#{~"accept" := ~"application/json, text/event-stream",
                   ~"content-type" := ~"application/json", ~"x-own" := ~"1",
                   ~"authorization" := ~"Bearer secret", ~"mcp-session-id" := ~"s1",
                   ~"mcp-method" := ~"ping"}, Headers),
    ?assertEqual(iolist_to_binary([~"127.0.0.1:", integer_to_binary(maps:get(port, Peer))]),
                 maps:get(~"host", Headers)),
    [begin
         {ok, Parts} = erlmcp_httpc_target:parse(Url),
         ?assertEqual(Authority, erlmcp_httpc_target:authority(Parts))
     end || {Authority, Url} <- [{~"a.example", ~"http://A.example"}, {~"a", ~"http://a:80/"},
                                 {~"a", ~"https://a:443/"}, {~"a:80", ~"https://a:80"},
                                 {~"[::1]:8080", ~"http://[::1]:8080/mcp"},
                                 {~"[::1]", ~"http://[::1]/"}]],
    %% A session's id, and a method, come from elsewhere.
    with_channel(url(Peer), #{}, fun(Channel) ->
        [{error, {protocol, <<"header ", Name:Size/binary, ":", _/binary>>}} =
             erlmcp_httpc_channel:send(outgoing(Bad#{message => ping()}), Channel)
         || {Name, Bad} <- [{~"mcp-session-id", #{session => ~"a\r\nb: c"}},
                            {~"mcp-method", #{headers => [{~"mcp-method", ~"a\nb"}]}}],
            Size <- [byte_size(Name)]]
    end).

%% `{bad_option, Key, Expected}`.
options(_) ->
    [?assertMatch({url, {error, {bad_option, url, <<_, _/binary>>}}}, {url, open(Url, #{})}, Url)
     || Url <- [~"ftp://localhost/", ~"http://", ~"mcp", "http://localhost/",
                ~"http://me:secret@localhost/", ~"http://localhost:65536/",
                ~"http://localhost:0/"]],
    [?assertMatch({Key, {error, {bad_option, Key, <<_, _/binary>>}}},
                  {Key, open(~"http://localhost/", #{Key => Value})}, Value)
     || {Key, Values} <- [
            {headers, [#{}, [a | b], [a], [{~"a", ~"b\r\nc: d"}], [{~"a b", ~"c"}], [{~"", ~"c"}],
                       [{~"Host", ~"c"}], [{~"Mcp-Name", ~"c"}], [{~"a", 1}]]},
            {token, [~"a\nb", ~"", "secret", none, fun() -> none end]},
            {connections, [0, -1, 1.0, 10_001, many]},
            {streams, [0, 10_001]},
            {idle_ms, [0, infinity]},
            {tls, [#{}, [a | b]]},
            {protocols, [[], http, [http, http], [http3]]},
            {connection, [1]}],
        Value <- Values],
    ?assertMatch({error, {bad_option, headers, _}},
                 open(~"http://localhost/", #{token => ~"a", headers => [{"Authorization", "b"}]})).

%% HTTP's own refusals, and JSON-RPC's errors with a status of HTTP's.
refusals(_) ->
    Error = ~B'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}',
    NoId = ~B'{"jsonrpc":"2.0","error":{"code":-32020,"message":"no"}}',
    NullId = ~B'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no"}}',
    OtherId = ~B'{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"no"}}',
    [?assertMatch([{message, {response, 1, {error, #{~"code" := Code}}}}],
                  outcome([json(Status, Body)]), Body)
     || {Status, Code, Body} <- [{404, -32601, Error}, {400, -32020, NoId}, {400, -32700, NullId},
                                 {400, -32600, OtherId}, {500, -32601, Error},
                                 {403, -32601, Error}]],
    ?assertMatch([{headers, _}, {message, {response, 1, {error, #{~"code" := -32700}}}}],
                 outcome([json(200, NullId)])),
    ?assertMatch([{failed, {http, 503, #{~"retry-after" := ~"1"}, ~"busy"}}],
                 outcome([answer(503, [{"Retry-After", "1"}], ~"busy")])),
    ?assertMatch([{failed, {http, 404, _, ~"{}"}}], outcome([json(404, ~"{}")])),
    ?assertMatch([{failed, {http, 405, _, ~""}}], outcome([answer(405, [], ~"")])),
    Long = binary:copy(~"x", 100_000),
    [{failed, {http, 500, _, Kept}}] = outcome([answer(500, [], Long)]),
    ?assertEqual(4096, byte_size(Kept)),
    [?assertMatch([{failed, {unauthorized, {http, Status, _, ~"no"}}}],
                  outcome([answer(Status, [], ~"no")])) || Status <- [401, 403]].

%% What is no answer of MCP is named.
odd_answers(_) ->
    [begin
         Events = outcome([Answer]),
         {failed, {protocol, What}} = lists:last(Events),
         ?assertNotEqual(nomatch, binary:match(What, Named), What)
     end || {Named, Answer} <- [
         {~"content-type", answer(200, [{"Content-Type", "text/html"}], ~"<html>")},
         {~"content-type", answer(200, [], ~"")},
         {~"status", answer(202, [], ~"")},
         {~"JSON", json(200, ~"{")},
         {~"JSON", json(200, ~"")},
         {~"JSON", json(200, <<"{\"a\":\"", 255, "\"}">>)},
         {~"id: expected 1, got 2", json(200, result(2))},
         {~"id: expected 1, got \"1\"", json(200, result(~"1"))},
         {~"body: expected", json(200, ~B'{"jsonrpc":"2.0","method":"a"}')},
         {~"result or an error", json(200, ~B'{"jsonrpc":"2.0","id":1}')},
         {~"jsonrpc", json(200, ~B'{"jsonrpc":"1.0","id":1,"result":{}}')},
         {~"twice", json(200, [$[, result(1), $,, result(1), $]])},
         {~"JSON", stream([event(~"nonsense")])},
         {~"id: expected 1, got 2", stream([event(result(2))])}
     ]].

ends_early(_) ->
    ?assertMatch([{headers, _}, {failed, {closed, ended}}], outcome([stream([])])),
    ?assertMatch([{headers, _}, {message, {notification, _, _}}, {failed, {closed, _}}],
                 outcome([cut_stream([event(notification(1))])])),
    ?assertMatch([{failed, {closed, _}}], outcome([{~"", close}])),
    ?assertMatch([{headers, _}, {failed, {closed, _}}],
                 outcome([{[head(200, [{"Content-Type", "application/json"},
                                       {"Content-Length", "50"}]), ~"{"], close}])).

redirects(_) ->
    To = fun(Status, Location) -> answer(Status, [{"Location", Location}], ~"") end,
    [begin
         [First, Second] = requests(#{}, #{}, [To(Status, Location), json(200, result(1))]),
         ?assertEqual(~"POST /mcp?a=b HTTP/1.1", maps:get(line, First)),
         ?assertEqual(Line, maps:get(line, Second)),
         ?assertEqual(maps:get(body, First), maps:get(body, Second))
     end || {Status, Location, Line} <- [{307, "/other?c", ~"POST /other?c HTTP/1.1"},
                                         {308, "sub/x", ~"POST /sub/x HTTP/1.1"}]],
    [?assertMatch([{failed, {redirect, Location}}], outcome([To(Status, Location)]))
     || {Status, Location} <- [{307, ~"http://127.0.0.1:1/mcp"}, {308, ~"https://127.0.0.1/mcp"},
                               {301, ~"/other"}, {302, ~"/other"}, {303, ~"/other"}]],
    Loop = lists:duplicate(4, To(307, "/mcp")),
    ?assertMatch([{failed, {redirect, ~"/mcp"}}], outcome(Loop)),
    ?assertMatch([{failed, {http, 304, _, _}}], outcome([answer(304, [], ~"")])).

%% "When a client receives HTTP 404 in response to a request containing an MCP-Session-Id, it MUST
%% start a new session", whatever the body says; servers word it differently.
sessions_lost(_) ->
    [?assertMatch([{failed, session_lost}], outcome(#{}, #{session => ~"s"}, [Answer]))
     || Answer <- [answer(404, [], ~"session not found"),
                   json(404, ~B'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"x"}}'),
                   json(404, ~B'{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"x"}}'),
                   json(404, ~B'{"jsonrpc":"2.0","id":"server-error",
                                 "error":{"code":-32600,"message":"x"}}')]],
    Unknown = json(404, ~B'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"x"}}'),
    ?assertMatch([{message, {response, 1, {error, _}}}],
                 outcome(#{}, #{session => ~"s"}, [Unknown])).

taken(_) ->
    Notification = #{kind => notification, id => none},
    [?assertEqual([sent], outcome(#{}, Notification, [Answer]))
     || Answer <- [answer(202, [], ~""), answer(200, [], ~"ok"), answer(204, [], none),
                   json(200, ~"{}")]],
    ?assertMatch([{failed, {http, 400, _, _}}], outcome(#{}, Notification, [json(400, ~"{}")])).

%% "If the client wishes to resume after a disconnection, it SHOULD issue an HTTP GET to the MCP
%% endpoint, and include the Last-Event-ID header"; "The client MUST respect the retry field".
resumes(_) ->
    First = cut_stream([~"id: a1\nretry: 100\ndata: \n\n", ~"id: a2\ndata: ", notification(1),
                        ~"\n\nid: a3\ndata: cut"]),
    Second = stream([~"id: a4\ndata: ", notification(2), ~"\n\n"]),
    Third = stream([~"id: a5\ndata: ", result(1), ~"\n\n"]),
    Resuming = #{session => ~"s", resumes => true},
    Begun = erlang:monotonic_time(millisecond),
    Peer = peer([First, Second, Third]),
    ?assertMatch([{headers, _}, {message, {notification, _, #{~"n" := 1}}},
                  {headers, _}, {message, {notification, _, #{~"n" := 2}}},
                  {headers, _}, {message, {response, 1, _}}], told(Peer, #{}, Resuming)),
    ?assert(erlang:monotonic_time(millisecond) - Begun >= 200),
    [_, Get, Again] = asked(Peer),
    ?assertMatch(#{line := ~"GET /mcp?a=b HTTP/1.1", body := ~"",
                   headers := #{~"last-event-id" := ~"a2", ~"accept" := ~"text/event-stream",
                                ~"mcp-session-id" := ~"s"}}, Get),
    ?assertMatch(#{headers := #{~"last-event-id" := ~"a4"}}, Again),
    %% Without an id there is no place to come back to.
    ?assertMatch([_, {failed, {closed, ended}}], outcome(#{}, Resuming, [stream([])])),
    ?assertMatch([_, _, {failed, {closed, session_lost}}],
                 outcome(#{}, Resuming, [First, answer(404, [], ~"")])),
    [_, _, {failed, {closed, {http, 405, _, _}}}] =
        outcome(#{}, Resuming, [First, answer(405, [], ~"")]).

%% An id is sent as a header, so a longer one does not count, and the one before it does.
ids_of_events_are_bounded(_) ->
    Id = fun(Size) -> binary:copy(~"i", Size) end,
    [begin
         Peer = peer([cut_stream([~"id: a1\nretry: 10\ndata: \n\nid: ", Id(Size),
                                  ~"\ndata: \n\n"]), stream([event(result(1))])]),
         [{headers, _}, {headers, _}, {message, {response, 1, _}}] =
             told(Peer, #{}, #{session => ~"s", resumes => true}),
         [_, #{headers := #{~"last-event-id" := Expected}}] = asked(Peer)
     end || {Size, Expected} <- [{4096, Id(4096)}, {4097, ~"a1"}]].

resumes_with_pauses(_) ->
    First = cut_stream([~"id: a1\nretry: 10\ndata: \n\n"]),
    Busy = answer(503, [], ~""),
    Last = stream([event(result(1))]),
    ?assertMatch([{headers, _}, {headers, _}, {message, {response, 1, _}}],
                 outcome(#{}, #{session => ~"s", resumes => true},
                         [First, Busy, {~"", close}, Busy, Last])),
    Stream = #{session => ~"s", resumes => true, kind => stream, id => none, message => ~""},
    ?assertMatch([{headers, _}, {message, {notification, _, #{~"n" := 1}}}, {headers, _},
                  {message, {notification, _, #{~"n" := 2}}}, {failed, session_lost}],
                 outcome(#{}, Stream, [cut_stream([~"retry: 10\n", event(notification(1))]),
                                       cut_stream([~"retry: 10\n", event(notification(2))]),
                                       answer(404, [], ~"")])),
    ?assertMatch([{failed, {http, 405, _, _}}], outcome(#{}, Stream, [answer(405, [], ~"")])),
    %% Its deadline is for each beginning of it, however long it lasted.
    Peer = peer([cut_stream([~"id: a1\nretry: 1000\n\n"]), cut_stream([~"retry: 0\n\n"]),
                 answer(404, [], ~"")]),
    Soon = Stream#{deadline => erlang:monotonic_time(millisecond) + 900},
    ?assertMatch([{headers, _}, {headers, _}, {failed, session_lost}], told(Peer, #{}, Soon)),
    [_, #{headers := #{~"last-event-id" := ~"a1"}}, _] = asked(Peer).

%% The server has accepted the request, so no reason may say that nothing was sent.
resumes_when_there_is_a_connection(_) ->
    Answer = stream([event(result(1))]),
    Peer = peer([cut_stream([~"id: a1\nretry: 10\ndata: \n\n"]),
                 head(200, [{"Content-Type", "text/event-stream"}]), Answer, Answer]),
    {ok, Pid, #{pool := Pool} = Channel} =
        erlmcp_httpc_channel:open(url(Peer), #{
            limits => #{message_bytes => 1000, depth => 64, members => 100}, calls => 1,
            connect_timeout => 5000, options => #{connections => 1}}),
    Send = fun(Outgoing) ->
        erlmcp_httpc_channel:send(outgoing(Outgoing#{message => ping()}), Channel)
    end,
    {ok, X} = Send(#{session => ~"s", resumes => true}),
    {Due, Broken} = until_resumed(X),
    {ok, Other} = Send(#{}),
    {[{headers, _}], Open} = next(Other),
    {Waiting, Monitor} = spawn_monitor(fun() ->
        {ok, Late} = Send(#{}),
        exit(events(Late))
    end),
    ok = await(Pool, #{waiting => 1}),
    {[], Paused} = erlmcp_httpc_channel:received(Due, Broken),
    ?assert(erlmcp_httpc_channel:abort(Open)),
    receive
        {'DOWN', Monitor, process, Waiting, Events} ->
            ?assertMatch([{headers, _}, {message, {response, 1, _}}], Events)
    end,
    ?assertMatch([{headers, _}, {message, {response, 1, _}}], events(Paused)),
    ok = erlmcp_httpc_channel:close(Pid).

%% No connection is free for as long as one attempt may take.
resumes_in_another_attempt(_) ->
    Peer = peer([cut_stream([~"id: a1\nretry: 10\ndata: \n\n"]),
                 head(200, [{"Content-Type", "text/event-stream"}]), stream([event(result(1))])]),
    with_channel(url(Peer), #{connections => 1}, fun(Channel) ->
        {ok, X} = erlmcp_httpc_channel:send(
            outgoing(#{message => ping(), session => ~"s", resumes => true,
                       deadline => erlang:monotonic_time(millisecond) + 1_000}), Channel),
        {Due, Broken} = until_resumed(X),
        {ok, Other} = erlmcp_httpc_channel:send(outgoing(#{message => ping()}), Channel),
        {[{headers, _}], Open} = next(Other),
        {[], Paused} = erlmcp_httpc_channel:received(Due, Broken),
        ?assert(erlmcp_httpc_channel:abort(Open)),
        ?assertMatch([{headers, _}, {message, {response, 1, _}}], events(Paused))
    end).

resumes_nothing_at_its_end(_) ->
    Peer = peer([cut_stream([~"id: a1\nretry: 10\ndata: \n\n"])]),
    {ok, Pid, Channel} = open(url(Peer), #{}),
    {ok, X} = erlmcp_httpc_channel:send(
        outgoing(#{message => ping(), session => ~"s", resumes => true}), Channel),
    {Due, Broken} = until_resumed(X),
    ok = erlmcp_httpc_channel:close(Pid),
    ?assertMatch({[{failed, {closed, {connect, stopped}}}], _},
                 erlmcp_httpc_channel:received(Due, Broken)).

%% The message with which a broken stream is to be resumed, and the exchange that waits for it.
until_resumed(X) ->
    receive
        {timeout, _, resume} = Due ->
            {Due, X};
        Message ->
            case erlmcp_httpc_channel:received(Message, X) of
                {_, Next} -> until_resumed(Next);
                other -> until_resumed(X)
            end
    end.

%% `message_bytes` is 1,000,000.
large(_) ->
    Body = fun(Size) ->
        Rest = Size - iolist_size(result(1, ~"")),
        result(1, binary:copy(~"x", Rest))
    end,
    [?assertMatch([{headers, _}, {message, {response, 1, {ok, _}}}], outcome([Answer]))
     || Answer <- [json(200, Body(1_000_000)), stream([~"data: ", Body(1_000_000), ~"\n\n"])]],
    [?assertMatch([{headers, _}, {failed, {too_large, 1_000_000}}], outcome([Answer]))
     || Answer <- [json(200, Body(1_000_001)), stream([~"data: ", Body(1_000_001), ~"\n\n"]),
                   stream([~"data: ", binary:copy(~"x", 2_000_000)])]].

%% What is not read is not sent for: it stays with the server.
flood(_) ->
    Events = [event(notification(N)) || N <- lists:seq(1, 1000)],
    Flood = [binary:copy(iolist_to_binary(Events), 200), event(result(1))],
    Peer = peer([stream([Flood])]),
    with_channel(url(Peer), #{}, fun(Channel) ->
        {ok, X} = erlmcp_httpc_channel:send(outgoing(#{message => ping()}), Channel),
        {[{headers, _} | First], Open} = next(X),
        ok = quiet(0),
        {messages, Messages} = process_info(self(), messages),
        Waiting = length([Data || Data <- Messages, element(1, Data) =:= tcp]),
        ?assert(Waiting =< 16, Waiting),
        All = events(Open),
        ?assertEqual(200_001, length(First ++ All))
    end).

%% Awaits that no message comes for a while.
quiet(Had) ->
    receive never -> ok after 50 -> ok end,
    case process_info(self(), message_queue_len) of
        {message_queue_len, Had} -> ok;
        {message_queue_len, More} -> quiet(More)
    end.

%% However a response says where it ends, and in however many pieces it comes, it is read; and the
%% connection goes on serving if that was its end (RFC 9112, 6.3 and 9.3).
framings(_) ->
    Type = {"Content-Type", "application/json"},
    Chunks = {"Transfer-Encoding", "chunked"},
    Body = iolist_to_binary(result(1)),
    Bytes = [<<C>> || <<C>> <= Body],
    Chunked = fun(Parts, End) ->
        [head(200, [Type, Chunks]), [[integer_to_binary(byte_size(Part), 16), Extension, ~"\r\n",
                                      Part, ~"\r\n"] || {Part, Extension} <- Parts], End]
    end,
    Size = integer_to_list(byte_size(Body)),
    Kept = [json(200, Body),
            [head(103, [{"Link", "</x>"}]), head(100, []), json(200, Body)],
            [head(200, [Type, {"Content-Length", Size}, {"Connection", "keep-alive"}]), Body],
            Chunked([{Body, ~""}], ~"0\r\n\r\n"),
            Chunked([{Byte, ~""} || Byte <- Bytes], ~"0\r\n\r\n"),
            Chunked([{Body, ~";a=b"}], ~"0;c\r\nx-trailer: y\r\nz: \r\n\r\n")],
    Closed = [[head(200, [Type]), Body],
              [head(200, [Type, {"Transfer-Encoding", "identity"}]), Body],
              [~"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n", Body]],
    Left = [[~"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\ncontent-length: ", Size,
             ~"\r\n\r\n", Body],
            [json(200, Body), ~"HTTP/1.1 200 OK\r\n"],
            [Chunked([{Body, ~""}], ~"0\r\n\r\n"), ~"x"],
            [head(200, [Type, {"Content-Length", Size}, Chunks]),
             integer_to_binary(byte_size(Body), 16), ~"\r\n", Body, ~"\r\n0\r\n\r\n"]],
    ?assertEqual([], [{Answer, Got}
                      || {Expected, Answers} <- [
                             {[1, 1], Kept ++ [{pieces, Answer} || Answer <- Kept]},
                             {[1, 2], [{Answer, close} || Answer <- Closed]
                                      ++ [{{pieces, Answer}, close} || Answer <- Closed] ++ Left}],
                         Answer <- Answers,
                         Got <- [framed(Answer)], Got =/= Expected]).

%% The connections of two requests, of which the first is answered so.
framed(Answer) ->
    Peer = peer([Answer, json(200, result(1))]),
    with_channel(url(Peer), #{}, fun(Channel) ->
        [begin
             {ok, X} = erlmcp_httpc_channel:send(outgoing(#{message => ping()}), Channel),
             [{headers, _}, {message, {response, 1, {ok, _}}}] = events(X)
         end || _ <- [1, 2]]
    end),
    [Connection || #{connection := Connection} <- asked(Peer)].

%% A connection serves the next request when the one before was read to its end.
reuses(_) ->
    Peer = peer([json(200, result(1)), stream([event(result(1))]), answer(503, [], ~"busy"),
                 json(200, result(1))]),
    with_channel(url(Peer), #{protocols => [http]}, fun(Channel) ->
        [begin
             {ok, X} = erlmcp_httpc_channel:send(outgoing(#{message => ping()}), Channel),
             events(X)
         end || _ <- [1, 2, 3, 4]]
    end),
    ?assertMatch([1, 1, 1, 1], [Connection || #{connection := Connection} <- asked(Peer)]).

closes(_) ->
    Closing = answer(200, [{"Content-Type", "application/json"}, {"Connection", "x, Close"}],
                     result(1)),
    Peer = peer([Closing, json(200, result(1))]),
    with_channel(url(Peer), #{}, fun(#{pool := Pool} = Channel) ->
        [begin
             {ok, X} = erlmcp_httpc_channel:send(outgoing(#{message => ping()}), Channel),
             [_, {message, {response, 1, _}}] = events(X),
             ?assertMatch(#{open := Open, busy := 0}, erlmcp_httpc_pool:info(Pool))
         end || Open <- [0, 1]]
    end),
    ?assertMatch([1, 2], [Connection || #{connection := Connection} <- asked(Peer)]).

aborts(_) ->
    [begin
         Peer = peer([head(200, [{"Content-Type", "text/event-stream"}]), json(200, result(1))]),
         with_channel(url(Peer), #{}, fun(Channel) ->
             {ok, X} = erlmcp_httpc_channel:send(outgoing(Options#{message => ping()}), Channel),
             {[{headers, _}], Open} = next(X),
             ?assert(erlmcp_httpc_channel:abort(Open)),
             ok = closed(Peer, 1),
             {ok, Other} = erlmcp_httpc_channel:send(outgoing(#{message => ping()}), Channel),
             [_, {message, {response, 1, _}}] = events(Other)
         end)
     end || Options <- [#{}, #{session => ~"s"}, #{resumes => true}]].

%% 2025-03-26
batch(_) ->
    Body = [$[, notification(1), $,, result(1), $]],
    [?assertMatch([{headers, _}, {message, {notification, _, _}},
                   {message, {response, 1, {ok, _}}}], outcome([Answer]))
     || Answer <- [json(200, Body), stream([event(Body)])]].

%% A connection that the server closed while nothing ran on it: the request goes by another one.
unprocessed(_) ->
    Peer = peer([{json(200, result(1)), close}, json(200, result(1))]),
    with_channel(url(Peer), #{}, fun(#{pool := Pool} = Channel) ->
        {ok, First} = erlmcp_httpc_channel:send(outgoing(#{message => ping()}), Channel),
        [_, {message, {response, 1, _}}] = events(First),
        ok = closed(Peer, 1),
        ok = await(Pool, #{open => 0}),
        {ok, Second} = erlmcp_httpc_channel:send(outgoing(#{message => ping()}), Channel),
        [_, {message, {response, 1, _}}] = events(Second)
    end).

%% A server that gives these answers to the requests that come, whatever they are.
outcome(Answers) ->
    outcome(#{}, #{}, Answers).

outcome(Options, Outgoing, Answers) ->
    told(peer(Answers), Options, Outgoing).

told(Peer, Options, Outgoing) ->
    with_channel(url(Peer), Options, fun(Channel) ->
        {ok, X} = erlmcp_httpc_channel:send(outgoing(maps:merge(#{message => ping()}, Outgoing)),
                                            Channel),
        events(X)
    end).

%% The requests that this takes.
requests(Options, Outgoing, Answers) ->
    Peer = peer(Answers),
    [_, {message, {response, 1, _}}] = told(Peer, Options, Outgoing),
    asked(Peer).

ping() ->
    ~B'{"jsonrpc":"2.0","id":1,"method":"ping"}'.

result(Id) ->
    result(Id, ~"ok").

result(Id, Text) ->
    [~B'{"jsonrpc":"2.0","id":', json:encode(Id), ~B',"result":{"text":"', Text, ~B'"}}'].

notification(N) ->
    [~B'{"jsonrpc":"2.0","method":"notifications/n","params":{"n":', integer_to_binary(N), ~"}}"].

event(Data) ->
    [~"event: message\r\ndata: ", Data, ~"\r\n\r\n"].

json(Status, Body) ->
    answer(Status, [{"Content-Type", "Application/JSON; charset=utf-8"}], Body).

stream(Events) ->
    Bytes = iolist_to_binary(Events),
    answer(200, [{"Content-Type", "text/event-stream"}], Bytes).

%% Chunked, and cut before its end.
cut_stream(Events) ->
    Bytes = iolist_to_binary(Events),
    {[head(200, [{"Content-Type", "text/event-stream"}, {"Transfer-Encoding", "chunked"}]),
      integer_to_binary(byte_size(Bytes), 16), ~"\r\n", Bytes, ~"\r\n"], close}.

answer(Status, Headers, none) ->
    head(Status, Headers);
answer(Status, Headers, Body) ->
    [head(Status, [{"Content-Length", integer_to_binary(iolist_size(Body))} | Headers]), Body].

head(Status, Headers) ->
    [~"HTTP/1.1 ", integer_to_binary(Status), ~" Whatever\r\n",
     [[Name, ~": ", Value, ~"\r\n"] || {Name, Value} <- Headers], ~"\r\n"].

peer(Answers) ->
    Test = self(),
    {ok, Listen} = gen_tcp:listen(0, [binary, {active, false}, {ip, {127, 0, 0, 1}},
                                      {nodelay, true}, {reuseaddr, true}, {buffer, 65_536}]),
    {ok, Port} = inet:port(Listen),
    Pid = spawn_link(fun() -> connections(Listen, Test, 1, Answers) end),
    ok = gen_tcp:controlling_process(Listen, Pid),
    #{port => Port, pid => Pid}.

url(#{port := Port}) ->
    <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/mcp?a=b">>.

%% One connection after the other.
connections(Listen, Test, Number, Answers) ->
    {ok, Socket} = gen_tcp:accept(Listen),
    Left = served(Socket, Test, Number, Answers),
    ok = gen_tcp:close(Socket),
    Test ! {closed, self(), Number},
    connections(Listen, Test, Number + 1, Left).

served(Socket, Test, Number, Answers) ->
    case read_request(Socket) of
        {ok, Request} ->
            Test ! {asked, self(), Request#{connection => Number}},
            [Answer | Left] = Answers,
            case Answer of
                {Bytes, close} ->
                    ok = said(Socket, Bytes),
                    Left;
                Bytes ->
                    _ = said(Socket, Bytes),
                    served(Socket, Test, Number, Left)
            end;
        closed ->
            Answers
    end.

said(Socket, {pieces, Bytes}) ->
    lists:foreach(fun(Byte) -> ok = gen_tcp:send(Socket, [Byte]) end,
                  binary_to_list(iolist_to_binary(Bytes)));
said(Socket, Bytes) ->
    gen_tcp:send(Socket, Bytes).

read_request(Socket) ->
    ok = inet:setopts(Socket, [{packet, line}]),
    case gen_tcp:recv(Socket, 0) of
        {ok, Line} ->
            ok = inet:setopts(Socket, [{packet, httph_bin}]),
            Headers = read_headers(Socket, #{}),
            ok = inet:setopts(Socket, [{packet, raw}]),
            Size = binary_to_integer(maps:get(~"content-length", Headers, ~"0")),
            {ok, Body} = case Size of
                0 -> {ok, ~""};
                _ -> gen_tcp:recv(Socket, Size)
            end,
            {ok, #{line => string:trim(Line), headers => Headers, body => Body}};
        {error, _} ->
            closed
    end.

read_headers(Socket, Headers) ->
    case gen_tcp:recv(Socket, 0) of
        {ok, {http_header, _, _, Name, Value}} ->
            read_headers(Socket, Headers#{string:lowercase(Name) => Value});
        {ok, http_eoh} ->
            Headers
    end.

%% The requests that a peer was asked so far.
asked(#{pid := Pid} = Peer) ->
    receive
        {asked, Pid, Request} -> [Request | asked(Peer)]
    after 0 ->
        []
    end.

%% Awaits that a connection has ended.
closed(#{pid := Pid}, Number) ->
    receive
        {closed, Pid, Number} -> ok
    after 30_000 ->
        error(still_open)
    end.
