-module(erlmcp_test_property).
-moduledoc """
Properties in a suite. A property that does not hold fails the case with its counterexample.
""".

-export([holds/2]).

-doc "Checks a property in this many cases, and fails with a counterexample.".
-spec holds(proper:outer_test(), pos_integer()) -> ok.
holds(Property, Cases) ->
    Says = fun(Format, Arguments) -> ct:log(Format, Arguments) end,
    case proper:quickcheck(Property, [{numtests, Cases}, {max_size, 30}, {on_output, Says},
                                      long_result]) of
        true -> ok;
        Counterexample -> ct:fail({fails_for, Counterexample})
    end.
