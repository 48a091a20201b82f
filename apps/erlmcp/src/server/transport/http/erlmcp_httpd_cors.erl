-module(erlmcp_httpd_cors).
-moduledoc """
The CORS headers of answers to pages of other origins. Without them a browser does not let a page
read an answer. Origins that a listener allows by name get them. Origins that are accepted for
another reason (same host, loopback, or `any`) get none. Pure, except for the date.

A page may send any header. It sends its token in one, so requests with credentials (cookies and
certificates) are not supported.

Source: Fetch standard, "HTTP CORS protocol".

Internal.
""".

-export([origins/1, methods/2, preflight/2]).

-export_type([origins/0, methods/0]).

-doc "The origins that are allowed by name, with the headers of all answers to their pages.".
-type origins() :: #{Origin :: binary() => #{binary() => binary()}}.
-doc "The allowed methods of each endpoint, by its path.".
-type methods() :: #{Path :: binary() => Methods :: binary()}.

%% Seconds that a browser may keep the answer to a preflight request. Chromium keeps it no longer.
-define(REMEMBERED, ~"7200").

-doc "Returns the origins that a listener's options allow by name, with their headers.".
-spec origins(map()) -> origins().
origins(#{allowed_origins := [_ | _] = Origins}) ->
    #{Origin => headers(Origin) || Origin <- Origins};
origins(_) ->
    #{}.

headers(Origin) ->
    #{~"access-control-allow-origin" => Origin, ~"vary" => ~"Origin",
      ~"access-control-expose-headers" =>
          ~"Mcp-Session-Id, WWW-Authenticate, Retry-After, DPoP-Nonce"}.

-doc """
Returns the allowed methods of the endpoint at `Path`, and of the paths of HTTP+SSE. `SsePaths` are
the path of the stream and the path for messages, or `[]`.
""".
-spec methods(Path :: binary(), [SsePath :: binary()]) -> methods().
methods(Path, SsePaths) ->
    Sse = maps:from_list(lists:zip(SsePaths, [~"GET", ~"POST"], trim)),
    Sse#{Path => ~"POST, GET, DELETE"}.

-doc """
Returns the answer to a preflight request to an endpoint, by which a browser asks whether a page may
send its request. Returns `none` for any other request.
""".
-spec preflight(cowboy_req:req(), methods()) -> cowboy_stream:commands() | none.
preflight(#{method := ~"OPTIONS", path := Path, has_body := false,
            headers := #{~"access-control-request-method" := _}}, Methods)
  when is_map_key(Path, Methods) ->
    erlmcp_httpd_response:respond(204, #{
        ~"access-control-allow-methods" => map_get(Path, Methods),
        %% `*` means all headers except `Authorization`. Others are named for browsers that do not
        %% know `*`.
        ~"access-control-allow-headers" =>
            <<"Content-Type, Accept, Authorization, DPoP, MCP-Protocol-Version, Mcp-Session-Id, "
              "Mcp-Method, Mcp-Name, Last-Event-ID, *">>,
        ~"access-control-max-age" => ?REMEMBERED
    }, <<>>);
preflight(_, _) ->
    none.
