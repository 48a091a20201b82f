-module(erlmcp_httpd_log).
-moduledoc """
Cowboy's logger. It leaves out cowboy's warnings of messages for streams that have ended. A
session's call may outlive its stream, so these are no fault, and they carry the call's data.

Internal.
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
