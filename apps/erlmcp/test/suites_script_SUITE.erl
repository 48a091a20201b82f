-module(suites_script_SUITE).
-moduledoc """
`scripts/suites.sh`, which the build believes: it fails where a suite did not run as a whole, even
where common_test has no failure in its sum.
""".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([what_did_not_run_has_not_passed/1]).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [what_did_not_run_has_not_passed].

init_per_testcase(_, Config) ->
    Config.

%% Each beside a suite that passes: alone none would have passed.
what_did_not_run_has_not_passed(Config) ->
    Runs = [{Broken, run(Broken, folder(Config))} || Broken <- broken()],
    [{Broken, 1} = {Broken, status(Run)} || {Broken, Run} <- Runs].

folder(Config) ->
    filename:join(proplists:get_value(priv_dir, Config), ?MODULE).

%% Their logs are not of the run that this one is in.
end_per_testcase(_, Config) ->
    file:del_dir_r(folder(Config)).

broken() ->
    [{ends_its_node_SUITE, ["all() -> [run].", "run(_) -> halt(0)."]},
     {has_no_groups_SUITE, ["all() -> [{group, all}].", "groups() -> error(none)."]},
     {fails_at_its_end_SUITE, ["all() -> [run].", "run(_) -> ok.",
                               "init_per_suite(Config) -> Config.",
                               "end_per_suite(_) -> error(late)."]}].

run({Name, _} = Broken, Folder) ->
    Base = filename:join(Folder, Name),
    Passes = {passes_SUITE, ["all() -> [run].", "run(_) -> ok."]},
    Suites = [compiled(Suite, Base) || Suite <- [Passes, Broken]],
    open_port({spawn_executable, filename:join(erlmcp_test_page:root(), "scripts/suites.sh")},
              [{args, [filename:join(Base, "logs") | Suites]}, {env, [{"REBAR_BASE_DIR", Base}]},
               exit_status, stderr_to_stdout, in]).

compiled({Name, Functions}, Base) ->
    Lines = ["-module(" ++ atom_to_list(Name) ++ ").", "-compile([export_all, nowarn_export_all])."
             | Functions],
    Forms = [form(Line) || Line <- Lines],
    {ok, Name, Code} = compile:forms(Forms),
    Beam = filename:join([Base, "test/lib/app/test", atom_to_list(Name) ++ ".beam"]),
    ok = filelib:ensure_dir(Beam),
    ok = file:write_file(Beam, Code),
    "apps/app/test/" ++ atom_to_list(Name).

form(Line) ->
    {ok, Tokens, _} = erl_scan:string(Line),
    {ok, Form} = erl_parse:parse_form(Tokens),
    Form.

status(Run) ->
    receive
        {Run, {data, _}} -> status(Run);
        {Run, {exit_status, Status}} -> Status
    end.
