-module(erlmcp_hibernate_delay).
-moduledoc """
The time for which the process of a connection waits for its client before it hibernates. It begins
with a second. If the client comes back soon after that, the process waits half as long again as the
client took: hibernation costs more than most requests. Pure.

Internal.
""".

-export([first_ms/0, next_ms/2]).

-define(FIRST, 1_000).
%% Milliseconds between two messages of a client that is waited for.
-define(SOON, 6_000).

-doc "Returns how many milliseconds a new connection waits.".
-spec first_ms() -> pos_integer().
first_ms() -> ?FIRST.

-doc """
Returns how many milliseconds a connection waits that waited for `Waited`, hibernated, and was woken
`Slept` later. At most half as long again as six seconds.
""".
-spec next_ms(Waited :: pos_integer(), Slept :: non_neg_integer()) -> pos_integer().
next_ms(Waited, Slept) when Waited + Slept =< ?SOON -> (Waited + Slept) * 3 div 2;
next_ms(_, _) -> ?FIRST.
