-module(erlmcp_bench_holder).
-moduledoc """
A process that holds items of a server open, to measure their cost. The items are connections after
one request, sessions after one call, streams of subscriptions, sessions with their GET streams, or
running calls. Each item is checked by its first answer, except calls, which have none yet. Then the
process is silent.
""".

-export([start/4, opened/1, watch/1, notified/1, stop/1]).

-export_type([kind/0, holder/0]).

-type kind() :: connection | session | stream | session_stream | call.
-type holder() :: pid().

-record(held, {
    socket :: erlmcp_load_socket:socket(),
    state :: erlmcp_load_wire:state(),
    sessions = {[], {}} :: erlmcp_load_session:sessions(),
    tag = 0 :: erlmcp_load_wire:tag()
}).

-define(REVISION, ~"2025-11-25").
%% Milliseconds to open an item. A held call lasts as long as the fixture allows.
-define(OPEN_MS, 30_000).
-define(CALL, 60_000).
%% Milliseconds to end the sessions of one connection.
-define(GOODBYE_MS, 1_000).

-doc """
Starts a process that opens `Count` items of one kind on a server. The items are numbered from
`Number` on. The process is linked to the caller, which alone may call the other functions with it.
""".
-spec start(kind(), erlmcp_load_target:target(), Number :: non_neg_integer(),
            Count :: pos_integer()) -> holder().
