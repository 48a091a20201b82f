-module(erlmcp_slow_consumer).
-moduledoc """
Reports a client that did not read, so that its connection or stream was closed (refusal 1055).
The report goes to the log, and to the handlers of the event `slow_consumer`.

Internal.
""".

-export([cut/2]).

-doc """
Reports a client of the server with the key `Key`, whose connection or stream the caller closes.
`Limit` is the bound that the client has exceeded: the name of a limit, such as `unread_bytes`, or
its value. Several limits are a map with their values.
""".
-spec cut(Key :: reference(), Limit :: term()) -> ok.
cut(Key, Limit) ->
    ok = erlmcp_log:report(warning, #{what => slow_consumer, refusal => 1055, limit => Limit}, Key),
    erlmcp_event_handler:emit(Key, slow_consumer, #{limit => Limit}).
