-module(erlmcp_console_app).
-moduledoc "The application of the console.".

-behaviour(application).

-export([start/2, stop/1]).

-doc false.
start(_, _) -> erlmcp_console_sup:start_link().

-doc false.
stop(_) -> ok.
