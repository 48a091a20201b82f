-module(client_calls_SUITE).
-moduledoc """
What a client does on a call beside sending it: deadlines and progress, bounds, what is tried once
more, rounds of input, what is kept, pages, and what is checked of a result. The servers are scripts
on sockets.

Sources: specification 2026-07-28, "Cancellation", "Progress", "Multi Round-Trip Requests",
"Caching", "Pagination", "Tools", "Streamable HTTP"; where both eras have it, both are tried.
""".


-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([deadline_ends_the_call/1, progress_extends_the_deadline/1,
         max_timeout_is_not_extended/1, progress_of_others_extends_nothing/1,
         progress_extends_what_is_taken_up_again/1,
         calls_are_bounded/1, safe_request_is_sent_once_more/1, tool_is_not_called_again/1,
         cursors_that_do_not_end/1, pages_are_bounded/1, null_ends_the_pages/1,
         empty_cursor_is_one/1, forgotten_cursor_begins_anew/1,
         structured_content_is_checked/1, results_have_their_form/1]).
-export([header_mismatch_renews_the_tool_once/1, headers_follow_the_definition/1,
         invalid_tool_is_left_out/1, invalid_tool_of_others_stays/1,
         state_goes_back_as_it_came/1, rounds_are_bounded/1, rounds_must_ask_something/1,
         inputs_that_fail/1, unknown_result_type/1, result_type_may_be_absent/1,
         fresh_result_is_kept/1, stale_result_is_asked_for/1, change_is_not_kept/1,
         result_of_rounds_is_not_kept/1, cache_is_bounded/1, cache_may_be_off/1,
         options_are_checked/1]).
-export([log/2]).

-import(erlmcp_test_peer, [event/1, received/1, result/2]).

-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, stateless}, {group, session}, {group, rounds}].

