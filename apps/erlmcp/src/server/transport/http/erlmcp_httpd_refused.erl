-module(erlmcp_httpd_refused).
-moduledoc """
The stream handler of an HTTP connection without a permit. A request for a page is answered, since
pages have places of their own. Every other request is answered with the refusal after its head, and
the connection ends after the first one.

Internal.
""".

-behaviour(cowboy_stream).

-export([init/3, data/4, info/3, terminate/3, early_error/5]).

-doc false.
init(StreamId, Request, Options) ->
    case erlmcp_httpd_route:is_page(Request, Options) of
        true -> erlmcp_httpd_stream:init(StreamId, Request, Options);
        false -> refused(StreamId, Request, Options)
    end.

refused(StreamId, #{headers := #{~"origin" := Origin}} = Request,
        #{erlmcp_route := #{origins := Origins} = Asked} = Options)
  when is_map_key(Origin, Origins) ->
    Unshared = Options#{erlmcp_route := Asked#{origins := #{}}},
    {Commands, State} = refused(StreamId, Request, Unshared),
    {erlmcp_httpd_response:with(map_get(Origin, Origins), Commands), State};
refused(_, #{version := Version, headers := Headers}, #{erlmcp_refused := {Refusal, Parent}}) ->
    %% HTTP/2 has no header to end a connection. Cowboy sends GOAWAY if its listener stops.
    _ = Version =:= 'HTTP/2' andalso (self() ! {'EXIT', Parent, shutdown}),
    Shown = erlmcp_admission:refused_by_head(Refusal, Headers),
    {erlmcp_httpd_response:refuse(Shown, undefined, erlmcp_httpd_body:closing(Version)), none}.

-doc false.
data(_, _, _, none) -> {[], none};
data(StreamId, IsFin, Data, State) -> erlmcp_httpd_stream:data(StreamId, IsFin, Data, State).

-doc false.
info(_, _, none) -> {[], none};
info(StreamId, Message, State) -> erlmcp_httpd_stream:info(StreamId, Message, State).

-doc false.
terminate(_, _, none) -> ok;
terminate(StreamId, Reason, State) -> erlmcp_httpd_stream:terminate(StreamId, Reason, State).

-doc false.
early_error(_, _, _, Response, _) -> Response.
