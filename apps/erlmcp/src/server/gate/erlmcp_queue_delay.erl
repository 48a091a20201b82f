-module(erlmcp_queue_delay).
-moduledoc """
How long a request may wait in the gate's queue: controlled delay (CoDel), as in Nichols and
Jacobson, "Controlling Queue Delay" (ACM Queue 10.5, 2012), in the form for servers of Maurer, "Fail
at Scale" (ACM Queue 13.8, 2015). Pure; times are milliseconds of any clock.

As long as the queue was empty recently, a request may wait for the longest time. A queue that has
not been empty for a quarter of that only makes every request late: then a request may wait for a
tenth of it, or for as long as one turn takes.

The queue has many flows that take turns. The flow whose requests always wait is the one that asks
for too much. So a flow of which no request waited recently has more time in a queue that stays: a
round of turns more, up to a fifth of the longest time.

Internal.
""".

-export([new/1, began/2, turned/2, allowed/4, needed/2, lasting/1]).

-export_type([delay/0]).

-opaque delay() :: #{
    longest := pos_integer(),
    %% when the queue was empty the last time, when the last turn was
    empty := integer(), turn := integer(),
    %% from one turn to the next, as it is usual; 0 where that is not known
    distance := number()
}.

%% The part of the longest time that makes a queue one that stays.
-define(LASTING, 4).
%% The part of the longest time that is allowed in a queue that stays, and the most that is allowed
%% there to a flow that does not stay.
-define(STANDING, 10).
-define(ROUND, 5).
%% The weight of the newest turn in their usual distance.
-define(WEIGHT, 0.125).

-doc "Makes the delay of an empty queue; no request may wait longer than `Longest`.".
-spec new(Longest :: pos_integer()) -> delay().
new(Longest) ->
    #{longest => Longest, empty => 0, turn => 0, distance => 0}.

-doc "Returns for how long a queue is not empty before it is one that stays.".
-spec lasting(Longest :: pos_integer()) -> pos_integer().
lasting(Longest) ->
    max(1, Longest div ?LASTING).

-doc "Notes that a request begins to wait, where none did.".
-spec began(Now :: integer(), delay()) -> delay().
began(Now, Delay) ->
    Delay#{empty := Now, turn := Now}.

-doc "Notes a turn.".
-spec turned(Now :: integer(), delay()) -> delay().
turned(Now, #{turn := Turn, distance := 0} = Delay) ->
    Delay#{turn := Now, distance := Now - Turn};
turned(Now, #{turn := Turn, distance := Distance} = Delay) ->
    Delay#{turn := Now, distance := Distance + ?WEIGHT * (Now - Turn - Distance)}.

-doc """
Returns how long a request may have waited whose turn it is, if one of its flow always waited since
`Since`, and `Round` turns are a round.
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

-doc "Returns how long `Turns` take, as far as that is known.".
-spec needed(Turns :: non_neg_integer(), delay()) -> non_neg_integer().
needed(Turns, #{distance := Distance}) ->
    round(Turns * Distance).
