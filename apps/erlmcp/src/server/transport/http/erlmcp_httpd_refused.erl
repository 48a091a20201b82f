-module(erlmcp_httpd_refused).
-moduledoc """
The stream handler of an HTTP connection without a permit. A request for a page is answered, since
pages have a bound of their own. Any other request is answered with the refusal after its head, and
then the connection ends. It also ends five seconds after it began, or five seconds after its last
page, but not while a page is answered.

Internal.
""".

-behaviour(cowboy_stream).

-export([end_later/1, milliseconds/0]).
-export([init/3, data/4, info/3, terminate/3, early_error/5]).

%% Milliseconds until such a connection ends.
-define(ENDS, 5_000).

-doc """
Starts a timer of `milliseconds/0`, which ends the calling process as if its listener `Parent` had
stopped. The calling process is a connection without a permit. The timer stops while pages are
answered, and begins again after the last page.
""".
-spec end_later(Parent :: pid()) -> ok.
end_later(Parent) ->
    %% The same message as when a listener stops: the connection answers a request that it has
    %% begun, and ends.
    Timer = erlang:send_after(?ENDS, self(), {'EXIT', Parent, shutdown}),
    _ = put(?MODULE, {0, Timer, Parent}),
    ok.

-doc """
Returns how many milliseconds a connection without a permit lasts at most, if it answers no page.
""".
-spec milliseconds() -> pos_integer().
milliseconds() -> ?ENDS.

page_begins() ->
    {Pages, Timer, Parent} = get(?MODULE),
    _ = erlang:cancel_timer(Timer),
    put(?MODULE, {Pages + 1, Timer, Parent}).

page_ends() ->
    case get(?MODULE) of
        {1, _, Parent} -> end_later(Parent);
        {Pages, Timer, Parent} -> put(?MODULE, {Pages - 1, Timer, Parent})
    end.

-doc false.
init(StreamId, Request, Options) ->
    case erlmcp_httpd_route:is_page(Request, Options) of
        true ->
            _ = page_begins(),
            erlmcp_httpd_stream:init(StreamId, Request, Options);
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
terminate(StreamId, Reason, State) ->
    _ = page_ends(),
    erlmcp_httpd_stream:terminate(StreamId, Reason, State).

-doc false.
early_error(_, _, _, Response, _) -> Response.
