-module(erlmcp_tls_accept).
-moduledoc """
The ranch transport of a listening socket with TLS. An accepted connection is served with
`ranch_ssl`, and ends with `finish/2`.

Internal.
""".

-export([finish/2]).
-export([listen/1, accept/2, controlling_process/2]).
-export([recv_proxy_header/2, handshake/2, handshake/3, peername/1, sockname/1, close/1, cleanup/1,
         format_error/1]).

%% The applications whose modules a handshake needs.
-define(NEEDED, [ssl, public_key, crypto, asn1]).

-type options() :: ranch:transport_opts(ranch_ssl:opts()).
-type address() :: {inet:ip_address(), inet:port_number()}.

-doc """
Ends a connection with a closure alert, and waits until the client has ended it, too. Bytes that
arrive meanwhile are dropped. Waits for `Milliseconds` if none arrive, and otherwise for at most
twice that time. The calling process must own the connection, and end after the call.
""".
-spec finish(ssl:sslsocket(), Milliseconds :: pos_integer()) -> ok.
finish(Socket, Milliseconds) ->
    %% A reset would take from the client the response that it has not read. `ssl:shutdown/2` with
    %% `write` sends no alert.
    %%
    %% The time-out of `ssl` ends with the first packet of the client. A connection without one is
    %% left to `ssl`: at the end of its owner, the client would get another alert.
    {Closing, Monitor} = spawn_monitor(fun() -> close(Socket, Milliseconds) end),
    receive
        {'DOWN', Monitor, process, Closing, _} -> ok
    after 2 * Milliseconds ->
        true = demonitor(Monitor, [flush]),
        ok
    end.

close(Socket, Milliseconds) ->
    case ssl:close(Socket, {self(), Milliseconds}) of
        {error, _} -> ok;
        Downgraded -> gen_tcp:close(element(2, Downgraded))
    end.

-doc false.
-spec listen(options()) -> {ok, ssl:sslsocket()} | {error, atom()}.
listen(Options) ->
    ok = erlmcp_listener:load(?NEEDED),
    ranch_ssl:listen(Options).

-doc false.
-spec accept(ssl:sslsocket(), timeout()) -> {ok, ssl:sslsocket()} | {error, atom()}.
accept(Listening, Timeout) ->
    Accept = fun() -> ranch_ssl:accept(Listening, Timeout) end,
    erlmcp_listener:accept(Accept, fun ranch_ssl:close/1).

-doc false.
-spec controlling_process(ssl:sslsocket(), pid()) -> ok | {error, atom()}.
controlling_process(Socket, Pid) -> ranch_ssl:controlling_process(Socket, Pid).

-doc false.
-spec recv_proxy_header(ssl:sslsocket(), timeout()) ->
    {ok, ranch_proxy_header:proxy_info()} | {error, atom()} | {error, protocol_error, atom()}.
recv_proxy_header(Socket, Timeout) -> ranch_ssl:recv_proxy_header(Socket, Timeout).

-doc false.
-spec handshake(ssl:sslsocket(), timeout()) ->
    {ok, ssl:sslsocket()} | {ok, ssl:sslsocket(), ssl:protocol_extensions()} | {error, term()}.
handshake(Socket, Timeout) -> ranch_ssl:handshake(Socket, Timeout).

-doc false.
-spec handshake(ssl:sslsocket(), ranch_ssl:opts(), timeout()) ->
    {ok, ssl:sslsocket()} | {ok, ssl:sslsocket(), ssl:protocol_extensions()} | {error, term()}.
handshake(Socket, Options, Timeout) -> ranch_ssl:handshake(Socket, Options, Timeout).

-doc false.
-spec peername(ssl:sslsocket()) -> {ok, address()} | {error, atom()}.
peername(Socket) -> ranch_ssl:peername(Socket).

-doc false.
-spec sockname(ssl:sslsocket()) -> {ok, address()} | {error, atom()}.
sockname(Socket) -> ranch_ssl:sockname(Socket).

-doc false.
-spec close(ssl:sslsocket()) -> ok.
close(Socket) -> ranch_ssl:close(Socket).

-doc false.
-spec cleanup(options()) -> ok.
cleanup(Options) -> ranch_ssl:cleanup(Options).

-doc false.
-spec format_error(term()) -> string().
format_error(Reason) -> ranch_ssl:format_error(Reason).
