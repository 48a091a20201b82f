-module(erlmcp_httpd).
-moduledoc """
The listener of Streamable HTTP: HTTP/1.1 and HTTP/2, in the clear or over TLS with ALPN.
`erlmcp_httpd_http1` is the process of an HTTP/1.1 connection, and cowboy has that of an HTTP/2
connection. On both, `erlmcp_httpd_route` decides from the head of a request what to do with it, and
`erlmcp_httpd_stream` does that. `erlmcp_httpd_sse` answers requests of HTTP+SSE, if the listener
has that too.

Source: specification 2026-07-28, "Transports / Streamable HTTP".

Internal.
""".

-export([child_specs/3, address/2, last_requests_ms/0, proof_used/3]).

-export_type([config/0]).

-doc """
The state that the requests of a listener share. If the listener trusts proxies, `proxied` is `true`
for the connection of such a proxy, which has requests of several clients. For a request that is
served, `identity` is added, and `insufficient`, which returns the headers of a refusal for missing
scopes.
""".
-type config() :: #{
    instance := erlmcp_instance:instance(),
    %% of the endpoint, if the listener has one
    path := binary() | none,
    http1 := erlmcp_httpd_http1_message:patterns(),
    message_bytes := pos_integer(),
    receive_timeout_ms := pos_integer(),
    proxied => boolean(),
    identity => erlmcp_auth:identity(),
    insufficient => fun(([erlmcp:scope(), ...]) -> #{binary() => iodata()})
}.

%% Streams of a connection that the server may reset in ten seconds. They are reset because their
%% client does not read them, and that must not end the connection's other streams.
-define(GIVEN_UP, {1_000, 10_000}).
%% Milliseconds from the announcement that an HTTP/2 connection ends until no more requests of its
%% client are taken. Those that are on their way are served: the client learns which were not.
-define(LAST_REQUESTS, 100).
%% Milliseconds after which an HTTP/2 connection without a request ends, at least.
-define(INACTIVE, 300_000).
%% Milliseconds that a TLS handshake may take, and the same for the preface of HTTP/2.
-define(HANDSHAKE, 5_000).
%% Packets that a socket delivers before its process has to ask for more. Packets that wait in its
%% mailbox are not counted.
-define(ACTIVE, 4).
%% Bytes of such a packet, at least and at most.
-define(BUFFER, {16_384, 131_072}).

-doc """
Returns the child specifications of the processes that an HTTP listener needs, and that of the
listener. Their tables belong to the calling process, the server's supervisor. The options of the
listener's connections are shared under its reference `Ref` (`m:erlmcp_instance`).
""".
-spec child_specs(ranch:ref(), map(), erlmcp_instance:instance()) ->
    {[supervisor:child_spec()], supervisor:child_spec()}.
child_specs(Ref, Given, Instance) ->
    #{key := Key} = Instance,
    {Bearer, Options} = bearer(Given, Instance),
    {Tls, Transport, Settings, SocketOptions} = security(Options, Key),
    #{limits := #{connections := Connections, send_timeout_ms := SendTimeout} = Limits} = Instance,
    Socket = erlmcp_listener:socket_options(Options, SendTimeout),
    #{receive_timeout_ms := ReceiveTimeout} = Limits,
    Cowboy = cowboy_options(Limits, Options, Instance),
    _ = erlmcp_instance:share(Ref, {Ref, maps:merge(Cowboy, Settings)}),
    Spec = ranch:child_spec(Ref, Transport,
                            #{max_connections => erlmcp_listener:hard_stop(Connections),
                              num_acceptors => erlmcp_listener:acceptors(),
                              num_conns_sups => 1,
                              handshake_timeout => min(?HANDSHAKE, ReceiveTimeout),
                              connection_type => supervisor,
                              socket_opts => Socket ++ SocketOptions},
                            erlmcp_httpd_connection, []),
    Listener = erlmcp_listener:child_spec(Spec, Socket),
    {Bearer ++ Tls, erlmcp_tls_listener:naming(SocketOptions, Socket, Listener)}.

