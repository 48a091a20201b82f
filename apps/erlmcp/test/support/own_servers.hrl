%% A suite whose cases start servers themselves (`m:erlmcp_test_servers`), which end with the case.

-export([suite/0, init_per_suite/1, end_per_suite/1, init_per_testcase/2, end_per_testcase/2]).

suite() ->
    [{timetrap, {minutes, 4}}].

init_per_suite(Config) ->
    {ok, _} = application:ensure_all_started([erlmcp, inets]),
    %% Servers that cannot start say so to the log too, at length.
    #{level := Level} = logger:get_primary_config(),
    ok = logger:set_primary_config(level, none),
    [{log_level, Level} | Config].

end_per_suite(Config) ->
    ok = logger:set_primary_config(level, proplists:get_value(log_level, Config)).

init_per_testcase(_, Config) ->
    %% A server that cannot start sends its starter an exit signal, as all OTP processes do.
    process_flag(trap_exit, true),
    Config.

end_per_testcase(_, _) ->
    erlmcp_test_servers:stop_all().
