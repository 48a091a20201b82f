-module(erlmcp_load_connection).
-moduledoc """
One connection of a load: what is sent on it, what comes, and which requests have no end yet. It has
no process of its own: `m:erlmcp_load_group` has many, and opens it, so that its socket is that
process'.

What became of a request goes into the account that comes with it. A connection that is lost says
so with `is_open/1`, and all its requests have an end then.
""".

-export([new/1, open/2, give/2, take/1, closed/2, ended/3]).
-export([key/1, os_pid/1, is_open/1, is_leaving/1, room/2, in_flight/1]).
-export([request/5, flush/4, heard/5, expired/4]).

-export_type([connection/0]).

-record(connection, {
    endpoint :: erlmcp_load_socket:endpoint(),
    socket = closed :: closed | erlmcp_load_socket:socket(),
    state = none :: erlmcp_load_wire:state(),
    sessions = {[], {}} :: erlmcp_load_session:sessions(),
    %% The socket has room for large replies.
    wide = false :: boolean(),
    %% The peer takes no more requests on this socket.
    closing = false :: boolean(),
    tag = 0 :: erlmcp_load_wire:tag(),
    pending = erlmcp_load_pending:new() :: erlmcp_load_pending:pending()
}).

-opaque connection() :: #connection{}.

-type settings() :: erlmcp_load_plan:settings().
-type tally() :: erlmcp_load_tally:tally().

-doc "A connection to there, that is to be opened.".
-spec new(erlmcp_load_socket:endpoint()) -> connection().
new(Endpoint) ->
    #connection{endpoint = Endpoint}.

-doc "Opens it, for the first time or anew. The calling process waits, and has the socket then.".
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

