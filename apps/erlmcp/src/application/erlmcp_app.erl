-module(erlmcp_app).
-moduledoc "The OTP application. It has no listeners before a server starts. Internal.".

-behaviour(application).

-export([start/2, stop/1]).

-doc false.
start(_, _) ->
    erlmcp_sup:start_link().

-doc false.
stop(_) ->
    ok.
