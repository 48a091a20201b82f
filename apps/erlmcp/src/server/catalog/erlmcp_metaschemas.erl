-module(erlmcp_metaschemas).
-moduledoc """
The compiled meta-schemas that schemas are checked against, kept for the whole node: compiling them
takes a hundred times as long as compiling the schema of a tool. A persistent term, made when the
first server starts.

Internal.
""".

-export([compiled/0]).

-doc "Returns what `erlmcp_schema:metaschemas/0` gives, made once.".
-spec compiled() -> #{Uri :: binary() => erlmcp_schema:compiled()}.
compiled() ->
    case persistent_term:get(?MODULE, undefined) of
        undefined ->
            %% Two that come first at once put the same value.
            Compiled = erlmcp_schema:metaschemas(),
            ok = persistent_term:put(?MODULE, Compiled),
            Compiled;
        Compiled ->
            Compiled
    end.
