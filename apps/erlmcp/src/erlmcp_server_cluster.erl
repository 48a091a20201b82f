-module(erlmcp_server_cluster).
-moduledoc """
The behaviour of a cluster, for the option `cluster`: the servers with one `id` on several nodes are
one server for their clients. `m:erlmcp_cluster` is such a module, in an application of its own. A
server without the option asks nobody.

The callbacks are called by the processes that need their answers: connections, calls and the
server's own. The `State` is what `c:init/2` returned, and every process of the server has it. It
must be small, and hold no secret.
""".

-doc """
Returns the state of the server that starts with this `id` and these limits. The server's supervisor
calls it.
""".
-callback init(Id :: term(), erlmcp:limits()) -> State :: term().
