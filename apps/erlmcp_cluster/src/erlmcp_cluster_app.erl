-module(erlmcp_cluster_app).
-moduledoc """
The callbacks of the application `erlmcp_cluster`: they start its supervisor, and forget the time
that the nodes agreed on when it has stopped.
""".

-behaviour(application).

-export([start/2, stop/1]).

-doc false.
start(_, _) -> erlmcp_cluster_sup:start_link().

-doc false.
stop(_) -> erlmcp_cluster_clock:forget().
