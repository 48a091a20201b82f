-module(erlmcp_oauth_scope).
-moduledoc """
Parses and writes `scope` parameters, and chooses the scopes that a client requests. Pure.

Source: specification 2026-07-28, "Scope Selection Strategy" and "Step-Up Authorization Flow".

Internal.
""".

-export([parse/1, text/1, union/2, first/3, more/3, offline/2]).

-define(SCOPES, 200).

-doc """
Parses a `scope` parameter to its first 200 scopes, each once. Words that cannot be scopes are left
out.
""".
-spec parse(binary()) -> [binary()].
parse(Text) ->
    Words = binary:split(Text, ~" ", [global, trim_all]),
    lists:sublist(lists:uniq([Word || Word <- Words, is_scope(Word)]), ?SCOPES).

%% RFC 6749, section 3.3.
is_scope(Word) ->
    lists:all(fun(Byte) ->
                  Byte > 32 andalso Byte < 127 andalso Byte =/= $" andalso Byte =/= $\\
              end, binary_to_list(Word)).

-doc "Returns the value of the `scope` parameter for a list of scopes.".
-spec text([binary()]) -> binary().
text(Scopes) ->
    iolist_to_binary(lists:join(~" ", Scopes)).

-doc """
Returns the scopes of both lists, each once, up to 200. Those of the first list come first.
""".
-spec union([binary()], [binary()]) -> [binary()].
union(One, Other) ->
    lists:sublist(lists:uniq(One ++ Other), ?SCOPES).

-doc """
Returns the scopes to request in the first authorization: those of the challenge (`Challenged`) and
those of the client's configuration (`Configured`). If both lists are empty, returns `Supported`,
the scopes of the resource's metadata, or `[]` if `Supported` is `none`.
""".
-spec first(Challenged :: [binary()], Configured :: [binary()], Supported :: [binary()] | none) ->
    [binary()].
first([], [], none) -> [];
first([], [], Supported) -> union([], Supported);
first([], Configured, _) -> Configured;
first(Challenged, Configured, _) -> union(Challenged, Configured).

-doc """
Returns the scopes to request in a step-up: `Before`, those requested until now, and `Challenged`,
those of the challenge. If `Challenged` is empty, `Supported` takes its place: the scopes of the
resource's metadata, or `none`. Returns `none` if no scope is added to `Before`.
""".
-spec more(Before :: [binary()], Challenged :: [binary()], Supported :: [binary()] | none) ->
    {ok, [binary()]} | none.
more(Before, [], none) -> more(Before, []);
more(Before, [], Supported) -> more(Before, Supported);
more(Before, Challenged, _) -> more(Before, Challenged).

more(Before, Added) ->
    case union(Before, Added) of
        Before -> none;
        Scopes -> {ok, Scopes}
    end.

-doc """
Adds the scope `offline_access`, which asks for a refresh token, if `Offered` has it. `Offered` are
the scopes that the authorization server offers. An empty list stays empty.
""".
-spec offline([binary()], Offered :: [binary()]) -> [binary()].
%% The scope would be the only one of the request.
offline([], _) -> [];
offline(Scopes, Offered) ->
    case lists:member(~"offline_access", Offered) of
        true -> union(Scopes, [~"offline_access"]);
        false -> Scopes
    end.
