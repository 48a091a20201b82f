-module(erlmcp_oauth_client_authentication).
-moduledoc """
How a client of an authorization server says who it is, as it is registered there: by its id alone,
by a secret, or by an assertion that its own key signs. A client of MCP does so at the token
endpoint, and a server where it asks about tokens. It runs in the process that asks.

Source: OAuth 2.1 (draft 13), section 2.4; RFC 7523, section 2.2.

Internal.
""".

-export([authenticate/3, post/4]).

-export_type([client/0, reason/0]).

-doc "A client as an authorization server knows it. A secret may come from a fun.".
-type client() :: #{
    auth := none | client_secret_basic | client_secret_post | private_key_jwt,
    client_id := binary(),
    client_secret => binary() | fun(() -> {ok, binary()} | {error, term()}),
    atom() => term()
}.
-doc "Why there is no assertion, or no secret.".
-type reason() :: {assertion, term()} | {secret, term()}.

-doc "Posts a form as this client, and returns the answer.".
-spec post(Url :: binary(), [{binary(), binary()}], client(),
           #{fetch := erlmcp_fetch:settings(), settings := map(), _ => _}) ->
    {ok, erlmcp_fetch:answer()} | {error, erlmcp_fetch:reason() | reason()}.
post(Url, Form, Client, #{fetch := Fetch, settings := Settings}) ->
    maybe
        {ok, Headers, Parameters} ?= authenticate(Client, Url, Settings),
        erlmcp_fetch:post_form(Url, Headers, Form ++ Parameters, Fetch)
    end.

-doc """
Returns the headers and the parameters that authenticate a client. `Settings` has the `key` and the
`algorithm` of one with `private_key_jwt`, whose assertion is for `Audience`.
""".
-spec authenticate(client(), Audience :: binary(), Settings :: map()) ->
    {ok, [{binary(), iodata()}], [{binary(), binary()}]} | {error, reason()}.
authenticate(#{auth := none, client_id := Id}, _, _) ->
    {ok, [], [{~"client_id", Id}]};
authenticate(#{auth := client_secret_basic, client_id := Id, client_secret := Secret}, _, _) ->
    maybe
        {ok, Text} ?= revealed(Secret),
        Pair = <<(uri_string:quote(Id))/binary, ":", (uri_string:quote(Text))/binary>>,
        {ok, [{~"authorization", [~"Basic ", base64:encode(Pair)]}], []}
    end;
authenticate(#{auth := client_secret_post, client_id := Id, client_secret := Secret}, _, _) ->
    maybe
        {ok, Text} ?= revealed(Secret),
        {ok, [], [{~"client_id", Id}, {~"client_secret", Text}]}
    end;
authenticate(#{auth := private_key_jwt, client_id := Id}, Audience, Settings) ->
    #{key := Key, algorithm := Algorithm} = Settings,
    maybe
        {ok, Pem} ?= revealed(Key),
        {ok, Jwt} ?= asserted(#{client_id => Id, audience => Audience, key => Pem,
                                algorithm => Algorithm}),
        {ok, [], [{~"client_id", Id},
                  {~"client_assertion_type",
                   ~"urn:ietf:params:oauth:client-assertion-type:jwt-bearer"},
                  {~"client_assertion", Jwt}]}
    end.

asserted(Options) ->
    case erlmcp_oauth_assertion:client(Options) of
        {ok, Jwt} -> {ok, Jwt};
        {error, Reason} -> {error, {assertion, Reason}}
    end.

revealed(Secret) when is_binary(Secret) -> {ok, Secret};
revealed(Secret) ->
    case Secret() of
        {ok, Text} when is_binary(Text) -> {ok, Text};
        {error, Reason} -> {error, {secret, Reason}}
    end.
