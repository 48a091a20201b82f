-module(erlmcp_test_case_lines).
-moduledoc """
A hook of common_test that writes down which lines each case of a suite runs, and how long the case
takes. It leaves a file for each suite that has ended, see `read/2`.

Lines that the functions around cases run (`init_per_suite` and others) stand under the name of that
function. A case beside others of a parallel group has what all of them ran since the group began.
Code in other nodes is not counted.
""".

-export([run/1, count/0, counters/1, read/2, cases/1, cases/3, name/2]).
-export([init/2, pre_init_per_suite/3, post_init_per_suite/4, pre_end_per_suite/3,
         post_end_per_suite/4, pre_init_per_group/4, post_init_per_group/5, pre_end_per_group/4,
         post_end_per_group/5, pre_init_per_testcase/4, post_end_per_testcase/5, on_tc_fail/4,
         on_tc_skip/4]).
-export_type([name/0, lines/0]).

-doc "A case with the groups around it, or a function around cases.".
-type name() :: {Groups :: [atom()], Case :: atom()}.

-doc """
The lines of modules that were run. A bit stands for a line by its place in `counters/1`, since the
same code may move to other lines.
""".
-type lines() :: #{module() => non_neg_integer()}.

-doc "Runs a suite, leaves its file in a folder, and ends this node.".
-spec run([file:filename()]) -> no_return().
run([Folder, Logs, Suite]) ->
    ok = count(),
    ?MODULE = ets:new(?MODULE, [public, named_table]),
    _ = ct:run_test([{suite, Suite}, {logdir, Logs}, {auto_compile, false},
                     {ct_hooks, [{?MODULE, Folder}]}]),
    halt(0, [{flush, false}]).

-doc "Begins to count the lines of modules that are loaded from now on.".
-spec count() -> ok.
count() ->
    _ = code:set_coverage_mode(line),
    ok.

-doc "Returns the lines that are counted of a loaded module, from the first on.".
-spec counters(module()) -> [pos_integer()].
counters(Module) ->
    %% A behaviour without code has none.
    lists:usort([Line || code:get_coverage_mode(Module) =:= line,
                         {Line, _} <- code:get_coverage(line, Module)]).

