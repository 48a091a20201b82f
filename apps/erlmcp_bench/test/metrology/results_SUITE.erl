-module(results_SUITE).
-moduledoc "Results: what is filled in, what of a load report is in them, and their files.".

-compile(nowarn_missing_spec_documented).

-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([a_result_says_where_it_was_measured/1, the_commit_is_that_of_the_beginning/1,
         the_generator_is_in_or_out_of_the_node/1,
         commands_are_repeatable_and_keep_secrets/1, words_keep_their_letters/1,
         a_report_becomes_a_result/1,
         what_is_invalid_is_not_written/1, files_are_whole_and_in_order/1,
         results_of_one_second_are_all_kept/1, folders_that_cannot_be_written/1, lines_are_json/1,
         examples/1]).

-import(erlmcp_test_results, [folder/1, valid/0, valid/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [a_result_says_where_it_was_measured, the_commit_is_that_of_the_beginning,
     the_generator_is_in_or_out_of_the_node,
     commands_are_repeatable_and_keep_secrets, words_keep_their_letters, a_report_becomes_a_result,
     what_is_invalid_is_not_written, files_are_whole_and_in_order,
     results_of_one_second_are_all_kept, folders_that_cannot_be_written, lines_are_json, examples].

measured() ->
    #{workload_id => ~"core_ops_1k_queue", benchmark => core_ops, transport => in_process,
      scope => per_node, duration_s => 2, sample_count => 1000, throughput_msg_per_s => 500.0}.

a_result_says_where_it_was_measured(_) ->
    #{~"environment" := Environment, ~"timestamp" := Timestamp} = Result =
        erlmcp_bench_result:new(measured()),
    ok = erlmcp_metrology_validator:validate(Result),
    #{~"precision" := ~"microsecond", ~"benchmark" := ~"core_ops",
      ~"throughput_msg_per_s" := 500.0} = Result,
    ?assert(abs(erlang:system_time(second)
                - calendar:rfc3339_to_system_time(binary_to_list(Timestamp))) < 60),
    Otp = list_to_binary(erlang:system_info(otp_release)),
    {ok, Version} = application:get_key(erlmcp, vsn),
    Expected = list_to_binary(Version),
    #{~"otp" := Otp, ~"erlmcp_version" := Expected, ~"cores" := Cores,
      ~"architecture" := Architecture} = Environment,
    ?assertEqual(<<(integer_to_binary(Cores))/binary, "-core-", Architecture/binary>>,
                 erlmcp_bench_environment:kind()),
    ?assertEqual(erlmcp_bench_environment:kind(), erlmcp_bench_environment:kind(Environment)).

