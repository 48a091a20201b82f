-module(erlmcp_load_group).
-moduledoc """
A process that owns some of a load's connections: it sends requests on them when they are due, and
passes them their messages. In a closed loop a request is due when another one has ended, in an open
loop when `m:erlmcp_load_schedule` says so. It goes to the free connection that has waited longest.

Opening a connection waits for the peer, so a group with several connections leaves that to other
processes. A lost connection is opened again by a group that has no other one. A peer that leaves a
mebibyte unread delays its whole group.
""".

-export([start_link/2, reopen/2, warm/2, go/4, renew/1, finish/1]).
-export([init/4]).

-record(group, {
    run :: pid(),
    settings :: erlmcp_load_plan:settings(),
    tally :: erlmcp_load_tally:tally(),
    turns :: erlmcp_load_turns:turns(),
    %% Connections that are not open.
    closed = [] :: [closed()],
    %% Whether the group has a single connection.
    alone :: boolean(),
    timeout = none :: none | reference(),
    %% The due time that was taken from the schedule and is not sent yet.
    claim = none :: none | integer(),
    alarm = none :: none | reference(),
    phase = waiting :: waiting | running | finishing,
    start = 0 :: integer(),
    %% The settings after the warm-up, if the warm-up uses others.
    later = none :: none | settings(),
    %% `infinity` until the end of the load is known.
    until = 0 :: integer() | infinity
}).

-type settings() :: erlmcp_load_plan:settings().

-doc """
A connection that is not open, with the milliseconds of the last pause before an attempt to open it.
`none` stands for no pause so far, and `now` for a connection that must be opened without a pause.
""".
-opaque closed() :: {erlmcp_load_connection:connection(), none | now | pos_integer()}.

-export_type([closed/0]).

%% Milliseconds before a connection is opened again: the first pause, the longest, and the time to
%% end all sessions.
-define(FIRST_PAUSE, 10).
-define(LONGEST_PAUSE, 1000).
-define(GOODBYE_MS, 1000).
%% Words of the initial heap for each connection, for the heap and for received binaries, and the
%% maximum of either. The data about thousands of connections survives most collections. A large
%% heap is collected by a separate thread, which must first get a processor; meanwhile the group
%% stands still. A large initial heap reduces hundreds of collections a second to a few.
-define(WORDS, 600).
-define(MOST_WORDS, 8_000_000).
%% How many connections of a group are opened at once.
-define(AT_ONCE, 64).

-doc """
Starts a group with a connection to each of `Endpoints`. The group is linked to the calling process.

The group `Pid` sends the calling process:

- `{Pid, {opened, OsPid}}` or `{Pid, {open_failed, Reason}}` after the first attempt to open each
  connection. `OsPid` is the operating system's id of a started program, or `none`.
- `{Pid, {closed, Closed}}` for a connection that another group must open (`reopen/2`).
- `{Pid, {finished, Course}}` at the end of the group.
""".
-spec start_link(settings(), Endpoints :: [erlmcp_load_socket:endpoint(), ...]) -> pid().
start_link(Settings, Endpoints) ->
    New = [erlmcp_load_connection:new(Endpoint) || Endpoint <- Endpoints],
    Words = min(?MOST_WORDS, length(New) * ?WORDS),
    case spawn_opt(?MODULE, init, [self(), Settings, open, New],
                   [link, {min_heap_size, Words}, {min_bin_vheap_size, Words}]) of
        %% Only a spawn with a monitor returns a tuple.
        Pid when is_pid(Pid) -> Pid
    end.

-doc """
Starts a group with a single connection, which is that of a message `closed`. The group is linked to
the calling process, and sends it only the message `finished`.
""".
-spec reopen(settings(), closed()) -> pid().
reopen(Settings, Closed) ->
    spawn_link(?MODULE, init, [self(), Settings, reopen, [Closed]]).

-doc """
Starts the warm-up that measures the server's capacity, at `Begin` in monotonic microseconds. The
warm-up is a closed loop until `go/4`. There is at most one request in flight on each connection. At
most as many connections as `callers` of the settings have a request in flight at once.
""".
-spec warm(pid(), Begin :: integer()) -> ok.
warm(Pid, Begin) ->
    Pid ! {?MODULE, warm, Begin},
    ok.

