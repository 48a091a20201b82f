-module(doctor_command_SUITE).
-moduledoc "`erlmcp doctor`: what there is, what that allows, and what raises it.".

-import(erlmcp_test_program, [main/1, erlmcp/2, one_line/1]).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([the_program_shows_this_machine/1, text_says_what_raises_each/1, json_is_json/1,
         too_few_connections_exit_1/1, wrong_use_exits_2/1, limits_have_their_commands/1,
         what_is_unknown_is_not_shown/1, docs_show_what_is_printed/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [the_program_shows_this_machine, text_says_what_raises_each, json_is_json,
     too_few_connections_exit_1, wrong_use_exits_2, limits_have_their_commands,
     what_is_unknown_is_not_shown, docs_show_what_is_printed].

init_per_suite(Config) -> erlmcp_test_program:init(Config).

end_per_suite(_) -> ok.

the_program_shows_this_machine(Config) ->
    {0, Out, ""} = erlmcp(["doctor"], Config),
    {match, _} = re:run(Out, "^descriptors +[0-9]+.* connections$", [multiline]),
    {match, _} = re:run(Out, "^A server carries [0-9]+ connections here: the first limit is .*\\.$",
                        [multiline]).

text_says_what_raises_each(_) ->
    {0, Out, ""} = main(["doctor"]),
    [_, _ | _] = Checks = erlmcp_cli_doctor:checks(erlmcp_machine:facts("/")),
    [{match, _} = re:run(Out, ["more: \\Q", Raise, "\\E$"], [multiline])
     || #{raise := Raise} <- Checks],
    %% No line is longer than a terminal.
    [] = [Line || Line <- string:split(Out, "\n", all), string:length(Line) > 100].

json_is_json(_) ->
    {0, Out, ""} = main(["doctor", "--json"]),
    #{~"connections" := Connections, ~"checks" := Checks} =
        json:decode(unicode:characters_to_binary(Out)),
    Connections = lists:min([Number || #{~"connections" := Number} <- Checks]),
    Ports = erlang:system_info(port_limit),
    [Ports] = [Value || #{~"name" := ~"ports", ~"value" := Value, ~"raise" := <<_, _/binary>>}
                            <- Checks].

too_few_connections_exit_1(_) ->
    {0, Out, ""} = main(["doctor", "--json"]),
    #{~"connections" := Connections} = json:decode(unicode:characters_to_binary(Out)),
    AsMany = ["doctor", "--connections", integer_to_list(Connections)],
    {0, _, ""} = main(AsMany),
    More = ["doctor", "--connections", integer_to_list(Connections + 1)],
    {1, [_ | _], Why} = main(More),
    one_line(Why),
    {1, Out, Why} = main(More ++ ["--json"]).

wrong_use_exits_2(_) ->
    [{2, "", [_ | _]} = main(["doctor" | Arguments])
     || Arguments <- [["more"], ["--connections", "0"], ["--connections", "many"], ["--no"]]].

limits_have_their_commands(_) ->
    Facts = #{descriptors => 1024, descriptors_hard => 4096, ports => 65_536,
              processes => 1_048_576, schedulers => 2, cores => 4,
              memory => 8_589_934_592, group_memory => 1_073_741_824,
              backlog => 128, local_ports => 28_232},
    [#{name := descriptors, value := 1024, hard := 4096, connections := 768,
       raise := ~"ulimit -n 4096"},
     #{name := ports, connections := 64_512, raise := ~"ERL_FLAGS=\"+Q 1048576\""},
     #{name := processes, connections := 262_144, raise := ~"ERL_FLAGS=\"+P 16777216\""},
     #{name := memory, connections := 32_768},
     #{name := group_memory, connections := 4_096, raise := <<"MemoryMax=", _/binary>>},
     #{name := schedulers, raise := ~"ERL_FLAGS=\"+S 4\""},
     #{name := backlog, allows := ~"128 connections that wait to be accepted",
       raise := ~"sysctl -w net.core.somaxconn=4096"},
     #{name := local_ports, value := 28_232,
       raise := <<"sysctl -w net.ipv4.ip_local_port_range=", _/binary>>}] =
        erlmcp_cli_doctor:checks(Facts),
    [#{raise := <<"LimitNOFILE=", _/binary>>} | _] =
        erlmcp_cli_doctor:checks(Facts#{descriptors_hard := 1024}),
    [#{raise := ~"ulimit -n 1048576"} | _] =
        erlmcp_cli_doctor:checks(Facts#{descriptors_hard := unlimited}),
    %% No command that lowers what there is.
    [#{allows := ~"4096 connections that wait to be accepted",
       raise := ~"nothing: a listener asks for 4096"}] =
        [Check || #{name := backlog} = Check <- erlmcp_cli_doctor:checks(Facts#{backlog := 4096})].

what_is_unknown_is_not_shown(_) ->
    [ports, processes, schedulers] =
        [Name || #{name := Name} <- erlmcp_cli_doctor:checks(#{ports => 1, processes => 1,
                                                               schedulers => 1})].

%% The first lines of the page, with other numbers.
docs_show_what_is_printed(Config) ->
    {ok, Page} = file:read_file(filename:join([proplists:get_value(root, Config), "docs",
                                               "cli.md"])),
    [_, Shown] = binary:split(Page, ~"$ erlmcp doctor\n"),
    [Lines, _] = binary:split(Shown, ~"```"),
    {0, Out, ""} = main(["doctor"]),
    Words = fun(Text) ->
        {match, Found} = re:run(Text, "^[a-z]+ |^ +more:|^A server carries",
                                [multiline, global, {capture, all, list}]),
        [string:trim(Word) || [Word] <- Found]
    end,
    ["descriptors", "more:", "ports", "more:", "A server carries"] = Words(Lines),
    ["descriptors", "more:", "ports", "more:" | Rest] = Words(Out),
    "A server carries" = lists:last(Rest).
