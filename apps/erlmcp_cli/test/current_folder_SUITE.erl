-module(current_folder_SUITE).
-moduledoc """
No module of the current folder is run, whatever its name: an IDE starts the command in the folder
of a stranger. A module that writes a file when it is loaded lies in it under many names.
""".

-import(erlmcp_test_program, [run/3, serve/2, stop/2, url/1, one_line/1]).

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([commands_run_nothing/1, clients_run_nothing/1, a_server_on_stdio_runs_nothing/1,
         a_server_on_http_runs_nothing/1, instruments_run_nothing/1, flags_change_nothing/1,
         a_module_of_the_folder_is_named_by_its_file/1, a_file_that_is_no_server_is_refused/1,
         a_folder_that_cannot_be_listed_is_one_line/1]).
-export([scripts_run_nothing/1]).

suite() ->
    [{timetrap, {minutes, 3}}].

all() ->
    [commands_run_nothing, clients_run_nothing, a_server_on_stdio_runs_nothing,
     a_server_on_http_runs_nothing, instruments_run_nothing, flags_change_nothing,
     a_module_of_the_folder_is_named_by_its_file, a_file_that_is_no_server_is_refused,
     a_folder_that_cannot_be_listed_is_one_line, scripts_run_nothing].

init_per_suite(Config) ->
    erlmcp_test_program:serve_for_group(["--port", "0"], erlmcp_test_program:init(Config)).

end_per_suite(Config) -> erlmcp_test_program:end_group(Config).

init_per_testcase(Case, Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), Case),
    ok = file:make_dir(Folder),
    Ran = filename:join(Folder, "ran"),
    [hostile(Module, Folder, Ran) || Module <- names()],
    ok = file:write_file(filename:join(Folder, ".erlang"), io_lib:format("~p.~n", [writes(Ran)])),
    [{folder, Folder}, {ran, Ran} | Config].

end_per_testcase(_, Config) ->
    case file:read_file(proplists:get_value(ran, Config)) of
        {error, enoent} -> ok;
        {ok, Names} -> {fail, {ran, Names}}
    end.

%% Modules that libraries look for and most machines do not have, and modules that OTP and erlmcp
%% load when they call them.
names() ->
    [libdecaf, libsodium, keccakf1600, jiffy, jsx, jsone, thoas, ojson, poison, 'Elixir.Jason',
     'Elixir.Poison', 'Elixir.Kernel', inet_rc, user_default, recon, elixir]
    ++ [string, unicode_util, uri_string, argparse, json, io_lib_pretty, erl_parse, erl_scan, epp,
        erl_eval, filelib, beam_lib, erl_error, logger_formatter, logger_std_h, error_logger, rand,
        net_kernel, global, inet_db, inet_gethost_native, timer, calendar, re, peer, os, ssl,
        public_key, crypto, gun, ranch, cowboy, cow_http, jose, jose_server]
    ++ [erlmcp, erlmcp_app, erlmcp_sup, erlmcp_stdio, erlmcp_client, erlmcp_cli, erlmcp_cli_serve,
        erlmcp_cli_code_path, erlmcp_cli_list, erlmcp_bench, everything, everything_tools].

hostile(Module, Folder, Ran) ->
    Forms = [{attribute, 1, module, Module}, {attribute, 1, on_load, {run, 0}},
             {attribute, 1, export, [{run, 0}]},
             {function, 1, run, 0, [{clause, 1, [], [], [erl_parse:abstract(ok)]}]}],
    [Run] = [{function, 1, run, 0, [{clause, 1, [], [], [call(Ran, Module)]}]}],
    {ok, Module, Beam} = compile:forms(lists:droplast(Forms) ++ [Run], []),
    ok = file:write_file(filename:join(Folder, atom_to_list(Module) ++ ".beam"), Beam).

call(Ran, Module) ->
    {call, 1, {remote, 1, {atom, 1, file}, {atom, 1, write_file}},
     [erl_parse:abstract(Ran), erl_parse:abstract(atom_to_list(Module) ++ "\n"),
      erl_parse:abstract([append])]}.

writes(Ran) -> {file, write_file, [Ran, ".erlang"]}.

