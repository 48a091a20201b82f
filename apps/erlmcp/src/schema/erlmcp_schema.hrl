%% What the modules of this folder share.

%% A subschema where it stands: in which resource, under which JSON pointer (the last token first),
%% and what its dynamic references mean there: an anchor's name to the outermost place that has it.
-record(place, {
    uri :: binary(),
    pointer = [] :: [binary()],
    schema :: erlmcp_schema:json(),
    dialect :: erlmcp_schema_dialect:dialect(),
    scope = #{} :: #{binary() | recursive => {Uri :: binary(), Pointer :: [binary()]}}
}).

%% One validation that collects errors.
-record(run, {
    table :: tuple(),
    budget :: non_neg_integer(),
    errors = [] :: [erlmcp_schema_error:error()],
    room :: non_neg_integer(),
    %% A branch (of anyOf, say) that is full goes on; the whole validation ends.
    branch = false :: boolean(),
    %% Of the value that is looked at, if a schema around asks for it.
    evaluated = unasked :: unasked | erlmcp_schema_run:evaluated()
}).
