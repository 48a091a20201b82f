-module(erlmcp_test_applications).
-moduledoc """
The applications that a suite needs, from its `init_per_suite/1` to its `end_per_suite/1`.
""".

-export([start/2, stop/1]).

-doc "Starts applications. Those that did not run before stand in the configuration, for `stop/1`.".
-spec start([atom()], [tuple()]) -> [tuple()].
start(Applications, Config) ->
    {ok, Started} = application:ensure_all_started(Applications),
    [{started, Started} | Config].

-doc "Stops the applications that `start/2` has started, the last one first.".
-spec stop([tuple()]) -> ok.
stop(Config) ->
    lists:foreach(fun(Application) -> ok = application:stop(Application) end,
                  lists:reverse(proplists:get_value(started, Config))).
