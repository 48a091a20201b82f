-module(erlmcp_introspection).
-moduledoc """
The introspection of a token at an authorization server. It runs in the process that asks.

Source: RFC 7662.

Internal.
""".

-export([ask/3]).

-export_type([client/0]).

-doc """
The client that asks, with a secret, or with a key of its own for `private_key_jwt`. `settings` has
that key and its algorithm.
""".
-type client() :: #{client := erlmcp_oauth_client_authentication:client(), settings := map()}.

-doc "Returns the server's answer about a token, or the reason for which there is none.".
-spec ask(Token :: binary(), #{uri := binary(), client := client(), _ => _},
          erlmcp_fetch:settings()) ->
    {active, erlmcp_token_claims:claims()} | inactive
    | {error, erlmcp_fetch:reason() | erlmcp_oauth_client_authentication:reason()
       | {status, pos_integer()} | no_answer}.
ask(Token, #{uri := Uri, client := #{client := Client, settings := Settings}}, Fetch) ->
    Form = [{~"token", Token}, {~"token_type_hint", ~"access_token"}],
    Context = #{fetch => Fetch, settings => Settings},
    case erlmcp_oauth_client_authentication:post(Uri, Form, Client, Context) of
        {ok, #{status := 200, json := {ok, #{~"active" := true} = Answer}}} ->
            {active, maps:remove(~"active", Answer)};
        {ok, #{status := 200, json := {ok, #{~"active" := false}}}} -> inactive;
        {ok, #{status := 200}} -> {error, no_answer};
        {ok, #{status := Status}} -> {error, {status, Status}};
        {error, Reason} -> {error, Reason}
    end.
