-module(typed_and_shown_SUITE).
-moduledoc """
Tests for input and output without a server: words, arguments, forms, bars, exit codes.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([a_command_is_split_like_a_shell_does/1, options_may_stand_anywhere/1]).
-export([what_looks_like_an_option_can_be_given/1, arguments_are_an_object_or_pairs/1]).
-export([values_are_typed_by_the_schema/1, a_value_of_another_type_is_refused/1]).
-export([a_form_has_its_fields/1, what_is_typed_is_held_against_the_schema/1]).
-export([a_bar_fits_its_line/1, nothing_shown_controls_a_terminal/1]).
-export([every_failure_has_an_exit_code/1, targets/1]).
-export([a_wrong_value_names_what_is_right/1, help_is_of_what_there_is/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_command_is_split_like_a_shell_does, options_may_stand_anywhere,
     what_looks_like_an_option_can_be_given, arguments_are_an_object_or_pairs,
     values_are_typed_by_the_schema, a_value_of_another_type_is_refused, a_form_has_its_fields,
     what_is_typed_is_held_against_the_schema, a_bar_fits_its_line,
     nothing_shown_controls_a_terminal, every_failure_has_an_exit_code, targets,
     a_wrong_value_names_what_is_right, help_is_of_what_there_is].

a_command_is_split_like_a_shell_does(_) ->
    [?assertEqual({ok, Words}, erlmcp_cli_words:split(Text), Text)
     || {Text, Words} <- [{"", []}, {"  ", []}, {"a", ["a"]}, {" a  b\tc\n", ["a", "b", "c"]},
                          {"'a b' c", ["a b", "c"]}, {"a'b'\"c\"d", ["abcd"]}, {"''", [""]},
                          {"'a\\b'", ["a\\b"]}, {"\"a\\\"b\\\\c\\d\"", ["a\"b\\c\\d"]},
                          {"a\\ b", ["a b"]}, {"\\'", ["'"]}, {"$HOME;|*", ["$HOME;|*"]},
                          {"'ü'", ["ü"]}]],
    [?assertEqual({error, unfinished}, erlmcp_cli_words:split(Text), Text)
     || Text <- ["'", "\"", "a 'b", "a\\", "\"a\\\""]].

options_may_stand_anywhere(_) ->
    [?assertEqual(["--json", "--era", "auto", "u", "t", "a"], arranged(Words), Words)
     || Words <- [["--json", "--era", "auto", "u", "t", "a"],
                  ["u", "--json", "t", "--era", "auto", "a"],
                  ["u", "t", "a", "--json", "--era", "auto"]]],
    ["-c", "5", "--era=auto", "--unknown", "u"] = arranged(["u", "-c", "5", "--era=auto",
                                                            "--unknown"]),
    %% A negative number is no option, and stays behind the words before it.
    ["--json", "u", "t", _] = arranged(["u", "t", "-5", "--json"]),
    [begin
         {3, "", Why} = erlmcp_test_program:main(["complete", "http://127.0.0.1:1/mcp", "prompt:x",
                                                  "age", Age]),
         ?assertNotEqual(nomatch, string:find(Why, "connection refused"), Why)
     end || Age <- ["-5", "-1e5"]].

arranged(Words) ->
    erlmcp_cli_words:arranged(Words, [#{name => json, long => "-json", type => boolean},
                                      #{name => era, long => "-era"},
                                      #{name => count, short => $c, type => integer},
                                      #{name => url}]).

what_looks_like_an_option_can_be_given(_) ->
    [Url, Minus] = arranged(["u", "-"]),
    [_, After, "plain"] = arranged(["u", "--", "--json", "plain"]),
    %% argparse takes a minus for the beginning of an option.
    [] = [Word || [$- | _] = Word <- [Minus, After]],
    #{url := "u", tool := "-", arguments := ["--json", "plain"], count := 5, none := []} =
        erlmcp_cli_words:restored(#{url => Url, tool => Minus, arguments => [After, "plain"],
                                    count => 5, none => []}),
    #{files := ["", "--json"]} = erlmcp_cli_words:restored(#{files => ["", After]}).

arguments_are_an_object_or_pairs(_) ->
    {ok, {object, #{}}} = erlmcp_cli_arguments:read([]),
    {ok, {object, #{~"a" := 1}}} = erlmcp_cli_arguments:read([" {\"a\":1}"]),
    {ok, {pairs, [{~"a", ~"1"}, {~"b", ~"x=y"}, {~"c", ~""}]}} =
        erlmcp_cli_arguments:read(["a=1", "b=x=y", "c="]),
    {ok, {pairs, [{~"ü", ~"世"}]}} = erlmcp_cli_arguments:read(["ü=世"]),
    [?assertMatch({usage, _}, erlmcp_cli_arguments:read(Words), Words)
     || Words <- [["{"], ["[1]"], ["[a=1"], ["a"], ["=1"], [""], ["a=1", "b"]]].

values_are_typed_by_the_schema(_) ->
    [?assertEqual({ok, #{~"x" => Value}}, typed(Text, Schema), {Text, Schema})
     || {Text, Schema, Value} <- [
         {~"5", #{~"type" => ~"string"}, ~"5"}, {~"5", #{~"type" => ~"integer"}, 5},
         {~"-1.5", #{~"type" => ~"number"}, -1.5}, {~"5.0", #{~"type" => ~"integer"}, 5.0},
         {~"true", #{~"type" => ~"boolean"}, true},
         {~"[1]", #{~"type" => ~"array"}, [1]},
         {~"{\"a\":1}", #{~"type" => ~"object"}, #{~"a" => 1}},
         {~"null", #{~"type" => [~"string", ~"null"]}, null},
         {~"nil", #{~"type" => [~"string", ~"null"]}, ~"nil"},
         {~"5", #{}, 5}, {~"five", #{}, ~"five"}]].

a_value_of_another_type_is_refused(_) ->
    [?assertMatch({usage, _}, typed(Text, #{~"type" => Type}), {Text, Type})
     || {Text, Type} <- [{~"x", ~"integer"}, {~"1.5", ~"integer"}, {~"\"5\"", ~"number"},
                         {~"yes", ~"boolean"}, {~"{}", ~"array"}, {~"1", [~"array", ~"object"]},
                         {~"", ~"integer"}]].

typed(Text, Schema) ->
    erlmcp_cli_arguments:typed([{~"x", Text}], #{~"properties" => #{~"x" => Schema}}).

-define(FORM, #{~"type" => ~"object", ~"required" => [~"size"],
                ~"properties" => #{
                    ~"age" => #{~"type" => ~"integer", ~"default" => 30, ~"minimum" => 18},
                    ~"mail" => #{~"type" => ~"string", ~"format" => ~"email"},
                    ~"ok" => #{~"type" => ~"boolean"},
                    ~"some" => #{~"type" => ~"array", ~"maxItems" => 2,
                                 ~"items" => #{~"type" => ~"string", ~"enum" => [~"a", ~"b"]}},
                    ~"size" => #{~"type" => ~"string", ~"description" => ~"How \e[1mbig",
                                 ~"oneOf" => [#{~"const" => ~"s", ~"title" => ~"Small"},
                                              #{~"const" => ~"l"}]}}}).

a_form_has_its_fields(_) ->
    ["size, How ␛[1mbig (string; one of s = Small, l): ", "age (integer) [30]: ",
     "mail (email) [none]: ", "ok (y or n) [none]: ",
     "some (several, with commas; one of a, b) [none]: "] =
        [unicode:characters_to_list(erlmcp_cli_form:question(Field)) || Field <- fields()].

what_is_typed_is_held_against_the_schema(_) ->
    [Size, Age, Mail, Ok, Some] = fields(),
    [?assertEqual({ok, Name, Value}, erlmcp_cli_form:answer(Typed, Field), Typed)
     || {Typed, Field, Name, Value} <- [
         {~"s", Size, ~"size", ~"s"}, {~"18", Age, ~"age", 18},
         {~"a@example.org", Mail, ~"mail", ~"a@example.org"},
         {~"Y", Ok, ~"ok", true}, {~"no", Ok, ~"ok", false},
         {~"a, b", Some, ~"some", [~"a", ~"b"]}]],
    [none = erlmcp_cli_form:answer(~"", Field) || Field <- [Age, Mail, Ok, Some]],
    [?assertMatch({error, _}, erlmcp_cli_form:answer(Typed, Field), Typed)
     || {Typed, Field} <- [{~"", Size}, {~"m", Size}, {~"17", Age}, {~"x", Age}, {~"1.5", Age},
                           {~"nobody", Mail}, {~"perhaps", Ok}, {~"a,b,a", Some}, {~"c", Some}]].

fields() ->
    {ok, Fields} = erlmcp_cli_form:fields(?FORM),
    Fields.

a_bar_fits_its_line(_) ->
    Params = #{~"progress" => 50, ~"total" => 100, ~"message" => ~"half\n\e[2Jway"},
    "[=============             ]  50% half ␛[2Jway" = line(Params, 80),
    [?assert(string:length(line(Params, Columns)) < max(2, Columns), Columns)
     || Columns <- [1, 2, 10, 20, 40]],
    "50" = line(#{~"progress" => 50}, 80),
    "50/0 x" = line(#{~"progress" => 50, ~"total" => 0, ~"message" => ~"x"}, 80),
    %% JSON has numbers that floats do not have, and quotients of its floats may be none either.
    Huge = binary_to_integer(<<"1", (binary:copy(~"0", 350))/binary>>),
    [{match, _} = re:run(line(#{~"progress" => Progress, ~"total" => Total}, 80), "^1")
     || {Progress, Total} <- [{Huge, 5}, {1, Huge}, {1, 1.0e-320}]],
    %% More than all is all.
    {match, _} = re:run(line(#{~"progress" => 7, ~"total" => 5}, 80), "100%$").

line(Params, Columns) -> unicode:characters_to_list(erlmcp_cli_bar:line(Params, Columns)).

nothing_shown_controls_a_terminal(_) ->
    Evil = ~"a\e]0;x\x07\x{9b}31m\x7f\r\n",
    Texts = [erlmcp_cli_text:json(#{~"k" => Evil}),
             erlmcp_cli_text:log(#{~"level" => Evil, ~"logger" => Evil,
                                   ~"data" => #{Evil => Evil}}),
             erlmcp_cli_text:messages(#{~"description" => Evil,
                                        ~"messages" => [#{~"role" => Evil,
                                                          ~"content" => #{~"type" => ~"text",
                                                                          ~"text" => Evil}}]}),
             erlmcp_cli_text:completion(#{~"completion" => #{~"values" => [Evil]}}),
             erlmcp_cli_text:result(#{~"content" => [#{~"type" => Evil, ~"x" => Evil}]}),
             erlmcp_cli_text:failure("s", {rpc, #{code => 1, message => Evil,
                                                  data => #{~"name" => Evil}}}),
             erlmcp_cli_text:failure("s", {input, ~"n", Evil}),
             erlmcp_cli_text:failure("s", {redirect, Evil}),
             erlmcp_cli_text:failure("s", {unauthorized, {refused, Evil, Evil}})],
    [?assertEqual([], [C || C <- unicode:characters_to_list(Text),
                            C < 16#20 andalso C =/= $\n orelse C >= 16#7f andalso C < 16#a0], Text)
     || Text <- Texts],
    #{~"k" := Evil} = json:decode(unicode:characters_to_binary(hd(Texts))).

every_failure_has_an_exit_code(_) ->
    [0, 1, 2, 3, 4, 5] = [Code || {Code, _, _} <- erlmcp_cli_exit:codes()],
    [?assertEqual(Code, erlmcp_cli_exit:code(erlmcp_cli_exit:outcome(Reason)), Reason)
     || {Code, Reason} <- [
         {1, {rpc, #{code => -32602, message => ~"x"}}}, {1, {closed, reset}},
         {1, {http, 404, #{}, ~""}}, {1, {protocol, ~"x"}}, {1, {cursor_loop, ~"x"}},
         {2, {bad_option, url}}, {2, {bad_option, url, ~"a URL"}}, {3, {connect, econnrefused}},
         {4, {timeout, 1000}}, {4, timeout}, {5, {http, 401, #{}, ~""}},
         {5, {http, 403, #{}, ~""}}, {5, {unauthorized, timeout}}]].

targets(_) ->
    {ok, {tcp, {0, 0, 0, 0, 0, 0, 0, 1}, 80, _}} = target(#{tcp => "[::1]:80"}),
    {ok, {tcp, {127, 0, 0, 1}, 1, _}} = target(#{tcp => "127.0.0.1:1"}),
    {ok, {tcp, ~"example.org", 65535, _}} = target(#{tcp => "example.org:65535"}),
    {ok, {stdio, [~"a", ~"b c"], #{timeout := 60_000, connect_timeout := 10_000}}} =
        target(#{stdio => "a 'b c'"}),
    {ok, {http, ~"http://x/", #{era := stateless, token := ~"t", timeout := 5_000,
                                connect_timeout := 5_000, tls := [{cacertfile, "f"}],
                                headers := [{~"A", ~"b: c"}, {~"D", ~""}]}}} =
        target(#{url => "http://x/", era => "stateless", token => "t", timeout => 5, cacert => "f",
                 header => ["A: b: c", "D:"]}),
    [?assertMatch({error, _}, target(Parsed), Parsed)
     || Parsed <- [#{tcp => "x"}, #{tcp => "x:0"}, #{tcp => "x:65536"}, #{tcp => "::1:80"},
                   #{tcp => "x:1", stdio => "y"}, #{tcp => "x:1", token => "t"},
                   #{stdio => " "}, #{stdio => "'"}, #{stdio => "x", header => ["a: b"]},
                   #{url => "x"}, #{url => "ftp://x/"}, #{url => "http://"},
                   #{url => "http://u@x/"}, #{url => "http://x/", header => ["a"]},
                   #{url => "http://x/", header => [": a"]}]].

target(Parsed) -> erlmcp_cli_target:target(maps:merge(#{timeout => 60}, Parsed), #{}).

%% Each names the option as it is typed, what came, and what was expected.
a_wrong_value_names_what_is_right(Config) ->
    Url = "http://127.0.0.1:1/mcp",
    [begin
         {2, "", Why} = erlmcp_test_program:main(Words),
         erlmcp_test_program:one_line(Why),
         ?assertNotEqual(nomatch, string:find(Why, Expected), Why)
     end || {Words, Expected} <- [
         {["list", Url, "--timeout", "0"],
          "erlmcp list: --timeout 0 is not a whole number from 1 to 86400. See `erlmcp help list`"},
         {["ping", Url, "-c", "x"], "--count x is not a whole number from 1 to 1000000"},
         {["list", Url, "--log-level", "loud"],
          "--log-level loud is not one of the choices: debug, info,"},
         {["serve", "m", "--drain", "x"], "--drain x is not a whole number of at least 0"},
         {["load", "--url", Url, "--protocol", "http3"],
          "--protocol http3 is not one of the choices: http1, http2; did you mean `http"},
         {["load", "--url", Url, "--rate", "0"],
          "--rate 0 is not a number above 0, at most 1000000"},
         {["load", "--url", Url, "--warmup", "-1"],
          "--warmup -1 is not a number from 0 to 1000000"},
         {["load", "--url", Url, "--source", "1.2.3"], "--source 1.2.3 is not an IP address"},
         {["load", "--url", Url, "--mix", "tools/call"],
          "--mix tools/call is not requests such as 'tools/call echo=9,tools/list=1'"},
         {["load", "--url", Url, "--mix", "tools/call echo=0"],
          "--mix tools/call echo=0 is not requests such as "},
         {["load", "--url", Url, "--mix", "tools/call echo=1000000"],
          "--mix tools/call echo=1000000 is not requests such as "},
         {["load", "--url", Url, "--workload", "A B"],
          "--workload A B is not 3 to 64 of a-z, 0-9 and _"},
         {["bench", "core_ops_1k", "--duration", "soon"],
          "--duration soon is not a number above 0, at most 1000000"},
         {["scenario", "none"], "scenario none is not one of the choices: baseline, "},
         {["scenario", "baseline", "--scale", "all"],
          "--scale all is not a number above 0, at most 1000000"},
         {["list", Url, "--header", "X-Mine"], "--header X-Mine: 'Name: value' was expected"},
         %% A possible secret is not shown.
         {["list", Url, "--header", "authorization=Bearer secret"],
          "--header authorization: 'Name: value' was expected"},
         {["list", Url, "--cacert", "/no/such.pem"],
          "--cacert /no/such.pem: no such file or directory"},
         {["load", "--url", Url, "--cacert", "/dev/null"],
          "--cacert /dev/null: certificates in PEM were expected"}]
         ++ [{["list", Url, "--cacert", File], ": certificates in PEM were expected"}
             || File <- no_certificates(Config)]],
    %% A word before an option is not its value.
    {2, "", Alone} = erlmcp_test_program:main(["list", Url, "--era"]),
    "erlmcp list: --era: a value was expected. See `erlmcp help list`.\n" = Alone.

%% Files that begin as one of certificates does.
no_certificates(Config) ->
    Begin = ~"-----BEGIN CERTIFICATE-----\n",
    End = ~"\n-----END CERTIFICATE-----\n",
    [begin
         File = filename:join(proplists:get_value(priv_dir, Config),
                              integer_to_list(Number) ++ ".pem"),
         ok = file:write_file(File, Text),
         File
     end || {Number, Text} <- lists:enumerate([[Begin, ~"abc", End], [Begin, ~"MIIB"],
                                               [Begin, ~"YWJj", End]])].

help_is_of_what_there_is(_) ->
    {2, "", Why} = erlmcp_test_program:main(["help", "nonsense"]),
    {2, "", Why} = erlmcp_test_program:main(["nonsense", "--help"]),
    "nonsense: no such command. See `erlmcp help`.\n" = Why,
    {0, Help, ""} = erlmcp_test_program:main(["help"]),
    {0, Help, ""} = erlmcp_test_program:main(["-h"]),
    %% After `--` there are no options: it is an argument of the tool, and a wrong one.
    Url = "http://127.0.0.1:1/mcp",
    {2, "", Argument} = erlmcp_test_program:main(["call", Url, "t", "--", "-h"]),
    ?assertNotEqual(nomatch, string:find(Argument, "-h: a JSON object was expected")).
