-module(tcp_channel_SUITE).
-moduledoc "The channel over TCP, against our server and against servers that are no good.".

-export([suite/0, all/0]).
-export([requests_are_answered_in_both_eras/1, many_senders_do_not_interleave/1,
         progress_goes_to_its_call/1, events_of_a_subscription_go_to_it/1,
         what_belongs_to_nobody_goes_to_the_owner/1, requests_of_a_server_are_answered/1,
         notifications_are_sent/1, a_server_that_is_not_there/1,
         what_is_sent_early_waits_for_the_connection/1,
         an_ended_connection_fails_its_calls/1, a_new_connection_has_a_new_number/1,
         a_send_for_an_ended_connection_is_not_sent/1,
         pauses_grow/1, noise_is_skipped/1, ids_keep_their_type/1,
         unknown_and_second_responses_are_skipped/1, wrong_responses_fail_their_call/1,
         errors_without_an_id_are_the_only_calls/1, batches_are_taken_apart/1,
         lines_are_bounded/1, servers_that_do_not_read/1, exchanges_are_bounded/1,
         dead_callers_are_forgotten/1, aborted_calls_hear_nothing/1,
         aborted_lines_leave_nothing/1,
         passed_deadlines_are_not_written/1, slow_owners_lose_notifications/1,
         closing_ends_what_runs/1, the_channel_ends_with_its_owner/1, ids_are_taken_once/1]).

