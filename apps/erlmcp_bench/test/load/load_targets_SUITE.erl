-module(load_targets_SUITE).
-moduledoc "The load generator reaches each transport, and counts what goes wrong there.".

-export([suite/0, all/0, groups/0, init_per_suite/1, end_per_suite/1, init_per_group/2,
         end_per_group/2]).
-export([http2_is_loaded/1, a_window_beyond_the_limit_waits/1, large_bodies_pass_the_windows/1,
         sessions_are_held_on_http2/1, http2_in_tls_is_loaded/1, http1_in_tls_is_loaded/1,
         a_stranger_is_not_trusted/1, another_protocol_is_refused/1,
         that_nobody_is_there_is_told_late_too/1]).
-export([a_program_is_loaded/1, a_session_is_held_with_a_program/1, wrong_ids_are_seen/1,
         silence_is_a_timeout/1, an_end_is_a_failure/1, a_program_that_is_not_there/1,
         a_program_is_found_by_a_relative_path/1,
         one_that_does_not_read_holds_nobody_up/1, it_ends_with_who_has_started_it/1]).

-define(WAIT, 30_000).
-define(ANSWERED, 100).
%% Milliseconds that are waited for what does not come.
-define(PATIENCE, 300).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, stdio}].

groups() ->
    [{http, [http2_is_loaded, a_window_beyond_the_limit_waits, large_bodies_pass_the_windows,
             sessions_are_held_on_http2, http2_in_tls_is_loaded, http1_in_tls_is_loaded,
             a_stranger_is_not_trusted, another_protocol_is_refused,
             that_nobody_is_there_is_told_late_too]},
     {stdio, [a_program_is_loaded, a_session_is_held_with_a_program, wrong_ids_are_seen,
              silence_is_a_timeout, an_end_is_a_failure, a_program_that_is_not_there,
              a_program_is_found_by_a_relative_path,
              one_that_does_not_read_holds_nobody_up, it_ends_with_who_has_started_it]}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, erlmcp_bench], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

%% The server belongs to who starts it, and the group's callbacks end.
init_per_group(http, Config) ->
    {Certificate, Roots} = certificate(),
    Group = self(),
    Keeper = spawn(fun() ->
        {ok, Server} = erlmcp:start_server(#{
            handler => erlmcp_bench_fixture,
            listen => [{http, #{port => 0}}, {http, #{port => 0, tls => Certificate}},
                       {http, #{port => 0, tls => [{alpn_preferred_protocols, [~"http/1.1"]}
                                                   | Certificate]}}]}),
        Group ! {self(), [binary_to_list(Url) || #{url := Url} <- erlmcp:listeners(Server)]},
        receive {stop, From} -> From ! {self(), erlmcp:stop_server(Server)} end
    end),
    receive
        {Keeper, Urls} ->
            [Plain | Secure] = [localhost(Url) || Url <- Urls],
            [{keeper, Keeper}, {plain, Plain}, {secure, hd(Secure)},
             {http1_alone, lists:last(Secure)}, {tls, Roots} | Config]
    after ?WAIT ->
        ct:fail(no_server)
    end;
init_per_group(stdio, Config) ->
    erlmcp_test_program:init(Config).

end_per_group(http, Config) ->
    Keeper = proplists:get_value(keeper, Config),
    Keeper ! {stop, self()},
    receive
        {Keeper, ok} -> ok
    after ?WAIT ->
        ct:fail(still_running)
    end;
end_per_group(stdio, _) ->
    ok.

certificate() ->
    Key = [{digest, sha256}, {key, {namedCurve, secp256r1}}],
    San = {extensions, [{'Extension', {2, 5, 29, 17}, false, [{dNSName, "localhost"}]}]},
    #{server_config := Server, client_config := Client} = public_key:pkix_test_data(#{
        server_chain => #{root => Key, intermediates => [], peer => [San | Key]},
        client_chain => #{root => Key, intermediates => [], peer => Key}}),
    {Server, [lists:keyfind(cacerts, 1, Client)]}.

localhost(Url) ->
    lists:flatten(string:replace(Url, "127.0.0.1", "localhost")).

%% HTTP.

http2_is_loaded(Config) ->
    right({http, url(plain, Config)}, #{protocol => http2, connections => 2,
                                        loop => {closed, 16}}).

