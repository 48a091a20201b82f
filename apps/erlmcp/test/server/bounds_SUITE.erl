-module(bounds_SUITE).
-moduledoc """
Every bound of `erlmcp_server_options:limits/0`, from one table: at the limit it succeeds, at the
limit and one more it is refused with its code, its HTTP status and its `Retry-After`, and those
that were in are not disturbed. On HTTP/1.1, HTTP/2, TCP and stdio, in both eras. A limit that is
neither here nor in `elsewhere/0` fails the suite.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([every_limit_has_its_test/1]).
-export([calls_are_bounded/1, waiting_is_bounded/1, waiting_on_connection_is_bounded/1,
         messages_are_bounded/1, sizes_are_bounded/1]).
-export([connections_are_bounded/1, connections_of_a_principal_are_bounded/1]).
-export([stdio_is_bounded/1]).

-import(erlmcp_test_suite, [transport/1]).
-import(erlmcp_test_bounds_calls, [definitions/0, wait/1, finish/2, refused/4, number/1, held/2,
                                   until/1, over/1, served_on/1]).
-import(erlmcp_test_bounds_client, [serve/3, stop/1, keep/2, open/3, close/1, send/3, reply/1,
                                    call/3]).

-define(STATELESS, ~"2026-07-28").
-define(SESSION, ~"2025-11-25").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [every_limit_has_its_test, {group, http}, {group, http2}, {group, tcp}, stdio_is_bounded].

groups() ->
    Both = [calls_are_bounded, waiting_is_bounded, messages_are_bounded, sizes_are_bounded],
    Lines = [{group, stateless_lines}, {group, session_lines}],
    Each = [{group, stateless}, {group, session}, connections_are_bounded,
            connections_of_a_principal_are_bounded],
    [{stateless, Both}, {session, Both}, {http, Each}, {http2, Each}, {tcp, Lines ++ Each},
     {stateless_lines, [waiting_on_connection_is_bounded]},
     {session_lines, [waiting_on_connection_is_bounded]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun, ssl], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Group, Config) when Group =:= stateless; Group =:= stateless_lines ->
    [{era, ?STATELESS} | Config];
init_per_group(Group, Config) when Group =:= session; Group =:= session_lines ->
    [{era, ?SESSION} | Config];
init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) ->
    ok.

%% The table: the limit, what it is set to beside others that let it be reached, and the refusal
%% (its number and its status are in `erlmcp_refusal:table/0`).

%% Of calls that run at once.
calls() ->
    [{in_flight, #{in_flight => 3, queue => 0}, concurrent_limit_exceeded},
     {in_flight_per_principal, #{in_flight_per_principal => 3}, concurrent_limit_exceeded},
     {calls_per_connection, #{calls_per_connection => 3, queue_per_connection => 0},
      concurrent_limit_exceeded}].

%% Of calls that wait while one runs: two of them, of so many bytes.
waiting(Bytes) ->
    [{queue, #{queue => 2}, queue_cap_exceeded, #{limit => 2, observed => 3}},
     {queue_bytes, #{queue_bytes => 2 * Bytes}, queue_byte_cap_exceeded,
      #{limit => 2 * Bytes, observed => 3 * Bytes}},
     {queue_per_principal, #{queue_per_principal => 2}, queue_tenant_cap_exceeded,
      #{limit => 2, observed => 3}}].

%% The same of those of one connection.
waiting_on_connection(Bytes) ->
    [{queue_per_connection, #{queue_per_connection => 2}, queue_cap_exceeded,
      #{limit => 2, observed => 3}},
     {queue_bytes_per_connection, #{queue_bytes_per_connection => 2 * Bytes},
      queue_byte_cap_exceeded, #{limit => 2 * Bytes, observed => 3 * Bytes}}].

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
    Rounds = spec_2026_07_28_mrtr_SUITE,
    Tasks = spec_2026_07_28_tasks_SUITE,
    Told = spec_2026_07_28_tasks_notifications_SUITE,
    #{sessions => {spec_2025_11_25_sessions_SUITE, sessions_are_bounded},
      sessions_per_principal => {floods_SUITE, sessions_in_use_of_one_address_are_bounded},
      unused_session_ms => {floods_SUITE, unused_sessions_end},
      subscriptions => {spec_2026_07_28_subscriptions_SUITE, subscriptions_are_bounded},
      subscriptions_per_principal =>
          {spec_2026_07_28_subscriptions_SUITE, subscriptions_of_one_are_bounded},
      session_idle_ms => {spec_2025_11_25_sessions_SUITE, unused_session_expires},
      stored_events => {Rest, kept_events_are_bounded_in_number},
      stored_bytes => {Rest, kept_events_are_bounded_in_bytes},
      stored_ms => {Rest, kept_events_are_bounded_in_age},
      retry_ms => {spec_2026_07_28_streamable_http_SUITE,
                   listening_clients_come_back_one_by_one},
      rate_retry_ms => {envelopes_SUITE, plans_say_when_to_come_back},
      queue_retry_ms => {envelopes_SUITE, plans_say_when_to_come_back},
      reconnect_ms => {Rest, a_reset_request_is_not_waited_for},
      call_timeout_ms => {lines_on_tcp_SUITE, deadlines_are_kept},
      input_timeout_ms => {spec_2025_11_25_client_requests_SUITE, input_in_time_or_1069},
      call_heap_bytes => {http1_bounds_SUITE, heap_bound_ends_the_call},
      unread_bytes => {slow_consumers_SUITE, unread_bytes_of_http2_are_bounded},
      reply_bytes => {slow_consumers_SUITE, results_are_bounded},
      unread_messages => {slow_consumers_SUITE, what_a_call_says_is_bounded},
      cache_entries => {cache_SUITE, entries_are_bounded},
      cache_bytes => {cache_SUITE, bytes_are_bounded},
      skills_bytes => {skill_sources_SUITE, all_together_are_bounded},
      tasks => {Told, tasks_are_bounded},
      tasks_per_principal => {Told, principals_are_bounded},
      task_bytes => {Told, results_are_bounded},
      task_bytes_per_principal => {floods_SUITE, results_of_one_take_no_others_room},
      used_states => {Rounds, used_states_are_bounded},
      used_states_per_principal => {Rounds, used_states_of_one_are_bounded},
      task_ttl_ms => {Tasks, expired_is_gone},
      task_timeout_ms => {Tasks, deadline_is_failed},
      authenticate_timeout_ms =>
          {spec_2026_07_28_authorization_server_side_SUITE, nobody_says_in_time},
      receive_timeout_ms => {slow_senders_SUITE, body_of_http1_has_a_deadline},
      send_timeout_ms => {lines_on_tcp_SUITE, unread_answers_are_bounded_in_time},
      error_budget_requests => {events_SUITE, few_requests_change_no_zone},
      keep_alive_ms => {quiet_streams_SUITE, of_a_call}}.

every_limit_has_its_test(_) ->
    Here = [element(1, Row)
            || Row <- calls() ++ waiting(1) ++ waiting_on_connection(1) ++ messages() ++ sizes()
                   ++ connections()]
        ++ [queue_ms, connections_per_principal, principals],
    Known = [Name || {Name, _, _} <- erlmcp_server_options:limits()],
    [] = Known -- (Here ++ maps:keys(elsewhere())),
    [] = (Here ++ maps:keys(elsewhere())) -- Known,
    [begin
         {module, Suite} = code:ensure_loaded(Suite),
         {_, _, true} = {Suite, Case, erlang:function_exported(Suite, Case, 1)}
     end || _ := {Suite, Case} <- elsewhere()].

calls_are_bounded(Config) ->
    [each(Row, fun calls_are_bounded/2, Config) || Row <- calls(), applies(Row, Config)].

%% Without a session HTTP has no calls that belong together. On HTTP/2 those of a connection are
%% streams, see streamable_http_on_http2_SUITE.
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
    Node = erlmcp_test_bounds_stdio:start(),
    [Case([{transport, stdio}, {node, Node}, {era, Era} | Config])
     || Era <- [?STATELESS, ?SESSION],
        Case <- [fun calls_are_bounded/1, fun waiting_is_bounded/1,
                 fun waiting_on_connection_is_bounded/1, fun messages_are_bounded/1,
                 fun sizes_are_bounded/1]],
    erlmcp_test_bounds_stdio:stop(Node).

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

waiting_is_bounded(Config) ->
    [each(Row, fun waiting_is_bounded/2, Config) || Row <- waiting(bytes_of_echo(Config))],
    waiting_ends(Config).

bytes_of_echo(Config) ->
    {_, Echo} =
        erlmcp_test_bounds_client:message(#{era => era(Config), session => ~"", headers => #{}},
                                          1_000_000_000, ~"tools/call", #{name => ~"echo"}),
    byte_size(Echo).

%% What one pipe sends is read in its order.
waiting_on_connection_is_bounded(Config) ->
    [each(Row, fun waiting_on_connection_is_bounded/2, Config)
     || Row <- waiting_on_connection(bytes_of_echo(Config))].

waiting_on_connection_is_bounded({_, Limits, Refusal, Details}, Config) ->
    Server = served(Limits#{calls_per_connection => 1}, Config),
    Client = open(Server, transport(Config), era(Config)),
    {First, Handler} = wait(Client),
    Waiting = [send(Client, ~"tools/call", #{name => ~"echo"}) || _ <- [1, 2]],
    refused(Refusal, Details, call(Client, ~"tools/call", #{name => ~"echo"}), Client),
    finish(Handler, ~"first"),
    [#{message := #{~"result" := #{}}} = reply(Exchange) || Exchange <- [First | Waiting]],
    #{message := #{~"result" := #{}}} = call(Client, ~"tools/call", #{name => ~"echo"}),
    close(Client),
    stop(Server).

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
    {_, Body} =
        erlmcp_test_bounds_client:message(Client, 1_000_000_000, ~"tools/call", params(Limit, 0)),
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
                   (definitions())#{http => #{authenticate =>
                                                  fun erlmcp_test_bounds_calls:authenticate/1},
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

served(Limits, Config) ->
    Options = case transport(Config) of
        stdio -> #{node => proplists:get_value(node, Config)};
        _ -> definitions()
    end,
    serve(transport(Config), Limits, Options).

era(Config) -> proplists:get_value(era, Config).
