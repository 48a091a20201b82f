-module(erlmcp_refusal).
-moduledoc """
The refusals of erlmcp, for requests that it cannot or must not serve: the table of all refusals,
and their encoding. Pure.

A refusal has a number and a name of its own. The JSON-RPC code of its error is its detail `code`,
for which callers take a code that MCP defines, or else its number. The `data` of the error has the
number as `refusal`, the `name`, and the details that apply. No stack, pid or path belongs there.

Internal.
""".

-export([new/2, new/3]).
-export([is_refusal/1, is_fault/1, encode/1, status/1, with_status/2, retry_after/1,
         not_before/2, scopes/1, name/1, number/1, code/1, message/1]).
-export([table/0]).

-export_type([refusal/0, row/0]).

-type row() :: #{
    name := erlmcp:refusal_name(),
    number := 1001..1089,
    status := 400..599,
    severity := warning | error | critical,
    retry := delay | fix | never
}.
-type refusal() ::
    {erlmcp:refusal_name(), row_values(), Message :: binary(), erlmcp:refusal_details()}.
-type row_values() :: {1001..1089, 400..599, warning | error | critical, delay | fix | never}.

%% name => {number, HTTP status, severity, when a retry may help}
-define(TABLE, #{
    queue_cap_exceeded => {1001, 503, error, delay},
    queue_byte_cap_exceeded => {1002, 503, error, delay},
    queue_tenant_cap_exceeded => {1003, 429, error, delay},
    buffer_overflow => {1004, 503, critical, delay},
    backpressure_active => {1005, 503, warning, delay},
    auth_failed => {1011, 401, error, fix},
    auth_expired => {1012, 401, error, fix},
    auth_invalid_credentials => {1013, 401, error, fix},
    authz_forbidden => {1014, 403, error, never},
    auth_missing => {1015, 401, error, fix},
    session_invalid => {1016, 404, error, fix},
    invalid_params => {1021, 400, error, fix},
    invalid_json_schema => {1022, 400, error, fix},
    invalid_uri => {1023, 400, error, fix},
    invalid_content_type => {1024, 415, error, fix},
    invalid_header => {1025, 400, error, fix},
    invalid_session_id => {1026, 400, error, fix},
    invalid_protocol_version => {1027, 400, error, fix},
    missing_required_field => {1028, 400, error, fix},
    field_type_mismatch => {1029, 400, error, fix},
    path_traversal_detected => {1036, 400, critical, never},
    path_invalid => {1037, 400, error, fix},
    symlink_traversal_detected => {1038, 400, critical, never},
    uri_out_of_bounds => {1039, 400, error, never},
    canonical_path_violation => {1040, 400, error, fix},
    resource_not_found => {1046, 404, warning, never},
    resource_duplicate => {1047, 409, warning, never},
    tool_not_found => {1048, 404, warning, never},
    tool_duplicate => {1049, 409, warning, never},
    prompt_not_found => {1050, 404, warning, never},
    prompt_duplicate => {1051, 409, warning, never},
    entity_duplicate => {1052, 409, warning, never},
    slow_consumer => {1055, 503, warning, delay},
    rate_limit_exceeded => {1056, 429, error, delay},
    rate_limit_per_second => {1057, 429, error, delay},
    rate_limit_per_minute => {1058, 429, error, delay},
    quota_exceeded => {1059, 429, error, delay},
    concurrent_limit_exceeded => {1060, 429, error, delay},
    protocol_error => {1066, 400, error, fix},
    transport_error => {1067, 503, error, delay},
    message_too_large => {1068, 413, error, fix},
    timeout => {1069, 503, warning, delay},
    unsupported_encoding => {1070, 415, error, fix},
    server_uninitialized => {1076, 503, error, fix},
    server_shutting_down => {1077, 503, warning, delay},
    service_unavailable => {1078, 503, warning, delay},
    internal_error => {1079, 500, critical, delay},
    dependency_unavailable => {1080, 503, warning, delay},
    circuit_breaker_open => {1086, 503, warning, delay},
    health_check_failed => {1087, 503, warning, delay},
    degraded_service => {1088, 503, warning, delay},
    resource_exhausted => {1089, 503, critical, delay}
}).

