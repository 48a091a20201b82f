-module(erlmcp_introspection).
-moduledoc """
Asks an authorization server about a token. It runs in the process that asks.

Source: RFC 7662.

Internal.
""".

-export([ask/3]).

-export_type([client/0]).

-doc """
Who asks: a client with a secret, or with a key of its own, for `private_key_jwt`. In `settings` are
that key and its algorithm.
""".
-type client() :: #{client := erlmcp_oauth_client_authentication:client(), settings := map()}.

-doc "What the server says of a token, or why it says nothing.".
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
