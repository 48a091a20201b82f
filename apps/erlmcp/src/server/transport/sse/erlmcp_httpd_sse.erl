-module(erlmcp_httpd_sse).
-moduledoc """
HTTP+SSE, the transport of 2024-11-05, as the stream handler in front of `erlmcp_httpd_stream` where
a listener has it: requests at its two endpoints are answered here, all others there.

A GET request opens a session (`erlmcp_httpd_sse_session`) and is its stream. Its first event names
the endpoint for POST requests, which hand their messages to the session.

Source: specification 2024-11-05, "Transports / HTTP with SSE".

Internal.
""".

-behaviour(cowboy_stream).

-export([init/3, data/4, info/3, terminate/3, early_error/5]).

%% Milliseconds that a session has to end by itself.
-define(SHUTDOWN, 1000).

-record(sse_stream, {
    session :: pid(),
    id :: binary(),
    config :: erlmcp_httpd_config:config(),
    version :: cowboy:http_version(),
    %% whether HTTP/2 holds back what was written, and whether the session waits to hear of that
    full = false :: boolean(),
    owing = false :: boolean()
}).
-record(sse_message, {
    owner :: erlmcp_call:owner(),
    config :: erlmcp_httpd_config:config(),
    session = ~"" :: binary(),
    body = none :: none | erlmcp_httpd_body:body(),
    %% of the session, which has the message then
    timer :: undefined | reference()
}).

