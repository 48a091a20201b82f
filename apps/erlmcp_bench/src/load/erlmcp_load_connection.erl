-module(erlmcp_load_connection).
-moduledoc """
The process of one connection of a load: sends requests when they are due, looks at each reply, and
opens the connection anew when it is lost.

In a closed loop a request is due when another one has ended. In an open loop that is what
`m:erlmcp_load_schedule` says, and its latency begins there, whether the connection was free then or
not.
""".

-export([start_link/2, go/4, renew/1, finish/1]).
-export([init/3]).

-record(connection, {
    run :: pid(),
    settings :: erlmcp_load_plan:settings(),
    endpoint :: erlmcp_load_socket:endpoint(),
    counts :: erlmcp_load_counts:counts(),
    tally :: erlmcp_load_tally:tally(),
    %% Whether nothing can be answered behind a request that is not.
    ordered :: boolean(),
    socket = closed :: closed | erlmcp_load_socket:socket(),
    state :: erlmcp_load_wire:state(),
    sessions = {[], {}} :: erlmcp_load_session:sessions(),
    %% The socket has room for large replies.
    wide = false :: boolean(),
    %% The peer takes no more requests on this socket.
    closing = false :: boolean(),
    pause = none :: none | pos_integer(),
    tag = 0 :: erlmcp_load_wire:tag(),
    pending = erlmcp_load_pending:new() :: erlmcp_load_pending:pending(),
    patience = none :: none | reference(),
    %% What was taken from the schedule and is not sent yet.
    claim = none :: none | integer(),
    alarm = none :: none | reference(),
    phase = waiting :: waiting | running | finishing,
    start = 0 :: integer(),
    until = 0 :: integer()
}).

%% Milliseconds before a connection is opened again, at first and at most.
-define(FIRST_PAUSE, 10).
-define(LONGEST_PAUSE, 1000).

-doc """
Starts it. After the first attempt it tells its starter `{Pid, {opened, OsPid}}`, with the number of
the program that it has started, or `none`; or `{Pid, {open_failed, Reason}}`. At its end it tells
it `{Pid, {finished, Totals}}`.
""".
-spec start_link(erlmcp_load_plan:settings(), Number :: non_neg_integer()) -> pid().
start_link(Settings, Number) ->
    spawn_link(?MODULE, init, [self(), Settings, Number]).

-doc "Begins then; what is due between the other times is measured, and nothing is due later.".
-spec go(pid(), Begin :: integer(), From :: integer(), Until :: integer()) -> ok.
go(Pid, Begin, From, Until) ->
    Pid ! {?MODULE, go, Begin, From, Until},
    ok.

-doc "Takes another request from the schedule in place of one that is not due yet.".
-spec renew(pid()) -> ok.
renew(Pid) ->
    Pid ! {?MODULE, renew},
    ok.

-doc "Sends nothing more, and ends when every request has an end.".
-spec finish(pid()) -> ok.
finish(Pid) ->
    Pid ! {?MODULE, finish},
    ok.

