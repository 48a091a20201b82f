-module(erlmcp_oauth).
-moduledoc """
The option `auth` of a client on HTTP (`t:erlmcp_client:http_options/0`): types of its OAuth
options. The module has no functions.

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
- `enterprise`: the user's identity token is exchanged at the `idp` of their organisation.
- `jwt_bearer`: the `assertion` of a workload's identity.
""".
-type grant() :: authorization_code | client_credentials | enterprise | jwt_bearer.

-doc """
A secret, or a fun that returns it. The fun is called each time that the secret is sent, except that
of a client's option `token`, which is called once.

## Errors

If the fun returns `{error, Reason}`, nothing is sent. A client's call that needs the secret fails
with `{unauthorized, {secret, Reason}}`.
""".
-type secret() :: binary() | fun(() -> {ok, binary()} | {error, term()}).

-doc """
Options of a login.

- `grant`: how the client gets a token, see `t:grant/0`.
- `client_id`, `client_secret`: those of a client that is already registered. `issuer` is where, and
  the credentials are sent nowhere else. The default is the first issuer that the server names.
- `key`, `algorithm`: a private key (PEM) and its JWS algorithm (`ES256`), in place of a secret.
- `client_metadata_url`: the https URL of the client's metadata document. It is the client's id at
  authorization servers that read such documents.
- `client_name`: the name of a client that registers itself (`erlmcp`).
- `browser`: a fun that sends the user to a URL; by default it is opened in the machine's browser.
  With `none` no user is sent: kept tokens are used and renewed, and a login fails.
- `loopback`: the listener that the browser comes back to: its `port` (any free one), `path`
  (`/callback`) and `host` (`127.0.0.1`). `say` is a fun that shows the user the URL where the
  browser could not be opened.
- `redirect_uri`: where the browser is sent back to instead. `browser` is required then, and returns
  `{ok, Url}` with the URL that the browser returned to.
- `scope`: scopes to ask for. They are added to those of a challenge, and replace those of the
  server's metadata.
- `assertion`: the JWT of `jwt_bearer`, or a fun that returns it for an issuer.
- `idp`: the identity provider of `enterprise`: its `token_endpoint`, the `client_id` and
  `client_secret` there, and the user's `id_token`.
- `dpop`: `true` if tokens are bound to a key of this client's (RFC 9449).
- `store`: keeps registrations and tokens: `{Module, Options}` with a module of
  `-behaviour(erlmcp_token_store)`. The default keeps them in memory for as long as the client runs.
- `allow_hosts`: hosts that a login may lead to against the rules, see `t:allow_hosts/0` (`[]`).
- `tls`: options of TLS with the authorization server.
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
Hosts that a login may lead to outside the issuer's origin, or further inside the network than the
MCP server. A fun is asked once for each host, and again after a refusal. It runs in the process of
the login, which waits for it.
""".
-type allow_hosts() :: [binary()] | fun((host_question()) -> boolean()).

-doc """
A host that needs permission, and the URL that leads there. `other_origin` names the issuer whose
origin it lies outside of, `inner_address` the private or local address that the host has.
""".
-type host_question() :: #{
    host := binary(),
    url := binary(),
    why := {other_origin, Issuer :: binary()} | {inner_address, Address :: binary()}
}.
