-module(erlmcp_session_streams).
-moduledoc """
The streams of one HTTP session, a value that the session's process keeps. Stream 0 is the session's
own, which a GET opens. A call has another one once it reports something before its answer, or loses
its connection, unless its client reads no streams.

A stream outlives its connections, and has one at a time, an owner `{Pid, Tag}`. The connection is
sent `t:erlmcp_call_messages:to_waiting/0`, and confirms each event that it has written
(`erlmcp_session:written/2`). At most 16 events are sent before they are confirmed. Later events
wait in the log (`m:erlmcp_event_log`). If the log must drop one of these, the connection is closed.

In a cluster the events of calls' streams are copied to the session's next home
(`c:erlmcp_server_cluster:keep_event/3`), where their client can ask for them. The id of an event
begins with the incarnation of the home where its stream began.

Source: specification 2025-11-25, "Transports / Resumability and Redelivery".

Internal.
""".

-export([new/4, expect/5, is_open/1, has_room/1, is_attended/2]).
-export([message/3, withdraw/3, answer/3, answered/2, cancel/2, close_connection/2, notify/2]).
-export([open/2, resume/3, written/2, detach/2, down/2, expire/1, end_call/4, close/1]).
-export([retry_ms/1]).

%% `keep/4` is on the way of every event.
-compile({inline, [keep/4]}).

-export_type([streams/0, key/0, home/0]).

-doc """
The key of an event: its stream, and its position there. 0 is before the first event. The stream of
an earlier home has the incarnation of that home, too.
""".
-type key() :: {erlmcp_event_log:stream(), Position :: non_neg_integer()}.
-doc """
The incarnation of this node in its cluster, the id of the session, and the cluster. The incarnation
is 0 if the node may serve no sessions at the moment. `none` without a cluster.
""".
-type home() :: none | {Incarnation :: non_neg_integer(), Session :: binary(), {module(), term()}}.
-type stream() :: #{
    last := non_neg_integer(),
    ended := boolean(),
    %% whether the last event is an error, since the call ended with its node
    lost := boolean(),
    %% none once all are answered
    requests := erlmcp_server_cluster:requests(),
    connection := undefined | #{owner := erlmcp_call:owner(), monitor := reference(),
                                sent := non_neg_integer(), written := non_neg_integer()}
}.
-opaque streams() :: #{
    key := reference(),
    home := home(),
    limits := erlmcp_server_options:limits(),
    %% whether the client's revision has events without data
    primes := boolean(),
    log := erlmcp_event_log:log(),
    next := pos_integer(),
    calls := #{pid() => {waits, erlmcp_call:owner(), Streams :: boolean(), erlmcp_calls:entry()}
                   | pos_integer()},
    streams := #{erlmcp_event_log:stream() => stream()}
}.

%% Events that a connection may be sent before it has written them.
-define(WINDOW, 16).

-doc "Returns the streams of a new session of the server with the key `Key`.".
-spec new(erlmcp_revision:revision(), home(), Key :: reference(),
          erlmcp_server_options:limits()) -> streams().
new(Revision, Home, Key, Limits) ->
    #{key => Key, home => Home, limits => Limits, primes => erlmcp_revision:polls(Revision),
      log => erlmcp_event_log:new(Limits), next => 1, calls => #{},
      streams => #{0 => new_stream({call, []})}}.

new_stream(Requests) ->
    #{last => 0, ended => false, lost => false, requests => Requests, connection => undefined}.

-doc """
Adds a call that answers the requests of `Entry`. The connection `Owner` waits for its answer.
`Streams` is `true` if the client of this connection reads streams.
""".
-spec expect(Call :: pid(), erlmcp_calls:entry(), erlmcp_call:owner(), Streams :: boolean(),
             streams()) -> streams().
