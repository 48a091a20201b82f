-module(erlmcp_tcp_accept).
-moduledoc """
The ranch transport of a listening socket without TLS. An accepted connection is served with
`ranch_tcp`. On Linux it costs about 40 system calls less than with `gen_tcp:accept/1`.

Internal.
""".

-export([listen/1, accept/2, controlling_process/2]).
-export([recv_proxy_header/2, handshake/2, peername/1, sockname/1, close/1, cleanup/1,
         format_error/1]).

-type socket() :: inet:socket().

-doc false.
-spec listen(ranch:transport_opts([gen_tcp:listen_option()])) ->
    {ok, socket()} | {error, atom()}.
listen(Options) -> ranch_tcp:listen(Options).

-doc false.
-spec accept(socket(), timeout()) -> {ok, socket()} | {error, atom()}.
accept(Listening, Timeout) ->
    erlmcp_listener:accept(fun() -> accepted(Listening, Timeout) end, fun ranch_tcp:close/1).

%% On Linux a socket inherits its options from the listening socket, in the kernel and in the
%% runtime's driver. `gen_tcp:accept/1` reads all of them from the listening socket and sets them
%% again. That is a quarter of the processor time of a new connection, and is left out here.
accepted(Listening, infinity) when is_port(Listening) ->
    case os:type() of
        {unix, linux} -> of_kind(inet_db:lookup_socket(Listening), Listening);
        _ -> gen_tcp:accept(Listening)
    end;
accepted(Listening, Timeout) ->
    gen_tcp:accept(Listening, Timeout).

of_kind({ok, Module}, Listening) ->
    maybe
        {ok, Ref} ?= prim_inet:async_accept(Listening, -1),
        receive
            {inet_async, Listening, Ref, {ok, Socket}} ->
                true = inet_db:register_socket(Socket, Module),
                {ok, Socket};
            {inet_async, Listening, Ref, {error, _} = Error} ->
                Error
        end
    end;
of_kind({error, _} = Closed, _) ->
    Closed.

%% The socket is passive, so no message from it is on its way to the calling process.
-doc false.
-spec controlling_process(socket(), pid()) -> ok | {error, atom()}.
controlling_process(Socket, Pid) when is_port(Socket) ->
    try erlang:port_connect(Socket, Pid) of
        true ->
            true = unlink(Socket),
            ok
    catch
        error:badarg -> {error, closed}
    end;
controlling_process(Socket, Pid) ->
    gen_tcp:controlling_process(Socket, Pid).

-doc false.
-spec recv_proxy_header(socket(), timeout()) ->
    {ok, ranch_proxy_header:proxy_info()} | {error, atom()} | {error, protocol_error, atom()}.
recv_proxy_header(Socket, Timeout) -> ranch_tcp:recv_proxy_header(Socket, Timeout).

-doc false.
-spec handshake(socket(), timeout()) -> {ok, socket()}.
handshake(Socket, Timeout) -> ranch_tcp:handshake(Socket, Timeout).

-doc false.
-spec peername(socket()) -> {ok, {inet:ip_address(), inet:port_number()}} | {error, atom()}.
peername(Socket) -> ranch_tcp:peername(Socket).

-doc false.
-spec sockname(socket()) -> {ok, {inet:ip_address(), inet:port_number()}} | {error, atom()}.
sockname(Socket) -> ranch_tcp:sockname(Socket).

-doc false.
-spec close(socket()) -> ok.
close(Socket) -> ranch_tcp:close(Socket).

-doc false.
-spec cleanup(ranch:transport_opts([gen_tcp:listen_option()])) -> ok.
cleanup(Options) -> ranch_tcp:cleanup(Options).

-doc false.
-spec format_error(inet:posix()) -> string().
format_error(Reason) -> ranch_tcp:format_error(Reason).
