-module(erlmcp_test_schema).
-moduledoc """
Checks whether a message is one of its revision, by the official `schema.json` (`test/data/mcp`),
and by the codes that an error of the revision may have. Raises `not_valid`, in a tuple with the
details, for a message that is not.
""".

-export([notification/2, request/2, response/2, result/3, answer/2, error/2, check/3]).
-export([definitions/1]).

-compile({no_auto_import, [error/1, error/2]}).

-doc "Checks a notification.".
-spec notification(Message :: map(), Revision :: binary()) -> ok.
notification(#{~"method" := Method} = Message, Revision) ->
    not is_map_key(~"id", Message) orelse erlang:error({not_valid, Revision, members, [id]}),
    Name = case is_of_extension(Method, Revision) of
        true -> ~"JSONRPCNotification";
        false -> by_method(Method, ~"Notification", Revision)
    end,
    valid(Message, Name, Revision).

-doc "Checks a request.".
-spec request(Message :: map(), Revision :: binary()) -> ok.
request(#{~"method" := Method, ~"id" := _} = Message, Revision) ->
    case maps:keys(Message) -- [~"id", ~"jsonrpc", ~"method", ~"params"] of
        [] -> ok;
        Others -> erlang:error({not_valid, Revision, members, Others})
    end,
    Name = case is_of_extension(Method, Revision) of
        true -> ~"JSONRPCRequest";
        false -> by_method(Method, ~"Request", Revision)
    end,
    valid(Message, Name, Revision).

-doc "Checks a response with a result to a request of this method.".
-spec result(Message :: map(), Method :: binary(), Revision :: binary()) -> ok.
result(Message, Method, Revision) ->
    ok = response(Message, Revision),
    case is_of_extension(Method, Revision) of
        true -> ok;
        false -> core_result(Message, Method, Revision)
    end.

%% Extensions have schemas of their own. Tasks were of the core once.
is_of_extension(Method, Revision) ->
    Prefixes = [~"skills/", ~"resources/directory/"]
        ++ [Prefix || Revision =:= ~"2026-07-28",
                      Prefix <- [~"tasks/", ~"notifications/tasks"]],
    lists:any(fun(Prefix) -> string:prefix(Method, Prefix) =/= nomatch end, Prefixes).

core_result(#{~"result" := #{~"task" := _} = Result}, ~"tools/call", ~"2025-11-25" = Revision) ->
    valid(Result, ~"CreateTaskResult", Revision);
core_result(#{~"result" := Result} = Message, Method, Revision) ->
    Name = by_method(Method, ~"Request", Revision),
    [Base, ~""] = binary:split(Name, ~"Request"),
    Known = definitions(Revision),
    Whole = <<Base/binary, "ResultResponse">>,
    Part = <<Base/binary, "Result">>,
    case Known of
        #{Whole := _} -> valid(Message, Whole, Revision);
        #{Part := _} -> valid(Result, Part, Revision);
        #{} -> valid(Result, ~"EmptyResult", Revision)
    end.

-doc "Checks a response with a result to any request.".
-spec response(Message :: map(), Revision :: binary()) -> ok.
response(Message, Revision) ->
    alone(~"result", Message, Revision),
    case definitions(Revision) of
        #{~"JSONRPCResultResponse" := _} -> valid(Message, ~"JSONRPCResultResponse", Revision);
        #{} -> valid(Message, ~"JSONRPCResponse", Revision)
    end.

-doc "Checks the result of a client's response to any of the requests that servers have.".
-spec answer(Result :: map(), Revision :: binary()) -> ok.
answer(Result, Revision) when map_size(Result) =:= 0 ->
    valid(Result, ~"EmptyResult", Revision);
answer(Result, Revision) ->
    Known = definitions(Revision),
    Names = [Name || Name <- [~"ElicitResult", ~"CreateMessageResult", ~"ListRootsResult"],
                     is_map_key(Name, Known)],
    lists:any(fun(Name) -> erlmcp_schema:is_valid(Result, compiled(Name, Revision)) end, Names)
        orelse erlang:error({not_valid, Revision, Names, Result}),
    ok.

alone(Member, Message, Revision) ->
    case maps:keys(Message) -- [Member, ~"id", ~"jsonrpc"] of
        [] -> ok;
        Others -> erlang:error({not_valid, Revision, members, Others})
    end.

-doc "Checks a response with an error.".
-spec error(Message :: map(), Revision :: binary()) -> ok.
error(#{~"error" := #{~"code" := Code}} = Message, Revision) ->
    alone(~"error", Message, Revision),
    allowed(Code, Revision) orelse erlang:error({not_valid, Revision, code, Code}),
    case definitions(Revision) of
        #{~"JSONRPCErrorResponse" := _} -> valid(Message, ~"JSONRPCErrorResponse", Revision);
        %% The earlier ones have no error to a message whose id cannot be read.
        #{} when not is_map_key(~"id", Message) -> error(Message, ~"2025-11-25");
        #{} -> valid(Message, ~"JSONRPCError", Revision)
    end;
error(Message, Revision) ->
    erlang:error({not_valid, Revision, error, Message}).

%% "Implementations MUST NOT emit any code from this sub-range that is not defined by this
%% specification." "Implementations of this protocol version MUST NOT emit these codes: -32002."
%% Codes of one's own lie "outside the JSON-RPC reserved range (-32768 to -32000)". Before, those of
%% JSON-RPC's "implementation-defined server-errors" were free.
allowed(Code, Revision) when is_integer(Code), Code >= -32768, Code =< -32000 ->
    Known = case Revision of
        ~"2026-07-28" -> [-32020, -32021, -32022];
        _ -> [-32002, -32021, -32042]
    end,
    lists:member(Code, [-32700, -32600, -32601, -32602, -32603 | Known]);
allowed(Code, _) ->
    is_integer(Code).

-doc """
Checks the messages that answer request 1 of this method: notifications, and one response at the
end. If the method is `none`, there was no request: the one message is a notification, or an error
without an id.
""".
-spec check(Revision :: binary(), Method :: binary() | none, Messages :: [term()]) -> ok.
check(Revision, none, [#{~"method" := _} = Message]) ->
    notification(Message, Revision);
check(Revision, none, [Message]) ->
    error(Message, Revision);
check(Revision, Method, Messages) ->
    {Before, [Response]} = lists:split(length(Messages) - 1, Messages),
    [ok = notification(Message, Revision) || Message <- Before],
    case Response of
        #{~"error" := #{~"data" := #{~"refusal" := Early}}} when Early =:= 1014; Early =:= 1024 ->
            %% The body was not read.
            error(Response, Revision);
        #{~"id" := 1, ~"error" := _} ->
            error(Response, Revision);
        #{~"id" := 1} ->
            result(Response, Method, Revision);
        _ ->
            erlang:error({not_valid, Revision, id, Response})
    end.

%% The definition of a request or notification by its method.
by_method(Method, Kind, Revision) ->
    Found = [Name || Name := #{~"properties" := #{~"method" := #{~"const" := Is}}}
                         <- definitions(Revision),
                     Is =:= Method, binary:longest_common_suffix([Name, Kind]) =:= byte_size(Kind)],
    %% Where there is one alone it is also what all of them are.
    case Found -- [<<"Client", Kind/binary>>, <<"Server", Kind/binary>>] of
        [Name] -> Name;
        [] -> erlang:error({not_valid, Revision, no_such_method, Method})
    end.

valid(Value, Name, Revision) ->
    case erlmcp_schema:validate(Value, compiled(Name, Revision)) of
        ok -> ok;
        {error, Errors} -> erlang:error({not_valid, Revision, Name, Errors, Value})
    end.

compiled(Name, Revision) ->
    kept({?MODULE, Revision, Name}, fun() ->
        {Key, Document} = document(Revision),
        {ok, Compiled} = erlmcp_schema:compile(
            Document#{~"$ref" => <<"#/", Key/binary, "/", Name/binary>>},
            #{formats => assert, check => false}),
        Compiled
    end).

-doc "Returns the definitions of a revision's schema, by their names.".
-spec definitions(Revision :: binary()) -> #{binary() => map()}.
definitions(Revision) ->
    {Key, Document} = document(Revision),
    map_get(Key, Document).

document(Revision) ->
    kept({?MODULE, Revision}, fun() ->
        {ok, Text} = file:read_file(file(Revision)),
        case json:decode(Text) of
            #{~"$defs" := _} = Document -> {~"$defs", Document};
            #{~"definitions" := _} = Document -> {~"definitions", Document}
        end
    end).

kept(Key, Make) ->
    case persistent_term:get(Key, undefined) of
        undefined ->
            Value = Make(),
            ok = persistent_term:put(Key, Value),
            Value;
        Value ->
            Value
    end.

file(Revision) ->
    Source = proplists:get_value(source, module_info(compile)),
    find(filename:join(["test", "data", "mcp", <<Revision/binary, ".json">>]),
         filename:dirname(Source)).

find(Name, Folder) when Folder =/= "/" ->
    Path = filename:join(Folder, Name),
    case filelib:is_regular(Path) of
        true -> Path;
        false -> find(Name, filename:dirname(Folder))
    end.
