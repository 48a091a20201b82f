-module(erlmcp_httpc_pool_table).
-moduledoc """
The connections of a pool and their loans, in tables that every process of the client reads and
writes. So a connection is lent and given back without asking a process.

A pool has a fixed number of slots, each for one connection or none. A connection has numbered
seats: one on HTTP/1.1, and one for each possible stream on HTTP/2. A loan is a row with a seat and
its holder.

Internal.
""".

-export([new/3]).
-export([claim/3, connection/1, protocol/1, release/2]).
-export([publish/6, withdraw/3, set_seats/4]).
-export([loans/1, held/2, orphan/2, drop/2, forget/2, settle/3]).
-export([count_loans/2, last_used/2, open/1, busy/1]).
-export([wait/3, waiting/2, refuse/3, admit/1, refusal/2]).
-export([reached/2, outermost/1]).

-export_type([slots/0, loan/0, kind/0, slot/0, seat/0, row/0, connection/0, protocol/0]).

-doc "The use of a loan: for a request, a long stream, or a message that has no response.".
-type kind() :: call | stream | message.
-doc "A connection: a process of gun, or a socket of HTTP/1.1 in the clear (`plain`).".
-type connection() :: pid() | inet:socket().
-type protocol() :: plain | http | http2.
-type slot() :: pos_integer().
-type seat() :: {Connection :: integer(), pos_integer()}.
-type row() :: {seat(), Holder :: pid() | orphan, kind(), slot()}.

-record(slots, {
    connections :: ets:tid(),
    loans :: ets:tid(),
    numbers :: atomics:atomics_ref(),
    calls :: pos_integer(),
    messages :: pos_integer(),
    streams :: pos_integer()
}).
-record(loan, {seat :: seat(), slot :: slot(), gun :: connection(), protocol :: protocol()}).

-opaque slots() :: #slots{}.
-opaque loan() :: #loan{}.

%% The counters: seven of the pool, and then three of each slot.
-define(WAITING_CALLS, 1).
-define(WAITING_STREAMS, 2).
-define(REFUSED_UNTIL, 3).
-define(REACHED(Depth), (4 + Depth)).
-define(WAITING_MESSAGES, 7).
-define(COMMON, 7).
-define(NEVER, (-1 bsl 60)).

-doc """
Creates the tables, owned by the calling process, with slots for calls, then slots for messages that
have no response, and then slots for streams.
""".
-spec new(Calls :: pos_integer(), Messages :: pos_integer(), Streams :: pos_integer()) -> slots().
new(Calls, Messages, Streams) ->
    Numbers = atomics:new(?COMMON + 3 * (Calls + Messages + Streams), []),
    ok = atomics:put(Numbers, ?REFUSED_UNTIL, ?NEVER),
    Connections = ets:new(?MODULE, [public, {read_concurrency, true}]),
    true = ets:insert(Connections, {refused, none}),
    #slots{connections = Connections,
           loans = ets:new(?MODULE, [public, {write_concurrency, true},
                                      {decentralized_counters, true}]),
           numbers = Numbers, calls = Calls, messages = Messages, streams = Streams}.

