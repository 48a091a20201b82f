-module(permits_of_calls_SUITE).
-moduledoc """
The permits of requests that do not run, or run no more, on a connection that stays: each is given
back at once.
""".

-export([suite/0, all/0]).
-export([answers_of_a_batch_hold_nothing/1, refused_calls_hold_nothing/1,
         refused_members_of_a_batch_hold_nothing/1, a_cancelled_call_makes_room_at_once/1,
         a_call_that_asks_makes_room/1, a_cancelled_question_holds_nothing/1,
         a_call_that_ends_itself_is_answered/1]).

-import(erlmcp_test_line, [serve/1, connect/1, send/2, recv/1, ask/4, initialize/2, request/3,
                           notification/2, code/1, waiting_tool/1, await_call/0]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [answers_of_a_batch_hold_nothing, refused_calls_hold_nothing,
     refused_members_of_a_batch_hold_nothing, a_cancelled_call_makes_room_at_once,
     a_call_that_asks_makes_room, a_cancelled_question_holds_nothing,
     a_call_that_ends_itself_is_answered].

%% A batch in which one member waits, and others are answered before.
answers_of_a_batch_hold_nothing(_) ->
    {Server, Socket} = session(#{}, ~"2025-03-26"),
    send(Socket, [request(1, ~"ping", #{}), call(2), request(3, ~"no/such", #{})]),
    Call = await_call(),
    1 = in_flight(Server),
    Call ! {answer, ~"done"},
    [_, _, _] = recv(Socket),
    0 = in_flight(Server).

%% A call with the id of one that runs.
refused_calls_hold_nothing(_) ->
    {Server, Socket} = session(#{}, ~"2025-11-25"),
    send(Socket, call(1)),
    Call = await_call(),
    send(Socket, call(1)),
    #{~"id" := 1, ~"error" := #{~"code" := -32600}} = recv(Socket),
    1 = in_flight(Server),
    Call ! {answer, ~"done"},
    #{~"result" := _} = recv(Socket),
    0 = in_flight(Server).

%% Calls that run before count for the limit of a batch.
refused_members_of_a_batch_hold_nothing(_) ->
    {Server, Socket} = session(#{calls_per_connection => 2}, ~"2025-03-26"),
    send(Socket, call(1)),
    First = await_call(),
    send(Socket, [call(1), call(2), call(3)]),
    Second = await_call(),
    2 = in_flight(Server),
    Second ! {answer, ~"done"},
    Answers = #{Id => Answer || #{~"id" := Id} = Answer <- recv(Socket)},
    #{1 := InUse, 2 := #{~"result" := _}, 3 := TooMany} = Answers,
    {-32600, 1060} = {code(InUse), code(TooMany)},
    1 = in_flight(Server),
    First ! {answer, ~"done"},
    #{~"id" := 1, ~"result" := _} = recv(Socket),
    0 = in_flight(Server).

%% The next request on the connection has the permit of the call that the one before it has ended.
a_cancelled_call_makes_room_at_once(_) ->
    {_, Socket} = session(#{in_flight => 1, queue => 0}, ~"2025-11-25"),
    send(Socket, call(1)),
    _ = await_call(),
    send(Socket, notification(~"notifications/cancelled", #{~"requestId" => 1})),
    #{~"result" := #{}} = ask(Socket, 2, ~"ping", #{}).

%% A call of a session waits for its client's answer. After the answer it runs even if another call
%% has taken its place, and counts again.
a_call_that_asks_makes_room(_) ->
    {Server, Client} = asking_session(#{in_flight => 1, queue => 0}),
    Exchange = asks(1, Client),
    #{~"id" := Question} = erlmcp_test_client:next(Exchange),
    {0, []} = {in_flight(Server), erlmcp:calls(Server)},
    Other = asks(2, Client),
    #{~"id" := OfOther} = erlmcp_test_client:next(Other),
    ok = erlmcp_test_client:answer(Client, Question, #{roots => []}),
    Call = await_call(),
    {1, [#{pid := Call}]} = {in_flight(Server), erlmcp:calls(Server)},
    1060 = code(erlmcp_test_client:ask(Client, ~"tools/call", #{name => ~"ask"})),
    ok = erlmcp_test_client:answer(Client, OfOther, #{roots => []}),
    Second = await_call(),
    2 = in_flight(Server),
    Call ! Second ! {answer, ~"done"},
    Answers = [erlmcp_test_client:next(One) || One <- [Exchange, Other]],
    [1, 2] = lists:sort([Id || #{~"id" := Id, ~"result" := _} <- Answers]),
    0 = in_flight(Server).

a_cancelled_question_holds_nothing(_) ->
    {Server, Client} = asking_session(#{in_flight => 1, queue => 0}),
    Exchange = asks(1, Client),
    #{~"id" := Question} = erlmcp_test_client:next(Exchange),
    ok = erlmcp_test_client:notify(Client, ~"notifications/cancelled", #{requestId => 1}),
    #{~"params" := #{~"requestId" := Question}} = erlmcp_test_client:next(Exchange),
    {ok, #{calls := 0}} = erlmcp:drain(Server, 60_000).

%% Its process may end with any reason before its handler returns, and leaves no request without an
%% answer. Its place in its connection or session is free again.
a_call_that_ends_itself_is_answered(_) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Ends = fun(#{~"said" := Said}, Context) ->
        _ = [ok = erlmcp:log(Context, error, ~"said") || Said],
        exit(self(), normal),
        receive never -> ok end
    end,
    Server = #{pid := Pid} =
        erlmcp_test_client:start(#{tools => [#{name => ~"ends", handler => Ends}],
                                   limits => #{calls_per_connection => 1}}),
    [begin
         Client = erlmcp_test_client:open(Server, Transport, Revision),
         [begin
              Call = #{name => ~"ends", arguments => #{said => Said}},
              Exchange = erlmcp_test_client:request(Client, Id, ~"tools/call", Call),
              {_, #{~"id" := Id, ~"error" := #{~"code" := -32603}}} =
                  erlmcp_test_client:answered(Exchange)
          end || {Id, Said} <- [{1, false}, {2, true}, {3, false}]],
         0 = in_flight(Pid)
     end || Transport <- [http, tcp, sse],
            Revision <- [~"2025-03-26", ~"2025-11-25", ~"2026-07-28"]],
    erlmcp_test_client:stop(Server).

%% A tool that asks, and waits when its client has answered.
asking_session(Limits) ->
    #{handler := Wait} = Waits = waiting_tool(~"ask"),
    Handler = fun(Arguments, #{input := _} = Context) -> Wait(Arguments, Context);
                 (_, _) -> {input_required, #{~"it" => erlmcp_input:roots()}}
              end,
    Server = serve(#{tools => [Waits#{handler := Handler}], limits => Limits}),
    {Server, erlmcp_test_client:open(#{pid => Server}, tcp, ~"2025-11-25", #{roots => #{}})}.

asks(Id, Client) ->
    erlmcp_test_client:request(Client, Id, ~"tools/call", #{name => ~"ask"}).

session(Limits, Revision) ->
    Server = serve(#{tools => [waiting_tool(~"wait")], limits => Limits}),
    Socket = connect(Server),
    _ = initialize(Socket, Revision),
    {Server, Socket}.

call(Id) ->
    request(Id, ~"tools/call", #{~"name" => ~"wait", ~"arguments" => #{}}).

in_flight(Server) ->
    #{in_flight := Count} = erlmcp:info(Server),
    Count.
