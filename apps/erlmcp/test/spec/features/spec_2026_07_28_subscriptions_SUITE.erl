-module(spec_2026_07_28_subscriptions_SUITE).
-moduledoc "Specification 2026-07-28, \"Subscriptions\", over HTTP, TCP and HTTP+SSE.".

-export([suite/0, all/0, groups/0]).
-export([init_per_suite/1, end_per_suite/1, init_per_group/2, end_per_group/2,
         init_per_testcase/2, end_per_testcase/2]).
-export([acknowledgment_comes_first/1, acknowledgment_says_what_is_honoured/1,
         acknowledgment_comes_before_a_change/1, only_what_was_asked_for_is_told/1,
         nothing_is_told_unasked/1, resources_are_told_by_uri/1, uris_are_any_text/1,
         subscriptions_are_told_apart/1, requests_are_served_beside/1]).
-export([cancelled_is_not_told/1, closed_is_forgotten/1, id_is_used_once_at_a_time/1,
         stop_ends_gracefully/1, stop_sends_cancelled/1, stop_is_told_however_busy/1]).
-export([wrong_filters_are_refused/1, subscriptions_are_bounded/1,
         subscriptions_of_one_are_bounded/1, uris_are_bounded/1,
         json_alone_is_no_stream/1, sessions_have_other_ways/1, who_does_not_read_delays_nobody/1,
         a_burst_of_changes_is_told/1]).
-export([many_streams_of_a_connection/1, reset_of_a_stream_is_forgotten/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [open/3, status/1, ask/3, ask/4, listen/3, listen/4, told/1, cancel/2,
                             subscribers/1, forgotten/1]).

-define(REVISION, ~"2026-07-28").
-define(TIMEOUT, 30_000).
-define(META, ~"io.modelcontextprotocol/subscriptionId").
-define(TOOLS, ~"notifications/tools/list_changed").
-define(PROMPTS, ~"notifications/prompts/list_changed").
-define(RESOURCES, ~"notifications/resources/list_changed").
-define(UPDATED, ~"notifications/resources/updated").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}, {group, sse}, {group, http2}].

