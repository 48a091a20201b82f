-module(erlmcp_test_doctests).
-moduledoc """
Runs the examples of a module's documentation, as `1> ...` in a `-doc` shows them. common_test has
the means since OTP 29.
""".

-export([run/1]).

-doc """
Runs the examples of these modules, and fails unless each of them gives what it shows. Skips the
case before OTP 29.
""".
-spec run([module()]) -> ok | {skip, string()}.
run(Modules) ->
    case code:ensure_loaded(ct_doctest) of
        %% `ct_doctest:module/1` returns `ok` or the functions that have no examples, or crashes.
        {module, _} -> lists:foreach(fun ct_doctest:module/1, Modules);
        {error, _} -> {skip, "needs OTP 29"}
    end.
