%% Records that the modules of this folder share.

%% A subschema: its resource, its JSON pointer there (the last token first), and the targets of its
%% dynamic references. A target is the outermost subschema with the anchor's name.
-record(place, {
    uri :: binary(),
    pointer = [] :: [binary()],
    schema :: erlmcp_schema:json(),
    dialect :: erlmcp_schema_dialect:dialect(),
    scope = #{} :: #{binary() | recursive => {Uri :: binary(), Pointer :: [binary()]}}
}).

%% A validation that collects errors.
-record(run, {
    table :: tuple(),
    budget :: non_neg_integer(),
    errors = [] :: [erlmcp_schema_error:error()],
    room :: non_neg_integer(),
    %% A branch (of anyOf, for example) that is full goes on; a whole validation ends.
    branch = false :: boolean(),
    %% The evaluated parts of the current value; `off` if no schema around asks for them.
    evaluated = off :: off | erlmcp_schema_run:evaluated()
}).
