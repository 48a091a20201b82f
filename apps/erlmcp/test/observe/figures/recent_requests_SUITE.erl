-module(recent_requests_SUITE).
-moduledoc """
The last requests of servers: kept while somebody looks, at most so many a second, those that fail
besides those that went well, each once. What they carried is kept only where that is asked for,
within bounds and without secrets.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([nothing_is_kept_while_nobody_looks/1, each_end_of_a_request_is_kept_once/1,
         calls_that_were_ended_have_a_principal/1, some_a_second_are_kept/1,
         servers_are_apart/1, the_ring_is_bounded/1, rows_keep_no_message/1,
         payloads_are_not_kept/1, payloads_are_kept_for_their_page/1,
         payloads_of_each_kind_are_kept/1, payloads_are_bounded/1, payloads_go_with_the_page/1]).

suite() ->
    [{timetrap, {minutes, 1}}].

all() ->
    [nothing_is_kept_while_nobody_looks, each_end_of_a_request_is_kept_once,
     calls_that_were_ended_have_a_principal, some_a_second_are_kept, servers_are_apart,
     the_ring_is_bounded, rows_keep_no_message, payloads_are_not_kept,
     payloads_are_kept_for_their_page, payloads_of_each_kind_are_kept, payloads_are_bounded,
     payloads_go_with_the_page].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

nothing_is_kept_while_nobody_looks(_) ->
    {Server, Client} = server(),
    ok = erlmcp_recent_requests:allow(0, #{}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    [] = recent(Server),
    ok = erlmcp:stop_server(Server).

each_end_of_a_request_is_kept_once(_) ->
    {Server, Client} = server(),
    ok = erlmcp_recent_requests:allow(1_000, #{}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    {error, _} = erlmcp_client:call_tool(Client, ~"none", #{}),
    {error, _} = erlmcp_client:call_tool(Client, ~"crashes", #{}),
    Rows = [Row || #{method := ~"tools/call"} = Row <- recent(Server)],
    %% A request for what is not there has no call, and so no target.
    [{~"crashes", 1079}, {undefined, 1048}, {~"echo", none}] =
        [{Target, Error} || #{target := Target, error := Error} <- Rows],
    [#{principal := anonymous, trace := none} = Row || Row <- Rows],
    [true = Took >= 0 andalso Took < 10_000_000 andalso Out > 0
     || #{took_us := Took, bytes_out := Out} <- Rows],
    true = lists:all(fun(#{at := At}) -> abs(erlang:system_time(millisecond) - At) < 10_000 end,
                     Rows),
    ok = erlmcp:stop_server(Server).

%% Another process than the call's ends such a request, and such a run of a task.
calls_that_were_ended_have_a_principal(_) ->
    Late = #{name => ~"late", task => optional, timeout_ms => 1, task_timeout_ms => 1,
             handler => fun(_, _) -> receive never -> ~"" end end},
    Killed = #{name => ~"killed", task => optional,
               handler => fun(_, _) -> exit(self(), kill) end},
    {ok, Server} = erlmcp:start_server(#{name => ~"test", version => ~"1.0.0",
                                         tools => [Late, Killed]}),
    ok = erlmcp_recent_requests:allow(1_000, #{}),
    [begin
         {ok, Client} = erlmcp_client:start_link({server, Server, Options#{principal => ada}}),
         [{error, _} = erlmcp_client:call_tool(Client, Name, #{}) || Name <- [~"late", ~"killed"]],
         [{~"killed", ada, 1089}, {~"late", ada, 1069}] =
             lists:sublist([{Target, Principal, Error}
                            || #{method := ~"tools/call", target := Target, error := Error,
                                 principal := Principal} <- recent(Server), is_integer(Error)], 2)
     end || Options <- [#{}, #{tasks => true}]],
    4 = length([Error || #{method := ~"tools/call", error := Error} <- recent(Server),
                         is_integer(Error)]),
    ok = erlmcp:stop_server(Server).

%% Those that fail are seen among many that do not.
some_a_second_are_kept(_) ->
    {Server, Client} = server(),
    ok = erlmcp_recent_requests:allow(3, #{}),
    [{ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}) || _ <- lists:seq(1, 10)],
    [{error, _} = erlmcp_client:call_tool(Client, ~"none", #{}) || _ <- lists:seq(1, 10)],
    Errors = [Error || #{error := Error} <- recent(Server)],
    {3, 3} = {length([none || none <- Errors]), length([refused || 1048 <- Errors])},
    ok = erlmcp_recent_requests:allow(1, #{}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    7 = length(recent(Server)),
    ok = erlmcp:stop_server(Server).

servers_are_apart(_) ->
    {One, Client} = server(),
    {Other, _} = server(),
    ok = erlmcp_recent_requests:allow(1_000, #{}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    [] = recent(Other),
    [#{target := ~"echo"}] = recent(One),
    ok = erlmcp:stop_server(One),
    ok = erlmcp:stop_server(Other).

the_ring_is_bounded(_) ->
    {Server, Client} = server(),
    ok = erlmcp_recent_requests:allow(10_000, #{}),
    [{ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}) || _ <- lists:seq(1, 1_100)],
    100 = length(recent(Server)),
    %% A thousand rows, and the number of the next one.
    true = ets:info(erlmcp_recent_requests, size) =< 1_001,
    ok = erlmcp:stop_server(Server).

%% A name is a part of the message of its request, and may be as large as that.
rows_keep_no_message(_) ->
    Read = #{uri_template => ~"a:{rest}", name => ~"any", handler => fun(_, _) -> ~"done" end},
    #{pid := Pid} = Server = erlmcp_test_http:start(#{resource_templates => [Read]}),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    ok = erlmcp_recent_requests:allow(1_000, #{}),
    Padding = binary:copy(~"x", 200_000),
    Large = binary:copy(<<"é"/utf8>>, 100_000),
    Long = binary:copy(~"x", 5_000),
    [#{} = erlmcp_test_http:call(Server, Method, Params#{padding => Padding},
                                 #{session => Session})
     || {Method, Params} <- [{binary:copy(~"m", 100), #{}}, {Large, #{}},
                             {~"resources/read", #{uri => binary:copy(~"a:", 100)}},
                             {~"resources/read", #{uri => <<"a:", Long/binary>>}}]],
    Rows = recent(Pid),
    [256, 200] = [byte_size(Target) || #{target := Target} <- Rows, is_binary(Target)],
    Texts = [Text || #{method := Method, target := Target} <- Rows, Text <- [Method, Target],
                     is_binary(Text)],
    true = lists:member(binary:copy(<<"é"/utf8>>, 128), Texts),
    [] = [byte_size(Text) || Text <- Texts, binary:referenced_byte_size(Text) > 1_000],
    ok = erlmcp_test_http:stop(Server).

payloads_are_not_kept(_) ->
    {Server, Client} = server(),
    ok = erlmcp_recent_requests:allow(1_000, #{}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{password => ~"hunter2-planted"},
                                      #{meta => #{~"token" => ~"hunter2-planted"}}),
    [#{payload := false} | _] = recent(Server),
    nomatch = binary:match(all_that_is_kept(), ~"hunter2"),
    ok = erlmcp:stop_server(Server).

all_that_is_kept() ->
    iolist_to_binary(io_lib:format("~0tp", [[ets:tab2list(Table)
                                             || Table <- [erlmcp_recent_requests,
                                                          erlmcp_recent_payloads]]])).

payloads_are_kept_for_their_page(_) ->
    {Server, Client} = server(),
    {Other, OtherClient} = server(),
    Key = key(Server),
    ok = erlmcp_recent_requests:allow(1_000, #{Key => [~"ssn", ~"/in/card"]}),
    Arguments = #{password => ~"hunter2", ssn => ~"hunter2", in => #{card => ~"hunter2"},
                  say => ~"Bearer hunter2 it is"},
    {ok, _} = erlmcp_client:call_tool(Client, ~"say", Arguments, #{meta => #{token => ~"hunter2"}}),
    {ok, _} = erlmcp_client:call_tool(OtherClient, ~"say", Arguments),
    [#{payload := false}] = recent(Other),
    [#{id := Id, payload := true}] = recent(Server),
    {ok, #{arguments := Given, result := Result}} =
        erlmcp_recent_requests:payload(Id, Key, [~"ssn"]),
    #{~"password" := ~"[redacted]", ~"ssn" := ~"[redacted]", ~"in" := #{~"card" := ~"[redacted]"},
      ~"say" := ~"Bearer [redacted] it is"} = json:decode(Given),
    #{~"content" := [#{~"text" := ~"Bearer [redacted] it is"}]} = Shown = json:decode(Result),
    false = is_map_key(~"_meta", Shown),
    nomatch = binary:match(all_that_is_kept(), ~"hunter2"),
    %% Not for a page with a rule that was not known, nor for another server.
    gone = erlmcp_recent_requests:payload(Id, Key, [~"ssn", ~"other"]),
    gone = erlmcp_recent_requests:payload(Id, key(Other), []),
    gone = erlmcp_recent_requests:payload(Id + 1_000, Key, []),
    [ok = erlmcp:stop_server(Each) || Each <- [Server, Other]].

%% Of a call, of a request without one, of an error, of a failure of the handler, and of a task.
payloads_of_each_kind_are_kept(_) ->
    {Server, Client} = server(),
    Key = key(Server),
    ok = erlmcp_recent_requests:allow(1_000, #{Key => []}),
    Last = fun() ->
        [#{id := Id} | _] = recent(Server),
        {ok, Payload} = erlmcp_recent_requests:payload(Id, Key, []),
        #{What => json:decode(Json) || What := Json <- Payload}
    end,
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{a => 1}),
    #{arguments := #{~"a" := 1}, result := #{~"content" := [#{~"text" := ~"done"}]}} = Last(),
    %% A list that no client has kept.
    {ok, Other} = erlmcp_client:start_link({server, Server, #{}}),
    {ok, _} = erlmcp_client:list_tools(Other),
    #{result := #{~"tools" := [_ | _]}} = Last(),
    {error, _} = erlmcp_client:call_tool(Client, ~"none", #{a => 1}),
    #{result := #{~"code" := -32602}} = Last(),
    {error, _} = erlmcp_client:call_tool(Client, ~"crashes", #{a => 2}),
    #{arguments := #{~"a" := 2}, result := #{~"code" := -32603}} = Last(),
    ok = erlmcp:stop_server(Server).

payloads_are_bounded(_) ->
    {Server, Client} = server(),
    Key = key(Server),
    ok = erlmcp_recent_requests:allow(10_000, #{Key => []}),
    Of = fun(Bytes) ->
        {ok, _} = erlmcp_client:call_tool(Client, ~"repeat", #{n => Bytes}),
        [#{id := Id, bytes_out := Out} | _] = recent(Server),
        {ok, #{result := Result}} = erlmcp_recent_requests:payload(Id, Key, []),
        {Out, Result}
    end,
    {Least, _} = Of(1_000),
    Room = 16_384 - Least + 1_000,
    {16_384, <<_/binary>>} = Of(Room),
    {16_385, {omitted, 16_385}} = Of(Room + 1),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{a => binary:copy(~"x", 16_384)}),
    [#{id := Large, bytes_in := In} | _] = recent(Server),
    {ok, #{arguments := {omitted, In}}} = erlmcp_recent_requests:payload(Large, Key, []),
    [{ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}) || _ <- lists:seq(1, 210)],
    %% Two hundred, and what is allowed.
    201 = ets:info(erlmcp_recent_payloads, size),
    gone = erlmcp_recent_requests:payload(Large, Key, []),
    ok = erlmcp:stop_server(Server).

payloads_go_with_the_page(_) ->
    {Server, Client} = server(),
    Key = key(Server),
    ok = erlmcp_recent_requests:allow(1_000, #{Key => []}),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{a => ~"planted"}),
    {_, _} = binary:match(all_that_is_kept(), ~"planted"),
    ok = erlmcp_recent_requests:allow(1_000, #{}),
    nomatch = binary:match(all_that_is_kept(), ~"planted"),
    [#{id := Id, payload := true} | _] = recent(Server),
    gone = erlmcp_recent_requests:payload(Id, Key, []),
    ok = erlmcp:stop_server(Server).

server() ->
    {ok, Server} = erlmcp:start_server(#{
        name => ~"test", version => ~"1.0.0",
        tools => [#{name => ~"echo", handler => fun(_, _) -> ~"done" end},
                  #{name => ~"say", handler => fun(#{~"say" := Text}, _) -> Text end},
                  #{name => ~"repeat",
                    handler => fun(#{~"n" := Count}, _) -> binary:copy(~"x", Count) end},
                  #{name => ~"crashes", handler => fun(_, _) -> error(on_purpose) end}]}),
    %% The case before may have allowed payloads, with which all requests are kept.
    ok = erlmcp_recent_requests:allow(0, #{}),
    {ok, Client} = erlmcp_client:start_link({server, Server, #{}}),
    {ok, _} = erlmcp_client:list_tools(Client),
    {Server, Client}.

%% A row is there when its client has its answer, since it is added before.
recent(Server) ->
    erlmcp_recent_requests:list(key(Server)).

key(Server) ->
    {ok, _, #{key := Key}} = erlmcp_registry:whereis(Server),
    Key.
