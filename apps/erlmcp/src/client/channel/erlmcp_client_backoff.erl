-module(erlmcp_client_backoff).
-moduledoc """
The pauses before a client tries a server again. Each pause has jitter, so that the clients of a
server that comes back do not all return at once.
""".

-export([after_failures/3, with_jitter/1]).

-doc """
Returns the milliseconds to wait after `Failures` in a row. The pause is `First` after one failure,
doubles with each further one up to `Longest`, and then gets its jitter.
""".
-spec after_failures(Failures :: pos_integer(), First :: pos_integer(), Longest :: pos_integer()) ->
    pos_integer().
after_failures(Failures, First, Longest) ->
    %% After sixteen doublings every bound is reached, and the number would only grow.
    with_jitter(min(First bsl min(Failures - 1, 16), Longest)).

-doc "Returns a random time between half of `Pause` and all of it, in milliseconds.".
-spec with_jitter(Pause :: pos_integer()) -> pos_integer().
with_jitter(Pause) ->
    Pause div 2 + rand:uniform(Pause div 2).
