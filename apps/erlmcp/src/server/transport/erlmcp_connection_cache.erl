-module(erlmcp_connection_cache).
-moduledoc """
What the process of a connection has in its dictionary for the next request of its client, and does
not keep while it hibernates: it finds it out, or makes it, again with the requests that come then
(`erlmcp bench memory_connection_http memory_connection_tcp`).
""".

-export([forget/0]).

-doc "The calling process keeps nothing of the requests that it has had; it is in none.".
-spec forget() -> ok.
forget() ->
    ok = erlmcp_meta_cache:forget(),
    erlmcp_inline_call_watchdog:forget().
