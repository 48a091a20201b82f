-module(mutation_run_SUITE).
-moduledoc """
The mutation run of `make mutants`, on a planted module and its planted suite: what the suite sees
is killed, what it does not see survives. Also the exact changes of each operator.
""".

-export([suite/0, all/0, groups/0, init_per_testcase/2, end_per_testcase/2]).
-export([operators_change/1, changes_of_names_are_none/1, hashes_ignore_lines/1]).
-export([fates_are_seen/1, results_stay_until_code_changes/1, equivalents_are_no_part/1,
         failures_without_a_fault_say_nothing/1, survivors_are_tried_again_with_more_time/1,
         lines_move_with_their_code/1, lines_are_counted_where_they_are_needed/1,
         nodes_that_end_are_tried_again/1, programs_that_are_left_behind_are_not_waited_for/1]).
-export([the_page_has_the_last_result/1, the_page_lists_the_operators/1]).

suite() ->
    [{timetrap, {minutes, 12}}].

all() ->
    [changes_of_names_are_none, hashes_ignore_lines, fates_are_seen,
     results_stay_until_code_changes, equivalents_are_no_part,
     failures_without_a_fault_say_nothing, survivors_are_tried_again_with_more_time,
     lines_move_with_their_code, lines_are_counted_where_they_are_needed,
     nodes_that_end_are_tried_again, programs_that_are_left_behind_are_not_waited_for,
     the_page_has_the_last_result, the_page_lists_the_operators
     | [{group, Operator} || {Operator, _} <- erlmcp_test_mutation:operators()]].

groups() ->
    [{Operator, [], [operators_change]} || {Operator, _} <- erlmcp_test_mutation:operators()].

init_per_testcase(_, Config) ->
    Config.

end_per_testcase(_, Config) ->
    _ = [code:del_path(filename:join([folder(Config), "built/app", Folder]))
         || Folder <- ["ebin", "test"]],
    file:del_dir_r(folder(Config)).

%% Each operator, and what it makes of a body of a function with A, B and C.

operators_change(Config) ->
    Operator = proplists:get_value(name, proplists:get_value(tc_group_properties, Config)),
    [_ | _] = Examples = [{Code, Changes} || {Of, Code, Changes} <- examples(), Of =:= Operator],
    [{Code, Changes} = {Code, changes(Operator, "f(A, B, C) -> " ++ Code ++ ".")}
     || {Code, Changes} <- Examples].

examples() ->
    [{argument, "lists:delete(A, B)", [{"lists:delete(A, B)", "B"}]},
     {argument, "lists:delete(A, B), C", []},
     {argument, "lists:append(lists:delete(A, B)), C",
      [{"lists:delete(A, B)", "B"}]},
     {argument, "element(A, B) + self()", [{"element(A, B)", "B"}]},
     {argument, "ets:new(A, [])", []},
     {arithmetic, "A + B", [{"A + B", "A - B"}]},
     {arithmetic, "A ++ B", [{"A ++ B", "A"}]},
     {arithmetic, "-A", [{"-A", "A"}]},
     {atom, "{ok, A, true}", [{"ok", "error"}, {"true", "false"}]},
     {atom, "{A, B} = {error, C}, other", [{"error", "ok"}]},
     {boolean, "A andalso B", [{"A andalso B", "A orelse B"}]},
     {clause, "case A of b -> B; c when C > 1 -> C end",
      [{"case clause (b)", "no clause"}, {"case clause (c) when C > 1", "no clause"}]},
     {clause, "case A of b -> B end", []},
     {clause, "try A of b -> B catch error:b -> B; exit:_ -> C end",
      [{"catch clause ({error, b, _})", "no clause"},
       {"catch clause ({exit, _, _})", "no clause"}]},
     {comparison, "{A < B, A >= B, A == B}", [{"A < B", "A =< B"}, {"A >= B", "A > B"}]},
     {drop, "ok = ets:f(A), A ! B, D = f(A, B, C), ets:g(D)",
      [{"ok = ets:f(A)", "nothing"}, {"A ! B", "nothing"}]},
     {empty, "{[A, B], [A | B]}", [{"[A, B]", "[]"}, {"[A | B]", "B"}]},
     {empty, "[X || X <- A]", [{"[ X || X <- A ]", "[]"}]},
     {filter, "[X || X <- A, X > B]", [{"filter X > B", "no filter"}]},
     {guard, "if A, B; C -> 1; true -> 2 end",
      [{"when A, B; C", "when B; C"}, {"when A, B; C", "when A; C"}, {"when A, B; C", "when A, B"},
       {"when true", "no guard"}]},
     {integer, "{A, 99, 100}", [{"99", "100"}, {"100", "0"}]},
     {integer, "#{A => 7, line => 7}", [{"7", "8"}]},
     {negation, "A =:= B", [{"A =:= B", "A =/= B"}]},
     {negation, "A < B", [{"A < B", "A >= B"}]},
     {negation, "is_list(A)", [{"is_list(A)", "not is_list(A)"}]},
     {negation, "case A:b() of true -> B; false -> C end",
      [{"case A:b() of true -> B; false -> C end", "case not A:b() of true -> B; false -> C end"}]},
     {negation, "A andalso f(A, B, C)",
      [{"A andalso f(A, B, C)", "A andalso not f(A, B, C)"}]},
     {update, "A#{b := B}", [{"A#{b := B}", "A"}]}].

