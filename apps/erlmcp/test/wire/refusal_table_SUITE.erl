-module(refusal_table_SUITE).
-moduledoc """
Refusals: their table as it was agreed on, and what each says of itself.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([refusals_are_those_of_the_table/1, refusals_say_who_they_are/1]).

-import(erlmcp_test_property, [holds/2]).

-define(CASES, 1000).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [refusals_are_those_of_the_table, refusals_say_who_they_are].

holds(Property) ->
    holds(Property, ?CASES).

decoded(Bytes) -> json:decode(iolist_to_binary(Bytes)).

%% The table as it was agreed on: code, name, HTTP status, severity, when a retry may help.
refusals_are_those_of_the_table(_) ->
    Rows = erlmcp_refusal:table(),
    [] = table() -- [{Number, Name, Status, Severity, Retry}
                     || #{number := Number, name := Name, status := Status, severity := Severity,
                          retry := Retry} <- Rows],
    true = length(table()) =:= length(Rows),
    true = lists:sort([Number || #{number := Number} <- Rows])
        =:= [Number || #{number := Number} <- Rows].

table() ->
    [{1001, queue_cap_exceeded, 503, error, delay},
     {1002, queue_byte_cap_exceeded, 503, error, delay},
     {1003, queue_tenant_cap_exceeded, 429, error, delay},
     {1004, buffer_overflow, 503, critical, delay},
     {1005, backpressure_active, 503, warning, delay},
     {1011, auth_failed, 401, error, fix},
     {1012, auth_expired, 401, error, fix},
     {1013, auth_invalid_credentials, 401, error, fix},
     {1014, authz_forbidden, 403, error, never},
     {1015, auth_missing, 401, error, fix},
     {1016, session_invalid, 404, error, fix},
     {1021, invalid_params, 400, error, fix},
     {1022, invalid_json_schema, 400, error, fix},
     {1023, invalid_uri, 400, error, fix},
     {1024, invalid_content_type, 415, error, fix},
     {1025, invalid_header, 400, error, fix},
     {1026, invalid_session_id, 400, error, fix},
     {1027, invalid_protocol_version, 400, error, fix},
     {1028, missing_required_field, 400, error, fix},
     {1029, field_type_mismatch, 400, error, fix},
     {1036, path_traversal_detected, 400, critical, never},
     {1037, path_invalid, 400, error, fix},
     {1038, symlink_traversal_detected, 400, critical, never},
     {1039, uri_out_of_bounds, 400, error, never},
     {1040, canonical_path_violation, 400, error, fix},
     {1046, resource_not_found, 404, warning, never},
     {1047, resource_duplicate, 409, warning, never},
     {1048, tool_not_found, 404, warning, never},
     {1049, tool_duplicate, 409, warning, never},
     {1050, prompt_not_found, 404, warning, never},
     {1051, prompt_duplicate, 409, warning, never},
     {1052, entity_duplicate, 409, warning, never},
     {1055, slow_consumer, 503, warning, delay},
     {1056, rate_limit_exceeded, 429, error, delay},
     {1057, rate_limit_per_second, 429, error, delay},
     {1058, rate_limit_per_minute, 429, error, delay},
     {1059, quota_exceeded, 429, error, delay},
     {1060, concurrent_limit_exceeded, 429, error, delay},
     {1066, protocol_error, 400, error, fix},
     {1067, transport_error, 503, error, delay},
     {1068, message_too_large, 413, error, fix},
     {1069, timeout, 503, warning, delay},
     {1070, unsupported_encoding, 415, error, fix},
     {1076, server_uninitialized, 503, error, fix},
     {1077, server_shutting_down, 503, warning, delay},
     {1078, service_unavailable, 503, warning, delay},
     {1079, internal_error, 500, critical, delay},
     {1080, dependency_unavailable, 503, warning, delay},
     {1086, circuit_breaker_open, 503, warning, delay},
     {1087, health_check_failed, 503, warning, delay},
     {1088, degraded_service, 503, warning, delay},
     {1089, resource_exhausted, 503, critical, delay}].

%% "`data` carries `refusal` (number), `name`, `retryAfterMs` where waiting helps, `limit` and
%% `observed` where there is a bound, and `incident`"; "`Retry-After` (seconds, rounded up)".
refusals_say_who_they_are(_) ->
    Bounds = [{retry_after_ms, ~"retryAfterMs", range(0, 100_000)}, {limit, ~"limit", integer()},
              {observed, ~"observed", integer()}, {incident, ~"incident", erlmcp_test_json:text()}],
    Details = [oneof([[], ?LET(Value, Type, [{Key, Name, Value}])]) || {Key, Name, Type} <- Bounds],
    holds(?FORALL({{Number, Name, Status, _, _}, Text, Given, Code, Data},
                  {elements(table()), erlmcp_test_json:text(), Details, oneof([none, integer()]),
                   erlmcp_test_json:object()},
                  begin
                      All = lists:append(Given),
                      Refusal = erlmcp_refusal:new(Name, Text, maps:from_list(
                          [{data, Data}] ++ [{code, Code} || Code =/= none]
                          ++ [{Key, Value} || {Key, _, Value} <- All])),
                      #{~"code" := Sent, ~"message" := Text, ~"data" := Members} =
                          decoded(erlmcp_refusal:encode(Refusal)),
                      Own = #{Key => Value || {_, Key, Value} <- All},
                      Seconds = case Own of
                          #{~"retryAfterMs" := Ms} -> max(1, ceil(Ms / 1000));
                          #{} -> undefined
                      end,
                      Members =:= maps:merge(Data, Own#{~"refusal" => Number,
                                                        ~"name" => atom_to_binary(Name)})
                          andalso Sent =:= case Code of none -> Number; _ -> Code end
                          andalso erlmcp_refusal:status(Refusal) =:= Status
                          andalso erlmcp_refusal:retry_after(Refusal) =:= Seconds
                  end)).
