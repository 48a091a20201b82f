-module(erlmcp_client_backoff).
-moduledoc """
The pauses before a client tries again to reach a server, or to open a stream or a subscription. A
pause doubles after each failure, up to a bound. Each pause has jitter, so that the clients of a
restarted server do not all reconnect at once.

Internal.
""".

-export([first_ms/0, next_ms/1]).
-export([after_failures/1, after_failures/3, with_jitter/1]).

-define(FIRST, 500).
-define(LONGEST, 30_000).

-doc "Returns the milliseconds of the first pause, without jitter.".
-spec first_ms() -> pos_integer().
first_ms() -> ?FIRST.

-doc """
Returns the milliseconds of the pause that follows a pause of `Milliseconds`, without jitter: twice
as many, up to 30,000.
""".
-spec next_ms(Milliseconds :: pos_integer()) -> pos_integer().
next_ms(Milliseconds) when is_integer(Milliseconds) -> min(?LONGEST, Milliseconds * 2).

-doc """
Returns the milliseconds to wait after `Failures` failures in a row, with jitter. Without it, the
pause is 500 after one failure, and doubles with each further one, up to 30,000.
""".
-spec after_failures(Failures :: pos_integer()) -> pos_integer().
after_failures(Failures) -> after_failures(Failures, ?FIRST, ?LONGEST).

-doc """
Returns the milliseconds to wait after `Failures` failures in a row, with jitter. Without it, the
pause is `First` after one failure, and doubles with each further one, up to `Longest`.
""".
-spec after_failures(Failures :: pos_integer(), First :: pos_integer(), Longest :: pos_integer()) ->
    pos_integer().
after_failures(Failures, First, Longest) ->
    %% Sixteen doublings exceed every `Longest` in use; more would only make a large number.
    with_jitter(min(First bsl min(Failures - 1, 16), Longest)).

-doc """
Returns a random time between half of `Pause` and all of it, in milliseconds. `Pause` is at least 2.
""".
-spec with_jitter(Pause :: pos_integer()) -> pos_integer().
with_jitter(Pause) ->
    Pause div 2 + rand:uniform(Pause div 2).
