-module(spec_ping_SUITE).
-moduledoc "\"Ping\" of the revisions that have it, over HTTP, TCP and HTTP+SSE.".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([pong_is_empty/1, calls_do_not_hold_it_up/1, stateless_requests_have_none/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [request/4, next/1, over/1, ask/3, ask/4]).

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
    erlmcp_test_client:open(server(Config), transport(Config), Revision).

sessions() ->
    [~"2024-11-05", ~"2025-03-26", ~"2025-06-18", ~"2025-11-25"].

definitions(_) ->
    #{tools => [erlmcp_test_line:waiting_tool(~"wait")]}.

%% "The receiver MUST respond promptly with an empty response"; "A ping request is a standard
%% JSON-RPC request with no parameters", and one that has some is one.
pong_is_empty(Config) ->
    [begin
         Client = client(Config, Revision),
         [begin
              Pong = ask(Client, Id, ~"ping", Params),
              true = Pong =:= #{~"jsonrpc" => ~"2.0", ~"id" => Id, ~"result" => #{}}
          end || Id <- [~"123", 123], Params <- [#{}, #{'_meta' => #{progressToken => 1}}]]
     end || Revision <- sessions()].

%% Promptly: while calls run that have not answered, and after they have.
calls_do_not_hold_it_up(Config) ->
    Client = client(Config, ~"2025-11-25"),
    Exchanges = [request(Client, Id, ~"tools/call", #{name => ~"wait", arguments => #{}})
                 || Id <- [1, 2, 3]],
    Calls = [erlmcp_test_line:await_call() || _ <- Exchanges],
    #{~"result" := #{}} = ask(Client, ~"ping", #{}),
    [Call ! {answer, ~"done"} || Call <- Calls],
    [1, 2, 3] = lists:sort([begin
                                #{~"id" := Id, ~"result" := _} = next(Exchange),
                                ok = over(Exchange),
                                Id
                            end || Exchange <- Exchanges]),
    #{~"result" := #{}} = ask(Client, ~"ping", #{}).

%% 2026-07-28 has no such page, and no such method.
stateless_requests_have_none(Config) ->
    #{~"error" := #{~"code" := -32601}} = ask(client(Config, ~"2026-07-28"), ~"ping", #{}).
