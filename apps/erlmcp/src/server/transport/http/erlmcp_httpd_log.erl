-module(erlmcp_httpd_log).
-moduledoc """
Where cowboy logs to. Its warnings of messages for streams that have ended are left out: a session's
call outlives its stream, so they are no fault, and they carry what the call said.
""".

-export([emergency/2, alert/2, critical/2, error/2, warning/2, notice/2, info/2, debug/2]).

-doc false.
emergency(Format, Arguments) -> erlmcp_log:text(emergency, Format, Arguments).
-doc false.
alert(Format, Arguments) -> erlmcp_log:text(alert, Format, Arguments).
-doc false.
critical(Format, Arguments) -> erlmcp_log:text(critical, Format, Arguments).
-doc false.
error(Format, Arguments) -> erlmcp_log:text(error, Format, Arguments).
-doc false.
warning("Received message" ++ _, _) ->
    ok;
warning(Format, Arguments) ->
    erlmcp_log:text(warning, Format, Arguments).
-doc false.
notice(Format, Arguments) -> erlmcp_log:text(notice, Format, Arguments).
-doc false.
info(Format, Arguments) -> erlmcp_log:text(info, Format, Arguments).
-doc false.
debug(Format, Arguments) -> erlmcp_log:text(debug, Format, Arguments).
