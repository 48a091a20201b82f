-module(erlmcp_slow_consumer).
-moduledoc "A client that was cut since it does not read, for the log: refusal 1055.".

-export([cut/1]).

-doc """
Says so: `limit` is the bound that it passed, whatever else is given says of what. A peer that does
not read can make it be said as often as it likes to connect, so it is one line and no incident.
""".
-spec cut(#{limit := term(), atom() => term()}) -> ok.
cut(Report) ->
    logger:warning(Report#{what => slow_consumer, refusal => 1055}).