groups() ->
    Both = [deadline_ends_the_call, progress_extends_the_deadline, max_timeout_is_not_extended,
            progress_of_others_extends_nothing, calls_are_bounded, safe_request_is_sent_once_more,
            tool_is_not_called_again, cursors_that_do_not_end, pages_are_bounded,
            null_ends_the_pages, empty_cursor_is_one, forgotten_cursor_begins_anew,
            structured_content_is_checked, results_have_their_form],
    [{stateless, [], Both},
     {session, [], [progress_extends_what_is_taken_up_again, invalid_tool_of_others_stays | Both]},
     {rounds, [],
      [header_mismatch_renews_the_tool_once, headers_follow_the_definition,
       invalid_tool_is_left_out, state_goes_back_as_it_came, rounds_are_bounded,
       rounds_must_ask_something, inputs_that_fail, unknown_result_type,
       result_type_may_be_absent, fresh_result_is_kept, stale_result_is_asked_for,
       change_is_not_kept, result_of_rounds_is_not_kept, cache_is_bounded, cache_may_be_off,
       options_are_checked]}].

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
    {error, {timeout, 100}} = erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 100}),
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
        erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 2000,
                                                     progress => fun(P) -> Test ! {told, P} end}),
    [1, 2, 3, 4, 5] = [receive {told, #{~"progress" := N}} -> N end || _ <- lists:seq(1, 5)].

%% "implementations SHOULD always enforce a maximum timeout, regardless of progress notifications".
max_timeout_is_not_extended(Config) ->
    Client = visit(Config, #{}, #{~"tools/call" => slow(100, 100)}),
    Before = now_ms(),
    {error, {timeout, 1500}} =
        erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 1500, max_timeout => 2000,
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
            {events, [~"id: 1\nretry: 10\ndata: \n\n", progress(Id, 1), {wait, 1500},
                      progress(Id, 2), {wait, 1500}, progress(Id, 3)]}
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

%% A client whose definition of a tool is stale may be refused with -32020: the tools are listed,
%% and the call is sent once more.
header_mismatch_renews_the_tool_once(Config) ->
    {Lists, Listed} = counted(fun(Call, _) -> page(Call, [mirrored(~"region")], none) end),
    {Calls, Called} = counted(fun(Call, 1) -> {400, [], erlmcp_test_peer:error(Call, -32020, #{})};
                                 (Call, _) -> {200, [], result(Call, complete(#{content => []}))}
                              end),
    Client = visit(Config, #{}, #{~"tools/list" => Lists, ~"tools/call" => Calls}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"mirrored", #{region => ~"eu"}),
    {1, 2} = {Listed(), Called()},
    {Refused, Tried} = counted(fun(Call, _) ->
                                   {400, [], erlmcp_test_peer:error(Call, -32020, #{})}
                               end),
    Other = visit(Config, #{}, #{~"tools/list" => Lists, ~"tools/call" => Refused}),
    {error, {rpc, #{code := -32020}}} =
        erlmcp_client:call_tool(Other, ~"mirrored", #{region => ~"eu"}),
    {2, 2} = {Listed(), Tried()}.

%% "conforming clients MUST mirror the designated parameter values into HTTP headers."; "If no value
%% is present at that path in the call arguments, the header is omitted."
headers_follow_the_definition(Config) ->
    Client = visit(Config, #{}, #{
        ~"tools/list" => fun(Call) -> page(Call, [mirrored(~"region")], none) end,
        ~"tools/call" => fun(Call) -> {200, [], result(Call, complete(#{content => []}))} end}),
    {ok, [_]} = erlmcp_client:list_tools(Client),
    {ok, _} = erlmcp_client:call_tool(Client, ~"mirrored", #{region => ~"eu-1"}),
    #{~"mcp-param-region" := ~"eu-1", ~"mcp-name" := ~"mirrored"} = headers(~"tools/call"),
    {ok, _} = erlmcp_client:call_tool(Client, ~"mirrored", #{other => 1}),
    false = is_map_key(~"mcp-param-region", headers(~"tools/call")),
    {ok, _} = erlmcp_client:request(Client, ~"tools/call", #{name => ~"mirrored",
                                                             arguments => #{region => eu}}),
    #{~"mcp-param-region" := ~"eu", ~"mcp-name" := ~"mirrored"} = headers(~"tools/call").

%% "Rejection means the client MUST exclude the invalid tool from the result of `tools/list`.
%% Clients SHOULD log a warning when rejecting a tool definition, including the tool name and the
%% reason".
invalid_tool_is_left_out(Config) ->
    Client = visit(Config, #{}, #{~"tools/list" => fun(Call) ->
        page(Call, [mirrored(~"two words"), (tool(1)), mirrored(~"")], none)
    end}),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    {ok, [#{~"name" := ~"1"}]} = erlmcp_client:list_tools(Client),
    ok = logger:remove_handler(?MODULE),
    receive {logged, warning, Text} ->
        {_, _} = binary:match(Text, ~"mirrored"),
        {_, _} = binary:match(Text, ~"x-mcp-header")
    after ?WAIT -> error(not_logged)
    end.

%% What the annotation means is 2026-07-28's; in older revisions it is a keyword that nobody knows.
invalid_tool_of_others_stays(Config) ->
    Client = visit(Config, #{}, #{~"tools/list" => fun(Call) ->
        page(Call, [mirrored(~"two words")], none)
    end, ~"tools/call" => fun(Call) -> {200, [], result(Call, #{content => []})} end}),
    {ok, [#{~"name" := ~"mirrored"}]} = erlmcp_client:list_tools(Client),
    {ok, _} = erlmcp_client:call_tool(Client, ~"mirrored", #{region => ~"x"}).

%% "the client MUST echo back the exact value of that field when retrying the original request.
%% [...] If the `InputRequiredResult` does not contain a `requestState` field, the client MUST NOT
%% include one in the retry."; "The JSON-RPC `id` MUST be different between the initial request and
%% the retry".
state_goes_back_as_it_came(Config) ->
    Asked = #{a => #{method => ~"roots/list"}},
    {Rounds, _} = counted(fun(Call, 1) -> asks(Call, #{inputRequests => Asked,
                                                       requestState => ~"\s{odd}\n"});
                             (Call, 2) -> asks(Call, #{requestState => ~"2"});
                             (Call, 3) -> asks(Call, #{inputRequests => Asked});
                             (Call, _) -> {200, [], result(Call, complete(#{content => []}))}
                          end),
    Client = visit(Config, #{inputs => #{roots => []}}, #{~"tools/call" => Rounds}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"t", #{x => 1}),
    Sent = [received(~"tools/call") || _ <- [1, 2, 3, 4]],
    Params = [maps:without([~"_meta"], P) || #{~"params" := P} <- Sent],
    Plain = #{~"name" => ~"t", ~"arguments" => #{~"x" => 1}},
    Answers = #{~"a" => #{~"roots" => []}},
    [Plain, Second, Third, Fourth] = Params,
    Second = Plain#{~"inputResponses" => Answers, ~"requestState" => ~"\s{odd}\n"},
    Third = Plain#{~"requestState" => ~"2"},
    Fourth = Plain#{~"inputResponses" => Answers},
    4 = length(lists:usort([Id || #{~"id" := Id} <- Sent])).

rounds_are_bounded(Config) ->
    {Rounds, Count} = counted(fun(Call, _) -> asks(Call, #{requestState => ~"more"}) end),
    Client = visit(Config, #{}, #{~"tools/call" => Rounds}),
    {error, {too_many_rounds, 20}} = erlmcp_client:call_tool(Client, ~"t", #{}),
    21 = Count().

%% "Servers MUST include at least one of `inputRequests` or `requestState`": without, asking again
%% would ask the same.
rounds_must_ask_something(Config) ->
    {Rounds, Count} = counted(fun(Call, _) -> asks(Call, #{}) end),
    Client = visit(Config, #{}, #{~"tools/call" => Rounds}),
    {error, {protocol, _}} = erlmcp_client:call_tool(Client, ~"t", #{}),
    1 = Count(),
    Wrong = visit(Config, #{}, #{~"tools/call" => fun(Call) ->
        asks(Call, #{inputRequests => [1]})
    end}),
    {error, {protocol, _}} = erlmcp_client:call_tool(Wrong, ~"t", #{}).

inputs_that_fail(Config) ->
    Form = #{method => ~"elicitation/create",
             params => #{message => ~"?", requestedSchema => #{
                 type => object, properties => #{n => #{type => integer}}, required => [n]}}},
    Sample = #{method => ~"sampling/createMessage", params => #{messages => [], maxTokens => 1}},
    Fails = fun(Inputs, Requests) ->
        {Rounds, Count} = counted(fun(Call, _) -> asks(Call, #{inputRequests => Requests}) end),
        Client = visit(Config, #{inputs => Inputs, input_timeout => 200},
                       #{~"tools/call" => Rounds}),
        {error, {input, Name, Why}} = erlmcp_client:call_tool(Client, ~"t", #{}),
        1 = Count(),
        {Name, Why}
    end,
    {~"a", crashed} = Fails(#{elicit => fun(_) -> error(on_purpose) end}, #{a => Form}),
    {~"a", crashed} = Fails(#{elicit => fun(_) -> nonsense end}, #{a => Form}),
    {~"a", <<"the answer does not fit", _/binary>>} =
        Fails(#{elicit => fun(_) -> {accept, #{n => ~"one"}} end}, #{a => Form}),
    {~"a", <<"elicitation/create", _/binary>>} = Fails(#{}, #{a => Form}),
    {~"a", <<"sampling/createMessage", _/binary>>} =
        Fails(#{elicit => fun(_) -> decline end}, #{a => Sample}),
    {~"a", ~"no model"} = Fails(#{sample => fun(_) -> {error, ~"no model"} end}, #{a => Sample}),
    {~"a", timeout} = Fails(#{elicit => fun(_) -> receive never -> cancel end end}, #{a => Form}),
    {~"a", <<"expected a request", _/binary>>} = Fails(#{}, #{a => 1}),
    {~"", {too_many, 16}} =
        Fails(#{roots => []}, #{integer_to_binary(N) => #{method => ~"roots/list"}
                                || N <- lists:seq(1, 17)}).

%% "A `resultType` of any value unrecognized by the client MUST be considered invalid."
unknown_result_type(Config) ->
    Client = visit(Config, #{}, #{~"tools/call" => fun(#{~"params" := Params} = Call) ->
        #{~"arguments" := #{~"type" := Type}} = Params,
        {200, [], result(Call, #{resultType => Type, content => []})}
    end}),
    [{error, {protocol, <<"result of tools/call: resultType", _/binary>>}} =
         erlmcp_client:call_tool(Client, ~"t", #{type => Type})
     || Type <- [~"other", ~"", 1, null]].

%% "clients MUST treat an absent `resultType` as `"complete"`".
result_type_may_be_absent(Config) ->
    Client = visit(Config, #{}, #{~"tools/call" => fun(Call) ->
        {200, [], result(Call, #{content => []})}
    end}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"t", #{}).

%% "If `ttlMs` is positive, the client SHOULD consider the result fresh for that many milliseconds";
%% "Clients MUST NOT serve a cached response for a request whose method or parameters differ".
fresh_result_is_kept(Config) ->
    {Read, Count} = counted(fun(Call, N) -> read(Call, N, 60_000) end),
    Client = visit(Config, #{}, #{~"resources/read" => Read}),
    1 = nth_read(Client, ~"a:1", #{}),
    1 = nth_read(Client, ~"a:1", #{}),
    2 = nth_read(Client, ~"a:2", #{}),
    3 = nth_read(Client, ~"a:1", #{fresh => true}),
    3 = nth_read(Client, ~"a:1", #{}),
    3 = Count(),
    #{cache := #{entries := 2, bytes := Bytes}} = erlmcp_client:info(Client),
    true = Bytes > 0.

%% "Once the TTL expires, the response is stale and the client SHOULD re-fetch"; "If `ttlMs` is
%% absent, clients SHOULD assume a default of `0`"; "negative, clients SHOULD ignore it".
stale_result_is_asked_for(Config) ->
    [begin
         {Read, _} = counted(fun(Call, N) -> read(Call, N, Ttl) end),
         Client = visit(Config, #{}, #{~"resources/read" => Read}),
         1 = nth_read(Client, ~"a:1", #{}),
         2 = nth_read(Client, ~"a:1", #{}),
         #{cache := #{entries := 0}} = erlmcp_client:info(Client)
     end || Ttl <- [0, -1, none, ~"soon"]],
    {Read, _} = counted(fun(Call, N) -> read(Call, N, 50) end),
    Client = visit(Config, #{}, #{~"resources/read" => Read}),
    1 = nth_read(Client, ~"a:1", #{}),
    %% It is time itself that is waited for.
    receive after 60 -> 2 = nth_read(Client, ~"a:1", #{}) end.

%% A notification of a change makes what is kept stale, and only that.
change_is_not_kept(Config) ->
    {Read, _} = counted(fun(Call, N) -> read(Call, N, 60_000) end),
    {Lists, Listed} = counted(fun(Call, N) -> page(Call, [tool(N)], none, 60_000) end),
    Client = visit(Config, #{}, #{
        ~"resources/read" => Read, ~"tools/list" => Lists,
        ~"tools/call" => fun(#{~"params" := #{~"arguments" := Notification}} = Call) ->
            {events, [event(Notification#{~"jsonrpc" => ~"2.0"}),
                      event(result(Call, complete(#{content => []})))]}
        end}),
    1 = nth_read(Client, ~"a:1", #{}),
    2 = nth_read(Client, ~"a:2", #{}),
    %% The same request, however it is asked for.
    {ok, #{~"n" := 1}} = erlmcp_client:request(Client, ~"resources/read", #{uri => ~"a:1"}),
    {ok, [_]} = erlmcp_client:list_tools(Client),
    ok = heard(Client, #{method => ~"notifications/resources/updated", params => #{uri => ~"a:1"}},
               2),
    3 = nth_read(Client, ~"a:1", #{}),
    2 = nth_read(Client, ~"a:2", #{}),
    {ok, [#{~"name" := ~"1"}]} = erlmcp_client:list_tools(Client),
    ok = heard(Client, #{method => ~"notifications/tools/list_changed"}, 2),
    {ok, [#{~"name" := ~"2"}]} = erlmcp_client:list_tools(Client),
    2 = Listed(),
    2 = nth_read(Client, ~"a:2", #{}).

%% Lets the server notify, until only so much is kept.
heard(Client, Notification, Entries) ->
    {ok, _} = erlmcp_client:call_tool(Client, ~"t", Notification),
    left(Client, Entries, 100).

left(Client, Entries, Tries) when Tries > 0 ->
    case erlmcp_client:info(Client) of
        #{cache := #{entries := Entries}} -> ok;
        #{} -> receive after 20 -> left(Client, Entries, Tries - 1) end
    end.

%% "Results produced by retrying a request through the multi round-trip requests mechanism MUST NOT
%% be cached, as they depend on inputs that are not part of the cache key."
result_of_rounds_is_not_kept(Config) ->
    {Read, Count} = counted(fun(#{~"params" := #{~"requestState" := _}} = Call, N) ->
                                    read(Call, N, 60_000);
                               (Call, _) ->
                                    asks(Call, #{requestState => ~"s", ttlMs => 60_000})
                            end),
    Client = visit(Config, #{}, #{~"resources/read" => Read}),
    2 = nth_read(Client, ~"a:1", #{}),
    4 = nth_read(Client, ~"a:1", #{}),
    4 = Count(),
    #{cache := #{entries := 0}} = erlmcp_client:info(Client).

cache_is_bounded(Config) ->
    {Read, _} = counted(fun(Call, N) -> read(Call, N, 60_000) end),
    Few = visit(Config, #{cache => #{entries => 2}}, #{~"resources/read" => Read}),
    [_ = nth_read(Few, uri(N), #{}) || N <- lists:seq(1, 10)],
    #{cache := #{entries := 2}} = erlmcp_client:info(Few),
    Small = visit(Config, #{cache => #{bytes => 4000}}, #{~"resources/read" => Read}),
    [begin
         _ = nth_read(Small, uri(N), #{}),
         #{cache := #{bytes := Bytes}} = erlmcp_client:info(Small),
         true = Bytes =< 4000
     end || N <- lists:seq(1, 50)],
    #{cache := #{entries := Entries}} = erlmcp_client:info(Small),
    true = Entries > 3,
    %% One result has at most a quarter.
    {Large, _} = counted(fun(Call, N) -> read(Call, N, 60_000, binary:copy(~"x", 1000)) end),
    Other = visit(Config, #{cache => #{bytes => 4000}}, #{~"resources/read" => Large}),
    1 = nth_read(Other, ~"a:1", #{}),
    2 = nth_read(Other, ~"a:1", #{}).

cache_may_be_off(Config) ->
    {Read, _} = counted(fun(Call, N) -> read(Call, N, 60_000) end),
    Client = visit(Config, #{cache => false}, #{~"resources/read" => Read}),
    1 = nth_read(Client, ~"a:1", #{}),
    2 = nth_read(Client, ~"a:1", #{}).

%% An option that is not there is told, and not left out: who asked for TLS would go without.
options_are_checked(_) ->
    Trap = process_flag(trap_exit, true),
    [{error, {bad_option, Key, _}} = erlmcp_client:start_link(Target)
     || {Key, Target} <- [{tls, {tcp, ~"127.0.0.1", 1, #{tls => []}}},
                          {args, {stdio, ~"true", #{args => ~"a"}}},
                          {env, {stdio, ~"true", #{env => #{a => 1}}}},
                          {stop_ms, {stdio, ~"true", #{stop_ms => 0}}},
                          {headers, {stdio, ~"true", #{headers => []}}},
                          {token, {server, none, #{token => ~"t"}}},
                          {args, {http, ~"http://127.0.0.1:1/", #{args => []}}}]],
    process_flag(trap_exit, Trap).

%% Servers.

era(Config) -> proplists:get_value(era, Config).

%% A server of the group's era, which answers methods as the funs say, and `resumed` streams.
visit(Config, Options, Methods) ->
    Test = self(),
    #{url := Url} = erlmcp_test_peer:http(fun(#{message := Message, headers := Headers}) ->
        Test ! {headers, Message, Headers},
        answer(Message, Headers, Methods, Test)
    end),
    {ok, Client} = erlmcp_client:start_link({http, Url, Options#{era => era(Config)}}),
    %% What is short in a case is the call's time alone.
    {ok, _} = erlmcp_client:server(Client),
    Client.

answer(none, #{~"last-event-id" := _}, #{resumed := Resumed}, Test) ->
    Test ! {resumed, self()},
    Resumed();
answer(none, _, _, _) ->
    {405, [], none};
answer(#{~"method" := ~"initialize"} = Message, _, _, _) ->
    {200, [], result(Message, #{protocolVersion => ~"2025-11-25", capabilities => offered(),
                                serverInfo => #{name => ~"peer", version => ~"1"}})};
answer(#{~"method" := ~"server/discover"} = Message, _, _, _) ->
    {200, [], result(Message, #{resultType => complete, supportedVersions => [~"2026-07-28"],
                                capabilities => offered(), ttlMs => 0, cacheScope => public})};
answer(#{~"method" := Method} = Message, _, Methods, Test) ->
    case Methods of
        #{Method := Answer} -> watched(Answer(Message), Test);
        #{} -> {202, [], none}
    end.

offered() ->
    #{tools => #{}, resources => #{}}.

%% The test hears of a stream that its client closed.
watched({events, [follow]} = Answer, Test) ->
    Connection = self(),
    _ = spawn(fun() ->
        Monitor = monitor(process, Connection),
        receive {'DOWN', Monitor, process, _, _} -> Test ! closed end
    end),
    Answer;
watched(Answer, _) ->
    Answer.

%% An answer that knows the how manieth it is, and how many there were.
counted(Answer) ->
    Counter = counters:new(1, []),
    {fun(Call) ->
         ok = counters:add(Counter, 1, 1),
         Answer(Call, counters:get(Counter, 1))
     end,
     fun() -> counters:get(Counter, 1) end}.

slow(Steps, Pause) ->
    fun(#{~"id" := Id, ~"params" := #{~"_meta" := #{~"progressToken" := Id}}} = Call) ->
        {events, lists:append([[{wait, Pause}, progress(Id, N)] || N <- lists:seq(1, Steps)])
                 ++ [event(result(Call, complete(#{content => []})))]}
    end.

progress(Token, N) ->
    event(#{jsonrpc => ~"2.0", method => ~"notifications/progress",
            params => #{progressToken => Token, progress => N}}).

page(Call, Tools, Cursor) ->
    page(Call, Tools, Cursor, 0).

page(Call, Tools, none, Ttl) ->
    {200, [], result(Call, complete(#{tools => Tools, ttlMs => Ttl, cacheScope => private}))};
page(Call, Tools, Cursor, Ttl) ->
    {200, [], result(Call, complete(#{tools => Tools, nextCursor => Cursor, ttlMs => Ttl,
                                      cacheScope => private}))}.

tool(N) ->
    #{name => integer_to_binary(N), inputSchema => #{type => object}}.

mirrored(Header) ->
    #{name => ~"mirrored",
      inputSchema => #{type => object,
                       properties => #{region => #{type => string, 'x-mcp-header' => Header}}}}.

asks(Call, Asked) ->
    {200, [], result(Call, Asked#{resultType => input_required})}.

read(Call, N, Ttl) ->
    read(Call, N, Ttl, ~"").

read(#{~"params" := #{~"uri" := Uri}} = Call, N, Ttl, Text) ->
    Hint = maps:from_list([{ttlMs, Ttl} || Ttl =/= none]),
    {200, [], result(Call, complete(Hint#{contents => [#{uri => Uri, text => Text}], n => N,
                                          cacheScope => private}))}.

nth_read(Client, Uri, Options) ->
    {ok, #{~"n" := N}} = erlmcp_client:read_resource(Client, Uri, Options),
    N.

uri(N) ->
    <<"a:", (integer_to_binary(N))/binary>>.

complete(Result) ->
    Result#{resultType => complete}.

headers(Method) ->
    receive
        {headers, #{~"method" := Method}, Headers} -> Headers
    after ?WAIT ->
        error({did_not_come, Method})
    end.

now_ms() ->
    erlang:monotonic_time(millisecond).

%% A handler of the logger.
log(#{level := Level, msg := {Format, Arguments}}, #{config := #{test := Test}}) when
    is_list(Arguments)
->
    Test ! {logged, Level, unicode:characters_to_binary(io_lib:format(Format, Arguments))};
log(_, _) ->
    ok.
