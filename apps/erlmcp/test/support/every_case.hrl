%% What the suites of tokens share: every case has a server of its own, of the module ?PEER_MODULE,
%% in the configuration as ?PEER.

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    erlmcp_test_suite:cases(?MODULE).

init_per_suite(Config) ->
    erlmcp_test_applications:start([gun, jose, cowboy, inets], Config).

end_per_suite(Config) ->
    erlmcp_test_applications:stop(Config).

init_per_testcase(_, Config) ->
    [{?PEER, ?PEER_MODULE:start()} | Config].

end_per_testcase(_, Config) ->
    ?PEER_MODULE:stop(?PEER(Config)).

?PEER(Config) -> proplists:get_value(?PEER, Config).
