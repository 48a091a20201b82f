-module(erlmcp_bench_holder).
-moduledoc """
A process that holds things of a server open, so that it can be seen what they cost: connections,
on which was asked once; sessions, in which was called once; streams of subscriptions; calls that
run. What each of them is answered is checked when it is opened. After that the process is silent.
""".

-export([start/4, opened/1, tell/1, told/1, stop/1]).

-export_type([kind/0, holder/0]).

-type kind() :: connection | session | stream | call.
-type holder() :: pid().

-record(held, {
    socket :: erlmcp_load_socket:socket(),
    state :: erlmcp_load_wire:state(),
    sessions = {[], {}} :: erlmcp_load_session:sessions(),
    tag = 0 :: erlmcp_load_wire:tag()
}).

-define(REVISION, ~"2025-11-25").
%% Milliseconds for what is asked once; a call that is held lasts as long as the fixture lets it.
-define(PATIENCE, 30_000).
-define(CALL, 60_000).
%% And for the goodbyes of one connection.
-define(GOODBYE_MS, 1_000).

-doc "Opens so many of these; the first of them is the one of this number.".
-spec start(kind(), erlmcp_load_target:target(), Number :: non_neg_integer(),
            Count :: pos_integer()) -> holder().
start(Kind, Target, Number, Count) ->
    Owner = self(),
    spawn_link(fun() ->
        {ok, Settings} = erlmcp_load_plan:settings(plan(Kind, Target, Number + Count)),
        Opened = case Kind of
            session -> sessions(Settings#{sessions := Count});
            _ -> each(lists:seq(Number, Number + Count - 1), Kind, Settings, [])
        end,
        case Opened of
            {ok, Held} ->
                Owner ! {self(), opened},
                holding(Kind, Held, Settings, Owner);
            {error, _} = Error ->
                Owner ! {self(), Error}
        end
    end).

plan(Kind, Target, Connections) ->
    Plan = #{target => Target, connections => Connections, timeout_ms => ?PATIENCE, loop => hold},
    case Kind of
        session -> Plan#{era => {session, ?REVISION}, requests => [{1, sleep(0)}]};
        connection -> Plan;
        stream -> Plan#{requests => [{1, {~"subscriptions/listen",
                                          #{~"notifications" => #{~"toolsListChanged" => true}}}}]};
        call -> Plan#{requests => [{1, sleep(?CALL)}]}
    end.

sleep(Milliseconds) ->
    {~"tools/call", #{~"name" => ~"sleep", ~"arguments" => #{~"ms" => Milliseconds}}}.

-doc "Waits until all of them are open.".
-spec opened(holder()) -> ok | {error, term()}.
opened(Holder) ->
    receive
        {Holder, opened} -> ok;
        {Holder, {error, _} = Error} -> Error
    end.

-doc "From now on the process waits for one event on each of its streams.".
-spec tell(holder()) -> ok.
tell(Holder) ->
    Holder ! tell,
    ok.

-doc "When the last one came, in monotonic microseconds.".
-spec told(holder()) -> {ok, integer()} | {error, term()}.
told(Holder) ->
    receive
        {Holder, {told, At}} -> {ok, At};
        {Holder, {error, _} = Error} -> Error
    end.

-doc "Gives all of it up, and waits until that is done.".
-spec stop(holder()) -> ok.
stop(Holder) ->
    Monitor = monitor(process, Holder),
    Holder ! stop,
    receive {'DOWN', Monitor, process, Holder, _} -> ok end.

%% What is held.

%% The sessions of a holder come over one connection.
sessions(#{way := Way} = Settings) ->
    case erlmcp_load_session:connect(erlmcp_load_target:endpoint(0, Way), Settings, 0) of
        {ok, Socket, {_, Templates} = Sessions, State, Tag} ->
            Held = #held{socket = Socket, state = State, sessions = Sessions, tag = Tag},
            called([Template || {Template} <- tuple_to_list(Templates)], Held, Settings);
        {error, _} = Error ->
            Error
    end.

%% It has what sessions have that were used.
called([], Held, _) ->
    {ok, [Held]};
called([Template | Templates], #held{tag = Tag} = Held, Settings) ->
    maybe
        {ok, Next} ?= ask(session, Template, Held, Settings),
        called(Templates, Next#held{tag = Tag + 1}, Settings)
    end.

each([], _, _, Held) ->
    {ok, Held};
each([Number | Numbers], Kind, #{way := Way} = Settings, Held) ->
    Endpoint = erlmcp_load_target:endpoint(Number, Way),
    maybe
        {ok, Socket, _, State, Tag} ?= erlmcp_load_session:connect(Endpoint, Settings, 0),
        #{templates := {Template}} = Settings,
        {ok, Asked} ?= ask(Kind, Template, #held{socket = Socket, state = State, tag = Tag},
                           Settings),
        each(Numbers, Kind, Settings, [Asked | Held])
    end.

ask(Kind, Template, #held{socket = Socket, state = State, tag = Tag} = Held, Settings) ->
    #{wire := Wire, expected := [Expected]} = Settings,
    {Bytes, Next} = Wire:request(Tag, Template, State),
    Asked = Held#held{state = Next},
    maybe
        ok ?= erlmcp_load_socket:send(Socket, Bytes),
        awaited(Kind, Tag, Expected, Asked, Settings)
    end.

awaited(call, _, _, Held, _) ->
    {ok, Held};
awaited(Kind, Tag, Expected, Held, Settings) ->
    maybe
        {ok, Events, Next} ?= events(Held, Settings),
        case came(Kind, Tag, Expected, Events) of
            ok -> {ok, Next};
            nothing -> awaited(Kind, Tag, Expected, Next, Settings);
            {error, _} = Error -> Error
        end
    end.

came(stream, _, _, Events) ->
    %% A stream that is acknowledged says so, and one that is refused is answered.
    case {lists:keymember(message, 1, Events), lists:keyfind(reply, 1, Events)} of
        {true, _} -> ok;
        {false, false} -> nothing;
        {false, Reply} -> {error, Reply}
    end;
came(_, Tag, Expected, Events) ->
    case lists:keyfind(reply, 1, Events) of
        {reply, Tag, Status, Body} ->
            case erlmcp_load_reply:check(Body, Status, erlmcp_load_wire:id(Tag), Expected, []) of
                {_, answered} -> ok;
                {_, Verdict} -> {error, Verdict}
            end;
        false ->
            nothing
    end.

events(#held{socket = Socket, state = State} = Held, #{wire := Wire} = Settings) ->
    case erlmcp_load_socket:next(Socket, ?PATIENCE) of
        {bytes, Bytes} ->
            maybe
                {ok, Events, _, Next} ?= Wire:received(Bytes, State),
                {ok, Events, Held#held{state = Next}}
            end;
        passive ->
            maybe
                ok ?= erlmcp_load_socket:activate(Socket),
                events(Held, Settings)
            end;
        {closed, Reason} ->
            {error, Reason};
        timeout ->
            {error, timeout}
    end.

holding(Kind, Held, Settings, Owner) ->
    receive
        tell ->
            Owner ! {self(), told(Held, Settings, [])},
            holding(Kind, Held, Settings, Owner);
        stop ->
            lists:foreach(fun(One) -> given_up(One, Settings) end, Held)
    end.

told([], _, _) ->
    {told, erlang:monotonic_time(microsecond)};
told([One | Held], Settings, Told) ->
    case awaited(stream, 0, any, One, Settings) of
        {ok, Next} -> told(Held, Settings, [Next | Told]);
        {error, _} = Error -> Error
    end.

given_up(#held{socket = Socket, state = State, sessions = Sessions, tag = Tag}, Settings) ->
    Deadline = erlang:monotonic_time(millisecond) + ?GOODBYE_MS,
    ok = erlmcp_load_session:close(Deadline, Sessions, Socket, Settings, {State, Tag}),
    erlmcp_load_socket:close(Socket).