-doc false.
init(Run, #{counts := Counts, wire := Wire, wire_options := Options} = Settings, Number) ->
    %% Other loads of this node may have more to do than it can: they would keep this one from its
    %% beginning.
    _ = process_flag(priority, high),
    #{ordered := Ordered} = Wire:traits(),
    New = #connection{run = Run, settings = Settings, counts = Counts, ordered = Ordered,
                      tally = erlmcp_load_tally:new(Settings), state = Wire:new(Options),
                      endpoint = erlmcp_load_target:endpoint(Number, maps:get(way, Settings))},
    Attempt = open(New),
    _ = process_flag(priority, normal),
    case Attempt of
        {ok, Opened} ->
            Run ! {self(), {opened, erlmcp_load_socket:os_pid(Opened#connection.socket)}},
            loop(Opened);
        {error, Reason} ->
            Run ! {self(), {open_failed, Reason}},
            loop(waiting(New))
    end.

loop(#connection{phase = finishing, pending = Pending} = Connection) ->
    case erlmcp_load_pending:count(Pending) of
        0 -> ended(Connection);
        _ -> next(Connection)
    end;
loop(Connection) ->
    next(Connection).

next(#connection{socket = Socket} = Connection) ->
    receive
        {timeout, Alarm, due} when Alarm =:= Connection#connection.alarm ->
            loop(paced(Connection#connection{alarm = none}));
        {timeout, Patience, patience} when Patience =:= Connection#connection.patience ->
            loop(paced(expired(now_us(), Connection#connection{patience = none})));
        {timeout, _, reopen} when Socket =:= closed ->
            loop(reopened(Connection));
        {?MODULE, go, Begin, From, Until} ->
            Tally = erlmcp_load_tally:begins(From, Connection#connection.tally),
            loop(paced(Connection#connection{phase = running, start = Begin, until = Until,
                                             tally = Tally}));
        {?MODULE, renew} ->
            loop(paced(renewed(Connection)));
        {?MODULE, finish} ->
            loop(finishing(Connection));
        Message ->
            loop(heard(Message, Socket, Connection))
    end.

heard(_, closed, Connection) ->
    Connection;
heard(Message, Socket, Connection) ->
    case erlmcp_load_socket:message(Message, Socket) of
        {bytes, Bytes} ->
            received(Bytes, Connection);
        passive ->
            _ = erlmcp_load_socket:activate(Socket),
            Connection;
        {closed, Reason} ->
            lost(Reason, Connection);
        other ->
            Connection
    end.

renewed(#connection{claim = Claim, alarm = Alarm} = Connection) when Alarm =/= none ->
    _ = erlang:cancel_timer(Alarm),
    Connection#connection{alarm = none,
                          claim = case is_integer(Claim) andalso Claim =< now_us() of
                                      true -> Claim;
                                      false -> none
                                  end};
renewed(Connection) ->
    Connection.

finishing(#connection{claim = Claim, until = Until, tally = Tally} = Connection) ->
    Now = now_us(),
    _ = case Claim of
        _ when is_integer(Claim), Claim < Until, Claim =< Now ->
            erlmcp_load_tally:unsent(Claim, Tally);
        _ ->
            ok
    end,
    Connection#connection{phase = finishing, claim = none}.

ended(#connection{run = Run, socket = Socket, settings = Settings, sessions = Sessions,
                  state = State, tag = Tag, tally = Tally, closing = Closing}) ->
    _ = case Socket of
        closed ->
            ok;
        _ ->
            _ = [erlmcp_load_session:close(Sessions, Socket, Settings, State, Tag)
                 || not Closing],
            erlmcp_load_socket:close(Socket)
    end,
    Run ! {self(), {finished, erlmcp_load_tally:totals(Tally)}}.

%% Opening and losing.

open(#connection{endpoint = Endpoint, counts = Counts, settings = Settings} = Connection) ->
    case erlmcp_load_session:connect(Endpoint, Settings, Connection#connection.tag) of
        {error, Reason} ->
            ok = erlmcp_load_counts:add(Counts, open_failed, 1),
            {error, Reason};
        {ok, Socket, Sessions, State, Tag} ->
            ok = erlmcp_load_counts:add(Counts, opened, 1),
            ok = erlmcp_load_counts:add(Counts, connections, 1),
            {ok, Connection#connection{socket = Socket, sessions = Sessions, state = State,
                                       tag = Tag, pause = none, closing = false, wide = false,
                                       pending = erlmcp_load_pending:new()}}
    end.

reopened(#connection{phase = finishing} = Connection) ->
    Connection;
reopened(Connection) ->
    case open(Connection) of
        {ok, Opened} -> paced(Opened);
        {error, _} -> waiting(Connection)
    end.

waiting(#connection{pause = Pause} = Connection) ->
    Next = case Pause of
        none -> ?FIRST_PAUSE;
        _ -> min(2 * Pause, ?LONGEST_PAUSE)
    end,
    %% Not all at once, when all were lost at once.
    _ = erlang:start_timer(Next div 2 + rand:uniform(Next), self(), reopen),
    Connection#connection{socket = closed, pause = Next}.

lost(Reason, #connection{counts = Counts, settings = Settings, state = State} = Connection) ->
    #{wire := Wire} = Settings,
    ok = erlmcp_load_counts:add(Counts, lost, 1),
    %% A reply may have ended with it.
    dropped(Reason, happened(Wire:ended(State), now_us(), Connection)).

%% Without the socket, no request that waits is answered.
dropped(Reason, Connection) ->
    waiting(concluded_all({failed, Reason}, let_go(Connection))).

let_go(#connection{socket = Socket, counts = Counts} = Connection) ->
    ok = erlmcp_load_socket:close(Socket),
    ok = erlmcp_load_counts:add(Counts, connections, -1),
    Connection#connection{socket = closed}.

concluded_all(Outcome, #connection{pending = Pending, tally = Tally} = Connection) ->
    Now = now_us(),
    {Dues, None} = erlmcp_load_pending:clear(Pending),
    Concluded = lists:foldl(fun(Due, Sum) ->
                                erlmcp_load_tally:concluded(Outcome, Due, Now, Sum)
                            end, Tally, Dues),
    Connection#connection{pending = None, tally = Concluded}.

%% Replies.

received(Bytes, #connection{wide = false, socket = Socket} = Connection) ->
    case erlmcp_load_socket:widened(Bytes, Socket) of
        true -> received(Bytes, Connection#connection{wide = true});
        false -> read(Bytes, Connection)
    end;
received(Bytes, Connection) ->
    read(Bytes, Connection).

read(Bytes, #connection{counts = Counts, settings = Settings, state = State} = Connection) ->
    #{wire := Wire} = Settings,
    ok = erlmcp_load_counts:add(Counts, bytes_in, byte_size(Bytes)),
    case Wire:received(Bytes, State) of
        {ok, Events, ToSend, Next} ->
            Now = now_us(),
            paced(Now, ToSend, happened(Events, Now, Connection#connection{state = Next}));
        {error, Reason} ->
            unreadable(Reason, Connection)
    end.

%% Whose reply that was, only the order tells.
unreadable(unasked_reply, Connection) ->
    dropped(closed, stray(Connection));
unreadable(Reason, #connection{ordered = true, pending = Pending} = Connection) ->
    Oldest = erlmcp_load_pending:oldest(Pending),
    dropped(closed, concluded(Oldest, {wrong, Reason}, now_us(), Connection));
unreadable(Reason, Connection) ->
    dropped(Reason, Connection).

happened([], _, Connection) ->
    Connection;
happened([{reply, Tag, Status, Body} | Events], Now, Connection) ->
    #connection{pending = Pending, tally = Tally, counts = Counts} = Connection,
    {Asked, Others} = erlmcp_load_pending:take(Tag, Pending),
    Taken = Connection#connection{pending = Others},
    case Asked of
        {Kind, Due} ->
            {Verdict, Judged} = erlmcp_load_tally:judged(Kind, Tag, Status, Body, Tally),
            Concluded = erlmcp_load_tally:concluded(Verdict, Due, Now, Judged),
            happened(Events, Now, Taken#connection{tally = Concluded});
        late ->
            ok = erlmcp_load_counts:add(Counts, late, 1),
            happened(Events, Now, Taken);
        stray ->
            ok = erlmcp_load_counts:add(Counts, strays, 1),
            happened(Events, Now, Taken)
    end;
happened([{failed, Tag, Reason} | Events], Now, Connection) ->
    happened(Events, Now, concluded(Tag, {failed, Reason}, Now, Connection));
happened([{stray, _} | Events], Now, Connection) ->
    happened(Events, Now, stray(Connection));
happened([{message, _} | Events], Now, #connection{counts = Counts} = Connection) ->
    ok = erlmcp_load_counts:add(Counts, messages, 1),
    happened(Events, Now, Connection);
happened([{session, _, _} | Events], Now, Connection) ->
    happened(Events, Now, Connection);
happened([closing | Events], Now, Connection) ->
    happened(Events, Now, Connection#connection{closing = true}).

concluded(Tag, Outcome, Now, #connection{pending = Pending, tally = Tally} = Connection) ->
    case erlmcp_load_pending:drop(Tag, Pending) of
        {Due, Others} ->
            Connection#connection{pending = Others,
                                  tally = erlmcp_load_tally:concluded(Outcome, Due, Now, Tally)};
        none ->
            Connection
    end.

stray(#connection{counts = Counts, pending = Pending} = Connection) ->
    ok = erlmcp_load_counts:add(Counts, strays, 1),
    Connection#connection{pending = erlmcp_load_pending:stray(Pending)}.

%% Requests whose time is over.

expired(Now, #connection{pending = Pending} = Connection) ->
    case erlmcp_load_pending:overdue(Now, Pending) of
        {[], none} ->
            Connection;
        {[], Deadline} ->
            patient(Deadline, Connection);
        {[Tag | _], _} when Connection#connection.ordered ->
            dropped(behind_timeout, concluded(Tag, {failed, timeout}, Now, Connection));
        {[Tag | _], _} ->
            expired(Now, abandoned(Tag, given_up(Tag, Now, Connection)))
    end.

given_up(Tag, Now, #connection{pending = Pending} = Connection) ->
    {Outcome, Others} = erlmcp_load_pending:give_up(Tag, Pending),
    concluded(Tag, Outcome, Now, Connection#connection{pending = Others}).

abandoned(Tag, #connection{settings = #{wire := Wire}, state = State} = Connection) ->
    {Bytes, Next} = Wire:abandoned(Tag, State),
    flushed(Bytes, Connection#connection{state = Next}).

patient(Deadline, #connection{patience = none} = Connection) ->
    Timer = erlang:start_timer((Deadline + 999) div 1000, self(), patience, [{abs, true}]),
    Connection#connection{patience = Timer};
patient(_, Connection) ->
    Connection.

%% Sending what is due.

paced(Connection) ->
    paced(now_us(), [], Connection).

paced(_, _, #connection{socket = closed} = Connection) ->
    Connection;
paced(Now, Out, #connection{phase = running, closing = false} = Connection) ->
    #connection{settings = #{loop := Loop, window := Window}, pending = Pending} = Connection,
    due(Loop, Window - erlmcp_load_pending:count(Pending), Now, Out, Connection);
paced(_, Out, #connection{phase = running, pending = Pending} = Connection) ->
    case erlmcp_load_pending:count(Pending) of
        0 -> reopened(let_go(Connection));
        _ -> flushed(Out, Connection)
    end;
paced(_, Out, Connection) ->
    flushed(Out, Connection).

%% As many as there is room for in flight.
due(_, Room, _, Out, Connection) when Room =< 0 ->
    flushed(Out, Connection);
due(closed, _, Now, Out, #connection{start = Start} = Connection) when Now < Start ->
    flushed(Out, alarmed(Start, Connection));
due(closed, Room, Now, Out, #connection{until = Until} = Connection) when Now < Until ->
    {More, Sent} = sent(Now, Now, Out, Connection),
    due(closed, Room - 1, Now, More, Sent);
due({open, Schedule} = Loop, Room, Now, Out, #connection{claim = none} = Connection) ->
    Claim = erlmcp_load_schedule:next(Schedule),
    due(Loop, Room, Now, Out, Connection#connection{claim = Claim});
due({open, _}, _, Now, Out, #connection{claim = Due, until = Until} = Connection)
  when Now < Due, Due < Until ->
    flushed(Out, alarmed(Due, Connection));
due({open, _} = Loop, Room, Now, Out, #connection{claim = Due, until = Until} = Connection)
  when Due < Until ->
    #connection{settings = #{timeout_us := Timeout}, tally = Tally} = Connection,
    Free = Connection#connection{claim = none},
    case Now - Due > Timeout of
        true ->
            %% Who asked would have given up.
            ok = erlmcp_load_tally:unsent(Due, Tally),
            due(Loop, Room, Now, Out, Free);
        false ->
            {More, Sent} = sent(Due, Now, Out, Free),
            due(Loop, Room - 1, Now, More, Sent)
    end;
due(_, _, _, Out, Connection) ->
    flushed(Out, Connection).

alarmed(Due, #connection{alarm = none} = Connection) ->
    Timer = erlang:start_timer((Due + 999) div 1000, self(), due, [{abs, true}]),
    Connection#connection{alarm = Timer};
alarmed(_, Connection) ->
    Connection.

sent(Due, Now, Out, #connection{settings = #{wire := Wire, timeout_us := Timeout} = Settings,
                                sessions = {_, Sessions}, tag = Tag, pending = Pending,
                                state = State, tally = Tally} = Connection) ->
    Kind = erlmcp_load_plan:kind(Settings),
    Templates = element(Tag rem tuple_size(Sessions) + 1, Sessions),
    {Bytes, Next} = Wire:request(Tag, element(Kind, Templates), State),
    ok = erlmcp_load_tally:sent(Due, Now, Tally),
    Deadline = Now + Timeout,
    Added = erlmcp_load_pending:add(Tag, Kind, Due, Deadline, Pending),
    {[Out | Bytes],
     patient(Deadline, Connection#connection{pending = Added, tag = Tag + 1, state = Next})}.

flushed(Out, #connection{socket = Socket, counts = Counts} = Connection) ->
    case iolist_size(Out) of
        0 ->
            Connection;
        Size ->
            ok = erlmcp_load_counts:add(Counts, bytes_out, Size),
            case erlmcp_load_socket:send(Socket, Out) of
                ok -> Connection;
                {error, Reason} -> lost(Reason, Connection)
            end
    end.

now_us() ->
    erlang:monotonic_time(microsecond).
