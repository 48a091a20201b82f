-module(erlmcp_oauth_credentials).
-moduledoc """
Reads and writes the credentials that outlive a login, in a token store: tokens by server and
client, and registrations by issuer. Incomplete values, and those that the store fails to read,
count as missing. A failure to write is only logged.

Internal.
""".

-export([open/3, client/2, keep_client/2, drop_client/2, tokens/1, keep_tokens/3, drop_tokens/2]).

-export_type([kept/0, stored/0]).

-record(kept, {
    module :: module(), store :: term(), tokens :: erlmcp_token_store:key(),
    %% The configured issuer.
    issuer :: binary() | none
}).
-opaque kept() :: #kept{}.
-doc """
The stored tokens, with the DPoP key that they are bound to, or with `none` if they have no key.
`none` in place of the tuple means that no tokens are stored.
""".
-type stored() :: {ok, erlmcp_oauth_token:tokens(), erlmcp_dpop:key() | none} | none.

-doc """
Opens a token store, given its module and its options, for the credentials of the client at
`ServerUrl`. Any process may use the result, until the calling process ends. Returns
`{error, {store, Reason}}` if the store cannot be opened.
""".
-spec open({module(), map()}, ServerUrl :: binary(), erlmcp_oauth_options:settings()) ->
    {ok, kept()} | {error, {store, erlmcp_token_store:reason()}}.
open({Module, Options}, ServerUrl, #{grant := Grant, dpop := Dpop} = Settings) ->
    case Module:open(Options) of
        {ok, Store} ->
            Key = {tokens, ServerUrl, Grant, Dpop, maps:get(client_id, Settings, none)},
            {ok, #kept{module = Module, store = Store, tokens = Key,
                       issuer = maps:get(issuer, Settings, none)}};
        {error, Reason} ->
            {error, {store, Reason}}
    end.

