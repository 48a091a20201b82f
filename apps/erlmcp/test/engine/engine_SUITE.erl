-module(engine_SUITE).
-moduledoc """
The protocol as a function, by properties: whatever a peer sends, `erlmcp_engine:handle/4` answers
as JSON-RPC says, and the same to the same. The oracles here read the message anew; they ask nothing
of the code that they judge.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([every_message_is_answered_as_json_rpc_says/1, every_outcome_was_reached/1,
         handling_is_a_function/1, stateless_requests_need_no_session/1,
         encoded_json_comes_in_as_it_went_out/1, messages_survive_the_wire/1,
         meta_is_checked_in_order/1, headers_decode_to_what_was_encoded/1,
         header_decoding_is_strict/1, mirrored_headers_must_agree/1,
         mirrored_arguments_are_the_tools_alone/1,
         refusals_are_those_of_the_table/1, refusals_say_who_they_are/1,
         definitions_are_checked_without_a_crash/1, lists_keep_their_order/1,
         pages_miss_nothing_that_stays/1, strange_cursors_are_refused/1]).

-import(erlmcp_test_property, [holds/2]).

-define(CASES, 1000).
-define(REVISIONS, ['2024-11-05', '2025-03-26', '2025-06-18', '2025-11-25', '2026-07-28']).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [every_message_is_answered_as_json_rpc_says, every_outcome_was_reached, handling_is_a_function,
     stateless_requests_need_no_session, encoded_json_comes_in_as_it_went_out,
     messages_survive_the_wire, meta_is_checked_in_order, headers_decode_to_what_was_encoded,
     header_decoding_is_strict, mirrored_headers_must_agree,
     mirrored_arguments_are_the_tools_alone, refusals_are_those_of_the_table,
     refusals_say_who_they_are, definitions_are_checked_without_a_crash, lists_keep_their_order,
     pages_miss_nothing_that_stays, strange_cursors_are_refused].

holds(Property) ->
    holds(Property, ?CASES).

%% Messages: a request has one answer, with its id; "The receiver MUST NOT send a response" to a
%% notification; what is neither is refused, with its id "except in error cases where the ID could
%% not be read".
every_message_is_answered_as_json_rpc_says(_) ->
    Catalog = engine_json:catalog(),
    holds(?FORALL({Json, Session}, {engine_json:near_miss(), engine_json:session()},
                  ?FORALL(Envelope, engine_json:envelope(Json),
                          is_right(Json, Envelope, Catalog, Session))), 4 * ?CASES).

is_right(Json, Envelope, Catalog, Session) ->
    {Effects, Next} = erlmcp_engine:handle(Json, Envelope, Catalog, Session),
    fits(kind(Json), Effects, Session) andalso is_session(Next, Session).

%% What a decoded value is, by JSON-RPC 2.0 and MCP.
kind([_ | _] = Messages) ->
    {batch, Messages};
kind(#{~"jsonrpc" := ~"2.0"} = Message) ->
    Id = maps:get(~"id", Message, none),
    Method = maps:get(~"method", Message, none),
    Params = maps:get(~"params", Message, #{}),
    Answers = [Key || Key <- [~"result", ~"error"], is_map_key(Key, Message)],
    IsId = is_id(Id),
    if
        Method =:= none, IsId, Answers =:= [~"result"] ->
            {response, Id, {ok, maps:get(~"result", Message)}};
        Method =:= none, IsId, Answers =:= [~"error"] ->
            {response, Id, {error, maps:get(~"error", Message)}};
        not is_binary(Method) -> {invalid, readable(Id)};
        Id =/= none, not IsId -> {invalid, none};
        not is_map(Params) -> {invalid, readable(Id)};
        Id =:= none, Method =:= ~"notifications/cancelled" ->
            {cancelled, maps:get(~"requestId", Params, none)};
        Id =:= none -> notification;
        true -> {request, Id}
    end;
kind(#{~"id" := Id}) ->
    {invalid, readable(Id)};
kind(_) ->
    {invalid, none}.

is_id(Id) -> is_integer(Id) orelse is_binary(Id).

readable(Id) ->
    case is_id(Id) of
        true -> Id;
        false -> none
    end.

fits({request, Id}, [Answer], _) -> answers(Answer, Id);
fits({invalid, Id}, [Answer], _) -> is_error(Answer, Id);
fits({response, _, _}, Effects, none) -> Effects =:= [accepted];
fits({response, _, _} = Response, Effects, #{}) -> Effects =:= [Response, accepted];
fits(notification, Effects, _) -> Effects =:= [accepted];
fits({cancelled, Id}, Effects, _) ->
    case is_id(Id) of
        true -> Effects =:= [{cancel, Id}, accepted];
        false -> Effects =:= [accepted]
    end;
fits({batch, Messages}, Effects, #{revision := '2025-03-26'}) when length(Messages) =< 100 ->
    Kinds = [case kind(Message) of {batch, _} -> {invalid, none}; Kind -> Kind end
             || Message <- Messages],
    Silent = lists:append([silent(Kind) || Kind <- Kinds]),
    Wanted = [Kind || {Type, _} = Kind <- Kinds, Type =/= cancelled],
    case {Wanted, lists:split(length(Silent), Effects)} of
        {[], {Silent, [accepted]}} -> true;
        {[_ | _], {Silent, [{batch, Answers}]}} when length(Answers) =:= length(Wanted) ->
            lists:all(fun({Kind, Answer}) -> fits(Kind, [Answer], none) end,
                      lists:zip(Wanted, Answers));
        _ -> false
    end;
fits({batch, _}, [Answer], _) ->
    is_error(Answer, none);
fits(_, _, _) ->
    false.

%% What is no request, and asks for something all the same.
silent({cancelled, Id}) -> [{cancel, Id} || is_id(Id)];
silent({response, _, _} = Response) -> [Response];
silent(_) -> [].

%% A result, an error, or what will give one.
answers({Change, Id, Uri}, Id) when Change =:= subscribe; Change =:= unsubscribe ->
    is_binary(Uri);
answers({listen, #{id := Id, topics := Topics, acknowledged := Acknowledged,
                   closed := Closing}}, Id) ->
    [Cancelled, Closed] = erlmcp_subscription:closed(Closing),
    #{~"method" := ~"notifications/cancelled", ~"params" := #{~"requestId" := Id}} =
        decoded(Cancelled),
    Subscription = ~"io.modelcontextprotocol/subscriptionId",
    #{~"method" := ~"notifications/subscriptions/acknowledged",
      ~"params" := #{~"_meta" := #{Subscription := Id}, ~"notifications" := #{}}} =
        decoded(Acknowledged),
    #{~"id" := Id, ~"result" := #{~"_meta" := #{Subscription := Id}}} = decoded(Closed),
    is_list(Topics);
answers({call, #{id := Id, kind := Kind, arguments := Arguments,
                 definition := #{handler := Handler},
                 context := #{revision := Revision, method := _, meta := Meta, client_info := _,
                              client_capabilities := Capabilities, log_level := _,
                              progress_token := _, server_meta := ServerMeta} = Context}}, Id) ->
    is_function(Handler, 2) andalso is_map(Arguments) andalso is_map(Meta)
        andalso is_map(Capabilities) andalso is_binary(ServerMeta)
        andalso lists:member(Revision, ?REVISIONS)
        andalso case Kind of
                    tool -> is_map_key(name, Context);
                    prompt -> is_map_key(name, Context);
                    completion -> is_map_key(name, Context) orelse is_map_key(uri, Context);
                    _ -> is_map_key(uri, Context)
                end;
answers({reply, 200, Bytes} = Reply, Id) ->
    case json:decode(iolist_to_binary(Bytes)) of
        #{~"jsonrpc" := ~"2.0", ~"id" := Read, ~"result" := #{}} = Answer ->
            Read =:= Id andalso map_size(Answer) =:= 3 andalso has_bytes(Id, Bytes);
        _ ->
            is_error(Reply, Id)
    end;
answers(Reply, Id) ->
    is_error(Reply, Id).

is_error({reply, Status, Bytes}, Id) ->
    Answer = json:decode(iolist_to_binary(Bytes)),
    #{~"jsonrpc" := ~"2.0", ~"error" := #{~"code" := Code, ~"message" := Message,
                                          ~"data" := #{~"refusal" := Number, ~"name" := Name}}} =
        Answer,
    is_integer(Code) andalso is_binary(Message) andalso Message =/= ~"" andalso is_status(Status)
        andalso lists:any(fun(#{number := N, name := Atom}) ->
                              N =:= Number andalso atom_to_binary(Atom) =:= Name
                          end, erlmcp_refusal:table())
        andalso case Id of
                    none -> map_size(Answer) =:= 2;
                    _ -> map_size(Answer) =:= 3 andalso maps:get(~"id", Answer, none) =:= Id
                        andalso has_bytes(Id, Bytes)
                end;
is_error(_, _) ->
    false.

%% "The same ID", to the byte.
has_bytes(Id, Bytes) ->
    Member = iolist_to_binary([~'"id":', json:encode(Id), $,]),
    binary:match(iolist_to_binary(Bytes), Member) =/= nomatch.

is_status({Status, Seconds}) -> is_status(Status) andalso is_integer(Seconds) andalso Seconds > 0;
is_status(Status) -> is_integer(Status) andalso Status >= 200 andalso Status < 600.

%% A session never goes away, and its revision never changes.
is_session(none, none) ->
    true;
is_session(#{revision := Revision, client_info := _, client_capabilities := Capabilities,
             log_level := Level, initialized := Initialized}, Before) ->
    is_map(Capabilities) andalso is_boolean(Initialized) andalso Level >= 0 andalso Level =< 7
        andalso Revision =/= '2026-07-28' andalso lists:member(Revision, ?REVISIONS)
        andalso case Before of
                    #{revision := Was} -> Was =:= Revision;
                    none -> true
                end;
is_session(_, _) ->
    false.

%% The generators above are no good if they never get past the first check.
every_outcome_was_reached(_) ->
    Catalog = engine_json:catalog(),
    Seen = ets:new(seen, []),
    holds(?FORALL({Json, Session}, {engine_json:near_miss(), engine_json:session()},
                  ?FORALL(Envelope, engine_json:envelope(Json),
                          begin
                              {Effects, _} = erlmcp_engine:handle(Json, Envelope, Catalog, Session),
                              ets:insert(Seen, [{outcome(Effect)} || Effect <- Effects])
                          end)), 4 * ?CASES),
    [] = [accepted, cancel, response, batch, result, tool, prompt, resource, resource_template,
          completion, subscribe, unsubscribe, listen, -32600, -32601, -32602, -32020, -32022,
          -32002] -- [Outcome || {Outcome} <- ets:tab2list(Seen)].

outcome({reply, _, Bytes}) ->
    case json:decode(iolist_to_binary(Bytes)) of
        #{~"result" := _} -> result;
        #{~"error" := #{~"code" := Code}} -> Code
    end;
outcome({call, #{kind := Kind}}) -> Kind;
outcome(accepted) -> accepted;
outcome(Effect) -> element(1, Effect).

%% "No process, clock, socket or table": the same in, the same out, also elsewhere.
handling_is_a_function(_) ->
    Catalog = engine_json:catalog(),
    Elsewhere = spawn_link(fun() -> elsewhere(Catalog) end),
    holds(?FORALL({Json, Session}, {engine_json:near_miss(), engine_json:session()},
                  ?FORALL(Envelope, engine_json:envelope(Json),
                          begin
                              Elsewhere ! {self(), {Json, Envelope, Session}},
                              Here = erlmcp_engine:handle(Json, Envelope, Catalog, Session),
                              receive {Elsewhere, There} -> Here =:= There end
                          end))),
    unlink(Elsewhere),
    exit(Elsewhere, kill).

elsewhere(Catalog) ->
    receive
        {From, {Json, Envelope, Session}} ->
            From ! {self(), erlmcp_engine:handle(Json, Envelope, Catalog, Session)},
            elsewhere(Catalog)
    end.

%% 2026-07-28, Statelessness: "Servers MUST NOT rely on prior requests over the same connection to
%% establish context". A request that names a version in its `_meta` is answered the same in every
%% session, leaves it as it was, and says what kind of result it gives.
stateless_requests_need_no_session(_) ->
    Catalog = engine_json:catalog(),
    holds(?FORALL({Json, One, Two},
                  {?SUCHTHAT(J, engine_json:message(), is_modern(J)), engine_json:session(),
                   engine_json:session()},
                  ?FORALL(Envelope, engine_json:envelope(Json),
                          begin
                              {Effects, One} = erlmcp_engine:handle(Json, Envelope, Catalog, One),
                              {Effects, Two} = erlmcp_engine:handle(Json, Envelope, Catalog, Two),
                              says_its_type(Effects)
                          end))).

is_modern(#{~"id" := Id, ~"params" := #{~"_meta" := Meta}}) when is_map(Meta) ->
    is_id(Id) andalso is_map_key(~"io.modelcontextprotocol/protocolVersion", Meta);
is_modern(_) ->
    false.

says_its_type([{reply, 200, Bytes}]) ->
    #{~"result" := #{~"resultType" := ~"complete",
                     ~"_meta" := #{~"io.modelcontextprotocol/serverInfo" := #{~"name" := _}}}} =
        json:decode(iolist_to_binary(Bytes)),
    true;
says_its_type([{reply, _, _}]) -> true;
says_its_type([{listen, _}]) -> true;
says_its_type([{call, #{context := #{revision := Revision}}}]) -> Revision =:= '2026-07-28'.

%% The values that the other properties are about are those that `erlmcp_json` reads.
encoded_json_comes_in_as_it_went_out(_) ->
    Limits = #{message_bytes => 1_000_000, depth => 100, members => 1000},
    holds(?FORALL(Json, engine_json:json(),
                  begin
                      Bytes = iolist_to_binary(json:encode(Json)),
                      erlmcp_json:decode(Bytes, Limits) =:= {ok, Json}
                          andalso binary:match(Bytes, [~"\n", ~"\r"]) =:= nomatch
                  end)).

%% What `erlmcp_message` builds it also reads, and it is what it was.
messages_survive_the_wire(_) ->
    holds(?FORALL({Id, Method, Params},
                  {engine_json:id(), engine_json:text(), engine_json:object()},
                  begin
                      Refusal = erlmcp_refusal:new(invalid_params, Method),
                      Result = erlmcp_message:result(Id, json:encode(Params)),
                      Error = erlmcp_message:error(Id, Refusal),
                      Notification = erlmcp_message:notification(Method, Params),
                      {request, Id, Method, Params} =
                          erlmcp_message:parse(#{~"jsonrpc" => ~"2.0", ~"id" => Id,
                                                 ~"method" => Method, ~"params" => Params}),
                      {response, Id, {ok, Params}} = parsed(Result),
                      {response, Id, {error, #{~"message" := Method}}} = parsed(Error),
                      {invalid, undefined, _} = parsed(erlmcp_message:error(undefined, Refusal)),
                      {notification, Method, Params} = parsed(Notification),
                      {batch, [_, _] = Both} = parsed(erlmcp_message:batch([Result, Error])),
                      Both =:= [decoded(Result), decoded(Error)]
                          andalso decoded(Result) =:= #{~"jsonrpc" => ~"2.0", ~"id" => Id,
                                                        ~"result" => Params}
                  end)).

parsed(Bytes) -> erlmcp_message:parse(decoded(Bytes)).

decoded(Bytes) -> json:decode(iolist_to_binary(Bytes)).

%% 2026-07-28, Server Validation, in this order: the header is there, the fields are there and of
%% their type, the header says what the body says, the version is supported.
meta_is_checked_in_order(_) ->
    holds(?FORALL({Header, Version, Capabilities, Extra},
                  {oneof([none, undefined, ~"2026-07-28", ~"2025-11-25", binary()]),
                   oneof([missing, ~"2026-07-28", ~"2026-07-28", ~"2025-11-25", engine_json:text(),
                          engine_json:json()]),
                   oneof([missing, engine_json:object(), engine_json:object(), engine_json:json()]),
                   oneof([[], [], extra()])},
                  begin
                      Meta = maps:from_list(
                          [{~"io.modelcontextprotocol/protocolVersion", Version}
                           || Version =/= missing]
                          ++ [{~"io.modelcontextprotocol/clientCapabilities", Capabilities}
                              || Capabilities =/= missing]
                          ++ Extra),
                      Expected = meta_code(Header, Version, Capabilities, Extra),
                      case erlmcp_meta:validate(#{~"_meta" => Meta}, Header) of
                          {ok, '2026-07-28', #{client_capabilities := Capabilities}} ->
                              Expected =:= ok;
                          {error, Refusal} ->
                              Expected =:= code(Refusal)
                                  andalso erlmcp_refusal:status(Refusal) =:= 400
                      end
                  end), 3 * ?CASES).

code(Refusal) ->
    maps:get(~"code", decoded(erlmcp_refusal:encode(Refusal))).

extra() ->
    ?LET({Key, Value},
         {oneof([~"io.modelcontextprotocol/clientInfo", ~"io.modelcontextprotocol/logLevel",
                 ~"progressToken", ~"other"]),
          oneof([~"error", 1, engine_json:json()])},
         [{Key, Value}]).

meta_code(undefined, _, _, _) -> -32020;
meta_code(Header, Version, Capabilities, Extra) ->
    Typed = is_binary(Version) andalso is_map(Capabilities)
        andalso lists:all(fun is_extra/1, Extra),
    if
        not Typed -> -32602;
        Header =/= none, Header =/= Version -> -32020;
        Version =/= ~"2026-07-28" -> -32022;
        true -> ok
    end.

is_extra({~"io.modelcontextprotocol/clientInfo", Info}) -> is_map(Info);
is_extra({~"io.modelcontextprotocol/logLevel", Level}) ->
    lists:member(Level, [~"debug", ~"info", ~"notice", ~"warning", ~"error", ~"critical", ~"alert",
                         ~"emergency"]);
is_extra({~"progressToken", Token}) -> is_id(Token);
is_extra({_, _}) -> true.

%% 2026-07-28, Value Encoding: what a client encodes is what is compared; its table of examples.
headers_decode_to_what_was_encoded(_) ->
    [{Header, {ok, Value}} = {Header, erlmcp_header:decode(Header)}
     || {Value, Header} <- [
            {~"us-west1", ~"us-west1"},
            {~"Hello, 世界", ~"=?base64?SGVsbG8sIOS4lueVjA==?="},
            {~" padded ", ~"=?base64?IHBhZGRlZCA=?="},
            {~"line1\nline2", ~"=?base64?bGluZTEKbGluZTI=?="},
            {~"=?base64?literal?=", ~"=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="}]],
    holds(?FORALL(Value, oneof([binary(), engine_json:text()]),
                  erlmcp_header:decode(<<"=?base64?", (base64:encode(Value))/binary, "?=">>)
                      =:= {ok, Value})),
    holds(?FORALL(Value, ?LET(Bytes, list(oneof([range(16#20, 16#7e), $\t, $=, $?])),
                              exactly(list_to_binary(Bytes))),
                  erlmcp_header:decode(Value) =:= {ok, Value})).

%% "A header value contains invalid characters": everything but 0x21-0x7E, space and tab, and in the
%% sentinel everything but base64 with its padding. "These markers are case-sensitive".
header_decoding_is_strict(_) ->
    holds(?FORALL({Before, Byte, After},
                  {printable(), oneof([range(0, 8), range(10, 31), range(127, 255)]), printable()},
                  erlmcp_header:decode(<<Before/binary, Byte, After/binary>>) =:= error)),
    holds(?FORALL({Value, Place, Byte},
                  {non_empty_binary(), non_neg_integer(),
                   oneof([$\s, $\t, $\n, $-, $_, $=, $!, 0])},
                  begin
                      Encoded = base64:encode(Value),
                      <<Head:(Place rem (byte_size(Encoded) - 3))/binary, Tail/binary>> = Encoded,
                      erlmcp_header:decode(<<"=?base64?", Head/binary, Byte, Tail/binary, "?=">>)
                          =:= error
                  end)),
    holds(?FORALL({Value, Cut}, {non_empty_binary(), range(1, 3)},
                  begin
                      Encoded = base64:encode(Value),
                      Short = binary_part(Encoded, 0, byte_size(Encoded) - Cut),
                      erlmcp_header:decode(<<"=?base64?", Short/binary, "?=">>) =:= error
                  end)),
    [{Header, {ok, Header}} = {Header, erlmcp_header:decode(Header)}
     || Header <- [~"=?BASE64?QQ==?=", ~"=?Base64?QQ==?=", ~"=?base64?QQ==", ~"QQ==?=",
                   ~"=?base64?QQ==? =", ~"x=?base64?QQ==?="]],
    {ok, ~""} = erlmcp_header:decode(~"=?base64??="),
    {ok, ~""} = erlmcp_header:decode(~"").

printable() ->
    ?LET(Bytes, list(range(16#20, 16#7e)), exactly(list_to_binary(Bytes))).

non_empty_binary() ->
    ?LET({First, Rest}, {byte(), binary()}, exactly(<<First, Rest/binary>>)).

%% Server Validation: "A header value does not match the corresponding request body value" is
%% -32020, and nothing else is.
mirrored_headers_must_agree(_) ->
    Values = oneof([~"a", ~"b", ~"tools/call", ~"ü", ~" a", ~"=?base64?YQ==?=", undefined]),
    holds(?FORALL({Method, HeaderMethod, Value, HeaderName, IsEncoded},
                  {oneof([~"tools/call", ~"prompts/get", ~"resources/read", ~"tools/list", ~"a"]),
                   oneof([same, same, same, Values]), Values, oneof([same, same, Values]),
                   boolean()},
                  begin
                      Field = case Method of ~"resources/read" -> ~"uri"; _ -> ~"name" end,
                      Params = #{Field => V || V <- [Value], V =/= undefined},
                      Name = case HeaderName of same -> Value; _ -> HeaderName end,
                      Sent = case {Name, IsEncoded orelse not is_plain(Name)} of
                          {undefined, _} -> undefined;
                          {_, true} -> <<"=?base64?", (base64:encode(Name))/binary, "?=">>;
                          {_, false} -> Name
                      end,
                      SentMethod = case HeaderMethod of same -> Method; _ -> HeaderMethod end,
                      Headers = #{Key => Header || {Key, Header} <- [{~"mcp-method", SentMethod},
                                                                     {~"mcp-name", Sent}],
                                                   Header =/= undefined},
                      Agrees = lists:member(HeaderMethod, [same, Method])
                          andalso (Name =:= Value orelse Value =:= undefined
                                   orelse lists:member(Method, [~"tools/list", ~"a"])),
                      case erlmcp_header:check(Method, Params, Headers) of
                          ok -> Agrees;
                          {error, Refusal} ->
                              not Agrees andalso code(Refusal) =:= -32020
                                  andalso erlmcp_refusal:status(Refusal) =:= 400
                      end
                  end), 2 * ?CASES).

is_plain(undefined) -> true;
is_plain(~"ü") -> false;
is_plain(~" a") -> false;
is_plain(<<"=?base64?", _/binary>>) -> false;
is_plain(_) -> true.

%% Custom Headers: `Mcp-Param-*` mirrors what a tool's schema declares, in a `tools/call`. A prompt
%% that has its name has no such headers.
mirrored_arguments_are_the_tools_alone(_) ->
    {ok, Catalog} = erlmcp_catalog:add(prompt, #{name => ~"there", handler => fun(_, _) -> ~"" end},
                                       erlmcp_metaschemas:compiled(), engine_json:catalog()),
    Meta = #{~"io.modelcontextprotocol/protocolVersion" => ~"2026-07-28",
             ~"io.modelcontextprotocol/clientCapabilities" => #{}},
    [{Method, Expected} = {Method, outcome(Effect)}
     || {Method, Expected} <- [{~"tools/call", -32020}, {~"prompts/get", prompt}],
        {[Effect], none} <- [erlmcp_engine:handle(
            #{~"jsonrpc" => ~"2.0", ~"id" => 1, ~"method" => Method,
              ~"params" => #{~"name" => ~"there", ~"arguments" => #{~"region" => ~"eu"},
                             ~"_meta" => Meta}},
            #{headers => #{~"mcp-protocol-version" => ~"2026-07-28", ~"mcp-method" => Method,
                           ~"mcp-name" => ~"there"},
              principal => anonymous},
            Catalog, none)]].

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
              {observed, ~"observed", integer()}, {incident, ~"incident", engine_json:text()}],
    Details = [oneof([[], ?LET(Value, Type, [{Key, Name, Value}])]) || {Key, Name, Type} <- Bounds],
    holds(?FORALL({{Number, Name, Status, _, _}, Text, Given, Code, Data},
                  {elements(table()), engine_json:text(), Details, oneof([none, integer()]),
                   engine_json:object()},
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

%% "A field that is unknown, missing or of the wrong type is refused by name", whatever is in it.
definitions_are_checked_without_a_crash(_) ->
    holds(?FORALL({Kind, Key}, {kind(), range(1, 5)},
                  ?FORALL({Source, Changes}, {source(Kind, Key), resize(2, list(change(Kind)))},
                          begin
                              Changed = maps:merge(Source, maps:from_list(Changes)),
                              Fields = field_names(Kind),
                              case erlmcp_definition:compile(Kind, Changed,
                                                             erlmcp_metaschemas:compiled()) of
                                  {ok, #{key := _, wire := _, handler := _}} ->
                                      maps:keys(Changed) -- Fields =:= [];
                                  {error, {bad_definition, Kind, _, Field, Expected}} ->
                                      is_map_key(Field, Changed) andalso is_binary(Expected)
                              end
                          end)), 2 * ?CASES).

change(Kind) ->
    ?LET(Field, oneof([elements(field_names(Kind)), elements([unknown, nname, ~"name", 1])]),
         {Field, oneof([undefined, self(), -1, 1.5, ~"", <<255>>, [], [1], {a, b}, #{{a, b} => 1},
                        #{a => self()}, #{a => <<255>>}, [#{a => fun() -> ok end}], [#{} | x],
                        fun() -> ok end, private, ~"{unclosed", ~"text", any()])}).

field_names(Kind) ->
    [Field || {Field, _, _, _} <- erlmcp_definition:fields(Kind)].

kind() ->
    elements([tool, resource, resource_template, prompt]).

key(tool, N) -> <<"tool", (integer_to_binary(N))/binary>>;
key(prompt, N) -> <<"prompt", (integer_to_binary(N))/binary>>;
key(resource, N) -> <<"r://", (integer_to_binary(N))/binary>>;
key(resource_template, N) -> <<"t://", (integer_to_binary(N))/binary, "/{id}">>.

%% A valid definition, with some of the fields that it may have.
source(Kind, N) ->
    %% A resource has `ui` where its URI has that scheme: apps_SUITE.
    Fields = [{Field, Type} || {Field, _, Type, optional} <- erlmcp_definition:fields(Kind),
                               Type =/= ui orelse Kind =:= tool],
    Optional = [oneof([[], ?LET(Value, value(Field, Type), exactly([{Field, Value}]))])
                || {Field, Type} <- Fields],
    Key = key(Kind, N),
    Required = case Kind of
        resource -> #{uri => Key, name => ~"n"};
        resource_template -> #{uri_template => Key, name => ~"n"};
        _ -> #{name => Key}
    end,
    ?LET(Given, Optional,
         exactly(consistent(maps:merge(maps:from_list(lists:append(Given)),
                                       Required#{handler => fun(_, _) -> ~"" end})))).


%% What only some may see is in no shared cache; what is said of tasks is said of a tool that has
%% them; what waits for others is not quick.
consistent(#{quick := true} = Source) when
    is_map_key(workers, Source); is_map_key(breaker, Source); is_map_key(cache, Source);
    is_map_key(task, Source)
->
    consistent(maps:without([workers, breaker, cache, task], Source));
consistent(#{visible := _, cache_scope := public} = Source) ->
    consistent(Source#{cache_scope := private});
consistent(#{task := _} = Source) ->
    Source;
consistent(Source) ->
    maps:without([task_starts, task_timeout_ms], Source).

value(input_schema, _) ->
    oneof([exactly(#{}), exactly(#{type => object}), exactly(#{~"type" => ~"object"})]);
value(output_schema, _) ->
    oneof([exactly(#{type => object}), exactly(#{type => array}), exactly(#{'$comment' => ~"x"})]);
value(arguments, _) ->
    list(?LET(Name, non_empty_text(),
              exactly(#{name => Name, title => ~"t", description => ~"d", required => true})));
value(_, name) -> non_empty_text();
value(_, completions) ->
    oneof([exactly(#{}), exactly(#{~"id" => fun(_, _) -> [] end}),
           ?LET(Texts, list(engine_json:text()), exactly(#{~"id" => Texts}))]);
value(_, text) -> engine_json:text();
value(_, object) -> engine_json:object();
value(_, objects) -> resize(3, list(engine_json:object()));
value(_, milliseconds) -> non_neg_integer();
value(_, size) -> non_neg_integer();
value(_, flag) -> boolean();
value(_, scope) -> oneof([public, private]);
value(_, middleware) ->
    list(exactly(fun(Arguments, Context, Next) -> Next(Arguments, Context) end));
value(_, count) -> range(1, 10);
value(_, rates) -> elements([#{}, #{second => 1, day => 100}]);
value(_, scopes) -> elements([[], [~"read"], [~"read", ~"write"]]);
value(_, breaker) -> elements([billing, #{}]);
value(_, label) -> elements([images, sounds]);
value(_, cache) -> elements([#{ttl_ms => 1}, #{ttl_ms => 1000, scope => public}]);
value(_, task_support) -> oneof([forbidden, optional, required]);
value(_, task_start) -> oneof([at_once, on_return]);
value(_, visibility) -> elements([fun is_ada/1, fun is_not_ada/1, fun is_nobody/1]);
value(_, ui) -> exactly(#{}).

is_ada(Principal) -> Principal =:= ada.
is_not_ada(Principal) -> Principal =/= ada.
is_nobody(_) -> false.

sees(Principal, #{visible := Visible}) -> Visible(Principal);
sees(_, _) -> true.

non_empty_text() ->
    ?LET(Text, engine_json:text(), <<"x", Text/binary>>).

%% A list has the order in which its definitions were added, through every change, in pages as in
%% one; each revision is shown the fields that its schema has, and of them all that were given; and
%% each principal the definitions that are visible to it.
lists_keep_their_order(_) ->
    holds(?FORALL({Commands, Size}, {resize(15, list(command())), range(1, 7)},
                  begin
                      {Catalog, Model} = changed(Commands, empty(Size)),
                      lists:all(fun({Kind, Revision, Principal}) ->
                                    is_listed(Kind, Revision, Principal, Size, Catalog, Model)
                                end, [{Kind, Revision, Principal}
                                      || {Kind, _, _} <- lists(), Revision <- ?REVISIONS,
                                         Principal <- [anonymous, ada]])
                          andalso lists:all(fun({{_, _, Source} = Entry, Principal}) ->
                                                sees(Principal, Source)
                                                    =:= is_found(Entry, Principal, Catalog)
                                            end, [{Entry, Principal}
                                                  || Entry <- Model,
                                                     Principal <- [anonymous, ada]])
                  end)).

%% What was there all the time is on exactly one page, in its order, whatever came and went while
%% the client was paging; unless the list became one that is not the same for all, or ceased to be:
%% its cursors are refused then, since all pages of a walk have one scope.
pages_miss_nothing_that_stays(_) ->
    holds(?FORALL({Kind, Before, Between, Size},
                  {kind(), resize(12, list(command())), resize(6, list(command())), range(1, 3)},
                  begin
                      {Kind, Method, Member} = lists:keyfind(Kind, 1, lists()),
                      {First, Model} = changed(Before, empty(Size)),
                      {Second, Changed} = changed(Between, {First, Model}),
                      Page = decoded(erlmcp_catalog:first_page(Method, '2026-07-28', ada, First)),
                      Stayed = [shown(Kind, '2026-07-28', Source)
                                || {K, _, Source} = Entry <- Model, K =:= Kind,
                                   lists:member(Entry, Changed), sees(ada, Source)],
                      case {is_shared(Kind, Model) =:= is_shared(Kind, Changed), Page} of
                          {false, #{~"nextCursor" := Cursor}} ->
                              error =:= erlmcp_catalog:page(Method, Cursor, '2026-07-28', ada,
                                                            Second);
                          _ ->
                              Seen = maps:get(Member, Page)
                                  ++ following(Page, Method, Member, '2026-07-28', ada, Second),
                              Stayed =:= [Item || Item <- Seen, lists:member(Item, Stayed)]
                      end
                  end)).

is_shared(Kind, Model) ->
    [] =:= [Source || {K, _, #{visible := _} = Source} <- Model, K =:= Kind].

%% Pagination: "Invalid cursors SHOULD result in an error": those that this server did not give for
%% this list.
strange_cursors_are_refused(_) ->
    {Catalog, _} = changed([{add, Kind, #{name => Name, handler => fun(_, _) -> ~"" end}, Name}
                            || {Kind, Name} <- [{tool, ~"a"}, {tool, ~"b"}, {prompt, ~"c"},
                                                {prompt, ~"d"}]], empty(1)),
    #{~"nextCursor" := Good} =
        decoded(erlmcp_catalog:first_page(~"tools/list", '2025-11-25', anonymous, Catalog)),
    {ok, _} = erlmcp_catalog:page(~"tools/list", Good, '2025-11-25', anonymous, Catalog),
    error = erlmcp_catalog:page(~"prompts/list", Good, '2025-11-25', anonymous, Catalog),
    holds(?FORALL(Cursor, oneof([binary(), engine_json:text(), near_cursor(Good)]),
                  Cursor =:= Good orelse error =:=
                      erlmcp_catalog:page(~"tools/list", Cursor, '2025-11-25', anonymous,
                                          Catalog))).

near_cursor(Cursor) ->
    ?LET({Place, Byte}, {range(0, byte_size(Cursor) - 1), range(0, 255)},
         begin
             <<Head:Place/binary, _, Tail/binary>> = Cursor,
             exactly(<<Head/binary, Byte, Tail/binary>>)
         end).

empty(Size) ->
    {ok, Empty} = erlmcp_catalog:new(#{name => ~"n", version => ~"v"}, [],
                                     (engine_json:lists())#{page_size := Size},
                                     erlmcp_metaschemas:compiled()),
    {Empty, []}.

changed(Commands, State) ->
    lists:foldl(fun apply_command/2, State, Commands).

command() ->
    ?LET({Kind, N}, {kind(), range(1, 6)},
         frequency([{3, {add, Kind, source(Kind, N), key(Kind, N)}},
                    {1, {remove, Kind, key(Kind, N)}}])).

apply_command({add, Kind, Source, Key}, {Catalog, Model}) ->
    Added = erlmcp_catalog:add(Kind, Source, erlmcp_metaschemas:compiled(), Catalog),
    case {Added, lists:keymember(Key, 2, Model)} of
        {{ok, Next}, false} -> {Next, Model ++ [{Kind, Key, Source}]};
        {{error, {duplicate, Kind, Key}}, true} -> {Catalog, Model}
    end;
apply_command({remove, Kind, Key}, {Catalog, Model}) ->
    case {erlmcp_catalog:remove(Kind, Key, Catalog), lists:keymember(Key, 2, Model)} of
        {{ok, Next}, true} -> {Next, lists:keydelete(Key, 2, Model)};
        {{error, not_found}, false} -> {Catalog, Model}
    end.

lists() ->
    [{tool, ~"tools/list", ~"tools"}, {resource, ~"resources/list", ~"resources"},
     {resource_template, ~"resources/templates/list", ~"resourceTemplates"},
     {prompt, ~"prompts/list", ~"prompts"}].

is_listed(Kind, Revision, Principal, Size, Catalog, Model) ->
    {Kind, Method, Member} = lists:keyfind(Kind, 1, lists()),
    Page = decoded(erlmcp_catalog:first_page(Method, Revision, Principal, Catalog)),
    First = maps:get(Member, Page),
    Expected = [shown(Kind, Revision, Source) || {K, _, Source} <- Model, K =:= Kind,
                                                 sees(Principal, Source)],
    length(First) =:= min(Size, length(Expected))
        andalso is_scoped(Revision, is_shared(Kind, Model), Page)
        andalso First ++ following(Page, Method, Member, Revision, Principal, Catalog)
                    =:= Expected.

is_scoped('2026-07-28', true, #{~"cacheScope" := Scope}) -> Scope =:= ~"public";
is_scoped('2026-07-28', false, #{~"cacheScope" := Scope}) -> Scope =:= ~"private";
is_scoped(_, _, Page) -> not is_map_key(~"cacheScope", Page).

%% The definitions on the pages after this one, which is of the same scope.
following(#{~"nextCursor" := Cursor} = Page, Method, Member, Revision, Principal, Catalog) ->
    {ok, Bytes} = erlmcp_catalog:page(Method, Cursor, Revision, Principal, Catalog),
    #{Member := Items} = Next = decoded(Bytes),
    true = maps:get(~"cacheScope", Page, none) =:= maps:get(~"cacheScope", Next, none),
    Items ++ following(Next, Method, Member, Revision, Principal, Catalog);
following(#{}, _, _, _, _, _) ->
    [].

%% A definition as a revision's schema has it.
shown(Kind, Revision, Source) ->
    Known = schema_fields(Kind, Revision),
    Wire = #{Name => decoded(json:encode(maps:get(Field, Source)))
             || {Field, Name, _, _} <- erlmcp_definition:fields(Kind), is_map_key(Field, Source),
                lists:member(Name, Known)},
    maps:merge(shown_parts(Kind, Revision, Wire), execution(Revision, Source)).

%% What 2025-11-25 alone has.
execution('2025-11-25', #{task := Support}) ->
    #{~"execution" => #{~"taskSupport" => atom_to_binary(Support)}};
execution(_, _) ->
    #{}.

shown_parts(tool, Revision, Wire) ->
    Schema = maps:get(~"inputSchema", Wire, #{}),
    Whole = Wire#{~"inputSchema" => Schema#{~"type" => ~"object"}},
    case Whole of
        #{~"outputSchema" := #{~"type" := ~"object"}} -> Whole;
        #{~"outputSchema" := _} when Revision < '2026-07-28' -> maps:remove(~"outputSchema", Whole);
        #{} -> Whole
    end;
shown_parts(prompt, Revision, #{~"arguments" := Arguments} = Wire) when Revision < '2025-06-18' ->
    Wire#{~"arguments" := [maps:remove(~"title", Argument) || Argument <- Arguments]};
shown_parts(_, _, Wire) ->
    Wire.

%% The properties of schema.json in each revision.
schema_fields(Kind, Revision) ->
    schema_fields(Kind) ++ [~"name", ~"description"]
        ++ [Field || {Field, Since} <- [{~"title", '2025-06-18'}, {~"_meta", '2025-06-18'},
                                        {~"icons", '2025-11-25'}], Revision >= Since]
        ++ [Field || Kind =:= tool, {Field, Since} <- [{~"annotations", '2025-03-26'},
                                                       {~"outputSchema", '2025-06-18'}],
                     Revision >= Since].

schema_fields(tool) -> [~"inputSchema"];
schema_fields(resource) -> [~"uri", ~"mimeType", ~"size", ~"annotations"];
schema_fields(resource_template) -> [~"uriTemplate", ~"mimeType", ~"annotations"];
schema_fields(prompt) -> [~"arguments"].

is_found({tool, Key, _}, Principal, Catalog) ->
    is_of(Key, erlmcp_catalog:tool(Key, Principal, Catalog));
is_found({prompt, Key, _}, Principal, Catalog) ->
    is_of(Key, erlmcp_catalog:prompt(Key, Principal, Catalog));
is_found({resource, Key, _}, Principal, Catalog) ->
    case erlmcp_catalog:resource(Key, Principal, Catalog) of
        {ok, resource, Found, #{} = Variables} when map_size(Variables) =:= 0 ->
            is_of(Key, {ok, Found});
        error ->
            false
    end;
is_found({resource_template, Key, _}, Principal, Catalog) ->
    Uri = binary:replace(Key, ~"{id}", ~"7"),
    Known = is_of(Key, erlmcp_catalog:resource_template(Key, Principal, Catalog)),
    case erlmcp_catalog:resource(Uri, Principal, Catalog) of
        {ok, resource_template, Found, #{~"id" := ~"7"}} -> Known andalso is_of(Key, {ok, Found});
        error -> Known
    end.

is_of(Key, {ok, #{key := Found}}) -> Found =:= Key;
is_of(_, error) -> false.
