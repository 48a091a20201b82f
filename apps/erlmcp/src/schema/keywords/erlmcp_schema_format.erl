-module(erlmcp_schema_format).
-moduledoc """
The formats of strings that `assert` checks; other formats are ignored. Pure.

| format | grammar |
| --- | --- |
| `date-time`, `date`, `time` | RFC 3339, leap seconds only at the end of a day of UTC |
| `email` | RFC 5321, `Mailbox` |
| `uri`, `uri-reference` | RFC 3986 |
| `uri-template` | RFC 6570 |
| `ipv4`, `ipv6` | RFC 2673 dotted quad, RFC 4291 |
| `uuid` | RFC 4122 |
| `json-pointer` | RFC 6901 |
| `regex` | ECMA-262, as `m:erlmcp_schema_pattern` reads it |
| `byte` | RFC 4648, base64 with padding, as MCP's own schemas call it |

Internal.
""".

-export([check/1]).

-define(IS_DIGIT(C), (C >= $0 andalso C =< $9)).
-define(IS_HEX(C),
    (?IS_DIGIT(C) orelse C >= $a andalso C =< $f orelse C >= $A andalso C =< $F)
).

-define(IS_ALPHA(C), (C >= $a andalso C =< $z orelse C >= $A andalso C =< $Z)).
-define(IS_BASE64(C), (?IS_ALPHA(C) orelse ?IS_DIGIT(C) orelse C =:= $+ orelse C =:= $/)).
%% unreserved and sub-delims
-define(IS_PLAIN(C),
    (?IS_ALPHA(C) orelse ?IS_DIGIT(C) orelse C =:= $- orelse C =:= $. orelse C =:= $_
        orelse C =:= $~ orelse C =:= $! orelse C =:= $$ orelse C =:= $& orelse C =:= $'
        orelse C =:= $( orelse C =:= $) orelse C =:= $* orelse C =:= $+ orelse C =:= $,
        orelse C =:= $; orelse C =:= $=)
).
%% RFC 5322, atext
-define(IS_ATEXT(C),
    (?IS_ALPHA(C) orelse ?IS_DIGIT(C) orelse C =:= $! orelse C =:= $# orelse C =:= $$
        orelse C =:= $% orelse C =:= $& orelse C =:= $' orelse C =:= $* orelse C =:= $+
        orelse C =:= $- orelse C =:= $/ orelse C =:= $= orelse C =:= $? orelse C =:= $^
        orelse C =:= $_ orelse C =:= $` orelse C =:= ${ orelse C =:= $| orelse C =:= $}
        orelse C =:= $~)
).

-doc """
Returns a fun that returns `true` for a string that has the format `Format`, and `false` for any
other one. Returns `unknown` if `Format` is not in the table.

## Examples

```erlang
1> Is = erlmcp_schema_format:check(~"date").
2> {Is(~"2024-02-29"), Is(~"2023-02-29")}.
{true, false}
3> erlmcp_schema_format:check(~"colour").
unknown
```
""".
-spec check(Format :: binary()) -> fun((binary()) -> boolean()) | unknown.
check(~"date-time") -> fun date_time/1;
check(~"date") -> fun date/1;
check(~"time") -> fun(Text) -> time(Text) end;
check(~"email") -> fun is_email/1;
check(~"uri") -> fun is_uri/1;
check(~"uri-reference") -> fun is_uri_reference/1;
check(~"uri-template") -> fun uri_template/1;
check(~"ipv4") -> fun is_ipv4/1;
check(~"ipv6") -> fun is_ipv6/1;
check(~"uuid") -> fun uuid/1;
check(~"json-pointer") -> fun json_pointer/1;
check(~"regex") -> fun erlmcp_schema_pattern:is_pattern/1;
check(~"byte") -> fun byte/1;
check(_) -> unknown.

date_time(<<Date:10/binary, T, Time/binary>>) when T =:= $T; T =:= $t ->
    date(Date) andalso time(Time);
date_time(_) ->
    false.

date(<<Y1, Y2, Y3, Y4, "-", M1, M2, "-", D1, D2>>)
        when ?IS_DIGIT(Y1), ?IS_DIGIT(Y2), ?IS_DIGIT(Y3), ?IS_DIGIT(Y4), ?IS_DIGIT(M1),
             ?IS_DIGIT(M2), ?IS_DIGIT(D1), ?IS_DIGIT(D2) ->
    Day = two(D1, D2),
    Day >= 1 andalso Day =< last_day(two(M1, M2), two(Y1, Y2) * 100 + two(Y3, Y4));
date(_) ->
    false.

last_day(2, Year) when Year rem 4 =:= 0, Year rem 100 =/= 0; Year rem 400 =:= 0 -> 29;
last_day(2, _) -> 28;
last_day(Month, _) when Month =:= 4; Month =:= 6; Month =:= 9; Month =:= 11 -> 30;
last_day(Month, _) when Month >= 1, Month =< 12 -> 31;
last_day(_, _) -> 0.

time(<<H1, H2, ":", M1, M2, ":", S1, S2, Rest/binary>>)
        when ?IS_DIGIT(H1), ?IS_DIGIT(H2), ?IS_DIGIT(M1), ?IS_DIGIT(M2), ?IS_DIGIT(S1),
             ?IS_DIGIT(S2) ->
    Hour = two(H1, H2),
    Minute = two(M1, M2),
    Second = two(S1, S2),
    case offset(fraction(Rest)) of
        _ when Hour > 23; Minute > 59; Second > 60 -> false;
        error -> false;
        Offset when Second =:= 60 -> (Hour * 60 + Minute - Offset + 1440) rem 1440 =:= 1439;
        _ -> true
    end;
time(_) ->
    false.

fraction(<<".", D, Rest/binary>>) when ?IS_DIGIT(D) -> digits(Rest);
fraction(Rest) -> Rest.

digits(<<D, Rest/binary>>) when ?IS_DIGIT(D) -> digits(Rest);
digits(Rest) -> Rest.

%% The offset from UTC in minutes.
offset(Z) when Z =:= ~"Z"; Z =:= ~"z" -> 0;
offset(<<Sign, H1, H2, ":", M1, M2>>)
        when Sign =:= $+ orelse Sign =:= $-, ?IS_DIGIT(H1), ?IS_DIGIT(H2), ?IS_DIGIT(M1),
             ?IS_DIGIT(M2) ->
    case {two(H1, H2), two(M1, M2)} of
        {Hours, Minutes} when Hours > 23; Minutes > 59 -> error;
        {Hours, Minutes} when Sign =:= $+ -> Hours * 60 + Minutes;
        {Hours, Minutes} -> -(Hours * 60 + Minutes)
    end;
offset(_) ->
    error.

two(A, B) -> (A - $0) * 10 + B - $0.

uri_template(Text) ->
    element(1, erlmcp_uri_template:compile(Text)) =:= ok.

uuid(<<A:8/binary, "-", B:4/binary, "-", C:4/binary, "-", D:4/binary, "-", E:12/binary>>) ->
    lists:all(fun hexadecimal/1, [A, B, C, D, E]);
uuid(_) ->
    false.

hexadecimal(<<C, Rest/binary>>) when ?IS_HEX(C) -> hexadecimal(Rest);
hexadecimal(Rest) -> Rest =:= <<>>.

json_pointer(<<"/", Rest/binary>>) -> tokens(Rest);
json_pointer(Text) -> Text =:= <<>>.

tokens(<<"~", C, Rest/binary>>) when C =:= $0; C =:= $1 -> tokens(Rest);
tokens(<<C, Rest/binary>>) when C =/= $~ -> tokens(Rest);
tokens(Rest) -> Rest =:= <<>>.

byte(<<A, B, "==">>) when ?IS_BASE64(A), ?IS_BASE64(B) -> true;
byte(<<A, B, C, "=">>) when ?IS_BASE64(A), ?IS_BASE64(B), ?IS_BASE64(C) -> true;
byte(<<A, B, C, D, Rest/binary>>)
        when ?IS_BASE64(A), ?IS_BASE64(B), ?IS_BASE64(C), ?IS_BASE64(D) ->
    byte(Rest);
byte(Text) -> Text =:= <<>>.

%% URIs of RFC 3986, with a scheme.

is_uri(<<C, Rest/binary>>) when ?IS_ALPHA(C) -> scheme(Rest);
is_uri(_) -> false.

scheme(<<":", Rest/binary>>) -> hierarchy(Rest);
scheme(<<C, Rest/binary>>)
        when ?IS_ALPHA(C); ?IS_DIGIT(C); C =:= $+; C =:= $-; C =:= $. -> scheme(Rest);
scheme(_) -> false.

hierarchy(<<"//", Rest/binary>>) -> authority(Rest);
hierarchy(Rest) -> path(Rest).

%% A URI, or a reference relative to one.
is_uri_reference(Text) ->
    is_uri(Text) orelse relative(Text).

%% The first segment must not look like a scheme.
relative(<<"//", Rest/binary>>) -> authority(Rest);
relative(<<"/", Rest/binary>>) -> path(Rest);
relative(Text) ->
    [Path | _] = binary:split(Text, [~"?", ~"#"]),
    [First | _] = binary:split(Path, ~"/"),
    binary:match(First, ~":") =:= nomatch andalso path(Text).

path(<<"%", H, L, Rest/binary>>) when ?IS_HEX(H), ?IS_HEX(L) -> path(Rest);
path(<<"?", Rest/binary>>) -> query(Rest);
path(<<"#", Rest/binary>>) -> fragment(Rest);
path(<<C, Rest/binary>>) when ?IS_PLAIN(C); C =:= $/; C =:= $:; C =:= $@ -> path(Rest);
path(Rest) -> Rest =:= <<>>.

query(<<"#", Rest/binary>>) -> fragment(Rest);
query(<<"%", H, L, Rest/binary>>) when ?IS_HEX(H), ?IS_HEX(L) -> query(Rest);
query(<<C, Rest/binary>>) when ?IS_PLAIN(C); C =:= $/; C =:= $:; C =:= $@; C =:= $? ->
    query(Rest);
query(Rest) -> Rest =:= <<>>.

fragment(<<"%", H, L, Rest/binary>>) when ?IS_HEX(H), ?IS_HEX(L) -> fragment(Rest);
fragment(<<C, Rest/binary>>) when ?IS_PLAIN(C); C =:= $/; C =:= $:; C =:= $@; C =:= $? ->
    fragment(Rest);
fragment(Rest) -> Rest =:= <<>>.

authority(Text) ->
    {Authority, Rest} = case binary:match(Text, [~"/", ~"?", ~"#"]) of
        {At, _} -> split_binary(Text, At);
        nomatch -> {Text, <<>>}
    end,
    case binary:split(Authority, ~"@") of
        [User, Host] -> name(User, true) andalso host(Host) andalso path(Rest);
        [Host] -> host(Host) andalso path(Rest)
    end.

host(<<"[", Rest/binary>>) ->
    case binary:split(Rest, ~"]") of
        [Address, Port] -> (is_ipv6(Address) orelse future(Address)) andalso port(Port);
        [_] -> false
    end;
host(Text) ->
    case binary:match(Text, ~":") of
        {At, _} ->
            {Name, Port} = split_binary(Text, At),
            name(Name, false) andalso port(Port);
        nomatch ->
            name(Text, false)
    end.

port(<<":", Digits/binary>>) -> digits(Digits) =:= <<>>;
port(Text) -> Text =:= <<>>.

%% userinfo may have colons, reg-name not.
name(<<"%", H, L, Rest/binary>>, Colons) when ?IS_HEX(H), ?IS_HEX(L) -> name(Rest, Colons);
name(<<C, Rest/binary>>, Colons) when ?IS_PLAIN(C); Colons, C =:= $: -> name(Rest, Colons);
name(Rest, _) -> Rest =:= <<>>.

%% IPvFuture
future(<<V, Rest/binary>>) when V =:= $v; V =:= $V ->
    case binary:split(Rest, ~".") of
        [<<C, _/binary>> = Version, <<_, _/binary>> = Address] when ?IS_HEX(C) ->
            hexadecimal(Version) andalso name(Address, true)
                andalso binary:match(Address, ~"%") =:= nomatch;
        _ ->
            false
    end;
future(_) ->
    false.

%% Four numbers with dots between them, without leading zeros.
is_ipv4(Text) when byte_size(Text) =< 15 ->
    Numbers = binary:split(Text, ~".", [global]),
    length(Numbers) =:= 4 andalso lists:all(fun octet/1, Numbers);
is_ipv4(_) ->
    false.

octet(<<A>>) -> ?IS_DIGIT(A);
octet(<<A, B>>) -> A =/= $0 andalso ?IS_DIGIT(A) andalso ?IS_DIGIT(B);
octet(<<A, B, C>> = Text) ->
    A =/= $0 andalso ?IS_DIGIT(A) andalso ?IS_DIGIT(B) andalso ?IS_DIGIT(C)
        andalso binary_to_integer(Text) =< 255;
octet(_) -> false.

%% An address without a zone.
is_ipv6(Text) when byte_size(Text) =< 45 ->
    case binary:split(Text, ~"::") of
        [Whole] -> groups(Whole, last) =:= 8;
        [Left, Right] ->
            %% `::` stands for at least one group, and occurs once.
            Count = groups_or_none(Left, inner) + groups_or_none(Right, last),
            Count >= 0 andalso Count =< 7
    end;
is_ipv6(_) ->
    false.

groups_or_none(<<>>, _) -> 0;
groups_or_none(Text, Where) -> groups(Text, Where).

%% The number of groups; for malformed ones a negative number, with which no sum is valid.
groups(Text, Where) ->
    count(binary:split(Text, ~":", [global]), Where, 0).

count([Group], last, N) when byte_size(Group) > 4 ->
    case is_ipv4(Group) of
        true -> N + 2;
        false -> -100
    end;
count([Group | Groups], Where, N) when byte_size(Group) >= 1, byte_size(Group) =< 4 ->
    case hexadecimal(Group) of
        true -> count(Groups, Where, N + 1);
        false -> -100
    end;
count([], _, N) -> N;
count(_, _, _) -> -100.

%% A mailbox in ASCII, such as `joe.bloggs@example.com`.
is_email(<<"\"", Rest/binary>> = Text) when byte_size(Text) =< 254 -> quoted(Rest, 1);
is_email(Text) when byte_size(Text) =< 254 -> local(Text, 0, dot);
is_email(_) -> false.

local(<<"@", Rest/binary>>, Size, atom) when Size =< 64 -> domain(Rest);
local(<<".", Rest/binary>>, Size, atom) -> local(Rest, Size + 1, dot);
local(<<C, Rest/binary>>, Size, _) when ?IS_ATEXT(C) -> local(Rest, Size + 1, atom);
local(_, _, _) -> false.

quoted(<<"\"@", Rest/binary>>, Size) when Size =< 63 -> domain(Rest);
quoted(<<"\\", C, Rest/binary>>, Size) when C >= 32, C =< 126 -> quoted(Rest, Size + 2);
quoted(<<C, Rest/binary>>, Size) when C >= 32, C =< 126, C =/= $", C =/= $\\ ->
    quoted(Rest, Size + 1);
quoted(_, _) -> false.

domain(<<"[IPv6:", Rest/binary>>) -> literal(Rest, fun is_ipv6/1);
domain(<<"[", Rest/binary>>) -> literal(Rest, fun is_ipv4/1);
domain(Text) -> label(Text, 0, dot).

literal(Text, Is) ->
    case binary:split(Text, ~"]") of
        [Address, <<>>] -> Is(Address);
        _ -> false
    end.

%% `Last` is the previous character: a dot or the beginning, a hyphen, a letter or digit.
label(<<C, Rest/binary>>, Size, _) when ?IS_ALPHA(C), Size < 63; ?IS_DIGIT(C), Size < 63 ->
    label(Rest, Size + 1, alnum);
label(<<"-", Rest/binary>>, Size, Last) when Size < 63, Last =/= dot ->
    label(Rest, Size + 1, hyphen);
label(<<".", Rest/binary>>, _, alnum) -> label(Rest, 0, dot);
label(Rest, _, Last) -> Rest =:= <<>> andalso Last =:= alnum.
