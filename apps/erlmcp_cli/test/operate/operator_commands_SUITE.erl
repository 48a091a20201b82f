-module(operator_commands_SUITE).
-moduledoc """
`erlmcp sessions`, `calls`, `top`, `cancel`, `drain` and `reload`, by a control socket and by
distribution; and the socket itself, at its bounds.
""".

-include_lib("kernel/include/file.hrl").

-import(erlmcp_test_program, [main/1, erlmcp/2, one_line/1]).
-import(erlmcp_test_http, [initialize/2, initialize/3]).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([sessions_are_listed/1, a_client_forges_no_line/1, a_long_name_is_cut/1, calls_are_listed/1,
         a_call_is_cancelled/1, servers_are_drained/1, servers_are_lame_before/1,
         a_drain_that_fails_is_said/1,
         servers_are_reloaded/1, a_refused_reload_is_said/1, mounted_servers_are_named/1,
         figures_are_shown/1, times_are_of_answers/1, upstreams_are_shown/1,
         running_calls_are_shown/1,
         dependencies_are_shown/1, figures_move/1,
         the_verdict_is_shown/1, a_socket_is_found/1, answers_that_are_none_are_said/1,
         wrong_use_is_said/1]).
-export([serve_has_a_socket/1, stdio_has_none/1, a_node_is_reached_by_distribution/1]).
-export([hold_ports/0]).
-export([no_file_of_others_is_removed/1, the_socket_outlives_a_want_of_ports/1]).
-export([no_question_ends_the_socket/1, a_question_that_fails_is_answered/1,
         silent_connections_end/1]).
%% A cluster.
-export([init/2, task_store/1, keys/2, operate/2]).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [sessions_are_listed, a_client_forges_no_line, a_long_name_is_cut, calls_are_listed,
     a_call_is_cancelled, servers_are_drained, servers_are_lame_before, a_drain_that_fails_is_said,
     servers_are_reloaded, a_refused_reload_is_said, mounted_servers_are_named,
     figures_are_shown, times_are_of_answers, upstreams_are_shown, running_calls_are_shown,
     dependencies_are_shown, figures_move,
     the_verdict_is_shown, a_socket_is_found, answers_that_are_none_are_said, wrong_use_is_said,
     serve_has_a_socket, stdio_has_none, a_node_is_reached_by_distribution,
     no_file_of_others_is_removed, the_socket_outlives_a_want_of_ports,
     no_question_ends_the_socket, a_question_that_fails_is_answered, silent_connections_end].

init_per_suite(Given) ->
    Config = erlmcp_test_program:init(Given),
    {ok, _} = application:ensure_all_started(erlmcp_cli),
    %% The path of a socket has 107 bytes at most.
    Folder = filename:join("/tmp", "erlmcp-" ++ os:getpid()),
    ok = filelib:ensure_path(Folder),
    true = os:putenv("XDG_RUNTIME_DIR", Folder),
    [{folder, filename:join(Folder, "erlmcp")}, {runtime, Folder} | Config].

end_per_suite(Config) ->
    true = os:unsetenv("XDG_RUNTIME_DIR"),
    file:del_dir_r(proplists:get_value(runtime, Config)).

