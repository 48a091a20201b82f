-module(erlmcp_load_connection).
-moduledoc """
A connection of a load, with the requests that have not ended. It has no process of its own: a group
(`m:erlmcp_load_group`) owns many connections and their sockets.

A function that gets a tally counts the outcomes of requests there. When a connection is lost, all
of its requests get an outcome, and `is_open/1` returns `false`.
""".

-export([new/1, open/2, give/2, take/1, closed/2, ended/3]).
-export([key/1, os_pid/1, is_open/1, is_leaving/1, room/2, in_flight/1]).
-export([request/5, flush/4, handle/5, expired/4]).

-export_type([connection/0]).

-record(connection, {
    endpoint :: erlmcp_load_socket:endpoint(),
    socket = closed :: closed | erlmcp_load_socket:socket(),
    state = none :: erlmcp_load_wire:state(),
    sessions = {[], {}} :: erlmcp_load_session:sessions(),
    %% Whether the socket has a large buffer.
    wide = false :: boolean(),
    %% The peer takes no more requests on this socket.
    closing = false :: boolean(),
    tag = 0 :: erlmcp_load_wire:tag(),
    pending = erlmcp_load_pending:new() :: erlmcp_load_pending:pending()
}).

-opaque connection() :: #connection{}.

-type settings() :: erlmcp_load_plan:settings().
-type tally() :: erlmcp_load_tally:tally().

-doc "Returns a connection to `Endpoint` that is not open yet.".
-spec new(Endpoint :: erlmcp_load_socket:endpoint()) -> connection().
new(Endpoint) ->
    #connection{endpoint = Endpoint}.

-doc """
Opens a connection and its sessions, for the first time or again, and counts the attempt. The
calling process waits meanwhile, and then owns the socket. The errors are those of
`erlmcp_load_session:connect/3`.
""".
-spec open(settings(), connection()) -> {ok, connection()} | {error, Reason :: term()}.
open(#{counts := Counts} = Settings, #connection{endpoint = Endpoint, tag = Tag}) ->
    case erlmcp_load_session:connect(Endpoint, Settings, Tag) of
        {error, Reason} ->
            ok = erlmcp_load_counts:add(Counts, open_failed, 1),
            {error, Reason};
        {ok, Socket, Sessions, State, Next} ->
            ok = erlmcp_load_counts:add(Counts, opened, 1),
            ok = erlmcp_load_counts:add(Counts, connections, 1),
            {ok, #connection{endpoint = Endpoint, socket = Socket, sessions = Sessions,
                             state = State, tag = Next}}
    end.

