-module(client_commands_SUITE).
-moduledoc """
Tests for the client commands, as a program: every transport in both eras, questions on a terminal,
both outputs, and every exit code.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([all/0, suite/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2, init_per_testcase/2, end_per_testcase/2]).
-export([every_transport_in_both_eras/1, a_program_that_is_none_exits_3/1,
         a_program_that_ends_says_why/1, a_program_does_not_get_the_token/1,
         a_program_gets_what_is_named/1]).
-export([arguments_are_typed_by_the_schema/1, arguments_come_from_stdin/1,
         options_may_stand_between/1, a_resource_is_read_exactly/1, a_resource_goes_to_a_file/1,
         a_prompt_has_its_arguments/1, values_are_completed/1, a_ping_takes_the_time/1,
         roots_are_named/1, what_cannot_be_asked_is_declined/1, sampling_is_refused_in_words/1,
         progress_and_logs_are_shown_when_wanted/1]).
-export([a_server_that_goes_on_logging_is_left/1, tasks_are_waited_for/1,
         results_of_another_form_are_no_crash/1, forms_that_are_wrong_are_declined/1]).
-export([changes_are_printed_as_they_happen/1, a_session_is_listened_to_as_json/1]).
-export([a_form_is_asked_on_the_terminal/1, a_form_can_be_left/1, a_terminal_shows_a_bar/1,
         a_terminal_gets_no_bytes/1, ctrl_c_ends_listen_with_0/1]).
-export([headers_and_tokens_are_sent/1, without_a_token_exits_5/1, a_login_serves_later_commands/1,
         a_spoiled_login_is_told/1, a_login_asks_where_it_is_led/1,
         a_login_without_a_terminal_is_led_nowhere/1,
         the_reason_of_a_server_is_shown/1, a_reason_is_json_with_json/1,
         a_reason_cannot_control_the_terminal/1,
         only_known_roots_are_trusted/1, certificates_signed_by_themselves_are_told/1]).
-export([the_page_shows_what_happens/1, the_page_has_every_exit_code/1]).

-import(erlmcp_test_program, [main/1, run/3, open/2, output/2, url/1, one_line/1]).

all() ->
    [{group, served}, {group, protected}, a_program_that_is_none_exits_3,
     a_program_that_ends_says_why, a_program_does_not_get_the_token, a_program_gets_what_is_named,
     a_server_that_goes_on_logging_is_left, results_of_another_form_are_no_crash,
     forms_that_are_wrong_are_declined, only_known_roots_are_trusted,
     certificates_signed_by_themselves_are_told, the_page_has_every_exit_code].

suite() ->
    [{timetrap, {minutes, 4}}].

groups() ->
    [{served, [the_page_shows_what_happens, every_transport_in_both_eras,
               arguments_are_typed_by_the_schema, arguments_come_from_stdin,
               options_may_stand_between, a_resource_is_read_exactly, a_resource_goes_to_a_file,
               a_prompt_has_its_arguments, values_are_completed, a_ping_takes_the_time,
               roots_are_named, what_cannot_be_asked_is_declined, sampling_is_refused_in_words,
               progress_and_logs_are_shown_when_wanted, tasks_are_waited_for,
               changes_are_printed_as_they_happen,
               a_session_is_listened_to_as_json, a_form_is_asked_on_the_terminal,
               a_form_can_be_left, a_terminal_shows_a_bar, a_terminal_gets_no_bytes,
               ctrl_c_ends_listen_with_0]},
     {protected, [headers_and_tokens_are_sent, without_a_token_exits_5,
                  a_login_serves_later_commands, a_spoiled_login_is_told,
                  a_login_asks_where_it_is_led,
                  a_login_without_a_terminal_is_led_nowhere, the_reason_of_a_server_is_shown,
                  a_reason_is_json_with_json, a_reason_cannot_control_the_terminal]}].

init_per_suite(Config) ->
    erlmcp_test_program:init(Config).

end_per_suite(_) ->
    ok.

init_per_group(served, Config) ->
    Served = erlmcp_test_program:serve_for_group(["--port", "0", "--tcp", "0"], Config),
    {match, [Address]} = re:run(proplists:get_value(output, Served), "tcp://([0-9.:]+) ",
                                [{capture, all_but_first, list}]),
    [{tcp, Address} | Served];
init_per_group(protected, Config) ->
    %% The peer is that of the library's own suites.
    Root = filename:join(code:lib_dir(erlmcp), "test"),
    [Beam | _] = filelib:wildcard(filename:join(Root, "**/erlmcp_test_oauth.beam")),
    true = code:add_patha(filename:dirname(Beam)),
    {ok, _} = application:ensure_all_started(erlmcp),
    Config.

end_per_group(served, Config) -> erlmcp_test_program:end_group(Config);
end_per_group(protected, _) -> ok.

%% All messages of the commands in this node must be valid.
init_per_testcase(_, Config) ->
    erlmcp_test_sent:listen(Config).

end_per_testcase(_, Config) ->
    erlmcp_test_sent:heard(Config, []).

every_transport_in_both_eras(Config) ->
    Program = proplists:get_value(program, Config),
    [?assertEqual({0, "some text\n", ""},
                  main(["call" | Target] ++ ["echo", "text=some text", "--era", Era]),
                  {Target, Era})
     || Era <- ["stateless", "2025-06-18"],
        Target <- [[url(Config)], ["--tcp", proplists:get_value(tcp, Config)],
                   ["--stdio", "'" ++ Program ++ "' serve everything --stdio"]]].

a_program_that_is_none_exits_3(_) ->
    {3, "", "cannot reach no_such_program --at all: there is no such program\n"} =
        main(["list", "--stdio", "no_such_program --at all"]),
    {3, "", "cannot reach /dev/null: this file is no program, or may not be run\n"} =
        main(["list", "--stdio", "/dev/null"]).

a_program_that_ends_says_why(_) ->
    {3, "", Why} = main(["list", "--stdio", "sh -c 'printf \"no \\033[1mlicence\\n\" >&2; "
                                           "sleep 0.3; exit 3'"]),
    {match, _} = re:run(Why, "^server: no ␛\\[1mlicence\n.*ended with status 3\n$", [unicode]).

a_program_does_not_get_the_token(_) ->
    true = os:putenv("ERLMCP_TOKEN", "secret"),
    ?assertEqual("token: other:", program_sees([])),
    true = os:unsetenv("ERLMCP_TOKEN").

%% A server program gets no secrets from the user's environment, except the named variables.
a_program_gets_what_is_named(_) ->
    true = os:putenv("ERLMCP_OTHER", "key"),
    ?assertEqual("token: other:", program_sees([])),
    ?assertEqual("token: other: key", program_sees(["--env", "ERLMCP_OTHER"])),
    ?assertEqual("token: a=b other: c",
                 program_sees(["--env", "ERLMCP_TOKEN=a=b", "--env", "ERLMCP_OTHER=c"])),
    true = os:unsetenv("ERLMCP_OTHER"),
    [begin
         {2, "", Why} = main(["list" | Words]),
         ?assertMatch({match, _}, re:run(Why, Expected), Why)
     end || {Words, Expected} <- [
         {["--stdio", "sh", "--env", "ERLMCP_OTHER"],
          "--env ERLMCP_OTHER: there is no such variable here"},
         {["--stdio", "sh", "--env", "=x"], "--env =x: NAME or NAME=VALUE was expected"},
         {["http://127.0.0.1:1/mcp", "--env", "PATH"], "--env: only a program of --stdio has that"},
         {["--tcp", "127.0.0.1:1", "--env", "PATH"],
          "--env: only a program of --stdio has that"},
         {["--tcp", "127.0.0.1:1", "--login", "--client-id", "x"],
          "--login: only a URL has that"}]].

%% The output of a program that prints two variables and ends at once.
program_sees(Options) ->
    {3, "", Why} = main(["list", "--stdio",
                         "sh -c 'echo token: $ERLMCP_TOKEN other: $ERLMCP_OTHER >&2; sleep 0.3; "
                         "exit 3'" | Options]),
    {match, [Line]} = re:run(Why, "^server: (.*)\n", [{capture, all_but_first, list}]),
    string:trim(Line).

arguments_are_typed_by_the_schema(Config) ->
    {0, "-0.5\n", ""} = main(["call", url(Config), "add", "a=1", "b=-1.5"]),
    {2, "", Why} = main(["call", url(Config), "add", "a=1", "b=two"]),
    one_line(Why),
    {match, _} = re:run(Why, "^b=two: number was expected").

arguments_come_from_stdin(Config) ->
    {0, "from stdin\n", ""} =
        run("/bin/sh", ["-c", "echo '{\"text\": \"from stdin\"}' | \"$0\" call \"$1\" echo -",
                        proplists:get_value(program, Config), url(Config)], Config),
    {2, "", Why} = run("/bin/sh", ["-c", "echo '[' | \"$0\" call \"$1\" echo -",
                                   proplists:get_value(program, Config), url(Config)], Config),
    "the arguments are not JSON: line 2, column 1: the text ends here, and its JSON does not\n"
    "  \n  ^\n" = Why,
    {2, "", "stdin: a JSON object was expected, and not a folder\n"} =
        run("/bin/sh", ["-c", "exec \"$0\" call \"$1\" echo - </",
                        proplists:get_value(program, Config), url(Config)], Config).

options_may_stand_between(Config) ->
    {0, Out, ""} = main(["call", "--era", "2025-11-25", url(Config), "echo", "text=a", "--json",
                         "--timeout", "9"]),
    #{~"content" := [#{~"text" := ~"a"}]} = json:decode(unicode:characters_to_binary(Out)),
    {0, "a --json\n", ""} = main(["call", url(Config), "echo", "--", "text=a --json"]).

a_resource_is_read_exactly(Config) ->
    {0, "This is the content of the static text resource.", ""} =
        main(["read", url(Config), "test://static-text"]),
    File = filename:join(proplists:get_value(priv_dir, Config), "read"),
    {0, "", ""} = run("/bin/sh", ["-c", "\"$0\" read \"$1\" test://static-binary > \"$2\"",
                                  proplists:get_value(program, Config), url(Config), File], Config),
    {ok, <<16#89, "PNG", _/binary>> = Bytes} = file:read_file(File),
    70 = byte_size(Bytes),
    {1, "", Why} = main(["read", url(Config), "test://nothing"]),
    one_line(Why).

a_resource_goes_to_a_file(Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "output"),
    {0, "", ""} = main(["read", url(Config), "test://static-binary", "--output", File]),
    {ok, <<16#89, "PNG", _/binary>>} = file:read_file(File),
    {1, "", Why} = main(["read", url(Config), "test://static-text", "--output",
                         filename:join(File, "below")]),
    one_line(Why).

a_prompt_has_its_arguments(Config) ->
    {0, Out, ""} = main(["prompt", url(Config), "test_prompt_with_arguments", "arg1=1",
                         "arg2=a=b"]),
    {match, _} = re:run(Out, "^user: Prompt with arguments: arg1='1', arg2='a=b'$", [multiline]),
    {0, Json, ""} = main(["prompt", url(Config), "test_simple_prompt", "--json"]),
    #{~"messages" := [_]} = json:decode(unicode:characters_to_binary(Json)).

values_are_completed(Config) ->
    Complete = fun(Words) -> main(["complete", url(Config) | Words]) end,
    {0, "test\ntesting\n", ""} = Complete(["prompt:test_prompt_with_arguments", "arg1", "te"]),
    {0, "toast\n", ""} = Complete(["prompt:test_prompt_with_arguments", "arg1", "to",
                                   "--known", "arg2=x"]),
    {2, "", Why} = Complete(["test_prompt_with_arguments", "arg1"]),
    one_line(Why).

a_ping_takes_the_time(Config) ->
    {0, Out, ""} = main(["ping", url(Config), "-c", "2"]),
    {match, _} = re:run(Out, "^everything [0-9.]+ speaks 2026-07-28 .*\n1: [0-9.]+ ms\n"
                             "2: [0-9.]+ ms\nleast .* most [0-9.]+ ms\n$"),
    {0, Json, ""} = main(["ping", "--tcp", proplists:get_value(tcp, Config), "--json",
                          "--era", "2025-03-26"]),
    #{~"milliseconds" := [Time]} = json:decode(unicode:characters_to_binary(Json)),
    true = Time > 0.

roots_are_named(Config) ->
    [?assertEqual({0, "file:///tmp/a%20b\nfile:///\n\n", ""},
                  main(["call", url(Config), "test_input_required_result_list_roots",
                        "--root", "/tmp/a b", "--root", "/", "--era", Era]), Era)
     || Era <- ["stateless", "session"]].

what_cannot_be_asked_is_declined(Config) ->
    [begin
         {0, "User response: action=decline, content={}\n", Why} =
             main(["call", url(Config), "test_elicitation", "message=Who?", "--era", Era]),
         "declined, since there is no terminal to ask on: Who?\n" = Why
     end || Era <- ["stateless", "session"]].

sampling_is_refused_in_words(Config) ->
    {1, "", Why} = main(["call", url(Config), "test_sampling", "prompt=x"]),
    one_line(Why),
    {match, _} = re:run(Why, "sampling").

progress_and_logs_are_shown_when_wanted(Config) ->
    Tcp = ["--tcp", proplists:get_value(tcp, Config)],
    Logged = "[info] Tool execution started\n[info] Tool processing data\n"
             "[info] Tool execution completed\n",
    [begin
         Call = fun(Tool, More) -> main(["call" | Target] ++ [Tool, "--era", Era | More])
                end,
         {0, _, "progress 0/100\nprogress 50/100\nprogress 100/100\n"} =
             Call("test_tool_with_progress", ["--verbose"]),
         {0, _, Logged} = Call("test_tool_with_logging", ["--log-level", "info"]),
         {0, _, ""} = Call("test_tool_with_logging", ["--log-level", "error"])
     end || {Target, Era} <- [{[url(Config)], "stateless"}, {Tcp, "session"}]].

%% There is always another message before the command has ceased to wait for one.
a_server_that_goes_on_logging_is_left(_) ->
    Log = #{jsonrpc => ~"2.0", method => ~"notifications/message",
            params => #{level => info, data => ~"still here"}},
    #{port := Port} = Peer = erlmcp_test_peer:tcp(
        fun(#{~"method" := ~"initialize"} = Message) ->
                [erlmcp_test_peer:result(Message, #{
                     protocolVersion => ~"2025-11-25",
                     capabilities => #{tools => #{}, logging => #{}},
                     serverInfo => #{name => ~"peer", version => ~"1"}})];
           (#{~"method" := ~"logging/setLevel"} = Message) ->
                [erlmcp_test_peer:result(Message, #{})];
           (#{~"method" := ~"tools/call"} = Message) ->
                [Log,
                 erlmcp_test_peer:result(Message, #{content => [#{type => text, text => ~"a"}]}),
                 fun(Socket) -> goes_on_logging(Socket, [json:encode(Log), $\n]) end];
           (_) ->
                []
        end),
    Began = erlang:monotonic_time(millisecond),
    {0, "a\n", Logged} = main(["call", "--tcp", "127.0.0.1:" ++ integer_to_list(Port), "t",
                               "--era", "session", "--log-level", "info"]),
    true = erlang:monotonic_time(millisecond) - Began < 10_000,
    {match, _} = re:run(Logged, "still here"),
    ok = erlmcp_test_peer:stop(Peer).

%% So often that the command hears of one in time, although other programs have the processors.
goes_on_logging(Socket, Log) ->
    case gen_tcp:send(Socket, Log) of
        ok -> receive after 2 -> goes_on_logging(Socket, Log) end;
        {error, _} -> close
    end.

%% A tool that must be a task, whose result is an error; and one that may be.
tasks_are_waited_for(Config) ->
    [begin
         {1, "", "This job always fails\n"} =
             main(["call", url(Config), "failing_job", "--tasks", "--era", Era]),
         {0, "Computed a\n", ""} =
             main(["call", url(Config), "slow_compute", "seconds=0", "label=a", "--tasks",
                   "--era", Era]),
         {1, "", Why} = main(["call", url(Config), "failing_job", "--era", Era]),
         one_line(Why)
     end || Era <- ["stateless", "2025-11-25"]].

%% The client checks the name of a tool, the type of an item and the role of a message.
results_of_another_form_are_no_crash(_) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Contents = [#{~"type" => ~"text", ~"text" => 5},
                #{~"type" => ~"image", ~"data" => ~"AA==", ~"mimeType" => null},
                #{~"type" => ~"image", ~"data" => 5, ~"mimeType" => ~"image/png"},
                #{~"type" => ~"resource_link", ~"uri" => ~"x:y", ~"name" => []},
                #{~"type" => ~"resource", ~"resource" => #{~"uri" => 5}}],
    %% Of such a resource the URI is shown.
    Resource = #{~"type" => ~"resource",
                 ~"resource" => #{~"uri" => ~"x:y", ~"text" => 5, ~"blob" => [], ~"mimeType" => 5}},
    Untyped = #{~"type" => 5, ~"data" => ~"", ~"mimeType" => ~""},
    Result = #{content => [Resource | Contents], tools => [#{name => t, inputSchema => 5}],
               messages => [#{role => user, content => Content}
                            || Content <- [Resource, Untyped | Contents]]},
    #{url := Url} = Peer = erlmcp_test_peer:http(
        fun(#{message := #{~"method" := ~"server/discover"} = Message}) ->
                erlmcp_test_bad_http_peer:discovered(Message);
           (#{message := Message}) ->
                {200, [], erlmcp_test_bad_http_peer:complete(Message, Result)}
        end),
    {0, "[resource x:y]\n" ++ Called, ""} = main(["call", binary_to_list(Url), "t"]),
    ?assertEqual(Contents, [json:decode(list_to_binary(Line))
                            || Line <- string:lexemes(Called, "\n")]),
    {0, "[resource x:y]\n" ++ _, ""} = main(["call", binary_to_list(Url), "t", "a=1"]),
    {0, "user: [resource x:y]\n" ++ Prompt, ""} = main(["prompt", binary_to_list(Url), "p"]),
    ?assertEqual([Untyped | Contents], [json:decode(list_to_binary(Line))
                                        || "user: " ++ Line <- string:lexemes(Prompt, "\n")]),
    ok = erlmcp_test_peer:stop(Peer).

forms_that_are_wrong_are_declined(_) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    [begin
         #{url := Url} = Peer = erlmcp_test_peer:http(fun(#{message := Message}) ->
             with_form(Form, Message)
         end),
         ?assertEqual({0, "decline\n",
                       "declined, since the form of the server is wrong: " ++ Why ++ "\n"},
                      main(["call", binary_to_list(Url), "t"])),
         ok = erlmcp_test_peer:stop(Peer)
     end || {Form, Why} <- [
         {#{requestedSchema => #{type => object, properties => 7}},
          "properties: expected an object, got 7"},
         {#{requestedSchema => #{type => object, properties => #{}, required => true}},
          "required: expected an array, got true"},
         {#{requestedSchema => [~"name"]},
          "requestedSchema: expected an object, got an array of 1 item"},
         {#{}, "requestedSchema: expected an object"}]].

%% A server that shows the answer to its form.
with_form(_, #{~"method" := ~"server/discover"} = Message) ->
    erlmcp_test_bad_http_peer:discovered(Message);
with_form(_, #{~"params" := #{~"inputResponses" := #{~"q" := #{~"action" := Action}}}} = Message) ->
    erlmcp_test_bad_http_peer:text(Message, Action);
with_form(Form, Message) ->
    Asked = #{method => ~"elicitation/create", params => Form#{message => ~"Who?"}},
    {200, [], erlmcp_test_peer:result(Message, #{resultType => input_required,
                                                 inputRequests => #{q => Asked}})}.

changes_are_printed_as_they_happen(Config) ->
    {Listener, Pid} = listen(["listen", url(Config), "--tools", "--resource",
                              "test://watched-resource"], Config),
    {0, _, _} = main(["call", url(Config), "touch_watched"]),
    {0, _, _} = main(["call", url(Config), "test_trigger_prompt_change"]),
    {0, _, _} = main(["call", url(Config), "test_trigger_tool_change"]),
    %% It changes twice.
    <<"resource test://watched-resource changed\nthe list of tools changed\n", _/binary>> =
        await_output(Listener, ~"tools changed\n", <<>>),
    0 = stopped("TERM", Pid, Listener).

a_session_is_listened_to_as_json(Config) ->
    {Listener, Pid} = listen(["listen", url(Config), "--json", "--era", "2025-06-18",
                              "--resource", "test://watched-resource"], Config),
    {0, _, _} = main(["call", url(Config), "touch_watched"]),
    Line = await_output(Listener, ~"\n", <<>>),
    #{~"event" := ~"resource_updated", ~"uri" := ~"test://watched-resource"} = json:decode(Line),
    %% The signal that a shell sends for Ctrl-C.
    0 = stopped("INT", Pid, Listener).

%% Stdout and stderr in one, until it says that it listens.
listen(Arguments, Config) ->
    Port = open("exec \"$0\" \"$@\" 2>&1", [proplists:get_value(program, Config) | Arguments]),
    _ = await_output(Port, ~"Ctrl-C ends it\n", <<>>),
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    {Port, Pid}.

await_output(Port, Wanted, Output) ->
    receive
        {Port, {data, Data}} ->
            All = <<Output/binary, Data/binary>>,
            case binary:match(All, Wanted) of
                nomatch -> await_output(Port, Wanted, All);
                _ -> All
            end;
        {Port, {exit_status, Status}} ->
            ct:fail({ended, Status, Output})
    after 60_000 ->
        ct:fail({silent, Output})
    end.

stopped(Signal, Pid, Port) ->
    "" = os:cmd("kill -" ++ Signal ++ " " ++ integer_to_list(Pid)),
    ended(Port).

ended(Port) ->
    receive
        {Port, {exit_status, Status}} -> Status;
        {Port, {data, Data}} ->
            %% An interrupted command has not failed.
            nomatch = binary:match(Data, ~"the client is not running"),
            ended(Port)
    after 60_000 ->
        ct:fail(still_running)
    end.

%% The output of `script`, which gives the program a terminal. Ctrl-C would end a shell between the
%% two.
on_terminal(Arguments, Config) ->
    Command = ["exec" | [[" '", Word, "'"]
                         || Word <- [proplists:get_value(program, Config) | Arguments]]],
    %% Without colours, whatever terminal this runs on.
    open("exec env TERM=dumb script -qec \"$0\" /dev/null",
         [unicode:characters_to_binary(Command)]).

typed(Port, []) ->
    {_, Out} = Ended = output(Port, []),
    setelement(2, Ended, unicode:characters_to_list(iolist_to_binary(Out)));
typed(Port, [{Question, Answer} | Others]) ->
    _ = await_output(Port, Question, <<>>),
    true = port_command(Port, Answer),
    typed(Port, Others).

a_form_is_asked_on_the_terminal(Config) ->
    [begin
         Port = on_terminal(["call", url(Config), "test_elicitation_sep1034_defaults",
                             "--era", Era], Config),
         {0, Out} = typed(Port, [{~"age (integer) [30]: ", ~"old\n"},
                                 {~"age (integer) [30]: ", ~"31\n"},
                                 {~"[John Doe]: ", ~"\n"}, {~"[95.5]: ", ~"\n"},
                                 {~"[active]: ", ~"pending\n"}, {~"(y or n) [y]: ", ~"n\n"},
                                 {~"Send this? [Y/n] ", ~"\n"}]),
         [_, Content] = string:split(string:trim(Out), "content="),
         #{~"age" := 31, ~"name" := ~"John Doe", ~"score" := 95.5, ~"status" := ~"pending",
           ~"verified" := false} = json:decode(unicode:characters_to_binary(Content))
     end || Era <- ["stateless", "session"]].

a_form_can_be_left(Config) ->
    Ask = fun(Steps) ->
        {0, Out} = typed(on_terminal(["call", url(Config), "test_elicitation", "message=Who?"],
                                     Config), Steps),
        {match, [Action]} = re:run(Out, "action=([a-z]*)", [{capture, all_but_first, list}]),
        Action
    end,
    "cancel" = Ask([{~"address (string): ", ~"\4"}]),
    "decline" = Ask([{~"address (string): ", ~"a@b.org\n"}, {~"response (string): ", ~"me\n"},
                     {~"Send this? [Y/n] ", ~"n\n"}]).

a_terminal_shows_a_bar(Config) ->
    {0, Out} = typed(on_terminal(["call", url(Config), "test_tool_with_progress"], Config), []),
    %% Reports that come together show as one.
    {match, _} = re:run(Out, "^\r\\[ +\\]   0%\e\\[K(\r\\[=+ *\\] +(50|100)%\e\\[K)*\r\e\\[K"
                             "Progress was reported three times.\r\n$").

a_terminal_gets_no_bytes(Config) ->
    {1, "70 bytes that are no text; --output FILE keeps them\r\n"} =
        typed(on_terminal(["read", url(Config), "test://static-binary"], Config), []),
    %% A line is ended there, so that the prompt of the shell begins one.
    {0, "This is the content of the static text resource.\r\n"} =
        typed(on_terminal(["read", url(Config), "test://static-text"], Config), []).

ctrl_c_ends_listen_with_0(Config) ->
    %% And Ctrl-\, which kills what does not know it.
    [{0, _} = typed(on_terminal(["listen", url(Config)], Config), [{~"Ctrl-C ends it", Key}])
     || Key <- [~"\3", ~"\34"]].

headers_and_tokens_are_sent(Config) ->
    Peer = protected(),
    Url = binary_to_list(erlmcp_test_oauth:url(Peer)),
    {0, _, ""} = main(["list", Url, "--token", "one", "--header", "X-Mine: a: b",
                       "--era", "stateless"]),
    {0, _, ""} = run("/usr/bin/env", ["ERLMCP_TOKEN=two", proplists:get_value(program, Config),
                                      "list", Url, "--era", "stateless"], Config),
    Sent = [{maps:get(~"authorization", Headers), maps:get(~"x-mine", Headers, none)}
            || #{headers := Headers} <- erlmcp_test_oauth:asked(Peer, ~"/mcp")],
    [{~"Bearer one", ~"a: b"}, {~"Bearer two", none}] = lists:usort(Sent),
    erlmcp_test_oauth:stop(Peer).

without_a_token_exits_5(_) ->
    Peer = protected(),
    {5, "", Why} = main(["list", binary_to_list(erlmcp_test_oauth:url(Peer))]),
    one_line(Why),
    {match, _} = re:run(Why, "--login"),
    [] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    erlmcp_test_oauth:stop(Peer).

a_login_serves_later_commands(Config) ->
    Peer = protected(),
    Url = binary_to_list(erlmcp_test_oauth:url(Peer)),
    Home = home("home", Config),
    Run = fun(Words) ->
        run("/usr/bin/env", environment(Home) ++ [proplists:get_value(program, Config), "list", Url
                                                  | Words], Config)
    end,
    {5, "", _} = Run([]),
    %% This browser may finish before the command reports the login.
    {0, _, Stderr} = Run(["--login"]),
    true = lists:member(Stderr, ["", "The login is in the browser.\n"]),
    {0, _, ""} = Run([]),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    Kept = filelib:wildcard(filename:join([Home, "erlmcp", "tokens", "*.json"])),
    [] = [File || File <- Kept, mode(File) =/= 8#600],
    [_ | _] = Kept,
    %% The server revokes its grant. The command does not open the browser by itself.
    erlmcp_test_oauth:change(Peer, ~"/mcp", {401, #{}, ~""}),
    {5, "", Ended} = Run([]),
    one_line(Ended),
    [_] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    {match, _} = re:run(Ended, "--login begins another"),
    erlmcp_test_oauth:stop(Peer).

%% A file that lost its content, as after a power failure.
a_spoiled_login_is_told(Config) ->
    Home = home("spoiled", Config),
    Url = "http://127.0.0.1:" ++ integer_to_list(erlmcp_test_port:unused()) ++ "/mcp",
    List = fun(Words) ->
        run("/usr/bin/env", environment(Home) ++ [proplists:get_value(program, Config), "list", Url
                                                  | Words], Config)
    end,
    %% What the user has chosen is stored before the server is asked.
    {3, "", _} = List(["--login", "--client-id", "mine"]),
    [File] = filelib:wildcard(filename:join([Home, "erlmcp", "tokens", "*.json"])),
    ok = file:write_file(File, ~""),
    {2, "", Why} = List([]),
    one_line(Why),
    {match, _} = re:run(Why, "the tokens in this folder cannot be used: malformed").

%% A listener that takes tokens, and what its server says to those that it does not take.
guarded(Fun) ->
    Token = fun(Secret, More) -> maps:merge(#{token => Secret, principal => Secret}, More) end,
    Knows = fun(~"t-other", _) -> {error, ~"the token is for another server"};
               (_, _) -> unknown
            end,
    Bearer = #{authorization_servers => [~"https://as.example"],
               tokens => [{static, [Token(~"t-read", #{scopes => [~"files:read"]}),
                                    Token(~"t-old", #{expires_at => 1})]},
                          {verify, Knows}]},
    {ok, Server} = erlmcp:start_server(#{
        name => ~"guarded", version => ~"1",
        tools => [#{name => ~"write", scopes => [~"files:write"], handler => fun(_, _) -> ~"" end}],
        listen => [{http, #{scopes => [~"files:read"], authenticate => {bearer, Bearer}}}]}),
    [#{url := Url}] = erlmcp:listeners(Server),
    try
        Fun(binary_to_list(Url))
    after
        erlmcp:stop_server(Server)
    end.

the_reason_of_a_server_is_shown(_) ->
    guarded(fun(Url) ->
        [?assertEqual({5, "", Url ++ ": HTTP " ++ Reason ++ "\n"},
                      main(Words ++ ["--era", Era]), {Words, Era})
         || Era <- ["stateless", "2025-11-25"],
            {Words, Reason} <- [
                {["list", Url],
                 "401: not authorized: an access token is needed; scope: files:read; --login or "
                 "--token may help"},
                {["list", Url, "--token", "t-old"],
                 "401: not authorized: invalid_token: the token has expired; scope: files:read; "
                 "--login or --token may help"},
                {["list", Url, "--token", "t-other"],
                 "401: not authorized: invalid_token: the token is for another server; scope: "
                 "files:read; --login or --token may help"},
                {["call", Url, "write", "{}", "--token", "t-read"],
                 "403: not authorized: insufficient_scope: this needs more than what the token was "
                 "given for; this needs the scopes files:write; scope: files:read files:write; "
                 "--login or another --token may get it"}]]
    end).

a_reason_is_json_with_json(_) ->
    guarded(fun(Url) ->
        {5, Out, Why} = main(["call", Url, "write", "{}", "--token", "t-read", "--json"]),
        one_line(Why),
        #{~"error" := #{~"status" := 403, ~"error" := ~"insufficient_scope",
                        ~"error_description" := <<"this needs more", _/binary>>,
                        ~"scope" := ~"files:read files:write",
                        ~"resource_metadata" := <<"http://127.0.0.1:", _/binary>>,
                        ~"rpc" := #{~"code" := 1014, ~"message" := <<"this needs", _/binary>>,
                                    ~"data" := #{~"name" := ~"authz_forbidden"}}}} =
            json:decode(unicode:characters_to_binary(Out))
    end).

a_reason_cannot_control_the_terminal(_) ->
    Peer = erlmcp_test_oauth:start(),
    Url = binary_to_list(erlmcp_test_oauth:url(Peer)),
    Evil = ~"a\e]0;x\x07\x{9b}31m\x7f\r\nb",
    [begin
         erlmcp_test_oauth:change(Peer, ~"/mcp",
                                  {401, Headers#{~"content-type" => ~"application/json"},
                                   json:encode(Body)}),
         {5, _, Why} = main(["list", Url, "--era", "stateless" | Words]),
         one_line(Why),
         {Why, []} = {Why, [C || C <- Why, C < 16#20 andalso C =/= $\n
                                               orelse C >= 16#7f andalso C < 16#a0]},
         {match, _} = re:run(Why, "not authorized: .*a.*b", [unicode])
     end || Words <- [[], ["--json"]],
            {Headers, Body} <- [
                {#{~"www-authenticate" => <<"Bearer error=\"a", 16#9b, "31m", 9, "b\"">>}, #{}},
                {#{}, #{jsonrpc => ~"2.0", id => null, error => #{code => -32001,
                                                                  message => Evil}}},
                {#{}, #{error => ~"a", error_description => Evil}}]],
    erlmcp_test_oauth:stop(Peer).

%% A folder of a user's whose browser agrees.
home(Name, Config) ->
    Home = filename:join(proplists:get_value(priv_dir, Config), Name),
    Browser = filename:join([Home, "bin", "wslview"]),
    ok = filelib:ensure_dir(Browser),
    ok = file:write_file(Browser, "#!/bin/sh\nexec curl -sS --noproxy '*' -L \"$1\"\n"),
    ok = file:change_mode(Browser, 8#755),
    Home.

environment(Home) ->
    ["-u", "DISPLAY", "-u", "WAYLAND_DISPLAY", "XDG_STATE_HOME=" ++ Home,
     "PATH=" ++ filename:join(Home, "bin") ++ ":" ++ os:getenv("PATH")].

%% A token endpoint of another origin than the issuer's, as some authorization servers have one.
led_elsewhere() ->
    Peer = protected(),
    Other = erlmcp_test_oauth:start(),
    erlmcp_test_oauth:change(Other, ~"/token", fun(_) ->
        erlmcp_test_oauth:json(200, erlmcp_test_oauth:token_answer(Peer))
    end),
    erlmcp_test_oauth:metadata(Peer,
                               #{~"token_endpoint" => erlmcp_test_oauth:url(Other, ~"/token")}),
    {Peer, Other}.

a_login_asks_where_it_is_led(Config) ->
    {Peer, Other} = led_elsewhere(),
    Url = binary_to_list(erlmcp_test_oauth:url(Peer)),
    Home = home("led", Config),
    Program = proplists:get_value(program, Config),
    List = fun(Words) ->
        Command = ["exec", [[" '", Word, "'"]
                            || Word <- ["/usr/bin/env" | environment(Home)]
                                           ++ [Program, "list", Url | Words]]],
        open("exec script -qec \"$0\" /dev/null", [unicode:characters_to_binary(Command)])
    end,
    First = List(["--login"]),
    {match, _} = re:run(await_output(First, ~"Allow it? [y/N] ", <<>>),
                        "the login of http://localhost:[0-9]+ leads to another host, "
                        "localhost\r\n    http://localhost:[0-9]+/token\r\n"),
    true = port_command(First, ~"\n"),
    {5, _} = typed(First, []),
    [] = erlmcp_test_oauth:asked(Other),
    [] = erlmcp_test_oauth:asked(Peer, ~"/authorize"),
    {0, _} = typed(List(["--login"]), [{~"Allow it? [y/N] ", ~"y\n"}]),
    [~"/token"] = erlmcp_test_oauth:asked(Other),
    %% The next command has the answer of the last one.
    erlmcp_test_oauth:change(Peer, ~"/mcp", {401, #{}, ~""}),
    {5, Again} = typed(List(["--login"]), []),
    nomatch = re:run(Again, "Allow it"),
    erlmcp_test_oauth:stop(Other),
    erlmcp_test_oauth:stop(Peer).

a_login_without_a_terminal_is_led_nowhere(Config) ->
    {Peer, Other} = led_elsewhere(),
    Url = binary_to_list(erlmcp_test_oauth:url(Peer)),
    Home = home("unattended", Config),
    Run = fun(Words) ->
        run("/usr/bin/env", environment(Home) ++ [proplists:get_value(program, Config), "list", Url
                                                  | Words], Config)
    end,
    {5, "", Why} = Run(["--login"]),
    one_line(Why),
    {match, _} = re:run(Why, "another host, localhost; --allow-host localhost allows it\n$"),
    [] = erlmcp_test_oauth:asked(Other),
    {0, _, _} = Run(["--login", "--allow-host", "LOCALHOST"]),
    [~"/token"] = erlmcp_test_oauth:asked(Other),
    {2, "", Alone} = Run(["--allow-host", "localhost"]),
    one_line(Alone),
    erlmcp_test_oauth:stop(Other),
    erlmcp_test_oauth:stop(Peer).

mode(File) ->
    {ok, Info} = file:read_file_info(File),
    element(8, Info) band 8#777.

%% An MCP server behind any token.
protected() ->
    Peer = erlmcp_test_oauth:start(),
    Answer = fun(#{headers := Headers, base := Base, body := Body}) ->
        case Headers of
            #{~"authorization" := _} ->
                #{~"id" := Id, ~"method" := ~"server/discover"} = json:decode(Body),
                {200, #{~"content-type" => ~"application/json"},
                 json:encode(#{jsonrpc => ~"2.0", id => Id, result => discovered()})};
            #{} ->
                Metadata = [Base, ~"/.well-known/oauth-protected-resource/mcp"],
                {401, #{~"www-authenticate" =>
                            [~"Bearer resource_metadata=\"", Metadata, $"]}, ~""}
        end
    end,
    erlmcp_test_oauth:change(Peer, ~"/mcp", Answer),
    Peer.

discovered() ->
    #{resultType => complete, ttlMs => 0, cacheScope => private,
      supportedVersions => [~"2026-07-28"], capabilities => #{},
      serverInfo => #{name => peer, version => ~"1"}}.

only_known_roots_are_trusted(Config) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    #{server_config := Server, client_config := Client} = public_key:pkix_test_data(#{
        server_chain => #{root => [{key, {rsa, 2048, 65537}}], intermediates => [],
                          peer => [{key, {rsa, 2048, 65537}},
                                   {extensions, [localhost()]}]},
        client_chain => #{root => [{key, {rsa, 2048, 65537}}], intermediates => [],
                          peer => [{key, {rsa, 2048, 65537}}]}}),
    File = filename:join(proplists:get_value(priv_dir, Config), "roots.pem"),
    ok = file:write_file(File, public_key:pem_encode(
        [{'Certificate', Der, not_encrypted} || Der <- proplists:get_value(cacerts, Client)])),
    {ok, Running} = erlmcp:start_server(#{
        name => ~"safe", version => ~"1", listen => [{http, #{port => 0, tls => Server}}]}),
    [#{port := Port}] = erlmcp:listeners(Running),
    Url = "https://localhost:" ++ integer_to_list(Port) ++ "/mcp",
    {0, "safe 1\n", ""} = main(["list", Url, "--cacert", File]),
    {3, "", Why} = main(["list", Url]),
    one_line(Why),
    {match, _} = re:run(Why, "TLS: unknown ca"),
    %% Its certificate is for `localhost` alone.
    Other = "https://127.0.0.1:" ++ integer_to_list(Port) ++ "/mcp",
    {3, "", WrongHost} = main(["list", Other, "--cacert", File]),
    one_line(WrongHost),
    {match, _} = re:run(WrongHost, "TLS: .*: the certificate is for another host"),
    ok = erlmcp:stop_server(Running).

%% OTP takes no certificate as its own root: that has to be said, since others do.
certificates_signed_by_themselves_are_told(Config) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    #{cert := Der, key := Key} =
        public_key:pkix_test_root_cert("localhost", [{key, {rsa, 2048, 65537}},
                                                     {extensions, [localhost(), for_both()]}]),
    File = filename:join(proplists:get_value(priv_dir, Config), "itself.pem"),
    ok = file:write_file(File, public_key:pem_encode([{'Certificate', Der, not_encrypted}])),
    Type = element(1, Key),
    {ok, Running} = erlmcp:start_server(#{
        name => ~"own", version => ~"1",
        listen => [{http, #{tls => [{cert, Der},
                                    {key, {Type, public_key:der_encode(Type, Key)}}]}}]}),
    [#{port := Port}] = erlmcp:listeners(Running),
    {3, "", Why} = main(["list", "https://localhost:" ++ integer_to_list(Port) ++ "/mcp",
                         "--cacert", File]),
    one_line(Why),
    {match, _} = re:run(Why, "TLS: bad certificate: .* self-signed"),
    ok = erlmcp:stop_server(Running).

localhost() ->
    {'Extension', {2, 5, 29, 17}, false, [{dNSName, "localhost"}]}.

%% Of a server, and of who signs.
for_both() ->
    {'Extension', {2, 5, 29, 15}, false, [digitalSignature, keyCertSign]}.

the_page_shows_what_happens(Config) ->
    %% The other outputs depend on the machine.
    {match, [[Shown] | _]} = re:run(page(Config), "^```console\n(.*?)^```$",
                                [multiline, dotall, global, {capture, all_but_first, binary}]),
    Here = binary:replace(Shown, ~"http://127.0.0.1:8080/mcp", list_to_binary(url(Config)),
                          [global]),
    Steps = [string:split(Step, "\n")
             || Step <- binary:split(Here, [<<"$ ">>], [global]), not string:is_empty(Step)],
    true = length(Steps) > 3,
    Bin = filename:dirname(proplists:get_value(program, Config)),
    [?assertEqual({0, unicode:characters_to_list(Expected), ""},
                  run("/usr/bin/env", ["PATH=" ++ Bin ++ ":" ++ os:getenv("PATH"), "/bin/sh", "-c",
                                       Command], Config), Command)
     || [Command, Expected] <- Steps].

page(Config) ->
    {ok, Page} = file:read_file(filename:join([proplists:get_value(root, Config), "docs",
                                               "cli.md"])),
    Page.

the_page_has_every_exit_code(Config) ->
    Page = page(Config),
    {match, Rows} = re:run(Page, "^\\| ([0-9]) \\| (.*) \\|$",
                           [multiline, global, {capture, all_but_first, binary}]),
    Codes = erlmcp_cli_exit:codes() ++ erlmcp_cli_exit:instrument_codes(),
    ?assertEqual([[integer_to_binary(Code), Meaning] || {Code, _, Meaning} <- Codes], Rows),
    {0, Help, ""} = main(["help"]),
    [?assertNotEqual(nomatch, string:find(Help, [integer_to_list(Code), "  ", Meaning]), Code)
     || {Code, _, Meaning} <- Codes],
    %% The help of a command has its own alone.
    {0, OfList, ""} = main(["help", "list"]),
    ?assertNotEqual(nomatch, string:find(OfList, "the server was not reached")),
    ?assertEqual(nomatch, string:find(OfList, "metrology")).