bearer(#{authenticate := {bearer, Given}} = Options, #{key := Key, cluster := Cluster}) ->
    Settings = erlmcp_bearer_options:in_cluster(Cluster, erlmcp_bearer_options:settings(Given)),
    Handle = erlmcp_bearer:new(Settings, Key),
    {[erlmcp_bearer:child_spec(Handle)], Options#{authenticate := {bearer, Handle}}};
bearer(Options, _) ->
    {[], Options}.

%% A listener whose options name files serves the certificates that were read last.
security(#{tls := Given} = Options, Key) ->
    Tls = erlmcp_tls_listener:options(Given, maps:get(authenticate, Options, none)),
    case erlmcp_tls_listener:has_files(Tls) of
        true ->
            Table = erlmcp_tls_listener:new(),
            {[erlmcp_tls_listener:child_spec(Table, Tls, Key)], erlmcp_tls_accept,
             #{erlmcp_tls => Table}, erlmcp_tls_files:without(Tls)};
        false ->
            {[], erlmcp_tls_accept, #{}, Tls}
    end;
security(_, _) ->
    {[], erlmcp_tcp_accept, #{}, []}.

cowboy_options(Limits, Options, Instance) ->
    case erlmcp_listen_options:sse(Options) of
        none ->
            streamable(Limits, Options, Instance);
        Endpoints ->
            (streamable(Limits, Options, Instance))#{
                erlmcp_sse => Endpoints}
    end.

streamable(#{receive_timeout_ms := ReceiveTimeout, keep_alive_ms := KeepAlive} = Limits, Options,
           Instance) ->
    #{connection_type => supervisor,
      stream_handlers => [erlmcp_httpd_backpressure, erlmcp_httpd_stream],
      erlmcp_trusted_proxies => erlmcp_trusted_proxies:new(Options, maps:get(key, Instance)),
      erlmcp_route => erlmcp_httpd_route:listener(Options),
      erlmcp => config(Options, Instance),
      request_timeout => ReceiveTimeout,
      preface_timeout => min(?HANDSHAKE, ReceiveTimeout),
      %% A stream waits for its call, which has a deadline, or for the bytes of its request. For
      %% these the stream has a time-out of its own.
      idle_timeout => infinity,
      %% A connection whose process is sent nothing for so long has no request. One that waits is
      %% sent `keep_alive` before.
      inactivity_timeout => max(?INACTIVE,
                                min(2 * KeepAlive, erlmcp_user_term:longest_wait_ms())),
      goaway_initial_timeout => ?LAST_REQUESTS,
      %% Calls have their own deadlines.
      goaway_complete_timeout => infinity,
      max_concurrent_streams => maps:get(calls_per_connection, Limits),
      %% More frames, or cancelled streams, in this time end a connection. Cowboy's defaults are
      %% less than a busy proxy sends.
      max_received_frame_rate => {1_000_000, 10_000},
      max_cancel_stream_rate => {5_000, 10_000},
      active_n => ?ACTIVE,
      dynamic_buffer => ?BUFFER,
      max_reset_stream_rate => ?GIVEN_UP,
      %% A stream gets an alarm when cowboy begins to keep bytes for its client, and when it ends.
      max_stream_buffer_size => 1,
      %% A client may have a window of a few octets, and reopen it only for as many. Cowboy must not
      %% wait for a larger window.
      stream_window_data_threshold => 1,
      %% All response headers are made here, and none has bytes from a client.
      invalid_response_headers => ignore,
      logger => erlmcp_httpd_log}.

-spec config(map(), erlmcp_instance:instance()) -> config().
config(Options, #{limits := Limits} = Instance) ->
    #{message_bytes := Max, receive_timeout_ms := Timeout} = Limits,
    #{instance => Instance, path => maps:get(path, Options, ~"/mcp"),
      http1 => erlmcp_httpd_http1_message:patterns(), message_bytes => Max,
      receive_timeout_ms => Timeout}.

-doc """
Returns the milliseconds for which an HTTP/2 connection serves new requests after it has announced
its end (GOAWAY).
""".
-spec last_requests_ms() -> pos_integer().
last_requests_ms() ->
    ?LAST_REQUESTS.

-doc """
Returns the address of a listener at `Ip` and `Port`, and the URLs of its endpoint, HTTP+SSE and
pages, as far as it has them. `Options` has `path` and `sse` as the listener's options do, `tls` as
a boolean, and `pages` as a list of paths.
""".
-spec address({inet:ip_address(), inet:port_number()}, Options :: map()) ->
    #{ip := inet:ip_address(), port := inet:port_number(), url => binary(), sse_url => binary(),
      pages => [binary(), ...]}.
address({Ip, Port}, #{tls := Tls, pages := Pages} = Options) ->
    Scheme = case Tls of
        true -> ~"https://";
        false -> ~"http://"
    end,
    Url = fun(Path) -> <<Scheme/binary, (erlmcp_host:authority(Ip, Port))/binary, Path/binary>> end,
    Urls = [{url, Url(Path)} || Path <- [maps:get(path, Options, ~"/mcp")], Path =/= none]
        ++ [{sse_url, Url(Path)} || #{path := Path} <- [erlmcp_listen_options:sse(Options)]]
        ++ [{pages, [Url(Path) || Path <- Pages]} || Pages =/= []],
    maps:merge(#{ip => Ip, port => Port}, maps:from_list(Urls)).

-doc """
Records that a proof of possession was used on another node. No listener of this server accepts it
until `Until`, in seconds of system time.
""".
-spec proof_used({Thumbprint :: binary(), Id :: binary()}, Until :: integer(),
                 erlmcp_instance:instance()) -> ok.
proof_used(Proof, Until, #{listeners := Listeners}) ->
    _ = [ok = erlmcp_bearer:proof_used(Proof, Until, Handle)
         || {_, http, _} = Ref <- Listeners,
            {ok, {_, #{erlmcp_route := #{auth := {bearer, Handle}}}}} <-
                [erlmcp_instance:find(Ref)]],
    ok.
