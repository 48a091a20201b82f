-module(erlmcp_httpc_pool_table).
-moduledoc """
The places of a pool's connections and their leases, in tables that every process of the client
reads and writes. So a connection is taken and given back without asking a process.

A place holds one connection or none. A connection has numbered seats: one exchange, or the streams
of HTTP/2. A lease is a row with the seat as its key and the holder as its value. So taking a seat
is one atomic step, and the leases of dead holders can be found. The rows are the truth. The load
counters next to them only say where to look first, and the pool's sweep corrects them.

Internal.
""".

-export([new/2]).
-export([claim/3, connection/1, protocol/1, release/2]).
-export([publish/6, withdraw/3, set_seats/4]).
-export([leases/1, held/2, orphan/2, drop/2, forget/2, settle/3]).
-export([count_leases/2, last_used/2, open/1, busy/1]).
-export([wait/3, waiting/2, refuse/3, admit/1, refusal/2]).
-export([reached/2, outermost/1]).

-export_type([slots/0, lease/0, kind/0, place/0, seat/0, row/0, connection/0, protocol/0]).

-type kind() :: call | stream.
-doc "A process of gun's, or the socket of HTTP/1.1 in the clear (`plain`).".
-type connection() :: pid() | inet:socket().
-type protocol() :: plain | http | http2.
-type place() :: pos_integer().
-type seat() :: {Connection :: integer(), pos_integer()}.
-type row() :: {seat(), Holder :: pid() | orphan, kind(), place()}.

-record(slots, {
    connections :: ets:tid(),
    leases :: ets:tid(),
    numbers :: atomics:atomics_ref(),
    calls :: pos_integer(),
    streams :: pos_integer()
}).
-record(lease, {seat :: seat(), place :: place(), gun :: connection(), protocol :: protocol()}).

-opaque slots() :: #slots{}.
-opaque lease() :: #lease{}.

%% The counters: six of the pool, then three of each place.
-define(WAITING_CALLS, 1).
-define(WAITING_STREAMS, 2).
-define(REFUSED_UNTIL, 3).
-define(REACHED(Depth), (4 + Depth)).
-define(COMMON, 6).
-define(NEVER, (-1 bsl 60)).

-doc """
Creates the places: those for calls, then those for streams. The calling process owns the tables.
""".
-spec new(Calls :: pos_integer(), Streams :: pos_integer()) -> slots().
new(Calls, Streams) ->
    Numbers = atomics:new(?COMMON + 3 * (Calls + Streams), []),
    ok = atomics:put(Numbers, ?REFUSED_UNTIL, ?NEVER),
    Connections = ets:new(?MODULE, [public, {read_concurrency, true}]),
    true = ets:insert(Connections, {refused, none}),
    #slots{connections = Connections,
           leases = ets:new(?MODULE, [public, {write_concurrency, true},
                                      {decentralized_counters, true}]),
           numbers = Numbers, calls = Calls, streams = Streams}.

