-module(metrology_rules_SUITE).
-moduledoc """
Tests for the rules of metrology. A valid result is accepted. A result that breaks one rule,
anywhere, is rejected for that rule, at that place, and for nothing else.
""".

-compile(nowarn_missing_spec_documented).

-include_lib("proper/include/proper.hrl").
-include_lib("stdlib/include/assert.hrl").

-export([suite/0, all/0]).
-export([valid_results_are_valid/1, every_broken_rule_is_found/1, what_is_required_is_missed/1,
         every_rejected_name_is_rejected/1, violations_say_what_to_do/1, edges/1,
         files/1, every_violation_is_told/1]).

-import(erlmcp_test_results, [valid/0, valid/1, any_valid/0, places/1, changed/3]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [valid_results_are_valid, every_broken_rule_is_found, what_is_required_is_missed,
     every_rejected_name_is_rejected, violations_say_what_to_do, edges, files,
     every_violation_is_told].

valid_results_are_valid(_) ->
    ok = erlmcp_metrology_validator:validate(valid()),
    holds(?FORALL(Result, any_valid(),
                  ok =:= erlmcp_metrology_validator:validate(Result))).

every_broken_rule_is_found(_) ->
    holds(?FORALL({_, {Broken, Expected}}, broken(),
                  begin
                      Found = found(Broken),
                      Found =:= Expected orelse error({Found, Expected})
                  end)).

holds(Property) ->
    ?assert(proper:quickcheck(Property, [{to_file, user}, {numtests, 200}])).

broken() ->
    ?LET(Result, any_valid(),
         ?LET({Way, Break}, {elements(places(Result)), elements(breaks())},
              {Result, Break(Way, Result)})).

%% Each breaks one rule, in an object of the result or in the result as such.
breaks() ->
    [fun(Way, Result) -> {changed(Way, fun(Object) -> maps:merge(Object, Members) end, Result),
                          [{place(Way, Name), Rule}]} end
     || {Rule, Name, Members} <- [
            {unit, ~"depth", #{~"depth" => 3}},
            {unit, ~"heap_min", #{~"heap_min" => 1.5}},
            {unit, ~"levels", #{~"levels" => [1, 2]}},
            {range, ~"lost_count", #{~"lost_count" => 1 bsl 2_000}},
            {range, ~"slope_percent_per_min", #{~"slope_percent_per_min" => -1.1e30}},
            {range, ~"wait_us", #{~"wait_us" => 0.9e-30}},
            {time_of_zero, ~"wait_us", #{~"wait_us" => 0}},
            {time_of_zero, ~"wait_s", #{~"wait_s" => -0.5}},
            {time_of_zero, ~"waits_ms/1", #{~"waits_ms" => [1, 0]}},
            {number, ~"wait_us", #{~"wait_us" => ~"n/a"}},
            {number, ~"lost_percent", #{~"lost_percent" => null}},
            {number, ~"size", #{~"size" => ~"512 MB"}},
            {memory_of, ~"memory_mib_per_node", #{~"memory_mib_per_node" => 5}},
            {percentiles, ~"wait_p50_us", #{~"wait_p50_us" => 10, ~"wait_p99_us" => 9}},
            {percentiles, ~"wait_p999_us", #{~"wait_p999_us" => 10, ~"wait_max_us" => 9,
                                             ~"wait_p50_us" => 2}}]]
    ++ [fun(Way, Result) -> {changed(Way, fun(Object) -> Object#{Name => Value} end, Result),
                             [{place(Way, Name), rejected_name}]} end
        || {Names, _, _} <- erlmcp_metrology_rules:rejected(), Name <- Names,
           Value <- [1, ~"1"]]
    ++ [fun(Way, Result) -> {changed(Way, throughput_off_by(Share), Result),
                             [{place(Way, ~"throughput_msg_per_s"), throughput}]} end
        || Share <- [0.98, 1.02]]
    ++ [fun(_, Result) -> {maps:remove(Name, Result), [{place([], Name), field}]} end
        || {Name, _} <- erlmcp_metrology_rules:fields()]
    ++ [fun(_, Result) -> {Result#{Name := []}, [{place([], Name), field}]} end
        || {Name, _} <- erlmcp_metrology_rules:fields()]
    ++ [fun(_, #{~"environment" := Environment} = Result) ->
            {Result#{~"environment" := maps:remove(Name, Environment)},
             [{place([~"environment"], Name), field}]}
        end || {Name, _} <- erlmcp_metrology_rules:environment()]
    ++ [fun(_, Result) -> {[Result], [{~"", json}]} end].

throughput_off_by(Share) ->
    fun(Object) ->
        Object#{~"sample_count" => 100, ~"duration_s" => 10,
                ~"throughput_msg_per_s" => 10 * Share}
    end.

%% A slash in what is broken leads deeper; one in a way is part of a name.
place(Way, Name) ->
    Steps = [case Step of
                 _ when is_integer(Step) -> integer_to_binary(Step);
                 _ -> escaped(Step)
             end || Step <- Way],
    Last = case [1 || {Names, _, _} <- erlmcp_metrology_rules:rejected(),
                      lists:member(Name, Names)] of
        [] -> Name;
        _ -> escaped(Name)
    end,
    iolist_to_binary([[$/, Step] || Step <- Steps ++ [Last]]).

escaped(Name) ->
    binary:replace(binary:replace(Name, ~"~", ~"~0", [global]), ~"/", ~"~1", [global]).

found(Result) ->
    case erlmcp_metrology_validator:validate(Result) of
        ok -> [];
        {error, Violations} -> [{Place, Rule} || #{place := Place, rule := Rule} <- Violations]
    end.

what_is_required_is_missed(_) ->
    Required = [~"workload_id", ~"benchmark", ~"transport", ~"duration_s", ~"scope", ~"precision",
                ~"sample_count", ~"timestamp", ~"environment"],
    ?assertEqual(lists:sort([{<<$/, Name/binary>>, field} || Name <- Required]),
                 lists:sort(found(#{}))),
    ?assertEqual([{<<"/environment/", Name/binary>>, field}
                  || Name <- [~"cores", ~"memory_total_mib", ~"kernel", ~"otp", ~"jit",
                              ~"erlmcp_version", ~"erlmcp_commit", ~"command_line",
                              ~"load_generator"]],
                 found(valid(#{~"environment" => #{}}))).

every_rejected_name_is_rejected(_) ->
    [?assertEqual([{place([~"a"], Name), rejected_name}], found(valid(#{~"a" => #{Name => 1}})),
                  Name)
     || Name <- [~"req/s", ~"ops/s", ~"requests_per_second", ~"throughput", ~"latency",
                 ~"latency_ms", ~"p50_ms", ~"p95_ms", ~"p99_ms", ~"memory", ~"mem", ~"memory_mb",
                 ~"latency_p99_ms", ~"p999_ms", ~"Throughput", ~"heap_mb", ~"payload_kb"]],
    [?assertEqual([], found(valid(#{~"a" => #{Name => 1}})), Name)
     || Name <- [~"throughput_workflows_per_s", ~"latency_p99_us", ~"memory_heap_mib_per_conn",
                 ~"cpu_us_per_msg", ~"target_ops_per_s", ~"payload_bytes", ~"payload_kib",
                 ~"memory_slope_mib_per_min", ~"items_count", ~"latency_of_items_us"]].

violations_say_what_to_do(_) ->
    {error, [#{place := ~"/throughput_msg_per_s", rule := throughput, came := ~"2100",
               expected := ~"about 2000, sample_count / duration_s",
               suggestion := <<_, _/binary>>} = Violation]} =
        erlmcp_metrology_validator:validate(valid(#{~"throughput_msg_per_s" => 2100})),
    ?assertEqual("/throughput_msg_per_s: expected about 2000, sample_count / duration_s, "
                 "not 2100; count each answered request once",
                 unicode:characters_to_list(erlmcp_metrology_validator:format(Violation))),
    %% The rejected value is cut, between whole characters.
    {error, [#{came := Came}]} =
        erlmcp_metrology_validator:validate(valid(#{~"scope" => binary:copy(~"é", 1000)})),
    ?assertEqual(<<$", (binary:copy(~"é", 29))/binary, "...">>, Came),
    %% Every rule can be broken.
    ?assertEqual(lists:sort([Rule || {Rule, _} <- erlmcp_metrology_rules:rules()]),
                 lists:usort([Rule || Break <- breaks(),
                                      {_, [{_, Rule}]} <- [Break([], valid())]])).

edges(_) ->
    [?assertEqual([], found(valid(Others)), Others)
     || Others <- [#{~"throughput_msg_per_s" => 2019.9}, #{~"throughput_msg_per_s" => 1980.1},
                   #{~"workload_id" => binary:copy(~"a", 64)}, #{~"workload_id" => ~"a_1"},
                   #{~"latency_p50_us" => 9000, ~"latency_p95_us" => 9000,
                     ~"latency_p99_us" => 9000},
                   #{~"sample_count" => 1, ~"throughput_msg_per_s" => 1 / 60},
                   #{~"latency_p50_us" => 0.001}, #{~"latency_p50_us" => 1.0e-30},
                   #{~"lost_count" => -round(1.0e30)}]],
    [?assertMatch([_], found(valid(Others)), Others)
     || Others <- [#{~"throughput_msg_per_s" => 2020.1}, #{~"throughput_msg_per_s" => 1979.9},
                   #{~"workload_id" => binary:copy(~"a", 65)}, #{~"workload_id" => ~"ab"},
                   #{~"workload_id" => ~"abC"}, #{~"workload_id" => ~"abc\n"},
                   #{~"benchmark" => ~"../x"}, #{~"latency_p999_us" => 9001},
                   #{~"timestamp" => ~"2026-11-21"}, #{~"timestamp" => 0},
                   #{~"latency_p50_us" => 0}, #{~"transport" => ~"http"}]],
    %% A throughput in an inner object is compared with the fields of that object only.
    ?assertEqual([], found(valid(#{~"peak" => #{~"throughput_msg_per_s" => 1}}))).

files(Config) ->
    File = filename:join(proplists:get_value(priv_dir, Config), "result.json"),
    Validated = fun(Bytes) ->
        ok = file:write_file(File, Bytes),
        erlmcp_metrology_validator:validate_file(File)
    end,
    ok = Validated(json:encode(valid())),
    %% No division overflows, and no number is too long to be read.
    [?assertMatch({error, [#{place := Place, rule := range}]},
                  Validated(json:encode(valid(#{Name => Value}))), {Name, Value})
     || {Name, Value} <- [{~"sample_count", 1 bsl 2_000}, {~"duration_s", 1.0e-300},
                          {~"throughput_msg_per_s", 1 bsl 2_000}],
        Place <- [<<$/, Name/binary>>]],
    {error, [#{place := ~"", rule := json, came := ~"a number of too many digits"}]} =
        Validated([~"{\"a\": 1", binary:copy(~"0", 2_000_000), ~"}"]),
    [?assertMatch({error, [#{place := ~"", rule := json}]}, Validated(Bytes), Bytes)
     || Bytes <- [~"", ~"{", ~"[]", ~"3", ~"{} {}", <<"{\"a\": \"", 255, "\"}">>, ~"{\"a\": 1e999}",
                  ~"nothing"]],
    {error, [#{place := ~"", came := ~"no such file or directory"}]} =
        erlmcp_metrology_validator:validate_file(File ++ ".none"),
    {error, [#{place := ~"", rule := json}]} =
        erlmcp_metrology_validator:validate_file(filename:dirname(File)),
    %% No more is read than a result may have, of what has no end.
    {error, [#{came := ~"more than 64 MiB"}]} =
        erlmcp_metrology_validator:validate_file("/dev/zero").

every_violation_is_told(_) ->
    ?assertEqual([{~"/duration_s", time_of_zero}, {~"/latency", rejected_name},
                  {~"/latency_p50_us", percentiles}, {~"/scope", field},
                  {~"/series/1/depth", unit}],
                 lists:sort(fun({A, _}, {B, _}) -> A =< B end,
                            found(valid(#{~"duration_s" => 0, ~"latency" => 5, ~"scope" => ~"all",
                                          ~"latency_p50_us" => 5000,
                                          ~"series" => [#{}, #{~"depth" => 1}]})))).
