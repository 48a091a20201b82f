-module(erlmcp_load_turns).
-moduledoc """
The connections of a group, in the order of their turns. The next turn goes to the connection that
has waited longest, among those with room for a request. If only `Callers` connections may be busy,
there is no next turn while that many are. Pure.
""".

-export([new/2, limited/3, added/2, kept/3, removed/2]).
-export([find/2, all/1, busy/1, is_empty/1, is_idle/1, is_alone/1, room/2, next/1]).

-export_type([turns/0, callers/0]).

-doc """
The most connections that may have requests in flight at once. `all` stands for no such limit.
""".
-type callers() :: pos_integer() | all.

-record(turns, {
    %% The most requests in flight on each connection.
    window :: pos_integer(),
    callers :: callers(),
    connections = #{} :: connections(),
    busy = 0 :: non_neg_integer(),
    %% Connections that had room when they were queued. Some may have no room now, or be gone.
    free = queue:new() :: queue:queue(key()),
    %% The connection that was last taken from the queue.
    taken = none :: none | key()
}).

-opaque turns() :: #turns{}.
-type connections() :: #{key() => connection()}.
-type connection() :: erlmcp_load_connection:connection().
-type key() :: erlmcp_load_socket:key().

-doc """
Returns an empty set of connections. Each connection may have `Window` requests in flight, and at
most `Callers` connections may have requests in flight at once.
""".
-spec new(Window :: pos_integer(), Callers :: callers()) -> turns().
new(Window, Callers) ->
    #turns{window = Window, callers = Callers}.

-doc """
Changes how many requests may be in flight on each connection (`Window`), and how many connections
may have requests in flight at once (`Callers`).
""".
-spec limited(Window :: pos_integer(), Callers :: callers(), turns()) -> turns().
limited(Window, Callers, #turns{connections = Connections} = Turns) ->
    Limited = Turns#turns{window = Window, callers = Callers, taken = none},
    Free = [Key || Key := Connection <- Connections, room(Connection, Limited) > 0],
    Limited#turns{free = queue:from_list(Free)}.

-doc "Adds a connection that has nothing in flight.".
-spec added(connection(), turns()) -> turns().
added(Connection, #turns{connections = Connections, free = Free} = Turns) ->
    Key = erlmcp_load_connection:key(Connection),
    Turns#turns{connections = Connections#{Key => Connection}, free = queue:in(Key, Free)}.

-doc "Stores the current state of the connection with the key `Key`, which must be in the set.".
-spec kept(Key :: key(), connection(), turns()) -> turns().
kept(Key, Connection, #turns{connections = Connections, free = Free, taken = Taken} = Turns) ->
    #{Key := Was} = Connections,
    Kept = Turns#turns{connections = Connections#{Key := Connection},
                       busy = busy(Was, Connection, Turns)},
    case room(Connection, Turns) > 0 of
        true when Key =:= Taken -> Kept#turns{free = queue:in(Key, Free), taken = none};
        true ->
            case room(Was, Turns) > 0 of
                true -> Kept;
                false -> Kept#turns{free = queue:in(Key, Free)}
            end;
        false when Key =:= Taken -> Kept#turns{taken = none};
        false -> Kept
    end.

busy(Was, Is, #turns{busy = Busy}) ->
    case {is_busy(Was), is_busy(Is)} of
        {false, true} -> Busy + 1;
        {true, false} -> Busy - 1;
        _ -> Busy
    end.

is_busy(Connection) ->
    erlmcp_load_connection:in_flight(Connection) > 0.

-doc "Removes the connection with the key `Key`, which must be in the set.".
-spec removed(Key :: key(), turns()) -> turns().
removed(Key, #turns{connections = Connections, busy = Busy} = Turns) ->
    {Was, Others} = maps:take(Key, Connections),
    Turns#turns{connections = Others, busy = case is_busy(Was) of
                                                 true -> Busy - 1;
                                                 false -> Busy
                                             end}.

-doc "Returns the connection with the key `Key`, or `none`.".
-spec find(Key :: key(), turns()) -> connection() | none.
find(Key, #turns{connections = Connections}) ->
    case Connections of
        #{Key := Connection} -> Connection;
        #{} -> none
    end.

-doc "Returns all connections, by their keys.".
-spec all(turns()) -> connections().
all(#turns{connections = Connections}) ->
    Connections.

-doc "Returns the connections that have requests in flight.".
-spec busy(turns()) -> connections().
busy(#turns{connections = Connections}) ->
    #{Key => Connection || Key := Connection <- Connections, is_busy(Connection)}.

-doc "Returns `true` if there are no connections.".
-spec is_empty(turns()) -> boolean().
is_empty(#turns{connections = Connections}) ->
    map_size(Connections) =:= 0.

-doc "Returns `true` if no requests are in flight.".
-spec is_idle(turns()) -> boolean().
is_idle(#turns{busy = Busy}) ->
    Busy =:= 0.

-doc """
Returns `true` if no connection waits for its turn. The connection that `next/1` has taken does not
wait. If the result is `false`, the connections that wait may still have no room for a request.
""".
-spec is_alone(turns()) -> boolean().
is_alone(#turns{free = Free}) ->
    queue:is_empty(Free).

-doc """
Returns how many more requests may be sent on a connection (`erlmcp_load_connection:room/2`).
""".
-spec room(connection(), turns()) -> integer().
room(Connection, #turns{window = Window}) ->
    erlmcp_load_connection:room(Window, Connection).

-doc """
Takes the connection whose turn it is. The connection has no other turn until `kept/3` stores it
again. Returns `none` if no connection may have a request now.
""".
-spec next(turns()) -> {key(), connection(), turns()} | none.
%% `all` is greater than any number.
next(#turns{callers = Callers, busy = Busy}) when Busy >= Callers ->
    none;
next(#turns{free = Free, connections = Connections} = Turns) ->
    case queue:out(Free) of
        {empty, _} ->
            none;
        {{value, Key}, Others} ->
            Rest = Turns#turns{free = Others},
            case Connections of
                #{Key := Connection} ->
                    case room(Connection, Turns) > 0 of
                        true -> {Key, Connection, Rest#turns{taken = Key}};
                        false -> next(Rest)
                    end;
                #{} ->
                    next(Rest)
            end
    end.