expect(Call, Entry, Owner, Streams, #{calls := Calls} = State) ->
    State#{calls := Calls#{Call => {waits, Owner, Streams, Entry}}}.

-doc "Returns `true` if the session's own stream has a connection.".
-spec is_open(streams()) -> boolean().
is_open(State) ->
    has_connection(0, State).

-doc """
Returns `true` if the session's own stream has a connection that would be sent an event immediately.
""".
-spec has_room(streams()) -> boolean().
has_room(#{streams := #{0 := Stream}}) ->
    case Stream of
        #{last := Last, connection := #{sent := Last, written := Written}} ->
            Last - Written < ?WINDOW;
        #{} ->
            false
    end.

-doc """
Returns `true` if a connection waits for a call or is attached to the call's stream. Also returns
`true` if the call is over and needs no connection, or if its client reads no streams.
""".
-spec is_attended(Call :: pid(), streams()) -> boolean().
is_attended(Call, #{calls := Calls} = State) ->
    case Calls of
        #{Call := Number} when is_integer(Number) -> has_connection(Number, State);
        #{} -> true
    end.

has_connection(Number, #{streams := Streams}) ->
    #{Number := #{connection := Connection}} = Streams,
    Connection =/= undefined.

-doc """
Sends a message that comes before the answer of a call. The message goes out on the call's stream,
which begins now if it has not begun before. Returns `refused` if the client reads no streams, or if
the call has ended.
""".
-spec message(Call :: pid(), binary(), streams()) -> {sent | refused, streams()}.
message(Call, Bytes, #{calls := Calls} = State) ->
    case Calls of
        #{Call := {waits, _, true, _}} -> message(Call, Bytes, begin_stream(Call, State));
        #{Call := {waits, _, false, _}} -> {refused, State};
        #{Call := Number} -> {sent, append(Number, Bytes, State)};
        #{} -> {refused, State}
    end.

-doc """
Notifies a call's client, on the call's stream, that the requests `Withdrawn` need no answer any
more.
""".
-spec withdraw(Call :: pid(), erlmcp_calls:withdrawn(), streams()) -> streams().
withdraw(Call, Withdrawn, State) ->
    lists:foldl(fun(Request, Before) ->
        {_, Next} = message(Call, erlmcp_calls:withdrawal(Request), Before),
        Next
    end, State, Withdrawn).

-doc """
Sends the answer of a call, on the call's stream if that has begun, or else to the connection that
waits for it. An empty answer is not sent: the call is cancelled (`cancel/2`).
""".
-spec answer(Call :: pid(), binary(), streams()) -> streams().
answer(Call, ~"", State) ->
    cancel(Call, State);
answer(Call, Bytes, #{calls := Calls} = State) ->
    case maps:take(Call, Calls) of
        {{waits, Waiting, _, _}, Rest} ->
            ok = erlmcp_call_messages:answer(Waiting, 200, Bytes),
            State#{calls := Rest};
        {Number, Rest} ->
            append(Number, Bytes, mark_ended(Number, State#{calls := Rest}));
        error ->
            State
    end.

-doc "Ends a call's stream, or the connection that waits for the call, without an answer.".
-spec cancel(Call :: pid(), streams()) -> streams().
cancel(Call, #{calls := Calls} = State) ->
    _ = case Calls of
        #{Call := {waits, Waiting, _, _}} -> erlmcp_call_messages:cancelled(Waiting);
        #{} -> ok
    end,
    answered(Call, State).

-doc """
Removes a call that has sent its answer to its connection itself, or that has no answer. Ends the
call's stream, if that has begun.
""".
-spec answered(Call :: pid(), streams()) -> streams().
answered(Call, #{calls := Calls} = State) ->
    case maps:take(Call, Calls) of
        {{waits, _, _, _}, Rest} -> State#{calls := Rest};
        {Number, Rest} ->
            #{streams := #{Number := #{last := Last}}} = Ended =
                mark_ended(Number, State#{calls := Rest}),
            ok = keep(Number, Last, none, Ended),
            pump(Number, Ended);
        error -> State
    end.

-doc """
Ends the connection of a call's stream, and keeps the stream. The stream begins now if it has not
begun before. The client reconnects for the remaining events. Has an effect only in 2025-11-25,
whose clients reconnect, and for a client that reads streams.
""".
-spec close_connection(Call :: pid(), streams()) -> streams().
close_connection(Call, #{primes := true, calls := Calls} = State) ->
    case Calls of
        #{Call := {waits, _, true, _}} ->
            close_connection(Call, begin_stream(Call, State));
        #{Call := Number} ->
            cut(Number, State);
        #{} ->
            State
    end;
close_connection(_, State) ->
    State.

-doc """
Sends a message on the session's own stream. The caller has checked with `is_open/1` or `has_room/1`
that the stream has a connection.
""".
-spec notify(binary(), streams()) -> streams().
notify(Bytes, State) ->
    append(0, Bytes, State).

-doc """
Attaches a connection to the session's own stream. Returns `attached` if the stream has a connection
already.
""".
-spec open(erlmcp_call:owner(), streams()) -> {ok, streams()} | {error, attached}.
open(Owner, #{streams := #{0 := Stream}} = State) ->
    case Stream of
        #{connection := undefined, last := Last} ->
            {ok, prime(0, attach(0, Owner, Last, State))};
        #{} ->
            {error, attached}
    end.

-doc """
Attaches a connection to the stream of the event `EventId`, in place of the connection that the
stream has. Sends the new connection the events after `EventId`. Returns `gone` if a call's stream
does not keep all of these any more, or if the stream has not sent `EventId`.

The session's own stream goes on from now if events after `EventId` are not kept, or if an earlier
home has sent `EventId`. The result is then `missed`: the client has missed notifications of
changes.

A call's stream of an earlier home ends after the events that were copied from there. If the call
still runs at a node that is leaving, the client reconnects for its later events.
""".
-spec resume(EventId :: binary(), erlmcp_call:owner(), streams()) ->
    {ok | missed, streams()} | {error, gone}.
resume(EventId, Owner, #{home := Home} = State) ->
    case {parse(EventId), Home} of
        {{none, Number, Position}, none} ->
            resume_after({Number, Position}, Owner, State);
        {{Own, Number, Position}, {Own, _, _}} when is_integer(Position) ->
            resume_after({Number, Position}, Owner, State);
        {{Earlier, 0, Position}, {Own, _, _}} when
            is_integer(Earlier), Earlier =/= Own, is_integer(Position), Position >= 0
        ->
            go_on(Owner, State);
        {{Earlier, Number, Position}, {_, _, _}} when is_integer(Earlier) ->
            resume_earlier({Earlier, Number}, Position, Owner, State);
        _ ->
            {error, gone}
    end.

%% Attaches a connection to the session's own stream, whose earlier events are not kept.
go_on(Owner, State) ->
    {ok, Open} = open(Owner, cut(0, State)),
    {missed, Open}.

%% The stream of an earlier home, as it is known here now. It has ended for its connection. The
%% client may have got events that were never copied. The error in place of the answer has an id of
%% its own, so that it is sent once.
resume_earlier(Stream, Position, Owner, #{home := {_, Session, {Module, Known}}} = State) ->
    case Module:kept_stream(Session, Stream, Known) of
        {ok, #{state := ended} = Kept} when is_integer(Position) ->
            resume_after({Stream, Position}, Owner, with_copies(Stream, Kept, State));
        {ok, #{state := running, last := Last} = Kept} when is_integer(Position) ->
            resume_after({Stream, min(Position, Last)}, Owner, with_copies(Stream, Kept, State));
        {ok, #{state := lost, requests := Requests, events := Events, last := Last} = Kept} ->
            Whole = Kept#{events := Events ++ [{Last + 1, no_answer(Requests)}], last := Last + 1},
            From = case Position of
                lost -> Last + 1;
                _ -> min(Position, Last)
            end,
            resume_after({Stream, From}, Owner, with_copies(Stream, Whole, State));
        _ ->
            {error, gone}
    end.

with_copies(Stream, #{requests := Requests, events := Events, last := Last, state := Of}, State) ->
    #{streams := Streams} = Logged = lists:foldl(
        fun({Position, Bytes}, Before) -> log({Stream, Position}, Bytes, Before) end,
        cut(Stream, State), Events),
    Copied = (new_stream(Requests))#{last := Last, ended := true, lost := Of =:= lost},
    Logged#{streams := Streams#{Stream => Copied}}.

log(Key, Bytes, #{log := Log} = State) ->
    case is_kept(Key, State) of
        true ->
            State;
        false ->
            {Dropped, Kept} = erlmcp_event_log:append(Key, Bytes, erlmcp_clock:now_ms(), Log),
            forget(Dropped, State#{log := Kept})
    end.

%% The answer of a call that ended with its node.
no_answer(Requests) ->
    iolist_to_binary(erlmcp_message:errors(Requests, erlmcp_refusal:new(
        dependency_unavailable,
        ~"the node of this session has ended: the request may have run",
        #{retry_after_ms => 1000}))).

resume_after({Number, Position}, Owner, #{streams := Streams} = State) ->
    maybe
        #{Number := #{last := Last}} ?= Streams,
        true ?= Position >= 0 andalso Position =< Last orelse never_sent,
        true ?= Position =:= Last orelse is_kept({Number, Position + 1}, State),
        #{streams := #{Number := _}} = Cut ?= cut(Number, State),
        {ok, pump(Number, attach(Number, Owner, Position, Cut))}
    else
        false when Number =:= 0 -> go_on(Owner, State);
        _ -> {error, gone}
    end.

-doc """
Records that the connection of a stream has written the event with the given key. Sends the
connection the events for which there is room now.
""".
-spec written(key(), streams()) -> streams().
written({Number, Position}, #{streams := Streams} = State) ->
    case Streams of
        %% An earlier connection of the stream may confirm late; that is ignored.
        #{Number := #{connection := #{sent := Sent, written := Before} = Connection} = Stream} when
            Position > Before, Position =< Sent
        ->
            Written = Stream#{connection := Connection#{written := Position}},
            pump(Number, State#{streams := Streams#{Number := Written}});
        #{} ->
            State
    end.

-doc """
Detaches a connection, which has ended, from its stream. If the connection waits for the answer of a
call, and its client reads streams, the stream of the call begins now. Returns the calls whose
streams have lost this connection.
""".
-spec detach(erlmcp_call:owner(), streams()) -> {[pid()], streams()}.
detach(Owner, #{calls := Calls} = State) ->
    %% The stream of a call that has reported nothing begins now, and loses its connection at once.
    Waiting = [Call || Call := {waits, Other, true, _} <- Calls, Other =:= Owner],
    lost(fun(#{owner := Other}) -> Other =:= Owner end,
         lists:foldl(fun begin_stream/2, State, Waiting)).

-doc """
Detaches a connection from its stream after `Monitor` has reported the end of the connection's
process. Returns the same as `detach/2`.
""".
-spec down(Monitor :: reference(), streams()) -> {[pid()], streams()}.
down(Monitor, State) ->
    lost(fun(#{monitor := Other}) -> Other =:= Monitor end, State).

lost(Is, #{streams := Streams, calls := Calls} = State) ->
    case [Number || Number := #{connection := #{} = Connection} <- Streams, Is(Connection)] of
        [Number | _] ->
            {[Call || Call := Other <- Calls, Other =:= Number], release(Number, State)};
        [] ->
            {[], State}
    end.

-doc """
Drops events that are at least `stored_ms` old. Returns after how many milliseconds this function is
to be called again, or `never` if no events are left.
""".
-spec expire(streams()) -> {Milliseconds :: pos_integer() | never, streams()}.
expire(#{log := Log, limits := #{stored_ms := Milliseconds}} = State) ->
    Now = erlmcp_clock:now_ms(),
    {Dropped, Kept} = erlmcp_event_log:expire(Now, Log),
    Next = case erlmcp_event_log:oldest(Kept) of
        none -> never;
        At -> max(1, At + Milliseconds - Now)
    end,
    {Next, forget(Dropped, State#{log := Kept})}.

-doc """
Returns the milliseconds after which a client reconnects to a stream: the limit `retry_ms` and a
random part of up to half of it.
""".
-spec retry_ms(erlmcp_server_options:limits()) -> pos_integer().
retry_ms(#{retry_ms := Milliseconds}) ->
    Milliseconds + rand:uniform(max(1, Milliseconds div 2)).

-doc """
Answers a call, which ends with its session here, with the message `Bytes`. If the session goes on
at another node of a cluster (`GoesOn`), a call whose stream has begun is not answered. Its client
gets the remaining events from the next home (`resume/3`).
""".
-spec end_call(Call :: pid(), binary(), GoesOn :: boolean(), streams()) -> streams().
end_call(Call, Bytes, GoesOn, #{home := Home, calls := Calls} = State) ->
    case Calls of
        #{Call := Number} when is_integer(Number), GoesOn, Home =/= none -> State;
        #{} -> answer(Call, Bytes, State)
    end.

-doc "Ends all connections of the streams, and those that wait for calls.".
-spec close(streams()) -> ok.
close(#{calls := Calls, streams := Streams}) ->
    Owners = [Owner || _ := {waits, Owner, _, _} <- Calls]
        ++ [Owner || _ := #{connection := #{owner := Owner}} <- Streams],
    lists:foreach(fun erlmcp_call_messages:cancelled/1, Owners).

%% A call's first message opens its stream, on the connection that waits for its answer.
begin_stream(Call, #{calls := Calls, next := Number, streams := Streams} = State) ->
    #{Call := {waits, Owner, true, {Kind, Ids, _, _}}} = Calls,
    %% The stream outlives the call.
    Requests = {Kind, [erlmcp_message:own_id(Id) || Id <- Ids]},
    Begun = State#{calls := Calls#{Call := Number}, next := Number + 1,
                   streams := Streams#{Number => new_stream(Requests)}},
    ok = keep(Number, 0, none, Begun),
    prime(Number, attach(Number, Owner, 0, Begun)).

attach(Number, {Pid, _} = Owner, Position, #{streams := Streams} = State) ->
    #{Number := Stream} = Streams,
    Connection = #{owner => Owner, monitor => monitor(process, Pid), sent => Position,
                   written => Position},
    State#{streams := Streams#{Number := Stream#{connection := Connection}}}.

%% An event without data, whose id is the position to resume from.
prime(Number, #{primes := true, streams := Streams, home := Home, limits := Limits} = State) ->
    #{Number := #{connection := #{owner := Owner, sent := Position}}} = Streams,
    Key = {Number, Position},
    Event = #{id => id(Key, Home), retry => retry_ms(Limits), data => ~""},
    ok = erlmcp_call_messages:event(Owner, Key, Event, more),
    State;
prime(_, State) ->
    State.

append(Number, Bytes, #{log := Log, streams := Streams} = State) ->
    #{Number := #{last := Last} = Stream} = Streams,
    Position = Last + 1,
    Now = erlmcp_clock:now_ms(),
    {Dropped, Kept} = erlmcp_event_log:append({Number, Position}, Bytes, Now, Log),
    Added = State#{log := Kept, streams := Streams#{Number := Stream#{last := Position}}},
    ok = keep(Number, Position, Bytes, Added),
    forget(Dropped, pump(Number, Added)).

%% Copies an event, the beginning of a stream or its end to the session's next home. That one
%% notifies its client of all lists and resources anyway, so their changes need no copies.
keep(_, _, _, #{home := none}) ->
    ok;
keep(0, _, _, _) ->
    ok;
keep(Number, Position, Bytes, #{home := {Incarnation, Session, {Module, Known}}} = State) ->
    #{streams := #{Number := #{ended := Ended, requests := Requests}}} = State,
    Module:keep_event(Session, #{stream => {Incarnation, Number}, requests => Requests,
                                 position => Position, bytes => Bytes, ended => Ended}, Known).

mark_ended(Number, #{streams := Streams} = State) ->
    #{Number := Stream} = Streams,
    State#{streams := Streams#{Number := Stream#{ended := true}}}.

%% Sends the events that the window has room for.
pump(Number, #{streams := Streams} = State) ->
    case Streams of
        #{Number := #{connection := #{sent := Sent, written := Written}} = Stream} when
            Sent - Written < ?WINDOW
        ->
            pump(Number, Sent, Stream, State);
        #{} ->
            forget_ended(Number, State)
    end.

pump(Number, Last, #{last := Last, ended := true, connection := Connection}, State) ->
    #{owner := Owner} = Connection,
    ok = erlmcp_call_messages:cancelled(Owner),
    release(Number, State);
pump(_, Last, #{last := Last}, State) ->
    State;
pump(Number, Sent, #{last := Last, ended := Ended, connection := Connection} = Stream, State) ->
    #{streams := Streams, home := Home, log := Log} = State,
    #{owner := Owner} = Connection,
    Key = {Number, Sent + 1},
    case erlmcp_event_log:find(Key, Log) of
        {ok, Bytes} when Ended, Sent + 1 =:= Last ->
            Event = #{id => last_id(Key, Stream, Home), data => Bytes},
            ok = erlmcp_call_messages:event(Owner, Key, Event, last),
            release(Number, State);
        {ok, Bytes} ->
            Event = #{id => id(Key, Home), data => Bytes},
            ok = erlmcp_call_messages:event(Owner, Key, Event, more),
            More = Stream#{connection := Connection#{sent := Sent + 1}},
            pump(Number, State#{streams := Streams#{Number := More}});
        error ->
            slow(Number, State)
    end.

%% The log has dropped an event before the connection was sent it: the client reads too slowly.
slow(Number, #{key := Key, limits := Limits} = State) ->
    ok = erlmcp_slow_consumer:cut(Key, maps:with([stored_events, stored_bytes], Limits)),
    cut(Number, State).

cut(Number, #{streams := Streams} = State) ->
    case Streams of
        #{Number := #{connection := #{owner := Owner}}} ->
            ok = erlmcp_call_messages:cancelled(Owner),
            release(Number, State);
        #{} ->
            State
    end.

release(Number, #{streams := Streams} = State) ->
    #{Number := #{connection := #{monitor := Monitor}} = Stream} = Streams,
    true = demonitor(Monitor, [flush]),
    forget_ended(Number, State#{streams := Streams#{Number := Stream#{connection := undefined}}}).

%% A connection that was not sent a dropped event is closed, since it can never get the event.
forget(Dropped, State) ->
    lists:foldl(fun({Number, Position}, #{streams := Streams} = Before) ->
        case Streams of
            #{Number := #{connection := #{sent := Sent}}} when Sent < Position ->
                slow(Number, Before);
            #{} ->
                forget_ended(Number, Before)
        end
    end, State, Dropped).

%% A stream that has ended is kept for as long as its last event. All its requests are answered.
forget_ended(Number, #{streams := Streams} = State) ->
    case Streams of
        #{Number := #{ended := true, connection := undefined, last := Last} = Stream} ->
            case is_kept({Number, Last}, State) of
                true -> State#{streams := Streams#{Number := Stream#{requests := {call, []}}}};
                false -> State#{streams := maps:remove(Number, Streams)}
            end;
        #{} ->
            State
    end.

is_kept(Key, #{log := Log}) ->
    erlmcp_event_log:find(Key, Log) =/= error.

last_id({{Earlier, Number}, _}, #{lost := true}, _) ->
    <<(integer_to_binary(Earlier))/binary, $., (integer_to_binary(Number))/binary, "-lost">>;
last_id(Key, _, Home) ->
    id(Key, Home).

id({{Earlier, Number}, Position}, _) -> id_of_home(Earlier, Number, Position);
id({Number, Position}, none) -> in_stream(Number, Position);
id({Number, Position}, {Incarnation, _, _}) -> id_of_home(Incarnation, Number, Position).

id_of_home(Incarnation, Number, Position) ->
    <<(integer_to_binary(Incarnation))/binary, $., (in_stream(Number, Position))/binary>>.

in_stream(Number, Position) ->
    <<(integer_to_binary(Number))/binary, $-, (integer_to_binary(Position))/binary>>.

%% An event id comes from a client, and may be anything.
parse(EventId) when byte_size(EventId) =< 60 ->
    case [binary:split(Part, ~"-") || Part <- binary:split(EventId, ~".")] of
        [[Number, Position]] -> numbers([Number, Position], [none], []);
        [[Incarnation], [Number, ~"lost"]] -> numbers([Incarnation, Number], [], [lost]);
        [[Incarnation], [Number, Position]] -> numbers([Incarnation, Number, Position], [], []);
        _ -> error
    end;
parse(_) ->
    error.

numbers(Texts, Before, Behind) ->
    try
        list_to_tuple(Before ++ [binary_to_integer(Text) || Text <- Texts] ++ Behind)
    catch
        error:badarg -> error
    end.
