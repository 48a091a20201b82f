-module(erlmcp_load_group).
-moduledoc """
The process of some of a load's connections: opens them, sends requests on them when they are due,
and gives them what comes. Thousands of connections cost less in some processes than each in its
own, since what a message needs is then where the last one left it.

In a closed loop a request is due when another one has ended. In an open loop that is what
`m:erlmcp_load_schedule` says, and its latency begins there, whether a connection was free then or
not: it goes to the one that was sent on least lately of those that are.

Opening a connection waits for the peer. So one that is lost is opened anew by a process that has
no other: by this one, or one that the load starts for it. Sending waits for nobody, until a peer
has a mebibyte that it does not read: then the others of its group wait with it.
""".

-export([start_link/2, reopen/2, go/4, renew/1, finish/1]).
-export([init/4]).

-record(group, {
    run :: pid(),
    settings :: erlmcp_load_plan:settings(),
    tally :: erlmcp_load_tally:tally(),
    connections = #{} :: connections(),
    %% Those of them with room for a request, the one that was sent on least lately first; and some
    %% that have none any more.
    free = queue:new() :: queue:queue(erlmcp_load_socket:key()),
    %% Those that are not open.
    closed = [] :: [closed()],
    %% Whether it has one alone.
    alone :: boolean(),
    patience = none :: none | reference(),
    %% What was taken from the schedule and is not sent yet.
    claim = none :: none | integer(),
    alarm = none :: none | reference(),
    phase = waiting :: waiting | running | finishing,
    start = 0 :: integer(),
    until = 0 :: integer()
}).

-type connections() :: #{erlmcp_load_socket:key() => erlmcp_load_connection:connection()}.
-type settings() :: erlmcp_load_plan:settings().

-doc """
A connection that is not open, and for how many milliseconds it was not tried last; `now` is one
that is opened at once.
""".
-opaque closed() :: {erlmcp_load_connection:connection(), none | now | pos_integer()}.

-export_type([closed/0]).

%% Milliseconds before a connection is opened again, at first and at most, and for all goodbyes.
-define(FIRST_PAUSE, 10).
-define(LONGEST_PAUSE, 1000).
-define(GOODBYE_MS, 1000).

-doc """
Starts a group of connections to there. After the first attempt at each it tells its
starter `{Pid, {opened, OsPid}}`, with the number of the program that it has started, or `none`; or
`{Pid, {open_failed, Reason}}`. Later it says `{Pid, {closed, Closed}}` of one that another group is
to open, and at its end `{Pid, {finished, Totals}}`.
""".
-spec start_link(settings(), [erlmcp_load_socket:endpoint(), ...]) -> pid().
start_link(Settings, Endpoints) ->
    New = [erlmcp_load_connection:new(Endpoint) || Endpoint <- Endpoints],
    spawn_link(?MODULE, init, [self(), Settings, open, New]).

-doc "Starts a group of one that another has lost. It does not tell that it has opened it.".
-spec reopen(settings(), closed()) -> pid().
reopen(Settings, Closed) ->
    spawn_link(?MODULE, init, [self(), Settings, reopen, [Closed]]).

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
init(Run, Settings, reopen, [Closed]) ->
    loop(again(Closed, new(Run, Settings, true)));
init(Run, Settings, open, New) ->
    %% Other loads of this node may have more to do than it can: they would keep this one from its
    %% beginning.
    _ = process_flag(priority, high),
    Group = lists:foldl(fun opened/2, new(Run, Settings, length(New) =:= 1), New),
    _ = process_flag(priority, normal),
    loop(Group).

new(Run, Settings, Alone) ->
    #group{run = Run, settings = Settings, alone = Alone, tally = erlmcp_load_tally:new(Settings)}.

