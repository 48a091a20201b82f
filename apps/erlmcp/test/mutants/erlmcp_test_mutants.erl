-module(erlmcp_test_mutants).
-moduledoc """
The mutation run of `make mutants`. A mutant is the code with one fault (`erlmcp_test_mutation`). Of
each mutant only those cases run that run its line (`erlmcp_test_case_lines`), in a node of its own
(`erlmcp_test_chosen_cases`), until one fails. The mutants come in a random order that depends on a
seed alone. The results stay in a journal, so a later run goes on where the last one stopped, and
what has run at any time is an unbiased sample.

A failure counts if its case passes alone, with the original code. A result lasts as long as the
code of the module, and of the suites that decided. These are the suite of the failed case, or all
that run the line.
""".

-export([main/0, run/1, survivors/1, summary/2, record/2]).
-export_type([options/0, result/0]).

-doc """
Options of a run. `root` has the folder `apps`, `built` the compiled applications, and `state` keeps
the journal and the lines of each case. `only` is a part of the paths of the modules. `seconds` is
the time that the chosen cases of one mutant took when their lines were counted.
""".
-type options() :: #{root := file:filename(), built := file:filename(), state := file:filename(),
                     terms := file:filename(), minutes := number(), seconds := number(),
                     workers := pos_integer(), seed := integer(), only := string()}.

-doc "A mutant's name in the journal, which no line is a part of.".
-type key() :: {module(), {atom(), arity()}, erlmcp_test_mutation:operator(), pos_integer()}.

-doc """
A mutant and its outcome. It is `not_covered` if no case runs its line. `none` stands for a node
that ended without a word of its cases.
""".
-type result() :: {key(), mutant(),
                   {killed | hung, At :: {module(), erlmcp_test_case_lines:name()} | none}
                   | {survived, Run :: non_neg_integer(), Of :: non_neg_integer()}
                   | not_covered | equivalent | unknown}.
-type mutant() :: #{file := file:filename(), line := pos_integer(), before := string(),
                    'after' := string(), lines := non_neg_integer()}.

%% Nodes that count lines, for each worker: most suites wait most of the time.
-define(COUNTING, 2).
%% Milliseconds that a suite takes beside its cases.
-define(SUITE, 300).
%% A node ends itself; this is for one that cannot.
-define(NODE, 900_000).
%% Words of the heap of a process: a mutant that gathers for ever must not take the machine.
-define(HEAP, "100000000").

-doc "Runs as `scripts/mutants.sh` asks, and ends this node.".
-spec main() -> no_return().
main() ->
    [Root, Built, Minutes, Seconds, Workers, Seed, Only, Page, Commit] = init:get_plain_arguments(),
    Options = #{root => Root, built => filename:join(Built, "test/lib"),
                state => filename:join(Built, "mutants"),
                terms => filename:join(Root, "test/mutants.terms"),
                minutes => list_to_integer(Minutes), seconds => list_to_integer(Seconds),
                workers => list_to_integer(Workers), seed => list_to_integer(Seed), only => Only},
    {Results, Unfit} = run(Options),
    Summary = [summary(Results, Options), "| commit | ", Commit, " |\n"],
    io:format("~ts~ts", [survivors(Results), Summary]),
    _ = [io:format("test/mutants.terms: there is no such mutant: ~0tp~n", [Term]) || Term <- Unfit],
    ok = case Page of
        "" -> ok;
        _ -> record(Page, Summary)
    end,
    halt(min(1, length(Unfit))).

