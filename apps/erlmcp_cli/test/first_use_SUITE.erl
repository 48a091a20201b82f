-module(first_use_SUITE).
-moduledoc """
Tests for problems of new users: words with small errors, invalid JSON, closed pipes, colours,
completion, the manual, and benchmarks without a reader.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([examples/1, version_is_an_option_too/1, a_command_nearly_right_is_suggested/1,
         an_option_nearly_right_is_suggested/1, a_tool_nearly_right_is_suggested/1,
         a_workload_nearly_right_is_suggested/1, wrong_json_is_pointed_at/1,
         tools_are_listed_with_their_arguments/1, a_url_is_loaded/1,
         any_server_of_a_url_is_loaded/1, a_closed_pipe_ends_in_silence/1,
         a_benchmark_ends_with_its_reader/1, a_benchmark_goes_on_for_its_reader/1,
         a_terminal_has_colours/1, quick_without_names_lists/1,
         every_workload_has_a_short_form/1, a_workload_runs_in_its_short_form/1,
         bash_completes_words/1, every_shell_gets_every_word/1, the_manual_has_every_word/1]).

-import(erlmcp_test_program, [main/1, run/3, open/2, output/2, one_line/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [examples, version_is_an_option_too, a_command_nearly_right_is_suggested,
     an_option_nearly_right_is_suggested, a_tool_nearly_right_is_suggested,
     a_workload_nearly_right_is_suggested, wrong_json_is_pointed_at,
     tools_are_listed_with_their_arguments, a_url_is_loaded, any_server_of_a_url_is_loaded,
     a_closed_pipe_ends_in_silence, a_benchmark_ends_with_its_reader,
     a_benchmark_goes_on_for_its_reader, a_terminal_has_colours, quick_without_names_lists,
     every_workload_has_a_short_form, a_workload_runs_in_its_short_form, bash_completes_words,
     every_shell_gets_every_word, the_manual_has_every_word].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    %% The peer is that of the library's own suites.
    Root = filename:join(code:lib_dir(erlmcp), "test"),
    [Beam | _] = filelib:wildcard(filename:join(Root, "**/erlmcp_test_oauth.beam")),
    true = code:add_patha(filename:dirname(Beam)),
    Suite = self(),
    Keeper = spawn(fun() ->
        {ok, Server} = erlmcp:start_server(#{
            name => ~"first", version => ~"1.0.0",
            tools => [#{name => ~"get_user", description => ~"A user",
                        input_schema => #{type => object, required => [~"id"], properties => #{
                            ~"id" => #{type => integer},
                            ~"form" => #{type => string, enum => [~"short", ~"long"]},
                            ~"deep" => #{type => object, properties => #{
                                ~"inner" => #{type => string}}}}},
                        handler => fun(_, _) -> ~"Joe" end},
                      #{name => ~"nothing", handler => fun(_, _) -> ~"" end}],
            resources => [#{uri => ~"test:text", name => ~"text",
                            handler => fun(_, _) -> ~"some text" end}],
            listen => [{http, #{port => 0}}]}),
        [#{port := Port}] = erlmcp:listeners(Server),
        Suite ! {self(), Port},
        receive stop -> erlmcp:stop_server(Server) end
    end),
    Port = receive {Keeper, Number} -> Number end,
    [{keeper, Keeper}, {url, "http://127.0.0.1:" ++ integer_to_list(Port) ++ "/mcp"}
     | erlmcp_test_program:init(Config)].

end_per_suite(Config) ->
    Keeper = proplists:get_value(keeper, Config),
    Monitor = monitor(process, Keeper),
    Keeper ! stop,
    receive {'DOWN', Monitor, process, Keeper, _} -> ok end.

url(Config) -> proplists:get_value(url, Config).

program(Config) -> proplists:get_value(program, Config).

examples(_) ->
    erlmcp_test_doctests:run([erlmcp_cli_suggestion, erlmcp_cli_json]).

version_is_an_option_too(_) ->
    {0, Out, ""} = main(["version"]),
    {0, Out, ""} = main(["--version"]),
    {match, _} = re:run(Out, "^erlmcp [0-9.]+ \\(OTP [0-9]+\\)\n$").

a_command_nearly_right_is_suggested(_) ->
    {2, "", Why} = main(["lsit", "http://127.0.0.1:1/mcp"]),
    ?assertEqual("lsit: no such command; did you mean `list`? See `erlmcp help`.\n", Why),
    {2, "", Why} = main(["help", "lsit"]),
    {2, "", "xyzzy: no such command. See `erlmcp help`.\n"} = main(["xyzzy"]).

an_option_nearly_right_is_suggested(_) ->
    Url = "http://127.0.0.1:1/mcp",
    Expected = "erlmcp list: --tiemout: no such option; did you mean `--timeout`? "
               "See `erlmcp help list`.\n",
    [?assertEqual({2, "", Expected}, main(["list" | Words]), Words)
     || Words <- [[Url, "--tiemout", "5"], ["--tiemout", "5", Url], ["--tiemout=5", Url]]],
    {2, "", Unlike} = main(["list", Url, "--xyzzy"]),
    ?assertEqual("erlmcp list: --xyzzy: no such option. See `erlmcp help list`.\n", Unlike),
    {2, "", Empty} = main(["ping", "-=x"]),
    ?assertEqual("erlmcp ping: -: no such option. See `erlmcp help ping`.\n", Empty),
    %% Words after `--` are no options.
    [{3, "", _} = main(["call", Url, "t" | Words])
     || Words <- [["--", "--tiemout=5"], ["--timeout=5", "a=-1"]]],
    {2, "", Level} = main(["list", Url, "--log-level", "wraning"]),
    {match, _} = re:run(Level, "emergency; did you mean `warning`\\? See"),
    {2, "", Scenario} = main(["scenario", "conection_flood"]),
    {match, _} = re:run(Scenario, "; did you mean `connection_flood`\\? See").

a_tool_nearly_right_is_suggested(Config) ->
    [begin
         {1, "", Why} = main(["call", url(Config), Name | Arguments]),
         one_line(Why),
         ?assertEqual({match, [{0, length(Why)}]},
                      re:run(Why, "^error -32602 .*; did you mean `get_user`\\?\n$"), Why)
     end || Name <- ["getUser", "get_usr"], Arguments <- [[], ["id=1"], ["{\"id\":1}"]]],
    %% An unlike name gets the existing names.
    [begin
         {1, _, Why} = main(["call", url(Config) | Words]),
         ?assertEqual(nomatch, string:find(Why, "did you mean"), Why)
     end || Words <- [["xyzzy"], ["get_user", "{}"]]],
    %% A server that says it in a result.
    Peer = erlmcp_test_oauth:start(),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun(#{body := Body} = Request) ->
        case Body =/= ~"" andalso json:decode(Body) of
            #{~"method" := ~"tools/call", ~"id" := Id} ->
                Result = #{content => [#{type => text, text => ~"Unknown tool"}], isError => true},
                {200, #{~"content-type" => ~"application/json"},
                 json:encode(#{jsonrpc => ~"2.0", id => Id, result => Result})};
            _ ->
                old(Request)
        end
    end),
    {1, "", Stderr} = main(["call", binary_to_list(erlmcp_test_oauth:url(Peer)), "ehco"]),
    ?assertEqual("Unknown tool\ndid you mean `echo`?\n", Stderr),
    erlmcp_test_oauth:stop(Peer).

a_workload_nearly_right_is_suggested(_) ->
    [begin
         {2, "", Why} = main(Words),
         one_line(Why),
         {match, _} = re:run(Why, Expected)
     end || {Words, Expected} <- [
         {["bench", "core_ops_1"], "those that `erlmcp bench` lists; did you mean `core_ops"},
         {["chaos", "chaos_proces_crash"], "lists; did you mean `chaos_process_crash`\\? See"}]].

wrong_json_is_pointed_at(Config) ->
    Call = fun(Words) ->
        {2, "", Why} = main(["call", url(Config), "get_user" | Words]),
        Why
    end,
    ?assertEqual("the arguments are not JSON: line 1, column 10: `i` was not expected\n"
                 "  {\"a\": 1, id: 2}\n"
                 "           ^\n", Call(["{\"a\": 1, id: 2}"])),
    [?assertNotEqual(nomatch, string:find(Call([Text]), Where), {Text, Call([Text])})
     || {Text, Where} <- [
         {"{", "line 1, column 2: the text ends here, and its JSON does not"},
         {"{\"id\": tru}", "line 1, column 8: `t` was not"},
         {"{\"id\": 1} x", "line 1, column 11: `x` was not"},
         {"{\"id\": 1,\n \"ü\": 'x'}", "line 2, column 7: `'` was not expected\n   \"ü\": 'x'}\n"
                                     "        ^\n"},
         {"{\"id\": \"\\q\"}", "line 1, column 10: `q` was not"},
         {"{\"id\": \"a", "line 1, column 10: the text ends"},
         {"{\"id\": 1 \e[31m}", "`␛` was not expected\n  {\"id\": 1 \x{fffd}[31m}\n"
                               "           ^\n"}]],
    %% Of a long line there is the part that matters.
    Long = Call(["{\"id\": \"" ++ lists:duplicate(500, $a) ++ "\", x" ++ lists:duplicate(500, $b)]),
    [_, Line, Mark, ""] = string:split(Long, "\n", all),
    true = length(Line) < 90,
    $x = lists:nth(length(Mark), Line),
    %% And of a value that has to be JSON.
    {match, _} = re:run(Call(["id=1", "deep={\"inner\": x}"]),
                        "^deep=.*: object was expected; it is not JSON: line 1, column 11: `x`"),
    {2, "", Params} = main(["scenario", "baseline", "--method", "tools/call", "--params", "{x"]),
    {match, _} = re:run(Params, "^--params: it is not JSON: line 1, column 2: `x` was not").

tools_are_listed_with_their_arguments(Config) ->
    {0, Out, ""} = main(["list", url(Config)]),
    {match, _} = re:run(Out, "^  get_user  A user\n      id=integer \\[deep=object\\] "
                             "\\[form=short\\|long\\]\n  nothing$", [multiline]),
    {0, Whole, ""} = main(["list", url(Config), "--schema"]),
    {match, _} = re:run(Whole, "^  get_user  A user\n      arguments: \\{", [multiline]),
    {match, _} = re:run(Whole, "\"inner\"").

a_url_is_loaded(Config) ->
    {0, Out, Stderr} = main(["load", url(Config), "--duration", "0.3", "--warmup", "0"]),
    {match, _} = re:run(Out, "^http://.*/mcp, stateless, 1 of 1 connections, a closed loop of 1"),
    {match, _} = re:run(Out, "^answered +[1-9]", [multiline]),
    %% It has no echo.
    one_line(Stderr),
    {match, _} = re:run(Stderr, " has no tool echo with a text: its tools are listed; --mix sets"),
    {2, "", Two} = main(["load", url(Config), "--url", url(Config)]),
    one_line(Two).

%% A server without stateless requests.
any_server_of_a_url_is_loaded(_) ->
    Peer = erlmcp_test_oauth:start(),
    erlmcp_test_oauth:change(Peer, ~"/mcp", fun old/1),
    Url = lists:flatten(string:replace(binary_to_list(erlmcp_test_oauth:url(Peer)), "localhost",
                                       "127.0.0.1")),
    {0, Out, ""} = main(["load", Url, "--duration", "0.3", "--warmup", "0"]),
    {match, _} = re:run(Out, "^http://.*/mcp, sessions of 2025-06-18, "),
    {match, _} = re:run(Out, "^answered +[1-9]", [multiline]),
    erlmcp_test_oauth:stop(Peer).

old(#{method := ~"POST", body := Body}) ->
    case json:decode(Body) of
        #{~"id" := Id, ~"method" := Method} = Message ->
            {200, #{~"content-type" => ~"application/json"},
             json:encode(maps:merge(#{jsonrpc => ~"2.0", id => Id}, answer(Method, Message)))};
        #{} ->
            {202, #{}, ~""}
    end;
old(_) ->
    {405, #{}, ~""}.

answer(~"initialize", _) ->
    #{result => #{protocolVersion => ~"2025-06-18", capabilities => #{tools => #{}},
                  serverInfo => #{name => old, version => ~"1"}}};
answer(~"tools/list", _) ->
    Schema = #{type => object, properties => #{text => #{type => string}}},
    #{result => #{tools => [#{name => echo, inputSchema => Schema}]}};
answer(~"tools/call", #{~"params" := #{~"arguments" := #{~"text" := Text}}}) ->
    #{result => #{content => [#{type => text, text => Text}]}};
answer(_, _) ->
    #{error => #{code => -32601, message => ~"no such method"}}.

%% As a shell sees a program that SIGPIPE ended. It starts when the reader has had time to go.
a_closed_pipe_ends_in_silence(Config) ->
    [?assertEqual({0, "141\n", ""},
                  run("/bin/bash", ["-c", "{ sleep 2; exec \"$0\" \"$@\"; } | exec true; "
                                          "echo ${PIPESTATUS[0]}",
                                    program(Config) | Words], Config), Words)
     || Words <- [["help"], ["list", url(Config)], ["list", url(Config), "--json"],
                  ["read", url(Config), "test:text"]]],
    %% A reader that has what it wants.
    {0, "erlmcp baseline\n", ""} =
        run("/bin/bash", ["-c", "\"$0\" man | sed -n '/SS \"erl/{s/.*\"\\(.*\\) .*/\\1/p;q}'",
                          program(Config)], Config).

%% The reader goes when the benchmark has begun, however long the command takes to start. Without it
%% the benchmark does not take its thirty seconds.
a_benchmark_ends_with_its_reader(Config) ->
    Files = [filename:join(proplists:get_value(priv_dir, Config), Name)
             || Name <- ["stderr", "reader_left"]],
    {0, Out, "1/1 stress_30s_100k_ops\n"} =
        run("/bin/bash", ["-c", "\"$0\" bench stress_30s_100k_ops 2>\"$1\" | { "
                                "for _ in {1..900}; do [ -s \"$1\" ] && break; sleep 0.1; done; "
                                "date +%s >\"$2\"; exec <&-; }; "
                                "echo ${PIPESTATUS[0]} $(($(date +%s) - $(cat \"$2\"))); "
                                "cat \"$1\" >&2",
                          program(Config) | Files], Config),
    ["141", Seconds] = string:lexemes(Out, " \n"),
    true = list_to_integer(Seconds) < 20.

%% The watch on the reader delays nothing: the output ends when the command ends.
a_benchmark_goes_on_for_its_reader(Config) ->
    {0, Out, "1/1 core_ops_1k\n"} =
        run("/bin/bash", ["-c", "\"$0\" bench core_ops_1k | cat; exit ${PIPESTATUS[0]}",
                          program(Config)], Config),
    {match, _} = re:run(Out, "^core_ops_1k_decode_1_core ", [multiline]).

a_terminal_has_colours(Config) ->
    Script = fun(Environment, Words) ->
        Command = ["exec" | [[" '", Word, "'"] || Word <- [program(Config) | Words]]],
        Port = open("exec env -u NO_COLOR \"$@\" script -qec \"$0\" /dev/null",
                    [unicode:characters_to_binary(Command) | Environment]),
        {Status, Out} = output(Port, []),
        {Status, unicode:characters_to_list(iolist_to_binary(Out))}
    end,
    List = ["list", url(Config)],
    Wrong = ["lsit"],
    {0, Bold} = Script(["TERM=xterm"], List),
    {match, _} = re:run(Bold, "  \e\\[1mget_user\e\\[0m  A user"),
    {2, Red} = Script(["TERM=xterm"], Wrong),
    {match, _} = re:run(Red, "^\e\\[31mlsit: no such command.*\e\\[0m\r\n$"),
    [begin
         {_, Plain} = Script(Environment, Words),
         ?assertEqual(nomatch, string:find(Plain, "\e["), {Environment, Plain})
     end || Environment <- [["TERM=dumb"], ["TERM=xterm", "NO_COLOR=1"], ["-u", "TERM"]],
            Words <- [List, Wrong]],
    %% An empty one says nothing; and a pipe is no terminal.
    {0, Bold} = Script(["TERM=xterm", "NO_COLOR="], List),
    {0, Piped, ""} = run("/usr/bin/env", ["-u", "NO_COLOR", "TERM=xterm", program(Config) | List],
                         Config),
    ?assertEqual(nomatch, string:find(Piped, "\e[")).

quick_without_names_lists(_) ->
    {0, Out, ""} = main(["bench", "--quick"]),
    [{match, _} = re:run(Out, ["^", Id, " +[a-z_]+: "], [multiline])
     || #{id := Id} <- erlmcp_bench_workloads:all()],
    {match, _} = re:run(Out, "^stress_24hr_10k_ops +stress: 10,000 requests a second for 4 s$",
                        [multiline]).

every_workload_has_a_short_form(_) ->
    [begin
         Short = erlmcp_bench_workloads:short(Workload),
         ?assertNotEqual(#{}, Short),
         [?assert(Value =< maps:get(Option, Workload, infinity), {Id, Option})
          || Option := Value <- Short],
         ?assert(maps:get(duration_s, Short, 0) =< 4, Id)
     end || #{id := Id} = Workload <- erlmcp_bench_workloads:all()].

%% A workload that takes a minute, and that `all --quick` leaves out.
a_workload_runs_in_its_short_form(Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), "short"),
    {0, _, "1/1 tcp_sustained_10k_1kib\n"} =
        main(["bench", "tcp_sustained_10k_1kib", "--quick", "--json", Folder]),
    {ok, [#{~"shortened" := true, ~"connections" := 200}]} =
        erlmcp_bench_result:read_all([Folder]).

%% Words as bash has them, of which the last is completed.
bash_completes_words(Config) ->
    {0, Script, ""} = main(["completion", "bash"]),
    File = filename:join(proplists:get_value(priv_dir, Config), "completion.bash"),
    ok = file:write_file(File, unicode:characters_to_binary(Script)),
    ok = file:write_file(filename:join(proplists:get_value(priv_dir, Config), "ca roots.pem"), ~""),
    Complete = fun(Words) ->
        {0, Out, ""} = run("/bin/bash", ["--norc", "-c",
            "set -u; cd \"${0%/*}\"; . \"$0\"; COMP_WORDS=(erlmcp \"$@\"); COMP_CWORD=$#; _erlmcp; "
            "[ ${#COMPREPLY[@]} -eq 0 ] || printf '%s\\n' \"${COMPREPLY[@]}\"", File | Words],
            Config),
        string:lexemes(Out, "\n")
    end,
    [?assertEqual(Expected, Complete(Words), Words)
     || {Words, Expected} <- [
         {["li"], ["list", "listen"]}, {["--v"], ["--version"]},
         {["list", "--er"], ["--era"]}, {["list", "http://x", "--sch"], ["--schema"]},
         {["list", "--era", "s"], ["stateless", "session"]},
         {["list", "--era", "="], ["auto", "stateless", "session"
                                   | [atom_to_list(Each) || Each <- erlmcp_revision:all()]]},
         {["list", "--era", "=", "se"], ["session"]},
         {["call", "http://x", "--log-level", "e"], ["error", "emergency"]},
         {["call", "http://x", "--token", ""], []},
         {["list", "--cacert", "ca"], ["ca roots.pem"]},
         {["scenario", "base"], ["baseline"]}, {["help", "metr"], ["metrology"]},
         {["completion", ""], ["bash", "zsh", "fish", "--help"]},
         {["bench", "growth_s"], ["growth_sessions"]}, {["chaos", "drill_n"], ["drill_node"]},
         {["nonsense", ""], []}]],
    ?assertEqual(length(commands()) + 2, length(Complete([""]))).

%% The commands, by the help that the same tables give.
commands() ->
    {0, Help, ""} = main(["help"]),
    {match, Rows} = re:run(Help, "^  ([a-z]+) +[a-z]", [multiline, global,
                                                       {capture, all_but_first, list}]),
    lists:append(Rows).

options(Command) ->
    {0, Help, ""} = main(["help", Command]),
    case re:run(Help, "^ +(?:-., )?(--[a-z-]+)", [multiline, global,
                                                  {capture, all_but_first, list}]) of
        {match, Found} -> lists:usort(lists:append(Found));
        nomatch -> []
    end.

every_shell_gets_every_word(Config) ->
    [begin
         {0, Script, ""} = main(["completion", Shell]),
         [?assertMatch({match, _}, re:run(Script, ["\\b", Command, "\\b"]), {Shell, Command})
          || Command <- commands()],
         [?assertNotEqual(nomatch, string:find(Script, Option), {Shell, Option})
          || Option <- [prefixed(Shell, Each) || Each <- options("load") ++ options("call")]],
         %% By the shell itself where the machine has it.
         File = filename:join(proplists:get_value(priv_dir, Config), "completion." ++ Shell),
         ok = file:write_file(File, unicode:characters_to_binary(Script)),
         [{0, "", ""} = run(Found, ["-n", File], Config)
          || Found <- [os:find_executable(Shell)], is_list(Found)]
     end || Shell <- ["bash", "zsh", "fish"]],
    {2, "", Why} = main(["completion", "csh"]),
    one_line(Why).

prefixed("fish", "--" ++ Name) -> "-l " ++ Name;
prefixed(_, Option) -> Option.

the_manual_has_every_word(_) ->
    {0, Page, ""} = main(["man"]),
    [".TH ERLMCP 1 " ++ _ | Lines] = string:split(Page, "\n", all),
    Bare = unicode:characters_to_list(string:replace(Page, "\\-", "-", all)),
    [begin
         ?assertMatch({match, _}, re:run(Bare, ["^\\.SS \"erlmcp ", Command, "\\b"], [multiline])),
         [?assertMatch({match, _}, re:run(Bare, ["^\\.B \".*", Option, "\\b"], [multiline]),
                       {Command, Option})
          || Option <- options(Command)]
     end || Command <- commands()],
    [?assertNotEqual(nomatch, string:find(Bare, Meaning)) || {_, _, Meaning} <-
        erlmcp_cli_exit:codes()],
    %% No line of text begins as one of orders does.
    Orders = [".B", ".I", ".RI", ".SH", ".SS", ".TP", ".PP"],
    ?assertEqual([], [Line || [C | _] = Line <- Lines, C =:= $. orelse C =:= $',
                              not lists:member(hd(string:lexemes(Line, " ")), Orders)]).
