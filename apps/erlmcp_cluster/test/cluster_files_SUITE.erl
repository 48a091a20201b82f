-module(cluster_files_SUITE).
-moduledoc """
The files of `ops/cluster` for Kubernetes, containers and systemd are what these take, and start
`erlmcp serve` with options that it has. No container or unit is started. Each case also sees a
fault refused.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([kubernetes_objects_fit_their_schemas/1, the_dockerfile_has_no_warning/1,
         the_compose_file_fits_its_schema/1, systemd_takes_the_unit/1,
         options_are_those_of_serve/1, clients_are_known_behind_the_proxy/1]).

-include_lib("stdlib/include/assert.hrl").

suite() -> [{timetrap, {minutes, 5}}].

all() ->
    [kubernetes_objects_fit_their_schemas, the_dockerfile_has_no_warning,
     the_compose_file_fits_its_schema, systemd_takes_the_unit, options_are_those_of_serve,
     clients_are_known_behind_the_proxy].

init_per_suite(Config) ->
    [{programs, filename:join(erlmcp_test_installed:path("ops_tools"), "bin")},
     {compose, erlmcp_test_installed:path("go_tool", ["compose", "compose-go"])} | Config].

end_per_suite(_) ->
    ok.

%% The name of a field that Kubernetes does not know, and a number that is none.
kubernetes_objects_fit_their_schemas(Config) ->
    Check = fun(Text) ->
        run(program(programs, "kubernetes-validate", Config),
            ["--strict", "--quiet", copy("kubernetes.yaml", Text, Config)])
    end,
    ?assertEqual({0, ~""}, Check(text("kubernetes.yaml"))),
    ?assertMatch({1, _}, Check(changed("kubernetes.yaml", ~"minReadySeconds", ~"minReadySecond"))),
    ?assertMatch({1, _}, Check(changed("kubernetes.yaml", ~"replicas: 3", ~"replicas: three"))).

the_dockerfile_has_no_warning(Config) ->
    Check = fun(Text) ->
        run(program(programs, "hadolint", Config), [copy("Dockerfile", Text, Config)])
    end,
    ?assertEqual({0, ~""}, Check(text("Dockerfile"))),
    ?assertMatch({1, _}, Check(changed("Dockerfile", ~"FROM erlang:28", ~"FROM erlang"))).

the_compose_file_fits_its_schema(Config) ->
    Check = fun(Text) ->
        run(program(compose, "compose-go", Config),
            ["-no-interpolation", copy("compose.yaml", Text, Config)])
    end,
    ?assertMatch({0, _}, Check(text("compose.yaml"))),
    ?assertMatch({1, _}, Check(changed("compose.yaml", ~"restart:", ~"restrat:"))).

%% It says what it does not know, and ends with 0. The program of the unit has to be there.
systemd_takes_the_unit(Config) ->
    case os:find_executable("systemd-analyze") of
        false ->
            {skip, "needs systemd"};
        Program ->
            Here = list_to_binary(erlmcp_test_page:root()),
            Check = fun(Text) ->
                run(Program, ["verify", "--man=no",
                              copy("erlmcp.service",
                                   binary:replace(Text, ~"/opt/erlmcp", Here, [global]), Config)])
            end,
            ?assertEqual({0, ~""}, Check(text("erlmcp.service"))),
            {_, Said} = Check(changed("erlmcp.service", ~"LimitNOFILE", ~"LimitFiles")),
            ?assertMatch({_, _}, binary:match(Said, ~"LimitFiles"))
    end.

options_are_those_of_serve(_) ->
    #{arguments := Arguments} = erlmcp_cli_serve:command(),
    Known = [list_to_binary(Long) || #{long := Long} <- Arguments],
    Unknown = fun(Text) ->
        Code = re:replace(Text, "^ *#.*$", "", [global, multiline, {return, binary}]),
        {match, Names} = re:run(Code, "-(-[a-z][a-z-]*)", [global, {capture, [1], binary}]),
        lists:usort(lists:append(Names)) -- Known
    end,
    [?assertEqual({File, []}, {File, Unknown(text(File))})
     || File <- ["kubernetes.yaml", "compose.yaml", "erlmcp.service"]],
    ?assertEqual([~"-hosts"], Unknown(changed("compose.yaml", ~"--host=", ~"--hosts="))).

%% Without the first, all clients have the address of the balancer, and share its turns and rates.
%% Without the second, a client has that address if it likes.
clients_are_known_behind_the_proxy(_) ->
    Compose = text("compose.yaml"),
    {match, [Balancer]} = re:run(Compose, "balancer:.*?ipv4_address: ([0-9.]+)",
                                 [dotall, {capture, [1], binary}]),
    {match, Nodes} = re:run(Compose, "command: .*?]", [dotall, global, {capture, first, binary}]),
    [{_, _} = binary:match(Node, <<"--trusted-proxy=", Balancer/binary, ",">>) || [Node] <- Nodes],
    3 = length(Nodes),
    [{_, _} = binary:match(text(File), Line)
     || {File, Line} <- [{"haproxy.cfg", ~"http-request del-header Forwarded"},
                         {"nginx.conf", ~B(proxy_set_header Forwarded "";)}]].

%% Files and programs.

text(File) ->
    {ok, Text} = file:read_file(filename:join([erlmcp_test_page:root(), "ops", "cluster", File])),
    Text.

changed(File, From, To) ->
    Text = text(File),
    Changed = binary:replace(Text, From, To),
    true = Changed =/= Text,
    Changed.

%% The name of a file may say what it is.
copy(File, Text, Config) ->
    Copy = filename:join(proplists:get_value(priv_dir, Config), File),
    ok = file:write_file(Copy, Text),
    Copy.

program(Folder, Name, Config) ->
    filename:join(proplists:get_value(Folder, Config), Name).

run(Program, Arguments) ->
    Port = open_port({spawn_executable, Program},
                     [{args, Arguments}, exit_status, stderr_to_stdout, binary]),
    said(Port, ~"").

said(Port, Said) ->
    receive
        {Port, {data, Data}} -> said(Port, <<Said/binary, Data/binary>>);
        {Port, {exit_status, Status}} -> {Status, Said}
    after 100_000 ->
        error({no_end, Said})
    end.