-doc """
Returns the cases that passed in a suite, and the functions around them, with their milliseconds and
lines. Also returns a hash of the code of the suite, and of each module that it ran. Returns `none`
if the folder has no file of the suite.
""".
-spec read(file:filename(), module()) ->
    {#{name() => {Milliseconds :: number(), lines()}}, #{module() => binary()}} | none.
read(Folder, Suite) ->
    case file:read_file(filename:join(Folder, Suite)) of
        {ok, Bytes} -> binary_to_term(Bytes);
        {error, enoent} -> none
    end.

-doc "Returns the cases of a suite with their milliseconds.".
-spec cases(#{name() => {number(), lines()}}) -> #{name() => number()}.
cases(Passed) ->
    #{Case => Milliseconds
      || {_, Function} = Case := {Milliseconds, _} <- Passed, not is_around(Function)}.

-doc """
Returns the cases of a suite that run one of these lines of a module, with their milliseconds. If a
function around cases runs one, these are all cases inside.
""".
-spec cases(module(), Lines :: non_neg_integer(), #{name() => {number(), lines()}}) ->
    #{name() => number()}.
cases(Module, Lines, Passed) ->
    Running = [Name || Name := {_, #{Module := Run}} <- Passed, Lines band Run =/= 0],
    #{Case => Milliseconds
      || Case := Milliseconds <- cases(Passed),
         lists:any(fun(Name) -> is_of(Case, Name) end, Running)}.

is_of(Case, Case) -> true;
is_of({Inner, _}, {Groups, Function}) -> is_around(Function) andalso lists:prefix(Groups, Inner).

is_around(Function) ->
    lists:member(Function, [init_per_suite, end_per_suite, init_per_group, end_per_group]).

%% The hook. What it counts is in a table, since cases of a parallel group run at the same time. Its
%% state is the folder of the files.

init(_, Folder) ->
    {ok, Folder}.

pre_init_per_suite(_, Config, Folder) ->
    true = ets:delete_all_objects(?MODULE),
    ok = begins(around),
    {Config, Folder}.

post_init_per_suite(_, _, Return, Folder) ->
    ok = ended(around, {[], init_per_suite}),
    {Return, Folder}.

pre_end_per_suite(_, Config, Folder) ->
    ok = begins(around),
    {Config, Folder}.

post_end_per_suite(Suite, _, Return, Folder) ->
    ok = ended(around, {[], end_per_suite}),
    Passed = #{Name => {Milliseconds, Lines}
               || {{passed, Name}, Milliseconds, Lines} <- ets:tab2list(?MODULE)},
    Modules = lists:usort(lists:append([maps:keys(Lines) || {_, Lines} <- maps:values(Passed)])),
    Hashes = #{Module => Module:module_info(md5) || Module <- [Suite | Modules]},
    ok = file:write_file(filename:join(Folder, Suite),
                         term_to_binary({Passed, Hashes}, [compressed])),
    {Return, Folder}.

pre_init_per_group(_, _, Config, Folder) ->
    ok = begins(around),
    {Config, Folder}.

%% Without a list, the group does not run.
post_init_per_group(_, _, _, Config, Folder) when is_list(Config) ->
    ok = ended(around, name(init_per_group, Config)),
    case proplists:get_bool(parallel, proplists:get_value(tc_group_properties, Config, [])) of
        true -> true = begins(around) =:= ok andalso ets:insert(?MODULE, {parallel, true});
        false -> true
    end,
    {Config, Folder};
post_init_per_group(_, _, _, Return, Folder) ->
    {Return, Folder}.

pre_end_per_group(_, _, Config, Folder) ->
    true = ets:delete(?MODULE, parallel),
    ok = begins(around),
    {Config, Folder}.

post_end_per_group(_, _, Config, Return, Folder) ->
    ok = ended(around, name(end_per_group, Config)),
    {Return, Folder}.

pre_init_per_testcase(_, Case, Config, Folder) ->
    Name = name(Case, Config),
    true = case ets:member(?MODULE, parallel) of
        true -> ets:insert(?MODULE, {{since, Name}, now_us()});
        false -> begins(Name) =:= ok
    end,
    {Config, Folder}.

post_end_per_testcase(_, Case, Config, Return, Folder) ->
    Name = name(Case, Config),
    ok = ended(Name, Name),
    {Return, Folder}.

on_tc_fail(_, Case, _, Folder) ->
    ok = failed(Case),
    Folder.

on_tc_skip(_, Case, _, Folder) ->
    ok = failed(Case),
    Folder.

%% Of a case in groups, common_test says the innermost one.
failed({Case, Group}) ->
    Groups = [Groups || [Groups] <- ets:match(?MODULE, {{passed, {'$1', Case}}, '_', '_'}),
                        Groups =/= [], lists:last(Groups) =:= Group],
    true = lists:all(fun(Of) -> ets:delete(?MODULE, {passed, {Of, Case}}) end, Groups),
    ok;
failed(Case) ->
    true = ets:delete(?MODULE, {passed, {[], Case}}),
    ok.

begins(Name) ->
    _ = [code:reset_coverage(Module) || Module <- counted()],
    true = ets:insert(?MODULE, {{since, Name}, now_us()}),
    ok.

ended(Began, Name) ->
    Now = now_us(),
    [{_, Since}] = ets:lookup(?MODULE, {since, Began}),
    Milliseconds = (Now - Since) / 1_000,
    Lines = #{Module => Mask || Module <- counted(), Mask <- [mask(Module)], Mask =/= 0},
    %% A case may run several times.
    New = case ets:lookup(?MODULE, {passed, Name}) of
        [{_, Before, Known}] ->
            {{passed, Name}, max(Before, Milliseconds),
             maps:merge_with(fun(_, A, B) -> A bor B end, Known, Lines)};
        [] ->
            {{passed, Name}, Milliseconds, Lines}
    end,
    true = ets:insert(?MODULE, New),
    ok.

now_us() ->
    erlang:monotonic_time(microsecond).

-doc "Returns the name of a case, from the configuration that common_test gives it.".
-spec name(atom(), [{atom(), term()}]) -> name().
name(Case, Config) ->
    Inner = [Properties || {tc_group_properties, Properties} <- Config],
    Groups = lists:reverse(Inner ++ proplists:get_value(tc_group_path, Config, [])),
    {[Name || Properties <- Groups, {name, Name} <- Properties], Case}.

%% The modules of this project that are no tests: others are compiled without counters for lines.
counted() ->
    [Module || {Module, File} <- code:all_loaded(), is_list(File), not is_test(Module),
               code:get_coverage_mode(Module) =:= line].

is_test(Module) ->
    Name = atom_to_list(Module),
    lists:suffix("_SUITE", Name) orelse lists:prefix("erlmcp_test_", Name).

mask(Module) ->
    Run = #{Line => true || {Line, true} <- code:get_coverage(line, Module)},
    case map_size(Run) of
        0 -> 0;
        _ -> lists:sum([1 bsl Place || {Place, Line} <- lists:enumerate(0, counters(Module)),
                                       is_map_key(Line, Run)])
    end.
