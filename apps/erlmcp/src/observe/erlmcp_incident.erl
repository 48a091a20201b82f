-module(erlmcp_incident).
-moduledoc """
What went wrong inside, for the log alone: it is written under an id, and the peer is told the id.
""".

-export([log/1]).

-doc "Logs a report of an error, and gives the id that finds it.".
-spec log(#{what := atom(), atom() => term()}) -> Id :: binary().
log(Report) ->
    Id = binary:encode_hex(rand:bytes(8), lowercase),
    logger:error(Report#{incident => Id}),
    Id.