opened(New, #group{run = Run, settings = Settings} = Group) ->
    case erlmcp_load_connection:open(Settings, New) of
        {ok, Connection} ->
            Run ! {self(), {opened, erlmcp_load_connection:os_pid(Connection)}},
            added(Connection, Group);
        {error, Reason} ->
            Run ! {self(), {open_failed, Reason}},
            without({New, none}, Group)
    end.

added(Connection, #group{connections = Connections} = Group) ->
    Key = erlmcp_load_connection:key(Connection),
    kept(Key, Connection, 0, Group#group{connections = Connections#{Key => Connection}}).

loop(#group{phase = finishing, connections = Connections} = Group) ->
    case lists:any(fun is_busy/1, maps:values(Connections)) of
        true -> next(Group);
        false -> ended(Group)
    end;
loop(Group) ->
    next(Group).

is_busy(Connection) ->
    erlmcp_load_connection:in_flight(Connection) > 0.

next(Group) ->
    receive
        {timeout, Alarm, due} when Alarm =:= Group#group.alarm ->
            loop(sending(Group#group{alarm = none}));
        {timeout, Patience, patience} when Patience =:= Group#group.patience ->
            loop(sending(swept(Group#group{patience = none})));
        {timeout, _, reopen} ->
            loop(sending(reopened(Group)));
        {?MODULE, go, Begin, From, Until} ->
            loop(sending(begun(Begin, From, Until, Group)));
        {?MODULE, renew} ->
            loop(sending(renewed(Group)));
        {?MODULE, finish} ->
            loop(finishing(Group));
        Message ->
            loop(heard(Message, erlmcp_load_socket:source(Message), Group))
    end.

begun(Begin, From, Until, #group{tally = Tally, alone = Alone, closed = Closed} = Group) ->
    Running = Group#group{phase = running, start = Begin, until = Until,
                          tally = erlmcp_load_tally:begins(From, Tally)},
    Known = maps:fold(fun(Key, Connection, Sum) ->
                          kept(Key, Connection, room(Connection, Sum), Sum)
                      end, Running, Running#group.connections),
    case Alone of
        true -> Known;
        false -> lists:foldl(fun handed_over/2, Known#group{closed = []}, Closed)
    end.

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
    _ = is_integer(Claim) andalso Claim < Until andalso Claim =< now_us()
        andalso erlmcp_load_tally:unsent(Claim, Tally),
    Group#group{phase = finishing, claim = none}.

ended(#group{run = Run, settings = Settings, connections = Connections, tally = Tally}) ->
    Deadline = erlang:monotonic_time(millisecond) + ?GOODBYE_MS,
    _ = [ok = erlmcp_load_connection:ended(Deadline, Settings, Connection)
         || _ := Connection <- Connections],
    Run ! {self(), {finished, erlmcp_load_tally:totals(Tally)}}.

%% What comes.

heard(Message, Key, Group) ->
    #group{connections = Connections, settings = Settings, tally = Tally} = Group,
    case Connections of
        #{Key := Connection} ->
            {Out, Heard, Told} =
                erlmcp_load_connection:heard(Message, now_us(), Settings, Connection, Tally),
            answered(Out, Key, Heard, room(Connection, Group), Group#group{tally = Told});
        #{} ->
            %% Of one that was closed.
            Group
    end.

%% In a closed loop an answer is followed by a request.
answered(Out, Key, Connection, Before, #group{settings = #{loop := closed}} = Group) ->
    #group{phase = Phase, start = Start, until = Until} = Group,
    Now = now_us(),
    case Phase =:= running andalso Now >= Start andalso Now < Until
        andalso room(Connection, Group) > 0 of
        true -> filled(Now, Key, Connection, Out, Group);
        %% It may be one that was opened again meanwhile.
        false -> sending(flushed(Out, Key, Connection, Before, Group))
    end;
answered(Out, Key, Connection, Before, Group) ->
    sending(flushed(Out, Key, Connection, Before, Group)).

%% Connections whose requests have no time any more.
swept(#group{connections = Connections} = Group) ->
    Now = now_us(),
    {Next, Swept} = maps:fold(
        fun(Key, Connection, {Soonest, #group{settings = Settings, tally = Tally} = Sum}) ->
            {Deadline, Left, Told} =
                erlmcp_load_connection:expired(Now, Settings, Connection, Tally),
            %% `none` is more than any number.
            {min(Deadline, Soonest),
             kept(Key, Left, room(Connection, Sum), Sum#group{tally = Told})}
        end, {none, Group}, maps:filter(fun(_, Of) -> is_busy(Of) end, Connections)),
    case Next of
        none -> Swept;
        _ -> patient(Next, Swept)
    end.

patient(Deadline, #group{patience = none} = Group) ->
    Group#group{patience = erlang:start_timer((Deadline + 999) div 1000, self(), patience,
                                              [{abs, true}])};
patient(_, Group) ->
    Group.

%% A connection as it is now, that had room for so many requests when it was looked at last.
kept(Key, Connection, Before, #group{connections = Connections, free = Free} = Group) ->
    case is_over(Connection, Group) of
        true ->
            over(Connection, Group#group{connections = maps:remove(Key, Connections)});
        false ->
            Known = Group#group{connections = Connections#{Key := Connection}},
            case Before =< 0 andalso room(Connection, Group) > 0 of
                true -> Known#group{free = queue:in(Key, Free)};
                false -> Known
            end
    end.

room(Connection, #group{settings = #{window := Window}}) ->
    erlmcp_load_connection:room(Window, Connection).

is_over(Connection, #group{phase = Phase}) ->
    not erlmcp_load_connection:is_open(Connection)
        orelse Phase =:= running andalso erlmcp_load_connection:is_leaving(Connection)
               andalso not is_busy(Connection).

over(Connection, #group{settings = Settings} = Group) ->
    case erlmcp_load_connection:is_open(Connection) of
        true -> without({erlmcp_load_connection:closed(Settings, Connection), now}, Group);
        false -> without({Connection, none}, Group)
    end.

without(Closed, #group{alone = true} = Group) ->
    again(Closed, Group);
%% The last one of a group keeps nobody waiting.
without(Closed, #group{phase = running, connections = Left} = Group) when map_size(Left) =:= 0 ->
    again(Closed, Group#group{alone = true});
without(Closed, #group{phase = running} = Group) ->
    handed_over(Closed, Group);
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
    %% Not all at once, when all were lost at once.
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

%% Sending what is due, as long as there is a connection that is free.

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
            %% Who asked would have given up.
            ok = erlmcp_load_tally:unsent(Due, Tally),
            sending(Group#group{claim = none});
        {Key, Connection, Taken} ->
            sending(sent(Schedule, Now, Key, Connection, [], Taken))
    end.

claimed(Schedule, Group) ->
    Group#group{claim = erlmcp_load_schedule:next(Schedule)}.

%% The first connection that is free, and the group where it is not among those.
free(#group{free = Free, connections = Connections} = Group) ->
    case queue:out(Free) of
        {empty, _} ->
            none;
        {{value, Key}, Others} ->
            Rest = Group#group{free = Others},
            case Connections of
                #{Key := Connection} ->
                    case room(Connection, Group) > 0 of
                        true -> {Key, Connection, Rest};
                        false -> free(Rest)
                    end;
                #{} ->
                    free(Rest)
            end
    end.

filled(Now, Key, Connection, Out, #group{settings = Settings, tally = Tally} = Group) ->
    case room(Connection, Group) > 0 of
        true ->
            {Bytes, Asked} = erlmcp_load_connection:request(Now, Now, Settings, Connection, Tally),
            filled(Now, Key, Asked, [Out | Bytes], Group);
        false ->
            written(Now, Out, Key, Connection, Group)
    end.

%% What else is due already goes with it, as far as there is room.
sent(Schedule, Now, Key, Connection, Out, Group) ->
    #group{claim = Due, settings = Settings, tally = Tally} = Group,
    {Bytes, Asked} = erlmcp_load_connection:request(Due, Now, Settings, Connection, Tally),
    More = [Out | Bytes],
    Left = Group#group{claim = none},
    case room(Asked, Group) > 0 of
        true ->
            Claimed = claimed(Schedule, Left),
            case is_due(Now, Claimed) of
                true -> sent(Schedule, Now, Key, Asked, More, Claimed);
                false -> written(Now, More, Key, Asked, Claimed)
            end;
        false ->
            written(Now, More, Key, Asked, Left)
    end.

is_due(Now, #group{claim = Due, until = Until, settings = #{timeout_us := Timeout}}) ->
    Due =< Now andalso Due < Until andalso Now - Due =< Timeout.

written(Now, Out, Key, Connection, #group{settings = #{timeout_us := Timeout}} = Group) ->
    patient(Now + Timeout, flushed(Out, Key, Connection, 0, Group)).

flushed(Out, Key, Connection, Before, #group{settings = Settings, tally = Tally} = Group) ->
    case Out =/= [] andalso erlmcp_load_connection:is_open(Connection) of
        true ->
            {Sent, Told} = erlmcp_load_connection:flush(Out, Settings, Connection, Tally),
            kept(Key, Sent, Before, Group#group{tally = Told});
        false ->
            kept(Key, Connection, Before, Group)
    end.

alarmed(Due, #group{alarm = none} = Group) ->
    Group#group{alarm = erlang:start_timer((Due + 999) div 1000, self(), due, [{abs, true}])};
alarmed(_, Group) ->
    Group.

now_us() ->
    erlang:monotonic_time(microsecond).
