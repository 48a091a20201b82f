-module(erlmcp_cluster_event_copies).
-moduledoc """
The kept events of calls' streams: those of this node's sessions, and copies of those of other
nodes. Only the process that creates the tables writes them; any process reads.

The events of a session are bounded as at its home (`stored_events`, `stored_bytes`, `stored_ms`).
All events of this node are bounded in bytes. Over a bound the oldest events are deleted, but the
bounds of a session leave its newest one. A stream that has ended is deleted with its last event.

Each session may have a target, the incarnation to which its events are sent.

Internal.
""".

-export([new/1, add/5, session/2, sessions/1, own/3, aim/3, stream/3, bytes/1]).
-export([targets/1, unsent/3, sent/3, give_up/2, expire/3]).

-export_type([copies/0, key/0, stored/0, target/0]).

-define(OVERHEAD, 200).
-define(BYTES, 1).
-define(LAST, 2).

-doc "A server's id, and the name of one of its sessions.".
-type key() :: {Server :: term(), erlmcp_cluster_session_id:nonce()}.
-doc "The limits of the events of each session of a server, as in `t:erlmcp:limits/0`.".
-type stored() :: #{stored_events | stored_bytes | stored_ms := pos_integer()}.
-type target() :: erlmcp_cluster_deaths:incarnation() | none.
-type stream() :: {Incarnation :: non_neg_integer(), integer()}.
-opaque copies() :: #{
    most := pos_integer(),
    %% the bytes of all events, and the number of the last one
    words := atomics:atomics_ref(),
    %% {EventKey, Number, Bytes, Until}; the key is {Key, Stream, Position}
    events := ets:tid(),
    %% {Number, EventKey}, the oldest first
    order := ets:tid(),
    %% {{Key, Number}, EventKey}
    of_sessions := ets:tid(),
    %% {{Target, Number}, EventKey}
    unsent := ets:tid(),
    %% {{Key, Stream}, Requests, Last, Ended, Until}, with the position of the last event that came
    streams := ets:tid(),
    %% {Key, Stored, Own, Target, Events, Bytes}
    sessions := ets:tid()
}.

-doc "Creates the tables, for events of `Most` bytes together.".
-spec new(Most :: pos_integer()) -> copies().
new(Most) ->
    Table = fun(Type) -> ets:new(?MODULE, [Type, {read_concurrency, true}]) end,
    #{most => Most, words => atomics:new(2, []), events => Table(ordered_set),
      order => Table(ordered_set), of_sessions => Table(ordered_set),
      unsent => Table(ordered_set), streams => Table(ordered_set), sessions => Table(set)}.

