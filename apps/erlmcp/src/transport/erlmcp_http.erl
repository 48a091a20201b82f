-module(erlmcp_http).
-moduledoc """
Streamable HTTP on cowboy: HTTP/1.1 and HTTP/2, in the clear or over TLS with ALPN. This module is
the listener; `erlmcp_http_stream` answers its requests, and `erlmcp_http_sse` those of HTTP+SSE
where the listener has that too.

Source: specification 2026-07-28, "Transports / Streamable HTTP".
""".

-export([child_spec/3, address/2]).

%% Bytes that HTTP/2 holds for a client, from which on the stream is told.
-define(UNREAD, 65_536).

-doc "The child specification of an HTTP listener.".
-spec child_spec(ranch:ref(), map(), erlmcp_instance:instance()) -> supervisor:child_spec().
child_spec(Ref, Options, #{limits := #{connections := Connections} = Limits} = Instance) ->
    #{send_timeout_ms := SendTimeout, receive_timeout_ms := ReceiveTimeout} = Limits,
    Socket = [{ip, maps:get(ip, Options, {127, 0, 0, 1})}, {port, maps:get(port, Options, 0)},
              {nodelay, true}, {backlog, 1024}, {send_timeout, SendTimeout}],
    {Transport, Protocol, SocketOptions} =
        case Options of
            #{tls := Tls} ->
                Alpn = {alpn_preferred_protocols, [~"h2", ~"http/1.1"]},
                {ranch_ssl, cowboy_tls, Socket ++ [Alpn | hidden(Tls)]};
            #{} ->
                {ranch_tcp, cowboy_clear, Socket}
        end,
    Spec = ranch:child_spec(Ref, Transport,
                            #{max_connections => erlmcp_listener:hard_stop(Connections),
                              num_conns_sups => 1,
                              connection_type => supervisor, socket_opts => SocketOptions},
                            erlmcp_http_connection,
                            {Protocol, cowboy_options(ReceiveTimeout, Options, Instance)}),
    erlmcp_listener:child_spec(Spec, Socket).

%% Supervisors log what a listener that fails was started with.
hidden(Tls) ->
    [case Option of
         {password, Password} when not is_function(Password) -> {password, fun() -> Password end};
         _ -> Option
     end || Option <- Tls].

cowboy_options(ReceiveTimeout, Options, Instance) ->
    case erlmcp_listen_options:sse(Options) of
        none ->
            streamable(ReceiveTimeout, Options, Instance);
        Endpoints ->
            (streamable(ReceiveTimeout, Options, Instance))#{
                stream_handlers := [erlmcp_http_sse],
                erlmcp_sse => Endpoints}
    end.

streamable(ReceiveTimeout, Options, #{limits := Limits} = Instance) ->
    #{connection_type => supervisor,
      stream_handlers => [erlmcp_http_stream],
      erlmcp => erlmcp_http_stream:config(Options, Instance),
      request_timeout => ReceiveTimeout,
      %% A stream waits for its call, which has a deadline, or for a client that is sending, which
      %% the stream bounds itself.
      idle_timeout => infinity,
      inactivity_timeout => 300_000,
      max_keepalive => infinity,
      max_concurrent_streams => maps:get(calls_per_connection, Limits),
      %% Frames, and cancelled streams, of one connection in a time that ends it: cowboy's own
      %% bounds are below what one busy proxy sends.
      max_received_frame_rate => {1_000_000, 10_000},
      max_cancel_stream_rate => {5_000, 10_000},
      active_n => 100,
      max_stream_buffer_size => ?UNREAD,
      %% The streams read the bodies that are worth reading.
      max_skip_body_length => 0,
      %% All of them are ours; none carries bytes from a client.
      invalid_response_headers => ignore,
      logger => erlmcp_http_log}.

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
