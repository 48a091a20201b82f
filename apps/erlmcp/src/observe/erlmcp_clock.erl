-module(erlmcp_clock).
-moduledoc "The clock of deadlines and pauses, which never goes back. Internal.".

-export([now_ms/0]).

-doc "Returns the monotonic time in milliseconds.".
-spec now_ms() -> integer().
now_ms() ->
    erlang:monotonic_time(millisecond).
