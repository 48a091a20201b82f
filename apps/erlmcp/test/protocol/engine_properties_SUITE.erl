-module(engine_properties_SUITE).
-moduledoc """
The protocol as a function, by properties: whatever a peer sends, `erlmcp_engine:handle/4` answers
as JSON-RPC says, and the same to the same. The oracles here read the message anew; they ask nothing
of the code that they judge.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([every_message_is_answered_as_json_rpc_says/1, every_outcome_was_reached/1,
         handling_is_a_function/1, stateless_requests_need_no_session/1,
         encoded_json_comes_in_as_it_went_out/1, messages_survive_the_wire/1]).

-import(erlmcp_test_json, [outcome/1]).
-import(erlmcp_test_property, [holds/2]).

-define(CASES, 1000).
-define(REVISIONS, ['2024-11-05', '2025-03-26', '2025-06-18', '2025-11-25', '2026-07-28']).

suite() ->
    [{timetrap, {minutes, 4}}].

all() ->
    [every_message_is_answered_as_json_rpc_says, every_outcome_was_reached,
     handling_is_a_function, stateless_requests_need_no_session,
     encoded_json_comes_in_as_it_went_out, messages_survive_the_wire].

holds(Property) ->
    holds(Property, ?CASES).

%% Messages: a request has one answer, with its id; "The receiver MUST NOT send a response" to a
%% notification; what is neither is refused, with its id "except in error cases where the ID could
%% not be read".
every_message_is_answered_as_json_rpc_says(_) ->
    Catalog = erlmcp_test_json:catalog(),
    holds(?FORALL({Json, Session}, {erlmcp_test_json:near_miss(), erlmcp_test_json:session()},
                  ?FORALL(RequestContext, erlmcp_test_json:request_context(Json),
                          is_right(Json, RequestContext, Catalog, Session))), 4 * ?CASES).

is_right(Json, RequestContext, Catalog, Session) ->
    {Effects, Next} = erlmcp_engine:handle(Json, RequestContext, Catalog, Session),
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
        %% What the client could not read has no id: that is taken as a notification is.
        Method =:= none, Answers =:= [~"error"], Id =:= none orelse Id =:= null -> notification;
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
                              progress_token := _,
                              call := #{server_meta := ServerMeta}} = Context}}, Id) ->
    is_function(Handler, 2) andalso is_map(Arguments) andalso is_map(Meta)
        andalso is_map(Capabilities) andalso is_binary(ServerMeta)
        andalso lists:member(Revision, ?REVISIONS)
        andalso case Kind of
                    tool -> is_map_key(name, Context);
                    prompt -> is_map_key(name, Context);
                    completion -> is_map_key(name, Context) orelse is_map_key(uri, Context);
                    _ -> is_map_key(uri, Context)
                end;
answers({answer, {Id, Method, #{}}, ok, {reply, 200, Bytes}}, Id) ->
    #{~"jsonrpc" := ~"2.0", ~"id" := Read, ~"result" := #{}} = Answer =
        json:decode(iolist_to_binary(Bytes)),
    is_binary(Method) andalso Read =:= Id andalso map_size(Answer) =:= 3
        andalso has_bytes(Id, Bytes);
answers({answer, {Id, Method, #{}}, _, _} = Answer, Id) ->
    is_binary(Method) andalso is_error(Answer, Id);
answers(_, _) ->
    false.

%% The outcome has the refusal that the message tells of.
is_error({answer, {_, _, _}, {refused, Refusal}, {reply, Status, Bytes}}, Id) ->
    Expected = atom_to_binary(erlmcp_refusal:name(Refusal)),
    Answer = json:decode(iolist_to_binary(Bytes)),
    #{~"error" := #{~"data" := #{~"name" := Expected}}} = Answer,
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
    Catalog = erlmcp_test_json:catalog(),
    Seen = ets:new(seen, []),
    holds(?FORALL({Json, Session}, {erlmcp_test_json:near_miss(), erlmcp_test_json:session()},
                  ?FORALL(RequestContext, erlmcp_test_json:request_context(Json),
                          begin
                              {Effects, _} = erlmcp_engine:handle(Json, RequestContext, Catalog,
                                                                  Session),
                              ets:insert(Seen, [{outcome(Effect)} || Effect <- Effects])
                          end)), 4 * ?CASES),
    [] = [accepted, cancel, response, batch, result, tool, prompt, resource, resource_template,
          completion, subscribe, unsubscribe, listen, -32600, -32601, -32602, -32020, -32022,
          -32002] -- [Outcome || {Outcome} <- ets:tab2list(Seen)].

%% "No process, clock, socket or table": the same in, the same out, also elsewhere.
handling_is_a_function(_) ->
    Catalog = erlmcp_test_json:catalog(),
    Elsewhere = spawn_link(fun() -> elsewhere(Catalog) end),
    holds(?FORALL({Json, Session}, {erlmcp_test_json:near_miss(), erlmcp_test_json:session()},
                  ?FORALL(RequestContext, erlmcp_test_json:request_context(Json),
                          begin
                              Elsewhere ! {self(), {Json, RequestContext, Session}},
                              Here = erlmcp_engine:handle(Json, RequestContext, Catalog, Session),
                              receive {Elsewhere, There} -> Here =:= There end
                          end))),
    unlink(Elsewhere),
    exit(Elsewhere, kill).

elsewhere(Catalog) ->
    receive
        {From, {Json, RequestContext, Session}} ->
            From ! {self(), erlmcp_engine:handle(Json, RequestContext, Catalog, Session)},
            elsewhere(Catalog)
    end.

%% 2026-07-28, Statelessness: "Servers MUST NOT rely on prior requests over the same connection to
%% establish context". A request that names a version in its `_meta` is answered the same in every
%% session, leaves it as it was, and says what kind of result it gives.
stateless_requests_need_no_session(_) ->
    Catalog = erlmcp_test_json:catalog(),
    holds(?FORALL({Json, One, Two},
                  {?SUCHTHAT(J, erlmcp_test_json:message(), is_modern(J)),
                   erlmcp_test_json:session(), erlmcp_test_json:session()},
                  ?FORALL(RequestContext, erlmcp_test_json:request_context(Json),
                          begin
                              {Effects, One} = erlmcp_engine:handle(Json, RequestContext, Catalog,
                                                                    One),
                              {Effects, Two} = erlmcp_engine:handle(Json, RequestContext, Catalog,
                                                                    Two),
                              says_its_type(Effects)
                          end))).

is_modern(#{~"id" := Id, ~"params" := #{~"_meta" := Meta}}) when is_map(Meta) ->
    is_id(Id) andalso is_map_key(~"io.modelcontextprotocol/protocolVersion", Meta);
is_modern(_) ->
    false.

says_its_type([{answer, _, ok, {reply, 200, Bytes}}]) ->
    #{~"result" := #{~"resultType" := ~"complete",
                     ~"_meta" := #{~"io.modelcontextprotocol/serverInfo" := #{~"name" := _}}}} =
        json:decode(iolist_to_binary(Bytes)),
    true;
says_its_type([{answer, _, {refused, _}, _}]) -> true;
says_its_type([{listen, _}]) -> true;
says_its_type([{call, #{context := #{revision := Revision}}}]) -> Revision =:= '2026-07-28'.

%% The values that the other properties are about are those that `erlmcp_json` reads.
encoded_json_comes_in_as_it_went_out(_) ->
    Limits = #{message_bytes => 1_000_000, depth => 100, members => 1000},
    holds(?FORALL(Json, erlmcp_test_json:json(),
                  begin
                      Bytes = iolist_to_binary(json:encode(Json)),
                      erlmcp_json:decode(Bytes, Limits) =:= {ok, Json}
                          andalso binary:match(Bytes, [~"\n", ~"\r"]) =:= nomatch
                  end)).

%% What `erlmcp_message` builds it also reads, and it is what it was.
messages_survive_the_wire(_) ->
    holds(?FORALL({Id, Method, Params},
                  {erlmcp_test_json:id(), erlmcp_test_json:text(), erlmcp_test_json:object()},
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
                      {response, undefined, {error, #{~"message" := Method}}} =
                          parsed(erlmcp_message:error(undefined, Refusal)),
                      {notification, Method, Params} = parsed(Notification),
                      {batch, [_, _] = Both} = parsed(erlmcp_message:batch([Result, Error])),
                      Both =:= [decoded(Result), decoded(Error)]
                          andalso decoded(Result) =:= #{~"jsonrpc" => ~"2.0", ~"id" => Id,
                                                        ~"result" => Params}
                  end)).

parsed(Bytes) -> erlmcp_message:parse(decoded(Bytes)).

decoded(Bytes) -> json:decode(iolist_to_binary(Bytes)).
