-module(connection_queue_SUITE).
-moduledoc """
More requests over one connection of lines than may run at once (`calls_per_connection`). The excess
ones wait in their order, and are answered. The bounds of the queue are in bounds_SUITE.
""".

-export([suite/0, all/0]).
-export([thousand_at_once_are_answered/1, half_closed_clients_get_all_answers/1,
         turns_come_in_order/1, what_needs_no_call_does_not_wait/1, answers_do_not_wait/1,
         cancelled_requests_leave/1, cancelling_what_runs_lets_the_next_run/1,
         ids_of_waiting_requests_are_in_use/1, lost_sockets_drop_what_waits/1,
         deadlines_begin_with_the_call/1, drained_servers_refuse_what_waits/1,
         rates_count_when_the_turn_comes/1, batches_do_not_wait/1, quick_calls_take_turns/1,
         queues_count_what_they_hold/1]).

-include_lib("proper/include/proper.hrl").

-import(erlmcp_test_line, [serve/1, connect/1, send/2, recv/1, recv_many/2, rest/1, is_quiet/1,
                           ask/4, ask_stateless/4, initialize/2, request/3, stateless/3,
                           notification/2, result/1, code/1, echo_tool/0]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [thousand_at_once_are_answered, half_closed_clients_get_all_answers, turns_come_in_order,
     what_needs_no_call_does_not_wait, answers_do_not_wait, cancelled_requests_leave,
     cancelling_what_runs_lets_the_next_run, ids_of_waiting_requests_are_in_use,
     lost_sockets_drop_what_waits, deadlines_begin_with_the_call,
     drained_servers_refuse_what_waits, rates_count_when_the_turn_comes, batches_do_not_wait,
     quick_calls_take_turns, queues_count_what_they_hold].

%% With the limits that a server has unless it says otherwise, in both eras.
thousand_at_once_are_answered(_) ->
    [begin
         Socket = connect(serve(#{})),
         _ = initialize(Socket, ~"2025-11-25"),
         Ids = lists:seq(1, 1000),
         ok = gen_tcp:send(Socket, [line(Request(Id)) || Id <- Ids]),
         Answers = recv_many(Socket, 1000),
         Ids = lists:sort([Id || #{~"id" := Id, ~"result" := #{~"content" := [_]}} <- Answers]),
         [] = rest(Socket)
     end || Request <- [fun(Id) -> request(Id, ~"tools/call", echo()) end,
                        fun(Id) -> stateless(Id, ~"tools/call", echo()) end]].

line(Message) -> [json:encode(Message), $\n].

echo() -> #{~"name" => ~"echo", ~"arguments" => #{~"text" => ~"x"}}.

%% A pipe that is filled and closed: `generate | server | read`.
half_closed_clients_get_all_answers(_) ->
    Socket = connect(narrow(1, #{})),
    ok = gen_tcp:send(Socket, [line(wait(Id)) || Id <- lists:seq(1, 5)]),
    ok = erlmcp_test_line:end_of_input(Socket),
    [finish(Id) || Id <- lists:seq(1, 5)],
    [1, 2, 3, 4, 5] = [maps:get(~"id", Answer) || Answer <- recv_many(Socket, 5)],
    {error, closed} = erlmcp_test_line:recv_line(Socket, ?PATIENCE).

%% As many calls run as may, and the others wait.
narrow(Calls, Limits) ->
    serve(#{tools => [waiting(), echo_tool(), asking()],
            limits => maps:merge(#{calls_per_connection => Calls}, Limits)}).

%% Says which call runs, and is told when it ends.
waiting() ->
    Test = self(),
    #{name => ~"wait", handler => fun(#{~"n" := N}, _) ->
        Test ! {runs, N, self()},
        receive finish -> integer_to_binary(N) end
    end}.

asking() ->
    #{name => ~"ask",
      handler => fun(_, #{input := _}) -> ~"answered";
                    (_, _) -> {input_required, #{~"it" => erlmcp_input:roots()}}
                 end}.

wait(N) -> stateless(N, ~"tools/call", waits(N)).

waits(N) -> #{~"name" => ~"wait", ~"arguments" => #{~"n" => N}}.

runs(N) ->
    receive {runs, N, Call} -> Call after ?PATIENCE -> error({does_not_run, N}) end.

finish(N) ->
    runs(N) ! finish.

nothing_runs() ->
    receive {runs, N, _} -> error({runs, N}) after 0 -> ok end.

%% First come, first served, and as many at once as may be.
turns_come_in_order(_) ->
    Socket = connect(narrow(2, #{})),
    Ids = lists:seq(1, 20),
    ok = gen_tcp:send(Socket, [line(wait(Id)) || Id <- Ids]),
    true = is_quiet(Socket),
    Last = lists:foldl(fun(Id, Others) ->
                           [Next | _] = Running = Others ++ [runs(Id)],
                           nothing_runs(),
                           Next ! finish,
                           Before = Id - 1,
                           #{~"id" := Before, ~"result" := _} = recv(Socket),
                           tl(Running)
                       end, [runs(1)], tl(Ids)),
    [Call ! finish || Call <- Last],
    #{~"id" := 20} = recv(Socket),
    [] = rest(Socket).

%% "initialize" and "ping", lists and all else that is known already; what is wrong is said at once.
what_needs_no_call_does_not_wait(_) ->
    Socket = full(1),
    #{} = result(ask(Socket, ~"ping", ~"ping", #{})),
    #{~"tools" := [_, _, _]} = result(ask_stateless(Socket, ~"list", ~"tools/list", #{})),
    -32602 = code(ask_stateless(Socket, ~"none", ~"tools/call", #{~"name" => ~"none"})),
    -32601 = code(ask_stateless(Socket, ~"no", ~"no/such", #{})),
    #{~"protocolVersion" := _} = initialize(Socket, ~"2025-11-25"),
    finish_all([1, 2], Socket).

%% A call runs, and another one waits.
full(Calls) ->
    Socket = connect(narrow(Calls, #{})),
    ok = gen_tcp:send(Socket, [line(wait(Id)) || Id <- lists:seq(1, Calls + 1)]),
    true = is_quiet(Socket),
    Socket.

finish_all(Ids, Socket) ->
    [begin
         finish(Id),
         #{~"id" := Id, ~"result" := _} = recv(Socket)
     end || Id <- Ids],
    [] = rest(Socket).

%% A call that waits for its client's answer gets it, while others wait for the call.
answers_do_not_wait(_) ->
    Socket = connect(narrow(1, #{})),
    send(Socket, (erlmcp_test_line:initialize_request(0, ~"2025-11-25"))#{
        ~"params" => #{~"protocolVersion" => ~"2025-11-25", ~"capabilities" => #{~"roots" => #{}},
                       ~"clientInfo" => #{~"name" => ~"c", ~"version" => ~"1"}}}),
    #{~"id" := 0} = recv(Socket),
    send(Socket, request(1, ~"tools/call", #{~"name" => ~"ask"})),
    #{~"id" := Asked, ~"method" := ~"roots/list"} = recv(Socket),
    send(Socket, request(2, ~"tools/call", echo())),
    true = is_quiet(Socket),
    send(Socket, #{~"jsonrpc" => ~"2.0", ~"id" => Asked, ~"result" => #{~"roots" => []}}),
    [1, 2] = [maps:get(~"id", Answer) || Answer <- recv_many(Socket, 2)],
    [] = rest(Socket).

%% "Servers [...] MUST NOT send any further messages for it"; and its id is free again.
cancelled_requests_leave(_) ->
    Socket = full(1),
    [ok = gen_tcp:send(Socket, line(wait(Id))) || Id <- [3, 4]],
    cancel(Socket, 2),
    cancel(Socket, 3),
    ok = gen_tcp:send(Socket, line(wait(2))),
    true = is_quiet(Socket),
    finish_all([1, 4, 2], Socket),
    nothing_runs().

cancel(Socket, Id) ->
    send(Socket, notification(~"notifications/cancelled", #{~"requestId" => Id})).

cancelling_what_runs_lets_the_next_run(_) ->
    Socket = full(1),
    _ = runs(1),
    cancel(Socket, 1),
    finish_all([2], Socket).

%% 2026-07-28, Messages: "The request ID MUST NOT match the ID of any other request the sender has
%% issued and not yet received a response for."
ids_of_waiting_requests_are_in_use(_) ->
    Socket = full(1),
    [-32600 = code(ask_stateless(Socket, Id, ~"tools/call", waits(9))) || Id <- [1, 2]],
    finish_all([1, 2], Socket),
    nothing_runs().

%% The client does not read the answers any more.
lost_sockets_drop_what_waits(_) ->
    Socket = full(1),
    Monitor = monitor(process, runs(1)),
    erlmcp_test_line:reset(Socket),
    receive {'DOWN', Monitor, process, _, _} -> ok end,
    nothing_runs().

%% A request that waits longer than a call may take is answered all the same.
deadlines_begin_with_the_call(_) ->
    Socket = connect(narrow(1, #{call_timeout_ms => 2000})),
    ok = gen_tcp:send(Socket, [line(wait(Id)) || Id <- [1, 2, 3]]),
    [begin
         _ = runs(Id),
         #{~"id" := Id, ~"error" := #{~"code" := 1069}} = recv(Socket)
     end || Id <- [1, 2]],
    finish_all([3], Socket).

%% Running calls are answered. Waiting and new requests are refused, and may come back.
drained_servers_refuse_what_waits(_) ->
    Server = narrow(1, #{}),
    Socket = connect(Server),
    ok = gen_tcp:send(Socket, [line(wait(Id)) || Id <- [1, 2, 3]]),
    Call = runs(1),
    {_, Drain} = spawn_monitor(fun() -> exit({drained, erlmcp:drain(Server, ?PATIENCE)}) end),
    until_drained(Server),
    1077 = code(ask_stateless(Socket, 4, ~"tools/call", waits(4))),
    Call ! finish,
    [{1, answered}, {2, 1077}, {3, 1077}] =
        [case recv(Socket) of
             #{~"id" := Id, ~"result" := _} -> {Id, answered};
             #{~"id" := Id, ~"error" := #{~"code" := Code}} -> {Id, Code}
         end || _ <- [1, 2, 3]],
    receive {'DOWN', Drain, _, _, {drained, {ok, #{calls := 0}}}} -> ok end,
    nothing_runs().

until_drained(Server) ->
    erlmcp:listeners(Server) =:= [] orelse receive after 1 -> until_drained(Server) end.

%% A message counts once.
rates_count_when_the_turn_comes(_) ->
    Socket = connect(narrow(1, #{messages_per_day => 3})),
    ok = gen_tcp:send(Socket, [line(wait(Id)) || Id <- [1, 2, 3, 4]]),
    [begin
         finish(Id),
         #{~"id" := Id, ~"result" := _} = recv(Socket)
     end || Id <- [1, 2, 3]],
    #{~"id" := 4, ~"error" := #{~"data" := #{~"limit" := 3}}} = recv(Socket),
    nothing_runs().

%% A batch has one answer, in which what is over the limit is refused.
batches_do_not_wait(_) ->
    Socket = connect(narrow(1, #{})),
    _ = initialize(Socket, ~"2025-03-26"),
    [send(Socket, request(Id, ~"tools/call", waits(Id))) || Id <- [1, 2]],
    send(Socket, [request(3, ~"tools/call", waits(3)), request(4, ~"ping", #{})]),
    Answers = recv(Socket),
    [1060] = [Code || #{~"id" := 3, ~"error" := #{~"code" := Code}} <- Answers],
    [#{}] = [Result || #{~"id" := 4, ~"result" := Result} <- Answers],
    finish_all([1, 2], Socket).

%% Calls that run in the connection's own process, behind one that does not.
quick_calls_take_turns(_) ->
    Quick = (echo_tool())#{name := ~"quick", quick => true},
    Socket = connect(serve(#{tools => [waiting(), Quick],
                             limits => #{calls_per_connection => 1}})),
    Ids = lists:seq(2, 500),
    ok = gen_tcp:send(Socket, [line(wait(1)) | [line(stateless(Id, ~"tools/call",
                                                                #{~"name" => ~"quick"}))
                                                || Id <- Ids]]),
    true = is_quiet(Socket),
    finish(1),
    Answers = recv_many(Socket, 500),
    true = [1 | Ids] =:= [Id || #{~"id" := Id, ~"result" := _} <- Answers],
    [] = rest(Socket).

%% Whatever comes and goes: a queue gives what a list would, in its order, and its bytes are those
%% of what it holds.
queues_count_what_they_hold(_) ->
    Step = oneof([{add, integer(1, 9), binary()}, {cancel, integer(1, 9)}, take, keep]),
    erlmcp_test_property:holds(
        ?FORALL(Steps, list(Step), begin
            {Queue, Model} = lists:foldl(fun step/2, {none, []}, Steps),
            lines(Queue) =:= [Line || {_, _, Line, _} <- Model]
        end), 300).

limits() ->
    #{queue_per_connection => 100, queue_bytes_per_connection => 1_000_000}.

step({add, Id, Bytes}, {Queue, Model}) ->
    Line = <<Bytes/binary, "\n">>,
    Era = case Id rem 2 of
        0 -> session;
        1 -> stateless
    end,
    case erlmcp_connection_queue:check_id(Id, Queue) of
        ok ->
            Since = erlang:unique_integer([monotonic]),
            Request = #{id => Id, method => ~"tools/call", era => Era, line => Line,
                        arrival => {1_000_000 * Since, byte_size(Line), none}},
            {ok, Longer} = erlmcp_connection_queue:add(Request, limits(), Queue),
            counted(Longer, Model ++ [{Id, Era, Line, Since}]);
        {refuse, _} ->
            true = lists:keymember(Id, 1, Model),
            {Queue, Model}
    end;
step({cancel, Id}, {Queue, Model}) ->
    counted(erlmcp_connection_queue:cancel(Id, Queue), lists:keydelete(Id, 1, Model));
step(take, {none, []}) ->
    {none, []};
step(take, {Queue, [{Id, _, Line, _} | Model]}) ->
    {ok, #{id := Id, line := Line}, Shorter} = erlmcp_connection_queue:take(Queue),
    counted(Shorter, Model);
step(keep, {Queue, Model}) ->
    counted(erlmcp_connection_queue:keep(stateless, Queue),
            [Request || {_, stateless, _, _} = Request <- Model]).

counted(Queue, Model) ->
    Bytes = lists:sum([byte_size(Line) || {_, _, Line, _} <- Model]),
    Bytes = erlmcp_connection_queue:bytes(Queue),
    Oldest = lists:min([infinity | [Since || {_, _, _, Since} <- Model]]),
    Oldest = erlmcp_connection_queue:since(Queue),
    true = (Model =:= []) =:= (Queue =:= none),
    {Queue, Model}.

lines(none) ->
    [];
lines(Queue) ->
    {ok, #{line := Line}, Shorter} = erlmcp_connection_queue:take(Queue),
    [Line | lines(Shorter)].
