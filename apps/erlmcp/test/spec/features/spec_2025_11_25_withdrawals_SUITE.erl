-module(spec_2025_11_25_withdrawals_SUITE).
-moduledoc """
Specification 2025-11-25, "Lifecycle / Timeouts" and "Cancellation", and the revisions before it, of
what a server asks its client: "When the request has not received a success or error response within
the timeout period, the sender SHOULD issue a cancellation notification for that request and stop
waiting for a response."
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([late_answer_is_waited_for_no_more/1, refused_one_takes_back_the_others/1,
         cancelled_call_takes_back_what_it_asked/1, killed_call_takes_back_what_it_asked/1,
         answered_request_is_not_taken_back/1, batch_takes_back_what_its_calls_asked/1,
         cancelled_call_of_a_batch_takes_back_what_it_asked/1,
         cancelled_call_of_a_batch_asks_nothing/1,
         task_takes_back_what_it_asked/1, end_of_input_takes_back_what_was_asked/1,
         client_that_comes_back_is_told/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [request/4, batch/2, next/1, over/1, answered/1, nothing_more/1,
                             answer/3, answer_error/3, cancel/2]).
-import(erlmcp_test_http, [ended/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}, {group, sse}].

groups() ->
    [{Transport, erlmcp_test_suite:cases(?MODULE)} || Transport <- [http, tcp, sse]].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) ->
    [{transport, Transport} | Config].

end_per_group(_, _) ->
    ok.

init_per_testcase(Case, Config) ->
    [{server, erlmcp_test_client:start(definitions(Case, self()))} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

definitions(Case, Test) ->
    Roots = erlmcp_input:roots(),
    Several = #{Name => Roots || Name <- [~"a", ~"b", ~"c"]},
    Form = erlmcp_input:elicit(~"Name?", #{name => #{type => string}}),
    #{limits => limits(Case),
      tools => [#{name => ~"one", handler => asking(Test, #{~"it" => Roots})},
                #{name => ~"several", handler => asking(Test, Several)},
                #{name => ~"task", task => optional, handler => asking(Test, #{~"it" => Form})},
                erlmcp_test_line:waiting_tool(~"wait"),
                #{name => ~"later", handler => fun(_, _) ->
                    Test ! {asking, self()},
                    receive go -> {input_required, #{~"it" => Roots}} end
                  end},
                #{name => ~"waits", handler => fun
                    (_, #{input := _}) -> Test ! {asking, self()}, receive never -> ok end;
                    (_, _) -> {input_required, #{~"it" => Roots}}
                  end}]}.

%% Only those cases have a short time for an answer in which it passes.
limits(Case) when Case =:= late_answer_is_waited_for_no_more;
                  Case =:= batch_takes_back_what_its_calls_asked ->
    #{input_timeout_ms => 1500};
limits(_) ->
    #{reconnect_ms => 100}.

asking(Test, Requests) ->
    fun(_, #{input := _}) ->
            ~"answered";
       (_, _) ->
            Test ! {asking, self()},
            {input_required, Requests}
    end.

asking() ->
    receive {asking, Pid} -> Pid after 30_000 -> error(nobody_asks) end.

client(Config, Revision) ->
    erlmcp_test_client:open(server(Config), transport(Config), Revision,
                            #{roots => #{}, elicitation => #{}}).

client(Config) ->
    client(Config, ~"2025-11-25").

revisions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25"].

call(Client, Id, Tool) ->
    request(Client, Id, ~"tools/call", #{name => Tool, arguments => #{}}).

asked(Exchange) ->
    #{~"id" := Id, ~"method" := ~"roots/list"} = next(Exchange),
    Id.

%% "containing: The ID of the request to cancel; An optional reason string that can be logged or
%% displayed": of a request "previously issued in the same direction", and on the stream that it
%% was on.
withdrawn(Exchange) ->
    #{~"jsonrpc" := ~"2.0", ~"method" := ~"notifications/cancelled",
      ~"params" := #{~"requestId" := Id, ~"reason" := Reason}} = Message = next(Exchange),
    false = is_map_key(~"id", Message),
    false = is_map_key(~"_meta", map_get(~"params", Message)),
    true = is_binary(Reason),
    Id.

%% Those alone that are "believed to still be in-progress". "The sender of the cancellation
%% notification SHOULD ignore any response to the request that arrives afterward".
late_answer_is_waited_for_no_more(Config) ->
    %% All three are late if the machine stands still before the one is answered.
    [erlmcp_test_pauses:undisturbed(1000, fun() -> is_late(client(Config, Revision)) end)
     || Revision <- revisions()].

is_late(Client) ->
    Exchange = call(Client, 1, ~"several"),
    [One, Two, Three] = [asked(Exchange) || _ <- [1, 2, 3]],
    ok = answer(Client, Two, #{roots => []}),
    Late = lists:sort([withdrawn(Exchange) || _ <- [1, 2]]),
    Late = lists:sort([One, Three]),
    {[], #{~"id" := 1, ~"error" := #{~"code" := 1069}}} = answered(Exchange),
    ok = answer(Client, One, #{roots => []}),
    ok = answer_error(Client, Three, -32603),
    nothing_more(Client).

refused_one_takes_back_the_others(Config) ->
    Client = client(Config),
    Exchange = call(Client, 1, ~"several"),
    [One, Two, Three] = [asked(Exchange) || _ <- [1, 2, 3]],
    ok = answer_error(Client, One, -1),
    Others = lists:sort([withdrawn(Exchange) || _ <- [1, 2]]),
    Others = lists:sort([Two, Three]),
    {[], #{~"id" := 1, ~"error" := #{~"code" := -32603}}} = answered(Exchange),
    nothing_more(Client).

%% "Receivers of cancellation notifications SHOULD: Stop processing the cancelled request; ... Not
%% send a response": what the call has asked is nobody's, then.
cancelled_call_takes_back_what_it_asked(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = call(Client, 1, ~"one"),
         Id = asked(Exchange),
         Pid = asking(),
         ok = cancel(Client, 1),
         Id = withdrawn(Exchange),
         _ = ended(Pid),
         ok = over(Exchange),
         ok = answer(Client, Id, #{roots => []}),
         ok = nothing_more(Client)
     end || Revision <- revisions()].

killed_call_takes_back_what_it_asked(Config) ->
    Client = client(Config),
    Exchange = call(Client, 1, ~"one"),
    Id = asked(Exchange),
    exit(asking(), kill),
    Id = withdrawn(Exchange),
    {[], #{~"id" := 1, ~"error" := #{}}} = answered(Exchange),
    ok = answer(Client, Id, #{roots => []}),
    nothing_more(Client).

answered_request_is_not_taken_back(Config) ->
    Client = client(Config),
    Exchange = call(Client, 1, ~"several"),
    [ok = answer(Client, Id, #{roots => []}) || Id <- [asked(Exchange) || _ <- [1, 2, 3]]],
    {[], #{~"id" := 1, ~"result" := #{}}} = answered(Exchange),
    _ = asking(),
    %% Nor when the call ends otherwise than by its answer.
    Hanging = call(Client, 2, ~"waits"),
    ok = answer(Client, asked(Hanging), #{roots => []}),
    exit(asking(), kill),
    {[], #{~"id" := 2, ~"error" := #{}}} = answered(Hanging),
    nothing_more(Client).

%% 2025-03-26. Each when its call has ended, and not when all have.
batch_takes_back_what_its_calls_asked(Config) ->
    Client = client(Config, ~"2025-03-26"),
    Exchange = batch(Client, [in_batch(1, ~"one"), in_batch(2, ~"wait")]),
    One = asked(Exchange),
    One = withdrawn(Exchange),
    erlmcp_test_line:await_call() ! {answer, ~"done"},
    [#{~"error" := #{~"code" := 1069}}, #{~"result" := #{}}] =
        lists:sort(fun(#{~"id" := A}, #{~"id" := B}) -> A =< B end, next(Exchange)),
    ok = over(Exchange),
    nothing_more(Client).

cancelled_call_of_a_batch_takes_back_what_it_asked(Config) ->
    Client = client(Config, ~"2025-03-26"),
    Cancelled = batch(Client, [in_batch(3, ~"one"), in_batch(4, ~"one")]),
    Asked = [asked(Cancelled) || _ <- [3, 4]],
    ok = cancel(Client, 3),
    Withdrawn = withdrawn(Cancelled),
    [Left] = Asked -- [Withdrawn],
    ok = answer(Client, Left, #{roots => []}),
    [#{~"id" := 4, ~"result" := #{}}] = next(Cancelled),
    ok = over(Cancelled),
    nothing_more(Client).

in_batch(Id, Tool) ->
    #{jsonrpc => ~"2.0", id => Id, method => ~"tools/call",
      params => #{name => Tool, arguments => #{}}}.

%% It had asked before it was ended, and its batch finds the one after the other.
cancelled_call_of_a_batch_asks_nothing(Config) ->
    Client = client(Config, ~"2025-03-26"),
    Exchange = batch(Client, [in_batch(1, ~"later"), in_batch(2, ~"wait")]),
    Pid = asking(),
    Waits = erlmcp_test_line:await_call(),
    {links, [Batch]} = process_info(Pid, links),
    true = erlang:suspend_process(Batch),
    ok = cancel(Client, 1),
    ok = erlmcp_test_servers:await_messages(1, Batch),
    Pid ! go,
    ok = erlmcp_test_servers:await_messages(2, Batch),
    true = erlang:resume_process(Batch),
    Waits ! {answer, ~"done"},
    [#{~"id" := 2, ~"result" := #{}}] = next(Exchange),
    ok = over(Exchange),
    nothing_more(Client).

%% 2025-11-25: what a task asks goes out on the stream of who waits for its result.
task_takes_back_what_it_asked(Config) ->
    Client = client(Config),
    #{~"result" := #{~"task" := #{~"taskId" := Task}}} =
        erlmcp_test_tasks:ask(Client, ~"tools/call",
                              #{name => ~"task", arguments => #{}, task => #{}}),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Task}),
    #{~"id" := Id, ~"method" := ~"elicitation/create"} = erlmcp_test_tasks:next(Exchange),
    #{~"result" := #{~"status" := ~"cancelled"}} =
        erlmcp_test_tasks:ask(client(Config), ~"tasks/cancel", #{taskId => Task}),
    #{~"method" := ~"notifications/cancelled", ~"params" := #{~"requestId" := Id} = Params} =
        erlmcp_test_tasks:next(Exchange),
    %% "All requests, notifications, and responses related to a task MUST include" it.
    #{~"_meta" := #{~"io.modelcontextprotocol/related-task" := #{~"taskId" := Task}}} = Params,
    #{~"id" := 5, ~"error" := #{}} = erlmcp_test_tasks:next(Exchange),
    over(Exchange).

%% A client that has closed its half of a connection can be told, and will answer nothing.
end_of_input_takes_back_what_was_asked(Config) ->
    case transport(Config) of
        tcp ->
            #{socket := Socket} = Client = client(Config),
            Exchange = call(Client, 1, ~"one"),
            Id = asked(Exchange),
            ok = erlmcp_test_line:end_of_input(Socket),
            Id = withdrawn(Exchange),
            #{~"id" := 1, ~"error" := #{}} = next(Exchange),
            erlmcp_test_http:closed(Socket);
        _ ->
            ok
    end.

%% The stream of a session outlives its connection: who comes back to it too late to answer finds
%% the request, that it was taken back, and the answer.
client_that_comes_back_is_told(Config) ->
    case transport(Config) of
        http ->
            #{session := Session} = Client = client(Config),
            {http, Socket} = Exchange = call(Client, 1, ~"one"),
            {200, _} = erlmcp_test_http:head(Socket),
            ok = erlmcp_test_client:close(Client, Exchange),
            _ = ended(asking()),
            {Again, {200, _} = Head} =
                erlmcp_test_http:get_stream(server(Config), Session,
                                            [{~"accept", ~"text/event-stream"},
                                             {~"last-event-id", ~"1-0"}]),
            put({head, Again}, Head),
            Id = asked({http, Again}),
            Id = withdrawn({http, Again}),
            {[], #{~"id" := 1, ~"error" := #{}}} = answered({http, Again});
        _ ->
            ok
    end.
