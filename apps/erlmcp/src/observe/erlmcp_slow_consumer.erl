-module(erlmcp_slow_consumer).
-moduledoc """
Reports a client that was cut because it does not read: refusal 1055, for the log and the operator.

Internal.
""".

-export([cut/2]).

-doc """
Reports a client of the server with the key `Key`. `Limit` is the bound that the client passed.
""".
-spec cut(Key :: reference(), Limit :: term()) -> ok.
cut(Key, Limit) ->
    ok = erlmcp_log:report(warning, #{what => slow_consumer, refusal => 1055, limit => Limit}, Key),
    erlmcp_event:emit(Key, slow_consumer, #{limit => Limit}).
