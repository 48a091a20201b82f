-module(erlmcp_console_app).
-moduledoc """
The callbacks of the application `erlmcp_console`. They start the collector, and add a handler to
the log. When the application has stopped, they remove the handler, and end the recording of recent
requests (`m:erlmcp_recent_requests`).
""".

-behaviour(application).

-export([start/2, stop/1]).

-doc false.
start(_, _) ->
    %% The collector goes on in a flood, which may leave no descriptor to read a module's file with.
    ok = erlmcp_listener:load([erlmcp_console]),
    maybe
        {ok, _} ?= erlmcp_console_sup:start_link(),
        ok = erlmcp_console_log:add(),
        {ok, whereis(erlmcp_console_sup)}
    end.

-doc false.
stop(_) ->
    %% Nobody looks at requests any more, so none is kept.
    ok = erlmcp_recent_requests:allow(0, #{}),
    erlmcp_console_log:remove().
