-module(client_calls_SUITE).
-moduledoc """
What a client does on a call beside sending it, in both eras: deadlines and progress, bounds, what
is tried once more, pages, and what is checked of a result. The servers are scripts on sockets.

Sources: specification 2026-07-28, "Cancellation", "Progress", "Pagination", "Tools".
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([deadline_ends_the_call/1, progress_extends_the_deadline/1,
         max_timeout_is_not_extended/1, progress_of_others_extends_nothing/1,
         progress_extends_what_is_taken_up_again/1, a_resumption_has_the_time_of_its_call/1,
         calls_are_bounded/1, safe_request_is_sent_once_more/1, tool_is_not_called_again/1,
         cursors_that_do_not_end/1, pages_are_bounded/1, null_ends_the_pages/1,
         empty_cursor_is_one/1, forgotten_cursor_begins_anew/1,
         structured_content_is_checked/1, results_have_their_form/1,
         invalid_tool_of_others_stays/1, unwanted_notifications_are_ignored/1,
         memory_of_a_call_is_bounded/1, a_receiver_that_dies_ends_its_call/1,
         a_long_text_is_no_heap/1, an_ended_call_counts_no_more/1, lists_have_few_bytes/1,
         meta_of_a_call_is_sent/1, what_is_no_answer_is_named/1, errors_have_their_data/1,
         other_requests_are_not_repeated_for_headers/1, why_it_ends_is_told/1,
         a_cancellation_waits_for_no_call/1, a_call_that_waits_can_be_given_up/1,
         what_is_given_up_is_not_sent/1]).

-import(erlmcp_test_client_calls, [visit/3, era/1, complete/1, page/3, counted/1, tool/1,
                                   mirrored/1]).
-import(erlmcp_test_peer, [event/1, received/1, result/2]).

-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, stateless}, {group, session}].

groups() ->
    Both = [deadline_ends_the_call, progress_extends_the_deadline, max_timeout_is_not_extended,
            progress_of_others_extends_nothing, calls_are_bounded, safe_request_is_sent_once_more,
            tool_is_not_called_again, cursors_that_do_not_end, pages_are_bounded,
            null_ends_the_pages, empty_cursor_is_one, forgotten_cursor_begins_anew,
            structured_content_is_checked, results_have_their_form,
            unwanted_notifications_are_ignored, memory_of_a_call_is_bounded,
            a_receiver_that_dies_ends_its_call, a_long_text_is_no_heap,
            an_ended_call_counts_no_more, lists_have_few_bytes, meta_of_a_call_is_sent,
            what_is_no_answer_is_named, errors_have_their_data,
            other_requests_are_not_repeated_for_headers, a_call_that_waits_can_be_given_up,
            what_is_given_up_is_not_sent],
    [{stateless, [], Both},
     {session, [], [progress_extends_what_is_taken_up_again,
                    a_resumption_has_the_time_of_its_call, invalid_tool_of_others_stays,
                    why_it_ends_is_told, a_cancellation_waits_for_no_call | Both]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(session, Config) -> [{era, session} | Config];
init_per_group(_, Config) -> [{era, stateless} | Config].

end_per_group(_, _) ->
    ok.

%% "If a response is not received within the timeout period, the sender SHOULD cancel the request
%% and stop waiting for a response": 2026-07-28 by closing the stream, a session by a notification.
deadline_ends_the_call(Config) ->
    Client = visit(Config, #{}, #{~"tools/call" => fun(_) -> {events, [follow]} end}),
    {error, {timeout, 500}} = erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 500}),
    #{~"id" := Id} = received(~"tools/call"),
    case era(Config) of
        session ->
            #{~"params" := #{~"requestId" := Id}} = received(~"notifications/cancelled");
        stateless ->
            receive closed -> ok after ?WAIT -> error(still_open) end
    end.

%% "Implementations MAY choose to reset the timeout clock when receiving a progress notification".
progress_extends_the_deadline(Config) ->
    Test = self(),
    Client = visit(Config, #{}, #{~"tools/call" => slow(5, 500)}),
    {ok, #{~"content" := []}} =
        erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 2400,
                                                     progress => fun(P) -> Test ! {told, P} end}),
    [1, 2, 3, 4, 5] = [receive {told, #{~"progress" := N}} -> N end || _ <- lists:seq(1, 5)].

%% "implementations SHOULD always enforce a maximum timeout, regardless of progress notifications".
%% The reason names the limit that the call has met.
max_timeout_is_not_extended(Config) ->
    Client = visit(Config, #{}, #{~"tools/call" => slow(100, 100)}),
    Before = now_ms(),
    {error, {timeout, 2000}} =
        erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 1900, max_timeout => 2000,
                                                     progress => fun(_) -> ok end}),
    Took = now_ms() - Before,
    true = Took >= 2000 andalso Took < 8000.

progress_of_others_extends_nothing(Config) ->
    Foreign = fun(#{~"id" := Id} = Call) ->
        {Steps, _} = lists:split(20, lists:append([[progress(Id + 1000, N), {wait, 100}]
                                                   || N <- lists:seq(1, 10)])),
        {events, Steps ++ [event(result(Call, #{content => []}))]}
    end,
    Client = visit(Config, #{}, #{~"tools/call" => Foreign}),
    {error, {timeout, 300}} =
        erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 300,
                                                     progress => fun(_) -> error(not_ours) end}).

%% A stream that its server cuts is taken up again for as long as the call has time.
progress_extends_what_is_taken_up_again(Config) ->
    Test = self(),
    Client = visit(Config, #{}, #{
        ~"tools/call" => fun(#{~"id" := Id} = Call) ->
            Test ! {call, Call},
            {events, [~"id: 1\nretry: 10\ndata: \n\n", progress(Id, 1)
                      | lists:append([[{wait, 750}, progress(Id, N)] || N <- [2, 3, 4, 5]])]}
        end,
        resumed => fun() ->
            Call = receive {resume, Resumed} -> Resumed after ?WAIT -> error(no_call) end,
            {events, [event(result(Call, #{content => []}))]}
        end}),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}, #{timeout => 2900}),
    Call = receive {call, Came} -> Came after ?WAIT -> error(no_call) end,
    Resuming = receive {resumed, Pid} -> Pid after ?WAIT -> error(not_resumed) end,
    Resuming ! {resume, Call},
    ok = until_ok(Reference).

%% The call's process waits for a connection, and hears nothing else meanwhile.
a_resumption_has_the_time_of_its_call(Config) ->
    Client = visit(Config, #{}, #{
        ~"tools/call" => fun(_) -> {events, [~"id: 1\nretry: 0\ndata: \n\n", close]} end,
        resumed => fun() -> {events, [follow]} end}),
    Session = trace:session_create(?MODULE, self(), []),
    1 = trace:function(Session, {erlmcp_httpc_pool, checkout, 4}, true, []),
    _ = trace:process(Session, new, true, [call]),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}, #{timeout => 20_000}),
    receive {resumed, _} -> ok after ?WAIT -> error(not_resumed) end,
    ok = erlmcp_client:cancel(Client, Reference),
    receive {erlmcp, Reference, {error, cancelled}} -> ok after ?WAIT -> error(no_outcome) end,
    {Caller, Deadline} = receive
        {trace, Pid, call, {_, checkout, [_, call, OfCall, _]}} -> {Pid, OfCall}
    after ?WAIT ->
        error(not_called)
    end,
    receive
        {trace, Caller, call, {_, checkout, [_, call, OfResumption, _]}} -> Deadline = OfResumption
    after ?WAIT ->
        error(not_resumed)
    end,
    true = trace:session_destroy(Session).

until_ok(Reference) ->
    receive
        {erlmcp, Reference, {progress, _}} -> until_ok(Reference);
        {erlmcp, Reference, {ok, _}} -> ok;
        {erlmcp, Reference, Other} -> error(Other)
    after ?WAIT ->
        error(no_outcome)
    end.

%% At the bound, and one more, by which nobody else is disturbed.
calls_are_bounded(Config) ->
    Test = self(),
    Client = visit(Config, #{calls => 3}, #{~"tools/call" => fun(Call) ->
        Test ! {held, Call, self()},
        {events, [follow]}
    end}),
    Running = [begin
                   {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
                   receive
                       {held, Call, Pid} -> {Reference, Call, Pid}
                   after ?WAIT -> error(late)
                   end
               end || _ <- [1, 2, 3]],
    {error, {overload, 3}} = erlmcp_client:call_tool(Client, ~"t", #{}),
    {ok, Fourth} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
    receive {erlmcp, Fourth, {error, {overload, 3}}} -> ok after ?WAIT -> error(late) end,
    #{calls := 3} = erlmcp_client:info(Client),
    [begin
         Pid ! {say, event(result(Call, #{content => []}))},
         receive {erlmcp, Reference, {ok, _}} -> ok after ?WAIT -> error(late) end
     end || {Reference, Call, Pid} <- Running],
    #{calls := 0} = erlmcp_client:info(Client),
    receive {held, _, _} -> error(sent) after 0 -> ok end.

%% A connection that ended does not say whether the server did the work; reading twice harms nobody.
safe_request_is_sent_once_more(Config) ->
    {Cut, Count} = counted(fun(_, 1) -> close;
                              (Call, _) -> {200, [], result(Call, complete(#{contents => []}))}
                           end),
    Client = visit(Config, #{}, #{~"resources/read" => Cut}),
    {ok, #{~"contents" := []}} = erlmcp_client:read_resource(Client, ~"a:b"),
    2 = Count(),
    {Always, Closed} = counted(fun(_, _) -> close end),
    Other = visit(Config, #{}, #{~"resources/read" => Always}),
    {error, {closed, _}} = erlmcp_client:read_resource(Other, ~"a:b"),
    2 = Closed().

tool_is_not_called_again(Config) ->
    {Cut, Count} = counted(fun(_, _) -> close end),
    Client = visit(Config, #{}, #{~"tools/call" => Cut}),
    {error, {closed, _}} = erlmcp_client:call_tool(Client, ~"t", #{}),
    1 = Count().

cursors_that_do_not_end(Config) ->
    Client = visit(Config, #{}, #{~"tools/list" => fun(#{~"params" := Params} = Call) ->
        Cursor = case Params of
            #{~"cursor" := ~"a"} -> ~"b";
            #{} -> ~"a"
        end,
        page(Call, [], Cursor)
    end}),
    {error, {cursor_loop, ~"a"}} = erlmcp_client:list_tools(Client).

pages_are_bounded(Config) ->
    {List, Count} = counted(fun(Call, N) -> page(Call, [tool(N)], integer_to_binary(N)) end),
    Client = visit(Config, #{limits => #{pages => 3}}, #{~"tools/list" => List}),
    {error, {too_many_pages, 3}} = erlmcp_client:list_tools(Client),
    3 = Count(),
    {Three, _} = counted(fun(Call, 3) -> page(Call, [tool(3)], none);
                            (Call, N) -> page(Call, [tool(N)], integer_to_binary(N))
                         end),
    Other = visit(Config, #{limits => #{pages => 3}}, #{~"tools/list" => Three}),
    {ok, [#{~"name" := ~"1"}, #{~"name" := ~"2"}, #{~"name" := ~"3"}]} =
        erlmcp_client:list_tools(Other).

%% "Don't make any determination based on cursor value other than whether a non-null value was
%% provided".
null_ends_the_pages(Config) ->
    Client = visit(Config, #{}, #{~"tools/list" => fun(Call) -> page(Call, [tool(1)], null) end}),
    {ok, [#{~"name" := ~"1"}]} = erlmcp_client:list_tools(Client).

%% "an empty string is a valid cursor and thus MUST NOT be treated as the end of results".
empty_cursor_is_one(Config) ->
    Client = visit(Config, #{}, #{~"tools/list" => fun(#{~"params" := Params} = Call) ->
        case Params of
            #{~"cursor" := ~""} -> page(Call, [tool(2)], none);
            #{} -> page(Call, [tool(1)], ~"")
        end
    end}),
    {ok, [#{~"name" := ~"1"}, #{~"name" := ~"2"}]} = erlmcp_client:list_tools(Client).

%% "If a cursor becomes invalid (e.g., the server returns an error for a previously valid cursor),
%% the client SHOULD discard all cached pages and re-fetch from the beginning."
forgotten_cursor_begins_anew(Config) ->
    {List, Count} = counted(fun(#{~"params" := #{~"cursor" := ~"new"}} = Call, _) ->
                                    page(Call, [tool(2)], none);
                               (#{~"params" := #{~"cursor" := _}} = Call, _) ->
                                    {200, [], erlmcp_test_peer:error(Call, -32602, #{})};
                               (Call, 1) ->
                                    page(Call, [tool(0)], ~"old");
                               (Call, _) ->
                                    page(Call, [tool(1)], ~"new")
                            end),
    Client = visit(Config, #{}, #{~"tools/list" => List}),
    {ok, [#{~"name" := ~"1"}, #{~"name" := ~"2"}]} = erlmcp_client:list_tools(Client),
    4 = Count(),
    {Always, Asked} = counted(fun(#{~"params" := #{~"cursor" := _}} = Call, _) ->
                                      {200, [], erlmcp_test_peer:error(Call, -32602, #{})};
                                 (Call, _) ->
                                      page(Call, [], ~"old")
                              end),
    Other = visit(Config, #{}, #{~"tools/list" => Always}),
    {error, {rpc, #{code := -32602}}} = erlmcp_client:list_tools(Other),
    4 = Asked().

%% "Clients SHOULD validate structured results against this schema."
structured_content_is_checked(Config) ->
    Tool = (tool(1))#{outputSchema => #{type => object, required => [~"n"],
                                        properties => #{n => #{type => integer}}}},
    Client = visit(Config, #{}, #{
        ~"tools/list" => fun(Call) -> page(Call, [Tool], none) end,
        ~"tools/call" => fun(#{~"params" := #{~"arguments" := Given}} = Call) ->
            {200, [], result(Call, complete(Given#{~"content" => []}))}
        end}),
    {ok, [_]} = erlmcp_client:list_tools(Client),
    Gives = fun(Given) -> erlmcp_client:call_tool(Client, ~"1", Given) end,
    {ok, #{~"structuredContent" := #{~"n" := 1}}} = Gives(#{structuredContent => #{n => 1}}),
    {error, {protocol, <<"structuredContent", _/binary>>}} =
        Gives(#{structuredContent => #{n => ~"one"}}),
    {error, {protocol, <<"structuredContent", _/binary>>}} = Gives(#{}),
    {ok, #{~"isError" := true}} = Gives(#{isError => true}).

results_have_their_form(Config) ->
    Client = visit(Config, #{}, #{
        ~"tools/call" => fun(#{~"params" := #{~"arguments" := #{~"result" := Result}}} = Call) ->
            {200, [], #{jsonrpc => ~"2.0", id => maps:get(~"id", Call), result => Result}}
        end}),
    [{error, {protocol, <<"result of tools/call", _/binary>>}} =
         erlmcp_client:call_tool(Client, ~"t", #{result => Result})
     || Result <- [#{}, #{content => ~"text"}, #{content => [#{}]}, #{content => #{}}]],
    [{error, {protocol, _}} = erlmcp_client:call_tool(Client, ~"t", #{result => Result})
     || Result <- [~"text", 1, [], null]].

%% What the annotation means is 2026-07-28's; in older revisions it is a keyword that nobody knows.
invalid_tool_of_others_stays(Config) ->
    Client = visit(Config, #{}, #{~"tools/list" => fun(Call) ->
        page(Call, [mirrored(~"two words")], none)
    end, ~"tools/call" => fun(Call) -> {200, [], result(Call, #{content => []})} end}),
    {ok, [#{~"name" := ~"mirrored"}]} = erlmcp_client:list_tools(Client),
    {ok, _} = erlmcp_client:call_tool(Client, ~"mirrored", #{region => ~"x"}).

%% The server is told as for a deadline.
a_receiver_that_dies_ends_its_call(Config) ->
    Client = visit(Config, #{}, #{~"tools/call" => fun(_) -> {events, [follow]} end}),
    Receiver = spawn(fun() ->
        {ok, _} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
        receive never -> ok end
    end),
    #{~"id" := Id} = received(~"tools/call"),
    exit(Receiver, kill),
    case era(Config) of
        session ->
            #{~"params" := #{~"requestId" := Id}} = received(~"notifications/cancelled");
        stateless ->
            receive closed -> ok after ?WAIT -> error(not_closed) end
    end.

%% The call that waits gets the connection of the other one, which does not hold up what the server
%% must be told.
a_cancellation_waits_for_no_call(Config) ->
    Client = visit(Config, #{connections => 1}, #{~"tools/call" => fun(_) ->
        {events, [follow]}
    end}),
    {ok, First} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
    #{~"id" := Id} = received(~"tools/call"),
    {ok, _} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
    ok = waiting(1, Client),
    ok = erlmcp_client:cancel(Client, First),
    receive {erlmcp, First, {error, cancelled}} -> ok after ?WAIT -> error(late) end,
    #{~"params" := #{~"requestId" := Id}} = received(~"notifications/cancelled"),
    _ = received(~"tools/call"),
    ok = erlmcp_client:stop(Client).

%% Until as many calls wait for a connection. The case's time is the bound.
waiting(Count, Client) ->
    {ok, #{channel := {Transport, Handle}}} = erlmcp_client_table:find(Client),
    case Transport:connections(Handle) of
        {_, Count} -> ok;
        _ -> receive after 5 -> waiting(Count, Client) end
    end.

%% Another call has the only connection. Whoever gives up is told at once, and leaves the others
%% their turn.
a_call_that_waits_can_be_given_up(Config) ->
    Test = self(),
    Client = visit(Config, #{connections => 1}, #{~"tools/call" => fun(Call) ->
        Test ! {held, Call, self()},
        {events, [follow]}
    end}),
    Begin = fun(Name) ->
        {ok, Reference} = erlmcp_client:async(Client, {call_tool, Name, #{}}),
        Reference
    end,
    First = Begin(~"first"),
    {~"first", Answer} = held(),
    Second = Begin(~"second"),
    ok = waiting(1, Client),
    ok = erlmcp_client:cancel(Client, Second),
    receive {erlmcp, Second, {error, cancelled}} -> ok after ?WAIT -> error(late) end,
    ok = waiting(0, Client),
    Caller = spawn(fun() -> _ = Begin(~"third"), receive never -> ok end end),
    ok = waiting(1, Client),
    exit(Caller, kill),
    ok = waiting(0, Client),
    Last = Begin(~"last"),
    ok = waiting(1, Client),
    ok = Answer(),
    {~"last", AnswerLast} = held(),
    ok = AnswerLast(),
    [receive {erlmcp, Reference, {ok, _}} -> ok after ?WAIT -> error(late) end
     || Reference <- [First, Last]],
    ok = erlmcp_client:stop(Client).

held() ->
    receive
        {held, #{~"params" := #{~"name" := Name}} = Call, Pid} ->
            {Name, fun() -> Pid ! {say, event(result(Call, complete(#{content => []})))}, ok end}
    after ?WAIT ->
        error(no_call)
    end.

%% The call is cancelled when it has the first page already and has not asked for the second one.
what_is_given_up_is_not_sent(Config) ->
    Test = self(),
    Client = visit(Config, #{}, #{
        ~"tools/list" => fun(#{~"id" := Id} = Call) ->
            Page = complete(#{tools => [], nextCursor => ~"2", ttlMs => 0, cacheScope => public}),
            {events, [[progress(Id, 1), event(result(Call, Page))]]}
        end,
        ~"tools/call" => fun(Call) -> {200, [], result(Call, complete(#{content => []}))} end}),
    Progress = fun(_) -> Test ! {has_first, self()}, receive go_on -> ok end end,
    {ok, Reference} = erlmcp_client:async(Client, {list, tools}, #{progress => Progress}),
    #{} = received(~"tools/list"),
    Call = receive {has_first, Pid} -> Pid after ?WAIT -> error(no_page) end,
    ok = erlmcp_client:cancel(Client, Reference),
    Call ! go_on,
    receive {erlmcp, Reference, {error, cancelled}} -> ok after ?WAIT -> error(late) end,
    {ok, _} = erlmcp_client:call_tool(Client, ~"t", #{}),
    receive {peer, #{~"method" := ~"tools/list"}} -> error(sent) after 0 -> ok end,
    ok = erlmcp_client:stop(Client).

%% A call without funs for them, alone and in a batch.
unwanted_notifications_are_ignored(Config) ->
    Log = #{jsonrpc => ~"2.0", method => ~"notifications/message",
            params => #{level => error, data => ~"unwanted"}},
    Client = visit(Config, #{}, #{~"tools/call" => fun(#{~"id" := Id} = Call) ->
        {events, [event(Log), progress(Id, 1), event([Log, Log]),
                  event(result(Call, complete(#{content => []})))]}
    end}),
    {ok, #{~"content" := []}} = erlmcp_client:call_tool(Client, ~"t", #{}).

%% A call whose result takes more memory than it may have is killed, and its caller is told.
memory_of_a_call_is_bounded(Config) ->
    Client = visit(Config, #{limits => #{call_heap_bytes => 1_000_000}},
                   #{~"tools/call" => fun(#{~"params" := #{~"name" := Name}} = Call) ->
                         Text = #{type => text, text => ~"x"},
                         Content = lists:duplicate(binary_to_integer(Name), Text),
                         {200, [], result(Call, complete(#{content => Content}))}
                     end}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"10", #{}),
    {error, {too_large, heap}} = erlmcp_client:call_tool(Client, ~"20000", #{}),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"20000", #{}}),
    receive
        {erlmcp, Reference, Outcome} -> {error, {too_large, heap}} = Outcome
    after ?WAIT ->
        error(not_told)
    end.

%% The bytes of a text are not on the heap, so a call can read one that is larger than that may be.
a_long_text_is_no_heap(Config) ->
    Client = visit(Config, #{limits => #{call_heap_bytes => 1_000_000}}, #{
        ~"tools/call" => fun(Call) ->
            Text = binary:copy(~"x", 3_000_000),
            {200, [], result(Call, complete(#{content => [#{type => text, text => Text}]}))}
        end}),
    {ok, #{~"content" := [#{~"text" := Text}]}} = erlmcp_client:call_tool(Client, ~"t", #{}),
    3_000_000 = byte_size(Text).

%% One after the other there may be as many as one likes.
an_ended_call_counts_no_more(Config) ->
    Client = visit(Config, #{calls => 1}, #{~"tools/call" => fun(Call) ->
        {200, [], result(Call, complete(#{content => []}))}
    end}),
    [begin
         {ok, _} = erlmcp_client:call_tool(Client, ~"t", #{}),
         #{calls := 0} = erlmcp_client:info(Client)
     end || _ <- [1, 2, 3]].

%% Bounded refusal: all pages together, at the bound and one byte more.
lists_have_few_bytes(Config) ->
    Listed = fun(Limits) ->
        erlmcp_client:list_tools(visit(Config, #{limits => Limits}, #{
            ~"tools/list" => fun(#{~"params" := Params} = Call) ->
                case Params of
                    #{~"cursor" := ~"2"} -> page(Call, [tool(3)], none);
                    #{~"cursor" := ~"1"} -> page(Call, [tool(2)], ~"2");
                    #{} -> page(Call, [tool(1)], ~"1")
                end
            end}))
    end,
    {ok, [First, Second, Third] = All} = Listed(#{}),
    Size = lists:sum([erlang:external_size(Page)
                      || Page <- [[~"1", First], [~"2", Second], [Third]]]),
    {ok, All} = Listed(#{list_bytes => Size}),
    TooFew = Size - 1,
    {error, {too_large, TooFew}} = Listed(#{list_bytes => TooFew}).

%% Beside what the client says itself.
meta_of_a_call_is_sent(Config) ->
    Client = visit(Config, #{}, #{~"tools/call" => fun(Call) ->
        {200, [], result(Call, complete(#{content => []}))}
    end}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"t", #{}, #{meta => #{~"com.example/a" => 1},
                                                           progress => fun(_) -> ok end}),
    #{~"id" := Id, ~"params" := #{~"_meta" := #{~"com.example/a" := 1, ~"progressToken" := Id}}} =
        received(~"tools/call").

%% Who reads the reason knows what the server did wrong.
what_is_no_answer_is_named(Config) ->
    [begin
         Client = visit(Config, #{}, #{~"tools/call" => fun(#{~"id" := Id}) ->
             {events, [event((Wrong(Id))#{jsonrpc => ~"2.0"}), follow]}
         end}),
         {error, {protocol, What}} =
             erlmcp_client:call_tool(Client, ~"t", #{}, #{progress => fun(_) -> ok end}),
         {What, {_, _}} = {What, binary:match(What, Named)}
     end || {Wrong, Named} <- [
                {fun(Id) -> #{id => Id + 1, result => #{}} end, ~"id: expected "},
                {fun(_) -> #{params => #{}} end, ~"expected"},
                {fun(Id) -> #{method => ~"notifications/progress",
                              params => #{progressToken => Id, progress => ~"half"}} end,
                 ~"notifications/progress: progress: expected a number"},
                {fun(Id) -> #{id => Id, error => #{code => ~"1", message => ~"no"}} end,
                 ~"error: expected an object with an integer code and a string message"},
                {fun(Id) -> #{id => Id, error => #{code => 1, message => 2}} end,
                 ~"error: expected an object with an integer code and a string message"}]].

errors_have_their_data(Config) ->
    Client = visit(Config, #{}, #{
        ~"tools/call" => fun(#{~"id" := Id, ~"params" := #{~"arguments" := Error}}) ->
            {200, [], #{jsonrpc => ~"2.0", id => Id, error => Error}}
        end}),
    Fails = fun(Error) ->
        {error, {rpc, Reason}} = erlmcp_client:call_tool(Client, ~"t", Error),
        Reason
    end,
    Plain = #{code => 7, message => ~"no"},
    Plain = Fails(Plain),
    Given = Plain#{data => #{~"a" => [1]}},
    Given = Fails(Given).

%% Only a tool call of 2026-07-28 has headers that depend on what the client knows of its tool.
other_requests_are_not_repeated_for_headers(Config) ->
    {Refused, Count} = counted(fun(Call, _) ->
                                   {200, [], erlmcp_test_peer:error(Call, -32020, #{})}
                               end),
    {Lists, Listed} = counted(fun(Call, _) -> page(Call, [], none) end),
    Client = visit(Config, #{}, #{~"prompts/get" => Refused, ~"tools/call" => Refused,
                                  ~"tools/list" => Lists}),
    {error, {rpc, #{code := -32020}}} = erlmcp_client:get_prompt(Client, ~"p", #{}),
    {1, 0} = {Count(), Listed()},
    {error, {rpc, #{code := -32020}}} = erlmcp_client:call_tool(Client, ~"t", #{}),
    Tried = {Count(), Listed()},
    Tried = case era(Config) of
        session -> {2, 0};
        stateless -> {3, 1}
    end,
    %% If the tools cannot be listed, the server's first answer is the reason.
    {Failing, Failed} = counted(fun(Call, _) ->
                                    {200, [], erlmcp_test_peer:error(Call, -32603, #{})}
                                end),
    Other = visit(Config, #{}, #{~"tools/call" => Refused, ~"tools/list" => Failing}),
    {error, {rpc, #{code := -32020}}} = erlmcp_client:call_tool(Other, ~"t", #{}),
    true = Failed() =:= element(2, Tried).

%% "Both parties SHOULD log cancellation reasons for debugging", so they must differ.
why_it_ends_is_told(Config) ->
    Client = visit(Config, #{}, #{~"tools/call" => fun(_) -> {events, [follow]} end}),
    Called = fun() ->
        #{~"id" := Id} = received(~"tools/call"),
        Id
    end,
    Told = fun(Id) ->
        #{~"params" := #{~"requestId" := Id, ~"reason" := Why}} =
            received(~"notifications/cancelled"),
        Why
    end,
    {error, {timeout, 500}} = erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 500}),
    ~"the deadline passed" = Told(Called()),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"t", #{}}),
    Second = Called(),
    ok = erlmcp_client:cancel(Client, Reference),
    receive {erlmcp, Reference, {error, cancelled}} -> ok after ?WAIT -> error(late) end,
    ~"the caller cancelled it" = Told(Second),
    Caller = spawn(fun() -> erlmcp_client:call_tool(Client, ~"t", #{}) end),
    Third = Called(),
    exit(Caller, kill),
    ~"the caller is gone" = Told(Third).

slow(Steps, Pause) ->
    fun(#{~"id" := Id, ~"params" := #{~"_meta" := #{~"progressToken" := Id}}} = Call) ->
        {events, lists:append([[{wait, Pause}, progress(Id, N)] || N <- lists:seq(1, Steps)])
                 ++ [event(result(Call, complete(#{content => []})))]}
    end.

progress(Token, N) ->
    event(#{jsonrpc => ~"2.0", method => ~"notifications/progress",
            params => #{progressToken => Token, progress => N}}).

now_ms() ->
    erlang:monotonic_time(millisecond).
