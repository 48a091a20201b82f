-module(erlmcp_test_schema).
-moduledoc """
The schemas of the five revisions told again, as far as a server that offers tools, resources,
prompts and logging needs them: required members and their types. Pure; it needs no schema file.

Source: `schema.json` of each revision.
""".

-export([check/3]).

-doc """
Checks the messages that answer a request of this method: notifications, and one response at the
end. Without a request (`none`) it is one message, a notification or an error that has no id.

What is wrong is `error({not_valid, Path, Type, Value})`.
""".
-spec check(Revision :: binary(), Method :: binary() | none, Messages :: [term()]) -> ok.
check(Revision, none, [Message]) ->
    case Message of
        #{~"method" := _} -> notification(Message, Revision);
        #{~"error" := _} -> is(type(error_response, Revision), Message, [none])
    end;
check(Revision, Method, Messages) ->
    {Before, [Response]} = lists:split(length(Messages) - 1, Messages),
    [ok = notification(Message, Revision) || Message <- Before],
    case Response of
        #{~"result" := _} ->
            is({object, [{~"jsonrpc", {const, ~"2.0"}}, {~"id", {const, 1}},
                         {~"result", type({result, Method}, Revision)}], [~"error", ~"method"]},
               Response, [Method]);
        #{~"error" := #{~"data" := #{~"refusal" := Early}}} when Early =:= 1014; Early =:= 1024 ->
            %% The body was not read.
            is(type(error_response, Revision), Response, [Method]);
        #{~"error" := _} ->
            is({object, [{~"id", {const, 1}}], [~"result", ~"method"]}, Response, [Method]),
            is(type(error_response, Revision), Response, [Method])
    end.

