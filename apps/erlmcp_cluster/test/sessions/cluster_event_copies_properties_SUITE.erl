-module(cluster_event_copies_properties_SUITE).
-moduledoc """
Properties of the kept events of a node: what is there of a stream is its end without a gap, within
the bounds, and is sent once to whoever is the next home. Events are added as in the cluster: those
of a stream in their order, and some again.
""".

-include_lib("proper/include/proper.hrl").

-export([suite/0, all/0]).
-export([a_stream_has_no_gap/1, sessions_are_bounded/1, the_node_is_bounded/1,
         each_event_is_sent_once/1, a_new_target_is_sent_everything/1, all_gets_old/1,
         a_lost_end_is_known/1, an_end_without_its_event_is_forgotten/1,
         each_server_has_its_own_time/1, what_is_sent_again_gets_old_too/1,
         copies_outlast_whatever_is_sent_again/1]).

-define(OVERHEAD, 200).
-define(STORED, #{stored_events => 4, stored_bytes => 50, stored_ms => 1_000}).
-define(MOST, 1_500).

suite() ->
    [{timetrap, {minutes, 2}}].

all() ->
    [a_stream_has_no_gap, sessions_are_bounded, the_node_is_bounded, each_event_is_sent_once,
     a_new_target_is_sent_everything, all_gets_old, a_lost_end_is_known,
     an_end_without_its_event_is_forgotten, each_server_has_its_own_time,
     what_is_sent_again_gets_old_too,
     copies_outlast_whatever_is_sent_again].

%% Whatever was lost on the way.
a_stream_has_no_gap(_) ->
    holds(?FORALL(Said, said(), begin
        Copies = copies(Said),
        lists:all(fun({Key, Stream, Events}) ->
            case erlmcp_cluster_event_copies:stream(Key, Stream, Copies) of
                {ok, _, Kept, Last, Ended} ->
                    Positions = [Position || {Position, _} <- Kept],
                    Last =:= lists:max([Position || #{position := Position} <- Events])
                        andalso Positions =:= lists:seq(Last - length(Kept) + 1, Last)
                        andalso Ended =:= lists:any(fun(#{ended := Is}) -> Is end, Events)
                        andalso [] =:= Kept -- [{P, B} || #{position := P, bytes := B} <- Events];
                none ->
                    %% It has ended, and was dropped.
                    lists:any(fun(#{ended := Is}) -> Is end, Events)
            end
        end, by_stream(Said))
    end)).

sessions_are_bounded(_) ->
    holds(?FORALL(Said, said(), begin
        Copies = copies(Said),
        lists:all(fun(Key) ->
            Bytes = [Bytes || {Of, Stream, _} <- by_stream(Said), Of =:= Key,
                              {ok, _, Kept, _, _}
                                  <- [erlmcp_cluster_event_copies:stream(Key, Stream, Copies)],
                              {_, Bytes} <- Kept],
            length(Bytes) =< 1
                orelse length(Bytes) =< 4 andalso iolist_size(Bytes) =< 50
        end, lists:usort([Key || {Key, _} <- Said]))
    end)).

%% One more event takes the oldest ones away. The newest is there, if it fits.
the_node_is_bounded(_) ->
    holds(?FORALL(Said, non_empty(said()), begin
        Copies = copies(Said),
        {Key, #{stream := Stream, position := Position, bytes := Bytes}} = lists:last(Said),
        erlmcp_cluster_event_copies:bytes(Copies) =< ?MOST
            andalso (Bytes =:= none orelse has(Key, Stream, Position, Copies))
    end)),
    Copies = erlmcp_cluster_event_copies:new(?MOST),
    Add = fun(N) -> add({key(N), event(1, 1, ?MOST div 5 - ?OVERHEAD)}, Copies) end,
    ok = lists:foreach(Add, lists:seq(1, 5)),
    [true = has(key(N), {1, 1}, 1, Copies) || N <- lists:seq(1, 5)],
    ?MOST = erlmcp_cluster_event_copies:bytes(Copies),
    ok = Add(6),
    [false, true, true, true, true, true] = [has(key(N), {1, 1}, 1, Copies)
                                             || N <- lists:seq(1, 6)].

has(Key, Stream, Position, Copies) ->
    case erlmcp_cluster_event_copies:stream(Key, Stream, Copies) of
        {ok, _, Kept, _, _} -> lists:keymember(Position, 1, Kept);
        none -> false
    end.

%% A node that gets what another one sends has the same, if it has room.
each_event_is_sent_once(_) ->
    holds(?FORALL({Said, Most}, {said(), range(1, 600)}, begin
        Copies = erlmcp_cluster_event_copies:new(1_000_000),
        Other = erlmcp_cluster_event_copies:new(1_000_000),
        _ = [begin
                 ok = erlmcp_cluster_event_copies:own(Key, ?STORED, Copies),
                 aimed(Key, 7, Copies),
                 ok = add(One, Copies),
                 Number rem 3 =/= 0 orelse send(7, Most, Copies, Other)
             end || {Number, {Key, _} = One} <- lists:enumerate(lists:uniq(Said))],
        send(7, Most, Copies, Other),
        {[], []} = erlmcp_cluster_event_copies:unsent(7, Most, Copies),
        [] = erlmcp_cluster_event_copies:targets(Copies),
        are_there(Said, Copies, Other)
    end)).

a_new_target_is_sent_everything(_) ->
    holds(?FORALL(Said, said(), begin
        Copies = erlmcp_cluster_event_copies:new(?MOST),
        _ = [begin
                 ok = add(One, Copies),
                 aimed(Key, 7, Copies)
             end || {Key, _} = One <- Said],
        Sessions = erlmcp_cluster_event_copies:sessions(Copies),
        _ = [ok = erlmcp_cluster_event_copies:aim(Key, 9, Copies) || {Key, _, _} <- Sessions],
        {[], []} = erlmcp_cluster_event_copies:unsent(7, 300, Copies),
        Other = erlmcp_cluster_event_copies:new(?MOST),
        send(9, 300, Copies, Other),
        [] = erlmcp_cluster_event_copies:targets(Copies),
        are_there(Said, Copies, Other)
    end)).

aimed(Key, Target, Copies) ->
    case erlmcp_cluster_event_copies:session(Key, Copies) of
        {_, Target} -> ok;
        _ -> ok = erlmcp_cluster_event_copies:aim(Key, Target, Copies)
    end.

send(Target, Most, From, To) ->
    send(Target, Most, 0, From, To).

send(Target, Most, Now, From, To) ->
    case erlmcp_cluster_event_copies:unsent(Target, Most, From) of
        {[], []} ->
            ok;
        {Numbers, Events} ->
            _ = [ok = erlmcp_cluster_event_copies:add(Key, Stored, Event, Now, To)
                 || {Key, Stored, Event} <- Events],
            ok = erlmcp_cluster_event_copies:sent(Target, Numbers, From),
            send(Target, Most, Now, From, To)
    end.

%% What the first one has, the other one has, too.
are_there(Said, Copies, Other) ->
    lists:all(fun({Key, Stream, _}) ->
        case erlmcp_cluster_event_copies:stream(Key, Stream, Copies) of
            none ->
                true;
            {ok, _, Kept, Last, Ended} ->
                case erlmcp_cluster_event_copies:stream(Key, Stream, Other) of
                    {ok, _, There, Last, Ended} -> [] =:= Kept -- There;
                    %% The last one was dropped before it was sent.
                    {ok, _, _, Before, false} when Kept =:= [] -> Before < Last;
                    _ -> false
                end
        end
    end, by_stream(Said)).

%% Of a call that runs at a node that lives, the beginning stays.
all_gets_old(_) ->
    holds(?FORALL(Said, said(), begin
        Copies = copies(Said),
        Expire = fun(Now, IsOver) ->
            ok = erlmcp_cluster_event_copies:expire(Now, fun(_) -> IsOver end, Copies)
        end,
        Streams = by_stream(Said),
        Kept = fun() -> [Ended || {Key, Stream, _} <- Streams,
                                  {ok, _, _, _, Ended}
                                      <- [erlmcp_cluster_event_copies:stream(Key, Stream, Copies)]]
               end,
        Before = Kept(),
        Expire(999, true),
        Before = Kept(),
        Expire(1_000, false),
        0 = erlmcp_cluster_event_copies:bytes(Copies),
        Running = Kept(),
        false = lists:member(true, Running),
        Expire(1_999, true),
        Running = Kept(),
        Expire(2_000, true),
        [] =:= Kept() andalso [] =:= erlmcp_cluster_event_copies:sessions(Copies)
    end)).

%% A note of a stream's end names no requests. Without the event before it, nothing is known of it.
an_end_without_its_event_is_forgotten(_) ->
    Copies = copies([]),
    [ok = add({key(1), event(1, Position, 1)}, Copies) || Position <- lists:seq(1, 4)],
    {ok, {call, [1]}, [_, _, _, _], 4, _} = stream(Copies),
    Note = #{stream => maps:get(stream, event(1, 5, 0)), requests => {call, []}, position => 5,
             bytes => none, ended => true},
    ok = add({key(1), Note}, Copies),
    none = stream(Copies),
    %% Its events are, too.
    0 = erlmcp_cluster_event_copies:bytes(Copies),
    ok = erlmcp_cluster_event_copies:expire(500, fun(_) -> false end, Copies),
    [] = erlmcp_cluster_event_copies:sessions(Copies),
    ok = erlmcp_cluster_event_copies:expire(1_000, fun(_) -> false end, Copies).

%% A server may keep its events for a shorter time than another one.
each_server_has_its_own_time(_) ->
    Copies = copies([]),
    Event = (event(1, 1, 1))#{ended := true},
    [ok = erlmcp_cluster_event_copies:add(Key, maps:put(stored_ms, Ms, ?STORED), Event, 0, Copies)
     || {Key, Ms} <- [{key(1), 10_000}, {key(2), 1_000}]],
    ok = erlmcp_cluster_event_copies:expire(1_000, fun(_) -> false end, Copies),
    [{ok, _, [{1, _}], 1, true}, none] =
        [erlmcp_cluster_event_copies:stream(Key, map_get(stream, Event), Copies)
         || Key <- [key(1), key(2)]].

%% A home that has not yet dropped an old event sends it again. At the other node it is younger then
%% than the events after it, and goes with the last of them.
what_is_sent_again_gets_old_too(_) ->
    Copies = copies([]),
    Add = fun(Position, Now) ->
        Event = (event(1, Position, 1))#{ended := Position =:= 3},
        ok = erlmcp_cluster_event_copies:add(key(1), ?STORED, Event, Now, Copies)
    end,
    Expire = fun(Now) ->
        ok = erlmcp_cluster_event_copies:expire(Now, fun(_) -> false end, Copies)
    end,
    [Add(Position, Now) || {Position, Now} <- [{1, 0}, {2, 500}, {3, 900}]],
    Expire(1_050),
    {ok, _, [{2, _}, {3, _}], 3, true} = stream(Copies),
    Add(1, 1_060),
    {ok, _, [{1, _}, {2, _}, {3, _}], 3, true} = stream(Copies),
    Expire(1_950),
    none = stream(Copies),
    0 = erlmcp_cluster_event_copies:bytes(Copies),
    [] = erlmcp_cluster_event_copies:sessions(Copies),
    Expire(2_070).

%% Whatever a home says, drops and sends again, and whenever either node sweeps: the other node has
%% the end of a stream without a gap, as it was said, and keeps nothing for ever.
copies_outlast_whatever_is_sent_again(_) ->
    holds(?FORALL({Steps, Most}, {resize(100, list(step())), oneof([700, ?MOST])}, begin
        Home = erlmcp_cluster_event_copies:new(?MOST),
        Other = erlmcp_cluster_event_copies:new(Most),
        {Said, Now} = lists:foldl(fun(Step, {Said, Now}) ->
            Next = stepped(Step, {Said, Now}, Home, Other),
            true = lists:all(fun(Each) -> is_as_said(element(1, Next), Each) end, [Home, Other]),
            Next
        end, {#{}, 0}, Steps),
        Expire = fun(At) ->
            [ok = erlmcp_cluster_event_copies:expire(At, fun(_) -> true end, Each)
             || Each <- [Home, Other]]
        end,
        Expire(Now),
        send(7, 300, Now, Home, Other),
        Expire(Now + 2_000),
        true = is_as_said(Said, Other),
        [{0, []}, {0, []}] =:= [{erlmcp_cluster_event_copies:bytes(Each),
                                 erlmcp_cluster_event_copies:sessions(Each)}
                                || Each <- [Home, Other]]
    end), 3_000).

step() ->
    frequency([{6, {say, 1, range(1, 2), range(0, 20), frequency([{3, false}, {1, true}])}},
               {1, {say, 2, 1, range(0, 20), false}},
               {4, {wait, oneof([1, 400, 700])}}, {3, send}, {2, again},
               {2, {sweep, home}}, {2, {sweep, other}}]).

stepped({say, Session, Number, Size, Ends}, {Said, Now}, Home, _) ->
    Of = {Session, Number},
    case Said of
        #{Of := {_, true}} ->
            {Said, Now};
        #{} ->
            {Last, _} = maps:get(Of, Said, {-1, false}),
            Event = case event(Number, Last + 1, Size) of
                #{position := 0} = Begun -> Begun#{bytes := none};
                Later -> Later#{ended := Ends}
            end,
            ok = erlmcp_cluster_event_copies:own(key(Session), ?STORED, Home),
            aimed(key(Session), 7, Home),
            ok = erlmcp_cluster_event_copies:add(key(Session), ?STORED, Event, Now, Home),
            {Said#{Of => {Last + 1, map_get(ended, Event)}}, Now}
    end;
stepped({wait, Milliseconds}, {Said, Now}, _, _) ->
    {Said, Now + Milliseconds};
stepped(send, {_, Now} = State, Home, Other) ->
    send(7, 300, Now, Home, Other),
    State;
stepped(again, State, Home, _) ->
    _ = [ok = erlmcp_cluster_event_copies:aim(Key, 7, Home)
         || {Key, _, _} <- erlmcp_cluster_event_copies:sessions(Home)],
    State;
stepped({sweep, Which}, {_, Now} = State, Home, Other) ->
    Copies = map_get(Which, #{home => Home, other => Other}),
    ok = erlmcp_cluster_event_copies:expire(Now, fun(_) -> false end, Copies),
    State.

is_as_said(Said, Copies) ->
    lists:all(fun({{Session, Number}, {LastSaid, HasEnded}}) ->
        case erlmcp_cluster_event_copies:stream(key(Session), {1, Number}, Copies) of
            none ->
                true;
            {ok, {call, [Number]}, Kept, Last, Ended} ->
                [Position || {Position, _} <- Kept]
                        =:= lists:seq(Last - length(Kept) + 1, Last)
                    andalso lists:all(fun({Position, Bytes}) ->
                                          Bytes =:= binary:copy(<<Position>>, byte_size(Bytes))
                                      end, Kept)
                    andalso Last =< LastSaid
                    andalso (Ended =/= true orelse HasEnded andalso Last =:= LastSaid)
        end
    end, maps:to_list(Said)).

%% A node hears that a stream has ended, also if its last event is not copied. It remembers the
%% others for as long as ever.
a_lost_end_is_known(_) ->
    holds(?FORALL({Length, Copied}, {range(0, 4), range(0, 4)}, begin
        Copies = copies([]),
        Other = copies([]),
        Third = copies([]),
        ok = erlmcp_cluster_event_copies:own(key(1), ?STORED, Copies),
        ok = erlmcp_cluster_event_copies:aim(key(1), 7, Copies),
        Lost = (event(1, Length + 1, 0))#{bytes := none, ended := true},
        Said = [(event(1, 0, 0))#{bytes := none}]
            ++ [event(1, Position, 1) || Position <- lists:seq(1, Length)] ++ [Lost],
        _ = [begin
                 ok = add({key(1), Event}, Copies),
                 Number =/= Copied orelse send(7, 300, Copies, Other)
             end || {Number, Event} <- lists:enumerate(Said)],
        send(7, 300, Copies, Other),
        ok = erlmcp_cluster_event_copies:aim(key(1), 9, Copies),
        send(9, 300, Copies, Third),
        All = [Copies, Other, Third],
        [begin
             {ok, {call, [1]}, Kept, Length, lost} = stream(Each),
             Length = length(Kept),
             %% Although the call's node lives.
             ok = erlmcp_cluster_event_copies:expire(999, fun(_) -> false end, Each),
             {ok, _, Kept, Length, lost} = stream(Each),
             ok = erlmcp_cluster_event_copies:expire(1_000, fun(_) -> false end, Each),
             none = stream(Each),
             [] = erlmcp_cluster_event_copies:sessions(Each)
         end || Each <- All],
        true
    end)).

stream(Copies) ->
    erlmcp_cluster_event_copies:stream(key(1), {1, 1}, Copies).

%% Events, with some lost, of three sessions with three streams each.
said() ->
    How = frequency([{5, new}, {1, lost}, {1, twice}]),
    ?LET(Streams, list({range(1, 3), range(1, 2), list({range(0, 40), How}), boolean()}),
         begin
             Unique = maps:to_list(maps:from_list([{{Session, Number}, {Sizes, Ended}}
                                                   || {Session, Number, Sizes, Ended} <- Streams])),
             ?LET(Seed, non_neg_integer(),
                  merged([of_stream(key(Session), Number, Sizes, Ended)
                          || {{Session, Number}, {Sizes, Ended}} <- Unique], Seed))
         end).

of_stream(Key, Number, Sizes, Ended) ->
    Begun = [{Key, (event(Number, 0, 0))#{bytes := none}}],
    Length = length(Sizes),
    Begun ++ lists:append([
        case How of
            lost -> [];
            new -> [One];
            twice -> [One, One]
        end
        || {Position, {Size, How}} <- lists:enumerate(Sizes),
           One <- [{Key, (event(Number, Position, Size))#{
                             ended := Ended andalso Position =:= Length}}]]).

%% In some order, but those of a stream in their own.
merged([], _) -> [];
merged(Streams, Seed) ->
    At = Seed rem length(Streams),
    {Before, [[One | Rest] | Behind]} = lists:split(At, Streams),
    [One | merged(Before ++ [Rest || Rest =/= []] ++ Behind, Seed * 31 + 7)].

event(Number, Position, Size) ->
    #{stream => {1, Number}, requests => {call, [Number]}, position => Position,
      bytes => binary:copy(<<Position>>, Size), ended => false}.

key(N) -> {server, <<1:32, N:64>>}.

copies(Said) ->
    Copies = erlmcp_cluster_event_copies:new(?MOST),
    _ = [ok = add(One, Copies) || One <- Said],
    Copies.

add({Key, Event}, Copies) ->
    erlmcp_cluster_event_copies:add(Key, ?STORED, Event, 0, Copies).

by_stream(Said) ->
    [{Key, Stream, [Event || {Of, #{stream := Is} = Event} <- Said, Of =:= Key, Is =:= Stream]}
     || {Key, Stream} <- lists:usort([{Key, Stream} || {Key, #{stream := Stream}} <- Said])].

holds(Property) ->
    holds(Property, 300).

holds(Property, Count) ->
    true = proper:quickcheck(Property, [{numtests, Count}, {to_file, user}]).