-doc "Gives an open one to a process that is to take it, and gives what came for it until then.".
-spec give(pid(), connection()) -> [Message :: term()].
give(To, #connection{socket = Socket}) ->
    erlmcp_load_socket:give(To, Socket).

-doc "Takes one that was given: what comes for it is a message to this process from now on.".
-spec take(connection()) -> [Message :: term()].
take(#connection{socket = Socket}) ->
    erlmcp_load_socket:take(Socket).

-doc "Closes a connection on which nothing is in flight, to be opened again.".
-spec closed(settings(), connection()) -> connection().
closed(#{counts := Counts}, #connection{socket = Socket} = Connection) ->
    ok = erlmcp_load_socket:close(Socket),
    ok = erlmcp_load_counts:add(Counts, connections, -1),
    Connection#connection{socket = closed}.

-doc "Ends it and its sessions, for which there is time until then.".
-spec ended(DeadlineMs :: integer(), settings(), connection()) -> ok.
ended(Deadline, Settings, #connection{socket = Socket, sessions = Sessions, state = State,
                                      tag = Tag, closing = Closing}) ->
    _ = [erlmcp_load_session:close(Deadline, Sessions, Socket, Settings, {State, Tag})
         || not Closing],
    erlmcp_load_socket:close(Socket).

-doc "What its messages have in them, see `erlmcp_load_socket:key/1`.".
-spec key(connection()) -> erlmcp_load_socket:key().
key(#connection{socket = Socket}) ->
    erlmcp_load_socket:key(Socket).

-doc "The number of the program that it is, or `none`.".
-spec os_pid(connection()) -> pos_integer() | none.
os_pid(#connection{socket = Socket}) ->
    erlmcp_load_socket:os_pid(Socket).

-doc "Whether it is open.".
-spec is_open(connection()) -> boolean().
is_open(#connection{socket = Socket}) ->
    Socket =/= closed.

-doc "Whether the peer takes no more requests on it.".
-spec is_leaving(connection()) -> boolean().
is_leaving(#connection{closing = Closing}) ->
    Closing.

-doc "How many more requests may be sent, where so many may be in flight.".
-spec room(Window :: pos_integer(), connection()) -> integer().
room(Window, #connection{socket = Socket, closing = false, pending = Pending})
  when Socket =/= closed, is_integer(Window) ->
    Window - erlmcp_load_pending:count(Pending);
room(_, _) ->
    0.

-doc "How many requests have no end yet.".
-spec in_flight(connection()) -> non_neg_integer().
in_flight(#connection{pending = Pending}) ->
    erlmcp_load_pending:count(Pending).

%% Sending.

-doc "The bytes of a request that was due then.".
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

-doc "Writes these bytes.".
-spec flush(iodata(), settings(), connection(), tally()) -> {connection(), tally()}.
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

-doc "A message of its socket came: what is to be sent for it, and what became of requests.".
-spec heard(Message :: term(), Now :: integer(), settings(), connection(), tally()) ->
    {ToSend :: iodata(), connection(), tally()}.
heard(Message, Now, Settings, #connection{socket = Socket} = Connection, Tally) ->
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
            {Read, Told} = happened(Events, Now, Counts, Connection#connection{state = Next},
                                    Tally),
            {ToSend, Read, Told};
        {error, Reason} ->
            nothing_to_send(unreadable(Reason, Now, Settings, Connection, Tally))
    end.

%% Whose reply that was, only the order tells.
unreadable(unasked_reply, _, #{counts := Counts} = Settings, Connection, Tally) ->
    dropped(closed, Settings, stray(Counts, Connection), Tally);
unreadable(Reason, Now, #{ordered := true} = Settings, Connection, Tally) ->
    Oldest = erlmcp_load_pending:oldest(Connection#connection.pending),
    {Rest, Told} = concluded(Oldest, {wrong, Reason}, Now, Connection, Tally),
    dropped(closed, Settings, Rest, Told);
unreadable(Reason, _, Settings, Connection, Tally) ->
    dropped(Reason, Settings, Connection, Tally).

happened([], _, _, Connection, Tally) ->
    {Connection, Tally};
happened([{reply, Tag, Status, Body} | Events], Now, Counts, Connection, Tally) ->
    {Asked, Others} = erlmcp_load_pending:take(Tag, Connection#connection.pending),
    Taken = Connection#connection{pending = Others},
    case Asked of
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
    {Rest, Told} = concluded(Tag, {failed, Reason}, Now, Connection, Tally),
    happened(Events, Now, Counts, Rest, Told);
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

%% Losing it.

lost(Reason, #{wire := Wire, counts := Counts} = Settings, Connection, Tally) ->
    ok = erlmcp_load_counts:add(Counts, lost, 1),
    %% A reply may have ended with it.
    {Rest, Told} = happened(Wire:ended(Connection#connection.state), now_us(), Counts, Connection,
                            Tally),
    dropped(Reason, Settings, Rest, Told).

%% Without the socket, no request that waits is answered.
dropped(Reason, Settings, Connection, Tally) ->
    #connection{pending = Pending} = Closed = closed(Settings, Connection),
    Now = now_us(),
    {Dues, None} = erlmcp_load_pending:clear(Pending),
    {Closed#connection{pending = None},
     lists:foldl(fun(Due, Sum) ->
                     erlmcp_load_tally:concluded({failed, Reason}, Due, Now, Sum)
                 end, Tally, Dues)}.

%% Requests whose time is over.

-doc "Gives up the requests whose time is over. Gives when the next one's will be.".
-spec expired(Now :: integer(), settings(), connection(), tally()) ->
    {Next :: integer() | none, connection(), tally()}.
expired(Now, #{ordered := Ordered} = Settings, #connection{pending = Pending} = Connection,
        Tally) ->
    case erlmcp_load_pending:overdue(Now, Pending) of
        {[], Next} ->
            {Next, Connection, Tally};
        {[Tag | _], _} when Ordered ->
            {Rest, Told} = concluded(Tag, {failed, timeout}, Now, Connection, Tally),
            {Dropped, All} = dropped(behind_timeout, Settings, Rest, Told),
            {none, Dropped, All};
        {[Tag | _], _} ->
            {Rest, Told} = abandoned(Tag, Now, Settings, Connection, Tally),
            expired(Now, Settings, Rest, Told)
    end.

abandoned(Tag, Now, #{wire := Wire} = Settings, Connection, Tally) ->
    #connection{pending = Pending, state = State} = Connection,
    {Outcome, Others} = erlmcp_load_pending:give_up(Tag, Pending),
    {Bytes, Next} = Wire:abandoned(Tag, State),
    {Rest, Told} = concluded(Tag, Outcome, Now,
                             Connection#connection{pending = Others, state = Next}, Tally),
    flush(Bytes, Settings, Rest, Told).

now_us() ->
    erlang:monotonic_time(microsecond).
