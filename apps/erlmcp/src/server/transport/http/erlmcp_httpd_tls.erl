-module(erlmcp_httpd_tls).
-moduledoc """
The beginning of an HTTP connection over TLS, in the connection's process: the handshake, with the
certificates that are current, and whose connection it is then. HTTP/2, which is agreed on by ALPN,
is cowboy's; HTTP/1.1, or nothing, is `m:erlmcp_httpd_http1`.
""".

-export([connection_process/4]).

-doc false.
-spec connection_process(pid(), erlmcp_httpd_connection:from(), module(), cowboy:opts()) ->
    {idle, fun()} | no_return().
connection_process(Parent, {Ref, _} = From, Transport, Options) ->
    {ok, Socket} = ranch:handshake(Ref, shown(Options)),
    _ = process_flag(trap_exit, true),
    case protocol(Socket) of
        erlmcp_httpd_http1 -> erlmcp_httpd_http1:init(Parent, From, Socket, Transport, Options);
        Cowboys -> Cowboys:init(Parent, Ref, Socket, Transport, undefined, Options)
    end.

shown(#{erlmcp_tls := Table}) -> erlmcp_tls_listener:current(Table);
shown(_) -> [].

protocol(Socket) ->
    case ssl:negotiated_protocol(Socket) of
        {ok, ~"h2"} -> erlmcp_httpd_http2;
        _ -> erlmcp_httpd_http1
    end.