-doc """
Returns the refusal `Name` of the table with `Message`, a sentence for the person who can fix the
cause. `Message` must be UTF-8, since other bytes cannot be encoded. Raises `{badkey, Name}` if the
table has no such name.
""".
-spec new(Name :: erlmcp:refusal_name(), Message :: iodata()) -> refusal().
new(Name, Message) ->
    new(Name, Message, #{}).

-doc "Returns a refusal as `new/2` does, with details (`t:erlmcp:refusal_details/0`).".
-spec new(erlmcp:refusal_name(), iodata(), erlmcp:refusal_details()) -> refusal().
new(Name, Message, Details) ->
    {Name, maps:get(Name, ?TABLE), unicode:characters_to_binary(Message), Details}.

-doc "Returns `true` if a term is a refusal.".
-spec is_refusal(term()) -> boolean().
is_refusal({Name, Row, Message, Details}) ->
    is_binary(Message) andalso is_map(Details) andalso maps:find(Name, ?TABLE) =:= {ok, Row};
is_refusal(_) ->
    false.

-doc "Encodes a refusal as the JSON of a JSON-RPC `error` member.".
-spec encode(refusal()) -> iodata().
encode({Name, {Number, _, _, _}, Message, Details} = Refusal) ->
    Extra = maps:get(data, Details, #{}),
    Bounds = #{Key => maps:get(Field, Details)
               || {Field, Key} <- [{retry_after_ms, ~"retryAfterMs"}, {limit, ~"limit"},
                                   {observed, ~"observed"}, {incident, ~"incident"},
                                   {scopes, ~"scopes"}],
                  is_map_key(Field, Details)},
    Data = maps:merge(Extra, Bounds#{~"refusal" => Number, ~"name" => Name}),
    Error = #{~"code" => code(Refusal), ~"message" => Message, ~"data" => Data},
    case Details of
        %% The data of a handler may contain any terms.
        #{data := _} -> erlmcp_json:encode(Error);
        #{} -> json:encode(Error)
    end.

-doc "Returns the HTTP status of a refusal: that of its details, or else that of the table.".
-spec status(refusal()) -> 200..599.
status({_, {_, Status, _, _}, _, Details}) ->
    maps:get(status, Details, Status).

-doc "Returns the refusal with the HTTP status `Status`.".
-spec with_status(Status :: 200..599, refusal()) -> refusal().
with_status(Status, {Name, Row, Message, Details}) ->
    {Name, Row, Message, Details#{status => Status}}.

-doc """
Returns the value of the `Retry-After` header: the `retry_after_ms` of the refusal in seconds,
rounded up, at least 1; `undefined` if the refusal has none.
""".
-spec retry_after(refusal()) -> undefined | pos_integer().
retry_after({_, _, _, #{retry_after_ms := Milliseconds}}) ->
    max(1, (Milliseconds + 999) div 1000);
retry_after(_) ->
    undefined.

-doc """
Returns the refusal with a `retry_after_ms` of at least `RetryMs`. A refusal without
`retry_after_ms` stays as it is.
""".
-spec not_before(RetryMs :: non_neg_integer(), refusal()) -> refusal().
not_before(RetryMs, {Name, Row, Message, #{retry_after_ms := Known} = Details}) ->
    {Name, Row, Message, Details#{retry_after_ms := max(RetryMs, Known)}};
not_before(_, Refusal) ->
    Refusal.

-doc """
Returns the scopes that the refused request must have. Returns `undefined` if the refusal is not for
a lack of scopes.
""".
-spec scopes(refusal()) -> undefined | [binary(), ...].
scopes({_, _, _, Details}) ->
    maps:get(scopes, Details, undefined).

-doc "Returns the name of a refusal, as the table has it.".
-spec name(refusal()) -> erlmcp:refusal_name().
name({Name, _, _, _}) -> Name.

-doc "Returns the JSON-RPC code of a refusal.".
-spec code(refusal()) -> integer().
code({_, {Number, _, _, _}, _, Details}) ->
    maps:get(code, Details, Number).

-doc "Returns the number of a refusal, as the table has it.".
-spec number(refusal()) -> 1001..1089.
number({_, {Number, _, _, _}, _, _}) -> Number.

-doc "Returns the sentence of a refusal, its JSON-RPC `message`.".
-spec message(refusal()) -> binary().
message({_, _, Message, _}) -> Message.

-doc """
Returns `true` if a refusal is the server's own fault, and counts against its error budget. Its name
is `timeout`, or its row has a status of 500 or more, a severity above `warning`, and the retry
`delay`. A refusal whose detail `fault` is `false` does not count in any case.
""".
-spec is_fault(refusal()) -> boolean().
%% Errors of callers, limits of one client, and the refusals of a drain are no faults.
is_fault({_, _, _, #{fault := false}}) -> false;
is_fault({timeout, _, _, _}) -> true;
is_fault({_, {_, Status, Severity, delay}, _, _}) -> Status >= 500 andalso Severity =/= warning;
is_fault(_) -> false.

-doc "Returns the table of all refusals, sorted by number.".
-spec table() -> [row()].
table() ->
    Rows = [#{name => Name, number => Number, status => Status, severity => Severity,
              retry => Retry}
            || Name := {Number, Status, Severity, Retry} <- ?TABLE],
    lists:sort(fun(#{number := A}, #{number := B}) -> A =< B end, Rows).