-doc false.
init(StreamId, #{path := Path} = Request, #{erlmcp := Config, erlmcp_sse := Endpoints} = Options) ->
    Owner = {self(), {self(), StreamId}},
    case Endpoints of
        #{path := Path} ->
            open(Request, Endpoints, Owner, Config);
        #{message_path := Path} ->
            post(Request, #sse_message{owner = Owner, config = Config});
        #{} ->
            erlmcp_httpd_stream:init(StreamId, Request, Options)
    end.

open(Request, #{message_path := MessagePath}, Owner, Config) ->
    #{instance := Instance, identity := #{principal := Principal} = Identity} = Config,
    #{version := Version, peer := {Ip, _}} = Request,
    maybe
        ok ?= erlmcp_httpd_request:check_stream(Request),
        {ok, Pid, Id} ?= erlmcp_httpd_sse_session:open(Owner, Principal, Ip, Instance),
        ok = erlmcp_httpd_auth:expire(Identity, Owner),
        Endpoint = #{event => ~"endpoint", data => [MessagePath, ~"?sessionId=", Id]},
        {[{spawn, Pid, ?SHUTDOWN} | erlmcp_httpd_response:stream(erlmcp_sse:event(Endpoint))],
         #sse_stream{session = Pid, id = Id, config = Config, version = Version}}
    else
        {error, Refusal} ->
            refuse(Refusal, ~"GET", Request, #sse_message{owner = Owner, config = Config})
    end.

post(Request, #sse_message{owner = Owner, config = Config} = Message) ->
    #{instance := Instance, identity := #{principal := Principal}} = Config,
    maybe
        {ok, Id} ?= erlmcp_httpd_request:check_message(Request, Config),
        %% Asked again when its body is there; until then nobody waits for a body in vain.
        {ok, _, _} ?= erlmcp_instance:find_session({sse, Id}, Principal, Instance),
        received(erlmcp_httpd_body:read(Request, Owner, Config),
                 Message#sse_message{session = Id})
    else
        {error, Refusal} -> refuse(Refusal, ~"POST", Request, Message);
        error -> refuse(gone(), ~"POST", Request, Message)
    end.

gone() ->
    erlmcp_refusal:new(session_invalid, ~"sessionId: no such session; open a new stream").

refuse(Refusal, Allowed, Request, #sse_message{owner = Owner, config = Config} = Message) ->
    Extra = case erlmcp_refusal:status(Refusal) of
        405 -> #{~"allow" => Allowed};
        _ -> #{}
    end,
    received(erlmcp_httpd_body:refuse(Refusal, Extra, Request, Owner, Config), Message).

-doc false.
data(_, IsFin, Data, #sse_message{body = Body} = Message) ->
    received(erlmcp_httpd_body:data(IsFin, Data, Body), Message);
data(StreamId, IsFin, Data, Other) ->
    erlmcp_httpd_stream:data(StreamId, IsFin, Data, Other).

received({more, Commands, Body}, Message) -> {Commands, Message#sse_message{body = Body}};
received({whole, Bytes}, Message) -> hand_over(Bytes, Message#sse_message{body = none});
received({ended, Commands}, Message) -> {Commands, Message#sse_message{body = none}}.

hand_over(Bytes, #sse_message{config = #{instance := #{limits := Limits}}} = Message) ->
    case erlmcp_json:decode(Bytes, Limits) of
        {ok, Json} -> hand_over({Json, byte_size(Bytes)}, erlmcp_message:parse(Json), Message);
        {error, Reason} -> {erlmcp_httpd_response:refuse(erlmcp_params:unreadable(Reason)), Message}
    end.

%% What has no id to be answered under is refused here, all else on the session's stream.
hand_over(_, {invalid, undefined, Refusal}, Message) ->
    {erlmcp_httpd_response:refuse(Refusal), Message};
hand_over(Read, _, #sse_message{owner = {Pid, Tag} = Owner, config = Config} = Message) ->
    #sse_message{session = Id} = Message,
    #{instance := Instance, identity := Identity, receive_timeout_ms := Timeout} = Config,
    case erlmcp_httpd_sse_session:message(Id, Read, Owner, Identity, Instance) of
        ok ->
            Timer = erlang:send_after(Timeout, Pid, {Tag, untaken}),
            {[], Message#sse_message{timer = Timer}};
        gone ->
            {erlmcp_httpd_response:refuse(gone()), Message};
        {error, Refusal} ->
            {erlmcp_httpd_response:refuse(Refusal), Message}
    end.

-doc false.
info(StreamId, {write, Bytes}, #sse_stream{} = Stream) ->
    %% Handled when the bytes have been written.
    self() ! {{self(), StreamId}, written},
    {[{data, nofin, Bytes}], Stream};
info(_, written, #sse_stream{full = true} = Stream) ->
    {[], Stream#sse_stream{owing = true}};
info(_, written, #sse_stream{session = Pid} = Stream) ->
    ok = erlmcp_httpd_sse_session:written(Pid),
    {[], Stream};
%% Something waits for the client to read it (`m:erlmcp_httpd_backpressure`).
info(_, {alarm, _, on}, #sse_stream{} = Stream) ->
    {[], Stream#sse_stream{full = true}};
info(StreamId, {alarm, _, off}, #sse_stream{owing = true} = Stream) ->
    info(StreamId, written, Stream#sse_stream{full = false, owing = false});
info(_, {alarm, _, off}, #sse_stream{} = Stream) ->
    {[], Stream#sse_stream{full = false}};
info(_, {'EXIT', Pid, Reason}, #sse_stream{session = Pid, id = Id, config = Config} = Stream) ->
    #{instance := Instance} = Config,
    ok = erlmcp_httpd_sse_session:forget(Id, Instance),
    {ended(Reason, Stream), Stream};
info(_, {identity, expired}, #sse_stream{} = Stream) ->
    {erlmcp_httpd_response:ended(true), Stream};
info(_, _, #sse_stream{} = Stream) ->
    {[], Stream};
info(_, taken, #sse_message{timer = Timer} = Message) ->
    _ = erlang:cancel_timer(Timer),
    {erlmcp_httpd_response:respond(202, #{}, <<>>), Message};
info(_, gone, #sse_message{timer = Timer} = Message) ->
    _ = erlang:cancel_timer(Timer),
    {erlmcp_httpd_response:refuse(gone()), Message};
info(_, untaken, #sse_message{} = Message) ->
    Refusal = erlmcp_refusal:new(timeout, ~"the session did not take the message in time"),
    {erlmcp_httpd_response:refuse(Refusal), Message};
info(_, receive_timeout, #sse_message{body = Body} = Message) when Body =/= none ->
    {erlmcp_httpd_body:late(Body), Message#sse_message{body = none}};
%% Cowboy's answer to a body that it cannot read.
info(_, {response, 400, _, _}, #sse_message{body = Body} = Message) when Body =/= none ->
    {erlmcp_httpd_body:broken(Body), Message#sse_message{body = none}};
info(_, {unfinished, Verdict}, #sse_message{body = Body} = Message) when Body =/= none ->
    received(erlmcp_httpd_body:told(Verdict, Body), Message);
info(_, _, #sse_message{} = Message) ->
    {[], Message};
info(StreamId, Message, Other) ->
    erlmcp_httpd_stream:info(StreamId, Message, Other).

%% What HTTP/2 still holds for a client that does not read is given up with a reset.
ended({shutdown, slow_consumer}, #sse_stream{version = 'HTTP/2'}) ->
    [{internal_error, slow_consumer, 'The client does not read its stream.'}];
ended(_, _) ->
    erlmcp_httpd_response:ended(true).

%% A session is told of the end of its stream as the stream's child.
-doc false.
terminate(_, _, #sse_stream{}) ->
    ok;
terminate(_, _, #sse_message{body = Body}) ->
    erlmcp_httpd_body:forget(Body);
terminate(StreamId, Reason, Other) ->
    erlmcp_httpd_stream:terminate(StreamId, Reason, Other).

-doc false.
early_error(_, _, _, Response, _) ->
    Response.