-doc """
Starts the load at `Begin`. Requests that are due from `From` on are measured, and none is due from
`Until` on. Times are in monotonic microseconds.
""".
-spec go(pid(), Begin :: integer(), From :: integer(), Until :: integer()) -> ok.
go(Pid, Begin, From, Until) ->
    Pid ! {?MODULE, go, Begin, From, Until},
    ok.

-doc """
Makes the group take its due time from the schedule anew, after a change of the rate. The group
drops the due time that it has taken, unless this time has already come.
""".
-spec renew(pid()) -> ok.
renew(Pid) ->
    Pid ! {?MODULE, renew},
    ok.

-doc "Makes the group stop sending, and end when every request has an outcome.".
-spec finish(pid()) -> ok.
finish(Pid) ->
    Pid ! {?MODULE, finish},
    ok.

-doc false.
init(Run, Settings, reopen, [Closed]) ->
    loop(again(Closed, new(Run, Settings, true)));
init(Run, Settings, open, [Alone]) ->
    %% Other loads of this node may be busy, and would delay the opening of this one.
    _ = process_flag(priority, high),
    Opened = opened(Alone, Settings, self()),
    _ = process_flag(priority, normal),
    loop(taken(Opened, new(Run, Settings, true)));
init(Run, Settings, open, New) ->
    ok = open_all((length(New) + ?AT_ONCE - 1) div ?AT_ONCE, New, Settings, self()),
    loop(new(Run, Settings, false)).

new(Run, #{window := Window} = Settings, Alone) ->
    #group{run = Run, settings = Settings, alone = Alone, tally = erlmcp_load_tally:new(Settings),
           turns = erlmcp_load_turns:new(Window, all)}.

%% Opens connections for the group in several processes, which report each of them.
open_all(_, [], _, _) ->
    ok;
open_all(Each, New, Settings, Group) ->
    {Own, Others} = lists:split(min(Each, length(New)), New),
    %% Other loads of this node may be busy, and would delay the opening of this one.
    _ = spawn_opt(fun() ->
        lists:foreach(fun(One) -> Group ! {?MODULE, opener, opened(One, Settings, Group)} end, Own)
    end, [link, {priority, high}]),
    open_all(Each, Others, Settings, Group).

%% An open connection with the messages that came for it, or one that failed to open, and why.
opened(New, Settings, Group) ->
    case erlmcp_load_connection:open(Settings, New) of
        {ok, Connection} -> {opened, Connection, erlmcp_load_connection:give(Group, Connection)};
        {error, Reason} -> {open_failed, New, Reason}
    end.

