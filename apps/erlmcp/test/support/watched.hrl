%% A suite whose cases have a watch each (`m:erlmcp_test_watch`).

suite() ->
    [{timetrap, {minutes, 4}}].

init_per_suite(Config) ->
    erlmcp_test_applications:start([erlmcp], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{watch, erlmcp_test_watch:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_watch:stop(watch(Config)).
