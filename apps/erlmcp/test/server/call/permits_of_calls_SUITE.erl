-module(permits_of_calls_SUITE).
-moduledoc """
The permits of requests that do not run, or run no more, on a connection that stays: each is given
back at once.
""".

-export([suite/0, all/0]).
-export([answers_of_a_batch_hold_nothing/1, refused_calls_hold_nothing/1,
         refused_members_of_a_batch_hold_nothing/1, a_cancelled_call_makes_room_at_once/1]).

-import(erlmcp_test_line, [serve/1, connect/1, send/2, recv/1, ask/4, initialize/2, request/3,
                           notification/2, code/1, waiting_tool/1, await_call/0]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [answers_of_a_batch_hold_nothing, refused_calls_hold_nothing,
     refused_members_of_a_batch_hold_nothing, a_cancelled_call_makes_room_at_once].

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
