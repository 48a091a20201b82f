%% A suite whose cases have a server each (`m:erlmcp_test_sse_server`).

suite() ->
    [{timetrap, {minutes, 4}}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp, gun], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{server, erlmcp_test_sse_server:start(#{})} | Config].

end_per_testcase(_, Config) ->
    _ = logger:remove_handler(?MODULE),
    erlmcp_test_http:stop(erlmcp_test_sse_server:server(Config)).
