-module(erlmcp_httpd).
-moduledoc """
Streamable HTTP: HTTP/1.1 and HTTP/2, in the clear or over TLS with ALPN. This module is the
listener. `erlmcp_httpd_http1` is the process of an HTTP/1.1 connection, and cowboy has that of an
HTTP/2 connection. On both `erlmcp_httpd_route` says what the head of a request comes to, and
`erlmcp_httpd_stream` answers it, with `erlmcp_httpd_sse` where the listener has HTTP+SSE too.

Source: specification 2026-07-28, "Transports / Streamable HTTP".
""".

-export([child_specs/3, address/2]).

%% Streams of a connection that are given up in ten seconds, until it is: one that does not read has
%% many, and the others on its connection are not at fault.
-define(GIVEN_UP, {1_000, 10_000}).
%% Milliseconds that a handshake of TLS may take, and the beginning of HTTP/2.
-define(HANDSHAKE, 5_000).
%% Packets that a socket delivers before it waits for its process to ask for more: what is delivered
%% and not looked at is counted nowhere.
-define(ACTIVE, 4).
%% Bytes of such a packet, at least and at most.
-define(BUFFER, {16_384, 131_072}).

-doc """
The child specification of an HTTP listener, and before it those of the processes that it needs.
Their tables belong to the calling process, the server's supervisor. What its connections have in
common is shared under its reference (`m:erlmcp_shared`).
""".
-spec child_specs(ranch:ref(), map(), erlmcp_instance:instance()) ->
    {[supervisor:child_spec()], supervisor:child_spec()}.
child_specs(Ref, Given, Instance) ->
    #{key := Key} = Instance,
    {Bearer, Options} = bearer(Given, Key),
    {Tls, Transport, {Protocol, Settings}, SocketOptions} = security(Options, Key),
    #{limits := #{connections := Connections, send_timeout_ms := SendTimeout} = Limits} = Instance,
    Socket = erlmcp_listener:socket_options(Options, SendTimeout),
    #{receive_timeout_ms := ReceiveTimeout} = Limits,
    Cowboy = cowboy_options(Limits, Options, Instance),
    _ = erlmcp_shared:put(Ref, {Ref, maps:merge(Cowboy, Settings)}),
    Spec = ranch:child_spec(Ref, Transport,
                            #{max_connections => erlmcp_listener:hard_stop(Connections),
                              num_acceptors => erlmcp_listener:acceptors(),
                              num_conns_sups => 1,
                              handshake_timeout => min(?HANDSHAKE, ReceiveTimeout),
                              connection_type => supervisor,
                              socket_opts => Socket ++ SocketOptions},
                            erlmcp_httpd_connection, Protocol),
    Listener = erlmcp_listener:child_spec(Spec, Socket),
    {Bearer ++ Tls, erlmcp_tls_listener:naming(SocketOptions, Socket, Listener)}.

bearer(#{authenticate := {bearer, Given}} = Options, Key) ->
    Handle = erlmcp_bearer:new(erlmcp_bearer_options:settings(Given), Key),
    {[erlmcp_bearer:child_spec(Handle)], Options#{authenticate := {bearer, Handle}}};
bearer(Options, _) ->
    {[], Options}.

%% Where files are named, the connections take what was read of them last.
security(#{tls := Given} = Options, Key) ->
    Tls = erlmcp_tls_listener:options(Given, maps:get(authenticate, Options, none)),
    case erlmcp_tls_listener:has_files(Tls) of
        true ->
            Table = erlmcp_tls_listener:new(),
            {[erlmcp_tls_listener:child_spec(Table, Tls, Key)], erlmcp_tls_accept,
             {erlmcp_httpd_tls, #{erlmcp_tls => Table}}, erlmcp_tls_files:without(Tls)};
        false ->
            {[], erlmcp_tls_accept, {erlmcp_httpd_tls, #{}}, Tls}
    end;
security(_, _) ->
    {[], erlmcp_tcp_accept, {erlmcp_httpd_http1, #{}}, []}.

cowboy_options(Limits, Options, Instance) ->
    case erlmcp_listen_options:sse(Options) of
        none ->
            streamable(Limits, Options, Instance);
        Endpoints ->
            (streamable(Limits, Options, Instance))#{
                erlmcp_sse => Endpoints}
    end.

streamable(#{receive_timeout_ms := ReceiveTimeout} = Limits, Options, Instance) ->
    #{connection_type => supervisor,
      stream_handlers => [erlmcp_httpd_backpressure, erlmcp_httpd_stream],
      erlmcp_trusted_proxies => erlmcp_trusted_proxies:new(Options, maps:get(key, Instance)),
      erlmcp_route => erlmcp_httpd_route:listener(Options),
      erlmcp => erlmcp_httpd_config:new(Options, Instance),
      request_timeout => ReceiveTimeout,
      preface_timeout => min(?HANDSHAKE, ReceiveTimeout),
      %% A stream waits for its call, which has a deadline, or for a client that is sending, which
      %% the stream bounds itself.
      idle_timeout => infinity,
      inactivity_timeout => 300_000,
      max_concurrent_streams => maps:get(calls_per_connection, Limits),
      %% Frames, and cancelled streams, of one connection in a time that ends it: cowboy's own
      %% bounds are below what one busy proxy sends.
      max_received_frame_rate => {1_000_000, 10_000},
      max_cancel_stream_rate => {5_000, 10_000},
      active_n => ?ACTIVE,
      dynamic_buffer => ?BUFFER,
      max_reset_stream_rate => ?GIVEN_UP,
      %% A stream is told of the first byte that HTTP/2 holds for its client, and of the last.
      max_stream_buffer_size => 1,
      %% A client may have a window of a few octets, and gives the next ones for those alone. What
      %% cowboy keeps back for a larger window would never be sent.
      stream_window_data_threshold => 1,
      %% All of them are ours; none carries bytes from a client.
      invalid_response_headers => ignore,
      logger => erlmcp_httpd_log}.

-doc "What there is to know of a listener at this address.".
-spec address({inet:ip_address(), inet:port_number()}, map()) ->
    #{ip := inet:ip_address(), port := inet:port_number(), url := binary(), sse_url => binary()}.
address({Ip, Port}, Options) ->
    Scheme = case Options of
        #{tls := true} -> ~"https://";
        #{tls := false} -> ~"http://"
    end,
    Origin = <<Scheme/binary, (erlmcp_host:authority(Ip, Port))/binary>>,
    Path = maps:get(path, Options, ~"/mcp"),
    Address = #{ip => Ip, port => Port, url => <<Origin/binary, Path/binary>>},
    case erlmcp_listen_options:sse(Options) of
        #{path := SsePath} -> Address#{sse_url => <<Origin/binary, SsePath/binary>>};
        none -> Address
    end.
