-module(erlmcp_test_suite).
-moduledoc "The cases of a suite, for its `all/0` and `groups/0`.".

-export([cases/1]).

-doc """
Returns the cases of a suite whose exports of one argument are all cases, besides those that
common_test calls by name.
""".
-spec cases(module()) -> [atom()].
cases(Suite) ->
    [Case || {Case, 1} <- Suite:module_info(exports),
             not lists:member(Case, [module_info, init_per_suite, end_per_suite])].
