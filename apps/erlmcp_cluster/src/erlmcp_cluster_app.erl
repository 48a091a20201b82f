-module(erlmcp_cluster_app).
-moduledoc "The application of a cluster's node.".

-behaviour(application).

-export([start/2, stop/1]).

-doc false.
start(_, _) -> erlmcp_cluster_sup:start_link().

-doc false.
stop(_) -> ok.
