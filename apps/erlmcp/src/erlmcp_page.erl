-module(erlmcp_page).
-moduledoc """
The behaviour of a page: what a listener of HTTP answers at a path other than that of its endpoint.
A page is for people and for instruments, and speaks plain HTTP, not MCP. `pages` of
`t:erlmcp_listen:http/0` names the pages of a listener.

```erlang
-module(my_page).
-behaviour(erlmcp_page).
-export([handle/2]).

handle(#{below := ~"/time"}, _) ->
    Time = calendar:system_time_to_rfc3339(os:system_time(second)),
    {200, #{~"content-type" => ~"text/plain"}, Time};
handle(#{below := ~"/ticks"}, Greeting) ->
    {stream, #{~"content-type" => ~"text/event-stream"}, fun(Send) ->
        [Send([~"data: ", Greeting, ~"\n\n"]) || _ <- lists:seq(1, 3)],
        ok
    end};
handle(_, _) ->
    {404, #{}, ~""}.
```

```erlang
listen => [{http, #{port => 8080, pages => #{~"/my" => {my_page, ~"tick"}}}}]
```
""".

-export_type([page/0, request/0, response/0, headers/0]).

-doc """
A page: its module, and the state that `c:handle/2` gets. `authenticate => true` asks for the
identity of the page's clients as the listener does for its endpoint, with the listener's `scopes`.
Without this option everybody who reaches the listener may see the page.
""".
-type page() ::
    {module(), State :: term()} | {module(), State :: term(), #{authenticate => boolean()}}.

-doc """
A request for a page.

- `method`: `GET`, `HEAD` or `POST`. An answer to HEAD is sent without its body.
- `path`, `query`: of the URL, as the client wrote them.
- `below`: the rest of the path behind that of the page: empty, or with a slash at its beginning.
- `headers`: with names in lower case.
- `scheme`, `host`, `port`: of the URL, as the listener was asked. Behind a proxy that ends TLS the
  scheme is `http`.
- `peer`: the client's address. For a request from a trusted proxy, `peer` is the address that the
  proxy names.
- `server`: the server, for the functions of `m:erlmcp`.
- `principal`: the client's identity, `anonymous` for a page without `authenticate`.
- `body`: at most 65,536 bytes; a larger one is refused.
""".
-type request() :: #{
    method := binary(),
    path := binary(),
    below := binary(),
    query := binary(),
    headers := #{binary() => binary()},
    scheme := binary(),
    host := binary(),
    port := inet:port_number(),
    peer := {inet:ip_address(), inet:port_number()},
    server := erlmcp:server(),
    principal := erlmcp:principal(),
    body := binary()
}.

-doc """
A whole response, or a stream of bytes with the status 200.

`Send` of a stream returns when the bytes have been handed to the client's connection, and there is
room for more. Only the process of the fun may call `Send`. The stream ends when the fun returns.
The stream and that process also end if the client goes away, or reads nothing for
`send_timeout_ms` (a limit of the server). The same holds if the client's identity expires, or the
server is stopped.
""".
-type response() ::
    {Status :: 200..599, headers(), Body :: iodata()}
    | {stream, headers(), fun((Send :: fun((iodata()) -> ok)) -> term())}.

-doc """
Headers of a response, with names in lower case. The listener itself sets the headers of the
connection, and those for the length and the framing of the body. A page that sets one of these
fails. The defaults are `no-store` for `cache-control`, and `nosniff` for `x-content-type-options`.
""".
-type headers() :: #{binary() => iodata()}.

-doc """
Answers a request, in a process of its own. The function must return within 10 seconds, or within
`call_timeout_ms` if that is less. `call_heap_bytes` bounds the heap of the process. If the function
crashes, or passes a bound, the client gets the id of an incident, and the log has the reason. At
most 100 calls of this function, and streams that it has returned, run at once for one listener.
Further requests for pages get the status 503.
""".
-callback handle(request(), State :: term()) -> response().
