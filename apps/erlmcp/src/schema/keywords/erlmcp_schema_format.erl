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

-define(IS_BASE64(C),
    (?IS_DIGIT(C) orelse C >= $a andalso C =< $z orelse C >= $A andalso C =< $Z orelse C =:= $+
        orelse C =:= $/)
).

-doc """
Returns a fun that tells whether a string has a format.

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
check(~"email") -> fun erlmcp_schema_uri:is_email/1;
check(~"uri") -> fun erlmcp_schema_uri:is_uri/1;
check(~"uri-reference") -> fun erlmcp_schema_uri:is_reference/1;
check(~"uri-template") -> fun uri_template/1;
check(~"ipv4") -> fun erlmcp_schema_uri:is_ipv4/1;
check(~"ipv6") -> fun erlmcp_schema_uri:is_ipv6/1;
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

%% The offset in minutes.
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
