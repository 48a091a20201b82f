-module(erlmcp_listen).
-moduledoc """
The types of the option `listen` of a server (`t:erlmcp:options/0`): its listeners, and the ways in
which they identify clients. The module has no functions.

```erlang
listen => [{http, #{port => 8080, authenticate => fun my_tokens:lookup/1}},
           {stdio, #{}}]
```

Begin with `t:listener/0`. `t:authenticate/0` lists the ways to identify clients. `t:bearer/0` has
the options for access tokens.
""".

-export_type([listener/0, http/0, tcp/0, stdio/0, sse/0, protected_resource/0]).
-export_type([authenticate/0, ask/0, request/0, certificate/0]).
-export_type([bearer/0, token_source/0, static_token/0, verified_token/0]).

-doc "A listener: its transport and its options.".
-type listener() :: {http, http()} | {tcp, tcp()} | {stdio, stdio()}.

-doc """
Options of Streamable HTTP.

- `ip`, `port`: the address, by default a free port of the loopback address.
- `path`: the path of the endpoint (`/mcp`); `none` for a listener with only pages or HTTP+SSE. If
  the endpoint's URL is an OAuth resource, the path must consist of characters that a URL may
  contain.
- `metrics`: `true` adds the page `/metrics`, which shows the figures of all servers and clients of
  this node to Prometheus. The default is `false`. The page needs the application `prometheus`, see
  `m:erlmcp_prometheus`.
- `pages`: what the listener answers in addition to the endpoint, by path, see `m:erlmcp_page`. A
  page at another path than `/` answers all paths below it, too.
- `health`: `true` for the pages `/health`, `/health/live` and `/health/ready`, see
  `erlmcp:health/1`.
- `tls`: options of `ssl:listen/2`. Without this option the listener speaks plain HTTP.
- `allowed_hosts`: names accepted in `Host`, in addition to IP addresses, `localhost` and the
  machine's own name; `any` accepts all.
- `allowed_origins`: origins whose pages may call the server and read its answers (CORS). Pages of
  the same host and of the loopback address may always call the server. With `any`, pages of every
  origin may call it. A browser lets a page read the answers only if the page's origin is named
  here, or is that of the server.
- `authenticate`: identifies clients, see `t:authenticate/0`. Without it all clients are
  `anonymous`.
- `scopes`: the scopes that every request needs.
- `implied_scopes`: for each broader scope, the scopes that it includes.
- `protected_resource`: fields of the listener's OAuth metadata, see `t:protected_resource/0`.
- `sse`: serves HTTP+SSE of 2024-11-05 in addition, see `t:sse/0`.
- `trusted_proxies`: addresses and networks of proxies, such as `~"10.0.0.0/8"`. A request from one
  of them counts as one from the client that its `Forwarded` or `X-Forwarded-For` names.
- `proxy_protocol`: `true` if the trusted proxies begin each connection with the header of the PROXY
  protocol. This option needs `trusted_proxies`.
""".
-type http() :: #{
    ip => inet:ip_address(),
    port => inet:port_number(),
    path => binary() | none,
    metrics => boolean(),
    pages => #{Path :: binary() => erlmcp_page:page()},
    health => boolean(),
    tls => [ssl:tls_server_option()],
    allowed_hosts => any | [binary()],
    allowed_origins => any | [binary()],
    authenticate => authenticate(),
    scopes => [erlmcp:scope()],
    implied_scopes => #{erlmcp:scope() => [erlmcp:scope()]},
    protected_resource => protected_resource(),
    sse => sse(),
    trusted_proxies => [binary(), ...],
    proxy_protocol => boolean()
}.

-doc """
Options of TCP. Each line is one JSON-RPC message.

- `ip`, `port`: the address, by default a free port of the loopback address.
- `principal`: the principal of all clients (`anonymous`).
- `trusted_proxies`, `proxy_protocol`: as in `t:http/0`. A TCP listener needs both or neither.
""".
-type tcp() :: #{
    ip => inet:ip_address(),
    port => inet:port_number(),
    principal => erlmcp:principal(),
    trusted_proxies => [binary(), ...],
    proxy_protocol => boolean()
}.

