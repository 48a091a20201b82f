-module(erlmcp_queue_delay).
-moduledoc """
Controlled delay (CoDel): how long a request may wait in the gate's queue. Pure; times are
milliseconds of any clock.

The algorithm is from Nichols and Jacobson, "Controlling Queue Delay" (ACM Queue 10.5, 2012). Its
form for servers is from Maurer, "Fail at Scale" (ACM Queue 13.8, 2015). If the queue was empty
recently, a request may wait for the longest time. A queue that has had requests for longer than a
quarter of that time is a standing queue, which only makes every request late. There a request may
wait for a tenth of the longest time, or for the time since the last turn if that is more.

Tenants take turns in the queue, and a tenant whose requests always wait asks for too much. Requests
of other tenants may wait longer in a standing queue: for a round of turns more, up to a fifth of
the longest time.

Internal.
""".

-export([new/1, began/2, turned/2, allowed/4, needed/2, lasting/1]).

-export_type([delay/0]).

-opaque delay() :: #{
    longest := pos_integer(),
    %% the last time at which the queue was empty, and the time of the last turn
    empty := integer(), turn := integer(),
    %% the mean time from one turn to the next, and 0 before it is known
    distance := number()
}.

%% A queue is a standing one after this part of the longest time.
-define(LASTING, 4).
%% The part of the longest time that is allowed in a standing queue. A tenant whose requests do not
%% always wait may be allowed the larger part `ROUND` there.
-define(STANDING, 10).
-define(ROUND, 5).
%% The weight of the newest turn in the mean time between two turns.
-define(WEIGHT, 0.125).

-doc "Returns the delay of an empty queue in which a request may wait for `Longest` at most.".
-spec new(Longest :: pos_integer()) -> delay().
new(Longest) ->
    #{longest => Longest, empty => 0, turn => 0, distance => 0}.

-doc """
Returns the milliseconds after which a queue that is never empty is a standing queue. `Longest` is
the longest time for which a request may wait in this queue.
""".
-spec lasting(Longest :: pos_integer()) -> pos_integer().
lasting(Longest) ->
    max(1, Longest div ?LASTING).

-doc "Records that a request begins at `Now` to wait in an empty queue.".
-spec began(Now :: integer(), delay()) -> delay().
began(Now, Delay) ->
    Delay#{empty := Now, turn := Now}.

-doc "Records that a request had its turn at `Now`.".
-spec turned(Now :: integer(), delay()) -> delay().
turned(Now, #{turn := Turn, distance := 0} = Delay) ->
    Delay#{turn := Now, distance := Now - Turn};
turned(Now, #{turn := Turn, distance := Distance} = Delay) ->
    Delay#{turn := Now, distance := Distance + ?WEIGHT * (Now - Turn - Distance)}.

-doc """
Returns for how many milliseconds a request may have waited at most when it has its turn at `Now`.
The request's tenant has always had a waiting request since `Since`. `Round` is the number of turns
in a round (`erlmcp_fair_queue:round/1`).
""".
-spec allowed(Now :: integer(), Since :: integer(), Round :: non_neg_integer(), delay()) ->
    pos_integer().
allowed(Now, Since, Round, #{longest := Longest, empty := Empty, turn := Turn} = Delay)
        when is_integer(Now - Turn), is_integer(Longest) ->
    Lasting = lasting(Longest),
    Standing = max(max(1, Longest div ?STANDING), Now - Turn),
    case {Now - Empty > Lasting, Now - Since > Lasting} of
        {true, true} -> Standing;
        {true, false} -> max(Standing, min(Longest div ?ROUND, Standing + needed(Round, Delay)));
        {false, _} -> Longest
    end.

-doc """
Returns how many milliseconds `Turns` turns take, by the recent mean time of a turn. Returns 0 if no
turn was recorded yet (`turned/2`).
""".
-spec needed(Turns :: non_neg_integer(), delay()) -> non_neg_integer().
needed(Turns, #{distance := Distance}) ->
    round(Turns * Distance).
