-module(erlmcp_httpd_stream).
-moduledoc """
One HTTP request, as a cowboy stream handler: it lives in the connection's process, so that what
needs no user code is answered without another. A call runs in a process of its own, but for one
that is quick (`m:erlmcp_inline_call`) where no other runs on its connection; its answer is JSON, or
a stream if the handler reports something before it.

A stateless call ends with its request: a client that goes away cancels it. A session's call is
owned by the session and does not.

Source: specification 2026-07-28 and 2025-11-25, "Transports / Streamable HTTP".
""".

-behaviour(cowboy_stream).

%% Every request passes here.
-compile({inline, [owned/2, announced/4, decoded/3, admit/3]}).

-export([new/2, in_session/2, serve/4]).
-export([init/3, data/4, info/3, terminate/3, early_error/5]).

-export_type([stream/0]).

%% Milliseconds that a cancelled call has to end by itself.
-define(SHUTDOWN, 1000).

-record(stream, {
    owner :: erlmcp_call:owner(),
    config :: erlmcp_httpd_config:config(),
    %% who asks, and the head; and the session that it names
    envelope :: none | erlmcp_engine:envelope(),
    named = none :: none | binary(),
    principal :: erlmcp_auth:principal(),
    flow :: undefined | erlmcp_admission:tenant(),
    %% whether its connection has no other request meanwhile
    alone :: boolean(),
    asked = {post, both} :: erlmcp_admission:announced() | {post, erlmcp_httpd_request:accept()},
    accept = both :: erlmcp_httpd_request:accept(),
    session = none :: none | erlmcp_httpd_session:session(),
    body = none :: none | erlmcp_httpd_body:body(),
    %% what runs: whose answer is waited for
    call :: undefined | {call, pid(), erlmcp_message:id(), erlmcp_call:subject()}
        %% a session's process, whose call or whose stream this is
        | {session, pid()}
        | {listen, erlmcp_message:id(), [erlmcp_engine:topic()],
           Closed :: erlmcp_subscription:closing()}
        %% a refusal that is held back
        | {refused, reference()},
    place = none :: erlmcp_calls:place(),
    streaming = false :: boolean(),
    %% whether the client does not read, and who is to be told when it has
    full = false :: boolean(),
    unsaid = [] :: [fun(() -> ok)]
}).

-opaque stream() :: #stream{}.

-doc "What the head of a POST request comes to, of whichever request; or its refusal.".
-spec new(cowboy_req:req(), erlmcp_httpd_config:config()) ->
    {ok, stream()} | {error, erlmcp_refusal:refusal()}.