init_per_testcase(_, Config) ->
    Test = self(),
    Waits = fun(_, _) -> Test ! {runs, self()}, receive go -> ~"done" end end,
    Server = erlmcp_test_http:start(#{
        id => operated, name => ~"operated", version => ~"1",
        tools => [#{name => ~"waits", handler => Waits}]}),
    {ok, Control} = erlmcp_cli_sup:start_control(erlmcp_cli_control:file()),
    [{server, Server}, {control, Control} | Config].

end_per_testcase(_, Config) ->
    ok = supervisor:terminate_child(erlmcp_cli_sup, control),
    ok = supervisor:delete_child(erlmcp_cli_sup, control),
    erlmcp_test_http:stop(proplists:get_value(server, Config)).

%% Whoever sees the list cannot use the sessions.
sessions_are_listed(Config) ->
    {0, "no session is open\n", ""} = main(["sessions"]),
    Server = proplists:get_value(server, Config),
    {Id, _} = Session = initialize(Server, ~"2025-06-18"),
    {0, Out, ""} = main(["sessions"]),
    [["session" | _], [Shown, "suite", "1", "2025-06-18", "anonymous", _, "s", "0", "operated"],
     []] =
        [string:lexemes(Line, " ") || Line <- string:split(Out, "\n", all)],
    nomatch = string:find(Out, Id),
    Unused = #{~"mcp-session-id" => none},
    #{status := 200} = initialize(Server, ~"2025-11-25", Unused),
    {0, Json, ""} = main(["sessions", "--json"]),
    ShownId = list_to_binary(Shown),
    [#{~"id" := ShownId, ~"idle_ms" := Idle, ~"calls" := 0, ~"server" := ~"operated"},
     #{~"revision" := ~"2025-11-25", ~"idle_ms" := ~"unused"}] =
        json:decode(list_to_binary(Json)),
    true = is_integer(Idle),
    #{status := 200} = erlmcp_test_http:call(Server, ~"ping", #{}, #{session => Session}).

%% What a client calls itself stays in its column.
a_client_forges_no_line(Config) ->
    opened(#{name => ~"agent\nThe server is well\n0123456789ab", version => ~"1\t2"}, Config),
    {0, Out, ""} = main(["sessions"]),
    [_, Line, []] = string:split(Out, "\n", all),
    {match, _} = re:run(Line, "^[0-9a-f]{12}  agent The server is well 0123456789ab 1 2  2025-").

%% No character is cut in two.
a_long_name_is_cut(Config) ->
    opened(#{name => <<"a", (binary:copy(~"é", 3_000))/binary>>, version => ~"1"}, Config),
    {0, Json, ""} = main(["sessions", "--json"]),
    Cut = <<"a", (binary:copy(~"é", 127))/binary>>,
    [#{~"client" := Cut}] = json:decode(unicode:characters_to_binary(Json)),
    ok.

opened(Info, Config) ->
    #{status := 200} = erlmcp_test_http:call(
        proplists:get_value(server, Config), ~"initialize",
        #{protocolVersion => ~"2025-11-25", capabilities => #{}, clientInfo => Info},
        #{session => {~"", ~"2025-11-25"},
          headers => #{~"mcp-session-id" => none, ~"mcp-protocol-version" => none}}),
    ok.

calls_are_listed(Config) ->
    {0, "no call runs\n", ""} = main(["calls"]),
    {_, Pid} = started(Config),
    {0, Out, ""} = main(["calls"]),
    [["call" | _], [_, _, "s", "tools/call", "waits", "anonymous", "operated"], []] =
        [string:lexemes(Line, " ") || Line <- string:split(Out, "\n", all)],
    {0, Stack, ""} = main(["calls", "--stack"]),
    {match, _} = re:run(Stack, "^    operator_commands_SUITE:.*init_per_testcase.*$", [multiline]),
    Pid ! go,
    ok.

a_call_is_cancelled(Config) ->
    {Client, Pid} = started(Config),
    {0, Json, ""} = main(["calls", "--json"]),
    [#{~"id" := Id, ~"target" := ~"waits"}] = json:decode(list_to_binary(Json)),
    Monitor = monitor(process, Pid),
    {0, Out, ""} = main(["cancel", binary_to_list(Id)]),
    one_line(Out),
    receive {'DOWN', Monitor, process, Pid, _} -> ok end,
    #{~"error" := #{~"code" := -32603}} = answered(Client),
    {1, "", Why} = main(["cancel", binary_to_list(Id)]),
    one_line(Why).

servers_are_drained(Config) ->
    {Client, Pid} = started(Config),
    Monitor = monitor(process, Pid),
    {0, Out, ""} = main(["drain", "--seconds", "0"]),
    "operated is drained: 1 call was ended before the answer, 0 tasks still run\n" = Out,
    receive {'DOWN', Monitor, process, Pid, _} -> ok end,
    #{~"error" := #{~"code" := 1077}} = answered(Client),
    #{state := server_shutting_down} = erlmcp:info(operated).

servers_are_lame_before(_) ->
    Test = self(),
    _ = spawn_link(fun() ->
        Test ! {drained, main(["drain", "--lame", "2", "--seconds", "0"])}
    end),
    ok = until_lame(),
    #{state := open} = erlmcp:info(operated),
    receive {drained, {0, "operated is drained: 0 calls " ++ _, ""}} -> ok end,
    #{state := server_shutting_down} = erlmcp:info(operated).

%% Its process ends while the server is lame.
a_drain_that_fails_is_said(_) ->
    Test = self(),
    _ = spawn_link(fun() ->
        Test ! {drained, main(["drain", "--lame", "60", "--seconds", "0"])}
    end),
    ok = until_lame(),
    [Drain] = [Pid || Pid <- processes(),
                      {current_stacktrace, Stack} <- [process_info(Pid, current_stacktrace)],
                      {erlmcp_drain, _, _, _} <- [lists:keyfind(erlmcp_drain, 1, Stack)]],
    true = exit(Drain, kill),
    {1, "", Why} = receive {drained, Outcome} -> Outcome end,
    {match, _} = re:run(Why, "^operated is not drained: the process of the drain .*\n$").

until_lame() ->
    case erlmcp:health(operated) of
        #{ready := true} -> until_lame();
        #{checks := #{drain := #{passes := false}}} -> ok
    end.

%% A module that was compiled again while it is served.
servers_are_reloaded(Config) ->
    ok = supervisor:terminate_child(erlmcp_cli_sup, control),
    Folder = filename:join(proplists:get_value(priv_dir, Config), ?FUNCTION_NAME),
    Write = fun(Tools) -> erlmcp_test_module:compiled(reloadable("reloadable", Tools), Folder) end,
    File = Write("one"),
    ok = served(File, [], Config, fun(_, Url) ->
        {0, "one\n", ""} = main(["call", Url, "tool"]),
        {0, "reloadable is reloaded: 0 definitions added, 0 changed, 0 removed\n", ""} =
            main(["reload"]),
        _ = Write("two"),
        {0, "reloadable is reloaded: 0 definitions added, 0 changed, 0 removed; "
            "new code of reloadable\n", ""} = main(["reload"]),
        {0, "two\n", ""} = main(["call", Url, "tool"]),
        {0, Json, ""} = main(["reload", "--json"]),
        [#{~"server" := ~"reloadable", ~"added" := 0, ~"changed" := 0, ~"removed" := 0,
           ~"modules" := [], ~"old_code" := []}] = json:decode(list_to_binary(Json))
    end),
    {ok, _} = supervisor:restart_child(erlmcp_cli_sup, control),
    ok.

reloadable(Name, Text) ->
    ["-module(", Name, "). -behaviour(erlmcp_server). -export([server/0, tools/0]).
      server() -> #{name => <<\"", Name, "\">>, version => <<\"1\">>}.
      tools() -> [#{name => <<\"tool\">>, handler => fun(_, _) -> ", case Text of
          "wrong" -> "7 end, wrong => field";
          _ -> ["<<\"", Text, "\">> end"]
      end, "}]."].

a_refused_reload_is_said(Config) ->
    {1, "", None} = main(["reload"]),
    one_line(None),
    Folder = filename:join(proplists:get_value(priv_dir, Config), ?FUNCTION_NAME),
    [Right, Wrong] = Names = ["reload_right", "reload_wrong"],
    Servers = [begin
         File = erlmcp_test_module:compiled(reloadable(Name, "one"), Folder),
         {module, Module} = code:load_abs(filename:rootname(File)),
         {ok, Server} = erlmcp:start_server(#{id => Module, handler => Module}),
         Server
     end || Name <- Names],
    _ = erlmcp_test_module:compiled(reloadable(Wrong, "wrong"), Folder),
    {1, Out, Why} = main(["reload"]),
    one_line(Out),
    {match, _} = re:run(Out, ["^", Right, " is reloaded: "]),
    one_line(Why),
    {match, _} = re:run(Why, ["^", Wrong, " is not reloaded: the tool tool: wrong: expected "]),
    {1, Json, Why} = main(["reload", "--json"]),
    [~"reload_wrong"] = [Server || #{~"server" := Server, ~"error" := _}
                                       <- json:decode(list_to_binary(Json))],
    [ok = erlmcp:stop_server(Server) || Server <- Servers],
    [erlmcp_test_module:unload(list_to_atom(Name)) || Name <- Names].

%% By what their operator has written: `id`, or the name and the place where another mounts it.
mounted_servers_are_named(_) ->
    Files = #{name => ~"files", version => ~"1", mounts => [{~"old", #{name => ~"archive",
                                                                       version => ~"1"}}]},
    Servers = [begin
                   {ok, Server} = erlmcp:start_server(Options#{version => ~"1"}),
                   Server
               end || Options <- [#{id => whole, name => ~"w", mounts => [
                                      {~"docs", Files},
                                      {~"known", #{id => known, name => ~"k", version => ~"1"}}]},
                                  #{name => ~"nameless", mounts => [{~"docs", Files}]},
                                  #{name => ~"nameless"}]],
    Names = [~"archive (nameless/docs/old)", ~"archive (whole/docs/old)", ~"files (nameless/docs)",
             ~"files (whole/docs)", ~"known", ~"nameless", ~"nameless #2", ~"operated", ~"whole"],
    {0, Json, ""} = main(["top", "--once", "--json"]),
    #{~"servers" := Shown} = json:decode(list_to_binary(Json)),
    Names = lists:sort([Name || #{~"server" := Name} <- Shown]),
    {0, Top, ""} = main(["top", "--once"]),
    {match, _} = re:run(Top, "^files \\(whole/docs\\)  open  up ", [multiline]),
    {0, Drained, ""} = main(["drain", "--seconds", "0"]),
    Names = lists:sort([list_to_binary(Name)
                        || Line <- string:lexemes(Drained, "\n"),
                           [Name, _] <- [string:split(Line, " is drained: ")]]),
    [ok = erlmcp:stop_server(Server) || Server <- Servers].

figures_are_shown(Config) ->
    Server = proplists:get_value(server, Config),
    #{} = erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"no"}),
    {Client, Pid} = started(Config),
    Pid ! go,
    #{~"result" := _} = answered(Client),
    {0, Out, ""} = main(["top", "--once"]),
    Lines = [string:lexemes(Line, " ") || Line <- string:split(Out, "\n", all)],
    [["operated", "open", "up", _, "s", "2", "requests,", "0" | _] | _] = Lines,
    [["connections", Used, Limit]] = [Line || ["connections" | _] = Line <- Lines],
    true = list_to_integer(Used) >= 1 andalso list_to_integer(Limit) > 1,
    [["tools/call", "2", "0", "1", _, "ms", _, "ms", _, "ms"]] =
        [Line || ["tools/call" | _] = Line <- Lines],
    [["waits", "1", "0", "0" | _]] = [Line || ["waits" | _] = Line <- Lines],
    [["1048", "tool_not_found", "1"]] = [Line || ["1048" | _] = Line <- Lines],
    {0, Json, ""} = main(["top", "--once", "--json"]),
    #{~"servers" := [#{~"server" := ~"operated", ~"requests" := 2,
                       ~"tools" := [#{~"name" := ~"waits"}]}],
      ~"upstreams" := Upstreams} = json:decode(list_to_binary(Json)),
    true = is_list(Upstreams).

%% A time of 0 would be one that nobody has measured, or one that flatters.
times_are_of_answers(Config) ->
    Server = proplists:get_value(server, Config),
    #{} = erlmcp_test_http:call(Server, ~"tools/call", #{name => ~"no"}),
    #{} = erlmcp_test_http:call(Server, ~"tools/list", #{}),
    {0, Out, ""} = main(["top", "--once"]),
    [["tools/call", "1", "0", "1", "-", "-", "-"]] =
        [Row || ["tools/call" | _] = Row <- [string:lexemes(Line, " ")
                                             || Line <- string:split(Out, "\n", all)]],
    {match, [P50]} = re:run(Out, "^tools/list +1 +0 +0 +([0-9.]+) ms ",
                            [multiline, {capture, all_but_first, list}]),
    true = list_to_float(P50) > 0.

%% The servers that clients of the node call.
upstreams_are_shown(Config) ->
    #{url := Url, port := Port} = proplists:get_value(server, Config),
    {ok, Client} = erlmcp_client:start_link({http, Url, #{}}),
    [{ok, pong} = erlmcp_client:ping(Client) || _ <- lists:seq(1, 3)],
    {error, _} = erlmcp_client:call_tool(Client, ~"unknown", #{}),
    Name = <<"127.0.0.1:", (integer_to_binary(Port))/binary>>,
    {0, Json, ""} = main(["top", "--once", "--json"]),
    #{~"upstreams" := Upstreams} = json:decode(list_to_binary(Json)),
    [#{~"count" := Requests, ~"calls" := 0, ~"refusals" := 1}] =
        [Upstream || #{~"name" := Of} = Upstream <- Upstreams, Of =:= Name],
    true = Requests >= 4,
    %% A screen has the busiest ones, and this node's clients may have called many.
    {0, Out, ""} = main(["top", "--once"]),
    [_, Table] = string:split(Out, "\nupstream "),
    [Titles | Rows] = string:split(Table, "\n", all),
    ["running", "requests", "errors", "failed" | _] = string:lexemes(Titles, " "),
    {_, Busiest, Calls} = lists:max([{Count, Of, Calls} || #{~"name" := Of, ~"count" := Count,
                                                             ~"calls" := Calls} <- Upstreams]),
    Shown = binary_to_list(Busiest),
    [[Running | _]] = [string:lexemes(Counts, " ") || Row <- Rows, ["", Counts] <-
                                                          [string:split(string:trim(Row), Shown)]],
    Running = integer_to_list(Calls),
    ok = erlmcp_client:stop(Client).

%% The oldest ones, of which a screen has ten for each server.
running_calls_are_shown(Config) ->
    [] = tables("call"),
    {_, First} = started(Config),
    Others = [element(2, sent(Config)) || _ <- lists:seq(1, 11)],
    {0, Json, ""} = erlmcp_test_servers:await(fun() ->
        case length(erlmcp:calls(operated)) of
            12 -> {ok, main(["top", "--once", "--json"])};
            _ -> again
        end
    end),
    #{~"calls" := [#{~"id" := Oldest, ~"target" := ~"waits"} | _] = Calls} =
        json:decode(list_to_binary(Json)),
    12 = length(Calls),
    [[["call", "age", "method", "target", "principal"] | [First10 | _] = Rows]] = tables("call"),
    10 = length(Rows),
    [Id, _, "s", "tools/call", "waits", "anonymous"] = First10,
    Oldest = list_to_binary(Id),
    [Pid ! go || Pid <- [First | Others]],
    ok = top_shows("^operated (?s)(?!.*\ncall )").

%% Breakers and pools of workers of a server, and pools of clients of the node: none where there is
%% none. Of breakers, those that refuse calls come first.
dependencies_are_shown(_) ->
    [] = tables("breaker") ++ tables("workers") ++ tables("pool"),
    Fails = fun(_, _) -> {refuse, erlmcp:refusal(dependency_unavailable, ~"")} end,
    Own = [#{name => <<"own_", (integer_to_binary(Number))/binary>>, handler => Fails,
             breaker => #{failures => 1}} || Number <- lists:seq(1, 11)],
    {ok, Server} = erlmcp:start_server(#{
        id => depends, name => ~"depends", version => ~"1",
        breakers => #{printer => #{failures => 1, open_ms => 60_000}},
        workers => #{db => #{size => 2, start => fun() -> {ok, spawn_link(fun waits/0)} end}},
        tools => [#{name => ~"print", breaker => printer, handler => Fails},
                  #{name => ~"eject", breaker => printer, handler => Fails},
                  #{name => ~"count", workers => db, handler => Fails} | Own]}),
    Secret = ~"http://127.0.0.1:1/mcp?key=the-secret",
    {ok, Pool} = erlmcp_pool:start_link({local, upstreams}, #{
        targets => [{server, depends, #{}}, {http, Secret, #{}}], size => 6, failures => 1}),
    {ok, Client} = erlmcp_client:start_link({server, depends, #{}}),
    {error, _} = erlmcp_client:call_tool(Client, ~"print", #{}),
    ok = top_shows("\ndb +2 +2 +0 +0\n"),
    [[["breaker", "state", "failed", "definitions"], ["printer", "open", "1", "2"] | Closed]] =
        tables("breaker"),
    [["own_1", "closed", "0", "1"] | _] = Closed,
    9 = length(Closed),
    [[["workers", "size", "ready", "taken", "waiting"], ["db", "2", "2", "0", "0"]]] =
        tables("workers"),
    [[["pool", "server", "state", "running", "failed"] | Members]] = tables("pool"),
    10 = length(Members),
    [] = Members -- [["upstreams", Of, State, "0", Failed]
                     || [_, Of, State, _, Failed] <- Members,
                        lists:member(Of, ["depends", "127.0.0.1:1"])],
    {0, Json, ""} = main(["top", "--once", "--json"]),
    nomatch = string:find(Json, "the-secret"),
    #{~"pools" := [#{~"name" := ~"upstreams", ~"members" := All}], ~"servers" := Servers} =
        json:decode(list_to_binary(Json)),
    12 = length(All),
    [#{~"workers" := [#{~"name" := ~"db", ~"waiting" := 0}],
       ~"breakers" := [#{~"name" := ~"printer", ~"state" := ~"open", ~"failed" := 1,
                         ~"targets" := [~"eject", ~"print"]} | _]}] =
        [Figures || #{~"server" := ~"depends"} = Figures <- Servers],
    ok = erlmcp_client:stop(Client),
    ok = erlmcp_pool:stop(Pool),
    ok = erlmcp:stop_server(Server).

waits() ->
    receive stop -> ok end.

%% The tables of a screen whose first title is `Title`, as words.
tables(Title) ->
    {0, Out, ""} = main(["top", "--once"]),
    [[string:lexemes(Line, " ") || Line <- string:lexemes(Table, "\n")]
     || Table <- string:split(Out, "\n\n", all),
        hd(string:lexemes(hd(string:lexemes(Table, "\n")), " ")) =:= Title].

%% Screen after screen, each with the rate since the one before it.
figures_move(Config) ->
    Port = erlmcp_test_program:open("exec \"$0\" top --control \"$1\"",
                                    [proplists:get_value(program, Config),
                                     erlmcp_cli_control:file()]),
    try
        ok = shows("0 requests, ", Port),
        #{} = erlmcp_test_http:call(proplists:get_value(server, Config), ~"tools/call",
                                    #{name => ~"no"}),
        ok = shows("1 requests \\((1\\.0|0\\.[1-9])/s\\), ", Port)
    after
        _ = erlmcp_test_program:stop("TERM", Port)
    end.

%% Screens come each second, whether or not their figures move.
shows(Pattern, Port) ->
    shows(Pattern, "", erlang:monotonic_time(millisecond) + 20_000, Port).

shows(Pattern, Shown, End, Port) ->
    case re:run(Shown, Pattern) of
        {match, _} ->
            ok;
        nomatch ->
            receive
                {Port, {data, Text}} -> shows(Pattern, [Shown, Text], End, Port)
            after max(0, End - erlang:monotonic_time(millisecond)) ->
                error({not_shown, Pattern, Shown})
            end
    end.

%% As the console's page says it, where one judges the servers of the node.
the_verdict_is_shown(_) ->
    {ok, _} = application:ensure_all_started(erlmcp_console),
    %% A page that looks has a reading each second.
    {ok, _, _} = erlmcp_console_collector:watch(operated, #{latency_ms => 150, payloads => false,
                                                            redact => []}),
    ok = top_shows("^The server is well for [0-9]+ s\noperated  open  up "),
    {ok, _} = erlmcp:drain(operated, 0),
    ok = top_shows("^The server is not well for [0-9]+ s\n"
                   "  The server is being drained: it refuses new requests \\(1077\\)\\.\n"
                   "operated  server_shutting_down  up "),
    {0, Json, ""} = main(["top", "--once", "--json"]),
    #{~"servers" := [#{~"verdict" := #{~"well" := false, ~"causes" := [_]}}]} =
        json:decode(list_to_binary(Json)),
    %% A verdict that nobody has renewed says nothing.
    ok = sys:suspend(erlmcp_console_collector),
    {ok, Server, _} = erlmcp_registry:whereis(operated),
    _ = sys:replace_state(erlmcp_console_collector, fun(State) ->
        [{Server, Verdict, At}] = ets:lookup(erlmcp_verdicts, Server),
        true = ets:insert(erlmcp_verdicts, {Server, Verdict, At - 20_000}),
        State
    end),
    NoVerdict = "\nNo server was judged in the last 20 seconds; the application erlmcp_console "
                "judges servers while it runs\\.\n$",
    {0, "operated  server_shutting_down " ++ Suspended, ""} = main(["top", "--once"]),
    {match, _} = re:run(Suspended, NoVerdict),
    ok = sys:resume(erlmcp_console_collector),
    ok = application:stop(erlmcp_console),
    {0, "operated  server_shutting_down " ++ Stopped, ""} = main(["top", "--once"]),
    {match, _} = re:run(Stopped, NoVerdict),
    {0, NotJudged, ""} = main(["top", "--once", "--json"]),
    #{~"servers" := [#{~"verdict" := null}]} = json:decode(list_to_binary(NotJudged)),
    ok.

top_shows(Pattern) ->
    erlmcp_test_servers:await(fun() ->
        {0, Out, ""} = main(["top", "--once"]),
        case re:run(Out, Pattern, [{capture, none}]) of
            match -> {ok, ok};
            nomatch -> again
        end
    end).

%% That of a process that was killed is removed.
a_socket_is_found(Config) ->
    Folder = proplists:get_value(folder, Config),
    Left = filename:join(Folder, "1.sock"),
    {ok, Socket} = gen_tcp:listen(0, [{ifaddr, {local, Left}}]),
    %% Whatever it answers, it is there.
    _ = spawn_link(fun() ->
        {ok, Asking} = gen_tcp:accept(Socket),
        gen_tcp:close(Asking)
    end),
    {2, "", Several} = main(["calls"]),
    [{match, _} = re:run(Several, File) || File <- [Left, erlmcp_cli_control:file()]],
    ok = gen_tcp:close(Socket),
    {ok, _} = file:read_file_info(Left),
    {0, _, ""} = main(["calls"]),
    {error, enoent} = file:read_file_info(Left),
    ok = supervisor:terminate_child(erlmcp_cli_sup, control),
    [] = erlmcp_cli_control:files(),
    {3, "", None} = main(["calls"]),
    one_line(None),
    {ok, _} = supervisor:restart_child(erlmcp_cli_sup, control),
    ok.

%% A server that was killed while it answered, and other programs.
answers_that_are_none_are_said(Config) ->
    File = filename:join(proplists:get_value(runtime, Config), "other.sock"),
    {ok, Socket} = gen_tcp:listen(0, [{ifaddr, {local, File}}, {active, false}]),
    [begin
         _ = spawn_link(fun() ->
             {ok, Asking} = gen_tcp:accept(Socket),
             {ok, _} = gen_tcp:recv(Asking, 0),
             ok = gen_tcp:send(Asking, Answer),
             gen_tcp:close(Asking)
         end),
         {3, "", Why} = main(["calls", "--control", File]),
         one_line(Why),
         {match, _} = re:run(Why, "^" ++ File ++ ": the answer was cut off, or is not of erlmcp$")
     end || Answer <- [~'{"ok":[{"id":"', ~"220 ready", ~"[]", ~'{"error":5}']],
    ok = gen_tcp:close(Socket).

wrong_use_is_said(_) ->
    [begin
         {Status, "", Why} = main(Arguments),
         one_line(Why)
     end || {Status, Arguments} <-
                [{2, ["calls", "--node", "a@b", "--control", "c"]}, {2, ["cancel"]},
                 {2, ["calls", "--node", lists:duplicate(256, $a)]},
                 {2, ["drain", "--seconds", "-1"]}, {3, ["calls", "--control", "/tmp/no/such"]},
                 {3, ["calls", "--control", "/tmp/" ++ lists:duplicate(200, $a)]}]].

%% Only its user can reach it, and it ends with the process.
serve_has_a_socket(Config) ->
    ok = supervisor:terminate_child(erlmcp_cli_sup, control),
    Folder = proplists:get_value(folder, Config),
    ok = served("everything", [], Config, fun(Pid, _) ->
        File = filename:join(Folder, integer_to_list(Pid) ++ ".sock"),
        [File] = erlmcp_cli_control:files(),
        [Mode = Bits band 8#777
         || {Path, Mode} <- [{Folder, 8#700}, {File, 8#600}],
            {ok, #file_info{mode = Bits}} <- [file:read_file_info(Path)]],
        {0, "no call runs\n", ""} = erlmcp(["calls"], Config)
    end),
    [] = erlmcp_cli_control:files(),
    Named = filename:join(proplists:get_value(runtime, Config), "named"),
    ok = served("everything", ["--control", Named], Config, fun(_, _) ->
        {0, "no call runs\n", ""} = main(["calls", "--control", Named])
    end),
    {ok, _} = supervisor:restart_child(erlmcp_cli_sup, control),
    ok.

served(Module, Arguments, Config, Do) ->
    {Port, Url, _} = erlmcp_test_program:serve(Module, ["--port", "0" | Arguments], Config),
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    try
        _ = Do(Pid, Url),
        ok
    after
        0 = erlmcp_test_program:stop("TERM", Port)
    end.

%% What is no socket, and the socket of another process.
no_file_of_others_is_removed(Config) ->
    Named = filename:join(proplists:get_value(runtime, Config), "mine.txt"),
    ok = file:write_file(Named, ~"mine"),
    Fifo = filename:join(proplists:get_value(runtime, Config), "mine.fifo"),
    [] = os:cmd("mkfifo '" ++ Fifo ++ "'"),
    [begin
         {1, "", Why} = erlmcp(["serve", "everything", "--port", "0", "--control", File], Config),
         one_line(Why)
     end || File <- [Named, Fifo, erlmcp_cli_control:file()]],
    {ok, ~"mine"} = file:read_file(Named),
    {ok, _} = file:read_link_info(Fifo),
    {0, "no call runs\n", ""} = main(["calls"]).

%% A node that has no port left for a question goes on, and answers a later one.
the_socket_outlives_a_want_of_ports(Config) ->
    File = filename:join(proplists:get_value(runtime, Config), "short"),
    {Peer, _} = erlmcp_test_peer_node:start_link(#{args => ["+Q", "1024"]}),
    Call = fun(Module, Function, Arguments) ->
        erlmcp_test_peer_node:call(Peer, Module, Function, Arguments)
    end,
    {ok, _} = Call(application, ensure_all_started, [erlmcp_cli]),
    {ok, Control} = Call(erlmcp_cli_sup, start_control, [File]),
    Servers = ~'{"command":"servers"}',
    {ok, _} = erlmcp_cli_control:ask(File, Servers, 30_000),
    Holder = Call(?MODULE, hold_ports, []),
    {error, _} = erlmcp_cli_control:ask(File, Servers, 300),
    true = Call(erlang, exit, [Holder, kill]),
    {ok, _} = erlmcp_cli_control:ask(File, Servers, 30_000),
    true = Call(erlang, is_process_alive, [Control]),
    ok = erlmcp_test_peer_node:stop(Peer).

%% In the other node: a process that holds all ports which were left.
hold_ports() ->
    Asking = self(),
    Holder = spawn(fun() -> open_all(), Asking ! {self(), holds}, receive stop -> ok end end),
    receive {Holder, holds} -> Holder end.

open_all() ->
    case gen_udp:open(0) of
        {ok, _} -> open_all();
        {error, _} -> ok
    end.

stdio_has_none(Config) ->
    [Own] = erlmcp_cli_control:files(),
    Port = erlmcp_test_program:open("exec \"$0\" serve everything --stdio",
                                    [proplists:get_value(program, Config)]),
    true = port_command(Port, [json:encode(#{jsonrpc => ~"2.0", id => 1, method => ~"initialize",
        params => #{protocolVersion => ~"2025-11-25", capabilities => #{},
                    clientInfo => #{name => ~"t", version => ~"1"}}}), $\n]),
    receive {Port, {data, _}} -> ok end,
    [Own] = erlmcp_cli_control:files(),
    true = port_close(Port),
    ok.

%% The node runs the library, and nothing of the command.
a_node_is_reached_by_distribution(Config) ->
    Cookie = "of_this_test",
    Name = "erlmcp_operated_" ++ os:getpid(),
    {Peer, Node} = erlmcp_test_peer_node:start_link(#{
        name => Name, host => "localhost", args => ["-setcookie", Cookie]}),
    {ok, _} = erlmcp_test_peer_node:call(Peer, application, ensure_all_started, [erlmcp]),
    Spec = erlmcp:child_spec(#{id => there, name => ~"there", version => ~"1"}),
    {ok, _} = erlmcp_test_peer_node:call(Peer, supervisor, start_child, [kernel_safe_sup, Spec]),
    true = os:putenv("ERLMCP_COOKIE", Cookie),
    {0, "no session is open\n", ""} = erlmcp(["sessions", "--node", atom_to_list(Node)], Config),
    {0, "there  open  up " ++ _, ""} =
        erlmcp(["top", "--once", "--node", atom_to_list(Node)], Config),
    true = os:putenv("ERLMCP_COOKIE", "another"),
    {3, "", Why} = erlmcp(["sessions", "--node", atom_to_list(Node)], Config),
    one_line(Why),
    true = os:putenv("ERLMCP_COOKIE", lists:duplicate(256, $a)),
    {2, "", Long} = erlmcp(["sessions", "--node", atom_to_list(Node)], Config),
    one_line(Long),
    match = re:run(Long, "^ERLMCP_COOKIE: .*255 characters", [{capture, none}]),
    true = os:unsetenv("ERLMCP_COOKIE"),
    erlmcp_test_peer_node:stop(Peer).

no_question_ends_the_socket(Config) ->
    Control = proplists:get_value(control, Config),
    [begin
         {ok, Answer} = erlmcp_cli_control:ask(erlmcp_cli_control:file(), Question, 30_000),
         #{~"error" := <<_, _/binary>>} = json:decode(Answer)
     end || Question <- [~"", ~"{", ~"[]", ~"null", ~"{}", ~'{"command":1}', ~'{"command":"no"}',
                         ~'{"command":"cancel"}', ~'{"command":"drain","seconds":-1}',
                         ~'{"command":"drain","seconds":1,"lame":-1}', ~'{"command":"cluster"}',
                         <<255, 254>>, binary:copy(~"[", 60_000)]],
    %% Of a longer question no more is read.
    Long = binary:copy(~"[", 10_000_000),
    case erlmcp_cli_control:ask(erlmcp_cli_control:file(), Long, 30_000) of
        {error, closed} -> ok;
        {ok, Refused} -> #{~"error" := _} = json:decode(Refused)
    end,
    true = is_process_alive(Control).

a_question_that_fails_is_answered(_) ->
    Server = erlmcp_test_http:start(#{id => clustered, name => ~"clustered", version => ~"1",
                                      cluster => ?MODULE}),
    {1, "", Why} = main(["cluster", "status"]),
    one_line(Why),
    {_, _} = binary:match(iolist_to_binary(Why), ~"incident"),
    {0, _, ""} = main(["sessions"]),
    erlmcp_test_http:stop(Server).

init(_, _) -> none.

task_store(_) -> {erlmcp_task_store_ets, #{}}.

keys(_, _) -> none.

operate(_, _) -> error(on_purpose).

%% As many as are served at once, and one more, which is served when they have ended.
silent_connections_end(_) ->
    File = erlmcp_cli_control:file(),
    %% Their time begins when they are accepted.
    Began = erlang:monotonic_time(millisecond),
    Silent = [begin
                  {ok, Socket} = gen_tcp:connect({local, File}, 0, [binary, {active, false}]),
                  Socket
              end || _ <- lists:seq(1, 8)],
    {ok, _} = erlmcp_cli_control:ask(File, ~'{"command":"calls"}', 30_000),
    true = erlang:monotonic_time(millisecond) - Began >= 4_000,
    [{error, closed} = gen_tcp:recv(Socket, 0, 10_000) || Socket <- Silent],
    ok.

%% A call that has begun: its client, and its process.
started(Config) ->
    {Client, Pid} = sent(Config),
    %% The connection gives the call its permit a moment later.
    ok = erlmcp_test_servers:await(fun() ->
        case erlmcp:calls(operated) of
            [_] -> {ok, ok};
            [] -> again
        end
    end),
    {Client, Pid}.

sent(Config) ->
    Client = erlmcp_test_http:connect(proplists:get_value(server, Config)),
    {Headers, Body} = erlmcp_test_http:message(~"tools/call", #{name => ~"waits"}, #{}),
    ok = erlmcp_test_http:send(Client, ~"POST", Headers, Body),
    {Client, receive {runs, Pid} -> Pid end}.

answered(Client) ->
    #{messages := Messages} = erlmcp_test_http:response(Client),
    lists:last(Messages).
