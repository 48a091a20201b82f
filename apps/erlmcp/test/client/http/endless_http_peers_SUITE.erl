-module(endless_http_peers_SUITE).
-moduledoc """
Servers that never come to an end, on real sockets: of an answer, a stream, questions, pages. The
rules for all servers that misbehave are in `m:bad_http_peers_SUITE`.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([endless_streams/1, comments_before_an_acknowledgement/1, endless_progress/1,
         endless_questions/1, endless_rounds/1,
         questions_of_a_task_are_kept_alone/1, endless_pages/1, one_very_long_list/1,
         nobody_thinks_for_a_call_that_is_over/1,
         what_is_kept_is_small/1, the_server_s_words_are_kept_alone/1,
         floods_on_the_session_stream/1,
         questions_on_the_session_stream/1, waiting_questions_are_kept_alone/1]).

-import(erlmcp_test_suite, [watch/1]).
-import(erlmcp_test_bad_http_peer, [each/4, is/1, with_client/3, with_peer/3, flushed/0, now_ms/0,
                                    session/1, discovered/1, typed/2, head/2, chunked/1, chunk/1,
                                    write/2]).
-import(erlmcp_test_peer, [result/2, event/1, drip/3, flood/3]).

-define(WAIT, 30_000).
%% Milliseconds that a call may end later than it should.
-define(SLACK, 10_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [endless_streams, comments_before_an_acknowledgement, endless_progress, endless_questions,
     endless_rounds,
     questions_of_a_task_are_kept_alone, endless_pages, one_very_long_list,
     nobody_thinks_for_a_call_that_is_over, what_is_kept_is_small,
     the_server_s_words_are_kept_alone, floods_on_the_session_stream,
     questions_on_the_session_stream, waiting_questions_are_kept_alone].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{watch, erlmcp_test_watch:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_watch:stop(watch(Config)).

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

%% The subscription is asked for again 30 seconds after the request, and not after the last comment.
comments_before_an_acknowledgement(_) ->
    Comment = iolist_to_binary(chunk(~":\n")),
    with_client(fun(_) -> fun(Socket) -> drip(Socket, chunked(events), Comment) end end, #{},
                fun(Client) ->
        {ok, _} = erlmcp_client:subscribe(Client, #{tools_changed => true}),
        Asked = fun() ->
            receive {peer, #{~"method" := ~"subscriptions/listen"}} -> now_ms()
            after 30_000 + ?SLACK -> error(not_asked)
            end
        end,
        First = Asked(),
        Took = Asked() - First,
        true = Took >= 29_000 orelse error({took, Took})
    end).

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
    Limits = #{timeout => 1900, max_timeout => 2000},
    {_, #{milliseconds := Took}} = erlmcp_test_watch:run(fun() ->
        [with_client(Answer, Limits, fun(Client) ->
             Began = now_ms(),
             {error, {timeout, _}} =
                 erlmcp_client:call_tool(Client, ~"t", #{}, #{progress => fun(_) -> ok end}),
             true = now_ms() - Began >= 2000,
             true = now_ms() - Began < 2000 + ?SLACK,
             %% A process that does not read gets no more than it can hold.
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

%% Each look at the task brings a new question, in a message of two megabytes.
questions_of_a_task_are_kept_alone(Config) ->
    Looks = counters:new(1, []),
    Blank = binary:copy(~" ", 2_000_000),
    Task = fun(Status, More) ->
        More#{resultType => complete, taskId => ~"t-1", status => Status,
              createdAt => ~"2026-01-01T00:00:00Z", lastUpdatedAt => ~"2026-01-01T00:00:00Z",
              ttlMs => null, pollIntervalMs => 50}
    end,
    Look = fun(50) -> Task(completed, #{result => #{content => []}});
              (N) ->
                   Name = <<(integer_to_binary(N))/binary, (binary:copy(~"n", 100))/binary>>,
                   Task(input_required, #{inputRequests => #{Name => #{method => ~"roots/list"}}})
           end,
    Answer = fun(#{~"method" := ~"tools/call"} = Message) ->
                     {200, [], result(Message, (Task(working, #{}))#{resultType := task})};
                (#{~"method" := ~"tasks/get", ~"id" := Id}) ->
                     ok = counters:add(Looks, 1, 1),
                     typed(json, [~B'{"jsonrpc":"2.0","id":', integer_to_binary(Id),
                                  ~B',"result":', json:encode(Look(counters:get(Looks, 1))), Blank,
                                  $}]);
                (Message) ->
                     {200, [], result(Message, #{resultType => complete})}
             end,
    {_, Cost} = erlmcp_test_watch:run(fun() ->
        with_client(Answer, #{tasks => true, inputs => #{roots => []}}, fun(Client) ->
            {ok, #{~"content" := []}} = erlmcp_client:call_tool(Client, ~"t", #{})
        end)
    end, watch(Config)),
    ct:pal("49 questions of two megabytes each, of which little is kept: ~p", [Cost]).

endless_pages(Config) ->
    %% The bytes are made once, or the server's own memory would be measured.
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

%% Work on the questions of a round ends with its call, in every case.
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

%% The rest of the message in which they came is not kept with them.
the_server_s_words_are_kept_alone(_) ->
    Answer = fun(#{message := Message}) ->
        Junk = #{junk => binary:copy(~"j", 1_000_000), instructions => binary:copy(~"i", 100)},
        {Status, Headers, Body} = discovered(Message),
        #{result := Result} = Body,
        {Status, Headers, Body#{result := maps:merge(Result, Junk)}}
    end,
    with_peer(Answer, #{era => stateless}, fun(Client) ->
        {ok, #{instructions := Kept}} = erlmcp_client:server(Client),
        true = byte_size(Kept) =:= 100 andalso binary:referenced_byte_size(Kept) < 10_000
    end).

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

%% The user has not answered yet. The messages of a megabyte each are not kept with the questions.
waiting_questions_are_kept_alone(Config) ->
    Blank = binary:copy(~" ", 1_000_000),
    Text = binary:copy(~"t", 100),
    Question = fun(Id) ->
        chunk([~B'data: {"jsonrpc":"2.0","id":', integer_to_binary(Id),
               ~B',"method":"elicitation/create","params":{"message":"', Text,
               ~B'","requestedSchema":{}}', Blank, ~"}\n\n"])
    end,
    Ask = fun(Socket) ->
        [ok = write(Socket, Question(Id)) || Id <- lists:seq(1, 116)],
        _ = gen_tcp:recv(Socket, 0),
        close
    end,
    Elicit = fun(_) -> receive never -> decline end end,
    {_, Cost} = erlmcp_test_watch:run(fun() ->
        with_peer(stream_of(Ask), #{era => session, inputs => #{elicit => Elicit}}, fun(Client) ->
            {ok, #{questions := Table}} = erlmcp_client_table:find(Client),
            %% Sixteen of them are open, which have a second row.
            ok = until(fun() -> ets:info(Table, size) =:= 116 + 16 end)
        end)
    end, watch(Config)),
    ct:pal("116 questions of a megabyte each, of which little is kept: ~p", [Cost]).

until(Holds) ->
    until(Holds, now_ms() + ?WAIT).

until(Holds, Deadline) ->
    case Holds() of
        true -> ok;
        false ->
            true = now_ms() < Deadline,
            receive after 10 -> until(Holds, Deadline) end
    end.
