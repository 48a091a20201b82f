-module(erlmcp_host).
-moduledoc """
Checks `Host` and `Origin` of a request, as a defence against DNS rebinding. Pure, except for the
machine's own name.

For DNS rebinding, a web page needs a DNS name of its own as the host. So an IP address, `localhost`
and the machine's own name are accepted, and any other name must be allowed by the listener's
options. The origin of a request, if it has one, must have the same host, or the host `localhost`,
`127.0.0.1` or `[::1]`, or be allowed.

Source: specification 2026-07-28, "Streamable HTTP / Security & Endpoint".

Internal.
""".

-export([policy/1, check/3, authority/2]).

-export_type([policy/0]).

-type policy() :: #{hosts := any | [binary()], origins := any | [binary()]}.

-doc "Returns the host names and the origins that a listener with `Options` allows.".
-spec policy(Options :: map()) -> policy().
policy(Options) ->
    {ok, Own} = inet:gethostname(),
    Hosts = case maps:get(allowed_hosts, Options, []) of
        any -> any;
        Names -> [lower(Name) || Name <- [~"localhost", list_to_binary(Own) | Names]]
    end,
    #{hosts => Hosts, origins => maps:get(allowed_origins, Options, [])}.

-doc """
Checks the host and the origin of a request. `Host` is in lower case and has no port. The error is
`host` if the host is not allowed, and otherwise `origin`.
""".
-spec check(Host :: binary(), Origin :: binary() | undefined, policy()) ->
    ok | {error, host | origin}.
check(Host, Origin, #{hosts := Hosts, origins := Origins}) ->
    case host(Host, Hosts) of
        false -> {error, host};
        true when Origin =:= undefined; Origins =:= any -> ok;
        true -> origin(Origin, Host, Origins)
    end.

host(_, any) -> true;
host(~"127.0.0.1", _) -> true;
host(Host, Hosts) -> lists:member(Host, Hosts) orelse is_ip(Host).

is_ip(<<"[", _/binary>> = Host) ->
    Inner = binary:part(Host, 1, max(0, byte_size(Host) - 2)),
    element(1, inet:parse_ipv6strict_address(binary_to_list(Inner))) =:= ok;
is_ip(Host) ->
    element(1, inet:parse_ipv4strict_address(binary_to_list(Host))) =:= ok.

origin(Origin, Host, Origins) ->
    case lists:member(Origin, Origins) orelse parse(Origin) of
        true -> ok;
        #{scheme := _, host := Own} when Own =:= Host; <<"[", Own/binary, "]">> =:= Host -> ok;
        #{scheme := _, host := Other} -> loopback(Other);
        _ -> {error, origin}
    end.

%% `uri_string` needs UTF-8, and a header may have any bytes.
parse(Origin) ->
    case unicode:characters_to_binary(Origin) of
        Origin -> uri_string:parse(Origin);
        _ -> error
    end.

loopback(Host) when Host =:= ~"localhost"; Host =:= ~"127.0.0.1"; Host =:= ~"::1" -> ok;
loopback(_) -> {error, origin}.

lower(Name) ->
    string:lowercase(Name).

-doc """
Returns an address and a port as they stand in a URL. An IPv4 address that a socket of IPv6 gives as
an IPv6 address is returned as IPv4, which clients have in their URLs.
""".
-spec authority(inet:ip_address(), inet:port_number()) -> binary().
authority({0, 0, 0, 0, 0, 16#ffff, _, _} = Ip, Port) ->
    authority(inet:ipv4_mapped_ipv6_address(Ip), Port);
authority(Ip, Port) ->
    Address = list_to_binary(inet:ntoa(Ip)),
    Host = case tuple_size(Ip) of
        4 -> Address;
        8 -> <<"[", Address/binary, "]">>
    end,
    <<Host/binary, $:, (integer_to_binary(Port))/binary>>.