%% Commits are made while a measurement runs, and between two of one node.
the_commit_is_that_of_the_beginning(Config) ->
    Folder = folder(Config),
    [Head, Git] = [filename:join(Folder, Name) || Name <- ["head", "git"]],
    ok = file:write_file(Git, ["#!/bin/sh\n[ $1 != rev-parse ] || cat '", Head, "'\n"]),
    ok = file:change_mode(Git, 8#755),
    Path = os:getenv("PATH"),
    Commit = fun(Name) -> ok = file:write_file(Head, Name) end,
    true = os:putenv("PATH", Folder ++ ":" ++ Path),
    try
        [begin
             Commit(Before),
             {ok, [Result]} = erlmcp_bench_run:workload(
                 stress,
                 #{id => ~"commits", duration_s => 0.6, target_ops_per_s => 100, workers => 2},
                 #{on_progress => fun(_) -> Commit(~"0c") end}),
             ?assertMatch(#{~"environment" := #{~"erlmcp_commit" := Before}}, Result)
         end || Before <- [~"0a", ~"0b"]]
    after
        true = os:putenv("PATH", Path),
        ok = erlmcp_bench_environment:begins()
    end.

the_generator_is_in_or_out_of_the_node(_) ->
    [?assertMatch(#{~"environment" := #{~"load_generator" := Where}},
                  erlmcp_bench_result:new(maps:merge(measured(), Fields)), Fields)
     || {Where, Fields} <- [{~"in_node", #{}}, {~"out_of_node", #{transport => tcp}},
                            {~"in_node", #{transport => tcp, load_generator => in_node}}]].

commands_are_repeatable_and_keep_secrets(_) ->
    #{~"environment" := #{~"command_line" := ~"erlmcp bench x"}} = Result =
        erlmcp_bench_result:new((measured())#{command_line => ~"erlmcp bench x"}),
    false = is_map_key(~"command_line", Result),
    [?assertEqual(Line, erlmcp_bench_environment:command_line(Words), Words)
     || {Line, Words} <- [
            {~"erlmcp bench all --json a/b", ["erlmcp", "bench", "all", "--json", "a/b"]},
            {~"a 'b c' '$x' ''", ["a", "b c", "$x", ""]},
            {~"a --token ... b", ["a", "--token", "secret", "b"]},
            {~"a --header=... b", ["a", "--header=Cookie: secret", "b"]},
            {~"a --token ...", ["a", "--token"]},
            {~"a --env ... --env=... b", ["a", "--env", "KEY=secret", "--env=KEY=secret", "b"]},
            {~"a --headers 3 --tokens=4", ["a", "--headers", "3", "--tokens=4"]},
            {~"unknown", []}]],
    1000 = byte_size(erlmcp_bench_environment:command_line(lists:duplicate(1000, "abc"))).

%% The words of the command that started a node are UTF-8.
words_keep_their_letters(_) ->
    Print = "#{command_line := Line} = erlmcp_bench_environment:read(),"
            "io:put_chars(base64:encode(Line)), halt().",
    Port = open_port({spawn_executable, os:find_executable("erl")},
                     [{args, ["-noinput", "-word", <<"größe"/utf8>>, "-eval", Print,
                              "-pa" | erlmcp_bench_node:code_path()]},
                      {env, [{"ERLMCP_COMMAND", false}]}, binary, exit_status]),
    Line = base64:decode(output(Port)),
    ?assertMatch({match, _}, re:run(Line, <<" -noinput -word 'größe' -eval "/utf8>>), Line).

output(Port) ->
    receive
        {Port, {data, Bytes}} -> <<Bytes/binary, (output(Port))/binary>>;
        {Port, {exit_status, Status}} -> 0 = Status, <<>>
    end.

a_report_becomes_a_result(_) ->
    Times = fun(Each) ->
        Histogram = erlmcp_bench_histogram:new(),
        [ok = erlmcp_bench_histogram:record(Histogram, Us) || Us <- Each],
        Histogram
    end,
    Report = #{sent => 1010, answered => 1000, refused => #{1056 => 6}, failed => #{timeout => 3},
               wrong => 1, unsent => 2, duration_s => 4.0, latency => Times(lists:seq(1, 100)),
               refusal_latency => Times([]), lateness => Times([7]), seconds => [],
               opened => 10, opened_per_s => 2.5, open_failed => 0, bytes_in => 5, bytes_out => 6,
               generator_cpu_us => 30_000, server_cpu_us => 60_000,
               server_rss_bytes => 104_857_600},
    Result = erlmcp_bench_result:from_load(
        #{workload_id => ~"tcp_x", benchmark => network_real, transport => tcp, scope => per_node,
          connections => 10}, Report),
    ok = erlmcp_metrology_validator:validate(Result),
    #{~"sample_count" := 1000, ~"duration_s" := 4.0, ~"throughput_msg_per_s" := 250.0,
      ~"latency_p50_us" := 50, ~"latency_p95_us" := 95, ~"latency_p99_us" := 99,
      ~"latency_p999_us" := 100, ~"latency_max_us" := 100, ~"latency_histogram_us" := Entries,
      ~"refused_count" := #{~"1056" := 6}, ~"failed_count" := #{~"timeout" := 3},
      ~"sent_count" := 1010, ~"wrong_count" := 1, ~"unsent_count" := 2, ~"lateness_p99_us" := 7,
      ~"cpu_us_per_msg" := 60.0, ~"generator_cpu_us_per_msg" := 30.0, ~"connections" := 10,
      ~"opened_connections_per_s" := 2.5, ~"memory_rss_mib_per_node" := 100.0} = Result,
    %% Of the numbers from 1 to 100.
    #{~"latency_deviation_us" := Deviation} = Result,
    ?assert(abs(Deviation - math:sqrt((100 * 100 - 1) / 12)) < 1.0e-6),
    false = is_map_key(~"lateness_deviation_us", Result),
    [1, 1] = hd(Entries),
    100 = lists:sum([Count || [_, Count] <- Entries]),
    %% Without late and refused requests their fields are absent.
    false = is_map_key(~"refusal_latency_p99_us", Result),
    false = is_map_key(~"seconds", Result),
    %% Without an answer there is no result.
    {error, [_ | _]} = erlmcp_metrology_validator:validate(
        erlmcp_bench_result:from_load(maps:with([workload_id, benchmark, transport, scope],
                                                measured()),
                                      Report#{answered := 0, latency := Times([])})).

what_is_invalid_is_not_written(Config) ->
    Folder = folder(Config),
    {error, [#{place := ~"/throughput"}] = Violations} =
        erlmcp_bench_result:write(valid(#{~"throughput" => 1}), Folder),
    {match, _} = re:run(unicode:characters_to_binary(
                            erlmcp_bench_result:format_error(Violations)), "^/throughput: "),
    {ok, []} = file:list_dir(Folder).

files_are_whole_and_in_order(Config) ->
    %% Nothing in the name of a folder is a pattern.
    Folder = filename:join(folder(Config), "not/there [a]"),
    {ok, First} = erlmcp_bench_result:write(valid(), Folder),
    ?assertEqual("network_real_tcp_burst_100_1kib_1795299180.json", filename:basename(First)),
    {ok, Second} = erlmcp_bench_result:write(valid(#{~"recovery_ms" => 41}), Folder),
    ?assertEqual("network_real_tcp_burst_100_1kib_1795299181.json", filename:basename(Second)),
    ?assertEqual({ok, valid()}, erlmcp_bench_result:read(First)),
    ok = erlmcp_metrology_validator:validate_file(First),
    ?assertEqual({ok, [valid(), valid(#{~"recovery_ms" => 41})]},
                 erlmcp_bench_result:read_all([Folder])),
    {ok, Names} = file:list_dir(Folder),
    ?assertEqual(2, length(Names)).

%% All of them have the same second, and each the name of another one.
results_of_one_second_are_all_kept(Config) ->
    Folder = folder(Config),
    Test = self(),
    Writers = [spawn_link(fun() ->
        Test ! {self(), erlmcp_bench_result:write(valid(#{~"recovery_ms" => Ms}), Folder)}
    end) || Ms <- lists:seq(1, 50)],
    Outcomes = [receive {Writer, Outcome} -> Outcome end || Writer <- Writers],
    Files = [File || {ok, File} <- Outcomes],
    ?assertEqual(50, length(lists:usort(Files))),
    {ok, Names} = file:list_dir(Folder),
    ?assertEqual(lists:sort([filename:basename(File) || File <- Files]), lists:sort(Names)),
    {ok, Results} = erlmcp_bench_result:read_all([Folder]),
    ?assertEqual(lists:seq(1, 50), lists:sort([Ms || #{~"recovery_ms" := Ms} <- Results])).

folders_that_cannot_be_written(Config) ->
    File = filename:join(folder(Config), "file"),
    ok = file:write_file(File, ~""),
    {error, {Posix, Path}} = erlmcp_bench_result:write(valid(), File),
    true = is_atom(Posix),
    File = Path,
    {error, {no_results, _}} = erlmcp_bench_result:read_all([filename:dirname(File)]).

lines_are_json(_) ->
    Text = erlmcp_bench_json:lines(valid()),
    ?assertEqual(valid(), json:decode(Text)),
    [?assertEqual(Value, json:decode(erlmcp_bench_json:lines(Value)), Value)
     || Value <- [[], #{}, 1, ~"é\n", [[]], #{~"a" => [#{}, #{~"b" => null}]}]],
    %% A line for each figure, so that two of them can be compared.
    ?assertMatch({match, _}, re:run(Text, "^  \"latency_p99_us\": 3000,$", [multiline])).

examples(_) ->
    erlmcp_test_doctests:run([erlmcp_bench_json, erlmcp_bench_environment]).
