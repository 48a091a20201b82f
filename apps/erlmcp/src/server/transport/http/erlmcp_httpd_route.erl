-module(erlmcp_httpd_route).
-moduledoc """
Plain requests that have a head in common: what it comes to is found out once, and each of them is
served from there. To the connection it is a stream as cowboy's are, without the handlers that stand
before `m:erlmcp_httpd_stream` and whose answer would be the same each time.

There is none where a listener asks who comes, since that may be another with the same head, nor
where it has HTTP+SSE, and none for a head that is refused.

Internal.
""".

-export([new/2, in_session/2, serve/3, init/3, info/3, terminate/3]).

-export_type([ready/0, state/0]).

-opaque ready() :: {cowboy_req:req(), erlmcp_instance:instance(), erlmcp_httpd_stream:stream()}.
-opaque state() :: {erlmcp_instance:instance(), erlmcp_httpd_stream:stream()}.

-doc "What the head of a request comes to, for the calling process, its connection's.".
-spec new(cowboy_req:req(), cowboy:opts()) -> ready() | none.
new(Request,
    #{stream_handlers := [erlmcp_httpd_backpressure, erlmcp_httpd_identity, erlmcp_httpd_stream],
      erlmcp := #{instance := Instance}} = Options) ->
    maybe
        {ok, Known, Config} ?= erlmcp_httpd_identity:unasked(Request, Options),
        {ok, Stream} ?= erlmcp_httpd_stream:new(Known, Config),
        {Known, Instance, Stream}
    else
        _ -> none
    end;
new(_, _) ->
    none.

-doc "What the same head comes to that names another session, be it ready or a request.".
-spec in_session(same | Id :: binary(), ready() | Request) -> ready() | Request when
    Request :: map().
in_session(same, Asked) ->
    Asked;
in_session(Id, {Request, Instance, Stream}) ->
    {Request, Instance, erlmcp_httpd_stream:in_session(Id, Stream)};
in_session(Id, #{headers := Headers} = Request) ->
    Request#{headers := Headers#{~"mcp-session-id" := Id}}.

-doc "Serves a request with that head and this body, for whoever stands before it.".
-spec serve(cowboy_stream:streamid(), binary(), ready()) ->
    {cowboy_stream:commands(), erlmcp_httpd_stream:stream()}.
serve(StreamId, Body, {Request, _, Stream}) ->
    erlmcp_httpd_stream:serve(StreamId, Body, Request, Stream).

-doc "A request with that head, and this body.".
-spec init(cowboy_stream:streamid(), binary(), ready()) -> {cowboy_stream:commands(), state()}.
init(StreamId, Body, {_, Instance, _} = Ready) ->
    said(serve(StreamId, Body, Ready), Instance).

-doc "What the stream is told.".
-spec info(cowboy_stream:streamid(), term(), state()) -> {cowboy_stream:commands(), state()}.
info(StreamId, Message, {Instance, Stream}) ->
    said(erlmcp_httpd_stream:info(StreamId, Message, Stream), Instance).

said({Commands, Stream}, Instance) ->
    {erlmcp_httpd_backpressure:in_pieces(Commands), {Instance, Stream}}.

-doc "The stream is over.".
-spec terminate(cowboy_stream:streamid(), cowboy_stream:reason(), state()) -> ok.
terminate(StreamId, Reason, {Instance, Stream}) ->
    ok = erlmcp_httpd_backpressure:ended(Reason, Instance),
    _ = erlmcp_httpd_stream:terminate(StreamId, Reason, Stream),
    ok.
