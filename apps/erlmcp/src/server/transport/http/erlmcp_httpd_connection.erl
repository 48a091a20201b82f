-module(erlmcp_httpd_connection).
-moduledoc """
The process of an HTTP connection from the moment that it is accepted: it asks the server's gate for
a place before anything is read, also before a TLS handshake, but for a proxy's header that says
whose the connection is (`m:erlmcp_trusted_proxies`), and then it is that of plain requests
(`erlmcp_httpd_http1`), and cowboy's if others come. One for which there is no place is not left
waiting in a queue of the system's: its requests are answered with the refusal
(`erlmcp_httpd_refused`) and it ends.
""".

-behaviour(ranch_protocol).

-export([start_link/3, init/4, serve/2]).

-export_type([from/0]).

%% Milliseconds that a connection without a place may last, and its requests may take to arrive.
-define(REFUSED, 5000).
%% Milliseconds that a proxy has to say whose a connection is.
-define(HEADER, 5000).

-doc "The listener that a connection came to, and whose it is.".
-type from() :: {ranch:ref(), erlmcp_trusted_proxies:peer()}.

-type protocol() :: erlmcp_httpd_http1 | erlmcp_httpd_tls.

-doc false.
-spec start_link(ranch:ref(), module(), protocol()) -> {ok, pid()}.
start_link(Ref, Transport, Protocol) ->
    Arguments = [self(), Ref, once_accepted(Transport), Protocol],
    erlmcp_listener:start_connection({?MODULE, init, Arguments}).

once_accepted(erlmcp_tcp_accept) -> ranch_tcp;
once_accepted(erlmcp_tls_accept) -> ranch_ssl.

-doc false.
-spec init(pid(), ranch:ref(), module(), protocol()) -> ok.
init(Parent, Given, Transport, Protocol) ->
    case erlmcp_shared:find(Given) of
        {ok, {Ref, Options}} ->
            #{erlmcp_trusted_proxies := Proxies, request_timeout := Timeout} = Options,
            case erlmcp_trusted_proxies:accepted(Ref, Proxies, min(?HEADER, Timeout)) of
                {ok, Peer} ->
                    enter(Parent, {Ref, Peer}, Transport, Protocol, behind(Peer, Options));
                closed ->
                    exit({shutdown, closed})
            end;
        gone ->
            exit({shutdown, closed})
    end.

%% Most listeners trust no proxy, and most of their options are shared.
behind(Peer, #{erlmcp_trusted_proxies := Listener, erlmcp := Config} = Options) ->
    case erlmcp_trusted_proxies:of_connection(Peer, Listener) of
        Listener ->
            Options;
        Proxies ->
            Proxied = erlmcp_trusted_proxies:is_proxied(Proxies),
            Options#{erlmcp_trusted_proxies := Proxies, erlmcp := Config#{proxied => Proxied}}
    end.

enter(Parent, {_, Peer} = From, Transport, Protocol, Options) ->
    #{erlmcp := #{instance := #{gate := Gate}}, erlmcp_trusted_proxies := Proxies} = Options,
    case erlmcp_gate:connect(Gate, #{address => erlmcp_trusted_proxies:counted(Peer, Proxies)}) of
        {ok, Permit} ->
            serve(Permit, fun() ->
                Protocol:connection_process(Parent, From, Transport, Options)
            end);
        {refuse, Refusal} ->
            %% What cowboy is told when its listener stops: it answers what it has, and goes.
            _ = erlang:send_after(?REFUSED, self(), {'EXIT', Parent, shutdown}),
            {Cowboys, Known} = cowboys(Protocol, From),
            Cowboys:connection_process(Parent, Known, Transport,
                                       refusing(Refusal, Parent, Options))
    end.

%% A process that hibernates forgets all that it is in: what there is to do at its end, too.
-doc false.
-spec serve(erlmcp_gate:permit(), fun(() -> {idle, fun()} | term())) -> ok.
serve(Permit, Serve) ->
    try Serve() of
        {idle, Resume} -> proc_lib:hibernate(?MODULE, serve, [Permit, Resume]);
        _ -> erlmcp_gate:leave(Permit)
    catch
        Class:Reason:Stacktrace ->
            ok = erlmcp_gate:leave(Permit),
            erlang:raise(Class, Reason, Stacktrace)
    end.

cowboys(erlmcp_httpd_http1, {Ref, _}) -> {cowboy_clear, Ref};
cowboys(erlmcp_httpd_tls, From) -> {erlmcp_httpd_tls, From}.

refusing(Refusal, Parent, Options) ->
    Options#{stream_handlers := [erlmcp_httpd_refused], erlmcp_refused => {Refusal, Parent},
             request_timeout := ?REFUSED, idle_timeout := ?REFUSED, max_keepalive := 1}.
