-module(erlmcp_httpd_stream).
-moduledoc """
A request of HTTP/1.1 or HTTP/2, as a cowboy stream handler. It lives in the connection's process,
which answers every request that needs no user code. A call runs in a process of its own, or here if
it is quick and no other call runs on the connection (`m:erlmcp_inline_call`).

`m:erlmcp_httpd_route` decides from the head what to do with a request. `m:erlmcp_httpd_sse` handles
requests of HTTP+SSE, and `m:erlmcp_httpd_page` those for pages. Any other answer is JSON, or a
stream. GET and subscriptions get a stream, and so do clients that read only streams. A call gets
one if its handler reports something before its result.

A stateless call ends with its request: a client that disconnects cancels the call. A call of a
session is owned by the session, and goes on.

Source: specification 2026-07-28 and 2025-11-25, "Transports / Streamable HTTP".

Internal.
""".

-behaviour(cowboy_stream).

%% Every request passes here.
-compile({inline, [stream/3, owner/1, check_head/3, with_extra/1, origin/1, with_known_meta/4,
                   decoded/3, admit/3, enter/4, stateless/3, in_session/3, in_session/4,
                   outcome/2]}).

-export([init/3, data/4, info/3, terminate/3, early_error/5]).

%% Milliseconds that a cancelled call has to end by itself.
-define(SHUTDOWN, 1000).

-record(stream, {
    owner :: erlmcp_call:owner(),
    %% the version of HTTP, and the address of the connection's other end
    from :: {Version :: atom(), {inet:ip_address(), inet:port_number()}},
    config :: erlmcp_httpd:config(),
    request_context :: none | erlmcp_engine:request_context(),
    %% the id of the session that the head names
    named = none :: none | binary(),
    principal :: erlmcp_auth:principal(),
    tenant :: undefined | erlmcp_admission:tenant(),
    %% whether the connection serves no other request at the same time
    alone :: boolean(),
    %% the method that the head announces; such a request enters before it is decoded
    announced = {post, both} ::
        erlmcp_admission:announced() | {post, erlmcp_httpd_route:accept()},
    accept = both :: erlmcp_httpd_route:accept(),
    %% further headers of the answer
    extra = #{} :: #{binary() => iodata()},
    body = none :: none | erlmcp_httpd_body:body(),
    %% what the request waits for
    call :: undefined | {call, pid(), erlmcp_call:subject()}
        %% the process of the session that has the call or the stream, or the one that stands for
        %% it here (`m:erlmcp_session_forward`)
        | {session, pid()}
        | {listen, erlmcp_message:id(), [erlmcp_engine:topic()],
           Closed :: erlmcp_subscription:closing()}
        %% a refusal that is held back
        | {refused, reference()},
    permit = none :: erlmcp_calls:permit(),
    streaming = false :: boolean(),
    %% that of the stream, if the answer has become one
    stream_permit :: undefined | erlmcp_gate:permit(),
    expiry = none :: erlmcp_httpd_auth:expiry(),
    %% the timer of the next `keep_alive`
    keep_alive = none :: none | reference(),
    %% whether bytes wait for the client to read, and the confirmations that are due after that
    full = false :: boolean(),
    unsaid = [] :: [fun(() -> ok)]
}).
%% The state while the identity is asked for, of a process or of another machine. Parts of the body
%% that arrive meanwhile are kept, the last first. The flow control of HTTP bounds them.
-record(asking, {
    request :: cowboy_req:req(),
    question :: erlmcp_httpd_route:question(),
    options :: cowboy:opts(),
    wait :: undefined | erlmcp_httpd_auth:wait(),
    kept = [] :: [{cowboy_stream:fin(), binary()}]
}).
%% The state after the answer. The rest of the body is dropped.
-record(answered, {body :: erlmcp_httpd_body:body() | none}).
%% The state of a request that another module handles: one of HTTP+SSE, or one for a page.
-record(handed_over, {
    module :: erlmcp_httpd_sse | erlmcp_httpd_page,
    state :: erlmcp_httpd_sse:state() | erlmcp_httpd_page:state(),
    extra :: #{binary() => iodata()}
}).

