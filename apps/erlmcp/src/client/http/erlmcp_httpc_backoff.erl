-module(erlmcp_httpc_backoff).
-moduledoc """
How long to leave a server alone that cannot be reached: twice as long after each failure, up to a
bound, with jitter, so that the clients of a server that comes back do not all come at once. Pure
but for the dice.

Internal.
""".

-export([after_failures/1]).

-define(FIRST, 100).
-define(LONGEST, 10_000).

-doc "Milliseconds after this many failures in a row: half of the pause is certain, half is dice.".
-spec after_failures(pos_integer()) -> pos_integer().
after_failures(Failures) ->
    %% Beyond this many doublings the bound is reached, and the number would only grow.
    Doublings = min(Failures - 1, 16),
    Pause = min(?FIRST bsl Doublings, ?LONGEST),
    Pause div 2 + rand:uniform(Pause div 2).