taken({opened, Connection, Came}, #group{run = Run} = Group) ->
    Key = erlmcp_load_connection:key(Connection),
    Run ! {self(), {opened, erlmcp_load_connection:os_pid(Connection)}},
    lists:foldl(fun(Message, Sum) -> handle(Message, Key, Sum) end, added(Connection, Group),
                Came ++ erlmcp_load_connection:take(Connection));
taken({open_failed, New, Reason}, #group{run = Run} = Group) ->
    Run ! {self(), {open_failed, Reason}},
    without({New, none}, Group).

added(Connection, #group{turns = Turns} = Group) ->
    %% The server may already be closing the connection.
    kept(erlmcp_load_connection:key(Connection), Connection,
         Group#group{turns = erlmcp_load_turns:added(Connection, Turns)}).

loop(#group{phase = finishing, turns = Turns} = Group) ->
    case erlmcp_load_turns:is_idle(Turns) of
        true -> ended(Group);
        false -> next(Group)
    end;
loop(Group) ->
    next(Group).

next(Group) ->
    receive
        {timeout, Alarm, due} when Alarm =:= Group#group.alarm ->
            loop(sending(Group#group{alarm = none}));
        {timeout, Timer, expired} when Timer =:= Group#group.timeout ->
            loop(sending(swept(Group#group{timeout = none})));
        {timeout, _, reopen} ->
            loop(sending(reopened(Group)));
        {?MODULE, opener, Opened} ->
            loop(taken(Opened, Group));
        {?MODULE, warm, Begin} ->
            loop(sending(warming(Begin, Group)));
        {?MODULE, go, Begin, From, Until} ->
            loop(sending(begun(Begin, From, Until, Group)));
        {?MODULE, renew} ->
            loop(sending(renewed(Group)));
        {?MODULE, finish} ->
            loop(finishing(Group));
        Message ->
            loop(handle(Message, erlmcp_load_socket:source(Message), Group))
    end.

begun(Begin, From, Until, #group{later = none} = Group) ->
    running(Begin, Until, measuring(From, From, Group));
begun(Begin, From, Until, #group{later = #{window := Window} = Settings, turns = Turns} = Group) ->
    %% A request of the warm-up is never measured, even if this message comes late.
    Measuring = measuring(max(From, now_us() + 1), From, Group#group{settings = Settings}),
    running(Begin, Until, Measuring#group{later = none,
                                          turns = erlmcp_load_turns:limited(Window, all, Turns)}).

measuring(Us, From, #group{settings = Settings, tally = Tally} = Group) ->
    Since = erlmcp_load_plan:since(From, Settings),
    Group#group{tally = erlmcp_load_tally:begins(Us, Since, Tally)}.

warming(Begin, #group{settings = #{callers := Callers} = Settings, turns = Turns} = Group) ->
    running(Begin, infinity, Group#group{settings = Settings#{loop := closed}, later = Settings,
                                         turns = erlmcp_load_turns:limited(1, Callers, Turns)}).

running(Begin, Until, #group{turns = Turns, alone = Alone, closed = Closed} = Group) ->
    Running = Group#group{phase = running, start = Begin, until = Until},
    Opened = case Alone of
        true -> Running;
        false -> lists:foldl(fun handed_over/2, Running#group{closed = []}, Closed)
    end,
    %% This may leave the group a single connection, which it then opens itself.
    maps:fold(fun kept/3, Opened, erlmcp_load_turns:all(Turns)).

renewed(#group{claim = Claim, alarm = Alarm} = Group) when Alarm =/= none ->
    _ = erlang:cancel_timer(Alarm),
    Group#group{alarm = none,
                claim = case is_integer(Claim) andalso Claim =< now_us() of
                            true -> Claim;
                            false -> none
                        end};
renewed(Group) ->
    Group.

finishing(#group{claim = Claim, until = Until, tally = Tally} = Group) ->
    Now = now_us(),
    Counted = case is_integer(Claim) andalso Claim < Until andalso Claim =< Now of
        true -> erlmcp_load_tally:unsent(Claim, Now, Tally);
        false -> Tally
    end,
    Group#group{phase = finishing, claim = none, tally = Counted}.

ended(#group{run = Run, settings = Settings, turns = Turns, tally = Tally}) ->
    Deadline = erlang:monotonic_time(millisecond) + ?GOODBYE_MS,
    _ = [ok = erlmcp_load_connection:ended(Deadline, Settings, Connection)
         || _ := Connection <- erlmcp_load_turns:all(Turns)],
    Run ! {self(), {finished, erlmcp_load_tally:course(Tally)}}.

%% Messages of sockets.

handle(Message, Key, #group{turns = Turns, settings = Settings, tally = Tally} = Group) ->
    case erlmcp_load_turns:find(Key, Turns) of
        none ->
            %% A late message of a connection that was closed.
            Group;
        Connection ->
            {Out, Heard, Counted} =
                erlmcp_load_connection:handle(Message, now_us(), Settings, Connection, Tally),
            answered(Out, Key, Heard, Group#group{tally = Counted})
    end.

%% In a closed loop an answer is followed by a request. Callers of a warm-up use another connection.
answered(Out, Key, Connection, #group{settings = #{loop := closed}, later = none} = Group) ->
    #group{phase = Phase, start = Start, until = Until} = Group,
    Now = now_us(),
    case Phase =:= running andalso Now >= Start andalso Now < Until
        andalso room(Connection, Group) > 0 of
        true -> filled(Now, Key, Connection, Out, Group);
        %% The connection may have been opened again meanwhile.
        false -> sending(flushed(Out, Key, Connection, Group))
    end;
answered(Out, Key, Connection, Group) ->
    sending(flushed(Out, Key, Connection, Group)).

%% Gives up the requests that timed out, on all connections.
swept(#group{turns = Turns} = Group) ->
    Now = now_us(),
    {Next, AllSwept} = maps:fold(
        fun(Key, Connection, {Soonest, #group{settings = Settings, tally = Tally} = Sum}) ->
            {Deadline, Swept, Counted} =
                erlmcp_load_connection:expired(Now, Settings, Connection, Tally),
            %% `none` is greater than any number.
            {min(Deadline, Soonest), kept(Key, Swept, Sum#group{tally = Counted})}
        end, {none, Group}, erlmcp_load_turns:busy(Turns)),
    case Next of
        none -> AllSwept;
        _ -> start_timeout(Next, AllSwept)
    end.

start_timeout(Deadline, #group{timeout = none} = Group) ->
    Group#group{timeout = erlmcp_load_schedule:start_timer(Deadline, expired)};
start_timeout(_, Group) ->
    Group.

%% Stores the current state of a connection.
kept(Key, Connection, #group{turns = Turns} = Group) ->
    case is_over(Connection, Group) of
        true -> over(Connection, Group#group{turns = erlmcp_load_turns:removed(Key, Turns)});
        false -> Group#group{turns = erlmcp_load_turns:kept(Key, Connection, Turns)}
    end.

room(Connection, #group{turns = Turns}) ->
    erlmcp_load_turns:room(Connection, Turns).

is_over(Connection, #group{phase = Phase}) ->
    not erlmcp_load_connection:is_open(Connection)
        orelse Phase =:= running andalso erlmcp_load_connection:is_leaving(Connection)
               andalso erlmcp_load_connection:in_flight(Connection) =:= 0.

over(Connection, #group{settings = Settings} = Group) ->
    case erlmcp_load_connection:is_open(Connection) of
        true -> without({erlmcp_load_connection:closed(Settings, Connection), now}, Group);
        false -> without({Connection, none}, Group)
    end.

without(Closed, #group{alone = true} = Group) ->
    again(Closed, Group);
%% Opening the only connection of a group delays no other one.
without(Closed, #group{phase = running, turns = Turns} = Group) ->
    case erlmcp_load_turns:is_empty(Turns) of
        true -> again(Closed, Group#group{alone = true});
        false -> handed_over(Closed, Group)
    end;
without(Closed, #group{closed = Others} = Group) ->
    Group#group{closed = [Closed | Others]}.

handed_over(Closed, #group{run = Run} = Group) ->
    Run ! {self(), {closed, Closed}},
    Group.

again(_, #group{phase = finishing} = Group) ->
    Group;
again({Connection, now}, Group) ->
    reopened(Connection, none, Group);
again({Connection, Pause}, Group) ->
    Next = case Pause of
        none -> ?FIRST_PAUSE;
        _ -> min(2 * Pause, ?LONGEST_PAUSE)
    end,
    %% The pause is random, so that lost connections do not all reconnect at once.
    _ = erlang:start_timer(Next div 2 + rand:uniform(Next), self(), reopen),
    Group#group{closed = [{Connection, Next}]}.

reopened(#group{phase = finishing} = Group) ->
    Group;
reopened(#group{closed = [{Connection, Pause}]} = Group) ->
    reopened(Connection, Pause, Group#group{closed = []}).

reopened(Connection, Pause, #group{settings = Settings} = Group) ->
    case erlmcp_load_connection:open(Settings, Connection) of
        {ok, Opened} -> added(Opened, Group);
        {error, _} -> again({Connection, Pause}, Group)
    end.

%% Sends due requests while a connection is free.

sending(#group{phase = running, settings = #{loop := Loop}} = Group) ->
    due(Loop, now_us(), Group);
sending(Group) ->
    Group.

due(hold, _, Group) ->
    Group;
due(closed, Now, #group{start = Start} = Group) when Now < Start ->
    alarmed(Start, Group);
due(closed, Now, #group{until = Until} = Group) when Now >= Until ->
    Group;
due(closed, Now, Group) ->
    case free(Group) of
        none -> Group;
        {Key, Connection, Taken} -> sending(filled(Now, Key, Connection, [], Taken))
    end;
due(_, _, #group{claim = Due, until = Until} = Group) when is_integer(Due), Due >= Until ->
    Group;
due(_, Now, #group{claim = Due} = Group) when is_integer(Due), Now < Due ->
    alarmed(Due, Group);
due({open, Schedule}, Now, #group{claim = Due, settings = Settings, tally = Tally} = Group) ->
    #{timeout_us := Timeout} = Settings,
    case free(Group) of
        none ->
            Group;
        _ when Due =:= none ->
            due({open, Schedule}, Now, claimed(Schedule, Group));
        _ when Now - Due > Timeout ->
            %% A client would have given up by now.
            sending(Group#group{claim = none, tally = erlmcp_load_tally:unsent(Due, Now, Tally)});
        {Key, Connection, Taken} ->
            read_first(sent(Schedule, Now, Key, Connection, [], Taken))
    end.

%% Reads what has come before it sends another request. A group that is late has always one to send,
%% and would never read the replies.
read_first(Group) ->
    case process_info(self(), message_queue_len) of
        {message_queue_len, 0} -> sending(Group);
        {message_queue_len, _} -> alarmed(now_us(), Group)
    end.

claimed(Schedule, Group) ->
    Group#group{claim = erlmcp_load_schedule:next(Schedule)}.

%% Takes the free connection that has waited longest.
free(#group{turns = Turns} = Group) ->
    case erlmcp_load_turns:next(Turns) of
        none -> none;
        {Key, Connection, Others} -> {Key, Connection, Group#group{turns = Others}}
    end.

filled(Now, Key, Connection, Out, #group{settings = Settings, tally = Tally} = Group) ->
    case room(Connection, Group) > 0 of
        true ->
            {Bytes, Next} = erlmcp_load_connection:request(Now, Now, Settings, Connection, Tally),
            filled(Now, Key, Next, [Out | Bytes], Group);
        false ->
            written(Now, Out, Key, Connection, Group)
    end.

%% Further due requests go into the same write if no other connection waits for its turn.
sent(Schedule, Now, Key, Connection, Out, Group) ->
    #group{claim = Due, settings = Settings, tally = Tally} = Group,
    {Bytes, Next} = erlmcp_load_connection:request(Due, Now, Settings, Connection, Tally),
    More = [Out | Bytes],
    Unclaimed = Group#group{claim = none},
    case room(Next, Group) > 0 andalso erlmcp_load_turns:is_alone(Group#group.turns) of
        true ->
            Claimed = claimed(Schedule, Unclaimed),
            case is_due(Now, Claimed) of
                true -> sent(Schedule, Now, Key, Next, More, Claimed);
                false -> written(Now, More, Key, Next, Claimed)
            end;
        false ->
            written(Now, More, Key, Next, Unclaimed)
    end.

is_due(Now, #group{claim = Due, until = Until, settings = #{timeout_us := Timeout}}) ->
    Due =< Now andalso Due < Until andalso Now - Due =< Timeout.

written(Now, Out, Key, Connection, #group{settings = #{timeout_us := Timeout}} = Group) ->
    start_timeout(Now + Timeout, flushed(Out, Key, Connection, Group)).

flushed(Out, Key, Connection, #group{settings = Settings, tally = Tally} = Group) ->
    case Out =/= [] andalso erlmcp_load_connection:is_open(Connection) of
        true ->
            {Sent, Counted} = erlmcp_load_connection:flush(Out, Settings, Connection, Tally),
            kept(Key, Sent, Group#group{tally = Counted});
        false ->
            kept(Key, Connection, Group)
    end.

alarmed(Due, #group{alarm = none} = Group) ->
    Group#group{alarm = erlmcp_load_schedule:start_timer(Due, due)};
alarmed(_, Group) ->
    Group.

now_us() ->
    erlang:monotonic_time(microsecond).
