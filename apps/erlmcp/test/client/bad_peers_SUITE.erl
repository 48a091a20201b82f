-module(bad_peers_SUITE).
-moduledoc """
Servers that misbehave, on real sockets: the caller gets a reason that names what was wrong, within
its deadline; memory stays under 64 MiB above the start; nothing is left behind; and a good server
is reached meanwhile and afterwards (`m:erlmcp_test_watch`). What differs on lines is in
`m:bad_line_peers_SUITE`.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([never_in_time/1, late_answer_is_nobodys/1, connection_ends/1, wrong_messages/1,
         wrong_json/1, wrong_http/1, wrong_results/1, wrong_initialize/1,
         too_large_bodies/1, too_large_heads/1, elsewhere/1,
         endless_streams/1, endless_progress/1, endless_questions/1, endless_rounds/1,
         endless_pages/1, one_very_long_list/1,
         nobody_thinks_for_a_call_that_is_over/1, what_is_kept_is_small/1,
         floods_on_the_session_stream/1, questions_on_the_session_stream/1,
         streams_that_end_at_once/1, every_connection_ends_after_its_answer/1,
         tls_that_hangs/1]).

-import(erlmcp_test_peer, [result/2, event/1, spaces/0, drip/3, flood/3]).

-define(WAIT, 30_000).
%% Milliseconds that a call may end later than it should.
-define(SLACK, 10_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [never_in_time, late_answer_is_nobodys, connection_ends, wrong_messages, wrong_json, wrong_http,
     wrong_results, wrong_initialize, too_large_bodies, too_large_heads, elsewhere,
     endless_streams, endless_progress, endless_questions, endless_rounds, endless_pages,
     one_very_long_list, nobody_thinks_for_a_call_that_is_over, what_is_kept_is_small,
     floods_on_the_session_stream, questions_on_the_session_stream,
     streams_that_end_at_once, every_connection_ends_after_its_answer, tls_that_hangs].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{watch, erlmcp_test_watch:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_watch:stop(watch(Config)).

watch(Config) -> proplists:get_value(watch, Config).

%% A call of a tool is answered so: what came of it must be so, before the call's deadline.

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

%% A connection whose answer came too late gives no other call that answer.
late_answer_is_nobodys(Config) ->
    Late = fun(#{~"params" := #{~"arguments" := #{~"late" := true}}} = Message) ->
                  Body = json:encode(result(Message, #{content => []})),
                  fun(Socket) ->
                      receive after 400 -> ok end,
                      write(Socket, [head(json, iolist_size(Body)), Body])
                  end;
              (Message) ->
                  text(Message, ~"in time")
           end,
    {_, _} = erlmcp_test_watch:run(fun() ->
        with_client(Late, #{connections => 1}, fun(Client) ->
            [begin
                 {error, {timeout, 200}} = erlmcp_client:call_tool(Client, ~"t", #{late => true},
                                                                   #{timeout => 200}),
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

%% A deadline holds where there is always something to read.
endless_streams(Config) ->
    Note = event(#{jsonrpc => ~"2.0", method => ~"notifications/message",
                   params => #{level => info, data => binary:copy(~"x", 1000)}}),
    Small = event(#{jsonrpc => ~"2.0", method => ~"notifications/x"}),
    Endless = fun(Piece) ->
        Chunk = iolist_to_binary(chunk(iolist_to_binary(lists:duplicate(50, Piece)))),
        fun(Socket) ->
            ok = write(Socket, chunked(events)),
            flood(Socket, Chunk, infinity)
        end
    end,
    each(Config, #{timeout => 500}, is({timeout, 500}),
         [{comments, Endless(~":\n")},
          {empty_lines, Endless(~"\n")},
          {other_events, Endless(~"event: x\ndata: y\n\n")},
          {ids, Endless(~"id: 1\nretry: 999999999999999\n\n")},
          {log_messages, Endless(Note)},
          {unknown_notifications, Endless(Small)},
          {somebody_elses_progress, Endless(progress(999))},
          {informational, fun(Socket) ->
              flood(Socket, binary:copy(~"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n", 100), infinity)
           end},
          {empty_headers, fun(Socket) ->
              ok = write(Socket, head(json, 1_000_000_000_000)),
              drip(Socket, ~"{", ~" ")
           end}]).

progress(Token) ->
    event(#{jsonrpc => ~"2.0", method => ~"notifications/progress",
            params => #{progressToken => Token, progress => 1}}).

%% Progress extends a deadline up to `max_timeout`, however much of it comes.
endless_progress(Config) ->
    Fast = fun(#{~"params" := #{~"_meta" := #{~"progressToken" := Token}}}) ->
        Chunk = iolist_to_binary(chunk(lists:duplicate(50, progress(Token)))),
        fun(Socket) ->
            ok = write(Socket, chunked(events)),
            flood(Socket, Chunk, infinity)
        end
    end,
    Slow = fun(#{~"params" := #{~"_meta" := #{~"progressToken" := Token}}}) ->
        Chunk = iolist_to_binary(chunk(progress(Token))),
        fun(Socket) -> drip(Socket, chunked(events), Chunk) end
    end,
    Limits = #{timeout => 1500, max_timeout => 2000},
    {_, #{milliseconds := Took}} = erlmcp_test_watch:run(fun() ->
        [with_client(Answer, Limits, fun(Client) ->
             Began = now_ms(),
             {error, {timeout, _}} =
                 erlmcp_client:call_tool(Client, ~"t", #{}, #{progress => fun(_) -> ok end}),
             true = now_ms() - Began >= 2000,
             true = now_ms() - Began < 2000 + ?SLACK,
             %% Who does not read gets no more than it can hold.
             {ok, Ref} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
             receive {erlmcp, Ref, {error, {timeout, _}}} -> ok
             after 2000 + ?SLACK -> error(no_outcome)
             end,
             {message_queue_len, Unread} = process_info(self(), message_queue_len),
             true = Unread < 2000 orelse error({unread, Unread}),
             ok = flushed()
         end) || Answer <- [Fast, Slow]]
    end, watch(Config)),
    ct:pal("endless progress, four calls: ~b ms", [Took]).

%% A server of a session that asks its client in a call: what is not the user's time is its own.
endless_questions(Config) ->
    Ask = fun(Method, Params) ->
        fun(#{message := #{~"method" := ~"tools/call"}}) ->
                fun(Socket) ->
                    ok = write(Socket, chunked(events)),
                    Question = fun(Id) ->
                        chunk(event(#{jsonrpc => ~"2.0", id => Id, method => Method,
                                      params => Params}))
                    end,
                    questions(Socket, Question, 1)
                end;
           (Request) ->
                session(Request)
        end
    end,
    Form = #{message => ~"?", requestedSchema => #{type => object, properties => #{}}},
    Inputs = #{elicit => fun(_) -> {accept, #{}} end},
    {_, _} = erlmcp_test_watch:run(fun() ->
        [with_peer(Ask(Method, Params), #{era => session, inputs => Inputs}, fun(Client) ->
             {error, {protocol, <<"the server asks more", _/binary>>}} =
                 erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 3000})
         end) || {Method, Params} <- [{~"elicitation/create", Form}, {~"ping", #{}},
                                      {~"unknown", #{}}]],
        %% Each of these pings would give the server another second.
        with_peer(fun(#{message := #{~"method" := ~"tools/call"}}) ->
                          Ping = chunk(event(#{jsonrpc => ~"2.0", id => 1, method => ~"ping"})),
                          fun(Socket) -> drip(Socket, chunked(events), iolist_to_binary(Ping)) end;
                     (Request) ->
                          session(Request)
                  end, #{era => session, timeout => 500, max_timeout => 1000}, fun(Client) ->
            Began = now_ms(),
            {error, {timeout, _}} = erlmcp_client:call_tool(Client, ~"t", #{}),
            true = now_ms() - Began < 1000 + ?SLACK orelse error({took, now_ms() - Began})
        end)
    end, watch(Config)).

questions(Socket, Question, Id) ->
    case gen_tcp:send(Socket, Question(Id)) of
        ok -> questions(Socket, Question, Id + 1);
        {error, _} -> close
    end.

endless_rounds(Config) ->
    Round = fun(Message) ->
        {200, [], result(Message, #{resultType => input_required,
                                    requestState => binary:copy(~"s", 100_000),
                                    inputRequests => #{a => #{method => ~"roots/list"}}})}
    end,
    Many = #{integer_to_binary(N) => #{method => ~"roots/list"} || N <- lists:seq(1, 1000)},
    Wrong = [{Many, input}, {[], protocol}, {7, protocol}, {#{a => 7}, input},
             {#{a => #{method => 7}}, input},
             {#{a => #{method => ~"elicitation/create", params => 7}}, input}],
    {_, _} = erlmcp_test_watch:run(fun() ->
        with_client(Round, #{inputs => #{roots => []}}, fun(Client) ->
            {error, {too_many_rounds, 20}} = erlmcp_client:call_tool(Client, ~"t", #{})
        end),
        [with_client(fun(Message) ->
                         {200, [], result(Message, #{resultType => input_required,
                                                     inputRequests => Requests})}
                     end, #{inputs => #{roots => [], elicit => fun(#{}) -> decline end}},
                     fun(Client) ->
             {error, Reason} = erlmcp_client:call_tool(Client, ~"t", #{}),
             Kind = element(1, Reason),
             true = is_binary(erlmcp_client:format_error(Reason))
         end) || {Requests, Kind} <- Wrong]
    end, watch(Config)).

endless_pages(Config) ->
    %% What is written is made once, or the server's own memory would be measured.
    Page = fun(Items, Cursor) ->
        fun(#{~"id" := Id}) ->
            typed(json, [~B'{"jsonrpc":"2.0","id":', integer_to_binary(Id), ~B',"result":{',
                         ~B'"resultType":"complete","ttlMs":0,"cacheScope":"private",',
                         ~B'"nextCursor":"', Cursor(), ~B'","tools":', Items, ~"}}"])
        end
    end,
    Next = fun() -> integer_to_binary(erlang:unique_integer([positive])) end,
    Big = iolist_to_binary([~B'[{"name":"', binary:copy(~"x", 3_000_000), ~B'"}]']),
    Many = iolist_to_binary(json:encode([#{name => integer_to_binary(N),
                                           inputSchema => #{type => object}}
                                         || N <- lists:seq(1, 2000)])),
    Empty = iolist_to_binary([~B'[{"name":"', binary:copy(~"x", 100), ~B'"}',
                              binary:copy(~" ", 3_000_000), ~"]"]),
    Watched = fun(Do) ->
        {_, #{bytes := Bytes, milliseconds := Took}} =
            erlmcp_test_watch:run(Do, watch(Config)),
        {Bytes, Took}
    end,
    Costs = [Watched(fun() ->
        with_client(Page(~"[]", fun() -> ~"same" end), #{}, fun(Client) ->
            {error, {cursor_loop, ~"same"}} = erlmcp_client:list_tools(Client)
        end),
        with_client(Page(~"[]", Next), #{limits => #{pages => 100}}, fun(Client) ->
            {error, {too_many_pages, 100}} = erlmcp_client:list_tools(Client)
        end)
    end)] ++ [Watched(fun() ->
        with_client(Page(Items, Next), #{timeout => 20_000, limits => #{pages => 100}},
                    fun(Client) ->
             {error, {Kind, _}} = erlmcp_client:list_tools(Client)
         end)
    end) || {Items, Kind} <- [{Big, too_large}, {Many, too_large}, {Empty, too_many_pages}]],
    ct:pal("endless pages, bytes and milliseconds: ~p", [Costs]).

one_very_long_list(Config) ->
    Long = iolist_to_binary([$[, lists:join($,, lists:duplicate(100_000, ~B'{"name":"a"}')), $]]),
    Answer = fun(#{~"id" := Id}) ->
        typed(json, [~B'{"jsonrpc":"2.0","id":', integer_to_binary(Id),
                     ~B',"result":{"resultType":"complete","ttlMs":1000,"cacheScope":"private",',
                     ~B'"tools":', Long, ~"}}"])
    end,
    {_, #{bytes := Bytes}} = erlmcp_test_watch:run(fun() ->
        with_client(Answer, #{}, fun(Client) ->
            {error, {protocol, What}} = erlmcp_client:list_tools(Client),
            {_, _} = binary:match(What, ~"too_many_members")
        end)
    end, watch(Config)),
    Roomy = #{limits => #{members => 200_000, call_heap_bytes => 134_217_728}},
    _ = with_client(Answer, Roomy, fun(Client) ->
        {ok, Tools} = erlmcp_client:list_tools(Client),
        100_000 = length(Tools)
    end),
    ct:pal("a list of 100,000 tools: ~b bytes", [Bytes]).

%% What a server asks in a round is not worked on any more when its call has ended, however it did.
nobody_thinks_for_a_call_that_is_over(Config) ->
    Test = self(),
    Think = fun(_) ->
        Test ! {thinking, self()},
        receive never -> decline end
    end,
    Round = fun(Message) ->
        Asked = #{method => ~"elicitation/create", params => #{message => ~"?"}},
        {200, [], result(Message, #{resultType => input_required, inputRequests => #{a => Asked}})}
    end,
    Call = {call_tool, ~"t", #{}},
    _ = erlmcp_test_watch:run(fun() ->
        with_client(Round, #{inputs => #{elicit => Think}}, fun(Client) ->
            {ok, Ref} = erlmcp_client:async(Client, Call),
            Cancelled = thinking(),
            ok = erlmcp_client:cancel(Client, Ref),
            receive {erlmcp, Ref, {error, cancelled}} -> ok after ?WAIT -> error(no_outcome) end,
            ok = ended(Cancelled),
            Caller = spawn(fun() -> erlmcp_client:call_tool(Client, ~"t", #{}) end),
            Left = thinking(),
            exit(Caller, kill),
            ok = ended(Left),
            {ok, Last} = erlmcp_client:async(Client, Call),
            Stopped = thinking(),
            ok = erlmcp_client:stop(Client),
            receive {erlmcp, Last, {error, stopped}} -> ok after ?WAIT -> error(no_outcome) end,
            ok = ended(Stopped)
        end)
    end, watch(Config)).

thinking() ->
    receive {thinking, Pid} -> monitor(process, Pid) after ?WAIT -> error(nobody_asked) end.

ended(Monitor) ->
    receive {'DOWN', Monitor, process, _, _} -> ok after ?WAIT -> error(still_thinking) end.

%% Results that are kept do not keep the messages that they came in.
what_is_kept_is_small(Config) ->
    Blank = binary:copy(~" ", 1_000_000),
    Text = binary:copy(~"t", 100),
    Answer = fun(#{~"id" := Id, ~"params" := #{~"uri" := Uri}}) ->
        typed(json, [~B'{"jsonrpc":"2.0","id":', integer_to_binary(Id), ~B',"result":{',
                     ~B'"resultType":"complete","ttlMs":60000,"cacheScope":"private",',
                     ~B'"contents":[{"uri":"', Uri, ~B'","text":"', Text, ~B'"}]}', Blank, $}])
    end,
    {_, #{bytes := Bytes}} = erlmcp_test_watch:run(fun() ->
        with_client(Answer, #{}, fun(Client) ->
            [{ok, _} = erlmcp_client:read_resource(Client,
                                                   <<"test://", (integer_to_binary(N))/binary>>)
             || N <- lists:seq(1, 88)],
            #{cache := #{entries := 88}} = erlmcp_client:info(Client)
        end)
    end, watch(Config)),
    ct:pal("88 results of a megabyte each, of which little is kept: ~b bytes", [Bytes]).

%% A subscriber that does not read is cut off, and costs little until then.
floods_on_the_session_stream(Config) ->
    Changed = event(#{jsonrpc => ~"2.0", method => ~"notifications/tools/list_changed"}),
    Junk = binary:copy(~"j", 200_000),
    Updated = event(#{jsonrpc => ~"2.0", method => ~"notifications/resources/updated",
                      params => #{uri => ~"test://a", junk => Junk}}),
    Log = event(#{jsonrpc => ~"2.0", method => ~"notifications/message",
                  params => #{level => info, data => Junk}}),
    Filter = #{tools_changed => true, resources => [~"test://a"], logs => true},
    {Unread, Cost} = erlmcp_test_watch:run(fun() ->
        [with_peer(stream_of(flooding(Event)), #{era => session}, fun(Client) ->
             {ok, Ref} = erlmcp_client:subscribe(Client, Filter),
             Took = cut_off(Ref, now_ms()),
             {ok, #{}} = erlmcp_client:request(Client, ~"tools/call", #{name => ~"t"}),
             Took
         end) || Event <- [Changed, Updated, Log]]
    end, watch(Config)),
    ct:pal("unread when cut off: ~p; ~p", [Unread, Cost]).

%% Does not read until it is cut off, which is looked for from the side.
cut_off(Ref, Began) ->
    Test = self(),
    {Reader, Monitor} = spawn_monitor(fun() -> look(Test, Ref, Began) end),
    receive {'DOWN', Monitor, process, Reader, Reason} -> cut = Reason end,
    {message_queue_len, Unread} = process_info(self(), message_queue_len),
    ok = flushed(),
    Unread.

look(Test, Ref, Began) ->
    {messages, Messages} = process_info(Test, messages),
    case lists:member({erlmcp, Ref, {ended, slow_consumer}}, Messages) of
        true -> exit(cut);
        false when Began < 0 -> wait;
        false -> ok
    end,
    true = now_ms() - Began < 20_000 orelse exit(not_cut),
    receive after 20 -> look(Test, Ref, Began) end.

stream_of(Write) ->
    fun(#{method := ~"GET"}) ->
            fun(Socket) ->
                ok = write(Socket, chunked(events)),
                Write(Socket)
            end;
       (#{message := #{~"method" := ~"tools/call"} = Message}) ->
            {200, [], result(Message, #{content => []})};
       (Request) ->
            session(Request)
    end.

flooding(Event) ->
    Chunk = iolist_to_binary(chunk(Event)),
    fun(Socket) -> flood(Socket, Chunk, infinity) end.

questions_on_the_session_stream(Config) ->
    Asked = counters:new(1, []),
    Elicit = fun(_) ->
        ok = counters:add(Asked, 1, 1),
        decline
    end,
    Question = fun(Id) ->
        chunk(event(#{jsonrpc => ~"2.0", id => Id, method => ~"elicitation/create",
                      params => #{message => ~"?", requestedSchema => #{}}}))
    end,
    {_, Cost} = erlmcp_test_watch:run(fun() ->
        with_peer(stream_of(fun(Socket) -> questions(Socket, Question, 1) end),
                  #{era => session, inputs => #{elicit => Elicit}}, fun(Client) ->
            {ok, #{}} = erlmcp_client:call_tool(Client, ~"t", #{}),
            ok = until(fun() -> counters:get(Asked, 1) > 100 end),
            {ok, #{}} = erlmcp_client:call_tool(Client, ~"t", #{})
        end)
    end, watch(Config)),
    ct:pal("~b questions answered; ~p", [counters:get(Asked, 1), Cost]).

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

%% How a case goes.

is(Expected) ->
    fun({error, Reason}) -> fits(Expected, Reason);
       (_) -> false
    end.

fits({Kind}, Reason) -> is_tuple(Reason) andalso element(1, Reason) =:= Kind;
fits(Reason, Reason) -> true;
fits(_, _) -> false.

%% All kinds one after the other, each on a client and a server of its own, under one watch.
each(Config, Options, IsExpected, Kinds) ->
    Timeout = maps:get(timeout, Options, ?WAIT),
    {Took, Cost} = erlmcp_test_watch:run(fun() ->
        [{Name, one(Answer, Options#{timeout => Timeout}, IsExpected)} || {Name, Answer} <- Kinds]
    end, watch(Config)),
    ct:pal("milliseconds: ~p~n~p", [Took, Cost]),
    [] = [Wrong || {_, Milliseconds} = Wrong <- Took, not is_integer(Milliseconds)].

one(Answer, #{timeout := Timeout} = Options, IsExpected) ->
    with_client(fun(Message) -> answer(Answer, Message) end, maps:remove(timeout, Options),
                fun(Client) ->
        {ok, _} = erlmcp_client:server(Client),
        Began = now_ms(),
        Outcome = erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => Timeout}),
        Took = now_ms() - Began,
        case IsExpected(Outcome) of
            true when Took < Timeout + ?SLACK ->
                {error, Reason} = Outcome,
                _ = <<(erlmcp_client:format_error(Reason))/binary>>,
                Took;
            true -> {late, Took};
            false -> {unexpected, shown(Outcome)}
        end
    end).

shown(Outcome) ->
    string:slice(io_lib:format("~0tP", [Outcome, 20]), 0, 500).

answer({say, Say}, Message) ->
    Say(Message);
answer(Answer, _) ->
    Answer.

json(Value) ->
    typed(json, json:encode(Value)).

typed(json, Body) ->
    {200, [{~"content-type", ~"application/json"}], iolist_to_binary(Body)}.

%% A server of 2026-07-28 that answers everything but the first question as it is told.
with_client(Answer, Options, Do) ->
    with_peer(fun(#{message := #{~"method" := ~"server/discover"} = Message}) ->
                      discovered(Message);
                 (#{message := #{~"method" := ~"notifications/cancelled"}}) ->
                      {202, [], none};
                 (#{message := Message}) ->
                      Answer(Message)
              end, Options#{era => stateless}, Do).

with_peer(Answer, Options, Do) ->
    #{url := Url} = Peer = erlmcp_test_peer:http(Answer),
    {ok, Client} = erlmcp_client:start_link({http, Url, Options}),
    Given = Do(Client),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer),
    ok = flushed(),
    Given.

flushed() ->
    receive
        {peer, _} -> flushed();
        {erlmcp, _, _} -> flushed()
    after 0 ->
        ok
    end.

until(Holds) ->
    until(Holds, now_ms() + ?WAIT).

until(Holds, Deadline) ->
    case Holds() of
        true -> ok;
        false ->
            true = now_ms() < Deadline,
            receive after 10 -> until(Holds, Deadline) end
    end.

discovered(Message) ->
    {200, [], complete(Message, #{supportedVersions => [~"2026-07-28"],
                                  capabilities => #{tools => #{}}})}.

complete(Message, Result) ->
    result(Message, maps:merge(#{resultType => complete, ttlMs => 0, cacheScope => public},
                               Result)).

text(Message, Text) ->
    {200, [], complete(Message, #{content => [#{type => text, text => Text}]})}.

session(#{message := #{~"method" := ~"initialize"} = Message}) ->
    {200, [{~"mcp-session-id", ~"s-1"}], result(Message, initialized())};
session(#{message := #{~"method" := ~"resources/subscribe"} = Message}) ->
    {200, [], result(Message, #{})};
session(#{message := none}) ->
    {405, [], none};
session(_) ->
    {202, [], none}.

initialized() ->
    #{protocolVersion => ~"2025-11-25", capabilities => #{tools => #{}, resources => #{}},
      serverInfo => #{name => ~"peer", version => ~"1"}}.

%% What is written.

head(json, Length) ->
    [~"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ",
     integer_to_binary(Length), ~"\r\n\r\n"].

chunked(Type) ->
    [~"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-type: ",
     case Type of json -> ~"application/json"; events -> ~"text/event-stream" end, ~"\r\n\r\n"].

chunk(Bytes) ->
    [integer_to_binary(iolist_size(Bytes), 16), ~"\r\n", Bytes, ~"\r\n"].

write(Socket, Bytes) ->
    case gen_tcp:send(Socket, Bytes) of
        ok -> ok;
        {error, _} -> close
    end.

ending(Socket, Bytes) ->
    _ = gen_tcp:send(Socket, Bytes),
    close.

now_ms() ->
    erlang:monotonic_time(millisecond).
