-module(erlmcp_ip_network).
-moduledoc """
Parses IP addresses and networks, and decides whether a network contains an address. Pure. An IPv4
address written as IPv6 (`::ffff:192.0.2.1`) counts as the IPv4 address.

Source: RFC 4291, sections 2.2 and 2.5.5.2; RFC 4632, section 3.1.

Internal.
""".

-export([read/1, address/1, has/2]).

-export_type([network/0]).

-doc """
A network: the bits of its family's addresses, the length of the prefix in bits, and the prefix as a
number.
""".
-opaque network() :: {Bits :: 32 | 128, Prefix :: 1..128, First :: non_neg_integer()}.

-doc """
Parses a network: a single address, or the first address of a network, `/`, and the length of its
prefix in bits, at least 1.

## Examples

```erlang
1> {ok, Network} = erlmcp_ip_network:read(~"10.0.0.0/8").
2> erlmcp_ip_network:has({10, 1, 2, 3}, [Network]).
true
3> erlmcp_ip_network:read(~"10.0.0.1/8").
{error, ~"10.0.0.0/8, whose address is zero after the prefix"}
```

## Errors

The error says what was expected instead.
""".
-spec read(binary()) -> {ok, network()} | {error, Expected :: binary()}.
read(Text) ->
    case binary:split(Text, ~"/") of
        [Address] -> whole(address(Address));
        [Address, Prefix] -> part(address(Address), prefix(Prefix))
    end.

whole({ok, Ip}) ->
    {Bits, Value} = bits(Ip),
    {ok, {Bits, Bits, Value}};
whole(error) ->
    {error, ~"an IP address, or a network like 10.0.0.0/8"}.

part({ok, Ip}, Prefix) when is_integer(Prefix), Prefix > 0, Prefix =< 8 * tuple_size(Ip) ->
    prefixed(Ip, Prefix, bits(Ip));
part({ok, Ip}, Prefix) when tuple_size(Ip) =:= 8, is_integer(Prefix), Prefix > 0, Prefix =< 128 ->
    prefixed(Ip, Prefix, bits(Ip));
part({ok, {_, _, _, _}}, _) ->
    {error, ~"a prefix of 1 to 32 bits"};
part({ok, _}, _) ->
    {error, ~"a prefix of 1 to 128 bits"};
part(error, _) ->
    whole(error).

prefixed(Ip, Prefix, {Bits, Value}) ->
    Behind = Bits - Prefix,
    First = Value bsr Behind,
    case First bsl Behind of
        Value ->
            {ok, {Bits, Prefix, First}};
        Base ->
            {error, iolist_to_binary([inet:ntoa(ip(Base, Ip)), $/, integer_to_binary(Prefix),
                                      ~", whose address is zero after the prefix"])}
    end.

ip(Value, {_, _, _, _}) -> list_to_tuple([Byte || <<Byte>> <= <<Value:32>>]);
ip(Value, _) -> list_to_tuple([Part || <<Part:16>> <= <<Value:128>>]).

bits({A, B, C, D}) ->
    {32, A bsl 24 bor (B bsl 16) bor (C bsl 8) bor D};
bits(Ip) ->
    <<Value:128>> = << <<Part:16>> || Part <- tuple_to_list(Ip) >>,
    {128, Value}.

prefix(<<C, Digits/binary>>) when C >= $1, C =< $9, byte_size(Digits) =< 2 ->
    number(Digits, C - $0);
prefix(_) ->
    error.

number(<<C, Digits/binary>>, Number) when C >= $0, C =< $9 -> number(Digits, 10 * Number + C - $0);
number(<<>>, Number) -> Number;
number(_, _) -> error.

-doc """
Parses an address: four decimal numbers without leading zeros for IPv4, or IPv6 without a zone. An
IPv4 address that is written as IPv6 becomes the IPv4 address.

## Examples

```erlang
1> erlmcp_ip_network:address(~"2001:db8::1").
{ok, {16#2001, 16#db8, 0, 0, 0, 0, 0, 1}}
2> erlmcp_ip_network:address(~"::ffff:192.0.2.1").
{ok, {192, 0, 2, 1}}
3> erlmcp_ip_network:address(~"010.0.0.1").
error
```
""".
-spec address(binary()) -> {ok, inet:ip_address()} | error.
address(Text) when byte_size(Text) =< 45 ->
    case [octet(Part) || Part <- binary:split(Text, ~".", [global])] of
        [A, B, C, D] when is_integer(A), is_integer(B), is_integer(C), is_integer(D) ->
            {ok, {A, B, C, D}};
        _ ->
            address_6(Text)
    end;
address(_) ->
    error.

%% Some programs read a leading zero as octal.
octet(~"0") ->
    0;
octet(<<C, Digits/binary>>) when C >= $1, C =< $9, byte_size(Digits) =< 2 ->
    case number(Digits, C - $0) of
        Octet when is_integer(Octet), Octet =< 255 -> Octet;
        _ -> error
    end;
octet(_) ->
    error.

address_6(Text) ->
    maybe
        nomatch ?= binary:match(Text, ~"%"),
        {ok, Ip} ?= inet:parse_ipv6strict_address(binary_to_list(Text)),
        {ok, as_known(Ip)}
    else
        _ -> error
    end.

as_known({0, 0, 0, 0, 0, 16#ffff, High, Low}) ->
    {High bsr 8, High band 255, Low bsr 8, Low band 255};
as_known(Ip) ->
    Ip.

-doc "Returns `true` if one of the networks contains the address.".
-spec has(inet:ip_address(), [network()]) -> boolean().
has(_, []) ->
    false;
has(Ip, Networks) ->
    {Bits, Value} = bits(as_known(Ip)),
    lists:any(fun({Size, Prefix, First}) ->
                  Size =:= Bits andalso Value bsr (Bits - Prefix) =:= First
              end, Networks).
