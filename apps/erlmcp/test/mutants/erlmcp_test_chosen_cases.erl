-module(erlmcp_test_chosen_cases).
-moduledoc """
A hook of common_test that runs chosen cases of suites, in a node of their own. It ends the node as
soon as a case fails or hangs, or the last one has passed. The file `outcome` of a folder then has
the outcome. A case that is skipped has failed, as for `scripts/suites.sh`.
""".

-export([write/2, outcome/1, run/1]).
-export([init/2, pre_init_per_suite/3, pre_end_per_suite/3, post_end_per_suite/4,
         pre_init_per_group/4, pre_end_per_group/4, pre_init_per_testcase/4, on_tc_fail/4,
         on_tc_skip/4]).
-export_type([chosen/0, outcome/0]).

-doc """
Cases in the order of their suites, each with its milliseconds. A suite is the path of its beam,
without its extension.
""".
-type chosen() :: [{Suite :: file:filename(), #{erlmcp_test_case_lines:name() => number()}}].
-doc "The outcome of the chosen cases. `At` is a suite and a case, or a function around cases.".
-type outcome() :: passed | {failed | hung, At :: {module(), erlmcp_test_case_lines:name()}}.

%% A case hangs if it takes this many times its time, and these milliseconds more.
-define(TIMES, 10).
-define(MORE, 5_000).
%% Milliseconds for a function around cases, and for a case beside others in a parallel group.
-define(AROUND, 60_000).
%% Milliseconds in which common_test tells the failure of the last function.
-define(LAST, 200).

-doc "Writes the cases that `run/1` is to run into a folder.".
-spec write(file:filename(), chosen()) -> ok.
write(Folder, Chosen) ->
    ok = filelib:ensure_path(Folder),
    _ = file:delete(filename:join(Folder, "outcome")),
    file:write_file(filename:join(Folder, "chosen"), term_to_binary(Chosen)).

-doc "Reads the outcome of `run/1`. Returns `none` if the node has ended without one.".
-spec outcome(file:filename()) -> outcome() | none.
outcome(Folder) ->
    case file:read_file(filename:join(Folder, "outcome")) of
        {ok, Bytes} -> binary_to_term(Bytes);
        {error, enoent} -> none
    end.

-doc """
Runs the cases that are written in a folder, and ends this node. Modules in the folder come before
others.
""".
-spec run([file:filename()]) -> no_return().
run([Folder]) ->
    true = code:add_patha(Folder),
    {ok, Bytes} = file:read_file(filename:join(Folder, "chosen")),
    Chosen = binary_to_term(Bytes),
    ?MODULE = ets:new(?MODULE, [public, named_table]),
    true = ets:insert(?MODULE, [{{list_to_atom(filename:basename(Suite)), Name}, Milliseconds, open}
                                || {Suite, Cases} <- Chosen, Name := Milliseconds <- Cases]),
    Guard = spawn_opt(fun() -> guard({hung, none}, infinity, Folder) end, [link, {priority, max}]),
    true = register(?MODULE, Guard),
    Logs = filename:join(Folder, "logs"),
    ok = filelib:ensure_path(Logs),
    _ = ct:run_test([{suite, [Suite || {Suite, _} <- Chosen]}, {logdir, Logs},
                     {auto_compile, false}, {ct_hooks, [{?MODULE, Folder}]}]),
    %% No case is left out in silence: a suite may have crashed where it says its groups.
    finish(case open() of
               [] -> passed;
               [At | _] -> {failed, At}
           end).

open() ->
    lists:append(ets:match(?MODULE, {'$1', '_', open})).

%% Ends the node if no other step begins in time, or when it is told to. Nobody else writes the file
%% or ends the node.
guard(Outcome, Milliseconds, Folder) ->
    receive
        {step, Next, Longest} -> guard(Next, Longest, Folder);
        {finish, Seen} -> write_outcome(Seen, Folder)
    after Milliseconds ->
        write_outcome(Outcome, Folder)
    end.

write_outcome(Outcome, Folder) ->
    File = filename:join(Folder, "outcome"),
    ok = file:write_file(File ++ ".new", term_to_binary(Outcome)),
    ok = file:rename(File ++ ".new", File),
    halt(0, [{flush, false}]).

finish(Outcome) ->
    ?MODULE ! {finish, Outcome},
    receive never -> ok end.

init(_, Folder) ->
    {ok, Folder}.

pre_init_per_suite(Suite, Config, Folder) ->
    ok = step({Suite, {[], init_per_suite}}, ?AROUND),
    {Config, Folder}.

pre_end_per_suite(Suite, Config, Folder) ->
    ok = step({Suite, {[], end_per_suite}}, ?AROUND),
    {Config, Folder}.

%% `on_tc_fail` of this function, if it has failed, comes after it. The pages of the run do not.
post_end_per_suite(_, _, Return, Folder) ->
    ok = case open() of
        [] -> step(passed, ?LAST);
        [_ | _] -> ok
    end,
    {Return, Folder}.

pre_init_per_group(Suite, Group, Config, Folder) ->
    case [Groups || [Groups] <- ets:match(?MODULE, {{Suite, {'$1', '_'}}, '_', '_'}),
                    lists:member(Group, Groups)] of
        [] ->
            {{skip, not_chosen}, Folder};
        [_ | _] ->
            ok = step({Suite, {[Group], init_per_group}}, ?AROUND),
            {Config, Folder}
    end.

pre_end_per_group(Suite, Group, Config, Folder) ->
    ok = step({Suite, {[Group], end_per_group}}, ?AROUND),
    {Config, Folder}.

pre_init_per_testcase(Suite, Case, Config, Folder) ->
    At = {Suite, erlmcp_test_case_lines:name(Case, Config)},
    case ets:lookup(?MODULE, At) of
        [] ->
            {{skip, not_chosen}, Folder};
        [{_, Milliseconds, _}] ->
            true = ets:insert(?MODULE, {At, Milliseconds, ended}),
            Group = proplists:get_value(tc_group_properties, Config, []),
            ok = step(At, case proplists:get_bool(parallel, Group) of
                true -> max(?AROUND, round(?TIMES * Milliseconds));
                false -> round(?MORE + ?TIMES * Milliseconds)
            end),
            {Config, Folder}
    end.

on_tc_fail(Suite, Case, _, _) ->
    finish({failed, at(Suite, Case)}).

on_tc_skip(Suite, Case, Reason, Folder) ->
    case is_not_chosen(Reason) of
        true -> Folder;
        false -> finish({failed, at(Suite, Case)})
    end.

is_not_chosen({tc_user_skip, Reason}) -> is_not_chosen(Reason);
is_not_chosen({tc_auto_skip, Reason}) -> is_not_chosen(Reason);
is_not_chosen({_, _, Reason}) -> is_not_chosen(Reason);
is_not_chosen(Reason) -> Reason =:= not_chosen.

%% Of a case in groups, common_test says the innermost one.
at(Suite, {Case, Group}) ->
    case [Groups || [Groups] <- ets:match(?MODULE, {{Suite, {'$1', Case}}, '_', ended}),
                    Groups =/= [], lists:last(Groups) =:= Group] of
        [Groups | _] -> {Suite, {Groups, Case}};
        [] -> {Suite, {[Group], Case}}
    end;
at(Suite, Case) ->
    {Suite, {[], Case}}.

step(passed, Milliseconds) ->
    ?MODULE ! {step, passed, Milliseconds},
    ok;
step(At, Milliseconds) ->
    ?MODULE ! {step, {hung, At}, Milliseconds},
    ok.