-doc """
Runs mutants for some minutes, and returns all mutants in their order, each with what is known of
it. Also returns the equivalents that fit no mutant, if `only` is empty. The lines of suites that
have changed are counted before the time begins.
""".
-spec run(options()) -> {[result()], Unfit :: [tuple()]}.
run(#{root := Root, state := State, terms := File, minutes := Minutes} = Options) ->
    ok = filelib:ensure_path(filename:join(State, "lines")),
    {ok, Terms} = file:consult(File),
    Suites = #{list_to_atom(filename:basename(Suite, ".erl")) => Suite
               || Suite <- filelib:wildcard("{apps,examples}/*/test/**/*_SUITE.erl", Root)},
    Hashes = #{Suite => hash(Suite) || Suite := _ <- Suites},
    Modules = modules(proplists:get_value(rooms, Terms), Options),
    ok = count_lines(Options#{suites => Suites, modules => Modules}),
    Passed = #{Suite => Cases || Suite := _ <- Suites, {Cases, _} <- [lines(Suite, Options)]},
    Journal = journal(Options),
    Context = Options#{suites => Suites, hashes => Hashes, passed => Passed,
                       covered => covered(maps:values(Passed)), modules => Modules,
                       seen => seen(Journal)},
    Plan = plan(Context),
    Equivalents = [Term || Term <- Terms, element(1, Term) =:= equivalent],
    Known = [{Key, Mutant, known(Key, Mutant, Equivalents, Journal, Context)}
             || {Key, Mutant} <- Plan],
    Until = erlang:monotonic_time(millisecond) + round(Minutes * 60_000),
    New = maps:from_list(each([{Key, Mutant} || {Key, Mutant, unknown} <- Known], Until, Options,
                              fun(Mutant, Folder) -> try_out(Mutant, Folder, Context) end)),
    {[{Key, Mutant, maps:get(Key, New, Outcome)}
      || {Key, Mutant, Outcome} <- Known, maps:get(Key, New, Outcome) =/= no_mutant],
     [Term || Term <- Equivalents, maps:get(only, Options) =:= "",
              not lists:any(fun({Key, Mutant}) -> fits(Term, Key, Mutant) end, Plan)]}.

%% A table of what is read for each mutant: how many of a module's mutants a suite has killed, and
%% whether a case passes alone.
seen(Journal) ->
    Seen = ets:new(?MODULE, [public]),
    maps:foreach(fun({_, {_, _}} = At, {Hash, IsSound}) -> ets:insert(Seen, {At, Hash, IsSound});
                    (Key, {_, Outcome, _}) -> killed(Key, Outcome, Seen)
                 end, Journal),
    Seen.

killed({Module, _, _, _}, {_, {Suite, _}}, Seen) ->
    _ = ets:update_counter(Seen, {Module, Suite}, 1, {{Module, Suite}, 0}),
    ok;
killed(_, _, _) ->
    ok.

%% The modules of the rooms, as they are compiled.
modules(Rooms, #{root := Root, only := Only}) ->
    ok = erlmcp_test_case_lines:count(),
    #{Module => #{file => File, forms => Forms, hash => erlmcp_test_mutation:hash(Forms),
                  counters => counters(Module)}
      || Room <- Rooms,
         File <- filelib:wildcard(files(Room), Root),
         string:find(File, Only) =/= nomatch,
         Module <- [list_to_atom(filename:basename(File, ".erl"))],
         Forms <- [forms(Module)]}.

%% A room is a folder with all below it, or says which files it has.
files(Room) ->
    case filename:extension(Room) of
        ".erl" -> Room;
        _ -> filename:join(Room, "**/*.erl")
    end.

forms(Module) ->
    {ok, {Module, [{abstract_code, {raw_abstract_v1, Forms}}]}} =
        beam_lib:chunks(code:which(Module), [abstract_code]),
    Forms.

counters(Module) ->
    {module, Module} = code:ensure_loaded(Module),
    erlmcp_test_case_lines:counters(Module).

hash(Module) ->
    case code:get_object_code(Module) of
        {Module, Beam, _} -> code:module_md5(Beam);
        error -> none
    end.

%% The order is that of hashes, and so does not depend on which other mutants there are.
plan(#{modules := Modules, seed := Seed}) ->
    Mutants = [{{Module, Function, Operator, Nth},
                #{file => File, line => Line, before => Before, 'after' => After,
                  lines => bits(counted(At, Counters), Counters)}}
               || Module := #{file := File, forms := Forms, counters := Counters} <- Modules,
                  #{function := Function, operator := Operator, nth := Nth, line := Line, at := At,
                    before := Before, 'after' := After} <- erlmcp_test_mutation:of_forms(Forms)],
    [Mutant || {_, Mutant} <- lists:sort([{erlang:phash2({Seed, Key}, 1 bsl 32), Mutant}
                                          || {Key, _} = Mutant <- Mutants])].

%% The lines whose counters say that the changed code was run.
counted({any, Lines}, _) ->
    Lines;
counted({innermost, Lines}, Counters) ->
    lists:sublist([Line || Line <- Lines, lists:member(Line, Counters)], 1).

bits(Lines, Counters) ->
    lists:sum([1 bsl Place || {Place, Line} <- lists:enumerate(0, Counters),
                              lists:member(Line, Lines)]).

