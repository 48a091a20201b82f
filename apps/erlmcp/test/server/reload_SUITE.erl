-module(reload_SUITE).
-moduledoc """
`erlmcp:reload/1`: a server reads the definitions of its handler module again, with the new code of
the module and of those beside it, while clients of both eras use it.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2,
         end_per_testcase/2]).
-export([new_definitions_and_code_are_served/1, calls_end_with_the_code_they_began_with/1,
         a_wrong_set_is_refused_whole/1, a_crash_of_the_module_is_said/1,
         a_module_without_options_is_refused/1,
         a_broken_file_is_refused/1, funs_of_options_are_kept/1,
         definitions_besides_stay/1, modules_beside_it_are_loaded/1, nothing_new_changes_nothing/1,
         it_is_an_event_and_a_line_of_the_log/1, a_server_without_a_module_has_nothing_to_read/1]).
-export([log/2]).

-import(erlmcp_test_servers, [start/1]).
-import(erlmcp_test_two_eras, [eras/0, open/2, call/3, listed/2, text/1]).
-import(erlmcp_test_module, [compiled/2]).

-define(PATIENCE, 30_000).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [new_definitions_and_code_are_served, calls_end_with_the_code_they_began_with,
     a_wrong_set_is_refused_whole, a_crash_of_the_module_is_said,
     a_module_without_options_is_refused, a_broken_file_is_refused,
     funs_of_options_are_kept, definitions_besides_stay, modules_beside_it_are_loaded,
     nothing_new_changes_nothing, it_is_an_event_and_a_line_of_the_log,
     a_server_without_a_module_has_nothing_to_read].

init_per_suite(Config) ->
    erlmcp_test_servers:init_suite(Config).

end_per_suite(Config) ->
    erlmcp_test_servers:end_suite(Config).

%% Each case has a module of its own, since old code stays in the node.
init_per_testcase(Case, Config) ->
    Name = "served_" ++ atom_to_list(Case),
    Folder = filename:join(proplists:get_value(priv_dir, Config), Name),
    [{folder, Folder}, {module, list_to_atom(Name)} | erlmcp_test_servers:init_case(Config)].

end_per_testcase(_, Config) ->
    erlmcp_test_servers:stop_all(),
    erlmcp_test_module:unload(proplists:get_value(module, Config)).

%% Writes the module whose tools are `Tools`, texts of Erlang, and what its `call_tool/3` returns.
write(Tools, Returned, Config) ->
    write("#{}", Tools, Returned, Config).

write(Options, Tools, Returned, Config) ->
    Module = proplists:get_value(module, Config),
    compiled(["-module(", atom_to_list(Module), ").
         -behaviour(erlmcp_server). -export([server/0, tools/0, call_tool/3, wrap/3]).
         server() -> maps:merge(#{name => <<\"served\">>, version => <<\"1\">>}, ", Options, ").
         tools() -> [", lists:join(", ", Tools), "].
         wrap(Arguments, Context, Next) -> Next(Arguments, Context).
         call_tool(_, _, _) -> ", Returned, "."], proplists:get_value(folder, Config)).

named(Name) -> ["#{name => <<\"", Name, "\">>, input_schema => #{}}"].

%% A tool whose handler is a fun of the module.
local(Name, Body) ->
    ["#{name => <<\"", Name, "\">>, handler => fun(_, _) -> ", Body, " end}"].

served(Config) ->
    served(#{}, Config).

served(Options, Config) ->
    Module = proplists:get_value(module, Config),
    File = filename:join(proplists:get_value(folder, Config), atom_to_list(Module)),
    {module, Module} = code:load_abs(File),
    start(maps:merge(#{handler => Module, tools => []}, Options)).

new_definitions_and_code_are_served(Config) ->
    _ = write([named("a"), local("b", "<<\"old\">>"), local("c", "<<\"old\">>")], "<<\"old\">>",
              Config),
    Server = served(Config),
    Module = proplists:get_value(module, Config),
    Clients = [open(Era, Server) || Era <- eras()],
    [[~"old" = text(call(Client, Name, #{})) || Name <- [~"a", ~"b"]] || Client <- Clients],
    [begin
         Text = integer_to_binary(Number),
         Written = ["<<\"", Text, "\">>"],
         _ = write([local("d", Written),
                    ["(", local("b", Written), ")#{description => <<\"", Text, "\">>}"],
                    named("a")], Written, Config),
         {ok, #{modules := [Module], old_code := []} = Reloaded} = erlmcp:reload(Server),
         #{added := Added, removed := Removed, changed := 1} = Reloaded,
         {Added, Removed} = case Number of
             1 -> {1, 1};
             _ -> {0, 0}
         end,
         [begin
              [~"d", ~"b", ~"a"] = listed(Client, tool),
              [Text = text(call(Client, Name, #{})) || Name <- [~"a", ~"b", ~"d"]]
          end || Client <- Clients]
     end || Number <- lists:seq(1, 4)].

calls_end_with_the_code_they_began_with(Config) ->
    Waits = fun(Text) ->
        local("wait", ["begin waiting ! {runs, self()}, receive go -> <<\"", Text, "\">> end end"])
    end,
    Module = proplists:get_value(module, Config),
    true = register(waiting, self()),
    _ = write([Waits("first")], "none", Config),
    Server = served(Config),
    Running = fun() ->
        Socket = erlmcp_test_line:connect(Server),
        erlmcp_test_line:send(Socket, erlmcp_test_line:stateless(1, ~"tools/call",
                                                                 #{~"name" => ~"wait"})),
        receive {runs, Pid} -> {Pid, Socket} end
    end,
    Ends = fun({Pid, Socket}, Text) ->
        Monitor = monitor(process, Pid),
        Pid ! go,
        #{~"result" := #{~"content" := [#{~"text" := Text}]}} = erlmcp_test_line:recv(Socket),
        receive {'DOWN', Monitor, process, Pid, _} -> ok end
    end,
    First = Running(),
    _ = write([Waits("second")], "none", Config),
    {ok, #{modules := [Module], old_code := [Module]}} = erlmcp:reload(Server),
    Second = Running(),
    %% The node has room for the code of two versions.
    _ = write([Waits("third")], "none", Config),
    {error, {old_code_runs, [Module]}} = erlmcp:reload(Server),
    OfSecond = Running(),
    Ends(First, ~"first"),
    {ok, #{old_code := [Module]}} = erlmcp:reload(Server),
    Third = Running(),
    [Ends(Call, Text) || {Call, Text} <- [{Second, ~"second"}, {OfSecond, ~"second"},
                                          {Third, ~"third"}]],
    true = unregister(waiting).

a_wrong_set_is_refused_whole(Config) ->
    _ = write([named("a"), local("b", "<<\"b\">>")], "<<\"a\">>", Config),
    Server = served(Config),
    Clients = [open(Era, Server) || Era <- eras()],
    _ = write([named("new"), "#{name => <<\"wrong\">>, handler => 7}"], "<<\"a\">>", Config),
    {error, {bad_definition, tool, ~"wrong", handler, _}} = erlmcp:reload(Server),
    [begin
         [~"a", ~"b"] = listed(Client, tool),
         [Name = text(call(Client, Name, #{})) || Name <- [~"a", ~"b"]]
     end || Client <- Clients],
    _ = write([named("new")], "<<\"right\">>", Config),
    {ok, #{added := 1, removed := 2}} = erlmcp:reload(Server),
    [begin
         [~"new"] = listed(Client, tool),
         ~"right" = text(call(Client, ~"new", #{}))
     end || Client <- Clients].

a_crash_of_the_module_is_said(Config) ->
    Module = proplists:get_value(module, Config),
    _ = write([named("a")], "<<\"a\">>", Config),
    Server = served(Config),
    _ = write(["error(on_purpose)"], "<<\"a\">>", Config),
    {error, {handler_failed, Module, error, on_purpose}} = erlmcp:reload(Server),
    [~"a"] = listed(open(~"2026-07-28", Server), tool).

a_module_without_options_is_refused(Config) ->
    _ = write([named("a")], "<<\"a\">>", Config),
    Server = served(Config),
    _ = compiled(["-module(", atom_to_list(proplists:get_value(module, Config)), ").
         -export([server/0, tools/0]).
         server() -> ok.
         tools() -> []."], proplists:get_value(folder, Config)),
    {error, {bad_option, handler, ~"a module whose server/0 returns a map"}} =
        erlmcp:reload(Server),
    [~"a"] = listed(open(~"2026-07-28", Server), tool).

a_broken_file_is_refused(Config) ->
    Module = proplists:get_value(module, Config),
    File = write([named("a")], "<<\"a\">>", Config),
    Server = served(Config),
    ok = file:write_file(File, ~"no beam"),
    {error, {not_loaded, [{Module, badfile}]}} = erlmcp:reload(Server),
    ~"a" = text(call(open(~"2026-07-28", Server), ~"a", #{})).

%% A fun of the first code would be gone after the second reload.
funs_of_options_are_kept(Config) ->
    Module = proplists:get_value(module, Config),
    Local = "#{middleware => [fun(Arguments, Context, Next) -> Next(Arguments, Context) end]}",
    Write = fun(Options, Text) -> write(Options, [named("a")], ["<<\"", Text, "\">>"], Config) end,
    _ = Write(Local, "1"),
    Server = served(Config),
    _ = Write(Local, "2"),
    {ok, #{modules := [Module]}} = erlmcp:reload(Server),
    _ = Write(Local, "3"),
    {error, {old_funs, [Module]}} = erlmcp:reload(Server),
    ~"2" = text(call(open(~"2026-07-28", Server), ~"a", #{})),
    ok = erlmcp:stop_server(Server),
    erlmcp_test_module:unload(Module),
    %% The newest code has an exported function.
    Exported = ["#{middleware => [fun ", atom_to_list(Module), ":wrap/3]}"],
    _ = Write(Exported, "4"),
    Other = served(Config),
    [begin
         _ = Write(Exported, Text),
         {ok, #{modules := [Module]}} = erlmcp:reload(Other),
         Wanted = list_to_binary(Text),
         Wanted = text(call(open(~"2026-07-28", Other), ~"a", #{}))
     end || Text <- ["5", "6", "7"]].

%% Those that the options had; what was added since goes.
definitions_besides_stay(Config) ->
    Tool = #{name => ~"besides", handler => fun(_, _) -> ~"besides" end},
    _ = write([named("a")], "<<\"a\">>", Config),
    Server = served(#{tools => [Tool]}, Config),
    ok = erlmcp:add(Server, tool, Tool#{name := ~"added"}),
    _ = write([named("b"), named("a")], "<<\"a\">>", Config),
    {ok, #{added := 1, removed := 1, changed := 0}} = erlmcp:reload(Server),
    [begin
         [~"b", ~"a", ~"besides"] = listed(Client, tool),
         ~"besides" = text(call(Client, ~"besides", #{}))
     end || Client <- [open(Era, Server) || Era <- eras()]].

modules_beside_it_are_loaded(Config) ->
    Module = proplists:get_value(module, Config),
    Folder = proplists:get_value(folder, Config),
    [Beside, Elsewhere] = Others = [list_to_atom(atom_to_list(Module) ++ End)
                                    || End <- ["_beside", "_elsewhere"]],
    Folders = [Folder, Folder ++ "_elsewhere"],
    Write = fun(Text) ->
        [compiled(["-module(", atom_to_list(Other), "). -export([text/0]).
                    text() -> <<\"", Text, "\">>."], In)
         || {Other, In} <- lists:zip(Others, Folders)]
    end,
    Files = Write("1"),
    _ = write([named("a")], ["<<(", atom_to_list(Beside), ":text())/binary, (",
                             atom_to_list(Elsewhere), ":text())/binary>>"], Config),
    Server = served(Config),
    [{module, _} = code:load_abs(filename:rootname(File)) || File <- Files],
    _ = Write("2"),
    {ok, #{modules := [Beside], changed := 0}} = erlmcp:reload(Server),
    ~"21" = text(call(open(~"2026-07-28", Server), ~"a", #{})),
    [erlmcp_test_module:unload(Other) || Other <- Others].

nothing_new_changes_nothing(Config) ->
    _ = write([named("a"), ["(", local("b", "<<\"b\">>"), ")#{visible => fun(_) -> true end}"]],
              "<<\"a\">>", Config),
    Server = served(Config),
    [{ok, #{added := 0, removed := 0, changed := 0, modules := [], old_code := []}} =
         erlmcp:reload(Server) || _ <- lists:seq(1, 3)],
    [begin
         [~"a", ~"b"] = listed(Client, tool),
         [Name = text(call(Client, Name, #{})) || Name <- [~"a", ~"b"]]
     end || Client <- [open(Era, Server) || Era <- eras()]].

it_is_an_event_and_a_line_of_the_log(Config) ->
    Test = self(),
    Module = proplists:get_value(module, Config),
    _ = write([named("a")], "<<\"a\">>", Config),
    Server = served(#{id => reloaded_here, on_event => fun(Event) -> Test ! {event, Event} end},
                    Config),
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, notice),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => Test}),
    _ = write([named("a"), named("b")], "<<\"a\">>", Config),
    {ok, _} = erlmcp:reload(Server),
    Counts = #{added => 1, removed => 0, changed => 0, modules => [Module]},
    receive
        {event, #{event := reloaded, server := reloaded_here} = Event} ->
            Counts = maps:with(maps:keys(Counts), Event)
    after ?PATIENCE -> ct:fail(no_event)
    end,
    #{server := reloaded_here} = Line = logged(server_reloaded),
    Counts = maps:with(maps:keys(Counts), Line),
    _ = write(["7"], "<<\"a\">>", Config),
    {error, _} = erlmcp:reload(Server),
    #{server := reloaded_here, module := Module, reason := Reason} = logged(reload_refused),
    {_, _} = binary:match(Reason, ~"expected a map"),
    ok = logger:remove_handler(?MODULE),
    ok = logger:set_primary_config(level, Level).

-doc false.
log(#{msg := {report, #{what := What} = Report}}, #{config := Test}) ->
    Test ! {logged, What, Report},
    ok;
log(_, _) ->
    ok.

logged(What) ->
    receive
        {logged, What, Report} -> Report
    after ?PATIENCE ->
        ct:fail({not_logged, What})
    end.

a_server_without_a_module_has_nothing_to_read(_) ->
    Server = start(#{}),
    {error, no_handler} = erlmcp:reload(Server).
