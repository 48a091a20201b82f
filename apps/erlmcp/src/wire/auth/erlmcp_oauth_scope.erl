-module(erlmcp_oauth_scope).
-moduledoc """
Which scopes to ask for. Pure. A list of scopes has each once, in the order they were first named.

Source: specification 2026-07-28, "Scope Selection Strategy" and "Step-Up Authorization Flow".

Internal.
""".

-export([parse/1, text/1, union/2, first/3, more/3, offline/2]).

-define(SCOPES, 200).

-doc "The scopes of a `scope` parameter. What cannot be a scope is left out.".
-spec parse(binary()) -> [binary()].
parse(Text) ->
    Words = binary:split(Text, ~" ", [global, trim_all]),
    lists:sublist(lists:uniq([Word || Word <- Words, is_scope(Word)]), ?SCOPES).

%% RFC 6749, section 3.3.
is_scope(Word) ->
    lists:all(fun(Byte) ->
                  Byte > 32 andalso Byte < 127 andalso Byte =/= $" andalso Byte =/= $\\
              end, binary_to_list(Word)).

-doc "Scopes as a `scope` parameter has them.".
-spec text([binary()]) -> binary().
text(Scopes) ->
    iolist_to_binary(lists:join(~" ", Scopes)).

-doc "The scopes of both.".
-spec union([binary()], [binary()]) -> [binary()].
union(One, Other) ->
    lists:sublist(lists:uniq(One ++ Other), ?SCOPES).

-doc """
Of a first authorization: what the challenge names, and what the client was set up with; or that
alone; or what the resource's metadata names; or none, so that the parameter is omitted.
""".
-spec first(Challenged :: [binary()], Configured :: [binary()], Supported :: [binary()] | none) ->
    [binary()].
first([], [], none) -> [];
first([], [], Supported) -> union([], Supported);
first([], Configured, _) -> Configured;
first(Challenged, Configured, _) -> union(Challenged, Configured).

-doc """
Of a step up: what was asked for before, and what the challenge names, or else the metadata. `none`
where that is nothing more: to ask again for the same would not help.
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
With `offline_access`, for a refresh token, where the authorization server has that. It is not added
to nothing: then it would be all that is asked for.
""".
-spec offline([binary()], Offered :: [binary()]) -> [binary()].
offline([], _) -> [];
offline(Scopes, Offered) ->
    case lists:member(~"offline_access", Offered) of
        true -> union(Scopes, [~"offline_access"]);
        false -> Scopes
    end.
