-module(erlmcp_httpd_connection).
-moduledoc """
The process of an HTTP connection from the moment that it is accepted: it asks the server's gate for
a place before anything is read, also before a TLS handshake, except for a proxy's header that says
whose the connection is (`m:erlmcp_trusted_proxies`). Then it speaks HTTP/1.1
(`erlmcp_httpd_http1`), or is cowboy's for HTTP/2. A connection for which there is no place is not
left waiting in a queue of the system's: its first request is answered with the refusal
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
        {ok, Ticket} ->
            serve([Ticket], fun() ->
                Protocol:connection_process(Parent, From, Transport, Options)
            end);
        {refuse, Refusal} ->
            %% As when its listener stops: it answers what it has, and goes.
            _ = erlang:send_after(?REFUSED, self(), {'EXIT', Parent, shutdown}),
            Refusing = refusing(Refusal, Parent, Options),
            serve([], fun() ->
                Protocol:connection_process(Parent, From, Transport, Refusing)
            end)
    end.

%% A process that hibernates forgets all that it is in: what there is to do at its end, too.
-doc false.
-spec serve([erlmcp_gate:ticket()], fun(() -> {idle, fun()} | term())) -> ok.
serve(Tickets, Serve) ->
    try Serve() of
        {idle, Resume} -> proc_lib:hibernate(?MODULE, serve, [Tickets, Resume]);
        _ -> lists:foreach(fun erlmcp_gate:leave/1, Tickets)
    catch
        Class:Reason:Stacktrace ->
            ok = lists:foreach(fun erlmcp_gate:leave/1, Tickets),
            erlang:raise(Class, Reason, Stacktrace)
    end.

refusing(Refusal, Parent, Options) ->
    Options#{stream_handlers := [erlmcp_httpd_refused], erlmcp_refused => {Refusal, Parent},
             request_timeout := ?REFUSED, idle_timeout := ?REFUSED}.