-doc """
Adds an event, unless it is there. `Now` is a monotonic time in milliseconds. If the session has a
target, the event is to be sent there. An event whose stream answers no requests says that the home
has forgotten the stream. The stream is then deleted here, too, unless its end has come.
""".
-spec add(key(), stored(), erlmcp_server_cluster:kept_event(), Now :: integer(), copies()) -> ok.
add(Key, _, #{stream := Stream, requests := {_, []}}, _, #{streams := Streams} = Copies) ->
    %% Its home has forgotten the stream. If the end has not come by now, it never will.
    case ets:lookup(Streams, {Key, Stream}) of
        [{_, _, _, false, _}] -> forget(Key, Stream, Copies);
        _ -> ok
    end;
add(Key, Stored, #{stream := Stream, position := Position, bytes := Bytes} = Event, Now, Copies) ->
    #{events := Events, sessions := Sessions} = Copies,
    Until = Now + map_get(stored_ms, Stored),
    EventKey = {Key, Stream, Position},
    _ = ets:insert_new(Sessions, {Key, Stored, false, none, 0, 0}),
    ok = noted(Key, Event, Until, Copies),
    case is_binary(Bytes) andalso ets:member(Events, EventKey) of
        true -> ok;
        false when Bytes =:= none -> to_send(EventKey, next(Copies), Copies);
        false -> insert(EventKey, Bytes, Until, Copies)
    end,
    forget_ended(Key, Stream, Copies).

next(#{words := Words}) ->
    atomics:add_get(Words, ?LAST, 1).

to_send({Key, _, _} = EventKey, Number, #{unsent := Unsent} = Copies) ->
    {_, Target} = session(Key, Copies),
    _ = Target =:= none orelse ets:insert(Unsent, {{Target, Number}, EventKey}),
    ok.

noted(Key, #{stream := Stream, requests := Requests, position := Position} = Event, Until,
      #{streams := Streams}) ->
    {Last, Ended} = case {ets:lookup(Streams, {Key, Stream}), Event} of
        {[{_, _, Before, true, _}], _} -> {max(Position, Before), true};
        {[{_, _, Before, lost, _}], _} -> {Before, lost};
        {[{_, _, Before, _, _}], #{ended := true, bytes := none}} when Position > Before ->
            {Before, lost};
        {[{_, _, Before, false, _}], #{ended := Is}} -> {max(Position, Before), Is};
        {[], #{ended := Is}} -> {Position, Is}
    end,
    true = ets:insert(Streams, {{Key, Stream}, Requests, Last, Ended, Until}),
    ok.

insert({Key, _, _} = EventKey, Bytes, Until, Copies) ->
    #{words := Words, events := Events, order := Order, of_sessions := OfSessions,
      sessions := Sessions} = Copies,
    Number = next(Copies),
    Size = byte_size(Bytes) + ?OVERHEAD,
    ok = atomics:add(Words, ?BYTES, Size),
    true = ets:insert(Events, {EventKey, Number, Bytes, Until}),
    true = ets:insert(Order, {Number, EventKey}),
    true = ets:insert(OfSessions, {{Key, Number}, EventKey}),
    _ = ets:update_counter(Sessions, Key, [{5, 1}, {6, byte_size(Bytes)}]),
    ok = to_send(EventKey, Number, Copies),
    ok = trim_session(Key, Copies),
    trim(Copies).

%% The newest event stays whatever its size.
trim_session(Key, #{sessions := Sessions, of_sessions := OfSessions} = Copies) ->
    [{_, #{stored_events := Most, stored_bytes := MostBytes}, _, _, Count, Bytes}] =
        ets:lookup(Sessions, Key),
    case Count > 1 andalso (Count > Most orelse Bytes > MostBytes) of
        true ->
            Oldest = ets:next(OfSessions, {Key, 0}),
            ok = drop(ets:lookup_element(OfSessions, Oldest, 2), Copies),
            trim_session(Key, Copies);
        false ->
            ok
    end.

trim(#{most := Most, order := Order} = Copies) ->
    case bytes(Copies) > Most of
        true ->
            [{_, EventKey}] = ets:lookup(Order, ets:first(Order)),
            ok = drop(EventKey, Copies),
            trim(Copies);
        false ->
            ok
    end.

drop({Key, Stream, _} = EventKey, Copies) ->
    #{words := Words, events := Events, order := Order, of_sessions := OfSessions,
      sessions := Sessions, unsent := Unsent} = Copies,
    {_, Target} = session(Key, Copies),
    [{_, Number, Bytes, _}] = ets:take(Events, EventKey),
    true = ets:delete(Order, Number),
    true = ets:delete(OfSessions, {Key, Number}),
    true = ets:delete(Unsent, {Target, Number}),
    ok = atomics:sub(Words, ?BYTES, byte_size(Bytes) + ?OVERHEAD),
    _ = ets:update_counter(Sessions, Key, [{5, -1}, {6, -byte_size(Bytes)}]),
    forget_ended(Key, Stream, Copies).

forget_ended(Key, Stream, #{streams := Streams, events := Events} = Copies) ->
    case ets:lookup(Streams, {Key, Stream}) of
        [{_, _, Last, true, _}] ->
            case ets:member(Events, {Key, Stream, Last}) of
                true -> ok;
                false -> forget(Key, Stream, Copies)
            end;
        _ ->
            ok
    end.

forget(Key, Stream, #{streams := Streams, events := Events} = Copies) ->
    true = ets:delete(Streams, {Key, Stream}),
    IsOfStream = fun({Whose, Of, _}) -> {Whose, Of} =:= {Key, Stream} end,
    lists:foreach(fun(EventKey) -> ok = drop(EventKey, Copies) end,
                  while(IsOfStream, Events, {Key, Stream, 0})).

-doc "Returns the bytes of all events, with 200 added for each event.".
-spec bytes(copies()) -> non_neg_integer().
bytes(#{words := Words}) ->
    atomics:get(Words, ?BYTES).

-doc """
Returns whether a session has ever been this node's own, and its present target. A session of which
nothing is known has `{false, none}`.
""".
-spec session(key(), copies()) -> {Own :: boolean(), target()}.
session(Key, #{sessions := Sessions}) ->
    case ets:lookup(Sessions, Key) of
        [{_, _, Own, Target, _, _}] -> {Own, Target};
        [] -> {false, none}
    end.

-doc "Returns all sessions, each with what `session/2` returns for it.".
-spec sessions(copies()) -> [{key(), Own :: boolean(), target()}].
sessions(#{sessions := Sessions}) ->
    ets:select(Sessions, [{{'$1', '_', '$2', '$3', '_', '_'}, [], [{{'$1', '$2', '$3'}}]}]).

-doc "Records that a session is this node's own from now on. Adds the session if it is not known.".
-spec own(key(), stored(), copies()) -> ok.
own(Key, Stored, #{sessions := Sessions}) ->
    _ = ets:update_element(Sessions, Key, {3, true}, {Key, Stored, false, none, 0, 0}),
    ok.

-doc """
Gives a session a target, to which all its events are to be sent. A target that the session has
already is to be sent all events again. With `none` nothing is to be sent. Fails for a session that
is not in `sessions/1`.
""".
-spec aim(key(), target(), copies()) -> ok.
aim(Key, Target, #{sessions := Sessions, unsent := Unsent, of_sessions := OfSessions} = Copies) ->
    {_, Before} = session(Key, Copies),
    true = ets:update_element(Sessions, Key, {4, Target}),
    lists:foreach(fun({_, Number} = Row) ->
        true = ets:delete(Unsent, {Before, Number}),
        to_send(ets:lookup_element(OfSessions, Row, 2), Number, Copies)
    end, while(fun({Whose, _}) -> Whose =:= Key end, OfSessions, {Key, 0})),
    %% A stream that has just begun has no events, and one may have lost its last event.
    lists:foreach(fun(Stream) ->
        [{_, _, Last, Ended, _}] = ets:lookup(map_get(streams, Copies), {Key, Stream}),
        ok = to_send({Key, Stream, Last}, next(Copies), Copies),
        _ = Ended =:= lost andalso to_send({Key, Stream, Last + 1}, next(Copies), Copies)
    end, streams(Key, Copies)).

streams(Key, #{streams := Streams}) ->
    [Stream || {_, Stream} <- while(fun({Whose, _}) -> Whose =:= Key end, Streams, {Key, 0})].

%% Returns the keys of an ordered table after `Key`, up to the first one that `IsSuch` refuses.
while(IsSuch, Table, Key) ->
    Next = ets:next(Table, Key),
    case Next =/= '$end_of_table' andalso IsSuch(Next) of
        true -> [Next | while(IsSuch, Table, Next)];
        false -> []
    end.

-doc "Forgets which events are to be sent to an incarnation that is no session's target any more.".
-spec give_up(erlmcp_cluster_deaths:incarnation(), copies()) -> ok.
give_up(Target, #{unsent := Unsent}) ->
    true = ets:match_delete(Unsent, {{Target, '_'}, '_'}),
    ok.

-doc """
Returns the targets to which something is to be sent. An earlier target of a session may be among
them until `unsent/3` has been called for it.
""".
-spec targets(copies()) -> [erlmcp_cluster_deaths:incarnation()].
targets(#{unsent := Unsent}) ->
    targets(ets:first(Unsent), Unsent).

targets('$end_of_table', _) -> [];
%% An atom is behind all numbers.
targets({Target, _}, Unsent) -> [Target | targets(ets:next(Unsent, {Target, last}), Unsent)].

-doc """
Returns events that are to be sent to a target, the oldest first: about `Most` bytes, or one event.
`sent/3` takes their numbers. Only the process that created the tables may call this function.
""".
-spec unsent(erlmcp_cluster_deaths:incarnation(), Most :: pos_integer(), copies()) ->
    {[Number :: pos_integer()], [{key(), stored(), erlmcp_server_cluster:kept_event()}]}.
unsent(Target, Most, #{unsent := Unsent, sessions := Sessions} = Copies) ->
    Taken = taken(ets:next(Unsent, {Target, 0}), Target, Most, Copies),
    {[Number || {Number, _} <- Taken],
     [{Key, Stored, event(EventKey, Copies)}
      || {_, {Key, _, _} = EventKey} <- Taken,
         {_, Stored, _, _, _, _} <- ets:lookup(Sessions, Key)]}.

taken({Target, Number} = Row, Target, Most, #{unsent := Unsent, events := Events} = Copies)
        when Most > 0 ->
    {Key, _, _} = EventKey = ets:lookup_element(Unsent, Row, 2),
    case session(Key, Copies) of
        {_, Target} ->
            Size = byte_size(ets:lookup_element(Events, EventKey, 3, ~"")) + ?OVERHEAD,
            [{Number, EventKey} | taken(ets:next(Unsent, Row), Target, Most - Size, Copies)];
        _ ->
            %% The session has another target by now. `aim/3` finds only rows with an event's own
            %% number.
            true = ets:delete(Unsent, Row),
            taken(ets:next(Unsent, Row), Target, Most, Copies)
    end;
taken(_, _, _, _) ->
    [].

event({Key, Stream, Position} = EventKey, #{events := Events, streams := Streams}) ->
    {Requests, Ended} = case ets:lookup(Streams, {Key, Stream}) of
        [{_, Of, Last, lost, _}] -> {Of, Position > Last};
        [{_, Of, Last, HasEnded, _}] -> {Of, HasEnded andalso Position =:= Last};
        %% The stream has ended without an answer.
        [] -> {{call, []}, true}
    end,
    #{stream => Stream, requests => Requests, position => Position, ended => Ended,
      bytes => ets:lookup_element(Events, EventKey, 3, none)}.

-doc "Records that the events with these numbers were sent to the target.".
-spec sent(erlmcp_cluster_deaths:incarnation(), [Number :: pos_integer()], copies()) -> ok.
sent(Target, Numbers, #{unsent := Unsent}) ->
    lists:foreach(fun(Number) -> true = ets:delete(Unsent, {Target, Number}) end, Numbers).

-doc """
Returns what this node has of a stream: its requests, its last events without a gap, and its end.
`Last` is the position of the last event that came, which may be deleted by now. `Ended` is `lost`
if the last event of the stream, possibly the answer, was lost. Returns `none` if the node has
nothing of the stream. Raises `badarg` if the owner of the tables has ended.
""".
-spec stream(key(), stream(), copies()) ->
    {ok, erlmcp_server_cluster:requests(), [{Position :: pos_integer(), binary()}],
     Last :: non_neg_integer(), Ended :: boolean() | lost} | none.
stream(Key, Stream, #{streams := Streams} = Copies) ->
    case ets:lookup(Streams, {Key, Stream}) of
        [{_, Requests, Last, Ended, _}] ->
            {ok, Requests, events({Key, Stream, Last}, [], Copies), Last, Ended};
        [] ->
            none
    end.

events({Key, Stream, Position} = EventKey, Later, #{events := Events} = Copies) ->
    case ets:lookup(Events, EventKey) of
        [{_, _, Bytes, _}] ->
            events({Key, Stream, Position - 1}, [{Position, Bytes} | Later], Copies);
        [] ->
            Later
    end.

-doc """
Deletes events that are too old at `Now`, a monotonic time in milliseconds. Also deletes streams
that are too old and whose end will not come any more, and then sessions without streams. `IsOver`
returns `true` if this node will hear no more of a stream.
""".
-spec expire(Now :: integer(), IsOver :: fun(({key(), stream()}) -> boolean()), copies()) -> ok.
expire(Now, IsOver, #{streams := Streams, sessions := Sessions} = Copies) ->
    lists:foreach(fun({Key, _, _}) -> ok = expire_events(Key, Now, Copies) end, sessions(Copies)),
    Remembered = ets:select(Streams, [{{'$1', '_', '_', '$2', '$3'}, [{'=/=', '$2', true}],
                                       [{{'$1', '$2', '$3'}}]}]),
    lists:foreach(fun({{Key, Stream} = Row, Ended, Until}) ->
        case {Ended =:= lost orelse IsOver(Row), ets:lookup(Sessions, Key)} of
            {false, [{_, #{stored_ms := Milliseconds}, _, _, _, _}]} ->
                ets:update_element(Streams, Row, {5, Now + Milliseconds});
            _ ->
                Until > Now orelse forget(Key, Stream, Copies)
        end
    end, Remembered),
    lists:foreach(fun({Key, _, _}) ->
        streams(Key, Copies) =:= [] andalso ets:delete(Sessions, Key)
    end, sessions(Copies)).

%% The events of one session get too old in their order. Those of another server may do so earlier.
expire_events(Key, Now, #{of_sessions := OfSessions, events := Events} = Copies) ->
    case ets:next(OfSessions, {Key, 0}) of
        {Key, _} = Oldest ->
            EventKey = ets:lookup_element(OfSessions, Oldest, 2),
            case ets:lookup_element(Events, EventKey, 4) =< Now of
                true ->
                    ok = drop(EventKey, Copies),
                    expire_events(Key, Now, Copies);
                false ->
                    ok
            end;
        _ ->
            ok
    end.
