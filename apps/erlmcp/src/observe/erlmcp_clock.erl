-module(erlmcp_clock).
-moduledoc "The time that deadlines and pauses are reckoned in: it never runs back. Internal.".

-export([now_ms/0]).

-doc "Returns the monotonic time in milliseconds.".
-spec now_ms() -> integer().
now_ms() ->
    erlang:monotonic_time(millisecond).
