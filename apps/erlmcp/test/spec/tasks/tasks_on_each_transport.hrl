%% A suite of tasks whose every case is run over HTTP and TCP, but for those of `?OF_HTTP`, at a
%% server of its own (`m:erlmcp_test_tasks`).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [{group, http}, {group, tcp}].

groups() ->
    Cases = erlmcp_test_suite:cases(?MODULE),
    [{http, Cases}, {tcp, Cases -- ?OF_HTTP}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_group(Transport, Config) -> [{transport, Transport} | Config].

end_per_group(_, _) -> ok.

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_tasks:start(#{})} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_client:stop(erlmcp_test_tasks:server(Config)).