changes(Operator, Function) ->
    [{Before, After} || #{operator := Of, before := Before, 'after' := After}
                            <- erlmcp_test_mutation:of_forms([form(Function)]), Of =:= Operator].

%% Names and patterns stay: they are not what a case can see.
changes_of_names_are_none(_) ->
    [] = erlmcp_test_mutation:of_forms([form("f(#{true := [7, ok]}) -> g.")]),
    [{"A", 1}] = [{After, Line} || #{'after' := After, line := Line}
                      <- erlmcp_test_mutation:of_forms([form("f(A) -> ok:true(A).")])].

hashes_ignore_lines(_) ->
    Hash = fun(Code) -> erlmcp_test_mutation:hash([form(Code)]) end,
    true = Hash("f() -> 1.") =:= Hash("f() ->\n\n    1."),
    false = Hash("f() -> 1.") =:= Hash("f() -> 2.").

%% The run.

-define(FITS, ["fits(Size, Bound) when Size =< Bound -> true;", "fits(_, _) -> false."]).
-define(SUITE, ["-module(planted_bounds_SUITE).", "-compile([export_all, nowarn_export_all])."]).
-define(OF_SIZES, ["sizes(_) -> true = planted_bounds:fits(1, 3), "
                   "false = planted_bounds:fits(4, 3)."]).

-define(DOWN, {planted_bounds_SUITE, {[numbers, all], down}}).
-define(SIZES, {planted_bounds_SUITE, {[], sizes}}).

