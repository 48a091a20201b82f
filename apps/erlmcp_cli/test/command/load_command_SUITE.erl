-module(load_command_SUITE).
-moduledoc "`erlmcp load`, run in this node against servers in it.".

-import(erlmcp_test_program, [main/1, one_line/1]).

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([examples/1, a_table_says_what_came_of_it/1, open_loops_say_how_late_they_were/1,
         mixes_are_asked/1, eras_and_transports/1, programs_are_measured/1,
         programs_get_what_is_named/1, results_are_files/1, unwritten_results_exit_1/1,
         what_is_refused_is_told/1, windows_show_their_errors/1, wrong_answers_exit_1/1,
         no_server_exits_1/1, wrong_use_exits_2/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [examples, a_table_says_what_came_of_it, open_loops_say_how_late_they_were, mixes_are_asked,
     eras_and_transports, programs_are_measured, programs_get_what_is_named,
     results_are_files, unwritten_results_exit_1, what_is_refused_is_told,
     windows_show_their_errors,
     wrong_answers_exit_1, no_server_exits_1, wrong_use_exits_2].

init_per_suite(Config) ->
    Suite = self(),
    {ok, _} = application:ensure_all_started(erlmcp),
    %% A server ends with the process that started it, and that of this callback with it.
    Keeper = spawn(fun() ->
        {ok, Server} = erlmcp:start_server(#{
            name => ~"load", version => ~"1.0.0",
            tools => [#{name => ~"echo", handler => fun(#{~"text" := Text}, _) -> Text end},
                      #{name => ~"add", handler => fun(_, _) -> ~"4" end}],
            listen => [{http, #{port => 0}}, {tcp, #{port => 0}}]}),
        Suite ! {self(), erlmcp:listeners(Server)},
        receive stop -> erlmcp:stop_server(Server) end
    end),
    [#{port := Http}, #{port := Tcp}] = receive {Keeper, Found} -> Found end,
    [{keeper, Keeper}, {tcp, integer_to_list(Tcp)},
     {url, "http://127.0.0.1:" ++ integer_to_list(Http) ++ "/mcp"} | Config].

end_per_suite(Config) ->
    Keeper = proplists:get_value(keeper, Config),
    Monitor = monitor(process, Keeper),
    Keeper ! stop,
    receive {'DOWN', Monitor, process, Keeper, _} -> ok end.

examples(_) ->
    erlmcp_test_doctests:run([erlmcp_cli_load_mix, erlmcp_cli_table]).

a_table_says_what_came_of_it(Config) ->
    {0, Out, ""} = load(["--connections", "3", "--window", "2", "--server-pid", os:getpid()],
                        Config),
    shows(Out, ["^http://.*, stateless, 3 of 3 connections, a closed loop of 2, ",
                "^answered +[0-9,]+, [0-9.,]+ a second$",
                "^latency +p50 .*p95 .*p99 .*p99\\.9 .*max [0-9.,]+ (us|ms|s) "
                " deviation [0-9.,]+ (us|ms|s)$",
                "^processor +server .* generator ", "^memory +server "]),
    nomatch = re:run(Out, "^(refused|failed|wrong|unsent|late|lateness|lost) ", [multiline]).

open_loops_say_how_late_they_were(Config) ->
    {0, Out, ""} = load(["--rate", "200", "--arrivals", "even", "--in-flight", "2"], Config),
    shows(Out, [", an open loop of 200 a second \\(even\\), ", "^lateness +p50 "]).

mixes_are_asked(Config) ->
    Mix = "tools/call echo=3, tools/call add {\"a\": 1, \"b\": 3}=2,tools/list,prompts/list",
    {0, Out, ""} = load(["--mix", Mix, "--payload", "10"], Config),
    shows(Out, ["^answered +[1-9]"]).

eras_and_transports(Config) ->
    {0, Http, ""} = load(["--era", "session", "--sessions", "2"], Config),
    shows(Http, [", sessions of 2025-11-25, "]),
    Port = proplists:get_value(tcp, Config),
    {0, Tcp, ""} = main(["load", "--tcp", "127.0.0.1:" ++ Port, "--era", "2025-06-18" | short()]),
    shows(Tcp, ["^tcp://127\\.0\\.0\\.1:" ++ Port ++ ", sessions of 2025-06-18, "]),
    ~"tcp://[::1]:4000" = erlmcp_cli_load_table:name({tcp, {0, 0, 0, 0, 0, 0, 0, 1}, 4000}),
    {0, Http2, ""} = load(["--protocol", "http2", "--window", "4"], Config),
    shows(Http2, [", http2, stateless, "]).

programs_are_measured(_) ->
    %% It answers whatever it is asked with what it was asked for.
    Program = "sed -u 's/.*\"id\":\\([0-9]*\\).*/{\"jsonrpc\":\"2.0\",\"id\":\\1,\"result\":{}}/'",
    {0, Out, ""} = main(["load", "--stdio", Program, "--mix", "ping" | short()]),
    shows(Out, ["^sed .*, stateless, 1 of 1 connections", "^answered +[1-9]"]).

%% The variable is the id of its answers, which are wrong without it.
programs_get_what_is_named(_) ->
    true = os:putenv("ERLMCP_OTHER", "result"),
    Program = "sh -c 'exec sed -u '\"'\"'s/.*\"id\":\\([0-9]*\\).*/"
              "{\"jsonrpc\":\"2.0\",\"id\":\\1,\"'\"'\"$ERLMCP_OTHER\"'\"'\":{}}/'\"'\"",
    Words = ["load", "--stdio", Program, "--mix", "ping" | short()],
    {0, _, ""} = main(Words ++ ["--env", "ERLMCP_OTHER"]),
    {1, _, _} = main(Words),
    {2, "", Why} = main(["load", "--tcp", "127.0.0.1:1", "--env", "ERLMCP_OTHER"]),
    true = os:unsetenv("ERLMCP_OTHER"),
    shows(Why, ["--env: only a program of --stdio has that"]).

results_are_files(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "load_results"),
    {0, Out, ""} = load(["--json", Folder, "--workload", "of_a_suite"], Config),
    [File] = filelib:wildcard(filename:join(Folder, "*.json")),
    shows(Out, ["^\\Q" ++ File ++ "\\E$"]),
    {ok, #{~"benchmark" := ~"load", ~"workload_id" := ~"of_a_suite", ~"transport" := ~"http1",
           ~"loop" := ~"closed", ~"era" := ~"stateless",
           ~"windows" := [#{~"errors_count" := None}]}} = erlmcp_bench_result:read(File),
    ?assertEqual(#{}, None),
    {0, _, ""} = load(["--json", Folder, "--rate", "100"], Config),
    %% What asks for something else has another identity.
    Mixes = ["tools/call echo", "tools/list", "prompts/list", "tools/call echo=2,tools/list=3",
             "tools/call add {\"a\": 1, \"b\": 3}", "tools/call add {\"a\": 2, \"b\": 2}"],
    _ = [{0, _, ""} = load(["--json", Folder, "--workload", "mixed", "--mix", Mix], Config)
         || Mix <- Mixes],
    {ok, Mixed} = erlmcp_bench_result:read_all(
        filelib:wildcard(filename:join(Folder, "load_mixed_*.json"))),
    ?assertEqual([none, ~"prompts/list", ~B'tools/call add {"a": 1, "b": 3}',
                  ~B'tools/call add {"a": 2, "b": 2}', ~"tools/call echo=2,tools/list=3",
                  ~"tools/list"],
                 lists:sort([maps:get(~"mix", erlmcp_bench_result:identity(Result), none)
                             || Result <- Mixed])),
    %% So has another loop.
    Loops = [[], ["--window", "2"], ["--rate", "100"], ["--rate", "200"],
             ["--rate", "200", "--arrivals", "even"], ["--rate", "200", "--in-flight", "2"],
             ["--era", "session", "--sessions", "2"]],
    _ = [{0, _, ""} = load(["--json", Folder, "--workload", "looped" | Loop], Config)
         || Loop <- Loops],
    {ok, Looped} = erlmcp_bench_result:read_all(
        filelib:wildcard(filename:join(Folder, "load_looped_*.json"))),
    ?assertEqual(length(Loops),
                 length(lists:usort([erlmcp_bench_result:identity(Result) || Result <- Looped]))),
    [?assertMatch({match, _}, re:run(unicode:characters_to_binary(
                                         [[erlmcp_bench_result:label(Result), $\n]
                                          || Result <- erlmcp_bench_result:in_order(Looped)]),
                                     Label, [multiline]), Label)
     || Label <- ["looped .* closed in_flight_requests=2$",
                  "looped .* open even offered_msg_per_s=200$",
                  "looped .* open poisson offered_msg_per_s=200 in_flight_requests=2$",
                  "looped .* closed in_flight_requests=1 sessions=2$"]],
    {0, _, _} = main(["metrology" | filelib:wildcard(filename:join(Folder, "*.json"))]).

%% A file is no folder, and no rule of metrology is broken.
unwritten_results_exit_1(Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "file"),
    ok = file:write_file(File, ~""),
    {1, _, Stderr} = load(["--json", File], Config),
    shows(Stderr, [": (file already exists|not a directory)"]).

what_is_refused_is_told(Config) ->
    {1, Out, ""} = load(["--mix", "tools/call nothing"], Config),
    shows(Out, ["^refused +.*: [0-9,]+$", "^answered +0, ", "^until +backlog +errors$",
                "^[0-9.]+ s +[0-9]+ +refused .*: [0-9,]+$"]).

%% A kind of error has its number in each window, in the table and in the result.
windows_show_their_errors(_) ->
    Windows = [#{at_s => 10.0, duration_s => 10.0, backlog_requests => 12,
                 errors => #{{refused, 1056} => 2, {failed, timeout} => 1_200, unsent => 3}},
               #{at_s => 20.0, duration_s => 10.0, backlog_requests => 0, errors => #{}},
               #{at_s => 20.5, duration_s => 0.5, backlog_requests => 1,
                 errors => #{{wrong, id} => 1}}],
    ?assertEqual(~"""
    until   backlog  errors
    10 s    12       failed timeout: 1,200, unsent: 3, refused 1056 (rate limit exceeded): 2
    20.5 s  1        wrong id: 1

    """, unicode:characters_to_binary(erlmcp_cli_errors:windows(Windows))),
    ?assertEqual([], erlmcp_cli_errors:windows([lists:nth(2, Windows)])),
    Many = unicode:characters_to_binary(
        erlmcp_cli_errors:windows(lists:duplicate(42, hd(Windows)))),
    ?assertEqual(42, length(string:split(Many, "\n", all)) - 1),
    {match, _} = re:run(Many, "\nand 2 more windows with errors\n$"),
    ?assertEqual([#{at_s => 10.0, duration_s => 10.0, backlog_requests => 12,
                    errors_count => #{~"refused 1056" => 2, ~"failed timeout" => 1_200,
                                      ~"unsent" => 3}}],
                 erlmcp_bench_result:windows([hd(Windows)])).

wrong_answers_exit_1(Config) ->
    {1, Out, ""} = load(["--mix", "tools/call add {\"a\": 2, \"b\": 3}"], Config),
    shows(Out, ["^wrong +content: [0-9,]+$"]).

no_server_exits_1(_) ->
    Port = erlmcp_test_port:unused(),
    {1, "", Stderr} = main(["load", "--tcp", "127.0.0.1:" ++ integer_to_list(Port) | short()]),
    one_line(Stderr),
    shows(Stderr, ["connection refused"]),
    %% A reason that the operating system does not have.
    ~"no connection could be opened: timeout" =
        iolist_to_binary(erlmcp_cli_load_table:failure({open, timeout})).

wrong_use_exits_2(Config) ->
    Url = ["--url", proplists:get_value(url, Config)],
    [{2, "", [_ | _]} = main(["load" | Words])
     || Words <- [[], ["--url", "ftp://127.0.0.1"], ["--url", "http://127.0.0.1:99999/mcp"],
                  ["--tcp", "127.0.0.1"], ["--stdio", "'"],
                  Url ++ ["--tcp", "127.0.0.1:1"], Url ++ ["--rate", "0"],
                  Url ++ ["--rate", "10", "--window", "2"], Url ++ ["--arrivals", "even"],
                  Url ++ ["--connections", "0"], Url ++ ["--mix", "tools/call"],
                  Url ++ ["--mix", ""], Url ++ ["--mix", "tools/list {\"_meta\": 5}"],
                  Url ++ ["--era", "2026-07-28"],
                  Url ++ ["--source", "here"], Url ++ ["--workload", "No"],
                  ["--tcp", "127.0.0.1:1", "--token", "t"],
                  ["--tcp", "127.0.0.1:" ++ proplists:get_value(tcp, Config), "--era", "session",
                   "--sessions", "2"]]].

load(Words, Config) ->
    main(["load", "--url", proplists:get_value(url, Config)] ++ Words ++ short()).

short() -> ["--duration", "0.5", "--warmup", "0"].

shows(Out, Patterns) ->
    [{match, _} = re:run(Out, Pattern, [multiline]) || Pattern <- Patterns],
    ok.
