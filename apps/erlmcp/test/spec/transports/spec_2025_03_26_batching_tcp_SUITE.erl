-module(spec_2025_03_26_batching_tcp_SUITE).
-moduledoc """
Specification 2025-03-26, "Base protocol / Batching", on TCP, and the chapter of JSON-RPC 2.0 that
it names.
""".

-export([suite/0, all/0]).
-export([batches_are_received/1, answers_come_as_one_message/1, each_request_has_one_answer/1,
         notifications_have_no_answers/1, nothing_is_answered_with_nothing/1,
         empty_batches_are_invalid/1, invalid_members_have_their_own_errors/1,
         batches_do_not_nest/1, initialize_is_no_member/1, members_see_what_came_before/1,
         members_run_side_by_side/1, batches_delay_nobody/1, slow_members_keep_their_deadline/1,
         crashes_cost_one_answer/1, progress_comes_before_the_answers/1,
         batches_cancel_what_runs/1, members_can_be_cancelled/1,
         members_are_bounded/1, calls_of_a_batch_are_bounded/1,
         batches_in_flight_are_bounded/1, ids_are_unique_in_a_batch/1,
         lost_sockets_end_their_batches/1, half_closed_clients_are_answered/1,
         other_revisions_have_no_batches/1]).

-import(erlmcp_test_line, [serve/1, connect/1, send/2, recv/1, recv_line/1, rest/1, is_quiet/1,
                           ask/4, initialize/2, initialize_request/2, request/3, notification/2,
                           code/1, echo_tool/0, waiting_tool/1, await_call/0]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [batches_are_received, answers_come_as_one_message, each_request_has_one_answer,
     notifications_have_no_answers, nothing_is_answered_with_nothing, empty_batches_are_invalid,
     invalid_members_have_their_own_errors, batches_do_not_nest, initialize_is_no_member,
     members_see_what_came_before, members_run_side_by_side, batches_delay_nobody,
     slow_members_keep_their_deadline, crashes_cost_one_answer, progress_comes_before_the_answers,
     batches_cancel_what_runs, members_can_be_cancelled,
     members_are_bounded, calls_of_a_batch_are_bounded,
     batches_in_flight_are_bounded, ids_are_unique_in_a_batch, lost_sockets_end_their_batches,
     half_closed_clients_are_answered, other_revisions_have_no_batches].

%% "MCP implementations MAY support sending JSON-RPC batches, but MUST support receiving JSON-RPC
%% batches."
batches_are_received(_) ->
    Socket = session(#{}),
    send(Socket, [request(1, ~"ping", #{})]),
    [#{~"jsonrpc" := ~"2.0", ~"id" := 1, ~"result" := #{}}] = recv(Socket),
    [] = rest(Socket).

%% JSON-RPC 2.0: "The Server should respond with an Array containing the corresponding Response
%% objects, after all of the batch Request objects have been processed." In MCP's framing: one line.
answers_come_as_one_message(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait"), echo_tool()]}),
    send(Socket, [request(1, ~"ping", #{}), call(2, ~"wait"), call(3, ~"echo")]),
    Call = await_call(),
    true = is_quiet(Socket),
    Call ! {answer, ~"a\nb"},
    Line = recv_line(Socket),
    [_] = binary:matches(Line, ~"\n"),
    [1, 2, 3] = ids(json:decode(Line)),
    [] = rest(Socket).

%% "A Response object SHOULD exist for each Request object"; they "MAY be returned in any order
%% within the Array". Answers known at once, calls and refusals stand beside each other.
each_request_has_one_answer(_) ->
    Socket = session(#{resources => [#{uri => ~"a://b", name => ~"b",
                                       handler => fun(_, _) -> ~"text" end}]}),
    send(Socket, [request(~"list", ~"tools/list", #{}), call(~"call", ~"echo"),
                  request(~"none", ~"no/such", #{}), call(~"tool", ~"no such"),
                  request(~"level", ~"logging/setLevel", #{~"level" => ~"debug"}),
                  request(~"params", ~"tools/call", #{}),
                  request(~"watch", ~"resources/subscribe", #{~"uri" => ~"a://b"}),
                  request(~"unwatch", ~"resources/unsubscribe", #{~"uri" => ~"a://b"}),
                  request(~"complete", ~"completion/complete", #{})]),
    Answers = recv(Socket),
    #{~"list" := #{~"result" := #{~"tools" := [_]}}, ~"call" := #{~"result" := _},
      ~"level" := #{~"result" := #{}}, ~"none" := None, ~"tool" := Tool, ~"params" := Params,
      ~"watch" := #{~"result" := #{}}, ~"unwatch" := #{~"result" := #{}},
      ~"complete" := #{~"error" := #{~"code" := -32602}}} =
        #{Id => Answer || #{~"id" := Id} = Answer <- Answers},
    9 = length(Answers),
    {-32601, -32602, -32602} = {code(None), code(Tool), code(Params)}.

%% "except that there SHOULD NOT be any Response objects for notifications"
notifications_have_no_answers(_) ->
    Socket = session(#{}),
    send(Socket, [notification(~"notifications/no_such", #{}), request(1, ~"ping", #{}),
                  #{~"jsonrpc" => ~"2.0", ~"id" => 9, ~"result" => #{}},
                  notification(~"ping", #{})]),
    [#{~"id" := 1}] = recv(Socket),
    [] = rest(Socket).

%% "If there are no Response objects contained within the Response array as it is to be sent to the
%% client, the server MUST NOT return an empty Array and should return nothing at all."
nothing_is_answered_with_nothing(_) ->
    Socket = session(#{}),
    send(Socket, [notification(~"notifications/no_such", #{})]),
    send(Socket, [#{~"jsonrpc" => ~"2.0", ~"id" => 9, ~"result" => #{}}]),
    %% An error whose sender could not read an id, in a batch and alone.
    Unread = #{~"jsonrpc" => ~"2.0", ~"id" => null,
               ~"error" => #{~"code" => -32700, ~"message" => ~"?"}},
    send(Socket, [Unread]),
    send(Socket, maps:remove(~"id", Unread)),
    true = is_quiet(Socket),
    [] = rest(Socket).

%% JSON-RPC 2.0, examples, "rpc call with an empty Array": one error, not an array.
empty_batches_are_invalid(_) ->
    Socket = session(#{}),
    send(Socket, ~"[]"),
    #{~"error" := #{~"code" := -32600}} = Refused = recv(Socket),
    false = is_map_key(~"id", Refused).

%% JSON-RPC 2.0, examples, "rpc call with invalid Batch": an error for each.
invalid_members_have_their_own_errors(_) ->
    Socket = session(#{}),
    send(Socket, [1, 2, request(3, ~"ping", #{}), #{~"foo" => ~"boo"}, request(null, ~"ping", #{}),
                  request(4, ~"ping", [])]),
    Answers = recv(Socket),
    [-32602, -32600, -32600, -32600, -32600] =
        lists:sort([code(Answer) || #{~"error" := _} = Answer <- Answers]),
    [3] = [Id || #{~"id" := Id, ~"result" := #{}} <- Answers],
    [4] = [Id || #{~"id" := Id, ~"error" := #{~"code" := -32602}} <- Answers].

%% A batch holds messages, and a batch is none.
batches_do_not_nest(_) ->
    Socket = session(#{}),
    send(Socket, [[request(1, ~"ping", #{})], request(2, ~"ping", #{})]),
    Answers = recv(Socket),
    [2] = [Id || #{~"id" := Id} <- Answers],
    [-32600] = [code(Answer) || #{~"error" := _} = Answer <- Answers].

%% Lifecycle: "The initialize request MUST NOT be part of a JSON-RPC batch"
initialize_is_no_member(_) ->
    Fresh = connect(serve(#{})),
    send(Fresh, [initialize_request(1, ~"2025-03-26"), request(2, ~"ping", #{})]),
    #{~"error" := #{~"code" := -32600}} = recv(Fresh),
    %% No session came of it.
    -32600 = code(ask(Fresh, 3, ~"tools/list", #{})),
    _ = initialize(Fresh, ~"2025-03-26"),
    send(Fresh, [initialize_request(4, ~"2025-06-18"), request(5, ~"ping", #{})]),
    Answers = recv(Fresh),
    [-32600] = [code(Answer) || #{~"id" := 4} = Answer <- Answers],
    %% And the session is still what it was.
    send(Fresh, [request(6, ~"ping", #{})]),
    [#{~"id" := 6}] = recv(Fresh).

%% What one member changes in the session holds for those after it.
members_see_what_came_before(_) ->
    Log = #{name => ~"log", handler => fun(_, #{log_level := Level}) ->
        integer_to_binary(Level)
    end},
    Socket = session(#{tools => [Log]}),
    send(Socket, [request(1, ~"logging/setLevel", #{~"level" => ~"alert"}), call(2, ~"log"),
                  request(3, ~"logging/setLevel", #{~"level" => ~"debug"}), call(4, ~"log")]),
    Texts = #{Id => Text || #{~"id" := Id, ~"result" := #{~"content" := [#{~"text" := Text}]}}
                                <- recv(Socket)},
    Texts = #{2 => ~"1", 4 => ~"7"}.

%% "The Server MAY process a batch rpc call as a set of concurrent tasks": nobody waits for his
%% neighbour.
members_run_side_by_side(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait")]}),
    send(Socket, [call(Id, ~"wait") || Id <- lists:seq(1, 10)]),
    Calls = [await_call() || _ <- lists:seq(1, 10)],
    [Call ! {answer, ~""} || Call <- lists:reverse(Calls)],
    true = lists:seq(1, 10) =:= ids(recv(Socket)).

%% A batch that is not ready holds up nothing else on the connection.
batches_delay_nobody(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait"), echo_tool()]}),
    send(Socket, [call(1, ~"wait")]),
    Call = await_call(),
    #{~"result" := _} = ask(Socket, 2, ~"tools/call", #{~"name" => ~"echo"}),
    send(Socket, [request(3, ~"ping", #{}), call(4, ~"echo")]),
    [3, 4] = ids(recv(Socket)),
    Call ! {answer, ~""},
    [1] = ids(recv(Socket)).

%% A member that passes its deadline has an error for its answer (1069), and holds up the others no
%% longer than that.
slow_members_keep_their_deadline(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait"), echo_tool()],
                       limits => #{call_timeout_ms => 1000}}),
    send(Socket, [call(1, ~"wait"), call(2, ~"echo")]),
    Monitor = monitor(process, await_call()),
    Answers = recv(Socket),
    [1, 2] = ids(Answers),
    [1069] = [code(Answer) || #{~"error" := _} = Answer <- Answers],
    down(Monitor).

%% A member that crashes has an error for its answer, and the others have their results.
crashes_cost_one_answer(_) ->
    Crash = #{name => ~"crash", handler => fun(_, _) -> error(asked_to) end},
    Kill = #{name => ~"kill", handler => fun(_, _) -> exit(self(), kill), receive n -> n end end},
    Leave = #{name => ~"leave",
              handler => fun(_, _) -> exit(self(), normal), receive n -> n end end},
    Socket = session(#{tools => [Crash, Kill, Leave, echo_tool()]}),
    send(Socket, [call(1, ~"crash"), call(2, ~"kill"), call(3, ~"echo"), call(4, ~"leave")]),
    Answers = recv(Socket),
    [1, 2, 3, 4] = ids(Answers),
    [3] = [Id || #{~"id" := Id, ~"result" := _} <- Answers],
    true = is_quiet(Socket).

%% Progress: "Progress notifications MUST stop after completion".
progress_comes_before_the_answers(_) ->
    Steps = #{name => ~"steps", handler => fun(_, Context) ->
        ok = erlmcp:progress(Context, 1, #{}),
        ok = erlmcp:log(Context, error, ~"logged"),
        ~""
    end},
    Socket = session(#{tools => [Steps]}),
    send(Socket, [request(1, ~"tools/call", #{~"name" => ~"steps",
                                              ~"_meta" => #{~"progressToken" => ~"t"}})]),
    #{~"method" := ~"notifications/progress",
      ~"params" := #{~"progressToken" := ~"t", ~"progress" := 1}} = recv(Socket),
    #{~"method" := ~"notifications/message", ~"params" := #{~"data" := ~"logged"}} = recv(Socket),
    [#{~"id" := 1, ~"result" := _}] = recv(Socket),
    [] = rest(Socket).

%% A cancellation that comes in a batch is one like any other.
batches_cancel_what_runs(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait")]}),
    send(Socket, call(1, ~"wait")),
    Monitor = monitor(process, await_call()),
    send(Socket, [notification(~"notifications/cancelled", #{~"requestId" => 1}),
                  request(2, ~"ping", #{})]),
    down(Monitor),
    [[#{~"id" := 2}]] = rest(Socket).

%% Cancellation: receivers SHOULD "Not send a response for the cancelled request"; the batch has its
%% other answers.
members_can_be_cancelled(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait"), waiting_tool(~"other")]}),
    send(Socket, [call(1, ~"wait"), request(2, ~"ping", #{})]),
    One = monitor(process, await_call()),
    send(Socket, [call(3, ~"other"), call(4, ~"wait")]),
    [Three, Four] = [await_call() || _ <- [3, 4]],
    send(Socket, notification(~"notifications/cancelled", #{~"requestId" => 1})),
    down(One),
    [2] = ids(recv(Socket)),
    [Call ! {answer, ~""} || Call <- [Three, Four]],
    [3, 4] = ids(recv(Socket)),
    [] = rest(Socket).

%% 100 messages in a batch are answered; of 101 none is run, and the answer names the limit.
members_are_bounded(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait")]}),
    send(Socket, [request(Id, ~"ping", #{}) || Id <- lists:seq(1, 100)]),
    true = lists:seq(1, 100) =:= ids(recv(Socket)),
    send(Socket, [call(Id, ~"wait") || Id <- lists:seq(1, 101)]),
    #{~"error" := #{~"code" := -32600, ~"data" := #{~"limit" := 100, ~"observed" := 101}}} =
        recv(Socket),
    [] = rest(Socket).

%% The calls of a batch run at once up to the connection's limit.
calls_of_a_batch_are_bounded(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait")], limits => #{calls_per_connection => 3}}),
    send(Socket, [call(Id, ~"wait") || Id <- [1, 2, 3, 4]]),
    [Call ! {answer, ~""} || Call <- [await_call() || _ <- [1, 2, 3]]],
    Answers = recv(Socket),
    [1, 2, 3, 4] = ids(Answers),
    [4] = [Id || #{~"id" := Id, ~"error" := #{~"code" := 1060}} <- Answers].

%% Nothing waits without a bound: a batch counts like a call, at the limit and one more.
batches_in_flight_are_bounded(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait")], limits => #{calls_per_connection => 2}}),
    send(Socket, [call(1, ~"wait")]),
    send(Socket, [call(2, ~"wait")]),
    Calls = [await_call() || _ <- [1, 2]],
    send(Socket, [call(3, ~"wait")]),
    1060 = case recv(Socket) of
        [Answer] -> code(Answer);
        Answer -> code(Answer)
    end,
    [Call ! {answer, ~""} || Call <- Calls],
    [1, 2] = lists:sort([Id || [#{~"id" := Id, ~"result" := _}] <- rest(Socket)]).

%% "The request ID MUST NOT have been previously used by the requestor within the same session."
ids_are_unique_in_a_batch(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait")]}),
    send(Socket, [call(1, ~"wait"), call(1, ~"wait")]),
    Call = await_call(),
    Call ! {answer, ~""},
    [#{~"id" := 1}, #{~"id" := 1}] = Answers = recv(Socket),
    [-32600] = [code(Answer) || #{~"error" := _} = Answer <- Answers].

%% Nobody reads the answers any more, so the work ends.
lost_sockets_end_their_batches(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait")]}),
    send(Socket, [call(1, ~"wait"), call(2, ~"wait")]),
    Monitors = [monitor(process, await_call()) || _ <- [1, 2]],
    erlmcp_test_line:reset(Socket),
    [down(Monitor) || Monitor <- Monitors].

%% A client that has nothing more to send still reads its answers.
half_closed_clients_are_answered(_) ->
    Socket = session(#{tools => [waiting_tool(~"wait")]}),
    send(Socket, [call(1, ~"wait"), request(2, ~"ping", #{})]),
    Call = await_call(),
    ok = erlmcp_test_line:end_of_input(Socket),
    Call ! {answer, ~""},
    [Answers] = rest(Socket),
    [1, 2] = ids(Answers).

%% 2025-06-18, Key Changes: "Remove support for JSON-RPC batching". Before 2025-03-26 there was
%% none, and without a session nobody knows yet.
other_revisions_have_no_batches(_) ->
    Server = serve(#{}),
    [begin
         Socket = connect(Server),
         Revision =/= none andalso initialize(Socket, Revision),
         send(Socket, [request(1, ~"ping", #{})]),
         {Revision, #{~"error" := #{~"code" := -32600}}} = {Revision, recv(Socket)},
         [] = rest(Socket)
     end || Revision <- [~"2024-11-05", ~"2025-06-18", ~"2025-11-25", ~"2026-07-28", none]].

session(Options) ->
    Socket = connect(serve(Options)),
    #{~"protocolVersion" := ~"2025-03-26"} = initialize(Socket, ~"2025-03-26"),
    Socket.

call(Id, Name) ->
    request(Id, ~"tools/call", #{~"name" => Name, ~"arguments" => #{}}).

ids(Answers) ->
    lists:sort([Id || #{~"id" := Id} <- Answers]).

down(Monitor) ->
    receive
        {'DOWN', Monitor, process, _, _} -> ok
    after ?PATIENCE ->
        error(still_there)
    end.