-doc """
Options of standard input and output. The node stops when the input ends.

- `output`: the file descriptor that messages are written to (1).
- `principal`: the principal of the client (`anonymous`).
""".
-type stdio() :: #{output => pos_integer(), principal => erlmcp:principal()}.

-doc """
Paths of HTTP+SSE: `path` for the stream (`/sse`), and `message_path` for POST requests
(`/messages`). Both must differ from each other, and from the `path` and the pages of `t:http/0`.
""".
-type sse() :: #{path => binary(), message_path => binary()}.

-doc """
Fields of the metadata of RFC 9728, under their names in the RFC. The metadata is served if
`authorization_servers` are known, from here or from `t:bearer/0`. With `bearer`, set `resource` and
`authorization_servers` among its options, not here.
""".
-type protected_resource() :: #{
    resource => binary(), authorization_servers => [binary(), ...],
    scopes_supported => [erlmcp:scope()], resource_name => binary(),
    resource_documentation => binary(), resource_policy_uri => binary(),
    resource_tos_uri => binary()
}.

-doc """
The way in which a listener identifies its clients: at most once for a request, before the body is
read.

- A fun runs in the connection's process, which serves no other request meanwhile. Use it for
  look-ups that call no other process.
- `{process, Fun}` runs the fun in a process of its own, for up to `authenticate_timeout_ms` (a
  limit of the server). After that the request is refused with the status 503.
- `{certificate, Options}` identifies a client by its certificate.
- `{bearer, Options}` identifies a client by its OAuth access token.
""".
-type authenticate() ::
    ask() | {process, ask()} | {certificate, certificate()} | {bearer, bearer()}.

-doc """
Returns the principal of a request, or the reason why the request is refused. The reason is a
sentence in UTF-8 that the client gets with the status 401.

The map after the principal may have `scopes` (`all` by default), `claims`, and `expires_at`: in
seconds of system time, or `infinity`. If that time has passed, the request is refused with the
status 401. An open stream of the client ends at that time. If the fun crashes, or returns another
term, the client gets the status 500.
""".
-type ask() :: fun((request()) ->
    {ok, erlmcp:principal()} | {ok, erlmcp:principal(), map()} | {error, Reason :: binary()}).

-doc """
The head of an HTTP request. Header names are in lower case; `path` has no query. `peer` is the
address of the client, and `tls` is `true` if the connection is encrypted. `certificate` is the
client's certificate in DER, if TLS asked for one and got it. `url` is the URL of the endpoint, with
the local address of the connection, whatever `Host` says.
""".
-type request() :: #{
    method := binary(),
    path := binary(),
    headers := #{binary() => binary()},
    peer := {inet:ip_address(), inet:port_number()},
    tls := boolean(),
    certificate => public_key:der_encoded(),
    url := binary()
}.

-doc """
Options of client certificates. TLS accepts only certificates that an authority in `cacertfile` or
`cacerts` of `tls` has signed. A request without a certificate is refused with 403. Open streams of
a client end when its certificate expires.

- `principal`: `subject`, the default, is the pair of the issuer's and the subject's distinguished
  names. `san` is `{uri, Name}` with the first alternative name that is a URI, or else
  `{email, Name}` or `{dns, Name}`. A fun gets the certificate in DER, and returns the principal or
  the reason of a refusal (403). It runs in the connection's process.
- `scopes`: the scopes of all clients (`all`).
""".
-type certificate() :: #{
    principal => subject | san
        | fun((public_key:der_encoded()) -> {ok, erlmcp:principal()} | {error, binary()}),
    scopes => erlmcp:scopes()
}.

