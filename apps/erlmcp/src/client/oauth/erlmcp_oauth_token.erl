-module(erlmcp_oauth_token).
-moduledoc """
Requests tokens from a token endpoint, with a grant and the client's authentication. It runs in the
calling process. A token is accepted only if it can be sent in a header, and is of the requested
type.

Source: OAuth 2.1 (draft 13), sections 3.2 and 4; RFC 9449, sections 5 and 8.

Internal.
""".

-export([request/5, exchange/4, refresh/3, is_refused/1, error_text/2]).

-export_type([tokens/0, reason/0]).

-doc """
The granted tokens. `expires_at` is in seconds of system time, at most a year ahead, and `infinity`
if the answer has no valid `expires_in`. `requested` are the requested scopes, whether or not they
were granted. `client` is the client, if it was registered dynamically. If a refresh token was used,
`refreshed_at` is the time of its use, in seconds of system time.
""".
-type tokens() :: #{
    resource := binary(),
    server := erlmcp_oauth_discovery:server(),
    access_token := binary(),
    type := bearer | dpop,
    expires_at := integer() | infinity,
    requested := [binary()],
    refresh_token => binary(),
    client => erlmcp_oauth_registration:client(),
    refreshed_at => integer()
}.
-doc """
The reason why no token was granted. `token_refused` has the HTTP status, and the error and the
description of the authorization server if they are text. `token` names the wrong member of its
answer.
""".
-type reason() ::
    erlmcp_fetch:reason()
    | erlmcp_oauth_client_authentication:reason()
    | {token_refused, Status :: pos_integer(), Error :: binary() | none,
       Description :: binary() | none}
    | {token, access_token | token_type | issued_token_type}.

-define(TOKEN_BYTES, 16_384).
-define(ERROR_BYTES, 256).
-define(MOST_SECONDS, 31_536_000).

-doc """
Requests a token from the authorization server of a protected resource. `Grant` has all form
parameters of the grant. So `Scopes`, the requested scopes, are only recorded in the result. If the
server does not know a dynamically registered client, the client's stored registration is deleted.
The errors are those of `t:reason/0`.
""".
-spec request(Grant :: [{binary(), binary()}], Scopes :: [binary()],
              erlmcp_oauth_registration:client(),
              erlmcp_oauth_discovery:protected_resource(), erlmcp_oauth_flow:context()) ->
    {ok, tokens()} | {error, reason()}.
