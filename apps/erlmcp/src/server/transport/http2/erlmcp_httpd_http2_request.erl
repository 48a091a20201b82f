-module(erlmcp_httpd_http2_request).
-moduledoc """
A request of HTTP/2, behind `m:erlmcp_httpd_backpressure`: one that was taken out of what came on
its connection (`m:erlmcp_httpd_http2_reads`) goes on with what its head was found to be, and with
its body. All others go on as they are, and their heads may be known from then on.

What a head comes to is found out once where the listener asks nobody who comes
(`m:erlmcp_httpd_route`). Elsewhere it is the request that cowboy made of it, which the next
handlers look at each time.

Internal.
""".

-behaviour(cowboy_stream).

-export([init/3, data/4, info/3, terminate/3, early_error/5]).

%% Octets of a body that comes as a whole: of one frame.
-define(BODY, 16_384).

-doc false.
init(StreamId, Request, Options) ->
    case erlmcp_httpd_http2_reads:take(StreamId) of
        {#{} = Known, Body} ->
            next(cowboy_stream:init(StreamId, Known#{streamid := StreamId, body => Body}, Options));
        {Ready, Body} ->
            {Commands, Stream} = erlmcp_httpd_route:serve(StreamId, Body, Ready),
            {Commands, {erlmcp_httpd_stream, Stream}};
        none ->
            ok = learn(StreamId, Request, Options),
            next(cowboy_stream:init(StreamId, Request, Options))
    end.

%% As on HTTP/1.1: POST to the endpoint, and a length.
learn(StreamId, #{method := ~"POST", path := Path, body_length := Length} = Request,
      #{erlmcp := #{path := Path}} = Options) when 0 < Length, Length =< ?BODY ->
    erlmcp_httpd_http2_reads:learn(StreamId, Length, fun() -> head(Request, Options) end);
learn(_, _, _) ->
    ok.

head(#{headers := Headers} = Read, #{stream_handlers := Handlers} = Options) ->
    All = [erlmcp_httpd_backpressure | Handlers],
    %% Not the whole of what was read with them.
    Request = Read#{headers := #{Name => binary:copy(Value) || Name := Value <- Headers}},
    case erlmcp_httpd_route:new(Request, Options#{stream_handlers := All}) of
        none -> Request;
        Ready -> Ready
    end.

next({Commands, Next}) ->
    {Commands, {cowboy_stream, Next}}.

-doc false.
data(StreamId, IsFin, Data, {cowboy_stream, Next}) ->
    next(cowboy_stream:data(StreamId, IsFin, Data, Next)).

-doc false.
info(StreamId, Message, {Module, State}) ->
    {Commands, Next} = Module:info(StreamId, Message, State),
    {Commands, {Module, Next}}.

-doc false.
terminate(StreamId, Reason, {Module, State}) ->
    Module:terminate(StreamId, Reason, State).

-doc false.
early_error(StreamId, Reason, Request, Response, Options) ->
    cowboy_stream:early_error(StreamId, Reason, Request, Response, Options).
