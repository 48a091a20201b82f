-module(erlmcp_httpd_sse).
-moduledoc """
Handles a request of HTTP+SSE, the transport of 2024-11-05, for `m:erlmcp_httpd_stream`.

A GET request opens a session (`erlmcp_httpd_sse_session`), and its response is the session's
stream. The first event names the endpoint for POST requests, which hand their messages to the
session.

Source: specification 2024-11-05, "Transports / HTTP with SSE".

Internal.
""".

-export([init/3, data/3, info/3, terminate/1]).

-export_type([asks/0, state/0]).

-doc "A request that opens a stream, or one that hands a message to a session.".
-type asks() :: {open, MessagePath :: binary()} | {message, Session :: binary()}.

%% Milliseconds that a session has to end by itself.
-define(SHUTDOWN, 1000).

-record(sse_stream, {
    owner :: erlmcp_call:owner(),
    session :: pid(),
    id :: binary(),
    config :: erlmcp_httpd:config(),
    version :: cowboy:http_version(),
    permit :: erlmcp_gate:permit(),
    expiry :: erlmcp_httpd_auth:expiry(),
    %% whether bytes wait for the client of HTTP/2 to read, and whether the session has to be told
    %% when none do
    full = false :: boolean(),
    owing = false :: boolean()
}).
-record(sse_message, {
    owner :: erlmcp_call:owner(),
    config :: erlmcp_httpd:config(),
    session = ~"" :: binary(),
    origin = none :: erlmcp_span:origin(),
    body = none :: none | erlmcp_httpd_body:body(),
    %% runs until the session has taken the message
    timer :: undefined | reference(),
    claim :: undefined | erlmcp_httpd_sse_session:claim()
}).

-opaque state() :: #sse_stream{} | #sse_message{}.

-doc "Begins to handle a request of HTTP+SSE that `m:erlmcp_httpd_route` has decided to serve.".
-spec init(erlmcp_httpd_route:route(), erlmcp_call:owner(), cowboy_req:req()) ->
    {cowboy_stream:commands(), state()}.
