-module(erlmcp_tcp_send).
-moduledoc """
Sends on a socket without giving up the scheduler. `gen_tcp:send/2` uses `erlang:port_command/3`,
after which the runtime puts the calling process behind all others that are ready to run. It also
monitors the port for each piece. A message to the port does the same without both.

The form of that message, and of the driver's reply, are a private matter of OTP's `prim_inet`. So
this is used in the one release for which they are known. Other releases use `gen_tcp:send/2`. The
release is looked up when the module is loaded.

Internal.
""".

-export([send/2, keeps_its_turn/0]).

-on_load(look_at_release/0).

-define(KNOWN, "29").

%% The name of a sending in the driver's reply, as a term, and as the driver takes it (its external
%% form, after its length). `prim_inet` makes, encodes and decodes a reference for each sending. A
%% constant is enough: a process has one sending at a time, and `prim_inet` has no such name.
-define(SENDING, 1).
-define(SENDING_NAMED, <<3:16, 131, 97, ?SENDING>>).

look_at_release() ->
    persistent_term:put(?MODULE, erlang:system_info(otp_release) =:= ?KNOWN).

-doc "Returns `true` if the calling process keeps its turn here, and `gen_tcp:send/2` is not used.".
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

%% The driver replies when the client has taken bytes, or has not in time, unless the socket is
%% closed. If it had no room at all, it says when to send again.
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
