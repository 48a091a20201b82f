-module(erlmcp_slow_consumer).
-moduledoc """
Reports a client whose connection was closed because it does not read (refusal 1055), to the log and
as an event.

Internal.
""".

-export([cut/2]).

-doc """
Reports a client of the server with the key `Key`. `Limit` is the bound on unread data that the
client passed.
""".
-spec cut(Key :: reference(), Limit :: term()) -> ok.
cut(Key, Limit) ->
    ok = erlmcp_log:report(warning, #{what => slow_consumer, refusal => 1055, limit => Limit}, Key),
    erlmcp_event_handler:emit(Key, slow_consumer, #{limit => Limit}).
