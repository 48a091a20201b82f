-module(spec_2025_03_26_batching_SUITE).
-moduledoc "Specification 2025-03-26, \"Base protocol / Batching\": JSON-RPC batches over HTTP.".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([requests_are_answered_in_one_array/1, notifications_alone_are_202/1,
         empty_array_is_one_error/1, invalid_members_are_answered_one_by_one/1,
         messages_of_a_batch_are_bounded/1, calls_of_a_batch_are_bounded/1,
         calls_of_a_batch_run_side_by_side/1, notifications_come_before_the_array/1,
         crash_costs_its_own_request_only/1, initialize_cannot_be_batched/1,
         other_revisions_have_no_batches/1, cancelled_ends_one_call_of_a_batch/1,
         disconnect_does_not_cancel_a_batch/1, delete_answers_a_batch/1]).

-import(erlmcp_test_suite, [server/1]).
-import(erlmcp_test_http, [call/4, message/3, connect/1, send/4, close/1, response/1, initialize/2,
                           running/0, finish/2, ended/1, post/3,
                           delete/2]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    Server = start(#{}),
    [{server, Server}, {session, initialize(Server, ~"2025-03-26")} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_http:stop(server(Config)).

start(Limits) ->
    erlmcp_test_http:start((erlmcp_test_http:definitions(self()))#{limits => Limits}).

%% One member of a batch.
member(Id, Method, Params) ->
    {_, Body} = message(Method, Params, #{id => Id, session => {~"", ~"2025-03-26"}}),
    Body.

wait(Id) ->
    member(Id, ~"tools/call", #{name => ~"wait", arguments => #{id => Id}}).

batch(Members) ->
    [$[, lists:join($,, Members), $]].

post_batch(Config, Members) ->
    post_batch(server(Config), proplists:get_value(session, Config), Members).

post_batch(Server, Session, Members) ->
    {Headers, _} = message(~"", #{}, #{session => Session}),
    post(Server, Headers, batch(Members)).

open_batch(Config, Members) ->
    Socket = connect(server(Config)),
    {Headers, _} = message(~"", #{}, #{session => proplists:get_value(session, Config)}),
    ok = send(Socket, ~"POST", Headers, batch(Members)),
    Socket.

by_id(Answers) ->
    maps:from_list([{maps:get(~"id", Answer), Answer} || Answer <- Answers]).

%% "MCP implementations MUST support receiving JSON-RPC batches." "The responses MAY be batched."
%% JSON-RPC 2.0: "The Server should respond with an Array containing the corresponding Response
%% objects."
requests_are_answered_in_one_array(Config) ->
    #{status := 200, headers := #{~"content-type" := ~"application/json"}, messages := [Answers]} =
        post_batch(Config, [member(1, ~"tools/list", #{}), member(~"a", ~"ping", #{}),
                            member(2, ~"tools/call", #{name => ~"progress"}),
                            member(none, ~"notifications/initialized", #{}),
                            member(3, ~"no/such", #{}),
                            member(4, ~"tools/call", #{name => ~"no such"})]),
    5 = length(Answers),
    #{1 := #{~"jsonrpc" := ~"2.0", ~"result" := #{~"tools" := _}}, ~"a" := #{~"result" := _},
      2 := #{~"result" := #{~"content" := [#{~"text" := ~"done"}]}},
      3 := #{~"error" := #{~"code" := -32601}}, 4 := #{~"error" := #{~"code" := -32602}}} =
        by_id(Answers),
    %% A batch of one is a batch.
    #{status := 200, messages := [[#{~"id" := 1, ~"result" := _}]]} =
        post_batch(Config, [member(1, ~"ping", #{})]).

%% "If the input consists solely of (any number of) JSON-RPC responses or notifications: the server
%% MUST return HTTP status code 202 Accepted with no body."
notifications_alone_are_202(Config) ->
    [#{status := 202, body := <<>>} = post_batch(Config, Members)
     || Members <- [[member(none, ~"notifications/initialized", #{})],
                    [member(none, ~"notifications/cancelled", #{requestId => 9}),
                     member(none, ~"notifications/unknown", #{})],
                    [~'{"jsonrpc":"2.0","id":1,"result":{}}',
                     ~'{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":"m"}}'],
                    [~'{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}',
                     ~'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"m"}}']]].

%% JSON-RPC 2.0: "If the batch rpc call itself fails to be recognized as a valid JSON or as an Array
%% with at least one value, the response from the Server MUST be a single Response object."
empty_array_is_one_error(Config) ->
    #{status := 400, messages := [#{~"error" := #{~"code" := -32600}} = Error]} =
        post_batch(Config, []),
    false = is_map_key(~"id", Error).

invalid_members_are_answered_one_by_one(Config) ->
    #{status := 200, messages := [Answers]} =
        post_batch(Config, [~"1", ~"{}", member(5, ~"ping", #{}), ~'{"jsonrpc":"2.0","id":6}',
                            batch([member(7, ~"ping", #{})])]),
    5 = length(Answers),
    [#{~"result" := _}] = [Answer || #{~"id" := 5} = Answer <- Answers],
    [#{~"error" := #{~"code" := -32600}}] = [Answer || #{~"id" := 6} = Answer <- Answers],
    [-32600, -32600, -32600] =
        [Code || #{~"error" := #{~"code" := Code}} = Answer <- Answers,
                 not is_map_key(~"id", Answer)].

%% Bounded refusal: 100 messages, and not one more.
messages_of_a_batch_are_bounded(Config) ->
    Pings = fun(Count) -> [member(N, ~"ping", #{}) || N <- lists:seq(1, Count)] end,
    #{status := 200, messages := [Answers]} = post_batch(Config, Pings(100)),
    100 = map_size(by_id(Answers)),
    #{messages := [#{~"error" := #{~"code" := -32600, ~"data" := Data}} = Refused]} =
        post_batch(Config, Pings(101)),
    #{~"limit" := 100, ~"observed" := 101} = Data,
    false = is_map_key(~"id", Refused).

%% Bounded refusal: as many calls as may run at once, and not one more. Each request that is refused
%% is told so by its id: "Responses MUST include the same ID as the request they correspond to."
calls_of_a_batch_are_bounded(_) ->
    Server = start(#{calls_per_connection => 2}),
    Session = initialize(Server, ~"2025-03-26"),
    Call = fun(Id) -> member(Id, ~"tools/call", #{name => ~"progress"}) end,
    #{messages := [Served]} = post_batch(Server, Session, [Call(1), Call(2)]),
    #{1 := #{~"result" := _}, 2 := #{~"result" := _}} = by_id(Served),
    #{messages := [Answers]} = post_batch(Server, Session, [Call(Id) || Id <- [1, 2, 3]]),
    [1, 2, 3] = lists:sort(maps:keys(by_id(Answers))),
    [_ | _] = Refused = [Data || #{~"error" := #{~"code" := 1060, ~"data" := Data}} <- Answers],
    [#{~"limit" := 2, ~"observed" := 3} = Data || Data <- Refused],
    erlmcp_test_http:stop(Server).

%% JSON-RPC 2.0: "The Server MAY process a batch rpc call as a set of concurrent tasks."
calls_of_a_batch_run_side_by_side(Config) ->
    Socket = open_batch(Config, [wait(N) || N <- lists:seq(1, 5)]),
    Calls = [running() || _ <- lists:seq(1, 5)],
    [finish(Pid, integer_to_binary(Id)) || {Pid, #{~"id" := Id}} <- lists:reverse(Calls)],
    #{messages := [Answers]} = response(Socket),
    Texts = [{Id, Text} || #{~"id" := Id, ~"result" := #{~"content" := [#{~"text" := Text}]}}
                               <- Answers],
    [{1, ~"1"}, {2, ~"2"}, {3, ~"3"}, {4, ~"4"}, {5, ~"5"}] = lists:sort(Texts),
    close(Socket).

%% "The server MAY send JSON-RPC requests and notifications before sending a JSON-RPC response."
notifications_come_before_the_array(Config) ->
    Progress = #{name => ~"progress", '_meta' => #{progressToken => ~"t"}},
    #{status := 200, headers := #{~"content-type" := ~"text/event-stream"},
      messages := [#{~"method" := ~"notifications/progress"},
                   #{~"method" := ~"notifications/progress"},
                   #{~"method" := ~"notifications/progress"}, Answers]} =
        post_batch(Config, [member(1, ~"tools/call", Progress), member(2, ~"ping", #{})]),
    #{1 := #{~"result" := _}, 2 := #{~"result" := _}} = by_id(Answers).

crash_costs_its_own_request_only(Config) ->
    #{status := 200, messages := [Answers]} =
        post_batch(Config, [member(1, ~"tools/call", #{name => ~"crash"}),
                            member(2, ~"tools/call", #{name => ~"progress"}),
                            member(3, ~"tools/call", #{name => ~"slow"})]),
    #{1 := #{~"error" := #{~"code" := -32603}}, 2 := #{~"result" := _},
      3 := #{~"error" := #{~"code" := 1069}}} = by_id(Answers).

%% "The initialize request MUST NOT be part of a JSON-RPC batch, as other requests are not possible
%% until initialization has completed."
initialize_cannot_be_batched(Config) ->
    Initialize = member(1, ~"initialize", #{protocolVersion => ~"2025-03-26", capabilities => #{},
                                            clientInfo => #{name => ~"c", version => ~"1"}}),
    #{status := 400, headers := Headers, messages := [#{~"error" := #{~"code" := -32600}}]} =
        post(server(Config), [{~"content-type", ~"application/json"}],
             batch([Initialize])),
    false = is_map_key(~"mcp-session-id", Headers),
    #{messages := [[#{~"id" := 1, ~"error" := #{~"code" := -32600}}]]} =
        post_batch(Config, [Initialize]).

%% Revision 2025-06-18, changes: "Remove support for JSON-RPC batching."
other_revisions_have_no_batches(Config) ->
    Server = server(Config),
    [begin
         #{messages := [#{~"error" := #{~"code" := -32600}} = Refused]} =
             post_batch(Server, initialize(Server, Revision), [member(1, ~"ping", #{})]),
         false = is_map_key(~"id", Refused)
     end || Revision <- [~"2024-11-05", ~"2025-06-18", ~"2025-11-25"]].

%% "Receivers of cancellation notifications SHOULD stop processing the cancelled request [and] not
%% send a response for the cancelled request."
cancelled_ends_one_call_of_a_batch(Config) ->
    Socket = open_batch(Config, [wait(1), wait(2)]),
    Calls = maps:from_list([{Id, Pid} || {Pid, #{~"id" := Id}} <- [running(), running()]]),
    #{1 := Cancelled, 2 := Other} = Calls,
    #{status := 202} =
        call(server(Config), ~"notifications/cancelled", #{requestId => 1},
             #{session => proplists:get_value(session, Config), id => none}),
    _ = ended(Cancelled),
    finish(Other, ~"undisturbed"),
    #{messages := [[#{~"id" := 2, ~"result" := _}]]} = response(Socket),
    close(Socket).

%% "Disconnection SHOULD NOT be interpreted as the client cancelling its request."
disconnect_does_not_cancel_a_batch(Config) ->
    Socket = open_batch(Config, [wait(1)]),
    {Pid, _} = running(),
    Monitor = monitor(process, Pid),
    close(Socket),
    %% Time for the server to notice, and to be wrong.
    receive
        {'DOWN', Monitor, process, _, Reason} -> error({cancelled, Reason})
    after 300 -> ok
    end,
    finish(Pid, ~"done"),
    receive
        {'DOWN', Monitor, process, _, normal} -> ok
    after 30_000 -> error(alive)
    end.

%% A batch that ends with its session is answered as one, too.
delete_answers_a_batch(Config) ->
    Socket = open_batch(Config, [wait(1), wait(2)]),
    Calls = [Pid || {Pid, _} <- [running(), running()]],
    #{status := 204} = delete(server(Config), proplists:get_value(session, Config)),
    lists:foreach(fun(Call) -> _ = ended(Call) end, Calls),
    #{status := 200, messages := [Answers]} = response(Socket),
    #{1 := #{~"error" := _}, 2 := #{~"error" := _}} = by_id(Answers),
    close(Socket).
