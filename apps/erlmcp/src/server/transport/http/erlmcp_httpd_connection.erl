-module(erlmcp_httpd_connection).
-moduledoc """
The process of an HTTP connection from its accept on. It asks the server's gate for a permit before
it reads anything, and before a TLS handshake. Only the header of a trusted proxy, which names the
client, is read earlier (`m:erlmcp_trusted_proxies`). If ALPN selects HTTP/2, cowboy serves the
connection. Any other connection begins as HTTP/1.1 (`erlmcp_httpd_http1`).

On a connection that gets no permit, requests for pages are answered. Any other request gets the
refusal, and then the connection ends (`m:erlmcp_httpd_refused`).

Internal.
""".

-behaviour(ranch_protocol).

-export([start_link/3, init/3, serve/2]).
-export([last_response/1, end_all/1]).

-export_type([from/0, socket/0]).

%% Milliseconds in which a proxy must name the client of a connection.
-define(HEADER, 5000).

-doc "The listener that accepted a connection, and the address of the connection's other end.".
-type from() :: {ranch:ref(), erlmcp_trusted_proxies:peer()}.
-type socket() :: inet:socket() | ssl:sslsocket().

-doc false.
-spec start_link(ranch:ref(), module(), []) -> {ok, pid()}.
start_link(Ref, Transport, []) ->
    Arguments = [self(), Ref, once_accepted(Transport)],
    erlmcp_listener:start_connection({?MODULE, init, Arguments}).

once_accepted(erlmcp_tcp_accept) -> ranch_tcp;
once_accepted(erlmcp_tls_accept) -> ranch_ssl.

%% The spec of `cowboy_http2:init/6` has no sockets of TLS. Cowboy itself calls it with these.
-dialyzer({nowarn_function, accepted/4}).

-doc false.
-spec init(pid(), ranch:ref(), module()) -> ok.
init(Parent, Given, Transport) ->
    case erlmcp_instance:find(Given) of
        {ok, {Ref, Options}} ->
            #{erlmcp_trusted_proxies := Proxies, request_timeout := Timeout} = Options,
            case erlmcp_trusted_proxies:accepted(Ref, Proxies, min(?HEADER, Timeout)) of
                {ok, Peer} ->
                    enter(Parent, {Ref, Peer}, Transport, behind(Peer, Options));
                closed ->
                    exit({shutdown, closed})
            end;
        gone ->
            exit({shutdown, closed})
    end.

-doc """
Makes the next response of a connection of HTTP/1.1 its last one. This response has the header
`connection: close`. A connection of HTTP/2 drops the message, like any message for a stream that it
does not have.
""".
-spec last_response(pid()) -> ok.
last_response(Pid) ->
    Pid ! {{Pid, 0}, last_response},
    ok.

-doc """
Asks connections to end as soon as their requests are answered, and returns at once.

- HTTP/2: the connection announces its end with GOAWAY, and still serves requests that come within
  `erlmcp_httpd:last_requests_ms/0`.
- HTTP/1.1: a connection that waits for the next request ends now. If its client has not sent its
  first request yet, or has sent a part of the next one, the connection serves that request first.

Streams that do not end by themselves end now, and those of HTTP+SSE as soon as none of their calls
runs.
""".
-spec end_all([pid()]) -> ok.
end_all(Pids) ->
    %% The sender ends before their replies arrive, which nobody needs.
    _ = spawn(fun() ->
        From = {self(), make_ref()},
        lists:foreach(fun(Pid) -> Pid ! {system, From, {terminate, shutdown}} end, Pids)
    end),
    ok.

%% Most listeners trust no proxy. Then all connections share one term of options.
behind(Peer, #{erlmcp_trusted_proxies := Listener, erlmcp := Config} = Options) ->
    case erlmcp_trusted_proxies:of_connection(Peer, Listener) of
        Listener ->
            Options;
        Proxies ->
            Proxied = erlmcp_trusted_proxies:is_proxied(Proxies),
            Options#{erlmcp_trusted_proxies := Proxies, erlmcp := Config#{proxied => Proxied}}
    end.

enter(Parent, {_, Peer} = From, Transport, Options) ->
    #{erlmcp := #{instance := #{gate := Gate, key := Key} = Instance},
      erlmcp_trusted_proxies := Proxies} = Options,
    ok = erlmcp_label:set([erlmcp_connection, http, Peer], Key),
    case erlmcp_gate:connect(Gate, #{address => erlmcp_trusted_proxies:counted(Peer, Proxies)}) of
        {ok, Permit} ->
            serve([Permit], fun() -> accepted(Parent, From, Transport, Options) end);
        {refuse, Refusal} ->
            ok = erlmcp_meter:connection_refused(http, Refusal, Instance),
            ok = erlmcp_httpd_refused:end_later(Parent),
            Refusing = refusing(Refusal, Parent, Options),
            serve([], fun() -> accepted(Parent, From, Transport, Refusing) end)
    end.

%% Without TLS there is no handshake.
accepted(Parent, {Ref, _} = From, ranch_tcp, Options) ->
    receive
        {handshake, Ref, _, Socket, _} ->
            _ = process_flag(trap_exit, true),
            erlmcp_httpd_http1:init(Parent, From, Socket, ranch_tcp, Options)
    end;
accepted(Parent, {Ref, _} = From, ranch_ssl, Options) ->
    {ok, Socket} = ranch:handshake(Ref, certificates(Options)),
    _ = process_flag(trap_exit, true),
    case ssl:negotiated_protocol(Socket) of
        {ok, ~"h2"} ->
            erlmcp_httpd_http2:init(Parent, Ref, Socket, ranch_ssl, undefined, Options);
        _ ->
            erlmcp_httpd_http1:init(Parent, From, Socket, ranch_ssl, Options)
    end.

certificates(#{erlmcp_tls := Table}) -> erlmcp_tls_listener:current(Table);
certificates(_) -> [].

%% A process that hibernates loses its stack, and with it the code here that gives its permits back.
%% So the fun returns here before the process hibernates.
-doc false.
-spec serve([erlmcp_gate:permit()], fun(() -> {idle, fun()} | term())) -> ok.
serve(Permits, Serve) ->
    try Serve() of
        {idle, Resume} -> proc_lib:hibernate(?MODULE, serve, [Permits, Resume]);
        _ -> lists:foreach(fun erlmcp_gate:leave/1, Permits)
    catch
        Class:Reason:Stacktrace ->
            ok = lists:foreach(fun erlmcp_gate:leave/1, Permits),
            erlang:raise(Class, Reason, Stacktrace)
    end.

refusing(Refusal, Parent, Options) ->
    Options#{stream_handlers := [erlmcp_httpd_backpressure, erlmcp_httpd_refused],
            erlmcp_refused => {Refusal, Parent},
            request_timeout := erlmcp_httpd_refused:milliseconds()}.
