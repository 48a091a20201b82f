-module(erlmcp_tcp_send).
-moduledoc """
Sends on a socket whose process keeps its turn. `gen_tcp:send/2` takes what it sends to the socket's
port with `erlang:port_command/3`, after which the runtime puts the calling process behind all
others that have something to do; and it watches the port, for each piece. A message to the port is
the same to the driver, and costs neither.

What the driver is told before the bytes, and what it says then, is a matter between it and OTP's
own `prim_inet`. So this is for the release of which it is known, as the node says that it is when
the module is loaded; others have `gen_tcp:send/2`.
""".

-export([send/2, keeps_its_turn/0]).

-on_load(look_at_release/0).

-define(KNOWN, "29").

look_at_release() ->
    persistent_term:put(?MODULE, erlang:system_info(otp_release) =:= ?KNOWN).

-doc "Whether this is more here than `gen_tcp:send/2`.".
-spec keeps_its_turn() -> boolean().
keeps_its_turn() -> persistent_term:get(?MODULE).

-doc "Sends as `gen_tcp:send/2` does. The calling process is the one that the socket belongs to.".
-spec send(inet:socket(), iodata()) -> ok | {error, closed | timeout | inet:posix()}.
send(Socket, Bytes) when is_port(Socket) ->
    case keeps_its_turn() of
        true -> sent(Socket, Bytes);
        false -> gen_tcp:send(Socket, Bytes)
    end;
send(Socket, Bytes) ->
    gen_tcp:send(Socket, Bytes).

sent(Socket, Bytes) ->
    Sending = make_ref(),
    ok = told(Socket, Sending, Bytes),
    receive
        {inet_reply, Socket, Status, Sending} -> Status
    after 0 ->
        Watch = monitor(port, Socket),
        Status = awaited(Socket, Sending, Bytes, Watch),
        true = demonitor(Watch, [flush]),
        Status
    end.

told(Socket, Sending, Bytes) ->
    Name = term_to_binary(Sending, [local]),
    Socket ! {self(), {command, [<<(byte_size(Name)):16>>, Name, Bytes]}},
    ok.

%% It is said when the client has taken of it, or has not in time, unless the socket is closed. And
%% while there is no room at all it is to be sent again when there is.
awaited(Socket, Sending, Bytes, Watch) ->
    receive
        {inet_reply, Socket, Status, Sending} ->
            Status;
        {inet_reply, Socket, Sending} ->
            receive
                {inet_reply, Socket, ok, Sending} ->
                    ok = told(Socket, Sending, Bytes),
                    awaited(Socket, Sending, Bytes, Watch);
                {'DOWN', Watch, port, Socket, _} ->
                    {error, closed}
            end;
        {'DOWN', Watch, port, Socket, _} ->
            {error, closed}
    end.
