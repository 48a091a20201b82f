-module(bad_http_peers_SUITE).
-moduledoc """
Servers that misbehave, on real sockets: the caller gets a reason that names what was wrong, within
its deadline; memory stays under 64 MiB above the start; nothing is left behind; and a good server
is reached meanwhile and afterwards (`m:erlmcp_test_watch`). Those without an end are in
`m:endless_http_peers_SUITE`, what differs on lines in `m:bad_line_peers_SUITE`.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([never_in_time/1, notification_is_never_accepted/1, late_answer_is_nobodys/1,
         connection_ends/1, wrong_messages/1, long_words/1, wrong_json/1, wrong_http/1,
         wrong_results/1, wrong_initialize/1, too_large_bodies/1, too_large_heads/1, elsewhere/1,
         streams_that_end_at_once/1, events_nobody_asked_for/1,
         every_connection_ends_after_its_answer/1, tls_that_hangs/1]).

-import(erlmcp_test_suite, [watch/1]).
-import(erlmcp_test_bad_http_peer, [each/4, is/1, with_client/3, with_peer/3, flushed/0, session/1,
                                    discovered/1, complete/2, text/2, initialized/0, json/1,
                                    typed/2, head/2, chunked/1, chunk/1, write/2, ending/2]).
-import(erlmcp_test_peer, [result/2, event/1, spaces/0, drip/3, flood/3]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [never_in_time, notification_is_never_accepted, late_answer_is_nobodys, connection_ends,
     wrong_messages, long_words, wrong_json, wrong_http, wrong_results, wrong_initialize,
     too_large_bodies, too_large_heads, elsewhere, streams_that_end_at_once,
     events_nobody_asked_for, every_connection_ends_after_its_answer, tls_that_hangs].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{watch, erlmcp_test_watch:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_watch:stop(watch(Config)).

never_in_time(Config) ->
    Drip = fun(Socket) -> drip(Socket, [head(json, 100), ~"{"], ~" ") end,
    each(Config, #{timeout => 300}, is({timeout, 300}),
         [{silence, silence},
          {one_byte_of_head, fun(Socket) -> drip(Socket, ~"HTTP/1.1 200 OK\r\nx: ", ~"y") end},
          {body_byte_by_byte, Drip},
          {chunk_byte_by_byte, fun(Socket) ->
              drip(Socket, [chunked(json), ~"1\r\n{\r\n"], ~"1\r\n \r\n")
           end},
          {comments_byte_by_byte, fun(Socket) ->
              drip(Socket, chunked(events), ~"1\r\n:\r\n")
           end},
          {informed_for_ever, fun(Socket) ->
              drip(Socket, ~"", ~"HTTP/1.1 103 Early Hints\r\n\r\n")
           end}]).

%% The reason has the time that a notification is given, which is not that of a call.
notification_is_never_accepted(_) ->
    Method = ~"notifications/roots/list_changed",
    with_peer(fun(#{message := #{~"method" := Sent}}) when Sent =:= Method -> silence;
                 (Request) -> session(Request)
              end, #{era => session, timeout => 20_000}, fun(Client) ->
        {error, {timeout, 5_000}} = erlmcp_client:notify(Client, Method, #{})
    end).

%% A connection whose answer came too late gives no other call that answer.
late_answer_is_nobodys(Config) ->
    Test = self(),
    Late = fun(#{~"params" := #{~"arguments" := #{~"late" := true}}} = Message) ->
                  Body = json:encode(result(Message, #{content => []})),
                  fun(Socket) ->
                      Test ! {late, self()},
                      receive go -> ok end,
                      write(Socket, [head(json, iolist_size(Body)), Body])
                  end;
              (Message) ->
                  text(Message, ~"in time")
           end,
    {_, _} = erlmcp_test_watch:run(fun() ->
        with_client(Late, #{connections => 1}, fun(Client) ->
            {ok, _} = erlmcp_client:server(Client),
            [begin
                 {error, {timeout, 1000}} = erlmcp_client:call_tool(Client, ~"t", #{late => true},
                                                                    #{timeout => 1000}),
                 receive {late, Peer} -> Peer ! go end,
                 {ok, #{~"content" := [#{~"text" := ~"in time"}]}} =
                     erlmcp_client:call_tool(Client, ~"t", #{})
             end || _ <- [1, 2]]
        end)
    end, watch(Config)).

connection_ends(Config) ->
    each(Config, #{}, is({closed}),
         [{at_once, close},
          {in_the_head, fun(Socket) -> ending(Socket, ~"HTTP/1.1 200 OK\r\nconte") end},
          {in_the_body, fun(Socket) -> ending(Socket, [head(json, 100), ~"{"]) end},
          {in_a_chunk, fun(Socket) -> ending(Socket, [chunked(json), ~"ff\r\n{"]) end},
          {in_an_event, fun(Socket) ->
              ending(Socket, [chunked(events), chunk(~"data: {\"json")])
           end},
          {after_an_event, {events, [~": only a comment\n\n", close]}},
          {stream_ends_without_answer, {events, [~": only a comment\n\n"]}}]).

wrong_messages(Config) ->
    Ok = #{content => []},
    each(Config, #{}, is({protocol}),
         [{wrong_id, json(#{jsonrpc => ~"2.0", id => 999, result => Ok})},
          {id_of_another_type, json(#{jsonrpc => ~"2.0", id => ~"2", result => Ok})},
          {float_id, json(#{jsonrpc => ~"2.0", id => 2.0, result => Ok})},
          {no_id, json(#{jsonrpc => ~"2.0", result => Ok})},
          {object_id, json(#{jsonrpc => ~"2.0", id => #{}, result => Ok})},
          {both, {say, fun(#{~"id" := Id}) ->
              {200, [], #{jsonrpc => ~"2.0", id => Id, result => Ok,
                          error => #{code => 1, message => ~"no"}}}
           end}},
          {neither, {say, fun(#{~"id" := Id}) -> {200, [], #{jsonrpc => ~"2.0", id => Id}} end}},
          {no_version, {say, fun(#{~"id" := Id}) -> {200, [], #{id => Id, result => Ok}} end}},
          {error_is_text, {say, fun(#{~"id" := Id}) ->
              {200, [], #{jsonrpc => ~"2.0", id => Id, error => ~"no"}}
           end}},
          {code_is_text, {say, fun(#{~"id" := Id}) ->
              {200, [], #{jsonrpc => ~"2.0", id => Id,
                          error => #{code => ~"1", message => ~"no"}}}
           end}},
          {result_is_text, {say, fun(Message) -> {200, [], result(Message, ~"yes")} end}},
          {empty_batch, json([])},
          {scalar, json(7)},
          {twice_in_a_batch, {say, fun(Message) ->
              Answer = result(Message, Ok),
              typed(json, json:encode([Answer, Answer]))
           end}},
          {wrong_id_in_an_event, {events, [event(#{jsonrpc => ~"2.0", id => 999, result => Ok})]}},
          {unknown_result_type, {say, fun(Message) ->
              {200, [], result(Message, #{resultType => ~"surprise"})}
           end}}]).

%% A reason says what was wrong, and not all of it.
long_words(Config) ->
    Long = binary:copy(~"k", 1_000_000),
    Wrong = #{jsonrpc => ~"2.0", id => Long, result => #{}},
    IsShort = fun({error, {protocol, What}}) -> byte_size(What) < 1_000;
                 (_) -> false
              end,
    each(Config, #{}, IsShort,
         [{id, json(Wrong)},
          {id_in_an_event, {events, [event(Wrong)]}},
          {same_key_twice, typed(json, [~B'{"', Long, ~B'":1,"', Long, ~B'":1}'])}]).

wrong_json(Config) ->
    Deep = binary:copy(~"[", 100_000),
    Digits = binary:copy(~"9", 1_000_000),
    each(Config, #{}, is({protocol}),
         [{Name, Kind}
          || {Name, Text} <- [{none, ~"hello"}, {cut, ~"{\"jsonrpc\":"}, {empty, ~""},
                              {not_utf8, <<"{\"a\":\"", 255, "\"}">>},
                              {two, ~"{} {}"}, {deep, Deep},
                              {deep_objects, binary:copy(~"{\"a\":", 100_000)},
                              {many_digits, [~"{\"a\":", Digits, ~"}"]},
                              {no_float, ~"{\"a\":1e999}"},
                              {same_key_twice, ~"{\"id\":1,\"id\":2}"},
                              {lone_surrogate, ~B'{"a":"\ud800"}'},
                              {many_members, many_members()}],
             Kind <- [typed(json, Text)] ++ [event_of(Text) || Text =/= ~""]]).

event_of(Text) ->
    {events, [[~"data: ", Text, ~"\n\n"]]}.

many_members() ->
    [${, lists:join($,, [[$", integer_to_binary(N), ~"\":1"] || N <- lists:seq(1, 100_001)]), $}].

wrong_http(Config) ->
    Gzip = zlib:gzip(binary:copy(~" ", 50_000_000)),
    Raw = fun(Bytes) -> fun(Socket) -> ending(Socket, Bytes) end end,
    each(Config, #{}, is({protocol}),
         [{html, {200, [{~"content-type", ~"text/html"}], ~"<html>"}},
          {type_that_is_no_text, {200, [{~"content-type", <<255>>}], ~"{}"}},
          {connection_that_is_no_text, {200, [{~"content-type", ~"text/html"},
                                              {~"connection", <<255>>}], ~"<html>"}},
          {no_type, {200, [], ~"{}"}},
          {no_content, {204, [], none}},
          {accepted, {202, [], none}},
          {gzip, fun(Socket) ->
              write(Socket, [~"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n",
                             ~"content-encoding: gzip\r\ncontent-length: ",
                             integer_to_binary(byte_size(Gzip)), ~"\r\n\r\n", Gzip])
           end},
          {gzip_events, fun(Socket) ->
              write(Socket, [~"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n",
                             ~"content-encoding: gzip\r\ncontent-length: ",
                             integer_to_binary(byte_size(Gzip)), ~"\r\n\r\n", Gzip])
           end}]),
    each(Config, #{}, is({http}),
         [{server_error, {500, [], ~"oops"}},
          {error_of_200_mib, fun(Socket) ->
              ok = write(Socket, ~"HTTP/1.1 500 X\r\ncontent-length: 209715200\r\n\r\n"),
              flood(Socket, spaces(), 209_715_200)
           end},
          {unavailable, {503, [{~"retry-after", ~"1000000000000000"}], none}},
          {not_found, {404, [], ~"<html>"}}]),
    each(Config, #{timeout => 2000}, is({closed}),
         [{http_0_9, Raw(~"hello\n")},
          {another_protocol, Raw(~"220 mail.example.com ESMTP\r\n")},
          {no_status, Raw(~"HTTP/1.1 OK\r\n\r\n")},
          {status_of_7_digits, Raw(~"HTTP/1.1 2000000 OK\r\n\r\n")},
          {negative_length, Raw(~"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n")},
          {length_and_chunks, Raw(~"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n")},
          {chunk_of_no_size, Raw([chunked(json), ~"zz\r\n{}\r\n"])},
          {header_without_colon, Raw(~"HTTP/1.1 200 OK\r\nhello\r\n\r\n")},
          {bytes, Raw(binary:copy(<<0, 255, 128>>, 1000))}]).

wrong_results(Config) ->
    Lists = [{tools, ~"tools"}, {resources, ~"resources"}, {prompts, ~"prompts"},
             {resource_templates, ~"resourceTemplates"}],
    Wrong = [#{}, ~"text", null, [7], [#{}], [#{name => 7, uri => 7, uriTemplate => 7}]],
    {_, _} = erlmcp_test_watch:run(fun() ->
        [with_client(fun(Message) -> {200, [], complete(Message, #{Member => Items})} end, #{},
                     fun(Client) ->
             {error, {protocol, _}} = listed(List, Client)
         end) || {List, Member} <- Lists, Items <- Wrong],
        [with_client(fun(Message) ->
                         {200, [], complete(Message, #{content => Content})}
                     end, #{}, fun(Client) ->
             {error, {protocol, _}} = erlmcp_client:call_tool(Client, ~"t", #{})
         end) || Content <- [null, #{}, ~"text", [7], [#{}], [#{type => 7}]]],
        [with_client(fun(Message) ->
                         {200, [], complete(Message, #{tools => [], nextCursor => Cursor})}
                     end, #{}, fun(Client) ->
             {error, {protocol, _}} = erlmcp_client:list_tools(Client)
         end) || Cursor <- [7, #{}]]
    end, watch(Config)).

listed(tools, Client) -> erlmcp_client:list_tools(Client);
listed(resources, Client) -> erlmcp_client:list_resources(Client);
listed(prompts, Client) -> erlmcp_client:list_prompts(Client);
listed(resource_templates, Client) -> erlmcp_client:list_resource_templates(Client).

wrong_initialize(Config) ->
    Say = fun(Headers, Result) ->
        fun(#{message := #{~"method" := ~"initialize"} = Message}) ->
                {200, Headers, result(Message, Result)};
           (Request) ->
                session(Request)
        end
    end,
    {_, _} = erlmcp_test_watch:run(fun() ->
        [with_peer(Say([], (initialized())#{protocolVersion => Version}), #{era => session},
                   fun(Client) ->
             {error, {unsupported_version, _} = Reason} = erlmcp_client:server(Client),
             true = is_binary(erlmcp_client:format_error(Reason))
         end) || Version <- [~"1.0", ~"", ~"2026-07-28"]],
        [with_peer(Say([], Result), #{era => session}, fun(Client) ->
             {error, {protocol, _}} = erlmcp_client:server(Client)
         end) || Result <- [#{}, ~"text", 7, []]
                 ++ [(initialized())#{protocolVersion => Version}
                     || Version <- [7, null, #{}, [[7]]]]],
        %% What nobody needs may be missing or wrong.
        [with_peer(Say([], (initialized())#{capabilities => Garbage, serverInfo => Garbage,
                                           instructions => Garbage}), #{era => session},
                   fun(Client) ->
             {ok, #{revision := '2025-11-25', capabilities := #{}}} = erlmcp_client:server(Client)
         end) || Garbage <- [null, 7, [1], #{tools => 7, logging => [], resources => null}]],
        [with_peer(Say([{~"mcp-session-id", Session}], initialized()), #{era => session},
                   fun(Client) ->
             {error, {protocol, <<"Mcp-Session-Id", _/binary>>}} = erlmcp_client:server(Client)
         end) || Session <- [~"a b", <<"a", 200>>, binary:copy(~"s", 10_000)]],
        [with_peer(fun(#{message := #{~"method" := ~"server/discover"} = Message}) ->
                       {200, [], complete(Message, #{supportedVersions => Versions})}
                   end, #{}, fun(Client) ->
             {error, {unsupported_version, _} = Reason} = erlmcp_client:server(Client),
             true = is_binary(erlmcp_client:format_error(Reason))
         end) || Versions <- [[], [7], [null, #{}], [~"2099-01-01"]]]
    end, watch(Config)).

too_large_bodies(Config) ->
    Size = 209_715_200,
    each(Config, #{timeout => 20_000}, is({too_large, 4_194_304}),
         [{announced, fun(Socket) ->
              ok = write(Socket, head(json, Size)),
              flood(Socket, spaces(), Size)
           end},
          {in_chunks, fun(Socket) ->
              ok = write(Socket, chunked(json)),
              flood(Socket, iolist_to_binary(chunk(spaces())), Size)
           end},
          {one_chunk, fun(Socket) ->
              ok = write(Socket, [chunked(json), integer_to_binary(Size, 16), ~"\r\n"]),
              flood(Socket, spaces(), Size)
           end},
          {one_line_of_an_event, fun(Socket) ->
              ok = write(Socket, [chunked(events), chunk(~"data: ")]),
              flood(Socket, iolist_to_binary(chunk(spaces())), Size)
           end},
          {many_lines_of_an_event, fun(Socket) ->
              Lines = binary:copy(~"data: 0123456789\n", 1000),
              ok = write(Socket, chunked(events)),
              flood(Socket, iolist_to_binary(chunk(Lines)), Size)
           end},
          {one_comment, fun(Socket) ->
              ok = write(Socket, [chunked(events), chunk(~":")]),
              flood(Socket, iolist_to_binary(chunk(spaces())), Size)
           end}]).

%% What is kept of a head that does not end has its bound, and so has the time.
too_large_heads(Config) ->
    Size = 209_715_200,
    each(Config, #{timeout => 10_000}, is({closed}),
         [{one_header, fun(Socket) ->
              ok = write(Socket, ~"HTTP/1.1 200 OK\r\nx: "),
              flood(Socket, spaces(), Size)
           end},
          {many_headers, fun(Socket) ->
              ok = write(Socket, ~"HTTP/1.1 200 OK\r\n"),
              flood(Socket, binary:copy(~"x-header: some value\r\n", 1000), Size)
           end},
          {status_line, fun(Socket) -> flood(Socket, spaces(), Size) end},
          {size_of_a_chunk, fun(Socket) ->
              ok = write(Socket, [chunked(json), ~"1"]),
              flood(Socket, binary:copy(~"0", 65_536), Size)
           end},
          {extension_of_a_chunk, fun(Socket) ->
              ok = write(Socket, [chunked(json), ~"1;x="]),
              flood(Socket, spaces(), Size)
           end},
          {trailers, fun(Socket) ->
              ok = write(Socket, [chunked(json), ~"0\r\nx: "]),
              flood(Socket, spaces(), Size)
           end}]).

elsewhere(Config) ->
    To = fun(Status, Where) -> {Status, [{~"location", Where}], none} end,
    Far = binary:copy(~"/far", 10_000),
    each(Config, #{}, is({redirect}),
         [{another_origin, To(307, ~"http://127.0.0.1:1/mcp")},
          {another_scheme, To(308, ~"https://127.0.0.1/mcp")},
          {no_host, To(307, ~"file:///etc/passwd")},
          {no_url, To(307, <<"http://[::1", 255>>)},
          {in_circles, To(307, ~"/mcp")},
          {in_circles_for_ever, To(308, ~"?again")},
          {as_get, To(302, ~"/mcp")},
          {very_far, To(303, Far)}]),
    each(Config, #{}, is({unauthorized}),
         [{challenge, {401, [{~"www-authenticate", ~"Bearer"}], none}},
          {no_challenge, {401, [], none}},
          {forbidden, {403, [], none}}]),
    each(Config, #{token => ~"secret"}, is({unauthorized}),
         [{token_refused,
           {401, [{~"www-authenticate", ~"Bearer error=\"invalid_token\""}], none}}]).

%% "Reconnect storms": a stream that a server ends at once is not asked for without a pause,
%% whatever the server says.
streams_that_end_at_once(Config) ->
    Count = counters:new(1, []),
    Counted = fun(Answer) ->
        ok = counters:add(Count, 1, 1),
        Answer
    end,
    Ended = fun(Pieces) ->
        fun(#{method := ~"GET"}) -> Counted({events, Pieces});
           (#{message := #{~"method" := ~"tools/call"}}) ->
                {events, [~"id: 1\nretry: 0\ndata:\n\n", close]};
           (Request) -> session(Request)
        end
    end,
    Listen = fun(#{message := #{~"method" := ~"subscriptions/listen", ~"id" := Id}}) ->
                     Meta = #{~"io.modelcontextprotocol/subscriptionId" => Id},
                     Acknowledged = ~"notifications/subscriptions/acknowledged",
                     Counted({events, [event(#{jsonrpc => ~"2.0", method => Acknowledged,
                                               params => #{'_meta' => Meta}}),
                                       ~"retry: 0\n\n"]});
                (#{message := Message}) ->
                     discovered(Message)
             end,
    {_, _} = erlmcp_test_watch:run(fun() ->
        [begin
             counters:put(Count, 1, 0),
             with_peer(Ended(Pieces), #{era => session}, fun(Client) ->
                 {error, {timeout, 1000}} =
                     erlmcp_client:request(Client, ~"tools/call", #{name => ~"t"},
                                           #{timeout => 1000})
             end),
             Times = counters:get(Count, 1),
             true = Times < 25 orelse error({storm, Pieces, Times})
         end || Pieces <- [[~"retry: 0\n\n"], [~"retry: 0\n\n", close], [~"id: 2\nretry: 0\n\n"],
                           [~"id: 2\nretry: 0\ndata: \n\n", close],
                           [~"retry: 999999999999999\n\n"]]],
        counters:put(Count, 1, 0),
        with_peer(Listen, #{era => stateless}, fun(Client) ->
            {ok, _} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
            receive after 1000 -> ok end,
            ok = flushed()
        end),
        Times = counters:get(Count, 1),
        true = Times < 10 orelse error({storm, listen, Times})
    end, watch(Config)).

%% A subscriber gets the events of its filter, whatever the server sends.
events_nobody_asked_for(_) ->
    Sent = [{~"notifications/subscriptions/acknowledged", #{}},
            {~"notifications/prompts/list_changed", #{}},
            {~"notifications/resources/list_changed", #{}},
            {~"notifications/resources/updated", #{~"uri" => 42}},
            {~"notifications/resources/updated", #{}},
            {~"notifications/message", #{~"level" => ~"info", ~"data" => ~"x"}},
            {~"notifications/elicitation/complete", #{~"elicitationId" => ~"1"}},
            {~"notifications/resources/updated", #{~"uri" => ~"test://a/part"}},
            {~"notifications/tools/list_changed", #{}}],
    Listen = fun(#{message := #{~"method" := ~"subscriptions/listen", ~"id" := Id}}) ->
                     Meta = #{~"io.modelcontextprotocol/subscriptionId" => Id},
                     {events, [event(#{jsonrpc => ~"2.0", method => Method,
                                       params => Params#{~"_meta" => Meta}})
                               || {Method, Params} <- Sent] ++ [follow]};
                (#{message := Message}) ->
                     discovered(Message)
             end,
    with_peer(Listen, #{era => stateless}, fun(Client) ->
        Next = fun(Reference) ->
            receive {erlmcp, Reference, Event} -> Event after 30_000 -> error(no_event) end
        end,
        {ok, Both} = erlmcp_client:subscribe(Client, #{tools_changed => true,
                                                       resources => [~"test://a"]}),
        [subscribed, {resource_updated, ~"test://a/part"}, tools_changed] =
            [Next(Both) || _ <- [1, 2, 3]],
        [begin
             {ok, Tools} = erlmcp_client:subscribe(Client, Filter#{tools_changed => true}),
             [subscribed, tools_changed] = [Next(Tools) || _ <- [1, 2]]
         end || Filter <- [#{}, #{resources => []}]]
    end).

every_connection_ends_after_its_answer(Config) ->
    Answer = fun(Fields) ->
        fun(Message) ->
            Body = json:encode(complete(Message, #{tools => []})),
            fun(Socket) ->
                ending(Socket, [~"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n", Fields,
                                ~"content-length: ", integer_to_binary(iolist_size(Body)),
                                ~"\r\n\r\n", Body])
            end
        end
    end,
    {_, #{milliseconds := Took}} = erlmcp_test_watch:run(fun() ->
        [with_client(Answer(Fields), #{}, fun(Client) ->
             [{ok, []} = erlmcp_client:list_tools(Client) || _ <- lists:seq(1, 50)]
         end) || Fields <- [~"connection: close\r\n", ~""]]
    end, watch(Config)),
    ct:pal("100 calls, each connection ended: ~b ms", [Took]).

tls_that_hangs(Config) ->
    {_, _} = erlmcp_test_watch:run(fun() ->
        {ok, Listen} = gen_tcp:listen(0, [{active, false}, {ip, {127, 0, 0, 1}}]),
        {ok, Port} = inet:port(Listen),
        Url = <<"https://127.0.0.1:", (integer_to_binary(Port))/binary, "/mcp">>,
        {ok, Client} = erlmcp_client:start_link({http, Url, #{connect_timeout => 300}}),
        {error, {connect, _}} = erlmcp_client:list_tools(Client, #{timeout => 3000}),
        ok = erlmcp_client:stop(Client),
        ok = gen_tcp:close(Listen)
    end, watch(Config)).
