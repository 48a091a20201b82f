-module(erlmcp_cli_app).
-moduledoc """
The application that the `erlmcp` command runs in. Its servers are in its supervision tree, so that
SIGTERM ends them in order, before the libraries under them.
""".

-behaviour(application).

-export([start/2, stop/1]).

-doc false.
start(_Type, _Arguments) -> erlmcp_cli_sup:start_link().

-doc false.
stop(_State) -> ok.