%% A case beside those that run the line is not run, and one that runs for ever is ended.
fates_are_seen(Config) ->
    Options = planted(Config, ["-module(planted_bounds).", "-export([fits/2, down/1, unused/1]).",
                               "down(0) -> 0;",
                               "down(Number) -> down(Number - 1).",
                               "unused(Number) -> Number + 1." | ?FITS],
                      ?SUITE ++ ["all() -> [sizes, {group, numbers}].",
                                 "groups() -> [{numbers, [], [{group, all}]}, {all, [], [down]}].",
                                 "down(_) -> 0 = planted_bounds:down(3)." | ?OF_SIZES], []),
    {Results, []} = erlmcp_test_mutants:run(Options),
    [{{fits, 2}, atom, "false", "true", {killed, ?SIZES}},
     {{fits, 2}, atom, "true", "false", {killed, ?SIZES}},
     {{fits, 2}, clause, "function clause (Size, Bound) when Size =< Bound", "no clause",
      {killed, ?SIZES}},
     {{fits, 2}, clause, "function clause (_, _)", "no clause", {killed, ?SIZES}},
     {{fits, 2}, comparison, "Size =< Bound", "Size < Bound", {survived, 1, 1}},
     {{fits, 2}, guard, "when Size =< Bound", "no guard", {killed, ?SIZES}},
     {{fits, 2}, negation, "Size =< Bound", "Size > Bound", {killed, ?SIZES}}]
        = of_function(fits, Results),
    [{{down, 1}, argument, "down(Number - 1)", "Number - 1", {killed, ?DOWN}},
     {{down, 1}, arithmetic, "Number - 1", "Number + 1", {hung, ?DOWN}},
     {{down, 1}, clause, "function clause (0)", "no clause", {hung, ?DOWN}},
     {{down, 1}, clause, "function clause (Number)", "no clause", {killed, ?DOWN}},
     {{down, 1}, integer, "0", "1", {killed, ?DOWN}},
     {{down, 1}, integer, "1", "2", {hung, ?DOWN}}] = of_function(down, Results),
    [{{unused, 1}, arithmetic, "Number + 1", "Number - 1", not_covered},
     {{unused, 1}, integer, "1", "2", not_covered}] = of_function(unused, Results),
    "apps/app/src/room/planted_bounds.erl:5: arithmetic in unused/1: "
        "Number + 1 -> Number - 1 (not covered)\n"
        "apps/app/src/room/planted_bounds.erl:5: integer in unused/1: 1 -> 2 (not covered)\n"
        "apps/app/src/room/planted_bounds.erl:6: comparison in fits/2: "
        "Size =< Bound -> Size < Bound (survived 1 of 1 cases)\n"
        = lists:flatten(erlmcp_test_mutants:survivors(Results)),
    Summary = lists:flatten(erlmcp_test_mutants:summary(Results, Options)),
    [match = re:run(Summary, Line, [{capture, none}])
     || Line <- ["killed \\| 9 \\|", "killed by a time limit \\| 3 \\|", "survived \\| 1 \\|",
                 "not covered by a case \\| 2 \\|", "\\*\\*80.0 %\\*\\* \\(54.8 to 93.0\\)",
                 "sample \\| 15 of 15, seed 1 \\|"]].

