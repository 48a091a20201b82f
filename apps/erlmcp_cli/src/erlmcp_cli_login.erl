-module(erlmcp_cli_login).
-moduledoc "Logins.".

-export([options/1]).

-doc "The options of a client that has logged in, or is to.".
-spec options(erlmcp_cli_target:parsed()) -> {ok, map()} | {error, unicode:chardata()}.
options(_) ->
    {ok, #{}}.
