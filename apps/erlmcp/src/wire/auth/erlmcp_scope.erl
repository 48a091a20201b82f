-module(erlmcp_scope).
-moduledoc """
The scopes of a principal, which limit what the principal may do. Pure.

Source: RFC 6749, section 3.3; specification 2026-07-28, "Authorization / Scope Challenge Handling".

Internal.
""".

-export([are_scopes/1, check/2, with_implied/2, insufficient/1]).

-export_type([implied/0]).

-doc "The narrower scopes that a scope includes, by that scope.".
-type implied() :: #{erlmcp:scope() => [erlmcp:scope()]}.

-doc """
Returns `true` if a term is a list of scopes.

## Examples

```erlang
1> erlmcp_scope:are_scopes([~"files:read", ~"files:write"]).
true
2> erlmcp_scope:are_scopes([~"files read"]).
false
```
""".
-spec are_scopes(term()) -> boolean().
are_scopes([Scope | Scopes]) -> is_scope(Scope) andalso are_scopes(Scopes);
are_scopes(Term) -> Term =:= [].

is_scope(<<>>) -> false;
is_scope(Scope) when is_binary(Scope) -> are_scope_bytes(Scope);
is_scope(_) -> false.

are_scope_bytes(<<Byte, Rest/binary>>) when Byte > $\s, Byte < 127, Byte =/= $", Byte =/= $\\ ->
    are_scope_bytes(Rest);
are_scope_bytes(Rest) ->
    Rest =:= <<>>.

-doc """
Returns `ok` if `Scopes`, those of a request, are `all` or include each of `Needed`. Otherwise
returns a refusal that names all of `Needed`, even those that the request has.
""".
-spec check(Needed :: [erlmcp:scope()], Scopes :: erlmcp:scopes()) ->
    ok | {error, erlmcp_refusal:refusal()}.
check([], _) -> ok;
check(_, all) -> ok;
check(Needed, Scopes) ->
    case lists:all(fun(Scope) -> lists:member(Scope, Scopes) end, Needed) of
        true -> ok;
        false -> {error, insufficient(Needed)}
    end.

-doc "Returns the refusal for a request that lacks one of the scopes `Needed`.".
-spec insufficient(Needed :: [erlmcp:scope(), ...]) -> erlmcp_refusal:refusal().
insufficient(Needed) ->
    erlmcp_refusal:new(authz_forbidden, [~"this needs the scopes ", lists:join($\s, Needed)],
                       #{scopes => Needed}).

-doc """
Returns the scopes with all those that they imply, directly or not.

## Examples

```erlang
1> erlmcp_scope:with_implied([~"admin"], #{~"admin" => [~"write"], ~"write" => [~"read"]}).
[~"admin", ~"write", ~"read"]
```
""".
-spec with_implied(erlmcp:scopes(), implied()) -> erlmcp:scopes().
with_implied(all, _) -> all;
with_implied(Scopes, Implied) when map_size(Implied) =:= 0 -> Scopes;
with_implied(Scopes, Implied) -> lists:reverse(implied(Scopes, Implied, [])).

implied([], _, Found) ->
    Found;
implied([Scope | Scopes], Implied, Found) ->
    case lists:member(Scope, Found) of
        true -> implied(Scopes, Implied, Found);
        false -> implied(maps:get(Scope, Implied, []) ++ Scopes, Implied, [Scope | Found])
    end.
