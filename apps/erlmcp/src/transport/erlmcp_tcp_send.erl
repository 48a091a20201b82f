-module(erlmcp_tcp_send).
-moduledoc """
Sends on a socket whose process keeps its turn. `gen_tcp:send/2` takes what it sends to the socket's
port with `erlang:port_command/3`, after which the runtime puts the calling process behind all
others that have something to do; and it watches the port, for each piece. A message to the port is
the same to the driver, and costs neither.

What the driver is told before the bytes, and what it says then, is a matter between it and OTP's
own `prim_inet`. So this is for the release of which it is known, and others have `gen_tcp:send/2`.
""".

-export([send/2, keeps_its_turn/0]).

-if(?OTP_RELEASE =:= 29).
-define(KNOWN, true).
-else.
-define(KNOWN, false).
-endif.

-doc "Whether this is more here than `gen_tcp:send/2`.".
-spec keeps_its_turn() -> boolean().
keeps_its_turn() -> ?KNOWN.

-doc "Sends as `gen_tcp:send/2` does. The calling process is the one that the socket belongs to.".
-spec send(inet:socket(), iodata()) -> ok | {error, closed | timeout | inet:posix()}.
-if(?KNOWN).
send(Socket, Bytes) when is_port(Socket) ->
    Sending = make_ref(),
    ok = told(Socket, Sending, Bytes),
    receive
        {inet_reply, Socket, Status, Sending} -> Status
    after 0 ->
        Watch = monitor(port, Socket),
        Status = awaited(Socket, Sending, Bytes, Watch),
        true = demonitor(Watch, [flush]),
        Status
    end;
send(Socket, Bytes) ->
    gen_tcp:send(Socket, Bytes).

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
-else.
send(Socket, Bytes) ->
    gen_tcp:send(Socket, Bytes).
-endif.
