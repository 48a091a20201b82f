-module(erlmcp_oauth).
-moduledoc """
The types of the option `auth` of a client on HTTP (`t:erlmcp_client:http_options/0`), which logs
the client in by OAuth. The module has no functions.

```erlang
{ok, Client} = erlmcp_client:start_link(
    {http, ~"https://mcp.example.com/mcp", #{auth => #{grant => authorization_code}}}).
```
""".

-export_type([options/0, grant/0, secret/0, allow_hosts/0, host_question/0]).

-doc """
The way in which a client gets a token.

- `authorization_code`: a user logs in with a browser (the default).
- `client_credentials`: the client's own credentials, `client_secret` or `key`.
- `enterprise`: the identity provider of the user's organisation (`idp`) exchanges the user's
  identity token.
- `jwt_bearer`: a JWT (`assertion`) that proves the identity of a workload.
""".
-type grant() :: authorization_code | client_credentials | enterprise | jwt_bearer.

-doc """
A secret, or a fun that returns it. The fun is called each time that the secret is needed. The fun
of a client's option `token`, and that of `jwks` (`t:erlmcp_listen:token_source/0`), are called only
when the client or the server starts.

## Errors

If the fun returns `{error, Reason}`, nothing is sent. A client's call that needs the secret fails
with `{unauthorized, {secret, Reason}}`. A client or a server that needs it to start does not start.
""".
-type secret() :: binary() | fun(() -> {ok, binary()} | {error, term()}).

-doc """
Options of a login.

- `grant`: how the client gets a token, see `t:grant/0`.
- `client_id`, `client_secret`: the credentials of a client that is already registered. Every grant
  except `authorization_code` needs `client_id`.
- `issuer`: the authorization server at which the client is registered. The credentials are sent to
  no other authorization server. The default is the first issuer that the MCP server names, or the
  MCP server itself if it names none.
- `key`, `algorithm`: a private key in PEM and its JWS algorithm, in place of a secret. The
  algorithm is `ES256` (the default), `RS256`, `PS256` or `EdDSA`.
- `client_metadata_url`: the https URL of the client's metadata document. The URL is the client's id
  at authorization servers that read such documents.
- `client_name`: the name of a client that registers itself (`erlmcp`).
- `browser`: a fun that sends the user to a URL. The default opens the URL in the machine's browser.
  With `none` the client uses and renews stored tokens, and a login that needs a user fails.
- `loopback`: the listener to which the browser returns after the login: its `port` (any free one),
  `path` (`/callback`) and `host` (`127.0.0.1`, or `localhost`). Its `say` is a fun that shows the
  user the URL if no browser could be opened. The default logs a notice.
- `redirect_uri`: a URL of your own to which the browser returns, in place of `loopback`. `browser`
  is required then, and returns `{ok, Url}` with the URL that the browser returned to.
- `scope`: scopes to ask for, with spaces between them. They are added to the scopes of a challenge,
  and replace those of the server's metadata.
- `assertion`: the JWT of `jwt_bearer`, or a fun that returns it for an issuer.
- `idp`: the identity provider of `enterprise`: its `token_endpoint`, the `client_id` and
  `client_secret` there, and the user's `id_token`.
- `dpop`: `true` if tokens are bound to a key of this client (RFC 9449). The default is `false`.
- `store`: the store of registrations and tokens: `{Module, Options}` with a module of
  `-behaviour(erlmcp_token_store)`. The default keeps them in memory while the client runs. Clients
  of different users must not share a store.
- `allow_hosts`: exceptions to the rules about the hosts that a login may contact, see
  `t:allow_hosts/0`. The default is `[]`.
- `tls`: options of `ssl:connect/3` for the connections of a login: to the authorization server, and
  for the MCP server's metadata.
- `login_timeout`: milliseconds that a user has for a login (300,000).
""".
-type options() :: #{
    grant => grant(),
    client_id => binary(),
    client_secret => secret(),
    issuer => binary(),
    key => secret(),
    algorithm => binary(),
    client_metadata_url => binary(),
    client_name => binary(),
    redirect_uri => binary(),
    loopback => #{port => inet:port_number(), path => binary(), host => binary(),
                  say => fun((Url :: binary()) -> term())},
    browser => none | fun((Url :: binary()) -> ok | {ok, binary()} | {error, term()}),
    scope => binary(),
    assertion => binary() | fun((Issuer :: binary()) -> {ok, binary()} | {error, term()}),
    idp => #{token_endpoint := binary(), client_id := binary(), client_secret => secret(),
             id_token := secret()},
    dpop => boolean(),
    store => {module(), map()},
    allow_hosts => allow_hosts(),
    tls => [ssl:tls_client_option()],
    login_timeout => pos_integer()
}.

-doc """
Exceptions to two rules about the hosts that a login may contact:

1. An endpoint must have the origin of its issuer.
2. A host must not be deeper inside the network than the MCP server. A private address is deeper
   inside than a public one, and an address of this machine or its link is deeper still. The hosts
   of the MCP server and of the option `issuer` are exempt.

A list has the names of the permitted hosts, in lower case and without a port. A fun is asked once
for each host and reason, and again after it returned `false`. The client keeps the last 100
permissions. The fun runs in the process of the login, which waits for it.
""".
-type allow_hosts() :: [binary()] | fun((host_question()) -> boolean()).

-doc """
A `host` that needs permission, the `url` with that host, and the reason `why` it needs permission.
`other_origin` names the issuer whose origin the URL does not have. `inner_address` is the private
or local address of the host.
""".
-type host_question() :: #{
    host := binary(),
    url := binary(),
    why := {other_origin, Issuer :: binary()} | {inner_address, Address :: binary()}
}.
