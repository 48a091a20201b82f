-module(spec_2025_11_25_tasks_results_SUITE).
-moduledoc """
Specification 2025-11-25, "Tasks", over HTTP and TCP: who waits for the result of a task, is asked
for input meanwhile, and is told of its changes.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([result_waits_for_the_end/1, result_is_what_the_call_gives/1, result_is_the_same_error/1,
         error_result_is_failed/1, result_of_a_cancelled_task/1, result_is_cancelled_alone/1,
         waiting_keeps_nobody_waiting/1, waiting_counts_as_a_call/1, input_is_asked_on_the_result/1,
         refused_input_fails_the_task/1, input_is_asked_again_of_the_next/1,
         input_is_asked_of_who_still_waits/1, answers_may_come_from_two/1,
         answered_elsewhere_is_taken_back_at_once/1, answered_is_not_asked_again/1,
         url_is_asked_with_its_id/1, client_without_the_capability_is_not_asked/1,
         each_question_goes_to_who_can_answer/1,
         client_that_cannot_be_asked_waits/1, client_that_cannot_be_asked_keeps_no_question/1,
         client_that_will_not_answer_keeps_no_question/1, progress_goes_to_who_waits/1,
         progress_goes_to_the_session/1, changes_are_told/1, changes_are_told_to_their_session/1,
         a_lost_task_is_told/1, what_nobody_reads_is_not_kept/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [request/4, over/1, answer/3, answer_error/3]).
-import(erlmcp_test_session_tasks, [client/1, client/2, augmented/2, augmented/3, call/2, waiting/1,
                                    result/2]).
-import(erlmcp_test_tasks, [accept/2, refused/2, ask/3, next/1, running/0, finish/2, get/2, id/1,
                            until/3, waited_for/3]).

-define(RELATED, ~"io.modelcontextprotocol/related-task").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE),
    Http = [client_that_cannot_be_asked_waits, client_that_cannot_be_asked_keeps_no_question,
            what_nobody_reads_is_not_kept],
    [{http, Cases}, {tcp, Cases -- Http}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) ->
    [{transport, Transport} | Config].

end_per_group(_, _) ->
    ok.

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_tasks:start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

%% "it MUST block the response until the task reaches a terminal status"; "The `tasks/result`
%% operation MUST include this metadata in its response".
result_waits_for_the_end(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    %% Others are answered meanwhile: it is not the connection that waits.
    #{~"status" := ~"working"} = get(Client, Id),
    finish(Pid, ~"done"),
    #{~"id" := 5, ~"result" := #{~"content" := [#{~"text" := ~"done"}],
                                 ~"_meta" := #{?RELATED := #{~"taskId" := Id}}}} = next(Exchange),
    over(Exchange),
    %% And again, when it is over.
    #{~"result" := #{~"content" := [#{~"text" := ~"done"}],
                     ~"_meta" := #{?RELATED := #{~"taskId" := Id}}}} = result(Client, Id).

result_is_what_the_call_gives(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    finish(Pid, #{sum => 3}),
    #{~"result" := Result} = result(Client, Id),
    #{~"structuredContent" := #{~"sum" := 3}, ~"content" := [_]} = Result,
    [~"_meta", ~"content", ~"structuredContent"] = lists:sort(maps:keys(Result)).

%% "If the underlying request resulted in a JSON-RPC error, `tasks/result` MUST return that same
%% JSON-RPC error."
result_is_the_same_error(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"slow")),
    #{~"status" := ~"failed", ~"statusMessage" := Message} = until(Client, Id, ~"failed"),
    #{~"error" := #{~"code" := 1069, ~"message" := Message}} = result(Client, Id).

%% "For tasks that wrap tool call requests, when the tool result has `isError` set to `true`, the
%% task should reach `failed` status."
error_result_is_failed(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"fails")),
    %% "The `tasks/get` response SHOULD include a `statusMessage` field with diagnostic information
    %% about the failure."
    #{~"statusMessage" := _} = until(Client, Id, ~"failed"),
    #{~"result" := #{~"isError" := true, ~"content" := [#{~"text" := ~"it broke"}]}} =
        result(Client, Id),
    ok.

result_of_a_cancelled_task(Config) ->
    Client = client(Config),
    {Id, _} = waiting(Client),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    %% Not on the stream that the other answer comes on: which is first, nobody says.
    #{~"result" := #{~"status" := ~"cancelled"}} =
        ask(client(Config), ~"tasks/cancel", #{taskId => Id}),
    #{~"id" := 5, ~"error" := #{~"code" := -32603}} = next(Exchange),
    over(Exchange),
    _ = refused(-32603, result(Client, Id)).

%% "For task cancellation, use the `tasks/cancel` request instead of this notification." What is
%% cancelled by it is the waiting.
result_is_cancelled_alone(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    case transport(Config) of
        http -> fin = cancelled(Client, 5, Exchange);
        tcp -> ok = erlmcp_test_client:cancel(Client, 5)
    end,
    #{~"status" := ~"working"} = get(Client, Id),
    finish(Pid, ~"done"),
    #{~"result" := #{~"content" := [#{~"text" := ~"done"}]}} = result(Client, Id).

%% On another connection than the request's a cancellation may come first, and means nothing then.
cancelled(Client, Id, Exchange) ->
    Canceller = spawn_link(fun Again() ->
        ok = erlmcp_test_client:cancel(Client, Id),
        receive after 200 -> Again() end
    end),
    Next = next(Exchange),
    true = unlink(Canceller),
    true = exit(Canceller, kill),
    Next.

waiting_keeps_nobody_waiting(Config) ->
    Client = client(Config),
    {Id, Pid} = waiting(Client),
    Exchanges = [request(Client, N, ~"tasks/result", #{taskId => Id}) || N <- lists:seq(1, 20)],
    Last = request(Client, 21, ~"tools/call", #{name => ~"plain", arguments => #{}}),
    #{~"id" := 21} = next(Last),
    finish(Pid, ~"done"),
    Answers = [next(Exchange) || Exchange <- Exchanges],
    20 = length(lists:usort([N || #{~"id" := N, ~"result" := _} <- Answers])).

waiting_counts_as_a_call(Config) ->
    Server = erlmcp_test_tasks:start(#{calls_per_connection => 2, queue_per_connection => 0}),
    Client = client(Server, Config),
    {Id, Pid} = waiting(Client),
    Exchanges = [request(Client, N, ~"tasks/result", #{taskId => Id}) || N <- [1, 2]],
    %% They arrive each on its own connection.
    ok = waited_for(Server, Id, 2),
    %% The task itself is none of its connection's calls; those that wait for it are.
    #{~"limit" := 2} = refused(1060, call(Client, ~"quick")),
    finish(Pid, ~"done"),
    _ = [#{~"result" := _} = next(Exchange) || Exchange <- Exchanges],
    erlmcp_test_client:stop(Server).

%% "The receiver MUST include the `io.modelcontextprotocol/related-task` metadata in the request to
%% associate it with the task."; "When the receiver receives all required input, the task SHOULD
%% transition out of `input_required` status".
input_is_asked_on_the_result(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"ask")),
    #{~"status" := ~"input_required"} = Task = until(Client, Id, ~"input_required"),
    false = is_map_key(~"inputRequests", Task),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    Asked = #{Message => Request || #{~"id" := Request, ~"method" := ~"elicitation/create",
                                      ~"params" := #{~"message" := Message} = Params}
                                        <- [next(Exchange), next(Exchange)],
                                    is_related(Params, Id)},
    #{~"Name?" := Name, ~"Town?" := Town} = Asked,
    ok = answer(Client, Name, accept(~"name", ~"Ada")),
    ok = answer(Client, Town, accept(~"town", ~"Rome")),
    #{~"id" := 5, ~"result" := #{~"structuredContent" := #{~"answers" := Answers}}} =
        next(Exchange),
    #{~"name" := #{~"name" := ~"Ada"}, ~"town" := #{~"town" := ~"Rome"}} = Answers,
    over(Exchange).

%% The id of a URL is required in this revision.
url_is_asked_with_its_id(Config) ->
    Client = client_with(#{elicitation => #{url => #{}}}, Config),
    Id = id(augmented(Client, ~"visit")),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := Asked, ~"method" := ~"elicitation/create",
      ~"params" := #{~"mode" := ~"url", ~"elicitationId" := ~"e-1"}} = next(Exchange),
    ok = answer(Client, Asked, #{action => accept}),
    #{~"id" := 5, ~"result" := #{~"content" := [#{~"text" := ~"accept"}]}} = next(Exchange),
    over(Exchange).

%% "Servers MUST NOT send elicitation requests with modes that are not supported by the client."
%% Such a client waits for the answers of another one.
client_without_the_capability_is_not_asked(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"twice")),
    _ = until(Client, Id, ~"input_required"),
    Others = [{Number, request(client_with(Capabilities, Config), Number, ~"tasks/result",
                               #{taskId => Id})}
              || {Number, Capabilities} <- [{6, #{}}, {7, #{elicitation => #{url => #{}}}}]],
    ok = waited_for(server(Config), Id, 2),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    [begin
         #{~"id" := Asked, ~"method" := ~"elicitation/create"} = next(Exchange),
         ok = answer(Client, Asked, accept(~"name", Name))
     end || Name <- [~"Ada", ~"Bob"]],
    [#{~"id" := Number, ~"result" := _} = next(Waits)
     || {Number, Waits} <- [{5, Exchange} | Others]].

%% The client that could not answer the first question is asked the second one, which the other
%% client cannot answer.
each_question_goes_to_who_can_answer(Config) ->
    Caller = client_with(#{elicitation => #{}, sampling => #{}}, Config),
    Id = id(augmented(Caller, ~"sketch")),
    _ = until(Caller, Id, ~"input_required"),
    [Samples, Fills] = [client_with(Capabilities, Config)
                        || Capabilities <- [#{sampling => #{}}, #{elicitation => #{}}]],
    Two = request(Samples, 6, ~"tasks/result", #{taskId => Id}),
    ok = is_unable(erlmcp_test_tasks:keeper(server(Config), Id)),
    One = request(Fills, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := First, ~"method" := ~"elicitation/create"} = next(One),
    ok = answer(Fills, First, accept(~"name", ~"Ada")),
    #{~"id" := Second, ~"method" := ~"sampling/createMessage"} = next(Two),
    ok = answer(Samples, Second, #{role => assistant, model => ~"m",
                                   content => #{type => text, text => ~"A"}}),
    [#{~"id" := Number, ~"result" := #{~"content" := [#{~"text" := ~"m"}]}} = next(Exchange)
     || {Number, Exchange} <- [{5, One}, {6, Two}]].

%% Waits until the one process that waits for the task has said that its client cannot be asked.
is_unable(Keeper) ->
    erlmcp_test_servers:await(fun() ->
        case [Pids || Pids <- tuple_to_list(sys:get_state(Keeper)), is_list(Pids)] of
            [[], [_]] -> {ok, ok};
            _ -> again
        end
    end).

client_with(Capabilities, Config) ->
    erlmcp_test_client:open(server(Config), transport(Config), ~"2025-11-25", Capabilities).

is_related(#{~"_meta" := #{?RELATED := #{~"taskId" := Id}}}, Id) -> true;
is_related(_, _) -> false.

refused_input_fails_the_task(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"twice")),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := Asked} = next(Exchange),
    ok = answer_error(Client, Asked, -32603),
    #{~"id" := 5, ~"error" := #{~"code" := -32603}} = next(Exchange),
    over(Exchange),
    #{~"status" := ~"failed"} = get(Client, Id),
    ok.

%% The client went away while it was asked; the next one who waits is asked again.
input_is_asked_again_of_the_next(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"twice")),
    Lost = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := _} = next(Lost),
    ok = erlmcp_test_client:close(Client, Lost),
    Other = client(Config),
    Exchange = request(Other, 6, ~"tasks/result", #{taskId => Id}),
    #{~"id" := First, ~"params" := #{~"message" := ~"Name?"}} = next(Exchange),
    ok = answer(Other, First, accept(~"name", ~"Ada")),
    #{~"id" := Second, ~"params" := #{~"message" := ~"And again?"}} = next(Exchange),
    ok = answer(Other, Second, accept(~"name", ~"Bob")),
    #{~"id" := 6, ~"result" := #{~"structuredContent" := #{~"first" := #{~"name" := ~"Ada"},
                                                           ~"second" := #{~"name" := ~"Bob"}}}} =
        next(Exchange),
    over(Exchange).

input_is_asked_of_who_still_waits(Config) ->
    {Id, {Client, One, First}, {Other, Two, Same}} = two_are_asked(Config),
    ok = answer(Client, First, accept(~"name", ~"Ada")),
    %% What was answered there needs no answer here.
    Same = withdrawn(Two, Id),
    #{~"params" := #{~"message" := ~"And again?"}} = next(Two),
    %% The one that was asked waits no more.
    ok = erlmcp_test_client:cancel(Other, 6),
    #{~"id" := Second, ~"params" := #{~"message" := ~"And again?"}} = next(One),
    ok = answer(Client, Second, accept(~"name", ~"Bob")),
    #{~"id" := 5, ~"result" := #{~"structuredContent" := #{~"second" := #{~"name" := ~"Bob"}}}} =
        next(One),
    over(One).

answers_may_come_from_two(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"ask")),
    One = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"Name?" := Name, ~"Town?" := SameTown} = asked(One),
    Other = client(Config),
    Two = request(Other, 6, ~"tasks/result", #{taskId => Id}),
    #{~"Town?" := Town, ~"Name?" := SameName} = asked(Two),
    ok = answer(Client, Name, accept(~"name", ~"Ada")),
    ok = answer(Other, Town, accept(~"town", ~"Rome")),
    SameName = withdrawn(Two, Id),
    SameTown = withdrawn(One, Id),
    [#{~"result" := #{~"structuredContent" := #{~"answers" := #{
        ~"name" := #{~"name" := ~"Ada"}, ~"town" := #{~"town" := ~"Rome"}}}}} = next(Exchange)
     || Exchange <- [One, Two]].

%% It is taken back when it is answered, and not when the task asks again or ends.
answered_elsewhere_is_taken_back_at_once(Config) ->
    {Id, {_, One, Same}, {Other, Two, First}} = two_are_asked(Config),
    ok = answer(Other, First, accept(~"name", ~"Ada")),
    Same = withdrawn(One, Id),
    #{~"id" := Second, ~"params" := #{~"message" := ~"And again?"}} = next(Two),
    ok = answer(Other, Second, accept(~"name", ~"Bob")),
    [#{~"result" := #{}} = next(Exchange) || Exchange <- [One, Two]].

%% Its client becomes the one that is asked while the answer is on its way.
answered_is_not_asked_again(Config) ->
    {Id, {Client, One, First}, {Other, _, _}} = two_are_asked(Config),
    Keeper = erlmcp_test_tasks:keeper(server(Config), Id),
    ok = sys:suspend(Keeper),
    ok = erlmcp_test_client:cancel(Other, 6),
    ok = erlmcp_test_servers:await_messages(1, Keeper),
    ok = answer(Client, First, accept(~"name", ~"Ada")),
    ok = erlmcp_test_servers:await_messages(2, Keeper),
    ok = sys:resume(Keeper),
    #{~"id" := Second, ~"params" := #{~"message" := ~"And again?"}} = next(One),
    ok = answer(Client, Second, accept(~"name", ~"Bob")),
    #{~"id" := 5, ~"result" := _} = next(One),
    over(One).

%% Two clients wait for the same task. Both have its first question.
two_are_asked(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"twice")),
    One = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := First} = next(One),
    Other = client(Config),
    Two = request(Other, 6, ~"tasks/result", #{taskId => Id}),
    #{~"id" := Second} = next(Two),
    {Id, {Client, One, First}, {Other, Two, Second}}.

withdrawn(Exchange, Task) ->
    #{~"method" := ~"notifications/cancelled",
      ~"params" := #{~"requestId" := Id, ~"_meta" := #{?RELATED := #{~"taskId" := Task}}}} =
        next(Exchange),
    Id.

asked(Exchange) ->
    #{Message => Id || #{~"id" := Id, ~"params" := #{~"message" := Message}}
                           <- [next(Exchange), next(Exchange)]}.

%% One that reads no streams can wait for the result; it is another one that is asked.
client_that_cannot_be_asked_waits(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"twice")),
    _ = until(Client, Id, ~"input_required"),
    Socket = result_without_stream(5, Id, Client),
    %% The one that comes last is asked.
    ok = waited_for(server(Config), Id, 1),
    Exchange = request(Client, 6, ~"tasks/result", #{taskId => Id}),
    #{~"id" := First} = next(Exchange),
    ok = answer(Client, First, accept(~"name", ~"Ada")),
    #{~"id" := Second} = next(Exchange),
    ok = answer(Client, Second, accept(~"name", ~"Bob")),
    #{~"id" := 6, ~"result" := _} = next(Exchange),
    #{status := 200, messages := [#{~"id" := 5, ~"result" := _}]} =
        erlmcp_test_http:response(Socket),
    ok.

%% The one that comes last cannot be asked, and so the one before it is asked what follows.
client_that_cannot_be_asked_keeps_no_question(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"twice")),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := First} = next(Exchange),
    Socket = result_without_stream(6, Id, Client),
    ok = waited_for(server(Config), Id, 2),
    ok = answer(Client, First, accept(~"name", ~"Ada")),
    #{~"id" := Second, ~"params" := #{~"message" := ~"And again?"}} = next(Exchange),
    ok = answer(Client, Second, accept(~"name", ~"Bob")),
    #{~"id" := 5, ~"result" := _} = next(Exchange),
    #{status := 200, messages := [#{~"id" := 6, ~"result" := _}]} =
        erlmcp_test_http:response(Socket),
    ok.

result_without_stream(Request, Id, #{server := Server, session := Session}) ->
    Socket = erlmcp_test_http:connect(Server),
    {Headers, Body} = erlmcp_test_http:message(~"tasks/result", #{taskId => Id},
                                               #{session => Session, id => Request,
                                                 headers => #{~"accept" => ~"application/json"}}),
    ok = erlmcp_test_http:send(Socket, ~"POST", Headers, Body),
    Socket.

%% The same of one that was asked, and whose answer cannot come any more: its connection is lost,
%% and it does not come back in time, or it has closed its half.
client_that_will_not_answer_keeps_no_question(Config) ->
    Server = erlmcp_test_tasks:start(#{reconnect_ms => 100}),
    [Client, Other] = [client(Server, Config) || _ <- [1, 2]],
    Id = id(augmented(Client, ~"twice")),
    One = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := First} = next(One),
    Two = request(Other, 6, ~"tasks/result", #{taskId => Id}),
    #{~"id" := _} = next(Two),
    ok = case Other of
        #{transport := http} -> erlmcp_test_client:close(Other, Two);
        #{transport := tcp, socket := Socket} -> erlmcp_test_line:end_of_input(Socket)
    end,
    ok = answer(Client, First, accept(~"name", ~"Ada")),
    #{~"id" := Second, ~"params" := #{~"message" := ~"And again?"}} = next(One),
    ok = answer(Client, Second, accept(~"name", ~"Bob")),
    #{~"id" := 5, ~"result" := _} = next(One),
    erlmcp_test_client:stop(Server).

%% "The `progressToken` provided in the initial request remains valid throughout the task
%% lifetime."; "All requests, notifications, and responses related to a task MUST include the
%% `io.modelcontextprotocol/related-task` key in their `_meta` field".
progress_goes_to_who_waits(Config) ->
    Client = client(Config),
    Id = id(augmented(Client, ~"later", #{'_meta' => #{progressToken => ~"p"}})),
    Exchange = request(Client, 5, ~"tasks/result", #{taskId => Id}),
    #{~"id" := Asked} = next(Exchange),
    ok = answer(Client, Asked, accept(~"name", ~"Ada")),
    {Pid, Context} = running(),
    ok = erlmcp:progress(Context, 1, #{message => ~"half"}),
    ok = erlmcp:log(Context, error, ~"logged"),
    #{~"method" := ~"notifications/progress",
      ~"params" := #{~"progressToken" := ~"p", ~"progress" := 1} = Progress} = next(Exchange),
    true = is_related(Progress, Id),
    #{~"method" := ~"notifications/message", ~"params" := #{~"data" := ~"logged"} = Logged} =
        next(Exchange),
    true = is_related(Logged, Id),
    #{~"statusMessage" := ~"half"} = get(Client, Id),
    finish(Pid, ~"done"),
    #{~"id" := 5} = next(Exchange),
    over(Exchange).

progress_goes_to_the_session(Config) ->
    Client = client(Config),
    Session = erlmcp_test_client:stream(Client),
    Id = id(augmented(Client, ~"report", #{'_meta' => #{progressToken => 7}})),
    {Pid, _} = running(),
    #{~"method" := ~"notifications/progress",
      ~"params" := #{~"progressToken" := 7, ~"progress" := 1} = Params} = next(Session),
    true = is_related(Params, Id),
    #{~"method" := ~"notifications/message"} = next(Session),
    #{~"params" := #{~"progress" := 2}} = next(Session),
    finish(Pid, ~"done").

%% "When a task status changes, receivers MAY send a `notifications/tasks/status` notification";
%% it "SHOULD NOT include the `io.modelcontextprotocol/related-task` metadata".
changes_are_told(Config) ->
    Client = client(Config),
    Session = erlmcp_test_client:stream(Client),
    Id = id(augmented(Client, ~"wait")),
    {Pid, _} = running(),
    finish(Pid, ~"done"),
    #{~"method" := ~"notifications/tasks/status",
      ~"params" := #{~"taskId" := Id, ~"status" := ~"completed"} = Told} =
        erlmcp_test_client:next(Session),
    Told = get(Client, Id),
    false = is_map_key(~"_meta", Told).

changes_are_told_to_their_session(Config) ->
    Client = client(Config),
    Other = client(Config),
    OtherSession = erlmcp_test_client:stream(Other),
    {Id, Pid} = waiting(Client),
    finish(Pid, ~"done"),
    _ = until(Client, Id, ~"completed"),
    Mine = id(augmented(Other, ~"quick")),
    #{~"method" := ~"notifications/tasks/status", ~"params" := #{~"taskId" := Mine}} =
        erlmcp_test_client:next(OtherSession),
    %% Nobody is subscribed to what is over. Its process tells of the end before it ends.
    erlmcp_test_servers:await(fun() ->
        case [Topic || {{task, _, _} = Topic, _}
                           <- erlmcp_test_client:subscribers(server(Config))] of
            [] -> {ok, ok};
            [_ | _] -> again
        end
    end).

%% Its keeper could not tell it, nor take with it what it had in tables.
a_lost_task_is_told(Config) ->
    Client = client(Config),
    Session = erlmcp_test_client:stream(Client),
    {Id, Pid} = waiting(Client),
    exit(erlmcp_test_tasks:keeper(server(Config), Id), kill),
    _ = erlmcp_test_http:ended(Pid),
    ok = erlmcp_test_tasks:sweep(server(Config)),
    #{~"method" := ~"notifications/tasks/status",
      ~"params" := #{~"taskId" := Id, ~"status" := ~"failed"}} = erlmcp_test_client:next(Session),
    [] = [Topic || {{task, _, _} = Topic, _} <- erlmcp_test_client:subscribers(server(Config))],
    {0, 0} = erlmcp_test_extension_tasks:settled(server(Config)),
    ok.

%% A session whose own stream was never open is not told later of each task that it ever had.
what_nobody_reads_is_not_kept(Config) ->
    Client = client(Config),
    [_ = until(Client, id(augmented(Client, ~"quick")), ~"completed") || _ <- [1, 2, 3]],
    %% A task publishes its end after others can see it, and then its process ends.
    {0, 0} = erlmcp_test_extension_tasks:settled(server(Config)),
    Session = erlmcp_test_client:stream(Client),
    #{pid := Pid} = server(Config),
    ok = erlmcp:add(Pid, tool, #{name => ~"new", handler => fun(_, _) -> ~"" end}),
    #{~"method" := ~"notifications/tools/list_changed"} = erlmcp_test_client:next(Session),
    ok.
