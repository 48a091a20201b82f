-module(erlmcp_httpc_opening).
-moduledoc """
Opens connections to an origin: with gun, or for HTTP/1.1 in the clear as a mere socket
(`m:erlmcp_httpc_socket`). If a host name has addresses of both families, one family is tried after
the other. `localhost` means both loopback addresses, whatever the system's resolver says (RFC 6761,
6.3).

Internal.
""".

-export([new/2, protocols/1, ways/1, open/2]).
-export_type([origin/0, opening/0, way/0, reached/0]).

-type origin() :: {http | https, Host :: binary() | string() | inet:ip_address(),
                   inet:port_number()}.
-type way() :: inet | inet6.
-doc "A fun that is called with the address of each new connection, in the process that opens it.".
-type reached() :: fun((inet:ip_address()) -> ok).
-opaque opening() :: #{host := erlmcp_tls:host(), port := inet:port_number(), gun := gun:opts(),
                       secure := boolean(), tls := [ssl:tls_client_option()],
                       protocols := [http | http2], reached := reached()}.

%% The most bytes of memory that the process of a connection may take.
-define(HEAP_BYTES, 268_435_456).
%% The most bytes that gun reads at once and sends as one message.
-define(BUFFER, 16_384).
%% Milliseconds between the pings of HTTP/2, and the number of pings that may remain unanswered.
%% Without pings, a connection to a vanished peer would be used for calls forever.
-define(PING, 20_000).
-define(PINGS_UNANSWERED, 2).

-doc "Prepares everything that opening a connection needs, once for a pool.".
-spec new(#{origin := origin(), connect_timeout := pos_integer(),
            tls := [ssl:tls_client_option()], protocols := [http | http2], atom() => term()},
          reached()) -> opening().
new(#{origin := {Scheme, Host, Port}, connect_timeout := Timeout, tls := Tls,
      protocols := Wanted}, Reached) ->
    Secure = Scheme =:= https,
    Protocols = offered(Secure, Wanted),
    #{host => host(Host), port => Port, secure => Secure, tls => Tls, protocols => Protocols,
      reached => Reached,
      gun => #{protocols => Protocols,
               %% No supervisor of gun: the process that opens the connection owns it and closes it.
               supervise => false,
               %% The pool decides when to try again.
               retry => 0,
               connect_timeout => Timeout,
               domain_lookup_timeout => Timeout,
               tls_handshake_timeout => Timeout,
               event_handler => {erlmcp_httpc_gun_bound, {?HEAP_BYTES, Reached}},
               http2_opts => #{notify_settings_changed => true,
                               %% The client refuses server push.
                               max_concurrent_streams => 0,
                               %% A server that accepts no more requests may finish the ones that it
                               %% has.
                               closing_timeout => infinity,
                               initial_connection_window_size => 8_000_000,
                               initial_stream_window_size => 1_000_000,
                               max_fragmented_header_block_size => 65_536,
                               keepalive => ?PING,
                               keepalive_tolerance => ?PINGS_UNANSWERED}}}.

%% Without TLS the protocol is not negotiated, so HTTP/2 is used only if the user knows that the
%% server has it (prior knowledge).
offered(true, Wanted) -> Wanted;
offered(false, [http2]) -> [http2];
offered(false, _) -> [http].

host(Host) when is_tuple(Host) ->
    Host;
host(Host) ->
    Text = unicode:characters_to_list(Host),
    case inet:parse_strict_address(string:trim(Text, both, "[]")) of
        {ok, Address} -> Address;
        {error, einval} -> Text
    end.

-doc "Returns the versions of HTTP that a connection may have.".
-spec protocols(opening()) -> [http | http2].
protocols(#{protocols := Protocols}) ->
    Protocols.

-doc "Returns the address families, in the order to try them.".
-spec ways(opening()) -> [way(), ...].
ways(#{host := Host}) when tuple_size(Host) =:= 4 -> [inet];
ways(#{host := Host}) when tuple_size(Host) =:= 8 -> [inet6];
ways(_) -> [inet, inet6].

-doc """
Begins to open a connection, linked to the calling process. The calling process gets `gun_up`, and
for HTTP/2 then the server's settings (`gun_notify`); or `socket_up`. If opening fails, the returned
process exits with the reason.
""".
-spec open(opening(), way()) -> {ok, pid()} | {error, term()}.
open(#{host := Host} = Opening, Way) ->
    maybe
        {ok, Transport} ?= transport(Opening),
        Tcp = [Way, {buffer, ?BUFFER}, {send_timeout, 15_000}, {send_timeout_close, true},
               {nodelay, true}, {keepalive, true}],
        opened(address(Host, Way), Opening, Tcp, Transport)
    end.

opened(Address, #{secure := false, protocols := [http]} = Opening, Tcp, _) ->
    #{port := Port, gun := #{connect_timeout := Timeout}, reached := Reached} = Opening,
    erlmcp_httpc_socket:open({Address, Port}, Tcp, Timeout, Reached);
opened(Address, #{port := Port, gun := Options}, Tcp, Transport) ->
    %% Gun starts with the node's first client, since a node that only serves does not need it.
    {ok, _} = application:ensure_all_started(gun),
    gun:open(Address, Port, maps:merge(Options#{tcp_opts => Tcp}, Transport)).

address("localhost", inet) -> {127, 0, 0, 1};
address("localhost", inet6) -> {0, 0, 0, 0, 0, 0, 0, 1};
address(Host, _) -> Host.

transport(#{secure := false}) ->
    {ok, #{transport => tcp}};
transport(#{secure := true, host := Host, tls := Own}) ->
    maybe
        {ok, Options} ?= erlmcp_tls:client_options(Host, Own),
        {ok, #{transport => tls, tls_opts => without_system_roots(Own, Options)}}
    end.

%% Leaves the system's roots out, since gun uses them by default. Explicit ones would be copied into
%% the process of each connection, most of a megabyte, for its whole life.
without_system_roots(Own, Options) ->
    case lists:keymember(cacerts, 1, Own) of
        true -> Options;
        false -> lists:keydelete(cacerts, 1, Options)
    end.
