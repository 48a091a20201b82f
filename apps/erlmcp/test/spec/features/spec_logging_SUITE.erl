-module(spec_logging_SUITE).
-moduledoc "\"Logging\" of all revisions of the specification, over HTTP, TCP and HTTP+SSE.".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([capability_is_declared/1]).
-export([every_level_can_be_set/1, sessions_hear_of_their_level/1, level_is_the_sessions_own/1,
         unknown_levels_are_invalid_params/1]).
-export([requests_bring_their_level/1, no_level_no_message/1, unknown_levels_of_requests/1,
         requests_set_no_level_for_others/1]).
-export([messages_say_what_was_logged/1, many_messages_come_in_order/1, answer_is_the_end/1,
         messages_stay_on_their_stream/1, logs_of_the_server_are_not_sent/1]).

-import(erlmcp_test_suite, [server/1, transport/1]).
-import(erlmcp_test_client, [request/4, answered/1, nothing_more/1, ask/3]).

-define(LEVELS, [~"debug", ~"info", ~"notice", ~"warning", ~"error", ~"critical", ~"alert",
                 ~"emergency"]).
-define(LEVEL, ~"io.modelcontextprotocol/logLevel").

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

revisions() ->
    [~"2026-07-28" | sessions()].

data() ->
    [~"text", ~"", 7, 0.5, true, null, [], [1, ~"two"], #{},
     #{~"error" => ~"Connection failed", ~"details" => #{~"port" => 5432}}].

definitions(Test) ->
    #{tools => [#{name => ~"every", handler => fun(_, Context) ->
                    [ok = erlmcp:log(Context, binary_to_existing_atom(Level), Level)
                     || Level <- ?LEVELS],
                    ~"logged"
                  end},
                #{name => ~"data", handler => fun(_, Context) ->
                    [ok = erlmcp:log(Context, error, Data, #{logger => ~"database"})
                     || Data <- data()],
                    ok = erlmcp:log(Context, error, ~"of no logger"),
                    ~"logged"
                  end},
                #{name => ~"many", handler => fun(_, Context) ->
                    [ok = erlmcp:log(Context, alert, N) || N <- lists:seq(1, 500)],
                    ok = erlmcp:log(Context, alert, binary:copy(~"x", 200_000)),
                    ~"logged"
                  end},
                #{name => ~"late", handler => fun(_, Context) ->
                    Test ! {late, spawn(fun() -> late(Test, Context) end)},
                    ~"done"
                  end},
                #{name => ~"secret", handler => fun(_, _) ->
                    logger:error("the password is ~ts", [~"hunter2"]),
                    error({password, ~"hunter2"})
                  end}]}.

late(Test, Context) ->
    receive log -> Test ! {logged, erlmcp:log(Context, emergency, ~"late")} end.

