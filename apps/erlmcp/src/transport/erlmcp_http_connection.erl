-module(erlmcp_http_connection).
-moduledoc """
The process of an HTTP connection from the moment that it is accepted: it asks the server's gate for
a place before anything is read, also before a TLS handshake, and then it is that of plain requests
(`erlmcp_http_plain`), and cowboy's if others come. One for which there is no place is not left
waiting in a queue of the system's: its requests are answered with the refusal
(`erlmcp_http_refused`) and it ends.
""".

-behaviour(ranch_protocol).

-export([start_link/3, init/4, serve/2]).

-export_type([from/0]).

%% Milliseconds that a connection without a place may last, and its requests may take to arrive.
-define(REFUSED, 5000).

-doc "The listener that a connection came to, and whose it is.".
-type from() :: {ranch:ref(), {inet:ip_address(), inet:port_number()}}.

-type protocol() :: erlmcp_http_plain | erlmcp_http_tls.

-doc false.
-spec start_link(ranch:ref(), module(), protocol()) -> {ok, pid()}.
start_link(Ref, Transport, Protocol) ->
    Arguments = [self(), Ref, once_accepted(Transport), Protocol],
    erlmcp_listener:start_connection({?MODULE, init, Arguments}).

once_accepted(erlmcp_tcp_accept) -> ranch_tcp;
once_accepted(ranch_ssl) -> ranch_ssl.

-doc false.
-spec init(pid(), ranch:ref(), module(), protocol()) -> ok.
init(Parent, Given, Transport, Protocol) ->
    case erlmcp_shared:find(Given) of
        {ok, {Ref, Options}} -> enter(Parent, Ref, Transport, Protocol, Options);
        gone -> exit({shutdown, closed})
    end.

enter(Parent, Ref, Transport, Protocol, #{erlmcp := #{instance := #{gate := Gate}}} = Options) ->
    {Ip, _} = Peer = peer(Ref),
    case erlmcp_gate:connect(Gate, #{address => Ip}) of
        {ok, Ticket} ->
            serve(Ticket, fun() ->
                Protocol:connection_process(Parent, {Ref, Peer}, Transport, Options)
            end);
        {refuse, Refusal} ->
            %% What cowboy is told when its listener stops: it answers what it has, and goes.
            _ = erlang:send_after(?REFUSED, self(), {'EXIT', Parent, shutdown}),
            {Cowboys, From} = cowboys(Protocol, {Ref, Peer}),
            Cowboys:connection_process(Parent, From, Transport,
                                       refusing(Refusal, Parent, Options))
    end.

%% A process that hibernates forgets all that it is in: what there is to do at its end, too.
-doc false.
-spec serve(erlmcp_gate:ticket(), fun(() -> {idle, fun()} | term())) -> ok.
serve(Ticket, Serve) ->
    try Serve() of
        {idle, Resume} -> proc_lib:hibernate(?MODULE, serve, [Ticket, Resume]);
        _ -> erlmcp_gate:leave(Ticket)
    catch
        Class:Reason:Stacktrace ->
            ok = erlmcp_gate:leave(Ticket),
            erlang:raise(Class, Reason, Stacktrace)
    end.

cowboys(erlmcp_http_plain, {Ref, _}) -> {cowboy_clear, Ref};
cowboys(erlmcp_http_tls, From) -> {erlmcp_http_tls, From}.

%% The message with the socket is for who serves the connection, when it is its turn.
peer(Ref) ->
    receive
        {handshake, Ref, Transport, Socket, _} = Handshake ->
            self() ! Handshake,
            case Transport:peername(Socket) of
                {ok, Peer} -> Peer;
                {error, _} -> exit({shutdown, closed})
            end
    end.

refusing(Refusal, Parent, Options) ->
    Options#{stream_handlers := [erlmcp_http_refused], erlmcp_refused => {Refusal, Parent},
             request_timeout := ?REFUSED, idle_timeout := ?REFUSED, max_keepalive := 1}.
