-module(meter_SUITE).
-moduledoc """
The figures of a server, `erlmcp:metrics/1`: each request is counted once, whichever transport it
comes by, whichever process answers it and however it ends; and the bounds of the meter.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1]).
-export([each_request_is_counted_once/1, batches_are_counted_by_their_requests/1,
         task_is_one_request_and_one_run/1, cancelled_calls_are_counted/1,
         answers_behind_deadlines_are_counted_once/1,
         requests_refused_early_are_counted/1, subscriptions_are_counted/1,
         queued_requests_count_with_their_wait/1, codes_of_answers_are_counted/1,
         refused_connections_are_counted/1]).
-export([bytes_are_those_of_messages/1, quantiles_are_right/1, coarse_buckets_are_opentelemetrys/1,
         a_slow_tool_shows/1]).
-export([rows_are_bounded/1, definition_that_comes_again_keeps_its_row/1,
         mounted_tools_have_rows_of_their_own/1, info_has_figures_of_tools/1,
         sessions_and_streams_are_counted/1, the_killed_leave_no_stream_and_no_session/1,
         replaced_definitions_give_their_rows/1,
         refused_definitions_take_no_rows/1, old_failures_make_room/1,
         failures_without_slots_are_kept/1, clients_take_no_places_from_tools/1,
         moved_failures_stay_those_of_their_method/1, counts_that_move_are_read_again/1,
         most_keys_find_a_slot/1]).

%% Of each kind of request.
-define(COUNT, 3).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, once}, {group, figures}, {group, rows}].

groups() ->
    [{once, [parallel],
      [each_request_is_counted_once, batches_are_counted_by_their_requests,
       task_is_one_request_and_one_run, cancelled_calls_are_counted,
       answers_behind_deadlines_are_counted_once,
       requests_refused_early_are_counted, subscriptions_are_counted,
       queued_requests_count_with_their_wait, codes_of_answers_are_counted,
       refused_connections_are_counted]},
     {figures, [parallel],
      [bytes_are_those_of_messages, quantiles_are_right, coarse_buckets_are_opentelemetrys,
       a_slow_tool_shows, info_has_figures_of_tools, sessions_and_streams_are_counted,
       the_killed_leave_no_stream_and_no_session]},
     {rows, [parallel],
      [rows_are_bounded, definition_that_comes_again_keeps_its_row,
       mounted_tools_have_rows_of_their_own, replaced_definitions_give_their_rows,
       refused_definitions_take_no_rows,
       old_failures_make_room, failures_without_slots_are_kept,
       clients_take_no_places_from_tools, moved_failures_stay_those_of_their_method,
       counts_that_move_are_read_again, most_keys_find_a_slot]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% Each way to a server, with the eras of its clients.
ways() ->
    [{Way, Era} || Way <- [http, http2, tcp, memory], Era <- [stateless, session]]
        ++ [{sse, session}].

each_request_is_counted_once(_) ->
    [counted_once(Way, Era) || {Way, Era} <- ways()].

counted_once(Way, Era) ->
    Server = erlmcp_test_http:start((definitions())#{
        listen => [{http, #{sse => #{}}}, {tcp, #{port => 0}}]}),
    Client = client(Way, Era, Server),
    %% What the client asks for by itself comes first.
    {ok, _} = erlmcp_client:list_tools(Client),
    Before = metrics(Server),
    Kinds = [{~"tools/call", tool, ~"echo", ok}, {~"tools/call", tool, ~"quick", ok},
             {~"tools/call", tool, ~"fails", tool_error},
             {~"tools/call", tool, ~"quick_fails", tool_error},
             {~"tools/call", tool, ~"crashes", internal_error},
             {~"tools/call", tool, ~"quick_crashes", internal_error},
             {~"tools/call", tool, ~"exits", internal_error},
             {~"tools/call", none, ~"unknown", tool_not_found},
             {~"prompts/get", prompt, ~"greet", ok},
             {~"resources/read", resource, ~"a://plain", ok},
             {~"resources/read", resource, ~"t://{x}", ok},
             {~"resources/read", none, ~"no://where", resource_not_found},
             {~"completion/complete", none, ~"greet", ok}, {~"tools/list", none, none, ok}]
        ++ [{~"ping", none, none, ok} || Era =:= session],
    _ = [ask(Method, Name, Client) || _ <- lists:seq(1, ?COUNT), {Method, _, Name, _} <- Kinds],
    After = metrics(Server),
    lists:foreach(fun(Method) ->
        Expected = ?COUNT * length([M || {M, _, _, _} <- Kinds, M =:= Method]),
        {Way, Era, Method, Expected} = {Way, Era, Method, grown([methods, Method], Before, After)}
    end, lists:usort([Method || {Method, _, _, _} <- Kinds])),
    Expected = ?COUNT * length(Kinds),
    {Way, Era, Expected} = {Way, Era, maps:get(requests, After) - maps:get(requests, Before)},
    [{Way, Era, Name, Outcome, ?COUNT}
         = {Way, Era, Name, Outcome, outcome(Outcome, definition(Family, Name, After))}
     || {_, Family, Name, Outcome} <- Kinds, Family =/= none],
    %% internal_error is 1079, tool_not_found 1048, resource_not_found 1046.
    #{1079 := Crashes, 1048 := ?COUNT, 1046 := ?COUNT} = maps:get(refusals, After),
    {Way, Era, 3 * ?COUNT} = {Way, Era, Crashes},
    3 * ?COUNT = maps:get(faults, After),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

definitions() ->
    Handlers = [{~"echo", fun(_, _) -> ~"hello" end}, {~"fails", fun(_, _) -> {error, ~"no"} end},
                {~"crashes", fun(_, _) -> error(planted) end},
                {~"exits", fun(_, _) -> exit(shutdown) end}],
    Quick = [{<<"quick", (case Name of ~"echo" -> ~""; _ -> <<"_", Name/binary>> end)/binary>>,
              Handler} || {Name, Handler} <- Handlers, Name =/= ~"exits"],
    #{tools => [#{name => Name, handler => Handler} || {Name, Handler} <- Handlers]
          ++ [#{name => Name, handler => Handler, quick => true} || {Name, Handler} <- Quick],
      prompts => [#{name => ~"greet", arguments => [#{name => ~"who"}],
                    complete => #{~"who" => [~"me", ~"you"]}, handler => fun(_, _) -> ~"hi" end}],
      resources => [#{uri => ~"a://plain", name => ~"a", handler => fun(_, _) -> ~"text" end}],
      resource_templates => [#{uri_template => ~"t://{x}", name => ~"t",
                               handler => fun(_, _) -> ~"text" end}]}.

client(Way, Era, Server) ->
    client(Way, Era, #{}, Server).

client(Way, Era, More, #{pid := Pid, url := Url}) ->
    Options = More#{era => Era, cache => false},
    Target = case Way of
        http -> {http, Url, Options};
        http2 -> {http, Url, Options#{protocols => [http2]}};
        sse -> {http, iolist_to_binary(string:replace(Url, ~"/mcp", ~"/sse")),
                Options#{transport => sse}};
        tcp -> {tcp, {127, 0, 0, 1}, erlmcp_test_line:port(Pid), Options};
        memory -> {server, Pid, Options}
    end,
    {ok, Client} = erlmcp_client:start_link(Target),
    Client.

ask(~"tools/call", Name, Client) -> erlmcp_client:call_tool(Client, Name, #{});
ask(~"prompts/get", Name, Client) -> erlmcp_client:get_prompt(Client, Name, #{});
ask(~"resources/read", ~"t://{x}", Client) -> erlmcp_client:read_resource(Client, ~"t://1");
ask(~"resources/read", Uri, Client) -> erlmcp_client:read_resource(Client, Uri);
ask(~"completion/complete", Name, Client) ->
    erlmcp_client:complete(Client, {prompt, Name}, {~"who", ~"m"});
ask(~"tools/list", _, Client) -> erlmcp_client:list_tools(Client);
ask(~"ping", _, Client) -> erlmcp_client:ping(Client).

%% A batch is not a request; its requests are.
batches_are_counted_by_their_requests(_) ->
    Server = erlmcp_test_http:start((definitions())#{listen => [{http, #{}}, {tcp, #{port => 0}}]}),
    Call = fun(Id, Name) ->
        erlmcp_test_line:request(Id, ~"tools/call", #{~"name" => Name, ~"arguments" => #{}})
    end,
    Batch = [Call(1, ~"echo"), Call(2, ~"quick"), Call(3, ~"unknown"), Call(4, ~"fails"),
             erlmcp_test_line:request(5, ~"tools/list", #{}), Call(6, ~"crashes"), Call(7, ~"echo"),
             erlmcp_test_line:notification(~"notifications/initialized", #{}),
             erlmcp_test_line:request(8, ~"resources/subscribe", #{~"uri" => ~"a://plain"})],
    Socket = erlmcp_test_line:connect(maps:get(pid, Server)),
    _ = erlmcp_test_line:initialize(Socket, ~"2025-03-26"),
    Session = erlmcp_test_http:initialize(Server, ~"2025-03-26"),
    Before = metrics(Server),
    ok = erlmcp_test_line:send(Socket, Batch),
    8 = length(erlmcp_test_line:recv(Socket)),
    Line = metrics(Server),
    8 = maps:get(requests, Line) - maps:get(requests, Before),
    {Headers, _} = erlmcp_test_http:message(~"ping", #{}, #{session => Session}),
    #{status := 200} = erlmcp_test_http:post(Server, Headers, json:encode(Batch)),
    After = metrics(Server),
    8 = maps:get(requests, After) - maps:get(requests, Line),
    [12, 2, 2] = [grown([methods, Method], Before, After)
                  || Method <- [~"tools/call", ~"tools/list", ~"resources/subscribe"]],
    [{4, 4}, {2, 2}, {2, 0}, {2, 0}] =
        [{All, outcome(ok, Row)} || Name <- [~"echo", ~"quick", ~"fails", ~"crashes"],
                                    #{count := All} = Row <- [definition(tool, Name, After)]],
    ok = erlmcp_test_http:stop(Server).

task_is_one_request_and_one_run(_) ->
    [begin
         Tool = #{name => ~"job", task => required, handler => fun(_, _) -> Return end},
         Server = erlmcp_test_http:start(#{tools => [Tool]}),
         {ok, Client} = erlmcp_client:start_link({http, maps:get(url, Server),
                                                  #{tasks => true, era => Era}}),
         _ = erlmcp_client:list_tools(Client),
         {ok, _} = erlmcp_client:call_tool(Client, ~"job", #{}),
         #{methods := #{~"_TASK" := Run, ~"tools/call" := #{count := 1, errors := 0}},
           tools := [#{name := ~"job", count := 1}],
           %% The task has ended, and is kept.
           bounds := #{tasks := #{used := 1, limit := 20_000}}} = metrics(Server),
         1 = outcome(Outcome, Run),
         ok = erlmcp_client:stop(Client),
         ok = erlmcp_test_http:stop(Server)
     end || Era <- [stateless, '2025-11-25'],
            {Return, Outcome} <- [{~"done", ok}, {{error, ~"no"}, tool_error}]].

cancelled_calls_are_counted(_) ->
    Self = self(),
    Tool = #{name => ~"wait", handler => fun(_, _) ->
        Self ! {waits, self()},
        receive never -> ~"" end
    end},
    Server = erlmcp_test_http:start(#{tools => [Tool],
                                      listen => [{http, #{}}, {tcp, #{port => 0}}]}),
    Params = #{~"name" => ~"wait", ~"arguments" => #{}},
    %% By a notification, and by the end of the connection.
    Socket = erlmcp_test_line:connect(maps:get(pid, Server)),
    ok = erlmcp_test_line:send(Socket, erlmcp_test_line:stateless(1, ~"tools/call", Params)),
    waits(),
    ok = erlmcp_test_line:send(Socket, erlmcp_test_line:notification(~"notifications/cancelled",
                                                                     #{~"requestId" => 1})),
    cancelled(1, Server),
    ok = erlmcp_test_line:send(Socket, erlmcp_test_line:stateless(2, ~"tools/call", Params)),
    waits(),
    %% A client that only ends its input still gets its answers.
    ok = erlmcp_test_line:reset(Socket),
    cancelled(2, Server),
    Http = erlmcp_test_http:connect(Server),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"wait"}, #{}),
    ok = erlmcp_test_http:send(Http, ~"POST", Headers, Body),
    waits(),
    ok = erlmcp_test_http:close(Http),
    cancelled(3, Server),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    {Of, Call} = erlmcp_test_http:message(~"tools/call", #{name => ~"wait"},
                                            #{session => Session}),
    Waiting = erlmcp_test_http:connect(Server),
    ok = erlmcp_test_http:send(Waiting, ~"POST", Of, Call),
    waits(),
    #{status := 204} = erlmcp_test_http:delete(Server, Session),
    cancelled(4, Server),
    ok = erlmcp_test_http:stop(Server).

waits() ->
    receive {waits, _} -> ok end.

cancelled(Count, #{pid := Server}) ->
    await(fun() ->
        #{tools := [#{count := All, cancelled := Cancelled}]} = erlmcp:metrics(Server),
        {All, Cancelled} =:= {Count, Count}
    end).

%% The owner of the call reads of the deadline when the answer is there already.
answers_behind_deadlines_are_counted_once(_) ->
    [answered_late(Way, Era, Tool) || {Way, Era, Tool} <- [{tcp, stateless, ~"call"},
                                                           {http, stateless, ~"call"},
                                                           {http2, stateless, ~"call"},
                                                           {http, session, ~"call"},
                                                           {http, stateless, ~"task"}]].

answered_late(Way, Era, Name) ->
    Self = self(),
    Handler = fun(_, #{call := #{owner := Owner}}) ->
        Self ! {runs, self(), Owner},
        receive finish -> ~"done" end
    end,
    Server = erlmcp_test_http:start(#{tools => [#{name => ~"call", handler => Handler},
                                                #{name => ~"task", handler => Handler,
                                                  task => required}],
                                      listen => [{http, #{}}, {tcp, #{port => 0}}]}),
    Client = client(Way, Era, #{tasks => true}, Server),
    Asking = spawn_link(fun() ->
        Self ! {self(), erlmcp_client:call_tool(Client, Name, #{})}
    end),
    {Call, {Pid, _} = Owner} = receive {runs, Running, By} -> {Running, By} end,
    true = erlang:suspend_process(Pid),
    ok = erlmcp_call_messages:pass_on(Owner, {deadline, Call, 1}),
    Monitor = monitor(process, Call),
    Call ! finish,
    receive {'DOWN', Monitor, process, _, _} -> ok end,
    true = erlang:resume_process(Pid),
    Result = receive {Asking, Returned} -> Returned end,
    {Way, Era, Name, {ok, #{~"content" := [#{~"text" := ~"done"}]}}} = {Way, Era, Name, Result},
    #{methods := Methods, refusals := Refused} = metrics(Server),
    Method = map_get(Name, #{~"call" => ~"tools/call", ~"task" => ~"_TASK"}),
    #{Method := #{count := 1, errors := 0}} = Methods,
    0 = map_size(Refused),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

requests_refused_early_are_counted(_) ->
    Server = erlmcp_test_http:start((definitions())#{
        listen => [{http, #{authenticate => fun authenticated/1}}, {tcp, #{port => 0}}],
        limits => #{messages_per_day => 7, message_bytes => 5000}}),
    Refused = fun(Name, Method, Ask) ->
        #{refusals := Before, methods := Methods, requests := Requests} = metrics(Server),
        Ask(),
        [Code] = [Number || #{name := Is, number := Number} <- erlmcp_refusal:table(), Is =:= Name],
        #{refusals := After, methods := Next, requests := Then} = metrics(Server),
        {Name, 1} = {Name, maps:get(Code, After, 0) - maps:get(Code, Before, 0)},
        {Name, 1} = {Name, count(Method, Next) - count(Method, Methods)},
        {Name, 1} = {Name, Then - Requests}
    end,
    Known = #{headers => #{~"authorization" => ~"Bearer me"}},
    Post = fun(Body, Status) ->
        {Headers, _} = erlmcp_test_http:message(~"tools/list", #{}, Known),
        fun() -> #{status := Status} = erlmcp_test_http:post(Server, Headers, Body) end
    end,
    %% The head tells a method, which nobody has checked.
    Refused(auth_missing, ~"_UNREAD", fun() ->
        #{status := 401} = erlmcp_test_http:call(Server, ~"tools/list", #{})
    end),
    Refused(protocol_error, ~"_UNREAD", Post(~"{", 400)),
    Refused(message_too_large, ~"_UNREAD", Post(binary:copy(~" ", 5001), 413)),
    Refused(invalid_uri, ~"_UNREAD", fun() ->
        {Headers, Body} = erlmcp_test_http:message(~"tools/list", #{}, Known),
        Socket = erlmcp_test_http:connect(Server),
        ok = erlmcp_test_http:write(Socket, [
            ~"POST /other HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: ",
            integer_to_binary(iolist_size(Body)),
            [[~"\r\n", Name, ~": ", Value] || {Name, Value} <- Headers], ~"\r\n\r\n", Body]),
        #{status := 404} = erlmcp_test_http:response(Socket)
    end),
    Refused(session_invalid, ~"tools/list", fun() ->
        #{status := 404} =
            erlmcp_test_http:call(Server, ~"tools/list", #{},
                                  Known#{session => {~"none", ~"2025-11-25"}})
    end),
    Refused(protocol_error, ~"_OTHER", fun() ->
        #{status := 404} = erlmcp_test_http:call(Server, ~"no/method", #{}, Known)
    end),
    Socket = erlmcp_test_line:connect(maps:get(pid, Server)),
    Line = fun(Text) ->
        fun() ->
            ok = erlmcp_test_line:send(Socket, Text),
            #{~"error" := _} = erlmcp_test_line:recv(Socket)
        end
    end,
    Refused(server_uninitialized, ~"tools/list", Line(erlmcp_test_line:request(1, ~"tools/list",
                                                                               #{}))),
    Refused(protocol_error, ~"_UNREAD", Line(~B'{"jsonrpc":"2.0","id":1}')),
    Refused(protocol_error, ~"_UNREAD", Line(~"[")),
    Stateless = erlmcp_test_line:stateless(2, ~"prompts/list", #{}),
    spend(Socket, Stateless),
    Refused(rate_limit_exceeded, ~"prompts/list", Line(Stateless)),
    ok = erlmcp_test_http:stop(Server).

authenticated(#{headers := #{~"authorization" := ~"Bearer me"}}) -> {ok, #{principal => ~"me"}};
authenticated(_) -> {error, ~"who are you?"}.

spend(Socket, Message) ->
    ok = erlmcp_test_line:send(Socket, Message),
    case erlmcp_test_line:recv(Socket) of
        #{~"result" := _} -> spend(Socket, Message);
        #{~"error" := _} -> ok
    end.

subscriptions_are_counted(_) ->
    Server = erlmcp_test_http:start((definitions())#{
        listen => [{http, #{}}, {tcp, #{port => 0}}], limits => #{subscriptions => 1}}),
    Socket = erlmcp_test_line:connect(maps:get(pid, Server)),
    _ = erlmcp_test_line:initialize(Socket, ~"2025-11-25"),
    Session = erlmcp_test_http:initialize(Server, ~"2025-11-25"),
    Ask = fun(Id, Method, Uri) ->
        _ = erlmcp_test_line:ask(Socket, Id, Method, #{~"uri" => Uri}),
        #{status := 200} = erlmcp_test_http:call(Server, Method, #{~"uri" => Uri},
                                                 #{session => Session})
    end,
    Ask(1, ~"resources/subscribe", ~"a://plain"),
    Ask(2, ~"resources/subscribe", ~"t://2"),
    Ask(3, ~"resources/unsubscribe", ~"a://plain"),
    Listen = #{~"notifications" => #{~"resourceSubscriptions" => [~"a://plain"]}},
    ok = erlmcp_test_line:send(Socket, erlmcp_test_line:stateless(4, ~"subscriptions/listen",
                                                                  Listen)),
    _ = erlmcp_test_line:recv(Socket),
    #{methods := #{~"resources/subscribe" := Subscribed,
                   ~"resources/unsubscribe" := #{count := 2, refusals := 0},
                   ~"subscriptions/listen" := #{count := 1}}} = metrics(Server),
    [2, 2] = [outcome(Outcome, Subscribed) || Outcome <- [ok, concurrent_limit_exceeded]],
    ok = erlmcp_test_http:stop(Server).

%% A request that waits on its connection is counted once, with the time for which it has waited.
queued_requests_count_with_their_wait(_) ->
    Self = self(),
    Wait = #{name => ~"wait", handler => fun(_, _) ->
        Self ! {waits, self()},
        receive go -> ~"" end
    end},
    Echo = #{name => ~"echo", handler => fun(_, _) -> ~"hello" end},
    Server = erlmcp_test_line:serve(#{tools => [Wait, Echo],
                                      limits => #{calls_per_connection => 1}}),
    Socket = erlmcp_test_line:connect(Server),
    Call = fun(Id, Name) ->
        erlmcp_test_line:send(Socket, erlmcp_test_line:stateless(Id, ~"tools/call",
                                                                 #{~"name" => Name}))
    end,
    ok = Call(1, ~"wait"),
    Pid = receive {waits, Waiting} -> Waiting end,
    ok = Call(2, ~"echo"),
    ok = Call(3, ~"echo"),
    ok = erlmcp_test_line:send(Socket, erlmcp_test_line:notification(~"notifications/cancelled",
                                                                     #{~"requestId" => 3})),
    true = erlmcp_test_line:is_quiet(Socket),
    Begin = erlang:monotonic_time(microsecond),
    await(fun() -> erlang:monotonic_time(microsecond) - Begin > 20_000 end),
    Pid ! go,
    [_, _] = erlmcp_test_line:recv_many(Socket, 2),
    #{tools := Tools, methods := #{~"tools/call" := #{count := 3, cancelled := 1}}} =
        erlmcp:metrics(Server),
    [#{count := 1, latency := #{p50_us := Echoed}}] =
        [Tool || #{name := ~"echo"} = Tool <- Tools],
    true = Echoed > 17_000.

%% A failure is known by its refusal and by the JSON-RPC code of its answer.
codes_of_answers_are_counted(_) ->
    Refuses = fun(Name, Details) ->
        #{name => Name, handler => fun(_, _) ->
            {refuse, erlmcp:refusal(dependency_unavailable, ~"no", Details)}
        end}
    end,
    #{tools := Tools} = Definitions = definitions(),
    Server = erlmcp_test_http:start(Definitions#{
        tools := Tools ++ [Refuses(~"by_number", #{}), Refuses(~"by_code", #{code => 4711})]}),
    Ask = fun(Method, Params) ->
        #{messages := [#{~"error" := #{~"code" := Code}}]} =
            erlmcp_test_http:call(Server, Method, Params),
        Code
    end,
    Call = fun(Name) -> Ask(~"tools/call", #{name => Name}) end,
    [-32602, -32603, 1080, 4711] =
        [Call(Name) || Name <- [~"unknown", ~"crashes", ~"by_number", ~"by_code"]],
    -32601 = Ask(~"no/method", #{}),
    -32602 = Ask(~"tools/call", #{}),
    _ = erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"fails"}),
    #{methods := #{~"tools/call" := Called, ~"_OTHER" := Unknown}} = Metrics = metrics(Server),
    [{dependency_unavailable, 1080}, {dependency_unavailable, other}, {internal_error, -32603},
     {missing_required_field, -32602}, {tool_error, none}, {tool_not_found, -32602}] =
        codes(Called),
    [{protocol_error, -32601}] = codes(Unknown),
    [{dependency_unavailable, other}] = codes(definition(tool, ~"by_code", Metrics)),
    2 = map_get(1080, maps:get(refusals, Metrics)),
    ok = erlmcp_test_http:stop(Server).

codes(#{failures := Failures}) ->
    lists:sort([{Error, Code} || #{error := Error, code := Code, latency := #{count := 1}}
                                     <- Failures]).

%% A connection beyond the bound is refused before its first request, which is not counted.
refused_connections_are_counted(_) ->
    Server = erlmcp_test_http:start((definitions())#{
        listen => [{http, #{}}, {tcp, #{port => 0}}], limits => #{connections => 2}}),
    Open = [erlmcp_test_http:connect(Server) || _ <- [1, 2]],
    await(fun() -> maps:get(connections, metrics(Server)) =:= 2 end),
    #{refused_connections := []} = metrics(Server),
    [#{status := 429} = erlmcp_test_http:call(Server, ~"tools/list", #{})
     || _ <- lists:seq(1, ?COUNT)],
    Socket = erlmcp_test_line:connect(maps:get(pid, Server)),
    #{~"error" := #{~"data" := #{~"name" := ~"concurrent_limit_exceeded"}}} =
        erlmcp_test_line:recv(Socket),
    #{requests := 0, refused_connections := Refused} = metrics(Server),
    [#{listener := http, refusal := concurrent_limit_exceeded, number := 1060, count := ?COUNT},
     #{listener := tcp, refusal := concurrent_limit_exceeded, number := 1060, count := 1}] =
        Refused,
    [ok = erlmcp_test_http:close(One) || One <- Open],
    ok = erlmcp_test_http:stop(Server).

bytes_are_those_of_messages(_) ->
    Server = erlmcp_test_line:serve(#{}),
    Socket = erlmcp_test_line:connect(Server),
    Message = iolist_to_binary(json:encode(erlmcp_test_line:stateless(
        1, ~"tools/call", #{~"name" => ~"echo", ~"arguments" => #{~"text" => ~"hello"}}))),
    ok = erlmcp_test_line:send(Socket, Message),
    Answer = erlmcp_test_line:recv_line(Socket),
    ok = erlmcp_test_line:send(Socket, Message),
    Answer = erlmcp_test_line:recv_line(Socket),
    In = 2 * byte_size(Message),
    %% Without the newline.
    Out = 2 * (byte_size(Answer) - 1),
    #{tools := [#{name := ~"echo", count := 2, bytes_in := In, bytes_out := Out}],
      methods := #{~"tools/call" := #{bytes_in := In, bytes_out := Out}}} = erlmcp:metrics(Server).

%% The quantile of a single time is wrong by less than 12 %. The time of the count itself is added.
quantiles_are_right(_) ->
    erlmcp_test_property:holds(
        ?FORALL({Exponent, Mantissa}, {range(5, 10), range(100, 999)}, begin
            Nanoseconds = Mantissa * round(math:pow(10, Exponent - 2)),
            Before = erlang:monotonic_time(nanosecond),
            Meter = metered([Nanoseconds]),
            Least = Nanoseconds / 1000,
            Most = Least + (erlang:monotonic_time(nanosecond) - Before) / 1000,
            #{sum := Sum, counts := Counts} =
                erlmcp_meter:read(erlmcp_meter:method_row(~"ping"), Meter),
            #{p50_us := P50, count := 1, sum_us := Took} = erlmcp_histogram:fine(Sum, Counts),
            Took >= trunc(Least) andalso Took =< Most
                andalso (P50 >= 300_000_000 orelse P50 >= 0.88 * Least andalso P50 =< 1.12 * Most)
        end), 300),
    %% Of many times: the ranks.
    Meter = metered([1_000_000 * Ms || Ms <- lists:seq(1000, 1999)]),
    #{sum := Sum, counts := Counts} = erlmcp_meter:read(erlmcp_meter:method_row(~"ping"), Meter),
    #{p50_us := P50, p95_us := P95, p99_us := P99, count := 1000} =
        erlmcp_histogram:fine(Sum, Counts),
    [true = abs(Found - Right) < 0.12 * Right
     || {Found, Right} <- [{P50, 1_500_000}, {P95, 1_950_000}, {P99, 1_990_000}]].

%% A meter of requests that each took so many nanoseconds until they are counted.
metered(Times) ->
    Meter = erlmcp_meter:new(),
    Server = #{key => make_ref(), meter => Meter, observers => [], tracer => none},
    [begin
         Began = erlang:monotonic_time(nanosecond) - Nanoseconds,
         ok = erlmcp_meter:ended({{1, ~"ping", #{}}, {Began, 10, none}}, ok, 10, Server)
     end || Nanoseconds <- Times],
    Meter.

coarse_buckets_are_opentelemetrys(_) ->
    Bounds = erlmcp_histogram:coarse_bounds(),
    [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0] =
        [Bound / 1.0e9 || Bound <- Bounds],
    %% Each is a bound of the fine ones, which are never more than a quarter apart.
    Fine = erlmcp_histogram:fine_bounds(),
    [] = Bounds -- Fine,
    [] = [{A, B} || {A, B} <- lists:zip(lists:droplast(Fine), tl(Fine)),
                    B > 1.25 * A orelse B =< A],
    %% A failure that took a little less than a bound counts up to there, and one that took as much
    %% does not. The time of the count itself is added.
    [[At] = counted_at(Bound - 3_000_000) || {At, Bound} <- lists:enumerate(Bounds)],
    [[At] = counted_at(Bound) || {At, Bound} <- lists:enumerate(2, Bounds)].

counted_at(Nanoseconds) ->
    Meter = erlmcp_meter:new(),
    Server = #{key => make_ref(), meter => Meter, observers => [], tracer => none},
    Began = erlang:monotonic_time(nanosecond) - Nanoseconds,
    ok = erlmcp_meter:ended({{1, ~"ping", #{}}, {Began, 10, none}}, cancelled, 0, Server),
    [{_, cancelled, none, {_, Counts}}] = erlmcp_meter:failures(Meter),
    %% The count itself may take longer than a bound is away, where others have the processor.
    case erlang:monotonic_time(nanosecond) - Began - Nanoseconds < 3_000_000 of
        true -> [At || {At, 1} <- lists:enumerate(Counts)];
        false -> counted_at(Nanoseconds)
    end.

a_slow_tool_shows(_) ->
    Slow = #{name => ~"slow", handler => fun(_, _) ->
        receive after 100 -> ~"done" end
    end},
    Server = erlmcp_test_http:start(#{tools => [Slow]}),
    _ = [erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"slow"}) || _ <- lists:seq(1, 3)],
    #{tools := [#{latency := #{p95_us := P95}}]} = metrics(Server),
    true = P95 >= 88_000,
    ok = erlmcp_test_http:stop(Server).

info_has_figures_of_tools(_) ->
    Server = erlmcp_test_http:start(definitions()),
    [_ = erlmcp_test_http:call(Server, ~"tools/call", #{name => Name})
     || Name <- [~"echo", ~"echo", ~"fails", ~"crashes"]],
    #{tools := #{~"echo" := #{count := 2, errors := 0, refusals := 0, p50_us := P50},
                 ~"fails" := #{count := 1, errors := 1},
                 ~"crashes" := #{count := 1, refusals := 1},
                 ~"quick" := #{count := 0, p50_us := 0}}} = erlmcp:info(maps:get(pid, Server)),
    true = P50 > 0,
    {error, not_found} = erlmcp:metrics(no_such_server),
    ok = erlmcp_test_http:stop(Server).

sessions_and_streams_are_counted(_) ->
    Server = erlmcp_test_http:start(#{listen => [{http, #{}}, {tcp, #{port => 0}}]}),
    Session = erlmcp_test_http:initialize(Server, ~"2025-06-18"),
    Socket = erlmcp_test_line:connect(maps:get(pid, Server)),
    _ = erlmcp_test_line:initialize(Socket, ~"2025-11-25"),
    Stream = erlmcp_test_http:get_stream(Server, Session),
    #{sessions := #{open := 1, opened := 2, ended := 0, durations := []},
      streams := #{open := 1, opened := 1}} = metrics(Server),
    ok = erlmcp_test_line:close(Socket),
    #{status := 204} = erlmcp_test_http:delete(Server, Session),
    await(fun() ->
        maps:with([sessions, streams], metrics(Server)) =/= #{}
            andalso map_get(ended, map_get(sessions, metrics(Server))) =:= 2
            andalso map_get(open, map_get(streams, metrics(Server))) =:= 0
    end),
    #{sessions := #{open := 0, opened := 2, durations := Durations}} = metrics(Server),
    ['2025-06-18', '2025-11-25'] =
        lists:sort([Revision || #{revision := Revision, network := tcp,
                                  duration := #{count := 1}} <- Durations]),
    _ = Stream,
    ok = erlmcp_test_http:stop(Server).

%% A process that is killed, such as by the bound of its heap, cannot say that its streams end.
the_killed_leave_no_stream_and_no_session(_) ->
    Server = erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{
        id => ?FUNCTION_NAME, listen => [{http, #{sse => #{}}}],
        limits => #{unused_session_ms => 5_000}}),
    Session = erlmcp_test_http:initialize(Server, ~"2025-06-18"),
    _ = erlmcp_test_http:get_stream(Server, Session),
    _ = erlmcp_test_sse:initialize(erlmcp_test_sse:open(Server, #{}), ~"2024-11-05"),
    #{sessions := #{open := 2}, streams := #{open := 2}} = metrics(Server),
    Processes = labelled(erlmcp_connection, ?FUNCTION_NAME)
        ++ labelled(erlmcp_session, ?FUNCTION_NAME),
    lists:foreach(fun(Pid) -> exit(Pid, kill) end, Processes),
    await(fun() ->
        #{sessions := #{open := Sessions}, streams := #{open := Open, opened := 2}} =
            metrics(Server),
        Sessions + Open =:= 0
    end),
    ok = erlmcp_test_http:stop(Server).

labelled(Kind, Id) ->
    [Pid || Pid <- processes(), Label <- [proc_lib:get_label(Pid)], is_tuple(Label),
            element(1, Label) =:= Kind, element(tuple_size(Label), Label) =:= Id].

rows_are_bounded(_) ->
    Tool = fun(Number) -> #{name => integer_to_binary(Number), handler => fun(_, _) -> ~"" end} end,
    Server = erlmcp_test_http:start(#{tools => [Tool(Number) || Number <- lists:seq(1, 203)]}),
    {ok, Client} = erlmcp_client:start_link({server, maps:get(pid, Server), #{}}),
    [{ok, _} = erlmcp_client:call_tool(Client, integer_to_binary(Number), #{})
     || Number <- lists:seq(1, 203)],
    #{tools := Tools, methods := #{~"tools/call" := #{count := 203}}} = metrics(Server),
    201 = length(Tools),
    [#{count := 3}] = [Other || #{name := other} = Other <- Tools],
    %% The rows of removed tools serve others, and their counts stay those of the method.
    lists:foreach(fun(Number) ->
        ok = erlmcp:remove(maps:get(pid, Server), tool, integer_to_binary(Number)),
        ok = erlmcp:add(maps:get(pid, Server), tool, Tool(1000 + Number)),
        {ok, _} = erlmcp_client:call_tool(Client, integer_to_binary(1000 + Number), #{})
    end, lists:seq(1, 50)),
    #{tools := Next, methods := #{~"tools/call" := #{count := 253}}} = metrics(Server),
    201 = length(Next),
    [#{count := 3}] = [Other || #{name := other} = Other <- Next],
    #{removed := #{tools := #{count := 50}}} = metrics(Server),
    [#{count := 1}] = [New || #{name := ~"1050"} = New <- Next],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

definition_that_comes_again_keeps_its_row(_) ->
    Tool = #{name => ~"echo", handler => fun(_, _) -> ~"" end},
    #{pid := Pid} = Server = erlmcp_test_http:start(#{tools => [Tool]}),
    Call = fun() -> erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"echo"}) end,
    _ = Call(),
    lists:foreach(fun(_) ->
        ok = erlmcp:remove(Pid, tool, ~"echo"),
        #{tools := []} = metrics(Server),
        ok = erlmcp:add(Pid, tool, Tool),
        _ = Call()
    end, lists:seq(1, 10)),
    #{tools := [#{name := ~"echo", count := 11}]} = metrics(Server),
    ok = erlmcp_test_http:stop(Server).

%% All at once, so that the new ones are there before the old ones have gone.
replaced_definitions_give_their_rows(_) ->
    Tools = fun(From) ->
        [#{name => integer_to_binary(Number),
           handler => fun(_, _) -> {error, ~"no"} end}
         || Number <- lists:seq(From, From + 149)]
    end,
    #{pid := Pid} = Server = erlmcp_test_http:start(#{tools => Tools(1)}),
    {ok, Client} = erlmcp_client:start_link({server, Pid, #{}}),
    Call = fun(Number) -> erlmcp_client:call_tool(Client, integer_to_binary(Number), #{}) end,
    [_ = Call(Number) || Number <- lists:seq(1, 150)],
    %% A refused set leaves all rows to those who have them.
    {error, _} = erlmcp:replace(Pid, #{tools => Tools(1001) ++ [#{name => ~"no handler"}]}),
    [1, 150] = counts(Server),
    ok = erlmcp:replace(Pid, #{tools => Tools(1001)}),
    %% Each begins at zero, and has a row of its own.
    [0, 150] = counts(Server),
    [_ = Call(Number) || Number <- lists:seq(1001, 1150)],
    [1, 150] = counts(Server),
    #{removed := #{tools := #{count := 150, errors := 150}},
      methods := #{~"tools/call" := #{count := 300, errors := 300}}} = metrics(Server),
    %% The rows of these are theirs: other new ones do not get them.
    ok = lists:foreach(fun(Tool) -> ok = erlmcp:add(Pid, tool, Tool) end, Tools(2001)),
    #{tools := Added} = metrics(Server),
    200 = length([Name || #{name := Name} <- Added, is_binary(Name)]),
    150 = length([Name || #{name := Name, count := 1, errors := 1} <- Added]),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

refused_definitions_take_no_rows(_) ->
    Tool = #{handler => fun(_, _) -> ~"" end},
    #{pid := Pid} = Server = erlmcp_test_http:start(#{tools => []}),
    lists:foreach(fun(Number) ->
        {error, _} = erlmcp:add(Pid, tool, Tool#{name => integer_to_binary(Number),
                                                 ui => #{resource_uri => ~"ui://none"}})
    end, lists:seq(1, 200)),
    ok = erlmcp:add(Pid, tool, Tool#{name => ~"echo"}),
    _ = erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"echo"}),
    #{tools := [#{name := ~"echo", count := 1}]} = metrics(Server),
    ok = erlmcp_test_http:stop(Server).

%% The count of each tool, which is the same for all, and how many tools there are.
counts(Server) ->
    #{tools := Tools} = metrics(Server),
    [Count] = lists:usort([Count || #{count := Count, errors := Errors} <- Tools,
                                    Errors =:= Count]),
    [Count, length([Name || #{name := Name} <- Tools, is_binary(Name)])].

%% A failure that was not counted for a minute gives its place to others, if most places are taken.
old_failures_make_room(_) ->
    Fails = fun
        (#{~"fault" := true}, _) -> {refuse, erlmcp:refusal(dependency_unavailable, ~"", #{})};
        (_, _) -> {error, ~"no"}
    end,
    Server = erlmcp_test_http:start(#{
        id => ?FUNCTION_NAME,
        tools => [#{name => integer_to_binary(Number), handler => Fails}
                  || Number <- lists:seq(1, 150)]}),
    {ok, Client} = erlmcp_client:start_link({server, maps:get(pid, Server), #{}}),
    Fail = fun(From, To) ->
        [_ = erlmcp_client:call_tool(Client, integer_to_binary(Number), Arguments)
         || Number <- lists:seq(From, To), Arguments <- [#{}, #{fault => true}]],
        #{tools := Tools, methods := Methods} = metrics(Server),
        {length([Name || #{name := Name, errors := 1, refusals := 1} <- Tools]),
         #{Method => {Errors, Refusals}
           || Method := #{errors := Errors, refusals := Refusals} <- Methods}}
    end,
    %% Failures that find no place are nobody's.
    {_, #{~"tools/call" := Known, ~"_OTHER" := Unknown}} = Fail(1, 140),
    ok = sweep(?FUNCTION_NAME),
    _ = [erlmcp_client:call_tool(Client, ~"1", Arguments)
         || Arguments <- [#{}, #{fault => true}]],
    ok = sweep(?FUNCTION_NAME),
    %% What is counted still keeps its place, and no count of the method is less than before.
    #{tools := Tools} = metrics(Server),
    [~"1"] = [Name || #{name := Name, errors := 2, refusals := 2} <- Tools],
    {Own, #{~"tools/call" := {Errors, Refusals}, ~"_OTHER" := Unknown}} = Fail(141, 150),
    true = Own >= 10,
    {11, 11} = {Errors - element(1, Known), Refusals - element(2, Known)},
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

%% Lets the sweeper of a server's failures run once.
sweep(Id) ->
    [Sweeper] = [Pid || Pid <- labelled(erlmcp_sweeper, Id),
                        element(2, proc_lib:get_label(Pid)) =:= failure_sweeper],
    Sweeper ! sweep,
    _ = sys:get_state(Sweeper),
    ok.

mounted_tools_have_rows_of_their_own(_) ->
    Tool = fun(Name) -> #{name => Name, handler => fun(_, _) -> ~"" end} end,
    {ok, Inner} = erlmcp:start_server(#{name => ~"inner", version => ~"1.0.0",
                                        tools => [Tool(~"one"), Tool(~"two")]}),
    Server = erlmcp_test_http:start(#{tools => [Tool(~"own")], mounts => [{~"in", Inner}]}),
    [_ = erlmcp_test_http:call(Server, ~"tools/call", #{name => Name})
     || Name <- [~"own", ~"in_one", ~"in_one", ~"in_two"]],
    #{tools := Tools} = metrics(Server),
    [{~"in_one", 2}, {~"in_two", 1}, {~"own", 1}] =
        lists:sort([{Name, Count} || #{name := Name, count := Count} <- Tools]),
    #{requests := 0} = erlmcp:metrics(Inner),
    ok = erlmcp_test_http:stop(Server),
    ok = erlmcp:stop_server(Inner).

%% There are 256 slots for pairs of a row and an error. What comes after that is counted, too.
failures_without_slots_are_kept(_) ->
    Meter = erlmcp_meter:new(),
    Server = #{key => make_ref(), meter => Meter, observers => [], tracer => none},
    Names = [timeout, internal_error, tool_not_found, protocol_error],
    Rows = [erlmcp_meter:definition_row(tool, integer_to_binary(Number), Meter)
            || Number <- lists:seq(1, 200)],
    [ok = erlmcp_meter:ended(#{id => 1, revision => undefined, method => ~"tools/call",
                               target => ~"", row => Row,
                               arrival => erlmcp_meter:arrived(1)},
                             {refused, erlmcp_refusal:new(Name, ~"")}, 1, Server)
     || Row <- Rows, Name <- Names],
    Found = erlmcp_meter:failures(Meter),
    {800, 400} = erlmcp_meter:totals(Meter),
    [200, 200, 200, 200] = [lists:sum([lists:sum(Counts) || {_, Is, _, {_, Counts}} <- Found,
                                                            Is =:= Name]) || Name <- Names].

%% The failures of methods, which anybody can provoke, have places of their own. What is refused by
%% its head has a single row, whichever method the head names.
clients_take_no_places_from_tools(_) ->
    Server = erlmcp_test_http:start((definitions())#{
        id => ?FUNCTION_NAME, listen => [{http, #{allowed_hosts => [~"127.0.0.1"]}}]}),
    Methods = [Method || {<<Letter, _/binary>> = Method, _} <- erlmcp_meter:methods(),
                         Letter =/= $_],
    _ = erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"fails"}),
    Provoked = [refused_as(Method, Change, Server) || Method <- Methods, Change <- changes()],
    true = length(Provoked) > 350,
    %% The head may name a method that the body does not have.
    #{methods := #{~"_UNREAD" := #{refusals := Unread}}} = metrics(Server),
    true = Unread >= 8 * length(Methods),
    ok = sweep(?FUNCTION_NAME),
    ok = sweep(?FUNCTION_NAME),
    _ = erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"crashes"}),
    #{tools := Tools, methods := #{~"tools/call" := #{errors := 1}}} = metrics(Server),
    [{~"crashes", 0, 1}, {~"fails", 1, 0}] =
        lists:sort([{Name, Errors, Refusals}
                    || #{name := Name, errors := Errors, refusals := Refusals} <- Tools,
                       Errors + Refusals > 0]),
    ok = erlmcp_test_http:stop(Server).

%% A request whose head names a method, and a change that makes the server refuse it.
refused_as(Method, Change, Server) ->
    Message = #{jsonrpc => ~"2.0", id => 1, method => Method,
                params => #{~"_meta" => erlmcp_test_http:meta()}},
    #{verb := Verb, path := Path, headers := Headers, body := Body} =
        Change(#{verb => ~"POST", path => ~"/mcp", body => Message,
                 headers => #{~"host" => ~"127.0.0.1", ~"content-type" => ~"application/json",
                              ~"accept" => ~"application/json, text/event-stream",
                              ~"mcp-protocol-version" => ~"2026-07-28", ~"mcp-method" => Method,
                              ~"mcp-name" => ~"any"}}),
    Bytes = case Body of
        #{} -> json:encode(Body);
        _ -> Body
    end,
    Length = #{~"content-length" => integer_to_binary(iolist_size(Bytes))},
    Socket = erlmcp_test_http:connect(Server),
    ok = erlmcp_test_http:write(Socket, [
        Verb, $\s, Path, ~" HTTP/1.1\r\n",
        [[Name, ~": ", Value, ~"\r\n"] || Name := Value <- maps:merge(Length, Headers)],
        ~"\r\n", Bytes]),
    #{status := Status} = erlmcp_test_http:response(Socket),
    true = Status >= 400,
    erlmcp_test_http:close(Socket).

changes() ->
    Head = fun(Name, Value) ->
        fun(#{headers := Headers} = Request) -> Request#{headers := Headers#{Name => Value}} end
    end,
    Without = fun(Name) ->
        fun(#{headers := Headers} = Request) ->
            Request#{headers := maps:remove(Name, Headers)}
        end
    end,
    Verb = fun(Verb) ->
        fun(#{headers := Headers} = Request) ->
            Request#{verb := Verb, body := ~"",
                     headers := Headers#{~"mcp-protocol-version" := ~"2025-11-25",
                                         ~"mcp-session-id" => ~"none"}}
        end
    end,
    Meta = fun(Value) ->
        fun(#{body := #{params := Params} = Body} = Request) ->
            Request#{body := Body#{params := Params#{~"_meta" := Value}}}
        end
    end,
    %% By the head, or before the message is read.
    [Head(~"host", ~"example.com"), Head(~"accept", ~"text/plain"), Without(~"content-type"),
     Head(~"content-encoding", ~"gzip"), Verb(~"GET"), Verb(~"DELETE"), Verb(~"PUT"),
     fun(Request) -> Request#{path := ~"/other"} end, fun(Request) -> Request#{body := ~"{"} end,
     Head(~"mcp-protocol-version", ~"1999-01-01"),
     %% After that.
     Without(~"mcp-method"), Head(~"mcp-method", ~"other"), Meta(1),
     Meta(#{~"io.modelcontextprotocol/protocolVersion" => ~"1999-01-01"}),
     fun(#{body := Body} = Request) -> Request#{body := Body#{jsonrpc := ~"1.0"}} end,
     fun(#{body := Body} = Request) -> Request#{body := Body#{id := #{}}} end,
     fun(#{body := Body} = Request) -> Request#{body := Body#{params := 1}} end].

%% Also if no place is free: the counts of a definition that gives its row away, and those that give
%% their places back, never count for another method.
moved_failures_stay_those_of_their_method(_) ->
    Meter = erlmcp_meter:new(),
    Server = #{key => make_ref(), meter => Meter, observers => [], tracer => none},
    Row = fun(Number) -> erlmcp_meter:definition_row(tool, integer_to_binary(Number), Meter) end,
    Fail = fun(Number, Outcome) ->
        erlmcp_meter:ended(#{id => 1, revision => undefined, method => ~"tools/call", target => ~"",
                             row => Row(Number), arrival => erlmcp_meter:arrived(1)},
                           Outcome, 1, Server)
    end,
    Errors = [tool_error, cancelled, {refused, erlmcp_refusal:new(timeout, ~"")},
              {refused, erlmcp_refusal:new(timeout, ~"", #{code => 1})}],
    [ok = Fail(Number, Error) || Number <- lists:seq(1, 200), Error <- Errors],
    Other = erlmcp_meter:method_row(~"no/method"),
    %% Those without a place, and those of tools.
    Read = fun() ->
        lists:foldl(fun({Of, Error, Code, {_, Counts}}, Sums) ->
            Add = fun(Sum) -> Sum + lists:sum(Counts) end,
            maps:update_with({Of =:= Other, Error, Code}, Add, Add(0), Sums)
        end, #{}, erlmcp_meter:failures(Meter))
    end,
    #{{true, tool_error, none} := _} = Before = Read(),
    [begin
         ok = erlmcp_meter:free(tool, integer_to_binary(Number), Row(Number), Meter),
         _ = Row(1000 + Number),
         Before = Read()
     end || Number <- lists:seq(1, 100)],
    [begin ok = erlmcp_meter:sweep(Server), Before = Read() end || _ <- [1, 2, 3]],
    %% Now there is room.
    ok = Fail(1001, tool_error),
    [1] = [lists:sum(Counts) || {Of, tool_error, none, {_, Counts}} <- erlmcp_meter:failures(Meter),
                                Of =:= Row(1001)].

%% Keys that differ little, as those of the rows of one server, at three quarters of the slots.
most_keys_find_a_slot(_) ->
    Size = 256,
    Full = [Key || Server <- lists:seq(1, 200), Slots <- [erlmcp_meter_counts:slots(Size)],
                   Key <- [1_000 * Server + Row || Row <- lists:seq(1, 192)],
                   erlmcp_meter_counts:slot(Key, Size, Slots) =:= full],
    true = length(Full) < 20,
    Slots = erlmcp_meter_counts:slots(Size),
    Found = [{erlmcp_meter_counts:slot(Key, Size, Slots), Key} || Key <- lists:seq(1_001, 1_192)],
    true = lists:sort(Found) =:= lists:sort(erlmcp_meter_counts:taken(Slots)),
    Found = [{erlmcp_meter_counts:slot(Key, Size, Slots), Key} || Key <- lists:seq(1_001, 1_192)].

%% A reader that saw a part of the counts before they went elsewhere would miss them, and Prometheus
%% takes a count that falls for a restart.
counts_that_move_are_read_again(_) ->
    Meter = erlmcp_meter:new(),
    Server = #{key => make_ref(), meter => Meter, observers => [], tracer => none},
    Row = fun(Number) -> erlmcp_meter:definition_row(tool, integer_to_binary(Number), Meter) end,
    Fail = fun(Number) ->
        erlmcp_meter:ended(#{id => 1, revision => undefined, method => ~"tools/call", target => ~"",
                             row => Row(Number), arrival => erlmcp_meter:arrived(1)},
                           tool_error, 1, Server)
    end,
    [ok = Fail(Number) || Number <- lists:seq(1, 200)],
    Reads = fun Reads(Count) -> receive read -> Reads(Count + 1) after 0 -> Count end end,
    Read = fun(Meanwhile) ->
        _ = erlmcp_meter:steady(Meter, fun() ->
            _ = Meanwhile(),
            self() ! read
        end),
        Reads(0)
    end,
    1 = Read(fun() -> ok end),
    %% The first sweep notes what was counted, and the second one moves it.
    1 = Read(fun() -> erlmcp_meter:sweep(Server) end),
    2 = Read(fun() -> erlmcp_meter:sweep(Server) end),
    1 = Read(fun() -> erlmcp_meter:sweep(Server) end),
    %% A definition that takes the row of another one.
    [ok = erlmcp_meter:free(tool, integer_to_binary(Number), Row(Number), Meter)
     || Number <- [1, 2]],
    2 = Read(fun() -> Row(201) end),
    1 = Read(fun() -> Row(201) end),
    %% A reader ends even if counts move all the time.
    10 = Read(fun() ->
        Number = 10_000 + erlang:unique_integer([positive]),
        erlmcp_meter:free(tool, integer_to_binary(Number), Row(Number), Meter)
    end).

metrics(#{pid := Pid}) ->
    #{requests := Requests, methods := Methods} = Metrics = erlmcp:metrics(Pid),
    Requests = lists:sum([Count || _ := #{count := Count} <- Methods]),
    Metrics.

grown([methods, Method], #{methods := Before}, #{methods := After}) ->
    count(Method, After) - count(Method, Before).

count(Method, Methods) ->
    maps:get(count, maps:get(Method, Methods, #{count => 0})).

definition(Family, Name, Metrics) ->
    Key = map_get(Family, #{tool => tools, prompt => prompts, resource => resources}),
    [Row] = [Row || #{name := Is} = Row <- maps:get(Key, Metrics), Is =:= Name],
    Row.

outcome(ok, #{latency := #{count := Count}}) -> Count;
outcome(Error, #{failures := Failures}) ->
    lists:sum([Count || #{error := Is, latency := #{count := Count}} <- Failures, Is =:= Error]).

await(Condition) ->
    case Condition() of
        true -> ok;
        false ->
            receive after 5 -> ok end,
            await(Condition)
    end.
