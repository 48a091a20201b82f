-module(stdio_channel_SUITE).
-moduledoc "The channel to a child process: how it is started, read, held up, and ended.".

-export([suite/0, all/0, init_per_testcase/2, end_per_testcase/2]).
-export([the_runtime_makes_process_groups/1, a_child_answers/1, our_own_server_answers/1,
         arguments_folder_and_environment/1, the_same_in_another_locale/1,
         secrets_are_not_inherited/1, no_such_program/1, no_port_is_left_without_a_server/1,
         errors_are_logged/1, errors_are_drained_and_bounded/1,
         last_words_are_heard/1, last_words_may_come_late/1,
         an_end_may_come_after_that_of_the_output/1,
         a_write_after_the_end_hides_nothing/1, a_child_that_closes_its_input/1,
         an_ended_child_is_started_again/1,
         a_child_that_closes_its_output/1, a_child_that_ends_after_its_output/1,
         the_input_is_closed_first/1, then_it_is_terminated/1, then_it_is_killed/1,
         also_in_a_group_of_its_own/1, also_a_daemon/1, also_one_that_ignores_sigterm/1,
         its_group_may_have_signals/1,
         groups_are_none_of_a_programs_options/1,
         the_guard_may_be_killed/1, nothing_outlives_a_killed_node/1,
         floods_without_a_newline_cost_nothing/1, floods_of_lines_are_held_up/1,
         many_short_messages_arrive/1,
         a_child_that_does_not_read/1, one_folder_each_and_none_left/1,
         no_folder_is_left_between_two_owners/1, a_server_that_is_late_does_not_begin/1]).
-export([killed_node/1, log/2, the_same_in_another_locale/2, no_port_is_left_without_a_server/2]).

-import(erlmcp_test_channel, [open/3, up/1, down/1, send/3, request/4, outcome/2, ask/4, owned/1]).

-define(PATIENCE, 30_000).

%% Answers each request with an empty result, and ends with its input.
-define(ANSWER, "while read -r line; do id=${line##*\\\"id\\\":}; id=${id%%[,\\}]*}; "
                "printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\\n' \"$id\"; done").

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [the_runtime_makes_process_groups, a_child_answers, our_own_server_answers,
     arguments_folder_and_environment, the_same_in_another_locale,
     secrets_are_not_inherited, no_such_program, no_port_is_left_without_a_server,
     errors_are_logged, errors_are_drained_and_bounded,
     last_words_are_heard, last_words_may_come_late,
     an_end_may_come_after_that_of_the_output,
     a_write_after_the_end_hides_nothing, a_child_that_closes_its_input,
     an_ended_child_is_started_again,
     a_child_that_closes_its_output, a_child_that_ends_after_its_output,
     the_input_is_closed_first, then_it_is_terminated, then_it_is_killed,
     also_in_a_group_of_its_own, also_a_daemon, also_one_that_ignores_sigterm,
     its_group_may_have_signals,
     groups_are_none_of_a_programs_options,
     the_guard_may_be_killed, nothing_outlives_a_killed_node,
     floods_without_a_newline_cost_nothing, floods_of_lines_are_held_up,
     many_short_messages_arrive,
     a_child_that_does_not_read, one_folder_each_and_none_left,
     no_folder_is_left_between_two_owners, a_server_that_is_late_does_not_begin].

init_per_testcase(Case, Config) ->
    Folder = filename:join(proplists:get_value(priv_dir, Config), Case),
    ok = filelib:ensure_path(Folder),
    [{folder, Folder} | Config].

end_per_testcase(_, _) ->
    logger:remove_handler(?MODULE).

%% priv/erlmcp_stdio.sh relies on this.
the_runtime_makes_process_groups(_) ->
    Port = open_port({spawn_executable, "/bin/sh"},
                     [{args, ["-c", "ps -o pgid= -p $$"]}, binary, exit_status]),
    {os_pid, Pid} = erlang:port_info(Port, os_pid),
    receive
        {Port, {data, Text}} -> Pid = binary_to_integer(string:trim(Text))
    after ?PATIENCE ->
        error(no_group)
    end.

