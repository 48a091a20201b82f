-module(erlmcp_incident).
-moduledoc """
What went wrong inside, for the log alone: it is written under an id, and the peer is told the id.
""".

-export([log/1, log/2]).

-doc "Logs a report of an error, and gives the id that finds it.".
-spec log(#{what := atom(), atom() => term()}) -> Id :: binary().
log(Report) ->
    Id = id(),
    ok = erlmcp_log:report(error, Report#{incident => Id}),
    Id.

-doc "The same of the server with this key.".
-spec log(#{what := atom(), atom() => term()}, Key :: reference()) -> Id :: binary().
log(Report, Key) ->
    Id = id(),
    ok = erlmcp_log:report(error, Report#{incident => Id}, Key),
    Id.

id() ->
    binary:encode_hex(rand:bytes(8), lowercase).