start(Kind, Target, Number, Count) ->
    Owner = self(),
    spawn_link(fun() ->
        Settings = settings(Kind, Target, Number + Count),
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

settings(Kind, Target, Connections) ->
    {ok, Settings} = erlmcp_load_plan:settings(plan(Kind, Target, Connections)),
    case Kind of
        session_stream -> Settings#{messages := [erlmcp_load_request:stream(?REVISION)]};
        _ -> Settings
    end.

plan(Kind, Target, Connections) ->
    Plan = #{target => Target, connections => Connections, timeout_ms => ?OPEN_MS, loop => hold},
    case Kind of
        session -> Plan#{era => {session, ?REVISION}, requests => [{1, sleep(0)}]};
        session_stream -> Plan#{era => {session, ?REVISION}};
        connection -> Plan;
        stream -> Plan#{requests => [{1, {~"subscriptions/listen",
                                          #{~"notifications" => #{~"toolsListChanged" => true}}}}]};
        call -> Plan#{requests => [{1, sleep(?CALL)}]}
    end.

sleep(Milliseconds) ->
    {~"tools/call", #{~"name" => ~"sleep", ~"arguments" => #{~"ms" => Milliseconds}}}.

-doc """
Waits until all items are open. The error is that of the first item that could not be opened, and
the process has then ended.
""".
-spec opened(holder()) -> ok | {error, term()}.
opened(Holder) ->
    receive
        {Holder, opened} -> ok;
        {Holder, {error, _} = Error} -> Error
    end.

-doc "Makes the process wait for one event on each of its streams.".
-spec watch(holder()) -> ok.
watch(Holder) ->
    Holder ! watch,
    ok.

-doc """
Waits after `watch/1` until the last stream has its event. Returns that time in monotonic
microseconds. The error is that of the first stream without its event.
""".
-spec notified(holder()) -> {ok, integer()} | {error, term()}.
notified(Holder) ->
    receive
        {Holder, {notified, At}} -> {ok, At};
        {Holder, {error, _} = Error} -> Error
    end.

-doc "Ends all items and the process, and waits until that is done.".
-spec stop(holder()) -> ok.
stop(Holder) ->
    Monitor = monitor(process, Holder),
    Holder ! stop,
    receive {'DOWN', Monitor, process, Holder, _} -> ok end.

%% The items.

%% The sessions of a holder share one connection.
sessions(#{way := Way} = Settings) ->
    case erlmcp_load_session:connect(erlmcp_load_target:endpoint(0, Way), Settings, 0) of
        {ok, Socket, {_, Templates} = Sessions, State, Tag} ->
            Held = #held{socket = Socket, state = State, sessions = Sessions, tag = Tag},
            called([Template || {Template} <- tuple_to_list(Templates)], Held, Settings);
        {error, _} = Error ->
            Error
    end.

%% Each session is used once, so that it has the state of used sessions.
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
        {ok, Socket, {_, {{Template}}} = Sessions, State, Tag} ?=
            erlmcp_load_session:connect(Endpoint, Settings, 0),
        New = #held{socket = Socket, state = State, sessions = Sessions, tag = Tag},
        {ok, Sent} ?= ask(Kind, Template, New, Settings),
        each(Numbers, Kind, Settings, [Sent | Held])
    end.

ask(Kind, Template, #held{socket = Socket, state = State, tag = Tag} = Held, Settings) ->
    #{wire := Wire, expected := [Expected]} = Settings,
    {Bytes, Next} = Wire:request(Tag, Template, State),
    Sent = Held#held{state = Next},
    maybe
        ok ?= erlmcp_load_socket:send(Socket, Bytes),
        awaited(Kind, Tag, Expected, Sent, Settings)
    end.

awaited(call, _, _, Held, _) ->
    {ok, Held};
awaited(Kind, Tag, Expected, Held, Settings) ->
    maybe
        {ok, Events, Next} ?= events(Held, Settings),
        case checked(Kind, Tag, Expected, Events) of
            ok -> {ok, Next};
            nothing -> awaited(Kind, Tag, Expected, Next, Settings);
            {error, _} = Error -> Error
        end
    end.

checked(Kind, _, _, Events) when Kind =:= stream; Kind =:= session_stream ->
    %% An accepted stream sends an acknowledgement or a first id; a refused one gets a reply.
    case {lists:keymember(message, 1, Events), lists:keyfind(reply, 1, Events)} of
        {true, _} -> ok;
        {false, false} -> nothing;
        {false, Reply} -> {error, Reply}
    end;
checked(_, Tag, Expected, Events) ->
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
    case erlmcp_load_socket:next(Socket, ?OPEN_MS) of
        {bytes, Bytes} ->
            case Wire:received(Bytes, State) of
                {ok, Events, _, Next} -> {ok, Events, Held#held{state = Next}};
                {error, Reason, _} -> {error, Reason}
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
        watch ->
            Owner ! {self(), notified(Held, Settings, [])},
            holding(Kind, Held, Settings, Owner);
        stop when Kind =:= session_stream ->
            streams_given_up(Held, Settings);
        stop ->
            lists:foreach(fun(One) -> given_up(One, Settings) end, Held)
    end.

notified([], _, _) ->
    {notified, erlang:monotonic_time(microsecond)};
notified([One | Held], Settings, Others) ->
    case awaited(stream, 0, any, One, Settings) of
        {ok, Next} -> notified(Held, Settings, [Next | Others]);
        {error, _} = Error -> Error
    end.

%% A connection with a GET stream takes no DELETE, so another one ends all sessions, and its own.
streams_given_up([#held{} | _] = Held, #{way := Way} = Settings) ->
    _ = [ok = erlmcp_load_socket:close(Socket) || #held{socket = Socket} <- Held],
    Endpoint = erlmcp_load_target:endpoint(0, Way),
    {ok, Socket, {Own, Templates}, State, Tag} =
        erlmcp_load_session:connect(Endpoint, Settings, 0),
    All = Own ++ [Id || #held{sessions = {Ids, _}} <- Held, Id <- Ids],
    given_up(#held{socket = Socket, state = State, sessions = {All, Templates}, tag = Tag},
             Settings).

given_up(#held{socket = Socket, state = State, sessions = Sessions, tag = Tag}, Settings) ->
    Deadline = erlang:monotonic_time(millisecond) + ?GOODBYE_MS,
    ok = erlmcp_load_session:close(Deadline, Sessions, Socket, Settings, {State, Tag}),
    erlmcp_load_socket:close(Socket).