new(#{method := ~"POST", streamid := StreamId} = Request, #{path := Path} = Config) ->
    maybe
        {ok, {post, Accept}} ?= erlmcp_httpd_request:check(Request, Path, Config),
        {ok, entering(Request, (stream(StreamId, Request, Config))#stream{accept = Accept})}
    end.

entering(#{peer := {Ip, _}, headers := Headers}, #stream{principal = Principal} = Stream) ->
    Stream#stream{flow = erlmcp_admission:tenant(Principal, Ip),
                  asked = erlmcp_admission:announced(Headers, Stream#stream.accept)}.

-doc "The same where the head names another session, and is no other beside.".
-spec in_session(Id :: binary(), stream()) -> stream().
in_session(Id, Stream) ->
    Stream#stream{named = Id}.

-doc "Serves a request with that head, whose body is here.".
-spec serve(cowboy_stream:streamid(), Body :: binary(), cowboy_req:req(), stream()) ->
    {cowboy_stream:commands(), stream()}.
serve(StreamId, Body, Request, #stream{asked = Asked, principal = Principal} = Stream) ->
    #stream{config = #{instance := Instance}} = Stream,
    case erlmcp_admission:check_head(Asked, Request, Principal, Instance) of
        ok ->
            message(Body, owned(StreamId, Stream));
        {refuse, Refusal, Headers} ->
            {erlmcp_httpd_response:refuse(Refusal, undefined, Headers), Stream}
    end.

owned(StreamId, #stream{owner = {_, {_, StreamId}}} = Stream) -> Stream;
owned(StreamId, Stream) -> Stream#stream{owner = {self(), {self(), StreamId}}}.

stream(StreamId, #{headers := Headers} = Request, Config) ->
    #{identity := #{principal := Principal} = Identity} = Config,
    #stream{owner = {self(), {self(), StreamId}}, config = Config,
            envelope = erlmcp_engine:envelope(Identity, Headers),
            named = maps:get(~"mcp-session-id", Headers, none),
            principal = Principal, alone = is_map_key(erlmcp_alone, Request)}.

-doc false.
init(StreamId, Request, #{erlmcp := #{path := Path} = Config}) ->
    #stream{owner = Owner} = Stream = stream(StreamId, Request, Config),
    case erlmcp_httpd_request:check(Request, Path, Config) of
        {ok, Asked} ->
            enter(Asked, Request, Stream);
        {error, Refusal} ->
            received(erlmcp_httpd_body:refuse(Refusal, #{}, Request, Owner, Config), Stream)
    end.

enter(Asked, Request, #stream{principal = Principal} = Stream) ->
    #stream{owner = Owner, config = #{instance := Instance} = Config} = Stream,
    case erlmcp_admission:check_head(Asked, Request, Principal, Instance) of
        ok ->
            asked(Asked, Request, entering(Request, Stream));
        {refuse, Refusal, Headers} ->
            received(erlmcp_httpd_body:refuse(Refusal, Headers, Request, Owner, Config), Stream)
    end.

asked({post, Accept}, Request, #stream{owner = Owner, config = Config} = Stream) ->
    received(erlmcp_httpd_body:read(Request, Owner, Config), Stream#stream{accept = Accept});
asked({get, Id}, #{headers := Headers}, #stream{owner = Owner, principal = Principal} = Stream) ->
    #stream{config = #{instance := Instance}} = Stream,
    case erlmcp_httpd_session:get(Id, Principal, {Owner, Headers}, Instance) of
        {ok, Pid} ->
            expire(Stream),
            start_stream(erlmcp_sse:comment(), lasting(Stream#stream{call = {session, Pid}}));
        {refuse, Refusal} -> {erlmcp_httpd_response:refuse(Refusal), Stream}
    end;
asked({delete, Id}, _, #stream{principal = Principal, config = #{instance := Instance}} = Stream) ->
    {erlmcp_httpd_session:delete(Id, Principal, Instance), Stream}.

%% With HTTP/2 the empty body of GET may come as a frame of its own.
-doc false.
data(_, _, <<>>, #stream{body = none} = Stream) ->
    {[], Stream};
data(_, IsFin, Data, #stream{body = Body} = Stream) ->
    received(erlmcp_httpd_body:data(IsFin, Data, Body), Stream).

received({more, Commands, Body}, Stream) -> {Commands, Stream#stream{body = Body}};
received({whole, Bytes}, Stream) -> message(Bytes, Stream#stream{body = none});
received({ended, Commands}, Stream) -> {Commands, Stream#stream{body = none}}.

%% The message.

message(Bytes, #stream{asked = Asked, flow = Flow, config = #{instance := Instance}} = Stream) ->
    case erlmcp_admission:enter_announced(Asked, Bytes, Flow, Instance) of
        {refuse, Id, Refusal} -> refused(Refusal, erlmcp_reply:refuse(Id, Refusal), Stream);
        {ok, Admitted, Begun} -> announced(Begun, Bytes, Admitted, Stream);
        undecoded -> decoded(undecoded, Bytes, Stream)
    end.

announced(Begun, Bytes, Admitted, #stream{asked = Asked, config = Config} = Stream) ->
    #{instance := #{limits := Limits} = Instance} = Config,
    case erlmcp_meta_cache:request(Bytes, Begun, Asked, Limits) of
        {ok, Request} ->
            Catalog = erlmcp_published_catalog:catalog(Instance),
            Effects = [erlmcp_engine:request(Request, Stream#stream.envelope, Catalog)],
            ok = erlmcp_error_budget_answers:known(Effects, Instance),
            perform(erlmcp_admission:effects(Effects, Admitted, Stream#stream.flow), #{}, Stream);
        other ->
            decoded({ok, Admitted}, Bytes, Stream)
    end.

decoded(Place, Bytes, #stream{config = #{instance := #{limits := Limits}}} = Stream) ->
    case {erlmcp_meta_cache:decode(Bytes, Limits), Place} of
        {{ok, Json}, undecoded} ->
            admit(Json, byte_size(Bytes), Stream);
        {{ok, Json}, {ok, Admitted}} ->
            handle(Json, Admitted, Stream);
        {{error, Reason}, _} ->
            _ = [ok = erlmcp_admission:abandon(Admitted) || {ok, Admitted} <- [Place]],
            {erlmcp_httpd_response:refuse(erlmcp_params:unreadable(Reason)), Stream}
    end.

admit(Json, Bytes, #stream{flow = Flow, config = #{instance := Instance}} = Stream) ->
    case erlmcp_admission:enter(Json, Bytes, Flow, Instance) of
        {ok, Message, Admitted} ->
            handle(Message, Admitted, Stream);
        {refuse, Id, Refusal} ->
            #stream{envelope = Envelope, named = Named} = Stream,
            Reply = erlmcp_admission:refused(Id, Refusal, Json, Envelope, Named =/= none),
            refused(Refusal, Reply, Stream);
        {answer, Answer} ->
            perform([{reply, 200, Answer}], #{}, Stream)
    end.

refused(Refusal, Reply, #stream{owner = {Pid, Tag}, config = Config} = Stream) ->
    #stream{envelope = #{headers := Headers}} = Stream,
    case erlmcp_admission:hold_back(Refusal, Headers, Config) of
        0 ->
            perform([Reply], #{}, Stream);
        Milliseconds ->
            Timer = erlang:send_after(Milliseconds, Pid, {Tag, {refused, Reply}}),
            {[], Stream#stream{call = {refused, Timer}}}
    end.

handle(Json, Admitted, #stream{envelope = Envelope, named = Named, flow = Flow} = Stream) ->
    #stream{config = #{instance := Instance}} = Stream,
    Catalog = erlmcp_published_catalog:catalog(Instance),
    case erlmcp_httpd_session:of_message(Json, Named, Envelope, Instance) of
        none ->
            {Effects, Session} = erlmcp_engine:handle(Json, Envelope, Catalog, none),
            ok = erlmcp_error_budget_answers:known(Effects, Instance),
            Left = erlmcp_admission:effects(Effects, Admitted, Flow),
            case erlmcp_httpd_session:open(Session, Flow, Instance) of
                {ok, Headers} -> perform(Left, Headers, Stream);
                {error, Refusal} -> {erlmcp_httpd_response:refuse(Refusal, id(Json), #{}), Stream}
            end;
        unknown ->
            ok = erlmcp_admission:abandon(Admitted),
            Refusal = erlmcp_httpd_session:gone(),
            {erlmcp_httpd_response:refuse(Refusal, id(Json), #{}), Stream};
        {Id, Pid, Session} ->
            {Effects, Next} = erlmcp_engine:handle(Json, Envelope, Catalog, Session),
            ok = erlmcp_error_budget_answers:known(Effects, Instance),
            Next =:= Session orelse erlmcp_instance:update_session(Id, Next, Instance),
            perform(erlmcp_admission:effects(Effects, Admitted, Flow), #{},
                    Stream#stream{session = {Id, Pid, Next}})
    end.

id(#{~"id" := Id}) when is_binary(Id); is_integer(Id) -> Id;
id(_) -> undefined.

%% The engine's effects, as cowboy's commands.

perform([{reply, Status, Bytes}], Headers, Stream) ->
    {answer(Status, Headers, Bytes, Stream), Stream};
perform([accepted], _, Stream) ->
    {erlmcp_httpd_response:respond(202, #{}, <<>>), Stream};
perform([{response, Id, Outcome} | Effects], Headers, #stream{session = {_, Pid, _}} = Stream) ->
    ok = erlmcp_session:response(Pid, Id, Outcome),
    perform(Effects, Headers, Stream);
perform([{Watching, _, _} = Watch], _, #stream{session = Session, config = Config} = Stream) when
    Watching =:= subscribe; Watching =:= unsubscribe
->
    #{instance := Instance} = Config,
    perform([erlmcp_httpd_session:watch(Watch, Session, Instance)], #{}, Stream);
perform([{listen, #{id := Id}}], _, #stream{accept = json} = Stream) ->
    #stream{envelope = #{headers := Headers}} = Stream,
    {erlmcp_httpd_response:refuse(erlmcp_httpd_request:no_stream(Headers), Id, #{}), Stream};
perform([{listen, Listen}], _, Stream) ->
    listen(Listen, Stream);
perform([{cancel, Id} | Effects], Headers, #stream{session = {_, Pid, _}} = Stream) ->
    ok = erlmcp_session:cancel(Pid, Id),
    perform(Effects, Headers, Stream);
perform([{cancel, _} | Effects], Headers, Stream) ->
    perform(Effects, Headers, Stream);
perform([{call, Call}], Headers, #stream{alone = Alone, config = #{calls := Known}} = Stream) ->
    case (Alone orelse erlmcp_httpd_http2_inline_calls:is_free())
        andalso erlmcp_inline_call:run(Call, Known) of
        {Reply, Said} -> ran(Said, Reply, Call, Headers, Stream);
        _ -> start({call, Call}, Stream)
    end;
perform([Calls], _, Stream) ->
    start(Calls, Stream).

%% A quick call is over. Who is told of nothing has no session.
ran([_ | _] = Said, Reply, Call, _, #stream{session = {_, _, _}} = Stream) ->
    start({ran, Call, Said, Reply}, Stream);
ran(_, Reply, _, Headers, Stream) ->
    perform([Reply], Headers, Stream).

start({call, #{id := Id} = Call},
      #stream{session = none, owner = {_, Tag}, config = #{calls := Known}} = Stream) ->
    Pid = erlmcp_call:start(Call, Known, Tag),
    _ = Stream#stream.alone orelse erlmcp_httpd_http2_inline_calls:begun(Tag),
    {[{spawn, Pid, ?SHUTDOWN}],
     Stream#stream{call = {call, Pid, Id, erlmcp_call:subject(Call)},
                   place = erlmcp_call:place(Call)}};
start(Calls, #stream{session = Session, owner = Owner, accept = Accept} = Stream) ->
    #stream{config = #{instance := Instance}} = Stream,
    case erlmcp_httpd_session:start(Calls, Session, {Owner, Accept =/= json}, Instance) of
        {ok, Pid} -> {[], Stream#stream{call = {session, Pid}}};
        {reply, _, _} = Reply -> perform([Reply], #{}, Stream);
        {gone, Id} ->
            Refusal = erlmcp_httpd_session:gone(),
            {erlmcp_httpd_response:refuse(Refusal, Id, #{}), Stream}
    end.

%% The request stays open as a stream until its client or the server ends it.
listen(#{id := Id, topics := Topics, closed := Closed} = Listen,
       #stream{owner = Owner, principal = Principal, flow = Flow, config = Config} = Stream) ->
    #{instance := Instance} = Config,
    case erlmcp_httpd_subscription:open(Listen, Owner, {Principal, Flow}, Instance) of
        {ok, First} ->
            expire(Stream),
            start_stream(First, lasting(Stream#stream{call = {listen, Id, Topics, Closed}}));
        {refuse, Refusal} ->
            {erlmcp_httpd_response:refuse(Refusal, Id, #{}), Stream}
    end.

%% What may stay open for long keeps nothing of its request.
lasting(#stream{config = Config} = Stream) ->
    Stream#stream{envelope = none, named = none,
                  config = maps:without([identity, insufficient], Config)}.

%% What the call, the session and the timers send.

-doc false.
info(_, {notification, Bytes, Unread}, #stream{accept = json} = Stream) ->
    ok = erlmcp_notification_window:written(byte_size(Bytes), Unread),
    {[], Stream};
info(_, {notification, Bytes, Unread}, #stream{call = {call, _, _, _}} = Stream) ->
    streamed(erlmcp_sse:event(Bytes), more,
             written(fun() -> erlmcp_notification_window:written(byte_size(Bytes), Unread) end,
                     Stream));
info(_, {stream, Key, Event, Place}, #stream{call = {session, Pid}} = Stream) ->
    %% Handled is what came before it: that has been written.
    streamed(erlmcp_sse:event(Event), Place,
             written(fun() -> erlmcp_session:written(Pid, Key) end, Stream));
info(_, {event, Id, _, Encoded, Pending}, #stream{call = {listen, Id, _, _}} = Stream) ->
    {erlmcp_httpd_response:event(erlmcp_subscriptions:encoded(Id, Encoded)),
     written(fun() -> erlmcp_subscriptions:received(Pending) end, Stream)};
info(_, {refused, Reply}, Stream) ->
    perform([Reply], #{}, Stream);
%% Something waits for the client to read it (`m:erlmcp_httpd_backpressure`).
info(_, {alarm, _, on}, Stream) ->
    {[], Stream#stream{full = true}};
info(_, {alarm, _, off}, #stream{unsaid = Unsaid} = Stream) ->
    lists:foreach(fun(Written) -> Written() end, lists:reverse(Unsaid)),
    {[], Stream#stream{full = false, unsaid = []}};
info(_, {closing, Id}, #stream{call = {listen, Id, _, Closed}} = Stream) ->
    {erlmcp_httpd_subscription:closed(Closed), Stream};
%% What is open ends with the token that it was opened with; its client comes back with another.
info(_, {identity, expired}, #stream{call = {listen, _, _, Closed}} = Stream) ->
    {erlmcp_httpd_subscription:closed(Closed), Stream};
info(_, {identity, expired}, #stream{call = {session, Pid}, owner = Owner} = Stream) ->
    %% Before its client hears of it: a session has one such stream, and would still have this one.
    ok = erlmcp_session:detach(Pid, Owner),
    {[{data, fin, <<>>}, stop], Stream#stream{call = undefined}};
info(_, {'EXIT', Pid, {erlmcp_answer, Status, Bytes}},
     #stream{call = {call, Pid, _, _}} = Stream) ->
    finish({reply, Status, Bytes}, Stream);
info(_, {answer, Status, Bytes}, #stream{call = {session, _}} = Stream) ->
    finish({reply, Status, Bytes}, Stream);
info(_, {deadline, Pid, Milliseconds}, #stream{call = {call, Pid, Id, Subject}} = Stream) ->
    #stream{place = Place, config = #{calls := Known}} = Stream,
    exit(Pid, kill),
    ok = erlmcp_calls:leave(Place),
    finish(erlmcp_call:timed_out(Milliseconds, Id, Subject, Known), Stream);
info(_, {'EXIT', Pid, Reason},
     #stream{call = {call, Pid, Id, Subject}, config = #{calls := Known}} = Stream) ->
    ok = erlmcp_calls:leave(Stream#stream.place),
    finish(erlmcp_call:died(Reason, Id, Subject, Known), Stream);
info(_, cancelled, #stream{streaming = Streaming} = Stream) ->
    {erlmcp_httpd_response:ended(Streaming), Stream#stream{call = undefined}};
info(_, keep_alive, #stream{streaming = true} = Stream) ->
    keep_alive(Stream),
    {erlmcp_httpd_response:comment(), Stream};
info(_, receive_timeout, #stream{body = Body} = Stream) when Body =/= none ->
    {erlmcp_httpd_body:late(Body), Stream#stream{body = none}};
%% Cowboy's answer to a body that it cannot read.
info(_, {response, 400, _, _}, #stream{body = Body} = Stream) when Body =/= none ->
    {erlmcp_httpd_body:broken(Body), Stream#stream{body = none}};
info(_, {unfinished, Verdict}, #stream{body = Body} = Stream) when Body =/= none ->
    received(erlmcp_httpd_body:told(Verdict, Body), Stream);
info(_, _, Stream) ->
    {[], Stream}.

%% Who sends events is told that they are written, and sends no more than a few ahead.
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
    {answer(Status, #{}, Bytes, Stream), Stream#stream{call = undefined}}.

-doc false.
%% What a lost client's call still does in its last second is its own.
terminate(_, _, #stream{call = {call, _, _, _}, place = Place}) ->
    erlmcp_calls:leave(Place);
terminate(_, _, #stream{call = {session, Pid}, owner = Owner}) ->
    erlmcp_session:detach(Pid, Owner);
terminate(_, _, #stream{call = {listen, Id, Topics, _}, owner = Owner, config = Config}) ->
    #{instance := Instance} = Config,
    erlmcp_subscriptions:remove(Topics, Owner, Id, erlmcp_instance:subscriptions(Instance));
terminate(_, _, #stream{call = {refused, Timer}}) ->
    _ = erlang:cancel_timer(Timer),
    ok;
terminate(_, _, #stream{body = Body}) ->
    erlmcp_httpd_body:forget(Body).

-doc false.
early_error(_, _, _, Response, _) ->
    Response.

expire(#stream{owner = Owner, config = #{identity := Identity}}) ->
    erlmcp_httpd_auth:expire(Identity, Owner).

start_stream(First, Stream) ->
    keep_alive(Stream),
    {erlmcp_httpd_response:stream(First), Stream#stream{streaming = true}}.

keep_alive(#stream{owner = {Pid, Tag}} = Stream) ->
    #stream{config = #{instance := #{limits := #{keep_alive_ms := Interval}}}} = Stream,
    _ = erlang:send_after(Interval, Pid, {Tag, keep_alive}),
    ok.

answer({403, Scopes}, Headers, Bytes, #stream{config = #{insufficient := Insufficient}} = Stream)
        when is_list(Scopes) ->
    answer(403, maps:merge(Headers, Insufficient(Scopes)), Bytes, Stream);
answer(Status, Headers, Bytes, #stream{accept = Accept, streaming = Streaming}) ->
    erlmcp_httpd_response:answer(Status, Headers, Bytes, Accept, Streaming).