notification(#{~"method" := Method} = Message, Revision) ->
    is({object, [{~"jsonrpc", {const, ~"2.0"}}, {~"method", string}],
        [~"id", ~"result", ~"error"]}, Message, [Method]),
    case type({params, Method}, Revision) of
        none -> ok;
        Type -> is({object, [{~"params", Type}], []}, Message, [Method])
    end.

%% The types of schema.json. `{object, Required, Absent}` has members that the schema leaves open;
%% `{optional, Type}` may be missing.

type(error_response, Revision) ->
    {object, [{~"jsonrpc", {const, ~"2.0"}},
              {~"error", {object, [{~"code", {is, fun(Code) -> allowed(Code, Revision) end}},
                                   {~"message", string}, {~"data", object}], []}}],
     [~"result", ~"method"]};
type({params, ~"notifications/progress"}, _) ->
    {object, [{~"progressToken", {any, [string, integer]}}, {~"progress", number},
              {~"total", {optional, number}}, {~"message", {optional, string}}], []};
type({params, ~"notifications/message"}, _) ->
    {object, [{~"level", {enum, [~"debug", ~"info", ~"notice", ~"warning", ~"error", ~"critical",
                                 ~"alert", ~"emergency"]}},
              {~"data", term}, {~"logger", {optional, string}}], []};
type({params, <<"notifications/", List/binary>>}, Revision) when Revision < ~"2026-07-28" ->
    true = lists:member(List, [~"tools/list_changed", ~"prompts/list_changed",
                               ~"resources/list_changed"]),
    none;
type({result, ~"initialize"}, Revision) ->
    result([{~"protocolVersion", {const, Revision}}, {~"instructions", {optional, string}},
            {~"capabilities", type(capabilities, Revision)},
            {~"serverInfo", type(implementation, Revision)}], Revision);
type({result, ~"server/discover"}, Revision) ->
    cacheable([{~"supportedVersions", {list, string}}, {~"instructions", {optional, string}},
               {~"capabilities", type(capabilities, Revision)}], Revision);
type({result, Empty}, Revision) when Empty =:= ~"ping"; Empty =:= ~"logging/setLevel" ->
    result([], Revision);
type({result, ~"tools/list"}, Revision) ->
    list(~"tools", tool, Revision);
type({result, ~"resources/list"}, Revision) ->
    list(~"resources", resource, Revision);
type({result, ~"resources/templates/list"}, Revision) ->
    list(~"resourceTemplates", resource_template, Revision);
type({result, ~"prompts/list"}, Revision) ->
    list(~"prompts", prompt, Revision);
type({result, ~"tools/call"}, Revision) ->
    Structured = if
        Revision >= ~"2026-07-28" -> [{~"structuredContent", {optional, term}}];
        Revision >= ~"2025-06-18" -> [{~"structuredContent", {optional, object}}];
        true -> []
    end,
    result([{~"content", {list, type(content, Revision)}}, {~"isError", {optional, boolean}}
            | Structured], Revision);
type({result, ~"prompts/get"}, Revision) ->
    Message = {object, [{~"role", {enum, [~"user", ~"assistant"]}},
                        {~"content", type(content, Revision)}], []},
    result([{~"messages", {list, Message}}, {~"description", {optional, string}}], Revision);
type({result, ~"resources/read"}, Revision) ->
    cacheable([{~"contents", {list, type(contents, Revision)}}], Revision);
type(capabilities, _) ->
    List = {optional, {object, [{~"listChanged", {optional, boolean}}], []}},
    {object, [{~"tools", List}, {~"resources", List}, {~"prompts", List},
              {~"logging", {optional, object}}], []};
type(implementation, Revision) ->
    {object, [{~"name", string}, {~"version", string}
              | since(~"2025-06-18", [{~"title", {optional, string}}], Revision)
                ++ since(~"2025-11-25", [{~"websiteUrl", {optional, uri}},
                                         {~"description", {optional, string}},
                                         {~"icons", icons()}], Revision)], []};
type(tool, Revision) ->
    Schema = {object, [{~"type", {const, ~"object"}}, {~"properties", {optional, object}},
                       {~"required", {optional, {list, string}}}], []},
    Output = case Revision of
        ~"2026-07-28" -> object;
        _ -> {object, [{~"type", {const, ~"object"}}], []}
    end,
    definition([{~"inputSchema", Schema}
                | since(~"2025-03-26", [{~"annotations", {optional, object}}], Revision)
                  ++ since(~"2025-06-18", [{~"outputSchema", {optional, Output}}], Revision)],
               Revision);
type(resource, Revision) ->
    definition([{~"uri", uri}, {~"mimeType", {optional, string}}, {~"size", {optional, integer}},
                annotations()], Revision);
type(resource_template, Revision) ->
    definition([{~"uriTemplate", string}, {~"mimeType", {optional, string}}, annotations()],
               Revision);
type(prompt, Revision) ->
    Argument = {object, [{~"name", string}, {~"description", {optional, string}},
                         {~"required", {optional, boolean}}], []},
    definition([{~"arguments", {optional, {list, Argument}}}], Revision);
type(content, Revision) ->
    Media = [{~"data", base64}, {~"mimeType", string}, annotations()],
    Link = [{~"uri", uri}, {~"name", string}, {~"mimeType", {optional, string}}],
    {any, [{object, [{~"type", {const, Type}} | Members], []}
           || {Type, First, Members} <-
                  [{~"text", ~"2024-11-05", [{~"text", string}, annotations()]},
                   {~"image", ~"2024-11-05", Media}, {~"audio", ~"2025-03-26", Media},
                   {~"resource_link", ~"2025-06-18", Link},
                   {~"resource", ~"2024-11-05", [{~"resource", type(contents, Revision)}]}],
              First =< Revision]};
type(contents, _) ->
    Members = [{~"uri", string}, {~"mimeType", {optional, string}}],
    {any, [{object, [{~"text", string} | Members], [~"blob"]},
           {object, [{~"blob", base64} | Members], [~"text"]}]}.

since(First, Members, Revision) when Revision >= First -> Members;
since(_, _, _) -> [].

annotations() ->
    {~"annotations",
     {optional, {object, [{~"audience", {optional, {list, {enum, [~"user", ~"assistant"]}}}},
                          {~"priority", {optional, {is, fun(P) -> P >= 0 andalso P =< 1 end}}}],
                 []}}}.

icons() ->
    {optional, {list, {object, [{~"src", uri}, {~"mimeType", {optional, string}},
                                {~"sizes", {optional, {list, string}}}], []}}}.

definition(Members, Revision) ->
    {object, [{~"name", string}, {~"description", {optional, string}}
              | since(~"2025-06-18", [{~"title", {optional, string}}], Revision)
                ++ since(~"2025-06-18", [{~"_meta", {optional, object}}], Revision)
                ++ since(~"2025-11-25", [{~"icons", icons()}], Revision) ++ Members], []}.

list(Member, Kind, Revision) ->
    cacheable([{Member, {list, type(Kind, Revision)}}, {~"nextCursor", {optional, string}}],
              Revision).

%% "Servers MUST include caching hints."
cacheable(Members, Revision) ->
    Hints = [{~"ttlMs", {is, fun(Ttl) -> is_integer(Ttl) andalso Ttl >= 0 end}},
             {~"cacheScope", {enum, [~"public", ~"private"]}}],
    result(since(~"2026-07-28", Hints, Revision) ++ Members, Revision).

%% "The result MUST include a resultType field."
result(Members, ~"2026-07-28" = Revision) ->
    ServerInfo = {~"io.modelcontextprotocol/serverInfo", type(implementation, Revision)},
    {object, [{~"resultType", {const, ~"complete"}}, {~"_meta", {object, [ServerInfo], []}}
              | Members], []};
result(Members, _) ->
    {object, Members, []}.

%% "Implementations MUST NOT emit any code from this sub-range that is not defined by this
%% specification." "Implementations of this protocol version MUST NOT emit these codes: -32002."
%% Codes of one's own lie "outside the JSON-RPC reserved range (-32768 to -32000)".
allowed(Code, Revision) when is_integer(Code), Code >= -32768, Code =< -32000 ->
    Known = case Revision of
        ~"2026-07-28" -> [-32020, -32021, -32022];
        _ -> [-32002]
    end,
    lists:member(Code, [-32700, -32600, -32601, -32602, -32603 | Known]);
allowed(Code, _) ->
    is_integer(Code).

%% Whether a value is of a type; where it is not, the path that leads there.
is(Type, Value, Path) ->
    case fits(Type, Value) of
        true -> ok;
        false -> error({not_valid, lists:reverse(Path), Type, Value})
    end.

fits(term, _) -> true;
fits(string, Value) -> is_binary(Value);
fits(integer, Value) -> is_integer(Value);
fits(number, Value) -> is_number(Value);
fits(boolean, Value) -> is_boolean(Value);
fits(object, Value) -> is_map(Value);
fits(uri, Value) -> is_binary(Value) andalso is_map_key(scheme, uri_string:parse(Value));
fits(base64, Value) ->
    try
        base64:encode(base64:decode(Value)) =:= Value
    catch
        error:_ -> false
    end;
fits({const, Constant}, Value) -> Value =:= Constant;
fits({enum, Values}, Value) -> lists:member(Value, Values);
fits({is, Predicate}, Value) -> Predicate(Value);
fits({any, Types}, Value) -> lists:any(fun(Type) -> fits(Type, Value) end, Types);
fits({list, Type}, Value) ->
    is_list(Value) andalso lists:all(fun(Item) -> fits(Type, Item) end, Value);
fits({object, Members, Absent}, Value) ->
    is_map(Value)
        andalso not lists:any(fun(Name) -> is_map_key(Name, Value) end, Absent)
        andalso lists:all(fun({Name, Type}) -> member(Type, Name, Value) end, Members).

member({optional, Type}, Name, Object) ->
    not is_map_key(Name, Object) orelse fits(Type, maps:get(Name, Object));
member(Type, Name, Object) ->
    is_map_key(Name, Object) andalso fits(Type, maps:get(Name, Object)).
