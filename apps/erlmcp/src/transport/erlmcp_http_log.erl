-module(erlmcp_http_log).
-moduledoc """
Where cowboy logs to. Its warnings of messages for streams that have ended are left out: a session's
call outlives its stream, so they are no fault, and they carry what the call said. Those of messages
that it does not know are not all faults, either: what the socket of an HTTP/2 connection says is
heard by `m:erlmcp_http2_reads` first.
""".

-export([emergency/2, alert/2, critical/2, error/2, warning/2, notice/2, info/2, debug/2]).

-doc false.
emergency(Format, Arguments) -> logger:emergency(Format, Arguments).
-doc false.
alert(Format, Arguments) -> logger:alert(Format, Arguments).
-doc false.
critical(Format, Arguments) -> logger:critical(Format, Arguments).
-doc false.
error(Format, Arguments) -> logger:error(Format, Arguments).
-doc false.
warning("Received message" ++ _, _) ->
    ok;
warning(Format, [Message]) ->
    erlmcp_http2_reads:came(Message) orelse logger:warning(Format, [Message]),
    ok;
warning(Format, Arguments) ->
    logger:warning(Format, Arguments).
-doc false.
notice(Format, Arguments) -> logger:notice(Format, Arguments).
-doc false.
info(Format, Arguments) -> logger:info(Format, Arguments).
-doc false.
debug(Format, Arguments) -> logger:debug(Format, Arguments).