-doc """
Returns the stored client that was registered dynamically with an issuer, or `none`. The client's
secret may have expired.
""".
-spec client(Issuer :: binary(), kept()) -> {ok, erlmcp_oauth_registration:client()} | none.
client(Issuer, #kept{module = Module, store = Store}) ->
    case Module:get({client, Issuer}, Store) of
        {ok, Value} -> client(Value);
        _ -> none
    end.

client(#{~"client_id" := Id, ~"auth" := Auth, ~"redirect_uri" := RedirectUri} = Value)
  when is_binary(Id), is_binary(RedirectUri) ->
    Client = maps:merge(#{client_id => Id, redirect_uri => RedirectUri},
                        members(Value, [client_secret, expires_at])),
    authenticated(Auth, Client);
client(_) ->
    none.

authenticated(~"none", Client) ->
    {ok, Client#{auth => none}};
authenticated(~"client_secret_basic", #{client_secret := _} = Client) ->
    {ok, Client#{auth => client_secret_basic}};
authenticated(~"client_secret_post", #{client_secret := _} = Client) ->
    {ok, Client#{auth => client_secret_post}};
authenticated(_, _) ->
    none.

members(Value, Names) ->
    #{Name => maps:get(atom_to_binary(Name), Value)
      || Name <- Names, is_map_key(atom_to_binary(Name), Value)}.

-doc """
Stores a dynamically registered client. If the store fails, the client is registered again next
time.
""".
-spec keep_client({Issuer :: binary(), erlmcp_oauth_registration:client()}, kept()) -> ok.
keep_client({Issuer, Client}, #kept{module = Module, store = Store}) ->
    Value = #{atom_to_binary(Name) => written(Part) || Name := Part <- Client},
    log_failure(Module:put({client, Issuer}, Value, Store)).

-doc "Deletes the stored client of an issuer.".
-spec drop_client(Issuer :: binary(), kept()) -> ok.
drop_client(Issuer, #kept{module = Module, store = Store}) ->
    log_failure(Module:delete({client, Issuer}, Store)).

-doc """
Returns the stored tokens, as described at `t:stored/0`. If an issuer is configured, tokens of
another issuer count as missing. Their renewal would send the client's credentials to that issuer.
""".
-spec tokens(kept()) -> stored().
tokens(#kept{issuer = Configured} = Kept) ->
    case read(Kept) of
        {ok, #{server := #{issuer := Other}}, _} when Configured =/= none, Other =/= Configured ->
            none;
        Stored ->
            Stored
    end.

read(#kept{module = Module, store = Store, tokens = Key}) ->
    maybe
        {ok, #{~"server" := #{} = Written} = Value} ?= Module:get(Key, Store),
        {ok, Server} ?= server(Written),
        {ok, Bound} ?= bound(Value),
        {ok, Tokens} ?= tokens(Value, Server),
        {ok, Whole} ?= with_client(Value, Tokens),
        {ok, Whole, Bound}
    else
        _ -> none
    end.

with_client(#{~"client" := Value}, Tokens) ->
    maybe
        {ok, Client} ?= client(Value),
        {ok, Tokens#{client => Client}}
    end;
with_client(#{}, Tokens) ->
    {ok, Tokens}.

bound(#{~"dpop" := #{} = Map}) -> erlmcp_dpop:from_map(Map);
bound(#{}) -> {ok, none}.

tokens(#{~"resource" := Resource, ~"access_token" := Token, ~"type" := Type,
         ~"expires_at" := Expires, ~"requested" := Requested} = Value, Server)
  when is_binary(Resource), is_binary(Token), is_list(Requested) ->
    maybe
        {ok, Kind} ?= type(Type),
        {ok, End} ?= expires(Expires),
        {ok, maps:merge(#{resource => Resource, access_token => Token, type => Kind,
                          expires_at => End, requested => Requested, server => Server},
                        members(Value, [refresh_token, refreshed_at]))}
    end;
tokens(_, _) ->
    malformed.

type(~"bearer") -> {ok, bearer};
type(~"dpop") -> {ok, dpop};
type(_) -> malformed.

expires(~"infinity") -> {ok, infinity};
expires(Seconds) when is_integer(Seconds) -> {ok, Seconds};
expires(_) -> malformed.

server(Value) ->
    Names = [issuer, authorization_endpoint, token_endpoint, registration_endpoint, scopes,
             code_challenge_methods, auth_methods, client_metadata, iss],
    case members(Value, Names) of
        #{authorization_endpoint := Authorize, registration_endpoint := Register} = Server
          when map_size(Server) =:= length(Names) ->
            {ok, Server#{authorization_endpoint := url(Authorize),
                         registration_endpoint := url(Register)}};
        _ ->
            malformed
    end.

url(~"none") -> none;
url(Url) -> Url.

-doc "Stores tokens, and the DPoP key that they are bound to.".
-spec keep_tokens(erlmcp_oauth_token:tokens(), erlmcp_dpop:key() | none, kept()) -> ok.
keep_tokens(Tokens, Dpop, #kept{module = Module, store = Store, tokens = Key}) ->
    Value = #{atom_to_binary(Name) => written(Part) || Name := Part <- Tokens},
    Bound = case Dpop of
                none -> Value;
                _ -> Value#{~"dpop" => erlmcp_dpop:to_map(Dpop)}
            end,
    log_failure(Module:put(Key, Bound, Store)).

-doc """
Deletes the given tokens from the store. Other tokens that another client has stored in their place
are kept.
""".
-spec drop_tokens(erlmcp_oauth_token:tokens(), kept()) -> ok.
drop_tokens(#{access_token := Token}, #kept{module = Module, store = Store, tokens = Key} = Kept) ->
    %% Tokens that another client stores after this check are deleted, too, but that client goes on
    %% with them.
    case read(Kept) of
        {ok, #{access_token := Other}, _} when Other =/= Token -> ok;
        _ -> log_failure(Module:delete(Key, Store))
    end.

written(Truth) when is_boolean(Truth) -> Truth;
written(Atom) when is_atom(Atom) -> atom_to_binary(Atom);
written(#{} = Map) -> #{atom_to_binary(Name) => written(Value) || Name := Value <- Map};
written(Value) -> Value.

%% A failure of the store is only logged, since the tokens can be used without it.
log_failure(ok) ->
    ok;
log_failure({error, Reason}) ->
    erlmcp_log:report(warning, #{what => token_store_failed, reason => Reason}).
