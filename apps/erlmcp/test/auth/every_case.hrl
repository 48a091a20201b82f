%% What the suites of bearer tokens share: every case has an authorization server of its own.

all() ->
    [Name || {Name, 1} <- ?MODULE:module_info(exports),
             not lists:member(Name, [module_info, init_per_suite, end_per_suite])].

init_per_suite(Config) ->
    erlmcp_test_applications:start([gun, jose, cowboy, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{issuer, erlmcp_test_issuer:start()} | Config].

end_per_testcase(_, Config) ->
    erlmcp_test_issuer:stop(issuer(Config)).

issuer(Config) -> proplists:get_value(issuer, Config).