a_child_answers(_) ->
    Channel = child(?ANSWER),
    1 = up(Channel),
    [{ok, #{}} = ask(Channel, N, ~"ping", #{}) || N <- lists:seq(1, 100)],
    close(Channel).

our_own_server_answers(_) ->
    Command = filename:join(root(), "bin/erlmcp"),
    %% The environment says where the project was built, and with which OTP.
    Channel = open(erlmcp_line_channel, {stdio, list_to_binary(Command)},
                   #{args => ["serve", ~"everything", "--stdio"], inherit => all,
                     stop_ms => 30_000}),
    1 = up(Channel),
    Discover = send(Channel, request, erlmcp_test_line:stateless(1, ~"server/discover", #{})),
    {response, 1, {ok, #{~"supportedVersions" := _}}} = message_within(50_000, Discover),
    Began = erlang:monotonic_time(millisecond),
    close(Channel),
    %% It ended with its input.
    true = erlang:monotonic_time(millisecond) - Began < 20_000.

arguments_folder_and_environment(Config) ->
    Folder = folder(Config),
    Say = "printf '{\"jsonrpc\":\"2.0\",\"method\":\"%s\"}\\n' "
          "\"$0|$1|$2|$PWD|$GIVEN|${HOME-none}\"; cat >/dev/null",
    Channel = open(erlmcp_line_channel, {stdio, ["sh", "-c", list_to_binary(Say), "zero"]},
                   #{args => ["a b", ~"*"], cd => Folder,
                     env => #{~"GIVEN" => ~"ö $x", "HOME" => false}}),
    {notification, Said, _} = owned(Channel),
    [~"zero", ~"a b", ~"*", Where, ~"ö $x", ~"none"] = binary:split(Said, ~"|", [global]),
    true = filename:basename(Where) =:= list_to_binary(filename:basename(Folder)),
    close(Channel).

%% In a node whose locale has no UTF-8, text is still UTF-8 for the server.
the_same_in_another_locale(Config) ->
    {ok, Peer, _} = peer:start_link(#{connection => standard_io, wait_boot => 60_000,
                                      env => [{"LC_ALL", "C"}],
                                      args => ["-pa" | code:get_path()]}),
    latin1 = peer:call(Peer, file, native_name_encoding, [], 60_000),
    ok = peer:call(Peer, ?MODULE, ?FUNCTION_NAME, [in_the_peer, Config], 60_000),
    peer:stop(Peer).

the_same_in_another_locale(in_the_peer, Config) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    _ = arguments_folder_and_environment(Config),
    ok.

%% A node has so many ports and no more. A server that gets some of those that it needs gives them
%% back, or each later attempt would take more.
no_port_is_left_without_a_server(Config) ->
    {ok, Peer, _} = peer:start_link(#{connection => standard_io, wait_boot => 60_000,
                                      args => ["+Q", "1024", "-pa" | code:get_path()]}),
    ok = peer:call(Peer, ?MODULE, ?FUNCTION_NAME, [in_the_peer, Config], 60_000),
    peer:stop(Peer).

no_port_is_left_without_a_server(in_the_peer, _) ->
    {ok, _} = application:ensure_all_started(erlmcp),
    Client = fun() -> erlmcp_client:start_link({stdio, [~"sh", ~"-c", <<?ANSWER>>], #{}}) end,
    lists:foldl(fun(Free, Taken) ->
        Rest = with_free_ports(Free, taken(Taken)),
        Before = length(erlang:ports()),
        {ok, Alone} = Client(),
        {Free, {error, {connect, system_limit}}} = {Free, erlmcp_client:server(Alone)},
        ok = ports(Before, ?PATIENCE),
        ok = erlmcp_client:stop(Alone),
        Rest
    end, [], lists:seq(0, 4)),
    ok.

%% Takes all ports that there are.
taken(Taken) ->
    case gen_udp:open(0, [{inet_backend, inet}]) of
        {ok, Socket} -> taken([Socket | Taken]);
        {error, _} -> Taken
    end.

with_free_ports(0, Taken) ->
    Taken;
with_free_ports(Free, [Socket | Taken]) ->
    ok = gen_udp:close(Socket),
    with_free_ports(Free - 1, Taken).

%% The client tries again after a pause, and has no ports in between.
ports(Count, Milliseconds) when Milliseconds > 0 ->
    case length(erlang:ports()) of
        Count -> ok;
        _ -> receive after 10 -> ports(Count, Milliseconds - 10) end
    end;
ports(Count, _) ->
    {Count, length(erlang:ports())}.

%% A foreign program must not see the secrets of the node's environment.
secrets_are_not_inherited(_) ->
    Before = os:env(),
    [true = os:putenv(Name, "x") || Name <- ["RELEASE_COOKIE", "LC_ERLMCP", "ERLMCP_KEY"]],
    Safe = ["HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"],
    %% The variables that a shell sets itself.
    Shell = ["OLDPWD", "PWD", "SHLVL", "_", "_AST_FEATURES"],
    try
        [] = [Name || Name <- inherited(#{}) -- (Safe ++ Shell), not lists:prefix("LC_", Name)],
        [true = lists:member(Name, inherited(#{})) || Name <- ["PATH", "LC_ERLMCP"]],
        true = lists:member("ERLMCP_KEY", inherited(#{env => [{"ERLMCP_KEY", ~"y"}]})),
        All = inherited(#{inherit => all, env => #{"ERLMCP_KEY" => false}}),
        [true, true, false] = [lists:member(Name, All)
                               || Name <- ["RELEASE_COOKIE", "LC_ERLMCP", "ERLMCP_KEY"]]
    after
        [true = os:unsetenv(Name) || {Name, _} <- os:env(), not lists:keymember(Name, 1, Before)]
    end.

%% The names of the variables that a program has.
inherited(Options) ->
    Say = "printf '{\"jsonrpc\":\"2.0\",\"method\":\"%s\"}\\n' "
          "\"$(env | sed -n 's/^\\([A-Za-z_0-9]*\\)=.*/\\1/p' | tr '\\n' ' ')\"; cat >/dev/null",
    Channel = child(Say, Options),
    {notification, Names, _} = owned(Channel),
    close(Channel),
    [binary_to_list(Name) || Name <- binary:split(Names, ~" ", [global, trim])].

no_such_program(_) ->
    Channel = open(erlmcp_line_channel, {stdio, "/no/such/program"}, #{}),
    1 = up(Channel),
    {connect, {exit_status, 127}} = down(Channel),
    close(Channel).

errors_are_logged(_) ->
    ok = logged(),
    Channel = child("echo 'what I do' >&2; " ?ANSWER),
    #{what := server_stderr, line := ~"what I do"} = next_logged(),
    {ok, #{}} = ask(Channel, 1, ~"ping", #{}),
    close(Channel).

%% The server writes 20 MB to standard error, which would fill an unread pipe, and then its answer.
errors_are_drained_and_bounded(_) ->
    ok = logged(),
    Began = erlang:monotonic_time(second),
    Channel = child("yes 0123456789012345678 | head -c 20000000 >&2; "
                    "head -c 100000 /dev/zero | tr '\\000' x >&2; echo >&2; " ?ANSWER),
    {{ok, #{}}, []} = outcome(request(Channel, 1, ~"ping", #{}), []),
    Logged = length(all_logged()),
    %% 200 a second, and how many were left out.
    Seconds = erlang:monotonic_time(second) - Began + 1,
    true = Logged =< 201 * Seconds orelse error({logged, Logged, Seconds}),
    close(Channel).

%% It answers and ends: the answer counts.
last_words_are_heard(_) ->
    Channel = child("read -r line; echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}'; exit 3"),
    1 = up(Channel),
    {ok, #{}} = ask(Channel, 1, ~"ping", #{}),
    {exit_status, 3} = down(Channel),
    close(Channel).

%% The program that copies the output may be much slower than the end, on a busy machine.
last_words_may_come_late(_) ->
    Channel = child("read -r line; "
                    "(sleep 0.3; echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}') & "
                    "exit 3"),
    1 = up(Channel),
    {ok, #{}} = ask(Channel, 1, ~"ping", #{}),
    {exit_status, 3} = down(Channel),
    close(Channel).

%% And the other way round.
an_end_may_come_after_that_of_the_output(_) ->
    Channel = child("exec >&-; sleep 0.7; exit 7"),
    1 = up(Channel),
    {exit_status, 7} = down(Channel),
    close(Channel).

%% Its output is still open when something else is to be written.
a_write_after_the_end_hides_nothing(Config) ->
    File = filename:join(folder(Config), "pid"),
    Channel = child(["read -r line; sleep 10 & echo $$ >", File, "; exit 3"]),
    1 = up(Channel),
    First = request(Channel, 1, ~"ping", #{}),
    [] = await_dead([pid_in(File)], 1000),
    Second = request(Channel, 2, ~"ping", #{}),
    [{{failed, {closed, {exit_status, 3}}}, []} = outcome(Request, [])
     || Request <- [First, Second]],
    {exit_status, 3} = down(Channel),
    close(Channel).

%% A write to an unread pipe ends the port, which would not say how its program ended.
a_child_that_closes_its_input(Config) ->
    File = filename:join(folder(Config), "pid"),
    Channel = child(["exec <&-; echo $$ >", File, "; sleep 1; exit 3"]),
    1 = up(Channel),
    _ = pid_in(File),
    Request = request(Channel, 1, ~"ping", #{}),
    {{failed, {closed, {exit_status, 3}}}, []} = outcome(Request, []),
    {exit_status, 3} = down(Channel),
    close(Channel).

pid_in(File) ->
    case file:read_file(File) of
        {ok, <<_, _/binary>> = Pid} -> string:trim(binary_to_list(Pid));
        _ -> timer:sleep(5), pid_in(File)
    end.

%% "If the server process exits unexpectedly, the client SHOULD restart it."
an_ended_child_is_started_again(Config) ->
    File = filename:join(folder(Config), "once"),
    Channel = child(["if [ ! -e ", File, " ]; then : >", File, "; read -r line; exit 7; fi; ",
                     ?ANSWER]),
    1 = up(Channel),
    {{failed, {closed, {exit_status, 7}}}, []} = outcome(request(Channel, 1, ~"ping", #{}), []),
    {exit_status, 7} = down(Channel),
    2 = up(Channel),
    {ok, #{}} = ask(Channel, 1, ~"ping", #{}),
    close(Channel).

%% "The server MAY initiate shutdown by closing its output stream to the client and exiting."
a_child_that_closes_its_output(_) ->
    Channel = child("exec >&-; sleep 30"),
    1 = up(Channel),
    output_closed = down(Channel),
    close(Channel).

%% On a machine that is busy some time is between the two.
a_child_that_ends_after_its_output(_) ->
    Channel = child("exec >&-; sleep 3; exit 4"),
    1 = up(Channel),
    {exit_status, 4} = down(Channel),
    close(Channel).

%% "Closing the input stream to the child process"; "Waiting for the server to exit".
the_input_is_closed_first(Config) ->
    File = filename:join(folder(Config), "said"),
    Channel = ready(["trap 'echo term >>", File, "' TERM; echo ready; ",
                     "while read -r line; do :; done; sleep 0.3; echo late; ",
                     "echo end >>", File], 10_000),
    close(Channel),
    {ok, ~"end\n"} = file:read_file(File).

then_it_is_terminated(Config) ->
    File = filename:join(folder(Config), "said"),
    Channel = ready(["trap 'echo term >>", File, "; exit' TERM; echo ready; ",
                     "while :; do sleep 0.05; done"]),
    close(Channel),
    {ok, ~"term\n"} = file:read_file(File).

%% To the whole group: what it has started ends too.
then_it_is_killed(Config) ->
    File = filename:join(folder(Config), "pids"),
    Channel = ready(["trap '' TERM; sleep 100 & echo $$ $! >", File,
                     "; echo ready; while :; do sleep 0.05; done"]),
    Pids = pids(File),
    2 = length(alive(Pids)),
    close(Channel),
    [] = await_dead(Pids, 100).

%% `timeout` makes a group of its own, which SIGTERM to ours does not reach.
also_in_a_group_of_its_own(Config) ->
    File = filename:join(folder(Config), "pids"),
    Program = unicode:characters_to_binary(["echo $PPID $$ >", File, "; exec sleep 41"]),
    Channel = open(erlmcp_line_channel, {stdio, ["timeout", "77", "sh", "-c", Program]},
                   #{stop_ms => 300}),
    1 = up(Channel),
    Pids = await_pids(File, 1500),
    close(Channel),
    [] = await_dead(Pids, 100).

%% A grandchild in a session of its own, whose parent has ended: no group has it. The server itself
%% ends with its input.
also_a_daemon(Config) ->
    File = filename:join(folder(Config), "pids"),
    Channel = ready([daemon("", File), "echo ready; while read -r line; do :; done"]),
    Pids = await_pids(File, 1500),
    [_] = alive(Pids),
    close(Channel),
    [] = await_dead(Pids, 100).

also_one_that_ignores_sigterm(Config) ->
    File = filename:join(folder(Config), "pids"),
    Channel = ready([daemon("trap \"\" TERM HUP; ", File),
                     "echo ready; trap '' TERM; while :; do sleep 0.05; done"]),
    Pids = await_pids(File, 1500),
    close(Channel),
    [] = await_dead(Pids, 100).

%% Begins a process in a session of its own; the parent is gone when it writes its id.
daemon(Before, File) ->
    ["(setsid sh -c '", Before, "while [ \"$(ps -o ppid= -p $$)\" -eq \"$0\" ]; do sleep 0.01; "
     "done; echo $$ >", File, ".new; mv ", File, ".new ", File, "; while :; do sleep 0.05; done' "
     "$(sh -c 'echo $PPID') >/dev/null 2>&1 &); "].

%% A signal to its own group is the server's, and no end of it.
its_group_may_have_signals(Config) ->
    File = filename:join(folder(Config), "pid"),
    Channel = child(["trap '' USR1; kill -USR1 0; echo $$ >", File, "; ", ?ANSWER]),
    1 = up(Channel),
    {ok, #{}} = ask(Channel, 1, ~"ping", #{}),
    [_] = alive(pids(File)),
    close(Channel).

%% A shell without a kill of its own uses a program. The kill of procps takes "-TERM -123" for "-1",
%% and would end every process. The one here only prints its arguments.
groups_are_none_of_a_programs_options(Config) ->
    Folder = folder(Config),
    Kill = filename:join(Folder, "kill"),
    ok = file:write_file(Kill, ["#!/bin/sh\necho \"$*\" >>", Folder, "/said\n"]),
    ok = file:change_mode(Kill, 8#755),
    Pipes = filename:join(Folder, "pipes"),
    ok = file:make_dir(Pipes),
    [ok = file:write_file(filename:join(Pipes, Name), [Pid, $\n])
     || {Name, Pid} <- [{"server", "99999991"}, {"own", "99999992"}]],
    Guard = open_port({spawn_executable, os:find_executable("bash")},
                      [{args, ["-c", "enable -n kill && . \"$0\"",
                               filename:join(code:priv_dir(erlmcp), "erlmcp_stdio.sh"),
                               "guard", Pipes, "100", "99999993"]},
                       {env, [{"PATH", Folder ++ ":" ++ os:getenv("PATH")}]}, exit_status]),
    true = port_command(Guard, "end\n"),
    receive {Guard, {exit_status, 0}} -> ok after ?PATIENCE -> error(no_end) end,
    {ok, Said} = file:read_file(filename:join(Folder, "said")),
    Groups = [Line || Line <- binary:split(Said, ~"\n", [global, trim]),
                      match =:= re:run(Line, " -[0-9]+$", [{capture, none}])],
    [] = [Line || Line <- Groups, match =/= re:run(Line, "^-[A-Z0]+ -- -", [{capture, none}])],
    [~"-KILL -- -99999991", ~"-KILL -- -99999992", ~"-KILL -- -99999993"] =
        [Line || <<"-KILL", _/binary>> = Line <- Groups].

the_guard_may_be_killed(Config) ->
    File = filename:join(folder(Config), "pids"),
    Channel = ready(["trap '' TERM; echo $$ >", File, "; echo ready; ",
                     "while :; do sleep 0.05; done"]),
    [Child] = pids(File),
    [Guard] = guards(),
    _ = os:cmd("kill -9 " ++ Guard),
    {guard, 137} = down(Channel),
    2 = up(Channel),
    [] = await_dead([Child], 1500),
    close(Channel).

%% A node that is killed has no say: its child and what that has started end all the same.
nothing_outlives_a_killed_node(Config) ->
    Folder = folder(Config),
    File = filename:join(Folder, "pids"),
    Paths = lists:append([["-pa", filename:absname(Path)]
                          || Path <- code:get_path(), filelib:is_dir(Path)]),
    Node = open_port({spawn_executable, os:find_executable("erl")},
                     [{args, ["-noinput" | Paths]
                       ++ ["-run", ?MODULE_STRING, "killed_node", File]},
                      binary, exit_status, {env, [{"TMPDIR", Folder}]}]),
    {os_pid, Pid} = erlang:port_info(Node, os_pid),
    Pids = try
        await_pids(File, 1500)
    after
        os:cmd("kill -9 " ++ integer_to_list(Pid))
    end,
    3 = length(Pids),
    receive {Node, {exit_status, _}} -> ok after ?PATIENCE -> error(not_killed) end,
    [] = await_dead(Pids, 400),
    %% Nor does what guarded it.
    [] = await_empty(Folder, 1500).

killed_node([File]) ->
    Daemon = File ++ "_of_daemon",
    _ = child(["trap '' TERM HUP; ", daemon("", Daemon), "while [ ! -e ", Daemon, " ]; do "
               "sleep 0.01; done; sleep 100 & echo $$ $! $(cat ", Daemon, ") >", File, ".new; "
               "mv ", File, ".new ", File, "; while :; do sleep 0.05; done"], #{stop_ms => 300}),
    receive never -> ok end.

%% 200 MiB without a newline: the line is too large as soon as it is, and the child is ended. It
%% begins with the request, or a test that is late would find the connection lost already.
floods_without_a_newline_cost_nothing(_) ->
    Channel = child("read -r line; head -c 209715200 /dev/zero | tr '\\000' x; sleep 30", #{}),
    Bound = 16_000_000,
    Grown = erlmcp_test_memory:watch(Bound),
    1 = up(Channel),
    {{failed, {too_large, 1_000_000}}, []} = outcome(request(Channel, 1, ~"ping", #{}), []),
    {too_large, 1_000_000} = down(Channel),
    close(Channel),
    Most = Grown(),
    ct:pal("grown by ~p bytes", [Most]),
    true = Most < Bound orelse error({memory, Most}).

%% Each is read by itself: a portion of what is read is soon over, without many bytes.
many_short_messages_arrive(_) ->
    Channel = child(?ANSWER),
    1 = up(Channel),
    [{ok, #{}} = ask(Channel, N, ~"ping", #{}) || N <- lists:seq(1, 5000)],
    close(Channel).

%% More than 64 MiB of lines, faster than they are read. All of them are read in the end.
floods_of_lines_are_held_up(_) ->
    Line = ["{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":\"", lists:duplicate(100, $x), "\"}"],
    Channel = child(["read -r line; yes '", Line, "' | head -n 600000; "
                     "echo '{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}'; sleep 30"], #{}),
    1 = up(Channel),
    Bound = 48_000_000,
    Grown = erlmcp_test_memory:watch(Bound),
    {response, 1, {ok, _}} = message_within(50_000, request(Channel, 1, ~"ping", #{})),
    Most = Grown(),
    ct:pal("grown by ~p bytes", [Most]),
    true = Most < Bound orelse error({memory, Most}),
    close(Channel).

a_child_that_does_not_read(_) ->
    {_, Pid, _} = Channel = child("sleep 100", #{stop_ms => 100}),
    1 = up(Channel),
    Big = #{~"x" => binary:copy(~"x", 1_000_000)},
    {error, {overload, _}} = fill(Channel, Big, 1),
    Began = erlang:monotonic_time(millisecond),
    ok = erlmcp_line_channel:close(Pid),
    true = erlang:monotonic_time(millisecond) - Began < 20_000.

fill(Channel, Params, N) when N < 1000 ->
    case request(Channel, N, ~"x", Params) of
        {error, _} = Error -> Error;
        _ -> fill(Channel, Params, N + 1)
    end.

one_folder_each_and_none_left(Config) ->
    with_folder(Config, fun(Folder) ->
        Channels = [child(?ANSWER) || _ <- [1, 2, 3]],
        [1 = up(Channel) || Channel <- Channels],
        {ok, [_, _, _]} = file:list_dir(Folder),
        [close(Channel) || Channel <- Channels],
        {ok, []} = file:list_dir(Folder)
    end).

%% The channel is closed when the process that connects has done all of its part.
no_folder_is_left_between_two_owners(Config) ->
    with_folder(Config, fun(Folder) ->
        {_, Pid, _} = Channel = child(?ANSWER),
        true = erlang:suspend_process(Pid),
        {links, Links} = process_info(Pid, links),
        Monitors = [monitor(process, Linked) || Linked <- Links, is_pid(Linked), Linked =/= self()],
        {Closer, Closed} = spawn_monitor(fun() -> close(Channel) end),
        [receive {'DOWN', Monitor, process, _, _} -> ok after ?PATIENCE -> error(connects) end
         || Monitor <- Monitors],
        true = erlang:resume_process(Pid),
        receive {'DOWN', Closed, process, Closer, normal} -> ok after ?PATIENCE -> error(open) end,
        [] = await_empty(Folder, 1500)
    end).

%% It would run without a guard, which looks for it once and removes the folder then. Here the
%% server makes itself known in that moment.
a_server_that_is_late_does_not_begin(Config) ->
    Folder = folder(Config),
    [Programs, Pipes, Removing] = [filename:join(Folder, Name)
                                   || Name <- ["programs", "pipes", "removing"]],
    ok = file:make_dir(Programs),
    Wait = fun(Tries) ->
        ["left=", Tries, "; while [ ! -e \"$file\" ] && [ $left -gt 0 ]; do sleep 0.02; "
         "left=$((left - 1)); done\n"]
    end,
    [begin
         File = filename:join(Programs, Name),
         ok = file:write_file(File, ["#!/bin/sh\n", Before, "exec /bin/", Name, " \"$@\"\n"]),
         ok = file:change_mode(File, 8#755)
     end || {Name, Before} <-
                [{"mv", ["case $2 in */server) file=", Removing, "; ", Wait("1500"), ";; esac\n"]},
                 %% It comes only if the server may begin.
                 {"rm", ["touch ", Removing, "; file=", Pipes, "/server; ", Wait("100")]}]],
    Script = fun(Arguments) ->
        open_port({spawn_executable, "/bin/sh"},
                  [{args, [filename:join(code:priv_dir(erlmcp), "erlmcp_stdio.sh") | Arguments]},
                   {env, [{"PATH", Programs ++ ":" ++ os:getenv("PATH")}]}, exit_status])
    end,
    Maker = Script(["make", Pipes]),
    receive {Maker, {data, _}} -> ok after ?PATIENCE -> error(no_folder) end,
    true = port_command(Maker, "taken\n"),
    Server = Script(["run", Pipes, "true"]),
    Guard = Script(["guard", Pipes, "100"]),
    true = port_command(Guard, "end\n"),
    receive {Guard, {exit_status, 0}} -> ok after ?PATIENCE -> error(guarded) end,
    receive {Server, {exit_status, 126}} -> ok after ?PATIENCE -> error(begun) end,
    {ok, Left} = file:list_dir(Folder),
    ["programs", "removing"] = lists:sort(Left).

with_folder(Config, Fun) ->
    Folder = folder(Config),
    Before = os:getenv("TMPDIR"),
    true = os:putenv("TMPDIR", Folder),
    try
        Fun(Folder)
    after
        case Before of
            false -> os:unsetenv("TMPDIR");
            _ -> os:putenv("TMPDIR", Before)
        end
    end.

child(Program) ->
    child(Program, #{}).

child(Program, Options) ->
    open(erlmcp_line_channel, {stdio, ["sh", "-c", unicode:characters_to_binary(Program)]},
         Options).

%% A child that has said that it is ready.
ready(Program) ->
    ready(Program, 1000).

ready(Program, StopMs) ->
    Ready = "{\"jsonrpc\":\"2.0\",\"method\":\"ready\"}",
    Channel = child(string:replace(Program, "echo ready", ["echo '", Ready, "'"]),
                    #{stop_ms => StopMs}),
    _ = up(Channel),
    {notification, ~"ready", _} = owned(Channel),
    Channel.

%% Longer than what others are waited for.
message_within(Timeout, {_, {_, Ref, _}}) ->
    receive
        {Ref, {message, Message}, _} -> Message
    after Timeout ->
        error(nothing_came)
    end.

close({Module, Pid, _}) ->
    ok = Module:close(Pid).

folder(Config) ->
    proplists:get_value(folder, Config).

root() ->
    root(filename:dirname(code:which(?MODULE))).

root(Folder) ->
    case filelib:is_file(filename:join(Folder, "bin/erlmcp")) of
        true -> Folder;
        false -> root(filename:dirname(Folder))
    end.

pids(File) ->
    {ok, Text} = file:read_file(File),
    string:lexemes(binary_to_list(Text), " \n").

alive(Pids) ->
    [Pid || Pid <- Pids, os:cmd("kill -0 " ++ Pid ++ " 2>/dev/null && echo alive") =/= "",
            not is_zombie(Pid)].

%% Dead, but its parent has not noticed. In a container that may be a parent without a wait.
is_zombie(Pid) ->
    string:find(os:cmd("ps -o stat= -p " ++ Pid), "Z") =/= nomatch.

await_dead(Pids, Left) ->
    await(fun() -> alive(Pids) end, Left).

await_empty(Folder, Left) ->
    await(fun() ->
        {ok, Names} = file:list_dir(Folder),
        [Name || "erlmcp-" ++ _ = Name <- Names]
    end, Left).

await(Look, Left) ->
    case Look() of
        [] -> [];
        _ when Left > 0 -> receive after 20 -> await(Look, Left - 1) end;
        Found -> Found
    end.

await_pids(File, Left) ->
    case filelib:is_file(File) of
        true -> pids(File);
        false when Left > 0 -> receive after 20 -> await_pids(File, Left - 1) end
    end.

%% The guards of this node's children.
guards() ->
    [Pid || Port <- erlang:ports(), {os_pid, Number} <- [erlang:port_info(Port, os_pid)],
            is_integer(Number), Pid <- [integer_to_list(Number)],
            string:find(os:cmd("ps -o args= -p " ++ Pid), "erlmcp_stdio.sh guard") =/= nomatch].

%% The standard error of the children is sent to the test.
logged() ->
    Test = self(),
    ok = logger:add_handler(?MODULE, ?MODULE, #{config => Test}).

log(#{msg := {report, #{what := server_stderr} = Report}}, #{config := Test}) ->
    Test ! {logged, Report},
    ok;
log(_, _) ->
    ok.

next_logged() ->
    receive
        {logged, Report} -> Report
    after ?PATIENCE ->
        error(nothing_logged)
    end.

all_logged() ->
    receive
        {logged, Report} -> [Report | all_logged()]
    after 0 ->
        []
    end.
