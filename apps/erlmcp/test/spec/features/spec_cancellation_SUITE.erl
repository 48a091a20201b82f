-module(spec_cancellation_SUITE).
-moduledoc """
"Cancellation" of all revisions of the specification, over HTTP, TCP and HTTP+SSE. A client of
2026-07-28 cancels on HTTP by closing the stream of its request, and by a notification elsewhere.
""".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([cancelled_call_ends/1, call_that_reports_ends/1, what_a_call_holds_is_free/1,
         others_go_on/1]).
-export([client_that_goes_cancels/1]).
-export([invalid_cancellations_are_ignored/1, completed_requests_are_not_cancelled/1,
         requests_of_others_are_not_cancelled/1, requests_to_the_client_are_not_cancelled/1,
         cancellation_races_with_the_answer/1]).
-export([deadline_is_an_answer/1, progress_does_not_move_the_deadline/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [request/4, next/1, over/1, answered/1, nothing_more/1, notify/3]).
-import(erlmcp_test_http, [ended/1]).
-import(erlmcp_test_line, [await_call/0]).

-define(METHOD, ~"notifications/cancelled").

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

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_client:start(definitions(self()))} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(server(Config)).

client(Config, Revision) ->
    erlmcp_test_client:open(server(Config), transport(Config), Revision, #{roots => #{}}).

sessions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25"].

revisions() ->
    [~"2026-07-28" | sessions()].

definitions(Test) ->
    Waiting = erlmcp_test_line:waiting_tool(~"wait"),
    #{tools => [Waiting,
                Waiting#{name := ~"short", timeout_ms => 1000},
                #{name => ~"reports", handler => fun(_, Context) ->
                    ok = erlmcp:progress(Context, 1, #{}),
                    Test ! {called, self(), #{}, Context},
                    receive {answer, Return} -> Return end
                  end},
                #{name => ~"busy", timeout_ms => 100, handler => fun(_, Context) ->
                    busy(0, Context)
                  end},
                #{name => ~"holds", handler => fun(_, Context) ->
                    Port = open_port({spawn_executable, os:find_executable("cat")}, []),
                    Table = ets:new(table, []),
                    Linked = spawn_link(fun() -> receive never -> ok end end),
                    Test ! {called, self(), {Port, Table, Linked}, Context},
                    receive {answer, Return} -> Return end
                  end},
                #{name => ~"asks", handler => fun
                    (_, #{input := _}) -> ~"asked";
                    (_, _) -> {input_required, #{~"it" => erlmcp_input:roots()}}
                  end}]}.

