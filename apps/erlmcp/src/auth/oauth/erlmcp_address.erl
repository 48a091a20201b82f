-module(erlmcp_address).
-moduledoc """
The addresses of a host, and which of them are inside of a network: private, the machine's own,
and those that are for no host of the internet. What a distant server names must not lead there.

Sources: Security Best Practices, "Server-Side Request Forgery"; RFC 6890; RFC 9728, section 7.7.
""".

-export([of_host/2, is_inside/1, is_server_inside/3]).

-doc """
The addresses that a host has now, or itself if it is one. The deadline is in milliseconds of
`erlang:monotonic_time/1`.
""".
-spec of_host(Host :: binary(), Deadline :: integer()) ->
    {ok, [inet:ip_address(), ...]} | {error, inet:posix()}.
of_host(Host, Deadline) ->
    Text = binary_to_list(Host),
    case inet:parse_strict_address(Text) of
        {ok, Address} -> {ok, [Address]};
        {error, einval} -> looked_up(Text, Deadline)
    end.

%% Those of IPv6 where there are no others.
looked_up(Text, Deadline) ->
    maybe
        {error, _} ?= looked_up(inet, Text, Deadline),
        looked_up(inet6, Text, Deadline)
    end.

looked_up(Family, Text, Deadline) ->
    Left = max(0, Deadline - erlang:monotonic_time(millisecond)),
    case inet:gethostbyname(Text, Family, Left) of
        {ok, {hostent, _, _, _, _, [_ | _] = Addresses}} -> {ok, Addresses};
        {ok, _} -> {error, nxdomain};
        {error, Reason} -> {error, Reason}
    end.

-doc "Whether an address is none of the internet's.".
-spec is_inside(inet:ip_address()) -> boolean().
is_inside({0, _, _, _}) -> true;
is_inside({10, _, _, _}) -> true;
is_inside({100, B, _, _}) when B >= 64, B < 128 -> true;
is_inside({127, _, _, _}) -> true;
is_inside({169, 254, _, _}) -> true;
is_inside({172, B, _, _}) when B >= 16, B < 32 -> true;
is_inside({192, 0, 0, _}) -> true;
is_inside({192, 168, _, _}) -> true;
is_inside({198, B, _, _}) when B =:= 18; B =:= 19 -> true;
is_inside({A, _, _, _}) -> A >= 224;
is_inside({0, 0, 0, 0, 0, 16#ffff, High, Low}) -> is_inside(four(High, Low));
is_inside({16#64, 16#ff9b, 0, 0, 0, 0, High, Low}) -> is_inside(four(High, Low));
is_inside({16#2002, High, Low, _, _, _, _, _}) -> is_inside(four(High, Low));
%% `::` and `::1` among them.
is_inside({0, _, _, _, _, _, _, _}) -> true;
is_inside({16#64, 16#ff9b, 1, _, _, _, _, _}) -> true;
is_inside({A, _, _, _, _, _, _, _}) -> A >= 16#fc00.

four(High, Low) ->
    {High bsr 8, High band 255, Low bsr 8, Low band 255}.

-doc """
Whether an MCP server is at such an address itself. What its name says is not enough, since who
has it can have it say anything: over https the one at that address must show a certificate of the
name.
""".
-spec is_server_inside(Url :: binary(), [ssl:tls_client_option()], Deadline :: integer()) ->
    boolean().
is_server_inside(Url, Tls, Deadline) ->
    {ok, {Scheme, Host, Port}} = erlmcp_oauth_url:origin(Url),
    case of_host(Host, Deadline) of
        {ok, [Address | _] = Addresses} ->
            lists:all(fun is_inside/1, Addresses) andalso
                (is_plain(Scheme, Host) orelse is_shown(Host, {Address, Port}, Tls, Deadline));
        {error, _} ->
            false
    end.

%% Where there is no certificate, or the user named an address.
is_plain(~"http", _) -> true;
is_plain(~"https", Host) -> element(1, inet:parse_strict_address(binary_to_list(Host))) =:= ok.

is_shown(Host, {Address, Port}, Tls, Deadline) ->
    maybe
        {ok, Options} ?= erlmcp_tls:client_options(binary_to_list(Host), Tls),
        Left = max(0, Deadline - erlang:monotonic_time(millisecond)),
        {ok, Socket} ?= ssl:connect(Address, Port, Options, Left),
        ok = ssl:close(Socket),
        true
    else
        {error, _} -> false
    end.
