-module(erlmcp_cli_app).
-moduledoc """
The application of the `erlmcp` command. Servers are in its supervision tree, so that at SIGTERM
they end in order, before the applications that they depend on.
""".

-behaviour(application).

-export([start/2, stop/1]).

-doc false.
start(_Type, _Arguments) -> erlmcp_cli_sup:start_link().

-doc false.
stop(_State) -> ok.
