-module(erlmcp_httpc_gun_bound).
-moduledoc """
Bounds the memory of a gun connection's process. Some releases of gun buffer headers, and requests
that the server does not read, without a bound. Gun calls this event handler in that process. The
handler also passes the address that was reached to a fun of the pool.

Internal.
""".

-behaviour(gun_event).

-export([init/2]).
-export([domain_lookup_start/2, domain_lookup_end/2, connect_start/2, connect_end/2,
         tls_handshake_start/2, tls_handshake_end/2, request_start/2, request_headers/2,
         request_end/2, push_promise_start/2, push_promise_end/2, response_start/2,
         response_inform/2, response_headers/2, response_trailers/2, response_end/2,
         ws_upgrade/2, ws_recv_frame_start/2, ws_recv_frame_header/2, ws_recv_frame_end/2,
         ws_send_frame_start/2, ws_send_frame_end/2, protocol_changed/2, origin_changed/2,
         cancel/2, disconnect/2, terminate/2]).

-doc """
Bounds the memory of the calling process to `Bytes`. If the process takes more, it is killed, and no
report is logged. Since OTP 28, binaries outside of its heap count, too. Returns the given fun as
the handler's state. The handler calls this fun with the address that gun has connected to.
""".
-spec init(gun_event:init_event(),
           {Bytes :: pos_integer(), erlmcp_httpc_pool_connections:reached()}) ->
    erlmcp_httpc_pool_connections:reached().
init(_, {Bytes, Reached}) ->
    ok = erlmcp_memory_bound:set(Bytes, false),
    Reached.

-doc false.
domain_lookup_start(_, State) -> State.
-doc false.
domain_lookup_end(_, State) -> State.
-doc false.
connect_start(_, State) -> State.
-doc false.
connect_end(#{socket := Socket}, Reached) ->
    maybe
        {ok, {Ip, _}} ?= inet:peername(Socket),
        ok = Reached(Ip)
    end,
    Reached;
connect_end(_, State) -> State.
-doc false.
tls_handshake_start(_, State) -> State.
-doc false.
tls_handshake_end(_, State) -> State.
-doc false.
request_start(_, State) -> State.
-doc false.
request_headers(_, State) -> State.
-doc false.
request_end(_, State) -> State.
-doc false.
push_promise_start(_, State) -> State.
-doc false.
push_promise_end(_, State) -> State.
-doc false.
response_start(_, State) -> State.
-doc false.
response_inform(_, State) -> State.
-doc false.
response_headers(_, State) -> State.
-doc false.
response_trailers(_, State) -> State.
-doc false.
response_end(_, State) -> State.
-doc false.
ws_upgrade(_, State) -> State.
-doc false.
ws_recv_frame_start(_, State) -> State.
-doc false.
ws_recv_frame_header(_, State) -> State.
-doc false.
ws_recv_frame_end(_, State) -> State.
-doc false.
ws_send_frame_start(_, State) -> State.
-doc false.
ws_send_frame_end(_, State) -> State.
-doc false.
protocol_changed(_, State) -> State.
-doc false.
origin_changed(_, State) -> State.
-doc false.
cancel(_, State) -> State.
-doc false.
disconnect(_, State) -> State.
-doc false.
terminate(_, State) -> State.