commands_run_nothing(Config) ->
    {0, _, ""} = there(["version"], Config),
    {0, _, ""} = there(["help"], Config),
    {0, _, _} = there(["doctor"], Config),
    {2, "", _} = there(["no_such_command"], Config).

clients_run_nothing(Config) ->
    Url = url(Config),
    {0, _, ""} = there(["list", Url], Config),
    {0, "hi\n", ""} = there(["call", Url, "echo", "text=hi"], Config),
    {0, _, ""} = there(["ping", Url, "-c", "1"], Config),
    {0, _, ""} = there(["read", Url, "test://static-text"], Config),
    %% A program that it starts begins in the same folder.
    Program = proplists:get_value(program, Config),
    {0, _, ""} = there(["list", "--stdio", Program ++ " serve everything --stdio"], Config),
    %% With TLS, and with what a login needs.
    {3, "", _} = there(["list", "https" ++ string:prefix(Url, "http")], Config).

a_server_on_stdio_runs_nothing(Config) ->
    Calls = filename:join(proplists:get_value(folder, Config), "calls"),
    ok = file:write_file(Calls, [line(1, ~"server/discover", #{}),
                                 line(2, ~"tools/call", #{name => ~"echo",
                                                          arguments => #{text => ~"hi"}}),
                                 line(3, ~"tools/call", #{name => ~"crash", arguments => #{}})]),
    {0, Out, _} = in_folder("exec \"$@\" <calls", ["serve", "everything", "--stdio"], Config),
    [1, 2, 3] = lists:sort([maps:get(~"id", json:decode(unicode:characters_to_binary(Line)))
                            || Line <- string:lexemes(Out, "\n")]).

a_server_on_http_runs_nothing(Config) ->
    {ok, Here} = file:get_cwd(),
    ok = file:set_cwd(proplists:get_value(folder, Config)),
    {Server, Url, _} = try serve(["--port", "0", "--tcp", "0", "--sse"], Config)
                       after ok = file:set_cwd(Here)
                       end,
    {0, "hi\n", ""} = there(["call", Url, "echo", "text=hi"], Config),
    0 = stop("TERM", Server).

%% The server that is measured is another node.
instruments_run_nothing(Config) ->
    {0, _, _} = there(["bench"], Config),
    {0, _, _} = there(["chaos"], Config),
    {0, _, _} = there(["bench", "stdio_sequential_1k", "--duration", "1", "--connections", "1"],
                      Config).

%% Distribution is modules that are loaded early, before the command has a say.
flags_change_nothing(Config) ->
    Program = proplists:get_value(program, Config),
    {0, _, ""} = in_folder("ERL_FLAGS='-pa ebin -kernel prevent_overlapping_partitions false' "
                           "HOME=$PWD exec \"$@\"", ["version"], Config),
    {0, _, ""} = in_folder("ERL_LIBS=:lib: CDPATH=$PWD exec \"$@\"", ["version"], Config),
    Linked = filename:join(proplists:get_value(folder, Config), "linked"),
    ok = file:make_symlink(Program, Linked),
    {0, _, ""} = run("/bin/sh", ["-c", "cd \"$1\" && exec ./linked version", "-",
                                 filename:dirname(Linked)], Config).

a_module_of_the_folder_is_named_by_its_file(Config) ->
    Folder = proplists:get_value(folder, Config),
    ok = greeter(Folder),
    {1, "", Why} = there(["serve", "greeter", "--stdio"], Config),
    one_line(Why),
    {match, _} = re:run(Why, "for the file in this folder: \\./greeter\\.beam\n$"),
    ok = file:write_file(filename:join(Folder, "calls"), line(1, ~"server/discover", #{})),
    [{0, [_ | _], _} = in_folder("exec \"$@\" <calls", ["serve", File, "--stdio"], Config)
     || File <- ["./greeter.beam", "greeter.beam", filename:join(Folder, "greeter.beam")]],
    {1, "", Compile} = there(["serve", "greeter.erl"], Config),
    {match, _} = re:run(Compile, "^greeter\\.erl: a compiled module was expected; erlc makes one").

greeter(Folder) ->
    Source = filename:join(Folder, "greeter.erl"),
    ok = file:write_file(Source,
        "-module(greeter).\n-behaviour(erlmcp_server).\n-export([server/0]).\n"
        "server() -> #{name => ~\"greeter\", version => ~\"1\"}.\n"),
    {ok, greeter} = compile:file(Source, [{outdir, Folder}]),
    ok.

%% Its files can be read by those who know their names. To root that is nothing, unless it has left
%% its privileges.
a_folder_that_cannot_be_listed_is_one_line(Config) ->
    Folder = filename:join(proplists:get_value(folder, Config), "closed"),
    ok = file:make_dir(Folder),
    ok = greeter(Folder),
    ok = file:change_mode(Folder, 8#311),
    File = filename:join(Folder, "greeter.beam"),
    Command = [proplists:get_value(program, Config), "serve", File],
    {Program, Arguments} = case file:list_dir(Folder) of
        {error, eacces} -> {hd(Command), tl(Command)};
        {ok, _} -> {"/usr/bin/env", ["setpriv", "--bounding-set=-dac_override,-dac_read_search"
                                     | Command]}
    end,
    {1, "", Why} = run(Program, Arguments, Config),
    ok = file:change_mode(Folder, 8#755),
    one_line(Why),
    {match, _} = re:run(Why, "/closed: this folder cannot be listed: permission denied\n$").

a_file_that_is_no_server_is_refused(Config) ->
    ok = file:write_file(filename:join(proplists:get_value(folder, Config), "text.beam"), "text"),
    [begin
         {1, "", Why} = there(["serve", File], Config),
         one_line(Why),
         {match, _} = re:run(Why, Reason)
     end || {File, Reason} <- [{"./text.beam", "this file is no compiled module"},
                             {"./libdecaf.beam", "this module has no -behaviour"},
                             {"./none.beam", "there is no such file"}]].

%% The project's scripts that run Erlang do so in their own folder, wherever they are started.
%% CDPATH does not change that.
scripts_run_nothing(Config) ->
    Folder = proplists:get_value(folder, Config),
    Root = filename:dirname(filename:dirname(proplists:get_value(program, Config))),
    [ok = filelib:ensure_path(filename:join(Folder, Name)) || Name <- ["scripts", "programs"]],
    %% It fetches nothing here.
    ok = file:make_symlink("/bin/false", filename:join([Folder, "programs", "rebar3"])),
    {0, _, _} = script("PATH=$PWD/programs:$PATH \"$2/scripts/toolchain.sh\"", Root, Config),
    Suite = "apps/erlmcp/test/client/oauth/www_authenticate_SUITE",
    Run = "scripts/suites.sh \"$1/logs\" " ++ Suite,
    {0, _, _} = script("\"$2/\"" ++ Run, Root, Config),
    {0, _, _} = script("export CDPATH=\"$1\"; cd -- \"$2\"; " ++ Run, Root, Config),
    %% And all others begin as these do.
    Scripts = filelib:wildcard("{scripts,bench,test}/**/*.sh", Root),
    [] = [{Name, Line} || Name <- Scripts,
                          Line <- lines(filename:join(Root, Name)),
                          re:run(Line, "\\bcd (-- )?\"\\$\\(dirname") =/= nomatch,
                          re:run(Line, "CDPATH='' cd -- ") =:= nomatch].

lines(File) ->
    {ok, Text} = file:read_file(File),
    binary:split(Text, ~"\n", [global]).

script(Script, Root, Config) ->
    Folder = proplists:get_value(folder, Config),
    run("/bin/sh", ["-c", "cd -- \"$1\" && " ++ Script, "-", Folder, Root], Config).

there(Arguments, Config) -> in_folder("exec \"$@\"", Arguments, Config).

in_folder(Script, Arguments, Config) ->
    run("/bin/sh", ["-c", "cd \"$1\" && shift && { " ++ Script ++ "; }", "-",
                    proplists:get_value(folder, Config), proplists:get_value(program, Config)
                    | Arguments], Config).

line(Id, Method, Params) ->
    Meta = #{~"io.modelcontextprotocol/protocolVersion" => ~"2026-07-28",
             ~"io.modelcontextprotocol/clientCapabilities" => #{}},
    [json:encode(#{jsonrpc => ~"2.0", id => Id, method => Method,
                   params => Params#{~"_meta" => Meta}}), $\n].
