-module(erlmcp_httpd_log).
-moduledoc """
The logger that cowboy uses. It drops cowboy's warnings about messages for streams that have ended.
A session's call may outlive its stream, so such messages are no fault. The warnings would also show
data of the call. A crash of a stream handler is logged without its request, which may have tokens.

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
%% The arguments have the request, with its tokens.
error("Unhandled exception ~p:~p in cowboy_stream:" ++ Callback, [Class, Reason | Arguments]) ->
    [Stack | _] = [Argument || [{_, _, _, _} | _] = Argument <- Arguments] ++ [[]],
    erlmcp_log:report(error, (erlmcp_incident:outline(Reason, Stack))#{
                                 what => stream_crashed, class => Class,
                                 callback => hd(string:lexemes(Callback, "("))});
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
