-module(erlmcp_tcp_send).
-moduledoc """
Sends on a socket whose process keeps its turn. `gen_tcp:send/2` takes what it sends to the socket's
port with `erlang:port_command/3`, after which the runtime puts the calling process behind all
others that have something to do; and it watches the port, for each piece. A message to the port is
the same to the driver, and costs neither.

What the driver is told before the bytes, and what it says then, is a matter between it and OTP's
own `prim_inet`. So this is for the release of which it is known, as the node says that it is when
the module is loaded; others have `gen_tcp:send/2`.

Internal.
""".

-export([send/2, keeps_its_turn/0]).

-on_load(look_at_release/0).

-define(KNOWN, "29").

%% What a sending is called in the driver's reply, as a term and as the driver is told it: the bytes
%% of its external form, after how many they are. A reference, as `prim_inet` has, is made, encoded
%% and decoded for each. Nobody else's sending is called so, and a process has one at a time.
-define(SENDING, 1).
-define(SENDING_NAMED, <<3:16, 131, 97, ?SENDING>>).

look_at_release() ->
    persistent_term:put(?MODULE, erlang:system_info(otp_release) =:= ?KNOWN).

-doc "Returns `true` if this is more here than `gen_tcp:send/2`.".
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
    ok = send_command(Socket, Bytes),
    receive
        {inet_reply, Socket, Status, ?SENDING} -> Status
    after 0 ->
        Watch = monitor(port, Socket),
        Status = awaited(Socket, Bytes, Watch),
        true = demonitor(Watch, [flush]),
        Status
    end.

send_command(Socket, Bytes) ->
    Socket ! {self(), {command, [?SENDING_NAMED | Bytes]}},
    ok.

%% It is said when the client has taken of it, or has not in time, unless the socket is closed. And
%% while there is no room at all it is to be sent again when there is.
awaited(Socket, Bytes, Watch) ->
    receive
        {inet_reply, Socket, Status, ?SENDING} ->
            Status;
        {inet_reply, Socket, ?SENDING} ->
            receive
                {inet_reply, Socket, ok, ?SENDING} ->
                    ok = send_command(Socket, Bytes),
                    awaited(Socket, Bytes, Watch);
                {'DOWN', Watch, port, Socket, _} ->
                    {error, closed}
            end;
        {'DOWN', Watch, port, Socket, _} ->
            {error, closed}
    end.
