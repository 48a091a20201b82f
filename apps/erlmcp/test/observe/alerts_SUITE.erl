-module(alerts_SUITE).
-moduledoc """
The files of `ops/`: Prometheus loads the rules of alerts, and they fire when they are to. The
dashboard asks for figures that there are. A real Prometheus scrapes a server, and tells the test,
as its Alertmanager, that an alert fires.
""".

-export([suite/0, all/0, init_per_suite/1, end_per_suite/1]).
-export([rules_fire_as_tested/1, every_rule_is_tested/1, figures_are_there/1,
         dashboard_is_whole/1, a_real_alert_fires/1]).

-define(PATIENCE, 60_000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [rules_fire_as_tested, every_rule_is_tested, figures_are_there, dashboard_is_whole,
     a_real_alert_fires].

init_per_suite(Config) ->
    [{programs, erlmcp_test_installed:path("prometheus")}
     | erlmcp_test_applications:start([erlmcp], Config)].

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

rules_fire_as_tested(Config) ->
    {0, _} = promtool(["test", "rules", ops("alerts_test.yml")], Config),
    {0, _} = promtool(["check", "config", ops("prometheus.yml")], Config).

%% Each has a test in which it fires, and one in which it does not.
every_rule_is_tested(_) ->
    Tests = re:split(text("alerts_test.yml"), ~"\n  - name: "),
    [_ | _] = Alerts = words(~"alert: (\\w+)", text("alerts.yml")),
    Fires = fun(Test) -> re:run(Test, ~"exp_labels") =/= nomatch end,
    Stays = fun(Test) -> re:run(Test, ~"exp_alerts: \\[\\]") =/= nomatch end,
    [] = [Alert || Alert <- Alerts, Of <- [Fires, Stays],
                   not lists:any(Of, [Test || Test <- Tests,
                                              binary:match(Test, <<"alertname: ", Alert/binary>>)
                                                  =/= nomatch])].

%% A misspelt name is no error to Prometheus: it finds nothing.
figures_are_there(_) ->
    ok = prometheus_registry:register_collector(erlmcp_prometheus),
    Server = erlmcp_test_http:start(#{}),
    %% The page of a server without requests lacks those of requests.
    Known = words(~"# TYPE (\\w+)", prometheus_text_format:format())
        ++ lists:append([[Name, <<Name/binary, "_bucket">>, <<Name/binary, "_count">>,
                          <<Name/binary, "_sum">>]
                         || {Family, _, _, _} <- erlmcp_prometheus:families(),
                            Name <- [atom_to_binary(Family)]]),
    Named = words(~"\\b((?:mcp_(?:server|client|node)|erlang_vm)_\\w+)",
                  [text("alerts.yml"), text("alerts_test.yml"), text("grafana/erlmcp.json")]),
    true = length(Named) > 15,
    [] = Named -- Known,
    ok = erlmcp_test_http:stop(Server).

dashboard_is_whole(_) ->
    #{~"templating" := #{~"list" := Variables}, ~"panels" := Panels} = dashboard(),
    [~"datasource"] = [Name || #{~"type" := ~"datasource", ~"name" := Name} <- Variables],
    Sources = [Source || #{~"datasource" := #{~"uid" := Source}} <- Panels ++ Variables],
    [~"${datasource}"] = lists:usort(Sources),
    Ids = [Id || #{~"id" := Id} <- Panels],
    [] = Ids -- lists:usort(Ids),
    %% No panel covers another one.
    Cells = [{X, Y} || #{~"gridPos" := #{~"x" := Left, ~"y" := Top, ~"w" := Wide, ~"h" := High}}
                           <- Panels,
                       X <- lists:seq(Left, Left + Wide - 1), Y <- lists:seq(Top, Top + High - 1)],
    [] = Cells -- lists:usort(Cells),
    [] = [Cell || {X, _} = Cell <- Cells, X > 23].

a_real_alert_fires(Config) ->
    Server = erlmcp_test_http:start(#{id => ~"shop", limits => #{connections => 20},
                                      listen => [{http, #{metrics => true}}]}),
    {ok, Manager} = gen_tcp:listen(0, [binary, {ip, {127, 0, 0, 1}}, {active, false},
                                       {packet, http_bin}]),
    Folder = configured(Server, Manager, Config),
    Port = prometheus(Folder, Config),
    try
        Prometheus = #{port => listens(Port)},
        Sockets = [erlmcp_test_http:connect(Server) || _ <- lists:seq(1, 17)],
        #{~"annotations" := #{~"summary" := Summary}} = alert(~"McpBoundNearlyMet", Manager),
        {match, _} = re:run(Summary, ~"^shop at \\S+ uses (85|90)% of its bound of connections"),
        %% Prometheus understands every question of the dashboard.
        #{~"panels" := Panels} = dashboard(),
        [_ | _] = Questions = [Question || #{~"targets" := Targets} <- Panels,
                                           #{~"expr" := Question} <- Targets],
        [] = [{Question, Status} || Question <- Questions,
                                    Status <- [asked(Question, Prometheus)], Status =/= 200],
        400 = asked(~"rate(", Prometheus),
        [ok = erlmcp_test_http:close(Socket) || Socket <- Sockets]
    after
        port_close(Port)
    end,
    ok = gen_tcp:close(Manager),
    ok = erlmcp_test_http:stop(Server).

%% The files of `ops/` with our addresses and short times.
configured(#{port := Target}, Manager, Config) ->
    {ok, Alerts} = inet:port(Manager),
    Folder = proplists:get_value(priv_dir, Config),
    Rules = re:replace(text("alerts.yml"), ~"for: \\d+m", ~"for: 0s", [global]),
    ok = file:write_file(filename:join(Folder, "alerts.yml"), Rules),
    Given = [{~"_interval: 15s", ~"_interval: 200ms"}, {~":9464", [~":", integer_to_list(Target)]},
             {~":9093", [~":", integer_to_list(Alerts)]}],
    ok = file:write_file(filename:join(Folder, "prometheus.yml"),
                         lists:foldl(fun({Old, New}, Text) ->
                             re:replace(Text, Old, New, [global])
                         end, text("prometheus.yml"), Given)),
    Folder.

%% The shell ends Prometheus when the port is closed, even with a process that was killed.
prometheus(Folder, Config) ->
    Run = "\"$@\" & read -r _; kill $!; wait $!",
    open_port({spawn_executable, "/bin/sh"},
              [{args, ["-c", Run, "sh", program("prometheus", Config),
                       "--config.file=" ++ filename:join(Folder, "prometheus.yml"),
                       "--storage.tsdb.path=" ++ filename:join(Folder, "data"),
                       "--web.listen-address=127.0.0.1:0"]},
               {line, 10_000}, stderr_to_stdout, binary]).

listens(Port) ->
    receive
        {Port, {data, {_, Line}}} ->
            case re:run(Line, ~"Listening on.*127\\.0\\.0\\.1:(\\d+)",
                        [{capture, all_but_first, binary}]) of
                {match, [Number]} -> binary_to_integer(Number);
                nomatch -> ct:log("~ts", [Line]), listens(Port)
            end
    after ?PATIENCE ->
        error(no_prometheus)
    end.

%% The next alert of this name that Prometheus reports.
alert(Name, Manager) ->
    {ok, Socket} = gen_tcp:accept(Manager, ?PATIENCE),
    {ok, {http_request, 'POST', {abs_path, ~"/api/v2/alerts"}, _}} =
        gen_tcp:recv(Socket, 0, ?PATIENCE),
    Alerts = json:decode(body(Socket, 0)),
    ok = gen_tcp:send(Socket, ~"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"),
    ok = gen_tcp:close(Socket),
    case [Alert || #{~"labels" := #{~"alertname" := Is}} = Alert <- Alerts, Is =:= Name] of
        [Alert | _] -> Alert;
        [] -> alert(Name, Manager)
    end.

body(Socket, Length) ->
    case gen_tcp:recv(Socket, 0, ?PATIENCE) of
        {ok, {http_header, _, 'Content-Length', _, Text}} ->
            body(Socket, binary_to_integer(Text));
        {ok, {http_header, _, _, _, _}} ->
            body(Socket, Length);
        {ok, http_eoh} ->
            ok = inet:setopts(Socket, [{packet, raw}]),
            {ok, Body} = gen_tcp:recv(Socket, Length, ?PATIENCE),
            Body
    end.

%% The status of Prometheus's answer to a question of the dashboard, with its variables filled in.
asked(Question, Prometheus) ->
    Filled = lists:foldl(fun({Variable, Value}, Text) ->
        binary:replace(Text, Variable, Value, [global])
    end, Question, [{~"$__rate_interval", ~"1m"}, {~"$job", ~"erlmcp"}, {~"$instance", ~".*"},
                    {~"$server", ~".*"}]),
    Socket = erlmcp_test_http:connect(Prometheus),
    ok = erlmcp_test_http:write(Socket, [~"GET /api/v1/query?", uri_string:compose_query(
                                             [{~"query", Filled}]),
                                         ~" HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"]),
    {Status, _} = erlmcp_test_http:head(Socket),
    ok = erlmcp_test_http:close(Socket),
    Status.

promtool(Arguments, Config) ->
    Port = open_port({spawn_executable, program("promtool", Config)},
                     [{args, Arguments}, exit_status, stderr_to_stdout, binary]),
    said(Port, []).

said(Port, Said) ->
    receive
        {Port, {data, Data}} -> said(Port, [Said, Data]);
        {Port, {exit_status, Status}} -> {Status, iolist_to_binary(Said)}
    after ?PATIENCE ->
        error(promtool_does_not_end)
    end.

program(Name, Config) -> filename:join(proplists:get_value(programs, Config), Name).

ops(File) -> filename:join([erlmcp_test_page:root(), "ops", File]).

text(File) ->
    {ok, Text} = file:read_file(ops(File)),
    Text.

dashboard() -> json:decode(text("grafana/erlmcp.json")).

%% What the pattern's group has matched, each once.
words(Pattern, Text) ->
    {match, Found} = re:run(Text, Pattern, [global, {capture, all_but_first, binary}]),
    lists:usort(lists:append(Found)).