%% The server takes 100 at once.
a_window_beyond_the_limit_waits(Config) ->
    right({http, url(plain, Config)}, #{protocol => http2, loop => {closed, 300}}).

large_bodies_pass_the_windows(Config) ->
    right({http, url(plain, Config)}, #{protocol => http2, loop => {closed, 4},
                                        payload_bytes => 300_000}).

sessions_are_held_on_http2(Config) ->
    right({http, url(plain, Config)}, #{protocol => http2, loop => {closed, 4},
                                        era => {session, ~"2025-11-25"},
                                        sessions_per_connection => 3}).

http2_in_tls_is_loaded(Config) ->
    right({http, url(secure, Config)}, #{protocol => http2, connections => 2,
                                         loop => {closed, 16}, tls => tls(Config)}).

http1_in_tls_is_loaded(Config) ->
    right({http, url(secure, Config)}, #{connections => 2, tls => tls(Config)}).

a_stranger_is_not_trusted(Config) ->
    {_, Others} = certificate(),
    {error, {open, unknown_ca}} = erlmcp_load:run(#{target => {http, url(secure, Config)},
                                                    protocol => http2, tls => Others}).

another_protocol_is_refused(Config) ->
    {error, {open, no_application_protocol}} =
        erlmcp_load:run(#{target => {http, url(http1_alone, Config)}, protocol => http2,
                          tls => tls(Config)}).

