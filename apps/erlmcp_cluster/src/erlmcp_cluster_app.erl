-module(erlmcp_cluster_app).
-moduledoc """
The callbacks of the application `erlmcp_cluster`. They start its supervisor and, when the
application has stopped, forget what the comparisons of clocks have found.

Internal.
""".

-behaviour(application).

-export([start/2, stop/1]).

-doc false.
start(_, _) -> erlmcp_cluster_sup:start_link().

-doc false.
stop(_) -> erlmcp_cluster_clock:forget().