groups() ->
    Http2 = [many_streams_of_a_connection, reset_of_a_stream_is_forgotten],
    Cases = erlmcp_test_suite:cases(?MODULE) -- Http2,
    Http = [json_alone_is_no_stream],
    Tcp = [cancelled_is_not_told, id_is_used_once_at_a_time, stop_is_told_however_busy],
    [{http, Cases -- Tcp}, {tcp, Cases -- Http},
     %% Who does not read: see http_sse_bounds_SUITE.
     {sse, Cases -- [who_does_not_read_delays_nobody, stop_is_told_however_busy | Http]},
     {http2, Http2}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

start(Limits) ->
    Read = fun(_, _) -> ~"text" end,
    erlmcp_test_client:start(#{limits => Limits,
                               resources => [#{uri => Uri, name => Uri, handler => Read}
                                             || Uri <- strange_uris()],
                               resource_templates => [#{uri_template => ~"test://{+any}",
                                                        name => ~"any", handler => Read}],
                               tools => [#{name => ~"echo",
                                           handler => fun(#{~"text" := Text}, _) -> Text end}]}).

%% A URI is whatever text a definition has.
strange_uris() ->
    [~"@subscription@", ~"\"@subscription@\"", ~"test://\x{20ac}/\x{1f600}", ~"a\\\"b\n",
     ~"file:///a%20b?c=d#e", binary:copy(~"x", 5000)].

client(Config) ->
    open(server(Config), transport(Config), ?REVISION).

%% What can change, and what is told then.
change(tool, Config) -> add(tool, #{name => unique()}, Config);
change(prompt, Config) -> add(prompt, #{name => unique()}, Config);
change(resource, Config) -> add(resource, #{uri => unique(), name => ~"n"}, Config);
change(resource_template, Config) ->
    add(resource_template, #{uri_template => unique(), name => ~"n"}, Config);
change(Uri, Config) ->
    #{pid := Pid} = server(Config),
    ok = erlmcp:resource_updated(Pid, Uri).

add(Kind, Definition, Config) ->
    #{pid := Pid} = server(Config),
    ok = erlmcp:add(Pid, Kind, Definition#{handler => fun(_, _) -> ~"new" end}).

unique() ->
    <<"test://new/", (integer_to_binary(erlang:unique_integer([positive])))/binary>>.

lists_of() ->
    [{tool, toolsListChanged, ?TOOLS}, {prompt, promptsListChanged, ?PROMPTS},
     {resource, resourcesListChanged, ?RESOURCES}].

%% "The server MUST send notifications/subscriptions/acknowledged as the first message carrying the
%% subscription's ID in _meta"; "The value is the JSON-RPC ID of the subscriptions/listen request."
acknowledgment_comes_first(Config) ->
    [begin
         Client = client(Config),
         Exchange = listen(Client, Id, #{toolsListChanged => true}),
         200 = status(Exchange),
         change(tool, Config),
         {Id, ?TOOLS, Params} = told(Exchange),
         0 = map_size(Params),
         erlmcp_test_client:close(Client, Exchange)
     end || Id <- [1, 0, -7, 1 bsl 60, ~"1", ~"", ~"\"\\\n\x{20ac}", ~"@subscription@"]].

%% "The notifications field in the acknowledgment reflects the subset the server agreed to honor.
%% Notification types the server does not support are omitted."
acknowledgment_says_what_is_honoured(Config) ->
    Client = client(Config),
    Uris = [~"test://a", ~"test://b"],
    All = #{toolsListChanged => true, promptsListChanged => true, resourcesListChanged => true,
            resourceSubscriptions => Uris},
    [listen(Client, Id, Filter, Honoured)
     || {Id, Filter, Honoured} <-
            [{1, #{}, #{}}, {2, #{toolsListChanged => false}, #{}},
             {3, #{resourceSubscriptions => []}, #{}},
             %% What no resource is can not be watched: it is left out, as a type is.
             {6, #{resourceSubscriptions => [~"none://a", ~"test://a", ~"none://b"]},
              #{~"resourceSubscriptions" => [~"test://a"]}},
             {7, #{resourceSubscriptions => [~"none://a"]}, #{}},
             {4, #{~"com.example/other" => true, promptsListChanged => true},
              #{~"promptsListChanged" => true}},
             {5, All, #{~"toolsListChanged" => true, ~"promptsListChanged" => true,
                        ~"resourcesListChanged" => true, ~"resourceSubscriptions" => Uris}}]].

%% "and MUST NOT send any notification on the subscription before it", while everything changes too.
acknowledgment_comes_before_a_change(Config) ->
    Uri = ~"test://busy",
    Changing = spawn_link(fun() -> keep_changing(Uri, Config) end),
    [begin
         Client = client(Config),
         Exchange = listen(Client, Id, #{resourceSubscriptions => [Uri]}),
         {Id, ?UPDATED, #{~"uri" := Uri}} = told(Exchange),
         erlmcp_test_client:close(Client, Exchange)
     end || Id <- lists:seq(1, 50)],
    unlink(Changing),
    exit(Changing, kill).

keep_changing(Uri, Config) ->
    change(Uri, Config),
    erlang:yield(),
    keep_changing(Uri, Config).

%% "The server MUST NOT send notification types the client has not explicitly requested."
only_what_was_asked_for_is_told(Config) ->
    Changes = [tool, prompt, resource, resource_template, ~"test://a", ~"test://b"],
    Last = ~"test://last",
    [begin
         Client = client(Config),
         Filter = maps:from_list([{Field, true} || {_, Field, _} <- Lists]),
         Exchange = listen(Client, 1, Filter#{resourceSubscriptions => [Last | Uris]}),
         %% One after the other: of two changes of a list that are not sent yet one is told.
         [begin
              change(What, Config),
              Asked = [{1, Method, #{}} || {Kind, _, Method} <- Lists,
                                           Kind =:= What orelse
                                               {Kind, What} =:= {resource, resource_template}]
                  ++ [{1, ?UPDATED, #{~"uri" => Uri}} || Uri <- Uris ++ [Last], Uri =:= What],
              Asked = [told(Exchange) || _ <- Asked]
          end || What <- Changes ++ [Last]],
         erlmcp_test_client:close(Client, Exchange)
     end || Lists <- subsets(lists_of()), Uris <- subsets([~"test://a", ~"test://b"])].

subsets([]) -> [[]];
subsets([First | Rest]) ->
    [Subset || Others <- subsets(Rest), Subset <- [Others, [First | Others]]].

nothing_is_told_unasked(Config) ->
    Client = client(Config),
    Exchange = listen(Client, 1, #{}),
    #{~"result" := #{}} = ask(Client, ~"tools/list", #{}),
    [change(What, Config) || What <- [tool, prompt, resource, ~"test://a"]],
    Last = listen(Client, 2, #{resourceSubscriptions => [~"test://last"]}),
    change(~"test://last", Config),
    {2, ?UPDATED, _} = told(Last),
    %% On HTTP the empty one has a stream of its own, which its server's end closes.
    erlmcp_test_client:close(Client, Exchange).

%% "Receive notifications/resources/updated for these resource URIs": those, and each once.
resources_are_told_by_uri(Config) ->
    Client = client(Config),
    [A, B] = [~"test://a", ~"test://b"],
    Twice = [A, B, A],
    Exchange = listen(Client, ~"s", #{resourceSubscriptions => Twice}),
    Others = [~"test://a/", ~"test://A", ~"test://", ~"", ~"test://c"],
    %% A change is told once if another comes before it is sent.
    [begin
         [change(Uri, Config) || Uri <- Others ++ Changed],
         Changed = [begin {~"s", ?UPDATED, #{~"uri" := Uri}} = told(Exchange), Uri end
                    || _ <- Changed]
     end || Changed <- [[A, B], [A]]],
    erlmcp_test_client:close(Client, Exchange).

uris_are_any_text(Config) ->
    Client = client(Config),
    {_, Socket} = Exchange = listen(Client, 1, #{resourceSubscriptions => strange_uris()}),
    %% Some are no URIs, and a server that says that they changed is at fault.
    ok = erlmcp_test_wire:unchecked(Socket),
    [begin
         change(Uri, Config),
         {1, ?UPDATED, #{~"uri" := Uri}} = told(Exchange)
     end || Uri <- strange_uris()].

%% "A client MAY have multiple active subscriptions concurrently"; "every notification on the stream
%% carries that ID".
subscriptions_are_told_apart(Config) ->
    Client = client(Config),
    Tools = listen(Client, 1, #{toolsListChanged => true}),
    Same = listen(Client, ~"1", #{toolsListChanged => true}),
    Uri = listen(Client, 3, #{resourceSubscriptions => [~"test://a"]}),
    change(~"test://a", Config),
    {3, ?UPDATED, #{~"uri" := ~"test://a"}} = told(Uri),
    change(tool, Config),
    [{1, ?TOOLS, _}, {~"1", ?TOOLS, _}] = lists:sort([told(Tools), told(Same)]),
    change(~"test://a", Config),
    {3, ?UPDATED, _} = told(Uri).

requests_are_served_beside(Config) ->
    Client = client(Config),
    Exchange = listen(Client, 1, #{toolsListChanged => true}),
    #{~"result" := #{~"content" := [#{~"text" := ~"beside"}]}} =
        ask(Client, 2, ~"tools/call", #{name => ~"echo", arguments => #{text => ~"beside"}}),
    change(tool, Config),
    {1, ?TOOLS, _} = told(Exchange).

%% "A subscription ends when the client cancels it": stdio by "notifications/cancelled referencing
%% the subscriptions/listen request ID". Receivers SHOULD "not send a response for the cancelled
%% request".
cancelled_is_not_told(Config) ->
    Client = client(Config),
    First = listen(Client, 1, #{toolsListChanged => true}),
    _ = listen(Client, ~"1", #{toolsListChanged => true}),
    ok = cancel(Client, 1),
    ok = cancel(Client, 2),
    #{~"result" := _} = ask(Client, 3, ~"prompts/list", #{}),
    change(tool, Config),
    {~"1", ?TOOLS, _} = told(First),
    ok = cancel(Client, ~"1"),
    #{~"result" := _} = ask(Client, 4, ~"prompts/list", #{}),
    [] = subscribers(server(Config)),
    change(tool, Config),
    #{~"result" := _} = ask(Client, 5, ~"prompts/list", #{}),
    %% Its id is free again.
    Again = listen(Client, 1, #{toolsListChanged => true}),
    change(tool, Config),
    {1, ?TOOLS, _} = told(Again).

%% "close the SSE stream (HTTP)"; "The underlying transport closes".
closed_is_forgotten(Config) ->
    Client = client(Config),
    Filter = #{toolsListChanged => true, resourceSubscriptions => [~"test://a", ~"test://b"]},
    Exchange = listen(Client, 1, Filter),
    Other = client(Config),
    Beside = listen(Other, 1, #{toolsListChanged => true}),
    4 = length(subscribers(server(Config))),
    [{_, Owner}] = [Row || {{uri, ~"test://a"}, _} = Row <- subscribers(server(Config))],
    erlmcp_test_client:close(Client, Exchange),
    _ = erlmcp_test_http:ended(Owner),
    change(tool, Config),
    {1, ?TOOLS, _} = told(Beside),
    [{tool, _}] = subscribers(server(Config)),
    erlmcp_test_client:close(Other, Beside),
    forgotten(server(Config)).

%% The id tells the subscriptions of a channel apart.
id_is_used_once_at_a_time(Config) ->
    Client = client(Config),
    Exchange = listen(Client, 1, #{toolsListChanged => true}),
    #{~"error" := #{~"code" := -32600}} =
        ask(Client, 1, ~"subscriptions/listen", #{notifications => #{promptsListChanged => true}}),
    [change(What, Config) || What <- [prompt, tool]],
    {1, ?TOOLS, _} = told(Exchange).

%% "The server tears it down (e.g., during shutdown) — it SHOULD send a successful
%% subscriptions/listen response to signal a graceful end, then close the stream." "the response
%% carries io.modelcontextprotocol/subscriptionId in _meta".
stop_ends_gracefully(Config) ->
    Messages = stopped(Config),
    [#{~"resultType" := ~"complete",
       ~"_meta" := #{?META := ~"s", ~"io.modelcontextprotocol/serverInfo" := #{}}} = Result] =
        [Result || #{~"id" := ~"s", ~"result" := Result} <- Messages],
    2 = map_size(Result).

%% Cancellation: "A server MUST send notifications/cancelled referencing a subscriptions/listen
%% request ID when it tears down that subscription stream". "All notifications delivered on the
%% stream carry io.modelcontextprotocol/subscriptionId in _meta".
stop_sends_cancelled(Config) ->
    [#{~"_meta" := #{?META := ~"s"}}] =
        [Params || #{~"method" := ~"notifications/cancelled",
                     ~"params" := #{~"requestId" := ~"s"} = Params} <- stopped(Config)],
    ok.

%% Also where the process of a connection comes to it late, and has been told to end meanwhile.
stop_is_told_however_busy(Config) ->
    #{pid := Pid} = server(Config),
    {tcp, Socket} = Exchange = listen(client(Config), ~"s", #{toolsListChanged => true}),
    [{_, Owner}] = subscribers(server(Config)),
    true = unlink(Pid),
    true = erlang:suspend_process(Owner),
    {_, Stopping} = spawn_monitor(fun() -> ok = erlmcp:stop_server(Pid) end),
    ok = erlmcp_test_servers:await_messages(2, Owner),
    true = erlang:resume_process(Owner),
    [_] = [Result || #{~"id" := ~"s", ~"result" := Result} <- until_over(Exchange)],
    gen_tcp:close(Socket),
    receive
        {'DOWN', Stopping, process, _, normal} -> ok
    after ?TIMEOUT ->
        error(not_stopped)
    end.

%% All that a subscriber is sent while its server stops.
stopped(Config) ->
    #{pid := Pid} = server(Config),
    Client = client(Config),
    Exchange = listen(Client, ~"s", #{toolsListChanged => true}),
    ok = erlmcp:stop_server(Pid),
    Messages = until_over(Exchange),
    erlmcp_test_client:close(Client, Exchange),
    Messages.

until_over({sse, _} = Exchange) ->
    case erlmcp_test_client:next(Exchange) of
        fin -> [];
        Message -> [Message | until_over(Exchange)]
    end;
until_over({tcp, Socket} = Exchange) ->
    case erlmcp_test_line:recv_line(Socket, ?TIMEOUT) of
        {ok, Line} -> [json:decode(Line) | until_over(Exchange)];
        {error, closed} -> []
    end;
until_over({http, Socket}) ->
    Bytes = until_closed(Socket),
    %% The stream has an end, and is not cut off.
    {match, _} = re:run(Bytes, ~"\r\n0\r\n\r\n$"),
    {match, Events} = re:run(Bytes, ~"data: (.*)\n\n", [global, {capture, [1], binary}]),
    [json:decode(Event) || [Event] <- Events].

until_closed(Socket) ->
    case gen_tcp:recv(Socket, 0, ?TIMEOUT) of
        {ok, Bytes} -> <<Bytes/binary, (until_closed(Socket))/binary>>;
        {error, closed} -> <<>>
    end.

wrong_filters_are_refused(Config) ->
    Client = client(Config),
    [#{~"error" := #{~"code" := -32602}} =
         ask(Client, 1, ~"subscriptions/listen", #{notifications => Bad})
     || Bad <- [null, [], 1, ~"tools", true]
            ++ [#{Field => Value} || Field <- [toolsListChanged, promptsListChanged,
                                               resourcesListChanged],
                                     Value <- [null, 1, ~"true", [], #{}]]
            ++ [#{resourceSubscriptions => Value}
                || Value <- [null, ~"test://a", #{}, [1], [null], [[~"test://a"]], [~"a", true]]]],
    %% It is required.
    #{~"error" := #{~"code" := -32602}} = ask(Client, 1, ~"subscriptions/listen", #{}),
    [] = subscribers(server(Config)),
    listen(Client, 1, #{}).

uris(From, To) ->
    [<<"test://", (integer_to_binary(N))/binary>> || N <- lists:seq(From, To)].

%% At the limit, and one more.
subscriptions_are_bounded(Config) ->
    Server = start(#{subscriptions => 3}),
    Client = open(Server, transport(Config), ?REVISION),
    Over = #{notifications => #{resourceSubscriptions => uris(1, 4)}},
    #{~"error" := #{~"code" := 1060, ~"data" := #{~"limit" := 3, ~"observed" := 4}}} =
        ask(Client, 1, ~"subscriptions/listen", Over),
    [] = subscribers(Server),
    Exchange = listen(Client, 1, #{resourceSubscriptions => uris(1, 3)}),
    ok = erlmcp:resource_updated(maps:get(pid, Server), ~"test://3"),
    {1, ?UPDATED, _} = told(Exchange),
    case transport(Config) of
        http ->
            ok;
        _ ->
            %% Of the connection, and until they are cancelled.
            One = #{notifications => #{resourceSubscriptions => uris(4, 4)}},
            #{~"error" := #{~"code" := 1060}} = ask(Client, 2, ~"subscriptions/listen", One),
            ok = cancel(Client, 1),
            listen(Client, 2, #{resourceSubscriptions => uris(4, 6)})
    end,
    erlmcp_test_client:stop(Server).

%% Of one client, whichever way it comes: by connections and streams of its own, and by a session.
subscriptions_of_one_are_bounded(Config) ->
    Server = start(#{subscriptions_per_principal => 5}),
    Open = fun() -> open(Server, transport(Config), ?REVISION) end,
    First = Open(),
    _ = listen(First, 1, #{resourceSubscriptions => uris(1, 3), toolsListChanged => true}),
    [Owner | _] = [Pid || {{uri, _}, Pid} <- subscribers(Server)],
    Over = #{notifications => #{resourceSubscriptions => uris(1, 3)}},
    #{~"error" := #{~"code" := 1060, ~"data" := #{~"limit" := 5, ~"observed" := 6}}} =
        ask(Open(), 2, ~"subscriptions/listen", Over),
    %% A URI that is named twice is one; lists are none.
    _ = listen(Open(), 3, #{resourceSubscriptions => uris(1, 1) ++ uris(1, 1),
                            promptsListChanged => true}),
    Session = erlmcp_test_client:open(Server, transport(Config), ~"2025-11-25"),
    Watch = fun(N) -> ask(Session, N, ~"resources/subscribe", #{uri => hd(uris(N, N))}) end,
    [#{~"result" := _}, #{~"result" := _}] = [Watch(5), Watch(5)],
    #{~"error" := #{~"code" := 1060, ~"data" := #{~"limit" := 5, ~"observed" := 6}}} = Watch(6),
    %% What is over makes room, and what was killed when a change is told.
    #{~"result" := _} = ask(Session, 7, ~"resources/unsubscribe", #{uri => hd(uris(5, 5))}),
    #{~"result" := _} = Watch(6),
    exit(Owner, kill),
    _ = erlmcp_test_http:ended(Owner),
    [ok = erlmcp:resource_updated(maps:get(pid, Server), Uri) || Uri <- uris(1, 3)],
    _ = listen(Open(), 4, #{resourceSubscriptions => uris(11, 13)}),
    #{~"error" := #{~"code" := 1060}} = ask(Open(), 5, ~"subscriptions/listen", Over),
    erlmcp_test_client:stop(Server).

uris_are_bounded(Config) ->
    Server = start(#{subscriptions => 5000}),
    Client = open(Server, transport(Config), ?REVISION),
    listen(Client, 1, #{resourceSubscriptions => uris(1, 1000)}),
    1000 = length(subscribers(Server)),
    #{~"error" := #{~"code" := -32602, ~"data" := #{~"limit" := 1000, ~"observed" := 1001}}} =
        ask(Client, 2, ~"subscriptions/listen",
            #{notifications => #{resourceSubscriptions => uris(1, 1001)}}),
    erlmcp_test_client:stop(Server).

json_alone_is_no_stream(Config) ->
    Call = fun(Accept) ->
        erlmcp_test_http:message(~"subscriptions/listen", #{notifications => #{}},
                                 #{headers => #{~"accept" => Accept}})
    end,
    {Json, Body} = Call(~"application/json"),
    #{status := 406, messages := [#{~"id" := 1, ~"error" := #{}}]} =
        erlmcp_test_http:post(server(Config), Json, Body),
    {Stream, _} = Call(~"text/event-stream"),
    Socket = erlmcp_test_http:connect(server(Config)),
    ok = erlmcp_test_http:send(Socket, ~"POST", Stream, Body),
    {200, #{~"content-type" := ~"text/event-stream"}} = erlmcp_test_http:head(Socket),
    {event, #{~"method" := ~"notifications/subscriptions/acknowledged"}} =
        erlmcp_test_http:event(Socket),
    gen_tcp:close(Socket).

%% The method is of 2026-07-28; its predecessors are not.
sessions_have_other_ways(Config) ->
    Session = open(server(Config), transport(Config), ~"2025-11-25"),
    #{~"error" := #{~"code" := -32601}} =
        ask(Session, ~"subscriptions/listen", #{notifications => #{toolsListChanged => true}}),
    [#{~"error" := #{~"code" := -32601}} = ask(client(Config), Method, #{uri => ~"test://a"})
     || Method <- [~"resources/subscribe", ~"resources/unsubscribe"]].

%% Changes are sent by who makes them, and wait for no subscriber. For one that never reads there is
%% one message, however often the thing changes.
who_does_not_read_delays_nobody(Config) ->
    Uri = <<"test://", (binary:copy(~"x", 8000))/binary>>,
    Filter = #{resourceSubscriptions => [Uri]},
    {_, Deaf} = listen(client(Config), ~"deaf", Filter),
    [{_, Owner}] = subscribers(server(Config)),
    Client = client(Config),
    Reading = listen(Client, 1, Filter),
    %% More than the system holds for a connection.
    [begin
         change(Uri, Config),
         {1, ?UPDATED, _} = told(Reading)
     end || _ <- lists:seq(1, 2000)],
    {message_queue_len, Waiting} = process_info(Owner, message_queue_len),
    {true, _} = {Waiting < 5, Waiting},
    #{~"result" := #{}} = ask(Client, 2, ~"tools/list", #{}),
    change(Uri, Config),
    {1, ?UPDATED, #{~"uri" := Uri}} = told(Reading),
    gen_tcp:close(Deaf).

%% "Nothing waits without a bound", and who reads is not cut: what changed meanwhile is told once.
a_burst_of_changes_is_told(Config) ->
    Uris = uris(1, 1000),
    Client = client(Config),
    Listen = listen(Client, 1, #{resourceSubscriptions => Uris}),
    [change(Uri, Config) || _ <- [1, 2, 3], Uri <- Uris],
    ok = all_told(Listen, #{Uri => true || Uri <- Uris}),
    [_ | _] = subscribers(server(Config)).

all_told(_, Left) when map_size(Left) =:= 0 ->
    ok;
all_told(Listen, Left) ->
    {1, ?UPDATED, #{~"uri" := Uri}} = told(Listen),
    all_told(Listen, maps:remove(Uri, Left)).

%% HTTP/2: streams beside each other, in one process.

connection(Config) ->
    #{port := Port} = server(Config),
    {ok, Connection} = gun:open("127.0.0.1", Port, #{protocols => [http2], retry => 0}),
    {ok, http2} = gun:await_up(Connection, ?TIMEOUT),
    Connection.

listen_h2(Connection, Id, Filter) ->
    {Headers, Body} = erlmcp_test_http:message(~"subscriptions/listen",
                                               #{notifications => Filter}, #{id => Id}),
    Stream = gun:post(Connection, "/mcp", Headers, Body),
    {response, nofin, 200, _} = gun:await(Connection, Stream, ?TIMEOUT),
    #{~"method" := ~"notifications/subscriptions/acknowledged",
      ~"params" := #{~"_meta" := #{?META := Id}}} = event_h2(Connection, Stream),
    Stream.

event_h2(Connection, Stream) ->
    case gun:await(Connection, Stream, ?TIMEOUT) of
        {data, nofin, <<>>} ->
            event_h2(Connection, Stream);
        {data, nofin, Data} ->
            [{none, Message}] = erlmcp_test_http:events(Data),
            Message
    end.

many_streams_of_a_connection(Config) ->
    Connection = connection(Config),
    %% The same id on each: a request of HTTP is told by its stream.
    Streams = [listen_h2(Connection, 1, #{resourceSubscriptions => [Uri, ~"test://all"]})
               || Uri <- uris(1, 20)],
    [begin
         change(Uri, Config),
         #{~"params" := #{~"uri" := Uri, ~"_meta" := #{?META := 1}}} =
             event_h2(Connection, Stream)
     end || {Stream, Uri} <- lists:zip(Streams, uris(1, 20))],
    change(~"test://all", Config),
    [#{~"params" := #{~"uri" := ~"test://all"}} = event_h2(Connection, Stream)
     || Stream <- Streams],
    gun:close(Connection),
    forgotten(server(Config)).

reset_of_a_stream_is_forgotten(Config) ->
    Connection = connection(Config),
    Filter = #{toolsListChanged => true},
    [First, Second] = [listen_h2(Connection, 1, Filter) || _ <- [1, 2]],
    2 = length(subscribers(server(Config))),
    ok = gun:cancel(Connection, First),
    %% What comes after it on the connection is handled after it.
    Third = listen_h2(Connection, 3, #{promptsListChanged => true}),
    [{prompt, _}, {tool, _}] = lists:sort(subscribers(server(Config))),
    change(tool, Config),
    #{~"method" := ?TOOLS} = event_h2(Connection, Second),
    change(prompt, Config),
    #{~"method" := ?PROMPTS} = event_h2(Connection, Third),
    gun:close(Connection).
