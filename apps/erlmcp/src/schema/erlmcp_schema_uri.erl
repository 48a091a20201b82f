-module(erlmcp_schema_uri).
-moduledoc """
The grammars of addresses: URIs (RFC 3986), IP addresses, mailboxes (RFC 5321). Each reads its text
once. Pure.

Internal.
""".

-export([is_uri/1, is_reference/1, is_ipv4/1, is_ipv6/1, is_email/1]).

-define(IS_DIGIT(C), (C >= $0 andalso C =< $9)).
-define(IS_ALPHA(C), (C >= $a andalso C =< $z orelse C >= $A andalso C =< $Z)).
-define(IS_HEX(C),
    (?IS_DIGIT(C) orelse C >= $a andalso C =< $f orelse C >= $A andalso C =< $F)
).
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

-doc "Returns `true` if a text is a URI with a scheme.".
-spec is_uri(binary()) -> boolean().
is_uri(<<C, Rest/binary>>) when ?IS_ALPHA(C) -> scheme(Rest);
is_uri(_) -> false.

scheme(<<":", Rest/binary>>) -> hierarchy(Rest);
scheme(<<C, Rest/binary>>)
        when ?IS_ALPHA(C); ?IS_DIGIT(C); C =:= $+; C =:= $-; C =:= $. -> scheme(Rest);
scheme(_) -> false.

hierarchy(<<"//", Rest/binary>>) -> authority(Rest);
hierarchy(Rest) -> path(Rest).

-doc "Returns `true` if a text is a URI, or relative to one.".
-spec is_reference(binary()) -> boolean().
is_reference(Text) ->
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

port(<<":", Digits/binary>>) -> digits(Digits);
port(Text) -> Text =:= <<>>.

digits(<<C, Rest/binary>>) when ?IS_DIGIT(C) -> digits(Rest);
digits(Rest) -> Rest =:= <<>>.

%% userinfo may have colons, reg-name not.
name(<<"%", H, L, Rest/binary>>, Colons) when ?IS_HEX(H), ?IS_HEX(L) -> name(Rest, Colons);
name(<<C, Rest/binary>>, Colons) when ?IS_PLAIN(C); Colons, C =:= $: -> name(Rest, Colons);
name(Rest, _) -> Rest =:= <<>>.

%% IPvFuture
future(<<V, Rest/binary>>) when V =:= $v; V =:= $V ->
    case binary:split(Rest, ~".") of
        [<<C, _/binary>> = Version, <<_, _/binary>> = Address] when ?IS_HEX(C) ->
            hex_digits(Version) andalso name(Address, true)
                andalso binary:match(Address, ~"%") =:= nomatch;
        _ ->
            false
    end;
future(_) ->
    false.

hex_digits(<<C, Rest/binary>>) when ?IS_HEX(C) -> hex_digits(Rest);
hex_digits(Rest) -> Rest =:= <<>>.

-doc "Returns `true` if a text is four numbers with dots between them, without leading zeros.".
-spec is_ipv4(binary()) -> boolean().
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

-doc "Returns `true` if a text is an IPv6 address without a zone.".
-spec is_ipv6(binary()) -> boolean().
is_ipv6(Text) when byte_size(Text) =< 45 ->
    case binary:split(Text, ~"::") of
        [Whole] -> groups(Whole, last) =:= 8;
        [Left, Right] ->
            %% At least one group is left out, and there is no second gap.
            Count = groups_or_none(Left, inner) + groups_or_none(Right, last),
            Count >= 0 andalso Count =< 7
    end;
is_ipv6(_) ->
    false.

groups_or_none(<<>>, _) -> 0;
groups_or_none(Text, Where) -> groups(Text, Where).

%% The number of groups, or a negative number that no sum makes valid.
groups(Text, Where) ->
    count(binary:split(Text, ~":", [global]), Where, 0).

count([Group], last, N) when byte_size(Group) > 4 ->
    case is_ipv4(Group) of
        true -> N + 2;
        false -> -100
    end;
count([Group | Groups], Where, N) when byte_size(Group) >= 1, byte_size(Group) =< 4 ->
    case hex_digits(Group) of
        true -> count(Groups, Where, N + 1);
        false -> -100
    end;
count([], _, N) -> N;
count(_, _, _) -> -100.

-doc "Returns `true` if a text is a mailbox in ASCII, such as `joe.bloggs@example.com`.".
-spec is_email(binary()) -> boolean().
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
