-module(erlmcp_tcp_send).
-moduledoc """
Sends on a socket without giving up the scheduler. After `gen_tcp:send/2` the calling process is
behind all others that are ready to run. The messages that are used in its place have a form that is
internal to OTP's `prim_inet`. So they are used only in the one release for which it is known.

Internal.
""".

-export([send/2, keeps_its_turn/0]).

-on_load(look_at_release/0).

%% `gen_tcp:send/2` uses `erlang:port_command/3`, after which the runtime puts the calling process
%% behind all others, and monitors the port for each piece. A message to the port sends the bytes
%% without the first effect, and without the second one if the driver replies at once. The release
%% is looked up when the module is loaded.
-define(KNOWN, "29").

%% The tag of a send command, which the driver returns in its reply: as a term, and in the form that
%% the driver needs (its length and its external term format). `prim_inet` makes a new reference for
%% each send. A constant is enough: a process has one send at a time, and `prim_inet` uses
%% references.
-define(SENDING, 1).
-define(SENDING_NAMED, <<3:16, 131, 97, ?SENDING>>).

look_at_release() ->
    persistent_term:put(?MODULE, erlang:system_info(otp_release) =:= ?KNOWN).

-doc "Returns `true` if `send/2` keeps the scheduler, for a socket that is a port.".
-spec keeps_its_turn() -> boolean().
keeps_its_turn() -> persistent_term:get(?MODULE).

-doc "Sends as `gen_tcp:send/2` does. The calling process must be the owner of the socket.".
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

%% Waits for the driver's reply: it has accepted the bytes, or the time-out has passed. If it had no
%% room at all, it says when to send again. A closed socket does not reply.
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