-doc """
Lends the least loaded connection to a process, until `release/2`. `call` looks in the slots for
calls, `stream` in those for streams, and `message` in those for calls and for messages. `shared`
lends a connection in a slot for calls, for a stream. Returns `none` if no connection is open in
these slots, or all are taken. Raises `badarg` once the pool has ended.
""".
-spec claim(kind() | shared, pid(), slots()) -> {ok, loan()} | none.
claim(call, Pid, #slots{calls = Calls} = Slots) -> claim(1, Calls, Pid, call, Slots, []);
claim(shared, Pid, #slots{calls = Calls} = Slots) -> claim(1, Calls, Pid, stream, Slots, []);
claim(message, Pid, #slots{calls = Calls, messages = Messages} = Slots) ->
    claim(1, Calls + Messages, Pid, message, Slots, []);
claim(stream, Pid, #slots{calls = Calls, messages = Messages, streams = Streams} = Slots) ->
    Before = Calls + Messages,
    claim(Before + 1, Before + Streams, Pid, stream, Slots, []).

claim(First, Last, Pid, Kind, Slots, Tried) ->
    case least(First, Last, Slots, Tried, {infinity, none}) of
        none ->
            none;
        Slot ->
            case take(Slot, Pid, Kind, Slots) of
                {ok, _} = Taken -> Taken;
                none -> claim(First, Last, Pid, Kind, Slots, [Slot | Tried])
            end
    end.

%% The load counters of slots only say where to look first: the rows decide, and the pool's sweep
%% corrects the counters. Of equally loaded connections the first is chosen, so that superfluous
%% ones stay idle and are closed.
least(Slot, Last, _, _, {_, Best}) when Slot > Last ->
    Best;
least(Slot, Last, #slots{numbers = Numbers} = Slots, Tried, Best) ->
    Seats = atomics:get(Numbers, seats(Slot)),
    Load = atomics:get(Numbers, load(Slot)),
    case Seats > 0 andalso Load < Seats andalso not lists:member(Slot, Tried) of
        true when Load =< 0 -> Slot;
        true -> least(Slot + 1, Last, Slots, Tried, min(Best, {Load, Slot}));
        false -> least(Slot + 1, Last, Slots, Tried, Best)
    end.

take(Slot, Pid, Kind, #slots{connections = Connections} = Slots) ->
    case ets:lookup(Connections, Slot) of
        [{Slot, Id, Gun, Seats, Protocol}] when Seats > 0 ->
            case is_alive(Gun) of
                true -> sit(erlang:phash2(Pid, Seats), Seats, Seats, {Slot, Id, Gun, Protocol},
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
sit(At, Tries, Seats, {Slot, Id, Gun, Protocol} = Connection, Pid, Kind, Slots) ->
    #slots{connections = Connections, loans = Loans, numbers = Numbers} = Slots,
    Seat = {Id, At + 1},
    case ets:insert_new(Loans, {Seat, Pid, Kind, Slot}) of
        false ->
            sit((At + 1) rem Seats, Tries - 1, Seats, Connection, Pid, Kind, Slots);
        true ->
            ok = atomics:add(Numbers, load(Slot), 1),
            %% The pool withdraws a connection before it looks for taken seats. So either this
            %% process sees that the row is gone, or the pool sees the seat.
            case ets:lookup(Connections, Slot) of
                [{Slot, Id, _, _, _}] ->
                    {ok, #loan{seat = Seat, slot = Slot, gun = Gun, protocol = Protocol}};
                _ ->
                    _ = vacate(Seat, Slot, Slots),
                    none
            end
    end.

vacate(Seat, Slot, #slots{loans = Loans, numbers = Numbers}) ->
    case ets:take(Loans, Seat) of
        [_] -> atomics:sub(Numbers, load(Slot), 1);
        [] -> ok
    end.

-doc "Returns the connection of a loan.".
-spec connection(loan()) -> connection().
connection(#loan{gun = Gun}) ->
    Gun.

-doc "Returns the protocol of a loan's connection.".
-spec protocol(loan()) -> protocol().
protocol(#loan{protocol = Protocol}) ->
    Protocol.

-doc """
Ends a loan. A `broken` connection is withdrawn first, so that it is not lent again. Returns `tell`
if the pool's process must be told: because the connection is broken, or because processes wait for
a connection. Otherwise returns `ok`. Raises `badarg` once the pool has ended.
""".
-spec release({loan(), reusable | broken}, slots()) -> tell | ok.
release({#loan{seat = {Id, _} = Seat, slot = Slot}, How}, Slots) ->
    #slots{connections = Connections, numbers = Numbers} = Slots,
    case How of
        reusable -> ok = atomics:put(Numbers, used_at(Slot), erlmcp_clock:now_ms());
        broken -> _ = ets:match_delete(Connections, {Slot, Id, '_', '_', '_'})
    end,
    ok = vacate(Seat, Slot, Slots),
    Awaited = atomics:get(Numbers, ?WAITING_CALLS) + atomics:get(Numbers, ?WAITING_STREAMS)
        + atomics:get(Numbers, ?WAITING_MESSAGES),
    case How =:= broken orelse Awaited > 0 of
        true -> tell;
        false -> ok
    end.

-doc "Puts a connection with the id `Id` and `Seats` seats into a slot, so that it can be lent.".
-spec publish(slot(), Id :: integer(), connection(), Seats :: non_neg_integer(), protocol(),
              slots()) -> ok.
publish(Slot, Id, Gun, Seats, Protocol, #slots{connections = Connections, numbers = Numbers}) ->
    ok = atomics:put(Numbers, load(Slot), 0),
    ok = atomics:put(Numbers, used_at(Slot), ?NEVER),
    true = ets:insert(Connections, {Slot, Id, Gun, Seats, Protocol}),
    atomics:put(Numbers, seats(Slot), Seats).

-doc "Removes a connection from its slot, so that it cannot be lent. Loans of it stay.".
-spec withdraw(slot(), Id :: integer(), slots()) -> ok.
withdraw(Slot, Id, #slots{connections = Connections, numbers = Numbers}) ->
    ok = atomics:put(Numbers, seats(Slot), 0),
    true = ets:match_delete(Connections, {Slot, Id, '_', '_', '_'}),
    ok.

-doc """
Sets the number of a connection's seats, after the server has changed its number of streams. Does
nothing for a connection that is not in the slot any more.
""".
-spec set_seats(slot(), Id :: integer(), Seats :: non_neg_integer(), slots()) -> ok.
set_seats(Slot, Id, Seats, #slots{connections = Connections, numbers = Numbers}) ->
    case ets:lookup(Connections, Slot) of
        [{Slot, Id, _, _, _}] ->
            _ = ets:update_element(Connections, Slot, {4, Seats}),
            atomics:put(Numbers, seats(Slot), Seats);
        _ ->
            ok
    end.

-doc "Returns the rows of all loans, including those of dead holders.".
-spec loans(slots()) -> [row()].
loans(#slots{loans = Loans}) ->
    ets:tab2list(Loans).

-doc "Returns the number of loans of the connection with the id `Id`.".
-spec held(Id :: integer(), slots()) -> non_neg_integer().
held(Id, #slots{loans = Loans}) ->
    ets:select_count(Loans, [{{{Id, '_'}, '_', '_', '_'}, [], [true]}]).

-doc """
Marks the seat of a dead holder as taken by no process, since its stream still runs. Returns `true`
if the seat is marked. Returns `false` if the holder gave the seat back before its death; another
process may have the seat now.
""".
-spec orphan(row(), slots()) -> boolean().
orphan({_, orphan, _, _}, _) ->
    true;
orphan({Seat, Holder, Kind, Slot}, #slots{loans = Loans}) ->
    Orphan = {{{element, 1, '$_'}, orphan, Kind, Slot}},
    1 =:= ets:select_replace(Loans, [{{Seat, Holder, Kind, Slot}, [], [Orphan]}]).

-doc "Removes the loan in a row, if its seat is still taken.".
-spec drop(row(), slots()) -> ok.
drop({Seat, _, _, Slot}, Slots) ->
    vacate(Seat, Slot, Slots).

-doc "Removes the loans that `orphan/2` has marked on a connection that has ended.".
-spec forget(Id :: integer(), slots()) -> ok.
forget(Id, #slots{loans = Loans}) ->
    true = ets:match_delete(Loans, {{Id, '_'}, orphan, '_', '_'}),
    ok.

-doc "Sets the load counter of a slot to `Load`, the number of loans of the connection in it.".
-spec settle(slot(), Load :: non_neg_integer(), slots()) -> ok.
settle(Slot, Load, #slots{numbers = Numbers}) ->
    atomics:put(Numbers, load(Slot), Load).

-doc "Returns the number of loans of a kind.".
-spec count_loans(kind(), slots()) -> non_neg_integer().
count_loans(Kind, #slots{loans = Loans}) ->
    ets:select_count(Loans, [{{'_', '_', Kind, '_'}, [], [true]}]).

-doc """
Returns when the connection in a slot was last given back as reusable, in milliseconds of monotonic
time, or `never`.
""".
-spec last_used(slot(), slots()) -> integer() | never.
last_used(Slot, #slots{numbers = Numbers}) ->
    case atomics:get(Numbers, used_at(Slot)) of
        ?NEVER -> never;
        At -> At
    end.

-doc """
Returns the number of connections in slots, whether or not they have a free seat. Raises `badarg`
once the pool has ended.
""".
-spec open(slots()) -> non_neg_integer().
open(#slots{connections = Connections}) ->
    %% The row `refused` is not a connection.
    rows(Connections) - 1.

-doc """
Returns the number of loans, including those of dead holders. Raises `badarg` once the pool has
ended.
""".
-spec busy(slots()) -> non_neg_integer().
busy(#slots{loans = Loans}) ->
    rows(Loans).

%% Raises `badarg` for a table that ended with its pool, as the other functions do.
rows(Table) ->
    case ets:info(Table, size) of
        Size when is_integer(Size) -> Size;
        undefined -> error(badarg)
    end.

-doc "Sets the number of calls, streams or messages that wait for a connection.".
-spec wait(kind(), non_neg_integer(), slots()) -> ok.
wait(call, Count, #slots{numbers = Numbers}) -> atomics:put(Numbers, ?WAITING_CALLS, Count);
wait(stream, Count, #slots{numbers = Numbers}) -> atomics:put(Numbers, ?WAITING_STREAMS, Count);
wait(message, Count, #slots{numbers = Numbers}) -> atomics:put(Numbers, ?WAITING_MESSAGES, Count).

-doc "Returns the number of calls, streams or messages that wait for a connection.".
-spec waiting(kind(), slots()) -> non_neg_integer().
waiting(call, #slots{numbers = Numbers}) -> atomics:get(Numbers, ?WAITING_CALLS);
waiting(stream, #slots{numbers = Numbers}) -> atomics:get(Numbers, ?WAITING_STREAMS);
waiting(message, #slots{numbers = Numbers}) -> atomics:get(Numbers, ?WAITING_MESSAGES).

-doc """
Records that the server could not be reached, and that no connection is tried before `Until`, in
milliseconds of monotonic time.
""".
-spec refuse(Why :: term(), Until :: integer(), slots()) -> ok.
refuse(Why, Until, #slots{connections = Connections, numbers = Numbers}) ->
    true = ets:insert(Connections, {refused, Why}),
    atomics:put(Numbers, ?REFUSED_UNTIL, Until).

-doc "Records that connections to the server may be tried again.".
-spec admit(slots()) -> ok.
admit(#slots{numbers = Numbers}) ->
    atomics:put(Numbers, ?REFUSED_UNTIL, ?NEVER).

-doc """
Returns why the server is not tried now, and the milliseconds until it may be tried again. Returns
`false` if it may be tried now. May raise `badarg` once the pool has ended.
""".
-spec refusal(Now :: integer(), slots()) -> {true, Why :: term(), pos_integer()} | false.
refusal(Now, #slots{connections = Connections, numbers = Numbers}) ->
    case atomics:get(Numbers, ?REFUSED_UNTIL) of
        Until when Until > Now ->
            [{refused, Why}] = ets:lookup(Connections, refused),
            {true, Why, Until - Now};
        _ ->
            false
    end.

-doc """
Records that a connection has reached an address of the given depth, which is a
`t:erlmcp_outbound_hosts:depth/0`.
""".
-spec reached(erlmcp_outbound_hosts:depth(), slots()) -> ok.
reached(Depth, #slots{numbers = Numbers}) ->
    atomics:put(Numbers, ?REACHED(Depth), 1).

-doc """
Returns the depth of the outermost address that the pool's connections have reached. Returns `none`
if they have reached no address yet.
""".
-spec outermost(slots()) -> erlmcp_outbound_hosts:depth() | none.
outermost(#slots{numbers = Numbers}) ->
    case [Depth || Depth <- [0, 1, 2], atomics:get(Numbers, ?REACHED(Depth)) =:= 1] of
        [Outermost | _] -> Outermost;
        [] -> none
    end.

seats(Slot) -> ?COMMON + 3 * Slot - 2.
load(Slot) -> ?COMMON + 3 * Slot - 1.
used_at(Slot) -> ?COMMON + 3 * Slot.