busy(N, Context) ->
    ok = erlmcp:progress(Context, N, #{}),
    receive never -> ok after 5 -> busy(N + 1, Context) end.

call(Client, Id, Name) ->
    request(Client, Id, ~"tools/call",
            #{name => Name, arguments => #{}, '_meta' => #{progressToken => ~"t"}}).

%% As the transport has it; what is written for the request is over, without an answer.
cancel(#{transport := http, capabilities := _} = Client, _, Exchange) ->
    ok = erlmcp_test_client:close(Client, Exchange);
cancel(Client, Id, Exchange) ->
    ok = notify(Client, ?METHOD, #{requestId => Id, reason => ~"User requested cancellation"}),
    case Exchange of
        {http, Socket} ->
            fin = next(Exchange),
            gen_tcp:close(Socket);
        _ ->
            nothing_more(Client)
    end.

%% "Receivers of cancellation notifications SHOULD: Stop processing the cancelled request; Free
%% associated resources; Not send a response for the cancelled request"; "An optional reason
%% string". Its id may be used again: nothing is known of it any more.
cancelled_call_ends(Config) ->
    [begin
         Client = client(Config, Revision),
         [begin
              Exchange = call(Client, Id, ~"wait"),
              Pid = await_call(),
              _ = cancel(Client, Id, Exchange),
              _ = ended(Pid)
          end || Id <- [1, ~"123", 1]],
         nothing_more(Client)
     end || Revision <- revisions()].

%% The same when its stream has begun.
call_that_reports_ends(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = call(Client, 1, ~"reports"),
         #{~"method" := ~"notifications/progress"} = next(Exchange),
         Pid = await_call(),
         _ = cancel(Client, 1, Exchange),
         _ = ended(Pid),
         nothing_more(Client)
     end || Revision <- revisions()].

%% "Free associated resources".
what_a_call_holds_is_free(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = call(Client, 1, ~"holds"),
         receive
             {called, Pid, {Port, Table, Linked}, _} ->
                 _ = cancel(Client, 1, Exchange),
                 [_ = ended(Process) || Process <- [Pid, Linked]],
                 undefined = ets:info(Table, id),
                 undefined = erlang:port_info(Port, id)
         after 30_000 -> error(no_call)
         end
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]].

%% What runs beside it is not touched; `1` and `"1"` are two ids.
others_go_on(Config) ->
    [begin
         Client = client(Config, Revision),
         [{Cancelled, First}, {Other, Second}] =
             [begin
                  Exchange = call(Client, Id, ~"wait"),
                  {await_call(), Exchange}
              end || Id <- [1, ~"1"]],
         _ = cancel(Client, 1, First),
         _ = ended(Cancelled),
         Other ! {answer, ~"done"},
         {[], #{~"id" := ~"1", ~"result" := #{}}} = answered(Second)
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]].

%% 2026-07-28: "The server MUST treat a client disconnect as cancellation of that request." On TCP
%% and HTTP+SSE it is the same for all, but a client that only has no more to say on TCP still reads
%% its answers. A session on HTTP outlives its connections.
client_that_goes_cancels(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = call(Client, 1, Tool),
         Pid = await_call(),
         ok = case Exchange of
             {tcp, Socket} -> erlmcp_test_line:reset(Socket);
             _ -> erlmcp_test_client:close(Client, Exchange)
         end,
         _ = ended(Pid)
     end || Revision <- revisions(), Tool <- [~"wait", ~"reports"],
            transport(Config) =/= http orelse Revision =:= ~"2026-07-28"].

%% "Invalid cancellation notifications SHOULD be ignored: Unknown request IDs, ... Malformed
%% notifications".
invalid_cancellations_are_ignored(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = call(Client, 1, ~"wait"),
         Pid = await_call(),
         [ok = notify(Client, ?METHOD, Params)
          || Params <- [#{}, #{reason => ~"none"}]
                 ++ [#{requestId => Bad}
                     || Bad <- [2, ~"1", ~"", 1.0, null, true, [1], #{}, #{id => 1}]]],
         nothing_more(Client),
         Pid ! {answer, ~"done"},
         {[], #{~"id" := 1, ~"result" := #{}}} = answered(Exchange)
     end || Revision <- revisions()].

%% "Already completed requests"; "The initialize request MUST NOT be cancelled by clients", and one
%% that does finds it completed.
completed_requests_are_not_cancelled(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = call(Client, 1, ~"wait"),
         await_call() ! {answer, ~"done"},
         {[], #{~"id" := 1, ~"result" := #{}}} = answered(Exchange),
         [ok = notify(Client, ?METHOD, #{requestId => Id}) || Id <- [1, 1, ~"initialize", 0]],
         nothing_more(Client),
         %% It was not kept for the next of this id.
         Again = call(Client, 1, ~"wait"),
         await_call() ! {answer, ~"done"},
         {[], #{~"id" := 1, ~"result" := #{}}} = answered(Again)
     end || Revision <- revisions()].

%% "Cancellation notifications MUST only reference requests that: Were previously issued" by who
%% sends them: an id is known to its session or connection alone. On HTTP a notification of
%% 2026-07-28 is of no request at all.
requests_of_others_are_not_cancelled(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = call(Client, 1, ~"wait"),
         Pid = await_call(),
         Other = client(Config, Revision),
         ok = notify(Other, ?METHOD, #{requestId => 1}),
         nothing_more(Other),
         Pid ! {answer, ~"done"},
         {[], #{~"id" := 1, ~"result" := #{}}} = answered(Exchange)
     end || Revision <- revisions()].

%% "Were previously issued in the same direction": a request of the server's is not the client's to
%% cancel, and is answered.
requests_to_the_client_are_not_cancelled(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = call(Client, ~"a", ~"asks"),
         #{~"method" := ~"roots/list", ~"id" := Id} = next(Exchange),
         ok = notify(Client, ?METHOD, #{requestId => Id}),
         nothing_more(Client),
         ok = erlmcp_test_client:answer(Client, Id, #{roots => []}),
         {[], #{~"id" := ~"a", ~"result" := #{}}} = answered(Exchange)
     end || Revision <- sessions()].

%% "cancellation notifications may arrive after request processing has completed, and potentially
%% after a response has already been sent. Both parties MUST handle these race conditions
%% gracefully": there is one answer or none, and the next call is served.
cancellation_races_with_the_answer(Config) ->
    Client = client(Config, ~"2025-11-25"),
    [begin
         Exchange = call(Client, Id, ~"wait"),
         Pid = await_call(),
         Pid ! {answer, ~"done"},
         ok = notify(Client, ?METHOD, #{requestId => Id}),
         _ = ended(Pid),
         one_or_none(Exchange, Id, Client)
     end || Id <- lists:seq(1, 50)],
    nothing_more(Client).

one_or_none({http, Socket} = Exchange, Id, _) ->
    case next(Exchange) of
        #{~"id" := Id, ~"result" := #{}} -> over(Exchange);
        fin -> gen_tcp:close(Socket)
    end;
one_or_none(Exchange, Id, Client) ->
    Ping = request(Client, ~"ping", ~"ping", #{}),
    case next(Exchange) of
        #{~"id" := Id, ~"result" := #{}} -> #{~"id" := ~"ping"} = next(Ping);
        #{~"id" := ~"ping"} -> ok
    end.

%% 2026-07-28: "A server MUST send notifications/cancelled referencing a subscriptions/listen
%% request ID when it tears down that subscription stream. Servers MUST NOT send
%% notifications/cancelled for any other purpose": a call that the server ends is answered, with an
%% error.
deadline_is_an_answer(Config) ->
    [begin
         Client = client(Config, Revision),
         Exchange = call(Client, 1, ~"short"),
         Pid = await_call(),
         {[], #{~"id" := 1, ~"error" := #{~"code" := 1069}}} = answered(Exchange),
         _ = ended(Pid),
         nothing_more(Client)
     end || Revision <- revisions()].

%% "implementations SHOULD always enforce a maximum timeout, regardless of progress notifications".
progress_does_not_move_the_deadline(Config) ->
    [begin
         Client = client(Config, Revision),
         {Messages, #{~"id" := 1, ~"error" := #{~"code" := 1069}}} =
             answered(call(Client, 1, ~"busy")),
         [] = [Message || #{~"method" := Method} = Message <- Messages,
                          Method =/= ~"notifications/progress"],
         nothing_more(Client)
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]].