%% The starting process may run again only after all connections were refused.
that_nobody_is_there_is_told_late_too(_) ->
    Busy = [spawn_link(fun busy/0) || _ <- lists:seq(1, erlang:system_info(schedulers_online))],
    {_, Monitor} = spawn_opt(fun() ->
        exit(lists:usort([erlmcp_load:run(#{target => {http, "http://127.0.0.1:1/mcp"}})
                          || _ <- lists:seq(1, 20)]))
    end, [monitor, {priority, low}]),
    [{error, {open, econnrefused}}] =
        receive {'DOWN', Monitor, process, _, Outcome} -> Outcome after ?WAIT -> nothing end,
    [begin unlink(Pid), exit(Pid, kill) end || Pid <- Busy].

busy() -> busy().

url(Which, Config) -> proplists:get_value(Which, Config).

tls(Config) -> proplists:get_value(tls, Config).

%% Programs.

a_program_is_loaded(Config) ->
    %% This process is the server, although the load does not have its number.
    #{server_rss_bytes := Rss} = right({stdio, fixture(Config)}, #{loop => {closed, 64}}),
    true = Rss > 0.

a_session_is_held_with_a_program(Config) ->
    right({stdio, fixture(Config)}, #{era => {session, ~"2025-11-25"}}).

fixture(Config) ->
    [proplists:get_value(program, Config), "serve", "erlmcp_bench_fixture", "--stdio"].

wrong_ids_are_seen(_) ->
    Program = answering("while read -r _; do " ++ reply("1999999999") ++ "; done"),
    Load = loaded_until({wrong, id}, Program, #{timeout_ms => ?PATIENCE}),
    #{answered := 0, wrong_by := #{id := _}} = erlmcp_load:stop(Load).

silence_is_a_timeout(_) ->
    Load = loaded_until({failed, timeout}, answering("exec cat >/dev/null"),
                        #{timeout_ms => ?PATIENCE, loop => {closed, 4}}),
    #{answered := 0, sent := Sent, failed := #{timeout := Sent}} = erlmcp_load:stop(Load).

an_end_is_a_failure(Config) ->
    File = file("starts", Config),
    Load = loaded_until({failed, ended}, answering("echo >>'" ++ File ++ "'; read -r _; exit 3"),
                        #{loop => {open, 20, even}}),
    %% It is started again.
    ok = awaited(fun() -> filelib:file_size(File) > 1 end),
    #{answered := 0, lost := Lost} = erlmcp_load:stop(Load),
    true = Lost > 0.

a_program_that_is_not_there(_) ->
    {error, {open, enoent}} = erlmcp_load:run(#{target => {stdio, ["no-such-program-of-erlmcp"]}}),
    {error, {open, ended}} = erlmcp_load:run(#{target => {stdio, script("exit 1")}}),
    {error, {open, timeout}} = erlmcp_load:run(#{target => {stdio, script("exec cat >/dev/null")},
                                                 timeout_ms => 100}).

a_program_is_found_by_a_relative_path(Config) ->
    ok = file:make_symlink("/bin/sh", file("shell", Config)),
    {ok, Here} = file:get_cwd(),
    [_ | _] = Relative = string:prefix(file("shell", Config), Here ++ "/"),
    [{error, {open, ended}} = erlmcp_load:run(#{target => {stdio, [Path, "-c", "exit 1"]}})
     || Path <- [Relative, "./" ++ Relative, unicode:characters_to_binary(Relative)]],
    %% A link to no file.
    Missing = file("missing", Config),
    ok = file:make_symlink("no-such-program-of-erlmcp", Missing),
    {error, {open, enoent}} =
        erlmcp_load:run(#{target => {stdio, [string:prefix(Missing, Here ++ "/")]}}).

%% And it is ended with the load, although it stays when its input is closed.
one_that_does_not_read_holds_nobody_up(Config) ->
    File = file("stays", Config),
    Load = loaded_until({failed, timeout}, answering("echo $$ >'" ++ File ++ "'; exec sleep 1000"),
                        #{timeout_ms => ?PATIENCE, loop => {closed, 4}, payload_bytes => 200_000}),
    ok = awaited(fun() -> filelib:file_size(File) > 0 end),
    #{answered := 0, sent := Sent, failed := #{timeout := Sent}} = erlmcp_load:stop(Load),
    {ok, Pid} = file:read_file(File),
    true = is_gone(string:trim(Pid)).

it_ends_with_who_has_started_it(_) ->
    Test = self(),
    {Starter, Monitor} = spawn_monitor(fun() ->
        {ok, Program} = erlmcp_load_program:start(script("exec cat >/dev/null"), []),
        Test ! {self(), erlmcp_load_program:os_pid(Program)},
        receive never -> ok end
    end),
    Pid = receive {Starter, OsPid} -> integer_to_binary(OsPid) end,
    false = is_gone(Pid),
    true = exit(Starter, kill),
    receive {'DOWN', Monitor, process, _, killed} -> ok end,
    ok = awaited(fun() -> is_gone(Pid) end).

awaited(Condition) ->
    awaited(Condition, erlang:monotonic_time(millisecond) + ?WAIT).

awaited(Condition, Deadline) ->
    case Condition() of
        true ->
            ok;
        false ->
            true = erlang:monotonic_time(millisecond) < Deadline,
            receive after 20 -> awaited(Condition, Deadline) end
    end.

is_gone(Pid) -> not filelib:is_dir(<<"/proc/", Pid/binary>>).

script(Text) -> ["/bin/sh", "-c", Text].

%% A program that answers its first request, and so is there.
answering(Then) ->
    script("read -r line; id=${line#*'\"id\":'}; " ++ reply("${id%%[!0-9]*}") ++ "; " ++ Then).

reply(Id) ->
    "printf '{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\\n' \"" ++ Id ++ "\"".

file(Name, Config) ->
    filename:join(proplists:get_value(priv_dir, Config), Name).

%% A load until the given number of requests was answered, all of them correctly.
right(Target, Plan) ->
    {ok, Load} = erlmcp_load:start(maps:merge(#{target => Target, duration_ms => ?WAIT,
                                                observer => self()}, Plan)),
    ok = answered(?ANSWERED),
    #{sent := Sent, answered := Answered} = Report = erlmcp_load:stop(Load),
    ct:log("~tp", [maps:remove(seconds, Report)]),
    true = Sent >= ?ANSWERED andalso Sent =:= Answered,
    ok = forgotten(),
    Report.

answered(0) ->
    ok;
answered(Left) ->
    receive
        {erlmcp_load, answered, _, _} -> answered(Left - 1);
        {erlmcp_load, Outcome, _, _} -> ct:fail(Outcome)
    after ?WAIT ->
        ct:fail({left, Left})
    end.

forgotten() ->
    receive {erlmcp_load, _, _, _} -> forgotten() after 0 -> ok end.

%% A load of a program, that runs until this has become of a request. It has little patience, and
%% where the program did not get to start in that time it is begun again.
loaded_until(Outcome, Program, Plan) ->
    case erlmcp_load:start(Plan#{target => {stdio, Program}, duration_ms => ?WAIT,
                                 observer => self()}) of
        {ok, Load} ->
            receive {erlmcp_load, Outcome, _, _} -> ok after ?WAIT -> ct:fail(Outcome) end,
            Load;
        {error, {open, timeout}} ->
            loaded_until(Outcome, Program, Plan)
    end.
