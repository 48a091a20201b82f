-module(erlmcp_client_backoff).
-moduledoc """
How long a client leaves its server alone before it tries again to reach it, or to open a stream or
a subscription: twice as long after each failure, up to a bound. Pure.

Internal.
""".

-export([first_ms/0, next_ms/1, after_failures_ms/1]).

-define(FIRST, 500).
-define(LONGEST, 30_000).

-doc "Returns the milliseconds of the first pause.".
-spec first_ms() -> pos_integer().
first_ms() -> ?FIRST.

-doc "Returns the milliseconds of the pause after one of `Milliseconds`.".
-spec next_ms(Milliseconds :: pos_integer()) -> pos_integer().
next_ms(Milliseconds) when is_integer(Milliseconds) -> min(?LONGEST, Milliseconds * 2).

-doc "Returns the milliseconds of the pause after `Failures` failures in a row.".
-spec after_failures_ms(Failures :: non_neg_integer()) -> pos_integer().
after_failures_ms(Failures) -> min(?LONGEST, ?FIRST bsl min(Failures, 16)).
