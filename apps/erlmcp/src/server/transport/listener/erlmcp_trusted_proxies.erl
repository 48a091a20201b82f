-module(erlmcp_trusted_proxies).
-moduledoc """
The proxies that a listener trusts (its option `trusted_proxies`), and the clients behind them.
Every listener of HTTP or TCP has a value `t:proxies/0`, even if it trusts no proxy.

The other end of a connection is the machine that opened it. With the option `proxy_protocol` it is
the client that a trusted proxy names in the header of the PROXY protocol. If the other end is a
trusted proxy, each request counts as one of the client that its headers name
(`m:erlmcp_forwarded`). Such headers from other machines are ignored, and logged once for each
listener.

Source: RFC 7239; "The PROXY protocol, versions 1 and 2" of HAProxy, sections 2 and 4.

Internal.
""".

-export([new/2, accepted/3, of_connection/2, counted/2, is_proxied/1, request/2]).

-export_type([proxies/0, peer/0]).

%% Indexes of the atomics for what is logged once.
-define(HEADER, 1).
-define(NO_PROXY_HEADER, 2).

-type peer() :: {inet:ip_address(), inet:port_number()}.
-doc """
The proxies of a listener. `of_connection/2` adds `peer` and `proxied` for a connection, if the
listener trusts any proxy.
""".
-opaque proxies() :: #{
    networks := [erlmcp_ip_network:network()], protocol := boolean(), key := reference(),
    logged := atomics:atomics_ref(), peer => peer(), proxied => boolean()
}.

-doc "Returns the proxies that a listener with `Options` trusts. `Key` is the key of its server.".
-spec new(Options :: map(), Key :: reference()) -> proxies().
new(Options, Key) ->
    Networks = [Network || Text <- maps:get(trusted_proxies, Options, []),
                           {ok, Network} <- [erlmcp_ip_network:read(Text)]],
    #{networks => Networks, protocol => maps:get(proxy_protocol, Options, false), key => Key,
      logged => atomics:new(2, [])}.

-doc """
Waits for the connection that ranch hands to the calling process, and returns its other end. The
message of ranch stays in the mailbox. If a trusted proxy must send the header of the PROXY
protocol, reads it, within `Milliseconds`. Returns `closed` if the connection has ended, or no valid
header came in time. The first invalid header is logged.
""".
-spec accepted(ranch:ref(), proxies(), Milliseconds :: pos_integer()) -> {ok, peer()} | closed.
accepted(Ref, #{protocol := Protocol} = Proxies, Milliseconds) ->
    receive
        %% The message with the socket is needed again when the connection is served.
        {handshake, Ref, Transport, Socket, _} = Handshake ->
            self() ! Handshake,
            case Transport:peername(Socket) of
                {ok, Peer} when Protocol -> announced(Ref, Peer, Proxies, Milliseconds);
                {ok, Peer} -> {ok, Peer};
                {error, _} -> closed
            end
    end.

announced(Ref, {Ip, _} = Peer, #{networks := Networks} = Proxies, Milliseconds) ->
    case erlmcp_ip_network:has(Ip, Networks) of
        true -> client(ranch:recv_proxy_header(Ref, Milliseconds), Peer, Proxies);
        false -> {ok, Peer}
    end.

client({ok, #{command := proxy, src_address := Ip, src_port := Port}}, _, _) ->
    {ok, {Ip, Port}};
%% The proxy opened the connection for itself, or does not know its client.
client({ok, _}, Peer, _) ->
    {ok, Peer};
client({error, protocol_error, _}, {Ip, _}, Proxies) ->
    ok = once(?NO_PROXY_HEADER, proxy_header_expected, Ip,
              <<"a trusted proxy has to send the header of the PROXY protocol first, and as a "
                "whole: configure it so, or remove the listener's option proxy_protocol">>,
              Proxies),
    closed;
client({error, _}, _, _) ->
    closed.

-doc """
Adds the other end of a connection to the proxies of its listener. Also adds whether that end is a
trusted proxy. Adds nothing if the listener trusts no proxy, so that all of its connections share
one value.
""".
-spec of_connection(peer(), proxies()) -> proxies().
of_connection(_, #{networks := []} = Proxies) ->
    Proxies;
of_connection({Ip, _} = Peer, #{networks := Networks} = Proxies) ->
    Proxies#{peer => Peer, proxied => erlmcp_ip_network:has(Ip, Networks)}.

-doc """
Returns the address for which a connection with this other end is counted. Returns `local` for a
trusted proxy: its connections belong to many clients, and count for no address.
""".
-spec counted(peer(), proxies()) -> inet:ip_address() | local.
counted({Ip, _}, #{networks := Networks}) ->
    case erlmcp_ip_network:has(Ip, Networks) of
        true -> local;
        false -> Ip
    end.

-doc """
Returns `true` if the other end of a connection (`of_connection/2`) is a trusted proxy. Such a proxy
sends requests of many clients. The listener must be one that trusts proxies.
""".
-spec is_proxied(proxies()) -> boolean().
is_proxied(#{proxied := Proxied}) ->
    Proxied.

-doc """
Returns the request with the address of its client in `peer`. If a header names the client, the port
in `peer` is 0. The first such header that the listener gets from an address that is not trusted is
logged as a warning.
""".
-spec request(cowboy_req:req(), proxies()) -> cowboy_req:req().
request(#{headers := Headers} = Request, #{proxied := true, peer := {Ip, _} = Peer} = Proxies) ->
    #{networks := Networks} = Proxies,
    case erlmcp_forwarded:client(Headers, Ip, Networks) of
        Ip -> Request#{peer := Peer};
        Client -> Request#{peer := {Client, 0}}
    end;
request(Request, #{peer := Peer} = Proxies) ->
    not_trusted(Request#{peer := Peer}, Proxies);
request(Request, Proxies) ->
    not_trusted(Request, Proxies).

not_trusted(#{headers := Headers, peer := {Ip, _}} = Request, Proxies) ->
    _ = erlmcp_forwarded:is_there(Headers)
        andalso once(?HEADER, forwarding_header_not_trusted, Ip,
                     <<"Forwarded and X-Forwarded-For from this address are ignored: if it is a "
                       "proxy of yours, add it to the listener's option trusted_proxies">>,
                     Proxies),
    Request.

once(Word, What, Ip, Advice, #{logged := Logged, key := Key}) ->
    case atomics:exchange(Logged, Word, 1) of
        0 -> erlmcp_log:report(warning, #{what => What, address => Ip, advice => Advice}, Key);
        1 -> ok
    end.