-doc """
Takes a seat for a process in the least loaded connection of a range. `call` takes from the places
for calls, `stream` from those for streams, and `shared` from those for calls, for a stream.
""".
-spec claim(call | stream | shared, pid(), slots()) -> {ok, lease()} | none.
claim(call, Pid, #slots{calls = Calls} = Slots) -> claim(1, Calls, Pid, call, Slots, []);
claim(shared, Pid, #slots{calls = Calls} = Slots) -> claim(1, Calls, Pid, stream, Slots, []);
claim(stream, Pid, #slots{calls = Calls, streams = Streams} = Slots) ->
    claim(Calls + 1, Calls + Streams, Pid, stream, Slots, []).

claim(First, Last, Pid, Kind, Slots, Tried) ->
    case least(First, Last, Slots, Tried, {infinity, none}) of
        none ->
            none;
        Place ->
            case take(Place, Pid, Kind, Slots) of
                {ok, _} = Taken -> Taken;
                none -> claim(First, Last, Pid, Kind, Slots, [Place | Tried])
            end
    end.

%% The first of equals, so that connections that are not needed stay unused and end.
least(Place, Last, _, _, {_, Best}) when Place > Last ->
    Best;
least(Place, Last, #slots{numbers = Numbers} = Slots, Tried, Best) ->
    Seats = atomics:get(Numbers, seats(Place)),
    Load = atomics:get(Numbers, load(Place)),
    case Seats > 0 andalso Load < Seats andalso not lists:member(Place, Tried) of
        true when Load =< 0 -> Place;
        true -> least(Place + 1, Last, Slots, Tried, min(Best, {Load, Place}));
        false -> least(Place + 1, Last, Slots, Tried, Best)
    end.

take(Place, Pid, Kind, #slots{connections = Connections} = Slots) ->
    case ets:lookup(Connections, Place) of
        [{Place, Id, Gun, Seats, Protocol}] when Seats > 0 ->
            case is_alive(Gun) of
                true -> sit(erlang:phash2(Pid, Seats), Seats, Seats, {Place, Id, Gun, Protocol},
                            Pid, Kind, Slots);
                false -> none
            end;
        _ ->
            none
    end.

is_alive(Socket) when is_port(Socket) -> erlang:port_info(Socket, id) =/= undefined;
is_alive(Gun) -> is_process_alive(Gun).

sit(_, 0, _, _, _, _, _) ->
    none;
sit(At, Tries, Seats, {Place, Id, Gun, Protocol} = Connection, Pid, Kind, Slots) ->
    #slots{connections = Connections, leases = Leases, numbers = Numbers} = Slots,
    Seat = {Id, At + 1},
    case ets:insert_new(Leases, {Seat, Pid, Kind, Place}) of
        false ->
            sit((At + 1) rem Seats, Tries - 1, Seats, Connection, Pid, Kind, Slots);
        true ->
            ok = atomics:add(Numbers, load(Place), 1),
            %% The pool withdraws a connection before it looks for taken seats. So either this
            %% process sees the withdrawal, or the pool sees the seat.
            case ets:lookup(Connections, Place) of
                [{Place, Id, _, _, _}] ->
                    {ok, #lease{seat = Seat, place = Place, gun = Gun, protocol = Protocol}};
                _ ->
                    _ = vacate(Seat, Place, Slots),
                    none
            end
    end.

vacate(Seat, Place, #slots{leases = Leases, numbers = Numbers}) ->
    case ets:take(Leases, Seat) of
        [_] -> atomics:sub(Numbers, load(Place), 1);
        [] -> ok
    end.

-doc "Returns the connection of a lease.".
-spec connection(lease()) -> connection().
connection(#lease{gun = Gun}) ->
    Gun.

-doc "Returns the protocol of a lease's connection.".
-spec protocol(lease()) -> protocol().
protocol(#lease{protocol = Protocol}) ->
    Protocol.

-doc """
Gives a seat back. A `broken` connection is withdrawn first, so that it is not taken again. Returns
`tell` if the pool's process must be told: of a broken connection, and while processes wait.
""".
-spec release({lease(), reusable | broken}, slots()) -> tell | ok.
release({#lease{seat = {Id, _} = Seat, place = Place}, How}, Slots) ->
    #slots{connections = Connections, numbers = Numbers} = Slots,
    case How of
        reusable -> ok = atomics:put(Numbers, used_at(Place), erlmcp_clock:now_ms());
        broken -> _ = ets:match_delete(Connections, {Place, Id, '_', '_', '_'})
    end,
    ok = vacate(Seat, Place, Slots),
    Awaited = atomics:get(Numbers, ?WAITING_CALLS) + atomics:get(Numbers, ?WAITING_STREAMS),
    case How =:= broken orelse Awaited > 0 of
        true -> tell;
        false -> ok
    end.

-doc "Puts a connection in a place, from which calls can take it.".
-spec publish(place(), integer(), connection(), Seats :: non_neg_integer(), protocol(), slots()) ->
    ok.
publish(Place, Id, Gun, Seats, Protocol, #slots{connections = Connections, numbers = Numbers}) ->
    ok = atomics:put(Numbers, load(Place), 0),
    ok = atomics:put(Numbers, used_at(Place), ?NEVER),
    true = ets:insert(Connections, {Place, Id, Gun, Seats, Protocol}),
    atomics:put(Numbers, seats(Place), Seats).

-doc "Removes a connection from its place.".
-spec withdraw(place(), integer(), slots()) -> ok.
withdraw(Place, Id, #slots{connections = Connections, numbers = Numbers}) ->
    ok = atomics:put(Numbers, seats(Place), 0),
    true = ets:match_delete(Connections, {Place, Id, '_', '_', '_'}),
    ok.

-doc "Sets the number of seats, when the server allows another number of streams.".
-spec set_seats(place(), integer(), non_neg_integer(), slots()) -> ok.
set_seats(Place, Id, Seats, #slots{connections = Connections, numbers = Numbers}) ->
    case ets:lookup(Connections, Place) of
        [{Place, Id, _, _, _}] ->
            _ = ets:update_element(Connections, Place, {4, Seats}),
            atomics:put(Numbers, seats(Place), Seats);
        _ ->
            ok
    end.

-doc "Returns all leases.".
-spec leases(slots()) -> [row()].
leases(#slots{leases = Leases}) ->
    ets:tab2list(Leases).

-doc "Returns the number of taken seats of a connection.".
-spec held(integer(), slots()) -> non_neg_integer().
held(Id, #slots{leases = Leases}) ->
    ets:select_count(Leases, [{{{Id, '_'}, '_', '_', '_'}, [], [true]}]).

-doc """
Marks the seat of a dead holder, whose stream still runs, as taken by no process. Returns `false` if
the holder gave it back before its death; another process may have it now.
""".
-spec orphan(row(), slots()) -> boolean().
orphan({_, orphan, _, _}, _) ->
    true;
orphan({Seat, Holder, Kind, Place}, #slots{leases = Leases}) ->
    Orphan = {{{element, 1, '$_'}, orphan, Kind, Place}},
    1 =:= ets:select_replace(Leases, [{{Seat, Holder, Kind, Place}, [], [Orphan]}]).

-doc "Takes a seat from its holder.".
-spec drop(row(), slots()) -> ok.
drop({Seat, _, _, Place}, Slots) ->
    vacate(Seat, Place, Slots).

-doc "Removes the seats of dead holders when their connection has ended.".
-spec forget(integer(), slots()) -> ok.
forget(Id, #slots{leases = Leases}) ->
    true = ets:match_delete(Leases, {{Id, '_'}, orphan, '_', '_'}),
    ok.

-doc "Corrects the load counter of a place to the number of its rows.".
-spec settle(place(), non_neg_integer(), slots()) -> ok.
settle(Place, Load, #slots{numbers = Numbers}) ->
    atomics:put(Numbers, load(Place), Load).

-doc "Returns the number of leases of a kind.".
-spec count_leases(kind(), slots()) -> non_neg_integer().
count_leases(Kind, #slots{leases = Leases}) ->
    ets:select_count(Leases, [{{'_', '_', Kind, '_'}, [], [true]}]).

-doc "Returns when a connection was last given back in order, in milliseconds; or `never`.".
-spec last_used(place(), slots()) -> integer() | never.
last_used(Place, #slots{numbers = Numbers}) ->
    case atomics:get(Numbers, used_at(Place)) of
        ?NEVER -> never;
        At -> At
    end.

-doc "Returns the number of connections that can be taken.".
-spec open(slots()) -> non_neg_integer().
open(#slots{connections = Connections}) ->
    %% The row `refused` is no connection.
    rows(Connections) - 1.

-doc "Returns the number of leases.".
-spec busy(slots()) -> non_neg_integer().
busy(#slots{leases = Leases}) ->
    rows(Leases).

%% A table that ended with its pool is a badarg here, as in the other functions.
rows(Table) ->
    case ets:info(Table, size) of
        Size when is_integer(Size) -> Size;
        undefined -> error(badarg)
    end.

-doc "Publishes the number of calls or streams that wait.".
-spec wait(kind(), non_neg_integer(), slots()) -> ok.
wait(call, Count, #slots{numbers = Numbers}) -> atomics:put(Numbers, ?WAITING_CALLS, Count);
wait(stream, Count, #slots{numbers = Numbers}) -> atomics:put(Numbers, ?WAITING_STREAMS, Count).

-doc "Returns the number of calls or streams that wait.".
-spec waiting(kind(), slots()) -> non_neg_integer().
waiting(call, #slots{numbers = Numbers}) -> atomics:get(Numbers, ?WAITING_CALLS);
waiting(stream, #slots{numbers = Numbers}) -> atomics:get(Numbers, ?WAITING_STREAMS).

-doc "Records that the server cannot be reached, and is not tried before `Until`.".
-spec refuse(Why :: term(), Until :: integer(), slots()) -> ok.
refuse(Why, Until, #slots{connections = Connections, numbers = Numbers}) ->
    true = ets:insert(Connections, {refused, Why}),
    atomics:put(Numbers, ?REFUSED_UNTIL, Until).

-doc "Records that the server may be tried.".
-spec admit(slots()) -> ok.
admit(#slots{numbers = Numbers}) ->
    atomics:put(Numbers, ?REFUSED_UNTIL, ?NEVER).

-doc "Returns why the server is not tried now, and for how many more milliseconds.".
-spec refusal(Now :: integer(), slots()) -> {true, Why :: term(), pos_integer()} | false.
refusal(Now, #slots{connections = Connections, numbers = Numbers}) ->
    case atomics:get(Numbers, ?REFUSED_UNTIL) of
        Until when Until > Now ->
            [{refused, Why}] = ets:lookup(Connections, refused),
            {true, Why, Until - Now};
        _ ->
            false
    end.

-doc "Records that a connection reached an address at the level `Depth`.".
-spec reached(erlmcp_outbound_hosts:depth(), slots()) -> ok.
reached(Depth, #slots{numbers = Numbers}) ->
    atomics:put(Numbers, ?REACHED(Depth), 1).

-doc "Returns how far inside the outermost address lies that a connection has reached.".
-spec outermost(slots()) -> erlmcp_outbound_hosts:depth() | none.
outermost(#slots{numbers = Numbers}) ->
    case [Depth || Depth <- [0, 1, 2], atomics:get(Numbers, ?REACHED(Depth)) =:= 1] of
        [Outermost | _] -> Outermost;
        [] -> none
    end.

seats(Place) -> ?COMMON + 3 * Place - 2.
load(Place) -> ?COMMON + 3 * Place - 1.
used_at(Place) -> ?COMMON + 3 * Place.