-doc """
Options of access tokens.

- `tokens`: sources that decide whether a token is valid, asked in this order; required.
- `resource`: the URL of the server as clients write it, or several of them. Tokens must be for one
  of these. The default, the endpoint's own URL, is wrong behind a proxy.
- `authorization_servers`: the issuers where clients can get a token. The default is those of
  `tokens`.
- `principal`: a fun that gets the claims of a token from `jwt` or `introspection`, and returns the
  token's principal. The claim `sub` may be missing. The default is `{Issuer, Subject}`, or
  `{Issuer, {client, ClientId}}` for a token without a subject; a token with neither is refused.
  Tokens of other sources have a principal already.
- `dpop`: whether tokens are bound to a key of the client (RFC 9449). `off`, the default, refuses
  bound tokens, `required` refuses tokens that are not bound, and `optional` accepts both.
- `dpop_nonce`: `true` if proofs need a nonce of this server, which changes every five minutes. The
  default is `false`.
- `dpop_proofs`, `dpop_proofs_per_key`: the most proofs that the server remembers, so that none is
  used twice: of all keys (100,000), and of one key (10,000). The bound of one key is lower while
  many proofs of other keys are remembered. A proof that is too old to be accepted is forgotten.
- `wait_ms`: milliseconds that a request waits for authorization servers (10,000).
- `tls`: options of `ssl:connect/3` for connections to authorization servers.
""".
-type bearer() :: #{
    tokens := [token_source(), ...],
    resource => binary() | [binary(), ...],
    authorization_servers => [binary()],
    principal => fun((Claims :: #{binary() => term()}) -> erlmcp:principal()),
    dpop => off | optional | required,
    dpop_nonce => boolean(),
    dpop_proofs => pos_integer(),
    dpop_proofs_per_key => pos_integer(),
    wait_ms => pos_integer(),
    tls => [ssl:tls_client_option()]
}.

-doc """
A source that decides whether a token is valid.

`jwt` verifies the token's signature with the keys of the `issuer`:

- `jwks`: `{uri, Url}` (https, or http on the loopback address), `{keys, Jwks}` or
  `{secret, Secret}`.
- `algorithms`: `RS256`, `PS256`, `ES256` and `EdDSA` by default. `HS256`, `HS384` and `HS512` need
  a `secret` at least as long as their hash, and cannot be listed with the others.
- `audience`: accepted audiences, in place of `resource`.
- `types`: accepted values of `typ`, `at+jwt` and `JWT` by default. `JWT` also accepts a token
  without `typ`.
- `leeway_s`: seconds that clocks may differ (60, at most 300).

`introspection` asks the authorization server at `uri` about tokens of the `issuer`:

- `client_id` with a `client_secret`, or with a `key` (PEM) and its `algorithm` (`ES256`): the
  credentials of this server.
- `audience`: accepted audiences, in place of `resource`. The answer must name one of them.
- `cache_s`: seconds that an answer is kept (30, at most 300; 0 keeps none). A revoked token can be
  accepted for that long.

`static` is a list of at most 10,000 tokens. `verify` is a fun that runs in the connection's
process, so it must not call other processes. The fun returns `{error, Text}` to refuse the token,
and `unknown` to pass the token to the next source.
""".
-type token_source() ::
    {jwt, #{issuer := binary(),
            jwks := {uri, binary()} | {keys, [map()]} | {secret, erlmcp_oauth:secret()},
            audience => binary() | [binary(), ...], algorithms => [binary(), ...],
            types => [binary(), ...], leeway_s => 0..300}}
    | {introspection, #{uri := binary(), issuer := binary(), client_id := binary(),
                        client_secret => erlmcp_oauth:secret(),
                        key => erlmcp_oauth:secret(), algorithm => binary(),
                        audience => binary() | [binary(), ...], cache_s => 0..300}}
    | {static, [static_token()]}
    | {verify, fun((Token :: binary(), request()) ->
                       {ok, verified_token()} | {error, binary()} | unknown)}.

-doc """
A `token`, or its `sha256` in hexadecimal digits, and its principal. `expires_at` is in seconds of
system time; without it the token does not expire. Without `scopes` the token has no scopes.
""".
-type static_token() :: #{token | sha256 => binary(), principal := erlmcp:principal(),
                          scopes => erlmcp:scopes(), expires_at => integer()}.

-doc """
A token that a `verify` fun accepts: its `principal` and, perhaps, its `claims`. `expires_at` is in
seconds of system time. Without it, or with `infinity`, the token does not expire. Without `scopes`
the token has no scopes.
""".
-type verified_token() :: #{principal := erlmcp:principal(), scopes => erlmcp:scopes(),
                            expires_at => integer() | infinity, claims => #{binary() => term()}}.
