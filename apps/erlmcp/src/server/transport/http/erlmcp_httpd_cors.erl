-module(erlmcp_httpd_cors).
-moduledoc """
What pages of other origins are told, so that their browser lets them read it: those of the origins
that a listener allows by name. An origin that may enter for another reason (it is of the same host,
or of the loopback, or all may) is told nothing, and its browser keeps what is answered from it.

Nothing here is for requests with credentials, as browsers call cookies and certificates: a page
brings its token in a header. So any header may be asked for; `*` stands for all but
`Authorization`, and the others that are spelled out are for browsers that do not know it. Pure.

Source: Fetch standard, "HTTP CORS protocol".

Internal.
""".

-export([pages/1, methods/2, preflight/2]).

-export_type([pages/0, methods/0]).

-doc "The origins that are allowed by name, and the headers that all answers to them have.".
-type pages() :: #{Origin :: binary() => #{binary() => binary()}}.
-doc "What the endpoints at these paths are for.".
-type methods() :: #{Path :: binary() => Methods :: binary()}.

%% Seconds that a browser may remember what it was told: as long as any of them does.
-define(REMEMBERED, ~"7200").

-doc "The pages of a listener's options.".
-spec pages(map()) -> pages().
pages(#{allowed_origins := [_ | _] = Origins}) ->
    #{Origin => headers(Origin) || Origin <- Origins};
pages(_) ->
    #{}.

headers(Origin) ->
    #{~"access-control-allow-origin" => Origin, ~"vary" => ~"Origin",
      ~"access-control-expose-headers" =>
          ~"Mcp-Session-Id, WWW-Authenticate, Retry-After, DPoP-Nonce"}.

-doc "The methods of an endpoint, and of those of HTTP+SSE: of its stream, and for its messages.".
-spec methods(Path :: binary(), [SsePath :: binary()]) -> methods().
methods(Path, SsePaths) ->
    Sse = maps:from_list(lists:zip(SsePaths, [~"GET", ~"POST"], trim)),
    Sse#{Path => ~"POST, GET, DELETE"}.

-doc """
The answer to a browser that asks, before a page's request, whether it may send it; the browser has
no token then. `none` of all that is no such question.
""".
-spec preflight(cowboy_req:req(), methods()) -> cowboy_stream:commands() | none.
preflight(#{method := ~"OPTIONS", path := Path, has_body := false,
            headers := #{~"access-control-request-method" := _}}, Methods)
  when is_map_key(Path, Methods) ->
    erlmcp_httpd_response:respond(204, #{
        ~"access-control-allow-methods" => map_get(Path, Methods),
        ~"access-control-allow-headers" =>
            <<"Content-Type, Accept, Authorization, DPoP, MCP-Protocol-Version, Mcp-Session-Id, "
              "Mcp-Method, Mcp-Name, Last-Event-ID, *">>,
        ~"access-control-max-age" => ?REMEMBERED
    }, <<>>);
preflight(_, _) ->
    none.