known({Module, _, _, _} = Key, Mutant, Equivalents, Journal, #{modules := Modules} = Context) ->
    #{Module := #{hash := Hash}} = Modules,
    case {lists:any(fun(Term) -> fits(Term, Key, Mutant) end, Equivalents), Journal} of
        {true, _} -> equivalent;
        {false, #{Key := {Hash, no_mutant, _}}} -> no_mutant;
        {false, #{Key := {Hash, Outcome, By}}} ->
            case lasts(Outcome, By, decided_by(Outcome, Key, Mutant, Context)) of
                true -> Outcome;
                false -> uncovered_or_unknown(Key, Mutant, Context)
            end;
        {false, _} -> uncovered_or_unknown(Key, Mutant, Context)
    end.

%% With more time, other cases may kill a survivor.
lasts({survived, Run, Of}, {Suites, Before}, {Suites, Seconds}) ->
    Run =:= Of orelse Before >= Seconds;
lasts(_, {Suites, _}, {Suites, _}) ->
    true;
lasts(_, _, _) ->
    false.

fits({equivalent, Module, Function, Operator, Before, After, _}, {Module, Function, Operator, _},
     #{before := Before, 'after' := After}) ->
    true;
fits(_, _, _) ->
    false.

uncovered_or_unknown({Module, _, _, _}, #{lines := Lines}, #{covered := Covered}) ->
    case Lines band maps:get(Module, Covered, 0) of
        0 -> not_covered;
        _ -> unknown
    end.

%% A hash of the suites that decided, and the time that they had.
decided_by({survived, _, _}, {Module, _, _, _}, #{lines := Lines},
           #{seconds := Seconds} = Context) ->
    {hash_of([Suite || {Suite, _} <- covering(Module, Lines, Context)], Context), Seconds};
decided_by({_, none}, _, _, #{seconds := Seconds}) ->
    {none, Seconds};
decided_by({_, {Suite, _}}, _, _, #{seconds := Seconds} = Context) ->
    {hash_of([Suite], Context), Seconds}.

hash_of(Suites, #{hashes := Hashes}) ->
    erlang:phash2([{Suite, maps:get(Suite, Hashes, none)} || Suite <- lists:sort(Suites)],
                  1 bsl 32).

%% The lines that any case runs.
covered(Suites) ->
    lists:foldl(fun(Lines, Covered) ->
                    maps:merge_with(fun(_, A, B) -> A bor B end, Lines, Covered)
                end, #{}, [Lines || Cases <- Suites, {_, Lines} <- maps:values(Cases)]).

%% The cases that run a line of a module.
covering(Module, Lines, #{passed := Passed}) ->
    [{Suite, Cases} || Suite := All <- Passed,
                       Cases <- [erlmcp_test_case_lines:cases(Module, Lines, All)],
                       map_size(Cases) > 0].

%% One mutant, and then whether the case that failed passes without it. If it does not, its failure
%% says nothing, and the others decide.
try_out({{Module, Function, Operator, Nth} = Key, #{lines := Lines} = Mutant}, Folder,
        #{modules := Modules} = Context) ->
    #{Module := #{forms := Forms, hash := Hash}} = Modules,
    [Change] = [Change || #{function := F, operator := O, nth := N} = Change
                              <- erlmcp_test_mutation:of_forms(Forms),
                          {F, O, N} =:= {Function, Operator, Nth}],
    Outcome = case erlmcp_test_mutation:compile(Forms, Change) of
        {ok, Module, Beam} -> decide(Module, Beam, Lines, Folder, Context);
        _ -> no_mutant
    end,
    By = case Outcome of
        no_mutant -> none;
        _ -> decided_by(Outcome, Key, Mutant, Context)
    end,
    ok = killed(Key, Outcome, maps:get(seen, Context)),
    ok = add({Key, Hash, Outcome, By}, Context),
    {Key, Outcome}.

decide(Module, Beam, Lines, Folder, Context) ->
    Covering = covering(Module, Lines, Context),
    Chosen = chosen(Module, Covering, Context),
    case cases(Chosen, {Module, Beam}, Folder, Context) of
        passed -> {survived, count(Chosen), count(Covering)};
        {Outcome, At} ->
            case At =:= none orelse is_sound(At, Folder, Context) of
                true -> {Outcome, At};
                false -> decide(Module, Beam, Lines, Folder, without(At, Context))
            end
    end.

count(Suites) ->
    lists:sum([map_size(Cases) || {_, Cases} <- Suites]).

%% Without a function around cases, none of them can run.
without({Suite, {_, Case} = Name}, #{passed := Passed} = Context) ->
    #{Suite := Cases} = Passed,
    Context#{passed := Passed#{Suite := case is_map_key(Name, Cases) andalso Case of
        false -> #{};
        _ -> maps:remove(Name, Cases)
    end}}.

is_sound({Suite, Name} = At, Folder, Context) ->
    #{hashes := Hashes, passed := Passed, seen := Seen} = Context,
    #{Suite := Hash} = Hashes,
    #{Suite := All} = Passed,
    case ets:lookup(Seen, At) of
        [{_, Hash, IsSound}] ->
            IsSound;
        _ ->
            %% A function around cases is run with the quickest of them.
            Case = case All of
                #{Name := {Milliseconds, _}} -> #{Name => Milliseconds};
                #{} -> quickest(erlmcp_test_case_lines:cases(All))
            end,
            IsSound = cases([{Suite, Case}], none, Folder, Context) =:= passed,
            true = ets:insert(Seen, {At, Hash, IsSound}),
            ok = add({At, Hash, IsSound}, Context),
            IsSound
    end.

quickest(Cases) ->
    [{Name, Milliseconds} | _] = lists:keysort(2, maps:to_list(Cases)),
    #{Name => Milliseconds}.

%% First the suites that have killed mutants of the module, then those of its own folder, and then
%% the quickest, until the time is over.
chosen(Module, Covering, #{modules := Modules, suites := Suites, seconds := Seconds,
                           seen := Seen}) ->
    #{Module := #{file := File}} = Modules,
    Ranked = lists:sort([{-ets:lookup_element(Seen, {Module, Suite}, 2, 0),
                          -near(File, maps:get(Suite, Suites)),
                          lists:sum(maps:values(Cases)), Suite, Cases}
                         || {Suite, Cases} <- Covering]),
    within([{Suite, Cases} || {_, _, _, Suite, Cases} <- Ranked], Seconds * 1_000).

%% How many folders of two paths are the same, but for `src` and `test`.
near(File, Suite) ->
    length(lists:takewhile(fun({A, B}) -> A =:= B end,
                           lists:zip(folders(File), folders(Suite), trim))).

folders(File) ->
    filename:split(filename:dirname(File)) -- ["src", "test"].

within([], _) ->
    [];
within([{Suite, Cases} | Rest], Milliseconds) ->
    Left = Milliseconds - ?SUITE,
    {Fitting, After} = lists:foldl(
        fun({Name, Time}, {Kept, Now}) when Time =< Now -> {Kept#{Name => Time}, Now - Time};
           (_, Kept) -> Kept
        end, {#{}, Left}, lists:keysort(2, maps:to_list(Cases))),
    case map_size(Fitting) of
        0 -> within(Rest, Milliseconds);
        _ -> [{Suite, Fitting} | within(Rest, After)]
    end.

%% Runs cases in a node of their own. A node that ends without a word is tried again: the machine,
%% too, can end one.
cases([], _, _, _) ->
    passed;
cases(Chosen, Replaced, Folder, Context) ->
    case in_node(Chosen, Replaced, Folder, Context) of
        {killed, none} -> in_node(Chosen, Replaced, Folder, Context);
        Outcome -> Outcome
    end.

in_node(Chosen, Replaced, Folder, Context) ->
    _ = file:del_dir_r(Folder),
    ok = erlmcp_test_chosen_cases:write(Folder, [{beam(Suite, Context), Cases}
                                                 || {Suite, Cases} <- Chosen]),
    ok = case Replaced of
        none -> ok;
        {Module, Beam} ->
            file:write_file(filename:join(Folder, atom_to_list(Module) ++ ".beam"), Beam)
    end,
    ok = node(erlmcp_test_chosen_cases, [Folder]),
    Outcome = case erlmcp_test_chosen_cases:outcome(Folder) of
        none -> {killed, none};
        passed -> passed;
        {failed, At} -> {killed, At};
        {hung, At} -> {hung, At}
    end,
    _ = file:del_dir_r(Folder),
    Outcome.

%% The path of a suite's beam, as common_test wants it.
beam(Suite, #{suites := Suites, built := Built}) ->
    [_, App | _] = filename:split(maps:get(Suite, Suites)),
    filename:join([Built, App, "test", atom_to_list(Suite)]).

%% Has a module's `run/1` run in a node of its own, until that has ended. A program that the node
%% leaves behind has none of the port's pipes, which would hide the end.
node(Module, Arguments) ->
    Run = lists:flatten(io_lib:format("ok = logger:remove_handler(default), ~s:run("
                                      "init:get_plain_arguments()).", [Module])),
    Port = open_port({spawn_executable, "/bin/sh"},
                     [{args, ["-c", "\"$0\" \"$@\" </dev/null >/dev/null 2>&1 & echo $!; wait $!",
                              filename:join([code:root_dir(), "bin", "erl"]),
                              "-noinput", "+hmax", ?HEAP, "+hmaxel", "false", "-pa"]
                           ++ [Folder || Folder <- code:get_path(), Folder =/= "."]
                           ++ ["-eval", Run, "-extra" | Arguments]},
                      exit_status, {line, 64}, in, hide]),
    receive
        {Port, {data, {eol, Pid}}} ->
            Timer = erlang:send_after(?NODE, self(), {too_long, Port}),
            ok = ended(Port, Pid),
            _ = erlang:cancel_timer(Timer),
            ok
    end.

ended(Port, Pid) ->
    receive
        {Port, {exit_status, _}} -> ok;
        {too_long, Port} ->
            _ = os:cmd("kill -9 " ++ Pid),
            ended(Port, Pid)
    end.

%% Applies a function to items, some at the same time, and begins none after a time. Each has the
%% folder of its worker.
each(Items, Until, #{workers := Workers, state := State}, Function) ->
    Folders = [filename:join([State, "run", integer_to_list(Worker)])
               || Worker <- lists:seq(1, Workers)],
    each(Items, Until, Function, Folders, 0).

each([Item | Items], Until, Function, [Folder | Folders], Running) ->
    case erlang:monotonic_time(millisecond) < Until of
        true ->
            Parent = self(),
            _ = spawn_link(fun() -> Parent ! {each, Folder, Function(Item, Folder)} end),
            each(Items, Until, Function, Folders, Running + 1);
        false ->
            each([], Until, Function, [], Running)
    end;
each([], _, _, _, 0) ->
    [];
each(Items, Until, Function, Folders, Running) ->
    receive
        {each, Folder, Result} ->
            [Result | each(Items, Until, Function, [Folder | Folders], Running - 1)]
    end.

%% The lines of cases.

lines(Suite, #{state := State}) ->
    erlmcp_test_case_lines:read(filename:join(State, "lines"), Suite).

%% Counts for those suites of which the code has changed, or that of a module they run. If only
%% their modules have changed, they must have run one of the modules that are asked for.
count_lines(#{suites := Suites, state := State, modules := Modules,
              workers := Workers} = Options) ->
    Before = #{Suite => lines(Suite, Options) || Suite := _ <- Suites},
    Run = #{Module => [] || {_, Hashes} <- maps:values(Before), Module := _ <- Hashes},
    Now = #{Module => hash(Module) || Module <- maps:keys(maps:merge(Run, Suites))},
    Stale = [Suite || Suite := Lines <- Before, not is_counted(Lines, Now),
                      is_concerned(Suite, Lines, Now, Modules)],
    _ = [io:format("mutants: counting the lines of ~b suites~n", [length(Stale)]) || Stale =/= []],
    LongestFirst = lists:reverse(lists:sort([{took(map_get(Suite, Before)), Suite}
                                             || Suite <- Stale])),
    _ = each([Suite || {_, Suite} <- LongestFirst], infinity,
             Options#{workers := ?COUNTING * Workers},
             fun(Suite, Folder) ->
                 ok = filelib:ensure_path(Folder),
                 ok = node(erlmcp_test_case_lines,
                           [filename:join(State, "lines"), Folder, beam(Suite, Options)]),
                 file:del_dir_r(Folder)
             end),
    ok.

%% The milliseconds that a suite took when it was counted before.
took({Passed, _}) -> lists:sum(maps:values(erlmcp_test_case_lines:cases(Passed)));
took(none) -> infinity.

is_counted({_, Hashes}, Now) -> maps:with(maps:keys(Hashes), Now) =:= Hashes;
is_counted(none, _) -> false.

is_concerned(Suite, {_, Hashes}, Now, Modules) ->
    maps:get(Suite, Hashes, none) =/= maps:get(Suite, Now)
        orelse map_size(maps:with(maps:keys(Hashes), Modules)) > 0;
is_concerned(_, none, _, _) ->
    true.

%% The journal: a term on each line. The last line may be torn.

journal(#{state := State}) ->
    case file:read_file(filename:join(State, "journal")) of
        {ok, Bytes} ->
            lists:foldl(fun(Line, Known) ->
                            case binary_to_term(base64:decode(Line)) of
                                {Key, Hash, Outcome, By} -> Known#{Key => {Hash, Outcome, By}};
                                {At, Hash, IsSound} -> Known#{At => {Hash, IsSound}}
                            end
                        end, #{}, lists:droplast(binary:split(Bytes, ~"\n", [global])));
        {error, enoent} ->
            #{}
    end.

add(Row, #{state := State}) ->
    file:write_file(filename:join(State, "journal"),
                    [base64:encode(term_to_binary(Row)), $\n], [append]).

%% What is shown.

-doc """
Returns a line for each mutant that no case has killed. Of those that no case runs, only those of
the sample are shown.
""".
-spec survivors([result()]) -> unicode:chardata().
survivors(Results) ->
    {Sample, Others} = lists:splitwith(fun is_known/1, Results),
    [io_lib:format("~ts:~b: ~ts in ~ts/~b: ~ts -> ~ts (~ts)~n",
                   [File, Line, Operator, Name, Arity, Before, After, reason(Outcome)])
     || {{_, {Name, Arity}, Operator, _},
         #{file := File, line := Line, before := Before, 'after' := After}, Outcome}
            <- lists:sort(fun by_line/2, Sample ++ [Result || {_, _, {survived, _, _}} = Result
                                                                  <- Others]),
        not_killed(Outcome)].

by_line({_, #{file := A, line := Line}, _}, {_, #{file := B, line := Next}, _}) ->
    {A, Line} =< {B, Next}.

not_killed({survived, _, _}) -> true;
not_killed(not_covered) -> true;
not_killed(_) -> false.

reason({survived, Run, Of}) -> io_lib:format("survived ~b of ~b cases", [Run, Of]);
reason(not_covered) -> "not covered".

-doc """
Returns the counts of a sample: of the mutants in their order, as far as all are known. The interval
has the percentage of all mutants with a probability of 95 %.
""".
-spec summary([result()], options()) -> unicode:chardata().
summary(Results, #{seed := Seed}) ->
    Sample = lists:takewhile(fun is_known/1, Results),
    Counts = lists:foldl(fun({_, _, Outcome}, Counts) ->
                             maps:update_with(kind(Outcome), fun(N) -> N + 1 end, 1, Counts)
                         end, #{killed => 0, hung => 0, survived => 0, not_covered => 0,
                                equivalent => 0}, Sample),
    #{killed := Killed, hung := Hung, survived := Survived, not_covered := NotCovered,
      equivalent := Equivalent} = Counts,
    Size = Killed + Hung + Survived + NotCovered,
    {Low, High} = interval(Killed + Hung, Size),
    io_lib:format("| mutants | |~n| --- | --- |~n| killed | ~b |~n| killed by a time limit | ~b |~n"
                  "| survived | ~b |~n| not covered by a case | ~b |~n"
                  "| **killed, of the sample** | **~.1f %** (~.1f to ~.1f) |~n"
                  "| sample | ~b of ~b, seed ~b |~n| equivalent, and left out | ~b |~n",
                  [Killed, Hung, Survived, NotCovered, percent(Killed + Hung, Size), Low, High,
                   Size, length(Results) - Equivalent, Seed, Equivalent]).

is_known({_, _, Outcome}) -> Outcome =/= unknown.

kind(Outcome) when is_tuple(Outcome) -> element(1, Outcome);
kind(Outcome) -> Outcome.

percent(_, 0) -> 0.0;
percent(Part, All) -> 100 * Part / All.

%% Wilson's score interval.
interval(_, 0) ->
    {0.0, 100.0};
interval(Part, All) ->
    Z = 1.96,
    Rate = Part / All,
    Middle = Rate + Z * Z / (2 * All),
    Half = Z * math:sqrt(Rate * (1 - Rate) / All + Z * Z / (4 * All * All)),
    Scale = 100 / (1 + Z * Z / All),
    {Scale * (Middle - Half), Scale * (Middle + Half)}.

-doc "Replaces what a page has between its two comments of mutants.".
-spec record(file:filename(), unicode:chardata()) -> ok.
record(Page, Text) ->
    {ok, Bytes} = file:read_file(Page),
    [Before, Rest] = string:split(Bytes, ~"<!-- mutants -->\n"),
    [_, After] = string:split(Rest, ~"<!-- end of mutants -->"),
    file:write_file(Page, unicode:characters_to_binary(
        [Before, ~"<!-- mutants -->\n", Text, ~"<!-- end of mutants -->", After])).