request(Grant, Scopes, Client, #{resource := Resource, server := Server}, Context) ->
    #{token_endpoint := Url, issuer := Issuer} = Server,
    Form = Grant ++ [{~"resource", Resource}],
    maybe
        {ok, Answer} ?= posted({Url, Issuer}, Form, Client, #{}, Context),
        {ok, Document} ?= accepted(Answer, Issuer, Client, Context),
        {ok, Tokens} ?= tokens(Document, Context),
        Granted = Tokens#{resource => Resource, server => Server, requested => Scopes},
        {ok, maps:merge(Granted, registered(Client))}
    end.

registered(#{redirect_uri := _} = Client) -> #{client => Client};
registered(#{}) -> #{}.

-doc """
Requests a new token with a refresh token, as `request/5` does with a grant. If the answer has no
new refresh token, the result keeps the old one. The errors are those of `t:reason/0`.
""".
-spec refresh(tokens(), erlmcp_oauth_registration:client(), erlmcp_oauth_flow:context()) ->
    {ok, tokens()} | {error, reason()}.
refresh(#{refresh_token := Refresh, requested := Scopes} = Tokens, Client, Context) ->
    Grant = [{~"grant_type", ~"refresh_token"}, {~"refresh_token", Refresh}],
    maybe
        {ok, New} ?= request(Grant, Scopes, Client, maps:with([resource, server], Tokens), Context),
        {ok, maps:merge(#{refresh_token => Refresh,
                          refreshed_at => erlang:system_time(second)}, New)}
    end.

-doc """
Exchanges a token at an identity provider for an assertion, which another authorization server
accepts (RFC 8693). `Url` is the provider's token endpoint, and `Form` has the form parameters, with
`requested_token_type`. No DPoP proof is sent, since the assertion is not an access token. The
errors are those of `t:reason/0`.
""".
-spec exchange(Url :: binary(), Form :: [{binary(), binary()}],
               erlmcp_oauth_registration:client(), erlmcp_oauth_flow:context()) ->
    {ok, Assertion :: binary()} | {error, reason()}.
exchange(Url, Form, Client, Context) ->
    {_, Kind} = lists:keyfind(~"requested_token_type", 1, Form),
    maybe
        {ok, Answer} ?= erlmcp_oauth_client_authentication:post(Url, Form, Client, Context),
        {ok, Document} ?= accepted(Answer),
        #{~"access_token" := Assertion} ?= Document,
        true ?= is_binary(Assertion) andalso byte_size(Assertion) =< ?TOKEN_BYTES,
        true ?= maps:get(~"issued_token_type", Document, none) =:= Kind
            orelse {error, {token, issued_token_type}},
        {ok, Assertion}
    else
        {error, _} = Error -> Error;
        _ -> {error, {token, access_token}}
    end.

%% The authorization server may require a nonce in the proof. Then the request is sent again, once.
%% It has another assertion of the client, since the server may refuse the second use of one.
posted({Url, Audience} = To, Form, Client, Claims, #{fetch := Fetch, dpop := Key} = Context) ->
    #{settings := Settings} = Context,
    maybe
        {ok, Headers, Parameters} ?=
            erlmcp_oauth_client_authentication:authenticate(Client, Audience, Settings),
        {ok, Answer} ?= erlmcp_fetch:post_form(Url, proof(Url, Claims, Key) ++ Headers,
                                               Form ++ Parameters, Fetch),
        case required_nonce(Answer) of
            <<Nonce/binary>> when Key =/= none, Claims =:= #{} ->
                posted(To, Form, Client, #{nonce => Nonce}, Context);
            _ ->
                {ok, Answer}
        end
    end.

required_nonce(#{headers := Headers, json := {ok, #{~"error" := ~"use_dpop_nonce"}}}) ->
    erlmcp_dpop:nonce(Headers);
required_nonce(_) ->
    none.

proof(_, _, none) -> [];
proof(Url, Claims, Key) -> [{~"dpop", erlmcp_dpop:proof(~"POST", Url, Claims, Key)}].

%% If the authorization server no longer knows the client, its registration is deleted, so that the
%% next login registers another one.
accepted(Answer, Issuer, Client, #{learned := Learned}) ->
    case accepted(Answer) of
        {error, {token_refused, _, ~"invalid_client", _}} = Error
          when is_map_key(redirect_uri, Client) ->
            ok = Learned({forget, Issuer}),
            Error;
        Other ->
            Other
    end.

accepted(#{status := 200, json := {ok, #{} = Document}}) ->
    {ok, Document};
accepted(#{status := Status, json := {ok, #{} = Document}}) ->
    {error, {token_refused, Status, error_text(~"error", Document),
             error_text(~"error_description", Document)}};
accepted(#{status := Status}) ->
    {error, {token_refused, Status, none, none}}.

tokens(#{~"access_token" := Token, ~"token_type" := Type} = Document, Context)
  when is_binary(Type) ->
    maybe
        true ?= is_token(Token) orelse {error, {token, access_token}},
        {ok, Kind} ?= kind(string:lowercase(Type), Context),
        {ok, maps:merge(#{access_token => Token, type => Kind, expires_at => expiry(Document)},
                        refresh_token(Document))}
    end;
tokens(#{~"access_token" := _}, _) ->
    {error, {token, token_type}};
tokens(_, _) ->
    {error, {token, access_token}}.

%% A client with `dpop` refuses a bearer token, which any holder could use.
kind(~"bearer", #{dpop := none}) -> {ok, bearer};
kind(~"dpop", #{dpop := Key}) when Key =/= none -> {ok, dpop};
kind(_, _) -> {error, {token, token_type}}.

refresh_token(#{~"refresh_token" := Token}) when is_binary(Token), Token =/= ~"",
                                                 byte_size(Token) =< ?TOKEN_BYTES ->
    #{refresh_token => Token};
refresh_token(_) ->
    #{}.

%% In a header the token must be a single word of visible ASCII characters.
is_token(Token) ->
    is_binary(Token) andalso Token =/= ~"" andalso byte_size(Token) =< ?TOKEN_BYTES andalso
        << <<Byte>> || <<Byte>> <= Token, Byte > 32, Byte < 127 >> =:= Token.

expiry(#{~"expires_in" := Seconds}) when is_number(Seconds), Seconds >= 0 ->
    erlang:system_time(second) + min(trunc(Seconds), ?MOST_SECONDS);
expiry(_) ->
    infinity.

-doc """
Returns `true` if the reason is that the authorization server has refused a grant. Returns `false`
if the same request may succeed at another time (statuses 408, 425, 429, and from 500 on). Returns
`false` for every other reason, too.
""".
-spec is_refused(Reason :: term()) -> boolean().
is_refused({token_refused, Status, _, _}) ->
    Status < 500 andalso not lists:member(Status, [408, 425, 429]);
is_refused(_) ->
    false.

-doc """
Returns the member `Name` of an authorization server's error, as ASCII text of at most 256 bytes.
Returns `none` if the member is missing, or is not text.
""".
-spec error_text(Name :: binary(), #{binary() => term()}) -> binary() | none.
error_text(Name, Document) ->
    case Document of
        #{Name := Text} when is_binary(Text) -> erlmcp_printable:part(Text, ?ERROR_BYTES);
        #{} -> none
    end.
