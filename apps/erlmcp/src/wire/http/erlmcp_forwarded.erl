-module(erlmcp_forwarded).
-moduledoc """
Finds the address of a client behind proxies, in the headers `Forwarded` and `X-Forwarded-For`.
Pure.

Each proxy appends the address of its own peer to one of the headers. So the client is the first hop
from the end whose address is not a trusted proxy's. In these cases a proxy counts as the client:

- A hop has no address: the proxy that wrote the hop.
- The two headers lead to different addresses: the proxy that sent the request.
- All hops are trusted proxies: the first of the list.
- There are more than 32 hops, or one has more than 1,024 bytes: the last proxy that was reached.

Source: RFC 7239, sections 4 to 6.

Internal.
""".

-export([client/3, is_there/1]).

%% The text before the client's hop is ignored, even an opening quote, since the client can have
%% written that text itself. If a proxy writes only one of the two headers, the client can have
%% written the other one.

%% The most hops that are read, and the most bytes of one.
-define(HOPS, 32).
-define(HOP, 1024).

-define(IS_SPACE(C), (C =:= $\s orelse C =:= $\t)).

-type headers() :: #{binary() => binary()}.

-doc "Returns `true` if `Forwarded` or `X-Forwarded-For` is among the headers.".
-spec is_there(headers()) -> boolean().
is_there(#{~"x-forwarded-for" := _}) -> true;
is_there(#{~"forwarded" := _}) -> true;
is_there(_) -> false.

-doc """
Returns the address of the client of a request that came from the trusted proxy `Proxy`; `Proxy`
itself if neither header is there. `Trusted` has the networks of all trusted proxies.

## Examples

```erlang
1> {ok, Trusted} = erlmcp_ip_network:read(~"10.0.0.0/8").
2> Headers = #{~"x-forwarded-for" => ~"198.51.100.7, 203.0.113.9, 10.0.0.2"}.
3> erlmcp_forwarded:client(Headers, {10, 0, 0, 1}, [Trusted]).
{203, 0, 113, 9}
```
""".
-spec client(headers(), Proxy :: inet:ip_address(), Trusted :: [erlmcp_ip_network:network()]) ->
    inet:ip_address().
client(#{~"forwarded" := Forwarded, ~"x-forwarded-for" := Addresses}, Proxy, Trusted) ->
    Client = last_not_trusted(addresses, Addresses, Proxy, Trusted, ?HOPS),
    case last_not_trusted(elements, Forwarded, Proxy, Trusted, ?HOPS) of
        Client -> Client;
        _ -> Proxy
    end;
client(#{~"x-forwarded-for" := Addresses}, Proxy, Trusted) ->
    last_not_trusted(addresses, Addresses, Proxy, Trusted, ?HOPS);
client(#{~"forwarded" := Forwarded}, Proxy, Trusted) ->
    last_not_trusted(elements, Forwarded, Proxy, Trusted, ?HOPS);
client(_, Proxy, _) ->
    Proxy.

last_not_trusted(_, _, Nearest, _, 0) ->
    Nearest;
last_not_trusted(Form, Text, Nearest, Trusted, Hops) ->
    maybe
        {Before, Hop} ?= last(Form, Text),
        {ok, Address} ?= address(Form, trimmed(Hop)),
        case Before =/= none andalso erlmcp_ip_network:has(Address, Trusted) of
            true -> last_not_trusted(Form, Before, Address, Trusted, Hops - 1);
            false -> Address
        end
    else
        error -> Nearest
    end.

%% Returns the last hop of a list, and the text before it.
last(Form, Text) ->
    Size = byte_size(Text),
    last(Form, Text, Size - 1, max(0, Size - ?HOP - 1)).

%% No byte before the offset `Least` is read. The longest hop has its comma there.
last(_, Text, -1, _) when byte_size(Text) =< ?HOP ->
    {none, Text};
last(_, _, At, Least) when At < Least ->
    error;
last(Form, Text, At, Least) ->
    case binary:at(Text, At) of
        $, ->
            <<Before:At/binary, _, Hop/binary>> = Text,
            {Before, Hop};
        $" when Form =:= elements ->
            case opening(Text, At - 1, Least) of
                error -> error;
                Opening -> last(Form, Text, Opening - 1, Least)
            end;
        _ ->
            last(Form, Text, At - 1, Least)
    end.

%% Returns the offset of the opening quote of a quoted string that ends at `At`.
opening(_, At, Least) when At < Least ->
    error;
opening(Text, At, Least) ->
    case binary:at(Text, At) of
        $" ->
            case escapes(Text, At - 1, Least) of
                Escapes when Escapes rem 2 =:= 1 -> opening(Text, At - 1 - Escapes, Least);
                _ -> At
            end;
        _ ->
            opening(Text, At - 1, Least)
    end.

escapes(Text, At, Least) when At >= Least ->
    case binary:at(Text, At) of
        $\\ -> 1 + escapes(Text, At - 1, Least);
        _ -> 0
    end;
escapes(_, _, _) ->
    0.

address(addresses, Hop) ->
    node_address(Hop);
address(elements, Element) ->
    case pairs(Element, []) of
        [Node] -> node_address(Node);
        _ -> error
    end.

%% Returns the values of the parameter `for` in an element.
pairs(Element, Found) ->
    maybe
        [Name, Text] ?= binary:split(Element, ~"="),
        {ok, Value, Rest} ?= value(Text),
        Values = [Value || is_for(trimmed(Name))] ++ Found,
        case Rest of
            <<>> -> Values;
            <<";", Next/binary>> -> pairs(Next, Values);
            _ -> error
        end
    else
        _ -> error
    end.

is_for(<<F, O, R>>) -> [F bor 32, O bor 32, R bor 32] =:= "for";
is_for(_) -> false.

value(<<$", Text/binary>>) -> quoted(Text, <<>>);
value(Text) -> plain(Text).

quoted(<<$\\, C, Text/binary>>, Value) -> quoted(Text, <<Value/binary, C>>);
quoted(<<$", Rest/binary>>, Value) -> {ok, Value, trimmed(Rest)};
quoted(<<C, Text/binary>>, Value) -> quoted(Text, <<Value/binary, C>>);
quoted(<<>>, _) -> error.

plain(Text) ->
    case binary:split(Text, ~";") of
        [Value] -> {ok, trimmed(Value), <<>>};
        [Value, Rest] -> {ok, trimmed(Value), <<";", Rest/binary>>}
    end.

%% An address, with or without a port: an IPv6 address with a port is in brackets.
node_address(<<"[", Text/binary>>) ->
    case binary:split(Text, ~"]") of
        [Address, <<>>] -> erlmcp_ip_network:address(Address);
        [Address, <<":", Port/binary>>] -> with_port(Address, Port);
        _ -> error
    end;
node_address(Text) ->
    case binary:split(Text, ~":", [global]) of
        [Address, Port] -> with_port(Address, Port);
        _ -> erlmcp_ip_network:address(Text)
    end.

with_port(Address, Port) when Port =/= <<>>, byte_size(Port) =< 64 ->
    erlmcp_ip_network:address(Address);
with_port(_, _) ->
    error.

trimmed(Text) ->
    trimmed_end(trimmed_start(Text)).

trimmed_start(<<C, Text/binary>>) when ?IS_SPACE(C) -> trimmed_start(Text);
trimmed_start(Text) -> Text.

trimmed_end(<<>>) ->
    <<>>;
trimmed_end(Text) ->
    case binary:last(Text) of
        C when ?IS_SPACE(C) -> trimmed_end(binary:part(Text, 0, byte_size(Text) - 1));
        _ -> Text
    end.