-doc false.
init(StreamId, #{route := Route} = Request, _) ->
    serve(Route, StreamId, Request);
init(StreamId, Request, #{erlmcp := #{instance := #{limits := Limits}}} = Options) ->
    ok = erlmcp_heap:bound_connection(Limits),
    resolved(erlmcp_httpd_route:resolve(Request, Options), StreamId, Request, Options).

resolved({serve, Route}, StreamId, Request, _) ->
    serve(Route, StreamId, Request);
resolved({ask, Question}, StreamId, Request, Options) ->
    #{erlmcp := #{instance := Instance}, erlmcp_route := #{auth := Auth}} = Options,
    Answer = erlmcp_httpd_auth:ask(Auth, erlmcp_httpd_route:question(Question, Options),
                                   owner(StreamId), Instance),
    identified(Answer, StreamId, #asking{request = Request, question = Question,
                                         options = Options});
resolved({refuse, Refusal, Headers}, StreamId, Request, #{erlmcp := Config}) ->
    ok = unread(Refusal, Request, Config),
    forgotten(erlmcp_httpd_body:refuse(Refusal, Headers, Request, owner(StreamId), Config));
resolved({page, #{extra := Extra} = Asked}, StreamId, Request, #{erlmcp := Config}) ->
    Said = erlmcp_httpd_page:init(Asked, owner(StreamId), Request, Config),
    handed_over(Said, erlmcp_httpd_page, Extra);
resolved({answer, Commands}, _, Request, _) ->
    {erlmcp_httpd_body:room(Request) ++ Commands, #answered{body = none}}.

%% A request is refused before its body was read. Its head may tell its method.
unread(Refusal, #{headers := Headers}, #{instance := Instance}) ->
    erlmcp_meter:refused(maps:get(~"mcp-method", Headers, undefined), Refusal, Instance).

owner(StreamId) ->
    {self(), {self(), StreamId}}.

forgotten({more, Commands, Body}) -> {Commands, #answered{body = Body}};
forgotten({ended, Commands}) -> {Commands, #answered{body = none}}.

identified({wait, Commands, Wait}, _, Asking) ->
    {Commands, Asking#asking{wait = Wait}};
identified(Answer, StreamId, #asking{question = Question, options = Options, kept = Kept,
                                     request = Request}) ->
    Resolved = erlmcp_httpd_route:identified(Answer, Question, Options),
    replay(StreamId, lists:reverse(Kept), resolved(Resolved, StreamId, Request, Options)).

%% Handles the parts of the body that arrived meanwhile, unless the request is answered already.
replay(_, [], Reached) ->
    Reached;
replay(StreamId, [{IsFin, Data} | Kept], {Commands, State}) ->
    case lists:member(stop, Commands) of
        true ->
            {Commands, State};
        false ->
            {More, Next} = data(StreamId, IsFin, Data, State),
            replay(StreamId, Kept, {Commands ++ More, Next})
    end.

%% A request whose body arrived with its head may enter by the method that the head announces.
serve(#{asks := {post, Accept, Announced}} = Route, StreamId, #{body := Body} = Request) ->
    Stream = (stream(Route, StreamId, Request))#stream{accept = Accept, announced = Announced},
    case check_head(Announced, Request, Stream) of
        ok -> with_extra(message(Body, Stream));
        {refuse, Refusal, Headers} -> refuse(Refusal, Headers, Request, Stream)
    end;
serve(#{asks := {post, Accept, Announced}} = Route, StreamId, Request) ->
    Stream = (stream(Route, StreamId, Request))#stream{accept = Accept, announced = Announced},
    case check_head({post, Accept}, Request, Stream) of
        ok ->
            #stream{owner = Owner, config = Config} = Stream,
            with_extra(received(erlmcp_httpd_body:read(Request, Owner, Config), Stream));
        {refuse, Refusal, Headers} ->
            refuse(Refusal, Headers, Request, Stream)
    end;
serve(#{asks := {sse, _} = Asks, extra := Extra} = Route, StreamId, Request) ->
    Stream = stream(Route, StreamId, Request),
    case check_head(Asks, Request, Stream) of
        ok ->
            handed_over(erlmcp_httpd_sse:init(Route, owner(StreamId), Request), erlmcp_httpd_sse,
                        Extra);
        {refuse, Refusal, Headers} ->
            refuse(Refusal, Headers, Request, Stream)
    end;
serve(#{asks := Asks} = Route, StreamId, Request) ->
    Stream = stream(Route, StreamId, Request),
    case check_head(Asks, Request, Stream) of
        ok ->
            {Commands, Asked} = of_session(Asks, Request, Stream),
            with_extra({erlmcp_httpd_body:room(Request) ++ Commands, Asked});
        {refuse, Refusal, Headers} -> refuse(Refusal, Headers, Request, Stream)
    end.

stream(#{config := Config, request_context := RequestContext, session := Named,
         principal := Principal, tenant := Tenant, extra := Extra},
       StreamId, #{version := Version, peer := Peer}) ->
    #stream{owner = owner(StreamId), from = {Version, Peer}, config = Config,
            request_context = RequestContext, named = Named, principal = Principal,
            tenant = Tenant, extra = Extra,
            alone = Version =/= 'HTTP/2'}.

check_head(Asks, Request, #stream{principal = Principal, config = #{instance := Instance}}) ->
    erlmcp_admission:check_head(Asks, Request, Principal, Instance).

refuse(Refusal, Headers, Request, #stream{owner = Owner, config = Config, extra = Extra}) ->
    ok = unread(Refusal, Request, Config),
    forgotten(erlmcp_httpd_body:refuse(Refusal, maps:merge(Headers, Extra), Request, Owner,
                                       Config)).

with_extra({_, #stream{extra = Extra}} = Said) when map_size(Extra) =:= 0 -> Said;
with_extra({Commands, #stream{extra = Extra} = Stream}) ->
    {erlmcp_httpd_response:with(Extra, Commands), Stream}.

handed_over({Commands, State}, Module, Extra) when map_size(Extra) =:= 0 ->
    {Commands, #handed_over{module = Module, state = State, extra = Extra}};
handed_over({Commands, State}, Module, Extra) ->
    {erlmcp_httpd_response:with(Extra, Commands),
     #handed_over{module = Module, state = State, extra = Extra}}.

of_session({Asks, Id}, #{headers := Headers}, Stream) ->
    #stream{request_context = Context, config = #{instance := Instance}} = Stream,
    LastEventId = maps:get(~"last-event-id", Headers, none),
    case {erlmcp_session_forward:place(Asks, Id, Context, Instance), Asks} of
        {{away, Home}, get} -> forward({get, LastEventId}, Home, Stream);
        {{away, Home}, delete} -> forward(delete, Home, Stream);
        {_, get} -> attach(Id, LastEventId, Stream);
        {_, delete} -> delete(Id, Stream)
    end.

attach(Id, LastEventId, #stream{owner = Owner, principal = Principal, config = Config} = Stream) ->
    #{instance := Instance} = Config,
    case erlmcp_session_request:get(Id, Principal, {Owner, LastEventId}, Instance) of
        {ok, Pid} -> attached(Stream#stream{call = {session, Pid}});
        {refuse, Refusal} -> {refuse_unread(Refusal, Stream), Stream}
    end.

attached(Stream) ->
    start_stream(erlmcp_sse:comment(), lasting(expiring(Stream))).

delete(Id, #stream{principal = Principal, config = #{instance := Instance}} = Stream) ->
    case erlmcp_session_request:delete(Id, Principal, Instance) of
        ok -> {erlmcp_httpd_response:respond(204, #{}, <<>>), Stream};
        {refuse, Refusal} -> {refuse_unread(Refusal, Stream), Stream}
    end.

%% Passes a request on to the home of its session.
forward(Asks, Home, #stream{owner = Owner, from = From, request_context = Context, named = Id,
                            tenant = Tenant, accept = Accept, config = Config} = Stream) ->
    #{instance := Instance} = Config,
    Pid = erlmcp_session_forward:start(#{session => Id, home => Home, asks => Asks,
                                         context => Context, tenant => Tenant, from => From,
                                         waiting => Owner, streams => Accept =/= json}, Instance),
    {[{spawn, Pid, ?SHUTDOWN}], waiting(Stream#stream{call = {session, Pid}})}.

-doc false.
data(StreamId, IsFin, Data, #stream{} = Stream) ->
    with_extra(body(StreamId, IsFin, Data, Stream));
%% The flow control of HTTP/2 bounds no empty frames.
data(_, nofin, <<>>, #asking{} = Asking) ->
    {[], Asking};
data(_, IsFin, Data, #asking{kept = Kept} = Asking) ->
    {[], Asking#asking{kept = [{IsFin, Data} | Kept]}};
data(_, _, _, #answered{body = none} = Answered) ->
    {[], Answered};
data(_, IsFin, Data, #answered{body = Body}) ->
    forgotten(erlmcp_httpd_body:data(IsFin, Data, Body));
data(_, IsFin, Data, #handed_over{module = Module, state = State, extra = Extra}) ->
    handed_over(Module:data(IsFin, Data, State), Module, Extra).

%% With HTTP/2 the empty body of GET may arrive as a frame of its own. What is in it is dropped.
body(_, _, _, #stream{body = none} = Stream) ->
    {[], Stream};
body(_, IsFin, Data, #stream{body = Body} = Stream) ->
    received(erlmcp_httpd_body:data(IsFin, Data, Body), Stream).

received({more, Commands, Body}, Stream) -> {Commands, Stream#stream{body = Body}};
received({whole, Bytes}, Stream) -> message(Bytes, Stream#stream{body = none});
received({ended, Commands}, Stream) -> {Commands, Stream#stream{body = none}};
received({refused, Refusal, Headers}, #stream{request_context = Head, config = Config} = Stream) ->
    ok = unread(Refusal, Head, Config),
    {erlmcp_httpd_response:refuse(Refusal, undefined, Headers), Stream#stream{body = none}}.

%% The message.

message(Bytes, #stream{announced = Announced, tenant = Tenant, config = Config} = Stream) ->
    #{instance := Instance} = Config,
    Arrival = erlmcp_meter:arrived(byte_size(Bytes), origin(Stream)),
    case erlmcp_admission:enter_announced(Announced, Bytes, Arrival, Tenant, Instance) of
        {refuse, Id, Refusal} -> refused(Refusal, erlmcp_reply:refuse(Id, Refusal), Stream);
        {ok, Admitted, Begun} -> with_known_meta(Begun, Bytes, Admitted, Stream);
        undecoded -> decoded({undecoded, Arrival}, Bytes, Stream)
    end.

origin(#stream{config = #{instance := #{tracer := none}}}) ->
    none;
origin(#stream{from = {Version, Peer}, request_context = #{headers := Headers}}) ->
    {http, Version, Peer, Headers}.

with_known_meta(Begun, Bytes, Admitted, #stream{announced = Announced, config = Config} = Stream) ->
    #{instance := #{limits := Limits} = Instance} = Config,
    case erlmcp_connection_cache:request(Bytes, Begun, Announced, Limits) of
        {ok, Request} ->
            Catalog = erlmcp_published_catalog:catalog(Instance),
            Effects = [erlmcp_engine:request(Request, Stream#stream.request_context, Catalog)],
            perform(erlmcp_admission:effects(Effects, Admitted, Stream#stream.tenant, Instance),
                    #{}, Stream);
        other ->
            decoded({ok, Admitted}, Bytes, Stream)
    end.

decoded(Entered, Bytes, #stream{config = #{instance := #{limits := Limits}}} = Stream) ->
    case {erlmcp_connection_cache:decode(Bytes, Limits), Entered} of
        {{ok, Json}, {undecoded, Arrival}} ->
            admit(Json, Arrival, Stream);
        {{ok, Json}, {ok, Admitted}} ->
            handle(Json, Admitted, none, Stream);
        {{error, Reason}, _} ->
            _ = [ok = erlmcp_admission:abandon(Admitted) || {ok, Admitted} <- [Entered]],
            {refuse_unread(erlmcp_params:unreadable(Reason), Stream), Stream}
    end.

%% Refuses a request whose message cannot be read.
refuse_unread(Refusal, #stream{request_context = Head, config = Config}) ->
    ok = unread(Refusal, Head, Config),
    erlmcp_httpd_response:refuse(Refusal).

admit(Json, Arrival, #stream{named = <<Id/binary>>,
                             config = #{instance := #{cluster := {_, _}}}} = Stream) ->
    #stream{request_context = Context, config = #{instance := Instance}} = Stream,
    case erlmcp_session_forward:place(Json, Id, Context, Instance) of
        {here, Session} -> enter(Json, Arrival, Session, Stream);
        here -> enter(Json, Arrival, none, Stream);
        {away, Home} -> forward({message, Json, Arrival}, Home, Stream)
    end;
admit(Json, Arrival, Stream) ->
    enter(Json, Arrival, none, Stream).

%% `Session` is the message's session if it was found before, or `none`.
enter(Json, Arrival, Session, Stream) ->
    #stream{tenant = Tenant, config = #{instance := Instance}} = Stream,
    case erlmcp_admission:enter(Json, Arrival, Tenant, Instance) of
        {ok, Message, Admitted} ->
            handle(Message, Admitted, Session, Stream);
        {refuse, Id, Refusal} ->
            #stream{request_context = RequestContext, named = Named} = Stream,
            Reply = erlmcp_admission:refused(Id, Refusal, Json, RequestContext, Named =/= none),
            refused(Refusal, Reply, Stream);
        %% The status tells of the refusal. Its error has no id.
        {unanswered, Refusal} ->
            refused(Refusal, erlmcp_reply:refuse(undefined, Refusal), Stream);
        {answer, Answer} ->
            perform([{reply, 200, Answer}], #{}, Stream)
    end.

refused(Refusal, Reply, #stream{owner = {Pid, Tag}, config = Config} = Stream) ->
    #stream{request_context = #{headers := Headers}} = Stream,
    case erlmcp_admission:hold_back(Refusal, Headers, Config) of
        0 ->
            perform([Reply], #{}, Stream);
        Milliseconds ->
            Timer = erlang:send_after(Milliseconds, Pid, {Tag, {refused, Reply}}),
            {[], Stream#stream{call = {refused, Timer}}}
    end.

handle(Json, Admitted, none, #stream{named = none} = Stream) ->
    stateless(Json, Admitted, Stream);
handle(Json, Admitted, none, #stream{request_context = RequestContext} = Stream) ->
    case erlmcp_engine:era(Json, RequestContext) of
        stateless -> stateless(Json, Admitted, Stream);
        session -> in_session(Json, Admitted, Stream)
    end;
handle(Json, Admitted, Session, Stream) ->
    in_session(Json, Admitted, Session, Stream).

stateless(Json, Admitted, #stream{request_context = RequestContext, tenant = Tenant} = Stream) ->
    #stream{config = #{instance := Instance}} = Stream,
    Catalog = erlmcp_published_catalog:catalog(Instance),
    Known = RequestContext#{meta => erlmcp_connection_cache:known_meta(Json)},
    {Effects, Session} = erlmcp_engine:handle(Json, Known, Catalog, none),
    {Opened, Headers} = open_session(Session, Effects, Stream),
    perform(erlmcp_admission:effects(Opened, Admitted, Tenant, Instance), Headers, Stream).

in_session(Json, Admitted, #stream{named = Id, principal = Principal} = Stream) ->
    #stream{tenant = Tenant, config = #{instance := Instance}} = Stream,
    case erlmcp_session_request:find(Id, Principal, Instance) of
        unknown ->
            Refusal = erlmcp_session_request:gone(),
            Gone = erlmcp_engine:refuse(erlmcp_admission:summary(Json), Refusal),
            perform(erlmcp_admission:effects([Gone], Admitted, Tenant, Instance), #{}, Stream);
        Session ->
            in_session(Json, Admitted, Session, Stream)
    end.

in_session(Json, Admitted, Session, Stream) ->
    #stream{request_context = RequestContext, owner = Owner, accept = Accept, alone = Alone,
            tenant = Tenant, config = #{instance := Instance}} = Stream,
    Request = #{context => RequestContext, tenant => Tenant, waiting => Owner,
                streams => Accept =/= json, instance => Instance,
                quick => Alone orelse not erlmcp_httpd_http2:has_calls()},
    outcome(erlmcp_session_request:message(Json, Admitted, Session, Request), Stream).

outcome({reply, Status, Bytes}, Stream) ->
    {answer(Status, #{}, Bytes, Stream), Stream};
outcome({session, Pid}, Stream) ->
    {[], waiting(Stream#stream{call = {session, Pid}})};
outcome(accepted, Stream) ->
    {erlmcp_httpd_response:respond(202, #{}, <<>>), Stream};
outcome({gone, Id}, Stream) ->
    {erlmcp_httpd_response:refuse(erlmcp_session_request:gone(), Id, #{}), Stream}.

%% An `initialize` has opened a session, unless the server has no room for it.
open_session(none, Effects, _) ->
    {Effects, #{}};
open_session(Session, [{answer, Asked, ok, _}] = Effects,
             #stream{tenant = Tenant, config = #{instance := Instance}}) ->
    case erlmcp_session:open(Session, Tenant, Instance) of
        {ok, SessionId} ->
            {Effects, #{~"mcp-session-id" => SessionId}};
        {error, Refusal} ->
            {[erlmcp_engine:refuse(Asked, Refusal)], #{}}
    end.

%% The engine's effects, as the commands of a stream handler.

perform([{reply, Status, Bytes}], Headers, Stream) ->
    {answer(Status, Headers, Bytes, Stream), Stream};
perform([accepted], _, Stream) ->
    {erlmcp_httpd_response:respond(202, #{}, <<>>), Stream};
perform([{listen, _, About}], _, #stream{accept = json} = Stream) ->
    #stream{request_context = #{headers := Headers}} = Stream,
    refuse_listen(erlmcp_httpd_route:no_stream(Headers), About, Stream);
perform([{listen, Listen, About}], _, Stream) ->
    listen(Listen, About, Stream);
perform([{cancel, _} | Effects], Headers, Stream) ->
    perform(Effects, Headers, Stream);
perform([{call, #{definition := #{quick := _}} = Call}], Headers,
        #stream{alone = Alone, config = #{instance := Instance}} = Stream) ->
    case (Alone orelse not erlmcp_httpd_http2:has_calls())
        andalso erlmcp_inline_call:run(Call, Instance) of
        %% A stateless client has asked for no reports.
        {Reply, _} -> perform([Reply], Headers, Stream);
        _ -> start(Call, Stream)
    end;
perform([{call, Call}], _, Stream) ->
    start(Call, Stream).

start(Call, #stream{owner = {_, Tag}, config = #{instance := Instance}} = Stream) ->
    Pid = erlmcp_call:start(Call, Instance, Tag),
    Began = Stream#stream{call = {call, Pid, erlmcp_call:subject(Call)},
                          permit = erlmcp_call:permit(Call)},
    ok = count_start(Began),
    {[{spawn, Pid, ?SHUTDOWN}], waiting(Began)}.

%% Cowboy ends a connection of HTTP/2 whose process is sent nothing for long, even if requests wait
%% on it (`inactivity_timeout` of `m:erlmcp_httpd`).
waiting(#stream{alone = true} = Stream) -> Stream;
waiting(Stream) -> keep_alive(Stream).

%% The request stays open as a stream until its client or the server ends it.
listen(#{id := Id, topics := Topics, closed := Closed, acknowledged := Acknowledged}, About,
       #stream{owner = Owner, principal = Principal, tenant = Tenant, config = Config} = Stream) ->
    #{instance := Instance} = Config,
    #{limits := #{subscriptions := MaxTopics, subscriptions_per_principal := Max} = Limits} =
        Instance,
    maybe
        ok ?= few(length(Topics), MaxTopics),
        ok ?= erlmcp_subscriptions:add_counted(Topics, Owner, Id, {Principal, Tenant}, Max,
                                               erlmcp_instance:subscriptions(Instance)),
        ok = erlmcp_meter:ended(About, ok, iolist_size(Acknowledged), Instance),
        %% The first event has the time to reconnect, since clients that lose their streams together
        %% would reconnect together.
        Retry = erlmcp_session_streams:retry_ms(Limits),
        start_stream(erlmcp_sse:event(#{retry => Retry, data => Acknowledged}),
                     lasting(expiring(Stream#stream{call = {listen, Id, Topics, Closed}})))
    else
        {refuse, Refusal} -> refuse_listen(Refusal, About, Stream);
        {full, Observed} ->
            refuse_listen(erlmcp_subscriptions:refusal(Max, Observed), About, Stream)
    end.

refuse_listen(Refusal, About, #stream{config = #{instance := Instance}} = Stream) ->
    perform([erlmcp_admission:watched({refuse, Refusal}, About, '2026-07-28', Instance)], #{},
            Stream).

few(Topics, Max) when Topics > Max ->
    {refuse, erlmcp_refusal:new(concurrent_limit_exceeded,
                                ~"too many resources in one subscription",
                                #{limit => Max, observed => Topics})};
few(_, _) ->
    ok.

%% Ends the stream, with the message that tells its client.
closed(Closed) ->
    Messages = erlmcp_subscription:closed(Closed),
    [{data, fin, [erlmcp_sse:event(Message) || Message <- Messages]}, stop].

%% A request that may stay open for long keeps nothing of its head.
lasting(#stream{config = Config, owner = {_, Tag}} = Stream) ->
    ok = erlmcp_httpd_http2:stream_lasts(Tag),
    Stream#stream{request_context = none, named = none,
                  config = maps:without([identity, insufficient], Config)}.

%% Messages of the call, the session and the timers.

-doc false.
info(_, Message, #stream{} = Stream) ->
    with_extra(notified(Message, Stream));
info(StreamId, Message, #handed_over{module = Module, state = State, extra = Extra}) ->
    handed_over(Module:info(StreamId, Message, State), Module, Extra);
info(StreamId, Message, #asking{wait = Wait, options = Options} = Asking) ->
    #{erlmcp_route := #{auth := Auth}} = Options,
    case erlmcp_httpd_auth:answered(Auth, Message, Wait) of
        ignored -> {[], Asking};
        Answer -> identified(Answer, StreamId, Asking)
    end;
info(_, receive_timeout, #answered{body = Body}) when Body =/= none ->
    forgotten(erlmcp_httpd_body:late(Body));
info(_, _, Answered) ->
    {[], Answered}.

notified({notification, Bytes, Unread}, #stream{accept = json} = Stream) ->
    ok = erlmcp_notification_window:written(byte_size(Bytes), Unread),
    {[], Stream};
notified({notification, Bytes, Unread}, #stream{call = {call, _, _}} = Stream) ->
    streamed(erlmcp_sse:event(Bytes), more,
             written(fun() -> erlmcp_notification_window:written(byte_size(Bytes), Unread) end,
                     Stream));
notified({stream, Key, Event, More}, #stream{call = {session, Pid}} = Stream) ->
    %% All events before this one have been written.
    streamed(erlmcp_sse:event(Event), More,
             written(fun() -> erlmcp_session:written(Pid, Key) end, Stream));
notified({event, Id, _, Encoded, Pending}, #stream{call = {listen, Id, _, _}} = Stream) ->
    {erlmcp_httpd_response:event(erlmcp_subscriptions:encoded(Id, Encoded)),
     written(fun() -> erlmcp_subscriptions:received(Pending) end, Stream)};
notified({refused, Reply}, Stream) ->
    perform([Reply], #{}, Stream);
notified({forwarded, Outcome}, #stream{call = {session, _}} = Stream) ->
    forwarded(Outcome, Stream);
%% The process that stands for the session has crashed.
notified({'EXIT', Pid, Reason}, #stream{call = {session, Pid}, streaming = Streaming} = Stream) when
    Reason =/= normal
->
    Ended = Stream#stream{call = undefined},
    case Streaming of
        true ->
            {erlmcp_httpd_response:ended(both, true), Ended};
        false ->
            Refusal = erlmcp_refusal:new(internal_error, ~"internal error"),
            {refuse_unread(Refusal, Ended), Ended}
    end;
%% Bytes wait for the client to read them (`m:erlmcp_httpd_backpressure`).
notified({alarm, _, on}, Stream) ->
    {[], Stream#stream{full = true}};
notified({alarm, _, off}, #stream{unsaid = Unsaid} = Stream) ->
    lists:foreach(fun(Written) -> Written() end, lists:reverse(Unsaid)),
    {[], Stream#stream{full = false, unsaid = []}};
notified({closing, Id}, #stream{call = {listen, Id, _, Closed}} = Stream) ->
    {closed(Closed), Stream};
%% An open stream ends when its token expires, and its client reconnects with another token. It ends
%% with its connection, too, when the server ends.
notified(End, #stream{call = {listen, _, _, Closed}} = Stream) when
    End =:= {identity, expired}; End =:= closing
->
    {closed(Closed), Stream};
notified({identity, expired}, #stream{call = {session, Pid}} = Stream) ->
    detached(Pid, Stream);
%% The session's own stream ends. The stream of a call lasts until the call's answer.
notified(closing, #stream{call = {session, Pid}, request_context = none} = Stream) ->
    detached(Pid, Stream);
notified({'EXIT', Pid, {erlmcp_answer, Status, Bytes}},
     #stream{call = {call, Pid, _}} = Stream) ->
    finish({reply, Status, Bytes}, Stream);
notified({answer, Status, Bytes}, #stream{call = {session, _}} = Stream) ->
    finish({reply, Status, Bytes}, Stream);
notified({deadline, Pid, Milliseconds}, #stream{call = {call, Pid, Subject}} = Stream) ->
    #stream{permit = Permit, config = #{instance := Instance}} = Stream,
    exit(Pid, kill),
    ok = erlmcp_calls:leave(Permit),
    finish(erlmcp_call:timed_out(Pid, Milliseconds, Subject, Instance), Stream);
notified({end_call, Ender, Pid}, #stream{call = {call, Pid, Subject}} = Stream) ->
    #stream{permit = Permit, config = #{instance := Instance}} = Stream,
    exit(Pid, kill),
    ok = erlmcp_calls:leave(Permit),
    finish(erlmcp_call:ended_by(Ender, Pid, Subject, Instance), Stream);
notified({'EXIT', Pid, Reason},
     #stream{call = {call, Pid, Subject}, config = #{instance := Instance}} = Stream) ->
    ok = erlmcp_calls:leave(Stream#stream.permit),
    finish(erlmcp_call:died(Reason, Subject, Instance), Stream);
notified(cancelled, #stream{accept = Accept, streaming = Streaming} = Stream) ->
    {erlmcp_httpd_response:ended(Accept, Streaming), Stream#stream{call = undefined}};
notified(keep_alive, #stream{streaming = true} = Stream) ->
    {erlmcp_httpd_response:comment(), keep_alive(Stream)};
notified(keep_alive, #stream{call = Call} = Stream) when Call =/= undefined ->
    {[], keep_alive(Stream)};
notified(receive_timeout, #stream{body = Body} = Stream) when Body =/= none ->
    received(erlmcp_httpd_body:late(Body), Stream);
notified(broken_body, #stream{body = Body} = Stream) when Body =/= none ->
    received(erlmcp_httpd_body:broken(Body), Stream);
notified({unfinished, Verdict}, #stream{body = Body} = Stream) when Body =/= none ->
    received(erlmcp_httpd_body:verdict(Verdict, Body), Stream);
notified(_, Stream) ->
    {[], Stream}.

%% The outcome of a request that was passed on to the home of its session, if it is no answer.
forwarded(attached, Stream) ->
    attached(Stream);
forwarded(Outcome, Stream) ->
    Ended = Stream#stream{call = undefined},
    case Outcome of
        ended -> {erlmcp_httpd_response:respond(204, #{}, <<>>), Ended};
        {refused, Refusal, Reply} -> refused(Refusal, Reply, Ended);
        {refuse, Refusal} -> {refuse_unread(Refusal, Ended), Ended};
        _ -> outcome(Outcome, Ended)
    end.

%% Detached before the client notices the end: the client may open the session's stream again at
%% once, and a session has only one.
detached(Pid, #stream{owner = Owner} = Stream) ->
    ok = erlmcp_session:detach(Pid, Owner),
    {[{data, fin, <<>>}, stop], Stream#stream{call = undefined}}.

%% Confirms to the sender of an event that it is written. The sender sends only a few events before
%% that.
written(Written, #stream{full = true, unsaid = Unsaid} = Stream) ->
    Stream#stream{unsaid = [Written | Unsaid]};
written(Written, Stream) ->
    ok = Written(),
    Stream.

streamed(Event, last, #stream{streaming = true} = Stream) ->
    {[{data, fin, Event}, stop], Stream#stream{call = undefined}};
streamed(Event, more, #stream{streaming = true} = Stream) ->
    {[{data, nofin, Event}], Stream};
streamed(Event, more, Stream) ->
    start_stream(Event, Stream).

finish({reply, Status, Bytes}, Stream) ->
    Commands = answer(Status, #{}, Bytes, Stream),
    ok = count_end(Stream),
    {Commands, Stream#stream{call = undefined}}.

%% An HTTP/2 connection counts its running calls, since they would end with it.
count_start(#stream{alone = false}) -> erlmcp_httpd_http2:call_began();
count_start(_) -> ok.

count_end(#stream{alone = false, call = {call, _, _}}) -> erlmcp_httpd_http2:call_ended();
count_end(_) -> ok.

-doc false.
terminate(StreamId, Reason, #stream{keep_alive = Timer} = Stream) when Timer =/= none ->
    _ = erlang:cancel_timer(Timer),
    terminate(StreamId, Reason, Stream#stream{keep_alive = none});
terminate(_, _, #stream{streaming = true, owner = {_, Tag}, stream_permit = Permit} = Stream) ->
    ok = erlmcp_httpd_http2:stream_ended(Tag),
    ok = erlmcp_httpd_auth:forget_expiry(Stream#stream.expiry),
    ok = erlmcp_gate:leave(Permit),
    ended(Stream);
terminate(_, _, State) ->
    ended(State).

%% The call of a disconnected client may run for its last second without a permit.
ended(#stream{call = {call, Pid, Subject}, permit = Permit} = Stream) ->
    ok = count_end(Stream),
    ok = erlmcp_calls:leave(Permit),
    #stream{config = #{instance := Instance}} = Stream,
    erlmcp_call:cancelled(Pid, Subject, Instance);
ended(#stream{call = {session, Pid}, owner = Owner}) ->
    erlmcp_session:detach(Pid, Owner);
ended(#stream{call = {listen, Id, Topics, _}, owner = Owner, config = Config}) ->
    #{instance := Instance} = Config,
    erlmcp_subscriptions:remove(Topics, Owner, Id, erlmcp_instance:subscriptions(Instance));
ended(#stream{call = {refused, Timer}}) ->
    _ = erlang:cancel_timer(Timer),
    ok;
ended(#stream{body = none}) ->
    ok;
ended(#stream{body = Body}) ->
    erlmcp_httpd_body:forget(Body);
ended(#handed_over{module = Module, state = State}) ->
    Module:terminate(State);
ended(#asking{wait = Wait}) ->
    erlmcp_httpd_auth:forget(Wait);
ended(#answered{body = Body}) ->
    erlmcp_httpd_body:forget(Body).

-doc false.
early_error(_, _, _, Response, _) ->
    Response.

expiring(#stream{owner = Owner, config = #{identity := Identity}} = Stream) ->
    Stream#stream{expiry = erlmcp_httpd_auth:expire(Identity, Owner)}.

start_stream(First, #stream{config = #{instance := #{gate := Gate} = Instance}} = Stream) ->
    ok = erlmcp_meter:stream_opened(Instance),
    Streaming = keep_alive(Stream),
    {erlmcp_httpd_response:stream(First),
     Streaming#stream{streaming = true, stream_permit = erlmcp_gate:stream(Gate)}}.

keep_alive(#stream{owner = {Pid, Tag}, keep_alive = Before} = Stream) ->
    #stream{config = #{instance := #{limits := #{keep_alive_ms := Interval}}}} = Stream,
    _ = Before =:= none orelse erlang:cancel_timer(Before),
    Stream#stream{keep_alive = erlang:send_after(Interval, Pid, {Tag, keep_alive})}.

answer({403, Scopes}, Headers, Bytes, #stream{config = #{insufficient := Insufficient}} = Stream)
        when is_list(Scopes) ->
    answer(403, maps:merge(Headers, Insufficient(Scopes)), Bytes, Stream);
answer(Status, Headers, Bytes, #stream{accept = Accept, streaming = Streaming}) ->
    erlmcp_httpd_response:answer(Status, Headers, Bytes, Accept, Streaming).
