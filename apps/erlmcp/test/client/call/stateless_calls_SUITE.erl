-module(stateless_calls_SUITE).
-moduledoc """
What a client does on a call of 2026-07-28 beside what it does in both eras (`client_calls_SUITE`):
headers that follow a tool's definition, rounds of input, types of results, what is kept. The
servers are scripts on sockets.

Sources: specification 2026-07-28, "Multi Round-Trip Requests", "Caching", "Streamable HTTP".
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([header_mismatch_renews_the_tool_once/1, header_mismatch_may_come_after_a_round/1,
         headers_follow_the_definition/1, invalid_tool_is_left_out/1, few_tools_are_logged/1,
         names_are_logged_in_short/1, state_goes_back_as_it_came/1, rounds_are_bounded/1,
         rounds_must_ask_something/1, inputs_that_fail/1, unknown_result_type/1,
         result_type_may_be_absent/1, fresh_result_is_kept/1, each_meta_has_its_result/1,
         stale_result_is_asked_for/1, change_is_not_kept/1,
         missed_changes_are_not_kept/1, result_of_rounds_is_not_kept/1,
         cache_is_bounded/1, cache_may_be_off/1, options_are_checked/1,
         log_level_of_a_call_is_its_own/1,
         time_of_the_user_is_not_the_servers/1]).
-export([log/2]).

-import(erlmcp_test_client_calls, [visit/3, complete/1, page/3, page/4, counted/1, tool/1,
                                   mirrored/1]).
-import(erlmcp_test_peer, [event/1, received/1, result/2]).

-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [header_mismatch_renews_the_tool_once, header_mismatch_may_come_after_a_round,
     headers_follow_the_definition, invalid_tool_is_left_out, few_tools_are_logged,
     names_are_logged_in_short, state_goes_back_as_it_came, rounds_are_bounded,
     rounds_must_ask_something, inputs_that_fail,
     unknown_result_type, result_type_may_be_absent, fresh_result_is_kept, each_meta_has_its_result,
     stale_result_is_asked_for, change_is_not_kept, missed_changes_are_not_kept,
     result_of_rounds_is_not_kept, cache_is_bounded, cache_may_be_off, options_are_checked,
     log_level_of_a_call_is_its_own, time_of_the_user_is_not_the_servers].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], [{era, stateless} | Config]).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

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

header_mismatch_may_come_after_a_round(Config) ->
    {Calls, _} = counted(fun(Call, 1) -> asks(Call, #{requestState => ~"s"});
                            (Call, 2) -> {400, [], erlmcp_test_peer:error(Call, -32020, #{})};
                            (Call, _) -> {200, [], result(Call, complete(#{content => []}))}
                         end),
    Client = visit(Config, #{}, #{
        ~"tools/list" => fun(Call) -> page(Call, [mirrored(~"region")], none) end,
        ~"tools/call" => Calls}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"mirrored", #{region => ~"eu"}),
    [none, none, ~"eu"] = [maps:get(~"mcp-param-region", headers(~"tools/call"), none)
                           || _ <- [first, with_the_state, with_the_header]].

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

%% However many they are, and however many pages they have, the log is not filled. Each list is
%% logged anew.
few_tools_are_logged(Config) ->
    Wrong = fun(Count) -> lists:duplicate(Count, mirrored(~"two words")) end,
    {Lists, _} = counted(fun(Call, N) when N < 5; N =:= 6 ->
                                page(Call, Wrong(4), integer_to_binary(N));
                            (Call, 5) -> page(Call, Wrong(1_000), none);
                            (Call, 7) -> page(Call, Wrong(1_006), none)
                         end),
    Client = visit(Config, #{}, #{~"tools/list" => Lists}),
    [begin
         ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
         {ok, []} = erlmcp_client:list_tools(Client),
         ok = logger:remove_handler(?MODULE),
         Texts = [Text || Text <- logged(), binary:match(Text, ~"left out") =/= nomatch],
         11 = length(Texts),
         More = lists:last(Texts)
     end || More <- [~"at least 2 more MCP tools are left out of their list",
                     ~"at least 1000 more MCP tools are left out of their list"]].

%% A name may be one character of a megabyte, or look like another line of the log.
names_are_logged_in_short(Config) ->
    Names = [<<"a", (binary:copy(<<16#301/utf8>>, 500_000))/binary>>, ~"a\n=ERROR REPORT= b"],
    Client = visit(Config, #{}, #{~"tools/list" => fun(Call) ->
        page(Call, [(mirrored(~"two words"))#{name := Name} || Name <- Names], none)
    end}),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => #{test => self()}}),
    {ok, []} = erlmcp_client:list_tools(Client),
    ok = logger:remove_handler(?MODULE),
    [_, _] = Texts = [Text || Text <- logged(), binary:match(Text, ~"left out") =/= nomatch],
    [{true, nomatch} = {byte_size(Text) < 1_000, binary:match(Text, ~"\n")} || Text <- Texts].

logged() ->
    receive {logged, warning, Text} -> [Text | logged()] after 0 -> [] end.

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
    {error, {protocol, ~"result of tools/call: inputRequests: expected an object"}} =
        erlmcp_client:call_tool(Wrong, ~"t", #{}).

inputs_that_fail(Config) ->
    Form = #{method => ~"elicitation/create",
             params => #{message => ~"?", requestedSchema => #{
                 type => object, properties => #{n => #{type => integer}}, required => [n]}}},
    Sample = #{method => ~"sampling/createMessage", params => #{messages => [], maxTokens => 1}},
    FailsWithin = fun(Timeout, Inputs, Requests) ->
        {Rounds, Count} = counted(fun(Call, _) -> asks(Call, #{inputRequests => Requests}) end),
        Client = visit(Config, #{inputs => Inputs, input_timeout => Timeout},
                       #{~"tools/call" => Rounds}),
        {error, {input, Name, Why}} = erlmcp_client:call_tool(Client, ~"t", #{}),
        1 = Count(),
        {Name, Why}
    end,
    Fails = fun(Inputs, Requests) -> FailsWithin(?WAIT, Inputs, Requests) end,
    {~"a", crashed} = Fails(#{elicit => fun(_) -> error(on_purpose) end}, #{a => Form}),
    {~"a", crashed} = Fails(#{elicit => fun(_) -> nonsense end}, #{a => Form}),
    {~"a", <<"the answer does not fit", _/binary>>} =
        Fails(#{elicit => fun(_) -> {accept, #{n => ~"one"}} end}, #{a => Form}),
    {~"a", <<"elicitation/create", _/binary>>} = Fails(#{}, #{a => Form}),
    {~"a", <<"sampling/createMessage", _/binary>>} =
        Fails(#{elicit => fun(_) -> decline end}, #{a => Sample}),
    {~"a", ~"no model"} = Fails(#{sample => fun(_) -> {error, ~"no model"} end}, #{a => Sample}),
    {~"a", crashed} = Fails(#{sample => fun(_) -> {ok, #{a => self()}} end}, #{a => Sample}),
    {~"a", timeout} =
        FailsWithin(200, #{elicit => fun(_) -> receive never -> cancel end end}, #{a => Form}),
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

%% As above: `_meta` is one of the parameters.
each_meta_has_its_result(Config) ->
    {Read, Count} = counted(fun(Call, N) -> read(Call, N, 60_000) end),
    Client = visit(Config, #{}, #{~"resources/read" => Read}),
    1 = nth_read(Client, ~"a:1", #{}),
    2 = nth_read(Client, ~"a:1", #{meta => #{user => ~"ada"}}),
    3 = nth_read(Client, ~"a:1", #{meta => #{user => ~"bob"}}),
    1 = nth_read(Client, ~"a:1", #{meta => #{}}),
    [2 = nth_read(Client, ~"a:1", #{meta => #{User => ~"ada"}}) || User <- [user, ~"user"]],
    {ok, #{~"n" := 3}} = erlmcp_client:request(Client, ~"resources/read",
                                               #{uri => ~"a:1", '_meta' => #{~"user" => ~"bob"}}),
    %% The trace of a call changes no result.
    [1 = nth_read(Client, ~"a:1", #{meta => #{traceparent => Trace}})
     || Trace <- [~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                  ~"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-01"]],
    3 = Count().

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

%% "If it comes again, changes may have been missed: read again what you keep." What is read again
%% is newer than the interruption.
missed_changes_are_not_kept(Config) ->
    Test = self(),
    {Read, _} = counted(fun(Call, N) -> read(Call, N, 60_000) end),
    {Lists, _} = counted(fun(Call, N) -> page(Call, [tool(N)], none, 60_000) end),
    Client = visit(Config, #{}, #{
        ~"resources/read" => Read, ~"tools/list" => Lists,
        ~"subscriptions/listen" => fun(#{~"id" := Id}) ->
            Test ! {listens, self()},
            Meta = #{~"io.modelcontextprotocol/subscriptionId" => Id},
            {events, [event(#{jsonrpc => ~"2.0", params => #{'_meta' => Meta},
                              method => ~"notifications/subscriptions/acknowledged"}), follow]}
        end}),
    {ok, Reference} = erlmcp_client:subscribe(Client, #{tools_changed => true,
                                                        resources => [~"a:1"]}),
    Subscribed = fun() ->
        receive {erlmcp, Reference, subscribed} -> ok after ?WAIT -> error(not_subscribed) end
    end,
    ok = Subscribed(),
    Listed = fun() ->
        {ok, [#{~"name" := Name}]} = erlmcp_client:list_tools(Client),
        Name
    end,
    Kept = fun() -> {nth_read(Client, ~"a:1", #{}), nth_read(Client, ~"a:2", #{}), Listed()} end,
    [{1, 2, ~"1"} = Kept() || _ <- [sent, kept]],
    receive {listens, Stream} -> Stream ! {say, close} end,
    ok = Subscribed(),
    {3, 2, ~"2"} = Kept().

%% Lets the server notify, until only so much is kept.
heard(Client, Notification, Entries) ->
    {ok, _} = erlmcp_client:call_tool(Client, ~"t", Notification),
    left(Client, Entries, ?WAIT div 20).

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

%% That of the client is for calls without one.
log_level_of_a_call_is_its_own(Config) ->
    Level = fun(Options, OfCall) ->
        Client = visit(Config, Options, #{~"tools/call" => fun(Call) ->
            {200, [], result(Call, complete(#{content => []}))}
        end}),
        {ok, _} = erlmcp_client:call_tool(Client, ~"t", #{}, OfCall),
        #{~"params" := #{~"_meta" := Meta}} = received(~"tools/call"),
        maps:get(~"io.modelcontextprotocol/logLevel", Meta, none)
    end,
    none = Level(#{}, #{}),
    ~"warning" = Level(#{log_level => warning}, #{}),
    ~"debug" = Level(#{log_level => warning}, #{log_level => debug}),
    ~"error" = Level(#{}, #{log_level => error}).

%% A round may take longer than the call: what the server has left of its time it has afterwards.
time_of_the_user_is_not_the_servers(Config) ->
    Think = fun(_) -> receive after 2_500 -> {accept, #{}} end end,
    Form = #{method => ~"elicitation/create",
             params => #{message => ~"?", requestedSchema => #{type => object, properties => #{}}}},
    {Rounds, _} = counted(fun(Call, 1) -> asks(Call, #{inputRequests => #{a => Form}});
                             (_, 2) -> {events, [follow]}
                          end),
    Client = visit(Config, #{inputs => #{elicit => Think}}, #{~"tools/call" => Rounds}),
    Began = erlang:monotonic_time(millisecond),
    {error, {timeout, 2_000}} =
        erlmcp_client:call_tool(Client, ~"t", #{}, #{timeout => 2_000, max_timeout => 2_000}),
    Took = erlang:monotonic_time(millisecond) - Began,
    [_ = received(~"tools/call") || _ <- [1, 2]],
    true = Took >= 4_400 andalso Took < 10_000.

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

headers(Method) ->
    receive
        {headers, #{~"method" := Method}, Headers} -> Headers
    after ?WAIT ->
        error({did_not_come, Method})
    end.

%% A handler of the logger.
log(#{level := Level, msg := {Format, Arguments}}, #{config := #{test := Test}}) when
    is_list(Arguments)
->
    Test ! {logged, Level, unicode:characters_to_binary(io_lib:format(Format, Arguments))};
log(_, _) ->
    ok.