-import(erlmcp_test_channel, [open/2, open/3, up/1, down/1, owned/1, send/3, send/4, request/4,
                              notify/3, events/2, outcome/2, ask/4]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [requests_are_answered_in_both_eras, many_senders_do_not_interleave,
     progress_goes_to_its_call, events_of_a_subscription_go_to_it,
     what_belongs_to_nobody_goes_to_the_owner, requests_of_a_server_are_answered,
     notifications_are_sent, a_server_that_is_not_there,
     what_is_sent_early_waits_for_the_connection,
     an_ended_connection_fails_its_calls, a_new_connection_has_a_new_number,
     a_send_for_an_ended_connection_is_not_sent,
     pauses_grow, noise_is_skipped, ids_keep_their_type,
     unknown_and_second_responses_are_skipped, wrong_responses_fail_their_call,
     errors_without_an_id_are_the_only_calls, batches_are_taken_apart,
     lines_are_bounded, servers_that_do_not_read, exchanges_are_bounded,
     dead_callers_are_forgotten, aborted_calls_hear_nothing, aborted_lines_leave_nothing,
     passed_deadlines_are_not_written,
     slow_owners_lose_notifications, closing_ends_what_runs, the_channel_ends_with_its_owner,
     ids_are_taken_once].

requests_are_answered_in_both_eras(_) ->
    Channel = connected(erlmcp_test_line:serve(#{})),
    {ok, #{~"supportedVersions" := [~"2026-07-28"]}} =
        stateless(Channel, 1, ~"server/discover", #{}),
    initialize(Channel),
    {ok, #{~"tools" := [#{~"name" := ~"echo"}]}} = ask(Channel, 2, ~"tools/list", #{}),
    {{error, #{~"code" := -32601}}, []} = outcome(request(Channel, 3, ~"no/such", #{}), []).

%% "MUST NOT contain embedded newlines": a message of one sender is never within another's.
many_senders_do_not_interleave(_) ->
    Channel = connected(erlmcp_test_line:serve(#{})),
    initialize(Channel),
    Test = self(),
    Senders = [spawn_link(fun() ->
        Text = binary:copy(integer_to_binary(Sender), 5000),
        [Text = text(ask(Channel, Sender * 100 + N, ~"tools/call", echo(Text)))
         || N <- lists:seq(1, 20)],
        Test ! {done, self()}
    end) || Sender <- lists:seq(1, 20)],
    [receive {done, Sender} -> ok after ?PATIENCE * 4 -> error(not_done) end || Sender <- Senders].

progress_goes_to_its_call(_) ->
    {Channel, Server} = raw(),
    First = send(Channel, request, call(1), #{token => ~"t"}),
    Second = send(Channel, request, call(2), #{token => 7}),
    _ = [take(Server) || _ <- [1, 2]],
    Progress = fun(Token, At) -> say(Server, notification(~"notifications/progress",
        #{~"progressToken" => Token, ~"progress" => At})) end,
    Progress(7, 1),
    Progress(~"t", 2),
    %% It belongs to no exchange: a token keeps its type.
    Progress(~"7", 3),
    say(Server, response(1)),
    say(Server, response(2)),
    {{ok, _}, [{notification, _, #{~"progress" := 2}}]} = outcome(First, []),
    {{ok, _}, [{notification, _, #{~"progress" := 1}}]} = outcome(Second, []),
    {notification, _, #{~"progressToken" := ~"7"}} = owned(Channel).

%% 2026-07-28, stdio: "Clients MUST correlate these using the io.modelcontextprotocol/subscriptionId
%% field in _meta".
events_of_a_subscription_go_to_it(_) ->
    Server = erlmcp_test_line:serve(#{}),
    Channel = connected(Server),
    Listen = erlmcp_test_line:stateless(~"s", ~"subscriptions/listen",
        #{~"notifications" => #{~"toolsListChanged" => true}}),
    {_, _} = Stream = send(Channel, stream, Listen),
    [{message, {notification, ~"notifications/subscriptions/acknowledged", _}}] =
        events(Stream, 1),
    ok = erlmcp:add(Server, tool, #{name => ~"new", handler => fun(_, _) -> ~"" end}),
    [{message, {notification, ~"notifications/tools/list_changed", _}}] = events(Stream, 1).

what_belongs_to_nobody_goes_to_the_owner(_) ->
    {Channel, Server} = raw(),
    say(Server, notification(~"notifications/message", #{~"level" => ~"info", ~"data" => 1})),
    {notification, ~"notifications/message", #{~"data" := 1}} = owned(Channel),
    say(Server, erlmcp_test_line:request(9, ~"roots/list", #{})),
    {request, 9, ~"roots/list", #{}} = owned(Channel).

requests_of_a_server_are_answered(_) ->
    {Channel, Server} = raw(),
    %% The id is the server's; that a request of ours has the same says nothing.
    Mine = request(Channel, 9, ~"tools/list", #{}),
    #{~"method" := ~"tools/list"} = take(Server),
    say(Server, erlmcp_test_line:request(9, ~"ping", #{})),
    {request, 9, _, _} = owned(Channel),
    Response = send(Channel, response, response(9), #{id => 9}),
    [sent] = events(Response, 1),
    #{~"id" := 9, ~"result" := _} = take(Server),
    say(Server, response(9)),
    {{ok, _}, []} = outcome(Mine, []).

notifications_are_sent(_) ->
    {Channel, Server} = raw(),
    [sent] = events(notify(Channel, ~"notifications/initialized", #{}), 1),
    #{~"method" := ~"notifications/initialized"} = take(Server).

a_server_that_is_not_there(_) ->
    Channel = open(erlmcp_line_channel, {tcp, {127, 0, 0, 1}, erlmcp_test_port:unused()}),
    {connect, econnrefused} = down(Channel),
    {{failed, {connect, econnrefused}}, []} =
        outcome(request(Channel, 1, ~"ping", #{}), []).

what_is_sent_early_waits_for_the_connection(_) ->
    Channel = open(erlmcp_line_channel, target(erlmcp_test_line:serve(#{}))),
    {ok, #{}} = ask(Channel, 1, ~"ping", #{}),
    1 = up(Channel).

%% The server may have done the work of a written line.
an_ended_connection_fails_its_calls(_) ->
    {Channel, Server} = raw(),
    Calls = [request(Channel, N, ~"tools/call", #{}) || N <- [1, 2, 3]],
    _ = [take(Server) || _ <- Calls],
    ok = gen_tcp:close(Server),
    [{{failed, {closed, closed}}, []} = outcome(Call, []) || Call <- Calls],
    closed = down(Channel).

a_new_connection_has_a_new_number(_) ->
    {Listen, Channel} = listening(),
    1 = up(Channel),
    ok = gen_tcp:close(accept(Listen)),
    closed = down(Channel),
    2 = up(Channel),
    Server = accept(Listen),
    Call = request(Channel, 1, ~"ping", #{}),
    #{~"id" := 1} = take(Server),
    say(Server, response(1)),
    {{ok, _}, []} = outcome(Call, []).

a_send_for_an_ended_connection_is_not_sent(_) ->
    {Listen, Channel} = listening(),
    1 = up(Channel),
    ok = gen_tcp:close(accept(Listen)),
    closed = down(Channel),
    2 = up(Channel),
    Server = accept(Listen),
    Old = send(Channel, request, call(1), #{generation => 1}),
    {{failed, {closed, unprocessed}}, []} = outcome(Old, []),
    New = send(Channel, request, call(2), #{generation => 2}),
    #{~"id" := 2} = take(Server),
    say(Server, response(2)),
    {{ok, _}, []} = outcome(New, []).

pauses_grow(_) ->
    Began = erlang:monotonic_time(millisecond),
    Channel = open(erlmcp_line_channel, {tcp, {127, 0, 0, 1}, erlmcp_test_port:unused()}),
    [{connect, econnrefused} = down(Channel) || _ <- lists:seq(1, 5)],
    %% Half of 100, 200, 400 and 800 at least. When we hear of one says little of it alone.
    Took = erlang:monotonic_time(millisecond) - Began,
    true = Took >= 750 andalso Took < 20_000.

noise_is_skipped(_) ->
    {Channel, Server} = raw(),
    Call = request(Channel, 1, ~"ping", #{}),
    [ok = gen_tcp:send(Server, Noise)
     || Noise <- [~"Server started\n", ~"\n\n  \r\n", ~"{\"jsonrpc\":\n", <<255, 254, $\n>>,
                  ~"[]\n", ~"null\n", ~"{}\n", ~"[[]]\n", ~"{\"a\":1,\"a\":2}\n",
                  [lists:duplicate(100, $[), $\n]]],
    say(Server, response(1)),
    {{ok, _}, []} = outcome(Call, []).

ids_keep_their_type(_) ->
    {Channel, Server} = raw(),
    Number = request(Channel, 1, ~"ping", #{}),
    Text = request(Channel, ~"1", ~"ping", #{}),
    _ = [take(Server) || _ <- [1, 2]],
    say(Server, #{~"jsonrpc" => ~"2.0", ~"id" => ~"1", ~"result" => ~"text"}),
    say(Server, #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"result" => ~"number"}),
    {{ok, ~"number"}, []} = outcome(Number, []),
    {{ok, ~"text"}, []} = outcome(Text, []).

unknown_and_second_responses_are_skipped(_) ->
    {Channel, Server} = raw(),
    Call = request(Channel, 1, ~"ping", #{}),
    _ = take(Server),
    [say(Server, response(Id)) || Id <- [77, ~"1", 1, 1]],
    {{ok, _}, []} = outcome(Call, []),
    Again = request(Channel, 1, ~"ping", #{}),
    _ = take(Server),
    say(Server, response(1)),
    {{ok, _}, []} = outcome(Again, []).

wrong_responses_fail_their_call(_) ->
    {Channel, Server} = raw(),
    [begin
         Call = request(Channel, 1, ~"ping", #{}),
         Other = request(Channel, 2, ~"ping", #{}),
         _ = [take(Server) || _ <- [1, 2]],
         say(Server, Wrong#{~"id" => 1}),
         {{failed, {protocol, What}}, []} = outcome(Call, []),
         true = is_binary(What),
         say(Server, response(2)),
         {{ok, _}, []} = outcome(Other, [])
     end || Wrong <- [#{~"jsonrpc" => ~"1.0", ~"result" => #{}}, #{~"result" => #{}},
                      #{~"jsonrpc" => ~"2.0"},
                      #{~"jsonrpc" => ~"2.0", ~"result" => #{}, ~"error" => #{}}]].

errors_without_an_id_are_the_only_calls(_) ->
    {Channel, Server} = raw(),
    Error = #{~"jsonrpc" => ~"2.0", ~"error" => #{~"code" => -32700, ~"message" => ~"what?"}},
    [begin
         Call = request(Channel, 1, ~"ping", #{}),
         _ = take(Server),
         say(Server, Said),
         {{error, #{~"code" := -32700}}, []} = outcome(Call, [])
     end || Said <- [Error, Error#{~"id" => null}]],
    Calls = [request(Channel, Id, ~"ping", #{}) || Id <- [1, 2]],
    _ = [take(Server) || _ <- Calls],
    say(Server, Error),
    [say(Server, response(Id)) || Id <- [1, 2]],
    [{{ok, _}, []} = outcome(Call, []) || Call <- Calls].

batches_are_taken_apart(_) ->
    {Channel, Server} = raw(),
    Calls = [request(Channel, Id, ~"ping", #{}) || Id <- [1, 2]],
    _ = [take(Server) || _ <- Calls],
    say(Server, [response(2), 7, notification(~"n", #{}), [response(1)], response(1)]),
    [{{ok, _}, []} = outcome(Call, []) || Call <- Calls],
    {notification, ~"n", #{}} = owned(Channel).

%% At the bound a line is read; one byte more, even without an end, is not.
lines_are_bounded(_) ->
    {Listen, Channel} = listening(#{limits => #{message_bytes => 1000}}),
    1 = up(Channel),
    Server = accept(Listen),
    Call = request(Channel, 1, ~"ping", #{}),
    _ = take(Server),
    Response = iolist_to_binary(json:encode(response(1))),
    Pad = binary:copy(~" ", 1000 - byte_size(Response)),
    ok = gen_tcp:send(Server, [Response, Pad, $\n]),
    {{ok, _}, []} = outcome(Call, []),
    Calls = [request(Channel, N, ~"ping", #{}) || N <- [1, 2]],
    _ = [take(Server) || _ <- Calls],
    ok = gen_tcp:send(Server, [Response, Pad, ~" "]),
    [{{failed, {too_large, 1000}}, []} = outcome(Each, []) || Each <- Calls],
    {too_large, 1000} = down(Channel),
    2 = up(Channel).

%% A sender is never held up: what cannot be written waits within a bound, and is refused past it.
servers_that_do_not_read(_) ->
    {Channel, Server} = raw(),
    Big = #{~"x" => binary:copy(~"x", 1_000_000)},
    Began = erlang:monotonic_time(millisecond),
    {error, {overload, Limit}} = fill(Channel, Big, 1),
    true = is_integer(Limit),
    true = erlang:monotonic_time(millisecond) - Began < 20_000,
    %% It is heard all the same.
    say(Server, notification(~"n", #{})),
    {notification, ~"n", _} = owned(Channel).

fill(Channel, Params, N) when N < 1000 ->
    case request(Channel, N, ~"x", Params) of
        {error, _} = Error -> Error;
        _ -> fill(Channel, Params, N + 1)
    end.

exchanges_are_bounded(_) ->
    {Listen, Channel} = listening(#{calls => 2, subscriptions => 1}),
    1 = up(Channel),
    Server = accept(Listen),
    Calls = [request(Channel, N, ~"ping", #{}) || N <- [1, 2, 3]],
    {{failed, {overload, 3}}, []} = outcome(request(Channel, 4, ~"ping", #{}), []),
    %% Messages that end them go through.
    [sent] = events(notify(Channel, ~"notifications/cancelled", #{~"requestId" => 1}), 1),
    [say(Server, response(N)) || N <- [1, 2, 3]],
    [{{ok, _}, []} = outcome(Call, []) || Call <- Calls],
    Next = request(Channel, 5, ~"ping", #{}),
    say(Server, response(5)),
    {{ok, _}, []} = outcome(Next, []).

dead_callers_are_forgotten(_) ->
    {Listen, Channel} = listening(#{calls => 1, subscriptions => 0}),
    1 = up(Channel),
    Server = accept(Listen),
    {Pid, Monitor} = spawn_monitor(fun() -> {_, _} = request(Channel, 1, ~"ping", #{}) end),
    receive {'DOWN', Monitor, process, Pid, normal} -> ok end,
    #{~"id" := 1} = take(Server),
    Call = retried(Channel, fun() -> request(Channel, 1, ~"ping", #{}) end),
    say(Server, response(1)),
    {{ok, _}, []} = outcome(Call, []).

%% The channel may hear of the caller's end after the next call.
retried({_, Pid, _} = Channel, Send) ->
    Call = Send(),
    %% Its immediate answers have come.
    _ = sys:get_state(Pid),
    receive
        {_, {failed, {overload, 1}}} -> retried(Channel, Send)
    after 0 ->
        Call
    end.

aborted_calls_hear_nothing(_) ->
    {Channel, Server} = raw(),
    {Module, Exchange} = request(Channel, 1, ~"ping", #{}),
    _ = take(Server),
    false = Module:abort(Exchange),
    say(Server, response(1)),
    Next = request(Channel, 2, ~"ping", #{}),
    _ = take(Server),
    say(Server, response(2)),
    {{ok, _}, []} = outcome(Next, []),
    receive Anything -> error({heard, Anything}) after 0 -> ok end.

%% The server does not read, so all lines after the first one wait until the connection ends.
aborted_lines_leave_nothing(_) ->
    {{Module, Pid, _} = Channel, Server} = raw(),
    Size = fun() -> erts_debug:flat_size(sys:get_state(Pid)) end,
    Before = Size(),
    _ = request(Channel, 0, ~"x", #{~"x" => binary:copy(~"x", 15_000_000)}),
    [begin
         {Module, Exchange} = request(Channel, N, ~"x", #{}),
         false = Module:abort(Exchange)
     end || N <- lists:seq(1, 500)],
    true = Size() > Before + 500,
    ok = gen_tcp:close(Server),
    _ = down(Channel),
    true = Size() < Before + 500.

passed_deadlines_are_not_written(_) ->
    {Channel, Server} = raw(),
    Past = erlang:monotonic_time(millisecond) - 1,
    Late = send(Channel, request, call(1), #{deadline => Past}),
    {{failed, timeout}, []} = outcome(Late, []),
    _ = request(Channel, 2, ~"ping", #{}),
    #{~"id" := 2} = take(Server).

%% Past 1000 messages in its mailbox the owner is sent no more notifications, and requests are
%% answered for it.
slow_owners_lose_notifications(_) ->
    {Channel, Server} = raw(),
    Line = [json:encode(notification(~"n", #{})), $\n],
    [ok = gen_tcp:send(Server, lists:duplicate(100, Line)) || _ <- lists:seq(1, 50)],
    say(Server, erlmcp_test_line:request(9, ~"ping", #{})),
    #{~"id" := 9, ~"error" := #{~"code" := 1060}} = take(Server),
    {message_queue_len, Length} = process_info(self(), message_queue_len),
    true = Length > 1000 andalso Length < 1100,
    [_ = owned(Channel) || _ <- lists:seq(1, Length)],
    say(Server, notification(~"last", #{})),
    {notification, ~"last", _} = owned(Channel).

closing_ends_what_runs(_) ->
    {{Module, Pid, _} = Channel, Server} = raw(),
    Call = request(Channel, 1, ~"ping", #{}),
    _ = take(Server),
    ok = Module:close(Pid),
    false = is_process_alive(Pid),
    {{failed, {closed, stopped}}, []} = outcome(Call, []),
    {error, closed} = gen_tcp:recv(Server, 0, ?PATIENCE),
    %% The process is gone.
    {{failed, {closed, noproc}}, []} = outcome(request(Channel, 2, ~"ping", #{}), []).

the_channel_ends_with_its_owner(_) ->
    {ok, Listen} = listen(),
    Test = self(),
    Owner = spawn(fun() ->
        Test ! {channel, open(erlmcp_line_channel, target(Listen))},
        receive stop -> ok end
    end),
    {_, Pid, _} = receive {channel, Channel} -> Channel end,
    Monitor = monitor(process, Pid),
    Server = accept(Listen),
    exit(Owner, kill),
    receive {'DOWN', Monitor, process, Pid, _} -> ok after ?PATIENCE -> error(alive) end,
    {error, closed} = gen_tcp:recv(Server, 0, ?PATIENCE).

ids_are_taken_once(_) ->
    {Channel, Server} = raw(),
    First = request(Channel, 1, ~"ping", #{}),
    _ = take(Server),
    {{failed, {protocol, _}}, []} = outcome(request(Channel, 1, ~"ping", #{}), []),
    say(Server, response(1)),
    {{ok, _}, []} = outcome(First, []).

%% A channel to a server of ours.
connected(Server) ->
    Channel = open(erlmcp_line_channel, target(Server)),
    1 = up(Channel),
    Channel.

%% A channel, and the other end of its connection.
raw() ->
    {Listen, Channel} = listening(),
    1 = up(Channel),
    {Channel, accept(Listen)}.

listening() ->
    listening(#{}).

listening(Options) ->
    {ok, Listen} = listen(),
    {Listen, open(erlmcp_line_channel, target(Listen), Options)}.

listen() ->
    gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {active, false}, {packet, line},
                       {buffer, 65536}, {reuseaddr, true}]).

accept(Listen) ->
    {ok, Socket} = gen_tcp:accept(Listen, ?PATIENCE),
    Socket.

target(Listen) when is_port(Listen) ->
    {ok, Port} = inet:port(Listen),
    {tcp, {127, 0, 0, 1}, Port};
target(Server) ->
    {tcp, ~"127.0.0.1", erlmcp_test_line:port(Server)}.

take(Server) ->
    {ok, Line} = erlmcp_test_line:recv_line(Server, ?PATIENCE),
    json:decode(Line).

say(Server, Message) ->
    ok = gen_tcp:send(Server, [json:encode(Message), $\n]).

call(Id) -> erlmcp_test_line:request(Id, ~"tools/call", #{}).
response(Id) -> #{~"jsonrpc" => ~"2.0", ~"id" => Id, ~"result" => #{}}.
notification(Method, Params) -> erlmcp_test_line:notification(Method, Params).

initialize(Channel) ->
    {{ok, #{~"protocolVersion" := _}}, []} =
        outcome(send(Channel, request, erlmcp_test_line:initialize_request(0, ~"2025-11-25")), []),
    [sent] = events(notify(Channel, ~"notifications/initialized", #{}), 1).

stateless(Channel, Id, Method, Params) ->
    {Outcome, []} =
        outcome(send(Channel, request, erlmcp_test_line:stateless(Id, Method, Params)), []),
    Outcome.

echo(Text) -> #{~"name" => ~"echo", ~"arguments" => #{~"text" => Text}}.
text({ok, #{~"content" := [#{~"text" := Text}]}}) -> Text.
