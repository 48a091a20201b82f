-module(client_metrics_SUITE).
-moduledoc """
The figures of the node's clients, `erlmcp_client:metrics/0`: each request is counted once,
whichever transport it goes by and however it ends, by its server and its revision; and the bounds
of the meter.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2]).
-export([each_request_is_counted_once/1, requests_of_the_client_itself_are_counted/1,
         subscriptions_are_counted/1]).
-export([failures_are_named/1, lost_connections_are_counted/1, lost_negotiations_are_counted/1,
         unsent_requests_are_counted/1, pools_are_counted_by_their_servers/1,
         ended_calls_are_counted/1]).
-export([bytes_are_those_of_messages/1, sessions_are_counted/1, what_runs_is_shown/1,
         servers_are_bounded/1, names_are_bounded/1, strange_names_are_no_labels/1,
         failures_without_slots_are_kept/1, a_server_takes_no_places_from_others/1,
         there_are_none_without_the_application/1]).
-export([serve/0]).

-import(erlmcp_test_peer, [result/2]).

-define(WAIT, 20_000).
%% Of each kind of request.
-define(COUNT, 3).

suite() ->
    [{timetrap, {seconds, 60}}].

all() ->
    [{group, once}, {group, ends}, {group, figures}].

groups() ->
    [{once, [], [each_request_is_counted_once, requests_of_the_client_itself_are_counted,
                 subscriptions_are_counted]},
     {ends, [], [failures_are_named, lost_connections_are_counted, lost_negotiations_are_counted,
                 unsent_requests_are_counted, pools_are_counted_by_their_servers,
                 ended_calls_are_counted]},
     {figures, [], [bytes_are_those_of_messages, sessions_are_counted, what_runs_is_shown,
                    servers_are_bounded, names_are_bounded, strange_names_are_no_labels,
                    failures_without_slots_are_kept, a_server_takes_no_places_from_others,
                    there_are_none_without_the_application]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% A case has a meter of its own.
init_per_testcase(_, Config) ->
    ok = application:stop(erlmcp),
    ok = application:start(erlmcp),
    Config.

%% Each way to a server, with the eras of its clients.
ways() ->
    [{Way, Era} || Way <- [http, http2, tcp, memory, stdio], Era <- [stateless, session]]
        ++ [{sse, session}].

each_request_is_counted_once(_) ->
    [counted_once(Way, Era) || {Way, Era} <- ways()].

counted_once(Way, Era) ->
    #{pid := Pid} = Server = server(),
    Client = client(Way, Era, Server),
    Kinds = [{~"tools/call", ~"echo", ok}, {~"tools/call", ~"fails", tool_error},
             {~"tools/call", ~"crashes", {rpc, -32603}}, {~"tools/call", ~"unknown", {rpc, -32602}},
             {~"prompts/get", ~"greet", ok}, {~"prompts/get", ~"unknown", {rpc, -32602}},
             {~"resources/read", ~"a://plain", ok},
             {~"completion/complete", ~"greet", ok}, {~"tools/list", none, ok},
             {~"no/method", none, {rpc, -32601}}],
    _ = [ask(Method, Name, Client) || _ <- lists:seq(1, ?COUNT), {Method, Name, _} <- Kinds],
    #{methods := Methods, tools := Tools, prompts := Prompts, revision := Revision} = Figures =
        of_era(Era, figures(Way, Server)),
    {Way, Era} = {Way, erlmcp_revision:era(Revision)},
    lists:foreach(fun(Method) ->
        Name = case Method of ~"no/method" -> ~"_OTHER"; _ -> Method end,
        Expected = lists:sort(lists:append([lists:duplicate(?COUNT, Outcome)
                                            || {Is, _, Outcome} <- Kinds, Is =:= Method])),
        {Way, Era, Method, Expected} = {Way, Era, Method, outcomes(map_get(Name, Methods))}
    end, lists:usort([Method || {Method, _, _} <- Kinds])),
    %% A name that the server does not have is no tool's.
    [{~"crashes", [{rpc, -32603}]}, {~"echo", [ok]}, {~"fails", [tool_error]}] =
        [{Name, lists:usort(outcomes(Tool))} || #{name := Name, count := ?COUNT} = Tool <- Tools],
    [{~"greet", [ok]}] =
        [{Name, lists:usort(outcomes(Prompt))} || #{name := Name} = Prompt <- Prompts],
    %% Both sides have counted the same, with the requests of the negotiation.
    Expected = counts(case Way of
        stdio -> [];
        _ -> [erlmcp:metrics(Pid)]
    end),
    {Way, Era, Expected} = {Way, Era, case Way of stdio -> #{}; _ -> counts([Figures]) end},
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

%% The outcomes of requests, one for each.
outcomes(#{latency := #{count := Answered}, failures := Failures, count := Count}) ->
    Failed = [{Count1, case Code of none -> Error; _ -> {Error, Code} end}
              || #{error := Error, code := Code, latency := #{count := Count1}} <- Failures],
    All = lists:append([lists:duplicate(Number, Outcome)
                        || {Number, Outcome} <- [{Answered, ok} | Failed]]),
    Count = length(All),
    lists:sort(All).

counts(All) ->
    lists:foldl(fun(#{methods := Methods}, Sums) ->
        maps:merge_with(fun(_, One, Other) -> One + Other end, Sums,
                        #{Method => Count || Method := #{count := Count} <- Methods})
    end, #{}, All).

of_era(Era, All) ->
    [Figures] = [Figures || #{revision := Revision} = Figures <- All, Revision =/= none,
                            erlmcp_revision:era(Revision) =:= Era],
    Figures.

definitions() ->
    #{tools => [#{name => ~"echo", handler => fun(_, _) -> ~"hello" end},
                #{name => ~"fails", handler => fun(_, _) -> {error, ~"no"} end},
                #{name => ~"crashes", handler => fun(_, _) -> error(planted) end},
                #{name => ~"wait", handler => fun wait/2},
                #{name => ~"silent", handler => fun(_, _) -> receive never -> ~"" end end}],
      prompts => [#{name => ~"greet", arguments => [#{name => ~"who"}],
                    complete => #{~"who" => [~"me", ~"you"]}, handler => fun(_, _) -> ~"hi" end}],
      resources => [#{uri => ~"a://plain", name => ~"a", handler => fun(_, _) -> ~"text" end}]}.

%% Tells the case that it waits.
wait(_, _) ->
    _ = [Case ! {waits, self()} || Case <- [whereis(?MODULE)], is_pid(Case)],
    receive go -> ~"done" end.

server() ->
    erlmcp_test_http:start((definitions())#{
        id => ~"upstream", listen => [{http, #{sse => #{}}}, {tcp, #{port => 0}}]}).

%% The server on stdio is a node of its own.
serve() ->
    {ok, _} = application:ensure_all_started(erlmcp),
    spawn(fun() ->
        {ok, _} = erlmcp:start_server((definitions())#{
            name => ~"stdio", version => ~"1.0.0", listen => [{stdio, #{}}]}),
        receive never -> ok end
    end).

client(Way, Era, Server) ->
    {ok, Client} = erlmcp_client:start_link(target(Way, Server, #{era => Era, cache => false})),
    Client.

target(http, #{url := Url}, Options) ->
    {http, Url, Options};
target(http2, #{url := Url}, Options) ->
    {http, Url, Options#{protocols => [http2]}};
target(sse, #{url := Url}, Options) ->
    {http, iolist_to_binary(string:replace(Url, ~"/mcp", ~"/sse")), Options#{transport => sse}};
target(tcp, #{pid := Pid}, Options) ->
    {tcp, {127, 0, 0, 1}, erlmcp_test_line:port(Pid), Options};
target(memory, _, Options) ->
    {server, ~"upstream", Options};
target(stdio, _, Options) ->
    Erl = list_to_binary(filename:join([code:root_dir(), "bin", "erl"])),
    Paths = [unicode:characters_to_binary(filename:absname(Path))
             || Path <- code:get_path(), Path =/= "."],
    {stdio, [Erl, ~"-noinput", ~"-pa"] ++ Paths ++ [~"-s", atom_to_binary(?MODULE), ~"serve"],
     Options}.

ask(~"tools/call", Name, Client) -> erlmcp_client:call_tool(Client, Name, #{});
ask(~"prompts/get", Name, Client) -> erlmcp_client:get_prompt(Client, Name, #{});
ask(~"resources/read", Uri, Client) -> erlmcp_client:read_resource(Client, Uri);
ask(~"completion/complete", Name, Client) ->
    erlmcp_client:complete(Client, {prompt, Name}, {~"who", ~"m"});
ask(~"tools/list", _, Client) -> erlmcp_client:list_tools(Client);
ask(Method, none, Client) -> erlmcp_client:request(Client, Method, #{}).

%% The figures of the clients of a server.
figures(memory, _) -> figures(~"upstream", none);
figures(stdio, _) -> figures(~"erl", none);
figures(tcp, #{pid := Pid}) -> figures(~"127.0.0.1", erlmcp_test_line:port(Pid));
figures(_, #{port := Port}) when is_integer(Port) -> figures(~"127.0.0.1", Port);
figures(Address, Port) ->
    [Figures || #{server := Is, port := Of} = Figures <- erlmcp_client:metrics(),
                {Is, Of} =:= {Address, Port}].

%% Pages, the negotiation, and the polls of a task are requests, too.
requests_of_the_client_itself_are_counted(_) ->
    Job = #{name => ~"job", task => required, handler => fun(_, _) -> ~"done" end},
    #{pid := Pid} = Server = erlmcp_test_http:start((definitions())#{
        tools => [Job | maps:get(tools, definitions())], page_size => 2}),
    Client = client(http, session, Server),
    {ok, _} = erlmcp_client:list_tools(Client),
    ok = erlmcp_client:stop(Client),
    {ok, Other} = erlmcp_client:start_link(target(http, Server, #{tasks => true})),
    {ok, _} = erlmcp_client:call_tool(Other, ~"job", #{}),
    ok = erlmcp_client:stop(Other),
    Requests = counts(figures(http, Server)),
    #{~"initialize" := 1, ~"tools/list" := 3, ~"server/discover" := 1, ~"tools/call" := 1,
      ~"tasks/get" := _} = Requests,
    Requests = maps:remove(~"_TASK", counts([erlmcp:metrics(Pid)])),
    ok = erlmcp_test_http:stop(Server).

subscriptions_are_counted(_) ->
    [begin
         Server = server(),
         Client = client(Way, Era, Server),
         {ok, Reference} = erlmcp_client:subscribe(Client, #{resources => [~"a://plain"]}),
         receive {erlmcp, Reference, subscribed} -> ok after ?WAIT -> error(late) end,
         Method = case Era of
             stateless -> ~"subscriptions/listen";
             session -> ~"resources/subscribe"
         end,
         #{methods := #{Method := Subscribed}} = of_era(Era, figures(Way, Server)),
         {Way, Era, [ok]} = {Way, Era, outcomes(Subscribed)},
         ok = erlmcp_client:unsubscribe(Client, Reference),
         ok = erlmcp_client:stop(Client),
         #{methods := #{Method := Subscribed}} = of_era(Era, figures(Way, Server)),
         ok = erlmcp_test_http:stop(Server)
     end || Way <- [http, tcp], Era <- [stateless, session]].

%% One end for each request, by the name of its reason.

failures_are_named(_) ->
    true = register(?MODULE, self()),
    [failed(Way, Era) || {Way, Era} <- ways(), Way =/= stdio],
    true = unregister(?MODULE).

failed(Way, Era) ->
    Server = server(),
    Client = client(Way, Era, Server),
    {ok, _} = erlmcp_client:server(Client),
    {error, {timeout, 50}} = erlmcp_client:call_tool(Client, ~"silent", #{}, #{timeout => 50}),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"wait", #{}}),
    waits(),
    ok = erlmcp_client:cancel(Client, Reference),
    receive {erlmcp, Reference, {error, cancelled}} -> ok after ?WAIT -> error(late) end,
    %% The caller ends.
    Caller = spawn(fun() -> erlmcp_client:call_tool(Client, ~"wait", #{}) end),
    waits(),
    exit(Caller, kill),
    Tools = fun() ->
        #{tools := Tools} = of_era(Era, figures(Way, Server)),
        #{Name => outcomes(Tool) || #{name := Name} = Tool <- Tools}
    end,
    await(fun() -> maps:get(~"wait", Tools(), []) =:= [cancelled, cancelled] end),
    {Way, Era, #{~"wait" := [_, _], ~"silent" := [timeout]}} = {Way, Era, Tools()},
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

waits() ->
    receive {waits, Pid} -> Pid after ?WAIT -> error(does_not_wait) end.

%% What no server of ours does.
lost_connections_are_counted(_) ->
    Tcp = fun(Does) ->
        #{port := Port} = Peer = erlmcp_test_peer:tcp(fun
            (#{~"method" := ~"server/discover"} = Message) -> [discovered(Message)];
            (#{~"method" := ~"tools/call"} = Message) -> Does(Message);
            (_) -> []
        end),
        {Peer, {tcp, {127, 0, 0, 1}, Port, #{era => stateless}}}
    end,
    Http = fun(Does) ->
        #{url := Url} = Peer = erlmcp_test_peer:http(fun
            (#{message := #{~"method" := ~"server/discover"} = Message}) ->
                {200, [], discovered(Message)};
            (#{message := Message}) ->
                Does(Message)
        end),
        {Peer, {http, Url, #{era => stateless}}}
    end,
    Answers = [{closed, Tcp(fun(_) -> [close] end)}, {closed, Http(fun(_) -> close end)},
               {http, Http(fun(_) -> {500, [], ~"no"} end)},
               {redirect, Http(fun(_) -> {302, [{~"location", ~"http://other/"}], ~""} end)},
               {unauthorized, Http(fun(_) -> {401, [], ~""} end)},
               {protocol, Http(fun(Message) -> {200, [], result(Message#{~"id" := 0}, #{})} end)},
               {{rpc, other}, Http(fun(Message) ->
                   {200, [], erlmcp_test_peer:error(Message, 77, #{})}
               end)}],
    [begin
         {ok, Client} = erlmcp_client:start_link(Target),
         {error, _} = erlmcp_client:call_tool(Client, ~"t", #{}),
         ok = erlmcp_client:stop(Client),
         [#{methods := #{~"tools/call" := Calls}}] = figures(~"127.0.0.1", Port),
         {Expected, [Expected]} = {Expected, lists:usort(outcomes(Calls))},
         ok = erlmcp_test_peer:stop(Peer)
     end || {Expected, {#{port := Port} = Peer, Target}} <- Answers].

discovered(Message) ->
    result(Message, #{resultType => complete, ttlMs => 0, cacheScope => public,
                      supportedVersions => [~"2026-07-28"], capabilities => #{tools => #{}}}).

%% The request with which a negotiation begins ends with its connection.
lost_negotiations_are_counted(_) ->
    #{port := Port} = Peer = erlmcp_test_peer:tcp(fun(_) -> [close] end),
    {ok, Client} = erlmcp_client:start_link({tcp, {127, 0, 0, 1}, Port, #{era => stateless}}),
    #{~"method" := ~"server/discover"} = erlmcp_test_peer:received(),
    await(fun() ->
        case figures(~"127.0.0.1", Port) of
            [#{methods := #{~"server/discover" := Discovered}} | _] ->
                lists:member(closed, outcomes(Discovered));
            _ -> false
        end
    end),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer),
    %% Of a client that stops.
    #{url := Url, port := Other} = Silent = erlmcp_test_peer:http(fun(_) -> silence end),
    {ok, Waits} = erlmcp_client:start_link({http, Url, #{era => stateless}}),
    #{~"method" := ~"server/discover"} = erlmcp_test_peer:received(~"server/discover"),
    ok = erlmcp_client:stop(Waits),
    [#{methods := #{~"server/discover" := #{count := 1} = Stopped}}] =
        figures(~"127.0.0.1", Other),
    [stopped] = outcomes(Stopped),
    ok = erlmcp_test_peer:stop(Silent).

unsent_requests_are_counted(_) ->
    Nobody = erlmcp_test_port:unused(),
    {ok, Client} = erlmcp_client:start_link(
        {http, <<"http://127.0.0.1:", (integer_to_binary(Nobody))/binary, "/mcp">>, #{}}),
    {error, {connect, _}} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    {error, {connect, _}} = erlmcp_client:ping(Client),
    ok = erlmcp_client:stop(Client),
    %% A stopped client is not known any more, so nothing is counted.
    {error, stopped} = erlmcp_client:ping(Client),
    [#{revision := none, methods := Unsent, tools := [#{name := ~"echo", refusals := 1}]}] =
        [Figures || #{revision := none} = Figures <- figures(~"127.0.0.1", Nobody)],
    #{~"tools/call" := Calls, ~"ping" := Pings} = Unsent,
    2 = map_size(Unsent),
    [connect] = outcomes(Calls),
    [connect] = outcomes(Pings),
    %% The client's own limit.
    true = register(?MODULE, self()),
    Server = server(),
    {ok, Small} = erlmcp_client:start_link(target(http, Server, #{calls => 1})),
    {ok, Reference} = erlmcp_client:async(Small, {call_tool, ~"wait", #{}}),
    Handler = waits(),
    {error, {overload, 1}} = erlmcp_client:call_tool(Small, ~"echo", #{}),
    Handler ! go,
    receive {erlmcp, Reference, {ok, _}} -> ok after ?WAIT -> error(late) end,
    [#{methods := #{~"tools/call" := Refused}}] =
        [Figures || #{revision := none} = Figures <- figures(http, Server)],
    [overload] = outcomes(Refused),
    ok = erlmcp_client:stop(Small),
    true = unregister(?MODULE),
    ok = erlmcp_test_http:stop(Server).

pools_are_counted_by_their_servers(_) ->
    One = server(),
    Other = erlmcp_test_http:start(definitions()),
    {ok, Pool} = erlmcp_pool:start_link(#{targets => [target(http, Server, #{})
                                                      || Server <- [One, Other]], size => 2}),
    [{ok, _} = erlmcp_client:call_tool(Pool, ~"echo", #{}, #{key => Key})
     || Key <- lists:seq(1, 40)],
    [First, Second] = [begin
        #{methods := #{~"tools/call" := #{count := Count}}} =
            of_era(stateless, figures(http, Server)),
        await(fun() ->
            #{clients := Clients} = of_era(stateless, figures(http, Server)),
            Clients =:= 2
        end),
        Count
    end || Server <- [One, Other]],
    40 = First + Second,
    true = First > 0 andalso Second > 0,
    ok = erlmcp_pool:stop(Pool),
    [ok = erlmcp_test_http:stop(Server) || Server <- [One, Other]],
    %% Each try is a request, and a refusal by all breakers is one.
    Port = erlmcp_test_port:unused(),
    Url = <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/mcp">>,
    {ok, Broken} = erlmcp_pool:start_link(#{targets => [{http, Url, #{}}], size => 2,
                                            failures => 1, retries => 1, open_ms => 60_000,
                                            longest_open_ms => 60_000}),
    {error, {connect, _}} = erlmcp_client:call_tool(Broken, ~"echo", #{}),
    {error, {unavailable, _}} = erlmcp_client:call_tool(Broken, ~"echo", #{}),
    [#{methods := #{~"tools/call" := Calls}}] =
        [Figures || #{revision := none} = Figures <- figures(~"127.0.0.1", Port)],
    [connect, connect, unavailable] = outcomes(Calls),
    ok = erlmcp_pool:stop(Broken).

%% The process of a call may crash, be killed, or end with its client.
ended_calls_are_counted(_) ->
    true = register(?MODULE, self()),
    Progress = #{name => ~"progress", handler => fun(_, Context) ->
        ok = erlmcp:progress(Context, 1, #{}),
        receive never -> ~"" end
    end},
    Large = #{name => ~"large", handler => fun(_, _) ->
        #{~"numbers" => lists:seq(1, 100_000)}
    end},
    Server = erlmcp_test_http:start(#{tools => [Progress, Large | maps:get(tools, definitions())]}),
    {ok, Client} = erlmcp_client:start_link(
        target(http, Server, #{limits => #{call_heap_bytes => 1_000_000}})),
    {error, {crashed, _}} = erlmcp_client:call_tool(Client, ~"progress", #{}, #{
        progress => fun(_) -> exit(planted) end}),
    {error, {too_large, heap}} = erlmcp_client:call_tool(Client, ~"large", #{}),
    {ok, Reference} = erlmcp_client:async(Client, {call_tool, ~"wait", #{}}),
    waits(),
    Calls = fun() ->
        [Calls || #{methods := #{~"tools/call" := Calls}} <- figures(http, Server)]
    end,
    %% A killed call is found within a second.
    await(fun() -> [too_large || #{failures := Failures} <- Calls(),
                                 #{error := too_large} <- Failures] =/= [] end),
    ok = erlmcp_client:stop(Client),
    receive {erlmcp, Reference, {error, stopped}} -> ok after ?WAIT -> error(late) end,
    [Ended] = Calls(),
    [crashed, stopped, too_large] = outcomes(Ended),
    [~"large", ~"progress", ~"wait"] =
        lists:sort([Name || #{tools := Tools} <- figures(http, Server), #{name := Name} <- Tools]),
    true = unregister(?MODULE),
    ok = erlmcp_test_http:stop(Server).

%% The messages are those of the server's side, whose own count is tested there.
bytes_are_those_of_messages(_) ->
    [begin
         #{pid := Pid} = Server = server(),
         Client = client(Way, Era, Server),
         {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{~"text" => ~"hello"}),
         {error, _} = erlmcp_client:call_tool(Client, ~"unknown", #{}),
         #{methods := #{~"tools/call" := #{bytes_out := Sent, bytes_in := Received}}} =
             of_era(Era, figures(Way, Server)),
         #{methods := #{~"tools/call" := #{bytes_in := Came, bytes_out := Went}}} =
             erlmcp:metrics(Pid),
         {Way, Era, Came, Went} = {Way, Era, Sent, Received},
         true = Sent > 100 andalso Received > 50,
         ok = erlmcp_client:stop(Client),
         ok = erlmcp_test_http:stop(Server)
     end || {Way, Era} <- ways(), Way =/= stdio].

sessions_are_counted(_) ->
    Server = server(),
    [begin
         Client = client(Way, session, Server),
         {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
         #{sessions := #{open := 1, opened := 1, ended := 0}} =
             of_era(session, figures(Way, Server)),
         ok = erlmcp_client:stop(Client),
         #{revision := '2025-11-25',
           sessions := #{open := 0, opened := 1, ended := 1,
                         duration := #{count := 1, sum_us := Lasted}}} =
             of_era(session, figures(Way, Server)),
         true = Lasted > 0,
         %% Of a client that dies.
         Again = client(Way, session, Server),
         {ok, _} = erlmcp_client:call_tool(Again, ~"echo", #{}),
         unlink(Again),
         exit(Again, kill),
         await(fun() ->
             #{sessions := #{ended := Ended}} = of_era(session, figures(Way, Server)),
             Ended =:= 2
         end)
     end || Way <- [http, tcp]],
    Stateless = client(http, stateless, Server),
    {ok, _} = erlmcp_client:call_tool(Stateless, ~"echo", #{}),
    #{sessions := #{opened := 0}} = of_era(stateless, figures(http, Server)),
    ok = erlmcp_client:stop(Stateless),
    ok = erlmcp_test_http:stop(Server).

what_runs_is_shown(_) ->
    true = register(?MODULE, self()),
    Server = server(),
    [begin
         {ok, Client} = erlmcp_client:start_link(
             target(Way, Server, maps:merge(#{era => stateless}, Options))),
         {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
         References = [element(2, {ok, _} = erlmcp_client:async(Client, {call_tool, ~"wait", #{}}))
                       || _ <- [1, 2, 3]],
         Handlers = [waits() || _ <- lists:seq(1, Runs)],
         #{clients := 1, calls := 3, connections := Connections} =
             of_era(stateless, figures(Way, Server)),
         await(fun() ->
             #{waiting := Waiting} = of_era(stateless, figures(Way, Server)),
             Waiting =:= 3 - Runs
         end),
         [Handler ! go || Handler <- Handlers],
         [waits() ! go || _ <- lists:seq(Runs + 1, 3)],
         [receive {erlmcp, Reference, {ok, _}} -> ok after ?WAIT -> error(late) end
          || Reference <- References],
         ok = erlmcp_client:stop(Client),
         #{clients := 0, calls := 0, connections := 0, waiting := 0} =
             of_era(stateless, figures(Way, Server))
     end || {Way, Options, Runs, Connections} <- [{http, #{connections => 2}, 2, 2},
                                                  {tcp, #{}, 3, 1}]],
    true = unregister(?MODULE),
    ok = erlmcp_test_http:stop(Server).

servers_are_bounded(_) ->
    Ids = [<<"bounded_", (integer_to_binary(Number))/binary>> || Number <- lists:seq(1, 22)],
    Servers = [element(2, {ok, _} = erlmcp:start_server((definitions())#{
                   id => Id, name => Id, version => ~"1.0.0"})) || Id <- Ids],
    Clients = [begin
                   {ok, Client} = erlmcp_client:start_link({server, Id, #{era => stateless}}),
                   {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
                   Client
               end || Id <- Ids],
    Metrics = erlmcp_client:metrics(),
    21 = length(Metrics),
    [#{methods := #{~"tools/call" := #{count := 2}}, clients := 2, port := none}] =
        [Figures || #{server := other} = Figures <- Metrics],
    %% A server without clients gives its place to another one, and its figures end.
    ok = erlmcp_client:stop(hd(Clients)),
    await(fun() -> [Id || #{server := Id, clients := 0} <- erlmcp_client:metrics()] =:= [hd(Ids)]
          end),
    {ok, Next} = erlmcp_client:start_link({server, lists:last(Ids), #{era => stateless}}),
    {error, _} = erlmcp_client:call_tool(Next, ~"unknown", #{}),
    After = erlmcp_client:metrics(),
    [] = [Figures || #{server := Id} = Figures <- After, Id =:= hd(Ids)],
    [[{rpc, -32602}]] = [outcomes(Calls) || #{server := Id, methods := #{~"tools/call" := Calls}}
                                                <- After, Id =:= lists:last(Ids)],
    [2] = [Count || #{server := other, tools := [#{name := ~"echo", count := Count}]} <- After],
    [ok = erlmcp_client:stop(Client) || Client <- [Next | tl(Clients)]],
    [ok = erlmcp:stop_server(Server) || Server <- Servers].

names_are_bounded(_) ->
    Tools = [#{name => <<"tool_", (integer_to_binary(Number))/binary>>,
               handler => fun(_, _) -> ~"hello" end} || Number <- lists:seq(1, 203)],
    Server = erlmcp_test_http:start(#{tools => Tools}),
    Client = client(http, stateless, Server),
    [{ok, _} = erlmcp_client:call_tool(Client, Name, #{}) || #{name := Name} <- Tools],
    #{tools := Named, methods := #{~"tools/call" := #{count := 203}}} =
        of_era(stateless, figures(http, Server)),
    201 = length(Named),
    [3] = [Count || #{name := other, count := Count} <- Named],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

%% A name comes from the caller, who may have it from a model.
strange_names_are_no_labels(_) ->
    Server = erlmcp_test_http:start(#{tools => [#{name => ~"echo",
                                                  handler => fun(_, _) -> ~"hello" end}]}),
    Client = client(http, stateless, Server),
    {ok, _} = erlmcp_client:call_tool(Client, ~"echo", #{}),
    [{error, _} = erlmcp_client:call_tool(Client, Name, #{}, Options)
     || {Name, Options} <- [{~"made_up", #{}}, {binary:copy(~"x", 300), #{timeout => 1}},
                            {<<255, 254>>, #{}}]],
    [other, ~"echo"] = [Name || #{tools := Tools} <- figures(http, Server),
                                #{name := Name} <- Tools],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_http:stop(Server).

%% Those of more kinds than there are slots count together, beside those of a kind that has the same
%% labels and a slot of its own.
failures_without_slots_are_kept(_) ->
    Fail = fun(Kind, Method) ->
        Began = erlang:monotonic_time(nanosecond),
        ok = erlmcp_client_meter:ended({Method, #{}}, Kind, {Began, 1, 1}, {error, closed})
    end,
    Unknown = {{0, none}, ~"no/method"},
    Kinds = [{{Server, Revision}, Method} || Server <- lists:seq(0, 20),
                                             Revision <- [none | erlmcp_revision:all()],
                                             Method <- [~"ping", ~"tools/list", ~"tasks/get",
                                                        ~"prompts/list", ~"initialize"]],
    Count = fun() ->
        lists:sum([Count || #{methods := Methods} <- erlmcp_client:metrics(),
                            _ := #{refusals := Count} <- Methods])
    end,
    lists:foldl(fun({Kind, Method}, Before) ->
        ok = Fail(Kind, Method),
        Expected = Before + 1,
        {Kind, Method, Expected} = {Kind, Method, Count()},
        Expected
    end, 0, [Unknown | Kinds]).

%% A server may answer with any codes. Many of them count as one, and those of other servers do not.
a_server_takes_no_places_from_others(_) ->
    Asked = counters:new(1, []),
    #{port := Port} = Peer = erlmcp_test_peer:tcp(fun
        (#{~"method" := ~"server/discover"} = Message) ->
            [discovered(Message)];
        (Message) ->
            Code = 1001 + counters:get(Asked, 1) rem 89,
            ok = counters:add(Asked, 1, 1),
            [erlmcp_test_peer:error(Message, Code, #{})]
    end),
    {ok, Bad} = erlmcp_client:start_link({tcp, {127, 0, 0, 1}, Port, #{era => stateless}}),
    Argument = #{ref => #{type => ~"ref/prompt", name => ~"p"},
                 argument => #{name => ~"a", value => ~""}},
    Requests = [{~"tools/list", #{}}, {~"prompts/list", #{}}, {~"resources/list", #{}},
                {~"resources/templates/list", #{}}, {~"resources/read", #{uri => ~"a://b"}},
                {~"completion/complete", Argument}],
    Codes = lists:seq(1001, 1089),
    [{error, {rpc, #{code := Code}}} = erlmcp_client:request(Bad, Method, Params)
     || {Method, Params} <- Requests, Code <- Codes],
    Server = server(),
    Client = client(http, stateless, Server),
    {error, _} = erlmcp_client:call_tool(Client, ~"crashes", #{}),
    {error, _} = erlmcp_client:request(Client, ~"no/method", #{}),
    #{methods := #{~"tools/call" := Calls, ~"_OTHER" := Others}} =
        of_era(stateless, figures(http, Server)),
    {[{rpc, -32603}], [{rpc, -32601}]} = {outcomes(Calls), outcomes(Others)},
    %% None of the bad ones is lost, and some still have their codes.
    #{methods := Counted} = of_era(stateless, figures(~"127.0.0.1", Port)),
    [First, _, _, _, _, Last] =
        [Outcomes || {Method, _} <- Requests, Outcomes <- [outcomes(map_get(Method, Counted))],
                     length(Outcomes) =:= 89],
    First = [{rpc, Code} || Code <- Codes],
    [{rpc, other}] = lists:usort(Last),
    ok = erlmcp_client:stop(Bad),
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_test_peer:stop(Peer),
    ok = erlmcp_test_http:stop(Server).

await(Condition) ->
    case Condition() of
        true -> ok;
        false ->
            receive after 5 -> ok end,
            await(Condition)
    end.

there_are_none_without_the_application(_) ->
    ok = application:stop(erlmcp),
    try
        [] = erlmcp_client:metrics()
    after
        ok = application:start(erlmcp)
    end.
