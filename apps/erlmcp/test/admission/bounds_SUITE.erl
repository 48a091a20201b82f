-module(bounds_SUITE).
-moduledoc """
Every bound of `erlmcp_options:limits/0`, from one table: at the limit it succeeds, at the limit and
one more it is refused with its code, its HTTP status and its `Retry-After`, and those that were in
are not disturbed. On HTTP/1.1, HTTP/2, TCP and stdio, in both eras. A limit that is neither here
nor in `elsewhere/0` fails the suite.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([every_limit_has_its_test/1]).
-export([calls_are_bounded/1, waiting_is_bounded/1, messages_are_bounded/1, sizes_are_bounded/1]).
-export([connections_are_bounded/1, connections_of_a_principal_are_bounded/1]).
-export([stdio_is_bounded/1]).
-export([principals_are_bounded/1, a_connection_that_is_refused_holds_no_place/1,
         tls_connections_are_refused_by_http/1,
         discovery_is_refused_as_unavailable/1, batches_are_refused_one_by_one/1,
         places_come_back_whatever_ends_a_call/1, a_running_task_holds_no_place/1,
         who_waits_for_its_client_holds_no_place/1, drained_servers_refuse_on_the_head/1]).

-import(bounds_client, [serve/3, stop/1, keep/2, open/3, open/4, close/1, send/3, send/4, reply/1,
                        call/3]).
-import(erlmcp_test_http, [running/0, ended/1]).

-define(TIMEOUT, 60_000).
-define(STATELESS, ~"2026-07-28").
-define(SESSION, ~"2025-11-25").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [every_limit_has_its_test, {group, http}, {group, http2}, {group, tcp}, stdio_is_bounded,
     {group, others}].

groups() ->
    Both = [calls_are_bounded, waiting_is_bounded, messages_are_bounded, sizes_are_bounded],
    Each = [{group, stateless}, {group, session}, connections_are_bounded,
            connections_of_a_principal_are_bounded],
    [{stateless, Both}, {session, Both}, {http, Each}, {http2, Each}, {tcp, Each},
     {others, [principals_are_bounded, a_connection_that_is_refused_holds_no_place,
               tls_connections_are_refused_by_http,
               discovery_is_refused_as_unavailable, batches_are_refused_one_by_one,
               places_come_back_whatever_ends_a_call, a_running_task_holds_no_place,
               who_waits_for_its_client_holds_no_place, drained_servers_refuse_on_the_head]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(stateless, Config) -> [{era, ?STATELESS} | Config];
init_per_group(session, Config) -> [{era, ?SESSION} | Config];
init_per_group(others, Config) -> Config;
init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) ->
    ok.

%% The table: the limit, what it is set to beside others that let it be reached, and the refusal
%% (its number and its status are in `erlmcp_refusal:table/0`).

%% Of calls that run at once.
calls() ->
    [{in_flight, #{in_flight => 3, queue => 0}, concurrent_limit_exceeded},
     {in_flight_per_principal, #{in_flight_per_principal => 3}, concurrent_limit_exceeded},
     {calls_per_connection, #{calls_per_connection => 3}, concurrent_limit_exceeded}].

%% Of calls that wait while one runs: two of them, of so many bytes.
waiting(Bytes) ->
    [{queue, #{queue => 2}, queue_cap_exceeded, #{limit => 2, observed => 3}},
     {queue_bytes, #{queue_bytes => 2 * Bytes}, queue_byte_cap_exceeded,
      #{limit => 2 * Bytes, observed => 3 * Bytes}},
     {queue_per_principal, #{queue_per_principal => 2}, queue_tenant_cap_exceeded,
      #{limit => 2, observed => 3}}].

%% Of messages in a time; those that open a session count, too. Of those in a second one is let in,
%% and the next soon after it.
messages() ->
    [{messages_per_minute, 5, rate_limit_exceeded}, {messages_per_day, 5, rate_limit_exceeded},
     {principal_messages_per_minute, 5, rate_limit_per_minute},
     {principal_messages_per_day, 5, quota_exceeded}]
    ++ [{Limit, 3, Refusal} || {Limit, Refusal} <- [{messages_per_second, rate_limit_exceeded},
                                                    {principal_messages_per_second,
                                                     rate_limit_per_second}]].

%% Of one message.
sizes() ->
    [{message_bytes, 1000, message_too_large}, {depth, 10, protocol_error},
     {members, 30, protocol_error}].

connections() ->
    [{connections, #{connections => 3}, concurrent_limit_exceeded},
     {connections_per_address, #{connections_per_address => 3}, concurrent_limit_exceeded}].

%% Those that have a suite of their own; times are in it, since they end what was accepted.
elsewhere() ->
    Rest = spec_2025_11_25_resumability_SUITE,
    Tasks = spec_2026_07_28_tasks_SUITE,
    Told = spec_2026_07_28_tasks_told_SUITE,
    #{sessions => {spec_2025_11_25_transports_SUITE, sessions_are_bounded},
      subscriptions => {spec_2026_07_28_subscriptions_SUITE, subscriptions_are_bounded},
      session_idle_ms => {spec_2025_11_25_transports_SUITE, unused_session_expires},
      stored_events => {Rest, kept_events_are_bounded_in_number},
      stored_bytes => {Rest, kept_events_are_bounded_in_bytes},
      stored_ms => {Rest, kept_events_are_bounded_in_age},
      retry_ms => {spec_2026_07_28_streamable_http_SUITE,
                   listening_clients_come_back_one_by_one},
      rate_retry_ms => {envelopes_SUITE, plans_say_when_to_come_back},
      queue_retry_ms => {envelopes_SUITE, plans_say_when_to_come_back},
      reconnect_ms => {Rest, a_reset_request_is_not_waited_for},
      call_timeout_ms => {tcp_SUITE, deadlines_are_kept},
      input_timeout_ms => {spec_2025_11_25_client_requests_SUITE, input_in_time_or_1069},
      call_heap_bytes => {http_bounds_SUITE, heap_bound_ends_the_call},
      unread_bytes => {slow_consumers_SUITE, unread_bytes_of_http2_are_bounded},
      reply_bytes => {slow_consumers_SUITE, results_are_bounded},
      unread_messages => {slow_consumers_SUITE, what_a_call_says_is_bounded},
      cache_entries => {cache_SUITE, entries_are_bounded},
      cache_bytes => {cache_SUITE, bytes_are_bounded},
      skills_bytes => {skills_SUITE, all_together_are_bounded},
      tasks => {Told, tasks_are_bounded},
      tasks_per_principal => {Told, principals_are_bounded},
      task_bytes => {Told, results_are_bounded},
      task_ttl_ms => {Tasks, expired_is_gone},
      task_timeout_ms => {Tasks, deadline_is_failed},
      authenticate_timeout_ms =>
          {spec_2026_07_28_authorization_server_side_SUITE, nobody_says_in_time},
      receive_timeout_ms => {slow_senders_SUITE, body_of_http1_has_a_deadline},
      send_timeout_ms => {tcp_SUITE, unread_answers_are_bounded_in_time},
      zone_requests => {events_SUITE, few_requests_change_no_zone},
      keep_alive_ms => {proxies_SUITE, quiet_streams_outlive_the_patience_of_the_proxy}}.

every_limit_has_its_test(_) ->
    Here = [element(1, Row)
            || Row <- calls() ++ waiting(1) ++ messages() ++ sizes() ++ connections()]
        ++ [queue_ms, connections_per_principal, principals],
    Known = [Name || {Name, _, _} <- erlmcp_options:limits()],
    [] = Known -- (Here ++ maps:keys(elsewhere())),
    [] = (Here ++ maps:keys(elsewhere())) -- Known,
    [begin
         {module, Suite} = code:ensure_loaded(Suite),
         {_, _, true} = {Suite, Case, erlang:function_exported(Suite, Case, 1)}
     end || _ := {Suite, Case} <- elsewhere()].

calls_are_bounded(Config) ->
    [each(Row, fun calls_are_bounded/2, Config) || Row <- calls(), applies(Row, Config)].

%% Without a session HTTP has no calls that belong together. On HTTP/2 those of a connection are
%% streams, see http2_tls_SUITE.
applies({calls_per_connection, _, _}, Config) ->
    case {transport(Config), era(Config)} of
        {tcp, _} -> true;
        {stdio, _} -> true;
        {http, ?SESSION} -> true;
        {_, _} -> false
    end;
applies(_, _) ->
    true.

each(Row, Test, Config) ->
    try
        Test(Row, Config)
    catch
        Class:Reason:Stack ->
            erlang:raise(Class, {transport(Config), era(Config), Row, Reason}, Stack)
    end.

%% One node for all of it: a server has its connection by itself, and there are no more.
stdio_is_bounded(Config) ->
    Node = bounds_stdio:start(),
    [Case([{transport, stdio}, {node, Node}, {era, Era} | Config])
     || Era <- [?STATELESS, ?SESSION],
        Case <- [fun calls_are_bounded/1, fun waiting_is_bounded/1, fun messages_are_bounded/1,
                 fun sizes_are_bounded/1]],
    bounds_stdio:stop(Node).

calls_are_bounded({Limit, Limits, Refusal}, Config) ->
    #{Limit := Most} = Limits,
    Server = served(Limits, Config),
    Client = open(Server, transport(Config), era(Config)),
    Waiting = [wait(Client) || _ <- lists:seq(1, Most)],
    Over = call(Client, ~"tools/call", #{name => ~"echo"}),
    refused(Refusal, #{limit => Most, observed => Most + 1}, Over, Client),
    %% One place that comes free is there at once, and those that were in are answered.
    [{First, Handler} | Rest] = Waiting,
    finish(Handler, ~"first"),
    #{message := #{~"result" := #{}}} = reply(First),
    #{message := #{~"result" := #{}}} = call(Client, ~"tools/call", #{name => ~"echo"}),
    [begin
         finish(Pid, ~"later"),
         #{message := #{~"result" := #{}}} = reply(Exchange)
     end || {Exchange, Pid} <- Rest],
    close(Client),
    stop(Server).

wait(Client) ->
    Exchange = send(Client, ~"tools/call", #{name => ~"wait"}),
    {Exchange, handler(Client)}.

handler(#{server := {stdio, Node}}) ->
    {bounds_stdio:running(Node), Node};
handler(_) ->
    {Handler, _} = running(),
    Handler.

finish({Handler, Node}, Return) -> bounds_stdio:finish(Handler, Return, Node);
finish(Handler, Return) -> erlmcp_test_http:finish(Handler, Return).

waiting_is_bounded(Config) ->
    {_, Echo} = bounds_client:message(#{era => era(Config), session => ~"", headers => #{}},
                                      1_000_000_000, ~"tools/call", #{name => ~"echo"}),
    [each(Row, fun waiting_is_bounded/2, Config) || Row <- waiting(byte_size(Echo))],
    waiting_ends(Config).

waiting_is_bounded({_, Limits, Refusal, Details}, Config) ->
    Server = served(Limits#{in_flight => 1, queue_ms => 60_000}, Config),
    Client = open(Server, transport(Config), era(Config)),
    {First, Handler} = wait(Client),
    Waiting = [begin
                   Exchange = send(Client, ~"tools/call", #{name => ~"echo"}),
                   ok = until(fun() -> held(Server, waiting) =:= Count end),
                   Exchange
               end || Count <- [1, 2]],
    refused(Refusal, Details, call(Client, ~"tools/call", #{name => ~"echo"}), Client),
    finish(Handler, ~"first"),
    [#{message := #{~"result" := #{}}} = reply(Exchange) || Exchange <- [First | Waiting]],
    ok = until(fun() -> held(Server, waiting) =:= 0 end),
    close(Client),
    stop(Server).

%% Who has waited as long as he may is told when to come again.
waiting_ends(Config) ->
    Server = served(#{in_flight => 1, queue_ms => 20}, Config),
    Client = open(Server, transport(Config), era(Config)),
    {First, Handler} = wait(Client),
    refused(backpressure_active, #{}, call(Client, ~"tools/call", #{name => ~"echo"}), Client),
    0 = held(Server, waiting),
    finish(Handler, ~"first"),
    #{message := #{~"result" := #{}}} = reply(First),
    #{message := #{~"result" := #{}}} = call(Client, ~"tools/call", #{name => ~"echo"}),
    close(Client),
    stop(Server).

messages_are_bounded(Config) ->
    [each(Row, fun messages_are_bounded/2, Config) || Row <- messages()].

messages_are_bounded({Limit, Most, Refusal}, Config) ->
    Server = served(#{Limit => Most}, Config),
    Client = open(Server, transport(Config), era(Config)),
    Opened = case era(Config) of
        ?STATELESS -> 0;
        ?SESSION -> 2
    end,
    [#{message := #{~"result" := #{}}} = call(Client, ~"tools/list", #{})
     || _ <- lists:seq(Opened + 1, Most)],
    refused(Refusal, #{limit => Most}, until_refused(Client, per_second(Limit)), Client),
    close(Client),
    stop(Server).

per_second(Limit) ->
    lists:suffix("second", atom_to_list(Limit)).

%% In a slow second there is time for more: many at once, and again if they were not.
until_refused(Client, false) ->
    call(Client, ~"tools/list", #{});
until_refused(Client, true) ->
    Sent = [send(Client, ~"tools/list", #{}) || _ <- lists:seq(1, 20)],
    case [Reply || #{message := #{~"error" := _}} = Reply <- [reply(One) || One <- Sent]] of
        [Refused | _] -> Refused;
        [] -> until_refused(Client, true)
    end.

sizes_are_bounded(Config) ->
    [each(Row, fun sizes_are_bounded/2, Config) || Row <- sizes()].

sizes_are_bounded({Limit, Most, Refusal}, Config) ->
    Server = served(#{Limit => Most}, Config),
    Client = open(Server, transport(Config), era(Config)),
    Base = base(Limit, Client),
    At = params(Limit, Most - Base),
    #{message := #{~"result" := #{}}} = call(Client, ~"tools/call", At),
    #{message := #{~"error" := Error}} = Over =
        call(Client, ~"tools/call", params(Limit, Most - Base + 1)),
    Number = number(Refusal),
    #{~"data" := #{~"refusal" := Number, ~"limit" := Most}} = Error,
    %% It could not be read, so nothing says that it is a session's.
    Status = case {transport(Config), Refusal} of
        {Lines, _} when Lines =:= tcp; Lines =:= stdio -> none;
        {_, message_too_large} -> 413;
        {_, _} -> 400
    end,
    #{status := Status, retry_after := none} = Over,
    #{message := #{~"result" := #{}}} = call(Client, ~"tools/call", At),
    close(Client),
    stop(Server).

base(depth, _) ->
    3;
base(Limit, Client) ->
    {_, Body} = bounds_client:message(Client, 1_000_000_000, ~"tools/call", params(Limit, 0)),
    case Limit of
        message_bytes -> byte_size(Body);
        members -> length(binary:matches(Body, ~"\":"))
    end.

params(message_bytes, More) -> #{name => ~"echo", arguments => #{text => text(More)}};
params(depth, More) -> #{name => ~"echo", arguments => #{text => ~"", deep => nested(More)}};
params(members, More) ->
    Members = #{integer_to_binary(N) => N || N <- lists:seq(1, More)},
    #{name => ~"echo", arguments => Members}.

text(Bytes) -> binary:copy(~"x", Bytes).

nested(0) -> 0;
nested(Depth) -> [nested(Depth - 1)].

%% Connections.

connections_are_bounded(Config) ->
    [each(Row, fun connections_are_bounded/2, Config) || Row <- connections()].

connections_are_bounded({Limit, Limits, Refusal}, Config) ->
    #{Limit := Most} = Limits,
    Transport = transport(Config),
    Server = served(Limits, Config),
    In = [keep(Server, Transport) || _ <- lists:seq(1, Most)],
    [ok = served_on(Connection) || Connection <- In],
    Details = #{limit => Most, observed => Most + 1},
    refused_connection(Refusal, Details, Server, Transport),
    [ok = served_on(Connection) || Connection <- In],
    [First | Rest] = In,
    ok = close(First),
    ok = until(fun() -> held(Server, connections) < Most end),
    Next = keep(Server, Transport),
    ok = served_on(Next),
    [ok = close(Connection) || Connection <- [Next | Rest]],
    stop(Server).

connections_of_a_principal_are_bounded(Config) ->
    Transport = transport(Config),
    Server = serve(Transport, #{connections_per_principal => 2},
                   (definitions())#{http => #{authenticate => fun authenticate/1},
                                    tcp => #{principal => ~"ada"}}),
    Keep = fun(Name) -> (keep(Server, Transport))#{headers := #{~"authorization" => Name}} end,
    In = [Keep(~"ada") || _ <- lists:seq(1, 2)],
    [ok = served_on(Connection) || Connection <- In],
    Over = Keep(~"ada"),
    Refused = case Over of
        #{transport := tcp, connection := Socket} ->
            #{status => none, retry_after => none, message => erlmcp_test_line:recv(Socket)};
        _ ->
            call(Over, ~"tools/list", #{})
    end,
    refused(concurrent_limit_exceeded, #{limit => 2, observed => 3}, Refused, Over),
    %% What a proxy has of HTTP/2 goes on: it is others', too.
    ok = case Transport of
        http2 -> close(Over);
        _ -> over(Over)
    end,
    %% Others come in, and those that are in may say more.
    Others = [Keep(~"bob") || Transport =/= tcp],
    [ok = served_on(Connection) || Connection <- In ++ Others],
    [ok = close(Connection) || Connection <- In ++ Others],
    stop(Server).

authenticate(#{headers := #{~"authorization" := Name}}) -> {ok, Name}.

%% What the table does not show.

%% What is counted of one is counted of so many.
principals_are_bounded(_) ->
    Server = serve(http, #{principals => 3, in_flight_per_principal => 2},
                   (definitions())#{http => #{authenticate => fun authenticate/1}}),
    Client = fun(Name) -> (keep(Server, http))#{headers := #{~"authorization" => Name}} end,
    In = [Client(Name) || Name <- [~"ada", ~"bob", ~"eve"]],
    Waiting = [wait(One) || One <- In],
    Over = Client(~"tim"),
    refused(resource_exhausted, #{}, call(Over, ~"tools/list", #{}), Over),
    [begin
         finish(Handler, ~"done"),
         #{message := #{~"result" := _}} = reply(Exchange)
     end || {Exchange, Handler} <- Waiting],
    [ok = close(One) || One <- [Over | In]],
    stop(Server).

%% Who is told that there is no place has none: one that leaves is enough for another to come in.
a_connection_that_is_refused_holds_no_place(_) ->
    Server = serve(http, #{connections => 1}, definitions()),
    In = keep(Server, http),
    ok = served_on(In),
    Refused = [begin
                   Over = keep(Server, http),
                   #{status := 429} = call(Over, ~"tools/list", #{}),
                   Over
               end || _ <- lists:seq(1, 20)],
    1 = held(Server, connections),
    ok = close(In),
    ok = until(fun() -> held(Server, connections) =:= 0 end),
    Next = keep(Server, http),
    ok = served_on(Next),
    [ok = over(Connection) || Connection <- Refused],
    ok = served_on(Next),
    close(Next),
    stop(Server).

%% "The refusal at once", and on TLS as elsewhere: after the handshake, in HTTP.
tls_connections_are_refused_by_http(_) ->
    Made = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    Chain = #{root => Made, intermediates => [], peer => Made},
    #{server_config := Tls} =
        public_key:pkix_test_data(#{server_chain => Chain, client_chain => Chain}),
    Server = serve(http, #{connections => 1}, (definitions())#{http => #{tls => Tls}}),
    [#{port := Port}] = erlmcp:listeners(Server),
    Open = fun(Protocol) ->
        {ok, Connection} = gun:open("127.0.0.1", Port,
                                    #{transport => tls, protocols => [Protocol], retry => 0,
                                      tls_opts => [{verify, verify_none}]}),
        {ok, Protocol} = gun:await_up(Connection, ?TIMEOUT),
        #{server => Server, transport => http2, era => ?STATELESS, headers => #{},
          connection => Connection}
    end,
    In = Open(http2),
    ok = served_on(In),
    [begin
         Over = Open(Protocol),
         refused(concurrent_limit_exceeded, #{limit => 1, observed => 2},
                 call(Over, ~"tools/list", #{}), Over),
         ok = over(Over)
     end || Protocol <- [http, http2]],
    ok = served_on(In),
    close(In),
    stop(Server).

%% A client that tries which era a server is of takes 429 for the word of an older one.
discovery_is_refused_as_unavailable(_) ->
    Server = serve(http, #{messages_per_day => 1}, definitions()),
    In = keep(Server, http),
    #{message := #{~"result" := #{}}} = call(In, ~"server/discover", #{}),
    #{status := 503, retry_after := Seconds, message := #{~"error" := #{~"code" := 1056}}} =
        call(In, ~"server/discover", #{}),
    true = Seconds > 0,
    #{status := 429} = call(In, ~"tools/list", #{}),
    close(In),
    stop(Server),
    Small = serve(http, #{connections => 1}, definitions()),
    One = keep(Small, http),
    ok = served_on(One),
    Over = keep(Small, http),
    #{status := 503, message := #{~"error" := #{~"code" := 1060}}} =
        call(Over, ~"server/discover", #{}),
    ok = over(Over),
    close(One),
    stop(Small).

%% A batch is as many messages as it has: those that may not enter are refused in its answer.
batches_are_refused_one_by_one(_) ->
    [begin
         %% Two messages open the session.
         Server = serve(Transport, #{messages_per_day => 4}, definitions()),
         Client = open(Server, Transport, ~"2025-03-26"),
         Ids = [~"a", ~"b", ~"c"],
         Request = fun(Id) ->
             #{jsonrpc => ~"2.0", id => Id, method => ~"tools/call", params => #{name => ~"echo"}}
         end,
         Answers = bounds_client:batch(Client, [Request(Id) || Id <- Ids]),
         Ids = lists:sort([Id || #{~"id" := Id} <- Answers]),
         [~"a", ~"b"] = lists:sort([Id || #{~"id" := Id, ~"result" := _} <- Answers]),
         [1056] = [Code || #{~"id" := ~"c", ~"error" := #{~"code" := Code}} <- Answers],
         [#{~"error" := #{~"code" := 1056}}] = bounds_client:batch(Client, [Request(~"d")]),
         0 = held(Server, in_flight),
         close(Client),
         stop(Server)
     end || Transport <- [http, tcp]].

%% An answer, a crash, the deadline, the memory bound, a cancellation, a client that goes: the place
%% is free for the next.
places_come_back_whatever_ends_a_call(_) ->
    Tools = [#{name => ~"crash", handler => fun(_, _) -> error(on_purpose) end},
             #{name => ~"exit", handler => fun(_, _) -> exit(kill) end},
             #{name => ~"killed", handler => fun(_, _) -> exit(self(), kill) end},
             #{name => ~"late", timeout_ms => 1, handler => fun(_, _) -> receive after 5000 -> x end
                                                            end}],
    [begin
         #{tools := Usual} = Definitions = definitions(),
         Server = serve(Transport, #{in_flight => 1, queue => 0},
                        Definitions#{tools := Usual ++ Tools}),
         Client = open(Server, Transport, Era),
         [begin
              #{message := #{~"error" := _}} = call(Client, ~"tools/call", #{name => Name}),
              #{message := #{~"result" := _}} = call(Client, ~"tools/call", #{name => ~"echo"})
          end || Name <- [~"crash", ~"exit", ~"killed", ~"late"]],
         0 = held(Server, in_flight),
         Waited = send(Client, ~"waited", ~"tools/call", #{name => ~"wait"}),
         {Cancelled, _} = running(),
         ok = bounds_client:cancel(Client, {Waited, ~"waited"}),
         _ = ended(Cancelled),
         ok = until(fun() -> held(Server, in_flight) =:= 0 end),
         close(Client),
         stop(Server)
     end || Transport <- [http, http2, tcp], Era <- [?STATELESS, ?SESSION]].

%% A call that goes on as a task has answered; its place is the next one's. Who waits for its result
%% holds none, either.
a_running_task_holds_no_place(_) ->
    #{tools := Tools} = Definitions = definitions(),
    Server = serve(tcp, #{in_flight => 1, queue_ms => 10_000},
                   Definitions#{tools := [Tool#{task => optional} || Tool <- Tools]}),
    Client = open(Server, tcp, ?SESSION),
    #{message := #{~"result" := #{~"task" := #{~"taskId" := Task}}}} =
        call(Client, ~"tools/call", #{name => ~"wait", task => #{}}),
    {Handler, _} = running(),
    Result = send(Client, ~"result", ~"tasks/result", #{taskId => Task}),
    #{message := #{~"result" := _}} = call(Client, ~"tools/call", #{name => ~"echo"}),
    finish(Handler, ~"done"),
    %% Its change of status comes beside it.
    [_] = [Message || #{~"id" := ~"result", ~"result" := _} = Message <-
                          [maps:get(message, reply(Result)) || _ <- [status, result]]],
    0 = held(Server, in_flight),
    close(Client),
    stop(Server).

%% People take their time.
who_waits_for_its_client_holds_no_place(_) ->
    #{tools := Tools} = Definitions = definitions(),
    Ask = #{name => ~"ask", handler => fun
        (_, #{input := #{~"roots" := _}}) -> ~"asked";
        (_, _) -> {input_required, #{~"roots" => erlmcp_input:roots()}}
    end},
    Server = serve(tcp, #{in_flight => 1, queue => 0}, Definitions#{tools := [Ask | Tools]}),
    Client = open(Server, tcp, ?SESSION, #{roots => #{}}),
    Asked = send(Client, ~"ask", ~"tools/call", #{name => ~"ask"}),
    #{message := #{~"method" := ~"roots/list", ~"id" := Id}} = reply(Asked),
    #{message := #{~"result" := _}} = call(Client, ~"tools/call", #{name => ~"echo"}),
    ok = bounds_client:answer(Client, Id, #{roots => []}),
    #{message := #{~"id" := ~"ask", ~"result" := _}} = reply(Asked),
    close(Client),
    stop(Server).

%% Before a body is read; what a session's client posts may be waited for, and is.
drained_servers_refuse_on_the_head(_) ->
    Server = serve(http, #{}, definitions()),
    In = keep(Server, http),
    ok = served_on(In),
    Session = open(Server, http, ?SESSION),
    {Waiting, Handler} = wait(Session),
    ok = erlmcp_gate:drain(gate(Server)),
    #{connection := Socket} = In,
    {Headers, _} = bounds_client:message(In, 1, ~"tools/list", #{}),
    ok = erlmcp_test_http:send(Socket, ~"POST", [{~"content-length", ~"1000"} | Headers], ~""),
    #{status := 503, headers := #{~"retry-after" := _},
      messages := [#{~"error" := #{~"code" := 1077}}]} = erlmcp_test_http:response(Socket),
    finish(Handler, ~"accepted before"),
    #{message := #{~"result" := _}} = reply(Waiting),
    close(In),
    stop(Server).

served_on(Connection) ->
    #{message := #{~"result" := #{}}} = call(Connection, ~"tools/list", #{}),
    ok.

%% One more than there may be: it is told, and closed.
refused_connection(Refusal, Details, Server, Transport) ->
    #{connection := Connection} = Over = keep(Server, Transport),
    Reply = case Transport of
        tcp -> #{status => none, retry_after => none,
                 message => erlmcp_test_line:recv(Connection)};
        _ -> call(Over, ~"tools/list", #{})
    end,
    refused(Refusal, Details, Reply, Over),
    Transport =:= http andalso begin
        #{headers := #{~"connection" := ~"close"}} = Reply
    end,
    over(Over).

%% The server has closed it.
over(#{transport := http2, connection := Connection}) ->
    Monitor = monitor(process, Connection),
    receive
        {'DOWN', Monitor, process, Connection, _} -> ok
    after ?TIMEOUT ->
        error(still_open)
    end;
over(#{connection := Socket}) ->
    ok = erlmcp_test_http:closed(Socket),
    gen_tcp:close(Socket).

%% The refusal as its era and its transport have it: the number, its name and its bound everywhere,
%% when to come back where that helps; of HTTP the status, and the same in seconds.
refused(Refusal, Details, #{message := #{~"error" := Error}} = Reply, Client) ->
    Number = number(Refusal),
    Name = atom_to_binary(Refusal),
    #{~"code" := Number, ~"data" := #{~"refusal" := Number, ~"name" := Name,
                                      ~"retryAfterMs" := Milliseconds} = Data} = Error,
    true = Milliseconds > 0,
    Details = #{Key => maps:get(atom_to_binary(Key), Data) || Key := _ <- Details},
    {Status, RetryAfter} = case Client of
        #{transport := Lines} when Lines =:= tcp; Lines =:= stdio -> {none, none};
        %% To some clients another status means that the session is gone.
        #{session := _} -> {200, none};
        #{} -> {status(Refusal), (Milliseconds + 999) div 1000}
    end,
    #{status := Status, retry_after := RetryAfter} = Reply,
    ok.

number(Refusal) ->
    #{number := Number} = row(Refusal),
    Number.

status(Refusal) ->
    #{status := Status} = row(Refusal),
    Status.

row(Refusal) ->
    [Row] = [Row || #{name := Name} = Row <- erlmcp_refusal:table(), Name =:= Refusal],
    Row.

served(Limits, Config) ->
    Options = case transport(Config) of
        stdio -> #{node => proplists:get_value(node, Config)};
        _ -> definitions()
    end,
    serve(transport(Config), Limits, Options).

definitions() ->
    Test = self(),
    #{tools => [#{name => ~"echo", handler => fun(_, _) -> ~"echo" end},
                #{name => ~"wait", handler => fun(Arguments, _) ->
                    Test ! {running, self(), Arguments},
                    receive {finish, Return} -> Return end
                end}]}.

transport(Config) -> proplists:get_value(transport, Config).

era(Config) -> proplists:get_value(era, Config).

held({stdio, Node}, Key) -> bounds_stdio:held(Key, Node);
held(Server, Key) -> erlmcp_gate:held(gate(Server), Key).

gate(Server) ->
    {ok, _, #{gate := Gate}} = erlmcp_registry:whereis(Server),
    Gate.

%% Whether it comes true.
until(Holds) -> until(Holds, ?TIMEOUT).

until(Holds, Left) ->
    case Holds() of
        true -> ok;
        false when Left > 0 -> receive after 10 -> until(Holds, Left - 10) end
    end.