of_function(Name, Results) ->
    lists:sort([{Function, Operator, Before, After, Outcome}
                || {{_, {Of, _} = Function, Operator, _},
                    #{before := Before, 'after' := After}, Outcome} <- Results, Of =:= Name]).

%% A second run, without time, knows the results; a suite that has changed decides anew.
results_stay_until_code_changes(Config) ->
    Options = planted(Config, fits(), ?SUITE ++ ["all() -> [sizes]." | ?OF_SIZES], []),
    {Results, []} = erlmcp_test_mutants:run(Options),
    {Results, []} = erlmcp_test_mutants:run(Options#{minutes := 0}),
    {survived, 1, 1} = of_comparison(Results),
    Options = planted(Config, fits(),
                      ?SUITE ++ ["all() -> [sizes].",
                                 "sizes(_) -> true = planted_bounds:fits(3, 3)."], []),
    {Unknown, []} = erlmcp_test_mutants:run(Options#{minutes := 0}),
    unknown = of_comparison(Unknown),
    {Anew, []} = erlmcp_test_mutants:run(Options),
    {killed, ?SIZES} = of_comparison(Anew).

fits() ->
    ["-module(planted_bounds).", "-export([fits/2])." | ?FITS].

of_comparison(Results) ->
    [Outcome] = [Outcome || {{_, _, comparison, _}, _, Outcome} <- Results],
    Outcome.

%% A change without a fault is named, and is no part of the sample. A name that fits none is told.
equivalents_are_no_part(Config) ->
    Named = {equivalent, planted_bounds, {fits, 2}, comparison, "Size =< Bound", "Size < Bound",
             "planted"},
    Unfit = setelement(2, Named, planted_elsewhere),
    Options = planted(Config, fits(), ?SUITE ++ ["all() -> [sizes]." | ?OF_SIZES],
                      [Named, Unfit]),
    {Results, [Unfit]} = erlmcp_test_mutants:run(Options#{minutes := 0}),
    equivalent = of_comparison(Results),
    "" = lists:flatten(erlmcp_test_mutants:survivors(Results)).

%% A case that needs an earlier one fails alone, with and without a fault.
failures_without_a_fault_say_nothing(Config) ->
    Options = planted(
        Config, ["-module(planted_bounds).", "-export([fits/2]).", "fits(A, B) -> A < B."],
        ?SUITE ++
        ["all() -> [first, second].", "first(_) -> persistent_term:put(planted, 1).",
         "second(_) -> true = is_boolean(planted_bounds:fits(persistent_term:get(planted), 1))."],
        []),
    {Results, []} = erlmcp_test_mutants:run(Options),
    [{survived, 0, 0}, {survived, 0, 0}] = [Outcome || {_, _, Outcome} <- Results].

survivors_are_tried_again_with_more_time(Config) ->
    Options = planted(Config, fits(),
                      ?SUITE ++ ["all() -> [sizes, slow].",
                                 "slow(_) -> receive after 2_000 -> ok end, "
                                 "true = planted_bounds:fits(3, 3)." | ?OF_SIZES], []),
    Short = Options#{seconds := 2},
    {Results, []} = erlmcp_test_mutants:run(Short),
    {survived, 1, 2} = of_comparison(Results),
    {Results, []} = erlmcp_test_mutants:run(Short#{minutes := 0}),
    {Longer, []} = erlmcp_test_mutants:run(Options),
    {killed, {planted_bounds_SUITE, {[], slow}}} = of_comparison(Longer),
    {Longer, []} = erlmcp_test_mutants:run(Short#{minutes := 0}).

%% What was counted stays true of code that stands on other lines.
lines_move_with_their_code(Config) ->
    Suite = ?SUITE ++ ["all() -> [sizes]." | ?OF_SIZES],
    #{state := State} = Options = planted(Config, fits(), Suite, []),
    {Results, []} = erlmcp_test_mutants:run(Options),
    [Module | Functions] = fits(),
    Options = planted(Config, [Module, "", "", "" | Functions], Suite, []),
    ok = file:delete(filename:join(State, "journal")),
    {Moved, []} = erlmcp_test_mutants:run(Options),
    Moved = [{Key, Mutant#{line := Line + 3}, Outcome}
             || {Key, #{line := Line} = Mutant, Outcome} <- Results].

%% A suite whose modules have changed is counted again when it runs one that is asked for.
lines_are_counted_where_they_are_needed(Config) ->
    #{root := Root, built := Built, state := State} = Options =
        planted(Config, fits(), ?SUITE ++ ["all() -> [sizes]." | ?OF_SIZES], []),
    Other = fun(Number) ->
        ok = compiled(["-module(planted_other).", "-export([number/0]).",
                       "number() -> " ++ Number ++ "."],
                      filename:join(Root, "apps/app/src/other"), filename:join(Built, "app/ebin")),
        ok = compiled(["-module(planted_other_SUITE).", "-export([all/0, number/1]).",
                       "all() -> [number].",
                       "number(_) -> true = is_integer(planted_other:number())."],
                      filename:join(Root, "apps/app/test/other"), filename:join(Built, "app/test"))
    end,
    Counted = fun(Only) ->
        _ = erlmcp_test_mutants:run(Options#{minutes := 0, only := Only}),
        {_, Hashes} = erlmcp_test_case_lines:read(filename:join(State, "lines"),
                                                  planted_other_SUITE),
        Hashes
    end,
    ok = Other("1"),
    First = Counted(""),
    ok = Other("2"),
    First = Counted("planted_bounds"),
    ok = file:write_file(maps:get(terms, Options),
                         "{rooms, [\"apps/app/src/room\", \"apps/app/src/other/*.erl\"]}.\n"),
    false = First =:= Counted("planted_other").

%% The machine, too, may end a node. Here each second node of a mutant passes.
nodes_that_end_are_tried_again(Config) ->
    Folder = filename:join(folder(Config), "once"),
    Options = planted(Config, fits(),
                      ?SUITE ++ ["all() -> [sizes].",
                                 "sizes(_) -> planted_bounds:fits(3, 3) orelse "
                                 "file:make_dir(\"" ++ Folder ++ "\") =/= ok orelse halt(), "
                                 "file:del_dir(\"" ++ Folder ++ "\")."], []),
    {Results, []} = erlmcp_test_mutants:run(Options#{workers := 1}),
    {survived, 1, 1} = of_comparison(Results).

programs_that_are_left_behind_are_not_waited_for(Config) ->
    Options = planted(Config, fits(),
                      ?SUITE ++ ["all() -> [sizes].",
                                 "sizes(_) -> open_port({spawn, \"sleep 40\"}, []), "
                                 "true = planted_bounds:fits(3, 3)."], []),
    {Seconds, _} = timer:tc(fun() -> erlmcp_test_mutants:run(Options#{minutes := 0}) end, second),
    true = Seconds < 40.

the_page_lists_the_operators(_) ->
    Page = filename:join(erlmcp_test_page:root(), "docs/benchmarks.md"),
    {ok, Text} = file:read_file(Page),
    [] = [Operator || {Operator, Change} <- erlmcp_test_mutation:operators(),
                      string:find(Text, ["| `", atom_to_list(Operator), "` | ", Change, " |\n"])
                          =:= nomatch].

the_page_has_the_last_result(Config) ->
    Page = filename:join(folder(Config), "page.md"),
    ok = filelib:ensure_dir(Page),
    ok = file:write_file(Page, "before\n<!-- mutants -->\nold\n<!-- end of mutants -->\nafter\n"),
    ok = erlmcp_test_mutants:record(Page, "new\n"),
    {ok, ~"before\n<!-- mutants -->\nnew\n<!-- end of mutants -->\nafter\n"} = file:read_file(Page).

folder(Config) ->
    filename:join(proplists:get_value(priv_dir, Config), ?MODULE).

%% A project of one module and one suite, and how it is run.
planted(Config, Module, Suite, Equivalents) ->
    Root = folder(Config),
    Beams = filename:join(Root, "built/app/ebin"),
    ok = compiled(Module, filename:join(Root, "apps/app/src/room"), Beams),
    ok = compiled(Suite, filename:join(Root, "apps/app/test/room"),
                  filename:join(Root, "built/app/test")),
    true = code:add_patha(Beams),
    true = code:add_patha(filename:join(Root, "built/app/test")),
    Terms = filename:join(Root, "mutants.terms"),
    ok = file:write_file(Terms, [io_lib:format("~tp.~n", [Term])
                                 || Term <- [{rooms, ["apps/app/src/room"]} | Equivalents]]),
    #{root => Root, built => filename:join(Root, "built"), state => filename:join(Root, "state"),
      terms => Terms, minutes => 10, seconds => 10, workers => 2, seed => 1, only => ""}.

compiled(Lines, Sources, Beams) ->
    {ok, Tokens, _} = erl_scan:string(lists:concat(lists:join("\n", Lines))),
    Forms = forms(Tokens, []),
    {ok, Name, Beam} = compile:forms(Forms, [debug_info, line_coverage]),
    ok = filelib:ensure_path(Sources),
    ok = filelib:ensure_path(Beams),
    ok = file:write_file(filename:join(Sources, atom_to_list(Name) ++ ".erl"),
                         lists:join("\n", Lines)),
    _ = code:purge(Name),
    _ = code:delete(Name),
    file:write_file(filename:join(Beams, atom_to_list(Name) ++ ".beam"), Beam).

forms([], []) ->
    [];
forms([{dot, _} = Dot | Tokens], Form) ->
    {ok, Parsed} = erl_parse:parse_form(lists:reverse(Form, [Dot])),
    [Parsed | forms(Tokens, [])];
forms([Token | Tokens], Form) ->
    forms(Tokens, [Token | Form]).

form(Text) ->
    {ok, Tokens, _} = erl_scan:string(Text),
    {ok, Form} = erl_parse:parse_form(Tokens),
    Form.
