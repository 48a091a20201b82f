-module(chaos_command_SUITE).
-moduledoc "`erlmcp chaos`: what there is, and what came of it.".

-import(erlmcp_test_program, [main/1]).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([faults_are_shown/1, wrong_use_exits_2/1, table_says_what_came_of_each/1,
         verdict_says_what_was_seen/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [faults_are_shown, wrong_use_exits_2, table_says_what_came_of_each,
     verdict_says_what_was_seen].

init_per_suite(Config) -> erlmcp_test_program:init(Config).

end_per_suite(_) -> ok.

faults_are_shown(_) ->
    {0, Out, ""} = main(["chaos"]),
    [{match, _} = re:run(Out, ["^", Id, " +", code(Code), " +\\Q", Title, "\\E$"], [multiline])
     || #{id := Id, title := Title, bounds := #{code := Code}} <- erlmcp_bench_chaos:scenarios()].

code(none) -> "-";
code(Code) -> integer_to_list(Code).

wrong_use_exits_2(_) ->
    [{2, "", [_ | _]} = main(["chaos" | Arguments])
     || Arguments <- [["chaos_of_nobody"], ["all", "chaos_of_nobody"], ["--no"], ["--json"]]].

table_says_what_came_of_each(_) ->
    Bounds = #{code => 1056, detect_ms => 100, recover_ms => 0, load => refused},
    Load = #{answered => 90, refused => #{1056 => 9}, failed => #{timeout => 1}, wrong => #{}},
    Ran = #{scenario => ~"chaos_a", title => ~"a", bounds => Bounds, status => failed,
            violations => [{lost, load, 1}], accounting => #{load => Load},
            figures => #{rounds => 1, detection_us => 12_345, recovery_us => 2_000,
                         resolution_us => 7_000, pause_us => 9_000,
                         recovery_moved_us => 1_000}},
    NotRun = #{scenario => ~"chaos_b", title => ~"b", bounds => Bounds, status => not_run,
               reason => ~"no root"},
    Out = unicode:characters_to_list(erlmcp_cli_chaos:table([Ran, NotRun])),
    {match, _} = re:run(Out, "^chaos_a +1056 +12\\.3 of 100\\+0 ms +2\\.0 of 0\\+8 ms "
                             "+100, 90, 9, 1 +1 +failed$", [multiline]),
    {match, _} = re:run(Out, "^chaos_b +not run$", [multiline]).

verdict_says_what_was_seen(_) ->
    Saw = #{sockets => #{ended_sockets_count => {9, {at_least, 10}}},
            other => #{other_added_ms => {1.25, {at_most, 45}}}},
    Out = unicode:characters_to_list(erlmcp_cli_chaos:verdict(
        #{scenario => ~"chaos_a", status => failed, seen => Saw,
          violations => [{unseen, sockets, ended_sockets_count, 9, {at_least, 10}}]})),
    [{match, _} = re:run(Out, ["^ +chaos_a +", Line, "$"], [multiline])
     || Line <- ["saw sockets: ended_sockets_count 9, at least 10",
                 "saw other: other_added_ms 1\\.3, at most 45",
                 "failed: \\{unseen,sockets,ended_sockets_count,9,\\{at_least,10\\}\\}"]].