-doc """
Gives an open connection to the process `To`, which must then call `take/1`. Returns the messages of
the connection that the calling process had already received. `To` must handle them before all later
ones.
""".
-spec give(To :: pid(), connection()) -> [Message :: term()].
give(To, #connection{socket = Socket}) ->
    erlmcp_load_socket:give(To, Socket).

-doc """
Takes a connection that `give/2` gave to the calling process. From now on, the messages of the
connection come to this process. If the connection is already closed, returns a message that says
that it is closed, and otherwise an empty list.
""".
-spec take(connection()) -> [Message :: term()].
take(#connection{socket = Socket}) ->
    erlmcp_load_socket:take(Socket).

-doc """
Closes an open connection that has no requests in flight, and counts it as no longer open. Returns
the connection for a later `open/2`.
""".
-spec closed(settings(), connection()) -> connection().
closed(#{counts := Counts}, #connection{socket = Socket} = Connection) ->
    ok = erlmcp_load_socket:close(Socket),
    ok = erlmcp_load_counts:add(Counts, connections, -1),
    Connection#connection{socket = closed}.

-doc """
Ends the sessions of a connection, until `DeadlineMs` at the latest, in monotonic milliseconds. Then
closes the connection. The sessions are not ended if the peer takes no more requests.
""".
-spec ended(DeadlineMs :: integer(), settings(), connection()) -> ok.
ended(Deadline, Settings, #connection{socket = Socket, sessions = Sessions, state = State,
                                      tag = Tag, closing = Closing} = Connection) ->
    _ = [erlmcp_load_session:close(Deadline, Sessions, Socket, Settings, {State, Tag})
         || not Closing],
    _ = closed(Settings, Connection),
    ok.

-doc "Returns the key that the messages of an open connection carry (`erlmcp_load_socket:key/1`).".
-spec key(connection()) -> erlmcp_load_socket:key().
key(#connection{socket = Socket}) ->
    erlmcp_load_socket:key(Socket).

-doc """
Returns the operating system's id of the program that was started for an open connection, or `none`
for a socket.
""".
-spec os_pid(connection()) -> pos_integer() | none.
os_pid(#connection{socket = Socket}) ->
    erlmcp_load_socket:os_pid(Socket).

-doc "Returns `true` if the connection is open.".
-spec is_open(connection()) -> boolean().
is_open(#connection{socket = Socket}) ->
    Socket =/= closed.

-doc "Returns `true` if the peer takes no more requests on this connection.".
-spec is_leaving(connection()) -> boolean().
is_leaving(#connection{closing = Closing}) ->
    Closing.

-doc """
Returns how many more requests may be sent now, if at most `Window` may be in flight. The number is
0 if the connection is closed, or if the peer takes no more requests. The number is negative if more
than `Window` requests are in flight.
""".
-spec room(Window :: pos_integer(), connection()) -> integer().
room(Window, #connection{socket = Socket, closing = false, pending = Pending})
  when Socket =/= closed, is_integer(Window) ->
    Window - erlmcp_load_pending:count(Pending);
room(_, _) ->
    0.

-doc "Returns how many requests of the connection have not ended.".
-spec in_flight(connection()) -> non_neg_integer().
in_flight(#connection{pending = Pending}) ->
    erlmcp_load_pending:count(Pending).

%% Sending.

-doc """
Adds a request of a random kind that was due at `Due` and is sent at `Now`, in monotonic
microseconds. Counts it as sent, and returns its bytes for `flush/4`.
""".
-spec request(Due :: integer(), Now :: integer(), settings(), connection(), tally()) ->
    {iodata(), connection()}.
request(Due, Now, Settings, Connection, Tally) ->
    #{wire := Wire, timeout_us := Timeout} = Settings,
    #connection{sessions = {_, Sessions}, tag = Tag, pending = Pending, state = State} = Connection,
    Kind = erlmcp_load_plan:kind(Settings),
    Templates = element(Tag rem tuple_size(Sessions) + 1, Sessions),
    {Bytes, Next} = Wire:request(Tag, element(Kind, Templates), State),
    ok = erlmcp_load_tally:sent(Due, Now, Tally),
    Added = erlmcp_load_pending:add(Tag, Kind, Due, Now + Timeout, Pending),
    {Bytes, Connection#connection{pending = Added, tag = Tag + 1, state = Next}}.

-doc """
Writes the bytes `Out` to the socket of an open connection, and counts them. If the socket returns
an error, the connection is lost.
""".
-spec flush(Out :: iodata(), settings(), connection(), tally()) -> {connection(), tally()}.
flush(Out, #{counts := Counts} = Settings, #connection{socket = Socket} = Connection, Tally) ->
    case iolist_size(Out) of
        0 ->
            {Connection, Tally};
        Size ->
            ok = erlmcp_load_counts:add(Counts, bytes_out, Size),
            case erlmcp_load_socket:send(Socket, Out) of
                ok -> {Connection, Tally};
                {error, Reason} -> lost(Reason, Settings, Connection, Tally)
            end
    end.

%% Receiving.

-doc """
Handles a message of the mailbox at `Now`, in monotonic microseconds. Returns the bytes that
`flush/4` must send in reply. A message that the connection's socket did not send changes nothing.
""".
-spec handle(Message :: term(), Now :: integer(), settings(), connection(), tally()) ->
    {ToSend :: iodata(), connection(), tally()}.
handle(Message, Now, Settings, #connection{socket = Socket} = Connection, Tally) ->
    case erlmcp_load_socket:message(Message, Socket) of
        {bytes, Bytes} ->
            received(Bytes, Now, Settings, widened(Bytes, Connection), Tally);
        passive ->
            _ = erlmcp_load_socket:activate(Socket),
            {[], Connection, Tally};
        {closed, Reason} ->
            nothing_to_send(lost(Reason, Settings, Connection, Tally));
        other ->
            {[], Connection, Tally}
    end.

nothing_to_send({Connection, Tally}) -> {[], Connection, Tally}.

widened(_, #connection{wide = true} = Connection) ->
    Connection;
widened(Bytes, #connection{socket = Socket} = Connection) ->
    case erlmcp_load_socket:widened(Bytes, Socket) of
        true -> Connection#connection{wide = true};
        false -> Connection
    end.

received(Bytes, Now, #{wire := Wire, counts := Counts} = Settings, Connection, Tally) ->
    #connection{state = State} = Connection,
    ok = erlmcp_load_counts:add(Counts, bytes_in, byte_size(Bytes)),
    case Wire:received(Bytes, State) of
        {ok, Events, ToSend, Next} ->
            {Read, Counted} = happened(Events, Now, Counts,
                                       Connection#connection{state = Next}, Tally),
            {ToSend, Read, Counted};
        {error, Reason, Events} ->
            {Read, Counted} = happened(Events, Now, Counts, Connection, Tally),
            nothing_to_send(unreadable(Reason, Now, Settings, Read, Counted))
    end.

%% Only the order of replies tells which request this one belongs to.
unreadable(unasked_reply, _, #{counts := Counts} = Settings, Connection, Tally) ->
    dropped(closed, Settings, stray(Counts, Connection), Tally);
unreadable(Reason, Now, #{ordered := true} = Settings, Connection, Tally) ->
    Oldest = erlmcp_load_pending:oldest(Connection#connection.pending),
    {Rest, Counted} = concluded(Oldest, {wrong, Reason}, Now, Connection, Tally),
    dropped(closed, Settings, Rest, Counted);
unreadable(Reason, _, Settings, Connection, Tally) ->
    dropped(Reason, Settings, Connection, Tally).

happened([], _, _, Connection, Tally) ->
    {Connection, Tally};
happened([{reply, Tag, Status, Body} | Events], Now, Counts, Connection, Tally) ->
    {Found, Others} = erlmcp_load_pending:take(Tag, Connection#connection.pending),
    Taken = Connection#connection{pending = Others},
    case Found of
        {Kind, Due} ->
            {Verdict, Judged} = erlmcp_load_tally:judged(Kind, Tag, Status, Body, Tally),
            happened(Events, Now, Counts, Taken,
                     erlmcp_load_tally:concluded(Verdict, Due, Now, Judged));
        late ->
            ok = erlmcp_load_counts:add(Counts, late, 1),
            happened(Events, Now, Counts, Taken, Tally);
        stray ->
            ok = erlmcp_load_counts:add(Counts, strays, 1),
            happened(Events, Now, Counts, Taken, Tally)
    end;
happened([{failed, Tag, Reason} | Events], Now, Counts, Connection, Tally) ->
    {Rest, Counted} = concluded(Tag, {failed, Reason}, Now, Connection, Tally),
    happened(Events, Now, Counts, Rest, Counted);
happened([{stray, _} | Events], Now, Counts, Connection, Tally) ->
    happened(Events, Now, Counts, stray(Counts, Connection), Tally);
happened([{message, _} | Events], Now, Counts, Connection, Tally) ->
    ok = erlmcp_load_counts:add(Counts, messages, 1),
    happened(Events, Now, Counts, Connection, Tally);
happened([{session, _, _} | Events], Now, Counts, Connection, Tally) ->
    happened(Events, Now, Counts, Connection, Tally);
happened([closing | Events], Now, Counts, Connection, Tally) ->
    happened(Events, Now, Counts, Connection#connection{closing = true}, Tally).

concluded(Tag, Outcome, Now, #connection{pending = Pending} = Connection, Tally) ->
    case erlmcp_load_pending:drop(Tag, Pending) of
        {Due, Others} ->
            {Connection#connection{pending = Others},
             erlmcp_load_tally:concluded(Outcome, Due, Now, Tally)};
        none ->
            {Connection, Tally}
    end.

stray(Counts, #connection{pending = Pending} = Connection) ->
    ok = erlmcp_load_counts:add(Counts, strays, 1),
    Connection#connection{pending = erlmcp_load_pending:stray(Pending)}.

%% Losing the connection.

lost(Reason, #{wire := Wire, counts := Counts} = Settings, Connection, Tally) ->
    ok = erlmcp_load_counts:add(Counts, lost, 1),
    %% The end of the stream may complete a reply.
    Events = Wire:ended(Connection#connection.state),
    {Rest, Counted} = happened(Events, now_us(), Counts, Connection, Tally),
    dropped(Reason, Settings, Rest, Counted).

%% Without the socket, no waiting request is answered.
dropped(Reason, Settings, Connection, Tally) ->
    #connection{pending = Pending} = Closed = closed(Settings, Connection),
    Now = now_us(),
    {Dues, None} = erlmcp_load_pending:clear(Pending),
    {Closed#connection{pending = None},
     lists:foldl(fun(Due, Sum) ->
                     erlmcp_load_tally:concluded({failed, Reason}, Due, Now, Sum)
                 end, Tally, Dues)}.

%% Requests that time out.

-doc """
Gives up the requests that timed out by `Now`. Returns the deadline of the request that times out
next, or `none` if no request waits. Times are in monotonic microseconds.

If replies are ordered, the first timeout closes the connection, and the other requests of the
connection fail with `behind_timeout`. Otherwise a timeout does not close the connection, and the
bytes of the wire's `abandoned/2` are written.
""".
-spec expired(Now :: integer(), settings(), connection(), tally()) ->
    {Next :: integer() | none, connection(), tally()}.
expired(Now, #{ordered := Ordered} = Settings, #connection{pending = Pending} = Connection,
        Tally) ->
    case erlmcp_load_pending:overdue(Now, Pending) of
        {[], Next} ->
            {Next, Connection, Tally};
        {[Tag | _], _} when Ordered ->
            {Rest, Counted} = concluded(Tag, {failed, timeout}, Now, Connection, Tally),
            {Dropped, All} = dropped(behind_timeout, Settings, Rest, Counted),
            {none, Dropped, All};
        {[Tag | _], _} ->
            {Rest, Counted} = abandoned(Tag, Now, Settings, Connection, Tally),
            expired(Now, Settings, Rest, Counted)
    end.

abandoned(Tag, Now, #{wire := Wire} = Settings, Connection, Tally) ->
    #connection{pending = Pending, state = State} = Connection,
    {Outcome, Others} = erlmcp_load_pending:give_up(Tag, Pending),
    {Bytes, Next} = Wire:abandoned(Tag, State),
    {Rest, Counted} = concluded(Tag, Outcome, Now,
                             Connection#connection{pending = Others, state = Next}, Tally),
    flush(Bytes, Settings, Rest, Counted).

now_us() ->
    erlang:monotonic_time(microsecond).