call(Client, Name) ->
    request(Client, 1, ~"tools/call", #{name => Name, arguments => #{}}).

%% In a request of 2026-07-28, which says how much it wants to hear.
call(Client, Name, Level) ->
    request(Client, 1, ~"tools/call",
            #{name => Name, arguments => #{}, '_meta' => #{?LEVEL => Level}}).

%% A call that hears of everything, whatever the revision.
loud_call(#{session := _} = Client, Name) ->
    _ = set(Client, ~"debug"),
    call(Client, Name);
loud_call(Client, Name) ->
    call(Client, Name, ~"debug").

set(Client, Level) ->
    #{~"result" := Empty} = ask(Client, ~"logging/setLevel", #{level => Level}),
    0 = map_size(Empty).

levels(Exchange) ->
    {Messages, #{~"id" := 1, ~"result" := #{}}} = answered(Exchange),
    [begin
         #{~"jsonrpc" := ~"2.0", ~"method" := ~"notifications/message",
           ~"params" := #{~"level" := Level, ~"data" := Level}} = Message,
         Level
     end || Message <- Messages].

from(Level) ->
    lists:dropwhile(fun(Lower) -> Lower =/= Level end, ?LEVELS).

%% "Servers that emit log message notifications MUST declare the logging capability".
capability_is_declared(Config) ->
    #{~"result" := #{~"capabilities" := #{~"logging" := #{}}}} =
        ask(client(Config, ~"2026-07-28"), ~"server/discover", #{}),
    [#{messages := [#{~"result" := #{~"capabilities" := #{~"logging" := #{}}}}]} =
         erlmcp_test_http:initialize(server(Config), Revision, #{}) || Revision <- sessions()].

%% "The protocol follows the standard syslog severity levels specified in RFC 5424".
every_level_can_be_set(Config) ->
    [begin
         Client = client(Config, Revision),
         [set(Client, Level) || Level <- ?LEVELS]
     end || Revision <- sessions()].

%% "To configure the minimum log level, clients MAY send a logging/setLevel request"; "Only sends
%% error level and above". Before one does, what is sent is `info` and above.
sessions_hear_of_their_level(Config) ->
    [begin
         Client = client(Config, Revision),
         true = from(~"info") =:= levels(call(Client, ~"every")),
         [begin
              set(Client, Level),
              {Level, Sent} = {Level, levels(call(Client, ~"every"))},
              Sent = from(Level)
          end || Level <- Levels]
     end || {Revision, Levels} <- [{~"2025-11-25", ?LEVELS}, {~"2025-06-18", [~"debug", ~"alert"]},
                                   {~"2025-03-26", [~"notice"]}, {~"2024-11-05", [~"error"]}]].

%% What one client wants is nothing to another.
level_is_the_sessions_own(Config) ->
    One = client(Config, ~"2025-11-25"),
    Two = client(Config, ~"2025-11-25"),
    set(One, ~"emergency"),
    set(Two, ~"debug"),
    [~"emergency"] = levels(call(One, ~"every")),
    ?LEVELS = levels(call(Two, ~"every")).

%% "Invalid log level: -32602 (Invalid params)": and the level stays.
unknown_levels_are_invalid_params(Config) ->
    Client = client(Config, ~"2025-11-25"),
    set(Client, ~"alert"),
    [#{~"error" := #{~"code" := -32602}} = ask(Client, ~"logging/setLevel", Params)
     || Params <- [#{} | [#{level => Level} || Level <- unknown()]]],
    [~"alert", ~"emergency"] = levels(call(Client, ~"every")).

unknown() ->
    [~"DEBUG", ~"warn", ~"loud", ~"", ~" info", 7, null, [~"info"], #{}].

%% "When the field is present, the server MAY send notifications/message notifications at or above
%% the requested level on the response stream of that request, before the final response."
requests_bring_their_level(Config) ->
    Client = client(Config, ~"2026-07-28"),
    [begin
         {Level, Sent} = {Level, levels(call(Client, ~"every", Level))},
         Sent = from(Level)
     end || Level <- ?LEVELS].

%% "The server MUST NOT emit notifications/message for a request that does not include this field":
%% that the one before did does not matter, nor that a session beside it did.
no_level_no_message(Config) ->
    Client = client(Config, ~"2026-07-28"),
    [] = levels(call(Client, ~"every")),
    ?LEVELS = levels(call(Client, ~"every", ~"debug")),
    [] = levels(call(Client, ~"every")),
    Session = client(Config, ~"2025-11-25"),
    set(Session, ~"debug"),
    Beside = (maps:remove(session, Session))#{capabilities => #{}},
    [] = levels(call(Beside, ~"every")),
    [~"alert", ~"emergency"] = levels(call(Beside, ~"every", ~"alert")),
    ?LEVELS = levels(call(Session, ~"every")).

%% "If the io.modelcontextprotocol/logLevel value carried in a request's _meta is not a recognized
%% log level, the server SHOULD reject that request": "-32602 (Invalid params)".
unknown_levels_of_requests(Config) ->
    Client = client(Config, ~"2026-07-28"),
    [begin
         #{~"error" := #{~"code" := -32602, ~"message" := Message}} =
             ask(Client, Method, Params#{'_meta' => #{?LEVEL => Level}}),
         {_, _} = binary:match(Message, ~"logLevel")
     end || Level <- unknown(),
            {Method, Params} <- [{~"tools/call", #{name => ~"every", arguments => #{}}},
                                 {~"tools/list", #{}}, {~"server/discover", #{}}]].

%% 2026-07-28 has no `logging/setLevel`: "Clients control logging verbosity per-request via _meta".
requests_set_no_level_for_others(Config) ->
    Client = client(Config, ~"2026-07-28"),
    #{~"error" := #{~"code" := -32601}} =
        ask(Client, ~"logging/setLevel", #{level => ~"debug"}),
    [] = levels(call(Client, ~"every")).

%% "severity levels, optional logger names, and arbitrary JSON-serializable data".
messages_say_what_was_logged(Config) ->
    [begin
         {Messages, #{~"result" := #{}}} = answered(loud_call(client(Config, Revision), ~"data")),
         Params = [Params || #{~"method" := ~"notifications/message",
                               ~"params" := Params} <- Messages],
         true = Params =:=
             [#{~"level" => ~"error", ~"logger" => ~"database", ~"data" => Data}
              || Data <- data()] ++ [#{~"level" => ~"error", ~"data" => ~"of no logger"}]
     end || Revision <- revisions()].

%% None is lost to a client that reads, nor cut, and the answer comes after them.
many_messages_come_in_order(Config) ->
    [begin
         {Messages, #{~"result" := #{}}} = answered(loud_call(client(Config, Revision), ~"many")),
         true = [Data || #{~"params" := #{~"data" := Data}} <- Messages]
             =:= lists:seq(1, 500) ++ [binary:copy(~"x", 200_000)]
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]].

%% "on the response stream of that request, before the final response": what a process that a
%% handler left behind logs goes nowhere.
answer_is_the_end(Config) ->
    [begin
         Client = client(Config, Revision),
         {[], #{~"result" := #{}}} = answered(loud_call(Client, ~"late")),
         receive {late, Late} -> Late ! log after 30_000 -> error(nobody_is_late) end,
         receive {logged, ok} -> ok after 30_000 -> error(not_logged) end,
         nothing_more(Client)
     end || Revision <- revisions()].

%% "notifications/message is request-scoped: the server MUST NOT deliver it on a
%% subscriptions/listen stream or on any stream other than the one carrying the response to the
%% request that set the log level."
messages_stay_on_their_stream(Config) ->
    Client = client(Config, ~"2026-07-28"),
    Listening = erlmcp_test_client:listen(Client, ~"l", #{toolsListChanged => true}),
    {Messages, #{~"id" := 1}} = answered(call(Client, ~"every", ~"debug")),
    [] = [Meta || #{~"params" := #{~"_meta" := Meta}} <- Messages],
    ok = erlmcp:add(maps:get(pid, server(Config)), tool,
                    #{name => ~"new", handler => fun(_, _) -> ~"new" end}),
    {~"l", ~"notifications/tools/list_changed", _} = erlmcp_test_client:told(Listening),
    %% And on the stream that a session has beside its requests.
    Session = client(Config, ~"2025-11-25"),
    Beside = erlmcp_test_client:stream(Session),
    ?LEVELS = levels(loud_call(Session, ~"every")),
    ok = erlmcp:add(maps:get(pid, server(Config)), tool,
                    #{name => ~"newer", handler => fun(_, _) -> ~"new" end}),
    {none, ~"notifications/tools/list_changed", _} = erlmcp_test_client:told(Beside).

%% "Log messages MUST NOT contain: Credentials or secrets ... Internal system details that could aid
%% attacks": what is logged on the server, and how a handler fails, is not for the client.
logs_of_the_server_are_not_sent(Config) ->
    logger:set_primary_config(level, none),
    [begin
         Client = client(Config, Revision),
         {[], #{~"error" := #{~"code" := -32603}} = Answer} =
             answered(loud_call(Client, ~"secret")),
         nomatch = binary:match(iolist_to_binary(json:encode(Answer)),
                                [~"hunter2", ~"password", ~"_SUITE"]),
         nothing_more(Client)
     end || Revision <- [~"2025-11-25", ~"2026-07-28"]],
    logger:set_primary_config(level, notice).