init(#{asks := {sse, {open, MessagePath}}, config := Config, address := Ip}, Owner, Request) ->
    #{instance := #{gate := Gate} = Instance,
      identity := #{principal := Principal} = Identity} = Config,
    case erlmcp_httpd_sse_session:open(Owner, Principal, Ip, Instance) of
        {ok, Pid, Id} ->
            ok = erlmcp_meter:stream_opened(Instance),
            {_, Tag} = Owner,
            ok = erlmcp_httpd_http2:stream_lasts(Tag),
            Endpoint = #{event => ~"endpoint", data => [MessagePath, ~"?sessionId=", Id]},
            #{version := Version} = Request,
            %% A stream keeps nothing of its head.
            Lasting = maps:without([identity, insufficient], Config),
            {[{spawn, Pid, ?SHUTDOWN} | erlmcp_httpd_body:room(Request)]
                 ++ erlmcp_httpd_response:stream(erlmcp_sse:event(Endpoint)),
             #sse_stream{owner = Owner, session = Pid, id = Id, config = Lasting, version = Version,
                         permit = erlmcp_gate:stream(Gate),
                         expiry = erlmcp_httpd_auth:expire(Identity, Owner)}};
        {error, Refusal} ->
            refuse(Refusal, Request, #sse_message{owner = Owner, config = Config})
    end;
init(#{asks := {sse, {message, Id}}, config := Config}, Owner, Request) ->
    #{instance := Instance, identity := #{principal := Principal}} = Config,
    #{version := Version, peer := Peer, headers := Headers} = Request,
    Message = #sse_message{owner = Owner, config = Config, session = Id,
                           origin = {http, Version, Peer, Headers}},
    %% The session is looked up now, so that no body is read without a session, and again with the
    %% body.
    case erlmcp_session_table:find({sse, Id}, Principal, Instance) of
        {ok, _, _} -> received(erlmcp_httpd_body:read(Request, Owner, Config), Message);
        error -> refuse(gone(), Request, Message)
    end.

gone() ->
    erlmcp_refusal:new(session_invalid, ~"sessionId: no such session; open a new stream").

refuse(Refusal, Request, #sse_message{owner = Owner, config = Config} = Message) ->
    ok = unread(Refusal, Message),
    received(erlmcp_httpd_body:refuse(Refusal, #{}, Request, Owner, Config), Message).

-doc "Handles the part of the request's body that has arrived.".
-spec data(cowboy_stream:fin(), binary(), state()) -> {cowboy_stream:commands(), state()}.
data(_, _, #sse_message{body = none} = Message) ->
    {[], Message};
data(IsFin, Data, #sse_message{body = Body} = Message) ->
    received(erlmcp_httpd_body:data(IsFin, Data, Body), Message);
data(_, _, #sse_stream{} = Stream) ->
    {[], Stream}.

received({more, Commands, Body}, Message) -> {Commands, Message#sse_message{body = Body}};
received({whole, Bytes}, Message) -> hand_over(Bytes, Message#sse_message{body = none});
received({ended, Commands}, Message) -> {Commands, Message#sse_message{body = none}};
received({refused, Refusal, Headers}, Message) ->
    ok = unread(Refusal, Message),
    {erlmcp_httpd_response:refuse(Refusal, undefined, Headers), Message#sse_message{body = none}}.

unread(Refusal, #sse_message{config = #{instance := Instance}}) ->
    erlmcp_meter:refused(undefined, Refusal, Instance).

%% Refuses a message that no session has taken.
refused(Refusal, Message) ->
    ok = unread(Refusal, Message),
    {erlmcp_httpd_response:refuse(Refusal), Message}.

hand_over(Bytes, #sse_message{config = Config, origin = Origin} = Message) ->
    #{instance := #{limits := Limits}} = Config,
    Arrival = erlmcp_meter:arrived(byte_size(Bytes), Origin),
    case erlmcp_json:decode(Bytes, Limits) of
        {ok, Json} -> hand_over({Json, Arrival}, erlmcp_message:parse(Json), Message);
        {error, Reason} -> refused(erlmcp_params:unreadable(Reason), Message)
    end.

%% An invalid message without an id is refused here. Any other message is answered on the session's
%% stream.
hand_over(_, {invalid, undefined, Refusal}, Message) ->
    refused(Refusal, Message);
hand_over(Read, _, #sse_message{owner = {Pid, Tag} = Owner, config = Config} = Message) ->
    #sse_message{session = Id} = Message,
    #{instance := Instance, identity := Identity, receive_timeout_ms := Timeout} = Config,
    case erlmcp_httpd_sse_session:message(Id, Read, Owner, Identity, Instance) of
        {ok, Claim} ->
            Timer = erlang:send_after(Timeout, Pid, {Tag, untaken}),
            {[], Message#sse_message{timer = Timer, claim = Claim}};
        gone -> refused(gone(), Message);
        {error, Refusal} -> refused(Refusal, Message)
    end.

-doc "Handles a message that the request's stream is sent.".
-spec info(cowboy_stream:streamid(), term(), state()) -> {cowboy_stream:commands(), state()}.
info(StreamId, {write, Bytes}, #sse_stream{} = Stream) ->
    %% Handled when the bytes have been written.
    self() ! {{self(), StreamId}, written},
    {[{data, nofin, Bytes}], Stream};
info(_, written, #sse_stream{full = true} = Stream) ->
    {[], Stream#sse_stream{owing = true}};
info(_, written, #sse_stream{session = Pid} = Stream) ->
    ok = erlmcp_httpd_sse_session:written(Pid),
    {[], Stream};
%% Bytes wait for the client to read them (`m:erlmcp_httpd_backpressure`).
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
%% The connection ends when the server ends. The session's calls may still be answered.
info(_, closing, #sse_stream{session = Pid} = Stream) ->
    ok = erlmcp_httpd_sse_session:close_when_idle(Pid),
    {[], Stream};
info(_, {identity, expired}, #sse_stream{} = Stream) ->
    {erlmcp_httpd_response:ended(stream, true), Stream};
info(_, _, #sse_stream{} = Stream) ->
    {[], Stream};
info(_, taken, #sse_message{timer = Timer} = Message) ->
    _ = erlang:cancel_timer(Timer),
    {erlmcp_httpd_response:respond(202, #{}, <<>>), Message};
info(_, gone, #sse_message{timer = Timer} = Message) ->
    _ = erlang:cancel_timer(Timer),
    refused(gone(), Message);
info(StreamId, untaken, #sse_message{claim = Claim} = Message) ->
    case erlmcp_httpd_sse_session:claim(Claim) of
        true ->
            refused(erlmcp_refusal:new(timeout, ~"the session did not take the message in time"),
                    Message);
        false ->
            %% The session takes it at this moment.
            info(StreamId, taken, Message)
    end;
info(_, receive_timeout, #sse_message{body = Body} = Message) when Body =/= none ->
    received(erlmcp_httpd_body:late(Body), Message);
info(_, broken_body, #sse_message{body = Body} = Message) when Body =/= none ->
    received(erlmcp_httpd_body:broken(Body), Message);
info(_, {unfinished, Verdict}, #sse_message{body = Body} = Message) when Body =/= none ->
    received(erlmcp_httpd_body:verdict(Verdict, Body), Message);
info(_, _, #sse_message{} = Message) ->
    {[], Message}.

%% Resets the stream of a client that does not read, and so drops the bytes that wait for it.
ended({shutdown, slow_consumer}, #sse_stream{version = 'HTTP/2'}) ->
    [{internal_error, slow_consumer, 'The client does not read its stream.'}];
ended(_, _) ->
    erlmcp_httpd_response:ended(stream, true).

-doc """
Ends the request. The session of a stream gets an exit signal from the connection's process.
""".
-spec terminate(state()) -> ok.
terminate(#sse_stream{owner = {_, Tag}, permit = Permit, expiry = Expiry}) ->
    ok = erlmcp_httpd_http2:stream_ended(Tag),
    ok = erlmcp_httpd_auth:forget_expiry(Expiry),
    erlmcp_gate:leave(Permit);
terminate(#sse_message{body = Body}) ->
    erlmcp_httpd_body:forget(Body).
