-module(erlmcp_metaschemas).
-moduledoc """
The compiled meta-schemas that schemas are checked against. The node compiles them when its first
server starts, and keeps them in a persistent term.

Internal.
""".

-export([compiled/0]).

-doc "Returns the result of `erlmcp_schema:metaschemas/0`, which the node keeps.".
-spec compiled() -> #{Uri :: binary() => erlmcp_schema:compiled()}.
compiled() ->
    case persistent_term:get(?MODULE, undefined) of
        undefined ->
            %% Two processes that do this at the same time store equal values.
            Compiled = erlmcp_schema:metaschemas(),
            ok = persistent_term:put(?MODULE, Compiled),
            Compiled;
        Compiled ->
            Compiled
    end.
