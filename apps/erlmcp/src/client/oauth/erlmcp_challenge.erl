-module(erlmcp_challenge).
-moduledoc """
Parses the challenges of a `WWW-Authenticate` header. Pure. Common errors of servers whose meaning
is clear, such as a URL without quotes or a missing comma, are tolerated. Other malformed parts are
left out.

Source: RFC 9110, section 11.6.1.

Internal.
""".

-export([parse/1]).

-export_type([challenge/0]).

-doc """
A challenge. The scheme and the names of parameters are in lower case; values are unchanged, without
quotes and escapes. Of a repeated parameter, the first value counts. `token68` is present if the
challenge has such a value instead of parameters.
""".
-type challenge() :: #{
    scheme := binary(),
    params := #{binary() => binary()},
    token68 => binary()
}.

-define(MAX_BYTES, 16384).
-define(MAX_CHALLENGES, 16).
-define(MAX_PARAMS, 32).

-define(IS_ALNUM(C), (C >= $a andalso C =< $z orelse C >= $A andalso C =< $Z orelse
                      C >= $0 andalso C =< $9)).
-define(IS_SPACE(C), (C =:= $\s orelse C =:= $\t)).

-doc """
Returns the challenges of a header, in their order. A repeated header is given as one, joined with
commas. Returns `[]` for a header of more than 16384 bytes. At most 16 challenges are returned, and
32 parameters of each.

```erlang
1> erlmcp_challenge:parse(~'Bearer realm="a, b", error=invalid_token, Basic realm="c"').
[#{scheme => ~"bearer", params => #{~"realm" => ~"a, b", ~"error" => ~"invalid_token"}},
 #{scheme => ~"basic", params => #{~"realm" => ~"c"}}]
```
""".
-spec parse(WwwAuthenticate :: binary()) -> [challenge()].
parse(Field) when byte_size(Field) > ?MAX_BYTES ->
    [];
parse(Field) ->
    lists:sublist(lists:reverse(parse(Field, [])), ?MAX_CHALLENGES).

%% The challenge that is being read is the first in `Found`.
parse(<<>>, Found) ->
    Found;
parse(<<$", Rest/binary>>, Found) ->
    {_, After} = quoted(Rest, <<>>),
    parse(After, Found);
parse(Field, Found) ->
    case token(Field, <<>>) of
        {<<>>, <<_, Rest/binary>>} -> parse(Rest, Found);
        {Name, Rest} -> named(Name, Rest, skip_space(Rest), Found)
    end.

named(Name, _, <<$=, Rest/binary>>, Found) ->
    case value(skip_space(Rest)) of
        {none, After} -> parse(After, Found);
        {Value, After} -> parse(After, with_param(lower(Name), Value, Found))
    end;
named(Name, <<Space, _/binary>>, Rest, Found) when ?IS_SPACE(Space) ->
    {Token68, After} = token68(Rest, <<>>),
    case Token68 =/= <<>> andalso skip_space(After) of
        <<>> -> [with_token68(Name, Token68) | Found];
        <<$,, Next/binary>> -> parse(Next, [with_token68(Name, Token68) | Found]);
        _ -> parse(Rest, [challenge(Name) | Found])
    end;
named(Name, Rest, _, Found) ->
    parse(Rest, [challenge(Name) | Found]).

challenge(Scheme) ->
    #{scheme => lower(Scheme), params => #{}}.

with_token68(Scheme, Token68) ->
    (challenge(Scheme))#{token68 => Token68}.

with_param(_, _, []) ->
    [];
with_param(Name, _, [#{params := Params} | _] = Found)
        when is_map_key(Name, Params); map_size(Params) =:= ?MAX_PARAMS ->
    Found;
with_param(Name, Value, [#{params := Params} = Challenge | Found]) ->
    [Challenge#{params := Params#{Name => Value}} | Found].

value(<<$", Rest/binary>>) -> quoted(Rest, <<>>);
value(Rest) -> bare(Rest, <<>>).

%% A quoted string without an end has no value.
quoted(<<$", Rest/binary>>, Read) -> {Read, Rest};
quoted(<<$\\, C, Rest/binary>>, Read) -> quoted(Rest, <<Read/binary, C>>);
quoted(<<C, Rest/binary>>, Read) when C =/= $\\ -> quoted(Rest, <<Read/binary, C>>);
quoted(_, _) -> {none, <<>>}.

%% Allows more characters than a token has, for URLs without quotes.
bare(<<C, Rest/binary>>, Read) when C > $\s, C < 16#7f, C =/= $,, C =/= $" ->
    bare(Rest, <<Read/binary, C>>);
bare(Rest, <<>>) -> {none, Rest};
bare(Rest, Read) -> {Read, Rest}.

token(<<C, Rest/binary>>, Read)
        when ?IS_ALNUM(C); C =:= $!; C =:= $#; C =:= $$; C =:= $%; C =:= $&; C =:= $'; C =:= $*;
             C =:= $+; C =:= $-; C =:= $.; C =:= $^; C =:= $_; C =:= $`; C =:= $|; C =:= $~ ->
    token(Rest, <<Read/binary, C>>);
token(Rest, Read) ->
    {Read, Rest}.

token68(<<C, Rest/binary>>, Read)
        when ?IS_ALNUM(C); C =:= $-; C =:= $.; C =:= $_; C =:= $~; C =:= $+; C =:= $/ ->
    token68(Rest, <<Read/binary, C>>);
token68(Rest, Read) ->
    padding(Rest, Read).

padding(<<$=, Rest/binary>>, Read) when Read =/= <<>> -> padding(Rest, <<Read/binary, $=>>);
padding(Rest, Read) -> {Read, Rest}.

skip_space(<<C, Rest/binary>>) when ?IS_SPACE(C) -> skip_space(Rest);
skip_space(Rest) -> Rest.

%% Converts to lower case. Tokens are ASCII.
lower(Token) ->
    string:lowercase(Token).
