-module(erlmcp_slow_consumer).
-moduledoc """
A client that was cut since it does not read: for the log and the operator, 1055.

Internal.
""".

-export([cut/2]).

-doc "Says so of a client of the server with this key; `Limit` is the bound that it passed.".
-spec cut(Key :: reference(), Limit :: term()) -> ok.
cut(Key, Limit) ->
    ok = erlmcp_log:report(warning, #{what => slow_consumer, refusal => 1055, limit => Limit}, Key),
    erlmcp_event:emit(Key, slow_consumer, #{limit => Limit}).
