-module(erlmcp_hibernate_delay).
-moduledoc """
Computes how long the process of a connection waits for its client before it hibernates. The first
delay is a second. If the client sends a request soon after the process has hibernated, the next
delay is longer. It is one and a half times the time from one request to the other. Pure.

Internal.
""".

-export([first_ms/0, next_ms/2]).

-define(FIRST, 1_000).
%% The longest time between two messages, in milliseconds, for which the process waits. Hibernation
%% costs more than most requests.
-define(SOON, 6_000).

-doc "Returns the delay of a new connection, in milliseconds.".
-spec first_ms() -> pos_integer().
first_ms() -> ?FIRST.

-doc """
Returns the next delay, in milliseconds, of a connection that heard nothing for `Waited`
milliseconds, hibernated, and was woken after `Slept` milliseconds. The delay is nine seconds at
most. It is a second again if the client was silent for more than six seconds.
""".
-spec next_ms(Waited :: pos_integer(), Slept :: non_neg_integer()) -> pos_integer().
next_ms(Waited, Slept) when Waited + Slept =< ?SOON -> (Waited + Slept) * 3 div 2;
next_ms(_, _) -> ?FIRST.
