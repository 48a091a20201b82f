-module(client_negotiation_SUITE).
-moduledoc """
How a client finds out what a server speaks: specification 2026-07-28, "Versioning and
Compatibility" and the "Backward Compatibility" of its transports; 2025-11-25, "Lifecycle". The
servers are scripts on sockets, one for each kind that there is.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([trouble_on_http_is_no_era/1]).
-export([modern_server_is_asked_what_it_is/1, supported_version_is_taken/1,
         same_version_is_tried_once_more/1, no_common_version/1, modern_error_is_no_fallback/1,
         bad_request_falls_back/1, every_old_answer_falls_back/1, silence_on_tcp_falls_back/1,
         end_on_tcp_falls_back/1, end_on_tcp_gives_up_no_stateless_server/1,
         slow_modern_server_is_no_older_one/1,
         era_is_remembered/1, eras_are_remembered_beside_many_clients/1,
         few_eras_are_forgotten/1, stopped_application_knows_no_era/1, remembered_era_is_given_up/1,
         refusal_gives_up_no_remembered_era/1, pinned_era_is_not_left/1,
         session_is_opened/1, initialize_is_not_cancelled/1,
         server_may_choose_an_older_revision/1, unknown_revision_is_refused/1,
         lost_session_is_opened_again_once/1, session_lost_twice_is_an_error/1,
         accepted_call_of_a_lost_session_runs_once/1, server_that_comes_later/1,
         session_ends_with_the_client/1, session_that_no_call_has_used_ends/1,
         stream_that_does_not_open_delays_no_call/1, invisible_session_id/1, log_level_is_set/1]).

-import(erlmcp_test_peer, [received/1, result/2]).

-define(WAIT, 30_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [modern_server_is_asked_what_it_is, supported_version_is_taken, same_version_is_tried_once_more,
     no_common_version, modern_error_is_no_fallback, bad_request_falls_back,
     every_old_answer_falls_back, silence_on_tcp_falls_back, end_on_tcp_falls_back,
     end_on_tcp_gives_up_no_stateless_server, slow_modern_server_is_no_older_one,
     trouble_on_http_is_no_era, era_is_remembered,
     eras_are_remembered_beside_many_clients, few_eras_are_forgotten,
     stopped_application_knows_no_era,
     remembered_era_is_given_up, refusal_gives_up_no_remembered_era, pinned_era_is_not_left,
     session_is_opened,
     initialize_is_not_cancelled,
     server_may_choose_an_older_revision, unknown_revision_is_refused,
     lost_session_is_opened_again_once, session_lost_twice_is_an_error,
     accepted_call_of_a_lost_session_runs_once, server_that_comes_later,
     session_ends_with_the_client, session_that_no_call_has_used_ends,
     stream_that_does_not_open_delays_no_call, invisible_session_id, log_level_is_set].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% "The server returns a DiscoverResult: the server is modern."
modern_server_is_asked_what_it_is(_) ->
    {Client, _} = visit(fun modern/1, #{}),
    {ok, #{revision := '2026-07-28', server_info := #{~"name" := ~"peer"},
           instructions := ~"be kind", capabilities := #{~"tools" := #{}}}} =
        erlmcp_client:server(Client),
    #{~"params" := #{~"_meta" := Meta}} = received(~"server/discover"),
    #{~"io.modelcontextprotocol/protocolVersion" := ~"2026-07-28",
      ~"io.modelcontextprotocol/clientInfo" := #{~"name" := ~"erlmcp", ~"version" := _},
      ~"io.modelcontextprotocol/clientCapabilities" := #{}} = Meta,
    {ok, []} = erlmcp_client:list_tools(Client),
    no_more(~"initialize").

%% "The client SHOULD select a mutually supported version from the `supported` list."
supported_version_is_taken(_) ->
    {Client, _} = visit(fun(#{message := #{~"method" := ~"server/discover"} = Message}) ->
                                unsupported(Message, [~"2025-06-18", ~"2025-11-25"]);
                           (Request) ->
                                old(Request)
                        end, #{}),
    {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Client),
    #{~"params" := #{~"protocolVersion" := ~"2025-11-25"}} = received(~"initialize").

same_version_is_tried_once_more(_) ->
    Seen = counters:new(1, []),
    {Client, _} = visit(fun(#{message := Message} = Request) ->
                            ok = counters:add(Seen, 1, 1),
                            case counters:get(Seen, 1) of
                                1 -> unsupported(Message, [~"2026-07-28"]);
                                _ -> modern(Request)
                            end
                        end, #{}),
    {ok, #{revision := '2026-07-28'}} = erlmcp_client:server(Client),
    2 = counters:get(Seen, 1).

no_common_version(_) ->
    {Client, _} = visit(fun(#{message := Message}) -> unsupported(Message, [~"2031-01-01"]) end,
                        #{}),
    {error, {unsupported_version, [~"2031-01-01"]}} = erlmcp_client:list_tools(Client).

%% "If the body contains a recognized modern JSON-RPC error, the server speaks a modern version":
%% it is not asked to `initialize`.
modern_error_is_no_fallback(_) ->
    {Client, _} = visit(fun(#{message := Message}) ->
                            {400, [], erlmcp_test_peer:error(Message, -32021, #{})}
                        end, #{}),
    {error, {rpc, #{code := -32021}}} = erlmcp_client:list_tools(Client),
    no_more(~"initialize").

%% "If the body is empty or is not a recognized modern JSON-RPC error, fall back to `initialize`".
bad_request_falls_back(_) ->
    {Client, _} = visit(fun(#{message := #{~"method" := ~"server/discover"}}) -> {400, [], none};
                           (Request) -> old(Request)
                        end, #{}),
    {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Client).

%% "The fallback MUST NOT be keyed to one specific error code."
every_old_answer_falls_back(_) ->
    [begin
         {Client, _} = visit(fun(#{message := #{~"method" := ~"server/discover"} = Message}) ->
                                     Answer(Message);
                                (Request) ->
                                     old(Request)
                             end, #{}),
         {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Client),
         ok = erlmcp_client:stop(Client)
     end || Answer <- [fun(Message) -> {200, [], erlmcp_test_peer:error(Message, -32601, #{})} end,
                       fun(Message) -> {200, [], erlmcp_test_peer:error(Message, -32602, #{})} end,
                       fun(Message) -> {400, [], erlmcp_test_peer:error(Message, -32000, #{})} end,
                       fun(Message) -> {200, [], result(Message, #{})} end,
                       fun(_) -> {404, [], ~"not here"} end,
                       fun(_) -> {405, [], none} end,
                       fun(_) -> {406, [], ~"<html>"} end]].

%% "does not respond within a reasonable timeout: the server is legacy".
silence_on_tcp_falls_back(_) ->
    #{port := Port} = erlmcp_test_peer:tcp(
        fun(#{~"method" := ~"server/discover"}) -> [];
           (#{~"method" := ~"initialize"} = Message) -> [result(Message, initialized())];
           (#{~"method" := ~"tools/list"} = Message) -> [result(Message, #{tools => []})];
           (_) -> []
        end),
    {ok, Client} = erlmcp_client:start_link({tcp, ~"127.0.0.1", Port, #{timeout => 1000}}),
    {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Client, #{timeout => ?WAIT}),
    {ok, []} = erlmcp_client:list_tools(Client).

%% Some older servers do not survive a request that they do not know. The next connection begins as
%% the last one ended. The server that ends whatever it is asked is asked in both ways.
end_on_tcp_falls_back(_) ->
    #{port := Port} = erlmcp_test_peer:tcp(
        fun(#{~"method" := ~"server/discover"}) -> [close];
           (#{~"method" := ~"initialize"} = Message) -> [result(Message, initialized())];
           (#{~"method" := ~"tools/list"} = Message) -> [result(Message, #{tools => []})];
           (#{~"method" := ~"tools/call"}) -> [close];
           (_) -> []
        end),
    {ok, Client} = erlmcp_client:start_link({tcp, ~"127.0.0.1", Port, #{}}),
    #{revision := '2025-11-25'} = reached(Client),
    {ok, []} = erlmcp_client:list_tools(Client),
    [_ = received(Method) || Method <- [~"server/discover", ~"initialize"]],
    {error, {closed, _}} = erlmcp_client:call_tool(Client, ~"t", #{}),
    _ = received(~"initialize"),
    no_more(~"server/discover"),
    {ok, []} = erlmcp_client:list_tools(Client),
    #{port := Other} = erlmcp_test_peer:tcp(fun(_) -> [close] end),
    {ok, _} = erlmcp_client:start_link({tcp, ~"127.0.0.1", Other, #{}}),
    [_ = received(Method) || Method <- [~"server/discover", ~"initialize", ~"server/discover"]].

%% Its connection has ended for another reason, as when the server starts again. The server would
%% open a session, too.
end_on_tcp_gives_up_no_stateless_server(_) ->
    Asked = counters:new(1, []),
    #{port := Port} = erlmcp_test_peer:tcp(
        fun(#{~"method" := ~"server/discover"} = Message) ->
               ok = counters:add(Asked, 1, 1),
               case counters:get(Asked, 1) of
                   2 -> [close];
                   _ -> [body(modern(#{message => Message}))]
               end;
           (#{~"method" := ~"initialize"} = Message) -> [result(Message, initialized())];
           (#{~"method" := ~"tools/call"}) -> [close];
           (_) -> []
        end),
    {ok, Client} = erlmcp_client:start_link({tcp, ~"127.0.0.1", Port, #{}}),
    #{revision := '2026-07-28'} = reached(Client),
    {error, {closed, _}} = erlmcp_client:call_tool(Client, ~"t", #{}),
    [_ = received(~"server/discover") || _ <- [first, closed]],
    #{revision := '2026-07-28'} = reached(Client),
    3 = counters:get(Asked, 1),
    no_more(~"initialize").

%% Each call waits for the end of an attempt.
reached(Client) ->
    case erlmcp_client:server(Client) of
        {ok, Server} -> Server;
        {error, {connect, _}} -> reached(Client)
    end.

%% It was only slow, as one that starts is, and says so when it is asked to `initialize`.
slow_modern_server_is_no_older_one(_) ->
    Asked = counters:new(1, []),
    #{port := Port} = erlmcp_test_peer:tcp(
        fun(#{~"method" := ~"initialize"} = Message) ->
               [erlmcp_test_peer:error(Message, -32022, #{supported => [~"2026-07-28"],
                                                          requested => ~"2025-11-25"})];
           (#{~"method" := ~"server/discover"} = Message) ->
               ok = counters:add(Asked, 1, 1),
               [body(modern(#{message => Message})) || counters:get(Asked, 1) > 1];
           (#{~"method" := ~"tools/list"} = Message) ->
               [body(modern(#{message => Message}))];
           (_) ->
               []
        end),
    {ok, Client} = erlmcp_client:start_link({tcp, ~"127.0.0.1", Port, #{timeout => 1000}}),
    {ok, #{revision := '2026-07-28'}} = erlmcp_client:server(Client, #{timeout => ?WAIT}),
    {ok, []} = erlmcp_client:list_tools(Client, #{timeout => ?WAIT}).

body({200, [], Body}) -> Body.

%% An era is told by an answer: a server that is slow, or breaks, has not told its own.
trouble_on_http_is_no_era(_) ->
    [begin
         {Client, _} = visit(fun(_) -> Trouble end, #{timeout => Timeout}),
         {error, {Reason, _}} = erlmcp_client:list_tools(Client),
         no_more(~"initialize"),
         ok = erlmcp_client:stop(Client)
     end || {Trouble, Reason, Timeout} <- [{silence, timeout, 300}, {close, closed, ?WAIT}]].

%% "Clients SHOULD cache the result for the lifetime of the server process or origin".
era_is_remembered(_) ->
    {Client, #{url := Url}} = visit(fun old/1, #{}),
    {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Client),
    _ = received(~"server/discover"),
    {ok, Second} = erlmcp_client:start_link({http, Url, #{}}),
    {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Second),
    no_more(~"server/discover").

%% The clients and pools of the node take no room from the eras of its servers.
eras_are_remembered_beside_many_clients(_) ->
    {ok, Server} = erlmcp:start_server(#{name => ~"here", version => ~"1"}),
    Clients = [begin
                   {ok, Client} = erlmcp_client:start_link({server, Server, #{}}),
                   Client
               end || _ <- lists:seq(1, 1000)],
    Urls = [begin
                {Client, #{url := Url}} = visit(fun old/1, #{}),
                {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Client),
                _ = received(~"server/discover"),
                Url
            end || _ <- [1, 2]],
    [begin
         {ok, Client} = erlmcp_client:start_link({http, Url, #{}}),
         {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Client)
     end || Url <- Urls],
    no_more(~"server/discover"),
    [ok = erlmcp_client:stop(Client) || Client <- Clients],
    ok = erlmcp:stop_server(Server).

%% At the bound few eras go, and not all. Other cases have left some of their servers.
few_eras_are_forgotten(_) ->
    Clients = [#{settings => #{rules => http,
                               target => <<"http://a/", (integer_to_binary(N))/binary>>}}
               || N <- lists:seq(1, 1500)],
    [ok = erlmcp_client_table:remember(Client, session) || Client <- Clients],
    Known = [Client || Client <- Clients, erlmcp_client_table:remembered(Client) =:= session],
    true = length(Known) > 900 andalso length(Known) =< 1000,
    true = lists:member(lists:last(Clients), Known).

%% The tables end before the negotiations of their clients.
stopped_application_knows_no_era(_) ->
    Client = #{settings => #{rules => http, target => ~"http://a/"}},
    ok = application:stop(erlmcp),
    try
        ok = erlmcp_client_table:remember(Client, session),
        unknown = erlmcp_client_table:remembered(Client)
    after
        ok = application:start(erlmcp)
    end.

%% "re-probing if the cached assumption later fails". A gateway may forbid what its server does not
%% know, and asks for no login then.
remembered_era_is_given_up(_) ->
    [begin
         Renewed = counters:new(1, []),
         {Client, #{url := Url}} = visit(fun(#{message := Message} = Request) ->
                                             case counters:get(Renewed, 1) of
                                                 0 -> old(Request);
                                                 1 -> modern_only(Message, Request, Refuse)
                                             end
                                         end, #{}),
         {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Client),
         ok = counters:put(Renewed, 1, 1),
         {ok, Second} = erlmcp_client:start_link({http, Url, Options}),
         {ok, #{revision := '2026-07-28'}} = erlmcp_client:server(Second)
     end || Refuse <- [fun(Message) -> {400, [], erlmcp_test_peer:error(Message, -32602, #{})} end,
                       fun(_) -> {403, [], none} end],
            Options <- [#{}, #{auth => #{browser => none}}]].

%% Another request would fare no better, and the user would be asked to log in again.
refusal_gives_up_no_remembered_era(_) ->
    Challenge = [{~"www-authenticate", ~B'Bearer error="insufficient_scope", scope="a"'}],
    [begin
         Refuses = counters:new(1, []),
         {Client, #{url := Url}} = visit(fun(Request) ->
                                             case counters:get(Refuses, 1) of
                                                 0 -> old(Request);
                                                 1 -> Refusal
                                             end
                                         end, #{}),
         {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Client),
         _ = received(~"server/discover"),
         ok = counters:put(Refuses, 1, 1),
         {ok, Second} = erlmcp_client:start_link({http, Url, #{auth => #{browser => none}}}),
         {error, {unauthorized, _}} = erlmcp_client:server(Second),
         no_more(~"server/discover")
     end || Refusal <- [{401, [], none}, {403, Challenge, none}]].

modern_only(#{~"method" := ~"initialize"} = Message, _, Refuse) -> Refuse(Message);
modern_only(_, Request, _) -> modern(Request).

pinned_era_is_not_left(_) ->
    {Modern, _} = visit(fun old/1, #{era => stateless}),
    {error, {http, 400, _, _}} = erlmcp_client:list_tools(Modern),
    no_more(~"initialize"),
    Test = self(),
    {Old, _} = visit(fun(#{method := ~"DELETE", headers := Headers}) ->
                             Test ! {ended, maps:get(~"mcp-session-id", Headers)},
                             {200, [], none};
                        (Request) ->
                             old(Request)
                     end, #{era => '2025-06-18'}),
    {error, {unsupported_version, [~"2025-11-25"]}} = erlmcp_client:server(Old),
    %% The server need not keep the session that it has opened.
    receive {ended, ~"s-1"} -> ok after ?WAIT -> error(session_not_ended) end,
    #{~"params" := #{~"protocolVersion" := ~"2025-06-18"}} = received(~"initialize"),
    no_more(~"notifications/initialized"),
    {Same, _} = visit(fun old/1, #{era => '2025-11-25'}),
    {ok, #{revision := '2025-11-25'}} = erlmcp_client:server(Same),
    [begin
         {Other, _} = visit(fun(#{message := Message}) ->
                                unsupported(Message, [~"2025-11-25"])
                            end, #{era => Era}),
         {error, {unsupported_version, [~"2025-11-25"]}} = erlmcp_client:server(Other)
     end || Era <- [stateless, '2026-07-28']].

%% "After successful initialization, the client MUST send an `initialized` notification"; the
%% session and the revision are in the headers of everything that follows.
session_is_opened(_) ->
    Test = self(),
    {Client, _} = visit(fun(#{message := Message, headers := Headers} = Request) ->
                            Test ! {Message, Headers},
                            old(Request)
                        end, #{era => session, name => ~"me", version => ~"7"}),
    {ok, []} = erlmcp_client:list_tools(Client),
    receive
        {#{~"method" := ~"initialize", ~"params" := Params}, First} ->
            #{~"clientInfo" := #{~"name" := ~"me", ~"version" := ~"7"}} = Params,
            false = is_map_key(~"mcp-protocol-version", First),
            false = is_map_key(~"mcp-session-id", First)
    after ?WAIT -> error(no_initialize)
    end,
    [receive
         {#{~"method" := Method}, #{~"mcp-session-id" := ~"s-1",
                                    ~"mcp-protocol-version" := ~"2025-11-25"}} -> ok
     after ?WAIT -> error({missing, Method})
     end || Method <- [~"notifications/initialized", ~"tools/list"]].

%% "The `initialize` request MUST NOT be cancelled by clients". When the second one has failed, a
%% notification about the first one has had its time.
initialize_is_not_cancelled(_) ->
    #{url := Url} = erlmcp_test_peer:http(fun(_) -> silence end),
    #{port := Port} = erlmcp_test_peer:tcp(fun(_) -> [] end),
    Options = #{era => session, timeout => 300},
    [begin
         {ok, Client} = erlmcp_client:start_link(Target),
         [begin
              {error, {timeout, _}} = erlmcp_client:server(Client, #{timeout => ?WAIT}),
              _ = received(~"initialize")
          end || _ <- [1, 2]],
         no_more(~"notifications/cancelled"),
         ok = erlmcp_client:stop(Client)
     end || Target <- [{http, Url, Options}, {tcp, {127, 0, 0, 1}, Port, Options}]].

server_may_choose_an_older_revision(_) ->
    {Client, _} = visit(fun(#{message := #{~"method" := ~"initialize"} = Message}) ->
                                Result = (initialized())#{protocolVersion := ~"2024-11-05"},
                                {200, [], result(Message, Result)};
                           (Request) ->
                                old(Request)
                        end, #{era => session}),
    {ok, #{revision := '2024-11-05'}} = erlmcp_client:server(Client).

%% "If the client does not support the version in the server's response, it SHOULD disconnect."
unknown_revision_is_refused(_) ->
    {Client, _} = visit(fun(#{message := #{~"method" := ~"initialize"} = Message}) ->
                            {200, [], result(Message, (initialized())#{protocolVersion := ~"1.0"})}
                        end, #{era => session}),
    {error, {unsupported_version, [~"1.0"]}} = erlmcp_client:list_tools(Client),
    no_more(~"notifications/initialized").

%% "When a client receives HTTP 404 in response to a request containing an Mcp-Session-Id, it MUST
%% start a new session".
lost_session_is_opened_again_once(_) ->
    Sessions = counters:new(1, []),
    {Client, _} = visit(fun(Request) -> forgetful(Request, Sessions, ~"s-2") end,
                        #{era => session}),
    {ok, []} = erlmcp_client:list_tools(Client),
    2 = counters:get(Sessions, 1).

session_lost_twice_is_an_error(_) ->
    Sessions = counters:new(1, []),
    {Client, _} = visit(fun(Request) -> forgetful(Request, Sessions, none) end, #{era => session}),
    {error, session_lost} = erlmcp_client:list_tools(Client),
    2 = counters:get(Sessions, 1).

%% The server accepts the first call, and has forgotten the session when the client resumes the
%% stream of that call. Only a call that reads is repeated.
accepted_call_of_a_lost_session_runs_once(_) ->
    [begin
         Sessions = counters:new(1, []),
         Calls = counters:new(1, []),
         {Client, _} = visit(fun(Request) -> accepting_once(Request, Sessions, Calls) end,
                             #{era => session}),
         {Operation, Outcome} = {Operation, outcome(Client, Operation)},
         {Operation, Accepted} = {Operation, counters:get(Calls, 1)},
         %% The session is opened again for the next call, if not for this one.
         {ok, []} = erlmcp_client:list_tools(Client),
         2 = counters:get(Sessions, 1)
     end || {Operation, Outcome, Accepted} <- [
                {{call_tool, ~"t", #{}}, {error, {closed, session_lost}}, 1},
                {{list, tools}, {ok, []}, 2}]].

outcome(Client, Operation) ->
    {ok, Reference} = erlmcp_client:async(Client, Operation),
    receive {erlmcp, Reference, Outcome} -> Outcome after ?WAIT -> error(late) end.

accepting_once(#{headers := #{~"last-event-id" := ~"e-1"}}, _, _) ->
    {404, [], none};
accepting_once(#{message := #{~"method" := <<"tools/", _/binary>>}} = Request, Sessions, Calls) ->
    Answer = case counters:get(Calls, 1) of
        0 -> {events, [~"id: e-1\nretry: 0\ndata:\n\n", close]};
        _ -> forgetful(Request, Sessions, ~"s-2")
    end,
    ok = case Answer of
        {404, _, _} -> ok;
        _ -> counters:add(Calls, 1, 1)
    end,
    Answer;
accepting_once(Request, Sessions, _) ->
    forgetful(Request, Sessions, ~"s-2").

%% Knows only the session that it is told to know.
forgetful(#{message := #{~"method" := ~"initialize"} = Message}, Sessions, _) ->
    ok = counters:add(Sessions, 1, 1),
    Id = <<"s-", (integer_to_binary(counters:get(Sessions, 1)))/binary>>,
    {200, [{~"mcp-session-id", Id}], result(Message, initialized())};
forgetful(#{message := #{~"method" := ~"notifications/initialized"}}, _, _) ->
    {202, [], none};
forgetful(#{headers := #{~"mcp-session-id" := Known}, message := #{~"id" := _} = Message}, _,
          Known) ->
    {200, [], result(Message, #{tools => []})};
forgetful(#{message := none}, _, _) ->
    {405, [], none};
forgetful(_, _, _) ->
    {404, [], none}.

%% A client does not need its server to start, and finds it when it is there.
server_that_comes_later(_) ->
    {Port, Taken} = erlmcp_test_port:taken(),
    Url = <<"http://127.0.0.1:", (integer_to_binary(Port))/binary, "/mcp">>,
    {ok, Client} = erlmcp_client:start_link({http, Url, #{}}),
    {error, {connect, econnrefused}} = erlmcp_client:list_tools(Client),
    ok = erlmcp_test_port:give_back(Taken),
    {ok, Server} = erlmcp:start_server(#{name => ~"late", version => ~"1",
                                         listen => [{http, #{port => Port}}]}),
    ok = until_ok(Client, 50),
    ok = erlmcp:stop_server(Server).

until_ok(Client, Left) when Left > 0 ->
    case erlmcp_client:server(Client) of
        {ok, #{server_info := #{~"name" := ~"late"}}} ->
            ok;
        {error, {connect, _}} ->
            %% The pause after a failure is the pool's.
            receive after 100 -> until_ok(Client, Left - 1) end
    end.

%% "Clients that no longer need a particular session SHOULD send an HTTP DELETE".
session_ends_with_the_client(_) ->
    Test = self(),
    {Client, _} = visit(fun(#{method := ~"DELETE", headers := Headers}) ->
                                Test ! {deleted, maps:get(~"mcp-session-id", Headers)},
                                {200, [], none};
                           (Request) ->
                                old(Request)
                        end, #{era => session}),
    {ok, _} = erlmcp_client:server(Client),
    ok = erlmcp_client:stop(Client),
    receive {deleted, ~"s-1"} -> ok after ?WAIT -> error(no_delete) end.

%% The client is stopped while it waits for the session's stream to open.
session_that_no_call_has_used_ends(_) ->
    Test = self(),
    {Client, _} = visit(fun(#{method := ~"DELETE", headers := Headers}) ->
                                Test ! {deleted, maps:get(~"mcp-session-id", Headers)},
                                {200, [], none};
                           (#{method := ~"GET"}) ->
                                Test ! opening,
                                silence;
                           (Request) ->
                                old(Request)
                        end, #{era => session}),
    receive opening -> ok after ?WAIT -> error(no_stream) end,
    ok = erlmcp_client:stop(Client),
    receive {deleted, ~"s-1"} -> ok after 0 -> error(no_delete) end.

%% Calls begin after two seconds without the stream, whatever ends meanwhile: here each second the
%% request of a subscription.
stream_that_does_not_open_delays_no_call(_) ->
    Answered = counters:new(1, []),
    {Client, _} = visit(fun(#{method := ~"GET"}) ->
                                silence;
                           (#{message := #{~"method" := ~"resources/subscribe"} = Message}) ->
                                #{~"params" := #{~"uri" := <<"test://", Second>>}} = Message,
                                receive after (Second - $0) * 1000 -> ok end,
                                ok = counters:add(Answered, 1, 1),
                                {200, [], result(Message, #{})};
                           (Request) ->
                                old(Request)
                        end, #{era => session}),
    [{ok, _} = erlmcp_client:subscribe(Client, #{resources => [<<"test://", Second>>]})
     || Second <- "123456"],
    {ok, []} = erlmcp_client:list_tools(Client),
    true = counters:get(Answered, 1) < 6,
    ok = erlmcp_client:stop(Client).

%% "The session ID MUST only contain visible ASCII characters".
invisible_session_id(_) ->
    {Client, _} = visit(fun(#{message := #{~"method" := ~"initialize"} = Message}) ->
                            {200, [{~"mcp-session-id", ~"a b"}], result(Message, initialized())}
                        end, #{era => session}),
    {error, {protocol, <<"Mcp-Session-Id", _/binary>>}} = erlmcp_client:list_tools(Client).

log_level_is_set(_) ->
    {Client, _} = visit(fun(#{message := #{~"method" := ~"initialize"} = Message}) ->
                                Result = (initialized())#{capabilities := #{logging => #{}}},
                                {200, [], result(Message, Result)};
                           (Request) ->
                                old(Request)
                        end, #{era => session, log_level => warning}),
    {ok, _} = erlmcp_client:server(Client),
    #{~"params" := #{~"level" := ~"warning"}} = received(~"logging/setLevel").

visit(Answer, Options) ->
    #{url := Url} = Peer = erlmcp_test_peer:http(Answer),
    {ok, Client} = erlmcp_client:start_link({http, Url, Options}),
    {Client, Peer}.

modern(#{message := #{~"method" := ~"server/discover"} = Message}) ->
    {200, [], result(Message, #{resultType => complete, supportedVersions => [~"2026-07-28"],
                                capabilities => #{tools => #{}}, instructions => ~"be kind",
                                ttlMs => 0, cacheScope => public,
                                '_meta' => #{~"io.modelcontextprotocol/serverInfo" =>
                                                 #{name => ~"peer", version => ~"1"}}})};
modern(#{message := #{~"method" := ~"tools/list"} = Message}) ->
    {200, [], result(Message, #{resultType => complete, tools => [], ttlMs => 0,
                                cacheScope => public})}.

old(#{message := #{~"method" := ~"initialize"} = Message}) ->
    {200, [{~"mcp-session-id", ~"s-1"}], result(Message, initialized())};
old(#{message := #{~"method" := ~"tools/list", ~"params" := Params} = Message}) when
    not is_map_key(~"_meta", Params)
->
    {200, [], result(Message, #{tools => []})};
old(#{message := #{~"method" := ~"logging/setLevel"} = Message}) ->
    {200, [], result(Message, #{})};
old(#{message := #{~"method" := ~"notifications/initialized"}}) ->
    {202, [], none};
old(#{message := none}) ->
    {405, [], none};
old(_) ->
    {400, [], none}.

initialized() ->
    #{protocolVersion => ~"2025-11-25", capabilities => #{tools => #{}},
      serverInfo => #{name => ~"peer", version => ~"1"}}.

unsupported(Message, Versions) ->
    {400, [], erlmcp_test_peer:error(Message, -32022, #{supported => Versions,
                                                        requested => ~"2026-07-28"})}.

%% What should not have been sent had its time while the client was served.
no_more(Method) ->
    receive
        {peer, #{~"method" := Method}} -> error({came, Method})
    after 0 ->
        ok
    end.
